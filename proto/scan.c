/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking over values without keeping them, and saying why a walk or a decoder stopped.
 */
#include "proto/wire.h"

#include "proto/head.h"
#include "proto/prim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const type_names[] = {
	[HEAD_CUT] = "cut off", [HEAD_BAD] = "the byte 0xc1", [HEAD_NIL] = "nil",
	[HEAD_BOOL] = "bool",	[HEAD_UINT] = "int",	      [HEAD_INT] = "negative int",
	[HEAD_F32] = "float",	[HEAD_F64] = "float",	      [HEAD_STR] = "str",
	[HEAD_BIN] = "bin",	[HEAD_EXT] = "ext",	      [HEAD_ARRAY] = "array",
	[HEAD_MAP] = "map",
};

/* ---- walking ---- */

struct walk {
	const uint8_t *p, *end;
	size_t left[WIRE_DEPTH_MAX + 1]; /* values still to come at each depth */
	size_t depth;
	size_t values, values_max;
	const char *wrong; /* one phrase */
};

static bool walk_fail(struct walk *w, const char *wrong)
{
	w->wrong = wrong;
	return false;
}

static bool walk_enter(struct walk *w, uint64_t n)
{
	if (n > (size_t)(w->end - w->p))
		return walk_fail(w, "it claims more items than bytes are left");
	if (n == 0)
		return true;
	if (w->depth == WIRE_DEPTH_MAX)
		return walk_fail(w, "it is nested too deep");
	w->left[++w->depth] = n;
	return true;
}

static bool walk_one(struct walk *w)
{
	struct head h;
	if (w->values++ >= w->values_max)
		return walk_fail(w, "there are too many values");
	if (!head_read(w->p, w->end, &h))
		return walk_fail(w, h.type == HEAD_BAD ? "0xc1 begins no value"
						       : "the bytes end inside a value");
	w->p += h.bytes;
	if (h.type == HEAD_ARRAY)
		return walk_enter(w, h.n);
	if (h.type == HEAD_MAP) /* a count is 32 bits: no overflow */
		return walk_enter(w, h.n * 2);
	if (h.type != HEAD_STR && h.type != HEAD_BIN && h.type != HEAD_EXT)
		return true;
	if (h.n > (size_t)(w->end - w->p))
		return walk_fail(w, "it claims more bytes than are left");
	w->p += h.n;
	return true;
}

/* w->left[0] values; on false w->p is near what is wrong. */
static bool walk_all(struct walk *w)
{
	for (;;) {
		while (w->left[w->depth] == 0) {
			if (w->depth == 0)
				return true;
			w->depth--;
		}
		w->left[w->depth]--;
		if (!walk_one(w))
			return false;
	}
}

const uint8_t *wire_skip(const uint8_t *p, const uint8_t *end, size_t n)
{
	struct walk w = { .p = p, .end = end, .left = { n }, .values_max = SIZE_MAX };
	return walk_all(&w) ? w.p : NULL;
}

enum err wire_scan(struct bytes in, size_t n_max, struct why *why)
{
	struct walk w = {
		.p = in.p, .end = in.n ? in.p + in.n : in.p, .left = { 1 }, .values_max = n_max
	};
	if (!walk_all(&w)) {
		enum err e = w.values > n_max ? ERR_TOO_LARGE : ERR_BAD_MESSAGE;
		return why_set(why, e, "at byte %zu of %zu: %s", (size_t)(w.p - in.p), in.n,
			       w.wrong);
	}
	if (w.p != w.end)
		return why_set(why, ERR_BAD_MESSAGE, "%zu bytes follow the value",
			       (size_t)(w.end - w.p));
	return ERR_NONE;
}

/* ---- why a decoder stopped ---- */

/* One field that failed, or one item of it. */
struct fail {
	struct dec *d;
	const struct wire_msg *t;
	const struct wire_field *f;
	const uint8_t *p;
	size_t item; /* SIZE_MAX: the field itself */
};

static void bad(struct fail *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void bad(struct fail *x, const char *fmt, ...)
{
	char text[128], item[32] = "";
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (x->item != SIZE_MAX)
		snprintf(item, sizeof(item), "[%zu]", x->item);
	x->d->err = why_set(x->d->why, ERR_BAD_MESSAGE, "%s.%s%s: %s (at byte %zu)", x->t->name,
			    x->f->name, item, text, (size_t)(x->p - x->d->start));
}

static void bad_int(struct fail *x, const struct head *h, uint64_t top, bool is_signed)
{
	if (h->type == HEAD_INT && !is_signed)
		bad(x, "%" PRId64 ", must not be negative", (int64_t)h->n);
	else
		bad(x, "%" PRIu64 ", at most %" PRIu64, h->n, top);
}

static void bad_run(struct fail *x, const struct head *h, uint64_t max)
{
	if (h->n > max)
		bad(x, "%" PRIu64 " bytes, at most %" PRIu64, h->n, max);
	else
		bad(x, "claims %" PRIu64 " bytes, %zu are left", h->n,
		    (size_t)(x->d->end - x->p) - h->bytes);
}

static void bad_memory(struct fail *x)
{
	const struct arena *a = x->d->arena;
	enum err e = a && a->no_memory ? ERR_NO_MEMORY : ERR_TOO_LARGE;
	x->d->err = why_set(x->d->why, e, "%s.%s: its items need more than the %zu bytes %s",
			    x->t->name, x->f->name, a ? a->limit : 0,
			    e == ERR_NO_MEMORY ? "the heap has" : "allowed");
}

static enum head_type type_of(enum wire_kind k)
{
	switch (k) {
	case WIRE_BOOL:
		return HEAD_BOOL;
	case WIRE_U8:
	case WIRE_U16:
	case WIRE_U32:
	case WIRE_U64:
	case WIRE_I64:
		return HEAD_UINT;
	case WIRE_F64:
		return HEAD_F64;
	case WIRE_STR:
		return HEAD_STR;
	case WIRE_BIN:
	case WIRE_ID16:
		return HEAD_BIN;
	case WIRE_U64S:
	case WIRE_STRS:
	case WIRE_BINS:
	case WIRE_LIST:
	case WIRE_OPT:
		return HEAD_ARRAY;
	}
	return HEAD_BAD;
}

static uint64_t int_top(enum wire_kind k)
{
	switch (k) {
	case WIRE_U8:
		return UINT8_MAX;
	case WIRE_U16:
		return UINT16_MAX;
	case WIRE_U32:
		return UINT32_MAX;
	case WIRE_I64:
		return INT64_MAX;
	default:
		return UINT64_MAX;
	}
}

static void explain_int(struct fail *x, enum wire_kind k, const struct head *h)
{
	bool fits = h->type == HEAD_INT ? k == WIRE_I64 : h->n <= int_top(k);
	if (!fits)
		bad_int(x, h, int_top(k), k == WIRE_I64);
}

/* The head of one value; what it leaves in d->err tells whether it is at fault. */
static void explain_value(struct fail *x, enum wire_kind k, uint64_t max, struct head *h)
{
	enum head_type want = type_of(k);
	bool run = want == HEAD_STR || want == HEAD_BIN;
	if (!head_read(x->p, x->d->end, h))
		bad(x, "%s", h->type == HEAD_CUT ? "the message ends here" : "the byte 0xc1");
	else if (h->type != want && !(want == HEAD_UINT && h->type == HEAD_INT))
		bad(x, "%s where %s belongs", type_names[h->type], wire_kind_name(k));
	else if (want == HEAD_UINT)
		explain_int(x, k, h);
	else if (k == WIRE_ID16 && h->n != 16)
		bad(x, "%" PRIu64 " bytes, must be 16", h->n);
	else if (run && (h->n > max || h->n > (size_t)(x->d->end - x->p) - h->bytes))
		bad_run(x, h, max);
}

static void explain_count(struct fail *x, const struct head *h)
{
	size_t left = (size_t)(x->d->end - x->p) - h->bytes;
	if (h->n > left)
		bad(x, "claims %" PRIu64 " items, %zu bytes are left", h->n, left);
	else if (x->f->kind != WIRE_OPT && h->n > x->f->max)
		bad(x, "%" PRIu64 " items, at most %" PRIu64, h->n, x->f->max);
}

/* The kind of a plain list's items; nested structs told their own story before. */
static bool item_kind(enum wire_kind list, enum wire_kind *out)
{
	if (list == WIRE_U64S)
		*out = WIRE_U64;
	else if (list == WIRE_STRS)
		*out = WIRE_STR;
	else if (list == WIRE_BINS)
		*out = WIRE_BIN;
	else
		return false;
	return true;
}

static void explain_items(struct fail *x, struct head *h)
{
	enum wire_kind k;
	size_t n = h->n;
	if (!item_kind(x->f->kind, &k))
		return;
	x->p += h->bytes;
	for (x->item = 0; x->item < n; x->item++) {
		explain_value(x, k, x->f->each, h);
		if (x->d->err != ERR_NONE)
			return;
		x->p += h->bytes + (k == WIRE_U64 ? 0 : h->n);
	}
}

/* In the decoder's own order; when all of it is in order, memory was what failed. */
static void explain_field(struct fail *x)
{
	struct head h;
	enum err *e = &x->d->err;
	explain_value(x, x->f->kind, x->f->kind == WIRE_ID16 ? 16 : x->f->max, &h);
	if (*e == ERR_NONE)
		explain_count(x, &h);
	if (*e == ERR_NONE)
		explain_items(x, &h);
	if (*e == ERR_NONE)
		bad_memory(x);
}

static void explain_message(struct dec *d, const uint8_t *at, const struct wire_msg *t)
{
	struct head h;
	size_t byte = (size_t)(at - d->start);
	if (!head_read(at, d->end, &h) || h.type != HEAD_ARRAY)
		d->err = why_set(d->why, ERR_BAD_MESSAGE,
				 "%s: %s where its array belongs (at byte %zu)", t->name,
				 type_names[h.type], byte);
	else
		d->err = why_set(d->why, ERR_BAD_MESSAGE,
				 "%s: claims %" PRIu64
				 " fields, %zu bytes are left (at byte %zu)",
				 t->name, h.n, (size_t)(d->end - at) - h.bytes, byte);
}

const uint8_t *wire_fail(struct dec *d, const uint8_t *at, const struct wire_msg *t, size_t i)
{
	struct fail x = { .d = d, .t = t, .p = at, .item = SIZE_MAX };
	if (d->err != ERR_NONE)
		return NULL;
	if (i == SIZE_MAX) {
		explain_message(d, at, t);
	} else if (i == t->n_fields) {
		d->err =
			why_set(d->why, ERR_BAD_MESSAGE,
				"%s: a field of a newer version, behind byte %zu, is malformed",
				t->name, (size_t)(at - d->start));
	} else {
		x.f = &t->fields[i];
		explain_field(&x);
	}
	return NULL;
}

enum err wire_trailing(struct dec *d, const uint8_t *p, const struct wire_msg *t)
{
	return d->err = why_set(d->why, ERR_BAD_MESSAGE, "%s: %zu bytes follow it", t->name,
				(size_t)(d->end - p));
}
