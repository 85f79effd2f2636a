/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nng 1.5.2's traps, one test each (named in the test's first comment), as found when the platform was
 * measured. Where it can be done, the test first lets a naive program (naive_nng.c) walk into the
 * trap: a control that says whether the library at hand has it. A control that no longer shows it
 * is printed and does not fail: then the library was mended.
 */
#include "support/eng_fix.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/rep.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(hazard, .timeout = 60);

static struct fix_server sv;
static struct fix_client cl;

/* ---- a peer of bare bytes ---- */

static const uint8_t greet_rep[8] = { 0, 'S', 'P', 0, 0, 0x31, 0, 0 };
static const uint8_t greet_req[8] = { 0, 'S', 'P', 0, 0, 0x30, 0, 0 };

struct raw_server {
	int fd, n_accepted;
	char addr[64];
};

static void raw_listen(struct raw_server *r)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(sa);
	*r = (struct raw_server){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0) };
	cr_assert_eq(bind(r->fd, (struct sockaddr *)&sa, n), 0);
	cr_assert_eq(listen(r->fd, 64), 0);
	cr_assert_eq(getsockname(r->fd, (struct sockaddr *)&sa, &n), 0);
	snprintf(r->addr, sizeof(r->addr), "tcp://127.0.0.1:%u", ntohs(sa.sin_port));
}

/* The next connection, greeted; -1 when there is none. */
static int raw_accept(struct raw_server *r)
{
	int fd = accept(r->fd, NULL, NULL);
	if (fd < 0)
		return -1;
	r->n_accepted++;
	cr_assert_eq(write(fd, greet_rep, 8), 8);
	return fd;
}

static uint16_t port_of(const char *addr)
{
	return (uint16_t)atoi(strrchr(addr, ':') + 1);
}

static uint64_t vm_kib(void)
{
	char line[128];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/self/status", "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "VmSize: %lu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

static int naive(struct loop *l, const char *mode, const char *a, const char *b)
{
	int status = 0;
	bool ended = false;
	pid_t pid = fork();
	if (pid == 0) {
		execl(NAIVE_NNG, NAIVE_NNG, mode, a, b, (char *)NULL);
		_exit(127);
	}
	(void)RUN_UNTIL(l, ended || (ended = waitpid(pid, &status, WNOHANG) == pid), 20000);
	cr_assert(ended);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void control(bool shown, const char *what)
{
	fprintf(stderr, "control: %s: %s\n", what,
		shown ? "this library has the hazard" : "not shown by this library");
}

/* ---- the hazards ---- */

/*
 * Hazard: on a REQ context, a receive that is started before the send completed and then times out or
 * is cancelled without a peer is a SIGSEGV (upstream 1702).
 */
Test(hazard, receive_before_the_send_completed)
{
	struct loop l;
	struct raw_server r;
	struct why why = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	control(naive(&l, "receive-first", NULL, NULL) == 128 + SIGSEGV, "SIGSEGV");
	raw_listen(&r);
	for (int round = 0; round < 20; round++) {
		/* the peer greets and reads nothing: the first send fills the socket, the others
		 * wait; all are given up in every state there is, then the peer goes */
		cr_assert_eq(fix_dial(&cl, &l, &engine_nng, r.addr, NULL, NULL, &why),
			     ERR_NONE);
		int fd = -1;
		cr_assert(RUN_UNTIL(&l, fd >= 0 || (fd = raw_accept(&r)) >= 0, 5000));
		cr_assert(RUN_UNTIL(&l, cl.n_up, 5000));
		for (uint32_t i = 0; i < 4; i++)
			cr_assert_eq(fix_send(&cl, i, i < 2 ? 6u << 20 : 100), ERR_NONE);
		for (int k = 0; k < round % 7; k++)
			loop_run_once(&l, false);
		for (uint32_t i = 0; i < 3; i++) {
			engine_nng.cancel(cl.p, &cl.xchg[i].x);
			cl.xchg[i].out = false;
		}
		if (round & 1)
			close(fd);
		cr_assert(round % 2 == 0 || RUN_UNTIL(&l, cl.n_down, 5000));
		fix_client_end(&cl);
		if (!(round & 1))
			close(fd);
	}
	close(r.fd);
	loop_close(&l);
	NO_LEAKS();
}

struct chain {
	struct eng_xchg x;
	uint32_t left, *total;
};

static void chain_next(struct eng_xchg *x, enum err e, struct bytes reply)
{
	struct chain *c = container_of(x, struct chain, x);
	struct bytes b = BYTES("12345678", 8);
	cr_assert_eq(e, ERR_NONE);
	cr_assert_eq(reply.n, 8);
	(*c->total)++;
	if (c->left-- > 0)
		cr_assert_eq(engine_nng.send(cl.p, x, &b, 1), ERR_NONE);
}

/*
 * Hazard: a reply can arrive before the request's send aio is retired; using that aio again at once
 * is an abort ("!nni_aio_list_active"). Here every reply sends the next request from inside done.
 */
Test(hazard, aio_used_again_at_once)
{
	struct loop l;
	struct chain chains[16];
	struct bytes b = BYTES("12345678", 8);
	uint32_t total = 0;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_sp, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	for (size_t i = 0; i < ARRAY_LEN(chains); i++) {
		chains[i] =
			(struct chain){ .x.done = chain_next, .left = 249, .total = &total };
		cr_assert_eq(engine_nng.send(cl.p, &chains[i].x, &b, 1), ERR_NONE);
	}
	cr_assert(RUN_UNTIL(&l, total == 16 * 250, 30000), "%u", total);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/* Greets as a client and announces a frame of 8 GiB. */
static int announce_8_gib(uint16_t port)
{
	uint8_t b[16] = { 0 };
	int fd = fix_tcp(port);
	memcpy(b, greet_req, 8);
	b[8 + 3] = 2;
	cr_assert_eq(write(fd, b, 16), 16);
	return fd;
}

static void naive_listener_reserves(struct loop *l)
{
#ifndef LEAK_CHECKED /* the sanitizer's allocator has its own idea of 8 GiB */
	nng_socket s;
	nng_listener li;
	int port;
	cr_assert_eq(nng_rep0_open(&s), 0);
	cr_assert_eq(nng_listen(s, "tcp://127.0.0.1:0", &li, 0), 0);
	cr_assert_eq(nng_listener_get_int(li, NNG_OPT_TCP_BOUND_PORT, &port), 0);
	uint64_t before = vm_kib();
	int fd = announce_8_gib((uint16_t)port);
	bool shown = RUN_UNTIL(l, vm_kib() > before + (4ull << 20), 2000);
	control(shown, "8 GiB of address space for a length");
	close(fd);
	fix_run(l, 100);
	nng_close(s);
#endif
}

/*
 * Hazard: RECVMAXSZ is unlimited unless set: a handshake and a length of 8 GiB reserve 8 GiB. The
 * limit holds on both sides, and from the first connection on.
 */
Test(hazard, unlimited_receive_size)
{
	struct loop l;
	struct raw_server r;
	struct why why = { 0 };
	char byte;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	naive_listener_reserves(&l);

	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	uint64_t before = vm_kib();
	int fd = announce_8_gib(port_of(sv.addr));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	cr_assert(RUN_UNTIL(&l, read(fd, &byte, 1) == 0, 5000), "the connection stays");
	cr_assert_lt(vm_kib(), before + (1u << 20), "address space was reserved");
	close(fd);
	fix_server_end(&sv);

	raw_listen(&r);
	cr_assert_eq(fix_dial(&cl, &l, &engine_nng, r.addr, NULL, NULL, &why), ERR_NONE);
	fd = -1;
	cr_assert(RUN_UNTIL(&l, fd >= 0 || (fd = raw_accept(&r)) >= 0, 5000));
	cr_assert(RUN_UNTIL(&l, cl.n_up, 5000));
	before = vm_kib();
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	uint8_t huge[8] = { 0, 0, 0, 2 };
	cr_assert_eq(write(fd, huge, 8), 8);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_CONN_LOST);
	cr_assert_lt(vm_kib(), before + (1u << 20), "address space was reserved");
	fix_client_end(&cl);
	close(fd);
	close(r.fd);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: an oversize request is a poison message: the server drops the connection, REQ dials again
 * and sends it again, for ever. Ours fails it at once, and nothing dials again by itself.
 */
Test(hazard, poison_message)
{
	struct loop l;
	struct eng_limits lim = fix_limits();
	cr_assert_eq(loop_open(&l), ERR_NONE);
	lim.message_bytes_max = 10000;
	lim.anon_message_bytes_max = 10000;
	fix_serve(&sv, &l, &engine_sp, "tcp://127.0.0.1:0", &lim, NULL);
	naive(&l, "poison", sv.addr, "20000");
	control(sv.counters.conns_accepted > 5, "dials again and again with it");
	uint64_t before = sv.counters.conns_accepted, t0 = loop_now_ns(&l);
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&cl, 0, 20000), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_done == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_CONN_LOST);
	cr_assert_lt(loop_now_ns(&l) - t0, NS_PER_S, "the error came late");
	fix_run(&l, 600);
	cr_assert_eq(sv.counters.conns_accepted - before, 1, "%d connections",
		     (int)(sv.counters.conns_accepted - before));
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: REQ sends a request again by itself: after its resend time, and at once when the connection
 * goes. With message tags a second copy is a replay.
 */
Test(hazard, resend_duplicates)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_sp, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	sv.mode = FIX_HOLD;
	naive(&l, "resend", sv.addr, NULL);
	control(sv.n_requests > 1, "a slow server sees a request several times");
	fix_release(&sv, "");
	uint32_t before = sv.n_requests;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	fix_run(&l, 500);
	cr_assert_eq(sv.n_requests - before, 1, "seen %u times", sv.n_requests - before);
	/* the connection goes with the request unanswered: it ends there */
	sv.eng->conn_close(sv.s, sv.last_conn);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	cr_assert_eq(cl.xchg[0].err, ERR_CONN_LOST);
	fix_run(&l, 500);
	cr_assert_eq(sv.n_requests - before, 1);
	fix_release(&sv, "");
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: RECONNMINT is no minimum: the wait is (int)random % back-off, negative every other time,
 * which is "at once"; and RECONNMAXT 0 means no growth. Here a connection that broke is dialed again
 * by the core alone (50 ms..2 s, test_client.c), never by nng.
 */
Test(hazard, reconnect_times)
{
	struct loop l;
	struct raw_server r;
	struct why why = { 0 };
	cr_assert_eq(loop_open(&l), ERR_NONE);
	raw_listen(&r);
	/* serve naive_nng: greet, hang up */
	int status = 0;
	bool ended = false;
	pid_t pid = fork();
	if (pid == 0) {
		execl(NAIVE_NNG, NAIVE_NNG, "redial", r.addr, (char *)NULL);
		_exit(127);
	}
	while (!ended) {
		int fd = raw_accept(&r);
		if (fd >= 0)
			close(fd);
		fix_run(&l, 5);
		ended = waitpid(pid, &status, WNOHANG) == pid;
	}
	control(r.n_accepted > 2, "a second between two dials, it says");

	r.n_accepted = 0;
	cr_assert_eq(fix_dial(&cl, &l, &engine_nng, r.addr, NULL, NULL, &why), ERR_NONE);
	int fd = -1;
	cr_assert(RUN_UNTIL(&l, fd >= 0 || (fd = raw_accept(&r)) >= 0, 5000));
	cr_assert(RUN_UNTIL(&l, cl.n_up, 5000));
	close(fd);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000));
	for (int i = 0; i < 100; i++) {
		fd = raw_accept(&r);
		if (fd >= 0)
			close(fd);
		fix_run(&l, 5);
	}
	cr_assert_eq(r.n_accepted, 1, "nng dialed %d times more", r.n_accepted - 1);
	fix_client_end(&cl);
	close(r.fd);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: a REP context that drops a message leaves the client waiting. Our server answers every
 * request or ends the connection: either way the client knows at once.
 */
Test(hazard, request_without_an_answer)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.mode = FIX_DROP;
	for (uint32_t n = 1; n < 3; n++) {
		fix_connect(&cl, &l, &engine_nng, sv.addr);
		for (uint32_t i = 0; i < n; i++)
			cr_assert_eq(fix_send(&cl, i, 10), ERR_NONE);
		cr_assert(RUN_UNTIL(&l, cl.n_done == n, 1000), "%u of %u know", cl.n_done, n);
		for (uint32_t i = 0; i < n; i++)
			cr_assert_eq(cl.xchg[i].err, ERR_CONN_LOST);
		fix_client_end(&cl);
	}
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: 200 silent connections (and 50 that sent garbage, after each of which nng's listener
 * takes a rest of 100 ms) must not block an honest dial.
 */
Test(hazard, silent_and_garbage_connections)
{
	struct loop l;
	int fds[250];
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		fds[i] = fix_tcp(port_of(sv.addr));
		if (i >= 200)
			cr_assert_eq(write(fds[i], "garbage!", 8), 8);
	}
	uint64_t t0 = loop_now_ns(&l);
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 1, 5000));
	cr_assert_lt(loop_now_ns(&l) - t0, 2 * NS_PER_S);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		close(fds[i]);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/*
 * Hazard: libnng and libnanomsg export the same 21 nn_* names, and Criterion talks to its workers with
 * nanomsg: its own must win in this process, or nng dies in a forked worker (or the runner does).
 */
Test(hazard, symbol_clash_with_criterion)
{
	static const char *const names[] = { "nn_socket", "nn_send", "nn_recv", "nn_close" };
	struct loop l;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		Dl_info info = { 0 };
		void *at = dlsym(RTLD_DEFAULT, names[i]);
		cr_assert(at && dladdr(at, &info), "%s", names[i]);
		cr_assert(strstr(info.dli_fname, "nanomsg"), "%s comes from %s", names[i],
			  info.dli_fname);
	}
	cr_assert_eq(loop_open(&l), ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "ipc:///tmp/pml_clash.sock", NULL, NULL);
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 1, 5000));
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	NO_LEAKS();
}

/* ---- the reaper ---- */

static sem_t hold, held;

static void hold_reaper(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	(void)p, (void)ev, (void)arg;
	sem_post(&held);
	sem_wait(&hold);
}

/*
 * Hazard (found here; upstream 1543): nng's one reaper thread can wait for ever, and with it every
 * nng_close. Here it is held on purpose, by a callback of another socket: our loop must go on, every
 * close must end, and the log must say what happened.
 */
Test(hazard, reaper_that_hangs)
{
	struct loop l;
	nng_socket a, b;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	sem_init(&hold, 0, 0);
	sem_init(&held, 0, 0);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	fix_connect(&cl, &l, &engine_nng, sv.addr);
	cr_assert_eq(nng_pair0_open(&a), 0);
	cr_assert_eq(nng_pair0_open(&b), 0);
	nng_listener li;
	nng_dialer di;
	cr_assert_eq(nng_pipe_notify(b, NNG_PIPE_EV_REM_POST, hold_reaper, NULL), 0);
	cr_assert_eq(nng_listen(a, "inproc://reaper", &li, 0), 0);
	cr_assert_eq(nng_dial(b, "inproc://reaper", &di, 0), 0);
	fix_run(&l, 50);
	nng_listener_close(li);
	sem_wait(&held); /* the reaper is in hold_reaper now */

	/* requests still go both ways */
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 1, 5000));
	uint64_t t0 = loop_now_ns(&l);
	fix_client_end(&cl);
	fix_server_end(&sv);
	uint64_t took_ms = (loop_now_ns(&l) - t0) / NS_PER_MS;
	cr_assert_geq(took_ms, 1900, "nothing hung: the test holds no reaper");
	cr_assert_lt(took_ms, 8000, "%d ms", (int)took_ms);
	loop_close(&l);
	sem_post(&hold);
	sem_post(&hold);
	/* what was left behind is nng's: no NO_LEAKS() */
}
