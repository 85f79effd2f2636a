/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages into the rpc server's core, from an engine that is none. Input: records of a byte of kind,
 * two bytes of length and that many bytes.
 *
 *   0  a message as it is           3  an authentic request: first byte method, rest body
 *   1  the body of a HELLO          4  an authentic tag over these bytes as an envelope
 *   2  the body of a PROVE          5  what is held or parked is answered; a connection closes
 *
 * Each message must be answered or dropped exactly once, by the end; memory and counters balance.
 */
#include "rpc/rpc_srv.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define HELD_MAX 64

/* ---- a loop that stands still ---- */

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
	return 1000 * NS_PER_S;
}

static const struct loop_driver driver = { .wake = no_wake,
					   .arm = no_arm,
					   .random = same_random };
static const struct clock still = { .now_ns = now_ns, .wall_ms = now_ns };

/* ---- an engine that only counts ---- */

struct world {
	struct loop loop;
	struct rpc_server *s;
	struct eng_conn conn;
	struct rpc_req *held[HELD_MAX];
	uint32_t n_held;
	uint64_t n_in, n_out;
	bool closed;
	uint8_t reply[WIRE_MESSAGE_MAX / 64];
	size_t n_reply;
	/* the honest client whose key we have */
	struct auth_session ses;
};

static struct world *world_of(struct eng_server *s)
{
	return (struct world *)(void *)s;
}

static void e_reply(struct eng_server *s, struct eng_token t, const struct bytes *parts, int n)
{
	struct world *w = world_of(s);
	w->n_out++;
	w->n_reply = 0;
	for (int i = 0; i < n; i++) {
		if (w->n_reply + parts[i].n <= sizeof(w->reply))
			memcpy(w->reply + w->n_reply, parts[i].p, parts[i].n);
		w->n_reply += parts[i].n;
	}
}

static void e_drop(struct eng_server *s, struct eng_token t)
{
	world_of(s)->n_out++;
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

static void e_close(struct eng_server *s, uint32_t ms, void (*closed)(void *arg), void *arg)
{
	closed(arg);
}

static const struct engine fake = {
	.name = "fuzz",
	.reply = e_reply,
	.drop = e_drop,
	.known = e_known,
	.conn_close = e_known,
	.conn_name = e_conn_name,
	.drain = e_drain,
	.server_close = e_close,
};

/* ---- handlers ---- */

static void do_echo(void *ctx, struct rpc_req *r)
{
	rpc_reply(r, ERR_NONE, 0, r->body);
}

static void do_hold(void *ctx, struct rpc_req *r)
{
	struct world *w = ctx;
	if (w->n_held == HELD_MAX || (r->method == 52 && rpc_park(r) != ERR_NONE)) {
		struct why why = { 0 };
		why_set(&why, ERR_BUSY, "full");
		rpc_reply_why(r, &why, 1);
		return;
	}
	w->held[w->n_held++] = r;
}

static void release(struct world *w)
{
	for (uint32_t i = 0; i < w->n_held; i++)
		rpc_reply(w->held[i], ERR_NONE, 0, w->held[i]->body);
	w->n_held = 0;
}

/* ---- messages ---- */

static void deliver(struct world *w, const uint8_t *p, size_t n)
{
	uint8_t *copy = malloc(n + 1); /* its end is ASan's to guard */
	assert(copy);
	memcpy(copy, p, n);
	w->n_in++;
	rpc_server_events.request(&w->s->sides[0], &w->conn, (struct eng_token){ 0 },
				  BYTES(copy, n), ENG_BORROWED);
	free(copy);
}

static void deliver_parts(struct world *w, const struct env_parts *out)
{
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	for (int i = 0; i < out->n; i++)
		buf_put(&b, out->p[i].p, out->p[i].n);
	deliver(w, b.p, b.n);
	buf_fini(&b);
}

static void plain(struct world *w, enum method m, const uint8_t *p, size_t n)
{
	struct buf b = BUF_INIT(64 << 10);
	struct env_parts out;
	struct msg_request q = {
		.v = 1, .method = m, .id = 1, .deadline_ms = 10, .body = BYTES(p, n)
	};
	enum err e = env_request(&b, &q, NULL, &out);
	assert(e == ERR_NONE);
	deliver_parts(w, &out);
	buf_fini(&b);
}

static void authentic(struct world *w, const uint8_t *p, size_t n)
{
	struct buf b = BUF_INIT(64 << 10);
	struct env_parts out;
	if (n == 0)
		return;
	struct msg_request q = { .v = 1,
				 .method = p[0],
				 .session = w->ses.id,
				 .id = w->n_in,
				 .deadline_ms = 10,
				 .body = BYTES(p + 1, n - 1) };
	enum err e = auth_next_seq(&w->ses, &q.seq);
	assert(e == ERR_NONE);
	e = env_request(&b, &q, &w->ses, &out);
	assert(e == ERR_NONE);
	deliver_parts(w, &out);
	buf_fini(&b);
}

/* Whatever the envelope says its sequence is, the tag is over our next one. */
static void signed_bytes(struct world *w, const uint8_t *p, size_t n)
{
	struct buf b = BUF_INIT(64 << 10);
	uint64_t seq;
	struct iovec v = { (void *)p, n };
	uint8_t tag[AUTH_TAG_BYTES];
	enum err e = auth_next_seq(&w->ses, &seq);
	assert(e == ERR_NONE);
	e = auth_tag(&w->ses, seq, &v, 1, tag);
	assert(e == ERR_NONE);
	buf_put(&b, p, n);
	buf_put(&b, tag, sizeof(tag));
	deliver(w, b.p, b.n);
	buf_fini(&b);
}

static void conn_closes(struct world *w)
{
	rpc_server_events.closed(&w->s->sides[0], &w->conn);
	assert(list_empty(&w->conn.requests) && !w->conn.user);
	w->conn.known = false;
}

static void record(struct world *w, uint8_t kind, const uint8_t *p, size_t n)
{
	switch (kind % 6) {
	case 0:
		deliver(w, p, n);
		break;
	case 1:
		plain(w, METHOD_HELLO, p, n);
		break;
	case 2:
		plain(w, METHOD_PROVE, p, n);
		break;
	case 3:
		authentic(w, p, n);
		break;
	case 4:
		signed_bytes(w, p, n);
		break;
	default:
		if (n % 2)
			conn_closes(w);
		release(w);
	}
}

/* ---- life ---- */

static struct bytes reply_body(struct world *w)
{
	struct msg_reply m;
	assert(w->n_reply > AUTH_TAG_BYTES);
	struct dec d = DEC_INIT(BYTES(w->reply, w->n_reply - AUTH_TAG_BYTES), NULL, NULL);
	enum err e = dec_reply(&d, &m);
	assert(e == ERR_NONE && m.status == 0);
	return m.body;
}

static void shake_hands(struct world *w, const struct keyring *k)
{
	static const uint8_t instance[16] = "fuzz";
	struct hello_client *h;
	struct peer server;
	struct why why = { 0 };
	struct buf b = BUF_INIT(8 << 10);
	struct hello_client_opts o = { .keys = k,
				       .role = ROLE_ADMIN,
				       .instance = instance,
				       .v_min = 1,
				       .v_max = 1,
				       .random = { NULL, NULL } };
	enum err e = hello_client_new(&o, &h, &why);
	assert(e == ERR_NONE);
	e = hello_client_start(h, &b);
	assert(e == ERR_NONE);
	plain(w, METHOD_HELLO, b.p, b.n);
	buf_clear(&b);
	e = hello_client_challenge(h, reply_body(w), &b, &why);
	assert(e == ERR_NONE);
	plain(w, METHOD_PROVE, b.p, b.n);
	e = hello_client_welcome(h, reply_body(w), &w->ses, &server, NULL, &why);
	assert(e == ERR_NONE);
	hello_client_free(h);
	buf_fini(&b);
}

static void no_line(struct log_capture *c, const char *line, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		assert((unsigned char)line[i] >= 0x20);
}

static void on_closed(void *arg)
{
	((struct world *)arg)->closed = true;
}

static void open_world(struct world *w, const struct keyring *k, const struct log *log)
{
	static const uint8_t instance[16] = "server";
	struct rpc_server_opts o = {
		.limits = { .message_bytes_max = 64 << 10,
			    .conns_max = 10,
			    .inflight_max = 8,
			    .inflight_peer_max = 8,
			    .inside_bytes_max = 20000,
			    .parked_bytes_max = 20000,
			    .sessions_max = 4 },
		.keys = k,
		.log = log,
		.instance = instance,
		.role = ROLE_SERVICE,
		.name = "fuzz",
	};
	loop_init(&w->loop, &driver, NULL, &still);
	enum err e = rpc_server_new(&w->loop, &o, &w->s);
	assert(e == ERR_NONE);
	const struct rpc_method rows[] = {
		{ 50, "ECHO", ~0u, do_echo, w, true },
		{ 51, "HOLD", ~0u, do_hold, w, false },
		{ 52, "PARK", ~0u, do_hold, w, false },
		{ 53, "FORBIDDEN", 0, do_echo, w, true },
	};
	rpc_server_add(w->s, rows, ARRAY_LEN(rows));
	w->s->sides[0] = (struct side){ w->s, &fake, (struct eng_server *)(void *)w };
	w->s->n_sides = 1;
	list_init(&w->conn.requests);
}

static void close_world(struct world *w)
{
	release(w);
	conn_closes(w);
	assert(w->n_in == w->n_out);
	assert(rpc_server_inflight(w->s) == 0 && w->s->c.bytes_parked == 0);
	assert(w->s->copied_bytes == 0);
	rpc_server_close(w->s, on_closed, w);
	while (!w->closed)
		loop_turn(&w->loop);
	auth_session_fini(&w->ses);
	loop_fini(&w->loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "fuzz";
	static struct keyring *k;
	static struct log log = { .svc = "fuzz", .fd = 2 };
	static struct log_capture capture = { no_line };
	static struct world w;
	if (!k) {
		enum err e = keyring_new(secret, NULL, &k);
		assert(e == ERR_NONE);
		log_set_capture(&log, &capture);
	}
	memset(&w, 0, sizeof(w));
	open_world(&w, k, &log);
	shake_hands(&w, k);
	while (n >= 3) {
		size_t len = MIN_OF((size_t)(p[1] | p[2] << 8), n - 3);
		record(&w, p[0], p + 3, len);
		p += 3 + len;
		n -= 3 + len;
	}
	close_world(&w);
	return 0;
}
