/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a log and a snapshot (docs/decisions/0002-meta-log.md). A file is sectors of 512
 * bytes, each with a CRC-32C of its own that also covers where it stands and in which store:
 *
 *   sector 0    header: magic, format, kind, store id, first number, chain, durable length
 *   then        frames: one sector with the frame's head and the first bytes of its payload, as
 *               many more as the payload needs; each frame begins a sector, so that no
 *               acknowledged byte is ever written again with others
 *
 * So each sector can be judged alone: whole, never finished (its last byte, a mark, is still
 * zero), or damaged. A frame of which some sectors are whole and the others unfinished was cut
 * off by a crash; a damaged sector is a damaged disk. In a log all sectors up to the durable
 * length were zero and synced before any frame was put there.
 *
 * Pure but for the reader's calls of meta_fs. Thread: the caller's.
 */
#pragma once

#include "base/buf.h"
#include "meta/meta_fs.h"

#define META_SECTOR	 512
#define META_FORMAT	 1
#define META_PAYLOAD_MAX (4u << 20) /* bytes of a frame's payload */
#define META_FIRST_BYTES 455	    /* of the payload in a frame's first sector, */
#define META_MORE_BYTES	 507	    /* in each of the others */
#define META_FRAME_END	 1u	    /* flag: the last frame of a snapshot */

enum meta_kind { META_LOG = 1, META_SNAP = 2 };

struct meta_head {
	enum meta_kind kind;
	uint8_t store[16]; /* random, made with the store: files of two stores never mix */
	uint64_t seq;	  /* log: its first record's number; snapshot: the last one it covers */
	uint32_t chain;	  /* of all that came before */
	uint64_t durable; /* log: length that was zeroed and synced before it got its name */
};

struct meta_frame {
	uint64_t number; /* in its file, from 0 */
	uint64_t first;	 /* log: number of its first record; snapshot: records before it */
	uint32_t n_records, n_bytes, flags;
	uint32_t chain;	  /* of all sectors before it */
	uint64_t durable; /* log: zeroed and synced length when it was written */
};

void meta_head_encode(const struct meta_head *h, uint8_t out[META_SECTOR]);
/* ERR_CORRUPT; ERR_VERSION_MISMATCH: a newer format. `name` for the text. */
enum err meta_head_decode(const uint8_t in[META_SECTOR], const char *name,
			  struct meta_head *out, struct why *why) MUST_CHECK;

/* Sectors of a frame with n payload bytes. */
static inline uint64_t meta_frame_sectors(size_t n)
{
	if (n <= META_FIRST_BYTES)
		return 1;
	return 1 + (n - META_FIRST_BYTES + META_MORE_BYTES - 1) / META_MORE_BYTES;
}
/*
 * Writes the sectors of f, the first of which is number `sector` of its file, to out; returns
 * the chain after it.
 */
uint32_t meta_frame_encode(const uint8_t store[16], uint64_t sector, const struct meta_frame *f,
			   struct bytes payload, uint8_t *out);

/* One record in a payload: 16 bytes of length, type and number, then the body. */
void meta_payload_add(struct buf *b, uint64_t seq, uint32_t type, struct bytes body);
/* Takes one off the front of *payload; false when what is left is none. */
bool meta_payload_next(struct bytes *payload, uint64_t *seq, uint32_t *type,
		       struct bytes *body);

/* ---- reading ---- */

struct meta_reader {
	struct meta_file *file; /* borrowed */
	const char *name;	/* for texts; borrowed */
	struct meta_head head;
	uint64_t size;	  /* of the file */
	uint64_t sector;  /* the next frame's first */
	uint64_t number;  /* of the next frame */
	uint32_t chain;	  /* so far */
	uint64_t durable; /* log: as the last frame says */
	bool torn;  /* log, at its end: an unfinished frame, or what is left of one, follows */
	bool ended; /* snapshot: the END frame was read */
	uint64_t last_sector; /* log: where the last whole frame begins; 0: there is none */
	/* private */
	uint8_t *window;
	uint64_t window_at;
	size_t window_n, window_size;
	struct buf payload;
};

/*
 * Reads the header. r: init, meta_reader_fini() whatever is returned.
 *
 * ERR_CORRUPT           no header of that kind, or a log shorter than its durable length
 * ERR_VERSION_MISMATCH  a newer format
 * ERR_IO, ERR_NO_MEMORY
 */
enum err meta_reader_init(struct meta_reader *r, struct meta_file *file, const char *name,
			  enum meta_kind kind, struct why *why) MUST_CHECK;
void meta_reader_fini(struct meta_reader *r);
/*
 * The next frame; payload is borrowed until the next call.
 *
 * ERR_NOT_FOUND  the end: a log's, torn or not; a snapshot's, after its END frame
 * ERR_CORRUPT    a damaged sector, or a log's whole frame behind an unfinished one
 */
enum err meta_reader_next(struct meta_reader *r, struct meta_frame *f, struct bytes *payload,
			  struct why *why) MUST_CHECK;
