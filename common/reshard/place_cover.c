/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coverage of a placement (vectors' README, section 6), tensor by tensor in the order of names.
 *
 * Tensors that declare the same kinds of axes look at participants in the same way. For each such
 * class the participants are sorted once by (owner, replica, split coordinates), and numbered: then
 * the fragments of a tensor, sorted by the number of their part, fall into owners, replicas and
 * split coordinates by themselves. At most 4^4 classes; N log N in all.
 */
#include "reshard/place_priv.h"

/* Participants in class order, and where groups begin. */
struct class
{
	uint32_t *pos_of;		   /* part -> position */
	uint32_t *part_at;		   /* position -> part */
	uint32_t *owner, *replica, *split; /* position -> first position of its group */
	uint32_t *owner_end, *replica_end; /* position -> end of its group */
	uint32_t *n_splits; /* first position of a replica -> distinct split coordinates */
	uint8_t *full;	    /* first position of a replica -> see FULL_ */
};

enum { FULL_SIZES = 1, FULL_GRID = 2 };

struct cover {
	struct place_new *b;
	struct place *p;
	struct class *classes[256];
	uint32_t *idx; /* fragments of the tensor, in class order: as by_tensor counts them */
	const uint64_t **boxes;
	struct span {
		uint64_t coord, lo, hi;
	} * spans;
};

struct key_order {
	const struct place *p;
	uint8_t sem[AX_N];
};

/* -1, 0, 1 on the coordinates of the axes with this meaning. */
static int sem_cmp(const struct key_order *k, uint8_t sem, const struct rank *a,
		   const struct rank *b)
{
	for (int i = 0; i < AX_N; i++)
		if (k->sem[i] == sem && a->c[i] != b->c[i])
			return a->c[i] < b->c[i] ? -1 : 1;
	return 0;
}

static int class_cmp(const void *x, const void *y, void *arg)
{
	const struct key_order *k = arg;
	const struct rank *a = &k->p->parts[*(const uint32_t *)x].rank;
	const struct rank *b = &k->p->parts[*(const uint32_t *)y].rank;
	int c = sem_cmp(k, SEM_OWNERSHIP, a, b);
	if (!c)
		c = sem_cmp(k, SEM_REPLICATED, a, b);
	if (!c)
		c = sem_cmp(k, SEM_SPLIT, a, b);
	return c ? c : rank_cmp(a, b);
}

static void class_free(struct class *c)
{
	if (!c)
		return;
	free(c->pos_of);
	free(c->full);
	free(c);
}

static struct class *class_alloc(struct place_new *b, uint32_t n)
{
	struct class *c = place_zero(b, 1, sizeof(*c));
	if (!c)
		return NULL;
	c->pos_of = place_zero(b, (size_t)n * 8, sizeof(uint32_t));
	c->full = place_zero(b, n, 1);
	if (!c->pos_of || !c->full) {
		class_free(c);
		return NULL;
	}
	uint32_t **at[] = { &c->part_at,   &c->owner,	    &c->replica, &c->split,
			    &c->owner_end, &c->replica_end, &c->n_splits };
	for (uint32_t i = 0; i < ARRAY_LEN(at); i++)
		*at[i] = c->pos_of + (size_t)(i + 1) * n;
	return c;
}

static void class_groups(struct class *c, const struct key_order *k, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct rank *a = i ? &k->p->parts[c->part_at[i - 1]].rank : NULL;
		const struct rank *b = &k->p->parts[c->part_at[i]].rank;
		bool owner = !a || sem_cmp(k, SEM_OWNERSHIP, a, b);
		bool replica = owner || sem_cmp(k, SEM_REPLICATED, a, b);
		bool split = replica || sem_cmp(k, SEM_SPLIT, a, b);
		c->pos_of[c->part_at[i]] = i;
		c->owner[i] = owner ? i : c->owner[i - 1];
		c->replica[i] = replica ? i : c->replica[i - 1];
		c->split[i] = split ? i : c->split[i - 1];
		c->n_splits[c->replica[i]] += split;
		c->owner_end[c->owner[i]] = i + 1;
		c->replica_end[c->replica[i]] = i + 1;
	}
}

static int u64_cmp(const void *a, const void *b, void *arg)
{
	(void)arg;
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Do the participants of a replica reach 0..size-1 on each split axis, and are all combinations of
 * coordinates there? */
static bool class_full(struct class *c, const struct key_order *k, uint32_t first,
		       uint64_t *tmp, const atomic_bool *cancel)
{
	uint32_t end = c->replica_end[first], n = end - first;
	unsigned __int128 grid = 1;
	bool sizes = true;
	for (int x = 0; x < AX_N; x++) {
		if (k->sem[x] != SEM_SPLIT)
			continue;
		for (uint32_t i = 0; i < n; i++)
			tmp[i] = k->p->parts[c->part_at[first + i]].rank.c[x];
		if (!stop_sort(tmp, n, sizeof(*tmp), u64_cmp, NULL, cancel))
			return false;
		uint64_t distinct = 1;
		for (uint32_t i = 1; i < n; i++)
			distinct += tmp[i] != tmp[i - 1];
		/* coordinates are below the size: as many as it is are all of them */
		sizes = sizes && distinct == k->p->size[x];
		grid *= distinct;
	}
	c->full[first] = (uint8_t)((sizes ? FULL_SIZES : 0) |
				   (grid == c->n_splits[first] ? FULL_GRID : 0));
	return true;
}

static struct class *class_new(struct cover *v, const struct key_order *k)
{
	uint32_t n = v->p->n_parts;
	const atomic_bool *cancel = v->b->lim.cancel;
	struct class *c = class_alloc(v->b, n);
	AUTO_FREE uint64_t *tmp = place_tmp(v->b, n * sizeof(*tmp));
	if (!c || !tmp) {
		class_free(c);
		place_no_memory(v->b);
		return NULL;
	}
	v->b->held += (size_t)n * (8 * sizeof(uint32_t) + 1);
	for (uint32_t i = 0; i < n; i++)
		c->part_at[i] = i;
	if (!stop_sort(c->part_at, n, sizeof(uint32_t), class_cmp, (void *)(uintptr_t)k,
		       cancel)) {
		class_free(c);
		place_sort_fail(v->b);
		return NULL;
	}
	class_groups(c, k, n);
	bool ok = true;
	for (uint32_t i = 0; ok && i < n; i = c->replica_end[i])
		ok = class_full(c, k, i, tmp, cancel);
	if (ok)
		return c;
	class_free(c);
	place_sort_fail(v->b);
	return NULL;
}

static struct class *class_of(struct cover *v, const struct tensor *t)
{
	struct key_order k = { .p = v->p };
	uint32_t sig = 0;
	for (int x = 0; x < AX_N; x++) {
		k.sem[x] = t->axes[x].sem;
		sig = sig * 4 + t->axes[x].sem;
	}
	if (!v->classes[sig])
		v->classes[sig] = class_new(v, &k);
	return v->classes[sig];
}

/* ---- one tensor ---- */

struct one {
	struct cover *v;
	const struct tensor *t;
	const struct class *c;
	const uint32_t *idx;
	uint32_t first, n; /* of by_tensor */
};

static const struct rank *rank_of(const struct one *w, uint32_t i)
{
	assert(w->idx);
	return &w->v->p->parts[w->v->p->tensor_part[w->idx[i]]].rank;
}

static uint32_t pos_of(const struct one *w, uint32_t i)
{
	assert(w->idx);
	return w->c->pos_of[w->v->p->tensor_part[w->idx[i]]];
}

static const uint64_t *box_of(const struct one *w, uint32_t i)
{
	return w->t->boxes + 2ull * w->t->n_dims * (w->idx[i] - w->first);
}

static bool fail(const struct one *w, enum rule r, const char *what)
{
	return place_fail_tensor(w->v->b, r, w->t, "", what);
}

static bool declared_vary(const struct one *w)
{
	for (int x = 0; x < AX_N; x++)
		for (uint32_t i = 1; w->t->axes[x].sem != SEM_NONE && i < w->n; i++)
			if (rank_of(w, i)->c[x] != rank_of(w, 0)->c[x])
				return true;
	return false;
}

/* An ep or tp axis that is not declared though it has several ranks. */
static bool undeclared(const struct one *w, int x)
{
	bool varies = false;
	for (uint32_t i = 1; i < w->n; i++)
		varies |= rank_of(w, i)->c[x] != rank_of(w, 0)->c[x];
	if (x == AX_DP || x == AX_PP || !varies)
		return fail(w, RULE_UNDECLARED_REQUIRED, axis_names[x]);
	if (!declared_vary(w))
		return fail(w, RULE_UNDECLARED_VARIES, axis_names[x]);
	for (uint32_t i = 1; i < w->n; i++)
		if (w->c->split[pos_of(w, i - 1)] == w->c->split[pos_of(w, i)] &&
		    rank_of(w, i - 1)->c[x] != rank_of(w, i)->c[x])
			return fail(w, RULE_UNDECLARED_INDEPENDENT, axis_names[x]);
	return true;
}

static bool check_undeclared(const struct one *w)
{
	for (int x = 0; x < AX_N; x++)
		if (w->t->axes[x].sem == SEM_NONE && w->v->p->size[x] > 1 && !undeclared(w, x))
			return false;
	return true;
}

static int span_cmp(const void *a, const void *b, void *arg)
{
	(void)arg;
	const struct span *x = a, *y = b;
	if (x->coord != y->coord)
		return x->coord < y->coord ? -1 : 1;
	return (x->lo > y->lo) - (x->lo < y->lo);
}

static int span_lo_cmp(const void *a, const void *b, void *arg)
{
	(void)arg;
	const struct span *x = a, *y = b;
	return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Step 7 for one axis: intervals of each coordinate merged, and all of them one after another. */
static bool check_geometry(const struct one *w, uint32_t first, uint32_t end, int x)
{
	struct span *s = w->v->spans;
	uint64_t d = w->t->axes[x].dim;
	uint32_t m = 0, n = end - first;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t *box = box_of(w, first + i);
		s[i] = (struct span){ rank_of(w, first + i)->c[x], box[d],
				      box[d] + box[w->t->n_dims + d] };
	}
	const atomic_bool *cancel = w->v->b->lim.cancel;
	if (!stop_sort(s, n, sizeof(*s), span_cmp, NULL, cancel))
		return place_sort_fail(w->v->b);
	for (uint32_t i = 0; i < n; i++)
		if (m && s[m - 1].coord == s[i].coord && s[m - 1].hi >= s[i].lo)
			s[m - 1].hi = MAX_OF(s[m - 1].hi, s[i].hi);
		else
			s[m++] = s[i];
	if (!stop_sort(s, m, sizeof(*s), span_lo_cmp, NULL, cancel))
		return place_sort_fail(w->v->b);
	uint64_t at = 0;
	for (uint32_t i = 0; i < m; i++) {
		if (s[i].lo != at)
			return fail(w, RULE_SPLIT_GEOMETRY, axis_names[x]);
		at = s[i].hi;
	}
	return at == w->t->shape[d] || fail(w, RULE_SPLIT_GEOMETRY, axis_names[x]);
}

static bool check_tiling(const struct one *w, uint32_t first, uint32_t end)
{
	struct place_new *b = w->v->b;
	bool whole = false;
	for (uint32_t i = first; i < end; i++)
		w->v->boxes[i - first] = box_of(w, i);
	if (!box_tile(&b->join, w->v->boxes, end - first, w->t->shape, w->t->n_dims, &b->work,
		      &whole))
		return place_work_fail(b, &b->work);
	return whole || fail(w, RULE_COVER_INCOMPLETE, "a gap or an overlap");
}

/* Steps 4 to 7 for the fragments [first, end) of one owner and replica. */
static bool check_replica(const struct one *w, uint32_t first, uint32_t end)
{
	uint32_t group = w->c->replica[pos_of(w, first)], present = 0, n_split = 0;
	if (!check_tiling(w, first, end))
		return false;
	for (uint32_t i = first; i < end; i++)
		present += i == first ||
			   w->c->split[pos_of(w, i)] != w->c->split[pos_of(w, i - 1)];
	for (int x = 0; x < AX_N; x++)
		n_split += w->t->axes[x].sem == SEM_SPLIT;
	if (!n_split)
		return true;
	if (present != w->c->n_splits[group] || !(w->c->full[group] & FULL_SIZES))
		return fail(w, RULE_SPLIT_PARTICIPATION,
			    "some rank of a split axis has no share");
	if (n_split > 1 && !(w->c->full[group] & FULL_GRID))
		return fail(w, RULE_SPLIT_CARTESIAN, "some combination of ranks is missing");
	for (int x = 0; x < AX_N; x++)
		if (w->t->axes[x].sem == SEM_SPLIT && !check_geometry(w, first, end, x))
			return false;
	return true;
}

/* Every replica that the owner's participants make is there, and none else can be. */
static bool check_owner(const struct one *w, uint32_t first, uint32_t end)
{
	uint32_t owner = w->c->owner[pos_of(w, first)], due = owner;
	for (uint32_t i = first; i < end; i++) {
		uint32_t replica = w->c->replica[pos_of(w, i)];
		if (i > first && replica == w->c->replica[pos_of(w, i - 1)])
			continue;
		if (replica != due)
			return fail(w, RULE_COVER_REPLICAS, "a replica is missing");
		due = w->c->replica_end[replica];
	}
	if (due != w->c->owner_end[owner])
		return fail(w, RULE_COVER_REPLICAS, "a replica is missing");
	for (uint32_t i = first, k; i < end; i = k) {
		for (k = i + 1;
		     k < end && w->c->replica[pos_of(w, k)] == w->c->replica[pos_of(w, i)]; k++)
			;
		if (!check_replica(w, i, k))
			return false;
	}
	return true;
}

static int pos_cmp(const void *x, const void *y, void *arg)
{
	const struct one *w = arg;
	const uint32_t *part = w->v->p->tensor_part;
	uint32_t a = w->c->pos_of[part[*(const uint32_t *)x]];
	uint32_t b = w->c->pos_of[part[*(const uint32_t *)y]];
	return (a > b) - (a < b);
}

static bool sort_by_pos(const struct one *w, uint32_t *idx)
{
	if (w->n > 24)
		return stop_sort(idx, w->n, sizeof(*idx), pos_cmp, (void *)(uintptr_t)w,
				 w->v->b->lim.cancel) ||
		       place_sort_fail(w->v->b);
	for (uint32_t i = 1; i < w->n; i++) {
		uint32_t x = idx[i], k = i;
		for (; k > 0 && pos_cmp(&idx[k - 1], &x, (void *)(uintptr_t)w) > 0; k--)
			idx[k] = idx[k - 1];
		idx[k] = x;
	}
	return true;
}

static bool check_tensor(struct cover *v, uint32_t t)
{
	const struct place *p = v->p;
	struct one w = { .v = v, .t = &p->tensors[t], .idx = v->idx };
	w.first = p->tensor_first[t];
	w.n = p->tensor_first[t + 1] - w.first;
	w.c = class_of(v, w.t);
	if (!w.c)
		return false;
	for (uint32_t i = 0; i < w.n; i++)
		v->idx[i] = w.first + i;
	if (!sort_by_pos(&w, v->idx) || !check_undeclared(&w))
		return false;
	for (uint32_t i = 0, k; i < w.n; i = k) {
		for (k = i + 1;
		     k < w.n && w.c->owner[pos_of(&w, k)] == w.c->owner[pos_of(&w, i)]; k++)
			;
		if (!check_owner(&w, i, k))
			return false;
	}
	return true;
}

bool place_check_cover(struct place_new *b)
{
	struct place *p = b->p;
	struct cover v = { .b = b, .p = p };
	uint32_t most = 0;
	for (uint32_t t = 0; t < p->n_tensors; t++)
		most = MAX_OF(most, p->tensor_first[t + 1] - p->tensor_first[t]);
	most = MAX_OF(most, 1);
	v.idx = place_tmp(b, most * sizeof(*v.idx));
	v.boxes = place_tmp(b, most * sizeof(*v.boxes));
	v.spans = place_tmp(b, most * sizeof(*v.spans));
	bool ok = v.idx && v.boxes && v.spans;
	for (uint32_t t = 0; ok && t < p->n_tensors; t++) {
		ok = check_tensor(&v, t);
		if (ok && !box_work_take(&b->work,
					 16ull + p->tensor_first[t + 1] - p->tensor_first[t]))
			ok = place_work_fail(b, &b->work);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(v.classes); i++)
		class_free(v.classes[i]);
	free(v.idx);
	free(v.boxes);
	free(v.spans);
	return ok;
}
