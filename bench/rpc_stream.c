/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw, uv, uvmac, uvspin: frames of a 4-byte length and that many bytes. With tags: sequence (8), body, tag.
 */
#include "rpc_peers.h"

#include "rpc/addr.h"
#include "rpc/auth_crypto.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define BUF_BYTES (256u << 10)
#define FRAME_MAX 256

double peer_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void peer_die(const char *what, const char *why)
{
	fprintf(stderr, "bench_rpc: %s: %s\n", what, why);
	_exit(1);
}

/* ---- sockets ---- */

static socklen_t to_sockaddr(const char *text, struct sockaddr_storage *sa)
{
	struct addr a;
	struct why why = { 0 };
	memset(sa, 0, sizeof(*sa));
	if (addr_parse(text, &a, &why) != ERR_NONE)
		peer_die(text, why.text);
	if (a.scheme == ADDR_IPC) {
		struct sockaddr_un *un = (struct sockaddr_un *)sa;
		un->sun_family = AF_UNIX;
		memcpy(un->sun_path, a.path, strlen(a.path));
		return sizeof(*un);
	}
	struct sockaddr_in *in = (struct sockaddr_in *)sa;
	in->sin_family = AF_INET;
	in->sin_port = htons(a.port);
	inet_pton(AF_INET, a.host, &in->sin_addr);
	return sizeof(*in);
}

static int listen_on(const char *addr, void (*ready)(const char *bound))
{
	struct sockaddr_storage sa;
	socklen_t n = to_sockaddr(addr, &sa);
	char bound[PEER_ADDR_MAX];
	int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, n) != 0 || listen(fd, 8) != 0)
		peer_die(addr, "bind");
	snprintf(bound, sizeof(bound), "%s", addr);
	if (sa.ss_family == AF_INET) {
		n = sizeof(sa);
		getsockname(fd, (struct sockaddr *)&sa, &n);
		snprintf(bound, sizeof(bound), "tcp://127.0.0.1:%u",
			 ntohs(((struct sockaddr_in *)&sa)->sin_port));
	}
	ready(bound);
	int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	if (c < 0)
		peer_die(addr, "accept");
	int on = 1;
	setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return c;
}

static int connect_to(const char *addr)
{
	struct sockaddr_storage sa;
	socklen_t n = to_sockaddr(addr, &sa);
	int on = 1, fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, n) != 0)
		peer_die(addr, "connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

/* ---- frames ---- */

struct stream {
	bool mac, server;
	struct auth_session ses;
	uint8_t in[BUF_BYTES], out[BUF_BYTES];
	size_t n_in, n_out;
	uint64_t n_frames;
	bool stop;
	unsigned n_outstanding;
	/* uv */
	uv_loop_t loop;
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_tcp_t tcp;
		uv_pipe_t pipe;
	} h;
	uv_timer_t timer;
	bool spin; /* polls as loop_spin does */
	int fd;	   /* raw */
};

static struct stream *stream_new(bool mac, bool server)
{
	static const uint8_t a[16] = "0123456789abcde", b[16] = "fedcba987654321";
	struct stream *s = calloc(1, sizeof(*s));
	if (!s)
		peer_die("stream", "no memory");
	s->mac = mac;
	s->server = server;
	if (auth_session_init(&s->ses, 1, server ? a : b, server ? b : a) != ERR_NONE)
		peer_die("stream", "no session");
	return s;
}

static void put_frame(struct stream *s, const uint8_t *body)
{
	uint8_t *p = s->out + s->n_out;
	uint32_t len = s->mac ? 8 + PEER_BODY + AUTH_TAG_BYTES : PEER_BODY;
	memcpy(p, &len, 4);
	p += 4;
	if (s->mac) {
		uint64_t seq;
		struct iovec v = { p, 8 + PEER_BODY };
		if (auth_next_seq(&s->ses, &seq) != ERR_NONE)
			peer_die("stream", "no number left");
		memcpy(p, &seq, 8);
		memcpy(p + 8, body, PEER_BODY);
		if (auth_tag(&s->ses, seq, &v, 1, p + 8 + PEER_BODY) != ERR_NONE)
			peer_die("stream", "tag");
	} else {
		memcpy(p, body, PEER_BODY);
	}
	s->n_out += 4 + len;
}

static void got_frame(struct stream *s, const uint8_t *p, uint32_t len)
{
	if (s->mac) {
		uint64_t seq;
		struct iovec v = { (void *)p, 8 + PEER_BODY };
		memcpy(&seq, p, 8);
		if (auth_check(&s->ses, seq, &v, 1, p + 8 + PEER_BODY) != ERR_NONE)
			peer_die("stream", "a tag does not match");
		p += 8;
	}
	s->n_frames++;
	if (s->server || !s->stop)
		put_frame(s, p);
	else
		s->n_outstanding--;
}

/* Whole frames of in; what is cut moves to the front. */
static void parse(struct stream *s)
{
	size_t at = 0;
	uint32_t len;
	while (s->n_in - at >= 4) {
		memcpy(&len, s->in + at, 4);
		if (len > FRAME_MAX)
			peer_die("stream", "a frame is too long");
		if (s->n_in - at - 4 < len)
			break;
		got_frame(s, s->in + at + 4, len);
		at += 4 + len;
	}
	memmove(s->in, s->in + at, s->n_in - at);
	s->n_in -= at;
}

static void start_frames(struct stream *s, unsigned n)
{
	static const uint8_t body[PEER_BODY] = "echo";
	s->stop = false;
	s->n_outstanding = n;
	s->n_frames = 0;
	for (unsigned i = 0; i < n; i++)
		put_frame(s, body);
}

/* ---- raw ---- */

static void raw_turn(struct stream *s)
{
	if (s->n_out > 0 && write(s->fd, s->out, s->n_out) != (ssize_t)s->n_out)
		peer_die("raw", "write");
	s->n_out = 0;
	if (!s->server && s->n_outstanding == 0)
		return;
	ssize_t r = read(s->fd, s->in + s->n_in, sizeof(s->in) - s->n_in);
	if (r <= 0)
		_exit(0);
	s->n_in += (size_t)r;
	parse(s);
}

static void raw_serve(const char *addr, void (*ready)(const char *bound))
{
	struct stream *s = stream_new(false, true);
	s->fd = listen_on(addr, ready);
	for (;;)
		raw_turn(s);
}

static void *raw_open(const char *addr)
{
	struct stream *s = stream_new(false, false);
	s->fd = connect_to(addr);
	return s;
}

static double raw_run(void *client, unsigned n, unsigned ms)
{
	struct stream *s = client;
	double begin = peer_now(), end = begin + ms * 1e-3;
	start_frames(s, n);
	while (s->n_outstanding > 0) {
		raw_turn(s);
		if (s->n_frames % 64 == 0 || n == 1)
			s->stop = peer_now() >= end;
	}
	return (double)s->n_frames / (peer_now() - begin);
}

static void raw_close(void *client)
{
	struct stream *s = client;
	close(s->fd);
	auth_session_fini(&s->ses);
	free(s);
}

/* ---- uv ---- */

static void uv_flush(struct stream *s)
{
	uv_buf_t b = uv_buf_init((char *)s->out, (unsigned)s->n_out);
	if (s->n_out > 0 && uv_try_write(&s->h.stream, &b, 1) != (int)s->n_out)
		peer_die("uv", "write");
	s->n_out = 0;
}

static void on_alloc(uv_handle_t *t, size_t want, uv_buf_t *b)
{
	struct stream *s = t->data;
	*b = uv_buf_init((char *)s->in + s->n_in, (unsigned)(sizeof(s->in) - s->n_in));
}

static void on_read(uv_stream_t *t, ssize_t nread, const uv_buf_t *b)
{
	struct stream *s = t->data;
	if (nread < 0 && s->server)
		_exit(0);
	if (nread < 0)
		peer_die("uv", "the server is gone");
	s->n_in += (size_t)nread;
	parse(s);
	uv_flush(s);
	if (!s->server && s->n_outstanding == 0 && !s->spin)
		uv_stop(&s->loop);
}

enum spin { SLEEP, POLL, POLL_TIMED };

/* One pass; polling ends when PEER_SPIN_US have passed since the last frame. */
static enum spin spin_pass(struct stream *s, enum spin spin, double *until)
{
	uint64_t before = s->n_frames;
	uv_run(&s->loop, spin == SLEEP ? UV_RUN_ONCE : UV_RUN_NOWAIT);
	if (s->n_frames != before)
		return POLL;
	if (spin == SLEEP)
		return SLEEP;
	double now = peer_now();
	if (spin == POLL)
		*until = now + PEER_SPIN_US * 1e-6;
	sched_yield();
	return now < *until ? POLL_TIMED : SLEEP;
}

static void uv_go(struct stream *s)
{
	enum spin spin = SLEEP;
	double until = 0;
	if (!s->spin)
		uv_run(&s->loop, UV_RUN_DEFAULT);
	else
		while (s->server || s->n_outstanding > 0)
			spin = spin_pass(s, spin, &until);
}

static void uv_adopt(struct stream *s, const char *addr, int fd)
{
	enum addr_scheme scheme;
	uv_loop_init(&s->loop);
	uv_timer_init(&s->loop, &s->timer);
	if (addr_scheme(addr, &scheme) && scheme == ADDR_IPC) {
		uv_pipe_init(&s->loop, &s->h.pipe, 0);
		uv_pipe_open(&s->h.pipe, fd);
	} else {
		uv_tcp_init(&s->loop, &s->h.tcp);
		uv_tcp_open(&s->h.tcp, fd);
	}
	s->h.handle.data = s->timer.data = s;
	uv_read_start(&s->h.stream, on_alloc, on_read);
}

static void uv_serve_any(const char *addr, void (*ready)(const char *bound), bool mac,
			 bool spin)
{
	struct stream *s = stream_new(mac, true);
	s->spin = spin;
	uv_adopt(s, addr, listen_on(addr, ready));
	uv_go(s);
	_exit(0);
}

static void uv_serve(const char *addr, void (*ready)(const char *bound))
{
	uv_serve_any(addr, ready, false, false);
}

static void uvmac_serve(const char *addr, void (*ready)(const char *bound))
{
	uv_serve_any(addr, ready, true, false);
}

static void uvspin_serve(const char *addr, void (*ready)(const char *bound))
{
	uv_serve_any(addr, ready, true, true);
}

static void *uv_open(const char *addr)
{
	struct stream *s = stream_new(false, false);
	uv_adopt(s, addr, connect_to(addr));
	return s;
}

static void *uvmac_open(const char *addr)
{
	struct stream *s = stream_new(true, false);
	uv_adopt(s, addr, connect_to(addr));
	return s;
}

static void *uvspin_open(const char *addr)
{
	struct stream *s = uvmac_open(addr);
	s->spin = true;
	return s;
}

static void on_end(uv_timer_t *t)
{
	struct stream *s = t->data;
	s->stop = true;
}

static double uv_run_client(void *client, unsigned n, unsigned ms)
{
	struct stream *s = client;
	double begin = peer_now();
	uv_update_time(&s->loop);
	uv_timer_start(&s->timer, on_end, ms, 0);
	start_frames(s, n);
	uv_flush(s);
	uv_go(s);
	return (double)s->n_frames / (peer_now() - begin);
}

static void uv_close_client(void *client)
{
	struct stream *s = client;
	uv_close(&s->h.handle, NULL);
	uv_close((uv_handle_t *)&s->timer, NULL);
	uv_run(&s->loop, UV_RUN_DEFAULT);
	uv_loop_close(&s->loop);
	auth_session_fini(&s->ses);
	free(s);
}

const struct peer_sys peer_raw = { "raw", raw_serve, raw_open, raw_run, raw_close };
const struct peer_sys peer_uv = { "uv", uv_serve, uv_open, uv_run_client, uv_close_client };
const struct peer_sys peer_uvmac = { "uvmac", uvmac_serve, uvmac_open, uv_run_client,
				     uv_close_client };
const struct peer_sys peer_uvspin = { "uvspin", uvspin_serve, uvspin_open, uv_run_client,
				      uv_close_client };
