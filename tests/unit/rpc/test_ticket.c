/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/ticket.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/auth_crypto.h"
#include "support/leak.h"

static struct ticket_key *key_of(uint8_t first, const char *holder)
{
	uint8_t secret[32];
	struct keyring *k;
	struct ticket_key *t = NULL;
	for (int i = 0; i < 32; i++)
		secret[i] = (uint8_t)(first + i);
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	cr_assert_eq(ticket_key_new(k, holder, &t), ERR_NONE);
	keyring_free(k);
	return t;
}

static const struct msg_extent extents[] = { { 0, 4096, 1000 }, { 1, 0, 24 } };
#define NAME(s)                                     \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}
static const struct msg_ticket write_ticket = {
	.op = TICKET_WRITE,
	.tenant = NAME("blue"),
	.shard = 3,
	.term = 7,
	.pool = "sixteen bytes..",
	.pool_epoch = 12,
	.extents = { extents, 2 },
	.size = 1024,
	.version = 7ull << 40 | 99,
	.client = "another sixteen",
	.attempt = 5,
};
static const struct msg_ticket read_ticket = {
	.op = TICKET_READ,
	.tenant = NAME("blue"),
	.pool = "sixteen bytes..",
	.size = 1024,
	.slot = 8,
	.generation = 42,
};

/* The tag is the library's own HMAC-SHA256, whatever the length of what it is over. */
Test(ticket, the_tag_is_hmac_sha256, .timeout = 5)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "a secret of some kind";
	struct buf b = BUF_INIT(4096);
	struct keyring *k;
	struct ticket_key *t = NULL;
	struct why why = { 0 };
	uint8_t key[AUTH_KEY_BYTES], want[SHA256_BYTES], name[300];
	memset(name, 'k', sizeof(name));
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	cr_assert_eq(ticket_key_new(k, "h1", &t), ERR_NONE);
	cr_assert_eq(keyring_ticket_key(k, 0, "h1", key), ERR_NONE);
	for (size_t n = 0; n < sizeof(name); n++) { /* over every border of its blocks */
		struct msg_ticket m = write_ticket;
		m.key = BYTES(name, n);
		buf_clear(&b);
		cr_assert_eq(ticket_mint(t, &m, &b, &why), ERR_NONE, "%s", why.text);
		size_t text = b.n - TICKET_TAG_BYTES;
		cr_assert_eq(hmac_sha256(BYTES(key, sizeof(key)), &BYTES(b.p, text), 1, want),
			     ERR_NONE);
		cr_assert_arr_eq(b.p + text, want, TICKET_TAG_BYTES);
	}
	buf_fini(&b);
	ticket_key_free(t);
	keyring_free(k);
	NO_LEAKS();
}

Test(ticket, write_and_read_tickets_come_back, .timeout = 5)
{
	struct ticket_key *master = key_of(1, "h1"), *holder = key_of(1, "h1");
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(4096);
	struct msg_ticket t;
	struct why why = { 0 };
	cr_assert_eq(ticket_mint(master, &write_ticket, &b, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(ticket_open(holder, buf_bytes(&b), &a, &t, &why), ERR_NONE, "%s",
		     why.text);
	cr_assert_eq(t.op, TICKET_WRITE);
	cr_assert_eq(t.tenant.n, 4);
	cr_assert_eq(t.extents.n, 2);
	cr_assert_eq(t.extents.p[1].bytes, 24);
	cr_assert_eq(t.version, write_ticket.version);
	cr_assert_eq(t.attempt, 5);
	cr_assert_arr_eq(t.client, write_ticket.client, 16);
	buf_clear(&b);
	arena_clear(&a);
	cr_assert_eq(ticket_mint(master, &read_ticket, &b, &why), ERR_NONE);
	cr_assert_eq(ticket_open(holder, buf_bytes(&b), &a, &t, &why), ERR_NONE);
	cr_assert_eq(t.slot, 8);
	cr_assert_eq(t.generation, 42);
	buf_fini(&b);
	arena_fini(&a);
	ticket_key_free(master);
	ticket_key_free(holder);
	ticket_key_free(NULL);
	NO_LEAKS();
}

Test(ticket, every_flip_cut_and_addition_is_refused, .timeout = 10)
{
	struct ticket_key *k = key_of(1, "h1");
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(4096);
	struct msg_ticket t;
	struct why why = { 0 };
	cr_assert_eq(ticket_mint(k, &write_ticket, &b, &why), ERR_NONE);
	for (size_t bit = 0; bit < b.n * 8; bit++) {
		b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
		cr_assert_eq(ticket_open(k, buf_bytes(&b), &a, &t, NULL), ERR_BAD_TICKET,
			     "bit %zu", bit);
		b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t n = 0; n < b.n; n++)
		cr_assert_eq(ticket_open(k, BYTES(b.p, n), &a, &t, NULL), ERR_BAD_TICKET);
	cr_assert_eq(ticket_open(k, buf_bytes(&b), &a, &t, NULL), ERR_NONE);
	buf_put(&b, "", 1);
	cr_assert_eq(ticket_open(k, buf_bytes(&b), &a, &t, &why), ERR_BAD_TICKET);
	cr_assert_null(strstr(why.text, "blue"));
	uint8_t big[TICKET_MAX + 1] = { 0 };
	cr_assert_eq(ticket_open(k, BYTES(big, sizeof(big)), &a, &t, NULL), ERR_BAD_TICKET);
	buf_fini(&b);
	arena_fini(&a);
	ticket_key_free(k);
	NO_LEAKS();
}

Test(ticket, another_holder_or_secret, .timeout = 5)
{
	struct ticket_key *h1 = key_of(1, "h1"), *h2 = key_of(1, "h2"),
			  *other = key_of(2, "h1");
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(4096);
	struct msg_ticket t;
	struct why why = { 0 };
	cr_assert_eq(ticket_mint(h1, &write_ticket, &b, &why), ERR_NONE);
	cr_assert_eq(ticket_open(h2, buf_bytes(&b), &a, &t, &why), ERR_BAD_TICKET);
	cr_assert_eq(ticket_open(other, buf_bytes(&b), &a, &t, &why), ERR_BAD_TICKET);
	buf_fini(&b);
	arena_fini(&a);
	ticket_key_free(h1);
	ticket_key_free(h2);
	ticket_key_free(other);
	NO_LEAKS();
}

Test(ticket, keys_need_the_cluster_secret, .timeout = 5)
{
	uint8_t key[32] = { 1 }, before[32] = { 2 };
	struct keyring *ring, *both, *old;
	struct ticket_key *k = NULL, *k_old, *k_both;
	cr_assert_eq(keyring_new_role(ROLE_HOLDER, NULL, key, &ring), ERR_NONE);
	cr_assert_eq(ticket_key_new(ring, "h1", &k), ERR_FORBIDDEN);
	keyring_free(ring);
	cr_assert_eq(keyring_new(key, before, &both), ERR_NONE);
	cr_assert_eq(keyring_new(before, NULL, &old), ERR_NONE);
	cr_assert_eq(ticket_key_new(both, "a b", &k), ERR_INVALID_PARAMS);
	cr_assert_null(k);

	/* while the secret is rotated, tickets of the old one are still obeyed */
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(4096);
	struct msg_ticket t;
	cr_assert_eq(ticket_key_new(both, "h1", &k_both), ERR_NONE);
	cr_assert_eq(ticket_key_new(old, "h1", &k_old), ERR_NONE);
	cr_assert_eq(ticket_mint(k_old, &write_ticket, &b, NULL), ERR_NONE);
	cr_assert_eq(ticket_open(k_both, buf_bytes(&b), &a, &t, NULL), ERR_NONE);
	buf_clear(&b);
	cr_assert_eq(ticket_mint(k_both, &write_ticket, &b, NULL), ERR_NONE);
	cr_assert_eq(ticket_open(k_old, buf_bytes(&b), &a, &t, NULL), ERR_BAD_TICKET);
	buf_fini(&b);
	arena_fini(&a);
	keyring_free(both);
	keyring_free(old);
	ticket_key_free(k_both);
	ticket_key_free(k_old);
	NO_LEAKS();
}

static void check_unsound(struct ticket_key *k, struct msg_ticket t, const char *field)
{
	struct buf b = BUF_INIT(4096);
	struct why why = { 0 };
	cr_assert_eq(ticket_mint(k, &t, &b, &why), ERR_INVALID_PARAMS, "%s", field);
	cr_assert(strstr(why.text, field), "%s", why.text);
	buf_fini(&b);
}

Test(ticket, unsound_tickets_are_not_made, .timeout = 5)
{
	struct ticket_key *k = key_of(1, "h1");
	struct msg_extent wrap[] = { { 0, UINT64_MAX, 2 } }, empty[] = { { 0, 0, 0 } };
	struct msg_extent huge[] = { { 0, 0, UINT64_MAX }, { 0, 0, 2 } };
	struct msg_ticket t = write_ticket;
	t.op = 0;
	check_unsound(k, t, "op");
	t.op = 4;
	check_unsound(k, t, "op");
	t = write_ticket;
	t.tenant = BYTES(NULL, 0);
	check_unsound(k, t, "tenant");
	t = write_ticket;
	t.size = 1025;
	check_unsound(k, t, "size");
	t.extents = (struct list_extent){ wrap, 1 };
	check_unsound(k, t, "extents");
	t.extents = (struct list_extent){ empty, 1 };
	check_unsound(k, t, "extents");
	t.extents = (struct list_extent){ huge, 2 };
	check_unsound(k, t, "extents");
	/* a zero-length object has no extents */
	struct buf b = BUF_INIT(4096);
	t = write_ticket;
	t.size = 0;
	t.extents = (struct list_extent){ NULL, 0 };
	cr_assert_eq(ticket_mint(k, &t, &b, NULL), ERR_NONE);
	buf_fini(&b);
	ticket_key_free(k);
	NO_LEAKS();
}

/* I2: the epoch ends a write; a read is judged by its slot's generation. */
Test(ticket, epoch_and_pool, .timeout = 5)
{
	uint8_t pool[16] = "sixteen bytes..", elsewhere[16] = "sixteen others.";
	struct msg_ticket pull = write_ticket;
	pull.op = TICKET_PULL;
	cr_assert_eq(ticket_current(&write_ticket, pool, 12), ERR_NONE);
	cr_assert_eq(ticket_current(&write_ticket, pool, 13), ERR_STALE_EPOCH);
	cr_assert_eq(ticket_current(&write_ticket, pool, 11), ERR_STALE_EPOCH);
	cr_assert_eq(ticket_current(&pull, pool, 13), ERR_STALE_EPOCH);
	cr_assert_eq(ticket_current(&read_ticket, pool, 13), ERR_NONE);
	cr_assert_eq(ticket_current(&read_ticket, elsewhere, 0), ERR_BAD_TICKET);
	cr_assert_eq(ticket_current(&write_ticket, elsewhere, 12), ERR_BAD_TICKET);
}

Test(ticket, longest_fits, .timeout = 5)
{
	struct ticket_key *k = key_of(1, "h1");
	struct msg_extent many[16];
	char tenant[65] = "";
	memset(tenant, 't', 64);
	for (int i = 0; i < 16; i++)
		many[i] = (struct msg_extent){ UINT32_MAX, UINT64_MAX >> 1, UINT64_MAX >> 5 };
	struct msg_ticket t = write_ticket;
	t.extents = (struct list_extent){ many, 16 };
	t.tenant = BYTES(tenant, 64);
	t.shard = t.slot = UINT32_MAX;
	t.term = t.pool_epoch = t.version = t.attempt = t.generation = UINT64_MAX;
	struct buf b = BUF_INIT(4096);
	struct arena a = ARENA_INIT(4096);
	struct msg_ticket back;
	cr_assert_eq(ticket_mint(k, &t, &b, NULL), ERR_NONE);
	cr_assert_eq(ticket_open(k, buf_bytes(&b), &a, &back, NULL), ERR_NONE);
	cr_assert_eq(back.extents.n, 16);
	buf_fini(&b);
	arena_fini(&a);
	ticket_key_free(k);
	NO_LEAKS();
}
