/* SPDX-License-Identifier: Apache-2.0 */
#include "storm_gen.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A second is cut into so many ticks; work of a second is spread over them. */
#define TICKS_PER_S 50

struct hose {
	int fd;	     /* -1: closed */
	uint32_t at; /* slow: next byte of the prefix */
	bool slow;
};

struct gen {
	const struct storm_plan *p;
	struct storm_counts c;
	struct hose *v;
	uint32_t n, next_slow, next_open;
	int epoll;
	uint64_t rng;
};

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* A socket on its way to the port; -1. Unix sockets with a full backlog refuse at once. */
static int hose_connect(struct gen *g)
{
	int type = (g->p->dgram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
	int fd = socket(g->p->to.ss_family, type, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (const struct sockaddr *)&g->p->to, g->p->n_to) != 0 &&
	    errno != EINPROGRESS) {
		close(fd);
		g->c.refused++;
		return -1;
	}
	g->c.opened++;
	return fd;
}

static void hose_open(struct gen *g, struct hose *h)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = h };
	h->fd = hose_connect(g);
	h->at = (uint32_t)(g->rng++ % 7);
	if (h->fd >= 0)
		epoll_ctl(g->epoll, EPOLL_CTL_ADD, h->fd, &e);
}

static void hose_close(struct gen *g, struct hose *h)
{
	close(h->fd);
	h->fd = -1;
	g->c.closed_by_peer++;
}

/* What the port sends is read and thrown away; its end is noticed. */
static void hose_event(struct gen *g, struct hose *h, uint32_t events)
{
	char b[4096];
	ssize_t r;
	while ((r = recv(h->fd, b, sizeof(b), 0)) > 0)
		continue;
	if (r == 0 || (r < 0 && errno != EAGAIN) || (events & (EPOLLHUP | EPOLLERR)))
		hose_close(g, h);
}

static void send_bytes(struct gen *g)
{
	uint32_t n = (g->p->slow + TICKS_PER_S - 1) / TICKS_PER_S;
	for (uint32_t i = 0; i < n && g->p->slow > 0; i++) {
		struct hose *h = &g->v[g->p->idle + g->next_slow++ % g->p->slow];
		if (h->fd < 0)
			continue;
		ssize_t r =
			send(h->fd, g->p->prefix + h->at++ % g->p->n_prefix, 1, MSG_NOSIGNAL);
		if (r == 1)
			g->c.bytes++;
	}
}

static void send_garbage(struct gen *g, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t b[8];
		int fd = hose_connect(g);
		for (size_t k = 0; k < 8; k++) {
			g->rng = g->rng * 6364136223846793005ull + 1442695040888963407ull;
			b[k] = g->rng;
		}
		if (fd < 0)
			continue;
		if (send(fd, b, sizeof(b), MSG_NOSIGNAL) == sizeof(b))
			g->c.garbage++;
		close(fd);
	}
}

static void reopen(struct gen *g, uint32_t n)
{
	for (uint32_t seen = 0; n > 0 && seen < g->n; seen++) {
		struct hose *h = &g->v[g->next_open++ % g->n];
		if (h->fd >= 0)
			continue;
		hose_open(g, h);
		n--;
	}
}

static void look(struct gen *g, int timeout_ms)
{
	struct epoll_event e[256];
	int n = epoll_wait(g->epoll, e, 256, timeout_ms);
	for (int i = 0; i < n; i++)
		hose_event(g, e[i].data.ptr, e[i].events);
}

/* In bursts of 64, so that a backlog of some hundred can follow. */
static void open_all(struct gen *g)
{
	for (uint32_t i = 0; i < g->n; i++) {
		g->v[i] = (struct hose){ .slow = i >= g->p->idle };
		hose_open(g, &g->v[i]);
		if (i % 64 == 63)
			look(g, 5);
	}
}

/* How much of a count per second falls on tick t. */
static uint32_t share(uint32_t per_s, uint32_t t)
{
	return per_s * (t + 1) / TICKS_PER_S - per_s * t / TICKS_PER_S;
}

_Noreturn static void child(const struct storm_plan *p, int ctl, int out)
{
	struct gen g = { .p = p, .n = p->idle + p->slow, .rng = (uint64_t)getpid() };
	char byte = 1;
	signal(SIGPIPE, SIG_IGN);
	/* who storms from outside takes no processor from the two that are measured */
	setpriority(PRIO_PROCESS, 0, 5);
	g.epoll = epoll_create1(EPOLL_CLOEXEC);
	g.v = calloc(g.n, sizeof(*g.v));
	fcntl(ctl, F_SETFL, O_NONBLOCK);
	open_all(&g);
	if (write(out, &byte, 1) != 1)
		_exit(1);
	uint64_t next = now_ms();
	/* until the parent closes its end */
	for (uint32_t t = 0; read(ctl, &byte, 1) != 0; t = (t + 1) % TICKS_PER_S) {
		send_bytes(&g);
		send_garbage(&g, share(p->garbage_per_s, t));
		reopen(&g, share(p->reopen_per_s, t));
		next += 1000 / TICKS_PER_S;
		for (uint64_t n = now_ms(); n < next; n = now_ms())
			look(&g, (int)(next - n));
	}
	for (uint32_t i = 0; i < g.n; i++) {
		if (g.v[i].fd >= 0)
			*(g.v[i].slow ? &g.c.slow : &g.c.idle) += 1;
	}
	_exit(write(out, &g.c, sizeof(g.c)) != sizeof(g.c));
}

bool storm_begin(const struct storm_plan *p, struct storm *s)
{
	int ctl[2], out[2];
	char byte;
	if (pipe2(ctl, O_CLOEXEC) != 0)
		return false;
	if (pipe2(out, O_CLOEXEC) != 0) {
		close(ctl[0]);
		close(ctl[1]);
		return false;
	}
	s->pid = fork();
	if (s->pid == 0) {
		close(ctl[1]);
		close(out[0]);
		child(p, ctl[0], out[1]);
	}
	close(ctl[0]);
	close(out[1]);
	s->ctl = ctl[1];
	s->out = out[0];
	return s->pid > 0 && read(s->out, &byte, 1) == 1;
}

void storm_end(struct storm *s, struct storm_counts *out)
{
	*out = (struct storm_counts){ 0 };
	close(s->ctl);
	ssize_t r = read(s->out, out, sizeof(*out));
	assert(r == (ssize_t)sizeof(*out));
	(void)r;
	close(s->out);
	waitpid(s->pid, NULL, 0);
}
