/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's end: the thread (or in a simulation net_sim's datagrams) around struct beat_book,
 * and the timer that decides the states.
 */
#include "svc/beat_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/auth.h"
#include "rpc/net_sim.h"

/* Datagrams taken in a row before the thread looks whether it is to end. */
#define RECV_BURST 64
#define WARN_NS	   (10 * NS_PER_S)

struct beat_table {
	struct loop *loop;
	struct beat_book book;
	const struct log *log;
	uint64_t period_ns;
	void (*changed)(void *ctx, const struct beat_peer *p);
	void *ctx;
	struct timer timer;
	uint64_t warned_ns; /* the receiving side's */
	uint64_t warned_n;

	/* a daemon's */
	struct beat_sock sock[BEAT_ADDRS_MAX];
	size_t n_sock;
	pthread_t thread;
	int stop_fd;

	/* a simulation's */
	struct net_dgram *dgram[BEAT_ADDRS_MAX];
	struct sim_end {
		struct beat_table *t;
		size_t i;
	} end[BEAT_ADDRS_MAX];

	struct post last;
	void (*closed)(void *arg);
	void *closed_arg;
};

static bool simulated(const struct loop *l)
{
	return l->driver->net != NULL;
}

const char *beat_state_name(enum beat_state s)
{
	switch (s) {
	case BEAT_READY:
		return "ready";
	case BEAT_STARTING:
		return "starting";
	case BEAT_SUSPECT:
		return "suspect";
	case BEAT_DEAD:
		return "dead";
	}
	return "?";
}

/* One line in WARN_NS whatever comes: who can send datagrams must not be able to fill a disk. */
static void warn(struct beat_table *t, enum beat_verdict v, const char *from, uint64_t now_ns)
{
	static const char *const text[] = { [BEAT_OK] = "",
					    [BEAT_NO_MAC] = "wrong key",
					    [BEAT_NO_FRAME] = "no beat",
					    [BEAT_REPLAY] = "seen before",
					    [BEAT_FULL] = "too many names" };
	t->warned_n++;
	if (t->warned_ns && now_ns - t->warned_ns < WARN_NS)
		return;
	LOG_WARN(t->log, "beat", "refused=\"%s\" from=\"%s\" times=%" PRIu64, text[v], from,
		 t->warned_n);
	t->warned_ns = now_ns;
	t->warned_n = 0;
}

static size_t take(struct beat_table *t, const char *from, struct bytes dgram, uint8_t *reply)
{
	size_t n;
	uint64_t now = loop_now_ns(t->loop);
	enum beat_verdict v = beat_book_take(&t->book, now, dgram, reply, &n);
	if (v != BEAT_OK)
		warn(t, v, from, now);
	return n;
}

/* ---- the thread ---- */

/* A unix sender without a name cannot be answered; recvfrom gives it no path. */
static bool receive(struct beat_table *t, int fd)
{
	uint8_t p[BEAT_BYTES_MAX + 1], reply[BEAT_BYTES_MAX];
	struct sockaddr_storage from = { 0 };
	socklen_t n_from = sizeof(from);
	ssize_t n = recvfrom(fd, p, sizeof(p), MSG_DONTWAIT, (struct sockaddr *)&from, &n_from);
	if (n < 0)
		return errno == EINTR || errno == ECONNREFUSED;
	bool is_unix = from.ss_family == AF_UNIX;
	size_t m = take(t, is_unix ? "unix" : "udp", BYTES(p, n), reply);
	if (m > 0 && n_from > sizeof(sa_family_t))
		sendto(fd, reply, m, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&from,
		       n_from);
	return true;
}

static void *table_main(void *arg)
{
	struct beat_table *t = arg;
	struct pollfd fds[BEAT_ADDRS_MAX + 1] = { { .fd = t->stop_fd, .events = POLLIN } };
	for (size_t i = 0; i < t->n_sock; i++)
		fds[i + 1] = (struct pollfd){ .fd = t->sock[i].fd, .events = POLLIN };
	for (;;) {
		poll(fds, t->n_sock + 1, -1);
		if (fds[0].revents)
			return NULL;
		for (size_t i = 0; i < t->n_sock; i++)
			for (int k = 0; fds[i + 1].revents && k < RECV_BURST; k++)
				if (!receive(t, t->sock[i].fd))
					break;
	}
}

/* ---- simulation ---- */

static void on_dgram(void *ctx, const char *from, struct bytes dgram)
{
	struct sim_end *e = ctx;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n = take(e->t, from, dgram, reply);
	if (n > 0)
		net_dgram_send(e->t->dgram[e->i], from, BYTES(reply, n));
}

/* ---- states ---- */

static void on_look(struct timer *timer)
{
	struct beat_table *t = container_of(timer, struct beat_table, timer);
	uint64_t now = loop_now_ns(t->loop);
	beat_book_look(&t->book, now, t->period_ns, t->changed, t->ctx);
	timer_start(t->loop, timer, now + t->period_ns, on_look);
}

/* ---- open and close ---- */

static void close_ends(struct beat_table *t)
{
	for (size_t i = 0; i < t->n_sock; i++) {
		if (t->dgram[i])
			net_dgram_close(t->dgram[i]);
		beat_sock_close(&t->sock[i]);
	}
	if (t->stop_fd >= 0)
		close(t->stop_fd);
}

static enum err listen_one(struct beat_table *t, const char *addr, struct why *why)
{
	size_t i = t->n_sock;
	enum err e;
	t->end[i] = (struct sim_end){ t, i };
	t->sock[i].fd = -1;
	if (simulated(t->loop))
		e = net_dgram_open(t->loop->driver->net(t->loop), addr, on_dgram, &t->end[i],
				   &t->dgram[i], why);
	else
		e = beat_sock_listen(&t->sock[i], addr, why);
	t->n_sock += e == ERR_NONE;
	return e;
}

static enum err start(struct beat_table *t)
{
	if (simulated(t->loop))
		return ERR_NONE;
	t->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->stop_fd < 0)
		return err_from_errno(errno);
	return beat_thread_start(&t->thread, "pml-beat-recv", table_main, t);
}

static struct beat_table *table_new(struct loop *l, const struct beat_table_opts *o)
{
	struct beat_table *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->loop = l;
	t->log = o->log;
	t->changed = o->changed;
	t->ctx = o->ctx;
	t->stop_fd = -1;
	t->period_ns = MIN_OF(MAX_OF(o->suspect_ms / 8, 10), 250) * NS_PER_MS;
	beat_book_init(&t->book, o->peers_max ? o->peers_max : 4096);
	t->book.suspect_ns = (uint64_t)o->suspect_ms * NS_PER_MS;
	t->book.dead_ns = (uint64_t)o->dead_ms * NS_PER_MS;
	loop_random(l, t->book.secret, sizeof(t->book.secret));
	return t;
}

enum err beat_table_open(struct loop *l, const struct beat_table_opts *o,
			 struct beat_table **out, struct why *why)
{
	if (o->n_listen == 0 || o->n_listen > BEAT_ADDRS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "beats: 1..%d addresses, not %zu",
			       BEAT_ADDRS_MAX, o->n_listen);
	struct beat_table *t = table_new(l, o);
	if (!t)
		return ERR_NO_MEMORY;
	enum err e = beat_keys_init(&t->book.keys, o->keys);
	if (e == ERR_FORBIDDEN)
		why_set(why, e, "beats: the secret file has no key that verifies them");
	for (size_t i = 0; i < o->n_listen && e == ERR_NONE; i++)
		e = listen_one(t, o->listen[i], why);
	if (e == ERR_NONE)
		e = start(t);
	if (e) {
		close_ends(t);
		beat_book_fini(&t->book);
		free(t);
		return e;
	}
	timer_start(l, &t->timer, loop_now_ns(l) + t->period_ns, on_look);
	*out = t;
	return ERR_NONE;
}

static void on_last(struct post *p)
{
	struct beat_table *t = container_of(p, struct beat_table, last);
	void (*closed)(void *arg) = t->closed;
	void *arg = t->closed_arg;
	beat_book_fini(&t->book);
	free(t);
	if (closed)
		closed(arg);
}

void beat_table_close(struct beat_table *t, void (*closed)(void *arg), void *arg)
{
	t->closed = closed;
	t->closed_arg = arg;
	timer_stop(t->loop, &t->timer);
	if (!simulated(t->loop)) {
		eventfd_write(t->stop_fd, 1);
		pthread_join(t->thread, NULL);
	}
	close_ends(t);
	t->last.fn = on_last;
	loop_defer(t->loop, &t->last);
}

/* ---- what the loop reads ---- */

void beat_table_counters(struct beat_table *t, struct beat_table_counters *out)
{
	pthread_mutex_lock(&t->book.lock);
	*out = t->book.c;
	out->peers = t->book.n;
	pthread_mutex_unlock(&t->book.lock);
}

size_t beat_table_list(struct beat_table *t, size_t from, struct beat_peer *out, size_t max)
{
	size_t n = 0;
	pthread_mutex_lock(&t->book.lock);
	for (size_t i = from; i < t->book.n && n < max; i++)
		out[n++] = t->book.v[i]->p;
	pthread_mutex_unlock(&t->book.lock);
	return n;
}

bool beat_table_find(struct beat_table *t, const char *name, struct beat_peer *out)
{
	pthread_mutex_lock(&t->book.lock);
	const struct beat_peer *p = beat_book_find(&t->book, name);
	if (p)
		*out = *p;
	pthread_mutex_unlock(&t->book.lock);
	return p != NULL;
}
