/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes (B5). The first byte says whose end gets the rest: 0 an agent's, as it comes from a
 * stranger; 1 an agent's behind its HELLO, as frames whose sums are made right, so that what lies
 * behind them is reached; 2 a client's.
 */
#include "base/sum.h"
#include "xfer/lane_cli.h"
#include "xfer/lane_srv.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { SIZE = 3000 };

struct agent {
	uint8_t stored[SIZE];
	bool open;
	struct lane_srv_ops ops;
	struct lane_srv srv;
};

static enum lane_open on_open(void *ctx, struct bytes ticket, struct lane_obj *out,
			      struct why *why)
{
	struct agent *a = ctx;
	assert(!a->open);
	if (ticket.n % 4 == 3) {
		why_note(why, ERR_BAD_TICKET, "no");
		return LANE_REFUSED;
	}
	a->open = true;
	*out = (struct lane_obj){ .ext = { { a->stored, 1000 },
					   { a->stored + 1000, SIZE - 1000 } },
				  .n_ext = 2,
				  .size = SIZE };
	return LANE_OPENED;
}

static enum err on_look(void *ctx)
{
	return ERR_NONE;
}

static void on_end(void *ctx, bool put, bool all)
{
	struct agent *a = ctx;
	assert(a->open);
	a->open = false;
}

static void on_corrupt(void *ctx)
{
}

/* All that the agent has to say is said. */
static void drain(struct lane_srv *l)
{
	struct iovec v[XF_IOV];
	size_t n;
	while ((n = lane_srv_out(l, v)) > 0)
		for (size_t i = 0; i < n; i++)
			lane_srv_sent(l, v[i].iov_len);
}

static bool feed(struct lane_srv *l, const uint8_t *p, size_t n)
{
	struct iovec v[XF_IOV];
	while (n > 0) {
		drain(l);
		size_t k = lane_srv_want(l, v);
		if (k == 0)
			return false;
		size_t part = MIN_OF(n, v[0].iov_len);
		memcpy(v[0].iov_base, p, part);
		lane_srv_got(l, part, 1);
		p += part;
		n -= part;
	}
	return true;
}

/* op, flags, offset / 16, length: then the bytes. */
static void feed_frames(struct lane_srv *l, const uint8_t *p, size_t n)
{
	while (n >= 5) {
		uint8_t head[XF_HEADER];
		size_t bytes = MIN_OF((size_t)p[3] | (size_t)(p[4] & 7) << 8, n - 5);
		struct xf_head h = { .op = (uint8_t)(1 + p[0] % (XF_OPS - 1)),
				     .flags = p[1] & XF_FLAGS,
				     .offset = (uint64_t)p[2] * 16 };
		p += 5;
		n -= 5;
		*(h.op == XF_DATA ? &h.data_bytes : &h.meta_bytes) = (uint32_t)bytes;
		h.sum = sum64(p, bytes);
		xf_put(head, &h);
		if (!feed(l, head, sizeof(head)) || !feed(l, p, bytes))
			return;
		p += bytes;
		n -= bytes;
	}
}

static struct keyring *keys_of(void)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "a secret for fuzzing data lanes.";
	static struct keyring *k;
	if (!k && keyring_new(secret, NULL, &k) != ERR_NONE)
		abort();
	return k;
}

static void run_agent(const uint8_t *p, size_t n, bool proven)
{
	static struct hello_server *hello;
	static const uint8_t instance[16] = "an agent's run";
	struct hello_server_opts h = { .keys = keys_of(),
				       .role = ROLE_HOLDER,
				       .listener = "agent",
				       .holder = "h1",
				       .instance = instance,
				       .v_min = 1,
				       .v_max = WIRE_VERSION };
	if (!hello && hello_server_new(&h, &hello) != ERR_NONE)
		abort();
	static struct agent a;
	memset(&a, 0, sizeof(a));
	a.ops = (struct lane_srv_ops){ on_open, on_open, on_look, on_end, on_corrupt, &a };
	struct lane_srv_opts o = { .ops = &a.ops, .hello = hello, .session = 1 };
	lane_srv_init(&a.srv, &o);
	if (proven) {
		a.srv.state = SRV_READY;
		feed_frames(&a.srv, p, n);
	} else {
		(void)feed(&a.srv, p, n);
	}
	drain(&a.srv);
	lane_srv_fini(&a.srv);
	assert(!a.open);
}

static void run_client(const uint8_t *p, size_t n)
{
	static const uint8_t instance[16] = "a client's run";
	struct lane_cli_opts o = {
		.keys = keys_of(), .tenant = "t", .holder = "h1", .instance = instance
	};
	struct lane_cli c;
	struct why why = { 0 };
	struct iovec v[XF_IOV];
	if (lane_cli_init(&c, &o, &why) != ERR_NONE)
		abort();
	lane_cli_sent(&c, c.pipe.out_bytes);
	while (n > 0 && lane_cli_want(&c, v) > 0) {
		size_t part = MIN_OF(n, v[0].iov_len);
		memcpy(v[0].iov_base, p, part);
		lane_cli_got(&c, part);
		p += part;
		n -= part;
	}
	assert(c.state == CLI_HELLO);
	lane_cli_fini(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n == 0)
		return 0;
	if (p[0] % 3 == 2)
		run_client(p + 1, n - 1);
	else
		run_agent(p + 1, n - 1, p[0] % 3 == 1);
	return 0;
}
