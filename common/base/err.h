/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every error Pomelo can report: one row each. The row makes the enum, the wire number, the text,
 * the retry rule and the page docs/errors.md.
 *
 * F(NAME, number, retry, text, Mooncake's name)
 *   number  wire and exit identity; never reused, never renumbered. 1 common, 100 store,
 *           200 holder, 300 weights, 400 groups, 500 ep
 *   retry   who may try again:
 *             NEVER  nobody: the same request fails the same way
 *             AFTER  the same request to the same peer, after retry_ms
 *             OTHER  the same request at another peer or address
 *             REDO   the caller starts the whole operation again with a new attempt
 *   text    what it means, and what to do, in one line
 *
 * Thread: any. Pure.
 */
#pragma once

#include "base/def.h"

enum err_retry { ERR_RETRY_NEVER, ERR_RETRY_AFTER, ERR_RETRY_OTHER, ERR_RETRY_REDO };

/* clang-format off */
#define ERR_TABLE(F) \
	F(NONE,               0, NEVER, "success", "OK") \
	F(INTERNAL,           1, NEVER, "a bug in Pomelo: report it with the log around this time", "INTERNAL_ERROR") \
	F(NO_MEMORY,          2, AFTER, "the process has no memory left; lower its limits or give it more", "BUFFER_OVERFLOW") \
	F(INVALID_PARAMS,     3, NEVER, "an argument is out of its range; the message names it", "INVALID_PARAMS") \
	F(BAD_MESSAGE,        4, NEVER, "bytes that are no valid message of this protocol", "RPC_FAIL") \
	F(TOO_LARGE,          5, NEVER, "larger than the largest that fits; the message names the limit", "INVALID_PARAMS") \
	F(UNKNOWN_METHOD,     6, NEVER, "the peer does not know this method; compare versions", "RPC_FAIL") \
	F(VERSION_MISMATCH,   7, NEVER, "the two releases share no protocol version; upgrade the older one", "INVALID_VERSION") \
	F(UNAUTHENTICATED,    8, NEVER, "the secret does not match the cluster's; check --secret-file", "ILLEGAL_CLIENT") \
	F(FORBIDDEN,          9, NEVER, "this role may not do that; use a key of the role named", "ILLEGAL_CLIENT") \
	F(TIMED_OUT,         10, AFTER, "the deadline passed; the message names the peer and the step", "RPC_FAIL") \
	F(CANCELLED,         11, NEVER, "the caller cancelled it", "RPC_FAIL") \
	F(UNREACHABLE,       12, OTHER, "the peer cannot be reached; is it up, is the address right?", "RPC_FAIL") \
	F(CONN_LOST,         13, AFTER, "the connection broke before the answer came", "RPC_FAIL") \
	F(BUSY,              14, AFTER, "a limit is reached; try again after the time given", "RPC_FAIL") \
	F(SHUTTING_DOWN,     15, OTHER, "the service is draining; another one or a later try will do", "RPC_FAIL") \
	F(NOT_LEADER,        16, OTHER, "this one does not lead; the message names who does", "RPC_FAIL") \
	F(UNSUPPORTED,       17, NEVER, "this build or machine lacks it; the message says what is missing", "INVALID_PARAMS") \
	F(IO,                18, NEVER, "the operating system reported an I/O error", "FILE_WRITE_FAIL") \
	F(NO_SPACE,          19, AFTER, "the file system is full; free space or set a lower limit", "FILE_WRITE_FAIL") \
	F(CORRUPT,           20, NEVER, "stored bytes fail their checksum", "FILE_READ_FAIL") \
	F(NOT_FOUND,         21, NEVER, "there is no such thing", "OBJECT_NOT_FOUND") \
	F(EXISTS,            22, NEVER, "it exists already", "OBJECT_ALREADY_EXISTS") \
	F(CONFLICT,          23, REDO,  "somebody else changed it first", "INVALID_VERSION") \
	F(STALE_SESSION,     24, REDO,  "the session is unknown or ended; a new handshake follows by itself", "ILLEGAL_CLIENT") \
	F(REPLAYED,          25, NEVER, "a message was seen before or is too far out of order", "ILLEGAL_CLIENT") \
	F(NOT_READY,         26, AFTER, "the service is starting; /readyz lists the reasons", "RPC_FAIL") \
	F(DIRECTORY_IN_USE,  27, NEVER, "another process owns this folder; stop it or use another one", "INVALID_PARAMS") \
	F(FORKED,            28, NEVER, "a handle was used after fork; open a new one in the child", "INTERNAL_ERROR") \
	F(CLOSED,            29, NEVER, "the handle is closed", "INTERNAL_ERROR") \
	F(RECOVERING,       100, AFTER, "the master is still merging what holders have; not a miss", "REPLICA_IS_NOT_READY") \
	F(TEMPORARILY_AWAY, 101, AFTER, "the object is known, its holder is not ready", "REPLICA_IS_NOT_READY") \
	F(ALREADY_EXISTS,   102, NEVER, "the key holds a whole object; use upsert to replace it", "OBJECT_ALREADY_EXISTS") \
	F(BUSY_WRITING,     103, AFTER, "another writer is putting this key", "REPLICA_IS_NOT_READY") \
	F(POOL_PINNED,      104, NEVER, "everything in the pool is hard-pinned; unpin or grow the pool", "NO_AVAILABLE_HANDLE") \
	F(LEASE_LOST,       105, REDO,  "the object went while it was read; read again", "LEASE_EXPIRED") \
	F(GROUP_SPANS_SHARDS, 106, NEVER, "the members of a group must share one shard; use a {tag}", "INVALID_PARAMS") \
	F(TASK_LOST,        107, REDO,  "the task did not survive a restart of the master", "TASK_NOT_FOUND") \
	F(QUOTA,            108, AFTER, "the tenant's quota is used up", "NO_AVAILABLE_HANDLE") \
	F(STALE_TERM,       200, AFTER, "sent under another term of the master", "INVALID_VERSION") \
	F(STALE_EPOCH,      201, REDO,  "the pool was fenced since; the put starts again", "INVALID_VERSION") \
	F(STALE_ATTEMPT,    202, REDO,  "this attempt of a put is closed", "INVALID_WRITE") \
	F(BAD_TICKET,       203, NEVER, "the ticket's MAC does not match this holder", "ILLEGAL_CLIENT") \
	F(NOT_IN_ROSTER,    204, NEVER, "the master does not know this holder; it returns empty", "SEGMENT_NOT_FOUND") \
	F(BAD_MANIFEST,     300, NEVER, "a manifest breaks a rule; the message names the field", "INVALID_PARAMS") \
	F(LIMIT,            301, NEVER, "a planning limit would be exceeded; the message names it", "INVALID_PARAMS") \
	F(STALE_GROUP,      400, REDO,  "the group's view has moved on", "INVALID_VERSION") \
	F(STALE,            500, REDO,  "the handle belongs to an older generation", "INVALID_VERSION") \
	F(TOO_MANY_TOKENS,  501, NEVER, "more tokens than the buffer was made for", "INVALID_PARAMS")
/* clang-format on */

enum err {
#define ERR_ENUM(name, number, retry, text, mooncake) ERR_##name = number,
	ERR_TABLE(ERR_ENUM)
#undef ERR_ENUM
};

/* Name without prefix ("BUSY"); "UNKNOWN" for a number of no row (a newer peer's). */
const char *err_name(enum err e);
/* One line that says what it means and what to do. */
const char *err_text(enum err e);
/* The name Mooncake's users know for it. */
const char *err_mooncake(enum err e);
enum err_retry err_retry(enum err e);
/* The row of a name (without prefix); false when there is none and out is untouched. */
bool err_from_name(const char *name, enum err *out);
/* errno as the call that just failed left it -> our error. Never ERR_NONE. */
enum err err_from_errno(int sys);

/*
 * Why something failed, in one line for a person: what, where, allowed range, what to do. The
 * first reason stays (style.md: one report per failure). Zero is a valid, empty state.
 */
struct why {
	enum err err;
	char text[320];
};

/* Records e and the text unless a reason is there already. w may be NULL. */
void why_note(struct why *w, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The same; its value is e, which compilers and analyzers can see. */
#define why_set(w, e, ...)                    \
	({                                    \
		enum err e_ = (e);            \
		why_note(w, e_, __VA_ARGS__); \
		e_;                           \
	})
