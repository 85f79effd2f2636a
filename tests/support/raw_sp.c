/* SPDX-License-Identifier: Apache-2.0 */
#include "raw_sp.h"

#include "rpc/addr.h"
#include "rpc/sp_frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void raw_open(struct raw_sp *r, struct rpc_fix *f)
{
	struct addr a;
	struct sockaddr_storage sa = { 0 };
	socklen_t n;
	*r = (struct raw_sp){ .fix = f, .buf = BUF_INIT(16 << 20) };
	enum err e = addr_parse(f->addr, &a, NULL);
	assert(e == ERR_NONE);
	r->ipc = a.scheme == ADDR_IPC;
	if (r->ipc) {
		struct sockaddr_un *un = (struct sockaddr_un *)&sa;
		un->sun_family = AF_UNIX;
		memcpy(un->sun_path, a.path, strlen(a.path));
		n = sizeof(*un);
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)&sa;
		in->sin_family = AF_INET;
		in->sin_port = htons(a.port);
		inet_pton(AF_INET, a.host, &in->sin_addr);
		n = sizeof(*in);
	}
	r->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(r->fd >= 0);
	int rc = connect(r->fd, (struct sockaddr *)&sa, n);
	assert(rc == 0);
	int on = 1;
	setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	fcntl(r->fd, F_SETFL, O_NONBLOCK);
}

void raw_close(struct raw_sp *r)
{
	close(r->fd);
	auth_session_fini(&r->ses);
	buf_fini(&r->buf);
	free(r->in);
}

bool raw_write(struct raw_sp *r, const void *p, size_t n)
{
	const uint8_t *at = p;
	while (n > 0) {
		ssize_t w = send(r->fd, at, n, MSG_NOSIGNAL);
		if (w < 0 && errno != EAGAIN)
			return false;
		if (w < 0) {
			rpc_fix_run_ms(r->fix, 1);
			continue;
		}
		at += w;
		n -= (size_t)w;
	}
	return true;
}

/* A few turns of the loop usually bring the answer; only then is it worth sleeping. */
static void wait_a_bit(struct raw_sp *r, uint32_t *turns)
{
	if (++*turns < 20)
		loop_run_once(&r->fix->loop, false);
	else
		rpc_fix_run_ms(r->fix, 1);
}

/* Exactly n bytes; false: closed or late. */
static bool read_n(struct raw_sp *r, uint8_t *to, size_t n, uint32_t ms)
{
	uint32_t turns = 0;
	uint64_t end = clock_after_ms(loop_now_ns(&r->fix->loop), ms);
	while (n > 0) {
		ssize_t got = read(r->fd, to, n);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			return false;
		if (got < 0) {
			if (loop_now_ns(&r->fix->loop) >= end)
				return false;
			wait_a_bit(r, &turns);
			continue;
		}
		turns = 0;
		to += got;
		n -= (size_t)got;
	}
	return true;
}

bool raw_closed_within(struct raw_sp *r, uint32_t ms)
{
	uint8_t junk[4096];
	uint32_t turns = 0;
	uint64_t end = clock_after_ms(loop_now_ns(&r->fix->loop), ms);
	for (;;) {
		ssize_t got = read(r->fd, junk, sizeof(junk));
		if (got == 0 || (got < 0 && errno != EAGAIN))
			return true;
		if (got < 0 && loop_now_ns(&r->fix->loop) >= end)
			return false;
		wait_a_bit(r, &turns);
	}
}

void raw_greet(struct raw_sp *r)
{
	uint8_t g[SP_GREETING], want[SP_GREETING];
	sp_greeting(g, SP_PROTO_REQ);
	sp_greeting(want, SP_PROTO_REP);
	bool ok = raw_write(r, g, sizeof(g)) && read_n(r, g, sizeof(g), 2000);
	assert(ok && memcmp(g, want, sizeof(g)) == 0);
}

bool raw_frame(struct raw_sp *r, const void *p, size_t n)
{
	uint8_t hdr[SP_FRAME_HDR_MAX];
	size_t n_hdr = sp_frame_hdr(hdr, r->ipc, n);
	return raw_write(r, hdr, n_hdr) && raw_write(r, p, n);
}

bool raw_read(struct raw_sp *r, uint32_t ms)
{
	uint8_t hdr[SP_FRAME_HDR_MAX];
	uint64_t len = 0;
	if (!read_n(r, hdr, 8u + r->ipc, ms))
		return false;
	for (int i = 0; i < 8; i++)
		len = len << 8 | hdr[i + r->ipc];
	assert(len < 16 << 20);
	free(r->in);
	r->in = malloc(len + 1);
	assert(r->in);
	r->n_in = len;
	return read_n(r, r->in, len, ms);
}

static void send_plain(struct raw_sp *r, enum method m, struct bytes body)
{
	struct env_parts out;
	uint8_t id[4];
	struct msg_request q = {
		.v = 1, .method = m, .id = ++r->next_id, .deadline_ms = 5000, .body = body
	};
	struct buf b = BUF_INIT(64 << 10);
	enum err e = env_request(&b, &q, NULL, &out);
	assert(e == ERR_NONE);
	sp_put_u32(id, 0x80000000u | ++r->next_req);
	buf_clear(&r->buf);
	buf_put(&r->buf, id, 4);
	for (int i = 0; i < out.n; i++)
		buf_put(&r->buf, out.p[i].p, out.p[i].n);
	bool ok = raw_frame(r, r->buf.p, r->buf.n);
	assert(ok);
	buf_fini(&b);
}

bool raw_reply(struct raw_sp *r, uint32_t ms)
{
	struct bytes env;
	const uint8_t *tag;
	if (!raw_read(r, ms))
		return false;
	bool ok = r->n_in > 4 && env_split(BYTES(r->in + 4, r->n_in - 4), &env, &tag);
	assert(ok);
	struct dec d = DEC_INIT(env, NULL, NULL);
	enum err e = dec_reply(&d, &r->reply);
	assert(e == ERR_NONE);
	r->reply_is_plain = r->reply.session == 0;
	if (!r->reply_is_plain) {
		e = env_check(&r->ses, r->reply.seq, env, tag);
		assert(e == ERR_NONE);
	}
	return true;
}

void raw_hello(struct raw_sp *r)
{
	struct hello_client *h;
	struct why why = { 0 };
	struct buf b = BUF_INIT(8 << 10);
	static const uint8_t instance[16] = "raw";
	struct hello_client_opts o = { .keys = r->fix->keys,
				       .role = ROLE_ADMIN,
				       .instance = instance,
				       .v_min = 1,
				       .v_max = 1 };
	raw_greet(r);
	enum err e = hello_client_new(&o, &h, &why);
	assert(e == ERR_NONE);
	e = hello_client_start(h, &b);
	assert(e == ERR_NONE);
	send_plain(r, METHOD_HELLO, buf_bytes(&b));
	bool ok = raw_reply(r, 2000);
	assert(ok && r->reply.status == 0);
	buf_clear(&b);
	e = hello_client_challenge(h, r->reply.body, &b, &why);
	assert(e == ERR_NONE);
	send_plain(r, METHOD_PROVE, buf_bytes(&b));
	ok = raw_reply(r, 2000);
	assert(ok && r->reply.status == 0);
	e = hello_client_welcome(h, r->reply.body, &r->ses, &r->server, NULL, &why);
	assert(e == ERR_NONE);
	hello_client_free(h);
	buf_fini(&b);
}

uint8_t *raw_request(struct raw_sp *r, uint32_t method, uint32_t deadline_ms, struct bytes body,
		     size_t *n)
{
	struct env_parts out;
	struct msg_request q = { .v = 1,
				 .method = method,
				 .session = r->ses.id,
				 .id = ++r->next_id,
				 .deadline_ms = deadline_ms,
				 .body = body };
	struct buf b = BUF_INIT(64 << 10);
	enum err e = auth_next_seq(&r->ses, &q.seq);
	assert(e == ERR_NONE);
	e = env_request(&b, &q, &r->ses, &out);
	assert(e == ERR_NONE);
	*n = 4;
	for (int i = 0; i < out.n; i++)
		*n += out.p[i].n;
	uint8_t *p = malloc(*n), *at = p + 4;
	assert(p);
	sp_put_u32(p, 0x80000000u | ++r->next_req);
	for (int i = 0; i < out.n; i++) {
		memcpy(at, out.p[i].p, out.p[i].n);
		at += out.p[i].n;
	}
	buf_fini(&b);
	return p;
}
