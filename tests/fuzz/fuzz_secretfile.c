/* SPDX-License-Identifier: Apache-2.0 */
/* A secret file's text (B5): keys or one printable line that tells nothing of the content. */
#include "rpc/auth_crypto.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check_text(const char *s)
{
	assert(s[0]);
	for (; *s; s++)
		assert((unsigned char)*s >= 0x20 && *s != 0x7f);
}

/* What a ring yields for a role reads back as a ring of that role, with the same key. */
static void check_round(const struct keyring *k, enum role role, const char *tenant)
{
	struct buf line = BUF_INIT(512);
	struct keyring *again = NULL;
	uint8_t a[AUTH_KEY_BYTES], b[AUTH_KEY_BYTES];
	struct why w = { 0 };
	if (keyring_derive_line(k, role, tenant, &line, &w) == ERR_NONE) {
		assert(keyring_parse("again", buf_bytes(&line), &again, &w) == ERR_NONE);
		assert(!keyring_is_cluster(again));
		assert(keyring_role_key(k, 0, role, tenant, a) == ERR_NONE);
		assert(keyring_role_key(again, 0, role, tenant, b) == ERR_NONE);
		assert(memcmp(a, b, sizeof(a)) == 0);
		keyring_free(again);
	}
	buf_fini(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct keyring *k = NULL;
	struct why w = { 0 };
	if (keyring_parse("fuzz", BYTES(p, n), &k, &w) != ERR_NONE) {
		assert(!k && w.err != ERR_NONE);
		check_text(w.text);
		return 0;
	}
	check_round(k, ROLE_CLIENT, "default");
	for (enum role r = ROLE_HOLDER; r <= ROLE_ADMIN; r++)
		check_round(k, r, NULL);
	keyring_free(k);
	return 0;
}
