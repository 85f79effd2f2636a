/* SPDX-License-Identifier: Apache-2.0 */
/* COPY of the master: answered at once, an item each; PUBLISH or REPORT follows for what was taken on. */
#include "agent.h"

#include <string.h>

enum { ARENA_BYTES = 8 << 20, BUSY_MS = 100, TEXT_MAX = 160 };

struct answers {
	struct msg_result *res;
	char (*text)[TEXT_MAX];
};

static void one(struct xfa *x, const struct hold_under *u, const struct msg_copy_item *m,
		struct msg_result *res, char text[TEXT_MAX])
{
	struct why why = { 0 };
	enum err e = xfa_pull_take(x, u, m, &why);
	*res = (struct msg_result){ .status = (uint32_t)e,
				    .retry_ms = e == ERR_BUSY ? BUSY_MS : 0 };
	if (e == ERR_NONE)
		return;
	size_t n = MIN_OF(strlen(why.err ? why.text : err_text(e)), (size_t)TEXT_MAX);
	memcpy(text, why.err ? why.text : err_text(e), n);
	res->text = BYTES(text, n);
}

static void reply(struct rpc_req *r, const struct answers *a, size_t n)
{
	struct msg_results_rep m = { .items = { a->res, n } };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_results_rep(&b, &m);
	svc_reply(r, &b);
}

static enum err run_copy(struct xfa *x, struct rpc_req *r, struct arena *arena, struct why *why)
{
	struct msg_copy_req q;
	struct hold_under u;
	struct dec d = DEC_INIT(r->body, arena, why);
	enum err e = dec_copy_req(&d, &q);
	if (e == ERR_NONE)
		e = xfa_under(x, q.under, &u, why);
	if (e)
		return e;
	struct answers a = { calloc(q.items.n + 1, sizeof(*a.res)),
			     calloc(q.items.n + 1, sizeof(*a.text)) };
	if (a.res && a.text) {
		for (size_t i = 0; i < q.items.n; i++)
			one(x, &u, &q.items.p[i], &a.res[i], a.text[i]);
		xfa_count_command(x, XFA_CMD_COPY, q.items.n);
		reply(r, &a, q.items.n);
	} else {
		e = why_set(why, ERR_NO_MEMORY, "no memory for the answer");
	}
	free(a.res);
	free(a.text);
	return e;
}

void xfa_on_copy(void *ctx, struct rpc_req *r)
{
	struct xfa *x = ctx;
	struct arena arena = ARENA_INIT(ARENA_BYTES);
	struct why why = { 0 };
	if (!xfa_ready(x, r))
		return;
	if (run_copy(x, r, &arena, &why) != ERR_NONE)
		rpc_reply_why(r, &why, 0);
	arena_fini(&arena);
}
