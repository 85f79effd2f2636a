/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The code half of rows.h: WIRE_DEFINE, put once behind a messages list in a .c file, makes each
 * message's codec and table.
 *
 * Row order is wire order. A row whose `since` is above the version asked for is not written; the
 * array's count says how many are there, which is all a reader needs.
 */
#pragma once

#include "proto/prim.h"
#include "proto/rows.h"

/* One kind's function: verb_fn(arguments..., each). */
#define WIRE_CALL(verb, ...)				     WIRE_CALL_(verb, __VA_ARGS__)
#define WIRE_CALL_(verb, fn, each, type, tag, of, ...)	     verb##_##fn(__VA_ARGS__, each)
#define WIRE_CALL1(verb, ...)				     WIRE_CALL1_(verb, __VA_ARGS__)
#define WIRE_CALL1_(verb, fn, each, type, tag, of, arg)	     verb##_##fn(arg)
#define WIRE_TAG(...)					     WIRE_TAG_(__VA_ARGS__)
#define WIRE_TAG_(fn, each, type, tag, of)		     tag
#define WIRE_ROW(...)					     WIRE_ROW_(__VA_ARGS__)
#define WIRE_ROW_(fn, each, type, tag, of, name, since, max) name, tag, since, max, each, of

/* sizeof would do, but for tidy, which takes the size of a pointer field for a slip. */
#define WIRE_ZERO(field) \
	memset(&(field), 0, (size_t)((char *)(&(field) + 1) - (char *)&(field)))

/* Rows of the oldest version cost no comparison. */
#define WIRE_SENT(since) ((since) <= WIRE_VERSION_MIN || (since) <= version)

#define WIRE_COUNT_FIELD(kind, name, since, max, doc) +(WIRE_SENT(since))

#define WIRE_BOUND_FIELD(kind, name, since, max, doc) \
	+WIRE_CALL1(bound, WIRE_K_##kind, &m->name)

/*
 * `need` bytes were free at `mark` and may be written from there. A list or a nested struct makes
 * room for itself, and then again for what is left of this struct.
 */
#define WIRE_PUT_FIELD(kind, name, since, max, doc)                                    \
	if (WIRE_SENT(since)) {                                                        \
		size_t rest = need - (size_t)(p - mark);                               \
		p = WIRE_CALL(put, WIRE_K_##kind, b, p, rest, &m->name, max, version); \
		if (WIRE_UNLIKELY(!p))                                                 \
			return NULL;                                                   \
		if (WIRE_TAG(WIRE_K_##kind) >= WIRE_U64S) {                            \
			need = rest;                                                   \
			mark = p;                                                      \
		}                                                                      \
	}

#define WIRE_GET_FIELD(kind, name, since, max, doc)                           \
	if (WIRE_LIKELY(i < n)) {                                             \
		const uint8_t *at = p;                                        \
		p = WIRE_CALL(get, WIRE_K_##kind, d, at, end, &m->name, max); \
		if (WIRE_UNLIKELY(!p))                                        \
			return wire_fail(d, at, table(), i);                  \
	} else {                                                              \
		WIRE_ZERO(m->name);                                           \
	}                                                                     \
	i++;

#define WIRE_TABLE_FIELD(kind, name, since, max, doc) \
	{ WIRE_ROW(WIRE_K_##kind, #name, since, max), offsetof(this_msg, name), doc },

/* The pointers given are never NULL, m's fields aside. */
#define WIRE_DEFINE_PUT(name, NAME)                                                        \
	WIRE_INLINE uint8_t *put_msg_##name(struct buf *b, const struct msg_##name *m,     \
					    uint32_t version)                              \
	{                                                                                  \
		size_t need = 5 MSG_##NAME(WIRE_BOUND_FIELD);                              \
		uint8_t *p = wire_room(b, need);                                           \
		if (WIRE_UNLIKELY(!p))                                                     \
			return NULL;                                                       \
		__attribute__((unused)) const uint8_t *mark = p;                           \
		p = put_array(p, 0 MSG_##NAME(WIRE_COUNT_FIELD));                          \
		MSG_##NAME(WIRE_PUT_FIELD);                                                \
		b->n = (size_t)(p - b->p);                                                 \
		return p;                                                                  \
	}                                                                                  \
	WIRE_INLINE size_t bound_list_##name(const struct list_##name *v)                  \
	{                                                                                  \
		return 5;                                                                  \
	}                                                                                  \
	WIRE_INLINE uint8_t *put_list_##name(WIRE_PUT_ARGS(struct list_##name))            \
	{                                                                                  \
		if (WIRE_UNLIKELY(v->n > max))                                             \
			return wire_over(b);                                               \
		b->n = (size_t)(put_array(p, v->n) - b->p);                                \
		for (size_t k = 0; k < v->n; k++)                                          \
			if (WIRE_UNLIKELY(!put_msg_##name(b, &v->p[k], version)))          \
				return NULL;                                               \
		return wire_room(b, need);                                                 \
	}                                                                                  \
	WIRE_INLINE size_t bound_opt_##name(const struct msg_##name *const *v)             \
	{                                                                                  \
		return 1;                                                                  \
	}                                                                                  \
	WIRE_INLINE uint8_t *put_opt_##name(struct buf *b, uint8_t *p, size_t need,        \
					    const struct msg_##name *const *v, size_t max, \
					    uint32_t version, size_t each)                 \
	{                                                                                  \
		if (!*v) {                                                                 \
			*p = 0xc0;                                                         \
			return p + 1;                                                      \
		}                                                                          \
		b->n = (size_t)(p - b->p);                                                 \
		if (WIRE_UNLIKELY(!put_msg_##name(b, *v, version)))                        \
			return NULL;                                                       \
		return wire_room(b, need);                                                 \
	}                                                                                  \
	void enc_##name##_at(struct buf *b, const struct msg_##name *m, uint32_t version)  \
	{                                                                                  \
		size_t start = b->n;                                                       \
		if (b->err != ERR_NONE)                                                    \
			return;                                                            \
		if (WIRE_LIKELY(put_msg_##name(b, m, version) && b->n <= b->limit))        \
			return;                                                            \
		b->n = start;                                                              \
		wire_over(b);                                                              \
	}

#define WIRE_DEFINE_GET(name, NAME)                                                            \
	WIRE_INLINE const uint8_t *get_msg_##name(struct dec *d, const uint8_t *p,             \
						  const uint8_t *end, struct msg_##name *m)    \
	{                                                                                      \
		const struct wire_msg *(*const table)(void) = wire_msg_##name;                 \
		const uint8_t *head = p;                                                       \
		size_t n, i = 0;                                                               \
		p = get_array(p, end, &n);                                                     \
		if (WIRE_UNLIKELY(!p))                                                         \
			return wire_fail(d, head, table(), SIZE_MAX);                          \
		MSG_##NAME(WIRE_GET_FIELD);                                                    \
		if (WIRE_LIKELY(n <= i))                                                       \
			return p;                                                              \
		head = p;                                                                      \
		p = wire_skip(p, end, n - i);                                                  \
		return p ? p : wire_fail(d, head, table(), i);                                 \
	}                                                                                      \
	WIRE_INLINE const uint8_t *get_list_##name(struct dec *d, const uint8_t *p,            \
						   const uint8_t *end,                         \
						   struct list_##name *out, size_t max,        \
						   size_t each)                                \
	{                                                                                      \
		size_t n;                                                                      \
		p = get_array(p, end, &n);                                                     \
		if (WIRE_UNLIKELY(!p || n > max))                                              \
			return NULL;                                                           \
		*out = (struct list_##name){ .n = n };                                         \
		if (n == 0)                                                                    \
			return p;                                                              \
		struct msg_##name *items = wire_items(d, n, sizeof(*items));                   \
		if (WIRE_UNLIKELY(!items))                                                     \
			return NULL;                                                           \
		for (size_t k = 0; k < n && p; k++)                                            \
			p = get_msg_##name(d, p, end, &items[k]);                              \
		out->p = items;                                                                \
		return p;                                                                      \
	}                                                                                      \
	WIRE_INLINE const uint8_t *get_opt_##name(struct dec *d, const uint8_t *p,             \
						  const uint8_t *end,                          \
						  const struct msg_##name **out, size_t max,   \
						  size_t each)                                 \
	{                                                                                      \
		if (p != end && *p == 0xc0) {                                                  \
			*out = NULL;                                                           \
			return p + 1;                                                          \
		}                                                                              \
		size_t n;                                                                      \
		struct msg_##name *item;                                                       \
		if (!get_array(p, end, &n) || !(item = wire_items(d, 1, sizeof(*item))))       \
			return NULL;                                                           \
		*out = item;                                                                   \
		return get_msg_##name(d, p, end, item);                                        \
	}                                                                                      \
	enum err dec_##name(struct dec *d, struct msg_##name *out)                             \
	{                                                                                      \
		wire_dec_begin(d);                                                             \
		return wire_dec_end(d, get_msg_##name(d, d->p, d->end, out), wire_msg_##name); \
	}

#define WIRE_DEFINE_TABLE(name, NAME, text)                                               \
	static void any_enc_##name(struct buf *b, const void *m, uint32_t version)        \
	{                                                                                 \
		enc_##name##_at(b, m, version);                                           \
	}                                                                                 \
	static enum err any_dec_##name(struct dec *d, void *m)                            \
	{                                                                                 \
		return dec_##name(d, m);                                                  \
	}                                                                                 \
	const struct wire_msg *wire_msg_##name(void)                                      \
	{                                                                                 \
		typedef struct msg_##name this_msg;                                       \
		static const struct wire_field rows[] = { MSG_##NAME(WIRE_TABLE_FIELD) }; \
		static const struct wire_msg t = {                                        \
			/* positional: `name` is the macro's */                           \
			#NAME,                                                            \
			text,                                                             \
			sizeof(this_msg),                                                 \
			rows,                                                             \
			sizeof(rows) / sizeof(struct wire_field),                         \
			any_enc_##name,                                                   \
			any_dec_##name,                                                   \
		};                                                                        \
		return &t;                                                                \
	}

#define WIRE_DEFINE(name, NAME, text) \
	WIRE_DEFINE_PUT(name, NAME)   \
	WIRE_DEFINE_GET(name, NAME)   \
	WIRE_DEFINE_TABLE(name, NAME, text)
