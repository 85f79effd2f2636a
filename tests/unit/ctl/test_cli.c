/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include "print.h"

#include <unistd.h>

/* ---- a table of its own ---- */

static int show(struct cli *c)
{
	fprintf(c->out, "cmd=%s json=%d v=%d data=%s sets=%zu ms=%llu flag=%d size=%s args=%d",
		c->cmd->name, c->json, c->verbose, c->data ? c->data : "-", c->n_sets,
		(unsigned long long)c->deadline_ms, cli_has(c, "--fast"),
		cli_value(c, "--size") ? cli_value(c, "--size") : "-", c->n_args);
	for (int i = 0; i < c->n_args; i++)
		fprintf(c->out, " [%s]", c->args[i]);
	fputs("\n", c->out);
	return EXIT_OK_;
}

static int fail(struct cli *c)
{
	return cli_fail(c, ERR_BUSY, "the queue is full\x1b[2J; \"later\"");
}

static int help(struct cli *c)
{
	cli_help_all(c->cmds, c->out);
	return EXIT_OK_;
}

static const struct cli_flag flags[] = {
	{ "--size", "SIZE", "how large", "--fast" },
	{ "--fast", NULL, "in a hurry", "--size" },
	{ 0 },
};

static const struct cmd table[] = {
	{ .name = "put",
	  .args = "KEY FILE",
	  .summary = "puts",
	  .examples = "pomelo put a b\n",
	  .flags = flags,
	  .args_min = 2,
	  .args_max = 2,
	  .fn = show },
	{ .name = "status",
	  .args = "",
	  .summary = "tells",
	  .examples = "pomelo status\n",
	  .fn = show },
	{ .name = "fail",
	  .args = "",
	  .summary = "fails",
	  .examples = "pomelo fail\n",
	  .fn = fail },
	{ .name = "key new",
	  .args = "",
	  .summary = "makes",
	  .examples = "pomelo key new\n",
	  .fn = show },
	{ .name = "key show",
	  .args = "[ID]",
	  .summary = "shows",
	  .examples = "pomelo key show\n",
	  .args_max = 1,
	  .fn = show },
	{ .name = "help",
	  .args = "",
	  .summary = "helps",
	  .examples = "pomelo help\n",
	  .fn = help },
	{ .name = "inner",
	  .args = "",
	  .summary = "hidden",
	  .examples = "",
	  .fn = show,
	  .internal = true },
	{ 0 },
};

struct row {
	const char *words, *out;
};

Test(cli, reads_what_is_right, .timeout = 10)
{
	static const struct row rows[] = {
		{ "status",
		  "cmd=status json=0 v=0 data=- sets=0 ms=30000 flag=0 size=- args=0\n" },
		{ "--json status",
		  "cmd=status json=1 v=0 data=- sets=0 ms=30000 flag=0 size=- args=0\n" },
		{ "status --json -v -v --data /x",
		  "cmd=status json=1 v=2 data=/x sets=0 ms=30000 flag=0 "
		  "size=- args=0\n" },
		{ "--data /x --set a.b=1 status --set c=2",
		  "cmd=status json=0 v=0 data=/x sets=2 ms=30000 flag=0 size=- args=0\n" },
		{ "--data=/x=y status",
		  "cmd=status json=0 v=0 data=/x=y sets=0 ms=30000 flag=0 size=- "
		  "args=0\n" },
		{ "--deadline 2m status",
		  "cmd=status json=0 v=0 data=- sets=0 ms=120000 flag=0 size=- "
		  "args=0\n" },
		{ "--deadline 750 status",
		  "cmd=status json=0 v=0 data=- sets=0 ms=750 flag=0 size=- "
		  "args=0\n" },
		{ "put a --size 3 b",
		  "cmd=put json=0 v=0 data=- sets=0 ms=30000 flag=0 size=3 args=2 [a] "
		  "[b]\n" },
		{ "put --size=1 --size=2 k -",
		  "cmd=put json=0 v=0 data=- sets=0 ms=30000 flag=0 size=2 "
		  "args=2 [k] [-]\n" },
		{ "put --fast -- --size -v",
		  "cmd=put json=0 v=0 data=- sets=0 ms=30000 flag=1 size=- "
		  "args=2 [--size] [-v]\n" },
		{ "key new",
		  "cmd=key new json=0 v=0 data=- sets=0 ms=30000 flag=0 size=- args=0\n" },
		{ "key --json show 7",
		  "cmd=key show json=1 v=0 data=- sets=0 ms=30000 flag=0 size=- "
		  "args=1 [7]\n" },
		{ "inner",
		  "cmd=inner json=0 v=0 data=- sets=0 ms=30000 flag=0 size=- args=0\n" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ran r;
		ran_do(&r, table, rows[i].words);
		cr_expect_eq(r.code, 0, "%s: %d %s", rows[i].words, r.code, r.err);
		cr_expect_str_eq(r.out, rows[i].out);
		cr_expect_str_eq(r.err, "");
		ran_fini(&r);
	}
	NO_LEAKS();
}

/* One line, exit code 2, nothing done; the line names the word and says what to do. */
Test(cli, refuses_what_is_wrong, .timeout = 10)
{
	static const struct row rows[] = {
		{ "statsu",
		  "pomelo: statsu: no such command; did you mean `pomelo status`?\n" },
		{ "stat", "pomelo: stat: no such command; did you mean `pomelo status`?\n" },
		{ "xyzzy", "pomelo: xyzzy: no such command; `pomelo help` lists them\n" },
		{ "innr", "pomelo: innr: no such command; `pomelo help` lists them\n" },
		{ "status --jsno",
		  "pomelo: --jsno: `status` has no such flag; did you mean --json?\n" },
		{ "status --fast",
		  "pomelo: --fast: `status` has no such flag; `pomelo help status` lists "
		  "them\n" },
		{ "status -x",
		  "pomelo: -x: `status` has no such flag; `pomelo help status` lists them\n" },
		{ "status more",
		  "pomelo: more: one argument too many; usage: pomelo status\n" },
		{ "put a", "pomelo: `put` needs an argument; usage: pomelo put KEY FILE\n" },
		{ "put a b --size", "pomelo: --size needs a value: --size SIZE (how large)\n" },
		{ "put a b --size --json",
		  "pomelo: --size needs a value: --size SIZE (how large)\n" },
		{ "put a b --size=",
		  "pomelo: --size needs a value: --size SIZE (how large)\n" },
		{ "put a b --fast=yes", "pomelo: --fast takes no value; leave out `=yes`\n" },
		{ "put a b --fast --size 3",
		  "pomelo: --size and --fast exclude each other; give one of "
		  "them\n" },
		{ "status --deadline soon",
		  "pomelo: --deadline soon: not a time from 1ms to 24h; write "
		  "500ms, 30s or 2m\n" },
		{ "status --deadline 25h",
		  "pomelo: --deadline 25h: not a time from 1ms to 24h; write 500ms, "
		  "30s or 2m\n" },
		{ "status --deadline 0",
		  "pomelo: --deadline 0: not a time from 1ms to 24h; write 500ms, 30s "
		  "or 2m\n" },
		{ "status --deadline -1",
		  "pomelo: --deadline -1: not a time from 1ms to 24h; write 500ms, "
		  "30s or 2m\n" },
		{ "status --set nothing",
		  "pomelo: --set nothing: not NAME=VALUE; `pomelo config` lists the "
		  "names\n" },
		{ "status --set =1",
		  "pomelo: --set =1: not NAME=VALUE; `pomelo config` lists the names\n" },
		{ "status --tenant a/b",
		  "pomelo: --tenant a/b: a tenant is 1 to 64 of the characters A-Z "
		  "a-z 0-9 . _ -\n" },
		{ "key", "pomelo: key: which one? `pomelo help key` lists its commands\n" },
		{ "key nwe",
		  "pomelo: key nwe: no such command; did you mean `pomelo key new`?\n" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ran r;
		ran_do(&r, table, rows[i].words);
		cr_expect_eq(r.code, EXIT_USAGE_, "%s: %d", rows[i].words, r.code);
		cr_expect_str_eq(r.err, rows[i].out);
		cr_expect_str_eq(r.out, "");
		ran_fini(&r);
	}
	NO_LEAKS();
}

Test(cli, limits_are_kept, .timeout = 10)
{
	char *argv[2 * CLI_SETS_MAX + 8] = { "pomelo", "status" };
	int argc = 2;
	for (int i = 0; i < CLI_SETS_MAX + 1; i++) {
		argv[argc++] = "--set";
		argv[argc++] = "a=1";
	}
	struct cli c = { .cmds = table, .out = stdout, .err = stderr };
	cr_expect_eq(cli_parse(&c, argc, argv), ERR_INVALID_PARAMS);
	cr_expect(strstr(c.why.text, "more than 64"), "%s", c.why.text);
	char *many[CLI_OPTS_MAX + 8] = { "pomelo", "put", "a", "b" };
	argc = 4;
	for (int i = 0; i <= CLI_OPTS_MAX; i++)
		many[argc++] = "--fast";
	c = (struct cli){ .cmds = table, .out = stdout, .err = stderr };
	cr_expect_eq(cli_parse(&c, argc, many), ERR_INVALID_PARAMS);
	cr_expect(strstr(c.why.text, "more than 32"), "%s", c.why.text);
}

/* The error on one line of standard error, without control bytes; with --json also on the output. */
Test(cli, errors_are_one_line, .timeout = 10)
{
	struct ran r;
	ran_do(&r, table, "fail");
	cr_expect_eq(r.code, EXIT_BUSY_);
	cr_expect_str_eq(r.err, "pomelo: the queue is full?[2J; \"later\"\n");
	cr_expect_str_eq(r.out, "");
	ran_fini(&r);
	ran_do(&r, table, "fail --json");
	cr_expect_eq(r.code, EXIT_BUSY_);
	json_t *o = json_loads(r.out, 0, NULL);
	cr_assert_not_null(o, "%s", r.out);
	cr_expect_str_eq(json_string_value(json_object_get(o, "error")), "BUSY");
	cr_expect_eq(strchr(r.out, '\n'), r.out + strlen(r.out) - 1);
	json_decref(o);
	ran_fini(&r);
	ran_do(&r, table, "statsu --json");
	cr_expect_eq(r.code, EXIT_USAGE_);
	cr_expect_str_eq(r.out, "", "a command line that is not understood has no --json yet");
	ran_fini(&r);
	NO_LEAKS();
}

Test(cli, exit_codes, .timeout = 10)
{
	static const struct {
		enum err err;
		int code;
	} rows[] = {
		{ ERR_NONE, 0 },
		{ ERR_INTERNAL, 1 },
		{ ERR_IO, 1 },
		{ ERR_INVALID_PARAMS, 2 },
		{ ERR_NOT_FOUND, 3 },
		{ ERR_BUSY, 5 },
		{ ERR_TIMED_OUT, 5 },
		{ ERR_UNREACHABLE, 5 },
		{ ERR_CONN_LOST, 5 },
		{ ERR_NOT_READY, 5 },
		{ ERR_RECOVERING, 5 },
		{ ERR_TEMPORARILY_AWAY, 5 },
		{ ERR_FORBIDDEN, 6 },
		{ ERR_UNAUTHENTICATED, 6 },
		{ ERR_VERSION_MISMATCH, 6 },
		{ ERR_CORRUPT, 1 },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		cr_expect_eq(cli_exit_of(rows[i].err), rows[i].code, "%s",
			     err_name(rows[i].err));
}

/* ---- help and completion ---- */

Test(cli, help_pages, .timeout = 10)
{
	struct ran r;
	ran_do(&r, table, "");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "put KEY FILE") && strstr(r.out, "key show [ID]"));
	cr_expect_null(strstr(r.out, "inner"), "internal commands are not listed");
	ran_fini(&r);
	ran_do(&r, table, "put --help");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "pomelo put KEY FILE [FLAGS]: puts") &&
		  strstr(r.out, "--size SIZE"));
	cr_expect(strstr(r.out, "examples\n  pomelo put a b\n"));
	ran_fini(&r);
	ran_do(&r, table, "key -h");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "pomelo key new: makes") &&
		  strstr(r.out, "pomelo key show [ID]: shows"));
	ran_fini(&r);
	ran_do(&r, table, "--help");
	cr_expect_eq(r.code, 0);
	cr_expect(strstr(r.out, "usage: pomelo"));
	ran_fini(&r);
	cr_expect_not(cli_help_cmd(table, "nothing", stdout));
	NO_LEAKS();
}

/* Every command of the real table has what its page needs, and its page can be printed. */
Test(cli, the_real_rows_are_whole, .timeout = 10)
{
	for (const struct cmd *k = cli_cmds; k->name; k++) {
		struct ran r;
		char words[128];
		cr_expect_not_null(k->fn, "%s", k->name);
		cr_expect(k->args_min <= k->args_max, "%s", k->name);
		cr_expect((k->args[0] != '\0') == (k->args_max > 0), "%s", k->name);
		if (k->internal)
			continue;
		cr_expect(k->summary && *k->summary && strlen(k->summary) < 70, "%s", k->name);
		cr_expect(k->examples && strstr(k->examples, "pomelo"), "%s", k->name);
		for (const struct cli_flag *f = k->flags; f && f->name; f++)
			for (const struct cli_flag *g = cli_globals; g->name; g++)
				cr_expect_str_neq(f->name, g->name);
		snprintf(words, sizeof(words), "help %s", k->name);
		ran_do(&r, cli_cmds, words);
		cr_expect_eq(r.code, 0, "%s", words);
		cr_expect(strstr(r.out, k->summary), "%s", words);
		ran_fini(&r);
	}
	NO_LEAKS();
}

Test(cli, help_for_what_is_not, .timeout = 10)
{
	struct ran r;
	ran_do(&r, cli_cmds, "help upp");
	cr_expect_eq(r.code, EXIT_USAGE_);
	cr_expect_str_eq(r.err,
			 "pomelo: upp: no such command; did you mean `pomelo help up`?\n");
	ran_fini(&r);
	ran_do(&r, cli_cmds, "completion csh");
	cr_expect_eq(r.code, EXIT_USAGE_);
	cr_expect_str_eq(r.err, "pomelo: csh: no completion for this shell; there are: bash "
				"zsh fish\n");
	ran_fini(&r);
}

/* What the script offers, asked of bash itself. */
static void complete(const char *line, const char *want)
{
	char script[] = "/tmp/pomelo-completion-XXXXXX", cmd[512], got[1024] = "";
	int fd = mkstemp(script);
	FILE *f = fdopen(fd, "w");
	cr_assert(cli_completion(table, "bash", f));
	fclose(f);
	snprintf(
		cmd, sizeof(cmd),
		"bash -c 'source %s; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pomelo; "
		"echo -n \"${COMPREPLY[*]}\"'",
		script, line);
	FILE *p = popen(cmd, "r"); /* NOLINT(cert-env33-c) */
	size_t n = fread(got, 1, sizeof(got) - 1, p);
	got[n] = '\0';
	cr_expect_eq(pclose(p), 0);
	cr_expect_str_eq(got, want);
	remove(script);
}

Test(cli, completion_for_bash, .timeout = 20)
{
	complete("pomelo st", "status");
	complete("pomelo \"\"", "put status fail key help");
	complete("pomelo key \"\"", "new show");
	complete("pomelo put --s", "--size --secret-file --set");
	complete("pomelo --data /x pu", "put");
	complete("pomelo status --js", "--json");
	cr_expect_not(cli_completion(table, "csh", stdout));
}

/* A script of a table as text. owned, free(). */
static char *script_of(const struct cmd *cmds, const char *shell)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	cr_assert(cli_completion(cmds, shell, f), "%s", shell);
	fclose(f);
	return text;
}

/* Does the shell, when it is here, read the script without a word? */
static void shell_reads(const char *shell, const char *text)
{
	char script[] = "/tmp/pomelo-completion-XXXXXX", cmd[256];
	snprintf(cmd, sizeof(cmd), "command -v %s >/dev/null", shell);
	if (system(cmd) != 0)
		return;
	int fd = mkstemp(script);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	snprintf(cmd, sizeof(cmd), "test -z \"$(%s -n %s 2>&1)\"", shell, script);
	cr_expect_eq(system(cmd), 0, "%s", shell);
	remove(script);
}

Test(cli, completion_for_zsh, .timeout = 20)
{
	char *text = script_of(table, "zsh");
	cr_expect_eq(strncmp(text, "#compdef pomelo\n", 16), 0);
	cr_expect(strstr(text, "\t'') args=\" put status fail key help\" ;;\n"));
	cr_expect(strstr(text, "\tput) own=\" --size --fast\" args=\"\" ;;\n"));
	cr_expect(strstr(text, "\tkey) own=\"\" args=\" new show\" ;;\n"));
	cr_expect(strstr(text, "compadd -- ${=own} --data "));
	cr_expect_null(strstr(text, "inner"));
	shell_reads("zsh", text);
	free(text);
}

Test(cli, completion_for_fish, .timeout = 20)
{
	char *text = script_of(table, "fish");
	cr_expect(strstr(
		text, "complete -c pomelo -f -n '__fish_use_subcommand' -a 'put' -d 'puts'\n"));
	cr_expect(strstr(text, "complete -c pomelo -f -n '__fish_use_subcommand' -a 'key'\n"));
	cr_expect(strstr(text,
			 "complete -c pomelo -f -n '__fish_seen_subcommand_from key' -a 'new' "
			 "-d 'makes'\n"));
	cr_expect(
		strstr(text,
		       "complete -c pomelo -n '__fish_seen_subcommand_from put' -l size -r -d "
		       "'how large'\n"));
	cr_expect(strstr(text, "complete -c pomelo -s v -d 'say more; twice: debug'\n"));
	cr_expect_null(strstr(text, "inner"));
	shell_reads("fish", text);
	free(text);
	text = script_of(cli_cmds, "fish");
	cr_expect(strstr(text, "-d 'the cluster\\'s secret") || strstr(text, "\\'"),
		  "quotes are marked");
	shell_reads("fish", text);
	free(text);
}

/* Every command and every flag of the real table is offered in every shell. */
Test(cli, completion_offers_all, .timeout = 20)
{
	static const char *const shells[] = { "bash", "zsh", "fish" };
	for (size_t s = 0; s < ARRAY_LEN(shells); s++) {
		char *text = script_of(cli_cmds, shells[s]), word[96];
		for (const struct cmd *k = cli_cmds; k->name; k++) {
			const char *second = strchr(k->name, ' ');
			snprintf(word, sizeof(word), "%s", second ? second + 1 : k->name);
			cr_expect(k->internal || strstr(text, word), "%s: %s", shells[s], word);
			for (const struct cli_flag *f = k->flags; !k->internal && f && f->name;
			     f++) {
				bool fish = s == 2;
				snprintf(word, sizeof(word), "%s%s", fish ? "-l " : "",
					 f->name + (fish ? 2 : 0));
				cr_expect(strstr(text, word), "%s: %s", shells[s], word);
			}
		}
		shell_reads(shells[s], text);
		free(text);
	}
}

/* ---- values ---- */

Test(cli, times, .timeout = 10)
{
	static const struct {
		const char *text;
		uint64_t ms; /* 0: refused */
	} rows[] = {
		{ "1", 1 },	  { "250", 250 },
		{ "500ms", 500 }, { "2s", 2000 },
		{ "3m", 180000 }, { "1h", 3600000 },
		{ "2h", 0 },	  { "0", 0 },
		{ "", 0 },	  { "-1", 0 },
		{ "1.5s", 0 },	  { "5 s", 0 },
		{ "s", 0 },	  { "99999999999999999999", 0 },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t ms = 7;
		cr_expect_eq(cli_time(rows[i].text, 3600000, &ms), rows[i].ms != 0, "%s",
			     rows[i].text);
		cr_expect_eq(ms, rows[i].ms ? rows[i].ms : 7, "%s", rows[i].text);
	}
}

/* Each is refused before anything is looked for. */
Test(cli, values_of_top_and_bench, .timeout = 20)
{
	static const struct {
		const char *words, *err;
	} rows[] = {
		{ "top --once --interval 50ms", "--interval 50ms: a time from 100ms to 1h" },
		{ "top --interval soon", "--interval soon: a time from 100ms to 1h" },
		{ "bench put got", "got: no such benchmark; there are put, get and exists" },
		{ "bench --size 0", "--size 0: a size from 1 byte to 1GiB" },
		{ "bench --clients 0", "--clients 0: a whole number from 1 to 256" },
		{ "bench --batch 4097", "--batch 4097: a whole number from 1 to 4096" },
		{ "bench --flights x", "--flights x: a whole number from 1 to 64" },
		{ "bench --seconds 1.5", "--seconds 1.5: a whole number from 1 to 3600" },
		{ "bench --size 1GiB --batch 64", "take buffers of 256.0 GiB, at most 8 GiB" },
		{ "put k /dev/null --replicas 17", "--replicas 17: a whole number" },
		{ "put k /dev/null --replicas-required 2", "more than --replicas, 1" },
		{ "put k /dev/null --replicas 2 --replicas-required 3",
		  "more than --replicas, 2" },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ran r;
		ran_do(&r, cli_cmds, rows[i].words);
		cr_expect_eq(r.code, EXIT_USAGE_, "%s: %d", rows[i].words, r.code);
		cr_expect(strstr(r.err, rows[i].err), "%s: %s", rows[i].words, r.err);
		ran_fini(&r);
	}
	NO_LEAKS();
}
