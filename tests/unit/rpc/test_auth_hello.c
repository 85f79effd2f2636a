/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_hello.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "support/leak.h"

#define T0 (5000 * NS_PER_S)

static const uint8_t client_instance[16] = "client instance",
		     server_instance[16] = "server instance";

static struct keyring *cluster(uint8_t first)
{
	uint8_t secret[32];
	struct keyring *k = NULL;
	for (int i = 0; i < 32; i++)
		secret[i] = (uint8_t)(first + i);
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	return k;
}

/* A ring whose key for (role, tenant) is really that of (of, of_tenant): a liar's. */
static struct keyring *forged(const struct keyring *from, enum role of, const char *of_tenant,
			      enum role role, const char *tenant)
{
	uint8_t key[32];
	struct keyring *k = NULL;
	cr_assert_eq(keyring_role_key(from, 0, of, of_tenant, key), ERR_NONE);
	cr_assert_eq(keyring_new_role(role, tenant, key, &k), ERR_NONE);
	return k;
}

/* Both ends and what is on the wire between them. */
struct rig {
	struct keyring *server_keys, *client_keys;
	struct hello_server *server;
	struct hello_client *client;
	struct buf hello, challenge, prove, welcome;
	struct auth_session cs, ss;
	struct peer client_peer, server_peer; /* as the other side sees them */
	struct hello_limits limits;
	struct why why;
	uint64_t now_ns;
};

static struct hello_server_opts server_opts(const struct keyring *k)
{
	return (struct hello_server_opts){ .keys = k,
					   .role = ROLE_SERVICE,
					   .listener = "master",
					   .instance = server_instance,
					   .v_min = 1,
					   .v_max = 1,
					   .limits = { 8 << 20, 1024 } };
}

static struct hello_client_opts client_opts(const struct keyring *k)
{
	return (struct hello_client_opts){ .keys = k,
					   .role = ROLE_CLIENT,
					   .tenant = "blue",
					   .instance = client_instance,
					   .v_min = 1,
					   .v_max = 1,
					   .expect = ROLE_SERVICE,
					   .expect_listener = "master" };
}

static void rig_bufs(struct rig *r)
{
	struct buf *all[] = { &r->hello, &r->challenge, &r->prove, &r->welcome };
	for (size_t i = 0; i < 4; i++)
		if (all[i]->limit)
			buf_clear(all[i]);
		else
			*all[i] = BUF_INIT(4096);
}

/* Takes both rings. */
static struct rig rig_with(struct keyring *server_keys, struct keyring *client_keys,
			   const struct hello_server_opts *so,
			   const struct hello_client_opts *co)
{
	struct rig r = { .server_keys = server_keys, .client_keys = client_keys, .now_ns = T0 };
	cr_assert_eq(hello_server_new(so, &r.server), ERR_NONE);
	cr_assert_eq(hello_client_new(co, &r.client, &r.why), ERR_NONE, "%s", r.why.text);
	rig_bufs(&r);
	return r;
}

static struct rig rig_new(void)
{
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	struct hello_client_opts co = client_opts(ck);
	return rig_with(sk, ck, &so, &co);
}

static void rig_free(struct rig *r)
{
	hello_server_free(r->server);
	hello_client_free(r->client);
	keyring_free(r->server_keys);
	keyring_free(r->client_keys);
	buf_fini(&r->hello);
	buf_fini(&r->challenge);
	buf_fini(&r->prove);
	buf_fini(&r->welcome);
	auth_session_fini(&r->cs);
	auth_session_fini(&r->ss);
}

/* One step each; what is on the wire may be spoilt in between. */
static enum err to_hello(struct rig *r)
{
	rig_bufs(r);
	r->why = (struct why){ 0 };
	return hello_client_start(r->client, &r->hello);
}
static enum err to_challenge(struct rig *r)
{
	return hello_server_challenge(r->server, buf_bytes(&r->hello), r->now_ns, &r->challenge,
				      &r->why);
}
static enum err to_prove(struct rig *r)
{
	return hello_client_challenge(r->client, buf_bytes(&r->challenge), &r->prove, &r->why);
}
static enum err to_session(struct rig *r)
{
	auth_session_fini(&r->ss);
	return hello_server_prove(r->server, buf_bytes(&r->prove), r->now_ns, 77, &r->welcome,
				  &r->ss, &r->client_peer, &r->why);
}
static enum err to_end(struct rig *r)
{
	auth_session_fini(&r->cs);
	return hello_client_welcome(r->client, buf_bytes(&r->welcome), &r->cs, &r->server_peer,
				    &r->limits, &r->why);
}

static enum err (*const steps[])(struct rig *r) = { to_hello, to_challenge, to_prove,
						    to_session, to_end };

/* Runs steps [from, 5); returns the first error and in *at which step had it. */
static enum err run_from(struct rig *r, size_t from, size_t *at)
{
	for (size_t i = from; i < ARRAY_LEN(steps); i++) {
		enum err e = steps[i](r);
		if (at)
			*at = i;
		if (e != ERR_NONE)
			return e;
	}
	return ERR_NONE;
}

static void check_talk(struct auth_session *a, struct auth_session *b)
{
	uint8_t tag[16];
	uint64_t seq;
	struct iovec iov = { .iov_base = "a message", .iov_len = 9 };
	cr_assert_eq(auth_next_seq(a, &seq), ERR_NONE);
	cr_assert_eq(auth_tag(a, seq, &iov, 1, tag), ERR_NONE);
	cr_assert_eq(auth_check(b, seq, &iov, 1, tag), ERR_NONE);
	cr_assert_eq(auth_check(b, seq, &iov, 1, tag), ERR_REPLAYED);
}

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

static struct buf *message(struct rig *r, int i)
{
	struct buf *all[] = { &r->hello, &r->challenge, &r->prove, &r->welcome };
	return all[i];
}

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
		/* HELLO, CHALLENGE, PROVE: no later than the server's judgement; WELCOME: the client's */
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

static void swap_bufs(struct buf *a, struct buf *b)
{
	struct buf t = *a;
	*a = *b;
	*b = t;
}

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
		/* PROVE under another transport address is still its maker's: the session is made, and
		 * only its maker can use it; the WELCOME then convinces nobody it went to */
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

/* ---- versions (C1) ---- */

struct version_case {
	uint32_t c_min, c_max, s_min, s_max, want; /* 0: mismatch */
};

static struct version_case version_cases[] = {
	{ 1, 1, 1, 1, 1 }, { 1, 2, 1, 2, 2 }, { 1, 2, 1, 1, 1 },
	{ 1, 1, 1, 2, 1 }, { 2, 3, 1, 2, 2 }, { 1, 2, 2, 3, 2 },
	{ 2, 3, 1, 1, 0 }, { 1, 1, 2, 3, 0 }, { 1, 9, 3, 5, 5 },
};

ParameterizedTestParameters(auth_hello, versions)
{
	return cr_make_param_array(struct version_case, version_cases,
				   ARRAY_LEN(version_cases));
}

ParameterizedTest(struct version_case *c, auth_hello, versions, .timeout = 5)
{
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	so.v_min = c->s_min;
	so.v_max = c->s_max;
	struct hello_client_opts co = client_opts(ck);
	co.v_min = c->c_min;
	co.v_max = c->c_max;
	struct rig r = rig_with(sk, ck, &so, &co);
	size_t at;
	enum err e = run_from(&r, 0, &at);
	if (c->want) {
		cr_assert_eq(e, ERR_NONE, "%s", r.why.text);
		cr_assert_eq(r.client_peer.wire_version, c->want);
		cr_assert_eq(r.server_peer.wire_version, c->want);
	} else {
		char ours[32], theirs[32];
		snprintf(ours, sizeof(ours), "%u to %u", c->c_min, c->c_max);
		snprintf(theirs, sizeof(theirs), "%u to %u", c->s_min, c->s_max);
		cr_assert_eq(e, ERR_VERSION_MISMATCH);
		cr_assert_eq(at, 1);
		cr_assert(strstr(r.why.text, ours) && strstr(r.why.text, theirs), "%s",
			  r.why.text);
	}
	rig_free(&r);
	NO_LEAKS();
}

/* In the middle, somebody takes the newest version out of HELLO, or lowers the choice. */
Test(auth_hello, downgrade, .timeout = 5)
{
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	struct hello_client_opts co = client_opts(ck);
	so.v_max = co.v_max = 3;
	struct rig r = rig_with(sk, ck, &so, &co);
	struct msg_hello m;
	struct why why = { 0 };
	cr_assert_eq(to_hello(&r), ERR_NONE);
	struct dec d = DEC_INIT(buf_bytes(&r.hello), NULL, &why);
	cr_assert_eq(dec_hello(&d, &m), ERR_NONE);
	m.v_max = 1;
	struct buf lower = BUF_INIT(4096);
	enc_hello(&lower, &m);
	swap_bufs(&lower, &r.hello);
	cr_assert_eq(to_challenge(&r), ERR_NONE);
	cr_assert_eq(to_prove(&r), ERR_VERSION_MISMATCH);
	cr_assert(strstr(r.why.text, "forces"), "%s", r.why.text);

	/* and hides the server's range too: the server does not know its own CHALLENGE again */
	struct msg_challenge c;
	r.why = (struct why){ 0 };
	cr_assert_eq(to_hello(&r), ERR_NONE);
	cr_assert_eq(to_challenge(&r), ERR_NONE);
	d = DEC_INIT(buf_bytes(&r.challenge), NULL, &why);
	cr_assert_eq(dec_challenge(&d, &c), ERR_NONE);
	c.v = c.v_max = 1;
	buf_clear(&lower);
	enc_challenge(&lower, &c);
	swap_bufs(&lower, &r.challenge);
	cr_assert_eq(to_prove(&r), ERR_NONE);
	cr_assert_eq(to_session(&r), ERR_STALE_SESSION);
	buf_fini(&lower);
	rig_free(&r);
	NO_LEAKS();
}

/* ---- bounds ---- */

Test(auth_hello, a_flood_of_hellos_leaves_nothing, .timeout = 20)
{
	struct rig r = rig_new();
	for (int i = 0; i < 3; i++)
		cr_assert_eq(steps[i](&r), ERR_NONE);
	struct buf out = BUF_INIT(4096);
	for (int i = 0; i < 20000; i++) {
		buf_clear(&out);
		cr_assert_eq(hello_server_challenge(r.server, buf_bytes(&r.hello), T0, &out,
						    NULL),
			     ERR_NONE);
	}
	/* the challenge from before the flood is as good as ever */
	cr_assert_eq(run_from(&r, 3, NULL), ERR_NONE, "%s", r.why.text);
	buf_fini(&out);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, handshakes_have_a_limit, .timeout = 5)
{
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	so.handshakes_max = 20;
	so.handshake_ms = 1000;
	struct hello_client_opts co = client_opts(ck);
	struct rig r = rig_with(sk, ck, &so, &co);
	for (int second = 0; second < 5; second++) {
		r.now_ns = T0 + (uint64_t)second * NS_PER_S;
		for (int i = 0; i < 20; i++)
			cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE, "%s", r.why.text);
		cr_assert_eq(run_from(&r, 0, NULL), ERR_BUSY);
		cr_assert(strstr(r.why.text, "20 handshakes"), "%s", r.why.text);
	}
	rig_free(&r);
	NO_LEAKS();
}

/* ---- order, options, rotation ---- */

Test(auth_hello, messages_out_of_turn, .timeout = 5)
{
	struct rig r = rig_new();
	cr_assert_eq(to_prove(&r), ERR_BAD_MESSAGE, "before HELLO");
	cr_assert_eq(to_end(&r), ERR_BAD_MESSAGE, "before PROVE");
	cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
	cr_assert_eq(to_end(&r), ERR_BAD_MESSAGE, "WELCOME twice");
	cr_assert_eq(to_hello(&r), ERR_NONE);
	cr_assert_eq(to_challenge(&r), ERR_NONE);
	cr_assert_eq(to_prove(&r), ERR_NONE);
	cr_assert_eq(to_prove(&r), ERR_BAD_MESSAGE, "CHALLENGE twice");
	cr_assert_eq(to_end(&r), ERR_BAD_MESSAGE);
	rig_free(&r);
	NO_LEAKS();
}

struct bad_hello {
	struct msg_hello m;
	enum err want;
	const char *says;
};

Test(auth_hello, hellos_that_are_none, .timeout = 5)
{
#define NAME(s)                                     \
	{                                           \
		(const uint8_t *)(s), sizeof(s) - 1 \
	}
#define NONCE	  .nonce = NAME("0123456789abcdef0123456789abcdef")
#define MECHANISM .mechanism = NAME("hmac-sha256")
#define VERSIONS  .v_min = 1, .v_max = 1
	static const struct bad_hello rows[] = {
		{ { VERSIONS, NONCE, MECHANISM }, ERR_BAD_MESSAGE, "role: 0" },
		{ { VERSIONS, .role = 5, NONCE, MECHANISM }, ERR_BAD_MESSAGE, "role: 5" },
		{ { VERSIONS, .role = 1, NONCE, MECHANISM }, ERR_BAD_MESSAGE, "tenant" },
		{ { VERSIONS, .role = 1, .tenant = NAME("a b"), NONCE, MECHANISM },
		  ERR_BAD_MESSAGE,
		  "tenant" },
		{ { VERSIONS, .role = 1, .tenant = NAME("a\0b"), NONCE, MECHANISM },
		  ERR_BAD_MESSAGE,
		  "tenant" },
		{ { VERSIONS, .role = 4, .tenant = NAME("a"), NONCE, MECHANISM },
		  ERR_BAD_MESSAGE,
		  "tenant" },
		{ { VERSIONS, .role = 2, NONCE, MECHANISM }, ERR_BAD_MESSAGE, "holder" },
		{ { VERSIONS, .role = 4, .holder = NAME("h"), NONCE, MECHANISM },
		  ERR_BAD_MESSAGE,
		  "holder" },
		{ { VERSIONS, .role = 4, .nonce = NAME("short"), MECHANISM },
		  ERR_BAD_MESSAGE,
		  "nonce" },
		{ { VERSIONS, .role = 4, NONCE, .mechanism = NAME("x509") },
		  ERR_UNSUPPORTED,
		  "hmac-sha256" },
		{ { VERSIONS, .role = 4, NONCE }, ERR_UNSUPPORTED, "mechanism" },
		{ { .role = 4, NONCE, MECHANISM }, ERR_VERSION_MISMATCH, "0 to 0" },
		{ { .v_min = 5, .v_max = 1, .role = 4, NONCE, MECHANISM },
		  ERR_VERSION_MISMATCH,
		  "5 to 1" },
	};
	struct rig r = rig_new();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		rig_bufs(&r);
		r.why = (struct why){ 0 };
		enc_hello(&r.hello, &rows[i].m);
		cr_assert_eq(to_challenge(&r), rows[i].want, "row %zu: %s", i, r.why.text);
		cr_assert(strstr(r.why.text, rows[i].says), "row %zu: %s", i, r.why.text);
		cr_assert_eq(r.challenge.n, 0);
	}
	cr_assert_eq(hello_server_challenge(r.server, BYTES("junk", 4), T0, &r.challenge,
					    &r.why),
		     ERR_BAD_MESSAGE);
	rig_free(&r);
	NO_LEAKS();
}

Test(auth_hello, options_that_are_wrong, .timeout = 5)
{
	struct keyring *k = cluster(1),
		       *only_blue = forged(k, ROLE_CLIENT, "blue", ROLE_CLIENT, "blue");
	struct hello_server *s = NULL;
	struct hello_client *c = NULL;
	struct hello_server_opts so = server_opts(k);
	so.role = ROLE_CLIENT;
	cr_assert_eq(hello_server_new(&so, &s), ERR_INVALID_PARAMS);
	so = server_opts(k);
	so.listener = "";
	cr_assert_eq(hello_server_new(&so, &s), ERR_INVALID_PARAMS);
	so = server_opts(k);
	so.role = ROLE_HOLDER;
	cr_assert_eq(hello_server_new(&so, &s), ERR_INVALID_PARAMS);
	so = server_opts(k);
	so.v_min = 2;
	cr_assert_eq(hello_server_new(&so, &s), ERR_INVALID_PARAMS);

	struct why why = { 0 };
	struct hello_client_opts co = client_opts(only_blue);
	co.tenant = "red";
	cr_assert_eq(hello_client_new(&co, &c, &why), ERR_FORBIDDEN);
	cr_assert(strstr(why.text, "pomelo secret derive client red"), "%s", why.text);
	why = (struct why){ 0 };
	co.tenant = NULL;
	cr_assert_eq(hello_client_new(&co, &c, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "tenant"));
	why = (struct why){ 0 };
	co = client_opts(k);
	co.role = ROLE_HOLDER;
	cr_assert_eq(hello_client_new(&co, &c, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "id"));
	why = (struct why){ 0 };
	co = client_opts(k);
	co.v_min = 0;
	cr_assert_eq(hello_client_new(&co, &c, &why), ERR_INVALID_PARAMS);
	cr_assert_null(s);
	cr_assert_null(c);
	hello_server_free(NULL);
	hello_client_free(NULL);
	keyring_free(k);
	keyring_free(only_blue);
	NO_LEAKS();
}

/* While a secret is rotated, servers take both; the old one's clients and the new one's get in. */
Test(auth_hello, rotation, .timeout = 5)
{
	for (int old = 0; old < 2; old++) {
		uint8_t a[32], b[32];
		for (int i = 0; i < 32; i++) {
			a[i] = (uint8_t)(1 + i);
			b[i] = (uint8_t)(2 + i);
		}
		struct keyring *sk = NULL, *ck = cluster(old ? 2 : 1);
		cr_assert_eq(keyring_new(a, b, &sk), ERR_NONE);
		struct hello_server_opts so = server_opts(sk);
		struct hello_client_opts co = client_opts(ck);
		struct rig r = rig_with(sk, ck, &so, &co);
		cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE, "%s", r.why.text);
		check_talk(&r.cs, &r.ss);
		rig_free(&r);
	}
	NO_LEAKS();
}

static void counting(void *ctx, void *p, size_t n)
{
	uint8_t *next = ctx;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)p)[i] = (*next)++;
}

/* With the same random bytes both ends compute the same messages: a simulation can be repeated. */
Test(auth_hello, repeatable_with_given_random_bytes, .timeout = 5)
{
	struct buf first[4] = { { 0 } };
	for (int round = 0; round < 2; round++) {
		uint8_t server_next = 3, client_next = 9;
		struct keyring *sk = cluster(1), *ck = cluster(1);
		struct hello_server_opts so = server_opts(sk);
		struct hello_client_opts co = client_opts(ck);
		so.random = (struct auth_random){ counting, &server_next };
		co.random = (struct auth_random){ counting, &client_next };
		struct rig r = rig_with(sk, ck, &so, &co);
		cr_assert_eq(run_from(&r, 0, NULL), ERR_NONE);
		for (int i = 0; i < 4; i++)
			if (round == 0) {
				first[i] = BUF_INIT(4096);
				buf_put(&first[i], message(&r, i)->p, message(&r, i)->n);
			} else {
				cr_assert_eq(first[i].n, message(&r, i)->n);
				cr_assert_arr_eq(first[i].p, message(&r, i)->p, first[i].n);
				buf_fini(&first[i]);
			}
		rig_free(&r);
	}
	NO_LEAKS();
}
