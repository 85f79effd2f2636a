/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of the store session: resolved once, renewed, lost by key; on a simulated loop. */
#include "stc_world.h"
#include "store/mempool_priv.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(stc_snap, .timeout = 60);

enum { N = 8 };

struct snap_fix {
	struct world w;
	struct stc_snap *snap;
	char keys[N][8];
};

/* N objects, "k0" with the value "value of k0", and so on. */
static void fix_open(struct snap_fix *x, const struct w_opts *o)
{
	w_open(&x->w, o);
	cr_assert_eq(stc_snap_new(&x->snap), ERR_NONE);
	for (int i = 0; i < N; i++) {
		char value[32];
		snprintf(x->keys[i], sizeof(x->keys[i]), "k%d", i);
		snprintf(value, sizeof(value), "value of k%d", i);
		cr_assert_eq(w_put(&x->w, x->keys[i], BYTES_STR(value), false, 1000), ERR_NONE);
	}
}

static void fix_close(struct snap_fix *x)
{
	if (x->snap)
		stc_snap_shut(x->snap);
	stc_snap_unref(x->snap);
	w_close(&x->w);
}

static struct stc_call *add_call(struct snap_fix *x, const char *const *keys, uint32_t n,
				 bool missing_ok)
{
	struct stc_call *c = NULL;
	cr_assert_eq(stc_call_new(STC_SNAPSHOT, n, &c), ERR_NONE);
	for (uint32_t i = 0; i < n; i++)
		c->items[i].key = BYTES_STR(keys[i]);
	c->snap = stc_snap_ref(x->snap);
	c->missing_ok = missing_ok;
	return c;
}

/* The first item's error that counts. */
static enum err add(struct snap_fix *x, const char *const *keys, uint32_t n, bool missing_ok)
{
	struct stc_call *c = add_call(x, keys, n, missing_ok);
	enum err e = ERR_NONE;
	cr_assert(w_run(&x->w, c, 5000));
	for (uint32_t i = 0; i < n && e == ERR_NONE; i++)
		if (!(missing_ok && c->items[i].err == ERR_NOT_FOUND))
			e = c->items[i].err;
	stc_call_free(c);
	return e;
}

static enum err add_all(struct snap_fix *x)
{
	const char *keys[N];
	for (int i = 0; i < N; i++)
		keys[i] = x->keys[i];
	return add(x, keys, N, false);
}

static enum err get(struct snap_fix *x, const char *key, char *out, size_t cap, bool verify)
{
	struct stc_call *c = NULL;
	struct stc_buf b = { out, cap - 1 };
	cr_assert_eq(stc_call_new(STC_GET, 1, &c), ERR_NONE);
	c->items[0].key = BYTES_STR(key);
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->get.verify = verify;
	c->snap = stc_snap_ref(x->snap);
	cr_assert(w_run(&x->w, c, 5000));
	enum err e = c->items[0].err;
	out[e == ERR_NONE ? c->items[0].bytes : 0] = '\0';
	stc_call_free(c);
	return e;
}

static bool is_lost(struct snap_fix *x, const char *key)
{
	struct stc_found f = { 0 };
	cr_assert(stc_snap_find(x->snap, BYTES_STR(key), &f), "%s", key);
	return f.lost;
}

Test(stc_snap, asked_once_read_often)
{
	struct snap_fix x;
	struct stc_found f;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 1 });
	cr_assert_eq(add_all(&x), ERR_NONE);
	cr_expect_eq(stc_snap_n(x.snap), N);
	cr_expect_eq(x.w.f.asked[METHOD_QUERY], 1, "in one message");
	for (int k = 0; k < 5; k++)
		for (int i = 0; i < N; i++) {
			cr_expect_eq(get(&x, x.keys[i], b, sizeof(b), k % 2), ERR_NONE);
			cr_expect(strncmp(b, "value of k", 10) == 0 && b[10] == '0' + i, "%s",
				  b);
		}
	cr_expect_eq(x.w.f.asked[METHOD_QUERY], 1, "and not again");
	cr_expect(stc_snap_find(x.snap, BYTES_STR("k3"), &f));
	cr_expect(f.size == 11 && f.version == w_find(&x.w.f, "k3")->version && !f.lost);
	cr_expect(!stc_snap_find(x.snap, BYTES_STR("k9"), &f));
	cr_expect_eq(get(&x, "k9", b, sizeof(b), false), ERR_NOT_FOUND);
	fix_close(&x);
	NO_LEAKS();
}

/* All of a call join, or none; what is missing may be left out; what is there already stays. */
Test(stc_snap, all_or_none)
{
	static const char *const some[] = { "k0", "none", "k1" };
	static const char *const twice[] = { "k1", "k2", "k2" };
	struct snap_fix x;
	struct stc_found f;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 2 });
	cr_expect_eq(add(&x, some, 3, false), ERR_NOT_FOUND);
	cr_expect_eq(stc_snap_n(x.snap), 0);
	cr_expect_eq(add(&x, some, 3, true), ERR_NONE);
	cr_expect_eq(stc_snap_n(x.snap), 2);
	cr_expect(!stc_snap_find(x.snap, BYTES_STR("none"), &f));
	cr_expect_eq(w_put(&x.w, "k1", BYTES_STR("newer"), true, 1000), ERR_NONE);
	uint64_t old = (stc_snap_find(x.snap, BYTES_STR("k1"), &f), f.version);
	cr_expect_eq(add(&x, twice, 3, false), ERR_NONE);
	cr_expect_eq(stc_snap_n(x.snap), 3);
	cr_expect(stc_snap_find(x.snap, BYTES_STR("k1"), &f) && f.version == old);
	cr_expect_eq(get(&x, "k2", b, sizeof(b), false), ERR_NONE);
	fix_close(&x);
	NO_LEAKS();
}

Test(stc_snap, another_version_than_asked_for)
{
	struct snap_fix x;
	fix_open(&x, &(struct w_opts){ .seed = 3 });
	for (int right = 0; right < 2; right++) {
		struct stc_call *c = add_call(&x, (const char *[]){ "k1" }, 1, false);
		c->items[0].if_version = w_find(&x.w.f, "k1")->version + !right;
		cr_assert(w_run(&x.w, c, 1000));
		cr_expect_eq(c->items[0].err, right ? ERR_NONE : ERR_CONFLICT);
		stc_call_free(c);
	}
	cr_expect_eq(stc_snap_n(x.snap), 1);
	fix_close(&x);
	NO_LEAKS();
}

/* Open for a long time: renewed at a third of the lease, in one message, with nobody reading. */
Test(stc_snap, renewed_while_open)
{
	struct snap_fix x;
	fix_open(&x, &(struct w_opts){ .seed = 4 });
	x.w.f.lease_ms = 3000;
	cr_assert_eq(add_all(&x), ERR_NONE);
	sim_run_ms(x.w.sim, 20000);
	cr_expect(x.w.f.renewed >= 13 && x.w.f.renewed <= 21, "%u in 20 s", x.w.f.renewed);
	cr_expect_eq(x.w.f.asked[METHOD_QUERY], 1);
	uint32_t before = x.w.f.renewed;
	stc_snap_shut(x.snap);
	sim_run_ms(x.w.sim, 1000);
	cr_expect_eq(x.w.f.asked[METHOD_RELEASE], 1, "its leases went back");
	sim_run_ms(x.w.sim, 10000);
	cr_expect_leq(x.w.f.renewed, before + 1);
	cr_expect_eq(x.w.f.asked[METHOD_RELEASE], 1);
	fix_close(&x);
	NO_LEAKS();
}

/* Removed, replaced: lost by key, at the next renewal or at the next read that finds its bytes gone. */
Test(stc_snap, lost_by_key)
{
	struct snap_fix x;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 5 });
	x.w.f.lease_ms = 3000;
	cr_assert_eq(add_all(&x), ERR_NONE);
	w_find(&x.w.f, "k0")->whole = false;
	cr_expect_eq(w_put(&x.w, "k1", BYTES_STR("newer"), true, 1000), ERR_NONE);
	cr_expect_eq(get(&x, "k0", b, sizeof(b), false), ERR_NONE, "its bytes are there yet");
	sim_run_ms(x.w.sim, 3000);
	for (int i = 0; i < N; i++)
		cr_expect_eq(is_lost(&x, x.keys[i]), i < 2, "%s", x.keys[i]);
	cr_expect_eq(get(&x, "k0", b, sizeof(b), false), ERR_LEASE_LOST);
	cr_expect_eq(get(&x, "k1", b, sizeof(b), false), ERR_LEASE_LOST);
	w_free_copy(&x.w.f, w_find(&x.w.f, "k2"), 0); /* its bytes go, and the key with them */
	w_find(&x.w.f, "k2")->whole = false;
	cr_expect_eq(get(&x, "k2", b, sizeof(b), false), ERR_LEASE_LOST);
	cr_expect(is_lost(&x, "k2"), "at once");
	w_free_copy(&x.w.f, w_find(&x.w.f, "k3"), 0);
	cr_expect_eq(w_put(&x.w, "k3", BYTES_STR("newer"), true, 1000), ERR_NONE);
	cr_expect_eq(get(&x, "k3", b, sizeof(b), true), ERR_LEASE_LOST, "never the newer one");
	uint32_t asked = x.w.f.asked[METHOD_QUERY];
	cr_expect_eq(get(&x, "k3", b, sizeof(b), true), ERR_LEASE_LOST);
	cr_expect_eq(x.w.f.asked[METHOD_QUERY], asked, "for good");
	cr_expect_eq(get(&x, "k4", b, sizeof(b), false), ERR_NONE);
	cr_expect_str_eq(b, "value of k4");
	fix_close(&x);
	NO_LEAKS();
}

/* The object moves to another slot: asked once more, then known. */
Test(stc_snap, moved)
{
	struct snap_fix x;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 6 });
	cr_assert_eq(add_all(&x), ERR_NONE);
	struct w_object *o = w_find(&x.w.f, "k5");
	w_copy(&x.w.f, o);
	w_free_copy(&x.w.f, o, 0);
	o->copies[0] = o->copies[1];
	o->n_copies = 1;
	for (int i = 0; i < 3; i++) {
		cr_expect_eq(get(&x, "k5", b, sizeof(b), i == 1), ERR_NONE);
		cr_expect_str_eq(b, "value of k5");
		cr_expect_eq(x.w.f.asked[METHOD_QUERY], 2);
	}
	fix_close(&x);
	NO_LEAKS();
}

/* A new master does not know a lease before it has merged the holder: that is no loss. */
static bool not_merged_yet(struct fake *f, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_RENEW && (method != METHOD_QUERY || f->step < 1))
		return false;
	if (method == METHOD_RENEW)
		w_reply_results(r, N, ERR_LEASE_LOST, 0);
	else
		w_reply_objects(r, N, f->step == 1 ? ERR_RECOVERING : ERR_TEMPORARILY_AWAY, 10);
	return true;
}

Test(stc_snap, a_new_master)
{
	struct snap_fix x;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 7 });
	x.w.f.lease_ms = 3000;
	cr_assert_eq(add_all(&x), ERR_NONE);
	x.w.f.on = not_merged_yet;
	for (x.w.f.step = 1; x.w.f.step < 3; x.w.f.step++) {
		sim_run_ms(x.w.sim, 4000);
		for (int i = 0; i < N; i++) {
			cr_expect(!is_lost(&x, x.keys[i]));
			cr_expect_eq(get(&x, x.keys[i], b, sizeof(b), false), ERR_NONE);
		}
	}
	x.w.f.step = 0; /* RENEW knows nothing, QUERY does */
	sim_run_ms(x.w.sim, 4000);
	x.w.f.on = NULL;
	sim_run_ms(x.w.sim, 4000);
	for (int i = 0; i < N; i++)
		cr_expect(!is_lost(&x, x.keys[i]));
	cr_expect_gt(x.w.f.asked[METHOD_QUERY], 3);
	fix_close(&x);
	NO_LEAKS();
}

/* Nobody answers for a minute: reads go on, and renewals when it is back. */
Test(stc_snap, the_master_is_away)
{
	struct snap_fix x;
	char b[32];
	fix_open(&x, &(struct w_opts){ .seed = 8 });
	x.w.f.lease_ms = 3000;
	cr_assert_eq(add_all(&x), ERR_NONE);
	sim_stop(x.w.servers);
	sim_run_ms(x.w.sim, 60000);
	cr_expect_eq(get(&x, "k0", b, sizeof(b), false), ERR_NONE);
	uint32_t renewed = x.w.f.renewed;
	sim_cont(x.w.servers);
	sim_run_ms(x.w.sim, 15000);
	cr_expect_gt(x.w.f.renewed, renewed);
	cr_expect(!is_lost(&x, "k0"));
	fix_close(&x);
	NO_LEAKS();
}

/* B1: over all snapshots of a session, and what is refused is not counted. */
Test(stc_snap, room)
{
	struct snap_fix x;
	struct stc_snap *first;
	static const char *const more[] = { "k0", "k1", "k2" };
	fix_open(&x, &(struct w_opts){ .seed = 9, .snap_keys_max = N + 2 });
	cr_assert_eq(add_all(&x), ERR_NONE);
	first = x.snap;
	cr_assert_eq(stc_snap_new(&x.snap), ERR_NONE);
	struct stc_call *c = add_call(&x, more, 3, false);
	c->deadline_ns = UINT64_MAX;
	cr_expect_eq(stc_start(x.w.stc, c), ERR_BUSY);
	stc_call_free(c);
	cr_expect_eq(add(&x, more, 2, false), ERR_NONE);
	stc_snap_shut(first);
	stc_snap_unref(first);
	sim_run_ms(x.w.sim, 1000);
	cr_expect_eq(add(&x, (const char *[]){ "k2", "none" }, 2, false), ERR_NOT_FOUND);
	for (int i = 0; i < 20; i++) /* twice the same, and none: counted as what they are */
		cr_expect_eq(add(&x, more, 3, false), ERR_NONE);
	cr_expect_eq(stc_snap_n(x.snap), 3);
	cr_expect_eq(add(&x, (const char *[]){ "k3", "k4", "k5", "k6", "k7" }, 5, false),
		     ERR_NONE);
	fix_close(&x);
	NO_LEAKS();
}

/* Many keys: renewed and given back in messages of at most 4,096, one after the other; and many doubts. */
Test(stc_snap, many_keys)
{
	enum { MANY = 6000 };
	struct snap_fix x;
	static char names[MANY][8];
	const char **keys = calloc(MANY, sizeof(*keys));
	struct stc_call *c = NULL;
	fix_open(&x, &(struct w_opts){ .seed = 10, .inline_bytes = 4096 });
	x.w.f.lease_ms = 6000;
	for (uint32_t at = 0; at < MANY; at += 2000) {
		cr_assert_eq(stc_call_new(STC_PUT, 2000, &c), ERR_NONE);
		for (uint32_t i = 0; i < 2000; i++) {
			snprintf(names[at + i], 8, "m%u", at + i);
			keys[at + i] = names[at + i];
			c->items[i].key = BYTES_STR(keys[at + i]);
		}
		cr_assert(w_run(&x.w, c, 60000));
		cr_assert_eq(c->items[1999].err, ERR_NONE);
		stc_call_free(c);
	}
	cr_expect_eq(add(&x, keys, 4096, false), ERR_NONE);
	cr_expect_eq(add(&x, keys + 4096, MANY - 4096, false), ERR_NONE);
	cr_expect_eq(stc_snap_n(x.snap), MANY);
	sim_run_ms(x.w.sim, 2600);
	cr_expect_eq(x.w.f.renewed, 2, "%u messages", x.w.f.renewed);
	for (uint32_t i = 0; i < MANY; i += 2)
		w_find(&x.w.f, keys[i])->whole = false;
	sim_run_ms(x.w.sim, 2600);
	for (uint32_t i = 0; i < MANY; i++)
		cr_expect_eq(is_lost(&x, keys[i]), i % 2 == 0, "%s", keys[i]);
	stc_snap_shut(x.snap);
	sim_run_ms(x.w.sim, 1000);
	cr_expect_eq(x.w.f.asked[METHOD_RELEASE], 2);
	free(keys);
	fix_close(&x);
	NO_LEAKS();
}

/* ---- ends ---- */

/* At every moment: an add that is cancelled, a snapshot that is shut, a session that closes, a process that
 * dies. */
static void end_at(int how)
{
	for (uint32_t steps = 0; steps < 60; steps += 2) {
		struct snap_fix x;
		bool added, got;
		char b[32];
		struct stc_buf buf = { b, sizeof(b) };
		struct stc_call *get_call = NULL;
		fix_open(&x, &(struct w_opts){ .seed = 300 + steps });
		x.w.f.lease_ms = 300;
		cr_assert_eq(add(&x, (const char *[]){ "k0", "k1" }, 2, false), ERR_NONE);
		struct stc_call *c = add_call(&x, (const char *[]){ "k2", "k3" }, 2, false);
		cr_assert_eq(stc_call_new(STC_GET, 1, &get_call), ERR_NONE);
		get_call->items[0].key = BYTES_STR("k0");
		get_call->items[0].bufs = &buf;
		get_call->items[0].n_bufs = 1;
		get_call->snap = stc_snap_ref(x.snap);
		w_start(&x.w, c, 10000, &added);
		w_start(&x.w, get_call, 10000, &got);
		for (uint32_t i = 0; i < steps; i++)
			(void)sim_step(x.w.sim);
		if (how == 0 && !added)
			sim_run_in(x.w.client, (void (*)(void *))stc_cancel, c);
		if (how == 1) {
			stc_snap_shut(x.snap);
			stc_snap_unref(TAKE(x.snap));
		}
		if (how == 3)
			sim_kill(x.w.client);
		if (how < 2) {
			cr_assert(w_wait(&x.w, &added, 1000) && w_wait(&x.w, &got, 1000));
			sim_run_ms(x.w.sim, 2000);
		}
		w_close(&x.w);
		cr_expect(added && got);
		enum err e = c->items[0].err;
		cr_expect(e == ERR_NONE || e == ERR_CANCELLED || e == ERR_CLOSED, "%s",
			  err_name(e));
		stc_call_free(c);
		stc_call_free(get_call);
		stc_snap_unref(x.snap);
	}
}

Test(stc_snap, cancelled_anywhere)
{
	end_at(0);
	NO_LEAKS();
}

Test(stc_snap, shut_anywhere)
{
	end_at(1);
	NO_LEAKS();
}

Test(stc_snap, closed_anywhere)
{
	end_at(2);
	NO_LEAKS();
}

Test(stc_snap, killed_anywhere)
{
	end_at(3);
	NO_LEAKS();
}
