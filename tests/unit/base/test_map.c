/* SPDX-License-Identifier: Apache-2.0 */
/* The map against a plain array of what must be in it; bounds of work and memory. */
#include "base/map.h"

#include "base/sum.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "tests/support/leak.h"

struct entry {
	struct map_node node;
	uint64_t key;
	bool in;
	unsigned seen;
};

static uint64_t hash_of(uint64_t key)
{
	return sum64(&key, sizeof(key));
}

static bool same(const struct map_node *n, const void *key)
{
	return container_of(n, struct entry, node)->key == *(const uint64_t *)key;
}

static struct entry *find(const struct map *m, uint64_t key)
{
	struct map_node *n = map_find(m, hash_of(key), same, &key);
	return n ? container_of(n, struct entry, node) : NULL;
}

static void put(struct map *m, struct entry *e)
{
	cr_assert_eq(map_insert(m, &e->node, hash_of(e->key)), ERR_NONE);
	e->in = true;
}

static void take(struct map *m, struct entry *e)
{
	map_remove(m, &e->node);
	e->in = false;
}

Test(map, empty, .timeout = 5)
{
	struct map m;
	uint64_t cursor = 0, key = 1;
	map_init(&m, 10);
	cr_expect_null(map_find(&m, 5, same, &key));
	cr_expect_null(map_first(&m));
	cr_expect(!map_scan(&m, &cursor, 10, NULL, NULL));
	map_check(&m);
	map_fini(&m);
	map_fini(&m);
	map_fini(NULL);
	NO_LEAKS();
}

/* Hints change nothing; what is peeked at has the hash. */
Test(map, warm_and_peek, .timeout = 5)
{
	struct map m;
	static struct entry e[500];
	map_init(&m, 1000);
	map_warm_bucket(&m, 7);
	map_warm_node(&m, 7);
	cr_expect_null(map_peek(&m, 7));
	for (uint64_t i = 0; i < ARRAY_LEN(e); i++) {
		e[i] = (struct entry){ .key = i };
		put(&m, &e[i]);
	}
	for (uint64_t i = 0; i < 2 * ARRAY_LEN(e); i++) {
		map_warm_bucket(&m, hash_of(i));
		map_warm_node(&m, hash_of(i));
		cr_expect_eq(map_peek(&m, hash_of(i)), i < ARRAY_LEN(e) ? &e[i].node : NULL);
	}
	map_check(&m);
	map_fini(&m);
	NO_LEAKS();
}

/* I1 */
Test(map, limit, .timeout = 5)
{
	struct map m;
	struct entry e[4] = { { .key = 0 }, { .key = 1 }, { .key = 2 }, { .key = 3 } };
	map_init(&m, 3);
	for (int i = 0; i < 3; i++)
		put(&m, &e[i]);
	cr_expect_eq(map_insert(&m, &e[3].node, hash_of(3)), ERR_BUSY);
	take(&m, &e[1]);
	put(&m, &e[3]);
	cr_expect_eq(find(&m, 3), &e[3]);
	cr_expect_null(find(&m, 1));
	map_check(&m);
	map_fini(&m);
	NO_LEAKS();
}

/* Equal hashes are told apart by the comparison. */
Test(map, same_hash, .timeout = 5)
{
	struct map m;
	struct entry e[50];
	map_init(&m, 100);
	for (uint64_t i = 0; i < 50; i++) {
		e[i] = (struct entry){ .key = i };
		cr_assert_eq(map_insert(&m, &e[i].node, 42), ERR_NONE);
	}
	for (uint64_t i = 0; i < 50; i++)
		cr_expect_eq(map_find(&m, 42, same, &i), &e[i].node);
	for (uint64_t i = 0; i < 50; i += 2)
		map_remove(&m, &e[i].node);
	for (uint64_t i = 0; i < 50; i++)
		cr_expect_eq(map_find(&m, 42, same, &i) != NULL, i % 2 == 1);
	map_check(&m);
	map_fini(&m);
	NO_LEAKS();
}

#define N 20000

static uint64_t rng_state = 88172645463325252ull;
static uint64_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return rng_state;
}

Test(map, random_against_a_plain_array, .timeout = 20)
{
	struct map m;
	struct entry *e = calloc(N, sizeof(*e));
	size_t n = 0;
	map_init(&m, N);
	for (uint64_t i = 0; i < N; i++)
		e[i].key = i * 7919;
	for (int phase = 0; phase < 6; phase++) {
		unsigned in_percent = (unsigned[]){ 90, 10, 50, 99, 1, 50 }[phase];
		for (int i = 0; i < 30000; i++) {
			struct entry *x = &e[rng() % N];
			if (rng() % 100 < in_percent && !x->in) {
				put(&m, x);
				n++;
			} else if (x->in) {
				take(&m, x);
				n--;
			}
		}
		map_check(&m);
		cr_assert_eq(m.n, n);
		for (size_t i = 0; i < N; i++)
			cr_assert_eq(find(&m, e[i].key), e[i].in ? &e[i] : NULL);
		/* 24 bytes an entry beside it: buckets follow the entries both ways */
		cr_expect_leq(m.n_buckets, MAX_OF(2 * n + 4, (size_t)16));
		cr_expect_geq(m.n_buckets * 2 + 16, n);
	}
	map_fini(&m);
	free(e);
	NO_LEAKS();
}

Test(map, for_each_sees_all_once, .timeout = 10)
{
	struct map m;
	struct entry *e = calloc(1000, sizeof(*e));
	map_init(&m, 1000);
	for (uint64_t i = 0; i < 1000; i++) {
		e[i].key = i;
		put(&m, &e[i]);
	}
	map_for_each (n, &m)
		container_of(n, struct entry, node)->seen++;
	for (size_t i = 0; i < 1000; i++)
		cr_expect_eq(e[i].seen, 1);
	map_fini(&m);
	free(e);
	NO_LEAKS();
}

static unsigned visits;
static void see(struct map_node *n, void *arg)
{
	(void)arg;
	container_of(n, struct entry, node)->seen++;
	visits++;
}

/* I2, with the map growing and shrinking between the slices. */
Test(map, scan_sees_each_staying_entry_once, .timeout = 60)
{
	for (int round = 0; round < 60; round++) {
		struct map m;
		struct entry *e = calloc(6000, sizeof(*e));
		map_init(&m, 6000);
		for (uint64_t i = 0; i < 6000; i++)
			e[i].key = i + (uint64_t)round * 10000;
		size_t stay = 200 + rng() % 800; /* 0..stay never move; the rest come and go */
		for (size_t i = 0; i < stay; i++)
			put(&m, &e[i]);
		uint64_t cursor = 0;
		bool filling = rng() % 2, more = true;
		for (int slice = 0; more; slice++) {
			more = map_scan(&m, &cursor, 1 + rng() % 50, see, NULL);
			if (rng() % 8 == 0)
				filling = !filling;
			for (size_t k = rng() % 1500; k > 0; k--) {
				struct entry *x = &e[stay + rng() % (6000 - stay)];
				if (filling && !x->in)
					put(&m, x);
				else if (!filling && x->in)
					take(&m, x);
			}
			cr_assert_lt(slice, 100000);
		}
		for (size_t i = 0; i < stay; i++)
			cr_assert_eq(e[i].seen, 1, "round %d entry %zu seen %u", round, i,
				     e[i].seen);
		map_check(&m);
		map_fini(&m);
		free(e);
	}
	NO_LEAKS();
}

Test(map, scan_slices_are_bounded, .timeout = 10)
{
	struct map m;
	struct entry *e = calloc(5000, sizeof(*e));
	uint64_t cursor = 0;
	unsigned slices = 0, most = 0;
	map_init(&m, 5000);
	for (uint64_t i = 0; i < 5000; i++) {
		e[i].key = i;
		put(&m, &e[i]);
	}
	for (bool more = true; more; slices++) {
		visits = 0;
		more = map_scan(&m, &cursor, 100, see, NULL);
		most = MAX_OF(most, visits);
	}
	cr_expect_eq(cursor, 0);
	cr_expect_leq(most, 120, "100 and the rest of a bucket");
	cr_expect_geq(slices, 50);
	map_fini(&m);
	free(e);
}

static void drop(struct map_node *n, void *arg)
{
	map_remove(arg, n);
	container_of(n, struct entry, node)->seen++;
}

Test(map, scan_may_remove_what_it_sees, .timeout = 10)
{
	struct map m;
	struct entry *e = calloc(3000, sizeof(*e));
	uint64_t cursor = 0;
	map_init(&m, 3000);
	for (uint64_t i = 0; i < 3000; i++) {
		e[i].key = i;
		put(&m, &e[i]);
	}
	while (map_scan(&m, &cursor, 64, drop, &m))
		map_check(&m);
	cr_expect_eq(m.n, 0);
	cr_expect_leq(m.n_buckets, 16, "it has shrunk");
	for (size_t i = 0; i < 3000; i++)
		cr_expect_eq(e[i].seen, 1);
	map_check(&m);
	map_fini(&m);
	free(e);
	NO_LEAKS();
}

Test(map, removing_a_stranger_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct map m;
	struct entry a = { .key = 1 }, b = { .key = 2 };
	map_init(&m, 10);
	put(&m, &a);
	b.node.hash = hash_of(2);
	map_remove(&m, &b.node);
}
