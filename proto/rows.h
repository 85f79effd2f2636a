/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a row may say. A message is a macro of rows and one line in its file's list:
 *
 *	#define MSG_EXTENT(F) \
 *		F(u32, segment, 1, 0, "segment of the pool") \
 *		F(u64, offset,  1, 0, "bytes from the segment's start")
 *	#define TICKET_MESSAGES(M) \
 *		M(extent, EXTENT, "a range of a pool's segment")
 *
 * F(kind, name, since, max, "doc")
 *   since  wire version that brought the field. Fields are only appended, so it never falls.
 *   max    bytes of a str or bin, items of a list; 0 for the other kinds
 *
 * <sys/socket.h> has MSG_ names of its own (MSG_MORE, MSG_BATCH, MSG_CONFIRM ...): the compiler says
 * so when a message takes one of them.
 *
 * M(name, NAME, "doc") gives struct msg_NAME, enc_NAME(), dec_NAME(), wire_msg_NAME(), the fuzz
 * target's share, the golden bytes' name and a section of docs/wire.md. Messages that others nest
 * stand before them.
 *
 * This file turns kinds and rows into declarations; gen.h into code. Any file may declare messages
 * of its own with them (tests and benchmarks do).
 */
#pragma once

#include "proto/wire.h"

/* clang-format off */
/* One line a kind: name in function names, bytes of one item, C type, tag in tables, nested table. */
#define WIRE_K_bool       boolean,   0,    bool,                    WIRE_BOOL, NULL
#define WIRE_K_u8         u8,        0,    uint8_t,                 WIRE_U8,   NULL
#define WIRE_K_u16        u16,       0,    uint16_t,                WIRE_U16,  NULL
#define WIRE_K_u32        u32,       0,    uint32_t,                WIRE_U32,  NULL
#define WIRE_K_u64        u64,       0,    uint64_t,                WIRE_U64,  NULL
#define WIRE_K_i64        i64,       0,    int64_t,                 WIRE_I64,  NULL
#define WIRE_K_f64        f64,       0,    double,                  WIRE_F64,  NULL
#define WIRE_K_str        str,       0,    struct bytes,            WIRE_STR,  NULL
#define WIRE_K_bin        bin,       0,    struct bytes,            WIRE_BIN,  NULL
#define WIRE_K_id16       id16,      0,    typeof(uint8_t[16]),     WIRE_ID16, NULL
#define WIRE_K_u64s       u64s,      0,    struct u64s,             WIRE_U64S, NULL
#define WIRE_K_strs(each) strs,      each, struct bytes_list,       WIRE_STRS, NULL
#define WIRE_K_bins(each) bins,      each, struct bytes_list,       WIRE_BINS, NULL
#define WIRE_K_list(m)    list_##m,  0,    struct list_##m,         WIRE_LIST, wire_msg_##m
#define WIRE_K_opt(m)     opt_##m,   0,    const struct msg_##m *,  WIRE_OPT,  wire_msg_##m
/* clang-format on */

#define WIRE_TYPE(...)			    WIRE_TYPE_(__VA_ARGS__)
#define WIRE_TYPE_(fn, each, type, tag, of) type

#define WIRE_STRUCT_FIELD(kind, name, since, max, doc) WIRE_TYPE(WIRE_K_##kind) name;

/* For a messages list: the structs and prototypes of each. */
#define WIRE_DECLARE(name, NAME, doc)                                                      \
	struct msg_##name {                                                                \
		MSG_##NAME(WIRE_STRUCT_FIELD)                                              \
	};                                                                                 \
	struct list_##name {                                                               \
		const struct msg_##name *p;                                                \
		size_t n;                                                                  \
	};                                                                                 \
	/* Appends m as a peer of that wire version knows it; latches b's error. */        \
	void enc_##name##_at(struct buf *b, const struct msg_##name *m, uint32_t version); \
	static inline __attribute__((unused)) void enc_##name(struct buf *b,               \
							      const struct msg_##name *m)  \
	{                                                                                  \
		enc_##name##_at(b, m, WIRE_VERSION);                                       \
	}                                                                                  \
	/* Reads all of d; out borrows from d's bytes and arena. */                        \
	enum err dec_##name(struct dec *d, struct msg_##name *out) MUST_CHECK;             \
	const struct wire_msg *wire_msg_##name(void);
