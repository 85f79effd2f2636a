/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole service on a virtual clock, asked by a peer that has every key and no manners: each method by
 * a role that may call it. Included by one file a service, which defines FUZZ_DEF. Input: records of a byte of method, a byte of length
 * and that many bytes of body; up to 16 are sent at once. FUZZ_METHOD and FUZZ_LENGTH may map the two
 * bytes to what that service has.
 *
 * Each call must end, with an error of the table; then no op is left in the service.
 */
#include "tests/support/meta_fs_sim.h"
#include "tests/support/sim.h"

#include <stdio.h>
#include <string.h>

#include "proto/messages.h"
#include "rpc/auth.h"
#include "svc/svc.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define CALLS_MAX 16
#ifndef FUZZ_METHOD
#define FUZZ_METHOD(b) (b)
#define FUZZ_LENGTH(b) (b)
#endif

extern const struct svc_def FUZZ_DEF;

static const enum role fuzz_roles[] = { ROLE_ADMIN, ROLE_SERVICE, ROLE_HOLDER };

struct world {
	struct sim *sim;
	struct keyring *keys;
	struct log_capture quiet;
	struct sim_proc *proc, *caller;
	struct loop loop, caller_loop;
	struct log log;
	struct svc *svc;
	struct meta_fs *fs;
	struct rpc_client *client[ARRAY_LEN(fuzz_roles)];
	size_t n_closed;
	struct rpc_call call[CALLS_MAX];
	size_t n_calls, n_ended;
	bool over;
};

static void no_line(struct log_capture *c, const char *line, size_t n)
{
}

static struct world *current; /* of this process: libFuzzer has no other place for it */

static void run_over(void *arg)
{
	struct world *w = arg;
	free(w->svc);
	w->svc = NULL;
	meta_fs_free(w->fs);
	sim_loop_close(&w->loop);
	sim_proc_end(w->proc);
	w->over = true;
}

static void on_closed(struct svc *s, void *arg)
{
	struct world *w = arg;
	sim_at_proc(w->proc, sim_now_ns(w->sim), run_over, w);
}

static void caller_over(void *arg)
{
	struct world *w = arg;
	sim_loop_close(&w->caller_loop);
	sim_proc_end(w->caller);
}

static void on_client_closed(void *arg)
{
	struct world *w = arg;
	if (++w->n_closed == ARRAY_LEN(fuzz_roles))
		sim_at_proc(w->caller, sim_now_ns(w->sim), caller_over, w);
}

static void service_open(struct world *w)
{
	static const char *const listen[] = { "sim://s/fuzzed" };
	struct why why = { 0 };
	w->fs = meta_fs_sim_new(sim_node_disk(sim_node(w->sim, "s")), "/meta");
	struct svc_env env = { .loop = &w->loop,
			       .listen = listen,
			       .n_listen = 1,
			       .masters = listen,
			       .n_masters = 1,
			       .keys = w->keys,
			       .meta_fs = w->fs,
			       .log = &w->quiet,
			       .closed = on_closed,
			       .arg = w };
	w->proc = sim_proc_start(sim_node(w->sim, "s"), &(struct sim_proc_opts){ .name = "s" });
	sim_loop_open(w->proc, &w->loop);
	w->svc = calloc(1, FUZZ_DEF.size);
	if (svc_open(w->svc, &FUZZ_DEF, &env, &why) != ERR_NONE)
		sim_fail(__FILE__, __LINE__, "svc_open", "%s", why.text);
}

static void client_open(struct world *w)
{
	static const char *const addr[] = { "sim://s/fuzzed" };
	static const uint8_t instance[16] = { 9 };
	struct why why = { 0 };
	w->caller =
		sim_proc_start(sim_node(w->sim, "c"), &(struct sim_proc_opts){ .name = "c" });
	sim_loop_open(w->caller, &w->caller_loop);
	w->log = (struct log){ .svc = "caller", .clock = w->caller_loop.clock };
	log_set_capture(&w->log, &w->quiet);
	for (size_t i = 0; i < ARRAY_LEN(fuzz_roles); i++) {
		struct rpc_client_opts o = { .addrs = addr,
					     .n_addrs = 1,
					     .peer_name = "fuzzed",
					     .as = fuzz_roles[i],
					     .expect = FUZZ_DEF.role,
					     .holder = fuzz_roles[i] == ROLE_HOLDER
							       ? "agent-fuzz"
							       : NULL,
					     .keys = w->keys,
					     .log = &w->log,
					     .instance = instance };
		if (rpc_client_new(&w->caller_loop, &o, &w->client[i], &why) != ERR_NONE)
			sim_fail(__FILE__, __LINE__, "rpc_client_new", "%s", why.text);
	}
}

/* Whoever may call it; a method of no row comes from the first. */
static struct rpc_client *client_for(struct world *w, uint32_t method)
{
	const struct wire_method *m = wire_method(method);
	for (size_t i = 0; m && i < ARRAY_LEN(fuzz_roles); i++)
		if (m->roles & 1u << fuzz_roles[i])
			return w->client[i];
	return w->client[0];
}

static struct world *world_new(void)
{
	static const uint8_t secret[32] = { 6 };
	struct world *w = calloc(1, sizeof(*w));
	w->quiet.fn = no_line;
	w->sim = sim_new(1);
	SIM_CHECK(keyring_new(secret, NULL, &w->keys) == ERR_NONE, "no keys");
	service_open(w);
	client_open(w);
	sim_run_ms(w->sim, 100);
	return w;
}

static bool is_over(void *arg)
{
	return ((struct world *)arg)->over;
}

static void world_free(struct world *w)
{
	for (size_t i = 0; i < ARRAY_LEN(fuzz_roles); i++)
		rpc_client_close(w->client[i], on_client_closed, w);
	if (!w->over)
		svc_stop(w->svc, 0);
	SIM_CHECK(sim_run_until(w->sim, is_over, w, 10000), "the service does not end");
	sim_free(w->sim);
	keyring_free(w->keys);
	free(w);
}

static void on_done(struct rpc_call *c)
{
	struct world *w = current;
	SIM_CHECK(c->err == ERR_NONE || strcmp(err_name(c->err), "UNKNOWN") != 0, "%d", c->err);
	SIM_CHECK(c->err != ERR_INTERNAL, "%s", c->why.text);
	w->n_ended++;
}

static void send_all(struct world *w, const uint8_t *p, size_t n)
{
	const uint8_t *end = p + n;
	w->n_calls = w->n_ended = 0;
	while (end - p >= 2 && w->n_calls < CALLS_MAX) {
		/* a DRAIN costs a new world: only where the input begins with it */
		uint32_t method =
			p[0] == METHOD_DRAIN && w->n_calls ? METHOD_NONE : FUZZ_METHOD(p[0]);
		size_t len = MIN_OF((size_t)FUZZ_LENGTH(p[1]), (size_t)(end - p - 2));
		struct rpc_call *c = &w->call[w->n_calls++];
		*c = (struct rpc_call){
			.method = method,
			.body = BYTES(p + 2, len),
			.done = on_done,
			.deadline_ns = clock_after_ms(loop_now_ns(&w->caller_loop), 300)
		};
		rpc_send(client_for(w, method), c);
		p += 2 + len;
	}
}

static bool all_ended(void *arg)
{
	struct world *w = arg;
	return w->n_ended == w->n_calls;
}

static bool no_op_left(void *arg)
{
	struct world *w = arg;
	return w->over || w->svc->ops.n == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (!current)
		current = world_new();
	struct world *w = current;
	send_all(w, p, n);
	SIM_CHECK(sim_run_until(w->sim, all_ended, w, 20000), "a call never ended");
	SIM_CHECK(sim_run_until(w->sim, no_op_left, w, 20000), "an op is left");
	if (w->over || svc_stopping(w->svc)) { /* it was asked to DRAIN: a new one */
		world_free(w);
		current = NULL;
	}
	return 0;
}
