/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_random [CASES [SEED]]: random pairs of placements, planned, and the plan carried out on
 * byte buffers. For each case:
 *   - the target's bytes are the tensor's, each written exactly once
 *   - each byte came from the fragment that a slow, obvious planner chooses for it: element by
 *     element, straight from the rules, with no code of the planner's
 *   - the number of regions is the number of distinct (source, target) pairs of that planner
 *   - each operation is listed once at its source's participant, at its target's and in the route of
 *     its pipeline stages, ascending; participants and routes are in their order
 *   - input in another order gives the same ids and the same plan
 *   - the canonical text, read again, gives the same digest
 * Prints the seed of a case that fails. Plain main(): long runs, and no fork a case.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/plan.h"

#define T_MAX	  6
#define FRAGS_MAX 4096

static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng * 0x2545f4914f6cdd1dull >> 33) % n;
}

static void die(const char *what, uint64_t seed)
{
	fprintf(stderr, "reshard_random: %s, seed %" PRIu64 "\n", what, seed);
	exit(1);
}

/* ---- one side: tensors, ranks, and who holds what ---- */

struct rt {
	char name[24];
	uint64_t shape[5], itemsize;
	uint32_t n_dims;
	int group; /* of aliases; 0: none */
};

struct rf {
	uint32_t tensor, rank;
	uint64_t box[10], stage;
	bool has_stage;
};

struct side {
	const struct rt *t;
	uint32_t n_t;
	uint64_t size[AX_N];
	struct rank rank[81];
	uint32_t n_ranks;
	struct tensor tensors[T_MAX];
	uint64_t shard[T_MAX][2];
	struct rf f[FRAGS_MAX];
	uint32_t n_f;
};

static void make_ranks(struct side *s)
{
	for (int k = 0; k < AX_N; k++)
		s->size[k] = 1 + (rnd(2) ? rnd(3) : 0);
	s->n_ranks = 0;
	for (uint64_t d = 0; d < s->size[AX_DP]; d++)
		for (uint64_t p = 0; p < s->size[AX_PP]; p++)
			for (uint64_t e = 0; e < s->size[AX_EP]; e++)
				for (uint64_t t = 0; t < s->size[AX_TP]; t++)
					s->rank[s->n_ranks++] = (struct rank){ { d, p, e, t } };
}

/* How a split dimension is cut: pieces, and the coordinate that has each. */
struct cuts {
	uint64_t at[12], owner[12];
	uint32_t n;
};

static void make_cuts(struct cuts *c, uint64_t extent, uint64_t size)
{
	c->n = (uint32_t)(size + rnd(MIN_OF(extent - size + 1, 3)));
	/* strictly ascending cut points: a random subset of 1..extent-1 */
	uint64_t left = extent - 1, need = c->n - 1;
	uint32_t k = 0;
	c->at[k++] = 0;
	for (uint64_t x = 1; x < extent && need; x++, left--)
		if (rnd(left) < need) {
			c->at[k++] = x;
			need--;
		}
	c->at[k] = extent;
	/* every coordinate has a piece; the rest go anywhere */
	for (uint32_t i = 0; i < c->n; i++)
		c->owner[i] = i < size ? i : rnd(size);
	for (uint32_t i = c->n; i > 1; i--) {
		uint32_t j = (uint32_t)rnd(i);
		uint64_t x = c->owner[i - 1];
		c->owner[i - 1] = c->owner[j];
		c->owner[j] = x;
	}
}

static void choose_axes(struct side *s, uint32_t t)
{
	struct tensor *x = &s->tensors[t];
	const struct rt *r = &s->t[t];
	for (int k = 0; k < AX_N; k++) {
		uint8_t sem = (uint8_t)(rnd(2) ? SEM_REPLICATED : SEM_OWNERSHIP);
		if (s->size[k] == 1 && rnd(2))
			sem = SEM_NONE;
		if (k == AX_EP && r->shape[0] >= s->size[k] && rnd(3) == 0)
			sem = SEM_SPLIT;
		x->axes[k] = (struct axis){ .sem = sem };
	}
	uint64_t dim = rnd(r->n_dims);
	if (r->shape[dim] >= s->size[AX_TP] && rnd(2) &&
	    !(x->axes[AX_EP].sem == SEM_SPLIT && dim == 0))
		x->axes[AX_TP] = (struct axis){ SEM_SPLIT, dim };
	x->n_shard = 0;
	if (x->axes[AX_EP].sem == SEM_SPLIT)
		s->shard[t][x->n_shard++] = 0;
	if (x->axes[AX_TP].sem == SEM_SPLIT)
		s->shard[t][x->n_shard++] = x->axes[AX_TP].dim;
	x->shard_dims = s->shard[t];
}

static bool owns(const struct tensor *x, const struct rank *r, const struct rank *owner)
{
	for (int k = 0; k < AX_N; k++)
		if (x->axes[k].sem == SEM_OWNERSHIP && r->c[k] != owner->c[k])
			return false;
	return true;
}

/* The boxes of one rank: each combination of its pieces; along `extra` each is cut in two. */
static void rank_boxes(struct side *s, uint32_t t, uint32_t rank, const struct cuts *ce,
		       const struct cuts *ct, int extra)
{
	const struct rt *r = &s->t[t];
	const struct tensor *x = &s->tensors[t];
	bool ep = x->axes[AX_EP].sem == SEM_SPLIT, tp = x->axes[AX_TP].sem == SEM_SPLIT;
	for (uint32_t i = 0; i < (ep ? ce->n : 1); i++)
		for (uint32_t j = 0; j < (tp ? ct->n : 1); j++)
			for (int half = 0; half < (extra >= 0 ? 2 : 1); half++) {
				struct rf *f = &s->f[s->n_f];
				if ((ep && ce->owner[i] != s->rank[rank].c[AX_EP]) ||
				    (tp && ct->owner[j] != s->rank[rank].c[AX_TP]))
					continue;
				if (s->n_f == FRAGS_MAX)
					return;
				*f = (struct rf){ .tensor = t, .rank = rank };
				memcpy(f->box + r->n_dims, r->shape,
				       r->n_dims * sizeof(uint64_t));
				if (ep) {
					f->box[0] = ce->at[i];
					f->box[r->n_dims] = ce->at[i + 1] - ce->at[i];
				}
				if (tp) {
					uint64_t d = x->axes[AX_TP].dim;
					f->box[d] = ct->at[j];
					f->box[r->n_dims + d] = ct->at[j + 1] - ct->at[j];
				}
				if (extra >= 0) {
					uint64_t n = r->shape[extra], h = n / 2;
					f->box[extra] = half ? h : 0;
					f->box[r->n_dims + extra] = half ? n - h : h;
				}
				s->n_f++;
			}
}

static void hold(struct side *s, uint32_t t, bool source)
{
	struct tensor *x = &s->tensors[t];
	const struct rt *r = &s->t[t];
	struct cuts ce = { 0 }, ct = { 0 };
	struct rank owner[2];
	int extra = -1;
	bool dp_owned = x->axes[AX_DP].sem == SEM_OWNERSHIP;
	uint32_t n_owners = source && dp_owned ? 1 : 1 + (uint32_t)rnd(2);
	for (uint32_t i = 0; i < n_owners; i++)
		owner[i] = s->rank[rnd(s->n_ranks)];
	if (x->axes[AX_EP].sem == SEM_SPLIT)
		make_cuts(&ce, r->shape[0], s->size[AX_EP]);
	if (x->axes[AX_TP].sem == SEM_SPLIT)
		make_cuts(&ct, r->shape[x->axes[AX_TP].dim], s->size[AX_TP]);
	for (uint32_t d = 0; d < r->n_dims && extra < 0; d++)
		if (!(x->axes[AX_EP].sem == SEM_SPLIT && d == 0) &&
		    !(x->axes[AX_TP].sem == SEM_SPLIT && d == x->axes[AX_TP].dim) &&
		    r->shape[d] > 1 && rnd(4) == 0)
			extra = (int)d;
	for (uint32_t k = 0; k < s->n_ranks; k++)
		for (uint32_t i = 0; i < n_owners; i++)
			if (owns(x, &s->rank[k], &owner[i])) {
				rank_boxes(s, t, k, &ce, &ct, extra);
				break;
			}
}

static void make_side(struct side *s, const struct rt *t, uint32_t n, bool source)
{
	s->t = t;
	s->n_t = n;
	s->n_f = 0;
	make_ranks(s);
	for (uint32_t i = 0; i < n; i++) {
		s->tensors[i] = (struct tensor){ .id = BYTES_STR(t[i].name),
						 .dtype = BYTES_STR("x"),
						 .layout = BYTES_STR("row-major:v1"),
						 .shape = t[i].shape,
						 .itemsize = t[i].itemsize,
						 .n_dims = (uint8_t)t[i].n_dims };
		choose_axes(s, i);
		hold(s, i, source);
	}
}

/* ---- into the planner's records ---- */

static void shuffle(uint32_t *v, uint32_t n, bool really)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	for (uint32_t i = n; really && i > 1; i--) {
		uint32_t j = (uint32_t)rnd(i), x = v[i - 1];
		v[i - 1] = v[j];
		v[j] = x;
	}
}

static uint32_t group_of(const struct side *s, uint32_t t, struct bytes *names)
{
	uint32_t n = 0;
	for (uint32_t i = 0; s->t[t].group && i < s->n_t; i++)
		if (s->t[i].group == s->t[t].group)
			names[n++] = BYTES_STR(s->t[i].name);
	return n;
}

static bool add_part(struct place_new *b, const struct side *s, uint32_t k,
		     const uint32_t *order)
{
	char id[16];
	struct bytes names[T_MAX];
	snprintf(id, sizeof(id), "r%u", k);
	if (!place_new_part(b, BYTES_STR(id), &s->rank[k]))
		return false;
	for (uint32_t i = 0; i < s->n_f; i++) {
		const struct rf *f = &s->f[order[i]];
		const struct rt *t = &s->t[f->tensor];
		uint64_t nbytes = t->itemsize;
		if (f->rank != k)
			continue;
		for (uint32_t d = 0; d < t->n_dims; d++)
			nbytes *= f->box[t->n_dims + d];
		if (!place_new_frag(b, (struct bytes){ 0 }, BYTES_STR(t->name), f->box,
				    t->n_dims, nbytes, f->has_stage ? &f->stage : NULL, names,
				    group_of(s, f->tensor, names)))
			return false;
	}
	return true;
}

/* None, one for each pp rank, or any and not everywhere. */
static void make_stages(struct side *s)
{
	uint64_t how = rnd(3);
	for (uint32_t i = 0; i < s->n_f; i++) {
		s->f[i].has_stage = how == 1 || (how == 2 && rnd(4));
		s->f[i].stage = how == 1 ? s->rank[s->f[i].rank].c[AX_PP] : rnd(3) << rnd(40);
	}
}

static struct place *build(const struct side *s, bool mixed, uint64_t seed)
{
	static const struct place_limits lim = PLACE_LIMITS;
	static uint32_t order[FRAGS_MAX];
	struct reject why = { 0 };
	uint32_t ranks[81], tensors[T_MAX];
	struct place *p = NULL;
	struct place_new *b = place_new_open(&lim, &why);
	bool ok =
		place_new_ident(b, BYTES_STR("m"), BYTES_STR("r"), 1, BYTES_STR("s"), s->size);
	shuffle(order, s->n_f, mixed);
	shuffle(ranks, s->n_ranks, mixed);
	shuffle(tensors, s->n_t, mixed);
	for (uint32_t i = 0; ok && i < s->n_t; i++)
		ok = place_new_tensor(b, &s->tensors[tensors[i]]);
	for (uint32_t i = 0; ok && i < s->n_ranks; i++) {
		char id[16];
		snprintf(id, sizeof(id), "r%u", i);
		ok = place_new_member(b, BYTES_STR(id), &s->rank[i]) &&
		     add_part(b, s, ranks[i], order);
	}
	if (!ok || place_build(b, &p) != ERR_NONE) {
		fprintf(stderr, "%s at %s: %s\n", rule_name(why.rule), why.path, why.text);
		die("a valid placement was refused", seed);
	}
	place_new_free(b);
	return p;
}

/* ---- the slow planner ---- */

static uint64_t owner_key(const struct tensor *x, const struct rank *r)
{
	uint64_t v = 0;
	for (int k = 0; k < AX_N; k++)
		v = v * 1000 + (x->axes[k].sem == SEM_OWNERSHIP ? r->c[k] : 0);
	return v;
}

static bool inside(const uint64_t *box, uint32_t n, const uint64_t *at)
{
	for (uint32_t d = 0; d < n; d++)
		if (at[d] < box[d] || at[d] >= box[d] + box[n + d])
			return false;
	return true;
}

/* The fragment that an element is read from: the first, in (rank, id), of those at the smallest owner
 * of the DP rank that has it. */
static uint32_t slow_source(const struct place *s, uint32_t t, const struct rank *target,
			    const uint64_t *at)
{
	const struct tensor *x = &s->tensors[t];
	bool owned = x->axes[AX_DP].sem == SEM_OWNERSHIP;
	uint64_t dp = 0, n_dp = 0, least = UINT64_MAX;
	uint32_t best = UINT32_MAX;
	for (uint32_t i = 0; i < s->n_parts; i++)
		n_dp = MAX_OF(n_dp, s->parts[i].rank.c[AX_DP] + 1);
	dp = target->c[AX_DP] % n_dp;
	for (uint32_t i = 0; i < s->n_frags; i++) {
		const struct rank *r = &s->parts[s->frags[i].part].rank;
		if (s->frags[i].tensor == t && (owned || r->c[AX_DP] == dp))
			least = MIN_OF(least, owner_key(x, r));
	}
	for (uint32_t i = 0; i < s->n_frags; i++) {
		const struct frag *f = &s->frags[i];
		const struct rank *r = &s->parts[f->part].rank;
		if (f->tensor != t || (!owned && r->c[AX_DP] != dp) ||
		    owner_key(x, r) != least || !inside(f->box, x->n_dims, at))
			continue;
		const struct rank *q =
			best == UINT32_MAX ? NULL : &s->parts[s->frags[best].part].rank;
		int c = q ? rank_cmp(r, q) : -1;
		if (c < 0 || (c == 0 && bytes_cmp(f->id, s->frags[best].id) < 0))
			best = i;
	}
	return best;
}

static uint8_t content(uint32_t t, uint64_t element, uint64_t byte)
{
	uint64_t x = (element * 16 + byte + 1) * 0x9e3779b97f4a7c15ull + t * 0x1234567ull;
	return (uint8_t)(x >> 56);
}

static uint64_t linear(const uint64_t *shape, uint32_t n, const uint64_t *at)
{
	uint64_t v = 0;
	for (uint32_t d = 0; d < n; d++)
		v = v * shape[d] + at[d];
	return v;
}

/* Steps at through the box; false at its end. */
static bool next(const uint64_t *box, uint32_t n, uint64_t *at)
{
	for (uint32_t d = n; d-- > 0;) {
		if (++at[d] < box[d] + box[n + d])
			return true;
		at[d] = box[d];
	}
	return false;
}

struct cell {
	uint8_t byte;
	uint32_t source, writes;
};

static uint8_t **fill_sources(const struct place *s)
{
	uint8_t **buf = calloc(s->n_frags, sizeof(*buf));
	for (uint32_t i = 0; i < s->n_frags; i++) {
		const struct frag *f = &s->frags[i];
		const struct tensor *x = &s->tensors[f->tensor];
		uint64_t at[5], pos = 0;
		buf[i] = malloc(f->nbytes);
		memcpy(at, f->box, x->n_dims * sizeof(uint64_t));
		do {
			uint64_t e = linear(x->shape, x->n_dims, at);
			for (uint64_t k = 0; k < x->itemsize; k++)
				buf[i][pos++] = content(f->tensor, e, k);
		} while (next(f->box, x->n_dims, at));
	}
	return buf;
}

/* Carries operation i out. */
static void carry_out(const struct plan *p, uint32_t i, uint8_t **src, struct cell **dst,
		      uint64_t seed)
{
	struct region r;
	uint64_t at[BOX_DIMS_MAX] = { 0 };
	uint32_t s = p->ops[i].source, t = p->ops[i].target;
	plan_region(p, i, &r);
	for (uint64_t seg = 0; seg < r.segments; seg++) {
		uint64_t a = r.source_base, b = r.target_base;
		for (uint32_t d = 0; d < r.n_outer; d++) {
			a += at[d] * r.source_strides[d];
			b += at[d] * r.target_strides[d];
		}
		if (a + r.inner_bytes > p->source->frags[s].nbytes ||
		    b + r.inner_bytes > p->target->frags[t].nbytes)
			die("a segment leaves its fragment", seed);
		for (uint64_t k = 0; k < r.inner_bytes; k++) {
			dst[t][b + k].byte = src[s][a + k];
			dst[t][b + k].source = s;
			dst[t][b + k].writes++;
		}
		for (uint32_t d = r.n_outer; d-- > 0 && ++at[d] == r.counts[d];)
			at[d] = 0;
	}
}

/* Returns the number of distinct sources that the slow planner uses for target fragment i. */
static uint32_t check_frag(const struct plan *p, uint32_t i, const struct cell *have,
			   uint64_t seed)
{
	const struct frag *f = &p->target->frags[i];
	const struct tensor *x = &p->target->tensors[f->tensor];
	uint64_t at[5], pos = 0;
	uint32_t seen[FRAGS_MAX], n = 0;
	memcpy(at, f->box, x->n_dims * sizeof(uint64_t));
	do {
		uint32_t want =
			slow_source(p->source, f->tensor, &p->target->parts[f->part].rank, at);
		uint64_t e = linear(x->shape, x->n_dims, at);
		for (uint64_t k = 0; k < x->itemsize; k++, pos++) {
			if (have[pos].writes != 1)
				die("a byte was not written exactly once", seed);
			if (have[pos].byte != content(f->tensor, e, k))
				die("a byte is wrong", seed);
			if (have[pos].source != want)
				die("the slow planner reads from another fragment", seed);
		}
		uint32_t j = 0;
		while (j < n && seen[j] != want)
			j++;
		if (j == n)
			seen[n++] = want;
	} while (next(f->box, x->n_dims, at));
	return n;
}

static void check_plan(const struct plan *p, uint64_t seed)
{
	uint8_t **src = fill_sources(p->source);
	struct cell **dst = calloc(p->target->n_frags, sizeof(*dst));
	uint64_t regions = 0, bytes = 0;
	for (uint32_t i = 0; i < p->target->n_frags; i++) {
		dst[i] = calloc(p->target->frags[i].nbytes, sizeof(**dst));
		bytes += p->target->frags[i].nbytes;
	}
	for (uint32_t i = 0; i < p->n_ops; i++)
		carry_out(p, i, src, dst, seed);
	for (uint32_t i = 0; i < p->target->n_frags; i++)
		regions += check_frag(p, i, dst[i], seed);
	if (regions != p->n_ops)
		die("another number of regions than the slow planner's", seed);
	if (bytes != p->total_bytes)
		die("total_bytes", seed);
	for (uint32_t i = 0; i < p->source->n_frags; i++)
		free(src[i]);
	for (uint32_t i = 0; i < p->target->n_frags; i++)
		free(dst[i]);
	free(src);
	free(dst);
}

/* ---- lists of operations ---- */

static void check_execs(const struct plan *p, bool source, uint64_t seed)
{
	const struct place *side = source ? p->source : p->target;
	const struct plan_exec *e = source ? p->sources : p->targets;
	const uint32_t *ops = source ? p->source_ops : p->target_ops;
	uint32_t n_execs = source ? p->n_sources : p->n_targets, sum = 0;
	for (uint32_t i = 0; i < n_execs; i++) {
		if (i && rank_cmp(&side->parts[e[i - 1].part].rank,
				  &side->parts[e[i].part].rank) >= 0)
			die("executors are not in the order of ranks", seed);
		if (e[i].first != sum || !e[i].n)
			die("executors' lists do not follow one another", seed);
		sum += e[i].n;
		for (uint32_t k = e[i].first; k < sum; k++) {
			const struct plan_op *o = &p->ops[ops[k]];
			if (side->frags[source ? o->source : o->target].part != e[i].part)
				die("an operation at another participant", seed);
			if (k > e[i].first && ops[k - 1] >= ops[k])
				die("an executor's operations do not ascend", seed);
		}
	}
	if (sum != p->n_ops)
		die("executors with another number of operations", seed);
}

static bool on_route(const struct plan *p, uint32_t op, const struct plan_route *r)
{
	const struct frag *s = &p->source->frags[p->ops[op].source];
	const struct frag *t = &p->target->frags[p->ops[op].target];
	return r->has_source_pp && r->source_pp == p->source->parts[s->part].rank.c[AX_PP] &&
	       r->has_source_stage == s->has_stage &&
	       (!s->has_stage || r->source_stage == s->stage) &&
	       r->target_pp == p->target->parts[t->part].rank.c[AX_PP] &&
	       r->has_target_stage == t->has_stage &&
	       (!t->has_stage || r->target_stage == t->stage);
}

static int route_cmp(const struct plan_route *a, const struct plan_route *b)
{
	const uint64_t x[] = {
		a->source_pp, a->has_source_stage, a->has_source_stage ? a->source_stage : 0,
		a->target_pp, a->has_target_stage, a->has_target_stage ? a->target_stage : 0
	};
	const uint64_t y[] = {
		b->source_pp, b->has_source_stage, b->has_source_stage ? b->source_stage : 0,
		b->target_pp, b->has_target_stage, b->has_target_stage ? b->target_stage : 0
	};
	for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

static void check_routes(const struct plan *p, uint64_t seed)
{
	uint32_t sum = 0;
	for (uint32_t i = 0; i < p->n_routes; i++) {
		const struct plan_route *r = &p->routes[i];
		if (i && route_cmp(r - 1, r) >= 0)
			die("routes are not in their order", seed);
		if (r->first != sum || !r->n)
			die("routes' lists do not follow one another", seed);
		sum += r->n;
		for (uint32_t k = r->first; k < sum; k++) {
			if (!on_route(p, p->route_ops[k], r))
				die("an operation on another route", seed);
			if (k > r->first && p->route_ops[k - 1] >= p->route_ops[k])
				die("a route's operations do not ascend", seed);
		}
	}
	if (sum != p->n_ops)
		die("routes with another number of operations", seed);
}

/* ---- cases ---- */

static struct text_out out;

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static void digest_of(const struct plan *p, char hex[SHA_HEX])
{
	struct sha sha;
	if (sha_init(&sha) != ERR_NONE)
		exit(2);
	text_init(&out, &sha, false);
	plan_text(p, &out);
	text_flush(&out);
	sha_hex(&sha, hex);
	sha_fini(&sha);
}

static void check_again(const struct place *p, uint64_t seed)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct reject why;
	struct place *q = NULL;
	text_init(&out, NULL, false);
	out.put = to_buf;
	out.arg = &b;
	place_text(p, &out);
	text_flush(&out);
	if (place_read(buf_bytes(&b), PLACE_WIRE, &lim, &why, &q) != ERR_NONE)
		die("the canonical text was refused", seed);
	if (memcmp(p->digest, q->digest, SHA_HEX) != 0)
		die("the text read again has another digest", seed);
	place_free(q);
	buf_fini(&b);
}

static void make_tensors(struct rt *t, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t most = 600;
		t[i] = (struct rt){ .itemsize = 1ull << rnd(4),
				    .n_dims = 1 + (uint32_t)rnd(5) };
		snprintf(t[i].name, sizeof(t[i].name), "t%" PRIu64 ".%u", rnd(10), i);
		for (uint32_t d = 0; d < t[i].n_dims; d++) {
			t[i].shape[d] = 1 + rnd(MIN_OF(most, t[i].n_dims > 2 ? 6 : 12));
			most = MAX_OF(most / t[i].shape[d], 1);
		}
	}
	if (n > 1 && rnd(3) == 0)
		for (uint32_t i = 0; i < n; i++)
			t[i].group = i < 2 || rnd(2) ? 1 : 0;
}

static void one(uint64_t seed)
{
	static struct side s, d;
	struct rt t[T_MAX];
	struct reject why;
	struct plan *p = NULL, *q = NULL;
	char a[SHA_HEX], b[SHA_HEX];
	rng = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
	uint32_t n = 1 + (uint32_t)rnd(T_MAX);
	make_tensors(t, n);
	make_side(&s, t, n, true);
	make_side(&d, t, n, false);
	make_stages(&s);
	make_stages(&d);
	struct place *sp = build(&s, false, seed), *dp = build(&d, false, seed);
	struct place *sq = build(&s, true, seed), *dq = build(&d, true, seed);
	if (memcmp(sp->digest, sq->digest, SHA_HEX) || memcmp(dp->digest, dq->digest, SHA_HEX))
		die("another input order, another digest", seed);
	struct plan_ask ask = { .source = sp, .target = dp, .lim = PLAN_LIMITS_WIDE };
	if (plan_make(&ask, &why, &p) != ERR_NONE) {
		/* a DP rank of the target may hold no fragment of a tensor: the one refusal that is
		 * due here */
		if (why.rule != RULE_PLAN_TARGET_COVERAGE &&
		    why.rule != RULE_PLAN_SOURCE_REPLICA)
			die(rule_name(why.rule), seed);
		goto end;
	}
	ask.source = sq;
	ask.target = dq;
	if (plan_make(&ask, &why, &q) != ERR_NONE)
		die("another input order is refused", seed);
	digest_of(p, a);
	digest_of(q, b);
	if (memcmp(a, b, SHA_HEX))
		die("another input order, another plan", seed);
	check_plan(p, seed);
	check_execs(p, true, seed);
	check_execs(p, false, seed);
	check_routes(p, seed);
	check_again(sp, seed);
end:
	plan_free(p);
	plan_free(q);
	place_free(sp);
	place_free(dp);
	place_free(sq);
	place_free(dq);
	if (!p)
		rng = 0;
}

int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
	uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, refused = 0;
	for (uint64_t i = 0; i < n; i++) {
		one(first + i);
		refused += rng == 0;
	}
	printf("%" PRIu64 " cases from seed %" PRIu64 ", %" PRIu64
	       " of them without a plan (a DP rank lacks a tensor)\n",
	       n, first, refused);
	/* a generator that makes nothing but refusals tests nothing */
	return refused * 4 > n;
}
