/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in a segment of the log backend, and at the head of a file of the file backend: heads,
 * footer, trailer. Bytes to structs and back; no I/O. All little-endian, version 1:
 *
 *	segment   4 KiB: magic, version, serial, salt, owner, CRC-32C
 *	record    head 4 KiB | value | pad to 8 | block sums (above 1 MiB) | pad to 4 KiB
 *	deletes   head 4 KiB with the places of up to LOGREC_DELS records
 *	footer    what is live, and all deletes; CRC-32C in the trailer
 *	trailer   the last 4 KiB of a sealed segment
 *
 * A head's CRC covers salt, serial and its own offset too. The salt is random, one a segment: no value can
 * hold a head that looks true (R1), so that a scan may look for heads behind a damaged one.
 *
 * B5: decoders take any bytes; what they accept is in range and inside the bytes given.
 * Thread: any. Pure.
 */
#pragma once

#include "base/buf.h"
#include "store/store.h"

#define LOGREC_BLOCK   4096u
#define LOGREC_DELS    250u /* places in one block of deletes */
#define LOGREC_VERSION 1u

struct logrec_seg {
	uint64_t serial, salt;
	char owner[65];
};
void logrec_seg_put(const struct logrec_seg *s, uint8_t block[LOGREC_BLOCK]);
/* ERR_CORRUPT; ERR_VERSION_MISMATCH for a later version. */
enum err logrec_seg_get(const uint8_t block[LOGREC_BLOCK], struct logrec_seg *out) MUST_CHECK;

/* Where a record stands: the offset of its head. */
struct logrec_place {
	uint64_t serial, off;
};

enum logrec_type { LOGREC_PUT = 1, LOGREC_DEL = 2 };
struct logrec_head {
	enum logrec_type type;
	uint64_t length; /* of the whole record, a multiple of LOGREC_BLOCK */
	/* PUT; id's bytes lie in the block */
	struct store_id id;
	uint64_t size, sum;
	/* DEL */
	uint32_t n_dels;
};
/* The record's bytes: head, value, sums. size at most OBJ_SIZE_MAX. */
uint64_t logrec_length(uint64_t size);
/* The value's bytes and what is behind them, padded. */
static inline uint64_t logrec_body(uint64_t size)
{
	return logrec_length(size) - LOGREC_BLOCK;
}
/* h->id must be valid; length is filled in by the call. */
void logrec_head_put(const struct logrec_head *h, uint64_t salt, struct logrec_place at,
		     uint8_t block[LOGREC_BLOCK]);
/* n 1..LOGREC_DELS. */
void logrec_dels_put(const struct logrec_place *dels, uint32_t n, uint64_t salt,
		     struct logrec_place at, uint8_t block[LOGREC_BLOCK]);
/* ERR_CORRUPT. */
enum err logrec_head_get(const uint8_t block[LOGREC_BLOCK], uint64_t salt,
			 struct logrec_place at, struct logrec_head *out) MUST_CHECK;
/* i < n_dels of a head that was taken. */
struct logrec_place logrec_del(const uint8_t block[LOGREC_BLOCK], uint32_t i);

/* ---- footer ---- */

struct logrec_entry {
	enum logrec_type type;
	/* PUT */
	struct store_id id;
	uint64_t off, size, sum;
	const uint8_t *vector; /* sum_n_blocks(size) words, little-endian, any address */
	/* DEL */
	struct logrec_place del;
};
/* Bytes that an entry takes. */
uint64_t logrec_entry_bytes(const struct store_id *id, uint64_t size);
#define LOGREC_DEL_BYTES 24u
/* vector: NULL for none. Latches in b. */
void logrec_entry_put(struct buf *b, const struct store_id *id, uint64_t off, uint64_t size,
		      uint64_t sum, const uint64_t *vector);
void logrec_entry_put_del(struct buf *b, struct logrec_place del);
/*
 * The entry at *at; moves *at. False at the end, and with *bad where the bytes make no sense. data_end:
 * where records end; an entry is inside.
 */
bool logrec_entry_get(struct bytes footer, size_t *at, uint64_t data_end,
		      struct logrec_entry *out, bool *bad);

struct logrec_trailer {
	uint64_t serial, salt, footer_off, footer_len; /* off: where the records end */
	uint32_t footer_crc;
};
void logrec_trailer_put(const struct logrec_trailer *t, uint8_t block[LOGREC_BLOCK]);
/* file_size: the file's; footer and trailer must fill it to the end. ERR_CORRUPT. */
enum err logrec_trailer_get(const uint8_t block[LOGREC_BLOCK], uint64_t file_size,
			    struct logrec_trailer *out) MUST_CHECK;
#define LOGREC_FOOTER_MAX (256u << 20)

static inline uint64_t logrec_round(uint64_t n)
{
	return (n + LOGREC_BLOCK - 1) & ~(uint64_t)(LOGREC_BLOCK - 1);
}
