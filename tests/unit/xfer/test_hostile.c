/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that lie, wires that change bits, frames out of turn (B5). */
#include "lane_fix.h"

#include "base/sum.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/leak.h"

TestSuite(hostile, .timeout = 60);

/* Feeds bytes as they are; false: the server takes no more. */
static bool feed(struct fix *f, const uint8_t *p, size_t n)
{
	struct iovec v[XF_IOV];
	while (n > 0) {
		size_t k = lane_srv_want(&f->srv, v);
		if (k == 0)
			return false;
		size_t part = MIN_OF(n, v[0].iov_len);
		memcpy(v[0].iov_base, p, part);
		lane_srv_got(&f->srv, part, f->now_ns);
		p += part;
		n -= part;
	}
	return true;
}

static void forge(struct fix *f, enum xf_op op, uint32_t meta, uint32_t data)
{
	uint8_t p[XF_HEADER + 4096] = { 0 };
	struct xf_head h = {
		.op = (uint8_t)op, .meta_bytes = meta, .data_bytes = data, .request = 1
	};
	h.sum = sum64(p + XF_HEADER, meta + data);
	xf_put(p, &h);
	(void)feed(f, p, XF_HEADER + meta + data);
}

Test(hostile, nothing_but_hello_comes_first)
{
	for (int op = XF_CHALLENGE; op < XF_OPS; op++) {
		struct fix f;
		fix_init(&f, 100, 1, false);
		forge(&f, (enum xf_op)op, op == XF_DATA ? 0 : 8, op == XF_DATA ? 8 : 0);
		cr_expect_eq(f.srv.pipe.err, ERR_BAD_MESSAGE);
		cr_expect(lane_srv_over(&f.srv), "and no word to who is not known");
		cr_expect_eq(f.n_get + f.n_put, 0);
		fix_fini(&f);
	}
	NO_LEAKS();
}

Test(hostile, a_large_hello_allocates_nothing)
{
	struct fix f;
	fix_init(&f, 100, 1, false);
	forge(&f, XF_HELLO, AUTH_HELLO_MAX + 1, 0);
	cr_expect_eq(f.srv.pipe.err, ERR_TOO_LARGE);
	fix_fini(&f);
	NO_LEAKS();
}

Test(hostile, frames_without_a_tag)
{
	static const uint8_t ops[] = { XF_GET, XF_PUT };
	for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
		struct fix f;
		fix_init(&f, 100, 1, false);
		fix_connect(&f, "blue", false);
		forge(&f, (enum xf_op)ops[i], 40, 0);
		cr_expect_eq(f.srv.pipe.err, ERR_UNAUTHENTICATED);
		cr_expect_eq(f.n_get + f.n_put, 0);
		fix_fini(&f);
	}
	NO_LEAKS();
}

/* A frame that was seen, once more. */
Test(hostile, a_replayed_frame)
{
	struct fix f;
	struct iovec v[XF_IOV];
	uint8_t copy[512];
	size_t n = 0;
	struct xf_range r = { 0, 10 };
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	cr_assert_eq(lane_cli_get(&f.cli, BYTES_STR("t"), &r, 1, false, NULL, NULL), ERR_NONE);
	size_t k = lane_cli_out(&f.cli, v);
	for (size_t i = 0; i < k; i++) {
		memcpy(copy + n, v[i].iov_base, v[i].iov_len);
		n += v[i].iov_len;
	}
	f.says = LANE_REFUSED;
	f.refuse = ERR_LEASE_LOST;
	fix_run(&f);
	cr_expect_eq(f.n_get, 1);
	cr_expect_eq(f.cli.status, ERR_LEASE_LOST);
	(void)feed(&f, copy, n);
	cr_expect_eq(f.srv.pipe.err, ERR_REPLAYED);
	cr_expect_eq(f.n_get, 1);
	fix_fini(&f);
	NO_LEAKS();
}

Test(hostile, another_cluster_s_client)
{
	struct fix f;
	struct keyring *own, *other;
	static const uint8_t secret[AUTH_KEY_BYTES] = "of another cluster altogether ..";
	fix_init(&f, 100, 1, false);
	cr_assert_eq(keyring_new(secret, NULL, &other), ERR_NONE);
	own = f.keys;
	f.keys = other;
	fix_connect(&f, "blue", false);
	f.keys = own;
	cr_expect(!f.srv.pipe.secure);
	cr_expect_neq(f.cli.pipe.err, ERR_NONE);
	fix_fini(&f);
	keyring_free(other);
	NO_LEAKS();
}

/* ---- every bit that changes on the way is seen ---- */

static uint64_t put_once(struct fix *f, uint64_t flip_at, enum err *e)
{
	static uint8_t p[200];
	fix_init(f, sizeof(p), 2, true);
	fix_connect(f, "blue", false);
	uint64_t start = f->n_to_srv;
	f->flip_at = flip_at ? start + flip_at : 0;
	for (size_t i = 0; i < sizeof(p); i++)
		p[i] = (uint8_t)i;
	*e = fix_put(f, p, sizeof(p), 150);
	return f->n_to_srv - start;
}

Test(hostile, a_flipped_bit_in_any_byte_of_a_put)
{
	struct fix f;
	enum err e;
	uint64_t n = put_once(&f, 0, &e);
	cr_assert_eq(e, ERR_NONE);
	fix_fini(&f);
	for (uint64_t at = 1; at <= n; at++) {
		(void)put_once(&f, at, &e);
		cr_expect_neq(e, ERR_NONE, "byte %llu of %llu", (unsigned long long)at,
			      (unsigned long long)n);
		cr_expect_eq(f.n_whole,
			     0); /* it may still wait for bytes of a length that was changed */
		fix_fini(&f);
	}
	NO_LEAKS();
}

static uint64_t get_once(struct fix *f, uint64_t flip_at, bool mac, enum err *e)
{
	struct xf_range r[] = { { 10, 20 }, { 100, 100 } };
	fix_init(f, 200, 2, mac);
	fix_connect(f, "blue", false);
	uint64_t start = f->n_to_cli;
	f->flip_back_at = flip_at ? start + flip_at : 0;
	*e = fix_get(f, r, 2, false);
	return f->n_to_cli - start;
}

Test(hostile, a_flipped_bit_in_any_byte_of_a_get)
{
	for (int mac = 0; mac < 2; mac++) {
		struct fix f;
		enum err e;
		uint64_t n = get_once(&f, 0, mac, &e);
		cr_assert_eq(e, ERR_NONE);
		fix_fini(&f);
		for (uint64_t at = 1; at <= n; at++) {
			(void)get_once(&f, at, mac, &e);
			cr_expect_neq(e, ERR_NONE, "byte %llu", (unsigned long long)at);
			fix_fini(&f);
		}
	}
	NO_LEAKS();
}

/* Between hosts, data whose tag does not cover it is refused, whatever its sum says. */
Test(hostile, data_without_a_tag_between_hosts)
{
	struct fix f;
	uint8_t p[64] = { 0 };
	struct iovec v = { p, sizeof(p) };
	fix_init(&f, 200, 1, true);
	fix_connect(&f, "blue", false);
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	f.cli.pipe.mac_data = false;
	cr_assert_eq(lane_cli_data(&f.cli, 0, &v, 1, 64, sum64(p, 64)), ERR_NONE);
	fix_run(&f);
	cr_expect_eq(f.srv.pipe.err, ERR_UNAUTHENTICATED);
	fix_fini(&f);
	NO_LEAKS();
}

/* ---- an agent that lies ---- */

static void from_agent(struct fix *f, enum xf_op op, uint32_t request, struct bytes meta)
{
	struct xf_head h = { .op = (uint8_t)op, .request = request };
	cr_assert_eq(xf_pipe_send(&f->srv.pipe, &h, meta, NULL, 0, false), ERR_NONE);
	fix_run(f);
}

Test(hostile, an_agent_out_of_turn)
{
	static const uint8_t ops[] = { XF_GO, XF_WELCOME, XF_CHALLENGE, XF_GET, XF_LAST };
	for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
		struct fix f;
		fix_init(&f, 100, 1, false);
		fix_connect(&f, "blue", false);
		from_agent(&f, (enum xf_op)ops[i], 0, BYTES(NULL, 0));
		cr_expect_eq(f.cli.pipe.err, ERR_BAD_MESSAGE);
		fix_fini(&f);
	}
	NO_LEAKS();
}

Test(hostile, an_end_before_last_is_no_success)
{
	struct fix f;
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	cr_assert_eq(f.cli.state, CLI_WRITING);
	from_agent(&f, XF_END, 1, BYTES(NULL, 0));
	cr_expect_eq(f.cli.pipe.err, ERR_BAD_MESSAGE);
	fix_fini(&f);
	NO_LEAKS();
}

Test(hostile, bytes_that_nobody_asked_for)
{
	struct fix f;
	struct xf_range r = { 0, 50 };
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	f.cap_got = 20;
	cr_expect_eq(fix_get(&f, &r, 1, false), ERR_BAD_MESSAGE);
	fix_fini(&f);
	NO_LEAKS();
}

Test(hostile, noise)
{
	uint64_t x = 42;
	for (int round = 0; round < 2000; round++) {
		struct fix f;
		uint8_t p[256];
		fix_init(&f, 100, 1, false);
		for (size_t i = 0; i < sizeof(p); i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			p[i] = (uint8_t)(x >> 56);
		}
		if (round % 2) { /* behind a sound beginning */
			struct xf_head h = { .op = XF_HELLO, .meta_bytes = 192 };
			h.sum = sum64(p + XF_HEADER, 192);
			xf_put(p, &h);
		}
		(void)feed(&f, p, sizeof(p));
		cr_expect_neq(f.srv.pipe.err, ERR_NONE);
		fix_fini(&f);
	}
	NO_LEAKS();
}
