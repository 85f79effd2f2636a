/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation failures in the rpc stack: the n-th allocation of one process fails, for n = 0, 1, 2 ...
 * until nothing is left to fail. Each time every call ends, typed, the service works again, and
 * nothing is left behind.
 */
#include "tests/sim/echo.h"
#include "tests/support/leak.h"
#include "tests/support/sim_alloc.h"

#include <criterion/criterion.h>
#include <string.h>

static struct echo_world world;

static enum err call(struct cluster *c, uint32_t method, uint32_t bytes)
{
	static uint8_t body[6000];
	struct buf b = BUF_INIT(1 << 16);
	struct why why = { 0 };
	struct cl_from from = { .node = "c" };
	enum err e = cl_call(c, from, "echo", method, BYTES(body, bytes), 500, &b, &why);
	if (e == ERR_NONE)
		cr_assert(b.n == bytes && memcmp(b.p, body, bytes) == 0);
	else
		cr_assert(why.text[0], "%s without a word", err_name(e));
	buf_fini(&b);
	return e;
}

static struct cluster *open_echo(void)
{
	struct cluster *c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = 1 });
	world = (struct echo_world){ .rng = sim_rng(1, "work") };
	cl_add(c, &(struct cl_member_opts){
			  .name = "echo", .node = "s", .app = &echo_app, .arg = &world });
	cl_start(c, "echo");
	return c;
}

static void some_calls(struct cluster *c)
{
	call(c, ECHO_ECHO, 100);
	call(c, ECHO_SLOW, 6000);
	call(c, ECHO_WORK, 300);
	call(c, ECHO_PARK, 5000);
	call(c, ECHO_NO, 8);
}

/* How many there were to fail. */
static uint64_t fail_each(bool server, bool connected, uint64_t count)
{
	for (uint64_t skip = 0;; skip++) {
		struct cluster *c = open_echo();
		if (connected)
			cr_assert_eq(call(c, ECHO_ECHO, 100), ERR_NONE);
		cr_assert(cl_can(c, CL_OOM));
		if (server)
			cl_oom(c, "echo", skip, count);
		else
			cl_oom_callers(c, "c", skip, count);
		some_calls(c);
		uint64_t failed = sim_alloc_failed();
		sim_alloc_fail(NULL, 0, 0);
		bool ok = false;
		for (int i = 0; i < 20 && !ok; i++)
			ok = call(c, ECHO_ECHO, 6000) == ERR_NONE;
		cr_assert(ok, "after allocation %lu failed nothing works", skip);
		cl_close(c);
		if (failed == 0)
			return skip;
	}
}

Test(oom, each_allocation_of_the_server_fails_once, .timeout = 60)
{
	cr_assert_gt(fail_each(true, false, 1), 5);
	NO_LEAKS();
}

Test(oom, each_allocation_of_the_callers_fails_once, .timeout = 60)
{
	cr_assert_gt(fail_each(false, false, 1), 3);
	NO_LEAKS();
}

Test(oom, all_allocations_fail_for_a_while, .timeout = 60)
{
	fail_each(true, true, 40);
	fail_each(false, true, 40);
	fail_each(true, false, 40);
	fail_each(false, false, 40);
	NO_LEAKS();
}
