/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines facing each other on one real loop, below the rpc core: a server that echoes, holds
 * or drops, and a client that counts. For tests of engines; thread: the test's.
 */
#pragma once

#include "rpc/engine.h"

#define FIX_XCHG_MAX 1024

struct eng_fix;

enum fix_mode { FIX_ECHO, FIX_HOLD, FIX_DROP };

/* The server's side. */
struct fix_server {
	const struct engine *eng;
	struct loop *loop;
	struct eng_server *s;
	struct rpc_counters counters;
	struct log log;
	char addr[300];
	enum fix_mode mode;
	bool know; /* every connection becomes known with its first request */
	uint32_t n_requests, n_closed_conns;
	size_t last_bytes;
	struct eng_token held[FIX_XCHG_MAX];
	uint32_t n_held;
	struct eng_conn *last_conn;
	bool closed;
};

struct fix_xchg {
	struct eng_xchg x;
	struct fix_client *client;
	bool out, done;
	enum err err;
	uint8_t *reply; /* owned copy */
	size_t n_reply;
};

struct fix_client {
	const struct engine *eng;
	struct loop *loop;
	struct eng_peer *p;
	struct log log;
	uint32_t n_up, n_down, n_done, n_ok;
	bool down_before_done; /* engine.h: every exchange had its done before down */
	enum err down_err;
	char down_text[320];
	struct fix_xchg xchg[FIX_XCHG_MAX];
	bool closed;
};

/* Small and quick: 8 MiB messages, 2 s handshake. */
struct eng_limits fix_limits(void);

/* Asserts that it listens. limits, tls: NULL for the usual, none. */
void fix_serve(struct fix_server *f, struct loop *l, const struct engine *eng, const char *addr,
	       const struct eng_limits *limits, const struct tls_files *tls);
/* Answers held[0..n_held) with text. */
void fix_release(struct fix_server *f, const char *text);
/* Drains, closes, runs the loop until it is closed; all tokens must have ended. */
void fix_server_end(struct fix_server *f);

/* ERR_NONE: up or down follows. */
enum err fix_dial(struct fix_client *c, struct loop *l, const struct engine *eng,
		  const char *addr, const struct eng_limits *limits,
		  const struct tls_files *tls, struct why *why);
/* fix_dial, and run until it is up; asserts. */
void fix_connect(struct fix_client *c, struct loop *l, const struct engine *eng,
		 const char *addr);
/* Sends n bytes, a pattern of seed i, as exchange i. */
enum err fix_send(struct fix_client *c, uint32_t i, size_t n);
/* Did exchange i bring the n bytes that fix_send(c, i, n) sent? */
bool fix_echoed(const struct fix_client *c, uint32_t i, size_t n);
/* Hangs up and runs the loop until it is closed. */
void fix_client_end(struct fix_client *c);

/* Turns the loop until cond is true; false after ms. */
#define RUN_UNTIL(l, cond, ms)                                                   \
	({                                                                       \
		uint64_t end_ = clock_real.now_ns(&clock_real) + (ms)*NS_PER_MS; \
		fix_tick_start(l);                                               \
		while (!(cond) && clock_real.now_ns(&clock_real) < end_)         \
			loop_run_once(l, true);                                  \
		fix_tick_stop(l);                                                \
		(cond);                                                          \
	})
/* A timer that wakes the loop every 5 ms, so that RUN_UNTIL sees its end. */
void fix_tick_start(struct loop *l);
void fix_tick_stop(struct loop *l);
/* Turns the loop for ms. */
void fix_run(struct loop *l, uint64_t ms);
/* A free loopback port, as tcp://127.0.0.1:PORT with the scheme given ("tcp", "tls+tcp"). */
void fix_addr(char *out, size_t size, const char *scheme);
/* A blocking connection to 127.0.0.1:port; asserts. */
int fix_tcp(uint16_t port);
/* Entries in /proc/self/task, and how many of them are named nng:... */
int fix_threads(int *n_nng);
