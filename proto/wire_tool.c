/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is made from the tables: the reference page and the golden bytes. For people who change
 * rows; nothing installed.
 *
 *	wire_tool page FILE                writes docs/wire.md
 *	wire_tool check FILE               1 when it is not what `page` would write
 *	wire_tool golden DIR CORPUS        NAME.vN.bin and .json in DIR for each message that has
 *	                                   none of its newest version; the same bytes in CORPUS
 */
#include "proto/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the page ---- */

static const char page_head[] =
	"# Messages\n"
	"\n"
	"Made from `proto/*.def` by `ninja -C build wire_page`; do not edit. How the wire works is in\n"
	"[proto/README.md](../proto/README.md), the errors are in [errors.md](errors.md).\n"
	"\n"
	"Each message is a msgpack array of the fields below, in that order. Elements beyond them are\n"
	"skipped; missing trailing ones are zero, empty or nil. `since` is the wire version that "
	"brought\n"
	"a field; this release speaks %d to %d.\n";

static void print_roles(struct buf *out, uint32_t roles)
{
	static const char *const names[] = { "anyone, before the handshake", "client", "holder",
					     "service", "admin" };
	const char *sep = "";
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (!(roles & 1u << i))
			continue;
		buf_printf(out, "%s%s", sep, names[i]);
		sep = ", ";
	}
}

/* A link to a message's section; an anchor is in lower case. */
static void print_link(struct buf *out, const struct wire_msg *t)
{
	buf_printf(out, "[%s](#", t->name);
	for (const char *c = t->name; *c; c++)
		buf_printf(out, "%c", *c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
	buf_printf(out, ")");
}

static void page_methods(struct buf *out)
{
	size_t n;
	const struct wire_method *m = wire_methods(&n);
	buf_printf(
		out,
		"\n## Methods\n\n"
		"| number | name | request | reply | who | again after a lost connection | at the "
		"limit | what |\n|---|---|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < n; i++) {
		buf_printf(out, "| %u | %s | ", m[i].number, m[i].name);
		print_link(out, m[i].req());
		buf_printf(out, " | ");
		print_link(out, m[i].rep());
		buf_printf(out, " | ");
		print_roles(out, m[i].roles);
		buf_printf(out, " | %s | %s | %s |\n", m[i].idempotent ? "yes" : "no",
			   m[i].policy, m[i].doc);
	}
}

static void print_kind(struct buf *out, const struct wire_field *f)
{
	if (f->kind == WIRE_LIST)
		buf_printf(out, "list of ");
	if (f->of)
		print_link(out, f->of());
	else
		buf_printf(out, "%s", wire_kind_name(f->kind));
	if (f->kind == WIRE_OPT)
		buf_printf(out, " or nil");
}

static void print_limit(struct buf *out, const struct wire_field *f)
{
	if (f->each)
		buf_printf(out, "%" PRIu64 " items of %" PRIu64 " bytes", f->max, f->each);
	else if (f->kind == WIRE_STR || f->kind == WIRE_BIN)
		buf_printf(out, "%" PRIu64 " bytes", f->max);
	else if (f->max)
		buf_printf(out, "%" PRIu64 " items", f->max);
}

static void page_message(struct buf *out, const struct wire_msg *t)
{
	buf_printf(out, "\n### %s\n\n%s\n", t->name, t->doc);
	if (t->n_fields == 0)
		return;
	buf_printf(out,
		   "\n| | field | kind | at most | since | |\n|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < t->n_fields; i++) {
		const struct wire_field *f = &t->fields[i];
		buf_printf(out, "| %zu | %s | ", i, f->name);
		print_kind(out, f);
		buf_printf(out, " | ");
		print_limit(out, f);
		buf_printf(out, " | %u | %s |\n", f->since, f->doc);
	}
}

static struct buf page(void)
{
	const struct wire_msg *t;
	struct buf b = BUF_INIT(1 << 20), *out = &b;
	buf_printf(out, page_head, WIRE_VERSION_MIN, WIRE_VERSION);
	page_methods(out);
	buf_printf(out, "\n## Messages\n");
	for (size_t i = 0; (t = wire_message(i)); i++)
		page_message(out, t);
	assert(buf_err(out) == ERR_NONE);
	return b;
}

static int page_write(const char *path)
{
	struct buf b = page();
	FILE *f = fopen(path, "we");
	bool ok = f && fwrite(b.p, 1, b.n, f) == b.n;
	if (f && fclose(f) != 0)
		ok = false;
	if (!ok)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	buf_fini(&b);
	return ok ? 0 : 1;
}

static int page_check(const char *path)
{
	struct buf b = page();
	uint8_t *have = malloc(b.n + 1);
	FILE *f = fopen(path, "re");
	bool same =
		have && f && fread(have, 1, b.n + 1, f) == b.n && memcmp(have, b.p, b.n) == 0;
	if (f)
		fclose(f);
	free(have);
	buf_fini(&b);
	if (!same)
		fprintf(stderr,
			"%s is not what proto/*.def says: run `ninja -C build wire_page`\n",
			path);
	return same ? 0 : 1;
}

/* ---- golden bytes ---- */

/* A value that follows from a field's name and its place in lists, and from nothing else. */
static uint64_t sample(const char *name, uint64_t place)
{
	uint64_t h = 0xcbf29ce484222325u ^ place;
	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3u;
	return h;
}

static void *take(struct arena *a, size_t n)
{
	void *p = arena_alloc(a, n);
	assert(p);
	return memset(p, 0, n);
}

static struct bytes sample_run(struct arena *a, const char *name, uint64_t place, size_t max,
			       bool text)
{
	size_t n = MIN_OF(text ? strlen(name) : (size_t)20, max);
	uint8_t *p = take(a, n);
	for (size_t i = 0; i < n; i++)
		p[i] = text ? (uint8_t)name[i] : (uint8_t)sample(name, place + i);
	return BYTES(p, n);
}

static void sample_message(struct arena *a, const struct wire_msg *t, void *m, uint64_t place);

static void sample_runs(struct arena *a, const struct wire_field *f, struct bytes_list *l,
			uint64_t place)
{
	struct bytes *items = take(a, 2 * sizeof(*items));
	for (size_t i = 0; i < 2; i++)
		items[i] = sample_run(a, f->name, place + i, f->each, f->kind == WIRE_STRS);
	*l = (struct bytes_list){ items, 2 };
}

static void sample_u64s(struct arena *a, const struct wire_field *f, struct u64s *l,
			uint64_t place)
{
	uint64_t *items = take(a, 2 * sizeof(*items));
	for (size_t i = 0; i < 2; i++)
		items[i] = sample(f->name, place + i);
	*l = (struct u64s){ items, 2 };
}

static void sample_structs(struct arena *a, const struct wire_field *f, void *v, uint64_t place)
{
	const struct wire_msg *of = f->of();
	size_t n = f->kind == WIRE_LIST ? 2 : 1;
	uint8_t *items = take(a, n * of->size + 1);
	for (size_t i = 0; i < n; i++)
		sample_message(a, of, items + i * of->size, place + i + 1);
	memcpy(v, &items, sizeof(items));
	if (f->kind == WIRE_LIST)
		memcpy((uint8_t *)v + sizeof(items), &n, sizeof(n));
}

static void sample_field(struct arena *a, const struct wire_field *f, void *v, uint64_t place)
{
	uint64_t h = sample(f->name, place);
	switch (f->kind) {
	case WIRE_BOOL:
		*(bool *)v = true;
		break;
	case WIRE_U8:
		*(uint8_t *)v = (uint8_t)h;
		break;
	case WIRE_U16:
		*(uint16_t *)v = (uint16_t)h;
		break;
	case WIRE_U32:
		*(uint32_t *)v = (uint32_t)h;
		break;
	case WIRE_U64:
		*(uint64_t *)v = h;
		break;
	case WIRE_I64:
		*(int64_t *)v = -(int64_t)(h >> 1);
		break;
	case WIRE_F64:
		*(double *)v = (double)(h & 0xffff) / 16;
		break;
	case WIRE_STR:
	case WIRE_BIN:
		*(struct bytes *)v = sample_run(a, f->name, place, f->max, f->kind == WIRE_STR);
		break;
	case WIRE_ID16:
		memcpy(v, sample_run(a, f->name, place, 16, false).p, 16);
		break;
	case WIRE_U64S:
		sample_u64s(a, f, v, place);
		break;
	case WIRE_STRS:
	case WIRE_BINS:
		sample_runs(a, f, v, place);
		break;
	case WIRE_LIST:
	case WIRE_OPT:
		sample_structs(a, f, v, place);
		break;
	}
}

static void sample_message(struct arena *a, const struct wire_msg *t, void *m, uint64_t place)
{
	for (size_t i = 0; i < t->n_fields; i++)
		sample_field(a, &t->fields[i], (uint8_t *)m + t->fields[i].offset, place);
}

/* Never over a file that is there: golden bytes are for ever. False: it could not be written. */
static bool write_new(const char *path, struct bytes content)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 && errno == EEXIST)
		return true;
	bool ok = fd >= 0 && write(fd, content.p, content.n) == (ssize_t)content.n;
	if (fd >= 0 && close(fd) != 0)
		ok = false;
	if (!ok)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	else
		printf("%s\n", path);
	return ok;
}

static bool golden_one(const struct wire_msg *t, const char *dir, const char *corpus)
{
	char bin[4096], json[4096], seed[4096];
	uint32_t v = wire_newest(t);
	struct arena a = ARENA_INIT(1 << 20);
	struct buf wire = BUF_INIT(1 << 20), text = BUF_INIT(1 << 20);
	void *m = take(&a, t->size + 1);
	sample_message(&a, t, m, 0);
	t->enc(&wire, m, v);
	wire_json_at(&text, t, m, v);
	buf_put(&text, "\n", 1);
	assert(buf_err(&wire) == ERR_NONE && buf_err(&text) == ERR_NONE);
	snprintf(bin, sizeof(bin), "%s/%s.v%u.bin", dir, t->name, v);
	snprintf(json, sizeof(json), "%s/%s.v%u.json", dir, t->name, v);
	snprintf(seed, sizeof(seed), "%s/%s.v%u", corpus, t->name, v);
	bool ok = write_new(bin, buf_bytes(&wire)) && write_new(json, buf_bytes(&text)) &&
		  write_new(seed, buf_bytes(&wire));
	buf_fini(&wire);
	buf_fini(&text);
	arena_fini(&a);
	return ok;
}

static int golden(const char *dir, const char *corpus)
{
	const struct wire_msg *t;
	bool ok = true;
	for (size_t i = 0; (t = wire_message(i)); i++)
		ok &= golden_one(t, dir, corpus);
	return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "page") == 0)
		return page_write(argv[2]);
	if (argc == 3 && strcmp(argv[1], "check") == 0)
		return page_check(argv[2]);
	if (argc == 4 && strcmp(argv[1], "golden") == 0)
		return golden(argv[2], argv[3]);
	fprintf(stderr, "usage: wire_tool page FILE | check FILE | golden DIR CORPUS\n");
	return 2;
}
