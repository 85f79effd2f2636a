/* SPDX-License-Identifier: Apache-2.0 */
/* The settings file's parser, foreign values and the texts made of them (B5). */
#include "../unit/base/conf_sample.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

/* One line, no control characters: what a person is told about hostile bytes. */
static void check_text(const char *s)
{
	for (; *s; s++)
		assert((unsigned char)*s >= 0x20 && *s != 0x7f);
}

static void check_shown(struct conf *c)
{
	for (size_t i = 0; i < conf_count(c); i++) {
		struct conf_shown s;
		conf_show(c, i, &s);
		check_text(s.value);
		check_text(s.origin);
	}
}

/* `name = "value"`, as a person would write any value into a file. */
static void write_line(struct buf *b, const struct conf_shown *s)
{
	buf_printf(b, "%s = \"", s->name);
	for (const char *v = s->value; *v; v++)
		buf_printf(b, *v == '"' || *v == '\\' ? "\\%c" : "%c", *v);
	buf_printf(b, "\"\n");
}

/* What parsed must parse again from its canonical text, to the same text. */
static void check_round(struct conf *c)
{
	struct sample again;
	struct conf *d;
	if (conf_new(&sample_schema, &again, &d) != ERR_NONE)
		return;
	for (size_t i = 0; i < conf_count(c); i++) {
		struct conf_shown s, t;
		struct why w = { 0 };
		struct buf line = BUF_INIT(8100);
		conf_show(c, i, &s);
		if (s.kind == CONF_FILE && !s.secret)
			write_line(&line, &s);
		if (line.n > 0 && buf_err(&line) == ERR_NONE) {
			enum err e = conf_parse(d, buf_bytes(&line), "again", &w);
			assert(e == ERR_NONE);
			conf_show(d, i, &t);
			assert(strcmp(s.value, t.value) == 0);
		}
		buf_fini(&line);
	}
	conf_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct sample s;
	struct conf *c;
	struct why w = { 0 };
	if (conf_new(&sample_schema, &s, &c) != ERR_NONE)
		return 0;
	if (conf_parse(c, BYTES(p, n), "fuzz", &w) == ERR_NONE)
		check_round(c);
	else
		assert(w.err != ERR_NONE && w.text[0]);
	check_text(w.text);
	for (size_t i = 0; i < sample_parts[1].n_foreign; i++) {
		char line[256];
		struct why w2 = { 0 };
		snprintf(line, sizeof(line), "%s=%.*s", sample_foreign[i].name,
			 (int)strnlen((const char *)p, MIN_OF(n, (size_t)160)),
			 (const char *)p);
		char *const env[] = { line, NULL };
		enum err e = conf_env(c, env, &w2);
		assert(e == ERR_NONE); /* I3 */
	}
	struct why w3 = { 0 };
	(void)!conf_end(c, &w3);
	check_text(w3.text);
	check_shown(c);
	conf_free(c);
	return 0;
}
