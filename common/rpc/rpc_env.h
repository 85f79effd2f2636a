/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Envelopes as bytes: encoding with the tag behind them, splitting what came. Internal to rpc.
 * A message is envelope + tag; a message of no session carries a tag of zeros.
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/buf.h"
#include "proto/messages.h"
#include "rpc/auth.h"

#define ENV_ROOM   128	      /* what an envelope and its tag add to a body, at most */
#define ENV_INLINE (4u << 10) /* a body up to this is copied behind its envelope: one piece */

/* What goes to the engine: one piece, or envelope, body and tag. Borrowed from the buf and the body. */
struct env_parts {
	struct bytes p[3];
	int n;
};

/*
 * Encodes m into b (cleared first; with ENV_ROOM + ENV_INLINE to spare it never grows) and tags it.
 * m->seq comes from auth_next_seq, once (rpc.h I4). s NULL: no session, a tag of zeros.
 *
 * ERR_TOO_LARGE, ERR_NO_MEMORY, ERR_STALE_SESSION
 */
enum err env_request(struct buf *b, const struct msg_request *m, struct auth_session *s,
		     struct env_parts *out) MUST_CHECK;
enum err env_reply(struct buf *b, const struct msg_reply *m, struct auth_session *s,
		   struct env_parts *out) MUST_CHECK;

/* Cuts the tag off. False: the message is too short for one. */
static inline bool env_split(struct bytes msg, struct bytes *env, const uint8_t **tag)
{
	if (msg.n <= AUTH_TAG_BYTES)
		return false;
	*env = BYTES(msg.p, msg.n - AUTH_TAG_BYTES);
	*tag = msg.p + env->n;
	return true;
}

/* auth_check over an envelope with its body, as env_split gave it. */
static inline enum err env_check(struct auth_session *s, uint64_t seq, struct bytes env,
				 const uint8_t *tag)
{
	struct iovec v = { .iov_base = (void *)env.p, .iov_len = env.n };
	return auth_check(s, seq, &v, 1, tag);
}
