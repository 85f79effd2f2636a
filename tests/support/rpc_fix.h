/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An rpc server and its clients on one real loop, for tests of the core and of whatever stands on
 * it. Methods: what a test of requests needs (see enum). Thread: the test's.
 *
 *	struct rpc_fix f;
 *	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
 *	struct rpc_client *cl = rpc_fix_client(&f, NULL);
 *	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES_STR("hi") };
 *	rpc_fix_call(&f, cl, &c);		runs the loop until it is done
 *	rpc_fix_close_client(&f, cl);
 *	rpc_fix_close(&f);
 */
#pragma once

#include "rpc/auth.h"
#include "rpc/rpc.h"

enum {
	FIX_ECHO_M = 50,   /* sync: the body comes back */
	FIX_AECHO_M = 51,  /* the same, on the next turn */
	FIX_HOLD_M = 52,   /* kept until rpc_fix_release */
	FIX_PARK_M = 53,   /* the same, parked; BUSY when there is no room */
	FIX_FAIL_M = 54,   /* EXISTS, "the words of the server" */
	FIX_HOLDER_M = 55, /* only role holder may */
	FIX_BIG_M = 56,	   /* body: u32 n, little endian; answers n bytes of 'x' */
};

#define FIX_HELD_MAX 4096
#define FIX_LINES    64

struct rpc_fix {
	struct loop loop;
	struct keyring *keys;
	uint8_t secret[AUTH_KEY_BYTES];
	uint8_t instance[16];
	struct rpc_server *srv;
	struct rpc_server_opts srv_opts;
	char addr[300];
	struct rpc_req *held[FIX_HELD_MAX]; /* NULL: gone */
	uint32_t n_held, n_gone, n_run;
	uint64_t term;
	uint64_t last_deadline_ns;
	struct peer last_peer;
	bool srv_closed;
	uint32_t n_clients_closed;
	/* log lines of server and clients, in order */
	struct log slog, clog;
	struct log_capture scap, ccap;
	char slines[FIX_LINES][512], clines[FIX_LINES][512];
	uint32_t n_slines, n_clines;
};

/* One call and its outcome. Zero it but for method, body, deadline_ms, not_idempotent. */
struct fix_call {
	uint32_t method;
	struct bytes body;
	uint32_t deadline_ms; /* 0: 10 s */
	bool not_idempotent;
	struct bytes want; /* compared with the reply: same */
	uint32_t tag;	   /* the test's */
	/* outcome */
	bool same;
	bool done;
	uint32_t n_done;
	enum err err;
	uint64_t term;
	uint32_t retry_ms;
	uint8_t reply[256]; /* the first bytes */
	size_t n_reply;
	struct rpc_call call;
	struct rpc_fix *fix;
};

/* opts may be NULL: keys, log, instance, name and role are filled in where they are 0. */
void rpc_fix_open(struct rpc_fix *f, const char *addr, const struct rpc_server_opts *opts);
/* The server alone, again, on f->addr. */
void rpc_fix_serve(struct rpc_fix *f, const char *addr);
/* Answers what is held, closes the server, runs until it is gone. */
void rpc_fix_stop_server(struct rpc_fix *f);
/* opts may be NULL: likewise, and the address is f->addr. */
struct rpc_client *rpc_fix_client(struct rpc_fix *f, const struct rpc_client_opts *opts);
void rpc_fix_close_client(struct rpc_fix *f, struct rpc_client *cl);
/* Closes server and loop; asserts that the counters are back at zero. */
void rpc_fix_close(struct rpc_fix *f);

void rpc_fix_start(struct rpc_fix *f, struct rpc_client *cl, struct fix_call *c);
void rpc_fix_wait(struct rpc_fix *f, struct fix_call *c);
/* start and wait */
void rpc_fix_call(struct rpc_fix *f, struct rpc_client *cl, struct fix_call *c);
/* Answers everything held with its own body. */
void rpc_fix_release(struct rpc_fix *f);
/* Runs the loop for ms. */
void rpc_fix_run_ms(struct rpc_fix *f, uint32_t ms);
/* Runs the loop until *flag, at most ms; asserts that it came. */
#define RPC_FIX_UNTIL(f, cond, ms)                                           \
	do {                                                                 \
		uint64_t end_ = clock_after_ms(loop_now_ns(&(f)->loop), ms); \
		while (!(cond) && loop_now_ns(&(f)->loop) < end_)            \
			rpc_fix_run_ms(f, 1);                                \
		assert(cond);                                                \
	} while (0)
struct rpc_counters rpc_fix_counters(const struct rpc_fix *f);
/* How many captured lines of one side hold this text. */
uint32_t rpc_fix_lines(const struct rpc_fix *f, bool server, const char *text);
