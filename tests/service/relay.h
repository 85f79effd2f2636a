/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire that misbehaves: a thread between clients and one tcp port of 127.0.0.1, which forwards bytes as
 * they are and, when told, changes one, cuts a connection after so many, or holds everything back.
 * Thread: calls from the test's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct relay;

/* owned, relay_free(). Aborts without a port or a thread. to: the port behind it. */
struct relay *relay_new(unsigned to);
void relay_free(struct relay *r);
unsigned relay_port(const struct relay *r);

/* One bit in each `every` bytes of a direction is changed; 0: none. */
void relay_flip(struct relay *r, bool to_client, uint64_t every);
/* A connection that has moved so many bytes ends; 0: none does. */
void relay_cut(struct relay *r, uint64_t after);
/* Nothing moves, nobody is told. */
void relay_hold(struct relay *r, bool hold);

struct relay_counts {
	uint64_t conns, flipped, cut, bytes;
};
struct relay_counts relay_counts(struct relay *r);

/* A port of 127.0.0.1 that was free just now. */
unsigned relay_free_port(void);
