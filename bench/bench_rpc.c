/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-byte echo between two processes: all of rpc (tags included) against nng without tags, and
 * against a bare libuv echo with the same tags (issue "Ground", done when). After the JSON lines a
 * table on stderr splits the time of a request: each line is a difference of two systems measured in
 * the same run, or a codec timed alone.
 *
 *	bench/run rpc			everything: about two minutes
 *	bench/run rpc.nng_tcp_128	one row
 */
#include "bench.h"
#include "rpc_peers.h"

#include "rpc/rpc_env.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAMPLE_MS 250
#define WARM_MS	  30

enum { RAW, UV, UVMAC, UVSPIN, ENG, SP, NNG, N_SYS };
enum { TCP, IPC, N_TRANSPORTS };
enum { N_DEPTHS = 3 };

static const struct peer_sys *const systems[N_SYS] = {
	[RAW] = &peer_raw, [UV] = &peer_uv, [UVMAC] = &peer_uvmac, [UVSPIN] = &peer_uvspin,
	[ENG] = &peer_eng, [SP] = &peer_sp, [NNG] = &peer_nng,
};
static const char *const transports[N_TRANSPORTS] = { "tcp", "ipc" };
static const unsigned depths[N_DEPTHS] = { 1, 16, 128 };

/* One server process and its client, started with the first sample. */
struct pair {
	pid_t pid;
	void *client;
};

struct bench_rpc {
	struct pair pairs[N_SYS][N_TRANSPORTS];
	double samples[N_SYS][N_TRANSPORTS][N_DEPTHS][4 * BENCH_SAMPLES];
	size_t n_samples[N_SYS][N_TRANSPORTS][N_DEPTHS];
	char dir[64];
};

static struct bench_rpc state; /* of this program; rows carry only what to measure */

/* ---- processes ---- */

static int ready_fd;

static void ready(const char *bound)
{
	char line[PEER_ADDR_MAX + 1];
	int n = snprintf(line, sizeof(line), "%s\n", bound);
	if (write(ready_fd, line, (size_t)n) != n)
		peer_die("serve", "nobody waits");
	close(ready_fd);
}

static int serve(char **argv)
{
	ready_fd = atoi(argv[4]);
	for (int i = 0; i < N_SYS; i++)
		if (strcmp(systems[i]->name, argv[2]) == 0)
			systems[i]->serve(argv[3], ready);
	return 1;
}

static void read_line(int fd, char *out, size_t size)
{
	size_t n = 0;
	while (n + 1 < size && read(fd, out + n, 1) == 1 && out[n] != '\n')
		n++;
	out[n] = '\0';
	if (n == 0)
		peer_die("serve", "the server did not start");
}

static struct pair *start(int sys, int transport)
{
	struct pair *p = &state.pairs[sys][transport];
	char addr[PEER_ADDR_MAX], fd_text[16];
	int fds[2];
	if (p->pid)
		return p;
	if (pipe(fds) != 0)
		peer_die("pipe", strerror(errno));
	if (transport == TCP)
		snprintf(addr, sizeof(addr), "tcp://127.0.0.1:0");
	else
		snprintf(addr, sizeof(addr), "ipc://%s/%s.sock", state.dir, systems[sys]->name);
	snprintf(fd_text, sizeof(fd_text), "%d", fds[1]);
	p->pid = fork();
	if (p->pid == 0) {
		execl("/proc/self/exe", "bench_rpc", "--serve", systems[sys]->name, addr,
		      fd_text, (char *)NULL);
		_exit(1);
	}
	close(fds[1]);
	read_line(fds[0], addr, sizeof(addr));
	close(fds[0]);
	p->client = systems[sys]->open(addr);
	return p;
}

static void stop_all(void)
{
	for (int s = 0; s < N_SYS; s++) {
		for (int t = 0; t < N_TRANSPORTS; t++) {
			struct pair *p = &state.pairs[s][t];
			if (!p->pid)
				continue;
			kill(p->pid, SIGKILL);
			waitpid(p->pid, NULL, 0);
			char path[PEER_ADDR_MAX];
			snprintf(path, sizeof(path), "%s/%s.sock", state.dir, systems[s]->name);
			unlink(path);
		}
	}
	rmdir(state.dir);
}

/* ---- samples ---- */

static double sample(int sys, int transport, int depth)
{
	struct pair *p = start(sys, transport);
	systems[sys]->run(p->client, depths[depth], WARM_MS);
	double v = systems[sys]->run(p->client, depths[depth], SAMPLE_MS);
	size_t *n = &state.n_samples[sys][transport][depth];
	if (*n < ARRAY_LEN(state.samples[0][0][0]))
		state.samples[sys][transport][depth][(*n)++] = v;
	return v;
}

#define SAMPLE_FN(sys, transport, depth)                         \
	static double s_##sys##_##transport##_##depth(void *arg) \
	{                                                        \
		return sample(sys, transport, depth);            \
	}
#define SAMPLE_FNS(sys)        \
	SAMPLE_FN(sys, TCP, 0) \
	SAMPLE_FN(sys, TCP, 1) \
	SAMPLE_FN(sys, TCP, 2) \
	SAMPLE_FN(sys, IPC, 0) \
	SAMPLE_FN(sys, IPC, 1) \
	SAMPLE_FN(sys, IPC, 2)
SAMPLE_FNS(RAW)
SAMPLE_FNS(UV)
SAMPLE_FNS(UVMAC)
SAMPLE_FNS(UVSPIN)
SAMPLE_FNS(ENG)
SAMPLE_FNS(SP)
SAMPLE_FNS(NNG)

/* clang-format off */
#define ROW(text, a, b, b_text, transport, depth, want, about) \
	{ text, "requests/s", false, s_##a##_##transport##_##depth, s_##b##_##transport##_##depth, b_text, want, about }
#define ROWS(transport, low, depth, n, nng_goal) \
	ROW("rpc.nng_" low "_" n, SP, NNG, "nng, no tags", transport, depth, nng_goal, "64 B echo, ratio is the goal, " n " outstanding; ours polls 50 us before it sleeps"), \
	ROW("rpc.uvmac_" low "_" n, SP, UVMAC, "bare libuv echo, same tags", transport, depth, 0.5, "64 B echo, ratio is the goal, " n " outstanding; ours polls 50 us before it sleeps, the bare one does not"), \
	ROW("rpc.uvspin_" low "_" n, SP, UVSPIN, "bare libuv echo, same tags, same polling", transport, depth, 0.5, "64 B echo, " n " outstanding; both poll 50 us before they sleep"), \
	ROW("rpc.engine_" low "_" n, ENG, UV, "bare libuv echo", transport, depth, 0, "64 B echo without the core, " n " outstanding"), \
	ROW("rpc.bare_" low "_" n, UV, RAW, "blocking sockets", transport, depth, 0, "64 B echo, for the table, " n " outstanding")
static const struct bench_row rows[] = {
	ROWS(TCP, "tcp", 0, "1", 3),
	ROWS(TCP, "tcp", 1, "16", 0),
	ROWS(TCP, "tcp", 2, "128", 8),
	ROWS(IPC, "ipc", 0, "1", 0),
	ROWS(IPC, "ipc", 1, "16", 0),
	ROWS(IPC, "ipc", 2, "128", 0),
};
/* clang-format on */

/* ---- the table ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Nanoseconds a request, or 0 when it was not measured. */
static double median_ns(int sys, int transport, int depth)
{
	size_t n = state.n_samples[sys][transport][depth];
	double *v = state.samples[sys][transport][depth];
	if (n == 0)
		return 0;
	qsort(v, n, sizeof(*v), by_value);
	return 1e9 / v[n / 2];
}

struct codec {
	struct buf b;
	uint8_t body[PEER_BODY];
};

/* Both envelopes out and in, without tags: what the codec adds to one request at both ends. */
static void codec_once(void *arg)
{
	struct codec *c = arg;
	struct env_parts out;
	struct msg_request q = { .v = 1,
				 .method = 50,
				 .session = 0x12340001,
				 .seq = 1u << 20,
				 .id = 1u << 20,
				 .deadline_ms = 5000,
				 .body = BYTES(c->body, PEER_BODY) };
	struct msg_reply r = { .v = 1,
			       .session = 0x12340001,
			       .seq = 1u << 20,
			       .id = 1u << 20,
			       .body = BYTES(c->body, PEER_BODY) };
	for (int i = 0; i < 2; i++) {
		enum err e = i ? env_reply(&c->b, &r, NULL, &out)
			       : env_request(&c->b, &q, NULL, &out);
		struct dec d =
			DEC_INIT(BYTES(out.p[0].p, out.p[0].n - AUTH_TAG_BYTES), NULL, NULL);
		if (e == ERR_NONE)
			e = i ? dec_reply(&d, &r) : dec_request(&d, &q);
		bench_keep(&q);
		bench_keep(&r);
		if (e != ERR_NONE)
			peer_die("codec", err_name(e));
		/* the bodies point into the buffer now: back to ours */
		q.body = r.body = BYTES(c->body, PEER_BODY);
	}
}

static void print_split(int t, double codec_ns)
{
	fprintf(stderr, "\n%s, ns of wall time a request %26s", transports[t], "");
	for (int d = 0; d < N_DEPTHS; d++)
		fprintf(stderr, "%8u out", depths[d]);
	double v[8][N_DEPTHS];
	for (int d = 0; d < N_DEPTHS; d++) {
		double raw = median_ns(RAW, t, d), eng = median_ns(ENG, t, d);
		double mac = median_ns(UVMAC, t, d) - median_ns(UV, t, d);
		double uv = median_ns(UVSPIN, t, d) - mac; /* polling, as the ones above it */
		double all = median_ns(SP, t, d);
		const double column[8] = { raw,	     uv - raw,
					   eng - uv, mac,
					   codec_ns, all - eng - mac - codec_ns,
					   all,	     median_ns(NNG, t, d) };
		for (int i = 0; i < 8; i++)
			v[i][d] = column[i];
	}
	static const char *const names[8] = {
		"socket: blocking sockets, no loop",
		"loop: libuv that polls, on top of that",
		"framing: SP, matching, buffers (sp engine)",
		"MAC: four tags made or checked",
		"codec: both envelopes, out and in, timed alone",
		"core: sessions, windows, deadlines, the rest",
		"sum: rpc end to end",
		"beside it: nng end to end, no MAC",
	};
	for (int i = 0; i < 8; i++) {
		fprintf(stderr, "\n  %-52s", names[i]);
		for (int d = 0; d < N_DEPTHS; d++)
			fprintf(stderr, "%12.0f", v[i][d]);
	}
	fprintf(stderr, "\n");
}

static void print_table(void)
{
	struct codec c = { .b = BUF_INIT(64 << 10) };
	double codec_ns = bench_loop_ns(codec_once, &c, 50);
	buf_fini(&c.b);
	for (int t = 0; t < N_TRANSPORTS; t++) {
		bool whole = true;
		for (int s = 0; s < N_SYS; s++)
			for (int d = 0; d < N_DEPTHS; d++)
				whole &= state.n_samples[s][t][d] > 0;
		if (whole)
			print_split(t, codec_ns);
	}
	fprintf(stderr,
		"(the two processes overlap with many outstanding, so parts are shares of the "
		"slower one; a difference below the spread is noise)\n");
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "--serve") == 0)
		return serve(argv);
	snprintf(state.dir, sizeof(state.dir), "/tmp/bench_rpc.XXXXXX");
	if (!mkdtemp(state.dir))
		peer_die(state.dir, strerror(errno));
	int rc = bench_main(argc, argv, rows, ARRAY_LEN(rows), NULL);
	if (rc == 0 && argc <= 2 && (argc == 1 || strcmp(argv[1], "--list") != 0))
		print_table();
	stop_all();
	return rc;
}
