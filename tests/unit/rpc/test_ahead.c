/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a long wake do not wait for its end: the peer has them while the rest is worked on. */
#include "rpc/engine.h"
#include "rpc/sp_frame.h"
#include "support/leak.h"
#include "support/tcp_client.h"

#include <criterion/criterion.h>
#include <string.h>

enum { N = 4, BODY = 2000, FRAME = 8 + 4 + BODY };

static const struct log quiet = { .svc = "test", .fd = 2 };
static const struct eng_limits limits = {
	.message_bytes_max = 1 << 20,
	.anon_message_bytes_max = 1 << 20,
	.conns_max = 4,
	.conns_anon_max = 4,
	.handshake_ms = 5000,
	.frame_ms = 5000,
	.queue_bytes_max = 1 << 20,
	.conn_queue_bytes_max = 1 << 20,
	.inside_bytes_max = 1 << 20,
};

struct rig {
	struct loop l;
	struct eng_server *s;
	struct rpc_counters counters;
	int fd; /* the peer's */
	unsigned n;
	size_t there[N]; /* bytes that the peer had when request i was worked on */
	bool closed;
};

static size_t bytes_there(int fd)
{
	static uint8_t all[1 << 16];
	ssize_t n = recv(fd, all, sizeof(all), MSG_PEEK | MSG_DONTWAIT);
	return n < 0 ? 0 : (size_t)n;
}

/* Each takes a millisecond. */
static void on_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
		       enum eng_life life)
{
	struct rig *r = ctx;
	(void)life;
	if (!c->known)
		engine_sp.known(r->s, c);
	cr_assert_lt(r->n, N);
	r->there[r->n++] = bytes_there(r->fd);
	engine_sp.reply(r->s, t, &msg, 1);
	for (uint64_t end = loop_now_ns(&r->l) + NS_PER_MS; loop_now_ns(&r->l) < end;)
		continue;
}

static void on_conn_closed(void *ctx, struct eng_conn *c)
{
	(void)ctx, (void)c;
}

static void on_server_closed(void *arg)
{
	((struct rig *)arg)->closed = true;
}

/* The greeting and N requests, in one piece. */
static void send_all(int fd)
{
	static uint8_t out[8 + N * FRAME];
	sp_greeting(out, 0x30);
	for (unsigned i = 0; i < N; i++) {
		uint8_t *p = out + 8 + (size_t)i * FRAME;
		p[6] = (4 + BODY) >> 8;
		p[7] = (uint8_t)(4 + BODY);
		p[8] = 0x80;
		p[11] = (uint8_t)i;
	}
	cr_assert_eq(send(fd, out, sizeof(out), MSG_NOSIGNAL), (ssize_t)sizeof(out));
}

Test(sp_ahead, the_peer_has_answers_while_others_are_made, .timeout = 20)
{
	static const struct eng_server_events events = { on_request, on_conn_closed };
	struct rig r = { 0 };
	struct why why = { 0 };
	char bound[300];
	struct eng_server_opts o = { .limits = limits,
				     .log = &quiet,
				     .counters = &r.counters,
				     .events = &events,
				     .ctx = &r };
	cr_assert_eq(loop_open(&r.l), ERR_NONE);
	cr_assert_eq(engine_sp.server_new(&r.l, &o, &r.s), ERR_NONE);
	cr_assert_eq(engine_sp.listen(r.s, "tcp://127.0.0.1:0", bound, sizeof(bound), &why),
		     ERR_NONE, "%s", why.text);
	r.fd = tcp_connect(bound);
	cr_assert_geq(r.fd, 0);
	send_all(r.fd);
	while (r.n < N || bytes_there(r.fd) < 8 + N * FRAME)
		loop_run_once(&r.l, true);
	cr_expect_eq(r.there[0], r.there[1], "one that was quick is not sent by itself");
	cr_expect_geq(r.there[N - 1], 2 * FRAME, "%zu bytes were there", r.there[N - 1]);
	close(r.fd);
	engine_sp.server_close(r.s, 100, on_server_closed, &r);
	while (!r.closed)
		loop_run_once(&r.l, true);
	loop_close(&r.l);
	NO_LEAKS();
}
