/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's data lanes over real sockets on loopback, with a pool in memory, and no master: the test
 * mints tickets and gives the commands. Clients are blocking, for threads of a test's own. No Criterion
 * in here: race programs use it, too.
 */
#pragma once

#include "services/transfer-agent/agent.h"
#include "xfer/lane_cli.h"

enum { DATA_SEGMENT = 8 << 20, DATA_SLOTS = 64, DATA_CONNS = 32 };

struct data_fix {
	struct loop loop;
	struct log_capture lines;
	struct keyring *keys;
	struct ticket_key *mint;
	struct pool_backing *backing;
	struct mempool_start start;
	const char *listen[1];
	uint64_t version;
	uint32_t n_fenced;
	char log[8192]; /* what was logged, cut */
	char port[8];
	struct xfa x;
};

/* threads: of the agent. */
void data_fix_init(struct data_fix *f, uint32_t threads);
void data_fix_fini(struct data_fix *f);
/* The loop runs until cond or ms have passed; returns cond. NULL: for ms. */
bool data_fix_run(struct data_fix *f, bool (*cond)(void *arg), void *arg, unsigned ms);

/* A write ticket for [offset, offset + room for size) of segment 0, sealed for the agent. */
struct msg_ticket data_fix_write(struct data_fix *f, const char *tenant, uint64_t version,
				 uint64_t offset, uint64_t size, struct msg_extent *ext);
struct msg_ticket data_fix_read(struct data_fix *f, const char *tenant,
				const struct hold_slot *s, uint64_t offset, uint64_t size,
				struct msg_extent *ext);
void data_fix_seal(struct data_fix *f, const struct msg_ticket *t, struct buf *out);

/* ---- a client, blocking; any thread, one at a time ---- */

struct data_cli {
	int fd;
	struct lane_cli lane;
	uint8_t *got;
	size_t n_got, cap;
	enum err last; /* how the lane ended, if it did */
};

/* Connects and says HELLO. false: the agent would not have it. */
bool data_cli_open(struct data_cli *c, const struct data_fix *f, const char *tenant);
void data_cli_close(struct data_cli *c);
/* Until the lane has nothing to send and is in that state, or over; false: over. */
bool data_cli_until(struct data_cli *c, enum lane_cli_state a, enum lane_cli_state b);
/* To its END. ERR_CONN_LOST: the lane is over. */
enum err data_cli_get(struct data_cli *c, struct bytes ticket, uint64_t size, uint8_t *out);
enum err data_cli_put(struct data_cli *c, struct bytes ticket, const uint8_t *p, uint64_t size,
		      uint64_t *sum);
/* A put's beginning: until GO, then the first n bytes. */
enum err data_cli_half(struct data_cli *c, struct bytes ticket, const uint8_t *p, size_t n);
