/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/beat_priv.h"

#include <openssl/crypto.h>
#include <string.h>

#include "base/sum.h"
#include "proto/messages.h"
#include "rpc/auth_crypto.h"

void beat_book_init(struct beat_book *b, size_t peers_max)
{
	*b = (struct beat_book){ .peers_max = peers_max };
	pthread_mutex_init(&b->lock, NULL);
	map_init(&b->names, peers_max);
}

void beat_book_fini(struct beat_book *b)
{
	for (size_t i = 0; i < b->n; i++)
		free(b->v[i]);
	free(b->v);
	map_fini(&b->names);
	explicit_bzero(&b->keys, sizeof(b->keys));
	explicit_bzero(b->secret, sizeof(b->secret));
	pthread_mutex_destroy(&b->lock);
}

static bool name_eq(const struct map_node *n, const void *key)
{
	return strcmp(container_of(n, struct beat_entry, node)->p.name, key) == 0;
}

static struct beat_entry *find(const struct beat_book *b, const char *name)
{
	struct map_node *n = map_find(&b->names, sum64(name, strlen(name)), name_eq, name);
	return n ? container_of(n, struct beat_entry, node) : NULL;
}

const struct beat_peer *beat_book_find(const struct beat_book *b, const char *name)
{
	const struct beat_entry *e = find(b, name);
	return e ? &e->p : NULL;
}

/* NULL: no room or no memory. */
static struct beat_entry *add(struct beat_book *b, const char *name)
{
	if (b->n == b->cap) {
		size_t cap = MIN_OF(MAX_OF(b->cap * 2, 16), b->peers_max);
		struct beat_entry **v = NULL;
		if (cap > b->n)
			v = reallocarray(b->v, cap, sizeof(void *));
		if (!v)
			return NULL;
		b->v = v;
		b->cap = cap;
	}
	struct beat_entry *e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	memcpy(e->p.name, name, strlen(name) + 1);
	e->p.state = BEAT_STARTING; /* until it is looked at */
	if (map_insert(&b->names, &e->node, sum64(name, strlen(name))) != ERR_NONE) {
		free(e);
		return NULL;
	}
	b->v[b->n++] = e;
	return e;
}

/*
 * What only a live sender of this instance can carry: it depends on this run of the master, and on
 * how many runs of the name came before, so that a run that was replaced must be asked again. No
 * state is kept for those who never answer.
 */
static bool challenge_of(const struct beat_book *b, const char *name,
			 const uint8_t instance[16], uint32_t generation,
			 uint8_t out[BEAT_CHALLENGE_BYTES])
{
	uint8_t full[SHA256_BYTES];
	struct bytes parts[] = { BYTES(name, strlen(name) + 1), BYTES(instance, 16),
				 BYTES(&generation, sizeof(generation)) };
	if (hmac_sha256(BYTES(b->secret, sizeof(b->secret)), parts, ARRAY_LEN(parts), full))
		return false;
	memcpy(out, full, BEAT_CHALLENGE_BYTES);
	return true;
}

static void stamp(struct beat_entry *e, const struct msg_beat *m, enum role role,
		  uint64_t now_ns, bool new_run)
{
	struct beat_peer *p = &e->p;
	if (new_run) {
		memcpy(p->instance, m->instance, 16);
		p->role = role;
		p->since_ns = p->moved_ns = now_ns;
		p->instances++;
	}
	if (!m->loop_owes || m->loop_turns != p->news.loop_turns)
		p->moved_ns = now_ns;
	p->seq = m->seq;
	p->last_ns = now_ns;
	p->news = (struct beat_news){ .loop_turns = m->loop_turns,
				      .pool_done = m->pool_done,
				      .pool_queued = m->pool_queued,
				      .pid = m->pid,
				      .ready = m->ready,
				      .pool_epoch = m->pool_epoch };
}

static size_t reply_to(const struct beat_book *b, const struct msg_beat *m, enum role role,
		       unsigned which, uint64_t seq, const uint8_t *challenge, uint8_t *out)
{
	struct msg_beat_ack a = { .v = WIRE_VERSION,
				  .seq = seq,
				  .challenge = BYTES(challenge, BEAT_CHALLENGE_BYTES) };
	memcpy(a.instance, m->instance, 16);
	struct buf buf = BUF_INIT(BEAT_BYTES_MAX - BEAT_OVERHEAD);
	enc_beat_ack(&buf, &a);
	size_t n = buf_err(&buf) ? 0
				 : beat_seal(&b->keys, which, BEAT_KIND_ACK, role,
					     buf_bytes(&buf), out);
	buf_fini(&buf);
	return n;
}

/* The beat is genuine; is it fresh? Lock held. */
static enum beat_verdict admit(struct beat_book *b, const struct msg_beat *m, const char *name,
			       enum role role, uint64_t now_ns, uint8_t *challenge,
			       bool *stamped)
{
	struct beat_entry *e = find(b, name);
	uint32_t runs = e ? e->p.instances : 0;
	bool same_run = e && memcmp(e->p.instance, m->instance, 16) == 0;
	*stamped = false;
	if (!challenge_of(b, name, m->instance, same_run ? runs - 1 : runs, challenge))
		return BEAT_NO_FRAME;
	if (m->challenge.n != BEAT_CHALLENGE_BYTES ||
	    CRYPTO_memcmp(m->challenge.p, challenge, BEAT_CHALLENGE_BYTES) != 0) {
		b->c.challenges++;
		return BEAT_OK;
	}
	if (same_run && m->seq <= e->p.seq)
		return BEAT_REPLAY;
	if (!e)
		e = add(b, name);
	if (!e)
		return BEAT_FULL;
	stamp(e, m, role, now_ns, !same_run);
	b->c.stamped++;
	*stamped = true;
	return BEAT_OK;
}

static bool name_ok(struct bytes n)
{
	char text[BEAT_NAME_MAX + 1];
	if (n.n == 0 || n.n > BEAT_NAME_MAX)
		return false;
	memcpy(text, n.p, n.n);
	text[n.n] = 0;
	return strlen(text) == n.n && auth_name_ok(text);
}

static enum beat_verdict take(struct beat_book *b, uint64_t now_ns, struct bytes dgram,
			      uint8_t *reply, size_t *n_reply)
{
	enum role role;
	unsigned which;
	struct bytes body;
	struct msg_beat m;
	uint8_t challenge[BEAT_CHALLENGE_BYTES];
	char name[BEAT_NAME_MAX + 1];
	bool stamped;
	enum err e = beat_unseal(&b->keys, BEAT_KIND_BEAT, dgram, &role, &which, &body);
	if (e)
		return e == ERR_UNAUTHENTICATED ? BEAT_NO_MAC : BEAT_NO_FRAME;
	struct dec d = DEC_INIT(body, NULL, NULL);
	if (dec_beat(&d, &m) != ERR_NONE || !name_ok(m.name) || m.seq == 0)
		return BEAT_NO_FRAME;
	memcpy(name, m.name.p, m.name.n);
	name[m.name.n] = 0;
	pthread_mutex_lock(&b->lock);
	enum beat_verdict v = admit(b, &m, name, role, now_ns, challenge, &stamped);
	pthread_mutex_unlock(&b->lock);
	if (v != BEAT_OK)
		return v;
	*n_reply = reply_to(b, &m, role, which, stamped ? m.seq : 0, challenge, reply);
	return BEAT_OK;
}

enum beat_verdict beat_book_take(struct beat_book *b, uint64_t now_ns, struct bytes dgram,
				 uint8_t *reply, size_t *n_reply)
{
	*n_reply = 0;
	enum beat_verdict v = take(b, now_ns, dgram, reply, n_reply);
	pthread_mutex_lock(&b->lock);
	b->c.received++;
	b->c.bad_macs += v == BEAT_NO_MAC;
	b->c.bad_frames += v == BEAT_NO_FRAME;
	b->c.replays += v == BEAT_REPLAY;
	b->c.refused += v == BEAT_FULL;
	pthread_mutex_unlock(&b->lock);
	return v;
}

/* ---- the loop's side ---- */

/* Silence in a peer whose state was good counts from our own return, if we were away (I4). */
static uint64_t quiet_ns(const struct beat_book *b, const struct beat_peer *p, uint64_t since,
			 uint64_t now_ns)
{
	if (p->state != BEAT_SUSPECT && p->state != BEAT_DEAD)
		since = MAX_OF(since, b->resumed_ns);
	return now_ns > since ? now_ns - since : 0;
}

void beat_book_judge(const struct beat_book *b, struct beat_peer *p, uint64_t now_ns)
{
	uint64_t silent = quiet_ns(b, p, p->last_ns, now_ns);
	bool stands = quiet_ns(b, p, p->moved_ns, now_ns) > b->suspect_ns;
	p->loop_stands = false;
	if (silent > b->dead_ns) {
		p->state = BEAT_DEAD;
	} else if (silent > b->suspect_ns) {
		p->state = BEAT_SUSPECT;
	} else if (stands) {
		p->state = BEAT_SUSPECT;
		p->loop_stands = true;
	} else {
		p->state = p->news.ready ? BEAT_READY : BEAT_STARTING;
	}
}

static bool look_at(struct beat_book *b, size_t i, uint64_t now_ns, struct beat_peer *copy)
{
	pthread_mutex_lock(&b->lock);
	struct beat_entry *e = b->v[i];
	enum beat_state before = e->p.state;
	beat_book_judge(b, &e->p, now_ns);
	bool news = !e->told || e->p.state != before ||
		    memcmp(e->told_instance, e->p.instance, 16) != 0;
	e->told = true;
	memcpy(e->told_instance, e->p.instance, 16);
	*copy = e->p;
	pthread_mutex_unlock(&b->lock);
	return news;
}

void beat_book_look(struct beat_book *b, uint64_t now_ns, uint64_t period_ns,
		    void (*changed)(void *ctx, const struct beat_peer *p), void *ctx)
{
	if (b->looked_ns && now_ns - b->looked_ns > 3 * period_ns)
		b->resumed_ns = now_ns;
	b->looked_ns = now_ns;
	pthread_mutex_lock(&b->lock);
	size_t n = b->n;
	pthread_mutex_unlock(&b->lock);
	for (size_t i = 0; i < n; i++) {
		struct beat_peer copy;
		if (look_at(b, i, now_ns, &copy) && changed)
			changed(ctx, &copy);
	}
}
