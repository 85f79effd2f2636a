/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's methods (proto/store.def 100-116, proto/holder.def 200-203) and what they share.
 *
 * F1: the tenant is that of the caller's key, never of the message (I3 of auth.h); an admin acts on
 *     "default".
 * F2: a client is the instance of its HELLO: nobody closes another's attempt numbers (V4).
 * F3: a holder speaks for itself: the id in its message is that of its HELLO.
 *
 * Handlers of methods that never wait answer at once; the others are batches (batch.h).
 * Thread: the loop's.
 */
#pragma once

#include "batch.h"
#include "rpc/rpc.h"

#define MST_METHODS 21
extern const struct rpc_method mst_methods[MST_METHODS];

void mst_put_start(void *ctx, struct rpc_req *r);
void mst_put_revoke(void *ctx, struct rpc_req *r);
void mst_put_progress(void *ctx, struct rpc_req *r);
void mst_query(void *ctx, struct rpc_req *r);
void mst_release(void *ctx, struct rpc_req *r);
void mst_renew(void *ctx, struct rpc_req *r);
void mst_remove(void *ctx, struct rpc_req *r);
void mst_remove_range(void *ctx, struct rpc_req *r);
void mst_exists(void *ctx, struct rpc_req *r);
void mst_object_stat(void *ctx, struct rpc_req *r);
void mst_list(void *ctx, struct rpc_req *r);
void mst_explain(void *ctx, struct rpc_req *r);
void mst_holders(void *ctx, struct rpc_req *r);
void mst_forget(void *ctx, struct rpc_req *r);
void mst_task_start(void *ctx, struct rpc_req *r);
void mst_tasks(void *ctx, struct rpc_req *r);
void mst_task_cancel(void *ctx, struct rpc_req *r);
void mst_register(void *ctx, struct rpc_req *r);
void mst_publish(void *ctx, struct rpc_req *r);
void mst_confirm(void *ctx, struct rpc_req *r);
void mst_report(void *ctx, struct rpc_req *r);

/* ---- shared ---- */

/* When to ask again what is not there yet. */
#define MST_RETRY_MS 50

/* F1 */
struct bytes mst_tenant(const struct rpc_req *r);
/* F2; who borrows from r and client. ERR_FORBIDDEN. */
enum err mst_who(const struct rpc_req *r, const uint8_t client[16], uint64_t term,
		 struct mind_who *who, struct why *why) MUST_CHECK;
/* F3, and its index. ERR_FORBIDDEN, ERR_NOT_IN_ROSTER. */
enum err mst_caller(struct mst *m, const struct rpc_req *r, struct bytes holder,
		    uint32_t *index, struct why *why) MUST_CHECK;
/* Likewise, and what it says it acts under is what the mind knows: ERR_STALE_TERM, ERR_STALE_EPOCH,
 * ERR_BAD_MESSAGE (none given). */
enum err mst_caller_under(struct mst *m, const struct rpc_req *r, struct bytes holder,
			  const struct msg_under *in, uint32_t *index, struct mind_under *out,
			  struct why *why) MUST_CHECK;
/* One shard now (design section 6). ERR_INVALID_PARAMS. */
enum err mst_check_shard(const struct rpc_req *r, struct why *why) MUST_CHECK;
/* There is no mind: why. ERR_RECOVERING, or ERR_NOT_READY when the meta log is broken. */
enum err mst_no_term(struct mst *m, struct why *why) MUST_CHECK;
/* text borrows from why. */
struct msg_result mst_result(enum err e, uint32_t retry_ms, const struct why *why);

/* A synchronous method: shard, term, then the body. False: it is answered. a: caller's, arena_fini().
 * mind: told the time. */
struct mst_ask {
	struct mst *m;
	struct rpc_req *req;
	struct mind *mind;
	struct arena arena;
	struct why why;
};
bool mst_ask(struct mst_ask *a, struct mst *m, struct rpc_req *r);
/* Answers with the error and ends the ask. */
void mst_ask_refuse(struct mst_ask *a, enum err e);
/* Answers with an encoded message and ends the ask. */
void mst_ask_reply(struct mst_ask *a, struct buf *b);
/* n results as RESULTS_REP; res lies in the arena. */
void mst_ask_results(struct mst_ask *a, struct msg_result *res, size_t n);
/* mind_lookup for one key; recovering_as_miss: NOT_FOUND in place of RECOVERING (T1). */
enum err mst_look(struct mst_ask *a, const struct msg_keys_req *q, size_t i, uint32_t lease_ms,
		  struct mind_object *o, struct why *why) MUST_CHECK;
/* A copy of why's text in the arena; empty without memory. */
struct bytes mst_text(struct arena *a, const struct why *why);
/* msg_extents in the arena; false: no memory. */
bool mst_extents(struct arena *a, const struct extent *e, size_t n, struct list_extent *out);

/* ---- places of an answer ---- */

struct mst_places {
	struct mst *m;
	struct arena *arena;
	struct msg_place *p;
	size_t n, cap;
	uint32_t *of; /* by holder: place + 1 */
	uint32_t n_of;
};
/* false: no memory. n_max: replicas that may come. */
bool mst_places_init(struct mst_places *s, struct mst *m, struct arena *a, size_t n_max);
/* The place of a holder, copied into the arena once. */
bool mst_place(struct mst_places *s, uint32_t holder, uint32_t *place);
