/* SPDX-License-Identifier: Apache-2.0 */
/* pml_snapshot.h: the session's snapshots (stc_snap.c) behind a handle that may go before them. */
#include "store.h"

#include <string.h>

struct pml_snapshot {
	struct guard *guard;
	struct stc_snap *snap;
	struct pml_snapshot_opts o; /* format: of ours */
	char format[PML_FORMAT_MAX + 1];
};

static int bad(struct pml_error *err, const char *what)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "snapshot", "%s", what);
}

static int no_memory(struct pml_error *err)
{
	return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "snapshot", "no memory for a snapshot");
}

/* ---- the handle ---- */

static int snapshot_new(struct pml *p, const struct pml_snapshot_opts *in,
			struct pml_snapshot **out, struct pml_error *err)
{
	struct pml_snapshot_opts o;
	bool good = sdk_opts(&o, sizeof(o), in);
	for (size_t i = 0; good && i < ARRAY_LEN(o.reserved); i++)
		good = !o.reserved[i];
	if (!good)
		return bad(err,
			   "pml_snapshot_opts: size is not set; use PML_SNAPSHOT_OPTS_INIT");
	size_t n = o.format ? strlen(o.format) : 0;
	if (n > PML_FORMAT_MAX)
		return bad(err, "format: at most 64 bytes");
	struct pml_snapshot *s = calloc(1, sizeof(*s));
	if (!s || stc_snap_new(&s->snap) != ERR_NONE) {
		free(s);
		return no_memory(err);
	}
	s->guard = guard_ref(p->guard);
	s->o = o;
	if (n)
		memcpy(s->format, o.format, n);
	s->o.format = s->format;
	*out = s;
	return PML_ERR_NONE;
}

int pml_snapshot_close(struct pml_snapshot *s)
{
	if (!s)
		return PML_ERR_NONE;
	if (!guard_ok(s->guard))
		return PML_ERR_FORKED;
	stc_snap_shut(s->snap);
	stc_snap_unref(s->snap);
	guard_unref(s->guard);
	free(s);
	return PML_ERR_NONE;
}

/* Its handle, which stays until guard_leave. */
static int enter(struct pml_snapshot *s, struct pml **p, struct pml_error *err)
{
	if (!s)
		return bad(err, "the snapshot is NULL");
	return sdk_enter(s->guard, p, err);
}

/* ---- opening ---- */

/* opens: the snapshot is the operation's; it is closed when there is none. */
static int start_page(struct pml *p, struct pml_snapshot *s, bool opens,
		      const struct pml_item *items, size_t n, uint32_t deadline_ms,
		      struct pml_cq *cq, void *user, struct pml_op **out, struct pml_error *err)
{
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	get.deadline_ms = deadline_ms;
	get.lease_ms = s->o.lease_ms;
	get.format = s->format;
	struct sop_wish w = { .kind = STC_SNAPSHOT,
			      .items = items,
			      .n = n,
			      .get = &get,
			      .snap = s->snap,
			      .opens = opens ? s : NULL,
			      .missing_ok = s->o.missing_ok };
	return sop_start(p, &w, cq, user, out, err);
}

int pml_snapshot_open_start(struct pml *p, const struct pml_item *items, size_t n,
			    const struct pml_snapshot_opts *o, struct pml_cq *cq, void *user,
			    struct pml_op **out, struct pml_error *err)
{
	struct pml_snapshot *s = NULL;
	int e = sdk_usable(p, err);
	if (e == PML_ERR_NONE)
		e = snapshot_new(p, o, &s, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(s);
	return start_page(p, s, true, items, n, s->o.deadline_ms, cq, user, out, err);
}

int pml_op_snapshot(struct pml_op *op, struct pml_snapshot **out)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	if (!op_over(op))
		return PML_ERR_BUSY;
	if (!out || !op->store || op->store->call->kind != STC_SNAPSHOT)
		return PML_ERR_INVALID_PARAMS;
	if (op->error.code != PML_ERR_NONE)
		return op->error.code;
	if (!op->store->opened)
		return PML_ERR_INVALID_PARAMS;
	*out = TAKE(op->store->opened);
	return PML_ERR_NONE;
}

/* Time that is left of a plain form's, for its next page. */
static uint32_t left_ms(uint64_t until_ns)
{
	uint64_t ms = clock_left_ms(until_ns, clock_real.now_ns(&clock_real));
	return (uint32_t)MIN_OF(MAX_OF(ms, (uint64_t)1), (uint64_t)UINT32_MAX);
}

static int add_page(struct pml_snapshot *s, const struct pml_item *items, size_t n,
		    uint32_t deadline_ms, struct pml_error *err)
{
	struct pml *p = NULL;
	struct pml_op *op = NULL;
	int e = enter(s, &p, err);
	if (e != PML_ERR_NONE)
		return e;
	e = start_page(p, s, false, items, n, deadline_ms, NULL, NULL, &op, err);
	guard_leave(s->guard);
	return sop_finish(e, op, NULL, err);
}

static int add_all(struct pml_snapshot *s, const struct pml_item *items, size_t n,
		   uint32_t deadline_ms, struct pml_error *err)
{
	struct pml *p = NULL;
	size_t stride = 0;
	int e = enter(s, &p, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(p);
	uint32_t ms = deadline_ms ? deadline_ms : p->deadline_ms;
	guard_leave(s->guard);
	uint64_t until = clock_after_ms(clock_real.now_ns(&clock_real), ms);
	if (n && !items)
		return bad(err, "items are NULL and have a number");
	if (n)
		memcpy(&stride, items, sizeof(stride)); /* judged by the first page */
	for (size_t at = 0; at < n && e == PML_ERR_NONE; at += PML_ITEMS_MAX) {
		const void *page = (const char *)items + at * stride;
		e = add_page(s, page, MIN_OF(n - at, (size_t)PML_ITEMS_MAX), left_ms(until),
			     err);
	}
	return e;
}

int pml_snapshot_open(struct pml *p, const struct pml_item *items, size_t n,
		      const struct pml_snapshot_opts *o, struct pml_snapshot **out,
		      struct pml_error *err)
{
	struct pml_snapshot *s = NULL;
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!out)
		return bad(err, "out is NULL");
	e = snapshot_new(p, o, &s, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(s);
	e = add_all(s, items, n, s->o.deadline_ms, err);
	if (e == PML_ERR_NONE)
		*out = s;
	else
		(void)pml_snapshot_close(s);
	return e;
}

int pml_snapshot_add(struct pml_snapshot *s, const struct pml_item *items, size_t n,
		     const struct pml_call_opts *o, struct pml_error *err)
{
	struct pml_call_opts opts;
	int e = sdk_call_opts(&opts, o, err);
	return e == PML_ERR_NONE ? add_all(s, items, n, opts.deadline_ms, err) : e;
}

int pml_snapshot_add_start(struct pml_snapshot *s, const struct pml_item *items, size_t n,
			   const struct pml_call_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err)
{
	struct pml_call_opts opts;
	struct pml *p = NULL;
	int e = sdk_call_opts(&opts, o, err);
	if (e == PML_ERR_NONE)
		e = enter(s, &p, err);
	if (e != PML_ERR_NONE)
		return e;
	e = start_page(p, s, false, items, n, opts.deadline_ms, cq, user, out, err);
	guard_leave(s->guard);
	return e;
}

/* ---- looking ---- */

size_t pml_snapshot_n(struct pml_snapshot *s)
{
	return s && guard_ok(s->guard) ? stc_snap_n(s->snap) : 0;
}

int pml_snapshot_find(struct pml_snapshot *s, const void *key, size_t key_bytes,
		      struct pml_result *out)
{
	struct stc_found f;
	if (!s || !key || key_bytes < 1 || key_bytes > PML_KEY_MAX)
		return PML_ERR_INVALID_PARAMS;
	if (!guard_ok(s->guard))
		return PML_ERR_FORKED;
	if (!stc_snap_find(s->snap, BYTES(key, key_bytes), &f))
		return PML_ERR_NOT_FOUND;
	struct pml_result r = { .size = sizeof(r),
				.code = f.lost ? PML_ERR_LEASE_LOST : PML_ERR_NONE,
				.version = f.version,
				.object_bytes = f.size };
	int e = out ? sop_give(out, &r, sizeof(r)) : PML_ERR_NONE;
	return e != PML_ERR_NONE ? e : r.code;
}

/* ---- reading ---- */

int pml_snapshot_get_start(struct pml_snapshot *s, const struct pml_item *items, size_t n,
			   const struct pml_get_opts *o, struct pml_cq *cq, void *user,
			   struct pml_op **out, struct pml_error *err)
{
	struct pml *p = NULL;
	int e = enter(s, &p, err);
	if (e != PML_ERR_NONE)
		return e;
	struct sop_wish w = {
		.kind = STC_GET, .items = items, .n = n, .get = o, .snap = s->snap
	};
	e = sop_start(p, &w, cq, user, out, err);
	guard_leave(s->guard);
	return e;
}

static int get_one(struct pml_snapshot *s, const void *key, size_t key_bytes,
		   struct pml_item it, size_t *n_out, const struct pml_get_opts *o,
		   struct pml_error *err)
{
	struct pml_op *op = NULL;
	it.key = key;
	it.key_bytes = key_bytes;
	int e = pml_snapshot_get_start(s, &it, 1, o, NULL, NULL, &op, err);
	return e == PML_ERR_NONE ? sop_get_finish(op, n_out, err) : e;
}

int pml_snapshot_get(struct pml_snapshot *s, const void *key, size_t key_bytes, void *buf,
		     size_t cap, size_t *n_out, const struct pml_get_opts *o,
		     struct pml_error *err)
{
	struct pml_buf b = { buf, cap };
	struct pml_item it = PML_ITEM_INIT;
	it.bufs = &b;
	it.n_bufs = 1;
	return get_one(s, key, key_bytes, it, n_out, o, err);
}

int pml_snapshot_get_ranges(struct pml_snapshot *s, const void *key, size_t key_bytes,
			    const struct pml_range *ranges, size_t n_ranges,
			    const struct pml_buf *bufs, size_t n_bufs,
			    const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_item it = PML_ITEM_INIT;
	it.ranges = ranges;
	it.n_ranges = n_ranges;
	it.bufs = bufs;
	it.n_bufs = n_bufs;
	if (n_ranges == 0)
		return bad(err, "no ranges: pml_snapshot_get reads whole objects");
	return get_one(s, key, key_bytes, it, NULL, o, err);
}

int pml_snapshot_get_regions(struct pml_snapshot *s, const void *key, size_t key_bytes,
			     const struct pml_nd_region *regions, size_t n_regions,
			     const struct pml_get_opts *o, struct pml_error *err)
{
	struct pml_item it = PML_ITEM_INIT;
	it.regions = regions;
	it.n_regions = n_regions;
	if (n_regions == 0)
		return bad(err, "no regions: pml_snapshot_get reads whole objects");
	return get_one(s, key, key_bytes, it, NULL, o, err);
}
