/* SPDX-License-Identifier: Apache-2.0 */
/* The toy service as a program: echo_main ADDRESS SECRET-FILE. For clusters of real processes. */
#include "tests/sim/echo_svc.h"

#include "loop/signals.h"
#include "rpc/auth.h"

struct main {
	struct loop loop;
	struct signals *signals;
	struct echo echo;
	struct echo_world world;
	bool ended;
};

static void on_signal(void *arg, int signum, uint32_t n_th)
{
	struct main *m = arg;
	(void)signum;
	echo_end(&m->echo, n_th > 1);
}

static void on_ended(void *arg)
{
	struct main *m = arg;
	m->ended = true;
	signals_close(m->signals);
	loop_stop(&m->loop);
}

int main(int argc, char **argv)
{
	static struct main m;
	struct keyring *keys;
	struct why why = { 0 };
	if (argc != 3) {
		fprintf(stderr, "usage: echo_main ADDRESS SECRET-FILE\n");
		return 2;
	}
	m.world.rng = sim_rng(1, "main");
	enum err e = keyring_load(argv[2], &keys, &why);
	if (e == ERR_NONE)
		e = loop_open(&m.loop);
	if (e == ERR_NONE)
		e = signals_open(&m.loop, on_signal, &m, &m.signals);
	struct echo_env env = { .loop = &m.loop,
				.keys = keys,
				.addr = argv[1],
				.world = &m.world,
				.ended = on_ended,
				.arg = &m };
	if (e == ERR_NONE)
		e = echo_open(&env, &m.echo, &why);
	if (e != ERR_NONE) {
		fprintf(stderr, "%s: %s\n", err_name(e), why.text);
		return 1;
	}
	loop_run(&m.loop);
	loop_close(&m.loop);
	keyring_free(keys);
	return 0;
}
