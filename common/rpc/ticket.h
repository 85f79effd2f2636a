/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: what a master lets a client do at one holder (spec/store.md, "Terms and puts"; rows
 * in proto/ticket.def). The master mints, the client carries the bytes, the holder opens them
 * and obeys nothing else. HMAC-SHA256 cut to 16 bytes, by a key of that holder
 * (HKDF(secret, "pomelo/v1/ticket/HOLDER")), so a ticket is good at no other.
 *
 * I1: no field is read before the MAC was compared, in constant time.
 * I2: a ticket does not age. It ends with its pool_epoch (writes) or its slot's generation
 *     (reads): T6, never by time.
 *
 * Thread: a ticket_key belongs to one thread.
 */
#pragma once

#include "proto/messages.h"
#include "rpc/auth.h"

#define TICKET_TAG_BYTES 16
#define TICKET_MAX	 4096 /* bytes of a ticket, tag included */

enum ticket_op { TICKET_WRITE = 1, TICKET_READ = 2, TICKET_PULL = 3 };

/* The key for one holder's tickets, both secrets' while one is rotated. */
struct ticket_key;

/*
 * keys    borrowed for the call; must be the cluster's
 * holder  1..64 of [A-Za-z0-9._-]
 * out     owned, ticket_key_free()
 *
 * ERR_FORBIDDEN       the ring has role keys only
 * ERR_INVALID_PARAMS  no holder's name
 */
enum err ticket_key_new(const struct keyring *keys, const char *holder, struct ticket_key **out)
	MUST_CHECK;
void ticket_key_free(struct ticket_key *k);

/*
 * Appends the ticket and its tag. 0.2 us (2026-11-29).
 *
 * ERR_INVALID_PARAMS  t is no sound ticket (a bug of the caller); why says which field
 */
enum err ticket_mint(struct ticket_key *k, const struct msg_ticket *t, struct buf *out,
		     struct why *why) MUST_CHECK;

/*
 * Checks and decodes. out borrows from sealed and a (a limit of 8 KiB is enough).
 *
 * ERR_BAD_TICKET  not ours, damaged, or too long; why says no more than that
 */
enum err ticket_open(struct ticket_key *k, struct bytes sealed, struct arena *a,
		     struct msg_ticket *out, struct why *why) MUST_CHECK;

/*
 * Is an opened ticket for this pool as it is now?
 *
 * ERR_BAD_TICKET   it is for another pool
 * ERR_STALE_EPOCH  a write or pull of another epoch: the put starts again
 */
enum err ticket_current(const struct msg_ticket *t, const uint8_t pool[16], uint64_t pool_epoch)
	MUST_CHECK;
