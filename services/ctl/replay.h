/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace played against a cluster: for each request, find the longest prefix of its blocks that is cached,
 * get those, put the ones that are missing, compare every byte.
 *
 *   requests, in the order of the file ──► next ──► client 1 .. N, each a thread, a handle and a queue
 *
 *   a request:  exists(all) ──► get the prefix ─┐  BATCHES calls in flight, of about 1 MiB each
 *                               put the missing ┴─► compare, count ──► the next request
 *
 * I1: every block reference of a request that was finished is a hit or a miss; hits + misses = references.
 * I2: a block that was evicted between exists and get is a miss and is put like the others.
 * I3: a call that failed as a whole, other than by what bytes it found, ends the run: what follows would
 *     fail alike, each time after the whole deadline.
 *
 * Threads: the caller's begins, looks, stops and ends it.
 */
#pragma once

#include "pml_store.h"
#include "trace.h"

enum {
	REPLAY_CLIENTS_MAX = 256,
	REPLAY_PREFIX_MAX = 512,
	REPLAY_BATCHES = 4,
};
#define REPLAY_BLOCK_MAX  (256ull << 20) /* bytes */
#define REPLAY_BUFFER_MAX (8ull << 30)	 /* bytes, of all clients */

struct replay_opts {
	const struct trace *trace; /* borrowed until replay_free */
	uint64_t block_bytes;	   /* 1..REPLAY_BLOCK_MAX */
	uint32_t clients;	   /* 1..REPLAY_CLIENTS_MAX */
	double time_scale;  /* seconds of ours to one of the trace; 0: as fast as it goes */
	const char *prefix; /* keys are PREFIX/BLOCK/ID; borrowed; 1..REPLAY_PREFIX_MAX bytes */
	struct pml_open_opts open;
};

/* Counts of blocks unless named otherwise. */
struct replay_counts {
	uint64_t requests; /* finished */
	uint64_t references;
	uint64_t got, put;
	uint64_t hits_memory, hits_disk, misses;
	uint64_t lost;	   /* of the misses: there when asked, evicted before they were read */
	uint64_t existing; /* of the misses: put by somebody else meanwhile */
	uint64_t errors;   /* gets, puts and probes that failed */
	uint64_t wrong;	   /* blocks that arrived with other bytes than they were put with */
	uint64_t bytes_put, bytes_got;
};

struct replay_result {
	struct replay_counts n;
	double seconds;
	uint64_t p50_us, p99_us; /* of finished requests: from when they began, or with a time
				  * scale from when they were due */
	struct pml_error first;	 /* the first error; code 0: there was none */
	bool ended;		 /* by I3: `first` is why */
	bool stopped;		 /* by replay_stop */
};

struct replay;

/* Bytes of buffers that these options take. Pure. */
uint64_t replay_buffer_bytes(uint64_t block_bytes, uint32_t clients);
/*
 * Opens the handles and begins. out: owned, replay_free().
 * PML_ERR_NO_MEMORY, PML_ERR_BUSY (no threads), what pml_open says; err is filled.
 */
int replay_start(const struct replay_opts *o, struct replay **out, struct pml_error *err);
/* Readable once all clients have ended. */
int replay_fd(const struct replay *r);
/* How far it is. */
void replay_progress(const struct replay *r, uint64_t *requests, uint64_t *bytes);
/* Soon: what is in flight is cancelled. Any number of times. */
void replay_stop(struct replay *r);
/* Waits for the clients; once. */
void replay_end(struct replay *r, struct replay_result *out);
/* After replay_end. NULL is fine. */
void replay_free(struct replay *r);
