/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master whose one holder answers with whatever the input says. Input: records of a byte of kind, two
 * bytes of length and that many bytes; each answers one command. Kind: bit 0 an error status in the
 * first byte, bit 1 the right ADOPT_REP when one is asked for (else nothing would ever be merged), bit
 * 2 the bytes are an INVENTORY_REP's entries behind the right head. When the input is used up the
 * holder answers BUSY.
 *
 * The master must go on, and its mind be sound.
 */
#include "tests/support/meta_fs_sim.h"
#include "tests/support/sim.h"

#include <string.h>

#include "proto/messages.h"
#include "rpc/auth.h"
#include "services/master/master.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define HOLDER "fuzz-0"

struct world {
	struct sim *sim;
	struct keyring *keys;
	struct log_capture quiet;
	struct sim_proc *proc, *holder;
	struct loop loop, holder_loop;
	struct log log;
	struct svc *svc;
	struct meta_fs *fs;
	struct rpc_server *server;
	struct rpc_client *client;
	struct rpc_call call;
	struct buf body;
	bool over, holder_over, busy;
	const uint8_t *p, *end;
};

static void no_line(struct log_capture *c, const char *line, size_t n)
{
	(void)c, (void)line, (void)n;
}

/* ---- the holder ---- */

static void adopt_right(struct rpc_req *r)
{
	struct msg_under u;
	struct dec d = DEC_INIT(r->body, NULL, NULL);
	struct msg_segment s = { 0, 1 << 20, 1 << 20 };
	struct buf b = BUF_INIT(4096);
	SIM_CHECK(dec_under(&d, &u) == ERR_NONE, "ADOPT");
	u.pool_epoch = 2;
	enc_adopt_rep(&b, &(struct msg_adopt_rep){ &u, { &s, 1 } });
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&b));
	buf_fini(&b);
}

/* [under, entries...]: the input takes over behind the head. */
static void piece(struct rpc_req *r, const uint8_t *p, size_t n)
{
	struct msg_inventory_req q;
	struct arena a = ARENA_INIT(64 << 10);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct buf b = BUF_INIT(1 << 20);
	SIM_CHECK(dec_inventory_req(&d, &q) == ERR_NONE && q.under, "INVENTORY");
	buf_put(&b, "\x94", 1);
	enc_under(&b, q.under);
	buf_put(&b, p, n);
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&b));
	buf_fini(&b);
	arena_fini(&a);
}

static void on_command(void *ctx, struct rpc_req *r)
{
	struct world *w = ctx;
	if (w->end - w->p < 3) {
		rpc_reply(r, ERR_BUSY, 10, BYTES(NULL, 0));
		return;
	}
	uint8_t kind = w->p[0];
	size_t n = MIN_OF((size_t)(w->p[1] | w->p[2] << 8), (size_t)(w->end - w->p - 3));
	const uint8_t *p = w->p + 3;
	w->p = p + n;
	if (kind & 2 && r->method == METHOD_ADOPT)
		adopt_right(r);
	else if (kind & 4 && r->method == METHOD_INVENTORY)
		piece(r, p, n);
	else
		rpc_reply(r, kind & 1 && n ? (enum err)p[0] : ERR_NONE, 0, BYTES(p, n));
}

static void holder_open(struct world *w)
{
	static const char *const addr[] = { "sim://s/master" };
	static const uint8_t instance[16] = { 9 };
	struct why why = { 0 };
	w->holder =
		sim_proc_start(sim_node(w->sim, "h"), &(struct sim_proc_opts){ .name = "h" });
	sim_loop_open(w->holder, &w->holder_loop);
	w->log = (struct log){ .svc = "holder", .clock = w->holder_loop.clock };
	log_set_capture(&w->log, &w->quiet);
	struct rpc_server_opts so = { .keys = w->keys,
				      .log = &w->log,
				      .instance = instance,
				      .role = ROLE_HOLDER,
				      .name = "agent",
				      .holder = HOLDER };
	SIM_CHECK(rpc_server_new(&w->holder_loop, &so, &w->server) == ERR_NONE, "no server");
	for (uint32_t m = METHOD_ADOPT; m <= METHOD_FENCE; m++)
		rpc_server_add(w->server,
			       &(struct rpc_method){ .number = m,
						     .name = method_name(m),
						     .roles = ROLES_SERVICE,
						     .fn = on_command,
						     .ctx = w },
			       1);
	SIM_CHECK(rpc_server_listen(w->server, "sim://h/agent", NULL, 0, &why) == ERR_NONE,
		  "%s", why.text);
	struct rpc_client_opts co = { .addrs = addr,
				      .n_addrs = 1,
				      .peer_name = "master",
				      .as = ROLE_HOLDER,
				      .expect = ROLE_SERVICE,
				      .holder = HOLDER,
				      .keys = w->keys,
				      .log = &w->log,
				      .instance = instance };
	SIM_CHECK(rpc_client_new(&w->holder_loop, &co, &w->client, &why) == ERR_NONE, "%s",
		  why.text);
}

static void holder_over(void *arg)
{
	struct world *w = arg;
	sim_loop_close(&w->holder_loop);
	sim_proc_end(w->holder);
	w->holder_over = true;
}

static void server_closed(void *arg)
{
	struct world *w = arg;
	sim_at_proc(w->holder, sim_now_ns(w->sim), holder_over, w);
}

static void client_closed(void *arg)
{
	struct world *w = arg;
	rpc_server_close(w->server, server_closed, w);
}

static void on_done(struct rpc_call *c)
{
	struct world *w = container_of(c, struct world, call);
	w->busy = false;
}

static void register_it(struct world *w)
{
	struct bytes addr = BYTES_STR("sim://h/agent");
	struct msg_segment s = { 0, 1 << 20, 1 << 20 };
	struct msg_register_req q = { .holder = BYTES_STR(HOLDER),
				      .kind = 1,
				      .addrs = { &addr, 1 },
				      .host = BYTES_STR("host"),
				      .pool_epoch = 1,
				      .segments = { &s, 1 } };
	buf_clear(&w->body);
	enc_register_req(&w->body, &q);
	w->call = (struct rpc_call){ .method = METHOD_REGISTER,
				     .body = buf_bytes(&w->body),
				     .done = on_done,
				     .deadline_ns = clock_after_ms(loop_now_ns(&w->holder_loop),
								   500) };
	w->busy = true;
	rpc_send(w->client, &w->call);
}

/* ---- the master ---- */

static void run_over(void *arg)
{
	struct world *w = arg;
	free(w->svc);
	meta_fs_free(w->fs);
	sim_loop_close(&w->loop);
	sim_proc_end(w->proc);
	w->over = true;
}

static void on_closed(struct svc *s, void *arg)
{
	struct world *w = arg;
	(void)s;
	sim_at_proc(w->proc, sim_now_ns(w->sim), run_over, w);
}

static void master_open(struct world *w)
{
	static const char *const listen[] = { "sim://s/master" };
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
	w->svc = calloc(1, mst_def.size);
	SIM_CHECK(svc_open(w->svc, &mst_def, &env, &why) == ERR_NONE, "%s", why.text);
}

static bool ended(void *arg)
{
	struct world *w = arg;
	return w->over && w->holder_over;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint8_t secret[32] = { 6 };
	struct world *w = calloc(1, sizeof(*w));
	w->p = p;
	w->end = p + n;
	w->quiet.fn = no_line;
	w->body.limit = 1 << 20;
	w->sim = sim_new(1);
	SIM_CHECK(keyring_new(secret, NULL, &w->keys) == ERR_NONE, "no keys");
	master_open(w);
	holder_open(w);
	sim_run_ms(w->sim, 100);
	register_it(w);
	sim_run_ms(w->sim, 3000);
	SIM_CHECK(!w->over && !w->busy && w->svc->state == SVC_RUNNING, "the master went");
	mind_check(mst_of(w->svc)->term.mind);
	rpc_client_close(w->client, client_closed, w);
	svc_stop(w->svc, 0);
	SIM_CHECK(sim_run_until(w->sim, ended, w, 10000), "it does not end");
	sim_free(w->sim);
	keyring_free(w->keys);
	buf_fini(&w->body);
	free(w);
	return 0;
}
