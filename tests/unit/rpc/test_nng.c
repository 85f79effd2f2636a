/* SPDX-License-Identifier: Apache-2.0 */
/* The nng engine by itself: echo, order of ends, limits, closing. Other engines: test_interop.c. */
#include "support/eng_fix.h"
#include "support/leak.h"
#include "support/tls_fix.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

TestSuite(nng, .timeout = 30);

static struct fix_server sv;
static struct fix_client cl;

Test(nng, starts_no_thread_before_first_use)
{
	struct loop l;
	int n_nng;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct rpc_counters counters = { 0 };
	struct log log = { .svc = "t", .fd = 2 };
	struct eng_server_opts o = { .limits = fix_limits(),
				     .log = &log,
				     .counters = &counters };
	struct eng_server *s;
	/* linked, picked and made: still nothing runs */
	cr_assert_eq(engine_pick("nng", "tls+tcp://localhost:1", NULL), &engine_nng);
	cr_assert_eq(engine_pick(NULL, "tls+tcp://localhost:1", NULL), &engine_sp);
	cr_assert_eq(engine_nng.server_new(&l, &o, &s), ERR_NONE);
	fix_threads(&n_nng);
	cr_assert_eq(n_nng, 0, "%d threads of nng before its first socket", n_nng);
	sv.closed = false;
	sv.s = s;
	sv.eng = &engine_nng;
	sv.loop = &l;
	fix_server_end(&sv);
	fix_threads(&n_nng);
	cr_assert_eq(n_nng, 0);

	/* the sp engine never brings any, with TLS neither */
	struct tls_fix certs;
	struct why why = { 0 };
	tls_fix_make(&certs);
	struct tls_files ours = { .cert = certs.server, .key = certs.server_key };
	struct tls_files theirs = { .ca = certs.ca };
	fix_serve(&sv, &l, &engine_sp, "tls+tcp://127.0.0.1:0", NULL, &ours);
	cr_assert_eq(fix_dial(&cl, &l, &engine_sp, sv.addr, NULL, &theirs, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_up == 1, 5000));
	cr_assert_eq(fix_send(&cl, 0, 100), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_done == 1, 5000));
	fix_threads(&n_nng);
	cr_assert_eq(n_nng, 0, "the sp engine started %d threads of nng", n_nng);
	fix_client_end(&cl);
	fix_server_end(&sv);
	tls_fix_remove(&certs);

	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	fix_threads(&n_nng);
	cr_assert_gt(n_nng, 0,
		     "the count of threads sees none: this test would not notice any");
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

static void echo_over(const char *addr)
{
	static const size_t sizes[] = { 0, 1, 64, 4096, 65536, 1u << 20, (8u << 20) - 4 };
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, addr, NULL, NULL);
	sv.know = true;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cr_assert_eq(fix_send(&cl, i, sizes[i]), ERR_NONE);
		cr_assert(RUN_UNTIL(&l, cl.n_done == i + 1, 5000), "size %zu", sizes[i]);
		cr_assert(fix_echoed(&cl, i, sizes[i]), "size %zu: %s, %zu bytes", sizes[i],
			  err_name(cl.xchg[i].err), cl.xchg[i].n_reply);
	}
	cr_assert_eq(sv.counters.conns_open, 1);
	fix_client_end(&cl);
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_open == 0, 3000));
	cr_assert_eq(sv.n_closed_conns, 1);
	cr_assert_eq(sv.counters.bytes_queued, 0);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, echo_tcp)
{
	echo_over("tcp://127.0.0.1:0");
}

Test(nng, echo_ipc)
{
	echo_over("ipc:///tmp/pml_test_nng.sock");
	cr_assert_neq(access("/tmp/pml_test_nng.sock", F_OK), 0, "the socket file stayed");
}

Test(nng, many_outstanding_and_many_rounds)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (uint32_t round = 1; round <= 5; round++) {
		for (uint32_t i = 0; i < 128; i++)
			cr_assert_eq(fix_send(&cl, i, i * 37), ERR_NONE);
		cr_assert(RUN_UNTIL(&l, cl.n_done == 128 * round, 5000));
		for (uint32_t i = 0; i < 128; i++)
			cr_assert(fix_echoed(&cl, i, i * 37));
	}
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, cancel_gives_the_exchange_back_and_its_slot)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (uint32_t i = 0; i < 32; i++)
		cr_assert_eq(fix_send(&cl, i, 10), ERR_NONE);
	for (uint32_t i = 0; i < 8; i++) {
		/* some at once, while the send is out; the rest while the receive is */
		cl.eng->cancel(cl.p, &cl.xchg[i].x);
		cl.xchg[i].out = false;
	}
	cr_assert(RUN_UNTIL(&l, sv.n_held >= 24, 5000));
	for (uint32_t i = 8; i < 16; i++) {
		cl.eng->cancel(cl.p, &cl.xchg[i].x);
		cl.xchg[i].out = false;
	}
	sv.mode = FIX_ECHO; /* for those that are still on their way */
	fix_release(&sv, "late");
	cr_assert(RUN_UNTIL(&l, cl.n_done == 16, 5000), "%u done", cl.n_done);
	fix_run(&l, 20); /* replies to the cancelled ones arrive and are thrown away */
	cr_assert_eq(cl.n_done, 16);
	for (uint32_t i = 0; i < 32; i++)
		cr_assert_eq(fix_send(&cl, i, 100), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_done == 48, 5000));
	for (uint32_t i = 0; i < 32; i++)
		cr_assert(fix_echoed(&cl, i, 100), "exchange %u got another one's reply", i);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, server_gone_fails_all_before_down)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (uint32_t i = 0; i < 20; i++)
		cr_assert_eq(fix_send(&cl, i, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, sv.n_held == 20, 5000));
	engine_nng.conn_close(sv.s, sv.last_conn);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.n_done, 20);
	cr_assert(!cl.down_before_done);
	cr_assert_eq(cl.down_err, ERR_CONN_LOST);
	for (uint32_t i = 0; i < 20; i++)
		cr_assert_eq(cl.xchg[i].err, ERR_CONN_LOST);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_CONN_LOST);
	cr_assert(RUN_UNTIL(&l, sv.n_closed_conns == 1, 5000));
	fix_release(&sv, "to nobody"); /* tokens of a closed connection must still be ended */
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, drop_closes_the_connection)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.mode = FIX_DROP;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_CONN_LOST);
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_open == 0, 5000));
	cr_assert_eq(sv.counters.conns_dropped, 1);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, dial_refused_is_told_at_once)
{
	struct loop l;
	struct why why = { 0 };
	char addr[64];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_addr(addr, sizeof(addr), "tcp");
	uint64_t t0 = loop_now_ns(&l);
	cr_assert_eq(fix_dial(&cl, &l, &engine_nng, addr, NULL, NULL, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert_lt(loop_now_ns(&l) - t0, 500 * NS_PER_MS, "took the whole handshake time");
	cr_assert_eq(cl.down_err, ERR_UNREACHABLE);
	cr_assert(strstr(cl.down_text, "refused"), "%s", cl.down_text);
	fix_client_end(&cl);

	cr_assert_eq(fix_dial(&cl, &l, &engine_nng, "ipc:///tmp/pml_no_such.sock", NULL, NULL,
			      &why),
		     ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert(strstr(cl.down_text, "nobody listens"), "%s", cl.down_text);
	fix_client_end(&cl);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * nng 1.5 may hang here for good (nng_sock.h I3): then the engine goes on without it, which takes
 * CLOSE_MS a close, and the rest of the rounds is left out.
 */
Test(nng, hangup_at_any_moment)
{
	struct loop l;
	struct why why = { 0 };
	bool stuck = false;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	for (int i = 0; i < 30 && !stuck; i++) {
		cr_assert_eq(fix_dial(&cl, &l, &engine_nng, sv.addr, NULL, NULL, &why),
			     ERR_NONE);
		for (int turns = 0; turns < i && !cl.n_up; turns++)
			loop_run_once(&l, false);
		if (cl.n_up)
			for (uint32_t k = 0; k < 10; k++)
				cr_assert_eq(fix_send(&cl, k, 64), ERR_NONE);
		uint64_t t0 = loop_now_ns(&l);
		fix_client_end(&cl);
		stuck = loop_now_ns(&l) - t0 > 1500 * NS_PER_MS;
	}
	uint64_t t1 = loop_now_ns(&l);
	fix_server_end(&sv);
	stuck |= loop_now_ns(&l) - t1 > 1500 * NS_PER_MS;
	loop_close(&l);
	if (!stuck) /* else it is nng's own, behind its reaper */
		NO_LEAKS();
}

Test(nng, anonymous_limits)
{
	struct loop l;
	struct eng_limits lim = fix_limits();
	static struct fix_client c[12];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	lim.conns_anon_max = 8;
	lim.anon_message_bytes_max = 1000;
	lim.handshake_ms = 300;
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", &lim, NULL);

	/* a message too large for a peer that is not known yet */
	fix_connect(&c[0], &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&c[0], 0, 1001), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, c[0].n_down == 1, 200));
	cr_assert_eq(c[0].xchg[0].err, ERR_CONN_LOST);
	cr_assert_eq(sv.counters.bad_frames, 1);
	cr_assert_eq(sv.n_requests, 0);
	fix_client_end(&c[0]);

	/* one more than the limit drops the oldest unknown one */
	for (int i = 0; i < 9; i++)
		fix_connect(&c[i], &l, &engine_nng, sv.addr);
	cr_assert(RUN_UNTIL(&l, c[0].n_down == 1, 200));
	cr_assert_eq(c[1].n_down, 0);
	/* a known one stays when the handshake time is over, the others go */
	sv.know = true;
	cr_assert_eq(fix_send(&c[8], 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, c[8].n_ok == 1, 200));
	cr_assert(RUN_UNTIL(&l, c[7].n_down == 1, 1000), "an idle unknown peer stayed");
	fix_run(&l, 50);
	cr_assert_eq(c[8].n_down, 0);
	cr_assert_eq(fix_send(&c[8], 0, 2000), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, c[8].n_ok == 2, 1000), "the anonymous limit stayed");
	for (int i = 0; i < 9; i++)
		fix_client_end(&c[i]);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, conns_max_refuses_the_next)
{
	struct loop l;
	struct eng_limits lim = fix_limits();
	static struct fix_client c[4];
	struct why why = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	lim.conns_max = 3;
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", &lim, NULL);
	sv.know = true;
	for (int i = 0; i < 3; i++)
		fix_connect(&c[i], &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_dial(&c[3], &l, &engine_nng, sv.addr, NULL, NULL, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, c[3].n_down == 1, 3000));
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_refused >= 1, 1000));
	cr_assert_eq(sv.counters.conns_open, 3);
	fix_client_end(&c[3]);
	/* a place that is free again is given again */
	fix_client_end(&c[0]);
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_open == 2, 3000));
	fix_connect(&c[0], &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&c[0], 0, 5), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, c[0].n_ok == 1, 3000));
	for (int i = 0; i < 3; i++)
		fix_client_end(&c[i]);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, requests_inside_are_bounded)
{
	struct loop l;
	struct eng_limits lim = fix_limits();
	cr_assert_eq(loop_open(&l), ERR_NONE);
	lim.message_bytes_max = 100000;
	lim.inside_bytes_max = 1000000;
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", &lim, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (uint32_t i = 0; i < 40; i++)
		cr_assert_eq(fix_send(&cl, i, 90000), ERR_NONE);
	fix_run(&l, 300);
	cr_assert_leq((uint64_t)sv.n_held * 90000, 1000000 + 100000);
	cr_assert_geq(sv.n_held, 10);
	sv.mode = FIX_ECHO;
	fix_release(&sv, "go on");
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 40, 5000), "%u of 40", cl.n_ok);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, drain_refuses_new_and_serves_old)
{
	struct loop l;
	static struct fix_client late;
	struct why why = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_open == 1, 3000));
	engine_nng.drain(sv.s);
	cr_assert_eq(fix_dial(&late, &l, &engine_nng, sv.addr, NULL, NULL, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, late.n_down == 1, 3000));
	cr_assert_eq(fix_send(&cl, 0, 5), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 1, 3000), "a drained server must answer its peers");
	fix_client_end(&late);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

Test(nng, listen_errors_name_address_and_remedy)
{
	struct loop l;
	struct why why = { 0 };
	static struct fix_server other;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	fix_serve(&other, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	cr_assert_eq(engine_nng.listen(other.s, sv.addr, NULL, 0, &why), ERR_EXISTS);
	cr_assert(strstr(why.text, sv.addr) && strstr(why.text, "another process"), "%s",
		  why.text);
	why = (struct why){ 0 };
	cr_assert_eq(engine_nng.listen(other.s, "tcp://192.0.2.1:0", NULL, 0, &why),
		     ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "no interface"), "%s", why.text);
	why = (struct why){ 0 };
	cr_assert_eq(engine_nng.listen(other.s, "tls+tcp://127.0.0.1:0", NULL, 0, &why),
		     ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "certificate"), "%s", why.text);
	fix_server_end(&sv);
	fix_server_end(&other);
	loop_close(&l);
	NO_LEAKS();
}
