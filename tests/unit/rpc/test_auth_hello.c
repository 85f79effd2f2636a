/* SPDX-License-Identifier: Apache-2.0 */
#include "hello_rig.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/auth_crypto.h"
#include "support/leak.h"

Test(auth_hello, honest_ends_meet, .timeout = 5)
{
	struct rig r = rig_new();
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE, "%s", r.why.text);
	cr_assert_eq(r.client_peer.role, ROLE_CLIENT);
	cr_assert_str_eq(r.client_peer.tenant, "blue");
	cr_assert_str_eq(r.client_peer.holder, "");
	cr_assert_arr_eq(r.client_peer.instance, client_instance, 16);
	cr_assert_eq(r.client_peer.session, 77);
	cr_assert_eq(r.server_peer.role, ROLE_SERVICE);
	cr_assert_arr_eq(r.server_peer.instance, server_instance, 16);
	cr_assert_eq(r.server_peer.session, 77);
	cr_assert_eq(r.server_peer.wire_version, 1);
	cr_assert_eq(r.limits.message_max, 8 << 20);
	cr_assert_eq(r.limits.inflight_max, 1024);
	cr_assert_leq(r.hello.n, AUTH_HELLO_MAX);
	cr_assert_leq(r.prove.n, AUTH_HELLO_MAX);
	check_talk(&r.cs, &r.ss);
	check_talk(&r.ss, &r.cs);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, longest_names_fit, .timeout = 5)
{
	char name[65];
	memset(name, 'n', 64);
	name[64] = '\0';
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	so.role = ROLE_HOLDER;
	so.holder = so.listener = name;
	struct hello_client_opts co = client_opts(ck);
	co.tenant = co.expect_listener = co.expect_holder = name;
	co.expect = ROLE_HOLDER;
	struct rig r = rig_with(sk, ck, &so, &co);
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE, "%s", r.why.text);
	cr_assert_leq(r.prove.n, AUTH_HELLO_MAX, "%zu", r.prove.n);
	cr_assert_str_eq(r.server_peer.holder, name);
	cr_assert_str_eq(r.client_peer.tenant, name);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, every_role, .timeout = 5)
{
	static const enum role roles[] = { ROLE_HOLDER, ROLE_SERVICE, ROLE_ADMIN };
	for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
		struct keyring *sk = cluster(1);
		/* with nothing but its own key */
		struct keyring *ck = forged(sk, roles[i], NULL, roles[i], NULL);
		struct hello_server_opts so = server_opts(sk);
		struct hello_client_opts co = client_opts(ck);
		co.role = roles[i];
		co.holder = "h1";
		struct rig r = rig_with(sk, ck, &so, &co);
		cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE, "%s", r.why.text);
		cr_assert_eq(r.client_peer.role, roles[i]);
		cr_assert_str_eq(r.client_peer.tenant, "");
		cr_assert_str_eq(r.client_peer.holder, roles[i] == ROLE_HOLDER ? "h1" : "");
		rig_free(&r);
	}
	NO_LEAKS();
}

/* ---- every flipped bit of every message ---- */

static void check_flips(int which)
{
	struct rig r = rig_new();
	size_t at, n_bits = 1;
	for (size_t bit = 0; bit < n_bits; bit++) {
		for (int i = 0; i <= which; i++)
			cr_assert_eq(steps[i](&r), ERR_NONE);
		struct buf *m = message(&r, which);
		n_bits = m->n * 8;
		m->p[bit / 8] ^= (uint8_t)(1 << bit % 8);
		enum err e = run_from(&r, (size_t)which + 1, &at);
		cr_assert_neq(e, ERR_NONE, "message %d bit %zu", which, bit);
		/* HELLO, CHALLENGE, PROVE: no later than the server's judgement; WELCOME: the
		 * client's */
		cr_assert_leq(at, which == 3 ? 4u : 3u, "message %d bit %zu", which, bit);
		cr_assert_null(r.cs.send);
		if (which != 3)
			cr_assert_null(r.ss.send);
	}
	/* and the same two ends still agree when nobody meddles */
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
	rig_free(&r);
}

Test(auth_hello, flipped_hello, .timeout = 20)
{
	check_flips(0);
	NO_LEAKS();
}
Test(auth_hello, flipped_challenge, .timeout = 20)
{
	check_flips(1);
	NO_LEAKS();
}
Test(auth_hello, flipped_prove, .timeout = 20)
{
	check_flips(2);
	NO_LEAKS();
}
Test(auth_hello, flipped_welcome, .timeout = 20)
{
	check_flips(3);
	NO_LEAKS();
}

Test(auth_hello, cut_and_padded_messages, .timeout = 20)
{
	struct rig r = rig_new();
	for (int which = 0; which < 4; which++)
		for (int longer = 0; longer < 2; longer++) {
			size_t at;
			for (int i = 0; i <= which; i++)
				cr_assert_eq(steps[i](&r), ERR_NONE);
			struct buf *m = message(&r, which);
			if (longer)
				buf_put(m, "", 1);
			else
				m->n--;
			cr_assert_neq(run_from(&r, (size_t)which + 1, &at), ERR_NONE);
			cr_assert_eq(at, (size_t)which + 1, "seen at once");
		}
	rig_free(&r);
	NO_LEAKS();
}

/* ---- wrong keys ---- */

static void check_refused(struct keyring *sk, struct keyring *ck, enum role role,
			  const char *tenant)
{
	struct hello_server_opts so = server_opts(sk);
	struct hello_client_opts co = client_opts(ck);
	co.role = role;
	co.tenant = tenant;
	co.holder = "h1";
	struct rig r = rig_with(sk, ck, &so, &co);
	size_t at;
	cr_assert_eq(run_from(&r, 0, &at), ERR_UNAUTHENTICATED);
	cr_assert_eq(at, 3, "the server refuses");
	cr_assert(strstr(r.why.text, "--secret-file"), "%s", r.why.text);
	cr_assert(strstr(r.why.text, role_name(role)), "%s", r.why.text);
	cr_assert_eq(r.welcome.n, 0);
	rig_free(&r);
}

Test(auth_hello, wrong_secret_role_tenant, .timeout = 5)
{
	check_refused(cluster(1), cluster(2), ROLE_CLIENT, "blue");
	check_refused(cluster(1), cluster(2), ROLE_ADMIN, NULL);
	struct keyring *k = cluster(1);
	check_refused(cluster(1), forged(k, ROLE_CLIENT, "red", ROLE_CLIENT, "blue"),
		      ROLE_CLIENT, "blue");
	check_refused(cluster(1), forged(k, ROLE_CLIENT, "blue", ROLE_ADMIN, NULL), ROLE_ADMIN,
		      NULL);
	check_refused(cluster(1), forged(k, ROLE_CLIENT, "blue", ROLE_HOLDER, NULL),
		      ROLE_HOLDER, NULL);
	check_refused(cluster(1), forged(k, ROLE_HOLDER, NULL, ROLE_SERVICE, NULL),
		      ROLE_SERVICE, NULL);
	check_refused(cluster(1), forged(k, ROLE_SERVICE, NULL, ROLE_CLIENT, "blue"),
		      ROLE_CLIENT, "blue");
	/* a server that has one role's key knows no other */
	check_refused(forged(k, ROLE_CLIENT, "blue", ROLE_CLIENT, "blue"), cluster(1),
		      ROLE_ADMIN, NULL);
	keyring_free(k);
	NO_LEAKS();
}

/* A server without the secret gets as far as its WELCOME. */
Test(auth_hello, a_server_without_the_secret, .timeout = 5)
{
	struct rig honest = rig_new();
	struct keyring *liar = cluster(9), *ck = cluster(9);
	struct hello_server_opts so = server_opts(liar);
	struct hello_client_opts co = client_opts(ck);
	struct rig r = rig_with(liar, ck, &so, &co);
	/* its WELCOME is good for a client of its own secret ... */
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
	/* ... and for nobody else, even over the honest client's own messages */
	cr_assert_eq(to_hello(&honest), ERR_NONE);
	cr_assert_eq(hello_server_challenge(r.server, buf_bytes(&honest.hello), T0,
					    &honest.challenge, &honest.why),
		     ERR_NONE);
	cr_assert_eq(to_prove(&honest), ERR_NONE);
	cr_assert_eq(hello_client_welcome(honest.client, buf_bytes(&r.welcome), &honest.cs,
					  &honest.server_peer, NULL, &honest.why),
		     ERR_UNAUTHENTICATED);
	cr_assert(strstr(honest.why.text, "secret"), "%s", honest.why.text);
	rig_free(&r);
	rig_free(&honest);
	NO_LEAKS();
}

/* The client's own proof, sent back as the server's. */
Test(auth_hello, reflection, .timeout = 5)
{
	struct rig r = rig_new();
	for (int i = 0; i < 3; i++)
		cr_assert_eq(steps[i](&r), ERR_NONE);
	struct msg_prove p;
	struct dec d = DEC_INIT(buf_bytes(&r.prove), NULL, NULL);
	cr_assert_eq(dec_prove(&d, &p), ERR_NONE);
	enc_welcome(&r.welcome, &(struct msg_welcome){ .session = 77, .proof = p.proof });
	cr_assert_eq(to_end(&r), ERR_UNAUTHENTICATED);
	/* a server's role is never a client's */
	buf_clear(&r.challenge);
	cr_assert_eq(to_hello(&r), ERR_NONE);
	struct bytes nonce = BYTES("0123456789abcdef0123456789abcdef", 32);
	enc_challenge(&r.challenge, &(struct msg_challenge){ .v = 1,
							     .v_min = 1,
							     .v_max = 1,
							     .role = ROLE_CLIENT,
							     .listener = BYTES_STR("master"),
							     .nonce = nonce });
	cr_assert_eq(to_prove(&r), ERR_BAD_MESSAGE);
	rig_free(&r);
	NO_LEAKS();
}

/* ---- replays ---- */

Test(auth_hello, replayed_prove, .timeout = 5)
{
	struct rig r = rig_new();
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
	for (uint64_t after_ms = 0; after_ms < 4 * AUTH_HANDSHAKE_MS; after_ms += 250) {
		r.now_ns = T0 + after_ms * NS_PER_MS;
		r.why = (struct why){ 0 };
		cr_assert_eq(to_session(&r), ERR_STALE_SESSION);
	}
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, late_prove, .timeout = 5)
{
	struct rig r = rig_new();
	for (int i = 0; i < 3; i++)
		cr_assert_eq(steps[i](&r), ERR_NONE);
	r.now_ns = T0 + AUTH_HANDSHAKE_MS * NS_PER_MS + 1;
	cr_assert_eq(to_session(&r), ERR_STALE_SESSION);
	cr_assert(strstr(r.why.text, "5000 ms"), "%s", r.why.text);
	r.now_ns = T0 - 1;
	cr_assert_eq(to_session(&r), ERR_STALE_SESSION, "made in the future");
	r.now_ns = T0 + AUTH_HANDSHAKE_MS * NS_PER_MS;
	cr_assert_eq(to_session(&r), ERR_NONE);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, replayed_hello_challenge_welcome, .timeout = 5)
{
	struct rig r = rig_new();
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
	struct buf first_hello = BUF_INIT(4096), first_challenge = BUF_INIT(4096);
	struct buf first_welcome = BUF_INIT(4096);
	buf_put(&first_hello, r.hello.p, r.hello.n);
	buf_put(&first_challenge, r.challenge.p, r.challenge.n);
	buf_put(&first_welcome, r.welcome.p, r.welcome.n);

	/* HELLO again: another challenge, which the recorded PROVE does not answer */
	buf_clear(&r.challenge);
	cr_assert_eq(to_challenge(&r), ERR_NONE);
	cr_assert_neq(memcmp(r.challenge.p, first_challenge.p, r.challenge.n), 0);

	/* an old CHALLENGE to a new HELLO: the server knows it was made for another */
	cr_assert_eq(to_hello(&r), ERR_NONE);
	cr_assert_neq(memcmp(r.hello.p, first_hello.p, r.hello.n), 0, "a fresh nonce");
	buf_clear(&r.challenge);
	buf_put(&r.challenge, first_challenge.p, first_challenge.n);
	cr_assert_eq(to_prove(&r), ERR_NONE);
	cr_assert_eq(to_session(&r), ERR_STALE_SESSION);

	/* an old WELCOME to a new PROVE */
	r.why = (struct why){ 0 };
	for (int i = 0; i < 4; i++)
		cr_assert_eq(steps[i](&r), ERR_NONE);
	buf_clear(&r.welcome);
	buf_put(&r.welcome, first_welcome.p, first_welcome.n);
	cr_assert_eq(to_end(&r), ERR_UNAUTHENTICATED);
	buf_fini(&first_hello);
	buf_fini(&first_challenge);
	buf_fini(&first_welcome);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, prove_for_another_server_or_its_next_run, .timeout = 5)
{
	struct rig a = rig_new(), b = rig_new();
	for (int i = 0; i < 3; i++)
		cr_assert_eq(steps[i](&a), ERR_NONE);
	cr_assert_eq(hello_server_prove(b.server, buf_bytes(&a.prove), T0, 5, &b.welcome, &b.ss,
					&b.client_peer, &b.why),
		     ERR_STALE_SESSION);
	rig_free(&a);
	rig_free(&b);
	NO_LEAKS();
}

/* ---- a man in the middle of two handshakes ---- */

static void check_swap(int which)
{
	struct rig a = rig_new(), b = rig_new();
	/* both clients at one server */
	hello_server_free(b.server);
	b.server = a.server;
	for (int i = 0; i <= which; i++) {
		cr_assert_eq(steps[i](&a), ERR_NONE);
		cr_assert_eq(steps[i](&b), ERR_NONE);
	}
	swap_bufs(message(&a, which), message(&b, which));
	size_t at_a = 0, at_b = 0;
	enum err ea = run_from(&a, (size_t)which + 1, &at_a);
	enum err eb = run_from(&b, (size_t)which + 1, &at_b);
	if (which == 2) {
		/* PROVE under another transport address is still its maker's: the session is
		 * made, and only its maker can use it; the WELCOME then convinces nobody it
		 * went to */
		cr_assert_eq(at_a, 4);
		cr_assert_eq(at_b, 4);
	}
	cr_assert_neq(ea, ERR_NONE);
	cr_assert_neq(eb, ERR_NONE);
	b.server = NULL;
	rig_free(&a);
	rig_free(&b);
}

Test(auth_hello, swapped_messages, .timeout = 5)
{
	for (int which = 0; which < 4; which++)
		check_swap(which);
	NO_LEAKS();
}

/* Who relays every byte is a wire: both ends agree, and it has no key. */
Test(auth_hello, relayed_to_the_wrong_place, .timeout = 5)
{
	static const struct {
		const char *listener, *holder, *says;
		enum role role;
	} rows[] = {
		{ "agent", NULL, "'agent' answers", ROLE_SERVICE },
		{ "master", "h1", "holder", ROLE_HOLDER },
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct keyring *sk = cluster(1), *ck = cluster(1);
		struct hello_server_opts so = server_opts(sk);
		so.listener = rows[i].listener;
		so.role = rows[i].role;
		so.holder = rows[i].holder;
		struct hello_client_opts co = client_opts(ck);
		struct rig r = rig_with(sk, ck, &so, &co);
		size_t at;
		cr_assert_eq(run_from(&r, 0, &at), ERR_UNAUTHENTICATED);
		cr_assert_eq(at, 2);
		cr_assert(strstr(r.why.text, rows[i].says), "%s", r.why.text);
		rig_free(&r);
	}
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	so.role = ROLE_HOLDER;
	so.holder = "h1";
	so.listener = "agent";
	struct hello_client_opts co = client_opts(ck);
	co.expect = ROLE_NONE;
	co.expect_listener = NULL;
	co.expect_holder = "h2";
	struct rig r = rig_with(sk, ck, &so, &co);
	cr_assert_eq(run_from(&r, 0, NULL), ERR_UNAUTHENTICATED);
	cr_assert(strstr(r.why.text, "'h1'") && strstr(r.why.text, "'h2'"), "%s", r.why.text);
	rig_free(&r);
	NO_LEAKS();
}
