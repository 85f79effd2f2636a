/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data lanes under ThreadSanitizer: clients put and get over sockets while the loop commits, fences,
 * adopts, retires and frees, and gives a range to the next version as soon as it may. Bytes of a
 * get that succeeded are those of its version, whatever happened meanwhile (T4).
 */
#include "tests/unit/agent/data_fix.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS = 3, RANGES = 2, SIZE = 70000, SPACE = 1 << 20, RUN_MS = 4000 };

/* What the loop hands to a client, and what comes back. */
struct errand {
	struct data_fix *f;
	pthread_t t;
	pthread_mutex_t lock;
	bool full, done, put, stop;
	uint64_t version, sum;
	unsigned range;
	struct buf ticket;
	struct msg_extent ext;
	struct msg_ticket open;
	enum err err;
	/* counted */
	uint64_t n_put, n_got, n_stale, n_lost, n_opened;
};

static struct errand errands[CLIENTS];
static struct hold_slot slots[RANGES]; /* version 0: none */
static bool writing[RANGES];
static uint64_t next_version, seed = 3, n_freed, n_held, n_fences;

static uint64_t rng(uint64_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

#define MUST(cond)                                                                 \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

/* ---- clients ---- */

static void one(struct errand *e, struct data_cli *c, uint8_t *p)
{
	if (e->put) {
		memset(p, (int)(e->version & 0xff), SIZE);
		e->err = data_cli_put(c, buf_bytes(&e->ticket), p, SIZE, &e->sum);
		return;
	}
	e->err = data_cli_get(c, buf_bytes(&e->ticket), SIZE, p);
	for (size_t i = 0; e->err == ERR_NONE && i < SIZE; i++)
		MUST(p[i] == (uint8_t)e->version);
}

static void *client(void *arg)
{
	struct errand *e = arg;
	struct data_cli c;
	bool up = false, stop = false;
	uint8_t *p = malloc(SIZE);
	while (!stop) {
		pthread_mutex_lock(&e->lock);
		bool full = e->full;
		stop = e->stop;
		pthread_mutex_unlock(&e->lock);
		if (!full || stop) {
			usleep(50);
			continue;
		}
		if (!up) {
			e->n_opened++;
			up = data_cli_open(&c, e->f, "blue");
			if (!up)
				data_cli_close(&c);
		}
		e->err = ERR_CONN_LOST;
		if (up)
			one(e, &c, p);
		if (up && (c.last || c.lane.pipe.err || c.lane.state != CLI_READY)) {
			data_cli_close(&c);
			up = false;
		}
		pthread_mutex_lock(&e->lock);
		e->full = false;
		e->done = true;
		pthread_mutex_unlock(&e->lock);
	}
	if (up)
		data_cli_close(&c);
	free(p);
	return NULL;
}

/* ---- the loop ---- */

static void put_ended(struct data_fix *f, struct errand *e)
{
	struct hold_slot s;
	writing[e->range] = false;
	if (e->err != ERR_NONE) {
		e->n_stale++;
		return;
	}
	enum err r = hold_commit(f->x.hold, &e->open, e->sum, &s, NULL);
	if (r == ERR_NONE) {
		e->n_put++;
		slots[e->range] = s;
	} else {
		MUST(r == ERR_STALE_EPOCH || r == ERR_STALE_ATTEMPT);
		e->n_stale++;
	}
}

static void take(struct data_fix *f, struct errand *e)
{
	e->done = false;
	if (e->put)
		put_ended(f, e);
	else if (e->err == ERR_NONE)
		e->n_got++;
	else
		e->n_lost++;
}

/* Is the range free of all that may write there? */
static bool is_free(struct data_fix *f, unsigned r)
{
	return slots[r].version == 0 && !writing[r] && hold_quarantine(f->x.hold) == 0;
}

static void give(struct data_fix *f, struct errand *e)
{
	unsigned r = (unsigned)rng(RANGES);
	uint64_t offset = (uint64_t)r * SPACE;
	struct msg_ticket t;
	if (is_free(f, r)) {
		e->put = true;
		e->version = ++next_version;
		e->open = t = data_fix_write(f, "blue", e->version, offset, SIZE, &e->ext);
		writing[r] = true;
	} else if (slots[r].version) {
		e->put = false;
		e->version = slots[r].version;
		t = data_fix_read(f, "blue", &slots[r], offset, SIZE, &e->ext);
	} else {
		return;
	}
	e->range = r;
	data_fix_seal(f, &t, &e->ticket);
	e->full = true;
}

static void free_one(struct data_fix *f, unsigned r)
{
	struct hold_slot *s = &slots[r];
	struct hold_under u = hold_under(f->x.hold, 0);
	if (s->version == 0)
		return;
	MUST(hold_retire(f->x.hold, &u, s->slot, s->generation, s->version, RETIRE_REMOVED,
			 0) == ERR_NONE);
	enum err e = xfa_data_free_slot(f->x.data, f->x.hold, &u, s->slot, s->generation);
	n_held += e == ERR_BUSY;
	n_freed += e == ERR_NONE;
	if (e == ERR_NONE)
		s->version = 0;
}

static void fence_one(struct data_fix *f)
{
	struct errand *e = &errands[rng(CLIENTS)];
	struct hold_under u = hold_under(f->x.hold, 0);
	enum hold_fence state;
	struct hold_slot s;
	if (!e->put || !writing[e->range])
		return;
	struct extent x = { e->ext.segment, e->ext.offset, e->ext.bytes };
	MUST(hold_fence(f->x.hold, &u, e->version, &x, 1, &state, &s) == ERR_NONE);
	n_fences++;
	xfa_data_fenced(f->x.data);
}

static void adopt(struct data_fix *f)
{
	struct hold_under u = hold_under(f->x.hold, 0), now;
	MUST(hold_adopt(f->x.hold, 0, u.term + 1, 1, &now, NULL) == ERR_NONE);
	xfa_data_fenced(f->x.data);
}

static void turn(struct data_fix *f)
{
	loop_run_once(&f->loop, false);
	hold_sweep(f->x.hold);
	for (unsigned i = 0; i < CLIENTS; i++) {
		struct errand *e = &errands[i];
		pthread_mutex_lock(&e->lock);
		if (e->done)
			take(f, e);
		if (!e->full)
			give(f, e);
		pthread_mutex_unlock(&e->lock);
	}
	uint64_t what = rng(100);
	if (what < 20)
		free_one(f, (unsigned)rng(RANGES));
	else if (what == 20)
		fence_one(f);
	else if (what == 21)
		adopt(f);
	usleep(50);
}

int main(void)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	uint64_t n_put = 0, n_got = 0, n_stale = 0, n_lost = 0, n_opened = 0;
	data_fix_init(f, 2);
	for (unsigned i = 0; i < CLIENTS; i++) {
		errands[i].f = f;
		errands[i].ticket = BUF_INIT(TICKET_MAX);
		pthread_mutex_init(&errands[i].lock, NULL);
		MUST(pthread_create(&errands[i].t, NULL, client, &errands[i]) == 0);
	}
	uint64_t end = clock_after_ms(loop_now_ns(&f->loop), RUN_MS);
	while (loop_now_ns(&f->loop) < end)
		turn(f);
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_mutex_lock(&errands[i].lock);
		errands[i].stop = true;
		pthread_mutex_unlock(&errands[i].lock);
	}
	data_fix_fini(f); /* cuts who is under way */
	for (unsigned i = 0; i < CLIENTS; i++) {
		struct errand *e = &errands[i];
		pthread_join(e->t, NULL);
		n_put += e->n_put, n_got += e->n_got, n_stale += e->n_stale;
		n_lost += e->n_lost, n_opened += e->n_opened;
		buf_fini(&e->ticket);
	}
	free(f);
	printf("%llu puts, %llu stale, %llu gets, %llu lost, %llu freed, %llu held by a reader, "
	       "%llu fences, %llu lanes\n",
	       (unsigned long long)n_put, (unsigned long long)n_stale,
	       (unsigned long long)n_got, (unsigned long long)n_lost,
	       (unsigned long long)n_freed, (unsigned long long)n_held,
	       (unsigned long long)n_fences, (unsigned long long)n_opened);
	return n_put > 0 && n_got > 0 && n_freed > 0 ? 0 : 1;
}
