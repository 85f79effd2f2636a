/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread with poll(2) over everything: small numbers of connections, seen whole. The lock covers all
 * state but is free while the thread waits; an eventfd ends the wait when a fault changed.
 *
 * I1: a direction reads only while its link is whole and its queue is short.
 * I2: messages leave a direction in the order of their due times; without faults these are the order
 *     of arrival.
 */
#include "tests/support/proxy.h"
#include "tests/support/proxy_dgram.h"

#include "tests/support/sim.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NODES	   64
#define GREETING   8
#define READ_BYTES (64u << 10)

struct message {
	struct list node;
	uint64_t due_ns;
	size_t n, done;
	uint8_t bytes[];
};

/* One direction of a connection: bytes come from fd `in` and go to fd `out`. */
struct flow {
	int in, out, from, to; /* descriptors, nodes */
	bool greeted, eof, shut;
	uint8_t *part; /* a message that is not whole yet */
	size_t n_part, cap;
	struct list queue;
	size_t n_queued;
};

struct conn {
	struct list node;
	int client, server, route;
	struct flow up, down;
	bool dead;
};

struct route {
	int fd, a, b;
	bool ipc;
	char to[160], path[108];
};

struct link {
	bool cut;
	uint64_t delay_ns, until_ns;
};

struct proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	int event;
	bool stop;
	struct sim_rng rng;
	uint32_t reorder_ppm;
	struct route routes[PROXY_ROUTES];
	struct dgram_route dgrams[PROXY_ROUTES];
	size_t n_routes, n_dgrams, n_conns;
	struct list conns;
	struct link links[NODES][NODES];
	struct proxy_counters c;
};

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- addresses ---- */

/* fd, or -1 when bind or connect said no. A connect that goes on is fine: writes wait for it. */
static int opened(int fd, int r, bool listening)
{
	if (r == 0 && listening)
		r = listen(fd, 256);
	if (r == 0 || (!listening && errno == EINPROGRESS))
		return fd;
	close(fd);
	return -1;
}

static int open_unix(const char *path, bool listening)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	SIM_CHECK(fd >= 0, "socket: %s", strerror(errno));
	memcpy(sa.sun_path, path, strlen(path) + 1);
	int r = listening ? bind(fd, (struct sockaddr *)&sa, sizeof(sa))
			  : connect(fd, (struct sockaddr *)&sa, sizeof(sa));
	return opened(fd, r, listening);
}

static int open_tcp(uint16_t port, bool listening)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
	SIM_CHECK(fd >= 0, "socket: %s", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	int r = listening ? bind(fd, (struct sockaddr *)&sa, sizeof(sa))
			  : connect(fd, (struct sockaddr *)&sa, sizeof(sa));
	return opened(fd, r, listening);
}

static int open_addr(const char *addr, bool listening)
{
	static const char tcp[] = "tcp://127.0.0.1:";
	if (strncmp(addr, "ipc://", 6) == 0)
		return open_unix(addr + 6, listening);
	SIM_CHECK(strncmp(addr, tcp, sizeof(tcp) - 1) == 0,
		  "%s: the proxy knows ipc://PATH and tcp://127.0.0.1:PORT", addr);
	return open_tcp((uint16_t)atoi(addr + sizeof(tcp) - 1), listening);
}

/* ---- flows ---- */

static void flow_init(struct flow *f, int in, int out, int from, int to)
{
	*f = (struct flow){ .in = in, .out = out, .from = from, .to = to };
	list_init(&f->queue);
}

static void flow_fini(struct flow *f)
{
	list_for_each_safe (n, &f->queue)
		free(list_entry(n, struct message, node));
	free(f->part);
}

static bool flow_reads(const struct proxy *p, const struct flow *f)
{
	return !f->eof && !p->links[f->from][f->to].cut && f->n_queued < PROXY_QUEUE;
}

/* Behind those that are due before. */
static void enqueue(struct flow *f, struct message *m)
{
	struct list *at = f->queue.prev;
	while (at != &f->queue && list_entry(at, struct message, node)->due_ns > m->due_ns)
		at = at->prev;
	list_insert_after(at, &m->node);
	f->n_queued += m->n;
}

static void take(struct proxy *p, struct flow *f, size_t n)
{
	struct message *m = malloc(sizeof(*m) + n);
	const struct link *l = &p->links[f->from][f->to];
	uint64_t now = now_ns();
	SIM_CHECK(m, "no memory");
	*m = (struct message){ .due_ns = now, .n = n };
	memcpy(m->bytes, f->part, n);
	f->n_part -= n;
	memmove(f->part, f->part + n, f->n_part);
	if (f->greeted && now < l->until_ns)
		m->due_ns += l->delay_ns;
	if (f->greeted && sim_rng_chance(&p->rng, p->reorder_ppm)) {
		m->due_ns += sim_rng_below(&p->rng, 5 * NS_PER_MS);
		p->c.overtaken++;
	}
	f->greeted = true;
	p->c.messages++;
	enqueue(f, m);
}

/* How long the message at the front is; 0: not known yet. */
static size_t front_bytes(const struct flow *f, bool ipc)
{
	size_t head = ipc ? 1 : 0;
	uint64_t n = 0;
	if (!f->greeted)
		return GREETING;
	if (f->n_part < head + 8)
		return 0;
	for (size_t i = 0; i < 8; i++)
		n = n << 8 | f->part[head + i];
	return n > PROXY_MESSAGE ? SIZE_MAX : head + 8 + (size_t)n;
}

/* False: the connection is of no more use. */
static bool flow_read(struct proxy *p, struct flow *f, bool ipc)
{
	if (f->cap - f->n_part < READ_BYTES) {
		f->cap = f->n_part + READ_BYTES;
		f->part = realloc(f->part, f->cap);
		SIM_CHECK(f->part, "no memory");
	}
	ssize_t r = read(f->in, f->part + f->n_part, READ_BYTES);
	if (r < 0)
		return errno == EAGAIN || errno == EINTR;
	if (r == 0) {
		f->eof = true;
		return true;
	}
	f->n_part += (size_t)r;
	for (;;) {
		size_t n = front_bytes(f, ipc);
		if (n == SIZE_MAX)
			return false;
		if (n == 0 || n > f->n_part)
			return true;
		take(p, f, n);
	}
}

static bool flow_write(struct flow *f, uint64_t now)
{
	list_for_each_safe (i, &f->queue) {
		struct message *m = list_entry(i, struct message, node);
		if (m->due_ns > now)
			return true;
		ssize_t r = send(f->out, m->bytes + m->done, m->n - m->done, MSG_NOSIGNAL);
		if (r < 0)
			return errno == EAGAIN || errno == EINTR;
		m->done += (size_t)r;
		if (m->done < m->n)
			m->due_ns = 0; /* nobody goes ahead of half a message */
		else {
			list_del(&m->node);
			f->n_queued -= m->n;
			free(m);
		}
	}
	if (f->eof && !f->shut) {
		shutdown(f->out, SHUT_WR);
		f->shut = true;
	}
	return true;
}

/* ---- connections ---- */

static void hard_close(int fd)
{
	struct linger l = { .l_onoff = 1 };
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(fd);
}

static void conn_free(struct proxy *p, struct conn *c)
{
	list_del(&c->node);
	p->n_conns--;
	flow_fini(&c->up);
	flow_fini(&c->down);
	hard_close(c->client);
	hard_close(c->server);
	free(c);
}

static void accept_one(struct proxy *p, int i)
{
	struct route *r = &p->routes[i];
	int client = accept4(r->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (client < 0)
		return;
	int server = p->n_conns < PROXY_CONNS ? open_addr(r->to, false) : -1;
	if (server < 0) { /* nobody listens: the caller sees an end at once */
		p->c.refused++;
		hard_close(client);
		return;
	}
	struct conn *c = calloc(1, sizeof(*c));
	SIM_CHECK(c, "no memory");
	c->client = client;
	c->server = server;
	c->route = i;
	flow_init(&c->up, client, server, r->a, r->b);
	flow_init(&c->down, server, client, r->b, r->a);
	list_push_back(&p->conns, &c->node);
	p->n_conns++;
	p->c.accepted++;
}

static void conn_work(struct proxy *p, struct conn *c, uint64_t now)
{
	bool ipc = p->routes[c->route].ipc, ok = true;
	struct flow *f[] = { &c->up, &c->down };
	for (int i = 0; i < 2 && ok; i++) {
		if (flow_reads(p, f[i]))
			ok = flow_read(p, f[i], ipc);
		if (ok && !p->links[f[i]->from][f[i]->to].cut)
			ok = flow_write(f[i], now);
	}
	if (!ok || (c->up.shut && c->down.shut))
		c->dead = true;
}

/* ---- the thread ---- */

struct poll_set {
	struct pollfd fds[1 + PROXY_ROUTES * (2 + DGRAM_SENDERS) + 4 * PROXY_CONNS];
	nfds_t n;
	int timeout_ms;
};

static void want(struct poll_set *s, const struct proxy *p, const struct flow *f, uint64_t now)
{
	short in = flow_reads(p, f) ? POLLIN : 0, out = 0;
	if (!list_empty(&f->queue) && !p->links[f->from][f->to].cut) {
		uint64_t due = list_entry(f->queue.next, struct message, node)->due_ns;
		if (due <= now)
			out = POLLOUT;
		else
			s->timeout_ms = (int)MIN_OF((uint64_t)(unsigned)s->timeout_ms,
						    clock_left_ms(due, now));
	}
	s->fds[s->n++] = (struct pollfd){ .fd = in ? f->in : -1, .events = in };
	s->fds[s->n++] = (struct pollfd){ .fd = out ? f->out : -1, .events = out };
}

static void gather(struct proxy *p, struct poll_set *s)
{
	uint64_t now = now_ns();
	s->n = 0;
	s->timeout_ms = 1000;
	s->fds[s->n++] = (struct pollfd){ .fd = p->event, .events = POLLIN };
	for (size_t i = 0; i < p->n_routes; i++)
		s->fds[s->n++] = (struct pollfd){ .fd = p->routes[i].fd, .events = POLLIN };
	for (size_t i = 0; i < p->n_dgrams; i++)
		s->n += dgram_poll(&p->dgrams[i], s->fds + s->n);
	list_for_each (n, &p->conns) {
		struct conn *c = list_entry(n, struct conn, node);
		if (s->n + 4 > ARRAY_LEN(s->fds))
			break;
		want(s, p, &c->up, now);
		want(s, p, &c->down, now);
	}
}

static void work(struct proxy *p)
{
	uint64_t v, now = now_ns();
	ssize_t r = read(p->event, &v, sizeof(v));
	(void)r;
	for (size_t i = 0; i < p->n_routes; i++)
		accept_one(p, (int)i);
	for (size_t i = 0; i < p->n_dgrams; i++) {
		struct dgram_route *d = &p->dgrams[i];
		dgram_work(d, !p->links[d->a][d->b].cut, !p->links[d->b][d->a].cut);
	}
	list_for_each (n, &p->conns)
		conn_work(p, list_entry(n, struct conn, node), now);
	list_for_each_safe (n, &p->conns)
		if (list_entry(n, struct conn, node)->dead)
			conn_free(p, list_entry(n, struct conn, node));
}

static void *run(void *arg)
{
	struct proxy *p = arg;
	static __thread struct poll_set s;
	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		gather(p, &s);
		pthread_mutex_unlock(&p->lock);
		poll(s.fds, s.n, s.timeout_ms);
		pthread_mutex_lock(&p->lock);
		work(p);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void wake(struct proxy *p)
{
	uint64_t one = 1;
	ssize_t r = write(p->event, &one, sizeof(one));
	(void)r;
}

struct proxy *proxy_new(uint64_t seed)
{
	struct proxy *p = calloc(1, sizeof(*p));
	SIM_CHECK(p, "no memory");
	p->rng = sim_rng(seed, "proxy");
	list_init(&p->conns);
	pthread_mutex_init(&p->lock, NULL);
	p->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	SIM_CHECK(p->event >= 0, "eventfd: %s", strerror(errno));
	int r = pthread_create(&p->thread, NULL, run, p);
	SIM_CHECK(r == 0, "thread: %s", strerror(r));
	return p;
}

void proxy_free(struct proxy *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	wake(p);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	list_for_each_safe (n, &p->conns)
		conn_free(p, list_entry(n, struct conn, node));
	for (size_t i = 0; i < p->n_routes; i++) {
		close(p->routes[i].fd);
		if (p->routes[i].ipc)
			unlink(p->routes[i].path);
	}
	for (size_t i = 0; i < p->n_dgrams; i++)
		dgram_close(&p->dgrams[i]);
	close(p->event);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

enum err proxy_route(struct proxy *p, const char *at, const char *to, int a, int b, char *bound,
		     size_t bound_size)
{
	struct route r = { .a = a, .b = b, .ipc = strncmp(at, "ipc://", 6) == 0 };
	SIM_CHECK(a >= 0 && a < NODES && b >= 0 && b < NODES, "nodes %d, %d", a, b);
	if (r.ipc && strlen(at + 6) >= sizeof(r.path))
		return ERR_TOO_LARGE;
	if (p->n_routes == PROXY_ROUTES)
		return ERR_BUSY;
	r.fd = open_addr(at, true);
	if (r.fd < 0)
		return ERR_EXISTS;
	snprintf(r.to, sizeof(r.to), "%s", to);
	snprintf(bound, bound_size, "%s", at);
	if (r.ipc) {
		memcpy(r.path, at + 6, strlen(at + 6) + 1);
	} else {
		struct sockaddr_in sa = { 0 };
		socklen_t n = sizeof(sa);
		getsockname(r.fd, (struct sockaddr *)&sa, &n);
		snprintf(bound, bound_size, "tcp://127.0.0.1:%u", ntohs(sa.sin_port));
	}
	pthread_mutex_lock(&p->lock);
	p->routes[p->n_routes++] = r;
	wake(p);
	pthread_mutex_unlock(&p->lock);
	return ERR_NONE;
}

enum err proxy_route_dgrams(struct proxy *p, const char *at, const char *to, int a, int b)
{
	enum err e = ERR_NONE;
	pthread_mutex_lock(&p->lock);
	if (p->n_dgrams == PROXY_ROUTES)
		e = ERR_BUSY;
	else if (!dgram_open(&p->dgrams[p->n_dgrams], at, to, a, b))
		e = ERR_EXISTS;
	else
		p->n_dgrams++;
	wake(p);
	pthread_mutex_unlock(&p->lock);
	return e;
}

void proxy_cut(struct proxy *p, int from, int to, bool cut)
{
	pthread_mutex_lock(&p->lock);
	p->links[from][to].cut = cut;
	wake(p);
	pthread_mutex_unlock(&p->lock);
}

void proxy_delay(struct proxy *p, int from, int to, uint32_t ms, uint32_t for_ms)
{
	pthread_mutex_lock(&p->lock);
	p->links[from][to].delay_ns = ms * NS_PER_MS;
	p->links[from][to].until_ns = clock_after_ms(now_ns(), for_ms);
	pthread_mutex_unlock(&p->lock);
}

void proxy_reorder(struct proxy *p, uint32_t ppm)
{
	pthread_mutex_lock(&p->lock);
	p->reorder_ppm = ppm;
	pthread_mutex_unlock(&p->lock);
}

static bool joins(const struct flow *f, int a, int b)
{
	if (b < 0)
		return f->from == a || f->to == a;
	return (f->from == a && f->to == b) || (f->from == b && f->to == a);
}

void proxy_reset(struct proxy *p, int a, int b)
{
	pthread_mutex_lock(&p->lock);
	list_for_each_safe (n, &p->conns) {
		struct conn *c = list_entry(n, struct conn, node);
		if (!joins(&c->up, a, b))
			continue;
		p->c.resets++;
		conn_free(p, c);
	}
	pthread_mutex_unlock(&p->lock);
}

void proxy_counters(struct proxy *p, struct proxy_counters *out)
{
	pthread_mutex_lock(&p->lock);
	*out = p->c;
	pthread_mutex_unlock(&p->lock);
}
