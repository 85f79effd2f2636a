/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sim engine: exchanges over the streams of net_sim.h. A message is a 4-byte request id and the
 * body, both ways, as in SP; the simulated stream greets and frames by itself.
 *
 * I1: a connection is freed when its closed has run and its last token has ended.
 * I2: a paused connection is looked at again every POLL_MS, or when a token ends.
 *
 * Thread: the loop's.
 */
#include "rpc/engine.h"
#include "rpc/net_sim.h"

#include <stdio.h>
#include <string.h>

#define POLL_MS 1
#define STABLE_BYTES \
	4096 /* from here on a request is kept for its token, as sp does with large ones */
#define PARTS_MAX 8

struct eng_server {
	struct loop *loop;
	struct net_sim_port *port;
	struct eng_server_opts o;
	struct list listeners, all, anon;
	uint32_t n_open, n_anon, n_refs;
	uint64_t held; /* bytes of requests kept for tokens */
	struct timer late, poll;
	bool draining;
	void (*closed)(void *arg);
	void *arg;
	struct post post;
};

struct listener {
	struct list node;
	struct net_listener *net;
};

struct conn {
	struct eng_conn c;
	struct eng_server *server;
	struct net_end *end; /* NULL: closed */
	struct list all, anon;
	char name[NET_NAME_MAX + 8];
	uint64_t accepted_ns;
	uint32_t n_tokens;
	bool told, paused, gone;
	struct post post;
};

/* A token of a large request keeps its bytes. */
struct kept {
	struct conn *conn;
	uint32_t id;
	size_t n;
	uint8_t bytes[];
};
#define TOKEN_KEPT (1ull << 32)

static uint32_t get_id(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_id(uint8_t *p, uint32_t id)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(id >> (24 - 8 * i));
}

static struct net_sim_port *port_of(struct loop *l)
{
	return l->driver->net ? l->driver->net(l) : NULL;
}

/* ---- the server's connections ---- */

static void server_unref(struct eng_server *s);

static void conn_release(struct conn *c)
{
	struct eng_server *s = c->server;
	if (!c->gone || c->n_tokens > 0)
		return;
	free(c);
	server_unref(s);
}

static void conn_gone(struct post *p)
{
	struct conn *c = container_of(p, struct conn, post);
	struct eng_server *s = c->server;
	list_del(&c->all);
	c->gone = true;
	c->n_tokens++; /* ours, while the core ends its own */
	if (c->told)
		s->o.events->closed(s->o.ctx, &c->c);
	c->n_tokens--;
	conn_release(c);
}

static void leave_anon(struct conn *c)
{
	if (!list_linked(&c->anon))
		return;
	list_del(&c->anon);
	c->server->n_anon--;
}

static void conn_end(struct conn *c, bool reset)
{
	struct eng_server *s = c->server;
	if (!c->end)
		return;
	leave_anon(c);
	s->n_open--;
	s->o.counters->conns_open--;
	net_end_close(TAKE(c->end), reset);
	c->post.fn = conn_gone;
	loop_defer(s->loop, &c->post);
}

static void conn_drop(struct conn *c)
{
	if (c->end)
		c->server->o.counters->conns_dropped++;
	conn_end(c, true);
}

static void protocol_error(struct conn *c, const char *text)
{
	struct eng_server *s = c->server;
	s->o.counters->bad_frames++;
	LOG_WARN(s->o.log, "rpc", "peer=\"%s\" msg=\"%s; connection closed\"", c->name, text);
	conn_drop(c);
}

static bool over(const struct conn *c)
{
	const struct eng_server *s = c->server;
	return s->held > s->o.limits.inside_bytes_max ||
	       net_end_queued(c->end) > s->o.limits.conn_queue_bytes_max;
}

static void poll_paused(struct timer *t);

static void look_at(struct conn *c)
{
	struct eng_server *s = c->server;
	if (!c->end)
		return;
	bool pause = over(c);
	if (pause && !timer_running(&s->poll))
		timer_start(s->loop, &s->poll, loop_now_ns(s->loop) + POLL_MS * NS_PER_MS,
			    poll_paused);
	if (pause != c->paused)
		net_end_pause(c->end, pause);
	c->paused = pause;
}

static void poll_paused(struct timer *t)
{
	struct eng_server *s = container_of(t, struct eng_server, poll);
	list_for_each_safe (n, &s->all)
		if (list_entry(n, struct conn, all)->paused)
			look_at(list_entry(n, struct conn, all));
}

/* ---- requests and replies ---- */

static bool keep(struct conn *c, struct bytes msg, struct eng_token *t)
{
	struct kept *k = malloc(sizeof(*k) + msg.n);
	if (!k)
		return false;
	*k = (struct kept){ .conn = c, .id = get_id(msg.p), .n = msg.n };
	memcpy(k->bytes, msg.p, msg.n);
	c->server->held += msg.n;
	*t = (struct eng_token){ .p = k, .u = TOKEN_KEPT };
	return true;
}

static void on_request(void *ctx, struct bytes msg)
{
	struct conn *c = ctx;
	struct eng_server *s = c->server;
	const struct eng_limits *lim = &s->o.limits;
	s->o.counters->bytes_in += msg.n;
	if (msg.n < 4 ||
	    msg.n - 4 > (c->c.known ? lim->message_bytes_max : lim->anon_message_bytes_max)) {
		protocol_error(c,
			       msg.n < 4 ? "a request without an id" : "a message too large");
		return;
	}
	struct eng_token t = { .p = c, .u = get_id(msg.p) };
	enum eng_life life = msg.n >= STABLE_BYTES ? ENG_STABLE : ENG_BORROWED;
	if (life == ENG_STABLE && !keep(c, msg, &t)) {
		conn_drop(c);
		return;
	}
	const uint8_t *p = life == ENG_STABLE ? ((struct kept *)t.p)->bytes : msg.p;
	c->n_tokens++;
	c->told = true;
	s->o.events->request(s->o.ctx, &c->c, t, BYTES(p + 4, msg.n - 4), life);
	look_at(c); /* c is not freed in here: conn_gone comes by a post */
}

static struct conn *token_conn(struct eng_token t)
{
	return t.u & TOKEN_KEPT ? ((struct kept *)t.p)->conn : t.p;
}

static void token_end(struct eng_server *s, struct eng_token t)
{
	struct conn *c = token_conn(t);
	if (t.u & TOKEN_KEPT) {
		struct kept *k = t.p;
		s->held -= k->n;
		free(k);
	}
	assert(c->n_tokens > 0);
	c->n_tokens--;
	conn_release(c);
}

/* Who reads least pays. */
static void shed_queue(struct eng_server *s)
{
	struct conn *worst = NULL;
	uint64_t sum = 0;
	list_for_each (n, &s->all) {
		struct conn *c = list_entry(n, struct conn, all);
		if (!c->end)
			continue;
		sum += net_end_queued(c->end);
		if (!worst || net_end_queued(c->end) > net_end_queued(worst->end))
			worst = c;
	}
	s->o.counters->bytes_queued = sum;
	if (worst && sum > s->o.limits.queue_bytes_max)
		conn_drop(worst);
}

static void reply(struct eng_server *s, struct eng_token t, const struct bytes *parts, int n)
{
	struct conn *c = token_conn(t);
	struct bytes all[PARTS_MAX + 1];
	uint8_t id[4];
	assert(n <= PARTS_MAX);
	put_id(id, t.u & TOKEN_KEPT ? ((struct kept *)t.p)->id : (uint32_t)t.u);
	all[0] = BYTES(id, sizeof(id));
	for (int i = 0; i < n; i++) {
		all[i + 1] = parts[i];
		s->o.counters->bytes_out += c->end ? parts[i].n : 0;
	}
	if (c->end)
		net_end_send(c->end, all, n + 1);
	shed_queue(s);
	token_end(s, t);
}

static void drop(struct eng_server *s, struct eng_token t)
{
	conn_drop(token_conn(t));
	token_end(s, t);
}

static void known(struct eng_server *s, struct eng_conn *ec)
{
	(void)s;
	ec->known = true;
	leave_anon(container_of(ec, struct conn, c));
}

static void conn_close(struct eng_server *s, struct eng_conn *ec)
{
	struct conn *c = container_of(ec, struct conn, c);
	if (c->end)
		s->o.counters->conns_dropped++;
	conn_end(c, false);
}

static void conn_name(const struct eng_conn *ec, char *out, size_t size)
{
	const struct conn *c = container_of((struct eng_conn *)ec, struct conn, c);
	snprintf(out, size, "%s", c->name);
}

/* ---- accepting ---- */

static void on_conn_down(void *ctx, enum err e, const char *text)
{
	(void)e, (void)text;
	conn_end(ctx, false);
}

static const struct net_end_events conn_events = { .message = on_request,
						   .down = on_conn_down };

static void on_late(struct timer *t);

static void arm_late(struct eng_server *s)
{
	if (list_empty(&s->anon) || timer_running(&s->late))
		return;
	const struct conn *c = list_entry(s->anon.next, struct conn, anon);
	timer_start(s->loop, &s->late, clock_after_ms(c->accepted_ns, s->o.limits.handshake_ms),
		    on_late);
}

static void on_late(struct timer *t)
{
	struct eng_server *s = container_of(t, struct eng_server, late);
	uint64_t max_ns = s->o.limits.handshake_ms * NS_PER_MS;
	while (!list_empty(&s->anon)) {
		struct conn *c = list_entry(s->anon.next, struct conn, anon);
		if (loop_now_ns(s->loop) - c->accepted_ns < max_ns)
			break;
		conn_drop(c);
	}
	arm_late(s);
}

/* Makes room for one more; false: it has to go itself. */
static bool admit(struct eng_server *s)
{
	if (s->n_open >= s->o.limits.conns_max && s->n_anon == 0)
		return false;
	if (s->n_open >= s->o.limits.conns_max || s->n_anon >= s->o.limits.conns_anon_max)
		conn_drop(list_entry(s->anon.next, struct conn, anon));
	return true;
}

static void on_accept(void *ctx, struct net_end *e)
{
	struct eng_server *s = ctx;
	struct conn *c = s->draining || !admit(s) ? NULL : calloc(1, sizeof(*c));
	if (!c) {
		s->o.counters->conns_refused++;
		net_end_close(e, true);
		return;
	}
	c->server = s;
	c->end = e;
	c->accepted_ns = loop_now_ns(s->loop);
	snprintf(c->name, sizeof(c->name), "sim %s", net_end_peer(e));
	list_init(&c->c.requests);
	list_push_back(&s->all, &c->all);
	list_push_back(&s->anon, &c->anon);
	s->n_open++;
	s->n_anon++;
	s->n_refs++;
	s->o.counters->conns_open++;
	s->o.counters->conns_accepted++;
	net_end_events_set(e, &conn_events, c);
	arm_late(s);
}

static enum err listen_at(struct eng_server *s, const char *addr, char *bound,
			  size_t bound_size, struct why *why)
{
	struct listener *l = malloc(sizeof(*l));
	if (!l)
		return why_set(why, ERR_NO_MEMORY, "listen on %.160s: no memory", addr);
	enum err e = net_listen(s->port, addr, on_accept, s, &l->net, why);
	if (e != ERR_NONE) {
		free(l);
		return e;
	}
	list_push_back(&s->listeners, &l->node);
	if (bound)
		snprintf(bound, bound_size, "%s", addr);
	return ERR_NONE;
}

/* ---- the server ---- */

static enum err server_new(struct loop *l, const struct eng_server_opts *o,
			   struct eng_server **out)
{
	if (!port_of(l))
		return ERR_UNSUPPORTED;
	struct eng_server *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->loop = l;
	s->port = port_of(l);
	s->o = *o;
	s->n_refs = 1;
	list_init(&s->listeners);
	list_init(&s->all);
	list_init(&s->anon);
	*out = s;
	return ERR_NONE;
}

static void drain(struct eng_server *s)
{
	s->draining = true;
	list_for_each_safe (n, &s->listeners) {
		struct listener *l = list_entry(n, struct listener, node);
		net_unlisten(l->net);
		free(l);
	}
	list_init(&s->listeners);
}

static void server_gone(struct post *p)
{
	struct eng_server *s = container_of(p, struct eng_server, post);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->arg;
	timer_stop(s->loop, &s->late);
	timer_stop(s->loop, &s->poll);
	free(s);
	closed(arg);
}

static void server_unref(struct eng_server *s)
{
	if (--s->n_refs > 0)
		return;
	s->post.fn = server_gone;
	loop_defer(s->loop, &s->post);
}

/* What was sent is on its way already: there is nothing to flush. */
static void server_close(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
			 void *arg)
{
	(void)flush_ms;
	s->closed = closed;
	s->arg = arg;
	drain(s);
	list_for_each (n, &s->all)
		conn_end(list_entry(n, struct conn, all), false);
	server_unref(s);
}

/* ---- the client ---- */

struct eng_peer {
	struct loop *loop;
	struct net_end *end; /* NULL: over */
	struct eng_dial_opts o;
	struct list out; /* exchanges */
	uint32_t next_id, n_out;
	bool up, over;
	struct timer late;
	struct post post;
	void (*closed)(void *arg);
	void *arg;
};

static void peer_down(struct eng_peer *p, enum err e, const char *text)
{
	if (p->over)
		return;
	p->over = true;
	p->up = false;
	timer_stop(p->loop, &p->late);
	net_end_close(TAKE(p->end), e == ERR_TIMED_OUT);
	for (struct list *n; (n = list_pop_front(&p->out));) {
		struct eng_xchg *x = list_entry(n, struct eng_xchg, node);
		p->n_out--;
		x->done(x, ERR_CONN_LOST, BYTES(NULL, 0));
	}
	if (!p->closed)
		p->o.events->down(p->o.ctx, e, text);
}

static void on_up(void *ctx)
{
	struct eng_peer *p = ctx;
	timer_stop(p->loop, &p->late);
	p->up = true;
	p->o.events->up(p->o.ctx);
}

static void on_reply(void *ctx, struct bytes msg)
{
	struct eng_peer *p = ctx;
	if (msg.n < 4 || msg.n - 4 > p->o.limits.message_bytes_max) {
		peer_down(p, ERR_BAD_MESSAGE, "a reply of a size that cannot be");
		return;
	}
	uint32_t id = get_id(msg.p);
	list_for_each (n, &p->out) {
		struct eng_xchg *x = list_entry(n, struct eng_xchg, node);
		if (x->id != id)
			continue;
		list_del(&x->node);
		p->n_out--;
		x->done(x, ERR_NONE, BYTES(msg.p + 4, msg.n - 4));
		return;
	}
}

static void on_peer_down(void *ctx, enum err e, const char *text)
{
	peer_down(ctx, e, text);
}

static const struct net_end_events peer_events = {
	.up = on_up,
	.message = on_reply,
	.down = on_peer_down,
};

static void on_dial_late(struct timer *t)
{
	peer_down(container_of(t, struct eng_peer, late), ERR_TIMED_OUT,
		  "no answer to the connect");
}

static enum err dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		     struct why *why)
{
	if (!port_of(l))
		return why_set(why, ERR_UNSUPPORTED,
			       "connect to %.160s: sim:// addresses exist in a simulation only",
			       o->addr);
	struct eng_peer *p = calloc(1, sizeof(*p));
	if (!p)
		return why_set(why, ERR_NO_MEMORY, "connect to %.160s: no memory", o->addr);
	p->loop = l;
	p->o = *o;
	list_init(&p->out);
	enum err e = net_dial(port_of(l), o->addr, &peer_events, p, &p->end, why);
	if (e != ERR_NONE) {
		free(p);
		return e;
	}
	timer_start(l, &p->late, clock_after_ms(loop_now_ns(l), o->limits.handshake_ms),
		    on_dial_late);
	*out = p;
	return ERR_NONE;
}

static enum err send_request(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts,
			     int n)
{
	if (!p->up)
		return ERR_CONN_LOST;
	if (net_end_queued(p->end) > p->o.limits.queue_bytes_max)
		return ERR_BUSY;
	struct bytes all[PARTS_MAX + 1];
	uint8_t id[4];
	assert(n <= PARTS_MAX);
	x->id = p->next_id++;
	put_id(id, x->id);
	all[0] = BYTES(id, sizeof(id));
	memcpy(all + 1, parts, (size_t)n * sizeof(*parts));
	list_push_back(&p->out, &x->node);
	p->n_out++;
	net_end_send(p->end, all, n + 1);
	return ERR_NONE;
}

static void cancel(struct eng_peer *p, struct eng_xchg *x)
{
	if (!list_linked(&x->node))
		return;
	list_del(&x->node);
	p->n_out--;
}

static void peer_gone(struct post *post)
{
	struct eng_peer *p = container_of(post, struct eng_peer, post);
	void (*closed)(void *arg) = p->closed;
	void *arg = p->arg;
	free(p);
	closed(arg);
}

static void hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg)
{
	p->closed = closed;
	p->arg = arg;
	p->over = true;
	p->up = false;
	timer_stop(p->loop, &p->late);
	while (list_pop_front(&p->out))
		continue;
	if (p->end)
		net_end_close(TAKE(p->end), false);
	p->post.fn = peer_gone;
	loop_defer(p->loop, &p->post);
}

static bool can(const char *addr)
{
	return strncmp(addr, "sim://", 6) == 0;
}

const struct engine engine_sim = {
	.name = "sim",
	.can = can,
	.server_new = server_new,
	.listen = listen_at,
	.reply = reply,
	.drop = drop,
	.known = known,
	.conn_close = conn_close,
	.conn_name = conn_name,
	.drain = drain,
	.server_close = server_close,
	.dial = dial,
	.send = send_request,
	.cancel = cancel,
	.hangup = hangup,
};
