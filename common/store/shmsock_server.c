/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's end of run/agent.fd.
 *
 *   accepted -> CHALLENGE sent -> ASK checked -> GRANT sent -> open until the client goes
 *
 * A message fits any empty socket, so nothing is ever queued here: what cannot be sent at once ends the
 * connection.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <uv.h>

#include "base/list.h"
#include "rpc/auth_crypto.h"
#include "store/shmsock_priv.h"

enum { CONNS_DEFAULT = 1024, ASK_MS_DEFAULT = 5000, ACCEPTS_MAX = 16, REST_MS = 100 };

struct conn {
	struct list node;
	struct shmsock *s;
	uv_poll_t poll;
	struct timer timer; /* it has to ask by then */
	int fd;
	uint32_t session; /* 0: none yet */
	bool closing;
	uint8_t nonce[AUTH_NONCE_BYTES];
};

struct shmsock {
	struct shmsock_opts o;
	uv_poll_t poll;
	struct timer rest; /* no descriptors left: accept again then */
	int fd;
	struct list conns;
	uint32_t n_conns; /* with those that are closing */
	bool closing, poll_closed;
	struct auth_limit *limit;
	struct shmsock_counts counts;
	void (*closed)(void *ctx);
	void *ctx;
	char path[108];
};

/* ---- ends ---- */

static void maybe_gone(struct shmsock *s)
{
	if (!s->closing || !s->poll_closed || s->n_conns > 0)
		return;
	void (*closed)(void *ctx) = s->closed;
	void *ctx = s->ctx;
	auth_limit_free(s->limit);
	free(s);
	if (closed)
		closed(ctx);
}

static void on_conn_closed(uv_handle_t *h)
{
	struct conn *c = h->data;
	struct shmsock *s = c->s;
	close(c->fd);
	free(c);
	s->n_conns--;
	maybe_gone(s);
}

static void conn_close(struct conn *c)
{
	if (c->closing)
		return;
	c->closing = true;
	c->s->counts.open--;
	list_del(&c->node);
	timer_stop(c->s->o.loop, &c->timer);
	if (c->session != 0 && !c->s->closing)
		mempool_session_hint(c->s->o.pool, c->session);
	uv_close((uv_handle_t *)&c->poll, on_conn_closed);
}

static void on_late(struct timer *t)
{
	conn_close(container_of(t, struct conn, timer));
}

/* ---- sending ---- */

static size_t all_fds(const struct shmpool_fds *f, int out[SHMSOCK_FDS_MAX])
{
	size_t n = 0;
	out[n++] = f->ctl;
	out[n++] = f->gen;
	out[n++] = f->session;
	for (uint32_t i = 0; i < f->n_segments; i++)
		out[n++] = f->data[i];
	return n;
}

static bool send_msg(struct conn *c, const uint8_t *p, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(SHMSOCK_FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)p, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (n_fds > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(h), fds, n_fds * sizeof(int));
	}
	return sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n;
}

/* An error needs no proof: it gives nothing away. */
static void refuse(struct conn *c, enum err e)
{
	uint8_t text[SHMSOCK_MSG_MAX];
	size_t n = shmsock_put_grant(text, &(struct shmsock_grant){ .status = (uint32_t)e });
	(void)send_msg(c, text, n, NULL, 0);
	conn_close(c);
}

static bool send_grant(struct conn *c, const struct shmsock_ask_msg *m,
		       const uint8_t key[AUTH_KEY_BYTES], const struct shmpool_fds *f)
{
	uint8_t text[SHMSOCK_MSG_MAX];
	int fds[SHMSOCK_FDS_MAX];
	struct shmsock_grant g = { .session = f->id,
				   .n_segments = f->n_segments,
				   .n_slots = f->n_slots,
				   .n_lanes = f->n_lanes,
				   .n_shards = f->n_shards };
	memcpy(g.pool, f->pool, sizeof(g.pool));
	memcpy(g.bytes, f->bytes, sizeof(g.bytes));
	if (shmsock_grant_proof(key, c->nonce, m->nonce, &g, g.mac) != ERR_NONE)
		return false;
	size_t n = shmsock_put_grant(text, &g);
	return send_msg(c, text, n, fds, all_fds(f, fds));
}

/* ---- asking ---- */

static void grant(struct conn *c, const struct shmsock_ask_msg *m,
		  const uint8_t key[AUTH_KEY_BYTES])
{
	struct shmpool_fds f;
	int fds[SHMSOCK_FDS_MAX];
	enum err e = mempool_session(c->s->o.pool, m->write, &c->session, &f, NULL);
	if (e) {
		c->s->counts.refused_busy++;
		refuse(c, e);
		return;
	}
	bool sent = send_grant(c, m, key, &f);
	size_t n = all_fds(&f, fds);
	for (size_t i = 0; i < n; i++) /* the client has its own; its lock is its life now */
		close(fds[i]);
	if (!sent) {
		conn_close(c);
		return;
	}
	c->s->counts.granted++;
	timer_stop(c->s->o.loop, &c->timer);
}

/* The key that this proof was made with; ERR_UNAUTHENTICATED: none of ours. */
static enum err find_key(struct conn *c, const struct shmsock_ask_msg *m,
			 uint8_t key[AUTH_KEY_BYTES])
{
	const char *tenant = m->role == ROLE_CLIENT ? m->tenant : NULL;
	for (unsigned i = 0;
	     keyring_role_key(c->s->o.keys, i, m->role, tenant, key) == ERR_NONE; i++) {
		uint8_t want[32];
		enum err e = shmsock_ask_proof(key, c->nonce, m, want);
		if (e)
			return e;
		if (CRYPTO_memcmp(want, m->mac, sizeof(want)) == 0)
			return ERR_NONE;
	}
	return ERR_UNAUTHENTICATED;
}

static void on_ask(struct conn *c, struct bytes in)
{
	struct shmsock *s = c->s;
	struct shmsock_ask_msg m;
	uint8_t key[AUTH_KEY_BYTES];
	uint64_t now = loop_now_ns(s->o.loop), repeated;
	enum err e = shmsock_get_ask(in, &m);
	if (e) {
		s->counts.refused_message++;
		refuse(c, e);
		return;
	}
	e = auth_limit_allow(s->limit, geteuid(), now) ? find_key(c, &m, key) : ERR_BUSY;
	if (e == ERR_UNAUTHENTICATED)
		(void)auth_limit_failed(s->limit, geteuid(), now, &repeated);
	if (e) {
		s->counts.refused_key++;
		refuse(c, e);
	} else {
		grant(c, &m, key);
	}
	OPENSSL_cleanse(key, sizeof(key));
}

static void on_conn(uv_poll_t *poll, int status, int events)
{
	struct conn *c = poll->data;
	uint8_t in[SHMSOCK_MSG_MAX];
	(void)events;
	/* no room for control data: descriptors sent to us are dropped by the kernel */
	ssize_t n = status < 0 ? 0 : recv(c->fd, in, sizeof(in), MSG_DONTWAIT | MSG_TRUNC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || c->session != 0) /* gone, or it speaks out of turn */
		conn_close(c);
	else
		on_ask(c, BYTES(in, MIN_OF((size_t)n, sizeof(in))));
}

/* ---- accepting ---- */

static bool same_user(int fd)
{
	struct ucred who;
	socklen_t n = sizeof(who);
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

static void challenge(struct conn *c)
{
	struct shmsock_challenge m;
	uint8_t text[SHMSOCK_MSG_MAX];
	loop_random(c->s->o.loop, c->nonce, sizeof(c->nonce));
	memcpy(m.nonce, c->nonce, sizeof(m.nonce));
	if (!send_msg(c, text, shmsock_put_challenge(text, &m), NULL, 0) ||
	    uv_poll_start(&c->poll, UV_READABLE, on_conn) != 0)
		conn_close(c);
}

static void admit(struct shmsock *s, int fd)
{
	struct conn *c = calloc(1, sizeof(*c));
	if (!c || uv_poll_init(loop_uv(s->o.loop), &c->poll, fd) != 0) {
		free(c);
		close(fd);
		return;
	}
	*c = (struct conn){ .s = s, .poll = c->poll, .fd = fd };
	c->poll.data = c;
	list_init(&c->node);
	list_push_back(&s->conns, &c->node);
	s->n_conns++;
	s->counts.open++;
	timer_start(s->o.loop, &c->timer, clock_after_ms(loop_now_ns(s->o.loop), s->o.ask_ms),
		    on_late);
	if (!same_user(fd)) {
		s->counts.refused_user++;
		refuse(c, ERR_FORBIDDEN);
	} else if (s->counts.open > s->o.conns_max) {
		s->counts.refused_busy++;
		refuse(c, ERR_BUSY);
	} else {
		challenge(c);
	}
}

static void on_listen(uv_poll_t *poll, int status, int events);

static void on_rested(struct timer *t)
{
	struct shmsock *s = container_of(t, struct shmsock, rest);
	(void)uv_poll_start(&s->poll, UV_READABLE, on_listen);
}

static void on_listen(uv_poll_t *poll, int status, int events)
{
	struct shmsock *s = poll->data;
	(void)events, (void)status;
	for (int i = 0; i < ACCEPTS_MAX; i++) {
		int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			admit(s, fd);
			continue;
		}
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
			uv_poll_stop(poll); /* no descriptors: it would wake us for ever */
			timer_start(s->o.loop, &s->rest,
				    clock_after_ms(loop_now_ns(s->o.loop), REST_MS), on_rested);
		}
		return;
	}
}

/* ---- the whole ---- */

static enum err bind_socket(const char *path, int *out, struct why *why)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	if (strlen(path) >= sizeof(a.sun_path))
		return why_set(why, ERR_INVALID_PARAMS,
			       "%.120s: longer than 107 bytes; give a shorter --run-dir", path);
	memcpy(a.sun_path, path, strlen(path));
	if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
		return why_set(why, ERR_FORBIDDEN, "%s: is no socket; move it away", path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return why_set(why, err_from_errno(errno), "socket: %s", strerror(errno));
	(void)unlink(path); /* a dead agent's: the data folder is ours */
	mode_t old = umask(0177);
	int r = bind(fd, (struct sockaddr *)&a, sizeof(a));
	(void)umask(old);
	if (r != 0 || listen(fd, 128) != 0) {
		enum err e = why_set(why, err_from_errno(errno), "%s: cannot listen: %s", path,
				     strerror(errno));
		close(fd);
		return e;
	}
	*out = fd;
	return ERR_NONE;
}

static enum err start(struct shmsock *s, struct why *why)
{
	enum err e = auth_limit_new(&s->limit);
	if (e == ERR_NONE)
		e = bind_socket(s->path, &s->fd, why);
	if (e)
		return e;
	if (uv_poll_init(loop_uv(s->o.loop), &s->poll, s->fd) != 0) {
		close(s->fd);
		return ERR_NO_MEMORY;
	}
	s->poll.data = s;
	(void)uv_poll_start(&s->poll, UV_READABLE, on_listen);
	return ERR_NONE;
}

enum err shmsock_listen(const struct shmsock_opts *o, struct shmsock **out, struct why *why)
{
	struct shmsock *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->o = *o;
	s->o.conns_max = o->conns_max ? o->conns_max : CONNS_DEFAULT;
	s->o.ask_ms = o->ask_ms ? o->ask_ms : ASK_MS_DEFAULT;
	list_init(&s->conns);
	size_t n = strlen(o->path);
	memcpy(s->path, o->path, MIN_OF(n, sizeof(s->path) - 1));
	enum err e = n < sizeof(s->path) ? start(s, why) : bind_socket(o->path, &s->fd, why);
	if (e) {
		auth_limit_free(s->limit);
		free(s);
		return e;
	}
	*out = s;
	return ERR_NONE;
}

static void on_poll_closed(uv_handle_t *h)
{
	struct shmsock *s = h->data;
	close(s->fd);
	s->poll_closed = true;
	maybe_gone(s);
}

void shmsock_close(struct shmsock *s, void (*closed)(void *ctx), void *ctx)
{
	if (!s)
		return;
	s->closing = true;
	s->closed = closed;
	s->ctx = ctx;
	(void)unlink(s->path);
	timer_stop(s->o.loop, &s->rest);
	list_for_each_safe (n, &s->conns)
		conn_close(container_of(n, struct conn, node));
	uv_close((uv_handle_t *)&s->poll, on_poll_closed);
}

void shmsock_counts(const struct shmsock *s, struct shmsock_counts *out)
{
	*out = s->counts;
}
