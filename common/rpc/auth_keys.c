/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define KEYRING_SECRETS_MAX 2
#define KEYRING_MAGIC	    0x706b7231u

struct role_key {
	enum role role;
	char tenant[TENANT_MAX + 1];
	uint8_t key[AUTH_KEY_BYTES];
};

/* The whole of a mapping of its own. After a fork the child sees zeros: no magic, so no keys.
 */
struct keyring {
	uint32_t magic;
	uint32_t n_secrets, n_keys;
	uint8_t secrets[KEYRING_SECRETS_MAX][AUTH_KEY_BYTES];
	struct role_key keys[KEYRING_KEYS_MAX];
};

const char *role_name(enum role r)
{
	switch (r) {
	case ROLE_CLIENT:
		return "client";
	case ROLE_HOLDER:
		return "holder";
	case ROLE_SERVICE:
		return "service";
	case ROLE_ADMIN:
		return "admin";
	case ROLE_NONE:
		break;
	}
	return "none";
}

bool role_parse(const char *s, enum role *out)
{
	for (enum role r = ROLE_CLIENT; r <= ROLE_ADMIN; r++)
		if (strcmp(s, role_name(r)) == 0) {
			*out = r;
			return true;
		}
	return false;
}

bool auth_name_ok(const char *s)
{
	size_t n =
		strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
	return n >= 1 && n <= TENANT_MAX && s[n] == '\0';
}

/* A client has a tenant, the others have none. */
static bool role_tenant_ok(enum role role, const char *tenant)
{
	if (role == ROLE_CLIENT)
		return tenant && auth_name_ok(tenant);
	return role > ROLE_CLIENT && role <= ROLE_ADMIN && (!tenant || !tenant[0]);
}

static enum err keyring_map(struct keyring **out)
{
	void *p = mmap(NULL, sizeof(struct keyring), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return ERR_NO_MEMORY;
	if (mlock(p, sizeof(struct keyring)) ||
	    madvise(p, sizeof(struct keyring), MADV_DONTDUMP) ||
	    madvise(p, sizeof(struct keyring), MADV_WIPEONFORK)) {
		munmap(p, sizeof(struct keyring));
		return ERR_NO_MEMORY;
	}
	*out = p;
	(*out)->magic = KEYRING_MAGIC;
	return ERR_NONE;
}

enum err keyring_new(const uint8_t *secret, const uint8_t *previous, struct keyring **out)
{
	struct keyring *k;
	enum err e = keyring_map(&k);
	if (e != ERR_NONE)
		return e;
	memcpy(k->secrets[k->n_secrets++], secret, AUTH_KEY_BYTES);
	if (previous)
		memcpy(k->secrets[k->n_secrets++], previous, AUTH_KEY_BYTES);
	*out = k;
	return ERR_NONE;
}

static enum err keyring_add(struct keyring *k, enum role role, const char *tenant,
			    const uint8_t *key)
{
	if (k->n_keys == KEYRING_KEYS_MAX)
		return ERR_TOO_LARGE;
	struct role_key *rk = &k->keys[k->n_keys++];
	rk->role = role;
	snprintf(rk->tenant, sizeof(rk->tenant), "%s", tenant ? tenant : "");
	memcpy(rk->key, key, AUTH_KEY_BYTES);
	return ERR_NONE;
}

enum err keyring_new_role(enum role role, const char *tenant, const uint8_t *key,
			  struct keyring **out)
{
	if (!role_tenant_ok(role, tenant))
		return ERR_INVALID_PARAMS;
	struct keyring *k;
	enum err e = keyring_map(&k);
	if (e != ERR_NONE)
		return e;
	e = keyring_add(k, role, tenant, key);
	assert(e == ERR_NONE);
	*out = k;
	return ERR_NONE;
}

void keyring_free(struct keyring *k)
{
	if (!k)
		return;
	explicit_bzero(k, sizeof(*k));
	munmap(k, sizeof(*k));
}

bool keyring_is_cluster(const struct keyring *k)
{
	return k->magic == KEYRING_MAGIC && k->n_secrets > 0;
}

static enum err derive(const struct keyring *k, unsigned which, const char *info,
		       uint8_t out[AUTH_KEY_BYTES])
{
	if (which >= k->n_secrets)
		return ERR_NOT_FOUND;
	return hkdf_sha256(BYTES(NULL, 0), BYTES(k->secrets[which], AUTH_KEY_BYTES),
			   BYTES_STR(info), out, AUTH_KEY_BYTES);
}

enum err keyring_role_key(const struct keyring *k, unsigned which, enum role role,
			  const char *tenant, uint8_t out[AUTH_KEY_BYTES])
{
	if (k->magic != KEYRING_MAGIC)
		return ERR_FORKED;
	if (!role_tenant_ok(role, tenant))
		return ERR_NOT_FOUND;
	if (k->n_secrets > 0) {
		char info[sizeof("pomelo/v1/role/service/") + TENANT_MAX];
		bool has_tenant = role == ROLE_CLIENT;
		snprintf(info, sizeof(info), "pomelo/v1/role/%s%s%s", role_name(role),
			 has_tenant ? "/" : "", has_tenant ? tenant : "");
		return derive(k, which, info, out);
	}
	for (uint32_t i = 0; i < k->n_keys; i++) {
		const struct role_key *rk = &k->keys[i];
		if (rk->role != role || strcmp(rk->tenant, tenant ? tenant : "") != 0)
			continue;
		if (which-- > 0)
			continue;
		memcpy(out, rk->key, AUTH_KEY_BYTES);
		return ERR_NONE;
	}
	return ERR_NOT_FOUND;
}

enum err keyring_ticket_key(const struct keyring *k, unsigned which, const char *holder,
			    uint8_t out[AUTH_KEY_BYTES])
{
	if (k->magic != KEYRING_MAGIC)
		return ERR_FORKED;
	if (!auth_name_ok(holder))
		return ERR_NOT_FOUND;
	char info[sizeof("pomelo/v1/ticket/") + HOLDER_MAX];
	snprintf(info, sizeof(info), "pomelo/v1/ticket/%s", holder);
	return derive(k, which, info, out);
}

bool keyring_holds(const struct keyring *k, enum role role, const char *tenant)
{
	uint8_t key[AUTH_KEY_BYTES];
	enum err e = keyring_role_key(k, 0, role, tenant, key);
	explicit_bzero(key, sizeof(key));
	return e == ERR_NONE;
}

enum err keyring_derive_line(const struct keyring *k, enum role role, const char *tenant,
			     struct buf *out, struct why *why)
{
	if (!role_tenant_ok(role, tenant))
		return why_set(
			why, ERR_INVALID_PARAMS,
			role == ROLE_CLIENT
				? "role client needs a tenant: 1..64 characters of A-Z a-z 0-9 . _ -"
				: "role must be client, holder, service or admin, and only client "
				  "has a tenant");
	uint8_t key[AUTH_KEY_BYTES] = { 0 };
	enum err e = keyring_role_key(k, 0, role, tenant, key);
	if (e == ERR_NOT_FOUND)
		e = why_set(
			why, ERR_FORBIDDEN,
			"this secret file does not hold the key of role %s; use the cluster's "
			"secret file",
			role_name(role));
	if (e == ERR_NONE) {
		buf_printf(out, "pomelo-key v1 %s %s ", role_name(role),
			   role == ROLE_CLIENT ? tenant : "-");
		for (size_t i = 0; i < sizeof(key); i++)
			buf_printf(out, "%02x", key[i]);
		buf_printf(out, "\n");
		e = buf_err(out);
	}
	explicit_bzero(key, sizeof(key));
	return e;
}

/* ---- parsing ---- */

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Exactly 64 digits, and not one byte over and over: no generator made that. */
static bool key_from_hex(struct bytes text, uint8_t out[AUTH_KEY_BYTES])
{
	if (text.n != (size_t)2 * AUTH_KEY_BYTES)
		return false;
	bool varied = false;
	for (size_t i = 0; i < AUTH_KEY_BYTES; i++) {
		int hi = hex_digit(text.p[2 * i]), lo = hex_digit(text.p[2 * i + 1]);
		if (hi < 0 || lo < 0)
			return false;
		out[i] = (uint8_t)(hi << 4 | lo);
		varied |= out[i] != out[0];
	}
	return varied;
}

/* The next word of *line, of words parted by single spaces; false when there is none. */
static bool next_word(struct bytes *line, char *out, size_t size)
{
	const uint8_t *end = memchr(line->p, ' ', line->n);
	size_t n = end ? (size_t)(end - line->p) : 0;
	if (!end || n == 0 || n >= size || memchr(line->p, '\0', n))
		return false;
	memcpy(out, line->p, n);
	out[n] = '\0';
	*line = BYTES(end + 1, line->n - n - 1);
	return true;
}

static bool parse_role_line(struct keyring *k, struct bytes line)
{
	char tag[11], version[3], role_text[8], tenant[TENANT_MAX + 1];
	uint8_t key[AUTH_KEY_BYTES] = { 0 };
	enum role role;
	bool ok = next_word(&line, tag, sizeof(tag)) && strcmp(tag, "pomelo-key") == 0 &&
		  next_word(&line, version, sizeof(version)) && strcmp(version, "v1") == 0 &&
		  next_word(&line, role_text, sizeof(role_text)) &&
		  role_parse(role_text, &role) && next_word(&line, tenant, sizeof(tenant)) &&
		  key_from_hex(line, key);
	if (ok && role != ROLE_CLIENT) {
		ok = strcmp(tenant, "-") == 0;
		tenant[0] = '\0';
	}
	ok = ok && role_tenant_ok(role, tenant) &&
	     keyring_add(k, role, tenant, key) == ERR_NONE;
	explicit_bzero(key, sizeof(key));
	return ok;
}

static bool parse_line(struct keyring *k, struct bytes line)
{
	if (line.n >= 7 && memcmp(line.p, "pomelo-", 7) == 0)
		return k->n_secrets == 0 && parse_role_line(k, line);
	if (k->n_keys > 0 || k->n_secrets == KEYRING_SECRETS_MAX)
		return false;
	if (!key_from_hex(line, k->secrets[k->n_secrets]))
		return false;
	k->n_secrets++;
	return true;
}

enum err keyring_parse(const char *name, struct bytes text, struct keyring **out,
		       struct why *why)
{
	struct keyring *k;
	enum err e = keyring_map(&k);
	if (e != ERR_NONE)
		return why_set(
			why, e,
			"cannot lock memory for the keys of %s (%s); raise the limit of locked "
			"memory (ulimit -l) to 64 KiB or more",
			name, strerror(errno));
	unsigned line_nr = 0;
	while (text.n > 0) {
		const uint8_t *nl = memchr(text.p, '\n', text.n);
		struct bytes line = BYTES(text.p, nl ? (size_t)(nl - text.p) : text.n);
		text = nl ? BYTES(nl + 1, text.n - line.n - 1) : BYTES(NULL, 0);
		line_nr++;
		if (parse_line(k, line))
			continue;
		keyring_free(k);
		return why_set(
			why, ERR_CORRUPT,
			"%s line %u is no key: want 64 hex digits (at most 2 lines) or "
			"'pomelo-key v1 ROLE TENANT 64HEX' (at most %d lines); write it anew with "
			"'pomelo secret new' or 'pomelo secret derive'",
			name, line_nr, KEYRING_KEYS_MAX);
	}
	if (line_nr == 0) {
		keyring_free(k);
		return why_set(why, ERR_CORRUPT,
			       "%s is empty; write it anew with 'pomelo secret new'", name);
	}
	*out = k;
	return ERR_NONE;
}
