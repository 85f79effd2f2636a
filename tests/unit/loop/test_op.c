/* SPDX-License-Identifier: Apache-2.0 */
/* Request tables: moves, first error, deadline, cancel, sets, drawing. */
#include "loop/op.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "fake_loop.h"
#include "tests/support/leak.h"

enum { A_LOOK, A_READ, A_REPLY, A_UNDO, A_N };

struct req {
	struct op op;
	int look_to;	     /* what lookup returns */
	bool cancel_in_look; /* by the step itself, as a library call might */
	bool sync_stop;	     /* stop resumes at once */
	unsigned reads, stops, undos, dones;
	enum err seen_in_read;
	char path[64];
};

static struct req *req_of(struct op *op)
{
	return container_of(op, struct req, op);
}

static void mark(struct req *r, char c)
{
	size_t n = strlen(r->path);
	cr_assert_lt(n + 1, sizeof(r->path));
	r->path[n] = c;
}

static int look(struct op *op)
{
	struct req *r = req_of(op);
	mark(r, 'L');
	cr_assert(op_first(op) || r->cancel_in_look);
	if (r->cancel_in_look)
		op_cancel(op);
	return r->look_to;
}

static int read_step(struct op *op)
{
	struct req *r = req_of(op);
	mark(r, 'R');
	r->reads++;
	op->waits_for = "agent a1";
	if (op_first(op))
		return OP_WAIT;
	r->seen_in_read = op->err;
	return op->err ? A_UNDO : A_REPLY;
}

static void read_stop(struct op *op)
{
	struct req *r = req_of(op);
	r->stops++;
	if (r->sync_stop)
		op_resume(op);
}

static int reply(struct op *op)
{
	mark(req_of(op), 'P');
	return OP_DONE;
}

static int undo(struct op *op)
{
	struct req *r = req_of(op);
	mark(r, 'U');
	r->undos++;
	return op_first(op) ? OP_WAIT : A_REPLY;
}

static const struct op_step a_steps[] = {
	[A_LOOK] = { "look", look, TO(A_READ) | TO(A_REPLY) | TO(A_UNDO), .waits = true },
	[A_READ] = { "read", read_step, TO(A_REPLY) | TO(A_UNDO), .waits = true,
		     .stop = read_stop },
	[A_REPLY] = { "reply", reply, TO(OP_DONE) },
	[A_UNDO] = { "undo", undo, TO(A_REPLY), .waits = true, .stop = op_stop_none },
};
OP_TABLE(a_table, "test.a", a_steps);

static void on_done(struct op *op)
{
	req_of(op)->dones++;
}

static struct req make(struct fake_loop *f, int look_to)
{
	return (struct req){ .op = { .table = &a_table,
				     .loop = &f->l,
				     .deadline_ns = UINT64_MAX,
				     .done = on_done },
			     .look_to = look_to };
}

Test(op, runs_to_the_end_and_done_comes_later, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_REPLY);
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_str_eq(r.path, "LP");
	cr_expect_eq(r.dones, 0); /* I2 */
	cr_expect_eq(f.wakes, 1);
	fake_turn(&f, 0);
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
	NO_LEAKS();
}

/* Memory of anything, cleared: as if it had been zeroed. */
Test(op, cleared, .timeout = 5)
{
	struct fake_loop f;
	struct req r;
	fake_open(&f, false);
	const struct req as_made = make(&f, A_REPLY);
	memset(&r, 0xa5, sizeof(r));
	struct op *op = &r.op;
	op_clear(op);
	cr_expect_eq(op->err, ERR_NONE);
	cr_expect_eq(op->why.err, ERR_NONE);
	const struct op cleared = *op, zero = { 0 };
	cr_expect_eq(memcmp(&cleared, &zero, offsetof(struct op, trace)), 0);
	r = as_made;
	op_clear(op);
	op->table = as_made.op.table;
	op->loop = as_made.op.loop;
	op->deadline_ns = UINT64_MAX;
	op->done = as_made.op.done;
	op->done_inline = true;
	cr_assert_eq(op_start(op), ERR_NONE);
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
	NO_LEAKS();
}

Test(op, done_inline, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_REPLY);
	r.op.done_inline = true;
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_eq(r.dones, 1);
	cr_expect_eq(f.wakes, 0);
	fake_close(&f);
	NO_LEAKS();
}

Test(op, waits_and_goes_on, .timeout = 5)
{
	struct fake_loop f;
	struct buf b = BUF_INIT(1000);
	fake_open(&f, false);
	struct req r = make(&f, A_READ);
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_eq(r.op.state, A_READ);
	f.now_ns += 12000;
	op_resume(&r.op);
	cr_expect_str_eq(r.path, "LRRP");
	cr_expect_eq(r.dones, 1, "a completion may end it at once");
	cr_expect_eq(r.op.err, ERR_NONE);
	op_trace_print(&r.op, &b);
	buf_put(&b, "", 1);
	cr_expect_str_eq((char *)b.p, "look@0us read@0us reply@12us done@12us");
	buf_fini(&b);
	fake_close(&f);
	NO_LEAKS();
}

Test(op, ids_count_up, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req a = make(&f, A_REPLY), b = make(&f, A_REPLY);
	a.op.done_inline = b.op.done_inline = true;
	cr_assert_eq(op_start(&a.op), ERR_NONE);
	cr_assert_eq(op_start(&b.op), ERR_NONE);
	cr_expect_eq(a.op.id, 1);
	cr_expect_eq(b.op.id, 2);
	fake_close(&f);
}

Test(op, deadline_stops_the_wait, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_READ);
	r.op.deadline_ns = f.now_ns + 100;
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_eq(f.armed_ns, r.op.deadline_ns);
	fake_turn(&f, 99);
	cr_expect_eq(r.stops, 0);
	fake_turn(&f, 1);
	cr_expect_eq(r.stops, 1);
	cr_expect(r.op.timed_out);
	cr_expect_str_eq(r.path, "LR", "the work's own end resumes it");
	cr_expect_str_eq(r.op.why.text,
			 "test.a: the deadline passed in step read, waiting for agent a1");
	op_resume(&r.op);
	cr_expect_eq(r.seen_in_read, ERR_TIMED_OUT);
	/* the undo waits undisturbed, a cancel meanwhile is too late */
	op_cancel(&r.op);
	cr_expect_eq(r.op.err, ERR_TIMED_OUT);
	cr_expect_str_eq(r.path, "LRRU");
	op_resume(&r.op);
	cr_expect_str_eq(r.path, "LRRUUP");
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
	NO_LEAKS();
}

Test(op, deadline_in_the_past_fails_at_the_next_turn, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_READ);
	r.op.deadline_ns = 0;
	r.sync_stop = true;
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_eq(r.stops, 0);
	fake_turn(&f, 0);
	cr_expect_eq(r.stops, 1);
	cr_expect_str_eq(r.path, "LRRU");
	op_resume(&r.op);
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
}

/* Waiting without a stop: resumed at once. */
Test(op, cancel_without_stop_resumes, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, OP_WAIT);
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	r.look_to = A_REPLY;
	r.cancel_in_look = true; /* allows a second run */
	op_cancel(&r.op);
	cr_expect_str_eq(r.path, "LLP");
	cr_expect_eq(r.op.err, ERR_CANCELLED);
	cr_expect_str_eq(r.op.why.text, "test.a: cancelled in step look");
	cr_expect_eq(r.dones, 1);
	op_cancel(&r.op);
	fake_close(&f);
	NO_LEAKS();
}

/* Cancelled while a step runs that then waits: the wait is stopped at once. */
Test(op, cancel_inside_a_step_that_waits, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, OP_WAIT);
	r.cancel_in_look = true;
	r.op.done_inline = true;
	/* look waits with the cancel pending, runs again (no stop), and waits again: that stays */
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_str_eq(r.path, "LL");
	r.look_to = A_REPLY;
	op_resume(&r.op);
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
	NO_LEAKS();
}

/* Cancelled in a step that moves on: the next step sees the error and is not stopped. */
Test(op, cancel_inside_a_step_that_moves, .timeout = 5)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_UNDO);
	r.cancel_in_look = true;
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_str_eq(r.path, "LU");
	op_resume(&r.op);
	cr_expect_str_eq(r.path, "LUUP");
	cr_expect_eq(r.op.err, ERR_CANCELLED);
	fake_close(&f);
	NO_LEAKS();
}

Test(op, stop_inside_start_keeps_done_out_of_it, .timeout = 5)
{
	static const struct op_step steps[] = {
		{ "look", look, TO(1) | TO(A_REPLY), .waits = true, .stop = read_stop },
		{ "read", read_step, TO(A_REPLY), .waits = true, .stop = read_stop },
		{ "reply", reply, TO(OP_DONE) },
	};
	static const struct op_table table = { "test.b", steps, 3 };
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, OP_WAIT);
	r.op.table = &table;
	r.cancel_in_look = true;
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	cr_expect_eq(r.stops, 1);
	r.look_to = A_REPLY;
	op_resume(&r.op);
	fake_turn(&f, 0);
	cr_expect_eq(r.dones, 1);
	fake_close(&f);
	NO_LEAKS();
}

/* I1 */
Test(op, first_error_wins, .timeout = 5)
{
	struct fake_loop f;
	struct why w = { ERR_IO, "disk d0: gone" };
	fake_open(&f, false);
	struct req r = make(&f, A_READ);
	cr_expect_eq(op_fail(&r.op, ERR_BUSY, "slot %d", 5), ERR_BUSY);
	cr_expect_eq(op_fail_why(&r.op, ERR_IO, &w), ERR_IO);
	cr_expect_eq(r.op.err, ERR_BUSY);
	cr_expect_str_eq(r.op.why.text, "slot 5");
	struct req q = make(&f, A_READ);
	op_fail_why(&q.op, ERR_IO, &w);
	cr_expect_str_eq(q.op.why.text, "disk d0: gone");
	struct req p = make(&f, A_READ);
	op_fail_why(&p.op, ERR_IO, NULL);
	cr_expect_str_eq(p.op.why.text, err_text(ERR_IO));
	fake_close(&f);
}

static unsigned emptied;
static void on_empty(struct op_set *s)
{
	cr_assert_eq(s->n, 0);
	emptied++;
}

/* B1, and the drain of a service. */
Test(op, sets_are_bounded_and_cancelled, .timeout = 5)
{
	struct fake_loop f;
	struct op_set s;
	struct req r[4];
	fake_open(&f, false);
	op_set_init(&s, 3);
	s.on_empty = on_empty;
	for (int i = 0; i < 4; i++) {
		r[i] = make(&f, A_READ);
		r[i].op.set = &s;
		r[i].sync_stop = i != 1;
		cr_expect_eq(op_start(&r[i].op), i < 3 ? ERR_NONE : ERR_BUSY);
	}
	cr_expect_eq(r[3].path[0], '\0', "the refused one did not begin");
	cr_expect_eq(s.n, 3);
	cr_expect_eq(op_set_cancel(&s), 3);
	for (int i = 0; i < 3; i++) {
		cr_expect_eq(r[i].stops, 1, "%d", i);
		if (i == 1)
			op_resume(&r[i].op);
		cr_expect_eq(emptied, 0);
		op_resume(&r[i].op); /* the undo */
		cr_expect_eq(r[i].dones, 1);
	}
	cr_expect_eq(emptied, 1);
	cr_expect_eq(op_set_cancel(&s), 0);
	fake_close(&f);
	NO_LEAKS();
}

static void free_done(struct op *op)
{
	free(req_of(op));
}

/* done may free the op, wherever it runs from: start, resume, deadline, cancel, the set. */
Test(op, done_may_free, .timeout = 5)
{
	struct fake_loop f;
	struct op_set s;
	fake_open(&f, false);
	op_set_init(&s, 10);
	for (int how = 0; how < 5; how++) {
		struct req *r = malloc(sizeof(*r));
		*r = make(&f, how == 0 ? A_REPLY : A_READ);
		r->op.done = free_done;
		r->op.done_inline = true;
		r->op.set = &s;
		r->op.deadline_ns = f.now_ns + 50;
		cr_assert_eq(op_start(&r->op), ERR_NONE);
		if (how == 1)
			op_resume(&r->op);
		if (how < 2)
			continue;
		r->sync_stop = true;
		if (how == 2)
			fake_turn(&f, 60);
		else if (how == 3)
			op_cancel(&r->op);
		else
			op_set_cancel(&s);
		op_resume(&r->op);
	}
	cr_expect_eq(s.n, 0);
	fake_close(&f);
	NO_LEAKS();
}

static int wrong_move(struct op *op)
{
	(void)op;
	return 0;
}
static const struct op_step wrong_steps[] = { { "x", wrong_move, TO(OP_DONE) } };
static const struct op_table wrong_table = { "test.wrong", wrong_steps, 1 };

Test(op, a_move_outside_the_table_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, 0);
	r.op.table = &wrong_table;
	(void)!op_start(&r.op);
}

Test(op, resume_of_what_does_not_wait_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct fake_loop f;
	fake_open(&f, false);
	struct req r = make(&f, A_REPLY);
	cr_assert_eq(op_start(&r.op), ERR_NONE);
	op_resume(&r.op);
}

static const struct op_step broken_steps[][3] = {
	{ { "a", look, TO(1) }, { "b", look, TO(OP_DONE) }, { "c", look, TO(OP_DONE) } },
	{ { "a", look, TO(1) | TO(2) }, { "b", look, TO(1) }, { "c", look, TO(OP_DONE) } },
	{ { "a", look, TO(1) | TO(2) | TO(7) },
	  { "b", look, TO(2) },
	  { "c", look, TO(OP_DONE) } },
	{ { "a", look, TO(1) | TO(2) }, { "a", look, TO(2) }, { "c", look, TO(OP_DONE) } },
	{ { "a", look, TO(1) | TO(2) }, { "b", NULL, TO(2) }, { "c", look, TO(OP_DONE) } },
	{ { "a", look, TO(1) | TO(2), .stop = read_stop },
	  { "b", look, TO(2) },
	  { "c", look, TO(OP_DONE) } },
};
static const char *const broken_words[] = { "nothing moves to c", "no way from b",
					    "of no row",	  "two steps are called a",
					    "no function",	  "never waits" };

Test(op, wrong_tables_are_found, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(broken_steps); i++) {
		const struct op_table t = { "t", broken_steps[i], 3 };
		struct why w = { 0 };
		cr_expect_eq(op_table_check(&t, &w), ERR_INTERNAL);
		cr_expect(strstr(w.text, broken_words[i]), "%s", w.text);
	}
	struct why w = { 0 };
	cr_expect_eq(op_table_check(&(struct op_table){ "t", a_steps, 0 }, &w), ERR_INTERNAL);
	cr_expect_eq(op_table_check(&(struct op_table){ "t", a_steps, 64 }, &w), ERR_INTERNAL);
	cr_expect_eq(op_table_check(&a_table, &w), ERR_NONE);
}

Test(op, tables_are_found_in_the_section, .timeout = 5)
{
	const struct op_table *const *all;
	size_t n = op_tables(&all), mine = 0;
	for (size_t i = 0; i < n; i++)
		mine += strcmp(all[i]->name, "test.a") == 0;
	cr_expect_eq(mine, 1);
}

Test(op, page, .timeout = 5)
{
	struct buf b = BUF_INIT(1 << 16);
	op_table_page(&a_table, &b);
	buf_put(&b, "", 1);
	const char *s = (const char *)b.p;
	cr_expect(strstr(s, "# test.a\n"));
	cr_expect(strstr(s, "\tstate \"read\" as s1:::waits\n"));
	cr_expect(strstr(s, "\t[*] --> s0\n"));
	cr_expect(strstr(s, "\ts0 --> s1\n"));
	cr_expect(!strstr(s, "\ts1 --> s0\n"));
	cr_expect(strstr(s, "\ts2 --> [*]\n"));
	cr_expect(strstr(s, "| look | yes | read, reply, undo |\n"), "%s", s);
	cr_expect(strstr(s, "| undo | yes, to its end | reply |\n"), "%s", s);
	cr_expect(strstr(s, "| reply |  | end |\n"));
	buf_fini(&b);
	NO_LEAKS();
}
