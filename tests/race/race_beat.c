/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beats under TSan: sender threads, the table's thread and the loop that reads, lists and closes, all
 * at once. Prints "N passed, N failed".
 */
#include "svc/beat.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rpc/auth.h"

#define N_SENDERS 6
#define ROUNDS	  5

static void on_news(void *ctx, uint64_t last_ack_ns, struct beat_news *out)
{
	const struct loop *l = ctx;
	*out = (struct beat_news){ .loop_turns = __atomic_load_n(&l->turns, __ATOMIC_RELAXED),
				   .ready = true };
}

static void on_ping(void *ctx, uint64_t late_ns)
{
}

static void on_closed(void *arg)
{
	--*(int *)arg;
}

static void no_line(struct log_capture *c, const char *line, size_t n)
{
}

static size_t n_ready(struct beat_table *t)
{
	struct beat_peer p[N_SENDERS + 1];
	size_t n = beat_table_list(t, 0, p, N_SENDERS + 1), ready = 0;
	for (size_t i = 0; i < n; i++)
		ready += p[i].state == BEAT_READY;
	return ready;
}

static bool round_of(const char *dir, struct keyring *keys, unsigned round)
{
	struct loop l;
	struct log log = { .svc = "race" };
	struct log_capture quiet = { no_line };
	struct beat_table *table;
	struct beat_sender *b[N_SENDERS];
	char to[96], from[N_SENDERS][96], name[N_SENDERS][16];
	const char *addr[] = { to };
	int open = 0;
	log_set_capture(&log, &quiet);
	snprintf(to, sizeof(to), "unix:%s/beat.sock", dir);
	struct beat_table_opts o = { .keys = keys,
				     .log = &log,
				     .listen = addr,
				     .n_listen = 1,
				     .suspect_ms = 2000,
				     .dead_ms = 9000 };
	if (loop_open(&l) || beat_table_open(&l, &o, &table, NULL))
		return false;
	open++;
	for (unsigned i = 0; i < N_SENDERS; i++) {
		uint8_t instance[16] = { (uint8_t)i, (uint8_t)round };
		snprintf(from[i], sizeof(from[i]), "unix:%s/s%u.beat", dir, i);
		snprintf(name[i], sizeof(name[i]), "s%u", i);
		struct beat_sender_opts so = { .name = name[i],
					       .role = ROLE_SERVICE,
					       .keys = keys,
					       .instance = instance,
					       .log = &log,
					       .to = addr,
					       .n_to = 1,
					       .from = from[i],
					       .beat_ms = 3,
					       .news = on_news,
					       .ping = on_ping,
					       .ctx = &l };
		if (beat_sender_open(&l, &so, &b[i], NULL))
			return false;
		open++;
	}
	bool good = false;
	for (unsigned k = 0; k < 2000 && !good; k++) {
		struct beat_table_counters c;
		loop_run_once(&l, false);
		beat_table_counters(table, &c);
		good = n_ready(table) == N_SENDERS && c.stamped > 40 * N_SENDERS;
		usleep(500);
	}
	/* the table goes first in every second round */
	if (round % 2)
		beat_table_close(table, on_closed, &open);
	for (unsigned i = 0; i < N_SENDERS; i++)
		beat_sender_close(b[i], on_closed, &open);
	if (round % 2 == 0)
		beat_table_close(table, on_closed, &open);
	while (open > 0)
		loop_run_once(&l, true);
	loop_close(&l);
	return good;
}

int main(void)
{
	static const uint8_t secret[32] = { 3 };
	struct keyring *keys;
	char dir[] = "/tmp/pml-race-XXXXXX";
	unsigned passed = 0;
	if (!mkdtemp(dir) || keyring_new(secret, NULL, &keys))
		return 1;
	for (unsigned i = 0; i < ROUNDS; i++)
		passed += round_of(dir, keys, i);
	keyring_free(keys);
	rmdir(dir);
	printf("%u passed, %u failed\n", passed, ROUNDS - passed);
	return passed != ROUNDS;
}
