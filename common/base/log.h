/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logfmt to a descriptor (answers.md): ts= level= svc= topic= op= ... one write(2) a line, so
 * lines of several threads do not mix. Lower case; no secrets; keys as hash and length.
 *
 *   LOG_WARN(&svc->log, "evict", "op=%" PRIu64 " seg=%u", op, seg);
 *
 * The levels are process globals (style.md: the one kind allowed). Repeats of one source line
 * beyond ten a second are counted and the count rides on the next line: repeated=N.
 * Thread: any.
 */
#pragma once

#include "base/clock.h"

enum log_level { LOG_ERROR_L, LOG_WARN_L, LOG_INFO_L, LOG_DEBUG_L };

struct log {
	const char *svc;	   /* borrowed for life: "master" */
	const struct clock *clock; /* NULL: the real one */
	int fd;			   /* 2 unless a test captures it */
	void *priv_capture;	   /* test hook: see log_capture */
};

/* Where a line is written in the source; counts repeats. */
struct log_site {
	uint64_t last_ns;
	uint32_t suppressed;
};

void log_set_level(enum log_level max);
enum log_level log_get_level(void);
/* "error" "warn" "info" "debug"; false when it is none of these. */
bool log_level_parse(const char *s, enum log_level *out);
void log_write(const struct log *l, struct log_site *site, enum log_level level,
	       const char *topic, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* Lines of l go to fn instead of the descriptor; fn NULL ends it. */
struct log_capture {
	void (*fn)(struct log_capture *c, const char *line, size_t n);
};
void log_set_capture(struct log *l, struct log_capture *c);

#define LOG_AT(l, lvl, topic, ...)                                     \
	do {                                                           \
		static struct log_site site_;                          \
		if ((lvl) <= log_get_level())                          \
			log_write(l, &site_, lvl, topic, __VA_ARGS__); \
	} while (0)
#define LOG_ERROR(l, topic, ...) LOG_AT(l, LOG_ERROR_L, topic, __VA_ARGS__)
#define LOG_WARN(l, topic, ...)	 LOG_AT(l, LOG_WARN_L, topic, __VA_ARGS__)
#define LOG_INFO(l, topic, ...)	 LOG_AT(l, LOG_INFO_L, topic, __VA_ARGS__)
#define LOG_DEBUG(l, topic, ...) LOG_AT(l, LOG_DEBUG_L, topic, __VA_ARGS__)
