/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm [-r ROUNDS] [-b BASE_MS] [-s STORM_MS] [-g GRACE_US] [NAME...]
 *
 * Each port of each service in turn (rpc over tcp, a unix socket and TLS, HTTP; the master's beats; the
 * agent's data lanes; the supervisor's socket) is put under 700 idle connections, 200 that send a byte a second
 * and 100 garbage connections a second (less where the descriptor limit says so; the counts are
 * printed), while one honest client calls it, one call after the other. Rounds of calm and storm
 * alternate, so that the machine's other work hits both.
 *
 * The rule, for each port: the median over the rounds of (p99 in the storm / p99 in the calm before it)
 * is at most 2. A port above it still passes when the median p99 in the storm is within GRACE_US of
 * the calm's: the short form of CI allows 2000 us, for two cores that are shared by others add that
 * much by themselves now and then; the full form (-r 5 -b 2000 -s 2000 -g 0) allows nothing.
 * Besides, no call may fail, and in every storm a new honest client must get in within 2 s.
 *
 * The line `control` is a server that serves one connection after the other: it must fail the rule,
 * or the rule sees nothing.
 *
 * Ends with "N passed, N failed".
 */
#include "daemons.h"
#include "proto/messages.h"
#include "storm_gen.h"
#include "svc/beat_priv.h"
#include "xfer/lane_cli.h"
#include "../support/tcp_client.h"
#include "../support/tls_fix.h"

#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IDLE = 700, SLOW = 200, GARBAGE = 100, ROUNDS_MAX = 32, SAMPLES_MAX = 400000 };
/* Whoever is closed comes back, this many a second. */
#define REOPEN	  100
#define NEW_MS	  2000
#define SETTLE_MS 100

static struct {
	uint32_t rounds, base_ms, storm_ms, grace_us;
	char *const *names;
	uint32_t n_names, idle, slow;
	struct box box;
	struct tls_fix certs;
} g = { .rounds = 3, .base_ms = 300, .storm_ms = 300, .grace_us = 2000 };

static uint64_t now_ns(void)
{
	return clock_real.now_ns(&clock_real);
}

/* ---- honest clients ---- */

struct port;

/* One way to talk to a port. A call returns false when it was not answered as it must be. */
struct manner {
	bool (*open)(struct port *p);
	bool (*call)(struct port *p);
	void (*close)(struct port *p);
	const char *prefix; /* what a slow one of this manner would say */
	size_t n_prefix;
};

struct port {
	char name[48], addr[200];
	enum role role;
	const struct manner *m;
	/* of the client that is open */
	int fd;
	struct caller caller;
	struct beat_out beat;
	struct lane_cli lane;
};

static bool addr_parse_to(const char *addr, struct sockaddr_storage *to, socklen_t *n,
			  bool *dgram);

static int stream_connect(const struct port *p)
{
	struct sockaddr_storage to;
	socklen_t n;
	bool dgram;
	struct timeval tv = { .tv_sec = 2 };
	addr_parse_to(p->addr, &to, &n, &dgram);
	int fd = socket(to.ss_family, (dgram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (dgram && to.ss_family == AF_UNIX) { /* who is to be answered needs an address */
		struct sockaddr_un own = { .sun_family = AF_UNIX };
		if (bind(fd, (struct sockaddr *)&own, sizeof(own.sun_family)) != 0)
			abort();
	}
	if (connect(fd, (struct sockaddr *)&to, n) == 0)
		return fd;
	close(fd);
	return -1;
}

static void fd_close(struct port *p)
{
	close(p->fd);
}

/* As caller_open, with our authority. */
static void caller_open_tls(struct port *p)
{
	struct caller *c = &p->caller;
	const char *addr = p->addr;
	struct why why = { 0 };
	*c = (struct caller){ .log = { .svc = "storm", .fd = 2 } };
	if (loop_open(&c->loop) != ERR_NONE)
		abort();
	loop_random(&c->loop, c->instance, sizeof(c->instance));
	struct rpc_client_opts o = { .addrs = &addr,
				     .n_addrs = 1,
				     .peer_name = "service",
				     .as = ROLE_ADMIN,
				     .expect = p->role,
				     .keys = g.box.keys,
				     .log = &c->log,
				     .instance = c->instance,
				     .tls = { .ca = g.certs.ca } };
	if (rpc_client_new(&c->loop, &o, &c->client, &why) != ERR_NONE)
		abort();
}

/* rpc: ECHO of 64 bytes. */
static bool rpc_open(struct port *p)
{
	if (strncmp(p->addr, "tls+", 4) == 0)
		caller_open_tls(p);
	else
		caller_open(&p->caller, &g.box, p->addr, ROLE_ADMIN, p->role);
	return caller_call(&p->caller, METHOD_VERSION, BYTES(NULL, 0), NEW_MS, NULL, NULL) ==
	       ERR_NONE;
}

static bool rpc_call_one(struct port *p)
{
	uint8_t data[64] = { 1 };
	uint8_t mem[128];
	struct buf b = { .p = mem, .cap = sizeof(mem), .limit = sizeof(mem) };
	enc_echo(&b, &(struct msg_echo){ .data = BYTES(data, sizeof(data)) });
	return caller_call(&p->caller, METHOD_ECHO, buf_bytes(&b), NEW_MS, NULL, NULL) ==
	       ERR_NONE;
}

static void rpc_close(struct port *p)
{
	caller_close(&p->caller);
}

/* HTTP: GET /healthz on one connection, and again on a new one when the server ends it. */
static bool http_open(struct port *p)
{
	p->fd = stream_connect(p);
	return p->fd >= 0;
}

static bool http_call(struct port *p)
{
	static const char req[] = "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";
	char b[1024];
	if (send(p->fd, req, sizeof(req) - 1, MSG_NOSIGNAL) != (ssize_t)(sizeof(req) - 1))
		return false;
	ssize_t n = recv(p->fd, b, sizeof(b) - 1, 0);
	b[n > 0 ? n : 0] = '\0';
	return strncmp(b, "HTTP/1.1 200", 12) == 0;
}

/* sup.sock: a connection a request, as `pomelo status` does. */
static bool sup_open(struct port *p)
{
	(void)p;
	return true;
}

static bool sup_call(struct port *p)
{
	static const char req[] = "{\"op\":\"status\"}\n";
	char b[65536];
	size_t at = 0;
	int fd = stream_connect(p);
	if (fd < 0)
		return false;
	bool ok = send(fd, req, sizeof(req) - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof(req) - 1);
	while (ok && at < sizeof(b) && !memchr(b, '\n', at)) {
		ssize_t n = recv(fd, b + at, sizeof(b) - at, 0);
		ok = n > 0;
		at += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	return ok && memmem(b, at, "services", 8);
}

static void sup_close(struct port *p)
{
	(void)p;
}

/* beats: one that is challenged first, then acknowledged one by one. */
static bool beat_exchange(struct port *p)
{
	uint8_t out[BEAT_BYTES_MAX], in[BEAT_BYTES_MAX];
	struct beat_news news = { .ready = true, .pid = (uint32_t)getpid() };
	uint64_t before = p->beat.acked;
	for (int tries = 0; tries < 3 && p->beat.acked == before; tries++) {
		news.loop_turns++;
		size_t n = beat_out_make(&p->beat, 0, &news, true, 0, out);
		if (send(p->fd, out, n, 0) != (ssize_t)n)
			return false;
		ssize_t r = recv(p->fd, in, sizeof(in), 0);
		if (r <= 0)
			return false;
		beat_out_take(&p->beat, 0, BYTES(in, (size_t)r), now_ns());
	}
	return p->beat.acked > before;
}

static bool beat_open(struct port *p)
{
	p->fd = stream_connect(p);
	p->beat = (struct beat_out){ .role = ROLE_SERVICE, .n_to = 1, .quiet_ns = UINT64_MAX };
	snprintf(p->beat.name, sizeof(p->beat.name), "storm");
	uint64_t seed = now_ns();
	memcpy(p->beat.instance, &seed, sizeof(seed));
	return p->fd >= 0 && beat_keys_init(&p->beat.keys, g.box.keys) == ERR_NONE &&
	       beat_exchange(p);
}

/* a data lane: a handshake, then GETs with a ticket that is none; each is refused and the lane goes on */
static bool lane_turn(struct port *p)
{
	struct iovec v[XF_IOV];
	size_t n = lane_cli_out(&p->lane, v);
	bool out = n > 0;
	struct msghdr m = { .msg_iov = v };
	m.msg_iovlen = out ? n : lane_cli_want(&p->lane, v);
	ssize_t r = out ? sendmsg(p->fd, &m, MSG_NOSIGNAL) : recvmsg(p->fd, &m, 0);
	if (r <= 0)
		return false;
	if (out)
		lane_cli_sent(&p->lane, (size_t)r);
	else
		lane_cli_got(&p->lane, (size_t)r);
	return p->lane.pipe.err == ERR_NONE;
}

static bool lane_until_ready(struct port *p)
{
	struct iovec v[XF_IOV];
	while (p->lane.state != CLI_READY || lane_cli_out(&p->lane, v) > 0)
		if (!lane_turn(p))
			return false;
	return true;
}

static void lane_close(struct port *p)
{
	lane_cli_fini(&p->lane);
	if (p->fd >= 0)
		close(p->fd);
}

static bool lane_open(struct port *p)
{
	static const uint8_t instance[16] = "storm's instance";
	struct lane_cli_opts o = {
		.keys = g.box.keys, .tenant = "default", .holder = "", .instance = instance
	};
	struct why why = { 0 };
	int on = 1;
	p->fd = stream_connect(p);
	memset(&p->lane, 0, sizeof(p->lane));
	if (p->fd < 0)
		return false;
	(void)setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (lane_cli_init(&p->lane, &o, &why) == ERR_NONE && lane_until_ready(p))
		return true;
	lane_close(p);
	return false;
}

static size_t lane_land(void *ctx, uint64_t offset, size_t n, struct iovec *spans)
{
	return 0;
}

static enum err lane_landed(void *ctx, uint64_t offset, size_t n, uint64_t sum)
{
	return ERR_BAD_MESSAGE;
}

static bool lane_call(struct port *p)
{
	static const struct lane_cli_ops ops = { lane_land, lane_landed };
	static const uint8_t ticket[64] = "no ticket";
	const struct xf_range all = { 0, 64 };
	return lane_cli_get(&p->lane, BYTES(ticket, sizeof(ticket)), &all, 1, false, &ops,
			    NULL) == ERR_NONE &&
	       lane_until_ready(p) && p->lane.status == ERR_BAD_TICKET;
}

static const char lane_words[] = "pmld\x01\x01\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0";
static const char sp_words[] = "\0SP\0\0\x30\0\0\0\0\0\0\0\0\x01\0\x80";
static const char ipc_words[] = "\0SP\0\0\x30\0\0\x01\0\0\0\0\0\0\x01\0\x80";
static const char tls_words[] = "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03";
static const char http_words[] = "GET /healthz HTTP/1.1\r\nHost: t\r\nX-Slow: "
				 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static const char sup_words[] = "{\"op\":\"sta                                          ";

static const struct manner rpc_tcp = { rpc_open, rpc_call_one, rpc_close, sp_words,
				       sizeof(sp_words) - 1 };
static const struct manner rpc_ipc = { rpc_open, rpc_call_one, rpc_close, ipc_words,
				       sizeof(ipc_words) - 1 };
static const struct manner rpc_tls = { rpc_open, rpc_call_one, rpc_close, tls_words,
				       sizeof(tls_words) - 1 };
static const struct manner http = { http_open, http_call, fd_close, http_words,
				    sizeof(http_words) - 1 };
static const struct manner sup = { sup_open, sup_call, sup_close, sup_words,
				   sizeof(sup_words) - 1 };
static const struct manner lane = { lane_open, lane_call, lane_close, lane_words,
				    sizeof(lane_words) - 1 };
static const struct manner beat = { beat_open, beat_exchange, fd_close, "B", 1 };

/* ---- addresses ---- */

static bool addr_parse_to(const char *addr, struct sockaddr_storage *to, socklen_t *n,
			  bool *dgram)
{
	struct sockaddr_un *un = (struct sockaddr_un *)to;
	struct sockaddr_in *in = (struct sockaddr_in *)to;
	const char *path = strstr(addr, "://") ? strstr(addr, "://") + 3 : addr;
	const char *colon = strrchr(path, ':');
	memset(to, 0, sizeof(*to));
	*dgram = strncmp(addr, "unix-dgram:", 11) == 0 || strncmp(addr, "udp:", 4) == 0;
	if (path[0] == '/') {
		un->sun_family = AF_UNIX;
		snprintf(un->sun_path, sizeof(un->sun_path), "%s", path);
		*n = sizeof(*un);
		return true;
	}
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	in->sin_port = htons((uint16_t)strtoul(colon ? colon + 1 : "0", NULL, 10));
	*n = sizeof(*in);
	return colon != NULL;
}

/* ---- measuring ---- */

struct sample {
	double p50_us, p99_us;
	uint32_t n, failed;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Calls for ms, one after the other; a failed one counts with what it took and opens anew. */
static struct sample measure(struct port *p, uint32_t ms)
{
	static double v[SAMPLES_MAX];
	struct sample s = { 0 };
	uint64_t end = clock_after_ms(now_ns(), ms);
	while (s.n < SAMPLES_MAX && now_ns() < end) {
		uint64_t t0 = now_ns();
		bool ok = p->m->call(p);
		v[s.n++] = (double)(now_ns() - t0) / 1000;
		if (ok)
			continue;
		s.failed++;
		p->m->close(p);
		if (!p->m->open(p))
			break;
	}
	qsort(v, s.n, sizeof(*v), by_value);
	s.p50_us = v[s.n / 2];
	s.p99_us = v[(size_t)s.n * 99 / 100];
	return s;
}

/* A new client's first answer, in ms; more than NEW_MS when there is none. */
static double newcomer(const struct port *like)
{
	struct port p = { .role = like->role, .m = like->m };
	memcpy(p.addr, like->addr, sizeof(p.addr));
	uint64_t t0 = now_ns();
	bool opened = p.m->open(&p);
	bool ok = opened && p.m->call(&p);
	double ms = (double)(now_ns() - t0) / 1e6;
	if (opened)
		p.m->close(&p);
	return ok ? ms : NEW_MS + 1;
}

struct verdict {
	double base[ROUNDS_MAX], storm[ROUNDS_MAX], ratio[ROUNDS_MAX], newcomer_ms;
	uint32_t failed_base, failed_storm, n_base, n_storm;
	struct storm_counts last;
};

static void one_round(struct port *p, const struct storm_plan *plan, struct verdict *v,
		      uint32_t i)
{
	struct storm storm;
	struct sample calm = measure(p, g.base_ms);
	bool begun = storm_begin(plan, &storm);
	assert(begun);
	(void)begun;
	usleep(SETTLE_MS * 1000); /* nine hundred connects at once are not what is asked */
	struct sample in = measure(p, g.storm_ms);
	double ms = newcomer(p);
	storm_end(&storm, &v->last);
	v->newcomer_ms = MAX_OF(v->newcomer_ms, ms);
	v->base[i] = calm.p99_us;
	v->storm[i] = in.p99_us;
	v->ratio[i] = in.p99_us / calm.p99_us;
	v->n_base += calm.n;
	v->n_storm += in.n;
	v->failed_base += calm.failed;
	v->failed_storm += in.failed;
	printf("  %-14s %u: calm n=%u p50=%.0f p99=%.0f us, storm n=%u p50=%.0f p99=%.0f us, "
	       "ratio %.2f, newcomer %.1f ms%s\n",
	       p->name, i, calm.n, calm.p50_us, calm.p99_us, in.n, in.p50_us, in.p99_us,
	       v->ratio[i], ms, in.failed ? ", FAILED CALLS" : "");
}

/* bad: the word for a port that fails. */
static bool judge(const struct port *p, struct verdict *v, const char *bad)
{
	double base = median(v->base, g.rounds), storm = median(v->storm, g.rounds);
	double ratio = median(v->ratio, g.rounds);
	bool within = ratio <= 2 || storm - base <= g.grace_us;
	bool ok = within && v->failed_storm + v->failed_base == 0 && v->newcomer_ms <= NEW_MS;
	printf("%s %s: median p99 %.0f -> %.0f us, ratio %.2f%s; calls %u + %u, failed %u + %u; "
	       "newcomer at most %.1f ms; idle %u of %u, slow %u of %u, opened %llu, refused %llu, "
	       "closed by it %llu, garbage %llu, bytes %llu%s\n",
	       ok ? "ok" : bad, p->name, base, storm, ratio,
	       ratio > 2 && within ? " (within the grace)" : "", v->n_base, v->n_storm,
	       v->failed_base, v->failed_storm, v->newcomer_ms, v->last.idle, g.idle,
	       v->last.slow, g.slow, (unsigned long long)v->last.opened,
	       (unsigned long long)v->last.refused, (unsigned long long)v->last.closed_by_peer,
	       (unsigned long long)v->last.garbage, (unsigned long long)v->last.bytes,
	       v->last.garbage * 2000 < (uint64_t)GARBAGE * g.storm_ms ? " (a WEAK storm)"
								       : "");
	return ok;
}

/* "master" and "master.http" both choose master.http, and the start of master. */
static bool chosen(const char *name)
{
	for (uint32_t i = 0; i < g.n_names; i++)
		if (strncmp(name, g.names[i], MIN_OF(strlen(name), strlen(g.names[i]))) == 0)
			return true;
	return g.n_names == 0;
}

static bool run_port(struct port *p, const char *bad)
{
	struct verdict v = { 0 };
	struct storm_plan plan = { .idle = g.idle,
				   .slow = g.slow,
				   .reopen_per_s = REOPEN,
				   .garbage_per_s = GARBAGE,
				   .prefix = p->m->prefix,
				   .n_prefix = p->m->n_prefix };
	addr_parse_to(p->addr, &plan.to, &plan.n_to, &plan.dgram);
	if (!p->m->open(p)) {
		printf("FAILED %s: no client gets in at %s\n", p->name, p->addr);
		return false;
	}
	for (uint32_t i = 0; i < g.rounds; i++)
		one_round(p, &plan, &v, i);
	p->m->close(p);
	return judge(p, &v, bad);
}

/* ---- what there is to storm ---- */

static struct port *port_new(struct port *p, const char *svc, const char *kind,
			     const char *addr, enum role role, const struct manner *m)
{
	*p = (struct port){ .role = role, .m = m, .fd = -1 };
	snprintf(p->name, sizeof(p->name), "%s.%s", svc, kind);
	snprintf(p->addr, sizeof(p->addr), "%s", addr);
	return p;
}

static void tally(struct port *p, unsigned *passed, unsigned *failed)
{
	if (!chosen(p->name))
		return;
	if (run_port(p, "FAILED"))
		(*passed)++;
	else
		(*failed)++;
}

/* The n-th rpc address of run/NAME.json. */
static void rpc_addr(const char *name, const char *scheme, char *out, size_t size)
{
	char path[200];
	size_t i;
	json_t *v;
	snprintf(path, sizeof(path), "%s/run/%s.json", g.box.dir, name);
	json_t *o = json_load_file(path, 0, NULL);
	out[0] = '\0';
	json_array_foreach(json_object_get(o, "rpc"), i, v)
	{
		const char *s = json_string_value(v);
		if (s && strncmp(s, scheme, strlen(scheme)) == 0)
			snprintf(out, size, "%s", s);
	}
	json_decref(o);
}

static unsigned free_port(void)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(fd, (struct sockaddr *)&sa, n) != 0 ||
	    getsockname(fd, (struct sockaddr *)&sa, &n) != 0)
		abort();
	close(fd);
	return ntohs(sa.sin_port);
}

static void storm_daemon(const struct daemon_row *row, unsigned *passed, unsigned *failed)
{
	static struct port p;
	struct proc proc;
	char addr[200], text[8192], cert[128], key[128], data[64] = "";
	bool agent = strcmp(row->name, "agent") == 0;
	if (!chosen(row->name))
		return;
	snprintf(cert, sizeof(cert), "--tls-cert=%s", g.certs.server);
	snprintf(key, sizeof(key), "--tls-key=%s", g.certs.server_key);
	if (agent)
		snprintf(data, sizeof(data), "agent.data_listen=tcp://127.0.0.1:%u",
			 free_port());
	proc_run(&g.box, row,
		 (const char *const[]){ "--listen=tcp://127.0.0.1:0,tls+tcp://127.0.0.1:0",
					cert, key, "--log-level=error", agent ? "--set" : NULL,
					data, NULL },
		 &proc);
	rpc_addr(row->name, "tcp:", addr, sizeof(addr));
	tally(port_new(&p, row->name, "rpc_tcp", addr, row->def->role, &rpc_tcp), passed,
	      failed);
	rpc_addr(row->name, "ipc:", addr, sizeof(addr));
	tally(port_new(&p, row->name, "rpc_ipc", addr, row->def->role, &rpc_ipc), passed,
	      failed);
	rpc_addr(row->name, "tls+tcp:", addr, sizeof(addr));
	tally(port_new(&p, row->name, "rpc_tls", addr, row->def->role, &rpc_tls), passed,
	      failed);
	tally(port_new(&p, row->name, "http", proc.http, row->def->role, &http), passed,
	      failed);
	if (strcmp(row->name, "master") == 0) {
		snprintf(addr, sizeof(addr), "unix-dgram://%s/run/beat.sock", g.box.dir);
		tally(port_new(&p, row->name, "beat", addr, ROLE_SERVICE, &beat), passed,
		      failed);
	}
	if (agent) {
		port_new(&p, row->name, "data", strchr(data, '=') + 1, row->def->role, &lane);
		/* its lanes open with its pool */
		for (int i = 0; i < 500 && (p.fd = stream_connect(&p)) < 0; i++)
			usleep(10000);
		if (p.fd >= 0)
			close(p.fd);
		tally(&p, passed, failed);
	}
	int code = proc_stop(&proc);
	if (code != 0) {
		printf("FAILED %s: exit code %d\n%s\n", row->name, code,
		       proc_log(&proc, text, sizeof(text)));
		(*failed)++;
	}
}

/* ---- the supervisor ---- */

static int pomelo(const char *cmd)
{
	const char *exe = getenv("POMELO_TEST_EXE");
	const char *argv[] = { exe, "--data", g.box.dir, cmd, NULL };
	int status, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (!exe)
		return 127;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(null, 1);
		setenv("POMELO_AGENT_POOL_SIZE", "16MiB", 0);
		execv(exe, (char *const *)argv);
		_exit(127);
	}
	close(null);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void storm_supervisor(unsigned *passed, unsigned *failed)
{
	static struct port p;
	char addr[200];
	if (!getenv("POMELO_TEST_EXE") || !chosen("supervisor.sock"))
		return;
	int code = pomelo("up");
	if (code != 0) {
		printf("FAILED supervisor: `pomelo up` ended with %d\n", code);
		(*failed)++;
		return;
	}
	snprintf(addr, sizeof(addr), "unix://%s/run/sup.sock", g.box.dir);
	tally(port_new(&p, "supervisor", "sock", addr, ROLE_ADMIN, &sup), passed, failed);
	code = pomelo("down");
	if (code != 0) {
		printf("FAILED supervisor: `pomelo down` ended with %d\n", code);
		(*failed)++;
	}
}

/* ---- the control ---- */

/* Serves "GET" lines, one connection after the other, each until its end or for a second. */
_Noreturn static void bad_server(int lfd)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
	char b[4096];
	for (;;) {
		int fd = accept(lfd, NULL, NULL);
		struct pollfd pf = { .fd = fd, .events = POLLIN };
		while (fd >= 0 && poll(&pf, 1, 50) == 1) {
			if (recv(fd, b, sizeof(b), 0) <= 0 ||
			    send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
				break;
		}
		close(fd);
	}
}

static void control(unsigned *passed, unsigned *failed)
{
	static struct port p;
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(sa);
	char addr[64];
	if (!chosen("control"))
		return;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(fd, (struct sockaddr *)&sa, n) != 0 || listen(fd, 1024) != 0)
		abort();
	getsockname(fd, (struct sockaddr *)&sa, &n);
	pid_t pid = fork();
	if (pid == 0)
		bad_server(fd);
	close(fd);
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", ntohs(sa.sin_port));
	uint32_t rounds = g.rounds;
	g.rounds = 1;
	bool seen = !run_port(port_new(&p, "control", "one_by_one", addr, ROLE_NONE, &http),
			      "refused");
	g.rounds = rounds;
	printf("%s control: the rule %s a server that serves one after the other\n",
	       seen ? "ok" : "FAILED", seen ? "refuses" : "lets pass");
	*(seen ? passed : failed) += 1;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* ---- */

static void limits(void)
{
	struct rlimit r;
	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
	/* the generator and the server each hold them; the server needs some for itself */
	uint64_t room = r.rlim_cur > 400 ? r.rlim_cur - 300 : 100;
	g.idle = (uint32_t)MIN_OF((uint64_t)IDLE, room * IDLE / (IDLE + SLOW));
	g.slow = (uint32_t)MIN_OF((uint64_t)SLOW, room * SLOW / (IDLE + SLOW));
	printf("descriptors %llu: idle %u of %d, slow %u of %d, garbage %d a second; rounds %u of "
	       "%u + %u ms, grace %u us\n",
	       (unsigned long long)r.rlim_cur, g.idle, IDLE, g.slow, SLOW, GARBAGE, g.rounds,
	       g.base_ms, g.storm_ms, g.grace_us);
}

int main(int argc, char **argv)
{
	unsigned passed = 0, failed = 0;
	int o;
	while ((o = getopt(argc, argv, "r:b:s:g:")) != -1) {
		uint32_t n = o == '?' ? 0 : (uint32_t)strtoul(optarg, NULL, 10);
		if (o == '?') {
			fputs("usage: storm [-r ROUNDS] [-b BASE_MS] [-s STORM_MS] [-g GRACE_US] "
			      "[NAME...]\n",
			      stderr);
			return 2;
		}
		*(o == 'r'   ? &g.rounds
		  : o == 'b' ? &g.base_ms
		  : o == 's' ? &g.storm_ms
			     : &g.grace_us) = n;
	}
	g.rounds = MIN_OF(MAX_OF(g.rounds, 1u), (uint32_t)ROUNDS_MAX);
	g.names = argv + optind;
	g.n_names = (uint32_t)(argc - optind);
	setvbuf(stdout, NULL, _IOLBF, 0);
	limits();
	control(&passed, &failed);
	box_make(&g.box);
	tls_fix_make(&g.certs);
	for (size_t i = 0; i < N_DAEMONS; i++)
		storm_daemon(&daemon_rows[i], &passed, &failed);
	storm_supervisor(&passed, &failed);
	tls_fix_remove(&g.certs);
	box_remove(&g.box);
	printf("%u passed, %u failed\n", passed, failed);
	return failed != 0;
}
