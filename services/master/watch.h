/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What beats say, for the mind: suspect and back as the table decides (L1), away after holder_dead_ms,
 * and the pool_epoch that a beat carries (V10). The table's callback tells of changes; a look at every
 * peer each 250 ms finds epochs, states that came before the mind was there, and holders that called
 * but never beat.
 *
 * Thread: the loop's.
 */
#pragma once

#include "loop/loop.h"

struct mst;
struct beat_peer;

struct mst_watch {
	struct timer timer;
};

void mst_watch_begin(struct mst *m);
void mst_watch_end(struct mst *m);
/* A peer's state or instance changed. */
void mst_watch_peer(struct mst *m, const struct beat_peer *p);
