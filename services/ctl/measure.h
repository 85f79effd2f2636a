/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One benchmark against a running cluster: clients, each a thread with a handle of its own, that keep some
 * calls of many items under way until the time is over. Objects are PREFIX/0 to PREFIX/n-1; each client has
 * a share of them and takes them in turn, so that no two calls under way name one object.
 *
 *   put      over the objects, in turn: a new version each
 *   get      whole, each into memory of its own; size and first bytes are compared
 *   exists   asked
 *
 * I1: what is counted was answered; a call's time is from its start to its collection.
 * I2: a call of which every item failed alike ends the run: what follows would, too, each time after the whole
 *     deadline.
 *
 * Threads: the caller's begins, looks, stops and ends it.
 */
#pragma once

#include "pml_store.h"

enum {
	MEASURE_CLIENTS_MAX = 256,
	MEASURE_FLIGHTS_MAX = 64,
	MEASURE_PREFIX_MAX = 64,
};
#define MEASURE_BUFFER_MAX (8ull << 30) /* bytes, of all clients */

enum measure_op { MEASURE_FILL, MEASURE_PUT, MEASURE_GET, MEASURE_EXISTS };

struct measure_opts {
	enum measure_op op; /* FILL: every object is put once, then it ends */
	uint32_t clients;   /* 1..MEASURE_CLIENTS_MAX */
	uint32_t batch;	    /* items of a call, 1..PML_ITEMS_MAX */
	uint32_t flights;   /* calls of a client under way, 1..MEASURE_FLIGHTS_MAX */
	uint64_t bytes;	    /* of an object */
	uint64_t objects;   /* at least measure_objects_min() */
	uint64_t ms;	    /* how long calls are begun; FILL: not used */
	const char *prefix; /* 1..MEASURE_PREFIX_MAX bytes, borrowed until measure_free */
	struct pml_open_opts open;
};

struct measure_result {
	uint64_t calls, items, bytes; /* that went well */
	uint64_t missing; /* gets and probes of objects that were evicted meanwhile */
	uint64_t wrong;	  /* gets of other bytes than were put */
	uint64_t errors;
	double seconds;		/* from the first call to the last answer */
	double p50_us, p99_us;	/* of calls */
	struct pml_error first; /* code 0: there was none */
	bool ended;		/* by I2: `first` is why */
	bool stopped;		/* by measure_stop */
};

struct measure;

/* Fewer would make calls meet on an object. Pure. */
uint64_t measure_objects_min(const struct measure_opts *o);
/* Bytes of buffers that these options take. Pure. */
uint64_t measure_buffer_bytes(const struct measure_opts *o);
/* Opens the handles and begins. out: owned, measure_free(). NO_MEMORY, BUSY (no threads), what pml_open says. */
int measure_start(const struct measure_opts *o, struct measure **out, struct pml_error *err);
/* Readable once all clients have ended. */
int measure_fd(const struct measure *m);
/* Items so far. */
uint64_t measure_items(const struct measure *m);
/* Soon: what is under way is cancelled. Any number of times. */
void measure_stop(struct measure *m);
/* Waits for the clients; once. */
void measure_end(struct measure *m, struct measure_result *out);
/* After measure_end. NULL is fine. */
void measure_free(struct measure *m);

/* ---- times of calls ---- */

/* Buckets of 1/32 of a power of two: a value is known to 3 %. */
enum { TIMES_SUB = 32, TIMES_BUCKETS = 40 * TIMES_SUB };
struct times {
	uint64_t n[TIMES_BUCKETS];
};
void times_add(struct times *t, uint64_t ns);
void times_join(struct times *t, const struct times *other);
/* The middle of the bucket that the given share of the values ends in, ns; 0: there are none. Pure. */
double times_share(const struct times *t, double share);
