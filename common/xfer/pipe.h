/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both ends of a data lane share: bytes in, frames out, and the other way. No socket: its owner asks
 * where the next bytes are to go (pipe_want), receives them right there, says how many came (pipe_got);
 * and likewise pipe_out, pipe_sent. So payload moves between the socket and the place it belongs to,
 * with no copy between.
 *
 * I1: memory is fixed: XF_META_MAX for a body at most, data lands where `head` says.
 * I2: `frame` runs for whole frames only, their tag (after WELCOME) and their sum both right. Bytes of
 *     DATA have landed before that: what they land on is nobody's yet (a put) or is not used on an
 *     error (a get).
 * I3: after an error the pipe takes and gives nothing more but what was queued before.
 *
 * Thread: its owner's.
 */
#pragma once

#include "base/buf.h"
#include "rpc/auth.h"
#include "xfer/frame.h"

enum { XF_SPANS = 64, XF_IOV = XF_SPANS + 2 };

struct xf_pipe;

struct xf_pipe_ops {
	/* A header came that is sound by itself: may it come now? For DATA: fills p->land, so that its
	 * spans make up h->data_bytes. */
	enum err (*head)(struct xf_pipe *p, const struct xf_head *h, struct why *why);
	/* A whole frame. meta: borrowed for the call. */
	enum err (*frame)(struct xf_pipe *p, const struct xf_head *h, struct bytes meta,
			  struct why *why);
};

struct xf_pipe {
	const struct xf_pipe_ops *ops;
	struct auth_session session; /* secure: from WELCOME on */
	bool secure, mac_data;	     /* mac_data: this lane's data is MACed, both ways */
	enum err err;
	struct why why;
	struct iovec land[XF_SPANS];
	uint32_t n_land;
	/* private */
	enum { XF_IN_HEAD, XF_IN_META, XF_IN_DATA } in;
	struct xf_head h;
	uint8_t head[XF_HEADER], next[XF_HEADER];
	size_t n_head, n_next, n_in;
	uint8_t *meta;
	uint8_t out_head[XF_HEADER];
	struct buf out_meta;
	struct iovec out[XF_SPANS];
	uint32_t n_out;
	size_t out_bytes, out_at;
};

void xf_pipe_init(struct xf_pipe *p, const struct xf_pipe_ops *ops);
void xf_pipe_fini(struct xf_pipe *p);
/* The first error stays. */
void xf_pipe_fail(struct xf_pipe *p, enum err e, const struct why *why);

/* Where the next bytes go; 0: none are wanted. iov: room for XF_IOV. */
size_t xf_pipe_want(struct xf_pipe *p, struct iovec *iov);
/* n bytes came, at most as many as were wanted. May call ops. */
void xf_pipe_got(struct xf_pipe *p, size_t n);

/* Queues a frame; the pipe must be idle (asserted). meta is copied; data borrowed until it is sent,
 * h->data_bytes of it. Sets sequence, sum (unless has_sum) and tag. ERR_STALE_SESSION,
 * ERR_NO_MEMORY. */
enum err xf_pipe_send(struct xf_pipe *p, struct xf_head *h, struct bytes meta,
		      const struct iovec *data, size_t n_data, bool has_sum) MUST_CHECK;
static inline bool xf_pipe_idle(const struct xf_pipe *p)
{
	return p->out_at == p->out_bytes;
}
/* What is to be sent next; 0: nothing. iov: room for XF_IOV. */
size_t xf_pipe_out(const struct xf_pipe *p, struct iovec *iov);
void xf_pipe_sent(struct xf_pipe *p, size_t n);

/* Spans of [off, off + n) of n_ext pieces laid end to end: how many, 0: they do not hold that. out: room for
 * n_ext. */
size_t xf_spans(const struct iovec *ext, size_t n_ext, uint64_t off, uint64_t n,
		struct iovec *out);
/* XXH3-64 of n spans laid end to end, at most XF_DATA_MAX bytes. ERR_NO_MEMORY. */
enum err xf_sum(const struct iovec *v, size_t n, uint64_t *out) MUST_CHECK;
/* Does the sockaddr's text ("127.0.0.1", "::1") or an absent one name this very host? */
bool xf_is_loopback(const char *numeric_host);
