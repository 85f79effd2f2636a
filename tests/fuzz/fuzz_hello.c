/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake's four decoders (B5). The first byte chooses: below 4 the bytes stand for that
 * message as they are; else they change message (byte & 3) of an honest handshake, in triples
 * of (position, position, value to xor), and no session may come of it unless nothing was
 * changed.
 */
#include "rpc/auth.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

struct ends {
	struct keyring *keys;
	struct hello_server *server;
	struct hello_client *client;
	struct buf msg[4];
	struct auth_session s, c;
};

/* splitmix64: repeatable, and no nonce comes twice. */
static void count_up(void *ctx, void *p, size_t n)
{
	uint64_t *next = ctx;
	for (size_t i = 0; i < n; i++) {
		uint64_t z = *next += 0x9e3779b97f4a7c15ull;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		((uint8_t *)p)[i] = (uint8_t)(z ^ z >> 31);
	}
}

static struct ends *make_ends(void)
{
	static struct ends e;
	static uint64_t next;
	static const uint8_t secret[AUTH_KEY_BYTES] = "a secret for fuzzing handshakes";
	static const uint8_t instance[16] = "an instance ...";
	if (keyring_new(secret, NULL, &e.keys) != ERR_NONE ||
	    hello_server_new(&(struct hello_server_opts){ .keys = e.keys,
							  .role = ROLE_HOLDER,
							  .listener = "agent",
							  .holder = "h1",
							  .instance = instance,
							  .v_min = 1,
							  .v_max = 2,
							  .random = { count_up, &next } },
			     &e.server) != ERR_NONE ||
	    hello_client_new(&(struct hello_client_opts){ .keys = e.keys,
							  .role = ROLE_CLIENT,
							  .tenant = "default",
							  .instance = instance,
							  .v_min = 1,
							  .v_max = 2,
							  .random = { count_up, &next } },
			     &e.client, NULL) != ERR_NONE)
		abort();
	for (int i = 0; i < 4; i++)
		e.msg[i] = BUF_INIT(4096);
	return &e;
}

static enum err step(struct ends *e, int i, uint64_t now_ns, struct why *w)
{
	struct peer peer;
	switch (i) {
	case 0:
		return hello_client_start(e->client, &e->msg[0]);
	case 1:
		return hello_server_challenge(e->server, buf_bytes(&e->msg[0]), now_ns,
					      &e->msg[1], w);
	case 2:
		return hello_client_challenge(e->client, buf_bytes(&e->msg[1]), &e->msg[2], w);
	case 3:
		return hello_server_prove(e->server, buf_bytes(&e->msg[2]), now_ns, 9,
					  &e->msg[3], &e->s, &peer, w);
	default:
		return hello_client_welcome(e->client, buf_bytes(&e->msg[3]), &e->c, &peer,
					    NULL, w);
	}
}

/* Changes the message; true when it is another one now. */
static bool meddle(struct buf *m, const uint8_t *p, size_t n)
{
	uint8_t before[4096];
	memcpy(before, m->p, m->n);
	for (; n >= 3; p += 3, n -= 3)
		m->p[(p[0] << 8 | p[1]) % m->n] ^= p[2];
	return memcmp(before, m->p, m->n) != 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct ends *e;
	static uint64_t now_ns = NS_PER_S;
	if (!e)
		e = make_ends();
	if (n == 0)
		return 0;
	int which = p[0] & 3;
	bool whole = p[0] < 4, changed = whole;
	struct why w = { 0 };
	enum err err = ERR_NONE;
	now_ns += 2 * NS_PER_MS;
	for (int i = 0; i < 4; i++)
		buf_clear(&e->msg[i]);
	for (int i = 0; i < 5 && err == ERR_NONE; i++) {
		err = step(e, i, now_ns, &w);
		if (i != which || err != ERR_NONE)
			continue;
		if (whole) {
			buf_clear(&e->msg[i]);
			buf_put(&e->msg[i], p + 1, MIN_OF(n - 1, (size_t)4096));
		} else {
			changed = meddle(&e->msg[i], p + 1, n - 1);
		}
	}
	assert(changed ? err != ERR_NONE : err == ERR_NONE);
	assert(err == ERR_NONE || w.text[0]);
	auth_session_fini(&e->s);
	auth_session_fini(&e->c);
	return 0;
}
