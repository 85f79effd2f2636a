/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both ends of HELLO compute alike (docs/decisions/0001-handshake.md). Internal to
 * auth_hello_*.c. Thread: any; pure.
 */
#pragma once

#include "proto/messages.h"
#include "rpc/auth_crypto.h"

#define HELLO_MECHANISM "hmac-sha256"

/* Both first messages, byte for byte as they went over the wire: nothing in them can be
 * changed, left out or added without the proofs failing, fields of later versions included. */
struct transcript {
	struct bytes hello, challenge;
};

/* The highest version in both ranges; false when there is none. */
bool hello_agree(uint32_t a_min, uint32_t a_max, uint32_t b_min, uint32_t b_max, uint32_t *out);

enum err hello_client_proof(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
			    uint8_t out[SHA256_BYTES]) MUST_CHECK;
/* welcome: encoded at the agreed version with an empty proof. */
enum err hello_server_proof(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
			    struct bytes welcome, uint8_t out[SHA256_BYTES]) MUST_CHECK;
/* The session's contexts; is_server says which key is whose. */
enum err hello_session(const uint8_t key[AUTH_KEY_BYTES], const struct transcript *t,
		       uint32_t session, bool is_server, struct auth_session *out) MUST_CHECK;

/* v as a NUL-ended name (auth_name_ok, or empty when may_be_empty). */
bool hello_name(struct bytes v, bool may_be_empty, char out[TENANT_MAX + 1]);
/* n random bytes from r, or from the kernel. */
void hello_random(const struct auth_random *r, void *p, size_t n);
