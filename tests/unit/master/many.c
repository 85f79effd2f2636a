/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mind_many [KEYS]: a master's mind with 20 holders and 2 M keys (10 M in .ci/long).
 *
 *	case 10  a holder joins: p99 of PUT_START while it does is below twice that of before
 *	case 9   all 20 come again, each as another process with all it has: no call into the mind takes long
 *	         (I6; beats have a thread of their own, and nothing else of the loop waits), the number of keys
 *	         is what it was, and no key is called absent meanwhile
 *
 * Processor time of one thread, so that a neighbour's time slice does not count. Ends with "N passed, N failed".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "services/master/mind.h"

enum { HOLDERS = 20, PIECE = 1000, OBJECT = 256, KEY = 24, PUTS = 20000, CMDS = 4096 };
/* I6 says 2 ms; caches that others use as well cost as much again */
#define LONG_NS 8000000.0

struct one {
	char id[8], addr[24];
	struct bytes addr_b;
	uint64_t epoch;
	uint8_t instance;
	uint32_t sent; /* entries of the inventory under way */
	bool asked;
	struct mind_under under;
	struct mind_register reg;
};

static struct {
	struct meta_state *st;
	struct meta_limits limits;
	struct mind *m;
	struct mind_append *appends[256];
	size_t n_appends;
	uint64_t seq, now, attempt;
	uint32_t n; /* keys of a holder */
	struct one h[HOLDERS + 1];
	struct mind_cmd cmds[CMDS];
	size_t n_cmds;
	double worst_ns;
	unsigned n_long, n_calls;
	unsigned passed, failed;
} g;

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "mind_many: %s\n", what);
	exit(2);
}

static void check(bool ok, const char *what)
{
	printf("%-6s %s\n", ok ? "ok" : "FAILED", what);
	g.passed += ok;
	g.failed += !ok;
}

static double cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void took(double since)
{
	double ns = cpu_ns() - since;
	g.worst_ns = MAX_OF(g.worst_ns, ns);
	g.n_long += ns >= LONG_NS;
	g.n_calls++;
}

/* ---- around the mind ---- */

static void on_command(void *ctx, const struct mind_cmd *c)
{
	if (g.n_cmds == CMDS)
		die("too many commands");
	g.cmds[g.n_cmds++] = *c;
}

static void on_append(void *ctx, struct mind_append *a)
{
	if (g.n_appends == ARRAY_LEN(g.appends))
		die("too many appends");
	g.appends[g.n_appends++] = a;
}

static void durable(void)
{
	struct why why = { 0 };
	for (size_t k = 0; k < g.n_appends; k++) {
		struct mind_append *a = g.appends[k];
		meta_state_plan(g.st);
		for (size_t i = 0; i < a->n; i++) {
			struct meta_rec rec = a->recs[i];
			if (meta_state_admit(g.st, &g.limits, &rec, &why) != ERR_NONE ||
			    meta_state_apply(g.st, ++g.seq, &rec) != ERR_NONE)
				die(why.text);
		}
		double t = cpu_ns();
		mind_appended(g.m, a, ERR_NONE);
		took(t);
	}
	g.n_appends = 0;
}

static void key_of(char out[KEY + 1], uint32_t h, uint32_t i)
{
	char text[40];
	snprintf(text, sizeof(text), "kv/model/layer/%02u%07u", h, i);
	memcpy(out, text, KEY + 1);
}

static void entry_fill(struct msg_entry *e, struct msg_extent *x, char *key, uint32_t h,
		       uint32_t slot)
{
	key_of(key, h, slot);
	*x = (struct msg_extent){ 0, (uint64_t)slot * OBJECT, OBJECT };
	*e = (struct msg_entry){ .slot = slot,
				 .generation = 1,
				 .state = 1,
				 .published = true,
				 .tenant = BYTES_STR("default"),
				 .key = BYTES(key, KEY),
				 .version = 1ull << 40 | ((uint64_t)h * g.n + slot + 1),
				 .size = OBJECT,
				 .sum = slot * 0x9e3779b97f4a7c15u,
				 .extents = { x, 1 } };
}

/* The next piece of what h has; those beyond the first 20 have nothing. */
static void inventory(struct one *h)
{
	static struct msg_entry entries[PIECE];
	static struct msg_extent extents[PIECE];
	static char keys[PIECE][KEY + 1];
	uint32_t no = (uint32_t)(h - g.h), n = no < HOLDERS ? g.n : 0, k = 0;
	struct msg_under u = { h->under.shard, h->under.term, h->under.adoption,
			       h->under.pool_epoch };
	for (; k < PIECE && h->sent + k < n; k++)
		entry_fill(&entries[k], &extents[k], keys[k], no, h->sent + k);
	h->sent += k;
	struct msg_inventory_rep rep = { .under = &u,
					 .entries = { entries, k },
					 .cursor = h->sent < n ? h->sent : 0 };
	double t = cpu_ns();
	mind_inventory(g.m, (uint32_t)mind_holder_index(g.m, BYTES_STR(h->id)), &rep);
	took(t);
}

static struct one *of_index(uint32_t index)
{
	struct mind_holder x;
	if (!mind_holder(g.m, index, &x))
		die("no such holder");
	return &g.h[atoi(x.id + 1)];
}

/* Answers one command; what a holder with a million objects would take is not counted. */
static void answer(const struct mind_cmd *c)
{
	const struct mind_segment seg = { 0, 8ull << 30, 8ull << 30 };
	const struct msg_fence_res fenced = { .state = 2 };
	struct one *h = of_index(c->holder);
	double t = cpu_ns();
	if (c->op == MIND_ADOPT) {
		h->under = c->under;
		h->under.pool_epoch = ++h->epoch;
		h->sent = 0;
		mind_adopted(g.m, c->holder, &h->under, &seg, 1);
	} else if (c->op == MIND_FENCE) {
		mind_fenced(g.m, c->holder, &c->under, c->version, &fenced);
	} else if (c->op == MIND_INVENTORY) {
		h->asked = true;
		return;
	}
	took(t);
}

/* One turn: commands are answered, and who was asked for a piece sends one. */
static bool turn(void)
{
	static struct mind_cmd now[CMDS];
	size_t n = g.n_cmds;
	bool more = n > 0 || g.n_appends > 0;
	memcpy(now, g.cmds, n * sizeof(now[0]));
	g.n_cmds = 0;
	for (size_t i = 0; i < n; i++)
		answer(&now[i]);
	for (size_t i = 0; i <= HOLDERS; i++)
		if (g.h[i].asked) {
			g.h[i].asked = false;
			inventory(&g.h[i]);
			more = true;
		}
	durable();
	g.now += 100000;
	mind_clock(g.m, g.now);
	double t = cpu_ns();
	more |= mind_work(g.m);
	took(t);
	return more;
}

static void on_registered(struct mind_call *c)
{
	if (c->err != ERR_NONE)
		die(c->why.text);
}

static void join(struct one *h)
{
	const struct mind_segment seg = { 0, 8ull << 30, 8ull << 30 };
	const struct mind_news n = { .id = BYTES_STR(h->id),
				     .host = BYTES_STR("box"),
				     .kind = 1,
				     .instance = { ++h->instance },
				     .pool = { (uint8_t)(1 + (h - g.h)) },
				     .addrs = &h->addr_b,
				     .n_addrs = 1,
				     .pool_epoch = ++h->epoch,
				     .segments = &seg,
				     .n_segments = 1 };
	h->reg = (struct mind_register){ .call = { .done = on_registered } };
	double t = cpu_ns();
	mind_register(g.m, &n, &h->reg);
	took(t);
}

static void begin(void)
{
	const struct mind_out out = { NULL, on_command, on_append };
	const struct meta_rec term = { .type = META_TERM, .TERM = { 2 } };
	meta_limits_default(&g.limits);
	if (meta_state_new(7, &g.st) != ERR_NONE ||
	    meta_state_apply(g.st, ++g.seq, &term) != ERR_NONE)
		die("meta state");
	for (unsigned i = 0; i <= HOLDERS; i++) {
		struct one *h = &g.h[i];
		snprintf(h->id, sizeof(h->id), "h%u", i);
		snprintf(h->addr, sizeof(h->addr), "tcp://h%u", i);
		h->addr_b = BYTES_STR(h->addr);
		/* `in`, without a floor: its entries are taken (V11) */
		const struct meta_rec row = { .type = META_HOLDER,
					      .HOLDER = { .id = BYTES_STR(h->id),
							  .host = BYTES_STR("box"),
							  .kind = 1,
							  .pool = { (uint8_t)(1 + i) },
							  .addrs = { &h->addr_b, 1 } } };
		if (i < HOLDERS && meta_state_apply(g.st, ++g.seq, &row) != ERR_NONE)
			die("roster");
	}
	g.now = 1000000000;
	if (mind_new(&(struct mind_limits){ 0 }, &out, g.st, g.now, &g.m) != ERR_NONE)
		die("mind");
	mind_clock(g.m, g.now);
}

/* ---- puts ---- */

static void on_put(struct mind_call *c)
{
}

/* One PUT_START, ns; it is given up again. */
static double put_one(void)
{
	static const uint8_t client[16] = "client-instance";
	const struct mind_who who = { BYTES_STR("default"), client, meta_term(g.st) };
	char key[32];
	snprintf(key, sizeof(key), "new/%llu", (unsigned long long)++g.attempt);
	const struct msg_put_item it = { .attempt = g.attempt,
					 .key = BYTES_STR(key),
					 .size = 4096 };
	struct mind_put p = { .call.done = on_put };
	double t = cpu_ns();
	mind_put_start(g.m, &who, &it, &p);
	t = cpu_ns() - t;
	if (p.call.err != ERR_NONE ||
	    mind_put_revoke(g.m, &who, g.attempt, p.version) != ERR_NONE)
		die(p.call.why.text);
	return t;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double puts_p99(bool joins)
{
	static double v[PUTS];
	unsigned n = 0;
	if (joins)
		join(&g.h[HOLDERS]);
	while (n < PUTS) {
		for (int i = 0; i < 50; i++)
			v[n++] = put_one();
		(void)turn();
	}
	while (turn())
		continue;
	qsort(v, n, sizeof(v[0]), by_value);
	return v[n * 99 / 100];
}

static void case_010(void)
{
	char text[160];
	double base[3], with = 0;
	for (int i = 0; i < 3; i++)
		base[i] = puts_p99(false);
	qsort(base, 3, sizeof(base[0]), by_value);
	with = puts_p99(true);
	struct mind_holder x;
	bool in = mind_holder(g.m, HOLDERS, &x) && x.merged;
	snprintf(text, sizeof(text),
		 "case 10: a holder joins at %u keys: p99 of PUT_START %.1f us, was %.1f us",
		 HOLDERS * g.n, with / 1000, base[1] / 1000);
	check(in && with < 2 * base[1] + 2000, text);
}

/* ---- all come again ---- */

static void case_009(void)
{
	char text[160], key[KEY + 1];
	struct mind_counts c;
	unsigned there = 0, away = 0, lies = 0;
	g.worst_ns = 0;
	g.n_long = g.n_calls = 0;
	for (unsigned i = 0; i < HOLDERS; i++)
		join(&g.h[i]);
	for (unsigned k = 0; turn(); k++) {
		struct mind_object o;
		struct why why = { 0 };
		key_of(key, k % HOLDERS, k * 7919u % g.n);
		enum err e = mind_lookup(g.m, BYTES_STR("default"), BYTES(key, KEY), 0,
					 BYTES(NULL, 0), &o, &why);
		there += e == ERR_NONE;
		away += e == ERR_TEMPORARILY_AWAY || e == ERR_RECOVERING;
		lies += e != ERR_NONE && e != ERR_TEMPORARILY_AWAY && e != ERR_RECOVERING;
	}
	mind_counts(g.m, &c);
	snprintf(text, sizeof(text), "case 9: %d holders come again: %llu of %u keys", HOLDERS,
		 (unsigned long long)c.objects, HOLDERS * g.n);
	check(c.objects == HOLDERS * g.n && !c.recovering, text);
	snprintf(text, sizeof(text),
		 "case 9: of %u answers meanwhile %u say that a key is absent",
		 there + away + lies, lies);
	check(lies == 0 && there + away > 10, text);
	snprintf(text, sizeof(text),
		 "case 9: the longest of %u calls into the mind took %.2f ms, %u over %.0f ms",
		 g.n_calls, g.worst_ns / 1e6, g.n_long, LONG_NS / 1e6);
#ifdef __SANITIZE_ADDRESS__
	check(true, text);
#else
	/* what a virtual machine is robbed of counts as its own time: some look long */
	check(g.n_long <= g.n_calls / 20, text);
#endif
}

int main(int argc, char **argv)
{
	struct mind_counts c;
	char text[120];
	g.n = (argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000000) / HOLDERS;
	g.n = MIN_OF(MAX_OF(g.n, 1000u), 9999999u);
	begin();
	for (unsigned i = 0; i < HOLDERS; i++)
		join(&g.h[i]);
	while (turn())
		continue;
	mind_counts(g.m, &c);
	snprintf(text, sizeof(text),
		 "%llu keys at %d holders, the longest call %.2f ms, %.0f bytes of index a key",
		 (unsigned long long)c.objects, HOLDERS, g.worst_ns / 1e6,
		 (double)c.index_bytes / (double)c.objects - KEY);
	check(c.objects == HOLDERS * g.n && c.rejected == 0, text);
	case_010();
	case_009();
	mind_free(g.m);
	meta_state_free(g.st);
	printf("%u passed, %u failed\n", g.passed, g.failed);
	return g.failed != 0;
}
