/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that work on any message by its table.
 */
#include "proto/wire.h"

#include <inttypes.h>
#include <string.h>

/* Every struct list_NAME has this shape. */
struct any_list {
	const uint8_t *p;
	size_t n;
};

const char *wire_kind_name(enum wire_kind k)
{
	static const char *const names[] = {
		[WIRE_BOOL] = "bool",	     [WIRE_U8] = "u8",
		[WIRE_U16] = "u16",	     [WIRE_U32] = "u32",
		[WIRE_U64] = "u64",	     [WIRE_I64] = "i64",
		[WIRE_F64] = "f64",	     [WIRE_STR] = "str",
		[WIRE_BIN] = "bin",	     [WIRE_ID16] = "bin of 16 bytes",
		[WIRE_U64S] = "list of u64", [WIRE_STRS] = "list of str",
		[WIRE_BINS] = "list of bin", [WIRE_LIST] = "list",
		[WIRE_OPT] = "array or nil",
	};
	return names[k];
}

/* ---- JSON ---- */

static void json_hex(struct buf *out, const uint8_t *p, size_t n)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t *to = buf_room(out, 2 * n + 2);
	if (!to)
		return;
	to[0] = to[2 * n + 1] = '"';
	for (size_t i = 0; i < n; i++) {
		to[1 + 2 * i] = (uint8_t)digits[p[i] >> 4];
		to[2 + 2 * i] = (uint8_t)digits[p[i] & 15];
	}
	buf_advance(out, 2 * n + 2);
}

/* Bytes that are no printable ASCII go as \u00XX: the output is valid JSON whatever they are. */
static void json_str(struct buf *out, struct bytes s)
{
	buf_put(out, "\"", 1);
	for (size_t i = 0; i < s.n; i++) {
		uint8_t c = s.p[i];
		if (c == '"' || c == '\\')
			buf_put(out, "\\", 1);
		if (c < 0x20 || c > 0x7e)
			buf_printf(out, "\\u%04x", c);
		else
			buf_put(out, &c, 1);
	}
	buf_put(out, "\"", 1);
}

static uint64_t uint_of(enum wire_kind k, const void *v)
{
	switch (k) {
	case WIRE_U8:
		return *(const uint8_t *)v;
	case WIRE_U16:
		return *(const uint16_t *)v;
	case WIRE_U32:
		return *(const uint32_t *)v;
	default:
		return *(const uint64_t *)v;
	}
}

/* JSON has no infinities and no NaN. */
static void json_f64(struct buf *out, double v)
{
	if (__builtin_isfinite(v))
		buf_printf(out, "%.17g", v);
	else
		buf_printf(out, "null");
}

static void json_runs(struct buf *out, const struct bytes_list *l, bool str)
{
	buf_put(out, "[", 1);
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			buf_put(out, ",", 1);
		if (str)
			json_str(out, l->p[i]);
		else
			json_hex(out, l->p[i].p, l->p[i].n);
	}
	buf_put(out, "]", 1);
}

static void json_u64s(struct buf *out, const struct u64s *l)
{
	buf_put(out, "[", 1);
	for (size_t i = 0; i < l->n; i++)
		buf_printf(out, "%s%" PRIu64, i ? "," : "", l->p[i]);
	buf_put(out, "]", 1);
}

static void json_list(struct buf *out, const struct wire_msg *of, const struct any_list *l,
		      uint32_t version)
{
	buf_put(out, "[", 1);
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			buf_put(out, ",", 1);
		wire_json_at(out, of, l->p + i * of->size, version);
	}
	buf_put(out, "]", 1);
}

static void json_opt(struct buf *out, const struct wire_msg *of, const void *m,
		     uint32_t version)
{
	if (m)
		wire_json_at(out, of, m, version);
	else
		buf_printf(out, "null");
}

static void json_value(struct buf *out, const struct wire_field *f, const void *v,
		       uint32_t version)
{
	switch (f->kind) {
	case WIRE_BOOL:
		buf_printf(out, *(const bool *)v ? "true" : "false");
		break;
	case WIRE_U8:
	case WIRE_U16:
	case WIRE_U32:
	case WIRE_U64:
		buf_printf(out, "%" PRIu64, uint_of(f->kind, v));
		break;
	case WIRE_I64:
		buf_printf(out, "%" PRId64, *(const int64_t *)v);
		break;
	case WIRE_F64:
		json_f64(out, *(const double *)v);
		break;
	case WIRE_STR:
		json_str(out, *(const struct bytes *)v);
		break;
	case WIRE_BIN:
		json_hex(out, ((const struct bytes *)v)->p, ((const struct bytes *)v)->n);
		break;
	case WIRE_ID16:
		json_hex(out, v, 16);
		break;
	case WIRE_U64S:
		json_u64s(out, v);
		break;
	case WIRE_STRS:
	case WIRE_BINS:
		json_runs(out, v, f->kind == WIRE_STRS);
		break;
	case WIRE_LIST:
		json_list(out, f->of(), v, version);
		break;
	case WIRE_OPT:
		json_opt(out, f->of(), *(const void *const *)v, version);
		break;
	}
}

/* Recursion is over the tables, whose nesting is fixed. */
void wire_json_at(struct buf *out, const struct wire_msg *t, const void *m, uint32_t version)
{
	buf_put(out, "{", 1);
	for (size_t i = 0; i < t->n_fields && t->fields[i].since <= version; i++) {
		const struct wire_field *f = &t->fields[i];
		buf_printf(out, "%s\"%s\":", i ? "," : "", f->name);
		json_value(out, f, (const uint8_t *)m + f->offset, version);
	}
	buf_put(out, "}", 1);
}

uint32_t wire_newest(const struct wire_msg *t)
{
	uint32_t newest = WIRE_VERSION_MIN;
	for (size_t i = 0; i < t->n_fields; i++) {
		const struct wire_field *f = &t->fields[i];
		newest = MAX_OF(newest, f->since);
		if (f->of)
			newest = MAX_OF(newest, wire_newest(f->of()));
	}
	return newest;
}

/* ---- why it did not encode ---- */

static enum err over(const struct wire_msg *t, const struct wire_field *f, uint64_t n,
		     uint64_t max, const char *unit, struct why *why)
{
	if (n <= max)
		return ERR_NONE;
	return why_set(why, ERR_TOO_LARGE, "%s.%s: %" PRIu64 " %s, at most %" PRIu64, t->name,
		       f->name, n, unit, max);
}

static enum err explain(const struct wire_msg *t, const void *m, struct why *why);

static enum err explain_runs(const struct wire_msg *t, const struct wire_field *f,
			     const struct bytes_list *l, struct why *why)
{
	enum err e = over(t, f, l->n, f->max, "items", why);
	for (size_t i = 0; i < l->n && e == ERR_NONE; i++)
		e = over(t, f, l->p[i].n, f->each, "bytes in an item", why);
	return e;
}

static enum err explain_list(const struct wire_msg *t, const struct wire_field *f,
			     const struct any_list *l, struct why *why)
{
	const struct wire_msg *of = f->of();
	enum err e = over(t, f, l->n, f->max, "items", why);
	for (size_t i = 0; i < l->n && e == ERR_NONE; i++)
		e = explain(of, l->p + i * of->size, why);
	return e;
}

static enum err explain_field(const struct wire_msg *t, const struct wire_field *f,
			      const void *v, struct why *why)
{
	switch (f->kind) {
	case WIRE_STR:
	case WIRE_BIN:
		return over(t, f, ((const struct bytes *)v)->n, f->max, "bytes", why);
	case WIRE_U64S:
		return over(t, f, ((const struct u64s *)v)->n, f->max, "items", why);
	case WIRE_STRS:
	case WIRE_BINS:
		return explain_runs(t, f, v, why);
	case WIRE_LIST:
		return explain_list(t, f, v, why);
	case WIRE_OPT:
		v = *(const void *const *)v;
		return v ? explain(f->of(), v, why) : ERR_NONE;
	default:
		return ERR_NONE;
	}
}

static enum err explain(const struct wire_msg *t, const void *m, struct why *why)
{
	enum err e = ERR_NONE;
	for (size_t i = 0; i < t->n_fields && e == ERR_NONE; i++) {
		const struct wire_field *f = &t->fields[i];
		e = explain_field(t, f, (const uint8_t *)m + f->offset, why);
	}
	return e;
}

enum err wire_explain(const struct wire_msg *t, const void *m, enum err e, struct why *why)
{
	if (e == ERR_TOO_LARGE && explain(t, m, why) != ERR_NONE)
		return e;
	if (e == ERR_TOO_LARGE)
		return why_set(why, e, "%s: larger than its buffer may become", t->name);
	return why_set(why, e, "%s: %s", t->name, err_text(e));
}
