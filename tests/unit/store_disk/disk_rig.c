/* SPDX-License-Identifier: Apache-2.0 */
#include "disk_rig.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t sizes[RIG_SIZES] = { 0, 1, 4096, 5000, 70000, 20000, 300, 131072 };

uint64_t rig_random(struct rig *r, uint64_t below)
{
	uint64_t z = (r->rng += 0x9e3779b97f4a7c15ull);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % below;
}

/* Three versions of each key, two tenants, keys with odd bytes. */
struct store_id rig_id(uint32_t i)
{
	static char keys[RIG_IDS][40];
	int n = snprintf(keys[i], sizeof(keys[i]), "kv/%c\xff%u", 0 + 1, i / 3);
	return (struct store_id){ .tenant =
					  i / 3 % 2 ? BYTES_STR("blue") : BYTES_STR("default"),
				  .key = BYTES(keys[i], (size_t)n),
				  .version = (1ull << 40) + 1 + i % 3 };
}

uint64_t rig_size(uint32_t i)
{
	if (i == 7) /* larger than a segment */
		return (1u << 20) + 4097;
	return i == 13 ? 1u << 20 : sizes[i * 5 % RIG_SIZES];
}

/* Made once a process: lives are many. */
static uint8_t *made[RIG_IDS];
static uint64_t sums[RIG_IDS];

static uint8_t *value_of(uint32_t i)
{
	uint64_t n = rig_size(i), s = i + 1, vector[4];
	if (made[i])
		return made[i];
	uint8_t *p = aligned_alloc(4096, (n + 8191) & ~4095ull);
	cr_assert(p);
	for (uint64_t k = 0; k < n; k++) {
		s = s * 6364136223846793005ull + 1442695040888963407ull;
		p[k] = (uint8_t)(s >> 56);
	}
	sums[i] = obj_sum(p, n, vector);
	return made[i] = p;
}

uint64_t rig_sum(const struct rig *r, uint32_t i)
{
	(void)r;
	return sums[i];
}

void rig_init(struct rig *r, const char *backend, uint64_t seed)
{
	*r = (struct rig){ .backend = backend, .rng = seed, .limit = RIG_LIMIT };
	r->log = (struct log){ .svc = "test", .fd = 2 };
	log_set_level(LOG_ERROR_L);
	r->log.fd = -1; /* what fails on purpose is not worth a line */
	r->disk = disk_cut_new(seed);
	for (uint32_t i = 0; i < RIG_IDS; i++)
		r->values[i] = value_of(i);
	r->lane.depth = 8;
	r->lane.bounce = aligned_alloc(4096, (size_t)BLK_BOUNCES * BLK_BOUNCE);
	cr_assert(r->lane.bounce);
}

void rig_fini(struct rig *r)
{
	if (r->blk)
		rig_close(r);
	disk_lane_free(r->lane.io);
	free(r->lane.bounce);
	disk_cut_free(r->disk);
}

static const struct store_backend_row *row_of(const char *name)
{
	for (size_t i = 0; i < store_n_backends; i++)
		if (strcmp(store_backends[i].caps.name, name) == 0)
			return &store_backends[i];
	return NULL;
}

enum err rig_open(struct rig *r)
{
	const struct store_opts o = { .backend = r->backend,
				      .log = &r->log,
				      .limit_bytes = r->limit,
				      .limit_objects = 1000,
				      .segment_bytes = 256 << 10,
				      .high_pct = 90,
				      .low_pct = 80,
				      .fsync = r->fsync,
				      .order = r->order };
	struct blk_opts b = { .o = &o,
			      .fs = disk_cut_fs(r->disk),
			      .seed = rig_random(r, UINT64_MAX),
			      .owner = "owner-1",
			      .direct = true };
	const struct disk_lane_opts lo = { .depth = 8 };
	struct why w = { 0 };
	if (!r->lane.io)
		cr_assert_eq(b.fs->ops->lane_new(b.fs, &lo, &r->lane.io), ERR_NONE);
	enum err e = row_of(r->backend)->blk->open(&b, &r->lane, &r->blk, &w);
	cr_assert(e == ERR_NONE || w.text[0], "no reason for %s", err_name(e));
	if (e)
		r->blk = NULL;
	r->fresh = e == ERR_NONE;
	return e;
}

void rig_close(struct rig *r)
{
	r->blk->ops->close(r->blk, &r->lane);
	r->blk = NULL;
}

/* Memory is freed as a dead process's is: what its close writes goes nowhere. */
void rig_crash(struct rig *r, struct disk_cut *next)
{
	disk_cut_at(r->disk, 0);
	if (r->blk)
		rig_close(r);
	disk_lane_free(r->lane.io);
	r->lane.io = NULL;
	disk_cut_free(r->disk);
	r->disk = next;
}

bool rig_put(struct rig *r, const uint32_t *ids, uint32_t n)
{
	struct store_put_item items[64] = { 0 };
	struct store_put p = { .items = items, .n = n };
	bool all = true;
	for (uint32_t i = 0; i < n; i++) {
		items[i].id = rig_id(ids[i]);
		items[i].p = r->values[ids[i]];
		items[i].n = rig_size(ids[i]);
		items[i].sum = rig_sum(r, ids[i]);
	}
	r->blk->ops->put(r->blk, &r->lane, &p);
	for (uint32_t i = 0; i < n; i++) {
		cr_assert(items[i].settled || items[i].err == ERR_BUSY);
		cr_assert(items[i].err == ERR_NONE || items[i].err == ERR_BUSY ||
				  items[i].err == ERR_IO,
			  "put: %s", err_name(items[i].err));
		if (items[i].err == ERR_NONE)
			r->state[ids[i]] = RIG_PRESENT;
		else if (r->state[ids[i]] != RIG_PRESENT)
			r->state[ids[i]] = RIG_UNKNOWN;
		all = all && items[i].err == ERR_NONE;
	}
	return all;
}

bool rig_del(struct rig *r, const uint32_t *ids, uint32_t n)
{
	struct store_del_item items[64] = { 0 };
	struct store_del d = { .items = items, .n = n };
	bool all = true;
	for (uint32_t i = 0; i < n; i++)
		items[i].id = rig_id(ids[i]);
	r->blk->ops->del(r->blk, &r->lane, &d);
	for (uint32_t i = 0; i < n; i++) {
		r->state[ids[i]] = items[i].err == ERR_NONE ? RIG_ABSENT : RIG_UNKNOWN;
		all = all && items[i].err == ERR_NONE;
	}
	return all;
}

static uint32_t index_of(const struct store_id *id)
{
	for (uint32_t i = 0; i < RIG_IDS; i++) {
		struct store_id x = rig_id(i);
		if (store_id_equal(&x, id))
			return i;
	}
	cr_assert_fail("an id that nobody put");
	return 0;
}

bool rig_evict(struct rig *r, bool starved, bool keep_some)
{
	struct store_eviction *ev = NULL;
	enum err e = r->blk->ops->pick(r->blk, &r->lane, starved, &ev);
	if (e || !ev)
		return false;
	for (uint32_t i = 0; i < ev->n; i++)
		ev->items[i].keep = keep_some && rig_random(r, 3) == 0;
	e = r->blk->ops->reclaim(r->blk, &r->lane, ev);
	for (uint32_t i = 0; i < ev->n; i++) {
		const struct store_evict_item *it = &ev->items[i];
		uint32_t k = index_of(&it->id);
		if (!it->keep)
			r->state[k] = it->gone ? RIG_ABSENT : RIG_UNKNOWN;
	}
	blk_eviction_free(ev);
	return e == ERR_NONE;
}

void rig_step(struct rig *r)
{
	r->fresh = false;
	uint32_t ids[8], n = 1 + (uint32_t)rig_random(r, 6);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (uint32_t)rig_random(r, RIG_IDS);
	uint64_t what = rig_random(r, 100);
	if (what < 55) {
		if (!rig_put(r, ids, n) && rig_evict(r, true, true))
			(void)rig_put(r, ids, n);
	} else if (what < 85) {
		(void)rig_del(r, ids, n);
	} else {
		(void)rig_evict(r, what >= 93, what & 1);
	}
}

static void check_one(struct rig *r, uint32_t i)
{
	uint64_t n = rig_size(i);
	uint8_t *to = aligned_alloc(4096, (n + 8191) & ~4095ull);
	struct store_get_item it = { .id = rig_id(i), .n = STORE_WHOLE, .to = to, .room = n };
	struct store_get g = { .items = &it, .n = 1 };
	struct store_has_item hi = { .id = rig_id(i) };
	struct store_has h = { .items = &hi, .n = 1 };
	if (i % 2)
		it.room = (n + 4095) & ~4095ull; /* straight into our memory */
	r->blk->ops->has(r->blk, &h);
	r->blk->ops->get(r->blk, &r->lane, &g);
	if (it.err == ERR_NONE) {
		cr_assert(hi.there && hi.size == n && hi.sum == rig_sum(r, i));
		cr_assert(it.got == n && it.size == n && it.sum == rig_sum(r, i));
		cr_assert(n == 0 || memcmp(to, r->values[i], n) == 0, "wrong bytes of %u", i);
		cr_assert(r->state[i] != RIG_ABSENT, "%u came back (%s)", i, r->what);
	} else {
		cr_assert(it.err == ERR_NOT_FOUND || r->lax, "get of %u: %s", i,
			  err_name(it.err));
		cr_assert(r->state[i] != RIG_PRESENT || r->lax, "%u is lost: %s (%s)", i,
			  err_name(it.err), r->what);
		r->gone += r->state[i] == RIG_PRESENT;
	}
	/* what is unknown is decided by a start, not before */
	if (r->state[i] != RIG_UNKNOWN || r->fresh)
		r->state[i] = it.err == ERR_NONE ? RIG_PRESENT : RIG_ABSENT;
	r->there[i] = it.err == ERR_NONE;
	free(to);
}

static void check_scan(struct rig *r)
{
	uint32_t seen[RIG_IDS] = { 0 };
	struct store_scan s = { .max_items = 7 };
	do {
		r->blk->ops->scan(r->blk, &s);
		cr_assert_eq(s.err, ERR_NONE);
		for (uint32_t i = 0; i < s.n; i++) {
			uint32_t k = index_of(&s.entries[i].id);
			seen[k]++;
			cr_assert(s.entries[i].size == rig_size(k) &&
				  s.entries[i].sum == rig_sum(r, k));
		}
		store_scan_fini(&s);
	} while (s.more);
	for (uint32_t i = 0; i < RIG_IDS; i++)
		cr_assert_eq(seen[i], r->there[i], "scan lists %u %u times", i, seen[i]);
}

void rig_check(struct rig *r)
{
	struct store_stat st = { 0 };
	for (uint32_t i = 0; i < RIG_IDS; i++)
		check_one(r, i);
	check_scan(r);
	r->blk->ops->stat(r->blk, &st);
	uint64_t n = 0, bytes = 0;
	for (uint32_t i = 0; i < RIG_IDS; i++) {
		n += r->there[i];
		bytes += r->there[i] ? rig_size(i) : 0;
	}
	cr_assert(st.objects == n && st.bytes_live == bytes);
	cr_assert(st.bytes_used <= st.bytes_limit, "%" PRIu64 " of %" PRIu64, st.bytes_used,
		  st.bytes_limit);
}
