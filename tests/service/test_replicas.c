/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects with two copies on two real agents, read over data lanes while one of them is stopped, killed or has
 * bytes that changed: gets go to the other one, within their deadline.
 */
#include "cases.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/leak.h"

TestSuite(replicas, .timeout = 120);

enum { MiB = 1 << 20, N = 24, SIZE = MiB + 333, DEADLINE_MS = 15000 };

struct two {
	struct world w;
	char masters[128];
	const char *far_args[16];
};

static void run_far(struct two *d)
{
	proc_run(&d->w.far, daemon_row("agent"), d->far_args, &d->w.second);
	cs_ready(&d->w.second);
}

static void up(struct two *d)
{
	static const char *const lanes[] = { "--set", "agent.data_listen=tcp://127.0.0.1:0" };
	char cmd[256];
	memset(d, 0, sizeof(*d));
	setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
	cs_prepare(&d->w, "agent.pool_size=128MiB", "agent.slots=20000");
	size_t n = 0;
	while (d->w.aargs[n])
		n++;
	memcpy(d->w.aargs + n, lanes, sizeof(lanes));
	box_make(&d->w.far);
	snprintf(cmd, sizeof(cmd), "cp '%s' '%s'", d->w.box.secret, d->w.far.secret);
	cr_assert_eq(system(cmd), 0);
	snprintf(d->masters, sizeof(d->masters), "--masters=ipc://%.60s/run/master.sock",
		 d->w.box.dir);
	memcpy(d->far_args, d->w.aargs, sizeof(d->w.aargs));
	d->far_args[n + 2] = d->masters;
	cs_start_all(&d->w);
	run_far(d);
	d->w.p = cs_client(&d->w);
}

static void down(struct two *d)
{
	cs_down(&d->w);
}

static struct pml_result put(struct two *d, unsigned i, uint32_t num, uint32_t required)
{
	static uint8_t v[SIZE];
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_item it = PML_ITEM_INIT;
	struct pml_buf b = { v, SIZE };
	struct pml_op *op = NULL;
	char key[24];
	snprintf(key, sizeof(key), "r/%u", i);
	cs_fill(v, SIZE, i);
	it.key = key;
	it.key_bytes = strlen(key);
	it.bufs = &b;
	it.n_bufs = 1;
	o.deadline_ms = 30000;
	o.replica_num = num;
	o.replicas_required = required;
	cr_assert_eq(pml_put_start(d->w.p, &it, 1, &o, NULL, NULL, &op, &err), 0, "%s",
		     err.text);
	pml_op_wait(op);
	pml_op_result(op, 0, &r);
	cr_assert_eq(r.code, 0, "%s: %s", key, pml_error_name(r.code));
	pml_op_free(op);
	return r;
}

/* All of them, each right; *worst: the longest. */
static unsigned get_all(struct two *d, uint64_t *worst)
{
	static uint8_t got[SIZE], want[SIZE];
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	unsigned good = 0;
	o.deadline_ms = DEADLINE_MS;
	*worst = 0;
	for (unsigned i = 0; i < N; i++) {
		char key[24];
		size_t n = 0;
		snprintf(key, sizeof(key), "r/%u", i);
		uint64_t t0 = cs_now_ms();
		int code = pml_get(d->w.p, key, strlen(key), got, SIZE, &n, &o, &err);
		*worst = MAX_OF(*worst, cs_now_ms() - t0);
		cs_fill(want, SIZE, i);
		cr_expect_eq(code, 0, "%s: %s: %s", key, pml_error_name(code), err.text);
		cr_expect(code || (n == SIZE && memcmp(got, want, SIZE) == 0), "%s: wrong",
			  key);
		good += code == 0;
	}
	return good;
}

static double pulled(struct two *d)
{
	static const char name[] = "pomelo_agent_pulls_total{end=\"ok\"}";
	return MAX_OF(cs_metric_of(&d->w.agent, name), 0.0) +
	       MAX_OF(cs_metric_of(&d->w.second, name), 0.0);
}

Test(replicas, one_agent_stopped_then_the_other_killed)
{
	struct two d;
	uint64_t worst;
	up(&d);
	for (unsigned i = 0; i < N; i++)
		cr_expect_eq(put(&d, i, 2, 2).copies, 2);
	cr_expect_eq(pulled(&d), N);
	cr_expect_eq(get_all(&d, &worst), N);
	proc_signal(&d.w.second, SIGSTOP);
	cr_expect_eq(get_all(&d, &worst), N);
	cr_expect_lt(worst, DEADLINE_MS, "no get runs into its deadline");
	proc_signal(&d.w.second, SIGCONT);
	cs_ready(&d.w.second);
	cs_kill_it(&d.w.agent);
	cr_expect_eq(get_all(&d, &worst), N);
	cr_expect_lt(worst, DEADLINE_MS);
	proc_run(&d.w.box, daemon_row("agent"), d.w.aargs, &d.w.agent);
	cs_ready(&d.w.agent);
	cr_expect_eq(get_all(&d, &worst), N);
	down(&d);
	NO_LEAKS();
}

/* T4: bytes that changed in one pool are never what a get returns, whichever copy it tries first. */
Test(replicas, a_pool_whose_bytes_changed)
{
	struct two d;
	uint64_t worst;
	up(&d);
	for (unsigned i = 0; i < N; i++)
		(void)put(&d, i, 2, 2);
	uint8_t *p = cs_pool_map(&d.w, "data.0", 64 * MiB);
	for (size_t at = 1000; at < 64 * MiB; at += 65536)
		p[at] ^= 2;
	munmap(p, 64 * MiB);
	cr_expect_eq(get_all(&d, &worst), N);
	cr_expect_lt(worst, DEADLINE_MS);
	down(&d);
	NO_LEAKS();
}

/* More copies wanted than required: acknowledged with what is required, the rest follows (or not). */
Test(replicas, the_rest_follows)
{
	struct two d;
	up(&d);
	for (unsigned i = 0; i < N; i++)
		cr_expect_geq(put(&d, i, 2, 1).copies, 1);
	for (int k = 0; k < 1500 && pulled(&d) < N; k++)
		usleep(10000);
	cr_expect_eq(pulled(&d), N);
	down(&d);
	NO_LEAKS();
}
