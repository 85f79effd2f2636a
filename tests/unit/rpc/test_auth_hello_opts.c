/* SPDX-License-Identifier: Apache-2.0 */
/* Versions, limits, options and rotation of the handshake. */
#include "hello_rig.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "rpc/auth_crypto.h"
#include "support/leak.h"

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
