/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_under_load [COUNT [SEED]]: starts a daemon, loads it, ends it; COUNT times (20), over all five.
 *
 * The load is ECHO: some answered at once, some parked for a moment, some parked for longer than the
 * grace. The end comes at a random moment by SIGTERM, by two of them, or by DRAIN. Then, each time:
 *
 *   every call ended, with success or a typed error whose text names the peer
 *   every call that was inside when the end began was answered by the service itself
 *   the process is gone within the grace and a margin, with exit code 0
 *   built with ASan: it leaked nothing (exit code), nor did the client
 *
 * Ends with "N passed, N failed".
 */
#include "daemons.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/messages.h"
#include "../support/leak.h"

#define N_CALLS	 48
#define GRACE_MS 150
/* The grace, then flushing; under ASan on a loaded box. */
#define END_MS	 15000

struct one {
	struct rpc_call call;
	struct buf body;
	uint32_t park_ms;
	bool ended, late; /* late: sent after the end began */
	struct load *load;
};

struct load {
	struct caller caller;
	struct one v[N_CALLS];
	size_t n_sent, n_ended;
	bool ending; /* the end began */
	unsigned ok, refused, cancelled, cut, bad;
};

static uint64_t rng;

static uint64_t chance(uint64_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 33) % n;
}

static void judge(struct one *o)
{
	struct load *l = o->load;
	switch (o->call.err) {
	case ERR_NONE:
		l->ok++;
		return;
	case ERR_SHUTTING_DOWN:
		l->refused++;
		break;
	case ERR_CANCELLED:
		l->cancelled++;
		break;
	case ERR_CONN_LOST:
	case ERR_UNREACHABLE:
		l->cut++;
		if (!o->late) {
			printf("  lost inside: park_ms=%u %s: %s\n", o->park_ms,
			       err_name(o->call.err), o->call.why.text);
			l->bad++;
		}
		break;
	default:
		printf("  unexpected: park_ms=%u %s: %s\n", o->park_ms, err_name(o->call.err),
		       o->call.why.text);
		l->bad++;
	}
	if (!o->call.why.text[0]) {
		printf("  no text: %s\n", err_name(o->call.err));
		l->bad++;
	}
}

static void on_done(struct rpc_call *c)
{
	struct one *o = container_of(c, struct one, call);
	o->ended = true;
	o->load->n_ended++;
	judge(o);
}

static void send_one(struct load *l)
{
	static const uint32_t parks[] = { 0, 0, 5, 40, 10000 };
	struct one *o = &l->v[l->n_sent++];
	uint64_t now = loop_now_ns(&l->caller.loop);
	*o = (struct one){ .load = l,
			   .park_ms = parks[chance(ARRAY_LEN(parks))],
			   .late = l->ending,
			   .body = BUF_INIT(4096) };
	uint8_t data[256] = { 7 };
	enc_echo(&o->body, &(struct msg_echo){ .data = BYTES(data, chance(sizeof(data))),
					       .park_ms = o->park_ms });
	/* not idempotent: a lost connection is told, not hidden by a retry */
	o->call = (struct rpc_call){ .method = METHOD_ECHO,
				     .body = buf_bytes(&o->body),
				     .done = on_done,
				     .deadline_ns =
					     clock_after_ms(now, l->ending ? 1000 : END_MS) };
	rpc_send(l->caller.client, &o->call);
}

static void turn(struct load *l, uint64_t ms)
{
	uint64_t end = clock_after_ms(loop_now_ns(&l->caller.loop), ms);
	while (loop_now_ns(&l->caller.loop) < end) {
		loop_run_once(&l->caller.loop, false);
		usleep(200);
	}
}

static void begin_end(struct load *l, struct proc *p)
{
	l->ending = true;
	if (chance(3) == 0) {
		enum err e =
			caller_call(&l->caller, METHOD_DRAIN, BYTES(NULL, 0), 5000, NULL, NULL);
		l->bad += e != ERR_NONE;
		return;
	}
	proc_signal(p, SIGTERM);
	if (chance(3) == 0) {
		turn(l, 20);
		proc_signal(p, SIGTERM); /* a second one: no grace */
	}
}

static bool round_trip(const struct daemon_row *row, unsigned i)
{
	static char grace[32], text[16384];
	static const char *const args[] = { grace, "--log-level=warn", NULL };
	struct box b;
	struct proc p;
	static struct load l;
	snprintf(grace, sizeof(grace), "--grace-ms=%d", GRACE_MS);
	memset(&l, 0, sizeof(l));
	box_make(&b);
	proc_run(&b, row, args, &p);
	caller_open(&l.caller, &b, p.rpc, ROLE_ADMIN, row->def->role);
	caller_call(&l.caller, METHOD_VERSION, BYTES(NULL, 0), 5000, NULL, NULL);
	while (l.n_sent < N_CALLS / 2)
		send_one(&l);
	turn(&l, chance(30) + 5); /* they are inside by then, or answered */
	begin_end(&l, &p);
	while (l.n_sent < N_CALLS) {
		send_one(&l);
		turn(&l, chance(3));
	}
	turn(&l, 1);
	while (l.n_ended < l.n_sent)
		loop_run_once(&l.caller.loop, true);
	bool gone = proc_wait(&p, END_MS);
	if (!gone)
		proc_stop(&p);
	caller_close(&l.caller);
	for (size_t k = 0; k < l.n_sent; k++)
		buf_fini(&l.v[k].body);
	bool good = gone && p.code == 0 && l.bad == 0 && !leak_found();
	printf("%s %u %s: ok=%u refused=%u cancelled=%u cut=%u exit=%d%s\n",
	       good ? "ok" : "FAILED", i, row->name, l.ok, l.refused, l.cancelled, l.cut,
	       p.code, gone ? "" : " (had to be killed)");
	if (!good)
		printf("%s\n", proc_log(&p, text, sizeof(text)));
	box_remove(&b);
	return good;
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 20, failed = 0;
	rng = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)getpid();
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("seed %llu\n", (unsigned long long)rng);
	for (unsigned i = 0; i < count; i++)
		failed += !round_trip(&daemon_rows[i % N_DAEMONS], i);
	printf("%u passed, %u failed\n", count - failed, failed);
	return failed != 0;
}
