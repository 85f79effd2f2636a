/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the rpc client share: rpc_client.c (calls) and rpc_connect.c (from an address to
 * a session and back). Internal to rpc; tests may look.
 *
 *           first call              up              CHALLENGE          WELCOME
 *   [IDLE] ------------> [DIAL] ---------> [HELLO] ----------> [PROVE] --------> [UP]
 *     ^ ^                  |  next address    |                   |               |
 *     | |  no call waits   v  or round over   v                   v               |
 *     | +------------- [BACKOFF] <------------+-------------------+               |
 *     +---------------------------------- lost, no call waits ---------------------+
 *
 * I1: a call is on exactly one of: waiting, sent, or neither with its post queued (ENDING).
 * I2: calls on `sent` exist only in UP, and in HELLO and PROVE when a session is renewed.
 * I3: refused != NONE only in BACKOFF: until its end every call fails at once with that error.
 *
 * Thread: the loop's.
 */
#pragma once

#include "rpc/engine.h"
#include "rpc/rpc_env.h"

enum cl_state { CL_IDLE, CL_DIAL, CL_HELLO, CL_PROVE, CL_UP, CL_BACKOFF, CL_CLOSING };
enum call_state { CALL_NONE, CALL_WAITING, CALL_SENT, CALL_ENDING };

struct target {
	char *addr;
	const struct engine *engine;
};

struct rpc_client {
	struct loop *loop;
	struct rpc_client_opts o; /* strings in it are only those borrowed for life */
	enum cl_state state;
	struct target *targets;
	size_t n_targets, at; /* at: the one tried now, or next */
	struct eng_peer *peer;
	struct hello_client *hello;
	struct auth_session session;
	struct peer server;
	struct hello_limits theirs; /* what the server takes; 0: it did not say */
	struct eng_xchg hx;	    /* HELLO's and PROVE's */
	struct buf out, hello_out;
	/* calls */
	struct list waiting, sent;
	uint32_t n_waiting, n_sent;
	uint64_t next_id, n_answers;
	struct heap due;
	struct timer due_timer;
	uint64_t due_armed_ns;
	/* connecting */
	struct timer timer; /* handshake, or back-off */
	uint64_t backoff_ms;
	uint32_t tries, round;		 /* since it was up; of this round of addresses */
	bool up_told, down_told, proven; /* proven: something was answered in this session */
	enum err refused;		 /* I3 */
	struct why last; /* why the last try failed, or the connection was lost */
	uint32_t n_hangups;
	struct post post;
	bool post_queued;
	void (*closed)(void *arg);
	void *arg;
};

/* ---- rpc_connect.c ---- */

/* Dials if nothing is under way and a call waits. Ends no call inside. */
void client_kick(struct rpc_client *cl);
/* A new session on the connection that stands. */
void client_rehello(struct rpc_client *cl);
/* The connection is of no use any more: hangs up, calls are lost, tries anew as state allows. */
void client_break(struct rpc_client *cl, enum err e, const char *text);
/* Lets go of the connection, says nothing, starts nothing. */
void client_hangup(struct rpc_client *cl);
static inline const struct target *client_target(const struct rpc_client *cl)
{
	return &cl->targets[cl->at];
}

/* ---- rpc_client.c ---- */

/* Sends what waits, as far as inflight_max and the session allow. */
void client_pump(struct rpc_client *cl);
/* Every call on the wire: back to waiting if idempotent, else ended with ERR_CONN_LOST. */
void client_lose_sent(struct rpc_client *cl);
/* Ends every waiting call with e and cl->last. */
void client_fail_waiting(struct rpc_client *cl, enum err e);
/* Closing: the last hang-up has ended. */
void client_maybe_closed(struct rpc_client *cl);
