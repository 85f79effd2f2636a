/* SPDX-License-Identifier: Apache-2.0 */
/* Our GMAC against the published vectors and against libcrypto's EVP on random messages. */
#include <criterion/criterion.h>

#include "rpc/aes_block.h"
#include "rpc/gmac.h"
#include "support/leak.h"

#include <string.h>

TestSuite(gmac, .timeout = 20);

/* FIPS 197, appendix B and C.1 */
Test(gmac, one_aes_block)
{
	static const uint8_t key[2][16] = {
		{ 0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09,
		  0xcf, 0x4f, 0x3c },
		{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
	};
	static const uint8_t in[2][16] = {
		{ 0x32, 0x43, 0xf6, 0xa8, 0x88, 0x5a, 0x30, 0x8d, 0x31, 0x31, 0x98, 0xa2, 0xe0,
		  0x37, 0x07, 0x34 },
		{ 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc,
		  0xdd, 0xee, 0xff },
	};
	static const uint8_t want[2][16] = {
		{ 0x39, 0x25, 0x84, 0x1d, 0x02, 0xdc, 0x09, 0xfb, 0xdc, 0x11, 0x85, 0x97, 0x19,
		  0x6a, 0x0b, 0x32 },
		{ 0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8, 0xcd, 0xb7, 0x80, 0x70,
		  0xb4, 0xc5, 0x5a },
	};
	_Alignas(16) uint8_t sched[AES_SCHEDULE_BYTES];
	uint8_t out[16];
	if (!aes_block_have())
		cr_skip_test("this processor has no AES instruction");
	for (int i = 0; i < 2; i++) {
		aes_block_expand(sched, key[i]);
		aes_block(in[i], out, sched);
		cr_assert_arr_eq(out, want[i], 16);
	}
	/* the last round key of appendix A.1 */
	static const uint8_t last[16] = { 0xd0, 0x14, 0xf9, 0xa8, 0xc9, 0xee, 0x25, 0x89,
					  0xe1, 0x3f, 0x0c, 0xc8, 0xb6, 0x63, 0x0c, 0xa6 };
	aes_block_expand(sched, key[0]);
	cr_assert_arr_eq(sched + 160, last, 16);
	NO_LEAKS();
}

/* Every length around the block size, then longer ones; whole and in three pieces. */
Test(gmac, agrees_with_evp)
{
	static uint8_t msg[5000];
	uint64_t x = 88172645463325252u;
	for (size_t i = 0; i < sizeof(msg); i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		msg[i] = (uint8_t)x;
	}
	for (size_t n = 0; n <= sizeof(msg); n += n < 600 ? 1 : 617) {
		const uint8_t *key = msg + n % 64, *iv = msg + 100 + n % 33;
		struct gmac *a = gmac_new(key), *b = gmac_new_evp(key);
		uint8_t ta[16], tb[16], tc[16];
		cr_assert(a && b);
		struct iovec whole = { msg, n };
		struct iovec cut[3] = { { msg, n / 3 },
					{ msg + n / 3, n / 2 - n / 3 },
					{ msg + n / 2, n - n / 2 } };
		cr_assert(gmac_tag(a, iv, &whole, 1, ta));
		cr_assert(gmac_tag(b, iv, &whole, 1, tb));
		cr_assert_arr_eq(ta, tb, 16, "%zu bytes", n);
		cr_assert(gmac_tag(a, iv, cut, 3, tc));
		cr_assert_arr_eq(ta, tc, 16, "%zu bytes in pieces", n);
		cr_assert(gmac_tag(b, iv, cut, 3, tc));
		cr_assert_arr_eq(ta, tc, 16);
		/* another IV, another tag; the first again */
		cr_assert(gmac_tag(a, iv + 1, &whole, 1, tc));
		cr_assert(memcmp(ta, tc, 16) != 0);
		cr_assert(gmac_tag(a, iv, &whole, 1, tc));
		cr_assert_arr_eq(ta, tc, 16);
		gmac_free(a);
		gmac_free(b);
	}
	gmac_free(NULL);
	NO_LEAKS();
}
