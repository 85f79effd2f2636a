/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that break the rules, with bytes only: each is refused with a line, and costs nothing. */
#include "rpc_both.h"

#include "raw_sp.h"
#include "rpc/sp_frame.h"

#include <errno.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/socket.h>

TestSuite(hostile, .timeout = 30);

/* An honest client gets its answer, whatever went on before. */
static void still_serves(struct rpc_fix *f)
{
	struct rpc_client *cl = rpc_fix_client(f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES_STR("ok") };
	rpc_fix_call(f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	rpc_fix_close_client(f, cl);
}

/* ---- garbage ---- */

struct garbage {
	const char *what;
	const char *bytes;
	size_t n;
};

#define REQ "\0SP\0\0\x30\0\0"

static const struct garbage stream_rows[] = {
	{ "http", "GET / HTTP/1.1\r\n\r\n", 18 },
	{ "tls", "\x16\x03\x01\x02\x00\x01", 6 },
	{ "one byte", "x", 1 },
	{ "a replier", "\0SP\0\0\x31\0\0", 8 },
	{ "a publisher", "\0SP\0\0\x20\0\0", 8 },
	{ "reserved bytes", "\0SP\0\0\x30\0\1", 8 },
};

BOTH(hostile, garbage_instead_of_a_greeting)
{
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	for (size_t i = 0; i < ARRAY_LEN(stream_rows); i++) {
		struct raw_sp r;
		raw_open(&r, &f);
		raw_write(&r, stream_rows[i].bytes, stream_rows[i].n);
		cr_assert(raw_closed_within(&r, 1000), "%s", stream_rows[i].what);
		raw_close(&r);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.bad_frames, ARRAY_LEN(stream_rows));
	cr_assert_eq(k.conns_open, 0);
	cr_assert_eq(rpc_fix_lines(&f, true, "connection closed"), ARRAY_LEN(stream_rows));
	still_serves(&f);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* After a good greeting; the length is written as tcp has it, so ipc sees a bad first byte. */
static const struct garbage frame_rows[] = {
	{ "2^63", "\x80\0\0\0\0\0\0\0", 8 },
	{ "2^64 - 1", "\xff\xff\xff\xff\xff\xff\xff\xff", 8 },
	{ "over the limit of strangers", "\0\0\0\0\0\0\x10\x01", 8 },
	{ "length 0", "\0\0\0\0\0\0\0\0", 8 },
	{ "length 3", "\0\0\0\0\0\0\0\3abc", 11 },
	{ "an id without its top bit", "\0\0\0\0\0\0\0\4\0\0\0\1", 12 },
	{ "empty envelope", "\0\0\0\0\0\0\0\4\x80\0\0\1", 12 },
	{ "tag alone", "\0\0\0\0\0\0\0\x14\x80\0\0\1________________", 28 },
	{ "no msgpack", "\0\0\0\0\0\0\0\x18\x80\0\0\1\xc1\xc1\xc1\xc1________________", 32 },
	{ "a map", "\0\0\0\0\0\0\0\x18\x80\0\0\1\x81\x01\x02\xc0________________", 32 },
	{ "array of 2^32", "\0\0\0\0\0\0\0\x19\x80\0\0\1\xdd\xff\xff\xff\xff________________",
	  33 },
};

BOTH(hostile, garbage_instead_of_a_frame)
{
	struct rpc_fix f;
	rpc_fix_open(&f, addr, NULL);
	for (size_t i = 0; i < ARRAY_LEN(frame_rows); i++) {
		struct raw_sp r;
		raw_open(&r, &f);
		raw_greet(&r);
		if (r.ipc)
			raw_write(&r, "\1", 1);
		raw_write(&r, frame_rows[i].bytes, frame_rows[i].n);
		cr_assert(raw_closed_within(&r, 1000), "%s", frame_rows[i].what);
		raw_close(&r);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.bad_frames, ARRAY_LEN(frame_rows));
	cr_assert_eq(k.requests, 0);
	still_serves(&f);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, an_ipc_frame_must_begin_with_one)
{
	struct rpc_fix f;
	struct raw_sp r;
	char path[64];
	rpc_fix_open(&f, ipc_addr(path), NULL);
	raw_open(&r, &f);
	raw_greet(&r);
	raw_write(&r, "\0", 1);
	cr_assert(raw_closed_within(&r, 1000));
	cr_assert_eq(rpc_fix_lines(&f, true, "does not begin with 1"), 1);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

BOTH(hostile, one_byte_at_a_time_is_fine)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n;
	uint8_t hdr[SP_FRAME_HDR_MAX];
	rpc_fix_open(&f, addr, NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	uint8_t *q = raw_request(&r, FIX_ECHO_M, 20000, BYTES_STR("drip"), &n);
	size_t n_hdr = sp_frame_hdr(hdr, r.ipc, n);
	for (size_t i = 0; i < n_hdr; i++) {
		cr_assert(raw_write(&r, hdr + i, 1));
		rpc_fix_run_ms(&f, 1);
	}
	for (size_t i = 0; i < n; i++) {
		cr_assert(raw_write(&r, q + i, 1));
		rpc_fix_run_ms(&f, 1);
	}
	cr_assert(raw_reply(&r, 1000));
	cr_assert_eq(r.reply.status, ERR_NONE);
	cr_assert_arr_eq(r.reply.body.p, "drip", 4);
	free(q);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Devices put words before the id; the answer carries them back (sp_frame.h). */
Test(hostile, requests_through_devices)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	for (size_t hops = 1; hops < SP_HOPS_MAX; hops += 13) {
		uint8_t b[512];
		uint8_t *q = raw_request(&r, FIX_AECHO_M, 1000, BYTES_STR("far"), &n);
		for (size_t i = 0; i < hops; i++)
			sp_put_u32(b + 4 * i, 0x01020304u + (uint32_t)i);
		memcpy(b + 4 * hops, q, n);
		cr_assert(raw_frame(&r, b, n + 4 * hops));
		cr_assert(raw_read(&r, 1000));
		cr_assert_arr_eq(r.in, b, 4 * hops + 4);
		free(q);
	}
	uint8_t far[4 * (SP_HOPS_MAX + 8)] = { 0 };
	cr_assert(raw_frame(&r, far, sizeof(far)));
	cr_assert(raw_closed_within(&r, 1000), "too many hops");
	cr_assert_eq(rpc_fix_lines(&f, true, "without an id"), 1);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- messages that prove nothing ---- */

static void expect_plain(struct raw_sp *r, enum err status)
{
	cr_assert(raw_reply(r, 1000));
	cr_assert(r->reply_is_plain);
	cr_assert_eq(r->reply.status, status, "%s", err_name((enum err)r->reply.status));
}

BOTH(hostile, tampered_replayed_and_late_messages)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n[4];
	uint8_t *q[4];
	rpc_fix_open(&f, addr, NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	q[0] = raw_request(&r, FIX_ECHO_M, 1000, BYTES_STR("body"), &n[0]);
	/* any bit of it, envelope, body or tag */
	for (size_t at = 4; at < n[0]; at += 5) {
		q[0][at] ^= 0x10;
		cr_assert(raw_frame(&r, q[0], n[0]));
		cr_assert(raw_read(&r, 1000) || raw_closed_within(&r, 100));
		q[0][at] ^= 0x10;
		if (rpc_fix_counters(&f).conns_open == 0) { /* the envelope did not parse */
			close(r.fd);
			struct raw_sp again;
			raw_open(&again, &f);
			raw_greet(&again);
			r.fd = again.fd;
			buf_fini(&again.buf);
		}
	}
	cr_assert_eq(f.n_run, 0, "nothing of it ran");
	cr_assert_gt(rpc_fix_counters(&f).bad_macs, 0);
	cr_assert(raw_frame(&r, q[0], n[0])); /* the honest one */
	cr_assert(raw_reply(&r, 1000));
	cr_assert_eq(r.reply.status, ERR_NONE);
	cr_assert_eq(f.n_run, 1);
	cr_assert(raw_frame(&r, q[0], n[0])); /* and again */
	expect_plain(&r, ERR_REPLAYED);
	cr_assert_eq(f.n_run, 1);
	/* out of order within the window, then beyond it */
	q[1] = raw_request(&r, FIX_ECHO_M, 1000, BYTES_STR("1"), &n[1]);
	q[2] = raw_request(&r, FIX_ECHO_M, 1000, BYTES_STR("2"), &n[2]);
	uint64_t seq;
	for (int i = 0; i < AUTH_WINDOW - 2; i++)
		cr_assert_eq(auth_next_seq(&r.ses, &seq), ERR_NONE);
	q[3] = raw_request(&r, FIX_ECHO_M, 1000, BYTES_STR("3"), &n[3]);
	cr_assert(raw_frame(&r, q[3], n[3]));
	cr_assert(raw_reply(&r, 1000));
	cr_assert_eq(r.reply.status, ERR_NONE);
	cr_assert(raw_frame(&r, q[2], n[2])); /* late, but not too late */
	cr_assert(raw_reply(&r, 1000));
	cr_assert_eq(r.reply.status, ERR_NONE);
	cr_assert(raw_frame(&r, q[1], n[1])); /* too late */
	expect_plain(&r, ERR_REPLAYED);
	cr_assert_eq(f.n_run, 3);
	cr_assert_eq(rpc_fix_counters(&f).replays, 2);
	cr_assert_eq(rpc_fix_lines(&f, true, "err=REPLAYED"), 2);
	for (int i = 0; i < 4; i++)
		free(q[i]);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, cut_messages)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&r, &f);
	raw_hello(&r);
	uint8_t *q = raw_request(&r, FIX_ECHO_M, 1000, BYTES_STR("0123456789"), &n);
	raw_close(&r);
	for (size_t cut = 5; cut < n; cut++) {
		struct raw_sp c;
		raw_open(&c, &f);
		raw_greet(&c);
		cr_assert(raw_frame(&c, q, cut));
		cr_assert(raw_closed_within(&c, 1000), "cut at %zu", cut);
		raw_close(&c);
	}
	cr_assert_eq(f.n_run, 0);
	free(q);
	still_serves(&f);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, strangers_get_no_further_than_hello)
{
	struct rpc_fix f;
	struct raw_sp r;
	struct env_parts out;
	struct buf b = BUF_INIT(64 << 10), w = BUF_INIT(64 << 10);
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	raw_open(&r, &f);
	raw_greet(&r);
	const struct msg_request rows[] = {
		{ .v = 1, .method = FIX_ECHO_M, .id = 1, .deadline_ms = 9 },
		{ .v = 1, .method = FIX_ECHO_M, .session = 77, .id = 2, .deadline_ms = 9 },
		{ .v = 1, .method = FIX_ECHO_M, .session = 0xffffffff, .id = 3 },
		{ .v = 1, .method = METHOD_HELLO, .id = 4, .body = BYTES_STR("junk") },
		{ .v = 1,
		  .method = METHOD_PROVE,
		  .id = 5,
		  .body = BYTES_STR("\x93\xc4\0\xc4\0\xc4\0") },
	};
	const enum err want[] = { ERR_UNAUTHENTICATED, ERR_STALE_SESSION, ERR_STALE_SESSION,
				  ERR_BAD_MESSAGE, ERR_BAD_MESSAGE };
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		cr_assert_eq(env_request(&b, &rows[i], NULL, &out), ERR_NONE);
		buf_clear(&w);
		buf_put(&w, "\x80\0\0\1", 4);
		buf_put(&w, out.p[0].p, out.p[0].n);
		cr_assert(raw_frame(&r, w.p, w.n));
		cr_assert(raw_reply(&r, 1000));
		cr_assert(r.reply_is_plain);
		cr_assert_eq(r.reply.status, want[i], "%zu: %s", i,
			     err_name((enum err)r.reply.status));
		cr_assert_eq(r.reply.id, rows[i].id);
	}
	cr_assert_eq(f.n_run, 0);
	cr_assert_eq(rpc_fix_counters(&f).sessions, 0);
	buf_fini(&b);
	buf_fini(&w);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Guessing is limited by where it comes from, and costs its victim nothing. */
Test(hostile, failed_tries_are_limited)
{
	struct rpc_fix f;
	uint8_t secret[AUTH_KEY_BYTES] = "guess";
	struct keyring *k;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	cr_assert_eq(keyring_new(secret, NULL, &k), ERR_NONE);
	struct rpc_client_opts o = { .keys = k, .backoff_min_ms = 1, .backoff_max_ms = 1 };
	uint32_t busy = 0;
	for (int i = 0; i < AUTH_TRIES + 3; i++) {
		struct rpc_client *cl = rpc_fix_client(&f, &o);
		struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 60 };
		rpc_fix_call(&f, cl, &c);
		busy += c.err != ERR_UNAUTHENTICATED &&
			strstr(c.call.why.text, "too many failed tries") != NULL;
		rpc_fix_close_client(&f, cl);
	}
	cr_assert_geq(busy, 2, "%u", busy);
	cr_assert_eq(rpc_fix_lines(&f, true, "UNAUTHENTICATED"), 1);
	keyring_free(k);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- memory ---- */

/* 10,000 refusals of every kind leave the heap where it was. */
BOTH(hostile, memory_is_flat)
{
	struct rpc_fix f;
	struct raw_sp r;
	size_t n, n_old, before = 0;
	rpc_fix_open(&f, addr, NULL);
	uint64_t begin = loop_now_ns(&f.loop);
	raw_open(&r, &f);
	raw_hello(&r);
	uint8_t *old = raw_request(&r, FIX_ECHO_M, 9000, BYTES_STR("old"), &n_old);
	cr_assert(raw_frame(&r, old, n_old));
	cr_assert(raw_reply(&r, 1000));
	for (int i = 0; i < 10000; i++) {
		if (i == 2000)
			before = mallinfo2().uordblks;
		switch (i % 4) {
		case 0: /* replayed */
			cr_assert(raw_frame(&r, old, n_old));
			cr_assert(raw_read(&r, 1000));
			break;
		case 1: { /* tampered */
			uint8_t *q = raw_request(&r, FIX_ECHO_M, 9000, BYTES_STR("x"), &n);
			q[n - 1] ^= 1;
			cr_assert(raw_frame(&r, q, n));
			cr_assert(raw_read(&r, 1000));
			free(q);
			break;
		}
		case 2: { /* unknown method: authentic, refused */
			uint8_t *q = raw_request(&r, 900, 9000, BYTES_STR("x"), &n);
			cr_assert(raw_frame(&r, q, n));
			cr_assert(raw_read(&r, 1000));
			free(q);
			break;
		}
		default: /* garbage on a connection of its own */
			if (i % 40 == 3) {
				struct raw_sp g;
				raw_open(&g, &f);
				raw_write(&g, "garbage", 7);
				cr_assert(raw_closed_within(&g, 1000));
				raw_close(&g);
			}
		}
	}
	size_t after = mallinfo2().uordblks;
	cr_assert_lt(after, before + 16384, "%zu -> %zu", before, after);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.replays, 2500);
	cr_assert_eq(k.bad_macs, 2500);
	cr_assert_eq(k.sessions, 1);
	cr_assert_eq(k.inflight, 0);
	uint64_t seconds = (loop_now_ns(&f.loop) - begin) / NS_PER_S + 1;
	cr_assert_leq(f.n_slines, 40 * (seconds + 1), "%u lines in %u s: not limited",
		      f.n_slines, (unsigned)seconds);
	free(old);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- connections ---- */

Test(hostile, strangers_have_their_share_and_the_oldest_goes)
{
	struct rpc_fix f;
	struct raw_sp r[8];
	struct rpc_server_opts o = { .limits = { .conns_anon_max = 4 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	for (int i = 0; i < 8; i++) {
		raw_open(&r[i], &f);
		rpc_fix_run_ms(&f, 2);
	}
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.conns_open, 5);
	cr_assert_eq(k.conns_dropped, 4);
	for (int i = 0; i < 4; i++)
		cr_assert(raw_closed_within(&r[i], 100), "%d, the older", i);
	for (int i = 4; i < 8; i++)
		cr_assert(!raw_closed_within(&r[i], 2), "%d, the newer", i);
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE);
	cr_assert_eq(rpc_fix_counters(&f).conns_accepted, 9, "the known one was not touched");
	for (int i = 0; i < 8; i++)
		raw_close(&r[i]);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, all_connections_are_bounded)
{
	struct rpc_fix f;
	struct raw_sp r[3], late;
	struct rpc_server_opts o = { .limits = { .conns_max = 3, .conns_anon_max = 3 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	for (int i = 0; i < 3; i++) {
		raw_open(&r[i], &f);
		raw_hello(&r[i]);
	}
	raw_open(&late, &f); /* all are known: the newcomer goes */
	cr_assert(raw_closed_within(&late, 1000));
	raw_close(&late);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_eq(k.conns_open, 3);
	cr_assert_eq(k.conns_refused, 1);
	raw_close(&r[0]);
	rpc_fix_run_ms(&f, 5);
	raw_open(&r[0], &f); /* a stranger makes room for another */
	rpc_fix_run_ms(&f, 5);
	raw_open(&late, &f);
	cr_assert(raw_closed_within(&r[0], 1000));
	raw_hello(&late);
	raw_close(&late);
	for (int i = 0; i < 3; i++)
		raw_close(&r[i]);
	rpc_fix_close(&f);
	NO_LEAKS();
}

BOTH(hostile, silent_and_slow_strangers_meet_the_deadline)
{
	struct rpc_fix f;
	struct raw_sp silent, slow, greeted;
	struct rpc_server_opts o = { .limits = { .handshake_ms = 150 } };
	uint8_t g[SP_GREETING];
	rpc_fix_open(&f, addr, &o);
	raw_open(&silent, &f);
	raw_open(&slow, &f);
	raw_open(&greeted, &f);
	raw_greet(&greeted);
	sp_greeting(g, SP_PROTO_REQ);
	uint64_t begin = loop_now_ns(&f.loop);
	bool open = true;
	for (int i = 0; open && i < 100; i++) {
		open = i >= SP_GREETING || raw_write(&slow, g + i, 1);
		rpc_fix_run_ms(&f, 10);
		uint8_t b[16];
		open = open && recv(slow.fd, b, sizeof(b), 0) != 0;
	}
	uint64_t ms = (loop_now_ns(&f.loop) - begin) / NS_PER_MS;
	cr_assert(ms >= 100 && ms < 600, "%u ms", (unsigned)ms);
	cr_assert(raw_closed_within(&silent, 300));
	cr_assert(raw_closed_within(&greeted, 300));
	cr_assert_eq(rpc_fix_counters(&f).conns_dropped, 3);
	raw_close(&silent);
	raw_close(&slow);
	raw_close(&greeted);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, the_deadline_is_not_for_those_who_proved_themselves)
{
	struct rpc_fix f;
	struct rpc_server_opts o = { .limits = { .handshake_ms = 60 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M };
	rpc_fix_call(&f, cl, &c);
	rpc_fix_run_ms(&f, 200);
	cr_assert(rpc_client_up(cl));
	cr_assert_eq(rpc_fix_counters(&f).conns_dropped, 0);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Known, but a frame it began does not end. */
BOTH(hostile, a_frame_that_stalls)
{
	struct rpc_fix f;
	struct raw_sp small, large, idle;
	struct rpc_server_opts o = { .limits = { .frame_ms = 150 } };
	uint8_t hdr[SP_FRAME_HDR_MAX];
	rpc_fix_open(&f, addr, &o);
	raw_open(&small, &f);
	raw_hello(&small);
	raw_open(&large, &f);
	raw_hello(&large);
	raw_open(&idle, &f);
	raw_hello(&idle);
	size_t n = sp_frame_hdr(hdr, small.ipc, 100);
	raw_write(&small, hdr, n);
	sp_frame_hdr(hdr, small.ipc, 1 << 20);
	raw_write(&large, hdr, n);
	uint64_t end = loop_now_ns(&f.loop) + 1000 * NS_PER_MS;
	bool open = true;
	while (open && loop_now_ns(&f.loop) < end) { /* it trickles, which does not help */
		open = raw_write(&large, "x", 1);
		rpc_fix_run_ms(&f, 10);
	}
	cr_assert(!open);
	cr_assert(raw_closed_within(&small, 10));
	cr_assert(!raw_closed_within(&idle, 10), "between frames there is no hurry");
	cr_assert_eq(rpc_fix_counters(&f).conns_dropped, 2);
	raw_close(&small);
	raw_close(&large);
	raw_close(&idle);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- peers that do not read ---- */

static void ask_big(struct raw_sp *r, uint32_t n)
{
	size_t len;
	uint8_t *q = raw_request(r, FIX_BIG_M, 60000, BYTES(&n, 4), &len);
	raw_frame(r, q, len);
	free(q);
}

BOTH(hostile, who_does_not_read_is_not_read)
{
	struct rpc_fix f;
	struct raw_sp r;
	struct rpc_server_opts o = { .limits = { .conn_queue_bytes_max = 256 << 10 } };
	rpc_fix_open(&f, addr, &o);
	raw_open(&r, &f);
	raw_hello(&r);
	for (int i = 0; i < 200; i++)
		ask_big(&r, 100000);
	rpc_fix_run_ms(&f, 30);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert_lt(k.bytes_queued, (256 << 10) + 110000, "%u", (unsigned)k.bytes_queued);
	cr_assert_lt(f.n_run, 200, "requests wait in its socket, not in us");
	still_serves(&f);
	/* it begins to read: everything comes, in order and whole */
	for (int i = 0; i < 200; i++) {
		cr_assert(raw_reply(&r, 2000), "%d", i);
		cr_assert_eq(r.reply.body.n, 100000);
	}
	cr_assert_eq(rpc_fix_counters(&f).bytes_queued, 0);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

BOTH(hostile, who_never_reads_is_closed)
{
	struct rpc_fix f;
	struct raw_sp r;
	struct rpc_server_opts o = { .limits = { .frame_ms = 200 } };
	rpc_fix_open(&f, addr, &o);
	raw_open(&r, &f);
	raw_hello(&r);
	for (int i = 0; i < 12; i++)
		ask_big(&r, 1000000);
	RPC_FIX_UNTIL(&f, rpc_fix_counters(&f).conns_open == 0, 3000);
	rpc_fix_run_ms(&f, 2);
	cr_assert_eq(rpc_fix_counters(&f).bytes_queued, 0);
	cr_assert_eq(rpc_fix_counters(&f).inflight, 0);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Answers that were inside already when it stopped reading: the total is bounded by closing it. */
Test(hostile, queued_bytes_are_bounded_in_all)
{
	struct rpc_fix f;
	struct raw_sp r;
	static uint8_t body[30000];
	struct rpc_server_opts o = { .limits = { .queue_bytes_max = 1 << 20 } };
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	raw_open(&r, &f);
	raw_hello(&r);
	int small = 4096;
	setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	for (int i = 0; i < 400; i++) {
		size_t n;
		uint8_t *q = raw_request(&r, FIX_HOLD_M, 60000, BYTES(body, sizeof(body)), &n);
		cr_assert(raw_frame(&r, q, n));
		free(q);
	}
	RPC_FIX_UNTIL(&f, f.n_held == 400, 2000);
	rpc_fix_release(&f); /* 12 MB at once to one who does not read */
	cr_assert_eq(rpc_fix_lines(&f, true, "does not read its replies"), 1);
	cr_assert_lt(rpc_fix_counters(&f).bytes_queued, (1 << 20) + 40000);
	rpc_fix_run_ms(&f, 5);
	cr_assert_eq(rpc_fix_counters(&f).conns_open, 0);
	cr_assert_eq(rpc_fix_counters(&f).bytes_queued, 0);
	still_serves(&f);
	raw_close(&r);
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* Large frames share a budget; who comes too late waits and is served. */
Test(hostile, large_frames_share_their_memory)
{
	struct rpc_fix f;
	struct raw_sp r[3];
	static uint8_t body[400000];
	struct rpc_server_opts o = { .limits = { .inside_bytes_max = 900000 } };
	uint8_t *q[3];
	size_t n[3];
	uint8_t hdr[SP_FRAME_HDR_MAX];
	rpc_fix_open(&f, "tcp://127.0.0.1:0", &o);
	for (int i = 0; i < 3; i++) {
		raw_open(&r[i], &f);
		raw_hello(&r[i]);
		q[i] = raw_request(&r[i], FIX_HOLD_M, 60000, BYTES(body, sizeof(body)), &n[i]);
		raw_write(&r[i], hdr, sp_frame_hdr(hdr, false, n[i]));
		raw_write(&r[i], q[i], 100000);
		rpc_fix_run_ms(&f, 5);
	}
	for (int i = 2; i >= 0; i--)
		raw_write(&r[i], q[i] + 100000, n[i] - 100000);
	RPC_FIX_UNTIL(&f, f.n_held == 2, 2000);
	rpc_fix_run_ms(&f, 20);
	cr_assert_eq(f.n_held, 2, "two fit");
	rpc_fix_release(&f);
	RPC_FIX_UNTIL(&f, f.n_held == 1, 2000);
	rpc_fix_release(&f);
	for (int i = 0; i < 3; i++) {
		cr_assert(raw_reply(&r[i], 2000));
		cr_assert_eq(r[i].reply.status, ERR_NONE);
		cr_assert_eq(r[i].reply.body.n, sizeof(body));
		free(q[i]);
		raw_close(&r[i]);
	}
	rpc_fix_close(&f);
	NO_LEAKS();
}

/* ---- descriptors ---- */

Test(hostile, out_of_descriptors)
{
	struct rpc_fix f;
	struct raw_sp r[24];
	struct rlimit old, low;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	for (int i = 0; i < 24; i++)
		raw_open(&r[i], &f); /* in the backlog */
	int next = dup(0);
	close(next);
	getrlimit(RLIMIT_NOFILE, &old);
	low = (struct rlimit){ .rlim_cur = (rlim_t)next + 8, .rlim_max = old.rlim_max };
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	rpc_fix_run_ms(&f, 30);
	struct rpc_counters k = rpc_fix_counters(&f);
	cr_assert(k.conns_accepted >= 1 && k.conns_accepted <= 8, "%u",
		  (unsigned)k.conns_accepted);
	cr_assert_eq(k.conns_refused, 24 - k.conns_accepted);
	cr_assert_geq(rpc_fix_lines(&f, true, "ulimit -n"), 1);
	uint32_t closed = 0;
	for (int i = 0; i < 24; i++)
		closed += raw_closed_within(&r[i], 0);
	cr_assert_eq(closed, k.conns_refused, "refused ones are closed, not left hanging: %u",
		     closed);
	for (int i = 0; i < 24; i++)
		raw_close(&r[i]);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	rpc_fix_run_ms(&f, 5);
	still_serves(&f);
	rpc_fix_close(&f);
	NO_LEAKS();
}

Test(hostile, limits_follow_the_descriptor_limit)
{
	struct rlimit old, low;
	struct rpc_limits l = { 0 };
	getrlimit(RLIMIT_NOFILE, &old);
	low = (struct rlimit){ .rlim_cur = 1024, .rlim_max = old.rlim_max };
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	rpc_limits_default(&l);
	cr_assert_eq(l.conns_max, 1024 - 128);
	cr_assert_eq(l.conns_anon_max, (1024 - 128) / 2);
	low.rlim_cur = 100;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	l = (struct rpc_limits){ .conns_anon_max = 3 };
	rpc_limits_default(&l);
	cr_assert_eq(l.conns_max, 64, "the least that makes sense");
	cr_assert_eq(l.conns_anon_max, 3, "what is set stays");
	cr_assert_eq(l.message_bytes_max, 8u << 20);
	NO_LEAKS();
}
