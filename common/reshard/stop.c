/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/stop.h"

#include <string.h>

#define RUN  2048 /* items that are sorted without a look */
#define PAGE 4096
#define LARGE      \
	((size_t)2 \
	 << 20) /* a large page: cleared in up to 2 ms where the system itself has to get it */

struct merge {
	uint8_t *from, *to;
	size_t n, each;
	int (*cmp)(const void *, const void *, void *);
	void *arg;
	const atomic_bool *cancel;
};

/* from[a..b) and from[b..e), each in order, to the same place of `to`. */
static bool merge_two(const struct merge *m, size_t a, size_t b, size_t e)
{
	size_t i = a, k = b;
	for (size_t at = a; at < e; at++) {
		const uint8_t *x = m->from + i * m->each, *y = m->from + k * m->each;
		bool left = k == e || (i < b && m->cmp(x, y, m->arg) <= 0);
		memcpy(m->to + at * m->each, left ? x : y, m->each);
		*(left ? &i : &k) += 1;
		if (stop_at(m->cancel, at))
			return false;
	}
	return true;
}

static bool merge_all(struct merge *m)
{
	for (size_t w = RUN; w < m->n; w *= 2) {
		for (size_t a = 0; a < m->n; a += 2 * w)
			if (!merge_two(m, a, MIN_OF(a + w, m->n), MIN_OF(a + 2 * w, m->n)))
				return false;
		uint8_t *t = m->from;
		m->from = m->to;
		m->to = t;
	}
	return true;
}

bool stop_touch(void *p, size_t n, const atomic_bool *cancel)
{
	volatile uint8_t *v = p;
	for (size_t i = 0; i < n; i += PAGE) {
		v[i] = 0;
		if (i % LARGE == 0 && stop_now(cancel))
			return false;
	}
	return true;
}

bool stop_sort(void *v, size_t n, size_t each, int (*cmp)(const void *, const void *, void *),
	       void *arg, const atomic_bool *cancel)
{
	for (size_t i = 0; i < n; i += RUN) {
		qsort_r((uint8_t *)v + i * each, MIN_OF(n - i, RUN), each, cmp, arg);
		if (stop_now(cancel))
			return false;
	}
	if (n <= RUN)
		return true;
	uint8_t *tmp = malloc(n * each);
	if (!tmp)
		return false;
	struct merge m = { v, tmp, n, each, cmp, arg, cancel };
	bool ok = merge_all(&m);
	if (ok && m.from != v)
		memcpy(v, m.from, n * each);
	free(tmp);
	return ok;
}
