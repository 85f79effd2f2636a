/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/signals.h"

#include <signal.h>
#include <uv.h>

enum { SIG_N = 3 };
static const int caught[SIG_N] = { SIGTERM, SIGINT, SIGHUP };

struct signals {
	void (*drain)(void *arg, int signum, uint32_t n_th);
	void (*hup)(void *arg);
	void *arg;
	uint32_t seen;
	unsigned open; /* handles that are not closed yet */
	uv_signal_t handles[SIG_N];
};

static void on_signal(uv_signal_t *h, int signum)
{
	struct signals *s = h->data;
	if (signum != SIGHUP)
		s->drain(s->arg, signum, ++s->seen);
	else if (s->hup)
		s->hup(s->arg);
}

void signals_on_hup(struct signals *s, void (*hup)(void *arg))
{
	s->hup = hup;
}

static void ignore(int signum)
{
	struct sigaction sa = { .sa_handler = SIG_IGN };
	sigemptyset(&sa.sa_mask);
	sigaction(signum, &sa, NULL);
}

static void handle_closed(uv_handle_t *h)
{
	struct signals *s = h->data;
	if (--s->open == 0)
		free(s);
}

enum err signals_open(struct loop *l, void (*drain)(void *arg, int signum, uint32_t n_th),
		      void *arg, struct signals **out)
{
	if (!loop_uv(l))
		return ERR_UNSUPPORTED;
	struct signals *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	s->drain = drain;
	s->arg = arg;
	int r = 0;
	for (; s->open < SIG_N && r == 0; s->open++) {
		uv_signal_t *h = &s->handles[s->open];
		r = uv_signal_init(loop_uv(l), h);
		if (r)
			break;
		h->data = s;
		r = uv_signal_start(h, on_signal, caught[s->open]);
		uv_unref((uv_handle_t *)h);
	}
	if (r && s->open == 0)
		free(s);
	else if (r)
		signals_close(s);
	if (r)
		return err_from_errno(-r);
	ignore(SIGPIPE);
	*out = s;
	return ERR_NONE;
}

void signals_close(struct signals *s)
{
	if (!s)
		return;
	for (unsigned i = 0, n = s->open; i < n; i++)
		uv_close((uv_handle_t *)&s->handles[i], handle_closed);
}
