/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include <stdio.h>
#include <string.h>

#include "store/store_blk.h"
#include "store/store_none.h"

#define TENANT_MAX 64

/* ---- identity ---- */

bool store_id_valid(const struct store_id *id)
{
	return id->tenant.n >= 1 && id->tenant.n <= TENANT_MAX && id->key.n >= 1 &&
	       id->key.n <= OBJ_KEY_MAX && id->version != 0;
}

static bool same(struct bytes a, struct bytes b)
{
	return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

bool store_id_equal(const struct store_id *a, const struct store_id *b)
{
	return a->version == b->version && same(a->key, b->key) && same(a->tenant, b->tenant);
}

static bool plain(uint8_t c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_' || c == '.' || c == '~';
}

static char *encode(char *out, struct bytes part)
{
	static const char hex[] = "0123456789ABCDEF";
	for (size_t i = 0; i < part.n; i++) {
		uint8_t c = part.p[i];
		if (plain(c)) {
			*out++ = (char)c;
			continue;
		}
		*out++ = '%';
		*out++ = hex[c >> 4];
		*out++ = hex[c & 15];
	}
	return out;
}

size_t store_id_text(const struct store_id *id, char out[STORE_ID_TEXT_MAX])
{
	assert(store_id_valid(id));
	char *p = encode(out, id->tenant);
	*p++ = '/';
	p = encode(p, id->key);
	p += snprintf(p, 18, "/%016llx", (unsigned long long)id->version);
	return (size_t)(p - out);
}

static int upper_hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One part up to its slash; NULL when it is not what encode made. */
static const char *decode(const char *s, uint8_t *out, size_t room, size_t *n)
{
	for (*n = 0; *s && *s != '/'; s++) {
		int c = (uint8_t)*s;
		if (c == '%') {
			int hi = upper_hex(s[1]), lo = hi >= 0 ? upper_hex(s[2]) : -1;
			c = lo >= 0 ? hi << 4 | lo : -1;
			if (c < 0 || plain((uint8_t)c))
				return NULL;
			s += 2;
		} else if (!plain((uint8_t)c)) {
			return NULL;
		}
		if (*n == room)
			return NULL;
		out[(*n)++] = (uint8_t)c;
	}
	return *s == '/' && *n > 0 ? s + 1 : NULL;
}

enum err store_id_of_text(const char *text, uint8_t *room, struct store_id *out)
{
	size_t n_tenant = 0, n_key = 0;
	uint64_t version = 0;
	const char *s = decode(text, room, TENANT_MAX, &n_tenant);
	if (s)
		s = decode(s, room + n_tenant, OBJ_KEY_MAX, &n_key);
	if (!s || strlen(s) != 16)
		return ERR_INVALID_PARAMS;
	for (; *s; s++) {
		int d = *s >= 'a' && *s <= 'f'	 ? *s - 'a' + 10
			: *s >= '0' && *s <= '9' ? *s - '0'
						 : -1;
		if (d < 0)
			return ERR_INVALID_PARAMS;
		version = version << 4 | (uint64_t)d;
	}
	if (version == 0)
		return ERR_INVALID_PARAMS;
	*out = (struct store_id){ .tenant = BYTES(room, n_tenant),
				  .key = BYTES(room + n_tenant, n_key),
				  .version = version };
	return ERR_NONE;
}

/* ---- rows ---- */

#define BATCH_MAX 65536u

const struct store_backend_row store_backends[] = {
	{ .caps = { .name = "log",
		    .max_value = 64ull << 30,
		    .max_batch = BATCH_MAX,
		    .align = DISK_ALIGN,
		    .ranges = true,
		    .conditional_put = true,
		    .durable = true,
		    .sum = STORE_SUM_BLOCKS },
	  .blk = &store_log_blk },
	{ .caps = { .name = "file",
		    .max_value = 64ull << 30,
		    .max_batch = BATCH_MAX,
		    .align = DISK_ALIGN,
		    .ranges = true,
		    .conditional_put = true,
		    .durable = true,
		    .sum = STORE_SUM_BLOCKS },
	  .blk = &store_file_blk },
	{ .caps = { .name = "none", .max_batch = BATCH_MAX, .align = 1 } },
};
const size_t store_n_backends = ARRAY_LEN(store_backends);

const char *store_health_name(enum store_health_state s)
{
	switch (s) {
	case STORE_OPENING:
		return "opening";
	case STORE_OK:
		return "ok";
	case STORE_FULL:
		return "full";
	case STORE_BROKEN:
		return "broken";
	case STORE_CLOSING:
		return "closing";
	}
	return "unknown";
}

enum err store_batch_ok(const struct store_be *be, const void *items, uint32_t n)
{
	return items && n >= 1 && n <= be->caps->max_batch ? ERR_NONE : ERR_INVALID_PARAMS;
}

enum err store_scan_ok(const struct store_scan *s)
{
	return s->max_items >= 1 && s->max_items <= STORE_SCAN_MAX ? ERR_NONE
								   : ERR_INVALID_PARAMS;
}

/* ---- opening ---- */

static bool owner_ok(const char *s)
{
	size_t n = strlen(s);
	if (n < 1 || n > 64)
		return false;
	for (; *s; s++)
		if (!plain((uint8_t)*s) || *s == '~')
			return false;
	return true;
}

static enum err range_ok(struct why *w, const char *what, uint64_t v, uint64_t lo, uint64_t hi)
{
	if (v >= lo && v <= hi)
		return ERR_NONE;
	return why_set(w, ERR_INVALID_PARAMS,
		       "disk tier: %s is %llu; %llu to %llu are possible", what,
		       (unsigned long long)v, (unsigned long long)lo, (unsigned long long)hi);
}

/* What is 0 gets its default. */
static void fill_in(struct store_opts *o)
{
	if (o->limit_objects == 0)
		o->limit_objects = 10000000;
	if (o->high_pct == 0 && o->low_pct == 0) {
		o->high_pct = 90;
		o->low_pct = 80;
	}
	if (o->readers == 0)
		o->readers = 4;
	if (o->depth == 0)
		o->depth = 64;
	if (o->queue == 0)
		o->queue = 256;
	if (o->put_wait_ms == 0)
		o->put_wait_ms = 10000;
}

static enum err check(const struct store_opts *o, struct why *w)
{
	enum err e = ERR_NONE;
	if (!o->dir && !o->fs)
		return why_set(w, ERR_INVALID_PARAMS, "disk tier: no folder is given");
	if (o->owner && !owner_ok(o->owner))
		return why_set(w, ERR_INVALID_PARAMS,
			       "disk tier: an owner id is 1 to 64 of A-Z a-z 0-9 . _ -");
	if (o->low_pct >= o->high_pct || o->high_pct > 100)
		return why_set(
			w, ERR_INVALID_PARAMS,
			"disk tier: watermarks are %u and %u %%: the high one must exceed the low one and "
			"be at most 100",
			o->high_pct, o->low_pct);
	if (o->segment_bytes)
		e = range_ok(w, "the segment size", o->segment_bytes, 1 << 20, 1 << 30);
	if (!e && o->limit_bytes)
		e = range_ok(w, "the size limit", o->limit_bytes, 4 << 20, 1ull << 60);
	if (!e)
		e = range_ok(w, "the limit of objects", o->limit_objects, 1, 1ull << 32);
	if (!e)
		e = range_ok(w, "the number of readers", o->readers, 1, 64);
	if (!e)
		e = range_ok(w, "the depth", o->depth, 1, 1024);
	if (!e)
		e = range_ok(w, "the queue", o->queue, 1, 1 << 20);
	return e ? e : range_ok(w, "the number of staging areas", o->n_buffers, 0, 16);
}

enum err store_be_open(struct loop *l, const struct store_opts *o, struct store_be **out,
		       struct why *w)
{
	struct store_opts with = *o;
	fill_in(&with);
	for (size_t i = 0; i < store_n_backends; i++) {
		const struct store_backend_row *row = &store_backends[i];
		if (strcmp(row->caps.name, o->backend) != 0)
			continue;
		if (!row->blk)
			return store_none_open(l, &with, &row->caps, out);
		enum err e = check(&with, w);
		return e ? e : store_pool_open(l, &with, row, out, w);
	}
	return why_set(w, ERR_INVALID_PARAMS,
		       "disk tier: there is no backend \"%s\"; there are log, file and none",
		       o->backend);
}

void store_be_close(struct store_be *be, void (*closed)(void *ctx), void *ctx)
{
	if (be)
		be->ops->close(be, closed, ctx);
	else
		closed(ctx);
}
