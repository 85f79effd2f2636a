/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

void trace_free(struct trace *t)
{
	if (!t)
		return;
	free(t->requests);
	free(t->ids);
	*t = (struct trace){ 0 };
}

/* ---- a line ---- */

/* Room for n more of v. False: no memory. */
static bool room(void **v, size_t *cap, size_t n, size_t more, size_t size)
{
	if (n + more <= *cap)
		return true;
	size_t want = MAX_OF(n + more, MAX_OF(*cap * 2, (size_t)1024));
	void *p = realloc(*v, want * size);
	if (!p)
		return false;
	*v = p;
	*cap = want;
	return true;
}

/* A member that counts something. */
static enum err take_count(const json_t *o, const char *name, bool needed, uint64_t *out,
			   struct why *why)
{
	const json_t *v = json_object_get(o, name);
	*out = 0;
	if (!v && !needed)
		return ERR_NONE;
	if (!v)
		return why_set(why, ERR_INVALID_PARAMS, "\"%s\" is missing", name);
	double d = json_is_real(v) ? json_real_value(v) : 0;
	if (!json_is_number(v) || d < 0 || d > 9e15 || json_integer_value(v) < 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "\"%s\" is no number from 0 to 2^63 - 1", name);
	*out = json_is_real(v) ? (uint64_t)d : (uint64_t)json_integer_value(v);
	return ERR_NONE;
}

static enum err take_ids(struct trace *t, const json_t *v, struct why *why)
{
	size_t n = json_array_size(v);
	if (!json_is_array(v))
		return why_set(why, ERR_INVALID_PARAMS,
			       "\"hash_ids\" is missing or no array of block ids");
	if (n > TRACE_IDS_MAX - t->n_ids)
		return why_set(why, ERR_TOO_LARGE,
			       "over %d block ids in all; --limit reads less", TRACE_IDS_MAX);
	if (!room((void **)&t->ids, &t->ids_cap, t->n_ids, n, sizeof(*t->ids)))
		return why_set(why, ERR_NO_MEMORY, "no memory for %zu block ids", t->n_ids + n);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0)
			return why_set(why, ERR_INVALID_PARAMS,
				       "hash_ids[%zu] is no whole number from 0 to 2^63 - 1",
				       i);
		t->ids[t->n_ids + i] = (uint64_t)json_integer_value(id);
	}
	return ERR_NONE;
}

static enum err take_request(struct trace *t, const json_t *o, struct why *why)
{
	struct trace_request r = { .first = t->n_ids };
	if (!json_is_object(o))
		return why_set(why, ERR_INVALID_PARAMS, "a JSON object is expected");
	if (t->n == TRACE_REQUESTS_MAX)
		return why_set(why, ERR_TOO_LARGE, "over %d requests; --limit reads less",
			       TRACE_REQUESTS_MAX);
	if (!room((void **)&t->requests, &t->requests_cap, t->n, 1, sizeof(*t->requests)))
		return why_set(why, ERR_NO_MEMORY, "no memory for %zu requests", t->n + 1);
	enum err e = take_count(o, "timestamp", true, &r.at_ms, why);
	if (e == ERR_NONE)
		e = take_count(o, "input_length", false, &r.input_tokens, why);
	if (e == ERR_NONE)
		e = take_count(o, "output_length", false, &r.output_tokens, why);
	if (e == ERR_NONE)
		e = take_ids(t, json_object_get(o, "hash_ids"), why);
	if (e != ERR_NONE)
		return e;
	r.n = (uint32_t)json_array_size(json_object_get(o, "hash_ids"));
	t->n_ids += r.n;
	t->requests[t->n++] = r;
	return ERR_NONE;
}

enum err trace_line(struct trace *t, const char *line, size_t n, struct why *why)
{
	json_error_t je;
	while (n > 0 && strchr(" \t\r\n", line[n - 1]) && line[n - 1])
		n--;
	if (n == 0)
		return ERR_NONE;
	if (n > TRACE_LINE_MAX)
		return why_set(why, ERR_TOO_LARGE, "the line is over %d bytes", TRACE_LINE_MAX);
	json_t *o = json_loadb(line, n, JSON_DECODE_ANY, &je);
	if (!o)
		return why_set(why, ERR_INVALID_PARAMS, "no JSON (column %d: %.120s)",
			       je.column, je.text);
	enum err e = take_request(t, o, why);
	json_decref(o);
	return e;
}

/* ---- a file ---- */

static enum err read_lines(FILE *f, const char *name, uint64_t limit, struct trace *t,
			   struct why *why)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n = 0;
	enum err e = ERR_NONE;
	struct why what = { 0 };
	for (uint64_t at = 1; e == ERR_NONE && (limit == 0 || t->n < limit); at++) {
		errno = 0;
		n = getline(&line, &cap, f);
		if (n < 0)
			break;
		e = trace_line(t, line, (size_t)n, &what);
		if (e != ERR_NONE)
			why_set(why, e, "%.200s:%llu: %s", name, (unsigned long long)at,
				what.text);
	}
	if (e == ERR_NONE && n < 0 && ferror(f))
		e = why_set(
			why, errno == EISDIR ? ERR_INVALID_PARAMS : err_from_errno(errno),
			"%.200s: %s; a file of JSON lines is expected, or - for standard input",
			name, strerror(errno));
	free(line);
	return e;
}

enum err trace_read(const char *file, uint64_t limit, struct trace *out, struct why *why)
{
	struct trace t = { 0 };
	bool in = strcmp(file, "-") == 0;
	FILE *f = in ? stdin : fopen(file, "re");
	if (!f)
		return why_set(why, err_from_errno(errno),
			       "%.200s: %s; name a file of JSON lines, or - for standard input",
			       file, strerror(errno));
	enum err e = read_lines(f, in ? "standard input" : file, limit, &t, why);
	if (!in)
		fclose(f);
	if (e == ERR_NONE && t.n == 0)
		e = why_set(
			why, ERR_INVALID_PARAMS,
			"%.200s: no request in it; one JSON object a line is expected, with "
			"timestamp and hash_ids",
			file);
	if (e != ERR_NONE) {
		trace_free(&t);
		return e;
	}
	*out = t;
	return ERR_NONE;
}

/* ---- facts ---- */

/* Ids seen: open addressing, at most half full; 0 is a free place, so id + 1 is kept. */
struct seen {
	uint64_t *v;
	size_t mask, n;
};

/* Was it there before? */
static bool seen_add(struct seen *s, uint64_t id)
{
	size_t at = (size_t)((id * 0x9e3779b97f4a7c15ull) >> 20) & s->mask;
	while (s->v[at] && s->v[at] != id + 1)
		at = (at + 1) & s->mask;
	if (s->v[at])
		return true;
	s->v[at] = id + 1;
	s->n++;
	return false;
}

enum err trace_facts(const struct trace *t, struct trace_facts *out)
{
	struct trace_facts f = { .references = t->n_ids };
	struct seen s = { .mask = 1023 };
	while (s.mask + 1 < 2 * t->n_ids)
		s.mask = 2 * s.mask + 1;
	s.v = calloc(s.mask + 1, sizeof(*s.v));
	if (!s.v)
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < t->n; i++) {
		const struct trace_request *r = &t->requests[i];
		bool prefix = true;
		for (uint32_t k = 0; k < r->n; k++) {
			prefix &= seen_add(&s, t->ids[r->first + k]);
			f.prefix_hits += prefix;
		}
		f.last_ms = MAX_OF(f.last_ms, r->at_ms);
	}
	f.distinct = s.n;
	free(s.v);
	*out = f;
	return ERR_NONE;
}
