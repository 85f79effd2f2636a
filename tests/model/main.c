/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model checker: depth first over every order of events of a configuration, states told apart by a
 * canonical fingerprint; or random walks.
 *
 *   model [-s SECONDS] [-m MIB] [-d DEPTH] [-w WALKS] [-r SEED] [-f EVERY] CONFIG...    ("all": each in turn)
 *   model --find CONFIG...   each must break something ("all": every planted bug)
 *   model --mended PLANT...  the same configurations with the rule in place: nothing may break
 *   model --list | --plants | --show -w 1 CONFIG (prints a walk)
 *
 * One line a configuration: states, moves, deepest, whether all was seen. A violation prints the events
 * that lead to it and ends with 1.
 */
#include "tests/model/snap.h"
#include "tests/model/world.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/model/configs.def"

enum { DEPTH_MAX = 600 };

static const struct w_config configs[] = { W_CONFIGS };
static const struct w_config plants[] = { W_PLANTS };

struct level {
	void *snap;
	size_t bytes, cap;
	uint16_t events[W_EVENTS_MAX];
	size_t n, next;
	uint16_t taken;
};

struct run {
	const struct w_config *cfg;
	struct world *w;
	uint64_t *set;
	size_t cap, n;
	uint64_t moves, settled, cut;
	unsigned deepest;
	double seconds;
	unsigned depth_max, settle_every;
	unsigned
		begun; /* events of the configuration's beginning: trace[0] to trace[begun - 1] */
	bool show;     /* the first walk that ends by itself, as if it had broken something */
	struct level *levels;
	uint16_t trace[DEPTH_MAX];
	uint64_t prints[DEPTH_MAX]; /* fingerprint after each, to see that a replay is one */
	struct timespec begin;
	const char *found;
	unsigned found_depth;
	struct level bare, start; /* without the beginning, with it */
};

static double since(const struct timespec *t)
{
	struct timespec n;
	clock_gettime(CLOCK_MONOTONIC, &n);
	return (double)(n.tv_sec - t->tv_sec) + (double)(n.tv_nsec - t->tv_nsec) / 1e9;
}

/* ---- states seen ---- */

/* 1 new, 0 seen, -1 full. */
static int set_add(struct run *r, uint64_t fp)
{
	if (r->n >= r->cap / 16 * 15)
		return -1;
	size_t i = (size_t)(fp * 0x9e3779b97f4a7c15ull) & (r->cap - 1);
	while (r->set[i] && r->set[i] != fp)
		i = (i + 1) & (r->cap - 1);
	if (r->set[i])
		return 0;
	r->set[i] = fp;
	r->n++;
	return 1;
}

static void set_open(struct run *r, size_t mib)
{
	r->cap = 1 << 16;
	while (r->cap * 16 <= mib << 20)
		r->cap *= 2;
	r->set = mmap(NULL, r->cap * 8, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->set == MAP_FAILED)
		abort();
}

/* ---- moving ---- */

static void save(struct level *l)
{
	l->bytes = snap_bytes();
	if (l->bytes > l->cap) {
		free(l->snap);
		l->cap = l->bytes * 2;
		l->snap = malloc(l->cap);
		if (!l->snap)
			abort();
	}
	snap_save(l->snap);
}

static void move(struct run *r, uint16_t e)
{
	snap_enter();
	world_apply(r->w, e);
	if (!r->w->overflow && !r->w->broken)
		world_check(r->w);
	snap_leave();
	r->moves++;
}

static void settle(struct run *r)
{
	snap_enter();
	world_settle(r->w);
	snap_leave();
	r->settled++;
}

static void start(struct run *r)
{
	if (r->start.snap) {
		snap_load(r->start.snap, r->start.bytes);
		return;
	}
	snap_enter();
	r->w = world_new(r->cfg);
	world_check(r->w);
	snap_leave();
	save(&r->bare);
	snap_enter();
	r->begun = (unsigned)world_script(r->w, r->trace, DEPTH_MAX / 2);
	snap_leave();
	save(&r->start);
}

static bool violated(struct run *r, unsigned depth)
{
	if (!r->w->broken)
		return false;
	r->found = r->w->broken;
	r->found_depth = depth;
	return true;
}

/* ---- depth first ---- */

static void level_open(struct run *r, unsigned d)
{
	struct level *l = &r->levels[d];
	save(l);
	l->n = world_events(r->w, l->events);
	l->next = 0;
	r->deepest = MAX_OF(r->deepest, d);
}

/* true: a new state to go into. */
static bool level_next(struct run *r, unsigned d)
{
	struct level *l = &r->levels[d];
	uint16_t e = l->events[l->next++];
	snap_load(l->snap, l->bytes);
	r->trace[d] = e;
	move(r, e);
	if (r->w->overflow) {
		r->cut++;
		return false;
	}
	if (violated(r, d + 1))
		return false;
	r->prints[d] = world_fingerprint(r->w);
	int is = set_add(r, r->prints[d]);
	if (is <= 0)
		return false;
	if (r->settle_every && r->n % r->settle_every == 0) {
		struct level keep = { 0 };
		save(&keep);
		settle(r);
		if (violated(r, d + 1))
			return false;
		snap_load(keep.snap, keep.bytes);
		free(keep.snap);
	}
	if (d + 2 >= r->depth_max) {
		r->cut++;
		return false;
	}
	return true;
}

static bool depth_first(struct run *r)
{
	start(r);
	unsigned d = r->begun;
	level_open(r, d);
	for (;;) {
		struct level *l = &r->levels[d];
		if (r->found)
			return false;
		if (l->next == l->n) {
			if (d-- == r->begun)
				return r->cut == 0;
			continue;
		}
		if (level_next(r, d))
			level_open(r, ++d);
		if ((r->moves & 1023) == 0 &&
		    (since(&r->begin) > r->seconds || r->n >= r->cap / 16 * 15))
			return false;
	}
}

/* ---- random walks ---- */

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static void walk(struct run *r, uint64_t *seed)
{
	uint16_t ev[W_EVENTS_MAX];
	start(r);
	for (unsigned d = r->begun; d < DEPTH_MAX; d++) {
		size_t n = world_events(r->w, ev);
		if (n == 0)
			break;
		r->trace[d] = ev[next_random(seed) % n];
		move(r, r->trace[d]);
		r->deepest = MAX_OF(r->deepest, d + 1);
		if (r->w->overflow) {
			r->cut++;
			return;
		}
		if (violated(r, d + 1))
			return;
		if (r->show && world_events(r->w, ev) == 0) {
			r->found = "shown";
			r->found_depth = d + 1;
			return;
		}
		if (world_events(r->w, ev) == 0 || next_random(seed) % 64 == 0) {
			if (r->settle_every == 0)
				continue;
			settle(r);
			(void)violated(r, d + 1);
			return;
		}
	}
}

static void walks(struct run *r, uint64_t count, uint64_t seed)
{
	seed = seed * 2 + 1;
	for (uint64_t i = 0; i < count && !r->found && since(&r->begin) < r->seconds; i++)
		walk(r, &seed);
}

/* ---- words ---- */

static void print_trace(struct run *r)
{
	char text[160];
	bool settled = false;
	printf("%s: %s, after %u events:\n", r->cfg->name, r->found, r->found_depth);
	snap_load(r->bare.snap, r->bare.bytes);
	for (unsigned d = 0; d < r->found_depth; d++) {
		if (d > 0 && d == r->begun) {
			printf("      ... and from there\n");
			snap_load(r->start.snap, r->start.bytes);
		}
		world_tell(r->w, r->trace[d], text, sizeof(text));
		printf("  %3u %s\n", d + 1, text);
		move(r, r->trace[d]);
		if (r->prints[d] && d + 1 < r->found_depth &&
		    r->prints[d] != world_fingerprint(r->w))
			printf("      (the replay differs from here)\n");
		settled |= r->w->broken != NULL;
	}
	snap_enter();
	world_show(r->w);
	snap_leave();
	if (settled || r->show)
		return;
	printf("      ... and a fair run from there\n");
	settle(r);
	snap_enter();
	world_show(r->w);
	snap_leave();
}

struct args {
	double seconds;
	size_t mib;
	uint64_t walks, seed;
	unsigned depth, every;
	bool show, find, mended;
};

static bool check_one(const struct w_config *of, const struct args *a)
{
	struct w_config cfg = *of;
	if (a->mended)
		cfg.plant = cfg.plant_hold = cfg.plant_here = 0;
	struct run r = { .cfg = &cfg,
			 .seconds = a->seconds,
			 .depth_max = a->depth,
			 .settle_every = a->every,
			 .show = a->show };
	clock_gettime(CLOCK_MONOTONIC, &r.begin);
	r.levels = calloc(DEPTH_MAX, sizeof(*r.levels));
	set_open(&r, a->walks ? 1 : a->mib);
	bool all = false;
	if (a->walks)
		walks(&r, a->walks, a->seed);
	else
		all = depth_first(&r);
	double took = since(&r.begin);
	printf("%-24s %11zu states %12llu moves, depth %u, %llu settled, %llu cut, %.0f s: %s\n",
	       cfg.name, r.n, (unsigned long long)r.moves, r.deepest,
	       (unsigned long long)r.settled, (unsigned long long)r.cut, took,
	       r.found	  ? "VIOLATION"
	       : a->walks ? "walked"
	       : all	  ? "all"
			  : "bounded");
	if (r.found)
		print_trace(&r);
	fflush(stdout);
	munmap(r.set, r.cap * 8);
	for (unsigned i = 0; i < DEPTH_MAX; i++)
		free(r.levels[i].snap);
	free(r.levels);
	free(r.start.snap);
	free(r.bare.snap);
	return (r.found == NULL) != a->find;
}

static int list(const struct w_config *c, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%-24s %s\n", c[i].name, c[i].about);
	return 0;
}

static const struct w_config *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(configs); i++)
		if (strcmp(configs[i].name, name) == 0)
			return &configs[i];
	for (size_t i = 0; i < ARRAY_LEN(plants); i++)
		if (strcmp(plants[i].name, name) == 0)
			return &plants[i];
	fprintf(stderr, "model: no configuration '%s'; --list and --plants name them\n", name);
	exit(2);
}

static double number(const char *flag, const char *text)
{
	char *end = NULL;
	double v = text ? strtod(text, &end) : -1;
	if (!text || *end || v < 0) {
		fprintf(stderr, "model: %s takes a number, not '%s'\n", flag, text ? text : "");
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	struct args a = { .seconds = 60, .mib = 1024, .depth = DEPTH_MAX };
	bool ok = true;
	int i = 1;
	for (; i < argc && argv[i][0] == '-'; i++) {
		const char *f = argv[i];
		if (strcmp(f, "--list") == 0)
			return list(configs, ARRAY_LEN(configs));
		if (strcmp(f, "--plants") == 0)
			return list(plants, ARRAY_LEN(plants));
		if (strcmp(f, "--find") == 0) {
			a.find = true;
			continue;
		}
		if (strcmp(f, "--mended") == 0) {
			a.mended = true;
			continue;
		}
		if (strcmp(f, "--show") == 0) {
			a.show = true;
			continue;
		}
		double v = number(f, i + 1 < argc ? argv[++i] : NULL);
		switch (f[1]) {
		case 's':
			a.seconds = v;
			break;
		case 'm':
			a.mib = (size_t)v;
			break;
		case 'w':
			a.walks = (uint64_t)v;
			break;
		case 'r':
			a.seed = (uint64_t)v;
			break;
		case 'd':
			a.depth = MIN_OF((unsigned)v, (unsigned)DEPTH_MAX);
			break;
		case 'f':
			a.every = (unsigned)v;
			break;
		default:
			fprintf(stderr, "model: unknown flag %s\n", f);
			return 2;
		}
	}
	snap_open(64 << 20);
	void *empty = malloc(snap_bytes());
	size_t bytes = snap_bytes();
	if (!empty || i == argc)
		return list(configs, ARRAY_LEN(configs)), 2;
	snap_save(empty);
	for (; i < argc; i++) {
		if (strcmp(argv[i], "all") != 0) {
			snap_load(empty, bytes);
			ok &= check_one(find(argv[i]), &a);
			continue;
		}
		bool planted = a.find || a.mended;
		const struct w_config *of = planted ? plants : configs;
		for (size_t k = 0; k < (planted ? ARRAY_LEN(plants) : ARRAY_LEN(configs));
		     k++) {
			snap_load(empty, bytes);
			ok &= check_one(&of[k], &a);
		}
	}
	free(empty);
	return ok ? 0 : 1;
}
