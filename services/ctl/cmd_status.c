/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo status` and `pomelo version`. Three sources, the nearer one wins: the services themselves
 * (libpomelo), the supervisor (states, restarts), the run folder (who is there at all).
 */
#include "ctl.h"
#include "holders.h"
#include "pml_store.h"
#include "print.h"
#include "up.h"

#include <inttypes.h>
#include <string.h>

struct row {
	struct up_service sup;		/* from the supervisor or the run folder */
	struct pml_service_status live; /* size 0: the service could not be asked */
};

struct status {
	struct cli *c;
	struct where dir;
	bool supervised;
	struct pml *p;
	struct pml_op *op, *holders; /* holders NULL: the master could not be asked */
	struct row rows[SERVICE_COUNT];
	uint64_t term;
	uint32_t n_ready, n_running;
};

struct pml_open_opts ctl_open_opts(const struct cli *c, const struct where *d)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	o.data = d->path;
	o.run_dir = d->run;
	o.secret_file = d->secret;
	o.tenant = c->tenant;
	o.deadline_ms = (uint32_t)MIN_OF(c->deadline_ms, (uint64_t)UINT32_MAX);
	return o;
}

int ctl_open(struct cli *c, const struct where *d, struct pml **out, struct pml_error *err)
{
	struct pml_open_opts o = ctl_open_opts(c, d);
	return pml_open(&o, out, err);
}

/* Without a supervisor: what the run folder says of processes that hold their pid files. */
static void look_without_supervisor(struct status *s)
{
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct up_service *u = &s->rows[i].sup;
		pid_t pid = 0;
		snprintf(u->name, sizeof(u->name), "%s", service_rows[i].name);
		snprintf(u->state, sizeof(u->state), "down");
		if (run_holder(s->dir.run, u->name, &pid) != ERR_NONE)
			continue;
		snprintf(u->state, sizeof(u->state), "running");
		if (run_read(s->dir.run, u->name, &u->info) != ERR_NONE || u->info.pid != pid)
			u->info = (struct run_info){ .pid = pid };
	}
}

static void ask_supervisor(struct status *s, uint64_t deadline_ns)
{
	struct why why = { 0 };
	struct up_view v;
	json_t *o = NULL;
	s->supervised = supc_status(s->dir.run, -1, deadline_ns, &o, &why) == ERR_NONE;
	if (!s->supervised) {
		look_without_supervisor(s);
		return;
	}
	up_view_read(o, &v);
	json_decref(o);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		s->rows[i].sup = v.services[i];
}

/* A master that does not tell shows as not ready by itself: no holders then. */
static void ask_holders(struct status *s, uint32_t deadline_ms)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	o.deadline_ms = MIN_OF(deadline_ms, 2000u);
	if (pml_holders(s->p, &o, &s->holders, NULL) != PML_ERR_NONE)
		s->holders = NULL;
}

/* Each service by itself; one that does not answer does not hold the others up past the deadline. */
static enum err ask_services(struct status *s)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	o.deadline_ms = (uint32_t)MIN_OF(s->c->deadline_ms, 5000);
	int e = ctl_open(s->c, &s->dir, &s->p, &err);
	if (e == PML_ERR_NONE)
		e = pml_status(s->p, NULL, &o, &s->op, &err);
	if (e != PML_ERR_NONE)
		return why_set(&s->c->why, (enum err)e, "%s", err.text);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		struct pml_service_status *l = &s->rows[i].live;
		l->size = sizeof(*l);
		if (pml_op_status(s->op, i, l) != PML_ERR_NONE || l->code != PML_ERR_NONE)
			l->size = 0;
		else
			s->n_ready += l->ready;
		s->term = MAX_OF(s->term, l->size ? l->term : 0);
	}
	if (s->rows[0].live.size)
		ask_holders(s, o.deadline_ms);
	return ERR_NONE;
}

static enum err gather(struct status *s)
{
	enum err e = ctl_dirs(s->c, &s->dir);
	if (e != ERR_NONE)
		return e;
	ask_supervisor(s, clock_after_ms(ctl_now_ns(), MIN_OF(s->c->deadline_ms, 5000)));
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		s->n_running += s->rows[i].sup.info.pid != 0;
	return s->n_running > 0 ? ask_services(s) : ERR_NONE;
}

static void drop(struct status *s)
{
	pml_op_free(s->op);
	pml_op_free(s->holders);
	pml_close(s->p);
}

/* ---- status ---- */

static const char *state_of(const struct row *r)
{
	if (!r->live.size)
		return r->sup.info.pid ? "no answer" : r->sup.state;
	return r->live.draining ? "draining" : r->live.ready ? "ready" : "not ready";
}

static const char *why_of(const struct row *r)
{
	if (r->live.size)
		return r->live.n_reasons ? r->live.reasons[0] : "";
	return r->sup.info.pid ? r->live.error : r->sup.last_exit;
}

static void put_table(const struct status *s)
{
	static const char *const heads[] = { "service", "state", ">pid", ">up", ">restarts",
					     ">memory", "http",	 "rpc",	 "" };
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct row *r = &s->rows[i];
		char pid[16] = "", up[24] = "", restarts[16] = "", rss[32] = "";
		if (r->sup.info.pid)
			snprintf(pid, sizeof(pid), "%d", r->sup.info.pid);
		if (s->supervised)
			snprintf(restarts, sizeof(restarts), "%u", r->sup.restarts);
		if (r->live.size) {
			print_age(up, sizeof(up), r->live.uptime_ms);
			print_bytes(rss, sizeof(rss), r->live.rss_bytes);
		}
		const char *cells[] = {
			r->sup.name,	  state_of(r),	      pid,	up, restarts, rss,
			r->sup.info.http, r->sup.info.rpc[0], why_of(r)
		};
		print_table_row(&t, cells);
	}
	print_table_put(&t, s->c->out);
	print_table_fini(&t);
}

static void service_json(struct json *j, const struct row *r)
{
	const struct pml_service_status *l = &r->live;
	json_obj(j);
	json_kv_str(j, "name", r->sup.name);
	json_kv_u64(j, "pid", l->size ? (uint64_t)l->pid : (uint64_t)r->sup.info.pid);
	json_kv_str(j, "instance", l->size ? l->instance : r->sup.info.instance);
	json_kv_bool(j, "ready", l->size && l->ready);
	json_key(j, "reasons");
	json_arr(j);
	for (size_t i = 0; l->size && i < l->n_reasons; i++)
		json_str(j, l->reasons[i]);
	if (!l->size)
		json_str(j, why_of(r)[0] ? why_of(r) : state_of(r));
	json_end(j);
	json_kv_u64(j, "restarts", r->sup.restarts);
	json_key(j, "rpc");
	json_arr(j);
	for (size_t i = 0; i < r->sup.info.n_rpc; i++)
		json_str(j, r->sup.info.rpc[i]);
	json_end(j);
	json_kv_str(j, "http", r->sup.info.http);
	json_kv_u64(j, "rss_bytes", l->size ? l->rss_bytes : 0);
	json_end(j);
}

/* The shape of answers.md. */
static void put_json(const struct status *s)
{
	struct buf b = BUF_INIT(4 << 20);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "version", POMELO_VERSION);
	json_kv_str(&j, "data", s->dir.path);
	json_kv_u64(&j, "term", s->term);
	/* a master that cannot be asked may be recovering for all we know */
	json_kv_bool(&j, "recovering", !s->holders || pml_op_recovering(s->holders));
	json_key(&j, "services");
	json_arr(&j);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		service_json(&j, &s->rows[i]);
	json_end(&j);
	holders_json(&j, s->holders);
	json_end(&j);
	print_json(s->c, &b);
}

int cmd_status(struct cli *c)
{
	struct status s = { .c = c };
	enum err e = gather(&s);
	if (e != ERR_NONE) {
		drop(&s);
		return cli_exit_of(e);
	}
	if (!c->json && s.n_running == 0)
		fprintf(c->out, "nothing runs on the data folder %s; `pomelo up` starts it\n",
			s.dir.path);
	else if (!c->json)
		put_table(&s);
	else
		put_json(&s);
	if (!c->json && s.holders && pml_op_n_holders(s.holders) > 0) {
		fputc('\n', c->out);
		holders_put(s.holders, c->out);
	}
	if (!c->json && s.n_running > 0 && !s.supervised)
		fprintf(c->out,
			"no supervisor: what dies stays dead; `pomelo up` adopts them\n");
	int code = s.n_ready == SERVICE_COUNT ? EXIT_OK_ : EXIT_BUSY_;
	drop(&s);
	return code;
}

/* ---- version ---- */

static void version_json(const struct status *s)
{
	struct buf b = BUF_INIT(65536);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "version", POMELO_VERSION);
	json_kv_str(&j, "library", pml_version());
	json_key(&j, "services");
	json_arr(&j);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		if (!s->rows[i].live.size)
			continue;
		json_obj(&j);
		json_kv_str(&j, "name", s->rows[i].sup.name);
		json_kv_str(&j, "version", s->rows[i].live.release);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	print_json(s->c, &b);
}

int cmd_version(struct cli *c)
{
	struct status s = { .c = c };
	bool differ = false;
	enum err e = gather(&s);
	if (e != ERR_NONE) {
		drop(&s);
		return cli_exit_of(e);
	}
	if (!c->json)
		fprintf(c->out, "pomelo %s\n", POMELO_VERSION);
	for (size_t i = 0; i < SERVICE_COUNT; i++) {
		const struct row *r = &s.rows[i];
		char text[64];
		if (!r->live.size)
			continue;
		differ |= strcmp(r->live.release, POMELO_VERSION) != 0;
		if (!c->json)
			fprintf(c->out, "%s %s\n", r->sup.name,
				print_clean(text, sizeof(text), r->live.release));
	}
	if (c->json)
		version_json(&s);
	drop(&s);
	return differ ? EXIT_TYPED_ : EXIT_OK_;
}
