/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store-prefix log. A unit is one store of at most 8 bytes within one aligned word. A set of
 * units is allowed when with each it has what that one's order demands:
 *
 *   all units below its barrier (the last fence or seq_cst store before it; in PREFIX_KILL the last
 *   release too); if it is a release or seq_cst store, all units before it; the last earlier
 *   unit on each of its bytes.
 *
 * Going through the units in order and taking each or not, where it may be taken, meets every
 * allowed set exactly once, and never a dead end.
 */
#include "tests/support/prefix.h"

#include "tests/support/sim.h"

#include <inttypes.h>
#include <stdarg.h>

#define PAGE	    4096u
#define REGION_MAX  (1u << 20)
#define MAX_DEFAULT (1u << 16)

struct unit {
	uint32_t off;
	uint8_t n, bytes[8];
	bool ordered;	   /* a release or seq_cst store: all before it */
	uint32_t kill_bar; /* all units below are before it, in PREFIX_KILL */
	uint32_t weak_bar; /* and in PREFIX_WEAK */
	uint32_t under[8]; /* the last earlier unit on each byte, + 1; 0: none */
	const char *file;
	int line;
};

struct prefix_log {
	uint8_t *region, *before, *copy;
	size_t size;
	uint32_t n, kill_bar, weak_bar;
	bool on, overflow;
	struct unit u[PREFIX_STORES_MAX];
	bool in[PREFIX_STORES_MAX];
};

static __thread struct prefix_log *logging;

struct prefix_log *prefix_begin(void *region, size_t size)
{
	assert(!logging && size > 0 && size <= REGION_MAX);
	struct prefix_log *g = calloc(1, sizeof(*g));
	size_t cap = (size + PAGE - 1) / PAGE * PAGE;
	if (!g || !(g->before = aligned_alloc(PAGE, cap)) ||
	    !(g->copy = aligned_alloc(PAGE, cap)))
		abort(); /* a test without memory is void */
	g->region = region;
	g->size = size;
	g->on = true;
	memcpy(g->before, region, size);
	logging = g;
	return g;
}

void prefix_end(struct prefix_log *g)
{
	if (!g->on)
		return;
	g->on = false;
	logging = NULL;
}

void prefix_free(struct prefix_log *g)
{
	if (!g)
		return;
	prefix_end(g);
	free(g->before);
	free(g->copy);
	free(g);
}

uint32_t prefix_n_stores(const struct prefix_log *g)
{
	return g->n;
}

/* The last unit before i that stored to the byte at off, + 1. */
static uint32_t last_on(const struct prefix_log *g, uint32_t i, uint32_t off)
{
	while (i > 0) {
		const struct unit *u = &g->u[--i];
		if (off >= u->off && off < u->off + u->n)
			return i + 1;
	}
	return 0;
}

static void add_unit(struct prefix_log *g, uint32_t off, size_t n, enum shm_kind kind,
		     const char *file, int line)
{
	if (g->n == PREFIX_STORES_MAX) {
		g->overflow = true;
		return;
	}
	struct unit *u = &g->u[g->n];
	*u = (struct unit){ .off = off,
			    .n = (uint8_t)n,
			    .ordered = kind == SHM_RELEASE || kind == SHM_SEQ,
			    .kill_bar = g->kill_bar,
			    .weak_bar = g->weak_bar,
			    .file = file,
			    .line = line };
	memcpy(u->bytes, g->region + off, n);
	for (size_t b = 0; b < n; b++)
		u->under[b] = last_on(g, g->n, off + (uint32_t)b);
	g->n++;
	if (u->ordered)
		g->kill_bar = g->n;
	if (kind == SHM_SEQ)
		g->weak_bar = g->n;
}

void prefix_stored(const void *p, size_t n, enum shm_kind kind, const char *file, int line)
{
	struct prefix_log *g = logging;
	if (!g)
		return;
	if (kind == SHM_FENCE) {
		g->kill_bar = g->weak_bar = g->n;
		return;
	}
	uintptr_t at = (uintptr_t)p, base = (uintptr_t)g->region;
	if (at + n <= base || at >= base + g->size)
		return;
	assert(at >= base && at + n <= base + g->size);
	while (n > 0) {
		size_t part = MIN_OF(n, 8 - at % 8);
		add_unit(g, (uint32_t)(at - base), part, kind, file, line);
		at += part;
		n -= part;
	}
}

/* ---- sets ---- */

/* Does the order let unit i in, when all decided units below it are as in[] says? */
static bool allowed(const struct prefix_log *g, enum prefix_model m, uint32_t i,
		    uint32_t missing)
{
	const struct unit *u = &g->u[i];
	if (missing < (u->ordered ? i : m == PREFIX_KILL ? u->kill_bar : u->weak_bar))
		return false;
	for (size_t b = 0; b < u->n; b++)
		if (u->under[b] && !g->in[u->under[b] - 1])
			return false;
	return true;
}

struct walk {
	struct prefix_log *g;
	enum prefix_model model;
	bool (*sound)(void *ctx, void *region, struct why *why);
	void *ctx;
	struct prefix_result *out;
	uint64_t max;
};

static void say(struct prefix_result *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct prefix_result *r, const char *fmt, ...)
{
	size_t n = strlen(r->text);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(r->text + n, sizeof(r->text) - n, fmt, ap);
	va_end(ap);
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static void describe(const struct walk *w)
{
	const struct prefix_log *g = w->g;
	uint32_t last = 0, shown = 0;
	for (uint32_t i = 0; i < g->n; i++)
		if (g->in[i])
			last = i + 1;
	if (last == 0)
		say(w->out, "; no store has happened");
	else
		say(w->out, "; the last of %u stores that happened: #%u at %s:%d", g->n, last,
		    base_name(g->u[last - 1].file), g->u[last - 1].line);
	for (uint32_t i = 0; i < last; i++)
		if (!g->in[i] && shown++ < 12)
			say(w->out, "; missing #%u %s:%d offset %u", i + 1,
			    base_name(g->u[i].file), g->u[i].line, g->u[i].off);
}

static bool try_set(struct walk *w)
{
	struct prefix_log *g = w->g;
	struct why why = { 0 };
	memcpy(g->copy, g->before, g->size);
	for (uint32_t i = 0; i < g->n; i++)
		if (g->in[i])
			memcpy(g->copy + g->u[i].off, g->u[i].bytes, g->u[i].n);
	w->out->n_sets++;
	if (w->sound(w->ctx, g->copy, &why))
		return true;
	say(w->out, "%s", why.text[0] ? why.text : "not sound");
	describe(w);
	return false;
}

static uint32_t first_missing(const struct prefix_log *g, uint32_t n)
{
	uint32_t i = 0;
	while (i < n && g->in[i])
		i++;
	return i;
}

/*
 * The next set in order (in[] as a number, the first unit the highest digit, taken before left
 * out): the last unit that is in goes out, and all behind it come in as far as they may.
 */
static bool next_set(struct walk *w)
{
	struct prefix_log *g = w->g;
	uint32_t i = g->n;
	while (i > 0 && !g->in[i - 1])
		i--;
	if (i == 0)
		return false;
	g->in[i - 1] = false;
	uint32_t missing = first_missing(g, i);
	for (; i < g->n; i++)
		g->in[i] = allowed(g, w->model, i, missing);
	return true;
}

static void take_prefix(struct prefix_log *g, uint32_t n)
{
	for (uint32_t i = 0; i < g->n; i++)
		g->in[i] = i < n;
}

static bool all_sets(struct walk *w)
{
	take_prefix(w->g, w->g->n);
	do {
		if (w->out->n_sets == w->max) {
			w->out->exhaustive = false;
			return true;
		}
		if (!try_set(w))
			return false;
	} while (next_set(w));
	w->out->exhaustive = true;
	return true;
}

/* The prefix of n units without unit j, and so without all that comes after j in order. */
static void take_without(struct walk *w, uint32_t n, uint32_t j)
{
	struct prefix_log *g = w->g;
	uint32_t missing = UINT32_MAX;
	for (uint32_t i = 0; i < g->n; i++) {
		g->in[i] = i < n && i != j && allowed(g, w->model, i, missing);
		if (!g->in[i])
			missing = MIN_OF(missing, i);
	}
}

static bool some_prefixes(struct walk *w, uint64_t max)
{
	struct prefix_log *g = w->g;
	for (uint32_t n = 0; n <= g->n; n++) {
		take_prefix(g, n);
		if (!try_set(w))
			return false;
	}
	/* those with one hole, or one early bird, near the end first */
	for (uint32_t gap = 1; gap < g->n; gap++)
		for (uint32_t n = gap + 1; n <= g->n && w->out->n_sets < max; n++) {
			take_without(w, n, n - 1 - gap);
			if (!try_set(w))
				return false;
			take_prefix(g, n - gap);
			g->in[n - 1] = allowed(g, w->model, n - 1, n - gap);
			if (g->in[n - 1] && !try_set(w))
				return false;
		}
	return true;
}

static bool samples(struct walk *w)
{
	struct prefix_log *g = w->g;
	struct sim_rng r = sim_rng(g->n, "prefix");
	while (w->out->n_sets < w->max) {
		uint32_t keep = (uint32_t)sim_rng_below(&r, 1000001), missing = UINT32_MAX;
		for (uint32_t i = 0; i < g->n; i++) {
			g->in[i] = allowed(g, w->model, i, missing) && sim_rng_chance(&r, keep);
			if (!g->in[i])
				missing = MIN_OF(missing, i);
		}
		if (!try_set(w))
			return false;
	}
	return true;
}

/* Did every change of the region go through base/shm.h? */
static bool complete(struct walk *w)
{
	struct prefix_log *g = w->g;
	if (g->overflow) {
		say(w->out, "more than %d stores", PREFIX_STORES_MAX);
		return false;
	}
	memcpy(g->copy, g->before, g->size);
	for (uint32_t i = 0; i < g->n; i++)
		memcpy(g->copy + g->u[i].off, g->u[i].bytes, g->u[i].n);
	for (size_t at = 0; at < g->size; at++)
		if (g->copy[at] != g->region[at]) {
			say(w->out,
			    "the byte at offset %zu was changed by a store that went "
			    "around base/shm.h",
			    at);
			return false;
		}
	return true;
}

/* How many sets there are, up to max + 1. */
static uint64_t count_sets(struct walk *w)
{
	uint64_t n = 1;
	take_prefix(w->g, w->g->n);
	while (n <= w->max && next_set(w))
		n++;
	return n;
}

bool prefix_check(struct prefix_log *g, enum prefix_model model, uint64_t max,
		  bool (*sound)(void *ctx, void *region, struct why *why), void *ctx,
		  struct prefix_result *out)
{
	*out = (struct prefix_result){ .n_stores = g->n };
	prefix_end(g);
	struct walk w = { g, model, sound, ctx, out, max ? max : MAX_DEFAULT };
	if (!complete(&w))
		return false;
	if (count_sets(&w) <= w.max)
		return all_sets(&w);
	return some_prefixes(&w, w.max / 2) && samples(&w);
}
