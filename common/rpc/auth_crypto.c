/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <string.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

static bool hmac_run(EVP_MAC_CTX *c, struct bytes key, const struct bytes *parts,
		     size_t n_parts, uint8_t out[SHA256_BYTES])
{
	static const uint8_t none[1];
	char digest[] = "SHA256";
	const OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
		OSSL_PARAM_construct_end(),
	};
	/* A NULL key means "keep the old one" to the library, so an empty key needs a pointer.
	 */
	if (!EVP_MAC_init(c, key.n ? key.p : none, key.n, params))
		return false;
	for (size_t i = 0; i < n_parts; i++)
		if (parts[i].n && !EVP_MAC_update(c, parts[i].p, parts[i].n))
			return false;
	size_t n = 0;
	return EVP_MAC_final(c, out, &n, SHA256_BYTES) && n == SHA256_BYTES;
}

enum err hmac_sha256(struct bytes key, const struct bytes *parts, size_t n_parts,
		     uint8_t out[SHA256_BYTES])
{
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *c = mac ? EVP_MAC_CTX_new(mac) : NULL;
	bool ok = c && hmac_run(c, key, parts, n_parts, out);
	EVP_MAC_CTX_free(c);
	EVP_MAC_free(mac);
	return ok ? ERR_NONE : ERR_NO_MEMORY;
}

enum err hkdf_sha256(struct bytes salt, struct bytes key, struct bytes info, uint8_t *out,
		     size_t n)
{
	assert(n <= (size_t)255 * SHA256_BYTES);
	uint8_t prk[SHA256_BYTES], t[SHA256_BYTES];
	size_t t_n = 0;
	enum err e = hmac_sha256(salt, &key, 1, prk);
	for (uint8_t i = 1; e == ERR_NONE && n > 0; i++) {
		const struct bytes parts[] = { BYTES(t, t_n), info, BYTES(&i, 1) };
		e = hmac_sha256(BYTES(prk, sizeof(prk)), parts, 3, t);
		if (e != ERR_NONE)
			break;
		t_n = sizeof(t);
		size_t take = MIN_OF(n, t_n);
		memcpy(out, t, take);
		out += take;
		n -= take;
	}
	explicit_bzero(prk, sizeof(prk));
	explicit_bzero(t, sizeof(t));
	return e;
}
