/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nng engine under ThreadSanitizer: a server on one loop's thread and clients on another's,
 * exchanges, cancellation, dials, hang-ups and a close under load. nng's own threads post into both.
 *
 * What TSan can see: libnng is not built for it, so its memory accesses are unknown but for those
 * in intercepted calls (memcpy, read, write); its pthread locks and threads are intercepted, so
 * that what it hands over under a lock counts as handed over. Our callbacks on its threads
 * (on_aio, on_add_pre, on_rem_post, close_main) and the loop's side of the same data are instrumented in
 * full: that is what this program is for.
 */
#include "support/eng_fix.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 12, SLOTS = 32, EXCHANGES = 400 };

static struct fix_server sv;
static struct fix_client cl;
static atomic_bool serving, stop;

static void *serve(void *arg)
{
	struct loop l;
	(void)arg;
	enum err e = loop_open(&l);
	assert(e == ERR_NONE);
	fix_serve(&sv, &l, &engine_nng, "tcp://127.0.0.1:0", NULL, NULL);
	sv.know = true;
	serving = true;
	while (!stop)
		fix_run(&l, 10);
	fix_server_end(&sv);
	loop_close(&l);
	return NULL;
}

/* Every fifth exchange is given up in some state of its; n_done counts the others. */
static uint32_t one_round(struct loop *l, unsigned *seed, bool last)
{
	uint32_t given_up = 0, sent = 0;
	struct why why = { 0 };
	char addr[300];
	memcpy(addr, sv.addr, sizeof(addr));
	enum err e = fix_dial(&cl, l, &engine_nng, addr, NULL, NULL, &why);
	assert(e == ERR_NONE);
	if (!RUN_UNTIL(l, cl.n_up || cl.n_down, 5000) || !cl.n_up) {
		fix_client_end(&cl);
		return 0;
	}
	while (sent < EXCHANGES && !cl.n_down) {
		for (uint32_t i = 0; i < SLOTS; i++) {
			if (cl.xchg[i].out)
				continue;
			e = fix_send(&cl, i, rand_r(seed) % 3000);
			assert(e == ERR_NONE || e == ERR_CONN_LOST);
			sent += e == ERR_NONE;
			if (e == ERR_NONE && sent % 5 == 0 && cl.xchg[i].out) {
				for (unsigned k = rand_r(seed) % 3; k > 0; k--)
					loop_run_once(l, false);
				if (cl.xchg[i].out) {
					cl.eng->cancel(cl.p, &cl.xchg[i].x);
					cl.xchg[i].out = false;
					given_up++;
				}
			}
		}
		loop_run_once(l, true);
	}
	/* the last one hangs up with exchanges out */
	if (!last)
		(void)RUN_UNTIL(l, cl.n_done + given_up >= sent, 5000);
	uint32_t done = cl.n_done;
	fix_client_end(&cl);
	return done;
}

int main(void)
{
	pthread_t server;
	struct loop l;
	unsigned seed = 1;
	uint32_t total = 0;
	signal(SIGPIPE, SIG_IGN);
	enum err e = loop_open(&l);
	assert(e == ERR_NONE);
	int r = pthread_create(&server, NULL, serve, NULL);
	assert(r == 0);
	while (!serving)
		usleep(1000);
	for (int i = 0; i < ROUNDS; i++)
		total += one_round(&l, &seed, i + 1 == ROUNDS);
	stop = true;
	pthread_join(server, NULL);
	loop_close(&l);
	assert(total > ROUNDS * EXCHANGES / 2);
	printf("%u exchanges\n1 passed, 0 failed\n", total);
	return 0;
}
