/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots, regions and registered buffers over the real services, through shared memory and over data lanes: with
 * the master and the agent killed under an open snapshot, a full pool that evicts all but what is leased, keys that
 * are replaced and removed while they are read.
 */
#include "cases.h"

#include "pml_snapshot.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/leak.h"
#include "relay.h"

TestSuite(client, .timeout = 120);

enum { MiB = 1 << 20, KEYS = 50 };

/* Shared memory, or data lanes alone. */
static void up(struct world *w, bool tcp)
{
	static char listen[64];
	snprintf(listen, sizeof(listen), "agent.data_listen=tcp://127.0.0.1:%u",
		 relay_free_port());
	if (tcp)
		setenv("POMELO_CLIENT_DATA_PATH", "tcp", 1);
	cs_prepare(w, "agent.pool_size=64MiB", "agent.slots=20000");
	size_t n = 0;
	while (w->aargs[n])
		n++;
	w->aargs[n] = "--set";
	w->aargs[n + 1] = listen;
	cs_start_all(w);
	w->p = cs_client(w);
}

static void key_of(char out[16], const char *family, unsigned i)
{
	snprintf(out, 16, "%s/%u", family, i);
}

static struct pml_item item(const char *key)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = strlen(key);
	return it;
}

/* As cs_put_many puts them. */
static struct pml_snapshot *open_all(struct world *w, const char *family, unsigned n)
{
	struct pml_item *items = calloc(n, sizeof(*items));
	char(*keys)[16] = calloc(n, sizeof(*keys));
	struct pml_snapshot *s = NULL;
	struct pml_error err = PML_ERROR_INIT;
	for (unsigned i = 0; i < n; i++) {
		key_of(keys[i], family, i);
		items[i] = item(keys[i]);
	}
	cr_assert_eq(pml_snapshot_open(w->p, items, n, NULL, &s, &err), 0, "%s", err.text);
	cr_expect_eq(pml_snapshot_n(s), n);
	free(items);
	free(keys);
	return s;
}

/* Its bytes, exactly, or LEASE_LOST; nothing else. How many are whole. */
static unsigned read_all(struct pml_snapshot *s, const char *family, unsigned n)
{
	uint8_t got[VALUE_MAX], want[VALUE_MAX];
	struct pml_error err = PML_ERROR_INIT;
	unsigned good = 0;
	for (unsigned i = 0; i < n; i++) {
		struct pml_result r = PML_RESULT_INIT;
		char key[16];
		size_t len = 0;
		key_of(key, family, i);
		int e = pml_snapshot_get(s, key, strlen(key), got, sizeof(got), &len, NULL,
					 &err);
		(void)pml_snapshot_find(s, key, strlen(key), &r);
		cr_expect(e == 0 || e == PML_ERR_LEASE_LOST, "%s: %s", key, err.text);
		cs_fill(want, r.object_bytes, i);
		if (e == 0)
			cr_expect(len == r.object_bytes && memcmp(got, want, len) == 0,
				  "%s: other bytes", key);
		good += e == 0;
	}
	return good;
}

/* Under kills of the master and the agent: what was opened is read, the same bytes, by the same version. */
static void killed(bool tcp)
{
	struct world w;
	up(&w, tcp);
	cs_put_many(&w, "k", KEYS);
	struct pml_snapshot *s = open_all(&w, "k", KEYS);
	cr_expect_eq(read_all(s, "k", KEYS), KEYS);
	for (int i = 0; i < 2; i++) {
		cs_kill_it(&w.master);
		if (!tcp) /* it needs nobody */
			cr_expect_eq(read_all(s, "k", KEYS), KEYS, "the master is dead");
		proc_run(&w.box, daemon_row("master"), w.margs, &w.master);
		cs_ready(&w.master);
		cr_expect_eq(read_all(s, "k", KEYS), KEYS, "another master");
		usleep(1200000); /* two leases: renewals by the new one */
		cr_expect_eq(read_all(s, "k", KEYS), KEYS, "renewed by another master");
		cs_kill_it(&w.agent);
		proc_run(&w.box, daemon_row("agent"), w.aargs, &w.agent);
		cs_ready(&w.agent);
		cr_expect_eq(read_all(s, "k", KEYS), KEYS, "another agent");
	}
	pml_snapshot_close(s);
	cs_down(&w);
	unsetenv("POMELO_CLIENT_DATA_PATH");
	NO_LEAKS();
}

Test(client, snapshot_under_kills)
{
	killed(false);
}

Test(client, snapshot_under_kills_over_lanes)
{
	killed(true);
}

/* A pool that is written over and over, for many times the lease: what the snapshot has stays, all else may go. */
Test(client, snapshot_keeps_evictions_away)
{
	struct world w;
	uint8_t *v = calloc(1, MiB);
	struct pml_error err = PML_ERROR_INIT;
	up(&w, false);
	cs_put_many(&w, "kept", KEYS);
	cs_put_many(&w, "not", KEYS);
	struct pml_snapshot *s = open_all(&w, "kept", KEYS);
	uint64_t until = cs_now_ms() + 4000;
	unsigned written = 0;
	for (; cs_now_ms() < until || written < 200; written++) {
		char key[16];
		key_of(key, "fill", written);
		cr_assert_eq(pml_put(w.p, key, strlen(key), v, MiB, NULL, &err), 0, "%s",
			     err.text);
	}
	cr_expect_eq(read_all(s, "kept", KEYS), KEYS, "leased all along, unread");
	struct found f = cs_get_many(&w, "not", KEYS);
	cr_expect_gt(f.absent, 0, "the pool was full: %u are there yet", f.good);
	pml_snapshot_close(s);
	free(v);
	cs_down(&w);
	NO_LEAKS();
}

/* ---- one version, whatever happens ---- */

struct churn {
	struct world *w;
	_Atomic bool over;
	unsigned rounds;
};

/* Every byte of a value is its round's. */
static void *replace(void *arg)
{
	struct churn *c = arg;
	uint8_t v[20000];
	while (!c->over) {
		memset(v, (int)(++c->rounds % 251), sizeof(v));
		if (pml_upsert(c->w->p, "churn", 5, v, sizeof(v), NULL, NULL) == 0 &&
		    c->rounds % 7 == 0)
			(void)pml_remove(c->w->p, "churn", 5, NULL, NULL);
	}
	return NULL;
}

/* Read through snapshots while the key is replaced and removed all the time: each snapshot sees one version. */
static void churned(bool tcp)
{
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t v[20000];
	unsigned whole = 0, lost = 0, opened = 0;
	pthread_t t;
	up(&w, tcp);
	struct churn c = { .w = &w };
	pthread_create(&t, NULL, replace, &c);
	uint64_t until = cs_now_ms() + 2500;
	while (cs_now_ms() < until) {
		struct pml_item it = item("churn");
		struct pml_snapshot *s = NULL;
		int first = -1;
		if (pml_snapshot_open(w.p, &it, 1, NULL, &s, &err) != 0)
			continue;
		opened++;
		for (int i = 0; i < 4; i++) {
			size_t n = 0;
			int e = pml_snapshot_get(s, "churn", 5, v, sizeof(v), &n, NULL, &err);
			cr_expect(e == 0 || e == PML_ERR_LEASE_LOST, "%s", err.text);
			lost += e != 0;
			if (e != 0)
				continue;
			first = first < 0 ? v[0] : first;
			whole++;
			cr_assert_eq(n, sizeof(v));
			for (size_t k = 0; k < n; k++)
				cr_assert_eq(v[k], first, "another version's byte");
		}
		pml_snapshot_close(s);
	}
	c.over = true;
	pthread_join(t, NULL);
	cr_expect(whole > 0 && opened > 10 && c.rounds > 10, "%u opened, %u whole, %u lost, %u",
		  opened, whole, lost, c.rounds);
	cs_down(&w);
	unsetenv("POMELO_CLIENT_DATA_PATH");
	NO_LEAKS();
}

Test(client, snapshot_of_what_is_replaced)
{
	churned(false);
}

Test(client, snapshot_of_what_is_replaced_over_lanes)
{
	churned(true);
}

/* ---- strided memory ---- */

/* A tensor of [A][B][C] in another order of dimensions, put and got; a slice of it; with every byte between left
 * alone. */
static void strided(bool tcp, uint32_t verify)
{
	enum { A = 40, B = 50, C = 700 };
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	size_t n = (size_t)A * B * C, got = 0;
	uint8_t *in = malloc(n), *flat = malloc(n), *out = malloc(2 * n);
	struct pml_buffer *buf = NULL;
	up(&w, tcp);
	o.verify = verify;
	cs_fill(in, n, 3);
	/* memory is [B][A][C], the object [A][B][C] */
	struct pml_nd_region r = PML_ND_REGION_INIT;
	r.memory = in, r.memory_bytes = n;
	r.inner_bytes = C, r.n_dims = 2;
	r.counts[0] = A, r.counts[1] = B;
	r.memory_strides[0] = C, r.memory_strides[1] = A * C;
	r.object_strides[0] = B * C, r.object_strides[1] = C;
	cr_assert_eq(pml_put_regions(w.p, "t", 1, &r, 1, NULL, &err), 0, "%s", err.text);
	cr_assert_eq(pml_get(w.p, "t", 1, flat, n, &got, &o, &err), 0, "%s", err.text);
	for (unsigned a = 0; a < A; a++)
		for (unsigned b = 0; b < B; b++)
			cr_assert_eq(memcmp(flat + ((size_t)a * B + b) * C,
					    in + ((size_t)b * A + a) * C, C),
				     0, "%u %u", a, b);
	/* columns 100..199 of every second row, each followed by as many bytes that are not ours */
	memset(out, 0xee, 2 * n);
	cr_assert_eq(pml_buffer_register(w.p, out, 2 * n, NULL, &buf, &err), 0, "%s", err.text);
	r = (struct pml_nd_region)PML_ND_REGION_INIT;
	r.memory = out, r.memory_bytes = 2 * n;
	r.object_base = 100, r.inner_bytes = 100, r.n_dims = 1;
	r.counts[0] = A * B / 2;
	r.object_strides[0] = 2 * C, r.memory_strides[0] = 200;
	cr_assert_eq(pml_get_regions(w.p, "t", 1, &r, 1, &o, &err), 0, "%s", err.text);
	for (size_t i = 0; i < A * B / 2; i++) {
		cr_assert_eq(memcmp(out + i * 200, flat + 2 * i * C + 100, 100), 0, "%zu", i);
		for (size_t k = 100; k < 200; k++)
			cr_assert_eq(out[i * 200 + k], 0xee);
	}
	r.object_base = n;
	cr_expect_eq(pml_get_regions(w.p, "t", 1, &r, 1, &o, &err), PML_ERR_INVALID_PARAMS);
	cr_expect_eq(pml_buffer_unregister(buf), 0);
	free(in);
	free(flat);
	free(out);
	cs_down(&w);
	unsetenv("POMELO_CLIENT_DATA_PATH");
	NO_LEAKS();
}

Test(client, regions)
{
	strided(false, PML_VERIFY_AUTO);
}

Test(client, regions_verified)
{
	strided(false, PML_VERIFY_ALWAYS);
}

Test(client, regions_over_lanes)
{
	strided(true, PML_VERIFY_AUTO);
}

/* ---- memory that goes ---- */

/* case 73: memory is unregistered and unmapped in the middle of a transfer; the call ends, both processes live. */
static void unmapped(bool tcp)
{
	enum { N = 16 * MiB };
	struct world w;
	struct pml_error err = PML_ERROR_INIT;
	uint8_t *v = malloc(N);
	unsigned ended = 0;
	up(&w, tcp);
	cs_fill(v, N, 1);
	cr_assert_eq(pml_put(w.p, "big", 3, v, N, NULL, &err), 0, "%s", err.text);
	for (unsigned i = 0; i < 24; i++) {
		uint8_t *m = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  -1, 0);
		struct pml_buf b = { m, N };
		struct pml_buffer *reg = NULL;
		struct pml_item it = item(i % 2 ? "big" : "new");
		struct pml_op *op = NULL;
		it.bufs = &b, it.n_bufs = 1;
		cr_assert_eq(pml_buffer_register(w.p, m, N, NULL, &reg, &err), 0, "%s",
			     err.text);
		int e = i % 2 ? pml_get_start(w.p, &it, 1, NULL, NULL, NULL, &op, &err)
			      : pml_upsert_start(w.p, &it, 1, NULL, NULL, NULL, &op, &err);
		cr_assert_eq(e, 0, "%s", err.text);
		usleep(i * 300);
		cr_expect_eq(pml_buffer_unregister(reg), 0);
		munmap(m, N);
		e = pml_op_wait(op);
		ended += e == PML_ERR_CANCELLED;
		cr_expect(e == 0 || e == PML_ERR_CANCELLED || e == PML_ERR_BUSY_WRITING, "%s",
			  pml_error_name(e));
		pml_op_free(op);
	}
	cr_expect_gt(ended, 0);
	size_t n = 0;
	uint8_t *got = malloc(N);
	cr_expect_eq(pml_get(w.p, "big", 3, got, N, &n, NULL, &err), 0, "%s", err.text);
	cr_expect(n == N && memcmp(got, v, N) == 0);
	free(got);
	free(v);
	cs_down(&w); /* which fails if a daemon has died */
	unsetenv("POMELO_CLIENT_DATA_PATH");
	NO_LEAKS();
}

Test(client, case_073_unmapped_in_a_transfer)
{
	unmapped(false);
}

Test(client, case_073_unmapped_in_a_transfer_over_lanes)
{
	unmapped(true);
}
