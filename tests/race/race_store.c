/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session handshake under ThreadSanitizer: clients write into ranges by their tickets while the agent
 * fences, adopts and commits, and gives a range to the next attempt as soon as hold.h says so.
 *
 * First with plain stores into the payload, so that two writers of one range, or a writer and a
 * COMMIT's look at the bytes, are a data race that the tool reports. Then with readers, whose
 * bytes may be anything and are thrown away unless the generation is still the same (Reads).
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rpc/ticket.h"
#include "store/hold.h"

enum {
	WRITERS = 2,
	READERS = 1,
	RANGES = 2,
	WORDS = 64,
	RANGE_BYTES = WORDS * 8,
	ROUNDS = 10000
};

/* From the agent to a writer, and back. */
struct mail {
	pthread_mutex_t lock;
	bool full, done, written; /* done: the writer has finished; written: whole */
	uint64_t version, epoch;
	struct extent e;
};

struct writer {
	pthread_t t;
	struct shmpool *c;
	struct mail m;
	uint64_t n_written, n_stale;
};

/* What a reader was told. */
struct place {
	pthread_mutex_t lock;
	uint32_t slot;
	uint64_t generation, version;
	struct extent e;
};

static struct mempool *pool;
static struct hold *hold;
static struct writer writers[WRITERS];
static struct place place;
static struct shmpool *reader_pool;
static _Atomic bool stopping;
static bool with_readers;
static bool range_free[RANGES];
static uint64_t range_version[RANGES]; /* whose it is */
static uint64_t next_version, seed = 1, n_committed, n_fenced, n_waited, n_read, n_lost;
static uint64_t adoption;

static uint64_t rng(uint64_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

/* ---- payload ---- */

static void put_word(uint64_t *at, uint64_t v)
{
	if (with_readers)
		__atomic_store_n(at, v, __ATOMIC_RELAXED);
	else
		*at = v;
}

static uint64_t get_word(const uint64_t *at)
{
	return with_readers ? __atomic_load_n(at, __ATOMIC_RELAXED) : *at;
}

/* ---- writers ---- */

static bool write_range(struct writer *w, const struct mail *m)
{
	const struct pool_ctl *ctl = shmpool_ctl(w->c);
	struct pool_lane *l = shmpool_lane(w->c);
	uint64_t *at = shmpool_at(w->c, &m->e);
	assert(l && at);
	enum err e = lane_begin(l, ctl, 0, m->epoch, m->version, &m->e, 1);
	for (unsigned i = 0; i < WORDS && e == ERR_NONE; i++) {
		put_word(&at[i], m->version);
		if (i == WORDS / 2) /* the agent looks while we are half way */
			sched_yield();
		if (i % 16 == 15)
			e = lane_look(l, ctl, 0, m->epoch, m->version);
	}
	if (e == ERR_NONE)
		lane_end(l);
	shmpool_lane_done(w->c, l);
	return e == ERR_NONE;
}

static void *write_for(void *arg)
{
	struct writer *w = arg;
	while (!stopping) {
		pthread_mutex_lock(&w->m.lock);
		struct mail m = w->m;
		pthread_mutex_unlock(&w->m.lock);
		if (!m.full || m.done) {
			sched_yield();
			continue;
		}
		bool whole = write_range(w, &m);
		w->n_written += whole;
		w->n_stale += !whole;
		pthread_mutex_lock(&w->m.lock);
		w->m.done = true;
		w->m.written = whole;
		pthread_mutex_unlock(&w->m.lock);
	}
	return NULL;
}

/* ---- the reader ---- */

static void read_once(const struct place *p)
{
	uint64_t copy[WORDS];
	const uint64_t *at = shmpool_at(reader_pool, &p->e);
	for (unsigned i = 0; i < WORDS; i++)
		copy[i] = get_word(&at[i]);
	if (!shmpool_same(reader_pool, p->slot, p->generation)) {
		n_lost++;
		return;
	}
	n_read++;
	for (unsigned i = 0; i < WORDS; i++)
		if (copy[i] != p->version) {
			fprintf(stderr, "a foreign word: %llu in version %llu\n",
				(unsigned long long)copy[i], (unsigned long long)p->version);
			abort();
		}
}

static void *read_for(void *arg)
{
	(void)arg;
	while (!stopping) {
		pthread_mutex_lock(&place.lock);
		struct place p = place;
		pthread_mutex_unlock(&place.lock);
		if (p.version)
			read_once(&p);
		sched_yield();
	}
	return NULL;
}

/* ---- the agent ---- */

static struct extent extent_of(unsigned range)
{
	return (struct extent){ .offset = range * RANGE_BYTES, .bytes = RANGE_BYTES };
}

static void give_back(uint64_t version)
{
	for (unsigned r = 0; r < RANGES; r++)
		if (range_version[r] == version)
			range_free[r] = true;
}

static void on_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	(void)ctx, (void)shard;
	n_waited++;
	give_back(version);
}

static void start_put(struct writer *w)
{
	for (unsigned r = 0; r < RANGES; r++) {
		if (!range_free[r])
			continue;
		range_free[r] = false;
		range_version[r] = ++next_version;
		w->m.full = true;
		w->m.done = false;
		w->m.version = next_version;
		w->m.epoch = hold_under(hold, 0).pool_epoch;
		w->m.e = extent_of(r);
		return;
	}
}

static void tell_reader(const struct hold_slot *s, const struct extent *e)
{
	pthread_mutex_lock(&place.lock);
	place.slot = s->slot;
	place.generation = s->generation;
	place.version = s->version;
	place.e = *e;
	pthread_mutex_unlock(&place.lock);
	if (with_readers) /* let it begin to read before the bytes go */
		sched_yield();
}

/* COMMIT, a look at the bytes, then RETIRE and FREE. */
static void committed(const struct mail *m, const struct hold_slot *s)
{
	struct hold_under u = hold_under(hold, 0);
	const uint64_t *at = mempool_at(pool, &m->e);
	for (unsigned i = 0; i < WORDS; i++)
		if (get_word(&at[i]) != m->version) {
			fprintf(stderr, "version %llu was committed over foreign bytes\n",
				(unsigned long long)m->version);
			abort();
		}
	tell_reader(s, &m->e);
	enum err e =
		hold_retire(hold, &u, s->slot, s->generation, s->version, RETIRE_REMOVED, 0);
	assert(e == ERR_NONE);
	e = hold_free(hold, &u, s->slot, s->generation);
	assert(e == ERR_NONE);
	n_committed++;
	give_back(m->version);
}

static void try_commit(const struct mail *m)
{
	struct msg_extent x = { .offset = m->e.offset, .bytes = m->e.bytes };
	struct hold_slot s;
	struct msg_ticket t = { .op = TICKET_WRITE,
				.tenant = BYTES_STR("default"),
				.pool_epoch = m->epoch,
				.extents = { .p = &x, .n = 1 },
				.size = RANGE_BYTES,
				.version = m->version,
				.key = BYTES_STR("k") };
	memcpy(t.pool, mempool_id(pool), 16);
	enum err e = hold_commit(hold, &t, 1, &s, NULL);
	assert(e == ERR_NONE || e == ERR_STALE_ATTEMPT || e == ERR_STALE_EPOCH);
	if (e == ERR_NONE)
		committed(m, &s);
}

static void fence(const struct mail *m)
{
	struct hold_under u = hold_under(hold, 0);
	enum hold_fence state;
	struct hold_slot s;
	enum err e = hold_fence(hold, &u, m->version, &m->e, 1, &state, &s);
	assert(e == ERR_NONE && state != HOLD_COMMITTED);
	n_fenced++;
	if (state == HOLD_FENCED)
		give_back(m->version);
}

static void serve(struct writer *w)
{
	pthread_mutex_lock(&w->m.lock);
	struct mail m = w->m;
	bool owned = false; /* still that attempt's range? */
	for (unsigned r = 0; r < RANGES; r++)
		owned |= m.full && range_version[r] == m.version && !range_free[r];
	if (!m.full || m.done) {
		w->m.full = false;
		start_put(w);
	}
	pthread_mutex_unlock(&w->m.lock);
	if (!m.full)
		return;
	if (m.done && m.written)
		try_commit(&m);
	else if (owned && (m.done || rng(4) == 0))
		fence(&m);
}

struct waiting {
	bool range[RANGES];
};

static void still_written(void *arg, uint64_t version, const struct extent *ext, size_t n)
{
	struct waiting *w = arg;
	(void)ext, (void)n;
	for (unsigned r = 0; r < RANGES; r++)
		w->range[r] |= range_version[r] == version;
}

/* Attempts of the old epoch: what nobody writes is free at once. */
static void adopt(void)
{
	struct hold_under u;
	struct waiting w = { { false } };
	enum err e = hold_adopt(hold, 0, 1, ++adoption, &u, NULL);
	assert(e == ERR_NONE);
	hold_writing(hold, 0, still_written, &w);
	for (unsigned r = 0; r < RANGES; r++)
		if (!w.range[r])
			range_free[r] = true;
}

static void agent(void)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		for (unsigned k = 0; k < WRITERS; k++)
			serve(&writers[k]);
		hold_sweep(hold);
		if (rng(50) == 0)
			adopt();
		if (rng(3) == 0)
			sched_yield();
	}
}

/* ---- the whole ---- */

static struct shmpool *attach(void)
{
	struct shmpool_fds fds;
	struct shmpool *c;
	uint32_t id;
	enum err e = mempool_session(pool, true, &id, &fds, NULL);
	assert(e == ERR_NONE);
	e = mempool_attach(pool, id, &c);
	assert(e == ERR_NONE);
	return c;
}

static void open_all(struct pool_backing *b)
{
	struct mempool_opts o = { .backing = b,
				  .segment_bytes = 4096,
				  .n_slots = 4,
				  .heap_bytes = 4096,
				  .n_lanes = 2,
				  .n_shards = 1 };
	struct hold_opts h = { .ring = 3, .closed = 16, .fenced = on_fenced };
	struct mempool_start start;
	enum err e = mempool_open(&o, &pool, &start, NULL);
	assert(e == ERR_NONE);
	h.pool = pool;
	e = hold_new(&h, &hold);
	assert(e == ERR_NONE);
	for (unsigned r = 0; r < RANGES; r++)
		range_free[r] = true, range_version[r] = 0;
	next_version = adoption = 0;
}

static void run(bool readers)
{
	struct pool_backing *b;
	pthread_t reader;
	with_readers = readers;
	stopping = false;
	enum err e = pool_memory_new(&b);
	assert(e == ERR_NONE);
	open_all(b);
	memset(&place, 0, sizeof(place));
	pthread_mutex_init(&place.lock, NULL);
	reader_pool = attach();
	for (unsigned k = 0; k < WRITERS; k++) {
		writers[k] = (struct writer){ .c = attach() };
		pthread_mutex_init(&writers[k].m.lock, NULL);
		pthread_create(&writers[k].t, NULL, write_for, &writers[k]);
	}
	if (readers)
		pthread_create(&reader, NULL, read_for, NULL);
	agent();
	stopping = true;
	for (unsigned k = 0; k < WRITERS; k++)
		pthread_join(writers[k].t, NULL);
	if (readers)
		pthread_join(reader, NULL);
	for (unsigned k = 0; k < WRITERS; k++)
		shmpool_close(writers[k].c);
	shmpool_close(reader_pool);
	hold_close(hold);
	mempool_close(pool);
	pool_backing_free(b);
}

int main(void)
{
	run(false);
	run(true);
	uint64_t stale = writers[0].n_stale + writers[1].n_stale;
	printf("committed %llu fenced %llu waited %llu stale %llu read %llu lost %llu\n",
	       (unsigned long long)n_committed, (unsigned long long)n_fenced,
	       (unsigned long long)n_waited, (unsigned long long)stale,
	       (unsigned long long)n_read, (unsigned long long)n_lost);
	bool ran = n_committed > 0 && n_fenced > 0 && n_waited > 0;
	printf("%d passed, %d failed\n", ran, !ran);
	return ran ? 0 : 1;
}
