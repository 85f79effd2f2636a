/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_out.h"

#include <math.h>
#include <string.h>

static uint32_t level_bit(const struct json *j)
{
	return 1u << (j->depth - 1);
}

/* Before a value: the comma, unless a key has put it; asserts that a value may stand here. */
static void begin_value(struct json *j)
{
	if (j->depth == 0)
		return;
	if (j->is_obj & level_bit(j)) {
		assert(j->have_key);
		j->have_key = false;
		return;
	}
	if (j->has_item & level_bit(j))
		buf_put(j->out, ",", 1);
	j->has_item |= level_bit(j);
}

static void open_level(struct json *j, bool obj)
{
	begin_value(j);
	assert(j->depth < JSON_DEPTH_MAX);
	buf_put(j->out, obj ? "{" : "[", 1);
	j->depth++;
	j->has_item &= ~level_bit(j);
	if (obj)
		j->is_obj |= level_bit(j);
	else
		j->is_obj &= ~level_bit(j);
}

void json_obj(struct json *j)
{
	open_level(j, true);
}

void json_arr(struct json *j)
{
	open_level(j, false);
}

void json_end(struct json *j)
{
	assert(j->depth > 0 && !j->have_key);
	buf_put(j->out, j->is_obj & level_bit(j) ? "}" : "]", 1);
	j->depth--;
}

/* Length of the UTF-8 sequence at p, 0 when it is none (overlong, surrogate, cut, too high). */
static size_t utf8_len(const uint8_t *p, size_t n)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t len = p[0] < 0x80	     ? 1
		     : (p[0] & 0xe0) == 0xc0 ? 2
		     : (p[0] & 0xf0) == 0xe0 ? 3
		     : (p[0] & 0xf8) == 0xf0 ? 4
					     : 0;
	if (len == 0 || len > n)
		return 0;
	if (len == 1)
		return 1;
	uint32_t c = p[0] & (0x7fu >> len);
	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

static void put_char(struct buf *out, uint8_t c)
{
	static const char named[] = "\b\f\n\r\t", letters[] = "bfnrt";
	const char *at = c ? strchr(named, c) : NULL;
	if (c == '"' || c == '\\')
		buf_printf(out, "\\%c", c);
	else if (at)
		buf_printf(out, "\\%c", letters[at - named]);
	else if (c < 0x20 || c == 0x7f)
		buf_printf(out, "\\u%04x", c);
	else
		buf_put(out, &c, 1);
}

static void put_string(struct buf *out, struct bytes s)
{
	buf_put(out, "\"", 1);
	for (size_t i = 0; i < s.n;) {
		size_t len = utf8_len(s.p + i, s.n - i);
		if (len == 1)
			put_char(out, s.p[i]);
		else if (len == 0)
			buf_put(out, "\\ufffd", 6);
		else
			buf_put(out, s.p + i, len);
		i += MAX_OF(len, (size_t)1);
	}
	buf_put(out, "\"", 1);
}

void json_key(struct json *j, const char *key)
{
	assert(j->depth > 0 && (j->is_obj & level_bit(j)) && !j->have_key);
	if (j->has_item & level_bit(j))
		buf_put(j->out, ",", 1);
	j->has_item |= level_bit(j);
	put_string(j->out, BYTES_STR(key));
	buf_put(j->out, ":", 1);
	j->have_key = true;
}

void json_bytes(struct json *j, struct bytes s)
{
	begin_value(j);
	put_string(j->out, s);
}

void json_str(struct json *j, const char *s)
{
	json_bytes(j, BYTES_STR(s));
}

void json_u64(struct json *j, uint64_t v)
{
	begin_value(j);
	buf_printf(j->out, "%llu", (unsigned long long)v);
}

void json_i64(struct json *j, int64_t v)
{
	begin_value(j);
	buf_printf(j->out, "%lld", (long long)v);
}

void json_double(struct json *j, double v)
{
	begin_value(j);
	if (isfinite(v))
		buf_printf(j->out, "%.15g", v);
	else
		buf_printf(j->out, "null");
}

void json_bool(struct json *j, bool v)
{
	begin_value(j);
	buf_printf(j->out, "%s", v ? "true" : "false");
}

void json_nil(struct json *j)
{
	begin_value(j);
	buf_printf(j->out, "null");
}

void json_kv_str(struct json *j, const char *key, const char *s)
{
	json_key(j, key);
	json_str(j, s);
}

void json_kv_u64(struct json *j, const char *key, uint64_t v)
{
	json_key(j, key);
	json_u64(j, v);
}

void json_kv_bool(struct json *j, const char *key, bool v)
{
	json_key(j, key);
	json_bool(j, v);
}
