/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon around one service. The only file of the shell that knows of a process: arguments,
 * signals, exit code.
 */
#include "svc/svc_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/path.h"
#include "loop/signals.h"

extern char **environ;

struct daemon {
	struct loop loop;
	struct svc *svc;
	bool stopping; /* asked to, by a signal or a DRAIN */
};

static int exit_code(enum err e)
{
	switch (e) {
	case ERR_NONE:
		return 0;
	case ERR_INVALID_PARAMS:
	case ERR_TOO_LARGE:
	case ERR_NOT_FOUND: /* a secret or file that a setting names */
		return 2;
	case ERR_BUSY:
	case ERR_EXISTS: /* an address somebody else listens on */
	case ERR_TIMED_OUT:
	case ERR_UNREACHABLE:
		return 5;
	case ERR_DIRECTORY_IN_USE:
	case ERR_FORBIDDEN:
	case ERR_UNAUTHENTICATED:
		return 6;
	default:
		return 1;
	}
}

static void print_help(const struct svc_def *def, struct conf *c)
{
	struct buf b = BUF_INIT(1 << 20);
	buf_printf(
		&b,
		"usage: %s [--data DIR] [--SETTING VALUE]... [--set SETTING=VALUE]...\n"
		"       %s --help | --version | --show-config\n\n"
		"%s Stops on SIGTERM or SIGINT.\n"
		"Settings, with the values now in effect (also in DATA/pomelo.conf and POMELO_*):\n\n",
		def->exe, def->exe, def->about);
	conf_print(c, &b);
	fwrite(b.p, 1, b.n, stdout);
	buf_fini(&b);
}

static void print_config(struct conf *c)
{
	struct buf b = BUF_INIT(1 << 20);
	conf_print(c, &b);
	fwrite(b.p, 1, b.n, stdout);
	buf_fini(&b);
}

/* --help and --show-config show the settings without touching a folder. */
static int show(int argc, char **argv, const struct svc_def *def, const char *what)
{
	struct loop l;
	struct why why = { 0 };
	struct svc *s = calloc(1, def->size);
	int code = 1;
	if (!s || loop_open(&l) != ERR_NONE) {
		free(s);
		return code;
	}
	s->def = def;
	s->loop = &l;
	bool help = strcmp(what, "--help") == 0;
	struct svc_env env = {
		.loop = &l, .argc = help ? 0 : argc, .argv = argv, .environ = environ
	};
	enum err e = svc_conf_load(s, &env, &why);
	if (e && !help)
		fprintf(stderr, "%s: %s\n", def->exe, why.err ? why.text : err_text(e));
	else if (help)
		print_help(def, s->settings);
	else
		print_config(s->settings);
	code = help ? 0 : exit_code(e);
	conf_free(s->settings);
	loop_close(&l);
	free(s);
	return code;
}

/* Takes the word out of argv: the rest are settings. NULL: it is not there. */
static const char *take_word(int *argc, char **argv)
{
	static const char *const words[] = { "--help", "--version", "--show-config", "-h" };
	for (int i = 1; i < *argc; i++)
		for (size_t k = 0; k < ARRAY_LEN(words); k++)
			if (strcmp(argv[i], words[k]) == 0) {
				memmove(&argv[i], &argv[i + 1],
					(size_t)(*argc - i) * sizeof(*argv));
				--*argc;
				return k == 3 ? words[0] : words[k];
			}
	return NULL;
}

/* Sockets are what a service runs out of first: take all the descriptors we may have. */
static void raise_limits(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == r.rlim_max)
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

static void on_signal(void *arg, int signum, uint32_t n_th)
{
	struct daemon *d = arg;
	d->stopping = true;
	if (n_th > 2) {
		LOG_ERROR(&d->svc->log, "stop", "signal=%d third=true exit=now", signum);
		_exit(1);
	}
	svc_stop(d->svc, n_th == 1 ? d->svc->conf.grace_ms : 0);
}

/* The name of the log leads to a new file once the old one was renamed. */
static enum err open_log(const char *path, struct why *why)
{
	int fd = -1;
	enum err e = path_open(path, O_WRONLY | O_APPEND | O_CREAT, 0600, &fd, why);
	if (e)
		return e;
	if (dup2(fd, STDERR_FILENO) < 0)
		e = why_set(why, ERR_IO,
			    "log.file = %s: cannot take the place of standard error", path);
	close(fd);
	return e;
}

static void on_hup(void *arg)
{
	struct daemon *d = arg;
	const char *path = d->svc->conf.log_file;
	if (!path[0])
		return;
	struct why why = { 0 };
	if (open_log(path, &why))
		LOG_ERROR(&d->svc->log, "log", "error=\"%s\"", why.text);
	else
		LOG_INFO(&d->svc->log, "log", "opened_again=true");
}

static void on_closed(struct svc *s, void *arg)
{
	struct daemon *d = arg;
	loop_stop(&d->loop);
}

static int run(struct daemon *d, int argc, char **argv, const struct svc_def *def)
{
	struct signals *sig = NULL;
	struct why why = { 0 };
	struct svc_env env = { .loop = &d->loop,
			       .argc = argc,
			       .argv = argv,
			       .environ = environ,
			       .closed = on_closed,
			       .arg = d };
	enum err e = signals_open(&d->loop, on_signal, d, &sig);
	if (e) {
		fprintf(stderr, "%s: no signal handlers: %s\n", def->exe, err_text(e));
		return exit_code(e);
	}
	e = svc_open(d->svc, def, &env, &why);
	if (e == ERR_NONE && d->svc->conf.log_file[0]) {
		e = open_log(d->svc->conf.log_file, &why);
		if (e)
			svc_stop(d->svc, 0);
	}
	if (e)
		fprintf(stderr, "%s: %s\n", def->exe, why.text);
	else
		signals_on_hup(sig, on_hup);
	loop_run(&d->loop);
	if (e == ERR_NONE)
		LOG_INFO(&d->svc->log, "stop", "ended=true");
	signals_close(sig);
	return d->svc->failed ? 1 : exit_code(e);
}

int svc_main(int argc, char **argv, const struct svc_def *def)
{
	struct daemon d = { 0 };
	const char *word = take_word(&argc, argv);
	if (word && strcmp(word, "--version") == 0) {
		printf("%s %s\n", def->exe, POMELO_VERSION);
		return 0;
	}
	if (word)
		return show(argc, argv, def, word);
	if (fault_built() && !fault_arm_text(getenv("POMELO_TEST_FAULTS"))) {
		fprintf(stderr, "POMELO_TEST_FAULTS: POINT:stop|kill[:SKIP[:COUNT]],...\n");
		return 2;
	}
	raise_limits();
	d.svc = calloc(1, def->size);
	if (!d.svc || loop_open(&d.loop) != ERR_NONE) {
		fprintf(stderr, "%s: no memory or descriptors left to start\n", def->exe);
		free(d.svc);
		return 1;
	}
	int code = run(&d, argc, argv, def);
	loop_close(&d.loop);
	free(d.svc);
	return code;
}
