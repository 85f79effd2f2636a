/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/inbox.h"

void inbox_init(struct inbox *in, void (*wake)(void *arg), void *wake_arg)
{
	*in = (struct inbox){ .wake = wake, .wake_arg = wake_arg };
	in->tail = &in->head;
	pthread_mutex_init(&in->lock, NULL);
}

void inbox_fini(struct inbox *in)
{
	assert(in->head == NULL);
	assert(in->expected == 0); /* I2 */
	pthread_mutex_destroy(&in->lock);
}

void inbox_expect(struct inbox *in)
{
	in->expected++;
}

void inbox_unexpect(struct inbox *in)
{
	assert(in->expected > 0);
	in->expected--;
}

/* Under the lock. */
static bool push(struct inbox *in, struct post *p)
{
	assert(!p->queued); /* I4 */
	p->queued = true;
	p->next = NULL;
	bool was_empty = in->head == NULL;
	*in->tail = p;
	in->tail = &p->next;
	return was_empty;
}

bool inbox_put(struct inbox *in, struct post *p)
{
	pthread_mutex_lock(&in->lock);
	bool was_empty = push(in, p);
	pthread_mutex_unlock(&in->lock);
	return was_empty;
}

void inbox_post(struct inbox *in, struct post *p)
{
	pthread_mutex_lock(&in->lock);
	if (push(in, p))
		in->wake(in->wake_arg); /* I3 */
	pthread_mutex_unlock(&in->lock);
}

size_t inbox_drain(struct inbox *in)
{
	pthread_mutex_lock(&in->lock);
	struct post *p = in->head;
	in->head = NULL;
	in->tail = &in->head;
	pthread_mutex_unlock(&in->lock);

	size_t n = 0;
	while (p) {
		struct post *next = p->next;
		p->queued = false; /* ours alone now: the producer handed it over */
		assert(in->expected > 0);
		in->expected--;
		p->fn(p);
		p = next;
		n++;
	}
	return n;
}
