/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's own parts, no processes (spec/store.md, Benchmarks).
 *
 *   master.alloc             nanoseconds of alloc_take in a segment that stays nearly full: 643 KiB, 1 MiB,
 *                            3.12 MiB, 2 MiB + 17 in turn, a segment of 4,000 objects each, filled, a
 *                            third given back at random, filled again. At least 99 % must be usable
 *   master.alloc_give        the same of alloc_give
 *   master.rebuild           entries a second of a merge: an inventory of one holder in messages of
 *                            128 KiB, decoded and merged into an empty index
 *   master.bytes_per_object  heap that such an index has, an object, beside its keys' bytes
 *
 * BENCH_OBJECTS=10000000 sets the objects of the last one (2 M), where there are some GiB of memory.
 * Processor time of one thread, so that a neighbour's time slice does not count.
 */
#include "bench.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "services/master/mind.h"
#include "store/alloc.h"

static double cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench_master: %s\n", what);
	exit(1);
}

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s >> 11;
}

/* ---- the allocator ---- */

enum { SEG_OBJECTS = 4000, ROUNDS = 40, WARM = 8 };

struct cost {
	double take_ns, give_ns;
	uint64_t takes, gives;
};

static void fill(struct alloc *a, uint64_t bytes, uint64_t total, uint64_t *at, uint64_t *n,
		 struct cost *c)
{
	uint64_t was = *n;
	double begin = cpu_ns();
	while (*n < SEG_OBJECTS + 8 && alloc_take(a, bytes, &at[*n]) == ERR_NONE)
		++*n;
	c->take_ns += cpu_ns() - begin;
	c->takes += *n - was;
	if (*n * bytes < total / 100 * 99)
		die("less than 99 % of a segment is usable");
}

static void give_third(struct alloc *a, uint64_t bytes, uint64_t *at, uint64_t *n, uint64_t *s,
		       struct cost *c)
{
	uint64_t left = *n;
	for (uint64_t k = 0; k < *n / 3; k++) { /* those to go to the end, in random order */
		uint64_t i = rnd(s) % left--;
		uint64_t x = at[i];
		at[i] = at[left];
		at[left] = x;
	}
	double begin = cpu_ns();
	for (uint64_t k = left; k < *n; k++)
		if (!alloc_give(a, at[k], bytes))
			die("alloc_give");
	c->give_ns += cpu_ns() - begin;
	c->gives += *n - left;
	*n = left;
}

static void one_size(uint64_t object, uint64_t *s, struct cost *c)
{
	uint64_t bytes = obj_stored_bytes(object);
	uint64_t total = bytes * SEG_OBJECTS / 4096 * 4096 + 4096, n = 0;
	uint64_t *at = calloc(SEG_OBJECTS + 8, sizeof(*at));
	struct alloc *a;
	if (!at || alloc_new(total, &a) != ERR_NONE || alloc_grow(a, total) != ERR_NONE)
		die("no memory");
	struct cost first = { 0 }; /* touches the maps' pages */
	for (int i = 0; i < WARM + ROUNDS; i++) {
		fill(a, bytes, total, at, &n, i < WARM ? &first : c);
		give_third(a, bytes, at, &n, s, i < WARM ? &first : c);
	}
	alloc_free(a);
	free(at);
}

static struct cost alloc_cost(void)
{
	struct cost c = { 0 };
	uint64_t s = 88172645463325252u;
	one_size(643 << 10, &s, &c);
	one_size(1 << 20, &s, &c);
	one_size((312ull << 20) / 100, &s, &c);
	one_size((2 << 20) + 17, &s, &c);
	return c;
}

static double s_take(void *arg)
{
	struct cost c = alloc_cost();
	return c.take_ns / (double)c.takes;
}

static double s_give(void *arg)
{
	struct cost c = alloc_cost();
	return c.give_ns / (double)c.gives;
}

/* ---- a mind with one holder ---- */

enum { PIECE = 128 << 10, OBJECT = 256, KEY = 24, REBUILD_N = 500000 };

struct world {
	struct meta_state *st;
	struct meta_limits limits;
	struct mind *m;
	struct mind_append *appends[16];
	size_t n_appends;
	struct mind_cmd cmd; /* the last one that asks for something */
	bool asked;
	uint64_t seq, merged;
	double took_ns;
	struct arena arena;
};

static void on_command(void *ctx, const struct mind_cmd *c)
{
	struct world *w = ctx;
	if (c->op != MIND_ADOPT && c->op != MIND_INVENTORY)
		return;
	w->cmd = *c;
	w->asked = true;
}

static void on_append(void *ctx, struct mind_append *a)
{
	struct world *w = ctx;
	if (w->n_appends == ARRAY_LEN(w->appends))
		die("too many appends");
	w->appends[w->n_appends++] = a;
}

static void durable(struct world *w)
{
	struct why why = { 0 };
	while (w->n_appends > 0) {
		struct mind_append *a = w->appends[--w->n_appends];
		meta_state_plan(w->st);
		for (size_t i = 0; i < a->n; i++) {
			struct meta_rec rec = a->recs[i];
			if (meta_state_admit(w->st, &w->limits, &rec, &why) != ERR_NONE ||
			    meta_state_apply(w->st, ++w->seq, &rec) != ERR_NONE)
				die(why.text);
		}
		mind_appended(w->m, a, ERR_NONE);
	}
}

static void on_registered(struct mind_call *c)
{
	if (c->err != ERR_NONE)
		die(c->why.text);
}

static const struct bytes addr = { (const uint8_t *)"tcp://h0", 8 };

/* In the roster as one that is `in`, without a floor: so that its entries are taken (V11). */
static void in_roster(struct world *w)
{
	const struct meta_rec recs[] = {
		{ .type = META_TERM, .TERM = { 2 } },
		{ .type = META_HOLDER,
		  .HOLDER = { .id = BYTES_STR("h0"),
			      .host = BYTES_STR("box"),
			      .kind = 1,
			      .pool = { 1 },
			      .addrs = { &addr, 1 } } },
	};
	for (size_t i = 0; i < ARRAY_LEN(recs); i++)
		if (meta_state_apply(w->st, ++w->seq, &recs[i]) != ERR_NONE)
			die("roster");
}

static struct mind_register reg;

static void begin(struct world *w)
{
	const struct mind_out out = { w, on_command, on_append };
	const struct mind_segment seg = { 0, 8ull << 30, 8ull << 30 };
	struct mind_news n = { .id = BYTES_STR("h0"),
			       .host = BYTES_STR("box"),
			       .kind = 1,
			       .instance = { 1 },
			       .pool = { 1 },
			       .addrs = &addr,
			       .n_addrs = 1,
			       .pool_epoch = 1,
			       .segments = &seg,
			       .n_segments = 1 };
	*w = (struct world){ .arena = ARENA_INIT(64 << 20) };
	meta_limits_default(&w->limits);
	if (meta_state_new(7, &w->st) != ERR_NONE)
		die("meta state");
	in_roster(w);
	if (mind_new(&(struct mind_limits){ 0 }, &out, w->st, 1000000000, &w->m) != ERR_NONE)
		die("mind");
	mind_clock(w->m, 1000000000);
	reg = (struct mind_register){ .call = { .done = on_registered } };
	mind_register(w->m, &n, &reg);
	durable(w);
	mind_work(w->m);
	if (!w->asked || w->cmd.op != MIND_ADOPT)
		die("not adopted");
	w->asked = false;
	struct mind_under u = w->cmd.under;
	u.pool_epoch = 2;
	mind_adopted(w->m, w->cmd.holder, &u, &seg, 1);
	mind_work(w->m);
	if (!w->asked || w->cmd.op != MIND_INVENTORY)
		die("no inventory is asked for");
}

static void end(struct world *w)
{
	mind_free(w->m);
	meta_state_free(w->st);
	arena_fini(&w->arena);
}

static void entry_fill(struct msg_entry *e, struct msg_extent *x, char *key, uint32_t slot)
{
	int n = snprintf(key, KEY + 1, "kv/model/layer/%09u", slot);
	*x = (struct msg_extent){ 0, (uint64_t)slot * OBJECT, OBJECT };
	*e = (struct msg_entry){ .slot = slot,
				 .generation = 1,
				 .state = 1,
				 .published = true,
				 .tenant = BYTES_STR("default"),
				 .key = BYTES(key, (size_t)n),
				 .version = 1ull << 40 | (slot + 1),
				 .size = OBJECT,
				 .sum = slot * 0x9e3779b97f4a7c15u,
				 .extents = { x, 1 } };
}

enum { A_PIECE = 1500 };
static struct msg_entry entries[A_PIECE];
static struct msg_extent extents[A_PIECE];
static char keys[A_PIECE][KEY + 1];

/* What the holder sends next: about PIECE bytes. */
static void encode(const struct world *w, uint32_t from, uint32_t n, struct buf *b)
{
	const struct mind_under *u = &w->cmd.under;
	struct msg_under under = { u->shard, u->term, u->adoption, u->pool_epoch };
	uint32_t k = 0;
	for (; k < A_PIECE && from + k < n; k++)
		entry_fill(&entries[k], &extents[k], keys[k], from + k);
	struct msg_inventory_rep rep = { .under = &under,
					 .entries = { entries, k },
					 .cursor = from + k < n ? from + k : 0 };
	enc_inventory_rep(b, &rep);
}

static void merge(struct world *w, uint32_t n)
{
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	for (uint32_t from = 0; from < n; from += A_PIECE) {
		struct msg_inventory_rep rep;
		struct why why = { 0 };
		b.n = 0;
		encode(w, from, n, &b);
		double t = cpu_ns();
		arena_clear(&w->arena);
		struct dec d = DEC_INIT(buf_bytes(&b), &w->arena, &why);
		if (dec_inventory_rep(&d, &rep) != ERR_NONE)
			die(why.text);
		mind_inventory(w->m, w->cmd.holder, &rep);
		w->took_ns += cpu_ns() - t;
	}
	double t = cpu_ns();
	while (mind_work(w->m))
		continue;
	w->took_ns += cpu_ns() - t;
	buf_fini(&b);
	struct mind_counts c;
	mind_counts(w->m, &c);
	if (c.objects != n || c.rejected > 0 || c.recovering) {
		fprintf(stderr, "bench_master: %llu of %u merged, %llu rejected%s\n",
			(unsigned long long)c.objects, n, (unsigned long long)c.rejected,
			c.recovering ? ", recovering" : "");
		exit(1);
	}
}

static double s_rebuild(void *arg)
{
	struct world w;
	begin(&w);
	merge(&w, REBUILD_N);
	double v = REBUILD_N / w.took_ns * 1e9;
	end(&w);
	return v;
}

static size_t heap(void)
{
	struct mallinfo2 i = mallinfo2();
	return i.uordblks + i.hblkhd;
}

static double s_bytes(void *arg)
{
	const char *text = getenv("BENCH_OBJECTS");
	uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 2000000;
	struct world w;
	begin(&w);
	size_t was = heap();
	merge(&w, n);
	arena_clear(&w.arena);
	double v = (double)(heap() - was) / n - KEY;
	struct mind_counts c;
	mind_counts(w.m, &c);
	fprintf(stderr, "# master.bytes_per_object: %u objects, its own count %.1f\n", n,
		(double)c.index_bytes / n - KEY);
	end(&w);
	return v;
}

static const struct bench_row rows[] = {
	{ "master.alloc", "ns", true, s_take, NULL, NULL, 100,
	  "alloc_take, segments of 4,000 objects between 67 % and full, 99 % usable" },
	{ "master.alloc_give", "ns", true, s_give, NULL, NULL, 100,
	  "alloc_give in random order" },
	{ "master.rebuild", "entries/s", false, s_rebuild, NULL, NULL, 1e6,
	  "500,000 entries in pieces of 128 KiB, decoded and merged" },
	{ "master.bytes_per_object", "bytes", true, s_bytes, NULL, NULL, 200,
	  "beside the key of 24 bytes; 2 M objects unless BENCH_OBJECTS says otherwise" },
};

int main(int argc, char **argv)
{
	return bench_main(argc, argv, rows, ARRAY_LEN(rows), NULL);
}
