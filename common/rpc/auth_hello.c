/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_hello.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

bool hello_agree(uint32_t a_min, uint32_t a_max, uint32_t b_min, uint32_t b_max, uint32_t *out)
{
	uint32_t lo = MAX_OF(a_min, b_min), hi = MIN_OF(a_max, b_max);
	if (lo == 0 || lo > hi)
		return false;
	*out = hi;
	return true;
}

static void be32(uint8_t out[4], uint32_t v)
{
	for (int i = 0; i < 4; i++)
		out[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* HMAC over a label of fixed meaning and length-prefixed parts, so that no two inputs look
 * alike. */
static enum err labelled(const uint8_t key[AUTH_KEY_BYTES], const char *label,
			 const struct transcript *t, struct bytes more,
			 uint8_t out[SHA256_BYTES])
{
	uint8_t n[3][4];
	be32(n[0], (uint32_t)t->hello.n);
	be32(n[1], (uint32_t)t->challenge.n);
	be32(n[2], (uint32_t)more.n);
	const struct bytes parts[] = { BYTES(label, strlen(label) + 1),
				       BYTES(n[0], 4),
				       t->hello,
				       BYTES(n[1], 4),
				       t->challenge,
				       BYTES(n[2], 4),
				       more };
	return hmac_sha256(BYTES(key, AUTH_KEY_BYTES), parts, ARRAY_LEN(parts), out);
}

enum err hello_client_proof(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
			    uint8_t out[SHA256_BYTES])
{
	return labelled(key, "pomelo/v1/hello/client", t, BYTES(NULL, 0), out);
}

enum err hello_server_proof(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
			    struct bytes welcome, uint8_t out[SHA256_BYTES])
{
	return labelled(key, "pomelo/v1/hello/server", t, welcome, out);
}

static enum err direction_key(const uint8_t master[SHA256_BYTES], bool to_server,
			      uint32_t session, uint8_t out[16])
{
	char info[] = "pomelo/v1/session/c2s....";
	uint8_t *number = (uint8_t *)info + sizeof(info) - 1 - 4;
	if (!to_server) {
		number[-3] = 's';
		number[-1] = 'c';
	}
	be32(number, session);
	return hkdf_sha256(BYTES(NULL, 0), BYTES(master, SHA256_BYTES),
			   BYTES(info, sizeof(info) - 1), out, 16);
}

enum err hello_session(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
		       uint32_t session, bool is_server, struct auth_session *out)
{
	uint8_t master[SHA256_BYTES], c2s[16], s2c[16];
	enum err e = labelled(key, "pomelo/v1/hello/session", t, BYTES(NULL, 0), master);
	if (e == ERR_NONE)
		e = direction_key(master, true, session, c2s);
	if (e == ERR_NONE)
		e = direction_key(master, false, session, s2c);
	if (e == ERR_NONE)
		e = auth_session_init(out, session, is_server ? s2c : c2s,
				      is_server ? c2s : s2c);
	explicit_bzero(master, sizeof(master));
	explicit_bzero(c2s, sizeof(c2s));
	explicit_bzero(s2c, sizeof(s2c));
	return e;
}

bool hello_name(struct bytes v, bool may_be_empty, char out[TENANT_MAX + 1])
{
	if (v.n > TENANT_MAX)
		return false;
	if (v.n)
		memcpy(out, v.p, v.n);
	out[v.n] = '\0';
	return v.n == 0 ? may_be_empty : strlen(out) == v.n && auth_name_ok(out);
}

void hello_random(const struct auth_random *r, void *p, size_t n)
{
	if (r->fn) {
		r->fn(r->ctx, p, n);
		return;
	}
	for (uint8_t *at = p; n > 0;) {
		ssize_t got = getrandom(at, n, 0);
		assert(got > 0 || errno == EINTR); /* it can fail no other way on Linux */
		if (got > 0) {
			at += got;
			n -= (size_t)got;
		}
	}
}
