/* SPDX-License-Identifier: Apache-2.0 */
/*
 * docs/states/NAME.md from every OP_TABLE of the libraries that are linked whole into this program
 * (docs/meson.build). A page of a table that is no more is reported: remove it. Usage: page.h.
 */
#include "page.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "loop/op.h"

static const struct op_table *find(const char *name, size_t n_name)
{
	const struct op_table *const *all;
	size_t n = op_tables(&all);
	for (size_t i = 0; i < n; i++)
		if (strlen(all[i]->name) == n_name && memcmp(all[i]->name, name, n_name) == 0)
			return all[i];
	return NULL;
}

static void write_table(struct page_run *r, const struct op_table *t)
{
	char name[256];
	struct why w = { 0 };
	struct buf b = BUF_INIT(PAGE_BYTES_MAX);
	if (op_table_check(t, &w)) {
		fprintf(stderr, "%s\n", w.text);
		r->n_stale++;
	}
	if (find(t->name, strlen(t->name)) != t) {
		fprintf(stderr, "%s: two tables have this name\n", t->name);
		r->n_stale++;
	}
	op_table_page(t, &b);
	snprintf(name, sizeof(name), "%s.md", t->name);
	page_put(r, name, &b);
}

static void report_orphans(struct page_run *r)
{
	DIR *d = opendir(r->dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		size_t n = strlen(e->d_name);
		if (n < 4 || strcmp(e->d_name + n - 3, ".md") != 0)
			continue;
		if (strcmp(e->d_name, "README.md") == 0 || find(e->d_name, n - 3))
			continue;
		fprintf(stderr, "%s/%s: there is no such table; remove the page\n", r->dir,
			e->d_name);
		r->n_stale++;
	}
	if (d)
		closedir(d);
}

int main(int argc, char **argv)
{
	struct page_run r;
	const struct op_table *const *all;
	if (!page_begin(&r, argc, argv))
		return 2;
	size_t n = op_tables(&all);
	for (size_t i = 0; i < n; i++)
		write_table(&r, all[i]);
	report_orphans(&r);
	return page_end(&r);
}
