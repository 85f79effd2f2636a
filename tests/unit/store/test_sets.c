/* SPDX-License-Identifier: Apache-2.0 */
/* The small structures under a pool, each against the plainest model of it. */
#include <criterion/criterion.h>
#include <string.h>

#include "store/bits.h"
#include "store/closed.h"
#include "store/keyheap.h"
#include "store/object.h"
#include "tests/support/leak.h"

static uint64_t next(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* ---- bits ---- */

static uint64_t model_from(const bool *in, uint64_t n, uint64_t i)
{
	while (i < n && !in[i])
		i++;
	return i < n ? i : BITS_NONE;
}

Test(bits, as_an_array_of_bool, .timeout = 20)
{
	static const uint64_t sizes[] = { 1, 63, 64, 65, 4095, 4096, 4097, 10000 };
	static bool in[10000];
	for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
		uint64_t n = sizes[k], seed = n * 77 + 1, count = 0;
		struct bits b;
		cr_assert_eq(bits_init(&b, n), ERR_NONE);
		memset(in, 0, sizeof(in));
		for (int i = 0; i < 4000; i++) {
			uint64_t at = next(&seed) % n;
			bool add = next(&seed) % 3 == 0;
			count += add && !in[at];
			count -= !add && in[at];
			in[at] = add;
			if (add)
				bits_add(&b, at);
			else
				bits_del(&b, at);
			uint64_t from = next(&seed) % n;
			cr_assert_eq(bits_from(&b, from), model_from(in, n, from));
			cr_assert_eq(bits_has(&b, from), in[from]);
			cr_assert_eq(b.count, count);
		}
		cr_assert_eq(bits_from(&b, n), BITS_NONE);
		bits_fini(&b);
	}
	NO_LEAKS();
}

Test(bits, full_and_emptied_in_order, .timeout = 20)
{
	struct bits b;
	cr_assert_eq(bits_init(&b, 5000), ERR_NONE);
	bits_fill(&b);
	cr_assert_eq(b.count, 5000);
	for (uint64_t i = 0; i < 5000; i++) {
		cr_assert_eq(bits_from(&b, 0), i);
		bits_del(&b, i);
	}
	cr_assert_eq(bits_from(&b, 0), BITS_NONE);
	cr_assert(!bits_has(&b, 5000));
	bits_fini(&b);
	bits_fini(&b);
	NO_LEAKS();
}

/* ---- key heap ---- */

struct block {
	uint64_t at;
	size_t n;
};

static size_t rounded(size_t n)
{
	size_t r = KEYHEAP_UNIT;
	while (r < n)
		r *= 2;
	return r;
}

static void assert_apart(const struct block *b, size_t n, uint64_t bytes)
{
	for (size_t i = 0; i < n; i++) {
		cr_assert_leq(b[i].at + rounded(b[i].n), bytes);
		for (size_t k = 0; k < i; k++)
			cr_assert(b[i].at + rounded(b[i].n) <= b[k].at ||
				  b[k].at + rounded(b[k].n) <= b[i].at);
	}
}

Test(keyheap, blocks_never_overlap_and_a_rebuild_finds_the_same, .timeout = 20)
{
	struct keyheap h, again;
	static struct block b[2000];
	size_t n = 0;
	uint64_t seed = 5, bytes = 64 * KEYHEAP_PAGE;
	cr_assert_eq(keyheap_init(&h, bytes), ERR_NONE);
	for (int i = 0; i < 3000; i++) {
		if (n > 0 && next(&seed) % 5 < 2) {
			size_t k = next(&seed) % n;
			keyheap_give(&h, b[k].at, b[k].n);
			b[k] = b[--n];
			continue;
		}
		size_t want = 1 + next(&seed) % (next(&seed) % 4 ? 300 : 2560);
		uint64_t at;
		if (keyheap_take(&h, want, &at) == ERR_NONE)
			b[n++] = (struct block){ at, want };
	}
	assert_apart(b, n, bytes);
	cr_assert_eq(keyheap_init(&again, bytes), ERR_NONE);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(keyheap_mark(&again, b[i].at, b[i].n), ERR_NONE);
	cr_assert_eq(again.used_bytes, h.used_bytes);
	cr_assert_eq(keyheap_mark(&again, b[0].at, b[0].n), ERR_CORRUPT, "twice");
	while (n > 0)
		n--, keyheap_give(&again, b[n].at, b[n].n);
	cr_assert_eq(again.used_bytes, 0);
	cr_assert_eq(again.free.count, 64, "every page is whole again");
	keyheap_fini(&h);
	keyheap_fini(&again);
	NO_LEAKS();
}

Test(keyheap, fills_to_the_last_block, .timeout = 20)
{
	struct keyheap h;
	uint64_t at;
	cr_assert_eq(keyheap_init(&h, 2 * KEYHEAP_PAGE), ERR_NONE);
	for (unsigned i = 0; i < 128; i++)
		cr_assert_eq(keyheap_take(&h, 64, &at), ERR_NONE);
	cr_assert_eq(keyheap_take(&h, 1, &at), ERR_NO_SPACE);
	keyheap_give(&h, 64, 64);
	cr_assert_eq(keyheap_take(&h, 65, &at), ERR_NO_SPACE, "its page has another class");
	cr_assert_eq(keyheap_take(&h, 1, &at), ERR_NONE);
	cr_assert_eq(at, 64);
	keyheap_fini(&h);
	NO_LEAKS();
}

Test(keyheap, hostile_places_are_refused, .timeout = 20)
{
	struct keyheap h;
	cr_assert_eq(keyheap_init(&h, KEYHEAP_PAGE), ERR_NONE);
	cr_assert_eq(keyheap_mark(&h, 0, 0), ERR_CORRUPT);
	cr_assert_eq(keyheap_mark(&h, 0, 4097), ERR_CORRUPT);
	cr_assert_eq(keyheap_mark(&h, 4096, 64), ERR_CORRUPT);
	cr_assert_eq(keyheap_mark(&h, 64, 128), ERR_CORRUPT, "not aligned to its class");
	cr_assert_eq(keyheap_mark(&h, 128, 128), ERR_NONE);
	cr_assert_eq(keyheap_mark(&h, 0, 64), ERR_CORRUPT, "another class");
	keyheap_fini(&h);
	NO_LEAKS();
}

/* ---- closed versions ---- */

Test(closed, remembers_the_last_ones_and_the_highest_dropped, .timeout = 20)
{
	enum { LIMIT = 100, ALL = 3000 };
	static uint64_t order[ALL];
	struct closed c;
	uint64_t seed = 9;
	cr_assert_eq(closed_init(&c, LIMIT), ERR_NONE);
	for (uint64_t i = 0; i < ALL; i++) {
		order[i] = next(&seed) | 1;
		closed_add(&c, order[i]);
		closed_add(&c, order[i]);
		uint64_t dropped = 0, from = i >= LIMIT ? i - LIMIT + 1 : 0;
		for (uint64_t k = 0; k < from; k++)
			dropped = MAX_OF(dropped, order[k]);
		cr_assert_eq(c.dropped, dropped);
		if (i % 97 == 0)
			for (uint64_t k = 0; k <= i; k++)
				cr_assert_eq(closed_has(&c, order[k]), k >= from);
	}
	cr_assert_eq(closed_at(&c, 0), order[ALL - LIMIT]);
	cr_assert_eq(closed_at(&c, LIMIT - 1), order[ALL - 1]);
	closed_clear(&c);
	cr_assert(!closed_has(&c, order[ALL - 1]));
	cr_assert(!closed_unsure(&c, 1));
	closed_fini(&c);
	NO_LEAKS();
}

Test(closed, a_confirmation_is_good_for_one_commit, .timeout = 20)
{
	struct closed c;
	cr_assert_eq(closed_init(&c, 2), ERR_NONE);
	for (uint64_t v = 10; v < 14; v++)
		closed_add(&c, v);
	cr_assert(closed_unsure(&c, 11) && closed_unsure(&c, 5) && !closed_unsure(&c, 12));
	closed_confirm(&c, 5);
	closed_confirm(&c, 5);
	cr_assert(!closed_unsure(&c, 5));
	closed_add(&c, 5);
	cr_assert(closed_has(&c, 5));
	closed_add(&c, 20), closed_add(&c, 21);
	cr_assert(closed_unsure(&c, 5), "closed, forgotten: ask again");
	for (uint64_t v = 1; v < 6; v++) /* more than fit: the oldest go */
		closed_confirm(&c, v);
	cr_assert(closed_unsure(&c, 1) && !closed_unsure(&c, 5));
	closed_fini(&c);
	NO_LEAKS();
}

/* ---- objects ---- */

Test(object, stored_bytes_have_the_vector_behind, .timeout = 20)
{
	cr_assert_eq(obj_stored_bytes(0), 0);
	cr_assert_eq(obj_stored_bytes(1 << 20), 1 << 20);
	cr_assert_eq(obj_vector_at((1 << 20) + 1), (1 << 20) + 8);
	cr_assert_eq(obj_stored_bytes((1 << 20) + 1), (1 << 20) + 8 + 16);
	cr_assert_eq(obj_stored_bytes(OBJ_SIZE_MAX), OBJ_SIZE_MAX + (8ull << 20));
	cr_assert_eq(obj_blocks((3 << 20) + 5), 4);
	NO_LEAKS();
}

Test(object, the_sum_with_and_without_a_vector_is_one, .timeout = 20)
{
	static const size_t sizes[] = { 0, 1, 1 << 20, (1 << 20) + 1, (3 << 20) - 1, 3 << 20 };
	uint8_t *p = malloc(3 << 20);
	uint64_t vector[3];
	for (size_t i = 0; i < 3 << 20; i++)
		p[i] = (uint8_t)(i * 31 >> 3);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		uint64_t sum = obj_sum(p, sizes[i], vector);
		cr_assert_eq(obj_sum(p, sizes[i], NULL), sum);
		if (obj_blocks(sizes[i]))
			cr_assert_eq(obj_sum_of_vector(vector, obj_blocks(sizes[i])), sum);
	}
	free(p);
	NO_LEAKS();
}

Test(object, a_key_hash_tells_tenant_from_key, .timeout = 20)
{
	uint64_t a = obj_key_hash(BYTES_STR("ab"), BYTES_STR("c"));
	cr_assert_neq(a, obj_key_hash(BYTES_STR("a"), BYTES_STR("bc")));
	cr_assert_eq(a, obj_key_hash(BYTES_STR("ab"), BYTES_STR("c")));
	cr_assert_eq(version_term(version_make(7, 9)), 7);
	NO_LEAKS();
}
