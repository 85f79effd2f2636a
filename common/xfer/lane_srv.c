/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/lane_srv.h"

#include "base/sum.h"

#include <endian.h>
#include <string.h>

static struct lane_srv *srv_of(struct xf_pipe *p)
{
	return container_of(p, struct lane_srv, pipe);
}

/* ---- the stored bytes ---- */

static size_t spans(const struct lane_obj *o, uint64_t off, uint64_t n, struct iovec *out)
{
	return xf_spans(o->ext, o->n_ext, off, n, out);
}

static uint64_t ext_bytes(const struct lane_obj *o)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < o->n_ext; i++)
		n += o->ext[i].iov_len;
	return n;
}

static uint64_t block_bytes(const struct lane_obj *o, uint64_t off)
{
	uint64_t start = off - off % OBJ_BLOCK;
	return MIN_OF((uint64_t)OBJ_BLOCK, o->size - start);
}

/* The stored sum of the block that holds off. */
static uint64_t block_sum(const struct lane_obj *o, uint64_t off)
{
	struct iovec v[OBJ_EXTENTS_MAX];
	uint64_t le = 0;
	size_t at = 0;
	if (obj_blocks(o->size) == 0)
		return o->sum;
	size_t n = spans(o, obj_vector_at(o->size) + off / OBJ_BLOCK * 8, 8, v);
	for (size_t i = 0; i < n; i++) {
		memcpy((uint8_t *)&le + at, v[i].iov_base, v[i].iov_len);
		at += v[i].iov_len;
	}
	return le64toh(le);
}

/* ---- answers ---- */

static enum err say(struct lane_srv *l, enum xf_op op, uint16_t flags, enum err status,
		    struct bytes meta)
{
	struct xf_head h = { .op = (uint8_t)op,
			     .flags = flags,
			     .request = l->request,
			     .status = (uint32_t)status };
	return xf_pipe_send(&l->pipe, &h, meta, NULL, 0, false);
}

static enum err say_end(struct lane_srv *l, enum err status, const struct why *why)
{
	const char *text = status == ERR_NONE ? "" : why && why->err ? why->text : "";
	return say(l, XF_END, 0, status, BYTES_STR(text));
}

static void close_obj(struct lane_srv *l, bool all)
{
	bool put = l->state == SRV_WRITING;
	if (l->state != SRV_SENDING && l->state != SRV_WRITING)
		return;
	l->state = SRV_READY;
	free(TAKE(l->ranges));
	l->o.ops->end(l->o.ops->ctx, put, all);
}

/* What one that is not proven may hear: the number, no text. */
static bool tells(enum err e)
{
	return e == ERR_UNAUTHENTICATED || e == ERR_VERSION_MISMATCH || e == ERR_BUSY ||
	       e == ERR_STALE_SESSION;
}

/* The lane is over; the peer hears why, if nothing is half sent. */
static void over(struct lane_srv *l, enum err e, const struct why *why)
{
	xf_pipe_fail(&l->pipe, e, why);
	close_obj(l, false);
	if (l->goodbye || !xf_pipe_idle(&l->pipe) || (!l->pipe.secure && !tells(e)))
		return;
	l->goodbye = say_end(l, e, l->pipe.secure ? &l->pipe.why : NULL) == ERR_NONE;
}

/* ---- GET ---- */

static enum err check_ranges(struct lane_srv *l, struct bytes ranges, size_t n, struct why *why)
{
	uint64_t stored = obj_stored_bytes(l->obj.size);
	for (size_t i = 0; i < n; i++) {
		struct xf_range r = xf_range_at(ranges, i);
		if (r.bytes == 0 || r.offset > stored || r.bytes > stored - r.offset)
			return why_set(why, ERR_INVALID_PARAMS,
				       "GET: range %zu: %llu bytes at %llu of %llu", i,
				       (unsigned long long)r.bytes,
				       (unsigned long long)r.offset,
				       (unsigned long long)stored);
	}
	l->ranges = malloc(ranges.n);
	if (!l->ranges)
		return why_set(why, ERR_NO_MEMORY, "GET: no memory for ranges");
	memcpy(l->ranges, ranges.p, ranges.n);
	l->n_ranges = n;
	l->range = 0;
	l->range_at = 0;
	l->good_block = 0;
	return ERR_NONE;
}

static enum err on_get(struct lane_srv *l, const struct xf_head *h, struct bytes meta,
		       struct why *why)
{
	struct bytes ticket, ranges;
	struct why no = { 0 };
	size_t n = 0;
	if (xf_get_get(meta, &ticket, &ranges, &n) != ERR_NONE)
		return why_set(why, ERR_BAD_MESSAGE,
			       "GET: %zu bytes are no ticket and 1..%d ranges", meta.n,
			       XF_RANGES_MAX);
	l->request = h->request;
	l->flags = h->flags;
	if (l->o.ops->get(l->o.ops->ctx, ticket, &l->obj, &no) != LANE_OPENED)
		return say_end(l, no.err ? no.err : ERR_INTERNAL, &no);
	l->state = SRV_SENDING;
	enum err e = ext_bytes(&l->obj) < obj_stored_bytes(l->obj.size)
			     ? why_set(&no, ERR_BAD_TICKET, "GET: extents too short")
			     : check_ranges(l, ranges, n, &no);
	if (e == ERR_NONE)
		return e;
	close_obj(l, false);
	return say_end(l, e, &no);
}

/* A part of a block goes out only when the block is whole, if that was asked for. */
static enum err check_block(struct lane_srv *l, uint64_t off)
{
	struct iovec v[OBJ_EXTENTS_MAX];
	uint64_t sum = 0, start = off - off % OBJ_BLOCK;
	if (l->good_block == off / OBJ_BLOCK + 1)
		return ERR_NONE;
	size_t n = spans(&l->obj, start, block_bytes(&l->obj, off), v);
	enum err e = xf_sum(v, n, &sum);
	l->hashed += block_bytes(&l->obj, off);
	if (e == ERR_NONE && sum != block_sum(&l->obj, off)) {
		l->o.ops->corrupt(l->o.ops->ctx);
		e = ERR_CORRUPT;
	}
	l->good_block = e == ERR_NONE ? off / OBJ_BLOCK + 1 : 0;
	return e;
}

/*
 * The next piece of the range: never over the border of a block, and a whole block carries the sum that
 * was stored with it, so that nobody hashes it here and the reader's check reaches back to the writer.
 */
static enum err send_piece(struct lane_srv *l, struct xf_range r)
{
	struct iovec v[OBJ_EXTENTS_MAX];
	uint64_t off = r.offset + l->range_at, left = r.bytes - l->range_at;
	bool payload = off < l->obj.size;
	uint64_t n = MIN_OF(left, XF_DATA_MAX - off % XF_DATA_MAX);
	if (payload)
		n = MIN_OF(n, l->obj.size - off);
	bool whole = payload && off % OBJ_BLOCK == 0 && n == block_bytes(&l->obj, off);
	struct xf_head h = {
		.op = XF_DATA, .request = l->request, .offset = off, .data_bytes = (uint32_t)n
	};
	enum err e = ERR_NONE;
	if (whole)
		h.sum = block_sum(&l->obj, off);
	else if (payload && (l->obj.check || (l->flags & XF_CHECK)))
		e = check_block(l, off);
	size_t k = spans(&l->obj, off, n, v);
	if (e == ERR_NONE)
		e = xf_pipe_send(&l->pipe, &h, BYTES(NULL, 0), v, k, whole);
	l->range_at += n;
	return e;
}

static void send_more(struct lane_srv *l)
{
	enum err e;
	if (l->range < l->n_ranges) {
		struct xf_range r =
			xf_range_at(BYTES(l->ranges, l->n_ranges * sizeof(r)), l->range);
		e = send_piece(l, r);
		if (l->range_at == r.bytes) {
			l->range++;
			l->range_at = 0;
		}
	} else {
		close_obj(l, true);
		e = say_end(l, ERR_NONE, NULL);
	}
	if (e == ERR_CORRUPT) { /* of this copy only */
		close_obj(l, false);
		e = say_end(l, e, NULL);
	}
	if (e != ERR_NONE)
		over(l, e, NULL);
}

/* ---- PUT ---- */

static enum err put_opened(struct lane_srv *l, enum err e, const struct why *why)
{
	l->state = SRV_READY;
	if (e != ERR_NONE)
		return say_end(l, e, why);
	l->state = SRV_WRITING;
	l->put_at = 0;
	return say(l, XF_GO, 0, ERR_NONE, BYTES(NULL, 0));
}

static enum err on_put(struct lane_srv *l, const struct xf_head *h, struct bytes meta)
{
	struct why no = { 0 };
	l->request = h->request;
	l->state = SRV_OPENING;
	switch (l->o.ops->put(l->o.ops->ctx, meta, &l->obj, &no)) {
	case LANE_OPENED:
		return put_opened(l, ERR_NONE, NULL);
	case LANE_REFUSED:
		return put_opened(l, no.err ? no.err : ERR_INTERNAL, &no);
	case LANE_LATER:
		break;
	}
	return ERR_NONE;
}

void lane_srv_opened(struct lane_srv *l, enum err e, const struct lane_obj *obj,
		     const struct why *why)
{
	assert(l->state == SRV_OPENING);
	if (e == ERR_NONE)
		l->obj = *obj;
	e = put_opened(l, e, why);
	if (e != ERR_NONE)
		over(l, e, NULL);
}

/* Behind the payload comes the vector, a few bytes further on. */
static uint64_t put_next(const struct lane_srv *l)
{
	return l->put_at == l->obj.size && obj_blocks(l->obj.size) ? obj_vector_at(l->obj.size)
								   : l->put_at;
}

static bool put_whole(const struct lane_srv *l)
{
	return l->put_at == obj_stored_bytes(l->obj.size);
}

static enum err data_head(struct lane_srv *l, const struct xf_head *h, struct why *why)
{
	uint64_t at = put_next(l), size = l->obj.size;
	uint64_t end = at < size ? size : obj_stored_bytes(size);
	if (h->offset != at || h->data_bytes > end - at)
		return why_set(why, ERR_BAD_MESSAGE,
			       "DATA: %u bytes at %llu: %llu..%llu are awaited", h->data_bytes,
			       (unsigned long long)h->offset, (unsigned long long)at,
			       (unsigned long long)end);
	enum err e = l->o.ops->look(l->o.ops->ctx);
	if (e)
		return why_set(why, e, "DATA: %s", err_text(e));
	l->pipe.n_land = (uint32_t)spans(&l->obj, at, h->data_bytes, l->pipe.land);
	return l->pipe.n_land ? ERR_NONE
			      : why_set(why, ERR_BAD_TICKET, "DATA: extents too short");
}

static enum err on_last(struct lane_srv *l, struct why *why)
{
	enum err e = put_whole(l) ? l->o.ops->look(l->o.ops->ctx)
				  : why_set(why, ERR_BAD_MESSAGE, "LAST: bytes are missing");
	if (e)
		return e;
	close_obj(l, true);
	return say_end(l, ERR_NONE, NULL);
}

/* ---- HELLO ---- */

static enum err on_hello(struct lane_srv *l, struct bytes meta, struct why *why)
{
	struct buf b = BUF_INIT(AUTH_HELLO_MAX);
	enum err e = hello_server_challenge(l->o.hello, meta, l->now_ns, &b, why);
	if (e == ERR_NONE)
		e = say(l, XF_CHALLENGE, 0, ERR_NONE, buf_bytes(&b));
	buf_fini(&b);
	l->state = SRV_PROVE;
	return e;
}

static enum err on_prove(struct lane_srv *l, struct bytes meta, struct why *why)
{
	struct buf b = BUF_INIT(AUTH_HELLO_MAX);
	uint16_t flags = l->o.mac_data ? XF_MAC_DATA : 0;
	enum err e = hello_server_prove(l->o.hello, meta, l->now_ns, l->o.session, &b,
					&l->pipe.session, &l->peer, why);
	if (e == ERR_NONE)
		e = say(l, XF_WELCOME, flags, ERR_NONE, buf_bytes(&b));
	buf_fini(&b);
	l->pipe.secure = e == ERR_NONE;
	l->pipe.mac_data = l->o.mac_data;
	l->state = SRV_READY;
	return e;
}

/* ---- frames ---- */

static enum err on_head(struct xf_pipe *p, const struct xf_head *h, struct why *why)
{
	struct lane_srv *l = srv_of(p);
	static const uint32_t may[] = {
		[SRV_HELLO] = 1u << XF_HELLO,
		[SRV_PROVE] = 1u << XF_PROVE,
		[SRV_READY] = 1u << XF_GET | 1u << XF_PUT,
		[SRV_OPENING] = 0,
		[SRV_SENDING] = 0,
		[SRV_WRITING] = 1u << XF_DATA | 1u << XF_LAST,
	};
	if (!(may[l->state] >> h->op & 1))
		return why_set(why, ERR_BAD_MESSAGE, "frame: op %u in state %d", h->op,
			       (int)l->state);
	if (!p->secure && h->meta_bytes > AUTH_HELLO_MAX)
		return why_set(why, ERR_TOO_LARGE, "frame: %u bytes before WELCOME: at most %d",
			       h->meta_bytes, AUTH_HELLO_MAX);
	return h->op == XF_DATA ? data_head(l, h, why) : ERR_NONE;
}

static enum err on_frame(struct xf_pipe *p, const struct xf_head *h, struct bytes meta,
			 struct why *why)
{
	struct lane_srv *l = srv_of(p);
	switch (h->op) {
	case XF_HELLO:
		return on_hello(l, meta, why);
	case XF_PROVE:
		return on_prove(l, meta, why);
	case XF_GET:
		return on_get(l, h, meta, why);
	case XF_PUT:
		return on_put(l, h, meta);
	case XF_LAST:
		return on_last(l, why);
	default:
		l->put_at = h->offset + h->data_bytes;
		return ERR_NONE;
	}
}

static const struct xf_pipe_ops pipe_ops = { on_head, on_frame };

/* ---- life ---- */

void lane_srv_init(struct lane_srv *l, const struct lane_srv_opts *o)
{
	*l = (struct lane_srv){ .o = *o };
	xf_pipe_init(&l->pipe, &pipe_ops);
}

void lane_srv_fini(struct lane_srv *l)
{
	close_obj(l, false);
	xf_pipe_fini(&l->pipe);
}

size_t lane_srv_want(struct lane_srv *l, struct iovec *iov)
{
	bool busy = l->state == SRV_OPENING || l->state == SRV_SENDING;
	return busy || !xf_pipe_idle(&l->pipe) ? 0 : xf_pipe_want(&l->pipe, iov);
}

void lane_srv_got(struct lane_srv *l, size_t n, uint64_t now_ns)
{
	l->now_ns = now_ns;
	xf_pipe_got(&l->pipe, n);
	if (l->pipe.err != ERR_NONE)
		over(l, l->pipe.err, &l->pipe.why);
}

size_t lane_srv_out(struct lane_srv *l, struct iovec *iov)
{
	if (l->state == SRV_SENDING && xf_pipe_idle(&l->pipe) && l->pipe.err == ERR_NONE)
		send_more(l);
	return xf_pipe_out(&l->pipe, iov);
}

void lane_srv_sent(struct lane_srv *l, size_t n)
{
	xf_pipe_sent(&l->pipe, n);
}

bool lane_srv_over(const struct lane_srv *l)
{
	return l->pipe.err != ERR_NONE && xf_pipe_idle(&l->pipe);
}

void lane_srv_cut(struct lane_srv *l)
{
	struct why why = { 0 };
	if (l->state != SRV_WRITING)
		return;
	enum err e = l->o.ops->look(l->o.ops->ctx);
	if (e) {
		why_note(&why, e, "cut: %s", err_text(e));
		over(l, e, &why);
	}
}
