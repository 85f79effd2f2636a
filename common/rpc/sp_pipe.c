/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/sp_pipe.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>

/* A body from here on is written from the caller's memory, not copied first (measured: below it
 * the copy is cheaper than a second iovec). */
#define DIRECT_BYTES (16u << 10)
#define PARTS_MAX    8
/* While a wake's messages are worked on, what was said so far goes out after some time, so that the peer
 * works on it meanwhile: with all of it at the end, one side would sleep while the other works. The clock
 * is looked at once in so many bytes read. Measured in docs/performance.md. */
#define AHEAD_NS     20000
#define AHEAD_BYTES  1024
/* A peer that vanished is noticed after this long: idle, or with bytes unacknowledged. */
#define KEEPALIVE_S  15
#define UNACKED_MS   30000

/* ---- hub ---- */

static void out_release(struct sp_hub *h, struct sp_out *o)
{
	if (o->cap == SP_CHUNK && h->n_spare < ARRAY_LEN(h->spare))
		h->spare[h->n_spare++] = *o;
	else
		free(o->p);
	*o = (struct sp_out){ 0 };
}

static void pipe_flush(struct sp_pipe *p);
static void pipe_go(struct sp_pipe *p);

static void pipe_ended(struct sp_pipe *p, enum err e, const char *text)
{
	if (p->over || p->closing)
		return;
	p->over = true;
	p->rx.stop = true;
	p->ops->ended(p, e, text);
}

static void hub_tick(struct sp_hub *h)
{
	struct list *n;
	while ((n = list_pop_front(&h->again)))
		pipe_go(container_of(n, struct sp_pipe, again));
	while ((n = list_pop_front(&h->dirty))) {
		struct sp_pipe *p = container_of(n, struct sp_pipe, dirty);
		if (p->broken)
			pipe_ended(p, ERR_CONN_LOST, uv_strerror(p->sys));
		else
			pipe_flush(p);
	}
}

static void on_prepare(uv_prepare_t *t)
{
	hub_tick(t->data);
}

static void on_check(uv_check_t *t)
{
	hub_tick(t->data);
}

/* libuv writes without MSG_NOSIGNAL: a peer that went must not end the process. */
static void block_sigpipe(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

enum err sp_hub_ref(struct loop *l, struct sp_hub **out)
{
	uv_loop_t *uv = loop_uv(l);
	if (!uv)
		return ERR_UNSUPPORTED;
	struct sp_hub *h = l->engine;
	if (!h) {
		h = malloc(sizeof(*h));
		if (!h)
			return ERR_NO_MEMORY;
		memset(h, 0, offsetof(struct sp_hub, scratch));
		block_sigpipe();
		h->loop = l;
		list_init(&h->dirty);
		list_init(&h->again);
		list_init(&h->starved);
		uv_prepare_init(uv, &h->prepare);
		uv_check_init(uv, &h->check);
		h->prepare.data = h->check.data = h;
		h->n_handles = 2;
		uv_prepare_start(&h->prepare, on_prepare);
		uv_check_start(&h->check, on_check);
		uv_unref((uv_handle_t *)&h->prepare);
		uv_unref((uv_handle_t *)&h->check);
		l->engine = h;
	}
	h->refs++;
	*out = h;
	return ERR_NONE;
}

static void hub_closed(uv_handle_t *t)
{
	struct sp_hub *h = t->data;
	if (--h->n_handles > 0)
		return;
	while (h->n_spare > 0)
		free(h->spare[--h->n_spare].p);
	free(h->cipher);
	free(h);
}

void sp_hub_unref(struct sp_hub *h)
{
	if (--h->refs > 0)
		return;
	h->loop->engine = NULL;
	uv_close((uv_handle_t *)&h->prepare, hub_closed);
	uv_close((uv_handle_t *)&h->check, hub_closed);
}

void sp_hub_fed(struct sp_hub *h)
{
	struct list *n;
	while ((n = list_pop_front(&h->starved)))
		list_push_back(&h->again, n);
}

/* ---- writing ---- */

static void mark_dirty(struct sp_pipe *p)
{
	if (!list_linked(&p->dirty))
		list_push_back(&p->hub->dirty, &p->dirty);
}

void sp_pipe_break(struct sp_pipe *p, int sys)
{
	if (p->closing || p->broken)
		return;
	p->broken = true;
	p->sys = sys;
	p->rx.stop = true;
	mark_dirty(p);
}

static void queued_add(struct sp_pipe *p, size_t n)
{
	p->queued += n;
	*p->all_queued += n;
}

static void queued_sub(struct sp_pipe *p, size_t n)
{
	p->queued -= n;
	*p->all_queued -= n;
	*p->bytes_out += n;
	p->n_written += n;
}

static void on_written(uv_write_t *w, int status)
{
	struct sp_pipe *p = w->data;
	p->writing = false;
	queued_sub(p, p->sending.n);
	out_release(p->hub, &p->sending);
	if (p->closing)
		return;
	if (status < 0) {
		sp_pipe_break(p, status);
		return;
	}
	pipe_flush(p);
	sp_pipe_again(p);
}

/* The socket is full: libuv writes the rest when it can. */
static void write_later(struct sp_pipe *p, size_t done)
{
	p->sending = p->out;
	p->out = (struct sp_out){ 0 };
	uv_buf_t b = uv_buf_init((char *)p->sending.p + done, (unsigned)(p->sending.n - done));
	p->sending.n -= done;
	p->write.data = p;
	int r = uv_write(&p->write, &p->u.stream, &b, 1, on_written);
	if (r == 0) {
		p->writing = true;
		return;
	}
	queued_sub(p, p->sending.n);
	out_release(p->hub, &p->sending);
	sp_pipe_break(p, r);
}

static bool out_grow(struct sp_pipe *p, size_t need)
{
	struct sp_hub *h = p->hub;
	if (p->out.cap == 0 && need <= SP_CHUNK) {
		if (h->n_spare > 0) {
			p->out = h->spare[--h->n_spare];
			p->out.n = 0;
			return true;
		}
	}
	size_t cap = MAX_OF((size_t)SP_CHUNK, p->out.cap * 2);
	cap = MAX_OF(cap, p->out.n + need);
	uint8_t *m = realloc(p->out.p, cap);
	if (!m)
		return false;
	p->out.p = m;
	p->out.cap = cap;
	return true;
}

/*
 * With TLS: p->out, which is plain text, becomes records; before the handshake is over the text
 * waits in *plain and the handshake's own bytes go. False: it broke.
 */
static bool encrypt(struct sp_pipe *p, struct sp_out *plain)
{
	struct sp_tls *t = p->tls;
	size_t n_plain = p->out.n;
	if (sp_tls_up(t) && n_plain > 0) {
		if (!sp_tls_write(t, p->out.p, n_plain)) {
			sp_pipe_break(p, UV_ECONNABORTED);
			return false;
		}
		out_release(p->hub, &p->out);
		p->queued -= n_plain;
		*p->all_queued -= n_plain;
	} else {
		*plain = p->out;
		p->out = (struct sp_out){ 0 };
	}
	if (p->finish)
		sp_tls_bye(t);
	size_t n = sp_tls_ready(t);
	if (n == 0)
		return true;
	if (!out_grow(p, n)) {
		sp_pipe_break(p, UV_ENOMEM);
		return false;
	}
	sp_tls_take(t, p->out.p, n);
	p->out.n = n;
	queued_add(p, n);
	return true;
}

static void write_out(struct sp_pipe *p)
{
	uv_buf_t b = uv_buf_init((char *)p->out.p, (unsigned)p->out.n);
	int r = uv_try_write(&p->u.stream, &b, 1);
	if (r < 0 && r != UV_EAGAIN) {
		sp_pipe_break(p, r);
		return;
	}
	size_t done = r < 0 ? 0 : (size_t)r;
	queued_sub(p, done);
	if (done < p->out.n)
		write_later(p, done);
	else
		out_release(p->hub, &p->out);
}

/* Called after each frame. */
static void flush_ahead(struct sp_pipe *p, size_t n)
{
	p->ahead_bytes += n;
	if (p->ahead_bytes < AHEAD_BYTES || p->out.n == 0)
		return;
	uint64_t now = loop_now_ns(p->hub->loop);
	p->ahead_bytes = 0;
	if (p->ahead_ns == 0)
		p->ahead_ns = now;
	else if (now - p->ahead_ns >= AHEAD_NS)
		pipe_flush(p);
}

static void pipe_flush(struct sp_pipe *p)
{
	struct sp_out plain = { 0 };
	p->ahead_ns = 0;
	p->ahead_bytes = 0;
	if (p->writing || p->closing || p->broken)
		return;
	bool ok = !p->tls || encrypt(p, &plain);
	if (ok && p->out.n > 0)
		write_out(p);
	if (plain.cap > 0) {
		out_release(p->hub, &p->out); /* empty, or broken */
		p->out = plain;
	}
	if (p->finish && !p->writing && !p->broken)
		sp_pipe_close(p);
}

/* Room for n bytes: by writing what is there, else by growing. */
static bool out_room(struct sp_pipe *p, size_t n)
{
	if (p->out.cap - p->out.n >= n)
		return true;
	if (p->out.n > 0)
		pipe_flush(p);
	return p->out.cap - p->out.n >= n || out_grow(p, n);
}

static void out_put(struct sp_pipe *p, const void *from, size_t n)
{
	memcpy(p->out.p + p->out.n, from, n);
	p->out.n += n;
}

/* What uv_try_write left of the parts goes into the buffer. */
static bool put_from(struct sp_pipe *p, const struct bytes *parts, int n, size_t skip)
{
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += parts[i].n;
	if (!out_room(p, total - skip))
		return false;
	for (int i = 0; i < n; i++) {
		size_t s = MIN_OF(skip, parts[i].n);
		skip -= s;
		if (parts[i].n > s)
			out_put(p, parts[i].p + s, parts[i].n - s);
	}
	return true;
}

/* A large message: straight from the caller's memory as far as the socket takes it. */
static bool send_direct(struct sp_pipe *p, const struct bytes *parts, int n)
{
	pipe_flush(p);
	if (p->broken)
		return false;
	size_t done = 0;
	if (!p->writing) {
		uv_buf_t b[PARTS_MAX + 1];
		for (int i = 0; i < n; i++)
			b[i] = uv_buf_init((char *)parts[i].p, (unsigned)parts[i].n);
		int r = uv_try_write(&p->u.stream, b, (unsigned)n);
		if (r < 0 && r != UV_EAGAIN) {
			sp_pipe_break(p, r);
			return false;
		}
		done = r < 0 ? 0 : (size_t)r;
		*p->bytes_out += done;
		p->n_written += done;
	}
	size_t before = p->out.n;
	if (!put_from(p, parts, n, done)) {
		/* half a frame is out: the stream is of no more use */
		sp_pipe_break(p, UV_ENOMEM);
		return false;
	}
	queued_add(p, p->out.n - before);
	return true;
}

bool sp_pipe_send(struct sp_pipe *p, const struct bytes *parts, int n)
{
	if (p->closing || p->broken || p->finish)
		return false;
	assert(n < PARTS_MAX);
	uint8_t hdr[SP_FRAME_HDR_MAX];
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += parts[i].n;
	size_t n_hdr = sp_frame_hdr(hdr, p->rx.ipc, total);
	if (total >= DIRECT_BYTES && !p->tls) {
		struct bytes all[PARTS_MAX + 1] = { BYTES(hdr, n_hdr) };
		memcpy(all + 1, parts, (size_t)n * sizeof(*parts));
		if (!send_direct(p, all, n + 1))
			return false;
	} else {
		if (!out_room(p, n_hdr + total))
			return false;
		out_put(p, hdr, n_hdr);
		for (int i = 0; i < n; i++)
			out_put(p, parts[i].p, parts[i].n);
		queued_add(p, n_hdr + total);
	}
	mark_dirty(p);
	return !p->broken;
}

/* ---- reading ---- */

static void on_frame(struct sp_rx *rx, struct bytes body, uint8_t *owned)
{
	struct sp_pipe *p = container_of(rx, struct sp_pipe, rx);
	p->n_frames++;
	p->ops->frame(p, body, owned);
	flush_ahead(p, body.n);
	if (p->queued <= p->queue_max)
		return;
	pipe_flush(p);
	if (p->queued > p->queue_max)
		rx->stop = true; /* I2; on_written goes on */
}

static void on_alloc(uv_handle_t *t, size_t want, uv_buf_t *b)
{
	struct sp_pipe *p = t->data;
	size_t room;
	if (p->tls) {
		*b = uv_buf_init((char *)p->hub->cipher, SP_SCRATCH);
		return;
	}
	uint8_t *to = sp_rx_room(&p->rx, p->hub->scratch, SP_SCRATCH, &room);
	*b = uv_buf_init((char *)to, (unsigned)room);
}

static void stop_reading(struct sp_pipe *p)
{
	uv_read_stop(&p->u.stream);
	p->reading = false;
}

static void after_parse(struct sp_pipe *p, enum err e, const char *text, bool was_greeted)
{
	if (e != ERR_NONE) {
		pipe_ended(p, e, text);
		return;
	}
	if (!was_greeted && p->rx.greeted && !p->closing && p->ops->open)
		p->ops->open(p);
}

static void wait_fed(struct sp_pipe *p)
{
	if (p->rx.starved && !p->closing && !list_linked(&p->again))
		list_push_back(&p->hub->starved, &p->again);
}

/* Decrypts and delivers until a rule stops it or the wire must bring more. */
static void tls_pump(struct sp_pipe *p)
{
	bool was_up = sp_tls_up(p->tls);
	while (!p->rx.stop && !p->closing && !p->over) {
		const char *text = "";
		bool greeted = p->rx.greeted;
		size_t room;
		uint8_t *to = sp_rx_room(&p->rx, p->hub->scratch, SP_SCRATCH, &room);
		ssize_t n = sp_tls_read(p->tls, to, room);
		if (n == 0)
			break;
		if (n < 0) {
			pipe_flush(p); /* the alert that tells the peer */
			pipe_ended(p, sp_tls_eof(p->tls) ? ERR_CONN_LOST : ERR_BAD_MESSAGE,
				   sp_tls_text(p->tls));
			return;
		}
		enum err e = sp_rx_feed(&p->rx, p->hub->scratch, (size_t)n, &text);
		after_parse(p, e, text, greeted);
	}
	if (!p->closing && (was_up != sp_tls_up(p->tls) || sp_tls_ready(p->tls) > 0))
		mark_dirty(p);
}

static void tls_got(struct sp_pipe *p, size_t n)
{
	if (!sp_tls_feed(p->tls, p->hub->cipher, n)) {
		sp_pipe_break(p, UV_ENOMEM);
		return;
	}
	tls_pump(p);
}

static const char *eof_text(const struct sp_pipe *p)
{
	return p->tls && !sp_tls_up(p->tls)
		       ? "the peer closed the connection in the TLS handshake"
		       : "the peer closed the connection";
}

static void on_read(uv_stream_t *s, ssize_t nread, const uv_buf_t *b)
{
	struct sp_pipe *p = s->data;
	if (nread == 0)
		return;
	if (nread < 0) {
		stop_reading(p);
		pipe_ended(p, ERR_CONN_LOST,
			   nread == UV_EOF ? eof_text(p) : uv_strerror((int)nread));
		return;
	}
	*p->bytes_in += (uint64_t)nread;
	loop_worked(p->hub->loop);
	const char *text = "";
	bool greeted = p->rx.greeted, large = p->rx.frame != NULL;
	if (p->tls) {
		tls_got(p, (size_t)nread);
	} else {
		enum err e = sp_rx_feed(&p->rx, p->hub->scratch, (size_t)nread, &text);
		after_parse(p, e, text, greeted);
	}
	if (p->closing)
		return;
	if (p->rx.stop) {
		stop_reading(p);
		wait_fed(p);
	} else if ((size_t)nread == b->len && !large) {
		stop_reading(p); /* I3 */
		sp_pipe_again(p);
	}
}

void sp_pipe_again(struct sp_pipe *p)
{
	if (!p->reading && !p->closing && !list_linked(&p->again))
		list_push_back(&p->hub->again, &p->again);
}

static void pipe_go(struct sp_pipe *p)
{
	if (p->closing || p->broken || p->over || p->finish || p->queued > p->queue_max)
		return;
	if (p->rx.stop) {
		const char *text = "";
		enum err e = sp_rx_resume(&p->rx, &text);
		after_parse(p, e, text, p->rx.greeted);
		wait_fed(p);
	}
	if (p->tls && !p->rx.stop)
		tls_pump(p); /* what was decrypted no further when we stopped */
	if (p->rx.stop || p->reading || p->closing)
		return;
	int r = uv_read_start(&p->u.stream, on_alloc, on_read);
	if (r == 0)
		p->reading = true;
	else
		sp_pipe_break(p, r);
}

/* ---- life ---- */

enum err sp_pipe_init(struct sp_pipe *p, struct sp_hub *h, const struct sp_pipe_ops *ops,
		      bool ipc)
{
	uv_loop_t *uv = loop_uv(h->loop);
	int r = ipc ? uv_pipe_init(uv, &p->u.pipe, 0) : uv_tcp_init(uv, &p->u.tcp);
	if (r != 0)
		return err_from_errno(-r);
	p->u.handle.data = p;
	p->hub = h;
	p->ops = ops;
	p->rx.ipc = ipc;
	p->rx.on_frame = on_frame;
	h->refs++;
	return ERR_NONE;
}

static void tune_tcp(struct sp_pipe *p)
{
	uv_os_fd_t fd;
	uv_tcp_nodelay(&p->u.tcp, 1);
	uv_tcp_keepalive(&p->u.tcp, 1, KEEPALIVE_S);
	unsigned gone_ms = UNACKED_MS;
	if (uv_fileno(&p->u.handle, &fd) == 0)
		setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, sizeof(gone_ms));
}

void sp_pipe_start(struct sp_pipe *p, uint16_t our_proto)
{
	uint8_t g[SP_GREETING];
	if (!p->rx.ipc)
		tune_tcp(p);
	if (p->tls && !p->hub->cipher && !(p->hub->cipher = malloc(SP_SCRATCH)))
		sp_pipe_break(p, UV_ENOMEM);
	sp_greeting(g, our_proto);
	if (out_room(p, sizeof(g))) {
		out_put(p, g, sizeof(g));
		queued_add(p, sizeof(g));
		mark_dirty(p);
	} else {
		sp_pipe_break(p, UV_ENOMEM);
	}
	sp_pipe_again(p);
}

void sp_pipe_finish(struct sp_pipe *p)
{
	if (p->closing)
		return;
	p->finish = true;
	p->rx.stop = true;
	if (p->reading)
		stop_reading(p);
	mark_dirty(p);
}

static void on_closed(uv_handle_t *t)
{
	struct sp_pipe *p = t->data;
	struct sp_hub *h = p->hub;
	*p->all_queued -= p->queued;
	p->queued = 0;
	out_release(h, &p->out);
	if (sp_rx_fini(&p->rx))
		sp_hub_fed(h);
	sp_tls_free(p->tls);
	p->ops->closed(p);
	sp_hub_unref(h);
}

void sp_pipe_close(struct sp_pipe *p)
{
	if (p->closing)
		return;
	p->closing = true;
	p->rx.stop = true;
	list_del(&p->dirty);
	list_del(&p->again);
	uv_close(&p->u.handle, on_closed);
}
