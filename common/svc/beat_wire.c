/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/beat_priv.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "rpc/addr.h"
#include "rpc/auth_crypto.h"

/* A master's beats go to its rpc port + 5: 17600 -> 17605 (answers.md). */
#define BEAT_PORT_ABOVE 5

static const char key_info[] = "pomelo/v1/beat";

static int role_idx(enum role role)
{
	return role == ROLE_HOLDER ? 0 : role == ROLE_SERVICE ? 1 : -1;
}

static enum err derive(struct beat_keys *k, const struct keyring *ring, enum role role)
{
	int r = role_idx(role);
	for (unsigned which = 0; which < 2; which++) {
		uint8_t base[AUTH_KEY_BYTES];
		if (keyring_role_key(ring, which, role, "", base) != ERR_NONE)
			break;
		enum err e = hkdf_sha256(BYTES(NULL, 0), BYTES(base, sizeof(base)),
					 BYTES(key_info, sizeof(key_info) - 1), k->k[r][which],
					 sizeof(k->k[r][which]));
		explicit_bzero(base, sizeof(base));
		if (e)
			return e;
		k->n[r]++;
	}
	return ERR_NONE;
}

enum err beat_keys_init(struct beat_keys *k, const struct keyring *ring)
{
	*k = (struct beat_keys){ 0 };
	enum err e = derive(k, ring, ROLE_HOLDER);
	if (e == ERR_NONE)
		e = derive(k, ring, ROLE_SERVICE);
	if (e == ERR_NONE && k->n[0] + k->n[1] == 0)
		e = ERR_FORBIDDEN;
	return e;
}

unsigned beat_keys_of(const struct beat_keys *k, enum role role)
{
	int r = role_idx(role);
	return r < 0 ? 0 : k->n[r];
}

static bool tag_of(const uint8_t key[32], struct bytes text, uint8_t tag[BEAT_MAC_BYTES])
{
	uint8_t full[SHA256_BYTES];
	if (hmac_sha256(BYTES(key, 32), &text, 1, full) != ERR_NONE)
		return false;
	memcpy(tag, full, BEAT_MAC_BYTES);
	return true;
}

size_t beat_seal(const struct beat_keys *k, unsigned which, enum beat_kind kind, enum role role,
		 struct bytes body, uint8_t *out)
{
	assert(which < beat_keys_of(k, role));
	if (body.n > BEAT_BYTES_MAX - BEAT_OVERHEAD)
		return 0;
	out[0] = (uint8_t)kind;
	out[1] = (uint8_t)role;
	memcpy(out + 2, body.p, body.n);
	size_t n = 2 + body.n;
	if (!tag_of(k->k[role_idx(role)][which], BYTES(out, n), out + n))
		return 0;
	return n + BEAT_MAC_BYTES;
}

enum err beat_unseal(const struct beat_keys *k, enum beat_kind kind, struct bytes dgram,
		     enum role *role, unsigned *which, struct bytes *body)
{
	uint8_t tag[BEAT_MAC_BYTES];
	if (dgram.n < BEAT_OVERHEAD || dgram.n > BEAT_BYTES_MAX ||
	    dgram.p[0] != (uint8_t)kind || role_idx((enum role)dgram.p[1]) < 0)
		return ERR_BAD_MESSAGE;
	enum role r = (enum role)dgram.p[1];
	size_t n = dgram.n - BEAT_MAC_BYTES;
	for (unsigned w = 0; w < beat_keys_of(k, r); w++) {
		if (!tag_of(k->k[role_idx(r)][w], BYTES(dgram.p, n), tag) ||
		    CRYPTO_memcmp(tag, dgram.p + n, sizeof(tag)) != 0)
			continue;
		*role = r;
		*which = w;
		*body = BYTES(dgram.p + 2, n - 2);
		return ERR_NONE;
	}
	return ERR_UNAUTHENTICATED;
}

static enum err addr_unix(const struct addr *a, char *out, struct why *why)
{
	const char *slash = strrchr(a->path, '/');
	int dir = slash ? (int)(slash - a->path + 1) : 0;
	int n = snprintf(out, BEAT_ADDR_MAX, "unix:%.*sbeat.sock", dir, a->path);
	if (n - 5 > ADDR_PATH_MAX)
		return why_set(why, ERR_TOO_LARGE,
			       "%s: the beat socket's path has over %d bytes; use --run-dir",
			       out + 5, ADDR_PATH_MAX);
	return ERR_NONE;
}

enum err beat_addr_of(const char *rpc_addr, char out[BEAT_ADDR_MAX], struct why *why)
{
	struct addr a;
	enum err e = addr_parse(rpc_addr, &a, why);
	if (e)
		return e;
	switch (a.scheme) {
	case ADDR_IPC:
		return addr_unix(&a, out, why);
	case ADDR_SIM:
		snprintf(out, BEAT_ADDR_MAX, "sim://%.120s/beat", a.host);
		return ERR_NONE;
	case ADDR_TCP:
	case ADDR_TLS:
		break;
	}
	if (a.port > UINT16_MAX - BEAT_PORT_ABOVE)
		return why_set(why, ERR_INVALID_PARAMS,
			       "%s: beats use the port %d above; use a port up to %d", rpc_addr,
			       BEAT_PORT_ABOVE, UINT16_MAX - BEAT_PORT_ABOVE);
	snprintf(out, BEAT_ADDR_MAX, strchr(a.host, ':') ? "udp://[%s]:%u" : "udp://%s:%u",
		 strcmp(a.host, "*") == 0 ? "0.0.0.0" : a.host, a.port + BEAT_PORT_ABOVE);
	return ERR_NONE;
}
