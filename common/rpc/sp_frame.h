/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SP's bytes on a stream, as nng 1.5 writes and checks them: a greeting of 8 bytes
 * (00 'S' 'P' 00, protocol as two bytes, 00 00) each way, then frames: on ipc one byte 0x01, on both
 * a 64-bit big-endian length, then that many bytes. Pure: no descriptor, so fuzz_sp_server.c and
 * unit tests feed it directly.
 *
 * The first bytes of a frame are SP's own header, big-endian words of 4 bytes: a request has one
 * word with the top bit clear for each device it came through (the pipe to send the answer to),
 * then the request id, top bit set. A reply carries the request's header back (nng, rep.c).
 *
 * I1: a frame up to SP_SMALL bytes is parsed where it was read; a larger one is read straight into
 *     memory of its own, taken only once it has been announced within the limits.
 * I2: after an error, and while stop is set, nothing is delivered.
 *
 * Thread: its owner's.
 */
#pragma once

#include "base/err.h"

#define SP_PROTO_REQ	 0x0030
#define SP_PROTO_REP	 0x0031
#define SP_GREETING	 8
#define SP_HOPS_MAX	 15 /* nng: NNI_MAX_MAX_TTL */
#define SP_SMALL	 (32u << 10)
#define SP_FRAME_HDR_MAX 9

struct sp_rx {
	bool ipc;
	uint16_t peer_proto; /* what the other side must be */
	uint32_t max;	     /* bytes of a frame; may change at any time */
	bool stop;	     /* set by callbacks or the owner; sp_rx_resume goes on */
	bool starved;	     /* stopped because held_max is reached; set with stop */
	bool greeted;
	/* Memory taken for large frames counts here until its owner subtracts it. */
	uint64_t *held, held_max;
	/*
	 * One frame. body: borrowed for the call, or when owned is not NULL inside it: owned,
	 * free(), and body.n to be subtracted from *held then.
	 */
	void (*on_frame)(struct sp_rx *rx, struct bytes body, uint8_t *owned);
	/* private */
	uint8_t *rest; /* a cut small frame, or what a stop left */
	size_t n_rest;
	uint8_t *frame; /* a large one that is being read */
	size_t frame_n, frame_len;
};

/* True when memory that counted as held was given back. */
bool sp_rx_fini(struct sp_rx *rx);
/*
 * Where the next bytes are to be read: into a large frame, or into scratch behind what is left
 * of a cut one. Not while stopped. scratch_size is at least 2 * SP_SMALL.
 */
uint8_t *sp_rx_room(struct sp_rx *rx, uint8_t *scratch, size_t scratch_size, size_t *room);
/*
 * n > 0 bytes were read to where sp_rx_room said, with the same scratch. Delivers every whole frame.
 *
 * ERR_BAD_MESSAGE  not SP, or the wrong protocol    ERR_TOO_LARGE  a frame over max
 * ERR_NO_MEMORY    and text (may be NULL) gets one phrase, static
 */
enum err sp_rx_feed(struct sp_rx *rx, uint8_t *scratch, size_t n, const char **text) MUST_CHECK;
/* Clears stop and starved, delivers what waits. Errors as above. */
enum err sp_rx_resume(struct sp_rx *rx, const char **text) MUST_CHECK;
/* Part of a greeting or a frame is here, the rest is not. */
static inline bool sp_rx_partial(const struct sp_rx *rx)
{
	return rx->n_rest > 0 || rx->frame;
}

/* Writes the greeting of proto. */
void sp_greeting(uint8_t out[SP_GREETING], uint16_t proto);
/* Writes a frame's header for len bytes of body; returns its length, 8 or 9. */
size_t sp_frame_hdr(uint8_t out[SP_FRAME_HDR_MAX], bool ipc, uint64_t len);

/*
 * The header of a request: out is its length in bytes (4 for a direct peer, 4 * SP_HOPS_MAX at most).
 * False: no request id within SP_HOPS_MAX words.
 */
static inline bool sp_req_hdr(struct bytes body, size_t *out)
{
	for (size_t at = 0; at + 4 <= body.n && at < 4 * SP_HOPS_MAX; at += 4) {
		if (body.p[at] & 0x80) {
			*out = at + 4;
			return true;
		}
	}
	return false;
}

static inline uint32_t sp_u32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void sp_put_u32(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 24);
	p[1] = (uint8_t)(v >> 16);
	p[2] = (uint8_t)(v >> 8);
	p[3] = (uint8_t)v;
}
