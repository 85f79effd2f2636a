/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of `pomelo`: one struct cmd row per command; the rows make the parser, the help
 * pages, the suggestions and the shell completion. Parsing is strict: an unknown command or flag, a
 * missing or extra argument ends with exit code 2 and one line that says what to do.
 *
 * I1: whatever cannot be understood is refused before anything is done.
 * I2: with --json, the last line on standard output is one JSON value.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/err.h"

#include <stdio.h>

/* Exit codes (answers.md). */
enum cli_exit {
	EXIT_OK_ = 0,
	EXIT_TYPED_ = 1,	 /* a typed failure */
	EXIT_USAGE_ = 2,	 /* usage or configuration */
	EXIT_NOT_FOUND_ = 3,	 /* what was named does not exist */
	EXIT_SOME_ = 4,		 /* some items failed */
	EXIT_BUSY_ = 5,		 /* busy, time-out or unreachable */
	EXIT_REFUSED_ = 6,	 /* refused: secret, role or version */
	EXIT_INTERRUPTED_ = 130, /* Ctrl-C */
};

enum {
	CLI_SETS_MAX = 64, /* --set, in one command line */
	CLI_OPTS_MAX = 32, /* flags of the command, in one command line */
	CLI_DEADLINE_MS = 30000,
	CLI_DEADLINE_MAX_MS = 86400000,
};

struct cli;

struct cli_flag {
	const char *name; /* "--pool"; NULL ends a list */
	const char *arg;  /* what its value is called, "SIZE"; NULL: the flag takes none */
	const char *text; /* one line for the help */
	const char *but;  /* a flag that may not stand beside this one; NULL: none */
};

struct cmd {
	const char *name;     /* "up", or two words: "secret new" */
	const char *args;     /* "[NAME]", "ROLE [TENANT]"; "" for none */
	const char *summary;  /* one line for the list of commands */
	const char *help;     /* paragraphs for its own page; lines end in \n */
	const char *examples; /* "line\n..." each one a command that works */
	const char *words; /* values its first argument may take, for completion; NULL: any */
	const struct cli_flag *flags; /* NULL: only the global ones */
	int args_min, args_max;
	int (*fn)(struct cli *c); /* returns an exit code */
	bool internal;		  /* not listed: started by other commands, not by people */
};

/* One parsed command line. Strings are borrowed from argv or the environment. */
struct cli {
	const struct cmd *cmds;	 /* the table, ended by a row without name */
	const struct cmd *cmd;	 /* the row to run */
	const char *topic;	 /* the command's word or words; NULL: none was given */
	bool which;		 /* `secret` alone: its second word is missing */
	const char *data;	 /* --data; NULL: POMELO_DATA or the default */
	const char *run_dir;	 /* --run-dir; NULL: DATA/run */
	const char *secret_file; /* --secret-file; NULL: POMELO_SECRET_FILE, then DATA/secret */
	const char *tenant;	 /* --tenant; NULL: `default` */
	uint64_t deadline_ms;	 /* --deadline */
	bool deadline_given;
	bool json, help;
	int verbose;
	const char *sets[CLI_SETS_MAX]; /* --set k=v, in order */
	size_t n_sets;
	struct cli_opt {
		const struct cli_flag *flag;
		const char *value; /* NULL when the flag takes none */
	} opts[CLI_OPTS_MAX];
	size_t n_opts;
	char **args; /* n_args positional ones, within argv */
	int n_args;
	FILE *out, *err;
	struct why why; /* why the command failed; printed by cli_main */
};

/* The global flags, ended by a row without name. */
extern const struct cli_flag cli_globals[];

/*
 * Fills c from argv (which is reordered). cmds, out and err of c are set by the caller; all else is
 * overwritten. ERR_INVALID_PARAMS with the line to print in c->why.
 */
enum err cli_parse(struct cli *c, int argc, char **argv) MUST_CHECK;
/* Parses, runs, prints the error line; the exit code. */
int cli_main(struct cli *c, int argc, char **argv);

/* Was the flag given? */
bool cli_has(const struct cli *c, const char *flag);
/* The value of the last such flag; NULL when it was not given. */
const char *cli_value(const struct cli *c, const char *flag);
/* "500ms" "30s" "2m" "1h", a bare number is ms; 1 to max_ms. False: not that. Pure. */
bool cli_time(const char *s, uint64_t max_ms, uint64_t *ms);
/*
 * The value of a flag as a whole number from min to max; *v stays when the flag was not given.
 * ERR_INVALID_PARAMS, with the line to print in c->why.
 */
enum err cli_number(struct cli *c, const char *flag, uint64_t min, uint64_t max, uint64_t *v)
	MUST_CHECK;
/* The exit code for an error. */
int cli_exit_of(enum err e);
/* Records why and returns the exit code for e. */
int cli_fail(struct cli *c, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- cli_help.c ---- */

/* The row whose name is the given words; NULL when there is none. internal rows are found too. */
const struct cmd *cli_find(const struct cmd *cmds, const char *name);
/*
 * The nearest of the given words, or NULL when none is near (more than a third of the letters
 * differ). words: n strings.
 */
const char *cli_nearest(const char *word, const char *const *words, size_t n);
/* The command whose name is nearest; NULL when none is near. */
const char *cli_nearest_cmd(const struct cmd *cmds, const char *word);
/* The page of one command, or of all whose first word is `name`. False: no such command. */
bool cli_help_cmd(const struct cmd *cmds, const char *name, FILE *to);
/* The list of commands. */
void cli_help_all(const struct cmd *cmds, FILE *to);

/* ---- cli_complete.c ---- */

/* A completion script for one of cli_shells; false for another shell. */
extern const char cli_shells[]; /* "bash zsh fish" */
bool cli_completion(const struct cmd *cmds, const char *shell, FILE *to);

/* ---- commands.c ---- */

extern const struct cmd cli_cmds[];
