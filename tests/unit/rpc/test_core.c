/* SPDX-License-Identifier: Apache-2.0 */
/* The rpc core over the sp engine on loopback: calls, statuses, limits, parking, drain. */
#include "rpc_both.h"

#include "raw_sp.h"

#include <inttypes.h>

TestSuite(core, .timeout = 30);

BOTH(core, echo)
{
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES_STR("hello") };
	cr_assert(!rpc_client_up(cl));
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	cr_assert_eq(c.n_reply, 5);
	cr_assert_arr_eq(c.reply, "hello", 5);
	cr_assert_eq(c.term, 7);
	cr_assert_eq(f.last_peer.role, ROLE_ADMIN);
	cr_assert_arr_eq(f.last_peer.instance, f.instance, 16);
	cr_assert(rpc_client_up(cl));
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Around every size at which the way of the bytes changes: slot, envelope, read buffer, writev. */
static void sizes(const char *addr, uint32_t method)
{
	static const size_t n[] = {
		0,     1,      15,     1023,   1024,	1025,	 4095,
		4096,  4097,   16383,  16384,  16385,	32700,	 32768,
		33000, 131072, 200000, 999999, 1 << 20, 5000000, (8 << 20) - 128
	};
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	uint8_t *body = malloc(8 << 20);
	cr_assert(body);
	for (size_t i = 0; i < 8 << 20; i++)
		body[i] = (uint8_t)(i * 7 + i / 251);
	for (size_t i = 0; i < ARRAY_LEN(n); i++) {
		struct fix_call c = { .method = method, .body = BYTES(body, n[i]) };
		c.want = BYTES(body, n[i]);
		rpc_fix_call(&f, cl, &c);
		cr_assert_eq(c.err, ERR_NONE, "%zu bytes: %s", n[i], c.call.why.text);
		cr_assert(c.same, "%zu bytes differ", n[i]);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.requests, ARRAY_LEN(n));
	cr_assert_eq(k.bytes_queued, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	free(body);
	NO_LEAKS();
}

BOTH(core, every_size_at_once)
{
	sizes(addr, FIX_ECHO_M);
}

BOTH(core, every_size_later)
{
	sizes(addr, FIX_AECHO_M);
}

BOTH(core, too_large_both_ways)
{
	struct rpc_fix f;
	uint32_t n = 70000;
	struct rpc_server_opts o = { .limits = { .message_bytes_max = 65536 } };
	rpc_fix_open(&f, addr, &o);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	uint8_t *body = calloc(1, n);
	struct fix_call first = { .method = FIX_ECHO_M }, c = { .method = FIX_ECHO_M },
			big = { .method = FIX_BIG_M, .body = BYTES(&n, 4) };
	rpc_fix_call(&f, cl, &first);
	c.body = BYTES(body, n); /* the client knows the server's limit from WELCOME */
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_TOO_LARGE);
	cr_assert(strstr(c.call.why.text, "70000 bytes"), "%s", c.call.why.text);
	rpc_fix_call(&f, cl, &big);
	cr_assert_eq(big.err, ERR_TOO_LARGE);
	cr_assert(strstr(big.call.why.text, "the answer has 70000 bytes"), "%s",
		  big.call.why.text);
	cr_assert(rpc_client_up(cl));
	cr_assert_eq(rpc_fix_counters(&f).conns_accepted, 1, "nobody had to reconnect");
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	free(body);
	NO_LEAKS();
}

#define MANY 10000

BOTH(core, ten_thousand_pipelined)
{
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client_opts o = { .queue_max = MANY };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call *c = calloc(MANY, sizeof(*c));
	cr_assert(c);
	for (uint32_t i = 0; i < MANY; i++) {
		c[i].method = i % 3 ? FIX_ECHO_M : FIX_AECHO_M;
		c[i].tag = i;
		c[i].body = BYTES(&c[i].tag, 4);
		rpc_fix_start(&f, cl, &c[i]);
	}
	for (uint32_t i = 0; i < MANY; i++)
		rpc_fix_wait(&f, &c[i]);
	for (uint32_t i = 0; i < MANY; i++) {
		cr_assert_eq(c[i].err, ERR_NONE, "%s", c[i].call.why.text);
		cr_assert_eq(c[i].n_done, 1);
		cr_assert(c[i].n_reply == 4 && memcmp(c[i].reply, &c[i].tag, 4) == 0);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.requests, MANY);
	cr_assert_eq(k.replays + k.bad_macs + k.busy, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	free(c);
	NO_LEAKS();
}

/* ---- statuses ---- */

Test(core, the_servers_words_reach_the_caller)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_FAIL_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_EXISTS);
	cr_assert_eq(c.retry_ms, 33);
	cr_assert_str_eq(c.call.why.text, "the words of the server");
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, unknown_method_and_forbidden_role)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call a = { .method = 999 }, b = { .method = FIX_HOLDER_M },
			c = { .method = 5000000 };
	rpc_fix_call(&f, cl, &a);
	cr_assert_eq(a.err, ERR_UNKNOWN_METHOD);
	cr_assert(strstr(a.call.why.text, "method 999"), "%s", a.call.why.text);
	rpc_fix_call(&f, cl, &b);
	cr_assert_eq(b.err, ERR_FORBIDDEN);
	cr_assert(strstr(b.call.why.text, "role admin may not call FIX_HOLDER"), "%s",
		  b.call.why.text);
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_UNKNOWN_METHOD);
	cr_assert_eq(f.n_run, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, the_peer_comes_from_the_key)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts h = { .as = ROLE_HOLDER, .holder = "node7.agent" };
	struct rpc_client_opts t = { .as = ROLE_CLIENT, .tenant = "acme" };
	struct rpc_client *holder = rpc_fix_client(&f, &h), *tenant = rpc_fix_client(&f, &t);
	struct fix_call a = { .method = FIX_HOLDER_M }, b = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, holder, &a);
	cr_assert_eq(a.err, ERR_NONE, "%s", a.call.why.text);
	cr_assert_eq(f.last_peer.role, ROLE_HOLDER);
	cr_assert_str_eq(f.last_peer.holder, "node7.agent");
	rpc_fix_call(&f, tenant, &b);
	cr_assert_eq(f.last_peer.role, ROLE_CLIENT);
	cr_assert_str_eq(f.last_peer.tenant, "acme");
	cr_assert_str_eq(f.last_peer.holder, "");
	cr_assert_eq(rpc_fix_counters(&f).sessions, 2);
	rpc_fix_close_client(&f, holder);
	rpc_fix_close_client(&f, tenant);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, the_deadline_arrives_as_what_is_left)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 3000 };
	rpc_fix_call(&f, cl, &c);
	uint64_t now = loop_now_ns(&f.loop);
	cr_assert_gt(f.last_deadline_ns, now);
	cr_assert_lt(f.last_deadline_ns, now + 3100 * NS_PER_MS);
	cr_assert_gt(f.last_deadline_ns, now + 1000 * NS_PER_MS);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, an_expired_request_is_not_run)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	uint8_t *q = raw_request(&r, FIX_ECHO_M, 0, BYTES(NULL, 0), &n);
	cr_assert(raw_frame(&r, q, n));
	cr_assert(raw_reply(&r, 2000));
	cr_assert(!r.reply_is_plain);
	cr_assert_eq(r.reply.status, ERR_TIMED_OUT);
	cr_assert_eq(f.n_run, 0);
	cr_assert_eq(rpc_fix_counters(&f).expired, 1);
	free(q);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, a_session_keeps_to_its_version)
{
	struct rpc_fix f;
	struct raw_sp r;
	struct env_parts out;
	struct buf b = BUF_INIT(8 << 10), w = BUF_INIT(8 << 10);
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	struct msg_request q = {
		.v = 2, .method = FIX_ECHO_M, .session = r.ses.id, .id = 9, .deadline_ms = 100
	};
	cr_assert_eq(auth_next_seq(&r.ses, &q.seq), ERR_NONE);
	cr_assert_eq(env_request(&b, &q, &r.ses, &out), ERR_NONE);
	buf_put(&w, "\x80\0\0\x09", 4);
	buf_put(&w, out.p[0].p, out.p[0].n);
	cr_assert(raw_frame(&r, w.p, w.n));
	cr_assert(raw_reply(&r, 2000));
	cr_assert_eq(r.reply.status, ERR_VERSION_MISMATCH);
	cr_assert_eq(f.n_run, 0);
	buf_fini(&b);
	buf_fini(&w);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- limits ---- */

Test(core, a_client_keeps_to_the_servers_limit_by_itself)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .inflight_peer_max = 4 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c[6] = { 0 };
	for (int i = 0; i < 6; i++) {
		c[i].method = FIX_HOLD_M;
		rpc_fix_start(&f, cl, &c[i]);
	}
	RPC_FIX_UNTIL(&f, f.n_held == 4, 2000);
	rpc_fix_run_ms(&f, 20);
	cr_assert_eq(f.n_held, 4);
	rpc_fix_release(&f);
	RPC_FIX_UNTIL(&f, f.n_held == 2, 2000);
	rpc_fix_release(&f);
	for (int i = 0; i < 6; i++) {
		rpc_fix_wait(&f, &c[i]);
		cr_assert_eq(c[i].err, ERR_NONE);
	}
	cr_assert_eq(rpc_fix_counters(&f).busy, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, a_peer_over_its_limit_gets_busy_and_others_do_not)
{
	struct rpc_fix f;
	struct raw_sp r;
	struct rpc_server_opts o = { .limits = { .inflight_peer_max = 3 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	raw_open(&r, &f);
	raw_hello(&r);
	for (int i = 0; i < 4; i++) {
		size_t n;
		uint8_t *q = raw_request(&r, FIX_HOLD_M, 5000, BYTES(NULL, 0), &n);
		cr_assert(raw_frame(&r, q, n));
		free(q);
	}
	cr_assert(raw_reply(&r, 2000), "the fourth is answered at once");
	cr_assert_eq(r.reply.status, ERR_BUSY);
	cr_assert_gt(r.reply.retry_ms, 0);
	cr_assert_eq(f.n_held, 3);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE);
	cr_assert_eq(rpc_fix_counters(&f).busy, 1);
	rpc_fix_release(&f);
	for (int i = 0; i < 3; i++) {
		cr_assert(raw_reply(&r, 2000));
		cr_assert_eq(r.reply.status, ERR_NONE);
	}
	rpc_fix_close_client(&f, cl);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, requests_of_all_peers_are_bounded)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .inflight_max = 2 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl[3];
	struct fix_call c[3] = { 0 };
	for (int i = 0; i < 3; i++) {
		cl[i] = rpc_fix_client(&f, NULL);
		c[i].method = FIX_HOLD_M;
		rpc_fix_start(&f, cl[i], &c[i]);
		RPC_FIX_UNTIL(&f, f.n_held == (uint32_t)i + 1 || c[i].done, 2000);
	}
	cr_assert_eq(c[2].err, ERR_BUSY);
	cr_assert(strstr(c[2].call.why.text, "inflight_max"), "%s", c[2].call.why.text);
	cr_assert_gt(c[2].retry_ms, 0);
	rpc_fix_release(&f);
	for (int i = 0; i < 3; i++) {
		rpc_fix_wait(&f, &c[i]);
		rpc_fix_close_client(&f, cl[i]);
	}
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, bytes_of_requests_inside_are_bounded)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .inside_bytes_max = 20000 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	static uint8_t body[9000];
	struct fix_call c[3] = { 0 };
	for (int i = 0; i < 3; i++) {
		c[i].method = FIX_HOLD_M;
		c[i].body = BYTES(body, sizeof(body));
		rpc_fix_start(&f, cl, &c[i]);
	}
	rpc_fix_wait(&f, &c[2]);
	cr_assert_eq(c[2].err, ERR_BUSY);
	cr_assert(strstr(c[2].call.why.text, "inside_bytes_max"), "%s", c[2].call.why.text);
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &c[0]);
	rpc_fix_wait(&f, &c[1]);
	rpc_fix_start(&f, cl, &c[2]); /* now there is room */
	RPC_FIX_UNTIL(&f, f.n_held == 1, 2000);
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &c[2]);
	cr_assert_eq(c[2].err, ERR_NONE);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- parking ---- */

Test(core, parked_requests_leave_the_slots)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .inflight_max = 2, .inflight_peer_max = 2 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client_opts co = { .inflight_max = 8 };
	struct rpc_client *cl[5];
	struct fix_call c[5] = { 0 }, e = { .method = FIX_ECHO_M };
	for (int i = 0; i < 5; i++) {
		cl[i] = rpc_fix_client(&f, &co);
		c[i].method = FIX_PARK_M;
		c[i].body = BYTES_STR("poll");
		rpc_fix_start(&f, cl[i], &c[i]);
		RPC_FIX_UNTIL(&f, f.n_held == (uint32_t)i + 1, 2000);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.parked, 5);
	cr_assert_eq(k.inflight, 0);
	cr_assert_gt(k.bytes_parked, 0);
	cr_assert_eq(rpc_server_inflight(f.srv), 5);
	rpc_fix_call(&f, cl[0], &e);
	cr_assert_eq(e.err, ERR_NONE);
	rpc_fix_release(&f);
	for (int i = 0; i < 5; i++) {
		rpc_fix_wait(&f, &c[i]);
		cr_assert_eq(c[i].err, ERR_NONE);
		cr_assert_arr_eq(c[i].reply, "poll", 4);
		rpc_fix_close_client(&f, cl[i]);
	}
	cr_assert_eq(rpc_fix_counters(&f).bytes_parked, 0);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, parked_bytes_are_bounded_in_all_and_for_one)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .parked_bytes_max = 60 << 10,
						 .parked_peer_bytes_max = 40 << 10 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *a = rpc_fix_client(&f, NULL), *b = rpc_fix_client(&f, NULL);
	static uint8_t body[15000];
	struct fix_call c[6] = { 0 };
	for (int i = 0; i < 6; i++) {
		c[i].method = FIX_PARK_M;
		c[i].body = BYTES(body, sizeof(body));
	}
	for (int i = 0; i < 3; i++)
		rpc_fix_start(&f, a, &c[i]);
	rpc_fix_wait(&f, &c[2]); /* two fit into one peer's share */
	cr_assert_eq(c[2].err, ERR_BUSY);
	cr_assert_eq(c[2].retry_ms, 7);
	cr_assert_eq(f.n_held, 2);
	for (int i = 3; i < 6; i++)
		rpc_fix_start(&f, b, &c[i]);
	rpc_fix_wait(&f, &c[4]); /* of three more one fits into the whole */
	rpc_fix_wait(&f, &c[5]);
	cr_assert_eq(c[4].err, ERR_BUSY);
	cr_assert_eq(f.n_held, 3);
	cr_assert_leq(rpc_fix_counters(&f).bytes_parked, 60 << 10);
	rpc_fix_release(&f);
	for (int i = 0; i < 6; i++)
		rpc_fix_wait(&f, &c[i]);
	rpc_fix_close_client(&f, a);
	rpc_fix_close_client(&f, b);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, a_handler_learns_that_its_peer_went)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c[3] = { { .method = FIX_PARK_M },
				 { .method = FIX_HOLD_M },
				 { .method = FIX_PARK_M } };
	for (int i = 0; i < 3; i++)
		rpc_fix_start(&f, cl, &c[i]);
	RPC_FIX_UNTIL(&f, f.n_held == 3, 2000);
	rpc_fix_close_client(&f, cl);
	for (int i = 0; i < 3; i++) {
		cr_assert(c[i].done);
		cr_assert_eq(c[i].err, ERR_CLOSED);
	}
	RPC_FIX_UNTIL(&f, f.n_gone == 3, 2000);
	rpc_fix_release(&f); /* goes nowhere, ends the requests */
	cr_assert_eq(rpc_server_inflight(f.srv), 0);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- drain ---- */

BOTH(core, drain_answers_what_is_inside_and_takes_nothing_new)
{
	struct rpc_fix f;
	struct raw_sp r;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call held = { .method = FIX_HOLD_M }, c = { .method = FIX_ECHO_M };
	rpc_fix_start(&f, cl, &held);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 2000);
	raw_open(&r, &f);
	raw_greet(&r);
	rpc_server_drain(f.srv);
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_SHUTTING_DOWN);
	cr_assert(!held.done);
	cr_assert_eq(rpc_server_inflight(f.srv), 1);
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &held);
	cr_assert_eq(held.err, ERR_NONE);
	/* nobody new: not by a new connection, not by HELLO on an old one */
	struct rpc_client *late = rpc_fix_client(&f, NULL);
	struct fix_call l = { .method = FIX_ECHO_M, .deadline_ms = 200 };
	rpc_fix_call(&f, late, &l);
	cr_assert_eq(l.err, ERR_UNREACHABLE, "%s", l.call.why.text);
	struct why why = { 0 };
	cr_assert_eq(rpc_server_listen(f.srv, "tcp://127.0.0.1:0", NULL, 0, &why),
		     ERR_SHUTTING_DOWN);
	raw_close(&r);
	rpc_fix_close_client(&f, late);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* The last replies are written although close follows them at once. */
BOTH(core, close_flushes_replies)
{
	struct rpc_fix f;
	uint32_t n = 3 << 20;
	rpc_fix_open(&f, addr, NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_HOLD_M, .not_idempotent = true };
	uint8_t *body = malloc(n);
	cr_assert(body);
	memset(body, 'y', n);
	c.body = BYTES(body, n);
	c.want = c.body;
	rpc_fix_start(&f, cl, &c);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 2000);
	rpc_fix_stop_server(&f);
	rpc_fix_wait(&f, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	cr_assert(c.same);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	free(body);
	NO_LEAKS();
}

/* ---- sessions ---- */

Test(core, the_longest_idle_session_makes_room)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .sessions_max = 2 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl[3];
	for (int i = 0; i < 3; i++) {
		struct fix_call c = { .method = FIX_ECHO_M };
		cl[i] = rpc_fix_client(&f, NULL);
		rpc_fix_call(&f, cl[i], &c);
		cr_assert_eq(c.err, ERR_NONE);
	}
	cr_assert_eq(rpc_fix_counters(&f).sessions, 2);
	/* the first lost its session; it gets another by itself, on the same connection */
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl[0], &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.sessions, 2);
	cr_assert_eq(k.conns_accepted, 3);
	/* what might run twice is not sent again unasked */
	struct fix_call once = { .method = FIX_ECHO_M, .not_idempotent = true };
	rpc_fix_call(&f, cl[1], &once);
	cr_assert_eq(once.err, ERR_STALE_SESSION);
	rpc_fix_call(&f, cl[1], &once);
	cr_assert_eq(once.err, ERR_NONE, "%s", once.call.why.text);
	for (int i = 0; i < 3; i++)
		rpc_fix_close_client(&f, cl[i]);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(core, a_session_with_requests_inside_stays)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .sessions_max = 1 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *a = rpc_fix_client(&f, NULL), *b = rpc_fix_client(&f, NULL);
	struct fix_call held = { .method = FIX_PARK_M },
			c = { .method = FIX_ECHO_M, .deadline_ms = 150 };
	rpc_fix_start(&f, a, &held);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 2000);
	rpc_fix_call(&f, b, &c);
	cr_assert_eq(c.err, ERR_UNREACHABLE);
	cr_assert(strstr(c.call.why.text, "all 1 are in use"), "%s", c.call.why.text);
	rpc_fix_release(&f);
	rpc_fix_wait(&f, &held);
	cr_assert_eq(held.err, ERR_NONE);
	c.deadline_ms = 0;
	rpc_fix_call(&f, b, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	rpc_fix_close_client(&f, a);
	rpc_fix_close_client(&f, b);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* A session is not bound to its connection (nng peers have several): rpc_srv.h I2. */
Test(core, a_session_moves_to_another_connection)
{
	struct rpc_fix f;
	struct raw_sp a, b;
	size_t n;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&a, &f);
	raw_hello(&a);
	raw_open(&b, &f);
	raw_greet(&b);
	uint8_t *q = raw_request(&a, FIX_ECHO_M, 1000, BYTES_STR("moved"), &n);
	cr_assert(raw_frame(&b, q, n));
	free(q);
	close(a.fd);
	a.fd = b.fd;
	cr_assert(raw_reply(&a, 2000));
	cr_assert_eq(a.reply.status, ERR_NONE);
	cr_assert(a.reply.body.n == 5 && memcmp(a.reply.body.p, "moved", 5) == 0);
	rpc_fix_run_ms(&f, 5);
	q = raw_request(&a, FIX_ECHO_M, 1000, BYTES_STR("again"), &n);
	cr_assert(raw_frame(&a, q, n), "the old connection's end did not end the session");
	free(q);
	cr_assert(raw_reply(&a, 2000));
	cr_assert_eq(a.reply.status, ERR_NONE);
	raw_close(&a);
	buf_fini(&b.buf);
	free(b.in);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- shutdown under load ---- */

struct load {
	struct rpc_fix *f;
	struct rpc_client *cl;
	struct rpc_call calls[48];
	uint32_t n_out, n_ok, n_failed;
	bool stop;
};

static struct load *load;

static void load_start(struct rpc_call *c, uint32_t i)
{
	static const uint32_t methods[] = { FIX_ECHO_M, FIX_AECHO_M, FIX_HOLD_M, FIX_PARK_M };
	static uint8_t body[3000];
	c->method = methods[i % 4];
	c->idempotent = i % 3;
	c->deadline_ns = clock_after_ms(loop_now_ns(&load->f->loop), 150);
	c->body = BYTES(body, i * 60);
	load->n_out++;
	rpc_send(load->cl, c);
}

static void load_done(struct rpc_call *c)
{
	load->n_out--;
	load->n_ok += c->err == ERR_NONE;
	load->n_failed += c->err != ERR_NONE;
	cr_assert(c->err == ERR_NONE || c->err == ERR_SHUTTING_DOWN ||
			  c->err == ERR_CONN_LOST || c->err == ERR_UNREACHABLE ||
			  c->err == ERR_TIMED_OUT || c->err == ERR_STALE_SESSION,
		  "%s: %s", err_name(c->err), c->why.text);
	cr_assert(c->err == ERR_NONE || c->why.text[0], "an error without a reason");
	if (!load->stop)
		load_start(c, (uint32_t)(c - load->calls));
}

/* The server goes while requests are in every state; each of them ends, typed. */
BOTH(core, shutdown_under_load)
{
	struct rpc_fix f;
	struct load l = { .f = &f };
	char fixed[300];
	load = &l;
	rpc_fix_open(&f, addr, NULL);
	snprintf(fixed, sizeof(fixed), "%s", f.addr);
	struct rpc_client_opts o = { .backoff_min_ms = 1, .backoff_max_ms = 2 };
	l.cl = rpc_fix_client(&f, &o);
	for (uint32_t i = 0; i < ARRAY_LEN(l.calls); i++) {
		l.calls[i].done = load_done;
		load_start(&l.calls[i], i);
	}
	for (int round = 0; round < 60; round++) {
		for (int turn = 0; turn < round % 17; turn++)
			loop_run_once(&f.loop, true);
		if (round % 3 == 0)
			rpc_server_drain(f.srv);
		if (round % 3 == 1)
			rpc_fix_release(&f);
		for (int turn = 0; turn < round % 5; turn++)
			loop_run_once(&f.loop, true);
		rpc_fix_stop_server(&f);
		rpc_fix_serve(&f, fixed);
	}
	l.stop = true;
	rpc_fix_run_ms(&f, 10);
	rpc_fix_release(&f);
	RPC_FIX_UNTIL(&f, l.n_out == 0, 3000);
	cr_assert_gt(l.n_ok, 100, "%u", l.n_ok);
	cr_assert_gt(l.n_failed, 10, "%u", l.n_failed);
	rpc_fix_close_client(&f, l.cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}
