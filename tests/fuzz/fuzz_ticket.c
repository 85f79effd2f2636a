/* SPDX-License-Identifier: Apache-2.0 */
/* A ticket's bytes (B5): as they come, and again under a right MAC, to reach what lies behind
 * it. */
#include "rpc/auth_crypto.h"
#include "rpc/ticket.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint8_t mac_key[AUTH_KEY_BYTES];

static struct ticket_key *make_key(void)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "a secret for fuzzing tickets ..";
	struct keyring *k;
	struct ticket_key *t;
	if (keyring_new(secret, NULL, &k) != ERR_NONE ||
	    keyring_ticket_key(k, 0, "h1", mac_key) != ERR_NONE ||
	    ticket_key_new(k, "h1", &t) != ERR_NONE)
		abort();
	keyring_free(k);
	return t;
}

/* What a holder obeys is sound, and minting it again makes a ticket that opens. */
static void check_opened(struct ticket_key *k, const struct msg_ticket *t)
{
	struct buf again = BUF_INIT(4096);
	struct arena a = ARENA_INIT(16 << 10);
	struct msg_ticket back;
	assert(t->op >= TICKET_WRITE && t->op <= TICKET_PULL && t->extents.n <= 16);
	assert(ticket_mint(k, t, &again, NULL) == ERR_NONE);
	assert(ticket_open(k, buf_bytes(&again), &a, &back, NULL) == ERR_NONE);
	assert(back.version == t->version && back.extents.n == t->extents.n);
	buf_fini(&again);
	arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct ticket_key *k;
	if (!k)
		k = make_key();
	struct arena a = ARENA_INIT(16 << 10);
	struct msg_ticket t;
	struct why w = { 0 };
	enum err e = ticket_open(k, BYTES(p, n), &a, &t, &w);
	assert(e == ERR_BAD_TICKET && w.text[0]);

	uint8_t tag[SHA256_BYTES], sealed[TICKET_MAX + 64];
	n = MIN_OF(n, sizeof(sealed) - TICKET_TAG_BYTES);
	if (n > 0)
		memcpy(sealed, p, n);
	struct bytes text = BYTES(sealed, n);
	if (hmac_sha256(BYTES(mac_key, sizeof(mac_key)), &text, 1, tag) != ERR_NONE)
		return 0;
	memcpy(sealed + n, tag, TICKET_TAG_BYTES);
	if (ticket_open(k, BYTES(sealed, n + TICKET_TAG_BYTES), &a, &t, &w) == ERR_NONE)
		check_opened(k, &t);
	arena_fini(&a);
	return 0;
}
