/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include "proto/head.h"

#include <criterion/criterion.h>
#include <msgpack.h>
#include <string.h>

struct any_list {
	const uint8_t *p;
	size_t n;
};

static uint64_t uint_at(enum wire_kind k, const void *v)
{
	uint64_t n = 0;
	size_t bytes = k == WIRE_U8 ? 1 : k == WIRE_U16 ? 2 : k == WIRE_U32 ? 4 : 8;
	memcpy(&n, v, bytes); /* little endian */
	return n;
}

/* ---- msgpack-c's tree against ours ---- */

static void check_uint(const msgpack_object *o, uint64_t v)
{
	cr_assert_eq(o->type, MSGPACK_OBJECT_POSITIVE_INTEGER);
	cr_assert_eq(o->via.u64, v);
}

static void check_run(const msgpack_object *o, struct bytes v, bool str)
{
	cr_assert_eq(o->type, str ? MSGPACK_OBJECT_STR : MSGPACK_OBJECT_BIN);
	cr_assert_eq(str ? o->via.str.size : o->via.bin.size, v.n);
	if (v.n)
		cr_assert_arr_eq(str ? o->via.str.ptr : o->via.bin.ptr, v.p, v.n);
}

static const msgpack_object *check_array(const msgpack_object *o, size_t n)
{
	cr_assert_eq(o->type, MSGPACK_OBJECT_ARRAY);
	cr_assert_eq(o->via.array.size, n);
	return o->via.array.ptr;
}

static void check_message(const struct wire_msg *t, const void *m, const msgpack_object *o);

static void check_list(const struct wire_field *f, const struct any_list *l,
		       const msgpack_object *o)
{
	const msgpack_object *items = check_array(o, l->n);
	for (size_t i = 0; i < l->n; i++)
		check_message(f->of(), l->p + i * f->of()->size, &items[i]);
}

static void check_plain_list(const struct wire_field *f, const void *v, const msgpack_object *o)
{
	const struct any_list *l = v;
	const msgpack_object *items = check_array(o, l->n);
	for (size_t i = 0; i < l->n; i++)
		if (f->kind == WIRE_U64S)
			check_uint(&items[i], ((const uint64_t *)(const void *)l->p)[i]);
		else
			check_run(&items[i], ((const struct bytes *)(const void *)l->p)[i],
				  f->kind == WIRE_STRS);
}

static void check_i64(const msgpack_object *o, int64_t v)
{
	cr_assert_eq(o->type,
		     v < 0 ? MSGPACK_OBJECT_NEGATIVE_INTEGER : MSGPACK_OBJECT_POSITIVE_INTEGER);
	cr_assert_eq(o->via.i64, v);
}

static void check_bits(double a, double b)
{
	uint64_t x, y;
	memcpy(&x, &a, 8);
	memcpy(&y, &b, 8);
	cr_assert_eq(x, y);
}

static void check_field(const struct wire_field *f, const void *v, const msgpack_object *o)
{
	switch (f->kind) {
	case WIRE_BOOL:
		cr_assert_eq(o->type, MSGPACK_OBJECT_BOOLEAN);
		cr_assert_eq(o->via.boolean, *(const bool *)v);
		break;
	case WIRE_U8:
	case WIRE_U16:
	case WIRE_U32:
	case WIRE_U64:
		check_uint(o, uint_at(f->kind, v));
		break;
	case WIRE_I64:
		check_i64(o, *(const int64_t *)v);
		break;
	case WIRE_F64:
		cr_assert_eq(o->type, MSGPACK_OBJECT_FLOAT64);
		check_bits(o->via.f64, *(const double *)v);
		break;
	case WIRE_STR:
	case WIRE_BIN:
		check_run(o, *(const struct bytes *)v, f->kind == WIRE_STR);
		break;
	case WIRE_ID16:
		check_run(o, BYTES(v, 16), false);
		break;
	case WIRE_U64S:
	case WIRE_STRS:
	case WIRE_BINS:
		check_plain_list(f, v, o);
		break;
	case WIRE_LIST:
		check_list(f, v, o);
		break;
	case WIRE_OPT:
		v = *(const void *const *)v;
		if (v)
			check_message(f->of(), v, o);
		else
			cr_assert_eq(o->type, MSGPACK_OBJECT_NIL);
		break;
	}
}

static void check_message(const struct wire_msg *t, const void *m, const msgpack_object *o)
{
	const msgpack_object *items = check_array(o, t->n_fields);
	for (size_t i = 0; i < t->n_fields; i++)
		check_field(&t->fields[i], (const uint8_t *)m + t->fields[i].offset, &items[i]);
}

void oracle_check(const struct wire_msg *t, const void *m, struct bytes wire)
{
	msgpack_zone zone;
	msgpack_object o;
	size_t off = 0;
	cr_assert(msgpack_zone_init(&zone, 4096));
	cr_assert_eq(msgpack_unpack((const char *)wire.p, wire.n, &off, &zone, &o),
		     MSGPACK_UNPACK_SUCCESS);
	cr_assert_eq(off, wire.n);
	check_message(t, m, &o);
	msgpack_zone_destroy(&zone);
}

/* ---- packing with msgpack-c ---- */

static int to_buf(void *out, const char *p, size_t n)
{
	buf_put(out, p, n);
	return 0;
}

static void pack_run(msgpack_packer *pk, struct bytes v, bool str)
{
	if (str)
		msgpack_pack_str_with_body(pk, v.p, v.n);
	else
		msgpack_pack_bin_with_body(pk, v.p, v.n);
}

static void pack_message(const struct wire_msg *t, const void *m, msgpack_packer *pk);

static void pack_list(const struct wire_field *f, const struct any_list *l, msgpack_packer *pk)
{
	msgpack_pack_array(pk, l->n);
	for (size_t i = 0; i < l->n; i++) {
		if (f->kind == WIRE_LIST)
			pack_message(f->of(), l->p + i * f->of()->size, pk);
		else if (f->kind == WIRE_U64S)
			msgpack_pack_uint64(pk, ((const uint64_t *)(const void *)l->p)[i]);
		else
			pack_run(pk, ((const struct bytes *)(const void *)l->p)[i],
				 f->kind == WIRE_STRS);
	}
}

static void pack_opt(const struct wire_field *f, const void *m, msgpack_packer *pk)
{
	if (m)
		pack_message(f->of(), m, pk);
	else
		msgpack_pack_nil(pk);
}

static void pack_field(const struct wire_field *f, const void *v, msgpack_packer *pk)
{
	switch (f->kind) {
	case WIRE_BOOL:
		if (*(const bool *)v)
			msgpack_pack_true(pk);
		else
			msgpack_pack_false(pk);
		break;
	case WIRE_U8:
	case WIRE_U16:
	case WIRE_U32:
	case WIRE_U64:
		msgpack_pack_uint64(pk, uint_at(f->kind, v));
		break;
	case WIRE_I64:
		msgpack_pack_int64(pk, *(const int64_t *)v);
		break;
	case WIRE_F64:
		msgpack_pack_double(pk, *(const double *)v);
		break;
	case WIRE_STR:
	case WIRE_BIN:
		pack_run(pk, *(const struct bytes *)v, f->kind == WIRE_STR);
		break;
	case WIRE_ID16:
		msgpack_pack_bin_with_body(pk, v, 16);
		break;
	case WIRE_U64S:
	case WIRE_STRS:
	case WIRE_BINS:
	case WIRE_LIST:
		pack_list(f, v, pk);
		break;
	case WIRE_OPT:
		pack_opt(f, *(const void *const *)v, pk);
		break;
	}
}

static void pack_message(const struct wire_msg *t, const void *m, msgpack_packer *pk)
{
	msgpack_pack_array(pk, t->n_fields);
	for (size_t i = 0; i < t->n_fields; i++)
		pack_field(&t->fields[i], (const uint8_t *)m + t->fields[i].offset, pk);
}

void oracle_pack(const struct wire_msg *t, const void *m, struct buf *out)
{
	msgpack_packer pk;
	msgpack_packer_init(&pk, out, to_buf);
	pack_message(t, m, &pk);
	cr_assert_eq(buf_err(out), ERR_NONE);
}

/* ---- other widths ---- */

static void put_head(struct buf *out, uint8_t first, uint64_t n, unsigned bytes)
{
	uint8_t b[9] = { first };
	for (unsigned i = 0; i < bytes; i++)
		b[1 + i] = (uint8_t)(n >> (8 * (bytes - 1 - i)));
	buf_put(out, b, 1 + bytes);
}

static unsigned least_lg(uint64_t n)
{
	return (n > 0xff) + (n > 0xffff) + (n > 0xffffffff);
}

/* A width of lo..hi (powers of two of bytes) that holds n. */
static unsigned some_lg(struct rng *r, uint64_t n, unsigned lo, unsigned hi)
{
	unsigned from = MAX_OF(least_lg(n), lo);
	return from + (unsigned)rng_below(r, hi - from + 1);
}

static void widen_int(struct head h, struct rng *r, struct buf *out)
{
	unsigned lg = some_lg(r, h.n, 0, 3);
	bool as_signed = h.type == HEAD_INT || (h.n <= INT64_MAX && rng_below(r, 3) == 0);
	if (as_signed)
		put_head(out, 0xd3, h.n, 8);
	else
		put_head(out, (uint8_t)(0xcc + lg), h.n, 1u << lg);
}

static const uint8_t *widen_one(const uint8_t *p, const uint8_t *end, struct rng *r,
				struct buf *out)
{
	struct head h;
	unsigned lg;
	cr_assert(head_read(p, end, &h));
	switch (h.type) {
	case HEAD_UINT:
	case HEAD_INT:
		widen_int(h, r, out);
		return p + h.bytes;
	case HEAD_STR:
		lg = some_lg(r, h.n, 0, 2);
		put_head(out, (uint8_t)(0xd9 + lg), h.n, 1u << lg);
		break;
	case HEAD_BIN:
		lg = some_lg(r, h.n, 0, 2);
		put_head(out, (uint8_t)(0xc4 + lg), h.n, 1u << lg);
		break;
	case HEAD_ARRAY:
		lg = some_lg(r, h.n, 1, 2);
		put_head(out, (uint8_t)(0xdc + lg - 1), h.n, 1u << lg);
		return p + h.bytes;
	default:
		buf_put(out, p, h.bytes);
		return p + h.bytes;
	}
	buf_put(out, p + h.bytes, h.n);
	return p + h.bytes + h.n;
}

void oracle_widen(struct bytes wire, struct rng *r, struct buf *out)
{
	const uint8_t *p = wire.p, *end = wire.p + wire.n;
	while (p != end)
		p = widen_one(p, end, r, out);
	cr_assert_eq(buf_err(out), ERR_NONE);
}
