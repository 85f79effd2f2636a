/* SPDX-License-Identifier: Apache-2.0 */
#include "store/shmpool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/shm.h"
#include "store/shmpool_priv.h"

struct shmpool {
	struct shmpool_view v;
	uint64_t lanes_taken;	/* bits; any thread */
	struct shmpool_fds fds; /* mapped: session is the lock; closed last */
	uint64_t ctl_bytes, gen_bytes, lane_bytes;
	bool mapped;
};

enum err shmpool_new_view(const struct shmpool_view *v, struct shmpool **out)
{
	struct shmpool *p = calloc(1, sizeof(*p));
	if (!p)
		return ERR_NO_MEMORY;
	p->v = *v;
	*out = p;
	return ERR_NONE;
}

/* ---- mapping ---- */

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_all(struct shmpool_fds *f)
{
	close_fd(&f->ctl);
	close_fd(&f->gen);
	for (uint32_t i = 0; i < MIN_OF(f->n_segments, 64u); i++)
		close_fd(&f->data[i]);
	close_fd(&f->session);
}

static enum err check_sizes(const struct shmpool_fds *f, struct why *why)
{
	bool ok = f->n_segments >= 1 && f->n_segments <= 64 && f->n_slots >= 1 &&
		  f->n_lanes >= 1 && f->n_lanes <= POOL_LANES && f->n_shards >= 1 &&
		  f->n_shards <= OBJ_SHARDS_MAX;
	if (ok)
		return ERR_NONE;
	return why_set(
		why, ERR_INVALID_PARAMS,
		"pool: %u segments (1..64), %u slots, %u lanes (1..%d), %u shards (1..%d)",
		f->n_segments, f->n_slots, f->n_lanes, POOL_LANES, f->n_shards, OBJ_SHARDS_MAX);
}

/* A file shorter than that would end us with SIGBUS. */
static enum err map_file(int fd, const char *name, uint64_t bytes, int prot, void **out,
			 struct why *why)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		return why_set(why, err_from_errno(errno), "pool file %s: %s", name,
			       strerror(errno));
	if ((uint64_t)st.st_size < bytes || bytes == 0)
		return why_set(why, ERR_CORRUPT, "pool file %s: %lld bytes, not %llu", name,
			       (long long)st.st_size, (unsigned long long)bytes);
	void *p = mmap(NULL, bytes, prot, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED)
		return why_set(why, err_from_errno(errno), "pool file %s: cannot be mapped: %s",
			       name, strerror(errno));
	(void)madvise(p, bytes,
		      MADV_DONTFORK); /* I2; a kernel without it copies no page either */
	(void)madvise(p, bytes, MADV_DONTDUMP);
	*out = p;
	return ERR_NONE;
}

static enum err map_pages(struct shmpool *p, struct why *why)
{
	void *ctl = NULL, *gen = NULL, *lanes = NULL;
	enum err e = map_file(p->fds.ctl, "ctl", p->ctl_bytes, PROT_READ, &ctl, why);
	if (e)
		return e;
	p->v.ctl = ctl;
	e = map_file(p->fds.gen, "gen", p->gen_bytes, PROT_READ, &gen, why);
	if (e)
		return e;
	p->v.gen = gen;
	e = map_file(p->fds.session, "ses", p->lane_bytes, PROT_READ | PROT_WRITE, &lanes, why);
	if (e)
		return e;
	p->v.lanes = lanes;
	assert(p->v.ctl);
	if (p->v.ctl->magic == POOL_CTL_MAGIC && p->v.ctl->version == POOL_CTL_VERSION &&
	    p->v.ctl->n_shards == p->fds.n_shards)
		return ERR_NONE;
	return why_set(
		why, ERR_CORRUPT,
		"pool file ctl: not version %d of it with %u shards; is the agent of another release?",
		POOL_CTL_VERSION, p->fds.n_shards);
}

static enum err map_data(struct shmpool *p, struct why *why)
{
	int flags = fcntl(p->fds.data[0], F_GETFL);
	p->v.writable = flags >= 0 && (flags & O_ACCMODE) == O_RDWR;
	int prot = PROT_READ | (p->v.writable ? PROT_WRITE : 0);
	for (uint32_t i = 0; i < p->v.n_segments; i++) {
		void *at = NULL;
		enum err e = map_file(p->fds.data[i], "data", p->fds.bytes[i], prot, &at, why);
		if (e)
			return e;
		p->v.data[i] = at;
		p->v.bytes[i] = p->fds.bytes[i];
	}
	return ERR_NONE;
}

static void unmap_part(const void *at, uint64_t bytes)
{
	if (at)
		(void)munmap((void *)(uintptr_t)at, bytes);
}

static void unmap_all(struct shmpool *p)
{
	unmap_part(p->v.ctl, p->ctl_bytes);
	unmap_part(p->v.gen, p->gen_bytes);
	unmap_part(p->v.lanes, p->lane_bytes);
	for (uint32_t i = 0; i < p->v.n_segments; i++)
		unmap_part(p->v.data[i], p->fds.bytes[i]);
}

static void take_sizes(struct shmpool *p, const struct shmpool_fds *f)
{
	p->fds = *f;
	p->mapped = true;
	p->v.n_segments = f->n_segments;
	p->v.n_slots = f->n_slots;
	p->v.n_lanes = f->n_lanes;
	p->v.session = f->id;
	memcpy(p->v.pool, f->pool, sizeof(p->v.pool));
	p->ctl_bytes = sizeof(struct pool_ctl) + f->n_shards * sizeof(struct pool_ctl_shard);
	p->gen_bytes = (uint64_t)f->n_slots * sizeof(uint64_t);
	p->lane_bytes = (uint64_t)f->n_lanes * sizeof(struct pool_lane);
}

enum err shmpool_map(struct shmpool_fds *fds, struct shmpool **out, struct why *why)
{
	struct shmpool *p = NULL;
	enum err e = check_sizes(fds, why);
	if (e == ERR_NONE && !(p = calloc(1, sizeof(*p))))
		e = ERR_NO_MEMORY;
	if (e) {
		close_all(fds);
		return e;
	}
	take_sizes(p, fds);
	e = map_pages(p, why);
	if (e == ERR_NONE)
		e = map_data(p, why);
	if (e) {
		shmpool_close(p);
		return e;
	}
	for (uint32_t i = 0; i < p->v.n_segments; i++) /* a mapping needs no descriptor */
		close_fd(&p->fds.data[i]);
	close_fd(&p->fds.ctl);
	close_fd(&p->fds.gen);
	*out = p;
	return ERR_NONE;
}

void shmpool_died(struct shmpool *p)
{
	if (!p)
		return;
	if (p->mapped) {
		unmap_all(p);
		close_all(&p->fds); /* the lock last: mappings have gone */
	} else if (p->v.backing) {
		pool_memory_session_killed(p->v.backing, p->v.session);
	}
	free(p);
}

void shmpool_close(struct shmpool *p)
{
	assert(!p || __atomic_load_n(&p->lanes_taken, __ATOMIC_ACQUIRE) == 0);
	shmpool_died(p);
}

/* ---- use ---- */

const struct pool_ctl *shmpool_ctl(const struct shmpool *p)
{
	return p->v.ctl;
}

const uint8_t *shmpool_id(const struct shmpool *p)
{
	return p->v.pool;
}

bool shmpool_writable(const struct shmpool *p)
{
	return p->v.writable;
}

struct pool_lane *shmpool_lane(struct shmpool *p)
{
	uint64_t taken = __atomic_load_n(&p->lanes_taken, __ATOMIC_RELAXED);
	for (;;) {
		unsigned i = ~taken ? (unsigned)__builtin_ctzll(~taken) : 64;
		if (i >= MIN_OF(p->v.n_lanes, (uint32_t)POOL_LANES))
			return NULL;
		if (__atomic_compare_exchange_n(&p->lanes_taken, &taken, taken | 1ull << i,
						false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			return &p->v.lanes[i];
	}
}

void shmpool_lane_done(struct shmpool *p, struct pool_lane *l)
{
	size_t i = (size_t)(l - p->v.lanes);
	assert(i < p->v.n_lanes && shm_get_u64(&l->hazard) == 0);
	__atomic_fetch_and(&p->lanes_taken, ~(1ull << i), __ATOMIC_ACQ_REL);
}

void *shmpool_at(const struct shmpool *p, const struct extent *e)
{
	if (e->segment >= p->v.n_segments || e->offset > p->v.bytes[e->segment] ||
	    e->bytes > p->v.bytes[e->segment] - e->offset)
		return NULL;
	return p->v.data[e->segment] + e->offset;
}

bool shmpool_same(const struct shmpool *p, uint32_t slot, uint64_t generation)
{
	/* the copy's last byte was read before this word is (Reads) */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return slot < p->v.n_slots &&
	       (shm_acquire_u64(&p->v.gen[slot]) & ~POOL_GEN_UNVERIFIED) == generation;
}

bool shmpool_unverified(const struct shmpool *p, uint32_t slot)
{
	return slot >= p->v.n_slots ||
	       (shm_acquire_u64(&p->v.gen[slot]) & POOL_GEN_UNVERIFIED) != 0;
}
