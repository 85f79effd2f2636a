/* SPDX-License-Identifier: Apache-2.0 */
#include "data_fix.h"

#include "base/sum.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOLDER "agent-00000000000000d1"

#define MUST(cond)                                                                 \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

/* ---- the agent ---- */

static void on_line(struct log_capture *c, const char *line, size_t n)
{
	struct data_fix *f = container_of(c, struct data_fix, lines);
	size_t at = strlen(f->log);
	(void)snprintf(f->log + at, sizeof(f->log) - at, "%.*s\n", (int)n, line);
}

static void random_bytes(void *ctx, void *p, size_t n)
{
	MUST(getrandom(p, n, 0) == (ssize_t)n);
}

static void on_fenced(void *ctx, uint32_t shard, uint64_t version)
{
	((struct data_fix *)ctx)->n_fenced++;
}

static void open_pool(struct data_fix *f)
{
	struct why why = { 0 };
	MUST(pool_memory_new(&f->backing) == ERR_NONE);
	struct mempool_opts o = { .backing = f->backing,
				  .boot_id = "this boot",
				  .segment_bytes = DATA_SEGMENT,
				  .n_slots = DATA_SLOTS,
				  .heap_bytes = 1 << 20,
				  .n_lanes = 2,
				  .n_shards = 1,
				  .random = random_bytes };
	MUST(mempool_open(&o, &f->x.pool, &f->start, &why) == ERR_NONE);
	struct hold_opts h = { .pool = f->x.pool, .fenced = on_fenced, .ctx = f };
	MUST(hold_new(&h, &f->x.hold) == ERR_NONE);
}

void data_fix_init(struct data_fix *f, uint32_t threads)
{
	static const uint8_t secret[AUTH_KEY_BYTES] = "secret of a test of data lanes .";
	struct why why = { 0 };
	memset(f, 0, sizeof(*f));
	MUST(loop_open(&f->loop) == ERR_NONE);
	MUST(keyring_new(secret, NULL, &f->keys) == ERR_NONE);
	MUST(ticket_key_new(f->keys, HOLDER, &f->mint) == ERR_NONE);
	MUST(ticket_key_new(f->keys, HOLDER, &f->x.tickets) == ERR_NONE);
	f->listen[0] = "tcp://127.0.0.1:0";
	f->lines.fn = on_line;
	f->version = version_make(1, 1);
	struct xfa *x = &f->x;
	x->svc.loop = &f->loop;
	x->svc.keys = f->keys;
	x->svc.log = (struct log){ .svc = "agent", .fd = 2 };
	log_set_capture(&x->svc.log, &f->lines);
	(void)snprintf(x->svc.id, sizeof(x->svc.id), HOLDER);
	memcpy(x->svc.instance, "a run of a test.", 16);
	x->data_listen = (struct conf_list){ f->listen, 1 };
	x->data_threads = threads;
	x->data_conns_max = DATA_CONNS;
	x->data_stall_ms = 1000;
	x->data_idle_ms = 3000;
	x->ask_ms = 500;
	open_pool(f);
	MUST(mempool_own_lanes(x->pool, DATA_CONNS, &x->lanes) == ERR_NONE);
	MUST(xfa_data_open(x, &x->data, &why) == ERR_NONE && x->data);
	(void)snprintf(f->port, sizeof(f->port), "%s", strrchr(x->data->addrs[0], ':') + 1);
}

static void on_closed(void *arg)
{
	*(bool *)arg = true;
}

static bool is_true(void *arg)
{
	return *(bool *)arg;
}

void data_fix_fini(struct data_fix *f)
{
	bool closed = false;
	xfa_data_close(f->x.data, on_closed, &closed);
	MUST(data_fix_run(f, is_true, &closed, 10000));
	hold_close(f->x.hold);
	mempool_close(f->x.pool);
	pool_backing_free(f->backing);
	ticket_key_free(f->x.tickets);
	ticket_key_free(f->mint);
	keyring_free(f->keys);
	loop_close(&f->loop);
}

bool data_fix_run(struct data_fix *f, bool (*cond)(void *arg), void *arg, unsigned ms)
{
	uint64_t end = clock_after_ms(loop_now_ns(&f->loop), ms);
	while (!(cond && cond(arg)) && loop_now_ns(&f->loop) < end) {
		loop_run_once(&f->loop, false);
		usleep(100);
	}
	return cond && cond(arg);
}

/* ---- tickets ---- */

static struct msg_ticket ticket(struct data_fix *f, const char *tenant, uint64_t offset,
				uint64_t size, struct msg_extent *ext)
{
	*ext = (struct msg_extent){ .offset = offset, .bytes = obj_stored_bytes(size) };
	struct msg_ticket t = { .tenant = BYTES_STR(tenant),
				.pool_epoch = hold_under(f->x.hold, 0).pool_epoch,
				.extents = { ext, 1 },
				.size = size };
	memcpy(t.pool, mempool_id(f->x.pool), sizeof(t.pool));
	return t;
}

struct msg_ticket data_fix_write(struct data_fix *f, const char *tenant, uint64_t version,
				 uint64_t offset, uint64_t size, struct msg_extent *ext)
{
	struct msg_ticket t = ticket(f, tenant, offset, size, ext);
	t.op = TICKET_WRITE;
	t.version = version;
	t.attempt = version;
	t.key = BYTES_STR("key");
	return t;
}

struct msg_ticket data_fix_read(struct data_fix *f, const char *tenant,
				const struct hold_slot *s, uint64_t offset, uint64_t size,
				struct msg_extent *ext)
{
	struct msg_ticket t = ticket(f, tenant, offset, size, ext);
	t.op = TICKET_READ;
	t.version = s->version;
	t.slot = s->slot;
	t.generation = s->generation;
	t.sum = s->sum;
	return t;
}

void data_fix_seal(struct data_fix *f, const struct msg_ticket *t, struct buf *out)
{
	struct why why = { 0 };
	buf_clear(out);
	MUST(ticket_mint(f->mint, t, out, &why) == ERR_NONE);
}

/* ---- a client ---- */

static bool step(struct data_cli *c)
{
	struct iovec v[XF_IOV];
	size_t n = lane_cli_out(&c->lane, v);
	bool out = n > 0;
	if (!out)
		n = lane_cli_want(&c->lane, v);
	struct msghdr m = { .msg_iov = v, .msg_iovlen = n };
	ssize_t r = n == 0 ? 0 : out ? sendmsg(c->fd, &m, MSG_NOSIGNAL) : recvmsg(c->fd, &m, 0);
	if (r <= 0) {
		c->last = c->lane.pipe.err ? c->lane.pipe.err : ERR_CONN_LOST;
		return false;
	}
	if (out)
		lane_cli_sent(&c->lane, (size_t)r);
	else
		lane_cli_got(&c->lane, (size_t)r);
	return true;
}

bool data_cli_until(struct data_cli *c, enum lane_cli_state a, enum lane_cli_state b)
{
	while (!xf_pipe_idle(&c->lane.pipe) || (c->lane.state != a && c->lane.state != b))
		if (!step(c))
			return false;
	return true;
}

bool data_cli_open(struct data_cli *c, const struct data_fix *f, const char *tenant)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)atoi(f->port)),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = 20 };
	struct why why = { 0 };
	static const uint8_t instance[16] = "a client's run";
	struct lane_cli_opts o = {
		.keys = f->keys, .tenant = tenant, .holder = HOLDER, .instance = instance
	};
	*c = (struct data_cli){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	MUST(c->fd >= 0);
	(void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	(void)setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	MUST(connect(c->fd, (struct sockaddr *)&sa, sizeof(sa)) == 0);
	MUST(lane_cli_init(&c->lane, &o, &why) == ERR_NONE);
	return data_cli_until(c, CLI_READY, CLI_READY);
}

void data_cli_close(struct data_cli *c)
{
	lane_cli_fini(&c->lane);
	close(c->fd);
}

static size_t on_land(void *ctx, uint64_t offset, size_t n, struct iovec *spans)
{
	struct data_cli *c = ctx;
	if (n > c->cap - c->n_got)
		return 0;
	spans[0] = (struct iovec){ c->got + c->n_got, n };
	return 1;
}

static enum err on_landed(void *ctx, uint64_t offset, size_t n, uint64_t sum)
{
	((struct data_cli *)ctx)->n_got += n;
	return ERR_NONE;
}

static const struct lane_cli_ops ops = { on_land, on_landed };

enum err data_cli_get(struct data_cli *c, struct bytes ticket, uint64_t size, uint8_t *out)
{
	struct xf_range r = { 0, size };
	c->got = out;
	c->cap = size;
	c->n_got = 0;
	enum err e = lane_cli_get(&c->lane, ticket, &r, 1, true, &ops, c);
	if (e == ERR_NONE && !data_cli_until(c, CLI_READY, CLI_READY))
		return c->last;
	return e ? e : c->lane.status;
}

enum err data_cli_half(struct data_cli *c, struct bytes ticket, const uint8_t *p, size_t n)
{
	struct iovec v = { (void *)(uintptr_t)p, n };
	enum err e = lane_cli_put(&c->lane, ticket);
	if (e == ERR_NONE && !data_cli_until(c, CLI_WRITING, CLI_READY))
		return c->last;
	if (e != ERR_NONE || c->lane.state == CLI_READY)
		return e ? e : c->lane.status;
	e = lane_cli_data(&c->lane, 0, &v, 1, n, sum64(p, n));
	if (e == ERR_NONE && !data_cli_until(c, CLI_WRITING, CLI_READY))
		return c->last;
	return e ? e : c->lane.status;
}

enum err data_cli_put(struct data_cli *c, struct bytes ticket, const uint8_t *p, uint64_t size,
		      uint64_t *sum)
{
	MUST(size > 0 && size <= XF_DATA_MAX);
	enum err e = data_cli_half(c, ticket, p, size);
	*sum = sum64(p, size);
	if (e == ERR_NONE && c->lane.state == CLI_WRITING)
		e = lane_cli_last(&c->lane);
	if (e == ERR_NONE && !data_cli_until(c, CLI_READY, CLI_READY))
		return c->last;
	return e ? e : c->lane.status;
}
