/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store through many lives of a process on one simulated machine: it is killed, the
 * power goes, the disk fills, fails, slows down, at any moment. Judged by a list of what was
 * handed in and what was acknowledged, from which the state a store may hold is computed anew.
 */
#include "meta/meta.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "tests/support/leak.h"
#include "tests/support/meta_fs_sim.h"
#include "tests/support/sim.h"

#define RECORDS_MAX 20000
#define LIVES	    12

/* One append that was handed in: n records, which are (kind, number) and can be made again. */
struct given {
	uint64_t first_id;
	uint32_t n;
	enum { RANDOM, TERM, HOLDERS } kind;
	uint64_t term; /* TERM's */
	struct meta_append *a;
};

struct world {
	struct sim *sim;
	struct sim_node *node;
	struct sim_rng rng;
	/* acknowledged, in order; then those in doubt */
	struct given log[RECORDS_MAX];
	size_t n_acked, n_given;
	uint64_t next_id, term;
};

struct life {
	struct world *w;
	struct sim_proc *proc;
	struct loop loop;
	struct log log;
	struct meta_fs *fs;
	struct meta *m;
	bool opened, dead, closed, broken;
	enum err open_err;
	struct why why;
	size_t owed; /* appends whose done has not come */
	uint64_t refused;
};

struct write {
	struct meta_append a;
	struct life *l;
};

/* ---- records from numbers ---- */

static struct meta_rec make_record(uint64_t id, char key[24])
{
	static const char *const holders[] = { "h0", "h1", "h2" };
	struct bytes h = BYTES_STR(holders[id % 3]);
	struct meta_rec r = { .type = META_HOLDER };
	int n = snprintf(key, 24, "key-%llu", (unsigned long long)(id * 7919 % 500));
	switch (id * 2654435761u >> 8 & 7) {
	case 0:
		r.HOLDER = (struct msg_meta_holder){
			.id = h, .kind = 1, .away = id & 1, .away_since = id
		};
		break;
	case 1:
		r.type = META_VIEW;
		r.VIEW = (struct msg_meta_view){ BYTES_STR("t"), BYTES(key, (size_t)n % 6 + 1),
						 id, id, BYTES(key, (size_t)n) };
		break;
	case 2:
		r.type = META_RANGE;
		r.RANGE = (struct msg_meta_range){
			h, 0, 1, BYTES_STR("t"), BYTES(key, (size_t)n), id, id
		};
		break;
	case 3:
		r.type = META_SETTLED;
		r.SETTLED = (struct msg_meta_settled){ h, 0, id > 40 ? id - 40 : 0 };
		break;
	default:
		r.type = META_TOMB;
		r.TOMB = (struct msg_meta_tomb){ h,  0, BYTES_STR("t"), BYTES(key, (size_t)n),
						 id, id };
	}
	return r;
}

static struct meta_rec record_of(const struct given *g, uint32_t i, char key[24])
{
	static const char *const holders[] = { "h0", "h1", "h2" };
	struct meta_rec r = { .type = META_HOLDER };
	switch (g->kind) {
	case TERM:
		return (struct meta_rec){ .type = META_TERM, .TERM = { g->term } };
	case HOLDERS:
		r.HOLDER = (struct msg_meta_holder){ .id = BYTES_STR(holders[i]), .kind = 1 };
		return r;
	case RANDOM:
		break;
	}
	return make_record(g->first_id + i, key);
}

/* ---- judging ---- */

static enum err digest_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	uint64_t *sum = arg;
	struct buf b = BUF_INIT(1 << 16);
	meta_rec_encode(&b, r);
	*sum += XXH3_64bits_withSeed(b.p, b.n, seq * 1000 + r->type);
	buf_fini(&b);
	return ERR_NONE;
}

static uint64_t digest(const struct meta_state *st)
{
	uint64_t sum = 0;
	enum err e = meta_state_dump(st, digest_one, &sum);
	SIM_CHECK(e == ERR_NONE, "dump: %s", err_name(e));
	return sum;
}

/*
 * The store holds exactly the acknowledged appends and some of those in doubt, the earliest.
 * Makes what it has acknowledged, and forgets the rest: nobody will hand it in again.
 */
static void judge(struct world *w, const struct meta_state *st)
{
	struct meta_state *want;
	uint64_t seq = 0, last = meta_last_seq(st);
	size_t k = 0;
	SIM_CHECK(meta_state_new(1, &want) == ERR_NONE, "no memory");
	for (; k < w->n_given && seq < last; k++)
		for (uint32_t i = 0; i < w->log[k].n; i++) {
			char key[24];
			struct meta_rec r = record_of(&w->log[k], i, key);
			(void)!meta_state_apply(want, ++seq, &r);
		}
	SIM_CHECK(seq == last, "the store is at record %zu, no append ends there (%zu)",
		  (size_t)last, (size_t)seq);
	SIM_CHECK(k >= w->n_acked, "%zu appends were acknowledged, %zu are there", w->n_acked,
		  k);
	SIM_CHECK(digest(want) == digest(st), "another state at record %zu", (size_t)last);
	meta_state_check(st);
	meta_state_free(want);
	w->n_acked = w->n_given = k;
	w->term = meta_term(st);
}

/* ---- a life ---- */

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	struct life *l = ctx;
	l->opened = true;
	l->open_err = e;
	l->why = *why;
	if (e == ERR_NONE && !l->dead)
		judge(l->w, meta_state_of(l->m));
}

static void on_broken(void *ctx, const struct why *why)
{
	((struct life *)ctx)->broken = true;
}

static void end_process(void *arg)
{
	struct life *l = arg;
	l->closed = true;
	sim_loop_close(&l->loop);
	sim_proc_end(l->proc);
}

static void on_closed(void *arg)
{
	struct life *l = arg;
	l->m = NULL;
	meta_fs_free(l->fs);
	/* the loop runs just now */
	sim_at(l->w->sim, sim_now_ns(l->w->sim), end_process, l);
}

static void on_kill(void *arg)
{
	struct life *l = arg;
	l->dead = true;
	meta_close(l->m, on_closed, l);
}

static void on_done(struct meta_append *a)
{
	struct write *x = container_of(a, struct write, a);
	struct life *l = x->l;
	struct world *w = l->w;
	l->owed--;
	if (l->dead) {
		/* nobody hears it */
	} else if (a->err == ERR_NONE || a->seq) {
		SIM_CHECK(w->log[w->n_acked].a == a, "out of order");
		w->n_acked++;
	} else if (a->err != ERR_IO) {
		/* refused: it is not there, and will not be (I1). Those behind it move up. */
		SIM_CHECK(a->err == ERR_NO_SPACE || a->err == ERR_BUSY || a->err == ERR_CLOSED,
			  "%s: %s", err_name(a->err), a->why.text);
		size_t i = w->n_acked;
		while (i < w->n_given && w->log[i].a != a)
			i++;
		SIM_CHECK(i < w->n_given, "an append nobody made");
		memmove(&w->log[i], &w->log[i + 1], (w->n_given - i - 1) * sizeof(w->log[0]));
		w->n_given--;
		l->refused++;
	}
	free(x);
}

static void hand_in(struct life *l, uint32_t n, int kind)
{
	struct world *w = l->w;
	struct meta_rec r[8];
	char keys[8][24];
	if (w->n_given == RECORDS_MAX)
		return;
	struct given *g = &w->log[w->n_given++];
	*g = (struct given){ .first_id = w->next_id + 1, .n = n, .term = w->term + 1 };
	g->kind = kind;
	if (kind == RANDOM)
		w->next_id += n;
	for (uint32_t i = 0; i < n; i++)
		r[i] = record_of(g, i, keys[i]);
	struct write *x = calloc(1, sizeof(*x));
	SIM_CHECK(x, "no memory");
	x->l = l;
	g->a = &x->a;
	x->a = (struct meta_append){ .term = kind == TERM ? META_ANY : w->term,
				     .if_seq = META_ANY,
				     .done = on_done };
	l->owed++;
	meta_append(l->m, &x->a, r, n);
}

/* The log of a store that breaks is no test's output. */
static void no_line(struct log_capture *c, const char *line, size_t n)
{
}
static struct log_capture silent = { no_line };

static struct life *begin(struct world *w)
{
	struct life *l = calloc(1, sizeof(*l));
	SIM_CHECK(l, "no memory");
	l->w = w;
	l->log = (struct log){ .svc = "test", .fd = 2 };
	log_set_capture(&l->log, &silent);
	l->proc = sim_proc_start(w->node, &(struct sim_proc_opts){
						  .name = "p", .on_kill = on_kill, .arg = l });
	sim_loop_open(l->proc, &l->loop);
	l->fs = meta_fs_sim_new(sim_node_disk(w->node), "/meta");
	const struct meta_opts o = { .dir = "/meta",
				     .name = "m",
				     .fs = l->fs,
				     .log = &l->log,
				     .log_bytes_max = 16384,
				     .chunk_bytes = 4096,
				     .opened = on_opened,
				     .broken = on_broken,
				     .ctx = l };
	SIM_CHECK(meta_open(&l->loop, &o, &l->m) == ERR_NONE, "no memory");
	return l;
}

static bool is_open(void *arg)
{
	return ((struct life *)arg)->opened;
}
static bool is_closed(void *arg)
{
	return ((struct life *)arg)->closed;
}
static bool all_done(void *arg)
{
	return ((struct life *)arg)->owed == 0;
}

static void disturb(struct life *l)
{
	struct sim_disk *d = sim_node_disk(l->w->node);
	struct sim_rng *r = &l->w->rng;
	switch (sim_rng_below(r, 8)) {
	case 0:
		sim_disk_full(d, true);
		break;
	case 1:
		sim_disk_full(d, false);
		break;
	case 2:
		sim_disk_fail(d, true, sim_rng_below(r, 30), 1, 5 /* EIO */);
		break;
	case 3:
		sim_disk_fail(d, true, sim_rng_below(r, 30), 1 + sim_rng_below(r, 3),
			      28 /* ENOSPC */);
		break;
	case 4:
		sim_disk_slow(d, 1000000, 10000);
		break;
	default:
		sim_disk_slow(d, 2000, 100);
	}
}

/* The leader's first words: its term, and the holders that later records are for. */
static bool lead(struct life *l)
{
	for (int kind = TERM; kind <= HOLDERS; kind++) {
		hand_in(l, kind == TERM ? 1 : 3, kind);
		bool got = sim_run_until(l->w->sim, all_done, l, 60000);
		SIM_CHECK(got, "an append is never answered");
		if (l->broken || l->refused)
			return false;
		if (kind == TERM)
			l->w->term++;
	}
	return true;
}

static void work(struct life *l)
{
	struct sim_rng *r = &l->w->rng;
	if (!lead(l))
		return;
	for (int bursts = (int)sim_rng_below(r, 12); bursts > 0 && !l->broken; bursts--) {
		for (int n = (int)sim_rng_below(r, 30); n > 0; n--)
			hand_in(l, 1 + (uint32_t)sim_rng_below(r, 8), RANDOM);
		if (sim_rng_chance(r, 300000))
			disturb(l);
		sim_run_ms(l->w->sim, sim_rng_below(r, 20));
	}
}

static void end(struct life *l)
{
	struct world *w = l->w;
	switch (sim_rng_below(&w->rng, 3)) {
	case 0:
		meta_close(l->m, on_closed, l);
		break;
	case 1:
		sim_kill(l->proc);
		break;
	default:
		sim_power_cut(w->node);
	}
	bool got = sim_run_until(w->sim, is_closed, l, 60000);
	SIM_CHECK(got, "it never closed");
	SIM_CHECK(l->owed == 0, "%zu appends were never answered", l->owed);
	free(l);
}

static void scenario(uint64_t seed)
{
	static struct world w;
	w = (struct world){ .sim = sim_new(seed), .rng = sim_rng(seed, "work") };
	w.node = sim_node(w.sim, "a");
	for (int i = 0; i < LIVES; i++) {
		struct life *l = begin(&w);
		struct sim_disk *d = sim_node_disk(w.node);
		if (sim_rng_chance(&w.rng,
				   150000)) /* the power goes, or it dies, while it recovers */
			sim_run_ms(w.sim, sim_rng_below(&w.rng, 2));
		else
			SIM_CHECK(sim_run_until(w.sim, is_open, l, 60000), "it never opens");
		if (l->opened && l->open_err == ERR_NONE)
			work(l);
		else if (l->opened)
			SIM_CHECK(l->open_err == ERR_NO_SPACE || l->open_err == ERR_IO,
				  "%s: %s", err_name(l->open_err), l->why.text);
		end(l);
		sim_disk_full(d, false);
		sim_disk_fail(d, true, 0, 0, 0);
		sim_disk_slow(d, 2000, 100);
	}
	struct life *l = begin(&w);
	SIM_CHECK(sim_run_until(w.sim, is_open, l, 60000), "it never opens");
	SIM_CHECK(l->open_err == ERR_NONE, "%s: %s", err_name(l->open_err), l->why.text);
	end(l);
	sim_free(w.sim);
}

Test(meta, many_lives, .timeout = 120)
{
	uint64_t seed;
	for (struct sim_seeds r = sim_seeds(150); sim_seeds_next(&r, &seed);)
		scenario(seed);
	NO_LEAKS();
}
