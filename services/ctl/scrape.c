/* SPDX-License-Identifier: Apache-2.0 */
#include "scrape.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 16384, ADDR_BYTES = 80 };

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- one exchange ---- */

/* Numeric addresses alone: nothing is looked up. */
static struct addrinfo *resolve(const char *addr)
{
	static const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
					       .ai_socktype = SOCK_STREAM };
	char host[ADDR_BYTES];
	const char *colon = strrchr(addr, ':');
	struct addrinfo *out = NULL;
	if (!colon || (size_t)(colon - addr) >= sizeof(host))
		return NULL;
	bool six = addr[0] == '[' && colon > addr + 1 && colon[-1] == ']';
	snprintf(host, sizeof(host), "%.*s", (int)(colon - addr) - (six ? 2 : 0),
		 addr + (six ? 1 : 0));
	return getaddrinfo(host, colon + 1, &hints, &out) == 0 ? out : NULL;
}

static void hang_up(struct scrape *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

static void dial(struct scrape *s)
{
	struct addrinfo *to = s->addr[0] ? resolve(s->addr) : NULL;
	s->fd = -1;
	s->ok = s->sent = false;
	s->took_ns = 0;
	s->answer = BUF_INIT(SCRAPE_BYTES_MAX);
	if (!to)
		return;
	s->begin_ns = now_ns();
	s->fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd >= 0 && connect(s->fd, to->ai_addr, to->ai_addrlen) != 0 &&
	    errno != EINPROGRESS)
		hang_up(s);
	freeaddrinfo(to);
}

static void say(struct scrape *s)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n",
			 s->path);
	if (n < 0 || (size_t)n >= sizeof(text) ||
	    send(s->fd, text, (size_t)n, MSG_NOSIGNAL) != n)
		hang_up(s);
	s->sent = true;
}

/* The answer is whole: its head goes. */
static void whole(struct scrape *s)
{
	struct buf *b = &s->answer;
	const uint8_t *body = b->n ? memmem(b->p, b->n, "\r\n\r\n", 4) : NULL;
	s->took_ns = now_ns() - s->begin_ns;
	s->ok = body && b->n > 12 && memcmp(b->p, "HTTP/1.", 7) == 0 &&
		memcmp(b->p + 8, " 200", 4) == 0;
	if (s->ok) {
		b->n -= (size_t)(body + 4 - b->p);
		memmove(b->p, body + 4, b->n);
	}
	hang_up(s);
}

static void hear(struct scrape *s)
{
	uint8_t *p = buf_room(&s->answer, READ_BYTES);
	ssize_t n = p ? recv(s->fd, p, READ_BYTES, 0) : -1;
	if (n > 0)
		buf_advance(&s->answer, (size_t)n);
	else if (n == 0)
		whole(s);
	else if (!p || (errno != EAGAIN && errno != EINTR))
		hang_up(s);
}

void scrape_all(struct scrape *v, size_t n, uint64_t ms)
{
	struct pollfd p[SCRAPE_AT_ONCE];
	uint64_t end = clock_after_ms(now_ns(), ms), left;
	assert(n <= SCRAPE_AT_ONCE);
	for (size_t i = 0; i < n; i++)
		dial(&v[i]);
	while ((left = clock_left_ms(end, now_ns())) > 0) {
		size_t open = 0;
		for (size_t i = 0; i < n; i++) {
			short want = v[i].sent ? POLLIN : POLLOUT;
			p[i] = (struct pollfd){ .fd = v[i].fd, .events = want };
			open += v[i].fd >= 0;
		}
		if (open == 0 || (poll(p, n, (int)MIN_OF(left, 60000u)) < 0 && errno != EINTR))
			break;
		for (size_t i = 0; i < n; i++) {
			if (v[i].fd < 0 || !p[i].revents)
				continue;
			if (v[i].sent)
				hear(&v[i]);
			else
				say(&v[i]);
		}
	}
	for (size_t i = 0; i < n; i++)
		hang_up(&v[i]);
}

void scrape_fini(struct scrape *s)
{
	buf_fini(&s->answer);
	s->ok = false;
}

/* ---- what stands in it ---- */

/* The line after the one at p; NULL: that was the last. */
static const char *next_line(const char *p, const char *end)
{
	const char *nl = memchr(p, '\n', (size_t)(end - p));
	return nl && nl + 1 < end ? nl + 1 : NULL;
}

static bool number(const char *p, const char *end, double *out)
{
	char text[48], *stop;
	size_t n = MIN_OF((size_t)(end - p), sizeof(text) - 1);
	memcpy(text, p, n);
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	*out = strtod(text, &stop);
	return stop != text && *stop == '\0';
}

bool scrape_value(struct bytes page, const char *name, double *out)
{
	const char *p = (const char *)page.p, *end = p + page.n;
	size_t n = strlen(name);
	double v;
	for (; page.n && p; p = next_line(p, end))
		if ((size_t)(end - p) > n + 1 && memcmp(p, name, n) == 0 && p[n] == ' ' &&
		    number(p + n + 1, end, &v)) {
			*out = v;
			return true;
		}
	return false;
}

bool scrape_hist(struct bytes page, const char *name, struct scrape_hist *out)
{
	char head[160];
	const char *p = (const char *)page.p, *end = p + page.n;
	int len = snprintf(head, sizeof(head), "%s_bucket{le=\"", name);
	size_t n = (size_t)len;
	struct scrape_hist h = { 0 };
	for (; page.n && p; p = next_line(p, end)) {
		if ((size_t)(end - p) <= n || memcmp(p, head, n) != 0)
			continue;
		const char *le = p + n, *close = memchr(le, '"', (size_t)(end - le));
		char bound[32];
		if (!close || end - close < 4 || h.n == SCRAPE_BUCKETS ||
		    !number(close + 3, end, &h.count[h.n]))
			return false;
		snprintf(bound, sizeof(bound), "%.*s", (int)MIN_OF(close - le, 31), le);
		h.le[h.n++] = strcmp(bound, "+Inf") == 0 ? INFINITY : strtod(bound, NULL);
	}
	if (h.n == 0 || !isinf(h.le[h.n - 1]))
		return false;
	*out = h;
	return true;
}

bool scrape_quantile(const struct scrape_hist *was, const struct scrape_hist *now, double share,
		     double *out)
{
	if (now->n == 0 || was->n != now->n)
		return false;
	double all = now->count[now->n - 1] - was->count[now->n - 1];
	if (all < 1)
		return false;
	for (size_t i = 0; i + 1 < now->n; i++)
		if (now->count[i] - was->count[i] >= share * all) {
			*out = now->le[i];
			return true;
		}
	return false;
}
