/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo` over the real services: configurations and command lines that are wrong, settings and
 * their origins, status, version, doctor, and the supervisor's promises once more with real daemons.
 *
 * As root each test has a network of its own (default ports are free there, whatever else runs).
 */
#include "box.h"

#include "base/conf.h"
#include "pml.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Loopback alone, ours alone. Without the right to that, what the machine has. */
static void own_network(void)
{
	struct ifreq r = { .ifr_name = "lo" };
	if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0)
		return;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (ioctl(fd, SIOCGIFFLAGS, &r) == 0) {
		r.ifr_flags |= IFF_UP;
		ioctl(fd, SIOCSIFFLAGS, &r);
	}
	close(fd);
}

static void start(struct box *b)
{
	own_network();
	box_init(b);
}

static void up(const struct box *b, const char *words)
{
	struct box_ran r;
	char all[512];
	snprintf(all, sizeof(all), "up %s", words);
	box_run(b, &r, all);
	cr_assert_eq(r.code, 0, "%s", r.err);
}

/* ---- wrong ---- */

struct wrong {
	const char *words;   /* the command */
	const char *file;    /* DATA/pomelo.conf, or NULL */
	const char *says[4]; /* name, value, range, remedy: all in the one line */
};

/* One line on standard error, exit code 2, nothing started. */
static void refuse(const struct box *b, const struct wrong *w)
{
	struct box_ran r;
	unlink(box_data(b, "pomelo.conf"));
	if (w->file)
		box_write(box_data(b, "pomelo.conf"), w->file);
	box_run(b, &r, w->words);
	cr_expect_eq(r.code, 2, "%s: %d %s", w->words, r.code, r.err);
	const char *nl = strchr(r.err, '\n');
	cr_expect(nl && nl[1] == '\0', "%s: not one line: %s", w->words, r.err);
	for (size_t i = 0; i < ARRAY_LEN(w->says) && w->says[i]; i++)
		cr_expect(strstr(r.err, w->says[i]), "%s: no '%s' in: %s", w->words, w->says[i],
			  r.err);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(box_pid(b, service_rows[i].name), 0, "%s started",
			     service_rows[i].name);
}

/* By flag, environment and file; each service, the library and the supervisor. */
static const struct wrong wrong_settings[] = {
	{ "up --set beat_ms=5", NULL, { "beat_ms", "= 5 ", "20..60000 ms", "correct" } },
	{ "up --set master.beat_ms=5", NULL, { "master.beat_ms", "= 5 ", "20..60000 ms" } },
	{ "POMELO_CLIENT_SPIN_US=1001 up", NULL, { "client.spin_us", "1001", "0..1000" } },
	{ "up",
	  "agent.suspect_ms = 100\n",
	  { "agent.suspect_ms", "pomelo.conf:1", "two beats" } },
	{ "up --set beat_ms=0.5", NULL, { "beat_ms", "0.5", "20..60000 ms", "whole number" } },
	{ "up --set master.workers=0", NULL, { "master.workers", "= 0 ", "1..64" } },
	{ "up --set agent.workers=65", NULL, { "agent.workers", "65", "1..64" } },
	{ "up --set owner.message_max=9MiB",
	  NULL,
	  { "owner.message_max", "9MiB", "64KiB..8MiB" } },
	{ "up --set planner.message_max=big",
	  NULL,
	  { "planner.message_max", "big", "64KiB..8MiB" } },
	{ "up --set pg.http_port=65536", NULL, { "pg.http_port", "65536", "0..65535" } },
	{ "up --set log.level=loud", NULL, { "log.level", "loud", "error warn info debug" } },
	{ "up --set master.listen=http://x",
	  NULL,
	  { "master.listen", "http://x", "tcp://", "--set" } },
	{ "up --set log.file=relative", NULL, { "log.file", "relative", "absolute" } },
	{ "up --set suspect_ms=100", NULL, { "suspect_ms", "100", "beat_ms" } },
	{ "up --set holder_dead_ms=2000", NULL, { "holder_dead_ms", "2000", "suspect_ms" } },
	{ "up --set master.tls_cert=/x.pem", NULL, { "master.tls_cert", "/x.pem", "key" } },
	{ "up --set client.calls_max=0", NULL, { "client.calls_max", "= 0 ", "1..1048576" } },
	{ "up --set up.grace_ms=99", NULL, { "up.grace_ms", "99", "100..600000 ms" } },
	{ "up --set master.beats=1",
	  NULL,
	  { "master.beats", "no such setting", "did you mean master.beat_ms?" } },
	{ "up --set s3.bucket=x", NULL, { "s3.bucket", "no such setting", "pomelo config" } },
	{ "up --set bead_ms=500",
	  NULL,
	  { "bead_ms", "no such setting", "did you mean beat_ms?" } },
	{ "POMELO_BEAT_MS=fast up",
	  NULL,
	  { "beat_ms", "fast", "20..60000 ms", "POMELO_BEAT_MS" } },
	{ "POMELO_AGENT_WORKER=3 up",
	  NULL,
	  { "POMELO_AGENT_WORKER", "no such setting", "POMELO_AGENT_WORKERS" } },
	{ "up",
	  "log.level = info\nbeat_ms = 70000\n",
	  { "beat_ms", "70000", "20..60000 ms", "pomelo.conf:2" } },
	{ "up", "beat_ms = 100\nbeat_ms = 200\n", { "beat_ms", "pomelo.conf:2" } },
	{ "up", "master { beat = 1 }\n", { "pomelo.conf:1", "name = value" } },
	{ "up",
	  "# fine\nowner.disk = perhaps\n",
	  { "owner.disk", "perhaps", "pomelo.conf:2" } },
};

Test(ctl, wrong_configurations, .timeout = 120)
{
	struct box b;
	start(&b);
	cr_assert_geq(ARRAY_LEN(wrong_settings), 20);
	for (size_t i = 0; i < ARRAY_LEN(wrong_settings); i++)
		refuse(&b, &wrong_settings[i]);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

static const struct wrong wrong_lines[] = {
	{ "upp", NULL, { "upp", "did you mean `pomelo up`?" } },
	{ "launch", NULL, { "launch", "no such command", "pomelo help" } },
	{ "up --poool 1GiB", NULL, { "--poool", "did you mean --pool?" } },
	{ "up now", NULL, { "now", "usage: pomelo up" } },
	{ "up --pool lots", NULL, { "--pool", "lots", "512MiB" } },
	{ "up --disk 1GiB --no-disk", NULL, { "--no-disk", "--disk", "one of them" } },
	{ "up --deadline never", NULL, { "--deadline", "never", "1ms to 24h", "30s" } },
	{ "up --set beat_ms", NULL, { "--set", "beat_ms", "NAME=VALUE" } },
	{ "up --set data=/x", NULL, { "data=/x", "--data DIR" } },
	{ "status --tenant a/b", NULL, { "--tenant", "a/b", "1 to 64" } },
	{ "down --keep-memory=yes", NULL, { "--keep-memory", "takes no value" } },
	{ "secret derive emperor", NULL, { "emperor", "client, holder, service, admin" } },
	{ "secret", NULL, { "secret", "which one?" } },
};

Test(ctl, wrong_command_lines, .timeout = 60)
{
	struct box b;
	start(&b);
	cr_assert_geq(ARRAY_LEN(wrong_lines), 10);
	for (size_t i = 0; i < ARRAY_LEN(wrong_lines); i++)
		refuse(&b, &wrong_lines[i]);
	box_fini(&b);
}

/* ---- settings ---- */

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));
	return s ? s : "";
}

/* The setting of that name in the output of `config --json`. */
static const json_t *setting(const json_t *config, const char *name)
{
	size_t i;
	const json_t *v;
	json_array_foreach(json_object_get(config, "settings"), i, v)
	{
		if (strcmp(text_of(v, "name"), name) == 0)
			return v;
	}
	return NULL;
}

static json_t *config(const struct box *b, const char *words)
{
	struct box_ran r;
	box_run(b, &r, words);
	cr_assert_eq(r.code, 0, "%s: %s", words, r.err);
	return box_json(&r);
}

/* Something outside this range, in the syntax of the setting; false when there is no such thing. */
static bool outside(const char *range, char *out, size_t size)
{
	const char *dots = strstr(range, "..");
	if (dots && range[0] >= '1' && range[0] <= '9') {
		snprintf(out, size, "0"); /* below */
		return true;
	}
	if (dots) { /* above: one more digit in front of the upper bound */
		snprintf(out, size, "9%s", dots + 2);
		out[1 + strcspn(out + 1, " ")] = '\0';
		return true;
	}
	if (strncmp(range, "one of:", 7) == 0) {
		snprintf(out, size, "none-of-these");
		return true;
	}
	return false;
}

/*
 * Case 037, second half: for every setting that has a range, a value outside it is refused with the
 * setting's name and that very range.
 */
Test(ctl, case_037_bad_values_name_setting_and_range, .timeout = 180)
{
	struct box b;
	size_t i, n = 0;
	const json_t *v;
	start(&b);
	json_t *all = config(&b, "config --json");
	json_array_foreach(json_object_get(all, "settings"), i, v)
	{
		char bad[128], words[300];
		struct box_ran r;
		const char *name = text_of(v, "name"), *range = text_of(v, "range");
		if (!outside(range, bad, sizeof(bad)) || strstr(range, "bytes"))
			continue;
		snprintf(words, sizeof(words), "config --set %s=%s", name, bad);
		box_run(&b, &r, words);
		cr_expect_eq(r.code, 2, "%s: %d", words, r.code);
		cr_expect(strstr(r.err, name) && strstr(r.err, range), "%s: %s", words, r.err);
		n++;
	}
	cr_expect_geq(n, 40, "%zu settings have a range", n);
	json_decref(all);
	box_fini(&b);
}

/* Case 037, first half: every example configuration comes up, all five ready. */
Test(ctl, case_037_examples_start, .timeout = 120)
{
	const char *folder = getenv("POMELO_TEST_EXAMPLES");
	struct box b;
	int n = 0;
	start(&b);
	cr_assert_not_null(folder);
	DIR *dir = opendir(folder);
	cr_assert_not_null(dir, "%s", folder);
	for (struct dirent *de = readdir(dir); de; de = readdir(dir)) {
		char path[512];
		struct box_ran r;
		if (!strstr(de->d_name, ".conf"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, de->d_name);
		box_write(box_data(&b, "pomelo.conf"), box_read(path));
		box_run(&b, &r, "up");
		cr_expect_eq(r.code, 0, "%s: %s", de->d_name, r.err);
		box_run(&b, &r, "status");
		cr_expect_eq(r.code, 0, "%s: %s", de->d_name, r.out);
		box_run(&b, &r, "down");
		cr_expect_eq(r.code, 0, "%s: %s", de->d_name, r.err);
		n++;
	}
	closedir(dir);
	cr_expect_geq(n, 4, "%d examples", n);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

/* Case 086: value in effect and origin, for each of the five origins. */
Test(ctl, case_086_value_and_origin, .timeout = 60)
{
	static const struct {
		const char *name, *value, *origin;
	} rows[] = {
		{ "beat_ms", "250", "flag --set" },
		{ "suspect_ms", "3000", "env POMELO_SUSPECT_MS" },
		{ "holder_dead_ms", "45000", "pomelo.conf:2" },
		{ "masters", "tcp://h:1", "env MOONCAKE_MASTER" },
		{ "grace_ms", "5000", "default" },
		{ "agent.pool_size", "1GiB", "pomelo.conf:3" },
		{ "up.log_size", "64MiB", "default" },
		{ "client.deadline_ms", "1000", "env POMELO_CLIENT_DEADLINE_MS" },
	};
	struct box b;
	start(&b);
	box_write(box_data(&b, "pomelo.conf"),
		  "beat_ms = 300\nholder_dead_ms = 45000 # long\nagent.pool_size = 1024MiB\n");
	json_t *o = config(&b, "MOONCAKE_MASTER=h:1 MOONCAKE_NEWS=1 POMELO_SUSPECT_MS=3000 "
			       "POMELO_BEAT_MS=270 POMELO_CLIENT_DEADLINE_MS=1000 "
			       "config --json --set beat_ms=250");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const json_t *v = setting(o, rows[i].name);
		cr_assert_not_null(v, "%s", rows[i].name);
		cr_expect_str_eq(text_of(v, "value"), rows[i].value);
		const char *origin = text_of(v, "origin");
		size_t n = strlen(origin), m = strlen(rows[i].origin);
		cr_expect(n >= m && strcmp(origin + n - m, rows[i].origin) == 0, "%s: %s",
			  rows[i].name, origin);
	}
	const json_t *unlisted = json_object_get(o, "unlisted");
	cr_expect_eq(json_array_size(unlisted), 1);
	cr_expect_str_eq(json_string_value(json_array_get(unlisted, 0)), "MOONCAKE_NEWS");
	json_decref(o);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

/* Case 086: an unknown name stops the start, wherever it stands, of whichever section. */
Test(ctl, case_086_unknown_names_stop_the_start, .timeout = 120)
{
	static const char *const names[] = { "master.xyzzy",  "agent.xyzzy", "owner.xyzzy",
					     "planner.xyzzy", "pg.xyzzy",    "client.xyzzy",
					     "up.xyzzy",      "http.xyzzy",  "log.xyzzy",
					     "ep.xyzzy",      "xyzzy" };
	struct box b;
	start(&b);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char flag[64], file[64], env[64] = "POMELO_";
		struct wrong w = { flag, NULL, { "xyzzy", "no such setting" } };
		snprintf(flag, sizeof(flag), "up --set %s=1", names[i]);
		refuse(&b, &w);
		snprintf(file, sizeof(file), "%s = 1\n", names[i]);
		w = (struct wrong){ "up", file, { names[i], "pomelo.conf:1" } };
		refuse(&b, &w);
		for (size_t k = 0; names[i][k]; k++)
			env[7 + k] = (char)(names[i][k] == '.' ? '_' : names[i][k] - 'a' + 'A');
		snprintf(env + strlen(env), 16, "=1 up");
		w = (struct wrong){ env, NULL, { "XYZZY", "no such setting" } };
		refuse(&b, &w);
	}
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

/* Lines "NAME  VALUE  ..." of a daemon's --show-config against `pomelo config`; how many agree. */
static size_t compare(const struct box *b, const struct service_row *row, const json_t *config)
{
	char cmd[900], line[1024], name[128];
	size_t n = 0;
	const char *exe = getenv("POMELO_TEST_EXE");
	cr_assert_not_null(exe);
	snprintf(cmd, sizeof(cmd),
		 "POMELO_OWNER_OPS_MAX=77 %.*s/../%s/%s --data %s --set pg.workers=4 "
		 "--set agent.pool_size=256MiB --show-config",
		 (int)(strrchr(exe, '/') - exe), exe, row->folder, row->exe, b->data);
	FILE *f = popen(cmd, "r"); /* NOLINT(cert-env33-c) */
	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f)) {
		int at = 0;
		if (sscanf(line, "%127s %n", name, &at) != 1 || strcmp(name, "name") == 0)
			continue;
		const json_t *v = setting(config, name);
		cr_expect_not_null(v, "%s of %s", name, row->name);
		const char *value = v ? text_of(v, "value") : "";
		size_t len = strlen(value);
		cr_expect(strncmp(line + at, value, len) == 0, "%s: '%s' is not in: %s", name,
			  value, line);
		n += len > 0;
	}
	cr_expect_eq(pclose(f), 0, "%s", cmd);
	return n;
}

/* Case 086: one schema: what `pomelo config` shows is what each daemon itself would use. */
Test(ctl, case_086_daemons_agree, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	start(&b);
	box_write(box_data(&b, "pomelo.conf"), "agent.workers = 5\nbeat_ms = 300\n");
	box_run(&b, &r, "POMELO_OWNER_OPS_MAX=77 up --set pg.workers=4 --pool 256MiB");
	cr_assert_eq(r.code, 0, "%s", r.err);
	/* without --set it shows what the running services were started with */
	json_t *o = config(&b, "POMELO_OWNER_OPS_MAX=77 config --json");
	cr_expect_str_eq(text_of(setting(o, "pg.workers"), "value"), "4");
	cr_expect_str_eq(text_of(setting(o, "agent.pool_size"), "value"), "256MiB");
	cr_expect_str_eq(text_of(setting(o, "agent.workers"), "value"), "5");
	cr_expect_str_eq(text_of(setting(o, "owner.ops_max"), "value"), "77");
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_geq(compare(&b, &service_rows[i], o), 15, "%s", service_rows[i].name);
	json_decref(o);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

/* A shared setting for one service: that one alone takes it, and `config` says from where. */
Test(ctl, shared_setting_of_one_service, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	start(&b);
	box_write(box_data(&b, "pomelo.conf"), "master.beat_ms = 150\nbeat_ms = 300\n");
	json_t *o = config(&b, "POMELO_CLIENT_SPIN_US=7 config --json --set pg.log.level=warn");
	cr_expect_str_eq(text_of(setting(o, "master.beat_ms"), "value"), "150");
	cr_expect(strstr(text_of(setting(o, "master.beat_ms"), "origin"), "pomelo.conf:1"));
	cr_expect_str_eq(text_of(setting(o, "beat_ms"), "value"), "300");
	cr_expect_str_eq(text_of(setting(o, "client.spin_us"), "value"), "7");
	cr_expect_str_eq(text_of(setting(o, "spin_us"), "value"), "50");
	cr_expect_str_eq(text_of(setting(o, "pg.log.level"), "origin"), "flag --set");
	cr_expect_null(setting(o, "agent.beat_ms"));
	json_decref(o);
	box_run(&b, &r, "config master.beat_ms");
	cr_expect(strstr(r.out, "master.beat_ms = 150\n"), "%s", r.out);
	box_run(&b, &r, "config agent.beat_ms");
	cr_expect(strstr(r.out, "beat_ms = 300\n"), "%s %s", r.out, r.err);
	/* the daemons are asked with these (compare) */
	o = config(&b, "POMELO_OWNER_OPS_MAX=77 config --json --set pg.workers=4 "
		       "--set agent.pool_size=256MiB");
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_geq(compare(&b, &service_rows[i], o), 15, "%s", service_rows[i].name);
	json_decref(o);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

Test(ctl, config_of_one, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	start(&b);
	box_run(&b, &r, "config beat_ms");
	cr_expect(strstr(r.out, "beat_ms = 500\n") && strstr(r.out, "20..60000 ms"), "%s",
		  r.out);
	box_run(&b, &r, "config pg");
	cr_expect(strstr(r.out, "pg.workers") && !strstr(r.out, "agent.workers"), "%s", r.out);
	box_run(&b, &r, "config beat");
	cr_expect_eq(r.code, 3);
	cr_expect(strstr(r.err, "no such service or setting"), "%s", r.err);
	box_run(&b, &r, "config client -v");
	cr_expect(strstr(r.out, "client.calls_max") && strstr(r.out, "1..1048576"), "%s",
		  r.out);
	box_fini(&b);
}

/* A file that no start would take keeps nobody from looking and stopping. */
Test(ctl, broken_file_does_not_lock_anyone_out, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	start(&b);
	up(&b, "");
	box_write(box_data(&b, "pomelo.conf"), "this is no setting\n");
	box_run(&b, &r, "config");
	cr_expect_eq(r.code, 2, "%s", r.err);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect(strstr(r.out, "5 services stopped"), "%s", r.out);
	unlink(box_data(&b, "pomelo.conf"));
	box_fini(&b);
}

/* The file says where sockets and secret are; every command and the library find them. */
Test(ctl, places_named_in_the_file, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	char text[400];
	start(&b);
	snprintf(text, sizeof(text), "run_dir = %s/r\nsecret_file = %s/s\n", b.dir, b.dir);
	box_write(box_data(&b, "pomelo.conf"), text);
	box_run(&b, &r, "secret new");
	cr_assert_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(access(box_at(&b, "s"), F_OK), 0);
	up(&b, "");
	box_run(&b, &r, "status --json");
	cr_expect_eq(r.code, 0, "%s %s", r.out, r.err);
	cr_expect_eq(access(box_at(&b, "r/master.sock"), F_OK), 0);
	cr_expect_neq(access(box_data(&b, "secret"), F_OK), 0, "no second secret");
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	char out[4];
	size_t n;
	o.data = b.data;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	cr_expect_eq(pml_echo(p, "master", "x", 1, out, 4, &n, NULL, &err), 0, "%s", err.text);
	pml_close(p);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	box_fini(&b);
}

/* ---- status, version, doctor ---- */

Test(ctl, status_has_the_documented_shape, .timeout = 60)
{
	static const struct {
		const char *key;
		json_type type;
	} keys[] = { { "name", JSON_STRING },	   { "pid", JSON_INTEGER },
		     { "instance", JSON_STRING },  { "reasons", JSON_ARRAY },
		     { "restarts", JSON_INTEGER }, { "rpc", JSON_ARRAY },
		     { "http", JSON_STRING },	   { "rss_bytes", JSON_INTEGER } };
	struct box b;
	size_t i;
	json_t *v;
	start(&b);
	up(&b, "");
	json_t *o = config(&b, "status --json");
	cr_expect_str_eq(text_of(o, "data"), b.data);
	cr_expect_str_eq(text_of(o, "version"), POMELO_VERSION);
	cr_expect(json_is_integer(json_object_get(o, "term")) &&
		  json_is_boolean(json_object_get(o, "recovering")) &&
		  json_is_array(json_object_get(o, "holders")) &&
		  json_is_integer(json_object_get(o, "objects")));
	json_array_foreach(json_object_get(o, "services"), i, v)
	{
		for (size_t k = 0; k < ARRAY_LEN(keys); k++)
			cr_expect_eq(json_typeof(json_object_get(v, keys[k].key)), keys[k].type,
				     "%s", keys[k].key);
		cr_expect(json_is_true(json_object_get(v, "ready")));
		cr_expect_str_eq(text_of(v, "name"), service_rows[i].name);
		cr_expect_eq(json_integer_value(json_object_get(v, "pid")),
			     box_pid(&b, service_rows[i].name));
		cr_expect_gt(json_integer_value(json_object_get(v, "rss_bytes")), 1 << 20);
		cr_expect_gt(json_array_size(json_object_get(v, "rpc")), 0);
	}
	cr_expect_eq(i, SERVICE_COUNT);
	json_decref(o);
	box_fini(&b);
}

/* One that is stopped answers nothing: said in its row, within the deadline; exit code 5. */
Test(ctl, status_of_a_stopped_service, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	start(&b);
	up(&b, "");
	pid_t pid = box_pid(&b, "planner");
	cr_assert_eq(kill(pid, SIGSTOP), 0);
	box_run(&b, &r, "status --deadline 700ms");
	cr_expect_eq(r.code, 5, "%s", r.out);
	cr_expect(strstr(r.out, "no answer"), "%s", r.out);
	cr_expect_lt(r.seconds, 5);
	box_run(&b, &r, "doctor --deadline 700ms");
	cr_expect_eq(r.code, 1, "%s", r.out);
	cr_expect(strstr(r.out, "fail  planner"), "%s", r.out);
	cr_assert_eq(kill(pid, SIGCONT), 0);
	box_run(&b, &r, "status");
	cr_expect_eq(r.code, 0, "%s", r.out);
	box_run(&b, &r, "version --json");
	cr_expect_eq(r.code, 0, "%s", r.out);
	json_t *o = box_json(&r);
	cr_expect_eq(json_array_size(json_object_get(o, "services")), SERVICE_COUNT);
	json_decref(o);
	box_run(&b, &r, "doctor --json");
	o = box_json(&r);
	cr_expect_eq(json_integer_value(json_object_get(o, "fail")), 0, "%s", r.out);
	json_decref(o);
	box_fini(&b);
}

/* ---- the supervisor, over real services ---- */

struct was {
	size_t killed;
	struct up_view before;
};

static bool is_back(const struct up_view *v, void *arg)
{
	const struct was *w = arg;
	const struct up_service *s = &v->services[w->killed];
	return s->ready && s->info.pid != w->before.services[w->killed].info.pid;
}

/* Killed: back within 1 s and ready; the others are the same processes, the same instances. */
Test(ctl, kill_any_of_the_five, .timeout = 120)
{
	struct box b;
	start(&b);
	up(&b, "");
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct was w = { .killed = i };
		struct up_view now;
		cr_assert(box_view(&b, &w.before));
		uint64_t begin = box_now_ms();
		cr_assert_eq(kill(w.before.services[i].info.pid, SIGKILL), 0);
		cr_assert(box_until(&b, 5000, is_back, &w), "%s", service_rows[i].name);
		uint64_t ms = box_now_ms() - begin;
		cr_expect_lt(ms, 1000, "%s: %llu ms", service_rows[i].name,
			     (unsigned long long)ms);
		cr_expect(box_until(&b, 5000, NULL, NULL), "all ready again");
		cr_assert(box_view(&b, &now));
		for (size_t k = 0; k < SERVICE_COUNT; k++)
			cr_expect_eq(strcmp(now.services[k].info.instance,
					    w.before.services[k].info.instance) != 0,
				     k == i, "%s", service_rows[k].name);
	}
	box_fini(&b);
}

/* A client that had a handle open all the while goes on, with each service's new instance. */
Test(ctl, library_survives_restarts, .timeout = 60)
{
	struct box b;
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	char out[8];
	size_t n;
	start(&b);
	up(&b, "");
	o.data = b.data;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(pml_echo(p, service_rows[i].name, "abc", 3, out, 8, &n, NULL,
				      &err),
			     0, "%s", err.text);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		kill(box_pid(&b, service_rows[i].name), SIGKILL);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(pml_echo(p, service_rows[i].name, "abc", 3, out, 8, &n, NULL,
				      &err),
			     0, "%s: %s", service_rows[i].name, err.text);
	pml_close(p);
	box_fini(&b);
}

Test(ctl, supervisor_killed_and_adopted, .timeout = 60)
{
	struct box b;
	struct box_ran r;
	struct up_view old, now;
	start(&b);
	up(&b, "--set beat_ms=300");
	cr_assert(box_view(&b, &old));
	kill((pid_t)old.pid, SIGKILL);
	usleep(100000);
	box_run(&b, &r, "status");
	cr_expect_eq(r.code, 0, "the five run on: %s", r.out);
	cr_expect(strstr(r.out, "no supervisor"), "%s", r.out);
	box_run(&b, &r, "up --set beat_ms=400");
	cr_expect_eq(r.code, 2, "other settings than those that run");
	cr_expect(strstr(r.err, "pomelo down"), "%s", r.err);
	up(&b, "");
	cr_assert(box_view(&b, &now));
	cr_expect_eq(now.adopted, 5);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_eq(now.services[i].info.pid, old.services[i].info.pid);
	/* one that dies now is started with the settings it had */
	struct was w = { 1, now };
	kill(now.services[1].info.pid, SIGKILL);
	cr_expect(box_until(&b, 3000, is_back, &w));
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/cmdline", box_pid(&b, "agent"));
	FILE *f = fopen(path, "re");
	char line[2048] = "";
	size_t n = f ? fread(line, 1, sizeof(line) - 1, f) : 0;
	if (f)
		fclose(f);
	cr_expect_not_null(memmem(line, n, "beat_ms=300", 11));
	box_fini(&b);
}

Test(ctl, two_clusters_on_one_box, .timeout = 60)
{
	struct box a, b;
	struct up_view va, vb;
	start(&a);
	box_init(&b); /* the same network: default ports fall back */
	up(&a, "");
	up(&b, "");
	cr_assert(box_view(&a, &va) && box_view(&b, &vb));
	cr_expect(va.n_ready == 5 && vb.n_ready == 5);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		cr_expect_str_neq(va.services[i].info.http, vb.services[i].info.http);
	box_fini(&a);
	cr_assert(box_view(&b, &vb));
	cr_expect_eq(vb.n_ready, 5);
	box_fini(&b);
}

/* A real service opens its log again: lines go on in the new file, none is lost in between. */
Test(ctl, logs_rotate_under_real_services, .timeout = 60)
{
	struct box b;
	struct stat st;
	start(&b);
	up(&b, "--set up.log_size=64KiB");
	for (int round = 0; round < 3; round++) {
		FILE *f = fopen(box_data(&b, "log/pg.log"), "a");
		for (int i = 0; i < 700; i++)
			fprintf(f, "%0100d\n", i);
		fclose(f);
		for (int i = 0; i < 300; i++) {
			if (stat(box_data(&b, "log/pg.log"), &st) == 0 && st.st_size < 65536)
				break;
			usleep(10000);
		}
		cr_expect_lt(st.st_size, 65536);
		for (int i = 0;
		     i < 100 && !strstr(box_read(box_data(&b, "log/pg.log")), "opened_again");
		     i++)
			usleep(10000);
		cr_expect(strstr(box_read(box_data(&b, "log/pg.log")), "opened_again"),
			  "round %d", round);
	}
	cr_expect_eq(access(box_data(&b, "log/pg.log.3"), F_OK), 0);
	box_fini(&b);
}

/* The size of a pool's payload; 0: there is none. */
static uint64_t pool_bytes(const char *pool)
{
	char path[PATH_BYTES_MAX + 8];
	struct stat st;
	snprintf(path, sizeof(path), "%s/data.0", pool);
	return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* `up --pool` sizes the pool, `down --keep-memory` leaves it, the next `up` finds it, `down` takes it
 * away. */
Test(ctl, memory_is_kept_on_wish, .timeout = 90)
{
	struct box b;
	struct box_ran r;
	char pool[PATH_BYTES_MAX];
	struct where w = { 0 };
	start(&b);
	snprintf(w.path, sizeof(w.path), "%s", b.data);
	cr_assert_eq(data_pool_path(&w, pool, sizeof(pool)), ERR_NONE);
	up(&b, "--pool 8MiB");
	cr_expect_eq(pool_bytes(pool), 8u << 20);
	box_run(&b, &r, "down --keep-memory");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(pool_bytes(pool), 8u << 20);
	up(&b, "--pool 12MiB");
	cr_expect_eq(pool_bytes(pool), 8u << 20, "what is there keeps its size");
	cr_expect(strstr(box_read(box_data(&b, "log/agent.log")), "keeps its 8388608 bytes"));
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect_neq(access(pool, F_OK), 0);
	box_fini(&b);
}

/* A pool elsewhere goes with `down`, too, and nothing else that lies there. */
Test(ctl, a_pool_elsewhere_is_taken_away_by_down, .timeout = 90)
{
	struct box b;
	struct box_ran r;
	char set[256], pool[128], other[160];
	start(&b);
	snprintf(pool, sizeof(pool), "%s/mem", b.dir);
	cr_assert_eq(mkdir(pool, 0700), 0);
	snprintf(other, sizeof(other), "%s/precious", pool);
	box_write(other, "x");
	snprintf(set, sizeof(set), "--pool 4MiB --set agent.pool_dir=%s", pool);
	up(&b, set);
	cr_expect_eq(access(box_data(&b, "run/agent.pool"), F_OK), 0);
	box_run(&b, &r, "down");
	cr_expect_eq(r.code, 0, "%s", r.err);
	cr_expect_eq(access(other, F_OK), 0);
	unlink(other);
	cr_expect_eq(rmdir(pool), 0, "something is left in it");
	box_fini(&b);
}
