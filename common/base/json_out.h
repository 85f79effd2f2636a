/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON writer onto a buf: commas, nesting and escapes by itself, one line, no white space.
 *
 *   struct json j = JSON_OUT(&b);
 *   json_obj(&j);
 *   json_key(&j, "ready");  json_bool(&j, false);
 *   json_key(&j, "reasons"); json_arr(&j); json_str(&j, "starting"); json_end(&j);
 *   json_end(&j);
 *
 * Errors latch in the buf (buf_err). Misuse (a value where a key is due, too deep) is asserted.
 * Bytes that are no UTF-8 become U+FFFD. Numbers above 2^53 stay exact in the text.
 * Thread: its owner's.
 */
#pragma once

#include "base/buf.h"

#define JSON_DEPTH_MAX 32

struct json {
	struct buf *out;
	/* private */
	uint8_t depth;
	bool have_key;
	uint32_t is_obj, has_item; /* a bit a level */
};

#define JSON_OUT(b) ((struct json){ .out = (b) })

void json_obj(struct json *j);
void json_arr(struct json *j);
/* Closes the innermost object or array. */
void json_end(struct json *j);
void json_key(struct json *j, const char *key);
void json_str(struct json *j, const char *s);
void json_bytes(struct json *j, struct bytes s);
void json_u64(struct json *j, uint64_t v);
void json_i64(struct json *j, int64_t v);
/* What is not finite becomes null. */
void json_double(struct json *j, double v);
void json_bool(struct json *j, bool v);
void json_nil(struct json *j); /* null; jansson has json_null */
/* The common pairs. */
void json_kv_str(struct json *j, const char *key, const char *s);
void json_kv_u64(struct json *j, const char *key, uint64_t v);
void json_kv_bool(struct json *j, const char *key, bool v);
/* All levels closed? */
static inline bool json_whole(const struct json *j)
{
	return j->depth == 0;
}
