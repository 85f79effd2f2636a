/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store session talks to: a master that keeps a table of objects, and a holder that is the
 * product's own (store/hold.h) over a pool. On any loop: a simulated one (stc_world.h) or one with
 * sockets (store_real.h). A test bends what they answer with `on`, and sees what they were asked.
 *
 * Thread: the loop's.
 */
#pragma once

#include "base/log.h"
#include "rpc/auth.h"
#include "rpc/rpc.h"
#include "store/backing.h"
#include "store/hold.h"

enum { W_OBJECTS = 8192, W_ASKED = 64, W_REPLICAS = 2, W_SLOTS = 16384 };

struct w_object {
	uint8_t key[64];
	size_t n_key;
	uint64_t version, size, sum;
	bool whole;
	struct w_copy {
		uint32_t slot;
		uint64_t generation;
		struct extent ext[OBJ_EXTENTS_MAX];
		size_t n_ext;
	} copies[W_REPLICAS];
	size_t n_copies;
};

struct fake {
	/* set by whoever opens it */
	struct loop *loop;
	struct keyring *keys; /* borrowed */
	const struct log *log;
	struct pool_backing *backing;	       /* taken */
	const char *master_addr, *holder_addr; /* to listen at */
	const char *fd_path;		       /* named in places */
	uint64_t pool_bytes;
	/* The rest is the fake's. */
	struct rpc_server *master, *holder;
	struct mempool *pool;
	struct hold *hold;
	uint64_t term, counter, adoption;
	uint64_t alloc_at;
	uint32_t pieces; /* extents of a grant; 0: 1 */
	uint32_t lease_ms;
	const char *host; /* of the holder */
	struct w_object *objects;
	size_t n_objects;
	/* Looks at a request first; true: it has answered it. May call w_reply_* or rpc_reply. */
	bool (*on)(struct fake *w, uint32_t method, struct rpc_req *r);
	int step;				 /* the test's own, for `on` */
	struct rpc_req *parked;			 /* by `on`; answered at the end */
	uint32_t asked[256];			 /* by method */
	struct msg_remove_item removed[W_ASKED]; /* keys not kept */
	uint64_t removed_term[W_ASKED], attempts[W_ASKED], put_term[W_ASKED];
	uint32_t n_removed, n_attempts;
	uint32_t revoked, progressed, renewed;
	void (*closed)(void *arg);
	void *closed_arg;
};

void fake_open(struct fake *w);
/* Servers end, then closed(arg) runs, then fake_fini may be called. */
void fake_close(struct fake *w, void (*closed)(void *arg), void *arg);
void fake_fini(struct fake *w);

struct w_object *w_find(struct fake *w, const char *key);
/* The holder marks the copy dead and empties its slot, as after a remove: the generation moves. */
void w_free_copy(struct fake *w, struct w_object *o, size_t copy);
/* Another copy of it, made behind everybody's back. */
void w_copy(struct fake *w, struct w_object *o);
/* Another term: the holder is adopted anew, so that its epoch rises. */
void w_new_term(struct fake *w);
/* The holder is adopted anew in this term. */
void w_adopt(struct fake *w);

/* Answers every item of a request of n items with this status. */
void w_reply_results(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms);
void w_reply_grants(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms);
void w_reply_objects(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms);
