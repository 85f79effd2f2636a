/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent as a real process: its pool through kill -9, the socket of descriptors under hostile
 * peers, memory that is not there. No master runs: a COMMIT stays in doubt, and what it made is there
 * all the same; commands come from the test, as role service.
 */
#include "daemons.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/messages.h"
#include "rpc/ticket.h"
#include "store/shmsock.h"
#include "../support/leak.h"
#include "../support/tcp_client.h"

TestSuite(agent, .timeout = 120);

static const char *const small[] = { "--set", "agent.pool_size=64MiB", "--set",
				     "agent.http_port=0", NULL };

struct node {
	struct box box;
	struct proc proc;
	struct caller service, client;
	char id[65], fd_path[108];
	struct ticket_key *key;
	struct msg_under under;
	/* the pool, mapped */
	struct shmpool *map;
	int conn;
};

/* ---- start ---- */

static void read_id(struct node *n)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/run/agent.json", n->box.dir);
	json_t *o = json_load_file(path, 0, NULL);
	const char *id = json_string_value(json_object_get(o, "id"));
	cr_assert(id);
	snprintf(n->id, sizeof(n->id), "%s", id);
	json_decref(o);
}

static void run(struct node *n, const char *const *args)
{
	proc_run(&n->box, daemon_row("agent"), args, &n->proc);
	caller_open(&n->service, &n->box, n->proc.rpc, ROLE_SERVICE, ROLE_HOLDER);
	caller_open(&n->client, &n->box, n->proc.rpc, ROLE_CLIENT, ROLE_HOLDER);
	read_id(n);
	snprintf(n->fd_path, sizeof(n->fd_path), "%s/run/agent.fd", n->box.dir);
}

static void start(struct node *n, const char *const *args)
{
	*n = (struct node){ .conn = -1 };
	box_make(&n->box);
	run(n, args);
	cr_assert_eq(ticket_key_new(n->box.keys, n->id, &n->key), ERR_NONE);
}

static void unmap(struct node *n)
{
	shmpool_close(TAKE(n->map));
	if (n->conn >= 0)
		close(n->conn);
	n->conn = -1;
}

static void callers_close(struct node *n)
{
	caller_close(&n->service);
	caller_close(&n->client);
}

static void finish(struct node *n)
{
	static char text[1 << 16];
	unmap(n);
	callers_close(n);
	cr_expect_eq(proc_stop(&n->proc), 0, "%s", proc_log(&n->proc, text, sizeof(text)));
	ticket_key_free(n->key);
	box_remove(&n->box);
}

/* ---- commands ---- */

/* The pool opens behind the first answers. */
static enum err call(struct caller *c, uint32_t method, struct buf *body, uint64_t ms,
		     struct buf *reply, struct why *why)
{
	enum err e = ERR_NOT_READY;
	for (int i = 0; i < 500 && e == ERR_NOT_READY; i++) {
		*why = (struct why){ 0 };
		buf_clear(reply);
		e = caller_call(c, method, buf_bytes(body), ms, reply, why);
		if (e == ERR_NOT_READY)
			usleep(10000);
	}
	buf_fini(body);
	return e;
}

static void adopt(struct node *n, uint64_t term, uint64_t adoption)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(256), reply = BUF_INIT(1 << 16);
	struct msg_adopt_rep m;
	struct why why = { 0 };
	enc_under(&body, &(struct msg_under){ .term = term, .adoption = adoption });
	enum err e = call(&n->service, METHOD_ADOPT, &body, 5000, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_adopt_rep(&d, &m), ERR_NONE);
	n->under = *m.under;
	arena_fini(&a);
	buf_fini(&reply);
}

struct entry {
	uint32_t slot;
	uint64_t generation, version, size, sum;
	bool published;
	uint8_t state;
	struct extent x;
	char key[32];
};

struct inventory {
	struct entry e[256];
	size_t n;
};

static void inventory(struct node *n, struct inventory *out)
{
	uint64_t cursor = 0;
	out->n = 0;
	do {
		struct arena a = ARENA_INIT(8 << 20);
		struct buf body = BUF_INIT(1024), reply = BUF_INIT(8 << 20);
		struct msg_inventory_rep m;
		struct why why = { 0 };
		enc_inventory_req(&body, &(struct msg_inventory_req){ &n->under, cursor, 0 });
		enum err e = call(&n->service, METHOD_INVENTORY, &body, 5000, &reply, &why);
		cr_assert_eq(e, ERR_NONE, "%s", why.text);
		struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
		cr_assert_eq(dec_inventory_rep(&d, &m), ERR_NONE);
		for (size_t i = 0; i < m.entries.n; i++) {
			const struct msg_entry *x = &m.entries.p[i];
			cr_assert_lt(out->n, ARRAY_LEN(out->e));
			struct entry *o = &out->e[out->n++];
			*o = (struct entry){ x->slot, x->generation, x->version, x->size,
					     x->sum,  x->published,  x->state };
			o->x = (struct extent){ x->extents.p[0].segment, x->extents.p[0].offset,
						x->extents.p[0].bytes };
			snprintf(o->key, sizeof(o->key), "%.*s", (int)x->key.n,
				 (const char *)x->key.p);
		}
		cursor = m.cursor;
		arena_fini(&a);
		buf_fini(&reply);
	} while (cursor != 0);
}

static void mark(struct node *n, const struct entry *e)
{
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct why why = { 0 };
	struct msg_retire_item it = { .slot = e->slot,
				      .generation = e->generation,
				      .version = e->version };
	enc_retire_req(&body,
		       &(struct msg_retire_req){ .under = &n->under, .items = { &it, 1 } });
	cr_assert_eq(call(&n->service, METHOD_MARK, &body, 5000, &reply, &why), ERR_NONE, "%s",
		     why.text);
	buf_fini(&reply);
}

/* ---- a client ---- */

static enum err ask(const struct node *n, bool write, uint32_t ms, struct shmpool **map,
		    int *conn, struct why *why)
{
	static const uint8_t instance[16] = { 7 };
	struct shmpool_fds fds;
	struct shmsock_ask a = { .path = n->fd_path,
				 .keys = n->box.keys,
				 .role = ROLE_CLIENT,
				 .tenant = "default",
				 .instance = instance,
				 .write = write,
				 .timeout_ms = ms };
	enum err e = shmsock_ask(&a, &fds, conn, why);
	return e ? e : shmpool_map(&fds, map, why);
}

static void map(struct node *n)
{
	struct why why = { 0 };
	enum err e = ask(n, true, 5000, &n->map, &n->conn, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
}

static uint8_t byte_of(uint64_t version, uint64_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) + version);
}

static bool bytes_are(const struct node *n, const struct entry *e)
{
	struct extent x = e->x;
	x.bytes = e->size;
	const uint8_t *p = shmpool_at(n->map, &x);
	if (!p)
		return false;
	for (uint64_t i = 0; i < e->size; i++)
		if (p[i] != byte_of(e->version, i))
			return false;
	return true;
}

/* Writes an object as the library does and appends its COMMIT. */
static void write_object(struct node *n, uint64_t version, uint64_t size, uint64_t offset,
			 struct buf *ticket, uint64_t *sum)
{
	struct extent x = { 0, offset, obj_stored_bytes(size) };
	struct msg_extent mx = { x.segment, x.offset, x.bytes };
	char key[32];
	struct why why = { 0 };
	struct pool_lane *lane = shmpool_lane(n->map);
	uint8_t *p = shmpool_at(n->map, &x);
	snprintf(key, sizeof(key), "key-%llu", (unsigned long long)version);
	cr_assert(lane && p);
	cr_assert_eq(lane_begin(lane, shmpool_ctl(n->map), 0, n->under.pool_epoch, version, &x,
				1),
		     ERR_NONE);
	for (uint64_t i = 0; i < size; i++)
		p[i] = byte_of(version, i);
	uint64_t *vector = size > OBJ_BLOCK ? (void *)(p + obj_vector_at(size)) : NULL;
	*sum = obj_sum(p, size, vector);
	lane_end(lane);
	shmpool_lane_done(n->map, lane);
	struct msg_ticket t = { .op = TICKET_WRITE,
				.tenant = BYTES_STR("default"),
				.term = n->under.term,
				.pool_epoch = n->under.pool_epoch,
				.extents = { &mx, 1 },
				.size = size,
				.version = version,
				.attempt = version,
				.key = BYTES_STR(key) };
	memcpy(t.pool, shmpool_id(n->map), 16);
	cr_assert_eq(ticket_mint(n->key, &t, ticket, &why), ERR_NONE, "%s", why.text);
}

#define N_OBJECTS 60

/* Objects from a byte to 3 MiB; each COMMIT is in doubt without a master. */
static void fill(struct node *n, uint64_t first)
{
	struct msg_commit_item items[N_OBJECTS];
	struct buf tickets[N_OBJECTS], body = BUF_INIT(1 << 20), reply = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_results_rep m;
	struct why why = { 0 };
	uint64_t at = 0;
	for (size_t i = 0; i < N_OBJECTS; i++) {
		uint64_t size = i % 20 == 0 ? (3u << 20) + i : 1 + i * 5000, sum;
		tickets[i] = BUF_INIT(TICKET_MAX);
		write_object(n, version_make(1, first + i), size, at, &tickets[i], &sum);
		items[i] = (struct msg_commit_item){ buf_bytes(&tickets[i]), sum };
		at += (obj_stored_bytes(size) + 4095) / 4096 * 4096;
	}
	enc_commit_req(&body, &(struct msg_commit_req){ .items = { items, N_OBJECTS } });
	enum err e = call(&n->client, METHOD_COMMIT, &body, 600, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
	cr_assert_eq(m.items.n, N_OBJECTS);
	for (size_t i = 0; i < m.items.n; i++) {
		cr_assert_eq(m.items.p[i].status, ERR_TIMED_OUT, "%zu: %.*s", i,
			     (int)m.items.p[i].text.n, (const char *)m.items.p[i].text.p);
		buf_fini(&tickets[i]);
	}
	arena_fini(&a);
	buf_fini(&reply);
}

static double metric_of(const struct node *n, const char *name)
{
	static char text[1 << 20];
	const char *body;
	if (http_get(n->proc.http, "GET", "/metrics", text, sizeof(text), &body) != 200)
		return -1;
	return metric_value(body, name);
}

static bool metric_until(const struct node *n, const char *name, double want, int ms)
{
	for (int t = 0; t < ms; t += 20) {
		if (metric_of(n, name) == want)
			return true;
		usleep(20000);
	}
	return false;
}

/* ---- L2, L3 ---- */

static bool same_entry(const struct entry *a, const struct entry *b)
{
	return a->slot == b->slot && a->generation == b->generation &&
	       a->version == b->version && a->size == b->size && a->sum == b->sum &&
	       a->published == b->published && a->state == b->state &&
	       a->x.segment == b->x.segment && a->x.offset == b->x.offset &&
	       a->x.bytes == b->x.bytes && strcmp(a->key, b->key) == 0;
}

static void killed_and_back(struct node *n, const struct inventory *before)
{
	static struct inventory after;
	char instance[40];
	memcpy(instance, n->proc.instance, sizeof(instance));
	proc_signal(&n->proc, SIGKILL);
	cr_assert(proc_wait(&n->proc, 5000));
	for (size_t i = 0; i < before->n; i++)
		cr_assert(bytes_are(n, &before->e[i]), "a mapping outlives the agent");
	callers_close(n);
	uint64_t old_epoch = n->under.pool_epoch;
	run(n, small);
	cr_assert_str_neq(instance, n->proc.instance);
	adopt(n, 1, 2);
	cr_assert_gt(n->under.pool_epoch, old_epoch + 1, "the start fences, the adoption too");
	/* a writer of before sees it in the page it has mapped */
	struct pool_lane *lane = shmpool_lane(n->map);
	cr_assert_eq(lane_begin(lane, shmpool_ctl(n->map), 0, old_epoch, version_make(1, 999),
				&before->e[0].x, 1),
		     ERR_STALE_EPOCH);
	shmpool_lane_done(n->map, lane);
	unmap(n);
	map(n);
	inventory(n, &after);
	cr_assert_eq(after.n, before->n);
	for (size_t i = 0; i < before->n; i++) {
		cr_assert(same_entry(&after.e[i], &before->e[i]), "slot %u", before->e[i].slot);
		cr_assert(bytes_are(n, &after.e[i]));
		cr_assert(shmpool_same(n->map, after.e[i].slot, after.e[i].generation));
	}
	cr_expect(metric_until(n, "pomelo_agent_verified_total", N_OBJECTS, 10000));
	cr_expect_eq(metric_of(n, "pomelo_agent_corrupt_total"), 0);
	cr_expect_eq(metric_of(n, "pomelo_agent_start_slots{kind=\"committed\"}"), N_OBJECTS);
}

Test(agent, two_on_one_host_come_back_from_kill_9)
{
	static struct node n[2];
	static struct inventory before[2];
	for (int i = 0; i < 2; i++) {
		start(&n[i], small);
		adopt(&n[i], 1, 1);
		map(&n[i]);
		fill(&n[i], 1 + 1000 * (uint64_t)i);
		inventory(&n[i], &before[i]);
		cr_assert_eq(before[i].n, N_OBJECTS);
		for (size_t k = 0; k < N_OBJECTS; k += 2)
			mark(&n[i], &before[i].e[k]);
		inventory(&n[i], &before[i]);
	}
	cr_assert(memcmp(shmpool_id(n[0].map), shmpool_id(n[1].map), 16) != 0);
	cr_assert_str_neq(n[0].id, n[1].id);
	for (int i = 0; i < 2; i++)
		killed_and_back(&n[i], &before[i]);
	for (int i = 0; i < 2; i++)
		finish(&n[i]);
	NO_LEAKS();
}

Test(agent, a_second_one_on_a_pool_is_refused)
{
	static struct node n;
	struct proc again;
	static char text[1 << 16];
	start(&n, small);
	adopt(&n, 1, 1);
	proc_start(&n.box, daemon_row("agent"), small, &again);
	cr_assert(proc_wait(&again, 10000));
	cr_expect_neq(again.code, 0);
	cr_expect(strstr(proc_log(&again, text, sizeof(text)), "another"), "%s", text);
	finish(&n);
	NO_LEAKS();
}

/* ---- hostile peers of run/agent.fd ---- */

static int connect_fd(const struct node *n)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", n->fd_path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (void *)&a, sizeof(a)) != 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* An honest client's time for descriptors and a mapping, ms; fails the test when refused. */
static uint64_t honest_ms(struct node *n)
{
	struct shmpool *m = NULL;
	int conn = -1;
	struct why why = { 0 };
	uint64_t t0 = clock_real.now_ns(&clock_real);
	enum err e = ask(n, true, 5000, &m, &conn, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	uint64_t ms = (clock_real.now_ns(&clock_real) - t0) / NS_PER_MS;
	shmpool_close(m);
	close(conn);
	return ms;
}

/* A client that asks, never reads the answer, and is stopped. */
static pid_t stopped_reader(const struct node *n)
{
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 20; i++)
			(void)connect_fd(n);
		raise(SIGSTOP);
		_exit(0);
	}
	int status;
	cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
	cr_assert(WIFSTOPPED(status));
	return pid;
}

Test(agent, idle_garbage_and_stopped_clients_disturb_nobody)
{
	static struct node n;
	static int idle[700];
	static const char *const args[] = { "--set", "agent.pool_size=16MiB",
					    "--set", "agent.ask_ms=3000",
					    "--set", "agent.http_port=0",
					    NULL };
	uint8_t junk[4096];
	uint64_t worst = 0;
	struct rlimit r = { 4096, 4096 };
	setrlimit(RLIMIT_NOFILE, &r);
	start(&n, args);
	adopt(&n, 1, 1);
	honest_ms(&n);
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		cr_assert_geq(idle[i] = connect_fd(&n), 0, "connection %zu", i);
	pid_t stopped = stopped_reader(&n);
	for (int i = 0; i < 100; i++) {
		int fd = connect_fd(&n);
		for (size_t k = 0; k < sizeof(junk); k++)
			junk[k] = (uint8_t)(i * 7 + k * 13);
		if (fd >= 0 && send(fd, junk, 1 + (size_t)i * 40, MSG_NOSIGNAL) < 0)
			cr_expect(errno == EPIPE || errno == ECONNRESET, "%d", errno);
		/* to its end: an odd one goes without a word */
		struct timeval tv = { .tv_sec = 2 };
		if (fd >= 0)
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
		while (fd >= 0 && i % 2 && recv(fd, junk, sizeof(junk), 0) > 0)
			continue;
		if (fd >= 0)
			close(fd);
		if (i % 10 == 0)
			worst = MAX_OF(worst, honest_ms(&n));
	}
	cr_expect_lt(worst, 1000, "an honest client waited for %lu ms", (unsigned long)worst);
	adopt(&n, 1, 2); /* requests go on too */
	double junked = metric_of(&n, "pomelo_agent_fd_requests_total{end=\"message\"}");
	cr_expect_geq(junked, 50, "%g", junked);
	kill(stopped, SIGKILL);
	waitpid(stopped, NULL, 0);
	cr_expect(metric_until(&n, "pomelo_agent_fd_connections", 0, 8000),
		  "who asks nothing is closed: %g",
		  metric_of(&n, "pomelo_agent_fd_connections"));
	cr_expect(metric_until(&n, "pomelo_agent_sessions", 0, 5000),
		  "sessions end with their process");
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		close(idle[i]);
	finish(&n);
	NO_LEAKS();
}

/* ---- memory that is not there ---- */

static void refused(const char *const *args, const struct box *b, int code, const char *says)
{
	struct proc p;
	static char text[1 << 16];
	proc_start(b, daemon_row("agent"), args, &p);
	cr_assert(proc_wait(&p, 15000), "it runs");
	cr_expect_eq(p.code, code, "%d: %s", p.code, proc_log(&p, text, sizeof(text)));
	cr_expect(strstr(proc_log(&p, text, sizeof(text)), says), "%s", text);
	unlink(p.log);
}

Test(agent, a_file_system_too_small_is_said_with_both_figures)
{
	static const char *const args[] = { "--set", "agent.pool_size=64MiB", NULL };
	struct box b;
	box_make(&b);
	if (unshare(CLONE_NEWNS) != 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
		box_remove(&b);
		cr_skip_test("no right to mount");
	}
	char dir[96];
	snprintf(dir, sizeof(dir), "%s/small", b.dir);
	mkdir(dir, 0700);
	cr_assert_eq(mount("none", dir, "tmpfs", 0, "size=8m"), 0);
	char set[128];
	snprintf(set, sizeof(set), "agent.pool_dir=%s", dir);
	const char *const all[] = { args[0], args[1], "--set", set, NULL };
	refused(all, &b, 1, "8");
	umount(dir);
	box_remove(&b);
	NO_LEAKS();
}

Test(agent, settings_that_cannot_be_are_refused)
{
	static const char *const tenant[] = { "--isolation", "tenant", NULL };
	static const char *const tiny[] = { "--pool-size", "4KiB", NULL };
	struct box b;
	box_make(&b);
	refused(tenant, &b, 2, "this release has `node` alone");
	refused(tiny, &b, 2, "1MiB");
	box_remove(&b);
	NO_LEAKS();
}
