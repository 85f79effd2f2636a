/* SPDX-License-Identifier: Apache-2.0 */
/* A pool in a folder whose agent listens on run/agent.fd, on a real loop that the test turns. */
#pragma once

#include "store/shmsock.h"
#include "store_fix.h"

struct sock_fix {
	struct store_fix x;
	char root[64], dir[96], path[96];
	struct loop loop;
	struct keyring *keys;
	struct shmsock *s;
	bool closed;
};

/* conns_max 4, ask_ms 500. */
void sock_fix_init(struct sock_fix *f);
void sock_fix_fini(struct sock_fix *f);
/* One turn of the loop, after a millisecond at most. */
void sock_fix_turn(struct sock_fix *f);
void sock_fix_turns(struct sock_fix *f, int n);
/* The agent dies without a word and starts again over the folder; its socket too. */
void sock_fix_restart(struct sock_fix *f);

/* The cluster's, once more: a ring does not survive a fork. NULL: no memory. */
struct keyring *sock_fix_keys(void);

/* A bare connection. */
int sock_fix_connect(struct sock_fix *f);
/* Turns until a message comes (0: the end); its bytes. */
size_t sock_fix_recv(struct sock_fix *f, int c, uint8_t out[SHMSOCK_MSG_MAX]);
/* Takes the agent's place at the path; a listening socket. */
int sock_fix_impostor(struct sock_fix *f);
/* A right ASK, for a challenge of another connection. */
size_t sock_fix_record_ask(struct sock_fix *f, uint8_t out[SHMSOCK_MSG_MAX]);
/* Closes what a grant brought. */
void sock_fix_drop(struct shmpool_fds *fds, int conn);
