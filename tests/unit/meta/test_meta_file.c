/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asynchronous store in a simulated process on a disk in memory: what an append is told,
 * and when.
 */
#include "meta/meta.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "support/leak.h"
#include "support/meta_fs_fault.h"
#include "support/sim.h"

#define APPENDS 2048

struct fix {
	struct sim *sim;
	struct sim_proc *proc;
	struct loop loop;
	struct log log;
	struct fault_fs *disk;
	struct meta *m;
	struct meta_opts o;
	bool opened, closed;
	enum err open_err;
	struct why open_why, broken;
	int n_broken;
	size_t n_done;
	struct appended {
		struct meta_append a;
		struct fix *f;
		size_t order; /* of its done; 0: not yet */
	} all[APPENDS];
	size_t n_all;
};

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	struct fix *f = ctx;
	cr_assert_not(f->opened);
	f->opened = true;
	f->open_err = e;
	f->open_why = *why;
}

static void on_broken(void *ctx, const struct why *why)
{
	struct fix *f = ctx;
	f->broken = *why;
	f->n_broken++;
}

static void on_closed(void *arg)
{
	struct fix *f = arg;
	f->closed = true;
	f->m = NULL;
}

static void on_done(struct meta_append *a)
{
	struct appended *x = container_of(a, struct appended, a);
	cr_assert_eq(x->order, 0, "done once");
	x->order = ++x->f->n_done;
}

static void run(struct fix *f)
{
	sim_run_ms(f->sim, 1000);
}

static void open_store(struct fix *f)
{
	f->opened = f->closed = false;
	f->open_why = (struct why){ 0 };
	f->o.dir = "DISK";
	f->o.name = "m";
	f->o.fs = fault_fs_fs(f->disk);
	f->o.log = &f->log;
	f->o.opened = on_opened;
	f->o.broken = on_broken;
	f->o.ctx = f;
	f->o.chunk_bytes = 4096;
	cr_assert_eq(meta_open(&f->loop, &f->o, &f->m), ERR_NONE);
	cr_assert_not(f->opened, "never inside the call");
}

static void close_store(struct fix *f)
{
	meta_close(f->m, on_closed, f);
	cr_assert_not(f->closed, "never inside the call");
	run(f);
	cr_assert(f->closed);
}

static struct fix *fix_new(void)
{
	struct fix *f = calloc(1, sizeof(*f));
	f->sim = sim_new(1);
	f->proc = sim_proc_start(sim_node(f->sim, "a"), &(struct sim_proc_opts){ .name = "p" });
	f->log = (struct log){ .svc = "test", .fd = 2 };
	log_set_level(LOG_ERROR_L);
	sim_loop_open(f->proc, &f->loop);
	f->disk = fault_fs_new();
	return f;
}

static void fix_free(struct fix *f)
{
	if (f->m)
		close_store(f);
	sim_loop_close(&f->loop);
	sim_proc_end(f->proc);
	sim_free(f->sim);
	fault_fs_free(f->disk);
	free(f);
}

static struct fix *fix_open(void)
{
	struct fix *f = fix_new();
	open_store(f);
	run(f);
	cr_assert(f->opened);
	cr_assert_eq(f->open_err, ERR_NONE, "%s", f->open_why.text);
	return f;
}

#define S(s)                                        \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}
#define HOLDER(name)                             \
	((struct meta_rec){ .type = META_HOLDER, \
			    .HOLDER = { .id = S(name), .kind = 1, .away = true } })
#define TOMB(name, k, c) \
	((struct meta_rec){ .type = META_TOMB, .TOMB = { S(name), 0, S("t"), S(k), c, c } })
#define TERM(n) ((struct meta_rec){ .type = META_TERM, .TERM = { n } })

static struct meta_append *append(struct fix *f, uint64_t term, const struct meta_rec *r,
				  size_t n)
{
	cr_assert_lt(f->n_all, APPENDS);
	struct appended *x = &f->all[f->n_all++];
	x->f = f;
	x->order = 0;
	x->a = (struct meta_append){ .term = term, .if_seq = META_ANY, .done = on_done };
	size_t before = f->n_done;
	meta_append(f->m, &x->a, r, n);
	cr_assert_eq(f->n_done, before, "never inside the call");
	return &x->a;
}

static struct meta_append *append1(struct fix *f, uint64_t term, struct meta_rec r)
{
	return append(f, term, &r, 1);
}

static size_t order_of(const struct meta_append *a)
{
	return container_of(a, struct appended, a)->order;
}

/* An open store in term 1 with a holder "h" that is away. */
static struct fix *fix_term1(void)
{
	struct fix *f = fix_open();
	struct appended *x = &f->all[f->n_all++];
	x->f = f;
	x->a.done = on_done;
	meta_raise_term(f->m, &x->a);
	struct meta_append *h = append1(f, 1, HOLDER("h"));
	run(f);
	cr_assert_eq(x->a.err, ERR_NONE, "%s", x->a.why.text);
	cr_assert_eq(x->a.seq, 1);
	cr_assert_eq(h->err, ERR_NONE, "%s", h->why.text);
	cr_assert_eq(meta_term(meta_state_of(f->m)), 1);
	return f;
}

Test(meta_file, opens_appends_reopens, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_append *a = append1(f, 1, TOMB("h", "k", 7));
	run(f);
	cr_assert_eq(a->err, ERR_NONE);
	cr_assert_eq(a->seq, 3);
	close_store(f);
	open_store(f);
	cr_assert_null(meta_state_of(f->m), "not yet");
	run(f);
	const struct meta_state *st = meta_state_of(f->m);
	cr_assert_eq(meta_term(st), 1);
	cr_assert_eq(meta_barred(meta_holder_find(st, BYTES_STR("h")), 0, BYTES_STR("t"),
				 BYTES_STR("k")),
		     7);
	fix_free(f);
	NO_LEAKS();
}

/* I3: a writer that was deposed, or that did not see the latest, changes nothing. */
Test(meta_file, compare_and_append, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_append *old = append1(f, 0, TOMB("h", "a", 5));
	struct meta_append *wrong = append1(f, 2, TOMB("h", "a", 5));
	run(f);
	cr_assert_eq(old->err, ERR_CONFLICT);
	cr_assert(strstr(old->why.text, "term is 0, the store's 1"), "%s", old->why.text);
	cr_assert_eq(wrong->err, ERR_CONFLICT);
	cr_assert_eq(old->seq, 0);
	cr_assert_eq(meta_last_seq(meta_state_of(f->m)), 2);

	/* two that saw the same: the first wins, in one batch */
	struct meta_rec r = TOMB("h", "a", 5);
	struct appended *x = &f->all[f->n_all++], *y = &f->all[f->n_all++];
	x->f = y->f = f;
	x->a = y->a = (struct meta_append){ .term = 1, .if_seq = 2, .done = on_done };
	meta_append(f->m, &x->a, &r, 1);
	meta_append(f->m, &y->a, &r, 1);
	run(f);
	cr_assert_eq(x->a.err, ERR_NONE);
	cr_assert_eq(y->a.err, ERR_CONFLICT);
	cr_assert(strstr(y->a.why.text, "saw record 2, the store is at 3"), "%s",
		  y->a.why.text);

	/* a new leader's term, and an old leader's append behind it in the same batch */
	struct meta_append *raise = append1(f, META_ANY, TERM(2));
	struct meta_append *late = append1(f, 1, TOMB("h", "b", 5));
	struct meta_append *fresh = append1(f, 2, TOMB("h", "c", 5));
	struct meta_append *again = append1(f, META_ANY, TERM(2));
	run(f);
	cr_assert_eq(raise->err, ERR_NONE);
	cr_assert_eq(late->err, ERR_CONFLICT);
	cr_assert_eq(fresh->err, ERR_NONE);
	cr_assert_eq(again->err, ERR_CONFLICT);
	fix_free(f);
	NO_LEAKS();
}

/* Many appends, few fsyncs; done in order; the records of one append together. */
Test(meta_file, group_commit, .timeout = 20)
{
	struct fix *f = fix_term1();
	struct meta_counters before, after;
	meta_counters(f->m, &before);
	size_t first = f->n_all;
	for (int i = 0; i < 1000; i++) {
		char key[16];
		snprintf(key, sizeof(key), "k%d", i);
		struct meta_rec r[2] = { TOMB("h", "", 9), TOMB("h", "z", 9) };
		r[0].TOMB.key = BYTES_STR(key);
		append(f, 1, r, 2);
	}
	run(f);
	meta_counters(f->m, &after);
	cr_assert_eq(after.appends - before.appends, 1000);
	cr_assert_eq(after.records - before.records, 2000);
	cr_assert_leq(after.writes - before.writes, 3, "%zu",
		      (size_t)(after.writes - before.writes));
	for (size_t i = first + 1; i < f->n_all; i++) {
		cr_assert_eq(f->all[i].order, f->all[i - 1].order + 1);
		cr_assert_eq(f->all[i].a.seq, f->all[i - 1].a.seq + 2);
	}
	cr_assert_eq(after.queue_bytes, 0);
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, unsound_and_too_much, .timeout = 20)
{
	struct fix *f = fix_term1();
	struct meta_rec two[2] = { TERM(5), TERM(6) };
	static uint8_t blob[1 << 20];
	struct meta_rec views[3];
	for (int i = 0; i < 3; i++)
		views[i] = (struct meta_rec){
			.type = META_VIEW,
			.VIEW = { S("t"), S("g"), 1, (uint64_t)i + 1, { blob, 900000 } }
		};
	struct meta_append *none = append(f, 1, two, 0);
	struct meta_append *bad = append1(f, 1, TOMB("h", "", 5));
	struct meta_append *any = append1(f, META_ANY, TOMB("h", "k", 5));
	struct meta_append *any2 = append(f, META_ANY, two, 2);
	struct meta_append *big = append(f, 1, views, 3);
	struct meta_append *nobody = append1(f, 1, TOMB("x", "k", 5));
	run(f);
	cr_assert_eq(none->err, ERR_INVALID_PARAMS);
	cr_assert_eq(bad->err, ERR_INVALID_PARAMS);
	cr_assert(strstr(bad->why.text, "key"), "%s", bad->why.text);
	cr_assert_eq(any->err, ERR_INVALID_PARAMS);
	cr_assert_eq(any2->err, ERR_INVALID_PARAMS);
	cr_assert_eq(big->err, ERR_TOO_LARGE);
	cr_assert(strstr(big->why.text, "2097152"), "%s", big->why.text);
	cr_assert_eq(nobody->err, ERR_NOT_FOUND);
	cr_assert_eq(meta_last_seq(meta_state_of(f->m)), 2, "nothing of all that was written");
	fix_free(f);
	NO_LEAKS();
}

/* One refused record takes its whole append with it, and no other. */
Test(meta_file, all_or_nothing, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_rec mixed[2] = { TOMB("h", "a", 5), TOMB("x", "a", 5) };
	struct meta_append *before = append1(f, 1, TOMB("h", "b", 5));
	struct meta_append *a = append(f, 1, mixed, 2);
	struct meta_append *after = append1(f, 1, TOMB("h", "c", 5));
	run(f);
	cr_assert_eq(before->err, ERR_NONE);
	cr_assert_eq(a->err, ERR_NOT_FOUND);
	cr_assert_eq(after->err, ERR_NONE);
	cr_assert_eq(after->seq, before->seq + 1);
	const struct meta_holder *h = meta_holder_find(meta_state_of(f->m), BYTES_STR("h"));
	cr_assert_eq(meta_barred(h, 0, BYTES_STR("t"), BYTES_STR("a")), 0);
	fix_free(f);
	NO_LEAKS();
}

/* A record that loses to one of its own batch is in the log, and told so. */
Test(meta_file, without_effect, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_rec one = { .type = META_CLAIM,
				.CLAIM = { S("s"), S("n"), S("one"), S("") } };
	struct meta_rec two = { .type = META_CLAIM,
				.CLAIM = { S("s"), S("n"), S("two"), S("") } };
	append1(f, 1, HOLDER("h")); /* is written while the next two wait together */
	struct meta_append *a = append1(f, 1, one), *b = append1(f, 1, two);
	run(f);
	cr_assert_eq(a->err, ERR_NONE);
	cr_assert_eq(b->err, ERR_CONFLICT);
	cr_assert_eq(b->seq, a->seq + 1);
	struct meta_append *c = append1(f, 1, two);
	run(f);
	cr_assert_eq(c->err, ERR_CONFLICT);
	cr_assert_eq(c->seq, 0, "seen before it was written");
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, the_queue_is_bounded, .timeout = 20)
{
	struct fix *f = fix_new();
	f->o.queue_bytes_max = 4000;
	open_store(f);
	run(f);
	append1(f, META_ANY, TERM(1));
	append1(f, 1, HOLDER("h"));
	run(f);
	/* what fits waits, the rest is told so */
	size_t first = f->n_all, busy = 0;
	for (int i = 0; i < 200; i++)
		append1(f, 1, TOMB("h", "some key", 5));
	run(f);
	for (size_t i = first; i < f->n_all; i++) {
		cr_assert(f->all[i].a.err == ERR_NONE || f->all[i].a.err == ERR_BUSY);
		busy += f->all[i].a.err == ERR_BUSY;
	}
	cr_assert_gt(busy, 50);
	cr_assert_lt(busy, 150);
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, close_writes_what_waits, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_append *a[100];
	for (int i = 0; i < 100; i++)
		a[i] = append1(f, 1, TOMB("h", "k", 5));
	meta_close(f->m, on_closed, f);
	struct meta *m = f->m;
	struct meta_rec r = TOMB("h", "late", 5);
	struct appended *x = &f->all[f->n_all++];
	x->f = f;
	x->a = (struct meta_append){ .term = 1, .if_seq = META_ANY, .done = on_done };
	meta_append(m, &x->a, &r, 1);
	run(f);
	cr_assert(f->closed);
	cr_assert_eq(x->a.err, ERR_CLOSED);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(a[i]->err, ERR_NONE);
	open_store(f);
	run(f);
	cr_assert_eq(meta_last_seq(meta_state_of(f->m)), 102);
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, appends_before_it_is_open, .timeout = 10)
{
	struct fix *f = fix_new();
	open_store(f);
	struct meta_append *t = append1(f, META_ANY, TERM(1)), *h = append1(f, 1, HOLDER("h"));
	run(f);
	cr_assert_eq(t->err, ERR_NONE);
	cr_assert_eq(h->err, ERR_NONE);
	close_store(f);
	/* closed while it opens */
	open_store(f);
	close_store(f);
	cr_assert(f->opened, "said all the same");
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, does_not_open, .timeout = 10)
{
	struct fix *f = fix_term1();
	size_t n;
	close_store(f);
	fault_fs_file(f->disk, "m.log", &n)[600] ^= 1;
	open_store(f);
	struct meta_append *a = append1(f, 1, TOMB("h", "k", 5));
	run(f);
	cr_assert_eq(f->open_err, ERR_CORRUPT);
	cr_assert(strstr(f->open_why.text, "DISK/m.log is damaged"), "%s", f->open_why.text);
	cr_assert_eq(a->err, ERR_CORRUPT);
	cr_assert_null(meta_state_of(f->m));
	struct meta_append *b = append1(f, 1, TOMB("h", "k", 5));
	run(f);
	cr_assert_eq(b->err, ERR_CORRUPT);
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, two_openers, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct fix g = { .sim = f->sim, .loop = { 0 } };
	struct meta_opts o = f->o;
	struct meta *second;
	o.opened = on_opened;
	o.ctx = &g;
	cr_assert_eq(meta_open(&f->loop, &o, &second), ERR_NONE);
	run(f);
	cr_assert_eq(g.open_err, ERR_DIRECTORY_IN_USE);
	meta_close(second, on_closed, &g);
	run(f);
	cr_assert(g.closed);
	fix_free(f);
	NO_LEAKS();
}

/* I4: everything fails from then on; the state stays what is durable. */
Test(meta_file, a_failed_fsync_breaks_it, .timeout = 10)
{
	struct fix *f = fix_term1();
	/* of the next append: a write, then the fsync */
	fault_fs_fail(f->disk, fault_fs_ops(f->disk) + 1, 1, ERR_IO);
	struct meta_append *a = append1(f, 1, TOMB("h", "a", 5));
	struct meta_append *b = append1(f, 1, TOMB("h", "b", 5));
	run(f);
	cr_assert_eq(a->err, ERR_IO);
	cr_assert(strstr(a->why.text, "fsync"), "%s", a->why.text);
	cr_assert_eq(b->err, ERR_IO);
	struct meta_append *c = append1(f, 1, TOMB("h", "c", 5));
	run(f);
	cr_assert_eq(c->err, ERR_IO);
	cr_assert_eq(f->n_broken, 1, "told once");
	cr_assert(strstr(f->broken.text, "restart"), "%s", f->broken.text);
	cr_assert_eq(meta_last_seq(meta_state_of(f->m)), 2);
	struct meta_counters n;
	meta_counters(f->m, &n);
	cr_assert(n.broken);
	fix_free(f);
	NO_LEAKS();
}

Test(meta_file, full_disk_refuses_and_recovers, .timeout = 10)
{
	struct fix *f = fix_term1();
	static uint8_t blob[9000];
	struct meta_rec big = { .type = META_VIEW,
				.VIEW = { S("t"), S("g"), 1, 1, { blob, 9000 } } };
	fault_fs_fail(f->disk, fault_fs_ops(f->disk), 1000, ERR_NO_SPACE);
	struct meta_append *a = append1(f, 1, big);
	run(f);
	cr_assert_eq(a->err, ERR_NO_SPACE);
	cr_assert(strstr(a->why.text, "DISK/m.log"), "%s", a->why.text);
	cr_assert_eq(f->n_broken, 0);
	fault_fs_fail(f->disk, 0, 0, ERR_NONE);
	struct meta_append *b = append1(f, 1, big);
	run(f);
	cr_assert_eq(b->err, ERR_NONE);
	cr_assert_eq(b->seq, 3);
	fix_free(f);
	NO_LEAKS();
}

/* The log stays bounded by snapshots, which nobody waits for. */
Test(meta_file, snapshots, .timeout = 20)
{
	struct fix *f = fix_new();
	struct meta_counters n;
	f->o.log_bytes_max = 8192;
	open_store(f);
	run(f);
	append1(f, META_ANY, TERM(1));
	append1(f, 1, HOLDER("h"));
	for (int i = 0; i < 1000; i++) {
		struct meta_append *a = append1(f, 1, TOMB("h", "k", 5));
		if (i % 10 == 0)
			run(f);
		cr_assert(i % 10 || a->err == ERR_NONE, "%s", a->why.text);
	}
	run(f);
	meta_counters(f->m, &n);
	cr_assert_gt(n.snapshots, 3);
	cr_assert_eq(n.snapshots_failed, 0);
	cr_assert_lt(n.log_bytes, 8192 + 1024);
	cr_assert_gt(n.snap_bytes, 0);
	close_store(f);
	open_store(f);
	run(f);
	cr_assert_eq(meta_last_seq(meta_state_of(f->m)), 1002);
	fix_free(f);
	NO_LEAKS();
}

/* A done callback that keeps the writer busy for good must not keep the snapshot from starting.
 */
static void done_and_again(struct meta_append *a)
{
	struct appended *x = container_of(a, struct appended, a);
	struct meta_rec r = TOMB("h", "k", 5);
	cr_assert_eq(a->err, ERR_NONE, "%s", a->why.text);
	if (++x->f->n_done >= 5000)
		return;
	*a = (struct meta_append){ .term = 1, .if_seq = META_ANY, .done = done_and_again };
	meta_append(x->f->m, a, &r, 1);
}

Test(meta_file, snapshots_beside_a_busy_writer, .timeout = 20)
{
	struct fix *f = fix_new();
	struct meta_counters n;
	f->o.log_bytes_max = 64u << 10;
	open_store(f);
	run(f);
	append1(f, META_ANY, TERM(1));
	append1(f, 1, HOLDER("h"));
	run(f);
	for (int i = 0; i < 4; i++) {
		struct appended *x = &f->all[f->n_all++];
		x->f = f;
		x->a = (struct meta_append){ .done = done_and_again };
		done_and_again(&x->a);
	}
	sim_run_ms(f->sim, 60000);
	cr_assert_geq(f->n_done, 5000);
	meta_counters(f->m, &n);
	cr_assert_gt(n.snapshots, 5);
	cr_assert_eq(n.refused, 0);
	fix_free(f);
	NO_LEAKS();
}

/* They fail: the log goes on to a bound, then appends wait for one that succeeds. */
Test(meta_file, snapshots_that_fail, .timeout = 20)
{
	struct fix *f = fix_new();
	struct meta_counters n;
	f->o.log_bytes_max = 4096;
	f->log.fd = -1;
	open_store(f);
	run(f);
	append1(f, META_ANY, TERM(1));
	append1(f, 1, HOLDER("h"));
	/* making a file fails from now on; writing and syncing the log does not */
	struct meta_append *a = NULL;
	size_t i;
	for (i = 0; i < 1000; i++) {
		uint64_t ops = fault_fs_ops(f->disk);
		if (i > 0 && ops > 0 && fault_fs_kind(f->disk, ops - 1) == FAULT_CREATE)
			cr_assert_fail(
				"unreachable: a failed create is followed by the append");
		a = append1(f, 1, TOMB("h", "k", 5));
		meta_counters(f->m, &n);
		/* when a rotation is due, its unlink and create come first */
		fault_fs_fail(f->disk, ops + 1, n.log_bytes >= 4096 && n.snapshots_failed == 0,
			      ERR_NO_SPACE);
		sim_run_ms(f->sim, 5);
		if (a->err != ERR_NONE)
			break;
	}
	meta_counters(f->m, &n);
	cr_assert_eq(a->err, ERR_BUSY, "after %zu: %s", i, a->why.text);
	cr_assert_eq(n.snapshots_failed, 1);
	cr_assert_geq(n.log_bytes, 4 * 4096);
	cr_assert_leq(n.log_bytes, 4 * 4096 + 1024);
	/* later one succeeds, by itself */
	fault_fs_fail(f->disk, 0, 0, ERR_NONE);
	sim_run_ms(f->sim, 11000);
	a = append1(f, 1, TOMB("h", "k", 5));
	run(f);
	cr_assert_eq(a->err, ERR_NONE, "%s", a->why.text);
	run(f);
	meta_counters(f->m, &n);
	cr_assert_eq(n.snapshots, 1);
	fix_free(f);
	NO_LEAKS();
}

/* T3: over the budget the floor rises, through the log like everything else. */
Test(meta_file, budget, .timeout = 20)
{
	struct fix *f = fix_new();
	f->o.limits.tombs_max = 10;
	open_store(f);
	run(f);
	append1(f, META_ANY, TERM(1));
	append1(f, 1, HOLDER("h"));
	run(f);
	for (uint64_t i = 0; i < 25; i++) {
		char key[16];
		snprintf(key, sizeof(key), "k%zu", (size_t)i);
		struct meta_rec r = TOMB("h", "", 5);
		r.TOMB.key = BYTES_STR(key);
		r.TOMB.ceiling = r.TOMB.now = 100 + i;
		append1(f, 1, r);
	}
	run(f);
	const struct meta_holder *h = meta_holder_find(meta_state_of(f->m), BYTES_STR("h"));
	struct meta_holder_info info;
	meta_holder_info(h, &info);
	cr_assert_geq(meta_floor(h, 0), 110);
	cr_assert_leq(info.n_tombs, 10);
	for (uint64_t i = 0; i < 25; i++) {
		char key[16];
		snprintf(key, sizeof(key), "k%zu", (size_t)i);
		cr_assert_geq(meta_barred(h, 0, BYTES_STR("t"), BYTES_STR(key)), 100 + i);
	}
	fix_free(f);
	NO_LEAKS();
}

/* A done callback may append again, and close. */
static void done_and_more(struct meta_append *a)
{
	struct appended *x = container_of(a, struct appended, a);
	struct fix *f = x->f;
	x->order = ++f->n_done;
	if (f->n_done < 10) {
		struct meta_rec r = TOMB("h", "k", 5);
		struct appended *y = &f->all[f->n_all++];
		*y = (struct appended){ .f = f };
		y->a = (struct meta_append){ .term = 1,
					     .if_seq = META_ANY,
					     .done = done_and_more };
		meta_append(f->m, &y->a, &r, 1);
	} else {
		meta_close(f->m, on_closed, f);
	}
}

Test(meta_file, callbacks_go_on_and_close, .timeout = 10)
{
	struct fix *f = fix_term1();
	struct meta_rec r = TOMB("h", "k", 5);
	struct appended *x = &f->all[f->n_all++];
	x->f = f;
	f->n_done = 0;
	x->a = (struct meta_append){ .term = 1, .if_seq = META_ANY, .done = done_and_more };
	meta_append(f->m, &x->a, &r, 1);
	run(f);
	cr_assert(f->closed);
	cr_assert_eq(f->n_done, 10);
	cr_assert_neq(order_of(&x->a), 0);
	fix_free(f);
	NO_LEAKS();
}
