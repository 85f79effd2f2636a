/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything lies in a rank's window, and which numbers are allowed (spec/ep.md). The same
 * layout serves the CPU and the GPU; docs/ep.md draws it.
 *
 * A window is one allocation of one rank that its peers map for reading. Only flags are ever
 * written by somebody else, and each writer has lines of its own (I1), so a dead, slow or masked
 * rank cannot damage what belongs to another.
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/err.h"

#define EP_RANKS_MAX   64
#define EP_TOP_K_MAX   32
#define EP_HIDDEN_MAX  16384
#define EP_EXPERTS_MAX 4096
#define EP_TOKENS_MAX  65536
#define EP_SLOTS       2   /* dispatches that may be open at a time */
#define EP_LINE	       128 /* bytes: a flag's own line, so that writers never share one */
#define EP_MAGIC       0x31505045454c4f50ull

/* Flags of a slot, written by a peer into our window. The value: epoch << 40 | count of the slot. */
enum ep_flag {
	EP_PUBLISHED, /* the writer's rows are in its window */
	EP_READ_DONE, /* the writer has gathered our rows */
	EP_Y_READY,   /* the writer's expert outputs are in its window */
	EP_Y_DONE,    /* the writer has reduced our outputs */
	EP_N_FLAGS,
};

struct ep_shape {
	uint32_t n_ranks, n_experts;
	uint32_t max_tokens; /* a rank, a dispatch */
	uint32_t hidden;     /* channels; a multiple of 128 */
	uint32_t max_local;  /* experts of the rank that owns most */
};

/* The start of a window; read by peers when they map it. */
struct ep_window_head {
	uint64_t magic, epoch, bytes;
	struct ep_shape shape;
	uint32_t rank, layout_version;
};

/*
 * Why a rank was masked: the flag that did not come by the deadline (I4), or, with EP_N_FLAGS, that
 * it had gone on to another step while we read its rows (I2). Written by kernels too.
 */
struct ep_missed {
	uint32_t set; /* 1: the rest is valid */
	uint32_t flag, slot, reserved;
	uint64_t want, found; /* layout_stamp of the step waited for, and what was there */
};

/*
 * The start of a slot, written by its owner alone. A reader that finds stamp_head other than it
 * expects, before or after reading, has no valid rows (I2).
 */
struct ep_slot_head {
	uint64_t stamp_head; /* before the first byte of a step is written */
	uint64_t stamp_tail; /* after the last */
	uint32_t n_tokens, top_k, n_experts, fp8;
};

/* Byte offsets from the start of a window; every one a multiple of 128. */
struct ep_layout {
	uint64_t flags; /* [EP_SLOTS][EP_N_FLAGS][n_ranks] lines */
	uint64_t slot[EP_SLOTS];
	/* from the start of a slot */
	uint64_t topk; /* [max_tokens][EP_TOP_K_MAX] i32, rows packed to top_k */
	uint64_t
		pos; /* the same shape: place of the token among this source's for that expert */
	uint64_t counts; /* [n_experts] i32, tokens this source sends to each */
	uint64_t begin; /* [max_local][n_ranks] i32, where a source's rows start, as receiver */
	uint64_t rows;	/* [max_tokens][row_bytes] */
	uint64_t y;	/* [max_local][n_ranks * max_tokens][hidden] bf16 */
	uint64_t bytes; /* the whole window */
};

/*
 * Checks every number and lays the window out.
 * ERR_INVALID_PARAMS with the value and its range in why; out untouched.
 */
enum err layout_make(const struct ep_shape *s, struct ep_layout *out, struct why *why)
	MUST_CHECK;

static inline uint64_t layout_flag(const struct ep_layout *l, const struct ep_shape *s,
				   uint32_t slot, enum ep_flag f, uint32_t writer)
{
	return l->flags + (((uint64_t)slot * EP_N_FLAGS + f) * s->n_ranks + writer) * EP_LINE;
}

/* fp8: e4m3 [hidden], then f32 scales [hidden/128]; bf16: [hidden]. A multiple of 16. */
static inline uint64_t layout_row_bytes(uint32_t hidden, bool fp8)
{
	return fp8 ? (uint64_t)hidden + hidden / 128 * 4 : (uint64_t)hidden * 2;
}

/* Distance of rows in a window: a row rounded up to 16 bytes. */
static inline uint64_t layout_row_stride(uint32_t hidden, bool fp8)
{
	return (layout_row_bytes(hidden, fp8) + 15) / 16 * 16;
}

static inline uint64_t layout_stamp(uint64_t epoch, uint64_t count)
{
	return epoch << 40 | (count & 0xffffffffffull);
}
