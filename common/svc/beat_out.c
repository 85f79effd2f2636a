/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/beat_priv.h"

#include <string.h>

#include "proto/messages.h"

size_t beat_out_make(struct beat_out *o, size_t i, const struct beat_news *n, bool loop_owes,
		     uint64_t wall_ms, uint8_t *out)
{
	struct beat_target *t = &o->to[i];
	struct msg_beat m = {
		.v = WIRE_VERSION,
		.name = BYTES_STR(o->name),
		.seq = ++o->seq,
		.challenge = BYTES(t->challenge, t->challenged ? sizeof(t->challenge) : 0),
		.wall_ms = wall_ms,
		.pid = n->pid,
		.ready = n->ready,
		.loop_owes = loop_owes,
		.loop_turns = n->loop_turns,
		.pool_done = n->pool_done,
		.pool_queued = n->pool_queued,
		.pool_epoch = n->pool_epoch,
	};
	memcpy(m.instance, o->instance, sizeof(m.instance));
	struct buf b = BUF_INIT(BEAT_BYTES_MAX - BEAT_OVERHEAD);
	enc_beat(&b, &m);
	size_t bytes = buf_err(&b) ? 0
				   : beat_seal(&o->keys, 0, BEAT_KIND_BEAT, o->role,
					       buf_bytes(&b), out);
	buf_fini(&b);
	return bytes;
}

/* What is answered at once is so no oftener than this: a forger of nothing but replays must not make
 * us send much faster than we beat. */
#define ANSWER_NS (20 * NS_PER_MS)

uint64_t beat_out_last_ack(const struct beat_out *o)
{
	uint64_t last = 0;
	for (size_t i = 0; i < o->n_to; i++)
		last = MAX_OF(last, o->to[i].last_ack_ns);
	return last;
}

bool beat_out_take(struct beat_out *o, size_t i, struct bytes dgram, uint64_t now_ns)
{
	struct beat_target *t = &o->to[i];
	struct msg_beat_ack m;
	enum role role;
	unsigned which;
	struct bytes body;
	enum err e = beat_unseal(&o->keys, BEAT_KIND_ACK, dgram, &role, &which, &body);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(body, NULL, NULL);
		e = dec_beat_ack(&d, &m);
	}
	if (e || role != o->role || memcmp(m.instance, o->instance, 16) != 0 ||
	    m.challenge.n != BEAT_CHALLENGE_BYTES || m.seq > o->seq) {
		o->bad++;
		return false;
	}
	bool news = !t->challenged ||
		    memcmp(t->challenge, m.challenge.p, BEAT_CHALLENGE_BYTES) != 0;
	memcpy(t->challenge, m.challenge.p, BEAT_CHALLENGE_BYTES);
	t->challenged = true;
	if (m.seq > t->acked_seq) {
		uint64_t last = beat_out_last_ack(o);
		news = news || last == 0 || now_ns - last > o->quiet_ns;
		t->acked_seq = m.seq;
		t->last_ack_ns = now_ns;
		o->acked++;
	}
	if (!news)
		return false;
	if (t->answered_ns && now_ns - t->answered_ns < ANSWER_NS)
		return false;
	t->answered_ns = now_ns;
	return true;
}
