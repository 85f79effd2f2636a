/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_priv.h"

#include "base/clock.h"
#include "loop/thread.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH_BYTES = 1 << 20, BATCH_BLOCKS_MAX = 256, CQ_DEPTH = 16 };

static uint32_t batch_of(uint64_t block_bytes)
{
	uint64_t n = BATCH_BYTES / block_bytes;
	return (uint32_t)MIN_OF(MAX_OF(n, 1u), (uint64_t)BATCH_BLOCKS_MAX);
}

uint64_t replay_buffer_bytes(uint64_t block_bytes, uint32_t clients)
{
	return clients * REPLAY_BATCHES * batch_of(block_bytes) * block_bytes;
}

uint64_t replay_now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

void replay_error(struct replay *r, const struct pml_error *err, bool whole)
{
	pthread_mutex_lock(&r->lock);
	if (r->first.code == PML_ERR_NONE || (whole && !r->ended))
		r->first = *err;
	r->ended |= whole;
	pthread_mutex_unlock(&r->lock);
	if (whole)
		replay_stop(r);
}

/* ---- clients ---- */

static void client_fini(struct client *c)
{
	pml_close(c->p);
	pml_cq_free(c->cq);
	for (int i = 0; i < REPLAY_BATCHES; i++) {
		free(c->batches[i].at);
		free(c->batches[i].mem);
	}
	free(c->items);
	free(c->bufs);
	free(c->keys);
	free(c->gets);
	free(c->puts);
}

static bool client_memory(struct client *c)
{
	struct replay *r = c->r;
	bool ok = true;
	c->items = calloc(PML_ITEMS_MAX, sizeof(*c->items));
	c->bufs = calloc(PML_ITEMS_MAX, sizeof(*c->bufs));
	c->keys = calloc(PML_ITEMS_MAX, sizeof(*c->keys));
	for (int i = 0; i < REPLAY_BATCHES; i++) {
		struct batch *b = &c->batches[i];
		b->at = calloc(r->batch, sizeof(*b->at));
		b->mem = malloc(r->batch * r->o.block_bytes);
		ok &= b->at && b->mem;
	}
	return ok && c->items && c->bufs && c->keys;
}

static int client_init(struct client *c, struct pml_error *err)
{
	if (!client_memory(c)) {
		err->code = PML_ERR_NO_MEMORY;
		snprintf(err->text, sizeof(err->text),
			 "no memory for the buffers of %u clients", c->r->o.clients);
		return err->code;
	}
	int e = pml_open(&c->r->o.open, &c->p, err);
	return e == PML_ERR_NONE ? pml_cq_new(c->p, CQ_DEPTH, &c->cq, err) : e;
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint64_t one = 1;
	client_run(c);
	if (atomic_fetch_sub(&c->r->n_running, 1) == 1 &&
	    write(c->r->end_fd, &one, sizeof(one)) < 0)
		return NULL; /* an eventfd that counts to 1 is never full */
	return NULL;
}

/* ---- the run ---- */

static int no_memory(struct pml_error *err)
{
	err->code = PML_ERR_NO_MEMORY;
	snprintf(err->text, sizeof(err->text), "no memory for the replay");
	return err->code;
}

static int make(const struct replay_opts *o, struct replay **out, struct pml_error *err)
{
	struct replay *r = calloc(1, sizeof(*r));
	if (!r)
		return no_memory(err);
	*out = r;
	r->o = *o;
	r->batch = batch_of(o->block_bytes);
	pthread_mutex_init(&r->lock, NULL);
	r->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r->took_us = malloc(o->trace->n * sizeof(*r->took_us));
	r->clients = calloc(o->clients, sizeof(*r->clients));
	if (r->end_fd < 0 || !r->took_us || !r->clients)
		return no_memory(err);
	memset(r->took_us, 0xff, o->trace->n * sizeof(*r->took_us));
	r->n_clients = o->clients;
	int e = PML_ERR_NONE;
	for (uint32_t i = 0; e == PML_ERR_NONE && i < r->n_clients; i++) {
		r->clients[i].r = r;
		e = client_init(&r->clients[i], err);
	}
	return e;
}

int replay_start(const struct replay_opts *o, struct replay **out, struct pml_error *err)
{
	struct replay *r = NULL;
	int e = make(o, &r, err);
	if (e != PML_ERR_NONE || !r) {
		replay_free(r);
		return e;
	}
	r->start_ns = replay_now_ns();
	atomic_store(&r->n_running, r->n_clients);
	for (uint32_t i = 0; i < r->n_clients; i++) {
		int sys = thread_start(&r->clients[i].thread, NULL, NULL, client_main,
				       &r->clients[i]);
		if (sys == 0)
			continue;
		struct replay_result none;
		err->code = PML_ERR_BUSY;
		snprintf(err->text, sizeof(err->text), "client %u of %u: no thread: %s", i + 1,
			 r->n_clients, strerror(sys));
		replay_stop(r);
		for (uint32_t k = i; k < r->n_clients; k++)
			client_fini(&r->clients[k]);
		r->n_clients = i;
		replay_end(r, &none);
		replay_free(r);
		return err->code;
	}
	*out = r;
	return PML_ERR_NONE;
}

int replay_fd(const struct replay *r)
{
	return r->end_fd;
}

void replay_progress(const struct replay *r, uint64_t *requests, uint64_t *bytes)
{
	*requests = atomic_load(&r->n_done);
	*bytes = atomic_load(&r->bytes);
}

void replay_stop(struct replay *r)
{
	atomic_store(&r->stop, true);
}

/* ---- the sum ---- */

static void sum_up(struct replay_counts *s, const struct replay_counts *n)
{
	s->requests += n->requests;
	s->references += n->references;
	s->got += n->got;
	s->put += n->put;
	s->hits_memory += n->hits_memory;
	s->hits_disk += n->hits_disk;
	s->misses += n->misses;
	s->lost += n->lost;
	s->existing += n->existing;
	s->errors += n->errors;
	s->wrong += n->wrong;
	s->bytes_put += n->bytes_put;
	s->bytes_got += n->bytes_got;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* Nearest rank. Those that were not finished are the largest, behind the n that were. */
static uint64_t rank_of(const uint32_t *v, size_t n, unsigned percent)
{
	return n ? v[MAX_OF((n * percent + 99) / 100, (size_t)1) - 1] : 0;
}

void replay_end(struct replay *r, struct replay_result *out)
{
	for (uint32_t i = 0; i < r->n_clients; i++)
		pthread_join(r->clients[i].thread, NULL);
	*out = (struct replay_result){ .first = r->first, .ended = r->ended };
	out->seconds = (double)(replay_now_ns() - r->start_ns) / 1e9;
	for (uint32_t i = 0; i < r->n_clients; i++)
		sum_up(&out->n, &r->clients[i].sum);
	size_t done = (size_t)atomic_load(&r->n_done);
	qsort(r->took_us, r->o.trace->n, sizeof(*r->took_us), by_size);
	out->p50_us = rank_of(r->took_us, done, 50);
	out->p99_us = rank_of(r->took_us, done, 99);
	out->stopped = atomic_load(&r->stop) && !r->ended;
}

void replay_free(struct replay *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; i < r->n_clients; i++)
		client_fini(&r->clients[i]);
	free(r->clients);
	free(r->took_us);
	if (r->end_fd >= 0)
		close(r->end_fd);
	pthread_mutex_destroy(&r->lock);
	free(r);
}
