/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/pipe.h"

#include "base/sum.h"

#include <string.h>

void xf_pipe_init(struct xf_pipe *p, const struct xf_pipe_ops *ops)
{
	*p = (struct xf_pipe){ .ops = ops, .out_meta = BUF_INIT(XF_META_MAX) };
}

void xf_pipe_fini(struct xf_pipe *p)
{
	auth_session_fini(&p->session);
	free(p->meta);
	buf_fini(&p->out_meta);
	*p = (struct xf_pipe){ 0 };
}

void xf_pipe_fail(struct xf_pipe *p, enum err e, const struct why *why)
{
	if (p->err != ERR_NONE)
		return;
	p->err = e;
	p->why = (struct why){ 0 };
	why_note(&p->why, e, "%s", why && why->err ? why->text : err_text(e));
}

/* ---- sums and tags ---- */

enum err xf_sum(const struct iovec *v, size_t n, uint64_t *out)
{
	struct sum_stream *s = NULL;
	size_t total = 0;
	if (n == 1) {
		*out = sum64(v[0].iov_base, v[0].iov_len);
		return ERR_NONE;
	}
	for (size_t i = 0; i < n; i++)
		total += v[i].iov_len;
	enum err e = sum_stream_new(total, NULL, &s);
	for (size_t i = 0; i < n && e == ERR_NONE; i++)
		e = sum_stream_add(s, v[i].iov_base, v[i].iov_len);
	if (e == ERR_NONE)
		e = sum_stream_end(s, out);
	sum_stream_free(s);
	return e;
}

size_t xf_spans(const struct iovec *ext, size_t n_ext, uint64_t off, uint64_t n,
		struct iovec *out)
{
	size_t k = 0;
	for (size_t i = 0; i < n_ext && n > 0; i++) {
		if (off >= ext[i].iov_len) {
			off -= ext[i].iov_len;
			continue;
		}
		size_t part = (size_t)MIN_OF((uint64_t)ext[i].iov_len - off, n);
		out[k++] = (struct iovec){ (uint8_t *)ext[i].iov_base + off, part };
		n -= part;
		off = 0;
	}
	return n == 0 ? k : 0;
}

/* What the tag covers: header, meta, and the data on lanes that say so. */
static size_t tagged(uint8_t head[XF_HEADER], struct bytes meta, const struct iovec *data,
		     size_t n_data, struct iovec *out)
{
	size_t n = 0;
	out[n++] = (struct iovec){ head, XF_TAGGED };
	if (meta.n)
		out[n++] = (struct iovec){ (void *)(uintptr_t)meta.p, meta.n };
	for (size_t i = 0; i < n_data; i++)
		out[n++] = data[i];
	return n;
}

bool xf_is_loopback(const char *host)
{
	return !host || !*host || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
	       strncmp(host, "::ffff:127.", 11) == 0;
}

/* ---- in ---- */

/* The parts of v from byte `at` on. */
static size_t rest(const struct iovec *v, size_t n, size_t at, struct iovec *out)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++) {
		if (at >= v[i].iov_len) {
			at -= v[i].iov_len;
			continue;
		}
		out[k++] = (struct iovec){ (uint8_t *)v[i].iov_base + at, v[i].iov_len - at };
		at = 0;
	}
	return k;
}

size_t xf_pipe_want(struct xf_pipe *p, struct iovec *iov)
{
	if (p->err != ERR_NONE)
		return 0;
	switch (p->in) {
	case XF_IN_HEAD:
		iov[0] = (struct iovec){ p->head + p->n_head, XF_HEADER - p->n_head };
		return 1;
	case XF_IN_META:
		iov[0] = (struct iovec){ p->meta + p->n_in, p->h.meta_bytes - p->n_in };
		return 1;
	case XF_IN_DATA:
		break;
	}
	/* the next header may come with it: one call less a frame */
	size_t n = rest(p->land, p->n_land, p->n_in, iov);
	iov[n++] = (struct iovec){ p->next, XF_HEADER };
	return n;
}

static enum err check_sum(struct xf_pipe *p, struct bytes meta, struct why *why)
{
	uint64_t sum = 0;
	enum err e = ERR_NONE;
	if (p->h.data_bytes)
		e = xf_sum(p->land, p->n_land, &sum);
	else
		sum = sum64(meta.p, meta.n);
	if (e == ERR_NONE && sum != p->h.sum)
		e = why_set(why, ERR_CORRUPT, "frame: its bytes do not have its sum");
	return e;
}

static enum err check_tag(struct xf_pipe *p, struct bytes meta, struct why *why)
{
	struct iovec v[XF_IOV];
	bool with_data = p->h.flags & XF_MAC_DATA;
	if (!p->secure)
		return ERR_NONE;
	if (p->h.data_bytes && p->mac_data && !with_data)
		return why_set(why, ERR_UNAUTHENTICATED,
			       "frame: data without a tag over it, on a lane between hosts");
	size_t n = tagged(p->head, meta, p->land, with_data ? p->n_land : 0, v);
	enum err e = auth_check(&p->session, p->h.seq, v, n, p->h.tag);
	return e ? why_set(why, e, "frame: its tag: %s", err_text(e)) : e;
}

static void frame_done(struct xf_pipe *p)
{
	struct why why = { 0 };
	struct bytes meta = BYTES(p->meta, p->h.meta_bytes);
	enum err e = check_tag(p, meta, &why);
	if (e == ERR_NONE)
		e = check_sum(p, meta, &why);
	struct xf_head h = p->h;
	p->in = XF_IN_HEAD;
	p->n_head = p->n_in = 0;
	if (e == ERR_NONE)
		e = p->ops->frame(p, &h, meta, &why);
	p->n_land = 0;
	free(TAKE(p->meta));
	if (e != ERR_NONE)
		xf_pipe_fail(p, e, &why);
}

static enum err head_done(struct xf_pipe *p, struct why *why)
{
	enum err e = xf_get(p->head, &p->h, why);
	if (e == ERR_NONE)
		e = p->ops->head(p, &p->h, why);
	if (e == ERR_NONE && p->h.meta_bytes) {
		p->meta = malloc(p->h.meta_bytes);
		if (!p->meta)
			e = why_set(why, ERR_NO_MEMORY, "frame: no memory for %u bytes",
				    p->h.meta_bytes);
	}
	p->in = p->h.data_bytes ? XF_IN_DATA : XF_IN_META;
	return e;
}

static void on_head(struct xf_pipe *p)
{
	struct why why = { 0 };
	enum err e = head_done(p, &why);
	if (e != ERR_NONE)
		xf_pipe_fail(p, e, &why);
	else if (!p->h.meta_bytes && !p->h.data_bytes)
		frame_done(p);
}

/* Bytes of the header behind the data that came with it. */
static void on_next(struct xf_pipe *p, size_t n)
{
	if (n == 0 || p->err != ERR_NONE)
		return;
	assert(p->in == XF_IN_HEAD && n <= XF_HEADER);
	memcpy(p->head, p->next, n);
	p->n_head = n;
	if (n == XF_HEADER)
		on_head(p);
}

void xf_pipe_got(struct xf_pipe *p, size_t n)
{
	switch (p->in) {
	case XF_IN_HEAD:
		p->n_head += n;
		assert(p->n_head <= XF_HEADER);
		if (p->n_head == XF_HEADER)
			on_head(p);
		return;
	case XF_IN_META:
		p->n_in += n;
		if (p->n_in == p->h.meta_bytes)
			frame_done(p);
		return;
	case XF_IN_DATA:
		break;
	}
	size_t here = MIN_OF(n, p->h.data_bytes - p->n_in);
	p->n_in += here;
	if (p->n_in < p->h.data_bytes)
		return;
	frame_done(p);
	on_next(p, n - here);
}

/* ---- out ---- */

static enum err seal(struct xf_pipe *p, struct xf_head *h, const struct iovec *data,
		     size_t n_data)
{
	struct iovec v[XF_IOV];
	if (!p->secure)
		return ERR_NONE;
	enum err e = auth_next_seq(&p->session, &h->seq);
	if (e)
		return e;
	if (h->data_bytes && p->mac_data)
		h->flags |= XF_MAC_DATA;
	xf_put(p->out_head, h);
	size_t n = tagged(p->out_head, buf_bytes(&p->out_meta), data,
			  h->flags & XF_MAC_DATA && h->data_bytes ? n_data : 0, v);
	return auth_tag(&p->session, h->seq, v, n, h->tag);
}

enum err xf_pipe_send(struct xf_pipe *p, struct xf_head *h, struct bytes meta,
		      const struct iovec *data, size_t n_data, bool has_sum)
{
	assert(xf_pipe_idle(p) && n_data <= XF_SPANS);
	buf_clear(&p->out_meta);
	buf_put(&p->out_meta, meta.p, meta.n);
	enum err e = buf_err(&p->out_meta);
	h->meta_bytes = (uint32_t)meta.n;
	if (e == ERR_NONE && !has_sum) {
		if (h->data_bytes)
			e = xf_sum(data, n_data, &h->sum);
		else
			h->sum = sum64(meta.p, meta.n);
	}
	if (e == ERR_NONE)
		e = seal(p, h, data, n_data);
	if (e != ERR_NONE)
		return e;
	xf_put(p->out_head, h);
	for (size_t i = 0; i < n_data; i++)
		p->out[i] = data[i];
	p->n_out = (uint32_t)n_data;
	p->out_at = 0;
	p->out_bytes = XF_HEADER + meta.n + h->data_bytes;
	return ERR_NONE;
}

size_t xf_pipe_out(const struct xf_pipe *p, struct iovec *iov)
{
	struct iovec all[XF_IOV];
	size_t n = 0;
	if (xf_pipe_idle(p))
		return 0;
	all[n++] = (struct iovec){ (void *)(uintptr_t)p->out_head, XF_HEADER };
	if (p->out_meta.n)
		all[n++] = (struct iovec){ p->out_meta.p, p->out_meta.n };
	for (uint32_t i = 0; i < p->n_out; i++)
		all[n++] = p->out[i];
	return rest(all, n, p->out_at, iov);
}

void xf_pipe_sent(struct xf_pipe *p, size_t n)
{
	p->out_at += n;
	assert(p->out_at <= p->out_bytes);
	if (xf_pipe_idle(p))
		buf_clear(&p->out_meta);
}
