/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_env.h"

#include "proto/prim.h"

/*
 * b holds an envelope encoded with an empty body. The body is the last row, so those are its last
 * two bytes (an empty bin); the real length takes their place, the body may then stay outside.
 */
static enum err seal(struct buf *b, struct bytes body, uint64_t seq, struct auth_session *s,
		     struct env_parts *out)
{
	uint8_t *tail = buf_room(b, 5 + ENV_INLINE + AUTH_TAG_BYTES);
	if (!tail)
		return buf_err(b);
	uint8_t *p = tail - 2;
	assert(p[0] == 0xc4 && p[1] == 0);
	p = wire_put_bin_len(p, body.n);
	bool together = body.n <= ENV_INLINE;
	if (together && body.n > 0) {
		memcpy(p, body.p, body.n);
		p += body.n;
	}
	b->n = (size_t)(p - b->p);
	struct iovec v[2] = { { b->p, b->n }, { (void *)body.p, body.n } };
	memset(p, 0, AUTH_TAG_BYTES);
	enum err e = s ? auth_tag(s, seq, v, together ? 1 : 2, p) : ERR_NONE;
	if (e != ERR_NONE)
		return e;
	if (together) {
		*out = (struct env_parts){ { BYTES(b->p, b->n + AUTH_TAG_BYTES) }, 1 };
	} else {
		*out = (struct env_parts){
			{ BYTES(b->p, b->n), body, BYTES(p, AUTH_TAG_BYTES) }, 3
		};
	}
	return ERR_NONE;
}

enum err env_request(struct buf *b, const struct msg_request *m, struct auth_session *s,
		     struct env_parts *out)
{
	struct msg_request head = *m;
	head.body = BYTES(NULL, 0);
	buf_clear(b);
	enc_request(b, &head);
	return buf_err(b) != ERR_NONE ? buf_err(b) : seal(b, m->body, m->seq, s, out);
}

enum err env_reply(struct buf *b, const struct msg_reply *m, struct auth_session *s,
		   struct env_parts *out)
{
	struct msg_reply head = *m;
	head.body = BYTES(NULL, 0);
	buf_clear(b);
	enc_reply(b, &head);
	return buf_err(b) != ERR_NONE ? buf_err(b) : seal(b, m->body, m->seq, s, out);
}
