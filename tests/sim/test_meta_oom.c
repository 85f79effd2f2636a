/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of the meta store's and the handshake's process fails, one after the other: a typed
 * error each time, nothing acknowledged is lost, nothing leaks.
 */
#include "meta/meta.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/ticket.h"
#include "tests/support/leak.h"
#include "tests/support/meta_fs_sim.h"
#include "tests/support/sim_alloc.h"

#define N_APPENDS 40

/* ---- the store ---- */

struct run {
	struct sim *sim;
	struct sim_proc *proc;
	struct loop loop;
	struct log log;
	struct meta_fs *fs;
	struct meta *m;
	bool opened, closed;
	enum err open_err, new_err;
	struct meta_append a[N_APPENDS];
	size_t n_done;
	uint64_t acked; /* the highest number */
};

static void no_line(struct log_capture *c, const char *line, size_t n)
{
}
static struct log_capture silent = { no_line };

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	struct run *r = ctx;
	r->opened = true;
	r->open_err = e;
	SIM_CHECK(e == ERR_NONE || why->text[0], "no reason");
}

static void on_closed(void *arg)
{
	((struct run *)arg)->closed = true;
}

static struct run *the_run;

static void on_done(struct meta_append *a)
{
	the_run->n_done++;
	if (a->err == ERR_NONE)
		the_run->acked = MAX_OF(the_run->acked, a->seq);
	else
		SIM_CHECK(a->err == ERR_NO_MEMORY || a->err == ERR_IO ||
				  a->err == ERR_CONFLICT || a->err == ERR_NOT_FOUND,
			  "%s: %s", err_name(a->err), a->why.text);
}

static void start(void *arg)
{
	struct run *r = arg;
	const struct meta_opts o = { .dir = "/meta",
				     .name = "m",
				     .fs = r->fs,
				     .log = &r->log,
				     .log_bytes_max = 4096,
				     .chunk_bytes = 4096,
				     .opened = on_opened,
				     .ctx = r };
	r->new_err = meta_open(&r->loop, &o, &r->m);
}

static void append_all(void *arg)
{
	struct run *r = arg;
	for (uint64_t i = 0; i < N_APPENDS; i++) {
		struct meta_rec rec = { .type = META_TERM, .TERM = { 1 } };
		char key[8] = { 'k', (char)('a' + i) };
		if (i == 1) {
			rec.type = META_HOLDER;
			rec.HOLDER =
				(struct msg_meta_holder){ .id = BYTES_STR("h"), .kind = 1 };
		} else if (i > 1) {
			rec.type = i % 5 ? META_TOMB : META_RANGE;
			if (i % 5)
				rec.TOMB = (struct msg_meta_tomb){
					BYTES_STR("h"), 0, BYTES_STR("t"), BYTES_STR(key), i, i
				};
			else
				rec.RANGE = (struct msg_meta_range){
					BYTES_STR("h"), 0, 1, BYTES_STR("t"),
					BYTES_STR(key), i, i
				};
		}
		r->a[i] = (struct meta_append){ .term = i ? 1 : META_ANY,
						.if_seq = META_ANY,
						.done = on_done };
		meta_append(r->m, &r->a[i], &rec, 1);
	}
}

static void close_it(void *arg)
{
	struct run *r = arg;
	meta_close(r->m, on_closed, r);
}

static void in_proc(struct run *r, void (*fn)(void *arg))
{
	sim_at_proc(r->proc, sim_now_ns(r->sim), fn, r);
	sim_run_ms(r->sim, 15000);
}

/* One life; `fail` is the allocation that fails, or none. */
static void life(struct run *r, uint64_t fail)
{
	struct sim_node *n = sim_node(r->sim, "a");
	r->opened = r->closed = false;
	r->n_done = 0;
	r->m = NULL;
	r->proc = sim_proc_start(n, &(struct sim_proc_opts){ .name = "p" });
	sim_loop_open(r->proc, &r->loop);
	r->fs = meta_fs_sim_new(sim_node_disk(n), "/meta");
	if (fail != UINT64_MAX)
		sim_alloc_fail(r->proc, fail, 1);
	in_proc(r, start);
	if (r->new_err == ERR_NONE) {
		SIM_CHECK(r->opened, "it never opens");
		if (fail != UINT64_MAX) {
			in_proc(r, append_all);
			SIM_CHECK(r->n_done == N_APPENDS, "%zu of %d are answered", r->n_done,
				  N_APPENDS);
		}
	}
}

static void life_ends(struct run *r)
{
	if (r->new_err == ERR_NONE) {
		in_proc(r, close_it);
		SIM_CHECK(r->closed, "it never closes");
	}
	meta_fs_free(r->fs);
	sim_loop_close(&r->loop);
	sim_proc_end(r->proc);
}

/* True when an allocation was let fail: there may be a next one. */
static bool store_with_failure(uint64_t skip)
{
	static struct run r;
	memset(&r, 0, sizeof(r));
	the_run = &r;
	r.sim = sim_new(1);
	r.log = (struct log){ .svc = "test", .fd = 2 };
	log_set_capture(&r.log, &silent);
	life(&r, skip);
	bool failed = sim_alloc_failed() > 0;
	life_ends(&r);
	sim_alloc_fail(r.proc, 0, 0);
	uint64_t acked = r.acked;
	life(&r, UINT64_MAX);
	SIM_CHECK(r.open_err == ERR_NONE, "%s", err_name(r.open_err));
	const struct meta_state *st = meta_state_of(r.m);
	SIM_CHECK(meta_last_seq(st) >= acked, "%zu of %zu", (size_t)meta_last_seq(st),
		  (size_t)acked);
	meta_state_check(st);
	life_ends(&r);
	sim_free(r.sim);
	return failed;
}

Test(meta_oom, store, .timeout = 120)
{
	uint64_t skip = 0;
	while (store_with_failure(skip))
		skip++;
	cr_assert_gt(skip, 100, "%zu allocations were tried", (size_t)skip);
	NO_LEAKS();
}

/* ---- the handshake and tickets ---- */

struct shake {
	enum err err;
	bool there; /* a session at both ends, and a ticket that opened */
};

static enum err shake_hands(const struct keyring *k)
{
	static const uint8_t instance[16] = "an instance ...";
	struct hello_server *s = NULL;
	struct hello_client *c = NULL;
	struct auth_session ss = { 0 }, cs = { 0 };
	struct peer sp, cp;
	struct buf b[4];
	for (int i = 0; i < 4; i++)
		b[i] = BUF_INIT(4096);
	const struct hello_server_opts so = { .keys = k,
					      .role = ROLE_SERVICE,
					      .listener = "master",
					      .instance = instance,
					      .v_min = 1,
					      .v_max = 1 };
	const struct hello_client_opts co = {
		.keys = k, .role = ROLE_ADMIN, .instance = instance, .v_min = 1, .v_max = 1
	};
	enum err e = hello_server_new(&so, &s);
	if (e == ERR_NONE)
		e = hello_client_new(&co, &c, NULL);
	if (e == ERR_NONE)
		e = hello_client_start(c, &b[0]);
	if (e == ERR_NONE)
		e = hello_server_challenge(s, buf_bytes(&b[0]), 1, &b[1], NULL);
	if (e == ERR_NONE)
		e = hello_client_challenge(c, buf_bytes(&b[1]), &b[2], NULL);
	if (e == ERR_NONE)
		e = hello_server_prove(s, buf_bytes(&b[2]), 1, 5, &b[3], &ss, &cp, NULL);
	if (e == ERR_NONE)
		e = hello_client_welcome(c, buf_bytes(&b[3]), &cs, &sp, NULL, NULL);
	for (int i = 0; i < 4; i++)
		buf_fini(&b[i]);
	auth_session_fini(&ss);
	auth_session_fini(&cs);
	hello_server_free(s);
	hello_client_free(c);
	return e;
}

static enum err carry_ticket(const struct keyring *k)
{
	struct msg_extent x = { 0, 0, 100 };
	struct msg_ticket t = { .op = TICKET_WRITE,
				.tenant = BYTES_STR("t"),
				.extents = { &x, 1 } };
	struct msg_ticket back;
	struct ticket_key *key = NULL;
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(8192);
	enum err e = ticket_key_new(k, "h1", &key);
	if (e == ERR_NONE)
		e = ticket_mint(key, &t, &b, NULL);
	if (e == ERR_NONE)
		e = ticket_open(key, buf_bytes(&b), &a, &back, NULL);
	buf_fini(&b);
	arena_fini(&a);
	ticket_key_free(key);
	return e;
}

static void shake_now(void *arg)
{
	static const uint8_t secret[32] = "a secret for a test of memory ..";
	struct shake *x = arg;
	struct keyring *k;
	x->err = keyring_new(secret, NULL, &k);
	if (x->err != ERR_NONE)
		return;
	x->err = shake_hands(k);
	if (x->err == ERR_NONE)
		x->err = carry_ticket(k);
	x->there = x->err == ERR_NONE;
	keyring_free(k);
}

Test(meta_oom, handshake_and_ticket, .timeout = 60)
{
	struct sim *s = sim_new(1);
	struct sim_proc *p =
		sim_proc_start(sim_node(s, "a"), &(struct sim_proc_opts){ .name = "p" });
	uint64_t skip = 0;
	for (bool failed = true; failed; skip++) {
		struct shake x = { 0 };
		sim_alloc_fail(p, skip, 1);
		sim_at_proc(p, sim_now_ns(s), shake_now, &x);
		sim_run_ms(s, 10);
		failed = sim_alloc_failed() > 0;
		sim_alloc_fail(p, 0, 0);
		cr_assert_eq(x.there, !failed, "allocation %zu", (size_t)skip);
		cr_assert_eq(x.err, failed ? ERR_NO_MEMORY : ERR_NONE, "allocation %zu: %s",
			     (size_t)skip, err_name(x.err));
	}
	cr_assert_gt(skip, 10);
	sim_proc_end(p);
	sim_free(s);
	NO_LEAKS();
}
