/* SPDX-License-Identifier: Apache-2.0 */
#include "store/super.h"

#include <string.h>

#include "base/crc.h"
#include "store/keyheap.h"

#define SUPER_MAGIC 0x72657075736c6d70ull /* "pmlsuper" */
enum { SUPER_VERSION = 1 };

/* One copy as it lies in the file. */
struct copy {
	uint64_t magic;
	uint32_t version, crc; /* of all behind it */
	struct super s;
	uint8_t zero[SUPER_COPY_BYTES - 16 - sizeof(struct super)];
};
static_assert(sizeof(struct copy) == SUPER_COPY_BYTES && sizeof(struct super) % 8 == 0 &&
		      offsetof(struct super, under) == 72,
	      "no padding: the layout is the file's");

static uint32_t copy_crc(const struct copy *c)
{
	uint32_t crc = crc32c(0, c, offsetof(struct copy, crc));
	return crc32c(crc, &c->s, sizeof(*c) - offsetof(struct copy, s));
}

void super_encode(const struct super *s, uint8_t out[SUPER_COPY_BYTES])
{
	struct copy c;
	memset(&c, 0, sizeof(c));
	c.magic = SUPER_MAGIC;
	c.version = SUPER_VERSION;
	c.s = *s;
	c.crc = copy_crc(&c);
	memcpy(out, &c, sizeof(c));
}

enum err super_check(const struct super *s, struct why *why)
{
	const uint64_t segment_max = 1ull << 46;
	bool ok = s->n_segments >= 1 && s->n_segments <= MEMPOOL_SEGMENTS_MAX &&
		  s->n_slots >= 1 && s->n_slots <= 1u << 30 && s->n_lanes >= 1 &&
		  s->n_lanes <= POOL_LANES && s->n_shards >= 1 &&
		  s->n_shards <= OBJ_SHARDS_MAX && s->segment_bytes >= OBJ_ALIGN &&
		  s->segment_bytes <= segment_max && s->segment_bytes % OBJ_ALIGN == 0 &&
		  s->heap_bytes >= KEYHEAP_PAGE && s->heap_bytes <= segment_max &&
		  s->heap_bytes % KEYHEAP_PAGE == 0;
	if (ok)
		return ERR_NONE;
	return why_set(
		why, ERR_INVALID_PARAMS,
		"pool: %u segments (1..%d) of %llu bytes (4 KiB..64 TiB, by 4 KiB), %u slots (1..2^30), key heap of %llu bytes (by 4 KiB), %u lanes (1..%d), %u shards (1..%d)",
		s->n_segments, MEMPOOL_SEGMENTS_MAX, (unsigned long long)s->segment_bytes,
		s->n_slots, (unsigned long long)s->heap_bytes, s->n_lanes, POOL_LANES,
		s->n_shards, OBJ_SHARDS_MAX);
}

static bool good(const struct copy *c)
{
	return c->magic == SUPER_MAGIC && c->crc == copy_crc(c);
}

enum err super_decode(const uint8_t bytes[SUPER_BYTES], struct super *out, unsigned *which,
		      struct why *why)
{
	struct copy c[2];
	memcpy(c, bytes, sizeof(c));
	if (!good(&c[0]) && !good(&c[1]))
		return why_set(why, ERR_CORRUPT, "neither of its two copies is whole");
	unsigned w = !good(&c[0]) || (good(&c[1]) && c[1].s.seq > c[0].s.seq);
	if (c[w].version != SUPER_VERSION)
		return why_set(why, ERR_VERSION_MISMATCH,
			       "a pool of format %u, this release reads %d", c[w].version,
			       SUPER_VERSION);
	if (super_check(&c[w].s, why) != ERR_NONE)
		return ERR_CORRUPT;
	*out = c[w].s;
	*which = w;
	return ERR_NONE;
}
