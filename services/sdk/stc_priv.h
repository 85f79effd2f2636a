/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a store session (stc.h).
 *
 *   stc.c        session, calls, their start and end
 *   stc_msg.c    items that ask the same of the same peer travel in one message; terms, attempts
 *   stc_wire.c   items to messages and back
 *   stc_hold.c   holders: connections and mapped pools; renewals
 *   stc_copy.c   copies in steps, sums, generations
 *   stc_dlane.c  data lanes to agents whose pool is not mapped; stc_remote.c: copies over them
 *   stc_flow.c   what the flows share: asking, pausing, waiting for a pool and a turn
 *   stc_put.c, stc_get.c, stc_key.c   the flows, one op table each
 *   stc_snap.c   snapshots: answers that are kept, leases that are renewed
 *
 * P1: a message never points to a flow that has left it (flow_leave); it may outlive the call.
 * P2: a call is over when all its flows are, and its flush has run.
 * P3: a flow's copy ends before the flow does, so nothing touches buffers afterwards (I1).
 */
#pragma once

#include "base/fault.h"
#include "loop/op.h"
#include "loop/pool.h"
#include "stc.h"
#include "store/object.h"
#include "xfer/lane_cli.h"
#include "xfer/lookup.h"

#include <uv.h>

enum {
	STC_STEP = 8 << 20,
	STC_PIECE = 256 << 10, /* hashed and copied while it is in the cache */
	STC_INLINE = 16 << 10,
	STC_THREADS = 2,
	STC_CALLS = 4096,
	STC_SNAP_KEYS = 1 << 20,
	STC_MSG_ITEMS = 1024, /* answers with tickets and replicas stay far below a message */
	STC_MSG_BYTES = 2 << 20,
	STC_REPLY_BYTES = 64 << 20, /* decoded */
	STC_HOLDERS_MAX = 256,	    /* connections kept while nobody uses them */
	STC_POOLS_MAX = 64,	    /* mappings likewise */
	STC_BG_MS = 10000,	    /* revokes, renewals, progress */
	STC_BG_CLOSING_MS = 200,
	STC_TICK_MS = 500,
	STC_PROGRESS_MS = 5000, /* put_start_discard_ms / 6 */
	STC_BACKOFF_MS = 10,
	STC_BACKOFF_MAX_MS = 500,
	STC_REPLICAS = 16,   /* of an object: proto/store.def */
	STC_READS_MAX = 4,   /* losses of one get: then LEASE_LOST */
	STC_TICKETS_MAX = 2, /* that a holder may refuse before the put does not begin again */
	STC_REVOKES_MAX = 65536,
	STC_LANES = 4,	     /* data lanes to one holder: a copy each */
	STC_PEERS_MAX = 256, /* holders by their lanes, kept while nobody uses them */
	STC_LANE_REST_MS =
		50, /* after a lane that failed, doubling to 1.6 s: who is back is used within 3 s */
	STC_STALL_MS = 2000,	  /* as suspect_ms: by then the master knows, too */
	STC_LANE_IDLE_MS = 30000, /* a lane that nobody uses for so long is closed */
};

/* What can be asked. One message carries items of one kind, of one call. */
enum stc_q {
	Q_PUT,
	Q_COMMIT,
	Q_DOUBT, /* OBJECT_STAT of a put whose COMMIT was lost */
	Q_QUERY,
	Q_REMOVE,
	Q_EXISTS,
	Q_STAT,
	Q_RELEASE,
	Q_RANGE, /* from here on one item a message */
	Q_LIST,
	Q_EXPLAIN,
	Q_HOLDERS,
	Q_TASK_START,
	Q_TASKS,
	Q_TASK_CANCEL,
	Q_N,
};

/* A decoded answer; counted, and not changed. */
struct stc_reply {
	uint32_t refs; /* atomic: calls are freed by any thread */
	struct arena arena;
	uint8_t *bytes;
	union {
		struct msg_put_start_rep grants;
		struct msg_results_rep results;
		struct msg_query_rep query;
		struct msg_stat_rep stats;
		struct msg_remove_range_rep range;
		struct msg_list_rep list;
		struct msg_explain_rep explain;
		struct msg_holders_rep holders;
		struct msg_task_start_rep task;
		struct msg_tasks_rep tasks;
	};
};

struct stc_holder {
	struct list node;
	struct stc *s;
	struct rpc_client *rpc;
	uint32_t users; /* flows and messages */
	uint64_t addrs_hash;
	bool old; /* it answers elsewhere now */
	char id[65];
};

enum pool_state { POOL_NONE, POOL_MAPPING, POOL_READY };
struct stc_pool {
	struct list node;
	struct stc *s;
	enum pool_state state;
	uint32_t users;
	struct list waiting; /* flows */
	struct shmpool *map;
	int conn;
	bool old;
	uint8_t id[16];
	char holder[65], host[65], fd_path[108];
	struct job job;
	struct why why;
};

/* A holder by the address of its data lanes. */
struct stc_peer {
	struct list node;
	struct stc *s;
	struct list idle, waiting; /* lanes; flows */
	uint32_t n_lanes, fails;
	enum err last;
	uint64_t not_before_ns; /* it is left alone until then */
	char holder[65], addr[257];
};

struct stc_dlane {
	struct list node; /* peer->idle, or none */
	struct stc *s;
	struct stc_peer *peer;
	int fd;
	bool started, polls;	  /* cli, poll are set up */
	struct xf_addr to;	  /* n 0: not known yet */
	struct xf_lookup *lookup; /* of it, for the flow that has the lane */
	uint64_t used_ns;	  /* last; idle ones */
	struct lane_cli cli;
	uv_poll_t poll;
	struct stc_flow *waiter; /* for its socket */
};

/* One copy in steps. */
struct stc_copy {
	struct job job;
	struct stc_flow *f;
	struct shmpool *map;
	/* set by copy_begin_*: fixed while a step runs */
	bool write;
	uint32_t n_stored;
	uint64_t size, total, half; /* of the object; to be moved; fault point */
	struct pool_lane *lane;	    /* write */
	uint32_t n_extents;
	uint64_t pool_epoch, version;  /* write */
	uint32_t slot;		       /* read */
	uint64_t generation, want_sum; /* read */
	bool verify;
	/* the worker's while a step runs */
	uint64_t moved, range_left, stored_at;
	uint32_t range, buf;
	size_t buf_at;
	uint64_t block_good; /* read with ranges: 1 + the last block that was verified */
	bool vector_good;
	struct sum_stream *stream;
	uint64_t *vector; /* obj_blocks(size) words; NULL: none */
	uint64_t sum;	  /* write: result */
	/* set by the loop, read by the worker between pieces */
	bool stop;
	/* over a data lane: the worker's while a step runs */
	bool remote, asked, ended, sends;
	bool blocked;	      /* the socket is waited for */
	bool bad, bounced;    /* bytes fail the object's sum; they landed in `bounce` */
	struct bytes ticket;  /* borrowed from the flow's reply */
	uint64_t vector_left; /* bytes of the vector still to come, or to go */
	uint32_t asked_ranges;
	size_t sent_bytes; /* of the block on its way */
	uint8_t *bounce;   /* XF_DATA_MAX, made by need */
	/* the first n_stored, n_extents of them; not zeroed */
	struct stc_buf stored[OBJ_EXTENTS_MAX]; /* the extents' addresses */
	struct extent extents[OBJ_EXTENTS_MAX];
};

struct stc_flow {
	struct stc_work *w;
	struct stc_item *it;
	struct list node; /* w->want[], s->ready, pool->waiting; or none */
	struct list held; /* s->held: granted or under a lease */
	struct timer timer;
	/* asking */
	struct stc_msg *msg;
	uint32_t msg_idx;
	struct stc_reply *reply;	   /* the last good one */
	const struct msg_put_grant *grant; /* in it */
	/* the last answer, or what went wrong; texts owned */
	enum err err;
	uint32_t retry_ms;
	char *peer, *text;
	const char *step;
	uint32_t tries; /* pauses in a row */
	uint32_t reads; /* losses of a get */
	uint32_t bad_tickets;
	int back;	  /* where PAUSE goes */
	uint64_t pause;	  /* ms, set by flow_again */
	bool redone;	  /* an attempt of it was given up */
	bool in_turn;	  /* has a copy slot */
	bool verify;	  /* get: compare with the sum: asked for, or the agent has not yet */
	bool closed;	  /* its attempt is, says the master */
	uint64_t attempt; /* 0: none yet */
	uint64_t first_term;	     /* the master answered it under; 0: none yet */
	uint64_t renew_ns, lease_ns; /* when next; how often */
	uint64_t done_at_renewal;    /* w->c->bytes_done then */
	uint32_t replica;	     /* next to be tried: place in `order` */
	uint32_t stall_ms;	     /* its lane's socket has so long */
	uint32_t others;	     /* replicas that may be tried after this one */
	uint8_t order[STC_REPLICAS]; /* of the object's replicas, best first */
	enum err kept;		     /* of a replica that may come back; ERR_NONE: none may */
	bool tried_local;
	struct stc_holder *holder;
	struct stc_pool *pool;
	struct stc_dlane *dlane; /* in place of pool; the copy's */
	struct stc_copy *copy;
	uint64_t sum;
	struct op op; /* last: not all of it is zeroed */
};

struct stc_work {
	struct stc *s;
	struct stc_call *c;
	struct list node; /* s->calls */
	struct list learn_node;
	struct list want[Q_N];
	struct post flush, end;
	bool started, flush_due, end_due;
	uint32_t left;
	struct stc_flow flows[];
};

struct stc_msg {
	struct rpc_call call;
	struct list node; /* s->msgs */
	struct stc *s;
	enum stc_q q;
	bool background;
	bool admin;		   /* to the master, as one */
	struct stc_holder *holder; /* NULL: the master */
	struct buf body;
	uint32_t n, live;
	uint64_t *attempts;    /* Q_PUT, and progress; of a snapshot: places in its page */
	struct stc_snap *snap; /* a reference: stc_snap.c has the answer; NULL: none */
	struct snap_page *page;
	struct stc_flow *flows[];
};

struct stc {
	struct stc_opts o;
	char tenant[65], host[65];
	uint8_t instance[16];
	struct pool *pool;
	uint64_t term, attempt;
	struct list calls, msgs, holders, pools, peers;
	struct list held;     /* flows to be renewed */
	struct list ready;    /* flows that wait for a turn */
	struct list learning; /* works that wait for the term */
	struct list snaps;
	uint64_t n_snap_keys; /* and those that may be soon */
	uint32_t n_calls, n_msgs, n_holders, n_pools, n_peers, n_mapping, n_active, active_max;
	struct post kick, revoke, sent, lanes, end;
	bool lanes_due, kick_due, revoke_due, sent_due, end_due, learn_sent;
	struct timer tick, lane_tick;
	uint64_t tick_ns;	/* when it is due */
	struct stc_copy *spare; /* one that is not in use: most are over at once; NULL: none */
	/* attempts to be revoked */
	struct msg_attempt *revokes;
	uint32_t n_revokes, cap_revokes;
	uint32_t n_closing;
	bool closing, halves;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* ---- stc.c ---- */

/* The call is over if nothing of it is left (P2). */
void work_maybe_end(struct stc_work *w);
/* The session is over if it is closing and nothing is left. */
void stc_maybe_end(struct stc *s);
static inline bool stc_alive(const struct stc *s)
{
	return !s->o.alive || s->o.alive(s->o.ctx);
}

/* ---- stc_msg.c ---- */

void msg_want(struct stc_flow *f, enum stc_q q);
/* The flow leaves the queue or the message it is in. */
void flow_leave(struct stc_flow *f);
void msg_flush(struct stc_work *w);
/* Gives an attempt up, soon and in the background. */
void msg_revoke(struct stc *s, uint64_t attempt, uint64_t version);
void msg_send_revokes(struct stc *s);
/* Progress and renewals of what is due among s->held. */
void msg_renew(struct stc *s);
/* n flows, n_attempts numbers; NULL: no memory. */
struct stc_msg *msg_new(struct stc *s, enum stc_q q, uint32_t n, uint32_t n_attempts);
/* Sends it for the session itself, or frees it. False: freed. */
bool msg_background(struct stc_msg *m, uint32_t method);
struct stc_reply *reply_ref(struct stc_reply *r);
void reply_unref(struct stc_reply *r);

/* ---- stc_wire.c: pure ---- */

struct stc_row {
	const char *name;
	uint32_t method;
	bool changes; /* carries the term */
	uint32_t items_max;
	void (*enc)(struct stc_msg *m, struct buf *b);
	enum err (*dec)(struct dec *d, struct stc_reply *r);
	size_t (*count)(const struct stc_reply *r);
	/* item i's status; text may be empty */
	enum err (*status)(const struct stc_reply *r, size_t i, uint32_t *retry_ms,
			   struct bytes *text);
	bool once; /* never sent twice: it would be done twice */
};
extern const struct stc_row stc_rows[Q_N];
const struct msg_put_grant *put_grant_of(const struct stc_flow *f);
/* Bytes an item adds to a message, about. */
size_t wire_bytes(const struct stc_flow *f, enum stc_q q);

/* ---- stc_hold.c ---- */

/* A user more of the holder's connection, for f. */
enum err holder_take(struct stc_flow *f, const struct msg_place *p);
void holder_drop(struct stc *s, struct stc_holder *h);
/*
 * A user more of that pool. ERR_NONE: f->pool is mapped. ERR_BUSY: f waits on it and is resumed, with
 * f->err. A holder on another host: f->dlane in its place, and the errors of dlane_take.
 */
enum err pool_take(struct stc_flow *f, const struct msg_place *p);
void pool_drop(struct stc *s, struct stc_pool *p);
void hold_close_all(struct stc *s);
void hold_closed(struct stc *s); /* one more of what is being closed has gone */
void place_name(const struct msg_place *p, char out[65]);

/* ---- stc_dlane.c, stc_remote.c ---- */

/*
 * A data lane for f's copy. ERR_NONE: f->dlane. ERR_BUSY: f waits for one and is resumed, with f->err.
 * Noted: ERR_UNREACHABLE it failed just now, ERR_UNSUPPORTED it has none, ERR_NO_MEMORY.
 */
enum err dlane_take(struct stc_flow *f, const struct msg_place *at);
/* The copy is over, with that: the lane is kept if it works. f may have none. */
void dlane_drop(struct stc_flow *f, enum err e);
/* Its data lanes failed just now: other holders first. */
bool dlane_rests(const struct stc *s, const struct msg_place *at);
/* f is resumed when its lane's socket can go on, or has stood still for too long. False: no watch on it. */
bool dlane_wait(struct stc_flow *f);
/* It waits no more and is resumed. False: it did not wait. */
bool dlane_unwait(struct stc_flow *f);
/* Who waits has its turn. */
void dlane_next(struct stc *s);
void dlane_close_all(struct stc *s);
/* As copy_begin_put, _get; ERR_NO_MEMORY, ERR_NOT_READY (no ticket). */
enum err remote_begin_put(struct stc_flow *f, const struct msg_put_grant *g);
enum err remote_begin_get(struct stc_flow *f, const struct msg_object *o,
			  const struct msg_replica *r);
void remote_step(struct job *j);
/* As flow_copy, flow_copy_stop. */
bool remote_copy(struct stc_flow *f);
void remote_stop(struct stc_flow *f);

/* ---- stc_snap.c ---- */

/* Is there room for its keys? Then they are counted. ERR_BUSY. */
enum err snap_room(struct stc *s, const struct stc_call *c) MUST_CHECK;
/* An STC_SNAPSHOT call is over: its keys join, or its items fail. */
void snap_take(struct stc_work *w);
/* What the snapshot knows of the flow's key becomes its reply. False: noted, it is not to be read. */
bool snap_use(struct stc_flow *f);
/* The master was asked again for a key of a snapshot: notes LEASE_LOST when its version has gone. */
void snap_asked(struct stc_flow *f);
/* The answer to a message of a snapshot; NULL: none came. */
void snap_answered(struct stc_msg *m, struct stc_reply *r);
/* Renews what is due. Milliseconds until it is to be called again. */
uint64_t snap_tick(struct stc *s);
void snap_close_all(struct stc *s);

/* ---- stc_copy.c ---- */

/* Before the first step. ERR_NO_MEMORY; ERR_BAD_MESSAGE extents that are none of the pool or too
 * small; ERR_STALE_*: nothing may be written (put). */
enum err copy_begin_put(struct stc_flow *f, const struct msg_put_grant *g);
/* Do the ranges lie in the object and fit into the buffers? Sets it->bytes. ERR_INVALID_PARAMS,
 * ERR_TOO_LARGE; noted. */
enum err copy_check_get(struct stc_flow *f, uint64_t size);
enum err copy_begin_get(struct stc_flow *f, const struct msg_object *o,
			const struct msg_replica *r);
/* A step, on a worker or the loop: ERR_NONE; job.err says how it went. */
void copy_step(struct job *j);
static inline bool copy_over(const struct stc_copy *c)
{
	return c->moved == c->total && (!c->remote || c->ended);
}
void copy_end(struct stc_flow *f);

/* ---- stc_flow.c ---- */

/* Notes an error as the flow's last: peer and step for its text. */
void flow_note(struct stc_flow *f, enum err e, uint32_t retry_ms, const char *peer,
	       const char *step, const char *fmt, ...) PRINTF_LIKE(6, 7);
/* The last error becomes the flow's (op_fail). */
void flow_fail(struct stc_flow *f);
/* The master says that its attempt is closed. */
void flow_closed(struct stc_flow *f);
/* May the last error pass? */
bool flow_may_pass(const struct stc_flow *f);
/* The same, with time left: it is tried again. */
bool flow_again(struct stc_flow *f);
/* Steps */
int flow_ask(struct stc_flow *f, enum stc_q q); /* OP_WAIT, or 0 when the answer is there */
void flow_ask_stop(struct op *op);
int flow_pause(struct op *op);
void flow_pause_stop(struct op *op);
void flow_wait_stop(struct op *op); /* waits in a list */
void flow_copy_stop(struct op *op);
/* Holds a copy slot. False: it waits in s->ready and is resumed. */
bool flow_turn(struct stc_flow *f);
void flow_turn_over(struct stc_flow *f);
/* The next step of the copy. True: it was done at once; false: wait. */
bool flow_copy(struct stc_flow *f);
void flow_hold(struct stc_flow *f, uint64_t every_ms);
/* The tick comes within ms. */
void tick_in(struct stc *s, uint64_t ms);
/* Everything it holds goes back. */
void flow_let_go(struct stc_flow *f);

extern const struct op_table *const stc_put_table, *const stc_get_table, *const stc_key_table;
