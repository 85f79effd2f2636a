/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_hello.h"

#include <stdio.h>
#include <string.h>
#include <openssl/crypto.h>

enum hello_state { IDLE, HELLO_SENT, PROVE_SENT };

struct hello_client {
	const struct keyring *keys;
	enum role role, expect;
	char tenant[TENANT_MAX + 1], holder[HOLDER_MAX + 1];
	char expect_listener[LISTENER_MAX + 1], expect_holder[HOLDER_MAX + 1]; /* "": any */
	uint8_t instance[16];
	uint32_t v_min, v_max;
	struct auth_random random;
	enum hello_state state;
	struct buf hello, challenge; /* the transcript so far */
	struct peer server;	     /* what CHALLENGE says; true once WELCOME proved it */
};

/* Copies an optional text; false when it does not fit. */
static bool copy_text(char *out, size_t size, const char *s)
{
	int n = snprintf(out, size, "%s", s ? s : "");
	return n >= 0 && (size_t)n < size;
}

static enum err check_opts(const struct hello_client_opts *o, struct why *why)
{
	if (o->v_min == 0 || o->v_min > o->v_max)
		return why_set(why, ERR_INVALID_PARAMS, "wire versions %u to %u are no range",
			       o->v_min, o->v_max);
	if (o->role == ROLE_HOLDER && (!o->holder || !auth_name_ok(o->holder)))
		return why_set(why, ERR_INVALID_PARAMS,
			       "a holder needs an id: 1..64 characters of A-Z a-z 0-9 . _ -");
	if (o->role == ROLE_CLIENT && (!o->tenant || !auth_name_ok(o->tenant)))
		return why_set(
			why, ERR_INVALID_PARAMS,
			"a client needs a tenant: 1..64 characters of A-Z a-z 0-9 . _ -");
	const char *tenant = o->role == ROLE_CLIENT ? o->tenant : NULL;
	if (!keyring_holds(o->keys, o->role, tenant))
		return why_set(
			why, ERR_FORBIDDEN,
			"the secret file holds no key of role %s%s%s; make one with 'pomelo "
			"secret derive %s%s%s' where the cluster's secret is",
			role_name(o->role), tenant ? " tenant " : "", tenant ? tenant : "",
			role_name(o->role), tenant ? " " : "", tenant ? tenant : "");
	return ERR_NONE;
}

enum err hello_client_new(const struct hello_client_opts *o, struct hello_client **out,
			  struct why *why)
{
	enum err e = check_opts(o, why);
	if (e != ERR_NONE)
		return e;
	struct hello_client *h = calloc(1, sizeof(*h));
	if (!h)
		return ERR_NO_MEMORY;
	h->keys = o->keys;
	h->role = o->role;
	h->expect = o->expect;
	h->v_min = o->v_min;
	h->v_max = o->v_max;
	h->random = o->random;
	h->hello.limit = h->challenge.limit = AUTH_HELLO_MAX;
	memcpy(h->instance, o->instance, sizeof(h->instance));
	if (!copy_text(h->tenant, sizeof(h->tenant),
		       o->role == ROLE_CLIENT ? o->tenant : NULL) ||
	    !copy_text(h->holder, sizeof(h->holder),
		       o->role == ROLE_HOLDER ? o->holder : NULL) ||
	    !copy_text(h->expect_listener, sizeof(h->expect_listener), o->expect_listener) ||
	    !copy_text(h->expect_holder, sizeof(h->expect_holder), o->expect_holder)) {
		free(h);
		return why_set(why, ERR_INVALID_PARAMS, "a name is longer than 64 characters");
	}
	*out = h;
	return ERR_NONE;
}

void hello_client_free(struct hello_client *h)
{
	if (!h)
		return;
	buf_fini(&h->hello);
	buf_fini(&h->challenge);
	free(h);
}

enum err hello_client_start(struct hello_client *h, struct buf *hello)
{
	uint8_t nonce[AUTH_NONCE_BYTES];
	hello_random(&h->random, nonce, sizeof(nonce));
	struct msg_hello m = { .v_min = h->v_min,
			       .v_max = h->v_max,
			       .release = BYTES_STR(POMELO_VERSION),
			       .role = (uint8_t)h->role,
			       .tenant = BYTES_STR(h->tenant),
			       .holder = BYTES_STR(h->holder),
			       .nonce = BYTES(nonce, sizeof(nonce)),
			       .mechanism = BYTES_STR(HELLO_MECHANISM) };
	memcpy(m.instance, h->instance, sizeof(m.instance));
	h->state = IDLE;
	buf_clear(&h->hello);
	/* At the oldest version we speak: whoever answers can read it. */
	enc_hello_at(&h->hello, &m, h->v_min);
	if (buf_err(&h->hello) != ERR_NONE)
		return buf_err(&h->hello);
	buf_put(hello, h->hello.p, h->hello.n);
	if (buf_err(hello) == ERR_NONE)
		h->state = HELLO_SENT;
	return buf_err(hello);
}

/* ---- CHALLENGE -> PROVE ---- */

static enum err check_version(const struct hello_client *h, const struct msg_challenge *m,
			      struct why *why)
{
	uint32_t v;
	if (!hello_agree(h->v_min, h->v_max, m->v_min, m->v_max, &v))
		return why_set(
			why, ERR_VERSION_MISMATCH,
			"we speak wire versions %u to %u, the server %u to %u; upgrade the "
			"older one",
			h->v_min, h->v_max, m->v_min, m->v_max);
	if (m->v != v)
		return why_set(why, ERR_VERSION_MISMATCH,
			       "the server chose wire version %u where both speak %u: somebody "
			       "forces an older one",
			       m->v, v);
	return ERR_NONE;
}

static enum err check_server(struct hello_client *h, const struct msg_challenge *m,
			     struct why *why)
{
	char listener[LISTENER_MAX + 1];
	struct peer *p = &h->server;
	*p = (struct peer){ .role = (enum role)m->role, .wire_version = m->v };
	memcpy(p->instance, m->instance, sizeof(p->instance));
	if (p->role != ROLE_SERVICE && p->role != ROLE_HOLDER)
		return why_set(why, ERR_BAD_MESSAGE, "CHALLENGE.role: %u, want 2 or 3",
			       m->role);
	if (!hello_name(m->listener, false, listener) ||
	    !hello_name(m->holder, p->role != ROLE_HOLDER, p->holder))
		return why_set(why, ERR_BAD_MESSAGE, "CHALLENGE names no listener or holder");
	if (m->nonce.n != AUTH_NONCE_BYTES)
		return why_set(why, ERR_BAD_MESSAGE, "CHALLENGE.nonce: %zu bytes, want %d",
			       m->nonce.n, AUTH_NONCE_BYTES);
	if (h->expect != ROLE_NONE && h->expect != p->role)
		return why_set(
			why, ERR_UNAUTHENTICATED,
			"a %s ('%s') answers at this address, a %s is expected; check the "
			"address",
			role_name(p->role), listener, role_name(h->expect));
	if (h->expect_listener[0] && strcmp(h->expect_listener, listener) != 0)
		return why_set(
			why, ERR_UNAUTHENTICATED,
			"'%s' answers at this address, '%s' is expected; check the address",
			listener, h->expect_listener);
	if (h->expect_holder[0] && strcmp(h->expect_holder, p->holder) != 0)
		return why_set(
			why, ERR_UNAUTHENTICATED,
			"holder '%s' answers at this address, '%s' is expected; check the "
			"address",
			p->holder, h->expect_holder);
	return ERR_NONE;
}

static struct transcript transcript_of(const struct hello_client *h)
{
	return (struct transcript){ buf_bytes(&h->hello), buf_bytes(&h->challenge) };
}

enum err hello_client_challenge(struct hello_client *h, struct bytes challenge,
				struct buf *prove, struct why *why)
{
	struct msg_challenge m;
	struct dec d = DEC_INIT(challenge, NULL, why);
	bool expected = h->state == HELLO_SENT;
	h->state = IDLE;
	if (!expected || challenge.n > AUTH_HELLO_MAX)
		return why_set(why, ERR_BAD_MESSAGE, "CHALLENGE: %s",
			       expected ? "longer than 1,024 bytes" : "nobody asked for one");
	enum err e = dec_challenge(&d, &m);
	if (e == ERR_NONE)
		e = check_version(h, &m, why);
	if (e == ERR_NONE)
		e = check_server(h, &m, why);
	if (e != ERR_NONE)
		return e;
	buf_clear(&h->challenge);
	buf_put(&h->challenge, challenge.p, challenge.n);
	if (buf_err(&h->challenge) != ERR_NONE)
		return buf_err(&h->challenge);

	uint8_t key[AUTH_KEY_BYTES], proof[SHA256_BYTES];
	const struct transcript t = transcript_of(h);
	e = keyring_role_key(h->keys, 0, h->role, h->tenant, key);
	if (e == ERR_NONE)
		e = hello_client_proof(key, &t, proof);
	explicit_bzero(key, sizeof(key));
	if (e != ERR_NONE)
		return e;
	enc_prove_at(prove,
		     &(struct msg_prove){ .hello = t.hello,
					  .challenge = t.challenge,
					  .proof = BYTES(proof, sizeof(proof)) },
		     m.v);
	if (buf_err(prove) == ERR_NONE)
		h->state = PROVE_SENT;
	return buf_err(prove);
}

/* ---- WELCOME ---- */

static enum err check_welcome(const struct hello_client *h, const uint8_t key[AUTH_KEY_BYTES],
			      const struct transcript *t, const struct msg_welcome *m,
			      struct why *why)
{
	struct msg_welcome plain = *m;
	uint8_t want[SHA256_BYTES];
	struct buf bare = BUF_INIT(AUTH_HELLO_MAX);
	plain.proof = BYTES(NULL, 0);
	enc_welcome_at(&bare, &plain, h->server.wire_version);
	enum err e = buf_err(&bare);
	if (e == ERR_NONE)
		e = hello_server_proof(key, t, buf_bytes(&bare), want);
	buf_fini(&bare);
	if (e != ERR_NONE)
		return e;
	if (m->proof.n != SHA256_BYTES || CRYPTO_memcmp(want, m->proof.p, SHA256_BYTES) != 0)
		return why_set(why, ERR_UNAUTHENTICATED,
			       "the server could not prove that it has the cluster's secret");
	return m->session ? ERR_NONE : why_set(why, ERR_BAD_MESSAGE, "WELCOME.session is 0");
}

enum err hello_client_welcome(struct hello_client *h, struct bytes welcome,
			      struct auth_session *s, struct peer *server,
			      struct hello_limits *limits, struct why *why)
{
	struct msg_welcome m;
	struct dec d = DEC_INIT(welcome, NULL, why);
	bool expected = h->state == PROVE_SENT;
	h->state = IDLE;
	if (!expected)
		return why_set(why, ERR_BAD_MESSAGE, "WELCOME: nobody asked for one");
	enum err e = dec_welcome(&d, &m);
	if (e != ERR_NONE)
		return e;
	uint8_t key[AUTH_KEY_BYTES];
	const struct transcript t = transcript_of(h);
	e = keyring_role_key(h->keys, 0, h->role, h->tenant, key);
	if (e == ERR_NONE)
		e = check_welcome(h, key, &t, &m, why);
	if (e == ERR_NONE)
		e = hello_session(key, &t, m.session, false, s);
	explicit_bzero(key, sizeof(key));
	if (e != ERR_NONE)
		return e;
	*server = h->server;
	server->session = m.session;
	if (limits)
		*limits = (struct hello_limits){ m.message_max, m.inflight_max };
	return ERR_NONE;
}
