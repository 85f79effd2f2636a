/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links to holders: the commands of the mind on their way, their answers on the way back.
 *
 *   mind ── command ──> queue (one a holder and kind) ── this turn's end ──> one message a kind
 *   mind <── answer ─── reply
 *
 * L1: one message a holder and kind is on the wire; what comes meanwhile goes in the next one. An
 *     inventory is pulled piece by piece, the next one on its way while one is merged, and no more.
 * L2: a queue has a limit (B1). What does not fit, and what was lost or answered late, is forgotten
 *     here: after a back-off mind_resend() says what is still owed.
 * L3: an adoption empties the queues of its holder: older commands would be refused (V9).
 * L4: one holder that does not answer holds up nothing but its own queues.
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "loop/loop.h"

struct mind_cmd;
struct mst;
struct mst_link;
struct ticket_key;

enum {
	MST_LINKS_MAX = 4096,
	MST_LINK_QUEUE_MAX = 65536,
	MST_LINK_BATCH_MAX = 1024,
	MST_LINK_COPIES_MAX = 64
};

struct mst_links {
	struct mst_link **by_index; /* MST_LINKS_MAX of them; NULL: never spoken to */
	uint32_t n;		    /* used of them */
	struct list dirty;	    /* something to be sent */
	uint32_t n_closing;
	void (*closed)(void *arg);
	void *arg;
};

enum err mst_links_open(struct mst *m) MUST_CHECK;
/* Ends all calls; closed runs, now or later. Fine after a failed open. */
void mst_links_close(struct mst *m, void (*closed)(void *arg), void *arg);

/* mind_out.command; ctx is the master. */
void mst_links_command(void *ctx, const struct mind_cmd *c);
/* Sends what has gathered. */
void mst_links_flush(struct mst *m);

/* The key for tickets of a holder, kept. ERR_NOT_FOUND: no such holder; ERR_NO_MEMORY. */
enum err mst_links_ticket_key(struct mst *m, uint32_t index, struct ticket_key **out)
	MUST_CHECK;
/* It called: it lives. */
void mst_links_heard(struct mst *m, uint32_t index);
/* When it last did; 0: never. */
uint64_t mst_links_heard_ns(const struct mst *m, uint32_t index);
/* A beat of it was stamped, ever. */
void mst_links_beats(struct mst *m, uint32_t index);
/* It called, and no beat of it was ever seen. */
bool mst_links_beatless(const struct mst *m, uint32_t index);
