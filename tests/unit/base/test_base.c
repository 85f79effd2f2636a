/* SPDX-License-Identifier: Apache-2.0 */
/* The small ones: errors, clock arithmetic, buf, budget, list, trace, fault points. */
#include "base/budget.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/list.h"
#include "base/trace.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/leak.h"

/* ---- err ---- */

static const struct {
	const char *name, *text, *mooncake;
	int number;
} errors[] = {
#define ROW(name, number, retry, text, mooncake) { #name, text, mooncake, number },
	ERR_TABLE(ROW)
#undef ROW
};

Test(err, rows_keep_the_rules, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
		cr_expect_geq(errors[i].number, 0);
		cr_expect_lt(errors[i].number, 600);
		cr_expect(strlen(errors[i].text) > 5 && !strchr(errors[i].text, '\n'), "%s",
			  errors[i].name);
		cr_expect(islower((unsigned char)errors[i].text[0]) || errors[i].number == 0 ||
				  isupper((unsigned char)errors[i].text[0]),
			  "%s", errors[i].name);
		cr_expect(strlen(errors[i].mooncake) > 1);
		for (size_t k = 0; k < i; k++) {
			cr_expect_neq(errors[k].number, errors[i].number, "%s and %s",
				      errors[k].name, errors[i].name);
			cr_expect(strcmp(errors[k].name, errors[i].name) != 0);
			cr_expect_lt(errors[k].number, errors[i].number, "in order of numbers");
		}
	}
}

Test(err, names_both_ways, .timeout = 5)
{
	enum err e = ERR_BUSY;
	for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
		cr_expect(err_from_name(errors[i].name, &e));
		cr_expect_eq((int)e, errors[i].number);
		cr_expect_str_eq(err_name(e), errors[i].name);
		cr_expect_str_eq(err_text(e), errors[i].text);
		cr_expect_str_eq(err_mooncake(e), errors[i].mooncake);
	}
	e = ERR_BUSY;
	cr_expect(!err_from_name("NO_SUCH", &e) && e == ERR_BUSY);
	cr_expect_str_eq(err_name((enum err)9999), "UNKNOWN");
	cr_expect_eq(err_retry((enum err)9999), ERR_RETRY_NEVER);
	cr_expect_eq(err_retry(ERR_BUSY), ERR_RETRY_AFTER);
	cr_expect_eq(err_retry(ERR_NOT_LEADER), ERR_RETRY_OTHER);
}

Test(err, every_errno_is_an_error, .timeout = 5)
{
	for (int sys = 0; sys < 200; sys++)
		cr_expect_neq(err_from_errno(sys), ERR_NONE, "%d", sys);
	cr_expect_eq(err_from_errno(ENOSPC), ERR_NO_SPACE);
	cr_expect_eq(err_from_errno(EIO), ERR_IO);
	cr_expect_eq(err_from_errno(ECONNREFUSED), ERR_UNREACHABLE);
}

Test(err, first_reason_stays_and_long_ones_are_cut, .timeout = 5)
{
	struct why w = { 0 };
	char big[1000];
	memset(big, 'x', sizeof(big));
	big[999] = '\0';
	cr_expect_eq(why_set(&w, ERR_BUSY, "%s", big), ERR_BUSY);
	cr_expect_eq(strlen(w.text), sizeof(w.text) - 1);
	cr_expect_eq(why_set(&w, ERR_IO, "second"), ERR_IO);
	cr_expect_eq(w.err, ERR_BUSY);
	cr_expect_eq(why_set(NULL, ERR_IO, "nowhere"), ERR_IO);
}

/* ---- clock ---- */

Test(clock, saturates, .timeout = 5)
{
	cr_expect_eq(clock_after_ms(0, 5), 5 * NS_PER_MS);
	cr_expect_eq(clock_after_ms(7, UINT64_MAX), UINT64_MAX);
	cr_expect_eq(clock_after_ms(UINT64_MAX - 5, 1), UINT64_MAX);
	cr_expect_eq(clock_after_ms(0, UINT64_MAX / NS_PER_MS),
		     UINT64_MAX / NS_PER_MS * NS_PER_MS);
	cr_expect_eq(clock_after_ms(0, UINT64_MAX / NS_PER_MS + 1), UINT64_MAX);
	cr_expect_eq(clock_after_ms(UINT64_MAX, 0), UINT64_MAX);
}

Test(clock, left_rounds_up, .timeout = 5)
{
	cr_expect_eq(clock_left_ms(100, 100), 0);
	cr_expect_eq(clock_left_ms(99, 100), 0);
	cr_expect_eq(clock_left_ms(101, 100), 1);
	cr_expect_eq(clock_left_ms(100 + NS_PER_MS, 100), 1);
	cr_expect_eq(clock_left_ms(101 + NS_PER_MS, 100), 2);
	cr_expect_eq(clock_left_ms(UINT64_MAX, 0), UINT64_MAX / NS_PER_MS + 1);
}

Test(clock, real_one_goes_on, .timeout = 5)
{
	uint64_t a = clock_real.now_ns(&clock_real), b = clock_real.now_ns(&clock_real);
	cr_expect_leq(a, b);
	cr_expect_gt(clock_real.wall_ms(&clock_real), 1600000000000ull);
}

/* ---- buf ---- */

Test(buf, grows_to_its_limit, .timeout = 5)
{
	struct buf b = BUF_INIT(1000);
	for (int i = 0; i < 1000; i++)
		buf_put(&b, "x", 1);
	cr_expect_eq(b.n, 1000);
	cr_expect_eq(buf_err(&b), ERR_NONE);
	cr_expect_leq(b.cap, 1000);
	buf_put(&b, "x", 1);
	cr_expect_eq(buf_err(&b), ERR_TOO_LARGE);
	cr_expect_eq(b.n, 1000, "nothing of it is written");
	buf_clear(&b);
	cr_expect_eq(b.n, 0);
	cr_expect_eq(buf_err(&b), ERR_NONE);
	buf_fini(&b);
	buf_fini(NULL);
	NO_LEAKS();
}

Test(buf, latched_error_stops_later_appends, .timeout = 5)
{
	struct buf b = BUF_INIT(5);
	buf_put(&b, "123456", 6);
	buf_put(&b, "1", 1);
	buf_printf(&b, "1");
	cr_expect_null(buf_room(&b, 1));
	cr_expect_eq(b.n, 0);
	cr_expect_eq(buf_err(&b), ERR_TOO_LARGE);
	buf_fini(&b);
}

/* Nothing printed into an empty buffer is no room asked for (found by fuzz_conf). */
Test(buf, nothing_into_an_empty_buffer, .timeout = 5)
{
	struct buf b = BUF_INIT(10);
	buf_printf(&b, "%s", "");
	buf_put(&b, NULL, 0);
	cr_expect_eq(buf_err(&b), ERR_NONE);
	cr_expect_eq(b.n, 0);
	buf_fini(&b);
}

Test(buf, huge_lengths_do_not_wrap, .timeout = 5)
{
	struct buf b = BUF_INIT(100);
	buf_put(&b, "abc", 3);
	cr_expect_null(buf_room(&b, SIZE_MAX));
	cr_expect_eq(buf_err(&b), ERR_TOO_LARGE);
	buf_clear(&b);
	cr_expect_null(buf_room(&b, SIZE_MAX - 1));
	buf_fini(&b);
	struct buf zero = { 0 };
	buf_put(&zero, "", 0);
	cr_expect_eq(buf_err(&zero), ERR_NONE);
	buf_put(&zero, "a", 1);
	cr_expect_eq(buf_err(&zero), ERR_TOO_LARGE);
}

/* The text alone must fit, not the NUL behind it. */
Test(buf, printf_fills_to_the_last_byte, .timeout = 5)
{
	struct buf b = BUF_INIT(5);
	buf_printf(&b, "%s", "12345");
	cr_expect_eq(buf_err(&b), ERR_NONE);
	cr_expect_eq(b.n, 5);
	cr_expect_arr_eq(b.p, "12345", 5);
	buf_printf(&b, "%s", "");
	cr_expect_eq(buf_err(&b), ERR_NONE);
	buf_printf(&b, "6");
	cr_expect_eq(buf_err(&b), ERR_TOO_LARGE);
	buf_fini(&b);
	struct buf big = BUF_INIT(100000);
	buf_printf(&big, "%99999d", 7);
	cr_expect_eq(big.n, 99999);
	cr_expect_eq(big.p[99998], '7');
	buf_fini(&big);
	NO_LEAKS();
}

/* ---- budget ---- */

Test(budget, takes_and_gives, .timeout = 5)
{
	struct budget b = BUDGET_INIT(10);
	cr_expect_eq(budget_take(&b, 6), ERR_NONE);
	cr_expect_eq(budget_take(&b, 5), ERR_BUSY);
	cr_expect_eq(budget_take(&b, 11), ERR_TOO_LARGE);
	cr_expect_eq(budget_take(&b, UINT64_MAX), ERR_TOO_LARGE);
	cr_expect_eq(budget_take(&b, 4), ERR_NONE);
	cr_expect_eq(budget_take(&b, 0), ERR_NONE);
	cr_expect_eq(budget_left(&b), 0);
	budget_give(&b, 10);
	cr_expect_eq(b.used, 0);
	cr_expect_eq(b.peak, 10);
	cr_expect_eq(b.refused, 3);
	cr_assert_eq(budget_take(&b, 8), ERR_NONE);
	b.limit = 5; /* lowered below what is in use */
	cr_expect_eq(budget_left(&b), 0);
	cr_expect_eq(budget_take(&b, 1), ERR_BUSY);
	budget_give(&b, 8);
	cr_expect_eq(budget_take(&b, 5), ERR_NONE);
}

Test(budget, giving_too_much_aborts, .timeout = 5, .signal = SIGABRT)
{
	struct budget b = BUDGET_INIT(10);
	budget_give(&b, 1);
}

/* ---- list ---- */

Test(list, order_and_removal, .timeout = 5)
{
	struct list l, n[5] = { 0 };
	list_init(&l);
	cr_expect(list_empty(&l) && list_pop_front(&l) == NULL);
	for (int i = 0; i < 4; i++)
		list_push_back(&l, &n[i]);
	list_push_front(&l, &n[4]);
	list_del(&n[1]);
	list_del(&n[1]);
	cr_expect(!list_linked(&n[1]) && list_linked(&n[2]));
	cr_expect_eq(list_pop_front(&l), &n[4]);
	cr_expect_eq(list_pop_front(&l), &n[0]);
	int seen = 0;
	list_for_each_safe (it, &l) {
		list_del(it);
		seen++;
	}
	cr_expect_eq(seen, 2);
	cr_expect(list_empty(&l));
	struct list zero = { 0 };
	cr_expect(list_empty(&zero) && !list_linked(&zero));
	list_del(&zero);
}

/* ---- trace ---- */

Test(trace, keeps_the_last, .timeout = 5)
{
	struct trace t;
	struct buf b = BUF_INIT(1000);
	cr_assert_eq(trace_init(&t, 3), ERR_NONE);
	cr_expect_eq(t.cap, 4);
	for (uint64_t i = 0; i < 6; i++)
		trace_put(&t, 1000000 + i * 5000, "grant", i, 10 * i);
	trace_print(&t, 100, &b);
	buf_put(&b, "", 1);
	cr_expect_str_eq(
		(char *)b.p,
		"+0us grant 2 20\n+5us grant 3 30\n+5us grant 4 40\n+5us grant 5 50\n");
	buf_clear(&b);
	trace_print(&t, 1, &b);
	buf_put(&b, "", 1);
	cr_expect_str_eq((char *)b.p, "+0us grant 5 50\n");
	trace_fini(&t);
	trace_fini(NULL);
	trace_put(&t, 1, "x", 0, 0); /* closed: nothing happens */
	buf_fini(&b);
	NO_LEAKS();
}

/* ---- fault ---- */

Test(fault, names, .timeout = 5)
{
	enum fault f = FAULT_alloc;
	cr_expect(fault_from_name("path_fsync", &f) && f == FAULT_path_fsync);
	cr_expect_str_eq(fault_name(f), "path_fsync");
	cr_expect(!fault_from_name("nothing", &f) && f == FAULT_path_fsync);
}

Test(fault, skip_and_count, .timeout = 5)
{
	unsigned struck = 0;
	fault_arm(FAULT_alloc, 2, 3);
	for (unsigned i = 0; i < 10; i++)
		if (FAULT(alloc))
			struck |= 1u << i;
	if (!fault_built()) {
		cr_expect_eq(struck, 0, "no points in this build");
		return;
	}
	cr_expect_eq(struck, 7u << 2);
	cr_expect_eq(fault_hits(FAULT_alloc), 3);
	fault_arm(FAULT_alloc, 0, 1);
	cr_expect_eq(fault_hits(FAULT_alloc), 0);
	fault_disarm_all();
	cr_expect(!FAULT(alloc));
}

Test(fault, from_text, .timeout = 5)
{
	cr_expect(fault_arm_text(NULL) && fault_arm_text(""));
	cr_expect(fault_arm_text("alloc:fail:1:2,put_half:kill:4:1"));
	static const char *const bad[] = { "alloc",	      "nothing:stop", "alloc:burn",
					   "put_half:stop,x", "alloc:",	      ",alloc:stop" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		cr_expect(!fault_arm_text(bad[i]), "%s", bad[i]);
	if (fault_built()) {
		fault_arm_text("alloc:fail:1:2");
		cr_expect(!FAULT(alloc) && FAULT(alloc) && FAULT(alloc) && !FAULT(alloc));
	}
	fault_disarm_all();
	FAULT_AT(put_half);
}

/* A place that is armed to stop or kill does so to the process; armed to fail it does nothing. */
Test(fault, places, .timeout = 10)
{
	int st = 0;
	if (!fault_built())
		return;
	pid_t pid = fork();
	if (pid == 0) {
		fault_arm_act(FAULT_put_half, 0, 1, FAULT_FAIL);
		FAULT_AT(put_half);
		fault_arm_act(FAULT_put_half, 1, 1, FAULT_STOP);
		fault_arm_act(FAULT_put_copied, 0, 1, FAULT_KILL);
		FAULT_AT(put_half);
		FAULT_AT(put_half);
		FAULT_AT(put_copied);
		_exit(0);
	}
	cr_expect(waitpid(pid, &st, WUNTRACED) == pid && WIFSTOPPED(st));
	kill(pid, SIGCONT);
	cr_expect(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
}
