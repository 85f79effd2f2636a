/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/meta_fs_sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct sim_fs {
	struct meta_fs fs;
	struct sim_disk *d;
	char dir[SIM_PATH_MAX + 1];
};

struct sim_meta_file {
	struct meta_file f;
	struct sim_file *sim;
};

static enum err err_of(int64_t r)
{
	return r < 0 ? err_from_errno((int)-r) : ERR_NONE;
}

static struct sim_file *sim_of(struct meta_file *f)
{
	return container_of(f, struct sim_meta_file, f)->sim;
}

static struct sim_fs *fs_of(struct meta_fs *fs)
{
	return container_of(fs, struct sim_fs, fs);
}

static void path_of(struct meta_fs *fs, const char *name, char out[SIM_PATH_MAX + 66])
{
	snprintf(out, SIM_PATH_MAX + 66, "%s/%s", fs_of(fs)->dir, name);
}

static enum err open_file(struct meta_fs *fs, const char *name, int flags,
			  struct meta_file **out)
{
	char path[SIM_PATH_MAX + 66];
	path_of(fs, name, path);
	struct sim_meta_file *f = malloc(sizeof(*f));
	if (!f)
		return ERR_NO_MEMORY;
	f->f.fs = fs;
	int r = sim_open(fs_of(fs)->d, path, flags, &f->sim);
	if (r) {
		free(f);
		return err_from_errno(-r);
	}
	*out = &f->f;
	return ERR_NONE;
}

static enum err fs_open(struct meta_fs *fs, const char *name, bool create,
			struct meta_file **out)
{
	return open_file(fs, name, create ? SIM_O_CREATE | SIM_O_EXCL : 0, out);
}

static void fs_close(struct meta_file *f)
{
	sim_close(sim_of(f));
	free(container_of(f, struct sim_meta_file, f));
}

static enum err fs_size(struct meta_file *f, uint64_t *out)
{
	int64_t r = sim_size(sim_of(f));
	if (r >= 0)
		*out = (uint64_t)r;
	return err_of(r);
}

static enum err fs_read(struct meta_file *f, void *p, size_t n, uint64_t off, size_t *got)
{
	int64_t r = sim_pread(sim_of(f), p, n, off);
	if (r >= 0)
		*got = (size_t)r;
	return err_of(r);
}

static enum err fs_write(struct meta_file *f, const void *p, size_t n, uint64_t off)
{
	int64_t r = sim_pwrite(sim_of(f), p, n, off);
	if (r >= 0 && (size_t)r < n)
		return ERR_NO_SPACE;
	return err_of(r);
}

static enum err fs_sync(struct meta_file *f)
{
	return err_of(sim_fsync(sim_of(f)));
}

static enum err fs_rename(struct meta_fs *fs, const char *from, const char *to)
{
	char a[SIM_PATH_MAX + 66], b[SIM_PATH_MAX + 66];
	path_of(fs, from, a);
	path_of(fs, to, b);
	return err_of(sim_rename(fs_of(fs)->d, a, b));
}

static enum err fs_unlink(struct meta_fs *fs, const char *name)
{
	char path[SIM_PATH_MAX + 66];
	path_of(fs, name, path);
	return err_of(sim_unlink(fs_of(fs)->d, path));
}

static enum err fs_sync_dir(struct meta_fs *fs)
{
	struct sim_file *f;
	int r = sim_open(fs_of(fs)->d, fs_of(fs)->dir, SIM_O_DIR, &f);
	if (r)
		return err_of(r);
	r = sim_fsync(f);
	sim_close(f);
	return err_of(r);
}

static enum err fs_lock(struct meta_fs *fs, const char *name, struct meta_file **out,
			struct why *why)
{
	struct meta_file *f = NULL;
	enum err e = open_file(fs, name, SIM_O_CREATE, &f);
	if (e != ERR_NONE || !f)
		return why_set(why, e, "%s/%s: %s", fs->where, name, err_text(e));
	if (sim_lock(sim_of(f)) == 0) {
		*out = f;
		return ERR_NONE;
	}
	fs_close(f);
	return why_set(why, ERR_DIRECTORY_IN_USE, "%s/%s: another process holds it", fs->where,
		       name);
}

static void fs_free(struct meta_fs *fs)
{
	free(fs_of(fs));
}

static const struct meta_fs_ops ops = {
	.open = fs_open,
	.close = fs_close,
	.size = fs_size,
	.read = fs_read,
	.write = fs_write,
	.sync = fs_sync,
	.rename = fs_rename,
	.unlink = fs_unlink,
	.sync_dir = fs_sync_dir,
	.lock = fs_lock,
	.free = fs_free,
};

/* What mkdir -p does, with the names made durable: an installer had the time. */
static void make_dirs(struct sim_disk *d, const char *path)
{
	char part[SIM_PATH_MAX + 1], up[SIM_PATH_MAX + 1] = "/";
	for (const char *at = path + 1;; at++) {
		if (*at && *at != '/')
			continue;
		struct sim_file *f;
		snprintf(part, sizeof(part), "%.*s", (int)(at - path), path);
		int r = sim_mkdir(d, part);
		SIM_CHECK(r == 0 || r == -EEXIST, "mkdir %s: %s", part, strerror(-r));
		if (r == 0 && sim_open(d, up, SIM_O_DIR, &f) == 0) {
			SIM_CHECK(sim_fsync(f) == 0, "fsync %s", up);
			sim_close(f);
		}
		memcpy(up, part, sizeof(up));
		if (!*at)
			return;
	}
}

struct meta_fs *meta_fs_sim_new(struct sim_disk *d, const char *path)
{
	struct sim_fs *s = calloc(1, sizeof(*s));
	SIM_CHECK(s && path[0] == '/' && strlen(path) <= SIM_PATH_MAX, "folder %s", path);
	s->d = d;
	memcpy(s->dir, path, strlen(path) + 1);
	s->fs = (struct meta_fs){ .ops = &ops, .where = s->dir };
	make_dirs(d, path);
	return &s->fs;
}
