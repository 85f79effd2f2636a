/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"
#include "replay_priv.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

enum {
	LOOK_MS = 100,	 /* between two looks whether the run is to end */
	LEASE_MS = 1000, /* of a get: it reads at once, and renews when it does not */
};

static bool stopping(const struct client *c)
{
	return atomic_load_explicit(&c->r->stop, memory_order_relaxed);
}

/* ---- calls ---- */

/* items[i] is the block at place `at` of the request, its bytes at mem (NULL: none). */
static void set_item(struct client *c, uint32_t i, uint32_t at, uint8_t *mem)
{
	const struct replay_opts *o = &c->r->o;
	int n = snprintf(c->keys[i], KEY_BYTES_MAX, "%s/%" PRIu64 "/%" PRIu64, o->prefix,
			 o->block_bytes, c->ids[at]);
	c->items[i] = (struct pml_item)PML_ITEM_INIT;
	c->items[i].key = c->keys[i];
	c->items[i].key_bytes = (size_t)n;
	c->bufs[i] = (struct pml_buf){ mem, o->block_bytes };
	c->items[i].bufs = mem ? &c->bufs[i] : NULL;
	c->items[i].n_bufs = mem ? 1 : 0;
}

/* The code of item i; err is filled when it is not 0. */
static int item_code(const struct pml_op *op, size_t i, struct pml_result *r,
		     struct pml_error *err)
{
	*r = (struct pml_result)PML_RESULT_INIT;
	*err = (struct pml_error)PML_ERROR_INIT;
	int e = pml_op_result(op, i, r);
	if (e == PML_ERR_NONE)
		e = r->code;
	if (e != PML_ERR_NONE)
		pml_op_item_error(op, i, err);
	return e;
}

static void count_error(struct client *c, const struct pml_error *err, bool whole)
{
	if (err->code == PML_ERR_CANCELLED && stopping(c))
		return;
	c->now.errors++;
	replay_error(c->r, err, whole);
}

/* Did not a single item fare otherwise than by that one error? */
static bool all_failed(const struct pml_op *op, const struct pml_error *err)
{
	if (err->code == PML_ERR_CORRUPT)
		return false;
	for (size_t i = 0; i < pml_op_n(op); i++) {
		struct pml_result r = PML_RESULT_INIT;
		if (pml_op_result(op, i, &r) == PML_ERR_NONE && r.code != err->code)
			return false;
	}
	return true;
}

/* ---- exists ---- */

static void todo(uint32_t *v, uint32_t *n, uint32_t at)
{
	v[(*n)++] = at;
}

/* Into gets while the prefix lasts, into puts what is not there. */
static void take_exists(struct client *c, const struct pml_op *op, uint32_t first, bool *prefix)
{
	for (uint32_t i = 0; i < pml_op_n(op); i++) {
		struct pml_result r;
		struct pml_error err;
		int e = item_code(op, i, &r, &err);
		if (e != PML_ERR_NONE && e != PML_ERR_NOT_FOUND)
			count_error(c, &err, all_failed(op, &err));
		*prefix &= e == PML_ERR_NONE;
		if (*prefix)
			todo(c->gets, &c->n_gets, first + i);
		else if (e != PML_ERR_NONE)
			todo(c->puts, &c->n_puts, first + i);
	}
}

static struct pml_op *wait_one(struct client *c)
{
	struct pml_op *done = NULL;
	bool cancelled = false;
	while (pml_cq_wait(c->cq, &done, 1, LOOK_MS) == 0)
		if (stopping(c) && !cancelled) {
			for (int i = 0; i < REPLAY_BATCHES; i++)
				if (c->batches[i].op)
					pml_op_cancel(c->batches[i].op);
			cancelled = true;
		}
	return done;
}

static void look(struct client *c)
{
	bool prefix = true;
	for (uint32_t at = 0, n; at < c->n && !stopping(c); at += n) {
		struct pml_error err = PML_ERROR_INIT;
		struct pml_op *op = NULL;
		n = MIN_OF(c->n - at, (uint32_t)PML_ITEMS_MAX);
		for (uint32_t i = 0; i < n; i++)
			set_item(c, i, at + i, NULL);
		if (pml_exists_start(c->p, c->items, n, NULL, c->cq, NULL, &op, &err) !=
		    PML_ERR_NONE) {
			count_error(c, &err, true);
			return;
		}
		c->batches[0].op = op; /* so that a stop reaches it */
		wait_one(c);
		c->batches[0].op = NULL;
		take_exists(c, op, at, &prefix);
		pml_op_free(op);
	}
}

/* ---- gets and puts ---- */

static void start_batch(struct client *c, struct batch *b)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_get_opts get = PML_GET_OPTS_INIT;
	uint64_t size = c->r->o.block_bytes;
	b->put = c->gets_at == c->n_gets;
	uint32_t *from = b->put ? &c->puts_at : &c->gets_at;
	uint32_t left = (b->put ? c->n_puts : c->n_gets) - *from;
	b->n = MIN_OF(left, c->r->batch);
	memcpy(b->at, (b->put ? c->puts : c->gets) + *from, b->n * sizeof(*b->at));
	*from += b->n;
	for (uint32_t i = 0; i < b->n; i++) {
		set_item(c, i, b->at[i], b->mem + i * size);
		if (b->put)
			block_fill(b->mem + i * size, size, c->ids[b->at[i]]);
	}
	get.lease_ms = LEASE_MS;
	int e = b->put ? pml_put_start(c->p, c->items, b->n, NULL, c->cq, b, &b->op, &err)
		       : pml_get_start(c->p, c->items, b->n, &get, c->cq, b, &b->op, &err);
	if (e != PML_ERR_NONE)
		count_error(c, &err, true);
}

static void got(struct client *c, uint32_t at, const uint8_t *mem, const struct pml_result *r)
{
	uint64_t size = c->r->o.block_bytes;
	c->now.got++;
	c->now.bytes_got += r->bytes;
	c->now.hits_memory += r->tier != 2;
	c->now.hits_disk += r->tier == 2;
	if (r->bytes != size || !block_check(mem, size, c->ids[at]))
		c->now.wrong++;
}

static void get_over(struct client *c, const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		struct pml_result r;
		struct pml_error err;
		int e = item_code(b->op, i, &r, &err);
		if (e == PML_ERR_NONE) {
			got(c, b->at[i], b->mem + i * c->r->o.block_bytes, &r);
			continue;
		}
		c->now.misses++;
		if (e == PML_ERR_NOT_FOUND || e == PML_ERR_LEASE_LOST) {
			c->now.lost++;
			todo(c->puts, &c->n_puts, b->at[i]);
		} else {
			count_error(c, &err, all_failed(b->op, &err));
		}
	}
}

static void put_over(struct client *c, const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		struct pml_result r;
		struct pml_error err;
		int e = item_code(b->op, i, &r, &err);
		if (e == PML_ERR_NONE) {
			c->now.put++;
			c->now.bytes_put += c->r->o.block_bytes;
		} else if (e == PML_ERR_ALREADY_EXISTS || e == PML_ERR_BUSY_WRITING) {
			c->now.existing++; /* an equal block, by another client */
		} else {
			count_error(c, &err, all_failed(b->op, &err));
		}
	}
}

static void batch_over(struct client *c, struct batch *b)
{
	if (b->put)
		put_over(c, b);
	else
		get_over(c, b);
	atomic_fetch_add_explicit(&c->r->bytes, b->n * c->r->o.block_bytes,
				  memory_order_relaxed);
	pml_op_free(b->op);
	b->op = NULL;
}

/* All that is to be got and put, REPLAY_BATCHES calls at a time. */
static void move_all(struct client *c)
{
	for (;;) {
		uint32_t flying = 0;
		for (int i = 0; i < REPLAY_BATCHES; i++) {
			bool more = c->gets_at < c->n_gets || c->puts_at < c->n_puts;
			if (!c->batches[i].op && more && !stopping(c))
				start_batch(c, &c->batches[i]);
			flying += c->batches[i].op != NULL;
		}
		if (flying == 0)
			return;
		batch_over(c, pml_op_user(wait_one(c)));
	}
}

/* ---- requests ---- */

/* When it may begin; false: the run ends first. */
static bool wait_due(struct client *c, const struct trace_request *q, uint64_t *due_ns)
{
	uint64_t now = replay_now_ns();
	*due_ns = now;
	if (c->r->o.time_scale <= 0)
		return true;
	*due_ns = c->r->start_ns + (uint64_t)((double)q->at_ms * 1e6 * c->r->o.time_scale);
	for (; now < *due_ns && !stopping(c); now = replay_now_ns()) {
		uint64_t ns = MIN_OF(*due_ns - now, (uint64_t)LOOK_MS * 1000000);
		struct timespec t = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
		nanosleep(&t, NULL);
	}
	return !stopping(c);
}

static bool reserve(struct client *c, uint32_t n)
{
	if (n <= c->cap)
		return true;
	/* a block that is lost is put: both may hold all of them */
	uint32_t *v = realloc(c->gets, n * sizeof(*v));
	c->gets = v ? v : c->gets;
	uint32_t *w = v ? realloc(c->puts, n * sizeof(*w)) : NULL;
	c->puts = w ? w : c->puts;
	c->cap = w ? n : c->cap;
	return w != NULL;
}

/* What was moved was moved; hits and misses are of whole requests (I1). */
static void add_counts(struct client *c, bool finished)
{
	struct replay_counts *s = &c->sum, *n = &c->now;
	s->errors += n->errors;
	s->wrong += n->wrong;
	s->got += n->got;
	s->put += n->put;
	s->lost += n->lost;
	s->existing += n->existing;
	s->bytes_got += n->bytes_got;
	s->bytes_put += n->bytes_put;
	if (!finished)
		return;
	s->hits_memory += n->hits_memory;
	s->hits_disk += n->hits_disk;
	s->misses += n->misses;
	s->requests++;
	s->references += c->n;
}

static void request(struct client *c, const struct trace_request *q)
{
	c->ids = c->r->o.trace->ids + q->first;
	c->n = q->n;
	c->n_gets = c->n_puts = c->gets_at = c->puts_at = 0;
	c->now = (struct replay_counts){ 0 };
	look(c);
	c->now.misses = c->n - c->n_gets; /* those that get lost join them */
	move_all(c);
	add_counts(c, !stopping(c));
}

void client_run(struct client *c)
{
	struct replay *r = c->r;
	const struct trace *t = r->o.trace;
	while (!stopping(c)) {
		size_t i = atomic_fetch_add(&r->next, 1);
		uint64_t due_ns = 0;
		if (i >= t->n || !wait_due(c, &t->requests[i], &due_ns))
			return;
		if (!reserve(c, t->requests[i].n)) {
			struct pml_error err = PML_ERROR_INIT;
			err.code = PML_ERR_NO_MEMORY;
			snprintf(err.text, sizeof(err.text), "no memory for a request");
			count_error(c, &err, true);
			return;
		}
		request(c, &t->requests[i]);
		if (stopping(c))
			return;
		uint64_t us = (replay_now_ns() - due_ns) / 1000;
		r->took_us[i] = (uint32_t)MIN_OF(us, (uint64_t)UINT32_MAX - 1);
		atomic_fetch_add_explicit(&r->n_done, 1, memory_order_relaxed);
	}
}
