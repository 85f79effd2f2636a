/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines on real sockets with each allocation of our own code failing in turn: a server, a dial, three
 * exchanges, the end. Whatever fails, every call ends typed, nothing leaks, and both ends close.
 * malloc, calloc, realloc and strdup are wrapped at the link (not those of libraries).
 */
#include "rpc/engine.h"
#include "support/eng_fix.h"
#include "support/leak.h"
#include "support/tls_fix.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

TestSuite(oom, .timeout = 120);

/* ---- the failing allocator ---- */

static _Thread_local bool armed;
static uint64_t left;
static bool hit;

static bool fails(void)
{
	if (!armed || left-- > 0)
		return false;
	armed = false;
	hit = true;
	return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}

/* ---- one try ---- */

struct try_one {
	struct loop l;
	const struct engine *eng;
	struct eng_server *s;
	struct eng_peer *p;
	struct log log;
	struct rpc_counters counters;
	struct eng_xchg x[3];
	uint32_t n_up, n_down, n_done, n_sent;
	bool s_closed, p_closed;
	char addr[300];
};

static void on_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
		       enum eng_life life)
{
	struct try_one *o = ctx;
	(void)life;
	if (!c->known)
		o->eng->known(o->s, c);
	o->eng->reply(o->s, t, &msg, 1);
}

static void on_conn_closed(void *ctx, struct eng_conn *c)
{
	(void)ctx, (void)c;
}

static void on_up(void *ctx)
{
	((struct try_one *)ctx)->n_up++;
}

static void on_down(void *ctx, enum err e, const char *text)
{
	cr_assert_neq(e, ERR_NONE);
	cr_assert(text[0]);
	((struct try_one *)ctx)->n_down++;
}

static struct try_one one;

static void on_done(struct eng_xchg *x, enum err e, struct bytes reply)
{
	(void)x;
	one.n_done++;
	cr_assert(e != ERR_NONE || reply.n == 1000 || reply.n == 100000);
}

static void set(void *flag)
{
	*(bool *)flag = true;
}

static void exchanges(struct try_one *o)
{
	static uint8_t data[100000];
	for (uint32_t i = 0; i < ARRAY_LEN(o->x) && !o->n_down; i++) {
		struct bytes b = BYTES(data, i == 1 ? 100000 : 1000);
		o->x[i].done = on_done;
		if (o->eng->send(o->p, &o->x[i], &b, 1) != ERR_NONE)
			continue;
		o->n_sent++;
		bool ended = RUN_UNTIL(&o->l, o->n_done == o->n_sent, 5000);
		cr_assert(ended, "an exchange does not end");
	}
}

/* True when nng's reaper hung (nng_sock.h I3): the next ones would only take their time. */
static bool ends(struct try_one *o)
{
	uint64_t t0 = loop_now_ns(&o->l);
	if (o->p) {
		o->eng->hangup(o->p, set, &o->p_closed);
		cr_assert(RUN_UNTIL(&o->l, o->p_closed, 8000), "the peer does not close");
	}
	if (o->s) {
		o->eng->server_close(o->s, 200, set, &o->s_closed);
		cr_assert(RUN_UNTIL(&o->l, o->s_closed, 8000), "the server does not close");
	}
	cr_assert_eq(o->counters.conns_open, 0);
	cr_assert_eq(o->counters.bytes_queued, 0);
	return loop_now_ns(&o->l) - t0 > 1500 * NS_PER_MS;
}

static bool attempt(struct try_one *o, const char *addr, const struct tls_files *ours,
		    const struct tls_files *theirs, uint64_t skip)
{
	static const struct eng_server_events se = { on_request, on_conn_closed };
	static const struct eng_peer_events pe = { on_up, on_down };
	struct why why = { 0 };
	const struct engine *eng = o->eng;
	*o = (struct try_one){ .eng = eng, .log = { .svc = "t", .fd = -1 } };
	cr_assert_eq(loop_open(&o->l), ERR_NONE);
	struct eng_server_opts so = { .limits = fix_limits(),
				      .log = &o->log,
				      .counters = &o->counters,
				      .events = &se,
				      .ctx = o,
				      .tls = *ours };
	left = skip;
	hit = false;
	armed = true;
	enum err e = eng->server_new(&o->l, &so, &o->s);
	if (e == ERR_NONE)
		e = eng->listen(o->s, addr, o->addr, sizeof(o->addr), &why);
	struct eng_dial_opts po = { .limits = fix_limits(),
				    .addr = o->addr,
				    .log = &o->log,
				    .events = &pe,
				    .ctx = o,
				    .tls = *theirs };
	po.limits.handshake_ms = 1000;
	if (e == ERR_NONE)
		e = eng->dial(&o->l, &po, &o->p, &why);
	cr_assert(e == ERR_NONE || hit, "%s", why.text);
	if (e == ERR_NONE) {
		cr_assert(RUN_UNTIL(&o->l, o->n_up || o->n_down, 5000), "neither up nor down");
		exchanges(o);
	}
	armed = false;
	cr_assert(hit || o->n_done == 3, "without a failure all is well");
	bool stuck = ends(o);
	loop_close(&o->l);
	return stuck;
}

static void every_allocation(const struct engine *eng, const char *addr)
{
	struct tls_fix certs;
	struct tls_files ours = { 0 }, theirs = { 0 };
	bool tls = strncmp(addr, "tls", 3) == 0;
	uint64_t skip = 0;
	signal(SIGPIPE, SIG_IGN);
	if (tls) {
		tls_fix_make(&certs);
		ours = (struct tls_files){ .cert = certs.server, .key = certs.server_key };
		theirs = (struct tls_files){ .ca = certs.ca };
	}
	one.eng = eng;
	bool stuck;
	do {
		stuck = attempt(&one, addr, &ours, &theirs, skip++);
	} while (hit && !stuck && skip < 500);
	cr_assert(!stuck || eng == &engine_nng);
	cr_assert_lt(skip, 500);
	cr_assert(stuck || skip > 5, "only %d allocations: nothing is wrapped", (int)skip);
	if (tls)
		tls_fix_remove(&certs);
	if (!stuck)
		NO_LEAKS();
}

Test(oom, sp_tcp)
{
	every_allocation(&engine_sp, "tcp://127.0.0.1:0");
}

Test(oom, sp_tls)
{
	every_allocation(&engine_sp, "tls+tcp://127.0.0.1:0");
}

Test(oom, nng_tcp)
{
	every_allocation(&engine_nng, "tcp://127.0.0.1:0");
}

Test(oom, nng_tls)
{
	every_allocation(&engine_nng, "tls+tcp://127.0.0.1:0");
}
