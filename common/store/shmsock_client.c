/* SPDX-License-Identifier: Apache-2.0 */
/* The client's end of run/agent.fd: blocks, at most until its deadline (T7). */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "rpc/auth_crypto.h"
#include "store/shmsock_priv.h"

enum { TIMEOUT_DEFAULT_MS = 5000 };

struct client {
	const struct shmsock_ask *a;
	uint64_t deadline_ns;
	int fd;
	uint8_t nonce_agent[AUTH_NONCE_BYTES];
	struct shmsock_ask_msg ask;
	uint8_t key[AUTH_KEY_BYTES];
	int fds[SHMSOCK_FDS_MAX]; /* received */
	size_t n_fds;
	struct why *why;
};

static enum err late(const struct client *c, const char *step)
{
	return why_set(c->why, ERR_TIMED_OUT, "agent at %s: %s: the deadline passed",
		       c->a->path, step);
}

static enum err bad(const struct client *c, enum err e, const char *what)
{
	return why_set(c->why, e, "agent at %s: %s", c->a->path, what);
}

/* ---- the connection ---- */

static enum err connect_failed(const struct client *c, int sys)
{
	if (sys == EACCES || sys == EPERM)
		return bad(c, ERR_FORBIDDEN, "its socket is another user's");
	return why_set(c->why, ERR_UNREACHABLE, "agent at %s: %s; is it up?", c->a->path,
		       strerror(sys));
}

/* A full backlog says EAGAIN and wakes nobody. */
static enum err connect_socket(struct client *c)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = strlen(c->a->path);
	if (n == 0 || n >= sizeof(to.sun_path))
		return bad(c, ERR_INVALID_PARAMS, "its path must have 1..107 bytes");
	memcpy(to.sun_path, c->a->path, n);
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return connect_failed(c, errno);
	while (connect(c->fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		if (errno != EAGAIN && errno != EINTR)
			return connect_failed(c, errno);
		if (clock_real.now_ns(&clock_real) >= c->deadline_ns)
			return late(c, "connecting");
		(void)nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
	return ERR_NONE;
}

/* I1 of shmsock.h, from this side: who made that socket? */
static enum err check_agent(const struct client *c)
{
	struct ucred who;
	socklen_t n = sizeof(who);
	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid())
		return bad(c, ERR_FORBIDDEN, "another user listens there");
	return ERR_NONE;
}

/* ---- messages ---- */

static void take_fds(struct client *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
			if (c->n_fds < SHMSOCK_FDS_MAX)
				c->fds[c->n_fds++] = fd;
			else
				close(fd);
		}
	}
}

static void close_fds(struct client *c)
{
	for (size_t i = 0; i < c->n_fds; i++)
		close(c->fds[i]);
	c->n_fds = 0;
}

/* One message, with the descriptors that came along. */
static enum err receive(struct client *c, const char *step, uint8_t *out, struct bytes *in)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(SHMSOCK_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = out, .iov_len = SHMSOCK_MSG_MAX };
	for (;;) {
		struct pollfd p = { .fd = c->fd, .events = POLLIN };
		uint64_t left = clock_left_ms(c->deadline_ns, clock_real.now_ns(&clock_real));
		if (left == 0 || poll(&p, 1, (int)left) == 0)
			return late(c, step);
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.bytes,
				    .msg_controllen = sizeof(control.bytes) };
		ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			return bad(c, ERR_CONN_LOST, "it closed the connection");
		take_fds(c, &m);
		if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
			return bad(c, ERR_BAD_MESSAGE, "a message too long");
		*in = BYTES(out, (size_t)n);
		return ERR_NONE;
	}
}

/* The agent may refuse before it has heard us. */
static enum err refused(const struct client *c, struct bytes in, enum err otherwise)
{
	struct shmsock_grant g;
	if (shmsock_get_grant(in, &g) != ERR_NONE || g.status == 0)
		return bad(c, otherwise, "no message of this protocol");
	return why_set(c->why, (enum err)g.status, "agent at %s: refused: %s", c->a->path,
		       err_text((enum err)g.status));
}

static enum err take_challenge(struct client *c)
{
	uint8_t text[SHMSOCK_MSG_MAX];
	struct shmsock_challenge m;
	struct bytes in;
	enum err e = receive(c, "waiting for its challenge", text, &in);
	if (e)
		return e;
	e = shmsock_get_challenge(in, &m);
	if (e == ERR_VERSION_MISMATCH)
		return bad(c, e, "it speaks another version");
	if (e)
		return refused(c, in, e);
	memcpy(c->nonce_agent, m.nonce, sizeof(c->nonce_agent));
	return ERR_NONE;
}

static enum err send_ask(struct client *c)
{
	const struct shmsock_ask *a = c->a;
	uint8_t text[SHMSOCK_MSG_MAX];
	const char *tenant = a->role == ROLE_CLIENT ? a->tenant : NULL;
	c->ask.role = a->role;
	c->ask.write = a->write;
	memcpy(c->ask.instance, a->instance, sizeof(c->ask.instance));
	if (tenant)
		memcpy(c->ask.tenant, tenant, strnlen(tenant, TENANT_MAX));
	if (getrandom(c->ask.nonce, sizeof(c->ask.nonce), 0) != sizeof(c->ask.nonce))
		return bad(c, ERR_IO, "no random bytes");
	if (keyring_role_key(a->keys, 0, a->role, tenant, c->key) != ERR_NONE)
		return bad(c, ERR_FORBIDDEN, "our secret holds no key of that role and tenant");
	enum err e = shmsock_ask_proof(c->key, c->nonce_agent, &c->ask, c->ask.mac);
	if (e)
		return e;
	size_t n = shmsock_put_ask(text, &c->ask);
	if (send(c->fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
		return bad(c, ERR_CONN_LOST, "it closed the connection");
	return ERR_NONE;
}

static void fill(const struct client *c, const struct shmsock_grant *g, struct shmpool_fds *out)
{
	*out = (struct shmpool_fds){ .n_segments = g->n_segments,
				     .n_slots = g->n_slots,
				     .n_lanes = g->n_lanes,
				     .n_shards = g->n_shards,
				     .id = g->session,
				     .ctl = c->fds[0],
				     .gen = c->fds[1],
				     .session = c->fds[2] };
	memcpy(out->pool, g->pool, sizeof(out->pool));
	memcpy(out->bytes, g->bytes, sizeof(out->bytes));
	for (uint32_t i = 0; i < MEMPOOL_SEGMENTS_MAX; i++)
		out->data[i] = i < g->n_segments ? c->fds[3 + i] : -1;
}

static enum err take_grant(struct client *c, struct shmpool_fds *out)
{
	uint8_t text[SHMSOCK_MSG_MAX], want[32];
	struct shmsock_grant g;
	struct bytes in;
	enum err e = receive(c, "waiting for its grant", text, &in);
	if (e)
		return e;
	if (shmsock_get_grant(in, &g) != ERR_NONE || g.status != 0)
		return refused(c, in, ERR_BAD_MESSAGE);
	e = shmsock_grant_proof(c->key, c->nonce_agent, c->ask.nonce, &g, want);
	if (e)
		return e;
	if (CRYPTO_memcmp(want, g.mac, sizeof(want)) != 0)
		return bad(c, ERR_UNAUTHENTICATED, "its proof is wrong: it has another secret");
	if (c->n_fds != 3 + g.n_segments)
		return bad(c, ERR_BAD_MESSAGE, "too few or too many descriptors");
	fill(c, &g, out);
	c->n_fds = 0;
	return ERR_NONE;
}

enum err shmsock_ask(const struct shmsock_ask *a, struct shmpool_fds *fds, int *conn,
		     struct why *why)
{
	uint32_t ms = a->timeout_ms ? a->timeout_ms : TIMEOUT_DEFAULT_MS;
	struct client c = { .a = a, .fd = -1, .why = why };
	c.deadline_ns = clock_after_ms(clock_real.now_ns(&clock_real), ms);
	enum err e = connect_socket(&c);
	if (e == ERR_NONE)
		e = check_agent(&c);
	if (e == ERR_NONE)
		e = take_challenge(&c);
	if (e == ERR_NONE)
		e = send_ask(&c);
	if (e == ERR_NONE)
		e = take_grant(&c, fds);
	OPENSSL_cleanse(c.key, sizeof(c.key));
	close_fds(&c);
	if (e == ERR_NONE)
		*conn = c.fd;
	else if (c.fd >= 0)
		close(c.fd);
	return e;
}
