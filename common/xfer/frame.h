/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of a data lane: a tcp connection between a client and an agent that carries payload
 * (design.md section 5; why it is framed so: docs/decisions/0035-data-lanes.md). Little-endian.
 *
 *    0  u32  magic "pmld"        24  u64  offset, in the stored bytes of the object (DATA)
 *    4  u8   version             32  u32  bytes of data behind the header
 *    5  u8   op                  36  u32  status: an error's number (END)
 *    6  u16  flags               40  u64  sum: XXH3-64 of what follows the header
 *    8  u32  request             48  16 B tag: GMAC over bytes 0..47 and the meta, with
 *   12  u32  bytes of meta                XF_MAC_DATA over the data too; zero before WELCOME
 *   16  u64  sequence number
 *
 * A frame has meta (a small body) or data (payload), never both.
 *
 *   client  HELLO        PROVE        GET                   PUT      DATA.. LAST
 *   agent         CHALLENGE    WELCOME    DATA.. END           GO                END
 *
 * HELLO to WELCOME are rpc/auth.h's bodies. GET: a read ticket and ranges; PUT: a write ticket. One
 * request at a time; END with a status ends it. Pure. Thread: any.
 */
#pragma once

#include "base/err.h"

enum {
	XF_HEADER = 64,
	XF_TAGGED = 48, /* of the header, by the tag */
	XF_VERSION = 1,
	XF_META_MAX = 24 << 10,
	XF_DATA_MAX = 1 << 20, /* as large as a block of the checksum vector (T4) */
	XF_RANGES_MAX = 1024,  /* of one GET */
	XF_TAG = 16,
};
#define XF_MAGIC 0x646c6d70u /* "pmld" */

enum xf_op {
	XF_HELLO = 1,
	XF_CHALLENGE,
	XF_PROVE,
	XF_WELCOME,
	XF_GET,
	XF_PUT,
	XF_GO,
	XF_DATA,
	XF_LAST,
	XF_END,
	XF_OPS /* one more than the last */
};

enum {
	XF_MAC_DATA = 1, /* the tag covers the data; in WELCOME: it has to, on this lane */
	XF_CHECK = 2, /* GET: blocks of which a part is asked for are verified where they lie */
	XF_FLAGS = 3,
};

struct xf_head {
	uint8_t op;
	uint16_t flags;
	uint32_t request, meta_bytes, data_bytes, status;
	uint64_t seq, offset, sum;
	uint8_t tag[XF_TAG];
};

/* h is sound (asserted). */
void xf_put(uint8_t out[XF_HEADER], const struct xf_head *h);
/* out is untouched on an error. ERR_BAD_MESSAGE, ERR_VERSION_MISMATCH, ERR_TOO_LARGE (why). */
enum err xf_get(const uint8_t in[XF_HEADER], struct xf_head *out, struct why *why) MUST_CHECK;

struct xf_range {
	uint64_t offset, bytes;
};
/* The meta of a GET: u32 ticket bytes, u32 ranges, the ticket, the ranges. Bytes it takes. */
size_t xf_get_bytes(size_t ticket_bytes, size_t n_ranges);
/* out: that many bytes. */
void xf_put_get(uint8_t *out, struct bytes ticket, const struct xf_range *ranges, size_t n);
/* ticket, ranges: borrowed from meta; a range with xf_range_at. ERR_BAD_MESSAGE: lengths that do not fit. */
enum err xf_get_get(struct bytes meta, struct bytes *ticket, struct bytes *ranges, size_t *n)
	MUST_CHECK;
struct xf_range xf_range_at(struct bytes ranges, size_t i);
