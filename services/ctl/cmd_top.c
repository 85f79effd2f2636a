/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo top`: what the services do now, again and again on a terminal, once elsewhere. Figures: top.h. */
#include "ctl.h"
#include "holders.h"
#include "print.h"
#include "store.h"
#include "top.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum {
	INTERVAL_MS = 2000,
	ONCE_MS = 1000,
	INTERVAL_MIN_MS = 100,
	INTERVAL_MAX_MS = 3600000,
	PAGE_MS = 1000
};

struct cmd_top {
	struct cli *c;
	struct where dir;
	bool once;
	uint64_t interval_ms;
	struct pml *p;		/* NULL: no handle yet */
	struct pml_op *holders; /* NULL: the master does not tell */
	struct top_reading was, now;
	struct top_report r;
};

/* ---- options ---- */

static enum err read_interval(struct cmd_top *t)
{
	const char *s = cli_value(t->c, "--interval");
	t->interval_ms = t->once ? ONCE_MS : INTERVAL_MS;
	if (!s)
		return ERR_NONE;
	if (!cli_time(s, INTERVAL_MAX_MS, &t->interval_ms) || t->interval_ms < INTERVAL_MIN_MS)
		return why_set(&t->c->why, ERR_INVALID_PARAMS,
			       "--interval %.40s: a time from 100ms to 1h is expected; write "
			       "500ms or 2s",
			       s);
	return ERR_NONE;
}

/* ---- reading ---- */

/* A master that is away is not waited for: the rest is shown without it. */
static void ask_holders(struct cmd_top *t)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	pml_op_free(t->holders);
	t->holders = NULL;
	o.deadline_ms = (uint32_t)MIN_OF(t->c->deadline_ms, (uint64_t)PAGE_MS);
	if (!t->p && ctl_open(t->c, &t->dir, &t->p, NULL) != PML_ERR_NONE)
		t->p = NULL;
	if (!t->p || pml_holders(t->p, &o, &t->holders, NULL) != PML_ERR_NONE)
		t->holders = NULL;
}

static bool look(struct cmd_top *t)
{
	size_t n = 0;
	t->was = t->now;
	top_read(t->dir.run, MIN_OF(t->c->deadline_ms, (uint64_t)PAGE_MS), &t->now);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		n += t->now.s[i].info.pid != 0;
	return n > 0;
}

/* ---- for people ---- */

/* "12,345", "3.2"; "" is a dash in a table: what is not known. */
static const char *text_rate(char *out, size_t size, double v)
{
	out[0] = '\0';
	if (isfinite(v))
		snprintf(out, size, v < 10 ? "%.1f" : "%.0f", v);
	return out;
}

/* Bounds of buckets: at most so much. */
static const char *text_us(char *out, size_t size, double us)
{
	out[0] = '\0';
	if (isfinite(us) && us < 1000)
		snprintf(out, size, "%.0f us", us);
	else if (isfinite(us))
		snprintf(out, size, "%.0f ms", us / 1000);
	return out;
}

static const char *state_of(const struct top_service *s)
{
	return s->info.pid == 0 ? "down"
	       : !s->told	? "no answer"
	       : s->ready > 0	? "ready"
				: "not ready";
}

static void put_services(const struct cmd_top *t)
{
	static const char *const heads[] = { "service",	    "state",	 ">memory",
					     ">requests/s", ">errors/s", ">busy/s",
					     ">p50 <=",	    ">p99 <=",	 ">loop late <=" };
	struct print_table tab;
	print_table_init(&tab, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct top_service *s = &t->now.s[i];
		const struct top_row *r = &t->r.s[i];
		char v[7][32] = { "" };
		if (isfinite(s->rss))
			print_bytes(v[0], sizeof(v[0]), (uint64_t)s->rss);
		const char *cells[] = { service_rows[i].name,
					state_of(s),
					v[0],
					text_rate(v[1], sizeof(v[1]), r->requests),
					text_rate(v[2], sizeof(v[2]), r->errors),
					text_rate(v[3], sizeof(v[3]), r->busy),
					text_us(v[4], sizeof(v[4]), r->p50_us),
					text_us(v[5], sizeof(v[5]), r->p99_us),
					text_us(v[6], sizeof(v[6]), r->late_p99_us) };
		print_table_row(&tab, cells);
	}
	print_table_put(&tab, t->c->out);
	print_table_fini(&tab);
}

static void put_store(const struct cmd_top *t)
{
	static const char *const heads[] = { ">puts/s",	    ">look-ups/s",  ">hits",
					     ">removes/s",  ">evictions/s", ">in by tcp",
					     ">out by tcp", ">puts open",   ">waiting" };
	const double *m = t->r.m;
	char v[9][32] = { "" };
	struct print_table tab;
	print_table_init(&tab, heads, ARRAY_LEN(heads));
	text_rate(v[0], sizeof(v[0]), m[TOP_PUTS]);
	text_rate(v[1], sizeof(v[1]), m[TOP_HITS] + m[TOP_MISSES]);
	if (isfinite(t->r.hit_share))
		snprintf(v[2], sizeof(v[2]), "%.1f %%", 100 * t->r.hit_share);
	text_rate(v[3], sizeof(v[3]), m[TOP_REMOVES]);
	text_rate(v[4], sizeof(v[4]), m[TOP_EVICTIONS]);
	for (size_t i = 0; i < 2; i++) {
		char bytes[32];
		double x = m[i ? TOP_TCP_OUT : TOP_TCP_IN];
		if (isfinite(x))
			snprintf(v[5 + i], sizeof(v[0]), "%.20s/s",
				 print_bytes(bytes, sizeof(bytes), (uint64_t)x));
	}
	text_rate(v[7], sizeof(v[7]), m[TOP_ATTEMPTS]);
	text_rate(v[8], sizeof(v[8]), m[TOP_WAITING]);
	const char *cells[] = { v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8] };
	print_table_row(&tab, cells);
	fputc('\n', t->c->out);
	print_table_put(&tab, t->c->out);
	print_table_fini(&tab);
}

static void put_screen(const struct cmd_top *t)
{
	FILE *out = t->c->out;
	if (!t->once)
		fputs("\033[H\033[2J", out);
	fprintf(out, "pomelo top  %s, the last %.1f s%s\n\n", t->dir.path, t->r.seconds,
		t->once ? "" : "; Ctrl-C ends");
	put_services(t);
	put_store(t);
	fputc('\n', out);
	if (t->holders)
		holders_put(t->holders, out);
	else
		fputs("the master does not tell what holders have\n", out);
	fflush(out);
}

/* ---- for programs ---- */

static void kv(struct json *j, const char *key, double v)
{
	json_key(j, key);
	json_double(j, v);
}

static void service_json(struct json *j, const struct cmd_top *t, size_t i)
{
	const struct top_service *s = &t->now.s[i];
	const struct top_row *r = &t->r.s[i];
	json_obj(j);
	json_kv_str(j, "name", service_rows[i].name);
	json_kv_str(j, "state", state_of(s));
	json_kv_u64(j, "pid", (uint64_t)s->info.pid);
	kv(j, "rss_bytes", s->rss);
	kv(j, "requests_per_s", r->requests);
	kv(j, "errors_per_s", r->errors);
	kv(j, "busy_per_s", r->busy);
	kv(j, "p50_us", r->p50_us);
	kv(j, "p99_us", r->p99_us);
	kv(j, "loop_late_p99_us", r->late_p99_us);
	json_end(j);
}

static void store_json(struct json *j, const struct top_report *r)
{
	const double *m = r->m;
	json_key(j, "store");
	json_obj(j);
	kv(j, "objects", m[TOP_OBJECTS]);
	kv(j, "copies", m[TOP_COPIES]);
	kv(j, "bytes_used", m[TOP_USED]);
	kv(j, "bytes_total", m[TOP_TOTAL]);
	kv(j, "quarantine_bytes", m[TOP_QUARANTINE]);
	kv(j, "puts_open", m[TOP_ATTEMPTS]);
	kv(j, "calls_waiting", m[TOP_WAITING]);
	kv(j, "puts_per_s", m[TOP_PUTS]);
	kv(j, "lookups_per_s", m[TOP_HITS] + m[TOP_MISSES]);
	kv(j, "hit_share", r->hit_share);
	kv(j, "removes_per_s", m[TOP_REMOVES]);
	kv(j, "evictions_per_s", m[TOP_EVICTIONS]);
	kv(j, "tcp_in_bytes_per_s", m[TOP_TCP_IN]);
	kv(j, "tcp_out_bytes_per_s", m[TOP_TCP_OUT]);
	json_end(j);
}

static void put_json(const struct cmd_top *t)
{
	struct buf b = BUF_INIT(4 << 20);
	struct json j = JSON_OUT(&b);
	double rec = t->r.m[TOP_RECOVERING];
	json_obj(&j);
	kv(&j, "seconds", t->r.seconds);
	kv(&j, "term", t->r.m[TOP_TERM]);
	/* a master that does not tell may be recovering for all we know */
	json_kv_bool(&j, "recovering",
		     !t->holders || pml_op_recovering(t->holders) || !(rec == 0));
	json_key(&j, "services");
	json_arr(&j);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		service_json(&j, t, i);
	json_end(&j);
	store_json(&j, &t->r);
	holders_json(&j, t->holders);
	json_end(&j);
	print_json(t->c, &b);
}

/* ---- the run ---- */

/* The next interval; ERR_CANCELLED: Ctrl-C, which is how it ends. */
static enum err step(struct cmd_top *t, int interrupt_fd)
{
	enum err e = ctl_wait(interrupt_fd, -1, t->interval_ms);
	if (e != ERR_NONE)
		return e;
	if (!look(t))
		return why_set(&t->c->why, ERR_UNREACHABLE,
			       "nothing runs on the data folder %.200s any more", t->dir.path);
	ask_holders(t);
	top_between(&t->was, &t->now, &t->r);
	if (t->c->json)
		put_json(t);
	else
		put_screen(t);
	return ERR_NONE;
}

static bool all_ready(const struct cmd_top *t)
{
	size_t n = 0;
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		n += t->now.s[i].ready > 0;
	return n == SERVICE_COUNT;
}

static int run(struct cmd_top *t)
{
	int fd = -1;
	if (!look(t))
		return cli_fail(t->c, ERR_UNREACHABLE,
				"nothing runs on the data folder %.200s; `pomelo up` starts it",
				t->dir.path);
	enum err e = ctl_catch_interrupt(&fd);
	do
		e = e == ERR_NONE ? step(t, fd) : e;
	while (e == ERR_NONE && !t->once);
	if (fd >= 0)
		close(fd);
	if (e == ERR_CANCELLED) {
		t->c->why = (struct why){ 0 };
		return t->once ? EXIT_INTERRUPTED_ : EXIT_OK_;
	}
	return e != ERR_NONE ? cli_exit_of(e) : all_ready(t) ? EXIT_OK_ : EXIT_BUSY_;
}

int cmd_top(struct cli *c)
{
	struct cmd_top t = { .c = c };
	int fd = fileno(c->out);
	t.once = cli_has(c, "--once") || c->json || fd < 0 || !isatty(fd);
	enum err e = read_interval(&t);
	if (e == ERR_NONE)
		e = ctl_dirs(c, &t.dir);
	int code = e == ERR_NONE ? run(&t) : cli_exit_of(e);
	pml_op_free(t.holders);
	pml_close(t.p);
	return code;
}
