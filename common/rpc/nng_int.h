/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the nng engine share: the server is nng_server.c, the client nng_peer.c, the
 * table of both rpc_nng.c. Thread: the loop's.
 */
#pragma once

#include "rpc/addr.h"
#include "rpc/engine.h"

/* SP's request id travels inside the frame, which is what message_bytes_max and RECVMAXSZ bound. */
#define NNG_HDR_BYTES 4

enum err nng_server_new(struct loop *l, const struct eng_server_opts *o,
			struct eng_server **out) MUST_CHECK;
enum err nng_server_listen(struct eng_server *s, const char *addr, char *bound,
			   size_t bound_size, struct why *why) MUST_CHECK;
void nng_server_reply(struct eng_server *s, struct eng_token t, const struct bytes *parts,
		      int n);
void nng_server_drop(struct eng_server *s, struct eng_token t);
void nng_server_known(struct eng_server *s, struct eng_conn *c);
void nng_server_conn_close(struct eng_server *s, struct eng_conn *c);
void nng_server_conn_name(const struct eng_conn *c, char *out, size_t size);
void nng_server_drain(struct eng_server *s);
void nng_server_close(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
		      void *arg);

enum err nng_peer_dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		       struct why *why) MUST_CHECK;
enum err nng_peer_send(struct eng_peer *p, struct eng_xchg *x, const struct bytes *parts, int n)
	MUST_CHECK;
void nng_peer_cancel(struct eng_peer *p, struct eng_xchg *x);
void nng_peer_hangup(struct eng_peer *p, void (*closed)(void *arg), void *arg);
