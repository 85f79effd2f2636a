/* SPDX-License-Identifier: Apache-2.0 */
#include "shelf.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct key {
	const char *tenant, *digest;
};

static bool same(const struct map_node *n, const void *key)
{
	const struct wpl_doc *d = container_of(n, const struct wpl_doc, node);
	const struct key *k = key;
	return strcmp(d->tenant, k->tenant) == 0 && memcmp(d->digest, k->digest, SHA_HEX) == 0;
}

static uint64_t hash(const struct wpl_shelf *s, const char *digest)
{
	return XXH3_64bits_withSeed(digest, SHA_HEX, s->seed);
}

void wpl_shelf_init(struct wpl_shelf *s, struct budget *mem, uint64_t limit, size_t docs_max,
		    uint64_t seed)
{
	*s = (struct wpl_shelf){ .mem = mem, .limit = limit, .seed = seed };
	map_init(&s->docs, docs_max);
	list_init(&s->lru);
}

#define LARGE_BYTES (1u << 20) /* freed in well under a millisecond */

void wpl_shelf_bury(struct wpl_shelf *s, struct wpl_remains r)
{
	if (s->bury && r.bytes > LARGE_BYTES)
		s->bury(s->ctx, &r);
	else
		wpl_remains_free(&r);
}

static void destroy(struct wpl_shelf *s, struct wpl_doc *d)
{
	budget_give(s->mem, d->bytes);
	wpl_shelf_bury(s, (struct wpl_remains){
				  .place = d->place, .stored = d->stored, .bytes = d->bytes });
	free(d);
}

/* Off the shelf; in use or not. */
static void unshelve(struct wpl_shelf *s, struct wpl_doc *d)
{
	map_remove(&s->docs, &d->node);
	s->bytes -= d->bytes;
	d->shelved = false;
	if (list_linked(&d->lru))
		list_del(&d->lru);
}

static bool evict_one(struct wpl_shelf *s)
{
	if (list_empty(&s->lru))
		return false;
	struct wpl_doc *d = list_entry(s->lru.next, struct wpl_doc, lru);
	unshelve(s, d);
	destroy(s, d);
	s->evicted++;
	return true;
}

void wpl_shelf_fini(struct wpl_shelf *s)
{
	while (evict_one(s))
		;
	assert(s->docs.n == 0);
	map_fini(&s->docs);
}

static struct wpl_doc *find(const struct wpl_shelf *s, const char *tenant, const char *digest)
{
	struct key k = { tenant, digest };
	struct map_node *n = map_find(&s->docs, hash(s, digest), same, &k);
	return n ? container_of(n, struct wpl_doc, node) : NULL;
}

static struct wpl_doc *use(struct wpl_doc *d)
{
	if (list_linked(&d->lru))
		list_del(&d->lru);
	d->refs++;
	return d;
}

struct wpl_doc *wpl_shelf_get(struct wpl_shelf *s, const char *tenant,
			      const char digest[SHA_HEX])
{
	struct wpl_doc *d = find(s, tenant, digest);
	*(d ? &s->hits : &s->misses) += 1;
	return d ? use(d) : NULL;
}

struct wpl_doc *wpl_shelf_put(struct wpl_shelf *s, struct wpl_doc *d)
{
	memcpy(d->digest, d->place ? d->place->digest : d->stored->digest, SHA_HEX);
	struct wpl_doc *twin = find(s, d->tenant, d->digest);
	if (twin) {
		destroy(s, d);
		return use(twin);
	}
	d->refs = 1;
	if (d->bytes > s->limit)
		return d;
	while ((s->bytes + d->bytes > s->limit || s->docs.n == s->docs.limit) && evict_one(s))
		;
	if (s->bytes + d->bytes <= s->limit &&
	    map_insert(&s->docs, &d->node, hash(s, d->digest)) == ERR_NONE) {
		d->shelved = true;
		s->bytes += d->bytes;
	}
	return d;
}

void wpl_doc_unref(struct wpl_shelf *s, struct wpl_doc *d)
{
	if (!d)
		return;
	assert(d->refs > 0);
	if (--d->refs > 0)
		return;
	if (d->shelved)
		list_push_back(&s->lru, &d->lru);
	else
		destroy(s, d);
}

void wpl_shelf_make_room(struct wpl_shelf *s, uint64_t n)
{
	while (budget_left(s->mem) < n && evict_one(s))
		;
}

void wpl_shelf_check(const struct wpl_shelf *s)
{
	uint64_t bytes = 0;
	size_t idle = 0, on_list = 0;
	map_check(&s->docs);
	map_for_each (n, &s->docs) {
		const struct wpl_doc *d = container_of(n, const struct wpl_doc, node);
		assert(d->shelved && (d->refs == 0) == list_linked(&d->lru));
		bytes += d->bytes;
		idle += d->refs == 0;
	}
	list_for_each (it, &s->lru)
		on_list++;
	assert(bytes == s->bytes && idle == on_list);
	assert(s->bytes <= s->limit && s->bytes <= s->mem->used);
}
