/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole rpc stack, HELLO and message tags included, over all pairings of engines and transports;
 * and the sp engine against programs that know nng and nothing of ours.
 */
#include "rpc_fix.h"
#include "support/eng_fix.h"
#include "support/leak.h"
#include "support/tls_fix.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(stack, .timeout = 60);

struct pair {
	char server[4], client[4], scheme[8];
};

#define PAIRS(scheme)                                                             \
	{ "sp", "sp", scheme }, { "sp", "nng", scheme }, { "nng", "sp", scheme }, \
	{                                                                         \
		"nng", "nng", scheme                                              \
	}
/* Criterion copies the rows into its workers: no pointers in them. */
static struct pair rows[] = { PAIRS("tcp"), PAIRS("ipc"), PAIRS("tls+tcp") };

struct stage {
	struct rpc_fix f;
	struct tls_fix certs;
	bool tls;
	char addr[64];
	char who[64];
	struct rpc_server_opts server;
	struct rpc_client_opts client;
};

static struct stage stage;

static void stage_open(struct stage *g, const struct pair *p)
{
	*g = (struct stage){ .server.engine = strcmp(p->server, "sp") == 0 ? "sp" : "nng",
			     .client.engine = strcmp(p->client, "sp") == 0 ? "sp" : "nng" };
	snprintf(g->who, sizeof(g->who), "%s <- %s over %s", p->server, p->client, p->scheme);
	g->tls = strcmp(p->scheme, "tls+tcp") == 0;
	if (g->tls) {
		tls_fix_make(&g->certs);
		g->server.tls = (struct tls_files){ .cert = g->certs.server,
						    .key = g->certs.server_key };
		g->client.tls = (struct tls_files){ .ca = g->certs.ca };
	}
	if (strcmp(p->scheme, "ipc") == 0)
		snprintf(g->addr, sizeof(g->addr), "ipc:///tmp/pml_stack_%d.sock",
			 (int)getpid());
	else
		snprintf(g->addr, sizeof(g->addr), "%s://127.0.0.1:0", p->scheme);
}

static void stage_close(struct stage *g)
{
	rpc_fix_close(&g->f);
	if (g->tls)
		tls_fix_remove(&g->certs);
	NO_LEAKS();
}

#define STACK(name)                                                             \
	static void name(struct stage *g);                                      \
	ParameterizedTestParameters(stack, name)                                \
	{                                                                       \
		return cr_make_param_array(struct pair, rows, ARRAY_LEN(rows)); \
	}                                                                       \
	ParameterizedTest(struct pair *p, stack, name)                          \
	{                                                                       \
		stage_open(&stage, p);                                          \
		name(&stage);                                                   \
		stage_close(&stage);                                            \
	}                                                                       \
	static void name(struct stage *g)

STACK(echo_of_every_size)
{
	/* the largest body leaves room for envelope, tag and request id */
	static const size_t sizes[] = { 0, 1, 64, 4096, 65536, 1u << 20, (8u << 20) - 256 };
	rpc_fix_open(&g->f, g->addr, &g->server);
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	uint8_t *b = malloc(8u << 20);
	for (size_t i = 0; i < 8u << 20; i++)
		b[i] = (uint8_t)(i * 7 + (i >> 9));
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct fix_call c = { .method = FIX_ECHO_M,
				      .body = BYTES(b, sizes[i]),
				      .want = BYTES(b, sizes[i]) };
		rpc_fix_call(&g->f, cl, &c);
		cr_assert_eq(c.err, ERR_NONE, "%s: size %zu: %s (%s)", g->who, sizes[i],
			     err_name(c.err), c.call.why.text);
		cr_assert(c.same, "%s: size %zu", g->who, sizes[i]);
		cr_assert_eq(c.term, 7);
	}
	free(b);
	rpc_fix_close_client(&g->f, cl);
}

STACK(many_outstanding)
{
	static struct fix_call c[128];
	rpc_fix_open(&g->f, g->addr, &g->server);
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < ARRAY_LEN(c); i++) {
			c[i] = (struct fix_call){ .method = i & 1 ? FIX_ECHO_M : FIX_AECHO_M,
						  .body = BYTES(&g->f.secret, i % 32),
						  .want = BYTES(&g->f.secret, i % 32) };
			rpc_fix_start(&g->f, cl, &c[i]);
		}
		for (size_t i = 0; i < ARRAY_LEN(c); i++) {
			rpc_fix_wait(&g->f, &c[i]);
			cr_assert_eq(c[i].err, ERR_NONE, "%s: call %zu: %s", g->who, i,
				     err_name(c[i].err));
			cr_assert(c[i].same, "%s: call %zu has another one's reply", g->who, i);
		}
	}
	rpc_fix_close_client(&g->f, cl);
}

STACK(deadline_and_cancel)
{
	rpc_fix_open(&g->f, g->addr, &g->server);
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	struct fix_call held = { .method = FIX_HOLD_M, .deadline_ms = 120 };
	rpc_fix_call(&g->f, cl, &held);
	cr_assert_eq(held.err, ERR_TIMED_OUT, "%s: %s", g->who, err_name(held.err));
	cr_assert(strstr(held.call.why.text, "master"), "%s: %s", g->who, held.call.why.text);
	/* a cancelled call ends as that, and its late reply troubles nobody */
	struct fix_call given_up = { .method = FIX_HOLD_M };
	rpc_fix_start(&g->f, cl, &given_up);
	RPC_FIX_UNTIL(&g->f, g->f.n_held == 2, 5000);
	rpc_cancel(&given_up.call);
	rpc_fix_wait(&g->f, &given_up);
	cr_assert_eq(given_up.err, ERR_CANCELLED, "%s: %s", g->who, err_name(given_up.err));
	rpc_fix_release(&g->f);
	struct fix_call next = { .method = FIX_ECHO_M,
				 .body = BYTES_STR("next"),
				 .want = BYTES_STR("next") };
	rpc_fix_call(&g->f, cl, &next);
	cr_assert_eq(next.err, ERR_NONE, "%s: %s", g->who, err_name(next.err));
	cr_assert(next.same, "%s: the next call got a late reply", g->who);
	cr_assert_eq(given_up.n_done, 1);
	rpc_fix_close_client(&g->f, cl);
}

STACK(server_restart)
{
	rpc_fix_open(&g->f, g->addr, &g->server);
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	struct fix_call c = { .method = FIX_ECHO_M,
			      .body = BYTES_STR("a"),
			      .want = BYTES_STR("a") };
	rpc_fix_call(&g->f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s: %s (%s)", g->who, err_name(c.err), c.call.why.text);
	rpc_fix_stop_server(&g->f);
	/* a call that may be repeated waits for the next one */
	rpc_fix_start(&g->f, cl, &c);
	rpc_fix_run_ms(&g->f, 30);
	cr_assert(!c.done, "%s: %s", g->who, c.call.why.text);
	char addr[300];
	snprintf(addr, sizeof(addr), "%s", g->f.addr);
	rpc_fix_serve(&g->f, addr);
	rpc_fix_wait(&g->f, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s: %s (%s)", g->who, err_name(c.err), c.call.why.text);
	cr_assert(c.same);
	rpc_fix_close_client(&g->f, cl);
}

STACK(wrong_secret)
{
	uint8_t secret[AUTH_KEY_BYTES] = "some other cluster";
	struct keyring *k;
	rpc_fix_open(&g->f, g->addr, &g->server);
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	g->client.keys = k;
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 5000 };
	rpc_fix_call(&g->f, cl, &c);
	cr_assert_eq(c.err, ERR_UNAUTHENTICATED, "%s: %s (%s)", g->who, err_name(c.err),
		     c.call.why.text);
	cr_assert_eq(g->f.n_run, 0);
	cr_assert_geq(rpc_fix_counters(&g->f).hello_failed, 1);
	rpc_fix_close_client(&g->f, cl);
	keyring_free(k);
}

STACK(oversize)
{
	uint32_t big = 300000;
	g->server.limits.message_bytes_max = 400000;
	rpc_fix_open(&g->f, g->addr, &g->server);
	/* our own limit: refused before anything is sent */
	g->client.limits.message_bytes_max = 200000;
	struct rpc_client *cl = rpc_fix_client(&g->f, &g->client);
	uint8_t *b = calloc(1, 300000);
	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES(b, big) };
	rpc_fix_call(&g->f, cl, &c);
	cr_assert_eq(c.err, ERR_TOO_LARGE, "%s: %s (%s)", g->who, err_name(c.err),
		     c.call.why.text);
	cr_assert_eq(g->f.n_run, 0);
	/* a reply above it: an error of some kind at once, not a wait for the deadline */
	uint64_t t0 = loop_now_ns(&g->f.loop);
	struct fix_call r = { .method = FIX_BIG_M,
			      .body = BYTES(&big, 4),
			      .not_idempotent = true };
	rpc_fix_call(&g->f, cl, &r);
	cr_assert_neq(r.err, ERR_NONE, "%s: a reply over the limit was taken", g->who);
	cr_assert_neq(r.err, ERR_TIMED_OUT, "%s: %s", g->who, r.call.why.text);
	cr_assert_lt(loop_now_ns(&g->f.loop) - t0, 5 * NS_PER_S);
	/* and the client goes on */
	struct fix_call next = { .method = FIX_ECHO_M,
				 .body = BYTES_STR("on"),
				 .want = BYTES_STR("on") };
	rpc_fix_call(&g->f, cl, &next);
	cr_assert_eq(next.err, ERR_NONE, "%s: %s (%s)", g->who, err_name(next.err),
		     next.call.why.text);
	free(b);
	rpc_fix_close_client(&g->f, cl);
}

/* ---- against plain nng ---- */

TestSuite(plain, .timeout = 60);

static pid_t spawn(const char *const *argv, int *out)
{
	int fds[2];
	cr_assert_eq(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		execv(argv[0], (char *const *)argv);
		_exit(127);
	}
	close(fds[1]);
	*out = fds[0];
	return pid;
}

/* Turns the loop until the program ends; its exit status. */
static int reap(struct loop *l, pid_t pid, int out)
{
	int status = -1;
	bool ended = false;
	(void)RUN_UNTIL(l, ended || (ended = waitpid(pid, &status, WNOHANG) == pid), 30000);
	cr_assert(ended);
	close(out);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static struct fix_server sv;
static struct fix_client cl;

static const char *plain_addr(char out[64], bool ipc)
{
	if (ipc)
		snprintf(out, 64, "ipc:///tmp/pml_plain_%d.sock", (int)getpid());
	else
		fix_addr(out, 64, "tcp");
	return out;
}

Test(plain, nng_req_program_at_our_server)
{
	static const char *const sizes[] = { "0", "1", "5000", "1000000" };
	struct loop l;
	char addr[64];
	int out;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	for (int ipc = 0; ipc < 2; ipc++) {
		fix_serve(&sv, &l, &engine_sp, plain_addr(addr, ipc), NULL, NULL);
		sv.know = true;
		for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
			pid_t pid = spawn((const char *const[]){ PLAIN_NNG, "req", sv.addr,
								 sizes[i], "20", NULL },
					  &out);
			cr_assert_eq(reap(&l, pid, out), 0, "%s, %s bytes", sv.addr, sizes[i]);
		}
		cr_assert_eq(sv.n_requests, 80u * (unsigned)(ipc + 1));
		fix_server_end(&sv);
	}
	loop_close(&l);
	NO_LEAKS();
}

Test(plain, our_client_at_an_nng_rep_program)
{
	static const size_t sizes[] = { 0, 1, 5000, 70000, 1000000 };
	struct loop l;
	char addr[64], ready[8];
	int out;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	for (int ipc = 0; ipc < 2; ipc++) {
		plain_addr(addr, ipc);
		pid_t pid = spawn((const char *const[]){ PLAIN_NNG, "rep", addr, "25", NULL },
				  &out);
		cr_assert_gt(read(out, ready, sizeof(ready)), 0, "it does not listen");
		fix_connect(&cl, &l, &engine_sp, addr);
		for (uint32_t round = 0; round < 5; round++) {
			for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++)
				cr_assert_eq(fix_send(&cl, i, sizes[i]), ERR_NONE);
			cr_assert(RUN_UNTIL(&l, cl.n_done == 5 * (round + 1), 10000));
			for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++)
				cr_assert(fix_echoed(&cl, i, sizes[i]), "%s: %zu bytes", addr,
					  sizes[i]);
		}
		cr_assert_eq(reap(&l, pid, out), 0);
		cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000), "its end went unnoticed");
		fix_client_end(&cl);
	}
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Our server does not talk to strangers: it closes, with one line a try. (nng dials again and repeats
 * its request by itself: what it sends is up to it.)
 */
Test(plain, nng_req_program_at_an_rpc_server)
{
	struct rpc_fix f;
	int out;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	pid_t pid = spawn((const char *const[]){ PLAIN_NNG, "req", f.addr, "100", "1", "500",
						 NULL },
			  &out);
	cr_assert_neq(reap(&f.loop, pid, out), 0, "a stranger was answered");
	cr_assert_eq(f.n_run, 0);
	cr_assert_geq(f.n_slines, 1);
	cr_assert_eq(rpc_fix_lines(&f, true, "err=BAD_MESSAGE"), MIN_OF(f.n_slines, FIX_LINES));
	cr_assert_eq(rpc_fix_counters(&f).sessions, 0);
	rpc_fix_close(&f);
	NO_LEAKS();
}
