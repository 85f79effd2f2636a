/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's side of a pool on its own host (spec/store.md, Local writers, Reads): the payload files,
 * the generations, the control page and its own hazard page, mapped from descriptors that the agent's
 * socket gave (SCM_RIGHTS). Never the directory.
 *
 *   writer  shm_begin -> copy, shm_look every few MiB -> shm_end -> COMMIT
 *   reader  copy (and verify: shmpool_unverified) -> shm_same (acquire) after the last byte
 *
 * I1: no store into an extent but between shm_begin that said ERR_NONE and shm_end.
 * I2: mappings are MADV_DONTFORK and MADV_DONTDUMP.
 *
 * The functions on pages are inline-free of any system call, so that the model checker and the prefix
 * tests run them over plain memory. Thread: a data thread owns one hazard record (`lane`).
 */
#pragma once

#include "store/object.h"

struct shmpool;

/* The pages, as laid out in memory (version 1; little-endian). */
enum { POOL_RING = 1024, POOL_LANES = 64, POOL_CTL_VERSION = 1 };
#define POOL_CTL_MAGIC 0x6c7463206c6d70ull /* "pml ctl" */
struct pool_ctl {
	uint64_t magic;
	uint32_t version, n_shards;
	struct pool_ctl_shard {
		uint64_t pool_epoch;
		uint64_t revoke_seq;	/* entries ever made; the last is ring[(seq - 1) % n] */
		uint64_t revoked_below; /* the highest version that has left the ring */
		uint64_t ring_n;	/* length in use, 1..POOL_RING */
		uint64_t ring[POOL_RING];
	} shard[];
};
/* A word of the generations: the generation, and in the top bit that the slot was re-adopted and its
 * payload not yet compared with its sum: who reads it does (spec/store.md, Pool). */
#define POOL_GEN_UNVERIFIED (1ull << 63)
struct pool_lane {	     /* a data thread's hazard record */
	uint64_t hazard;     /* version, 0: none */
	uint64_t shard_next; /* shard | n_extents << 32 */
	struct extent extents[OBJ_EXTENTS_MAX];
	uint64_t pad[2];
};

/* V2: extents, then hazard (seq_cst), then the first look, which always reads the ring. ERR_STALE_EPOCH,
 * ERR_STALE_ATTEMPT: cleared, nothing may be written. */
enum err lane_begin(struct pool_lane *l, const struct pool_ctl *ctl, uint32_t shard,
		    uint64_t pool_epoch, uint64_t version, const struct extent *ext, size_t n)
	MUST_CHECK;
/* The record alone, for a writer that is stopped by whoever fences it, and looks at nothing itself. */
void lane_name(struct pool_lane *l, uint32_t shard, uint64_t version, const struct extent *ext,
	       size_t n);
/* A later look, between copy steps. On an error the lane has been cleared. */
enum err lane_look(struct pool_lane *l, const struct pool_ctl *ctl, uint32_t shard,
		   uint64_t pool_epoch, uint64_t version) MUST_CHECK;
/* After the last byte: release. */
void lane_end(struct pool_lane *l);

/* Descriptors and sizes as the agent's socket gave them (shmsock.h). */
struct shmpool_fds {
	uint8_t pool[16];
	uint32_t n_segments, n_slots, n_lanes, n_shards, id; /* id: of the session */
	int ctl, gen, session; /* session: the flock'ed hazard file */
	int data[64];
	uint64_t bytes[64];
};
/* Takes the descriptors, also on an error. ERR_NO_MEMORY, ERR_INVALID_PARAMS, ERR_CORRUPT (why). */
enum err shmpool_map(struct shmpool_fds *fds, struct shmpool **out, struct why *why) MUST_CHECK;
/* Unmaps, then lets go of the lock. No lane may be in use (asserted). NULL is fine. */
void shmpool_close(struct shmpool *p);
/* As the death of its process would: lanes stay as they are. For simulations. */
void shmpool_died(struct shmpool *p);
/* The pool's id, 16 bytes. */
const uint8_t *shmpool_id(const struct shmpool *p);
/* Were the data files given to be written? */
bool shmpool_writable(const struct shmpool *p);

const struct pool_ctl *shmpool_ctl(const struct shmpool *p);
/* A free lane for this thread's copy; NULL: all in use. */
struct pool_lane *shmpool_lane(struct shmpool *p);
void shmpool_lane_done(struct shmpool *p, struct pool_lane *l);
/* Address of an extent, or NULL if it lies outside. */
void *shmpool_at(const struct shmpool *p, const struct extent *e);
/* Is the slot's generation still that one? Acquire: after the last byte was read. */
bool shmpool_same(const struct shmpool *p, uint32_t slot, uint64_t generation);
/* Before a read: must the reader itself compare the bytes with their sum? Also when there is no such slot. */
bool shmpool_unverified(const struct shmpool *p, uint32_t slot);
