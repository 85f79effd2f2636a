/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNS = 32, BUF = 65536 };

struct half { /* what came from one end and has not gone to the other */
	uint8_t *p;
	size_t n, at;
	uint64_t moved;
	bool ended;
};

struct conn {
	int fd[2]; /* client, agent; -1: none */
	struct half half[2];
};

struct relay {
	int listen;
	unsigned port, to;
	pthread_t thread;
	struct conn conns[CONNS];
	_Atomic bool stop, hold;
	_Atomic uint64_t flip[2], cut; /* flip[1]: to the client */
	_Atomic uint64_t n_conns, n_flipped, n_cut, n_bytes;
};

static int tcp(unsigned port, bool server, unsigned *bound)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		abort();
	if (server ? bind(fd, (struct sockaddr *)&a, n) || listen(fd, 64)
		   : connect(fd, (struct sockaddr *)&a, n)) {
		close(fd);
		return -1;
	}
	if (bound && getsockname(fd, (struct sockaddr *)&a, &n) == 0)
		*bound = ntohs(a.sin_port);
	return fd;
}

unsigned relay_free_port(void)
{
	unsigned port = 0;
	int fd = tcp(0, true, &port);
	if (fd < 0)
		abort();
	close(fd);
	return port;
}

static void conn_close(struct conn *c)
{
	for (int i = 0; i < 2; i++) {
		if (c->fd[i] >= 0)
			close(c->fd[i]);
		free(c->half[i].p);
	}
	*c = (struct conn){ .fd = { -1, -1 } };
}

static void accept_one(struct relay *r)
{
	int fd = accept4(r->listen, NULL, NULL, SOCK_CLOEXEC);
	struct conn *c = r->conns;
	while (c < r->conns + CONNS && c->fd[0] >= 0)
		c++;
	int to = fd < 0 || c == r->conns + CONNS ? -1 : tcp(r->to, false, NULL);
	if (to < 0) {
		if (fd >= 0)
			close(fd);
		return;
	}
	r->n_conns++;
	*c = (struct conn){ .fd = { fd, to },
			    .half = { { .p = malloc(BUF) }, { .p = malloc(BUF) } } };
}

/* Bit flips at every so-manieth byte of the direction. */
static void damage(struct relay *r, struct half *h, bool to_client, size_t n)
{
	uint64_t every = r->flip[to_client];
	if (every == 0)
		return;
	for (uint64_t next = (h->moved / every + 1) * every; next <= h->moved + n;
	     next += every) {
		h->p[next - h->moved - 1] ^= 0x10;
		r->n_flipped++;
	}
}

/* One direction: from fd[i] to the other. False: the connection is over. */
static bool forward(struct relay *r, struct conn *c, int i, short from, short to)
{
	struct half *h = &c->half[i];
	if (h->n == h->at && (from & (POLLIN | POLLHUP | POLLERR))) {
		ssize_t n = recv(c->fd[i], h->p, BUF, MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0)
			return false;
		damage(r, h, i == 1, (size_t)n);
		h->moved += (uint64_t)n;
		h->n = (size_t)n;
		h->at = 0;
	}
	if (h->n > h->at && (to & (POLLOUT | POLLHUP | POLLERR))) {
		ssize_t n = send(c->fd[1 - i], h->p + h->at, h->n - h->at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0)
			return false;
		h->at += (size_t)n;
		r->n_bytes += (uint64_t)n;
	}
	if (r->cut && h->moved >= r->cut) {
		r->n_cut++;
		return false;
	}
	return true;
}

static void turn(struct relay *r)
{
	struct pollfd p[1 + 2 * CONNS];
	p[0] = (struct pollfd){ .fd = r->listen, .events = POLLIN };
	for (int i = 0; i < CONNS; i++)
		for (int k = 0; k < 2; k++) {
			struct conn *c = &r->conns[i];
			short in = c->half[k].n == c->half[k].at ? POLLIN : 0;
			short out = c->half[1 - k].n > c->half[1 - k].at ? POLLOUT : 0;
			p[1 + 2 * i + k] =
				(struct pollfd){ .fd = c->fd[k], .events = (short)(in | out) };
		}
	if (poll(p, 1 + 2 * CONNS, 20) <= 0)
		return;
	if (p[0].revents)
		accept_one(r);
	for (int i = 0; i < CONNS; i++) {
		struct conn *c = &r->conns[i];
		short a = p[1 + 2 * i].revents, b = p[2 + 2 * i].revents;
		if (c->fd[0] >= 0 && p[1 + 2 * i].fd == c->fd[0] &&
		    !(forward(r, c, 0, a, b) && forward(r, c, 1, b, a)))
			conn_close(c);
	}
}

static void *run(void *arg)
{
	struct relay *r = arg;
	while (!r->stop) {
		if (r->hold)
			usleep(2000);
		else
			turn(r);
	}
	return NULL;
}

struct relay *relay_new(unsigned to)
{
	struct relay *r = calloc(1, sizeof(*r));
	if (!r)
		abort();
	r->to = to;
	r->listen = tcp(0, true, &r->port);
	for (int i = 0; i < CONNS; i++)
		r->conns[i] = (struct conn){ .fd = { -1, -1 } };
	if (r->listen < 0 || pthread_create(&r->thread, NULL, run, r) != 0)
		abort();
	return r;
}

void relay_free(struct relay *r)
{
	r->stop = true;
	pthread_join(r->thread, NULL);
	for (int i = 0; i < CONNS; i++)
		conn_close(&r->conns[i]);
	close(r->listen);
	free(r);
}

unsigned relay_port(const struct relay *r)
{
	return r->port;
}

void relay_flip(struct relay *r, bool to_client, uint64_t every)
{
	r->flip[to_client] = every;
}

void relay_cut(struct relay *r, uint64_t after)
{
	r->cut = after;
}

void relay_hold(struct relay *r, bool hold)
{
	r->hold = hold;
}

struct relay_counts relay_counts(struct relay *r)
{
	return (struct relay_counts){ .conns = r->n_conns,
				      .flipped = r->n_flipped,
				      .cut = r->n_cut,
				      .bytes = r->n_bytes };
}
