/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a .safetensors file: eight bytes of length, little-endian, then a JSON object with a
 * key a tensor ({"dtype","shape","data_offsets"}) and, perhaps, "__metadata__" (texts, skipped). The
 * tensors' bytes follow the header without a gap, in any order of keys.
 *
 * As strict as the format's own reader, and more: a key twice, an unknown field, an unknown dtype, holes,
 * overlaps, a file that is longer or shorter than its header says are refused.
 *
 * Memory: linear in the header. Thread: a read one may be shared, read-only.
 */
#pragma once

#include "reshard/place.h"

#define ST_HEADER_MAX 100000000u /* bytes; the format's own limit */

struct st_tensor {
	struct bytes name;
	const char *dtype; /* "bfloat16": as placements name it */
	const uint64_t *shape;
	uint64_t begin, end; /* of its bytes, from the header's end on */
	uint32_t itemsize;
	uint8_t n_dims; /* a scalar is carried as shape [1] */
};

struct st_header {
	struct st_tensor *tensors; /* in the order of the header */
	uint32_t n_tensors;
	uint64_t data_at, data_bytes; /* in the file */
	/* private */
	struct arena mem;
};

/* The length that the first eight bytes give, from 2 to ST_HEADER_MAX; 0: that is none. */
uint64_t st_header_bytes(const uint8_t first[8]);
/*
 * text        the header without its eight bytes; borrowed, nothing of it is kept
 * file_bytes  of the whole file
 * out         owned, st_header_free(). Errors as place_read
 */
enum err st_header_read(struct bytes text, uint64_t file_bytes, const struct place_limits *lim,
			struct reject *why, struct st_header **out) MUST_CHECK;
void st_header_free(struct st_header *h);
