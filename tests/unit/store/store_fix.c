/* SPDX-License-Identifier: Apache-2.0 */
#include "store_fix.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/ticket.h"

static void on_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	struct store_fix *x = ctx;
	(void)shard;
	cr_assert_lt(x->n_fenced, ARRAY_LEN(x->fenced));
	x->fenced[x->n_fenced++] = version;
}

static void seeded(void *ctx, void *p, size_t n)
{
	struct store_fix *x = ctx;
	uint8_t *at = p;
	for (size_t i = 0; i < n; i++) {
		x->seed = x->seed * 6364136223846793005ull + 1442695040888963407ull;
		at[i] = (uint8_t)(x->seed >> 56);
	}
}

enum err store_fix_open(struct store_fix *x)
{
	x->why = (struct why){ 0 };
	enum err e = mempool_open(&x->po, &x->p, &x->start, &x->why);
	if (e)
		return e;
	x->ho.pool = x->p;
	return hold_new(&x->ho, &x->h);
}

void store_fix_init(struct store_fix *x, struct pool_backing *b)
{
	*x = (struct store_fix){ .seed = 42, .b = b };
	if (!b)
		cr_assert_eq(pool_memory_new(&x->b), ERR_NONE);
	x->po = (struct mempool_opts){ .backing = x->b,
				       .boot_id = "this boot",
				       .segment_bytes = 1 << 20,
				       .n_slots = 8,
				       .heap_bytes = 32768,
				       .n_lanes = 2,
				       .n_shards = 1,
				       .random = seeded,
				       .random_ctx = x };
	x->ho = (struct hold_opts){ .ring = 4, .closed = 4, .fenced = on_fenced, .ctx = x };
	enum err e = store_fix_open(x);
	cr_assert_eq(e, ERR_NONE, "%s: %s", err_name(e), x->why.text);
}

void store_fix_kill(struct store_fix *x)
{
	hold_close(x->h);
	mempool_close(x->p);
	x->h = NULL;
	x->p = NULL;
}

void store_fix_fini(struct store_fix *x)
{
	store_fix_kill(x);
	pool_backing_free(x->b);
}

struct shmpool *store_fix_client(struct store_fix *x, uint32_t *id)
{
	struct shmpool_fds fds;
	struct shmpool *c;
	uint32_t session;
	cr_assert_eq(mempool_session(x->p, true, &session, &fds, &x->why), ERR_NONE, "%s",
		     x->why.text);
	cr_assert_eq(fds.id, session);
	if (fds.ctl < 0)
		cr_assert_eq(mempool_attach(x->p, session, &c), ERR_NONE);
	else
		cr_assert_eq(shmpool_map(&fds, &c, &x->why), ERR_NONE, "%s", x->why.text);
	if (id)
		*id = session;
	return c;
}

struct hold_under store_fix_under(const struct store_fix *x)
{
	return hold_under(x->h, 0);
}

bool store_fix_same(const struct hold_under *a, const struct hold_under *b)
{
	return a->shard == b->shard && a->term == b->term && a->adoption == b->adoption &&
	       a->pool_epoch == b->pool_epoch;
}

struct msg_ticket store_fix_ticket(const struct store_fix *x, uint64_t version, const char *key,
				   uint64_t offset, uint64_t bytes, struct msg_extent *ext)
{
	*ext = (struct msg_extent){ .offset = offset, .bytes = bytes };
	struct msg_ticket t = { .op = TICKET_WRITE,
				.tenant = BYTES_STR("default"),
				.pool_epoch = store_fix_under(x).pool_epoch,
				.extents = { .p = ext, .n = bytes > 0 },
				.size = bytes,
				.version = version,
				.attempt = version,
				.key = BYTES_STR(key) };
	memcpy(t.pool, mempool_id(x->p), sizeof(t.pool));
	return t;
}

enum err store_fix_commit(struct store_fix *x, uint64_t version, const char *key,
			  uint64_t offset, uint64_t bytes, struct hold_slot *out)
{
	struct msg_extent ext;
	struct msg_ticket t = store_fix_ticket(x, version, key, offset, bytes, &ext);
	x->why = (struct why){ 0 };
	return hold_commit(x->h, &t, version * 3, out, &x->why);
}
