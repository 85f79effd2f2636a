/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long random life of a directory against the plainest model of it: commits, marks, retirements,
 * frees, restarts at any moment. What hold_scan says is what the model says.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store_fix.h"

enum { SLOTS = 64, STEPS = 20000 };

struct model_slot {
	bool used, published;
	enum retire_reason reason;
	uint64_t version, generation, place;
	char key[200];
};

struct life {
	struct store_fix x;
	struct model_slot slots[SLOTS];
	bool places[256]; /* of 64 bytes, in use */
	uint64_t next_version, seed;
	unsigned seen;
};

static uint64_t draw(struct life *l, uint64_t n)
{
	l->seed ^= l->seed << 13;
	l->seed ^= l->seed >> 7;
	l->seed ^= l->seed << 17;
	return (l->seed >> 11) % n;
}

static void random_key(struct life *l, char key[200])
{
	size_t n = 1 + draw(l, draw(l, 3) ? 30 : 199);
	memset(key, 0, 200);
	for (size_t i = 0; i < n; i++)
		key[i] = (char)('a' + draw(l, 26));
}

static void do_commit(struct life *l)
{
	uint64_t place = draw(l, 256);
	struct hold_slot s;
	char key[200];
	if (l->places[place])
		return;
	random_key(l, key);
	uint64_t v = l->next_version++;
	enum err e = store_fix_commit(&l->x, v, key, place * 64, 64, &s);
	if (e == ERR_NO_SPACE) {
		cr_assert_eq(mempool_slots_used(l->x.p), SLOTS);
		return;
	}
	cr_assert_eq(e, ERR_NONE, "%s", l->x.why.text);
	struct model_slot *m = &l->slots[s.slot];
	cr_assert(!m->used);
	cr_assert_eq(m->generation, s.generation);
	m->used = true;
	m->published = false;
	m->reason = RETIRE_NONE;
	m->version = v;
	m->place = place;
	memcpy(m->key, key, sizeof(key));
	l->places[place] = true;
}

static void do_publish(struct life *l, uint32_t i)
{
	struct model_slot *m = &l->slots[i];
	enum err e = hold_published(l->x.h, i, m->generation, m->version);
	bool may = m->used && m->reason == RETIRE_NONE;
	cr_assert_eq(e, may ? ERR_NONE : ERR_NOT_FOUND);
	m->published |= may;
}

static void do_retire(struct life *l, uint32_t i)
{
	struct model_slot *m = &l->slots[i];
	struct hold_under u = store_fix_under(&l->x);
	enum retire_reason why = (enum retire_reason)(1 + draw(l, RETIRE_CORRUPT));
	enum err e = hold_retire(l->x.h, &u, i, m->generation, m->version, why, m->version);
	cr_assert_eq(e, m->used ? ERR_NONE : ERR_NOT_FOUND);
	if (m->used && m->reason == RETIRE_NONE)
		m->reason = why;
}

static void do_free(struct life *l, uint32_t i)
{
	struct model_slot *m = &l->slots[i];
	struct hold_under u = store_fix_under(&l->x);
	enum err e = hold_free(l->x.h, &u, i, m->generation);
	bool may = m->used && m->reason != RETIRE_NONE;
	cr_assert_eq(e, may ? ERR_NONE : ERR_NOT_FOUND);
	if (!may)
		return;
	m->used = false;
	m->generation++;
	l->places[m->place] = false;
}

static bool compare(void *arg, const struct hold_entry *e)
{
	struct life *l = arg;
	const struct model_slot *m = &l->slots[e->at.slot];
	l->seen++;
	cr_assert(m->used);
	cr_assert_eq(e->at.version, m->version);
	cr_assert_eq(e->at.generation, m->generation);
	cr_assert_eq(e->at.published, m->published);
	cr_assert_eq(e->reason, m->reason);
	cr_assert_eq(e->evict_id, m->reason ? m->version : 0);
	cr_assert_eq(e->key.n, strlen(m->key));
	cr_assert_eq(memcmp(e->key.p, m->key, e->key.n), 0);
	if (e->n_extents)
		cr_assert_eq(e->extents[0].offset, m->place * 64);
	return true;
}

static void check(struct life *l)
{
	uint64_t cursor = 0;
	unsigned used = 0;
	for (unsigned i = 0; i < SLOTS; i++)
		used += l->slots[i].used;
	l->seen = 0;
	hold_scan(l->x.h, 0, &cursor, compare, l);
	cr_assert_eq(l->seen, used);
	cr_assert_eq(mempool_slots_used(l->x.p), used);
}

static void step(struct life *l)
{
	uint32_t i = (uint32_t)draw(l, SLOTS);
	switch (draw(l, 8)) {
	case 0:
	case 1:
	case 2:
		do_commit(l);
		return;
	case 3:
		do_publish(l, i);
		return;
	case 4:
		do_retire(l, i);
		return;
	default:
		do_free(l, i);
		return;
	}
}

Test(model, a_long_life_with_restarts, .timeout = 60)
{
	static struct life l;
	l = (struct life){ .next_version = 1, .seed = 77 };
	store_fix_init(&l.x, NULL);
	store_fix_kill(&l.x);
	pool_backing_free(l.x.b);
	cr_assert_eq(pool_memory_new(&l.x.b), ERR_NONE);
	l.x.po.backing = l.x.b;
	l.x.po.n_slots = SLOTS;
	l.x.ho.closed = 64;
	cr_assert_eq(store_fix_open(&l.x), ERR_NONE);
	for (unsigned i = 0; i < STEPS; i++) {
		step(&l);
		if (i % 97 == 0)
			check(&l);
		if (draw(&l, 500) == 0) {
			store_fix_kill(&l.x);
			cr_assert_eq(store_fix_open(&l.x), ERR_NONE);
			cr_assert_eq(l.x.start.dropped + l.x.start.overlaps, 0);
			check(&l);
		}
	}
	store_fix_fini(&l.x);
	NO_LEAKS();
}
