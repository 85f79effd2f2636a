/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/vec.h"

#include <stdio.h>
#include <string.h>

struct parse {
	const char *p, *end;
	char *out; /* decoded strings */
	struct vec *node;
	size_t n, cap;
};

static void bad(const char *what, const char *name)
{
	fprintf(stderr, "vectors: %s: %s\n", what, name);
	exit(2);
}

static void space(struct parse *s)
{
	while (s->p < s->end && strchr(" \n\r\t", *s->p))
		s->p++;
}

static uint32_t hex4(const char *p)
{
	char t[5] = { p[0], p[1], p[2], p[3], 0 };
	return (uint32_t)strtoul(t, NULL, 16);
}

static void utf8(struct parse *s, uint32_t c)
{
	if (c < 0x80) {
		*s->out++ = (char)c;
	} else if (c < 0x800) {
		*s->out++ = (char)(0xc0 | c >> 6);
		*s->out++ = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		*s->out++ = (char)(0xe0 | c >> 12);
		*s->out++ = (char)(0x80 | (c >> 6 & 63));
		*s->out++ = (char)(0x80 | (c & 63));
	} else {
		*s->out++ = (char)(0xf0 | c >> 18);
		*s->out++ = (char)(0x80 | (c >> 12 & 63));
		*s->out++ = (char)(0x80 | (c >> 6 & 63));
		*s->out++ = (char)(0x80 | (c & 63));
	}
}

static void escape(struct parse *s)
{
	const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t", *at = strchr(from, *++s->p);
	if (at) {
		*s->out++ = to[at - from];
		s->p++;
		return;
	}
	uint32_t c = hex4(s->p + 1);
	s->p += 5;
	if (c >= 0xd800 && c < 0xdc00) {
		c = 0x10000 + ((c - 0xd800) << 10) + (hex4(s->p + 2) - 0xdc00);
		s->p += 6;
	}
	utf8(s, c);
}

static struct bytes string(struct parse *s)
{
	char *begin = s->out;
	for (s->p++; *s->p != '"';)
		if (*s->p == '\\')
			escape(s);
		else
			*s->out++ = *s->p++;
	s->p++;
	struct bytes b = BYTES(begin, s->out - begin);
	*s->out++ = 0;
	return b;
}

static struct vec *value(struct parse *s);

static void members(struct parse *s, struct vec *v)
{
	struct vec **last = &v->kid;
	char close = *s->p == '{' ? '}' : ']';
	v->type = close == '}' ? VEC_OBJ : VEC_ARR;
	s->p++;
	for (space(s); *s->p != close; space(s)) {
		struct bytes key = { 0 };
		if (*s->p == ',') {
			s->p++;
			continue;
		}
		if (close == '}') {
			key = string(s);
			space(s);
			s->p++;
		}
		struct vec *k = value(s);
		k->key = key;
		*last = k;
		last = &k->next;
		v->n++;
	}
	s->p++;
}

static void scalar(struct parse *s, struct vec *v)
{
	if (*s->p == '"') {
		v->type = VEC_STR;
		v->str = string(s);
	} else if (*s->p == 't' || *s->p == 'f') {
		v->type = VEC_BOOL;
		v->num = *s->p == 't';
		s->p += v->num ? 4 : 5;
	} else if (*s->p == 'n') {
		s->p += 4;
	} else {
		char *end;
		v->type = VEC_NUM;
		v->num = strtoull(s->p, &end, 10);
		for (s->p = end; strchr(".eE+-0123456789", *s->p);)
			s->p++;
	}
}

static struct vec *value(struct parse *s)
{
	if (s->n == s->cap)
		bad("too many values", "");
	struct vec *v = &s->node[s->n++];
	space(s);
	const char *begin = s->p;
	if (*s->p == '{' || *s->p == '[')
		members(s, v);
	else
		scalar(s, v);
	v->raw = BYTES(begin, s->p - begin);
	return v;
}

struct vec_file vec_open(const char *name)
{
	char path[1024];
	snprintf(path, sizeof(path), "%s/%s", VECTORS, name);
	FILE *f = fopen(path, "rb");
	if (!f)
		bad("cannot be read", path);
	fseek(f, 0, SEEK_END);
	size_t n = (size_t)ftell(f);
	rewind(f);
	struct vec_file out = { .text = malloc(2 * n + 2) };
	struct parse s = { .p = out.text, .end = out.text + n, .out = out.text + n + 1 };
	if (!out.text || fread(out.text, 1, n, f) != n)
		bad("cannot be read", path);
	fclose(f);
	out.text[n] = 0;
	for (size_t i = 0; i < n; i++)
		s.cap += strchr("[{,:", out.text[i]) != NULL;
	s.cap += 2;
	s.node = out.nodes = calloc(s.cap, sizeof(*s.node));
	if (!s.node)
		bad("no memory", path);
	out.root = value(&s);
	return out;
}

void vec_free(struct vec_file *f)
{
	free(f->text);
	free(f->nodes);
	*f = (struct vec_file){ 0 };
}

const struct vec *vec_get(const struct vec *v, const char *key)
{
	size_t n = strlen(key);
	if (!v)
		return NULL;
	vec_each(k, v) if (k->key.n == n && memcmp(k->key.p, key, n) == 0) return k;
	return NULL;
}

const char *vec_str(const struct vec *v)
{
	return v && v->type == VEC_STR ? (const char *)v->str.p : "";
}

uint64_t vec_num(const struct vec *v, const char *key, uint64_t none)
{
	const struct vec *k = vec_get(v, key);
	return k && k->type == VEC_NUM ? k->num : none;
}
