/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models of the vectors, laid out over ranks: record by record into a placement. The layouts are
 * those of the vectors ("grid TP PP EP", "wide TP DP").
 * Thread: the caller's.
 */
#pragma once

#include "reshard/place.h"
#include "tests/support/vec.h"

struct model_layout {
	bool wide;
	uint64_t tp, pp, ep, dp;
};

/* "grid 8 2 1"; false when it is neither form. */
bool model_layout(const char *text, struct model_layout *out);
/* models: the root of models.json. NULL: no such model. */
const struct vec *model_find(const struct vec *models, const char *name);
enum err model_place(const struct vec *model, const struct model_layout *l,
		     const struct place_limits *lim, struct reject *why, struct place **out);
/* fn(arg, name, rule, layer or -1, expert or -1) for each tensor, in rule order. */
void model_each(const struct vec *model,
		void (*fn)(void *arg, struct bytes name, const struct vec *rule, int64_t layer,
			   int64_t expert),
		void *arg);
