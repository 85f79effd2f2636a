/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/sp_frame.h"

#include <endian.h>
#include <string.h>

void sp_greeting(uint8_t out[SP_GREETING], uint16_t proto)
{
	const uint8_t g[SP_GREETING] = { 0, 'S', 'P', 0, (uint8_t)(proto >> 8), (uint8_t)proto,
					 0, 0 };
	memcpy(out, g, sizeof(g));
}

size_t sp_frame_hdr(uint8_t out[SP_FRAME_HDR_MAX], bool ipc, uint64_t len)
{
	uint64_t be = htobe64(len);
	out[0] = 1;
	memcpy(out + ipc, &be, 8);
	return 8u + ipc;
}

bool sp_rx_fini(struct sp_rx *rx)
{
	bool held = rx->frame != NULL;
	if (held)
		*rx->held -= rx->frame_len;
	free(rx->rest);
	free(rx->frame);
	rx->rest = rx->frame = NULL;
	rx->n_rest = 0;
	return held;
}

uint8_t *sp_rx_room(struct sp_rx *rx, uint8_t *scratch, size_t scratch_size, size_t *room)
{
	if (rx->frame) {
		*room = rx->frame_len - rx->frame_n;
		return rx->frame + rx->frame_n;
	}
	assert(rx->n_rest < scratch_size);
	if (rx->n_rest > 0)
		memcpy(scratch, rx->rest, rx->n_rest);
	*room = scratch_size - rx->n_rest;
	return scratch + rx->n_rest;
}

static enum err bad(const char **text, enum err e, const char *phrase)
{
	if (text)
		*text = phrase;
	return e;
}

/* Garbage shows in its first byte already: nobody waits for eight. */
static enum err greet(struct sp_rx *rx, const uint8_t *p, size_t n, const char **text)
{
	uint8_t want[SP_GREETING];
	sp_greeting(want, rx->peer_proto);
	size_t have = MIN_OF(n, (size_t)SP_GREETING);
	if (memcmp(p, want, MIN_OF(have, (size_t)4)) != 0)
		return bad(text, ERR_BAD_MESSAGE, "the peer does not speak SP");
	if (memcmp(p, want, have) != 0)
		return bad(text, ERR_BAD_MESSAGE,
			   rx->peer_proto == SP_PROTO_REQ
				   ? "the peer's SP protocol is not REQ"
				   : "the peer's SP protocol is not REP");
	rx->greeted = have == SP_GREETING;
	return ERR_NONE;
}

/* A large frame was announced; p holds its first n bytes. */
static enum err begin_large(struct sp_rx *rx, size_t len, const uint8_t *p, size_t n,
			    const char **text)
{
	if (*rx->held + len > rx->held_max && *rx->held > 0) {
		rx->stop = rx->starved = true;
		return ERR_NONE;
	}
	rx->frame = malloc(len);
	if (!rx->frame)
		return bad(text, ERR_NO_MEMORY, "no memory for a frame");
	*rx->held += len;
	rx->frame_len = len;
	rx->frame_n = n;
	memcpy(rx->frame, p, n);
	return ERR_NONE;
}

/* The length at p, checked. */
static enum err frame_len(const struct sp_rx *rx, const uint8_t *p, size_t *len,
			  const char **text)
{
	uint64_t be;
	memcpy(&be, p + rx->ipc, 8);
	uint64_t v = be64toh(be);
	if (v > rx->max)
		return bad(text, ERR_TOO_LARGE, "a frame is larger than the limit");
	if (v < 4)
		return bad(text, ERR_BAD_MESSAGE, "a frame is too short for a request id");
	*len = (size_t)v;
	return ERR_NONE;
}

/* Delivers the whole frames of p[0..n); *used is what is done with. */
static enum err parse(struct sp_rx *rx, const uint8_t *p, size_t n, size_t *used,
		      const char **text)
{
	size_t at = 0, hdr = 8u + rx->ipc;
	enum err e = ERR_NONE;
	if (!rx->greeted) {
		e = greet(rx, p, n, text);
		at = rx->greeted ? SP_GREETING : 0;
	}
	while (e == ERR_NONE && rx->greeted && !rx->stop && at < n) {
		size_t len;
		if (rx->ipc && p[at] != 1)
			return bad(text, ERR_BAD_MESSAGE, "an ipc frame does not begin with 1");
		if (n - at < hdr)
			break;
		e = frame_len(rx, p + at, &len, text);
		if (e != ERR_NONE)
			break;
		size_t have = n - at - hdr;
		if (have >= len) {
			at += hdr + len;
			rx->on_frame(rx, BYTES(p + at - len, len), NULL);
			continue;
		}
		if (len > SP_SMALL) {
			e = begin_large(rx, len, p + at + hdr, have, text);
			at = rx->frame ? n : at;
		}
		break;
	}
	*used = at;
	return e;
}

/* p is scratch or the old rest; in both cases what stays gets memory of its size. */
static enum err keep_rest(struct sp_rx *rx, const uint8_t *p, size_t n, const char **text)
{
	uint8_t *old = rx->rest;
	rx->rest = NULL;
	rx->n_rest = 0;
	if (n > 0) {
		rx->rest = malloc(n);
		if (rx->rest) {
			memcpy(rx->rest, p, n);
			rx->n_rest = n;
		}
	}
	free(old);
	return n > 0 && !rx->rest ? bad(text, ERR_NO_MEMORY, "no memory for a cut frame")
				  : ERR_NONE;
}

static void end_large(struct sp_rx *rx)
{
	uint8_t *frame = rx->frame;
	rx->frame = NULL;
	rx->on_frame(rx, BYTES(frame, rx->frame_len), frame);
}

enum err sp_rx_feed(struct sp_rx *rx, uint8_t *scratch, size_t n, const char **text)
{
	if (rx->frame) {
		rx->frame_n += n;
		if (rx->frame_n == rx->frame_len)
			end_large(rx);
		return ERR_NONE;
	}
	size_t used, all = rx->n_rest + n;
	enum err e = parse(rx, scratch, all, &used, text);
	if (e != ERR_NONE || (used == all && !rx->rest))
		return e;
	return keep_rest(rx, scratch + used, all - used, text);
}

enum err sp_rx_resume(struct sp_rx *rx, const char **text)
{
	rx->stop = rx->starved = false;
	if (rx->n_rest == 0)
		return ERR_NONE;
	size_t used;
	enum err e = parse(rx, rx->rest, rx->n_rest, &used, text);
	if (e != ERR_NONE || used == 0)
		return e;
	return keep_rest(rx, rx->rest + used, rx->n_rest - used, text);
}
