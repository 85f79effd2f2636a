/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_stop [-r ROUNDS] [-s SEED] [client|agent|master ...]
 *
 * Real processes stopped with SIGSTOP at each row of the put table and of a get (docs/decisions/0030):
 *
 *   client  a writer at each of its rows and a reader at each of its places, all at once; their space
 *           is wanted and evicted, the readers' objects are removed, the master is killed and started
 *           again; then all go on
 *   agent   the agent at each of its rows; it is away by then, its pool's objects are replaced and
 *           removed, the master is killed and started again; then it goes on
 *   master  the master at each of its rows; killed there, or going on after it was missed
 *
 * No byte of another object ever changes, a stopped writer's commit is refused (and its put done again,
 * as time is left) or true, a reader never gets foreign bytes, and nothing dead returns. Prints what
 * came of it; needs a build with fault points.
 */
#include "store_rig.h"

#include "base/fault.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SKIPPED = 77, KID_MS = 60000, SHORT_MS = 4000 };

static struct rig rig = { .pool_mib = 16, .dead_ms = 1500, .discard_ms = 300 };

/* What came of all rounds. */
static struct {
	unsigned rounds, first, redone, failed, read, missed;
} sum;

static void name(struct kid *k, const char *row, size_t n)
{
	*k = (struct kid){ .row = row, .seed = ++rig.gen, .n = n };
	snprintf(k->key, sizeof(k->key), "k/%" PRIu64, k->seed);
}

/* ---- clients ---- */

static const char *const writers[] = { "put_granted",	 "put_hazard", "put_looked",
				       "put_half",	 "put_copied", "put_cleared",
				       "put_commit_sent" };
static const char *const readers[] = { "get_queried", "get_half", "get_copied" };
enum { N_WRITERS = ARRAY_LEN(writers), N_KIDS = N_WRITERS + ARRAY_LEN(readers) };

static void stop_all(struct kid *kids, unsigned round)
{
	char faults[40];
	for (unsigned i = 0; i < N_KIDS; i++) {
		struct kid *k = &kids[i];
		bool reads = i >= N_WRITERS;
		/* with and without a vector of sums behind the bytes */
		name(k, reads ? readers[i - N_WRITERS] : writers[i],
		     (round + i) % 2 ? 200000 + i : 1300000 + i);
		snprintf(faults, sizeof(faults), "%s:stop", k->row);
		if (reads)
			CHECK(&rig, rig_put(&rig, k->key, k->seed, k->n, false, -1, NULL) == 0,
			      "%s", k->key);
		kid_start(&rig, k, reads ? "get" : "put", faults, (int)(round + i) % RIG_AGENTS,
			  round % 4 == 3 ? SHORT_MS : KID_MS);
		bool stopped = rig_stopped(k->pid, RIG_WAIT_MS);
		if (!stopped)
			kid_show(k);
		CHECK(&rig, stopped, "%s: it did not stop there", k->row);
	}
}

/* What a writer says is what is there; an attempt of before the stop is not what it got. */
static void judge_writer(struct kid *k, uint64_t version)
{
	int code = rig_get(&rig, k->key, &k->seed, 1, k->n, NULL);
	CHECK(&rig, code == 0 || code == PML_ERR_NOT_FOUND, "%s: get: %d", k->row, code);
	CHECK(&rig, k->code != 0 || code == 0, "%s: its put succeeded and is not there",
	      k->row);
	if (k->code != 0) {
		sum.failed++;
		return;
	}
	bool first = k->version < version;
	CHECK(&rig, !first || strcmp(k->row, "put_commit_sent") == 0,
	      "%s: version %" PRIx64 " was fenced and its space given out, yet it is published",
	      k->row, k->version);
	sum.first += first;
	sum.redone += !first;
}

static void judge(struct kid *k, uint64_t version)
{
	kid_wait(&rig, k);
	if (!k->get) {
		judge_writer(k, version);
		return;
	}
	CHECK(&rig,
	      k->code == 0 || k->code == PML_ERR_NOT_FOUND || k->code == PML_ERR_LEASE_LOST ||
		      k->code == PML_ERR_TIMED_OUT,
	      "%s: %s", k->row, k->text);
	sum.read += k->code == 0;
	sum.missed += k->code != 0;
}

static void round_client(unsigned round)
{
	struct kid kids[N_KIDS];
	rig_turn_over(&rig, 0.3, false);
	stop_all(kids, round);
	for (unsigned i = N_WRITERS; i < N_KIDS; i++)
		CHECK(&rig, rig_remove(&rig, kids[i].key) == 0, "%s", kids[i].key);
	rig_sleep(rig.discard_ms + 50); /* the attempts are fenced from now on */
	rig_turn_over(&rig, 1.2, false);
	if (round % 4 != 2) {
		rig_kill(&rig, &rig.master);
		rig_master(&rig, NULL);
		rig_turn_over(&rig, 0.5, false);
	}
	rig_compare(&rig);
	uint64_t version = rig.version;
	for (unsigned i = 0; i < N_KIDS; i++)
		kill(kids[i].pid, SIGCONT);
	rig_compare(&rig); /* while they go on */
	for (unsigned i = 0; i < N_KIDS; i++)
		judge(&kids[i], version);
	rig_compare(&rig);
	for (unsigned i = 0; i < N_WRITERS; i++)
		CHECK(&rig, rig_remove(&rig, kids[i].key) == 0, "%s", kids[i].key);
}

/* ---- an agent ---- */

/* The old value, the kid's and a later one of ours, of one key. */
struct three {
	struct kid kid;
	uint64_t old, late;
};

static const char *const agent_rows[] = { "commit_slot", "commit_published" };

/* A kid whose put ended elsewhere (the agent it prefers may be full) makes room for another. */
static void upsert_until_stopped(struct kid *k, const struct proc *p)
{
	for (int i = 0; i < 20; i++) {
		kid_start(&rig, k, "upsert", NULL, 0, KID_MS);
		for (int ms = 0; ms < RIG_WAIT_MS && !rig_ended(k->pid); ms += 50)
			if (rig_stopped(p->pid, 50))
				return;
		kid_wait(&rig, k);
		CHECK(&rig, k->code == 0, "%s: %s", k->row, k->text);
		rig_turn_over(&rig, 0.1, false);
	}
	CHECK(&rig, false, "%s: it does not stop there", k->row);
}

static void begin_three(struct three *t, const char *row)
{
	name(&t->kid, row, 150000);
	t->old = ++rig.gen;
	t->late = ++rig.gen;
	CHECK(&rig, rig_put(&rig, t->kid.key, t->old, t->kid.n, false, 0, NULL) == 0, "%s",
	      t->kid.key);
}

/* With the agent away: its key is replaced, removed, or left alone. */
static void change(struct three *t, unsigned how)
{
	int code = 0;
	if (how == 0)
		code = rig_put(&rig, t->kid.key, t->late, t->kid.n, true, 1, NULL);
	if (how == 1)
		code = rig_remove(&rig, t->kid.key);
	CHECK(&rig, code == 0, "%s: %s", t->kid.row, pml_error_name(code));
}

/*
 * The kid's put may come before or after ours, or again after it when it is done again. The old value
 * is dead once ours was acknowledged, or the kid's.
 */
static void judge_three(struct three *t, unsigned how)
{
	const uint64_t seeds[] = { t->old, t->kid.seed, t->late };
	unsigned which = 3;
	kid_wait(&rig, &t->kid);
	rig_settled(&rig);
	int code = rig_get(&rig, t->kid.key, seeds, 3, t->kid.n, &which);
	CHECK(&rig, code == 0 || code == PML_ERR_NOT_FOUND, "%s: get: %d", t->kid.row, code);
	CHECK(&rig, which != 0 || (how == 2 && t->kid.code != 0),
	      "%s: the old value is back (%u; %s)", t->kid.row, how, t->kid.text);
	CHECK(&rig, which != 3 || how == 1, "%s: nothing is there (%u; %s)", t->kid.row, how,
	      t->kid.text);
	CHECK(&rig, which != 2 || how == 0, "%s: a value nobody put", t->kid.row);
	sum.failed += t->kid.code != 0;
	sum.first += t->kid.code == 0;
	if (t->kid.code != 0)
		printf("%s (%u): %s", t->kid.row, how, t->kid.text);
	CHECK(&rig, rig_remove(&rig, t->kid.key) == 0, "%s", t->kid.key);
}

static void round_agent(unsigned round)
{
	struct three t;
	char faults[40];
	unsigned how = round / 2 % 3;
	begin_three(&t, agent_rows[round % 2]);
	snprintf(faults, sizeof(faults), "%s:stop", t.kid.row);
	rig_kill(&rig, &rig.agent[0]);
	rig_agent(&rig, 0, faults);
	rig_settled(&rig);
	upsert_until_stopped(&t.kid, &rig.agent[0]);
	rig_until(&rig, 0, "away");
	change(&t, how);
	rig_turn_over(&rig, 0.6, false);
	rig_kill(&rig, &rig.master);
	rig_master(&rig, NULL);
	rig_turn_over(&rig, 0.2, false);
	if (round % 5 == 4) { /* what it was doing is found in its pool */
		rig_kill(&rig, &rig.agent[0]);
		rig_agent(&rig, 0, NULL);
	} else {
		proc_signal(&rig.agent[0], SIGCONT);
	}
	rig_compare(&rig);
	judge_three(&t, how);
	rig_compare(&rig);
}

/* ---- the master ---- */

static const char *const master_rows[] = { "publish_retired", "publish_tombs",
					   "publish_indexed" };

/* Agent 1 is away with the old value, so that there is a tombstone to write. */
static void round_master(unsigned round)
{
	struct three t;
	char faults[40];
	bool away = round % 3 == 1, goes_on = round / 3 % 2;
	name(&t.kid, master_rows[round % 3], 150000);
	t.old = ++rig.gen;
	t.late = 0;
	CHECK(&rig, rig_put(&rig, t.kid.key, t.old, t.kid.n, false, away, NULL) == 0, "%s",
	      t.kid.key);
	snprintf(faults, sizeof(faults), "%s:stop", t.kid.row);
	if (away) {
		proc_signal(&rig.agent[1], SIGSTOP);
		rig_until(&rig, 1, "away");
	}
	rig_kill(&rig, &rig.master);
	rig_master(&rig, faults);
	away ? rig_until(&rig, 0, "in") : rig_settled(&rig);
	upsert_until_stopped(&t.kid, &rig.master);
	if (goes_on) {
		rig_sleep(rig.dead_ms + 500); /* it will have missed everybody */
		proc_signal(&rig.master, SIGCONT);
	} else {
		rig_kill(&rig, &rig.master);
		rig_master(&rig, NULL);
	}
	proc_signal(&rig.agent[1], SIGCONT);
	rig_turn_over(&rig, 0.2, false);
	judge_three(&t, 2);
	rig_compare(&rig);
}

/* ---- all of it ---- */

struct part {
	const char *name;
	void (*round)(unsigned round);
	unsigned rows;
	bool wanted;
};

static struct part parts[] = { { "client", round_client, 1, false },
			       { "agent", round_agent, ARRAY_LEN(agent_rows), false },
			       { "master", round_master, ARRAY_LEN(master_rows), false } };

static void run(const struct part *p, unsigned rounds)
{
	uint64_t begin = rig_now_ms();
	memset(&sum, 0, sizeof(sum));
	for (unsigned i = 0; i < rounds * p->rows; i++)
		p->round(i);
	printf("%s: %u rounds a row in %" PRIu64
	       " ms: %u puts by their first attempt, %u redone, %u failed; %u gets read, %u "
	       "missed; %u others compared, %u of them evicted\n",
	       p->name, rounds, rig_now_ms() - begin, sum.first, sum.redone, sum.failed,
	       sum.read, sum.missed, rig.compared, rig.evicted);
}

int main(int argc, char **argv)
{
	unsigned rounds = 1;
	int code, c;
	if (rig_kid_main(argc, argv, &code))
		return code;
	rig.rng = (uint64_t)getpid();
	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt(argc, argv, "r:s:")) > 0) {
		if (c == 'r')
			rounds = (unsigned)strtoul(optarg, NULL, 10);
		if (c == 's')
			rig.rng = strtoull(optarg, NULL, 10);
	}
	if (!fault_built()) {
		printf("no fault points in this build\n");
		return SKIPPED;
	}
	printf("seed %" PRIu64 "\n", rig.rng);
	for (int i = optind; i < argc; i++)
		for (unsigned k = 0; k < ARRAY_LEN(parts); k++)
			parts[k].wanted |= strcmp(argv[i], parts[k].name) == 0;
	rig_up(&rig);
	for (unsigned k = 0; k < ARRAY_LEN(parts); k++)
		if (optind == argc || parts[k].wanted)
			run(&parts[k], rounds);
	rig_down(&rig);
	return 0;
}
