/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams into both ends of the beats. Input: a byte of way, then bytes.
 *
 *   0  to the master as they are     2  to a sender as they are
 *   1  to the master, sealed         3  to a sender, sealed
 *
 * Nothing but a sealed beat with the right challenge is stamped: a fuzzer has none.
 */
#include "svc/beat_priv.h"

#include <string.h>

#include "rpc/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint8_t secret[32] = { 1 };
	static struct beat_keys
		keys; /* libFuzzer has no other place for what all inputs share */
	uint8_t dgram[BEAT_BYTES_MAX], reply[BEAT_BYTES_MAX];
	size_t n_reply;
	if (keys.n[0] == 0) {
		struct keyring *k;
		if (keyring_new(secret, NULL, &k) || beat_keys_init(&keys, k))
			abort();
		keyring_free(k);
	}
	if (n < 1)
		return 0;
	struct bytes in = BYTES(p + 1, n - 1);
	unsigned way = p[0] % 4;
	enum beat_kind kind = way < 2 ? BEAT_KIND_BEAT : BEAT_KIND_ACK;
	if (way % 2)
		in = BYTES(dgram, beat_seal(&keys, 0, kind, ROLE_HOLDER, in, dgram));
	struct beat_book b;
	struct beat_out o = {
		.role = ROLE_HOLDER, .n_to = 1, .keys = keys, .name = "a", .seq = 9
	};
	beat_book_init(&b, 4);
	b.keys = keys;
	memset(b.secret, 0x5a, sizeof(b.secret));
	if (way < 2)
		beat_book_take(&b, 1000, in, reply, &n_reply);
	else
		beat_out_take(&o, 0, in, 1000);
	assert(b.n == 0 && b.c.stamped == 0);
	beat_book_fini(&b);
	return 0;
}
