/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the sp engine share: the server is rpc_sp.c, its listening sockets are
 * sp_listen.c, the client is sp_peer.c. Thread: the loop's.
 */
#pragma once

#include "rpc/addr.h"
#include "rpc/engine.h"
#include "rpc/sp_pipe.h"

/* ---- sp_listen.c ---- */

struct sp_listener;

struct sp_listener_ops {
	/* A connection, taken: non-blocking, the callee's to close. */
	void (*conn)(struct sp_listener *l, int fd);
	/* One was closed at once, or accept failed: no descriptor, no memory. */
	void (*refused)(struct sp_listener *l, int sys);
	/* The listener is gone when this returns. */
	void (*closed)(struct sp_listener *l);
};

struct sp_listener {
	uv_poll_t poll;
	struct loop *loop;
	const struct sp_listener_ops *ops;
	void *owner;
	struct list node;   /* the owner's */
	struct timer retry; /* accept failed for want of something */
	int fd;
	int spare; /* given up for a moment when descriptors run out */
	bool ipc, closing;
	struct sp_tls_ctx *tls;	      /* tls+tcp: owned */
	char path[ADDR_PATH_MAX + 1]; /* ipc: ours to remove */
	uint64_t dev, ino;
};

/*
 * Binds and listens. bound (may be NULL) gets the real address.
 * out  freed by sp_listener_close, after closed
 *
 * ERR_EXISTS  somebody listens there    ERR_TOO_LARGE  a path too long    and what bind says
 */
enum err sp_listener_new(struct loop *loop, const char *addr, const struct tls_files *tls,
			 const struct sp_listener_ops *ops, void *owner, char *bound,
			 size_t bound_size, struct sp_listener **out, struct why *why)
	MUST_CHECK;
/* Removes the socket file if it is still ours; closed follows. Safe to call twice. */
void sp_listener_close(struct sp_listener *l);

/* The peer of a unix socket, by SO_PEERCRED. */
struct sp_cred {
	int pid;
	uint32_t uid;
};
bool sp_cred_get(const uv_handle_t *h, struct sp_cred *out);

/* ---- sp_peer.c ---- */

enum err sp_dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		 struct why *why) MUST_CHECK;
enum err sp_send(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts, int n)
	MUST_CHECK;
void sp_cancel(struct eng_peer *p, struct eng_xchg *x);
void sp_hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg);
