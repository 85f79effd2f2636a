/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of a handshake and what is on the wire between them, for tests that spoil it. */
#pragma once

#include "proto/messages.h"
#include "rpc/auth.h"

#define T0 (5000 * NS_PER_S)

struct rig {
	struct keyring *server_keys, *client_keys;
	struct hello_server *server;
	struct hello_client *client;
	struct buf hello, challenge, prove, welcome;
	struct auth_session cs, ss;
	struct peer client_peer, server_peer; /* as the other side sees them */
	struct hello_limits limits;
	struct why why;
	uint64_t now_ns;
};

extern const uint8_t client_instance[16], server_instance[16];

/* A ring of the cluster whose secret begins so. */
struct keyring *cluster(uint8_t first);
/* A ring whose key for (role, tenant) is really that of (of, of_tenant): a liar's. */
struct keyring *forged(const struct keyring *from, enum role of, const char *of_tenant,
		       enum role role, const char *tenant);
struct hello_server_opts server_opts(const struct keyring *k);
struct hello_client_opts client_opts(const struct keyring *k);

/* Takes both rings. */
struct rig rig_with(struct keyring *server_keys, struct keyring *client_keys,
		    const struct hello_server_opts *so, const struct hello_client_opts *co);
/* A client of tenant "blue" and a master of one cluster. */
struct rig rig_new(void);
void rig_free(struct rig *r);
/* Empties the messages. */
void rig_bufs(struct rig *r);

/* One step each; what is on the wire may be spoilt in between. */
enum err to_hello(struct rig *r);
enum err to_challenge(struct rig *r);
enum err to_prove(struct rig *r);
enum err to_session(struct rig *r);
enum err to_end(struct rig *r);
extern enum err (*const steps[5])(struct rig *r);

/* Runs steps [from, 5); returns the first error and in *at (may be NULL) which step had it. */
enum err run_from(struct rig *r, size_t from, size_t *at);
/* HELLO, CHALLENGE, PROVE, WELCOME. */
struct buf *message(struct rig *r, int i);
void swap_bufs(struct buf *a, struct buf *b);
/* b takes a's next message, once. */
void check_talk(struct auth_session *a, struct auth_session *b);
