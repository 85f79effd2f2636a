/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile master and holder, as the client's store session meets them. Input: a byte that names a call,
 * then records of a byte of kind, two bytes of length and that many bytes, one for each request:
 *
 *   0  the honest answer      1  these bytes as the body of a good answer
 *   2  an error, its number in the first byte; whole message     3  the same for each item
 *
 * Each call ends exactly once and by its deadline. Between them a snapshot is open, whose renewals and questions get
 * such answers, too.
 */
#include "../unit/sdk/stc_world.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { BYTES_N = 9000 };

static struct bytes input;
static struct stc_snap *snap; /* of the run */

static bool answer(struct fake *f, uint32_t method, struct rpc_req *r)
{
	if (input.n < 3 || method == METHOD_ECHO)
		return false;
	uint8_t kind = input.p[0] % 4;
	size_t n = MIN_OF((size_t)(input.p[1] | input.p[2] << 8), input.n - 3);
	struct bytes body = BYTES(input.p + 3, n);
	input = BYTES(body.p + n, input.n - 3 - n);
	if (kind == 1)
		rpc_reply(r, ERR_NONE, 0, body);
	else if (kind == 2)
		rpc_reply(r, (enum err)(n ? body.p[0] : 1), 1, BYTES("", 0));
	else if (kind == 3 && method == METHOD_PUT_START)
		w_reply_grants(r, 1, (enum err)(n ? body.p[0] : 1), 1);
	else if (kind == 3 && method == METHOD_QUERY)
		w_reply_objects(r, 1, (enum err)(n ? body.p[0] : 1), 1);
	else if (kind == 3)
		w_reply_results(r, 1, (enum err)(n ? body.p[0] : 1), 1);
	return kind != 0;
}

static void run(struct world *w, enum stc_kind kind, uint8_t *buf)
{
	struct stc_call *c = NULL;
	struct stc_buf b = { buf, BYTES_N };
	struct stc_range range = { 100, 200 };
	if (stc_call_new(kind, 1, &c) != ERR_NONE)
		abort();
	c->items[0].key = BYTES_STR("k");
	c->items[0].bufs = &b;
	c->items[0].n_bufs = 1;
	c->items[0].ranges = input.n & 1 ? &range : NULL;
	c->items[0].n_ranges = kind == STC_GET && input.n & 1;
	c->get.verify = input.n & 2;
	c->put.upsert = true;
	if (kind == STC_SNAPSHOT || (kind == STC_GET && input.n & 4))
		c->snap = stc_snap_ref(snap);
	if (!w_run(w, c, 200))
		abort();
	stc_call_free(c);
}

static void open_snapshot(struct world *w)
{
	if (stc_snap_new(&snap) != ERR_NONE)
		abort();
	run(w, STC_SNAPSHOT, NULL);
	if (stc_snap_n(snap) != 1)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct world w;
	uint8_t value[BYTES_N];
	if (n < 1)
		return 0;
	memset(value, 0x3c, sizeof(value));
	w_open(&w, &(struct w_opts){ .seed = 1, .pool_bytes = 1 << 20 });
	if (w_put(&w, "k", BYTES(value, sizeof(value)), false, 1000) != ERR_NONE)
		abort();
	w.f.lease_ms = 150;
	open_snapshot(&w);
	w.f.on = answer;
	input = BYTES(p + 1, n - 1);
	for (int i = 0; i < 3; i++)
		run(&w, (enum stc_kind)((p[0] + (unsigned)i) % (STC_TASK_CANCEL + 1)), value);
	sim_run_ms(w.sim, 300);
	stc_snap_shut(snap);
	stc_snap_unref(snap);
	w.f.on = NULL;
	input = (struct bytes){ 0 };
	w_close(&w);
	return 0;
}
