/* SPDX-License-Identifier: Apache-2.0 */
/* Object groups over real processes: under pressure, and while master and agent are killed (case 18). */
#include "cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../support/leak.h"

TestSuite(groups, .timeout = 120);

enum {
	MEMBERS = 8,
	BYTES_EACH = 64 << 10,
	GROUPS = 120,
	FITS = 32
}; /* 16 MiB hold 32 groups */

struct batch {
	char key[MEMBERS][24], group[16];
	struct pml_item it[MEMBERS];
	struct pml_buf buf[MEMBERS];
	uint8_t v[MEMBERS][BYTES_EACH];
};

static void make(struct batch *b, unsigned g)
{
	snprintf(b->group, sizeof(b->group), "group-%u", g);
	for (unsigned i = 0; i < MEMBERS; i++) {
		snprintf(b->key[i], sizeof(b->key[i]), "g%u/%u", g, i);
		b->buf[i] = (struct pml_buf){ b->v[i], BYTES_EACH };
		b->it[i] = (struct pml_item)PML_ITEM_INIT;
		b->it[i].key = b->key[i];
		b->it[i].key_bytes = strlen(b->key[i]);
		b->it[i].bufs = &b->buf[i];
		b->it[i].n_bufs = 1;
		b->it[i].group = b->group;
		b->it[i].group_bytes = strlen(b->group);
		b->it[i].group_size = MEMBERS;
	}
}

static struct pml_op *put_begin(struct pml *p, struct batch *b, unsigned g)
{
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	make(b, g);
	for (unsigned i = 0; i < MEMBERS; i++)
		cs_fill(b->v[i], BYTES_EACH, g * MEMBERS + i);
	o.deadline_ms = 20000;
	cr_assert_eq(pml_put_start(p, b->it, MEMBERS, &o, NULL, NULL, &op, &err), 0, "%s",
		     err.text);
	return op;
}

static int put_end(struct pml_op *op, struct pml_error *err)
{
	int code = pml_op_wait(op);
	pml_op_error(op, err);
	pml_op_free(op);
	return code;
}

/* Members found by one message; -1: not answered by one (it was tried again meanwhile). */
static int count_once(struct pml *p, unsigned g)
{
	static struct batch b;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_op *op = NULL;
	uint64_t t0 = cs_now_ms();
	int n = 0, other = 0;
	make(&b, g);
	o.deadline_ms = 20000;
	cr_assert_eq(pml_exists_start(p, b.it, MEMBERS, &o, NULL, NULL, &op, NULL), 0);
	pml_op_wait(op);
	for (unsigned i = 0; i < MEMBERS; i++) {
		struct pml_result r = PML_RESULT_INIT;
		pml_op_result(op, i, &r);
		n += r.code == 0;
		other += r.code != 0 && r.code != PML_ERR_NOT_FOUND;
	}
	pml_op_free(op);
	return other || cs_now_ms() - t0 > 40 ? -1 : n;
}

/* An answer that took long says nothing of one moment: asked again. */
static int count(struct pml *p, unsigned g)
{
	int n = -1;
	for (int i = 0; i < 50 && n < 0; i++)
		n = count_once(p, g);
	return n;
}

/* Every group is there whole or not at all; how many are. */
static unsigned judge(struct pml *p, unsigned to)
{
	unsigned whole = 0;
	for (unsigned g = 0; g < to; g++) {
		int n = count(p, g);
		cr_assert(n == -1 || n == 0 || n == MEMBERS, "group %u: %d members", g, n);
		whole += n == MEMBERS;
	}
	return whole;
}

/* A group that is there has its bytes. */
static void compare(struct pml *p, unsigned g)
{
	static struct batch b;
	static uint8_t want[BYTES_EACH];
	struct pml_op *op = NULL;
	make(&b, g);
	if (count(p, g) != MEMBERS)
		return;
	cr_assert_eq(pml_get_start(p, b.it, MEMBERS, NULL, NULL, NULL, &op, NULL), 0);
	pml_op_wait(op);
	for (unsigned i = 0; i < MEMBERS; i++) {
		struct pml_result r = PML_RESULT_INIT;
		pml_op_result(op, i, &r);
		cs_fill(want, BYTES_EACH, g * MEMBERS + i);
		cr_expect(r.code == 0 && r.bytes == BYTES_EACH &&
				  memcmp(b.v[i], want, BYTES_EACH) == 0,
			  "group %u: %d", g, r.code);
	}
	pml_op_free(op);
}

Test(groups, case_018_all_or_none_under_pressure)
{
	static struct batch b;
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	for (unsigned g = 0; g < GROUPS; g++) {
		cr_expect_eq(put_end(put_begin(w.p, &b, g), &err), 0, "%u: %s", g, err.text);
		if (g % 10 == 9)
			cr_expect_geq(judge(w.p, g + 1), g < FITS - 4 ? g + 1 : FITS - 8);
	}
	for (unsigned g = GROUPS - 4; g < GROUPS; g++)
		compare(w.p, g);
	cr_expect_eq(count(w.p, GROUPS - 1), MEMBERS);
	cr_expect_eq(pml_remove(w.p, "g119/3", 6, NULL, &err), 0, "%s", err.text);
	cr_expect_eq(count(w.p, GROUPS - 1), 0, "the loss of one");
	cs_down(&w);
	NO_LEAKS();
}

/* Killed while a group is put and others are evicted for it. */
Test(groups, case_018_all_or_none_with_kills)
{
	static struct batch b;
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	unsigned kills = 0, done = 0;
	cs_up(&w, "agent.pool_size=16MiB", "agent.slots=8000");
	for (unsigned g = 0; g < GROUPS; g++) {
		struct pml_op *op = put_begin(w.p, &b, g);
		if (g % 12 == 11) {
			bool master = kills++ % 2 == 0;
			struct proc *p = master ? &w.master : &w.agent;
			usleep((g * 7919) % 6000);
			cs_kill_it(p);
			proc_run(&w.box, daemon_row(master ? "master" : "agent"),
				 master ? w.margs : w.aargs, p);
			judge(w.p, g + 1);
			cs_ready(p);
		}
		done += put_end(op, &err) == 0;
		if (g % 12 >= 10)
			judge(w.p, g + 1);
	}
	cr_expect_geq(kills, 10);
	cr_expect_geq(done, GROUPS - kills, "%u", done);
	cr_expect_gt(judge(w.p, GROUPS), 4);
	for (unsigned g = 0; g < GROUPS; g++)
		compare(w.p, g);
	cs_down(&w);
	NO_LEAKS();
}
