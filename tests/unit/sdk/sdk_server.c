/* SPDX-License-Identifier: Apache-2.0 */
#include "sdk_server.h"

#include "proto/messages.h"
#include "store/shmsock.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SERVERS_MAX = 5, PARKED_MAX = 64 };

struct parked {
	struct timer timer;
	struct rpc_req *req; /* NULL: free */
	struct sdk_server *s;
	struct buf body;
};

struct sdk_server {
	char data[64], run[80], secret[80];
	struct keyring *keys;
	struct log log;
	struct log_capture silence;
	uint8_t instance[16];
	pthread_t thread;
	struct loop loop;

	/* orders to the loop */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct post post;
	const char *add;
	bool stop, busy, add_store;

	struct rpc_server *servers[SERVERS_MAX];
	size_t n;
	uint32_t n_closing;
	_Atomic uint32_t n_parked;
	struct parked parked[PARKED_MAX];

	/* sdk_server_store */
	bool has_store;
	struct fake fake;
	struct shmsock *shm;
	char master_addr[128], holder_addr[128], fd_path[108], pool[96],
		host[WHERE_HOST_MAX + 1];
};

static void quiet(struct log_capture *c, const char *line, size_t n)
{
}

/* ---- handlers ---- */

static void on_status(void *ctx, struct rpc_req *r)
{
	struct sdk_server *s = ctx;
	struct bytes rpc[] = { BYTES_STR("ipc:///x"), BYTES_STR("tcp://127.0.0.1:1") };
	struct bytes why[] = { BYTES_STR("test: not yet") };
	struct msg_status_rep m = {
		.service = BYTES_STR("x"),
		.pid = 4711,
		.release = BYTES_STR("9.9.9"),
		.ready = false,
		.reasons = { why, 1 },
		.uptime_ms = 5,
		.rss_bytes = 1 << 20,
		.term = 3,
		.rpc = { rpc, 2 },
		.http = BYTES_STR("127.0.0.1:2"),
	};
	struct buf b = BUF_INIT(4096);
	memcpy(m.instance, s->instance, 16);
	enc_status_rep(&b, &m);
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&b));
	buf_fini(&b);
}

static void unpark(struct parked *p)
{
	struct rpc_req *r = p->req;
	p->req = NULL;
	p->s->n_parked--;
	rpc_reply(r, ERR_NONE, 0, buf_bytes(&p->body));
	buf_fini(&p->body);
}

static void on_park_over(struct timer *t)
{
	unpark(container_of(t, struct parked, timer));
}

static struct parked *free_place(struct sdk_server *s)
{
	for (size_t i = 0; i < PARKED_MAX; i++)
		if (!s->parked[i].req)
			return &s->parked[i];
	return NULL;
}

static void on_echo(void *ctx, struct rpc_req *r)
{
	struct sdk_server *s = ctx;
	struct msg_echo m;
	struct dec d = DEC_INIT(r->body, NULL, NULL);
	enum err e = dec_echo(&d, &m);
	struct parked *p = free_place(s);
	if (e != ERR_NONE || !p) {
		rpc_reply(r, e ? e : ERR_BUSY, 7, BYTES("", 0));
		return;
	}
	p->body = BUF_INIT(8 << 20);
	enc_echo(&p->body, &(struct msg_echo){ .data = m.data });
	p->s = s;
	p->req = r;
	s->n_parked++;
	if (m.park_ms)
		timer_start(&s->loop, &p->timer,
			    clock_after_ms(loop_now_ns(&s->loop), m.park_ms), on_park_over);
	else
		unpark(p);
}

/* ---- the loop's side ---- */

static void add_server(struct sdk_server *s, const char *name)
{
	struct rpc_server_opts o = { .keys = s->keys,
				     .log = &s->log,
				     .instance = s->instance,
				     .name = name,
				     .role = ROLE_SERVICE };
	const struct rpc_method methods[] = {
		{ METHOD_STATUS, "STATUS", ROLES_ANY, on_status, s, false },
		{ METHOD_ECHO, "ECHO", ROLES_ANY, on_echo, s, false },
	};
	char addr[128];
	struct why why = { 0 };
	snprintf(addr, sizeof(addr), "ipc://%s/%s.sock", s->run, name);
	enum err e = rpc_server_new(&s->loop, &o, &s->servers[s->n]);
	assert(e == ERR_NONE);
	rpc_server_add(s->servers[s->n], methods, ARRAY_LEN(methods));
	e = rpc_server_listen(s->servers[s->n], addr, NULL, 0, &why);
	if (e != ERR_NONE)
		fprintf(stderr, "%s\n", why.text);
	assert(e == ERR_NONE);
	s->n++;
}

static void add_store(struct sdk_server *s)
{
	struct why why = { 0 };
	snprintf(s->master_addr, sizeof(s->master_addr), "ipc://%s/master.sock", s->run);
	snprintf(s->holder_addr, sizeof(s->holder_addr), "ipc://%s/holder.sock", s->run);
	snprintf(s->fd_path, sizeof(s->fd_path), "%s/agent.fd", s->run);
	snprintf(s->pool, sizeof(s->pool), "%s/pool", s->data);
	where_host("", s->host);
	s->fake = (struct fake){ .loop = &s->loop,
				 .keys = s->keys,
				 .log = &s->log,
				 .master_addr = s->master_addr,
				 .holder_addr = s->holder_addr,
				 .fd_path = s->fd_path,
				 .pool_bytes = 128 << 20 };
	enum err e = pool_folder_open(s->pool, &s->fake.backing, &why);
	assert(e == ERR_NONE);
	fake_open(&s->fake);
	s->fake.host = s->host;
	struct shmsock_opts o = {
		.loop = &s->loop, .keys = s->keys, .pool = s->fake.pool, .path = s->fd_path
	};
	e = shmsock_listen(&o, &s->shm, &why);
	if (e != ERR_NONE)
		fprintf(stderr, "%s\n", why.text);
	assert(e == ERR_NONE);
	s->has_store = true;
}

static void on_closed(void *arg)
{
	struct sdk_server *s = arg;
	if (--s->n_closing == 0)
		loop_stop(&s->loop);
}

static void stop_all(struct sdk_server *s)
{
	for (size_t i = 0; i < PARKED_MAX; i++)
		if (s->parked[i].req) {
			timer_stop(&s->loop, &s->parked[i].timer);
			unpark(&s->parked[i]);
		}
	s->n_closing = (uint32_t)s->n + 1;
	for (size_t i = 0; i < s->n; i++)
		rpc_server_close(s->servers[i], on_closed, s);
	if (s->has_store) {
		s->n_closing += 2;
		shmsock_close(s->shm, on_closed, s);
		fake_close(&s->fake, on_closed, s);
	}
	on_closed(s);
}

static void on_order(struct post *p)
{
	struct sdk_server *s = container_of(p, struct sdk_server, post);
	pthread_mutex_lock(&s->lock);
	if (s->add)
		add_server(s, s->add);
	if (s->add_store)
		add_store(s);
	if (s->stop)
		stop_all(s);
	else
		loop_expect(&s->loop);
	s->add = NULL;
	s->add_store = false;
	s->busy = false;
	pthread_cond_broadcast(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

static void *run(void *arg)
{
	struct sdk_server *s = arg;
	loop_run(&s->loop);
	loop_close(&s->loop);
	return NULL;
}

static void order(struct sdk_server *s, const char *add, bool stop)
{
	pthread_mutex_lock(&s->lock);
	s->add = add;
	s->stop = stop;
	s->busy = true;
	loop_post(&s->loop, &s->post);
	while (s->busy)
		pthread_cond_wait(&s->cond, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

/* ---- for tests ---- */

struct sdk_server *sdk_server_start(void)
{
	struct sdk_server *s = calloc(1, sizeof(*s));
	struct why why = { 0 };
	snprintf(s->data, sizeof(s->data), "/tmp/pomelo-sdk-XXXXXX");
	char *made = mkdtemp(s->data);
	assert(made);
	snprintf(s->run, sizeof(s->run), "%s/run", s->data);
	snprintf(s->secret, sizeof(s->secret), "%s/secret", s->data);
	int r = mkdir(s->run, 0700);
	assert(r == 0);
	(void)made, (void)r;
	enum err e = secret_new(s->secret, &why);
	if (e == ERR_NONE)
		e = keyring_load(s->secret, &s->keys, &why);
	if (e == ERR_NONE)
		e = loop_open(&s->loop);
	assert(e == ERR_NONE);
	memset(s->instance, 0xab, sizeof(s->instance));
	s->log = (struct log){ .svc = "test", .fd = -1 };
	s->silence.fn = quiet;
	log_set_capture(&s->log, &s->silence);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->cond, NULL);
	s->post.fn = on_order;
	loop_expect(&s->loop);
	r = pthread_create(&s->thread, NULL, run, s);
	assert(r == 0);
	return s;
}

const char *sdk_server_data(const struct sdk_server *s)
{
	return s->data;
}

void sdk_server_add(struct sdk_server *s, const char *name)
{
	order(s, name, false);
}

struct fake *sdk_server_store(struct sdk_server *s)
{
	pthread_mutex_lock(&s->lock);
	s->add_store = true;
	pthread_mutex_unlock(&s->lock);
	order(s, NULL, false);
	return &s->fake;
}

uint32_t sdk_server_parked(struct sdk_server *s)
{
	return s->n_parked;
}

void sdk_server_stop(struct sdk_server *s)
{
	if (s->stop)
		return;
	order(s, NULL, true);
	pthread_join(s->thread, NULL);
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void sdk_server_free(struct sdk_server *s)
{
	sdk_server_stop(s);
	if (s->has_store)
		fake_fini(&s->fake);
	keyring_free(s->keys);
	nftw(s->data, drop, 8, FTW_DEPTH | FTW_PHYS);
	pthread_cond_destroy(&s->cond);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

struct pml_open_opts sdk_server_opts(const struct sdk_server *s)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	o.data = s->data;
	o.run_dir = s->run;
	o.secret_file = s->secret;
	return o;
}

void sdk_server_client_key(const struct sdk_server *s, const char *path)
{
	struct buf line = BUF_INIT(4096);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	enum err e = keyring_derive_line(s->keys, ROLE_CLIENT, "default", &line, NULL);
	assert(e == ERR_NONE && fd >= 0);
	ssize_t n = write(fd, line.p, line.n);
	assert(n == (ssize_t)line.n);
	(void)e, (void)n;
	close(fd);
	buf_fini(&line);
}
