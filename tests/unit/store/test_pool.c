/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool in a folder: made, kept, emptied by another boot, and what a start makes of a directory that is
 * damaged or of a folder that somebody else prepared.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/crc.h"
#include "store/mempool_priv.h"
#include "store_fix.h"

#define OK(call) cr_assert_eq((call), ERR_NONE)

struct folder {
	struct store_fix x;
	char root[64], dir[96];
};

static struct pool_backing *open_folder(const struct folder *f)
{
	struct pool_backing *b;
	struct why why = { 0 };
	cr_assert_eq(pool_folder_open(f->dir, &b, &why), ERR_NONE, "%s", why.text);
	return b;
}

static void start_in(struct folder *f, const char *parent)
{
	(void)snprintf(f->root, sizeof(f->root), "%s/pomelo-test-pool-XXXXXX", parent);
	cr_assert_not_null(mkdtemp(f->root));
	(void)snprintf(f->dir, sizeof(f->dir), "%s/pool", f->root);
	store_fix_init(&f->x, open_folder(f));
}

static void start(struct folder *f)
{
	start_in(f, "/tmp");
}

/* The agent dies and comes back: a new process opens the folder. */
static enum err restart(struct folder *f)
{
	store_fix_kill(&f->x);
	pool_backing_free(f->x.b);
	f->x.b = open_folder(f);
	f->x.po.backing = f->x.b;
	return store_fix_open(&f->x);
}

static void finish(struct folder *f)
{
	store_fix_kill(&f->x);
	OK(mempool_remove(f->x.b, &f->x.why));
	pool_backing_free(f->x.b);
	cr_assert_eq(rmdir(f->dir), 0, "nothing of ours is left");
	cr_assert_eq(rmdir(f->root), 0);
}

static void path_of(const struct folder *f, const char *name, char out[128])
{
	(void)snprintf(out, 128, "%s/%s", f->dir, name);
}

static void poke(const struct folder *f, const char *name, uint64_t at, uint8_t flip)
{
	char path[128];
	uint8_t byte;
	path_of(f, name, path);
	int fd = open(path, O_RDWR);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= flip;
	cr_assert_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

/* ---- life ---- */

Test(pool, is_made_once_and_kept, .timeout = 20)
{
	struct folder f;
	struct hold_slot s;
	uint8_t id[16];
	struct stat st;
	start(&f);
	cr_assert_eq(f.x.start.found, MEMPOOL_NEW);
	memcpy(id, mempool_id(f.x.p), 16);
	cr_assert_eq(stat(f.dir, &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0700);
	OK(store_fix_commit(&f.x, 5, "a key", 0, 4096, &s));
	memset(mempool_at(f.x.p, &(struct extent){ 0, 0, 4096 }), 0xee, 4096);
	uint64_t epoch = store_fix_under(&f.x).pool_epoch;
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_KEPT);
	cr_assert_eq(f.x.start.committed, 1);
	cr_assert_eq(memcmp(id, mempool_id(f.x.p), 16), 0);
	cr_assert_eq(store_fix_under(&f.x).pool_epoch, epoch + 1, "a start fences (L2)");
	cr_assert_eq(((uint8_t *)mempool_at(f.x.p, &(struct extent){ 0, 0, 4096 }))[4095],
		     0xee);
	f.x.po.segment_bytes = 2 << 20; /* what is there wins */
	OK(restart(&f));
	cr_assert_eq(mempool_segment(f.x.p, 0).bytes_total, 1 << 20);
	finish(&f);
	NO_LEAKS();
}

Test(pool, another_boot_finds_it_empty_but_fenced, .timeout = 20)
{
	struct folder f;
	struct hold_slot s;
	struct hold_under u;
	uint8_t id[16];
	start(&f);
	memcpy(id, mempool_id(f.x.p), 16);
	OK(hold_adopt(f.x.h, 0, 9, 2, &u, &f.x.why));
	OK(store_fix_commit(&f.x, 5, "k", 0, 64, &s));
	memcpy(f.x.po.boot_id, "another boot", 12);
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_OLD_BOOT);
	cr_assert_eq(mempool_slots_used(f.x.p), 0);
	cr_assert_neq(memcmp(id, mempool_id(f.x.p), 16), 0);
	cr_assert_eq(store_fix_under(&f.x).term, 9);
	cr_assert_eq(store_fix_under(&f.x).pool_epoch, u.pool_epoch + 1);
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_KEPT);
	finish(&f);
	NO_LEAKS();
}

Test(pool, two_agents_do_not_share_it, .timeout = 20)
{
	struct folder f;
	struct mempool *p;
	struct mempool_start st;
	struct why why = { 0 };
	start(&f);
	struct mempool_opts o = f.x.po;
	o.backing = open_folder(&f);
	cr_assert_eq(mempool_open(&o, &p, &st, &why), ERR_DIRECTORY_IN_USE);
	cr_assert(strstr(why.text, f.dir), "%s", why.text);
	pool_backing_free(o.backing);
	finish(&f);
	NO_LEAKS();
}

Test(pool, is_removed_with_its_folder_unless_an_agent_runs_it, .timeout = 20)
{
	struct folder f;
	char other[128];
	struct why why = { 0 };
	start(&f);
	cr_assert_eq(mempool_remove_folder(f.dir, &why), ERR_DIRECTORY_IN_USE);
	store_fix_kill(&f.x);
	pool_backing_free(f.x.b);
	path_of(&f, "mine", other);
	close(open(other, O_CREAT | O_WRONLY, 0600));
	why = (struct why){ 0 };
	cr_assert_eq(mempool_remove_folder(f.dir, &why), ERR_EXISTS, "somebody else's file");
	cr_assert(strstr(why.text, f.dir), "%s", why.text);
	unlink(other);
	OK(mempool_remove_folder(f.dir, NULL));
	cr_assert_neq(access(f.dir, F_OK), 0);
	OK(mempool_remove_folder(f.dir, NULL));
	cr_assert_eq(rmdir(f.root), 0);
	NO_LEAKS();
}

Test(pool, one_that_was_not_finished_is_begun_again, .timeout = 20)
{
	struct folder f;
	char super[128], other[128];
	start(&f);
	path_of(&f, "super", super);
	path_of(&f, "super.new", other);
	cr_assert_eq(rename(super, other), 0);
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_NEW);
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_KEPT);
	finish(&f);
	NO_LEAKS();
}

Test(pool, slices_become_ready_in_turn, .timeout = 20)
{
	struct folder f;
	start(&f);
	store_fix_kill(&f.x);
	OK(mempool_remove(f.x.b, NULL));
	f.x.po.segment_bytes =
		MEMPOOL_SLICE_BYTES + 8192; /* sparse: only the second one is touched */
	f.x.po.n_segments = 2;
	OK(store_fix_open(&f.x));
	cr_assert_eq(mempool_slices(f.x.p, 0), 2);
	cr_assert_eq(mempool_slices(f.x.p, 2), 0);
	cr_assert_eq(mempool_segment(f.x.p, 1).bytes, 0);
	OK(mempool_slice(f.x.p, 1, 1, &f.x.why));
	cr_assert_eq(mempool_slice(f.x.p, 1, 2, &f.x.why), ERR_INVALID_PARAMS);
	mempool_ready(f.x.p, 1, 1);
	cr_assert_eq(mempool_segment(f.x.p, 1).bytes, MEMPOOL_SLICE_BYTES);
	mempool_ready(f.x.p, 1, 2);
	cr_assert_eq(mempool_segment(f.x.p, 1).bytes, MEMPOOL_SLICE_BYTES + 8192);
	cr_assert_eq(mempool_segment(f.x.p, 0).bytes, 0);
	cr_assert_eq(mempool_segment(f.x.p, 9).bytes_total, 0);
	finish(&f);
	NO_LEAKS();
}

/* An agent that was killed finds its own pool in the way of nobody, however little is free beside it. */
Test(pool, what_a_pool_has_is_no_want_of_it, .timeout = 20)
{
	enum { BYTES = 4 << 20 };
	struct folder f;
	struct statvfs fs;
	struct why why = { 0 };
	start_in(&f, "/dev/shm");
	store_fix_kill(&f.x);
	OK(mempool_remove(f.x.b, NULL));
	f.x.po.segment_bytes = BYTES;
	f.x.po.n_segments = 1;
	OK(store_fix_open(&f.x));
	OK(mempool_slice(f.x.p, 0, 0, &f.x.why));
	cr_assert_eq(statvfs(f.root, &fs), 0);
	uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
	OK(pool_folder_fits(f.dir, left + BYTES / 2, &why));
	cr_assert_eq(pool_folder_fits(f.dir, left + (1ull << 40), &why), ERR_NO_SPACE);
	finish(&f);
	NO_LEAKS();
}

/* An agent that was killed has its memory at once: what waits for space does not wait for page tables. */
Test(pool, what_was_touched_is_ready_after_a_restart, .timeout = 20)
{
	struct folder f;
	start_in(&f, "/dev/shm");
	store_fix_kill(&f.x);
	OK(mempool_remove(f.x.b, NULL));
	f.x.po.n_segments = 3;
	OK(store_fix_open(&f.x));
	uint64_t all = mempool_segment(f.x.p, 0).bytes_total;
	OK(mempool_slice(f.x.p, 0, 0, &f.x.why));
	const struct extent part = { 2, 4000, 300 };
	memset(mempool_at(f.x.p, &part), 0x5a, part.bytes);
	OK(mempool_slice(f.x.p, 2, 0, &f.x.why));
	mempool_unload(f.x.p, &part);
	cr_assert_eq(*((uint8_t *)mempool_at(f.x.p, &part) + 299), 0x5a, "the bytes stay");
	mempool_unload(f.x.p, &(struct extent){ 9, 0, 1 });
	mempool_ready(f.x.p, 0, 1);
	OK(restart(&f));
	cr_assert_eq(f.x.start.found, MEMPOOL_KEPT);
	cr_assert_eq(mempool_segment(f.x.p, 0).bytes, all);
	cr_assert_eq(mempool_segment(f.x.p, 1).bytes, 0, "it never had its memory");
	cr_assert_eq(mempool_segment(f.x.p, 2).bytes, all);
	mempool_ready(f.x.p, 0, 0);
	cr_assert_eq(mempool_segment(f.x.p, 0).bytes, all, "never less");
	finish(&f);
	NO_LEAKS();
}

Test(pool, figures_out_of_range_are_refused, .timeout = 20)
{
	struct folder f;
	start(&f);
	const struct mempool_opts good = f.x.po;
	struct mempool_opts bad[5];
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].segment_bytes = 0;
	bad[1].segment_bytes = 4097;
	bad[2].n_segments = 65;
	bad[3].n_lanes = 65;
	bad[4].n_shards = 65;
	store_fix_kill(&f.x);
	OK(mempool_remove(f.x.b, NULL));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		f.x.po = bad[i];
		cr_assert_eq(store_fix_open(&f.x), ERR_INVALID_PARAMS, "%zu", i);
		cr_assert(strstr(f.x.why.text, "(1..64)"), "%s", f.x.why.text);
	}
	f.x.po = good;
	OK(store_fix_open(&f.x));
	finish(&f);
	NO_LEAKS();
}

Test(pool, its_name_follows_the_data_folder, .timeout = 20)
{
	char a[PATH_BYTES_MAX], b[PATH_BYTES_MAX];
	struct why why = { 0 };
	OK(pool_folder_name("/tmp", NULL, a, &why));
	cr_assert_eq(strncmp(a, "/dev/shm/pomelo-", 16), 0, "%s", a);
	OK(pool_folder_name("/", "", b, &why));
	cr_assert_neq(strcmp(a, b), 0);
	OK(pool_folder_name("/tmp", "/var/tmp", b, &why));
	cr_assert_eq(strcmp(strrchr(a, '/'), strrchr(b, '/')), 0);
	cr_assert_eq(pool_folder_name("/no/such", NULL, b, &why), ERR_NOT_FOUND);
	OK(pool_folder_fits("/tmp/x", 1, &why));
	why = (struct why){ 0 };
	cr_assert_eq(pool_folder_fits("/tmp/x", UINT64_MAX, &why), ERR_NO_SPACE);
	cr_assert(strstr(why.text, "/tmp"), "%s", why.text);
	NO_LEAKS();
}

/* ---- damage ---- */

static void fill(struct folder *f, unsigned n)
{
	struct hold_slot s;
	for (uint64_t v = 1; v <= n; v++) {
		OK(store_fix_commit(&f->x, v, "k", 4096 * v, 4096, &s));
		cr_assert_eq(s.slot, v - 1);
	}
}

Test(pool, a_slot_with_a_bad_sum_is_dropped_and_counted, .timeout = 20)
{
	struct folder f;
	struct hold_slot s;
	start(&f);
	fill(&f, 4);
	poke(&f, "dir", 2 * SLOT_BYTES + offsetof(struct slot, size), 1);
	OK(restart(&f));
	cr_assert_eq(f.x.start.dropped, 1);
	cr_assert_eq(f.x.start.committed, 3);
	OK(store_fix_commit(&f.x, 9, "k", 4096 * 3, 4096, &s));
	cr_assert_eq(s.slot, 2);
	cr_assert_eq(s.generation, 1, "its readers must not take the next for it");
	OK(restart(&f));
	cr_assert_eq(f.x.start.dropped, 0);
	cr_assert_eq(f.x.start.committed, 4);
	finish(&f);
	NO_LEAKS();
}

Test(pool, good_sums_over_nonsense_are_dropped_too, .timeout = 20)
{
	struct folder f;
	start(&f);
	fill(&f, 5);
	struct slot *s = f.x.p->slots;
	((struct extent *)(void *)s[0].tail)->segment = 1;     /* no such segment */
	((struct extent *)(void *)s[1].tail)->bytes = 1 << 20; /* over its end */
	s[2].size = 8192;				       /* more than its extents */
	s[3].shard = 1;
	s[4].version = 1; /* as slot 0's */
	for (int i = 0; i < 5; i++) {
		uint8_t *tail = s[i].tail;
		s[i].record_crc = crc32c(0, tail, s[i].record_bytes);
		s[i].state = slot_word(&s[i], SLOT_COMMITTED, false, RETIRE_NONE);
	}
	OK(restart(&f));
	cr_assert_eq(f.x.start.dropped, 4);
	cr_assert_eq(f.x.start.committed, 1, "slot 0's version is free for slot 4");
	finish(&f);
	NO_LEAKS();
}

Test(pool, a_crash_inside_free_stays_retired_under_its_present_generation, .timeout = 20)
{
	struct folder f;
	start(&f);
	fill(&f, 1);
	struct hold_under u = store_fix_under(&f.x);
	OK(hold_retire(f.x.h, &u, 0, 0, 1, RETIRE_REMOVED, 0));
	f.x.p->gen[0] = 1; /* FREE came that far */
	OK(restart(&f));
	cr_assert_eq(f.x.start.retired, 1);
	u = store_fix_under(&f.x);
	cr_assert_eq(hold_free(f.x.h, &u, 0, 0), ERR_NOT_FOUND);
	OK(hold_free(f.x.h, &u, 0, 1));
	finish(&f);
	NO_LEAKS();
}

struct overlap {
	unsigned n, with_extents, retired;
};

static bool count(void *arg, const struct hold_entry *e)
{
	struct overlap *o = arg;
	o->n++;
	o->with_extents += e->n_extents > 0;
	o->retired += e->reason == RETIRE_OVERLAP;
	return true;
}

Test(pool, of_two_that_overlap_the_higher_version_stays, .timeout = 20)
{
	struct folder f;
	struct hold_slot s;
	uint64_t cursor = 0;
	start(&f);
	OK(store_fix_commit(&f.x, 1, "a", 0, 8192, &s)); /* under 3 */
	OK(store_fix_commit(&f.x, 3, "b", 4096, 8192, &s));
	OK(store_fix_commit(&f.x, 2, "c", 16384, 4096,
			    &s)); /* alone, from end to start of others */
	OK(store_fix_commit(&f.x, 5, "d", 20480, 4096, &s)); /* covers 4 and 6 in part */
	OK(store_fix_commit(&f.x, 4, "e", 24000 & ~63, 4096, &s));
	OK(store_fix_commit(&f.x, 6, "f", 65536, 4096, &s));
	for (int round = 0; round < 2; round++) { /* the next start agrees */
		OK(restart(&f));
		cr_assert_eq(f.x.start.overlaps, round == 0 ? 2 : 0);
		cr_assert_eq(f.x.start.committed, 4);
		cr_assert_eq(f.x.start.retired, 2);
	}
	struct overlap o = { 0 };
	hold_scan(f.x.h, 0, &cursor, count, &o);
	cr_assert_eq(o.n, 6);
	cr_assert_eq(o.retired, 2);
	cr_assert_eq(o.with_extents, 4, "an overlapped slot has nothing to give back");
	cr_assert_eq(directory_generation(f.x.p, 0), 1, "its readers are sent away");
	cr_assert_eq(store_fix_commit(&f.x, 1, "a", 0, 8192, &s), ERR_STALE_ATTEMPT);
	finish(&f);
	NO_LEAKS();
}

/* ---- a hostile folder ---- */

static void refused(struct folder *f, enum err want, const char *says)
{
	enum err e = restart(f);
	cr_assert_eq(e, want, "%s: %s", err_name(e), f->x.why.text);
	cr_assert(strstr(f->x.why.text, says), "%s", f->x.why.text);
	cr_assert(strstr(f->x.why.text, "empty pool"), "the remedy: %s", f->x.why.text);
}

Test(pool, a_bad_super_stops_the_start_with_its_reason, .timeout = 20)
{
	struct folder f;
	start(&f);
	poke(&f, "super", 100, 1);
	poke(&f, "super", 4096 + 100, 1);
	refused(&f, ERR_CORRUPT, "super");
	OK(mempool_remove(f.x.b, NULL));
	OK(restart(&f));
	poke(&f, "super", 100, 1); /* one good copy is enough */
	OK(restart(&f));
	finish(&f);
	NO_LEAKS();
}

Test(pool, files_of_the_wrong_kind_stop_the_start_with_their_reason, .timeout = 20)
{
	static const char *const names[] = { "super", "dir", "gen", "ctl", "data.0" };
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct folder f;
		char path[128], kept[128];
		start(&f);
		path_of(&f, names[i], path);
		path_of(&f, "kept", kept);

		cr_assert_eq(truncate(path, 4000), 0); /* too short */
		refused(&f, ERR_CORRUPT, names[i]);

		cr_assert_eq(rename(path, kept), 0); /* a link */
		cr_assert_eq(symlink("kept", path), 0);
		refused(&f, ERR_FORBIDDEN, names[i]);

		cr_assert_eq(unlink(path), 0); /* a pipe: must not hang either */
		cr_assert_eq(mkfifo(path, 0600), 0);
		refused(&f, ERR_FORBIDDEN, names[i]);

		cr_assert_eq(unlink(path), 0); /* open to others */
		cr_assert_eq(rename(kept, path), 0);
		cr_assert_eq(chmod(path, 0644), 0);
		refused(&f, ERR_FORBIDDEN, names[i]);
		finish(&f);
	}
	NO_LEAKS();
}

Test(pool, a_folder_that_is_no_folder_of_ours_is_refused, .timeout = 20)
{
	struct folder f;
	struct pool_backing *b;
	struct why why = { 0 };
	char link[128];
	start(&f);
	(void)snprintf(link, sizeof(link), "%s/link", f.root);
	cr_assert_eq(symlink("pool", link), 0);
	cr_assert_eq(pool_folder_open(link, &b, &why), ERR_FORBIDDEN);
	unlink(link);
	cr_assert_eq(chmod(f.dir, 0755), 0);
	cr_assert_eq(pool_folder_open(f.dir, &b, &why), ERR_FORBIDDEN);
	cr_assert_eq(chmod(f.dir, 0700), 0);
	finish(&f);
	NO_LEAKS();
}

Test(pool, a_damaged_control_page_is_told, .timeout = 20)
{
	struct folder f;
	start(&f);
	poke(&f, "ctl", 0, 1);
	refused(&f, ERR_CORRUPT, "ctl");
	finish(&f);
	NO_LEAKS();
}
