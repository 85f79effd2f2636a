/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder that is away while its objects are removed, replaced and evicted, and comes back: stopped and
 * woken, or killed and started again; within the budget of tombstones, and over it. Nothing dead returns,
 * now or after the next restart of the master; what nobody touched is there, unless a floor took it (T3,
 * V7, V11, V14).
 *
 *   store_away [-r ROUNDS] [-s SEED]
 */
#include "store_rig.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { PART = 12, KEYS = 3 * PART, BYTES = 5000 };

static uint64_t generation;
static struct rig rig = { .pool_mib = 32, .dead_ms = 1500, .discard_ms = 300 };

static uint64_t old_seed(unsigned i)
{
	return 1000 + i + generation * 100000;
}

static uint64_t new_seed(unsigned i)
{
	return 50000 + i + generation * 100000;
}

static const char *key_of(unsigned i)
{
	static char key[32];
	snprintf(key, sizeof(key), "away/%" PRIu64 "/%u", generation, i);
	return key;
}

static void put_all(void)
{
	for (unsigned i = 0; i < KEYS; i++)
		CHECK(&rig, rig_put(&rig, key_of(i), old_seed(i), BYTES, true, 1, NULL) == 0,
		      "put %s", key_of(i));
}

/* The first third is removed, the second replaced, the last one left. */
static void change(void)
{
	for (unsigned i = 0; i < 2 * PART; i++) {
		bool gone = i < PART;
		int code = gone ? rig_remove(&rig, key_of(i))
				: rig_put(&rig, key_of(i), new_seed(i), BYTES, true, 0, NULL);
		CHECK(&rig, code == 0, "%s of %s while agent 1 is away: %s",
		      gone ? "remove" : "upsert", key_of(i), pml_error_name(code));
	}
}

static void look(bool floored, const char *when)
{
	for (unsigned i = 0; i < KEYS; i++) {
		uint64_t seed = i < 2 * PART && i >= PART ? new_seed(i) : old_seed(i);
		unsigned which;
		int code = rig_get(&rig, key_of(i), &seed, 1, BYTES, &which);
		if (i < PART)
			CHECK(&rig, code == PML_ERR_NOT_FOUND,
			      "%s: %s was removed, and is there (%s)", when, key_of(i),
			      pml_error_name(code));
		else if (i < 2 * PART || !floored)
			CHECK(&rig, code == 0, "%s: %s: %s", when, key_of(i),
			      pml_error_name(code));
		else
			CHECK(&rig, code == 0 || code == PML_ERR_NOT_FOUND, "%s: %s: %s", when,
			      key_of(i), pml_error_name(code));
	}
}

static void leave(bool stopped)
{
	if (stopped)
		kill(rig.agent[1].pid, SIGSTOP);
	else
		rig_kill(&rig, &rig.agent[1]);
	rig_until(&rig, 1, "away");
}

static void come_back(bool stopped)
{
	if (stopped)
		kill(rig.agent[1].pid, SIGCONT);
	else
		rig_agent(&rig, 1, NULL);
	rig_settled(&rig);
}

static void master_restart(void)
{
	rig_kill(&rig, &rig.master);
	rig_master(&rig, NULL);
	rig_settled(&rig);
}

static void one_round(bool stopped, bool floored, bool master_dies)
{
	generation++;
	put_all();
	leave(stopped);
	change();
	if (rig_chance(&rig.rng, 2))
		rig_turn_over(&rig, 0.5, true); /* evicts */
	if (master_dies)
		rig_kill(&rig, &rig.master);
	if (master_dies)
		rig_master(&rig, NULL);
	come_back(stopped);
	look(floored, "it is back");
	master_restart();
	look(floored, "the master was restarted");
	printf("%s, %s%s: nothing dead came back\n", stopped ? "stopped" : "killed",
	       floored ? "over the budget" : "tombstones",
	       master_dies ? ", master killed meanwhile" : "");
}

int main(int argc, char **argv)
{
	unsigned rounds = 1;
	int code, c;
	if (rig_kid_main(argc, argv, &code))
		return code;
	rig.rng = (uint64_t)getpid() | 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt(argc, argv, "r:s:f")) > 0) {
		if (c == 'r')
			rounds = (unsigned)strtoul(optarg, NULL, 10);
		if (c == 's')
			rig.rng = strtoull(optarg, NULL, 10);
		if (c == 'f')
			rig.budget = 5; /* tombstones a holder: the sixth is a floor */
	}
	printf("seed %" PRIu64 "\n", rig.rng);
	rig_up(&rig);
	for (unsigned i = 0; i < rounds; i++)
		for (unsigned k = 0; k < 4; k++)
			one_round(k & 1, rig.budget != 0, k & 2);
	rig_down(&rig);
	return 0;
}
