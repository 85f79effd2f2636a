/* SPDX-License-Identifier: Apache-2.0 */
#include "conf_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct conf_rig *current; /* one a test process */

static void on_opened(void *ctx, enum err e, const struct why *w)
{
	struct conf_rig *r = ctx;
	r->opened = true;
	r->open_err = e;
	if (e)
		r->why = *w;
}

static void on_evict(void *ctx, struct store_eviction *ev)
{
	struct conf_rig *r = ctx;
	if (r->on_evict)
		r->on_evict(r, ev);
	else
		store_be_evict_done(r->be, ev, true);
}

static void on_evicted(void *ctx, const struct store_eviction *ev)
{
	struct conf_rig *r = ctx;
	if (r->on_evicted)
		r->on_evicted(r, ev);
}

static void on_closed(void *ctx)
{
	((struct conf_rig *)ctx)->closed = true;
}

void conf_init(struct conf_rig *r, const struct conf_row *row)
{
	*r = (struct conf_rig){ .row = row };
	current = r;
	r->log = (struct log){ .svc = "test", .fd = -1 };
	cr_assert_eq(loop_open(&r->loop), ERR_NONE);
	snprintf(r->dir, sizeof(r->dir), "/tmp/pomelo-disk-XXXXXX");
	cr_assert(mkdtemp(r->dir));
	if (row->in_memory)
		r->disk = disk_cut_new(1);
	r->o = (struct store_opts){ .backend = row->backend,
				    .dir = r->dir,
				    .fs = r->disk ? disk_cut_fs(r->disk) : NULL,
				    .log = &r->log,
				    .limit_bytes = 64 << 20,
				    .uring = row->uring,
				    .no_direct = row->no_direct,
				    .readers = 2,
				    .depth = 16,
				    .ctx = r,
				    .opened = on_opened,
				    .evict = on_evict,
				    .evicted = on_evicted };
}

enum err conf_open(struct conf_rig *r)
{
	struct store_be *be;
	struct why w = { 0 };
	r->opened = r->closed = false;
	enum err e = store_be_open(&r->loop, &r->o, &be, &w);
	if (e) {
		r->why = w;
		return e;
	}
	while (!r->opened)
		loop_run_once(&r->loop, true);
	r->be = be;
	if (r->open_err == ERR_NONE && r->row->decorated) {
		struct store_fault *f;
		cr_assert_eq(store_fault_new(be, &f), ERR_NONE);
		r->be = store_fault_be(f);
	}
	e = r->open_err;
	if (e)
		conf_close(r);
	return e;
}

void conf_close(struct conf_rig *r)
{
	if (!r->be)
		return;
	store_be_close(r->be, on_closed, r);
	while (!r->closed)
		loop_run_once(&r->loop, true);
	r->be = NULL;
}

void conf_fini(struct conf_rig *r)
{
	char cmd[128];
	conf_close(r);
	loop_close(&r->loop);
	disk_cut_free(r->disk);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", r->dir);
	cr_assert_eq(system(cmd), 0);
}

void conf_done(struct store_req *q)
{
	(void)q;
	current->n_done++;
}

void conf_wait(struct conf_rig *r, uint32_t n_done)
{
	while (r->n_done < n_done)
		loop_run_once(&r->loop, true);
}

void conf_put(struct conf_rig *r, struct store_put_item *items, uint32_t n)
{
	struct store_put p = { .req.done = conf_done, .items = items, .n = n };
	uint32_t want = r->n_done + 1;
	cr_assert_eq(store_be_put(r->be, &p), ERR_NONE);
	cr_assert_eq(r->n_done, want - 1, "done inside the call");
	conf_wait(r, want);
}

void conf_get(struct conf_rig *r, struct store_get_item *items, uint32_t n)
{
	struct store_get g = { .req.done = conf_done, .items = items, .n = n };
	uint32_t want = r->n_done + 1;
	cr_assert_eq(store_be_get(r->be, &g), ERR_NONE);
	conf_wait(r, want);
}

void conf_del(struct conf_rig *r, struct store_del_item *items, uint32_t n)
{
	struct store_del d = { .req.done = conf_done, .items = items, .n = n };
	uint32_t want = r->n_done + 1;
	cr_assert_eq(store_be_delete(r->be, &d), ERR_NONE);
	conf_wait(r, want);
}

bool conf_has(struct conf_rig *r, const struct store_id *id)
{
	struct store_has_item it = { .id = *id };
	struct store_has h = { .req.done = conf_done, .items = &it, .n = 1 };
	uint32_t want = r->n_done + 1;
	cr_assert_eq(store_be_exists(r->be, &h), ERR_NONE);
	conf_wait(r, want);
	cr_assert_eq(h.err, ERR_NONE);
	return it.there;
}

static uint64_t sum_of(const void *p, uint64_t n)
{
	static uint64_t vector[64];
	return obj_sum(p, n, vector);
}

enum err conf_put_one(struct conf_rig *r, struct store_id id, const void *p, uint64_t n)
{
	struct store_put_item it = { .id = id, .p = p, .n = n, .sum = sum_of(p, n) };
	conf_put(r, &it, 1);
	return it.err;
}

enum err conf_get_one(struct conf_rig *r, struct store_id id, const void *p, uint64_t n)
{
	uint8_t *to = aligned_alloc(4096, (n + 8191) & ~4095ull);
	struct store_get_item it = {
		.id = id, .n = STORE_WHOLE, .to = to, .room = (n + 4095) & ~4095ull
	};
	conf_get(r, &it, 1);
	if (it.err == ERR_NONE) {
		cr_assert(it.got == n && it.size == n && it.sum == sum_of(p, n));
		cr_assert(n == 0 || memcmp(to, p, n) == 0);
	} else {
		cr_assert_eq(it.got, 0);
	}
	free(to);
	return it.err;
}

enum err conf_del_one(struct conf_rig *r, struct store_id id)
{
	struct store_del_item it = { .id = id };
	conf_del(r, &it, 1);
	return it.err;
}

struct seen {
	uint64_t version;
	uint64_t hash;
};

static int by_hash(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;
	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return (x->version > y->version) - (x->version < y->version);
}

uint32_t conf_count(struct conf_rig *r)
{
	struct seen *all = malloc(65536 * sizeof(*all));
	uint32_t n = 0, want;
	struct store_scan s = { .req.done = conf_done, .max_items = 50 };
	do {
		want = r->n_done + 1;
		cr_assert_eq(store_be_scan(r->be, &s), ERR_NONE);
		conf_wait(r, want);
		cr_assert_eq(s.err, ERR_NONE);
		for (uint32_t i = 0; i < s.n; i++)
			all[n++] = (struct seen){ s.entries[i].id.version,
						  obj_key_hash(s.entries[i].id.tenant,
							       s.entries[i].id.key) };
		store_scan_fini(&s);
	} while (s.more);
	qsort(all, n, sizeof(*all), by_hash);
	for (uint32_t i = 1; i < n; i++)
		cr_assert(by_hash(&all[i - 1], &all[i]) != 0, "listed twice");
	free(all);
	return n;
}

uint8_t *conf_bytes(uint64_t seed, uint64_t n)
{
	uint64_t room = (n + 8191) & ~4095ull, s = seed;
	uint64_t *p = aligned_alloc(4096, room);
	cr_assert(p);
	for (uint64_t i = 0; i < room / 8; i++) {
		s = s * 6364136223846793005ull + 1442695040888963407ull;
		p[i] = s ^ s >> 33;
	}
	return (uint8_t *)p;
}

struct store_id conf_id(uint32_t i)
{
	static char keys[4096][16];
	int n = snprintf(keys[i % 4096], 16, "k/%u", i);
	return (struct store_id){ .tenant = BYTES_STR("default"),
				  .key = BYTES(keys[i % 4096], (size_t)n),
				  .version = 7 };
}
