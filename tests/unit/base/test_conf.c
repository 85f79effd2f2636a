/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: C2, case 86. Tables of inputs with the value or the words of the one-line error. */
#include "base/conf.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conf_sample.h"
#include "tests/support/leak.h"

struct fixture {
	struct sample s;
	struct conf *c;
	struct why w;
};

static void setup(struct fixture *f)
{
	*f = (struct fixture){ 0 };
	cr_assert_eq(conf_new(&sample_schema, &f->s, &f->c), ERR_NONE);
}

static enum err parse(struct fixture *f, const char *text)
{
	return conf_parse(f->c, BYTES_STR(text), "pomelo.conf", &f->w);
}

static enum err flags(struct fixture *f, char *const *argv)
{
	int n = 0;
	while (argv[n])
		n++;
	return conf_flags(f->c, n, argv, &f->w);
}

#define ARGV(...) ((char *const[]){ __VA_ARGS__, NULL })

/* Canonical text of a setting as `pomelo config` shows it. */
static const char *shown(struct fixture *f, const char *name, struct conf_shown *out)
{
	for (size_t i = 0; i < conf_count(f->c); i++) {
		conf_show(f->c, i, out);
		if (strcmp(out->name, name) == 0)
			return out->value;
	}
	return NULL;
}

Test(conf, schema_is_right, .timeout = 5)
{
	struct why w = { 0 };
	cr_assert_eq(conf_schema_check(&sample_schema, &w), ERR_NONE, "%s", w.text);
	NO_LEAKS();
}

Test(conf, defaults, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	setup(&f);
	cr_assert_eq(conf_end(f.c, &f.w), ERR_NONE);
	cr_expect_str_eq(f.s.shared.data, "");
	cr_expect_str_eq(f.s.shared.host_id, "here");
	cr_expect_eq(f.s.shared.port, 17610);
	cr_expect_eq(f.s.shared.listen.n, 1);
	cr_expect_str_eq(f.s.shared.listen.v[0], "ipc:///run/m.sock");
	cr_expect_eq(f.s.beat_ms, 500);
	cr_expect_eq(f.s.pool, 1ull << 30);
	cr_expect_eq(f.s.low, 0.25);
	cr_expect(f.s.offload);
	cr_expect_eq(f.s.engine, 0);
	cr_expect_eq(f.s.routes.n, 0);
	cr_expect_str_eq(f.s.token, "");
	shown(&f, "master.beat_ms", &s);
	cr_expect_str_eq(s.origin, "default");
	cr_expect_eq(s.kind, CONF_DEFAULT);
	cr_expect_str_eq(s.range, "50..60000 ms");
	conf_free(f.c);
	conf_free(NULL);
	NO_LEAKS();
}

/* A line of a file and what `pomelo config` then shows. */
static const struct {
	const char *text, *name, *value;
} good[] = {
	{ "master.beat_ms = 50", "master.beat_ms", "50" },
	{ "master.beat_ms=60000\n", "master.beat_ms", "60000" },
	{ "  master.beat_ms\t=\t70  \n", "master.beat_ms", "70" },
	{ "# c\n\n \t\nmaster.beat_ms = 71 # why", "master.beat_ms", "71" },
	{ "master.beat_ms = 72\r\n", "master.beat_ms", "72" },
	{ "master.beat_ms = \"73\"", "master.beat_ms", "73" },
	{ "master.beat_ms = 0500", "master.beat_ms", "500" },
	{ "master.pool_bytes = 4096", "master.pool_bytes", "4KiB" },
	{ "master.pool_bytes = 5000", "master.pool_bytes", "5000" },
	{ "master.pool_bytes = 3MiB", "master.pool_bytes", "3MiB" },
	{ "master.pool_bytes = 1TiB", "master.pool_bytes", "1TiB" },
	{ "master.pool_bytes = 1536KiB", "master.pool_bytes", "1536KiB" },
	{ "master.low_ratio = 0", "master.low_ratio", "0" },
	{ "master.low_ratio = .5", "master.low_ratio", "0.5" },
	{ "master.low_ratio = 0.125", "master.low_ratio", "0.125" },
	{ "master.offload = false", "master.offload", "false" },
	{ "master.offload = off", "master.offload", "false" },
	{ "master.offload = no", "master.offload", "false" },
	{ "master.offload = 0", "master.offload", "false" },
	{ "master.offload = on", "master.offload", "true" },
	{ "master.engine = nng", "master.engine", "nng" },
	{ "master.engine = sim", "master.engine", "sim" },
	{ "master.n_keys = 18446744073709551615", "master.n_keys", "18446744073709551615" },
	{ "master.n_keys = 0", "master.n_keys", "0" },
	{ "master.routes = a,b", "master.routes", "a,b" },
	{ "master.routes =  a , b ,c ", "master.routes", "a,b,c" },
	{ "master.routes =", "master.routes", "" },
	{ "master.listen = tcp://h:1,ipc:///x,tls+tcp://h:2", "master.listen",
	  "tcp://h:1,ipc:///x,tls+tcp://h:2" },
	{ "host_id = a#b", "host_id", "a#b" },
	{ "host_id = \"a # b\"", "host_id", "a # b" },
	{ "host_id = \"a\\\"b\\\\c\" # x", "host_id", "a\"b\\c" },
	{ "host_id = a b", "host_id", "a b" },
	{ "host_id = h\xc3\xa9", "host_id", "h\xc3\xa9" },
	{ "data = /var/lib/p", "data", "/var/lib/p" },
	{ "data =", "data", "" },
	{ "http.port = 1", "http.port", "1" },
	{ "owner.anything_at_all = x\nmaster.depth = 7", "master.depth", "7" },
	{ "s3.bucket = x", "master.depth", "256" },
};

Test(conf, good_lines, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct fixture f;
		struct conf_shown s;
		setup(&f);
		cr_expect_eq(parse(&f, good[i].text), ERR_NONE, "%s: %s", good[i].text,
			     f.w.text);
		const char *v = shown(&f, good[i].name, &s);
		cr_expect(v && strcmp(v, good[i].value) == 0, "%s gives %s", good[i].text, v);
		conf_free(f.c);
	}
	NO_LEAKS();
}

/* A file and words its error must have: name, value, range, remedy, origin. */
static const struct {
	const char *text, *words[4];
} bad[] = {
	{ "master.beat_ms = 49",
	  { "master.beat_ms = 49", "(pomelo.conf:1)", "50..60000 ms", "remove" } },
	{ "\n\nmaster.beat_ms = 60001", { "60001", "pomelo.conf:3", "too large" } },
	{ "master.beat_ms = 5s", { "5s", "not a whole number", "50..60000" } },
	{ "master.beat_ms = -1", { "-1", "not a whole number" } },
	{ "master.beat_ms = +60", { "not a whole number" } },
	{ "master.beat_ms = 0x50", { "not a whole number" } },
	{ "master.beat_ms = 1 2", { "not a whole number" } },
	{ "master.beat_ms =", { "master.beat_ms = ", "not a whole number" } },
	{ "master.beat_ms = 99999999999999999999", { "not a whole number" } },
	{ "master.depth = 4294967297", { "too large", "1..1024" } },
	{ "http.port = 0", { "http.port", "too small", "1..65535" } },
	{ "http.port = 65536", { "too large" } },
	{ "master.pool_bytes = 4kb", { "not a size", "4KiB" } },
	{ "master.pool_bytes = 4 KiB", { "not a size" } },
	{ "master.pool_bytes = 1", { "too small", "4KiB..1TiB" } },
	{ "master.pool_bytes = 2TiB", { "too large" } },
	{ "master.pool_bytes = 99999999999PiB", { "not a size" } },
	{ "master.pool_bytes = GiB", { "not a size" } },
	{ "master.low_ratio = 1.5", { "too large", "0..1" } },
	{ "master.low_ratio = nan", { "not a decimal number" } },
	{ "master.low_ratio = inf", { "not a decimal number" } },
	{ "master.low_ratio = 1e-3", { "not a decimal number" } },
	{ "master.low_ratio = .", { "not a decimal number" } },
	{ "master.low_ratio = 0.5.1", { "not a decimal number" } },
	{ "master.offload = maybe", { "maybe", "not true or false", "true or false" } },
	{ "master.offload = TRUE", { "not true or false" } },
	{ "master.engine = zmq", { "zmq", "one of: sp nng sim" } },
	{ "master.engine = s", { "not one of the words" } },
	{ "master.engine =", { "not one of the words" } },
	{ "master.routes = a,b,c,d", { "too many", "at most 3" } },
	{ "master.routes = a,,b", { "an empty part" } },
	{ "master.routes = a,", { "an empty part" } },
	{ "master.listen = 127.0.0.1:17600", { "not an address", "tcp://HOST:PORT" } },
	{ "master.listen = tcp://", { "not an address" } },
	{ "master.listen =", { "too few", "1..4" } },
	{ "host_id =", { "too short", "1..64 bytes" } },
	{ "data = var/lib", { "data = var/lib", "must begin with /" } },
	{ "host_id = a\x01z", { "control character", "a?z" } },
	{ "master.beat = 500",
	  { "master.beat (pomelo.conf:1)", "did you mean master.beat_ms?" } },
	{ "mastr.beat_ms = 500", { "no such setting", "did you mean master.beat_ms?" } },
	{ "qwertyuiop = 1", { "no such setting", "pomelo config" } },
	{ "master.zzzzzzzzzzzzzz = 1", { "no such setting" } },
	{ "http.zzzzzzzzzzz = 1", { "no such setting" } },
	{ "owner. = 1", { "no such setting" } },
	{ "owner = 1", { "no such setting" } },
	{ "master.beat_ms = 60\n#\nmaster.beat_ms = 60",
	  { "pomelo.conf:3", "line 1", "keep one" } },
	{ "master.beat_ms", { "not an assignment", "pomelo.conf:1" } },
	{ "master.beat_ms 50", { "not an assignment" } },
	{ "[master]", { "not an assignment" } },
	{ "= 5", { "not an assignment" } },
	{ "Master.beat_ms = 500", { "not an assignment" } },
	{ "host_id = \"abc", { "quote is not closed" } },
	{ "host_id = \"abc\" d", { "after the closing quote" } },
};

Test(conf, bad_lines, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct fixture f;
		setup(&f);
		cr_expect_eq(parse(&f, bad[i].text), ERR_INVALID_PARAMS, "%s", bad[i].text);
		for (size_t k = 0; k < ARRAY_LEN(bad[i].words) && bad[i].words[k]; k++)
			cr_expect(strstr(f.w.text, bad[i].words[k]), "%s: no \"%s\" in: %s",
				  bad[i].text, bad[i].words[k], f.w.text);
		cr_expect(!strchr(f.w.text, '\n'));
		conf_free(f.c);
	}
	NO_LEAKS();
}

Test(conf, nul_and_long_lines, .timeout = 5)
{
	struct fixture f;
	setup(&f);
	cr_expect_eq(conf_parse(f.c, BYTES("host_id = a\0b", 13), "x", &f.w),
		     ERR_INVALID_PARAMS);
	cr_expect(strstr(f.w.text, "NUL"));
	struct buf b = BUF_INIT(1 << 20);
	buf_printf(&b, "host_id = ");
	while (b.n < 9000)
		buf_put(&b, "x", 1);
	f.w = (struct why){ 0 };
	cr_expect_eq(conf_parse(f.c, buf_bytes(&b), "x", &f.w), ERR_INVALID_PARAMS);
	cr_expect(strstr(f.w.text, "longer than"), "%s", f.w.text);
	/* a value of 100 bytes is cut in the text, the line is one line still */
	b.n = 110;
	f.w = (struct why){ 0 };
	cr_expect_eq(conf_parse(f.c, buf_bytes(&b), "x", &f.w), ERR_INVALID_PARAMS);
	cr_expect(strstr(f.w.text, "too long"), "%s", f.w.text);
	cr_expect(strstr(f.w.text, "1..64 bytes"), "%s", f.w.text);
	buf_fini(&b);
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, long_file_name_keeps_its_end, .timeout = 5)
{
	struct fixture f;
	char name[300];
	memset(name, 'd', sizeof(name));
	memcpy(name + sizeof(name) - 13, "/pomelo.conf", 13);
	setup(&f);
	cr_expect_eq(conf_parse(f.c, BYTES_STR("x"), name, &f.w), ERR_INVALID_PARAMS);
	cr_expect(strstr(f.w.text, "/pomelo.conf:1: not an assignment"), "%s", f.w.text);
	conf_free(f.c);
	NO_LEAKS();
}

/* I1: each stronger source wins, whatever the order of the calls. */
Test(conf, precedence, .timeout = 5)
{
	for (unsigned order = 0; order < 24; order++) {
		for (unsigned present = 0; present < 16; present++) {
			struct fixture f;
			setup(&f);
			char *env[3] = { NULL, NULL, NULL };
			unsigned left[4] = { 0, 1, 2, 3 }, n = 4, o = order;
			while (n > 0) {
				unsigned k = o % n, step = left[k];
				o /= n;
				left[k] = left[--n];
				if (!(present & 1u << step))
					continue;
				env[0] = step == 2 ? "POMELO_MASTER_BEAT_MS=102"
						   : "MOONCAKE_BEAT_SECONDS=0.1";
				if (step == 3)
					cr_assert_eq(flags(&f,
							   ARGV("--set", "master.beat_ms=103")),
						     ERR_NONE);
				else if (step == 1)
					cr_assert_eq(parse(&f, "master.beat_ms=101"), ERR_NONE);
				else
					cr_assert_eq(conf_env(f.c, env, &f.w), ERR_NONE);
			}
			cr_assert_eq(conf_end(f.c, &f.w), ERR_NONE);
			uint64_t want = present & 8   ? 103
					: present & 4 ? 102
					: present & 2 ? 101
					: present & 1 ? 100
						      : 500;
			cr_expect_eq(f.s.beat_ms, want, "order %u present %u", order, present);
			conf_free(f.c);
		}
	}
	NO_LEAKS();
}

/* ---- I5: a shared setting for one service ---- */

/* Ways to give the port, strongest first. */
static enum err give_port(struct fixture *f, unsigned way, unsigned port)
{
	char text[64];
	char *env[] = { text, NULL };
	static const char *const names[] = {
		"master.http.port", "POMELO_MASTER_HTTP_PORT", "master.http.port",
		"http.port",	    "POMELO_HTTP_PORT",	       "http.port",
	};
	snprintf(text, sizeof(text), "%s=%u", names[way], port);
	if (way % 3 == 0)
		return conf_set(f->c, text, &f->w);
	return way % 3 == 1 ? conf_env(f->c, env, &f->w) : parse(f, text);
}

Test(conf, own_name_wins_wherever_it_stands, .timeout = 5)
{
	for (unsigned a = 0; a < 6; a++)
		for (unsigned b = 0; b < 6; b++) {
			struct fixture f;
			struct conf_shown s;
			setup(&f);
			cr_assert_eq(give_port(&f, a, 1000 + a), ERR_NONE, "%s", f.w.text);
			cr_assert_eq(give_port(&f, b, 1000 + b), ERR_NONE, "%s", f.w.text);
			unsigned won = MIN_OF(a, b);
			cr_expect_eq(f.s.shared.port, 1000 + won, "%u then %u", a, b);
			const char *name = won < 3 ? "master.http.port" : "http.port";
			cr_expect_not_null(shown(&f, name, &s), "%u then %u", a, b);
			cr_expect_str_eq(s.own, "master.http.port");
			conf_free(f.c);
		}
	NO_LEAKS();
}

/* A flag to the process itself is for it alone; --set of the shared name is for all. */
Test(conf, own_flag_over_shared_names, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	setup(&f);
	cr_assert_eq(flags(&f, ARGV("--http-port=7", "--set", "http.port=8")), ERR_NONE);
	cr_assert_eq(parse(&f, "http.port = 9\nmaster.http.port = 10"), ERR_NONE);
	cr_expect_eq(f.s.shared.port, 7);
	cr_assert_not_null(shown(&f, "http.port", &s));
	cr_expect_str_eq(s.origin, "flag --http-port");
	conf_free(f.c);
	NO_LEAKS();
}

static const struct {
	const char *text;
	const char *words[3];
} bad_own[] = {
	{ "master.http.port = 0",
	  { "master.http.port = 0 (pomelo.conf:1)", "1..65535", "correct the line" } },
	{ "master.host_id = a\nmaster.host_id = b",
	  { "master.host_id", "set already in line 1" } },
	{ "master.host_di = a", { "no such setting", "did you mean master.host_id?" } },
	{ "master.beat = 1", { "no such setting", "did you mean master.beat_ms?" } },
	{ "master.master.host_id = a", { "no such setting" } },
	{ "master.master.beat_ms = 70", { "no such setting" } },
};

Test(conf, own_names_bad, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(bad_own); i++) {
		struct fixture f;
		setup(&f);
		cr_expect_eq(parse(&f, bad_own[i].text), ERR_INVALID_PARAMS, "%zu", i);
		for (size_t k = 0; k < 3 && bad_own[i].words[k]; k++)
			cr_expect(strstr(f.w.text, bad_own[i].words[k]), "%zu: %s", i,
				  f.w.text);
		conf_free(f.c);
	}
	NO_LEAKS();
}

/* Both names in one file are two settings; another service's is its own affair. */
Test(conf, own_and_shared_name_in_one_file, .timeout = 5)
{
	struct fixture f;
	const char *const *left;
	setup(&f);
	cr_assert_eq(parse(&f, "master.host_id = m\nhost_id = all\nowner.host_id = o\n"),
		     ERR_NONE, "%s", f.w.text);
	cr_expect_str_eq(f.s.shared.host_id, "m");
	cr_assert_eq(conf_left(f.c, &left), 1);
	cr_expect_str_eq(left[0], "owner.host_id (pomelo.conf:3)");
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, weaker_source_is_still_checked, .timeout = 5)
{
	struct fixture f;
	setup(&f);
	cr_assert_eq(flags(&f, ARGV("--beat-ms=70")), ERR_NONE);
	cr_expect_eq(parse(&f, "master.beat_ms = 1"), ERR_INVALID_PARAMS);
	cr_expect_eq(f.s.beat_ms, 70);
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, flags_good, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	setup(&f);
	cr_assert_eq(flags(&f,
			   ARGV("--beat-ms", "70", "--http-port=99", "--offload=off", "--set",
				"master.depth = 9", "--set=master.engine=nng", "--host-id",
				"-x", "--set", "agent.pool=1", "--data", "rel")),
		     ERR_NONE, "%s", f.w.text);
	cr_expect_eq(f.s.beat_ms, 70);
	cr_expect_eq(f.s.shared.port, 99);
	cr_expect(!f.s.offload);
	cr_expect_eq(f.s.depth, 9);
	cr_expect_eq(f.s.engine, 1);
	cr_expect_str_eq(f.s.shared.host_id, "-x");
	cr_expect_eq(f.s.shared.data[0], '/');
	cr_expect_str_eq(strrchr(f.s.shared.data, '/'), "/rel");
	shown(&f, "master.beat_ms", &s);
	cr_expect_str_eq(s.origin, "flag --beat-ms");
	/* the last one wins; a bool stands alone and takes no argument */
	cr_assert_eq(flags(&f, ARGV("--offload", "--beat-ms=71", "--beat-ms=72")), ERR_NONE);
	cr_expect(f.s.offload);
	cr_expect_eq(f.s.beat_ms, 72);
	conf_free(f.c);
	NO_LEAKS();
}

static const struct {
	char *argv[3];
	const char *words[3];
} bad_flags[] = {
	{ { "--beat-mss", "1" }, { "--beat-mss", "did you mean --beat-ms?", "command line" } },
	{ { "--master-beat-ms", "1" }, { "no such flag" } },
	{ { "--beat_ms", "60" }, { "no such flag", "did you mean --beat-ms?" } },
	{ { "--beat-ms" }, { "a value is missing", "--beat-ms=VALUE" } },
	{ { "--beat-ms", "x" }, { "master.beat_ms = x", "(flag --beat-ms)", "drop it" } },
	{ { "--offload", "yes" }, { "yes", "not a flag" } },
	{ { "--offload=2" }, { "not true or false" } },
	{ { "start" }, { "start", "not a flag", "--help" } },
	{ { "-v" }, { "not a flag" } },
	{ { "--" }, { "not a flag" } },
	{ { "--set" }, { "a value is missing" } },
	{ { "--set", "master.beat_ms" }, { "not an assignment", "--set master.beat_ms" } },
	{ { "--set", "master.beat=1" }, { "no such setting", "did you mean master.beat_ms?" } },
	{ { "--set", "master.beat_ms=1" }, { "flag --set", "50..60000" } },
	{ { "--set", "x\n" }, { "not an assignment" } },
	{ { "--token=0123456789012345678901234567890123456789" }, { "(hidden)", "too long" } },
};

Test(conf, flags_bad, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(bad_flags); i++) {
		struct fixture f;
		setup(&f);
		cr_expect_eq(flags(&f, bad_flags[i].argv), ERR_INVALID_PARAMS, "%s",
			     bad_flags[i].argv[0]);
		for (size_t k = 0; k < ARRAY_LEN(bad_flags[i].words) && bad_flags[i].words[k];
		     k++)
			cr_expect(strstr(f.w.text, bad_flags[i].words[k]), "no \"%s\" in: %s",
				  bad_flags[i].words[k], f.w.text);
		cr_expect(!strchr(f.w.text, '\n'));
		conf_free(f.c);
	}
	NO_LEAKS();
}

Test(conf, environment, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	char *const env[] = { "PATH=/bin",
			      "POMELO_MASTER_BEAT_MS=60",
			      "POMELO_DATA=/d",
			      "POMELO_TEST_ANYTHING=1",
			      "POMELO_BINDIR=/b",
			      "POMELO_DATA=/d",
			      "POMELO_RUN_DIR=/r",
			      "POMELO_SECRET_FILE=/s",
			      "POMELO_OWNER_WHATEVER=1",
			      "POMELO_S3_BUCKET=b",
			      "POMELO",
			      "=x",
			      NULL };
	setup(&f);
	cr_assert_eq(conf_env(f.c, env, &f.w), ERR_NONE, "%s", f.w.text);
	cr_assert_eq(conf_env(f.c, NULL, &f.w), ERR_NONE);
	cr_expect_eq(f.s.beat_ms, 60);
	cr_expect_str_eq(f.s.shared.data, "/d");
	shown(&f, "master.beat_ms", &s);
	cr_expect_str_eq(s.origin, "env POMELO_MASTER_BEAT_MS");
	cr_expect_eq(conf_origin(f.c, ".beat_ms"), CONF_ENV);
	cr_expect_eq(conf_origin(f.c, "data"), CONF_ENV);
	conf_free(f.c);
	NO_LEAKS();
}

static const struct {
	char *line;
	const char *words[3];
} bad_env[] = {
	{ "POMELO_MASTER_BEAT=1",
	  { "no such setting", "did you mean POMELO_MASTER_BEAT_MS?" } },
	{ "POMELO_MASTER_BEAT_MS=1", { "env POMELO_MASTER_BEAT_MS", "50..60000", "unset it" } },
	{ "POMELO_MASTER_BEAT_MS=", { "not a whole number" } },
	{ "POMELO_NONSENSE=1", { "POMELO_NONSENSE (environment)", "no such setting" } },
	{ "POMELO_OWNER=1", { "no such setting" } },
	{ "POMELO_TESTS=1", { "no such setting" } },
	{ "POMELO_DATA=rel", { "must begin with /" } },
	{ "POMELO_MASTER_TOKEN=secretsecretsecretsecretsecretsecret",
	  { "(hidden)", "32 bytes" } },
};

Test(conf, environment_bad, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(bad_env); i++) {
		struct fixture f;
		char *const env[] = { bad_env[i].line, NULL };
		setup(&f);
		cr_expect_eq(conf_env(f.c, env, &f.w), ERR_INVALID_PARAMS, "%s", env[0]);
		for (size_t k = 0; k < ARRAY_LEN(bad_env[i].words) && bad_env[i].words[k]; k++)
			cr_expect(strstr(f.w.text, bad_env[i].words[k]), "no \"%s\" in: %s",
				  bad_env[i].words[k], f.w.text);
		conf_free(f.c);
	}
	NO_LEAKS();
}

/* Foreign lines; the setting afterwards; the notice's kind (-1: none) and a word of it. */
static const struct {
	char *lines[2];
	const char *name, *value;
	int kind;
	const char *word;
} foreign[] = {
	{ { "MOONCAKE_OFFLOAD_ENABLED=False" }, "master.offload", "false", -1, NULL },
	{ { "MOONCAKE_OFFLOAD_ENABLED=0" }, "master.offload", "false", -1, NULL },
	{ { "MOONCAKE_OFFLOAD_ENABLED=maybe" },
	  "master.offload",
	  "true",
	  CONF_WARN,
	  "ignored" },
	{ { "MOONCAKE_OFFLOAD_ENABLED=" }, "master.offload", "true", -1, NULL },
	{ { "MOONCAKE_BEAT_SECONDS=10" }, "master.beat_ms", "1000", CONF_WARN, "0.1..1 s" },
	{ { "MOONCAKE_BEAT_SECONDS=0" }, "master.beat_ms", "100", CONF_WARN, "nearest bound" },
	{ { "MOONCAKE_BEAT_SECONDS=0.5" }, "master.beat_ms", "500", CONF_NOTE, "0.1..1 s" },
	{ { "MOONCAKE_BEAT_SECONDS=0.2509" }, "master.beat_ms", "250", CONF_NOTE, "" },
	{ { "MOONCAKE_BEAT_SECONDS=x" }, "master.beat_ms", "500", CONF_WARN, "not a number" },
	{ { "MOONCAKE_BEAT_SECONDS=1s" }, "master.beat_ms", "500", CONF_WARN, "not a number" },
	{ { "MOONCAKE_BEAT_SECONDS=99999999999999999999" },
	  "master.beat_ms",
	  "500",
	  CONF_WARN,
	  "" },
	{ { "MOONCAKE_BEAT_SECONDS=18446744073709551615" },
	  "master.beat_ms",
	  "500",
	  CONF_WARN,
	  "" },
	{ { "MOONCAKE_POOL=1073741824" }, "master.pool_bytes", "1GiB", -1, NULL },
	{ { "MOONCAKE_POOL=1" }, "master.pool_bytes", "1GiB", CONF_WARN, "too small" },
	{ { "OSS_POOL=8192", "MOONCAKE_POOL=4096" }, "master.pool_bytes", "4KiB", -1, NULL },
	{ { "OSS_POOL=8192", "MOONCAKE_POOL=" }, "master.pool_bytes", "1GiB", -1, NULL },
	{ { "OSS_POOL=8192" }, "master.pool_bytes", "8KiB", -1, NULL },
	{ { "MOONCAKE_DEPTH=0" }, "master.depth", "256", -1, NULL },
	{ { "MOONCAKE_DEPTH=5000" }, "master.depth", "1024", CONF_WARN, "nearest bound" },
	{ { "MOONCAKE_DEPTH=-3" }, "master.depth", "256", CONF_WARN, "not a whole number" },
	{ { "MOONCAKE_PROTOCOL=tcp" }, "master.engine", "sp", -1, NULL },
	{ { "MOONCAKE_PROTOCOL=RDMA" }, "master.engine", "nng", -1, NULL },
	{ { "MOONCAKE_PROTOCOL=sim" }, "master.engine", "sim", -1, NULL },
	{ { "MOONCAKE_PROTOCOL=ib" }, "master.engine", "sp", CONF_WARN, "one of: sp nng sim" },
	{ { "MOONCAKE_DIR=/x" }, "master.dir", "/x", -1, NULL },
	{ { "MOONCAKE_DIR=x" }, "master.dir", "", CONF_PROBLEM, "what uses master.dir" },
	{ { "MOONCAKE_CONFIG_PATH=/etc/m" }, "master.dir", "", CONF_NOTE, "pomelo.conf" },
	{ { "MOONCAKE_DIR=x", "POMELO_MASTER_DIR=/y" }, "master.dir", "/y", -1, NULL },
	{ { "MOONCAKE_TOKEN=hunter2" }, "master.token", "(set, not shown)", -1, NULL },
};

Test(conf, foreign_names, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(foreign); i++) {
		struct fixture f;
		struct conf_shown s;
		const struct conf_notice *n;
		char *const env[] = { foreign[i].lines[0], foreign[i].lines[1], NULL };
		setup(&f);
		cr_assert_eq(conf_env(f.c, env, &f.w), ERR_NONE);
		cr_assert_eq(conf_end(f.c, &f.w), ERR_NONE);
		const char *v = shown(&f, foreign[i].name, &s);
		cr_expect_str_eq(v, foreign[i].value, "%s gives %s", env[0], v);
		size_t count = conf_notices(f.c, &n);
		cr_expect_eq(count, foreign[i].kind >= 0, "%s: %zu notices", env[0], count);
		if (count == 1) {
			cr_expect_eq((int)n->kind, foreign[i].kind, "%s", n->text);
			cr_expect(strstr(n->text, foreign[i].word), "%s: no \"%s\" in: %s",
				  env[0], foreign[i].word, n->text);
			cr_expect(strncmp(n->text, env[0], strcspn(env[0], "=")) == 0);
		}
		conf_free(f.c);
	}
	NO_LEAKS();
}

Test(conf, foreign_flags, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	setup(&f);
	cr_assert_eq(flags(&f, ARGV("--rpc_port", "50051", "--enable_offload=false")),
		     ERR_NONE);
	cr_assert_eq(conf_end(f.c, &f.w), ERR_NONE);
	cr_expect_str_eq(f.s.shared.listen.v[0], "tcp://127.0.0.1:50051");
	cr_expect(!f.s.offload);
	shown(&f, "master.listen", &s);
	cr_expect_str_eq(s.origin, "flag --rpc_port");
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, clamped_origin_says_so, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	char *const env[] = { "MOONCAKE_BEAT_SECONDS=10", NULL };
	setup(&f);
	cr_assert_eq(conf_env(f.c, env, &f.w), ERR_NONE);
	cr_assert_eq(conf_end(f.c, &f.w), ERR_NONE);
	shown(&f, "master.beat_ms", &s);
	cr_expect_str_eq(s.origin, "env MOONCAKE_BEAT_SECONDS (clamped)");
	cr_expect_eq(s.kind, CONF_FOREIGN);
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, unlisted_names_are_kept_and_bounded, .timeout = 5)
{
	struct fixture f;
	char lines[80][40], *env[81] = { NULL };
	const char *const *names;
	setup(&f);
	for (int i = 0; i < 80; i++) {
		snprintf(lines[i], sizeof(lines[i]), "MOONCAKE_NEW_%d=secret", i);
		env[i] = lines[i];
	}
	cr_assert_eq(conf_env(f.c, env, &f.w), ERR_NONE);
	cr_assert_eq(conf_unlisted(f.c, &names), 64);
	cr_expect_str_eq(names[0], "MOONCAKE_NEW_0");
	conf_free(f.c);
	NO_LEAKS();
}

/* What another section's owner is to judge is remembered with its origin, bounded. */
Test(conf, names_left_to_others_are_kept, .timeout = 5)
{
	static char *env[] = { "POMELO_OWNER_DISK=1", "POMELO_TEST_X=1", NULL };
	struct fixture f;
	const char *const *left;
	setup(&f);
	cr_expect_eq(conf_left(f.c, &left), 0);
	cr_expect_eq(conf_set(f.c, "owner.nonsense=1", &f.w), ERR_NONE);
	cr_expect_eq(conf_env(f.c, env, &f.w), ERR_NONE);
	cr_expect_eq(conf_parse(f.c, BYTES_STR("# x\npg.other = 2\n"), "a.conf", &f.w),
		     ERR_NONE);
	cr_assert_eq(conf_left(f.c, &left), 3);
	cr_expect_str_eq(left[0], "owner.nonsense (flag --set)");
	cr_expect_str_eq(left[1], "POMELO_OWNER_DISK (environment)");
	cr_expect_str_eq(left[2], "pg.other (a.conf:2)");
	for (int i = 0; i < 100; i++)
		cr_expect_eq(conf_set(f.c, "owner.nonsense=1", &f.w), ERR_NONE);
	cr_expect_eq(conf_left(f.c, &left), 64);
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, check_over_several_settings, .timeout = 5)
{
	struct fixture f;
	setup(&f);
	cr_assert_eq(parse(&f, "\nmaster.low_ratio = 0.9"), ERR_NONE);
	cr_assert_eq(conf_end(f.c, &f.w), ERR_INVALID_PARAMS);
	cr_expect_str_eq(f.w.text, "master.low_ratio = 0.9 (pomelo.conf:2): must be below "
				   "master.high_ratio (0.75)");
	conf_free(f.c);
	NO_LEAKS();
}

/* I4 */
Test(conf, secrets_are_in_no_text, .timeout = 5)
{
	struct fixture f;
	struct buf b = BUF_INIT(1 << 16);
	setup(&f);
	cr_assert_eq(parse(&f, "master.token = hunter2"), ERR_NONE);
	cr_expect_str_eq(f.s.token, "hunter2");
	conf_print(f.c, &b);
	buf_put(&b, "", 1);
	cr_assert_eq(buf_err(&b), ERR_NONE);
	cr_expect(!strstr((char *)b.p, "hunter2"));
	cr_expect(strstr((char *)b.p, "(set, not shown)   pomelo.conf:1"), "%s", b.p);
	cr_expect(strstr((char *)b.p, "master.beat_ms"));
	cr_expect_eq(conf_fail(f.c, &f.w, ".token", "is no good"), ERR_INVALID_PARAMS);
	cr_expect(!strstr(f.w.text, "hunter2"));
	buf_fini(&b);
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, second_file_overrides_first, .timeout = 5)
{
	struct fixture f;
	struct conf_shown s;
	setup(&f);
	cr_assert_eq(conf_parse(f.c, BYTES_STR("master.depth = 5"), "a", &f.w), ERR_NONE);
	cr_assert_eq(conf_parse(f.c, BYTES_STR("master.depth = 6"), "b", &f.w), ERR_NONE);
	shown(&f, "master.depth", &s);
	cr_expect_str_eq(s.value, "6");
	cr_expect_str_eq(s.origin, "b:1");
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, files, .timeout = 5)
{
	struct fixture f;
	char path[] = "/tmp/pomelo-conf-XXXXXX";
	setup(&f);
	int fd = mkstemp(path);
	cr_assert(fd >= 0);
	cr_assert_eq(write(fd, "master.depth = 5\n", 17), 17);
	cr_expect_eq(conf_file(f.c, path, true, &f.w), ERR_NONE);
	cr_expect_eq(f.s.depth, 5);
	cr_assert_eq(ftruncate(fd, (1 << 20) + 65537), 0);
	cr_expect_eq(conf_file(f.c, path, true, &f.w), ERR_TOO_LARGE);
	cr_expect(strstr(f.w.text, path));
	close(fd);
	unlink(path);
	f.w = (struct why){ 0 };
	cr_expect_eq(conf_file(f.c, path, false, &f.w), ERR_NONE);
	cr_expect_eq(f.w.err, ERR_NONE);
	cr_expect_eq(conf_file(f.c, path, true, &f.w), ERR_NOT_FOUND);
	cr_expect(strstr(f.w.text, "cannot be opened"));
	f.w = (struct why){ 0 };
	cr_expect_eq(conf_file(f.c, "/tmp", true, &f.w), ERR_IO);
	cr_expect(strstr(f.w.text, "/tmp"));
	conf_free(f.c);
	NO_LEAKS();
}

Test(conf, sizes, .timeout = 5)
{
	uint64_t v = 7;
	char text[24];
	cr_expect(conf_parse_size("0", &v) && v == 0);
	cr_expect(conf_parse_size("16383PiB", &v) && v == 16383ull << 50);
	cr_expect(!conf_parse_size("16384PiB", &v) && v == 16383ull << 50);
	cr_expect(!conf_parse_size("", &v));
	cr_expect(!conf_parse_size("1GB", &v));
	cr_expect(!conf_parse_size(" 1", &v));
	cr_expect(!conf_parse_size("123456789012345678901234567890", &v));
	/* every printed size reads back as itself */
	for (int i = 0; i < 64; i++)
		for (int d = -1; d <= 1; d++) {
			uint64_t want = (1ull << i) + (uint64_t)(int64_t)d;
			conf_format_size(want, text);
			cr_expect(conf_parse_size(text, &v) && v == want, "%s", text);
		}
	cr_expect(strcmp((conf_format_size(1 << 20, text), text), "1MiB") == 0);
}

Test(conf, nearest, .timeout = 5)
{
	static const char *const names[] = { "put", "get", "status", "bench" };
	cr_expect_str_eq(conf_nearest("stauts", names, 4), "status");
	cr_expect_str_eq(conf_nearest("benhc", names, 4), "bench");
	cr_expect_str_eq(conf_nearest("pt", names, 1) ? "put" : "none", "none");
	cr_expect_null(conf_nearest("remove", names, 4));
	cr_expect_null(conf_nearest("", names, 4));
}

#define CONF_T struct sample
#define BROKEN(name_, doc_, ...)                                                    \
	{                                                                           \
		name_, (const struct conf_row[]){ __VA_ARGS__ },                    \
			ARRAY_LEN(((const struct conf_row[]){ __VA_ARGS__ })), doc_ \
	}

/* Mistakes in rows, and a word of what conf_schema_check says. */
static const struct {
	const char *service;
	const struct conf_row *rows;
	size_t n;
	const char *word;
} broken[] = {
	BROKEN("master", "is too small", CONF_ROW(u32, depth, ".depth", "0", "1", "5", 0, "x")),
	BROKEN("master", "says nothing", CONF_ROW(u32, depth, ".depth", "1", "1", "5", 0, "")),
	BROKEN("master", "_ms", CONF_ROW(ms, beat_ms, ".beat", "1", "", "", 0, "x")),
	BROKEN("master", "without words",
	       CONF_ROW(enum, engine, ".engine", "a", "", "", 0, "x")),
	BROKEN("master", "without a default",
	       CONF_ROW(enum, engine, ".engine", "", "a b", "", 0, "x")),
	BROKEN("master", "bound 1k", CONF_ROW(size, pool, ".pool", "2KiB", "1k", "", 0, "x")),
	BROKEN("master", "bound x", CONF_ROW(str, token, ".token", "", "", "x", 0, "x")),
	BROKEN("nobody", "section", CONF_ROW(u32, depth, ".depth", "1", "", "", 0, "x")),
	BROKEN("master", "a-z", CONF_ROW(u32, depth, ".Depth", "1", "", "", 0, "x")),
	BROKEN("master", "both are POMELO_MASTER_A_B",
	       CONF_ROW(u32, depth, ".a_b", "1", "", "", 0, "x")
		       CONF_ROW(u64, keys, ".a.b", "1", "", "", 0, "x")),
	BROKEN("master", "both are --data",
	       CONF_ROW(u32, depth, ".data", "1", "", "", 0, "x")
		       CONF_ROW(u64, keys, "data", "1", "", "", 0, "x")),
	BROKEN("master", "master_a and master.a: both are POMELO_MASTER_A",
	       CONF_ROW(u32, depth, "master_a", "1", "", "", 0, "x")
		       CONF_ROW(u64, keys, "a", "1", "", "", 0, "x")),
	BROKEN("master", "has a meaning", CONF_ROW(u32, depth, ".help", "1", "", "", 0, "x")),
};
#undef CONF_T

Test(conf, schema_mistakes_are_found, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
		const struct conf_part part = { broken[i].rows, broken[i].n, 0, NULL, 0 };
		const struct conf_schema s = { broken[i].service, &part, 1, NULL };
		struct why w = { 0 };
		cr_expect_eq(conf_schema_check(&s, &w), ERR_INTERNAL, "%zu", i);
		cr_expect(strstr(w.text, broken[i].word), "no \"%s\" in: %s", broken[i].word,
			  w.text);
	}
	NO_LEAKS();
}

static const struct {
	struct conf_foreign f[2];
	const char *word;
} broken_foreign[] = {
	{ { { "MOONCAKE_A", ".depth" }, { "MOONCAKE_A", ".depth" } }, "listed twice" },
	{ { { "MOONCAKE_A", "" }, { "MOONCAKE_B", ".depth" } }, "says nothing" },
	{ { { "MOONCAKE_A", ".depth", .lo = "0" }, { "MOONCAKE_B", ".depth" } }, "bound 0" },
	{ { { "MOONCAKE_A", ".depth", .wrap = "x" }, { "MOONCAKE_B", ".depth" } }, "no %s" },
};

Test(conf, foreign_mistakes_are_found, .timeout = 5)
{
	for (size_t i = 0; i < ARRAY_LEN(broken_foreign); i++) {
		const struct conf_part part = { sample_rows, ARRAY_LEN(sample_rows), 0,
						broken_foreign[i].f, 2 };
		const struct conf_schema s = { "master", &part, 1, NULL };
		struct why w = { 0 };
		cr_expect_eq(conf_schema_check(&s, &w), ERR_INTERNAL, "%zu", i);
		cr_expect(strstr(w.text, broken_foreign[i].word), "%s", w.text);
	}
	NO_LEAKS();
}

/* A second service with the shared part and one row of its own. */
static const struct conf_schema other_schema = {
	"owner",
	(const struct conf_part[]){
		{ sample_shared_rows, ARRAY_LEN(sample_shared_rows), 0, NULL, 0 },
		{ &(const struct conf_row){ CONF_u32, 0, ".port", "7", "", "", 0, "a port" }, 1,
		  0, &(const struct conf_foreign){ "MOONCAKE_PORT", ".port" }, 1 },
	},
	2, NULL
};

/* A program that has no section of its own (a library) leaves what services share as it is. */
Test(conf, page_of_a_program_without_a_section, .timeout = 5)
{
	struct tool {
		bool fast;
	};
#define CONF_T struct tool
	static const struct conf_row rows[] = { CONF_ROW(bool, fast, "tool.fast", "false", "",
							 "", 0, "in a hurry") };
#undef CONF_T
	static const struct conf_part parts[] = { { .rows = rows, .n = 1 } };
	static const struct conf_schema tool = { "tool", parts, 1, NULL };
	const struct conf_schema *const all[] = { &sample_schema, &other_schema, &tool };
	struct buf b = BUF_INIT(1 << 18);
	conf_page(all, 3, &b);
	buf_put(&b, "", 1);
	cr_assert_eq(buf_err(&b), ERR_NONE);
	const char *text = (const char *)b.p;
	cr_expect(strstr(text, "| `SERVICE.listen` |"), "%s", text);
	cr_expect(strstr(text, "## tool\n\n| name") && strstr(text, "| `tool.fast` |"), "%s",
		  text);
	cr_expect_null(strstr(text, "is one of: `master` `owner` `tool`"));
	buf_fini(&b);
	NO_LEAKS();
}

Test(conf, page, .timeout = 5)
{
	const struct conf_schema *const all[] = { &sample_schema, &other_schema };
	struct buf b = BUF_INIT(1 << 18);
	conf_page(all, 2, &b);
	buf_put(&b, "", 1);
	cr_assert_eq(buf_err(&b), ERR_NONE);
	const char *text = (const char *)b.p;
	const char *shared = strstr(text, "| `http.port` | `POMELO_HTTP_PORT` | `17610` |");
	cr_assert(shared, "%s", text);
	cr_expect(!strstr(shared + 1, "| `http.port` |"), "a shared row is listed once");
	cr_expect(
		strstr(text,
		       "| `SERVICE.listen` | `POMELO_SERVICE_LISTEN` | `ipc:///run/m.sock` |"));
	cr_expect(!strstr(text, "`owner.listen`") &&
		  !strstr(text, "`master.listen` | `POMELO"));
	cr_expect(strstr(text, "| `owner.port` | `POMELO_OWNER_PORT` | `7` |"));
	cr_expect(strstr(text, "| `master.beat_ms` | `POMELO_MASTER_BEAT_MS` | `500` | whole "
			       "milliseconds; 50..60000 ms | time between two beats |"));
	cr_expect(strstr(text, "a secret (never shown)"));
	cr_expect(strstr(text, "| `MOONCAKE_BEAT_SECONDS` | `master.beat_ms` | times 1000; "
			       "100..1000; clamped; kept within 0.1..1 s here |"));
	cr_expect(strstr(text, "| `MOONCAKE_CONFIG_PATH` | nothing | not read"));
	cr_expect(strstr(text, "| `MOONCAKE_PORT` | `owner.port` |"));
	buf_fini(&b);
	NO_LEAKS();
}
