/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire (design.md section 4, README.md here): what every generated codec stands on, and the
 * generic calls that work on any message by its table. The messages themselves are in messages.h.
 *
 * A message is a msgpack array, its elements in row order. Reading: elements beyond the known rows
 * are skipped, missing trailing ones are zero (C1); a message of no bytes at all is one with every
 * field zero. Each integer is taken in any of msgpack's widths and checked against the row's type;
 * strings and binaries against the row's limit. Bytes after the message are an error.
 *
 *	struct msg_echo_req m;
 *	struct why why = { 0 };
 *	struct arena a = ARENA_INIT(64 << 10);
 *	struct dec d = DEC_INIT(bytes, &a, &why);
 *	enum err e = dec_echo_req(&d, &m);	   m borrows from bytes and a
 *
 *	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
 *	enc_echo_req(&b, &m);			   appends
 *	e = buf_err(&b);			   ERR_TOO_LARGE: wire_explain() names the field
 *
 * I1 (B5): nothing is allocated for a count that the bytes left, or the row's limit, rule out.
 * I2: what encodes without error decodes to the same message.
 * I3: reading does not recurse over input; nesting in skipped elements is limited.
 *
 * Thread: any; no state but the arguments'.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"

#define WIRE_VERSION_MIN \
	1	       /* the oldest version this release speaks (C1: release N talks to N-1) */
#define WIRE_VERSION 1 /* the newest: raised when a row is appended */

#define WIRE_MESSAGE_MAX (8u << 20) /* bytes of a message, design.md section 6 */
#define WIRE_DEPTH_MAX	 16	    /* nested arrays and maps in skipped or scanned bytes */
#define WIRE_TAG_BYTES	 16	    /* the MAC behind an envelope, outside msgpack */

/* ---- lists in messages; those of structs are `struct list_NAME`, in messages.h ---- */

struct u64s {
	const uint64_t *p;
	size_t n;
};
struct bytes_list {
	const struct bytes *p;
	size_t n;
};

/* ---- reading ---- */

struct dec {
	const uint8_t *p, *end; /* what is to be read; borrowed */
	const uint8_t *start;	/* for offsets in texts */
	struct arena
		*arena;	 /* lists and optional structs; NULL: a message with one is refused */
	struct why *why; /* may be NULL; names message and field, never content */
	enum err err;
};

/* A reader of `in`, which is borrowed as long as what is decoded from it. */
static inline struct dec dec_init(struct bytes in, struct arena *arena, struct why *why)
{
	const uint8_t *end = in.n ? in.p + in.n : in.p;
	return (struct dec){ .p = in.p, .end = end, .start = in.p, .arena = arena, .why = why };
}
#define DEC_INIT(in, arena, why) dec_init(in, arena, why)

/*
 * Errors of every dec_NAME(); on one of them out is undefined:
 *
 * ERR_BAD_MESSAGE  why: "HELLO.tenant: 70 bytes, at most 64", and the like
 * ERR_TOO_LARGE    the lists need more than the arena's limit
 * ERR_NO_MEMORY    the heap is used up
 */

/*
 * Is `in` exactly one well-formed msgpack value, at most WIRE_DEPTH_MAX deep, with no count that the
 * bytes cannot hold, and n_max values in all? For bytes that go to msgpack-c or another general
 * parser, which believe counts before they see data. Allocates nothing; O(bytes).
 *
 * ERR_BAD_MESSAGE, ERR_TOO_LARGE (more than n_max); why says what and at which byte
 */
enum err wire_scan(struct bytes in, size_t n_max, struct why *why) MUST_CHECK;

/* ---- the tables ---- */

enum wire_kind {
	WIRE_BOOL,
	WIRE_U8,
	WIRE_U16,
	WIRE_U32,
	WIRE_U64,
	WIRE_I64,
	WIRE_F64,
	WIRE_STR,  /* struct bytes; msgpack str; not checked to be UTF-8 */
	WIRE_BIN,  /* struct bytes; msgpack bin */
	WIRE_ID16, /* uint8_t[16]; msgpack bin of 16 */
	WIRE_U64S, /* struct u64s; from here on the encoder makes room for each item */
	WIRE_STRS, /* struct bytes_list */
	WIRE_BINS, /* struct bytes_list */
	WIRE_LIST, /* struct list_NAME: p, n */
	WIRE_OPT,  /* const struct msg_NAME *; nil: NULL */
};

struct wire_msg;

struct wire_field {
	const char *name;
	enum wire_kind kind;
	uint32_t since;			    /* wire version that brought it */
	uint64_t max;			    /* bytes of STR, BIN; items of a list; else 0 */
	uint64_t each;			    /* bytes of one item of STRS, BINS */
	const struct wire_msg *(*of)(void); /* LIST, OPT */
	size_t offset;			    /* in struct msg_NAME */
	const char *doc;
};

struct wire_msg {
	const char *name; /* "HELLO" */
	const char *doc;
	size_t size; /* of struct msg_NAME */
	const struct wire_field *fields;
	size_t n_fields;
	void (*enc)(struct buf *b, const void *m, uint32_t version);
	enum err (*dec)(struct dec *d, void *m);
};

/* "u32", "list of REPLICA" without the of: "list of". */
const char *wire_kind_name(enum wire_kind k);

/*
 * Appends m as one JSON object: binaries as hex, absent optional structs as null, rows newer than
 * `version` left out. For debugging: content is printed as it is, secrets too. buf_err(out) tells
 * of its limit.
 */
void wire_json_at(struct buf *out, const struct wire_msg *t, const void *m, uint32_t version);
static inline void wire_json(struct buf *out, const struct wire_msg *t, const void *m)
{
	wire_json_at(out, t, m, UINT32_MAX);
}

/* The newest version that brought a row of t, or of a struct in it: its bytes differ from there. */
uint32_t wire_newest(const struct wire_msg *t);

/*
 * Why enc_NAME() latched an error: the first field over its row's limit, or the message over the
 * buffer's. Returns e, after why_set(). For the error path: walks all of m.
 */
enum err wire_explain(const struct wire_msg *t, const void *m, enum err e, struct why *why);
