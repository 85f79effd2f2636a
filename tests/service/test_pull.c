/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between two real agents on one box (COPY, services/transfer-agent/pull.h), over tcp and a wire that
 * misbehaves, ordered by hand: versions are ones that the master does not know, so whatever it makes of
 * their PUBLISH, the bytes and the counters are the agents' own.
 */
#include "cases.h"
#include "relay.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/leak.h"
#include "rpc/ticket.h"
#include "store/backing.h"
#include "store/object.h"

TestSuite(pull, .timeout = 120);

enum { MiB = 1 << 20, BIG = 24 * MiB + 17, POOL = 128 * MiB, ROOM_AT = 64 * MiB };

struct pair {
	struct world w; /* agent: the source, behind the relay; second: the destination */
	struct relay *relay;
	char listen[64], advertise[128], far_listen[64], masters[128];
	const char *far_args[16];
	struct msg_under under; /* of the destination */
	char source[65], dest[65];
	uint8_t dest_pool[16];
	struct ticket_key *key; /* the destination's */
	uint64_t version, number;
	/* the last object looked up */
	struct arena arena;
	struct buf reply;
	struct msg_object o;
	struct msg_place at;
	struct msg_replica r;
	char text[321];
};

/* ---- the cluster ---- */

static void run_far(struct pair *d)
{
	proc_run(&d->w.far, daemon_row("agent"), d->far_args, &d->w.second);
	cs_ready(&d->w.second);
}

/* gone: an address that the source tells first and nobody answers at; 0: none. */
static void up_behind(struct pair *d, unsigned gone)
{
	char cmd[256];
	unsigned port = relay_free_port();
	memset(d, 0, sizeof(*d));
	setenv("POMELO_CLIENT_DATA_PATH", "auto", 1);
	d->relay = relay_new(port);
	d->number = 1;
	d->arena = ARENA_INIT(1 << 20);
	d->reply = BUF_INIT(1 << 20);
	cs_prepare(&d->w, "agent.pool_size=128MiB", "agent.slots=20000");
	snprintf(d->listen, sizeof(d->listen), "agent.data_listen=tcp://127.0.0.1:%u", port);
	char first[32] = "";
	if (gone)
		snprintf(first, sizeof(first), "tcp://127.0.0.1:%u,", gone);
	snprintf(d->advertise, sizeof(d->advertise),
		 "agent.data_advertise=%stcp://127.0.0.1:%u", first, relay_port(d->relay));
	snprintf(d->masters, sizeof(d->masters), "--masters=ipc://%.60s/run/master.sock",
		 d->w.box.dir);
	const char *more[] = { "--set", d->listen, "--set", d->advertise };
	size_t n = 0;
	while (d->w.aargs[n])
		n++;
	memcpy(d->w.aargs + n, more, sizeof(more));
	cs_start_all(&d->w);
	d->w.p = cs_client(&d->w);
	box_make(&d->w.far);
	snprintf(cmd, sizeof(cmd), "cp '%s' '%s'", d->w.box.secret, d->w.far.secret);
	cr_assert_eq(system(cmd), 0);
	keyring_free(d->w.far.keys);
	struct why why = { 0 };
	cr_assert_eq(keyring_load(d->w.far.secret, &d->w.far.keys, &why), ERR_NONE, "%s",
		     why.text);
	snprintf(d->far_listen, sizeof(d->far_listen), "agent.data_listen=tcp://127.0.0.1:0");
	const char *args[] = {
		"--set", "agent.http_port=0",	    "--set",	"agent.pool_size=128MiB",
		"--set", "agent.pull_stall_ms=500", "--set",	d->far_listen,
		"--set", "agent.slots=20000",	    d->masters, NULL
	};
	memcpy(d->far_args, args, sizeof(args));
}

static void up(struct pair *d)
{
	up_behind(d, 0);
}

static void down(struct pair *d)
{
	ticket_key_free(d->key);
	arena_fini(&d->arena);
	buf_fini(&d->reply);
	cs_down(&d->w);
	relay_free(d->relay);
}

/* ---- by hand ---- */

static enum err ask(const struct box *b, const char *addr, enum role as, enum role to,
		    uint32_t method, struct buf *body, struct buf *reply, struct why *why)
{
	struct caller c;
	caller_open(&c, b, addr, as, to);
	if (reply)
		buf_clear(reply);
	enum err e = caller_call(&c, method, buf_bytes(body), 10000, reply, why);
	caller_close(&c);
	buf_fini(body);
	return e;
}

/* What the master says of a key to a reader on another host: with a read ticket. */
static void look_up(struct pair *d, const char *key)
{
	struct bytes k = BYTES_STR(key);
	struct buf body = BUF_INIT(1024);
	struct msg_query_rep m;
	struct why why = { 0 };
	enc_keys_req(&body, &(struct msg_keys_req){ .keys = { &k, 1 },
						    .host = BYTES_STR("elsewhere") });
	cr_assert_eq(ask(&d->w.box, d->w.master.rpc, ROLE_CLIENT, ROLE_SERVICE, METHOD_QUERY,
			 &body, &d->reply, &why),
		     ERR_NONE, "%s", why.text);
	arena_clear(&d->arena);
	struct dec dec = DEC_INIT(buf_bytes(&d->reply), &d->arena, &why);
	cr_assert_eq(dec_query_rep(&dec, &m), ERR_NONE, "%s", why.text);
	cr_assert_eq(m.items.p[0].status, 0);
	d->o = m.items.p[0];
	d->r = d->o.replicas.p[0];
	d->at = m.places.p[d->r.place];
}

static void put(struct pair *d, const char *key, size_t n, unsigned seed)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	uint8_t *p = malloc(n);
	o.deadline_ms = 30000;
	cs_fill(p, n, seed);
	cr_assert_eq(pml_put(d->w.p, key, strlen(key), p, n, &o, &err), 0, "%s", err.text);
	free(p);
	look_up(d, key);
}

/* The destination joins; its pool is known by an object that went there. */
static void join(struct pair *d)
{
	char key[16];
	snprintf(d->source, sizeof(d->source), "%.*s", (int)d->at.holder.n,
		 (const char *)d->at.holder.p);
	run_far(d);
	for (unsigned i = 0; i < 200 && !d->dest[0]; i++) {
		snprintf(key, sizeof(key), "j/%u", i);
		put(d, key, 100, i);
		if (strlen(d->source) == d->at.holder.n &&
		    memcmp(d->source, d->at.holder.p, d->at.holder.n) == 0)
			continue;
		snprintf(d->dest, sizeof(d->dest), "%.*s", (int)d->at.holder.n,
			 (const char *)d->at.holder.p);
		memcpy(d->dest_pool, d->at.pool, 16);
	}
	cr_assert(d->dest[0], "nothing went to the second agent");
	cr_assert_eq(ticket_key_new(d->w.box.keys, d->dest, &d->key), ERR_NONE);
}

static enum err to_dest(struct pair *d, uint32_t method, struct buf *body, struct buf *reply,
			struct why *why)
{
	return ask(&d->w.box, d->w.second.rpc, ROLE_SERVICE, ROLE_HOLDER, method, body, reply,
		   why);
}

/* As the destination is adopted now: it says so to who gets it wrong (V9). */
static void find_under(struct pair *d)
{
	struct why why = { 0 };
	struct buf body = BUF_INIT(1024);
	unsigned long long t, a, e;
	enc_copy_req(&body, &(struct msg_copy_req){ .under = &(struct msg_under){ 0 } });
	cr_assert_neq(to_dest(d, METHOD_COPY, &body, NULL, &why), ERR_NONE);
	const char *is = strstr(why.text, "it is ");
	cr_assert(is && sscanf(is, "it is %llu, %llu, %llu", &t, &a, &e) == 3, "%s", why.text);
	d->under = (struct msg_under){ .term = t, .adoption = a, .pool_epoch = e };
	d->version = version_make(t, 1ull << 39) + d->number;
}

static struct msg_extent room(const struct pair *d)
{
	return (struct msg_extent){ 0, ROOM_AT, obj_stored_bytes(d->o.size) };
}

/* COPY of the object that was looked up last. */
static enum err copy(struct pair *d)
{
	struct buf body = BUF_INIT(1 << 16), sealed = BUF_INIT(TICKET_MAX),
		   reply = BUF_INIT(1 << 16);
	struct arena a = ARENA_INIT(1 << 16);
	struct why why = { 0 };
	struct msg_extent x = room(d);
	find_under(d);
	struct msg_ticket t = { .op = TICKET_PULL,
				.tenant = BYTES_STR("default"),
				.term = d->under.term,
				.pool_epoch = d->under.pool_epoch,
				.extents = { &x, 1 },
				.size = d->o.size,
				.version = d->version,
				.attempt = ++d->number,
				.key = BYTES_STR("copied"),
				.sum = d->o.sum };
	memcpy(t.pool, d->dest_pool, 16);
	cr_assert_eq(ticket_mint(d->key, &t, &sealed, &why), ERR_NONE, "%s", why.text);
	struct msg_copy_source s = { d->at.holder, d->at.host, d->at.addrs, d->r.ticket, 1 };
	struct msg_copy_item it = { buf_bytes(&sealed), { &s, 1 } };
	enc_copy_req(&body, &(struct msg_copy_req){ .under = &d->under, .items = { &it, 1 } });
	cr_assert_eq(to_dest(d, METHOD_COPY, &body, &reply, &why), ERR_NONE, "%s", why.text);
	struct msg_results_rep m;
	struct dec dec = DEC_INIT(buf_bytes(&reply), &a, &why);
	cr_assert_eq(dec_results_rep(&dec, &m), ERR_NONE);
	snprintf(d->text, sizeof(d->text), "%.*s", (int)m.items.p[0].text.n,
		 (const char *)m.items.p[0].text.p);
	enum err e = (enum err)m.items.p[0].status;
	buf_fini(&sealed);
	buf_fini(&reply);
	arena_fini(&a);
	return e;
}

static uint8_t fence(struct pair *d)
{
	struct buf body = BUF_INIT(1024), reply = BUF_INIT(1 << 16);
	struct arena a = ARENA_INIT(1 << 16);
	struct why why = { 0 };
	struct msg_extent x = room(d);
	struct msg_fence_item it = { d->version, { &x, 1 } };
	struct msg_fence_rep m;
	enc_fence_req(&body, &(struct msg_fence_req){ &d->under, { &it, 1 } });
	cr_assert_eq(to_dest(d, METHOD_FENCE, &body, &reply, &why), ERR_NONE, "%s", why.text);
	struct dec dec = DEC_INIT(buf_bytes(&reply), &a, &why);
	cr_assert_eq(dec_fence_rep(&dec, &m), ERR_NONE);
	uint8_t state = m.items.p[0].state;
	buf_fini(&reply);
	arena_fini(&a);
	return state;
}

/* ---- what came of it ---- */

static double ends(struct pair *d, const char *end)
{
	char name[64];
	snprintf(name, sizeof(name), "pomelo_agent_pulls_total{end=\"%s\"}", end);
	return MAX_OF(cs_metric_of(&d->w.second, name), 0.0);
}

static double done(struct pair *d)
{
	return ends(d, "ok") + ends(d, "refused");
}

/* Until it has ended one way or the other. */
static void settle(struct pair *d)
{
	cr_assert(cs_metric_until(&d->w.second, "pomelo_agent_pulls{state=\"running\"}", 0,
				  20000));
	for (int i = 0; i < 500 && done(d) + ends(d, "failed") + ends(d, "ended") == 0; i++)
		usleep(10000);
}

/* The first bytes of a pool's file. */
static uint8_t *pool_map(const struct box *b)
{
	char folder[PATH_BYTES_MAX], file[PATH_BYTES_MAX];
	struct why why = { 0 };
	cr_assert_eq(pool_folder_name(b->dir, b->dir, folder, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(path_join(file, folder, "data.0", &why), ERR_NONE);
	int fd = open(file, O_RDWR);
	cr_assert_geq(fd, 0, "%s", file);
	void *p = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	cr_assert_neq(p, MAP_FAILED);
	return p;
}

static bool arrived(struct pair *d)
{
	uint8_t *p = pool_map(&d->w.far);
	bool same = obj_sum(p + ROOM_AT, d->o.size, NULL) == d->o.sum;
	munmap(p, POOL);
	return same;
}

static void wipe(struct pair *d)
{
	uint8_t *p = pool_map(&d->w.far);
	memset(p + ROOM_AT, 0, BIG);
	munmap(p, POOL);
}

/* ---- tests ---- */

Test(pull, over_tcp)
{
	static const size_t sizes[] = { 1, 4096, MiB, BIG };
	struct pair d;
	char key[16];
	up(&d);
	put(&d, "first", 10, 1);
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		snprintf(key, sizeof(key), "s/%u", i);
		put(&d, key, sizes[i], i);
	}
	join(&d);
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		snprintf(key, sizeof(key), "s/%u", i);
		look_up(&d, key);
		double was = done(&d);
		cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
		for (int k = 0; k < 1000 && done(&d) == was; k++)
			usleep(10000);
		cr_expect_eq(done(&d), was + 1);
		cr_expect(arrived(&d), "%zu bytes", sizes[i]);
	}
	cr_expect_eq(ends(&d, "failed"), 0);
	cr_expect_leq(relay_counts(d.relay).conns, 2, "lanes are used again");
	down(&d);
	NO_LEAKS();
}

/* Of several addresses the one that answers is used. */
Test(pull, an_address_that_nobody_answers_at)
{
	struct pair d;
	up_behind(&d, relay_free_port());
	put(&d, "k", MiB, 1);
	join(&d);
	look_up(&d, "k");
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	settle(&d);
	cr_expect_eq(done(&d), 1);
	cr_expect(arrived(&d));
	down(&d);
	NO_LEAKS();
}

/* T4: wrong where it lies, at the source: told, not taken; and the source finds out, for it was asked. */
Test(pull, a_flipped_bit_at_the_source)
{
	struct pair d;
	up(&d);
	put(&d, "first", 10, 1);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	uint8_t *p = pool_map(&d.w.box);
	uint8_t *bit = p + d.r.extents.p[0].offset + 5 * MiB + 3;
	*bit ^= 64;
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	settle(&d);
	cr_expect_eq(ends(&d, "failed"), 1);
	cr_expect_eq(cs_metric_of(&d.w.second,
				  "pomelo_agent_pull_sources_failed_total{why=\"corrupt\"}"),
		     1);
	cr_expect_geq(cs_metric_of(&d.w.agent, "pomelo_agent_data_corrupt_total"), 1,
		      "the source was asked");
	cr_expect_eq(done(&d), 0);
	cr_expect(cs_metric_until(&d.w.agent, "pomelo_agent_corrupt_total", 1, 10000),
		  "its own verification");
	cr_expect_eq(cs_metric_of(&d.w.agent, "pomelo_agent_unverified"), 0);
	*bit ^= 64;
	munmap(p, POOL);
	uint8_t *v = malloc(BIG);
	size_t n = 0;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	o.deadline_ms = 2000;
	cr_expect_neq(pml_get(d.w.p, "k", 1, v, BIG, &n, &o, &err), 0, "it is retired");
	free(v);
	look_up(&d, "first");
	down(&d);
	NO_LEAKS();
}

/* Bits that change on the way, and cuts: it goes on behind what was good. */
Test(pull, a_wire_that_flips_and_cuts)
{
	struct pair d;
	up(&d);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	relay_cut(d.relay, 5 * MiB);
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	settle(&d);
	cr_expect_eq(done(&d), 1, "%g failed", ends(&d, "failed"));
	cr_expect_geq(relay_counts(d.relay).cut, 4);
	cr_expect(arrived(&d));
	relay_cut(d.relay, 0);
	wipe(&d);
	relay_flip(d.relay, true, 7 * MiB);
	for (unsigned i = 0; i < 10 && done(&d) == 1; i++) {
		double was = ends(&d, "failed");
		cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
		for (int k = 0; k < 1000 && done(&d) == 1 && ends(&d, "failed") == was; k++)
			usleep(10000);
		usleep(200000); /* it rests */
	}
	cr_expect_eq(done(&d), 2);
	cr_expect(arrived(&d));
	cr_expect_gt(relay_counts(d.relay).flipped, 0);
	cr_expect_eq(cs_metric_of(&d.w.second,
				  "pomelo_agent_pull_sources_failed_total{why=\"corrupt\"}"),
		     0, "the wire's fault");
	down(&d);
	NO_LEAKS();
}

/* T7; then it is back, and is used again. */
Test(pull, a_stopped_source)
{
	struct pair d;
	up(&d);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	proc_signal(&d.w.agent, SIGSTOP);
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	settle(&d);
	cr_expect_eq(ends(&d, "failed"), 1);
	proc_signal(&d.w.agent, SIGCONT);
	for (unsigned i = 0; i < 50 && done(&d) == 0; i++) {
		usleep(200000);
		cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
		settle(&d);
	}
	cr_expect_eq(done(&d), 1);
	cr_expect(arrived(&d));
	down(&d);
	NO_LEAKS();
}

/* T6: fenced while it hangs in the middle. */
Test(pull, fenced_in_the_middle)
{
	struct pair d;
	up(&d);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	relay_hold(d.relay, true);
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	cr_assert(
		cs_metric_until(&d.w.second, "pomelo_agent_pulls{state=\"running\"}", 1, 5000));
	cr_expect_eq(fence(&d), 3, "a thread may write");
	cr_expect(cs_metric_until(&d.w.second, "pomelo_agent_pool_bytes{kind=\"quarantine\"}",
				  0, 10000));
	cr_expect_eq(ends(&d, "ended"), 1);
	cr_expect_eq(fence(&d), 2);
	relay_hold(d.relay, false);
	usleep(300000);
	cr_expect(!arrived(&d));
	cr_expect_eq(done(&d) + ends(&d, "failed"), 0);
	down(&d);
	NO_LEAKS();
}

Test(pull, the_source_is_killed)
{
	struct pair d;
	up(&d);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	proc_signal(&d.w.agent, SIGSTOP);
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	cr_assert(cs_metric_until(&d.w.second, "pomelo_agent_pulls{state=\"running\"}", 1,
				  5000) ||
		  ends(&d, "failed") > 0);
	cs_kill_it(&d.w.agent);
	settle(&d);
	cr_expect_eq(ends(&d, "failed"), 1);
	proc_run(&d.w.box, daemon_row("agent"), d.w.aargs, &d.w.agent);
	cs_ready(&d.w.agent);
	double failed = 1;
	for (unsigned i = 0; i < 50 && done(&d) == 0; i++) {
		usleep(200000);
		look_up(&d, "k"); /* its slot lives, with its generation (L3) */
		cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
		for (int k = 0; k < 1000 && done(&d) == 0 && ends(&d, "failed") == failed; k++)
			usleep(10000);
		failed = ends(&d, "failed");
	}
	cr_expect_eq(done(&d), 1);
	cr_expect(arrived(&d));
	down(&d);
	NO_LEAKS();
}

Test(pull, the_destination_is_killed)
{
	struct pair d;
	up(&d);
	put(&d, "k", BIG, 1);
	join(&d);
	look_up(&d, "k");
	relay_hold(d.relay, true);
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	cr_assert(
		cs_metric_until(&d.w.second, "pomelo_agent_pulls{state=\"running\"}", 1, 5000));
	cs_kill_it(&d.w.second);
	relay_hold(d.relay, false);
	run_far(&d);
	cr_expect_eq(cs_metric_of(&d.w.second, "pomelo_agent_pool_bytes{kind=\"quarantine\"}"),
		     0, "its writers ended with it");
	look_up(&d, "k");
	cr_expect_eq(copy(&d), ERR_NONE, "%s", d.text);
	for (int k = 0; k < 1000 && done(&d) == 0; k++)
		usleep(10000);
	cr_expect_eq(done(&d), 1);
	cr_expect(arrived(&d));
	down(&d);
	NO_LEAKS();
}
