/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases from the field that are the store's, over real processes without a supervisor: who is killed stays
 * down until the test starts it again.
 */
#include "cases.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "proto/messages.h"
#include "store/backing.h"
#include "store/shmsock.h"
#include "store/slot.h"
#include "../support/leak.h"

TestSuite(cases, .timeout = 120);

/* ---- 1 to 4: restarts ---- */

/* Killed, started again: all that was acknowledged is found within 10 s, byte for byte. */
Test(cases, case_001_master_restart_keeps_keys)
{
	struct world w;
	cs_up(&w, "agent.pool_size=64MiB", "agent.slots=20000");
	cs_put_many(&w, "k", 10000);
	uint64_t t0 = cs_now_ms();
	cs_kill_it(&w.master);
	proc_start(&w.box, daemon_row("master"), w.margs, &w.master);
	struct pml *fresh = cs_client(&w); /* has nothing mapped */
	uint8_t v[VALUE_MAX], want[VALUE_MAX];
	size_t n = 0;
	cr_expect_eq(pml_get(fresh, "k/5", 3, v, sizeof(v), &n, NULL, NULL), 0);
	cs_fill(want, n, 5);
	cr_expect(n > 0 && memcmp(v, want, n) == 0);
	pml_close(fresh);
	ALL_GOOD(&w, "k", 10000);
	cr_expect_lt(cs_now_ms() - t0, 10000, "%lu ms", (unsigned long)(cs_now_ms() - t0));
	cr_assert(proc_up(&w.box, &w.master, 10000));
	cr_expect_eq(cs_objects(&w), 10000);
	cs_down(&w);
	NO_LEAKS();
}

static void second_agent(struct world *w)
{
	char text[256];
	box_make(&w->far);
	snprintf(text, sizeof(text), "cp '%s' '%s'", w->box.secret, w->far.secret);
	cr_assert_eq(system(text), 0);
	w->aargs[6] = w->masters;
	proc_run(&w->far, daemon_row("agent"), w->aargs, &w->second);
	w->aargs[6] = NULL;
	cs_ready(&w->second);
}

static void stop_both(const struct world *w, int signum)
{
	proc_signal(&w->agent, signum);
	proc_signal(&w->second, signum);
}

/* Both holders still as the master comes back: nothing is given out, nothing is said to be absent. */
static void nothing_yet(const struct world *w)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_get_opts g = PML_GET_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	bool yes = false;
	uint8_t v[64] = { 1 };
	o.deadline_ms = g.deadline_ms = 1000;
	cr_expect_eq(pml_put(w->p, "early", 5, v, sizeof(v), &o, &err), PML_ERR_RECOVERING,
		     "%s: %s", pml_error_name(err.code), err.text);
	cr_expect_eq(pml_exists(w->p, "old/7", 5, &yes, &g, &err), PML_ERR_RECOVERING, "%s: %s",
		     pml_error_name(err.code), err.text);
	cr_expect_eq(cs_metric_of(&w->master, "pomelo_master_puts_total"), 0);
}

/* Two holders; until what one has is known nothing of it is given out; then nothing old is changed. */
Test(cases, case_002_restart_allocates_nothing_over_live_data)
{
	struct world w;
	unsigned port = 20000 + (unsigned)getpid() % 12000;
	cs_prepare(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	snprintf(w.listen, sizeof(w.listen), "--listen=tcp://127.0.0.1:%u", port);
	snprintf(w.masters, sizeof(w.masters), "--masters=tcp://127.0.0.1:%u", port);
	w.margs[8] = w.listen;
	cs_start_all(&w);
	w.p = cs_client(&w);
	second_agent(&w);
	cs_put_many(&w, "old", 4000);
	cr_expect_gt(cs_metric_of(&w.agent, "pomelo_agent_slots{kind=\"used\"}"), 0);
	cr_expect_gt(cs_metric_of(&w.second, "pomelo_agent_slots{kind=\"used\"}"), 0);
	stop_both(&w, SIGSTOP);
	cs_kill_it(&w.master);
	proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
	nothing_yet(&w);
	stop_both(&w, SIGCONT);
	cs_ready(&w.master);
	ALL_GOOD(&w, "old", 4000);
	cs_put_many(&w, "new", 4000);
	ALL_GOOD(&w, "old", 4000);
	ALL_GOOD(&w, "new", 4000);
	cs_down(&w);
	NO_LEAKS();
}

/* Leases of before a restart end nothing: 300 objects, down for longer than any lease, 300 objects. */
Test(cases, case_003_restart_longer_than_leases)
{
	struct world w;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	cs_put_many(&w, "k", 300);
	ALL_GOOD(&w, "k", 300); /* each under a lease */
	cs_kill_it(&w.master);
	cs_kill_it(&w.agent);
	usleep(1300000);
	cs_start_all(&w);
	cr_expect_eq(cs_objects(&w), 300);
	cr_expect_eq(cs_metric_of(&w.agent, "pomelo_agent_start_slots{kind=\"committed\"}"),
		     300);
	ALL_GOOD(&w, "k", 300);
	usleep(1300000); /* whatever cleans up has had its turn */
	cr_expect_eq(cs_objects(&w), 300);
	ALL_GOOD(&w, "k", 300);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 4: the directory's file, while nobody runs ---- */

/* A slot's record with its extent elsewhere, sound in itself. */
static void move_slot(struct slot *s, const struct extent *to)
{
	uint8_t record[SLOT_RECORD_MAX];
	struct slot_body b;
	struct slot out;
	struct why why = { 0 };
	size_t n = 0;
	cr_assert_eq(slot_body(s, NULL, 0, &b), ERR_NONE);
	b.extents = to;
	cr_assert_eq(slot_record(&b, record, &n, &why), ERR_NONE, "%s", why.text);
	slot_fill(&out, &b, record, n, 0);
	out.state = slot_word(&out, SLOT_COMMITTED, slot_published(s->state), RETIRE_NONE);
	*s = out;
}

static struct extent extent_of(const struct slot *s)
{
	struct slot_body b;
	cr_assert_eq(slot_body(s, NULL, 0, &b), ERR_NONE);
	return b.extents[0];
}

/* Two whole slots of different sizes, the older one in *lo; the mover fits where it goes. */
static void pick_pair(struct slot *slots, size_t n, bool move_newer, struct slot **lo,
		      struct slot **hi)
{
	*lo = *hi = NULL;
	for (size_t i = 0; i < n && !*hi; i++) {
		struct slot *s = &slots[i];
		if (slot_state(s->state) != SLOT_COMMITTED || s->size < 1000)
			continue;
		if (!*lo)
			*lo = s;
		else if (s->version > (*lo)->version &&
			 (move_newer ? s->size < (*lo)->size : s->size > (*lo)->size))
			*hi = s;
	}
	cr_assert(*lo && *hi);
}

static void plant_overlap(const struct world *w, bool move_newer)
{
	struct slot *lo, *hi;
	size_t bytes = (size_t)8000 * SLOT_BYTES;
	struct slot *slots = cs_pool_map(w, "dir", bytes);
	pick_pair(slots, bytes / SLOT_BYTES, move_newer, &lo, &hi);
	struct extent to = extent_of(move_newer ? lo : hi);
	move_slot(move_newer ? hi : lo, &to);
	munmap(slots, bytes);
}

static void restart_both(struct world *w)
{
	cs_kill_it(&w->master);
	cs_kill_it(&w->agent);
	cs_start_all(w);
}

static void one_overlap(bool move_newer, unsigned at_least)
{
	struct world w;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	cs_put_many(&w, "k", 300);
	cs_kill_it(&w.master);
	cs_kill_it(&w.agent);
	plant_overlap(&w, move_newer);
	cs_start_all(&w);
	struct found f = cs_get_many(&w, "k", 300), g;
	/* what lies where the moved one points is found on first read, or was before */
	cr_expect(f.good >= at_least && f.wrong == 0 && f.failed <= move_newer,
		  "%u good, %u absent, %u wrong, %u failed %s", f.good, f.absent, f.wrong,
		  f.failed, f.why);
	cr_expect_eq(cs_metric_of(&w.agent, "pomelo_agent_start_slots{kind=\"overlaps\"}"), 1);
	cr_expect_geq(cs_metric_of(&w.master,
				   "pomelo_master_rejected_total{reason=\"overlap\"}"),
		      1);
	if (move_newer)
		cr_expect(cs_metric_until(&w.agent, "pomelo_agent_corrupt_total", 1, 5000));
	f = cs_get_many(&w, "k", 300);
	restart_both(&w);
	cr_expect_eq(cs_metric_of(&w.agent, "pomelo_agent_start_slots{kind=\"overlaps\"}"), 0);
	g = cs_get_many(&w, "k", 300);
	cr_expect_eq(memcmp(&f, &g, sizeof(f)), 0, "the same set: %u good then %u", f.good,
		     g.good);
	cr_expect_eq(cs_objects(&w), f.good);
	cs_down(&w);
}

/* A stale record over a fresh one; then the fresh one's record over what is stale. */
Test(cases, case_004_one_bad_record)
{
	one_overlap(false, 299);
	one_overlap(true, 298);
	NO_LEAKS();
}

/* ---- children that stop or die in the library ---- */

static uint8_t big[8 << 20];

enum { CHILD_RIGHT, CHILD_ERROR, CHILD_FOREIGN, CHILD_ODD };

static pid_t child(const struct world *w, const char *faults, int (*fn)(struct pml *p, int arg),
		   int arg)
{
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		struct pml *p = cs_client(w);
		_exit(fault_arm_text(faults) ? fn(p, arg) : CHILD_ODD);
	}
	return pid;
}

static int child_end(pid_t pid)
{
	int st = 0;
	cr_assert_eq(waitpid(pid, &st, 0), pid);
	return WIFEXITED(st) ? WEXITSTATUS(st) : -WTERMSIG(st);
}

static int put_big(struct pml *p, int arg)
{
	cs_fill(big, sizeof(big), (unsigned)arg);
	return pml_put(p, "big", 3, big, sizeof(big), NULL, NULL) == 0 ? CHILD_RIGHT
								       : CHILD_ERROR;
}

static bool big_is(struct pml *p, unsigned seed)
{
	uint8_t *want = malloc(sizeof(big));
	size_t n = 0;
	int code = pml_get(p, "big", 3, big, sizeof(big), &n, NULL, NULL);
	cs_fill(want, sizeof(big), seed);
	bool same = code == 0 && n == sizeof(big) && memcmp(big, want, n) == 0;
	free(want);
	return same;
}

/* Killed between its start and its end: never half an object, the key free in time, the space too. */
Test(cases, case_013_writer_dies)
{
	static const char *const places[] = { "put_granted:kill", "put_half:kill",
					      "put_copied:kill", "put_cleared:kill" };
	struct world w;
	if (!fault_built())
		cr_skip("needs a build with fault points");
	cs_up(&w, "agent.pool_size=64MiB", "agent.slots=8000");
	double used = cs_metric_of(&w.master, "pomelo_master_bytes{of=\"used\"}");
	for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
		bool yes = true;
		cr_expect_eq(child_end(child(&w, places[i], put_big, 1)), -SIGKILL, "%s",
			     places[i]);
		cr_expect_gt(cs_metric_of(&w.master, "pomelo_master_bytes{of=\"used\"}"), used);
		cr_expect(pml_exists(w.p, "big", 3, &yes, NULL, NULL) == 0 && !yes);
		uint64_t t0 = cs_now_ms();
		int code;
		cs_fill(big, sizeof(big), 2);
		do {
			code = pml_put(w.p, "big", 3, big, sizeof(big), NULL, NULL);
		} while (code == PML_ERR_BUSY_WRITING && cs_now_ms() - t0 < 4000 &&
			 usleep(10000) == 0);
		cr_expect_eq(code, 0, "%s: %s after %lu ms", places[i], pml_error_name(code),
			     (unsigned long)(cs_now_ms() - t0));
		cr_expect(big_is(w.p, 2), "%s", places[i]);
		cr_expect_eq(pml_remove(w.p, "big", 3, NULL, NULL), 0);
		cr_expect(cs_metric_until(&w.master, "pomelo_master_bytes{of=\"used\"}", used,
					  5000),
			  "%s: its space stays: %g", places[i],
			  cs_metric_of(&w.master, "pomelo_master_bytes{of=\"used\"}"));
	}
	cr_expect_eq(cs_metric_of(&w.master, "pomelo_master_attempts"), 0);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 14, 15: a client that speaks for itself ---- */

struct raw {
	struct caller mst, xfa;
	struct shmpool *map;
	int conn;
	uint8_t instance[16];
};

struct grant {
	uint32_t status;
	uint64_t attempt, version, pool_epoch, sum;
	struct extent x;
	uint8_t ticket[4096];
	size_t ticket_bytes;
};

static void raw_open(struct raw *r, const struct world *w)
{
	struct shmpool_fds fds;
	struct why why = { 0 };
	char path[108];
	caller_open(&r->mst, &w->box, w->master.rpc, ROLE_CLIENT, ROLE_SERVICE);
	caller_open(&r->xfa, &w->box, w->agent.rpc, ROLE_CLIENT, ROLE_HOLDER);
	snprintf(path, sizeof(path), "%s/run/agent.fd", w->box.dir);
	struct shmsock_ask a = { .path = path,
				 .keys = w->box.keys,
				 .role = ROLE_CLIENT,
				 .tenant = "default",
				 .instance = r->mst.instance,
				 .write = true,
				 .timeout_ms = 5000 };
	cr_assert_eq(shmsock_ask(&a, &fds, &r->conn, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(shmpool_map(&fds, &r->map, &why), ERR_NONE, "%s", why.text);
}

static void raw_close(struct raw *r)
{
	shmpool_close(r->map);
	close(r->conn);
	caller_close(&r->mst);
	caller_close(&r->xfa);
}

/* PUT_START of one key. */
static struct grant raw_start(struct raw *r, uint64_t attempt, const char *key, uint64_t size)
{
	struct arena a = ARENA_INIT(1 << 20);
	struct buf body = BUF_INIT(4096), reply = BUF_INIT(1 << 20);
	struct why why = { 0 };
	struct msg_put_start_rep m;
	struct msg_put_item it = { .attempt = attempt, .key = BYTES_STR(key), .size = size };
	struct msg_put_start_req q = { .items = { &it, 1 } };
	struct grant g = { .attempt = attempt };
	memcpy(q.client, r->mst.instance, 16);
	enc_put_start_req(&body, &q);
	enum err e =
		caller_call(&r->mst, METHOD_PUT_START, buf_bytes(&body), 5000, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_put_start_rep(&d, &m), ERR_NONE);
	const struct msg_put_grant *o = &m.items.p[0];
	g.status = o->status;
	g.version = o->version;
	g.pool_epoch = o->pool_epoch;
	if (o->extents.n == 1)
		g.x = (struct extent){ o->extents.p[0].segment, o->extents.p[0].offset,
				       o->extents.p[0].bytes };
	cr_assert_leq(o->ticket.n, sizeof(g.ticket));
	g.ticket_bytes = o->ticket.n;
	if (o->ticket.n > 0)
		memcpy(g.ticket, o->ticket.p, o->ticket.n);
	arena_fini(&a);
	buf_fini(&body);
	buf_fini(&reply);
	return g;
}

/* Its bytes, under a hazard record as the library does it; size at most 1 MiB. */
static enum err raw_write(struct raw *r, struct grant *g, size_t size, unsigned seed)
{
	struct pool_lane *lane = shmpool_lane(r->map);
	uint8_t *p = shmpool_at(r->map, &g->x);
	cr_assert(lane && p);
	enum err e =
		lane_begin(lane, shmpool_ctl(r->map), 0, g->pool_epoch, g->version, &g->x, 1);
	if (e == ERR_NONE) {
		cs_fill(p, size, seed);
		g->sum = obj_sum(p, size, NULL);
		lane_end(lane);
	}
	shmpool_lane_done(r->map, lane);
	return e;
}

static void results(struct caller *c, uint32_t method, struct buf *body, uint32_t *out,
		    size_t n)
{
	struct arena a = ARENA_INIT(8 << 20);
	struct buf reply = BUF_INIT(8 << 20);
	struct why why = { 0 };
	struct msg_results_rep m;
	enum err e = caller_call(c, method, buf_bytes(body), 10000, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
	cr_assert_eq(m.items.n, n);
	for (size_t i = 0; i < n; i++)
		out[i] = m.items.p[i].status;
	arena_fini(&a);
	buf_fini(&reply);
	buf_fini(body);
}

static uint32_t raw_commit(struct raw *r, const struct grant *g)
{
	struct buf body = BUF_INIT(1 << 20);
	struct msg_commit_item it = { BYTES(g->ticket, g->ticket_bytes), g->sum };
	uint32_t status = 0;
	enc_commit_req(&body, &(struct msg_commit_req){ .items = { &it, 1 } });
	results(&r->xfa, METHOD_COMMIT, &body, &status, 1);
	return status;
}

static uint32_t raw_revoke(struct raw *r, uint64_t attempt, uint64_t version)
{
	struct buf body = BUF_INIT(4096);
	struct msg_attempt it = { attempt, version };
	struct msg_attempts_req q = { .items = { &it, 1 } };
	uint32_t status = 0;
	memcpy(q.client, r->mst.instance, 16);
	enc_attempts_req(&body, &q);
	results(&r->mst, METHOD_PUT_REVOKE, &body, &status, 1);
	return status;
}

static bool key_is(const struct world *w, const char *key, size_t size, unsigned seed)
{
	static uint8_t got[VALUE_MAX], want[VALUE_MAX];
	size_t n = 0;
	cs_fill(want, size, seed);
	return pml_get(w->p, key, strlen(key), got, sizeof(got), &n, NULL, NULL) == 0 &&
	       n == size && memcmp(got, want, n) == 0;
}

/* A of a client times out, B of the same client and key begins: what comes for A is refused, B goes on. */
Test(cases, case_014_late_end)
{
	static struct raw r;
	struct world w;
	struct grant b;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	raw_open(&r, &w);
	struct grant a = raw_start(&r, 1, "k", 3000);
	cr_assert_eq(a.status, 0);
	cr_expect_eq(raw_write(&r, &a, 3000, 1), ERR_NONE);
	uint64_t t0 = cs_now_ms();
	do {
		b = raw_start(&r, 2, "k", 3000);
	} while (b.status == ERR_BUSY_WRITING && cs_now_ms() - t0 < 5000 && usleep(20000) == 0);
	cr_assert_eq(b.status, 0, "%s", err_name((enum err)b.status));
	cr_expect_geq(cs_now_ms() - t0, 500, "not before it timed out");
	cr_expect_eq(raw_commit(&r, &a), ERR_STALE_ATTEMPT);
	cr_expect_neq(raw_revoke(&r, 2, a.version), 0);
	(void)raw_revoke(&r, 1, b.version); /* 1 is over: nothing more happens */
	(void)raw_revoke(&r, 1, a.version);
	cr_expect_eq(cs_metric_of(&w.master, "pomelo_master_attempts"), 1, "B is untouched");
	cr_expect_eq(raw_write(&r, &a, 3000, 1), ERR_STALE_ATTEMPT, "nor does A write");
	cr_expect_eq(raw_write(&r, &b, 3000, 2), ERR_NONE);
	cr_expect_eq(raw_commit(&r, &b), 0);
	cr_expect(key_is(&w, "k", 3000, 2));
	cr_expect_eq(raw_commit(&r, &a), ERR_STALE_ATTEMPT);
	(void)raw_revoke(&r, 1, a.version);
	(void)raw_revoke(&r, 2, b.version);
	cr_expect(key_is(&w, "k", 3000, 2));
	raw_close(&r);
	cs_down(&w);
	NO_LEAKS();
}

/* 1,000 ends that are repeated, too late, of others or of nobody: nothing changes, both go on. */
static void thousand_ends(struct world *w)
{
	static struct raw r, other;
	static struct msg_commit_item it[1000];
	static uint32_t status[1000];
	struct buf body = BUF_INIT(4 << 20);
	raw_open(&r, w);
	raw_open(&other, w);
	struct grant won = raw_start(&r, 1, "ends", 3000),
		     late = raw_start(&r, 2, "late", 3000);
	cr_assert_eq(raw_write(&r, &won, 3000, 5), ERR_NONE);
	cr_assert_eq(raw_write(&r, &late, 3000, 6), ERR_NONE);
	cr_assert_eq(raw_commit(&r, &won), 0);
	cr_assert_eq(raw_revoke(&r, 2, late.version), 0);
	struct grant forged = won;
	forged.ticket[forged.ticket_bytes - 1] ^= 1;
	const struct grant *kinds[] = { &won, &late, &forged };
	for (size_t i = 0; i < ARRAY_LEN(it); i++)
		it[i] = (struct msg_commit_item){ BYTES(kinds[i % 3]->ticket,
							kinds[i % 3]->ticket_bytes),
						  kinds[i % 3]->sum };
	enc_commit_req(&body, &(struct msg_commit_req){ .items = { it, ARRAY_LEN(it) } });
	results(&other.xfa, METHOD_COMMIT, &body, status, ARRAY_LEN(it));
	static const uint32_t want[] = { 0, ERR_STALE_ATTEMPT, ERR_BAD_TICKET };
	for (size_t i = 0; i < ARRAY_LEN(it); i++)
		cr_assert_eq(status[i], want[i % 3], "%zu: %s", i,
			     err_name((enum err)status[i]));
	for (unsigned i = 0; i < 1000; i++) {
		struct raw *who = i % 2 ? &r : &other;
		(void)raw_revoke(who, i % 3 ? 1 : i, i % 5 ? won.version : won.version + i);
	}
	cr_expect(key_is(w, "ends", 3000, 5));
	cr_expect_eq(cs_metric_of(&w->master, "pomelo_master_attempts"), 0);
	raw_close(&r);
	raw_close(&other);
}

/* ---- 15: writers that meet ---- */

enum { WRITERS = 64, READERS = 4 };

struct race {
	const struct world *w;
	size_t n;
	pthread_barrier_t start;
	atomic_bool over;
	atomic_uint won, winner, torn, reads, odd;
};

struct racer {
	struct race *race;
	unsigned i;
	uint8_t *v;
	pthread_t thread;
};

/* A value says who wrote it: all of its bytes. */
static void paint(uint8_t *p, size_t n, unsigned i)
{
	memset(p, (int)i + 1, n);
}

static void *race_write(void *arg)
{
	struct racer *me = arg;
	struct race *r = me->race;
	struct pml *p = cs_client(r->w);
	bool exists = false;
	int code;
	paint(me->v, r->n, me->i);
	pthread_barrier_wait(&r->start);
	do {
		code = pml_put(p, "raced", 5, me->v, r->n, NULL, NULL);
		exists |= code == PML_ERR_ALREADY_EXISTS;
		if (code == PML_ERR_BUSY_WRITING && exists)
			atomic_fetch_add(&r->odd, 1);
	} while (code == PML_ERR_BUSY_WRITING && usleep(2000) == 0);
	if (code == 0) {
		atomic_fetch_add(&r->won, 1);
		atomic_store(&r->winner, me->i);
	} else if (code != PML_ERR_ALREADY_EXISTS) {
		atomic_fetch_add(&r->odd, 1);
	}
	pml_close(p);
	return NULL;
}

static void *race_read(void *arg)
{
	struct racer *me = arg;
	struct race *r = me->race;
	struct pml *p = cs_client(r->w);
	unsigned first = 0;
	while (!atomic_load(&r->over)) {
		size_t n = 0;
		int code = pml_get(p, "raced", 5, me->v, sizeof(big), &n, NULL, NULL);
		if (code == PML_ERR_NOT_FOUND && first == 0 && usleep(1000) == 0)
			continue;
		bool whole =
			code == 0 && n == r->n &&
			(n == 0 || (me->v[0] != 0 && memcmp(me->v, me->v + 1, n - 1) == 0 &&
				    (first == 0 || me->v[0] == first)));
		if (!whole)
			atomic_fetch_add(&r->torn, 1);
		else
			first = n ? me->v[0] : 1;
		atomic_fetch_add(&r->reads, 1);
	}
	pml_close(p);
	return NULL;
}

static void race_once(const struct world *w, struct racer *v, size_t n)
{
	struct race r = { .w = w, .n = n };
	pthread_barrier_init(&r.start, NULL, WRITERS);
	for (unsigned i = 0; i < WRITERS + READERS; i++) {
		v[i].race = &r;
		v[i].i = i;
		pthread_create(&v[i].thread, NULL, i < WRITERS ? race_write : race_read, &v[i]);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(v[i].thread, NULL);
	usleep(20000);
	atomic_store(&r.over, true);
	for (unsigned i = WRITERS; i < WRITERS + READERS; i++)
		pthread_join(v[i].thread, NULL);
	pthread_barrier_destroy(&r.start);
	cr_expect_eq(r.won, 1, "%zu bytes: %u won", n, r.won);
	cr_expect_eq(r.odd, 0, "%zu bytes: %u odd answers", n, r.odd);
	cr_expect(r.torn == 0 && r.reads > 0, "%zu bytes: %u of %u reads", n, r.torn, r.reads);
	size_t got = 0;
	cr_expect_eq(pml_get(w->p, "raced", 5, big, sizeof(big), &got, NULL, NULL), 0);
	cr_expect(got == n && (n == 0 ||
			       (big[0] == r.winner + 1 && memcmp(big, big + 1, n - 1) == 0)),
		  "%zu bytes: not the winner's", n);
	cr_expect_eq(pml_remove(w->p, "raced", 5, NULL, NULL), 0);
}

Test(cases, case_015_racing_writers)
{
	static const size_t sizes[] = { 0, 1, 4096, (1 << 20) + 1, sizeof(big) };
	static struct racer v[WRITERS + READERS];
	struct world w;
	cs_up(&w, "agent.pool_size=64MiB", "agent.slots=8000");
	char instance[40];
	memcpy(instance, w.master.instance, sizeof(instance));
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		v[i].v = malloc(sizeof(big));
	for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
		race_once(&w, v, sizes[s]);
	thousand_ends(&w);
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		free(v[i].v);
	cr_expect(!proc_wait(&w.master, 0) && !proc_wait(&w.agent, 0), "both run on");
	cs_down(&w);
	NO_LEAKS();
}

/* ---- 17 ---- */

enum { GET_ONE, GET_BATCH, GET_RANGES, GET_VERIFIED, GET_KINDS };

static int judge(const uint8_t *got, size_t from, size_t n)
{
	uint8_t *want = malloc(sizeof(big));
	cs_fill(want, sizeof(big), 1);
	return memcmp(got, want + from, n) == 0 ? CHILD_RIGHT : CHILD_FOREIGN;
}

static int get_slowly(struct pml *p, int kind)
{
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_item it[2] = { PML_ITEM_INIT, PML_ITEM_INIT };
	struct pml_range range = { 4096, sizeof(big) - 8192 };
	struct pml_buf buf = { big, sizeof(big) };
	struct pml_op *op;
	size_t n = 0;
	o.deadline_ms = 2000;
	o.verify = kind == GET_VERIFIED ? PML_VERIFY_ALWAYS : PML_VERIFY_AUTO;
	if (kind == GET_RANGES)
		return pml_get_ranges(p, "big", 3, &range, 1, &buf, 1, &o, NULL)
			       ? CHILD_ERROR
			       : judge(big, range.offset, range.bytes);
	if (kind != GET_BATCH)
		return pml_get(p, "big", 3, big, sizeof(big), &n, &o, NULL)
			       ? CHILD_ERROR
			       : judge(big, 0, sizeof(big));
	struct pml_buf none = { malloc(VALUE_MAX), VALUE_MAX };
	it[0].key = "big", it[0].key_bytes = 3, it[0].bufs = &buf, it[0].n_bufs = 1;
	it[1].key = "none", it[1].key_bytes = 4, it[1].bufs = &none, it[1].n_bufs = 1;
	struct pml_result r = PML_RESULT_INIT;
	if (pml_get_start(p, it, 2, &o, NULL, NULL, &op, NULL) != 0)
		return CHILD_ODD;
	pml_op_wait(op);
	pml_op_result(op, 0, &r);
	return r.code ? CHILD_ERROR : judge(big, 0, sizeof(big));
}

/* A reader that stands still past its lease while its object goes and its space is written again. */
static void slow_get(const struct world *w, const char *place, int kind)
{
	int st = 0;
	cs_fill(big, sizeof(big), 1);
	cr_assert_eq(pml_upsert(w->p, "big", 3, big, sizeof(big), NULL, NULL), 0);
	pid_t pid = child(w, place, get_slowly, kind);
	cr_assert(waitpid(pid, &st, WUNTRACED) == pid && WIFSTOPPED(st), "%s %d: %#x", place,
		  kind, (unsigned)st);
	cr_assert_eq(pml_remove(w->p, "big", 3, NULL, NULL), 0);
	usleep(600000);
	cs_fill(big, sizeof(big), 9);
	for (int i = 0; i < 4; i++) { /* more than the pool: all of it is written */
		char key[16];
		struct pml_error err = PML_ERROR_INIT;
		snprintf(key, sizeof(key), "other/%d", i);
		cr_assert_eq(pml_upsert(w->p, key, strlen(key), big, sizeof(big), NULL, &err),
			     0, "%s", err.text);
	}
	kill(pid, SIGCONT);
	cr_expect_eq(child_end(pid), CHILD_ERROR, "%s, kind %d", place, kind);
}

Test(cases, case_017_slow_get)
{
	static const char *const places[] = { "get_queried:stop", "get_half:stop",
					      "get_copied:stop" };
	struct world w;
	if (!fault_built())
		cr_skip("needs a build with fault points");
	cs_up(&w, "agent.pool_size=32MiB", "agent.slots=8000");
	for (int kind = 0; kind < GET_KINDS; kind++)
		slow_get(&w, places[1], kind);
	slow_get(&w, places[0], GET_ONE);
	slow_get(&w, places[2], GET_ONE);
	slow_get(&w, places[2], GET_RANGES);
	cs_down(&w);
	NO_LEAKS();
}
