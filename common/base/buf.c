/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void buf_fini(struct buf *b)
{
	if (!b)
		return;
	free(b->p);
	*b = (struct buf){ 0 };
}

void buf_clear(struct buf *b)
{
	b->n = 0;
	b->err = ERR_NONE;
}

uint8_t *buf_room(struct buf *b, size_t n)
{
	if (b->err != ERR_NONE)
		return NULL;
	if (n > b->limit - b->n) {
		b->err = ERR_TOO_LARGE;
		return NULL;
	}
	if (n <= b->cap - b->n)
		return b->n ? b->p + b->n : b->p; /* no sum with NULL */
	size_t cap = MAX_OF(b->cap * 2, b->n + n);
	cap = MIN_OF(MAX_OF(cap, (size_t)256), b->limit);
	uint8_t *p = realloc(b->p, cap);
	if (!p) {
		b->err = ERR_NO_MEMORY;
		return NULL;
	}
	b->p = p;
	b->cap = cap;
	return b->p + b->n;
}

void buf_put(struct buf *b, const void *p, size_t n)
{
	if (n == 0)
		return;
	uint8_t *to = buf_room(b, n);
	if (!to)
		return;
	memcpy(to, p, n);
	b->n += n;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	assert(n >= 0);
	if (n == 0)
		return;
	uint8_t *to = buf_room(b, (size_t)n);
	if (!to)
		return;
	/* vsnprintf wants room for its NUL: where the text just fits, elsewhere */
	char *tmp = b->cap - b->n > (size_t)n ? NULL : malloc((size_t)n + 1);
	if (b->cap - b->n <= (size_t)n && !tmp) {
		b->err = ERR_NO_MEMORY;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(tmp ? tmp : (char *)to, (size_t)n + 1, fmt, ap);
	va_end(ap);
	if (tmp)
		memcpy(to, tmp, (size_t)n);
	free(tmp);
	b->n += (size_t)n;
}
