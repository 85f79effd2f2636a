/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire.h"

#include "proto/head.h"
#include "proto/prim.h"

/* ---- heads ---- */

static const struct {
	uint8_t type, bytes; /* bytes of the number behind the first byte */
} heads[32] = {
	[0x00] = { HEAD_NIL, 0 },  [0x01] = { HEAD_BAD, 0 },   [0x02] = { HEAD_BOOL, 0 },
	[0x03] = { HEAD_BOOL, 0 }, [0x04] = { HEAD_BIN, 1 },   [0x05] = { HEAD_BIN, 2 },
	[0x06] = { HEAD_BIN, 4 },  [0x07] = { HEAD_EXT, 1 },   [0x08] = { HEAD_EXT, 2 },
	[0x09] = { HEAD_EXT, 4 },  [0x0a] = { HEAD_F32, 4 },   [0x0b] = { HEAD_F64, 8 },
	[0x0c] = { HEAD_UINT, 1 }, [0x0d] = { HEAD_UINT, 2 },  [0x0e] = { HEAD_UINT, 4 },
	[0x0f] = { HEAD_UINT, 8 }, [0x10] = { HEAD_INT, 1 },   [0x11] = { HEAD_INT, 2 },
	[0x12] = { HEAD_INT, 4 },  [0x13] = { HEAD_INT, 8 },   [0x14] = { HEAD_EXT, 0 },
	[0x15] = { HEAD_EXT, 0 },  [0x16] = { HEAD_EXT, 0 },   [0x17] = { HEAD_EXT, 0 },
	[0x18] = { HEAD_EXT, 0 },  [0x19] = { HEAD_STR, 1 },   [0x1a] = { HEAD_STR, 2 },
	[0x1b] = { HEAD_STR, 4 },  [0x1c] = { HEAD_ARRAY, 2 }, [0x1d] = { HEAD_ARRAY, 4 },
	[0x1e] = { HEAD_MAP, 2 },  [0x1f] = { HEAD_MAP, 4 },
};

static uint64_t be(const uint8_t *p, unsigned bytes)
{
	uint64_t v = 0;
	for (unsigned i = 0; i < bytes; i++)
		v = v << 8 | p[i];
	return v;
}

/* Sign-extended when negative; a positive one is as good as unsigned. */
static void fix_signed(struct head *h, unsigned bytes)
{
	unsigned shift = 64 - 8 * bytes;
	h->n = (uint64_t)((int64_t)(h->n << shift) >> shift);
	if ((int64_t)h->n >= 0)
		h->type = HEAD_UINT;
}

static void fix_float(struct head *h)
{
	uint32_t bits = (uint32_t)h->n;
	float f;
	memcpy(&f, &bits, 4);
	double wide = f;
	memcpy(&h->n, &wide, 8);
	h->type = HEAD_F64;
}

static bool head_fix(uint8_t c, struct head *h)
{
	if (c < 0x80)
		*h = (struct head){ HEAD_UINT, 1, c };
	else if (c < 0x90)
		*h = (struct head){ HEAD_MAP, 1, c & 0x0fu };
	else if (c < 0xa0)
		*h = (struct head){ HEAD_ARRAY, 1, c & 0x0fu };
	else if (c < 0xc0)
		*h = (struct head){ HEAD_STR, 1, c & 0x1fu };
	else if (c >= 0xe0)
		*h = (struct head){ HEAD_INT, 1, (uint64_t)(int8_t)c };
	else
		return false;
	return true;
}

bool head_read(const uint8_t *p, const uint8_t *end, struct head *h)
{
	if (p == end) {
		*h = (struct head){ HEAD_CUT, 0, 0 };
		return false;
	}
	if (head_fix(*p, h))
		return true;
	unsigned c = *p - 0xc0u, bytes = heads[c].bytes;
	unsigned type_byte = heads[c].type == HEAD_EXT;
	*h = (struct head){ heads[c].type, 1 + bytes + type_byte, c & 1 };
	if (h->bytes > (size_t)(end - p))
		h->type = HEAD_CUT;
	if (h->type == HEAD_CUT || h->type == HEAD_BAD)
		return false;
	if (bytes)
		h->n = be(p + 1, bytes);
	else if (h->type == HEAD_EXT)
		h->n = 1ull << (*p - 0xd4);
	if (h->type == HEAD_INT)
		fix_signed(h, bytes);
	else if (h->type == HEAD_F32)
		fix_float(h);
	return true;
}

/* ---- reading ---- */

const uint8_t wire_no_fields[1] = { 0x90 };

const uint8_t *wire_get_uint_slow(const uint8_t *p, const uint8_t *end, uint64_t *out)
{
	struct head h;
	if (!head_read(p, end, &h) || h.type != HEAD_UINT)
		return NULL;
	*out = h.n;
	return p + h.bytes;
}

const uint8_t *wire_get_len_slow(const uint8_t *p, const uint8_t *end, bool str, size_t *n)
{
	struct head h;
	*n = 0;
	if (!head_read(p, end, &h) || h.type != (str ? HEAD_STR : HEAD_BIN))
		return NULL;
	*n = h.n;
	return p + h.bytes;
}

const uint8_t *wire_get_array_slow(const uint8_t *p, const uint8_t *end, size_t *n)
{
	struct head h;
	*n = 0;
	if (!head_read(p, end, &h) || h.type != HEAD_ARRAY)
		return NULL;
	*n = h.n;
	return p + h.bytes;
}

const uint8_t *get_i64(struct dec *d, const uint8_t *p, const uint8_t *end, int64_t *out,
		       size_t max, size_t each)
{
	struct head h;
	if (!head_read(p, end, &h))
		return NULL;
	if (h.type != HEAD_INT && (h.type != HEAD_UINT || h.n > INT64_MAX))
		return NULL;
	*out = (int64_t)h.n;
	return p + h.bytes;
}

const uint8_t *get_f64(struct dec *d, const uint8_t *p, const uint8_t *end, double *out,
		       size_t max, size_t each)
{
	struct head h;
	if (!head_read(p, end, &h) || h.type != HEAD_F64)
		return NULL;
	memcpy(out, &h.n, 8);
	return p + h.bytes;
}

const uint8_t *get_u64s(struct dec *d, const uint8_t *p, const uint8_t *end, struct u64s *out,
			size_t max, size_t each)
{
	size_t n;
	p = get_array(p, end, &n);
	if (!p || n > max)
		return NULL;
	*out = (struct u64s){ .n = n };
	uint64_t *items = n ? wire_items(d, n, sizeof(*items)) : NULL;
	if (n && !items)
		return NULL;
	out->p = items;
	for (size_t i = 0; i < n && p; i++)
		p = get_uint(p, end, &items[i]);
	return p;
}

static const uint8_t *get_runs(struct dec *d, const uint8_t *p, const uint8_t *end,
			       struct bytes_list *out, size_t max, size_t each, bool str)
{
	size_t n;
	p = get_array(p, end, &n);
	if (!p || n > max)
		return NULL;
	*out = (struct bytes_list){ .n = n };
	struct bytes *items = n ? wire_items(d, n, sizeof(*items)) : NULL;
	if (n && !items)
		return NULL;
	out->p = items;
	for (size_t i = 0; i < n && p; i++)
		p = str ? get_str(d, p, end, &items[i], each, 0)
			: get_bin(d, p, end, &items[i], each, 0);
	return p;
}

const uint8_t *get_strs(struct dec *d, const uint8_t *p, const uint8_t *end,
			struct bytes_list *out, size_t max, size_t each)
{
	return get_runs(d, p, end, out, max, each, true);
}

const uint8_t *get_bins(struct dec *d, const uint8_t *p, const uint8_t *end,
			struct bytes_list *out, size_t max, size_t each)
{
	return get_runs(d, p, end, out, max, each, false);
}

/* ---- writing ---- */

uint8_t *wire_over(struct buf *b)
{
	if (b->err == ERR_NONE)
		b->err = ERR_TOO_LARGE;
	return NULL;
}

uint8_t *wire_grow(struct buf *b, size_t need)
{
	if (b->err != ERR_NONE)
		return NULL;
	if (b->n > b->limit || (need > WIRE_SLACK && need - WIRE_SLACK > b->limit - b->n))
		return wire_over(b);
	size_t cap = MIN_OF(MAX_OF(b->cap * 2, (size_t)256), b->limit);
	cap = MAX_OF(cap, b->n + need);
	uint8_t *p = realloc(b->p, cap);
	if (!p) {
		b->err = ERR_NO_MEMORY;
		return NULL;
	}
	b->p = p;
	b->cap = cap;
	return b->p + b->n;
}

uint8_t *put_u64s(WIRE_PUT_ARGS(struct u64s))
{
	if (v->n > max)
		return wire_over(b);
	b->n = (size_t)(put_array(p, v->n) - b->p);
	for (size_t i = 0; i < v->n; i++) {
		p = wire_room(b, 9);
		if (!p)
			return NULL;
		b->n = (size_t)(put_uint(p, v->p[i]) - b->p);
	}
	return wire_room(b, need);
}

uint8_t *put_strs(WIRE_PUT_ARGS(struct bytes_list))
{
	if (v->n > max)
		return wire_over(b);
	b->n = (size_t)(put_array(p, v->n) - b->p);
	for (size_t i = 0; i < v->n; i++) {
		p = wire_room(b, bound_str(&v->p[i]));
		if (p)
			p = put_str(b, p, 0, &v->p[i], each, version, 0);
		if (!p)
			return NULL;
		b->n = (size_t)(p - b->p);
	}
	return wire_room(b, need);
}

uint8_t *put_bins(WIRE_PUT_ARGS(struct bytes_list))
{
	if (v->n > max)
		return wire_over(b);
	b->n = (size_t)(put_array(p, v->n) - b->p);
	for (size_t i = 0; i < v->n; i++) {
		p = wire_room(b, bound_bin(&v->p[i]));
		if (p)
			p = put_bin(b, p, 0, &v->p[i], each, version, 0);
		if (!p)
			return NULL;
		b->n = (size_t)(p - b->p);
	}
	return wire_room(b, need);
}
