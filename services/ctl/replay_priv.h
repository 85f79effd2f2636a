/* SPDX-License-Identifier: Apache-2.0 */
/* What replay.c (the run) and replay_client.c (one client's requests) share. */
#pragma once

#include "replay.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KEY_BYTES_MAX = REPLAY_PREFIX_MAX + 48 };

struct replay {
	struct replay_opts o;
	uint32_t batch; /* blocks of a call */
	uint64_t start_ns;
	_Atomic size_t next; /* request */
	_Atomic uint64_t n_done, bytes;
	_Atomic bool stop;
	_Atomic uint32_t n_running;
	uint32_t n_clients;
	int end_fd;
	uint32_t *took_us; /* a request each; UINT32_MAX: not finished */
	pthread_mutex_t lock;
	struct pml_error first; /* under lock */
	bool ended;		/* under lock */
	struct client *clients;
};

/* A call and the memory of its blocks. */
struct batch {
	struct pml_op *op; /* NULL: free */
	bool put;
	uint32_t n;
	uint32_t *at; /* r->batch places in the request */
	uint8_t *mem; /* r->batch blocks */
};

/* One thread. */
struct client {
	struct replay *r;
	struct pml *p;
	struct pml_cq *cq;
	pthread_t thread;
	struct batch batches[REPLAY_BATCHES];
	/* for one call's start, which copies them */
	struct pml_item *items;
	struct pml_buf *bufs;
	char (*keys)[KEY_BYTES_MAX];
	/* the request */
	const uint64_t *ids;
	uint32_t n;
	uint32_t *gets, *puts; /* places in the request, to be done */
	uint32_t n_gets, n_puts, gets_at, puts_at;
	uint32_t cap;		  /* of gets and puts */
	struct replay_counts now; /* of this request */
	struct replay_counts sum; /* of those that were finished, errors of all */
};

/* Until there are no more requests or the run ends. */
void client_run(struct client *c);
/* Notes the first error of the run; whole: I3. */
void replay_error(struct replay *r, const struct pml_error *err, bool whole);
uint64_t replay_now_ns(void);
