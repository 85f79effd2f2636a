/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every backend owes (store.h), over each backend and decorator: a new one joins by a row.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf_rig.h"
#include "tests/support/leak.h"

#define MIB (1u << 20)

static struct conf_row rows[] = {
	{ .name = "log, io_uring", .backend = "log" },
	{ .name = "log, pread", .backend = "log", .uring = STORE_URING_OFF },
	{ .name = "log, cached",
	  .backend = "log",
	  .uring = STORE_URING_OFF,
	  .no_direct = true },
	{ .name = "log in memory", .backend = "log", .in_memory = true },
	{ .name = "log below faults", .backend = "log", .in_memory = true, .decorated = true },
	{ .name = "file", .backend = "file" },
	{ .name = "file in memory", .backend = "file", .in_memory = true },
};

static void second_closed(void *ctx)
{
	((struct conf_rig *)ctx)->closed = true;
}

#define CONFORM(what)                                                               \
	ParameterizedTestParameters(conform, what)                                  \
	{                                                                           \
		return cr_make_param_array(struct conf_row, rows, ARRAY_LEN(rows)); \
	}                                                                           \
	static void what##_body(struct conf_rig *r);                                \
	ParameterizedTest(struct conf_row *row, conform, what, .timeout = 60)       \
	{                                                                           \
		struct conf_rig r;                                                  \
		conf_init(&r, row);                                                 \
		what##_body(&r);                                                    \
		conf_fini(&r);                                                      \
		NO_LEAKS();                                                         \
	}                                                                           \
	static void what##_body(struct conf_rig *r)

CONFORM(identity_keeps_apart_and_repeats_are_success)
{
	uint8_t *a = conf_bytes(1, 5000), *b = conf_bytes(2, 5000);
	struct store_id id = conf_id(1), other = conf_id(1), newer = conf_id(1);
	cr_assert_eq(conf_open(r), ERR_NONE);
	other.tenant = BYTES_STR("else");
	newer.version = 8;
	cr_assert_eq(conf_put_one(r, id, a, 5000), ERR_NONE);
	cr_assert_eq(conf_put_one(r, id, a, 5000), ERR_NONE); /* again */
	cr_assert_eq(conf_put_one(r, id, b, 5000), ERR_CONFLICT);
	cr_assert_eq(conf_put_one(r, id, a, 4999), ERR_CONFLICT);
	cr_assert_eq(conf_put_one(r, other, b, 5000), ERR_NONE);
	cr_assert_eq(conf_put_one(r, newer, b, 100), ERR_NONE);
	cr_assert_eq(conf_get_one(r, id, a, 5000), ERR_NONE);
	cr_assert_eq(conf_get_one(r, other, b, 5000), ERR_NONE);
	cr_assert_eq(conf_get_one(r, newer, b, 100), ERR_NONE);
	cr_assert_eq(conf_del_one(r, id), ERR_NONE);
	cr_assert_eq(conf_get_one(r, id, a, 5000), ERR_NOT_FOUND);
	cr_assert_eq(conf_get_one(r, newer, b, 100), ERR_NONE);
	cr_assert_eq(conf_get_one(r, other, b, 5000), ERR_NONE);
	cr_assert_eq(conf_put_one(r, id, b, 300), ERR_NONE); /* gone: free to be anything */
	cr_assert_eq(conf_get_one(r, id, b, 300), ERR_NONE);
	cr_assert_eq(conf_count(r), 3);
	free(a);
	free(b);
}

/* Case 25: one bad item, or one that is there already, fails nothing else. */
CONFORM(case_025_results_are_an_items_own)
{
	struct store_put_item it[132];
	uint8_t *v = conf_bytes(3, 4096 * 132);
	uint64_t big[1];
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_put_one(r, conf_id(5), v + 5 * 4096, 4000), ERR_NONE);
	for (uint32_t i = 0; i < 132; i++) {
		it[i] = (struct store_put_item){ .id = conf_id(i),
						 .p = v + i * 4096,
						 .n = 4000 };
		it[i].sum = obj_sum(it[i].p, it[i].n, big);
	}
	it[128].id = it[17].id; /* twice in one batch, equal */
	it[128].p = it[17].p;
	it[128].sum = it[17].sum;
	it[129].id.key.n = 0;
	it[130].sum++;
	it[131].id.version = 0;
	conf_put(r, it, 132);
	for (uint32_t i = 0; i < 129; i++) {
		cr_assert_eq(it[i].err, ERR_NONE, "item %u: %s", i, err_name(it[i].err));
		cr_assert_eq(it[i].existed, i == 5 || i == 128);
	}
	cr_assert_eq(it[129].err, ERR_INVALID_PARAMS);
	cr_assert_eq(it[130].err, ERR_CORRUPT);
	cr_assert_eq(it[131].err, ERR_INVALID_PARAMS);
	cr_assert_eq(conf_count(r), 128);
	for (uint32_t i = 0; i < 128; i++)
		cr_assert_eq(conf_get_one(r, conf_id(i), v + i * 4096, 4000), ERR_NONE);
	free(v);
}

CONFORM(all_sizes_come_back)
{
	static const uint64_t sizes[] = {
		0,	 1,   7,       4095,	4096,		4097,	      131072,
		MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 4096, 3 * MIB + 123
	};
	uint8_t *v = conf_bytes(4, 4 * MIB);
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
		/* from memory that is aligned, and from some that is not */
		cr_assert_eq(conf_put_one(r, conf_id(2 * i), v, sizes[i]), ERR_NONE);
		cr_assert_eq(conf_put_one(r, conf_id(2 * i + 1), v + 3, sizes[i]), ERR_NONE);
	}
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < ARRAY_LEN(sizes); i++) {
			cr_assert_eq(conf_get_one(r, conf_id(2 * i), v, sizes[i]), ERR_NONE);
			cr_assert_eq(conf_get_one(r, conf_id(2 * i + 1), v + 3, sizes[i]),
				     ERR_NONE);
		}
		conf_close(r);
		cr_assert_eq(conf_open(r), ERR_NONE);
	}
	free(v);
}

CONFORM(ranges)
{
	const uint64_t n = 3 * MIB + 1000;
	uint8_t *v = conf_bytes(5, n), *to = conf_bytes(9, n);
	static const struct {
		uint64_t off, n, want;
	} cases[] = { { 0, 10, 10 },
		      { 0, STORE_WHOLE, 3 * MIB + 1000 },
		      { 5, MIB, MIB },
		      { MIB, MIB, MIB },
		      { MIB - 1, 2, 2 },
		      { 4096, 2 * MIB, 2 * MIB },
		      { 3 * MIB, STORE_WHOLE, 1000 },
		      { 3 * MIB + 999, 1, 1 },
		      { 3 * MIB + 1000, STORE_WHOLE, 0 },
		      { 77, 0, 0 } };
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_put_one(r, conf_id(1), v, n), ERR_NONE);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		for (unsigned shift = 0; shift < 2; shift++) {
			struct store_get_item it = { .id = conf_id(1),
						     .off = cases[i].off,
						     .n = cases[i].n,
						     .to = to + shift,
						     .room = cases[i].want };
			uint8_t after = to[shift + cases[i].want];
			conf_get(r, &it, 1);
			cr_assert_eq(it.err, ERR_NONE);
			cr_assert(it.got == cases[i].want && it.size == n);
			cr_assert_eq(memcmp(to + shift, v + cases[i].off, it.got), 0);
			cr_assert_eq(to[shift + cases[i].want], after, "past the room");
		}
	struct store_get_item bad[] = {
		{ .id = conf_id(1), .off = n + 1, .n = STORE_WHOLE, .to = to, .room = n },
		{ .id = conf_id(1), .off = n - 1, .n = 2, .to = to, .room = n },
		{ .id = conf_id(1), .off = 0, .n = STORE_WHOLE, .to = to, .room = n - 1 },
		{ .id = conf_id(2), .off = 0, .n = STORE_WHOLE, .to = to, .room = n },
		{ .id = conf_id(1), .off = 1, .n = 1, .to = to, .room = 1 },
	};
	conf_get(r, bad, 5);
	cr_assert_eq(bad[0].err, ERR_INVALID_PARAMS);
	cr_assert_eq(bad[1].err, ERR_INVALID_PARAMS);
	cr_assert(bad[2].err == ERR_TOO_LARGE && bad[2].size == n);
	cr_assert_eq(bad[3].err, ERR_NOT_FOUND);
	cr_assert(bad[4].err == ERR_NONE && to[0] == v[1]);
	free(v);
	free(to);
}

CONFORM(deletes)
{
	struct store_del_item d[600];
	uint8_t *v = conf_bytes(6, 4096);
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 300; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 100 + i), ERR_NONE);
	for (uint32_t i = 0; i < 600; i++)
		d[i] = (struct store_del_item){ .id = conf_id(i) };
	d[1].id = d[0].id; /* twice in one batch */
	d[2].id.tenant.n = 0;
	conf_del(r, d, 600);
	for (uint32_t i = 0; i < 600; i++) {
		cr_assert_eq(d[i].err, i == 2 ? ERR_INVALID_PARAMS : ERR_NONE);
		cr_assert_eq(d[i].absent, i == 1 || i >= 300 || i == 2);
	}
	cr_assert_eq(conf_count(r), 2);
	conf_close(r);
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_count(r), 2);
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 101), ERR_NONE);
	cr_assert_eq(conf_get_one(r, conf_id(2), v, 102), ERR_NONE);
	free(v);
}

/* What is there throughout is listed once, whatever comes and goes between the pages. */
CONFORM(pages)
{
	uint32_t seen[300] = { 0 };
	uint8_t *v = conf_bytes(7, 100);
	struct store_scan s = { .req.done = conf_done, .max_items = 10 };
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 300; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 100), ERR_NONE);
	uint32_t next = 1000, pages = 0;
	do {
		uint32_t want = r->n_done + 1;
		cr_assert_eq(store_be_scan(r->be, &s), ERR_NONE);
		conf_wait(r, want);
		cr_assert(s.err == ERR_NONE && s.n <= 300);
		for (uint32_t i = 0; i < s.n; i++) {
			char key[32] = { 0 };
			memcpy(key, s.entries[i].id.key.p, s.entries[i].id.key.n);
			unsigned k = (unsigned)strtoul(key + 2, NULL, 10);
			cr_assert(s.entries[i].size == (k < 300 ? 100 : 50) &&
				  s.entries[i].id.version == 7);
			if (k < 300)
				seen[k]++;
		}
		store_scan_fini(&s);
		pages++;
		cr_assert_eq(conf_put_one(r, conf_id(next++), v, 50), ERR_NONE);
		cr_assert_eq(conf_del_one(r, conf_id(100 + pages % 50)), ERR_NONE);
	} while (s.more);
	cr_assert(pages > 5, "%u pages", pages);
	for (uint32_t i = 0; i < 300; i++)
		cr_assert(seen[i] == 1 || (i >= 100 && i < 150 && seen[i] == 0));
	free(v);
}

/* Case 28: a start forgets nothing and writes nothing anew; the owner's id is the folder's. */
CONFORM(case_028_restart)
{
	char owner[65];
	struct store_stat a, b;
	uint8_t *v = conf_bytes(8, 70000);
	cr_assert_eq(conf_open(r), ERR_NONE);
	snprintf(owner, sizeof(owner), "%s", store_be_owner(r->be));
	cr_assert(owner[0]);
	for (uint32_t i = 0; i < 200; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v + i, 60000 + i), ERR_NONE);
	for (uint32_t i = 0; i < 50; i++)
		cr_assert_eq(conf_del_one(r, conf_id(i)), ERR_NONE);
	for (int round = 0; round < 2; round++) {
		conf_close(r);
		cr_assert_eq(conf_open(r), ERR_NONE);
		cr_assert_str_eq(store_be_owner(r->be), owner);
		store_be_stat(r->be, &a);
		cr_assert(a.objects == 150 && a.bytes_put == 0 && a.unknown == 0 &&
			  a.rebuilt_from_records == 0);
		cr_assert_eq(conf_count(r), 150);
		for (uint32_t i = 0; i < 200; i++)
			cr_assert_eq(conf_get_one(r, conf_id(i), v + i, 60000 + i),
				     i < 50 ? ERR_NOT_FOUND : ERR_NONE);
		store_be_stat(r->be, &b);
		cr_assert(b.gets == 150 && b.corrupt == 0 && b.lost == 0);
	}
	free(v);
}

/* Another one on the same folder; closed again. */
static enum err open_second(struct conf_rig *r, const char *owner, const char *backend,
			    struct why *w)
{
	struct conf_rig second = *r;
	struct store_put_item it = { .id = conf_id(1) };
	struct store_put p = { .req.done = conf_done, .items = &it, .n = 1 };
	second.o.ctx = &second;
	second.o.owner = owner;
	second.o.backend = backend;
	struct store_be *be;
	second.opened = second.closed = false;
	cr_assert_eq(store_be_open(&r->loop, &second.o, &be, w), ERR_NONE);
	cr_assert_eq(store_be_put(be, &p), ERR_NOT_READY);
	while (!second.opened)
		loop_run_once(&r->loop, true);
	if (second.open_err) {
		*w = second.why;
		cr_assert_eq(store_be_put(be, &p), ERR_CLOSED);
		cr_assert_eq(store_be_health(be, NULL), STORE_BROKEN);
	}
	store_be_close(be, second_closed, &second);
	while (!second.closed)
		loop_run_once(&r->loop, true);
	return second.open_err;
}

/* Case 29. */
CONFORM(case_029_two_owners_one_folder)
{
	uint8_t *v = conf_bytes(9, 100);
	struct why w = { 0 };
	const char *other = strcmp(r->row->backend, "log") == 0 ? "file" : "log";
	r->o.owner = "first";
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_str_eq(store_be_owner(r->be), "first");
	cr_assert_eq(conf_put_one(r, conf_id(1), v, 100), ERR_NONE);
	cr_assert_eq(open_second(r, "first", r->row->backend, &w), ERR_DIRECTORY_IN_USE);
	cr_assert(w.text[0]);
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 100), ERR_NONE);
	conf_close(r);
	w = (struct why){ 0 };
	cr_assert_eq(open_second(r, "second", r->row->backend, &w), ERR_DIRECTORY_IN_USE);
	cr_assert(strstr(w.text, "first") && strstr(w.text, "second"));
	w = (struct why){ 0 };
	cr_assert_eq(open_second(r, NULL, other, &w), ERR_CONFLICT);
	cr_assert(strstr(w.text, r->row->backend));
	r->o.owner = NULL;
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_str_eq(store_be_owner(r->be), "first");
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 100), ERR_NONE);
	free(v);
}

/* Case 31: what was deleted stays so, over restarts; a late delete of a version leaves a newer one. */
CONFORM(case_031_deleted_stays_deleted)
{
	uint8_t *v = conf_bytes(10, 9000);
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (int round = 0; round < 4; round++) {
		struct store_id old = conf_id(1), new = conf_id(1);
		old.version = 10 + (uint64_t)round;
		new.version = old.version + 1;
		cr_assert_eq(conf_put_one(r, old, v, 9000), ERR_NONE);
		cr_assert_eq(conf_put_one(r, new, v + 1, 8000), ERR_NONE);
		cr_assert_eq(conf_del_one(r, old), ERR_NONE);
		if (round & 1) {
			conf_close(r);
			cr_assert_eq(conf_open(r), ERR_NONE);
		}
		cr_assert_eq(conf_get_one(r, old, v, 9000), ERR_NOT_FOUND);
		cr_assert_eq(conf_get_one(r, new, v + 1, 8000), ERR_NONE);
		cr_assert_eq(conf_del_one(r, new), ERR_NONE);
		cr_assert_eq(conf_put_one(r, old, v + 2, 700),
			     ERR_NONE); /* again, as something else */
		cr_assert_eq(conf_del_one(r, old), ERR_NONE);
	}
	conf_close(r);
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_count(r), 0);
	free(v);
}

/* ---- room ---- */

struct evictions {
	bool told[4096], gone[4096];
	uint32_t n_told, n_gone, n_kept;
	uint32_t keep_every; /* 0: none */
	bool refuse;
};

static uint32_t number_of(const struct store_id *id)
{
	char key[32] = { 0 };
	memcpy(key, id->key.p, id->key.n);
	return (uint32_t)strtoul(key + 2, NULL, 10);
}

static void tell(struct conf_rig *r, struct store_eviction *ev)
{
	struct evictions *e = r->arg;
	cr_assert(ev->n > 0);
	for (uint32_t i = 0; i < ev->n; i++) {
		uint32_t k = number_of(&ev->items[i].id);
		cr_assert(!e->gone[k], "told of what is gone");
		ev->items[i].keep = e->keep_every && k % e->keep_every == 0;
		e->told[k] = !ev->items[i].keep;
		e->n_told += !ev->items[i].keep;
		e->n_kept += ev->items[i].keep;
	}
	store_be_evict_done(r->be, ev, !e->refuse);
}

static void note_gone(struct conf_rig *r, const struct store_eviction *ev)
{
	struct evictions *e = r->arg;
	for (uint32_t i = 0; i < ev->n; i++) {
		uint32_t k = number_of(&ev->items[i].id);
		cr_assert_neq(ev->items[i].gone, ev->items[i].keep);
		e->gone[k] = ev->items[i].gone;
		e->n_gone += ev->items[i].gone;
	}
}

static void check_room(struct conf_rig *r)
{
	struct store_stat s;
	store_be_stat(r->be, &s);
	cr_assert(s.bytes_used <= s.bytes_limit, "%llu of %llu",
		  (unsigned long long)s.bytes_used, (unsigned long long)s.bytes_limit);
}

/* Case 27: three times the limit: never above it, no put refused; who is told is gone, who is not is there. */
static void three_times(struct conf_rig *r, uint32_t keep_every)
{
	struct evictions *e = calloc(1, sizeof(*e));
	uint8_t *v = conf_bytes(11, 120000);
	e->keep_every = keep_every;
	r->arg = e;
	r->on_evict = tell;
	r->on_evicted = note_gone;
	r->o.limit_bytes = 16 << 20;
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 450; i += 15) {
		struct store_put_item it[15];
		for (uint32_t k = 0; k < 15; k++) {
			it[k] = (struct store_put_item){ .id = conf_id(i + k),
							 .p = v + (i + k) % 100,
							 .n = 119000 };
			it[k].sum = obj_sum(it[k].p, 119000, NULL);
		}
		conf_put(r, it, 15);
		for (uint32_t k = 0; k < 15; k++)
			cr_assert_eq(it[k].err, ERR_NONE, "%u: %s", i + k, err_name(it[k].err));
		check_room(r);
	}
	cr_assert(e->n_gone > 200, "%u went", e->n_gone);
	cr_assert(!keep_every || e->n_kept > 0);
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 450; i++) {
			enum err want = e->gone[i] ? ERR_NOT_FOUND : ERR_NONE;
			enum err got = conf_get_one(r, conf_id(i), v + i % 100, 119000);
			/* one that is told and not gone yet may go at any time */
			if (!e->gone[i] && e->told[i])
				continue;
			cr_assert_eq(got, want, "%u: %s, told %d", i, err_name(got),
				     e->told[i]);
		}
		conf_close(r);
		cr_assert_eq(conf_open(r), ERR_NONE);
		check_room(r);
	}
	conf_close(r);
	free(e);
	free(v);
}

CONFORM(case_027_three_times_the_limit)
{
	three_times(r, 0);
}

CONFORM(who_must_stay_is_moved)
{
	three_times(r, 25);
}

CONFORM(least_recently_used_goes_first)
{
	struct evictions *e = calloc(1, sizeof(*e));
	uint8_t *v = conf_bytes(12, 60000);
	r->arg = e;
	r->on_evict = tell;
	r->on_evicted = note_gone;
	r->o.limit_bytes = 16 << 20;
	r->o.order = STORE_LRU;
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 600; i++) {
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 59000), ERR_NONE);
		if (i >= 3)
			cr_assert_eq(conf_get_one(r, conf_id(3), v, 59000), ERR_NONE, "at %u",
				     i);
	}
	cr_assert(e->n_gone > 200 && !e->gone[3]);
	conf_close(r);
	free(e);
	free(v);
}

/* Nothing may go: puts end, in time, and the health says so; when something may again they go on. */
CONFORM(a_refused_eviction_ends_puts_in_time)
{
	struct evictions *e = calloc(1, sizeof(*e));
	struct why w = { 0 };
	uint8_t *v = conf_bytes(13, 60000);
	uint32_t i = 0;
	enum err last = ERR_NONE;
	e->refuse = true;
	r->arg = e;
	r->on_evict = tell;
	r->o.limit_bytes = 16 << 20;
	r->o.put_wait_ms = 300;
	cr_assert_eq(conf_open(r), ERR_NONE);
	while (last == ERR_NONE && i < 600)
		last = conf_put_one(r, conf_id(i++), v, 59000);
	cr_assert_eq(last, ERR_NO_SPACE);
	cr_assert_eq(conf_get_one(r, conf_id(0), v, 59000), ERR_NONE);
	cr_assert_eq(conf_del_one(r, conf_id(1)), ERR_NONE);
	check_room(r);
	e->refuse = false;
	r->o.put_wait_ms = 10000;
	cr_assert_eq(conf_put_one(r, conf_id(700), v, 59000), ERR_NONE);
	store_be_health(r->be, &w);
	conf_close(r);
	r->o.order = STORE_EVICT_NONE; /* nothing ever goes */
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (last = ERR_NONE, i = 1000; last == ERR_NONE && i < 1600; i++)
		last = conf_put_one(r, conf_id(i), v, 59000);
	cr_assert_eq(last, ERR_NO_SPACE);
	cr_assert_eq(store_be_health(r->be, &w), STORE_FULL);
	cr_assert(w.text[0]);
	struct store_put_item big = { .id = conf_id(5000),
				      .p = v,
				      .n = 64 << 20 }; /* not looked at */
	conf_put(r, &big, 1);
	cr_assert_eq(big.err, ERR_TOO_LARGE);
	conf_close(r);
	free(e);
	free(v);
}

CONFORM(objects_have_a_limit_too)
{
	struct evictions *e = calloc(1, sizeof(*e));
	struct store_stat s;
	uint8_t *v = conf_bytes(14, 60000);
	r->arg = e;
	r->on_evict = tell;
	r->on_evicted = note_gone;
	r->o.limit_objects = 200;
	r->o.limit_bytes = 16 << 20;
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 500; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 30000), ERR_NONE, "at %u", i);
	store_be_stat(r->be, &s);
	cr_assert(s.objects <= 200 && e->n_gone >= 300);
	conf_close(r);
	free(e);
	free(v);
}

/* Others fill the file system: room is made, as at the limit. */
CONFORM(a_full_file_system_is_no_error)
{
	struct evictions *e = calloc(1, sizeof(*e));
	struct store_stat s;
	uint8_t *v = conf_bytes(19, 60000);
	if (!r->row->in_memory) {
		free(e);
		free(v);
		return;
	}
	r->arg = e;
	r->on_evict = tell;
	r->on_evicted = note_gone;
	r->o.limit_bytes = 32 << 20;
	cr_assert_eq(conf_open(r), ERR_NONE);
	for (uint32_t i = 0; i < 50; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 59000), ERR_NONE);
	disk_cut_space(r->disk, 8 << 20);
	for (uint32_t i = 50; i < 300; i++)
		cr_assert_eq(conf_put_one(r, conf_id(i), v, 59000), ERR_NONE, "at %u", i);
	store_be_stat(r->be, &s);
	cr_assert(s.bytes_used <= 8 << 20 && e->n_gone > 100);
	cr_assert_eq(conf_get_one(r, conf_id(299), v, 59000), ERR_NONE);
	conf_close(r);
	free(e);
	free(v);
}

/* ---- many at once, bounds, the end ---- */

struct many {
	struct store_put put;
	struct store_get get;
	struct store_put_item p;
	struct store_get_item g;
	uint8_t *to;
};

CONFORM(many_requests_at_once)
{
	enum { N = 200 };
	struct many *m = calloc(N, sizeof(*m));
	uint8_t *v = conf_bytes(15, 70000);
	cr_assert_eq(conf_open(r), ERR_NONE);
	uint32_t want = r->n_done;
	for (uint32_t i = 0; i < N; i++, want++) {
		m[i].p = (struct store_put_item){ .id = conf_id(i), .p = v + i, .n = 66000 };
		m[i].p.sum = obj_sum(m[i].p.p, 66000, NULL);
		m[i].put =
			(struct store_put){ .req.done = conf_done, .items = &m[i].p, .n = 1 };
		cr_assert_eq(store_be_put(r->be, &m[i].put), ERR_NONE);
	}
	conf_wait(r, want);
	for (uint32_t i = 0; i < N; i++, want++) {
		m[i].to = conf_bytes(0, 66000);
		m[i].g = (struct store_get_item){
			.id = conf_id(i), .n = STORE_WHOLE, .to = m[i].to, .room = 66000
		};
		m[i].get =
			(struct store_get){ .req.done = conf_done, .items = &m[i].g, .n = 1 };
		cr_assert_eq(store_be_get(r->be, &m[i].get), ERR_NONE);
	}
	conf_wait(r, want);
	for (uint32_t i = 0; i < N; i++) {
		cr_assert_eq(m[i].p.err, ERR_NONE);
		cr_assert(m[i].g.err == ERR_NONE && memcmp(m[i].to, v + i, 66000) == 0);
		free(m[i].to);
	}
	free(m);
	free(v);
}

CONFORM(bounds_and_the_end)
{
	struct store_put_item it[10] = { 0 };
	struct store_put p[10];
	struct store_has_item hi = { .id = conf_id(1) };
	struct store_has h = { .req.done = conf_done, .items = &hi, .n = 0 };
	struct store_scan s = { .req.done = conf_done, .max_items = 0 };
	uint8_t *v = conf_bytes(16, 4096);
	uint32_t n = 0;
	r->o.queue = 4;
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(store_be_exists(r->be, &h), ERR_INVALID_PARAMS);
	cr_assert_eq(store_be_scan(r->be, &s), ERR_INVALID_PARAMS);
	cr_assert(!conf_has(r, &hi.id));
	for (uint32_t i = 0; i < 10; i++) {
		it[i] = (struct store_put_item){
			.id = conf_id(i), .p = v, .n = 100, .sum = obj_sum(v, 100, NULL)
		};
		p[i] = (struct store_put){ .req.done = conf_done, .items = &it[i], .n = 1 };
		enum err e = store_be_put(r->be, &p[i]);
		cr_assert_eq(e, i < 4 ? ERR_NONE : ERR_BUSY); /* B1 */
		n += e == ERR_NONE;
	}
	/* closed with work inside: it ends, all of it */
	struct store_be *be = r->be;
	uint32_t want = r->n_done + n;
	store_be_close(be, second_closed, r);
	cr_assert_eq(store_be_put(be, &p[9]), ERR_SHUTTING_DOWN);
	cr_assert_eq(store_be_health(be, NULL), STORE_CLOSING);
	r->be = NULL;
	while (!r->closed)
		loop_run_once(&r->loop, true);
	cr_assert_eq(r->n_done, want);
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_count(r), 4);
	cr_assert(conf_has(r, &hi.id));
	free(v);
}

/* ---- a real folder ---- */

static bool newest_file(const char *dir, const char *begins, char *out, size_t size)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	bool found = false;
	while (d && (e = readdir(d)))
		if (strncmp(e->d_name, begins, strlen(begins)) == 0 && e->d_name[0] != '.') {
			snprintf(out, size, "%.300s/%.90s", dir, e->d_name);
			found = true;
		}
	if (d)
		closedir(d);
	return found;
}

/* Case 23: a file is removed beneath a running owner. */
CONFORM(case_023_a_file_removed_underneath)
{
	char path[400], a[400], b[400];
	struct store_stat s;
	uint8_t *v = conf_bytes(17, 5000);
	if (r->row->in_memory)
		return;
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_put_one(r, conf_id(1), v, 5000), ERR_NONE);
	if (strcmp(r->row->backend, "log") == 0) {
		cr_assert(newest_file(r->dir, "seg-", path, sizeof(path)));
	} else { /* the only one in its folders */
		DIR *d = opendir(r->dir);
		struct dirent *e;
		while ((e = readdir(d)))
			if (strlen(e->d_name) == 2 && e->d_name[0] != '.')
				snprintf(a, sizeof(a), "%s/%.2s", r->dir, e->d_name);
		closedir(d);
		cr_assert(newest_file(a, "", b, sizeof(b)) &&
			  newest_file(b, "", path, sizeof(path)));
	}
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 5000), ERR_NOT_FOUND);
	struct store_id id = conf_id(1);
	cr_assert(!conf_has(r, &id) && conf_count(r) == 0);
	store_be_stat(r->be, &s);
	cr_assert_eq(s.lost, 1);
	/* it takes objects, this one too, and keeps them */
	cr_assert_eq(conf_put_one(r, conf_id(2), v, 4000), ERR_NONE);
	cr_assert_eq(conf_put_one(r, conf_id(1), v, 5000), ERR_NONE);
	conf_close(r);
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 5000), ERR_NONE);
	cr_assert_eq(conf_get_one(r, conf_id(2), v, 4000), ERR_NONE);
	free(v);
}

/* Names that are not ours stay, counted. */
CONFORM(what_is_not_ours_is_not_touched)
{
	char path[200];
	struct store_stat s;
	if (r->row->in_memory)
		return;
	cr_assert_eq(conf_open(r), ERR_NONE);
	conf_close(r);
	snprintf(path, sizeof(path), "%s/letter.txt", r->dir);
	FILE *f = fopen(path, "w");
	cr_assert(f && fputs("dear", f) >= 0 && fclose(f) == 0);
	snprintf(path, sizeof(path), "%s/seg-00000000000000ff.log", r->dir);
	f = fopen(path, "w");
	for (int i = 0; i < 3000; i++)
		cr_assert(fputs("not a segment", f) >= 0);
	cr_assert_eq(fclose(f), 0);
	cr_assert_eq(conf_open(r), ERR_NONE);
	store_be_stat(r->be, &s);
	cr_assert(s.unknown >= 2 && s.objects == 0);
	cr_assert_eq(access(path, F_OK), 0);
}

/* Links and folders that are not there: a clear refusal. */
CONFORM(a_folder_must_be_one)
{
	char link[200];
	if (r->row->in_memory)
		return;
	snprintf(link, sizeof(link), "%s/link", r->dir);
	cr_assert_eq(symlink("/tmp", link), 0);
	r->o.dir = link;
	cr_assert_neq(conf_open(r), ERR_NONE);
	cr_assert(strstr(r->why.text, "link"), "%s", r->why.text);
	r->o.dir = "/nowhere/at/all";
	r->why = (struct why){ 0 };
	cr_assert_neq(conf_open(r), ERR_NONE);
	cr_assert(strstr(r->why.text, "/nowhere/at/all"), "%s", r->why.text);
	r->o.dir = "relative";
	r->why = (struct why){ 0 };
	cr_assert_eq(conf_open(r), ERR_INVALID_PARAMS);
}

/* Case 26: writes that take long hold nothing else up. */
static unsigned ticks;
static struct conf_rig *ticking;
static void on_tick(struct timer *t)
{
	ticks++;
	timer_start(&ticking->loop, t, loop_now_ns(&ticking->loop) + 5 * NS_PER_MS, on_tick);
}

CONFORM(case_026_slow_writes_delay_no_beat)
{
	struct timer t = { 0 };
	uint8_t *v = conf_bytes(18, 5000);
	if (!r->row->in_memory)
		return;
	cr_assert_eq(conf_open(r), ERR_NONE);
	cr_assert_eq(conf_put_one(r, conf_id(1), v, 5000), ERR_NONE);
	disk_cut_slow(r->disk, 300);
	struct store_put_item it = {
		.id = conf_id(2), .p = v, .n = 4000, .sum = obj_sum(v, 4000, NULL)
	};
	struct store_put p = { .req.done = conf_done, .items = &it, .n = 1 };
	ticks = 0;
	ticking = r;
	timer_start(&r->loop, &t, 0, on_tick);
	uint32_t want = r->n_done + 1;
	cr_assert_eq(store_be_put(r->be, &p), ERR_NONE);
	uint64_t start = loop_now_ns(&r->loop);
	cr_assert_eq(conf_get_one(r, conf_id(1), v, 5000), ERR_NONE); /* n_done rises by it */
	cr_assert(loop_now_ns(&r->loop) - start < 250 * NS_PER_MS,
		  "a get waits for a slow put");
	conf_wait(r, want + 1);
	cr_assert(ticks > 20, "%u ticks in 300 ms", ticks);
	timer_stop(&r->loop, &t);
	disk_cut_slow(r->disk, 0);
	cr_assert_eq(it.err, ERR_NONE);
	free(v);
}

/* ---- by themselves ---- */

Test(store, none_refuses, .timeout = 20)
{
	static const struct conf_row none = { .name = "none", .backend = "none" };
	struct conf_rig r;
	uint8_t *v = conf_bytes(1, 10);
	conf_init(&r, &none);
	cr_assert_eq(conf_open(&r), ERR_NONE);
	cr_assert_eq(conf_put_one(&r, conf_id(1), v, 10), ERR_UNSUPPORTED);
	cr_assert_eq(conf_get_one(&r, conf_id(1), v, 10), ERR_NOT_FOUND);
	cr_assert_eq(conf_del_one(&r, conf_id(1)), ERR_NONE);
	cr_assert_eq(conf_count(&r), 0);
	cr_assert(!r.be->caps->durable);
	conf_fini(&r);
	free(v);
	NO_LEAKS();
}

Test(store, faults_strike_as_armed, .timeout = 20)
{
	static const struct conf_row row = { .name = "f", .backend = "log", .in_memory = true };
	struct conf_rig r;
	struct store_fault *f;
	uint8_t *v = conf_bytes(1, 100);
	conf_init(&r, &row);
	cr_assert_eq(conf_open(&r), ERR_NONE);
	cr_assert_eq(store_fault_new(r.be, &f), ERR_NONE);
	r.be = store_fault_be(f);
	const struct store_fault_row io = {
		.op = STORE_FAULT_PUT, .skip = 1, .count = 1, .err = ERR_IO
	};
	const struct store_fault_row lost = {
		.op = STORE_FAULT_PUT, .skip = 2, .count = 1, .err = ERR_IO, .before = true
	};
	const struct store_fault_row late = { .op = STORE_FAULT_GET,
					      .count = 1,
					      .delay_ms = 60 };
	const struct store_fault_row busy = {
		.op = STORE_FAULT_DELETE, .count = 1, .err = ERR_BUSY, .refuse = true
	};
	cr_assert(store_fault_arm(f, &io) && store_fault_arm(f, &lost) &&
		  store_fault_arm(f, &late) && store_fault_arm(f, &busy));
	cr_assert_eq(conf_put_one(&r, conf_id(1), v, 100), ERR_NONE);
	cr_assert_eq(conf_put_one(&r, conf_id(2), v, 100), ERR_IO);
	cr_assert_eq(conf_put_one(&r, conf_id(3), v, 100), ERR_IO);
	uint64_t start = loop_now_ns(&r.loop);
	cr_assert_eq(conf_get_one(&r, conf_id(2), v, 100), ERR_NONE); /* it was stored */
	cr_assert(loop_now_ns(&r.loop) - start >= 60 * NS_PER_MS);
	cr_assert_eq(conf_get_one(&r, conf_id(3), v, 100), ERR_NOT_FOUND);
	struct store_del_item di = { .id = conf_id(1) };
	struct store_del d = { .req.done = conf_done, .items = &di, .n = 1 };
	cr_assert_eq(store_be_delete(r.be, &d), ERR_BUSY);
	cr_assert_eq(conf_del_one(&r, conf_id(1)), ERR_NONE);
	cr_assert(store_fault_hits(f) == 4 && store_fault_seen(f, STORE_FAULT_PUT) == 3);
	conf_fini(&r);
	free(v);
	NO_LEAKS();
}

Test(store, options_out_of_range_are_refused, .timeout = 20)
{
	static const struct conf_row row = { .name = "f", .backend = "log", .in_memory = true };
	struct conf_rig r;
	conf_init(&r, &row);
	const struct store_opts good = r.o;
	struct {
		const char *word;
		struct store_opts o;
	} bad[8];
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i].o = good;
	bad[0].word = "backend", bad[0].o.backend = "tape";
	bad[1].word = "watermark", bad[1].o.high_pct = 80, bad[1].o.low_pct = 80;
	bad[2].word = "segment", bad[2].o.segment_bytes = 4096;
	bad[3].word = "limit", bad[3].o.limit_bytes = 1 << 20;
	bad[4].word = "owner", bad[4].o.owner = "a/b";
	bad[5].word = "readers", bad[5].o.readers = 65;
	bad[6].word = "folder", bad[6].o.fs = NULL, bad[6].o.dir = NULL;
	bad[7].word = "depth", bad[7].o.depth = 2000;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		r.o = bad[i].o;
		r.why = (struct why){ 0 };
		cr_assert_eq(conf_open(&r), ERR_INVALID_PARAMS, "%s", bad[i].word);
		cr_assert(strstr(r.why.text, bad[i].word), "%s: %s", bad[i].word, r.why.text);
	}
	conf_fini(&r);
	NO_LEAKS();
}

Test(store, texts_of_ids, .timeout = 20)
{
	char text[STORE_ID_TEXT_MAX];
	uint8_t room[64 + 1024], all[256];
	struct store_id id = { BYTES_STR("a.b"), BYTES_STR("kv/x y"), 0xabc }, back;
	cr_assert_eq(store_id_text(&id, text), strlen(text));
	cr_assert_str_eq(text, "a.b/kv%2Fx%20y/0000000000000abc");
	cr_assert_eq(store_id_of_text(text, room, &back), ERR_NONE);
	cr_assert(store_id_equal(&id, &back));
	for (unsigned i = 0; i < 256; i++)
		all[i] = (uint8_t)i;
	id.key = BYTES(all, 256);
	store_id_text(&id, text);
	cr_assert(store_id_of_text(text, room, &back) == ERR_NONE &&
		  store_id_equal(&id, &back));
	static const char *const bad[] = { "",
					   "a/b",
					   "a/b/1",
					   "a//0000000000000001",
					   "/b/0000000000000001",
					   "a/b/000000000000000g",
					   "a/b/0000000000000ABC",
					   "a/b/0000000000000000",
					   "a/b%2f/0000000000000001",
					   "a/%62/0000000000000001",
					   "a/b%/0000000000000001",
					   "a/b c/0000000000000001",
					   "a/b/c/0000000000000001" };
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		cr_assert_eq(store_id_of_text(bad[i], room, &back), ERR_INVALID_PARAMS, "%s",
			     bad[i]);
	NO_LEAKS();
}
