/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meta store's state the slow, plain way: arrays and loops, written from the rules and not
 * from meta_state.c. And random records over few names, so that they meet.
 */
#pragma once

#include "meta/meta_state.h"

#define MODEL_HOLDERS 4
#define MODEL_TOMBS   4096
#define MODEL_CLAIMS  64
#define MODEL_VIEWS   64

struct model_tomb {
	bool used;
	uint8_t match;
	uint32_t shard;
	char tenant[8], text[8];
	uint64_t ceiling, seq;
};

struct model_holder {
	bool used, away;
	uint64_t away_since, adoption;
	struct {
		uint64_t floor, floor_seq, settled;
	} shards[3];
	struct model_tomb tombs[MODEL_TOMBS];
};

struct model_claim {
	bool used;
	char name[8], owner[8], value[8];
};

struct model_view {
	bool used;
	char group[8];
	uint64_t term, epoch;
	char blob[8];
};

struct model {
	uint64_t term, last_seq;
	struct model_holder holders[MODEL_HOLDERS];
	struct model_claim claims[MODEL_CLAIMS];
	struct model_view views[MODEL_VIEWS];
};

/* A record with the memory of its texts. */
struct model_rec {
	struct meta_rec r;
	char s[4][8];
	struct bytes addr;
};

uint64_t model_rnd(uint64_t *s);
/* A random record; versions grow with *counter. */
void model_random(uint64_t *seed, uint64_t *counter, const struct model *m,
		  struct model_rec *out);
/* Applies; the answer that meta_state_apply has to give. */
enum err model_apply(struct model *m, uint64_t seq, const struct meta_rec *r);
/* Asserts that both say the same about everything (criterion's assertions). */
void model_compare(const struct model *m, const struct meta_state *st);
