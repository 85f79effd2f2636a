/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Master and agent under faults, each test on both backends: simulated, and as the real daemons with
 * real beats through the proxy. The master is asked, as anybody may, how many peers it sees.
 */
#include "tests/support/cluster_svc.h"
#include "tests/support/leak.h"

#include "proto/messages.h"
#include "services/master/master.h"
#include "services/transfer-agent/agent.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *const masters[] = { "sim://m0/master" };
/* Slow enough that a busy machine makes nobody suspect. */
#define QUICK                                                                               \
	"--set", "beat_ms=100", "--set", "suspect_ms=1000", "--set", "holder_dead_ms=2500", \
		"--set", "grace_ms=1000"
static const char *const quick[] = { QUICK, NULL };
static const struct cl_svc master = { &mst_def, masters, 1, quick };
static const struct cl_svc agent = { &xfa_def, masters, 1, quick };

static const char *const master_args[] = {
	"--data", "%d", "--set", "secret_file=%s", "--set", "master.http_port=0", QUICK, NULL
};
static const char *const agent_args[] = {
	"--data",     "%d",  "--set", "secret_file=%s", "--set", "agent.http_port=0", "--set",
	"masters=%m", QUICK, NULL
};

static struct cluster *open_pair(enum cl_backend b, uint64_t seed)
{
	struct cluster *c = cl_open(&(struct cl_opts){ .backend = b, .seed = seed });
	cl_add(c, &(struct cl_member_opts){ .name = "master",
					    .node = "m0",
					    .app = &cl_svc_app,
					    .arg = (void *)&master,
					    .exe = "services/master/pomelo-master",
					    .args = master_args,
					    .addr = "ipc://%d/run/master.sock" });
	cl_add(c,
	       &(struct cl_member_opts){ .name = "agent",
					 .node = "n1",
					 .app = &cl_svc_app,
					 .arg = (void *)&agent,
					 .exe = "services/transfer-agent/pomelo-transfer-agent",
					 .args = agent_args,
					 .addr = "ipc://%d/run/agent.sock",
					 .peer = "master" });
	cr_assert(cl_start(c, "master"), "%s", cl_why(c, "master"));
	cr_assert(cl_start(c, "agent"), "%s", cl_why(c, "agent"));
	return c;
}

/* How many peers the master has in that state; -1: it does not say. */
static int peers(struct cluster *c, const char *state)
{
	char want[80];
	int found = -1;
	struct cl_from from = { .node = "c" };
	struct buf body = BUF_INIT(256), reply = BUF_INIT(1 << 20);
	struct arena arena = ARENA_INIT(1 << 20);
	struct msg_status_rep m;
	enc_status_req(&body, &(struct msg_status_req){ .counters = true });
	enum err e =
		cl_call(c, from, "master", METHOD_STATUS, buf_bytes(&body), 1000, &reply, NULL);
	struct dec d = DEC_INIT(buf_bytes(&reply), &arena, NULL);
	snprintf(want, sizeof(want), "pomelo_master_peers{state=\"%s\"}", state);
	if (e == ERR_NONE && dec_status_rep(&d, &m) == ERR_NONE)
		for (size_t i = 0; i < m.counters.n; i++)
			if (m.counters.p[i].name.n == strlen(want) &&
			    memcmp(m.counters.p[i].name.p, want, strlen(want)) == 0)
				found = (int)m.counters.p[i].value;
	arena_fini(&arena);
	buf_fini(&body);
	buf_fini(&reply);
	return found;
}

/* Waits until the master has n peers in that state; the time it took, ms. */
static uint64_t wait_for(struct cluster *c, const char *state, int n, uint64_t max_ms)
{
	uint64_t t0 = cl_now_ns(c), ms = 0;
	while (peers(c, state) != n) {
		ms = (cl_now_ns(c) - t0) / NS_PER_MS;
		SIM_CHECK(ms < max_ms, "after %lu ms the master has %d peers %s, want %d", ms,
			  peers(c, state), state, n);
		cl_run_ms(c, 20);
	}
	return ms;
}

#define BOTH(name)                                   \
	static void name(struct cluster *c);         \
	static void name##_on(enum cl_backend b)     \
	{                                            \
		struct cluster *c = open_pair(b, 1); \
		wait_for(c, "ready", 2, 15000);      \
		name(c);                             \
		cl_close(c);                         \
		NO_LEAKS();                          \
	}                                            \
	Test(peers, name##_sim, .timeout = 60)       \
	{                                            \
		name##_on(CL_SIM);                   \
	}                                            \
	Test(peers, name##_real, .timeout = 90)      \
	{                                            \
		name##_on(CL_REAL);                  \
	}                                            \
	static void name(struct cluster *c)

BOTH(a_partition_is_suspect_then_dead_then_over)
{
	cl_partition(c, "n1", "m0");
	wait_for(c, "suspect", 1, 5000);
	cr_assert_eq(peers(c, "ready"), 1, "nobody else is suspected");
	wait_for(c, "dead", 1, 10000);
	cl_heal(c, "n1", "m0");
	wait_for(c, "ready", 2, 10000);
}

BOTH(a_killed_agent_is_dead_and_its_next_run_ready)
{
	cl_kill(c, "agent");
	wait_for(c, "suspect", 1, 5000);
	wait_for(c, "dead", 1, 10000);
	cr_assert(cl_start(c, "agent"), "%s", cl_why(c, "agent"));
	wait_for(c, "ready", 2, 10000);
	cr_assert_eq(peers(c, "dead"), 0, "it is known by its name, not twice");
}

BOTH(a_stopped_agent_is_suspect_and_comes_back)
{
	cl_stop(c, "agent");
	wait_for(c, "suspect", 1, 5000);
	cl_cont(c, "agent");
	wait_for(c, "ready", 2, 10000);
	cl_suspend(c, "n1", 2000);
	wait_for(c, "suspect", 1, 5000);
	wait_for(c, "ready", 2, 10000);
}

BOTH(a_master_that_was_stopped_blames_nobody)
{
	cl_stop(c, "master");
	cl_run_ms(c, 4000);
	cl_cont(c, "master");
	for (int i = 0; i < 20; i++) {
		int suspect = peers(c, "suspect"), dead = peers(c, "dead");
		cr_assert(dead <= 0, "%d dead", dead);
		/* on a busy machine the agent's beats may be late once more */
		cr_assert(suspect <= 0 || cl_backend(c) == CL_REAL, "%d suspect", suspect);
		cl_run_ms(c, 25);
	}
	wait_for(c, "ready", 2, 10000);
}

BOTH(a_master_that_was_killed_knows_all_again)
{
	cl_restart(c, "master");
	wait_for(c, "ready", 2, 15000);
	cr_assert_eq(peers(c, "dead") + peers(c, "suspect"), 0);
}
