/* SPDX-License-Identifier: Apache-2.0 */
#include "svc/beat_priv.h"

#include "loop/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union beat_sockaddr {
	struct sockaddr sa;
	struct sockaddr_un un;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static enum err parse_unix(const char *path, union beat_sockaddr *out, socklen_t *n,
			   struct why *why)
{
	size_t len = strlen(path);
	if (path[0] != '/')
		return why_set(why, ERR_INVALID_PARAMS, "unix:%s: not an absolute path", path);
	if (len >= sizeof(out->un.sun_path))
		return why_set(why, ERR_TOO_LARGE,
			       "%s: a socket's path has at most %zu bytes; use --run-dir", path,
			       sizeof(out->un.sun_path) - 1);
	out->un.sun_family = AF_UNIX;
	memcpy(out->un.sun_path, path, len + 1);
	*n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
	return ERR_NONE;
}

/* HOST:PORT or [HOST]:PORT, numeric: a name server's delay has no place on this path (L1). */
static enum err parse_udp(const char *text, union beat_sockaddr *out, socklen_t *n,
			  struct why *why)
{
	char host[64];
	const char *colon = strrchr(text, ':');
	const char *end = colon;
	if (colon && text[0] == '[' && colon > text + 1 && colon[-1] == ']') {
		text++;
		end = colon - 1;
	}
	char *rest;
	unsigned long port = colon ? strtoul(colon + 1, &rest, 10) : 0;
	if (!colon || rest == colon + 1 || *rest || port > UINT16_MAX ||
	    (size_t)(end - text) >= sizeof(host))
		return why_set(why, ERR_INVALID_PARAMS, "udp://%s: not HOST:PORT", text);
	memcpy(host, text, (size_t)(end - text));
	host[end - text] = 0;
	if (strcmp(host, "localhost") == 0)
		snprintf(host, sizeof(host), "127.0.0.1");
	if (inet_pton(AF_INET, host, &out->in.sin_addr) == 1) {
		out->in.sin_family = AF_INET;
		out->in.sin_port = htons((uint16_t)port);
		*n = sizeof(out->in);
		return ERR_NONE;
	}
	if (inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1) {
		out->in6.sin6_family = AF_INET6;
		out->in6.sin6_port = htons((uint16_t)port);
		*n = sizeof(out->in6);
		return ERR_NONE;
	}
	return why_set(why, ERR_INVALID_PARAMS, "udp://%s: beats need a numeric address", text);
}

static enum err parse(const char *addr, union beat_sockaddr *out, socklen_t *n, struct why *why)
{
	*out = (union beat_sockaddr){ 0 };
	if (strncmp(addr, "unix:", 5) == 0)
		return parse_unix(addr + 5, out, n, why);
	if (strncmp(addr, "udp://", 6) == 0)
		return parse_udp(addr + 6, out, n, why);
	return why_set(why, ERR_INVALID_PARAMS, "%s: not unix:/PATH or udp://HOST:PORT", addr);
}

static enum err sys_fail(const char *addr, const char *what, struct why *why)
{
	int sys = errno;
	return why_set(why, err_from_errno(sys), "beats: cannot %s %s: %s", what, addr,
		       strerror(sys));
}

enum err beat_sock_listen(struct beat_sock *s, const char *addr, struct why *why)
{
	union beat_sockaddr a;
	socklen_t n = 0;
	*s = (struct beat_sock){ .fd = -1 };
	enum err e = parse(addr, &a, &n, why);
	if (e)
		return e;
	int fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return sys_fail(addr, "make a socket for", why);
	/* the folder is ours by its lock, so a socket that lies there is a dead run's */
	if (a.sa.sa_family == AF_UNIX)
		unlink(a.un.sun_path);
	if (bind(fd, &a.sa, n) != 0) {
		e = sys_fail(addr, "listen on", why);
		close(fd);
		return e;
	}
	s->fd = fd;
	if (a.sa.sa_family == AF_UNIX)
		snprintf(s->path, sizeof(s->path), "%s", a.un.sun_path);
	return ERR_NONE;
}

enum err beat_sock_dial(struct beat_sock *s, const char *to, const char *from, struct why *why)
{
	union beat_sockaddr a;
	socklen_t n = 0;
	*s = (struct beat_sock){ .fd = -1 };
	enum err e = parse(to, &a, &n, why);
	if (e)
		return e;
	if (a.sa.sa_family == AF_UNIX)
		return beat_sock_listen(s, from, why);
	s->fd = socket(a.sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0)
		return sys_fail(to, "make a socket for", why);
	/* connected: the kernel drops what others send; it fails only without any route */
	if (connect(s->fd, &a.sa, n) != 0) {
		e = sys_fail(to, "reach", why);
		beat_sock_close(s);
		return e;
	}
	return ERR_NONE;
}

bool beat_sock_send(const struct beat_sock *s, const char *to, const uint8_t *p, size_t n)
{
	union beat_sockaddr a;
	socklen_t len = 0;
	ssize_t r;
	if (parse(to, &a, &len, NULL) != ERR_NONE)
		return false;
	if (a.sa.sa_family == AF_UNIX)
		r = sendto(s->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL, &a.sa, len);
	else
		r = send(s->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	return r == (ssize_t)n;
}

void beat_sock_close(struct beat_sock *s)
{
	if (s->fd >= 0)
		close(s->fd);
	if (s->path[0])
		unlink(s->path);
	*s = (struct beat_sock){ .fd = -1 };
}

enum err beat_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg)
{
	int r = thread_start(t, NULL, name, fn, arg);
	return r == 0 ? ERR_NONE : err_from_errno(r);
}
