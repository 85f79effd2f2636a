/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that no signal is delivered to: they are for the main thread, or the application's.
 *
 * Thread: any.
 */
#pragma once

#include <pthread.h>
#include <signal.h>

/*
 * at   NULL: defaults; borrowed for the call
 * name at most 15 bytes, seen in ps and top; NULL: its starter's
 *
 * 0, or an errno of pthread_create. Whoever starts it joins it.
 */
static inline int thread_start(pthread_t *out, const pthread_attr_t *at, const char *name,
			       void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(out, at, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0 && name)
		pthread_setname_np(*out, name);
	return r;
}
