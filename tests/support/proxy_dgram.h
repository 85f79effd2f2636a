/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams through the proxy (proxy.h): what comes to one unix socket goes on to another, from a
 * socket of its own for each sender, so that answers find their way back. A cut direction loses what
 * it is given. For beats. At most DGRAM_SENDERS senders; datagrams of others are lost.
 *
 * Thread: the proxy's, under its lock.
 */
#pragma once

#include "base/def.h"

#include <poll.h>

#define DGRAM_SENDERS 16
#define DGRAM_BYTES   4096

struct dgram_route {
	int fd, a, b;	       /* senders on node a, the receiver on b */
	char at[108], to[108]; /* paths */
	struct {
		char path[108], own[112];
		int fd;
	} senders[DGRAM_SENDERS];
	size_t n_senders;
	uint64_t passed, lost;
};

/* Binds `at`; false: the path is taken or too long. */
bool dgram_open(struct dgram_route *r, const char *at, const char *to, int a, int b);
void dgram_close(struct dgram_route *r);
/* Appends what it waits for: at most 1 + DGRAM_SENDERS. Returns how many. */
size_t dgram_poll(const struct dgram_route *r, struct pollfd *out);
/* Forwards all there is. up, down: that direction is whole. */
void dgram_work(struct dgram_route *r, bool up, bool down);
