/* SPDX-License-Identifier: Apache-2.0 */
/* The shell around a small service of the test's own, on a real loop in this process. */
#include "svc/svc.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop/pool.h"
#include "proto/messages.h"
#include "rpc/auth.h"
#include "../../support/leak.h"
#include "../../support/tcp_client.h"

TestSuite(svc, .timeout = 60);

/* ---- the service ---- */

/* clang-format off */
#define TOY_CONF(F) \
	F(u32, size, ".size", "7", "1", "100", 0, "how big the toy is")
#define TOY_METRICS(F) \
	F(counter, TOY_M_PLAYS, "plays_total", "", "", "", "how often it was played with")
/* clang-format on */

enum { TOY_METRICS(METRIC_ENUM) };

struct toy_conf {
	TOY_CONF(CONF_FIELD)
};

struct toy {
	struct svc svc;
	struct toy_conf conf;
	struct job job;
	bool job_ended;
	enum err job_err;
};

/* What the hooks saw, in order; the test reads it after the toy is gone. */
static char story[256];
static const char *not_ready; /* a reason, or NULL */
static enum err open_fails;

static void tell(const char *what)
{
	strncat(story, what, sizeof(story) - strlen(story) - 1);
	strncat(story, " ", sizeof(story) - strlen(story) - 1);
}

static enum err on_open(struct svc *s, struct why *why)
{
	tell("open");
	cr_expect_eq(s->n_addrs, 1, "addresses are known");
	return open_fails ? why_set(why, open_fails, "toy: broken") : ERR_NONE;
}

static void on_drain(struct svc *s)
{
	tell("drain");
}

static void on_close(struct svc *s)
{
	cr_expect_eq(s->ops.n, 0, "no op is alive when the close hook runs");
	tell("close");
	svc_closed(s);
}

static void reasons(struct svc *s, struct svc_reasons *r)
{
	if (not_ready)
		svc_reason(r, "toy: %s", not_ready);
}

static uint64_t on_term(const struct svc *s)
{
	return 42;
}

static void on_play(void *ctx, struct rpc_req *r)
{
	struct toy *t = ctx;
	metric_inc(t->svc.metrics, TOY_M_PLAYS);
	rpc_reply(r, ERR_NONE, 0, BYTES("fun", 3));
}

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "0") };
#undef CONF_T
#define CONF_T struct toy_conf
static const struct conf_row toy_rows[] = { TOY_CONF(CONF_ROW) };
#undef CONF_T
static const struct conf_part parts[] = {
	SVC_CONF_PART(shared_rows),
	{ toy_rows, ARRAY_LEN(toy_rows), offsetof(struct toy, conf), NULL, 0 },
};
static const struct conf_schema schema = { "planner", parts, ARRAY_LEN(parts), svc_conf_check };
static const struct metric_row metric_rows[] = { TOY_METRICS(METRIC_ROW) };
static const struct metric_schema metrics = { "toy", metric_rows, ARRAY_LEN(metric_rows) };
static const struct rpc_method methods[] = {
	{ .number = 990, .name = "PLAY", .roles = ROLES_ANY, .fn = on_play, .sync = true },
};
static const struct svc_def toy_def = {
	.name = "planner", /* a section that settings know */
	.exe = "pomelo-toy",
	.about = "A toy.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct toy),
	.conf = &schema,
	.methods = methods,
	.n_methods = ARRAY_LEN(methods),
	.metrics = &metrics,
	.open = on_open,
	.drain = on_drain,
	.close = on_close,
	.reasons = reasons,
	.term = on_term,
};

/* ---- the fixture ---- */

struct fixture {
	struct loop loop;
	char dir[32], data_flag[48];
	struct toy toy;
	struct log_capture quiet;
	char log[16384];
	struct why why;
	int n_closed;
	char *argv[16];
	int argc;
	char *env[8];
};

static void on_line(struct log_capture *c, const char *line, size_t n)
{
	struct fixture *f = container_of(c, struct fixture, quiet);
	strncat(f->log, line, MIN_OF(n, sizeof(f->log) - strlen(f->log) - 1));
}

static void begin(struct fixture *f)
{
	char path[64];
	struct why why = { 0 };
	memset(f, 0, sizeof(*f));
	signal(SIGPIPE, SIG_IGN); /* as in a daemon: peers go while we write */
	story[0] = 0;
	not_ready = NULL;
	open_fails = ERR_NONE;
	f->quiet.fn = on_line;
	strcpy(f->dir, "/tmp/pml-toy-XXXXXX");
	cr_assert_not_null(mkdtemp(f->dir));
	snprintf(path, sizeof(path), "%s/secret", f->dir);
	cr_assert_eq(secret_new(path, &why), ERR_NONE, "%s", why.text);
	snprintf(f->data_flag, sizeof(f->data_flag), "--data=%s", f->dir);
	f->argv[f->argc++] = "toy";
	f->argv[f->argc++] = f->data_flag;
	cr_assert_eq(loop_open(&f->loop), ERR_NONE);
}

static void arg(struct fixture *f, char *text)
{
	f->argv[f->argc++] = text;
}

static void on_closed(struct svc *s, void *ctx)
{
	((struct fixture *)ctx)->n_closed++;
}

static enum err try(struct fixture *f)
{
	struct svc_env env = { .loop = &f->loop,
			       .argc = f->argc,
			       .argv = f->argv,
			       .environ = f->env[0] ? f->env : NULL,
			       .log = &f->quiet,
			       .closed = on_closed,
			       .arg = f };
	f->why = (struct why){ 0 };
	return svc_open(&f->toy.svc, &toy_def, &env, &f->why);
}

static void open_it(struct fixture *f)
{
	cr_assert_eq(try(f), ERR_NONE, "%s", f->why.text);
}

static void until_closed(struct fixture *f)
{
	while (f->n_closed == 0)
		loop_run_once(&f->loop, true);
}

static void end(struct fixture *f)
{
	char cmd[64];
	loop_close(&f->loop);
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", f->dir);
	cr_assert_eq(system(cmd), 0);
}

static bool there(struct fixture *f, const char *name)
{
	char path[96];
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	return access(path, F_OK) == 0;
}

/* ---- life ---- */

Test(svc, hooks_run_in_order)
{
	struct fixture f;
	begin(&f);
	open_it(&f);
	cr_expect(there(&f, "run/planner.json"));
	cr_expect(there(&f, "run/planner.sock"));
	cr_expect_eq(f.n_closed, 0);
	svc_stop(&f.toy.svc, 100);
	svc_stop(&f.toy.svc, 100);
	cr_expect_eq(f.n_closed, 0, "closed never runs inside svc_stop");
	until_closed(&f);
	cr_expect_str_eq(story, "open drain close ");
	cr_expect_not(there(&f, "run/planner.json"));
	cr_expect_eq(f.n_closed, 1);
	cr_expect(strstr(f.log, "topic=start"));
	cr_expect_null(strstr(f.log, "level=error"), "%s", f.log);
	end(&f);
	NO_LEAKS();
}

Test(svc, it_opens_again_on_the_same_folder)
{
	struct fixture f;
	uint8_t first[16];
	begin(&f);
	for (int i = 0; i < 3; i++) {
		f.n_closed = 0;
		open_it(&f);
		if (i > 0)
			cr_expect_neq(memcmp(first, f.toy.svc.instance, 16), 0, "I3");
		memcpy(first, f.toy.svc.instance, 16);
		svc_stop(&f.toy.svc, 0);
		until_closed(&f);
	}
	end(&f);
	NO_LEAKS();
}

/* I2: whatever fails, closed runs once and nothing is left. */
Test(svc, a_start_that_fails_ends_like_any_other)
{
	static char *const bad[] = {
		"--no-such=1",
		"--set=planner.size=0",
		"--set=planner.size=101",
		"--http-bind=nope",
		"--listen=nonsense",
		"--listen=tcp://256.1.1.1:1",
		"--secret-file=/xx",
		"--listen=ipc:///proc/nope/x",
		"--masters=junk",
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct fixture f;
		begin(&f);
		arg(&f, bad[i]);
		cr_expect_neq(try(&f), ERR_NONE, "%s", bad[i]);
		cr_expect(f.why.text[0], "%s: no text", bad[i]);
		cr_expect_eq(f.n_closed, 0, "closed comes later");
		until_closed(&f);
		for (int k = 0; k < 5; k++)
			loop_run_once(&f.loop, false);
		cr_expect_eq(f.n_closed, 1);
		cr_expect_not(there(&f, "run/planner.json"), "%s", bad[i]);
		end(&f);
	}
	NO_LEAKS();
}

Test(svc, a_hook_that_fails)
{
	struct fixture f;
	begin(&f);
	open_fails = ERR_CORRUPT;
	cr_expect_eq(try(&f), ERR_CORRUPT);
	cr_expect_str_eq(f.why.text, "toy: broken");
	until_closed(&f);
	cr_expect_str_eq(story, "open ", "what did not open is not closed");
	cr_expect_not(there(&f, "run/planner.sock"));
	end(&f);
	NO_LEAKS();
}

Test(svc, two_on_one_folder)
{
	struct fixture f, g;
	begin(&f);
	begin(&g);
	open_it(&f);
	g.argv[1] = f.data_flag;
	cr_expect_eq(try(&g), ERR_DIRECTORY_IN_USE);
	cr_expect(strstr(g.why.text, "planner.pid"), "%s", g.why.text);
	until_closed(&g);
	cr_expect(there(&f, "run/planner.json"), "the first one's files stay");
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	end(&f);
	end(&g);
	NO_LEAKS();
}

/* No singletons: three at a time on one loop. */
Test(svc, three_on_one_loop)
{
	struct fixture f[3];
	for (int i = 0; i < 3; i++) {
		begin(&f[i]);
		if (i > 0) {
			loop_close(&f[i].loop);
			struct svc_env env = { .loop = &f[0].loop,
					       .argc = f[i].argc,
					       .argv = f[i].argv,
					       .log = &f[i].quiet,
					       .closed = on_closed,
					       .arg = &f[i] };
			cr_assert_eq(svc_open(&f[i].toy.svc, &toy_def, &env, NULL), ERR_NONE);
		} else {
			open_it(&f[0]);
		}
	}
	for (int i = 0; i < 3; i++)
		svc_stop(&f[i].toy.svc, 0);
	while (f[0].n_closed + f[1].n_closed + f[2].n_closed < 3)
		loop_run_once(&f[0].loop, true);
	cr_expect_eq(f[0].loop.inbox.expected, 0);
	for (int i = 1; i < 3; i++)
		cr_assert_eq(loop_open(&f[i].loop), ERR_NONE);
	for (int i = 0; i < 3; i++)
		end(&f[i]);
	NO_LEAKS();
}

/* It cannot go on: what is inside is answered, and the first reason stays. */
Test(svc, a_failure_ends_it_like_a_stop)
{
	struct fixture f;
	begin(&f);
	open_it(&f);
	svc_fail(&f.toy.svc, ERR_IO, "toy: disk %d is gone", 7);
	svc_fail(&f.toy.svc, ERR_INTERNAL, "toy: and more");
	until_closed(&f);
	cr_expect_eq(f.toy.svc.failed, ERR_IO);
	cr_expect(strstr(f.log, "err=IO msg=\"toy: disk 7 is gone\""), "%s", f.log);
	cr_expect_null(strstr(f.log, "and more"));
	cr_expect_str_eq(story, "open drain close ");
	end(&f);
	NO_LEAKS();
}

/* ---- settings ---- */

static void write_conf(struct fixture *f, const char *text)
{
	char path[64];
	snprintf(path, sizeof(path), "%s/pomelo.conf", f->dir);
	FILE *file = fopen(path, "we");
	fputs(text, file);
	fclose(file);
}

Test(svc, flags_beat_environment_beats_file)
{
	struct fixture f;
	begin(&f);
	write_conf(&f, "planner.size = 11\ngrace_ms = 1111\nbeat_ms = 111\nowner.x = 1\n");
	f.env[0] = "POMELO_GRACE_MS=2222";
	f.env[1] = "POMELO_BEAT_MS=222";
	f.env[2] = "POMELO_TEST_X=1";
	f.env[3] = "MOONCAKE_MASTER=10.0.0.9:50051";
	arg(&f, "--beat-ms=333");
	arg(&f, "--set=suspect_ms=5000");
	open_it(&f);
	cr_expect_eq(f.toy.conf.size, 11);
	cr_expect_eq(f.toy.svc.conf.grace_ms, 2222);
	cr_expect_eq(f.toy.svc.conf.beat_ms, 333);
	cr_assert_eq(f.toy.svc.conf.masters.n, 1);
	cr_expect_str_eq(f.toy.svc.conf.masters.v[0], "tcp://10.0.0.9:50051");
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	end(&f);
	NO_LEAKS();
}

Test(svc, rows_are_right)
{
	struct why why = { 0 };
	cr_expect_eq(conf_schema_check(&schema, &why), ERR_NONE, "%s", why.text);
	cr_expect_eq(metric_schema_check(&svc_metric_schema, &why), ERR_NONE, "%s", why.text);
}

Test(svc, relations_between_settings)
{
	static char *const bad[][2] = {
		{ "--set=suspect_ms=999", "--set=beat_ms=500" },
		{ "--set=holder_dead_ms=2000", "--set=suspect_ms=2000" },
		{ "--tls-key=/k.pem", "--set=beat_ms=500" },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct fixture f;
		begin(&f);
		arg(&f, bad[i][0]);
		arg(&f, bad[i][1]);
		cr_expect_eq(try(&f), ERR_INVALID_PARAMS, "%s", bad[i][0]);
		until_closed(&f);
		end(&f);
	}
	NO_LEAKS();
}

/* ---- readiness, metrics ---- */

Test(svc, readyz_lists_the_hooks_reasons)
{
	struct fixture f;
	struct buf b = BUF_INIT(4096);
	begin(&f);
	not_ready = "winding up";
	open_it(&f);
	cr_expect_not(svc_ready_json(&f.toy.svc, &b));
	buf_put(&b, "", 1);
	cr_expect_str_eq((char *)b.p, "{\"ready\":false,\"reasons\":[\"toy: winding up\"]}");
	not_ready = NULL;
	buf_clear(&b);
	cr_expect(svc_ready_json(&f.toy.svc, &b));
	svc_stop(&f.toy.svc, 0);
	buf_clear(&b);
	cr_expect_not(svc_ready_json(&f.toy.svc, &b));
	buf_put(&b, "", 1);
	cr_expect(strstr((char *)b.p, "draining"));
	until_closed(&f);
	buf_fini(&b);
	end(&f);
	NO_LEAKS();
}

Test(svc, reasons_are_bounded)
{
	struct svc_reasons r = { 0 };
	char big[1000];
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = 0;
	for (int i = 0; i < 100; i++)
		svc_reason(&r, "%s", big);
	cr_expect_eq(r.n, SVC_REASONS_MAX);
	for (size_t i = 0; i < r.n; i++)
		cr_expect_eq(strlen(r.text[i]), SVC_REASON_MAX - 1);
}

/* ---- requests ---- */

struct caller {
	struct rpc_client *client;
	struct log log;
	bool closed;
};

static void caller_open(struct fixture *f, struct caller *c)
{
	const char *addr = f->toy.svc.addrs[0];
	static const uint8_t instance[16] = { 1 };
	*c = (struct caller){ .log = { .svc = "caller" } };
	log_set_capture(&c->log, &f->quiet);
	struct rpc_client_opts o = { .addrs = &addr,
				     .n_addrs = 1,
				     .peer_name = "toy",
				     .as = ROLE_ADMIN,
				     .expect = ROLE_SERVICE,
				     .expect_name = "planner",
				     .keys = f->toy.svc.keys,
				     .log = &c->log,
				     .instance = instance };
	cr_assert_eq(rpc_client_new(&f->loop, &o, &c->client, NULL), ERR_NONE);
}

static void on_client_closed(void *arg)
{
	*(bool *)arg = true;
}

static void caller_close(struct fixture *f, struct caller *c)
{
	rpc_client_close(c->client, on_client_closed, &c->closed);
	while (!c->closed)
		loop_run_once(&f->loop, true);
}

struct call {
	struct rpc_call call;
	struct buf body, reply;
	bool ended;
};

static void on_done(struct rpc_call *call)
{
	struct call *c = container_of(call, struct call, call);
	cr_expect_not(c->ended);
	buf_put(&c->reply, call->reply.p, call->reply.n);
	c->ended = true;
}

static void call_start(struct fixture *f, struct caller *of, struct call *c, uint32_t method,
		       uint64_t ms)
{
	c->reply = BUF_INIT(1 << 20);
	c->ended = false;
	c->call = (struct rpc_call){ .method = method,
				     .body = buf_bytes(&c->body),
				     .done = on_done,
				     .deadline_ns = clock_after_ms(loop_now_ns(&f->loop), ms) };
	rpc_send(of->client, &c->call);
}

static enum err call_wait(struct fixture *f, struct call *c)
{
	while (!c->ended)
		loop_run_once(&f->loop, true);
	return c->call.err;
}

static void call_fini(struct call *c)
{
	buf_fini(&c->body);
	buf_fini(&c->reply);
}

Test(svc, own_methods_metrics_and_term)
{
	struct fixture f;
	struct caller of;
	struct call c = { .body = BUF_INIT(64) };
	struct buf text = BUF_INIT(1 << 20);
	begin(&f);
	open_it(&f);
	caller_open(&f, &of);
	call_start(&f, &of, &c, 990, 5000);
	cr_expect_eq(call_wait(&f, &c), ERR_NONE);
	cr_expect_eq(c.reply.n, 3);
	cr_expect_eq(c.call.term, 42);
	svc_metrics_print(&f.toy.svc, &text);
	buf_put(&text, "", 1);
	cr_expect(strstr((char *)text.p, "\npomelo_toy_plays_total 1\n"));
	cr_expect(strstr((char *)text.p, "\npomelo_rpc_inflight 0\n"), "a recount");
	cr_expect(strstr((char *)text.p, "\npomelo_rpc_connections 1\n"));
	caller_close(&f, &of);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	call_fini(&c);
	buf_fini(&text);
	end(&f);
	NO_LEAKS();
}

Test(svc, config_shows_values_and_origins)
{
	struct fixture f;
	struct caller of;
	struct call c = { .body = BUF_INIT(64) };
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_config_rep rep;
	struct why why = { 0 };
	begin(&f);
	arg(&f, "--size=33");
	open_it(&f);
	caller_open(&f, &of);
	enc_config_req(&c.body, &(struct msg_config_req){ .prefix = BYTES_STR("planner.s") });
	call_start(&f, &of, &c, METHOD_CONFIG, 5000);
	cr_assert_eq(call_wait(&f, &c), ERR_NONE, "%s", c.call.why.text);
	struct dec d = DEC_INIT(buf_bytes(&c.reply), &a, &why);
	cr_assert_eq(dec_config_rep(&d, &rep), ERR_NONE, "%s", why.text);
	cr_assert_eq(rep.settings.n, 2, "sessions_max and size");
	const struct msg_setting *m = &rep.settings.p[1];
	cr_expect_eq(memcmp(m->name.p, "planner.size", 12), 0);
	cr_expect_eq(memcmp(m->value.p, "33", 2), 0);
	cr_expect_eq(memcmp(m->origin.p, "flag --size", 11), 0);
	caller_close(&f, &of);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	call_fini(&c);
	arena_fini(&a);
	end(&f);
	NO_LEAKS();
}

Test(svc, wrong_bodies_are_refused_with_the_field)
{
	static const uint32_t with_body[] = { METHOD_STATUS, METHOD_ECHO, METHOD_CONFIG,
					      METHOD_DRAIN, METHOD_LOG_LEVEL };
	struct fixture f;
	struct caller of;
	begin(&f);
	open_it(&f);
	caller_open(&f, &of);
	for (size_t i = 0; i < ARRAY_LEN(with_body); i++) {
		struct call c = { .body = BUF_INIT(64) };
		buf_put(&c.body, "\x91\xc1", 2);
		call_start(&f, &of, &c, with_body[i], 5000);
		cr_expect_eq(call_wait(&f, &c), ERR_BAD_MESSAGE, "%u", with_body[i]);
		cr_expect(c.call.why.text[0]);
		call_fini(&c);
	}
	cr_expect_eq(f.toy.svc.state, SVC_RUNNING, "a broken DRAIN drains nothing");
	caller_close(&f, &of);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	end(&f);
	NO_LEAKS();
}

Test(svc, parked_requests_are_answered_at_the_end)
{
	struct fixture f;
	struct caller of;
	struct call brief = { .body = BUF_INIT(64) }, longer = { .body = BUF_INIT(64) };
	begin(&f);
	open_it(&f);
	caller_open(&f, &of);
	enc_echo(&brief.body, &(struct msg_echo){ .data = BYTES("a", 1), .park_ms = 60 });
	enc_echo(&longer.body, &(struct msg_echo){ .data = BYTES("b", 1), .park_ms = 60000 });
	call_start(&f, &of, &brief, METHOD_ECHO, 30000);
	call_start(&f, &of, &longer, METHOD_ECHO, 30000);
	while (f.toy.svc.ops.n < 2)
		loop_run_once(&f.loop, true);
	svc_stop(&f.toy.svc, 250);
	cr_expect_eq(call_wait(&f, &brief), ERR_NONE, "within the grace");
	cr_expect_eq(call_wait(&f, &longer), ERR_CANCELLED, "%s", err_name(longer.call.err));
	until_closed(&f);
	caller_close(&f, &of);
	call_fini(&brief);
	call_fini(&longer);
	end(&f);
	NO_LEAKS();
}

Test(svc, a_deadline_ends_a_parked_request)
{
	struct fixture f;
	struct caller of;
	struct call c = { .body = BUF_INIT(64) };
	begin(&f);
	open_it(&f);
	caller_open(&f, &of);
	enc_echo(&c.body, &(struct msg_echo){ .park_ms = 60000 });
	call_start(&f, &of, &c, METHOD_ECHO, 100);
	cr_expect_eq(call_wait(&f, &c), ERR_TIMED_OUT);
	uint64_t give_up = clock_after_ms(loop_now_ns(&f.loop), 2000);
	while (f.toy.svc.ops.n > 0 && loop_now_ns(&f.loop) < give_up)
		loop_run_once(&f.loop, true);
	cr_expect_eq(f.toy.svc.ops.n, 0,
		     "nothing waits in the service for a caller that gave up");
	caller_close(&f, &of);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	call_fini(&c);
	end(&f);
	NO_LEAKS();
}

/* The caller's connection goes: its parked request goes with it. */
Test(svc, a_parked_request_ends_with_its_connection)
{
	struct fixture f;
	struct caller of;
	struct call c = { .body = BUF_INIT(64) };
	begin(&f);
	open_it(&f);
	caller_open(&f, &of);
	enc_echo(&c.body, &(struct msg_echo){ .park_ms = 60000 });
	call_start(&f, &of, &c, METHOD_ECHO, 30000);
	while (f.toy.svc.ops.n < 1)
		loop_run_once(&f.loop, true);
	caller_close(&f, &of);
	cr_expect_eq(c.call.err, ERR_CLOSED);
	uint64_t give_up = clock_after_ms(loop_now_ns(&f.loop), 5000);
	while (f.toy.svc.ops.n > 0 && loop_now_ns(&f.loop) < give_up)
		loop_run_once(&f.loop, true);
	cr_expect_eq(f.toy.svc.ops.n, 0);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	call_fini(&c);
	end(&f);
	NO_LEAKS();
}

/* ---- workers at the end ---- */

static void slow_work(struct job *j)
{
	usleep(150000);
}

static void job_done(struct job *j)
{
	struct toy *t = container_of(j, struct toy, job);
	t->job_ended = true;
	t->job_err = j->err;
}

Test(svc, a_running_job_is_waited_for)
{
	struct fixture f;
	begin(&f);
	open_it(&f);
	f.toy.job = (struct job){ .work = slow_work, .done = job_done };
	cr_assert_eq(pool_submit(f.toy.svc.pool, &f.toy.job), ERR_NONE);
	while (pool_running(f.toy.svc.pool) == 0)
		usleep(1000);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	cr_expect(f.toy.job_ended);
	cr_expect_eq(f.toy.job_err, ERR_NONE);
	end(&f);
	NO_LEAKS();
}

static void nothing(struct job *j)
{
}

Test(svc, a_queued_job_is_cancelled)
{
	struct fixture f;
	static struct job blockers[8];
	begin(&f);
	arg(&f, "--workers=1");
	open_it(&f);
	for (size_t i = 0; i < 3; i++) {
		blockers[i] = (struct job){ .work = slow_work, .done = nothing };
		cr_assert_eq(pool_submit(f.toy.svc.pool, &blockers[i]), ERR_NONE);
	}
	f.toy.job = (struct job){ .work = slow_work, .done = job_done };
	cr_assert_eq(pool_submit(f.toy.svc.pool, &f.toy.job), ERR_NONE);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	cr_expect_eq(f.toy.job_err, ERR_CANCELLED);
	end(&f);
	NO_LEAKS();
}

/* ---- HTTP of a service ---- */

Test(svc, an_explicit_http_port_that_is_taken_stops_the_start)
{
	struct fixture f, g;
	char flag[32];
	begin(&f);
	begin(&g);
	open_it(&f);
	snprintf(flag, sizeof(flag), "--http-port=%s",
		 strrchr(svc_http_addr(&f.toy.svc), ':') + 1);
	arg(&g, flag);
	cr_expect_eq(try(&g), ERR_BUSY);
	cr_expect(strstr(g.why.text, "in use"), "%s", g.why.text);
	until_closed(&g);
	svc_stop(&f.toy.svc, 0);
	until_closed(&f);
	end(&f);
	end(&g);
	NO_LEAKS();
}
