/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people read: aligned tables, sizes, durations, the error line, progress on a terminal.
 * Text from elsewhere (a service's reasons, a log's lines) never reaches a terminal raw: bytes below
 * 0x20 and 0x7f become '?'.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/json_out.h"
#include "cli.h"

enum { PRINT_COLS_MAX = 12, PRINT_ROWS_MAX = 4096 };

/* A table being filled. Zero is a valid, empty state without columns. */
struct print_table {
	size_t n_cols, n_rows;
	const char *const *heads; /* borrowed for life */
	char **cells;		  /* owned, n_rows * n_cols */
	enum err err;		  /* a failed row latches */
};

/* heads: n_cols names; a name that begins with '>' is a column of numbers, set to the right. */
void print_table_init(struct print_table *t, const char *const *heads, size_t n_cols);
void print_table_fini(struct print_table *t);
/* n_cols strings, copied; NULL is "-". Rows past PRINT_ROWS_MAX are dropped and latch TOO_LARGE. */
void print_table_row(struct print_table *t, const char *const *cells);
void print_table_put(const struct print_table *t, FILE *to);

/* "512 B", "1.5 GiB". Returns out. */
const char *print_bytes(char *out, size_t size, uint64_t n);
/* "3 s", "12 min", "5 h", "9 d". Returns out. */
const char *print_age(char *out, size_t size, uint64_t ms);
/* s with its control bytes replaced, cut to size. Returns out. */
const char *print_clean(char *out, size_t size, const char *s);

/* `pomelo: TEXT` on c->err; with --json also {"error":"NAME","text":"..."} on c->out. */
void print_error(struct cli *c);
/* The line of --json: b and a newline on c->out; b is emptied. */
void print_json(struct cli *c, struct buf *b);

/*
 * One line that is rewritten while something goes on: on a terminal only. Without one nothing is
 * printed. print_progress_end clears it.
 */
void print_progress(struct cli *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
void print_progress_end(struct cli *c);
