/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers (pml_memory.h) and the calls that hold them. Threads: any. */
#pragma once

#include "sdk.h"

/* A buffer that a call holds; a buffer may be there more than once. */
struct sop_held {
	struct sop_held *next;
	struct pml_buffer *b;
};

/*
 * Those of v that lie in registered buffers hold them, in s. Memory in none is as good.
 *
 * ERR_INVALID_PARAMS  it crosses a buffer's edge, or is to be written and may not be; ERR_NO_MEMORY
 */
enum err buffers_hold(struct pml *p, struct sop *s, const struct stc_buf *v, size_t n,
		      bool write, struct why *why) MUST_CHECK;
/* Under the lock of the handle of s, while its operation is under way. */
bool buffers_held(const struct sop *s, const struct pml_buffer *b);
/* The call is over, or never was. */
void buffers_let_go(struct sop *s);
