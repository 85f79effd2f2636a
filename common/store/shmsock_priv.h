/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of run/agent.fd share beside its messages: proofs over them. Thread: any. Pure. */
#pragma once

#include "store/shmsock.h"

/* By the role's key over both nonces and every field but the MAC. ERR_NO_MEMORY. */
enum err shmsock_ask_proof(const uint8_t key[AUTH_KEY_BYTES],
			   const uint8_t nonce_agent[AUTH_NONCE_BYTES],
			   const struct shmsock_ask_msg *m, uint8_t mac[32]) MUST_CHECK;
enum err shmsock_grant_proof(const uint8_t key[AUTH_KEY_BYTES],
			     const uint8_t nonce_agent[AUTH_NONCE_BYTES],
			     const uint8_t nonce_client[AUTH_NONCE_BYTES],
			     const struct shmsock_grant *m, uint8_t mac[32]) MUST_CHECK;
