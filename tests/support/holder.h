/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scripted holder, member of a simulated cluster: a directory in plain memory, the methods of
 * proto/holder.def as far as a master needs them, and a script that makes it slow, wrong or mute. For
 * tests of the master; the transfer-agent is the real one.
 *
 *   static struct holder h0 = { .id = "agent-0", .master = "sim://m0/master", .bytes = 1 << 20 };
 *   cl_add(c, &(struct cl_member_opts){ .name = "h0", .node = "n0", .app = &holder_app, .arg = &h0 });
 *   h0.rule[0] = (struct holder_rule){ .method = METHOD_RETIRE, .times = 2, .err = ERR_BUSY };
 *
 * What is in struct holder outlives the runs, as a pool does (L3). Thread: the simulation's.
 */
#pragma once

#include "proto/messages.h"
#include "store/object.h"
#include "tests/support/cluster.h"

enum { HOLDER_RULES = 8, HOLDER_METHODS_N = 6, HOLDER_KEY_MAX = 128 };

struct holder_slot {
	uint8_t state; /* 0 empty, 1 committed, 2 retired */
	uint8_t reason;
	bool published;
	uint64_t generation, version, size, sum, evict_id;
	struct extent extent;
	char tenant[65];
	uint8_t key[HOLDER_KEY_MAX];
	size_t n_key;
};

/* The next `times` calls of a method; times 0: the rule is over. */
struct holder_rule {
	uint32_t method, times;
	uint32_t skip;	   /* so many calls pass first */
	enum err err;	   /* the reply's status */
	enum err item_err; /* of each item */
	uint32_t delay_ms;
	bool mute;    /* no answer before the run ends */
	bool garbage; /* bytes that are no message */
};

struct holder {
	const char *id, *master;
	uint64_t bytes; /* of its one segment */
	bool unready;	/* says that none of it may be allocated from yet */
	bool shy;	/* does not register by itself */
	bool beats_off; /* from its next start on */
	struct holder_rule rule[HOLDER_RULES];

	/* its pool */
	uint8_t pool[16];
	uint64_t term, adoption, epoch;
	struct holder_slot *slots;
	size_t n_slots;

	/* what it saw: ADOPT INVENTORY RETIRE FREE MARK FENCE */
	struct {
		uint64_t calls, items;
	} got[HOLDER_METHODS_N];
	uint64_t registered, confirmed;
	enum err last_register;
};

extern const struct cl_app holder_app;

/* Frees the pool. */
void holder_fini(struct holder *h);
/* Its machine lost its memory, while it is down: another pool, empty. */
void holder_lose(struct holder *h);
/* A committed slot, as if put long ago; version must be of an older term. */
struct holder_slot *holder_plant(struct holder *h, const char *key, uint64_t version,
				 uint64_t size, bool published);
/* The slot of that key that is committed; NULL. */
const struct holder_slot *holder_find(const struct holder *h, const char *key);
