/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers of the durable tier's files (B5). The first byte chooses: 0, the bytes are a footer; 1, a block is each of
 * the kinds of blocks; 2, a good disk of the log with changes in triples (position, position, value to xor);
 * 3, the same of the file backend; 4, the bytes are a segment as they are. What opens must serve right
 * bytes or none, take a put, and open again.
 */
#include "store/disk_cut.h"
#include "store/logrec.h"
#include "store/store_blk.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define N_OBJECTS 6
#define SEGMENT	  "seg-0000000000000001.log"

static struct blk_lane lane;
static struct log quiet = { .svc = "fuzz", .fd = -1 };
static uint8_t value[8192];

static struct store_id id_of(uint32_t i)
{
	static char keys[N_OBJECTS + 1][8];
	snprintf(keys[i], sizeof(keys[i]), "k%u", i);
	return (struct store_id){ BYTES_STR("t"), BYTES_STR(keys[i]), 5 };
}

static uint64_t size_of(uint32_t i)
{
	return i * 1000;
}

static struct store_blk *open_on(struct disk_cut *d, const struct store_blk_ops *ops)
{
	const struct store_opts so = { .log = &quiet,
				       .limit_bytes = 8 << 20,
				       .limit_objects = 100,
				       .segment_bytes = 128 << 10,
				       .high_pct = 90,
				       .low_pct = 80 };
	const struct blk_opts o = {
		.o = &so, .fs = disk_cut_fs(d), .seed = 1, .owner = "fuzz", .direct = true
	};
	const struct disk_lane_opts lo = { .depth = 8 };
	struct store_blk *b = NULL;
	struct why w = { 0 };
	if (!lane.bounce)
		lane.bounce = aligned_alloc(DISK_ALIGN, (size_t)BLK_BOUNCES * BLK_BOUNCE);
	lane.depth = 8;
	if (!lane.bounce || o.fs->ops->lane_new(o.fs, &lo, &lane.io))
		abort();
	if (ops->open(&o, &lane, &b, &w)) {
		assert(w.text[0]);
		disk_lane_free(lane.io);
		return NULL;
	}
	return b;
}

static void close_it(struct store_blk *b)
{
	b->ops->close(b, &lane);
	disk_lane_free(lane.io);
}

static void put_some(struct store_blk *b, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		struct store_put_item it = { .id = id_of(i), .p = value + i, .n = size_of(i) };
		struct store_put r = { .items = &it, .n = 1 };
		it.sum = obj_sum(it.p, it.n, NULL);
		b->ops->put(b, &lane, &r);
	}
}

/* Right bytes or none. */
static void read_all(struct store_blk *b)
{
	static uint8_t to[8192];
	for (uint32_t i = 0; i <= N_OBJECTS; i++) {
		struct store_get_item it = {
			.id = id_of(i), .n = STORE_WHOLE, .to = to, .room = sizeof(to)
		};
		struct store_get r = { .items = &it, .n = 1 };
		b->ops->get(b, &lane, &r);
		if (it.err == ERR_NONE)
			assert(it.got == size_of(i) && memcmp(to, value + i, it.got) == 0);
	}
}

static struct disk_cut *good_disk(const struct store_blk_ops *ops)
{
	static struct disk_cut *made[2];
	struct disk_cut **at = &made[ops == &store_file_blk];
	if (!*at) {
		for (size_t i = 0; i < sizeof(value); i++)
			value[i] = (uint8_t)(i * 7);
		*at = disk_cut_new(1);
		struct store_blk *b = open_on(*at, ops);
		put_some(b, 0, N_OBJECTS);
		struct store_del_item d = { .id = id_of(2) };
		struct store_del r = { .items = &d, .n = 1 };
		b->ops->del(b, &lane, &r);
		close_it(b);
	}
	return disk_cut_copy(*at);
}

struct spoil {
	struct disk_cut *d;
	const uint8_t *p;
	size_t n;
};

static void spoil(void *arg, const char *name, size_t size)
{
	struct spoil *s = arg;
	size_t n;
	uint8_t *file = disk_cut_file(s->d, name, &n);
	(void)size;
	if (n == 0 || s->n == 0)
		return;
	size_t mine = s->n / 2 / 3 * 3 ? s->n / 2 / 3 * 3 : s->n;
	for (size_t i = 0; i + 3 <= mine; i += 3)
		file[(size_t)(s->p[i] << 8 | s->p[i + 1]) % n] ^= s->p[i + 2];
	s->p += mine;
	s->n -= mine;
}

static void try_disk(struct disk_cut *d, const struct store_blk_ops *ops)
{
	struct store_blk *b = open_on(d, ops);
	if (b) {
		read_all(b);
		put_some(b, N_OBJECTS, N_OBJECTS + 1);
		read_all(b);
		close_it(b);
		b = open_on(d, ops);
		assert(b);
		read_all(b);
		close_it(b);
	}
	disk_cut_free(d);
}

static void try_blocks(const uint8_t *p, size_t n)
{
	uint8_t block[LOGREC_BLOCK] = { 0 };
	struct logrec_seg s;
	struct logrec_head h;
	struct logrec_trailer t;
	memcpy(block, p, n < sizeof(block) ? n : sizeof(block));
	(void)!logrec_seg_get(block, &s);
	if (logrec_head_get(block, 0, (struct logrec_place){ 0, 0 }, &h) == ERR_NONE)
		for (uint32_t i = 0; i < h.n_dels; i++)
			(void)logrec_del(block, i);
	(void)!logrec_trailer_get(block, 1 << 20, &t);
}

static void try_footer(const uint8_t *p, size_t n)
{
	struct logrec_entry e;
	size_t at = 0;
	bool bad = false;
	uint64_t bytes = 0;
	while (logrec_entry_get(BYTES(p, n), &at, 1 << 20, &e, &bad)) {
		assert(at <= n);
		if (e.type == LOGREC_PUT) {
			assert(store_id_valid(&e.id) && e.id.key.p + e.id.key.n <= p + n);
			bytes += e.id.tenant.p[0] + e.id.key.p[e.id.key.n - 1]; /* reads them */
		}
	}
	assert((bad || at == n) && bytes < UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n == 0 || n > 1 << 17)
		return 0;
	const struct store_blk_ops *ops = p[0] == 3 ? &store_file_blk : &store_log_blk;
	if (p[0] == 0)
		try_footer(p + 1, n - 1);
	else if (p[0] == 1)
		try_blocks(p + 1, n - 1);
	else if (p[0] <= 4) {
		struct disk_cut *d = good_disk(ops);
		struct spoil s = { d, p + 1, n - 1 };
		if (p[0] == 4)
			disk_cut_put(d, SEGMENT, p + 1, n - 1);
		else
			disk_cut_each(d, spoil, &s);
		try_disk(d, ops);
	}
	return 0;
}
