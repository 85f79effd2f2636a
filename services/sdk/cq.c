/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues. The eventfd is readable exactly while the list is not empty: written on the
 * first push, read when the last one is taken, both under the lock.
 */
#include "sdk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct pml_cq {
	struct guard *guard;
	int fd;
	uint32_t depth;
	pthread_mutex_t lock;
	uint32_t n_slots; /* under way and uncollected */
	struct list done;
};

int pml_cq_new(struct pml *p, uint32_t depth, struct pml_cq **out, struct pml_error *err)
{
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!out)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "queue", "out is NULL");
	if (depth < 1 || depth > SDK_CQ_DEPTH_MAX)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "queue",
				 "depth = %u: out of 1..%d", depth, SDK_CQ_DEPTH_MAX);
	struct pml_cq *cq = calloc(1, sizeof(*cq));
	int fd = cq ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
	if (fd < 0) {
		enum err why = cq ? err_from_errno(errno) : ERR_NO_MEMORY;
		free(cq);
		return sdk_error(err, why, 0, NULL, "queue",
				 "no memory or descriptor for a queue");
	}
	*cq = (struct pml_cq){ .guard = guard_ref(p->guard), .fd = fd, .depth = depth };
	pthread_mutex_init(&cq->lock, NULL);
	list_init(&cq->done);
	*out = cq;
	return PML_ERR_NONE;
}

int pml_cq_fd(const struct pml_cq *cq)
{
	return cq && guard_ok(cq->guard) ? cq->fd : -1;
}

bool cq_is_of(const struct pml_cq *cq, const struct pml *p)
{
	return cq->guard == p->guard;
}

enum err cq_take_slot(struct pml_cq *cq)
{
	pthread_mutex_lock(&cq->lock);
	bool full = cq->n_slots == cq->depth;
	cq->n_slots += !full;
	pthread_mutex_unlock(&cq->lock);
	return full ? ERR_BUSY : ERR_NONE;
}

void cq_drop_slot(struct pml_cq *cq)
{
	pthread_mutex_lock(&cq->lock);
	assert(cq->n_slots > 0);
	cq->n_slots--;
	pthread_mutex_unlock(&cq->lock);
}

void cq_push(struct pml_cq *cq, struct pml_op *op)
{
	uint64_t one = 1;
	pthread_mutex_lock(&cq->lock);
	bool was_empty = list_empty(&cq->done);
	list_push_back(&cq->done, &op->cq_node);
	if (was_empty) {
		ssize_t n = write(cq->fd, &one, sizeof(one));
		assert(n == sizeof(one));
		(void)n;
	}
	pthread_mutex_unlock(&cq->lock);
}

/* Under the lock: n were taken from the list. */
static void taken(struct pml_cq *cq, uint32_t n)
{
	uint64_t count;
	cq->n_slots -= n;
	if (n > 0 && list_empty(&cq->done)) {
		ssize_t r = read(cq->fd, &count, sizeof(count));
		(void)r; /* EAGAIN: somebody read it, against the manual */
	}
}

void cq_pull(struct pml_cq *cq, struct pml_op *op)
{
	pthread_mutex_lock(&cq->lock);
	bool there = list_linked(&op->cq_node);
	list_del(&op->cq_node);
	taken(cq, there);
	pthread_mutex_unlock(&cq->lock);
}

size_t pml_cq_poll(struct pml_cq *cq, struct pml_op **ops, size_t max)
{
	size_t n = 0;
	if (!cq || !ops || !guard_ok(cq->guard))
		return 0;
	pthread_mutex_lock(&cq->lock);
	while (n < max && !list_empty(&cq->done)) {
		struct list *node = list_pop_front(&cq->done);
		ops[n] = list_entry(node, struct pml_op, cq_node);
		ops[n++]->collected = true;
	}
	taken(cq, (uint32_t)n);
	pthread_mutex_unlock(&cq->lock);
	return n;
}

size_t pml_cq_wait(struct pml_cq *cq, struct pml_op **ops, size_t max, uint32_t wait_ms)
{
	if (!cq || !ops || !guard_ok(cq->guard))
		return 0;
	uint64_t until = clock_after_ms(clock_real.now_ns(&clock_real), wait_ms);
	for (;;) {
		size_t n = pml_cq_poll(cq, ops, max);
		uint64_t left = clock_left_ms(until, clock_real.now_ns(&clock_real));
		if (n > 0 || left == 0 || max == 0)
			return n;
		struct pollfd p = { .fd = cq->fd, .events = POLLIN };
		if (poll(&p, 1, (int)MIN_OF(left, INT32_MAX)) < 0 && errno != EINTR)
			return 0;
	}
}

int pml_cq_free(struct pml_cq *cq)
{
	if (!cq)
		return PML_ERR_NONE;
	if (!guard_ok(cq->guard))
		return PML_ERR_FORKED;
	pthread_mutex_lock(&cq->lock);
	bool used = cq->n_slots > 0;
	pthread_mutex_unlock(&cq->lock);
	if (used)
		return PML_ERR_BUSY;
	close(cq->fd);
	pthread_mutex_destroy(&cq->lock);
	guard_unref(cq->guard);
	free(cq);
	return PML_ERR_NONE;
}
