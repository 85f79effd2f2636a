/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/lane_cli.h"

#include <stdio.h>
#include <string.h>

#include "proto/messages.h"

static struct lane_cli *cli_of(struct xf_pipe *p)
{
	return container_of(p, struct lane_cli, pipe);
}

static enum err say(struct lane_cli *l, enum xf_op op, struct bytes meta)
{
	struct xf_head h = { .op = (uint8_t)op, .request = l->request };
	return xf_pipe_send(&l->pipe, &h, meta, NULL, 0, false);
}

/* ---- HELLO ---- */

static enum err on_challenge(struct lane_cli *l, struct bytes meta, struct why *why)
{
	struct buf b = BUF_INIT(AUTH_HELLO_MAX);
	enum err e = hello_client_challenge(l->hello, meta, &b, why);
	if (e == ERR_NONE)
		e = say(l, XF_PROVE, buf_bytes(&b));
	buf_fini(&b);
	l->proving = true;
	return e;
}

static enum err on_welcome(struct lane_cli *l, const struct xf_head *h, struct bytes meta,
			   struct why *why)
{
	struct peer server;
	enum err e = hello_client_welcome(l->hello, meta, &l->pipe.session, &server, NULL, why);
	if (e != ERR_NONE)
		return e;
	hello_client_free(TAKE(l->hello));
	l->pipe.secure = true;
	l->pipe.mac_data = l->mac_data || (h->flags & XF_MAC_DATA);
	l->state = CLI_READY;
	return ERR_NONE;
}

/* ---- ends ---- */

static enum err on_end(struct lane_cli *l, const struct xf_head *h, struct bytes meta,
		       struct why *why)
{
	if (l->state == CLI_HELLO || l->state == CLI_READY)
		return why_set(why, h->status ? (enum err)h->status : ERR_BAD_MESSAGE,
			       "the agent has ended the lane: %s",
			       err_text((enum err)h->status));
	if (h->status == ERR_NONE && l->state != CLI_GETTING && l->state != CLI_ENDING)
		return why_set(why, ERR_BAD_MESSAGE, "END before LAST");
	l->status = (enum err)h->status;
	(void)snprintf(l->text, sizeof(l->text), "%.*s",
		       (int)MIN_OF(meta.n, sizeof(l->text) - 1), (const char *)meta.p);
	l->state = CLI_READY;
	l->ops = NULL;
	return ERR_NONE;
}

/* ---- frames ---- */

static bool may(const struct lane_cli *l, uint8_t op)
{
	if (op == XF_END)
		return true;
	switch (l->state) {
	case CLI_HELLO:
		return op == (l->proving ? XF_WELCOME : XF_CHALLENGE);
	case CLI_GETTING:
		return op == XF_DATA;
	case CLI_ASKED:
		return op == XF_GO;
	case CLI_READY:
	case CLI_WRITING:
	case CLI_ENDING:
		break;
	}
	return false;
}

static enum err on_head(struct xf_pipe *p, const struct xf_head *h, struct why *why)
{
	struct lane_cli *l = cli_of(p);
	if (!may(l, h->op))
		return why_set(why, ERR_BAD_MESSAGE, "frame: op %u in state %d", h->op,
			       (int)l->state);
	if (p->secure && h->op != XF_END && h->request != l->request)
		return why_set(why, ERR_BAD_MESSAGE, "frame: of request %u, not %u", h->request,
			       l->request);
	if (!p->secure && h->meta_bytes > AUTH_HELLO_MAX)
		return why_set(why, ERR_TOO_LARGE, "frame: %u bytes before WELCOME: at most %d",
			       h->meta_bytes, AUTH_HELLO_MAX);
	if (h->op != XF_DATA)
		return ERR_NONE;
	p->n_land = (uint32_t)l->ops->land(l->ctx, h->offset, h->data_bytes, p->land);
	return p->n_land ? ERR_NONE
			 : why_set(why, ERR_BAD_MESSAGE, "DATA: %u bytes that nobody asked for",
				   h->data_bytes);
}

static enum err on_frame(struct xf_pipe *p, const struct xf_head *h, struct bytes meta,
			 struct why *why)
{
	struct lane_cli *l = cli_of(p);
	switch (h->op) {
	case XF_CHALLENGE:
		return on_challenge(l, meta, why);
	case XF_WELCOME:
		return on_welcome(l, h, meta, why);
	case XF_GO:
		l->state = CLI_WRITING;
		return ERR_NONE;
	case XF_DATA:
		return l->ops->landed(l->ctx, h->offset, h->data_bytes, h->sum);
	default:
		return on_end(l, h, meta, why);
	}
}

static const struct xf_pipe_ops pipe_ops = { on_head, on_frame };

/* ---- life ---- */

enum err lane_cli_init(struct lane_cli *l, const struct lane_cli_opts *o, struct why *why)
{
	struct buf b = BUF_INIT(AUTH_HELLO_MAX);
	struct hello_client_opts h = { .keys = o->keys,
				       .role = o->as_holder ? ROLE_HOLDER : ROLE_CLIENT,
				       .tenant = o->tenant,
				       .holder = o->as_holder,
				       .instance = o->instance,
				       .v_min = WIRE_VERSION_MIN,
				       .v_max = WIRE_VERSION,
				       .expect = ROLE_HOLDER,
				       .expect_holder = o->holder };
	*l = (struct lane_cli){ .mac_data = o->mac_data };
	xf_pipe_init(&l->pipe, &pipe_ops);
	enum err e = hello_client_new(&h, &l->hello, why);
	if (e == ERR_NONE)
		e = hello_client_start(l->hello, &b);
	if (e == ERR_NONE)
		e = say(l, XF_HELLO, buf_bytes(&b));
	buf_fini(&b);
	return e;
}

void lane_cli_fini(struct lane_cli *l)
{
	hello_client_free(TAKE(l->hello));
	xf_pipe_fini(&l->pipe);
}

size_t lane_cli_want(struct lane_cli *l, struct iovec *iov)
{
	return xf_pipe_want(&l->pipe, iov);
}

void lane_cli_got(struct lane_cli *l, size_t n)
{
	xf_pipe_got(&l->pipe, n);
}

/* ---- requests ---- */

static void begin(struct lane_cli *l)
{
	assert(l->state == CLI_READY && xf_pipe_idle(&l->pipe));
	l->request++;
	l->status = ERR_NONE;
	l->text[0] = '\0';
}

enum err lane_cli_get(struct lane_cli *l, struct bytes ticket, const struct xf_range *ranges,
		      size_t n, bool check, const struct lane_cli_ops *ops, void *ctx)
{
	size_t bytes = xf_get_bytes(ticket.n, n);
	if (n < 1 || n > XF_RANGES_MAX || bytes > XF_META_MAX)
		return ERR_TOO_LARGE;
	uint8_t *meta = malloc(bytes);
	if (!meta)
		return ERR_NO_MEMORY;
	begin(l);
	xf_put_get(meta, ticket, ranges, n);
	struct xf_head h = { .op = XF_GET,
			     .request = l->request,
			     .flags = check ? XF_CHECK : 0 };
	enum err e = xf_pipe_send(&l->pipe, &h, BYTES(meta, bytes), NULL, 0, false);
	free(meta);
	if (e == ERR_NONE) {
		l->ops = ops;
		l->ctx = ctx;
		l->state = CLI_GETTING;
	}
	return e;
}

enum err lane_cli_put(struct lane_cli *l, struct bytes ticket)
{
	begin(l);
	enum err e = say(l, XF_PUT, ticket);
	if (e == ERR_NONE)
		l->state = CLI_ASKED;
	return e;
}

enum err lane_cli_data(struct lane_cli *l, uint64_t offset, const struct iovec *data, size_t n,
		       size_t bytes, uint64_t sum)
{
	assert(l->state == CLI_WRITING && bytes >= 1 && bytes <= XF_DATA_MAX);
	struct xf_head h = { .op = XF_DATA,
			     .request = l->request,
			     .offset = offset,
			     .data_bytes = (uint32_t)bytes,
			     .sum = sum };
	return xf_pipe_send(&l->pipe, &h, BYTES(NULL, 0), data, n, true);
}

enum err lane_cli_last(struct lane_cli *l)
{
	assert(l->state == CLI_WRITING);
	enum err e = say(l, XF_LAST, BYTES(NULL, 0));
	if (e == ERR_NONE)
		l->state = CLI_ENDING;
	return e;
}
