/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines, links, packets and ports of the simulated network.
 */
#include "rpc/net_sim_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define US 1000ull
#define MS 1000000ull

/* One box's loopback or a quiet rack: 20..60 us. */
static const struct net_link quiet = { .latency_us = 20, .jitter_us = 40, .reorder_us = 2000 };

/* How long does this cut last? */
struct cut {
	struct list node; /* net_sim.cuts */
	struct link *l;
	uint32_t n;
};

/* The network has the memory of the test's process: without it the run is void. Not by malloc,
 * which tests let fail for the code that runs in the simulation. */
void *net_alloc(size_t n)
{
	void *p;
	if (posix_memalign(&p, 16, n) != 0)
		abort();
	return memset(p, 0, n);
}

uint64_t net_below(struct net_sim *n, uint64_t below)
{
	if (below <= 1)
		return 0;
	return (uint64_t)(((unsigned __int128)n->w.rand(n->w.ctx) * below) >> 64);
}

bool net_chance(struct net_sim *n, uint32_t ppm)
{
	return ppm > 0 && net_below(n, 1000000) < ppm;
}

void net_note(struct net_sim *n, bool fault, const char *fmt, ...)
{
	char text[160];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n->w.note(n->w.ctx, fault, text);
}

struct net_sim *net_sim_new(const struct net_sim_world *w)
{
	struct net_sim *n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	n->w = *w;
	n->dflt = quiet;
	list_init(&n->machs);
	list_init(&n->links);
	list_init(&n->ports);
	list_init(&n->packets);
	list_init(&n->streams);
	list_init(&n->cuts);
	return n;
}

void net_sim_free(struct net_sim *n)
{
	if (!n)
		return;
	assert(list_empty(&n->ports));
	list_for_each_safe (i, &n->packets)
		free(list_entry(i, struct packet, all));
	list_for_each_safe (i, &n->streams)
		free(list_entry(i, struct stream, node));
	list_for_each_safe (i, &n->cuts)
		free(list_entry(i, struct cut, node));
	list_for_each_safe (i, &n->links)
		free(list_entry(i, struct link, node));
	list_for_each_safe (i, &n->machs)
		free(list_entry(i, struct mach, node));
	free(n);
}

void net_sim_counters(const struct net_sim *n, struct net_sim_counters *out)
{
	*out = n->c;
}

/* ---- machines and links ---- */

struct mach *net_mach(struct net_sim *n, const char *name)
{
	list_for_each (i, &n->machs) {
		struct mach *m = list_entry(i, struct mach, node);
		if (strcmp(m->name, name) == 0)
			return m;
	}
	struct mach *m = net_alloc(sizeof(*m));
	snprintf(m->name, sizeof(m->name), "%s", name);
	list_push_back(&n->machs, &m->node);
	return m;
}

struct link *net_link(struct net_sim *n, struct mach *from, struct mach *to)
{
	list_for_each (i, &n->links) {
		struct link *l = list_entry(i, struct link, node);
		if (l->from == from && l->to == to)
			return l;
	}
	struct link *l = net_alloc(sizeof(*l));
	l->net = n;
	l->from = from;
	l->to = to;
	l->set = n->dflt;
	list_init(&l->held);
	list_push_back(&n->links, &l->node);
	return l;
}

void net_link_get(struct net_sim *n, const char *from, const char *to, struct net_link *out)
{
	*out = from ? net_link(n, net_mach(n, from), net_mach(n, to))->set : n->dflt;
}

void net_link_set(struct net_sim *n, const char *from, const char *to,
		  const struct net_link *set)
{
	if (from) {
		struct link *l = net_link(n, net_mach(n, from), net_mach(n, to));
		l->set = *set;
		l->own = true;
		return;
	}
	n->dflt = *set;
	list_for_each (i, &n->links) {
		struct link *l = list_entry(i, struct link, node);
		if (!l->own)
			l->set = *set;
	}
}

static void cut_lasts(void *arg)
{
	struct cut *cut = arg;
	if (cut->l->cut && cut->l->n_cuts == cut->n)
		net_link_timeout(cut->l);
	list_del(&cut->node);
	free(cut);
}

void net_link_cut(struct net_sim *n, const char *from, const char *to)
{
	struct link *l = net_link(n, net_mach(n, from), net_mach(n, to));
	if (l->cut || l->from == l->to)
		return;
	net_note(n, true, "cut %s -> %s", from, to);
	l->cut = true;
	l->n_cuts++;
	struct cut *cut = net_alloc(sizeof(*cut));
	*cut = (struct cut){ .l = l, .n = l->n_cuts };
	list_push_back(&n->cuts, &cut->node);
	/* an idle stream: one keepalive interval, then the time to give up */
	n->w.at(n->w.ctx, NULL, n->w.now_ns(n->w.ctx) + 2 * NET_GIVE_UP_MS * MS, cut_lasts,
		cut);
}

bool net_link_is_cut(const struct net_sim *n, const char *from, const char *to)
{
	list_for_each (i, &n->links) {
		const struct link *l = list_entry(i, struct link, node);
		if (strcmp(l->from->name, from) == 0 && strcmp(l->to->name, to) == 0)
			return l->cut;
	}
	return false;
}

/* Retransmission timers double while a link is cut: what waited comes up to 1.5 s late. */
static void heal(struct net_sim *n, struct link *l)
{
	if (!l->cut)
		return;
	net_note(n, true, "heal %s -> %s", l->from->name, l->to->name);
	l->cut = false;
	uint64_t at = n->w.now_ns(n->w.ctx) + 1 * MS + net_below(n, 1500 * MS);
	for (struct list *i; (i = list_pop_front(&l->held));) {
		struct packet *p = list_entry(i, struct packet, node);
		n->c.packets_waiting--;
		at = net_stream_requeue(p, at + 1 + net_below(n, 50 * US));
		net_depart(p, at);
	}
}

void net_link_heal(struct net_sim *n, const char *a, const char *b)
{
	list_for_each (i, &n->links) {
		struct link *l = list_entry(i, struct link, node);
		if (!a || (strcmp(l->from->name, a) == 0 && strcmp(l->to->name, b) == 0) ||
		    (strcmp(l->from->name, b) == 0 && strcmp(l->to->name, a) == 0))
			heal(n, l);
	}
}

void net_link_spike(struct net_sim *n, const char *from, const char *to, uint32_t extra_ms,
		    uint32_t for_ms)
{
	net_note(n, true, "%s -> %s takes %u ms more for %u ms", from, to, extra_ms, for_ms);
	struct link *l = net_link(n, net_mach(n, from), net_mach(n, to));
	l->spike_ns = extra_ms * MS;
	l->spike_until_ns = n->w.now_ns(n->w.ctx) + for_ms * MS;
}

static bool between(const struct stream *s, const char *a, const char *b)
{
	const char *x = s->e[0].mach->name, *y = s->e[1].mach->name;
	if (!b)
		return strcmp(x, a) == 0 || strcmp(y, a) == 0;
	return (strcmp(x, a) == 0 && strcmp(y, b) == 0) ||
	       (strcmp(x, b) == 0 && strcmp(y, a) == 0);
}

/* And goes over a wire that can fail. */
static bool stands(const struct stream *s)
{
	return s->e[0].state == END_OPEN && s->e[1].state == END_OPEN &&
	       s->e[0].mach != s->e[1].mach;
}

size_t net_reset(struct net_sim *n, const char *a, const char *b)
{
	size_t hit = 0;
	list_for_each_safe (i, &n->streams) {
		struct stream *s = list_entry(i, struct stream, node);
		if (!stands(s) || !between(s, a, b))
			continue;
		net_stream_reset(s);
		hit++;
	}
	net_note(n, true, "reset %zu streams of %s and %s", hit, a, b ? b : "all");
	return hit;
}

size_t net_black_hole(struct net_sim *n, const char *a, const char *b)
{
	size_t hit = 0;
	list_for_each (i, &n->streams) {
		struct stream *s = list_entry(i, struct stream, node);
		if (s->hole || !stands(s) || !between(s, a, b))
			continue;
		net_stream_hole(s);
		hit++;
	}
	net_note(n, true, "%zu streams of %s and %s swallow", hit, a, b ? b : "all");
	return hit;
}

/* ---- packets ---- */

struct packet *net_packet(struct link *l, enum packet_kind kind, size_t n_bytes)
{
	struct packet *p = net_alloc(sizeof(*p) + n_bytes);
	p->link = l;
	p->kind = kind;
	p->n = n_bytes;
	return p;
}

void net_packet_free(struct packet *p)
{
	struct net_sim *n = p->net;
	n->c.bytes -= p->n;
	if (p->stream) {
		p->stream->e[p->to].queued -= p->charged;
		net_stream_unref(p->stream);
	}
	list_del(&p->all);
	list_del(&p->node);
	free(p);
}

uint64_t net_travel(struct link *l, size_t n_bytes)
{
	struct net_sim *n = l->net;
	uint64_t now = n->w.now_ns(n->w.ctx), at = now;
	if (l->set.bytes_per_s) {
		l->free_ns =
			MAX_OF(l->free_ns, now) + n_bytes * 1000000000ull / l->set.bytes_per_s;
		at = l->free_ns;
	}
	if (now < l->spike_until_ns)
		at += l->spike_ns;
	return at + l->set.latency_us * US + net_below(n, l->set.jitter_us * US + 1);
}

static void arrive(void *arg)
{
	struct packet *p = arg;
	if (p->kind == P_DGRAM) {
		net_dgram_arrive(p);
		return;
	}
	if (p->link->cut) {
		p->net->c.packets_waiting++;
		net_stream_stuck(p);
		list_push_back(&p->link->held, &p->node);
		return;
	}
	net_stream_arrive(p);
}

void net_depart(struct packet *p, uint64_t when_ns)
{
	struct net_sim *n = p->link->net;
	if (!p->net) {
		p->net = n;
		list_push_back(&n->packets, &p->all);
		n->c.bytes += p->n;
		n->c.bytes_peak = MAX_OF(n->c.bytes_peak, n->c.bytes);
	}
	n->w.at(n->w.ctx, NULL, when_ns, arrive, p);
}

/* ---- ports ---- */

struct net_sim_port *net_sim_port_new(struct net_sim *n, const char *node, void *owner)
{
	struct net_sim_port *p = net_alloc(sizeof(*p));
	p->net = n;
	p->mach = net_mach(n, node);
	p->owner = owner;
	list_init(&p->ends);
	list_init(&p->listeners);
	list_init(&p->dgrams);
	list_push_back(&n->ports, &p->node);
	return p;
}

void net_sim_port_cut(struct net_sim_port *p, bool silent)
{
	p->cut = true;
	net_port_cut_streams(p, silent);
}

void net_sim_port_free(struct net_sim_port *p)
{
	if (!p)
		return;
	assert(list_empty(&p->ends) && list_empty(&p->listeners) && list_empty(&p->dgrams));
	list_del(&p->node);
	free(p);
}

void net_event(struct net_sim_port *p, uint64_t when_ns, void (*fn)(void *arg), void *arg)
{
	struct net_sim *n = p->net;
	n->w.at(n->w.ctx, p->owner, when_ns, fn, arg);
}

void net_soon(struct net_sim_port *p, void (*fn)(void *arg), void *arg)
{
	struct net_sim *n = p->net;
	net_event(p, n->w.now_ns(n->w.ctx) + 500 + net_below(n, 20 * US), fn, arg);
}

bool net_addr_parse(const char *addr, char *node, char *name)
{
	if (strncmp(addr, "sim://", 6) != 0)
		return false;
	const char *slash = strchr(addr + 6, '/');
	if (!slash)
		return false;
	size_t n = (size_t)(slash - (addr + 6)), m = strlen(slash + 1);
	if (n == 0 || n > NET_NAME_MAX || m == 0 || m > NET_NAME_MAX || strchr(slash + 1, '/'))
		return false;
	memcpy(node, addr + 6, n);
	node[n] = 0;
	memcpy(name, slash + 1, m + 1);
	return true;
}
