/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing. A command line is read twice: the first pass finds the command (global flags may stand
 * before it), the second knows its flags.
 */
#include "cli.h"
#include "print.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* clang-format off */
const struct cli_flag cli_globals[] = {
	{ "--data", "DIR", "the data folder (POMELO_DATA; /var/lib/pomelo, or ~/.local/state/pomelo)" },
	{ "--run-dir", "DIR", "where the sockets are (POMELO_RUN_DIR; DIR/run)" },
	{ "--secret-file", "FILE", "the cluster secret (POMELO_SECRET_FILE; DIR/secret)" },
	{ "--tenant", "NAME", "the tenant to act for (default)" },
	{ "--deadline", "TIME", "give up after: 500ms, 30s, 2m; a bare number is ms (30s)" },
	{ "--set", "NAME=VALUE", "a setting, over environment and file; may be repeated" },
	{ "--json", NULL, "one line of JSON as the last line of the output" },
	{ "-v", NULL, "say more; twice: debug" },
	{ "--help", NULL, "this page" },
	{ 0 },
};

static const struct exit_row {
	enum err err;
	enum cli_exit code;
} exit_rows[] = {
	{ ERR_NONE, EXIT_OK_ },
	{ ERR_INVALID_PARAMS, EXIT_USAGE_ },
	{ ERR_NOT_FOUND, EXIT_NOT_FOUND_ },
	{ ERR_BUSY, EXIT_BUSY_ },
	{ ERR_TIMED_OUT, EXIT_BUSY_ },
	{ ERR_UNREACHABLE, EXIT_BUSY_ },
	{ ERR_CONN_LOST, EXIT_BUSY_ },
	{ ERR_SHUTTING_DOWN, EXIT_BUSY_ },
	{ ERR_NOT_READY, EXIT_BUSY_ },
	{ ERR_RECOVERING, EXIT_BUSY_ },
	{ ERR_TEMPORARILY_AWAY, EXIT_BUSY_ },
	{ ERR_BUSY_WRITING, EXIT_BUSY_ },
	{ ERR_UNAUTHENTICATED, EXIT_REFUSED_ },
	{ ERR_FORBIDDEN, EXIT_REFUSED_ },
	{ ERR_VERSION_MISMATCH, EXIT_REFUSED_ },
	{ ERR_CANCELLED, EXIT_INTERRUPTED_ },
};
/* clang-format on */

int cli_exit_of(enum err e)
{
	for (size_t i = 0; i < ARRAY_LEN(exit_rows); i++)
		if (exit_rows[i].err == e)
			return (int)exit_rows[i].code;
	return EXIT_TYPED_;
}

int cli_fail(struct cli *c, enum err e, const char *fmt, ...)
{
	char text[sizeof(c->why.text)];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return cli_exit_of(why_set(&c->why, e, "%s", text));
}

bool cli_has(const struct cli *c, const char *flag)
{
	for (size_t i = 0; i < c->n_opts; i++)
		if (strcmp(c->opts[i].flag->name, flag) == 0)
			return true;
	return false;
}

const char *cli_value(const struct cli *c, const char *flag)
{
	for (size_t i = c->n_opts; i > 0; i--)
		if (strcmp(c->opts[i - 1].flag->name, flag) == 0)
			return c->opts[i - 1].value;
	return NULL;
}

enum err cli_number(struct cli *c, const char *flag, uint64_t min, uint64_t max, uint64_t *v)
{
	const char *s = cli_value(c, flag);
	char *end = NULL;
	if (!s)
		return ERR_NONE;
	errno = 0;
	unsigned long long n = strtoull(s, &end, 10);
	if (errno || end == s || *end || !isdigit((unsigned char)*s) || n < min || n > max)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s %.40s: a whole number from %" PRIu64 " to %" PRIu64
			       " is expected",
			       flag, s, min, max);
	*v = n;
	return ERR_NONE;
}

/* ---- flags ---- */

/* Where the parser stands in argv. */
struct scan {
	struct cli *c;
	char **argv;
	int argc, at;
	int n_args; /* positional ones, moved to the front of argv + 1 */
};

static const struct cli_flag *flag_find(const struct cli_flag *rows, const char *s, size_t n)
{
	for (; rows && rows->name; rows++)
		if (strlen(rows->name) == n && memcmp(rows->name, s, n) == 0)
			return rows;
	return NULL;
}

bool cli_time(const char *s, uint64_t max_ms, uint64_t *ms)
{
	static const struct {
		const char *unit;
		uint64_t ms;
	} units[] = { { "", 1 }, { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 } };
	char *end = NULL;
	errno = 0;
	unsigned long long v = isdigit((unsigned char)*s) ? strtoull(s, &end, 10) : 0;
	for (size_t i = 0; end && errno == 0 && i < ARRAY_LEN(units); i++) {
		if (strcmp(end, units[i].unit) != 0)
			continue;
		if (v < 1 || v > max_ms / units[i].ms)
			break;
		*ms = v * units[i].ms;
		return true;
	}
	return false;
}

static enum err parse_deadline(struct cli *c, const char *s)
{
	assert(s);
	if (cli_time(s, CLI_DEADLINE_MAX_MS, &c->deadline_ms)) {
		c->deadline_given = true;
		return ERR_NONE;
	}
	return why_set(&c->why, ERR_INVALID_PARAMS,
		       "--deadline %.40s: not a time from 1ms to 24h; write 500ms, 30s or 2m",
		       s);
}

static enum err parse_set(struct cli *c, const char *s)
{
	assert(s);
	if (c->n_sets == CLI_SETS_MAX)
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"--set: more than %d of them; put them into a file, DIR/pomelo.conf",
			CLI_SETS_MAX);
	const char *eq = strchr(s, '=');
	if (!eq || eq == s)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "--set %.60s: not NAME=VALUE; `pomelo config` lists the names",
			       s);
	c->sets[c->n_sets++] = s;
	return ERR_NONE;
}

static enum err parse_tenant(struct cli *c, const char *s)
{
	assert(s);
	size_t n =
		strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
	if (n < 1 || n > 64 || s[n])
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"--tenant %.80s: a tenant is 1 to 64 of the characters A-Z a-z 0-9 . _ -",
			s);
	c->tenant = s;
	return ERR_NONE;
}

static enum err take_global(struct cli *c, const struct cli_flag *f, const char *value)
{
	if (strcmp(f->name, "--data") == 0)
		c->data = value;
	else if (strcmp(f->name, "--run-dir") == 0)
		c->run_dir = value;
	else if (strcmp(f->name, "--secret-file") == 0)
		c->secret_file = value;
	else if (strcmp(f->name, "--tenant") == 0)
		return parse_tenant(c, value);
	else if (strcmp(f->name, "--deadline") == 0)
		return parse_deadline(c, value);
	else if (strcmp(f->name, "--set") == 0)
		return parse_set(c, value);
	else if (strcmp(f->name, "--json") == 0)
		c->json = true;
	else if (strcmp(f->name, "-v") == 0)
		c->verbose++;
	else
		c->help = true;
	return ERR_NONE;
}

static enum err take_own(struct cli *c, const struct cli_flag *f, const char *value)
{
	if (c->n_opts == CLI_OPTS_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS, "%s: more than %d flags", f->name,
			       CLI_OPTS_MAX);
	if (f->but && cli_has(c, f->but))
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s and %s exclude each other; give one of them", f->name,
			       f->but);
	c->opts[c->n_opts++] = (struct cli_opt){ f, value };
	return ERR_NONE;
}

/* The nearest flag of the command or of all, in words for the error line. */
static enum err unknown_flag(struct cli *c, const char *s, size_t n)
{
	const char *names[CLI_OPTS_MAX + ARRAY_LEN(exit_rows)];
	size_t n_names = 0;
	char word[64];
	snprintf(word, sizeof(word), "%.*s", (int)MIN_OF(n, sizeof(word) - 1), s);
	for (const struct cli_flag *f = c->cmd->flags; f && f->name; f++)
		names[n_names++] = f->name;
	for (const struct cli_flag *f = cli_globals; f->name; f++)
		names[n_names++] = f->name;
	const char *near = cli_nearest(word, names, n_names);
	if (near)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s: `%s` has no such flag; did you mean %s?", word,
			       c->cmd->name, near);
	return why_set(&c->why, ERR_INVALID_PARAMS,
		       "%s: `%s` has no such flag; `pomelo help %s` lists them", word,
		       c->cmd->name, c->cmd->name);
}

/* One flag at s->at, with its value when it has one; moves on. */
static enum err take_flag(struct scan *s)
{
	struct cli *c = s->c;
	const char *word = s->argv[s->at++];
	const char *eq = word[1] == '-' ? strchr(word, '=') : NULL;
	size_t n = eq ? (size_t)(eq - word) : strlen(word);
	if (strcmp(word, "-h") == 0) {
		c->help = true;
		return ERR_NONE;
	}
	const struct cli_flag *own = flag_find(c->cmd->flags, word, n);
	const struct cli_flag *f = own ? own : flag_find(cli_globals, word, n);
	if (!f)
		return unknown_flag(c, word, n);
	const char *value = eq ? eq + 1 : NULL;
	if (!f->arg && value)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s takes no value; leave out `=%.40s`", f->name, value);
	if (f->arg && !value && s->at < s->argc && strncmp(s->argv[s->at], "--", 2) != 0)
		value = s->argv[s->at++];
	if (f->arg && (!value || !*value))
		return why_set(&c->why, ERR_INVALID_PARAMS, "%s needs a value: %s %s (%s)",
			       f->name, f->name, f->arg, f->text);
	return own ? take_own(c, f, value) : take_global(c, f, value);
}

/* ---- the command ---- */

/* Index of the first word that is neither a global flag nor its value; argc when there is none. */
static int first_word(int argc, char **argv, int at)
{
	for (; at < argc; at++) {
		if (argv[at][0] != '-' || !argv[at][1])
			return at;
		const struct cli_flag *f = flag_find(cli_globals, argv[at], strlen(argv[at]));
		if (f && f->arg)
			at++;
	}
	return argc;
}

static void drop_word(struct scan *s, int at)
{
	memmove(s->argv + at, s->argv + at + 1, (size_t)(s->argc - at) * sizeof(*s->argv));
	s->argc--;
}

/* Does any two-word command begin with this word? */
static bool is_family(const struct cmd *cmds, const char *word)
{
	size_t n = strlen(word);
	for (; cmds->name; cmds++)
		if (strncmp(cmds->name, word, n) == 0 && cmds->name[n] == ' ')
			return true;
	return false;
}

static enum err unknown_cmd(struct cli *c, const char *word)
{
	const char *near = cli_nearest_cmd(c->cmds, word);
	if (near)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%.60s: no such command; did you mean `pomelo %s`?", word, near);
	return why_set(&c->why, ERR_INVALID_PARAMS,
		       "%.60s: no such command; `pomelo help` lists them", word);
}

/* `secret` alone: its flags are read as those of its first command, so that --help works. */
static enum err family_alone(struct cli *c, const char *word)
{
	size_t n = strlen(word);
	for (const struct cmd *k = c->cmds; k->name && !c->cmd; k++)
		if (strncmp(k->name, word, n) == 0 && k->name[n] == ' ')
			c->cmd = k;
	c->which = true;
	return ERR_NONE;
}

static enum err find_cmd(struct scan *s)
{
	struct cli *c = s->c;
	int at = first_word(s->argc, s->argv, 1);
	if (at == s->argc) {
		c->cmd = cli_find(c->cmds, "help");
		return ERR_NONE;
	}
	const char *word = s->argv[at];
	c->topic = word;
	c->cmd = cli_find(c->cmds, word);
	if (!c->cmd && !is_family(c->cmds, word))
		return unknown_cmd(c, word);
	drop_word(s, at);
	if (c->cmd)
		return ERR_NONE;
	int second = first_word(s->argc, s->argv, at);
	if (second == s->argc)
		return family_alone(c, word);
	char name[128];
	snprintf(name, sizeof(name), "%.60s %.60s", word, s->argv[second]);
	c->cmd = cli_find(c->cmds, name);
	if (!c->cmd)
		return unknown_cmd(c, name);
	drop_word(s, second);
	c->topic = c->cmd->name;
	return ERR_NONE;
}

static enum err check_args(struct cli *c)
{
	const struct cmd *k = c->cmd;
	if (c->which && !c->help)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s: which one? `pomelo help %s` lists its commands", c->topic,
			       c->topic);
	if (c->help || (c->n_args >= k->args_min && c->n_args <= k->args_max))
		return ERR_NONE;
	if (c->n_args > k->args_max)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%.60s: one argument too many; usage: pomelo %s%s%s",
			       c->args[k->args_max], k->name, *k->args ? " " : "", k->args);
	return why_set(&c->why, ERR_INVALID_PARAMS,
		       "`%s` needs an argument; usage: pomelo %s %s", k->name, k->name,
		       k->args);
}

enum err cli_parse(struct cli *c, int argc, char **argv)
{
	*c = (struct cli){ .cmds = c->cmds, .out = c->out, .err = c->err };
	c->deadline_ms = CLI_DEADLINE_MS;
	struct scan s = { .c = c, .argv = argv, .argc = argc, .at = 1 };
	enum err e = find_cmd(&s);
	bool only_args = false;
	while (e == ERR_NONE && s.at < s.argc) {
		const char *word = argv[s.at];
		if (!only_args && strcmp(word, "--") == 0) {
			only_args = true;
			s.at++;
		} else if (!only_args && word[0] == '-' && word[1]) {
			e = take_flag(&s);
		} else {
			argv[1 + s.n_args++] = argv[s.at++];
		}
	}
	c->args = argv + 1;
	c->n_args = s.n_args;
	return e == ERR_NONE ? check_args(c) : e;
}

int cli_main(struct cli *c, int argc, char **argv)
{
	int code = EXIT_OK_;
	if (cli_parse(c, argc, argv) != ERR_NONE)
		code = cli_exit_of(c->why.err);
	else if (c->help && c->topic)
		cli_help_cmd(c->cmds, c->topic, c->out);
	else if (c->help)
		cli_help_all(c->cmds, c->out);
	else
		code = c->cmd->fn(c);
	if (c->why.err != ERR_NONE)
		print_error(c);
	if (fflush(c->out) != 0 || ferror(c->out)) {
		fprintf(c->err, "pomelo: cannot write the output: %s\n", strerror(errno));
		return code == EXIT_OK_ ? EXIT_TYPED_ : code;
	}
	return code;
}
