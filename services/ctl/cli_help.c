/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command rows say for themselves: help pages, suggestions.
 */
#include "cli.h"
#include "base/conf.h"

#include <string.h>

const struct cmd *cli_find(const struct cmd *cmds, const char *name)
{
	for (; cmds->name; cmds++)
		if (strcmp(cmds->name, name) == 0)
			return cmds;
	return NULL;
}

/* ---- nearest word ---- */

const char *cli_nearest(const char *word, const char *const *words, size_t n)
{
	size_t len = strlen(word);
	/* the first letters of a word are how people shorten it: conf -> config */
	for (size_t i = 0; len >= 3 && i < n; i++)
		if (strncmp(word, words[i], len) == 0)
			return words[i];
	return conf_nearest(word, words, n);
}

const char *cli_nearest_cmd(const struct cmd *cmds, const char *word)
{
	const char *names[64];
	size_t n = 0;
	for (; cmds->name && n < ARRAY_LEN(names); cmds++)
		if (!cmds->internal)
			names[n++] = cmds->name;
	return cli_nearest(word, names, n);
}

/* ---- help ---- */

static void put_lines(FILE *to, const char *text, const char *indent)
{
	while (*text) {
		size_t n = strcspn(text, "\n");
		fprintf(to, "%s%.*s\n", n ? indent : "", (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static void put_flags(FILE *to, const struct cli_flag *f)
{
	for (; f && f->name; f++) {
		char left[64];
		snprintf(left, sizeof(left), "%s%s%s", f->name, f->arg ? " " : "",
			 f->arg ? f->arg : "");
		fprintf(to, "  %-22s %s\n", left, f->text);
	}
}

static void put_page(const struct cmd *k, FILE *to)
{
	fprintf(to, "pomelo %s%s%s%s: %s\n", k->name, *k->args ? " " : "", k->args,
		k->flags ? " [FLAGS]" : "", k->summary);
	if (k->help && *k->help) {
		fputc('\n', to);
		put_lines(to, k->help, "  ");
	}
	if (k->flags) {
		fputs("\nflags\n", to);
		put_flags(to, k->flags);
	}
	fputs("\nexamples\n", to);
	put_lines(to, k->examples, "  ");
}

bool cli_help_cmd(const struct cmd *cmds, const char *name, FILE *to)
{
	size_t n = strlen(name), pages = 0;
	for (; cmds->name; cmds++) {
		bool of = strncmp(cmds->name, name, n) == 0 &&
			  (cmds->name[n] == ' ' || cmds->name[n] == '\0');
		if (!of || cmds->internal)
			continue;
		if (pages++ > 0)
			fputc('\n', to);
		put_page(cmds, to);
	}
	if (pages > 0)
		fputs("\n`pomelo help` lists the flags that every command takes and the exit codes\n",
		      to);
	return pages > 0;
}

void cli_help_all(const struct cmd *cmds, FILE *to)
{
	fputs("pomelo: the memory and the wiring behind large-model inference\n\n"
	      "usage: pomelo [FLAGS] COMMAND [FLAGS] [ARGUMENTS]\n\ncommands\n",
	      to);
	for (; cmds->name; cmds++) {
		char left[64];
		if (cmds->internal)
			continue;
		snprintf(left, sizeof(left), "%s %s", cmds->name, cmds->args);
		fprintf(to, "  %-28s %s\n", left, cmds->summary);
	}
	fputs("\nflags, before or after the command\n", to);
	put_flags(to, cli_globals);
	fputs("\nexit codes: 0 ok, 1 typed failure, 2 usage or configuration, 3 not found, 4 some items\n"
	      "failed, 5 busy, time-out or unreachable, 6 refused, 130 interrupted\n\n"
	      "`pomelo help COMMAND` has the details and examples\n",
	      to);
}
