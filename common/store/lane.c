/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer's half of the handshake (spec/store.md, Local writers, with V1, V2, V5). Every word that
 * the other half reads or writes goes through seq_cst operations: the argument is that of two
 * flags, each side sets its own, then looks at the other's.
 */
#include "base/fault.h"
#include "base/shm.h"
#include "store/shmpool.h"

static void put_extents(struct pool_lane *l, uint32_t shard, const struct extent *ext, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		shm_put_u32(&l->extents[i].segment, ext[i].segment);
		shm_put_u64(&l->extents[i].offset, ext[i].offset);
		shm_put_u64(&l->extents[i].bytes, ext[i].bytes);
	}
	shm_put_u64(&l->shard_next, shard | (uint64_t)n << 32);
}

/*
 * What has been revoked so far, then the ring, then revoked_below: a version leaves the ring only after
 * revoked_below has risen to it, so one that is overwritten while we look is seen in one of the
 * two; and what is revoked after our look at the count finds our hazard.
 */
static bool revoked(const struct pool_ctl_shard *s, uint64_t version)
{
	uint64_t n = MIN_OF(shm_seq_get_u64(&s->revoke_seq), shm_seq_get_u64(&s->ring_n));
	n = MIN_OF(n, (uint64_t)POOL_RING);
	for (uint64_t i = 0; i < n; i++)
		if (shm_seq_get_u64(&s->ring[i]) == version)
			return true;
	return version <= shm_seq_get_u64(&s->revoked_below);
}

enum err lane_look(struct pool_lane *l, const struct pool_ctl *ctl, uint32_t shard,
		   uint64_t pool_epoch, uint64_t version)
{
	enum err e = ERR_NONE;
	if (shard >= ctl->n_shards ||
	    shm_seq_get_u64(&ctl->shard[shard].pool_epoch) != pool_epoch)
		e = ERR_STALE_EPOCH;
	else if (revoked(&ctl->shard[shard], version))
		e = ERR_STALE_ATTEMPT;
	if (e != ERR_NONE)
		lane_end(l);
	return e;
}

void lane_name(struct pool_lane *l, uint32_t shard, uint64_t version, const struct extent *ext,
	       size_t n)
{
	assert(version != 0 && n <= OBJ_EXTENTS_MAX && shm_get_u64(&l->hazard) == 0);
	put_extents(l, shard, ext, n);
	(void)shm_swap_u64(&l->hazard, version);
}

enum err lane_begin(struct pool_lane *l, const struct pool_ctl *ctl, uint32_t shard,
		    uint64_t pool_epoch, uint64_t version, const struct extent *ext, size_t n)
{
	lane_name(l, shard, version, ext, n);
	FAULT_AT(put_hazard);
	return lane_look(l, ctl, shard, pool_epoch, version);
}

void lane_end(struct pool_lane *l)
{
	shm_publish_u64(&l->hazard, 0);
}
