/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec on a hot batch: 128 items of key, size, digest and two replica descriptors, against
 * msgpack-c on the same bytes. The messages are declared here with the same rows as the wire's.
 */
#include "bench.h"
#include "proto/gen.h"

#include <msgpack.h>
#include <stdio.h>

#define N_ITEMS	  128
#define N_BATCHES 16 /* in turn: one alone would teach the branch predictor its numbers */

/* clang-format off */
#define MSG_PLACE(F) \
	F(u32, holder,     1, 0, "number of the holder") \
	F(u32, segment,    1, 0, "segment of its pool") \
	F(u64, offset,     1, 0, "bytes from the segment's start") \
	F(u64, bytes,      1, 0, "length") \
	F(u32, slot,       1, 0, "slot of the pool") \
	F(u64, generation, 1, 0, "generation of the slot")

#define MSG_ITEM(F) \
	F(bin,         key,    1, 1024, "object key") \
	F(u64,         size,   1, 0,    "bytes") \
	F(id16,        digest, 1, 0,    "of the content") \
	F(list(place), places, 1, 16,   "replicas")

#define MSG_OBJECTS(F) \
	F(list(item),  items,  1, 4096, "the batch")

#define BENCH_MESSAGES(M) \
	M(place, PLACE, "A replica.") \
	M(item,  ITEM,  "An object.") \
	M(objects, OBJECTS, "A batch of objects.")
/* clang-format on */

BENCH_MESSAGES(WIRE_DECLARE)
BENCH_MESSAGES(WIRE_DEFINE)

struct batch {
	struct msg_place places[N_ITEMS][2];
	struct msg_item items[N_ITEMS];
	char keys[N_ITEMS][64];
	struct msg_objects m;
	struct buf wire;
};

struct work {
	struct batch batches[N_BATCHES];
	size_t turn;
	struct buf out;
	struct arena arena;
	msgpack_sbuffer sbuf;
	msgpack_zone zone;
	uint64_t sum;
};

static struct batch *next(struct work *w)
{
	return &w->batches[w->turn++ % N_BATCHES];
}

static uint64_t mix(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return *s >> 17;
}

/* Numbers of every width, as a pool has them: offsets to 64 GiB, sizes to 2 MiB. */
static void fill(struct batch *b, uint64_t seed)
{
	uint64_t s = seed;
	for (size_t i = 0; i < N_ITEMS; i++) {
		struct msg_item *it = &b->items[i];
		int n = snprintf(b->keys[i], sizeof(b->keys[i]), "kv/llama/%016llx/%05zu",
				 (unsigned long long)mix(&s), i);
		it->key = BYTES(b->keys[i], (size_t)n);
		it->size = mix(&s) % (2u << 20);
		memcpy(it->digest, b->keys[i] + 9, 16);
		for (size_t k = 0; k < 2; k++)
			b->places[i][k] = (struct msg_place){
				.holder = (uint32_t)(mix(&s) % 1000),
				.segment = (uint32_t)(mix(&s) % 64),
				.offset = mix(&s) % (64ull << 30),
				.bytes = it->size,
				.slot = (uint32_t)(mix(&s) % 8000000),
				.generation = mix(&s) % 100000,
			};
		it->places = (struct list_place){ b->places[i], 2 };
	}
	b->m.items = (struct list_item){ b->items, N_ITEMS };
}

/* ---- ours ---- */

static void encode(void *arg)
{
	struct work *w = arg;
	buf_clear(&w->out);
	enc_objects(&w->out, &next(w)->m);
	bench_keep(w->out.p);
}

static uint64_t touch(const struct msg_objects *m)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < m->items.n; i++) {
		const struct msg_item *it = &m->items.p[i];
		sum += it->size + it->key.n + it->digest[0];
		for (size_t k = 0; k < it->places.n; k++)
			sum += it->places.p[k].offset + it->places.p[k].slot;
	}
	return sum;
}

static void decode(void *arg)
{
	struct work *w = arg;
	struct msg_objects m;
	struct dec d = DEC_INIT(buf_bytes(&next(w)->wire), &w->arena, NULL);
	arena_clear(&w->arena);
	if (dec_objects(&d, &m) != ERR_NONE)
		abort();
	w->sum = touch(&m);
}

/* ---- msgpack-c ---- */

static void pack_item(msgpack_packer *p, const struct msg_item *it)
{
	msgpack_pack_array(p, 4);
	msgpack_pack_bin_with_body(p, it->key.p, it->key.n);
	msgpack_pack_uint64(p, it->size);
	msgpack_pack_bin_with_body(p, it->digest, 16);
	msgpack_pack_array(p, it->places.n);
	for (size_t k = 0; k < it->places.n; k++) {
		const struct msg_place *r = &it->places.p[k];
		msgpack_pack_array(p, 6);
		msgpack_pack_uint32(p, r->holder);
		msgpack_pack_uint32(p, r->segment);
		msgpack_pack_uint64(p, r->offset);
		msgpack_pack_uint64(p, r->bytes);
		msgpack_pack_uint32(p, r->slot);
		msgpack_pack_uint64(p, r->generation);
	}
}

static void peer_encode(void *arg)
{
	struct work *w = arg;
	const struct batch *b = next(w);
	msgpack_packer p;
	msgpack_sbuffer_clear(&w->sbuf);
	msgpack_packer_init(&p, &w->sbuf, msgpack_sbuffer_write);
	msgpack_pack_array(&p, 1);
	msgpack_pack_array(&p, N_ITEMS);
	for (size_t i = 0; i < N_ITEMS; i++)
		pack_item(&p, &b->items[i]);
	bench_keep(w->sbuf.data);
}

static uint64_t walk_item(const msgpack_object *it)
{
	const msgpack_object *f = it->via.array.ptr, *r = f[3].via.array.ptr;
	uint64_t sum = f[1].via.u64 + f[0].via.bin.size + (uint8_t)f[2].via.bin.ptr[0];
	for (size_t k = 0; k < f[3].via.array.size; k++)
		sum += r[k].via.array.ptr[2].via.u64 + r[k].via.array.ptr[4].via.u64;
	return sum;
}

static void peer_decode(void *arg)
{
	struct work *w = arg;
	const struct batch *b = next(w);
	msgpack_object o;
	size_t off = 0;
	uint64_t sum = 0;
	msgpack_zone_clear(&w->zone);
	if (msgpack_unpack((const char *)b->wire.p, b->wire.n, &off, &w->zone, &o) !=
	    MSGPACK_UNPACK_SUCCESS)
		abort();
	const msgpack_object *items = &o.via.array.ptr[0];
	for (size_t i = 0; i < items->via.array.size; i++)
		sum += walk_item(&items->via.array.ptr[i]);
	w->sum = sum;
}

static double encode_ns(void *arg)
{
	return bench_loop_ns(encode, arg, 50) / N_ITEMS;
}
static double decode_ns(void *arg)
{
	return bench_loop_ns(decode, arg, 50) / N_ITEMS;
}
static double peer_encode_ns(void *arg)
{
	return bench_loop_ns(peer_encode, arg, 50) / N_ITEMS;
}
static double peer_decode_ns(void *arg)
{
	return bench_loop_ns(peer_decode, arg, 50) / N_ITEMS;
}

/* Both sides must have done the same work, or the ratio means nothing. */
static void check(struct work *w, size_t i)
{
	struct batch *b = &w->batches[i];
	uint64_t sum;
	w->turn = i;
	encode(w);
	w->turn = i;
	peer_encode(w);
	b->wire = BUF_INIT(WIRE_MESSAGE_MAX);
	buf_put(&b->wire, w->out.p, w->out.n);
	w->turn = i;
	decode(w);
	sum = w->sum;
	w->turn = i;
	peer_decode(w);
	if (sum == w->sum && w->out.n == w->sbuf.size &&
	    memcmp(w->out.p, w->sbuf.data, w->out.n) == 0)
		return;
	fprintf(stderr, "the two codecs differ\n");
	abort();
}

int main(int argc, char **argv)
{
	static struct work w;
	char note[96];
	size_t bytes = 0;
	w.out = BUF_INIT(WIRE_MESSAGE_MAX);
	w.arena = ARENA_INIT(1 << 20);
	msgpack_sbuffer_init(&w.sbuf);
	msgpack_zone_init(&w.zone, 64 << 10);
	for (size_t i = 0; i < N_BATCHES; i++) {
		fill(&w.batches[i], i + 42);
		check(&w, i);
		bytes += w.batches[i].wire.n;
	}
	snprintf(note, sizeof(note), "batches of %d items, %zu bytes, %d in turn", N_ITEMS,
		 bytes / N_BATCHES, N_BATCHES);
	const struct bench_row rows[] = {
		{ "wire.encode_item", "ns", true, encode_ns, peer_encode_ns, "msgpack-c", 20,
		  note },
		{ "wire.decode_item", "ns", true, decode_ns, peer_decode_ns, "msgpack-c", 20,
		  note },
	};
	return bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
}
