/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors as a tree, read by a parser of its own: what it reads is trusted, what is tested with it
 * is not. raw is the value's text, so that a part of a vector can be given to a reader under test.
 * Thread: the test's. Memory: one arena, vec_free().
 */
#pragma once

#include "base/def.h"

enum vec_type { VEC_NULL, VEC_BOOL, VEC_NUM, VEC_STR, VEC_ARR, VEC_OBJ };

struct vec {
	enum vec_type type;
	struct bytes key, str, raw;
	uint64_t num;
	struct vec *kid, *next; /* first child, next sibling */
	uint32_t n;
};

struct vec_file {
	char *text;
	struct vec *root;
	struct vec *nodes; /* of one block */
};

/* tests/vectors/NAME. Ends the process when it cannot be read. */
struct vec_file vec_open(const char *name);
void vec_free(struct vec_file *f);
/* The member of an object; NULL: none. */
const struct vec *vec_get(const struct vec *v, const char *key);
/* As a C string; "" when it is none. */
const char *vec_str(const struct vec *v);
uint64_t vec_num(const struct vec *v, const char *key, uint64_t none);

#define vec_each(it, v) for (const struct vec *it = (v)->kid; it; it = it->next)
