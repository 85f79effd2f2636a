/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams of the simulated network: each on its own, none of them certain.
 */
#include "rpc/net_sim_priv.h"

#include <stdio.h>
#include <string.h>

struct net_dgram {
	struct list node; /* net_sim_port.dgrams */
	struct net_sim_port *port;
	char name[NET_NAME_MAX + 1];
	void (*recv)(void *ctx, const char *from, struct bytes b);
	void *ctx;
	struct list in;
	size_t n_in;
	uint32_t refs; /* itself until close, an event */
	bool closed, reading;
};

static struct net_dgram *find(struct net_sim *n, const struct mach *m, const char *name)
{
	list_for_each (i, &n->ports) {
		struct net_sim_port *p = list_entry(i, struct net_sim_port, node);
		if (p->mach != m || p->cut)
			continue;
		list_for_each (j, &p->dgrams) {
			struct net_dgram *d = list_entry(j, struct net_dgram, node);
			if (strcmp(d->name, name) == 0)
				return d;
		}
	}
	return NULL;
}

enum err net_dgram_open(struct net_sim_port *p, const char *addr,
			void (*recv)(void *ctx, const char *from, struct bytes b), void *ctx,
			struct net_dgram **out, struct why *why)
{
	char node[NET_NAME_MAX + 1], name[NET_NAME_MAX + 1];
	if (!net_addr_parse(addr, node, name))
		return why_set(why, ERR_INVALID_PARAMS, "datagrams at %s: want sim://NODE/NAME",
			       addr);
	if (strcmp(node, p->mach->name) != 0)
		return why_set(why, ERR_INVALID_PARAMS, "datagrams at %s: this is node %s",
			       addr, p->mach->name);
	if (find(p->net, p->mach, name))
		return why_set(why, ERR_BUSY, "datagrams at %s: the name is taken", addr);
	struct net_dgram *d = net_alloc(sizeof(*d));
	d->port = p;
	d->recv = recv;
	d->ctx = ctx;
	d->refs = 1;
	snprintf(d->name, sizeof(d->name), "%s", name);
	list_init(&d->in);
	list_push_back(&p->dgrams, &d->node);
	*out = d;
	return ERR_NONE;
}

static void unref(struct net_dgram *d)
{
	if (--d->refs == 0)
		free(d);
}

static void read_all(void *arg)
{
	struct net_dgram *d = arg;
	d->reading = false;
	while (!d->closed) {
		struct list *i = list_pop_front(&d->in);
		if (!i)
			break;
		d->n_in--;
		struct packet *p = list_entry(i, struct packet, node);
		char from[NET_ADDR_MAX];
		snprintf(from, sizeof(from), "sim://%s/%s", p->link->from->name, p->src);
		d->recv(d->ctx, from, BYTES(p->bytes, p->n));
		net_packet_free(p);
	}
	unref(d);
}

void net_dgram_arrive(struct packet *p)
{
	struct net_dgram *d = p->link->cut ? NULL : find(p->net, p->link->to, p->dst);
	if (!d || d->n_in >= NET_DGRAMS_MAX) {
		p->net->c.datagrams_lost++;
		net_packet_free(p);
		return;
	}
	list_push_back(&d->in, &p->node);
	d->n_in++;
	if (d->reading)
		return;
	d->reading = true;
	d->refs++;
	net_soon(d->port, read_all, d);
}

static void send_one(struct net_dgram *d, struct link *l, const char *name, struct bytes b)
{
	struct net_sim *n = d->port->net;
	struct packet *p = net_packet(l, P_DGRAM, b.n);
	snprintf(p->dst, sizeof(p->dst), "%s", name);
	snprintf(p->src, sizeof(p->src), "%s", d->name);
	if (b.n)
		memcpy(p->bytes, b.p, b.n);
	uint64_t late = net_chance(n, l->set.reorder_ppm) ? l->set.reorder_us * 1000ull : 0;
	net_depart(p, net_travel(l, b.n) + net_below(n, late + 1));
}

void net_dgram_send(struct net_dgram *d, const char *to, struct bytes b)
{
	char node[NET_NAME_MAX + 1], name[NET_NAME_MAX + 1];
	struct net_sim *n = d->port->net;
	n->c.datagrams++;
	if (d->port->cut || b.n > NET_DGRAM_BYTES || !net_addr_parse(to, node, name) ||
	    n->c.bytes > NET_BYTES_MAX) {
		n->c.datagrams_lost++;
		return;
	}
	struct link *l = net_link(n, d->port->mach, net_mach(n, node));
	if (l->cut || net_chance(n, l->set.dgram_loss_ppm)) {
		n->c.datagrams_lost++;
		return;
	}
	send_one(d, l, name, b);
	if (net_chance(n, l->set.dgram_dup_ppm))
		send_one(d, l, name, b);
}

void net_dgram_close(struct net_dgram *d)
{
	d->closed = true;
	list_del(&d->node);
	for (struct list *i; (i = list_pop_front(&d->in));)
		net_packet_free(list_entry(i, struct packet, node));
	unref(d);
}
