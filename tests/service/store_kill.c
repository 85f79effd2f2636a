/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 of master, agents and clients in random order under load, with clients that record what they
 * asked and were told; afterwards the record is judged: no acknowledged put lost, no acknowledged remove
 * or older version back, no wrong byte, no stuck key, every call ended by its deadline (T2, T3, T4, T7).
 *
 *   store_kill [-u] [-r ROUNDS] [-s SEED]
 *
 * A master and two agents that the test runs; with -u all five services under the supervisor, one
 * agent, and the supervisor is a victim, too. It starts again what was killed; killed itself, the next
 * `pomelo up` adopts what runs on, which is to be the same processes. One round in four has two victims.
 *
 * A key is written by one client alone, which numbers its writes; everybody reads. A value says which
 * write it is. A client that was killed is started again and goes on with the next number, so a write
 * without an end may or may not have happened.
 */
#include "store_rig.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 4, KEYS_EACH = 6, KEYS = CLIENTS * KEYS_EACH, RECS = 1 << 21, HEAD = 16 };
enum { DEADLINE_MS = 20000, SLACK_MS = 5000, SIZE_MAX_OF = 12000 };
enum what { OP_GET = 1, OP_UPSERT, OP_REMOVE };

struct rec {
	uint8_t client, key, op;
	int code;
	uint32_t number;     /* of the write; a get: of the write whose value came; 0: none */
	uint64_t begin, end; /* places in the order of all events; end 0: it never ended */
	uint32_t ms;
};

struct shared {
	_Atomic bool stop;
	_Atomic uint64_t order, foreign, late;
	_Atomic uint32_t n, number[KEYS];
	struct rec rec[RECS];
};

static struct rig rig;

static uint64_t seed_of(unsigned key, uint32_t number)
{
	return (uint64_t)key << 32 | number;
}

static size_t size_of(uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull;
	return HEAD + (size_t)((x ^ x >> 31) % SIZE_MAX_OF);
}

static void key_of(unsigned key, char out[16])
{
	snprintf(out, 16, "kill/%u", key);
}

/* ---- a client ---- */

struct client {
	struct shared *s;
	struct pml *p;
	unsigned id;
	uint64_t rng;
	uint8_t v[SIZE_MAX_OF + HEAD];
};

static struct rec *rec_begin(struct client *c, unsigned key, enum what op, uint32_t number)
{
	uint32_t i = atomic_fetch_add(&c->s->n, 1);
	if (i >= RECS) {
		atomic_store(&c->s->stop, true);
		return NULL;
	}
	struct rec *r = &c->s->rec[i];
	r->client = (uint8_t)c->id;
	r->key = (uint8_t)key;
	r->number = number;
	r->code = -1;
	r->begin = atomic_fetch_add(&c->s->order, 1) + 1;
	r->op = (uint8_t)op;
	return r;
}

static void rec_end(struct client *c, struct rec *r, int code, uint64_t since_ms)
{
	r->code = code;
	r->ms = (uint32_t)(rig_now_ms() - since_ms);
	if (r->ms > DEADLINE_MS + SLACK_MS)
		atomic_fetch_add(&c->s->late, 1);
	atomic_thread_fence(memory_order_seq_cst);
	r->end = atomic_fetch_add(&c->s->order, 1) + 1;
}

static void do_get(struct client *c, unsigned key)
{
	char name[16];
	size_t n = 0;
	uint64_t seed = 0, at = rig_now_ms();
	struct pml_error err = PML_ERROR_INIT;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct rec *r = rec_begin(c, key, OP_GET, 0);
	if (!r)
		return;
	key_of(key, name);
	o.deadline_ms = DEADLINE_MS;
	int code = pml_get(c->p, name, strlen(name), c->v, sizeof(c->v), &n, &o, &err);
	if (code == 0) {
		memcpy(&seed, c->v, sizeof(seed));
		bool ours = n >= HEAD && seed >> 32 == key && n == size_of(seed) &&
			    value_is(c->v + HEAD, n - HEAD, seed);
		if (!ours)
			atomic_fetch_add(&c->s->foreign, 1);
		r->number = (uint32_t)seed;
	}
	rec_end(c, r, code, at);
}

static void do_write(struct client *c, unsigned key, enum what op)
{
	char name[16];
	uint64_t at = rig_now_ms();
	struct pml_error err = PML_ERROR_INIT;
	uint32_t number = atomic_fetch_add(&c->s->number[key], 1) + 1;
	uint64_t seed = seed_of(key, number);
	size_t n = size_of(seed);
	int code;
	key_of(key, name);
	memset(c->v, 0, HEAD);
	memcpy(c->v, &seed, sizeof(seed));
	value_fill(c->v + HEAD, n - HEAD, seed);
	struct rec *r = rec_begin(c, key, op, number);
	if (!r)
		return;
	if (op == OP_UPSERT) {
		struct pml_put_opts o = PML_PUT_OPTS_INIT;
		o.deadline_ms = DEADLINE_MS;
		o.hard_pin = true; /* evicted is not lost */
		code = pml_upsert(c->p, name, strlen(name), c->v, n, &o, &err);
	} else {
		struct pml_remove_opts o = PML_REMOVE_OPTS_INIT;
		o.deadline_ms = DEADLINE_MS;
		o.force = true;
		code = pml_remove(c->p, name, strlen(name), &o, &err);
	}
	rec_end(c, r, code, at);
}

static void client_step(struct client *c)
{
	uint64_t dice = rig_chance(&c->rng, 100);
	unsigned own = c->id * KEYS_EACH + (unsigned)rig_chance(&c->rng, KEYS_EACH);
	if (dice < 50)
		do_get(c, (unsigned)rig_chance(&c->rng, KEYS));
	else
		do_write(c, own, dice < 85 ? OP_UPSERT : OP_REMOVE);
	rig_sleep((unsigned)rig_chance(&c->rng, 4)); /* the record holds all rounds */
}

static struct shared *map_log(int fd)
{
	void *p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* --client FD ID DATA SEED */
static bool client_main(int argc, char **argv, int *code)
{
	static struct client c;
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	if (argc != 6 || strcmp(argv[1], "--client") != 0)
		return false;
	c.s = map_log((int)strtol(argv[2], NULL, 10));
	c.id = (unsigned)strtoul(argv[3], NULL, 10);
	c.rng = strtoull(argv[5], NULL, 10);
	o.data = argv[4];
	*code = 1;
	if (!c.s || pml_open(&o, &c.p, &err) != 0)
		return true;
	while (!atomic_load(&c.s->stop))
		client_step(&c);
	pml_close(c.p);
	*code = 0;
	return true;
}

static pid_t client_start(int fd, unsigned id, uint64_t seed)
{
	char f[16], i[16], s[24];
	snprintf(f, sizeof(f), "%d", fd);
	snprintf(i, sizeof(i), "%u", id);
	snprintf(s, sizeof(s), "%" PRIu64, seed | 1);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/proc/self/exe", "client", "--client", f, i, rig.box[0].dir, s,
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* ---- the judge ---- */

struct history {
	const struct rec
		*write[1 << 16]; /* of one key, by number, which is the order they began in */
	uint32_t n, at;		 /* the highest; where the last look was */
};

static bool acked_before(const struct rec *w, const struct rec *r)
{
	return w && w->code == 0 && w->end && w->end < r->begin;
}

/* May the key have no value in the eyes of r, the last write acknowledged before it being `last`? */
static bool may_be_absent(const struct history *h, uint32_t last, const struct rec *r)
{
	if (last == 0 || h->write[last]->op == OP_REMOVE)
		return true;
	for (uint32_t i = last + 1; i <= h->n; i++) {
		const struct rec *w = h->write[i];
		if (w && w->begin > r->end)
			return false;
		if (w && (w->op == OP_REMOVE || !acked_before(w, r)))
			return true; /* an upsert in doubt may end with neither version */
	}
	return false;
}

/* The last write acknowledged before r; 0: none. Gets come about in order: the look goes on from the last one's place. */
static uint32_t last_before(struct history *h, const struct rec *r)
{
	uint32_t i = h->at;
	while (i < h->n && (!h->write[i + 1] || h->write[i + 1]->begin < r->begin))
		i++;
	h->at = i;
	while (i > 0 && !acked_before(h->write[i], r))
		i--;
	return i;
}

/* NULL: it is right. floor: the newest write that an earlier reader saw. */
static const char *judge(struct history *h, const struct rec *r, uint32_t floor)
{
	uint32_t last = last_before(h, r);
	if (r->code == PML_ERR_NOT_FOUND)
		return may_be_absent(h, last, r) ? NULL : "an acknowledged put is lost";
	if (r->code != 0)
		return NULL;
	const struct rec *w = r->number <= h->n ? h->write[r->number] : NULL;
	if (!w || w->op != OP_UPSERT || w->begin > r->end)
		return "a value that nobody wrote";
	if (r->number < last)
		return "an old value, or a removed one, is back";
	return r->number < floor ? "a reader saw a newer one before" : NULL;
}

static unsigned judge_key(const struct shared *s, unsigned key, uint32_t n)
{
	static struct history h;
	unsigned bad = 0;
	memset(&h, 0, sizeof(h));
	for (uint32_t i = 0; i < n; i++) {
		const struct rec *r = &s->rec[i];
		if (r->op <= OP_GET || r->key != key)
			continue;
		CHECK(&rig, r->number < ARRAY_LEN(h.write), "too many writes of one key");
		h.write[r->number] = r;
		h.n = MAX_OF(h.n, r->number);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct rec *r = &s->rec[i];
		uint32_t floor = 0;
		if (r->op != OP_GET || r->key != key || !r->end)
			continue;
		for (uint32_t k = i > 400 ? i - 400 : 0; k < MIN_OF(i + 400, n); k++) {
			const struct rec *e = &s->rec[k];
			if (e->op == OP_GET && e->key == key && e->code == 0 && e->end &&
			    e->end < r->begin)
				floor = MAX_OF(floor, e->number);
		}
		const char *why = judge(&h, r, floor);
		if (why && bad++ < 5)
			printf("key %u: %s: a get of client %u at %" PRIu64 "..%" PRIu64
			       " said %s, write %u (a reader saw %u)\n",
			       key, why, r->client, r->begin, r->end, pml_error_name(r->code),
			       r->number, floor);
	}
	return bad;
}

static void judge_all(struct shared *s)
{
	uint32_t n = MIN_OF(atomic_load(&s->n), (uint32_t)RECS), ended = 0, ok = 0;
	unsigned bad = 0;
	for (unsigned key = 0; key < KEYS; key++)
		bad += judge_key(s, key, n);
	for (uint32_t i = 0; i < n; i++) {
		ended += s->rec[i].end != 0;
		ok += s->rec[i].end && s->rec[i].code == 0;
	}
	printf("%u calls, %u ended, %u well; %u broke a promise, %" PRIu64
	       " foreign values, %" PRIu64 " late\n",
	       n, ended, ok, bad, atomic_load(&s->foreign), atomic_load(&s->late));
	CHECK(&rig, bad == 0, "see above");
	CHECK(&rig, atomic_load(&s->foreign) == 0, "wrong bytes");
	CHECK(&rig, atomic_load(&s->late) == 0, "calls outlived their deadline");
	CHECK(&rig, ok > n / 4, "hardly a call went well");
	CHECK(&rig, n < RECS, "the record was full before the last round");
}

/* ---- the killer ---- */

static void kill_client(pid_t *pid, int fd, unsigned id)
{
	int status;
	kill(*pid, SIGKILL);
	waitpid(*pid, &status, 0);
	*pid = client_start(fd, id, rig.rng ^ ((uint64_t)rig_now_ms() << 8 | id));
}

static void one_round(unsigned round, pid_t *pids, int fd)
{
	static const char *const names[] = { "master", "agent 0", "agent 1", "client" };
	unsigned victim = (unsigned)rig_chance(&rig.rng, 4), who = 0;
	rig_sleep((unsigned)(50 + rig_chance(&rig.rng, 450)));
	if (victim == 0) {
		rig_kill(&rig, &rig.master);
		rig_master(&rig, NULL);
	} else if (victim < 3) {
		rig_kill(&rig, &rig.agent[victim - 1]);
		rig_agent(&rig, victim - 1, NULL);
	} else {
		who = (unsigned)rig_chance(&rig.rng, CLIENTS);
		kill_client(&pids[who], fd, who);
	}
	printf("round %u: %s\n", round, names[victim]);
}

/* ---- the killer, under the supervisor ---- */

enum { SERVICES_N = 5, SUP_AGENT = 1, SUP_SUPERVISOR = 2, SUP_CLIENT = 3, SUP_VICTIMS = 4 };
static const char *const services[SERVICES_N] = { "master", "agent", "owner", "planner", "pg" };
static const char *const sup_victims[SUP_VICTIMS] = { "master", "agent", "supervisor",
						      "client" };

/* Pools of this release lie in files, never in a memfd of the supervisor's: agent and supervisor may go
 * in one round. */
static unsigned draw_victims(void)
{
	unsigned v = 1u << rig_chance(&rig.rng, SUP_VICTIMS);
	if (rig_chance(&rig.rng, 4) == 0)
		v |= 1u << rig_chance(&rig.rng, SUP_VICTIMS);
	return v;
}

static void sup_round(unsigned round, pid_t *pids, int fd)
{
	unsigned victims = draw_victims(), who = 0;
	pid_t was[SERVICES_N];
	char names[64] = "";
	rig_sleep((unsigned)rig_chance(&rig.rng, 500));
	for (unsigned i = 0; i < SERVICES_N; i++)
		was[i] = rig_sup_pid(&rig, services[i], victims & 1u << i);
	if (victims & 1u << SUP_SUPERVISOR) /* first: it would start again what follows */
		rig_sup_kill(&rig, rig_sup_supervisor(&rig), "supervisor");
	for (unsigned i = 0; i < SUP_VICTIMS; i++) {
		if (!(victims & 1u << i))
			continue;
		size_t n = strlen(names);
		snprintf(names + n, sizeof(names) - n, " %s", sup_victims[i]);
		if (i <= SUP_AGENT)
			rig_sup_kill(&rig, was[i], services[i]);
	}
	if (victims & 1u << SUP_CLIENT) {
		who = (unsigned)rig_chance(&rig.rng, CLIENTS);
		kill_client(&pids[who], fd, who);
	}
	printf("round %u:%s\n", round, names);
	/* mostly the next one comes before the last one's end */
	if (victims & 1u << SUP_SUPERVISOR || rig_chance(&rig.rng, 4) == 0) {
		rig_sleep((unsigned)rig_chance(&rig.rng, 300));
		rig_sup_ready(&rig);
	}
	for (unsigned i = 0; i < SERVICES_N; i++)
		CHECK(&rig,
		      was[i] == 0 || (i <= SUP_AGENT && victims & 1u << i) ||
			      rig_sup_pid(&rig, services[i], true) == was[i],
		      "round %u:%s: another process is %s now", round, names, services[i]);
}

/* The attempt of a client that was killed last is in the way until it is discarded, and its holder was asked. */
static int put_soon(const char *name, uint64_t seed)
{
	uint64_t end = rig_now_ms() + 10 * (uint64_t)rig.discard_ms;
	int code = rig_put(&rig, name, seed, 1000, true, -1, NULL);
	while (code == PML_ERR_BUSY_WRITING && rig_now_ms() < end) {
		rig_sleep(50);
		code = rig_put(&rig, name, seed, 1000, true, -1, NULL);
	}
	return code;
}

/* Every key can be written, read and removed. */
static void no_stuck_key(void)
{
	for (unsigned key = 0; key < KEYS; key++) {
		char name[16];
		unsigned which;
		uint64_t seed = seed_of(key, UINT32_MAX);
		key_of(key, name);
		CHECK(&rig, put_soon(name, seed) == 0, "%s is stuck", name);
		CHECK(&rig, rig_get(&rig, name, &seed, 1, 1000, &which) == 0, "%s is stuck",
		      name);
		CHECK(&rig, rig_remove(&rig, name) == 0, "%s is stuck", name);
	}
}

static void clients_end(const pid_t *pids)
{
	for (unsigned i = 0; i < CLIENTS; i++) {
		int status = 0;
		uint64_t end = rig_now_ms() + DEADLINE_MS + SLACK_MS;
		while (waitpid(pids[i], &status, WNOHANG) == 0) {
			CHECK(&rig, rig_now_ms() < end, "client %u does not end", i);
			rig_sleep(10);
		}
		CHECK(&rig, WIFEXITED(status) && WEXITSTATUS(status) == 0, "client %u: %#x", i,
		      (unsigned)status);
	}
}

static void run(unsigned rounds)
{
	pid_t pids[CLIENTS];
	int fd = memfd_create("log", 0); /* the clients inherit it */
	CHECK(&rig, fd >= 0 && ftruncate(fd, sizeof(struct shared)) == 0, "%s",
	      strerror(errno));
	struct shared *s = map_log(fd);
	CHECK(&rig, s, "%s", strerror(errno));
	for (unsigned i = 0; i < CLIENTS; i++)
		pids[i] = client_start(fd, i, rig.rng + i * 7919);
	rig_sleep(500);
	for (unsigned i = 0; i < rounds && !atomic_load(&s->stop); i++)
		(rig.supervised ? sup_round : one_round)(i, pids, fd);
	if (rig.supervised)
		rig_sup_ready(&rig);
	else
		rig_settled(&rig);
	rig_sleep(500);
	atomic_store(&s->stop, true);
	clients_end(pids);
	judge_all(s);
	no_stuck_key();
	munmap(s, sizeof(*s));
	close(fd);
}

int main(int argc, char **argv)
{
	unsigned rounds = 8;
	bool supervised = false;
	int code, c;
	if (client_main(argc, argv, &code) || rig_kid_main(argc, argv, &code))
		return code;
	rig.rng = (uint64_t)getpid() | 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((c = getopt(argc, argv, "ur:s:")) > 0) {
		supervised |= c == 'u';
		if (c == 'r')
			rounds = (unsigned)strtoul(optarg, NULL, 10);
		if (c == 's')
			rig.rng = strtoull(optarg, NULL, 10);
	}
	printf("seed %" PRIu64 ", %u rounds\n", rig.rng, rounds);
	rig.pool_mib = 128;
	rig.dead_ms = 60000;
	rig.discard_ms = 1000;
	(supervised ? rig_sup_up : rig_up)(&rig);
	run(rounds);
	(supervised ? rig_sup_down : rig_down)(&rig);
	return 0;
}
