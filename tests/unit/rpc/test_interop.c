/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All pairings of engines over all transports, below the rpc core: {sp, nng} x {sp, nng} over tcp, ipc
 * and tls+tcp. The rpc stack over the same pairings is test_interop_rpc.c.
 */
#include "support/eng_fix.h"
#include "support/leak.h"
#include "support/tls_fix.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(interop, .timeout = 60);

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

static struct fix_server sv;
static struct fix_client cl;

struct stage {
	struct loop l;
	const struct engine *server, *client;
	struct tls_fix certs;
	bool tls;
	struct tls_files server_tls, client_tls;
	char addr[300];
};

static const struct engine *engine_named(const char *name)
{
	return strcmp(name, "sp") == 0 ? &engine_sp : &engine_nng;
}

static void stage_open(struct stage *g, const struct pair *p)
{
	*g = (struct stage){ .server = engine_named(p->server),
			     .client = engine_named(p->client) };
	cr_assert_eq(loop_open(&g->l), ERR_NONE);
	g->tls = strcmp(p->scheme, "tls+tcp") == 0;
	if (g->tls) {
		tls_fix_make(&g->certs);
		g->server_tls = (struct tls_files){ .cert = g->certs.server,
						    .key = g->certs.server_key };
		g->client_tls = (struct tls_files){ .ca = g->certs.ca };
	}
	if (strcmp(p->scheme, "ipc") == 0)
		snprintf(g->addr, sizeof(g->addr), "ipc:///tmp/pml_interop_%d.sock",
			 (int)getpid());
	else
		snprintf(g->addr, sizeof(g->addr), "%s://127.0.0.1:0", p->scheme);
}

static void stage_serve(struct stage *g, const struct eng_limits *limits)
{
	fix_serve(&sv, &g->l, g->server, g->addr, limits, g->tls ? &g->server_tls : NULL);
	snprintf(g->addr, sizeof(g->addr), "%s", sv.addr);
}

static void stage_connect(struct stage *g)
{
	struct why why = { 0 };
	cr_assert_eq(fix_dial(&cl, &g->l, g->client, g->addr, NULL,
			      g->tls ? &g->client_tls : NULL, &why),
		     ERR_NONE, "%s", why.text);
	cr_assert(RUN_UNTIL(&g->l, cl.n_up || cl.n_down, 5000));
	cr_assert(cl.n_up, "%s", cl.down_text);
}

static void stage_close(struct stage *g)
{
	loop_close(&g->l);
	if (g->tls)
		tls_fix_remove(&g->certs);
	NO_LEAKS();
}

#define INTEROP(name)                                                             \
	static void name(struct stage *g);                                        \
	ParameterizedTestParameters(interop, name)                                \
	{                                                                         \
		return cr_make_param_array(struct pair, rows, ARRAY_LEN(rows));   \
	}                                                                         \
	ParameterizedTest(struct pair *p, interop, name)                          \
	{                                                                         \
		struct stage g;                                                   \
		stage_open(&g, p);                                                \
		cr_log_info("%s <- %s over %s", p->server, p->client, p->scheme); \
		name(&g);                                                         \
		stage_close(&g);                                                  \
	}                                                                         \
	static void name(struct stage *g)

INTEROP(echo_of_every_size)
{
	static const size_t sizes[] = { 0,     1,     3,      4,	100,	       1023,
					16384, 65535, 300000, 1u << 20, (8u << 20) - 4 };
	stage_serve(g, NULL);
	sv.know = true;
	stage_connect(g);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE); /* known from here on */
	cr_assert(RUN_UNTIL(&g->l, cl.n_done == 1, 5000));
	for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cr_assert_eq(fix_send(&cl, i, sizes[i]), ERR_NONE);
		cr_assert(RUN_UNTIL(&g->l, cl.n_done == i + 2, 10000), "size %zu", sizes[i]);
		cr_assert(fix_echoed(&cl, i, sizes[i]), "size %zu: %s, %zu bytes", sizes[i],
			  err_name(cl.xchg[i].err), cl.xchg[i].n_reply);
	}
	fix_client_end(&cl);
	fix_server_end(&sv);
}

INTEROP(many_outstanding)
{
	stage_serve(g, NULL);
	sv.know = true;
	stage_connect(g);
	for (uint32_t round = 1; round <= 3; round++) {
		for (uint32_t i = 0; i < 128; i++)
			cr_assert_eq(fix_send(&cl, i, (i * 997) % 9000), ERR_NONE);
		cr_assert(RUN_UNTIL(&g->l, cl.n_done == 128 * round, 10000), "%u", cl.n_done);
		for (uint32_t i = 0; i < 128; i++)
			cr_assert(fix_echoed(&cl, i, (i * 997) % 9000));
	}
	fix_client_end(&cl);
	fix_server_end(&sv);
}

/* Answers out of order, and one exchange given up. */
INTEROP(held_then_answered)
{
	stage_serve(g, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	stage_connect(g);
	for (uint32_t i = 0; i < 10; i++)
		cr_assert_eq(fix_send(&cl, i, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, sv.n_held == 10, 5000));
	cl.eng->cancel(cl.p, &cl.xchg[4].x);
	cl.xchg[4].out = false;
	struct eng_token t = sv.held[0];
	sv.held[0] = sv.held[9];
	sv.held[9] = t;
	fix_release(&sv, "answer");
	cr_assert(RUN_UNTIL(&g->l, cl.n_ok == 9, 5000));
	fix_run(&g->l, 20);
	cr_assert_eq(cl.n_done, 9, "the one that was cancelled had its done");
	fix_client_end(&cl);
	fix_server_end(&sv);
}

/* A server that goes fails what is out, typed; the next one on the address serves the next dial. */
INTEROP(server_restart)
{
	stage_serve(g, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	stage_connect(g);
	for (uint32_t i = 0; i < 10; i++)
		cr_assert_eq(fix_send(&cl, i, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, sv.n_held == 10, 5000));
	sv.eng->conn_close(sv.s, sv.last_conn);
	cr_assert(RUN_UNTIL(&g->l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.n_done, 10);
	cr_assert(!cl.down_before_done);
	for (uint32_t i = 0; i < 10; i++)
		cr_assert_eq(cl.xchg[i].err, ERR_CONN_LOST);
	fix_client_end(&cl);
	fix_release(&sv, "to nobody");
	fix_server_end(&sv);
	stage_serve(g, NULL);
	sv.mode = FIX_ECHO;
	stage_connect(g);
	cr_assert_eq(fix_send(&cl, 0, 77), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, cl.n_done == 1, 5000));
	cr_assert(fix_echoed(&cl, 0, 77));
	fix_client_end(&cl);
	fix_server_end(&sv);
}

/*
 * A reply that a close follows at once still arrives: how the core refuses a HELLO. nng's client has
 * to be receiving by then: what arrives earlier it throws away with the connection (req.c, pipe_close).
 */
INTEROP(last_words)
{
	stage_serve(g, NULL);
	sv.mode = FIX_HOLD;
	stage_connect(g);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, sv.n_held == 1, 5000));
	fix_run(&g->l, g->client == &engine_nng ? 150 : 10);
	fix_release(&sv, "no");
	sv.eng->conn_close(sv.s, sv.last_conn);
	cr_assert(RUN_UNTIL(&g->l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_NONE, "%s <- %s over %s: %s", g->server->name,
		     g->client->name, g->addr, err_name(cl.xchg[0].err));
	cr_assert_eq(cl.xchg[0].n_reply, 2);
	fix_client_end(&cl);
	fix_server_end(&sv);
}

/* The server's limit is lower than the client's: the client's request fails at once, not in time. */
INTEROP(oversize_request)
{
	struct eng_limits lim = fix_limits();
	lim.message_bytes_max = 100000;
	stage_serve(g, &lim);
	sv.know = true;
	stage_connect(g);
	cr_assert_eq(fix_send(&cl, 0, 50), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, cl.n_ok == 1, 5000));
	uint64_t t0 = loop_now_ns(&g->l);
	cr_assert_eq(fix_send(&cl, 1, 200000), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, cl.n_down == 1, 5000));
	cr_assert_lt(loop_now_ns(&g->l) - t0, 1500 * NS_PER_MS);
	cr_assert_eq(cl.xchg[1].err, ERR_CONN_LOST);
	cr_assert_eq(sv.n_requests, 1);
	fix_client_end(&cl);
	cr_assert(RUN_UNTIL(&g->l, sv.counters.conns_open == 0, 5000));
	fix_server_end(&sv);
}

INTEROP(drop_closes)
{
	stage_serve(g, NULL);
	sv.mode = FIX_DROP;
	stage_connect(g);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&g->l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_CONN_LOST);
	fix_client_end(&cl);
	fix_server_end(&sv);
}
