/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets of the sp engine. A socket file belongs to whoever listens on it: a stale one
 * is removed, a live one never; ours is removed at close only if it is still the same file.
 */
#include "rpc/sp_int.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024

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
	    stat(path, st) == 0) {
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
	struct stat st;
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
	if (getaddrinfo(any ? NULL : a->host, port, &hints, &res) != 0)
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
	struct sockaddr_storage sa;
	socklen_t n = sizeof(sa);
	if (getsockname(fd, (struct sockaddr *)&sa, &n) != 0)
		return 0;
	return ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
					      : ((struct sockaddr_in *)&sa)->sin_port);
}

/* ---- both ---- */

static void on_connection(uv_stream_t *s, int status)
{
	struct sp_listener *l = s->data;
	if (!l->closing)
		l->ops->conn(l, status);
}

static void on_closed(uv_handle_t *t)
{
	struct sp_listener *l = t->data;
	if (l->ops)
		l->ops->closed(l);
	free(l);
}

/* The descriptor is bound and listens already: what can fail is behind us. */
static int adopt(struct sp_listener *l, struct loop *loop, int fd)
{
	uv_loop_t *uv = loop_uv(loop);
	int r = l->ipc ? uv_pipe_init(uv, &l->u.pipe, 0) : uv_tcp_init(uv, &l->u.tcp);
	assert(r == 0);
	l->u.handle.data = l;
	r = l->ipc ? uv_pipe_open(&l->u.pipe, fd) : uv_tcp_open(&l->u.tcp, fd);
	if (r != 0) {
		close(fd);
		return r;
	}
	if (!l->ipc) /* libuv sleeps between two accepts otherwise */
		uv_tcp_simultaneous_accepts(&l->u.tcp, 1);
	return uv_listen(&l->u.stream, BACKLOG, on_connection);
}

enum err sp_listener_new(struct loop *loop, const char *addr, const struct sp_listener_ops *ops,
			 void *owner, char *bound, size_t bound_size, struct sp_listener **out,
			 struct why *why)
{
	struct addr a;
	int fd = -1;
	enum err e = addr_parse(addr, &a, why);
	if (e != ERR_NONE)
		return e;
	struct sp_listener *l = calloc(1, sizeof(*l));
	if (!l)
		return why_set(why, ERR_NO_MEMORY, "listen on %.160s: no memory", addr);
	l->ipc = a.scheme == ADDR_IPC;
	l->owner = owner;
	e = l->ipc ? open_ipc(l, &a, addr, &fd, why) : open_tcp(&a, addr, &fd, why);
	if (e != ERR_NONE) {
		free(l);
		return e;
	}
	if (!l->ipc)
		a.port = bound_port(fd);
	int r = adopt(l, loop, fd);
	if (r != 0) {
		e = fail(why, addr, r, "listen");
		sp_listener_close(l);
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
	struct stat st;
	if (l->closing)
		return;
	l->closing = true;
	if (l->ipc && stat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	uv_close(&l->u.handle, on_closed);
}
