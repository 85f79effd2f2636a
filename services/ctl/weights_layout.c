/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: headers of safetensors files, read where they are; no tensor's bytes are. */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reshard/layout.h"

#define FILE_NAME_MAX 4096

/* name, beside the layout unless it is absolute. */
static bool beside(const char *layout, struct bytes name, char out[FILE_NAME_MAX])
{
	const char *slash = strrchr(layout, '/');
	size_t dir = slash && name.p[0] != '/' ? (size_t)(slash - layout) + 1 : 0;
	if (dir + name.n >= FILE_NAME_MAX || memchr(name.p, 0, name.n))
		return false;
	memcpy(out, layout, dir);
	memcpy(out + dir, name.p, name.n);
	out[dir + name.n] = 0;
	return true;
}

static bool read_at(int fd, void *p, size_t n, off_t at)
{
	for (ssize_t got; n; n -= (size_t)got, at += got, p = (char *)p + got)
		if ((got = pread(fd, p, n, at)) <= 0)
			return false;
	return true;
}

/* The header of an open file. */
static int read_header(struct cli *c, const char *path, int fd, struct st_header **out)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	struct stat st;
	uint8_t first[8];
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		return cli_fail(c, ERR_INVALID_PARAMS, "%s: no regular file", path);
	uint64_t n = read_at(fd, first, 8, 0) ? st_header_bytes(first) : 0;
	if (!n || n > (uint64_t)st.st_size - 8)
		return cli_fail(
			c, ERR_BAD_MANIFEST,
			"%s: safetensors.header: its first eight bytes are no length of a "
			"header (2 to %u, within the file)",
			path, ST_HEADER_MAX);
	AUTO_FREE uint8_t *text = malloc(n);
	if (!text)
		return cli_fail(c, ERR_NO_MEMORY, "%s: a header of %llu bytes", path,
				(unsigned long long)n);
	if (!read_at(fd, text, n, 8))
		return cli_fail(c, ERR_IO, "%s: cannot be read", path);
	enum err e = st_header_read(BYTES(text, n), (uint64_t)st.st_size, &lim, &why, out);
	return e ? weights_refused(c, path, e, &why) : EXIT_OK_;
}

static int open_header(struct cli *c, const char *layout, struct bytes name,
		       struct st_header **out)
{
	char path[FILE_NAME_MAX];
	if (!beside(layout, name, path))
		return cli_fail(c, ERR_INVALID_PARAMS, "%s: a name in files is no path",
				layout);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return cli_fail(c, err_from_errno(errno), "%s: %s", path, strerror(errno));
	int rc = read_header(c, path, fd, out);
	close(fd);
	return rc;
}

static int place(struct cli *c, const char *path, const struct layout *l, struct manifest *m)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct st_header **h = calloc(MAX_OF(l->n_files, 1), sizeof(*h));
	struct reject why;
	int rc = h ? EXIT_OK_ : cli_fail(c, ERR_NO_MEMORY, "%s: %u files", path, l->n_files);
	for (uint32_t i = 0; rc == EXIT_OK_ && i < l->n_files; i++)
		rc = open_header(c, path, l->files[i], &h[i]);
	if (rc == EXIT_OK_) {
		enum err e = layout_place(l, (const struct st_header *const *)h, l->n_files,
					  &lim, &why, &m->place);
		rc = e ? weights_refused(c, path, e, &why) : EXIT_OK_;
	}
	for (uint32_t i = 0; h && i < l->n_files; i++)
		st_header_free(h[i]);
	free(h);
	return rc;
}

int weights_layout(struct cli *c, const char *path, struct manifest *m)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	struct layout *l = NULL;
	enum err e = layout_read(buf_bytes(&m->text), &lim, &why, &l);
	if (e)
		return weights_refused(c, path, e, &why);
	int rc = place(c, path, l, m);
	layout_free(l);
	return rc;
}

static bool put(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

int weights_canonical(struct cli *c, struct manifest *m)
{
	struct text_out *o = malloc(sizeof(*o));
	if (!o)
		return cli_fail(c, ERR_NO_MEMORY, "the placement's text");
	buf_clear(&m->text);
	text_init(o, NULL, false);
	o->put = put;
	o->arg = &m->text;
	place_text(m->place, o);
	text_flush(o);
	free(o);
	m->kind = KIND_WIRE;
	return buf_err(&m->text) ? cli_fail(c, buf_err(&m->text), "the placement's text")
				 : EXIT_OK_;
}
