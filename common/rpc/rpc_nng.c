/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nng engine: the library itself behind engine.h, cooked REQ/REP contexts. It is the reference
 * the sp engine is compared with; who wants it names it, for its 1.5.2 can be brought to a stop
 * from outside (nng_sock.h I3). Nothing here starts the library: its
 * threads (14 on two cores) begin with the first socket, so a process that uses no address of this
 * engine has none.
 *
 * What the library cannot do, and what stands in for it (limits of engine.h):
 *   frame_ms, receiving       no such timer: an unknown peer is bounded by handshake_ms, a known one
 *                             by the session's own deadlines
 *   conns_max                 counts from the end of SP's greeting; before it nng itself drops a
 *                             connection after 10 s, and only the descriptor limit counts them
 *   anon_message_bytes_max    checked when the message is here; nng holds one message of
 *                             message_bytes_max a connection, so that few unknown ones are let in
 *   conn_queue_bytes_max      cannot stop reading one connection: one that is over half of
 *                             queue_bytes_max is closed
 *   bad_frames                nng closes such a connection without a word
 */
#include "rpc/nng_int.h"

static bool can(const char *addr)
{
	enum addr_scheme scheme;
	return addr_scheme(addr, &scheme) && scheme != ADDR_SIM;
}

const struct engine engine_nng = {
	.name = "nng",
	.can = can,
	.server_new = nng_server_new,
	.listen = nng_server_listen,
	.reply = nng_server_reply,
	.drop = nng_server_drop,
	.known = nng_server_known,
	.conn_close = nng_server_conn_close,
	.conn_name = nng_server_conn_name,
	.drain = nng_server_drain,
	.server_close = nng_server_close,
	.dial = nng_peer_dial,
	.send = nng_peer_send,
	.cancel = nng_peer_cancel,
	.hangup = nng_peer_hangup,
};
