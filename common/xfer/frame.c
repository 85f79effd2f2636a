/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/frame.h"

#include "base/le.h"

#include <string.h>

void xf_put(uint8_t out[XF_HEADER], const struct xf_head *h)
{
	assert(h->op >= XF_HELLO && h->op < XF_OPS && (h->flags & ~XF_FLAGS) == 0);
	assert(h->meta_bytes <= XF_META_MAX && h->data_bytes <= XF_DATA_MAX);
	assert(h->meta_bytes == 0 || h->data_bytes == 0);
	le_put32(out, XF_MAGIC);
	out[4] = XF_VERSION;
	out[5] = h->op;
	le_put16(out + 6, h->flags);
	le_put32(out + 8, h->request);
	le_put32(out + 12, h->meta_bytes);
	le_put64(out + 16, h->seq);
	le_put64(out + 24, h->offset);
	le_put32(out + 32, h->data_bytes);
	le_put32(out + 36, h->status);
	le_put64(out + 40, h->sum);
	memcpy(out + XF_TAGGED, h->tag, XF_TAG);
}

static enum err check(const struct xf_head *h, struct why *why)
{
	if (h->op < XF_HELLO || h->op >= XF_OPS)
		return why_set(why, ERR_BAD_MESSAGE, "frame: op %u: 1..%d", h->op, XF_OPS - 1);
	if (h->flags & ~XF_FLAGS)
		return why_set(why, ERR_BAD_MESSAGE, "frame: unknown flags 0x%x", h->flags);
	if (h->meta_bytes > XF_META_MAX || h->data_bytes > XF_DATA_MAX)
		return why_set(why, ERR_TOO_LARGE,
			       "frame: %u bytes of meta, %u of data: at most %d and %d",
			       h->meta_bytes, h->data_bytes, XF_META_MAX, XF_DATA_MAX);
	if ((h->op == XF_DATA) != (h->data_bytes > 0) || (h->data_bytes && h->meta_bytes))
		return why_set(
			why, ERR_BAD_MESSAGE,
			"frame: op %u with %u bytes of data and %u of meta: DATA has data, "
			"no other has",
			h->op, h->data_bytes, h->meta_bytes);
	return ERR_NONE;
}

enum err xf_get(const uint8_t in[XF_HEADER], struct xf_head *out, struct why *why)
{
	if (le_get32(in) != XF_MAGIC)
		return why_set(why, ERR_BAD_MESSAGE, "frame: it does not begin with pmld");
	if (in[4] != XF_VERSION)
		return why_set(why, ERR_VERSION_MISMATCH,
			       "frame: version %u of data lanes; this release has %d", in[4],
			       XF_VERSION);
	struct xf_head h = { .op = in[5],
			     .flags = le_get16(in + 6),
			     .request = le_get32(in + 8),
			     .meta_bytes = le_get32(in + 12),
			     .seq = le_get64(in + 16),
			     .offset = le_get64(in + 24),
			     .data_bytes = le_get32(in + 32),
			     .status = le_get32(in + 36),
			     .sum = le_get64(in + 40) };
	memcpy(h.tag, in + XF_TAGGED, XF_TAG);
	enum err e = check(&h, why);
	if (e == ERR_NONE)
		*out = h;
	return e;
}

/* ---- the meta of a GET ---- */

enum { GET_FIXED = 8, GET_RANGE = 16 };

size_t xf_get_bytes(size_t ticket_bytes, size_t n_ranges)
{
	return GET_FIXED + ticket_bytes + n_ranges * GET_RANGE;
}

void xf_put_get(uint8_t *out, struct bytes ticket, const struct xf_range *ranges, size_t n)
{
	le_put32(out, (uint32_t)ticket.n);
	le_put32(out + 4, (uint32_t)n);
	out += GET_FIXED;
	if (ticket.n)
		memcpy(out, ticket.p, ticket.n);
	out += ticket.n;
	for (size_t i = 0; i < n; i++, out += GET_RANGE) {
		le_put64(out, ranges[i].offset);
		le_put64(out + 8, ranges[i].bytes);
	}
}

enum err xf_get_get(struct bytes meta, struct bytes *ticket, struct bytes *ranges, size_t *n)
{
	if (meta.n < GET_FIXED)
		return ERR_BAD_MESSAGE;
	size_t n_ticket = le_get32(meta.p), n_ranges = le_get32(meta.p + 4);
	if (n_ticket > meta.n || n_ranges < 1 || n_ranges > XF_RANGES_MAX ||
	    xf_get_bytes(n_ticket, n_ranges) != meta.n)
		return ERR_BAD_MESSAGE;
	*ticket = BYTES(meta.p + GET_FIXED, n_ticket);
	*ranges = BYTES(meta.p + GET_FIXED + n_ticket, n_ranges * GET_RANGE);
	*n = n_ranges;
	return ERR_NONE;
}

struct xf_range xf_range_at(struct bytes ranges, size_t i)
{
	const uint8_t *p = ranges.p + i * GET_RANGE;
	assert((i + 1) * GET_RANGE <= ranges.n);
	return (struct xf_range){ le_get64(p), le_get64(p + 8) };
}
