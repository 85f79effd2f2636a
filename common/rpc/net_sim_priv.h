/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the three files of the simulated network share: net_sim.c (machines, links, packets, ports),
 * net_sim_stream.c, net_sim_dgram.c.
 */
#pragma once

#include "rpc/net_sim.h"

#include "base/list.h"

enum packet_kind { P_SYN, P_SYNACK, P_REFUSED, P_MESSAGE, P_FIN, P_RST, P_DGRAM };

struct mach {
	struct list node; /* net_sim.machs */
	char name[NET_NAME_MAX + 1];
};

struct link {
	struct list node; /* net_sim.links */
	struct net_sim *net;
	struct mach *from, *to;
	struct net_link set;
	bool own; /* set was given for this link; else the default holds */
	bool cut;
	uint32_t n_cuts; /* so far: which cut a timeout belongs to */
	uint64_t spike_until_ns, spike_ns;
	uint64_t free_ns; /* when the wire has sent what it was given, at bytes_per_s */
	struct list held; /* packets that wait for the end of a cut */
};

struct packet {
	struct list all;  /* net_sim.packets */
	struct list node; /* link.held, net_end.in, net_dgram.in */
	struct net_sim *net;
	struct link *link;
	enum packet_kind kind;
	struct stream *stream; /* a reference; NULL for a datagram */
	int to;		       /* which end it goes to */
	uint64_t sent_ns;
	uint64_t charged; /* bytes counted in the receiving end's queued */
	char dst[NET_NAME_MAX + 1], src[NET_NAME_MAX + 1]; /* names, for a datagram */
	size_t n;
	uint8_t bytes[];
};

struct net_sim_port {
	struct list node; /* net_sim.ports */
	struct net_sim *net;
	struct mach *mach;
	void *owner;
	bool cut;
	struct list ends, listeners, dgrams;
};

enum end_state {
	END_NONE, /* the far one, until its SYN arrives */
	END_SYN,
	END_OPEN,
	END_DOWN,   /* over; down was called or will be */
	END_CLOSED, /* the caller is done with it */
};

struct net_end {
	struct list node;    /* net_sim_port.ends */
	struct list backlog; /* net_listener.backlog, until accept */
	struct stream *stream;
	struct net_sim_port *port; /* NULL in END_NONE */
	struct mach *mach;
	enum end_state state;
	const struct net_end_events *ev; /* NULL: not accepted yet */
	void *ctx;
	struct list in; /* packets that arrived and are not read */
	bool paused, reading, watched;
	uint64_t lost_before_ns; /* its machine lost the power, and what it had sent by then */
	uint64_t last_ns;	 /* arrival of the last packet in order; next ones come later */
	uint64_t max_ns;	 /* the same over all packets */
	uint64_t queued;	 /* bytes that were sent to it and not read */
	uint64_t
		stuck_ns; /* when the oldest message was sent that cannot reach it; 0: none is */
};

struct stream {
	struct list node; /* net_sim.streams */
	struct net_sim *net;
	uint32_t refs; /* ends that are not closed, packets, events */
	uint64_t id;
	bool hole;
	char name[NET_NAME_MAX + 1]; /* dialed */
	struct net_end e[2];	     /* dialer, acceptor */
};

struct net_listener {
	struct list node; /* net_sim_port.listeners */
	struct net_sim_port *port;
	char name[NET_NAME_MAX + 1];
	void (*accept)(void *ctx, struct net_end *e);
	void *ctx;
	struct list backlog;
	size_t n_backlog;
	uint32_t refs; /* itself until unlisten, events */
	bool closed, accepting;
};

struct net_sim {
	struct net_sim_world w;
	struct net_link dflt;
	struct list machs, links, ports, packets, streams, cuts;
	uint64_t next_stream;
	struct net_sim_counters c;
};

/* net_sim.c */
void *net_alloc(size_t n);
uint64_t net_below(struct net_sim *n, uint64_t below);
bool net_chance(struct net_sim *n, uint32_t ppm);
void net_note(struct net_sim *n, bool fault, const char *fmt, ...) PRINTF_LIKE(3, 4);
struct mach *net_mach(struct net_sim *n, const char *name);
struct link *net_link(struct net_sim *n, struct mach *from, struct mach *to);
struct packet *net_packet(struct link *l, enum packet_kind kind, size_t n_bytes);
void net_packet_free(struct packet *p);
/* When something of n bytes that leaves now would arrive. */
uint64_t net_travel(struct link *l, size_t n_bytes);
/* Hands p to the link; it arrives at when_ns, or when the link is healed. */
void net_depart(struct packet *p, uint64_t when_ns);
void net_event(struct net_sim_port *p, uint64_t when_ns, void (*fn)(void *arg), void *arg);
/* Runs an event of p's owner about as soon as a thread wakes up. */
void net_soon(struct net_sim_port *p, void (*fn)(void *arg), void *arg);

/* net_sim_stream.c */
void net_stream_arrive(struct packet *p);
void net_stream_unref(struct stream *s);
void net_stream_reset(struct stream *s);
/* From now on it swallows. */
void net_stream_hole(struct stream *s);
void net_port_cut_streams(struct net_sim_port *p, bool silent);
/* p cannot go on: its sender's kernel gives up in the end. */
void net_stream_stuck(struct packet *p);
/* The keepalive probes of a stream over l found nobody for too long. */
void net_link_timeout(struct link *l);
/* p, which waited for a cut to end, arrives at or after when_ns; returns when. */
uint64_t net_stream_requeue(struct packet *p, uint64_t when_ns);

/* net_sim_dgram.c */
void net_dgram_arrive(struct packet *p);
