/* SPDX-License-Identifier: Apache-2.0 */
/* Copies at their destination (hold_pull_admit, hold_pull): which commands begin something, and when. */
#include "store_fix.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/ticket.h"

TestSuite(hold_pull, .timeout = 10);

#define OK(e) cr_assert_eq(e, ERR_NONE)

struct copies {
	struct store_fix x;
	struct pool_lane *lanes;
	struct msg_extent ext;
	struct extent at[OBJ_EXTENTS_MAX];
	struct why why;
};

static void up(struct copies *c)
{
	memset(c, 0, sizeof(*c));
	store_fix_init(&c->x, NULL);
	OK(mempool_own_lanes(c->x.p, 2, &c->lanes));
}

static void down(struct copies *c)
{
	store_fix_fini(&c->x);
	NO_LEAKS();
}

static struct msg_ticket ticket(struct copies *c, uint64_t version, uint64_t number)
{
	struct msg_ticket t = store_fix_ticket(&c->x, version, "k", 64 * version, 64, &c->ext);
	t.op = TICKET_PULL;
	t.attempt = number;
	return t;
}

static enum err admit(struct copies *c, uint64_t version, uint64_t number)
{
	struct msg_ticket t = ticket(c, version, number);
	return hold_pull_admit(c->x.h, &t, &c->why);
}

static enum err begin(struct copies *c, uint64_t version, uint64_t number)
{
	struct msg_ticket t = ticket(c, version, number);
	return hold_pull(c->x.h, &t, &c->lanes[0], c->at, &c->why);
}

static enum err commit(struct copies *c, uint64_t version, uint64_t number,
		       struct hold_slot *out)
{
	struct msg_ticket t = ticket(c, version, number);
	return hold_commit(c->x.h, &t, 7, out, &c->why);
}

static enum err fence(struct copies *c, uint64_t version, enum hold_fence *state)
{
	struct hold_under u = store_fix_under(&c->x);
	struct extent e = { .offset = 64 * version, .bytes = 64 };
	struct hold_slot s;
	return hold_fence(c->x.h, &u, version, &e, 1, state, &s);
}

static void gone(struct copies *c, const struct hold_slot *s)
{
	struct hold_under u = store_fix_under(&c->x);
	OK(hold_retire(c->x.h, &u, s->slot, s->generation, s->version, RETIRE_MOVED, 0));
	OK(hold_free(c->x.h, &u, s->slot, s->generation));
}

Test(hold_pull, from_command_to_slot)
{
	struct copies c;
	struct hold_slot s;
	up(&c);
	OK(admit(&c, 5, 1));
	OK(begin(&c, 5, 1));
	cr_expect_eq(c.at[0].offset, 5 * 64);
	cr_expect_eq(begin(&c, 5, 1), ERR_BUSY, "its record names it");
	cr_expect_eq(commit(&c, 5, 1, &s), ERR_BUSY);
	lane_end(&c.lanes[0]);
	OK(commit(&c, 5, 1, &s));
	cr_expect(s.version == 5 && s.sum == 7 && !s.published);
	cr_expect_eq(begin(&c, 5, 1), ERR_EXISTS);
	cr_expect_eq(admit(&c, 5, 1), ERR_EXISTS, "PUBLISH comes again");
	down(&c);
}

/* V3: the number, not the version: it may come back, a late command may not. */
Test(hold_pull, V3_a_late_command_begins_nothing)
{
	struct copies c;
	struct hold_slot s;
	up(&c);
	OK(admit(&c, 5, 3));
	cr_expect_eq(admit(&c, 5, 3), ERR_STALE_ATTEMPT,
		     "it failed, and its range was given out");
	cr_expect_eq(admit(&c, 5, 2), ERR_STALE_ATTEMPT);
	OK(admit(&c, 5, 4));
	OK(commit(&c, 5, 4, &s));
	cr_expect_eq(admit(&c, 5, 6), ERR_EXISTS);
	gone(&c, &s);
	cr_expect_eq(admit(&c, 5, 6), ERR_STALE_ATTEMPT, "it was answered already");
	OK(admit(&c, 5, 7));
	OK(commit(&c, 5, 7, &s));
	cr_expect_eq(admit(&c, 6, 0), ERR_STALE_ATTEMPT, "no number at all");
	down(&c);
}

/* A holder that has fenced and committed many newer ones still takes copies of old versions. */
Test(hold_pull, old_versions)
{
	struct copies c;
	struct hold_slot s;
	enum hold_fence state;
	up(&c);
	for (uint64_t v = 100; v < 120; v++) { /* a ring of 4, 4 closed ones */
		OK(fence(&c, v, &state));
		OK(store_fix_commit(&c.x, v + 1000, "n", 0, 64, &s));
		gone(&c, &s);
	}
	cr_expect_eq(store_fix_commit(&c.x, 50, "k", 64, 64, &s), ERR_STALE_ATTEMPT,
		     "a put's version is closed then");
	OK(admit(&c, 5, 1));
	OK(begin(&c, 5, 1));
	lane_end(&c.lanes[0]);
	OK(commit(&c, 5, 1, &s));
	down(&c);
}

/* T6: FENCE closes it, and knows of the writer. */
Test(hold_pull, fence)
{
	struct copies c;
	struct hold_slot s;
	enum hold_fence state;
	up(&c);
	OK(admit(&c, 5, 1));
	OK(begin(&c, 5, 1));
	OK(fence(&c, 5, &state));
	cr_expect_eq(state, HOLD_WRITING);
	hold_sweep(c.x.h);
	cr_expect_eq(c.x.n_fenced, 0);
	lane_end(&c.lanes[0]);
	hold_sweep(c.x.h);
	cr_expect_eq(c.x.n_fenced, 1);
	cr_expect_eq(commit(&c, 5, 1, &s), ERR_STALE_ATTEMPT);
	cr_expect_eq(begin(&c, 5, 1), ERR_STALE_ATTEMPT);
	cr_expect_eq(admit(&c, 5, 2), ERR_STALE_ATTEMPT);
	OK(fence(&c, 6, &state));
	cr_expect_eq(state, HOLD_FENCED, "before its COPY came");
	cr_expect_eq(admit(&c, 6, 3), ERR_STALE_ATTEMPT);
	/* and when the ring has forgotten it */
	struct hold_under u = store_fix_under(&c.x), old = u;
	OK(hold_pull_bar(c.x.h, &u, 3));
	for (uint64_t v = 100; v < 110; v++)
		OK(fence(&c, v, &state));
	cr_expect_eq(admit(&c, 6, 3), ERR_STALE_ATTEMPT);
	OK(admit(&c, 6, 4));
	old.pool_epoch--;
	cr_expect_eq(hold_pull_bar(c.x.h, &old, 50), ERR_STALE_EPOCH);
	OK(admit(&c, 7, 5));
	down(&c);
}

/* L2, V10: another adoption ends them, and numbers begin anew. */
Test(hold_pull, adoption)
{
	struct copies c;
	struct hold_slot s;
	struct hold_under u;
	up(&c);
	struct msg_ticket old = ticket(&c, 5, 9);
	OK(hold_pull_admit(c.x.h, &old, &c.why));
	OK(hold_pull(c.x.h, &old, &c.lanes[0], c.at, &c.why));
	OK(hold_adopt(c.x.h, 0, 77, 1, &u, &c.why));
	cr_expect_eq(hold_quarantine(c.x.h), 64, "its range is in the new inventory");
	cr_expect_eq(hold_commit(c.x.h, &old, 7, &s, &c.why), ERR_STALE_EPOCH);
	cr_expect_eq(hold_pull_admit(c.x.h, &old, &c.why), ERR_STALE_EPOCH);
	lane_end(&c.lanes[0]);
	hold_sweep(c.x.h);
	cr_expect_eq(hold_quarantine(c.x.h), 0);
	OK(admit(&c, 5, 1));
	OK(commit(&c, 5, 1, &s));
	down(&c);
}

Test(hold_pull, tickets_of_another_kind)
{
	struct copies c;
	up(&c);
	struct msg_ticket t = ticket(&c, 5, 1);
	cr_expect_eq(hold_write(c.x.h, &t, &c.lanes[0], c.at, &c.why), ERR_BAD_TICKET,
		     "no client's to write with");
	t.op = TICKET_WRITE;
	cr_expect_eq(hold_pull_admit(c.x.h, &t, &c.why), ERR_BAD_TICKET);
	cr_expect_eq(hold_pull(c.x.h, &t, &c.lanes[0], c.at, &c.why), ERR_BAD_TICKET);
	t.op = TICKET_PULL;
	t.pool[0] ^= 1;
	cr_expect_eq(hold_pull_admit(c.x.h, &t, &c.why), ERR_BAD_TICKET);
	t.pool[0] ^= 1;
	c.ext.offset = 1 << 20;
	cr_expect_eq(hold_pull_admit(c.x.h, &t, &c.why), ERR_BAD_TICKET);
	down(&c);
}
