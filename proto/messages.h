/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every message of Pomelo's wire: the rows of the .def files as structs and codecs (rows.h), the
 * methods as an enum and a table. For each message NAME there are
 *
 *	struct msg_NAME, struct list_NAME
 *	void enc_NAME(struct buf *b, const struct msg_NAME *m);
 *	void enc_NAME_at(struct buf *b, const struct msg_NAME *m, uint32_t version);
 *	enum err dec_NAME(struct dec *d, struct msg_NAME *out);
 *	const struct wire_msg *wire_msg_NAME(void);
 *
 * Errors, borrowing and cost: wire.h. Thread: any.
 */
#pragma once

#include "proto/role.h"
#include "proto/rows.h"

#include "proto/ticket.def"
#include "proto/common.def"
#include "proto/meta.def"
#include "proto/store.def"
#include "proto/holder.def"
#include "proto/weights.def"

/* A new .def file is one include above and one word in each list. */
#define WIRE_MESSAGES(M)   \
	TICKET_MESSAGES(M) \
	COMMON_MESSAGES(M) \
	META_MESSAGES(M) STORE_MESSAGES(M) HOLDER_MESSAGES(M) WEIGHTS_MESSAGES(M)
#define WIRE_METHODS(F) COMMON_METHODS(F) STORE_METHODS(F) HOLDER_METHODS(F) WEIGHTS_METHODS(F)

WIRE_MESSAGES(WIRE_DECLARE)

/* The i-th message, nested ones before those that hold them; NULL past the last. */
const struct wire_msg *wire_message(size_t i);

/* F(NAME, number, request, reply, roles, idempotent, "at the limit (B1)", "doc") */
#define METHOD_ENUM(name, number, req, rep, roles, idem, policy, doc) METHOD_##name = (number),
enum method { METHOD_NONE, WIRE_METHODS(METHOD_ENUM) };
#undef METHOD_ENUM

struct wire_method {
	const char *name; /* "ECHO" */
	uint32_t number;
	uint32_t roles;	 /* ROLES_*: who may call it */
	bool idempotent; /* may be sent again after a lost connection */
	const struct wire_msg *(*req)(void), *(*rep)(void);
	const char *policy; /* what happens at the limit */
	const char *doc;
};

/* All methods in the order of their rows; *n of them. */
const struct wire_method *wire_methods(size_t *n);
/* NULL: no such method. */
const struct wire_method *wire_method(uint32_t number);
/* "ECHO"; "UNKNOWN" for a number of no row. */
const char *method_name(uint32_t number);
