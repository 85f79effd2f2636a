/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's items and options into a call: checked, and all but the payload copied. */
#include "regions.h"
#include "store.h"

#include <string.h>

struct make {
	struct sop *s;
	struct pml *p;
	const struct sop_wish *w;
	struct pml_put_opts put;
	struct pml_get_opts get;
	struct pml_remove_opts remove;
	struct pml_list_opts list;
	struct pml_error *err;
	size_t item; /* that is being taken */
	int e;
};

static int refuse(struct make *m, const char *what)
{
	m->e = sdk_error(m->err, ERR_INVALID_PARAMS, 0, NULL, "start", "%s", what);
	return m->e;
}

static int no_memory(struct make *m)
{
	m->e = sdk_error(m->err, ERR_NO_MEMORY, 0, NULL, "start", "no memory for an operation");
	return m->e;
}

static void *keep(struct make *m, const void *p, size_t n)
{
	void *copy = n ? arena_alloc(&m->s->mem, n) : NULL;
	if (n && !copy) {
		no_memory(m);
		return NULL;
	}
	if (n)
		memcpy(copy, p, n);
	return copy;
}

/* A key or the like. One that is too long is not copied: its length alone is looked at, and refused. */
static struct bytes keep_bytes(struct make *m, const void *p, size_t n)
{
	if (n > PML_KEY_MAX)
		return BYTES(NULL, n);
	if (n && !p) {
		refuse(m, "a key, group or prefix is NULL and has a length");
		return BYTES(NULL, 0);
	}
	return BYTES(keep(m, p, n), n);
}

static struct bytes keep_text(struct make *m, const char *s, size_t max, const char *what)
{
	size_t n = s ? strlen(s) : 0;
	if (n > max)
		refuse(m, what);
	return n <= max ? BYTES(keep(m, s, n), n) : BYTES(NULL, 0);
}

/* ---- options ---- */

static bool zeros(const bool *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (b[i])
			return false;
	return true;
}

static void take_put(struct make *m)
{
	struct stc_call *c = m->s->call;
	const struct pml_put_opts *o = &m->put;
	if (!sdk_opts(&m->put, sizeof(m->put), m->w->put) || o->reserved2 ||
	    !zeros(o->reserved, ARRAY_LEN(o->reserved))) {
		refuse(m, "pml_put_opts: size is not set; use PML_PUT_OPTS_INIT");
		return;
	}
	if (o->n_preferred > 16 || (o->n_preferred && !o->preferred)) {
		refuse(m, "preferred: at most 16 holders");
		return;
	}
	struct bytes *v =
		o->n_preferred ? arena_alloc(&m->s->mem, o->n_preferred * sizeof(*v)) : NULL;
	if (o->n_preferred && !v) {
		no_memory(m);
		return;
	}
	for (uint32_t i = 0; i < o->n_preferred; i++)
		v[i] = keep_text(m, o->preferred[i], 64,
				 "preferred: a holder's id has at most 64 characters");
	c->put.preferred = v;
	c->put.n_preferred = o->n_preferred;
	c->put.upsert = m->w->upsert;
	c->put.if_absent = o->if_absent;
	c->put.durable = o->durable;
	c->put.hard_pin = o->hard_pin;
	c->put.soft_pin_ms = o->soft_pin_ms;
	c->put.replica_num = o->replica_num;
	c->put.replicas_required = o->replicas_required;
	c->put.format = keep_text(m, o->format, PML_FORMAT_MAX, "format: at most 64 bytes");
}

static void take_get(struct make *m)
{
	struct stc_call *c = m->s->call;
	const struct pml_get_opts *o = &m->get;
	if (!sdk_opts(&m->get, sizeof(m->get), m->w->get) || o->reserved ||
	    o->verify > PML_VERIFY_ALWAYS || !zeros(o->reserved2, ARRAY_LEN(o->reserved2))) {
		refuse(m, "pml_get_opts: size is not set, or verify is none of its values; "
			  "use PML_GET_OPTS_INIT");
		return;
	}
	c->get.verify = o->verify == PML_VERIFY_ALWAYS ||
			(o->verify == PML_VERIFY_SETTING && m->p->set.verify == 1);
	c->get.lease_ms = o->lease_ms;
	c->get.recovering_as_miss = o->recovering_as_miss;
	c->get.format = keep_text(m, o->format, PML_FORMAT_MAX, "format: at most 64 bytes");
}

static void take_remove(struct make *m)
{
	if (!sdk_opts(&m->remove, sizeof(m->remove), m->w->remove) ||
	    !zeros(m->remove.reserved, ARRAY_LEN(m->remove.reserved)))
		refuse(m, "pml_remove_opts: size is not set; use PML_REMOVE_OPTS_INIT");
	m->s->call->force = m->remove.force;
}

static void take_list(struct make *m)
{
	struct stc_call *c = m->s->call;
	const struct pml_list_opts *o = &m->list;
	if (!sdk_opts(&m->list, sizeof(m->list), m->w->list) || o->reserved) {
		refuse(m, "pml_list_opts: size is not set; use PML_LIST_OPTS_INIT");
		return;
	}
	if (o->limit > PML_ITEMS_MAX || o->tier > 2 || o->cursor_bytes > 64) {
		refuse(m, "list: limit is 0..4096, tier 0..2, a cursor at most 64 bytes");
		return;
	}
	c->list.cursor = keep_bytes(m, o->cursor, o->cursor_bytes);
	c->list.limit = o->limit;
	c->list.tier = (uint8_t)o->tier;
}

static uint32_t take_opts(struct make *m)
{
	switch (m->w->kind) {
	case STC_PUT:
		take_put(m);
		return m->put.deadline_ms;
	case STC_REMOVE:
	case STC_REMOVE_RANGE:
		take_remove(m);
		return m->remove.deadline_ms;
	case STC_LIST:
		take_list(m);
		return m->list.deadline_ms;
	case STC_GET:
	case STC_EXISTS:
	case STC_STAT:
	case STC_QUERY:
	case STC_SNAPSHOT:
	case STC_EXPLAIN:
	case STC_HOLDERS:
	case STC_TASK_START:
	case STC_TASKS:
	case STC_TASK_CANCEL:
		take_get(m);
		return m->get.deadline_ms;
	case STC_RELEASE:
		break;
	}
	return 0;
}

/* ---- items ---- */

static void take_regions(struct make *m, const struct pml_item *in, struct stc_item *out)
{
	struct regions_out r = { 0 };
	struct why why = { 0 };
	bool put = m->w->kind == STC_PUT;
	if (in->n_bufs || in->n_ranges || !in->regions || in->n_regions > SOP_PIECES_MAX) {
		refuse(m,
		       "an item has regions, at most 65536 and none of them NULL, or buffers "
		       "and ranges");
		return;
	}
	enum err e = regions_count(in->regions, in->n_regions, put, &r, &why);
	if (e == ERR_NONE) {
		r.ranges = arena_alloc(&m->s->mem, r.n_ranges * sizeof(*r.ranges));
		r.bufs = arena_alloc(&m->s->mem, (r.n_bufs + 1) * sizeof(*r.bufs));
		e = r.ranges && r.bufs ? regions_fill(in->regions, in->n_regions, put, &r, &why)
				       : ERR_NO_MEMORY;
	}
	if (e != ERR_NONE) {
		m->e = sdk_error(m->err, e, 0, NULL, "start", "item %zu: %s", m->item,
				 why.err ? why.text : "no memory for an operation");
		return;
	}
	out->bufs = r.bufs;
	out->n_bufs = r.n_bufs;
	if (!put) { /* a put's are one, from the first byte on */
		out->ranges = r.ranges;
		out->n_ranges = r.n_ranges;
	}
	m->s->total += put ? r.bytes : 0;
}

static void take_pieces(struct make *m, const struct pml_item *in, struct stc_item *out)
{
	static_assert(sizeof(struct pml_buf) == sizeof(struct stc_buf), "the same");
	static_assert(sizeof(struct pml_range) == sizeof(struct stc_range), "the same");
	if (in->n_bufs > SOP_PIECES_MAX || in->n_ranges > SOP_PIECES_MAX ||
	    (in->n_bufs && !in->bufs) || (in->n_ranges && !in->ranges)) {
		refuse(m, "an item has at most 65536 buffers and as many ranges");
		return;
	}
	uint64_t sum = 0;
	for (size_t i = 0; i < in->n_bufs; i++) {
		const struct pml_buf *b = &in->bufs[i];
		if (!b->p && b->n)
			refuse(m, "a buffer is NULL and has a length");
		else if (b->n > UINTPTR_MAX - (uintptr_t)b->p || b->n > REGION_BYTES_MAX - sum)
			refuse(m, "a buffer ends behind the end of memory");
		else
			sum += b->n;
	}
	m->s->total += m->w->kind == STC_PUT ? sum : 0;
	out->bufs = keep(m, in->bufs, in->n_bufs * sizeof(in->bufs[0]));
	out->ranges = keep(m, in->ranges, in->n_ranges * sizeof(in->ranges[0]));
	out->n_bufs = (uint32_t)in->n_bufs;
	out->n_ranges = (uint32_t)in->n_ranges;
}

static void hold_buffers(struct make *m, const struct stc_item *it)
{
	struct why why = { 0 };
	if (m->e != PML_ERR_NONE)
		return;
	enum err e =
		buffers_hold(m->p, m->s, it->bufs, it->n_bufs, m->w->kind == STC_GET, &why);
	if (e != ERR_NONE)
		m->e = sdk_error(m->err, e, 0, NULL, "start", "item %zu: %s", m->item,
				 why.err ? why.text : "no memory for an operation");
}

static void take_item(struct make *m, const struct pml_item *in, struct stc_item *out)
{
	const struct pml_put_opts *o = &m->put;
	bool put = m->w->kind == STC_PUT;
	out->key = keep_bytes(m, in->key, in->key_bytes);
	out->if_version = in->version;
	if (put || m->w->kind == STC_GET) {
		if (in->n_regions)
			take_regions(m, in, out);
		else
			take_pieces(m, in, out);
		hold_buffers(m, out);
	}
	if (!put)
		return;
	if (!in->version)
		out->if_version = o->if_version;
	bool own = in->require_key_bytes > 0;
	out->require_key = keep_bytes(m, own ? in->require_key : o->require_key,
				      own ? in->require_key_bytes : o->require_key_bytes);
	out->require_version = own ? in->require_version : o->require_version;
	own = in->group_bytes > 0;
	out->group = keep_bytes(m, own ? in->group : o->group,
				own ? in->group_bytes : o->group_bytes);
	out->group_size = own ? in->group_size : o->group_size;
}

/* Item i of the caller's array, whose items may be of another release's size. */
static bool item_at(const struct sop_wish *w, size_t i, struct pml_item *out)
{
	size_t stride;
	memcpy(&stride, w->items, sizeof(stride));
	if (stride < sizeof(size_t) || stride > 4096)
		return false;
	return sdk_opts(out, sizeof(*out), (const char *)w->items + i * stride) &&
	       !out->reserved;
}

/* Of a task: its keys are the items. */
static void take_task(struct make *m)
{
	struct stc_call *c = m->s->call;
	const struct sop_task *t = m->w->task;
	struct bytes *keys = m->w->n ? arena_alloc(&m->s->mem, m->w->n * sizeof(*keys)) : NULL;
	if (m->w->n && !keys) {
		no_memory(m);
		return;
	}
	c->admin = t->admin;
	c->task.kind = t->kind;
	c->task.replica_num = t->replica_num;
	c->task.from = keep_text(m, t->from, 64, "a holder's id has at most 64 characters");
	c->task.to = keep_text(m, t->to, 64, "a holder's id has at most 64 characters");
	c->task.ids = (struct u64s){ keep(m, t->ids, t->n_ids * sizeof(t->ids[0])), t->n_ids };
	c->task.keys = (struct bytes_list){ keys, m->w->n };
	for (size_t i = 0; m->e == PML_ERR_NONE && i < m->w->n; i++) {
		struct pml_item in;
		if (!item_at(m->w, i, &in))
			refuse(m, "pml_item: size is not set; use PML_ITEM_INIT");
		else if (in.key_bytes < 1 || in.key_bytes > PML_KEY_MAX)
			refuse(m, "a key has 1..1024 bytes");
		else
			keys[i] = keep_bytes(m, in.key, in.key_bytes);
	}
}

int sop_make(struct pml *p, const struct sop_wish *w, struct sop **out, uint32_t *deadline_ms,
	     struct pml_error *err)
{
	struct make m = { .p = p, .w = w, .err = err };
	struct pml_item in;
	/* what has no keys has no items */
	bool bare = w->task && (w->kind != STC_TASK_START || w->task->kind == STC_TASK_DRAIN);
	if (!bare && (!w->items || w->n < 1 || w->n > PML_ITEMS_MAX))
		return refuse(&m, "a call has 1 to 4096 items");
	struct sop *s = calloc(1, sizeof(*s));
	if (!s)
		return no_memory(&m);
	m.s = s;
	s->mem = ARENA_INIT(SOP_BYTES);
	if (stc_call_new(w->kind, w->task ? 1 : (uint32_t)w->n, &s->call) != ERR_NONE)
		no_memory(&m);
	else
		*deadline_ms = take_opts(&m);
	if (w->task && m.e == PML_ERR_NONE)
		take_task(&m);
	for (size_t i = 0; m.e == PML_ERR_NONE && !w->task && i < w->n; i++) {
		m.item = i;
		if (item_at(w, i, &in))
			take_item(&m, &in, &s->call->items[i]);
		else
			refuse(&m, "pml_item: size is not set; use PML_ITEM_INIT");
	}
	if (m.e != PML_ERR_NONE) {
		sop_free(s);
		return m.e;
	}
	s->opened = w->opens;
	s->call->missing_ok = w->missing_ok;
	s->call->snap = w->snap ? stc_snap_ref(w->snap) : NULL;
	*out = s;
	return m.e;
}
