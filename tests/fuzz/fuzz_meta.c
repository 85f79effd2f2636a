/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store's readers (B5). The first byte chooses: 0 and 1, the bytes are a log or a
 * snapshot as they are; 2 and 3, one of a good store with changes in triples (position,
 * position, value to xor); 4, records under good checksums, to reach what lies behind them.
 * What opens must be sound, go on, and open again as it was.
 */
#include "meta/meta_log.h"

#include <string.h>

#include "../support/meta_fs_fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define CHUNK 4096

static enum err open_store(struct fault_fs *disk, struct meta_state **st, struct meta_log **g)
{
	struct why why = { 0 };
	struct meta_log_opts o = { .fs = fault_fs_fs(disk),
				   .name = "m",
				   .chunk_bytes = CHUNK,
				   .store = "store for fuzzi" };
	if (meta_state_new(1, st) != ERR_NONE)
		abort();
	enum err e = meta_log_open(&o, *st, g, &why);
	if (e != ERR_NONE) {
		assert(e == ERR_CORRUPT || e == ERR_VERSION_MISMATCH || e == ERR_NO_MEMORY);
		assert(why.text[0]);
		meta_state_free(*st);
	}
	return e;
}

static void close_store(struct meta_state *st, struct meta_log *g)
{
	meta_log_close(g);
	meta_state_free(st);
}

static enum err append(struct meta_log *g, uint64_t seq, const struct meta_rec *r)
{
	struct buf body = BUF_INIT(1 << 16), payload = BUF_INIT(1 << 16);
	meta_rec_encode(&body, r);
	meta_payload_add(&payload, seq, r->type, buf_bytes(&body));
	enum err e = meta_log_append(g, seq, 1, buf_bytes(&payload), NULL);
	buf_fini(&body);
	buf_fini(&payload);
	return e;
}

/* A store with a snapshot and a log, made once and copied. */
static struct fault_fs *good_store(void)
{
	static struct fault_fs *good;
	struct meta_state *st;
	struct meta_log *g;
	struct meta_compaction c;
	if (good)
		return fault_fs_copy(good);
	good = fault_fs_new();
	if (open_store(good, &st, &g) != ERR_NONE)
		abort();
	struct meta_rec term = { .type = META_TERM, .TERM = { 1 } };
	struct meta_rec h = { .type = META_HOLDER,
			      .HOLDER = { .id = BYTES_STR("h"), .kind = 1 } };
	struct meta_rec tomb = { .type = META_TOMB,
				 .TOMB = { BYTES_STR("h"), 0, BYTES_STR("t"), BYTES_STR("key"),
					   5, 5 } };
	bool ok = append(g, 1, &term) == ERR_NONE && append(g, 2, &h) == ERR_NONE &&
		  meta_log_switch(g, NULL) == ERR_NONE;
	meta_log_compaction(g, &c);
	ok = ok && meta_log_compact(&c, NULL) == ERR_NONE;
	meta_log_compacted(g, &c);
	if (!ok || append(g, 3, &tomb) != ERR_NONE || append(g, 4, &tomb) != ERR_NONE)
		abort();
	close_store(st, g);
	return fault_fs_copy(good);
}

static void meddle(struct fault_fs *disk, const char *name, const uint8_t *p, size_t n)
{
	size_t size;
	uint8_t *file = fault_fs_file(disk, name, &size);
	for (; n >= 3; p += 3, n -= 3)
		file[(size_t)(p[0] << 8 | p[1]) % size] ^= p[2];
}

/* The bytes as records: type, length, body, again and again. */
static void put_records(struct meta_log *g, uint64_t seq, const uint8_t *p, size_t n)
{
	struct buf payload = BUF_INIT(1 << 16);
	uint32_t count = 0;
	while (n >= 2) {
		size_t len = MIN_OF(n - 2, (size_t)p[1]);
		meta_payload_add(&payload, seq + count++, p[0] % 13, BYTES(p + 2, len));
		p += 2 + len;
		n -= 2 + len;
	}
	if (count > 0)
		(void)!meta_log_append(g, seq, count, buf_bytes(&payload), NULL);
	buf_fini(&payload);
}

/* Sound, writable, and the same after another start. */
static void check_opened(struct fault_fs *disk, struct meta_state *st, struct meta_log *g)
{
	struct meta_rec h = { .type = META_HOLDER,
			      .HOLDER = { .id = BYTES_STR("x"), .kind = 2 } };
	uint64_t seq = meta_last_seq(st);
	meta_state_check(st);
	if (seq == UINT64_MAX || append(g, seq + 1, &h) != ERR_NONE) {
		close_store(st, g);
		return;
	}
	close_store(st, g);
	if (open_store(disk, &st, &g) != ERR_NONE)
		abort();
	assert(meta_last_seq(st) == seq + 1 && meta_holder_find(st, BYTES_STR("x")));
	meta_state_check(st);
	close_store(st, g);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct meta_state *st;
	struct meta_log *g;
	if (n == 0 || n > 1 << 16)
		return 0;
	struct fault_fs *disk = p[0] < 2 ? fault_fs_new() : good_store();
	if (p[0] < 2)
		fault_fs_put(disk, p[0] ? "m.snap" : "m.log", p + 1, n - 1);
	else if (p[0] < 4)
		meddle(disk, p[0] == 2 ? "m.log" : "m.snap", p + 1, n - 1);
	enum err e = open_store(disk, &st, &g);
	if (e == ERR_NONE && p[0] == 4) {
		put_records(g, meta_last_seq(st) + 1, p + 1, n - 1);
		close_store(st, g);
		e = open_store(disk, &st, &g);
	}
	if (e == ERR_NONE)
		check_opened(disk, st, g);
	fault_fs_free(disk);
	return 0;
}
