/* SPDX-License-Identifier: Apache-2.0 */
/* Hex in test vectors. */
#pragma once

#include "base/def.h"

#include <stdio.h>
#include <string.h>

/* The bytes of a hex text into out; returns how many. */
static inline size_t from_hex(const char *text, uint8_t *out)
{
	size_t n = strlen(text) / 2;
	for (size_t i = 0; i < n; i++) {
		unsigned b;
		sscanf(text + 2 * i, "%2x", &b);
		out[i] = (uint8_t)b;
	}
	return n;
}
