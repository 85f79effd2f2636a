/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real process that writes a meta store and says through a pipe what was acknowledged, killed
 * at any moment, again and again: what it said is there, and nothing but what it wrote.
 *
 *   meta_kill [ROUNDS]     200 without it
 *
 * Record s of the store is TERM for the first record of a round, else a tombstone that follows
 * from s.
 */
#include "meta/meta.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meta/meta_fs.h"
#include "meta/meta_log.h"

#define KEYS	 500
#define INFLIGHT 16
#define STORE	 "m"

#define CHECK(cond, ...)                                                           \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
			fprintf(stderr, __VA_ARGS__);                              \
			fputc('\n', stderr);                                       \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

/* ---- the child ---- */

struct child {
	struct loop loop;
	struct log log;
	struct meta *m;
	uint64_t next; /* the number that the next record will have */
	struct meta_append appends[INFLIGHT];
	char keys[INFLIGHT][24];
};

static struct child child;

static void on_done(struct meta_append *a);

static void write_one(struct meta_append *a)
{
	size_t i = (size_t)(a - child.appends);
	uint64_t s = child.next++;
	int n = snprintf(child.keys[i], sizeof(child.keys[i]), "k%" PRIu64, s % KEYS);
	struct meta_rec r = { .type = META_TOMB };
	r.TOMB = (struct msg_meta_tomb){
		BYTES_STR("h"), 0, BYTES_STR("t"), BYTES(child.keys[i], (size_t)n), s, s
	};
	*a = (struct meta_append){ .term = meta_term(meta_state_of(child.m)),
				   .if_seq = META_ANY,
				   .done = on_done };
	meta_append(child.m, a, &r, 1);
}

static void on_done(struct meta_append *a)
{
	char line[32];
	CHECK(a->err == ERR_NONE, "%s: %s", err_name(a->err), a->why.text);
	int n = snprintf(line, sizeof(line), "%" PRIu64 "\n", a->seq);
	if (write(STDOUT_FILENO, line, (size_t)n) != n)
		_exit(0); /* nobody listens any more */
	write_one(a);
}

static void on_holder(struct meta_append *a)
{
	CHECK(a->err == ERR_NONE, "%s: %s", err_name(a->err), a->why.text);
	child.next = a->seq + 1;
	for (int i = 0; i < INFLIGHT; i++)
		write_one(&child.appends[i]);
}

static void on_term(struct meta_append *a)
{
	CHECK(a->err == ERR_NONE, "%s: %s", err_name(a->err), a->why.text);
	struct meta_rec r = { .type = META_HOLDER,
			      .HOLDER = { .id = BYTES_STR("h"), .kind = 1, .away = true } };
	*a = (struct meta_append){ .term = meta_term(meta_state_of(child.m)),
				   .if_seq = META_ANY,
				   .done = on_holder };
	meta_append(child.m, a, &r, 1);
}

static void on_opened(void *ctx, enum err e, const struct why *why)
{
	CHECK(e == ERR_NONE, "%s: %s", err_name(e), why->text);
	child.appends[0].done = on_term;
	meta_raise_term(child.m, &child.appends[0]);
}

static int run_child(const char *dir)
{
	child.log = (struct log){ .svc = "child", .fd = STDERR_FILENO };
	log_set_level(LOG_WARN_L);
	const struct meta_opts o = { .dir = dir,
				     .name = STORE,
				     .log = &child.log,
				     .log_bytes_max = 128u << 10,
				     .chunk_bytes = 64u << 10,
				     .opened = on_opened };
	CHECK(loop_open(&child.loop) == ERR_NONE, "no loop");
	CHECK(meta_open(&child.loop, &o, &child.m) == ERR_NONE, "no memory");
	loop_run(&child.loop);
	return 0;
}

/* ---- the parent ---- */

struct parent {
	const char *self, *dir;
	uint64_t acked;	       /* highest number that a child said */
	uint64_t first[10000]; /* first record of round i */
	int rounds;
	uint64_t snapshots;
};

/* Everything the store holds follows from its last number and where the rounds began. */
static void judge(struct parent *p, int round)
{
	struct meta_fs *fs;
	struct meta_state *st;
	struct meta_log *g;
	struct why why = { 0 };
	struct meta_log_opts o = { .name = STORE, .chunk_bytes = 64u << 10 };
	CHECK(meta_fs_posix_new(p->dir, &fs, &why) == ERR_NONE, "%s", why.text);
	CHECK(meta_state_new(1, &st) == ERR_NONE, "no memory");
	o.fs = fs;
	CHECK(meta_log_open(&o, st, &g, &why) == ERR_NONE, "round %d: %s", round, why.text);
	uint64_t last = meta_last_seq(st);
	CHECK(last >= p->acked, "round %d: %" PRIu64 " was acknowledged, %" PRIu64 " is there",
	      round, p->acked, last);
	/* a round that was killed before its TERM was durable began where the next one does */
	uint64_t want[KEYS] = { 0 }, terms = 0;
	for (int i = 0; i < round; i++)
		terms += p->first[i] <= last &&
			 (i + 1 == round || p->first[i + 1] != p->first[i]);
	CHECK(meta_term(st) == terms, "round %d: term %" PRIu64 ", want %" PRIu64, round,
	      meta_term(st), terms);
	for (int i = 0; i < round; i++) {
		uint64_t end = i + 1 < round ? p->first[i + 1] - 1 : last;
		for (uint64_t s = p->first[i] + 2; s <= end; s++)
			want[s % KEYS] = s;
	}
	const struct meta_holder *h = meta_holder_find(st, BYTES_STR("h"));
	for (uint64_t k = 0; h && k < KEYS; k++) {
		char key[24];
		int n = snprintf(key, sizeof(key), "k%" PRIu64, k);
		uint64_t got = meta_barred(h, 0, BYTES_STR("t"), BYTES(key, (size_t)n));
		CHECK(got == want[k],
		      "round %d: key %" PRIu64 " is barred to %" PRIu64 ", want %" PRIu64,
		      round, k, got, want[k]);
	}
	meta_state_check(st);
	p->first[round] = last + 1;
	p->snapshots += meta_log_snap_bytes(g) > 0;
	meta_log_close(g);
	meta_state_free(st);
	meta_fs_free(fs);
}

static pid_t start_child(const struct parent *p, int *out)
{
	int fd[2];
	CHECK(pipe2(fd, O_CLOEXEC) == 0, "no pipe");
	pid_t pid = fork();
	CHECK(pid >= 0, "no process");
	if (pid == 0) {
		dup2(fd[1], STDOUT_FILENO);
		execl(p->self, p->self, "--child", p->dir, (char *)NULL);
		_exit(127);
	}
	close(fd[1]);
	*out = fd[0];
	return pid;
}

/* Every whole line is an acknowledgement; the last may be cut off by the kill. */
static void hear(struct parent *p, FILE *in)
{
	char line[64];
	while (fgets(line, sizeof(line), in))
		if (strchr(line, '\n'))
			p->acked = MAX_OF(p->acked, strtoull(line, NULL, 10));
}

static void one_round(struct parent *p, int round, uint64_t *seed)
{
	int fd, status;
	pid_t pid = start_child(p, &fd);
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	/* long enough to get going, most times; sometimes not */
	struct timespec wait = { .tv_nsec = (long)((*seed >> 33) % 30000000) };
	nanosleep(&wait, NULL);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid, "no child");
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child ended by itself");
	FILE *in = fdopen(fd, "r");
	CHECK(in, "no memory");
	hear(p, in);
	fclose(in);
	judge(p, round + 1);
}

int main(int argc, char **argv)
{
	static struct parent p;
	char dir[] = "/tmp/pomelo-meta-kill-XXXXXX", cmd[64];
	if (argc == 3 && strcmp(argv[1], "--child") == 0)
		return run_child(argv[2]);
	p.rounds = argc > 1 ? atoi(argv[1]) : 200;
	CHECK(p.rounds > 0 && p.rounds < 9999, "1 to 9998 rounds");
	CHECK(mkdtemp(dir), "no folder");
	p.self = "/proc/self/exe";
	p.dir = dir;
	p.first[0] = 1;
	uint64_t seed = (uint64_t)getpid();
	for (int i = 0; i < p.rounds; i++)
		one_round(&p, i, &seed);
	printf("%d kills, %" PRIu64 " records acknowledged, none lost, %" PRIu64
	       " rounds ended with a snapshot\n",
	       p.rounds, p.acked, p.snapshots);
	CHECK(p.acked > 0, "no child ever wrote");
	snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
	return system(cmd) != 0;
}
