/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct tls_files, read and checked: what both engines build their TLS from. A file that is
 * missing, no PEM, of another key or out of its time is found here, at the start, and named.
 *
 * Thread: any. Reads files; nothing else blocks.
 */
#pragma once

#include "rpc/rpc.h"

struct tls_pem {
	char *text; /* NUL at its end; NULL: no such file was named */
	size_t n;
};

struct tls_loaded {
	struct tls_pem ca, cert, key;
};

/*
 * For a client: ca is needed, for the server's certificate is always checked; cert and key (both or
 * none) are shown to a server that asks. For a server: cert and key are needed; with ca, a client's
 * certificate is asked for, and checked when it shows one.
 *
 * out  owned, tls_unload()
 *
 * ERR_INVALID_PARAMS, ERR_NOT_FOUND, ERR_IO, ERR_TOO_LARGE, ERR_NO_MEMORY: why names the file, what
 * is wrong and what to do.
 */
enum err tls_load(const struct tls_files *f, bool server, struct tls_loaded *out,
		  struct why *why) MUST_CHECK;
/* Wipes the key. Safe on zeroed memory. */
void tls_unload(struct tls_loaded *l);
