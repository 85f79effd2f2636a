/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept for a holder: tombstones and floors (T3, V7, V11, V14).
 *
 * Two records that bar the same thing keep the higher ceiling and the later number: that bars
 * no less than either, for as long as the later one has to be kept.
 */
#include "meta/meta_priv.h"

#include <string.h>

enum { EXACT = 0, PREFIX = 1, GROUP = 2 };

/* What a lookup compares with. */
struct tomb_key {
	uint32_t shard;
	uint8_t match;
	struct bytes tenant, text;
};

static bool tomb_eq(const struct map_node *n, const void *key)
{
	const struct tomb *t = container_of(n, struct tomb, node);
	const struct tomb_key *k = key;
	return t->shard == k->shard && t->match == k->match && t->tenant_n == k->tenant.n &&
	       t->text_n == k->text.n &&
	       (k->tenant.n == 0 || memcmp(t->text, k->tenant.p, k->tenant.n) == 0) &&
	       (k->text.n == 0 || memcmp(t->text + t->tenant_n, k->text.p, k->text.n) == 0);
}

static uint64_t tomb_hash(const struct meta_state *st, const struct tomb_key *k)
{
	uint64_t salt = (uint64_t)k->shard << 32 | (uint64_t)k->match << 16 | 't';
	return meta_hash(st, k->text.p, k->text.n,
			 meta_hash(st, k->tenant.p, k->tenant.n, salt));
}

size_t tomb_bytes_of(struct bytes tenant, struct bytes text)
{
	return sizeof(struct tomb) + tenant.n + text.n;
}

static size_t bytes_of(const struct tomb *t)
{
	return sizeof(*t) + t->tenant_n + t->text_n;
}

/* ---- shards ---- */

static struct hshard *shard_find(const struct meta_holder *h, uint32_t shard)
{
	for (uint32_t i = 0; i < h->n_shards; i++)
		if (h->shards[i].shard == shard)
			return &h->shards[i];
	return NULL;
}

static struct hshard *shard_get(struct meta_holder *h, uint32_t shard)
{
	struct hshard *s = shard_find(h, shard);
	if (s)
		return s;
	assert(h->n_shards < META_SHARDS_MAX); /* shard < 64 was checked */
	s = realloc(h->shards, (h->n_shards + 1) * sizeof(*s));
	if (!s)
		return NULL;
	h->shards = s;
	s += h->n_shards++;
	*s = (struct hshard){ .shard = shard };
	return s;
}

static bool tomb_dead(const struct meta_holder *h, const struct hshard *s, const struct tomb *t)
{
	return h->gone || t->seq <= s->settled_seq ||
	       (t->ceiling <= s->floor && t->seq < s->floor_seq);
}

/* All of this era died: they are counted so at once, and swept in time. */
static void end_era(struct meta_holder *h, struct hshard *s)
{
	s->era++;
	s->n_alive = s->alive_bytes = s->max_ceiling = s->max_seq = 0;
	sweep_later(h);
}

void sweep_later(struct meta_holder *h)
{
	h->sweep_again = true;
	if (!list_linked(&h->sweep))
		list_push_back(&h->st->sweep, &h->sweep);
}

/* ---- changing ---- */

static void count_range(struct hshard *s, const struct tomb *t, int by)
{
	if (t->match != PREFIX)
		return;
	s->lens[t->text_n] += (uint32_t)by;
	s->n_ranges += (uint32_t)by;
}

static void count_alive(struct hshard *s, struct tomb *t)
{
	s->n_alive++;
	s->alive_bytes += bytes_of(t);
	t->era = s->era;
}

static void uncount_alive(struct hshard *s, const struct tomb *t)
{
	if (t->era != s->era)
		return; /* it went with its era */
	s->n_alive--;
	s->alive_bytes -= bytes_of(t);
}

static enum err tomb_new(struct meta_holder *h, struct hshard *s, const struct tomb_key *k,
			 uint64_t hash, struct tomb **out)
{
	if (k->match == PREFIX && !s->lens) {
		s->lens = calloc(META_KEY_MAX + 1, sizeof(*s->lens));
		if (!s->lens)
			return ERR_NO_MEMORY;
	}
	struct tomb *t = malloc(tomb_bytes_of(k->tenant, k->text));
	if (!t)
		return ERR_NO_MEMORY;
	*t = (struct tomb){ .shard = (uint8_t)k->shard,
			    .match = k->match,
			    .tenant_n = (uint8_t)k->tenant.n,
			    .text_n = (uint16_t)k->text.n };
	if (k->tenant.n)
		memcpy(t->text, k->tenant.p, k->tenant.n);
	if (k->text.n)
		memcpy(t->text + k->tenant.n, k->text.p, k->text.n);
	enum err e = map_insert(&h->tombs, &t->node, hash);
	if (e != ERR_NONE) {
		free(t);
		return e;
	}
	count_range(s, t, 1);
	count_alive(s, t);
	h->tomb_bytes += bytes_of(t);
	h->st->bytes += bytes_of(t);
	h->st->n_tombs++;
	*out = t;
	return ERR_NONE;
}

enum err tomb_add(struct meta_holder *h, uint64_t seq, uint32_t shard, uint8_t match,
		  struct bytes tenant, struct bytes text, uint64_t ceiling)
{
	assert(text.n <= META_KEY_MAX && tenant.n <= UINT8_MAX && shard < META_SHARDS_MAX);
	const struct tomb_key k = { shard, match, tenant, text };
	struct hshard *s = shard_get(h, shard);
	if (!s)
		return ERR_NO_MEMORY;
	uint64_t hash = tomb_hash(h->st, &k);
	struct map_node *n = map_find(&h->tombs, hash, tomb_eq, &k);
	struct tomb *t = n ? container_of(n, struct tomb, node) : NULL;
	if (!t) {
		enum err e = tomb_new(h, s, &k, hash, &t);
		if (e != ERR_NONE)
			return e;
	} else {
		if (tomb_dead(h, s, t))
			t->ceiling = 0;
		uncount_alive(s, t);
		count_alive(s, t);
	}
	t->ceiling = MAX_OF(t->ceiling, ceiling);
	t->seq = MAX_OF(t->seq, seq);
	s->max_ceiling = MAX_OF(s->max_ceiling, t->ceiling);
	s->max_seq = MAX_OF(s->max_seq, t->seq);
	return ERR_NONE;
}

enum err floor_raise(struct meta_holder *h, uint64_t seq, uint32_t shard, uint64_t floor)
{
	struct hshard *s = shard_get(h, shard);
	if (!s)
		return ERR_NO_MEMORY;
	s->floor = MAX_OF(s->floor, floor);
	s->floor_seq = MAX_OF(s->floor_seq, seq);
	if (s->floor >= s->max_ceiling && s->floor_seq > s->max_seq)
		end_era(h, s);
	else
		sweep_later(h);
	return ERR_NONE;
}

void tombs_settle(struct meta_holder *h, uint32_t shard, uint64_t through)
{
	struct hshard *s = shard_find(h, shard);
	if (!s)
		return;
	s->settled_seq = MAX_OF(s->settled_seq, through);
	if (s->floor_seq <= s->settled_seq)
		s->floor = s->floor_seq = 0;
	if (s->max_seq <= s->settled_seq)
		end_era(h, s);
	else
		sweep_later(h);
}

/* ---- the sweep ---- */

static void tomb_free(struct meta_holder *h, struct tomb *t)
{
	struct hshard *s = shard_find(h, t->shard);
	uncount_alive(s, t);
	count_range(s, t, -1);
	map_remove(&h->tombs, &t->node);
	h->tomb_bytes -= bytes_of(t);
	h->st->bytes -= bytes_of(t);
	h->st->n_tombs--;
	free(t);
}

static void sweep_one(struct map_node *n, void *arg)
{
	struct meta_holder *h = arg;
	struct tomb *t = container_of(n, struct tomb, node);
	if (tomb_dead(h, shard_find(h, t->shard), t))
		tomb_free(h, t);
}

bool meta_state_sweep(struct meta_state *st, size_t want)
{
	if (list_empty(&st->sweep))
		return false;
	struct meta_holder *h = list_entry(st->sweep.next, struct meta_holder, sweep);
	if (h->sweep_at == 0)
		h->sweep_again = false;
	if (map_scan(&h->tombs, &h->sweep_at, want, sweep_one, h))
		return true;
	h->sweep_at = 0;
	if (!h->sweep_again) {
		list_del(&h->sweep);
		if (h->gone)
			holder_free(h);
	}
	return !list_empty(&st->sweep);
}

static void free_any(struct map_node *n, void *arg)
{
	tomb_free(arg, container_of(n, struct tomb, node));
}

void tombs_fini(struct meta_holder *h)
{
	uint64_t cursor = 0;
	while (map_scan(&h->tombs, &cursor, 1024, free_any, h))
		;
	map_fini(&h->tombs);
	for (uint32_t i = 0; i < h->n_shards; i++)
		free(h->shards[i].lens);
	free(h->shards);
	list_del(&h->sweep);
}

/* ---- reading ---- */

uint64_t tombs_alive(const struct meta_holder *h, uint64_t *bytes)
{
	uint64_t n = 0, b = 0;
	for (uint32_t i = 0; i < h->n_shards; i++) {
		n += h->shards[i].n_alive;
		b += h->shards[i].alive_bytes;
	}
	if (bytes)
		*bytes = b;
	return n;
}

uint64_t meta_floor(const struct meta_holder *h, uint32_t shard)
{
	const struct hshard *s = shard_find(h, shard);
	return s ? s->floor : 0;
}

static uint64_t ceiling_of(const struct meta_holder *h, const struct hshard *s, uint8_t match,
			   struct bytes tenant, struct bytes text)
{
	const struct tomb_key k = { s->shard, match, tenant, text };
	struct map_node *n = map_find(&h->tombs, tomb_hash(h->st, &k), tomb_eq, &k);
	const struct tomb *t = n ? container_of(n, struct tomb, node) : NULL;
	return t && !tomb_dead(h, s, t) ? t->ceiling : 0;
}

uint64_t meta_barred(const struct meta_holder *h, uint32_t shard, struct bytes tenant,
		     struct bytes key)
{
	const struct hshard *s = shard_find(h, shard);
	if (!s)
		return 0;
	uint64_t top = MAX_OF(s->floor, ceiling_of(h, s, EXACT, tenant, key));
	if (s->n_ranges == 0)
		return top;
	for (size_t n = 0; n <= key.n; n++) {
		if (s->lens[n] == 0)
			continue;
		struct bytes prefix = BYTES(key.p, n);
		top = MAX_OF(top, ceiling_of(h, s, PREFIX, tenant, prefix));
		top = MAX_OF(top, ceiling_of(h, s, PREFIX, BYTES(NULL, 0), prefix));
	}
	return top;
}

uint64_t meta_barred_group(const struct meta_holder *h, uint32_t shard, struct bytes tenant,
			   struct bytes group)
{
	const struct hshard *s = shard_find(h, shard);
	return s ? MAX_OF(s->floor, ceiling_of(h, s, GROUP, tenant, group)) : 0;
}

bool meta_holder_clear(const struct meta_holder *h, uint32_t shard)
{
	const struct hshard *s = shard_find(h, shard);
	return !s || (s->floor == 0 && s->n_alive == 0);
}

struct scan {
	const struct meta_holder *h;
	void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r);
	void *arg;
};

static void scan_one(struct map_node *n, void *arg)
{
	const struct scan *sc = arg;
	const struct tomb *t = container_of(n, struct tomb, node);
	if (tomb_dead(sc->h, shard_find(sc->h, t->shard), t))
		return;
	struct bytes id = BYTES_STR(sc->h->id), tenant = BYTES(t->text, t->tenant_n);
	struct bytes text = BYTES(t->text + t->tenant_n, t->text_n);
	struct meta_rec r = { .type = t->match == EXACT ? META_TOMB : META_RANGE };
	if (t->match == EXACT)
		r.TOMB = (struct msg_meta_tomb){ id,   t->shard,   tenant,
						 text, t->ceiling, t->ceiling };
	else
		r.RANGE = (struct msg_meta_range){ id,	 t->shard,   t->match,	tenant,
						   text, t->ceiling, t->ceiling };
	sc->fn(sc->arg, t->seq, &r);
}

bool meta_tomb_scan(const struct meta_state *st, const struct meta_holder *h, uint64_t *cursor,
		    size_t want, void (*fn)(void *arg, uint64_t seq, const struct meta_rec *r),
		    void *arg)
{
	struct scan sc = { h, fn, arg };
	/* map_scan lets its callback remove, hence takes a map that can change; this one does
	 * not */
	struct map *tombs = &meta_holder_of(st, BYTES_STR(h->id))->tombs;
	return map_scan(tombs, cursor, want, scan_one, &sc);
}

/* ---- the recount ---- */

struct recount {
	uint64_t n, bytes, ranges;
};

static void recount_shard(const struct meta_holder *h, const struct hshard *s,
			  struct recount *all)
{
	struct recount alive = { 0 }, era = { 0 };
	map_for_each (n, &h->tombs) {
		const struct tomb *t = container_of(n, struct tomb, node);
		if (t->shard != s->shard)
			continue;
		assert(t->ceiling > 0 && t->era <= s->era);
		all->n++;
		all->bytes += bytes_of(t);
		all->ranges += t->match == PREFIX;
		if (!tomb_dead(h, s, t)) {
			assert(t->era == s->era); /* an era ends only when all of it died */
			alive.n++;
		}
		if (t->era == s->era) {
			era.n++;
			era.bytes += bytes_of(t);
		}
	}
	assert(era.n == s->n_alive && era.bytes == s->alive_bytes); /* I4 */
	assert(alive.n <= s->n_alive);
	/* what died alone is still to be swept */
	assert(alive.n == s->n_alive || list_linked(&h->sweep));
}

void tombs_check(const struct meta_holder *h)
{
	struct recount all = { 0 };
	uint64_t ranges = 0;
	for (uint32_t i = 0; i < h->n_shards; i++) {
		const struct hshard *s = &h->shards[i];
		recount_shard(h, s, &all);
		for (size_t n = 0; s->lens && n <= META_KEY_MAX; n++)
			ranges += s->lens[n];
		assert((s->floor == 0) == (s->floor_seq == 0));
	}
	assert(all.n == h->tombs.n && all.bytes == h->tomb_bytes && all.ranges == ranges);
	map_check(&h->tombs);
}
