/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend on a real loop, and calls that wait: what the conformance suite (test_conform.c) runs over.
 */
#pragma once

#include "store/disk_cut.h"
#include "store/store_fault.h"

/* One way to have a backend: a row each. */
struct conf_row {
	char name[24], backend[8];
	enum store_uring uring;
	bool no_direct;
	bool in_memory; /* on disk_cut.h */
	bool decorated; /* below store_fault.h, nothing armed */
};

struct conf_rig {
	const struct conf_row *row;
	struct loop loop;
	struct log log;
	struct store_opts o; /* may be changed before conf_open */
	struct store_be *be;
	struct disk_cut *disk;
	char dir[64];
	bool opened, closed;
	enum err open_err;
	struct why why;
	uint32_t n_done;
	/* eviction: what was told, and what came of it */
	void (*on_evict)(struct conf_rig *r, struct store_eviction *ev);
	void (*on_evicted)(struct conf_rig *r, const struct store_eviction *ev);
	void *arg;
};

void conf_init(struct conf_rig *r, const struct conf_row *row);
/* Closes what is open, removes the folder, closes the loop. */
void conf_fini(struct conf_rig *r);
enum err conf_open(struct conf_rig *r);
void conf_close(struct conf_rig *r);
/* done of what this rig runs: counts. */
void conf_done(struct store_req *q);
void conf_wait(struct conf_rig *r, uint32_t n_done);

/* These wait; they assert that the call is accepted. */
void conf_put(struct conf_rig *r, struct store_put_item *items, uint32_t n);
void conf_get(struct conf_rig *r, struct store_get_item *items, uint32_t n);
void conf_del(struct conf_rig *r, struct store_del_item *items, uint32_t n);
bool conf_has(struct conf_rig *r, const struct store_id *id);
/* One object: its whole life in one line. */
enum err conf_put_one(struct conf_rig *r, struct store_id id, const void *p, uint64_t n);
/* Compares the bytes when there are any. */
enum err conf_get_one(struct conf_rig *r, struct store_id id, const void *p, uint64_t n);
enum err conf_del_one(struct conf_rig *r, struct store_id id);
/* How many are listed; asserts that none is twice. */
uint32_t conf_count(struct conf_rig *r);

/* Bytes that depend on seed; aligned; owned, free(). */
uint8_t *conf_bytes(uint64_t seed, uint64_t n);
struct store_id conf_id(uint32_t i); /* any number; of the last 4,096 */
