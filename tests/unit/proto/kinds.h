/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for tests: every kind, nested in every way; one family at three ages; one kind alone.
 */
#pragma once

#include "proto/rows.h"

/* clang-format off */
#define MSG_LEAF(F) \
	F(u32,         id,      1, 0,    "number") \
	F(bin,         key,     1, 1024, "bytes")

#define MSG_BRANCH(F) \
	F(str,         name,    1, 40,   "text") \
	F(list(leaf),  leaves,  1, 20,   "leaves") \
	F(opt(leaf),   best,    1, 0,    "one leaf or none")

#define MSG_KINDS(F) \
	F(bool,        b,       1, 0,     "bool") \
	F(u8,          u8,      1, 0,     "u8") \
	F(u16,         u16,     1, 0,     "u16") \
	F(u32,         u32,     1, 0,     "u32") \
	F(u64,         u64,     1, 0,     "u64") \
	F(i64,         i64,     1, 0,     "i64") \
	F(f64,         f64,     1, 0,     "f64") \
	F(str,         str,     1, 300,   "str, both sides of its widths") \
	F(bin,         bin,     1, 70000, "bin, both sides of its widths") \
	F(id16,        id,      1, 0,     "id") \
	F(u64s,        u64s,    1, 40,    "numbers") \
	F(strs(40),    strs,    1, 20,    "texts") \
	F(bins(300),   bins,    1, 20,    "runs") \
	F(list(branch), list,   1, 17,    "branches") \
	F(opt(branch), some,    1, 0,     "a branch or none") \
	F(opt(leaf),   none,    1, 0,     "a leaf or none")

/* Three releases of one message: rows are appended, inside its list's items too. */
#define MSG_OLD_ITEM(F) \
	F(u32,         id,      1, 0,    "number")
#define MSG_OLD(F) \
	F(str,         name,    1, 40,   "text") \
	F(list(old_item), items, 1, 8,   "items")

#define MSG_MID_ITEM(F) \
	F(u32,         id,      1, 0,    "number") \
	F(u64,         size,    2, 0,    "bytes")
#define MSG_MID(F) \
	F(str,         name,    1, 40,   "text") \
	F(list(mid_item), items, 1, 8,   "items") \
	F(u64,         limit,   2, 0,    "bytes") \
	F(strs(40),    tags,    2, 8,    "texts")

#define MSG_NEW_ITEM(F) \
	F(u32,         id,      1, 0,    "number") \
	F(u64,         size,    2, 0,    "bytes") \
	F(opt(leaf),   leaf,    3, 0,    "a leaf")
#define MSG_NEW(F) \
	F(str,         name,    1, 40,   "text") \
	F(list(new_item), items, 1, 8,   "items") \
	F(u64,         limit,   2, 0,    "bytes") \
	F(strs(40),    tags,    2, 8,    "texts") \
	F(list(branch), more,   3, 8,    "branches") \
	F(f64,         ratio,   3, 0,    "number")

/* One of each, to be wrong in one way. */
#define MSG_ONE_U8(F)   F(u8,         v, 1, 0, "v")
#define MSG_ONE_U16(F)  F(u16,        v, 1, 0, "v")
#define MSG_ONE_U32(F)  F(u32,        v, 1, 0, "v")
#define MSG_ONE_U64(F)  F(u64,        v, 1, 0, "v")
#define MSG_ONE_I64(F)  F(i64,        v, 1, 0, "v")
#define MSG_ONE_F64(F)  F(f64,        v, 1, 0, "v")
#define MSG_ONE_BOOL(F) F(bool,       v, 1, 0, "v")
#define MSG_ONE_STR(F)  F(str,        v, 1, 5, "v")
#define MSG_ONE_BIN(F)  F(bin,        v, 1, 5, "v")
#define MSG_ONE_ID(F)   F(id16,       v, 1, 0, "v")
#define MSG_ONE_U64S(F) F(u64s,       v, 1, 3, "v")
#define MSG_ONE_STRS(F) F(strs(5),    v, 1, 3, "v")
#define MSG_ONE_BINS(F) F(bins(5),    v, 1, 3, "v")
#define MSG_ONE_LIST(F) F(list(leaf), v, 1, 3, "v")
#define MSG_ONE_OPT(F)  F(opt(leaf),  v, 1, 0, "v")

#define TEST_MESSAGES(M) \
	M(leaf,     LEAF,     "A leaf.") \
	M(branch,   BRANCH,   "A branch.") \
	M(kinds,    KINDS,    "Every kind.") \
	M(old_item, OLD_ITEM, "An item, version 1.") \
	M(old,      OLD,      "Version 1.") \
	M(mid_item, MID_ITEM, "An item, version 2.") \
	M(mid,      MID,      "Version 2.") \
	M(new_item, NEW_ITEM, "An item, version 3.") \
	M(new,      NEW,      "Version 3.") \
	M(one_u8,   ONE_U8,   "u8") \
	M(one_u16,  ONE_U16,  "u16") \
	M(one_u32,  ONE_U32,  "u32") \
	M(one_u64,  ONE_U64,  "u64") \
	M(one_i64,  ONE_I64,  "i64") \
	M(one_f64,  ONE_F64,  "f64") \
	M(one_bool, ONE_BOOL, "bool") \
	M(one_str,  ONE_STR,  "str") \
	M(one_bin,  ONE_BIN,  "bin") \
	M(one_id,   ONE_ID,   "id16") \
	M(one_u64s, ONE_U64S, "u64s") \
	M(one_strs, ONE_STRS, "strs") \
	M(one_bins, ONE_BINS, "bins") \
	M(one_list, ONE_LIST, "list") \
	M(one_opt,  ONE_OPT,  "opt")
/* clang-format on */

TEST_MESSAGES(WIRE_DECLARE)

/* The i-th test message, then those of messages.h; NULL past the last. */
const struct wire_msg *any_message(size_t i);
