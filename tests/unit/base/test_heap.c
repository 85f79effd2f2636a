/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include <criterion/criterion.h>

/* Against a plain array: random inserts and removes, equal keys in order of arrival. */
Test(heap, matches_a_sorted_array, .timeout = 20)
{
	enum { N = 400 };
	static struct heap_node nodes[N];
	struct heap h = { 0 };
	unsigned seed = 7;
	for (int round = 0; round < 20000; round++) {
		int i = rand_r(&seed) % N;
		if (nodes[i].linked)
			heap_remove(&h, &nodes[i]);
		else
			heap_insert(&h, &nodes[i], (uint64_t)(rand_r(&seed) % 50));
		struct heap_node *best = NULL;
		size_t n = 0;
		for (int j = 0; j < N; j++) {
			if (!nodes[j].linked)
				continue;
			n++;
			if (!best || nodes[j].key < best->key ||
			    (nodes[j].key == best->key && nodes[j].seq < best->seq))
				best = &nodes[j];
		}
		cr_assert_eq(heap_min(&h), best);
		cr_assert_eq(h.n, n);
	}
}
