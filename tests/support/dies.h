/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of checks: does fn(arg) abort, and what does it say? It runs in a child of ours, whose
 * standard error is collected.
 */
#pragma once

#include "base/def.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool dies(void (*fn)(void *arg), void *arg, char *text, size_t size)
{
	int p[2], status;
	if (pipe(p) != 0)
		abort();
	pid_t pid = fork();
	if (pid == 0) {
		dup2(p[1], 2);
		close(p[0]);
		fn(arg);
		_exit(0);
	}
	close(p[1]);
	size_t n = 0;
	for (ssize_t r; n < size - 1 && (r = read(p[0], text + n, size - 1 - n)) > 0;)
		n += (size_t)r;
	text[n] = 0;
	close(p[0]);
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
