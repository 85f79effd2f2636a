/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile server, as the rpc client's core meets it over an engine that is none. Input: records of
 * a byte of kind, two bytes of length and that many bytes.
 *
 *   0  the oldest exchange is answered with these bytes as they are
 *   1  with these bytes as the body of a plain answer, status in the first byte
 *   2  as the honest server would (HELLO, PROVE and calls alike)
 *   3  the newest exchange, by an honest server, with one of its bytes changed
 *   4  the connection breaks      5  time passes; the first byte tells how much
 *   6  a call is sent             7  a call is cancelled
 *
 * Each call must end exactly once, and never well unless the honest server answered it.
 */
#include "rpc/rpc_cli.h"
#include "rpc/rpc_srv.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define OUT_MAX	  64
#define CALLS_MAX 8

/* ---- a loop whose time we move ---- */

static uint64_t now;

static void no_wake(struct loop *l)
{
}

static void no_arm(struct loop *l, uint64_t due)
{
}

static void same_random(struct loop *l, void *p, size_t n)
{
	memset(p, 7, n);
}

static uint64_t now_ns(const struct clock *c)
{
	return now;
}

static const struct loop_driver driver = { .wake = no_wake,
					   .arm = no_arm,
					   .random = same_random };
static const struct clock ours = { .now_ns = now_ns, .wall_ms = now_ns };

/* ---- the engine ---- */

struct out {
	struct eng_xchg *x;
	uint8_t *msg; /* owned */
	size_t n;
};

struct world {
	struct loop loop;
	struct rpc_client *cl;
	struct rpc_server *s; /* the honest one */
	struct eng_conn conn;
	const struct eng_peer_events *events;
	void *ctx;
	bool up;
	struct out out[OUT_MAX];
	uint32_t n_out;
	struct post up_post;
	struct rpc_call calls[CALLS_MAX];
	bool busy[CALLS_MAX];
	uint32_t n_honest, n_good;
	bool closed, client_closed;
	uint8_t reply[64 << 10]; /* the honest server's last */
	size_t n_reply;
};

static struct world w;

static void forget(uint32_t i)
{
	free(w.out[i].msg);
	w.out[i] = w.out[--w.n_out];
}

static void tell_up(struct post *p)
{
	if (w.up)
		w.events->up(w.ctx);
}

static enum err e_dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		       struct why *why)
{
	w.events = o->events;
	w.ctx = o->ctx;
	w.up = true;
	w.up_post.fn = tell_up;
	if (!w.up_post.queued)
		loop_defer(l, &w.up_post);
	*out = (struct eng_peer *)(void *)&w;
	return ERR_NONE;
}

static enum err e_send(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts, int n)
{
	if (!w.up)
		return ERR_CONN_LOST;
	if (w.n_out == OUT_MAX)
		return ERR_BUSY;
	struct buf b = BUF_INIT(1 << 20);
	for (int i = 0; i < n; i++)
		buf_put(&b, parts[i].p, parts[i].n);
	w.out[w.n_out++] = (struct out){ .x = x, .msg = b.p, .n = b.n };
	return ERR_NONE;
}

static void e_cancel(struct eng_peer *p, struct eng_xchg *x)
{
	for (uint32_t i = 0; i < w.n_out; i++)
		if (w.out[i].x == x) {
			forget(i);
			return;
		}
}

struct hung {
	struct post post;
	void (*closed)(void *arg);
	void *arg;
};

static void tell_hung(struct post *p)
{
	struct hung *h = container_of(p, struct hung, post);
	h->closed(h->arg);
	free(h);
}

static void e_hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg)
{
	struct hung *h = calloc(1, sizeof(*h));
	assert(h);
	*h = (struct hung){ .post.fn = tell_hung, .closed = closed, .arg = arg };
	w.up = false;
	while (w.n_out > 0)
		forget(0);
	loop_defer(&w.loop, &h->post);
}

static void e_reply(struct eng_server *s, struct eng_token t, const struct bytes *parts, int n)
{
	w.n_reply = 0;
	for (int i = 0; i < n; i++) {
		assert(w.n_reply + parts[i].n <= sizeof(w.reply));
		if (parts[i].n > 0)
			memcpy(w.reply + w.n_reply, parts[i].p, parts[i].n);
		w.n_reply += parts[i].n;
	}
}

static void e_drop(struct eng_server *s, struct eng_token t)
{
	w.n_reply = 0;
}

static void e_known(struct eng_server *s, struct eng_conn *c)
{
	c->known = true;
}

static void e_conn_name(const struct eng_conn *c, char *out, size_t size)
{
	strncpy(out, "tcp 192.0.2.1:1", size);
}

static void e_drain(struct eng_server *s)
{
}

static void e_server_close(struct eng_server *s, uint32_t ms, void (*closed)(void *arg),
			   void *arg)
{
	closed(arg);
}

static const struct engine fake = {
	.name = "fuzz",
	.dial = e_dial,
	.send = e_send,
	.cancel = e_cancel,
	.hangup = e_hangup,
	.reply = e_reply,
	.drop = e_drop,
	.known = e_known,
	.conn_close = e_known,
	.conn_name = e_conn_name,
	.drain = e_drain,
	.server_close = e_server_close,
};

/* ---- the server's moves ---- */

static void answer(uint32_t i, const uint8_t *p, size_t n)
{
	struct eng_xchg *x = w.out[i].x;
	uint8_t *copy = malloc(n + 1); /* its end is ASan's to guard */
	assert(copy);
	if (n > 0)
		memcpy(copy, p, n);
	forget(i);
	x->done(x, ERR_NONE, BYTES(copy, n));
	free(copy);
}

static void plain(uint32_t i, const uint8_t *p, size_t n)
{
	struct buf b = BUF_INIT(1 << 20);
	struct env_parts out;
	struct msg_request q = { 0 };
	struct dec d = DEC_INIT(BYTES(w.out[i].msg, w.out[i].n - AUTH_TAG_BYTES), NULL, NULL);
	enum err e = dec_request(&d, &q);
	assert(e == ERR_NONE && n > 0);
	struct msg_reply m = {
		.v = 1, .id = q.id, .status = p[0], .body = BYTES(p + 1, n - 1)
	};
	e = env_reply(&b, &m, NULL, &out);
	assert(e == ERR_NONE);
	struct buf all = BUF_INIT(1 << 20);
	for (int k = 0; k < out.n; k++)
		buf_put(&all, out.p[k].p, out.p[k].n);
	answer(i, all.p, all.n);
	buf_fini(&all);
	buf_fini(&b);
}

static void honest(uint32_t i, const uint8_t *p, size_t n)
{
	rpc_server_events.request(&w.s->sides[0], &w.conn, (struct eng_token){ 0 },
				  BYTES(w.out[i].msg, w.out[i].n), ENG_BORROWED);
	if (n >= 2 && w.n_reply > 0) {
		if (p[1] == 0)
			w.n_honest++;
		w.reply[p[0] % w.n_reply] ^= p[1];
	} else {
		w.n_honest++;
	}
	answer(i, w.reply, w.n_reply);
}

static void breaks(void)
{
	w.up = false;
	while (w.n_out > 0) {
		struct eng_xchg *x = w.out[0].x;
		forget(0);
		x->done(x, ERR_CONN_LOST, BYTES(NULL, 0));
	}
	rpc_server_events.closed(&w.s->sides[0], &w.conn);
	if (w.cl->peer)
		w.events->down(w.ctx, ERR_CONN_LOST, "it broke");
}

static void on_done(struct rpc_call *c)
{
	uint32_t i = (uint32_t)(c - w.calls);
	assert(w.busy[i]);
	w.busy[i] = false;
	w.n_good += c->err == ERR_NONE;
	assert(c->err == ERR_NONE || c->why.text[0]);
}

static void send_call(const uint8_t *p, size_t n)
{
	uint32_t i = 0;
	while (i < CALLS_MAX && w.busy[i])
		i++;
	if (i == CALLS_MAX)
		return;
	w.busy[i] = true;
	w.calls[i] = (struct rpc_call){ .method = 50,
					.idempotent = n & 1,
					.deadline_ns = clock_after_ms(now, 5000),
					.done = on_done };
	rpc_send(w.cl, &w.calls[i]);
}

static void record(uint8_t kind, const uint8_t *p, size_t n)
{
	switch (kind % 8) {
	case 0:
		if (w.n_out > 0)
			answer(0, p, n);
		break;
	case 1:
		if (w.n_out > 0 && n > 0)
			plain(0, p, n);
		break;
	case 2:
		if (w.n_out > 0)
			honest(0, NULL, 0);
		break;
	case 3:
		if (w.n_out > 0)
			honest(w.n_out - 1, p, n);
		break;
	case 4:
		if (w.up)
			breaks();
		break;
	case 5:
		now += (n > 0 ? p[0] : 1) * 20 * NS_PER_MS;
		break;
	case 6:
		send_call(p, n);
		break;
	default:
		if (n > 0 && w.busy[p[0] % CALLS_MAX])
			rpc_cancel(&w.calls[p[0] % CALLS_MAX]);
	}
	loop_turn(&w.loop);
}

/* ---- life ---- */

static void do_echo(void *ctx, struct rpc_req *r)
{
	rpc_reply(r, ERR_NONE, 0, r->body);
}

static void no_line(struct log_capture *c, const char *line, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		assert((unsigned char)line[i] >= 0x20);
}

static void set_flag(void *arg)
{
	*(bool *)arg = true;
}

static void open_world(const struct keyring *k, const struct log *log)
{
	static const uint8_t instance[16] = "fuzz";
	const char *addr = "tcp://192.0.2.1:1";
	struct why why = { 0 };
	memset(&w, 0, sizeof(w));
	now = 1000 * NS_PER_S;
	loop_init(&w.loop, &driver, NULL, &ours);
	struct rpc_server_opts so = { .limits = { .conns_max = 10, .sessions_max = 4 },
				      .keys = k,
				      .log = log,
				      .instance = instance,
				      .role = ROLE_SERVICE,
				      .name = "fuzz" };
	enum err e = rpc_server_new(&w.loop, &so, &w.s);
	assert(e == ERR_NONE);
	const struct rpc_method row = { 50, "ECHO", ~0u, do_echo, NULL, true };
	rpc_server_add(w.s, &row, 1);
	w.s->sides[0] = (struct side){ w.s, &fake, (struct eng_server *)(void *)&w };
	w.s->n_sides = 1;
	list_init(&w.conn.requests);
	struct rpc_client_opts co = { .addrs = &addr,
				      .n_addrs = 1,
				      .peer_name = "fuzz",
				      .as = ROLE_ADMIN,
				      .expect = ROLE_SERVICE,
				      .keys = k,
				      .log = log,
				      .instance = instance };
	e = rpc_client_new(&w.loop, &co, &w.cl, &why);
	assert(e == ERR_NONE);
	w.cl->targets[0].engine = &fake;
}

static void close_world(void)
{
	rpc_client_close(w.cl, set_flag, &w.client_closed);
	for (int i = 0; !w.client_closed; i++) {
		assert(i < 100);
		loop_turn(&w.loop);
	}
	for (uint32_t i = 0; i < CALLS_MAX; i++)
		assert(!w.busy[i]);
	assert(w.n_good <= w.n_honest);
	rpc_server_events.closed(&w.s->sides[0], &w.conn);
	rpc_server_close(w.s, set_flag, &w.closed);
	while (!w.closed)
		loop_turn(&w.loop);
	loop_fini(&w.loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "fuzz";
	static struct keyring *k;
	static struct log log = { .svc = "fuzz", .fd = 2 };
	static struct log_capture capture = { no_line };
	if (!k) {
		enum err e = keyring_new(secret, NULL, &k);
		assert(e == ERR_NONE);
		log_set_capture(&log, &capture);
	}
	open_world(k, &log);
	send_call(p, 1);
	loop_turn(&w.loop);
	while (n >= 3) {
		size_t len = MIN_OF((size_t)(p[1] | p[2] << 8), n - 3);
		record(p[0], p + 3, len);
		p += 3 + len;
		n -= 3 + len;
	}
	close_world();
	return 0;
}
