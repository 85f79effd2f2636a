/* SPDX-License-Identifier: Apache-2.0 */
#include "hello_rig.h"

#include <criterion/criterion.h>
#include <string.h>

#include "rpc/auth_crypto.h"

const uint8_t client_instance[16] = "client instance", server_instance[16] = "server instance";

struct keyring *cluster(uint8_t first)
{
	uint8_t secret[32];
	struct keyring *k = NULL;
	for (int i = 0; i < 32; i++)
		secret[i] = (uint8_t)(first + i);
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	return k;
}

struct keyring *forged(const struct keyring *from, enum role of, const char *of_tenant,
		       enum role role, const char *tenant)
{
	uint8_t key[32];
	struct keyring *k = NULL;
	cr_assert_eq(keyring_role_key(from, 0, of, of_tenant, key), ERR_NONE);
	cr_assert_eq(keyring_new_role(role, tenant, key, &k), ERR_NONE);
	return k;
}

struct hello_server_opts server_opts(const struct keyring *k)
{
	return (struct hello_server_opts){ .keys = k,
					   .role = ROLE_SERVICE,
					   .listener = "master",
					   .instance = server_instance,
					   .v_min = 1,
					   .v_max = 1,
					   .limits = { 8 << 20, 1024 } };
}

struct hello_client_opts client_opts(const struct keyring *k)
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

void rig_bufs(struct rig *r)
{
	struct buf *all[] = { &r->hello, &r->challenge, &r->prove, &r->welcome };
	for (size_t i = 0; i < 4; i++)
		if (all[i]->limit)
			buf_clear(all[i]);
		else
			*all[i] = BUF_INIT(4096);
}

struct rig rig_with(struct keyring *server_keys, struct keyring *client_keys,
		    const struct hello_server_opts *so, const struct hello_client_opts *co)
{
	struct rig r = { .server_keys = server_keys, .client_keys = client_keys, .now_ns = T0 };
	cr_assert_eq(hello_server_new(so, &r.server), ERR_NONE);
	cr_assert_eq(hello_client_new(co, &r.client, &r.why), ERR_NONE, "%s", r.why.text);
	rig_bufs(&r);
	return r;
}

struct rig rig_new(void)
{
	struct keyring *sk = cluster(1), *ck = cluster(1);
	struct hello_server_opts so = server_opts(sk);
	struct hello_client_opts co = client_opts(ck);
	return rig_with(sk, ck, &so, &co);
}

void rig_free(struct rig *r)
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

enum err to_hello(struct rig *r)
{
	rig_bufs(r);
	r->why = (struct why){ 0 };
	return hello_client_start(r->client, &r->hello);
}
enum err to_challenge(struct rig *r)
{
	return hello_server_challenge(r->server, buf_bytes(&r->hello), r->now_ns, &r->challenge,
				      &r->why);
}
enum err to_prove(struct rig *r)
{
	return hello_client_challenge(r->client, buf_bytes(&r->challenge), &r->prove, &r->why);
}
enum err to_session(struct rig *r)
{
	auth_session_fini(&r->ss);
	return hello_server_prove(r->server, buf_bytes(&r->prove), r->now_ns, 77, &r->welcome,
				  &r->ss, &r->client_peer, &r->why);
}
enum err to_end(struct rig *r)
{
	auth_session_fini(&r->cs);
	return hello_client_welcome(r->client, buf_bytes(&r->welcome), &r->cs, &r->server_peer,
				    &r->limits, &r->why);
}

enum err (*const steps[5])(struct rig *r) = { to_hello, to_challenge, to_prove, to_session,
					      to_end };

enum err run_from(struct rig *r, size_t from, size_t *at)
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

void check_talk(struct auth_session *a, struct auth_session *b)
{
	uint8_t tag[16];
	uint64_t seq;
	struct iovec iov = { .iov_base = "a message", .iov_len = 9 };
	cr_assert_eq(auth_next_seq(a, &seq), ERR_NONE);
	cr_assert_eq(auth_tag(a, seq, &iov, 1, tag), ERR_NONE);
	cr_assert_eq(auth_check(b, seq, &iov, 1, tag), ERR_NONE);
	cr_assert_eq(auth_check(b, seq, &iov, 1, tag), ERR_REPLAYED);
}

struct buf *message(struct rig *r, int i)
{
	struct buf *all[] = { &r->hello, &r->challenge, &r->prove, &r->welcome };
	return all[i];
}

void swap_bufs(struct buf *a, struct buf *b)
{
	struct buf t = *a;
	*a = *b;
	*b = t;
}
