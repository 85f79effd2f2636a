/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct tls_files as a configuration of nng's TLS (mbed TLS in Debian's build: TLS 1.2 only).
 *
 * mbed TLS 2.28 compares the host that is dialed with DNS names alone, so a server that is dialed
 * by address carries the address as a DNS name too (subjectAltName = DNS:10.0.0.7,IP:10.0.0.7).
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
 * For a dialer of host, or for a listener when host is NULL.
 *
 * out   owned, nng_tls_config_free()
 *
 * ERR_UNSUPPORTED  this build of nng has no TLS    and what tls_load says
 */
enum err nng_tls_config_new(const struct tls_files *f, const char *host, nng_tls_config **out,
			    struct why *why) MUST_CHECK;
