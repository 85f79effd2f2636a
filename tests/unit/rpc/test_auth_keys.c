/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <criterion/criterion.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hex.h"
#include "support/leak.h"

/* ASan's mlock does nothing. */
#ifdef LEAK_CHECKED
#define ASAN true
#else
#define ASAN false
#endif

static struct keyring *ring_of(uint8_t first)
{
	uint8_t secret[32];
	for (int i = 0; i < 32; i++)
		secret[i] = (uint8_t)(first + i);
	struct keyring *k = NULL;
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	return k;
}

static void check_role(const struct keyring *k, enum role role, const char *tenant,
		       const char *hex)
{
	uint8_t got[32], want[32];
	from_hex(hex, want);
	cr_assert_eq(keyring_role_key(k, 0, role, tenant, got), ERR_NONE);
	cr_assert_arr_eq(got, want, 32);
}

/* Made by an independent program; a change of any would lock every deployed client out. */
Test(auth_keys, derivation_is_frozen, .timeout = 5)
{
	struct keyring *k = ring_of(0);
	check_role(k, ROLE_CLIENT, "default",
		   "e3ebfa4a67dd84a017a933712052d22b216fbd92b67936c09926ff67b2b6e89c");
	check_role(k, ROLE_CLIENT, "a",
		   "2660efe2ca0e65d87878ae6be4a72ea7c9d90c79d3f3b2a1d942a17fb987681a");
	check_role(k, ROLE_HOLDER, NULL,
		   "e9fe94f5878c0cb0ae163953d09befa0382a35844d412a094f24bd0b24081a3c");
	check_role(k, ROLE_SERVICE, "",
		   "f18da3eeb054fdf7d76a28e658ed19343d79c147f2a0ef026865c11e6fbf2378");
	check_role(k, ROLE_ADMIN, NULL,
		   "2552c9fa3d34f1e69607027ac08ff9a265db84bdad705885a496591cc286ddac");
	uint8_t got[32], want[32];
	from_hex("df07713598f56b27f363b051dc274fed53015d963867ad81646a69970d5f5dce", want);
	cr_assert_eq(keyring_ticket_key(k, 0, "h1", got), ERR_NONE);
	cr_assert_arr_eq(got, want, 32);
	cr_assert_eq(keyring_ticket_key(k, 1, "h1", got), ERR_NOT_FOUND);
	cr_assert_eq(keyring_ticket_key(k, 0, "", got), ERR_NOT_FOUND);
	keyring_free(k);
	NO_LEAKS();
}

Test(auth_keys, only_a_client_has_a_tenant, .timeout = 5)
{
	struct keyring *k = ring_of(0);
	cr_assert(keyring_is_cluster(k));
	cr_assert(keyring_holds(k, ROLE_CLIENT, "t"));
	cr_assert_not(keyring_holds(k, ROLE_CLIENT, NULL));
	cr_assert_not(keyring_holds(k, ROLE_CLIENT, ""));
	cr_assert_not(keyring_holds(k, ROLE_CLIENT, "a/b"));
	cr_assert_not(keyring_holds(k, ROLE_CLIENT, "service/../x"));
	cr_assert_not(keyring_holds(k, ROLE_SERVICE, "t"));
	cr_assert_not(keyring_holds(k, ROLE_NONE, NULL));
	cr_assert_not(keyring_holds(k, (enum role)9, NULL));
	keyring_free(k);
	keyring_free(NULL);
	NO_LEAKS();
}

Test(auth_keys, a_role_ring_holds_that_role_alone, .timeout = 5)
{
	uint8_t key[32] = { 7 }, got[32];
	struct keyring *k;
	cr_assert_eq(keyring_new_role(ROLE_CLIENT, NULL, key, &k), ERR_INVALID_PARAMS);
	cr_assert_eq(keyring_new_role(ROLE_ADMIN, "t", key, &k), ERR_INVALID_PARAMS);
	cr_assert_eq(keyring_new_role(ROLE_CLIENT, "t", key, &k), ERR_NONE);
	cr_assert_not(keyring_is_cluster(k));
	cr_assert(keyring_holds(k, ROLE_CLIENT, "t"));
	cr_assert_not(keyring_holds(k, ROLE_CLIENT, "u"));
	cr_assert_not(keyring_holds(k, ROLE_ADMIN, NULL));
	cr_assert_eq(keyring_role_key(k, 1, ROLE_CLIENT, "t", got), ERR_NOT_FOUND);
	cr_assert_eq(keyring_ticket_key(k, 0, "h1", got), ERR_NOT_FOUND);
	keyring_free(k);
	NO_LEAKS();
}

Test(auth_keys, rotation_accepts_two_speaks_one, .timeout = 5)
{
	uint8_t now[32] = { 1 }, before[32] = { 2 }, a[32], b[32];
	struct keyring *both, *old;
	cr_assert_eq(keyring_new(now, before, &both), ERR_NONE);
	cr_assert_eq(keyring_new(before, NULL, &old), ERR_NONE);
	cr_assert_eq(keyring_role_key(both, 0, ROLE_ADMIN, NULL, a), ERR_NONE);
	cr_assert_eq(keyring_role_key(old, 0, ROLE_ADMIN, NULL, b), ERR_NONE);
	cr_assert_neq(memcmp(a, b, 32), 0);
	cr_assert_eq(keyring_role_key(both, 1, ROLE_ADMIN, NULL, a), ERR_NONE);
	cr_assert_arr_eq(a, b, 32);
	cr_assert_eq(keyring_role_key(both, 2, ROLE_ADMIN, NULL, a), ERR_NOT_FOUND);
	keyring_free(both);
	keyring_free(old);
	NO_LEAKS();
}

/* What `pomelo secret derive` prints is what a client loads, and nothing more. */
Test(auth_keys, a_derived_line_reads_back, .timeout = 5)
{
	struct keyring *k = ring_of(9), *r = NULL;
	uint8_t a[32], b[32];
	struct buf line = BUF_INIT(4096);
	struct why why = { 0 };
	cr_assert_eq(keyring_derive_line(k, ROLE_CLIENT, "team-1", &line, &why), ERR_NONE);
	cr_assert_eq(keyring_derive_line(k, ROLE_HOLDER, NULL, &line, &why), ERR_NONE);
	cr_assert_eq(strncmp((char *)line.p, "pomelo-key v1 client team-1 ", 28), 0);
	cr_assert_eq(keyring_parse("test", buf_bytes(&line), &r, &why), ERR_NONE, "%s",
		     why.text);
	cr_assert_eq(keyring_role_key(k, 0, ROLE_CLIENT, "team-1", a), ERR_NONE);
	cr_assert_eq(keyring_role_key(r, 0, ROLE_CLIENT, "team-1", b), ERR_NONE);
	cr_assert_arr_eq(a, b, 32);
	cr_assert(keyring_holds(r, ROLE_HOLDER, NULL));
	cr_assert_not(keyring_holds(r, ROLE_SERVICE, NULL));

	cr_assert_eq(keyring_derive_line(r, ROLE_ADMIN, NULL, &line, &why), ERR_FORBIDDEN);
	cr_assert(strstr(why.text, "admin"));
	why = (struct why){ 0 };
	cr_assert_eq(keyring_derive_line(k, ROLE_CLIENT, "no spaces", &line, &why),
		     ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "1..64"));
	buf_fini(&line);
	keyring_free(k);
	keyring_free(r);
	NO_LEAKS();
}

/* I1: locked, left out of dumps, gone in a forked child. Read off the kernel's own account. */
Test(auth_keys, memory_is_locked_undumpable_wiped_on_fork, .timeout = 5)
{
	struct keyring *k = ring_of(3);
	FILE *f = fopen("/proc/self/smaps", "r");
	cr_assert(f);
	char line[512], flags[512] = "";
	bool here = false;
	while (fgets(line, sizeof(line), f)) {
		unsigned long lo, hi;
		if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
			here = (uintptr_t)k >= lo && (uintptr_t)k < hi;
		if (here && strncmp(line, "VmFlags:", 8) == 0)
			snprintf(flags, sizeof(flags), "%s", line);
	}
	fclose(f);
	cr_assert(strstr(flags, " lo") || ASAN, "%s", flags);
	cr_assert(strstr(flags, " dd"), "%s", flags);
	cr_assert(strstr(flags, " wf"), "%s", flags);

	pid_t pid = fork();
	if (pid == 0) {
		uint8_t key[32];
		bool gone = keyring_role_key(k, 0, ROLE_ADMIN, NULL, key) == ERR_FORKED &&
			    !keyring_is_cluster(k);
		_exit(gone ? 0 : 1);
	}
	int status;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	keyring_free(k);
}

Test(auth_keys, no_lock_no_ring, .timeout = 5)
{
	if (ASAN)
		cr_skip("mlock is a no-op here");
	uint8_t key[32] = { 1 };
	struct keyring *k = NULL;
	struct why why = { 0 };
	struct rlimit none = { 0 };
	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
	if (geteuid() == 0) /* root may lock without limit */
		cr_assert_eq(seteuid(65534), 0);
	cr_assert_eq(keyring_new(key, NULL, &k), ERR_NO_MEMORY);
	cr_assert_eq(keyring_parse("f", BYTES_STR("x"), &k, &why), ERR_NO_MEMORY);
	cr_assert(strstr(why.text, "ulimit -l"));
}

struct bad_text {
	const char *text;
	const char *says;
};

#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

Test(auth_keys, texts_that_are_no_keys, .timeout = 5)
{
	static const struct bad_text bad[] = {
		{ "", "is empty" },
		{ "\n", "line 1" },
		{ HEX64 "\n\n", "line 2" },
		{ HEX64 "\r\n", "line 1" },
		{ HEX64 " \n", "line 1" },
		{ " " HEX64 "\n", "line 1" },
		{ HEX64 "0\n", "line 1" },
		{ "0" HEX64 "\n", "line 1" },
		{ "0000000000000000000000000000000000000000000000000000000000000000\n",
		  "line 1" },
		{ "abababababababababababababababababababababababababababababababab\n",
		  "line 1" },
		{ "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n",
		  "line 1" },
		{ HEX64 "\n" HEX64 "\n" HEX64 "\n", "line 3" },
		{ HEX64 "\npomelo-key v1 admin - " HEX64 "\n", "line 2" },
		{ "pomelo-key v1 admin - " HEX64 "\n" HEX64 "\n", "line 2" },
		{ "pomelo-key v2 admin - " HEX64 "\n", "line 1" },
		{ "pomelo-key v1 root - " HEX64 "\n", "line 1" },
		{ "pomelo-key v1 admin t " HEX64 "\n", "line 1" },
		{ "pomelo-key v1 client a/b " HEX64 "\n", "line 1" },
		{ "pomelo-key v1 client  a " HEX64 "\n", "line 1" },
		{ "pomelo-key v1 client a " HEX64 " \n", "line 1" },
		{ "pomelo-key v1 client a\n", "line 1" },
		{ "pomelo-key", "line 1" },
		{ "pomelo-keyring v1 admin - " HEX64 "\n", "line 1" },
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct keyring *k = NULL;
		struct why why = { 0 };
		enum err e = keyring_parse("the file", BYTES_STR(bad[i].text), &k, &why);
		cr_assert_eq(e, ERR_CORRUPT, "row %zu", i);
		cr_assert(strstr(why.text, bad[i].says), "row %zu: %s", i, why.text);
		cr_assert(strstr(why.text, "pomelo secret"), "the remedy");
		cr_assert_null(strstr(why.text, "0011"), "no secret in a text");
		cr_assert_null(k);
	}
	NO_LEAKS();
}

Test(auth_keys, role_lines_have_a_limit, .timeout = 5)
{
	struct buf b = BUF_INIT(8192);
	for (int i = 0; i < KEYRING_KEYS_MAX; i++)
		buf_printf(&b, "pomelo-key v1 client t%d " HEX64 "\n", i);
	struct keyring *k;
	struct why why = { 0 };
	cr_assert_eq(keyring_parse("f", buf_bytes(&b), &k, &why), ERR_NONE);
	cr_assert(keyring_holds(k, ROLE_CLIENT, "t15"));
	keyring_free(k);
	buf_printf(&b, "pomelo-key v1 client t16 " HEX64);
	cr_assert_eq(keyring_parse("f", buf_bytes(&b), &k, &why), ERR_CORRUPT);
	cr_assert(strstr(why.text, "line 17") && strstr(why.text, "16 lines"), "%s", why.text);
	buf_fini(&b);
	NO_LEAKS();
}

Test(auth_keys, names, .timeout = 5)
{
	char long_name[66];
	memset(long_name, 'a', 65);
	long_name[65] = '\0';
	cr_assert_not(auth_name_ok(long_name));
	long_name[64] = '\0';
	cr_assert(auth_name_ok(long_name));
	cr_assert(auth_name_ok("A-z_0.9"));
	cr_assert_not(auth_name_ok(""));
	cr_assert_not(auth_name_ok("a b"));
	cr_assert_not(auth_name_ok("\xc3\xa9"));
	for (enum role r = ROLE_NONE; r <= ROLE_ADMIN; r++) {
		enum role back = ROLE_NONE;
		cr_assert_eq(role_parse(role_name(r), &back), r != ROLE_NONE);
		cr_assert_eq(back, r);
	}
	cr_assert_str_eq(role_name((enum role)77), "none");
}
