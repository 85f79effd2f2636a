/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage: one bit flipped anywhere in what a backend keeps (heads, keys, values, footers, trailers, markers), in
 * sealed segments and in a tail; blocks that cannot be read. Never wrong bytes, never an object that was
 * deleted, and one flip costs at most the objects whose own bytes it hit.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "disk_rig.h"
#include "store/logrec.h"
#include "tests/support/leak.h"

struct param {
	char backend[8];
	bool tail; /* the process died: no footer in the last segment */
};
static struct param params[] = { { "log", false }, { "log", true }, { "file", false } };

struct names {
	char text[160][160];
	size_t bytes[160];
	size_t n;
};

static void note(void *arg, const char *name, size_t n)
{
	struct names *v = arg;
	cr_assert(v->n < 160);
	snprintf(v->text[v->n], 160, "%s", name);
	v->bytes[v->n++] = n;
}

/* A disk with objects, deleted ones among them. */
static struct disk_cut *full_disk(struct rig *r, const struct param *p)
{
	rig_init(r, p->backend, 5);
	cr_assert_eq(rig_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 30; i += 3) {
		const uint32_t ids[] = { i, i + 1, i + 2 };
		cr_assert(rig_put(r, ids, 3));
	}
	const uint32_t del[] = { 1, 4, 9, 20 };
	cr_assert(rig_del(r, del, 4));
	const uint32_t more[] = { 31, 32 };
	cr_assert(rig_put(r, more, 2));
	if (!p->tail)
		rig_close(r);
	return disk_cut_copy(r->disk);
}

static void reopen_and_check(struct rig *r, const struct disk_cut *good, const char *name,
			     size_t at, unsigned bit)
{
	enum rig_state before[RIG_IDS];
	size_t n;
	struct disk_cut *spoiled = disk_cut_copy(good);
	uint8_t *p = disk_cut_file(spoiled, name, &n);
	cr_assert(p && at < n);
	p[at] ^= (uint8_t)(1u << bit);
	memcpy(before, r->state, sizeof(before));
	rig_crash(r, spoiled);
	snprintf(r->what, sizeof(r->what), "%.40s at %zu bit %u", name, at, bit);
	r->lax = true;
	r->gone = 0;
	enum err e = rig_open(r);
	if (strcmp(name, BLK_MARKER_NAME) == 0) {
		cr_assert(e == ERR_NONE || e == ERR_CORRUPT);
	} else {
		cr_assert_eq(e, ERR_NONE, "%s", r->what);
		rig_check(r);
		cr_assert(r->gone <= 1, "%llu objects lost: %s", (unsigned long long)r->gone,
			  r->what);
	}
	memcpy(r->state, before, sizeof(before));
}

ParameterizedTestParameters(flip, one_bit_costs_at_most_one_object)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

/* Every interesting place of small files, a sample of large ones. */
ParameterizedTest(struct param *p, flip, one_bit_costs_at_most_one_object, .timeout = 120)
{
	struct rig r;
	struct names v = { 0 };
	struct disk_cut *good = full_disk(&r, p);
	disk_cut_each(good, note, &v);
	cr_assert(v.n > 3);
	for (size_t i = 0; i < v.n; i++) {
		size_t step = v.bytes[i] > 1u << 20 ? 39 * 509 : 13 * 509;
		for (size_t at = 0; at < v.bytes[i]; at += step * RIG_STEP)
			reopen_and_check(&r, good, v.text[i], at, (unsigned)(at % 8));
		/* heads, and what ends a file */
		for (size_t at = 0; at < 120 && at < v.bytes[i]; at += RIG_STEP == 1 ? 7 : 23) {
			reopen_and_check(&r, good, v.text[i], at, (unsigned)(at % 8));
			reopen_and_check(&r, good, v.text[i], v.bytes[i] - 1 - at, 3);
			if (v.bytes[i] > 8192) {
				reopen_and_check(&r, good, v.text[i], 4096 + at, 5);
				reopen_and_check(&r, good, v.text[i], v.bytes[i] - 4096 + at,
						 1);
				reopen_and_check(&r, good, v.text[i], v.bytes[i] - 8192 + at,
						 1);
			}
		}
	}
	disk_cut_free(good);
	rig_fini(&r);
	NO_LEAKS();
}

/* Spoiled while it is open: the get says so, the object goes, the others stay, a put brings it back. */
ParameterizedTestParameters(flip, found_on_read)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

struct place {
	struct rig *r;
	uint32_t id;
	unsigned spoiled;
};

static void spoil_value(void *arg, const char *name, size_t n)
{
	struct place *pl = arg;
	size_t len;
	uint8_t *p = disk_cut_file(pl->r->disk, name, &len);
	const uint8_t *want = pl->r->values[pl->id];
	for (size_t at = 4096; at + rig_size(pl->id) <= n; at += 4096)
		if (memcmp(p + at, want, rig_size(pl->id)) == 0) {
			p[at + rig_size(pl->id) / 2] ^= 4;
			pl->spoiled++;
		}
}

ParameterizedTest(struct param *p, flip, found_on_read, .timeout = 30)
{
	struct rig r;
	struct store_stat st = { 0 };
	const uint32_t id = 12; /* 4 KiB or so */
	rig_init(&r, p->backend, 6);
	cr_assert_eq(rig_open(&r), ERR_NONE);
	const uint32_t ids[] = { 10, 11, 12, 14 };
	cr_assert(rig_put(&r, ids, 4) && rig_size(id) > 0);
	struct place pl = { .r = &r, .id = id };
	disk_cut_each(r.disk, spoil_value, &pl);
	cr_assert_eq(pl.spoiled, 1);
	struct store_get_item it = { .id = rig_id(id), .n = STORE_WHOLE };
	it.to = aligned_alloc(4096, 1 << 20);
	it.room = 1 << 20;
	struct store_get g = { .items = &it, .n = 1 };
	r.blk->ops->get(r.blk, &r.lane, &g);
	cr_assert(it.err == ERR_CORRUPT && it.got == 0);
	r.blk->ops->get(r.blk, &r.lane, &g);
	cr_assert_eq(it.err, ERR_NOT_FOUND);
	r.blk->ops->stat(r.blk, &st);
	cr_assert(st.corrupt == 1 && st.bytes_quarantined > 0);
	r.state[id] = RIG_ABSENT;
	rig_check(&r);
	cr_assert(rig_put(&r, ids, 4));
	rig_check(&r);
	if (p->tail)
		rig_crash(&r, disk_cut_copy(r.disk));
	else
		rig_close(&r);
	cr_assert_eq(rig_open(&r), ERR_NONE);
	rig_check(&r);
	free(it.to);
	rig_fini(&r);
	NO_LEAKS();
}

/* A read that fails is no loss: the object stays listed, the next read may do. */
ParameterizedTestParameters(flip, unreadable)
{
	return cr_make_param_array(struct param, params, sizeof(params) / sizeof(params[0]));
}

ParameterizedTest(struct param *p, flip, unreadable, .timeout = 30)
{
	struct rig r;
	struct store_stat st = { 0 };
	rig_init(&r, p->backend, 7);
	cr_assert_eq(rig_open(&r), ERR_NONE);
	const uint32_t ids[] = { 10, 11, 12, 13 };
	cr_assert(rig_put(&r, ids, 4));
	struct store_get_item it = { .id = rig_id(13), .n = STORE_WHOLE };
	it.to = aligned_alloc(4096, 2 << 20);
	it.room = 2 << 20;
	struct store_get g = { .items = &it, .n = 1 };
	disk_cut_fail_reads(r.disk, 0, 1);
	r.blk->ops->get(r.blk, &r.lane, &g);
	cr_assert_eq(it.err, ERR_IO);
	r.blk->ops->stat(r.blk, &st);
	cr_assert(st.io_errors == 1 && st.objects == 4);
	rig_check(&r);
	/* nor is a start that cannot read a part of it: what it cannot read it does not remove */
	for (uint64_t skip = 0; skip < 24; skip++) {
		rig_crash(&r, disk_cut_copy(r.disk));
		disk_cut_fail_reads(r.disk, skip, 1 + skip % 3);
		if (rig_open(&r) == ERR_NONE)
			rig_close(&r);
		disk_cut_fail_reads(r.disk, 0, 0);
		cr_assert_eq(rig_open(&r), ERR_NONE);
		rig_check(&r);
	}
	free(it.to);
	rig_fini(&r);
	NO_LEAKS();
}

/* ---- the codec by itself ---- */

Test(logrec, heads_and_footers_round, .timeout = 20)
{
	uint8_t block[LOGREC_BLOCK];
	struct logrec_place at = { 7, 3 * LOGREC_BLOCK };
	struct logrec_head h = { .type = LOGREC_PUT,
				 .id = { BYTES_STR("t"), BYTES_STR("some/key"), 99 },
				 .size = (5u << 20) + 3,
				 .sum = 0x1234 },
			   got;
	logrec_head_put(&h, 42, at, block);
	cr_assert_eq(logrec_head_get(block, 42, at, &got), ERR_NONE);
	cr_assert(got.size == h.size && got.sum == h.sum && store_id_equal(&got.id, &h.id));
	/* 5 MiB and 3 bytes: 6 block sums of 8 bytes behind, in one more block of 4 KiB */
	cr_assert_eq(got.length, LOGREC_BLOCK + (5u << 20) + LOGREC_BLOCK);
	cr_assert_eq(logrec_head_get(block, 43, at, &got), ERR_CORRUPT);
	at.off += LOGREC_BLOCK;
	cr_assert_eq(logrec_head_get(block, 42, at, &got), ERR_CORRUPT);
	at.off -= LOGREC_BLOCK;
	for (unsigned bit = 0; bit < 8 * LOGREC_BLOCK; bit++) {
		block[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_eq(logrec_head_get(block, 42, at, &got), ERR_CORRUPT, "bit %u", bit);
		block[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	struct logrec_place dels[LOGREC_DELS];
	for (uint32_t i = 0; i < LOGREC_DELS; i++)
		dels[i] = (struct logrec_place){ i + 1, i * 4096 };
	logrec_dels_put(dels, LOGREC_DELS, 42, at, block);
	cr_assert(logrec_head_get(block, 42, at, &got) == ERR_NONE && got.type == LOGREC_DEL &&
		  got.n_dels == LOGREC_DELS);
	cr_assert_eq(logrec_del(block, 249).serial, 250);
	NO_LEAKS();
}

Test(logrec, segments_and_trailers_round, .timeout = 20)
{
	uint8_t block[LOGREC_BLOCK];
	struct logrec_seg s = { .serial = 3, .salt = 4, .owner = "own" }, s2;
	struct logrec_trailer t = { .serial = 3,
				    .salt = 4,
				    .footer_off = 8192,
				    .footer_len = 5000,
				    .footer_crc = 6 },
			      t2;
	logrec_seg_put(&s, block);
	cr_assert_eq(logrec_seg_get(block, &s2), ERR_NONE);
	cr_assert(s2.serial == 3 && s2.salt == 4 && strcmp(s2.owner, "own") == 0);
	block[40] ^= 1;
	cr_assert_eq(logrec_seg_get(block, &s2), ERR_CORRUPT);
	logrec_trailer_put(&t, block);
	cr_assert_eq(logrec_trailer_get(block, 8192 + 8192 + 4096, &t2), ERR_NONE);
	cr_assert(t2.footer_len == 5000 && t2.footer_crc == 6 && t2.salt == 4);
	cr_assert_eq(logrec_trailer_get(block, 8192 + 8192, &t2), ERR_CORRUPT);
	block[4095] ^= 1;
	cr_assert_eq(logrec_trailer_get(block, 8192 + 8192 + 4096, &t2), ERR_CORRUPT);
	NO_LEAKS();
}
