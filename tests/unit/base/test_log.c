/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one line each, bounded, quiet when they repeat. */
#include "base/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/leak.h"

struct capture {
	struct log_capture c;
	struct clock clock;
	uint64_t now_ns;
	unsigned n;
	char last[2048];
};

static void keep(struct log_capture *c, const char *line, size_t n)
{
	struct capture *k = container_of(c, struct capture, c);
	cr_assert(n < sizeof(k->last));
	memcpy(k->last, line, n);
	k->last[n] = '\0';
	k->n++;
}

static uint64_t cap_now(const struct clock *c)
{
	return container_of(c, struct capture, clock)->now_ns;
}

static uint64_t cap_wall(const struct clock *c)
{
	(void)c;
	return 1700000000123ull;
}

static struct log open_log(struct capture *k)
{
	*k = (struct capture){ .c.fn = keep,
			       .clock = { cap_now, cap_wall },
			       .now_ns = NS_PER_S };
	struct log l = { .svc = "master", .clock = &k->clock, .fd = 2 };
	log_set_capture(&l, &k->c);
	return l;
}

Test(log, one_logfmt_line, .timeout = 5)
{
	struct capture k;
	struct log l = open_log(&k);
	LOG_WARN(&l, "evict", "op=%d seg=%u", 812, 12u);
	cr_expect_str_eq(k.last,
			 "ts=2023-11-14T22:13:20.123Z level=warn svc=master topic=evict "
			 "op=812 seg=12\n");
	LOG_ERROR(&l, "x", "a=1\nlevel=error b=\x1b[31m\x7f\r");
	cr_expect_eq(strchr(k.last, '\n'), k.last + strlen(k.last) - 1);
	cr_expect(strstr(k.last, "a=1?level=error b=?[31m??"), "%s", k.last);
}

Test(log, long_lines_are_cut, .timeout = 5)
{
	struct capture k;
	struct log l = open_log(&k);
	char big[5000];
	memset(big, 'x', sizeof(big));
	big[4999] = '\0';
	LOG_WARN(&l, "t", "v=%s", big);
	cr_expect_leq(strlen(k.last), 1024);
	cr_expect_eq(k.last[strlen(k.last) - 1], '\n');
}

Test(log, levels, .timeout = 5)
{
	struct capture k;
	struct log l = open_log(&k);
	enum log_level level = LOG_WARN_L;
	LOG_DEBUG(&l, "t", "x=1");
	cr_expect_eq(k.n, 0);
	log_set_level(LOG_DEBUG_L);
	LOG_DEBUG(&l, "t", "x=1");
	cr_expect_eq(k.n, 1);
	log_set_level(LOG_ERROR_L);
	LOG_WARN(&l, "t", "x=1");
	cr_expect_eq(k.n, 1);
	cr_expect(log_level_parse("debug", &level) && level == LOG_DEBUG_L);
	cr_expect(!log_level_parse("DEBUG", &level) && !log_level_parse("", &level));
	cr_expect_eq(level, LOG_DEBUG_L);
	cr_expect_eq(log_get_level(), LOG_ERROR_L);
}

static void say(struct log *l)
{
	LOG_WARN(l, "t", "x=1");
}

Test(log, repeats_are_counted, .timeout = 5)
{
	struct capture k;
	struct log l = open_log(&k);
	for (int i = 0; i < 100; i++)
		say(&l);
	cr_expect_eq(k.n, 10, "%u", k.n);
	k.now_ns += NS_PER_S;
	say(&l);
	cr_expect_eq(k.n, 11);
	cr_expect(strstr(k.last, " repeated=90\n"), "%s", k.last);
	/* another line is not held back by it */
	LOG_WARN(&l, "t", "y=1");
	cr_expect_eq(k.n, 12);
	k.now_ns += NS_PER_S;
	say(&l);
	cr_expect(!strstr(k.last, "repeated"), "%s", k.last);
}

Test(log, to_a_descriptor, .timeout = 5)
{
	int p[2];
	char got[200] = { 0 };
	cr_assert_eq(pipe(p), 0);
	struct log l = { .svc = "agent", .fd = p[1] };
	LOG_INFO(&l, "start", "trust=node");
	cr_assert_gt(read(p[0], got, sizeof(got) - 1), 0);
	cr_expect(strstr(got, "level=info svc=agent topic=start trust=node\n"));
	close(p[0]);
	close(p[1]);
	NO_LEAKS();
}
