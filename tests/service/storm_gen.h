/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a port has to bear (issue "Ground"): many idle connections, many that send one byte a second,
 * and garbage connections coming all the time. A child process with one epoll, so that the honest
 * client that is measured beside it shares nothing with it but the machine.
 *
 * Loopback and unix sockets only. Counts and times are bounded by the caller.
 */
#pragma once

#include "base/def.h"

#include <sys/socket.h>
#include <sys/types.h>

struct storm_plan {
	struct sockaddr_storage to;
	socklen_t n_to;
	bool dgram;
	uint32_t idle,
		slow; /* connections to hold; one that is closed is opened again, at most */
	uint32_t reopen_per_s;	/* so many a second */
	uint32_t garbage_per_s; /* opened, fed 64 random bytes, closed */
	const char *prefix;	/* what slow ones send, byte for byte, again and again */
	size_t n_prefix;
};

struct storm_counts {
	uint32_t idle, slow; /* open at the end */
	uint64_t opened, refused, closed_by_peer, garbage, bytes;
};

struct storm {
	pid_t pid;
	int ctl, out;
};

/* Starts the child and waits until its connections are open or refused. False: no child. */
bool storm_begin(const struct storm_plan *p, struct storm *s);
/* Ends it and waits for it. */
void storm_end(struct storm *s, struct storm_counts *out);
