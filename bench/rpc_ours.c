/* SPDX-License-Identifier: Apache-2.0 */
/* eng and sp: our engine alone, and all of rpc. */
#include "rpc_peers.h"

#include "rpc/auth.h"
#include "rpc/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ECHO_METHOD 50

static const uint8_t instance[16] = "bench";
static const struct log quiet = { .svc = "bench", .fd = 2 };

static struct keyring *keys(void)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "bench";
	struct keyring *k;
	if (keyring_new(secret, NULL, &k) != ERR_NONE)
		peer_die("keys", "no locked memory");
	return k;
}

static void open_loop(struct loop *l)
{
	if (loop_open(l) != ERR_NONE)
		peer_die("loop", "not opened");
	loop_spin(l, PEER_SPIN_US, NULL);
}

/* Both clients below run until stop is set and nothing is outstanding. */
struct ours {
	struct loop loop;
	struct timer timer;
	bool stop, up;
	unsigned n_outstanding;
	uint64_t n_done;
	struct keyring *keys;
	struct rpc_client *client;
	struct rpc_call calls[PEER_OUT_MAX];
	struct eng_peer *peer;
	struct eng_xchg xchgs[PEER_OUT_MAX];
};

static const uint8_t body[PEER_BODY] = "echo";

static void on_end(struct timer *t)
{
	container_of(t, struct ours, timer)->stop = true;
}

static double run_until_done(struct ours *o, double begin)
{
	while (o->n_outstanding > 0)
		loop_run_once(&o->loop, true);
	return (double)o->n_done / (peer_now() - begin);
}

static void begin_run(struct ours *o, unsigned n, unsigned ms)
{
	o->stop = false;
	o->n_done = 0;
	o->n_outstanding = n;
	timer_start(&o->loop, &o->timer, clock_after_ms(loop_now_ns(&o->loop), ms), on_end);
}

/* ---- sp ---- */

static void echo(void *ctx, struct rpc_req *r)
{
	rpc_reply(r, ERR_NONE, 0, r->body);
}

static void sp_serve(const char *addr, void (*ready)(const char *bound))
{
	static struct loop l;
	struct rpc_server *s;
	struct why why = { 0 };
	char bound[PEER_ADDR_MAX];
	const struct rpc_method row = {
		.number = ECHO_METHOD, .name = "ECHO", .roles = ~0u, .fn = echo
	};
	open_loop(&l);
	struct rpc_server_opts o = { .keys = keys(),
				     .log = &quiet,
				     .instance = instance,
				     .role = ROLE_SERVICE,
				     .name = "bench" };
	if (rpc_server_new(&l, &o, &s) != ERR_NONE)
		peer_die("sp", "no server");
	rpc_server_add(s, &row, 1);
	if (rpc_server_listen(s, addr, bound, sizeof(bound), &why) != ERR_NONE)
		peer_die("sp", why.text);
	ready(bound);
	loop_run(&l);
}

static void call_again(struct rpc_call *c);

static void call(struct ours *o, struct rpc_call *c)
{
	c->method = ECHO_METHOD;
	c->deadline_ns = clock_after_ms(loop_now_ns(&o->loop), 5000);
	c->body = BYTES(body, sizeof(body));
	c->done = call_again;
	rpc_send(o->client, c);
}

static struct ours *call_owner;

static void call_again(struct rpc_call *c)
{
	struct ours *o = call_owner;
	if (c->err != ERR_NONE)
		peer_die("sp", c->why.text);
	o->n_done++;
	if (o->stop)
		o->n_outstanding--;
	else
		call(o, c);
}

static void *sp_open(const char *addr)
{
	struct ours *o = calloc(1, sizeof(*o));
	struct why why = { 0 };
	if (!o)
		peer_die("sp", "no memory");
	open_loop(&o->loop);
	o->keys = keys();
	struct rpc_client_opts opts = { .addrs = &addr,
					.n_addrs = 1,
					.peer_name = "bench",
					.as = ROLE_ADMIN,
					.expect = ROLE_SERVICE,
					.keys = o->keys,
					.log = &quiet,
					.instance = instance };
	if (rpc_client_new(&o->loop, &opts, &o->client, &why) != ERR_NONE)
		peer_die("sp", why.text);
	return o;
}

static double sp_run(void *client, unsigned n, unsigned ms)
{
	struct ours *o = client;
	call_owner = o;
	double begin = peer_now();
	begin_run(o, n, ms);
	for (unsigned i = 0; i < n; i++)
		call(o, &o->calls[i]);
	return run_until_done(o, begin);
}

static void set_stop(void *arg)
{
	((struct ours *)arg)->stop = true;
}

static void sp_close(void *client)
{
	struct ours *o = client;
	o->stop = false;
	rpc_client_close(o->client, set_stop, o);
	while (!o->stop)
		loop_run_once(&o->loop, true);
	timer_stop(&o->loop, &o->timer);
	loop_close(&o->loop);
	keyring_free(o->keys);
	free(o);
}

/* ---- eng ---- */

static struct eng_server *eng_server;

static void eng_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
			enum eng_life life)
{
	if (!c->known)
		engine_sp.known(eng_server, c);
	engine_sp.reply(eng_server, t, &msg, 1);
}

static void eng_closed(void *ctx, struct eng_conn *c)
{
}

static const struct eng_limits eng_limits = {
	.message_bytes_max = 8 << 20,
	.anon_message_bytes_max = 4096,
	.conns_max = 64,
	.conns_anon_max = 64,
	.handshake_ms = 5000,
	.frame_ms = 30000,
	.queue_bytes_max = 64 << 20,
	.conn_queue_bytes_max = 1 << 20,
	.inside_bytes_max = 64 << 20,
};

static void eng_serve(const char *addr, void (*ready)(const char *bound))
{
	static struct loop l;
	static struct rpc_counters counters;
	static const struct eng_server_events events = { eng_request, eng_closed };
	char bound[PEER_ADDR_MAX];
	struct why why = { 0 };
	struct eng_server_opts o = {
		.limits = eng_limits, .log = &quiet, .counters = &counters, .events = &events
	};
	open_loop(&l);
	if (engine_sp.server_new(&l, &o, &eng_server) != ERR_NONE)
		peer_die("eng", "no server");
	if (engine_sp.listen(eng_server, addr, bound, sizeof(bound), &why) != ERR_NONE)
		peer_die("eng", why.text);
	ready(bound);
	loop_run(&l);
}

static void eng_up(void *ctx)
{
	((struct ours *)ctx)->up = true;
}

static void eng_down(void *ctx, enum err e, const char *text)
{
	peer_die("eng", text);
}

static void *eng_open(const char *addr)
{
	static const struct eng_peer_events events = { eng_up, eng_down };
	struct ours *o = calloc(1, sizeof(*o));
	struct why why = { 0 };
	if (!o)
		peer_die("eng", "no memory");
	open_loop(&o->loop);
	struct eng_dial_opts opts = {
		.limits = eng_limits, .addr = addr, .log = &quiet, .events = &events, .ctx = o
	};
	if (engine_sp.dial(&o->loop, &opts, &o->peer, &why) != ERR_NONE)
		peer_die("eng", why.text);
	while (!o->up)
		loop_run_once(&o->loop, true);
	return o;
}

static void eng_again(struct eng_xchg *x, enum err e, struct bytes reply)
{
	struct ours *o = call_owner;
	struct bytes b = BYTES(body, sizeof(body));
	o->n_done++;
	if (o->stop)
		o->n_outstanding--;
	else if (engine_sp.send(o->peer, x, &b, 1) != ERR_NONE)
		peer_die("eng", "send");
}

static double eng_run(void *client, unsigned n, unsigned ms)
{
	struct ours *o = client;
	struct bytes b = BYTES(body, sizeof(body));
	call_owner = o;
	double begin = peer_now();
	begin_run(o, n, ms);
	for (unsigned i = 0; i < n; i++) {
		o->xchgs[i].done = eng_again;
		if (engine_sp.send(o->peer, &o->xchgs[i], &b, 1) != ERR_NONE)
			peer_die("eng", "send");
	}
	return run_until_done(o, begin);
}

static void eng_close(void *client)
{
	struct ours *o = client;
	o->stop = false;
	engine_sp.hangup(o->peer, set_stop, o);
	while (!o->stop)
		loop_run_once(&o->loop, true);
	timer_stop(&o->loop, &o->timer);
	loop_close(&o->loop);
	free(o);
}

const struct peer_sys peer_sp = { "sp", sp_serve, sp_open, sp_run, sp_close };
const struct peer_sys peer_eng = { "eng", eng_serve, eng_open, eng_run, eng_close };
