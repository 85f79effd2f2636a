/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run/agent.fd between real ends: who is let in, what is handed out, and what happens to those who
 * lie, are silent or come in crowds. The client blocks in a thread of its own; the agent's loop is ours.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/auth_crypto.h"
#include "sock_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

struct asker {
	struct shmsock_ask a;
	struct shmpool_fds fds;
	int conn;
	enum err err;
	struct why why;
	_Atomic bool done;
};

static void *ask(void *arg)
{
	struct asker *k = arg;
	k->err = shmsock_ask(&k->a, &k->fds, &k->conn, &k->why);
	k->done = true;
	return NULL;
}

static struct asker asks_as(struct sock_fix *f, struct keyring *keys, const char *tenant)
{
	static const uint8_t instance[16] = "an instance";
	return (struct asker){ .a = { .path = f->path,
				      .keys = keys,
				      .role = ROLE_CLIENT,
				      .tenant = tenant,
				      .instance = instance,
				      .write = true,
				      .timeout_ms = 3000 } };
}

static enum err run(struct sock_fix *f, struct asker *k)
{
	pthread_t t;
	k->done = false;
	cr_assert_eq(pthread_create(&t, NULL, ask, k), 0);
	while (!k->done)
		sock_fix_turn(f);
	pthread_join(t, NULL);
	return k->err;
}

static unsigned open_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static bool maps_to_write(int fd)
{
	void *p = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		munmap(p, 64);
	return p != MAP_FAILED;
}

Test(shmsock, a_client_with_the_key_gets_the_pool, .timeout = 20)
{
	struct sock_fix f;
	struct shmpool *c;
	struct hold_slot s;
	sock_fix_init(&f);
	unsigned before = open_fds();
	struct asker k = asks_as(&f, f.keys, "default");
	cr_assert_eq(run(&f, &k), ERR_NONE, "%s", k.why.text);
	cr_assert(!maps_to_write(k.fds.ctl) && !maps_to_write(k.fds.gen));
	cr_assert(maps_to_write(k.fds.data[0]) && maps_to_write(k.fds.session));
	OK(shmpool_map(&k.fds, &c, &k.why));
	cr_assert(shmpool_writable(c));
	cr_assert_eq(memcmp(shmpool_id(c), mempool_id(f.x.p), 16), 0);

	uint64_t epoch = store_fix_under(&f.x).pool_epoch;
	struct extent e = { .offset = 4096, .bytes = 5 };
	struct pool_lane *l = shmpool_lane(c);
	OK(lane_begin(l, shmpool_ctl(c), 0, epoch, 9, &e, 1));
	memcpy(shmpool_at(c, &e), "bytes", 5);
	cr_assert_eq(store_fix_commit(&f.x, 9, "k", 4096, 5, &s), ERR_BUSY);
	lane_end(l);
	shmpool_lane_done(c, l);
	OK(store_fix_commit(&f.x, 9, "k", 4096, 5, &s));
	cr_assert_eq(memcmp(mempool_at(f.x.p, &e), "bytes", 5), 0);
	cr_assert(shmpool_same(c, s.slot, s.generation));

	close(k.conn);
	sock_fix_turns(&f, 5);
	hold_sweep(f.x.h);
	cr_assert_eq(mempool_sessions(f.x.p), 1, "the mapping lives, not the connection");
	shmpool_close(c);
	hold_sweep(f.x.h);
	cr_assert_eq(mempool_sessions(f.x.p), 0);
	cr_assert_eq(open_fds(), before, "nothing is left open at either end");
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, a_reader_gets_no_right_to_write, .timeout = 20)
{
	struct sock_fix f;
	struct shmpool *c;
	sock_fix_init(&f);
	struct asker k = asks_as(&f, f.keys, "default");
	k.a.write = false;
	OK(run(&f, &k));
	cr_assert(!maps_to_write(k.fds.data[0]));
	OK(shmpool_map(&k.fds, &c, &k.why));
	cr_assert(!shmpool_writable(c));
	shmpool_close(c);
	close(k.conn);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, role_keys_and_services_are_let_in_too, .timeout = 20)
{
	struct sock_fix f;
	struct keyring *role;
	uint8_t key[AUTH_KEY_BYTES];
	sock_fix_init(&f);
	OK(keyring_role_key(f.keys, 0, ROLE_CLIENT, "tenant-a", key));
	OK(keyring_new_role(ROLE_CLIENT, "tenant-a", key, &role));
	struct asker k = asks_as(&f, role, "tenant-a");
	OK(run(&f, &k));
	sock_fix_drop(&k.fds, k.conn);
	k = asks_as(&f, role, "tenant-b");
	cr_assert_eq(run(&f, &k), ERR_FORBIDDEN, "it has no such key");
	k = asks_as(&f, f.keys, NULL);
	k.a.role = ROLE_SERVICE;
	OK(run(&f, &k));
	sock_fix_drop(&k.fds, k.conn);
	keyring_free(role);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, a_wrong_secret_gets_nothing, .timeout = 20)
{
	struct sock_fix f;
	struct keyring *other;
	struct shmsock_counts n;
	uint8_t secret[AUTH_KEY_BYTES] = "another secret";
	sock_fix_init(&f);
	OK(keyring_new(secret, NULL, &other));
	unsigned tries = 0;
	enum err e = ERR_UNAUTHENTICATED;
	for (; e == ERR_UNAUTHENTICATED; tries++) { /* a slow machine earns a few more */
		struct asker k = asks_as(&f, other, "default");
		cr_assert_lt(tries, 20 * AUTH_TRIES);
		e = run(&f, &k);
		cr_assert(strstr(k.why.text, f.path), "%s", k.why.text);
	}
	cr_assert_eq(e, ERR_BUSY, "%s", err_name(e));
	cr_assert_gt(tries, AUTH_TRIES);
	shmsock_counts(f.s, &n);
	cr_assert_eq(n.refused_key, tries);
	cr_assert_eq(n.granted, 0);
	cr_assert_eq(mempool_sessions(f.x.p), 0);
	keyring_free(other);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, an_agent_with_another_secret_is_found_out, .timeout = 20)
{
	/* An impostor that accepts any proof and grants, without the key. */
	struct sock_fix f;
	sock_fix_init(&f);
	struct shmsock_grant g = { .n_segments = 1 };
	uint8_t text[SHMSOCK_MSG_MAX], in[SHMSOCK_MSG_MAX];
	int pair = sock_fix_impostor(&f);
	struct asker k = asks_as(&f, f.keys, "default");
	pthread_t t;
	cr_assert_eq(pthread_create(&t, NULL, ask, &k), 0);
	int c = accept(pair, NULL, NULL);
	struct shmsock_challenge ch = { { 1 } };
	size_t n = shmsock_put_challenge(text, &ch);
	cr_assert_eq(send(c, text, n, 0), (ssize_t)n);
	cr_assert_eq(recv(c, in, sizeof(in), 0), 156);
	n = shmsock_put_grant(text, &g);
	cr_assert_eq(send(c, text, n, 0), (ssize_t)n);
	pthread_join(t, NULL);
	cr_assert_eq(k.err, ERR_UNAUTHENTICATED);
	cr_assert(strstr(k.why.text, "another secret"), "%s", k.why.text);
	close(c);
	close(pair);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, a_proof_is_good_for_one_challenge, .timeout = 20)
{
	struct sock_fix f;
	uint8_t text[SHMSOCK_MSG_MAX], again[SHMSOCK_MSG_MAX];
	struct shmsock_grant g;
	sock_fix_init(&f);
	size_t n = sock_fix_record_ask(&f, text); /* a right one, heard elsewhere */
	int c = sock_fix_connect(&f);
	sock_fix_recv(&f, c, again);
	cr_assert_eq(send(c, text, n, 0), (ssize_t)n);
	size_t got = sock_fix_recv(&f, c, again);
	OK(shmsock_get_grant(BYTES(again, got), &g));
	cr_assert_eq(g.status, ERR_UNAUTHENTICATED);
	close(c);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, garbage_is_refused_and_counted, .timeout = 20)
{
	struct sock_fix f;
	struct shmsock_counts n;
	uint8_t in[SHMSOCK_MSG_MAX], text[SHMSOCK_MSG_MAX];
	sock_fix_init(&f);
	for (unsigned i = 0; i < 40; i++) {
		int c = sock_fix_connect(&f);
		struct shmsock_ask_msg m = { .role = ROLE_CLIENT, .tenant = "default" };
		size_t len = shmsock_put_ask(text, &m);
		sock_fix_recv(&f, c, in);
		if (i < 12)
			text[i] ^= 0x55; /* magic, version, type, role ... */
		else
			len = i; /* too short */
		cr_assert_eq(send(c, text, len, 0), (ssize_t)len);
		struct shmsock_grant g;
		size_t got = sock_fix_recv(&f, c, in);
		OK(shmsock_get_grant(BYTES(in, got), &g));
		cr_assert_neq(g.status, 0, "%u", i);
		close(c);
	}
	shmsock_counts(f.s, &n);
	cr_assert_eq(n.granted, 0);
	cr_assert_gt(n.refused_message, 30);
	sock_fix_turns(&f, 5);
	shmsock_counts(f.s, &n);
	cr_assert_eq(n.open, 0);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, silent_ones_are_dropped_and_crowds_refused, .timeout = 20)
{
	struct sock_fix f;
	struct shmsock_counts n;
	uint8_t in[SHMSOCK_MSG_MAX];
	int c[6];
	sock_fix_init(&f); /* conns_max 4, ask_ms 500 */
	for (int i = 0; i < 6; i++)
		c[i] = sock_fix_connect(&f);
	sock_fix_turns(&f, 5);
	shmsock_counts(f.s, &n);
	cr_assert_eq(n.open, 4);
	cr_assert_eq(n.refused_busy, 2);
	struct asker k = asks_as(&f, f.keys, "default");
	cr_assert_eq(run(&f, &k), ERR_BUSY);
	while (n.open > 0) {
		sock_fix_turn(&f);
		shmsock_counts(f.s, &n);
	}
	sock_fix_recv(&f, c[0], in); /* the challenge, then the end */
	cr_assert_eq(recv(c[0], in, sizeof(in), 0), 0);
	for (int i = 0; i < 6; i++)
		close(c[i]);
	OK(run(&f, &k));
	sock_fix_drop(&k.fds, k.conn);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, nobody_there_and_bad_paths_are_told, .timeout = 20)
{
	struct sock_fix f;
	struct shmsock *s;
	struct why why = { 0 };
	char longer[200];
	sock_fix_init(&f);
	struct asker k = asks_as(&f, f.keys, "default");
	k.a.path = "/tmp/no/such/agent.fd";
	cr_assert_eq(shmsock_ask(&k.a, &k.fds, &k.conn, &k.why), ERR_UNREACHABLE);
	cr_assert(strstr(k.why.text, "is it up?"), "%s", k.why.text);
	memset(longer, 'x', sizeof(longer));
	longer[0] = '/', longer[199] = 0;
	k.a.path = longer;
	cr_assert_eq(shmsock_ask(&k.a, &k.fds, &k.conn, NULL), ERR_INVALID_PARAMS);
	struct shmsock_opts o = {
		.loop = &f.loop, .keys = f.keys, .pool = f.x.p, .path = longer
	};
	cr_assert_eq(shmsock_listen(&o, &s, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "--run-dir"), "%s", why.text);
	o.path = f.root;
	cr_assert_eq(shmsock_listen(&o, &s, NULL), ERR_FORBIDDEN, "a folder stands there");
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, an_agent_that_says_nothing_ends_at_the_deadline, .timeout = 20)
{
	struct sock_fix f;
	sock_fix_init(&f);
	int l = sock_fix_impostor(&f);
	struct asker k = asks_as(&f, f.keys, "default");
	k.a.timeout_ms = 50;
	cr_assert_eq(shmsock_ask(&k.a, &k.fds, &k.conn, &k.why), ERR_TIMED_OUT);
	cr_assert(strstr(k.why.text, "challenge"), "%s", k.why.text);
	close(l);
	sock_fix_fini(&f);
	NO_LEAKS();
}

Test(shmsock, descriptors_that_do_not_fit_are_not_mapped, .timeout = 20)
{
	struct sock_fix f;
	struct shmpool *c;
	sock_fix_init(&f);
	for (int i = 0; i < 6; i++) {
		struct asker k = asks_as(&f, f.keys, "default");
		struct why why = { 0 };
		OK(run(&f, &k));
		unsigned before = open_fds();
		switch (i) {
		case 0:
			k.fds.n_slots = 1000; /* gen is shorter: a look would be SIGBUS */
			break;
		case 1:
			k.fds.bytes[0] *= 2;
			break;
		case 2:
			k.fds.n_lanes = 64;
			break;
		case 3:
			k.fds.n_shards = 2;
			break;
		case 4:
			k.fds.n_lanes = 0;
			break;
		default:
			k.fds.bytes[0] = 0;
			break;
		}
		enum err e = shmpool_map(&k.fds, &c, &why);
		cr_assert(e == ERR_CORRUPT || e == ERR_INVALID_PARAMS, "%d: %s", i,
			  err_name(e));
		cr_assert_neq(why.text[0], 0);
		cr_assert_eq(open_fds(), before - 4, "taken, also on an error");
		close(k.conn);
		sock_fix_turns(&f, 3);
	}
	sock_fix_fini(&f);
	NO_LEAKS();
}
