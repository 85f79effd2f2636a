/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "hex.h"
#include "support/leak.h"

/* RFC 4231, section 4 (case 5 is about truncation, which we do not do). */
struct hmac_case {
	char key[264], data[320], want[65];
};

static struct hmac_case hmac_cases[] = {
	{ "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "4869205468657265",
	  "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
	{ "4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
	  "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
	{ "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	  "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
	  "dddddddddddddddddddddddddddddddd",
	  "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe" },
	{ "0102030405060708090a0b0c0d0e0f10111213141516171819",
	  "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
	  "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
	  "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b" },
};

ParameterizedTestParameters(auth_crypto, hmac_rfc4231)
{
	return cr_make_param_array(struct hmac_case, hmac_cases, ARRAY_LEN(hmac_cases));
}

ParameterizedTest(struct hmac_case *c, auth_crypto, hmac_rfc4231, .timeout = 5)
{
	uint8_t key[132], data[160], want[32], got[32];
	size_t key_n = from_hex(c->key, key), n = from_hex(c->data, data);
	from_hex(c->want, want);
	/* every split into two parts is the same message */
	for (size_t cut = 0; cut <= n; cut++) {
		struct bytes parts[] = { BYTES(data, cut), BYTES(data + cut, n - cut) };
		cr_assert_eq(hmac_sha256(BYTES(key, key_n), parts, 2, got), ERR_NONE);
		cr_assert_arr_eq(got, want, 32);
	}
	NO_LEAKS();
}

Test(auth_crypto, hmac_rfc4231_long_keys, .timeout = 5)
{
	uint8_t key[131], want[32], got[32];
	memset(key, 0xaa, sizeof(key));
	struct bytes six = BYTES_STR("Test Using Larger Than Block-Size Key - Hash Key First");
	struct bytes seven =
		BYTES_STR("This is a test using a larger than block-size key and a larger "
			  "than block-size data. The key needs to be hashed before being "
			  "used by the HMAC algorithm.");
	from_hex("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54", want);
	cr_assert_eq(hmac_sha256(BYTES(key, 131), &six, 1, got), ERR_NONE);
	cr_assert_arr_eq(got, want, 32);
	from_hex("9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2", want);
	cr_assert_eq(hmac_sha256(BYTES(key, 131), &seven, 1, got), ERR_NONE);
	cr_assert_arr_eq(got, want, 32);
	NO_LEAKS();
}

static void check_hkdf(const char *salt_hex, const char *key_hex, const char *info_hex,
		       const char *want_hex)
{
	uint8_t salt[80], key[80], info[80], want[82], got[82];
	size_t salt_n = from_hex(salt_hex, salt), key_n = from_hex(key_hex, key);
	size_t info_n = from_hex(info_hex, info), n = from_hex(want_hex, want);
	cr_assert_eq(hkdf_sha256(BYTES(salt, salt_n), BYTES(key, key_n), BYTES(info, info_n),
				 got, n),
		     ERR_NONE);
	cr_assert_arr_eq(got, want, n);
}

/* RFC 5869, appendix A.1 to A.3. */
Test(auth_crypto, hkdf_rfc5869, .timeout = 5)
{
	check_hkdf("000102030405060708090a0b0c", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
		   "f0f1f2f3f4f5f6f7f8f9",
		   "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
		   "34007208d5b887185865");
	check_hkdf("606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"
		   "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
		   "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
		   "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
		   "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
		   "404142434445464748494a4b4c4d4e4f",
		   "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf"
		   "d0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeef"
		   "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
		   "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
		   "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
		   "cc30c58179ec3e87c14c01d5c1f3434f1d87");
	check_hkdf("", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "",
		   "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
		   "9d201395faa4b61a96c8");
	NO_LEAKS();
}
