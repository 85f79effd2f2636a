/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's half of data lanes: listening, connections, write tickets, pins against FREE. */
#include "agent.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/addr.h"
#include "rpc/sp_int.h"

/* ---- write tickets ---- */

static enum err check_tenant(const struct peer *peer, const struct msg_ticket *t,
			     struct why *why)
{
	if (peer->role == ROLE_CLIENT && (t->tenant.n != strlen(peer->tenant) ||
					  memcmp(t->tenant.p, peer->tenant, t->tenant.n) != 0))
		return why_set(why, ERR_BAD_TICKET, "the ticket is another tenant's");
	return ERR_NONE;
}

static enum err open_put(struct xfa *x, struct xfa_data_conn *c)
{
	struct arena a = ARENA_INIT(32u << 10);
	struct extent ext[OBJ_EXTENTS_MAX];
	struct msg_ticket t;
	enum err e = ticket_open(x->tickets, BYTES(c->sealed, c->n_sealed), &a, &t, &c->why);
	if (e == ERR_NONE)
		e = check_tenant(&c->srv.peer, &t, &c->why);
	if (e == ERR_NONE)
		e = hold_write(x->hold, &t, c->lane, ext, &c->why);
	if (e == ERR_NONE) {
		c->shard = t.shard;
		c->pool_epoch = t.pool_epoch;
		c->version = t.version;
		c->obj = (struct lane_obj){ .n_ext = (uint32_t)t.extents.n, .size = t.size };
		for (size_t i = 0; i < t.extents.n; i++)
			c->obj.ext[i] = (struct iovec){ mempool_at(x->pool, &ext[i]),
							(size_t)ext[i].bytes };
	}
	arena_fini(&a);
	return e;
}

/* ---- connections ---- */

static void maybe_closed(struct xfa_data *d);

/* No longer counted among the unknown. */
static void unknown_del(struct xfa_data *d, struct xfa_data_conn *c)
{
	if (!list_linked(&c->unknown))
		return;
	list_del(&c->unknown);
	d->n_unknown--;
}

static void conn_free(struct xfa_data *d, struct xfa_data_conn *c)
{
	unknown_del(d, c);
	d->conns[c->idx] = NULL;
	d->n_conns--;
	atomic_fetch_sub(&d->counts.open, 1);
	free(c);
	maybe_closed(d);
}

/* A thread asks, or says that a connection has gone. */
static void on_post(struct post *p)
{
	struct xfa_data_conn *c = container_of(p, struct xfa_data_conn, post);
	struct xfa_data *d = c->t->d;
	if (!c->asking) {
		conn_free(d, c);
		return;
	}
	loop_expect(d->x->svc.loop); /* for the next one, before the thread may post it */
	c->why = (struct why){ 0 };
	c->err = d->closing ? ERR_SHUTTING_DOWN : open_put(d->x, c);
	xfa_data_mail(c);
}

static void peer_name(int fd, struct xfa_data_conn *c, bool *mac)
{
	struct sockaddr_storage sa;
	socklen_t n = sizeof(sa);
	char host[NI_MAXHOST] = "";
	if (getpeername(fd, (struct sockaddr *)&sa, &n) == 0)
		(void)getnameinfo((struct sockaddr *)&sa, n, host, sizeof(host), NULL, 0,
				  NI_NUMERICHOST);
	(void)snprintf(c->from, sizeof(c->from), "%.60s", host);
	c->source = 14695981039346656037ull;
	for (const char *p = host; *p; p++)
		c->source = (c->source ^ (uint8_t)*p) * 1099511628211ull;
	*mac = !xf_is_loopback(host);
}

static uint32_t free_number(const struct xfa_data *d)
{
	uint32_t i = 0;
	while (i < d->conns_max && d->conns[i])
		i++;
	return i;
}

/* One more that has not proven itself: the first of them leaves, if they are too many (D3). */
static void unknown_add(struct xfa_data *d, struct xfa_data_conn *c)
{
	list_push_back(&d->unknown, &c->unknown);
	d->n_unknown++;
	while (d->n_unknown > MAX_OF(d->conns_max / 4, 1u)) {
		struct xfa_data_conn *old =
			list_entry(d->unknown.next, struct xfa_data_conn, unknown);
		unknown_del(d, old);
		if (atomic_load(&old->proven))
			continue;
		atomic_fetch_add(&d->counts.lanes_busy, 1);
		atomic_store(&old->leave, true);
		atomic_store(&old->t->leave, true);
		xfa_data_wake(old->t);
	}
}

static void on_conn(struct sp_listener *l, int fd)
{
	struct xfa_data *d = l->owner;
	struct xfa_data_conn *c = NULL;
	bool mac = true;
	uint32_t idx = free_number(d);
	if (idx < d->conns_max && d->n_threads > 0 && !d->closing)
		c = calloc(1, sizeof(*c));
	if (!c) {
		atomic_fetch_add(&d->counts.lanes_busy, 1);
		close(fd);
		return;
	}
	c->t = &d->threads[d->next++ % d->n_threads];
	c->fd = fd;
	c->idx = idx;
	c->lane = &d->lanes[idx];
	c->post.fn = on_post;
	peer_name(fd, c, &mac);
	c->srv.o.mac_data = mac; /* the thread sets up the rest */
	d->conns[idx] = c;
	d->n_conns++;
	unknown_add(d, c);
	atomic_fetch_add(&d->counts.open, 1);
	loop_expect(d->x->svc.loop);
	xfa_data_mail(c);
}

static void on_refused(struct sp_listener *l, int sys)
{
	struct xfa_data *d = l->owner;
	atomic_fetch_add(&d->counts.lanes_busy, 1);
}

static void on_listener_closed(struct sp_listener *l)
{
	struct xfa_data *d = l->owner;
	for (size_t i = 0; i < d->n_listen; i++)
		if (d->listen[i] == l)
			d->listen[i] = NULL;
	maybe_closed(d);
}

static const struct sp_listener_ops listener_ops = { on_conn, on_refused, on_listener_closed };

/* ---- pins ---- */

enum err xfa_data_free_slot(struct xfa_data *d, struct hold *h, const struct hold_under *u,
			    uint32_t slot, uint64_t generation)
{
	enum err e = ERR_NONE;
	if (!d)
		return hold_free(h, u, slot, generation);
	pthread_mutex_lock(&d->pins.lock);
	for (uint32_t i = 0, left = d->pins.n; left > 0 && e == ERR_NONE; i++) {
		left -= d->pins.slots[i] != 0;
		if (d->pins.slots[i] == slot + 1ull)
			e = ERR_BUSY;
	}
	if (e == ERR_NONE)
		e = hold_free(h, u, slot, generation);
	pthread_mutex_unlock(&d->pins.lock);
	return e;
}

bool xfa_data_doubts(struct xfa_data *d, struct hold *h)
{
	struct xfa_data_doubt now[XFA_DATA_DOUBTS_MAX];
	bool any = false;
	if (!d)
		return false;
	pthread_mutex_lock(&d->pins.lock);
	uint32_t n = d->pins.n_doubts;
	memcpy(now, d->pins.doubts, n * sizeof(now[0]));
	d->pins.n_doubts = 0;
	pthread_mutex_unlock(&d->pins.lock);
	for (uint32_t i = 0; i < n; i++)
		any |= hold_doubt(h, now[i].slot, now[i].generation);
	return any;
}

void xfa_data_fenced(struct xfa_data *d)
{
	for (uint32_t i = 0; d && i < d->n_threads; i++) {
		atomic_store(&d->threads[i].look, true);
		xfa_data_wake(&d->threads[i]);
	}
}

/* ---- addresses ---- */

size_t xfa_data_addrs(const struct xfa_data *d, char out[XFA_DATA_LISTEN_MAX][SVC_ADDR_MAX + 8])
{
	size_t n = 0;
	if (!d)
		return 0;
	const struct conf_list *told = &d->x->data_advertise;
	size_t n_told = told->n ? told->n : d->n_listen;
	for (size_t i = 0; i < n_told && n < XFA_DATA_LISTEN_MAX; i++, n++)
		(void)snprintf(out[n], SVC_ADDR_MAX + 8, ADDR_DATA "%s",
			       told->n ? told->v[i] : d->addrs[i]);
	return n;
}

static enum err listen_one(struct xfa_data *d, const char *addr, struct why *why)
{
	size_t i = d->n_listen;
	enum err e = sp_listener_new(d->x->svc.loop, addr, NULL, &listener_ops, d, d->addrs[i],
				     SVC_ADDR_MAX, &d->listen[i], why);
	d->n_listen += e == ERR_NONE;
	return e;
}

/* The host that takes rpc takes data, too: at the default port, or where that is taken at any. */
static enum err listen_beside_rpc(struct xfa_data *d, struct why *why)
{
	enum { DATA_PORT = 17606 }; /* answers.md, ports */
	const struct conf_list *rpc = &d->x->svc.conf.listen;
	for (size_t i = 0; i < rpc->n && d->n_listen == 0; i++) {
		struct addr a;
		char text[ADDR_TEXT_MAX];
		struct why first = { 0 };
		if (addr_parse(rpc->v[i], &a, NULL) || a.scheme == ADDR_IPC ||
		    a.scheme == ADDR_SIM)
			continue;
		a.scheme = ADDR_TCP;
		a.port = DATA_PORT;
		addr_format(&a, text, sizeof(text));
		enum err e = listen_one(d, text, &first);
		if (e == ERR_NONE)
			return e;
		a.port = 0;
		addr_format(&a, text, sizeof(text));
		return listen_one(d, text, why);
	}
	return ERR_NONE;
}

static enum err listen_all(struct xfa_data *d, struct why *why)
{
	const struct conf_list *l = &d->x->data_listen;
	enum err e = ERR_NONE;
	for (size_t i = 0; i < l->n && i < XFA_DATA_LISTEN_MAX && e == ERR_NONE; i++)
		e = listen_one(d, l->v[i], why);
	return e == ERR_NONE && l->n == 0 ? listen_beside_rpc(d, why) : e;
}

/* ---- life ---- */

static void data_free(struct xfa_data *d)
{
	pthread_mutex_destroy(&d->pins.lock);
	free(d->pins.slots);
	free(d->threads);
	free(d->conns);
	free(d);
}

/* Listeners first, then connections, then threads. */
static void maybe_closed(struct xfa_data *d)
{
	bool listening = false;
	for (size_t i = 0; i < d->n_listen; i++)
		listening |= d->listen[i] != NULL;
	if (!d->closing || listening || d->n_conns > 0 || d->n_running > 0 || d->free)
		return;
	void (*closed)(void *arg) = d->closed;
	void *arg = d->arg;
	data_free(d);
	if (closed)
		closed(arg);
}

static void on_thread_ended(struct post *p)
{
	struct xfa_data_thread *t = container_of(p, struct xfa_data_thread, ended);
	struct xfa_data *d = t->d;
	xfa_data_thread_fini(t);
	d->n_running--;
	maybe_closed(d);
}

static void stop_threads(struct xfa_data *d)
{
	for (uint32_t i = 0; i < d->n_threads; i++) {
		struct xfa_data_thread *t = &d->threads[i];
		pthread_mutex_lock(&t->lock);
		t->stop = true;
		pthread_mutex_unlock(&t->lock);
		xfa_data_wake(t);
	}
}

void xfa_data_close(struct xfa_data *d, void (*closed)(void *arg), void *arg)
{
	if (!d)
		return;
	d->closing = true;
	d->closed = closed;
	d->arg = arg;
	for (size_t i = 0; i < d->n_listen; i++)
		if (d->listen[i])
			sp_listener_close(d->listen[i]);
	stop_threads(d);
}

static enum err start_threads(struct xfa_data *d, struct why *why)
{
	enum err e = ERR_NONE;
	uint32_t want = d->x->data_threads;
	d->threads = calloc(want, sizeof(*d->threads));
	if (!d->threads)
		return ERR_NO_MEMORY;
	for (uint32_t i = 0; i < want && e == ERR_NONE; i++) {
		d->threads[i].ended.fn = on_thread_ended;
		e = xfa_data_thread_start(d, &d->threads[i], why);
		if (e == ERR_NONE) {
			loop_expect(d->x->svc.loop);
			d->n_threads++;
			d->n_running++;
		}
	}
	return e;
}

enum err xfa_data_open(struct xfa *x, struct xfa_data **out, struct why *why)
{
	struct xfa_data *d = calloc(1, sizeof(*d));
	if (!d)
		return ERR_NO_MEMORY;
	d->x = x;
	d->conns_max = x->data_conns_max;
	list_init(&d->unknown);
	d->lanes = x->lanes;
	pthread_mutex_init(&d->pins.lock, NULL);
	d->pins.slots = calloc(d->conns_max, sizeof(*d->pins.slots));
	d->conns = calloc(d->conns_max, sizeof(struct xfa_data_conn *));
	enum err e = d->pins.slots && d->conns ? listen_all(d, why) : ERR_NO_MEMORY;
	if (e == ERR_NONE && d->n_listen > 0)
		e = start_threads(d, why);
	if (e == ERR_NONE && d->n_listen > 0) {
		*out = d;
		return e;
	}
	if (d->n_listen == 0) {
		data_free(d);
		return e;
	}
	*out = d; /* the service fails, and closes it in its order */
	return why_set(why, e, "data lanes: %s", err_text(e));
}
