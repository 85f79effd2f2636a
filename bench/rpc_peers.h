/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The systems bench_rpc compares: each a server for a process of its own and a client, echoing 64
 * bytes over tcp or a unix socket with n requests outstanding.
 *
 *   raw    blocking sockets, 4-byte length prefix: the kernel's price alone
 *   uv     the same frames from libuv, writes of a wake in one: the loop's price on top
 *   uvmac  uv with the tags rpc uses, made and checked on both sides
 *   uvspin uvmac that polls before it sleeps, as loop_spin does
 *   eng    the sp engine without the core: SP framing and matching
 *   sp     the rpc core over the sp engine: everything, tags included
 *   nng    the library's REQ and REP contexts, no tags
 *
 * Thread: main's of each process (nng has its own).
 */
#pragma once

#include "base/def.h"

#define PEER_BODY     64
#define PEER_SPIN_US  50 /* the default of spin_us */
#define PEER_OUT_MAX  128
#define PEER_ADDR_MAX 300

struct peer_sys {
	const char *name;
	/* Listens on addr, calls ready with the real address, serves until killed. */
	void (*serve)(const char *addr, void (*ready)(const char *bound));
	/* Connects; NULL: it could not (stderr says why). */
	void *(*open)(const char *addr);
	/* Requests a second, n of them outstanding, over about ms milliseconds; none left after. */
	double (*run)(void *client, unsigned n, unsigned ms);
	void (*close)(void *client);
};

extern const struct peer_sys peer_raw, peer_uv, peer_uvmac, peer_uvspin, peer_eng, peer_sp,
	peer_nng;

/* Seconds of CLOCK_MONOTONIC. */
double peer_now(void);
/* Prints and ends the process with 1. */
void peer_die(const char *what, const char *why) __attribute__((noreturn));
