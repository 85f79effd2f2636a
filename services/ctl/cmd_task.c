/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo drain`, `tasks`, `task cancel`: the master's long work. A task goes on by itself; who waits for it
 * only looks.
 */
#include "pml_task.h"
#include "print.h"
#include "store.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { LOOK_MS = 250, BAR = 24, ID_TEXT = 17 };
#define LAST_LOOK_MS 1000u /* at the deadline: how far it is then */

static const char *id_text(char out[ID_TEXT], uint64_t id)
{
	snprintf(out, ID_TEXT, "%016" PRIx64, id);
	return out;
}

/* 1 to 16 hexadecimal digits, as they are shown. */
static enum err read_id(struct cli *c, const char *s, uint64_t *id)
{
	char *end = NULL;
	size_t n = strlen(s);
	*id = n >= 1 && n <= 16 && strspn(s, "0123456789abcdefABCDEF") == n
		      ? strtoull(s, &end, 16)
		      : 0;
	if (*id == 0)
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"%.40s: no id of a task; it has up to 16 hexadecimal digits, and "
			"`pomelo tasks` shows them",
			s);
	return ERR_NONE;
}

/* Those of the command line. owned, free(). */
static enum err read_ids(struct cli *c, uint64_t **ids)
{
	uint64_t *v = calloc((size_t)MAX_OF(c->n_args, 1), sizeof(*v));
	if (!v)
		return why_set(&c->why, ERR_NO_MEMORY, "no memory for the ids");
	for (int i = 0; i < c->n_args; i++) {
		enum err e = read_id(c, c->args[i], &v[i]);
		if (e != ERR_NONE) {
			free(v);
			return e;
		}
	}
	*ids = v;
	return ERR_NONE;
}

/* ---- how tasks go ---- */

static void task_json(struct json *j, const struct pml_task *t)
{
	char id[ID_TEXT];
	json_kv_str(j, "id", id_text(id, t->id));
	json_kv_str(j, "kind", t->kind);
	json_kv_str(j, "state", t->state);
	json_kv_str(j, "from", t->from);
	json_kv_str(j, "to", t->to);
	json_kv_u64(j, "done", t->done);
	json_kv_u64(j, "total", t->total);
	json_kv_u64(j, "failed", t->failed);
	json_kv_u64(j, "bytes_done", t->bytes_done);
	json_kv_u64(j, "bytes_total", t->bytes_total);
	json_kv_u64(j, "age_ms", t->age_ms);
	json_kv_str(j, "text", t->text);
}

static void tasks_json(struct cli *c, const struct pml_op *op)
{
	struct buf b = BUF_INIT(16 << 20);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_key(&j, "tasks");
	json_arr(&j);
	for (size_t i = 0; i < pml_op_n_tasks(op); i++) {
		struct pml_task t = PML_TASK_INIT;
		json_obj(&j);
		if (pml_op_task(op, i, &t) == PML_ERR_NONE)
			task_json(&j, &t);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	print_json(c, &b);
}

static void tasks_table(struct cli *c, const struct pml_op *op)
{
	static const char *const heads[] = { "task",  ">age", "kind",	"state",   "from", "to",
					     ">done", ">of",  ">bytes", ">failed", "" };
	struct print_table tab;
	print_table_init(&tab, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < pml_op_n_tasks(op); i++) {
		struct pml_task t = PML_TASK_INIT;
		char id[ID_TEXT], age[24], done[24], total[24], bytes[32], failed[24];
		if (pml_op_task(op, i, &t) != PML_ERR_NONE)
			continue;
		snprintf(done, sizeof(done), "%" PRIu64, t.done);
		snprintf(total, sizeof(total), "%" PRIu64, t.total);
		snprintf(failed, sizeof(failed), "%" PRIu64, t.failed);
		const char *cells[] = { id_text(id, t.id),
					print_age(age, sizeof(age), t.age_ms),
					t.kind,
					t.state,
					t.from,
					t.to,
					done,
					total,
					print_bytes(bytes, sizeof(bytes), t.bytes_done),
					failed,
					t.text };
		print_table_row(&tab, cells);
	}
	if (pml_op_n_tasks(op) == 0)
		fputs("no task runs or has ended lately\n", c->out);
	else
		print_table_put(&tab, c->out);
	print_table_fini(&tab);
}

int cmd_tasks(struct cli *c)
{
	struct store s;
	uint64_t *ids = NULL;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	enum err e = read_ids(c, &ids);
	int code = e == ERR_NONE ? store_open(c, &s) : cli_exit_of(e);
	if (e == ERR_NONE && code == EXIT_OK_) {
		o.deadline_ms = store_left_ms(&s);
		if (pml_task_status(s.p, ids, (size_t)c->n_args, &o, &op, &err) != PML_ERR_NONE)
			code = store_fail(&s, &err);
		else if (c->json)
			tasks_json(c, op);
		else
			tasks_table(c, op);
		pml_op_free(op);
		store_close(&s);
	}
	free(ids);
	return code;
}

/* ---- cancel ---- */

int cmd_task_cancel(struct cli *c)
{
	struct store s;
	uint64_t *ids = NULL;
	int n_failed = 0;
	enum err e = read_ids(c, &ids);
	int code = e == ERR_NONE ? store_open(c, &s) : cli_exit_of(e);
	bool open = e == ERR_NONE && code == EXIT_OK_;
	for (int i = 0; open && i < c->n_args; i++) {
		struct pml_call_opts o = PML_CALL_OPTS_INIT;
		struct pml_error err = PML_ERROR_INIT;
		o.deadline_ms = store_left_ms(&s);
		if (pml_task_cancel(s.p, ids[i], &o, &err) != PML_ERR_NONE) {
			code = store_fail(&s, &err);
			n_failed++;
		} else if (!c->json) {
			fprintf(c->out, "%s is cancelled; what it has copied stays\n",
				c->args[i]);
		}
	}
	if (open && n_failed == 0 && c->json)
		fprintf(c->out, "{\"cancelled\":%d}\n", c->n_args);
	if (open)
		store_close(&s);
	free(ids);
	return n_failed > 0 && n_failed < c->n_args ? EXIT_SOME_ : code;
}

/* ---- drain ---- */

struct drain {
	struct store s;
	const char *node;
	uint64_t id;
	struct pml_op *op; /* holds the texts of task */
	struct pml_task task;
	bool drained;
};

/* How it goes. A master that restarts is waited for by the library; TASK_LOST then. */
static int look(struct drain *d, struct pml_error *err)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	pml_op_free(d->op);
	d->op = NULL;
	d->task = (struct pml_task)PML_TASK_INIT;
	o.deadline_ms = d->s.c->deadline_given ? MAX_OF(store_left_ms(&d->s), LAST_LOOK_MS)
					       : CLI_DEADLINE_MS;
	int e = pml_task_status(d->s.p, &d->id, 1, &o, &d->op, err);
	if (e == PML_ERR_NONE)
		e = pml_op_task(d->op, 0, &d->task);
	return e;
}

static bool over(const struct drain *d)
{
	return strcmp(d->task.state, "queued") != 0 && strcmp(d->task.state, "running") != 0;
}

static void show(struct drain *d)
{
	const struct pml_task *t = &d->task;
	char bar[BAR + 1], done[32], total[32];
	uint64_t all = MAX_OF(t->total, (uint64_t)1);
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)(MIN_OF(t->done, all) * BAR / all));
	bar[BAR] = '\0';
	print_progress(d->s.c,
		       "[%s] %3d %%  %" PRIu64 " of %" PRIu64 " objects, %s of %s%s%.60s", bar,
		       (int)(MIN_OF(t->done, all) * 100 / all), t->done, t->total,
		       print_bytes(done, sizeof(done), t->bytes_done),
		       print_bytes(total, sizeof(total), t->bytes_total),
		       t->text[0] ? "; " : "", t->text);
}

/* What the roster says of it: the proof, beside the task's own word. */
static void ask_roster(struct drain *d)
{
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	o.deadline_ms = CLI_DEADLINE_MS;
	if (pml_holders(d->s.p, &o, &op, NULL) != PML_ERR_NONE)
		return;
	for (size_t i = 0; i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		if (pml_op_holder(op, i, &h) == PML_ERR_NONE && strcmp(h.id, d->node) == 0)
			d->drained = strcmp(h.state, "drained") == 0;
	}
	pml_op_free(op);
}

static void drain_json(struct drain *d)
{
	struct buf b = BUF_INIT(65536);
	struct json j = JSON_OUT(&b);
	char id[ID_TEXT];
	json_obj(&j);
	json_kv_str(&j, "holder", d->node);
	json_kv_bool(&j, "drained", d->drained);
	if (d->op)
		task_json(&j, &d->task);
	else
		json_kv_str(&j, "id", id_text(id, d->id));
	json_end(&j);
	print_json(d->s.c, &b);
}

/* It goes on without us. */
static int leave(struct drain *d)
{
	char id[ID_TEXT];
	print_progress_end(d->s.c);
	fprintf(d->s.c->err,
		"pomelo: the drain goes on; `pomelo tasks %s` shows it, `pomelo task cancel %s` ends "
		"it\n",
		id_text(id, d->id), id_text(id, d->id));
	if (d->s.c->json)
		drain_json(d);
	return EXIT_INTERRUPTED_;
}

static int ended(struct drain *d)
{
	struct cli *c = d->s.c;
	const struct pml_task *t = &d->task;
	char bytes[32];
	print_progress_end(c);
	ask_roster(d);
	if (strcmp(t->state, "done") != 0)
		return cli_fail(c,
				strcmp(t->state, "cancelled") == 0 ? ERR_CONFLICT
								   : ERR_INTERNAL,
				"%.64s: the drain was %s after %" PRIu64 " of %" PRIu64
				" objects%s%.200s",
				d->node, t->state, t->done, t->total, t->text[0] ? ": " : "",
				t->text);
	if (c->json)
		drain_json(d);
	else
		fprintf(c->out,
			"%s is %s: %" PRIu64
			" objects, %s, are elsewhere; it may be stopped, then "
			"`pomelo forget %s`\n",
			d->node, d->drained ? "drained" : "drained, by the task", t->done,
			print_bytes(bytes, sizeof(bytes), t->bytes_done), d->node);
	return EXIT_OK_;
}

/* Until it is over; with --deadline no longer than that, and it goes on then, too. */
static int follow(struct drain *d)
{
	struct cli *c = d->s.c;
	struct pml_error err = PML_ERROR_INIT;
	if (ctl_catch_interrupt(&d->s.interrupt_fd) != ERR_NONE)
		d->s.interrupt_fd = -1;
	for (;;) {
		char id[ID_TEXT];
		if (look(d, &err) != PML_ERR_NONE)
			break;
		if (over(d))
			return ended(d);
		show(d);
		if (c->deadline_given && ctl_now_ns() >= d->s.deadline_ns)
			return cli_fail(c, ERR_TIMED_OUT,
					"%.64s: %" PRIu64 " of %" PRIu64
					" objects are elsewhere; it goes "
					"on: `pomelo tasks %s`",
					d->node, d->task.done, d->task.total,
					id_text(id, d->id));
		if (ctl_wait(d->s.interrupt_fd, -1, LOOK_MS) == ERR_CANCELLED)
			return leave(d);
	}
	if (err.code == PML_ERR_TASK_LOST)
		return cli_fail(
			c, ERR_TASK_LOST,
			"%.64s: the master was restarted, and the drain with it ended; begin "
			"again: what was moved stays moved",
			d->node);
	return store_fail(&d->s, &err);
}

int cmd_drain(struct cli *c)
{
	struct drain d = { .node = c->args[0], .task = PML_TASK_INIT };
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	char id[ID_TEXT];
	int code = store_open(c, &d.s);
	if (code != EXIT_OK_)
		return code;
	o.deadline_ms = store_left_ms(&d.s);
	int e = pml_drain(d.s.p, d.node, &o, &d.id, &err);
	if (e == PML_ERR_NOT_FOUND)
		code = cli_fail(c, ERR_NOT_FOUND,
				"%.64s: no such holder; `pomelo status` shows them", d.node);
	else if (e != PML_ERR_NONE)
		code = store_fail(&d.s, &err);
	else if (!cli_has(c, "--no-wait"))
		code = follow(&d);
	else if (c->json)
		drain_json(&d);
	else
		fprintf(c->out, "task %s drains %s; `pomelo tasks %s` shows how far it is\n",
			id_text(id, d.id), d.node, id_text(id, d.id));
	pml_op_free(d.op);
	store_close(&d.s);
	return code;
}
