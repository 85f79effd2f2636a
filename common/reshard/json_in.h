/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict JSON reader over a text in memory: no tree, no copy, integers to 2^64-1 exactly. The
 * caller pulls what it expects; the first thing that differs is a refusal with its rule and path.
 *
 *	static const struct json_field fields[] = { JSON_FIELD("dp"), JSON_FIELD("tp") };
 *	struct json_obj o;
 *	if (!json_in_obj(r, &o, fields, 2)) return false;
 *	for (int f; (f = json_in_key(r, &o)) >= 0;)
 *		if (!json_in_u64(r, &rank[f])) return false;
 *	return o.whole;
 *
 * Keys may come in any order; keys in the order of the table are found without a search, so the
 * table's order should be the canonical one. A key twice, unknown or missing is refused (C1).
 *
 * I1 (B1): text_bytes, nodes and depth are checked before anything is allocated for them. Memory is
 *     taken from the arena only for strings with escapes, never more than their own text.
 * I2: the text errors (json.syntax, json.duplicate_key, json.non_finite) are found in whatever was
 *     read or skipped; a caller that meets another error reads on with json_in_skip, so that text
 *     errors come first.
 *
 * I3: cancel is looked at every 2^11 values and every 64 KiB of one value: plan.cancelled.
 *
 * No recursion. Thread: the caller's. Linear.
 */
#pragma once

#include "base/arena.h"
#include "reshard/rule.h"
#include "reshard/stop.h"

#define JSON_STEPS	  16 /* levels of a path that are named */
#define JSON_OBJ_KEYS_MAX 64 /* keys of an object nobody knows: it is refused in any case */
#define JSON_OPEN_MAX	  64 /* levels that can be skipped: the hard top of depth */

struct json_limits {
	size_t text_bytes;
	uint64_t nodes;		   /* values, at any depth */
	uint32_t depth;		   /* at most JSON_OPEN_MAX */
	const atomic_bool *cancel; /* borrowed while reading; NULL: none */
};

#define JSON_LIMITS                              \
	{                                        \
		1ull << 32, 1ull << 28, 32, NULL \
	} /* to initialise with */

struct json_step {
	const char *key;    /* NULL: an index */
	struct bytes extra; /* a key that is in no table */
	uint64_t idx;
};

struct json_in {
	const uint8_t *p, *end, *start;
	struct reject *why; /* borrowed */
	struct arena *mem;  /* borrowed: strings with escapes */
	const atomic_bool *cancel;
	uint64_t nodes_left;
	uint32_t depth, depth_max;
	uint32_t n_steps;
	struct json_step steps[JSON_STEPS];
};

struct json_field {
	const char *name;
	uint8_t n; /* length of name */
	bool optional;
};

#define JSON_FIELD(s)                           \
	{                                       \
		.name = (s), .n = sizeof(s) - 1 \
	}
#define JSON_FIELD_OPT(s)                                         \
	{                                                         \
		.name = (s), .n = sizeof(s) - 1, .optional = true \
	}

struct json_obj {
	const struct json_field *fields;
	uint32_t n_fields, next, seen;
	bool any, whole; /* whole: the object ended well */
};

struct json_arr {
	uint64_t i; /* of the item being read */
	bool any, whole;
};

/* text, mem and why are borrowed until the end of reading. False: longer than the limit. */
bool json_in_open(struct json_in *r, struct bytes text, const struct json_limits *lim,
		  struct arena *mem, struct reject *why) MUST_CHECK;
/* Nothing but white space may be left. */
bool json_in_close(struct json_in *r) MUST_CHECK;

/* At most 32 fields. json.root_type when it is no object. */
bool json_in_obj(struct json_in *r, struct json_obj *o, const struct json_field *fields,
		 uint32_t n) MUST_CHECK;
/* Index of the next field, whose value must be read then; negative at the end: see o->whole. */
int json_in_key(struct json_in *r, struct json_obj *o) MUST_CHECK;
/* An object whose keys are names, as many as there are; a key that comes twice is the caller's to find.
 * json.root_type when it is no object. */
bool json_in_map(struct json_in *r, struct json_arr *m) MUST_CHECK;
/* True: the value of this key is to be read. False at the end: see m->whole. */
bool json_in_entry(struct json_in *r, struct json_arr *m, struct bytes *key) MUST_CHECK;
bool json_in_arr(struct json_in *r, struct json_arr *a) MUST_CHECK;
/* True: an item is to be read. False at the end: see a->whole. */
bool json_in_item(struct json_in *r, struct json_arr *a) MUST_CHECK;

bool json_in_u64(struct json_in *r, uint64_t *out) MUST_CHECK;
/* null gives *have = false. */
bool json_in_u64_null(struct json_in *r, uint64_t *out, bool *have) MUST_CHECK;
/* A non-empty string, UTF-8, in the text itself or in mem. */
bool json_in_text(struct json_in *r, struct bytes *out) MUST_CHECK;
/* Any string, also an empty one. */
bool json_in_string(struct json_in *r, struct bytes *out) MUST_CHECK;
/* Any value at all, checked as strictly. */
bool json_in_skip(struct json_in *r) MUST_CHECK;
/* First byte of the next value, 0 at the end of the text. */
uint8_t json_in_peek(struct json_in *r);

/* "parts[3].fragments[0]" */
void json_in_path(const struct json_in *r, char *out, size_t cap);
/* A refusal here; false. */
bool json_in_fail(struct json_in *r, enum rule rule, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Is it a rule about the text itself (I2), or a limit? Then reading on is no use. */
bool json_in_text_rule(enum rule r);
