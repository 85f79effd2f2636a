/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct tls_files as a configuration of nng's TLS (mbed TLS in Debian's build: TLS 1.2 only).
 * Files are read here and not by nng, so that an error can name the file and what is wrong with it.
 *
 * A client always checks the server's certificate: against `ca`, and against the host it dials. mbed
 * TLS 2.28 compares that host with DNS names alone, so a server that is dialed by address carries
 * the address as a DNS name too (subjectAltName = DNS:10.0.0.7,IP:10.0.0.7).
 *
 * Thread: any.
 */
#pragma once

#include "rpc/rpc.h"

/* clang-format off */
#include <nng/nng.h>
#include <nng/supplemental/tls/tls.h>
/* clang-format on */

/*
 * For a dialer: ca is needed; cert and key (both or none) are shown to a server that asks.
 *
 * host  what the server's certificate must be for
 * out   owned, nng_tls_config_free()
 *
 * ERR_INVALID_PARAMS, ERR_NOT_FOUND, ERR_IO  the file named in why
 * ERR_UNSUPPORTED  this build of nng has no TLS
 */
enum err nng_tls_client(const struct tls_files *f, const char *host, nng_tls_config **out,
			struct why *why) MUST_CHECK;
/*
 * For a listener: cert and key are needed; with ca, a client's certificate is asked for and, when it
 * shows one, checked (roles from certificates come later, so none is demanded). Errors as above.
 */
enum err nng_tls_server(const struct tls_files *f, nng_tls_config **out, struct why *why)
	MUST_CHECK;
