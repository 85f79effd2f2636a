/* SPDX-License-Identifier: Apache-2.0 */
/* The client: connecting, back-off, retries, deadlines and cancellation in every state. */
#include "rpc_both.h"

#include "raw_sp.h"
#include "rpc/rpc_cli.h"
#include "rpc/sp_frame.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

TestSuite(client, .timeout = 30);

/* A port nobody listens on: bound once, then closed. */
static void dead_addr(char out[64])
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&in, n), 0);
	getsockname(fd, (struct sockaddr *)&in, &n);
	snprintf(out, 64, "tcp://127.0.0.1:%u", ntohs(in.sin_port));
	close(fd);
}

/* Listens and accepts, then writes what it is told: a server that does not play. */
struct mute {
	int lfd, fd;
	char addr[64];
};

static void mute_open(struct mute *m)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(in);
	m->fd = -1;
	m->lfd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(m->lfd, (struct sockaddr *)&in, n), 0);
	cr_assert_eq(listen(m->lfd, 8), 0);
	getsockname(m->lfd, (struct sockaddr *)&in, &n);
	snprintf(m->addr, sizeof(m->addr), "tcp://127.0.0.1:%u", ntohs(in.sin_port));
}

static void mute_accept(struct rpc_fix *f, struct mute *m)
{
	while (m->fd < 0) {
		m->fd = accept4(m->lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		rpc_fix_run_ms(f, 1);
	}
}

static void mute_close(struct mute *m)
{
	if (m->fd >= 0)
		close(m->fd);
	close(m->lfd);
}

static struct rpc_client *client_of(struct rpc_fix *f, const char *addr)
{
	struct rpc_client_opts o = { .addrs = &addr, .n_addrs = 1 };
	return rpc_fix_client(f, &o);
}

/* ---- deadlines, state by state: each names peer, address and step (T7) ---- */

Test(client, deadline_refused)
{
	struct rpc_fix f;
	char addr[64];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	dead_addr(addr);
	struct rpc_client *cl = client_of(&f, addr);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 400 };
	uint64_t begin = loop_now_ns(&f.loop);
	rpc_fix_call(&f, cl, &c);
	uint64_t took_ms = (loop_now_ns(&f.loop) - begin) / NS_PER_MS;
	cr_assert_eq(c.err, ERR_UNREACHABLE);
	cr_assert(strstr(c.call.why.text, "connecting to master at tcp://127.0.0.1:"), "%s",
		  c.call.why.text);
	cr_assert(strstr(c.call.why.text, "connection refused ("), "%s", c.call.why.text);
	cr_assert(strstr(c.call.why.text, " tries)"), "%s", c.call.why.text);
	cr_assert(took_ms >= 399 && took_ms < 1000, "%u ms", (unsigned)took_ms);
	cr_assert_eq(rpc_fix_lines(&f, false, "connection refused"), 1, "one line an outage");
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, deadline_no_such_socket)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = client_of(&f, "ipc:///tmp/pomelo-test-none.sock");
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 50 };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_UNREACHABLE);
	cr_assert(strstr(c.call.why.text, "no such file"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, deadline_unknown_name)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = client_of(&f, "tcp://no-such-host.invalid:1");
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 300 };
	rpc_fix_call(&f, cl, &c);
	cr_assert(c.err == ERR_UNREACHABLE || c.err == ERR_TIMED_OUT);
	cr_assert(strstr(c.call.why.text, "no-such-host.invalid"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

static void echo_by_name(const char *name, bool known)
{
	struct rpc_fix f;
	char addr[320];
	rpc_fix_open(&f, "tcp://*:0", NULL);
	snprintf(addr, sizeof(addr), "tcp://%s:%s", name, strrchr(f.addr, ':') + 1);
	struct rpc_client *cl = client_of(&f, addr);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = known ? 5000 : 300 };
	rpc_fix_call(&f, cl, &c);
	if (known)
		cr_assert_eq(c.err, ERR_NONE, "%s: %s", name, c.call.why.text);
	else
		cr_assert(strstr(c.call.why.text, name), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
}

/* On any machine, with /etc/hosts or without. */
Test(client, localhost_is_known)
{
	echo_by_name("localhost", true);
	echo_by_name("LocalHost", true);
	NO_LEAKS();
}

/* The machine's own name, which its name service may or may not know. */
Test(client, a_name_is_looked_up)
{
	char name[256] = "";
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET },
			*ai = NULL;
	cr_assert_eq(gethostname(name, sizeof(name) - 1), 0);
	bool known = getaddrinfo(name, NULL, &hints, &ai) == 0;
	if (ai)
		freeaddrinfo(ai);
	echo_by_name(name, known);
	NO_LEAKS();
}

Test(client, deadline_no_greeting)
{
	struct rpc_fix f;
	struct mute m;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	mute_open(&m);
	struct rpc_client_opts o = { .limits = { .handshake_ms = 80 } };
	const char *a = m.addr;
	o.addrs = &a;
	o.n_addrs = 1;
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 40 },
			d = { .method = FIX_ECHO_M, .deadline_ms = 200 };
	rpc_fix_start(&f, cl, &c);
	rpc_fix_call(&f, cl, &d);
	cr_assert_eq(c.err, ERR_TIMED_OUT);
	cr_assert(strstr(c.call.why.text, "connecting to master at tcp://"), "%s",
		  c.call.why.text);
	cr_assert_eq(d.err, ERR_TIMED_OUT);
	cr_assert(strstr(d.call.why.text, "no SP greeting"), "%s", d.call.why.text);
	rpc_fix_close_client(&f, cl);
	mute_close(&m);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, deadline_in_hello)
{
	struct rpc_fix f;
	struct mute m;
	uint8_t g[SP_GREETING];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	mute_open(&m);
	struct rpc_client *cl = client_of(&f, m.addr);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 100 };
	rpc_fix_start(&f, cl, &c);
	mute_accept(&f, &m);
	sp_greeting(g, SP_PROTO_REP);
	cr_assert_eq(write(m.fd, g, sizeof(g)), sizeof(g));
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_TIMED_OUT);
	cr_assert(strstr(c.call.why.text, "handshake with master at tcp://"), "%s",
		  c.call.why.text);
	rpc_fix_close_client(&f, cl);
	mute_close(&m);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, a_server_of_another_protocol)
{
	struct rpc_fix f;
	struct mute m;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	mute_open(&m);
	struct rpc_client *cl = client_of(&f, m.addr);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 150 };
	rpc_fix_start(&f, cl, &c);
	mute_accept(&f, &m);
	cr_assert_eq(write(m.fd, "SSH-2.0-x\r\n", 11), 11);
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_UNREACHABLE);
	cr_assert(strstr(c.call.why.text, "does not speak SP"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	mute_close(&m);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, deadline_on_the_wire_and_behind_it)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .inflight_max = 1 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_HOLD_M, .deadline_ms = 150 },
			w = { .method = FIX_ECHO_M, .deadline_ms = 80 },
			e = { .method = FIX_ECHO_M, .deadline_ms = 2000 };
	rpc_fix_start(&f, cl, &c);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 1000);
	rpc_fix_start(&f, cl, &w);
	rpc_fix_start(&f, cl, &e);
	rpc_fix_wait(&f, &w);
	cr_assert_eq(w.err, ERR_TIMED_OUT);
	cr_assert(strstr(w.call.why.text, "waited behind 1 calls on the wire (limit 1)"), "%s",
		  w.call.why.text);
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_TIMED_OUT);
	cr_assert(strstr(c.call.why.text, "master at tcp://127.0.0.1:"), "%s", c.call.why.text);
	cr_assert(strstr(c.call.why.text, "within the deadline"), "%s", c.call.why.text);
	/* its place on the wire is free again */
	rpc_fix_wait(&f, &e);
	cr_assert_eq(e.err, ERR_NONE);
	/* the late answer finds nobody and hurts nobody */
	rpc_fix_release(&f);
	struct fix_call again = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &again);
	cr_assert_eq(again.err, ERR_NONE);
	cr_assert_eq(rpc_fix_counters(&f).conns_accepted, 1);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, a_deadline_that_has_passed)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_start(&f, cl, &c);
	rpc_fix_wait(&f, &c);
	c.done = false;
	c.call.deadline_ns = loop_now_ns(&f.loop) - 1;
	rpc_send(cl, &c.call);
	cr_assert(!c.done, "done never runs inside rpc_send");
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_TIMED_OUT);
	cr_assert_eq(f.n_run, 1);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- cancel, state by state ---- */

static void cancelled(struct rpc_fix *f, struct fix_call *c)
{
	rpc_cancel(&c->call);
	cr_assert(!c->done, "done never runs inside rpc_cancel");
	rpc_cancel(&c->call); /* twice is fine */
	rpc_fix_wait(f, c);
	rpc_fix_run_ms(f, 2);
	cr_assert_eq(c->n_done, 1);
	cr_assert_eq(c->err, ERR_CANCELLED);
	cr_assert(strstr(c->call.why.text, "cancelled"), "%s", c->call.why.text);
}

Test(client, cancel_in_every_state)
{
	struct rpc_fix f;
	char dead[64];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	dead_addr(dead);
	struct rpc_client *cl = rpc_fix_client(&f, NULL), *no = client_of(&f, dead);
	struct fix_call c = { .method = FIX_HOLD_M }, d = { .method = FIX_HOLD_M },
			e = { .method = FIX_HOLD_M }, w = { .method = FIX_ECHO_M };
	rpc_fix_start(&f, cl, &c); /* dialing */
	cancelled(&f, &c);
	rpc_fix_start(&f, no, &d); /* back-off */
	rpc_fix_run_ms(&f, 20);
	cancelled(&f, &d);
	rpc_fix_start(&f, cl, &e); /* on the wire */
	RPC_FIX_UNTIL(&f, f.n_held == 1, 1000);
	cancelled(&f, &e);
	w.call.client = NULL;
	rpc_fix_call(&f, cl, &w);
	cr_assert_eq(w.err, ERR_NONE, "%s", w.call.why.text);
	rpc_cancel(&w.call); /* done already: nothing happens */
	rpc_fix_run_ms(&f, 2);
	cr_assert_eq(w.n_done, 1);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close_client(&f, no);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, cancel_makes_room_on_the_wire)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .inflight_max = 1 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_HOLD_M }, w = { .method = FIX_ECHO_M };
	rpc_fix_start(&f, cl, &c);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 1000);
	rpc_fix_start(&f, cl, &w);
	rpc_cancel(&c.call);
	rpc_fix_wait(&f, &w);
	cr_assert_eq(w.err, ERR_NONE);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- retry, restart, several addresses ---- */

BOTH(client, server_restart)
{
	struct rpc_fix f;
	char fixed[300];
	rpc_fix_open(&f, addr, NULL);
	snprintf(fixed, sizeof(fixed), "%s", f.addr);
	struct rpc_client_opts o = { .backoff_min_ms = 5, .backoff_max_ms = 20 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES_STR("x") };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE);
	for (int i = 0; i < 3; i++) {
		rpc_fix_stop_server(&f);
		rpc_fix_start(&f, cl, &c);
		rpc_fix_run_ms(&f, 20);
		cr_assert(!c.done, "it waits for the server");
		rpc_fix_serve(&f, fixed);
		rpc_fix_wait(&f, &c);
		cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
		cr_assert_eq(c.reply[0], 'x');
	}
	cr_assert_eq(rpc_fix_lines(&f, false, "msg=\"connected\""), 3);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* The connection is cut under two calls: one may run twice, the other may not. */
BOTH(client, connection_lost_under_calls)
{
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call idem = { .method = FIX_HOLD_M },
			once = { .method = FIX_HOLD_M, .not_idempotent = true };
	rpc_fix_start(&f, cl, &idem);
	rpc_fix_start(&f, cl, &once);
	RPC_FIX_UNTIL(&f, f.n_held == 2, 1000);
	client_break(cl, ERR_CONN_LOST, "cut by the test");
	cr_assert(once.done);
	cr_assert_eq(once.err, ERR_CONN_LOST);
	cr_assert(strstr(once.call.why.text, "may or may not have been carried out"), "%s",
		  once.call.why.text);
	RPC_FIX_UNTIL(&f, f.n_held == 3, 1000); /* sent again, under a new session and number */
	cr_assert_eq(f.n_gone, 2);
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &idem);
	cr_assert_eq(idem.err, ERR_NONE);
	cr_assert_eq(idem.call.tries, 2);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.replays, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* A request that breaks its connection each time does not go round for ever. */
Test(client, a_poisonous_call_ends)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .backoff_min_ms = 1, .backoff_max_ms = 2 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_HOLD_M };
	rpc_fix_start(&f, cl, &c);
	for (int i = 0; i < 8; i++) {
		RPC_FIX_UNTIL(&f, f.n_held == (uint32_t)i + 1, 2000);
		cr_assert(!c.done);
		client_break(cl, ERR_CONN_LOST, "cut by the test");
	}
	cr_assert(c.done);
	cr_assert_eq(c.err, ERR_CONN_LOST);
	cr_assert(strstr(c.call.why.text, "8 tries"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, addresses_are_tried_in_turn)
{
	struct rpc_fix f;
	char dead[64];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	dead_addr(dead);
	const char *addrs[] = { dead, "ipc:///tmp/pomelo-test-none.sock", f.addr };
	struct rpc_client_opts o = { .addrs = addrs, .n_addrs = 3, .backoff_min_ms = 1000 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 900 };
	rpc_fix_call(&f, cl, &c); /* without a pause: back-off is for whole rounds */
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Connected, greeted, then silence: with another address to go to, a call's death is enough. */
Test(client, a_silent_server_is_left_for_the_next)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	const char *addrs[] = { f.addr, f.addr };
	struct rpc_client_opts o = { .addrs = addrs, .n_addrs = 2 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_HOLD_M, .deadline_ms = 2100 },
			d = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_TIMED_OUT);
	rpc_fix_call(&f, cl, &d);
	cr_assert_eq(d.err, ERR_NONE);
	cr_assert_eq(rpc_fix_counters(&f).conns_accepted, 2);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, the_waiting_queue_is_bounded)
{
	struct rpc_fix f;
	char dead[64];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	dead_addr(dead);
	const char *a = dead;
	struct rpc_client_opts o = { .addrs = &a, .n_addrs = 1, .queue_max = 3 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c[4] = { 0 };
	for (int i = 0; i < 4; i++) {
		c[i].method = FIX_ECHO_M;
		rpc_fix_start(&f, cl, &c[i]);
	}
	rpc_fix_wait(&f, &c[3]);
	cr_assert_eq(c[3].err, ERR_BUSY);
	cr_assert(strstr(c[3].call.why.text, "3 calls wait already (limit 3)"), "%s",
		  c[3].call.why.text);
	cr_assert(!c[0].done && !c[1].done && !c[2].done);
	rpc_fix_close_client(&f, cl);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(c[i].err, ERR_CLOSED);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Milliseconds until the next try, seen some time after the pause began. */
static uint64_t back_off_of(struct rpc_fix *f, struct rpc_client *cl)
{
	RPC_FIX_UNTIL(f, cl->state == CL_BACKOFF, 5000);
	cr_assert(timer_running(&cl->timer));
	uint64_t left = clock_left_ms(cl->timer.node.key, loop_now_ns(&f->loop));
	RPC_FIX_UNTIL(f, cl->state != CL_BACKOFF, 5000);
	return left;
}

Test(client, back_off_doubles_to_its_limit_with_jitter)
{
	struct rpc_fix f;
	char dead[64];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	dead_addr(dead);
	const char *a = dead;
	struct rpc_client_opts o = {
		.addrs = &a, .n_addrs = 1, .backoff_min_ms = 40, .backoff_max_ms = 160
	};
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 20000 };
	rpc_fix_start(&f, cl, &c);
	static const uint64_t want[] = { 40, 80, 160, 160 };
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		uint64_t left = back_off_of(&f, cl);
		cr_assert_leq(left, want[i] * 5 / 4, "%zu: %u", i, (unsigned)left);
		cr_assert_geq(cl->backoff_ms, want[i], "%zu", i);
		cr_assert_leq(cl->backoff_ms, 160, "%zu", i);
	}
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- refusals ---- */

static struct keyring *other_keys(void)
{
	uint8_t secret[AUTH_KEY_BYTES] = "another secret";
	struct keyring *k;
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	return k;
}

BOTH(client, wrong_secret)
{
	struct rpc_fix f;
	struct keyring *k = other_keys();
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client_opts o = { .keys = k, .backoff_min_ms = 300 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c[20] = { 0 };
	uint64_t begin = loop_now_ns(&f.loop);
	rpc_fix_call(&f, cl, &c[0]);
	cr_assert_eq(c[0].err, ERR_UNAUTHENTICATED, "%s", c[0].call.why.text);
	cr_assert_lt(loop_now_ns(&f.loop) - begin, 200 * NS_PER_MS, "at once, not by time-out");
	cr_assert(strstr(c[0].call.why.text, "handshake with master at"), "%s",
		  c[0].call.why.text);
	/* while it backs off every call fails at once, and nobody knocks */
	for (int i = 1; i < 20; i++) {
		rpc_fix_call(&f, cl, &c[i]);
		cr_assert_eq(c[i].err, ERR_UNAUTHENTICATED);
	}
	cr_assert_lt(loop_now_ns(&f.loop) - begin, 220 * NS_PER_MS);
	cr_assert_eq(rpc_fix_counters(&f).hello_failed, 1);
	cr_assert_eq(rpc_fix_lines(&f, true, "UNAUTHENTICATED"), 1, "one line there");
	cr_assert_eq(rpc_fix_lines(&f, false, "UNAUTHENTICATED"), 1, "one line here");
	/* the next knock, one more failure, still no more lines */
	rpc_fix_run_ms(&f, 400);
	rpc_fix_call(&f, cl, &c[1]);
	cr_assert_eq(rpc_fix_counters(&f).hello_failed, 2);
	cr_assert_eq(rpc_fix_lines(&f, true, "UNAUTHENTICATED"), 1);
	cr_assert_eq(rpc_fix_lines(&f, false, "UNAUTHENTICATED"), 1);
	cr_assert_eq(f.n_run, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	keyring_free(k);
	NO_LEAKS();
}

Test(client, a_mended_secret_is_noticed)
{
	struct rpc_fix f;
	struct keyring *k = other_keys();
	struct rpc_server_opts so = { .keys = k };
	char fixed[300];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &so);
	snprintf(fixed, sizeof(fixed), "%s", f.addr);
	struct rpc_client_opts o = { .backoff_min_ms = 10, .backoff_max_ms = 10 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_UNAUTHENTICATED);
	rpc_fix_stop_server(&f);
	f.srv_opts.keys = f.keys;
	rpc_fix_serve(&f, fixed);
	rpc_fix_run_ms(&f, 20);
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	keyring_free(k);
	NO_LEAKS();
}

Test(client, versions_without_overlap)
{
	struct rpc_fix f;
	struct rpc_server_opts so = { .v_min = 3, .v_max = 4 };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &so);
	struct rpc_client_opts o = { .v_min = 1, .v_max = 2 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_VERSION_MISMATCH, "%s", c.call.why.text);
	cr_assert(strpbrk(c.call.why.text, "1") && strpbrk(c.call.why.text, "2"));
	cr_assert(strpbrk(c.call.why.text, "3") && strpbrk(c.call.why.text, "4"), "%s",
		  c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, neighbouring_releases_agree_on_the_older_version)
{
	struct rpc_fix f;
	struct rpc_server_opts so = { .v_min = 3, .v_max = 4 };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &so);
	struct rpc_client_opts o = { .v_min = 2, .v_max = 3 };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	cr_assert_eq(f.last_peer.wire_version, 3);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, another_listener_than_expected)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .expect_name = "agent" };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_UNAUTHENTICATED, "%s", c.call.why.text);
	cr_assert(strstr(c.call.why.text, "agent"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, bad_options_are_refused_with_the_reason)
{
	struct rpc_fix f;
	struct rpc_client *cl = NULL;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	const char *bad = "http://x";
	struct why why = { 0 };
	struct rpc_client_opts o = { .addrs = &bad,
				     .n_addrs = 1,
				     .peer_name = "master",
				     .as = ROLE_ADMIN,
				     .expect = ROLE_SERVICE,
				     .keys = f.keys,
				     .log = &f.clog,
				     .instance = f.instance };
	cr_assert_eq(rpc_client_new(&f.loop, &o, &cl, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "http://x"), "%s", why.text);
	o.n_addrs = 0;
	why = (struct why){ 0 };
	cr_assert_eq(rpc_client_new(&f.loop, &o, &cl, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "no address"), "%s", why.text);
	/* a client's ring does not hold the admin's key */
	struct keyring *k;
	const char *good = f.addr;
	cr_assert_eq(keyring_new_role(ROLE_CLIENT, "acme", f.secret, &k), ERR_NONE);
	o.addrs = &good;
	o.n_addrs = 1;
	o.keys = k;
	why = (struct why){ 0 };
	cr_assert_eq(rpc_client_new(&f.loop, &o, &cl, &why), ERR_FORBIDDEN);
	cr_assert_null(cl);
	keyring_free(k);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- sessions ---- */

Test(client, an_old_session_is_renewed_between_calls)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M }, h = { .method = FIX_HOLD_M };
	rpc_fix_call(&f, cl, &c);
	uint32_t first = cl->session.id;
	rpc_fix_start(&f, cl, &h);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 1000);
	cl->session.next_seq = AUTH_SEQ_RENEW;
	rpc_fix_start(&f, cl, &c);
	rpc_fix_run_ms(&f, 10);
	cr_assert(!c.done, "waits until the wire is empty");
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &h);
	cr_assert_eq(h.err, ERR_NONE);
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_NONE);
	cr_assert_neq(cl->session.id, first);
	cr_assert_eq(rpc_fix_counters(&f).conns_accepted, 1);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

struct states {
	uint32_t n;
	bool last;
};

static void on_state(void *ctx, bool up)
{
	struct states *s = ctx;
	cr_assert_neq(s->last, up);
	s->last = up;
	s->n++;
}

Test(client, state_changes_are_told_once)
{
	struct rpc_fix f;
	struct states s = { 0 };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .on_state = on_state, .ctx = &s };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert(s.n == 1 && s.last);
	rpc_fix_stop_server(&f);
	rpc_fix_run_ms(&f, 5);
	cr_assert(s.n == 2 && !s.last);
	cr_assert(!rpc_client_up(cl));
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* done may do anything: here it closes the client that calls it. */
static struct rpc_client *to_close;
static bool closed_in_done;

static void note_closed(void *arg)
{
	closed_in_done = true;
}

static void close_in_done(struct rpc_call *c)
{
	if (to_close)
		rpc_client_close(to_close, note_closed, NULL);
	to_close = NULL;
}

Test(client, close_from_done)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	to_close = rpc_fix_client(&f, NULL);
	struct rpc_call c[3] = { 0 };
	for (int i = 0; i < 3; i++) {
		c[i].method = FIX_ECHO_M;
		c[i].deadline_ns = clock_after_ms(loop_now_ns(&f.loop), 5000);
		c[i].done = close_in_done;
		rpc_send(to_close, &c[i]);
	}
	RPC_FIX_UNTIL(&f, closed_in_done, 2000);
	cr_assert_eq(c[0].err, ERR_NONE);
	cr_assert_eq(c[1].err, ERR_CLOSED);
	cr_assert_eq(c[2].err, ERR_CLOSED);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(client, close_while_dialing_and_in_hello)
{
	struct rpc_fix f;
	struct mute m;
	uint8_t g[SP_GREETING];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	mute_open(&m);
	struct rpc_client *a = client_of(&f, m.addr), *b = client_of(&f, m.addr),
			  *n = client_of(&f, "tcp://no-such-host.invalid:1");
	struct fix_call c[3] = { 0 };
	rpc_fix_start(&f, a, &c[0]);
	rpc_fix_close_client(&f, a);
	rpc_fix_start(&f, n, &c[2]);
	rpc_fix_close_client(&f, n);
	mute_accept(&f, &m);
	close(m.fd);
	m.fd = -1;
	rpc_fix_start(&f, b, &c[1]);
	mute_accept(&f, &m);
	sp_greeting(g, SP_PROTO_REP);
	cr_assert_eq(write(m.fd, g, sizeof(g)), sizeof(g));
	RPC_FIX_UNTIL(&f, b->state == CL_HELLO, 1000);
	rpc_fix_close_client(&f, b);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(c[i].err, ERR_CLOSED);
	mute_close(&m);
	rpc_fix_close(&f);
	NO_LEAKS();
}
