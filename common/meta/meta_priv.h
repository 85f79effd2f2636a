/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of struct meta_state, for meta_state.c, meta_tomb.c and meta_named.c alone.
 */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "meta/meta_state.h"

#define META_SHARDS_MAX 64
#define META_KEY_MAX	1024

/* Tombstones: the exact ones have match 0. Dead: see tomb_dead(). */
struct tomb {
	struct map_node node;
	uint64_t ceiling, seq;
	uint32_t era; /* of its shard when it was last written */
	uint16_t text_n;
	uint8_t shard, match, tenant_n;
	uint8_t text[]; /* tenant_n bytes of tenant, text_n of key or prefix */
};

/*
 * What a holder keeps for one shard. An era ends when every tombstone of it died at once: those
 * of older eras are counted dead, however long the sweep takes to find them.
 */
struct hshard {
	uint32_t shard, era;
	uint64_t floor, floor_seq;     /* 0: none */
	uint64_t settled_seq;	       /* tombstones up to it are dead */
	uint64_t n_alive, alive_bytes; /* of this era, the few that died alone included */
	uint64_t max_ceiling, max_seq; /* of this era */
	uint32_t *lens; /* how many ranges of each prefix length; NULL: no range yet */
	uint32_t n_ranges;
};

struct meta_holder {
	struct map_node node;
	struct meta_state *st;
	char id[65];
	char *strings; /* addrs, host and fd_path, NUL-ended, one block */
	const char *addrs[8];
	size_t n_addrs;
	const char *host, *fd_path;
	uint32_t kind;
	uint8_t pool[16];
	bool away;
	uint64_t away_since, term, adoption, row_seq;
	struct map tombs;
	uint64_t tomb_bytes; /* dead ones included */
	struct hshard *shards;
	uint32_t n_shards;
	struct list sweep; /* on meta_state.sweep: it may have dead ones */
	uint64_t sweep_at; /* cursor */
	bool sweep_again;  /* more died since the scan began */
	bool gone;	   /* forgotten: all its tombstones are dead, then it is freed */
	uint64_t plan_id;  /* of meta_state.plan_id: planned is valid */
	uint64_t planned, planned_bytes;
};

struct claim {
	struct map_node node;
	uint64_t seq;
	uint16_t name_n, value_n;
	uint8_t space_n, owner_n;
	uint8_t text[]; /* space, name, owner, value */
};

struct view {
	struct map_node node;
	uint64_t seq, term, epoch;
	uint32_t blob_n;
	uint16_t group_n;
	uint8_t tenant_n;
	uint8_t text[]; /* tenant, group, blob */
};

struct meta_state {
	uint64_t seed, term, term_seq, last_seq;
	struct map holders, claims, views;
	uint64_t n_away, n_tombs, bytes; /* tombs: dead ones included */
	struct list sweep;
	/* what was admitted since meta_state_plan, and not yet applied */
	struct {
		uint64_t id, holders, claims, views, bytes, term;
	} plan;
};

uint64_t meta_hash(const struct meta_state *st, const void *p, size_t n, uint64_t salt);
struct meta_holder *meta_holder_of(const struct meta_state *st, struct bytes id);

/* meta_tomb.c */
enum err tomb_add(struct meta_holder *h, uint64_t seq, uint32_t shard, uint8_t match,
		  struct bytes tenant, struct bytes text, uint64_t ceiling) MUST_CHECK;
enum err floor_raise(struct meta_holder *h, uint64_t seq, uint32_t shard, uint64_t floor)
	MUST_CHECK;
void tombs_settle(struct meta_holder *h, uint32_t shard, uint64_t through);
/* Alive ones, of all shards; bytes may be NULL. */
uint64_t tombs_alive(const struct meta_holder *h, uint64_t *bytes);
void tombs_fini(struct meta_holder *h);
/* h goes on the list of those the sweep looks at. */
void sweep_later(struct meta_holder *h);
size_t tomb_bytes_of(struct bytes tenant, struct bytes text);
void tombs_check(const struct meta_holder *h);

/* meta_named.c */
enum err claim_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_claim *m)
	MUST_CHECK;
enum err unclaim_apply(struct meta_state *st, const struct msg_meta_unclaim *m) MUST_CHECK;
enum err view_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_view *m)
	MUST_CHECK;
enum err unview_apply(struct meta_state *st, const struct msg_meta_unview *m) MUST_CHECK;
struct claim *claim_of(const struct meta_state *st, struct bytes space, struct bytes name);
struct view *view_of(const struct meta_state *st, struct bytes tenant, struct bytes group);
struct bytes claim_owner(const struct claim *c);
void named_fini(struct meta_state *st);
/* Checks, and returns the bytes counted again. */
uint64_t named_check(const struct meta_state *st);

/* meta_holder.c */
enum err holder_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_holder *m)
	MUST_CHECK;
enum err forget_apply(struct meta_state *st, const struct msg_meta_forget *m) MUST_CHECK;
void holder_free(struct meta_holder *h);
/* The HOLDER record that makes h's row again. addrs: room for 8. */
struct meta_rec holder_row(const struct meta_holder *h, struct bytes addrs[8]);
