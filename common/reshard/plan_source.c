/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/plan_priv.h"

#include "base/huge.h"

bool plan_no_memory(struct reject *why)
{
	return reject_set(why, RULE_LIMIT_MEMORY, "", "no memory within the limit");
}

bool plan_touch(struct plan_room *r, void *p, size_t n)
{
	return stop_touch(p, n, r->cancel) ||
	       reject_set(r->why, RULE_PLAN_CANCELLED, "", "stopped");
}

bool plan_sort_fail(struct plan_room *r)
{
	return stop_now(r->cancel) ? reject_set(r->why, RULE_PLAN_CANCELLED, "", "stopped")
				   : plan_no_memory(r->why);
}

void *plan_alloc(struct plan_room *r, size_t n)
{
	void *p = n <= r->left ? malloc(MAX_OF(n, 1)) : NULL;
	huge_hint(p, n);
	if (p)
		r->left -= n;
	else
		plan_no_memory(r->why);
	return p;
}

void *plan_zero(struct plan_room *r, size_t n, size_t each)
{
	void *p = n * each <= r->left ? calloc(MAX_OF(n, 1), each) : NULL;
	huge_hint(p, n * each);
	if (p)
		r->left -= n * each;
	else
		plan_no_memory(r->why);
	return p;
}

bool plan_work_fail(const struct box_work *w, struct reject *why)
{
	if (w->cancelled)
		return reject_set(why, RULE_PLAN_CANCELLED, "", "stopped while planning");
	if (w->no_memory)
		return plan_no_memory(why);
	if (w->many)
		return reject_set(why, RULE_LIMITS_REGIONS, "limits.max_transfer_regions",
				  "more than %llu", (unsigned long long)w->pairs_max);
	return reject_set(why, RULE_LIMIT_WORK, "", "more comparisons than the budget");
}

bool plan_grow(void *list, uint32_t *cap, uint32_t n, size_t each, struct plan_room *r)
{
	void *old, *q;
	if (n < *cap)
		return true;
	if (n >= UINT32_MAX / 2)
		return reject_set(r->why, RULE_LIMIT_COUNT, "", "too many");
	uint32_t want = *cap ? *cap + *cap / 2 : 64;
	size_t more = (want - *cap) * each;
	memcpy(&old, list, sizeof(old));
	q = more <= r->left ? realloc(old, want * each) : NULL;
	if (!q)
		return plan_no_memory(r->why);
	huge_hint(q, want * each);
	memcpy(list, &q, sizeof(q));
	r->left -= more;
	*cap = want;
	return true;
}

/* ---- candidates ---- */

struct cand_order {
	const struct tensor *t;
	uint32_t n_dims;
	bool with_dp;
};

static int owner_cmp(const struct tensor *t, const struct rank *a, const struct rank *b)
{
	for (int k = 0; k < AX_N; k++)
		if (t->axes[k].sem == SEM_OWNERSHIP && a->c[k] != b->c[k])
			return a->c[k] < b->c[k] ? -1 : 1;
	return 0;
}

static int group_cmp(const struct cand_order *o, const struct cand *x, const struct cand *y)
{
	uint64_t a = x->rank->c[AX_DP], b = y->rank->c[AX_DP];
	if (o->with_dp && a != b)
		return a < b ? -1 : 1;
	return owner_cmp(o->t, x->rank, y->rank);
}

static int cand_cmp(const void *a, const void *b, void *arg)
{
	const struct cand *x = a, *y = b;
	const struct cand_order *o = arg;
	int c = group_cmp(o, x, y);
	if (!c)
		c = box_cmp(x->box, y->box, o->n_dims);
	return c ? c : (x->seq > y->seq) - (x->seq < y->seq);
}

bool cands_sort(struct cands *k, bool with_dp, struct plan_room *r)
{
	struct cand_order o = { k->t, k->n_dims, with_dp };
	if (k->n > 24)
		return stop_sort(k->c, k->n, sizeof(*k->c), cand_cmp, &o, r->cancel) ||
		       plan_sort_fail(r);
	for (uint32_t i = 1; i < k->n; i++) {
		struct cand x = k->c[i];
		uint32_t j = i;
		for (; j > 0 && cand_cmp(&k->c[j - 1], &x, &o) > 0; j--)
			k->c[j] = k->c[j - 1];
		k->c[j] = x;
	}
	return true;
}

bool cands_same(const struct cands *k, uint32_t a, uint32_t b, bool with_dp)
{
	struct cand_order o = { k->t, k->n_dims, with_dp };
	return group_cmp(&o, &k->c[a], &k->c[b]) == 0;
}

bool cands_whole(const struct cands *k, uint32_t first, uint32_t end)
{
	unsigned __int128 sum = 0;
	for (uint32_t i = first; i < end; i++)
		if (i == first || box_cmp(k->c[i - 1].box, k->c[i].box, k->n_dims) != 0)
			sum += box_volume(k->c[i].box, k->n_dims);
	return sum == box_shape_volume(k->t->shape, k->n_dims);
}

void cands_fill(struct cands *k, const struct place *p, uint32_t t, const bool *only)
{
	uint32_t first = p->tensor_first[t], end = p->tensor_first[t + 1], n = 0;
	k->t = &p->tensors[t];
	k->n_dims = k->t->n_dims;
	const uint64_t *box = k->t->boxes;
	for (uint32_t i = first; i < end; i++, box += 2ull * k->n_dims) {
		uint32_t part = p->tensor_part[i];
		if (only && !only[part])
			continue;
		k->c[n] = (struct cand){ &p->parts[part].rank, box, i, n };
		n++;
	}
	k->n = n;
}

/* ---- offers ---- */

void offers_fini(struct offers *o)
{
	free(o->offer);
	free(o->run);
	free(o->run_first);
	free(o->dp);
	free(o->complete);
	*o = (struct offers){ 0 };
}

static int u64_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static uint32_t dp_index(const struct offers *o, uint64_t dp)
{
	const uint64_t *at = bsearch(&dp, o->dp, o->n_dp, sizeof(*o->dp), u64_cmp);
	return at ? (uint32_t)(at - o->dp) : UINT32_MAX;
}

static bool offer_put(struct offers *o, const struct cands *k, uint32_t first, uint32_t end,
		      uint32_t dp_idx, struct plan_room *room)
{
	const uint32_t *frag = o->frags;
	if (!plan_grow(&o->run, &o->cap_runs, o->n_runs, sizeof(*o->run), room))
		return false;
	struct offer_run *r = &o->run[o->n_runs++];
	*r = (struct offer_run){ .dp_idx = dp_idx, .first = o->n_offers };
	for (uint32_t i = first; i < end; i++) {
		if (i > first && box_cmp(k->c[i - 1].box, k->c[i].box, k->n_dims) == 0)
			continue;
		if (!plan_grow(&o->offer, &o->cap_offers, o->n_offers, sizeof(*o->offer), room))
			return false;
		o->offer[o->n_offers++] = (struct offer){ k->c[i].box, frag[k->c[i].pos] };
	}
	r->n = o->n_offers - r->first;
	return true;
}

/* End of the group (DP rank, owner) that begins at i. */
static uint32_t group_end(const struct cands *k, uint32_t i, bool with_dp)
{
	uint32_t e = i + 1;
	while (e < k->n && cands_same(k, i, e, with_dp))
		e++;
	return e;
}

static bool one_owner(struct offers *o, struct cands *k, struct plan_room *room)
{
	if (!cands_sort(k, false, room))
		return false;
	if (group_end(k, 0, false) != k->n || !cands_whole(k, 0, k->n))
		return reject_set(room->why, RULE_PLAN_DP_OWNER, "source", "tensor %.*s",
				  (int)MIN_OF(k->t->id.n, 100), (const char *)k->t->id.p);
	return offer_put(o, k, 0, k->n, UINT32_MAX, room);
}

/* For each DP rank: is every owner there whole? Then the smallest one's boxes are on offer. */
static bool by_dp(struct offers *o, struct cands *k, uint32_t *count, struct plan_room *room)
{
	if (!cands_sort(k, true, room))
		return false;
	for (uint32_t i = 0, e = 0; i < k->n; i = e) {
		uint64_t dp = k->c[i].rank->c[AX_DP];
		uint32_t first_end = group_end(k, i, true), idx = dp_index(o, dp);
		bool whole = true;
		for (uint32_t g = i; g < k->n && k->c[g].rank->c[AX_DP] == dp; g = e) {
			e = g == i ? first_end : group_end(k, g, true);
			whole = whole && cands_whole(k, g, e);
		}
		if (!whole)
			continue;
		count[idx]++;
		if (!offer_put(o, k, i, first_end, idx, room))
			return false;
	}
	return true;
}

static bool dp_ranks(struct offers *o, const struct place *p, struct plan_room *room)
{
	o->dp = plan_alloc(room, p->n_parts * sizeof(*o->dp));
	o->complete = plan_alloc(room, p->n_parts * sizeof(*o->complete));
	o->run_first = plan_alloc(room, ((size_t)p->n_tensors + 1) * sizeof(*o->run_first));
	if (!o->dp || !o->complete || !o->run_first)
		return false;
	/* parts in rank order: their DP ranks ascend */
	for (uint32_t i = 0; i < p->n_parts; i++) {
		uint64_t dp = p->parts[p->rank_order[i]].rank.c[AX_DP];
		if (!o->n_dp || o->dp[o->n_dp - 1] != dp)
			o->dp[o->n_dp++] = dp;
	}
	return true;
}

static uint32_t most_frags(const uint32_t *first, uint32_t n)
{
	uint32_t most = 1;
	for (uint32_t t = 0; t < n; t++)
		most = MAX_OF(most, first[t + 1] - first[t]);
	return most;
}

static bool all_tensors(struct offers *o, const struct place *p, struct cands *k,
			uint32_t *count, struct box_work *w, struct plan_room *room)
{
	uint32_t n_shared = 0;
	for (uint32_t t = 0; t < p->n_tensors; t++) {
		uint32_t first = p->tensor_first[t];
		o->run_first[t] = o->n_runs;
		if (!box_work_take(w, 16ull + p->tensor_first[t + 1] - first))
			return plan_work_fail(w, room->why);
		cands_fill(k, p, t, NULL);
		bool owned = tensor_dp_owned(k->t);
		n_shared += !owned;
		if (owned ? !one_owner(o, k, room) : !by_dp(o, k, count, room))
			return false;
	}
	o->run_first[p->n_tensors] = o->n_runs;
	o->any_shared = n_shared > 0;
	for (uint32_t i = 0; i < o->n_dp; i++)
		if (count[i] == n_shared)
			o->complete[o->n_complete++] = i;
	if (n_shared && !o->n_complete)
		return reject_set(room->why, RULE_PLAN_SOURCE_REPLICA, "source",
				  "of %u DP ranks none", o->n_dp);
	return true;
}

bool offers_of_place(struct offers *o, const struct place *p, struct box_work *w,
		     struct plan_room *room)
{
	o->frags = p->by_tensor;
	if (!dp_ranks(o, p, room))
		return false;
	struct cands k = { .c = plan_alloc(room, most_frags(p->tensor_first, p->n_tensors) *
							 sizeof(*k.c)) };
	uint32_t *count = plan_zero(room, o->n_dp, sizeof(*count));
	bool ok = k.c && count && all_tensors(o, p, &k, count, w, room);
	free(k.c);
	free(count);
	return ok;
}

bool offers_of_stored(struct offers *o, const struct stored *s, struct plan_room *room)
{
	o->run_first = plan_alloc(room, ((size_t)s->n_tensors + 1) * sizeof(*o->run_first));
	o->run = plan_alloc(room, s->n_tensors * sizeof(*o->run));
	o->offer = plan_alloc(room, s->n_frags * sizeof(*o->offer));
	if (!o->run_first || !o->run || !o->offer)
		return false;
	for (uint32_t t = 0; t < s->n_tensors; t++) {
		uint32_t first = s->tensor_first[t], n = s->tensor_first[t + 1] - first;
		o->run_first[t] = t;
		o->run[t] = (struct offer_run){ UINT32_MAX, first, n };
	}
	o->run_first[s->n_tensors] = s->n_tensors;
	for (uint32_t i = 0; i < s->n_frags; i++) {
		o->offer[i] = (struct offer){ s->frags[s->by_tensor[i]].box, s->by_tensor[i] };
		if (!plan_go(room, i))
			return false;
	}
	o->n_runs = s->n_tensors;
	o->n_offers = s->n_frags;
	return true;
}

const struct offer_run *offers_for(const struct offers *o, uint32_t tensor, uint64_t target_dp)
{
	const struct offer_run *r = &o->run[o->run_first[tensor]];
	uint32_t n = o->run_first[tensor + 1] - o->run_first[tensor];
	if (n && r->dp_idx == UINT32_MAX)
		return r;
	if (!o->n_complete)
		return NULL;
	uint32_t want = o->complete[target_dp % o->n_complete];
	for (uint32_t lo = 0, hi = n; lo < hi;) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (r[mid].dp_idx == want)
			return &r[mid];
		*(r[mid].dp_idx < want ? &lo : &hi) = r[mid].dp_idx < want ? mid + 1 : mid;
	}
	return NULL;
}
