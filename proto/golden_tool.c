/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Golden bytes from the tables, for people who change rows; nothing installed.
 *
 *	golden_tool DIR CORPUS   NAME.vN.bin and .json in DIR for each message that has none of its
 *	                         newest version; the same bytes in CORPUS
 */
#include "proto/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int main(int argc, char **argv)
{
	const struct wire_msg *t;
	bool ok = true;
	if (argc != 3) {
		fprintf(stderr, "usage: golden_tool DIR CORPUS\n");
		return 2;
	}
	for (size_t i = 0; (t = wire_message(i)); i++)
		ok &= golden_one(t, argv[1], argv[2]);
	return ok ? 0 : 1;
}
