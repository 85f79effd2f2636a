/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking TCP client for tests: connect to "HOST:PORT", send raw bytes, read to the end or to
 * a time limit. Any thread. Fails the calling test by return value, never by exit.
 */
#pragma once

#include "base/def.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* -1 when it cannot connect. Reads and writes time out after 5 s. */
static inline int tcp_connect(const char *addr)
{
	const char *colon = strrchr(addr, ':');
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	a.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval tv = { .tv_sec = 5 };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static inline bool tcp_send(int fd, const char *text)
{
	size_t n = strlen(text);
	return send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* All until the peer closes or cap - 1 bytes; NUL-ended; returns the count. */
static inline size_t tcp_read_all(int fd, char *out, size_t cap)
{
	size_t n = 0;
	ssize_t r;
	while (n < cap - 1 && (r = recv(fd, out + n, cap - 1 - n, 0)) > 0)
		n += (size_t)r;
	out[n] = 0;
	return n;
}

/* True when the peer closed within `ms`. */
static inline bool tcp_closed_within(int fd, unsigned ms)
{
	struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	char c[256];
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	ssize_t r;
	while ((r = recv(fd, c, sizeof(c), 0)) > 0)
		continue;
	return r == 0 || (r < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

/* One HTTP request on a fresh connection; returns the status, or 0 without an answer. The whole
 * answer is in out, its body at *body (may be NULL). */
static inline int http_get(const char *addr, const char *method, const char *path, char *out,
			   size_t cap, const char **body)
{
	char req[512];
	int status = 0, fd = tcp_connect(addr);
	if (body)
		*body = "";
	if (fd < 0)
		return 0;
	snprintf(req, sizeof(req), "%s %s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
		 method, path);
	if (tcp_send(fd, req) && tcp_read_all(fd, out, cap) > 12)
		status = (int)strtol(out + 9, NULL, 10);
	close(fd);
	char *split = status ? strstr(out, "\r\n\r\n") : NULL;
	if (body && split)
		*body = split + 4;
	return status;
}
