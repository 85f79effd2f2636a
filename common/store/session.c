/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: one file of hazard records for each client process (spec/store.md, Local writers). The lock
 * on it is the client's life; a session goes only when that lock is free, and then its hazards name
 * nobody any more (T6).
 */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/shm.h"
#include "store/mempool_priv.h"
#include "store/shmpool_priv.h"

void session_name(char out[BACKING_NAME_MAX], uint32_t id)
{
	(void)snprintf(out, BACKING_NAME_MAX, "ses.%08x", id);
}

uint32_t session_of_name(const char *name)
{
	char again[BACKING_NAME_MAX];
	if (strncmp(name, "ses.", 4) != 0)
		return 0;
	uint32_t id = (uint32_t)strtoul(name + 4, NULL, 16);
	session_name(again, id);
	return strcmp(again, name) == 0 ? id : 0;
}

static enum err grow(struct mempool *p)
{
	uint32_t cap = MEMPOOL_SESSIONS_MAX;
	if (p->sessions)
		return ERR_NONE;
	p->sessions = calloc(cap, sizeof(*p->sessions)); /* touched as it is used */
	return p->sessions ? ERR_NONE : ERR_NO_MEMORY;
}

static enum err map_session(struct mempool *p, uint32_t id, struct why *why)
{
	char name[BACKING_NAME_MAX];
	void *lanes;
	session_name(name, id);
	enum err e = p->b->ops->map(p->b, name, mempool_lane_bytes(&p->super), &lanes, why);
	if (e == ERR_NONE)
		p->sessions[p->n_sessions++] = (struct session){ .id = id, .lanes = lanes };
	return e;
}

static void drop_session(struct mempool *p, uint32_t i)
{
	p->b->ops->unmap(p->b, p->sessions[i].lanes, mempool_lane_bytes(&p->super));
	p->sessions[i] = p->sessions[--p->n_sessions];
}

void mempool_sessions_fini(struct mempool *p)
{
	while (p->n_sessions > 0)
		drop_session(p, p->n_sessions - 1);
	free(p->sessions);
	p->sessions = NULL;
	free(p->own_lanes);
	p->own_lanes = NULL;
}

enum err mempool_own_lanes(struct mempool *p, uint32_t n, struct pool_lane **out)
{
	assert(!p->own_lanes);
	p->own_lanes = calloc(n, sizeof(*p->own_lanes));
	if (!p->own_lanes)
		return ERR_NO_MEMORY;
	p->n_own_lanes = n;
	*out = p->own_lanes;
	return ERR_NONE;
}

const struct pool_ctl *mempool_ctl(const struct mempool *p)
{
	return p->ctl;
}

uint64_t mempool_generation(const struct mempool *p, uint32_t slot, bool *unverified)
{
	uint64_t g = slot < p->super.n_slots ? shm_acquire_u64(&p->gen[slot]) : 0;
	*unverified = (g & POOL_GEN_UNVERIFIED) != 0;
	return g & ~POOL_GEN_UNVERIFIED;
}

/* ---- a start ---- */

struct found {
	struct mempool *p;
	struct mempool_start *start;
	enum err err;
	struct why *why;
};

/* A file of the wrong size whose client lives: nobody can say what it writes. */
static enum err take_found(struct found *f, const char *name, uint32_t id)
{
	struct mempool *p = f->p;
	uint64_t bytes = 0;
	if (p->b->ops->session_gone(p->b, name)) {
		f->start->sessions_ended++;
		return p->b->ops->remove(p->b, name, f->why);
	}
	enum err e = p->b->ops->size(p->b, name, &bytes, f->why);
	if (e)
		return e;
	if (bytes != mempool_lane_bytes(&p->super) || p->n_sessions == MEMPOOL_SESSIONS_MAX)
		return why_set(
			f->why, ERR_CORRUPT,
			"pool file %s: %llu bytes, not %llu, or more than %d sessions; stop the processes that use the pool",
			name, (unsigned long long)bytes,
			(unsigned long long)mempool_lane_bytes(&p->super),
			MEMPOOL_SESSIONS_MAX);
	f->start->sessions++;
	return map_session(p, id, f->why);
}

static void on_name(void *arg, const char *name)
{
	struct found *f = arg;
	uint32_t id = session_of_name(name);
	if (id != 0 && f->err == ERR_NONE)
		f->err = take_found(f, name, id);
}

enum err sessions_recover(struct mempool *p, struct mempool_start *start, struct why *why)
{
	struct found f = { .p = p, .start = start, .why = why };
	enum err e = grow(p);
	if (e == ERR_NONE)
		e = p->b->ops->list(p->b, on_name, &f, why);
	return e ? e : f.err;
}

/* ---- new ones ---- */

static void random_bytes(struct mempool *p, void *out, size_t n)
{
	if (p->random)
		p->random(p->random_ctx, out, n);
	else
		while (getrandom(out, n, 0) != (ssize_t)n)
			continue;
}

static uint32_t new_id(struct mempool *p)
{
	uint32_t id;
	do
		random_bytes(p, &id, sizeof(id));
	while (id == 0);
	return id;
}

static void close_fds(struct shmpool_fds *f, uint32_t n_data)
{
	int *const one[] = { &f->ctl, &f->gen, &f->session };
	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		if (*one[i] >= 0)
			close(*one[i]);
	for (uint32_t i = 0; i < n_data; i++)
		if (f->data[i] >= 0)
			close(f->data[i]);
}

static void fill_sizes(const struct mempool *p, uint32_t id, struct shmpool_fds *f)
{
	*f = (struct shmpool_fds){ .n_segments = p->super.n_segments,
				   .n_slots = p->super.n_slots,
				   .n_lanes = p->super.n_lanes,
				   .n_shards = p->super.n_shards,
				   .id = id,
				   .ctl = -1,
				   .gen = -1,
				   .session = -1 };
	memcpy(f->pool, p->super.pool, sizeof(f->pool));
	for (uint32_t i = 0; i < MEMPOOL_SEGMENTS_MAX; i++) {
		f->data[i] = -1;
		f->bytes[i] = i < f->n_segments ? p->super.segment_bytes : 0;
	}
}

static enum err open_fds(struct mempool *p, bool write, struct shmpool_fds *f, struct why *why)
{
	enum err e = p->b->ops->fd(p->b, "ctl", false, &f->ctl, why);
	if (e == ERR_NONE)
		e = p->b->ops->fd(p->b, "gen", false, &f->gen, why);
	for (uint32_t i = 0; i < f->n_segments && e == ERR_NONE; i++) {
		char name[BACKING_NAME_MAX];
		(void)snprintf(name, sizeof(name), "data.%u", i);
		e = p->b->ops->fd(p->b, name, write, &f->data[i], why);
	}
	return e;
}

/* A file of a name that nobody has: 2^32 ids, at most some thousands taken. */
static enum err make_file(struct mempool *p, uint32_t *id, char name[BACKING_NAME_MAX],
			  struct why *why)
{
	enum { TRIES = 16 };
	struct why inner;
	enum err e = ERR_EXISTS;
	for (int i = 0; i < TRIES && e == ERR_EXISTS; i++) {
		inner = (struct why){ 0 };
		*id = new_id(p);
		session_name(name, *id);
		e = p->b->ops->create(p->b, name, mempool_lane_bytes(&p->super), &inner);
	}
	return e ? why_set(why, e, "%s", inner.text) : ERR_NONE;
}

static enum err fill_file(struct mempool *p, const char *name, bool write,
			  struct shmpool_fds *f, struct why *why)
{
	uint64_t bytes = mempool_lane_bytes(&p->super);
	enum err e = p->b->ops->reserve(p->b, name, 0, bytes, why);
	if (e == ERR_NONE)
		e = p->b->ops->session_lock(p->b, name, &f->session, why);
	if (e == ERR_NONE)
		e = open_fds(p, write, f, why);
	return e == ERR_NONE ? map_session(p, f->id, why) : e;
}

enum err mempool_session(struct mempool *p, bool write, uint32_t *id, struct shmpool_fds *fds,
			 struct why *why)
{
	char name[BACKING_NAME_MAX];
	struct shmpool_fds f;
	uint32_t new;
	if (p->n_sessions >= p->sessions_max)
		sessions_sweep(p, p->n_sessions);
	if (p->n_sessions >= p->sessions_max)
		return why_set(why, ERR_BUSY,
			       "pool: %u local clients are attached, no more are let in",
			       p->n_sessions);
	enum err e = make_file(p, &new, name, why);
	if (e)
		return e;
	fill_sizes(p, new, &f);
	e = fill_file(p, name, write, &f, why);
	if (e) {
		close_fds(&f, f.n_segments);
		(void)p->b->ops->remove(p->b, name, NULL);
		return e;
	}
	*id = new;
	*fds = f;
	return ERR_NONE;
}

enum err mempool_attach(struct mempool *p, uint32_t session, struct shmpool **out)
{
	struct shmpool_view v = { .ctl = p->ctl,
				  .gen = p->gen,
				  .n_segments = p->super.n_segments,
				  .n_slots = p->super.n_slots,
				  .n_lanes = p->super.n_lanes,
				  .session = session,
				  .backing = p->b,
				  .writable = true };
	memcpy(v.pool, p->super.pool, sizeof(v.pool));
	for (uint32_t i = 0; i < v.n_segments; i++) {
		v.data[i] = p->data[i];
		v.bytes[i] = p->super.segment_bytes;
	}
	for (uint32_t i = 0; i < p->n_sessions; i++)
		if (p->sessions[i].id == session)
			v.lanes = p->sessions[i].lanes;
	return v.lanes ? shmpool_new_view(&v, out) : ERR_NOT_FOUND;
}

/* ---- ends ---- */

bool session_ended(struct mempool *p, uint32_t i)
{
	char name[BACKING_NAME_MAX];
	session_name(name, p->sessions[i].id);
	p->sessions[i].hint = false;
	if (!p->b->ops->session_gone(p->b, name))
		return false;
	(void)p->b->ops->remove(p->b, name, NULL); /* left over: the next start removes it */
	drop_session(p, i);
	return true;
}

void sessions_sweep(struct mempool *p, uint32_t n)
{
	for (uint32_t i = p->n_sessions; i-- > 0;) /* one from the end takes the place of i */
		if (p->sessions[i].hint)
			(void)session_ended(p, i);
	for (; n > 0 && p->n_sessions > 0; n--) {
		p->next_look = p->next_look % p->n_sessions;
		if (!session_ended(p, p->next_look))
			p->next_look++;
	}
}

void mempool_session_hint(struct mempool *p, uint32_t id)
{
	for (uint32_t i = 0; i < p->n_sessions; i++)
		if (p->sessions[i].id == id)
			p->sessions[i].hint = true;
}

uint32_t mempool_sessions(const struct mempool *p)
{
	return p->n_sessions;
}
