/* SPDX-License-Identifier: Apache-2.0 */
/* What sum.c needs of sum_dispatch.c or sum_plain.c; meson picks one of them. */
#pragma once

#include "base/sum.h"

#include <xxhash.h>

void sum_update(XXH3_state_t *s, const void *p, size_t n);
