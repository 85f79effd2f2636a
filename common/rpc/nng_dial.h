/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether and why a dial of nng failed: the library tells nobody, it only counts failures by kind.
 *
 * Thread: the loop's. A call copies nng's whole tree of counters (1 us with few sockets): for the
 * time of a dial only.
 */
#pragma once

#include "rpc/addr.h"

#include <nng/nng.h>

enum dial_state { DIAL_PENDING, DIAL_FAILED, DIAL_TLS };

/* What d's counters say of its attempts so far. text: one phrase, static, when it failed. */
enum dial_state nng_dial_failure(nng_dialer d, const struct addr *a, const char **text);
