/* SPDX-License-Identifier: Apache-2.0 */
/* What a fetch takes, and whether it is good: the same for lanes and for their simulated twin. */
#include "xfer/fetch.h"

#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/sum.h"

static uint64_t vector_bytes(const struct fetch *f)
{
	return obj_blocks(f->size) * sizeof(uint64_t);
}

enum err fetch_init(struct fetch *f)
{
	if (vector_bytes(f) == 0)
		return ERR_NONE;
	f->vector = malloc(vector_bytes(f));
	return f->vector ? ERR_NONE : ERR_NO_MEMORY;
}

void fetch_fini(struct fetch *f)
{
	assert(!f->running);
	free(TAKE(f->vector));
}

void fetch_begin(struct fetch *f)
{
	f->err = ERR_NONE;
	f->why = (struct why){ 0 };
	f->bad = false;
	if (!f->vector_good)
		f->vector_got = 0;
}

void fetch_fail(struct fetch *f, enum err e, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	if (f->err != ERR_NONE)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	f->err = e;
	why_note(&f->why, e, "%s", text[0] ? text : err_text(e));
}

static bool vector_due(const struct fetch *f)
{
	return f->vector && !f->vector_good;
}

size_t fetch_wanted(const struct fetch *f, struct xf_range out[2])
{
	size_t n = 0;
	if (vector_due(f))
		out[n++] = (struct xf_range){ obj_vector_at(f->size), vector_bytes(f) };
	if (f->at < f->size)
		out[n++] = (struct xf_range){ f->at, f->size - f->at };
	return n;
}

bool fetch_whole(const struct fetch *f)
{
	return f->at == f->size && !vector_due(f);
}

/* Whole blocks alone: a part could not be compared with anything. */
size_t fetch_land(struct fetch *f, uint64_t offset, size_t n, struct iovec *spans)
{
	if (vector_due(f)) {
		if (offset != obj_vector_at(f->size) + f->vector_got ||
		    n > vector_bytes(f) - f->vector_got)
			return 0;
		spans[0] = (struct iovec){ (uint8_t *)f->vector + f->vector_got, n };
		return 1;
	}
	if (offset != f->at || n == 0 || n != MIN_OF((uint64_t)OBJ_BLOCK, f->size - f->at))
		return 0;
	return xf_spans(f->ext, f->n_ext, offset, n, spans);
}

/* Behind the payload, as a put leaves it. */
static enum err keep_vector(const struct fetch *f)
{
	struct iovec v[OBJ_EXTENTS_MAX];
	const uint8_t *from = (const uint8_t *)f->vector;
	size_t k = xf_spans(f->ext, f->n_ext, obj_vector_at(f->size), vector_bytes(f), v);
	for (size_t i = 0; i < k; i++) {
		memcpy(v[i].iov_base, from, v[i].iov_len);
		from += v[i].iov_len;
	}
	return k > 0 ? ERR_NONE : ERR_BAD_TICKET; /* extents too short: looked at long before */
}

enum err fetch_landed(struct fetch *f, uint64_t offset, size_t n, uint64_t sum)
{
	uint64_t blocks = obj_blocks(f->size);
	if (vector_due(f)) {
		f->vector_got += n;
		if (f->vector_got < vector_bytes(f))
			return ERR_NONE;
		f->bad = sum_of_blocks(f->vector, blocks) != f->sum;
		f->vector_good = !f->bad;
		return f->bad ? ERR_CORRUPT : keep_vector(f);
	}
	f->bad = sum != (blocks ? le64toh(f->vector[offset / OBJ_BLOCK]) : f->sum);
	if (f->bad)
		return ERR_CORRUPT;
	f->at += n;
	return ERR_NONE;
}
