/* SPDX-License-Identifier: Apache-2.0 */
/* What a full pool does, over real processes: leases, pins, quotas of tenants (B2). */
#include "cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../support/leak.h"

TestSuite(policy, .timeout = 120);

enum { BIG = 256 << 10, POOL_FITS = 64 }; /* 16 MiB */

static uint8_t big[BIG];

static struct pml *as_tenant(const struct world *w, const char *tenant)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = w->box.dir;
	o.secret_file = w->box.secret;
	o.tenant = tenant;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	return p;
}

static int put_one(struct pml *p, unsigned i, uint32_t ms, struct pml_put_opts *o,
		   struct pml_error *err)
{
	struct pml_put_opts none = PML_PUT_OPTS_INIT;
	char key[24];
	o = o ? o : &none;
	o->deadline_ms = ms;
	snprintf(key, sizeof(key), "o/%u", i);
	cs_fill(big, sizeof(big), i);
	return pml_put(p, key, strlen(key), big, sizeof(big), o, err);
}

/* 0 right, else its code; a wrong byte ends the test. */
static int get_one(struct pml *p, unsigned i)
{
	static uint8_t got[BIG];
	size_t n = 0;
	char key[24];
	snprintf(key, sizeof(key), "o/%u", i);
	int code = pml_get(p, key, strlen(key), got, sizeof(got), &n, NULL, NULL);
	if (code)
		return code;
	cs_fill(big, sizeof(big), i);
	cr_assert(n == BIG && memcmp(got, big, BIG) == 0, "%s: wrong bytes", key);
	return 0;
}

/* A lease on each of the first n, as a caller that moves the bytes itself. */
static unsigned lease_all(struct pml *p, unsigned n, uint32_t lease_ms)
{
	static struct pml_item it[POOL_FITS];
	static char key[POOL_FITS][24];
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	unsigned got = 0;
	o.lease_ms = lease_ms;
	for (unsigned i = 0; i < n; i++) {
		snprintf(key[i], sizeof(key[i]), "o/%u", i);
		it[i] = (struct pml_item)PML_ITEM_INIT;
		it[i].key = key[i];
		it[i].key_bytes = strlen(key[i]);
	}
	cr_assert_eq(pml_query_start(p, it, n, &o, NULL, NULL, &op, &err), 0, "%s", err.text);
	pml_op_wait(op);
	for (unsigned i = 0; i < n; i++) {
		struct pml_result r = PML_RESULT_INIT;
		pml_op_result(op, i, &r);
		got += r.code == 0;
	}
	pml_op_free(op);
	return got;
}

static void up(struct world *w, const char *more, const char *more2)
{
	cs_prepare(w, "agent.pool_size=16MiB", "agent.slots=8000");
	w->margs[6] = "--set";
	w->margs[7] = "master.high_watermark=1"; /* puts make room, not time */
	w->margs[8] = more ? "--set" : NULL;
	w->margs[9] = more;
	w->margs[10] = more2 ? "--set" : NULL;
	w->margs[11] = more2;
	cs_start_all(w);
	w->p = cs_client(w);
}

/* 150 % of the pool, all read under leases that end: no put fails, and what is found is right. */
Test(policy, case_022_no_put_fails_when_leases_have_ended)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	unsigned n = POOL_FITS * 3 / 2, good = 0;
	up(&w, NULL, NULL);
	for (unsigned i = 0; i < POOL_FITS; i++)
		cr_assert_eq(put_one(w.p, i, 5000, NULL, &err), 0, "%u: %s", i, err.text);
	cr_expect_eq(lease_all(w.p, POOL_FITS, 0), POOL_FITS);
	usleep(600000); /* master.lease_ms is 500 */
	uint64_t t0 = cs_now_ms();
	for (unsigned i = POOL_FITS; i < n; i++)
		cr_expect_eq(put_one(w.p, i, 10000, NULL, &err), 0, "%u: %s", i, err.text);
	cr_expect_lt(cs_now_ms() - t0, 30000);
	for (unsigned i = 0; i < n; i++)
		good += get_one(w.p, i) == 0;
	cr_expect_geq(good, POOL_FITS - 4, "%u", good);
	cr_expect_eq(get_one(w.p, n - 1), 0);
	cr_expect_gt(cs_metric_of(&w.master, "pomelo_master_evictions_total"), 20);
	cs_down(&w);
	NO_LEAKS();
}

/* All of it leased: BUSY, and when to come again; then it goes. */
Test(policy, all_leased_is_busy_with_a_time)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	unsigned n = 0;
	up(&w, "master.lease_max_ms=60000", NULL);
	while (n < POOL_FITS && put_one(w.p, n, 5000, NULL, &err) == 0)
		n++;
	cr_assert_eq(n, POOL_FITS, "%s", err.text);
	uint64_t t0 = cs_now_ms();
	cr_assert_eq(lease_all(w.p, n, 8000), n);
	int code = put_one(w.p, n, 2000, NULL, &err);
	cr_expect_eq(code, PML_ERR_BUSY, "%s: %s", pml_error_name(code), err.text);
	cr_expect(err.retry_ms > 0 && err.retry_ms <= 8100, "%u", err.retry_ms);
	cr_expect_eq(cs_metric_of(&w.master, "pomelo_master_evictions_total"), 0);
	cr_expect_eq(put_one(w.p, 1000, 30000, NULL, &err), 0, "the library waits: %s",
		     err.text);
	cr_expect_geq(cs_now_ms() - t0, 7900);
	cs_down(&w);
	NO_LEAKS();
}

Test(policy, pinned_and_too_large_are_said_before_anything_goes)
{
	static uint8_t huge[17 << 20];
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_put_opts hard = PML_PUT_OPTS_INIT;
	hard.hard_pin = true;
	up(&w, NULL, NULL);
	cr_expect_eq(pml_put(w.p, "huge", 4, huge, sizeof(huge), NULL, &err), PML_ERR_TOO_LARGE,
		     "%s", err.text);
	int code = 0;
	unsigned n = 0;
	for (; code == 0 && n < 80; n++)
		code = put_one(w.p, n, 5000, &hard, &err);
	cr_expect_eq(code, PML_ERR_POOL_PINNED, "%s: %s", pml_error_name(code), err.text);
	cr_expect_geq(n, POOL_FITS);
	cr_expect_eq(cs_metric_of(&w.master, "pomelo_master_evictions_total"), 0);
	cr_expect_eq(pml_put(w.p, "huge", 4, huge, sizeof(huge), NULL, &err),
		     PML_ERR_TOO_LARGE);
	cr_expect_eq(pml_remove(w.p, "o/0", 3, NULL, &err), PML_ERR_POOL_PINNED);
	struct pml_remove_opts force = PML_REMOVE_OPTS_INIT;
	force.force = true;
	cr_expect_eq(pml_remove(w.p, "o/0", 3, &force, &err), 0, "%s", err.text);
	cr_expect_eq(put_one(w.p, 0, 5000, &hard, &err), 0, "%s", err.text);
	cs_down(&w);
	NO_LEAKS();
}

Test(policy, soft_pins_go_last_and_are_remembered_by_a_restart)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_put_opts soft = PML_PUT_OPTS_INIT;
	soft.soft_pin_ms = PML_SOFT_PIN_DEFAULT_MS;
	unsigned kept = 0;
	up(&w, NULL, NULL);
	for (unsigned i = 0; i < 10; i++)
		cr_assert_eq(put_one(w.p, i, 5000, &soft, &err), 0, "%s", err.text);
	cs_kill_it(&w.master);
	proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
	cs_ready(&w.master);
	for (unsigned i = 10; i < 150; i++)
		cr_expect_eq(put_one(w.p, i, 5000, NULL, &err), 0, "%u: %s", i, err.text);
	for (unsigned i = 0; i < 10; i++)
		kept += get_one(w.p, i) == 0;
	cr_expect_eq(kept, 10);
	cs_down(&w);
	NO_LEAKS();
}

/* One tenant at its quota evicts its own; the others, and their objects of the same keys, stay. */
Test(policy, quotas_of_tenants)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	unsigned mine = 0;
	up(&w, "master.tenant_memory=red=3MiB", "master.tenant_pinned=red=300KiB");
	struct pml *red = as_tenant(&w, "red");
	for (unsigned i = 0; i < 20; i++)
		cr_assert_eq(put_one(w.p, i, 5000, NULL, &err), 0, "%s", err.text);
	for (unsigned i = 0; i < 40; i++)
		cr_expect_eq(put_one(red, i, 5000, NULL, &err), 0, "%u: %s", i, err.text);
	for (unsigned i = 0; i < 20; i++)
		cr_expect_eq(get_one(w.p, i), 0);
	for (unsigned i = 0; i < 40; i++)
		mine += get_one(red, i) == 0;
	cr_expect(mine >= 11 && mine <= 12, "%u of 12", mine);
	double used = cs_metric_of(&w.master,
				   "pomelo_master_tenant_bytes{tenant=\"red\",of=\"used\"}");
	cr_expect(used > 2 << 20 && used <= 3 << 20, "%f", used);
	cr_expect_eq(cs_metric_of(&w.master,
				  "pomelo_master_tenant_bytes{tenant=\"red\",of=\"quota\"}"),
		     3 << 20);
	struct pml_put_opts hard = PML_PUT_OPTS_INIT;
	hard.hard_pin = true;
	cr_expect_eq(put_one(red, 100, 5000, &hard, &err), 0, "%s", err.text);
	cr_expect_eq(put_one(red, 101, 1000, &hard, &err), PML_ERR_QUOTA, "%s", err.text);
	pml_close(red);
	cs_down(&w);
	NO_LEAKS();
}
