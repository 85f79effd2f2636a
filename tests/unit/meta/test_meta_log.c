/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's files on a disk that may lose power at any operation, fail any of them, run full,
 * rot.
 *
 * The judge: record k of a script is the same in every run, so the state after k records has
 * one digest. What an opened store holds must be the state after some k, with k at least what
 * was acknowledged and at most what was handed in.
 */
#include "meta/meta_log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/crc.h"
#include "meta/meta_recover.h"
#include "meta_model.h"
#include "support/leak.h"
#include "support/meta_fs_fault.h"

#define N_RECORDS 60
#define CHUNK	  4096

/* ---- the script and its digests ---- */

struct script {
	struct buf bodies[N_RECORDS + 1]; /* record k at [k], from 1 */
	uint32_t types[N_RECORDS + 1];
	uint64_t digests[N_RECORDS + 1]; /* of the state after k records */
};

static enum err digest_one(void *arg, uint64_t seq, const struct meta_rec *r)
{
	uint64_t *sum = arg;
	struct buf b = BUF_INIT(1 << 21);
	meta_rec_encode(&b, r);
	*sum += XXH3_64bits_withSeed(b.p, b.n, seq * 1000 + r->type);
	buf_fini(&b);
	return ERR_NONE;
}

static uint64_t digest(const struct meta_state *st)
{
	uint64_t sum = meta_last_seq(st) * 0x9e3779b97f4a7c15ull;
	cr_assert_eq(meta_state_dump(st, digest_one, &sum), ERR_NONE);
	return sum;
}

/* Random records; `big` views now and then, so that frames have several sectors. */
static void script_init(struct script *s, uint64_t seed)
{
	static struct model m;
	static uint8_t blob[3000];
	struct meta_state *st;
	uint64_t counter = 10;
	memset(&m, 0, sizeof(m));
	memset(blob, 0x42, sizeof(blob));
	memset(s, 0, sizeof(*s));
	cr_assert_eq(meta_state_new(1, &st), ERR_NONE);
	s->digests[0] = digest(st);
	for (uint64_t k = 1; k <= N_RECORDS; k++) {
		struct model_rec rec;
		model_random(&seed, &counter, &m, &rec);
		if (k == 1) {
			rec.r.type = META_TERM;
			rec.r.TERM.term = 1;
		} else if (k % 7 == 0) {
			rec.r.type = META_VIEW;
			rec.r.VIEW = (struct msg_meta_view){ BYTES_STR("a"), BYTES_STR("big"),
							     1, k, BYTES(blob, 400 + k * 40) };
		}
		s->bodies[k] = BUF_INIT(1 << 16);
		s->types[k] = rec.r.type;
		meta_rec_encode(&s->bodies[k], &rec.r);
		m.last_seq = k;
		(void)!meta_state_apply(st, k, &rec.r);
		s->digests[k] = digest(st);
	}
	meta_state_free(st);
}

static void script_fini(struct script *s)
{
	for (int k = 1; k <= N_RECORDS; k++)
		buf_fini(&s->bodies[k]);
}

/* ---- a run of the store ---- */

struct run {
	const struct script *script;
	struct fault_fs *disk;
	struct meta_state *st;
	struct meta_log *log;
	uint64_t acked, given; /* records */
	bool snapping;	       /* the last step was a snapshot's */
	struct why why;
};

static enum err run_open(struct run *r)
{
	struct meta_log_opts o = { .fs = fault_fs_fs(r->disk),
				   .name = "m",
				   .chunk_bytes = CHUNK };
	memcpy(o.store, "store id 16 byte", 16);
	r->why = (struct why){ 0 };
	cr_assert_eq(meta_state_new(1, &r->st), ERR_NONE);
	enum err e = meta_log_open(&o, r->st, &r->log, &r->why);
	if (e != ERR_NONE) {
		cr_assert(r->why.text[0], "%s", err_name(e));
		meta_state_free(r->st);
		r->st = NULL;
	}
	return e;
}

static void run_close(struct run *r)
{
	meta_log_close(r->log);
	meta_state_free(r->st);
	r->log = NULL;
	r->st = NULL;
}

static void run_free(struct run *r)
{
	run_close(r);
	fault_fs_free(r->disk);
	r->disk = NULL;
}

/* Hands in the next n records of the script as one frame. */
static enum err run_append(struct run *r, uint32_t n)
{
	struct buf payload = BUF_INIT(META_PAYLOAD_MAX);
	uint64_t first = r->acked + 1;
	for (uint64_t k = first; k < first + n; k++)
		meta_payload_add(&payload, k, r->script->types[k],
				 buf_bytes(&r->script->bodies[k]));
	r->given = MAX_OF(r->given, first + n - 1);
	r->why = (struct why){ 0 };
	enum err e = meta_log_append(r->log, first, n, buf_bytes(&payload), &r->why);
	buf_fini(&payload);
	if (e == ERR_NONE)
		r->acked += n;
	return e;
}

static enum err run_compact(struct run *r)
{
	struct meta_compaction c;
	r->why = (struct why){ 0 };
	if (!meta_log_has_old(r->log)) {
		enum err e = meta_log_switch(r->log, &r->why);
		if (e != ERR_NONE)
			return e;
	}
	meta_log_compaction(r->log, &c);
	enum err e = meta_log_compact(&c, &r->why);
	if (e == ERR_NONE)
		meta_log_compacted(r->log, &c);
	return e;
}

/* Frames of 1 to 4 records up to record `to`, a snapshot after every 12th or so. */
static enum err run_script(struct run *r, uint64_t to)
{
	while (r->acked < to) {
		uint64_t before = r->acked;
		uint32_t n = 1 + (uint32_t)(r->acked * 7 % 4);
		enum err e = run_append(r, (uint32_t)MIN_OF((uint64_t)n, to - r->acked));
		r->snapping = e == ERR_NONE && before / 12 != r->acked / 12;
		if (r->snapping)
			e = run_compact(r);
		if (e != ERR_NONE)
			return e;
	}
	return ERR_NONE;
}

/* What an opened store holds is the state after its last record, and that is an allowed one. */
static void check_state(const struct run *r, uint64_t least, uint64_t most)
{
	uint64_t k = meta_last_seq(r->st);
	cr_assert(k >= least && k <= most, "record %zu, want %zu to %zu", (size_t)k,
		  (size_t)least, (size_t)most);
	cr_assert_eq(digest(r->st), r->script->digests[k], "another state after record %zu",
		     (size_t)k);
	meta_state_check(r->st);
}

/* Opens what is on `disk` (taken), judges it, goes on writing, opens it again. */
static void check_disk(const struct script *s, struct fault_fs *disk, uint64_t least,
		       uint64_t most)
{
	struct run r = { .script = s, .disk = disk };
	enum err e = run_open(&r);
	cr_assert_eq(e, ERR_NONE, "%s", r.why.text);
	check_state(&r, least, most);
	r.acked = meta_last_seq(r.st);
	uint64_t to = MIN_OF(r.acked + 3, (uint64_t)N_RECORDS);
	e = run_script(&r, to);
	cr_assert_eq(e, ERR_NONE, "%s", r.why.text);
	run_close(&r);
	e = run_open(&r);
	cr_assert_eq(e, ERR_NONE, "%s", r.why.text);
	check_state(&r, to, to);
	run_free(&r);
}

static struct script script;

static void setup(void)
{
	script_init(&script, 11);
}

static void teardown(void)
{
	script_fini(&script);
}

TestSuite(meta_log, .init = setup, .fini = teardown);

/* ---- no faults ---- */

Test(meta_log, what_is_appended_is_there_again, .timeout = 20)
{
	for (uint64_t to = 0; to <= N_RECORDS; to++) {
		struct run r = { .script = &script, .disk = fault_fs_new() };
		cr_assert_eq(run_open(&r), ERR_NONE);
		cr_assert_eq(run_script(&r, to), ERR_NONE, "%s", r.why.text);
		run_close(&r);
		for (int again = 0; again < 2; again++) {
			cr_assert_eq(run_open(&r), ERR_NONE, "%s", r.why.text);
			check_state(&r, to, to);
			run_close(&r);
		}
		run_free(&r);
	}
	script_fini(&script);
	NO_LEAKS();
	script_init(&script, 11);
}

Test(meta_log, snapshots_bound_the_log, .timeout = 20)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_append(&r, 30), ERR_NONE);
	cr_assert_gt(meta_log_bytes(r.log), 512);
	cr_assert_eq(run_compact(&r), ERR_NONE, "%s", r.why.text);
	cr_assert_eq(meta_log_bytes(r.log), 0);
	cr_assert_gt(meta_log_snap_bytes(r.log), 512);
	cr_assert_not(meta_log_has_old(r.log));
	size_t n;
	cr_assert_null(fault_fs_file(r.disk, "m.log.old", &n));
	cr_assert_not_null(fault_fs_file(r.disk, "m.snap", &n));
	cr_assert_eq(n, meta_log_snap_bytes(r.log));
	run_free(&r);
}

Test(meta_log, two_openers, .timeout = 5)
{
	struct run a = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&a), ERR_NONE);
	struct run b = a;
	cr_assert_eq(run_open(&b), ERR_DIRECTORY_IN_USE);
	run_close(&a);
	cr_assert_eq(run_open(&a), ERR_NONE, "free again");
	run_free(&a);
}

/* ---- power cuts ---- */

/* Which of the pending things stay, for one of several ways to choose. */
struct chooser {
	uint64_t seed;
	size_t only;   /* FLIP, ALONE */
	uint64_t bits; /* SUBSET */
	enum { SUBSET, RANDOM, ALL, NOTHING, ALL_BUT, ALONE } how;
};

static bool keep(void *arg, size_t i)
{
	struct chooser *c = arg;
	switch (c->how) {
	case SUBSET:
		return c->bits >> i & 1;
	case RANDOM:
		return model_rnd(&c->seed) & 1;
	case ALL:
		return true;
	case NOTHING:
		return false;
	case ALL_BUT:
		return i != c->only;
	case ALONE:
		return i == c->only;
	}
	return false;
}

static void check_cut(const struct run *r, struct chooser *c)
{
	for (enum fault_tail t = FAULT_SHORT; t <= FAULT_GARBAGE; t++) {
		struct chooser copy = *c;
		check_disk(r->script, fault_fs_after_cut(r->disk, keep, &copy, t), r->acked,
			   r->given);
	}
}

/* Every subset while there are few, else a sample with the telling ones in it. */
static void check_cuts(const struct run *r, size_t exhaustive, int n_random)
{
	size_t n = fault_fs_pending(r->disk);
	struct chooser c = { .how = SUBSET };
	if (n <= exhaustive) {
		for (c.bits = 0; c.bits < 1ull << n; c.bits++)
			check_cut(r, &c);
		return;
	}
	c.how = ALL;
	check_cut(r, &c);
	c.how = NOTHING;
	check_cut(r, &c);
	for (c.only = 0; c.only < n; c.only++) {
		c.how = ALL_BUT;
		check_cut(r, &c);
		c.how = ALONE;
		check_cut(r, &c);
	}
	c.how = RANDOM;
	for (c.seed = 1; c.seed <= (uint64_t)n_random; c.seed++)
		check_cut(r, &c);
}

static uint64_t ops_of_script(uint64_t to)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_script(&r, to), ERR_NONE);
	uint64_t n = fault_fs_ops(r.disk);
	run_free(&r);
	return n;
}

/* Runs the script until operation n, where the power goes. */
static struct run run_to_cut(uint64_t to, uint64_t n, size_t bytes)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	fault_fs_cut(r.disk, n, bytes);
	if (run_open(&r) == ERR_NONE)
		(void)!run_script(&r, to);
	meta_log_close(r.log);
	meta_state_free(r.st);
	r.log = NULL;
	r.st = NULL;
	return r;
}

Test(meta_log, power_cut_at_every_operation, .timeout = 120)
{
	enum { TO = 26 };
	uint64_t n_ops = ops_of_script(TO);
	cr_assert_gt(n_ops, 50);
	for (uint64_t n = 0; n <= n_ops; n++) {
		struct run r = run_to_cut(TO, n, 0);
		check_cuts(&r, 8, 30);
		run_free(&r);
	}
}

/* Each write up to each byte, as a disk that tears anywhere (or a process killed inside) leaves
 * it. */
Test(meta_log, cut_inside_every_write_at_every_byte, .timeout = 120)
{
	enum { TO = 16 };
	uint64_t n_ops = ops_of_script(TO);
	struct run whole = run_to_cut(TO, UINT64_MAX, 0);
	for (uint64_t n = 0; n < n_ops; n++) {
		if (fault_fs_kind(whole.disk, n) != FAULT_WRITE)
			continue;
		for (size_t bytes = 1; bytes < 2600; bytes += bytes < 1100 ? 1 : 97) {
			struct run r = run_to_cut(TO, n, bytes);
			struct chooser all = { .how = ALL };
			check_disk(&script, fault_fs_after_cut(r.disk, keep, &all, FAULT_ZEROS),
				   r.acked, r.given);
			run_free(&r);
		}
	}
	run_free(&whole);
}

/* The power goes again while the store recovers: what was acknowledged, or opened, stays. */
Test(meta_log, power_cut_during_recovery, .timeout = 120)
{
	enum { TO = 26 };
	uint64_t n_ops = ops_of_script(TO), seed = 99;
	for (uint64_t n = 1; n <= n_ops; n++)
		for (int variant = 0; variant < 4; variant++) {
			struct run r = run_to_cut(TO, n, 0);
			struct chooser c = { .how = RANDOM, .seed = model_rnd(&seed) };
			struct fault_fs *first =
				fault_fs_after_cut(r.disk, keep, &c, FAULT_GARBAGE);
			for (uint64_t m = 0; m < 8; m++) {
				struct run again = { .script = &script,
						     .disk = fault_fs_copy(first),
						     .acked = r.acked,
						     .given = r.given };
				fault_fs_cut(again.disk, m, 0);
				if (run_open(&again) == ERR_NONE) {
					/* it may have been acted upon */
					again.acked = meta_last_seq(again.st);
					run_close(&again);
				}
				check_cuts(&again, 0, 1);
				run_free(&again);
			}
			fault_fs_free(first);
			run_free(&r);
		}
}

/* ---- failing operations ---- */

/* A failed sync of a frame: in doubt then, decided after the restart, and nothing is taken
 * after it. */
Test(meta_log, failed_sync, .timeout = 60)
{
	enum { TO = 26 };
	uint64_t n_ops = ops_of_script(TO);
	struct run whole = run_to_cut(TO, UINT64_MAX, 0);
	for (uint64_t n = 0; n < n_ops; n++) {
		enum fault_op kind = fault_fs_kind(whole.disk, n);
		if (kind != FAULT_SYNC && kind != FAULT_SYNC_DIR)
			continue;
		struct run r = { .script = &script, .disk = fault_fs_new() };
		fault_fs_fail(r.disk, n, 1, ERR_IO);
		if (run_open(&r) == ERR_NONE) {
			enum err e = run_script(&r, TO);
			cr_assert_eq(e, ERR_IO, "op %zu", (size_t)n);
			/* a snapshot that failed is tried again another day; a log is broken,
			 * and stays so */
			e = run_append(&r, 1);
			cr_assert(e == ERR_IO || r.snapping, "op %zu", (size_t)n);
			cr_assert(e == ERR_NONE || kind == FAULT_SYNC_DIR || !r.snapping);
			run_close(&r);
		}
		/* the process restarts and reads what the page cache shows; then the power goes
		 */
		struct run again = {
			.script = &script, .disk = r.disk, .acked = r.acked, .given = r.given
		};
		fault_fs_fail(again.disk, 0, 0, ERR_NONE);
		cr_assert_eq(run_open(&again), ERR_NONE, "%s", again.why.text);
		check_state(&again, r.acked, r.given);
		again.acked = meta_last_seq(again.st);
		run_close(&again);
		check_cuts(&again, 5, 3);
		run_free(&again);
	}
	run_free(&whole);
}

/* Full at each write in turn: refused cleanly, and when there is space again all goes on. */
Test(meta_log, no_space_at_every_write, .timeout = 60)
{
	enum { TO = 26 };
	uint64_t n_ops = ops_of_script(TO);
	struct run whole = run_to_cut(TO, UINT64_MAX, 0);
	for (uint64_t n = 0; n < n_ops; n++) {
		enum fault_op kind = fault_fs_kind(whole.disk, n);
		if (kind != FAULT_WRITE && kind != FAULT_CREATE)
			continue;
		struct run r = { .script = &script, .disk = fault_fs_new() };
		fault_fs_fail(r.disk, n, 1, ERR_NO_SPACE);
		enum err e = run_open(&r);
		if (e != ERR_NONE) {
			cr_assert_eq(e, ERR_NO_SPACE);
			cr_assert_eq(run_open(&r), ERR_NONE, "%s", r.why.text);
		}
		while ((e = run_script(&r, TO)) != ERR_NONE) {
			cr_assert_eq(e, ERR_NO_SPACE, "op %zu: %s", (size_t)n, r.why.text);
			cr_assert(strstr(r.why.text, "DISK/m"), "%s", r.why.text);
		}
		check_cuts(&r, 4, 2);
		run_close(&r);
		check_disk(&script, fault_fs_copy(r.disk), TO, TO);
		run_free(&r);
	}
	run_free(&whole);
}

/* What was refused for want of space is not there after a power cut either. */
Test(meta_log, refused_is_refused, .timeout = 60)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_append(&r, 3), ERR_NONE);
	fault_fs_fail(r.disk, fault_fs_ops(r.disk), 1, ERR_NO_SPACE);
	cr_assert_eq(run_append(&r, 20), ERR_NO_SPACE, "while it grows");
	r.given = r.acked;
	check_cuts(&r, 8, 20);
	uint64_t before = fault_fs_ops(r.disk);
	fault_fs_fail(r.disk, before, 1, ERR_NO_SPACE);
	cr_assert_eq(run_append(&r, 6), ERR_NO_SPACE, "the frame itself");
	cr_assert_eq(fault_fs_ops(r.disk) - before, 3, "a write, taken back, synced");
	r.given = r.acked;
	check_cuts(&r, 8, 20);
	/* a smaller one takes the place; nothing of the refused one shows behind it */
	cr_assert_eq(run_append(&r, 1), ERR_NONE);
	check_cuts(&r, 8, 20);
	/* and when even taking it back fails, the store is broken */
	fault_fs_fail(r.disk, fault_fs_ops(r.disk), 2, ERR_NO_SPACE);
	cr_assert_eq(run_append(&r, 3), ERR_IO);
	cr_assert(strstr(r.why.text, "restart"), "%s", r.why.text);
	cr_assert_eq(run_append(&r, 3), ERR_IO);
	run_free(&r);
}

Test(meta_log, a_failed_write_breaks_it, .timeout = 5)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_append(&r, 3), ERR_NONE);
	fault_fs_fail(r.disk, fault_fs_ops(r.disk), 1, ERR_IO);
	cr_assert_eq(run_append(&r, 3), ERR_IO);
	cr_assert(strstr(r.why.text, "DISK/m.log") && strstr(r.why.text, "restart"), "%s",
		  r.why.text);
	cr_assert_eq(run_append(&r, 3), ERR_IO, "never retried as if nothing had been");
	cr_assert_eq(meta_log_switch(r.log, &r.why), ERR_IO);
	run_close(&r);
	check_disk(&script, fault_fs_copy(r.disk), r.acked, r.given);
	run_free(&r);
}

/* ---- rot ---- */

/* A store with all four files: snapshot, old log, log. */
static struct run run_all_files(void)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_script(&r, 20), ERR_NONE);
	cr_assert_eq(meta_log_switch(r.log, &r.why), ERR_NONE);
	cr_assert_eq(run_append(&r, 3), ERR_NONE);
	cr_assert_eq(run_append(&r, 9), ERR_NONE);
	run_close(&r);
	return r;
}

static void check_rot(struct run *r, const char *name, size_t at, uint8_t flip)
{
	size_t n;
	struct run q = { .script = &script, .disk = fault_fs_copy(r->disk) };
	fault_fs_file(q.disk, name, &n)[at] ^= flip;
	enum err e = run_open(&q);
	if (e == ERR_NONE) {
		/* it hit nothing that counts */
		check_state(&q, r->acked, r->acked);
	} else {
		cr_assert(e == ERR_CORRUPT || e == ERR_VERSION_MISMATCH, "%s %zu: %s", name, at,
			  err_name(e));
		cr_assert(strstr(q.why.text, "DISK/m"), "%s", q.why.text);
	}
	run_free(&q);
}

static void check_rot_everywhere(const char *name)
{
	struct run r = run_all_files();
	size_t n = 0;
	uint64_t seed = 5;
	cr_assert(fault_fs_file(r.disk, name, &n), "%s", name);
	for (size_t at = 0; at < n; at++)
		for (int bit = 0; bit < 8; bit++)
			if (model_rnd(&seed) % 4 == 0)
				check_rot(&r, name, at, (uint8_t)(1 << bit));
	run_free(&r);
}

Test(meta_log, rotten_log, .timeout = 120)
{
	check_rot_everywhere("m.log");
}
Test(meta_log, rotten_old_log, .timeout = 120)
{
	check_rot_everywhere("m.log.old");
}
Test(meta_log, rotten_snapshot, .timeout = 120)
{
	check_rot_everywhere("m.snap");
}

/* Every bit of every acknowledged frame: found, never dropped as if it were a torn tail. */
Test(meta_log, acknowledged_frames_never_go_silently, .timeout = 120)
{
	struct run r = run_all_files();
	size_t n;
	cr_assert_eq(run_open(&r), ERR_NONE);
	size_t end = 512 + meta_log_bytes(r.log);
	run_close(&r);
	cr_assert(fault_fs_file(r.disk, "m.log", &n) && end < n);
	for (size_t at = 512; at < end; at++)
		for (int bit = 0; bit < 8; bit += 7) {
			struct run q = { .script = &script, .disk = fault_fs_copy(r.disk) };
			fault_fs_file(q.disk, "m.log", &n)[at] ^= (uint8_t)(1 << bit);
			cr_assert_eq(run_open(&q), ERR_CORRUPT, "byte %zu", at);
			cr_assert(strstr(q.why.text, "m.log is damaged at byte"), "%s",
				  q.why.text);
			run_free(&q);
		}
	run_free(&r);
}

/* Sectors that read as zeros where an acknowledged frame was, with another frame behind them.
 */
Test(meta_log, a_hole_in_the_log, .timeout = 20)
{
	struct run r = run_all_files();
	size_t n;
	for (size_t from = 512; from < 1024; from += 512)
		for (size_t len = 512; len <= 1024; len += 512) {
			struct run q = { .script = &script, .disk = fault_fs_copy(r.disk) };
			memset(fault_fs_file(q.disk, "m.log", &n) + from, 0, len);
			cr_assert_eq(run_open(&q), ERR_CORRUPT);
			cr_assert(strstr(q.why.text, "follow a gap"), "%s", q.why.text);
			run_free(&q);
		}
	run_free(&r);
}

Test(meta_log, files_cut_short, .timeout = 60)
{
	static const char *const names[] = { "m.log", "m.log.old", "m.snap" };
	struct run r = run_all_files();
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n;
		cr_assert(fault_fs_file(r.disk, names[i], &n));
		for (size_t to = 0; to < n; to += to < 1200 ? 1 : 61) {
			struct run q = { .script = &script, .disk = fault_fs_copy(r.disk) };
			fault_fs_truncate(q.disk, names[i], to);
			cr_assert_eq(run_open(&q), ERR_CORRUPT, "%s to %zu", names[i], to);
			run_free(&q);
		}
	}
	run_free(&r);
}

Test(meta_log, files_missing, .timeout = 5)
{
	static const char *const names[] = { "m.log", "m.log.old", "m.snap" };
	for (int mask = 1; mask < 7; mask++) {
		struct run r = run_all_files();
		for (int i = 0; i < 3; i++)
			if (mask >> i & 1)
				fault_fs_remove(r.disk, names[i]);
		enum err e = run_open(&r);
		/* without the log: the old one is the end of what was acknowledged for all
		 * anyone can tell; it looks like a switch that was cut short */
		if (mask == 1) {
			cr_assert_eq(e, ERR_NONE, "%s", r.why.text);
		} else {
			cr_assert_eq(e, ERR_CORRUPT, "mask %d", mask);
			cr_assert(strstr(r.why.text, "last copy"), "%s", r.why.text);
		}
		run_free(&r);
	}
}

Test(meta_log, files_of_another_store_or_time, .timeout = 5)
{
	/* a snapshot from before, put back alone */
	struct run r = { .script = &script, .disk = fault_fs_new() };
	size_t n;
	cr_assert_eq(run_open(&r), ERR_NONE);
	cr_assert_eq(run_append(&r, 10), ERR_NONE);
	cr_assert_eq(run_compact(&r), ERR_NONE);
	uint8_t *p = fault_fs_file(r.disk, "m.snap", &n), *early = malloc(n);
	size_t early_n = n;
	memcpy(early, p, n);
	cr_assert_eq(run_append(&r, 10), ERR_NONE);
	cr_assert_eq(run_compact(&r), ERR_NONE);
	run_close(&r);
	fault_fs_put(r.disk, "m.snap", early, early_n);
	cr_assert_eq(run_open(&r), ERR_CORRUPT);
	cr_assert(strstr(r.why.text, "records 11 to 20"), "%s", r.why.text);
	free(early);

	/* a log of another store */
	struct run q = { .script = &script, .disk = fault_fs_new() };
	struct meta_log_opts o = { .fs = fault_fs_fs(q.disk),
				   .name = "m",
				   .chunk_bytes = CHUNK };
	memcpy(o.store, "another store id", 16);
	cr_assert_eq(meta_state_new(1, &q.st), ERR_NONE);
	cr_assert_eq(meta_log_open(&o, q.st, &q.log, &q.why), ERR_NONE);
	run_close(&q);
	p = fault_fs_file(q.disk, "m.log", &n);
	fault_fs_put(r.disk, "m.log", p, n);
	cr_assert_eq(run_open(&r), ERR_CORRUPT);
	cr_assert(strstr(r.why.text, "two stores"), "%s", r.why.text);
	run_free(&q);
	run_free(&r);
}

/* ---- what a newer release wrote ---- */

Test(meta_log, a_record_of_a_newer_release, .timeout = 5)
{
	struct run r = { .script = &script, .disk = fault_fs_new() };
	struct buf payload = BUF_INIT(1024);
	cr_assert_eq(run_open(&r), ERR_NONE);
	meta_payload_add(&payload, 1, 200, BYTES_STR("news"));
	cr_assert_eq(meta_log_append(r.log, 1, 1, buf_bytes(&payload), &r.why), ERR_NONE);
	run_close(&r);
	cr_assert_eq(run_open(&r), ERR_VERSION_MISMATCH);
	cr_assert(strstr(r.why.text, "type 200") && strstr(r.why.text, "release that wrote it"),
		  "%s", r.why.text);
	buf_fini(&payload);
	run_free(&r);
}

Test(meta_log, a_file_of_a_newer_format, .timeout = 5)
{
	struct meta_head h = { .kind = META_LOG, .seq = 1, .durable = CHUNK }, back;
	uint8_t s[META_SECTOR];
	struct why why = { 0 };
	meta_head_encode(&h, s);
	cr_assert_eq(meta_head_decode(s, "f", &back, &why), ERR_NONE);
	cr_assert_eq(back.durable, CHUNK);
	/* a good header of format 2 has a good checksum: made by hand */
	s[8] = 2;
	cr_assert_eq(meta_head_decode(s, "f", &back, &why), ERR_CORRUPT,
		     "a flip is no version");
}

/* ---- frames ---- */

Test(meta_log, frames_of_every_size, .timeout = 20)
{
	struct fault_fs *disk = fault_fs_new();
	struct meta_log_opts o = { .fs = fault_fs_fs(disk), .name = "m", .chunk_bytes = CHUNK };
	struct meta_log *g;
	struct meta_state *st;
	struct why why = { 0 };
	static uint8_t blob[1 << 20];
	uint64_t seq = 0;
	cr_assert_eq(meta_state_new(1, &st), ERR_NONE);
	cr_assert_eq(meta_log_open(&o, st, &g, &why), ERR_NONE);
	static const size_t sizes[] = { 0,   1,	  380, 381, 382,  383,	 384,	 385, 386,
					387, 388, 389, 390, 391,  392,	 893,	 894, 895,
					896, 897, 898, 899, 4096, 65536, 1 << 20 };
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct buf body = BUF_INIT(META_PAYLOAD_MAX),
			   payload = BUF_INIT(META_PAYLOAD_MAX);
		memset(blob, (int)i + 1, sizes[i]);
		enc_meta_view(&body, &(struct msg_meta_view){ BYTES_STR("t"), BYTES_STR("g"), 1,
							      i + 1, BYTES(blob, sizes[i]) });
		meta_payload_add(&payload, ++seq, META_VIEW, buf_bytes(&body));
		cr_assert_eq(meta_log_append(g, seq, 1, buf_bytes(&payload), &why), ERR_NONE,
			     "%s", why.text);
		buf_fini(&body);
		buf_fini(&payload);
		meta_log_close(g);
		meta_state_free(st);
		cr_assert_eq(meta_state_new(1, &st), ERR_NONE);
		cr_assert_eq(meta_log_open(&o, st, &g, &why), ERR_NONE, "%s", why.text);
		struct msg_meta_view v;
		cr_assert(meta_view_find(st, BYTES_STR("t"), BYTES_STR("g"), &v));
		cr_assert_eq(v.blob.n, sizes[i]);
		cr_assert_eq(sizes[i] ? memcmp(v.blob.p, blob, sizes[i]) : 0, 0);
	}
	meta_log_close(g);
	meta_state_free(st);
	fault_fs_free(disk);
}
