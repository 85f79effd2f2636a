/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One value of the wire, read or written: what gen.h's codecs are made of. Internal to proto/ and
 * to files that declare messages of their own.
 *
 * get_KIND  reads at p, before end; returns the byte after, or NULL. It does not say why: the
 *           generated code calls wire_fail(), which looks at the same bytes again, at leisure.
 * put_KIND  writes at p, where bound_KIND() bytes are free; returns the byte after, or NULL when
 *           b's error is latched. Kinds without a bound make room themselves (`need` is what the
 *           struct's remaining fields may take) and move b->n.
 *
 * All inline: a message's codec is one function whose pointers stay in registers. Measured:
 * bench/bench_wire.c.
 */
#pragma once

#include "proto/wire.h"

#include <string.h>

#define WIRE_LIKELY(x)	 __builtin_expect(!!(x), 1)
#define WIRE_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define WIRE_INLINE \
	static inline __attribute__((always_inline, unused)) /* a row may use none */
#define WIRE_COLD __attribute__((noinline, cold))

/* What a struct's fixed fields may take beyond a buffer's limit until their true size is known. */
#define WIRE_SLACK 4096

/* ---- out of line, wire.c ---- */

/* Records why field i of t (or, i == t->n_fields, its array) failed at `at`. Returns NULL. */
const uint8_t *wire_fail(struct dec *d, const uint8_t *at, const struct wire_msg *t,
			 size_t i) WIRE_COLD;
/* The byte after n values, or NULL. */
const uint8_t *wire_skip(const uint8_t *p, const uint8_t *end, size_t n);
/* Bytes follow the message. Records that. */
enum err wire_trailing(struct dec *d, const uint8_t *p, const struct wire_msg *t) WIRE_COLD;
uint8_t *wire_grow(struct buf *b, size_t need) WIRE_COLD;
/* A field over its row's limit: latches ERR_TOO_LARGE. Returns NULL. */
uint8_t *wire_over(struct buf *b) WIRE_COLD;
const uint8_t *wire_get_uint_slow(const uint8_t *p, const uint8_t *end, uint64_t *out);
const uint8_t *wire_get_len_slow(const uint8_t *p, const uint8_t *end, bool str, size_t *n);
const uint8_t *wire_get_array_slow(const uint8_t *p, const uint8_t *end, size_t *n);

/* ---- reading ---- */

WIRE_INLINE uint64_t wire_be64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, 8);
	return __builtin_bswap64(v);
}

/* clang gathers comparisons of c before and after into one indirect jump: 31 ns an item, not 17. */
#define WIRE_NO_SWITCH(c) __asm__("" : "+r"(c))

/*
 * A branch a width: a predicted branch costs nothing, while a width computed from the byte puts a
 * load, a shift and an add on the way to the next field (27 ns an item against 14; the same in
 * put_uint: 16 against 11; bench_wire, gcc 12, 2026-11-29).
 */
WIRE_INLINE const uint8_t *get_uint(const uint8_t *p, const uint8_t *end, uint64_t *out)
{
	if (WIRE_UNLIKELY(end - p < 9))
		return wire_get_uint_slow(p, end, out);
	uint8_t c = *p;
	uint64_t be = wire_be64(p + 1);
	if (c < 0x80)
		return *out = c, p + 1;
	if (c == 0xce)
		return *out = be >> 32, p + 5;
	WIRE_NO_SWITCH(c);
	if (c == 0xcd)
		return *out = be >> 48, p + 3;
	WIRE_NO_SWITCH(c);
	if (c == 0xcf)
		return *out = be, p + 9;
	if (c == 0xcc)
		return *out = be >> 56, p + 2;
	return wire_get_uint_slow(p, end, out);
}

#define WIRE_GET_UNSIGNED(fn, type, top)                                               \
	WIRE_INLINE const uint8_t *get_##fn(struct dec *d, const uint8_t *p,           \
					    const uint8_t *end, type *out, size_t max, \
					    size_t each)                               \
	{                                                                              \
		uint64_t v;                                                            \
		p = get_uint(p, end, &v);                                              \
		if (WIRE_UNLIKELY(!p || v > (top)))                                    \
			return NULL;                                                   \
		*out = (type)v;                                                        \
		return p;                                                              \
	}
WIRE_GET_UNSIGNED(u8, uint8_t, UINT8_MAX)
WIRE_GET_UNSIGNED(u16, uint16_t, UINT16_MAX)
WIRE_GET_UNSIGNED(u32, uint32_t, UINT32_MAX)
WIRE_GET_UNSIGNED(u64, uint64_t, UINT64_MAX)
#undef WIRE_GET_UNSIGNED

const uint8_t *get_i64(struct dec *d, const uint8_t *p, const uint8_t *end, int64_t *out,
		       size_t max, size_t each);
const uint8_t *get_f64(struct dec *d, const uint8_t *p, const uint8_t *end, double *out,
		       size_t max, size_t each);
const uint8_t *get_u64s(struct dec *d, const uint8_t *p, const uint8_t *end, struct u64s *out,
			size_t max, size_t each);
const uint8_t *get_strs(struct dec *d, const uint8_t *p, const uint8_t *end,
			struct bytes_list *out, size_t max, size_t each);
const uint8_t *get_bins(struct dec *d, const uint8_t *p, const uint8_t *end,
			struct bytes_list *out, size_t max, size_t each);

WIRE_INLINE const uint8_t *get_boolean(struct dec *d, const uint8_t *p, const uint8_t *end,
				       bool *out, size_t max, size_t each)
{
	if (WIRE_UNLIKELY(p == end || (*p & 0xfe) != 0xc2))
		return NULL;
	*out = *p & 1;
	return p + 1;
}

WIRE_INLINE const uint8_t *wire_get_run(const uint8_t *p, const uint8_t *end, size_t n,
					struct bytes *out, size_t max)
{
	if (WIRE_UNLIKELY(!p || n > max || n > (size_t)(end - p)))
		return NULL;
	*out = (struct bytes){ .p = p, .n = n };
	return p + n;
}

WIRE_INLINE const uint8_t *get_str(struct dec *d, const uint8_t *p, const uint8_t *end,
				   struct bytes *out, size_t max, size_t each)
{
	size_t n;
	if (WIRE_LIKELY(p != end && (*p & 0xe0) == 0xa0))
		n = *p++ & 0x1f;
	else
		p = wire_get_len_slow(p, end, true, &n);
	return wire_get_run(p, end, n, out, max);
}

WIRE_INLINE const uint8_t *get_bin(struct dec *d, const uint8_t *p, const uint8_t *end,
				   struct bytes *out, size_t max, size_t each)
{
	size_t n;
	if (WIRE_LIKELY(end - p >= 2 && *p == 0xc4)) {
		n = p[1];
		p += 2;
	} else {
		p = wire_get_len_slow(p, end, false, &n);
	}
	return wire_get_run(p, end, n, out, max);
}

WIRE_INLINE const uint8_t *get_id16(struct dec *d, const uint8_t *p, const uint8_t *end,
				    uint8_t (*out)[16], size_t max, size_t each)
{
	struct bytes b;
	p = get_bin(d, p, end, &b, 16, 0);
	if (WIRE_UNLIKELY(!p || b.n != 16))
		return NULL;
	memcpy(*out, b.p, 16);
	return p;
}

/* Count of an array; one that the bytes left cannot hold is refused (B5). */
WIRE_INLINE const uint8_t *get_array(const uint8_t *p, const uint8_t *end, size_t *n)
{
	if (WIRE_LIKELY(p != end && (*p & 0xf0) == 0x90))
		*n = *p++ & 0x0f;
	else
		p = wire_get_array_slow(p, end, n);
	if (WIRE_UNLIKELY(!p || *n > (size_t)(end - p)))
		return NULL;
	return p;
}

/* Memory for n list items of `size` bytes; NULL has its reason recorded by wire_fail. */
WIRE_INLINE void *wire_items(struct dec *d, size_t n, size_t size)
{
	size_t bytes;
	if (!d->arena || __builtin_mul_overflow(n, size ? size : 1, &bytes))
		return NULL;
	return arena_alloc(d->arena, bytes);
}

extern const uint8_t wire_no_fields[1];

/* A message of no bytes is one of no fields. */
WIRE_INLINE void wire_dec_begin(struct dec *d)
{
	if (WIRE_UNLIKELY(d->p == d->end)) {
		d->p = d->start = wire_no_fields;
		d->end = wire_no_fields + 1;
	}
}

/* p: NULL, or the first byte not read. */
WIRE_INLINE enum err wire_dec_end(struct dec *d, const uint8_t *p,
				  const struct wire_msg *(*table)(void))
{
	if (WIRE_UNLIKELY(!p))
		return d->err;
	if (WIRE_UNLIKELY(p != d->end))
		return wire_trailing(d, p, table());
	d->p = p;
	return ERR_NONE;
}

/* ---- writing ---- */

/* need bytes free behind b->n, perhaps past the limit by WIRE_SLACK: enc_NAME_at looks at the end. */
WIRE_INLINE uint8_t *wire_room(struct buf *b, size_t need)
{
	if (WIRE_UNLIKELY(need > b->cap - b->n))
		return wire_grow(b, need);
	return b->p + b->n;
}

WIRE_INLINE uint8_t *wire_put_be(uint8_t *p, uint8_t head, uint64_t v, unsigned bytes)
{
	*p = head;
	uint64_t be = __builtin_bswap64(v << (64 - 8 * bytes));
	memcpy(p + 1, &be, bytes);
	return p + 1 + bytes;
}

WIRE_INLINE uint8_t *put_uint(uint8_t *p, uint64_t v)
{
	if (v < 0x80)
		return *p = (uint8_t)v, p + 1;
	if (v <= UINT8_MAX)
		return wire_put_be(p, 0xcc, v, 1);
	if (v <= UINT16_MAX)
		return wire_put_be(p, 0xcd, v, 2);
	if (v <= UINT32_MAX)
		return wire_put_be(p, 0xce, v, 4);
	return wire_put_be(p, 0xcf, v, 8);
}

WIRE_INLINE uint8_t *wire_put_str_len(uint8_t *p, size_t n)
{
	if (n < 32) {
		*p = (uint8_t)(0xa0 | n);
		return p + 1;
	}
	if (n <= UINT8_MAX)
		return wire_put_be(p, 0xd9, n, 1);
	return n <= UINT16_MAX ? wire_put_be(p, 0xda, n, 2) : wire_put_be(p, 0xdb, n, 4);
}

WIRE_INLINE uint8_t *wire_put_bin_len(uint8_t *p, size_t n)
{
	if (n <= UINT8_MAX)
		return wire_put_be(p, 0xc4, n, 1);
	return n <= UINT16_MAX ? wire_put_be(p, 0xc5, n, 2) : wire_put_be(p, 0xc6, n, 4);
}

WIRE_INLINE uint8_t *put_array(uint8_t *p, size_t n)
{
	if (n < 16) {
		*p = (uint8_t)(0x90 | n);
		return p + 1;
	}
	return n <= UINT16_MAX ? wire_put_be(p, 0xdc, n, 2) : wire_put_be(p, 0xdd, n, 4);
}

#define WIRE_PUT_ARGS(type)                                                                  \
	struct buf *b, uint8_t *p, size_t need, const type *v, size_t max, uint32_t version, \
		size_t each

#define WIRE_PUT_UNSIGNED(fn, type)                        \
	WIRE_INLINE size_t bound_##fn(const type *v)       \
	{                                                  \
		return 9;                                  \
	}                                                  \
	WIRE_INLINE uint8_t *put_##fn(WIRE_PUT_ARGS(type)) \
	{                                                  \
		return put_uint(p, *v);                    \
	}
WIRE_PUT_UNSIGNED(u8, uint8_t)
WIRE_PUT_UNSIGNED(u16, uint16_t)
WIRE_PUT_UNSIGNED(u32, uint32_t)
WIRE_PUT_UNSIGNED(u64, uint64_t)
#undef WIRE_PUT_UNSIGNED

WIRE_INLINE size_t bound_boolean(const bool *v)
{
	return 1;
}
WIRE_INLINE uint8_t *put_boolean(WIRE_PUT_ARGS(bool))
{
	*p = *v ? 0xc3 : 0xc2;
	return p + 1;
}

WIRE_INLINE size_t bound_i64(const int64_t *v)
{
	return 9;
}
WIRE_INLINE uint8_t *put_i64(WIRE_PUT_ARGS(int64_t))
{
	if (*v >= 0)
		return put_uint(p, (uint64_t)*v);
	if (*v >= -32) {
		*p = (uint8_t)*v;
		return p + 1;
	}
	unsigned lg = (*v < INT8_MIN) + (*v < INT16_MIN) + (*v < INT32_MIN);
	return wire_put_be(p, (uint8_t)(0xd0 + lg), (uint64_t)*v, 1u << lg);
}

WIRE_INLINE size_t bound_f64(const double *v)
{
	return 9;
}
WIRE_INLINE uint8_t *put_f64(WIRE_PUT_ARGS(double))
{
	uint64_t bits;
	memcpy(&bits, v, 8);
	return wire_put_be(p, 0xcb, bits, 8);
}

WIRE_INLINE size_t bound_str(const struct bytes *v)
{
	return 5 + v->n;
}
WIRE_INLINE uint8_t *put_str(WIRE_PUT_ARGS(struct bytes))
{
	if (WIRE_UNLIKELY(v->n > max))
		return wire_over(b);
	p = wire_put_str_len(p, v->n);
	if (v->n)
		memcpy(p, v->p, v->n);
	return p + v->n;
}

WIRE_INLINE size_t bound_bin(const struct bytes *v)
{
	return 5 + v->n;
}
WIRE_INLINE uint8_t *put_bin(WIRE_PUT_ARGS(struct bytes))
{
	if (WIRE_UNLIKELY(v->n > max))
		return wire_over(b);
	p = wire_put_bin_len(p, v->n);
	if (v->n)
		memcpy(p, v->p, v->n);
	return p + v->n;
}

WIRE_INLINE size_t bound_id16(const uint8_t (*v)[16])
{
	return 18;
}
WIRE_INLINE uint8_t *put_id16(struct buf *b, uint8_t *p, size_t need, const uint8_t (*v)[16],
			      size_t max, uint32_t version, size_t each)
{
	p[0] = 0xc4;
	p[1] = 16;
	memcpy(p + 2, *v, 16);
	return p + 18;
}

WIRE_INLINE size_t bound_u64s(const struct u64s *v)
{
	return 5;
}
uint8_t *put_u64s(WIRE_PUT_ARGS(struct u64s));

WIRE_INLINE size_t bound_strs(const struct bytes_list *v)
{
	return 5;
}
uint8_t *put_strs(WIRE_PUT_ARGS(struct bytes_list));

WIRE_INLINE size_t bound_bins(const struct bytes_list *v)
{
	return 5;
}
uint8_t *put_bins(WIRE_PUT_ARGS(struct bytes_list));
