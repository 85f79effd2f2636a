/* SPDX-License-Identifier: Apache-2.0 */
#include "plans.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char *const side_names[2] = { "source", "target" };

static bool same(const struct map_node *n, const void *key)
{
	return memcmp(container_of(n, const struct wpl_plan, node)->id, key, 16) == 0;
}

static uint64_t hash(const struct wpl_plans *t, const uint8_t *id)
{
	return XXH3_64bits_withSeed(id, 16, t->seed);
}

void wpl_plans_init(struct wpl_plans *t, struct budget *mem, struct wpl_shelf *shelf,
		    uint32_t plans_max, uint64_t seed)
{
	*t = (struct wpl_plans){ .mem = mem, .shelf = shelf, .seed = seed };
	map_init(&t->plans, plans_max);
	list_init(&t->old);
	list_init(&t->tenants);
}

void wpl_plans_fini(struct wpl_plans *t)
{
	while (!list_empty(&t->old))
		wpl_plan_drop(t, list_entry(t->old.next, struct wpl_plan, old));
	map_fini(&t->plans);
}

/* ---- tenants ---- */

static struct wpl_tenant *tenant_of(struct wpl_plans *t, const char *name)
{
	list_for_each (it, &t->tenants) {
		struct wpl_tenant *x = list_entry(it, struct wpl_tenant, node);
		if (strcmp(x->name, name) == 0)
			return x;
	}
	struct wpl_tenant *x = calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	snprintf(x->name, sizeof(x->name), "%s", name);
	list_push_back(&t->tenants, &x->node);
	return x;
}

static void tenant_leave(struct wpl_tenant *x)
{
	if (x->n_plans)
		return;
	assert(x->bytes == 0);
	list_del(&x->node);
	free(x);
}

/* ---- memory ---- */

enum err wpl_plan_charge(struct wpl_plans *t, struct wpl_plan *p, uint64_t n,
			 enum wpl_limit *limit)
{
	*limit = WPL_L_TENANT_MEMORY;
	if (n > t->tenant_bytes_max || p->tenant->bytes > t->tenant_bytes_max - n)
		return ERR_BUSY;
	*limit = WPL_L_MEMORY;
	wpl_shelf_make_room(t->shelf, n);
	if (budget_take(t->mem, n) != ERR_NONE)
		return ERR_BUSY;
	p->tenant->bytes += n;
	return ERR_NONE;
}

void wpl_plan_discharge(struct wpl_plans *t, struct wpl_plan *p, uint64_t n)
{
	assert(p->tenant->bytes >= n);
	p->tenant->bytes -= n;
	budget_give(t->mem, n);
}

static void text_free(struct wpl_plans *t, struct wpl_plan *p, struct wpl_input *in)
{
	if (!in->text)
		return;
	wpl_shelf_bury(t->shelf,
		       (struct wpl_remains){ .text = TAKE(in->text), .bytes = in->bytes });
	free(TAKE(in->have));
	t->text_bytes -= in->bytes;
	wpl_plan_discharge(t, p, in->bytes);
}

static enum err text_alloc(struct wpl_plans *t, struct wpl_plan *p, struct wpl_input *in,
			   enum wpl_limit *limit)
{
	*limit = WPL_L_MEMORY;
	if (t->text_bytes + in->bytes > t->mem->limit / 2)
		return ERR_BUSY; /* P3 */
	enum err e = wpl_plan_charge(t, p, in->bytes, limit);
	if (e)
		return e;
	uint64_t parts = (in->bytes + t->part_bytes - 1) / t->part_bytes;
	in->have = calloc((parts + 63) / 64, sizeof(*in->have));
	in->text = malloc(in->bytes);
	if (in->have && in->text) {
		t->text_bytes += in->bytes;
		in->missing = in->bytes;
		return ERR_NONE;
	}
	free(TAKE(in->have));
	free(TAKE(in->text));
	wpl_plan_discharge(t, p, in->bytes);
	return ERR_NO_MEMORY;
}

/* ---- opening ---- */

static bool is_hex(struct bytes d)
{
	for (size_t i = 0; i < d.n; i++)
		if (!(d.p[i] >= '0' && d.p[i] <= '9') && !(d.p[i] >= 'a' && d.p[i] <= 'f'))
			return false;
	return d.n == 0 || d.n == SHA_HEX;
}

static enum err check_ask(const struct wpl_plans *t, const struct wpl_ask *a, struct why *why)
{
	for (int i = 0; i < 2; i++) {
		if (a->in[i].form < WPL_WIRE || a->in[i].form > (i ? WPL_PARTS : WPL_STORED))
			return why_set(why, ERR_INVALID_PARAMS, "%s.form: %u; 1 to %u",
				       side_names[i], a->in[i].form,
				       i ? WPL_PARTS : WPL_STORED);
		if (!is_hex(a->in[i].digest))
			return why_set(why, ERR_INVALID_PARAMS,
				       "%s.digest: 64 lower-case hex digits, or none",
				       side_names[i]);
		if (!a->in[i].digest.n && !a->in[i].bytes)
			return why_set(why, ERR_INVALID_PARAMS,
				       "%s: neither a digest nor a text", side_names[i]);
		uint64_t most =
			MIN_OF(a->text_max, MIN_OF(t->mem->limit / 2, t->tenant_bytes_max));
		if (a->in[i].bytes > most)
			return why_set(why, ERR_TOO_LARGE,
				       "%s: a text of %llu bytes; at most %llu "
				       "(planner.text_max, memory, tenant_memory)",
				       side_names[i], (unsigned long long)a->in[i].bytes,
				       (unsigned long long)most);
	}
	return ERR_NONE;
}

/* Known by digest, or room for its text. */
static enum err open_input(struct wpl_plans *t, struct wpl_plan *p, const struct wpl_ask *a,
			   int side, enum wpl_limit *limit, struct why *why)
{
	struct wpl_input *in = &p->in[side];
	in->form = a->in[side].form;
	in->bytes = a->in[side].bytes;
	in->has_digest = a->in[side].digest.n > 0;
	if (in->has_digest) {
		memcpy(in->digest, a->in[side].digest.p, SHA_HEX);
		in->doc = wpl_shelf_get(t->shelf, p->tenant->name, in->digest);
	}
	if (in->doc && !in->doc->stored != (in->form != WPL_STORED)) {
		wpl_doc_unref(t->shelf, TAKE(in->doc));
		return why_set(why, ERR_INVALID_PARAMS, "%s.form: that digest is of a %s",
			       side_names[side],
			       in->form == WPL_STORED ? "placement" : "stored manifest");
	}
	if (in->doc)
		return ERR_NONE;
	if (!in->bytes)
		return why_set(why, ERR_NOT_FOUND,
			       "%s: no text with the digest %.*s is known here; send it",
			       side_names[side], SHA_HEX, in->digest);
	return text_alloc(t, p, in, limit);
}

static bool same_ask(const struct wpl_plan *p, const struct wpl_ask *a)
{
	for (int i = 0; i < 2; i++) {
		struct bytes d = a->in[i].digest;
		if (p->in[i].form != a->in[i].form || p->in[i].bytes != a->in[i].bytes ||
		    p->in[i].has_digest != (d.n > 0) ||
		    (d.n && memcmp(p->in[i].digest, d.p, SHA_HEX) != 0))
			return false;
	}
	return p->local == a->local && p->n_participant == a->participant.n &&
	       (!a->participant.n ||
		memcmp(p->participant, a->participant.p, a->participant.n) == 0) &&
	       p->max_regions == a->max_regions &&
	       p->max_segments_per_region == a->max_segments_per_region &&
	       p->max_total_segments == a->max_total_segments;
}

static struct wpl_plan *plan_new(struct wpl_plans *t, const struct wpl_ask *a, uint64_t now_ns)
{
	struct wpl_plan *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->tenant = tenant_of(t, a->tenant);
	if (a->participant.n)
		p->participant = malloc(a->participant.n);
	if (!p->tenant || (a->participant.n && !p->participant)) {
		if (p->tenant)
			tenant_leave(p->tenant);
		free(p->participant);
		free(p);
		return NULL;
	}
	memcpy(p->id, a->id, 16);
	p->tenant->n_plans++;
	p->local = a->local;
	p->n_participant = a->participant.n;
	if (a->participant.n)
		memcpy(p->participant, a->participant.p, a->participant.n);
	p->max_regions = a->max_regions;
	p->max_segments_per_region = a->max_segments_per_region;
	p->max_total_segments = a->max_total_segments;
	p->touched_ns = now_ns;
	return p;
}

/* It is in no table. */
static void plan_free_(struct wpl_plans *t, struct wpl_plan *p)
{
	assert(!p->run && p->reserved == 0);
	for (int i = 0; i < 2; i++) {
		text_free(t, p, &p->in[i]);
		wpl_doc_unref(t->shelf, p->in[i].doc);
	}
	wpl_shelf_bury(t->shelf, (struct wpl_remains){ .text = p->text.p, .bytes = p->text.n });
	wpl_plan_discharge(t, p, p->charged);
	p->tenant->n_plans--;
	tenant_leave(p->tenant);
	free(p->participant);
	free(p);
}

/* Room for one more plan of that tenant? */
static enum err admit(struct wpl_plans *t, const struct wpl_ask *a, enum wpl_limit *limit)
{
	*limit = WPL_L_PLANS;
	if (t->plans.n >= t->plans.limit)
		return ERR_BUSY;
	*limit = WPL_L_TENANT_PLANS;
	list_for_each (it, &t->tenants) {
		const struct wpl_tenant *x = list_entry(it, struct wpl_tenant, node);
		if (strcmp(x->name, a->tenant) == 0 && x->n_plans >= t->tenant_plans_max)
			return ERR_BUSY;
	}
	return ERR_NONE;
}

static enum err busy(const struct wpl_plans *t, enum err e, enum wpl_limit limit,
		     struct why *why)
{
	static const char *const names[WPL_L_N] = { "planner.memory", "planner.tenant_memory",
						    "planner.plans_max",
						    "planner.tenant_plans_max" };
	if (e == ERR_BUSY)
		return why_set(why, e,
			       "%s is used up (%zu plans open, %llu of %llu bytes held)",
			       names[limit], t->plans.n, (unsigned long long)t->mem->used,
			       (unsigned long long)t->mem->limit);
	return why_set(why, e, "%s", err_text(e));
}

enum err wpl_plan_open(struct wpl_plans *t, const struct wpl_ask *a, uint64_t now_ns,
		       struct wpl_plan **out, enum wpl_limit *limit, struct why *why)
{
	struct map_node *n = map_find(&t->plans, hash(t, a->id), same, a->id);
	if (n) {
		struct wpl_plan *p = container_of(n, struct wpl_plan, node);
		if (strcmp(p->tenant->name, a->tenant) != 0 || !same_ask(p, a))
			return why_set(why, ERR_EXISTS, "another plan has this id");
		p->touched_ns = now_ns;
		*out = p;
		return ERR_NONE;
	}
	enum err e = check_ask(t, a, why);
	if (e)
		return e;
	e = admit(t, a, limit);
	if (e)
		return busy(t, e, *limit, why);
	struct wpl_plan *p = plan_new(t, a, now_ns);
	if (!p)
		return busy(t, ERR_NO_MEMORY, 0, why);
	for (int i = 0; i < 2 && !e; i++)
		e = open_input(t, p, a, i, limit, why);
	if (!e)
		e = map_insert(&t->plans, &p->node, hash(t, p->id));
	if (e) {
		plan_free_(t, p);
		return busy(t, e, *limit, why);
	}
	list_push_back(&t->old, &p->old);
	*out = p;
	return ERR_NONE;
}

struct wpl_plan *wpl_plan_find(struct wpl_plans *t, const uint8_t id[16], const char *tenant,
			       uint64_t now_ns)
{
	struct map_node *n = map_find(&t->plans, hash(t, id), same, id);
	struct wpl_plan *p = n ? container_of(n, struct wpl_plan, node) : NULL;
	if (!p || strcmp(p->tenant->name, tenant) != 0)
		return NULL;
	p->touched_ns = now_ns;
	list_del(&p->old);
	list_push_back(&t->old, &p->old);
	return p;
}

/* ---- pieces ---- */

enum err wpl_plan_part(struct wpl_plans *t, struct wpl_plan *p, uint32_t side, uint64_t offset,
		       struct bytes data, struct why *why)
{
	if (side < 1 || side > 2)
		return why_set(why, ERR_INVALID_PARAMS, "side: %u; 1 is source, 2 is target",
			       side);
	struct wpl_input *in = &p->in[side - 1];
	uint64_t i = offset / t->part_bytes;
	if (offset % t->part_bytes || offset >= in->bytes ||
	    data.n != MIN_OF(in->bytes - offset, t->part_bytes))
		return why_set(
			why, ERR_INVALID_PARAMS,
			"offset: %llu, %zu bytes; the %s's text has %llu bytes, in pieces "
			"of %u",
			(unsigned long long)offset, data.n, side_names[side - 1],
			(unsigned long long)in->bytes, t->part_bytes);
	/* read already, known by digest, or sent before */
	if (!in->text || p->state != WPL_OPEN || (in->have[i / 64] >> i % 64 & 1))
		return ERR_NONE;
	memcpy(in->text + offset, data.p, data.n);
	in->have[i / 64] |= 1ull << i % 64;
	in->missing -= data.n;
	return ERR_NONE;
}

enum err wpl_plan_whole(const struct wpl_plans *t, const struct wpl_plan *p, struct why *why)
{
	for (int s = 0; s < 2; s++) {
		const struct wpl_input *in = &p->in[s];
		if (!in->text || !in->missing)
			continue;
		uint64_t i = 0;
		while (in->have[i / 64] >> i % 64 & 1)
			i++;
		return why_set(
			why, ERR_CONFLICT,
			"%s: %llu bytes of the text have not come, from byte %llu on; send "
			"them, then run it",
			side_names[s], (unsigned long long)in->missing,
			(unsigned long long)(i * t->part_bytes));
	}
	return ERR_NONE;
}

void wpl_plan_read(struct wpl_plans *t, struct wpl_plan *p, uint32_t side, struct wpl_doc *doc)
{
	struct wpl_input *in = &p->in[side - 1];
	assert(!in->doc);
	text_free(t, p, in);
	in->doc = doc;
}

/* ---- the end ---- */

void wpl_plan_settle(struct wpl_plans *t, struct wpl_plan *p)
{
	for (int i = 0; i < 2; i++) {
		text_free(t, p, &p->in[i]);
		wpl_doc_unref(t->shelf, TAKE(p->in[i].doc));
	}
}

void wpl_plan_drop(struct wpl_plans *t, struct wpl_plan *p)
{
	map_remove(&t->plans, &p->node);
	list_del(&p->old);
	plan_free_(t, p);
}

struct wpl_plan *wpl_plan_idle(struct wpl_plans *t, uint64_t before_ns)
{
	list_for_each (it, &t->old) {
		struct wpl_plan *p = list_entry(it, struct wpl_plan, old);
		if (p->touched_ns >= before_ns)
			return NULL;
		if (!p->run)
			return p;
	}
	return NULL;
}

void wpl_plans_check(const struct wpl_plans *t)
{
	uint64_t bytes = 0, texts = 0, by_tenant = 0;
	size_t n = 0;
	map_check(&t->plans);
	list_for_each (it, &t->old) {
		const struct wpl_plan *p = list_entry(it, struct wpl_plan, old);
		for (int i = 0; i < 2; i++)
			texts += p->in[i].text ? p->in[i].bytes : 0;
		bytes += p->reserved + p->charged;
		n++;
	}
	list_for_each (it, &t->tenants) {
		const struct wpl_tenant *x = list_entry(it, struct wpl_tenant, node);
		assert(x->n_plans > 0 && x->n_plans <= t->tenant_plans_max);
		by_tenant += x->bytes;
	}
	assert(n == t->plans.n && texts == t->text_bytes && by_tenant == bytes + texts);
	assert(t->mem->used >= by_tenant + t->shelf->bytes);
}
