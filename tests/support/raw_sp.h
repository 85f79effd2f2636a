/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that writes what it likes: a plain socket beside an rpc_fix, with just enough of SP, HELLO
 * and envelopes to get a session and then break the rules. Thread: the test's.
 */
#pragma once

#include "rpc/rpc_env.h"
#include "rpc_fix.h"

struct raw_sp {
	struct rpc_fix *fix;
	int fd;
	bool ipc;
	uint32_t next_req; /* SP request id without its top bit */
	uint64_t next_id;
	struct auth_session ses;
	struct peer server;
	struct buf buf;
	/* the last reply */
	uint8_t *in; /* owned */
	size_t n_in;
	struct msg_reply reply; /* points into in */
	bool reply_is_plain;
};

/* Connects to f->addr; no byte is sent. */
void raw_open(struct raw_sp *r, struct rpc_fix *f);
void raw_close(struct raw_sp *r);
/* All of p, running the fixture's loop while the socket is full; false when the peer closed. */
bool raw_write(struct raw_sp *r, const void *p, size_t n);
/* Both greetings. */
void raw_greet(struct raw_sp *r);
/* One SP frame. */
bool raw_frame(struct raw_sp *r, const void *p, size_t n);
/* Next frame's body into r->in, running the loop; false: closed, or nothing within ms. */
bool raw_read(struct raw_sp *r, uint32_t ms);
/* The peer closes the connection within ms. */
bool raw_closed_within(struct raw_sp *r, uint32_t ms);
/* Greets and gets a session as role admin. Asserts that it works. */
void raw_hello(struct raw_sp *r);
/*
 * SP frame body of an authentic request, with the session's next number: owned, free().
 */
uint8_t *raw_request(struct raw_sp *r, uint32_t method, uint32_t deadline_ms, struct bytes body,
		     size_t *n);
/* Reads a frame and decodes it into r->reply, checking its tag if it has a session. */
bool raw_reply(struct raw_sp *r, uint32_t ms);
