/* SPDX-License-Identifier: Apache-2.0 */
#include "support/eng_fix.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Assert that also holds outside Criterion, with no message of its own. */
#define MUST(cond) assert(cond)

struct eng_limits fix_limits(void)
{
	return (struct eng_limits){
		.message_bytes_max = 8u << 20,
		.anon_message_bytes_max = 8u << 20,
		.conns_max = 1024,
		.conns_anon_max = 512,
		.handshake_ms = 2000,
		.frame_ms = 2000,
		.queue_bytes_max = 64ull << 20,
		.conn_queue_bytes_max = 1ull << 20,
		.inside_bytes_max = 64ull << 20,
	};
}

/* ---- server ---- */

static void on_request(void *ctx, struct eng_conn *c, struct eng_token t, struct bytes msg,
		       enum eng_life life)
{
	struct fix_server *f = ctx;
	(void)life;
	f->n_requests++;
	f->last_bytes = msg.n;
	f->last_conn = c;
	if (f->know && !c->known)
		f->eng->known(f->s, c);
	switch (f->mode) {
	case FIX_ECHO:
		f->eng->reply(f->s, t, &msg, 1);
		return;
	case FIX_DROP:
		f->eng->drop(f->s, t);
		return;
	case FIX_HOLD:
		MUST(f->n_held < FIX_XCHG_MAX);
		f->held[f->n_held++] = t;
		return;
	}
}

static void on_conn_closed(void *ctx, struct eng_conn *c)
{
	struct fix_server *f = ctx;
	f->n_closed_conns++;
	if (f->last_conn == c)
		f->last_conn = NULL;
}

static const struct eng_server_events server_events = {
	.request = on_request,
	.closed = on_conn_closed,
};

void fix_serve(struct fix_server *f, struct loop *l, const struct engine *eng, const char *addr,
	       const struct eng_limits *limits, const struct tls_files *tls)
{
	struct why why = { 0 };
	signal(SIGPIPE, SIG_IGN); /* as a service does: loop/signals.h */
	f->eng = eng;
	f->loop = l;
	f->closed = false;
	f->log = (struct log){ .svc = "server", .fd = 2 };
	struct eng_server_opts o = {
		.limits = limits ? *limits : fix_limits(),
		.log = &f->log,
		.counters = &f->counters,
		.events = &server_events,
		.ctx = f,
	};
	if (tls)
		o.tls = *tls;
	MUST(eng->server_new(l, &o, &f->s) == ERR_NONE);
	enum err e = eng->listen(f->s, addr, f->addr, sizeof(f->addr), &why);
	if (e != ERR_NONE)
		fprintf(stderr, "listen: %s\n", why.text);
	MUST(e == ERR_NONE);
}

void fix_release(struct fix_server *f, const char *text)
{
	struct bytes b = BYTES_STR(text);
	for (uint32_t i = 0; i < f->n_held; i++)
		f->eng->reply(f->s, f->held[i], &b, 1);
	f->n_held = 0;
}

static void on_server_closed(void *arg)
{
	((struct fix_server *)arg)->closed = true;
}

void fix_server_end(struct fix_server *f)
{
	f->eng->drain(f->s);
	f->eng->server_close(f->s, 500, on_server_closed, f);
	MUST(!f->closed);
	MUST(RUN_UNTIL(f->loop, f->closed, 10000));
}

/* ---- client ---- */

static void on_up(void *ctx)
{
	((struct fix_client *)ctx)->n_up++;
}

static void on_down(void *ctx, enum err e, const char *text)
{
	struct fix_client *c = ctx;
	c->n_down++;
	c->down_err = e;
	snprintf(c->down_text, sizeof(c->down_text), "%s", text);
	for (uint32_t i = 0; i < FIX_XCHG_MAX; i++)
		c->down_before_done |= c->xchg[i].out;
}

static const struct eng_peer_events peer_events = { .up = on_up, .down = on_down };

static void on_done(struct eng_xchg *x, enum err e, struct bytes reply)
{
	struct fix_xchg *fx = container_of(x, struct fix_xchg, x);
	MUST(fx->out && !fx->done);
	fx->out = false;
	fx->done = true;
	fx->err = e;
	fx->n_reply = reply.n;
	fx->reply = malloc(reply.n + 1);
	if (reply.n > 0)
		memcpy(fx->reply, reply.p, reply.n);
	fx->client->n_done++;
	fx->client->n_ok += e == ERR_NONE;
}

enum err fix_dial(struct fix_client *c, struct loop *l, const struct engine *eng,
		  const char *addr, const struct eng_limits *limits,
		  const struct tls_files *tls, struct why *why)
{
	*c = (struct fix_client){ .eng = eng, .loop = l };
	signal(SIGPIPE, SIG_IGN);
	c->log = (struct log){ .svc = "client", .fd = 2 };
	struct eng_dial_opts o = {
		.limits = limits ? *limits : fix_limits(),
		.addr = addr,
		.log = &c->log,
		.events = &peer_events,
		.ctx = c,
	};
	if (tls)
		o.tls = *tls;
	return eng->dial(l, &o, &c->p, why);
}

void fix_connect(struct fix_client *c, struct loop *l, const struct engine *eng,
		 const char *addr)
{
	struct why why = { 0 };
	MUST(fix_dial(c, l, eng, addr, NULL, NULL, &why) == ERR_NONE);
	MUST(RUN_UNTIL(l, c->n_up || c->n_down, 5000));
	if (!c->n_up)
		fprintf(stderr, "dial: %s\n", c->down_text);
	MUST(c->n_up == 1);
}

static uint8_t pattern(uint32_t i, size_t at)
{
	return (uint8_t)(i * 31 + at * 7 + (at >> 8) * 13);
}

enum err fix_send(struct fix_client *c, uint32_t i, size_t n)
{
	struct fix_xchg *fx = &c->xchg[i];
	uint8_t *b = malloc(n + 1);
	for (size_t k = 0; k < n; k++)
		b[k] = pattern(i, k);
	struct bytes parts[2] = { BYTES(b, n / 2), BYTES(b + n / 2, n - n / 2) };
	free(fx->reply);
	*fx = (struct fix_xchg){ .client = c, .out = true, .x.done = on_done };
	enum err e = c->eng->send(c->p, &fx->x, parts, 2);
	if (e != ERR_NONE)
		fx->out = false;
	free(b);
	return e;
}

bool fix_echoed(const struct fix_client *c, uint32_t i, size_t n)
{
	const struct fix_xchg *fx = &c->xchg[i];
	if (!fx->done || fx->err != ERR_NONE || fx->n_reply != n)
		return false;
	for (size_t k = 0; k < n; k++)
		if (fx->reply[k] != pattern(i, k))
			return false;
	return true;
}

static void on_client_closed(void *arg)
{
	((struct fix_client *)arg)->closed = true;
}

void fix_client_end(struct fix_client *c)
{
	uint32_t n_done = c->n_done;
	c->eng->hangup(c->p, on_client_closed, c);
	MUST(!c->closed);
	MUST(RUN_UNTIL(c->loop, c->closed, 10000));
	MUST(c->n_done == n_done); /* engine.h: exchanges still out get no done */
	for (uint32_t i = 0; i < FIX_XCHG_MAX; i++)
		free(c->xchg[i].reply);
}

/* ---- time ---- */

struct tick {
	struct timer timer;
	struct loop *loop;
};

static _Thread_local struct tick tick;

static void on_tick(struct timer *t)
{
	struct tick *k = container_of(t, struct tick, timer);
	timer_start(k->loop, t, loop_now_ns(k->loop) + 5 * NS_PER_MS, on_tick);
}

void fix_tick_start(struct loop *l)
{
	tick.loop = l;
	timer_start(l, &tick.timer, loop_now_ns(l) + 5 * NS_PER_MS, on_tick);
}

void fix_tick_stop(struct loop *l)
{
	timer_stop(l, &tick.timer);
}

void fix_run(struct loop *l, uint64_t ms)
{
	(void)RUN_UNTIL(l, false, ms);
}

/* ---- the machine ---- */

void fix_addr(char *out, size_t size, const char *scheme)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(sa);
	MUST(fd >= 0 && bind(fd, (struct sockaddr *)&sa, n) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&sa, &n) == 0);
	close(fd);
	snprintf(out, size, "%s://127.0.0.1:%u", scheme, ntohs(sa.sin_port));
}

int fix_tcp(uint16_t port)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	MUST(fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0);
	return fd;
}

int fix_threads(int *n_nng)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0, found = 0;
	struct dirent *e;
	MUST(d);
	while ((e = readdir(d))) {
		char path[300], name[32] = "";
		if (e->d_name[0] == '.')
			continue;
		n++;
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "re");
		if (f && fgets(name, sizeof(name), f))
			found += strncmp(name, "nng:", 4) == 0;
		if (f)
			fclose(f);
	}
	closedir(d);
	if (n_nng)
		*n_nng = found;
	return n;
}
