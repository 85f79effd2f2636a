/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master that does as the script says: what agents call (REGISTER PUBLISH CONFIRM REPORT), answered
 * by the book or not at all, and recorded. For tests of the agent alone; the real one is in
 * test_store.c's clusters.
 *
 * Thread: the simulator's.
 */
#pragma once

#include "tests/support/cluster.h"

#include "proto/messages.h"

#define BOSS_MAX    4096
#define BOSS_HELD   64
#define BOSS_FAILED 256

/* Borrowed by the member as its arg; outlives its runs. */
struct boss {
	/* script */
	bool adopted;	      /* REGISTER's answer */
	bool silent;	      /* PUBLISH is not answered */
	enum err publish_err; /* of each item, refusals times; then fine */
	uint32_t refusals;
	enum err publish_all; /* of the whole message */
	enum err confirm_err; /* ERR_NONE: open */
	enum err report_err;
	uint64_t term; /* in REGISTER's answer */

	/* record */
	uint32_t n_register, n_publish, n_confirm, n_report;
	uint64_t ready, total, pool_epoch; /* of the last REGISTER */
	uint64_t first_epoch;		   /* of the first since n_register was 0 */
	size_t n_segments;
	uint8_t instance[16], pool[16];
	char holder[65], host[65], addr[257];
	struct msg_publish_item items[BOSS_MAX]; /* published, all of them */
	size_t n_items;
	struct msg_under under; /* of the last PUBLISH */
	uint64_t confirmed[BOSS_MAX], fenced[BOSS_MAX];
	size_t n_confirmed, n_fenced;
	struct msg_publish_item corrupt[64];
	size_t n_corrupt;
	struct boss_failed { /* copies */
		uint64_t version;
		enum err err;
		char text[321], source[65];
	} failed[BOSS_FAILED];
	size_t n_failed;
};

extern const struct cl_app boss_app;
