/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives under auth.h, for its own files and their tests: HMAC and HKDF over SHA-256,
 * and the keys a ring yields. Thread: any; pure.
 */
#pragma once

#include "rpc/auth.h"

#define SHA256_BYTES 32

/* HMAC-SHA256 (RFC 2104) over parts laid end to end. ERR_NO_MEMORY when the library has none.
 */
enum err hmac_sha256(struct bytes key, const struct bytes *parts, size_t n_parts,
		     uint8_t out[SHA256_BYTES]) MUST_CHECK;
/* HKDF-SHA256 (RFC 5869); n up to 255 * 32 (asserted). */
enum err hkdf_sha256(struct bytes salt, struct bytes key, struct bytes info, uint8_t *out,
		     size_t n) MUST_CHECK;

/*
 * The which-th key (0: the one to speak with; higher: also accepted) of a role and tenant, to
 * be wiped by the caller. ERR_NOT_FOUND: there are not so many.
 */
enum err keyring_role_key(const struct keyring *k, unsigned which, enum role role,
			  const char *tenant, uint8_t out[AUTH_KEY_BYTES]) MUST_CHECK;
/* The same for a holder's ticket key, HKDF(secret, "pomelo/v1/ticket/HOLDER"); clusters only.
 */
enum err keyring_ticket_key(const struct keyring *k, unsigned which, const char *holder,
			    uint8_t out[AUTH_KEY_BYTES]) MUST_CHECK;

/* Sets up a session's contexts; the keys are the caller's to wipe. */
enum err auth_session_init(struct auth_session *s, uint32_t id, const uint8_t send_key[16],
			   const uint8_t recv_key[16]) MUST_CHECK;
