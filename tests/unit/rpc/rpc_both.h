/* SPDX-License-Identifier: Apache-2.0 */
/* BOTH(suite, name) { ... addr ... }: one test over tcp and one over a unix socket. */
#pragma once

#include <criterion/criterion.h>

#include "rpc_fix.h"
#include "support/leak.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A socket path of this process; the caller prefixes nothing. */
static inline const char *ipc_addr(char out[64])
{
	snprintf(out, 64, "ipc:///tmp/pomelo-test-%d.sock", (int)getpid());
	return out;
}

#define BOTH(suite, name)                        \
	static void name##_on(const char *addr); \
	Test(suite, name##_tcp)                  \
	{                                        \
		name##_on("tcp://127.0.0.1:0");  \
	}                                        \
	Test(suite, name##_ipc)                  \
	{                                        \
		char path_[64];                  \
		name##_on(ipc_addr(path_));      \
	}                                        \
	static void name##_on(const char *addr)
