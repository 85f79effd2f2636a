/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing byte buffer with a hard limit. A failed append latches: later appends do nothing, and
 * buf_err() tells once at the end, so that encoders need no check per field.
 * Zero with a limit set is a valid, empty state. Thread: its owner's.
 */
#pragma once

#include "base/err.h"

struct buf {
	uint8_t *p;
	size_t n, cap;
	size_t limit; /* bytes; an append past it is ERR_TOO_LARGE */
	enum err err;
};

#define BUF_INIT(limit_bytes) ((struct buf){ .limit = (limit_bytes) })

void buf_fini(struct buf *b);
/* Empties and clears the latched error; keeps the memory. */
void buf_clear(struct buf *b);
void buf_put(struct buf *b, const void *p, size_t n);
/* Room for n more bytes at the end, or NULL (latched). The caller writes them, then buf_advance. */
uint8_t *buf_room(struct buf *b, size_t n);
static inline void buf_advance(struct buf *b, size_t n)
{
	b->n += n;
}
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
static inline enum err buf_err(const struct buf *b)
{
	return b->err;
}
static inline struct bytes buf_bytes(const struct buf *b)
{
	return BYTES(b->p, b->n);
}
