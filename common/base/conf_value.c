/* SPDX-License-Identifier: Apache-2.0 */
/* Syntax of the types: text to value, value to text, ranges. Pure but for memory. */
#include "base/conf_priv.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char *const type_texts[] = {
	[CONF_bool] = "true or false",
	[CONF_u32] = "a whole number",
	[CONF_u64] = "a whole number",
	[CONF_ms] = "whole milliseconds",
	[CONF_size] = "bytes, as 4096, 4KiB, 1GiB",
	[CONF_ratio] = "a decimal number, as 0.25",
	[CONF_str] = "text",
	[CONF_path] = "an absolute path",
	[CONF_list] = "a list, as a,b,c",
	[CONF_addrs] = "addresses, as tcp://HOST:PORT,ipc:///PATH",
	[CONF_enum] = "one word",
};

const char *conf_type_text(enum conf_type t)
{
	return type_texts[t];
}

bool conf_parse_u64(const char *text, uint64_t *out)
{
	uint64_t v = 0;
	if (*text == '\0')
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		unsigned digit = (unsigned)(*text - '0');
		if (v > (UINT64_MAX - digit) / 10)
			return false;
		v = v * 10 + digit;
	}
	*out = v;
	return true;
}

/* One line stays one line wherever a value is shown. */
static bool has_control(const char *text)
{
	for (; *text; text++)
		if (iscntrl((unsigned char)*text))
			return true;
	return false;
}

static const char *const size_units[] = { "", "KiB", "MiB", "GiB", "TiB", "PiB" };

bool conf_parse_size(const char *text, uint64_t *out)
{
	size_t n = strspn(text, "0123456789");
	char digits[24];
	if (n == 0 || n >= sizeof(digits))
		return false;
	memcpy(digits, text, n);
	digits[n] = '\0';
	uint64_t v;
	if (!conf_parse_u64(digits, &v))
		return false;
	for (unsigned i = 0; i < ARRAY_LEN(size_units); i++) {
		if (strcmp(text + n, size_units[i]) != 0)
			continue;
		if (v > UINT64_MAX >> (10 * i))
			return false;
		*out = v << (10 * i);
		return true;
	}
	return false;
}

void conf_format_size(uint64_t bytes, char out[24])
{
	unsigned i = 0;
	while (i + 1 < ARRAY_LEN(size_units) && bytes != 0 && bytes % 1024 == 0) {
		bytes /= 1024;
		i++;
	}
	snprintf(out, 24, "%llu%s", (unsigned long long)bytes, size_units[i]);
}

static bool parse_ratio(const char *text, double *out)
{
	size_t digits = strspn(text, "0123456789"), n = digits;
	if (text[n] == '.') {
		size_t more = strspn(text + n + 1, "0123456789");
		digits += more;
		n += 1 + more;
	}
	if (text[n] != '\0' || digits == 0 || n > 40)
		return false;
	*out = strtod(text, NULL);
	return true;
}

static bool parse_bool(const char *text, bool *out)
{
	static const char *const words[] = {
		"false", "true", "off", "on", "no", "yes", "0", "1"
	};
	for (unsigned i = 0; i < ARRAY_LEN(words); i++)
		if (strcmp(text, words[i]) == 0) {
			*out = i % 2 == 1;
			return true;
		}
	return false;
}

/* Place of text among the words, or -1. */
static int word_place(const char *words, const char *text)
{
	size_t n = strlen(text);
	int place = 0;
	for (const char *w = words; *w; place++) {
		size_t len = strcspn(w, " ");
		if (len == n && n > 0 && memcmp(w, text, n) == 0)
			return place;
		w += len;
		w += strspn(w, " ");
	}
	return -1;
}

#define BAD(text) ((struct conf_bad){ .err = ERR_INVALID_PARAMS, .problem = (text) })
#define BAD_RANGE(lo_)                                                    \
	((struct conf_bad){ .err = ERR_INVALID_PARAMS,                    \
			    .problem = (lo_) ? "too small" : "too large", \
			    .range = true,                                \
			    .low = (lo_) })
#define GOOD	  ((struct conf_bad){ 0 })
#define NO_MEMORY ((struct conf_bad){ .err = ERR_NO_MEMORY, .problem = "no memory left" })

/* A whole number of the type, no range. */
static bool parse_whole(enum conf_type t, const char *text, uint64_t *out)
{
	return t == CONF_size ? conf_parse_size(text, out) : conf_parse_u64(text, out);
}

/* Bounds are our own text: wrong ones are our mistake. */
static struct conf_bad check_whole(enum conf_type t, const char *lo, const char *hi, uint64_t v)
{
	uint64_t bound;
	if (*lo) {
		bool ok = parse_whole(t, lo, &bound);
		assert(ok);
		if (ok && v < bound)
			return BAD_RANGE(true);
	}
	bound = t == CONF_u32 ? UINT32_MAX : UINT64_MAX;
	if (*hi) {
		bool ok = parse_whole(t, hi, &bound);
		assert(ok);
		(void)ok;
	}
	return v > bound ? BAD_RANGE(false) : GOOD;
}

static struct conf_bad check_ratio(const char *lo, const char *hi, double v)
{
	double bound;
	if (*lo && parse_ratio(lo, &bound) && v < bound)
		return BAD_RANGE(true);
	if (*hi && parse_ratio(hi, &bound) && v > bound)
		return BAD_RANGE(false);
	return GOOD;
}

static struct conf_bad check_text(const struct conf_row *r, const char *lo, const char *hi,
				  const char *text, char **out)
{
	size_t n = strlen(text);
	if (has_control(text))
		return BAD("has a control character in it");
	if (r->type == CONF_path && n > 0 && text[0] != '/')
		return BAD("not an absolute path: it must begin with /");
	if (r->type == CONF_path && n >= PATH_MAX)
		return BAD("longer than a path may be");
	struct conf_bad bad = check_whole(CONF_u64, lo, hi, n);
	if (bad.problem)
		return (struct conf_bad){ .err = bad.err,
					  .problem = bad.low ? "too short" : "too long",
					  .range = true,
					  .low = bad.low };
	*out = strdup(text);
	return *out ? GOOD : NO_MEMORY;
}

/* "[a-z+]://" and something behind it. */
static bool is_address(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz+");
	return n > 0 && strncmp(s + n, "://", 3) == 0 && s[n + 3] != '\0';
}

/* Cuts text at commas in place; parts point into it. Returns what is wrong, or NULL. */
static const char *cut_list(bool addrs, char *text, const char **v, size_t *n)
{
	*n = 0;
	if (*text == '\0')
		return NULL;
	for (char *p = text, *comma; p; p = comma) {
		comma = strchr(p, ',');
		if (comma)
			*comma++ = '\0';
		p += strspn(p, " \t");
		for (size_t len = strlen(p); len && isspace((unsigned char)p[len - 1]); len--)
			p[len - 1] = '\0';
		if (*p == '\0')
			return "an empty part between commas";
		if (addrs && !is_address(p))
			return "not an address: write tcp://HOST:PORT or ipc:///PATH";
		v[(*n)++] = p;
	}
	return NULL;
}

static struct conf_bad parse_list(const struct conf_row *r, const char *lo, const char *hi,
				  const char *text, struct conf_list *out)
{
	size_t len = strlen(text), parts = 1, n;
	if (has_control(text))
		return BAD("has a control character in it");
	for (const char *p = text; *p; p++)
		parts += *p == ',';
	if (parts > CONF_LIST_MAX)
		return BAD_RANGE(false);
	const char **v = malloc(parts * sizeof(*v) + len + 1);
	if (!v)
		return NO_MEMORY;
	char *copy = memcpy((char *)(v + parts), text, len + 1);
	const char *problem = cut_list(r->type == CONF_addrs, copy, v, &n);
	struct conf_bad bad = problem ? BAD(problem) : check_whole(CONF_u64, lo, hi, n);
	if (bad.problem) {
		free(v);
		if (bad.range)
			bad.problem = bad.low ? "too few" : "too many";
		return bad;
	}
	*out = (struct conf_list){ .v = v, .n = n };
	return GOOD;
}

struct conf_bad conf_value_parse_in(const struct conf_row *r, const char *lo, const char *hi,
				    const char *text, struct conf_value *out)
{
	lo = lo ? lo : r->lo;
	hi = hi ? hi : r->hi;
	*out = (struct conf_value){ .u = 0 };
	switch (r->type) {
	case CONF_bool:
		return parse_bool(text, &out->b) ? GOOD : BAD("not true or false");
	case CONF_u32:
	case CONF_u64:
	case CONF_ms:
		if (!conf_parse_u64(text, &out->u))
			return BAD("not a whole number");
		return check_whole(r->type, lo, hi, out->u);
	case CONF_size:
		if (!conf_parse_size(text, &out->u))
			return BAD("not a size: write 4096, 4KiB, 16MiB, 1GiB");
		return check_whole(r->type, lo, hi, out->u);
	case CONF_ratio:
		if (!parse_ratio(text, &out->d))
			return BAD("not a decimal number");
		return check_ratio(lo, hi, out->d);
	case CONF_str:
	case CONF_path:
		return check_text(r, lo, hi, text, &out->text);
	case CONF_list:
	case CONF_addrs:
		return parse_list(r, lo, hi, text, &out->list);
	case CONF_enum:
		out->e = word_place(r->lo, text);
		return out->e >= 0 ? GOOD : BAD("not one of the words");
	}
	return BAD("of no known type");
}

struct conf_bad conf_value_parse(const struct conf_row *r, const char *text,
				 struct conf_value *out)
{
	return conf_value_parse_in(r, NULL, NULL, text, out);
}

void conf_value_free(const struct conf_row *r, struct conf_value *v)
{
	if (r->type == CONF_str || r->type == CONF_path)
		free(v->text);
	else if (r->type == CONF_list || r->type == CONF_addrs)
		free((void *)v->list.v);
	*v = (struct conf_value){ .u = 0 };
}

void conf_value_put(const struct conf_row *r, const struct conf_value *v, void *at)
{
	switch (r->type) {
	case CONF_bool:
		*(bool *)at = v->b;
		break;
	case CONF_u32:
		*(uint32_t *)at = (uint32_t)v->u;
		break;
	case CONF_u64:
	case CONF_ms:
	case CONF_size:
		*(uint64_t *)at = v->u;
		break;
	case CONF_ratio:
		*(double *)at = v->d;
		break;
	case CONF_str:
	case CONF_path:
		*(const char **)at = v->text;
		break;
	case CONF_list:
	case CONF_addrs:
		*(struct conf_list *)at = v->list;
		break;
	case CONF_enum:
		*(int *)at = v->e;
		break;
	}
}

static void print_word(const char *words, int place, struct buf *out)
{
	while (place-- > 0) {
		words += strcspn(words, " ");
		words += strspn(words, " ");
	}
	buf_put(out, words, strcspn(words, " "));
}

void conf_value_print(const struct conf_row *r, const struct conf_value *v, struct buf *out)
{
	char size[24];
	switch (r->type) {
	case CONF_bool:
		buf_printf(out, "%s", v->b ? "true" : "false");
		break;
	case CONF_u32:
	case CONF_u64:
	case CONF_ms:
		buf_printf(out, "%llu", (unsigned long long)v->u);
		break;
	case CONF_size:
		conf_format_size(v->u, size);
		buf_printf(out, "%s", size);
		break;
	case CONF_ratio:
		buf_printf(out, "%.12g", v->d);
		break;
	case CONF_str:
	case CONF_path:
		buf_printf(out, "%s", v->text ? v->text : "");
		break;
	case CONF_list:
	case CONF_addrs:
		for (size_t i = 0; i < v->list.n; i++)
			buf_printf(out, "%s%s", i ? "," : "", v->list.v[i]);
		break;
	case CONF_enum:
		print_word(r->lo, v->e, out);
		break;
	}
}

void conf_range_print(const struct conf_row *r, struct buf *out)
{
	static const char *const units[] = {
		[CONF_ms] = " ms",	[CONF_str] = " bytes",	 [CONF_path] = " bytes",
		[CONF_list] = " parts", [CONF_addrs] = " parts", [CONF_enum] = NULL,
	};
	if (r->type == CONF_enum) {
		buf_printf(out, "one of: %s", r->lo);
		return;
	}
	if (!*r->lo && !*r->hi)
		return;
	const char *unit = units[r->type] ? units[r->type] : "";
	if (*r->lo && *r->hi)
		buf_printf(out, "%s..%s%s", r->lo, r->hi, unit);
	else if (*r->lo)
		buf_printf(out, "at least %s%s", r->lo, unit);
	else
		buf_printf(out, "at most %s%s", r->hi, unit);
}

/* Edits (insert, drop, change, swap neighbours) from a to b. Two rows would do but for swaps. */
static unsigned distance(const char *a, const char *b)
{
	enum { MAX = CONF_NAME_MAX + 16 };
	size_t na = strlen(a), nb = strlen(b);
	if (na >= MAX || nb >= MAX)
		return UINT_MAX;
	unsigned d[3][MAX + 1];
	for (size_t j = 0; j <= nb; j++)
		d[0][j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned cost = a[i - 1] != b[j - 1];
			row[j] = MIN_OF(up[j - 1] + cost, MIN_OF(up[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = MIN_OF(row[j], up2[j - 2] + 1);
		}
	}
	return d[na % 3][nb];
}

const char *conf_nearest(const char *name, const char *const *names, size_t n)
{
	const char *best = NULL;
	unsigned best_d = (unsigned)strnlen(name, CONF_NAME_MAX) / 3 + 1;
	for (size_t i = 0; i < n; i++) {
		unsigned d = distance(name, names[i]);
		if (d < best_d) {
			best_d = d;
			best = names[i];
		}
	}
	return best;
}
