/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.2 and 1.3 for the sp engine: OpenSSL between bytes and bytes, no descriptor. The peer may be
 * nng's TLS (mbed, 1.2). A client always checks the server's certificate against its CA file
 * and against the host it dialed, by DNS or IP name.
 *
 * Why not nng's own TLS alone: docs/decisions/0011-tls-on-sp.md.
 *
 * Thread: the loop's.
 */
#pragma once

#include "rpc/rpc.h"

struct sp_tls_ctx; /* one server's or one peer's files */
struct sp_tls;	   /* one connection */

/* out: owned, sp_tls_ctx_free(). Errors as tls_load. */
enum err sp_tls_ctx_new(const struct tls_files *f, bool server, struct sp_tls_ctx **out,
			struct why *why) MUST_CHECK;
/* Connections made of it may outlive it. NULL is fine. */
void sp_tls_ctx_free(struct sp_tls_ctx *c);

/* host: what a client dials, NULL for a server. NULL: no memory. owned, sp_tls_free(). */
struct sp_tls *sp_tls_new(struct sp_tls_ctx *c, const char *host);
void sp_tls_free(struct sp_tls *t);

/* The handshake is over. */
bool sp_tls_up(const struct sp_tls *t);
/* n bytes came from the wire. False: no memory. */
bool sp_tls_feed(struct sp_tls *t, const void *p, size_t n);
/*
 * Goes on with the handshake, then decrypts into to[0..room).
 * Returns how many bytes; 0: the wire must bring more first; -1: it is over, see sp_tls_text.
 */
ssize_t sp_tls_read(struct sp_tls *t, void *to, size_t room);
/* Encrypts all of it. Only once up. False: no memory, or it is over. */
bool sp_tls_write(struct sp_tls *t, const void *p, size_t n);
/* The last words; nothing is written after them. */
void sp_tls_bye(struct sp_tls *t);
/* What is ready for the wire: how many bytes, and taking n <= that many. */
size_t sp_tls_ready(const struct sp_tls *t);
void sp_tls_take(struct sp_tls *t, void *to, size_t n);
/* Why it is over: one phrase, valid as long as t. */
const char *sp_tls_text(const struct sp_tls *t);
/* True when the peer closed properly, or just went: no fault of anybody's. */
bool sp_tls_eof(const struct sp_tls *t);
