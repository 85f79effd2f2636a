/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A site may write this many lines a second; the rest is counted (answers.md: bounded noise). */
#define SITE_BURST 10

static _Atomic int level_max = LOG_INFO_L;

void log_set_level(enum log_level max)
{
	level_max = (int)max;
}

enum log_level log_get_level(void)
{
	return (enum log_level)level_max;
}

static const char *const level_names[] = { "error", "warn", "info", "debug" };

bool log_level_parse(const char *s, enum log_level *out)
{
	for (size_t i = 0; i < ARRAY_LEN(level_names); i++)
		if (strcmp(s, level_names[i]) == 0) {
			*out = (enum log_level)i;
			return true;
		}
	return false;
}

void log_set_capture(struct log *l, struct log_capture *c)
{
	l->priv_capture = c;
}

/* Errors always pass. Returns false when the line is to be counted only. */
static bool site_pass(struct log_site *s, uint64_t now_ns, uint32_t *out_suppressed)
{
	uint64_t window = __atomic_load_n(&s->last_ns, __ATOMIC_RELAXED);
	*out_suppressed = 0;
	if (now_ns - window >= NS_PER_S || window == 0) {
		__atomic_store_n(&s->last_ns, now_ns, __ATOMIC_RELAXED);
		uint32_t n = __atomic_exchange_n(&s->suppressed, 1, __ATOMIC_RELAXED);
		*out_suppressed = n > SITE_BURST ? n - SITE_BURST : 0;
		return true;
	}
	return __atomic_add_fetch(&s->suppressed, 1, __ATOMIC_RELAXED) <= SITE_BURST;
}

static size_t put_head(char *line, size_t cap, const struct log *l, enum log_level level,
		       const char *topic)
{
	const struct clock *c = l->clock ? l->clock : &clock_real;
	uint64_t ms = c->wall_ms(c);
	time_t sec = (time_t)(ms / 1000);
	struct tm tm;
	gmtime_r(&sec, &tm);
	char ts[32];
	strftime(ts, sizeof(ts), "%Y-%m-%dT%H:%M:%S", &tm);
	int n = snprintf(line, cap, "ts=%s.%03uZ level=%s svc=%s topic=%s ", ts,
			 (unsigned)(ms % 1000), level_names[level], l->svc, topic);
	return (size_t)n < cap ? (size_t)n : cap - 1;
}

void log_write(const struct log *l, struct log_site *site, enum log_level level,
	       const char *topic, const char *fmt, ...)
{
	char line[1024];
	const struct clock *c = l->clock ? l->clock : &clock_real;
	uint32_t suppressed = 0;
	if (site && !site_pass(site, c->now_ns(c), &suppressed))
		return;
	size_t n = put_head(line, sizeof(line) - 1, l, level, topic);
	va_list ap;
	va_start(ap, fmt);
	int m = vsnprintf(line + n, sizeof(line) - 1 - n, fmt, ap);
	va_end(ap);
	if (m > 0)
		n = MIN_OF(n + (size_t)m, sizeof(line) - 2);
	if (suppressed && n < sizeof(line) - 40)
		n += (size_t)snprintf(line + n, sizeof(line) - 1 - n, " repeated=%u",
				      suppressed);
	/* one line stays one line, whatever a peer put into a text */
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[n++] = '\n';
	struct log_capture *cap = l->priv_capture;
	if (cap) {
		cap->fn(cap, line, n);
		return;
	}
	ssize_t r = write(l->fd > 0 ? l->fd : 2, line, n);
	(void)r; /* nowhere to report a log that cannot be written */
}
