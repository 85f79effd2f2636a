/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets of the sp engine. A socket file belongs to whoever listens on it: a stale one
 * is removed, a live one never; ours is removed at close only if it is still the same file.
 *
 * We accept ourselves rather than by uv_listen: libuv refuses in silence when descriptors run out,
 * and accepts without end when connections pour in.
 */
#include "rpc/sp_int.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG	     1024
#define ACCEPT_BATCH 64 /* a turn: a flood of connections does not hold up the rest */
#define RETRY_MS     100

bool sp_cred_get(const uv_handle_t *h, struct sp_cred *out)
{
	uv_os_fd_t fd;
	struct ucred c;
	socklen_t n = sizeof(c);
	if (uv_fileno(h, &fd) != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) != 0)
		return false;
	*out = (struct sp_cred){ .pid = c.pid, .uid = c.uid };
	return true;
}

static enum err fail(struct why *why, const char *addr, int sys, const char *step)
{
	const char *remedy = sys == UV_EADDRINUSE ? "; another process has it: stop that one "
						    "or choose another address"
			     : sys == UV_EADDRNOTAVAIL ? "; no interface here has this address"
			     : sys == UV_EACCES	       ? "; check the permissions"
						       : "";
	enum err e = sys == UV_EADDRINUSE ? ERR_EXISTS : err_from_errno(-sys);
	return why_set(why, e, "listen on %.160s: %s: %s%s", addr, step, uv_strerror(sys),
		       remedy);
}

/* ---- ipc ---- */

static void unix_addr(struct sockaddr_un *sa, const char *path)
{
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(sa->sun_path, path, strlen(path));
}

/* Does somebody listen on this path? A full backlog is a yes. */
static bool path_alive(const char *path)
{
	struct sockaddr_un sa;
	unix_addr(&sa, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return true;
	int r = connect(fd, (const struct sockaddr *)&sa, sizeof(sa));
	bool dead = r != 0 && (errno == ECONNREFUSED || errno == ENOENT);
	close(fd);
	return !dead;
}

/* Takes a stale socket file away. Anything that is no socket is not ours to remove. */
static enum err clear_path(const char *addr, const char *path, struct why *why)
{
	struct stat st;
	if (lstat(path, &st) != 0)
		return ERR_NONE; /* bind will tell */
	if (!S_ISSOCK(st.st_mode))
		return why_set(why, ERR_EXISTS,
			       "listen on %.160s: a file that is no socket is there; remove it "
			       "or choose another path",
			       addr);
	if (path_alive(path))
		return why_set(why, ERR_EXISTS,
			       "listen on %.160s: another process listens there; stop that one "
			       "or choose another path",
			       addr);
	if (unlink(path) != 0 && errno != ENOENT)
		return fail(why, addr, -errno, "removing a stale socket");
	return ERR_NONE;
}

/* The mode is set before listen: until then nobody can connect. */
static int bind_path(const char *path, int *out, struct stat *st)
{
	struct sockaddr_un sa;
	unix_addr(&sa, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0 && chmod(path, 0600) == 0 &&
	    stat(path, st) == 0 && listen(fd, BACKLOG) == 0) {
		*out = fd;
		return 0;
	}
	int sys = -errno;
	close(fd);
	return sys;
}

static enum err open_ipc(struct sp_listener *l, const struct addr *a, const char *addr, int *fd,
			 struct why *why)
{
	struct stat st = { 0 };
	enum err e = clear_path(addr, a->path, why);
	if (e != ERR_NONE)
		return e;
	int r = bind_path(a->path, fd, &st);
	if (r != 0)
		return fail(why, addr, r, "bind");
	memcpy(l->path, a->path, sizeof(l->path));
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	return ERR_NONE;
}

/* ---- tcp ---- */

/* Names are looked up here, at the start of a service; later nothing blocks. */
static bool resolve(const struct addr *a, struct sockaddr_storage *out, socklen_t *n)
{
	char port[8];
	snprintf(port, sizeof(port), "%u", a->port);
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *res;
	bool any = strcmp(a->host, "*") == 0;
	if (any)
		hints.ai_family = AF_INET;
	if (getaddrinfo(any ? NULL : addr_known_host(a->host), port, &hints, &res) != 0)
		return false;
	memcpy(out, res->ai_addr, res->ai_addrlen);
	*n = res->ai_addrlen;
	freeaddrinfo(res);
	return true;
}

static int bind_tcp(const struct sockaddr_storage *sa, socklen_t n, int *out)
{
	int on = 1;
	int fd = socket(sa->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	    bind(fd, (const struct sockaddr *)sa, n) == 0 && listen(fd, BACKLOG) == 0) {
		*out = fd;
		return 0;
	}
	int sys = -errno;
	close(fd);
	return sys;
}

static enum err open_tcp(const struct addr *a, const char *addr, int *fd, struct why *why)
{
	struct sockaddr_storage sa;
	socklen_t n;
	if (!resolve(a, &sa, &n))
		return why_set(why, ERR_INVALID_PARAMS,
			       "listen on %.160s: no address is known for this name", addr);
	int r = bind_tcp(&sa, n, fd);
	return r == 0 ? ERR_NONE : fail(why, addr, r, "bind");
}

static uint16_t bound_port(int fd)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} u = { 0 };
	socklen_t n = sizeof(u);
	if (getsockname(fd, &u.sa, &n) != 0)
		return 0;
	return ntohs(u.sa.sa_family == AF_INET6 ? u.in6.sin6_port : u.in.sin_port);
}

/* ---- both ---- */

static void on_readable(uv_poll_t *t, int status, int events);

static void poll_again(struct timer *t)
{
	struct sp_listener *l = container_of(t, struct sp_listener, retry);
	if (l->spare < 0)
		l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uv_poll_start(&l->poll, UV_READABLE, on_readable);
}

/*
 * No descriptor is left. The spare one is given up for as long as it takes to accept one connection
 * and close it: its peer learns at once, and the backlog does not fill.
 */
static int refuse_one(struct sp_listener *l)
{
	if (l->spare < 0)
		return -EMFILE;
	close(l->spare);
	int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
	int sys = fd < 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return sys;
}

/* True when there may be more to accept. */
static bool accept_one(struct sp_listener *l)
{
	int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		l->ops->conn(l, fd);
		return true;
	}
	int sys = errno;
	if (sys == EAGAIN)
		return false;
	if (sys == ECONNABORTED || sys == EINTR || sys == EPROTO)
		return true;
	if (sys == EMFILE || sys == ENFILE) {
		int r = refuse_one(l);
		if (r == -EAGAIN)
			return false;
		if (r == 0) {
			l->ops->refused(l, -sys);
			return true;
		}
	}
	l->ops->refused(l, -sys);
	uv_poll_stop(&l->poll);
	timer_start(l->loop, &l->retry, loop_now_ns(l->loop) + RETRY_MS * NS_PER_MS,
		    poll_again);
	return false;
}

static void on_readable(uv_poll_t *t, int status, int events)
{
	struct sp_listener *l = t->data;
	for (int i = 0; i < ACCEPT_BATCH && !l->closing; i++)
		if (!accept_one(l))
			return;
}

static void on_closed(uv_handle_t *t)
{
	struct sp_listener *l = t->data;
	if (l->ops)
		l->ops->closed(l);
	sp_tls_ctx_free(l->tls);
	free(l);
}

static void remove_path(const struct sp_listener *l)
{
	struct stat st;
	if (l->ipc && stat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
}

static int start_polling(struct sp_listener *l)
{
	int r = uv_poll_init(loop_uv(l->loop), &l->poll, l->fd);
	if (r != 0)
		return r;
	l->poll.data = l;
	l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	uv_poll_start(&l->poll, UV_READABLE, on_readable);
	return 0;
}

enum err sp_listener_new(struct loop *loop, const char *addr, const struct tls_files *tls,
			 const struct sp_listener_ops *ops, void *owner, char *bound,
			 size_t bound_size, struct sp_listener **out, struct why *why)
{
	struct addr a;
	enum err e = addr_parse(addr, &a, why);
	if (e != ERR_NONE)
		return e;
	struct sp_listener *l = calloc(1, sizeof(*l));
	if (!l)
		return why_set(why, ERR_NO_MEMORY, "listen on %.160s: no memory", addr);
	l->ipc = a.scheme == ADDR_IPC;
	l->loop = loop;
	l->owner = owner;
	if (a.scheme == ADDR_TLS)
		e = sp_tls_ctx_new(tls, true, &l->tls, why);
	if (e == ERR_NONE)
		e = l->ipc ? open_ipc(l, &a, addr, &l->fd, why)
			   : open_tcp(&a, addr, &l->fd, why);
	if (e != ERR_NONE) {
		sp_tls_ctx_free(l->tls);
		free(l);
		return e;
	}
	if (!l->ipc)
		a.port = bound_port(l->fd);
	int r = start_polling(l);
	if (r != 0) {
		e = fail(why, addr, r, "listen");
		remove_path(l);
		close(l->fd);
		sp_tls_ctx_free(l->tls);
		free(l);
		return e;
	}
	l->ops = ops;
	if (bound)
		addr_format(&a, bound, bound_size);
	*out = l;
	return ERR_NONE;
}

void sp_listener_close(struct sp_listener *l)
{
	if (l->closing)
		return;
	l->closing = true;
	timer_stop(l->loop, &l->retry);
	remove_path(l);
	uv_close((uv_handle_t *)&l->poll, on_closed);
	close(l->fd);
	if (l->spare >= 0)
		close(l->spare);
}
