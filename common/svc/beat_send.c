/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending end: the thread (or in a simulation the timer) around struct beat_out.
 *
 * I1: the loop's expectation of the ping is taken at open and given back at close, whether the
 *     ping lies in the inbox by then or not.
 */
#include "svc/beat_priv.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/auth.h"
#include "rpc/net_sim.h"

struct beat_sender {
	struct loop *loop;
	struct beat_out out;
	const struct log *log;
	uint64_t beat_ns;
	void (*news)(void *ctx, uint64_t last_ack_ns, struct beat_news *out);
	void (*on_ping)(void *ctx, uint64_t late_ns);
	void *ctx;

	/* the ping */
	struct post ping;
	_Atomic bool ping_out; /* it is in the inbox */
	_Atomic uint64_t ping_ns;

	/* a daemon's */
	struct beat_sock sock[BEAT_ADDRS_MAX];
	pthread_t thread;
	int stop_fd;

	/* a simulation's */
	struct net_dgram *dgram[BEAT_ADDRS_MAX];
	struct sim_end {
		struct beat_sender *b;
		size_t i;
	} end[BEAT_ADDRS_MAX];
	struct timer timer;

	bool closing;
	struct post last;
	void (*closed)(void *arg);
	void *closed_arg;
};

static bool simulated(const struct loop *l)
{
	return l->driver->net != NULL;
}

/* ---- the ping ---- */

static void finish(struct beat_sender *b)
{
	void (*closed)(void *arg) = b->closed;
	void *arg = b->closed_arg;
	explicit_bzero(&b->out.keys, sizeof(b->out.keys));
	free(b);
	if (closed)
		closed(arg);
}

static void on_ping(struct post *p)
{
	struct beat_sender *b = container_of(p, struct beat_sender, ping);
	if (b->closing) {
		finish(b);
		return;
	}
	uint64_t now = loop_now_ns(b->loop), then = b->ping_ns;
	loop_expect(b->loop); /* for the next one, before the thread may post it */
	b->ping_out = false;
	if (b->on_ping)
		b->on_ping(b->ctx, now > then ? now - then : 0);
}

/* Returns whether an earlier ping still waits. */
static bool ping(struct beat_sender *b, uint64_t now_ns)
{
	if (b->ping_out)
		return true;
	b->ping_ns = now_ns;
	b->ping_out = true;
	loop_post(b->loop, &b->ping);
	return false;
}

/* ---- beats ---- */

static void send_one(struct beat_sender *b, size_t i, bool owes)
{
	uint8_t p[BEAT_BYTES_MAX];
	struct beat_news news = { 0 };
	b->news(b->ctx, beat_out_last_ack(&b->out), &news);
	size_t n = beat_out_make(&b->out, i, &news, owes, loop_wall_ms(b->loop), p);
	bool sent = n > 0;
	if (n > 0 && b->dgram[i])
		net_dgram_send(b->dgram[i], b->out.to[i].addr, BYTES(p, n));
	else if (n > 0)
		sent = beat_sock_send(&b->sock[i], b->out.to[i].addr, p, n);
	if (sent)
		b->out.sent++;
	else
		b->out.send_errors++;
}

static void beat_all(struct beat_sender *b)
{
	bool owes = ping(b, loop_now_ns(b->loop));
	for (size_t i = 0; i < b->out.n_to; i++)
		send_one(b, i, owes);
}

/* At most 16 a wake-up: a flood of datagrams may not put off the next beat. */
static void receive(struct beat_sender *b, size_t i)
{
	uint8_t p[BEAT_BYTES_MAX + 1];
	for (int k = 0; k < 16; k++) {
		ssize_t n = recv(b->sock[i].fd, p, sizeof(p), MSG_DONTWAIT);
		if (n < 0)
			return;
		if (beat_out_take(&b->out, i, BYTES(p, n), loop_now_ns(b->loop)))
			send_one(b, i, b->ping_out);
	}
}

static void *sender_main(void *arg)
{
	struct beat_sender *b = arg;
	struct pollfd fds[BEAT_ADDRS_MAX + 1] = { { .fd = b->stop_fd, .events = POLLIN } };
	for (size_t i = 0; i < b->out.n_to; i++)
		fds[i + 1] = (struct pollfd){ .fd = b->sock[i].fd, .events = POLLIN };
	uint64_t next = loop_now_ns(b->loop);
	for (;;) {
		uint64_t now = loop_now_ns(b->loop);
		if (now >= next) {
			beat_all(b);
			/* beats that were missed are not made up for */
			next = MAX_OF(next + b->beat_ns, now + b->beat_ns / 2);
		}
		poll(fds, b->out.n_to + 1, (int)clock_left_ms(next, now));
		if (fds[0].revents)
			return NULL;
		for (size_t i = 0; i < b->out.n_to; i++)
			if (fds[i + 1].revents)
				receive(b, i);
	}
}

/* ---- simulation ---- */

static void on_dgram(void *ctx, const char *from, struct bytes dgram)
{
	struct sim_end *e = ctx;
	if (beat_out_take(&e->b->out, e->i, dgram, loop_now_ns(e->b->loop)))
		send_one(e->b, e->i, false);
}

static void on_timer(struct timer *t)
{
	struct beat_sender *b = container_of(t, struct beat_sender, timer);
	beat_all(b);
	timer_start(b->loop, t, loop_now_ns(b->loop) + b->beat_ns, on_timer);
}

/* ---- open and close ---- */

static void close_ends(struct beat_sender *b)
{
	for (size_t i = 0; i < b->out.n_to; i++) {
		if (b->dgram[i])
			net_dgram_close(b->dgram[i]);
		beat_sock_close(&b->sock[i]);
	}
	if (b->stop_fd >= 0)
		close(b->stop_fd);
}

static enum err open_end(struct beat_sender *b, size_t i, const char *from, struct why *why)
{
	char addr[BEAT_ADDR_MAX + 8];
	snprintf(addr, sizeof(addr), i ? "%.*s%zu" : "%.*s", BEAT_ADDR_MAX - 1, from, i);
	b->end[i] = (struct sim_end){ b, i };
	if (simulated(b->loop))
		return net_dgram_open(b->loop->driver->net(b->loop), addr, on_dgram, &b->end[i],
				      &b->dgram[i], why);
	return beat_sock_dial(&b->sock[i], b->out.to[i].addr, addr, why);
}

static enum err start(struct beat_sender *b)
{
	if (simulated(b->loop)) {
		timer_start(b->loop, &b->timer, loop_now_ns(b->loop), on_timer);
		return ERR_NONE;
	}
	b->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->stop_fd < 0)
		return err_from_errno(errno);
	return beat_thread_start(&b->thread, "pml-beat", sender_main, b);
}

static struct beat_sender *sender_new(struct loop *l, const struct beat_sender_opts *o)
{
	struct beat_sender *b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->loop = l;
	b->log = o->log;
	b->beat_ns = (uint64_t)o->beat_ms * NS_PER_MS;
	b->news = o->news;
	b->on_ping = o->ping;
	b->ctx = o->ctx;
	b->ping.fn = on_ping;
	b->stop_fd = -1;
	b->out.role = o->role;
	b->out.quiet_ns = 3 * b->beat_ns;
	b->out.n_to = o->n_to;
	memcpy(b->out.instance, o->instance, sizeof(b->out.instance));
	snprintf(b->out.name, sizeof(b->out.name), "%s", o->name);
	for (size_t i = 0; i < BEAT_ADDRS_MAX; i++)
		b->sock[i].fd = -1;
	for (size_t i = 0; i < o->n_to; i++)
		snprintf(b->out.to[i].addr, BEAT_ADDR_MAX, "%s", o->to[i]);
	return b;
}

static enum err keys_for(struct beat_sender *b, const struct beat_sender_opts *o,
			 struct why *why)
{
	enum err e = beat_keys_init(&b->out.keys, o->keys);
	if (e == ERR_NONE && beat_keys_of(&b->out.keys, o->role) == 0)
		e = ERR_FORBIDDEN;
	if (e == ERR_FORBIDDEN)
		return why_set(why, e, "beats: the secret file has no key of role %s",
			       role_name(o->role));
	return e;
}

enum err beat_sender_open(struct loop *l, const struct beat_sender_opts *o,
			  struct beat_sender **out, struct why *why)
{
	if (o->n_to == 0 || o->n_to > BEAT_ADDRS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "beats: 1..%d masters, not %zu",
			       BEAT_ADDRS_MAX, o->n_to);
	struct beat_sender *b = sender_new(l, o);
	if (!b)
		return ERR_NO_MEMORY;
	enum err e = keys_for(b, o, why);
	for (size_t i = 0; i < o->n_to && e == ERR_NONE; i++)
		e = open_end(b, i, o->from, why);
	if (e)
		goto fail;
	loop_expect(l);
	e = start(b);
	if (e)
		goto fail_expect;
	*out = b;
	return ERR_NONE;

fail_expect:
	inbox_unexpect(&l->inbox);
fail:
	close_ends(b);
	explicit_bzero(&b->out.keys, sizeof(b->out.keys));
	free(b);
	return e;
}

static void on_last(struct post *p)
{
	finish(container_of(p, struct beat_sender, last));
}

void beat_sender_close(struct beat_sender *b, void (*closed)(void *arg), void *arg)
{
	b->closed = closed;
	b->closed_arg = arg;
	b->closing = true;
	timer_stop(b->loop, &b->timer);
	if (!simulated(b->loop)) {
		eventfd_write(b->stop_fd, 1);
		pthread_join(b->thread, NULL);
	}
	close_ends(b);
	if (b->ping_out)
		return; /* on_ping follows and finishes */
	b->last.fn = on_last;
	loop_post(b->loop, &b->last); /* in the place of the ping that was expected */
}

void beat_sender_counters(const struct beat_sender *b, struct beat_sender_counters *out)
{
	*out = (struct beat_sender_counters){ .sent = b->out.sent,
					      .send_errors = b->out.send_errors,
					      .acked = b->out.acked,
					      .bad = b->out.bad };
	out->last_ack_ns = beat_out_last_ack(&b->out);
}

bool beat_sender_acked(const struct beat_sender *b)
{
	struct beat_sender_counters c;
	beat_sender_counters(b, &c);
	return c.last_ack_ns && loop_now_ns(b->loop) - c.last_ack_ns < 3 * b->beat_ns;
}
