/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_state.h"

#include <string.h>

const char *meta_type_name(uint32_t type)
{
	switch ((enum meta_type)type) {
#define NAME_CASE(NAME, number, msg) \
	case META_##NAME:            \
		return #NAME;
		META_RECORDS(NAME_CASE)
#undef NAME_CASE
	}
	return "UNKNOWN";
}

void meta_rec_encode(struct buf *b, const struct meta_rec *r)
{
	switch (r->type) {
#define ENC_CASE(NAME, number, msg)     \
	case META_##NAME:               \
		enc_##msg(b, &r->NAME); \
		break;
		META_RECORDS(ENC_CASE)
#undef ENC_CASE
	}
}

enum err meta_rec_decode(uint32_t type, struct bytes body, struct arena *a,
			 struct meta_rec *out, struct why *why)
{
	struct dec d = DEC_INIT(body, a, why);
	out->type = (enum meta_type)type;
	switch ((enum meta_type)type) {
#define DEC_CASE(NAME, number, msg) \
	case META_##NAME:           \
		return dec_##msg(&d, &out->NAME);
		META_RECORDS(DEC_CASE)
#undef DEC_CASE
	}
	return why_set(why, ERR_UNSUPPORTED,
		       "a record of type %u, which this release does not know", type);
}

/* ---- soundness ---- */

#define SHARDS_MAX 64 /* design.md section 6 */

static enum err bad(struct why *why, const struct meta_rec *r, const char *field,
		    const char *want)
{
	return why_set(why, ERR_INVALID_PARAMS, "meta record %s: %s must be %s",
		       meta_type_name(r->type), field, want);
}

/* 1..64 of [A-Za-z0-9._-], as everywhere (answers.md). */
static bool name_ok(struct bytes v)
{
	static const char legal[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	for (size_t i = 0; i < v.n; i++)
		if (!memchr(legal, v.p[i], sizeof(legal) - 1))
			return false;
	return v.n >= 1 && v.n <= 64;
}

static enum err check_holder(const struct meta_rec *r, const struct msg_meta_holder *m,
			     struct why *why)
{
	if (!name_ok(m->id))
		return bad(why, r, "id", "1..64 characters of A-Z a-z 0-9 . _ -");
	if (m->kind != 1 && m->kind != 2)
		return bad(why, r, "kind", "1 (agent) or 2 (owner)");
	if (m->addrs.n > 8 || m->host.n > 64)
		return bad(why, r, "addrs", "at most 8, host at most 64 bytes");
	for (size_t i = 0; i < m->addrs.n; i++)
		if (m->addrs.p[i].n > 256 || memchr(m->addrs.p[i].p, '\0', m->addrs.p[i].n))
			return bad(why, r, "addrs", "at most 256 bytes each, without NUL");
	if (m->host.n && memchr(m->host.p, '\0', m->host.n))
		return bad(why, r, "host", "without NUL");
	if (m->fd_path.n > 107 || (m->fd_path.n && memchr(m->fd_path.p, '\0', m->fd_path.n)))
		return bad(why, r, "fd_path", "at most 107 bytes, without NUL");
	return ERR_NONE;
}

static enum err check_place(const struct meta_rec *r, struct bytes holder, uint32_t shard,
			    struct why *why)
{
	if (!name_ok(holder))
		return bad(why, r, "holder", "1..64 characters of A-Z a-z 0-9 . _ -");
	return shard < SHARDS_MAX ? ERR_NONE : bad(why, r, "shard", "0..63");
}

static enum err check_tomb(const struct meta_rec *r, const struct msg_meta_tomb *m,
			   struct why *why)
{
	if (!name_ok(m->tenant))
		return bad(why, r, "tenant", "1..64 characters of A-Z a-z 0-9 . _ -");
	if (m->key.n == 0 || m->key.n > 1024)
		return bad(why, r, "key", "1..1024 bytes");
	if (m->ceiling == 0 || m->now < m->ceiling)
		return bad(why, r, "ceiling", "above 0 and at most now");
	return check_place(r, m->holder, m->shard, why);
}

static enum err check_range(const struct meta_rec *r, const struct msg_meta_range *m,
			    struct why *why)
{
	if (m->match != 1 && m->match != 2)
		return bad(why, r, "match", "1 (prefix) or 2 (object group)");
	if (m->match == 2 && (m->prefix.n == 0 || m->tenant.n == 0))
		return bad(why, r, "match",
			   "2 (object group) with a tenant and the group's id");
	if (m->tenant.n && !name_ok(m->tenant))
		return bad(why, r, "tenant", "empty or 1..64 characters of A-Z a-z 0-9 . _ -");
	if (m->prefix.n > 1024)
		return bad(why, r, "prefix", "at most 1024 bytes");
	if (m->ceiling == 0 || m->now < m->ceiling)
		return bad(why, r, "ceiling", "above 0 and at most now");
	return check_place(r, m->holder, m->shard, why);
}

static enum err check_claim(const struct meta_rec *r, struct bytes space, struct bytes name,
			    struct bytes owner, struct why *why)
{
	if (!name_ok(space))
		return bad(why, r, "space", "1..64 characters of A-Z a-z 0-9 . _ -");
	if (name.n == 0 || name.n > 256)
		return bad(why, r, "name", "1..256 bytes");
	return name_ok(owner) ? ERR_NONE
			      : bad(why, r, "owner", "1..64 characters of A-Z a-z 0-9 . _ -");
}

static enum err check_group(const struct meta_rec *r, struct bytes tenant, struct bytes group,
			    struct why *why)
{
	if (!name_ok(tenant))
		return bad(why, r, "tenant", "1..64 characters of A-Z a-z 0-9 . _ -");
	return group.n >= 1 && group.n <= 256 ? ERR_NONE : bad(why, r, "group", "1..256 bytes");
}

enum err meta_rec_check(const struct meta_rec *r, struct why *why)
{
	enum err e;
	switch (r->type) {
	case META_TERM:
		return r->TERM.term > 0 && r->TERM.term < 1u << 24
			       ? ERR_NONE
			       : bad(why, r, "term", "1..2^24-1");
	case META_HOLDER:
		return check_holder(r, &r->HOLDER, why);
	case META_FORGET:
		return check_place(r, r->FORGET.holder, 0, why);
	case META_TOMB:
		return check_tomb(r, &r->TOMB, why);
	case META_RANGE:
		return check_range(r, &r->RANGE, why);
	case META_FLOOR:
		if (r->FLOOR.floor == 0)
			return bad(why, r, "floor", "above 0");
		return check_place(r, r->FLOOR.holder, r->FLOOR.shard, why);
	case META_SETTLED:
		return check_place(r, r->SETTLED.holder, r->SETTLED.shard, why);
	case META_CLAIM:
		e = check_claim(r, r->CLAIM.space, r->CLAIM.name, r->CLAIM.owner, why);
		if (e == ERR_NONE && r->CLAIM.value.n > 4096)
			e = bad(why, r, "value", "at most 4096 bytes");
		return e;
	case META_UNCLAIM:
		return check_claim(r, r->UNCLAIM.space, r->UNCLAIM.name, r->UNCLAIM.owner, why);
	case META_VIEW:
		e = check_group(r, r->VIEW.tenant, r->VIEW.group, why);
		if (e == ERR_NONE && r->VIEW.blob.n > 1 << 20)
			e = bad(why, r, "blob", "at most 1 MiB");
		return e;
	case META_UNVIEW:
		return check_group(r, r->UNVIEW.tenant, r->UNVIEW.group, why);
	}
	return why_set(why, ERR_INVALID_PARAMS, "meta record type %u is none",
		       (unsigned)r->type);
}
