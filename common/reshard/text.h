/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canonical text: J (ASCII, escaped) and J8 (UTF-8 from U+007F up), written piece by piece to a
 * SHA-256, a receiver, or both. The caller writes keys and brackets as literals, in canonical
 * order; strings and numbers go through text_str and text_u64.
 *
 * Errors latch: a receiver that answers false stops all further output; text_end() tells.
 * Thread: the caller's. No memory but the struct itself and the digest's context.
 */
#pragma once

#include <string.h>

#include "reshard/stop.h"

/* SHA-256 of pieces. Zero is a valid, closed state. */
struct sha {
	void *ctx;
};

#define SHA_HEX 64

enum err sha_init(struct sha *s) MUST_CHECK;
void sha_fini(struct sha *s);
void sha_reset(struct sha *s);
void sha_add(struct sha *s, const void *p, size_t n);
/* dst (initialised) goes on from where src is. */
void sha_copy(struct sha *dst, const struct sha *src);
/* 64 lower-case digits, no 0 at the end; reset afterwards. */
void sha_hex(struct sha *s, char out[SHA_HEX]);

#define TEXT_ROOM (64u << 10)

struct text_out {
	struct sha *sha;				 /* borrowed; NULL: none */
	bool (*put)(void *arg, const void *p, size_t n); /* NULL: none */
	void *arg;
	const atomic_bool *cancel; /* borrowed; NULL: none. Looked at every TEXT_ROOM bytes */
	bool raw;		   /* J8 */
	bool ended; /* the receiver wants no more, or it was cancelled: writers may stop, and do */
	/* private */
	uint64_t n_flushed;
	size_t n;
	char room[TEXT_ROOM];
};

/* Only the head: the room need not be cleared. */
static inline void text_init(struct text_out *o, struct sha *sha, bool raw)
{
	o->sha = sha;
	o->put = NULL;
	o->arg = NULL;
	o->cancel = NULL;
	o->raw = raw;
	o->ended = false;
	o->n_flushed = o->n = 0;
}

void text_flush(struct text_out *o);
/* Bytes written so far. */
static inline uint64_t text_bytes(const struct text_out *o)
{
	return o->n_flushed + o->n;
}
/* Flushes; false when the receiver or a cancel ended it. */
bool text_end(struct text_out *o);

static inline char *text_room(struct text_out *o, size_t n)
{
	if (TEXT_ROOM - o->n < n)
		text_flush(o);
	return o->room + o->n;
}

/* n at most TEXT_ROOM. */
static inline void text_raw(struct text_out *o, const void *p, size_t n)
{
	memcpy(text_room(o, n), p, n);
	o->n += n;
}

#define text_lit(o, s) text_raw((o), "" s, sizeof(s) - 1)

/* Into room that was asked for: the end of what was written. A number takes at most PEN_U64. */
#define PEN_U64 20
char *pen_u64(char *p, uint64_t v);
static inline char *pen_raw(char *p, const void *s, size_t n)
{
	memcpy(p, s, n);
	return p + n;
}
#define pen_lit(p, s) pen_raw((p), "" s, sizeof(s) - 1)
/* What lies between text_room() and p counts. */
static inline void text_to(struct text_out *o, const char *p)
{
	o->n = (size_t)(p - o->room);
}

void text_u64(struct text_out *o, uint64_t v);
void text_u128(struct text_out *o, unsigned __int128 v);
/* With quotes and escapes; s is UTF-8. */
void text_str(struct text_out *o, struct bytes s);
/* [1,2,3] */
void text_u64s(struct text_out *o, const uint64_t *v, size_t n);
/* v or null */
void text_u64_null(struct text_out *o, bool have, uint64_t v);
