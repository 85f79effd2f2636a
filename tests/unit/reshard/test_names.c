/* SPDX-License-Identifier: Apache-2.0 */
/* Names as numbers and in order, strings and numbers as text, against the slow and obvious. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "reshard/names.h"
#include "reshard/place.h"
#include "tests/support/leak.h"

static uint64_t rng = 88172645463325252u;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng % n;
}

enum { N = 3000 };

/* Few letters: many are alike, and many begin alike. */
static struct bytes make_name(struct arena *mem, uint64_t letters, uint64_t longest)
{
	size_t n = 1 + rnd(longest);
	uint8_t *p = arena_alloc(mem, n);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)('a' + rnd(letters));
	return BYTES(p, n);
}

static uint32_t slow_number(const struct bytes *v, uint32_t n, struct bytes b)
{
	for (uint32_t i = 0; i < n; i++)
		if (bytes_eq(v[i], b))
			return i;
	return n;
}

Test(reshard_names, numbers_are_those_of_a_slow_list, .timeout = 60)
{
	struct arena mem = ARENA_INIT((size_t)1 << 28);
	struct names s = { 0 };
	static struct bytes known[N];
	uint32_t n = 0;
	for (uint32_t i = 0; i < N; i++) {
		struct bytes b = make_name(&mem, 1 + rnd(3), 1 + rnd(12));
		uint32_t want = slow_number(known, n, b), got;
		cr_assert_eq(names_find(&s, b), want < n ? want : NAMES_NONE);
		if (i % 2) {
			uint64_t h = names_hash(b);
			names_fetch(&s, h);
			names_fetch_name(&s, h);
			got = names_put_hashed(&s, b, h, &mem);
		} else {
			got = names_put(&s, b, &mem);
		}
		cr_assert_eq(got, want);
		if (want == n)
			known[n++] = s.name[got];
		cr_assert(bytes_eq(s.name[got], b) && s.name[got].p != b.p);
	}
	cr_assert_eq(s.n, n);
	names_fini(&s);
	arena_fini(&mem);
	NO_LEAKS();
}

/* A slot holds lengths up to 65,534: from there on the name's own counts. */
Test(reshard_names, long_names_differ_in_length_alone, .timeout = 10)
{
	enum { TOP = 65540 };
	struct arena mem = ARENA_INIT((size_t)1 << 28);
	struct names s = { 0 };
	uint8_t *text = calloc(1, 2 * TOP);
	for (uint32_t n = TOP - 10; n < TOP; n++)
		cr_assert_eq(names_put(&s, BYTES(text, n), &mem), n - (TOP - 10));
	for (uint32_t n = TOP - 10; n < TOP; n++)
		cr_assert_eq(names_find(&s, BYTES(text, n)), n - (TOP - 10));
	cr_assert_eq(names_find(&s, BYTES(text, TOP + 65536)), NAMES_NONE);
	names_fini(&s);
	arena_fini(&mem);
	free(text);
	NO_LEAKS();
}

static struct bytes at(const void *ctx, uint32_t i)
{
	return ((const struct bytes *)ctx)[i];
}

static void check_order(const struct bytes *v, uint32_t n)
{
	static uint32_t order[N], again[N];
	uint32_t twin = 99, first = 0;
	cr_assert(names_sort_twin(at, v, n, order, &twin, NULL));
	cr_assert(names_sort(at, v, n, again, NULL));
	cr_assert_arr_eq(order, again, n * sizeof(*order));
	for (uint32_t i = 1; i < n; i++) {
		int c = bytes_cmp(v[order[i - 1]], v[order[i]]);
		cr_assert(c < 0 || (c == 0 && order[i - 1] < order[i]));
		if (c == 0 && !first)
			first = i;
	}
	cr_assert_eq(twin, first, "%u, not %u", twin, first);
}

/* In any order and in order already; alike, with long beginnings in common, and all different. */
Test(reshard_names, order_and_first_twin, .timeout = 60)
{
	static struct bytes v[N], w[N];
	static uint32_t order[N];
	for (uint32_t round = 0; round < 60; round++) {
		struct arena mem = ARENA_INIT((size_t)1 << 28);
		uint32_t n = 1 + (uint32_t)rnd(round < 40 ? 40 : N);
		uint64_t letters = 1 + rnd(26), longest = 1 + rnd(30);
		for (uint32_t i = 0; i < n; i++)
			v[i] = make_name(&mem, letters, longest);
		check_order(v, n);
		cr_assert(names_sort(at, v, n, order, NULL));
		for (uint32_t i = 0; i < n; i++)
			w[i] = v[order[i]];
		check_order(w, n);
		arena_fini(&mem);
	}
	NO_LEAKS();
}

/* ---- text ---- */

static struct text_out out;

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static void slow_str(struct buf *b, struct bytes s)
{
	buf_put(b, "\"", 1);
	for (size_t i = 0; i < s.n; i++) {
		uint8_t c = s.p[i];
		if (c == '"' || c == '\\')
			buf_printf(b, "\\%c", c);
		else if (c == '\n')
			buf_printf(b, "\\n");
		else if (c < 0x20 || c == 0x7f)
			buf_printf(b, "\\u%04x", c);
		else
			buf_put(b, &c, 1);
	}
	buf_put(b, "\"", 1);
}

static void same_text(struct buf *want, struct buf *got)
{
	text_flush(&out);
	cr_assert_eq(want->n, got->n);
	cr_assert_arr_eq(want->p, got->p, want->n);
	buf_clear(want);
	buf_clear(got);
}

/* Each length around what is copied at once, a character that needs an escape at each place, and at
 * each distance from the end of the room. */
Test(reshard_text, strings_of_all_lengths, .timeout = 60)
{
	static const uint8_t odd[] = { '"', '\\', '\n', 1, 0x7f };
	struct buf want = BUF_INIT((size_t)1 << 24), got = BUF_INIT((size_t)1 << 24);
	uint8_t s[1200];
	text_init(&out, NULL, false);
	out.put = to_buf;
	out.arg = &got;
	for (size_t n = 0; n < sizeof(s); n += n < 40 ? 1 : n < 1016 ? 97 : 1) {
		memset(s, 'x', sizeof(s));
		text_str(&out, BYTES(s, n));
		slow_str(&want, BYTES(s, n));
		for (size_t i = 0; i < MIN_OF(n, (size_t)40); i++) {
			s[n - 1 - i] = odd[i % ARRAY_LEN(odd)];
			text_str(&out, BYTES(s, n));
			slow_str(&want, BYTES(s, n));
			s[n - 1 - i] = 'x';
		}
		same_text(&want, &got);
	}
	buf_fini(&want);
	buf_fini(&got);
	NO_LEAKS();
}

Test(reshard_text, numbers_around_powers_of_ten, .timeout = 60)
{
	struct buf want = BUF_INIT((size_t)1 << 24), got = BUF_INIT((size_t)1 << 24);
	text_init(&out, NULL, false);
	out.put = to_buf;
	out.arg = &got;
	uint64_t ten = 1;
	for (int k = 0; k < 20; k++, ten *= 10) {
		const uint64_t v[] = { ten - 1, ten, ten + 1, UINT64_MAX - ten };
		text_u64s(&out, v, ARRAY_LEN(v));
		buf_printf(&want, "[%llu,%llu,%llu,%llu]", (unsigned long long)v[0],
			   (unsigned long long)v[1], (unsigned long long)v[2],
			   (unsigned long long)v[3]);
		text_u64(&out, v[3]);
		buf_printf(&want, "%llu", (unsigned long long)v[3]);
	}
	text_u64s(&out, NULL, 0);
	buf_printf(&want, "[]");
	same_text(&want, &got);
	buf_fini(&want);
	buf_fini(&got);
	NO_LEAKS();
}

/* ---- names that come late ---- */

/* Fragments of n tensors; every third name is written with an escape. The ids are to be derived. */
static void write_draft(struct buf *b, uint32_t n, bool escapes, bool tensors_first)
{
	static const char rank[] = "{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}";
	buf_clear(b);
	buf_put(b, "{", 1);
	for (int half = 0; half < 2; half++) {
		bool tensors = (half == 0) == tensors_first;
		buf_printf(b, tensors ? "\"tensors\":[" : "\"parts\":[{\"fragments\":[");
		for (uint32_t i = 0; i < n; i++) {
			uint32_t k = tensors ? i : i * 7 % n;
			buf_printf(b, "%s{", i ? "," : "");
			if (tensors)
				buf_printf(
					b,
					"\"dtype\":\"x\",\"expert_id\":null,\"global_shape\":[%u],"
					"\"itemsize\":1,\"layer_id\":null,\"layout_fingerprint\":\"l\","
					"\"parallel_axes\":[],\"shard_dims\":[]",
					k + 1);
			else
				buf_printf(
					b,
					"\"aliases\":[],\"global_offset\":[0],\"local_shape\":[%u],"
					"\"nbytes\":%u,\"rank\":%s",
					k + 1, k + 1, rank);
			buf_printf(b, ",\"tensor_id\":\"%sensor.%u\"}",
				   escapes && i % 3 == 1 ? "\\u0074" : "t", k);
		}
		buf_printf(b, tensors ? "]," : "],\"participant_id\":\"p\",\"rank\":%s}],",
			   rank);
	}
	buf_printf(b,
		   "\"placement_set_id\":\"s\",\"resource_id\":\"m\","
		   "\"resource_kind\":\"model_weight\",\"revision\":\"r\","
		   "\"topology\":{\"dp_size\":1,\"ep_size\":1,\"participants\":[{"
		   "\"participant_id\":\"p\",\"rank\":%s}],\"pp_size\":1,\"tp_size\":1},"
		   "\"weight_generation\":1}",
		   rank);
}

Test(reshard_names, late_names_find_their_fragments, .timeout = 60)
{
	static const uint32_t sizes[] = { 1, 2, 5, 8, 9, 17, 100, 5003 };
	static const struct place_limits lim = PLACE_LIMITS;
	struct buf b = BUF_INIT((size_t)1 << 28);
	for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
		char digest[SHA_HEX];
		for (int way = 0; way < 4; way++) {
			struct reject why;
			struct place *p = NULL;
			write_draft(&b, sizes[i], way & 1, way & 2);
			cr_assert_eq(place_read(buf_bytes(&b), PLACE_DRAFT, &lim, &why, &p),
				     ERR_NONE, "%s at %s: %s", rule_name(why.rule), why.path,
				     why.text);
			cr_assert_eq(p->n_frags, sizes[i]);
			for (uint32_t k = 0; k < p->n_frags; k++)
				cr_assert_eq(p->frags[k].nbytes,
					     p->tensors[p->frags[k].tensor].shape[0]);
			if (way)
				cr_assert_arr_eq(digest, p->digest, SHA_HEX);
			memcpy(digest, p->digest, SHA_HEX);
			place_free(p);
		}
	}
	buf_fini(&b);
	NO_LEAKS();
}

/* Pages of [p, p + n) that the system has given. */
static size_t pages_there(uint8_t *p, size_t n)
{
	static unsigned char in[16384];
	size_t there = 0;
	cr_assert(n / 4096 <= sizeof(in) && mincore(p, n, in) == 0);
	for (size_t i = 0; i < n / 4096; i++)
		there += in[i] & 1;
	return there;
}

/* A block that is filled in no order is there before, large page by large page; a cancel is seen between
 * two of them. */
Test(reshard_stop, touch_looks_at_each_large_page, .timeout = 10)
{
	const size_t n = (size_t)32 << 20;
	atomic_bool cancel = false;
	for (int stopped = 0; stopped < 2; stopped++) {
		uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0);
		cr_assert_neq(p, MAP_FAILED);
		cr_assert_eq(madvise(p, n, MADV_NOHUGEPAGE), 0);
		atomic_store(&cancel, stopped);
		cr_expect_eq(stop_touch(p, n, &cancel), !stopped);
		cr_expect_eq(pages_there(p, n), stopped ? 1 : n / 4096);
		munmap(p, n);
	}
	uint8_t small[3] = { 1, 2, 3 };
	cr_expect(stop_touch(small, sizeof(small), NULL));
	cr_expect(stop_touch(NULL, 0, &cancel), "nothing to touch, nobody looks");
	NO_LEAKS();
}

Test(reshard_stop, stopped_reads_leave_their_memory_to_who_asks, .timeout = 10)
{
	struct place_limits lim = PLACE_LIMITS;
	struct left left = { 0 };
	atomic_bool cancel = true;
	struct buf b = BUF_INIT((size_t)1 << 28);
	struct reject why;
	struct place *p = NULL;
	write_draft(&b, 100, false, false);
	lim.cancel = &cancel;
	lim.left = &left;
	cr_expect_eq(place_read(buf_bytes(&b), PLACE_DRAFT, &lim, &why, &p), ERR_CANCELLED);
	cr_expect_eq(why.rule, RULE_PLAN_CANCELLED);
	cr_expect_not_null(left.p);
	cr_expect_null(p);
	/* what is there already is not forgotten for a second one */
	void *first = left.p;
	cr_expect_eq(place_read(buf_bytes(&b), PLACE_DRAFT, &lim, &why, &p), ERR_CANCELLED);
	cr_expect_eq(left.p, first);
	left_free(&left);
	cr_expect_null(left.p);
	cancel = false;
	cr_expect_eq(place_read(buf_bytes(&b), PLACE_DRAFT, &lim, &why, &p), ERR_NONE);
	cr_expect_null(left.p, "a read that did its work leaves nothing");
	place_free(p);
	buf_fini(&b);
	NO_LEAKS();
}
