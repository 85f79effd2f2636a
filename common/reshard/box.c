/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/box.h"

#include <string.h>

#define SAMPLE	    24 /* boxes looked at to choose a plane */
#define PAIRS_PLAIN 16 /* so many pairs a box are compared without any plane */

/* A part of space and the boxes of both sets that reach into it. */
struct box_cell {
	size_t first; /* in idx: n_a of a, then n_b of b */
	uint32_t n_a, n_b;
	uint64_t lo[BOX_DIMS_MAX], hi[BOX_DIMS_MAX];
};

struct run {
	struct box_join *j;
	const uint64_t *const *a, *const *b;
	uint32_t n_dims;
	struct box_work *w;
	bool self; /* a and b are one set: a pair is a < b, and the first is enough */
};

void box_join_fini(struct box_join *j)
{
	free(j->pairs);
	free(j->idx);
	free(j->cells);
	*j = (struct box_join){ 0 };
}

int box_cmp(const uint64_t *a, const uint64_t *b, uint32_t n_dims)
{
	for (uint32_t d = 0; d < 2 * n_dims; d++)
		if (a[d] != b[d])
			return a[d] < b[d] ? -1 : 1;
	return 0;
}

uint64_t box_volume(const uint64_t *box, uint32_t n_dims)
{
	uint64_t v = 1;
	for (uint32_t d = 0; d < n_dims; d++)
		v *= box[n_dims + d];
	return v;
}

unsigned __int128 box_shape_volume(const uint64_t *shape, uint32_t n_dims)
{
	unsigned __int128 v = 1;
	for (uint32_t d = 0; d < n_dims; d++) {
		if (__builtin_mul_overflow(v, (unsigned __int128)shape[d], &v))
			return ~(unsigned __int128)0;
	}
	return v;
}

/* ---- growing ---- */

static bool grow(void **p, size_t *cap, size_t want, size_t each, struct box_work *w)
{
	if (want <= *cap)
		return true;
	size_t n = MAX_OF(want, *cap + *cap / 2 + 64);
	void *q = !w->memory || n * each <= w->memory ? realloc(*p, n * each) : NULL;
	if (!q) {
		w->no_memory = true;
		return false;
	}
	*p = q;
	*cap = n;
	return true;
}

static bool idx_room(struct run *r, size_t n)
{
	return grow((void **)&r->j->idx, &r->j->cap_idx, r->j->n_idx + n, sizeof(uint32_t),
		    r->w);
}

static struct box_cell *cell_push(struct run *r)
{
	struct box_join *j = r->j;
	if (!grow((void **)&j->cells, &j->cap_cells, j->n_cells + 1, sizeof(*j->cells), r->w))
		return NULL;
	return &j->cells[j->n_cells++];
}

static bool pair_push(struct run *r, uint32_t a, uint32_t b)
{
	struct box_join *j = r->j;
	if (r->w->pairs_max && j->n_pairs == r->w->pairs_max) {
		r->w->many = true;
		return false;
	}
	if (!grow((void **)&j->pairs, &j->cap_pairs, j->n_pairs + 1, sizeof(*j->pairs), r->w))
		return false;
	j->pairs[j->n_pairs++] = (struct box_pair){ a, b };
	return true;
}

/* ---- pairs in one cell ---- */

/* A pair that reaches into several cells belongs to the one with the low corner of what it shares. */
static bool corner_here(const struct run *r, const struct box_cell *c, const uint64_t *a,
			const uint64_t *b)
{
	for (uint32_t d = 0; d < r->n_dims; d++) {
		uint64_t lo = MAX_OF(a[d], b[d]);
		if (lo < c->lo[d] || lo >= c->hi[d])
			return false;
	}
	return true;
}

static bool pairs_plain(struct run *r, const struct box_cell *c)
{
	const uint32_t *ia = r->j->idx + c->first, *ib = ia + c->n_a;
	for (uint32_t i = 0; i < c->n_a; i++) {
		if (!box_work_take(r->w, c->n_b))
			return false;
		for (uint32_t k = 0; k < c->n_b; k++) {
			const uint64_t *a = r->a[ia[i]], *b = r->b[ib[k]];
			if ((r->self && ia[i] >= ib[k]) || !box_meet(a, b, r->n_dims) ||
			    !corner_here(r, c, a, b))
				continue;
			if (!pair_push(r, ia[i], ib[k]))
				return false;
			if (r->self)
				return true;
		}
	}
	return true;
}

/* ---- choosing a plane ---- */

static const uint64_t *box_of(const struct run *r, const struct box_cell *c, uint32_t i)
{
	uint32_t k = r->j->idx[c->first + i];
	return i < c->n_a ? r->a[k] : r->b[k];
}

static void sort_u64(uint64_t *v, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		uint64_t x = v[i];
		uint32_t k = i;
		for (; k > 0 && v[k - 1] > x; k--)
			v[k] = v[k - 1];
		v[k] = x;
	}
}

/* Boxes of the sample in the larger half, those that cross the plane counted in both. */
static uint32_t cost(const uint64_t *const *s, uint32_t n, uint32_t d, uint32_t n_dims,
		     uint64_t at)
{
	uint32_t left = 0, right = 0;
	for (uint32_t i = 0; i < n; i++) {
		left += s[i][d] < at;
		right += s[i][d] + s[i][n_dims + d] > at;
	}
	return MAX_OF(left, right) + (left + right - n);
}

struct plane {
	uint32_t dim, cost;
	uint64_t at;
};

/* The median of the sample's beginnings inside the cell, for each dimension. */
static struct plane plane_of(const struct run *r, const struct box_cell *c)
{
	const uint64_t *s[SAMPLE];
	uint64_t v[SAMPLE];
	uint32_t n = c->n_a + c->n_b, m = MIN_OF(n, SAMPLE);
	struct plane best = { .cost = UINT32_MAX };
	for (uint32_t i = 0; i < m; i++)
		s[i] = box_of(r, c, (uint32_t)((uint64_t)n * i / m));
	for (uint32_t d = 0; d < r->n_dims; d++) {
		uint32_t k = 0;
		for (uint32_t i = 0; i < m; i++)
			if (s[i][d] > c->lo[d] && s[i][d] < c->hi[d])
				v[k++] = s[i][d];
		if (!k)
			continue;
		sort_u64(v, k);
		uint32_t w = cost(s, m, d, r->n_dims, v[k / 2]);
		if (w < best.cost)
			best = (struct plane){ .dim = d, .cost = w, .at = v[k / 2] };
	}
	if (best.cost >= m + m / 2)
		best.cost = UINT32_MAX;
	return best;
}

/* The boxes of c on one side of the plane, appended to idx. */
static void side(struct run *r, struct box_cell *c, struct box_cell *out, const struct plane *p,
		 bool left)
{
	struct box_join *j = r->j;
	out->first = j->n_idx;
	out->n_a = out->n_b = 0;
	for (uint32_t i = 0; i < c->n_a + c->n_b; i++) {
		const uint64_t *b = box_of(r, c, i);
		if (left ? b[p->dim] >= p->at : b[p->dim] + b[r->n_dims + p->dim] <= p->at)
			continue;
		j->idx[j->n_idx++] = j->idx[c->first + i];
		*(i < c->n_a ? &out->n_a : &out->n_b) += 1;
	}
	memcpy(out->lo, c->lo, r->n_dims * sizeof(uint64_t));
	memcpy(out->hi, c->hi, r->n_dims * sizeof(uint64_t));
	(left ? out->hi : out->lo)[p->dim] = p->at;
}

/* The right half first, so that the left one is worked on next and its indices go first. */
static bool halve(struct run *r, struct box_cell *c, const struct plane *p)
{
	uint32_t n = c->n_a + c->n_b;
	if (!box_work_take(r->w, 2ull * n) || !idx_room(r, 2ull * n))
		return false;
	struct box_cell *right = cell_push(r);
	if (!right)
		return false;
	side(r, c, right, p, false);
	struct box_cell *left = cell_push(r);
	if (!left)
		return false;
	side(r, c, left, p, true);
	right = left - 1;
	if (MAX_OF(left->n_a + left->n_b, right->n_a + right->n_b) <= n - n / 8)
		return true;
	/* a plane of little use: comparing all is bounded, going on like this might not be */
	r->j->n_cells -= 2;
	return pairs_plain(r, c);
}

static bool cell_work(struct run *r, struct box_cell *c)
{
	uint64_t n = (uint64_t)c->n_a + c->n_b;
	if (!c->n_a || !c->n_b || (r->self && c->n_a < 2))
		return true;
	/* all that lies behind this cell's indices belonged to cells already done */
	r->j->n_idx = c->first + n;
	if ((uint64_t)c->n_a * c->n_b <= PAIRS_PLAIN * n)
		return pairs_plain(r, c);
	struct plane p = plane_of(r, c);
	if (p.cost == UINT32_MAX)
		return pairs_plain(r, c);
	return halve(r, c, &p);
}

static bool run_begin(struct run *r, uint32_t n_a, uint32_t n_b)
{
	struct box_join *j = r->j;
	j->n_pairs = j->n_idx = j->n_cells = 0;
	if (!idx_room(r, (size_t)n_a + n_b))
		return false;
	for (uint32_t i = 0; i < n_a; i++)
		j->idx[i] = i;
	for (uint32_t i = 0; i < n_b; i++)
		j->idx[n_a + i] = i;
	j->n_idx = (size_t)n_a + n_b;
	struct box_cell *c = cell_push(r);
	if (!c)
		return false;
	c->first = 0;
	c->n_a = n_a;
	c->n_b = n_b;
	memset(c->lo, 0, sizeof(c->lo));
	memset(c->hi, 0xff, sizeof(c->hi));
	return true;
}

static bool run_all(struct run *r, uint32_t n_a, uint32_t n_b)
{
	if (!run_begin(r, n_a, n_b))
		return false;
	while (r->j->n_cells) {
		struct box_cell c = r->j->cells[--r->j->n_cells];
		if (!cell_work(r, &c))
			return false;
		if (r->self && r->j->n_pairs)
			return true;
	}
	return true;
}

/* Few pairs: no cells at all. */
static bool join_small(struct run *r, uint32_t n_a, uint32_t n_b)
{
	r->j->n_pairs = 0;
	if (!box_work_take(r->w, (uint64_t)n_a * n_b + 1))
		return false;
	for (uint32_t i = 0; i < n_a; i++)
		for (uint32_t k = r->self ? i + 1 : 0; k < n_b; k++)
			if (box_meet(r->a[i], r->b[k], r->n_dims) && !pair_push(r, i, k))
				return false;
	return true;
}

static bool join(struct run *r, uint32_t n_a, uint32_t n_b)
{
	if ((uint64_t)n_a * n_b <= PAIRS_PLAIN * ((uint64_t)n_a + n_b))
		return join_small(r, n_a, n_b);
	return run_all(r, n_a, n_b);
}

bool box_join(struct box_join *j, const uint64_t *const *a, uint32_t n_a,
	      const uint64_t *const *b, uint32_t n_b, uint32_t n_dims, struct box_work *w)
{
	struct run r = { .j = j, .a = a, .b = b, .n_dims = n_dims, .w = w };
	return join(&r, n_a, n_b);
}

bool box_disjoint(struct box_join *j, const uint64_t *const *a, uint32_t n, uint32_t n_dims,
		  struct box_work *w, bool *out, uint32_t *i, uint32_t *k)
{
	struct run r = { .j = j, .a = a, .b = a, .n_dims = n_dims, .w = w, .self = true };
	if (!join(&r, n, n))
		return false;
	*out = j->n_pairs == 0;
	if (!*out && i) {
		*i = j->pairs[0].a;
		*k = j->pairs[0].b;
	}
	return true;
}

bool box_tile(struct box_join *j, const uint64_t *const *a, uint32_t n, const uint64_t *shape,
	      uint32_t n_dims, struct box_work *w, bool *out)
{
	unsigned __int128 sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += box_volume(a[i], n_dims);
	*out = sum == box_shape_volume(shape, n_dims);
	if (!*out || n < 2)
		return true;
	return box_disjoint(j, a, n, n_dims, w, out, NULL, NULL);
}
