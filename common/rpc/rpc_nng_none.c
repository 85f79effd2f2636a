/* SPDX-License-Identifier: Apache-2.0 */
/* The nng engine where the library is not there: the same table, which refuses. */
#include "rpc/addr.h"
#include "rpc/engine.h"

static bool can(const char *addr)
{
	enum addr_scheme scheme;
	return addr_scheme(addr, &scheme) && scheme != ADDR_SIM;
}

static enum err refuse(const char *addr, struct why *why)
{
	return why_set(
		why, ERR_UNSUPPORTED,
		"%.160s: this build has no nng engine; build with -Dnng=enabled, or use the sp "
		"engine",
		addr);
}

/* A server that can only say why it will not listen. */
struct eng_server {
	struct loop *loop;
	struct post post;
	void (*closed)(void *arg);
	void *arg;
};

static enum err server_new(struct loop *l, const struct eng_server_opts *o,
			   struct eng_server **out)
{
	(void)o;
	struct eng_server *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->loop = l;
	*out = s;
	return ERR_NONE;
}

static enum err listen_none(struct eng_server *s, const char *addr, char *bound,
			    size_t bound_size, struct why *why)
{
	(void)s, (void)bound, (void)bound_size;
	return refuse(addr, why);
}

static void drain(struct eng_server *s)
{
	(void)s;
}

static void on_post(struct post *p)
{
	struct eng_server *s = container_of(p, struct eng_server, post);
	void (*closed)(void *arg) = s->closed;
	void *arg = s->arg;
	free(s);
	closed(arg);
}

static void server_close(struct eng_server *s, uint32_t flush_ms, void (*closed)(void *arg),
			 void *arg)
{
	(void)flush_ms;
	s->closed = closed;
	s->arg = arg;
	s->post.fn = on_post;
	loop_defer(s->loop, &s->post);
}

static enum err dial(struct loop *l, const struct eng_dial_opts *o, struct eng_peer **out,
		     struct why *why)
{
	(void)l, (void)out;
	return refuse(o->addr, why);
}

/* The rest needs a connection, and there is none. */
const struct engine engine_nng = {
	.name = "nng",
	.can = can,
	.server_new = server_new,
	.listen = listen_none,
	.drain = drain,
	.server_close = server_close,
	.dial = dial,
};
