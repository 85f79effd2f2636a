/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements and stored manifests that were read once, found again by digest: a caller that names
 * one need not send it. A tenant finds only what that tenant sent.
 *
 * S1: `bytes` is the sum over the documents on the shelf; each is charged to the budget as long as it
 *     lives, on the shelf or not.
 * S2: what is not in use and on the shelf never exceeds limit bytes and `docs.limit` documents.
 * S3: a document in use (refs) is not freed.
 *
 * Pure but for the heap. Thread: the loop's; a document's content is immutable and may be read by
 * workers while a reference is held.
 */
#pragma once

#include "base/budget.h"
#include "base/list.h"
#include "base/map.h"
#include "reshard/stored.h"

#define WPL_TENANT_MAX 64

struct wpl_doc {
	struct place *place; /* one of the two */
	struct stored *stored;
	char tenant[WPL_TENANT_MAX + 1];
	char digest[SHA_HEX];
	size_t bytes;
	/* private */
	struct map_node node;
	struct list lru; /* on the shelf and not in use */
	uint32_t refs;
	bool shelved;
};

/* What is left of a document, a text or work that was stopped; taken by who frees it. */
struct wpl_remains {
	struct place *place;
	struct stored *stored;
	uint8_t *text;
	struct left left;
	size_t bytes; /* about */
};
static inline void wpl_remains_free(struct wpl_remains *r)
{
	place_free(r->place);
	stored_free(r->stored);
	free(r->text);
	left_free(&r->left);
}

struct wpl_shelf {
	struct budget *mem; /* borrowed */
	/* Frees what is large elsewhere: giving a gigabyte back to the system takes longer than a loop may
	 * stand (L4). NULL: it is freed at once. Set after init. */
	void (*bury)(void *ctx, const struct wpl_remains *r);
	void *ctx;
	uint64_t limit; /* bytes on the shelf */
	uint64_t bytes;
	uint64_t hits, misses, evicted;
	/* private */
	struct map docs;
	struct list lru; /* the longest unused first */
	uint64_t seed;
};

void wpl_shelf_init(struct wpl_shelf *s, struct budget *mem, uint64_t limit, size_t docs_max,
		    uint64_t seed);
/* No document may be in use. */
void wpl_shelf_fini(struct wpl_shelf *s);
/* The document, with a reference; NULL: none (a miss is counted). */
struct wpl_doc *wpl_shelf_get(struct wpl_shelf *s, const char *tenant,
			      const char digest[SHA_HEX]);
/*
 * Takes d (calloc'ed, place or stored set) with its charge of d->bytes, fills in its digest, and puts
 * it on the shelf if it fits there. The answer has a reference: d, or the equal one that was there.
 */
struct wpl_doc *wpl_shelf_put(struct wpl_shelf *s, struct wpl_doc *d);
void wpl_doc_unref(struct wpl_shelf *s, struct wpl_doc *d);
/* Frees it, here or elsewhere. */
void wpl_shelf_bury(struct wpl_shelf *s, struct wpl_remains r);
/* Lets unused documents go, the longest unused first, until the budget has n bytes left, or none is. */
void wpl_shelf_make_room(struct wpl_shelf *s, uint64_t n);
/* S1, S2 by a recount. */
void wpl_shelf_check(const struct wpl_shelf *s);
