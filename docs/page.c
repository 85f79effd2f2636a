/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <stdio.h>
#include <string.h>

#include "base/path.h"

bool page_begin(struct page_run *r, int argc, char **argv)
{
	*r = (struct page_run){ 0 };
	if (argc == 3 && (strcmp(argv[1], "write") == 0 || strcmp(argv[1], "check") == 0)) {
		r->write = argv[1][0] == 'w';
		r->dir = argv[2];
		return true;
	}
	fprintf(stderr, "usage: %s write|check DIR\n", argv[0]);
	return false;
}

/* The line where two texts part. */
static unsigned first_change(struct bytes a, struct bytes b)
{
	unsigned line = 1;
	for (size_t i = 0; i < a.n && i < b.n && a.p[i] == b.p[i]; i++)
		line += a.p[i] == '\n';
	return line;
}

static bool same(struct bytes a, struct bytes b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

void page_put(struct page_run *r, const char *name, struct buf *text)
{
	char path[PATH_BYTES_MAX];
	struct why w = { 0 };
	struct buf old = BUF_INIT(PAGE_BYTES_MAX);
	r->n_pages++;
	enum err e = buf_err(text);
	if (e)
		why_set(&w, e, "%s: larger than a page may be", name);
	else
		e = path_join(path, r->dir, name, &w);
	if (!e)
		e = path_read(path, PAGE_BYTES_MAX - 1, &old, &w);
	if ((!e || e == ERR_NOT_FOUND) && !same(buf_bytes(&old), buf_bytes(text))) {
		struct why changed = { 0 };
		if (r->write)
			e = path_write_atomic(path, buf_bytes(text), 0644, &changed);
		else
			e = why_set(
				&changed, ERR_CONFLICT,
				"%s:%u: differs from the source's rows; run: meson compile -C "
				"build pages states",
				path, first_change(buf_bytes(&old), buf_bytes(text)));
		w = changed;
	}
	if (e) {
		r->n_stale++;
		fprintf(stderr, "%s\n", w.text);
	}
	buf_fini(&old);
	buf_fini(text);
}

int page_end(const struct page_run *r)
{
	printf("%u pages, %u %s\n", r->n_pages, r->n_stale, r->write ? "failed" : "stale");
	return r->n_stale > 0;
}
