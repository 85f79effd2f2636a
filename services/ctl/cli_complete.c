/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion scripts, made from the command rows. bash and zsh read one table, a shell `case` by the first
 * word; fish has a line for each thing there is to offer.
 */
#include "cli.h"

#include <string.h>

/* ---- the rows ---- */

static bool begins_with(const struct cmd *k, const char *first, size_t n)
{
	return strncmp(k->name, first, n) == 0 && (k->name[n] == ' ' || !k->name[n]);
}

/* Is this the first row that begins with its first word, and shown? */
static bool is_first(const struct cmd *cmds, const struct cmd *k, char *first, size_t size)
{
	size_t n = strcspn(k->name, " ");
	snprintf(first, size, "%.*s", (int)n, k->name);
	for (; cmds < k; cmds++)
		if (begins_with(cmds, first, n))
			return false;
	return !k->internal;
}

static void put_flag_words(FILE *to, const struct cli_flag *f)
{
	for (; f && f->name; f++)
		fprintf(to, " %s", f->name);
}

/* The second words of the commands that begin with `first`, or its own row's words. */
static void put_seconds(const struct cmd *cmds, const char *first, FILE *to)
{
	size_t n = strlen(first);
	for (; cmds->name; cmds++) {
		if (cmds->internal || !begins_with(cmds, first, n))
			continue;
		if (cmds->name[n] == ' ')
			fprintf(to, " %s", cmds->name + n + 1);
		else if (cmds->words)
			fprintf(to, " %s", cmds->words);
	}
}

/* ---- bash and zsh ---- */

/* `case $word in` ... `esac`: sets own (flags) and args (words) by the first word of the command. */
static void put_cases(const struct cmd *cmds, FILE *to)
{
	char first[64];
	fputs("\tcase $word in\n\t'') args=\"", to);
	for (const struct cmd *k = cmds; k->name; k++)
		if (is_first(cmds, k, first, sizeof(first)))
			fprintf(to, " %s", first);
	fputs("\" ;;\n", to);
	for (const struct cmd *k = cmds; k->name; k++) {
		if (!is_first(cmds, k, first, sizeof(first)))
			continue;
		fprintf(to, "\t%s) own=\"", first);
		for (const struct cmd *r = k; r->name; r++)
			if (begins_with(r, first, strlen(first)))
				put_flag_words(to, r->flags);
		fputs("\" args=\"", to);
		put_seconds(cmds, first, to);
		fputs("\" ;;\n", to);
	}
	fputs("\tesac\n", to);
}

static void put_bash(const struct cmd *cmds, FILE *to)
{
	fputs("# made by `pomelo completion bash`\n_pomelo()\n{\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
	      "\tlocal word='' own='' args='' i\n\tCOMPREPLY=()\n"
	      "\tcase $prev in\n\t--data | --run-dir) COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n"
	      "\t--secret-file) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
	      "\t--tenant | --deadline | --set) return ;;\n\tesac\n"
	      "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tcase ${COMP_WORDS[i]} in\n"
	      "\t\t--data | --run-dir | --secret-file | --tenant | --deadline | --set) ((i++)) ;;\n"
	      "\t\t-*) ;;\n\t\t*) word=${COMP_WORDS[i]}; break ;;\n\t\tesac\n\tdone\n",
	      to);
	put_cases(cmds, to);
	fputs("\tif [[ $cur == -* ]]; then\n\t\tCOMPREPLY=($(compgen -W \"$own", to);
	put_flag_words(to, cli_globals);
	fputs("\" -- \"$cur\"))\n\telse\n\t\tCOMPREPLY=($(compgen -W \"$args\" -- \"$cur\"))\n"
	      "\tfi\n}\ncomplete -o default -F _pomelo pomelo\n",
	      to);
}

static void put_zsh(const struct cmd *cmds, FILE *to)
{
	fputs("#compdef pomelo\n# made by `pomelo completion zsh`\n_pomelo()\n{\n"
	      "\tlocal cur=${words[CURRENT]} word='' own='' args='' i\n"
	      "\tcase ${words[CURRENT-1]} in\n\t--data | --run-dir) _files -/; return ;;\n"
	      "\t--secret-file) _files; return ;;\n"
	      "\t--tenant | --deadline | --set) return ;;\n\tesac\n"
	      "\tfor ((i = 2; i < CURRENT; i++)); do\n\t\tcase ${words[i]} in\n"
	      "\t\t--data | --run-dir | --secret-file | --tenant | --deadline | --set) ((i++)) ;;\n"
	      "\t\t-*) ;;\n\t\t*) word=${words[i]}; break ;;\n\t\tesac\n\tdone\n",
	      to);
	put_cases(cmds, to);
	fputs("\tif [[ $cur == -* ]]; then\n\t\tcompadd -- ${=own}", to);
	put_flag_words(to, cli_globals);
	fputs("\n\telif [[ -n $args ]]; then\n\t\tcompadd -- ${=args}\n\telse\n\t\t_files\n\tfi\n}\n"
	      "if [[ ${funcstack[1]} == _pomelo ]]; then\n\t_pomelo \"$@\"\n"
	      "else\n\tcompdef _pomelo pomelo\nfi\n",
	      to);
}

/* ---- fish ---- */

/* Between quotes of a shell: ' and \ are marked. */
static void put_quoted(const char *s, FILE *to)
{
	fputc('\'', to);
	for (; *s; s++)
		fprintf(to, *s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
	fputc('\'', to);
}

static void put_fish_flag(const char *when, const struct cli_flag *f, FILE *to)
{
	fputs("complete -c pomelo", to);
	if (when)
		fprintf(to, " -n '__fish_seen_subcommand_from %s'", when);
	if (f->name[1] == '-')
		fprintf(to, " -l %s", f->name + 2);
	else
		fprintf(to, " -s %s", f->name + 1);
	fputs(f->arg ? " -r -d " : " -d ", to);
	put_quoted(f->text, to);
	fputc('\n', to);
}

static void put_fish_word(const char *when, const char *word, const char *text, FILE *to)
{
	fprintf(to, "complete -c pomelo -f -n '%s' -a '%s'", when, word);
	if (text) {
		fputs(" -d ", to);
		put_quoted(text, to);
	}
	fputc('\n', to);
}

static void put_fish(const struct cmd *cmds, FILE *to)
{
	char first[64], when[160];
	fputs("# made by `pomelo completion fish`\n", to);
	for (const struct cli_flag *f = cli_globals; f->name; f++)
		put_fish_flag(NULL, f, to);
	for (const struct cmd *k = cmds; k->name; k++) {
		const char *second = strchr(k->name, ' ');
		bool new = is_first(cmds, k, first, sizeof(first));
		if (k->internal)
			continue;
		if (new)
			put_fish_word("__fish_use_subcommand", first,
				      second ? NULL : k->summary, to);
		snprintf(when, sizeof(when), "__fish_seen_subcommand_from %s", first);
		if (second)
			put_fish_word(when, second + 1, k->summary, to);
		if (k->words && !second)
			put_fish_word(when, k->words, NULL, to);
		for (const struct cli_flag *f = k->flags; f && f->name; f++)
			put_fish_flag(first, f, to);
	}
}

const char cli_shells[] = "bash zsh fish";

bool cli_completion(const struct cmd *cmds, const char *shell, FILE *to)
{
	if (strcmp(shell, "bash") == 0)
		put_bash(cmds, to);
	else if (strcmp(shell, "zsh") == 0)
		put_zsh(cmds, to);
	else if (strcmp(shell, "fish") == 0)
		put_fish(cmds, to);
	else
		return false;
	return true;
}
