/* SPDX-License-Identifier: Apache-2.0 */
/* SP framing without a socket: every cut, every limit. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "rpc/sp_frame.h"
#include "support/leak.h"

#include <string.h>

#define SCRATCH (128u << 10)
#define KEEP	64

TestSuite(sp_frame, .timeout = 20);

struct feed {
	struct sp_rx rx;
	uint64_t held;
	uint8_t *scratch;
	uint32_t n_frames, stop_after;
	size_t len[KEEP];
	uint8_t first[KEEP], last[KEEP];
	bool was_owned[KEEP];
	const char *text;
};

static void on_frame(struct sp_rx *rx, struct bytes body, uint8_t *owned)
{
	struct feed *f = container_of(rx, struct feed, rx);
	if (f->n_frames < KEEP) {
		f->len[f->n_frames] = body.n;
		f->first[f->n_frames] = body.p[0];
		f->last[f->n_frames] = body.p[body.n - 1];
		f->was_owned[f->n_frames] = owned != NULL;
	}
	f->n_frames++;
	if (owned) {
		*rx->held -= body.n;
		free(owned);
	}
	if (f->stop_after && f->n_frames == f->stop_after)
		rx->stop = true;
}

static void feed_open(struct feed *f, bool ipc)
{
	*f = (struct feed){ .rx = { .ipc = ipc,
				    .peer_proto = SP_PROTO_REQ,
				    .max = 1 << 20,
				    .held_max = 1 << 20,
				    .on_frame = on_frame } };
	f->rx.held = &f->held;
	f->scratch = malloc(SCRATCH);
	cr_assert(f->scratch);
}

static void feed_close(struct feed *f)
{
	sp_rx_fini(&f->rx);
	cr_assert_eq(f->held, 0);
	free(f->scratch);
}

/* As a socket would: at most `step` bytes a read. */
static enum err feed(struct feed *f, const uint8_t *p, size_t n, size_t step)
{
	while (n > 0) {
		size_t room;
		uint8_t *to = sp_rx_room(&f->rx, f->scratch, SCRATCH, &room);
		size_t m = MIN_OF(MIN_OF(n, step), room);
		cr_assert_gt(m, 0);
		memcpy(to, p, m);
		enum err e = sp_rx_feed(&f->rx, f->scratch, m, &f->text);
		if (e != ERR_NONE || f->rx.stop)
			return e;
		p += m;
		n -= m;
	}
	return ERR_NONE;
}

/* greeting, then frames of the given body lengths, each filled with its index */
static size_t build(uint8_t *out, bool ipc, const size_t *lens, size_t n)
{
	size_t at = SP_GREETING;
	sp_greeting(out, SP_PROTO_REQ);
	for (size_t i = 0; i < n; i++) {
		at += sp_frame_hdr(out + at, ipc, lens[i]);
		memset(out + at, (int)i + 1, lens[i]);
		at += lens[i];
	}
	return at;
}

static void every_step(bool ipc)
{
	static const size_t lens[] = { 4, 100, 7, SP_SMALL, SP_SMALL + 1, 5, 200000, 4 };
	static const size_t steps[] = { 1, 2, 3, 7, 8, 9, 64, 4096, 65536, SCRATCH };
	uint8_t *all = malloc(400000);
	cr_assert(all);
	size_t n = build(all, ipc, lens, ARRAY_LEN(lens));
	for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
		struct feed f;
		feed_open(&f, ipc);
		cr_assert_eq(feed(&f, all, n, steps[s]), ERR_NONE);
		cr_assert_eq(f.n_frames, ARRAY_LEN(lens), "step %zu", steps[s]);
		for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
			cr_assert_eq(f.len[i], lens[i]);
			cr_assert_eq(f.first[i], i + 1);
			cr_assert_eq(f.last[i], i + 1);
		}
		cr_assert(!sp_rx_partial(&f.rx));
		feed_close(&f);
	}
	free(all);
	NO_LEAKS();
}

Test(sp_frame, every_step_tcp)
{
	every_step(false);
}

Test(sp_frame, every_step_ipc)
{
	every_step(true);
}

/* A large frame whose end comes with the header is not owned; one cut by the buffer is. */
Test(sp_frame, large_frames_are_owned)
{
	static const size_t lens[] = { 150000 };
	uint8_t *all = malloc(160000);
	struct feed f;
	cr_assert(all);
	size_t n = build(all, false, lens, 1);
	feed_open(&f, false);
	cr_assert_eq(feed(&f, all, n - 1, SCRATCH), ERR_NONE);
	cr_assert_eq(f.held, 150000);
	cr_assert(sp_rx_partial(&f.rx));
	cr_assert_eq(feed(&f, all + n - 1, 1, SCRATCH), ERR_NONE);
	cr_assert_eq(f.n_frames, 1);
	cr_assert(f.was_owned[0]);
	cr_assert_eq(f.held, 0);
	feed_close(&f);
	free(all);
	NO_LEAKS();
}

Test(sp_frame, cut_large_frame_is_given_back)
{
	static const size_t lens[] = { 150000 };
	uint8_t *all = malloc(160000);
	struct feed f;
	cr_assert(all);
	build(all, false, lens, 1);
	feed_open(&f, false);
	cr_assert_eq(feed(&f, all, 5000, SCRATCH), ERR_NONE);
	cr_assert_eq(f.held, 150000);
	cr_assert(sp_rx_fini(&f.rx));
	cr_assert_eq(f.held, 0);
	feed_close(&f);
	free(all);
	NO_LEAKS();
}

struct hostile {
	char name[32];
	bool ipc;
	uint8_t bytes[32];
	size_t n;
	enum err err;
	char says[64];
};

#define G 0, 'S', 'P', 0, 0, 0x30, 0, 0

ParameterizedTestParameters(sp_frame, hostile)
{
	static struct hostile rows[] = {
		{ "http", false, "GET / HTTP", 1, ERR_BAD_MESSAGE, "does not speak SP" },
		{ "tls", false, { 0x16, 3, 1 }, 3, ERR_BAD_MESSAGE, "does not speak SP" },
		{ "third byte",
		  false,
		  { 0, 'S', 'X' },
		  3,
		  ERR_BAD_MESSAGE,
		  "does not speak SP" },
		{ "version 1", false, { 0, 'S', 'P', 1 }, 4, ERR_BAD_MESSAGE, "speak SP" },
		{ "a replier",
		  false,
		  { 0, 'S', 'P', 0, 0, 0x31 },
		  6,
		  ERR_BAD_MESSAGE,
		  "not REQ" },
		{ "a pair",
		  false,
		  { 0, 'S', 'P', 0, 0, 0x10, 0, 0 },
		  8,
		  ERR_BAD_MESSAGE,
		  "not REQ" },
		{ "reserved",
		  false,
		  { 0, 'S', 'P', 0, 0, 0x30, 1, 0 },
		  8,
		  ERR_BAD_MESSAGE,
		  "not REQ" },
		{ "2^63",
		  false,
		  { G, 0x80, 0, 0, 0, 0, 0, 0, 0 },
		  16,
		  ERR_TOO_LARGE,
		  "larger" },
		{ "2^64-1",
		  false,
		  { G, 255, 255, 255, 255, 255, 255, 255, 255 },
		  16,
		  ERR_TOO_LARGE,
		  "larger" },
		{ "max + 1",
		  false,
		  { G, 0, 0, 0, 0, 0, 0x10, 0, 1 },
		  16,
		  ERR_TOO_LARGE,
		  "larger" },
		{ "empty",
		  false,
		  { G, 0, 0, 0, 0, 0, 0, 0, 0 },
		  16,
		  ERR_BAD_MESSAGE,
		  "too short" },
		{ "3 bytes",
		  false,
		  { G, 0, 0, 0, 0, 0, 0, 0, 3 },
		  16,
		  ERR_BAD_MESSAGE,
		  "too short" },
		{ "ipc 0", true, { G, 0 }, 9, ERR_BAD_MESSAGE, "begin with 1" },
		{ "ipc 2",
		  true,
		  { G, 2, 0, 0, 0, 0, 0, 0, 0, 4 },
		  17,
		  ERR_BAD_MESSAGE,
		  "begin with 1" },
		{ "ipc 2^63",
		  true,
		  { G, 1, 0x80, 0, 0, 0, 0, 0, 0, 0 },
		  17,
		  ERR_TOO_LARGE,
		  "larger" },
	};
	return cr_make_param_array(struct hostile, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct hostile *h, sp_frame, hostile)
{
	for (size_t step = 1; step <= h->n; step++) {
		struct feed f;
		feed_open(&f, h->ipc);
		enum err e = feed(&f, h->bytes, h->n, step);
		cr_assert_eq(e, h->err, "%s by %zu: %s", h->name, step, err_name(e));
		cr_assert(strstr(f.text, h->says), "%s", f.text);
		cr_assert_eq(f.n_frames, 0);
		cr_assert_eq(f.held, 0);
		feed_close(&f);
	}
	NO_LEAKS();
}

Test(sp_frame, limit_is_inclusive)
{
	static const size_t lens[] = { 1 << 20 };
	uint8_t *all = malloc((1 << 20) + 64);
	struct feed f;
	cr_assert(all);
	size_t n = build(all, false, lens, 1);
	feed_open(&f, false);
	cr_assert_eq(feed(&f, all, n, SCRATCH), ERR_NONE);
	cr_assert_eq(f.n_frames, 1);
	feed_close(&f);
	free(all);
	NO_LEAKS();
}

Test(sp_frame, stop_and_resume)
{
	static const size_t lens[] = { 10, 10, 10, 10, 10 };
	uint8_t all[256];
	struct feed f;
	size_t n = build(all, false, lens, ARRAY_LEN(lens));
	feed_open(&f, false);
	f.stop_after = 2;
	cr_assert_eq(feed(&f, all, n, SCRATCH), ERR_NONE);
	cr_assert_eq(f.n_frames, 2);
	cr_assert(f.rx.stop);
	f.stop_after = 3;
	cr_assert_eq(sp_rx_resume(&f.rx, &f.text), ERR_NONE);
	cr_assert_eq(f.n_frames, 3);
	f.stop_after = 0;
	cr_assert_eq(sp_rx_resume(&f.rx, &f.text), ERR_NONE);
	cr_assert_eq(f.n_frames, 5);
	cr_assert_eq(f.last[4], 5);
	cr_assert(!sp_rx_partial(&f.rx));
	feed_close(&f);
	NO_LEAKS();
}

Test(sp_frame, resume_sees_a_bad_frame)
{
	static const size_t lens[] = { 10, 10 };
	uint8_t all[256];
	struct feed f;
	size_t n = build(all, true, lens, ARRAY_LEN(lens));
	all[SP_GREETING + 9 + 10] = 9; /* the second frame's 0x01 */
	feed_open(&f, true);
	f.stop_after = 1;
	cr_assert_eq(feed(&f, all, n, SCRATCH), ERR_NONE);
	cr_assert_eq(sp_rx_resume(&f.rx, &f.text), ERR_BAD_MESSAGE);
	feed_close(&f);
	NO_LEAKS();
}

/* Memory for large frames is shared: whoever comes when it is used up waits, and is not lost. */
Test(sp_frame, starved_until_memory_is_free)
{
	static const size_t lens[] = { 40000 };
	uint8_t *all = malloc(50000);
	struct feed f;
	cr_assert(all);
	size_t n = build(all, false, lens, 1);
	feed_open(&f, false);
	f.rx.held_max = 50000;
	f.held = 20000; /* somebody else's */
	cr_assert_eq(feed(&f, all, 1000, SCRATCH), ERR_NONE);
	cr_assert(f.rx.stop && f.rx.starved);
	cr_assert_eq(sp_rx_resume(&f.rx, &f.text), ERR_NONE);
	cr_assert(f.rx.starved, "still no room");
	f.held = 10000;
	cr_assert_eq(sp_rx_resume(&f.rx, &f.text), ERR_NONE);
	cr_assert(!f.rx.stop && !f.rx.starved);
	cr_assert_eq(feed(&f, all + 1000, n - 1000, SCRATCH), ERR_NONE);
	cr_assert_eq(f.n_frames, 1);
	cr_assert_eq(f.len[0], 40000);
	f.held -= 10000;
	feed_close(&f);
	free(all);
	NO_LEAKS();
}

/* One frame over the whole budget still passes, alone: else it would wait for ever. */
Test(sp_frame, one_frame_over_the_budget_passes_alone)
{
	static const size_t lens[] = { 60000 };
	uint8_t *all = malloc(70000);
	struct feed f;
	cr_assert(all);
	size_t n = build(all, false, lens, 1);
	feed_open(&f, false);
	f.rx.held_max = 50000;
	cr_assert_eq(feed(&f, all, n, 4096), ERR_NONE);
	cr_assert_eq(f.n_frames, 1);
	feed_close(&f);
	free(all);
	NO_LEAKS();
}

Test(sp_frame, request_header)
{
	uint8_t b[4 * (SP_HOPS_MAX + 2)] = { 0 };
	size_t n = 0;
	b[0] = 0x80;
	cr_assert(sp_req_hdr(BYTES(b, 4), &n));
	cr_assert_eq(n, 4);
	b[0] = 0;
	b[8] = 0xff;
	cr_assert(sp_req_hdr(BYTES(b, 40), &n));
	cr_assert_eq(n, 12, "two devices between");
	cr_assert(!sp_req_hdr(BYTES(b, 8), &n), "the id is cut off");
	cr_assert(!sp_req_hdr(BYTES(b, 11), &n));
	b[8] = 0;
	cr_assert(!sp_req_hdr(BYTES(b, sizeof(b)), &n), "no id at all");
	b[4 * (SP_HOPS_MAX - 1)] = 0x80;
	cr_assert(sp_req_hdr(BYTES(b, sizeof(b)), &n));
	cr_assert_eq(n, 4 * SP_HOPS_MAX);
	b[4 * (SP_HOPS_MAX - 1)] = 0;
	b[4 * SP_HOPS_MAX] = 0x80;
	cr_assert(!sp_req_hdr(BYTES(b, sizeof(b)), &n), "one hop too many");
	NO_LEAKS();
}

Test(sp_frame, header_bytes)
{
	uint8_t h[SP_FRAME_HDR_MAX], g[SP_GREETING];
	const uint8_t want[9] = { 1, 0, 0, 0, 0, 1, 2, 3, 4 };
	cr_assert_eq(sp_frame_hdr(h, true, 0x01020304), 9);
	cr_assert_arr_eq(h, want, 9);
	cr_assert_eq(sp_frame_hdr(h, false, 0x01020304), 8);
	cr_assert_arr_eq(h, want + 1, 8);
	sp_greeting(g, SP_PROTO_REP);
	const uint8_t rep[8] = { 0, 'S', 'P', 0, 0, 0x31, 0, 0 };
	cr_assert_arr_eq(g, rep, 8);
	sp_put_u32(h, 0x80000001);
	cr_assert_eq(sp_u32(h), 0x80000001);
	cr_assert_eq(h[0], 0x80);
	NO_LEAKS();
}
