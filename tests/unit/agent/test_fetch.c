/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches over data lanes (xfer/fetch.h) from a real agent's port, through a wire that misbehaves. */
#include "data_fix.h"

#include "../../service/relay.h"
#include "base/sum.h"
#include "xfer/fetch.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/leak.h"

TestSuite(fetch, .timeout = 60);

enum { MiB = 1 << 20, BIG = 3 * MiB + 17, IDLE_MS = 200 };

struct world {
	struct data_fix f;
	struct relay *relay;
	struct fetch_lanes *lanes;
	char addr[64];
	/* one object in the source's pool */
	struct hold_slot slot;
	uint64_t size, sum;
	struct buf ticket;
	/* where it goes: three pieces, not aligned to anything */
	uint8_t *to;
	struct fetch fetch;
	bool over;
};

static void on_done(struct fetch *f)
{
	container_of(f, struct world, fetch)->over = true;
}

static bool is_over(void *arg)
{
	return ((struct world *)arg)->over;
}

static void *stored_at(struct world *w, uint64_t off)
{
	struct extent x = { .offset = off, .bytes = 1 };
	return mempool_at(w->f.x.pool, &x);
}

/* As a client on the source's host puts it. */
static void object(struct world *w, uint64_t size)
{
	struct msg_extent ext;
	struct why why = { 0 };
	struct msg_ticket t = data_fix_write(&w->f, "blue", ++w->f.version, 0, size, &ext);
	uint8_t *p = stored_at(w, 0);
	for (uint64_t i = 0; i < size; i++)
		p[i] = (uint8_t)(i * 131 >> 3 ^ size);
	w->size = size;
	w->sum = obj_sum(p, size,
			 obj_blocks(size) ? (uint64_t *)(p + obj_vector_at(size)) : NULL);
	cr_assert_eq(hold_commit(w->f.x.hold, &t, w->sum, &w->slot, &why), ERR_NONE, "%s",
		     why.text);
	t = data_fix_read(&w->f, "blue", &w->slot, 0, size, &ext);
	data_fix_seal(&w->f, &t, &w->ticket);
	free(w->to);
	w->to = calloc(1, obj_stored_bytes(size) + 1);
}

static void up(struct world *w)
{
	memset(w, 0, sizeof(*w));
	data_fix_init(&w->f, 2);
	w->relay = relay_new((unsigned)atoi(w->f.port));
	(void)snprintf(w->addr, sizeof(w->addr), "tcp://127.0.0.1:%u", relay_port(w->relay));
	w->ticket = BUF_INIT(TICKET_MAX);
	struct fetch_lanes_opts o = { .loop = &w->f.loop,
				      .keys = w->f.keys,
				      .self = "agent-00000000000000d2",
				      .instance = (const uint8_t *)"a fetching run..",
				      .threads = 2,
				      .idle_ms = IDLE_MS,
				      .idle_max = 4 };
	cr_assert_eq(fetch_lanes_new(&o, &w->lanes), ERR_NONE);
}

static void down(struct world *w)
{
	fetch_lanes_close(w->lanes);
	relay_free(w->relay);
	buf_fini(&w->ticket);
	free(w->to);
	data_fix_fini(&w->f);
}

static void fresh(struct world *w)
{
	uint64_t n = obj_stored_bytes(w->size), a = n / 3, b = n / 2 + 1;
	w->fetch = (struct fetch){
		.size = w->size,
		.sum = w->sum,
		.n_ext = 3,
		.ext = { { w->to, a }, { w->to + a, b - a }, { w->to + b, n - b } }
	};
	memset(w->to, 0, n);
	cr_assert_eq(fetch_init(&w->fetch), ERR_NONE);
}

static void begin(struct world *w, const char *holder, const char *addr)
{
	w->fetch.holder = holder;
	w->fetch.addr = addr;
	w->fetch.ticket = buf_bytes(&w->ticket);
	w->fetch.stall_ms = 400;
	w->fetch.done = on_done;
	w->over = false;
	fetch_lanes_ops.start(w->lanes, &w->fetch);
	cr_assert(!w->over, "never inside start");
}

static enum err finish(struct world *w)
{
	cr_assert(data_fix_run(&w->f, is_over, w, 20000));
	cr_assert_eq(w->fetch.err != ERR_NONE, w->fetch.why.err != ERR_NONE);
	return w->fetch.err;
}

static enum err go(struct world *w)
{
	begin(w, w->f.x.svc.id, w->addr);
	return finish(w);
}

static void same(struct world *w)
{
	cr_assert(fetch_whole(&w->fetch));
	cr_assert_eq(memcmp(w->to, stored_at(w, 0), w->size), 0);
	if (obj_blocks(w->size))
		cr_assert_eq(memcmp(w->to + obj_vector_at(w->size),
				    stored_at(w, obj_vector_at(w->size)),
				    obj_blocks(w->size) * 8),
			     0);
}

static bool all_idle_closed(void *arg)
{
	uint32_t idle;
	return fetch_lanes_open(((struct world *)arg)->lanes, &idle) == 0;
}

Test(fetch, sizes_over_one_lane)
{
	static const uint64_t sizes[] = { 1, 2, 4096, MiB - 1, MiB, MiB + 1, BIG };
	struct world *w = malloc(sizeof(*w));
	uint32_t idle = 0;
	up(w);
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		object(w, sizes[i]);
		fresh(w);
		cr_expect_eq(go(w), ERR_NONE, "%s", w->fetch.why.text);
		same(w);
		fetch_fini(&w->fetch);
	}
	cr_expect_eq(fetch_lanes_open(w->lanes, &idle), 1);
	cr_expect_eq(idle, 1);
	cr_expect_eq(w->f.x.data->counts.lanes_ok, 1);
	cr_expect(data_fix_run(&w->f, all_idle_closed, w, 5000), "an idle lane stays open");
	down(w);
	free(w);
	NO_LEAKS();
}

/* Bytes that changed where they lie, anywhere: the source is to blame, and what came before stays. */
Test(fetch, corrupt_at_the_source)
{
	struct world *w = malloc(sizeof(*w));
	up(w);
	static const struct {
		uint64_t size, flip, good;
	} rows[] = {
		{ 1, 0, 0 },
		{ 5000, 4999, 0 },
		{ BIG, 2 * MiB + 5, 2 * MiB },
		{ BIG, BIG - 1, 3 * MiB },
	};
	for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
		object(w, rows[i].size);
		fresh(w);
		uint8_t *at = stored_at(w, rows[i].flip);
		*at ^= 4;
		cr_expect_eq(go(w), ERR_CORRUPT, "row %u: %s %s", i, err_name(w->fetch.err),
			     w->fetch.why.text);
		cr_expect_eq(w->fetch.at, rows[i].good);
		*at ^= 4;
		cr_expect_eq(go(w), ERR_NONE, "another source goes on: %s", w->fetch.why.text);
		same(w);
		fetch_fini(&w->fetch);
	}
	object(w, BIG);
	fresh(w);
	uint8_t *at = stored_at(w, obj_vector_at(BIG) + 9);
	*at ^= 1;
	cr_expect_eq(go(w), ERR_CORRUPT, "the vector");
	cr_expect_eq(w->fetch.at, 0);
	*at ^= 1;
	cr_expect_eq(go(w), ERR_NONE);
	same(w);
	fetch_fini(&w->fetch);
	cr_expect_gt(w->f.x.data->counts.corrupt, 0, "the source was asked");
	down(w);
	free(w);
	NO_LEAKS();
}

/* A wire that changes bytes is not the source's fault; nothing bad is ever taken. */
Test(fetch, a_wire_that_flips_and_cuts)
{
	struct world *w = malloc(sizeof(*w));
	unsigned tries = 0, blamed = 0;
	up(w);
	object(w, BIG);
	fresh(w);
	relay_flip(w->relay, true, MiB + MiB / 2);
	for (; tries < 20 && go(w) != ERR_NONE; tries++)
		blamed += w->fetch.err == ERR_CORRUPT;
	cr_expect_gt(tries, 0);
	cr_expect_eq(blamed, 0, "%s", w->fetch.why.text);
	relay_flip(w->relay, true, 0);
	cr_expect_eq(go(w), ERR_NONE, "%s", w->fetch.why.text);
	same(w);
	fetch_fini(&w->fetch);
	fresh(w);
	relay_cut(w->relay, MiB + 300000);
	for (tries = 0; tries < 20 && go(w) != ERR_NONE; tries++)
		cr_expect_eq(w->fetch.err, ERR_CONN_LOST, "%s", w->fetch.why.text);
	cr_expect(tries >= 2 && tries < 6, "%u: it goes on where it was", tries);
	same(w);
	fetch_fini(&w->fetch);
	down(w);
	free(w);
	NO_LEAKS();
}

static bool half_way(void *arg)
{
	return ((struct world *)arg)->fetch.at > 0;
}

/* T7, and T6: who is stopped has stopped when done comes. */
Test(fetch, a_source_that_stands_still)
{
	struct world *w = malloc(sizeof(*w));
	up(w);
	object(w, BIG);
	fresh(w);
	relay_hold(w->relay, true);
	uint64_t t0 = loop_now_ns(&w->f.loop);
	cr_expect_eq(go(w), ERR_TIMED_OUT, "%s", w->fetch.why.text);
	cr_expect_geq(loop_now_ns(&w->f.loop) - t0, 400 * NS_PER_MS);
	begin(w, w->f.x.svc.id, w->addr);
	data_fix_run(&w->f, NULL, NULL, 50);
	fetch_lanes_ops.stop(w->lanes, &w->fetch);
	cr_expect_eq(finish(w), ERR_CANCELLED);
	relay_hold(w->relay, false);
	cr_expect_eq(go(w), ERR_NONE, "%s", w->fetch.why.text);
	same(w);
	/* in the middle, too */
	fetch_fini(&w->fetch);
	fresh(w);
	begin(w, w->f.x.svc.id, w->addr);
	(void)data_fix_run(&w->f, half_way, w, 5000);
	fetch_lanes_ops.stop(w->lanes, &w->fetch);
	enum err e = finish(w);
	cr_expect(e == ERR_CANCELLED || fetch_whole(&w->fetch));
	fetch_lanes_ops.stop(w->lanes, &w->fetch); /* of one that is over: nothing */
	fetch_fini(&w->fetch);
	down(w);
	free(w);
	NO_LEAKS();
}

Test(fetch, refusals)
{
	struct world *w = malloc(sizeof(*w));
	struct msg_extent ext;
	char nobody[64];
	up(w);
	object(w, 5000);
	fresh(w);
	(void)snprintf(nobody, sizeof(nobody), "tcp://127.0.0.1:%u", relay_free_port());
	begin(w, w->f.x.svc.id, nobody);
	cr_expect_eq(finish(w), ERR_UNREACHABLE, "%s", w->fetch.why.text);
	begin(w, "agent-00000000000000ff", w->addr);
	cr_expect_eq(finish(w), ERR_UNAUTHENTICATED, "%s", w->fetch.why.text);
	begin(w, w->f.x.svc.id, "tcp://no-such-host.invalid:1");
	enum err e = finish(w);
	cr_expect(e == ERR_UNREACHABLE || e == ERR_TIMED_OUT, "%s", err_name(e));
	begin(w, w->f.x.svc.id, "ipc:///run/agent.sock");
	cr_expect_neq(finish(w), ERR_NONE);
	begin(w, w->f.x.svc.id, "tcp://no-such-host.invalid:1");
	fetch_lanes_ops.stop(w->lanes, &w->fetch);
	cr_expect_eq(finish(w), ERR_CANCELLED);
	struct msg_ticket t = data_fix_read(&w->f, "blue", &w->slot, 0, 5000, &ext);
	t.generation++;
	data_fix_seal(&w->f, &t, &w->ticket);
	cr_expect_eq(go(w), ERR_LEASE_LOST, "%s", w->fetch.why.text);
	t = data_fix_write(&w->f, "blue", 77, 0, 5000, &ext);
	data_fix_seal(&w->f, &t, &w->ticket);
	cr_expect_eq(go(w), ERR_BAD_TICKET, "%s", w->fetch.why.text);
	t = data_fix_read(&w->f, "blue", &w->slot, 0, 5000, &ext);
	data_fix_seal(&w->f, &t, &w->ticket);
	(void)snprintf(w->addr, sizeof(w->addr), "tcp://localhost:%s", w->f.port);
	cr_expect_eq(go(w), ERR_NONE, "%s", w->fetch.why.text);
	same(w);
	fetch_fini(&w->fetch);
	down(w);
	free(w);
	NO_LEAKS();
}

/* A lane that was kept, and closed at the other end meanwhile, costs nobody a failure. */
Test(fetch, a_kept_lane_that_was_closed)
{
	struct world *w = malloc(sizeof(*w));
	up(w);
	object(w, 5000);
	for (int i = 0; i < 3; i++) {
		fresh(w);
		cr_expect_eq(go(w), ERR_NONE, "%s", w->fetch.why.text);
		same(w);
		fetch_fini(&w->fetch);
		relay_cut(w->relay, 1);
		usleep(20000);
		relay_cut(w->relay, 0);
	}
	down(w);
	free(w);
	NO_LEAKS();
}
