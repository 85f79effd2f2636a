/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nng_sock.h"

#include "loop/thread.h"

#include <string.h>

/* nng_close took 0.1-0.5 ms here, 15 ms at worst with both cores busy (2026-11-29). */
#define CLOSE_MS 2000

enum { NOTE_UP = 1, NOTE_GONE = 2 };

struct nng_note {
	uint32_t pipe; /* 0: free */
	uint8_t what;
	bool queued;
	int32_t next_bucket, next_queued; /* -1: none; next_bucket also links the free ones */
	void *conn;			  /* the loop's */
};

/* ---- the table; under the lock ---- */

static struct nng_note *note_find(struct nsock *s, uint32_t pipe)
{
	for (int32_t i = s->buckets[pipe & (s->n_buckets - 1)]; i >= 0;
	     i = s->notes[i].next_bucket)
		if (s->notes[i].pipe == pipe)
			return &s->notes[i];
	return NULL;
}

static struct nng_note *note_add(struct nsock *s, uint32_t pipe)
{
	int32_t i = s->free;
	if (i < 0 || s->refuse_all)
		return NULL;
	struct nng_note *n = &s->notes[i];
	s->free = n->next_bucket;
	int32_t *bucket = &s->buckets[pipe & (s->n_buckets - 1)];
	*n = (struct nng_note){ .pipe = pipe, .next_bucket = *bucket, .next_queued = -1 };
	*bucket = i;
	s->in_use++;
	return n;
}

static void note_del(struct nsock *s, struct nng_note *n)
{
	int32_t i = (int32_t)(n - s->notes);
	int32_t *at = &s->buckets[n->pipe & (s->n_buckets - 1)];
	while (*at != i)
		at = &s->notes[*at].next_bucket;
	*at = n->next_bucket;
	*n = (struct nng_note){ .next_bucket = s->free, .next_queued = -1 };
	s->free = i;
	s->in_use--;
}

static void wake_loop(struct nsock *s)
{
	if (s->posted)
		return;
	s->posted = true;
	loop_post(s->loop, &s->post);
}

static void note_queue(struct nsock *s, struct nng_note *n, uint8_t what)
{
	n->what |= what;
	if (!n->queued) {
		int32_t i = (int32_t)(n - s->notes);
		n->queued = true;
		n->next_queued = -1;
		if (s->q_tail >= 0)
			s->notes[s->q_tail].next_queued = i;
		else
			s->q_head = i;
		s->q_tail = i;
	}
	wake_loop(s);
}

static struct nng_note *queue_pop(struct nsock *s)
{
	if (s->q_head < 0)
		return NULL;
	struct nng_note *n = &s->notes[s->q_head];
	s->q_head = n->next_queued;
	if (s->q_head < 0)
		s->q_tail = -1;
	n->queued = false;
	return n;
}

/* ---- nng's threads ---- */

/*
 * A pipe of a server counts from ADD_PRE on: its first message can come before ADD_POST. A peer
 * waits for ADD_POST: between the two the protocols are compared.
 */
static void on_add_pre(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	(void)ev;
	struct nsock *s = arg;
	bool take = false;
	pthread_mutex_lock(&s->lock);
	if (!s->dead) {
		struct nng_note *n = note_add(s, (uint32_t)nng_pipe_id(p));
		take = n != NULL;
		if (!take) {
			s->refused++;
			wake_loop(s);
		} else if (!s->is_peer) {
			note_queue(s, n, NOTE_UP);
		}
	}
	pthread_mutex_unlock(&s->lock);
	if (!take)
		nng_pipe_close(p);
}

static void on_add_post(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	(void)ev;
	struct nsock *s = arg;
	pthread_mutex_lock(&s->lock);
	struct nng_note *n = s->dead ? NULL : note_find(s, (uint32_t)nng_pipe_id(p));
	if (n)
		note_queue(s, n, NOTE_UP);
	pthread_mutex_unlock(&s->lock);
}

/*
 * I4. Never at the same time as nng_close: the two would drop one reference of the dialer twice
 * (Debian's 1.5.2: nni_sock_shutdown ignores that nni_dialer_hold failed).
 */
static void dialer_close(struct nsock *s)
{
	pthread_mutex_lock(&s->lock);
	bool ours = !s->closing;
	s->dialer_busy = ours;
	pthread_mutex_unlock(&s->lock);
	if (!ours)
		return;
	nng_dialer_close(s->dialer);
	pthread_mutex_lock(&s->lock);
	s->dialer_busy = false;
	pthread_cond_signal(&s->dialer_idle);
	pthread_mutex_unlock(&s->lock);
}

static void on_rem_post(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	(void)ev;
	struct nsock *s = arg;
	if (s->is_peer)
		dialer_close(s);
	pthread_mutex_lock(&s->lock);
	struct nng_note *n = s->dead ? NULL : note_find(s, (uint32_t)nng_pipe_id(p));
	if (n) /* else it was refused */
		note_queue(s, n, NOTE_GONE);
	pthread_mutex_unlock(&s->lock);
}

/* Our own thread. */
static void *close_main(void *arg)
{
	struct nsock *s = arg;
	pthread_mutex_lock(&s->lock);
	s->closing = true;
	while (s->dialer_busy)
		pthread_cond_wait(&s->dialer_idle, &s->lock);
	pthread_mutex_unlock(&s->lock);
	nng_close(s->id);
	pthread_mutex_lock(&s->lock);
	s->nng_done = true;
	if (!s->dead)
		loop_post(s->loop, &s->close_post);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- the loop's thread ---- */

static void on_post(struct post *p)
{
	struct nsock *s = container_of(p, struct nsock, post);
	pthread_mutex_lock(&s->lock);
	if (s->dead) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	loop_expect(s->loop); /* I2 */
	s->posted = false;
	uint64_t refused = s->refused;
	s->refused = 0;
	struct nng_note *n;
	while ((n = queue_pop(s))) {
		uint32_t pipe = n->pipe;
		uint8_t what = n->what;
		void *conn = n->conn;
		n->what = 0;
		if (what & NOTE_GONE)
			note_del(s, n);
		pthread_mutex_unlock(&s->lock);
		if (what & NOTE_GONE)
			s->ops->gone(s, pipe, conn);
		else
			s->ops->up(s, pipe);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	if (refused > 0 && s->ops->refused)
		s->ops->refused(s, refused);
}

static void sock_free(struct nsock *s)
{
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->dialer_idle);
	free(s->notes);
	free(s->buckets);
	s->notes = NULL;
	s->buckets = NULL;
	s->open = false;
}

static void on_closed(struct post *p)
{
	struct nsock *s = container_of(p, struct nsock, close_post);
	timer_stop(s->loop, &s->close_timer);
	if (s->has_thread)
		pthread_join(s->thread, NULL); /* it may still hold the lock it posted under */
	assert(!s->posted); /* every notice was posted before nng_close returned, and drained */
	inbox_unexpect(&s->loop->inbox); /* I2 */
	sock_free(s);
	s->ops->closed(s, false);
}

static void on_close_late(struct timer *t)
{
	struct nsock *s = container_of(t, struct nsock, close_timer);
	pthread_mutex_lock(&s->lock);
	bool done = s->nng_done, posted = s->posted;
	s->dead = !done;
	pthread_mutex_unlock(&s->lock);
	if (done)
		return; /* its post is on the way */
	LOG_ERROR(
		s->log, "nng",
		"step=close waited_ms=%d msg=\"the library does not close its socket; its memory "
		"stays until this process ends (nng 1.5, issue 1543)\"",
		CLOSE_MS);
	pthread_detach(s->thread);
	inbox_unexpect(&s->loop->inbox); /* close_post */
	if (!posted)
		inbox_unexpect(&s->loop->inbox);
	s->ops->closed(s, true);
}

static enum err table_new(struct nsock *s, uint32_t pipes_max)
{
	s->n_buckets = 16;
	while (s->n_buckets < pipes_max)
		s->n_buckets *= 2;
	s->notes = calloc(pipes_max, sizeof(*s->notes));
	s->buckets = malloc(s->n_buckets * sizeof(*s->buckets));
	if (!s->notes || !s->buckets) {
		free(s->notes);
		free(s->buckets);
		s->notes = NULL;
		s->buckets = NULL;
		return ERR_NO_MEMORY;
	}
	memset(s->buckets, 0xff, s->n_buckets * sizeof(*s->buckets));
	for (uint32_t i = 0; i < pipes_max; i++)
		s->notes[i].next_bucket = i + 1 < pipes_max ? (int32_t)i + 1 : -1;
	s->n_notes = pipes_max;
	s->free = 0;
	s->q_head = s->q_tail = -1;
	return ERR_NONE;
}

enum err nsock_open(struct nsock *s, nng_socket id, bool is_peer, uint32_t pipes_max)
{
	enum err e = table_new(s, MAX_OF(pipes_max, 1u));
	if (e != ERR_NONE)
		return e;
	s->id = id;
	s->is_peer = is_peer;
	s->post.fn = on_post;
	s->close_post.fn = on_closed;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->dialer_idle, NULL);
	nng_pipe_notify(id, NNG_PIPE_EV_ADD_PRE, on_add_pre, s);
	if (is_peer)
		nng_pipe_notify(id, NNG_PIPE_EV_ADD_POST, on_add_post, s);
	nng_pipe_notify(id, NNG_PIPE_EV_REM_POST, on_rem_post, s);
	loop_expect(s->loop);
	s->open = true;
	return ERR_NONE;
}

void nsock_refuse(struct nsock *s)
{
	pthread_mutex_lock(&s->lock);
	s->refuse_all = true;
	pthread_mutex_unlock(&s->lock);
}

bool nsock_set_conn(struct nsock *s, uint32_t pipe, void *conn)
{
	pthread_mutex_lock(&s->lock);
	struct nng_note *n = note_find(s, pipe);
	if (n)
		n->conn = conn;
	pthread_mutex_unlock(&s->lock);
	return n != NULL;
}

void *nsock_conn(struct nsock *s, uint32_t pipe)
{
	pthread_mutex_lock(&s->lock);
	struct nng_note *n = note_find(s, pipe);
	void *conn = n ? n->conn : NULL;
	pthread_mutex_unlock(&s->lock);
	return conn;
}

void nsock_close(struct nsock *s)
{
	loop_expect(s->loop);
	timer_start(s->loop, &s->close_timer, clock_after_ms(loop_now_ns(s->loop), CLOSE_MS),
		    on_close_late);
	s->has_thread = thread_start(&s->thread, NULL, NULL, close_main, s) == 0;
	if (!s->has_thread)
		close_main(s); /* none to be had: wait for it here */
}

enum err nng_to_err(int rv)
{
	switch (rv) {
	case 0:
		return ERR_NONE;
	case NNG_ENOMEM:
		return ERR_NO_MEMORY;
	case NNG_EADDRINUSE:
	case NNG_ENOFILES:
	case NNG_EBUSY:
		return ERR_BUSY;
	case NNG_EADDRINVAL:
	case NNG_EINVAL:
		return ERR_INVALID_PARAMS;
	case NNG_ENOTSUP:
		return ERR_UNSUPPORTED;
	case NNG_ETIMEDOUT:
		return ERR_TIMED_OUT;
	case NNG_EMSGSIZE:
		return ERR_TOO_LARGE;
	case NNG_EPERM:
		return ERR_FORBIDDEN;
	case NNG_ENOSPC:
		return ERR_NO_SPACE;
	case NNG_ECONNREFUSED:
	case NNG_EUNREACHABLE:
	case NNG_ENOENT:
		return ERR_UNREACHABLE;
	default:
		return ERR_CONN_LOST;
	}
}
