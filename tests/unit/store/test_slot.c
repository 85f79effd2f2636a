/* SPDX-License-Identifier: Apache-2.0 */
/* One slot and the superblock as bytes: what is written is read, and every damaged bit is seen. */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "tests/support/leak.h"

static uint8_t heap[8192];

/* A slot in s (names in the heap when long is true). */
static void make(struct slot *s, bool long_names, enum slot_state state)
{
	static const struct extent ext[2] = { { 0, 4096, 8192 }, { 3, 64, 64 } };
	char key[1024];
	uint8_t record[SLOT_RECORD_MAX];
	size_t n;
	memset(key, 'k', sizeof(key));
	struct slot_body b = { .version = version_make(3, 17),
			       .size = 8200,
			       .sum = 0x1234567890abcdef,
			       .attempt = 99,
			       .shard = 5,
			       .extents = ext,
			       .n_extents = 2,
			       .tenant = BYTES_STR("default"),
			       .key = BYTES(key, long_names ? 1024 : 20),
			       .opts = { .hard_pin = true, .format = BYTES_STR("f") } };
	memset(b.client, 7, sizeof(b.client));
	cr_assert_eq(slot_record(&b, record, &n, NULL), ERR_NONE);
	cr_assert_eq(n > SLOT_TAIL, long_names);
	slot_fill(s, &b, record, n, long_names ? 4096 : 0);
	if (long_names)
		memcpy(heap + 4096, record, n);
	s->evict_id = state == SLOT_RETIRED ? 12 : 0;
	s->state =
		slot_word(s, state, true, state == SLOT_RETIRED ? RETIRE_EVICTED : RETIRE_NONE);
}

Test(slot, says_what_it_was_told, .timeout = 10)
{
	for (int i = 0; i < 2; i++) {
		struct slot s;
		struct slot_body b;
		make(&s, i, SLOT_COMMITTED);
		cr_assert(slot_sound(&s, heap, sizeof(heap)));
		cr_assert_eq(slot_body(&s, heap, sizeof(heap), &b), ERR_NONE);
		cr_assert_eq(b.version, version_make(3, 17));
		cr_assert_eq(b.shard, 5);
		cr_assert_eq(b.key.n, i ? 1024 : 20);
		cr_assert_eq(b.key.p[b.key.n - 1], 'k');
		cr_assert_eq(b.extents[1].segment, 3);
		cr_assert_eq(b.opts.format.n, 1);
		cr_assert(b.opts.hard_pin && !b.opts.durable);
		cr_assert_eq(b.client[15], 7);
		cr_assert_eq(slot_state(s.state), SLOT_COMMITTED);
		cr_assert(slot_published(s.state));
	}
	NO_LEAKS();
}

static bool covered(const struct slot *s, size_t byte)
{
	bool evict_id = byte >= 8 && byte < 16;
	if (evict_id)
		return slot_state(s->state) == SLOT_RETIRED;
	size_t tail = s->record_bytes <= SLOT_TAIL ? s->record_bytes : 0;
	return byte < offsetof(struct slot, tail) + tail;
}

Test(slot, every_flipped_bit_is_seen, .timeout = 20)
{
	for (int i = 0; i < 4; i++) {
		struct slot s;
		make(&s, i & 1, i & 2 ? SLOT_RETIRED : SLOT_COMMITTED);
		cr_assert(slot_sound(&s, heap, sizeof(heap)));
		for (size_t bit = 0; bit < sizeof(s) * 8; bit++) {
			struct slot bad = s;
			((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1 << bit % 8);
			cr_assert_eq(slot_sound(&bad, heap, sizeof(heap)),
				     !covered(&s, bit / 8), "bit %zu", bit);
		}
		for (size_t at = 0; (i & 1) && at < s.record_bytes; at++) {
			heap[4096 + at] ^= 0x10;
			cr_assert(!slot_sound(&s, heap, sizeof(heap)));
			heap[4096 + at] ^= 0x10;
		}
	}
	NO_LEAKS();
}

Test(slot, a_record_outside_the_heap_is_not_read, .timeout = 10)
{
	struct slot s, bad;
	struct slot_body b;
	make(&s, true, SLOT_COMMITTED);
	const uint64_t places[] = { 8192, 8191, 8192 - 1000, UINT64_MAX, UINT64_MAX - 7, 4 };
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		bad = s;
		bad.record_at = places[i];
		cr_assert_null(slot_names(&bad, heap, sizeof(heap)));
		cr_assert_eq(slot_body(&bad, heap, sizeof(heap), &b), ERR_CORRUPT);
	}
	NO_LEAKS();
}

Test(slot, names_out_of_their_ranges_make_no_record, .timeout = 10)
{
	uint8_t out[SLOT_RECORD_MAX];
	static char many[2000];
	static const struct extent ext[17];
	size_t n = 7;
	const struct slot_body good = { .tenant = BYTES_STR("t"), .key = BYTES_STR("k") };
	struct slot_body bad[6];
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].tenant.n = 0;
	bad[1].tenant = BYTES(many, 65);
	bad[2].key.n = 0;
	bad[3].key = BYTES(many, 1025);
	bad[4].opts.group = BYTES(many, 1025);
	bad[5].extents = ext, bad[5].n_extents = 17;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = { 0 };
		cr_assert_eq(slot_record(&bad[i], out, &n, &why), ERR_INVALID_PARAMS, "%zu", i);
		cr_assert(strstr(why.text, "1024"), "%s", why.text);
		cr_assert_eq(n, 7, "untouched");
	}
	NO_LEAKS();
}

/* ---- super ---- */

static struct super a_super(uint64_t seq)
{
	struct super s = { .seq = seq,
			   .n_segments = 2,
			   .n_slots = 100,
			   .n_lanes = 64,
			   .n_shards = 64,
			   .heap_bytes = 8192,
			   .segment_bytes = 1 << 20 };
	for (unsigned i = 0; i < 64; i++)
		s.under[i] = (struct super_under){ seq, i, seq * 2 + i };
	return s;
}

/* Recovery finds the old or the new state, whole. */
static void assert_one_of(const uint8_t *bytes, const struct super *old,
			  const struct super *new)
{
	struct super s;
	unsigned which;
	struct why why = { 0 };
	cr_assert_eq(super_decode(bytes, &s, &which, &why), ERR_NONE, "%s", why.text);
	const struct super *want = s.seq == new->seq ? new : old;
	cr_assert_eq(memcmp(&s, want, sizeof(s)), 0);
}

Test(super, torn_and_reordered_writes_leave_the_old_or_the_new, .timeout = 20)
{
	enum { SECTOR = 512, N = SUPER_COPY_BYTES / SECTOR };
	uint8_t disk[SUPER_BYTES] = { 0 }, new_bytes[SUPER_COPY_BYTES], torn[SUPER_BYTES];
	struct super old = a_super(1);
	super_encode(&old, disk);
	for (uint64_t seq = 2; seq < 6; seq++) {
		struct super new = a_super(seq);
		uint8_t *to = disk + (seq % 2 ? 0 : SUPER_COPY_BYTES);
		super_encode(&new, new_bytes);
		for (unsigned set = 0; set < 1u << N; set++) { /* sectors that came through */
			memcpy(torn, disk, sizeof(disk));
			for (unsigned i = 0; i < N; i++)
				if (set >> i & 1)
					memcpy(torn + (to - disk) + i * SECTOR,
					       new_bytes + i * SECTOR, SECTOR);
			assert_one_of(torn, &old, &new);
		}
		for (size_t n = 0; n < SUPER_COPY_BYTES; n += 7) { /* torn at any byte */
			memcpy(torn, disk, sizeof(disk));
			memcpy(torn + (to - disk), new_bytes, n);
			assert_one_of(torn, &old, &new);
		}
		memcpy(to, new_bytes, sizeof(new_bytes));
		old = new;
	}
	NO_LEAKS();
}

Test(super, damage_is_told_from_another_release, .timeout = 10)
{
	uint8_t disk[SUPER_BYTES] = { 0 };
	struct super s = a_super(1), out;
	struct why why = { 0 };
	unsigned which;
	cr_assert_eq(super_decode(disk, &out, &which, &why), ERR_CORRUPT);
	super_encode(&s, disk);
	disk[100] ^= 1;
	cr_assert_eq(super_decode(disk, &out, &which, &why), ERR_CORRUPT);
	s.n_lanes = 65; /* a good sum over nonsense */
	super_encode(&s, disk);
	cr_assert_eq(super_decode(disk, &out, &which, &why), ERR_CORRUPT);
	NO_LEAKS();
}
