/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a world (world.c, world_master.c, world_holder.c) know of each other. */
#pragma once

#include "tests/model/world.h"

#include <string.h>

/* The one that is entered: the models' callbacks come here. */
struct world *world_entered(void);

static inline void msg_free(struct w_msg *m)
{
	free(m->inv);
}

static inline void key_name(unsigned key, char out[4])
{
	memcpy(out, "k0", 3);
	out[1] = (char)('0' + key);
}

static inline struct bytes holder_id(unsigned h)
{
	return h ? BYTES("h1", 2) : BYTES("h0", 2);
}

static const struct bytes tenant = { (const uint8_t *)"t", 1 };

/* world_master.c */
void master_start(struct world *w);
void master_clock(struct world *w);
/* All the sliced work there is now. */
void master_turns(struct world *w);
/* The oldest append is durable. */
void meta_done(struct world *w);
enum err append_apply(struct world *w, struct mind_append *a);
void to_master(struct world *w, const struct w_msg *m);
/* The mind's number of a holder; UINT32_MAX, which none has: it does not know it. */
uint32_t index_of(const struct world *w, unsigned h);

/* world_holder.c */
void holder_start(struct world *w, unsigned i);
void sessions_open(struct w_holder *h);
void to_holder(struct world *w, struct w_msg *m);

/* world_copy.c: a holder that copies */
enum err copying_command(struct world *w, const struct w_msg *c);
void copying_fence(struct w_holder *h, const struct w_msg *c);
void copying_adopted(struct w_holder *h);
void copying_step(struct world *w, unsigned i);
void copying_told(struct world *w, const struct mind_cmd *c);
struct mind_under under_of(const struct w_holder *h);
