/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/json_in.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool json_in_text_rule(enum rule r)
{
	return r == RULE_JSON_SYNTAX || r == RULE_JSON_DUPLICATE_KEY ||
	       r == RULE_JSON_NON_FINITE || r == RULE_PLAN_CANCELLED ||
	       (r >= RULE_LIMIT_MEMORY && r < RULE_LIMIT_DIMS);
}

static size_t path_step(char *out, size_t cap, size_t at, const struct json_step *s)
{
	int n;
	if (at >= cap)
		return at;
	if (s->key)
		n = snprintf(out + at, cap - at, "%s%s", at ? "." : "", s->key);
	else if (s->extra.p)
		n = snprintf(out + at, cap - at, "%s%.*s", at ? "." : "",
			     (int)MIN_OF(s->extra.n, 64), (const char *)s->extra.p);
	else
		n = snprintf(out + at, cap - at, "[%llu]", (unsigned long long)s->idx);
	return at + (size_t)n;
}

/* Bytes that a terminal or a log could take amiss. */
static void path_clean(char *s)
{
	for (; *s; s++)
		if ((uint8_t)*s < 0x20 || (uint8_t)*s > 0x7e)
			*s = '?';
}

void json_in_path(const struct json_in *r, char *out, size_t cap)
{
	size_t at = 0;
	out[0] = 0;
	for (uint32_t i = 0; i < MIN_OF(r->n_steps, JSON_STEPS); i++) {
		const struct json_step *s = &r->steps[i];
		if (s->key && !s->key[0])
			continue; /* an object or list just begun */
		at = path_step(out, cap, at, s);
	}
	path_clean(out);
}

bool json_in_fail(struct json_in *r, enum rule rule, const char *fmt, ...)
{
	char path[sizeof(r->why->path)], text[sizeof(r->why->text)];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_in_path(r, path, sizeof(path));
	return reject_set(r->why, rule, path, "%s", text);
}

static bool syntax(struct json_in *r, const char *what)
{
	return json_in_fail(r, RULE_JSON_SYNTAX, "byte %zu: %s", (size_t)(r->p - r->start),
			    what);
}

static bool stopped(struct json_in *r)
{
	if (!stop_now(r->cancel))
		return false;
	json_in_fail(r, RULE_PLAN_CANCELLED, "stopped at byte %zu", (size_t)(r->p - r->start));
	return true;
}

/* Within one value, n bytes on: is it time to look, and to stop? */
static inline bool stopped_at(struct json_in *r, size_t n)
{
	return (n & 0xffff) == 0xffff && stopped(r);
}

/* A stop leaves it where it is: the next byte is none that could follow. */
static inline void space(struct json_in *r)
{
	const uint8_t *from = r->p;
	while (r->p < r->end &&
	       (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t') &&
	       !stopped_at(r, (size_t)(r->p - from)))
		r->p++;
}

static inline bool eat(struct json_in *r, uint8_t c)
{
	if (r->p < r->end && *r->p == c) {
		r->p++;
		return true;
	}
	space(r);
	if (r->p >= r->end || *r->p != c)
		return false;
	r->p++;
	return true;
}

static inline bool node(struct json_in *r)
{
	if (r->nodes_left-- > 0)
		return (r->nodes_left & 2047) != 0 || !stopped(r);
	r->nodes_left = 0;
	return json_in_fail(r, RULE_LIMIT_NODES, "the limit is reached at byte %zu",
			    (size_t)(r->p - r->start));
}

uint8_t json_in_peek(struct json_in *r)
{
	space(r);
	return r->p < r->end ? *r->p : 0;
}

bool json_in_open(struct json_in *r, struct bytes text, const struct json_limits *lim,
		  struct arena *mem, struct reject *why)
{
	*r = (struct json_in){
		.p = text.p, .start = text.p, .end = text.p + text.n, .why = why
	};
	r->mem = mem;
	r->cancel = lim->cancel;
	r->nodes_left = lim->nodes;
	r->depth_max = MIN_OF(lim->depth, JSON_OPEN_MAX);
	if (text.n > lim->text_bytes)
		return json_in_fail(r, RULE_LIMIT_TEXT_BYTES, "%zu bytes; at most %zu", text.n,
				    lim->text_bytes);
	return !stopped(r);
}

bool json_in_close(struct json_in *r)
{
	space(r);
	return r->p == r->end || syntax(r, "something follows the value");
}

static bool deeper(struct json_in *r)
{
	if (r->depth++ < r->depth_max)
		return node(r);
	return json_in_fail(r, RULE_LIMIT_DEPTH, "at most %u levels", r->depth_max);
}

static void step_in(struct json_in *r, struct json_step s)
{
	if (r->n_steps < JSON_STEPS)
		r->steps[r->n_steps] = s;
	r->n_steps++;
}

static inline struct json_step *step_now(struct json_in *r)
{
	return &r->steps[MIN_OF(r->n_steps, JSON_STEPS) - 1];
}

/* ---- strings ---- */

static int hex4(const uint8_t *p)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		int c = p[i] | 0x20;
		int d = p[i] >= '0' && p[i] <= '9' ? p[i] - '0'
			: c >= 'a' && c <= 'f'	   ? c - 'a' + 10
						   : -1;
		if (d < 0)
			return -1;
		v = v * 16 + d;
	}
	return v;
}

/* Length of the UTF-8 sequence at p, 0 when it is none: no overlong forms, no surrogates. */
static size_t utf8_len(const uint8_t *p, const uint8_t *end)
{
	uint8_t c = p[0];
	size_t n = c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
	if (!n || (size_t)(end - p) < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) ||
	    (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

static size_t utf8_put(uint8_t *o, uint32_t c)
{
	if (c < 0x80) {
		o[0] = (uint8_t)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i > 0; i--, c >>= 6)
		o[i] = (uint8_t)(0x80 | (c & 0x3f));
	o[0] = (uint8_t)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
	return n;
}

/* r->p at the u of an escape; leaves it behind the escape, a pair's second half included. */
static bool unicode(struct json_in *r, uint32_t *out)
{
	int hi = r->end - r->p >= 5 ? hex4(r->p + 1) : -1;
	if (hi < 0)
		return syntax(r, "four hex digits must follow \\u");
	r->p += 5;
	*out = (uint32_t)hi;
	if (hi < 0xd800 || hi > 0xdfff)
		return true;
	int lo = hi < 0xdc00 && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u'
			 ? hex4(r->p + 2)
			 : -1;
	if (lo < 0xdc00 || lo > 0xdfff)
		return syntax(r, "half of a surrogate pair");
	r->p += 6;
	*out = 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00);
	return true;
}

static bool escape(struct json_in *r, uint8_t **o)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	uint32_t c = 0;
	r->p++;
	const char *f = r->p < r->end && *r->p ? strchr(from, *r->p) : NULL;
	if (f) {
		*(*o)++ = (uint8_t)to[f - from];
		r->p++;
		return true;
	}
	if (r->p >= r->end || *r->p != 'u')
		return syntax(r, "no such escape");
	if (!unicode(r, &c))
		return false;
	*o += utf8_put(*o, c);
	return true;
}

/* End of the string that goes on at r->p: the first quote that no backslash escapes. NULL: stopped. */
static const uint8_t *string_end(struct json_in *r)
{
	const uint8_t *p = r->p;
	size_t n = 0;
	for (; p < r->end && *p != '"'; p++) {
		if (*p == '\\')
			p++;
		if (stopped_at(r, n++))
			return NULL;
	}
	return p < r->end ? p : r->end;
}

/* From the first byte that is not plain ASCII on. begin: behind the opening quote. */
static bool string_slow(struct json_in *r, const uint8_t *begin, struct bytes *out)
{
	const uint8_t *end = string_end(r);
	if (!end)
		return false;
	size_t room = (size_t)(end - begin), at = 0;
	uint8_t *mem = arena_alloc(r->mem, room + 1), *o = mem;
	if (!mem)
		return json_in_fail(r, RULE_LIMIT_MEMORY, "a string of %zu bytes", room);
	memcpy(o, begin, (size_t)(r->p - begin));
	o += r->p - begin;
	while (r->p < r->end && *r->p != '"') {
		if (stopped_at(r, at++))
			return false;
		if (*r->p == '\\') {
			if (!escape(r, &o))
				return false;
			continue;
		}
		if (*r->p < 0x20)
			return syntax(r, "raw control character in a string");
		size_t n = *r->p < 0x80 ? 1 : utf8_len(r->p, r->end);
		if (!n)
			return syntax(r, "not UTF-8");
		memcpy(o, r->p, n);
		o += n;
		r->p += n;
	}
	if (r->p >= r->end)
		return syntax(r, "the string does not end");
	r->p++;
	*out = BYTES(mem, o - mem);
	return true;
}

/* Nonzero where a byte is a quote, a backslash, below 0x20 or above 0x7e. May claim too much behind
 * a true hit, never too little. */
static inline uint64_t special8(uint64_t w)
{
	const uint64_t one = 0x0101010101010101u, top = 0x8080808080808080u;
	uint64_t q = w ^ (one * '"'), b = w ^ (one * '\\');
	return ((q - one) | (b - one) | (w - one * 0x20) | w) & top;
}

/* r->p behind the opening quote. */
static inline bool string_rest(struct json_in *r, struct bytes *out)
{
	const uint8_t *begin = r->p, *p = begin;
	while (r->end - p >= 8) {
		uint64_t w;
		memcpy(&w, p, 8);
		w = special8(w);
		if (w) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
			p += __builtin_ctzll(w) >> 3;
#endif
			break;
		}
		p += 8;
		if (((size_t)(p - begin) & 0xffff) == 0 && stopped(r))
			return false;
	}
	while (p < r->end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
		p++;
	r->p = p;
	if (p < r->end && *p == '"') {
		r->p = p + 1;
		*out = BYTES(begin, p - begin);
		return true;
	}
	return string_slow(r, begin, out);
}

/* ---- what a value is when it is not what it should be ---- */

static bool word(struct json_in *r, const char *w)
{
	size_t n = strlen(w);
	if ((size_t)(r->end - r->p) < n || memcmp(r->p, w, n) != 0)
		return false;
	r->p += n;
	return true;
}

static bool number_tail(struct json_in *r, bool *whole)
{
	const uint8_t *p = r->p;
	if (p < r->end && *p == '.') {
		*whole = false;
		for (p++; p < r->end && *p >= '0' && *p <= '9'; p++)
			if (stopped_at(r, (size_t)(p - r->p)))
				return false;
		if (p[-1] == '.')
			return syntax(r, "a digit must follow the point");
	}
	if (p < r->end && (*p | 0x20) == 'e') {
		*whole = false;
		p++;
		if (p < r->end && (*p == '+' || *p == '-'))
			p++;
		if (p >= r->end || *p < '0' || *p > '9')
			return syntax(r, "the exponent has no digits");
		for (; p < r->end && *p >= '0' && *p <= '9'; p++)
			if (stopped_at(r, (size_t)(p - r->p)))
				return false;
	}
	r->p = p;
	return true;
}

struct number {
	uint64_t v;
	bool minus, whole, over;
};

/* r->p at the first byte of a number. */
static bool number(struct json_in *r, struct number *n)
{
	*n = (struct number){ .whole = true };
	n->minus = r->p < r->end && *r->p == '-';
	r->p += n->minus;
	if (n->minus && r->p < r->end && *r->p == 'I' && word(r, "Infinity"))
		return json_in_fail(r, RULE_JSON_NON_FINITE, "-Infinity is no number here");
	const uint8_t *begin = r->p;
	uint64_t v = 0;
	for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
		bool mul = __builtin_mul_overflow(v, 10, &v);
		bool add = __builtin_add_overflow(v, (uint64_t)(*r->p - '0'), &v);
		n->over = n->over || mul || add;
		if (stopped_at(r, (size_t)(r->p - begin)))
			return false;
	}
	if (r->p == begin)
		return syntax(r, "a value was expected");
	if (*begin == '0' && r->p - begin > 1)
		return syntax(r, "a number with a leading zero");
	n->v = v;
	return number_tail(r, &n->whole);
}

/* The value here is no string, object or array: a number, a word or nonsense. */
static bool scalar(struct json_in *r)
{
	struct number n;
	if (r->p >= r->end)
		return syntax(r, "the text ends where a value was expected");
	switch (*r->p) {
	case 't':
		return word(r, "true") || syntax(r, "a value was expected");
	case 'f':
		return word(r, "false") || syntax(r, "a value was expected");
	case 'n':
		return word(r, "null") || syntax(r, "a value was expected");
	case 'N':
	case 'I':
		if (word(r, "NaN") || word(r, "Infinity"))
			return json_in_fail(r, RULE_JSON_NON_FINITE,
					    "NaN and Infinity are no numbers here");
		return syntax(r, "a value was expected");
	default:
		return number(r, &n);
	}
}

/* The value is of another type than the rule wants: reads it all the same, so that an error of the
 * text comes first (I2). */
static bool wrong_type(struct json_in *r, enum rule rule, const char *want)
{
	const uint8_t *at = r->p;
	if (!json_in_skip(r))
		return false;
	return json_in_fail(r, rule, "%s was expected, found %.*s", want,
			    (int)MIN_OF(r->p - at, 24), (const char *)at);
}

/* ---- objects and arrays ---- */

bool json_in_obj(struct json_in *r, struct json_obj *o, const struct json_field *fields,
		 uint32_t n)
{
	assert(n <= 32);
	*o = (struct json_obj){ .fields = fields, .n_fields = n };
	space(r);
	if (r->p >= r->end || *r->p != '{')
		return wrong_type(r, RULE_JSON_ROOT_TYPE, "an object");
	r->p++;
	if (!deeper(r))
		return false;
	step_in(r, (struct json_step){ .key = "" });
	return true;
}

static int obj_end(struct json_in *r, struct json_obj *o)
{
	step_now(r)->key = "";
	for (uint32_t i = 0; i < o->n_fields; i++)
		if (!(o->seen >> i & 1) && !o->fields[i].optional) {
			json_in_fail(r, RULE_JSON_FIELDS, "the key %s is missing",
				     o->fields[i].name);
			return -1;
		}
	r->n_steps--;
	r->depth--;
	o->whole = true;
	return -1;
}

/* The key's text, in any spelling, and the colon. */
static bool key_text(struct json_in *r, struct bytes *key)
{
	if (!eat(r, '"'))
		return syntax(r, "a key in double quotes was expected");
	if (!string_rest(r, key))
		return false;
	return eat(r, ':') || syntax(r, "a colon was expected");
}

static int key_found(struct json_in *r, struct json_obj *o, uint32_t f)
{
	step_now(r)->key = o->fields[f].name;
	if (o->seen >> f & 1) {
		json_in_fail(r, RULE_JSON_DUPLICATE_KEY, "the key %s occurs twice",
			     o->fields[f].name);
		return -1;
	}
	o->seen |= 1u << f;
	o->next = f + 1;
	return (int)f;
}

static int key_slow(struct json_in *r, struct json_obj *o)
{
	struct bytes key = { 0 };
	if (!key_text(r, &key))
		return -1;
	for (uint32_t i = 0; i < o->n_fields; i++)
		// NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): key_text gave it
		if (key.n == o->fields[i].n && memcmp(key.p, o->fields[i].name, key.n) == 0)
			return key_found(r, o, i);
	*step_now(r) = (struct json_step){ .extra = key };
	if (json_in_skip(r))
		json_in_fail(r, RULE_JSON_FIELDS, "no such key here");
	return -1;
}

int json_in_key(struct json_in *r, struct json_obj *o)
{
	if (eat(r, '}'))
		return obj_end(r, o);
	if (o->any && !eat(r, ',')) {
		syntax(r, "a comma or a closing brace was expected");
		return -1;
	}
	o->any = true;
	/* the usual case: the next key of the table, written plainly */
	for (uint32_t i = o->next; i < o->n_fields && i < o->next + 2; i++) {
		const struct json_field *f = &o->fields[i];
		if ((size_t)(r->end - r->p) > f->n + 2u && r->p[0] == '"' &&
		    r->p[f->n + 1] == '"' && r->p[f->n + 2] == ':' &&
		    memcmp(r->p + 1, f->name, f->n) == 0) {
			r->p += f->n + 3;
			return key_found(r, o, i);
		}
	}
	return key_slow(r, o);
}

bool json_in_map(struct json_in *r, struct json_arr *m)
{
	*m = (struct json_arr){ 0 };
	space(r);
	if (r->p >= r->end || *r->p != '{')
		return wrong_type(r, RULE_JSON_ROOT_TYPE, "an object");
	r->p++;
	if (!deeper(r))
		return false;
	step_in(r, (struct json_step){ .key = "" });
	return true;
}

bool json_in_entry(struct json_in *r, struct json_arr *m, struct bytes *key)
{
	if (eat(r, '}')) {
		r->n_steps--;
		r->depth--;
		m->whole = true;
		return false;
	}
	if (m->any && !eat(r, ','))
		return syntax(r, "a comma or a closing brace was expected");
	m->any = true;
	*step_now(r) = (struct json_step){ .key = "" };
	*key = (struct bytes){ 0 };
	if (!key_text(r, key))
		return false;
	*step_now(r) = (struct json_step){ .extra = *key };
	return true;
}

bool json_in_arr(struct json_in *r, struct json_arr *a)
{
	*a = (struct json_arr){ 0 };
	space(r);
	if (r->p >= r->end || *r->p != '[')
		return wrong_type(r, RULE_JSON_ARRAY, "a list");
	r->p++;
	if (!deeper(r))
		return false;
	step_in(r, (struct json_step){ 0 });
	return true;
}

bool json_in_item(struct json_in *r, struct json_arr *a)
{
	if (eat(r, ']')) {
		r->n_steps--;
		r->depth--;
		a->whole = true;
		return false;
	}
	if (!a->any) {
		a->any = true;
		return true;
	}
	if (!eat(r, ','))
		return syntax(r, "a comma or a closing bracket was expected");
	step_now(r)->idx = ++a->i;
	if (json_in_peek(r) == ']')
		return syntax(r, "a value was expected");
	return true;
}

/* ---- scalars ---- */

static bool u64_of(struct json_in *r, uint64_t *out)
{
	struct number n;
	if (!number(r, &n))
		return false;
	if (!n.whole)
		return json_in_fail(r, RULE_JSON_INTEGER, "a whole number was expected");
	if (n.over || (n.minus && n.v))
		return json_in_fail(r, RULE_JSON_INTEGER_RANGE, "%s; 0 to 2^64-1 is allowed",
				    n.over ? "beyond 2^64-1" : "negative");
	*out = n.v;
	return true;
}

bool json_in_u64(struct json_in *r, uint64_t *out)
{
	const uint8_t *p = r->p, *end = r->end;
	if (!node(r))
		return false;
	/* the usual case: up to 18 digits, then a comma or a bracket */
	if (p < end && *p >= '1' && *p <= '9') {
		uint64_t v = 0;
		const uint8_t *top = MIN_OF(end, p + 18);
		while (p < top && *p >= '0' && *p <= '9')
			v = v * 10 + (uint64_t)(*p++ - '0');
		if (p < end && (*p == ',' || *p == ']' || *p == '}')) {
			r->p = p;
			*out = v;
			return true;
		}
	}
	space(r);
	if (r->p < r->end && (*r->p == '-' || (*r->p >= '0' && *r->p <= '9')))
		return u64_of(r, out);
	return wrong_type(r, RULE_JSON_INTEGER, "a whole number");
}

bool json_in_u64_null(struct json_in *r, uint64_t *out, bool *have)
{
	*out = 0;
	*have = json_in_peek(r) != 'n';
	if (*have)
		return json_in_u64(r, out);
	return node(r) && scalar(r);
}

bool json_in_string(struct json_in *r, struct bytes *out)
{
	if (!node(r))
		return false;
	if (!eat(r, '"'))
		return wrong_type(r, RULE_JSON_STRING, "a string");
	return string_rest(r, out);
}

bool json_in_text(struct json_in *r, struct bytes *out)
{
	if (!json_in_string(r, out))
		return false;
	return out->n > 0 || json_in_fail(r, RULE_JSON_STRING, "the text is empty");
}

/* ---- anything ---- */

/* Keys of the objects now open, so that one that comes twice is found. */
struct skip {
	struct bytes keys[JSON_OBJ_KEYS_MAX * 4];
	uint32_t n_keys, n;
	struct {
		uint32_t first; /* of its keys */
		bool obj, any;
	} open[JSON_OPEN_MAX];
};

static bool skip_key(struct json_in *r, struct skip *s)
{
	struct bytes key = { 0 };
	uint32_t first = s->open[s->n - 1].first;
	if (!key_text(r, &key))
		return false;
	for (uint32_t i = first; i < s->n_keys; i++)
		// NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): key_text gave it
		if (s->keys[i].n == key.n && memcmp(s->keys[i].p, key.p, key.n) == 0)
			return json_in_fail(r, RULE_JSON_DUPLICATE_KEY,
					    "the key %.*s occurs twice", (int)MIN_OF(key.n, 64),
					    (const char *)key.p);
	if (s->n_keys - first >= JSON_OBJ_KEYS_MAX || s->n_keys == ARRAY_LEN(s->keys))
		return json_in_fail(r, RULE_LIMIT_OBJECT_KEYS, "at most %u", JSON_OBJ_KEYS_MAX);
	s->keys[s->n_keys++] = key;
	return true;
}

/* The beginning of a value: a scalar whole, an object or array up to its bracket. */
static bool skip_begin(struct json_in *r, struct skip *s)
{
	struct bytes b;
	uint8_t c = json_in_peek(r);
	if (c == '{' || c == '[') {
		if (!deeper(r))
			return false;
		r->p++;
		s->open[s->n].obj = c == '{';
		s->open[s->n].any = false;
		s->open[s->n++].first = s->n_keys;
		return true;
	}
	if (!node(r))
		return false;
	if (c != '"')
		return scalar(r);
	r->p++;
	return string_rest(r, &b);
}

/* Closes what ends here. *more: another value is due. */
static bool skip_next(struct json_in *r, struct skip *s, bool *more)
{
	*more = false;
	while (s->n) {
		bool obj = s->open[s->n - 1].obj;
		if (eat(r, obj ? '}' : ']')) {
			s->n_keys = s->open[--s->n].first;
			r->depth--;
			continue;
		}
		if (s->open[s->n - 1].any && !eat(r, ','))
			return syntax(r, "a comma or a closing bracket was expected");
		s->open[s->n - 1].any = true;
		*more = true;
		return !obj || skip_key(r, s);
	}
	return true;
}

bool json_in_skip(struct json_in *r)
{
	struct skip s = { .n = 0 };
	bool more = true;
	while (more)
		if (!skip_begin(r, &s) || !skip_next(r, &s, &more))
			return false;
	return true;
}
