/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GET /readyz at a time and per service, over loopback, bounded in bytes and time. The exchange
 * lives on the heap until libuv has closed its handle; the probe may forget it at any moment.
 */
#include "sup.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

enum { ANSWER_MAX = 8192 };

struct exchange {
	uv_tcp_t tcp;
	uv_connect_t connect;
	uv_write_t write;
	struct timer timer;
	struct probe *probe; /* NULL: nobody waits */
	bool closing;
	size_t n;
	char answer[ANSWER_MAX];
};

/* ---- parsing ---- */

bool probe_parse(const char *text, size_t n, bool *ready, struct reasons *why)
{
	const char *body = memmem(text, n, "\r\n\r\n", 4);
	if (n < 12 || memcmp(text, "HTTP/1.", 7) != 0 || !body)
		return false;
	body += 4;
	json_t *o = json_loadb(body, n - (size_t)(body - text), 0, NULL), *v;
	const json_t *r = json_object_get(o, "ready"), *list = json_object_get(o, "reasons");
	bool good = json_is_boolean(r) && json_is_array(list);
	size_t i;
	why->n = 0;
	json_array_foreach(list, i, v)
	{
		if (json_is_string(v) && why->n < SUP_REASONS_MAX)
			snprintf(why->text[why->n++], SUP_REASON_BYTES, "%s",
				 json_string_value(v));
	}
	if (good)
		*ready = json_is_true(r) && memcmp(text + 8, " 200", 4) == 0;
	json_decref(o);
	return good;
}

/* ---- the exchange ---- */

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

static void end(struct exchange *x)
{
	struct probe *p = x->probe;
	x->probe = NULL;
	if (p) {
		timer_stop(&p->sup->loop, &x->timer);
		p->live = NULL;
	}
	if (!x->closing)
		uv_close((uv_handle_t *)&x->tcp, on_closed);
	x->closing = true;
}

/* Tells the probe's owner, once. */
static void answer(struct exchange *x, bool answered)
{
	struct probe *p = x->probe;
	struct reasons why = { 0 };
	bool ready = false;
	if (answered)
		answered = probe_parse(x->answer, x->n, &ready, &why);
	end(x);
	if (p)
		p->done(p, answered, ready, &why);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
	struct exchange *x = h->data;
	*out = uv_buf_init(x->answer + x->n, (unsigned)(ANSWER_MAX - x->n));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
	struct exchange *x = s->data;
	if (n > 0)
		x->n += (size_t)n;
	if (n < 0 || x->n == ANSWER_MAX) /* ENOBUFS comes as n < 0 too */
		answer(x, n == UV_EOF);
}

static void on_written(uv_write_t *w, int status)
{
	struct exchange *x = w->data;
	if (status != 0 && !x->closing)
		answer(x, false);
}

static void on_connect(uv_connect_t *c, int status)
{
	static char get[] = "GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n";
	struct exchange *x = c->data;
	if (x->closing)
		return;
	uv_buf_t b = uv_buf_init(get, sizeof(get) - 1);
	if (status != 0 ||
	    uv_write(&x->write, (uv_stream_t *)&x->tcp, &b, 1, on_written) != 0 ||
	    uv_read_start((uv_stream_t *)&x->tcp, on_alloc, on_read) != 0)
		answer(x, false);
}

static void on_late(struct timer *t)
{
	answer(container_of(t, struct exchange, timer), false);
}

static bool parse_addr(const char *addr, struct sockaddr_storage *out)
{
	char host[64];
	const char *colon = strrchr(addr, ':');
	long port = colon ? strtol(colon + 1, NULL, 10) : 0;
	if (port < 1 || port > 65535 || (size_t)(colon - addr) >= sizeof(host))
		return false;
	bool six = addr[0] == '[' && colon[-1] == ']';
	size_t n = (size_t)(colon - addr) - (six ? 2 : 0);
	memcpy(host, addr + (six ? 1 : 0), n);
	host[n] = '\0';
	if (six)
		return uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)out) == 0;
	return uv_ip4_addr(host, (int)port, (struct sockaddr_in *)out) == 0;
}

static void on_no_start(struct timer *t)
{
	answer(container_of(t, struct exchange, timer), false);
}

void probe_start(struct probe *p, const char *addr)
{
	struct loop *l = &p->sup->loop;
	struct sockaddr_storage to = { 0 };
	assert(!p->live);
	struct exchange *x = calloc(1, sizeof(*x));
	if (!x || uv_tcp_init(loop_uv(l), &x->tcp) != 0) {
		free(x);
		return; /* the next tick tries again */
	}
	x->tcp.data = x->connect.data = x->write.data = x;
	x->probe = p;
	p->live = x;
	bool begun =
		parse_addr(addr, &to) &&
		uv_tcp_connect(&x->connect, &x->tcp, (struct sockaddr *)&to, on_connect) == 0;
	timer_start(l, &x->timer, clock_after_ms(loop_now_ns(l), begun ? SUP_PROBE_MS : 0),
		    begun ? on_late : on_no_start);
}

void probe_stop(struct probe *p)
{
	if (p->live)
		end(p->live);
}
