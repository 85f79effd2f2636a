/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start of the file backend: every file whose head and name agree is an object. Heads alone are read, and block sums of
 * large ones: values are verified when they are read.
 */
#include "store/store_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sum.h"

struct walk {
	struct file_be *f;
	char (*names)[NAME_MAX_BYTES];
	size_t n, cap;
	enum err err;
};

static void note_name(void *arg, const char *name, bool is_dir)
{
	struct walk *w = arg;
	if (w->err || strlen(name) >= NAME_MAX_BYTES - 8)
		return;
	if (w->n == w->cap) {
		size_t cap = MAX_OF(2 * w->cap, (size_t)64);
		char(*more)[NAME_MAX_BYTES] = realloc(w->names, cap * sizeof(*more));
		if (!more) {
			w->err = ERR_NO_MEMORY;
			return;
		}
		w->names = more;
		w->cap = cap;
	}
	snprintf(w->names[w->n], NAME_MAX_BYTES - 1, "%c%s", is_dir ? 'd' : 'f', name);
	w->n++;
}

static bool hex_pair(const char *s)
{
	return strlen(s) == 2 && strspn(s, "0123456789abcdef") == 2;
}

/* A file in its place, under the name that its head gives it. */
static enum err take_file(struct file_be *f, struct blk_lane *lane, const char *name)
{
	char right[NAME_MAX_BYTES];
	struct disk_file *file;
	struct disk_stat st;
	struct logrec_head h = { 0 };
	enum err e = f->fs->ops->open(f->fs, name, 0, &file);
	if (e)
		return e == ERR_NOT_FOUND || e == ERR_FORBIDDEN ? ERR_CORRUPT : e;
	e = f->fs->ops->stat(file, &st);
	if (e == ERR_NONE)
		e = disk_read(lane->io, file, lane->bounce, LOGREC_BLOCK, 0);
	if (e == ERR_NONE)
		e = logrec_head_get(lane->bounce, FILE_SALT, file_head_place(f), &h);
	if (e == ERR_NONE && (h.type != LOGREC_PUT || st.size != h.length))
		e = ERR_CORRUPT;
	if (e == ERR_NONE) {
		file_name(f, &h.id, "", right);
		e = strcmp(right, name) == 0 ? ERR_NONE : ERR_CORRUPT;
	}
	size_t n = e ? 0 : sum_n_blocks(h.size);
	uint64_t *v = NULL;
	struct ix_entry *x = NULL;
	if (e == ERR_NONE && n > 0) {
		uint64_t from = obj_vector_at(h.size) & ~(uint64_t)(DISK_ALIGN - 1);
		size_t bytes = (size_t)(logrec_body(h.size) - from);
		v = aligned_alloc(DISK_ALIGN, bytes);
		e = v ? disk_read(lane->io, file, v, (uint32_t)bytes, LOGREC_BLOCK + from)
		      : ERR_NO_MEMORY;
		if (e == ERR_NONE) {
			memmove(v, (uint8_t *)v + (obj_vector_at(h.size) - from), n * 8);
			e = sum_of_blocks(v, n) == h.sum ? ERR_NONE : ERR_CORRUPT;
		}
	}
	disk_close(file);
	if (e == ERR_NONE) {
		x = ix_entry_new(&h.id, h.size, h.sum, v);
		e = x ? ERR_NONE : ERR_NO_MEMORY;
	}
	free(v);
	if (e)
		return e;
	x->off = st.real;
	e = ix_add(&f->ix, x);
	if (e) {
		ix_entry_free(x);
		return e;
	}
	list_push_back(&f->order_list, &x->in_where);
	f->used += st.real;
	return ERR_NONE;
}

static bool our_temp(const struct file_be *f, const char *name)
{
	char mine[20];
	size_t n = strlen(name);
	snprintf(mine, sizeof(mine), "%016" PRIx64 "-", f->owner_hash);
	return n > 21 && strncmp(name, mine, 17) == 0 && strcmp(name + n - 4, ".tmp") == 0;
}

static enum err take_folder(struct file_be *f, struct blk_lane *lane, const char *folder)
{
	struct walk w = { .f = f };
	char name[NAME_MAX_BYTES];
	enum err e = f->fs->ops->list(f->fs, folder, note_name, &w);
	e = e ? e : w.err;
	for (size_t i = 0; e == ERR_NONE && i < w.n; i++) {
		snprintf(name, sizeof(name), "%s/%.150s", folder, w.names[i] + 1);
		if (w.names[i][0] == 'f' &&
		    our_temp(f, w.names[i] + 1)) { /* of a crash: never acknowledged */
			(void)f->fs->ops->unlink(f->fs, name);
			continue;
		}
		e = w.names[i][0] == 'f' ? take_file(f, lane, name) : ERR_CORRUPT;
		if (e == ERR_CORRUPT || e == ERR_IO) { /* F3 */
			f->n.unknown++;
			f->n.io_errors += e == ERR_IO;
			e = ERR_NONE;
		}
	}
	free(w.names);
	return e;
}

static enum err take_level(struct file_be *f, struct blk_lane *lane, const char *first)
{
	struct walk w = { .f = f };
	char folder[8];
	enum err e = f->fs->ops->list(f->fs, first, note_name, &w);
	e = e ? e : w.err;
	for (size_t i = 0; e == ERR_NONE && i < w.n; i++) {
		if (w.names[i][0] != 'd' || !hex_pair(w.names[i] + 1)) {
			f->n.unknown++;
			continue;
		}
		snprintf(folder, sizeof(folder), "%.2s/%.2s", first, w.names[i] + 1);
		e = take_folder(f, lane, folder);
	}
	free(w.names);
	return e;
}

enum err file_start(struct file_be *f, struct blk_lane *lane, struct why *why)
{
	static const char *const known[] = { BLK_MARKER_NAME, BLK_LOCK_NAME,
					     BLK_MARKER_NAME ".tmp", QUARANTINE };
	struct walk w = { .f = f };
	enum err e = f->fs->ops->sync_all(f->fs); /* what is seen now stays */
	if (e == ERR_NONE)
		e = f->fs->ops->list(f->fs, "", note_name, &w);
	e = e ? e : w.err;
	for (size_t i = 0; e == ERR_NONE && i < w.n; i++) {
		bool skip = false;
		for (size_t k = 0; k < ARRAY_LEN(known); k++)
			skip = skip || strcmp(w.names[i] + 1, known[k]) == 0;
		if (skip)
			continue;
		if (w.names[i][0] == 'd' && hex_pair(w.names[i] + 1))
			e = take_level(f, lane, w.names[i] + 1);
		else
			f->n.unknown++;
	}
	free(w.names);
	if (e)
		why_note(why, e, "disk tier: cannot read the folder %s: %s", f->fs->where,
			 err_text(e));
	return e;
}
