/* SPDX-License-Identifier: Apache-2.0 */
/* Data lanes over sockets: which tickets open what, fences, pins, limits, strangers. */
#include "data_fix.h"

#include "base/sum.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/leak.h"

TestSuite(data, .timeout = 60);

enum { SIZE = 100000 };

/* The client's part, on a thread of its own while the loop runs. */
struct work {
	struct data_fix *f;
	void (*fn)(struct work *w);
	pthread_t t;
	_Atomic bool over;
	const char *tenant;
	struct buf ticket;
	uint8_t bytes[SIZE], got[SIZE];
	uint64_t sum;
	size_t half;
	_Atomic bool hold, there; /* half: stay, it is half way */
	enum err err;
	struct data_cli c;
};

static void *run(void *arg)
{
	struct work *w = arg;
	if (data_cli_open(&w->c, w->f, w->tenant ? w->tenant : "blue"))
		w->fn(w);
	else
		w->err = w->c.last;
	data_cli_close(&w->c);
	w->over = true;
	return NULL;
}

static bool is_over(void *arg)
{
	return ((struct work *)arg)->over;
}

static bool is_there(void *arg)
{
	return ((struct work *)arg)->there;
}

static void start(struct work *w, void (*fn)(struct work *w))
{
	w->fn = fn;
	w->over = w->there = false;
	cr_assert_eq(pthread_create(&w->t, NULL, run, w), 0);
}

static void finish(struct work *w)
{
	cr_assert(data_fix_run(w->f, is_over, w, 30000));
	pthread_join(w->t, NULL);
}

static void put(struct work *w)
{
	w->err = data_cli_put(&w->c, buf_bytes(&w->ticket), w->bytes, SIZE, &w->sum);
}

static void get(struct work *w)
{
	w->err = data_cli_get(&w->c, buf_bytes(&w->ticket), SIZE, w->got);
}

/* Half a put, then it stays there until it is cut or let go. */
static void half(struct work *w)
{
	w->err = data_cli_half(&w->c, buf_bytes(&w->ticket), w->bytes, SIZE / 2);
	w->there = true;
	if (w->err == ERR_NONE && !data_cli_until(&w->c, CLI_READY, CLI_READY))
		w->err = w->c.last;
	else if (w->err == ERR_NONE)
		w->err = w->c.lane.status;
}

static struct work *work_new(struct data_fix *f)
{
	struct work *w = calloc(1, sizeof(*w));
	w->f = f;
	w->ticket = BUF_INIT(TICKET_MAX);
	for (size_t i = 0; i < SIZE; i++)
		w->bytes[i] = (uint8_t)(i * 31 >> 2);
	return w;
}

static void work_free(struct work *w)
{
	buf_fini(&w->ticket);
	free(w);
}

static enum err go(struct work *w, void (*fn)(struct work *w))
{
	start(w, fn);
	finish(w);
	return w->err;
}

/* An object of that version, put over a lane and committed. */
static struct hold_slot object(struct work *w, uint64_t version)
{
	struct msg_extent ext;
	struct hold_slot s;
	struct why why = { 0 };
	struct msg_ticket t = data_fix_write(w->f, "blue", version, 0, SIZE, &ext);
	data_fix_seal(w->f, &t, &w->ticket);
	cr_assert_eq(go(w, put), ERR_NONE, "%s", w->c.lane.text);
	cr_assert_eq(hold_commit(w->f->x.hold, &t, w->sum, &s, &why), ERR_NONE, "%s", why.text);
	return s;
}

Test(data, put_commit_get)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	data_fix_init(f, 2);
	struct work *w = work_new(f);
	struct hold_slot s = object(w, 5);
	struct msg_ticket t = data_fix_read(f, "blue", &s, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	cr_assert_eq(go(w, get), ERR_NONE);
	cr_expect_eq(memcmp(w->got, w->bytes, SIZE), 0);
	cr_expect_eq(f->x.data->counts.put_ok, 1);
	cr_expect_eq(f->x.data->counts.get_ok, 1);
	cr_expect_eq(f->x.data->counts.lanes_ok, 2);
	cr_expect_eq(f->x.data->counts.lanes_bad, 0);
	cr_expect_eq(f->log[0], '\0', "%s", f->log);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

/* T5: a ticket that was used opens nothing once its version is committed, freed or fenced. */
Test(data, a_write_ticket_once_more)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	data_fix_init(f, 1);
	struct work *w = work_new(f);
	struct hold_under u = hold_under(f->x.hold, 0);
	struct hold_slot s = object(w, 5);
	memset(w->bytes, 0xee, SIZE);
	cr_expect_eq(go(w, put), ERR_STALE_ATTEMPT);
	cr_expect_eq(hold_retire(f->x.hold, &u, s.slot, s.generation, s.version, RETIRE_REMOVED,
				 0),
		     ERR_NONE);
	cr_expect_eq(go(w, put), ERR_STALE_ATTEMPT, "its bytes may be read still");
	cr_expect_eq(xfa_data_free_slot(f->x.data, f->x.hold, &u, s.slot, s.generation),
		     ERR_NONE);
	cr_expect_eq(go(w, put), ERR_STALE_ATTEMPT, "the range may be another's");
	struct extent e = { 0, 0, SIZE };
	cr_expect_eq(*(uint8_t *)mempool_at(f->x.pool, &e), 0);
	cr_expect_eq(f->x.data->counts.put_refused, 3);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

Test(data, wrong_tickets)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	data_fix_init(f, 1);
	struct work *w = work_new(f);
	struct hold_slot s = object(w, 5);
	struct msg_ticket rd = data_fix_read(f, "blue", &s, 0, SIZE, &ext);
	struct msg_ticket wr = data_fix_write(f, "blue", 6, SIZE, SIZE, &ext), bad;

	bad = rd;
	data_fix_seal(f, &bad, &w->ticket);
	w->ticket.p[w->ticket.n / 2] ^= 1;
	cr_expect_eq(go(w, get), ERR_BAD_TICKET, "one bit of it");
	cr_expect_eq(go(w, put), ERR_BAD_TICKET);
	data_fix_seal(f, &rd, &w->ticket);
	cr_expect_eq(go(w, put), ERR_BAD_TICKET, "a read ticket to write");
	w->tenant = "red";
	cr_expect_eq(go(w, get), ERR_BAD_TICKET, "another tenant's");
	data_fix_seal(f, &wr, &w->ticket);
	cr_expect_eq(go(w, put), ERR_BAD_TICKET, "another tenant's");
	w->tenant = NULL;
	cr_expect_eq(go(w, get), ERR_BAD_TICKET, "a write ticket to read");
	bad = rd;
	bad.generation++;
	data_fix_seal(f, &bad, &w->ticket);
	cr_expect_eq(go(w, get), ERR_LEASE_LOST);
	bad = rd;
	bad.pool[3] ^= 1;
	data_fix_seal(f, &bad, &w->ticket);
	cr_expect_eq(go(w, get), ERR_LEASE_LOST);
	bad = wr;
	bad.pool[3] ^= 1;
	data_fix_seal(f, &bad, &w->ticket);
	cr_expect_eq(go(w, put), ERR_STALE_EPOCH);
	bad = wr;
	bad.pool_epoch--;
	data_fix_seal(f, &bad, &w->ticket);
	cr_expect_eq(go(w, put), ERR_STALE_EPOCH);
	ext.offset = DATA_SEGMENT;
	data_fix_seal(f, &wr, &w->ticket);
	cr_expect_eq(go(w, put), ERR_BAD_TICKET, "outside of the pool");
	data_fix_seal(f, &rd, &w->ticket);
	cr_expect_eq(go(w, get), ERR_BAD_TICKET, "outside of the pool");
	cr_expect_eq(f->x.data->counts.get_ok, 0);
	cr_expect_eq(f->x.data->counts.put_ok, 1);
	cr_expect_eq(f->x.data->counts.lanes_bad, 0);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

/* D1: a stream is a writer like any other. */
Test(data, a_fence_cuts_a_writer_that_stands_still)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	struct hold_slot s;
	enum hold_fence state = 0;
	data_fix_init(f, 1);
	f->x.data_stall_ms = 60000;
	struct work *w = work_new(f);
	struct msg_ticket t = data_fix_write(f, "blue", 9, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	start(w, half);
	cr_assert(data_fix_run(f, is_there, w, 10000));
	cr_expect_eq(hold_commit(f->x.hold, &t, 1, &s, NULL), ERR_BUSY, "it is being written");
	struct hold_under u = hold_under(f->x.hold, 0);
	struct extent e = { 0, 0, ext.bytes };
	cr_expect_eq(hold_fence(f->x.hold, &u, 9, &e, 1, &state, &s), ERR_NONE);
	cr_expect_eq(state, HOLD_WRITING);
	cr_expect_eq(hold_quarantine(f->x.hold), ext.bytes);
	xfa_data_fenced(f->x.data);
	finish(w);
	cr_expect_eq(w->err, ERR_STALE_ATTEMPT);
	hold_sweep(f->x.hold);
	cr_expect_eq(f->n_fenced, 1);
	cr_expect_eq(hold_quarantine(f->x.hold), 0);
	cr_expect_eq(hold_commit(f->x.hold, &t, 1, &s, NULL), ERR_STALE_ATTEMPT);
	cr_expect_eq(go(w, put), ERR_STALE_ATTEMPT);
	cr_expect_eq(f->x.data->counts.put_cut, 1);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

Test(data, an_adoption_cuts_streams_of_older_epochs)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	struct hold_under u;
	data_fix_init(f, 2);
	f->x.data_stall_ms = 60000;
	struct work *w = work_new(f);
	struct msg_ticket t = data_fix_write(f, "blue", 9, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	start(w, half);
	cr_assert(data_fix_run(f, is_there, w, 10000));
	cr_assert_eq(hold_adopt(f->x.hold, 0, 2, 1, &u, NULL), ERR_NONE);
	cr_expect_eq(hold_quarantine(f->x.hold), ext.bytes, "the inventory says so");
	xfa_data_fenced(f->x.data);
	finish(w);
	cr_expect_eq(w->err, ERR_STALE_EPOCH);
	hold_sweep(f->x.hold);
	cr_expect_eq(hold_quarantine(f->x.hold), 0);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

/* Two streams of one version at once: only one of them writes. */
Test(data, one_writer_a_version)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	data_fix_init(f, 2);
	f->x.data_stall_ms = 60000;
	struct work *w = work_new(f), *v = work_new(f);
	struct msg_ticket t = data_fix_write(f, "blue", 9, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	data_fix_seal(f, &t, &v->ticket);
	start(w, half);
	cr_assert(data_fix_run(f, is_there, w, 10000));
	cr_expect_eq(go(v, put), ERR_BUSY);
	shutdown(w->c.fd, SHUT_RDWR); /* the first one goes: its record is cleared */
	finish(w);
	for (int i = 0; i < 100 && go(v, put) == ERR_BUSY; i++)
		usleep(1000);
	cr_expect_eq(v->err, ERR_NONE);
	work_free(w);
	work_free(v);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

/* Asks for all of it and takes none. */
static void get_slowly(struct work *w)
{
	struct xf_range r[64];
	for (size_t i = 0; i < ARRAY_LEN(r); i++)
		r[i] = (struct xf_range){ 0, SIZE };
	w->err = lane_cli_get(&w->c.lane, buf_bytes(&w->ticket), r, ARRAY_LEN(r), false, NULL,
			      NULL);
	struct iovec v[XF_IOV];
	struct msghdr m = { .msg_iov = v, .msg_iovlen = lane_cli_out(&w->c.lane, v) };
	cr_assert_gt(sendmsg(w->c.fd, &m, 0), 0);
	w->there = true;
	while (w->hold)
		usleep(1000);
}

static bool is_pinned(void *arg)
{
	struct xfa_data *d = arg;
	pthread_mutex_lock(&d->pins.lock);
	bool yes = d->pins.n > 0;
	pthread_mutex_unlock(&d->pins.lock);
	return yes;
}

static bool is_unpinned(void *arg)
{
	return !is_pinned(arg);
}

/* D2, D3: FREE waits for a reader; one that stands still is cut after data_stall_ms. */
Test(data, free_waits_for_a_reader)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	data_fix_init(f, 1);
	struct work *w = work_new(f);
	struct hold_slot s = object(w, 5);
	struct hold_under u = hold_under(f->x.hold, 0);
	struct msg_ticket t = data_fix_read(f, "blue", &s, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	w->hold = true;
	start(w, get_slowly);
	cr_assert(data_fix_run(f, is_there, w, 10000));
	cr_assert(data_fix_run(f, is_pinned, f->x.data, 5000));
	cr_assert_eq(hold_retire(f->x.hold, &u, s.slot, s.generation, s.version, RETIRE_REMOVED,
				 0),
		     ERR_NONE);
	cr_expect_eq(xfa_data_free_slot(f->x.data, f->x.hold, &u, s.slot, s.generation),
		     ERR_BUSY);
	cr_expect(data_fix_run(f, is_unpinned, f->x.data, 5000));
	cr_expect_eq(xfa_data_free_slot(f->x.data, f->x.hold, &u, s.slot, s.generation),
		     ERR_NONE);
	w->hold = false;
	finish(w);
	cr_expect_eq(f->x.data->counts.get_cut, 1);
	cr_expect_eq(go(w, get), ERR_LEASE_LOST);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

/* ---- strangers ---- */

static int raw(const struct data_fix *f)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)atoi(f->port)),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static bool all_gone(void *arg)
{
	return ((struct xfa_data *)arg)->n_conns == 0;
}

Test(data, noise_is_refused_with_one_line)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	char noise[512];
	memset(noise, 'x', sizeof(noise));
	data_fix_init(f, 2);
	for (int i = 0; i < 5; i++) {
		int fd = raw(f);
		cr_assert_gt(send(fd, noise, sizeof(noise), MSG_NOSIGNAL), 0);
		(void)data_fix_run(f, NULL, NULL, 20);
		char back[64];
		cr_expect_leq(recv(fd, back, sizeof(back), 0), 0, "closed, and no word");
		close(fd);
	}
	cr_expect(data_fix_run(f, all_gone, f->x.data, 5000));
	cr_expect_eq(f->x.data->counts.lanes_bad, 5);
	unsigned lines = 0;
	for (const char *p = f->log; (p = strstr(p, "topic=data")); p++)
		lines++;
	cr_expect_leq(lines, 2, "one a thread: %s", f->log);
	cr_expect(strstr(f->log, "from=127.0.0.1") && strstr(f->log, "pmld"), "%s", f->log);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

Test(data, silence_and_a_crowd)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	int fd[DATA_CONNS + 3];
	char byte;
	data_fix_init(f, 2);
	for (size_t i = 0; i < ARRAY_LEN(fd); i++)
		fd[i] = raw(f);
	(void)data_fix_run(f, NULL, NULL, 100);
	cr_expect_eq(f->x.data->counts.lanes_busy, ARRAY_LEN(fd) - DATA_CONNS / 4);
	cr_expect_eq(f->x.data->counts.open, DATA_CONNS / 4, "a quarter for strangers");
	cr_expect(data_fix_run(f, all_gone, f->x.data, 5000), "ask_ms");
	for (size_t i = 0; i < ARRAY_LEN(fd); i++) {
		cr_expect_leq(recv(fd[i], &byte, 1, MSG_DONTWAIT), 0);
		close(fd[i]);
	}
	struct work *w = work_new(f); /* and there is room again */
	(void)object(w, 5);
	work_free(w);
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}

Test(data, closing_cuts_all)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	struct msg_extent ext;
	data_fix_init(f, 2);
	struct work *w = work_new(f);
	struct msg_ticket t = data_fix_write(f, "blue", 9, 0, SIZE, &ext);
	data_fix_seal(f, &t, &w->ticket);
	start(w, half);
	cr_assert(data_fix_run(f, is_there, w, 10000));
	data_fix_fini(f);
	pthread_join(w->t, NULL);
	cr_expect_neq(w->err, ERR_NONE);
	work_free(w);
	free(f);
	NO_LEAKS();
}

Test(data, addresses_and_defaults)
{
	struct data_fix *f = calloc(1, sizeof(*f));
	char out[XFA_DATA_LISTEN_MAX][SVC_ADDR_MAX + 8];
	const char *told[] = { "tcp://node7:17606" };
	data_fix_init(f, 1);
	cr_expect_eq(xfa_data_addrs(f->x.data, out), 1);
	cr_expect_eq(strncmp(out[0], "data+tcp://127.0.0.1:", 21), 0);
	f->x.data_advertise = (struct conf_list){ told, 1 };
	cr_expect_eq(xfa_data_addrs(f->x.data, out), 1);
	cr_expect_str_eq(out[0], "data+tcp://node7:17606");
	cr_expect_eq(xfa_data_addrs(NULL, out), 0);

	struct xfa_data *none = NULL;
	struct xfa *x = &f->x;
	x->data_listen = (struct conf_list){ NULL, 0 };
	cr_expect_eq(xfa_data_open(x, &none, NULL), ERR_NONE);
	cr_expect_null(none, "no tcp address, no lanes");
	data_fix_fini(f);
	free(f);
	NO_LEAKS();
}
