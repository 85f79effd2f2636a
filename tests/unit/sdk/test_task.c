/* SPDX-License-Identifier: Apache-2.0 */
/* pml_task.h: what is asked, as whom, and what comes back, over real sockets. What a task does is the master's. */
#include "pml_task.h"
#include "store_fix.h"

#include <stdio.h>
#include <string.h>

TestSuite(task, .timeout = 60);

#define REFUSED(call) cr_expect_eq(call, PML_ERR_INVALID_PARAMS, "%s", #call)

/* What the master was asked last. The server thread's; read when the call is over. */
static struct {
	uint32_t method, kind, replica_num, n_keys, n_ids, starts;
	uint64_t ids[4];
	char from[65], to[65], key[2][8];
	bool admin, lost;
} seen;

static void text(char *out, size_t size, struct bytes b)
{
	snprintf(out, size, "%.*s", (int)b.n, (const char *)b.p);
}

static void reply(struct rpc_req *r, struct buf *b)
{
	rpc_reply(r, ERR_NONE, 0, buf_bytes(b));
	buf_fini(b);
}

static void on_start(struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_task_start_req q;
	struct buf b = BUF_INIT(64);
	cr_assert_eq(dec_task_start_req(&d, &q), ERR_NONE);
	seen.kind = q.kind;
	seen.replica_num = q.replica_num;
	seen.n_keys = (uint32_t)q.keys.n;
	for (size_t i = 0; i < MIN_OF(q.keys.n, (size_t)2); i++)
		text(seen.key[i], sizeof(seen.key[i]), q.keys.p[i]);
	text(seen.from, sizeof(seen.from), q.from);
	text(seen.to, sizeof(seen.to), q.to);
	seen.starts++;
	if (seen.lost) { /* as when the connection breaks */
		rpc_reply(r, ERR_CONN_LOST, 0, BYTES("", 0));
		arena_fini(&a);
		return;
	}
	enc_task_start_rep(&b, &(struct msg_task_start_rep){ .id = 4711 });
	reply(r, &b);
	arena_fini(&a);
}

static void on_ids(struct rpc_req *r, uint32_t method)
{
	static const struct msg_task tasks[] = {
		{ .id = 7,
		  .kind = 3,
		  .state = 2,
		  .from = { (const uint8_t *)"agent-2", 7 },
		  .done = 10,
		  .total = 20,
		  .failed = 1,
		  .bytes_done = 100,
		  .bytes_total = 200,
		  .age_ms = 5,
		  .text = { (const uint8_t *)"waits", 5 } },
		{ .id = 9, .kind = 99, .state = 77 },
	};
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_tasks_req q;
	struct buf b = BUF_INIT(4096);
	cr_assert_eq(dec_tasks_req(&d, &q), ERR_NONE);
	seen.n_ids = (uint32_t)q.ids.n;
	for (size_t i = 0; i < MIN_OF(q.ids.n, (size_t)4); i++)
		seen.ids[i] = q.ids.p[i];
	if (method == METHOD_TASK_CANCEL) {
		w_reply_results(r, q.ids.n, seen.lost ? ERR_TASK_LOST : ERR_NONE, 0);
	} else if (seen.lost) {
		rpc_reply(r, ERR_TASK_LOST, 0, BYTES("", 0));
	} else {
		enc_tasks_rep(&b, &(struct msg_tasks_rep){ .tasks = { tasks, 2 } });
		reply(r, &b);
	}
	buf_fini(&b);
	arena_fini(&a);
}

static bool answer(struct fake *f, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_TASK_START && method != METHOD_TASKS &&
	    method != METHOD_TASK_CANCEL)
		return false;
	seen.method = method;
	seen.admin = r->peer->role == ROLE_ADMIN;
	if (method == METHOD_TASK_START)
		on_start(r);
	else
		on_ids(r, method);
	return true;
}

static void task_fix(struct fix *x)
{
	memset(&seen, 0, sizeof(seen));
	fix_open(x);
	x->f->on = answer;
}

static struct pml_item item(const char *key)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = key;
	it.key_bytes = strlen(key);
	return it;
}

Test(task, starts)
{
	struct fix x;
	struct pml_task_opts o = PML_TASK_OPTS_INIT;
	struct pml_item it[2] = { item("a"), item("bc") };
	uint64_t id = 0;
	task_fix(&x);
	o.replica_num = 3;
	o.to = "agent-3";
	cr_expect_eq(pml_copy(x.p, it, 2, &o, &id, &x.err), 0, "%s", x.err.text);
	cr_expect(id == 4711 && seen.kind == 1 && seen.replica_num == 3 && seen.n_keys == 2);
	cr_expect(!seen.admin && strcmp(seen.to, "agent-3") == 0 && seen.from[0] == '\0');
	cr_expect(strcmp(seen.key[0], "a") == 0 && strcmp(seen.key[1], "bc") == 0);
	o.from = "agent-1";
	cr_expect_eq(pml_move(x.p, it, 1, &o, &id, &x.err), 0, "%s", x.err.text);
	cr_expect(seen.kind == 2 && strcmp(seen.from, "agent-1") == 0 && seen.n_keys == 1);
	cr_expect_eq(pml_prefetch(x.p, it, 1, NULL, &id, &x.err), 0, "%s", x.err.text);
	cr_expect(seen.kind == 4 && seen.replica_num == 0);
	cr_expect_eq(pml_drain(x.p, "agent-2", NULL, &id, &x.err), 0, "%s", x.err.text);
	cr_expect(seen.kind == 3 && seen.admin && seen.n_keys == 0);
	cr_expect_str_eq(seen.from, "agent-2");
	fix_close(&x);
	NO_LEAKS();
}

Test(task, status)
{
	struct fix x;
	struct pml_op *op = NULL;
	struct pml_task t = PML_TASK_INIT;
	uint64_t ids[] = { 7, 9 };
	task_fix(&x);
	cr_assert_eq(pml_task_status(x.p, ids, 2, NULL, &op, &x.err), 0, "%s", x.err.text);
	cr_expect(seen.admin && seen.n_ids == 2 && seen.ids[0] == 7 && seen.ids[1] == 9);
	cr_expect_eq(pml_op_n_tasks(op), 2);
	cr_expect_eq(pml_op_task(op, 0, &t), 0);
	cr_expect(t.id == 7 && t.done == 10 && t.total == 20 && t.failed == 1);
	cr_expect(t.bytes_done == 100 && t.bytes_total == 200 && t.age_ms == 5);
	cr_expect(strcmp(t.kind, "drain") == 0 && strcmp(t.state, "running") == 0);
	cr_expect(strcmp(t.from, "agent-2") == 0 && t.to[0] == '\0' &&
		  strcmp(t.text, "waits") == 0);
	cr_expect_eq(pml_op_task(op, 1, &t), 0);
	cr_expect(strcmp(t.kind, "unknown") == 0 && strcmp(t.state, "unknown") == 0);
	REFUSED(pml_op_task(op, 2, &t));
	REFUSED(pml_op_task(op, 0, NULL));
	cr_expect_eq(pml_op_task_id(op), 0, "it started nothing");
	pml_op_free(op);
	cr_assert_eq(pml_task_status(x.p, NULL, 0, NULL, &op, &x.err), 0);
	cr_expect_eq(seen.n_ids, 0, "all of them");
	pml_op_free(op);
	seen.lost = true;
	cr_expect_eq(pml_task_status(x.p, ids, 1, NULL, &op, &x.err), PML_ERR_TASK_LOST);
	cr_expect_eq(pml_task_cancel(x.p, 7, NULL, &x.err), PML_ERR_TASK_LOST);
	seen.lost = false;
	cr_expect_eq(pml_task_cancel(x.p, 7, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect(seen.method == METHOD_TASK_CANCEL && seen.n_ids == 1 && seen.ids[0] == 7);
	fix_close(&x);
	NO_LEAKS();
}

/* Whether it runs is not known: it is not started a second time. */
Test(task, an_answer_that_is_lost)
{
	struct fix x;
	struct pml_item it = item("a");
	uint64_t id = 5;
	task_fix(&x);
	seen.lost = true;
	cr_expect_eq(pml_copy(x.p, &it, 1, NULL, &id, &x.err), PML_ERR_CONN_LOST);
	cr_expect(seen.starts == 1 && id == 5, "%u", seen.starts);
	fix_close(&x);
	NO_LEAKS();
}

Test(task, without_waiting)
{
	struct fix x;
	struct pml_item it = item("a");
	struct pml_cq *cq = NULL;
	struct pml_op *op[6] = { 0 }, *got[6];
	uint64_t ids[1] = { 7 };
	size_t n = 0;
	task_fix(&x);
	cr_assert_eq(pml_cq_new(x.p, 8, &cq, &x.err), 0);
	struct pml_task_opts o = PML_TASK_OPTS_INIT;
	o.from = "agent-1";
	cr_expect_eq(pml_copy_start(x.p, &it, 1, NULL, cq, &ids, &op[0], &x.err), 0);
	cr_expect_eq(pml_move_start(x.p, &it, 1, &o, cq, NULL, &op[1], &x.err), 0);
	cr_expect_eq(pml_prefetch_start(x.p, &it, 1, NULL, cq, NULL, &op[2], &x.err), 0);
	cr_expect_eq(pml_drain_start(x.p, "a", NULL, cq, NULL, &op[3], &x.err), 0);
	cr_expect_eq(pml_task_status_start(x.p, ids, 1, NULL, cq, NULL, &op[4], &x.err), 0);
	cr_expect_eq(pml_task_cancel_start(x.p, 7, NULL, cq, NULL, &op[5], &x.err), 0);
	ids[0] = 0; /* they were copied */
	while (n < 6)
		n += pml_cq_wait(cq, got + n, 6 - n, 10000);
	for (int i = 0; i < 6; i++) {
		cr_expect_eq(pml_op_code(op[i]), 0);
		cr_expect_eq(pml_op_task_id(op[i]), i < 4 ? 4711 : 0);
		cr_expect_eq(pml_op_n_tasks(op[i]), i == 4 ? 2 : 0);
		pml_op_free(op[i]);
	}
	cr_expect_eq(seen.starts, 4);
	pml_cq_free(cq);
	fix_close(&x);
	NO_LEAKS();
}

Test(task, refused)
{
	static const char long_id[] =
		"0123456789012345678901234567890123456789012345678901234567890123456789";
	struct fix x;
	struct pml_task_opts o = PML_TASK_OPTS_INIT, bad = { .size = 3 };
	struct pml_call_opts co = { .size = 3 };
	struct pml_item it = item("a"), empty = item("");
	struct pml_op *op = NULL;
	uint64_t id = 5;
	task_fix(&x);
	REFUSED(pml_copy(NULL, &it, 1, NULL, &id, &x.err));
	REFUSED(pml_copy(x.p, &it, 1, NULL, NULL, &x.err));
	REFUSED(pml_copy(x.p, NULL, 1, NULL, &id, &x.err));
	REFUSED(pml_copy(x.p, &it, 0, NULL, &id, &x.err));
	REFUSED(pml_copy(x.p, &it, 4097, NULL, &id, &x.err));
	REFUSED(pml_copy(x.p, &empty, 1, NULL, &id, &x.err));
	REFUSED(pml_copy(x.p, &it, 1, &bad, &id, &x.err));
	cr_expect(strstr(x.err.text, "PML_TASK_OPTS_INIT"), "%s", x.err.text);
	o.replica_num = 17;
	REFUSED(pml_copy(x.p, &it, 1, &o, &id, &x.err));
	o.replica_num = 1, o.to = long_id;
	REFUSED(pml_copy(x.p, &it, 1, &o, &id, &x.err));
	it.key = NULL;
	REFUSED(pml_prefetch(x.p, &it, 1, NULL, &id, &x.err));
	it = item("a");
	REFUSED(pml_move(x.p, &it, 1, NULL, &id, &x.err));
	cr_expect(strstr(x.err.text, "from"), "%s", x.err.text);
	REFUSED(pml_drain(NULL, "a", NULL, &id, &x.err));
	REFUSED(pml_drain(x.p, NULL, NULL, &id, &x.err));
	REFUSED(pml_drain(x.p, "", NULL, &id, &x.err));
	REFUSED(pml_drain(x.p, long_id, NULL, &id, &x.err));
	REFUSED(pml_drain(x.p, "a", &co, &id, &x.err));
	REFUSED(pml_drain(x.p, "a", NULL, NULL, &x.err));
	REFUSED(pml_task_status(NULL, &id, 1, NULL, &op, &x.err));
	REFUSED(pml_task_status(x.p, NULL, 1, NULL, &op, &x.err));
	REFUSED(pml_task_status(x.p, &id, 4097, NULL, &op, &x.err));
	REFUSED(pml_task_status(x.p, &id, 1, NULL, NULL, &x.err));
	REFUSED(pml_task_status(x.p, &id, 1, &co, &op, &x.err));
	REFUSED(pml_task_cancel(NULL, 1, NULL, &x.err));
	REFUSED(pml_task_cancel_start(x.p, 1, NULL, NULL, NULL, NULL, &x.err));
	cr_expect_eq(pml_op_task_id(NULL), 0);
	cr_expect_eq(pml_op_n_tasks(NULL), 0);
	cr_expect(!op && id == 5 && seen.starts == 0);
	fix_close(&x);
	NO_LEAKS();
}

/* With a client's own key: its tasks are asked for as a client, and a drain is not its to ask. */
Test(task, a_clients_key)
{
	struct fix x;
	struct pml *q = NULL;
	struct pml_op *op = NULL;
	char path[128];
	uint64_t id;
	task_fix(&x);
	snprintf(path, sizeof(path), "%s/client.key", sdk_server_data(x.s));
	sdk_server_client_key(x.s, path);
	struct pml_open_opts o = sdk_server_opts(x.s);
	o.secret_file = path;
	cr_assert_eq(pml_open(&o, &q, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_drain(q, "a", NULL, &id, &x.err), PML_ERR_FORBIDDEN);
	cr_expect(strstr(x.err.text, "secret derive admin"), "%s", x.err.text);
	cr_assert_eq(pml_task_status(q, NULL, 0, NULL, &op, &x.err), 0, "%s", x.err.text);
	cr_expect(!seen.admin);
	pml_op_free(op);
	pml_close(q);
	fix_close(&x);
	NO_LEAKS();
}
