/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded random events against the mind, with an oracle beside it: whatever is lost, doubled, late or
 * dies, no acknowledged put is lost (but with its holder), no old or removed version is seen, no two
 * slots lie over one range (rig_commit asserts that), the recount is right after every step, and when
 * the faults end, everything comes to rest.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"
#include "soak.h"

enum { KEYS = 4, PUTS = 12, REMOVES = 6 };

struct key {
	char name[8];
	uint64_t barred; /* versions at or below may never be seen again */
	uint64_t acked;	 /* the newest acknowledged; 0: none that must be there */
	int holder;	 /* that has it */
	bool moved;	 /* or another one */
	uint64_t seen;	 /* by a get */
};

struct one_remove {
	struct mind_call c;
	struct msg_remove_item it;
	struct soak *s;
	int key;
	bool busy;
	uint64_t bar; /* acknowledged or seen before it began */
};

struct one_range {
	struct mind_remove_range r;
	struct soak *s;
	bool busy;
	uint64_t bar[KEYS];
};

struct one_put {
	struct rig_put p;
	struct msg_put_opts opts;
	bool doubt;	/* something began meanwhile that may take it */
	int key, state; /* 0 none, 1 started, 2 granted, 3 committed, 4 publish sent */
};

struct soak {
	struct rig *r;
	uint64_t rng, seed;
	struct key k[KEYS];
	struct one_put p[PUTS];
	struct one_remove x[REMOVES];
	struct one_range range;
	uint64_t evictions, aways;
	bool in[FAKES]; /* what the test believes: beats come */
	uint64_t made;	/* copies, in earlier terms */
	uint64_t acked, removed, gets, lost_master, away;
	bool trace;
	bool moving; /* something is moved */
	bool copies; /* step_copies */
	uint64_t drain;
};

static uint64_t rnd(struct soak *s, uint64_t n)
{
	s->rng ^= s->rng << 13;
	s->rng ^= s->rng >> 7;
	s->rng ^= s->rng << 17;
	return (s->rng >> 11) % n;
}

#define SAY(s, ...) ((s)->trace ? (void)fprintf(stderr, __VA_ARGS__) : (void)0)

/* What of that key (at that holder, -1: any) is acknowledged need not be there any more. */
static void doubt(struct soak *s, int key, int holder)
{
	if (holder < 0 || s->k[key].holder == holder || s->k[key].moved)
		s->k[key].acked = 0;
	for (int i = 0; i < PUTS; i++)
		if (s->p[i].state && s->p[i].key == key)
			s->p[i].doubt = true;
}

static bool removing(const struct soak *s, int key)
{
	for (int i = 0; i < REMOVES; i++)
		if (s->x[i].busy && s->x[i].key == key)
			return true;
	return s->range.busy;
}

/* ---- what must hold ---- */

static void on_fact(void *arg, const char *name, const char *value)
{
	(void)arg;
	fprintf(stderr, "%s: %s\n", name, value);
}

static void look(struct soak *s, int i)
{
	struct key *k = &s->k[i];
	uint64_t v = 0;
	enum err e = rig_get(s->r, k->name, &v);
	s->gets++;
	if (e == ERR_NONE) {
		cr_assert_gt(v, k->barred, "seed %" PRIu64 ": %s has %" PRIx64 " again",
			     s->seed, k->name, v);
		cr_assert_geq(v, k->seen, "seed %" PRIu64 ": %s went back to %" PRIx64, s->seed,
			      k->name, v);
		k->seen = v;
	} else if (e == ERR_NOT_FOUND) {
		struct mind_holder h;
		for (int at = 0; k->acked && at < FAKES; at++)
			if ((at == k->holder || k->moved) &&
			    mind_holder(s->r->m, rig_holder(s->r, at), &h) && h.away)
				k->acked = 0; /* excused: not heard of after a restart */
		if (k->acked)
			mind_explain(s->r->m, BYTES_STR("t"), BYTES_STR(k->name), on_fact, s);
		cr_assert_eq(k->acked, 0, "seed %" PRIu64 ": %s %" PRIx64 " at h%d is lost",
			     s->seed, k->name, k->acked, k->holder);
	}
}

static void put_acked(struct soak *s, struct one_put *p)
{
	struct key *k = &s->k[p->key];
	uint64_t v = p->p.p.version;
	int h = p->p.h;
	SAY(s, "  acked %s %" PRIx64 "\n", k->name, v);
	s->acked++;
	if (v <= k->barred || v <= k->seen)
		return; /* superseded or removed meanwhile */
	k->acked = p->doubt || removing(s, p->key) || !s->in[h] ? 0 : v;
	k->holder = h;
	k->moved = s->moving;
	if (!p->doubt)
		k->seen = v > k->seen ? v : k->seen;
	struct fake_slot *f = &s->r->h[h].slots[p->p.slot];
	if (f->state == 1 && f->version == v)
		f->published = rnd(s, 4) != 0; /* the mark may be lost */
}

static void on_pub(struct mind_call *c)
{
	container_of(c, struct rig_put, pub)->published++;
}

static void puts_look(struct soak *s)
{
	for (int i = 0; i < PUTS; i++) {
		struct one_put *p = &s->p[i];
		if (p->state == 1 && p->p.done)
			p->state = p->p.p.call.err == ERR_NONE ? 2 : 0;
		if (p->state != 4 || !p->p.published)
			continue;
		p->p.published = 0;
		p->state = 3; /* it may be sent again */
		if (p->p.pub.err == ERR_NONE) {
			put_acked(s, p);
			p->state = rnd(s, 3) ? 0 : 3;
		} else if (p->p.pub.err == ERR_STALE_ATTEMPT) {
			p->state = 0;
		}
	}
}

/* ---- what happens ---- */

static void put_start(struct soak *s)
{
	struct one_put *p = &s->p[rnd(s, PUTS)];
	if (p->state)
		return;
	p->key = (int)rnd(s, KEYS);
	SAY(s, "start %s\n", s->k[p->key].name);
	p->opts = (struct msg_put_opts){ 0 };
	if (rnd(s, 2) == 0)
		p->opts.group = BYTES_STR("g");
	if (s->copies || rnd(s, 2) == 0) {
		p->opts.replica_num = 1 + (uint32_t)rnd(s, 3);
		s->r->required = (uint32_t)rnd(s, p->opts.replica_num + 1);
	}
	s->r->opts = !s->copies && rnd(s, 2) ? NULL : &p->opts;
	s->r->required = s->r->opts ? s->r->required : 0;
	rig_start(s->r, &p->p, s->k[p->key].name, rnd(s, 3) ? 100 + rnd(s, 20000) : 0,
		  (int)rnd(s, FAKES), rnd(s, 4) != 0);
	s->r->opts = NULL;
	s->r->required = 0;
	p->p.pub.done = on_pub;
	p->state = 1;
	p->doubt = false;
}

static void put_on(struct soak *s)
{
	struct one_put *p = &s->p[rnd(s, PUTS)];
	if (p->state == 2) {
		enum err e = rig_commit(s->r, &p->p);
		if (e == ERR_BUSY)
			return; /* its writer is stopped */
		p->state = e == ERR_NONE ? 3 : 0;
		if (e == ERR_NONE) { /* section 5: it may end with neither version */
			doubt(s, p->key, -1);
			p->doubt = removing(s, p->key);
		}
		SAY(s, "commit %s %" PRIx64 " at h%d: %s\n", s->k[p->key].name, p->p.p.version,
		    p->p.h, err_name(e));
	} else if (p->state == 3 && s->r->h[p->p.h].up) {
		const struct fake_slot *f = &s->r->h[p->p.h].slots[p->p.slot];
		if (f->state == 0 || f->version != p->p.p.version ||
		    f->reason >= RETIRE_BARRED) {
			p->state = 0;
			return;
		}
		p->state = 4;
		SAY(s, "publish %s %" PRIx64 "\n", s->k[p->key].name, p->p.p.version);
		rig_publish(s->r, &p->p);
	}
}

/* A writer is stopped, or goes on, or is gone. */
static void writer(struct soak *s)
{
	struct one_put *p = &s->p[rnd(s, PUTS)];
	int h = (int)rnd(s, FAKES);
	if (p->state == 2 && s->r->h[p->p.h].hazard == 0 &&
	    s->r->h[p->p.h].epoch == p->p.p.pool_epoch && !rig_closed(s->r, &p->p))
		rig_stop(s->r, &p->p); /* its first look found nothing */
	else if (s->r->h[h].hazard && s->r->h[h].up)
		(void)rig_writer_gone(s->r, h);
}

static void on_ranged(struct mind_call *c)
{
	struct one_range *x = container_of(c, struct one_range, r.call);
	x->busy = false;
	for (int i = 0; i < KEYS && c->err == ERR_NONE; i++)
		x->s->k[i].barred =
			x->bar[i] > x->s->k[i].barred ? x->bar[i] : x->s->k[i].barred;
}

static void range_start(struct soak *s)
{
	struct one_range *x = &s->range;
	if (x->busy)
		return;
	const struct mind_who w = rig_who(s->r);
	const struct msg_remove_range_req q = { .attempt = ++s->r->attempt,
						.prefix = BYTES_STR("k") };
	*x = (struct one_range){ .s = s, .busy = true, .r.call.done = on_ranged };
	for (int i = 0; i < KEYS; i++) {
		x->bar[i] = s->k[i].seen;
		doubt(s, i, -1);
	}
	SAY(s, "remove all\n");
	mind_remove_range(s->r->m, &w, &q, &x->r);
}

static void put_again(struct soak *s)
{
	struct one_put *p = &s->p[rnd(s, PUTS)];
	if (p->state < 2 || p->p.who.term != meta_term(s->r->st))
		return;
	rig_calm++;
	struct rig_put *q = calloc(1, sizeof(*q)); /* a copy that was under way */
	rig_calm--;
	cr_assert(q);
	*q = p->p;
	q->p.version = 0;
	mind_put_start(s->r->m, &q->who, &q->it, &q->p);
	if (q->p.call.err == ERR_NONE)
		cr_assert_eq(q->p.version, p->p.p.version, "seed %" PRIu64, s->seed);
	else
		cr_assert(q->p.call.err == ERR_EXISTS || q->p.call.err == ERR_NO_MEMORY ||
				  q->p.call.err == ERR_BUSY,
			  "seed %" PRIu64 ": %s", s->seed, err_name(q->p.call.err));
	free(q);
}

static void on_removed(struct mind_call *c)
{
	struct one_remove *x = container_of(c, struct one_remove, c);
	struct key *k = &x->s->k[x->key];
	x->busy = false;
	if (c->err != ERR_NONE)
		return;
	SAY(x->s, "  removed %s up to %" PRIx64 "\n", k->name, x->bar);
	x->s->removed++;
	k->barred = x->bar > k->barred ? x->bar : k->barred;
}

static void remove_start(struct soak *s)
{
	struct one_remove *x = &s->x[rnd(s, REMOVES)];
	if (x->busy)
		return;
	const struct mind_who w = rig_who(s->r);
	x->s = s;
	x->key = (int)rnd(s, KEYS);
	struct key *k = &s->k[x->key];
	doubt(s, x->key, -1);
	*x = (struct one_remove){ .s = s,
				  .key = x->key,
				  .bar = k->seen,
				  .busy = true,
				  .it = { .attempt = ++s->r->attempt,
					  .key = BYTES_STR(k->name) } };
	x->c.done = on_removed;
	SAY(s, "remove %s\n", k->name);
	mind_remove(s->r->m, &w, &x->it, &x->c);
}

static void master_dies(struct soak *s)
{
	SAY(s, "master dies\n");
	s->lost_master++;
	s->made += rig_counts(s->r).copies_made;
	for (int i = 0; i < PUTS; i++) /* callers see their calls end, in doubt */
		s->p[i].state = s->p[i].state == 2 || s->p[i].state == 3 ? s->p[i].state : 0;
	for (int i = 0; i < REMOVES; i++)
		s->x[i].c.done = on_removed;
	rig_restart(s->r);
	for (int i = 0; i < REMOVES; i++)
		s->x[i].busy = false;
	s->range.busy = false;
	s->drain = 0;
	s->evictions = 0;
}

static void holder_away(struct soak *s)
{
	int h = (int)rnd(s, FAKES);
	if (!s->in[h] || rnd(s, 3))
		return;
	SAY(s, "h%d away\n", h);
	s->in[h] = false;
	s->away++;
	s->r->h[h].up = rnd(s, 2);
	mind_away(s->r->m, BYTES_STR(s->r->h[h].id));
	for (int i = 0; i < KEYS; i++) /* excused: it went with its holder */
		doubt(s, i, h);
}

static void holder_back(struct soak *s)
{
	int h = (int)rnd(s, FAKES);
	SAY(s, "h%d registers\n", h);
	s->r->h[h].up = true;
	if (rnd(s, 2)) {
		rig_reborn(s->r, h);
	}
	s->in[h] = true;
	rig_register(s->r, h);
}

static void message(struct soak *s)
{
	struct rig *r = s->r;
	if (r->n_cmds == 0)
		return;
	size_t i = rnd(s, r->n_cmds);
	SAY(s, "cmd %d h%d slot %u gen %lu v %lx adopt %lu epoch %lu cursor %lu\n",
	    r->cmds[i].c.op, rig_index(r, r->cmds[i].c.holder), r->cmds[i].c.slot,
	    r->cmds[i].c.generation, r->cmds[i].c.version, r->cmds[i].c.under.adoption,
	    r->cmds[i].c.under.pool_epoch, r->cmds[i].c.cursor);
	switch (rnd(s, 12)) {
	case 0: /* lost */
		memmove(r->cmds + i, r->cmds + i + 1, (--r->n_cmds - i) * sizeof(*r->cmds));
		break;
	case 1:
		rig_deliver(r, i, true);
		break;
	default:
		rig_deliver(r, i, false);
	}
}

/* ---- copies ---- */

/* What is under way at a holder goes on, in one way or another. */
static void copy_on(struct soak *s)
{
	int h = (int)rnd(s, FAKES);
	struct fake *f = &s->r->h[h];
	if (f->n_copying == 0 || !f->up) {
		f->copies = (enum fake_copies)(rnd(s, 8) ? rnd(s, 2) : COPIES_REFUSED);
		f->copies_err = rnd(s, 2) ? ERR_BUSY : ERR_NO_SPACE;
		return;
	}
	size_t i = rnd(s, f->n_copying);
	SAY(s, "copy of %s %" PRIx64 " at h%d\n", f->copying[i].key, f->copying[i].version, h);
	switch (rnd(s, 8)) {
	case 0:
		rig_copy_fail(s->r, h, i, rnd(s, 2) ? ERR_UNREACHABLE : ERR_NO_SPACE,
			      rnd(s, 2) ? f->copying[i].from : -1);
		break;
	case 1: /* PUBLISH comes with the next adoption, or the next COPY */
		(void)rig_copy_commit(s->r, h, i);
		break;
	default:
		(void)rig_copy_done(s->r, h, i);
	}
}

static void moving(struct soak *s)
{
	s->moving = true;
	for (int i = 0; i < KEYS; i++)
		s->k[i].moved = true;
}

static void drain_on(struct soak *s)
{
	struct why why = { 0 };
	if (s->drain) {
		(void)!mind_task_cancel(s->r->m, NULL, s->drain, &why);
		s->drain = 0;
		return;
	}
	struct msg_task_start_req q = { .kind = MIND_TASK_DRAIN,
					.from = BYTES_STR(s->r->h[rnd(s, FAKES)].id) };
	moving(s);
	SAY(s, "drain %s\n", (const char *)q.from.p);
	if (mind_task_start(s->r->m, BYTES(NULL, 0), &q, &s->drain, &why) != ERR_NONE)
		s->drain = 0;
}

static void task_on(struct soak *s)
{
	struct why why = { 0 };
	uint64_t id;
	struct bytes keys[KEYS];
	for (int i = 0; i < KEYS; i++)
		keys[i] = BYTES_STR(s->k[i].name);
	struct msg_task_start_req q = { .kind = (uint8_t)(1 + rnd(s, 2)),
					.keys = { keys, 1 + rnd(s, KEYS) } };
	if (q.kind == MIND_TASK_MOVE)
		q.from = BYTES_STR(s->r->h[rnd(s, FAKES)].id);
	if (rnd(s, 2))
		q.to = BYTES_STR(s->r->h[rnd(s, FAKES)].id);
	moving(s);
	(void)!mind_task_start(s->r->m, BYTES_STR("t"), &q, &id, &why);
}

static void copies(struct soak *s)
{
	uint32_t h = (uint32_t)rnd(s, FAKES);
	struct bytes key = BYTES_STR(s->k[rnd(s, KEYS)].name);
	switch (rnd(s, 8)) {
	case 0:
		(void)!mind_copy_to(s->r->m, BYTES_STR("t"), key, h);
		break;
	case 1:
		moving(s);
		(void)!mind_copy_drop(s->r->m, BYTES_STR("t"), key, h);
		break;
	case 2:
		if (rnd(s, 4) == 0)
			drain_on(s);
		break;
	case 3:
		if (rnd(s, 8) == 0)
			task_on(s);
		break;
	default:
		copy_on(s);
	}
}

static void other(struct soak *s)
{
	struct rig *r = s->r;
	switch (rnd(s, 14)) {
	case 10:
	case 11:
		writer(s);
		break;
	case 12:
		if (rnd(s, 20) == 0)
			range_start(s);
		break;
	case 13:
		put_again(s);
		break;
	case 0:
		mind_resend(r->m, (uint32_t)rnd(s, FAKES));
		break;
	case 1:
		rig_pass(r, rnd(s, 40000));
		break;
	case 2:
		if (rnd(s, 5) == 0)
			master_dies(s);
		break;
	case 3:
		holder_away(s);
		break;
	case 4:
		holder_back(s);
		break;
	case 5: {
		int k = (int)rnd(s, KEYS);
		if (mind_evict(r->m, BYTES_STR("t"), BYTES_STR(s->k[k].name)) == ERR_NONE) {
			SAY(s, "evict %s\n", s->k[k].name);
			for (int i = 0; i < KEYS; i++) /* its group, too */
				doubt(s, i, -1);
		}
		break;
	}
	case 6: {
		struct one_put *p = &s->p[rnd(s, PUTS)];
		const struct mind_who w = rig_who(r);
		if (p->state == 2 || p->state == 3)
			(void)mind_put_revoke(r->m, &w, p->p.it.attempt, p->p.p.version);
		break;
	}
	case 7:
		mind_beat_epoch(r->m, BYTES_STR(r->h[rnd(s, FAKES)].id),
				r->h[rnd(s, FAKES)].epoch);
		break;
	case 8: {
		struct mind_object o;
		(void)!mind_lookup(r->m, BYTES_STR("t"), BYTES_STR(s->k[rnd(s, KEYS)].name),
				   (uint32_t)rnd(s, 10000), BYTES(NULL, 0), &o, NULL);
		break;
	}
	default:
		(void)mind_work(r->m);
	}
}

/* Pressure chooses its victims itself; so does time, of holders that nobody heard of. */
static void evictions(struct soak *s)
{
	if (rig_counts(s->r).evictions > s->evictions || s->r->n_away > s->aways)
		for (int i = 0; i < KEYS; i++)
			doubt(s, i, -1);
	s->evictions = rig_counts(s->r).evictions;
	s->aways = s->r->n_away;
}

/* Many puts of several copies, fewer faults: many copies are under way. */
static void step_copies(struct soak *s)
{
	switch (rnd(s, 16)) {
	case 0:
	case 1:
		put_start(s);
		break;
	case 2:
	case 3:
	case 4:
	case 5:
		put_on(s);
		break;
	case 6:
	case 7:
		copies(s);
		break;
	case 8:
		if (rnd(s, 8) == 0)
			remove_start(s);
		else if (rnd(s, 6) == 0)
			other(s);
		else
			(void)mind_work(s->r->m);
		break;
	case 9:
		rig_appends(s->r);
		break;
	default:
		message(s);
	}
}

static void step_all(struct soak *s)
{
	switch (rnd(s, 8)) {
	case 0:
		put_start(s);
		break;
	case 1:
	case 2:
		put_on(s);
		break;
	case 3:
		if (rnd(s, 3) == 0)
			remove_start(s);
		break;
	case 4:
		if (s->r->n_apps > 0 && rnd(s, 2))
			rig_appends(s->r);
		break;
	case 5:
		other(s);
		break;
	default:
		message(s);
	}
}

static void step(struct soak *s)
{
	if (s->copies)
		step_copies(s);
	else
		step_all(s);
	evictions(s);
	puts_look(s);
	look(s, (int)rnd(s, KEYS));
	mind_check(s->r->m);
}

/* ---- faults end ---- */

static void rest(struct soak *s)
{
	rig_calm++; /* faults end */
	struct rig *r = s->r;
	struct why why = { 0 };
	if (s->drain)
		(void)!mind_task_cancel(r->m, NULL, s->drain, &why);
	for (int h = 0; h < FAKES; h++)
		r->h[h].copies = COPIES_DONE;
	for (int h = 0; h < FAKES; h++) {
		r->h[h].up = true;
		s->in[h] = true;
		rig_reborn(r, h); /* also so that what no memory was found for is free again */
		rig_register(r, h);
	}
	for (int n = 0; n < 12; n++) {
		rig_run(r);
		evictions(s);
		puts_look(s);
		rig_pass(r, 31000);
		for (uint32_t h = 0; h < mind_holders(r->m); h++)
			mind_resend(r->m, h);
		for (int h = 0; h < FAKES; h++)
			(void)rig_writer_gone(r, h);
		for (int h = 0; h < FAKES; h++)
			mind_beat_epoch(r->m, BYTES_STR(r->h[h].id), r->h[h].epoch);
		rig_run(r);
	}
	for (int i = 0; i < PUTS; i++)
		if (s->p[i].state == 4)
			puts_look(s);
	evictions(s);
	struct mind_counts c = rig_counts(r);
	cr_assert_eq(c.waiting, 0, "seed %" PRIu64 ": %" PRIu64 " calls wait", s->seed,
		     c.waiting);
	cr_assert_eq(c.attempts, 0);
	cr_assert_not(c.recovering);
	cr_assert_eq(c.tombs_owed, 0);
	/* index and directories agree */
	uint64_t slots = 0;
	for (int h = 0; h < FAKES; h++) {
		slots += (uint64_t)rig_slots(r, h, 1);
		cr_assert_eq(rig_slots(r, h, 2), 0,
			     "seed %" PRIu64 ": a slot of h%d is not freed", s->seed, h);
		const struct meta_holder *m = meta_holder_find(r->st, BYTES_STR(r->h[h].id));
		cr_assert(m && meta_holder_clear(m, 0),
			  "seed %" PRIu64 ": tombstones of h%d stay", s->seed, h);
	}
	cr_assert_eq(slots, c.copies, "seed %" PRIu64, s->seed);
	cr_assert_geq(c.copies, c.objects, "seed %" PRIu64, s->seed);
	cr_assert_eq(c.copying, 0, "seed %" PRIu64 ": %" PRIu64 " copies never end", s->seed,
		     c.copying);
	cr_assert_eq(c.tasks, 0, "seed %" PRIu64 ": %" PRIu64 " tasks never end", s->seed,
		     c.tasks);
	for (int k = 0; k < KEYS; k++) {
		look(s, k);
		cr_assert_eq(rig_put(r, s->k[k].name, 0, true), ERR_NONE, "seed %" PRIu64,
			     s->seed);
		cr_assert_eq(rig_remove(r, s->k[k].name), ERR_NONE, "seed %" PRIu64, s->seed);
	}
	cr_assert_eq(rig_counts(r).bytes_used, 0, "seed %" PRIu64, s->seed);
	rig_calm--;
}

static uint64_t soak(uint64_t seed, int steps, uint32_t tombs_max, uint64_t bytes, bool copies,
		     uint64_t *made)
{
	rig_calm++;
	struct soak *s = calloc(1, sizeof(*s));
	cr_assert(s);
	s->seed = rig_seed = seed;
	s->copies = copies;
	s->trace = getenv("SOAK_TRACE");
	if (getenv("SOAK_N"))
		fprintf(stderr, "\r%" PRIu64 " ", seed);
	s->rng = seed * 0x9e3779b97f4a7c15 + 1;
	s->r = rig_bare(NULL);
	for (int h = 0; h < FAKES; h++)
		s->r->h[h].bytes = bytes;
	rig_register(s->r, 0);
	rig_register(s->r, 1);
	if (tombs_max)
		s->r->meta.tombs_max = tombs_max;
	rig_register(s->r, 2);
	rig_run(s->r);
	for (int i = 0; i < KEYS; i++)
		snprintf(s->k[i].name, sizeof(s->k[i].name), "k%d", i);
	for (int i = 0; i < FAKES; i++)
		s->in[i] = true;
	s->r->h[1].piece = 3;
	rig_calm--;
	for (int i = 0; i < steps; i++)
		step(s);
	rest(s);
	uint64_t acked = s->acked;
	*made += s->made + rig_counts(s->r).copies_made;
	rig_free(s->r);
	free(s);
	return acked;
}

static void seeds(uint64_t first, uint64_t n, uint32_t tombs_max, uint64_t bytes, bool copies)
{
	const char *one = getenv("SOAK_SEED"), *many = getenv("SOAK_N");
	uint64_t from = one ? strtoull(one, NULL, 10) : first, acked = 0, made = 0;
	n = one ? 1 : many ? strtoull(many, NULL, 10) : n;
	for (uint64_t seed = from; seed < from + n; seed++)
		acked += soak(seed, 3000, tombs_max, bytes, copies, &made);
	if (many)
		fprintf(stderr, "%" PRIu64 " puts acknowledged, %" PRIu64 " copies made\n",
			acked, made);
	cr_assert(one || acked > n);
	cr_assert(one || !copies || made > 10 * n, "%" PRIu64 " copies", made);
}

void soak_seeds(uint64_t first, uint64_t n, uint32_t tombs_max, uint64_t bytes)
{
	seeds(first, n, tombs_max, bytes, false);
}

void soak_copies(uint64_t first, uint64_t n, uint64_t bytes)
{
	seeds(first, n, 0, bytes, true);
}
