/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/list.h"

/* A request line and headers; more is 431. The library's own default is 32 KiB. */
#define CONN_BYTES   8192
/* One accept series of the library takes up to 128 sockets before our eviction is seen. */
#define ACCEPT_SLACK 256
#define SWEEP_MS     500

struct http {
	struct loop *loop;
	struct http_opts o;
	struct MHD_Daemon *mhd;
	uv_poll_t poll;
	struct timer run_timer, sweep_timer;
	struct list conns; /* struct conn, the one that waits longest first */
	uint32_t n_conns;
	struct http_counters n;
	char addr[64];
	void (*closed)(void *arg);
	void *closed_arg;
};

struct conn {
	struct list node;
	struct http *http;
	int fd;
	uint64_t limit_ns; /* closed when it has not moved on by then */
	bool ended;	   /* shut down by us; the library notices next time it runs */
};

/* ---- answers ---- */

static enum MHD_Result answer(struct http *h, struct MHD_Connection *c, unsigned status,
			      const char *type, struct buf *body)
{
	if (buf_err(body)) {
		buf_fini(body);
		return MHD_NO;
	}
	h->n.requests++;
	size_t n = body->n;
	/* an empty one gets no memory from buf; the library takes NULL only with 0 bytes */
	struct MHD_Response *r =
		MHD_create_response_from_buffer(n, body->p, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		buf_fini(body);
		return MHD_NO;
	}
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	enum MHD_Result done = MHD_queue_response(c, status, r);
	MHD_destroy_response(r);
	return done;
}

static enum MHD_Result answer_text(struct http *h, struct MHD_Connection *c, unsigned status,
				   const char *text)
{
	struct buf b = BUF_INIT(256);
	buf_put(&b, text, strlen(text));
	return answer(h, c, status, "text/plain; charset=utf-8", &b);
}

static enum MHD_Result answer_ready(struct http *h, struct MHD_Connection *c)
{
	struct buf b = BUF_INIT(16 * 1024);
	bool ready = h->o.ready(h->o.ctx, &b);
	return answer(h, c, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
		      "application/json", &b);
}

static enum MHD_Result answer_metrics(struct http *h, struct MHD_Connection *c)
{
	struct buf b = BUF_INIT(4 * 1024 * 1024);
	h->o.metrics(h->o.ctx, &b);
	return answer(h, c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &b);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *n_upload, void **req)
{
	struct http *h = cls;
	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
		h->n.errors++;
		return answer_text(h, c, MHD_HTTP_METHOD_NOT_ALLOWED,
				   "read-only: GET or HEAD\n");
	}
	if (!*req) {
		*req = h; /* an answer at the first call would end the connection (no keep-alive) */
		return MHD_YES;
	}
	if (*n_upload > 0) {
		*n_upload =
			0; /* a GET with a body: read past it, within the connection's time */
		return MHD_YES;
	}
	if (strcmp(url, "/healthz") == 0)
		return answer_text(h, c, MHD_HTTP_OK, "ok\n");
	if (strcmp(url, "/readyz") == 0)
		return answer_ready(h, c);
	if (strcmp(url, "/metrics") == 0)
		return answer_metrics(h, c);
	h->n.errors++;
	return answer_text(h, c, MHD_HTTP_NOT_FOUND, "there are /healthz /readyz /metrics\n");
}

/* ---- connections ---- */

static void conn_end(struct conn *c)
{
	if (!c->ended)
		shutdown(c->fd, SHUT_RDWR);
	c->ended = true;
}

static void conn_wait(struct conn *c, uint64_t ms)
{
	struct http *h = c->http;
	c->limit_ns = clock_after_ms(loop_now_ns(h->loop), ms);
	list_del(&c->node);
	list_push_back(&h->conns, &c->node);
}

/* I1: room for a newcomer is made by the connection that moved longest ago. */
static void evict_oldest(struct http *h)
{
	list_for_each (it, &h->conns) {
		struct conn *c = list_entry(it, struct conn, node);
		if (c->ended)
			continue;
		h->n.conns_evicted++;
		conn_end(c);
		return;
	}
}

static void conn_opened(struct http *h, struct MHD_Connection *mc, void **slot)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct conn *c = calloc(1, sizeof(*c));
	*slot = c;
	if (!c) {
		shutdown(info->connect_fd, SHUT_RDWR);
		return;
	}
	c->http = h;
	c->fd = info->connect_fd;
	h->n.conns_accepted++;
	if (++h->n_conns > h->o.conns_max)
		evict_oldest(h);
	conn_wait(c, h->o.request_ms);
}

static void on_connection(void *cls, struct MHD_Connection *mc, void **slot,
			  enum MHD_ConnectionNotificationCode code)
{
	struct http *h = cls;
	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		conn_opened(h, mc, slot);
		return;
	}
	struct conn *c = *slot;
	if (!c)
		return;
	h->n_conns--;
	list_del(&c->node);
	free(c);
	*slot = NULL;
}

/* The answer is out (or the peer went): an idle connection may stay for the next one. */
static void on_completed(void *cls, struct MHD_Connection *mc, void **req,
			 enum MHD_RequestTerminationCode code)
{
	struct http *h = cls;
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct conn *c = info ? info->socket_context : NULL;
	if (c)
		conn_wait(c, h->o.idle_ms);
}

static void on_sweep(struct timer *t)
{
	struct http *h = container_of(t, struct http, sweep_timer);
	uint64_t now = loop_now_ns(h->loop);
	list_for_each (it, &h->conns) {
		struct conn *c = list_entry(it, struct conn, node);
		if (c->ended || c->limit_ns > now)
			continue;
		h->n.conns_timed_out++;
		conn_end(c);
	}
	timer_start(h->loop, t, clock_after_ms(now, SWEEP_MS), on_sweep);
}

/* ---- the loop's side ---- */

static void on_run_timer(struct timer *t);

static void run(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;
	MHD_run(h->mhd);
	if (MHD_get_timeout(h->mhd, &ms) != MHD_YES) {
		timer_stop(h->loop, &h->run_timer);
		return;
	}
	/* 0: it has bytes in memory no descriptor will announce; the next turn is soon enough */
	timer_start(h->loop, &h->run_timer, clock_after_ms(loop_now_ns(h->loop), ms),
		    on_run_timer);
}

static void on_run_timer(struct timer *t)
{
	run(container_of(t, struct http, run_timer));
}

static void on_poll(uv_poll_t *p, int status, int events)
{
	run(p->data);
}

/* ---- open and close ---- */

union any_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static bool addr_parse(const char *bind, uint16_t port, union any_addr *out, socklen_t *n)
{
	*out = (union any_addr){ 0 };
	if (inet_pton(AF_INET, bind, &out->in.sin_addr) == 1) {
		out->in.sin_family = AF_INET;
		out->in.sin_port = htons(port);
		*n = sizeof(out->in);
		return true;
	}
	if (inet_pton(AF_INET6, bind, &out->in6.sin6_addr) == 1) {
		out->in6.sin6_family = AF_INET6;
		out->in6.sin6_port = htons(port);
		*n = sizeof(out->in6);
		return true;
	}
	return false;
}

static void addr_print(int fd, char *out, size_t size)
{
	union any_addr a = { 0 };
	socklen_t n = sizeof(a);
	char host[INET6_ADDRSTRLEN] = "?";
	getsockname(fd, &a.sa, &n);
	if (a.sa.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &a.in6.sin6_addr, host, sizeof(host));
		snprintf(out, size, "[%s]:%u", host, ntohs(a.in6.sin6_port));
	} else {
		inet_ntop(AF_INET, &a.in.sin_addr, host, sizeof(host));
		snprintf(out, size, "%s:%u", host, ntohs(a.in.sin_port));
	}
}

/* A listening socket on one port, or -1 with errno. */
static int listen_on(const char *bind_to, uint16_t port)
{
	union any_addr a;
	socklen_t n;
	if (!addr_parse(bind_to, port, &a, &n)) {
		errno = EINVAL;
		return -1;
	}
	int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	int one = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, &a.sa, n) == 0 && listen(fd, 1024) == 0)
		return fd;
	int sys = errno;
	close(fd);
	errno = sys;
	return -1;
}

static enum err listen_any(const struct http_opts *o, int *out, struct why *why)
{
	int fd = listen_on(o->bind, o->port);
	if (fd < 0 && errno == EADDRINUSE && o->any_port_if_taken)
		fd = listen_on(o->bind, 0);
	if (fd >= 0) {
		*out = fd;
		return ERR_NONE;
	}
	int sys = errno;
	if (sys == EINVAL)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"http.bind = %s: not a numeric IPv4 or IPv6 address, such as 127.0.0.1",
			o->bind);
	return why_set(
		why, err_from_errno(sys),
		"http: cannot listen on %s port %u: %s; choose another one or end its owner",
		o->bind, o->port, strerror(sys));
}

/* Each service takes at most a quarter of the descriptors for HTTP. */
static uint32_t conns_default(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
		return 1024;
	return (uint32_t)MAX_OF(MIN_OF(r.rlim_cur / 4, 1024), 16);
}

static enum err daemon_start(struct http *h, int fd, struct why *why)
{
	h->mhd = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, h,
				  MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
				  (unsigned)(h->o.conns_max + ACCEPT_SLACK),
				  MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_BYTES,
				  MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
				  MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_END);
	if (h->mhd)
		return ERR_NONE;
	close(fd);
	return why_set(why, ERR_BUSY, "http: the server did not start on %s; descriptors left?",
		       h->addr);
}

static enum err poll_start(struct http *h)
{
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD);
	int r = uv_poll_init(loop_uv(h->loop), &h->poll, info->epoll_fd);
	if (r != 0)
		return err_from_errno(-r);
	h->poll.data = h;
	uv_poll_start(&h->poll, UV_READABLE, on_poll);
	return ERR_NONE;
}

enum err http_open(struct loop *l, const struct http_opts *o, struct http **out,
		   struct why *why)
{
	int fd = -1;
	if (!loop_uv(l))
		return why_set(why, ERR_UNSUPPORTED, "http: a simulated loop has no sockets");
	struct http *h = calloc(1, sizeof(*h));
	if (!h)
		return ERR_NO_MEMORY;
	h->loop = l;
	h->o = *o;
	h->o.bind = NULL; /* borrowed for this call only */
	h->o.conns_max = o->conns_max ? o->conns_max : conns_default();
	h->o.request_ms = o->request_ms ? o->request_ms : 5000;
	h->o.idle_ms = o->idle_ms ? o->idle_ms : 30000;
	list_init(&h->conns);
	enum err e = listen_any(o, &fd, why);
	if (e)
		goto fail_mem;
	addr_print(fd, h->addr, sizeof(h->addr));
	e = daemon_start(h, fd, why);
	if (e)
		goto fail_mem;
	e = poll_start(h);
	if (e)
		goto fail_daemon;
	timer_start(l, &h->sweep_timer, clock_after_ms(loop_now_ns(l), SWEEP_MS), on_sweep);
	*out = h;
	return ERR_NONE;

fail_daemon:
	MHD_stop_daemon(h->mhd);
fail_mem:
	free(h);
	return e;
}

const char *http_addr(const struct http *h)
{
	return h->addr;
}

void http_counters(const struct http *h, struct http_counters *out)
{
	*out = h->n;
	out->conns_open = h->n_conns;
}

static void on_closed(uv_handle_t *handle)
{
	struct http *h = handle->data;
	void (*closed)(void *arg) = h->closed;
	void *arg = h->closed_arg;
	free(h);
	if (closed)
		closed(arg);
}

void http_close(struct http *h, void (*closed)(void *arg), void *arg)
{
	h->closed = closed;
	h->closed_arg = arg;
	timer_stop(h->loop, &h->run_timer);
	timer_stop(h->loop, &h->sweep_timer);
	uv_poll_stop(&h->poll); /* before its descriptor goes */
	MHD_stop_daemon(h->mhd);
	assert(h->n_conns == 0);
	uv_close((uv_handle_t *)&h->poll, on_closed);
}
