/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes: the agent's tcp port for payload (xfer/frame.h), for clients that do not map the pool.
 *
 *   loop     listens and accepts; gives each connection a number, a thread and a hazard record; opens
 *            write tickets (hold_write), for what is committed is known there alone
 *   thread   one of data_threads, with an epoll of its own: HELLO, frames, read tickets, all bytes
 *
 *   accept ──mail──> thread ──ask (post)──> loop ──mail──> thread ──gone (post)──> loop
 *
 * D1: bytes of a put land only while the connection's hazard record names its version, so FENCE, COMMIT
 *     and ADOPT see it as they see a client that maps the pool; a stream that is fenced is cut, and
 *     its record cleared, by the thread, which is never inside a receive then (T6).
 * D2: a slot is pinned while its bytes are sent, and FREE is BUSY meanwhile (spec/store.md, Reads): the
 *     generation is compared under the lock that FREE takes.
 * D3: bounded: data_conns_max connections, one request each; one that stands still is closed
 *     (data_stall_ms in a request, data_idle_ms between two). A quarter of them may be unknown; one more
 *     drops the unknown one that came first, so that strangers keep nobody out.
 *
 * In a simulation there are no sockets, and none of this.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "rpc/ticket.h"
#include "store/hold.h"
#include "svc/svc.h"
#include "xfer/lane_srv.h"

struct xfa;
struct xfa_data;
struct sp_listener;

enum { XFA_DATA_LISTEN_MAX = 2, XFA_DATA_DOUBTS_MAX = 16 };

/* Counted by threads, read by the loop's scrape. */
struct xfa_data_counts {
	_Atomic uint64_t lanes_ok, lanes_busy, lanes_key, lanes_bad; /* by end of HELLO */
	_Atomic uint64_t get_ok, get_refused, get_cut, put_ok, put_refused, put_cut;
	_Atomic uint64_t bytes_in, bytes_out, corrupt;
	_Atomic uint64_t open; /* a gauge */
};

struct xfa_data_thread {
	struct xfa_data *d;
	pthread_t thread;
	int epoll, event;
	struct hello_server *hello;
	struct ticket_key *tickets;
	struct auth_limit *limit;
	struct list conns;
	uint32_t next_session;
	uint64_t noise_ns, n_noise; /* last line about what is no handshake; how many since */
	pthread_mutex_t lock;	    /* mail, stop */
	struct list mail;
	bool stop;
	_Atomic bool look;  /* something was fenced */
	_Atomic bool leave; /* some have to leave: xfa_data_conn.leave */
	struct post ended;
};

struct xfa_data_conn {
	struct list node, mail;
	struct list unknown; /* xfa_data.unknown: the loop's */
	struct xfa_data_thread *t;
	int fd;
	uint32_t idx; /* of its pin and its hazard record */
	char from[64];
	uint64_t source; /* hash of the address, without port */
	/* the thread's, but while `asking` */
	struct lane_srv_ops ops;
	struct lane_srv srv;
	uint32_t events;
	uint64_t begun_ns, moved_ns;
	_Atomic bool proven; /* set by the thread */
	_Atomic bool leave;  /* set by the loop */
	bool closing;
	/* asked of the loop */
	bool asking;
	struct post post;
	uint8_t sealed[TICKET_MAX];
	size_t n_sealed;
	enum err err;
	struct why why;
	struct lane_obj obj;
	struct pool_lane *lane;
	uint64_t generation; /* of the slot that it sends from */
	uint32_t shard;
	uint64_t pool_epoch, version;
};

struct xfa_data {
	struct xfa *x;
	struct sp_listener *listen[XFA_DATA_LISTEN_MAX];
	char addrs[XFA_DATA_LISTEN_MAX][SVC_ADDR_MAX]; /* bound */
	size_t n_listen;
	struct xfa_data_thread *threads;
	uint32_t n_threads, n_running, next;
	struct xfa_data_conn **conns; /* by number */
	uint32_t n_conns, conns_max, n_unknown;
	struct list unknown; /* xfa_data_conn.unknown, oldest first: not known to be proven */
	struct pool_lane *lanes; /* by number; the agent's first ones */
	struct {
		pthread_mutex_t lock;
		uint64_t *slots; /* by number: slot + 1, 0: none */
		uint32_t n;
		/* slots whose bytes a GET found wrong; what finds no room is found again */
		struct xfa_data_doubt {
			uint32_t slot;
			uint64_t generation;
		} doubts[XFA_DATA_DOUBTS_MAX];
		uint32_t n_doubts;
	} pins;
	struct xfa_data_counts counts;
	bool closing, free;
	void (*closed)(void *arg);
	void *arg;
};

/* Listens and starts the threads, if an address is set: agent.data_listen, else the host of a tcp
 * address of agent.listen. The pool is open. out: NULL when there is none. */
enum err xfa_data_open(struct xfa *x, struct xfa_data **out, struct why *why) MUST_CHECK;
/* Lanes are cut; closed runs later, always. NULL is fine (nothing runs). */
void xfa_data_close(struct xfa_data *d, void (*closed)(void *arg), void *arg);
/* What REGISTER tells: addresses into out, with their prefix; returns how many. d may be NULL. */
size_t xfa_data_addrs(const struct xfa_data *d,
		      char out[XFA_DATA_LISTEN_MAX][SVC_ADDR_MAX + 8]);
/* hold_free, unless a lane sends from the slot: ERR_BUSY. d may be NULL. */
enum err xfa_data_free_slot(struct xfa_data *d, struct hold *h, const struct hold_under *u,
			    uint32_t slot, uint64_t generation) MUST_CHECK;
/* Slots whose bytes a lane found wrong are to be verified: hold_doubt. True: some are. d may be NULL. */
bool xfa_data_doubts(struct xfa_data *d, struct hold *h);
/* A version or an epoch was fenced: streams look. d may be NULL. */
void xfa_data_fenced(struct xfa_data *d);

/* ---- data_thread.c ---- */

enum err xfa_data_thread_start(struct xfa_data *d, struct xfa_data_thread *t, struct why *why)
	MUST_CHECK;
/* The loop hands a connection over, new or with its answer. */
void xfa_data_mail(struct xfa_data_conn *c);
void xfa_data_wake(struct xfa_data_thread *t);
/* After `ended`: joins it and frees what it had. */
void xfa_data_thread_fini(struct xfa_data_thread *t);
