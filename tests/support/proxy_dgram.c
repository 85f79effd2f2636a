/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/proxy_dgram.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int bound(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	memcpy(sa.sun_path, path, strlen(path) + 1);
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
		return fd;
	close(fd);
	return -1;
}

bool dgram_open(struct dgram_route *r, const char *at, const char *to, int a, int b)
{
	if (strlen(at) + 4 >= sizeof(r->at) || strlen(to) >= sizeof(r->to))
		return false;
	*r = (struct dgram_route){ .a = a, .b = b };
	memcpy(r->at, at, strlen(at) + 1);
	memcpy(r->to, to, strlen(to) + 1);
	r->fd = bound(at);
	return r->fd >= 0;
}

void dgram_close(struct dgram_route *r)
{
	for (size_t i = 0; i < r->n_senders; i++) {
		close(r->senders[i].fd);
		unlink(r->senders[i].own);
	}
	close(r->fd);
	unlink(r->at);
}

size_t dgram_poll(const struct dgram_route *r, struct pollfd *out)
{
	size_t n = 0;
	out[n++] = (struct pollfd){ .fd = r->fd, .events = POLLIN };
	for (size_t i = 0; i < r->n_senders; i++)
		out[n++] = (struct pollfd){ .fd = r->senders[i].fd, .events = POLLIN };
	return n;
}

/* The socket that speaks for the sender at path; -1: too many. */
static int speaker(struct dgram_route *r, const char *path)
{
	for (size_t i = 0; i < r->n_senders; i++)
		if (strcmp(r->senders[i].path, path) == 0)
			return r->senders[i].fd;
	if (r->n_senders == DGRAM_SENDERS)
		return -1;
	size_t i = r->n_senders;
	snprintf(r->senders[i].own, sizeof(r->senders[i].own), "%s%zu", r->at, i);
	r->senders[i].fd = bound(r->senders[i].own);
	if (r->senders[i].fd < 0)
		return -1;
	memcpy(r->senders[i].path, path, strlen(path) + 1);
	r->n_senders++;
	return r->senders[i].fd;
}

static void pass(struct dgram_route *r, int from, const char *to, const void *p, size_t n)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	memcpy(sa.sun_path, to, strlen(to) + 1);
	ssize_t w = sendto(from, p, n, MSG_NOSIGNAL, (struct sockaddr *)&sa, sizeof(sa));
	*(w == (ssize_t)n ? &r->passed : &r->lost) += 1;
}

void dgram_work(struct dgram_route *r, bool up, bool down)
{
	char bytes[DGRAM_BYTES];
	struct sockaddr_un sa = { 0 };
	socklen_t len = sizeof(sa);
	ssize_t n;
	while ((n = recvfrom(r->fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&sa, &len)) >=
	       0) {
		int fd = up && sa.sun_path[0] ? speaker(r, sa.sun_path) : -1;
		if (fd >= 0)
			pass(r, fd, r->to, bytes, (size_t)n);
		else
			r->lost++;
		memset(&sa, 0, sizeof(sa));
		len = sizeof(sa);
	}
	for (size_t i = 0; i < r->n_senders; i++)
		while ((n = recv(r->senders[i].fd, bytes, sizeof(bytes), 0)) >= 0) {
			if (down)
				pass(r, r->fd, r->senders[i].path, bytes, (size_t)n);
			else
				r->lost++;
		}
}
