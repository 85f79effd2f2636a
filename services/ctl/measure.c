/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include "base/clock.h"
#include "base/def.h"
#include "loop/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	KEY_BYTES = MEASURE_PREFIX_MAX + 24,
	LOOK_MS = 100,	 /* between two looks whether the run is to end */
	LEASE_MS = 1000, /* of a get: so long after the run its space returns */
};

struct flight {
	struct pml_op *op; /* NULL: free */
	uint64_t first;	   /* object; those behind it follow, within the share */
	uint32_t n;
	uint64_t begin_ns;
	uint8_t *mem; /* batch objects; NULL: exists */
};

/* One thread. */
struct client {
	struct measure *m;
	struct pml *p;
	struct pml_cq *cq;
	pthread_t thread;
	uint64_t first, n_own, at, begun; /* its share; the next of it; items that were begun */
	struct flight flights[MEASURE_FLIGHTS_MAX];
	/* for one call's start, which copies them */
	struct pml_item *items;
	struct pml_buf *bufs;
	char (*keys)[KEY_BYTES];
	struct measure_result sum;
	struct times times;
};

struct measure {
	struct measure_opts o;
	uint64_t start_ns, end_ns;
	_Atomic bool stop;
	_Atomic uint64_t items;
	_Atomic uint32_t n_running;
	uint32_t n_clients;
	int end_fd;
	pthread_mutex_t lock;
	struct pml_error first; /* under lock */
	bool ended;		/* under lock */
	struct client *clients;
};

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- times ---- */

void times_add(struct times *t, uint64_t ns)
{
	unsigned log = 63 - (unsigned)__builtin_clzll(ns | TIMES_SUB);
	unsigned shift = log - 5; /* 2^5 = TIMES_SUB */
	size_t i = (size_t)shift * TIMES_SUB + (ns >> shift);
	t->n[MIN_OF(i, (size_t)TIMES_BUCKETS - 1)]++;
}

void times_join(struct times *t, const struct times *other)
{
	for (size_t i = 0; i < TIMES_BUCKETS; i++)
		t->n[i] += other->n[i];
}

static double middle(size_t i)
{
	if (i < 2 * TIMES_SUB)
		return (double)i;
	unsigned shift = (unsigned)(i / TIMES_SUB) - 1;
	return ((double)(i - (size_t)shift * TIMES_SUB) + 0.5) * (double)(1ull << shift);
}

double times_share(const struct times *t, double share)
{
	uint64_t all = 0, seen = 0;
	for (size_t i = 0; i < TIMES_BUCKETS; i++)
		all += t->n[i];
	for (size_t i = 0; all && i < TIMES_BUCKETS; i++) {
		seen += t->n[i];
		if ((double)seen >= share * (double)all && t->n[i])
			return middle(i);
	}
	return 0;
}

/* ---- calls ---- */

static bool stopping(const struct client *c)
{
	return atomic_load_explicit(&c->m->stop, memory_order_relaxed);
}

static void note(struct measure *m, const struct pml_error *err, bool whole)
{
	pthread_mutex_lock(&m->lock);
	if (m->first.code == PML_ERR_NONE || (whole && !m->ended))
		m->first = *err;
	m->ended |= whole;
	pthread_mutex_unlock(&m->lock);
	if (whole)
		measure_stop(m);
}

/* The first bytes of object i, by which a get knows it. */
static void stamp(const struct measure *m, uint8_t *mem, uint64_t i)
{
	memcpy(mem, &i, MIN_OF(sizeof(i), m->o.bytes));
}

static bool stamped(const struct measure *m, const uint8_t *mem, uint64_t i)
{
	return memcmp(mem, &i, MIN_OF(sizeof(i), m->o.bytes)) == 0;
}

static void set_items(struct client *c, struct flight *f)
{
	const struct measure_opts *o = &c->m->o;
	for (uint32_t i = 0; i < f->n; i++) {
		struct pml_item *it = &c->items[i];
		uint8_t *mem = f->mem ? f->mem + i * o->bytes : NULL;
		int n = snprintf(c->keys[i], KEY_BYTES, "%s/%" PRIu64, o->prefix, f->first + i);
		*it = (struct pml_item)PML_ITEM_INIT;
		it->key = c->keys[i];
		it->key_bytes = (size_t)n;
		if (!mem)
			continue;
		if (o->op != MEASURE_GET)
			stamp(c->m, mem, f->first + i);
		c->bufs[i] = (struct pml_buf){ mem, o->bytes };
		it->bufs = &c->bufs[i];
		it->n_bufs = 1;
	}
}

static int start_call(struct client *c, struct flight *f, struct pml_error *err)
{
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	switch (c->m->o.op) {
	case MEASURE_FILL:
	case MEASURE_PUT:
		return pml_upsert_start(c->p, c->items, f->n, NULL, c->cq, f, &f->op, err);
	case MEASURE_GET:
		get.lease_ms = LEASE_MS;
		return pml_get_start(c->p, c->items, f->n, &get, c->cq, f, &f->op, err);
	case MEASURE_EXISTS:
		return pml_exists_start(c->p, c->items, f->n, NULL, c->cq, f, &f->op, err);
	}
	return PML_ERR_INVALID_PARAMS;
}

/* The next of the share: to its end at most. */
static void begin(struct client *c, struct flight *f)
{
	struct pml_error err = PML_ERROR_INIT;
	f->first = c->first + c->at;
	f->n = (uint32_t)MIN_OF(c->n_own - c->at, (uint64_t)c->m->o.batch);
	c->at = (c->at + f->n) % c->n_own;
	c->begun += f->n;
	set_items(c, f);
	f->begin_ns = now_ns();
	if (start_call(c, f, &err) != PML_ERR_NONE) {
		f->op = NULL;
		c->sum.errors += f->n;
		note(c->m, &err, true);
	}
}

static void item_failed(struct client *c, const struct flight *f, uint32_t i, int code,
			uint32_t *alike)
{
	struct pml_error err = PML_ERROR_INIT;
	if (code == PML_ERR_CANCELLED && stopping(c))
		return;
	if (code == PML_ERR_NOT_FOUND && c->m->o.op != MEASURE_FILL) {
		c->sum.missing++;
		return;
	}
	pml_op_item_error(f->op, i, &err);
	c->sum.errors++;
	++*alike;
	note(c->m, &err, *alike == f->n && code != PML_ERR_CORRUPT);
}

static void over(struct client *c, struct flight *f)
{
	const struct measure_opts *o = &c->m->o;
	uint64_t good = 0;
	uint32_t failed = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		struct pml_result r = PML_RESULT_INIT;
		int e = pml_op_result(f->op, i, &r);
		e = e == PML_ERR_NONE ? r.code : e;
		if (e != PML_ERR_NONE)
			item_failed(c, f, i, e, &failed);
		else if (o->op == MEASURE_GET &&
			 (r.bytes != o->bytes ||
			  !stamped(c->m, f->mem + i * o->bytes, f->first + i)))
			c->sum.wrong++;
		else
			good++;
	}
	if (good > 0) {
		times_add(&c->times, now_ns() - f->begin_ns);
		c->sum.calls++;
		c->sum.items += good;
		c->sum.bytes += f->mem ? good * o->bytes : 0;
		atomic_fetch_add_explicit(&c->m->items, good, memory_order_relaxed);
	}
	pml_op_free(f->op);
	f->op = NULL;
}

static bool more(const struct client *c)
{
	if (stopping(c))
		return false;
	return c->m->o.op == MEASURE_FILL ? c->begun < c->n_own : now_ns() < c->m->end_ns;
}

static struct flight *collect(struct client *c)
{
	struct pml_op *done = NULL;
	bool cancelled = false;
	while (pml_cq_wait(c->cq, &done, 1, LOOK_MS) == 0)
		if (stopping(c) && !cancelled) {
			for (uint32_t i = 0; i < c->m->o.flights; i++)
				if (c->flights[i].op)
					pml_op_cancel(c->flights[i].op);
			cancelled = true;
		}
	return pml_op_user(done);
}

static void run(struct client *c)
{
	for (;;) {
		uint32_t flying = 0;
		for (uint32_t i = 0; i < c->m->o.flights; i++) {
			if (!c->flights[i].op && more(c))
				begin(c, &c->flights[i]);
			flying += c->flights[i].op != NULL;
		}
		if (flying == 0)
			return;
		over(c, collect(c));
	}
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint64_t one = 1;
	run(c);
	if (atomic_fetch_sub(&c->m->n_running, 1) == 1 &&
	    write(c->m->end_fd, &one, sizeof(one)) < 0)
		return NULL; /* an eventfd that counts to 1 is never full */
	return NULL;
}

/* ---- the run ---- */

uint64_t measure_objects_min(const struct measure_opts *o)
{
	return (uint64_t)o->clients * o->batch * o->flights;
}

uint64_t measure_buffer_bytes(const struct measure_opts *o)
{
	uint64_t n = measure_objects_min(o);
	if (o->op == MEASURE_EXISTS)
		return 0;
	return o->bytes > UINT64_MAX / n ? UINT64_MAX : n * o->bytes;
}

static void client_fini(struct client *c)
{
	pml_close(c->p);
	pml_cq_free(c->cq);
	for (int i = 0; i < MEASURE_FLIGHTS_MAX; i++)
		free(c->flights[i].mem);
	free(c->items);
	free(c->bufs);
	free(c->keys);
}

/* Every page is touched now, not in the clocked part; no two objects alike. */
static uint8_t *buffer_new(size_t n, uint64_t seed)
{
	uint8_t *p = malloc(MAX_OF(n, (size_t)1));
	uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; p && i < n; i += sizeof(x)) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memcpy(p + i, &x, MIN_OF(sizeof(x), n - i));
	}
	return p;
}

static bool client_memory(struct client *c)
{
	const struct measure_opts *o = &c->m->o;
	bool ok = true;
	c->items = calloc(o->batch, sizeof(*c->items));
	c->bufs = calloc(o->batch, sizeof(*c->bufs));
	c->keys = calloc(o->batch, sizeof(*c->keys));
	for (uint32_t i = 0; o->op != MEASURE_EXISTS && ok && i < o->flights; i++) {
		c->flights[i].mem = buffer_new(o->batch * o->bytes, c->first + i);
		ok = c->flights[i].mem != NULL;
	}
	return ok && c->items && c->bufs && c->keys;
}

static int no_memory(struct pml_error *err)
{
	err->code = PML_ERR_NO_MEMORY;
	snprintf(err->text, sizeof(err->text), "no memory for the clients' buffers");
	return err->code;
}

static int client_init(struct measure *m, uint32_t i, struct pml_error *err)
{
	struct client *c = &m->clients[i];
	uint64_t share = m->o.objects / m->o.clients;
	c->m = m;
	c->first = i * share;
	c->n_own = share;
	if (!client_memory(c))
		return no_memory(err);
	int e = pml_open(&m->o.open, &c->p, err);
	return e == PML_ERR_NONE ? pml_cq_new(c->p, MEASURE_FLIGHTS_MAX, &c->cq, err) : e;
}

static int make(const struct measure_opts *o, struct measure **out, struct pml_error *err)
{
	struct measure *m = calloc(1, sizeof(*m));
	int e = PML_ERR_NONE;
	if (!m)
		return no_memory(err);
	*out = m;
	m->o = *o;
	pthread_mutex_init(&m->lock, NULL);
	m->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->clients = calloc(o->clients, sizeof(*m->clients));
	if (m->end_fd < 0 || !m->clients)
		return no_memory(err);
	m->n_clients = o->clients;
	for (uint32_t i = 0; e == PML_ERR_NONE && i < m->n_clients; i++)
		e = client_init(m, i, err);
	return e;
}

/* i clients run already; they end, and nothing is left. */
static int no_thread(struct measure *m, uint32_t i, int sys, struct pml_error *err)
{
	struct measure_result none;
	err->code = PML_ERR_BUSY;
	snprintf(err->text, sizeof(err->text), "client %u of %u: no thread: %s", i + 1,
		 m->n_clients, strerror(sys));
	measure_stop(m);
	for (uint32_t k = i; k < m->n_clients; k++)
		client_fini(&m->clients[k]);
	m->n_clients = i;
	measure_end(m, &none);
	measure_free(m);
	return PML_ERR_BUSY;
}

int measure_start(const struct measure_opts *o, struct measure **out, struct pml_error *err)
{
	struct measure *m = NULL;
	int e = make(o, &m, err);
	if (e != PML_ERR_NONE || !m) {
		measure_free(m);
		return e;
	}
	m->start_ns = now_ns();
	m->end_ns = clock_after_ms(m->start_ns, o->ms);
	atomic_store(&m->n_running, m->n_clients);
	for (uint32_t i = 0; i < m->n_clients; i++) {
		int sys = thread_start(&m->clients[i].thread, NULL, NULL, client_main,
				       &m->clients[i]);
		if (sys != 0)
			return no_thread(m, i, sys, err);
	}
	*out = m;
	return PML_ERR_NONE;
}

int measure_fd(const struct measure *m)
{
	return m->end_fd;
}

uint64_t measure_items(const struct measure *m)
{
	return atomic_load(&m->items);
}

void measure_stop(struct measure *m)
{
	atomic_store(&m->stop, true);
}

void measure_end(struct measure *m, struct measure_result *out)
{
	struct times *all = calloc(1, sizeof(*all));
	for (uint32_t i = 0; i < m->n_clients; i++)
		pthread_join(m->clients[i].thread, NULL);
	*out = (struct measure_result){ .first = m->first, .ended = m->ended };
	out->seconds = (double)(now_ns() - m->start_ns) / 1e9;
	for (uint32_t i = 0; i < m->n_clients; i++) {
		const struct measure_result *r = &m->clients[i].sum;
		out->calls += r->calls;
		out->items += r->items;
		out->bytes += r->bytes;
		out->missing += r->missing;
		out->wrong += r->wrong;
		out->errors += r->errors;
		if (all)
			times_join(all, &m->clients[i].times);
	}
	out->p50_us = all ? times_share(all, 0.50) / 1e3 : 0;
	out->p99_us = all ? times_share(all, 0.99) / 1e3 : 0;
	out->stopped = atomic_load(&m->stop) && !m->ended;
	free(all);
}

void measure_free(struct measure *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n_clients; i++)
		client_fini(&m->clients[i]);
	free(m->clients);
	if (m->end_fd >= 0)
		close(m->end_fd);
	pthread_mutex_destroy(&m->lock);
	free(m);
}
