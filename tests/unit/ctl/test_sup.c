/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts of the supervisor, and its files. */
#include "ctl_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* I3: doubles from 50 ms to 5 s while it dies early; one proven life starts again. */
Test(sup, backoff_doubles_and_forgets, .timeout = 10)
{
	static const uint64_t want[] = { 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000 };
	struct backoff b = { 0 };
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		cr_expect_eq(backoff_died(&b, false), want[i]);
	cr_expect_eq(backoff_died(&b, true), 50);
	cr_expect_eq(backoff_died(&b, true), 50);
	cr_expect_eq(backoff_died(&b, false), 100);
	struct backoff fresh = { 0 };
	cr_expect_eq(backoff_died(&fresh, true), 50);
}

static const struct probe_row {
	const char *text;
	bool good, ready;
	size_t n_reasons;
} probe_rows[] = {
	{ "HTTP/1.1 200 OK\r\nA: b\r\n\r\n{\"ready\":true,\"reasons\":[]}", true, true, 0 },
	{ "HTTP/1.0 503 No\r\n\r\n{\"ready\":false,\"reasons\":[\"a\",\"b\"]}", true, false,
	  2 },
	/* the status line and the body must agree before it counts as ready */
	{ "HTTP/1.0 503 No\r\n\r\n{\"ready\":true,\"reasons\":[]}", true, false, 0 },
	{ "HTTP/1.0 200 OK\r\n\r\n{\"ready\":false,\"reasons\":[]}", true, false, 0 },
	{ "HTTP/1.0 200 OK\r\n\r\n{\"ready\":1,\"reasons\":[]}", false, false, 0 },
	{ "HTTP/1.0 200 OK\r\n\r\n{\"ready\":true}", false, false, 0 },
	{ "HTTP/1.0 200 OK\r\n\r\n{\"ready\":true,\"reasons\":[1,{},\"c\"]}", true, true, 1 },
	{ "HTTP/1.0 200 OK\r\n\r\n[]", false, false, 0 },
	{ "HTTP/1.0 200 OK\r\n\r\n", false, false, 0 },
	{ "HTTP/1.0 200 OK\r\n", false, false, 0 },
	{ "HTTP/2 200\r\n\r\n{\"ready\":true,\"reasons\":[]}", false, false, 0 },
	{ "", false, false, 0 },
	{ "\r\n\r\n{\"ready\":true,\"reasons\":[]}", false, false, 0 },
};

Test(sup, probe_reads_answers, .timeout = 10)
{
	for (size_t i = 0; i < ARRAY_LEN(probe_rows); i++) {
		const struct probe_row *r = &probe_rows[i];
		struct reasons why = { 0 };
		bool ready = false;
		bool good = probe_parse(r->text, strlen(r->text), &ready, &why);
		cr_expect_eq(good, r->good, "%s", r->text);
		if (!good)
			continue;
		cr_expect_eq(ready, r->ready, "%s", r->text);
		cr_expect_eq(why.n, r->n_reasons, "%s", r->text);
	}
	NO_LEAKS();
}

Test(sup, probe_bounds_reasons, .timeout = 10)
{
	char text[8192];
	struct reasons why = { 0 };
	bool ready = true;
	size_t n = (size_t)snprintf(text, sizeof(text),
				    "HTTP/1.0 503 No\r\n\r\n{\"ready\":false,\"reasons\":[");
	for (int i = 0; i < 20; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s\"%0200d\"", i ? "," : "",
				      i);
	n += (size_t)snprintf(text + n, sizeof(text) - n, "]}");
	cr_assert(probe_parse(text, n, &ready, &why));
	cr_expect_eq(why.n, SUP_REASONS_MAX);
	cr_expect_eq(strlen(why.text[0]), SUP_REASON_BYTES - 1);
	cr_expect_not(ready);
}

/* Every prefix and every flipped byte of a good answer: no crash, no false "ready". */
Test(sup, probe_survives_mutations, .timeout = 20)
{
	static const char good[] =
		"HTTP/1.0 503 No\r\n\r\n{\"ready\":false,\"reasons\":[\"a\",\"b\"]}";
	char text[sizeof(good)];
	for (size_t i = 0; i < sizeof(good) - 1; i++)
		for (int bit = 0; bit < 8; bit++) {
			struct reasons why = { 0 };
			bool ready = false;
			memcpy(text, good, sizeof(good));
			text[i] = (char)(text[i] ^ (1 << bit));
			if (probe_parse(text, sizeof(good) - 1, &ready, &why))
				cr_assert_not(ready);
			if (probe_parse(good, i, &ready, &why))
				cr_assert_not(ready);
		}
	NO_LEAKS();
}

/* ---- logs ---- */

static void grow(const struct scratch *s, size_t n)
{
	struct why why = { 0 };
	int fd = -1;
	char byte[1024] = { 'x' };
	cr_assert_eq(suplog_open(s->path, "master", &fd, &why), ERR_NONE, "%s", why.text);
	for (size_t i = 0; i < n; i += sizeof(byte))
		cr_assert_eq(write(fd, byte, sizeof(byte)), sizeof(byte));
	close(fd);
}

static long size_of(const struct scratch *s, const char *name)
{
	struct stat st;
	return stat(scratch_at(s, name), &st) == 0 ? (long)st.st_size : -1;
}

Test(sup, logs_rotate_four_deep, .timeout = 10)
{
	struct scratch s;
	scratch_init(&s);
	cr_expect_not(suplog_rotate(s.path, "master", 1024), "no file yet");
	grow(&s, 1024);
	cr_expect_not(suplog_rotate(s.path, "master", 1024), "at the limit, not above");
	for (long i = 2; i <= 6; i++) {
		grow(&s, (size_t)i * 1024 - (size_t)MAX_OF(size_of(&s, "master.log"), 0));
		cr_expect(suplog_rotate(s.path, "master", 1024));
		cr_expect_eq(size_of(&s, "master.log"), -1);
		cr_expect_eq(size_of(&s, "master.log.1"), i * 1024);
	}
	cr_expect_eq(size_of(&s, "master.log.2"), 5 * 1024);
	cr_expect_eq(size_of(&s, "master.log.3"), 4 * 1024);
	cr_expect_eq(size_of(&s, "master.log.4"), -1);
	struct stat st;
	cr_expect_eq(stat(scratch_at(&s, "master.log.1"), &st), 0);
	cr_expect_eq(st.st_mode & 0777, 0600);
	scratch_fini(&s);
}

/* A log that is a link to elsewhere is neither written through nor moved. */
Test(sup, logs_follow_no_links, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	int fd = -1;
	scratch_init(&s);
	scratch_write(&s, "target", "0123456789", 0600);
	cr_assert_eq(symlink(scratch_at(&s, "target"), scratch_at(&s, "master.log")), 0);
	cr_expect_neq(suplog_open(s.path, "master", &fd, &why), ERR_NONE);
	cr_expect_not(suplog_rotate(s.path, "master", 1));
	cr_expect_eq(size_of(&s, "target"), 10);
	scratch_fini(&s);
}

static void on_hup(int signum)
{
}

Test(sup, knows_who_catches_sighup, .timeout = 10)
{
	cr_expect_not(suplog_catches_hup(getpid()));
	signal(SIGHUP, on_hup);
	cr_expect(suplog_catches_hup(getpid()));
	cr_expect_not(suplog_catches_hup(0x7fffffff), "no such process");
}
