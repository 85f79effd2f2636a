/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who speaks: roles, and the peer a handler sees. Shared by auth.h and rpc.h. No code.
 */
#pragma once

#include "base/def.h"
#include "proto/role.h"

#define TENANT_MAX   64 /* characters [A-Za-z0-9._-], without the NUL */
#define HOLDER_MAX   64 /* characters [A-Za-z0-9._-], without the NUL */
#define LISTENER_MAX 64 /* the same characters */

/* Who sent a request: from the key (later: the certificate). */
struct peer {
	enum role role;
	char tenant[TENANT_MAX + 1]; /* role client; else "" */
	uint8_t instance[16];	     /* one run of the peer's process, from HELLO */
	char holder[HOLDER_MAX + 1]; /* role holder: its id, from HELLO; else "" */
	uint32_t session;
	uint32_t wire_version; /* the version both speak */
};
