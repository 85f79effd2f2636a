/* SPDX-License-Identifier: Apache-2.0 */
/* The store session: bytes there and back, sums, ranges, batches, probes. */
#include "stc_world.h"
#include "store/mempool_priv.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(stc, .timeout = 60);
TestSuite(stc_read, .timeout = 60);

static uint8_t *bytes_of(size_t n, uint32_t seed)
{
	uint8_t *p = malloc(n + 1);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i + 1) * (seed * 2654435761u | 1) >> 11);
	return p;
}

/* Every size around the limits that mean something; the sum that is stored is that of T4. */
Test(stc, sizes)
{
	static const size_t sizes[] = { 0,
					1,
					63,
					4095,
					4096,
					4097,
					16384,
					16385,
					262144,
					262145,
					1 << 20,
					(1 << 20) + 1,
					3 * (1 << 20) + 17 };
	for (uint32_t in = 0; in < 2; in++) {
		struct world w;
		w_open(&w, &(struct w_opts){ .seed = 1,
					     .step_bytes = 1 << 19,
					     .inline_bytes = in ? 16384 : UINT32_MAX });
		for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
			char key[16];
			size_t n = sizes[i], got = 99;
			uint8_t *a = bytes_of(n, (uint32_t)i + 1), *b = malloc(n + 1);
			snprintf(key, sizeof(key), "k%zu", n);
			w.f.pieces = (uint32_t)i % 4;
			cr_assert_eq(w_put(&w, key, BYTES(a, n), false, 5000), ERR_NONE);
			struct w_object *o = w_find(&w.f, key);
			cr_expect_eq(o->sum, obj_sum(a, n, NULL), "%zu", n);
			cr_expect_eq(o->size, n);
			for (int verify = 0; verify < 2; verify++) {
				memset(b, 0xee, n + 1);
				cr_expect_eq(w_get(&w, key, b, n, &got, verify, 5000),
					     ERR_NONE);
				cr_expect(got == n && memcmp(a, b, n) == 0 && b[n] == 0xee);
			}
			free(a);
			free(b);
		}
		cr_expect_eq(w.maps, 1, "a pool is mapped once");
		cr_expect_eq(w.f.revoked, 0);
		w_close(&w);
	}
	NO_LEAKS();
}

/* The vector of block sums lies behind the payload, where a holder looks for it. */
Test(stc, vector_is_stored)
{
	struct world w;
	size_t n = (2 << 20) + 5;
	uint8_t *a = bytes_of(n, 3);
	uint64_t vector[3];
	w_open(&w, &(struct w_opts){ .seed = 2, .step_bytes = 300000 });
	cr_assert_eq(w_put(&w, "k", BYTES(a, n), false, 5000), ERR_NONE);
	struct w_copy *c = &w_find(&w.f, "k")->copies[0];
	uint64_t sum = 0;
	obj_sum(a, n, vector);
	const uint8_t *p = mempool_at(w.f.pool, &c->ext[0]);
	cr_expect_eq(memcmp(p, a, n), 0);
	cr_expect_eq(memcmp(p + obj_vector_at(n), vector, sizeof(vector)), 0);
	cr_expect_eq(mempool_sum(w.f.pool, c->ext, c->n_ext, n, &sum), ERR_NONE);
	cr_expect_eq(sum, w_find(&w.f, "k")->sum);
	free(a);
	w_close(&w);
	NO_LEAKS();
}

/* Pieces of any size on both sides, empty ones among them. */
Test(stc, scatter_gather)
{
	struct world w;
	size_t n = 100000, got = 0;
	uint8_t *a = bytes_of(n, 5), *b = calloc(1, n);
	struct stc_buf in[4] = {
		{ a, 1 }, { a + 1, 0 }, { a + 1, 70000 }, { a + 70001, 29999 }
	};
	struct stc_buf out[5] = { { b, 33333 },
				  { NULL, 0 },
				  { b + 33333, 33333 },
				  { b + 66666, 33334 },
				  { NULL, 0 } };
	w_open(&w, &(struct w_opts){ .seed = 3, .step_bytes = 5000 });
	w.f.pieces = 7;
	struct stc_call *c = NULL;
	cr_assert_eq(stc_call_new(STC_PUT, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("k");
	c->items[0].bufs = in;
	c->items[0].n_bufs = 4;
	cr_assert(w_run(&w, c, 5000));
	cr_expect_eq(c->items[0].err, ERR_NONE);
	cr_expect_eq(c->items[0].size, n);
	cr_expect_eq(c->bytes_done, n);
	stc_call_free(c);
	for (int verify = 0; verify < 2; verify++) {
		memset(b, 0, n);
		cr_assert_eq(stc_call_new(STC_GET, 1, &c), ERR_NONE);
		c->items[0].key = BYTES_STR("k");
		c->items[0].bufs = out;
		c->items[0].n_bufs = 5;
		c->get.verify = verify;
		cr_assert(w_run(&w, c, 5000));
		cr_expect_eq(c->items[0].err, ERR_NONE);
		got = c->items[0].bytes;
		cr_expect(got == n && memcmp(a, b, n) == 0);
		stc_call_free(c);
	}
	free(a);
	free(b);
	w_close(&w);
	NO_LEAKS();
}

static enum err get_ranges(struct world *w, const struct stc_range *r, uint32_t n, void *out,
			   size_t cap, bool verify, uint64_t *bytes)
{
	struct stc_buf b = { out, cap };
	struct stc_call *c = NULL;
	cr_assert_eq(stc_call_new(STC_GET, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR("k");
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->items[0].ranges = r;
	c->items[0].n_ranges = n;
	c->get.verify = verify;
	cr_assert(w_run(w, c, 5000));
	enum err e = c->items[0].err;
	*bytes = c->items[0].bytes;
	stc_call_free(c);
	return e;
}

Test(stc_read, ranges)
{
	struct world w;
	size_t n = (3 << 20) + 100;
	uint8_t *a = bytes_of(n, 9), *b = malloc(n), *want = malloc(n);
	const struct stc_range r[] = { { n - 10, 10 },	     { 0, 1 },	       { 5, 0 },
				       { (1 << 20) - 3, 6 }, { 100, 1 << 20 }, { n, 0 } };
	size_t total = 0;
	uint64_t bytes = 0;
	w_open(&w, &(struct w_opts){ .seed = 4, .step_bytes = 100000 });
	w.f.pieces = 3;
	cr_assert_eq(w_put(&w, "k", BYTES(a, n), false, 5000), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(r); i++) {
		memcpy(want + total, a + r[i].offset, r[i].bytes);
		total += r[i].bytes;
	}
	for (int verify = 0; verify < 2; verify++) {
		memset(b, 0, n);
		cr_expect_eq(get_ranges(&w, r, ARRAY_LEN(r), b, n, verify, &bytes), ERR_NONE);
		cr_expect(bytes == total && memcmp(b, want, total) == 0, "verify %d", verify);
	}
	struct stc_range bad[] = { { 0, 1 }, { n, 1 } };
	cr_expect_eq(get_ranges(&w, bad, 2, b, n, false, &bytes), ERR_INVALID_PARAMS);
	bad[1] = (struct stc_range){ UINT64_MAX, 2 };
	cr_expect_eq(get_ranges(&w, bad, 2, b, n, false, &bytes), ERR_INVALID_PARAMS);
	cr_expect_eq(get_ranges(&w, r, ARRAY_LEN(r), b, total - 1, false, &bytes),
		     ERR_TOO_LARGE);
	free(a);
	free(b);
	free(want);
	w_close(&w);
	NO_LEAKS();
}

/* A flipped bit is found where it is looked for: in the whole, in a block that a range touches; and not
 * in a block that it does not. */
Test(stc_read, verify_finds_rot)
{
	struct world w;
	size_t n = (2 << 20) + 9, got = 0;
	uint64_t bytes = 0;
	uint8_t *a = bytes_of(n, 11), *b = malloc(n);
	w_open(&w, &(struct w_opts){ .seed = 5, .step_bytes = 1 << 20 });
	cr_assert_eq(w_put(&w, "k", BYTES(a, n), false, 5000), ERR_NONE);
	uint8_t *p = mempool_at(w.f.pool, &w_find(&w.f, "k")->copies[0].ext[0]);
	p[(1 << 20) + 77] ^= 4;
	cr_expect_eq(w_get(&w, "k", b, n, &got, true, 2000), ERR_CORRUPT);
	cr_expect_eq(w_get(&w, "k", b, n, &got, false, 2000), ERR_NONE, "shm: generation only");
	struct stc_range in = { (1 << 20) + 5, 3 }, off = { 5, 3 };
	cr_expect_eq(get_ranges(&w, &in, 1, b, n, true, &bytes), ERR_CORRUPT);
	cr_expect_eq(get_ranges(&w, &off, 1, b, n, true, &bytes), ERR_NONE);
	p[(1 << 20) + 77] ^= 4;
	p[obj_vector_at(n)] ^= 1; /* in the vector */
	cr_expect_eq(w_get(&w, "k", b, n, &got, true, 2000), ERR_NONE);
	cr_expect_eq(get_ranges(&w, &off, 1, b, n, true, &bytes), ERR_CORRUPT);
	p[obj_vector_at(n)] ^= 1;
	/* with another copy that is good, nobody notices */
	w_copy(&w.f, w_find(&w.f, "k"));
	p[0] ^= 1;
	cr_expect_eq(w_get(&w, "k", b, n, &got, true, 2000), ERR_NONE);
	cr_expect(memcmp(a, b, n) == 0);
	free(a);
	free(b);
	w_close(&w);
	NO_LEAKS();
}

/* Found by an agent's start and not read yet (spec/store.md, Pool): the reader looks itself, whole and in
 * ranges, asked to or not; rot is an error or the other copy's good bytes, never the bytes. */
Test(stc_read, the_first_read_of_what_was_re_adopted_verifies)
{
	struct world w;
	size_t n = (2 << 20) + 9, got = 0;
	uint64_t bytes = 0;
	uint8_t *a = bytes_of(n, 12), *b = malloc(n);
	struct stc_range in = { (1 << 20) + 5, 3 };
	w_open(&w, &(struct w_opts){ .seed = 7, .step_bytes = 1 << 20, .inline_bytes = 64 });
	cr_assert_eq(w_put(&w, "k", BYTES(a, n), false, 5000), ERR_NONE);
	struct w_object *o = w_find(&w.f, "k");
	uint8_t *p = mempool_at(w.f.pool, &o->copies[0].ext[0]);
	directory_doubt(w.f.pool, o->copies[0].slot);
	cr_expect_eq(w_get(&w, "k", b, n, &got, false, 2000), ERR_NONE);
	cr_expect(got == n && memcmp(a, b, n) == 0);
	cr_expect_eq(get_ranges(&w, &in, 1, b, n, false, &bytes), ERR_NONE);
	p[(1 << 20) + 77] ^= 4;
	cr_expect_eq(w_get(&w, "k", b, n, &got, false, 2000), ERR_CORRUPT);
	cr_expect_eq(get_ranges(&w, &in, 1, b, n, false, &bytes), ERR_CORRUPT);
	w_copy(&w.f, o);
	p = mempool_at(w.f.pool, &o->copies[1].ext[0]);
	p[(1 << 20) + 77] = a[(1 << 20) + 77];
	cr_expect_eq(w_get(&w, "k", b, n, &got, false, 2000), ERR_NONE, "the other copy");
	cr_expect(memcmp(a, b, n) == 0);
	cr_expect_eq(get_ranges(&w, &in, 1, b, n, false, &bytes), ERR_NONE);
	/* once the agent has read it, readers compare generations alone */
	directory_verified(w.f.pool, o->copies[0].slot);
	cr_expect_eq(w_get(&w, "k", b, n, &got, false, 2000), ERR_NONE);
	cr_expect(memcmp(a, b, n) != 0, "the first copy, unseen");
	free(a);
	free(b);
	w_close(&w);
	NO_LEAKS();
}

Test(stc_read, too_small_a_buffer)
{
	struct world w;
	char b[8] = "unused!";
	size_t n = 0;
	w_open(&w, &(struct w_opts){ .seed = 6 });
	cr_assert_eq(w_put(&w, "k", BYTES_STR("12345678"), false, 1000), ERR_NONE);
	cr_expect_eq(w_get(&w, "k", b, 7, &n, false, 1000), ERR_TOO_LARGE);
	cr_expect_str_eq(b, "unused!");
	cr_expect_eq(w_get(&w, "none", b, 8, &n, false, 1000), ERR_NOT_FOUND);
	w_close(&w);
	NO_LEAKS();
}

/* A get of one version only. */
Test(stc_read, if_version)
{
	struct world w;
	char b[8];
	struct stc_buf buf = { b, sizeof(b) };
	struct stc_call *c = NULL;
	w_open(&w, &(struct w_opts){ .seed = 7 });
	cr_assert_eq(w_put(&w, "k", BYTES_STR("1"), false, 1000), ERR_NONE);
	uint64_t version = w_find(&w.f, "k")->version;
	cr_assert_eq(w_put(&w, "k", BYTES_STR("2"), true, 1000), ERR_NONE);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(stc_call_new(STC_GET, 1, &c), ERR_NONE);
		c->items[0].key = BYTES_STR("k");
		c->items[0].bufs = &buf;
		c->items[0].n_bufs = 1;
		c->items[0].if_version = i ? w_find(&w.f, "k")->version : version;
		cr_assert(w_run(&w, c, 1000));
		cr_expect_eq(c->items[0].err, i ? ERR_NONE : ERR_CONFLICT);
		stc_call_free(c);
	}
	w_close(&w);
	NO_LEAKS();
}

/* 4,096 at once: each its own result, in messages that stay within their limits. */
Test(stc, batch)
{
	struct world w;
	enum { N = 4096 };
	struct stc_call *c = NULL;
	static char keys[N][16];
	static uint32_t values[N];
	static struct stc_buf bufs[N];
	w_open(&w, &(struct w_opts){ .seed = 8, .inline_bytes = 4096 });
	cr_assert_eq(w_put(&w, "key7", BYTES_STR("there already"), false, 1000), ERR_NONE);
	for (int round = 0; round < 2; round++) {
		cr_assert_eq(stc_call_new(round ? STC_GET : STC_PUT, N, &c), ERR_NONE);
		for (uint32_t i = 0; i < N; i++) {
			snprintf(keys[i], sizeof(keys[i]), "key%u", i);
			values[i] = round ? 0 : i * 3;
			bufs[i] = (struct stc_buf){ &values[i], 4 };
			c->items[i].key = BYTES_STR(keys[i]);
			c->items[i].bufs = &bufs[i];
			c->items[i].n_bufs = 1;
		}
		c->items[9].key = BYTES_STR("");
		cr_assert(w_run(&w, c, 30000));
		for (uint32_t i = 0; i < N; i++) {
			enum err want = i == 9	 ? ERR_INVALID_PARAMS
					: i != 7 ? ERR_NONE
					: round	 ? ERR_TOO_LARGE
						 : ERR_ALREADY_EXISTS;
			cr_expect_eq(c->items[i].err, want, "%u: %s", i,
				     err_name(c->items[i].err));
			if (round && want == ERR_NONE)
				cr_expect_eq(values[i], i * 3);
		}
		stc_call_free(c);
	}
	cr_expect(w.f.asked[METHOD_PUT_START] <= 10, "%u", w.f.asked[METHOD_PUT_START]);
	w_close(&w);
	NO_LEAKS();
}

Test(stc, limits_of_a_call)
{
	struct stc_call *c = NULL;
	cr_expect_eq(stc_call_new(STC_GET, 0, &c), ERR_INVALID_PARAMS);
	cr_expect_eq(stc_call_new(STC_GET, STC_ITEMS_MAX + 1, &c), ERR_INVALID_PARAMS);
	stc_call_free(NULL);
	NO_LEAKS();
}

/* ---- one question, one answer ---- */

Test(stc, probes)
{
	struct world w;
	struct stc_call *c = NULL;
	static const enum stc_kind kinds[] = { STC_EXISTS, STC_STAT, STC_QUERY };
	w_open(&w, &(struct w_opts){ .seed = 9 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("value"), false, 1000), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		cr_assert_eq(stc_call_new(kinds[i], 2, &c), ERR_NONE);
		c->items[0].key = BYTES_STR("a");
		c->items[1].key = BYTES_STR("b");
		cr_assert(w_run(&w, c, 1000));
		cr_expect_eq(c->items[0].err, ERR_NONE);
		cr_expect_eq(c->items[1].err, ERR_NOT_FOUND);
		cr_expect_str_eq(c->items[1].peer, "master");
		if (kinds[i] == STC_STAT)
			cr_expect(c->items[0].stat->size == 5 &&
				  c->items[0].stat->holders.n == 1);
		if (kinds[i] == STC_QUERY)
			cr_expect(c->items[0].object->replicas.n == 1 &&
				  c->items[0].n_places == 1 && c->items[0].size == 5);
		stc_call_free(c);
	}
	w_close(&w);
	NO_LEAKS();
}

Test(stc, lists_and_the_like)
{
	struct world w;
	struct stc_call *c = NULL;
	static const enum stc_kind kinds[] = { STC_LIST, STC_EXPLAIN, STC_HOLDERS,
					       STC_REMOVE_RANGE };
	w_open(&w, &(struct w_opts){ .seed = 10 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	cr_assert_eq(w_put(&w, "b", BYTES_STR("2"), false, 1000), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		cr_assert_eq(stc_call_new(kinds[i], 1, &c), ERR_NONE);
		struct stc_item *it = &c->items[0];
		it->key = BYTES_STR(kinds[i] == STC_EXPLAIN ? "a" : "");
		cr_assert(w_run(&w, c, 1000));
		cr_expect_eq(it->err, ERR_NONE);
		if (kinds[i] == STC_LIST)
			cr_expect(it->list->items.n == 2 && it->list->cursor.n == 4);
		if (kinds[i] == STC_EXPLAIN)
			cr_expect_eq(it->explain->facts.n, 2);
		if (kinds[i] == STC_HOLDERS)
			cr_expect(it->holders->objects == 9 && it->holders->recovering);
		if (kinds[i] == STC_REMOVE_RANGE)
			cr_expect(it->bytes == 2 && it->pinned == 3);
		stc_call_free(c);
	}
	cr_expect_eq(w_key(&w, STC_EXPLAIN, "", 1000), ERR_INVALID_PARAMS);
	w_close(&w);
	NO_LEAKS();
}

Test(stc, release)
{
	struct world w;
	struct stc_call *c = NULL;
	w_open(&w, &(struct w_opts){ .seed = 11 });
	cr_assert_eq(w_put(&w, "a", BYTES_STR("1"), false, 1000), ERR_NONE);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(stc_call_new(STC_RELEASE, 1, &c), ERR_NONE);
		c->items[0].key = BYTES_STR("a");
		c->items[0].if_version = w_find(&w.f, "a")->version + (uint64_t)i;
		cr_assert(w_run(&w, c, 1000));
		cr_expect_eq(c->items[0].err, i ? ERR_LEASE_LOST : ERR_NONE);
		stc_call_free(c);
	}
	cr_expect_eq(w.f.asked[METHOD_RELEASE], 2,
		     "a lost lease is an answer, not a reason to ask again");
	w_close(&w);
	NO_LEAKS();
}
