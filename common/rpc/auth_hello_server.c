/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_hello.h"

#include <stdio.h>
#include <string.h>
#include <openssl/crypto.h>

#define COOKIE_BYTES (8 + SHA256_BYTES) /* when made, big-endian nanoseconds; MAC */
#define HANDSHAKES   8192

/*
 * Challenges that became sessions, so that none does twice (I4). One lives for handshake_ms, so
 * two generations of that length remember it for long enough.
 */
struct used {
	uint64_t *slots; /* open addressing; 0 is free */
	uint32_t n;
};

struct hello_server {
	const struct keyring *keys;
	struct msg_challenge says; /* what is the same in every CHALLENGE */
	struct hello_limits limits;
	struct auth_random random;
	char listener[LISTENER_MAX + 1], holder[HOLDER_MAX + 1];
	uint8_t cookie_key[AUTH_KEY_BYTES];
	uint64_t life_ns, generation;
	uint32_t handshakes_max, n_slots;
	struct used used[2];
	struct buf scratch;
};

static bool opts_ok(const struct hello_server_opts *o)
{
	bool role_ok = o->role == ROLE_SERVICE ||
		       (o->role == ROLE_HOLDER && o->holder && auth_name_ok(o->holder));
	return role_ok && o->listener && auth_name_ok(o->listener) && o->v_min > 0 &&
	       o->v_min <= o->v_max && o->handshakes_max <= 1u << 20;
}

static enum err used_init(struct hello_server *h)
{
	h->n_slots = 16;
	while (h->n_slots < 2 * h->handshakes_max)
		h->n_slots *= 2;
	for (int i = 0; i < 2; i++) {
		h->used[i].slots = calloc(h->n_slots, sizeof(uint64_t));
		if (!h->used[i].slots)
			return ERR_NO_MEMORY;
	}
	return ERR_NONE;
}

enum err hello_server_new(const struct hello_server_opts *o, struct hello_server **out)
{
	if (!opts_ok(o))
		return ERR_INVALID_PARAMS;
	struct hello_server *h = calloc(1, sizeof(*h));
	if (!h)
		return ERR_NO_MEMORY;
	h->keys = o->keys;
	h->limits = o->limits;
	h->random = o->random;
	h->life_ns = (o->handshake_ms ? o->handshake_ms : AUTH_HANDSHAKE_MS) * NS_PER_MS;
	h->handshakes_max = o->handshakes_max ? o->handshakes_max : HANDSHAKES;
	h->scratch.limit = 2 * AUTH_HELLO_MAX;
	snprintf(h->listener, sizeof(h->listener), "%s", o->listener);
	snprintf(h->holder, sizeof(h->holder), "%s", o->role == ROLE_HOLDER ? o->holder : "");
	h->says = (struct msg_challenge){ .v_min = o->v_min,
					  .v_max = o->v_max,
					  .release = BYTES_STR(POMELO_VERSION),
					  .role = (uint8_t)o->role,
					  .listener = BYTES_STR(h->listener),
					  .holder = BYTES_STR(h->holder) };
	memcpy(h->says.instance, o->instance, sizeof(h->says.instance));
	hello_random(&h->random, h->cookie_key, sizeof(h->cookie_key));
	enum err e = used_init(h);
	if (e != ERR_NONE) {
		hello_server_free(h);
		return e;
	}
	*out = h;
	return ERR_NONE;
}

void hello_server_free(struct hello_server *h)
{
	if (!h)
		return;
	free(h->used[0].slots);
	free(h->used[1].slots);
	buf_fini(&h->scratch);
	explicit_bzero(h, sizeof(*h));
	free(h);
}

/* ---- HELLO -> CHALLENGE ---- */

struct claim {
	enum role role;
	char tenant[TENANT_MAX + 1], holder[HOLDER_MAX + 1];
	uint8_t instance[16];
	uint32_t v_min, v_max;
};

static enum err read_hello(struct bytes in, struct claim *c, struct why *why)
{
	struct msg_hello m;
	struct dec d = DEC_INIT(in, NULL, why);
	if (in.n > AUTH_HELLO_MAX)
		return why_set(why, ERR_BAD_MESSAGE, "HELLO: %zu bytes, at most %d", in.n,
			       AUTH_HELLO_MAX);
	enum err e = dec_hello(&d, &m);
	if (e != ERR_NONE)
		return e;
	*c = (struct claim){ .role = (enum role)m.role, .v_min = m.v_min, .v_max = m.v_max };
	memcpy(c->instance, m.instance, sizeof(c->instance));
	if (c->role <= ROLE_NONE || c->role > ROLE_ADMIN)
		return why_set(why, ERR_BAD_MESSAGE, "HELLO.role: %u, known are 1 to 4",
			       m.role);
	if (!hello_name(m.tenant, c->role != ROLE_CLIENT, c->tenant) ||
	    (c->role != ROLE_CLIENT && m.tenant.n))
		return why_set(
			why, ERR_BAD_MESSAGE,
			"HELLO.tenant: a client has one of 1..64 characters A-Z a-z 0-9 . _ -, "
			"the other roles none");
	if (!hello_name(m.holder, c->role != ROLE_HOLDER, c->holder) ||
	    (c->role != ROLE_HOLDER && m.holder.n))
		return why_set(
			why, ERR_BAD_MESSAGE,
			"HELLO.holder: a holder has an id of 1..64 characters A-Z a-z 0-9 . _ -, "
			"the other roles none");
	if (m.nonce.n != AUTH_NONCE_BYTES)
		return why_set(why, ERR_BAD_MESSAGE, "HELLO.nonce: %zu bytes, want %d",
			       m.nonce.n, AUTH_NONCE_BYTES);
	if (m.mechanism.n != strlen(HELLO_MECHANISM) ||
	    memcmp(m.mechanism.p, HELLO_MECHANISM, m.mechanism.n) != 0)
		return why_set(why, ERR_UNSUPPORTED,
			       "HELLO.mechanism: this server knows only " HELLO_MECHANISM);
	return ERR_NONE;
}

/* Only we can make it, for this HELLO and this CHALLENGE: `c` has an empty cookie. */
static enum err seal_cookie(struct hello_server *h, struct bytes hello,
			    const struct msg_challenge *c, uint64_t made_ns,
			    uint8_t out[COOKIE_BYTES])
{
	buf_clear(&h->scratch);
	enc_challenge_at(&h->scratch, c, c->v);
	if (buf_err(&h->scratch) != ERR_NONE)
		return buf_err(&h->scratch);
	uint32_t n = (uint32_t)hello.n;
	for (int i = 0; i < 8; i++)
		out[i] = (uint8_t)(made_ns >> (56 - 8 * i));
	const struct bytes parts[] = { BYTES(out, 8), BYTES(&n, sizeof(n)), hello,
				       buf_bytes(&h->scratch) };
	return hmac_sha256(BYTES(h->cookie_key, AUTH_KEY_BYTES), parts, ARRAY_LEN(parts),
			   out + 8);
}

enum err hello_server_challenge(struct hello_server *h, struct bytes hello, uint64_t now_ns,
				struct buf *challenge, struct why *why)
{
	struct claim c = { 0 };
	enum err e = read_hello(hello, &c, why);
	if (e != ERR_NONE)
		return e;
	struct msg_challenge m = h->says;
	if (!hello_agree(c.v_min, c.v_max, m.v_min, m.v_max, &m.v))
		return why_set(
			why, ERR_VERSION_MISMATCH,
			"the client speaks wire versions %u to %u, %s speaks %u to %u; upgrade "
			"the older one",
			c.v_min, c.v_max, h->listener, m.v_min, m.v_max);
	uint8_t nonce[AUTH_NONCE_BYTES], cookie[COOKIE_BYTES];
	hello_random(&h->random, nonce, sizeof(nonce));
	m.nonce = BYTES(nonce, sizeof(nonce));
	e = seal_cookie(h, hello, &m, now_ns, cookie);
	if (e != ERR_NONE)
		return e;
	m.cookie = BYTES(cookie, sizeof(cookie));
	enc_challenge_at(challenge, &m, m.v);
	return buf_err(challenge);
}

/* ---- PROVE -> WELCOME ---- */

/* The generation that now belongs to, emptied when its turn has come round. */
static struct used *used_now(struct hello_server *h, uint64_t now_ns)
{
	uint64_t g = now_ns / h->life_ns;
	for (uint64_t i = 1; i <= 2 && h->generation + i <= g; i++) {
		struct used *u = &h->used[(g + 1 - i) % 2];
		memset(u->slots, 0, h->n_slots * sizeof(*u->slots));
		u->n = 0;
	}
	h->generation = MAX_OF(h->generation, g);
	return &h->used[h->generation % 2];
}

static uint64_t *used_slot(const struct hello_server *h, const struct used *u, uint64_t id)
{
	uint32_t i = (uint32_t)id & (h->n_slots - 1);
	while (u->slots[i] != 0 && u->slots[i] != id)
		i = (i + 1) & (h->n_slots - 1);
	return &u->slots[i];
}

/* The challenge's own nonce, which we drew, names it. */
static enum err use_challenge(struct hello_server *h, struct bytes nonce, uint64_t now_ns,
			      struct why *why)
{
	uint64_t id;
	memcpy(&id, nonce.p, sizeof(id));
	id |= 1; /* 0 is a free slot */
	struct used *u = used_now(h, now_ns);
	for (int i = 0; i < 2; i++)
		if (*used_slot(h, &h->used[i], id) == id)
			return why_set(why, ERR_STALE_SESSION,
				       "this CHALLENGE was used already");
	if (u->n >= h->handshakes_max)
		return why_set(why, ERR_BUSY,
			       "%u handshakes ended in %llu ms, no more are taken", u->n,
			       h->life_ns / NS_PER_MS);
	*used_slot(h, u, id) = id;
	u->n++;
	return ERR_NONE;
}

static enum err check_cookie(struct hello_server *h, const struct msg_prove *m, uint64_t now_ns,
			     struct msg_challenge *c, struct why *why)
{
	struct dec d = DEC_INIT(m->challenge, NULL, why);
	enum err e = dec_challenge(&d, c);
	if (e != ERR_NONE)
		return e;
	struct bytes got = c->cookie;
	uint64_t made_ns = 0;
	c->cookie = BYTES(NULL, 0);
	if (got.n != COOKIE_BYTES || c->nonce.n != AUTH_NONCE_BYTES)
		return why_set(why, ERR_STALE_SESSION, "PROVE.challenge is not one of ours");
	for (int i = 0; i < 8; i++)
		made_ns = made_ns << 8 | got.p[i];
	uint8_t want[COOKIE_BYTES];
	e = seal_cookie(h, m->hello, c, made_ns, want);
	if (e != ERR_NONE)
		return e;
	if (CRYPTO_memcmp(want, got.p, COOKIE_BYTES) != 0)
		return why_set(why, ERR_STALE_SESSION,
			       "PROVE.challenge is not one of ours, or HELLO is another");
	if (made_ns > now_ns || now_ns - made_ns > h->life_ns)
		return why_set(why, ERR_STALE_SESSION, "the CHALLENGE is older than %llu ms",
			       h->life_ns / NS_PER_MS);
	return ERR_NONE;
}

/* The key of ours that the proof was made with, current or previous; wiped by the caller. */
static enum err find_key(const struct hello_server *h, const struct claim *c,
			 const struct transcript *t, struct bytes proof,
			 uint8_t key[AUTH_KEY_BYTES], struct why *why)
{
	uint8_t want[SHA256_BYTES];
	for (unsigned which = 0;; which++) {
		enum err e = keyring_role_key(h->keys, which, c->role, c->tenant, key);
		if (e == ERR_NOT_FOUND)
			break;
		if (e == ERR_NONE)
			e = hello_client_proof(key, t, want);
		if (e != ERR_NONE)
			return e;
		if (proof.n == SHA256_BYTES && CRYPTO_memcmp(want, proof.p, SHA256_BYTES) == 0)
			return ERR_NONE;
	}
	return why_set(
		why, ERR_UNAUTHENTICATED,
		"the proof of role %s%s%s does not match any key of %s: the secrets differ; "
		"check --secret-file on both sides",
		role_name(c->role), c->tenant[0] ? " tenant " : "", c->tenant, h->listener);
}

static enum err make_welcome(const struct hello_server *h, const uint8_t key[AUTH_KEY_BYTES],
			     const struct transcript *t, uint32_t session, uint32_t version,
			     struct buf *out)
{
	struct msg_welcome m = { .session = session,
				 .message_max = h->limits.message_max,
				 .inflight_max = h->limits.inflight_max };
	uint8_t proof[SHA256_BYTES];
	struct buf bare = BUF_INIT(AUTH_HELLO_MAX);
	enc_welcome_at(&bare, &m, version);
	enum err e = buf_err(&bare);
	if (e == ERR_NONE)
		e = hello_server_proof(key, t, buf_bytes(&bare), proof);
	buf_fini(&bare);
	if (e != ERR_NONE)
		return e;
	m.proof = BYTES(proof, sizeof(proof));
	enc_welcome_at(out, &m, version);
	return buf_err(out);
}

static enum err begin_session(struct hello_server *h, const uint8_t key[AUTH_KEY_BYTES],
			      const struct transcript *t, const struct msg_challenge *c,
			      uint64_t now_ns, uint32_t session, struct buf *welcome,
			      struct auth_session *s, struct why *why)
{
	enum err e = use_challenge(h, c->nonce, now_ns, why);
	if (e != ERR_NONE)
		return e;
	size_t before = welcome->n;
	e = make_welcome(h, key, t, session, c->v, welcome);
	if (e == ERR_NONE)
		e = hello_session(key, t, session, true, s);
	if (e != ERR_NONE)
		welcome->n = before;
	return e;
}

enum err hello_server_prove(struct hello_server *h, struct bytes prove, uint64_t now_ns,
			    uint32_t session, struct buf *welcome, struct auth_session *s,
			    struct peer *peer, struct why *why)
{
	assert(session != 0);
	struct msg_prove m;
	struct msg_challenge c;
	struct claim claim = { 0 };
	struct dec d = DEC_INIT(prove, NULL, why);
	enum err e = dec_prove(&d, &m);
	if (e == ERR_NONE)
		e = check_cookie(h, &m, now_ns, &c, why);
	if (e == ERR_NONE)
		e = read_hello(m.hello, &claim, why);
	if (e != ERR_NONE)
		return e;
	const struct transcript t = { m.hello, m.challenge };
	uint8_t key[AUTH_KEY_BYTES];
	e = find_key(h, &claim, &t, m.proof, key, why);
	if (e == ERR_NONE)
		e = begin_session(h, key, &t, &c, now_ns, session, welcome, s, why);
	explicit_bzero(key, sizeof(key));
	if (e != ERR_NONE)
		return e;
	*peer = (struct peer){ .role = claim.role, .session = session, .wire_version = c.v };
	memcpy(peer->tenant, claim.tenant, sizeof(peer->tenant));
	memcpy(peer->holder, claim.holder, sizeof(peer->holder));
	memcpy(peer->instance, claim.instance, sizeof(peer->instance));
	return ERR_NONE;
}
