/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/exchange.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAGIC	   0x3158504du /* "MPX1" */
#define EP_BACKLOG 128

struct hello {
	uint32_t magic, rank, n_ranks, n_bytes;
	uint64_t epoch;
};

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- sockets ---- */

struct sock_exchange {
	struct ep_exchange x;
	int listen_fd; /* rank 0; -1 elsewhere */
	int *fds;      /* rank 0: [n_ranks] by rank, -1 when absent; else fds[0] is to rank 0 */
	char path[108];
};

/* Moves all n bytes by the deadline. */
static enum err move_all(int fd, void *p, size_t n, bool out, uint64_t end_us)
{
	char *at = p;
	while (n > 0) {
		uint64_t now = now_us();
		if (now >= end_us)
			return ERR_TIMED_OUT;
		struct pollfd pf = { .fd = fd, .events = out ? POLLOUT : POLLIN };
		int r = poll(&pf, 1, (int)MIN_OF((end_us - now) / 1000 + 1, (uint64_t)1000));
		if (r < 0 && errno != EINTR)
			return err_from_errno(errno);
		if (r <= 0)
			continue;
		ssize_t m = out ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
		if (m == 0)
			return ERR_CONN_LOST;
		if (m < 0) {
			if (errno == EAGAIN || errno == EINTR)
				continue;
			return err_from_errno(errno);
		}
		at += m;
		n -= (size_t)m;
	}
	return ERR_NONE;
}

/* "/path" or "host:port" -> address. */
static enum err parse_addr(const char *addr, struct sockaddr_storage *ss, socklen_t *n,
			   struct why *why)
{
	memset(ss, 0, sizeof(*ss));
	if (addr[0] == '/') {
		struct sockaddr_un *un = (struct sockaddr_un *)ss;
		if (strlen(addr) >= sizeof(un->sun_path))
			return why_set(
				why, ERR_INVALID_PARAMS,
				"exchange address %s is %zu bytes, a socket path has at most 107",
				addr, strlen(addr));
		un->sun_family = AF_UNIX;
		memcpy(un->sun_path, addr, strlen(addr) + 1);
		*n = sizeof(*un);
		return ERR_NONE;
	}
	char host[256];
	const char *colon = strrchr(addr, ':');
	if (!colon || (size_t)(colon - addr) >= sizeof(host))
		return why_set(why, ERR_INVALID_PARAMS,
			       "exchange address '%s' is neither /PATH nor HOST:PORT", addr);
	memcpy(host, addr, (size_t)(colon - addr));
	host[colon - addr] = 0;
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *ai = NULL;
	/* known on every machine, /etc/hosts or not */
	const char *known = strcasecmp(host, "localhost") == 0 ? "127.0.0.1" : host;
	int r = getaddrinfo(known, colon + 1, &hints, &ai);
	if (r != 0)
		return why_set(why, ERR_INVALID_PARAMS, "exchange address '%s': %s", addr,
			       gai_strerror(r));
	memcpy(ss, ai->ai_addr, ai->ai_addrlen);
	*n = ai->ai_addrlen;
	freeaddrinfo(ai);
	return ERR_NONE;
}

static void no_delay(int fd)
{
	int one = 1;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one,
			 sizeof(one)); /* not tcp: harmless */
}

static void sock_close(struct ep_exchange *x)
{
	struct sock_exchange *s = container_of(x, struct sock_exchange, x);
	uint32_t n = x->rank == 0 ? x->n_ranks : 1;
	for (uint32_t i = 0; s->fds && i < n; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	if (s->listen_fd >= 0)
		close(s->listen_fd);
	if (s->path[0])
		unlink(s->path);
	free(s->fds);
	free(s);
}

/* Rank 0: takes connections until all ranks are there. A stranger's bytes close its connection. */
static enum err accept_ranks(struct sock_exchange *s, uint64_t end_us, struct why *why)
{
	uint32_t missing = 0;
	for (uint32_t i = 1; i < s->x.n_ranks; i++)
		missing += s->fds[i] < 0;
	while (missing > 0) {
		uint64_t now = now_us();
		if (now >= end_us)
			return why_set(why, ERR_TIMED_OUT,
				       "bootstrap: %u of %u ranks did not connect in time",
				       missing, s->x.n_ranks);
		struct pollfd pf = { .fd = s->listen_fd, .events = POLLIN };
		if (poll(&pf, 1, (int)MIN_OF((end_us - now) / 1000 + 1, (uint64_t)1000)) <= 0)
			continue;
		int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		no_delay(fd);
		struct hello h;
		/* a silent stranger costs at most a second */
		uint64_t patience = MIN_OF(end_us, now_us() + 1000000);
		if (move_all(fd, &h, sizeof(h), false, patience) != ERR_NONE ||
		    h.magic != MAGIC || h.rank == 0 || h.rank >= s->x.n_ranks ||
		    h.n_ranks != s->x.n_ranks) {
			close(fd);
			continue;
		}
		if (s->fds[h.rank] >= 0)
			close(s->fds[h.rank]); /* a replaced process */
		else
			missing--;
		s->fds[h.rank] = fd;
	}
	return ERR_NONE;
}

static enum err dial_zero(struct sock_exchange *s, const struct sockaddr_storage *ss,
			  socklen_t n, const char *addr, uint64_t end_us, struct why *why)
{
	for (;;) {
		int fd = socket(ss->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return why_set(why, err_from_errno(errno), "bootstrap socket: %s",
				       strerror(errno));
		if (connect(fd, (const struct sockaddr *)ss, n) == 0) {
			no_delay(fd);
			struct hello h = { MAGIC, s->x.rank, s->x.n_ranks, 0, 0 };
			s->fds[0] = fd;
			return move_all(fd, &h, sizeof(h), true, end_us);
		}
		int sys = errno;
		close(fd);
		if (now_us() >= end_us)
			return why_set(why, ERR_TIMED_OUT,
				       "bootstrap: rank 0 does not answer at %s: %s", addr,
				       strerror(sys));
		usleep(20000);
	}
}

/* Rank 0 gathers from each rank in turn and sends the whole back. */
static enum err gather_zero(struct sock_exchange *s, struct hello *mine, void *all,
			    uint64_t end_us, struct why *why)
{
	size_t n = mine->n_bytes;
	enum err e = accept_ranks(s, end_us, why);
	for (uint32_t r = 1; r < s->x.n_ranks && e == ERR_NONE; r++) {
		struct hello h;
		e = move_all(s->fds[r], &h, sizeof(h), false, end_us);
		if (e == ERR_NONE && (h.magic != MAGIC || h.rank != r || h.n_bytes != n ||
				      h.epoch != mine->epoch))
			return why_set(
				why, ERR_CONFLICT,
				"bootstrap: rank %u gives %u bytes of epoch %llu, rank 0 %zu of epoch %llu",
				r, h.n_bytes, (unsigned long long)h.epoch, n,
				(unsigned long long)mine->epoch);
		if (e == ERR_NONE)
			e = move_all(s->fds[r], (char *)all + r * n, n, false, end_us);
		if (e != ERR_NONE) {
			close(s->fds[r]);
			s->fds[r] = -1;
			return why_set(why, e, "bootstrap: rank %u: %s", r, err_text(e));
		}
	}
	for (uint32_t r = 1; r < s->x.n_ranks && e == ERR_NONE; r++) {
		e = move_all(s->fds[r], all, n * s->x.n_ranks, true, end_us);
		if (e != ERR_NONE)
			return why_set(why, e, "bootstrap: answering rank %u: %s", r,
				       err_text(e));
	}
	return e;
}

static enum err sock_all_gather(struct ep_exchange *x, uint64_t epoch, const void *mine,
				size_t n, void *all, uint64_t timeout_us, struct why *why)
{
	struct sock_exchange *s = container_of(x, struct sock_exchange, x);
	if (n > EXCHANGE_BLOB_MAX)
		return why_set(why, ERR_TOO_LARGE, "bootstrap blob is %zu bytes, at most %d", n,
			       EXCHANGE_BLOB_MAX);
	uint64_t end_us = now_us() + timeout_us;
	struct hello h = { MAGIC, x->rank, x->n_ranks, (uint32_t)n, epoch };
	if (x->rank == 0) {
		memcpy(all, mine, n);
		return gather_zero(s, &h, all, end_us, why);
	}
	enum err e = move_all(s->fds[0], &h, sizeof(h), true, end_us);
	if (e == ERR_NONE)
		e = move_all(s->fds[0], (void *)(uintptr_t)mine, n, true, end_us);
	if (e == ERR_NONE)
		e = move_all(s->fds[0], all, n * x->n_ranks, false, end_us);
	return e == ERR_NONE ? e : why_set(why, e, "bootstrap: rank 0: %s", err_text(e));
}

static enum err listen_zero(struct sock_exchange *s, const struct sockaddr_storage *ss,
			    socklen_t n, const char *addr, struct why *why)
{
	s->listen_fd = socket(ss->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s->listen_fd < 0)
		return why_set(why, err_from_errno(errno), "bootstrap socket: %s",
			       strerror(errno));
	int one = 1;
	(void)setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(s->listen_fd, (const struct sockaddr *)ss, n) != 0 ||
	    listen(s->listen_fd, EP_BACKLOG) != 0)
		return why_set(why, err_from_errno(errno), "bootstrap: cannot listen at %s: %s",
			       addr, strerror(errno));
	if (addr[0] == '/')
		snprintf(s->path, sizeof(s->path), "%s", addr);
	return ERR_NONE;
}

enum err exchange_socket(const char *addr, uint32_t rank, uint32_t n_ranks, uint64_t timeout_us,
			 struct ep_exchange **out, struct why *why)
{
	struct sockaddr_storage ss;
	socklen_t n = 0;
	if (n_ranks == 0 || rank >= n_ranks)
		return why_set(why, ERR_INVALID_PARAMS, "rank is %u, allowed are 0 to %u", rank,
			       n_ranks ? n_ranks - 1 : 0);
	enum err e = parse_addr(addr, &ss, &n, why);
	if (e != ERR_NONE)
		return e;
	struct sock_exchange *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->x = (struct ep_exchange){ rank, n_ranks, sock_all_gather, sock_close };
	s->listen_fd = -1;
	uint32_t n_fds = rank == 0 ? n_ranks : 1;
	s->fds = malloc(n_fds * sizeof(int));
	for (uint32_t i = 0; s->fds && i < n_fds; i++)
		s->fds[i] = -1;
	uint64_t end_us = now_us() + timeout_us;
	if (!s->fds)
		e = ERR_NO_MEMORY;
	else if (rank == 0)
		e = listen_zero(s, &ss, n, addr, why);
	else
		e = dial_zero(s, &ss, n, addr, end_us, why);
	if (e != ERR_NONE) {
		sock_close(&s->x);
		return e;
	}
	*out = &s->x;
	return ERR_NONE;
}

/* ---- ranks of one process ---- */

struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint32_t n_ranks, refs, here;
	uint64_t round, epoch;
	size_t n;
	enum err err[2]; /* by parity of the round: a quick rank may be one round ahead */
	uint8_t blobs[][EXCHANGE_BLOB_MAX]; /* [2][n_ranks] */
};

struct local_exchange {
	struct ep_exchange x;
	struct meeting *m;
};

static enum err local_wait(struct meeting *m, uint64_t round, uint64_t timeout_us,
			   struct why *why)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	uint64_t ns = (uint64_t)t.tv_nsec + timeout_us % 1000000 * 1000;
	t.tv_sec += (time_t)(timeout_us / 1000000 + ns / 1000000000);
	t.tv_nsec = (long)(ns % 1000000000);
	while (m->round == round)
		if (pthread_cond_timedwait(&m->turn, &m->lock, &t) == ETIMEDOUT &&
		    m->round == round) {
			uint32_t here = m->here--;
			return why_set(why, ERR_TIMED_OUT,
				       "bootstrap: %u of %u ranks did not come",
				       m->n_ranks - here, m->n_ranks);
		}
	return ERR_NONE;
}

static enum err local_all_gather(struct ep_exchange *x, uint64_t epoch, const void *mine,
				 size_t n, void *all, uint64_t timeout_us, struct why *why)
{
	struct meeting *m = container_of(x, struct local_exchange, x)->m;
	if (n > EXCHANGE_BLOB_MAX)
		return why_set(why, ERR_TOO_LARGE, "bootstrap blob is %zu bytes, at most %d", n,
			       EXCHANGE_BLOB_MAX);
	pthread_mutex_lock(&m->lock);
	uint64_t round = m->round;
	uint8_t(*blobs)[EXCHANGE_BLOB_MAX] = m->blobs + (round & 1) * m->n_ranks;
	enum err *err = &m->err[round & 1];
	if (m->here == 0) {
		m->n = n;
		m->epoch = epoch;
		*err = ERR_NONE;
	} else if (m->n != n || m->epoch != epoch) {
		*err = ERR_CONFLICT;
	}
	memcpy(blobs[x->rank], mine, n);
	enum err e = ERR_NONE;
	if (++m->here == m->n_ranks) {
		m->here = 0;
		m->round++;
		pthread_cond_broadcast(&m->turn);
	} else {
		e = local_wait(m, round, timeout_us, why);
	}
	if (e == ERR_NONE && *err != ERR_NONE)
		e = why_set(why, *err, "bootstrap: the ranks disagree on size or epoch");
	for (uint32_t r = 0; r < m->n_ranks && e == ERR_NONE; r++)
		memcpy((char *)all + r * n, blobs[r], n);
	pthread_mutex_unlock(&m->lock);
	return e;
}

static void local_close(struct ep_exchange *x)
{
	struct local_exchange *l = container_of(x, struct local_exchange, x);
	struct meeting *m = l->m;
	pthread_mutex_lock(&m->lock);
	bool last = --m->refs == 0; // NOLINT(clang-analyzer-unix.Malloc): counted
	pthread_mutex_unlock(&m->lock);
	if (last) {
		pthread_cond_destroy(&m->turn);
		pthread_mutex_destroy(&m->lock);
		free(m);
	}
	free(l);
}

enum err exchange_local(uint32_t n_ranks, struct ep_exchange **out)
{
	struct meeting *m = calloc(1, sizeof(*m) + (size_t)2 * n_ranks * EXCHANGE_BLOB_MAX);
	if (!m)
		return ERR_NO_MEMORY;
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->turn, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&m->lock, NULL);
	m->n_ranks = m->refs = n_ranks;
	for (uint32_t r = 0; r < n_ranks; r++) {
		struct local_exchange *l = calloc(1, sizeof(*l));
		if (!l) {
			for (uint32_t i = 0; i < r; i++)
				free(container_of(out[i], struct local_exchange, x));
			pthread_cond_destroy(&m->turn);
			pthread_mutex_destroy(&m->lock);
			free(m);
			return ERR_NO_MEMORY;
		}
		l->x = (struct ep_exchange){ r, n_ranks, local_all_gather, local_close };
		l->m = m;
		out[r] = &l->x;
	}
	return ERR_NONE;
}
