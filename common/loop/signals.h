/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals of a daemon: SIGTERM and SIGINT ask for a drain, SIGHUP opens the log again or does nothing
 * (a closed terminal does not end a service), SIGPIPE is ignored (a write to a gone peer is EPIPE). For main() of a
 * daemon only: libpomelo never touches its host's signals.
 * Thread: the loop's.
 */
#pragma once

#include "loop/loop.h"

struct signals;

/* n_th counts from 1: a second signal may cut the grace short. owned, signals_close().
 * ERR_UNSUPPORTED for the loop of a simulation, ERR_NO_MEMORY. */
enum err signals_open(struct loop *l, void (*drain)(void *arg, int signum, uint32_t n_th),
		      void *arg, struct signals **out) MUST_CHECK;
/* hup runs on each SIGHUP; NULL: it does nothing again. */
void signals_on_hup(struct signals *s, void (*hup)(void *arg));
/* SIGTERM and SIGINT end the process again from here on. NULL is fine. */
void signals_close(struct signals *s);
