/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generated pages: written into a folder, or compared with what the folder holds. A generator is
 * `PROGRAM write DIR` (a run target) and `PROGRAM check DIR` (a test of suite docs).
 * Thread: main's.
 */
#pragma once

#include "base/buf.h"

#define PAGE_BYTES_MAX (4u << 20)

struct page_run {
	bool write; /* else check */
	const char *dir;
	unsigned n_pages, n_stale;
};

/* From the command line; prints the usage and returns false when it is wrong. */
bool page_begin(struct page_run *r, int argc, char **argv);
/* name: "errors.md". Takes the text's memory. A stale page is printed with its first changed line. */
void page_put(struct page_run *r, const char *name, struct buf *text);
/* One line; what main returns. */
int page_end(const struct page_run *r);
