/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One socket of the nng library as a loop sees it: pipes (connections) that come and go, and an end
 * that cannot hold the loop up. Used by nng_server.c and nng_peer.c alone.
 *
 * nng calls pipe callbacks on its own threads. Here they do no more than fill a table of fixed
 * size under a lock and post; the loop reads the table in its drain.
 *
 * I1: pipes_max pipes are in the table at most; one more is refused before SP starts on it (B1).
 * I2: one expectation of the loop's inbox stands from nsock_open to closed: notices come unasked.
 * I3: nng_close runs on a thread of its own, because it waits for nng's one reaper thread, and that
 *     one can hang for ever in 1.5.2: when a connection is closed on our side (also by nng itself,
 *     after a failed write to a peer that went) just between two reads of an arriving message, the
 *     pipe's receive never completes (upstream issue 1543, fixed after 1.7; measured here: once in
 *     some hundred closes under load). After CLOSE_MS we log it, leave socket, thread and memory
 *     behind, and go on. From then on the process reports no ends of pipes any more.
 * I4: a pipe that was dialed is never dialed again by nng: the dialer is closed in the callback
 *     that reports its end. (nng draws its wait as (int)random % backoff: half of all waits are
 *     negative, so that it dials at once, whatever RECONNMINT says.)
 *
 * Thread: the loop's, but for what is marked.
 */
#pragma once

#include "base/log.h"
#include "loop/loop.h"

#include <nng/nng.h>

struct nsock;
struct nng_note;

struct nsock_ops {
	/* A pipe has come: server, before any of its messages; peer, when it may be used. */
	void (*up)(struct nsock *s, uint32_t pipe);
	/* It is gone. conn: what nsock_set_conn gave it, NULL for none. */
	void (*gone)(struct nsock *s, uint32_t pipe, void *conn);
	/* n more pipes were refused: over the limit, or nsock_refuse. NULL: nobody counts. */
	void (*refused)(struct nsock *s, uint64_t n);
	/* The end. stuck: nng still holds callbacks into s: its memory must never be freed (I3). */
	void (*closed)(struct nsock *s, bool stuck);
};

struct nsock {
	nng_socket id;
	struct loop *loop;
	const struct log *log;
	const struct nsock_ops *ops;
	nng_dialer dialer; /* peer; set before it is started */
	/* private */
	bool is_peer, open, has_thread;
	pthread_t thread; /* close_main */
	struct post post, close_post;
	struct timer close_timer;
	pthread_mutex_t lock; /* what follows */
	struct nng_note *notes;
	int32_t *buckets;
	uint32_t n_notes, n_buckets, in_use;
	int32_t free, q_head, q_tail;
	uint64_t refused;
	bool posted, refuse_all, dead, nng_done, closing, dialer_busy;
	pthread_cond_t dialer_idle;
};

/*
 * Takes over id, an open socket; no dialer or listener of it may have been started. s is zeroed
 * memory with loop, log, ops set.
 *
 * ERR_NO_MEMORY  id is still the caller's
 */
enum err nsock_open(struct nsock *s, nng_socket id, bool is_peer, uint32_t pipes_max)
	MUST_CHECK;
/* From now on every new pipe is refused. */
void nsock_refuse(struct nsock *s);
/* False: the pipe is gone already, or unknown. */
bool nsock_set_conn(struct nsock *s, uint32_t pipe, void *conn);
/* NULL when it is gone or has none. */
void *nsock_conn(struct nsock *s, uint32_t pipe);
/* Contexts are closed and aios freed by now. ops->closed follows; gone may still come before. */
void nsock_close(struct nsock *s);

/* An nng_err as ours. what the other end did is CONN_LOST or UNREACHABLE. */
enum err nng_to_err(int rv);
