/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a data lane with a wire of plain memory between: any size of pieces, bytes flipped on
 * the way, one stored object over several extents behind the server. No socket, no pool.
 */
#pragma once

#include "store/object.h"
#include "xfer/lane_cli.h"
#include "xfer/lane_srv.h"

#define FIX_HOLDER "agent-0123456789abcdef"

struct fix {
	struct keyring *keys;
	struct hello_server *hello;
	struct lane_srv srv;
	struct lane_srv_ops ops;
	struct lane_cli cli;
	/* the object */
	struct lane_obj obj;
	uint8_t *stored; /* all extents, one behind the other with gaps */
	size_t size;
	uint64_t *vector;
	/* what the server's questions get */
	enum lane_open says;
	enum err refuse, look;
	unsigned n_get, n_put, n_look, n_end, n_whole, n_corrupt;
	bool open;
	char ticket[64];
	/* the wire */
	size_t piece;	   /* bytes in one transfer at most; 0: as many as go */
	uint64_t n_to_srv; /* bytes so far */
	uint64_t flip_at;  /* the byte of that number, to the server, is changed; 0: none */
	uint64_t n_to_cli, flip_back_at;
	uint64_t now_ns;
	uint64_t rng;
	/* a get's target */
	uint8_t *got;
	size_t n_got, cap_got, skip_vector;
	uint64_t offsets[64];
	size_t n_frames;
	struct xf_range want[8];
	size_t n_want;
};

/* size: of the object; its bytes lie in n_ext extents, with their vector. */
void fix_init(struct fix *f, size_t size, uint32_t n_ext, bool mac_data);
void fix_fini(struct fix *f);
/* The lane to this tenant's client, ready: HELLO to WELCOME over the wire. */
void fix_connect(struct fix *f, const char *tenant, bool mac_data);
/* Moves bytes until neither end has any to send. Returns how many moved. */
size_t fix_run(struct fix *f);
/* Stored byte i of the object (or its vector). */
uint8_t *fix_at(struct fix *f, size_t i);
void fix_fill(struct fix *f, uint64_t seed);
/* A GET of these ranges, queued and run. The bytes are in f->got. */
enum err fix_get(struct fix *f, const struct xf_range *r, size_t n, bool check);
/* A put of n bytes in frames of at most `frame`, with the vector, run to its END. */
enum err fix_put(struct fix *f, const uint8_t *p, size_t n, size_t frame);
