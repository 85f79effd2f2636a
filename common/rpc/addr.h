/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses as text: tcp://HOST:PORT, tls+tcp://HOST:PORT, ipc://PATH, sim://NODE/NAME. HOST is a
 * name, an IPv4 address or an IPv6 address in [brackets]; "*" as a host listens on all.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/err.h"

#include <string.h>

enum addr_scheme { ADDR_TCP, ADDR_TLS, ADDR_IPC, ADDR_SIM };

/*
 * Among a holder's addresses, the ones that begin so take no rpc but data lanes (xfer/frame.h); what
 * follows "data+" is a tcp address.
 */
#define ADDR_DATA "data+"
/* Is it one of those? */
static inline bool addr_is_data(const char *text)
{
	return strncmp(text, ADDR_DATA, sizeof(ADDR_DATA) - 1) == 0;
}

/* The k-th address of data lanes of n, without that prefix: tcp://HOST:PORT, borrowed. False: there are not so many. */
static inline bool addr_data_at(const struct bytes *addrs, size_t n, size_t k,
				struct bytes *out)
{
	size_t pre = sizeof(ADDR_DATA) - 1;
	for (size_t i = 0; i < n; i++) {
		if (addrs[i].n <= pre || memcmp(addrs[i].p, ADDR_DATA, pre) != 0 || k-- > 0)
			continue;
		*out = BYTES(addrs[i].p + pre, addrs[i].n - pre);
		return true;
	}
	return false;
}

#define ADDR_PATH_MAX 107 /* sun_path less its NUL */
#define ADDR_HOST_MAX 255
#define ADDR_TEXT_MAX (ADDR_HOST_MAX + 32)

struct addr {
	enum addr_scheme scheme;
	char host[ADDR_HOST_MAX + 1]; /* tcp, tls: without brackets; sim: the node */
	char path[ADDR_HOST_MAX + 1]; /* ipc: the path; sim: the name */
	uint16_t port;		      /* tcp, tls */
};

/* The scheme alone; false when it is none of ours. */
bool addr_scheme(const char *text, enum addr_scheme *out);
/*
 * out  untouched on an error
 * why  what is wrong with which address, and the remedy
 *
 * ERR_INVALID_PARAMS  a scheme, host, port or path that cannot be
 * ERR_TOO_LARGE       an ipc path over ADDR_PATH_MAX bytes
 */
enum err addr_parse(const char *text, struct addr *out, struct why *why) MUST_CHECK;
/* The text of a: what addr_parse takes. Cut if size is less than ADDR_TEXT_MAX. */
void addr_format(const struct addr *a, char *out, size_t size);

/*
 * The name to look up for a host: "localhost" is 127.0.0.1 on every machine, whether or not its name
 * service knows it (RFC 6761; a fresh chroot has no /etc/hosts). Any other name is itself.
 */
const char *addr_known_host(const char *host);
