/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of run/agent.fd: fixed layouts, little-endian, behind one head of 8 bytes. */
#include <string.h>

#include "rpc/auth_crypto.h"
#include "store/shmsock_priv.h"

#define SHMSOCK_MAGIC 0x536c6d70u /* "pmlS" */
enum { CHALLENGE = 1, ASK = 2, GRANT = 3 };

struct head {
	uint32_t magic;
	uint16_t version;
	uint8_t type, zero;
};
struct challenge {
	struct head h;
	uint8_t nonce[AUTH_NONCE_BYTES];
};
struct ask {
	struct head h;
	uint8_t role, write, tenant_bytes, zero;
	char tenant[TENANT_MAX];
	uint8_t instance[16], nonce[AUTH_NONCE_BYTES], mac[32];
};
struct grant {
	struct head h;
	uint32_t status, session, n_segments, n_slots, n_lanes, n_shards;
	uint8_t pool[16];
	uint64_t bytes[MEMPOOL_SEGMENTS_MAX];
	uint8_t mac[32];
};
static_assert(sizeof(struct challenge) == 40 && sizeof(struct ask) == 156 &&
		      sizeof(struct grant) == 592 && sizeof(struct grant) <= SHMSOCK_MSG_MAX,
	      "no padding: these are the bytes on the socket");

static struct head head_of(uint8_t type)
{
	return (struct head){ .magic = SHMSOCK_MAGIC,
			      .version = SHMSOCK_VERSION,
			      .type = type };
}

static enum err check(struct bytes in, uint8_t type, void *out, size_t n)
{
	struct head h;
	if (in.n < sizeof(h))
		return ERR_BAD_MESSAGE;
	memcpy(&h, in.p, sizeof(h));
	if (h.magic != SHMSOCK_MAGIC || h.type != type || h.zero != 0)
		return ERR_BAD_MESSAGE;
	if (h.version != SHMSOCK_VERSION)
		return ERR_VERSION_MISMATCH;
	if (in.n != n)
		return ERR_BAD_MESSAGE;
	memcpy(out, in.p, n);
	return ERR_NONE;
}

size_t shmsock_put_challenge(uint8_t *out, const struct shmsock_challenge *m)
{
	struct challenge c = { .h = head_of(CHALLENGE) };
	memcpy(c.nonce, m->nonce, sizeof(c.nonce));
	memcpy(out, &c, sizeof(c));
	return sizeof(c);
}

enum err shmsock_get_challenge(struct bytes in, struct shmsock_challenge *out)
{
	struct challenge c;
	enum err e = check(in, CHALLENGE, &c, sizeof(c));
	if (e == ERR_NONE)
		memcpy(out->nonce, c.nonce, sizeof(c.nonce));
	return e;
}

size_t shmsock_put_ask(uint8_t *out, const struct shmsock_ask_msg *m)
{
	size_t n = strnlen(m->tenant, TENANT_MAX);
	struct ask a = { .h = head_of(ASK),
			 .role = (uint8_t)m->role,
			 .write = m->write,
			 .tenant_bytes = (uint8_t)n };
	memcpy(a.tenant, m->tenant, n);
	memcpy(a.instance, m->instance, sizeof(a.instance));
	memcpy(a.nonce, m->nonce, sizeof(a.nonce));
	memcpy(a.mac, m->mac, sizeof(a.mac));
	memcpy(out, &a, sizeof(a));
	return sizeof(a);
}

enum err shmsock_get_ask(struct bytes in, struct shmsock_ask_msg *out)
{
	struct ask a;
	enum err e = check(in, ASK, &a, sizeof(a));
	if (e)
		return e;
	bool tenant = a.role == ROLE_CLIENT;
	if (a.write > 1 || a.tenant_bytes > TENANT_MAX || tenant != (a.tenant_bytes > 0) ||
	    (!tenant && a.role != ROLE_SERVICE && a.role != ROLE_ADMIN))
		return ERR_BAD_MESSAGE;
	struct shmsock_ask_msg m = { .role = (enum role)a.role, .write = a.write };
	memcpy(m.tenant, a.tenant, a.tenant_bytes);
	if (tenant && !auth_name_ok(m.tenant))
		return ERR_BAD_MESSAGE;
	memcpy(m.instance, a.instance, sizeof(m.instance));
	memcpy(m.nonce, a.nonce, sizeof(m.nonce));
	memcpy(m.mac, a.mac, sizeof(m.mac));
	*out = m;
	return ERR_NONE;
}

size_t shmsock_put_grant(uint8_t *out, const struct shmsock_grant *m)
{
	struct grant g = { .h = head_of(GRANT),
			   .status = m->status,
			   .session = m->session,
			   .n_segments = m->n_segments,
			   .n_slots = m->n_slots,
			   .n_lanes = m->n_lanes,
			   .n_shards = m->n_shards };
	memcpy(g.pool, m->pool, sizeof(g.pool));
	memcpy(g.bytes, m->bytes, sizeof(g.bytes));
	memcpy(g.mac, m->mac, sizeof(g.mac));
	memcpy(out, &g, sizeof(g));
	return sizeof(g);
}

enum err shmsock_get_grant(struct bytes in, struct shmsock_grant *out)
{
	struct grant g;
	enum err e = check(in, GRANT, &g, sizeof(g));
	if (e)
		return e;
	if (g.status == 0 && (g.n_segments < 1 || g.n_segments > MEMPOOL_SEGMENTS_MAX))
		return ERR_BAD_MESSAGE;
	*out = (struct shmsock_grant){ .status = g.status,
				       .session = g.session,
				       .n_segments = g.n_segments,
				       .n_slots = g.n_slots,
				       .n_lanes = g.n_lanes,
				       .n_shards = g.n_shards };
	memcpy(out->pool, g.pool, sizeof(out->pool));
	memcpy(out->bytes, g.bytes, sizeof(out->bytes));
	memcpy(out->mac, g.mac, sizeof(out->mac));
	return ERR_NONE;
}

/* ---- proofs ---- */

static enum err proof(const uint8_t key[AUTH_KEY_BYTES], const char *label,
		      struct bytes nonce_agent, struct bytes nonce_client, struct bytes text,
		      uint8_t mac[32])
{
	const struct bytes parts[] = { BYTES_STR(label), nonce_agent, nonce_client, text };
	return hmac_sha256(BYTES(key, AUTH_KEY_BYTES), parts, ARRAY_LEN(parts), mac);
}

enum err shmsock_ask_proof(const uint8_t key[AUTH_KEY_BYTES],
			   const uint8_t nonce_agent[AUTH_NONCE_BYTES],
			   const struct shmsock_ask_msg *m, uint8_t mac[32])
{
	uint8_t text[SHMSOCK_MSG_MAX];
	size_t n = shmsock_put_ask(text, m);
	return proof(key, "pomelo/v1/shm/ask", BYTES(nonce_agent, AUTH_NONCE_BYTES),
		     BYTES(m->nonce, AUTH_NONCE_BYTES), BYTES(text, n - 32), mac);
}

enum err shmsock_grant_proof(const uint8_t key[AUTH_KEY_BYTES],
			     const uint8_t nonce_agent[AUTH_NONCE_BYTES],
			     const uint8_t nonce_client[AUTH_NONCE_BYTES],
			     const struct shmsock_grant *m, uint8_t mac[32])
{
	uint8_t text[SHMSOCK_MSG_MAX];
	size_t n = shmsock_put_grant(text, m);
	return proof(key, "pomelo/v1/shm/grant", BYTES(nonce_agent, AUTH_NONCE_BYTES),
		     BYTES(nonce_client, AUTH_NONCE_BYTES), BYTES(text, n - 32), mac);
}
