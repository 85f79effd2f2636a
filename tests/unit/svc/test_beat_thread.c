/* SPDX-License-Identifier: Apache-2.0 */
/* Beats with real threads and sockets: both ends on loops of this process. */
#include "svc/beat.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/auth.h"
#include "../../support/leak.h"

TestSuite(beat_thread, .timeout = 30);

#define BEAT_MS	   30
/* far above what a busy test machine holds a thread up for */
#define SUSPECT_MS 800

struct fixture {
	struct loop loop;
	struct keyring *keys;
	struct log log;
	struct log_capture quiet;
	char lines[4096];
	char dir[32], master[64], from[64];
	struct beat_table *table;
	struct beat_sender *sender;
	bool ready;
	int n_closed, n_pings;
	uint64_t late_max_ns;
};

static void on_line(struct log_capture *c, const char *line, size_t n)
{
	struct fixture *f = container_of(c, struct fixture, quiet);
	strncat(f->lines, line, MIN_OF(n, sizeof(f->lines) - strlen(f->lines) - 1));
}

static void on_closed(void *arg)
{
	++*(int *)arg;
}

static void on_news(void *ctx, uint64_t last_ack_ns, struct beat_news *out)
{
	struct fixture *f = ctx;
	out->loop_turns = __atomic_load_n(&f->loop.turns, __ATOMIC_RELAXED);
	out->ready = __atomic_load_n(&f->ready, __ATOMIC_RELAXED);
	out->pid = 4711;
}

static void on_ping(void *ctx, uint64_t late_ns)
{
	struct fixture *f = ctx;
	f->n_pings++;
	f->late_max_ns = MAX_OF(f->late_max_ns, late_ns);
}

static void begin(struct fixture *f)
{
	static const uint8_t secret[32] = { 7 };
	memset(f, 0, sizeof(*f));
	f->ready = true;
	f->quiet.fn = on_line;
	f->log.svc = "test";
	log_set_capture(&f->log, &f->quiet);
	cr_assert_eq(loop_open(&f->loop), ERR_NONE);
	cr_assert_eq(keyring_new(secret, NULL, &f->keys), ERR_NONE);
	strcpy(f->dir, "/tmp/pml-beat-XXXXXX");
	cr_assert_not_null(mkdtemp(f->dir));
	snprintf(f->master, sizeof(f->master), "unix:%s/beat.sock", f->dir);
	snprintf(f->from, sizeof(f->from), "unix:%s/agent.beat", f->dir);
}

static void end(struct fixture *f)
{
	loop_close(&f->loop);
	keyring_free(f->keys);
	cr_expect_eq(rmdir(f->dir), 0, "a socket file was left");
}

static void open_table(struct fixture *f, const char *addr)
{
	struct why why = { 0 };
	const char *listen[] = { addr };
	struct beat_table_opts o = { .keys = f->keys,
				     .log = &f->log,
				     .listen = listen,
				     .n_listen = 1,
				     .suspect_ms = SUSPECT_MS,
				     .dead_ms = 2400 };
	cr_assert_eq(beat_table_open(&f->loop, &o, &f->table, &why), ERR_NONE, "%s", why.text);
}

static struct beat_sender *open_sender(struct fixture *f, struct loop *l, const char *const *to,
				       size_t n_to)
{
	static const uint8_t instance[16] = { 0xab };
	struct why why = { 0 };
	struct beat_sender *b;
	struct beat_sender_opts o = { .name = "agent",
				      .role = ROLE_HOLDER,
				      .keys = f->keys,
				      .instance = instance,
				      .log = &f->log,
				      .to = to,
				      .n_to = n_to,
				      .from = f->from,
				      .beat_ms = BEAT_MS,
				      .news = on_news,
				      .ping = on_ping,
				      .ctx = f };
	cr_assert_eq(beat_sender_open(l, &o, &b, &why), ERR_NONE, "%s", why.text);
	return b;
}

static void close_table(struct fixture *f)
{
	int n = f->n_closed + 1;
	beat_table_close(f->table, on_closed, &f->n_closed);
	while (f->n_closed < n)
		loop_run_once(&f->loop, true);
}

static void close_sender(struct fixture *f)
{
	int n = f->n_closed + 1;
	beat_sender_close(f->sender, on_closed, &f->n_closed);
	cr_expect_lt(f->n_closed, n, "closed never runs inside");
	while (f->n_closed < n)
		loop_run_once(&f->loop, true);
}

static bool until(struct fixture *f, enum beat_state state, unsigned ms)
{
	struct beat_peer p;
	uint64_t give_up = clock_after_ms(loop_now_ns(&f->loop), ms);
	while (loop_now_ns(&f->loop) < give_up) {
		if (beat_table_find(f->table, "agent", &p) && p.state == state)
			return true;
		loop_run_once(&f->loop, false);
		usleep(1000);
	}
	return false;
}

Test(beat_thread, known_within_a_beat_and_suspect_when_silent)
{
	struct fixture f;
	struct beat_peer p;
	begin(&f);
	open_table(&f, f.master);
	const char *to[] = { f.master };
	f.sender = open_sender(&f, &f.loop, to, 1);
	cr_expect(until(&f, BEAT_READY, 5000));
	cr_expect(beat_sender_acked(f.sender));
	cr_assert(beat_table_find(f.table, "agent", &p));
	cr_expect_eq(p.news.pid, 4711);
	cr_expect_gt(f.n_pings, 0);
	close_sender(&f);
	cr_expect(until(&f, BEAT_SUSPECT, 5000));
	cr_expect(until(&f, BEAT_DEAD, 5000));
	close_table(&f);
	end(&f);
	NO_LEAKS();
}

/* The sender comes first, and outlives the master. */
Test(beat_thread, a_master_that_comes_late_and_again)
{
	struct fixture f;
	begin(&f);
	const char *to[] = { f.master };
	f.sender = open_sender(&f, &f.loop, to, 1);
	usleep(3 * BEAT_MS * 1000);
	cr_expect_not(beat_sender_acked(f.sender));
	struct beat_sender_counters c;
	beat_sender_counters(f.sender, &c);
	cr_expect_gt(c.send_errors, 0);
	for (int i = 0; i < 2; i++) {
		open_table(&f, f.master);
		cr_expect(until(&f, BEAT_READY, 5000));
		cr_expect(beat_sender_acked(f.sender));
		close_table(&f);
	}
	close_sender(&f);
	end(&f);
	NO_LEAKS();
}

Test(beat_thread, two_masters_over_udp_and_unix)
{
	struct fixture f;
	char udp[64];
	struct beat_table *second;
	struct beat_peer p;
	begin(&f);
	snprintf(udp, sizeof(udp), "udp://127.0.0.1:%u", 20000 + (unsigned)getpid() % 12000);
	open_table(&f, udp);
	second = f.table;
	open_table(&f, f.master);
	const char *to[] = { f.master, udp };
	f.sender = open_sender(&f, &f.loop, to, 2);
	cr_expect(until(&f, BEAT_READY, 5000));
	uint64_t give_up = clock_after_ms(loop_now_ns(&f.loop), 5000);
	while (!beat_table_find(second, "agent", &p) && loop_now_ns(&f.loop) < give_up)
		loop_run_once(&f.loop, false);
	cr_expect(beat_table_find(second, "agent", &p));
	close_sender(&f);
	close_table(&f);
	f.table = second;
	close_table(&f);
	end(&f);
	NO_LEAKS();
}

/* ---- L1: the sender's loop is stuck, its beats go on ---- */

struct stuck {
	struct fixture *f;
	struct loop loop;
	pthread_t thread;
	struct beat_sender *sender;
	_Atomic bool block, stop;
	int n_closed;
};

static void *stuck_main(void *arg)
{
	struct stuck *s = arg;
	while (!s->stop) {
		loop_run_once(&s->loop, false);
		usleep(1000);
		while (s->block && !s->stop)
			usleep(1000); /* a dead lock */
	}
	beat_sender_close(s->sender, on_closed, &s->n_closed);
	while (s->n_closed == 0)
		loop_run_once(&s->loop, true);
	loop_close(&s->loop);
	return NULL;
}

static void stuck_news(void *ctx, uint64_t last_ack_ns, struct beat_news *out)
{
	struct stuck *s = ctx;
	*out = (struct beat_news){ .loop_turns =
					   __atomic_load_n(&s->loop.turns, __ATOMIC_RELAXED),
				   .ready = true };
}

Test(beat_thread, a_dead_locked_loop_is_suspect_though_it_beats)
{
	static const uint8_t instance[16] = { 0xcd };
	struct fixture f;
	struct stuck s = { .f = &f };
	struct beat_peer p, later;
	begin(&f);
	open_table(&f, f.master);
	cr_assert_eq(loop_open(&s.loop), ERR_NONE);
	const char *to[] = { f.master };
	struct beat_sender_opts o = { .name = "agent",
				      .role = ROLE_HOLDER,
				      .keys = f.keys,
				      .instance = instance,
				      .log = &f.log,
				      .to = to,
				      .n_to = 1,
				      .from = f.from,
				      .beat_ms = BEAT_MS,
				      .news = stuck_news,
				      .ctx = &s };
	cr_assert_eq(beat_sender_open(&s.loop, &o, &s.sender, NULL), ERR_NONE);
	cr_assert_eq(pthread_create(&s.thread, NULL, stuck_main, &s), 0);
	cr_expect(until(&f, BEAT_READY, 5000));
	s.block = true;
	cr_expect(until(&f, BEAT_SUSPECT, 5000));
	cr_assert(beat_table_find(f.table, "agent", &p));
	cr_expect(p.loop_stands);
	usleep(3 * BEAT_MS * 1000);
	cr_assert(beat_table_find(f.table, "agent", &later));
	cr_expect_gt(later.seq, p.seq, "and its beats go on");
	s.block = false;
	cr_expect(until(&f, BEAT_READY, 5000));
	s.stop = true;
	pthread_join(s.thread, NULL);
	close_table(&f);
	end(&f);
	NO_LEAKS();
}

/* A sender is closed while its ping lies in the inbox, and while it does not. */
Test(beat_thread, close_at_any_moment)
{
	struct fixture f;
	begin(&f);
	const char *to[] = { f.master };
	for (unsigned i = 0; i < 60; i++) {
		f.sender = open_sender(&f, &f.loop, to, 1);
		usleep(i * 50);
		if (i % 2)
			loop_run_once(&f.loop, false);
		close_sender(&f);
	}
	cr_expect_eq(f.loop.inbox.expected, 0);
	end(&f);
	NO_LEAKS();
}

/* ---- hostile datagrams ---- */

static int foreign_socket(const char *unix_addr)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	memcpy(a.sun_path, unix_addr + 5, strlen(unix_addr + 5));
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

/* 20,000 datagrams of nonsense: counted, one line, nobody else disturbed. */
Test(beat_thread, a_flood_of_garbage_disturbs_nobody)
{
	struct fixture f;
	struct beat_peer p;
	struct beat_table_counters c;
	uint8_t junk[600];
	begin(&f);
	open_table(&f, f.master);
	const char *to[] = { f.master };
	f.sender = open_sender(&f, &f.loop, to, 1);
	cr_expect(until(&f, BEAT_READY, 5000));
	int fd = foreign_socket(f.master);
	for (unsigned i = 0; i < 20000; i++) {
		memset(junk, (int)i, sizeof(junk));
		junk[0] = 'B';
		junk[1] = ROLE_HOLDER;
		send(fd, junk, i % sizeof(junk), 0);
		if (i % 100 == 0) {
			loop_run_once(&f.loop, false);
			cr_assert(beat_table_find(f.table, "agent", &p));
			cr_assert_eq(p.state, BEAT_READY);
		}
	}
	close(fd);
	usleep(2 * BEAT_MS * 1000);
	beat_table_counters(f.table, &c);
	cr_expect_geq(c.bad_macs + c.bad_frames, 20000 - 1);
	cr_expect_eq(c.peers, 1);
	const char *first = strstr(f.lines, "refused=");
	cr_expect_not_null(first);
	cr_expect_null(first ? strstr(first + 1, "refused=") : NULL, "one line: %s", f.lines);
	close_sender(&f);
	close_table(&f);
	end(&f);
	NO_LEAKS();
}

/* ---- addresses that cannot be ---- */

Test(beat_thread, wrong_addresses)
{
	static const char *const bad[] = {
		"",
		"unix:relative",
		"http://127.0.0.1:1",
		"udp://127.0.0.1",
		"udp://:1",
		"udp://host.test:1",
		"udp://127.0.0.1:99999",
		"udp://1.2.3.4:x",
		"udp://[::1:5",
		"unix:/no/such/folder/beat.sock",
	};
	struct fixture f;
	begin(&f);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = { 0 };
		const char *listen[] = { bad[i] };
		struct beat_table_opts o = { .keys = f.keys,
					     .log = &f.log,
					     .listen = listen,
					     .n_listen = 1,
					     .suspect_ms = 100,
					     .dead_ms = 200 };
		cr_expect_neq(beat_table_open(&f.loop, &o, &f.table, &why), ERR_NONE, "%s",
			      bad[i]);
		cr_expect(why.text[0], "%s: no text", bad[i]);
	}
	char path[200] = "unix:/tmp/";
	memset(path + 10, 'x', 150);
	struct why why = { 0 };
	const char *listen[] = { path };
	struct beat_table_opts o = { .keys = f.keys,
				     .log = &f.log,
				     .listen = listen,
				     .n_listen = 1,
				     .suspect_ms = 100,
				     .dead_ms = 200 };
	cr_expect_eq(beat_table_open(&f.loop, &o, &f.table, &why), ERR_TOO_LARGE);
	cr_expect(strstr(why.text, "--run-dir"), "%s", why.text);
	end(&f);
	NO_LEAKS();
}

/* The second of two addresses fails: the first one's socket is gone again. */
Test(beat_thread, a_start_that_fails_leaves_nothing)
{
	static const uint8_t instance[16] = { 1 };
	struct fixture f;
	begin(&f);
	const char *listen[] = { f.master, "udp://nonsense" };
	struct beat_table_opts o = { .keys = f.keys,
				     .log = &f.log,
				     .listen = listen,
				     .n_listen = 2,
				     .suspect_ms = 100,
				     .dead_ms = 200 };
	cr_expect_eq(beat_table_open(&f.loop, &o, &f.table, NULL), ERR_INVALID_PARAMS);
	struct beat_sender_opts so = { .name = "agent",
				       .role = ROLE_HOLDER,
				       .keys = f.keys,
				       .instance = instance,
				       .log = &f.log,
				       .to = listen,
				       .n_to = 2,
				       .from = f.from,
				       .beat_ms = BEAT_MS,
				       .news = on_news,
				       .ctx = &f };
	cr_expect_eq(beat_sender_open(&f.loop, &so, &f.sender, NULL), ERR_INVALID_PARAMS);
	so.n_to = 0;
	cr_expect_eq(beat_sender_open(&f.loop, &so, &f.sender, NULL), ERR_INVALID_PARAMS);
	so.n_to = 1;
	so.role = ROLE_CLIENT;
	cr_expect_eq(beat_sender_open(&f.loop, &so, &f.sender, NULL), ERR_FORBIDDEN);
	cr_expect_eq(f.loop.inbox.expected, 0);
	end(&f);
	NO_LEAKS();
}
