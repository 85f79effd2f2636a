/* SPDX-License-Identifier: Apache-2.0 */
/* Names of others: what they fill, how leniently, what is said about it (I3). */
#include "base/conf_priv.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct conf_alias *conf_alias_find(struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_aliases; i++)
		if (strcmp(c->aliases[i].f->name, name) == 0)
			return &c->aliases[i];
	return NULL;
}

enum err conf_alias_see(struct conf_alias *a, const char *value)
{
	if (a->value)
		return ERR_NONE;
	a->value = strndup(value, CONF_VALUE_MAX);
	return a->value ? ERR_NONE : ERR_NO_MEMORY;
}

enum err conf_unlisted_see(struct conf *c, const char *name, size_t n)
{
	if (c->n_unlisted == CONF_UNLISTED_MAX)
		return ERR_NONE;
	char *copy = strndup(name, n);
	if (!copy)
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < n; i++)
		copy[i] = iscntrl((unsigned char)copy[i]) ? '?' : copy[i];
	c->unlisted[c->n_unlisted++] = copy;
	return ERR_NONE;
}

static void notice(struct conf *c, const struct conf_alias *a, enum conf_notice_kind kind,
		   const char *fmt, ...) PRINTF_LIKE(4, 5);

/* Without memory the notice is lost, not the setting. */
static void notice(struct conf *c, const struct conf_alias *a, enum conf_notice_kind kind,
		   const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	int n = snprintf(text, sizeof(text), "%s: ", a->f->name);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	char *copy = strdup(text);
	if (copy)
		c->notices[c->n_notices++] = (struct conf_notice){
			.kind = kind, .setting = a->item ? a->item->name : "", .text = copy
		};
}

/* What "theirs=ours other=word" makes of text; NULL when it does not name it. */
static const char *map_value(const char *map, const char *text, char *out, size_t cap)
{
	size_t n = strlen(text);
	for (const char *p = map; *p;) {
		size_t len = strcspn(p, " "), key = strcspn(p, "=");
		if (key == n && strncasecmp(p, text, n) == 0) {
			snprintf(out, cap, "%.*s", (int)(len - key - 1), p + key + 1);
			return out;
		}
		p += len;
		p += strspn(p, " ");
	}
	return NULL;
}

/* Their number in our unit: whole or with a fraction when mul says so. */
static bool scale(const char *text, uint32_t mul, char *out, size_t cap)
{
	char whole[24];
	uint64_t v, sum, frac = 0, place = mul;
	size_t n = strspn(text, "0123456789");
	snprintf(whole, sizeof(whole), "%.*s", (int)MIN_OF(n, sizeof(whole) - 1), text);
	if (n >= sizeof(whole) || !conf_parse_u64(whole, &v))
		return false;
	if (text[n] == '.')
		for (n++; text[n] >= '0' && text[n] <= '9'; n++) {
			place /= 10;
			frac += place * (uint64_t)(text[n] - '0');
		}
	if (text[n] != '\0' || __builtin_mul_overflow(v, mul, &sum) ||
	    __builtin_add_overflow(sum, frac, &sum))
		return false;
	snprintf(out, cap, "%llu", (unsigned long long)sum);
	return true;
}

/* Rewrites a->value into our syntax; false: hopeless. */
static bool translate(const struct conf_alias *a, char *out, size_t cap)
{
	const struct conf_foreign *f = a->f;
	const char *text = a->value;
	if (f->map && map_value(f->map, text, out, cap))
		return true;
	if (f->mul > 1)
		return scale(text, f->mul, out, cap);
	if (f->wrap) {
		const char *at = strstr(f->wrap, "%s");
		assert(at);
		snprintf(out, cap, "%.*s%s%s", (int)(at - f->wrap), f->wrap, text, at + 2);
		return true;
	}
	snprintf(out, cap, "%s", text);
	if (a->item->row->type == CONF_bool || a->item->row->type == CONF_enum)
		for (char *p = out; *p; p++)
			*p = (char)tolower((unsigned char)*p);
	return true;
}

#define OURS_MAX (CONF_VALUE_MAX + 256)

/* ours: room for OURS_MAX */
static struct conf_bad parse_ours(const struct conf_alias *a, char *ours, struct conf_value *v,
				  bool *clamped)
{
	const struct conf_row *r = a->item->row;
	const char *lo = a->f->lo ? a->f->lo : r->lo, *hi = a->f->hi ? a->f->hi : r->hi;
	if (!translate(a, ours, OURS_MAX))
		return (struct conf_bad){ .err = ERR_INVALID_PARAMS,
					  .problem = "not a number" };
	struct conf_bad bad = conf_value_parse_in(r, lo, hi, ours, v);
	*clamped = bad.range && (a->f->flags & CONF_CLAMP);
	return *clamped ? conf_value_parse(r, bad.low ? lo : hi, v) : bad;
}

static struct conf_bad parse_theirs(const struct conf_alias *a, struct conf_value *v,
				    bool *clamped)
{
	char *ours = malloc(OURS_MAX);
	*clamped = false;
	if (!ours)
		return (struct conf_bad){ .err = ERR_NO_MEMORY, .problem = "no memory left" };
	struct conf_bad bad = parse_ours(a, ours, v, clamped);
	free(ours);
	return bad;
}

static enum err take_theirs(struct conf *c, struct conf_alias *a)
{
	struct conf_item *it = a->item;
	struct conf_value v;
	bool clamped;
	char origin[CONF_NAME_MAX * 2], shown[80];
	struct conf_bad bad = parse_theirs(a, &v, &clamped);
	if (bad.err == ERR_NO_MEMORY)
		return ERR_NO_MEMORY;
	conf_quote(it->row, a->value, shown, sizeof(shown));
	struct buf b = BUF_INIT(1024);
	conf_range_print(it->row, &b);
	buf_put(&b, "", 1);
	const char *range = b.p && *b.p ? (const char *)b.p : conf_type_text(it->row->type);
	if (bad.problem) {
		bool problem = it->row->flags & CONF_NAMES_USE;
		notice(c, a, problem ? CONF_PROBLEM : CONF_WARN, "%s: %s; allowed %s; %s %s",
		       shown, bad.problem, range,
		       problem ? "correct or unset it; off until then: what uses"
			       : "ignored, the default stays for",
		       it->name);
	} else if (clamped) {
		notice(c, a, CONF_WARN,
		       "%s is out of range for %s; the nearest bound is used%s%s", shown,
		       it->name, a->f->note ? ": " : "", a->f->note ? a->f->note : "");
	} else if (a->f->note) {
		notice(c, a, CONF_NOTE, "%s", a->f->note);
	}
	buf_fini(&b);
	if (bad.problem)
		return ERR_NONE;
	snprintf(origin, sizeof(origin), "%s %s%s", a->f->name[0] == '-' ? "flag" : "env",
		 a->f->name, clamped ? " (clamped)" : "");
	return conf_store(it, v, CONF_SHARED, CONF_FOREIGN, origin);
}

/* An earlier alias of the same setting that is present wins, even when it is empty. */
static bool beaten(const struct conf *c, const struct conf_alias *a)
{
	for (const struct conf_alias *b = c->aliases; b < a; b++)
		if (b->item == a->item && b->value)
			return true;
	return false;
}

enum err conf_foreign_resolve(struct conf *c)
{
	assert(!c->ended);
	c->ended = true;
	for (size_t i = 0; i < c->n_aliases; i++) {
		struct conf_alias *a = &c->aliases[i];
		if (!a->value)
			continue;
		if (!a->item) {
			notice(c, a, CONF_NOTE, "%s",
			       a->f->note ? a->f->note : "not used here");
			continue;
		}
		if (a->item->kind > CONF_FOREIGN || beaten(c, a) || a->value[0] == '\0')
			continue;
		enum err e = take_theirs(c, a);
		if (e)
			return e;
	}
	return ERR_NONE;
}

size_t conf_notices(const struct conf *c, const struct conf_notice **out)
{
	*out = c->notices;
	return c->n_notices;
}

size_t conf_unlisted(const struct conf *c, const char *const **out)
{
	*out = c->unlisted;
	return c->n_unlisted;
}
