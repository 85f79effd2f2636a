/* SPDX-License-Identifier: Apache-2.0 */
/* Each daemon as a real process on a folder of its own: what all five must do alike. */
#include "daemons.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/messages.h"
#include "../support/leak.h"
#include "../support/tcp_client.h"

TestSuite(daemons, .timeout = 120);

/* Parameters are copied into the test's process; a row's place survives that. */
static int each_idx[N_DAEMONS];

static struct criterion_test_params each_daemon(void)
{
	for (int i = 0; i < N_DAEMONS; i++)
		each_idx[i] = i;
	return cr_make_param_array(int, each_idx, N_DAEMONS);
}

#define EACH_DAEMON(name)                          \
	ParameterizedTestParameters(daemons, name) \
	{                                          \
		return each_daemon();              \
	}                                          \
	ParameterizedTest(int *row_idx, daemons, name)

/* One that no outgoing connection is given, with its neighbour five above, for the beats. */
static unsigned free_port(void)
{
	return 20000 + (unsigned)getpid() % 12000;
}

/* ---- alone ---- */

/* Prometheus text: every sample has a TYPE before it, a name of ours, a number. */
static void check_metrics(const char *text)
{
	char typed[128] = "";
	size_t n = 0;
	for (const char *p = text; *p;) {
		const char *nl = strchr(p, '\n');
		cr_assert_not_null(nl, "the last line is whole");
		if (strncmp(p, "# TYPE ", 7) == 0) {
			sscanf(p + 7, "%127s", typed);
		} else if (*p != '#') {
			char *end;
			const char *sp = memrchr(p, ' ', (size_t)(nl - p));
			cr_expect_eq(strncmp(p, "pomelo_", 7), 0, "%.*s", (int)(nl - p), p);
			cr_expect_eq(strncmp(p, typed, strlen(typed)), 0, "no TYPE: %.*s",
				     (int)(nl - p), p);
			cr_assert_not_null(sp);
			strtod(sp + 1, &end);
			cr_expect(end == nl && end > sp + 1, "%.*s", (int)(nl - p), p);
			n++;
		}
		p = nl + 1;
	}
	cr_expect_gt(n, 40);
}

EACH_DAEMON(starts_alone)
{
	const struct daemon_row *row = &daemon_rows[*row_idx];
	struct box b;
	struct proc p;
	static char text[1 << 20];
	const char *body;
	char path[160], left[180];
	box_make(&b);
	snprintf(left, sizeof(left), "%s/run", b.dir);
	cr_assert(mkdir(left, 0700) == 0 || errno == EEXIST);
	snprintf(left, sizeof(left), "%s/run/%s.json.tmp-a1B2c3", b.dir, row->name);
	FILE *half = fopen(left, "w");
	cr_assert_not_null(half);
	fclose(half);
	proc_run(&b, row, NULL, &p);
	cr_expect_eq(http_get(p.http, "GET", "/healthz", text, sizeof(text), &body), 200);
	if (row->def->needs_master) {
		cr_expect_eq(http_get(p.http, "GET", "/readyz", text, sizeof(text), &body),
			     503);
		cr_expect(strstr(body, "master: no beat acknowledged"), "%s", body);
	} else {
		cr_expect(proc_http_until(&p, "/readyz", 200, 5000, text, sizeof(text)), "%s",
			  text);
	}
	cr_expect_eq(http_get(p.http, "GET", "/metrics", text, sizeof(text), &body), 200);
	check_metrics(body);
	cr_expect_eq(metric_value(body, "pomelo_ready"), row->def->needs_master ? 0 : 1);
	cr_expect_gt(metric_value(body, "pomelo_resident_bytes"), 1e6);
	cr_expect_gt(metric_value(body, "pomelo_descriptors"), 5);
	snprintf(path, sizeof(path), "%s/run/%s.json", b.dir, row->name);
	cr_expect_eq(access(path, F_OK), 0);
	cr_expect_eq(proc_stop(&p), 0, "%s", proc_log(&p, text, sizeof(text)));
	cr_expect_neq(access(path, F_OK), 0, "run/NAME.json goes with its service");
	cr_expect_neq(access(left, F_OK), 0, "what an earlier run left half written went, too");
	proc_log(&p, text, sizeof(text));
	cr_expect(strstr(text, "trust="), "%s", text);
	cr_expect_null(strstr(text, "level=error"), "%s", text);
	box_remove(&b);
	NO_LEAKS();
}

EACH_DAEMON(answers_the_common_calls)
{
	const struct daemon_row *row = &daemon_rows[*row_idx];
	struct box b;
	struct proc p;
	struct caller c;
	struct buf r = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_version_rep v;
	struct msg_status_rep st;
	struct why why = { 0 };
	box_make(&b);
	proc_run(&b, row, NULL, &p);
	caller_open(&c, &b, p.rpc, ROLE_ADMIN, row->def->role);
	cr_assert_eq(caller_call(&c, METHOD_VERSION, BYTES(NULL, 0), 5000, &r, &why), ERR_NONE,
		     "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&r), &a, &why);
	cr_assert_eq(dec_version_rep(&d, &v), ERR_NONE);
	cr_expect_eq(v.v_max, WIRE_VERSION);
	cr_expect_eq(memcmp(v.release.p, POMELO_VERSION, v.release.n), 0);
	buf_clear(&r);
	struct msg_status_req q = { .counters = true };
	struct buf body = BUF_INIT(64);
	enc_status_req(&body, &q);
	cr_assert_eq(caller_call(&c, METHOD_STATUS, buf_bytes(&body), 5000, &r, &why), ERR_NONE,
		     "%s", why.text);
	d = DEC_INIT(buf_bytes(&r), &a, &why);
	cr_assert_eq(dec_status_rep(&d, &st), ERR_NONE, "%s", why.text);
	cr_expect_eq(st.pid, (uint64_t)p.pid);
	cr_expect_eq(memcmp(st.service.p, row->name, st.service.n), 0);
	cr_expect_geq(st.rpc.n, 1);
	cr_expect_gt(st.counters.n, 40);
	cr_expect_gt(st.rss_bytes, 1 << 20);
	cr_expect_eq(memcmp(st.http.p, p.http, st.http.n), 0);
	buf_fini(&body);
	caller_close(&c);
	cr_expect_eq(proc_stop(&p), 0);
	arena_fini(&a);
	buf_fini(&r);
	box_remove(&b);
	NO_LEAKS();
}

EACH_DAEMON(a_second_one_refuses_the_folder)
{
	const struct daemon_row *row = &daemon_rows[*row_idx];
	struct box b;
	struct proc p, second;
	char text[65536];
	box_make(&b);
	proc_run(&b, row, NULL, &p);
	proc_start(&b, row, NULL, &second);
	cr_assert(proc_wait(&second, 10000));
	cr_expect_eq(second.code, 6);
	cr_expect(strstr(proc_log(&second, text, sizeof(text)), "runs on this folder"), "%s",
		  text);
	cr_expect_eq(http_get(p.http, "GET", "/healthz", text, sizeof(text), NULL), 200,
		     "the first goes on");
	cr_expect_eq(proc_stop(&p), 0);
	box_remove(&b);
	NO_LEAKS();
}

EACH_DAEMON(killed_it_starts_again)
{
	const struct daemon_row *row = &daemon_rows[*row_idx];
	struct box b;
	struct proc p, again;
	struct caller c;
	char text[4096];
	box_make(&b);
	proc_run(&b, row, NULL, &p);
	proc_signal(&p, SIGKILL);
	cr_assert(proc_wait(&p, 10000));
	cr_expect_eq(p.code, 128 + SIGKILL);
	proc_run(&b, row, NULL, &again);
	cr_expect_str_neq(p.instance, again.instance, "L2");
	cr_expect_eq(http_get(again.http, "GET", "/healthz", text, sizeof(text), NULL), 200);
	caller_open(&c, &b, again.rpc, ROLE_SERVICE, row->def->role);
	cr_expect_eq(caller_call(&c, METHOD_VERSION, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_NONE, "the socket a dead run left is replaced");
	caller_close(&c);
	cr_expect_eq(proc_stop(&again), 0);
	box_remove(&b);
	NO_LEAKS();
}

EACH_DAEMON(a_wrong_secret_is_refused)
{
	const struct daemon_row *row = &daemon_rows[*row_idx];
	struct box b, other;
	struct proc p;
	struct caller c;
	struct why why = { 0 };
	box_make(&b);
	box_make(&other);
	proc_run(&b, row, NULL, &p);
	caller_open(&c, &other, p.rpc, ROLE_ADMIN, row->def->role);
	enum err e = caller_call(&c, METHOD_STATUS, BYTES(NULL, 0), 3000, NULL, &why);
	cr_expect_eq(e, ERR_UNAUTHENTICATED, "%s: %s", err_name(e), why.text);
	caller_close(&c);
	cr_expect_eq(proc_stop(&p), 0);
	box_remove(&b);
	box_remove(&other);
	NO_LEAKS();
}

/* ---- roles ---- */

Test(daemons, a_client_may_look_but_not_stop)
{
	struct box b;
	struct proc p;
	struct caller c;
	box_make(&b);
	proc_run(&b, daemon_row("planner"), NULL, &p);
	caller_open(&c, &b, p.rpc, ROLE_CLIENT, ROLE_SERVICE);
	cr_expect_eq(caller_call(&c, METHOD_VERSION, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_NONE);
	cr_expect_eq(caller_call(&c, METHOD_STATUS, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_NONE);
	cr_expect_eq(caller_call(&c, METHOD_DRAIN, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_FORBIDDEN);
	cr_expect_eq(caller_call(&c, METHOD_CONFIG, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_FORBIDDEN);
	cr_expect_eq(caller_call(&c, METHOD_LOG_LEVEL, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_FORBIDDEN);
	cr_expect_eq(caller_call(&c, 9999, BYTES(NULL, 0), 5000, NULL, NULL),
		     ERR_UNKNOWN_METHOD);
	caller_close(&c);
	cr_expect_eq(proc_stop(&p), 0);
	box_remove(&b);
	NO_LEAKS();
}

Test(daemons, drain_by_request_ends_the_process)
{
	struct box b;
	struct proc p;
	struct caller c;
	box_make(&b);
	proc_run(&b, daemon_row("planner"), NULL, &p);
	caller_open(&c, &b, p.rpc, ROLE_ADMIN, ROLE_SERVICE);
	cr_expect_eq(caller_call(&c, METHOD_DRAIN, BYTES(NULL, 0), 5000, NULL, NULL), ERR_NONE);
	cr_assert(proc_wait(&p, 10000));
	cr_expect_eq(p.code, 0);
	caller_close(&c);
	box_remove(&b);
	NO_LEAKS();
}

Test(daemons, the_log_level_changes_at_run_time)
{
	struct box b;
	struct proc p;
	struct caller c;
	struct buf body = BUF_INIT(64), r = BUF_INIT(64);
	struct msg_log_level_rep rep;
	box_make(&b);
	proc_run(&b, daemon_row("planner"), NULL, &p);
	caller_open(&c, &b, p.rpc, ROLE_ADMIN, ROLE_SERVICE);
	enc_log_level_req(&body, &(struct msg_log_level_req){ .level = BYTES_STR("debug") });
	cr_expect_eq(caller_call(&c, METHOD_LOG_LEVEL, buf_bytes(&body), 5000, &r, NULL),
		     ERR_NONE);
	struct dec d = DEC_INIT(buf_bytes(&r), NULL, NULL);
	cr_assert_eq(dec_log_level_rep(&d, &rep), ERR_NONE);
	cr_expect_eq(memcmp(rep.level.p, "info", rep.level.n), 0);
	buf_clear(&r);
	cr_expect_eq(caller_call(&c, METHOD_LOG_LEVEL, BYTES(NULL, 0), 5000, &r, NULL),
		     ERR_NONE);
	d = DEC_INIT(buf_bytes(&r), NULL, NULL);
	cr_assert_eq(dec_log_level_rep(&d, &rep), ERR_NONE);
	cr_expect_eq(memcmp(rep.level.p, "debug", rep.level.n), 0);
	buf_clear(&body);
	enc_log_level_req(&body, &(struct msg_log_level_req){ .level = BYTES_STR("loud") });
	cr_expect_eq(caller_call(&c, METHOD_LOG_LEVEL, buf_bytes(&body), 5000, NULL, NULL),
		     ERR_INVALID_PARAMS);
	caller_close(&c);
	cr_expect_eq(proc_stop(&p), 0);
	buf_fini(&body);
	buf_fini(&r);
	box_remove(&b);
	NO_LEAKS();
}

/* ---- together ---- */

static bool peer_is(const struct proc *master, const char *peer_prefix, const char *state,
		    unsigned ms)
{
	static char text[1 << 20];
	char want[64];
	snprintf(want, sizeof(want), "state=\"%s\"} 1", state);
	for (unsigned t = 0; t < ms; t += 50) {
		http_get(master->http, "GET", "/metrics", text, sizeof(text), NULL);
		for (char *p = strstr(text, "pomelo_master_peer{"); p;
		     p = strstr(p + 1, "pomelo_master_peer{")) {
			char *nl = strchr(p, '\n');
			if (nl)
				*nl = 0;
			if (strstr(p, peer_prefix) && strstr(p, want))
				return true;
			if (nl)
				*nl = '\n';
		}
		usleep(50000);
	}
	return false;
}

Test(daemons, five_know_each_other)
{
	struct box b;
	struct proc p[N_DAEMONS];
	char text[8192];
	box_make(&b);
	for (size_t i = 0; i < N_DAEMONS; i++)
		proc_run(&b, &daemon_rows[i], NULL, &p[i]);
	for (size_t i = 0; i < N_DAEMONS; i++) {
		cr_expect(proc_http_until(&p[i], "/readyz", 200, 5000, text, sizeof(text)),
			  "%s", text);
		cr_expect(peer_is(&p[0], daemon_rows[i].name, "ready", 5000), "%s",
			  daemon_rows[i].name);
	}
	for (size_t i = N_DAEMONS; i-- > 0;)
		cr_expect_eq(proc_stop(&p[i]), 0);
	box_remove(&b);
	NO_LEAKS();
}

/* L1, B5: what is stopped is suspect within suspect_ms, and back with its next beat. */
Test(daemons, a_stopped_agent_is_suspect)
{
	static const char *const args[] = { "--set", "suspect_ms=600", "--set", "beat_ms=100",
					    NULL };
	struct box b;
	struct proc m, a;
	box_make(&b);
	proc_run(&b, daemon_row("master"), args, &m);
	proc_run(&b, daemon_row("agent"), args, &a);
	cr_expect(peer_is(&m, "agent", "ready", 5000));
	proc_signal(&a, SIGSTOP);
	cr_expect(peer_is(&m, "agent", "suspect", 5000));
	cr_expect(peer_is(&m, "master", "ready", 1000), "nobody else is");
	proc_signal(&a, SIGCONT);
	cr_expect(peer_is(&m, "agent", "ready", 5000));
	cr_expect_eq(proc_stop(&a), 0);
	cr_expect_eq(proc_stop(&m), 0);
	box_remove(&b);
	NO_LEAKS();
}

/* The master restarts; the agent is ready again without a restart of its own. */
Test(daemons, an_agent_outlives_its_master)
{
	static const char *const args[] = { "--set", "suspect_ms=600", "--set", "beat_ms=100",
					    NULL };
	struct box b;
	struct proc m, a;
	char text[8192];
	box_make(&b);
	proc_run(&b, daemon_row("master"), args, &m);
	proc_run(&b, daemon_row("agent"), args, &a);
	cr_expect(proc_http_until(&a, "/readyz", 200, 5000, text, sizeof(text)), "%s", text);
	proc_signal(&m, SIGKILL);
	cr_expect(proc_wait(&m, 10000));
	cr_expect(proc_http_until(&a, "/readyz", 503, 5000, text, sizeof(text)), "%s", text);
	proc_run(&b, daemon_row("master"), args, &m);
	cr_expect(proc_http_until(&a, "/readyz", 200, 5000, text, sizeof(text)), "%s", text);
	cr_expect(peer_is(&m, "agent", "ready", 5000));
	cr_expect_eq(proc_stop(&a), 0);
	cr_expect_eq(proc_stop(&m), 0);
	box_remove(&b);
	NO_LEAKS();
}

/* tcp, with beats over udp beside it: a second box joins by address. */
Test(daemons, an_agent_of_another_folder_joins_by_address)
{
	char listen[64], masters[64];
	struct box b, far;
	struct proc m, a;
	char text[8192];
	unsigned port = free_port();
	snprintf(listen, sizeof(listen), "--listen=tcp://127.0.0.1:%u", port);
	snprintf(masters, sizeof(masters), "--masters=tcp://127.0.0.1:%u", port);
	box_make(&b);
	box_make(&far);
	snprintf(text, sizeof(text), "cp '%s' '%s'", b.secret, far.secret);
	cr_assert_eq(system(text), 0);
	proc_run(&b, daemon_row("master"), (const char *const[]){ listen, NULL }, &m);
	proc_run(&far, daemon_row("agent"), (const char *const[]){ masters, NULL }, &a);
	cr_expect(proc_http_until(&a, "/readyz", 200, 5000, text, sizeof(text)), "%s", text);
	cr_expect(peer_is(&m, "agent", "ready", 5000));
	cr_expect_eq(proc_stop(&a), 0);
	cr_expect_eq(proc_stop(&m), 0);
	box_remove(&b);
	box_remove(&far);
	NO_LEAKS();
}

/* ---- the meta log ---- */

static uint64_t status_term(const struct box *b, const struct proc *p)
{
	struct caller c;
	struct buf r = BUF_INIT(1 << 20);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_status_rep st = { 0 };
	caller_open(&c, b, p->rpc, ROLE_CLIENT, p->row->def->role);
	cr_expect_eq(caller_call(&c, METHOD_STATUS, BYTES(NULL, 0), 5000, &r, NULL), ERR_NONE);
	struct dec d = DEC_INIT(buf_bytes(&r), &a, NULL);
	cr_expect_eq(dec_status_rep(&d, &st), ERR_NONE);
	caller_close(&c);
	buf_fini(&r);
	arena_fini(&a);
	return st.term;
}

Test(daemons, the_term_rises_with_each_run)
{
	static const char *const names[] = { "master", "pg" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct box b;
		struct proc p;
		char text[8192];
		uint64_t last = 0;
		box_make(&b);
		for (int k = 0; k < 4; k++) {
			proc_run(&b, daemon_row(names[i]), NULL, &p);
			cr_expect(proc_http_until(&p, "/readyz", 200, 5000, text, sizeof(text)),
				  "%s", text);
			uint64_t term = status_term(&b, &p);
			cr_expect_gt(term, last, "%s", names[i]);
			last = term;
			if (k % 2)
				proc_stop(&p);
			else
				proc_signal(&p, SIGKILL);
			cr_expect(proc_wait(&p, 10000));
		}
		box_remove(&b);
	}
	NO_LEAKS();
}

/* svc_meta.h I2: up, not ready, and /readyz says which bytes. */
Test(daemons, a_damaged_meta_log_is_a_reason_not_a_crash)
{
	struct box b;
	struct proc p;
	char text[8192], path[160];
	uint8_t junk[4096];
	box_make(&b);
	proc_run(&b, daemon_row("master"), NULL, &p);
	cr_expect(proc_http_until(&p, "/readyz", 200, 5000, text, sizeof(text)), "%s", text);
	cr_expect_eq(proc_stop(&p), 0);
	memset(junk, 0xa5, sizeof(junk));
	snprintf(path, sizeof(path), "%s/meta/master.log", b.dir);
	FILE *f = fopen(path, "r+e");
	cr_assert_not_null(f);
	fwrite(junk, 1, sizeof(junk), f);
	fclose(f);
	proc_run(&b, daemon_row("master"), NULL, &p);
	cr_expect(proc_http_until(&p, "/readyz", 503, 5000, text, sizeof(text)), "%s", text);
	cr_expect(strstr(text, "meta log: "), "%s", text);
	cr_expect_eq(http_get(p.http, "GET", "/healthz", text, sizeof(text), NULL), 200);
	cr_expect_eq(status_term(&b, &p), 0);
	cr_expect_eq(proc_stop(&p), 0);
	box_remove(&b);
	NO_LEAKS();
}

/* Two clusters share a box: the default HTTP port is taken, another one serves. */
Test(daemons, a_taken_default_port_is_no_error)
{
	struct box b, other;
	struct proc p, q;
	char text[4096];
	box_make(&b);
	box_make(&other);
	proc_run(&b, daemon_row("planner"), NULL, &p);
	proc_run(&other, daemon_row("planner"), NULL, &q);
	cr_expect_str_neq(p.http, q.http);
	cr_expect_eq(http_get(q.http, "GET", "/healthz", text, sizeof(text), NULL), 200);
	cr_expect_eq(proc_stop(&p), 0);
	cr_expect_eq(proc_stop(&q), 0);
	box_remove(&b);
	box_remove(&other);
	NO_LEAKS();
}

/* ---- wrong settings: one line with name, value, range, remedy; exit 2 ---- */

struct wrong {
	char arg[96], file[96], want[64];
	int code;
};

ParameterizedTestParameters(daemons, wrong_settings)
{
	static struct wrong rows[] = {
		{ "--beat-ms=5", "", "beat_ms", 2 },
		{ "--beat-ms=abc", "", "beat_ms", 2 },
		{ "--no-such=1", "", "--no-such", 2 },
		{ "--set=master.nope=1", "", "master.nope", 2 },
		{ "--set=beat_ms", "", "beat_ms", 2 },
		{ "--http-port=70000", "", "http_port", 2 },
		{ "--http-bind=localhost", "", "http.bind", 2 },
		{ "--log-level=loud", "", "log.level", 2 },
		{ "--workers=0", "", "workers", 2 },
		{ "--workers=-1", "", "workers", 2 },
		{ "--message-max=1GiB", "", "message_max", 2 },
		{ "--set=suspect_ms=600", "", "suspect_ms", 2 },
		{ "--set=holder_dead_ms=1000", "", "holder_dead_ms", 2 },
		{ "--listen=nonsense", "", "nonsense", 2 },
		{ "--listen=tcp://127.0.0.1:99999", "", "99999", 2 },
		{ "--listen=tcp://127.0.0.1:17600,tcp://127.0.0.1:17600", "", "17600", 5 },
		{ "--tls-cert=/x.pem", "", "tls_cert", 2 },
		{ "--secret-file=/nonexistent/secret", "", "/nonexistent/secret", 2 },
		{ "extra", "", "extra", 2 },
		{ "", "beat_ms = 5\n", "pomelo.conf:1", 2 },
		{ "", "beat_ms = 100\nbeat_ms = 200\n", "beat_ms", 2 },
		{ "", "nonsense\n", "pomelo.conf:1", 2 },
	};
	return cr_make_param_array(struct wrong, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct wrong *w, daemons, wrong_settings)
{
	struct box b;
	struct proc p;
	char text[65536];
	const char *args[] = { w->arg[0] ? w->arg : NULL, NULL };
	box_make(&b);
	if (w->file[0])
		box_write(&b, "pomelo.conf", w->file);
	proc_start(&b, daemon_row("master"), args, &p);
	cr_assert(proc_wait(&p, 20000), "%s: it runs", w->arg);
	proc_log(&p, text, sizeof(text));
	cr_expect_eq(p.code, w->code, "%s%s: exit %d: %s", w->arg, w->file, p.code, text);
	cr_expect(strstr(text, w->want), "%s%s: %s", w->arg, w->file, text);
	char *nl = strchr(text, '\n');
	cr_expect(nl && nl[1] == 0, "one line: %s", text);
	box_remove(&b);
	NO_LEAKS();
}

Test(daemons, no_secret_says_how_to_make_one)
{
	struct box b;
	struct proc p;
	char text[4096];
	box_make(&b);
	unlink(b.secret);
	proc_start(&b, daemon_row("master"), NULL, &p);
	cr_assert(proc_wait(&p, 20000));
	cr_expect_eq(p.code, 2);
	cr_expect(strstr(proc_log(&p, text, sizeof(text)), "pomelo secret new"), "%s", text);
	box_remove(&b);
	NO_LEAKS();
}

Test(daemons, a_secret_others_may_read_is_refused)
{
	struct box b;
	struct proc p;
	char text[4096];
	box_make(&b);
	chmod(b.secret, 0644);
	proc_start(&b, daemon_row("master"), NULL, &p);
	cr_assert(proc_wait(&p, 20000));
	cr_expect_eq(p.code, 6);
	cr_expect(strstr(proc_log(&p, text, sizeof(text)), b.secret), "%s", text);
	box_remove(&b);
	NO_LEAKS();
}

/* Mooncake's launch names (design section 8), in the ways its scripts write them. */
Test(daemons, mooncake_flags_are_understood)
{
	char port[16], flag[32], addr[64], text[8192];
	snprintf(port, sizeof(port), "%u", free_port());
	snprintf(flag, sizeof(flag), "--rpc_port=%s", port);
	snprintf(addr, sizeof(addr), "tcp://127.0.0.1:%s", port);
	const char *const ways[][5] = {
		{ flag, "--enable_offload=true", NULL },
		{ "--enable_offload", flag, NULL },
		{ "--rpc_port", port, "--enable_offload", NULL },
		{ "--enable_offload", "true", "--rpc_port", port, NULL },
	};
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		struct box b;
		struct proc p;
		struct caller c;
		box_make(&b);
		proc_run(&b, daemon_row("master"), ways[i], &p);
		caller_open(&c, &b, addr, ROLE_CLIENT, ROLE_SERVICE);
		cr_expect_eq(caller_call(&c, METHOD_VERSION, BYTES(NULL, 0), 5000, NULL, NULL),
			     ERR_NONE, "way %zu", i);
		caller_close(&c);
		cr_expect(strstr(proc_log(&p, text, sizeof(text)), "enable_offload"), "%s",
			  text);
		cr_expect_eq(proc_stop(&p), 0);
		box_remove(&b);
	}
	NO_LEAKS();
}

/* ---- words that start nothing ---- */

EACH_DAEMON(help_version_and_settings)
{
	static const struct {
		const char *args[3], *want, *also;
		int code;
	} rows[] = {
		{ { "--help" }, "usage: ", "beat_ms", 0 },
		{ { "-h" }, "usage: ", "secret_file", 0 },
		{ { "--help", "--nonsense" }, "usage: ", "", 0 },
		{ { "--version" }, POMELO_VERSION, "", 0 },
		{ { "--show-config", "--beat-ms=123" }, "123", "flag --beat-ms", 0 },
		{ { "--show-config", "--beat-ms=1" }, "beat_ms", "20..60000", 2 },
	};
	const struct daemon_row *row = &daemon_rows[*row_idx];
	char text[65536];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct box b;
		struct proc p;
		char path[96];
		box_make(&b);
		proc_start(&b, row, rows[i].args, &p);
		cr_assert(proc_wait(&p, 10000), "%s", rows[i].args[0]);
		proc_log(&p, text, sizeof(text));
		cr_expect_eq(p.code, rows[i].code, "%s: %d", rows[i].args[0], p.code);
		cr_expect(strstr(text, rows[i].want) && strstr(text, rows[i].also), "%s: %s",
			  rows[i].args[0], text);
		snprintf(path, sizeof(path), "%s/run", b.dir);
		cr_expect_neq(access(path, F_OK), 0, "nothing was made");
		box_remove(&b);
	}
	NO_LEAKS();
}
