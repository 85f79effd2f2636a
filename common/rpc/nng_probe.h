/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a dial of nng failed. The library only counts failures by kind; for TLS the kind ("auth")
 * says too little to act on, so the handshake is made once more with OpenSSL, which names what is
 * wrong with the certificate.
 *
 * Thread: the loop's.
 */
#pragma once

#include "loop/loop.h"
#include "rpc/addr.h"

#include <nng/nng.h>

enum dial_state { DIAL_PENDING, DIAL_FAILED, DIAL_TLS };

/* What d's counters say of its attempts so far. text: one phrase, static, when it failed. */
enum dial_state nng_dial_failure(nng_dialer d, const struct addr *a, const char **text);

struct nng_probe;

/*
 * Dials a, shakes hands, checks the certificate against the CA file and a's host, then hangs up.
 * NULL when it could not begin. done runs once, later, also after nng_probe_cancel; text is
 * borrowed for the call.
 */
struct nng_probe *nng_probe_tls(struct loop *l, const struct addr *a, const char *ca,
				uint64_t deadline_ns, void (*done)(void *arg, const char *text),
				void *arg);
void nng_probe_cancel(struct nng_probe *p);
