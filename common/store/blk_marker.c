/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose folder it is: `owner` holds one line, `owner.lock` the lock of the process that uses it. The id
 * lives here, not in a process or host name (spec/offload.md, case 29).
 */
#include "store/store_blk.h"

#include <stdio.h>
#include <string.h>

#include "base/crc.h"

#define MARKER_BYTES 4096u
#define MARKER_TEMP  BLK_MARKER_NAME ".tmp"

/* "pomelo-disk-tier 1 BACKEND OWNER FREE CRC" and a newline, then zeros. */
static void marker_put(const struct blk_marker *m, char *block)
{
	memset(block, 0, MARKER_BYTES);
	int n = snprintf(block, MARKER_BYTES, "pomelo-disk-tier 1 %s %s %llu ", m->backend,
			 m->owner, (unsigned long long)m->free_at_first);
	snprintf(block + n, MARKER_BYTES - (size_t)n, "%08x\n", crc32c(0, block, (size_t)n));
}

static enum err marker_get(const char *block, struct blk_marker *m)
{
	unsigned version = 0, crc = 0;
	unsigned long long free_bytes = 0;
	int n = 0;
	*m = (struct blk_marker){ 0 };
	if (memchr(block, 0, MARKER_BYTES) == NULL)
		return ERR_CORRUPT;
	/* NOLINTNEXTLINE(cert-err34-c) the CRC below covers what is read here */
	if (sscanf(block, "pomelo-disk-tier %u %15s %64s %llu %n%8x\n", &version, m->backend,
		   m->owner, &free_bytes, &n, &crc) != 5)
		return ERR_CORRUPT;
	m->free_at_first = free_bytes;
	if (crc != crc32c(0, block, (size_t)n))
		return ERR_CORRUPT;
	return version == 1 ? ERR_NONE : ERR_VERSION_MISMATCH;
}

static enum err marker_read(struct disk_fs *fs, struct disk_lane *io, struct blk_marker *m)
{
	struct disk_file *f;
	static_assert(MARKER_BYTES == DISK_ALIGN, "one block");
	char *block = aligned_alloc(DISK_ALIGN, MARKER_BYTES);
	if (!block)
		return ERR_NO_MEMORY;
	enum err e = fs->ops->open(fs, BLK_MARKER_NAME, 0, &f);
	if (e == ERR_NONE) {
		e = disk_read(io, f, block, MARKER_BYTES, 0);
		disk_close(f);
		if (e == ERR_NONE)
			e = marker_get(block, m);
	}
	free(block);
	return e;
}

static enum err marker_write(struct disk_fs *fs, struct disk_lane *io,
			     const struct blk_marker *m)
{
	struct disk_file *f;
	char *block = aligned_alloc(DISK_ALIGN, MARKER_BYTES);
	if (!block)
		return ERR_NO_MEMORY;
	marker_put(m, block);
	enum err e = fs->ops->unlink(fs, MARKER_TEMP);
	if (e == ERR_NONE || e == ERR_NOT_FOUND)
		e = fs->ops->open(fs, MARKER_TEMP, DISK_CREATE, &f);
	if (e == ERR_NONE) {
		e = disk_write(io, f, block, MARKER_BYTES, 0);
		if (e == ERR_NONE)
			e = fs->ops->sync(f);
		disk_close(f);
	}
	if (e == ERR_NONE)
		e = fs->ops->rename(fs, MARKER_TEMP, BLK_MARKER_NAME);
	if (e == ERR_NONE)
		e = fs->ops->sync_dir(fs, "");
	free(block);
	return e;
}

static enum err marker_new(struct disk_fs *fs, struct disk_lane *io, const char *backend,
			   const char *owner, struct blk_marker *m, struct why *w)
{
	*m = (struct blk_marker){ 0 };
	snprintf(m->backend, sizeof(m->backend), "%s", backend);
	snprintf(m->owner, sizeof(m->owner), "%s", owner);
	enum err e = fs->ops->space(fs, &m->free_at_first);
	if (e == ERR_NONE)
		e = marker_write(fs, io, m);
	if (e)
		return why_set(
			w, e,
			"disk tier: cannot write %s/%s: %s; the folder must be writable and have room",
			fs->where, BLK_MARKER_NAME, err_text(e));
	return ERR_NONE;
}

static enum err marker_check(struct disk_fs *fs, const char *backend, const char *want,
			     const struct blk_marker *m, struct why *w)
{
	if (want && strcmp(want, m->owner) != 0)
		return why_set(
			w, ERR_DIRECTORY_IN_USE,
			"disk tier: %s belongs to the owner %s, this is %s; give each owner a folder "
			"of its own",
			fs->where, m->owner, want);
	if (strcmp(backend, m->backend) != 0)
		return why_set(
			w, ERR_CONFLICT,
			"disk tier: %s holds objects of the backend %s, not %s; use that backend, or "
			"another folder",
			fs->where, m->backend, backend);
	return ERR_NONE;
}

enum err blk_marker_take(struct disk_fs *fs, struct disk_lane *io, const char *backend,
			 const char *want, const char *propose, struct blk_marker *out,
			 struct disk_file **lock, struct why *w)
{
	struct disk_file *held;
	struct blk_marker m;
	enum err e = fs->ops->lock(fs, BLK_LOCK_NAME, &held, w);
	if (e)
		return why_set(w, e, "disk tier: cannot lock the folder %s: %s", fs->where,
			       err_text(e));
	e = marker_read(fs, io, &m);
	if (e == ERR_NOT_FOUND)
		e = marker_new(fs, io, backend, want ? want : propose, &m, w);
	else if (e)
		e = why_set(
			w, e,
			"disk tier: cannot read %s/%s: %s; restore it, or move the folder away",
			fs->where, BLK_MARKER_NAME, err_text(e));
	if (e == ERR_NONE)
		e = marker_check(fs, backend, want, &m, w);
	if (e) {
		disk_close(held);
		return e;
	}
	*out = m;
	*lock = held;
	return ERR_NONE;
}

uint64_t blk_limit(struct disk_fs *fs, const struct blk_marker *m, uint64_t wanted)
{
	(void)fs;
	uint64_t most = m->free_at_first / 10 * 9;
	return wanted && wanted < most ? wanted : most;
}

/* ---- evictions ---- */

struct store_eviction *blk_eviction_new(uint32_t n, size_t names)
{
	struct store_eviction *ev = calloc(1, sizeof(*ev));
	if (!ev)
		return NULL;
	ev->items = calloc(MAX_OF(n, 1u), sizeof(*ev->items));
	ev->room = malloc(MAX_OF(names, (size_t)1));
	if (!ev->items || !ev->room) {
		blk_eviction_free(ev);
		return NULL;
	}
	return ev;
}

void blk_eviction_add(struct store_eviction *ev, const struct store_id *id, uint64_t size)
{
	assert(ev->items && ev->room);
	struct store_evict_item *prev = ev->n > 0 ? &ev->items[ev->n - 1] : NULL;
	uint8_t *at = prev ? (uint8_t *)(uintptr_t)prev->id.key.p + prev->id.key.n
			   : (uint8_t *)ev->room;
	memcpy(at, id->tenant.p, id->tenant.n);
	memcpy(at + id->tenant.n, id->key.p, id->key.n);
	ev->items[ev->n++] = (struct store_evict_item){
		.id = { .tenant = BYTES(at, id->tenant.n),
			.key = BYTES(at + id->tenant.n, id->key.n),
			.version = id->version },
		.size = size,
	};
}

void blk_eviction_free(struct store_eviction *ev)
{
	if (!ev)
		return;
	free(ev->items);
	free(ev->room);
	free(ev);
}
