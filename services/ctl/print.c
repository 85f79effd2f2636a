/* SPDX-License-Identifier: Apache-2.0 */
#include "print.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

void print_table_init(struct print_table *t, const char *const *heads, size_t n_cols)
{
	assert(n_cols > 0 && n_cols <= PRINT_COLS_MAX);
	*t = (struct print_table){ .n_cols = n_cols, .heads = heads };
}

void print_table_fini(struct print_table *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n_rows * t->n_cols; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct print_table){ 0 };
}

void print_table_row(struct print_table *t, const char *const *cells)
{
	if (t->err != ERR_NONE)
		return;
	if (t->n_rows == PRINT_ROWS_MAX) {
		t->err = ERR_TOO_LARGE;
		return;
	}
	char **all = realloc(t->cells, (t->n_rows + 1) * t->n_cols * sizeof(*all));
	if (!all) {
		t->err = ERR_NO_MEMORY;
		return;
	}
	t->cells = all;
	char **row = all + t->n_rows * t->n_cols;
	for (size_t i = 0; i < t->n_cols; i++) {
		/* a column without a name is for remarks: most rows have none */
		const char *s = cells[i] && *cells[i] ? cells[i] : t->heads[i][0] ? "-" : "";
		row[i] = strdup(s);
		if (row[i]) {
			print_clean(row[i], strlen(s) + 1, s);
			continue;
		}
		while (i > 0)
			free(row[--i]);
		t->err = ERR_NO_MEMORY;
		return;
	}
	t->n_rows++;
}

/* Columns a terminal gives s: its characters, not its bytes. */
static size_t width(const char *s)
{
	size_t n = 0;
	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static void put_row(const char *const *cells, const char *const *heads, const size_t *wide,
		    size_t n, FILE *to)
{
	for (size_t i = 0; i < n; i++) {
		bool right = heads[i][0] == '>';
		const char *s = cells[i] + (cells == heads && right);
		int pad = (int)(wide[i] - width(s));
		if (right)
			fprintf(to, "%*s%s", pad, "", s);
		else
			fprintf(to, "%s%*s", s, i + 1 < n ? pad : 0, "");
		fputs(i + 1 < n ? "  " : "\n", to);
	}
}

void print_table_put(const struct print_table *t, FILE *to)
{
	size_t wide[PRINT_COLS_MAX];
	for (size_t i = 0; i < t->n_cols; i++) {
		wide[i] = width(t->heads[i]) - (t->heads[i][0] == '>');
		for (size_t r = 0; r < t->n_rows; r++)
			wide[i] = MAX_OF(wide[i], width(t->cells[r * t->n_cols + i]));
	}
	put_row(t->heads, t->heads, wide, t->n_cols, to);
	for (size_t r = 0; r < t->n_rows; r++)
		put_row((const char *const *)t->cells + r * t->n_cols, t->heads, wide,
			t->n_cols, to);
}

const char *print_bytes(char *out, size_t size, uint64_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	size_t u = 0;
	double v = (double)n;
	for (; v >= 1024 && u + 1 < ARRAY_LEN(units); u++)
		v /= 1024;
	if (u == 0)
		snprintf(out, size, "%" PRIu64 " B", n);
	else
		snprintf(out, size, "%.1f %s", v, units[u]);
	return out;
}

const char *print_age(char *out, size_t size, uint64_t ms)
{
	uint64_t s = ms / 1000;
	if (s < 120)
		snprintf(out, size, "%" PRIu64 " s", s);
	else if (s < 7200)
		snprintf(out, size, "%" PRIu64 " min", s / 60);
	else if (s < 172800)
		snprintf(out, size, "%" PRIu64 " h", s / 3600);
	else
		snprintf(out, size, "%" PRIu64 " d", s / 86400);
	return out;
}

const char *print_clean(char *out, size_t size, const char *s)
{
	size_t n = 0;
	for (; *s && n + 1 < size; s++)
		out[n++] = (unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s;
	out[n] = '\0';
	return out;
}

void print_error(struct cli *c)
{
	char line[sizeof(c->why.text)];
	print_progress_end(c);
	fprintf(c->err, "pomelo: %s\n", print_clean(line, sizeof(line), c->why.text));
	if (!c->json)
		return;
	struct buf b = BUF_INIT(8192);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "error", err_name(c->why.err));
	json_kv_str(&j, "text", c->why.text);
	json_end(&j);
	print_json(c, &b);
}

void print_json(struct cli *c, struct buf *b)
{
	buf_put(b, "\n", 1);
	if (buf_err(b) == ERR_NONE)
		fwrite(b->p, 1, b->n, c->out);
	buf_fini(b);
}

static bool on_terminal(FILE *f)
{
	int fd = fileno(f);
	return fd >= 0 && isatty(fd);
}

void print_progress(struct cli *c, const char *fmt, ...)
{
	char text[160], clean[160];
	if (!on_terminal(c->err))
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(c->err, "\r\033[K%s", print_clean(clean, sizeof(clean), text));
	fflush(c->err);
}

void print_progress_end(struct cli *c)
{
	if (!on_terminal(c->err))
		return;
	fputs("\r\033[K", c->err);
	fflush(c->err);
}
