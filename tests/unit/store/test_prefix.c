/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every store of one COMMIT, RETIRE, FREE, published mark, adoption and start, and every prefix of them
 * (tests/support/prefix.h): what a restarted agent finds is the state before or the state after, whole,
 * and it can go on from there. Built with POMELO_STORE_LOG.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "store_fix.h"
#include "tests/support/prefix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)
enum { REGION = 96 << 10, BYSTANDER = 1, SUBJECT = 2, LATER = 3 };

/* What may be found about the subject's slot; bits. */
enum { EMPTY = 1, COMMITTED = 2, PUBLISHED = 4, RETIRED = 8, RAISED = 16 /* generation */ };

struct trial {
	struct store_fix x;
	uint8_t *region;
	unsigned may;	    /* found states that are sound */
	unsigned seen;	    /* those that were found */
	const char *key;    /* the subject's */
	uint64_t epoch_min; /* a start goes above it */
};

static void open_small(struct trial *t)
{
	struct pool_backing *b;
	t->region = aligned_alloc(4096, REGION);
	cr_assert_not_null(t->region);
	OK(pool_memory_new_at(t->region, REGION, &b));
	t->x = (struct store_fix){ .b = b };
	t->x.po = (struct mempool_opts){ .backing = b,
					 .segment_bytes = 4096,
					 .n_slots = 3,
					 .heap_bytes = 8192,
					 .n_lanes = 1,
					 .n_shards = 1 };
	t->x.ho = (struct hold_opts){ .ring = 2, .closed = 2 };
	cr_assert_eq(store_fix_open(&t->x), ERR_NONE, "%s", t->x.why.text);
}

static void begin(struct trial *t, const char *key)
{
	struct hold_slot s;
	*t = (struct trial){ .key = key };
	open_small(t);
	OK(store_fix_commit(&t->x, BYSTANDER, "bystander", 0, 64, &s));
	OK(hold_published(t->x.h, s.slot, s.generation, BYSTANDER));
	t->epoch_min = store_fix_under(&t->x).pool_epoch;
}

static void end(struct trial *t)
{
	store_fix_fini(&t->x);
	free(t->region);
}

/* ---- what a start finds in a copy ---- */

struct finding {
	const struct trial *t;
	unsigned state;
	bool bystander, foreign;
};

static bool is(const struct hold_entry *e, uint64_t version, const char *key, uint64_t offset)
{
	return e->at.version == version && e->at.sum == version * 3 &&
	       e->key.n == strlen(key) && memcmp(e->key.p, key, e->key.n) == 0 &&
	       e->n_extents == 1 && e->extents[0].offset == offset &&
	       e->extents[0].bytes == 64 && e->size == 64 && e->tenant.n == 7;
}

static bool find(void *arg, const struct hold_entry *e)
{
	struct finding *f = arg;
	if (is(e, BYSTANDER, "bystander", 0) && e->at.published && !e->at.retired)
		f->bystander = true;
	else if (is(e, SUBJECT, f->t->key, 64))
		f->state |= (e->at.retired     ? RETIRED
			     : e->at.published ? PUBLISHED
					       : COMMITTED) |
			    (e->at.generation > 0 ? RAISED : 0);
	else
		f->foreign = true;
	return true;
}

/* It goes on: the space of a retired slot returns, a new object takes slot and names. */
static bool goes_on(struct store_fix *y, unsigned state, const char *key)
{
	struct hold_slot s;
	struct hold_under u;
	if (hold_adopt(y->h, 0, 9, 1, &u, NULL) != ERR_NONE)
		return false;
	uint64_t generation = directory_generation(y->p, 1);
	if (state & (COMMITTED | PUBLISHED) &&
	    hold_retire(y->h, &u, 1, generation, SUBJECT, RETIRE_REMOVED, 0) != ERR_NONE)
		return false;
	if (state != EMPTY && hold_free(y->h, &u, 1, generation) != ERR_NONE)
		return false;
	return store_fix_commit(y, LATER, key, 64, 64, &s) == ERR_NONE && s.slot == 1 &&
	       hold_published(y->h, 1, s.generation, LATER) == ERR_NONE;
}

static bool look(struct trial *t, struct store_fix *y, struct why *why)
{
	struct finding f = { .t = t };
	uint64_t cursor = 0;
	if (y->start.found != MEMPOOL_KEPT || y->start.dropped || y->start.overlaps)
		return why_set(why, ERR_CORRUPT, "something was dropped") == ERR_NONE;
	if (store_fix_under(y).pool_epoch <= t->epoch_min)
		return why_set(why, ERR_CORRUPT, "the epoch did not rise") == ERR_NONE;
	hold_scan(y->h, 0, &cursor, find, &f);
	if (f.state == 0)
		f.state = EMPTY;
	t->seen |= f.state;
	if (!f.bystander || f.foreign || (f.state & ~t->may) != 0)
		return why_set(why, ERR_CORRUPT, "state %x of %x, bystander %d, foreign %d",
			       f.state, t->may, f.bystander, f.foreign) == ERR_NONE;
	if (!goes_on(y, f.state & ~(unsigned)RAISED, t->key))
		return why_set(why, ERR_CORRUPT, "it does not go on from %x", f.state) ==
		       ERR_NONE;
	return true;
}

static bool sound(void *ctx, void *region, struct why *why)
{
	struct trial *t = ctx;
	struct store_fix y = { .po = t->x.po, .ho = t->x.ho };
	if (pool_memory_new_like(t->x.b, region, &y.b) != ERR_NONE)
		return false;
	y.po.backing = y.b;
	enum err e = store_fix_open(&y);
	bool ok = e == ERR_NONE ? look(t, &y, why)
				: why_set(why, e, "no start: %s", y.why.text) == ERR_NONE;
	store_fix_fini(&y);
	return ok;
}

/* Stores since `g` began: every prefix is sound, and every state that may be found was. */
static void check(struct trial *t, struct prefix_log *g, unsigned may)
{
	struct prefix_result r;
	t->may = may;
	cr_assert_gt(prefix_n_stores(g), 0);
	cr_assert(prefix_check(g, PREFIX_KILL, 10000, sound, t, &r), "%s", r.text);
	cr_assert_eq(t->seen, may, "seen %x of %x in %u sets of %u stores", t->seen, may,
		     (unsigned)r.n_sets, r.n_stores);
	prefix_free(g);
}

static const char *short_key(void)
{
	return "subject";
}

static const char *long_key(void)
{
	static char key[400];
	memset(key, 'x', sizeof(key) - 1);
	return key;
}

static struct hold_slot commit_subject(struct trial *t)
{
	struct hold_slot s = { 0 };
	OK(store_fix_commit(&t->x, SUBJECT, t->key, 64, 64, &s));
	cr_assert_eq(s.slot, 1);
	return s;
}

/* ---- the trials ---- */

static void trial_commit(const char *key)
{
	struct trial t;
	begin(&t, key);
	struct prefix_log *g = prefix_begin(t.region, REGION);
	(void)commit_subject(&t);
	check(&t, g, EMPTY | COMMITTED);
	end(&t);
}

Test(prefix, commit_with_names_in_the_slot, .timeout = 60)
{
	trial_commit(short_key());
	NO_LEAKS();
}

Test(prefix, commit_with_names_in_the_heap, .timeout = 60)
{
	trial_commit(long_key());
	NO_LEAKS();
}

Test(prefix, the_published_mark, .timeout = 60)
{
	struct trial t;
	begin(&t, short_key());
	struct hold_slot s = commit_subject(&t);
	struct prefix_log *g = prefix_begin(t.region, REGION);
	OK(hold_published(t.x.h, s.slot, s.generation, SUBJECT));
	check(&t, g, COMMITTED | PUBLISHED);
	end(&t);
	NO_LEAKS();
}

Test(prefix, retire, .timeout = 60)
{
	struct trial t;
	begin(&t, long_key());
	struct hold_slot s = commit_subject(&t);
	struct hold_under u = store_fix_under(&t.x);
	struct prefix_log *g = prefix_begin(t.region, REGION);
	OK(hold_retire(t.x.h, &u, s.slot, s.generation, SUBJECT, RETIRE_EVICTED, 77));
	check(&t, g, COMMITTED | RETIRED);
	end(&t);
	NO_LEAKS();
}

static void trial_free(const char *key)
{
	struct trial t;
	begin(&t, key);
	struct hold_slot s = commit_subject(&t);
	struct hold_under u = store_fix_under(&t.x);
	OK(hold_retire(t.x.h, &u, s.slot, s.generation, SUBJECT, RETIRE_REMOVED, 0));
	struct prefix_log *g = prefix_begin(t.region, REGION);
	OK(hold_free(t.x.h, &u, s.slot, s.generation));
	check(&t, g, RETIRED | RAISED | EMPTY);
	end(&t);
}

Test(prefix, free_raises_the_generation_first, .timeout = 60)
{
	trial_free(short_key());
	trial_free(long_key());
	NO_LEAKS();
}

/* RETIRE, FREE and a COMMIT into the same slot and the same block of names, in one log. */
Test(prefix, a_slot_and_its_names_used_again, .timeout = 60)
{
	struct trial t;
	struct hold_slot s;
	begin(&t, long_key());
	struct hold_under u = store_fix_under(&t.x);
	OK(store_fix_commit(&t.x, LATER + 1, long_key(), 64, 64, &s));
	OK(hold_retire(t.x.h, &u, 1, 0, LATER + 1, RETIRE_REMOVED, 0));
	OK(hold_free(t.x.h, &u, 1, 0));
	struct prefix_log *g = prefix_begin(t.region, REGION);
	(void)commit_subject(&t);
	check(&t, g, EMPTY | COMMITTED | RAISED);
	end(&t);
	NO_LEAKS();
}

Test(prefix, adoption_writes_super_then_shows_the_epoch, .timeout = 60)
{
	struct trial t;
	struct hold_under u;
	begin(&t, short_key());
	(void)commit_subject(&t);
	struct prefix_log *g = prefix_begin(t.region, REGION);
	OK(hold_adopt(t.x.h, 0, 5, 1, &u, NULL));
	check(&t, g, COMMITTED);
	end(&t);
	NO_LEAKS();
}

/* The agent dies inside its start as well. */
Test(prefix, a_start_over_damage_may_die_anywhere, .timeout = 60)
{
	struct trial t;
	begin(&t, short_key());
	(void)commit_subject(&t);
	store_fix_kill(&t.x);
	struct prefix_log *g = prefix_begin(t.region, REGION);
	OK(store_fix_open(&t.x));
	check(&t, g, COMMITTED);
	end(&t);
	NO_LEAKS();
}
