/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's flows under a scripted master (boss.h), clients and commands from outside. */
#include "tests/sim/boss.h"
#include "tests/support/cluster_svc.h"
#include "tests/support/leak.h"
#include "tests/support/sim_alloc.h"

#include "base/sum.h"
#include "services/transfer-agent/agent.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const masters[] = { "sim://m0/master" };
static const char *const flags[] = {
	"--set", "agent.pool_size=4MiB",   "--set", "agent.segments=4",
	"--set", "agent.slots=4096",	   "--set", "agent.closed_max=16",
	"--set", "agent.register_ms=1000", "--set", "grace_ms=1000",
	NULL
};
static const struct cl_svc agent = { &xfa_def, masters, 1, flags };

struct world {
	struct cluster *c;
	struct boss *boss;
	struct ticket_key *key;
	struct msg_under under; /* as adopted */
};

static struct xfa *xfa(struct world *w)
{
	return xfa_of(cl_svc_of(w->c, "agent"));
}

static bool registered(void *arg)
{
	return ((struct world *)arg)->boss->n_register > 0;
}

/* ---- commands ---- */

static enum err command(struct world *w, uint32_t method, struct buf *body, struct buf *reply,
			struct why *why)
{
	struct cl_from from = { .node = "m1", .role = ROLE_SERVICE };
	enum err e = cl_call(w->c, from, "agent", method, buf_bytes(body), 2000, reply, why);
	buf_fini(body);
	return e;
}

static enum err adopt(struct world *w, uint64_t term, uint64_t adoption)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(256), reply = BUF_INIT(1 << 16);
	struct msg_adopt_rep m;
	enc_under(&body, &(struct msg_under){ .term = term, .adoption = adoption });
	enum err e = command(w, METHOD_ADOPT, &body, &reply, NULL);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
		cr_assert_eq(dec_adopt_rep(&d, &m), ERR_NONE);
		cr_assert(m.under);
		w->under = *m.under;
		w->boss->term = term;
	}
	arena_fini(&a);
	buf_fini(&reply);
	return e;
}

static enum err slots(struct world *w, uint32_t method, const struct msg_under *u,
		      struct msg_retire_item it)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct msg_results_rep m;
	enc_retire_req(&body, &(struct msg_retire_req){ .under = u, .items = { &it, 1 } });
	enum err e = command(w, method, &body, &reply, NULL);
	if (e == ERR_NONE) {
		struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
		cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
		cr_assert_eq(m.items.n, 1);
		e = (enum err)m.items.p[0].status;
	}
	arena_fini(&a);
	buf_fini(&reply);
	return e;
}

static uint8_t fence(struct world *w, uint64_t version, const struct msg_extent *x,
		     struct msg_fence_res *res)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct msg_fence_item it = { .version = version, .extents = { x, x ? 1 : 0 } };
	struct msg_fence_rep m;
	struct why why = { 0 };
	enc_fence_req(&body,
		      &(struct msg_fence_req){ .under = &w->under, .items = { &it, 1 } });
	enum err e = command(w, METHOD_FENCE, &body, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_fence_rep(&d, &m), ERR_NONE);
	cr_assert_eq(m.items.n, 1);
	*res = m.items.p[0];
	arena_fini(&a);
	buf_fini(&reply);
	return res->state;
}

struct entry {
	struct msg_entry m;
	char key[64];
	uint64_t offset;
};

struct inventory {
	struct entry e[512];
	size_t n, n_writing, n_pieces;
};

static uint64_t piece(struct world *w, uint64_t cursor, uint32_t bytes_max,
		      struct inventory *out)
{
	struct arena a = ARENA_INIT(8 << 20);
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(8 << 20);
	struct msg_inventory_rep m;
	struct why why = { 0 };
	enc_inventory_req(&body, &(struct msg_inventory_req){ &w->under, cursor, bytes_max });
	enum err e = command(w, METHOD_INVENTORY, &body, &reply, &why);
	cr_assert_eq(e, ERR_NONE, "%s", why.text);
	struct dec d = DEC_INIT(buf_bytes(&reply), &a, NULL);
	cr_assert_eq(dec_inventory_rep(&d, &m), ERR_NONE);
	cr_assert(m.under && m.under->pool_epoch == w->under.pool_epoch);
	for (size_t i = 0; i < m.entries.n; i++) {
		cr_assert_lt(out->n, ARRAY_LEN(out->e));
		struct entry *e1 = &out->e[out->n++];
		*e1 = (struct entry){ .m = m.entries.p[i] };
		snprintf(e1->key, sizeof(e1->key), "%.*s", (int)e1->m.key.n,
			 (const char *)e1->m.key.p);
		e1->offset = e1->m.extents.n ? e1->m.extents.p[0].offset : 0;
	}
	out->n_writing += m.writing.n;
	out->n_pieces++;
	arena_fini(&a);
	buf_fini(&reply);
	return m.cursor;
}

static void inventory(struct world *w, uint32_t bytes_max, struct inventory *out)
{
	uint64_t cursor = 0;
	*out = (struct inventory){ 0 };
	do
		cursor = piece(w, cursor, bytes_max, out);
	while (cursor != 0);
}

/* ---- a client ---- */

struct put {
	uint64_t version, size, sum, offset;
	uint32_t segment;
	char key[64];
	const char *tenant;
	uint64_t pool_epoch; /* 0: the present one */
	uint8_t op;	     /* 0: write */
	const uint8_t *pool; /* NULL: ours */
};

static struct put put_of(uint64_t version, uint64_t size, uint64_t offset)
{
	struct put p = { .version = version, .size = size, .offset = offset };
	snprintf(p.key, sizeof(p.key), "key-%llu", (unsigned long long)version);
	return p;
}

static void ticket(struct world *w, const struct put *p, struct buf *out)
{
	struct msg_extent x = { p->segment, p->offset, MAX_OF(obj_stored_bytes(p->size), 64u) };
	struct msg_put_opts opts = { .replica_num = 1, .hard_pin = true };
	struct msg_ticket t = { .op = p->op ? p->op : TICKET_WRITE,
				.tenant = BYTES_STR(p->tenant ? p->tenant : "default"),
				.term = w->under.term,
				.pool_epoch =
					p->pool_epoch ? p->pool_epoch : w->under.pool_epoch,
				.extents = { &x, p->size ? 1 : 0 },
				.size = p->size,
				.version = p->version,
				.attempt = p->version,
				.key = BYTES_STR(p->key),
				.opts = &opts };
	struct why why = { 0 };
	memcpy(t.pool, p->pool ? p->pool : w->boss->pool, 16);
	cr_assert_eq(ticket_mint(w->key, &t, out, &why), ERR_NONE, "%s", why.text);
}

static void *at(struct world *w, const struct put *p)
{
	struct extent x = { p->segment, p->offset, p->size };
	return mempool_at(xfa(w)->pool, &x);
}

/* The bytes, as a client writes them; and their sum. */
static void write_bytes(struct world *w, struct put *p)
{
	uint8_t *b = at(w, p);
	if (p->size)
		cr_assert(b);
	for (uint64_t i = 0; i < p->size; i++)
		b[i] = (uint8_t)(i * 31 + p->version);
	p->sum = obj_sum(b, p->size, NULL);
}

struct commit_call {
	struct rpc_call call;
	struct buf body, *tickets;
	struct msg_result res[64];
	char text[64][321];
	size_t n;
	enum err err;
	bool over;
};

static void on_committed(struct rpc_call *c)
{
	struct commit_call *x = container_of(c, struct commit_call, call);
	struct arena a = ARENA_INIT(1 << 20);
	struct msg_results_rep m;
	x->err = c->err;
	x->over = true;
	struct dec d = DEC_INIT(c->reply, &a, NULL);
	if (c->err == ERR_NONE) {
		cr_assert_eq(dec_results_rep(&d, &m), ERR_NONE);
		x->n = m.items.n;
		for (size_t i = 0; i < m.items.n && i < ARRAY_LEN(x->res); i++) {
			x->res[i] = m.items.p[i];
			snprintf(x->text[i], sizeof(x->text[i]), "%.*s",
				 (int)m.items.p[i].text.n, (const char *)m.items.p[i].text.p);
		}
	}
	arena_fini(&a);
	buf_fini(&x->body);
}

static void commit_send(struct world *w, const struct put *p, size_t n, uint32_t ms,
			struct commit_call *x)
{
	struct cl_from from = { .node = "c1", .role = ROLE_CLIENT };
	struct msg_commit_item items[64];
	struct buf t[64];
	struct loop *l;
	struct rpc_client *cl = cl_client(w->c, from, "agent", &l);
	cr_assert_leq(n, ARRAY_LEN(items));
	for (size_t i = 0; i < n; i++) {
		t[i] = BUF_INIT(TICKET_MAX);
		ticket(w, &p[i], &t[i]);
		items[i] = (struct msg_commit_item){ buf_bytes(&t[i]), p[i].sum };
	}
	*x = (struct commit_call){ .body = BUF_INIT(1 << 20) };
	enc_commit_req(&x->body, &(struct msg_commit_req){ .items = { items, n } });
	x->call = (struct rpc_call){ .method = METHOD_COMMIT,
				     .idempotent = true,
				     .body = buf_bytes(&x->body),
				     .deadline_ns = clock_after_ms(loop_now_ns(l), ms),
				     .done = on_committed };
	rpc_send(cl, &x->call);
	for (size_t i = 0; i < n; i++)
		buf_fini(&t[i]);
}

static bool is_over(void *arg)
{
	return ((struct commit_call *)arg)->over;
}

static enum err commit(struct world *w, const struct put *p, uint32_t ms, char text[321])
{
	struct commit_call x;
	commit_send(w, p, 1, ms, &x);
	cr_assert(cl_until(w->c, is_over, &x, ms + 2000));
	if (text)
		memcpy(text, x.text[0], 321);
	return x.err ? x.err : (enum err)x.res[0].status;
}

/* Writes and commits; it must go well. */
static struct put put(struct world *w, uint64_t version, uint64_t size, uint64_t offset)
{
	struct put p = put_of(version, size, offset);
	char text[321];
	write_bytes(w, &p);
	enum err e = commit(w, &p, 1000, text);
	cr_assert_eq(e, ERR_NONE, "%s: %s", err_name(e), text);
	return p;
}

/* ---- the fixture ---- */

static void open_world(struct world *w)
{
	*w = (struct world){ .boss = calloc(1, sizeof(*w->boss)) };
	w->c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = 1 });
	cl_add(w->c,
	       &(struct cl_member_opts){
		       .name = "master", .node = "m0", .app = &boss_app, .arg = w->boss });
	cl_add(w->c, &(struct cl_member_opts){ .name = "agent",
					       .node = "n1",
					       .app = &cl_svc_app,
					       .arg = (void *)&agent });
	w->boss->adopted = true;
	w->boss->term = 1;
	cr_assert(cl_start(w->c, "master"), "%s", cl_why(w->c, "master"));
	cr_assert(cl_start(w->c, "agent"), "%s", cl_why(w->c, "agent"));
	cr_assert(cl_until(w->c, registered, w, 3000), "it does not REGISTER");
	cr_assert_eq(ticket_key_new(cl_keys(w->c), w->boss->holder, &w->key), ERR_NONE);
	cr_assert_eq(adopt(w, 1, 1), ERR_NONE);
}

static void close_world(struct world *w)
{
	cl_close(w->c);
	ticket_key_free(w->key);
	free(w->boss);
	NO_LEAKS();
}

static uint64_t counter(struct world *w, unsigned id, unsigned cell)
{
	return metric_get(xfa(w)->svc.metrics, id, cell);
}

/* ---- REGISTER ---- */

static bool all_ready(void *arg)
{
	const struct boss *b = ((struct world *)arg)->boss;
	return b->total > 0 && b->ready == b->total;
}

Test(agent, registers_with_what_is_ready_and_again_when_it_grows, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cr_assert(cl_until(w.c, all_ready, &w, 3000), "%lu of %lu bytes",
		  (unsigned long)w.boss->ready, (unsigned long)w.boss->total);
	cr_assert_eq(w.boss->total, 4u << 20);
	cr_assert_eq(w.boss->n_segments, 4);
	cr_assert_str_eq(w.boss->host, "n1");
	cr_assert_str_eq(w.boss->addr, "sim://n1/agent");
	uint32_t n = w.boss->n_register;
	cl_run_ms(w.c, 3500);
	cr_assert_geq(w.boss->n_register, n + 3, "it tells of itself every register_ms");
	close_world(&w);
}

static bool more_registers(void *arg)
{
	struct world *w = arg;
	return w->boss->n_register > 0;
}

Test(agent, tells_a_new_master_at_once, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cl_kill(w.c, "master");
	cl_run_ms(w.c, 50);
	w.boss->n_register = 0;
	cr_assert(cl_start(w.c, "master"));
	cr_assert(cl_until(w.c, more_registers, &w, 900), "a lost connection is noticed");
	close_world(&w);
}

/* A master that starts again adopts from its roster before our connection is back. */
Test(agent, a_register_that_an_adoption_overtakes_tells_the_new_epoch, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cl_kill(w.c, "master");
	cl_run_ms(w.c, 1500);
	cr_assert(xfa(&w)->link.busy, "it tries");
	w.boss->n_register = 0;
	cr_assert_eq(adopt(&w, 2, 1), ERR_NONE);
	cr_assert(cl_start(w.c, "master"));
	cr_assert(cl_until(w.c, more_registers, &w, 5000));
	cr_assert_eq(w.boss->first_epoch, w.under.pool_epoch);
	close_world(&w);
}

static bool has_reason(struct world *w, const char *what)
{
	struct svc_reasons r;
	svc_reasons(&xfa(w)->svc, &r);
	for (size_t i = 0; i < r.n; i++)
		if (strstr(r.text[i], what))
			return true;
	return false;
}

Test(agent, says_why_it_is_not_ready, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cr_assert(!has_reason(&w, "adopted"));
	cr_assert(!has_reason(&w, "pool"));
	w.boss->adopted = false;
	w.boss->term = 7;
	cl_run_ms(w.c, 2500);
	cr_assert(has_reason(&w, "not adopted in the master's term 7"));
	cr_assert_eq(adopt(&w, 7, 1), ERR_NONE);
	cr_assert(!has_reason(&w, "adopted"));
	close_world(&w);
}

/* Its pool grows, the same master adopts it anew: that is no reason not to be ready. A master that goes on
 * saying no is one. */
Test(agent, stays_ready_while_the_same_master_adopts_it_anew, .timeout = 20)
{
	struct world w;
	open_world(&w);
	uint32_t n = w.boss->n_register;
	w.boss->adopted = false;
	while (w.boss->n_register < n + 2)
		cl_run_ms(w.c, 1);
	cl_run_ms(w.c, 5);
	cr_assert(!has_reason(&w, "adopted"));
	cl_run_ms(w.c, 8000);
	cr_assert(has_reason(&w, "not adopted in the master's term"));
	w.boss->adopted = true;
	cl_run_ms(w.c, 1500);
	cr_assert(!has_reason(&w, "adopted"));
	close_world(&w);
}

/* The master merges what it has in no time, or in a long one. */
Test(agent, asks_again_soon_until_it_is_adopted_then_seldom, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cr_assert(cl_until(w.c, all_ready, &w, 3000));
	w.boss->adopted = false;
	cl_run_ms(w.c, 1100); /* its next REGISTER is one of register_ms */
	uint32_t n = w.boss->n_register;
	cl_run_ms(w.c, 300);
	cr_assert_geq(w.boss->n_register, n + 1, "%u", w.boss->n_register - n);
	cl_run_ms(w.c, 5000);
	n = w.boss->n_register;
	cl_run_ms(w.c, 5000);
	cr_assert_leq(w.boss->n_register, n + 6, "%u", w.boss->n_register - n);
	w.boss->adopted = true;
	cl_run_ms(w.c, 1100);
	cr_assert(!has_reason(&w, "adopted"));
	w.boss->adopted = false;
	cr_assert_eq(adopt(&w, 8, 1), ERR_NONE);
	n = w.boss->n_register;
	cl_run_ms(w.c, 1300);
	cr_assert_geq(w.boss->n_register, n + 4, "soon again: %u", w.boss->n_register - n);
	close_world(&w);
}

/* ---- ADOPT (V9, V10) ---- */

Test(agent, adopts_once_and_refuses_what_is_lower, .timeout = 20)
{
	struct world w;
	open_world(&w);
	uint64_t epoch = w.under.pool_epoch;
	cr_assert_eq(adopt(&w, 1, 1), ERR_NONE);
	cr_assert_eq(w.under.pool_epoch, epoch, "an equal pair changes nothing (V10)");
	cr_assert_eq(adopt(&w, 1, 2), ERR_NONE);
	cr_assert_gt(w.under.pool_epoch, epoch);
	cr_assert_eq(adopt(&w, 1, 1), ERR_STALE_TERM);
	cr_assert_eq(xfa_def.pool_epoch(&xfa(&w)->svc), w.under.pool_epoch);
	struct buf body = BUF_INIT(64), reply = BUF_INIT(1024);
	enc_under(&body, &(struct msg_under){ .shard = 64, .term = 1, .adoption = 9 });
	cr_assert_eq(command(&w, METHOD_ADOPT, &body, &reply, NULL), ERR_INVALID_PARAMS);
	buf_fini(&reply);
	close_world(&w);
}

Test(agent, commands_of_another_adoption_change_nothing, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	open_world(&w);
	put(&w, version_make(1, 1), 100, 0);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 1);
	struct msg_under old = w.under, none = { .shard = 999 };
	struct msg_retire_item it = { .slot = inv.e[0].m.slot,
				      .generation = inv.e[0].m.generation,
				      .version = inv.e[0].m.version,
				      .reason = RETIRE_REMOVED };
	cr_assert_eq(adopt(&w, 2, 1), ERR_NONE);
	cr_assert_eq(slots(&w, METHOD_RETIRE, &old, it), ERR_STALE_TERM);
	old.term = 2;
	cr_assert_eq(slots(&w, METHOD_RETIRE, &old, it), ERR_STALE_EPOCH);
	cr_assert_eq(slots(&w, METHOD_RETIRE, &none, it), ERR_INVALID_PARAMS);
	cr_assert_eq(slots(&w, METHOD_RETIRE, NULL, it), ERR_BAD_MESSAGE);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.e[0].m.state, 1);
	close_world(&w);
}

/* ---- COMMIT ---- */

Test(agent, a_commit_is_published_marked_and_answered, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	open_world(&w);
	struct put p = put(&w, version_make(1, 7), 3000, 8192);
	cr_assert_eq(w.boss->n_items, 1);
	cr_assert_eq(w.boss->items[0].version, p.version);
	cr_assert_eq(w.boss->items[0].sum, p.sum);
	cr_assert(!w.boss->items[0].retired);
	cr_assert_eq(w.boss->under.pool_epoch, w.under.pool_epoch);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 1);
	cr_assert_eq(inv.e[0].m.version, p.version);
	cr_assert_eq(inv.e[0].m.size, 3000);
	cr_assert_eq(inv.e[0].m.sum, p.sum);
	cr_assert_eq(inv.e[0].offset, 8192);
	cr_assert_str_eq(inv.e[0].key, p.key);
	cr_assert(inv.e[0].m.published, "V6");
	close_world(&w);
}

Test(agent, commits_of_one_turn_go_out_together, .timeout = 20)
{
	struct world w;
	struct put p[48];
	struct commit_call x;
	open_world(&w);
	for (size_t i = 0; i < ARRAY_LEN(p); i++) {
		p[i] = put_of(version_make(1, i + 1), 64, i * 64);
		write_bytes(&w, &p[i]);
	}
	commit_send(&w, p, ARRAY_LEN(p), 1000, &x);
	cr_assert(cl_until(w.c, is_over, &x, 2000));
	cr_assert_eq(x.err, ERR_NONE);
	cr_assert_eq(x.n, ARRAY_LEN(p));
	for (size_t i = 0; i < x.n; i++)
		cr_assert_eq(x.res[i].status, 0, "item %zu: %s", i, x.text[i]);
	cr_assert_eq(w.boss->n_publish, 1, "one message");
	cr_assert_eq(w.boss->n_items, ARRAY_LEN(p));
	close_world(&w);
}

Test(agent, repeated_commits_share_one_question, .timeout = 20)
{
	struct world w;
	struct commit_call x[3];
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	write_bytes(&w, &p);
	w.boss->silent = true;
	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		commit_send(&w, &p, 1, 4000, &x[i]);
		cl_run_ms(w.c, 20);
	}
	cr_assert_eq(w.boss->n_items, 1);
	cr_assert_eq(counter(&w, XFA_M_COALESCED, 0), 2);
	w.boss->silent = false;
	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		cr_assert(cl_until(w.c, is_over, &x[i], 5000));
		cr_assert_eq(x[i].res[0].status, 0, "%s", x[i].text[0]);
	}
	cr_assert_eq(commit(&w, &p, 1000, NULL), ERR_NONE, "V3: a late copy finds its slot");
	close_world(&w);
}

Test(agent, tickets_that_are_not_for_this_are_refused, .timeout = 20)
{
	static const uint8_t other_pool[16] = { 1, 2, 3 };
	struct world w;
	char text[321];
	open_world(&w);
	struct put good = put_of(version_make(1, 1), 100, 0), p = good;
	write_bytes(&w, &good);
	p.tenant = "somebody";
	cr_assert_eq(commit(&w, &p, 500, text), ERR_BAD_TICKET);
	cr_assert(strstr(text, "tenant"), "%s", text);
	p = good;
	p.op = TICKET_READ;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_BAD_TICKET);
	p = good;
	p.pool = other_pool;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_BAD_TICKET);
	cr_assert(strstr(text, "pool"), "%s", text);
	p = good;
	p.pool_epoch = w.under.pool_epoch + 1;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_STALE_EPOCH);
	p = good;
	p.segment = 77;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_BAD_TICKET);
	p = good;
	p.offset = 1u << 20;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_BAD_TICKET);
	cr_assert_eq(w.boss->n_publish, 0, "nothing came of it");
	cr_assert_eq(counter(&w, XFA_M_COMMITS, 3), 5);
	/* the ticket of another holder */
	struct ticket_key *ours = w.key;
	cr_assert_eq(ticket_key_new(cl_keys(w.c), "agent-other", &w.key), ERR_NONE);
	cr_assert_eq(commit(&w, &good, 500, text), ERR_BAD_TICKET);
	ticket_key_free(w.key);
	w.key = ours;
	cr_assert_eq(commit(&w, &good, 500, text), ERR_NONE, "%s", text);
	close_world(&w);
}

Test(agent, a_fenced_attempt_commits_never, .timeout = 20)
{
	struct world w;
	struct msg_fence_res res;
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	struct msg_extent x = { 0, 0, 128 };
	write_bytes(&w, &p);
	cr_assert_eq(fence(&w, p.version, &x, &res), HOLD_FENCED);
	cr_assert_eq(commit(&w, &p, 500, NULL), ERR_STALE_ATTEMPT);
	p = put(&w, version_make(1, 2), 100, 256);
	cr_assert_eq(fence(&w, p.version, &x, &res), HOLD_COMMITTED);
	cr_assert_eq(res.sum, p.sum);
	close_world(&w);
}

/* V3: with a memory of 16 closed versions, an old one is asked about. */
Test(agent, what_it_does_not_remember_it_asks, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	char text[321];
	open_world(&w);
	for (uint64_t i = 0; i < 40; i++)
		put(&w, version_make(1, 100 + i), 64, i * 64);
	cr_assert_eq(w.boss->n_confirm, 0);
	put(&w, version_make(1, 50), 64, 65536); /* below those it has dropped */
	cr_assert_eq(w.boss->n_confirmed, 1);
	cr_assert_eq(w.boss->confirmed[0], version_make(1, 50));
	w.boss->confirm_err = ERR_STALE_ATTEMPT;
	struct put p = put_of(version_make(1, 51), 64, 65600);
	write_bytes(&w, &p);
	cr_assert_eq(commit(&w, &p, 500, text), ERR_STALE_ATTEMPT, "%s", text);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 41);
	close_world(&w);
}

Test(agent, without_a_master_a_commit_waits_then_is_in_doubt, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	char text[321];
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	write_bytes(&w, &p);
	cl_partition(w.c, "n1", "m0");
	uint64_t t0 = cl_now_ns(w.c);
	cr_assert_eq(commit(&w, &p, 1500, text), ERR_TIMED_OUT);
	cr_assert_geq(cl_now_ns(w.c) - t0, 1400 * NS_PER_MS, "it did wait");
	cr_assert(strstr(text, "in doubt"), "%s", text);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 1);
	cr_assert(!inv.e[0].m.published);
	/* in time again */
	struct commit_call x;
	commit_send(&w, &p, 1, 4000, &x);
	cl_run_ms(w.c, 700);
	cl_heal(w.c, "n1", "m0");
	cr_assert(cl_until(w.c, is_over, &x, 5000));
	cr_assert_eq(x.res[0].status, 0, "%s", x.text[0]);
	cr_assert_eq(xfa(&w)->asks[XFA_PUBLISH].by_version.n, 0);
	close_world(&w);
}

Test(agent, a_commit_survives_the_masters_death, .timeout = 20)
{
	struct world w;
	struct commit_call x;
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	write_bytes(&w, &p);
	w.boss->publish_all = ERR_STALE_TERM; /* a new master that has not adopted us */
	commit_send(&w, &p, 1, 4000, &x);
	cl_run_ms(w.c, 300);
	cr_assert(!x.over);
	w.boss->publish_all = ERR_NONE;
	cr_assert_eq(adopt(&w, 2, 1), ERR_NONE);
	cr_assert(cl_until(w.c, is_over, &x, 500), "an adoption is reason to ask at once");
	cr_assert_eq(x.res[0].status, 0, "%s", x.text[0]);
	cr_assert_eq(w.boss->under.term, 2);
	cr_assert_eq(w.boss->under.pool_epoch, w.under.pool_epoch);
	close_world(&w);
}

Test(agent, each_item_has_the_masters_word_about_it, .timeout = 20)
{
	struct world w;
	char text[321];
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	write_bytes(&w, &p);
	w.boss->publish_err = ERR_STALE_ATTEMPT;
	w.boss->refusals = 1;
	cr_assert_eq(commit(&w, &p, 500, text), ERR_STALE_ATTEMPT);
	cr_assert_str_eq(text, "the script says so");
	w.boss->publish_err = ERR_RECOVERING;
	w.boss->refusals = 3;
	cr_assert_eq(commit(&w, &p, 2000, text), ERR_NONE, "%s", text);
	cr_assert_geq(counter(&w, XFA_M_ASKS, 1), 3, "asked again");
	w.boss->refusals = 1000;
	cr_assert_eq(commit(&w, &p, 700, text), ERR_TIMED_OUT);
	cr_assert(strstr(text, "the script says so"), "the last word is told: %s", text);
	close_world(&w);
}

Test(agent, ends_though_the_master_is_silent, .timeout = 20)
{
	struct world w;
	struct commit_call x;
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	write_bytes(&w, &p);
	w.boss->silent = true;
	commit_send(&w, &p, 1, 20000, &x);
	cl_run_ms(w.c, 100);
	cl_term(w.c, "agent");
	cr_assert(cl_until(w.c, is_over, &x, 3000), "after its grace the waiting is over");
	cr_assert(x.err || x.res[0].status);
	close_world(&w);
}

/* ---- RETIRE FREE MARK ---- */

Test(agent, retire_free_mark_by_slot_and_generation, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	open_world(&w);
	put(&w, version_make(1, 1), 100, 0);
	inventory(&w, 0, &inv);
	struct msg_retire_item it = { .slot = inv.e[0].m.slot,
				      .generation = inv.e[0].m.generation,
				      .version = inv.e[0].m.version,
				      .reason = RETIRE_EVICTED,
				      .evict_id = 99 };
	struct msg_retire_item bad = it;
	bad.generation++;
	cr_assert_eq(slots(&w, METHOD_RETIRE, &w.under, bad), ERR_NOT_FOUND);
	bad = it;
	bad.reason = 99;
	cr_assert_eq(slots(&w, METHOD_RETIRE, &w.under, bad), ERR_INVALID_PARAMS);
	cr_assert_eq(slots(&w, METHOD_MARK, &w.under, it), ERR_NONE);
	cr_assert_eq(slots(&w, METHOD_FREE, &w.under, it), ERR_NOT_FOUND, "not RETIRED yet");
	cr_assert_eq(slots(&w, METHOD_RETIRE, &w.under, it), ERR_NONE);
	cr_assert_eq(slots(&w, METHOD_RETIRE, &w.under, it), ERR_NONE);
	cr_assert_eq(slots(&w, METHOD_MARK, &w.under, it), ERR_NOT_FOUND);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.e[0].m.state, 2);
	cr_assert_eq(inv.e[0].m.reason, RETIRE_EVICTED);
	cr_assert_eq(inv.e[0].m.evict_id, 99);
	cr_assert_eq(slots(&w, METHOD_FREE, &w.under, it), ERR_NONE);
	cr_assert_eq(slots(&w, METHOD_FREE, &w.under, it), ERR_NOT_FOUND, "as good as done");
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 0);
	close_world(&w);
}

Test(agent, an_inventory_comes_in_pieces, .timeout = 20)
{
	struct world w;
	struct inventory whole, pieces;
	open_world(&w);
	for (uint64_t i = 0; i < 200; i++)
		put(&w, version_make(1, 1 + i), 64, i * 64);
	inventory(&w, 0, &whole);
	cr_assert_eq(whole.n, 200);
	inventory(&w, 2000, &pieces);
	cr_assert_eq(pieces.n, 200);
	cr_assert_gt(pieces.n_pieces, 10);
	for (size_t i = 0; i < 200; i++)
		cr_assert_eq(pieces.e[i].m.version, whole.e[i].m.version);
	close_world(&w);
}

/* ---- FENCE and the sweep ---- */

struct writer {
	uint32_t session;
	struct shmpool *map;
	struct pool_lane *lane;
};

/* A client that has its hazard set and stands still. */
static struct writer stand(struct world *w, const struct put *p)
{
	struct writer x = { 0 };
	struct shmpool_fds fds;
	struct why why = { 0 };
	struct extent e = { p->segment, p->offset, p->size };
	cr_assert_eq(mempool_session(xfa(w)->pool, true, &x.session, &fds, &why), ERR_NONE,
		     "%s", why.text);
	cr_assert_eq(mempool_attach(xfa(w)->pool, x.session, &x.map), ERR_NONE);
	x.lane = shmpool_lane(x.map);
	cr_assert(x.lane);
	cr_assert_eq(lane_begin(x.lane, shmpool_ctl(x.map), 0, w->under.pool_epoch, p->version,
				&e, 1),
		     ERR_NONE);
	return x;
}

static void go_on(struct writer *x)
{
	lane_end(x->lane);
	shmpool_lane_done(x->map, x->lane);
	shmpool_close(x->map);
}

static bool fenced_reported(void *arg)
{
	return ((struct world *)arg)->boss->n_fenced > 0;
}

Test(agent, a_fenced_writer_is_reported_when_it_has_gone, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	struct msg_fence_res res;
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	struct msg_extent x = { 0, 0, 128 };
	struct writer wr = stand(&w, &p);
	cr_assert_eq(commit(&w, &p, 500, NULL), ERR_BUSY, "its hazard names it still");
	cr_assert_eq(fence(&w, p.version, &x, &res), HOLD_WRITING);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n_writing, 1);
	cr_assert_gt(hold_quarantine(xfa(&w)->hold), 0);
	cl_run_ms(w.c, 1000);
	cr_assert_eq(w.boss->n_fenced, 0, "by the writer, never by time (T6)");
	w.boss->report_err = ERR_BUSY;
	go_on(&wr);
	cl_run_ms(w.c, 300);
	cr_assert_gt(w.boss->n_report, 0);
	w.boss->report_err = ERR_NONE;
	cr_assert(cl_until(w.c, fenced_reported, &w, 1000), "until the master has heard it");
	cr_assert_eq(w.boss->fenced[0], p.version);
	cl_run_ms(w.c, 500);
	cr_assert_eq(w.boss->n_fenced, 1, "once");
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n_writing, 0);
	close_world(&w);
}

Test(agent, a_range_that_a_new_inventory_lacks_is_not_reported, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	struct msg_fence_res res;
	open_world(&w);
	struct put p = put_of(version_make(1, 1), 100, 0);
	struct msg_extent x = { 0, 0, 128 };
	struct writer wr = stand(&w, &p);
	cr_assert_eq(fence(&w, p.version, &x, &res), HOLD_WRITING);
	w.boss->report_err = ERR_STALE_TERM;
	go_on(&wr);
	cl_run_ms(w.c, 300);
	cr_assert_eq(adopt(&w, 2, 1), ERR_NONE);
	w.boss->report_err = ERR_NONE;
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n_writing, 0);
	cl_run_ms(w.c, 500);
	cr_assert_eq(w.boss->n_fenced, 0);
	close_world(&w);
}

/* ---- L2, L3 ---- */

static bool told_all(void *arg)
{
	const struct boss *b = ((struct world *)arg)->boss;
	return b->n_register > 0;
}

/* A put that waits for space does not wait until each page is mapped again. */
Test(agent, its_memory_of_before_is_ready_at_once, .timeout = 20)
{
	struct world w;
	open_world(&w);
	cr_assert(cl_until(w.c, all_ready, &w, 3000));
	cl_kill(w.c, "agent");
	cl_run_ms(w.c, 100);
	w.boss->n_register = 0;
	cr_assert(cl_start(w.c, "agent"));
	cr_assert(cl_until(w.c, told_all, &w, 3000));
	cr_assert_eq(w.boss->ready, w.boss->total);
	close_world(&w);
}

static bool epoch_rose(void *arg)
{
	struct world *w = arg;
	return w->boss->pool_epoch > w->under.pool_epoch;
}

static void restart(struct world *w, bool kill)
{
	if (kill)
		cl_kill(w->c, "agent");
	else
		cl_term(w->c, "agent");
	cl_run_ms(w->c, 2000);
	cr_assert(cl_start(w->c, "agent"), "%s", cl_why(w->c, "agent"));
	cr_assert(cl_until(w->c, epoch_rose, w, 5000), "its first REGISTER after the restart");
}

static void comes_back(bool kill)
{
	static struct inventory before, after;
	struct world w;
	uint8_t instance[16], pool[16];
	open_world(&w);
	for (uint64_t i = 0; i < 100; i++)
		put(&w, version_make(1, 1 + i), 1 + i * 7, i * 1024);
	inventory(&w, 0, &before);
	memcpy(instance, w.boss->instance, 16);
	memcpy(pool, w.boss->pool, 16);
	restart(&w, kill);
	cr_assert(memcmp(instance, w.boss->instance, 16) != 0, "another run (L2)");
	cr_assert_eq(memcmp(pool, w.boss->pool, 16), 0, "the same pool (L3)");
	cr_assert_eq(adopt(&w, 1, 2), ERR_NONE);
	inventory(&w, 0, &after);
	cr_assert_eq(after.n, before.n);
	for (size_t i = 0; i < before.n; i++) {
		cr_assert_eq(after.e[i].m.slot, before.e[i].m.slot);
		cr_assert_eq(after.e[i].m.generation, before.e[i].m.generation);
		cr_assert_eq(after.e[i].m.version, before.e[i].m.version);
		cr_assert_eq(after.e[i].m.sum, before.e[i].m.sum);
		cr_assert_eq(after.e[i].m.published, before.e[i].m.published);
		cr_assert_str_eq(after.e[i].key, before.e[i].key);
	}
	cl_run_ms(w.c, 2000);
	cr_assert_eq(counter(&w, XFA_M_VERIFIED, 0), before.n, "all were read again");
	cr_assert_eq(counter(&w, XFA_M_CORRUPT, 0), 0);
	cr_assert_eq(w.boss->n_corrupt, 0);
	close_world(&w);
}

Test(agent, a_killed_agent_comes_back_with_all_it_held, .timeout = 20)
{
	comes_back(true);
}

Test(agent, a_stopped_agent_comes_back_with_all_it_held, .timeout = 20)
{
	comes_back(false);
}

static bool corrupt_reported(void *arg)
{
	return ((struct world *)arg)->boss->n_corrupt > 0;
}

Test(agent, bytes_that_rotted_are_found_retired_and_reported, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	open_world(&w);
	put(&w, version_make(1, 1), 1000, 0);
	struct put p = put(&w, version_make(1, 2), 1000, 4096);
	uint8_t *b = at(&w, &p);
	p.pool_epoch = w.under.pool_epoch;
	b[999] ^= 1;
	restart(&w, true);
	cl_run_ms(w.c, 1000);
	cr_assert_eq(adopt(&w, 1, 2), ERR_NONE);
	cr_assert(cl_until(w.c, corrupt_reported, &w, 3000));
	cr_assert_eq(w.boss->corrupt[0].version, p.version);
	cr_assert_eq(counter(&w, XFA_M_CORRUPT, 0), 1);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 2);
	for (size_t i = 0; i < 2; i++) {
		bool bad = inv.e[i].m.version == p.version;
		cr_assert_eq(inv.e[i].m.state, bad ? 2 : 1);
		cr_assert_eq(inv.e[i].m.reason, bad ? RETIRE_CORRUPT : 0);
	}
	size_t n = w.boss->n_corrupt;
	cl_run_ms(w.c, 6000);
	cr_assert_gt(w.boss->n_corrupt, n, "said until it is freed");
	struct msg_retire_item it = { .slot = w.boss->corrupt[0].slot,
				      .generation = w.boss->corrupt[0].generation };
	cr_assert_eq(slots(&w, METHOD_FREE, &w.under, it), ERR_NONE);
	cl_run_ms(w.c, 1000);
	n = w.boss->n_corrupt;
	cl_run_ms(w.c, 6000);
	cr_assert_eq(w.boss->n_corrupt, n);
	char text[321];
	cr_assert_eq(commit(&w, &p, 500, text), ERR_STALE_EPOCH, "%s", text);
	close_world(&w);
}

static bool another_pool(void *arg)
{
	struct world *w = arg;
	return w->boss->n_register > 0;
}

Test(agent, a_power_cut_leaves_an_empty_pool, .timeout = 20)
{
	struct world w;
	struct inventory inv;
	uint8_t pool[16];
	open_world(&w);
	memcpy(pool, w.boss->pool, 16);
	put(&w, version_make(1, 1), 100, 0);
	cl_kill(w.c, "agent");
	cl_power_cut(w.c, "n1");
	w.boss->n_register = 0;
	cl_run_ms(w.c, 500);
	cr_assert(cl_start(w.c, "agent"));
	cr_assert(cl_until(w.c, another_pool, &w, 3000));
	cr_assert(memcmp(pool, w.boss->pool, 16) != 0);
	cr_assert_eq(adopt(&w, 1, 2), ERR_NONE);
	inventory(&w, 0, &inv);
	cr_assert_eq(inv.n, 0);
	close_world(&w);
}

/* ---- memory that is not there ---- */

/* The backing's reserve of payload beyond the first slice of a segment fails so often. */
static uint32_t no_space;
static enum err (*real_reserve)(struct pool_backing *b, const char *name, uint64_t offset,
				uint64_t bytes, struct why *why);

static enum err scarce_reserve(struct pool_backing *b, const char *name, uint64_t offset,
			       uint64_t bytes, struct why *why)
{
	if (strncmp(name, "data.", 5) == 0 && strcmp(name, "data.0") != 0 && no_space > 0) {
		no_space--;
		return why_set(why, ERR_NO_SPACE, "%s: the file system is full", name);
	}
	return real_reserve(b, name, offset, bytes, why);
}

Test(agent, a_slice_without_memory_is_tried_again, .timeout = 20)
{
	static struct pool_backing_ops ops;
	struct world w;
	open_world(&w);
	cl_kill(w.c, "agent");
	cl_power_cut(w.c, "n1"); /* what was touched before is ready at once */
	cl_run_ms(w.c, 2000);
	struct pool_backing *b = cl_svc_backing(w.c, "n1", "agent");
	const struct pool_backing_ops *before = b->ops;
	ops = *before;
	real_reserve = ops.reserve;
	ops.reserve = scarce_reserve;
	b->ops = &ops;
	no_space = 3;
	w.boss->n_register = 0;
	cr_assert(cl_start(w.c, "agent"), "%s", cl_why(w.c, "agent"));
	cr_assert(cl_until(w.c, registered, &w, 3000));
	cl_run_ms(w.c, 1000);
	cr_assert_lt(no_space, 3, "it was asked");
	cr_assert_lt(w.boss->ready, w.boss->total, "what there is is of use");
	cr_assert_gt(w.boss->ready, 0);
	cr_assert(cl_until(w.c, all_ready, &w, 20000), "later there is room");
	cr_assert_eq(no_space, 0);
	b->ops = before;
	close_world(&w);
}

/* ---- each allocation fails once ---- */

static void commit_some(struct world *w, struct put *p, size_t n, struct commit_call *x)
{
	for (size_t i = 0; i < n; i++)
		write_bytes(w, &p[i]);
	commit_send(w, p, n, 800, x);
	cr_assert(cl_until(w->c, is_over, x, 3000), "a COMMIT ends whatever fails");
	for (size_t i = 0; i < x->n; i++)
		cr_assert(x->res[i].status != ERR_INTERNAL && err_name(x->res[i].status)[0]);
}

static void ask_all(struct world *w)
{
	struct msg_fence_item f = { .version = version_make(1, 77) };
	struct msg_retire_item it = { .slot = 1, .reason = RETIRE_REMOVED };
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(8 << 20);
	enc_inventory_req(&body, &(struct msg_inventory_req){ &w->under, 0, 0 });
	(void)command(w, METHOD_INVENTORY, &body, &reply, NULL);
	body = BUF_INIT(1024);
	enc_fence_req(&body, &(struct msg_fence_req){ .under = &w->under, .items = { &f, 1 } });
	(void)command(w, METHOD_FENCE, &body, &reply, NULL);
	body = BUF_INIT(1024);
	enc_retire_req(&body,
		       &(struct msg_retire_req){ .under = &w->under, .items = { &it, 1 } });
	(void)command(w, METHOD_RETIRE, &body, &reply, NULL);
	buf_fini(&reply);
}

/* How many allocations there were to fail. */
static uint64_t fail_each(uint64_t count, uint64_t step)
{
	for (uint64_t skip = 0;; skip += step) {
		struct world w;
		struct commit_call x;
		struct inventory inv;
		struct put p[3];
		open_world(&w);
		for (size_t i = 0; i < ARRAY_LEN(p); i++)
			p[i] = put_of(version_make(1, 1 + i), 64, i * 64);
		cl_oom(w.c, "agent", skip, count);
		commit_some(&w, p, ARRAY_LEN(p), &x);
		ask_all(&w);
		uint64_t failed = sim_alloc_failed();
		sim_alloc_fail(NULL, 0, 0);
		commit_some(&w, p, ARRAY_LEN(p), &x);
		cr_assert_eq(x.err, ERR_NONE, "after allocation %lu", (unsigned long)skip);
		for (size_t i = 0; i < x.n; i++)
			cr_assert_eq(x.res[i].status, 0, "after allocation %lu: %s",
				     (unsigned long)skip, x.text[i]);
		inventory(&w, 0, &inv);
		cr_assert_eq(inv.n, ARRAY_LEN(p));
		close_world(&w);
		if (failed == 0)
			return skip;
	}
}

Test(agent, each_allocation_fails_once, .timeout = 60)
{
	cr_assert_gt(fail_each(1, 1), 20);
	fail_each(30, 7);
}

/* ---- settings ---- */

static void refuses(const char *set, const char *says)
{
	const char *const bad[] = { "--set", set, NULL };
	const struct cl_svc svc = { &xfa_def, masters, 1, bad };
	struct cluster *c = cl_open(&(struct cl_opts){ .backend = CL_SIM, .seed = 1 });
	cl_add(c, &(struct cl_member_opts){ .name = "agent",
					    .node = "n1",
					    .app = &cl_svc_app,
					    .arg = (void *)&svc });
	cr_assert(!cl_start(c, "agent"), "%s is taken", set);
	cr_assert(strstr(cl_why(c, "agent"), says), "%s: %s", set, cl_why(c, "agent"));
	cl_close(c);
	NO_LEAKS();
}

Test(agent, settings_that_cannot_be_are_refused, .timeout = 20)
{
	refuses("agent.isolation=tenant", "node");
	refuses("agent.pool_size=1KiB", "1MiB");
	refuses("agent.quarantine_max=1.5", "0..1");
	refuses("agent.data_listen=ipc:///tmp/data.sock", "tcp://HOST:PORT");
	refuses("agent.data_listen=tcp://*:17606", "agent.data_advertise");
	refuses("agent.data_advertise=tcp://node7:17606", "agent.data_listen");
}
