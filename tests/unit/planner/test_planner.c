/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's model without a loop: the shelf of documents, and the table of plans. */
#include "services/weight-planner/plans.h"
#include "tests/support/layout.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct world {
	struct budget mem;
	struct wpl_shelf shelf;
	struct wpl_plans plans;
};

static void world_init(struct world *w, uint64_t mem, uint64_t cache, size_t docs)
{
	w->mem = BUDGET_INIT(mem);
	wpl_shelf_init(&w->shelf, &w->mem, cache, docs, 7);
	wpl_plans_init(&w->plans, &w->mem, &w->shelf, 8, 7);
	w->plans.tenant_plans_max = 3;
	w->plans.tenant_bytes_max = mem;
	w->plans.part_bytes = 4096;
}

static void world_fini(struct world *w)
{
	wpl_plans_check(&w->plans);
	wpl_shelf_check(&w->shelf);
	wpl_plans_fini(&w->plans);
	wpl_shelf_fini(&w->shelf);
	cr_expect_eq(w->mem.used, 0);
}

/* A document of n tensors, charged as `bytes`. */
static struct wpl_doc *doc(struct world *w, const char *tenant, unsigned n, size_t bytes)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct buf b = BUF_INIT(1 << 20);
	struct reject why;
	struct wpl_doc *d = calloc(1, sizeof(*d));
	layout_text(&b, n, 4, 2);
	cr_assert_eq(place_read(buf_bytes(&b), PLACE_DRAFT, &lim, &why, &d->place), ERR_NONE);
	buf_fini(&b);
	snprintf(d->tenant, sizeof(d->tenant), "%s", tenant);
	d->bytes = bytes;
	cr_assert_eq(budget_take(&w->mem, bytes), ERR_NONE);
	return wpl_shelf_put(&w->shelf, d);
}

static struct wpl_doc *get(struct world *w, const char *tenant, const char digest[SHA_HEX])
{
	struct wpl_doc *d = wpl_shelf_get(&w->shelf, tenant, digest);
	wpl_shelf_check(&w->shelf);
	return d;
}

Test(planner_model, the_longest_unused_goes, .timeout = 10)
{
	struct world w;
	char digest[4][SHA_HEX];
	world_init(&w, 1000, 300, 8);
	for (unsigned i = 0; i < 3; i++) {
		struct wpl_doc *d = doc(&w, "a", i + 1, 100);
		memcpy(digest[i], d->digest, SHA_HEX);
		wpl_doc_unref(&w.shelf, d);
	}
	struct wpl_doc *first = get(&w, "a", digest[0]);
	cr_assert_not_null(first);
	cr_expect_null(get(&w, "b", digest[0]), "another tenant's");
	/* the first is in use: the second is the longest unused */
	struct wpl_doc *d = doc(&w, "a", 4, 100);
	wpl_doc_unref(&w.shelf, d);
	cr_expect_null(get(&w, "a", digest[1]));
	cr_expect_eq(w.shelf.evicted, 1);
	struct wpl_doc *third = get(&w, "a", digest[2]);
	cr_assert_not_null(third);
	wpl_doc_unref(&w.shelf, third);
	wpl_doc_unref(&w.shelf, first);
	wpl_shelf_make_room(&w.shelf, 901);
	cr_expect_eq(w.shelf.bytes, 0, "all had to go");
	world_fini(&w);
	NO_LEAKS();
}

Test(planner_model, equal_documents_are_one, .timeout = 10)
{
	struct world w;
	world_init(&w, 1000, 300, 8);
	struct wpl_doc *a = doc(&w, "a", 1, 100), *b = doc(&w, "a", 1, 100);
	cr_expect_eq(a, b);
	cr_expect_eq(w.mem.used, 100);
	struct wpl_doc *c = doc(&w, "b", 1, 100);
	cr_expect_neq(a, c, "each tenant has its own");
	wpl_doc_unref(&w.shelf, a);
	wpl_doc_unref(&w.shelf, b);
	wpl_doc_unref(&w.shelf, c);
	world_fini(&w);
	NO_LEAKS();
}

Test(planner_model, what_does_not_fit_lives_as_long_as_it_is_used, .timeout = 10)
{
	struct world w;
	world_init(&w, 1000, 300, 1);
	struct wpl_doc *big = doc(&w, "a", 1, 400), *a = doc(&w, "a", 2, 100),
		       *b = doc(&w, "a", 3, 100);
	cr_expect_eq(w.shelf.bytes, 100, "one document is the limit, and it is in use");
	cr_expect_eq(w.mem.used, 600);
	wpl_doc_unref(&w.shelf, big);
	wpl_doc_unref(&w.shelf, b);
	cr_expect_eq(w.mem.used, 100);
	wpl_doc_unref(&w.shelf, a);
	cr_expect_eq(w.mem.used, 100, "kept");
	world_fini(&w);
	NO_LEAKS();
}

static struct wpl_ask ask(const uint8_t *id, const char *tenant, uint64_t source,
			  uint64_t target)
{
	struct wpl_ask a = { .id = id, .tenant = tenant, .text_max = 1 << 20 };
	a.in[0].form = a.in[1].form = WPL_DRAFT;
	a.in[0].bytes = source;
	a.in[1].bytes = target;
	return a;
}

Test(planner_model, pieces_in_any_order, .timeout = 10)
{
	static const uint8_t id[16] = { 1 }, data[4096] = { 5 };
	struct world w;
	struct wpl_plan *p = NULL;
	enum wpl_limit limit;
	struct why why = { 0 };
	world_init(&w, 1 << 20, 0, 8);
	struct wpl_ask a = ask(id, "a", 10000, 3);
	cr_assert_eq(wpl_plan_open(&w.plans, &a, 1, &p, &limit, &why), ERR_NONE);
	cr_expect_eq(w.mem.used, 10003);
	static const uint32_t order[] = { 8192, 0, 8192, 4096, 0 };
	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		size_t n = MIN_OF(10000 - order[i], 4096);
		cr_expect_neq(wpl_plan_whole(&w.plans, p, NULL), ERR_NONE);
		cr_assert_eq(wpl_plan_part(&w.plans, p, 1, order[i], BYTES(data, n), &why),
			     ERR_NONE);
	}
	cr_expect_eq(p->in[0].missing, 0);
	cr_expect_eq(wpl_plan_whole(&w.plans, p, NULL), ERR_CONFLICT, "the target's");
	cr_assert_eq(wpl_plan_part(&w.plans, p, 2, 0, BYTES("abc", 3), &why), ERR_NONE);
	cr_expect_eq(wpl_plan_whole(&w.plans, p, NULL), ERR_NONE);
	cr_expect_eq(wpl_plan_part(&w.plans, p, 2, 4096, BYTES(data, 0), &why),
		     ERR_INVALID_PARAMS);
	cr_expect_eq(wpl_plan_part(&w.plans, p, 0, 0, BYTES(data, 3), &why),
		     ERR_INVALID_PARAMS);
	wpl_plan_settle(&w.plans, p);
	cr_expect_eq(w.mem.used, 0);
	world_fini(&w);
	NO_LEAKS();
}

Test(planner_model, limits_of_plans, .timeout = 10)
{
	struct world w;
	struct wpl_plan *p = NULL;
	enum wpl_limit limit;
	world_init(&w, 1000, 0, 8);
	for (uint8_t i = 0; i < 12; i++) {
		uint8_t id[16] = { i };
		static const char *const who[] = { "a", "b", "c" };
		struct why why = { 0 };
		struct wpl_ask a = ask(id, who[i % 3], 10, 10);
		enum err e = wpl_plan_open(&w.plans, &a, i, &p, &limit, &why);
		cr_expect_eq(e, i < 8 ? ERR_NONE : ERR_BUSY, "%d %s", i, why.text);
		if (e)
			cr_expect_eq(limit, WPL_L_PLANS);
		wpl_plans_check(&w.plans);
	}
	p = wpl_plan_idle(&w.plans, 3);
	cr_assert_not_null(p);
	cr_expect_eq(p->id[0], 0, "the oldest");
	wpl_plan_drop(&w.plans, p);
	uint8_t one[16] = { 1 };
	cr_expect_null(wpl_plan_find(&w.plans, one, "a", 50), "it is b's");
	cr_expect_not_null(wpl_plan_find(&w.plans, one, "b", 50));
	p = wpl_plan_idle(&w.plans, 40);
	cr_assert_not_null(p);
	cr_expect_eq(p->id[0], 2, "the first was touched");
	struct why why = { 0 };
	uint8_t id[16] = { 77 };
	struct wpl_ask a = ask(id, "z", 400, 400);
	cr_expect_eq(wpl_plan_open(&w.plans, &a, 60, &p, &limit, &why), ERR_BUSY);
	cr_expect_eq(limit, WPL_L_MEMORY, "texts take half");
	struct why large = { 0 };
	a = ask(id, "z", 10, 501);
	cr_expect_eq(wpl_plan_open(&w.plans, &a, 60, &p, &limit, &large), ERR_TOO_LARGE);
	cr_expect(strstr(large.text, "at most 500"), "%s", large.text);
	world_fini(&w);
	NO_LEAKS();
}
