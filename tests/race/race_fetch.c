/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetches over data lanes (xfer/fetch.h) under ThreadSanitizer: several at once to one agent, stopped at any
 * moment. What is whole has the object's bytes, and after `done` nobody writes any more: the range is
 * filled with something else at once.
 */
#include "tests/unit/agent/data_fix.h"

#include "xfer/fetch.h"

#include <stdio.h>
#include <string.h>

enum { FETCHES = 4, SIZE = (3 << 20) + 5, RUN_MS = 3000 };

#define MUST(cond)                                                                 \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

struct one {
	struct fetch f;
	struct world *w;
	uint8_t *to;
	uint32_t stop_in; /* looks until it is stopped; 0: never */
	bool running;
};

struct world {
	struct data_fix fix;
	struct fetch_lanes *lanes;
	struct buf ticket;
	uint64_t sum, whole, stopped, seed;
	char addr[64];
	struct one one[FETCHES];
};

static uint64_t rng(struct world *w, uint64_t n)
{
	w->seed = w->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (w->seed >> 33) % n;
}

static void on_done(struct fetch *f)
{
	struct one *o = container_of(f, struct one, f);
	o->running = false;
	MUST(f->err == ERR_NONE || f->err == ERR_CANCELLED);
	if (f->err == ERR_NONE)
		MUST(fetch_whole(f) && obj_sum(o->to, SIZE, NULL) == o->w->sum);
	o->w->whole += f->err == ERR_NONE;
	o->w->stopped += f->err != ERR_NONE;
	memset(o->to, 0xee, obj_stored_bytes(SIZE)); /* it is somebody else's now */
}

static void begin(struct world *w, struct one *o)
{
	uint64_t n = obj_stored_bytes(SIZE);
	fetch_fini(&o->f);
	o->f = (struct fetch){ .size = SIZE,
			       .sum = w->sum,
			       .n_ext = 2,
			       .ext = { { o->to, 100001 }, { o->to + 100001, n - 100001 } },
			       .holder = w->fix.x.svc.id,
			       .addr = w->addr,
			       .ticket = buf_bytes(&w->ticket),
			       .stall_ms = 20000,
			       .done = on_done };
	MUST(fetch_init(&o->f) == ERR_NONE);
	o->running = true;
	o->stop_in = (uint32_t)rng(w, 3) ? 0 : 1 + (uint32_t)rng(w, 60);
	fetch_lanes_ops.start(w->lanes, &o->f);
}

static void object(struct world *w)
{
	struct msg_extent ext;
	struct hold_slot s;
	struct why why = { 0 };
	struct extent x = { .bytes = obj_stored_bytes(SIZE) };
	uint8_t *p = mempool_at(w->fix.x.pool, &x);
	for (size_t i = 0; i < SIZE; i++)
		p[i] = (uint8_t)(i * 31 >> 4);
	w->sum = obj_sum(p, SIZE, (uint64_t *)(p + obj_vector_at(SIZE)));
	struct msg_ticket t = data_fix_write(&w->fix, "blue", 5, 0, SIZE, &ext);
	MUST(hold_commit(w->fix.x.hold, &t, w->sum, &s, &why) == ERR_NONE);
	t = data_fix_read(&w->fix, "blue", &s, 0, SIZE, &ext);
	w->ticket = BUF_INIT(TICKET_MAX);
	data_fix_seal(&w->fix, &t, &w->ticket);
}

static bool all_over(void *arg)
{
	struct world *w = arg;
	bool any = false;
	for (int i = 0; i < FETCHES; i++)
		any |= w->one[i].running;
	return !any;
}

static bool look(void *arg)
{
	struct world *w = arg;
	for (int i = 0; i < FETCHES; i++) {
		struct one *o = &w->one[i];
		if (!o->running)
			begin(w, o);
		else if (o->stop_in > 0 && --o->stop_in == 0)
			fetch_lanes_ops.stop(w->lanes, &o->f);
	}
	return false;
}

int main(void)
{
	struct world *w = calloc(1, sizeof(*w));
	MUST(w);
	w->seed = 7;
	data_fix_init(&w->fix, 2);
	object(w);
	(void)snprintf(w->addr, sizeof(w->addr), "tcp://127.0.0.1:%s", w->fix.port);
	struct fetch_lanes_opts o = { .loop = &w->fix.loop,
				      .keys = w->fix.keys,
				      .self = "agent-00000000000000d2",
				      .instance = (const uint8_t *)"a fetching run..",
				      .threads = FETCHES,
				      .idle_ms = 50,
				      .idle_max = 2 };
	MUST(fetch_lanes_new(&o, &w->lanes) == ERR_NONE);
	for (int i = 0; i < FETCHES; i++) {
		w->one[i].w = w;
		w->one[i].to = calloc(1, obj_stored_bytes(SIZE));
		MUST(w->one[i].to);
	}
	(void)data_fix_run(&w->fix, look, w, RUN_MS);
	MUST(data_fix_run(&w->fix, all_over, w, 60000));
	printf("%llu whole, %llu stopped\n", (unsigned long long)w->whole,
	       (unsigned long long)w->stopped);
	MUST(w->whole > 0 && w->stopped > 0);
	for (int i = 0; i < FETCHES; i++) {
		fetch_fini(&w->one[i].f);
		free(w->one[i].to);
	}
	fetch_lanes_close(w->lanes);
	buf_fini(&w->ticket);
	data_fix_fini(&w->fix);
	free(w);
	return 0;
}
