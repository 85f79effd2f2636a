/* SPDX-License-Identifier: Apache-2.0 */
#include "lane_fix.h"

#include "base/sum.h"

#include <endian.h>
#include <string.h>

enum { GAP = 64 };

/* ---- the server's questions ---- */

static enum lane_open opened(struct fix *f, struct bytes ticket, struct lane_obj *out,
			     struct why *why)
{
	size_t n = MIN_OF(ticket.n, sizeof(f->ticket) - 1);
	memcpy(f->ticket, ticket.p, n);
	f->ticket[n] = '\0';
	if (f->says == LANE_REFUSED)
		why_note(why, f->refuse, "not this one");
	if (f->says == LANE_OPENED) {
		assert(!f->open);
		f->open = true;
		*out = f->obj;
	}
	return f->says;
}

static enum lane_open on_get(void *ctx, struct bytes ticket, struct lane_obj *out,
			     struct why *why)
{
	struct fix *f = ctx;
	f->n_get++;
	return opened(f, ticket, out, why);
}

static enum lane_open on_put(void *ctx, struct bytes ticket, struct lane_obj *out,
			     struct why *why)
{
	struct fix *f = ctx;
	f->n_put++;
	return opened(f, ticket, out, why);
}

static enum err on_look(void *ctx)
{
	struct fix *f = ctx;
	f->n_look++;
	return f->look;
}

static void on_end(void *ctx, bool put, bool all)
{
	struct fix *f = ctx;
	assert(f->open);
	f->open = false;
	f->n_end++;
	f->n_whole += all;
}

static void on_corrupt(void *ctx)
{
	((struct fix *)ctx)->n_corrupt++;
}

/* ---- the object ---- */

uint8_t *fix_at(struct fix *f, size_t i)
{
	for (uint32_t k = 0; k < f->obj.n_ext; k++) {
		if (i < f->obj.ext[k].iov_len)
			return (uint8_t *)f->obj.ext[k].iov_base + i;
		i -= f->obj.ext[k].iov_len;
	}
	return NULL;
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

void fix_fill(struct fix *f, uint64_t seed)
{
	uint8_t *flat = malloc(f->size + 1);
	uint64_t blocks = obj_blocks(f->size);
	for (size_t i = 0; i < f->size; i++)
		flat[i] = (uint8_t)next(&seed);
	f->obj.sum = sum_object(flat, f->size, f->vector);
	for (size_t i = 0; i < f->size; i++)
		*fix_at(f, i) = flat[i];
	for (size_t i = 0; i < blocks * 8; i++)
		*fix_at(f, obj_vector_at(f->size) + i) = ((uint8_t *)f->vector)[i];
	free(flat);
}

static void make_extents(struct fix *f, uint32_t n_ext)
{
	size_t stored = obj_stored_bytes(f->size), part = stored / n_ext, at = 0;
	f->stored = calloc(1, stored + (size_t)n_ext * GAP + 1);
	f->obj = (struct lane_obj){ .n_ext = n_ext, .size = f->size };
	for (uint32_t i = 0; i < n_ext; i++) {
		size_t n = i + 1 < n_ext ? part : stored - part * (n_ext - 1);
		f->obj.ext[i] = (struct iovec){ f->stored + at, n };
		at += n + GAP;
	}
}

void fix_init(struct fix *f, size_t size, uint32_t n_ext, bool mac_data)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "secret of a lane with no wire ..";
	static const uint8_t instance[16] = "an agent's run";
	*f = (struct fix){ .size = size, .says = LANE_OPENED, .now_ns = NS_PER_S, .rng = 7 };
	f->vector = malloc(obj_blocks(size) * 8 + 8);
	make_extents(f, n_ext);
	fix_fill(f, 1);
	enum err e = keyring_new(secret, NULL, &f->keys);
	struct hello_server_opts h = { .keys = f->keys,
				       .role = ROLE_HOLDER,
				       .listener = "agent",
				       .holder = FIX_HOLDER,
				       .instance = instance,
				       .v_min = 1,
				       .v_max = WIRE_VERSION };
	e = e ? e : hello_server_new(&h, &f->hello);
	assert(e == ERR_NONE);
	f->ops = (struct lane_srv_ops){ on_get, on_put, on_look, on_end, on_corrupt, f };
	struct lane_srv_opts o = {
		.ops = &f->ops, .hello = f->hello, .session = 3, .mac_data = mac_data
	};
	lane_srv_init(&f->srv, &o);
	f->cap_got = obj_stored_bytes(size) * 2 + 64;
	f->got = calloc(1, f->cap_got);
}

void fix_fini(struct fix *f)
{
	lane_srv_fini(&f->srv);
	lane_cli_fini(&f->cli);
	assert(!f->open);
	hello_server_free(f->hello);
	keyring_free(f->keys);
	free(f->stored);
	free(f->vector);
	free(f->got);
}

/* ---- the wire ---- */

static size_t total(const struct iovec *v, size_t n)
{
	size_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += v[i].iov_len;
	return bytes;
}

static size_t move(struct fix *f, const struct iovec *from, size_t n_from,
		   const struct iovec *to, size_t n_to, bool back)
{
	size_t n = MIN_OF(total(from, n_from), total(to, n_to));
	size_t piece = f->piece ? 1 + (size_t)(next(&f->rng) % f->piece) : n;
	n = MIN_OF(n, piece);
	size_t i = 0, k = 0, at_i = 0, at_k = 0;
	for (size_t done = 0; done < n; done++) {
		while (at_i == from[i].iov_len)
			i++, at_i = 0;
		while (at_k == to[k].iov_len)
			k++, at_k = 0;
		uint8_t b = ((uint8_t *)from[i].iov_base)[at_i++];
		uint64_t number = back ? ++f->n_to_cli : ++f->n_to_srv;
		if (number == (back ? f->flip_back_at : f->flip_at))
			b ^= 4;
		((uint8_t *)to[k].iov_base)[at_k++] = b;
	}
	return n;
}

size_t fix_run(struct fix *f)
{
	struct iovec from[XF_IOV], to[XF_IOV];
	size_t all = 0;
	for (;;) {
		size_t a = lane_cli_out(&f->cli, from), b = lane_srv_want(&f->srv, to);
		size_t n = a && b ? move(f, from, a, to, b, false) : 0;
		if (n > 0) {
			lane_cli_sent(&f->cli, n);
			lane_srv_got(&f->srv, n, f->now_ns);
		}
		a = lane_srv_out(&f->srv, from);
		b = lane_cli_want(&f->cli, to);
		size_t m = a && b ? move(f, from, a, to, b, true) : 0;
		if (m > 0) {
			lane_srv_sent(&f->srv, m);
			lane_cli_got(&f->cli, m);
		}
		if (n + m == 0)
			return all;
		all += n + m;
	}
}

void fix_connect(struct fix *f, const char *tenant, bool mac_data)
{
	static const uint8_t instance[16] = "a client's run";
	struct why why = { 0 };
	struct lane_cli_opts o = { .keys = f->keys,
				   .tenant = tenant,
				   .holder = FIX_HOLDER,
				   .instance = instance,
				   .mac_data = mac_data };
	enum err e = lane_cli_init(&f->cli, &o, &why);
	assert(e == ERR_NONE);
	fix_run(f);
}

/* ---- requests ---- */

static size_t on_land(void *ctx, uint64_t offset, size_t n, struct iovec *spans)
{
	struct fix *f = ctx;
	if (n > f->cap_got - f->n_got || n < 2)
		return 0;
	spans[0] = (struct iovec){ f->got + f->n_got, n / 2 };
	spans[1] = (struct iovec){ f->got + f->n_got + n / 2, n - n / 2 };
	return 2;
}

static enum err on_landed(void *ctx, uint64_t offset, size_t n, uint64_t sum)
{
	struct fix *f = ctx;
	if (sum64(f->got + f->n_got, n) != sum)
		return ERR_INTERNAL;
	if (f->n_frames < ARRAY_LEN(f->offsets))
		f->offsets[f->n_frames] = offset;
	f->n_frames++;
	f->n_got += n;
	return ERR_NONE;
}

static const struct lane_cli_ops cli_ops = { on_land, on_landed };

static enum err outcome(struct fix *f)
{
	if (f->cli.pipe.err)
		return f->cli.pipe.err;
	return f->cli.state == CLI_READY ? f->cli.status : ERR_TIMED_OUT;
}

enum err fix_get(struct fix *f, const struct xf_range *r, size_t n, bool check)
{
	f->n_got = f->n_frames = 0;
	enum err e = lane_cli_get(&f->cli, BYTES_STR("read ticket"), r, n, check, &cli_ops, f);
	if (e == ERR_NONE)
		fix_run(f);
	return e ? e : outcome(f);
}

static bool writing(struct fix *f)
{
	fix_run(f);
	return f->cli.state == CLI_WRITING && f->cli.pipe.err == ERR_NONE;
}

enum err fix_put(struct fix *f, const uint8_t *p, size_t n, size_t frame)
{
	uint64_t *vector = malloc(obj_blocks(n) * 8 + 8);
	size_t blocks = obj_blocks(n);
	enum err e = lane_cli_put(&f->cli, BYTES_STR("write ticket"));
	uint64_t sum = sum_object(p, n, vector);
	for (size_t at = 0; e == ERR_NONE && at < n && writing(f);) {
		size_t k = MIN_OF(n - at, frame);
		struct iovec v = { (void *)(uintptr_t)(p + at), k };
		e = lane_cli_data(&f->cli, at, &v, 1, k, sum64(p + at, k));
		at += k;
	}
	if (e == ERR_NONE && blocks && writing(f)) {
		struct iovec v = { vector, blocks * 8 };
		e = lane_cli_data(&f->cli, obj_vector_at(n), &v, 1, v.iov_len,
				  sum64(vector, v.iov_len));
	}
	if (e == ERR_NONE && writing(f))
		e = lane_cli_last(&f->cli);
	fix_run(f);
	free(vector);
	e = e ? e : outcome(f);
	if (e == ERR_NONE)
		f->obj.sum = sum;
	return e;
}
