/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head of any msgpack value: its type and its number. The one place that knows every first
 * byte; the quick paths of prim.h know a few of them. Internal to proto/. Thread: any. Pure.
 */
#pragma once

#include "base/def.h"

enum head_type {
	HEAD_CUT, /* the bytes end inside it */
	HEAD_BAD, /* 0xc1 */
	HEAD_NIL,
	HEAD_BOOL,
	HEAD_UINT, /* not negative, however it was written */
	HEAD_INT,  /* negative */
	HEAD_F32,  /* never seen outside head_read */
	HEAD_F64,
	HEAD_STR,
	HEAD_BIN,
	HEAD_EXT,
	HEAD_ARRAY,
	HEAD_MAP,
};

struct head {
	enum head_type type;
	unsigned bytes; /* of the head; an ext's type byte is one of them */
	uint64_t
		n; /* value; bits of a double; bytes of a run; items of an array, pairs of a map */
};

/* false for HEAD_CUT and HEAD_BAD. Looks at nothing behind the head. */
bool head_read(const uint8_t *p, const uint8_t *end, struct head *h);
