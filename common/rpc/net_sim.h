/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated network: streams of messages and datagrams between machines, on somebody else's
 * clock (tests/support/sim.h gives time, chance and turns through struct net_sim_world). Below the
 * rpc engine `sim` (rpc_sim.c) and the beats of a simulation. Addresses: sim://NODE/NAME.
 *
 *   machine (by name) --link--> machine     latency, bandwidth, cuts, spikes, reordering, ...
 *   net_sim_port    one process on a machine; owns its listeners, ends, datagram sockets
 *   net_end         one end of a stream that was dialed or accepted
 *
 * A stream behaves as a TCP connection between two kernels that never corrupt it: what is sent
 * arrives once, in order (but see reorder_ppm, dup_ppm), or the stream breaks. While a link is cut
 * its packets wait for their retransmission, so nobody is told until NET_GIVE_UP_MS have passed; a SYN
 * waits too. A process that is stopped still has its kernel: it is connected to, its buffers fill.
 *
 * I1: no callback runs inside a call of this file; each runs as an event of its port's owner.
 * I2: after net_end_close, net_unlisten and net_dgram_close their callbacks do not run any more.
 * I3: bounded (B1): net_end_queued() is what the sender of a stream looks at; a datagram socket holds
 *     NET_DGRAMS_MAX; beyond NET_BYTES_MAX in all, streams are reset and datagrams dropped.
 * I4: same calls, same world, same events: nothing depends on addresses or on the real clock.
 *
 * Thread: the world's.
 */
#pragma once

#include "base/err.h"

#define NET_NAME_MAX	63 /* of a machine, and of a listener or socket on it */
#define NET_ADDR_MAX	(6 + NET_NAME_MAX + 1 + NET_NAME_MAX + 1)
#define NET_DGRAMS_MAX	128
#define NET_DGRAM_BYTES 65507
#define NET_BYTES_MAX	(512ull << 20)
/* Kernels give up what nobody acknowledges: TCP_USER_TIMEOUT, and keepalive with it, as rpc_sp.c sets
 * them. Between machines; a unix socket has none. */
#define NET_GIVE_UP_MS	15000

/* What the simulator gives. */
struct net_sim_world {
	uint64_t (*now_ns)(void *ctx);
	uint64_t (*rand)(void *ctx);
	/* Calls fn(arg) at when_ns as an event of owner (NULL: of nobody); never inside the call. */
	void (*at)(void *ctx, void *owner, uint64_t when_ns, void (*fn)(void *arg), void *arg);
	/* A line for the list of events. */
	void (*note)(void *ctx, bool fault, const char *text);
	void *ctx;
};

struct net_sim;
struct net_sim_port;

/* owned, net_sim_free(). NULL for lack of memory; later lack of it aborts. */
struct net_sim *net_sim_new(const struct net_sim_world *w);
/* Its ports are free already; what is still under way is dropped. The world calls nothing of it any more. */
void net_sim_free(struct net_sim *n);

/* ---- links: one direction between two machines ---- */

struct net_link {
	uint32_t latency_us, jitter_us; /* a packet takes latency + 0..jitter */
	uint64_t bytes_per_s;		/* 0: no limit */
	uint32_t break_ppm;   /* a message's stream is reset before or after it arrives */
	uint32_t dup_ppm;     /* a message arrives twice */
	uint32_t reorder_ppm; /* a message takes 0..reorder_us more and may be overtaken */
	uint32_t reorder_us;
	uint32_t dgram_loss_ppm, dgram_dup_ppm;
};

/* The link from one machine to another; both NULL: the default of all that were never set. */
void net_link_get(struct net_sim *n, const char *from, const char *to, struct net_link *out);
void net_link_set(struct net_sim *n, const char *from, const char *to,
		  const struct net_link *l);
/* Packets from `from` to `to` wait (datagrams are lost) until healed. Two calls cut both ways.
 * A machine is never cut from itself. */
void net_link_cut(struct net_sim *n, const char *from, const char *to);
bool net_link_is_cut(const struct net_sim *n, const char *from, const char *to);
/* Both ways. What waited arrives within seconds, or finds its stream reset. Both NULL: all. */
void net_link_heal(struct net_sim *n, const char *a, const char *b);
/* For for_ms each packet from `from` takes extra_ms more. */
void net_link_spike(struct net_sim *n, const char *from, const char *to, uint32_t extra_ms,
		    uint32_t for_ms);
/* Resets every stream between a and b; b NULL: every stream of a. Returns how many. */
size_t net_reset(struct net_sim *n, const char *a, const char *b);
/*
 * Streams that stand between a and b (NULL: any) swallow everything from now on and neither end is
 * told before NET_GIVE_UP_MS, as when a NAT box forgets them; new ones work. Returns how many.
 */
size_t net_black_hole(struct net_sim *n, const char *a, const char *b);

struct net_sim_counters {
	uint64_t streams, messages, doubled, broken, datagrams, datagrams_lost;
	uint64_t bytes, bytes_peak; /* under way and in sockets' buffers */
	uint64_t streams_open, packets_waiting;
};
void net_sim_counters(const struct net_sim *n, struct net_sim_counters *out);

/* ---- ports: for the simulator ---- */

/* A process begins on a machine. owner goes to world.at. owned, net_sim_port_free(). */
struct net_sim_port *net_sim_port_new(struct net_sim *n, const char *node, void *owner);
/*
 * The process was killed: nothing it sends arrives from now on, all its ends break, dialing fails,
 * listening is in vain. Peers see their streams end; or, silent, are not told (power cut).
 */
void net_sim_port_cut(struct net_sim_port *p, bool silent);
/* Everything of it must be closed. NULL is fine. */
void net_sim_port_free(struct net_sim_port *p);

/* ---- streams ---- */

struct net_end;
struct net_listener;

struct net_end_events {
	void (*up)(void *ctx);			      /* a dialed one stands */
	void (*message)(void *ctx, struct bytes msg); /* borrowed; whole, as it was sent */
	/* It is over: refused, closed by the other side, reset. text: one phrase; borrowed.
	 * The last callback; the end is to be closed still. */
	void (*down)(void *ctx, enum err e, const char *text);
};

/* Splits sim://NODE/NAME; false: it is none. Each of the two: NET_NAME_MAX + 1 bytes. */
bool net_addr_parse(const char *addr, char *node, char *name);

/*
 * accept runs for each stream dialed here; it sets events at once (net_end_events_set) or closes it.
 * ERR_INVALID_PARAMS no such address, or another machine's; ERR_BUSY it is taken.
 */
enum err net_listen(struct net_sim_port *p, const char *addr,
		    void (*accept)(void *ctx, struct net_end *e), void *ctx,
		    struct net_listener **out, struct why *why) MUST_CHECK;
void net_unlisten(struct net_listener *l);

/* up or down follows; neither while a link is cut: the caller keeps the deadline. */
enum err net_dial(struct net_sim_port *p, const char *addr, const struct net_end_events *ev,
		  void *ctx, struct net_end **out, struct why *why) MUST_CHECK;
void net_end_events_set(struct net_end *e, const struct net_end_events *ev, void *ctx);
/* Bytes sent here and not yet read there. */
uint64_t net_end_queued(const struct net_end *e);
/* Copies parts[0..n) and sends them as one message. After down: swallowed. */
void net_end_send(struct net_end *e, const struct bytes *parts, int n);
/* Stops or resumes reading; messages wait in the buffer. */
void net_end_pause(struct net_end *e, bool paused);
/* What was sent still arrives, then the other side sees the end. reset: neither is certain. */
void net_end_close(struct net_end *e, bool reset);
/* The machine at the other side; valid as long as e. */
const char *net_end_peer(const struct net_end *e);

/* ---- datagrams ---- */

struct net_dgram;

/* ERR_INVALID_PARAMS, ERR_BUSY as net_listen. */
enum err net_dgram_open(struct net_sim_port *p, const char *addr,
			void (*recv)(void *ctx, const char *from, struct bytes b), void *ctx,
			struct net_dgram **out, struct why *why) MUST_CHECK;
/* It may be lost, doubled, overtaken; nobody is told. */
void net_dgram_send(struct net_dgram *d, const char *to, struct bytes b);
void net_dgram_close(struct net_dgram *d);
