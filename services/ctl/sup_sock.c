/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run/sup.sock: one line of JSON in, one or more out.
 *
 *   {"op":"status"}                        -> the status line
 *   {"op":"stop","keep_memory":false}      -> event lines, the last one {"event":"done",...}
 *
 * Anything else is answered with {"error":NAME,"text":...} and the connection closed. At most
 * SUP_CONNS_MAX connections: one more drops the oldest that has not asked yet, so that idle ones
 * lock nobody out. SUP_REQUEST_MAX bytes a request, SUP_CONN_MS to send it; peers of another user
 * than ours and root are closed at once (SO_PEERCRED).
 */
#include "sup.h"
#include "base/json_out.h"
#include "base/list.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

struct conn {
	uv_pipe_t pipe;
	struct sup_sock *sock;
	struct list node;
	struct timer timer;
	bool closing, asked, waits_for_stop;
	uint32_t n_writes;
	size_t n;
	char text[SUP_REQUEST_MAX];
};

struct sup_sock {
	uv_pipe_t pipe;
	struct sup *sup;
	struct list conns;
	uint32_t n_conns; /* with those that are closing */
	uint32_t n_open;
	bool closing;
};

struct out {
	uv_write_t w;
	struct conn *conn;
	struct buf b;
};

static void sock_unref(struct sup_sock *k)
{
	struct sup *s = k->sup;
	if (!k->closing || k->n_conns > 0)
		return;
	free(k);
	s->sock = NULL;
	sup_sock_gone(s);
}

static void on_conn_closed(uv_handle_t *h)
{
	struct conn *c = h->data;
	struct sup_sock *k = c->sock;
	k->n_conns--;
	free(c);
	sock_unref(k);
}

static void conn_close(struct conn *c)
{
	if (c->closing)
		return;
	c->closing = true;
	c->sock->n_open--;
	list_del(&c->node);
	timer_stop(&c->sock->sup->loop, &c->timer);
	uv_close((uv_handle_t *)&c->pipe, on_conn_closed);
}

static void on_late(struct timer *t)
{
	conn_close(container_of(t, struct conn, timer));
}

static void limit_time(struct conn *c)
{
	struct loop *l = &c->sock->sup->loop;
	timer_start(l, &c->timer, clock_after_ms(loop_now_ns(l), SUP_CONN_MS), on_late);
}

/* ---- answers ---- */

static void on_written(uv_write_t *w, int status)
{
	struct out *o = w->data;
	struct conn *c = o->conn;
	c->n_writes--;
	if (c->waits_for_stop && c->n_writes == 0)
		timer_stop(&c->sock->sup->loop, &c->timer);
	if (status != 0 || (!c->waits_for_stop && c->n_writes == 0))
		conn_close(c);
	buf_fini(&o->b);
	free(o);
}

/* Sends b and a newline; b is taken. */
static void send_line(struct conn *c, struct buf *b)
{
	struct out *o = calloc(1, sizeof(*o));
	buf_put(b, "\n", 1);
	if (!o || buf_err(b) != ERR_NONE || c->n_writes > 64)
		goto fail;
	o->conn = c;
	o->b = *b;
	*b = BUF_INIT(0);
	o->w.data = o;
	uv_buf_t v = uv_buf_init((char *)o->b.p, (unsigned)o->b.n);
	if (uv_write(&o->w, (uv_stream_t *)&c->pipe, &v, 1, on_written) != 0)
		goto fail;
	c->n_writes++;
	limit_time(c);
	return;
fail:
	if (o)
		buf_fini(&o->b);
	free(o);
	buf_fini(b);
	conn_close(c);
}

static void send_error(struct conn *c, enum err e, const char *text)
{
	struct buf b = BUF_INIT(1024);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_str(&j, "error", err_name(e));
	json_kv_str(&j, "text", text);
	json_end(&j);
	send_line(c, &b);
}

/* ---- requests ---- */

static void handle(struct conn *c, size_t n)
{
	struct sup *s = c->sock->sup;
	struct buf b = BUF_INIT(SUP_REPLY_MAX);
	json_t *o = json_loadb(c->text, n, JSON_REJECT_DUPLICATES, NULL);
	const char *op = json_string_value(json_object_get(o, "op"));
	const json_t *keep = json_object_get(o, "keep_memory");
	uv_read_stop((uv_stream_t *)&c->pipe);
	c->asked = true;
	if (op && strcmp(op, "status") == 0) {
		sup_status(s, &b);
		send_line(c, &b);
	} else if (op && strcmp(op, "stop") == 0 && (!keep || json_is_boolean(keep))) {
		c->waits_for_stop = true;
		timer_stop(&s->loop, &c->timer);
		sup_stop(s, json_is_true(keep));
	} else {
		send_error(c, ERR_INVALID_PARAMS,
			   "one line of JSON is expected: {\"op\":\"status\"} or "
			   "{\"op\":\"stop\",\"keep_memory\":BOOL}");
	}
	json_decref(o);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
	struct conn *c = h->data;
	*out = uv_buf_init(c->text + c->n, (unsigned)(sizeof(c->text) - c->n));
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *b)
{
	struct conn *c = st->data;
	if (n > 0)
		c->n += (size_t)n;
	const char *nl = memchr(c->text, '\n', c->n);
	if (nl)
		handle(c, (size_t)(nl - c->text));
	else if (n < 0)
		conn_close(c);
	else if (c->n == sizeof(c->text))
		send_error(c, ERR_TOO_LARGE, "a request has at most 4095 bytes and a newline");
}

static bool allowed(struct conn *c)
{
	struct ucred who;
	socklen_t n = sizeof(who);
	int fd = -1;
	if (uv_fileno((uv_handle_t *)&c->pipe, &fd) != 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0)
		return false;
	return who.uid == 0 || who.uid == geteuid();
}

/* Makes room for one more; false: everybody here has asked. */
static bool drop_oldest_silent(struct sup_sock *k, const struct conn *newest)
{
	list_for_each (n, &k->conns) {
		struct conn *c = container_of(n, struct conn, node);
		if (c == newest || c->asked)
			continue;
		conn_close(c);
		return true;
	}
	return false;
}

static void on_listen(uv_stream_t *st, int status)
{
	struct sup_sock *k = st->data;
	struct conn *c = status == 0 ? calloc(1, sizeof(*c)) : NULL;
	if (!c)
		return;
	c->sock = k;
	c->pipe.data = c;
	if (uv_pipe_init(st->loop, &c->pipe, 0) != 0) {
		free(c);
		return;
	}
	list_init(&c->node);
	list_push_back(&k->conns, &c->node);
	k->n_conns++;
	k->n_open++;
	limit_time(c);
	if (uv_accept(st, (uv_stream_t *)&c->pipe) != 0 || !allowed(c) ||
	    (k->n_open > SUP_CONNS_MAX && !drop_oldest_silent(k, c)) ||
	    uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read) != 0)
		conn_close(c);
}

/* ---- for sup.c ---- */

static void on_sock_closed(uv_handle_t *h)
{
	struct sup_sock *k = h->data;
	k->closing = true;
	sock_unref(k);
}

enum err sup_sock_open(struct sup *s, const char *path, struct sup_sock **out, struct why *why)
{
	struct sup_sock *k = calloc(1, sizeof(*k));
	if (!k)
		return why_set(why, ERR_NO_MEMORY, "no memory for %.200s", path);
	k->sup = s;
	list_init(&k->conns);
	uv_pipe_init(loop_uv(&s->loop), &k->pipe, 0);
	k->pipe.data = k;
	unlink(path); /* a dead supervisor's: we hold the lock */
	int r = uv_pipe_bind(&k->pipe, path);
	if (r == 0)
		/* one batch of accepts must not push out whom the one before let in */
		r = uv_listen((uv_stream_t *)&k->pipe, SUP_CONNS_MAX / 2, on_listen);
	if (r != 0) {
		uv_close((uv_handle_t *)&k->pipe, on_sock_closed);
		return why_set(why, err_from_errno(-r), "%.200s: cannot listen: %s", path,
			       uv_strerror(r));
	}
	*out = k;
	return ERR_NONE;
}

void sup_sock_event(struct sup_sock *k, struct bytes line)
{
	list_for_each_safe (p, &k->conns) {
		struct conn *c = container_of(p, struct conn, node);
		struct buf b = BUF_INIT(SUP_REQUEST_MAX);
		buf_put(&b, line.p, line.n);
		if (c->waits_for_stop)
			send_line(c, &b);
		else
			buf_fini(&b);
	}
}

void sup_sock_close(struct sup_sock *k)
{
	if (!k)
		return;
	list_for_each_safe (p, &k->conns) {
		struct conn *c = container_of(p, struct conn, node);
		c->waits_for_stop = false; /* on_written closes it after the last line */
		if (c->n_writes == 0)
			conn_close(c);
	}
	uv_close((uv_handle_t *)&k->pipe, on_sock_closed);
}
