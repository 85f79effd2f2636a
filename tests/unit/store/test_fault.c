/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of a backing fails once, in turn: opening, committing, adopting and letting a client in end
 * with that error and change nothing, and the next try goes well.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "store/mempool_priv.h"
#include "store_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

/* A decorator over a backing: the call number `fail_at` fails. */
struct faulty {
	struct pool_backing base;
	struct pool_backing *in;
	struct pool_backing_ops ops;
	uint64_t n_calls, fail_at;
	enum err with;
	bool torn; /* a failing write leaves half of its bytes */
};

static struct faulty *of(struct pool_backing *b)
{
	return container_of(b, struct faulty, base);
}

static bool fails(struct faulty *f)
{
	return f->n_calls++ == f->fail_at;
}

#define FAIL(b, why)      \
	if (fails(of(b))) \
	return why_set(why, of(b)->with, "planted")

static enum err f_size(struct pool_backing *b, const char *name, uint64_t *n, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->size(of(b)->in, name, n, why);
}

static enum err f_create(struct pool_backing *b, const char *name, uint64_t n, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->create(of(b)->in, name, n, why);
}

static enum err f_rename(struct pool_backing *b, const char *from, const char *to,
			 struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->rename(of(b)->in, from, to, why);
}

static enum err f_remove(struct pool_backing *b, const char *name, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->remove(of(b)->in, name, why);
}

static enum err f_list(struct pool_backing *b, void (*fn)(void *arg, const char *name),
		       void *arg, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->list(of(b)->in, fn, arg, why);
}

static enum err f_map(struct pool_backing *b, const char *name, uint64_t n, void **out,
		      struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->map(of(b)->in, name, n, out, why);
}

static void f_unmap(struct pool_backing *b, void *p, uint64_t n)
{
	of(b)->in->ops->unmap(of(b)->in, p, n);
}

static enum err f_reserve(struct pool_backing *b, const char *name, uint64_t at, uint64_t n,
			  struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->reserve(of(b)->in, name, at, n, why);
}

static bool f_data(struct pool_backing *b, const char *name, uint64_t from, uint64_t *start,
		   uint64_t *end)
{
	return of(b)->in->ops->data(of(b)->in, name, from, start, end);
}

static enum err f_read(struct pool_backing *b, const char *name, uint64_t at, void *p, size_t n,
		       struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->read(of(b)->in, name, at, p, n, why);
}

static enum err f_write(struct pool_backing *b, const char *name, uint64_t at, const void *p,
			size_t n, struct why *why)
{
	struct faulty *f = of(b);
	if (!fails(f))
		return f->in->ops->write(f->in, name, at, p, n, why);
	if (f->torn)
		OK(f->in->ops->write(f->in, name, at, p, n / 2, why));
	return why_set(why, f->with, "planted");
}

static enum err f_sync(struct pool_backing *b, const char *name, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->sync(of(b)->in, name, why);
}

static enum err f_lock(struct pool_backing *b, struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->lock(of(b)->in, why);
}

static void f_unlock(struct pool_backing *b)
{
	of(b)->in->ops->unlock(of(b)->in);
}

static enum err f_session_lock(struct pool_backing *b, const char *name, int *fd,
			       struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->session_lock(of(b)->in, name, fd, why);
}

static bool f_session_gone(struct pool_backing *b, const char *name)
{
	return of(b)->in->ops->session_gone(of(b)->in, name);
}

static enum err f_fd(struct pool_backing *b, const char *name, bool write, int *fd,
		     struct why *why)
{
	FAIL(b, why);
	return of(b)->in->ops->fd(of(b)->in, name, write, fd, why);
}

static void f_free(struct pool_backing *b)
{
	pool_backing_free(of(b)->in);
}

static void faulty_init(struct faulty *f, enum err with)
{
	*f = (struct faulty){ .fail_at = UINT64_MAX, .with = with };
	f->ops = (struct pool_backing_ops){ .size = f_size,
					    .create = f_create,
					    .rename = f_rename,
					    .remove = f_remove,
					    .list = f_list,
					    .map = f_map,
					    .unmap = f_unmap,
					    .reserve = f_reserve,
					    .data = f_data,
					    .read = f_read,
					    .write = f_write,
					    .sync = f_sync,
					    .lock = f_lock,
					    .unlock = f_unlock,
					    .session_lock = f_session_lock,
					    .session_gone = f_session_gone,
					    .fd = f_fd,
					    .free = f_free };
	f->base.ops = &f->ops;
	OK(pool_memory_new(&f->in));
}

static void arm(struct faulty *f, uint64_t skip)
{
	f->n_calls = 0;
	f->fail_at = skip;
}

static void disarm(struct faulty *f)
{
	f->fail_at = UINT64_MAX;
}

/* ---- opening ---- */

/* The first start, over nothing or over a pool of another boot; then one more that goes well. */
static uint64_t fail_first_start(enum err with, bool old_boot)
{
	uint64_t skip = 0;
	for (bool struck = true; struck; skip++) {
		struct faulty f;
		struct store_fix x;
		faulty_init(&f, with);
		store_fix_init(&x, &f.base);
		store_fix_kill(&x);
		if (old_boot)
			memcpy(x.po.boot_id, "another", 7);
		else
			OK(mempool_remove(&f.base, NULL));
		arm(&f, skip);
		enum err e = store_fix_open(&x);
		struck = f.n_calls > skip;
		cr_assert_eq(e, struck ? with : ERR_NONE, "call %u: %s", (unsigned)skip,
			     err_name(e));
		store_fix_kill(&x);
		disarm(&f);
		cr_assert_eq(store_fix_open(&x), ERR_NONE, "after call %u failed: %s",
			     (unsigned)skip, x.why.text);
		cr_assert_eq(mempool_slots_used(x.p), 0);
		store_fix_fini(&x);
	}
	return skip;
}

Test(fault, every_call_of_a_first_start, .timeout = 30)
{
	cr_assert_gt(fail_first_start(ERR_IO, false), 15);
	cr_assert_gt(fail_first_start(ERR_NO_SPACE, true), 15);
	NO_LEAKS();
}

static void start_that_keeps(enum err with, bool torn)
{
	uint64_t skip = 0;
	for (bool struck = true; struck; skip++) {
		struct faulty f;
		struct store_fix x;
		struct hold_slot s;
		faulty_init(&f, with);
		f.torn = torn;
		store_fix_init(&x, &f.base);
		OK(store_fix_commit(&x, 5, "k", 0, 64, &s));
		uint64_t epoch = store_fix_under(&x).pool_epoch;
		store_fix_kill(&x);
		arm(&f, skip);
		enum err e = store_fix_open(&x);
		struck = f.n_calls > skip;
		cr_assert_eq(e, struck ? with : ERR_NONE);
		store_fix_kill(&x);
		disarm(&f);
		OK(store_fix_open(&x));
		cr_assert_eq(x.start.found, MEMPOOL_KEPT);
		cr_assert_eq(x.start.committed, 1);
		cr_assert_gt(store_fix_under(&x).pool_epoch, epoch);
		store_fix_fini(&x);
	}
	cr_assert_gt(skip, 10);
}

Test(fault, every_call_of_a_start_that_keeps, .timeout = 30)
{
	start_that_keeps(ERR_IO, false);
	start_that_keeps(ERR_IO, true);
	NO_LEAKS();
}

/* ---- at work ---- */

Test(fault, an_adoption_that_is_not_durable_did_not_happen, .timeout = 30)
{
	for (int torn = 0; torn < 2; torn++)
		for (uint64_t skip = 0; skip < 2; skip++) { /* the write, the sync */
			struct faulty f;
			struct store_fix x;
			struct hold_under u, now;
			faulty_init(&f, ERR_IO);
			f.torn = torn;
			store_fix_init(&x, &f.base);
			OK(hold_adopt(x.h, 0, 3, 1, &u, NULL));
			arm(&f, skip);
			cr_assert_eq(hold_adopt(x.h, 0, 4, 1, &now, &x.why), ERR_IO);
			now = store_fix_under(&x);
			cr_assert(store_fix_same(&now, &u), "nothing has changed");
			cr_assert_eq(x.p->ctl->shard[0].pool_epoch, u.pool_epoch);
			disarm(&f);
			OK(hold_adopt(x.h, 0, 4, 1, &now, NULL));
			cr_assert_eq(now.pool_epoch, u.pool_epoch + 1);
			store_fix_kill(&x);
			OK(store_fix_open(&x));
			cr_assert_eq(store_fix_under(&x).term, 4);
			store_fix_fini(&x);
		}
	NO_LEAKS();
}

Test(fault, a_commit_without_memory_behind_it_changes_nothing, .timeout = 30)
{
	char key[500];
	memset(key, 'k', 499);
	key[499] = 0;
	for (uint64_t skip = 0; skip < 3; skip++) { /* slots, generations, names */
		struct faulty f;
		struct store_fix x;
		struct hold_slot s;
		faulty_init(&f, ERR_NO_SPACE);
		store_fix_init(&x, &f.base);
		arm(&f, skip);
		cr_assert_eq(store_fix_commit(&x, 5, key, 0, 64, &s), ERR_NO_SPACE);
		cr_assert_eq(mempool_slots_used(x.p), 0);
		cr_assert_eq(x.p->keys.used_bytes, 0);
		OK(store_fix_commit(&x, 5, key, 0, 64, &s));
		store_fix_fini(&x);
	}
	NO_LEAKS();
}

Test(fault, a_client_that_cannot_be_let_in_leaves_nothing, .timeout = 30)
{
	uint64_t skip = 0;
	for (bool struck = true; struck; skip++) {
		struct faulty f;
		struct store_fix x;
		struct shmpool_fds fds;
		uint32_t id;
		faulty_init(&f, ERR_NO_SPACE);
		store_fix_init(&x, &f.base);
		arm(&f, skip);
		enum err e = mempool_session(x.p, true, &id, &fds, &x.why);
		struck = f.n_calls > skip;
		cr_assert_eq(e, struck ? ERR_NO_SPACE : ERR_NONE);
		cr_assert_eq(mempool_sessions(x.p), e == ERR_NONE);
		disarm(&f);
		store_fix_kill(&x);
		if (e == ERR_NONE)
			pool_memory_session_killed(f.in, id);
		OK(store_fix_open(&x));
		cr_assert_eq(x.start.sessions, 0);
		store_fix_fini(&x);
	}
	cr_assert_gt(skip, 5);
	NO_LEAKS();
}

Test(fault, sessions_have_a_limit, .timeout = 30)
{
	struct store_fix x;
	struct shmpool_fds fds;
	struct shmpool *c;
	uint32_t id;
	store_fix_init(&x, NULL);
	store_fix_kill(&x);
	x.po.sessions_max = 3;
	OK(store_fix_open(&x));
	for (int i = 0; i < 3; i++)
		OK(mempool_session(x.p, true, &id, &fds, NULL));
	cr_assert_eq(mempool_session(x.p, true, &id, &fds, &x.why), ERR_BUSY);
	cr_assert(strstr(x.why.text, "3 local clients"), "%s", x.why.text);
	OK(mempool_attach(x.p, id, &c));
	shmpool_died(c);
	OK(mempool_session(x.p, true, &id, &fds, NULL));
	cr_assert_eq(mempool_attach(x.p, id + 1, &c), ERR_NOT_FOUND);
	store_fix_fini(&x);
	NO_LEAKS();
}
