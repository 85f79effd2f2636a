/* SPDX-License-Identifier: Apache-2.0 */
/* What links.c (queues, connections, back-off) and link_codec.c (messages) share. */
#pragma once

#include "master.h"
#include "rpc/rpc.h"

#define LINK_OPS   (MIND_COPY + 1)
#define LINK_LANES (LINK_OPS + 1) /* INVENTORY has two */

/* A command, kept. */
struct link_cmd {
	struct list node;
	struct mind_cmd c; /* extents: behind it */
	struct extent extents[];
};

/* Commands of one kind. */
struct lane {
	struct mst_link *link;
	enum mind_op op;
	struct list queue, sent;
	size_t n_queue, n_sent;
	struct mind_under under; /* of those sent */
	struct rpc_call call;
	struct buf body;
	bool busy, dropped; /* dropped: the answer is nobody's any more (L3) */
	bool ahead;	    /* a piece that the mind has not asked for yet */
};

struct mst_link {
	struct mst *m;
	uint32_t index;
	char id[HOLDER_MAX + 1];
	struct rpc_client *client;
	char *addrs; /* those of client, one a line */
	struct ticket_key *key;
	struct lane lanes[LINK_LANES];
	struct list dirty;
	uint64_t heard_ns;
	bool beats;
	/* after a failure */
	struct timer retry;
	uint32_t backoff_ms, n_busy;
	bool lost, refused;
	struct mind_under refused_under;
	enum err refused_err;
};

/* Moves up to MST_LINK_BATCH_MAX commands of one adoption from queue to sent and encodes them. */
enum err link_encode(struct lane *l, uint32_t inventory_bytes) MUST_CHECK;
/* link_copy.c. Of the commands sent those that are out of date go. */
enum err link_encode_copies(struct lane *l, const struct msg_under *u, struct arena *a)
	MUST_CHECK;
enum err link_copied(struct lane *l, struct dec *d, struct mind *mind) MUST_CHECK;
/* The whole message was refused by a holder that otherwise obeys: each of its copies was. false: it is another
 * kind, or another error. */
bool link_copies_refused(struct lane *l, enum err e, uint32_t retry_ms);
/* The reply's body: feeds the mind. ERR_BAD_MESSAGE ...: it cannot be understood; STALE_*: refused. */
enum err link_answer(struct lane *l, struct bytes body, struct why *why) MUST_CHECK;
void link_drop(struct list *cmds, size_t *n);
bool link_same_under(const struct mind_under *a, const struct mind_under *b);
/* Asks for the next piece while the one that came by lane l is merged. */
void link_ahead(struct lane *l, uint64_t cursor);
