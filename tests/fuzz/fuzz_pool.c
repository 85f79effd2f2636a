/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every file of a pool and every message of run/agent.fd as hostile bytes (B5). The first byte says
 * which; for files with sums the input is tried as it is and again with right sums over it, to reach
 * what lies behind them.
 *
 * A start over any directory must end in one where COMMITTED slots do not overlap, where a second start
 * finds the same, and where every slot can be retired and freed.
 */
#include <string.h>

#include "base/crc.h"
#include "store/mempool_priv.h"
#include "store/hold.h"
#include "store/shmsock.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { SLOTS = 8, HEAP = 8192, SEGMENT = 65536, LANES = 2 };

/* ---- super ---- */

static void try_super(const uint8_t *bytes)
{
	struct super s;
	unsigned which;
	struct why why = { 0 };
	enum err e = super_decode(bytes, &s, &which, &why);
	assert(e != ERR_NONE || (which < 2 && super_check(&s, NULL) == ERR_NONE));
	assert(e == ERR_NONE || why.text[0]);
}

static void fuzz_super(const uint8_t *p, size_t n)
{
	uint8_t bytes[SUPER_BYTES] = { 0 };
	memcpy(bytes, p, MIN_OF(n, sizeof(bytes)));
	try_super(bytes);
	for (int i = 0; i < 2; i++) { /* magic, version, CRC as super.c lays them out */
		uint8_t *c = bytes + (size_t)i * SUPER_COPY_BYTES;
		uint32_t version = 1, crc;
		memcpy(c, "pmlsuper", 8);
		memcpy(c + 8, &version, 4);
		crc = crc32c(crc32c(0, c, 12), c + 16, SUPER_COPY_BYTES - 16);
		memcpy(c + 12, &crc, 4);
	}
	try_super(bytes);
}

/* ---- a directory ---- */

struct pool {
	struct pool_backing *b;
	struct mempool *p;
	struct hold *h;
	struct mempool_start start;
};

static bool open_pool(struct pool *x)
{
	struct mempool_opts o = { .backing = x->b,
				  .segment_bytes = SEGMENT,
				  .n_slots = SLOTS,
				  .heap_bytes = HEAP,
				  .n_lanes = LANES,
				  .n_shards = 1 };
	struct why why = { 0 };
	enum err e = mempool_open(&o, &x->p, &x->start, &why);
	if (e != ERR_NONE) {
		assert(why.text[0]);
		return false;
	}
	struct hold_opts h = { .pool = x->p, .ring = 4, .closed = 4 };
	e = hold_new(&h, &x->h);
	assert(e == ERR_NONE);
	return true;
}

static void close_pool(struct pool *x)
{
	hold_close(x->h);
	mempool_close(x->p);
}

struct scan {
	struct hold_entry at[SLOTS];
	size_t n;
};

static bool keep(void *arg, const struct hold_entry *e)
{
	struct scan *s = arg;
	assert(s->n < SLOTS && e->key.n >= 1 && e->key.n <= OBJ_KEY_MAX && e->tenant.n <= 64);
	s->at[s->n++] = *e;
	return true;
}

static struct scan scan(struct pool *x)
{
	struct scan s = { .n = 0 };
	uint64_t cursor = 0;
	hold_scan(x->h, 0, &cursor, keep, &s);
	assert(cursor == 0);
	return s;
}

static void assert_apart(const struct hold_entry *a, const struct hold_entry *b)
{
	if (a->at.retired || b->at.retired)
		return;
	for (size_t i = 0; i < a->n_extents; i++)
		for (size_t k = 0; k < b->n_extents; k++) {
			const struct extent *x = &a->extents[i], *y = &b->extents[k];
			assert(x->segment != y->segment || x->offset + x->bytes <= y->offset ||
			       y->offset + y->bytes <= x->offset);
		}
}

static void end_all(struct pool *x, const struct scan *s)
{
	struct hold_under u = hold_under(x->h, 0);
	for (size_t i = 0; i < s->n; i++) {
		struct hold_slot at = s->at[i].at;
		enum err e = hold_retire(x->h, &u, at.slot, at.generation, at.version,
					 RETIRE_REMOVED, 0);
		assert(e == ERR_NONE);
		e = hold_free(x->h, &u, at.slot, at.generation);
		assert(e == ERR_NONE);
	}
	assert(mempool_slots_used(x->p) == 0 && x->p->keys.used_bytes == 0);
}

static void verify_all(struct pool *x)
{
	struct hold_verify v;
	uint64_t cursor = 0, sum;
	while (hold_verify_next(x->h, &cursor, &v)) {
		enum err e = mempool_sum(x->p, v.extents, v.n_extents, v.size, &sum);
		assert(e == ERR_NONE);
		(void)!hold_verified(x->h, &v, sum);
	}
}

static void start_over(struct pool *x)
{
	if (!open_pool(x))
		return;
	struct scan s = scan(x);
	for (size_t i = 0; i < s.n; i++)
		for (size_t k = 0; k < i; k++)
			assert_apart(&s.at[i], &s.at[k]);
	size_t kept = s.n;
	close_pool(x);
	if (!open_pool(x))
		abort();
	assert(x->start.dropped == 0 && x->start.overlaps == 0 && scan(x).n == kept);
	verify_all(x);
	s = scan(x);
	end_all(x, &s);
	close_pool(x);
}

/* Right sums over whatever the slots say. */
static void seal(struct slot *s, const uint8_t *heap)
{
	s->record_bytes = (uint32_t)(s->n_extents * sizeof(struct extent) + s->tenant_bytes +
				     s->key_bytes + s->group_bytes + s->format_bytes);
	const uint8_t *names = slot_names(s, heap, HEAP);
	if (names)
		s->record_crc = crc32c(0, names, s->record_bytes);
	s->state = slot_word(s, s->state & 1 ? SLOT_COMMITTED : SLOT_RETIRED, s->state & 2,
			     s->state & 1 ? RETIRE_NONE : RETIRE_EVICTED);
}

static void fuzz_dir(const uint8_t *p, size_t n, bool sealed)
{
	struct pool x = { 0 };
	void *dir;
	uint64_t bytes;
	if (pool_memory_new(&x.b) != ERR_NONE || !open_pool(&x))
		abort();
	close_pool(&x);
	if (x.b->ops->size(x.b, "dir", &bytes, NULL) != ERR_NONE ||
	    x.b->ops->map(x.b, "dir", bytes, &dir, NULL) != ERR_NONE)
		abort();
	memcpy(dir, p, MIN_OF(n, bytes));
	struct slot *slots = dir;
	for (int i = 0; i < SLOTS && sealed; i++)
		if (slots[i].state != 0)
			seal(&slots[i], (uint8_t *)dir + bytes - HEAP);
	start_over(&x);
	pool_backing_free(x.b);
}

/* ---- hazard records and the control page ---- */

static void fuzz_pages(const uint8_t *p, size_t n)
{
	struct pool x = { 0 };
	struct shmpool_fds fds;
	struct hold_under u;
	uint32_t id;
	if (pool_memory_new(&x.b) != ERR_NONE || !open_pool(&x) ||
	    mempool_session(x.p, true, &id, &fds, NULL) != ERR_NONE)
		abort();
	size_t lanes = LANES * sizeof(struct pool_lane);
	memcpy(x.p->sessions[0].lanes, p, MIN_OF(n, lanes));
	enum err e = hold_adopt(x.h, 0, 1, 1, &u, NULL);
	assert(e == ERR_NONE && hold_quarantine(x.h) <= 2ull * 16 * SEGMENT);
	hold_sweep(x.h);
	size_t ctl = MIN_OF(n, (size_t)mempool_ctl_bytes(&x.p->super));
	memcpy(x.p->ctl, p, ctl);
	close_pool(&x);
	if (open_pool(&x))
		close_pool(&x);
	pool_backing_free(x.b);
}

/* ---- messages ---- */

static void fuzz_messages(const uint8_t *p, size_t n)
{
	uint8_t again[SHMSOCK_MSG_MAX];
	struct shmsock_challenge c;
	struct shmsock_ask_msg a;
	struct shmsock_grant g;
	struct bytes in = BYTES(p, n);
	if (shmsock_get_challenge(in, &c) == ERR_NONE)
		assert(shmsock_put_challenge(again, &c) == n && memcmp(again, p, n) == 0);
	if (shmsock_get_ask(in, &a) == ERR_NONE)
		assert(shmsock_put_ask(again, &a) == n &&
		       auth_name_ok(a.tenant) == (a.role == ROLE_CLIENT));
	if (shmsock_get_grant(in, &g) == ERR_NONE)
		assert(shmsock_put_grant(again, &g) == n);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	char name[BACKING_NAME_MAX] = "";
	if (n == 0)
		return 0;
	uint8_t kind = *p++ % 6;
	n--;
	switch (kind) {
	case 0:
		fuzz_super(p, n);
		break;
	case 1:
		fuzz_dir(p, n, false);
		break;
	case 2:
		fuzz_dir(p, n, true);
		break;
	case 3:
		fuzz_pages(p, n);
		break;
	case 4:
		fuzz_messages(p, n);
		break;
	default:
		memcpy(name, p, MIN_OF(n, sizeof(name) - 1));
		(void)session_of_name(name);
		break;
	}
	return 0;
}
