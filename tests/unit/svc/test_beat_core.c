/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a beat that need no thread: MACs, freshness, states, addresses. */
#include "svc/beat_priv.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "proto/messages.h"
#include "rpc/auth.h"
#include "../../support/leak.h"

TestSuite(beat_core, .timeout = 20);

#define MS NS_PER_MS

static const uint8_t secret_a[32] = { 1, 2, 3 }, secret_b[32] = { 9, 8, 7 };

static void keys_of(const uint8_t *secret, const uint8_t *previous, struct beat_keys *out)
{
	struct keyring *k;
	cr_assert_eq(keyring_new(secret, previous, &k), ERR_NONE);
	cr_assert_eq(beat_keys_init(out, k), ERR_NONE);
	keyring_free(k);
}

/* A master and a sender that talk through memory. */
struct pair {
	struct beat_book book;
	struct beat_out out;
	struct beat_news news;
	uint64_t now;
};

static void sender_init(struct beat_out *o, const char *name, uint8_t instance)
{
	*o = (struct beat_out){ .role = ROLE_HOLDER, .n_to = 1 };
	keys_of(secret_a, NULL, &o->keys);
	memset(o->instance, instance, sizeof(o->instance));
	snprintf(o->name, sizeof(o->name), "%s", name);
}

static void pair_init(struct pair *p)
{
	*p = (struct pair){ .now = 1000 * NS_PER_S, .news = { .ready = true, .pid = 77 } };
	beat_book_init(&p->book, 64);
	keys_of(secret_a, NULL, &p->book.keys);
	memset(p->book.secret, 5, sizeof(p->book.secret));
	p->book.suspect_ns = 2000 * MS;
	p->book.dead_ns = 30000 * MS;
	sender_init(&p->out, "agent", 0x11);
}

/* One beat and its answer; returns the verdict. The datagram stays in `dgram` for replays. */
static uint8_t dgram[BEAT_BYTES_MAX];
static size_t n_dgram;

static enum beat_verdict beat(struct pair *p, struct beat_out *o, bool owes, bool *again)
{
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	n_dgram = beat_out_make(o, 0, &p->news, owes, 0, dgram);
	cr_assert_gt(n_dgram, 0);
	p->news.loop_turns++;
	enum beat_verdict v =
		beat_book_take(&p->book, p->now, BYTES(dgram, n_dgram), reply, &n);
	*again = n > 0 && beat_out_take(o, 0, BYTES(reply, n), p->now);
	return v;
}

/* Beats until stamped. */
static void join(struct pair *p, struct beat_out *o)
{
	bool again;
	cr_assert_eq(beat(p, o, false, &again), BEAT_OK);
	cr_assert(again, "a new challenge is answered at once");
	cr_assert_eq(beat(p, o, false, &again), BEAT_OK);
	cr_assert_not_null(beat_book_find(&p->book, o->name));
}

static const struct beat_peer *peer(struct pair *p, const char *name)
{
	return beat_book_find(&p->book, name);
}

static void look(struct pair *p)
{
	beat_book_look(&p->book, p->now, 250 * MS, NULL, NULL);
}

/* Time goes on in steps the master's timer would take. */
static void pass(struct pair *p, uint64_t ms)
{
	for (uint64_t t = 0; t < ms; t += 250) {
		p->now += MIN_OF(250, ms - t) * MS;
		look(p);
	}
}

static void pair_fini(struct pair *p)
{
	beat_book_fini(&p->book);
}

/* ---- MACs ---- */

Test(beat_core, seal_and_unseal)
{
	struct beat_keys k;
	uint8_t d[BEAT_BYTES_MAX];
	enum role role;
	unsigned which;
	struct bytes body;
	keys_of(secret_a, NULL, &k);
	size_t n = beat_seal(&k, 0, BEAT_KIND_BEAT, ROLE_SERVICE, BYTES("hello", 5), d);
	cr_assert_eq(n, 5 + BEAT_OVERHEAD);
	cr_assert_eq(beat_unseal(&k, BEAT_KIND_BEAT, BYTES(d, n), &role, &which, &body),
		     ERR_NONE);
	cr_expect_eq(role, ROLE_SERVICE);
	cr_expect_eq(body.n, 5);
	cr_expect_eq(memcmp(body.p, "hello", 5), 0);
	cr_expect_eq(beat_unseal(&k, BEAT_KIND_ACK, BYTES(d, n), &role, &which, &body),
		     ERR_BAD_MESSAGE, "a beat is no answer to a beat");
	static const uint8_t big[BEAT_BYTES_MAX] = { 0 };
	cr_expect_eq(beat_seal(&k, 0, BEAT_KIND_BEAT, ROLE_SERVICE,
			       BYTES(big, BEAT_BYTES_MAX - BEAT_OVERHEAD + 1), d),
		     0);
	cr_expect_eq(beat_seal(&k, 0, BEAT_KIND_BEAT, ROLE_SERVICE,
			       BYTES(big, BEAT_BYTES_MAX - BEAT_OVERHEAD), d),
		     BEAT_BYTES_MAX);
	NO_LEAKS();
}

/* I2: every single bit counts, every length too. */
Test(beat_core, any_changed_bit_is_refused)
{
	struct beat_keys k;
	uint8_t d[BEAT_BYTES_MAX];
	enum role role;
	unsigned which;
	struct bytes body;
	keys_of(secret_a, NULL, &k);
	size_t n = beat_seal(&k, 0, BEAT_KIND_BEAT, ROLE_SERVICE, BYTES("hello", 5), d);
	for (size_t i = 0; i < n * 8; i++) {
		d[i / 8] ^= (uint8_t)(1 << i % 8);
		enum err e = beat_unseal(&k, BEAT_KIND_BEAT, BYTES(d, n), &role, &which, &body);
		cr_assert(e == ERR_UNAUTHENTICATED || e == ERR_BAD_MESSAGE, "bit %zu", i);
		d[i / 8] ^= (uint8_t)(1 << i % 8);
	}
	for (size_t cut = 0; cut < n; cut++)
		cr_assert_neq(beat_unseal(&k, BEAT_KIND_BEAT, BYTES(d, cut), &role, &which,
					  &body),
			      ERR_NONE, "cut to %zu", cut);
	NO_LEAKS();
}

Test(beat_core, another_secret_is_refused_an_older_one_taken)
{
	struct beat_keys a, b, both;
	uint8_t d[BEAT_BYTES_MAX];
	enum role role;
	unsigned which;
	struct bytes body;
	keys_of(secret_a, NULL, &a);
	keys_of(secret_b, NULL, &b);
	keys_of(secret_b, secret_a, &both);
	size_t n = beat_seal(&a, 0, BEAT_KIND_BEAT, ROLE_HOLDER, BYTES("x", 1), d);
	cr_expect_eq(beat_unseal(&b, BEAT_KIND_BEAT, BYTES(d, n), &role, &which, &body),
		     ERR_UNAUTHENTICATED);
	cr_expect_eq(beat_unseal(&both, BEAT_KIND_BEAT, BYTES(d, n), &role, &which, &body),
		     ERR_NONE);
	cr_expect_eq(which, 1, "and it is answered under the same key");
	NO_LEAKS();
}

Test(beat_core, a_role_key_beats_as_that_role_only)
{
	struct keyring *k;
	struct beat_keys b;
	uint8_t key[32] = { 3 };
	cr_assert_eq(keyring_new_role(ROLE_HOLDER, NULL, key, &k), ERR_NONE);
	cr_assert_eq(beat_keys_init(&b, k), ERR_NONE);
	cr_expect_eq(beat_keys_of(&b, ROLE_HOLDER), 1);
	cr_expect_eq(beat_keys_of(&b, ROLE_SERVICE), 0);
	cr_expect_eq(beat_keys_of(&b, ROLE_CLIENT), 0);
	keyring_free(k);
	cr_assert_eq(keyring_new_role(ROLE_CLIENT, "t", key, &k), ERR_NONE);
	cr_expect_eq(beat_keys_init(&b, k), ERR_FORBIDDEN);
	keyring_free(k);
	NO_LEAKS();
}

/* ---- freshness ---- */

Test(beat_core, two_beats_make_it_known)
{
	struct pair p;
	pair_init(&p);
	join(&p, &p.out);
	look(&p);
	const struct beat_peer *q = peer(&p, "agent");
	cr_expect_eq(q->state, BEAT_READY);
	cr_expect_eq(q->instances, 1);
	cr_expect_eq(q->news.pid, 77);
	cr_expect_eq(q->role, ROLE_HOLDER);
	cr_expect_eq(p.out.to[0].last_ack_ns, p.now);
	cr_expect_eq(p.out.acked, 1);
	cr_expect_eq(p.book.c.challenges, 1);
	cr_expect_eq(p.book.c.stamped, 1);
	pair_fini(&p);
	NO_LEAKS();
}

Test(beat_core, a_replay_stamps_nothing)
{
	struct pair p;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	pair_init(&p);
	join(&p, &p.out);
	uint64_t at = peer(&p, "agent")->last_ns;
	p.now += 500 * MS;
	cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(dgram, n_dgram), reply, &n),
		     BEAT_REPLAY);
	cr_expect_eq(n, 0, "and is not answered");
	cr_expect_eq(peer(&p, "agent")->last_ns, at);
	cr_expect_eq(p.book.c.replays, 1);
	pair_fini(&p);
	NO_LEAKS();
}

/* A recording of a run that has ended does not make it alive again. */
Test(beat_core, a_recording_of_an_older_run_stamps_nothing)
{
	struct pair p;
	struct beat_out again_out;
	uint8_t old[8][BEAT_BYTES_MAX], reply[BEAT_BYTES_MAX];
	size_t n_old[8], n;
	bool again;
	pair_init(&p);
	join(&p, &p.out);
	for (int i = 0; i < 8; i++) { /* sent, but lost on the way to the master */
		n_old[i] = beat_out_make(&p.out, 0, &p.news, false, 0, old[i]);
	}
	sender_init(&again_out, "agent", 0x22);
	join(&p, &again_out);
	cr_expect_eq(peer(&p, "agent")->instances, 2);
	cr_expect_eq(peer(&p, "agent")->instance[0], 0x22);
	uint64_t at = peer(&p, "agent")->last_ns;
	p.now += 100 * MS;
	for (int i = 0; i < 8; i++) {
		cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(old[i], n_old[i]), reply, &n),
			     BEAT_OK);
		cr_expect_gt(n, 0, "it is challenged, as it may be real");
	}
	cr_expect_eq(peer(&p, "agent")->instance[0], 0x22);
	cr_expect_eq(peer(&p, "agent")->last_ns, at);
	cr_expect_eq(beat(&p, &again_out, false, &again), BEAT_OK);
	cr_expect_eq(peer(&p, "agent")->last_ns, p.now, "the live one goes on undisturbed");
	pair_fini(&p);
	NO_LEAKS();
}

/* A recording does not survive a restart of the master either. */
Test(beat_core, a_new_master_challenges_everybody)
{
	struct pair p;
	bool again;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	pair_init(&p);
	join(&p, &p.out);
	struct beat_out sender = p.out;
	pair_fini(&p);
	pair_init(&p);
	memset(p.book.secret, 6, sizeof(p.book.secret));
	cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(dgram, n_dgram), reply, &n), BEAT_OK);
	cr_expect_null(peer(&p, "agent"));
	p.now += 500 * MS;
	cr_expect_eq(beat(&p, &sender, false, &again), BEAT_OK);
	cr_expect(again);
	cr_expect_eq(beat(&p, &sender, false, &again), BEAT_OK);
	cr_expect_not_null(peer(&p, "agent"), "two beats later it is known again");
	pair_fini(&p);
	NO_LEAKS();
}

Test(beat_core, lost_answers_delay_nothing_but_themselves)
{
	struct pair p;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	bool again;
	pair_init(&p);
	for (int i = 0; i < 5; i++) {
		n_dgram = beat_out_make(&p.out, 0, &p.news, false, 0, dgram);
		cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(dgram, n_dgram), reply, &n),
			     BEAT_OK);
		p.now += 500 * MS;
	}
	cr_expect(beat_out_take(&p.out, 0, BYTES(reply, n), p.now));
	cr_expect_eq(beat(&p, &p.out, false, &again), BEAT_OK);
	cr_expect_not_null(peer(&p, "agent"));
	pair_fini(&p);
	NO_LEAKS();
}

/* I1: nothing grows by names that never answer a challenge, nor beyond peers_max. */
Test(beat_core, memory_is_bounded_by_peers_max)
{
	struct pair p;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	pair_init(&p);
	p.book.peers_max = p.book.names.limit = 10;
	for (int i = 0; i < 200; i++) {
		struct beat_out o;
		char name[32];
		snprintf(name, sizeof(name), "n%d", i);
		sender_init(&o, name, (uint8_t)i);
		n = beat_out_make(&o, 0, &p.news, false, 0, dgram);
		cr_assert_eq(beat_book_take(&p.book, p.now, BYTES(dgram, n), reply, &n),
			     BEAT_OK);
	}
	cr_expect_eq(p.book.n, 0, "unanswered challenges hold no memory");
	for (int i = 0; i < 20; i++) {
		struct beat_out o;
		char name[32];
		bool again;
		snprintf(name, sizeof(name), "m%d", i);
		sender_init(&o, name, (uint8_t)i);
		beat(&p, &o, false, &again);
		cr_expect_eq(beat(&p, &o, false, &again), i < 10 ? BEAT_OK : BEAT_FULL);
	}
	cr_expect_eq(p.book.n, 10);
	cr_expect_eq(p.book.c.refused, 10);
	pair_fini(&p);
	NO_LEAKS();
}

Test(beat_core, garbage_is_counted)
{
	struct pair p;
	uint8_t reply[BEAT_BYTES_MAX], junk[BEAT_BYTES_MAX + 100];
	size_t n;
	pair_init(&p);
	for (size_t len = 0; len < sizeof(junk); len += 7) {
		memset(junk, (int)len, sizeof(junk));
		enum beat_verdict v =
			beat_book_take(&p.book, p.now, BYTES(junk, len), reply, &n);
		cr_expect(v == BEAT_NO_FRAME || v == BEAT_NO_MAC);
		cr_expect_eq(n, 0, "nothing unproven is answered");
	}
	/* a well-sealed body that is no beat */
	n = beat_seal(&p.out.keys, 0, BEAT_KIND_BEAT, ROLE_HOLDER, BYTES("\xc1", 1), junk);
	cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(junk, n), reply, &n), BEAT_NO_FRAME);
	/* bad names */
	static const char *const names[] = { "", "a b", "x/y", "\x01" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct beat_out o;
		sender_init(&o, names[i], 1);
		n = beat_out_make(&o, 0, &p.news, false, 0, dgram);
		cr_expect_eq(beat_book_take(&p.book, p.now, BYTES(dgram, n), reply, &n),
			     BEAT_NO_FRAME, "%s", names[i]);
	}
	cr_expect_gt(p.book.c.bad_frames, 4);
	cr_expect_eq(p.book.n, 0);
	pair_fini(&p);
	NO_LEAKS();
}

Test(beat_core, a_sender_refuses_foreign_answers)
{
	struct pair p;
	struct beat_out other;
	uint8_t reply[BEAT_BYTES_MAX];
	size_t n;
	pair_init(&p);
	sender_init(&other, "owner", 0x33);
	size_t m = beat_out_make(&other, 0, &p.news, false, 0, dgram);
	cr_assert_eq(beat_book_take(&p.book, p.now, BYTES(dgram, m), reply, &n), BEAT_OK);
	cr_expect_not(beat_out_take(&p.out, 0, BYTES(reply, n), p.now), "another's instance");
	cr_expect_eq(p.out.bad, 1);
	cr_expect_not(beat_out_take(&p.out, 0, BYTES(dgram, m), p.now), "a beat");
	reply[n - 1] ^= 1;
	cr_expect_not(beat_out_take(&other, 0, BYTES(reply, n), p.now), "a wrong tag");
	cr_expect_eq(other.bad, 1);
	cr_expect_eq(p.out.bad, 2);
	pair_fini(&p);
	NO_LEAKS();
}

/* ---- states ---- */

Test(beat_core, silence_is_suspect_then_dead_then_back)
{
	struct pair p;
	bool again;
	pair_init(&p);
	join(&p, &p.out);
	pass(&p, 2000);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	pass(&p, 250);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_SUSPECT);
	cr_expect_not(peer(&p, "agent")->loop_stands);
	pass(&p, 27750);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_SUSPECT);
	pass(&p, 250);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_DEAD);
	cr_expect_eq(beat(&p, &p.out, false, &again), BEAT_OK);
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY, "the same run may come back");
	cr_expect_eq(peer(&p, "agent")->instances, 1);
	pair_fini(&p);
	NO_LEAKS();
}

Test(beat_core, not_ready_is_starting)
{
	struct pair p;
	bool again;
	pair_init(&p);
	p.news.ready = false;
	join(&p, &p.out);
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_STARTING);
	p.news.ready = true;
	beat(&p, &p.out, false, &again);
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	pair_fini(&p);
	NO_LEAKS();
}

/* L1: a healthy beat with a loop that stands still while a ping waits. */
Test(beat_core, a_loop_that_stands_is_suspect)
{
	struct pair p;
	bool again;
	pair_init(&p);
	join(&p, &p.out);
	uint64_t turns = p.news.loop_turns;
	for (int i = 0; i < 5; i++) {
		pass(&p, 500);
		p.news.loop_turns = turns;
		cr_expect_eq(beat(&p, &p.out, true, &again), BEAT_OK);
	}
	pass(&p, 250);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_SUSPECT);
	cr_expect(peer(&p, "agent")->loop_stands);
	p.news.loop_turns = turns + 1;
	beat(&p, &p.out, true, &again);
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY, "it moves again");
	pair_fini(&p);
	NO_LEAKS();
}

/* An idle loop that owes nothing may stand as long as it likes. */
Test(beat_core, an_idle_loop_is_no_suspect)
{
	struct pair p;
	bool again;
	pair_init(&p);
	join(&p, &p.out);
	uint64_t turns = p.news.loop_turns;
	for (int i = 0; i < 20; i++) {
		pass(&p, 500);
		p.news.loop_turns = turns;
		beat(&p, &p.out, false, &again);
		cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	}
	pair_fini(&p);
	NO_LEAKS();
}

/* I4: the master was stopped itself for a minute. */
Test(beat_core, our_own_absence_makes_nobody_suspect)
{
	struct pair p;
	bool again;
	pair_init(&p);
	join(&p, &p.out);
	pass(&p, 500);
	p.now += 60000 * MS;
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	pass(&p, 1750);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	beat(&p, &p.out, false, &again);
	pass(&p, 2000);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_READY);
	/* but one that really went is found out suspect_ms after our return */
	p.now += 60000 * MS;
	look(&p);
	pass(&p, 2250);
	cr_expect_neq(peer(&p, "agent")->state, BEAT_READY);
	pair_fini(&p);
	NO_LEAKS();
}

/* One that was suspect before our absence is not forgiven by it. */
Test(beat_core, absence_forgives_no_suspect)
{
	struct pair p;
	pair_init(&p);
	join(&p, &p.out);
	pass(&p, 3000);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_SUSPECT);
	p.now += 60000 * MS;
	look(&p);
	cr_expect_eq(peer(&p, "agent")->state, BEAT_DEAD);
	pair_fini(&p);
	NO_LEAKS();
}

struct told {
	int n;
	struct beat_peer last;
};

static void on_changed(void *ctx, const struct beat_peer *p)
{
	struct told *t = ctx;
	t->n++;
	t->last = *p;
}

Test(beat_core, changes_are_told_once)
{
	struct pair p;
	struct told t = { 0 };
	struct beat_out second;
	pair_init(&p);
	join(&p, &p.out);
	beat_book_look(&p.book, p.now, 250 * MS, on_changed, &t);
	beat_book_look(&p.book, p.now, 250 * MS, on_changed, &t);
	cr_expect_eq(t.n, 1);
	cr_expect_eq(t.last.state, BEAT_READY);
	sender_init(&second, "agent", 0x44);
	join(&p, &second);
	beat_book_look(&p.book, p.now, 250 * MS, on_changed, &t);
	cr_expect_eq(t.n, 2, "a new run of a name is news though its state is the same");
	cr_expect_eq(t.last.instances, 2);
	pair_fini(&p);
	NO_LEAKS();
}

/* ---- addresses ---- */

Test(beat_core, addresses)
{
	static const struct {
		const char *rpc, *beat;
	} good[] = {
		{ "ipc:///tmp/x/run/master.sock", "unix:/tmp/x/run/beat.sock" },
		{ "tcp://127.0.0.1:17600", "udp://127.0.0.1:17605" },
		{ "tls+tcp://10.1.2.3:100", "udp://10.1.2.3:105" },
		{ "tcp://[::1]:17600", "udp://[::1]:17605" },
		{ "tcp://*:17600", "udp://0.0.0.0:17605" },
		{ "sim://n1/master", "sim://n1/beat" },
	};
	static const char *const bad[] = { "", "http://x", "tcp://h", "tcp://h:65535",
					   "ipc://" };
	char out[BEAT_ADDR_MAX];
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct why why = { 0 };
		cr_expect_eq(beat_addr_of(good[i].rpc, out, &why), ERR_NONE, "%s: %s",
			     good[i].rpc, why.text);
		cr_expect_str_eq(out, good[i].beat);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct why why = { 0 };
		cr_expect_neq(beat_addr_of(bad[i], out, &why), ERR_NONE, "%s", bad[i]);
		cr_expect(why.text[0], "%s", bad[i]);
	}
	NO_LEAKS();
}
