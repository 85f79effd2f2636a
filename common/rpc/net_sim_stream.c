/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the simulated network. The kernel's half runs in events of nobody (packets arrive, SYNs
 * are answered, whoever may be stopped); the process's half in events of the port's owner, which read
 * what has arrived.
 *
 * I1: an end is in its port's list from dial, or SYN, to net_end_close.
 * I2: a stream lives while an end is open, a packet is under way or an event will look at it.
 */
#include "rpc/net_sim_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BACKLOG_MAX 4096

static struct net_end *other(struct net_end *e)
{
	return &e->stream->e[e == &e->stream->e[0]];
}

static struct net_sim *net_of(const struct net_end *e)
{
	return e->stream->net;
}

static uint64_t now(const struct net_sim *n)
{
	return n->w.now_ns(n->w.ctx);
}

void net_stream_unref(struct stream *s)
{
	assert(s->refs > 0);
	if (--s->refs > 0)
		return;
	list_del(&s->node);
	free(s);
}

static struct stream *stream_new(struct net_sim *n, struct mach *from, struct mach *to,
				 const char *name)
{
	struct stream *s = net_alloc(sizeof(*s));
	s->net = n;
	s->id = ++n->next_stream;
	snprintf(s->name, sizeof(s->name), "%s", name);
	for (int i = 0; i < 2; i++) {
		s->e[i].stream = s;
		s->e[i].mach = i ? to : from;
		list_init(&s->e[i].in);
	}
	list_push_back(&n->streams, &s->node);
	n->c.streams++;
	return s;
}

/* ---- packets out ---- */

static struct packet *packet_to(struct net_end *to, enum packet_kind kind, size_t n_bytes)
{
	struct net_sim *n = net_of(to);
	struct packet *p = net_packet(net_link(n, other(to)->mach, to->mach), kind, n_bytes);
	p->sent_ns = now(n);
	p->stream = to->stream;
	p->to = to == &to->stream->e[1];
	to->stream->refs++;
	return p;
}

/* In order behind all that was sent in order; a FIN behind everything. */
static void depart_in_order(struct net_end *to, struct packet *p)
{
	uint64_t at = net_travel(p->link, p->n);
	at = MAX_OF(at, to->last_ns + 1);
	if (p->kind == P_FIN)
		at = MAX_OF(at, to->max_ns + 1);
	to->last_ns = at;
	to->max_ns = MAX_OF(to->max_ns, at);
	net_depart(p, at);
}

static void send_control(struct net_end *to, enum packet_kind kind)
{
	depart_in_order(to, packet_to(to, kind, 0));
}

uint64_t net_stream_requeue(struct packet *p, uint64_t when_ns)
{
	if (!p->stream)
		return when_ns;
	struct net_end *to = &p->stream->e[p->to];
	to->stuck_ns = 0;
	to->last_ns = MAX_OF(to->last_ns, when_ns);
	to->max_ns = MAX_OF(to->max_ns, when_ns);
	/* some stacks or middle boxes have given the stream up meanwhile */
	if (p->kind == P_MESSAGE && net_chance(p->net, 50000))
		net_stream_reset(p->stream);
	return when_ns;
}

static void hand_over(struct net_end *e, struct packet *p);

static void reset_now(struct net_end *e)
{
	if (e->state == END_OPEN || e->state == END_SYN)
		hand_over(e, packet_to(e, P_RST, 0));
}

/* Both ends learn of it, each in its own time. */
void net_stream_reset(struct stream *s)
{
	s->refs++;
	for (int i = 0; i < 2; i++)
		if (s->e[i].state == END_OPEN || s->e[i].state == END_SYN)
			send_control(&s->e[i], P_RST);
	net_stream_unref(s);
}

/* ---- giving up ---- */

/* e's own kernel says so, whatever the other side knows. */
static void give_up(struct net_end *e)
{
	if (e->state != END_OPEN || e->port->cut)
		return;
	net_note(net_of(e), false, "stream %s - %s is given up by %s",
		 e->stream->e[0].mach->name, e->stream->e[1].mach->name, e->mach->name);
	reset_now(e);
}

static void stuck_for_long(void *arg)
{
	struct net_end *to = arg;
	struct stream *s = to->stream;
	uint64_t max_ns = NET_GIVE_UP_MS * 1000000ull;
	if (to->stuck_ns && now(s->net) - to->stuck_ns < max_ns) {
		s->net->w.at(s->net->w.ctx, NULL, to->stuck_ns + max_ns, stuck_for_long, to);
		return;
	}
	to->watched = false;
	if (to->stuck_ns)
		give_up(other(to));
	net_stream_unref(s);
}

void net_stream_stuck(struct packet *p)
{
	struct net_end *to = &p->stream->e[p->to];
	struct net_sim *n = p->net;
	if (p->kind != P_MESSAGE || to->stuck_ns)
		return;
	to->stuck_ns = p->sent_ns;
	if (to->watched)
		return;
	to->watched = true;
	to->stream->refs++;
	n->w.at(n->w.ctx, NULL, p->sent_ns + NET_GIVE_UP_MS * 1000000ull, stuck_for_long, to);
}

void net_link_timeout(struct link *l)
{
	list_for_each_safe (i, &l->net->streams) {
		struct stream *s = list_entry(i, struct stream, node);
		bool over = (s->e[0].mach == l->from && s->e[1].mach == l->to) ||
			    (s->e[1].mach == l->from && s->e[0].mach == l->to);
		if (!over)
			continue;
		s->refs++;
		give_up(&s->e[0]);
		give_up(&s->e[1]);
		net_stream_unref(s);
	}
}

static void hole_lasts(void *arg)
{
	struct stream *s = arg;
	give_up(&s->e[0]);
	give_up(&s->e[1]);
	net_stream_unref(s);
}

/* Keepalive probes find out in the end, if no message does before. */
void net_stream_hole(struct stream *s)
{
	struct net_sim *n = s->net;
	s->hole = true;
	s->refs++;
	n->w.at(n->w.ctx, NULL,
		now(n) + (NET_GIVE_UP_MS + net_below(n, NET_GIVE_UP_MS)) * 1000000ull,
		hole_lasts, s);
}

/* ---- the process's half ---- */

static void read_one(struct net_end *e, struct packet *p)
{
	const struct net_end_events *ev = e->ev;
	switch (p->kind) {
	case P_SYNACK:
		ev->up(e->ctx);
		return;
	case P_MESSAGE:
		ev->message(e->ctx, BYTES(p->bytes, p->n));
		return;
	case P_FIN:
		e->state = END_DOWN;
		ev->down(e->ctx, ERR_CONN_LOST, "closed by the peer");
		return;
	case P_RST:
		e->state = END_DOWN;
		ev->down(e->ctx, ERR_CONN_LOST, "connection reset");
		return;
	case P_REFUSED:
		e->state = END_DOWN;
		ev->down(e->ctx, ERR_UNREACHABLE, "connection refused");
		return;
	case P_SYN:
	case P_DGRAM:
		break;
	}
	abort(); /* never handed over */
}

static bool readable(const struct net_end *e)
{
	if (!e->ev || (e->state != END_OPEN && e->state != END_SYN) || list_empty(&e->in))
		return false;
	const struct packet *p = list_entry(e->in.next, struct packet, node);
	return !e->paused || p->kind == P_RST;
}

static void read_all(void *arg)
{
	struct net_end *e = arg;
	struct stream *s = e->stream;
	e->reading = false;
	while (readable(e)) {
		struct packet *p = list_entry(list_pop_front(&e->in), struct packet, node);
		read_one(e, p);
		net_packet_free(p);
	}
	net_stream_unref(s);
}

static void wake_reader(struct net_end *e)
{
	if (e->reading || !readable(e))
		return;
	e->reading = true;
	e->stream->refs++;
	net_soon(e->port, read_all, e);
}

static void drop_in(struct net_end *e)
{
	for (struct list *i; (i = list_pop_front(&e->in));)
		net_packet_free(list_entry(i, struct packet, node));
}

/* p has arrived in e's buffer. A reset may throw away what was not read yet. */
static void hand_over(struct net_end *e, struct packet *p)
{
	if (!p->net) { /* made here, not sent */
		p->net = net_of(e);
		list_push_back(&p->net->packets, &p->all);
	}
	if (p->kind == P_SYNACK)
		e->state = END_OPEN;
	if (p->kind == P_RST && net_chance(p->net, 500000))
		drop_in(e);
	list_push_back(&e->in, &p->node);
	wake_reader(e);
}

/* ---- the kernel's half ---- */

static struct net_listener *find_listener(struct net_sim *n, const struct mach *m,
					  const char *name)
{
	list_for_each (i, &n->ports) {
		struct net_sim_port *p = list_entry(i, struct net_sim_port, node);
		if (p->mach != m || p->cut)
			continue;
		list_for_each (j, &p->listeners) {
			struct net_listener *l = list_entry(j, struct net_listener, node);
			if (strcmp(l->name, name) == 0)
				return l;
		}
	}
	return NULL;
}

static void listener_unref(struct net_listener *l)
{
	if (--l->refs == 0)
		free(l);
}

static void accept_all(void *arg)
{
	struct net_listener *l = arg;
	l->accepting = false;
	while (!l->closed) {
		struct list *i = list_pop_front(&l->backlog);
		if (!i)
			break;
		l->n_backlog--;
		struct net_end *e = list_entry(i, struct net_end, backlog);
		struct stream *s = e->stream;
		if (l->port->cut) {
			net_end_close(e, true);
			continue;
		}
		s->refs++;
		l->accept(l->ctx, e);
		assert(e->ev || e->state == END_CLOSED);
		if (e->state != END_CLOSED)
			wake_reader(e);
		net_stream_unref(s);
	}
	listener_unref(l);
}

static void syn_arrives(struct net_end *e)
{
	struct net_sim *n = net_of(e);
	struct net_listener *l = find_listener(n, e->mach, e->stream->name);
	if (other(e)->state != END_SYN)
		return;
	if (!l || l->n_backlog >= BACKLOG_MAX) {
		send_control(other(e), P_REFUSED);
		return;
	}
	e->state = END_OPEN;
	e->port = l->port;
	e->stream->refs++;
	n->c.streams_open++;
	list_push_back(&l->port->ends, &e->node);
	list_push_back(&l->backlog, &e->backlog);
	l->n_backlog++;
	send_control(other(e), P_SYNACK);
	if (l->accepting)
		return;
	l->accepting = true;
	l->refs++;
	net_soon(l->port, accept_all, l);
}

/* What comes to an end that is no more is answered by a reset. */
static void answer_reset(struct net_end *e)
{
	struct net_end *o = other(e);
	if (o->state == END_OPEN || o->state == END_SYN)
		send_control(o, P_RST);
}

static bool swallowed(const struct packet *p)
{
	const struct stream *s = p->stream;
	return s->hole || p->sent_ns < s->e[!p->to].lost_before_ns;
}

void net_stream_arrive(struct packet *p)
{
	struct net_end *e = &p->stream->e[p->to];
	if (swallowed(p)) {
		if (p->stream->hole)
			net_stream_stuck(p);
		net_packet_free(p);
		return;
	}
	if (p->kind == P_SYN) {
		syn_arrives(e);
		net_packet_free(p);
		return;
	}
	bool open = e->state == END_OPEN || e->state == END_SYN;
	if (!open || e->port->cut) {
		if (p->kind == P_MESSAGE || p->kind == P_SYNACK)
			answer_reset(e);
		net_packet_free(p);
		return;
	}
	hand_over(e, p);
}

/* ---- calls ---- */

enum err net_listen(struct net_sim_port *p, const char *addr,
		    void (*accept)(void *ctx, struct net_end *e), void *ctx,
		    struct net_listener **out, struct why *why)
{
	char node[NET_NAME_MAX + 1], name[NET_NAME_MAX + 1];
	if (!net_addr_parse(addr, node, name))
		return why_set(why, ERR_INVALID_PARAMS, "listen %s: want sim://NODE/NAME",
			       addr);
	if (strcmp(node, p->mach->name) != 0)
		return why_set(why, ERR_INVALID_PARAMS, "listen %s: this is node %s", addr,
			       p->mach->name);
	if (find_listener(p->net, p->mach, name))
		return why_set(why, ERR_BUSY, "listen %s: the name is taken", addr);
	struct net_listener *l = net_alloc(sizeof(*l));
	l->port = p;
	l->accept = accept;
	l->ctx = ctx;
	l->refs = 1;
	snprintf(l->name, sizeof(l->name), "%s", name);
	list_init(&l->backlog);
	list_push_back(&p->listeners, &l->node);
	*out = l;
	return ERR_NONE;
}

void net_unlisten(struct net_listener *l)
{
	l->closed = true;
	list_del(&l->node);
	for (struct list *i; (i = list_pop_front(&l->backlog));)
		net_end_close(list_entry(i, struct net_end, backlog), true);
	listener_unref(l);
}

enum err net_dial(struct net_sim_port *p, const char *addr, const struct net_end_events *ev,
		  void *ctx, struct net_end **out, struct why *why)
{
	char node[NET_NAME_MAX + 1], name[NET_NAME_MAX + 1];
	if (!net_addr_parse(addr, node, name))
		return why_set(why, ERR_INVALID_PARAMS, "dial %s: want sim://NODE/NAME", addr);
	struct stream *s = stream_new(p->net, p->mach, net_mach(p->net, node), name);
	struct net_end *e = &s->e[0];
	s->refs = 1;
	e->port = p;
	e->state = END_SYN;
	e->ev = ev;
	e->ctx = ctx;
	list_push_back(&p->ends, &e->node);
	if (p->cut)
		reset_now(e);
	else
		send_control(&s->e[1], P_SYN);
	*out = e;
	return ERR_NONE;
}

void net_end_events_set(struct net_end *e, const struct net_end_events *ev, void *ctx)
{
	e->ev = ev;
	e->ctx = ctx;
}

uint64_t net_end_queued(const struct net_end *e)
{
	return e->stream->e[e == &e->stream->e[0]].queued;
}

static struct packet *message_to(struct net_end *to, const struct bytes *parts, int n_parts)
{
	size_t n = 0;
	for (int i = 0; i < n_parts; i++)
		n += parts[i].n;
	struct packet *p = packet_to(to, P_MESSAGE, n);
	for (size_t at = 0, i = 0; i < (size_t)n_parts; at += parts[i].n, i++)
		if (parts[i].n)
			memcpy(p->bytes + at, parts[i].p, parts[i].n);
	p->charged = n;
	to->queued += n;
	return p;
}

static void depart_message(struct net_end *to, struct packet *p)
{
	struct net_sim *n = net_of(to);
	if (!net_chance(n, p->link->set.reorder_ppm)) {
		depart_in_order(to, p);
		return;
	}
	uint64_t at =
		net_travel(p->link, p->n) + net_below(n, p->link->set.reorder_us * 1000ull);
	to->max_ns = MAX_OF(to->max_ns, at);
	net_depart(p, at);
}

static void double_it(struct net_end *to, const struct packet *p)
{
	struct bytes b = BYTES(p->bytes, p->n);
	struct packet *again = message_to(to, &b, 1);
	struct net_sim *n = net_of(to);
	uint64_t at =
		net_travel(p->link, p->n) + net_below(n, p->link->set.reorder_us * 1000ull);
	to->max_ns = MAX_OF(to->max_ns, at);
	n->c.doubled++;
	net_depart(again, at);
}

void net_end_send(struct net_end *e, const struct bytes *parts, int n_parts)
{
	struct net_sim *n = net_of(e);
	struct net_end *to = other(e);
	if (e->state != END_OPEN || e->port->cut)
		return;
	struct packet *p = message_to(to, parts, n_parts);
	n->c.messages++;
	if (n->c.bytes > NET_BYTES_MAX || net_chance(n, p->link->set.break_ppm)) {
		bool arrives = n->c.bytes <= NET_BYTES_MAX && net_chance(n, 500000);
		net_note(n, true, "stream %s -> %s breaks, its message %s", e->mach->name,
			 to->mach->name, arrives ? "arrives" : "is lost");
		n->c.broken++;
		if (arrives) {
			depart_in_order(to, p);
		} else {
			p->net = n; /* never left */
			n->c.bytes += p->n;
			net_packet_free(p);
		}
		net_stream_reset(e->stream);
		return;
	}
	bool twice = net_chance(n, p->link->set.dup_ppm);
	if (twice)
		double_it(to, p);
	depart_message(to, p);
}

void net_end_pause(struct net_end *e, bool paused)
{
	e->paused = paused;
	wake_reader(e);
}

void net_end_close(struct net_end *e, bool reset)
{
	struct stream *s = e->stream;
	assert(e->state != END_CLOSED && e->state != END_NONE);
	bool tell = e->state == END_OPEN && !e->port->cut, unread = !list_empty(&e->in);
	if (e->state != END_SYN && e == &s->e[1])
		s->net->c.streams_open--;
	e->state = END_CLOSED;
	list_del(&e->node);
	list_del(&e->backlog);
	drop_in(e);
	if (tell)
		send_control(other(e), reset || unread ? P_RST : P_FIN);
	net_stream_unref(s);
}

const char *net_end_peer(const struct net_end *e)
{
	return e->stream->e[e == &e->stream->e[0]].mach->name;
}

/* ---- a killed process ---- */

static void cut_end(struct net_end *e, bool silent)
{
	struct net_sim *n = net_of(e);
	bool open = e->state == END_OPEN || e->state == END_SYN;
	if (!open)
		return;
	bool unread = !list_empty(&e->in);
	if (silent) {
		e->lost_before_ns = net_chance(n, 500000) ? now(n) : 0;
	} else if (e->state == END_OPEN) {
		send_control(other(e), unread ? P_RST : P_FIN);
	}
	drop_in(e);
	if (e->ev)
		reset_now(e);
}

void net_port_cut_streams(struct net_sim_port *p, bool silent)
{
	list_for_each_safe (i, &p->ends)
		cut_end(list_entry(i, struct net_end, node), silent);
}
