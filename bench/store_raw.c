/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of data lanes: the same bytes over plain sockets of loopback, from a set larger than L3 in
 * another process to one here, a thread and a connection each side and share. Nobody hashes, frames or
 * asks. Thread: main's.
 */
#include "store_bed.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

struct raw_ask { /* blocks first, first + step, ... of 1 MiB, count of them */
	uint32_t first, step, count, set_mib;
};

/* ---- the process that sends ---- */

struct sender {
	int fd;
	const uint8_t *set;
};

static bool read_all(int fd, void *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t r = recv(fd, (uint8_t *)p + at, n - at, 0);
		if (r <= 0)
			return false;
		at += (size_t)r;
	}
	return true;
}

static void *send_blocks(void *arg)
{
	struct sender s = *(struct sender *)arg;
	struct raw_ask a;
	free(arg);
	while (read_all(s.fd, &a, sizeof(a)))
		for (uint32_t i = 0, k = a.first; i < a.count; i++, k += a.step) {
			const uint8_t *p = s.set + (size_t)(k * 101 % a.set_mib) * MIB;
			for (size_t at = 0; at < MIB;) {
				ssize_t r = send(s.fd, p + at, MIB - at, MSG_NOSIGNAL);
				if (r <= 0)
					return NULL;
				at += (size_t)r;
			}
		}
	close(s.fd);
	return NULL;
}

bool bed_raw_main(int argc, char **argv)
{
	pthread_t t;
	if (argc != 4 || strcmp(argv[1], "--raw") != 0)
		return false;
	int listener = atoi(argv[2]);
	size_t n = (size_t)atoi(argv[3]) * MIB;
	uint8_t *set =
		mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (set == MAP_FAILED)
		return true;
	for (size_t i = 0; i < n; i += 8)
		memcpy(set + i, &(uint64_t){ i * 0x9e3779b97f4a7c15u }, 8);
	for (;;) {
		struct sender *s = malloc(sizeof(*s));
		int on = 1;
		if (!s)
			return true;
		*s = (struct sender){ accept(listener, NULL, NULL), set };
		(void)setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (s->fd < 0 || pthread_create(&t, NULL, send_blocks, s) != 0)
			return true;
		pthread_detach(t);
	}
}

/* ---- here ---- */

void bed_raw_open(struct bed_raw *r, unsigned conns, unsigned set_mib)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	char fd[16], mib[16];
	int on = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (struct sockaddr *)&a, n) != 0 || listen(l, 8) != 0 ||
	    getsockname(l, (struct sockaddr *)&a, &n) != 0)
		bed_die("raw sockets", strerror(errno));
	snprintf(fd, sizeof(fd), "%d", l);
	snprintf(mib, sizeof(mib), "%u", set_mib);
	r->pid = fork();
	if (r->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/proc/self/exe", "bench_store", "--raw", fd, mib, (char *)NULL);
		_exit(127);
	}
	close(l);
	r->set_mib = set_mib;
	for (r->n = 0; r->n < conns; r->n++) {
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof(a)) != 0)
			bed_die("raw sockets", strerror(errno));
		(void)setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		r->fd[r->n] = s;
	}
}

void bed_raw_close(struct bed_raw *r)
{
	for (unsigned i = 0; i < r->n; i++)
		close(r->fd[i]);
	if (r->pid > 0) {
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
	}
}

struct share {
	const struct bed_raw *r;
	pthread_t thread;
	unsigned i, count;
	uint8_t *to;
};

static void *take_share(void *arg)
{
	const struct share *s = arg;
	struct raw_ask a = { s->i, s->r->n, s->count, s->r->set_mib };
	if (send(s->r->fd[s->i], &a, sizeof(a), MSG_NOSIGNAL) != sizeof(a))
		bed_die("raw sockets", strerror(errno));
	for (uint32_t i = 0, k = s->i; i < s->count; i++, k += s->r->n)
		if (!read_all(s->r->fd[s->i], s->to + (size_t)(k * 37 % s->r->set_mib) * MIB,
			      MIB))
			bed_die("raw sockets", "the sender has gone");
	return NULL;
}

double bed_raw_run(const struct bed_raw *r, uint8_t *to, unsigned blocks)
{
	struct share s[BED_RAW_MAX];
	double begin = bed_now();
	for (unsigned i = 0; i < r->n; i++) {
		s[i] = (struct share){ .r = r, .i = i, .count = blocks / r->n, .to = to };
		if (pthread_create(&s[i].thread, NULL, take_share, &s[i]) != 0)
			bed_die("thread", "none");
	}
	for (unsigned i = 0; i < r->n; i++)
		pthread_join(s[i].thread, NULL);
	return (double)(blocks / r->n * r->n) * MIB / (bed_now() - begin);
}
