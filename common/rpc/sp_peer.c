/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client side of the sp engine: one dialed connection, its exchanges by request id.
 *
 * I1: a request id is top bit | generation (15 bits) | slot (16 bits). A slot's generation moves on
 *     whenever it is freed, so a late reply of a cancelled exchange finds nobody.
 * I2: memory goes when n_refs is 0: the pipe, a name lookup and the owner each hold one.
 *
 * Thread: the loop's.
 */
#include "rpc/sp_int.h"

#include <string.h>
#include <sys/un.h>

#define SLOTS_FIRST    64u
#define SLOTS_MAX      65536u
#define GEN_MASK       0x7fffu
#define SEND_PARTS_MAX 6

struct slot {
	struct eng_xchg *x; /* NULL: free */
	uint32_t next_free;
	uint16_t gen;
};

enum peer_state { PEER_RESOLVE, PEER_CONNECT, PEER_GREET, PEER_UP, PEER_DOWN };

struct eng_peer {
	struct loop *loop;
	struct sp_hub *hub;
	struct eng_dial_opts o;
	struct addr addr;
	enum peer_state state;
	struct sp_pipe *pipe; /* NULL until the first try, one a try */
	struct slot *slots;
	uint32_t n_slots, free_head, n_out;
	uint64_t held, queued, bytes_in, bytes_out;
	uint32_t n_refs;
	struct sp_tls_ctx *tls; /* tls+tcp */
	bool hung_up;
	struct addrinfo *found, *next; /* what the name means; tried in turn */
	uv_getaddrinfo_t lookup;
	struct timer timer;
	struct post post;
	enum err down_err;
	char down_text[128];
	void (*closed)(void *arg);
	void *arg;
};

/* One try: its own memory, since libuv keeps it a little longer than we do. */
struct
try {
	struct sp_pipe pipe;
	uv_connect_t connect;
	struct eng_peer *peer;
};

/* Later, never inside hangup (engine.h I2). */
static void peer_gone(struct post *post)
{
	struct eng_peer *p = container_of(post, struct eng_peer, post);
	void (*closed)(void *arg) = p->closed;
	void *arg = p->arg;
	sp_hub_unref(p->hub);
	sp_tls_ctx_free(p->tls);
	free(p->slots);
	free(p);
	closed(arg);
}

static void peer_unref(struct eng_peer *p)
{
	if (--p->n_refs > 0)
		return;
	if (p->found)
		uv_freeaddrinfo(p->found);
	p->post.fn = peer_gone;
	loop_defer(p->loop, &p->post);
}

/* ---- exchanges ---- */

static bool slots_grow(struct eng_peer *p)
{
	uint32_t n = p->n_slots ? p->n_slots * 2 : SLOTS_FIRST;
	if (n > SLOTS_MAX)
		return false;
	struct slot *s = realloc(p->slots, n * sizeof(*s));
	if (!s)
		return false;
	for (uint32_t i = p->n_slots; i < n; i++)
		s[i] = (struct slot){ .next_free = i + 1 };
	p->free_head = p->n_slots;
	p->slots = s;
	p->n_slots = n;
	return true;
}

static void slot_free(struct eng_peer *p, uint32_t i)
{
	p->slots[i].x = NULL;
	p->slots[i].gen = (p->slots[i].gen + 1) & GEN_MASK;
	p->slots[i].next_free = p->free_head;
	p->free_head = i;
	p->n_out--;
}

static struct slot *slot_of(struct eng_peer *p, uint32_t id)
{
	uint32_t i = id & 0xffff;
	if (i >= p->n_slots || !p->slots[i].x || p->slots[i].gen != ((id >> 16) & GEN_MASK))
		return NULL;
	return &p->slots[i];
}

enum err sp_send(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts, int n)
{
	if (p->state != PEER_UP)
		return ERR_CONN_LOST;
	if (p->queued > p->o.limits.queue_bytes_max)
		return ERR_BUSY;
	if (p->free_head == p->n_slots && !slots_grow(p))
		return ERR_BUSY;
	struct bytes all[SEND_PARTS_MAX + 1];
	uint8_t hdr[4];
	uint32_t i = p->free_head;
	struct slot *s = &p->slots[i];
	assert(n <= SEND_PARTS_MAX);
	x->id = 0x80000000u | (uint32_t)s->gen << 16 | i;
	sp_put_u32(hdr, x->id);
	all[0] = BYTES(hdr, sizeof(hdr));
	for (int k = 0; k < n; k++)
		all[k + 1] = parts[k];
	if (!sp_pipe_send(p->pipe, all, n + 1))
		return ERR_CONN_LOST;
	p->free_head = s->next_free;
	s->x = x;
	p->n_out++;
	return ERR_NONE;
}

void sp_cancel(struct eng_peer *p, struct eng_xchg *x)
{
	struct slot *s = slot_of(p, x->id);
	if (s && s->x == x)
		slot_free(p, (uint32_t)(s - p->slots));
}

static void fail_all(struct eng_peer *p)
{
	for (uint32_t i = 0; i < p->n_slots && p->n_out > 0; i++) {
		struct eng_xchg *x = p->slots[i].x;
		if (!x)
			continue;
		slot_free(p, i);
		x->done(x, ERR_CONN_LOST, BYTES(NULL, 0));
	}
}

/* ---- up and down ---- */

static void peer_down(struct eng_peer *p, enum err e, const char *text)
{
	if (p->state == PEER_DOWN)
		return;
	p->state = PEER_DOWN;
	timer_stop(p->loop, &p->timer);
	if (p->pipe)
		sp_pipe_close(p->pipe);
	p->pipe = NULL;
	fail_all(p);
	if (!p->hung_up)
		p->o.events->down(p->o.ctx, e, text);
}

static void on_open(struct sp_pipe *sp)
{
	struct eng_peer *p = container_of(sp, struct try, pipe)->peer;
	timer_stop(p->loop, &p->timer);
	p->state = PEER_UP;
	p->o.events->up(p->o.ctx);
}

static void on_ended(struct sp_pipe *sp, enum err e, const char *text)
{
	struct eng_peer *p = container_of(sp, struct try, pipe)->peer;
	if (p->tls && p->state == PEER_GREET && e == ERR_BAD_MESSAGE)
		e = ERR_UNREACHABLE; /* the certificate: nothing was said yet that could be bad */
	if (p->pipe == sp)
		peer_down(p, e, text);
}

static void on_frame(struct sp_pipe *sp, struct bytes body, uint8_t *owned)
{
	struct eng_peer *p = container_of(sp, struct try, pipe)->peer;
	struct slot *s = p->pipe == sp ? slot_of(p, sp_u32(body.p)) : NULL;
	bool ours = s && (body.p[0] & 0x80);
	if (ours) {
		struct eng_xchg *x = s->x;
		slot_free(p, (uint32_t)(s - p->slots));
		x->done(x, ERR_NONE, BYTES(body.p + 4, body.n - 4));
	}
	if (owned) {
		*sp->rx.held -= body.n;
		free(owned);
	}
}

static void on_closed(struct sp_pipe *sp)
{
	struct try *t = container_of(sp, struct try, pipe);
	struct eng_peer *p = t->peer;
	free(t);
	peer_unref(p);
}

static const struct sp_pipe_ops pipe_ops = {
	.frame = on_frame,
	.open = on_open,
	.ended = on_ended,
	.closed = on_closed,
};

/* ---- dialing ---- */

static void try_next(struct eng_peer *p);

static void on_connect(uv_connect_t *c, int status)
{
	struct try *t = container_of(c, struct try, connect);
	struct eng_peer *p = t->peer;
	if (p->pipe != &t->pipe || t->pipe.closing)
		return;
	if (status == 0) {
		p->state = PEER_GREET;
		sp_pipe_start(&t->pipe, SP_PROTO_REQ);
		return;
	}
	if (p->next) {
		sp_pipe_close(&t->pipe);
		p->pipe = NULL;
		try_next(p);
		return;
	}
	peer_down(p, ERR_UNREACHABLE, uv_strerror(status));
}

static struct try *try_new(struct eng_peer *p)
{
	struct try *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->peer = p;
	t->pipe.rx.peer_proto = SP_PROTO_REP;
	t->pipe.rx.max = p->o.limits.message_bytes_max;
	t->pipe.rx.held = &p->held;
	t->pipe.rx.held_max = UINT64_MAX; /* one frame at a time, max bounds it */
	t->pipe.queue_max = UINT64_MAX;	  /* we always read: the server may wait for that */
	t->pipe.all_queued = &p->queued;
	t->pipe.bytes_in = &p->bytes_in;
	t->pipe.bytes_out = &p->bytes_out;
	if (p->tls && !(t->pipe.tls = sp_tls_new(p->tls, p->addr.host))) {
		free(t);
		return NULL;
	}
	if (sp_pipe_init(&t->pipe, p->hub, &pipe_ops, p->addr.scheme == ADDR_IPC) != ERR_NONE) {
		sp_tls_free(t->pipe.tls);
		free(t);
		return NULL;
	}
	p->n_refs++;
	p->pipe = &t->pipe;
	return t;
}

/* Never inside dial (engine.h I2). */
static void down_later(struct post *post)
{
	struct eng_peer *p = container_of(post, struct eng_peer, post);
	peer_down(p, p->down_err, p->down_text);
	peer_unref(p);
}

static void fail_later(struct eng_peer *p, enum err e, const char *text)
{
	p->down_err = e;
	strncpy(p->down_text, text, sizeof(p->down_text) - 1);
	p->post.fn = down_later;
	p->n_refs++;
	loop_defer(p->loop, &p->post);
}

static void connect_ipc(struct eng_peer *p)
{
	struct try *t = try_new(p);
	p->state = PEER_CONNECT;
	if (t)
		uv_pipe_connect(&t->connect, &t->pipe.u.pipe, p->addr.path, on_connect);
	else
		fail_later(p, ERR_NO_MEMORY, "no memory");
}

static void try_next(struct eng_peer *p)
{
	struct try *t = try_new(p);
	p->state = PEER_CONNECT;
	if (!t) {
		fail_later(p, ERR_NO_MEMORY, "no memory");
		return;
	}
	struct sockaddr *sa = p->next->ai_addr;
	p->next = p->next->ai_next;
	int r = uv_tcp_connect(&t->connect, &t->pipe.u.tcp, sa, on_connect);
	if (r != 0)
		fail_later(p, ERR_UNREACHABLE, uv_strerror(r));
}

static void on_lookup(uv_getaddrinfo_t *q, int status, struct addrinfo *res)
{
	struct eng_peer *p = container_of(q, struct eng_peer, lookup);
	p->found = p->next = res;
	if (p->state == PEER_RESOLVE) {
		if (status == 0)
			try_next(p);
		else
			peer_down(p, ERR_UNREACHABLE, uv_strerror(status));
	}
	peer_unref(p);
}

/* An address in digits needs no thread. */
static bool numeric(struct eng_peer *p, struct sockaddr_storage *sa)
{
	const char *host = addr_known_host(p->addr.host);
	return uv_ip4_addr(host, p->addr.port, (struct sockaddr_in *)sa) == 0 ||
	       uv_ip6_addr(host, p->addr.port, (struct sockaddr_in6 *)sa) == 0;
}

static void connect_tcp(struct eng_peer *p)
{
	struct sockaddr_storage sa = { 0 };
	if (numeric(p, &sa)) {
		struct addrinfo one = { .ai_addr = (struct sockaddr *)&sa };
		p->next = &one;
		try_next(p);
		p->next = NULL;
		return;
	}
	char port[8];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	snprintf(port, sizeof(port), "%u", p->addr.port);
	p->state = PEER_RESOLVE;
	p->n_refs++;
	int r = uv_getaddrinfo(loop_uv(p->loop), &p->lookup, on_lookup, p->addr.host, port,
			       &hints);
	if (r != 0) {
		p->n_refs--;
		fail_later(p, ERR_UNREACHABLE, uv_strerror(r));
	}
}

static void on_late(struct timer *t)
{
	struct eng_peer *p = container_of(t, struct eng_peer, timer);
	static const char *const what[] = {
		[PEER_RESOLVE] = "the name lookup does not end",
		[PEER_CONNECT] = "no answer to the connect",
		[PEER_GREET] = "connected, but no SP greeting",
	};
	peer_down(p, ERR_TIMED_OUT, what[p->state]);
}

enum err sp_dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		 struct why *why)
{
	struct eng_peer *p = calloc(1, sizeof(*p));
	if (!p)
		return why_set(why, ERR_NO_MEMORY, "connect to %.160s: no memory", o->addr);
	enum err e = addr_parse(o->addr, &p->addr, why);
	if (e == ERR_NONE && p->addr.scheme == ADDR_TLS)
		e = sp_tls_ctx_new(&o->tls, false, &p->tls, why);
	if (e == ERR_NONE)
		e = sp_hub_ref(l, &p->hub);
	if (e != ERR_NONE) {
		sp_tls_ctx_free(p->tls);
		free(p);
		return why_set(why, e, "connect to %.160s: %s", o->addr, err_text(e));
	}
	p->loop = l;
	p->o = *o;
	p->n_refs = 1;
	timer_start(l, &p->timer, clock_after_ms(loop_now_ns(l), o->limits.handshake_ms),
		    on_late);
	if (p->addr.scheme == ADDR_IPC)
		connect_ipc(p);
	else
		connect_tcp(p);
	*out = p;
	return ERR_NONE;
}

void sp_hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg)
{
	p->hung_up = true;
	p->closed = closed;
	p->arg = arg;
	for (uint32_t i = 0; i < p->n_slots; i++)
		p->slots[i].x = NULL;
	p->n_out = 0;
	if (p->state == PEER_RESOLVE)
		uv_cancel((uv_req_t *)&p->lookup);
	peer_down(p, ERR_CLOSED, "");
	peer_unref(p);
}
