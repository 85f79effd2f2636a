/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data folder in /tmp with a secret, and in it services that answer STATUS and ECHO over real
 * sockets, on a thread of their own: the rpc server with two handlers, nothing of a daemon.
 */
#pragma once

#include "sdk.h"
#include "store_fake.h"

struct sdk_server;

struct sdk_server *sdk_server_start(void);
/* The folder; the secret is DATA/secret. */
const char *sdk_server_data(const struct sdk_server *s);
/* One more service of that name on DATA/run/NAME.sock. */
void sdk_server_add(struct sdk_server *s, const char *name);
/* A store: master, holder and run/agent.fd with a pool in files (store_fake.h). Its fields are the server
 * thread's; what a test sets before its first call is seen. */
struct fake *sdk_server_store(struct sdk_server *s);
/* Writes a file with the key of a client of tenant "default", and no more. */
void sdk_server_client_key(const struct sdk_server *s, const char *path);
/* ECHO requests parked now. */
uint32_t sdk_server_parked(struct sdk_server *s);
/* Ends the servers and their thread; the folder stays. */
void sdk_server_stop(struct sdk_server *s);
/* Also removes the folder. */
void sdk_server_free(struct sdk_server *s);

/* Options that point there. */
struct pml_open_opts sdk_server_opts(const struct sdk_server *s);
