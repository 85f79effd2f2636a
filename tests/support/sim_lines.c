/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of events, and getting it out when a test dies: from a failed SIM_CHECK, from abort()
 * and memory faults (signal handlers), and from a failed cr_assert, after which Criterion leaves
 * the process by exit() with worlds that nobody freed (a destructor).
 */
#include "tests/support/sim_priv.h"

#include "tests/support/leak.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#ifdef LEAK_CHECKED
void __sanitizer_set_death_callback(void (*fn)(void));
#endif

static struct list worlds = { &worlds, &worlds };
static bool dumped;

static void dump_worlds(void)
{
	if (dumped)
		return;
	dumped = true;
	list_for_each (n, &worlds)
		sim_dump(list_entry(n, struct sim, all), stderr);
}

/*
 * Not async-signal-safe, and need not be: the process is lost, and mostly aborts by itself.
 */
static void on_signal(int sig)
{
	signal(sig, SIG_DFL);
	dump_worlds();
	raise(sig);
}

__attribute__((destructor)) static void at_exit(void)
{
	dump_worlds();
}

static void catch_signals(void)
{
#ifdef LEAK_CHECKED /* ASan reports memory faults itself */
	__sanitizer_set_death_callback(dump_worlds);
	static const int sigs[] = { SIGABRT };
#else
	static const int sigs[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
#endif
	for (size_t i = 0; i < ARRAY_LEN(sigs); i++)
		signal(sigs[i], on_signal);
}

void sim_lines_init(struct sim *s)
{
	s->lines = (struct sim_lines){ .max = SIM_LINES, .ring = true };
	s->faults = (struct sim_lines){ .max = SIM_FAULTS };
	s->lines.text = sim_alloc(SIM_LINES * sizeof(*s->lines.text));
	s->faults.text = sim_alloc(SIM_FAULTS * sizeof(*s->faults.text));
	const char *echo = getenv("SIM_TRACE");
	s->echo = echo && *echo && *echo != '0';
	if (list_empty(&worlds))
		catch_signals();
	list_push_back(&worlds, &s->all);
}

void sim_lines_fini(struct sim *s)
{
	list_del(&s->all);
	free(s->lines.text);
	free(s->faults.text);
}

PRINTF_LIKE(3, 0)
static void add(struct sim *s, struct sim_lines *l, const char *fmt, va_list ap)
{
	if (l->n >= l->max && !l->ring) {
		l->n++;
		return;
	}
	char *line = l->text[l->n++ % l->max];
	size_t size = sizeof(l->text[0]);
	uint64_t us = s->now_ns / 1000;
	int n = snprintf(line, size, "%" PRIu64 ".%06" PRIu64 " ", us / 1000000, us % 1000000);
	const struct sim_proc *p = sim_current();
	if (p)
		n += snprintf(line + n, size - (size_t)n, "%s: ", p->name);
	vsnprintf(line + n, size - (size_t)n, fmt, ap);
	for (const char *c = line; *c; c++)
		sim_mix(s, (unsigned char)*c);
	if (s->echo)
		fprintf(stderr, "sim %s\n", line);
}

void sim_note(struct sim *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	add(s, &s->lines, fmt, ap);
	va_end(ap);
}

void sim_fault(struct sim *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	add(s, &s->faults, fmt, ap);
	va_end(ap);
}

/* NOLINTBEGIN(bugprone-signal-handler): see on_signal */
static void print(const struct sim_lines *l, const char *title, FILE *f)
{
	size_t kept = MIN_OF(l->n, l->max), first = l->ring ? l->n - kept : 0;
	fprintf(f, "sim: %s, %zu of %zu\n", title, kept, l->n);
	for (size_t i = 0; i < kept; i++)
		fprintf(f, "sim:   %s\n", l->text[(first + i) % l->max]);
}

void sim_dump(const struct sim *s, FILE *f)
{
	uint64_t ms = s->now_ns / NS_PER_MS;
	fprintf(f,
		"sim: seed %" PRIu64 ", %" PRIu64 " events, %" PRIu64
		" virtual ms; SEED=%" PRIu64 " runs it again\n",
		s->seed, s->n_events, ms, s->seed);
	print(&s->lines, "last events", f);
	print(&s->faults, "faults", f);
	fflush(f);
}
/* NOLINTEND(bugprone-signal-handler) */

void sim_fail(const char *file, int line, const char *cond, const char *fmt, ...)
{
	fprintf(stderr, "sim: %s:%d: %s is false: ", file, line, cond);
	va_list ap;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	abort();
}
