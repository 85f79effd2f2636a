/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk: what it keeps, what it may lose, how it fails. */
#include "tests/support/leak.h"
#include "tests/support/sim_disk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

struct fix {
	struct sim *s;
	struct sim_node *n;
	struct sim_disk *d;
};

static struct fix fix_open(uint64_t seed)
{
	struct sim *s = sim_new(seed);
	struct sim_node *n = sim_node(s, "a");
	return (struct fix){ s, n, sim_node_disk(n) };
}

static struct sim_file *open_ok(struct sim_disk *d, const char *path, int flags)
{
	struct sim_file *f;
	int r = sim_open(d, path, flags, &f);
	cr_assert_eq(r, 0, "open %s: %s", path, strerror(-r));
	return f;
}

static void put(struct sim_disk *d, const char *path, const char *text, bool sync)
{
	struct sim_file *f = open_ok(d, path, SIM_O_CREATE | SIM_O_TRUNC);
	cr_assert_eq(sim_pwrite(f, text, strlen(text), 0), (int64_t)strlen(text));
	if (sync)
		cr_assert_eq(sim_fsync(f), 0);
	sim_close(f);
}

static void sync_dir(struct sim_disk *d, const char *path)
{
	struct sim_file *f = open_ok(d, path, SIM_O_DIR);
	cr_assert_eq(sim_fsync(f), 0);
	sim_close(f);
}

/* "" when the file is not there. */
static const char *get(struct sim_disk *d, const char *path, char *buf, size_t size)
{
	struct sim_file *f;
	memset(buf, 0, size);
	if (sim_open(d, path, 0, &f) != 0)
		return "";
	cr_assert(sim_pread(f, buf, size - 1, 0) >= 0);
	sim_close(f);
	return buf;
}

Test(disk, calls_answer_as_the_system_does, .timeout = 20)
{
	struct fix x = fix_open(1);
	struct sim_file *f, *g;
	char buf[64];
	cr_assert_eq(sim_open(x.d, "/f", 0, &f), -ENOENT);
	cr_assert_eq(sim_open(x.d, "/d/f", SIM_O_CREATE, &f), -ENOENT);
	cr_assert_eq(sim_open(x.d, "f", SIM_O_CREATE, &f), -EINVAL);
	cr_assert_eq(sim_mkdir(x.d, "/d"), 0);
	cr_assert_eq(sim_mkdir(x.d, "/d"), -EEXIST);
	cr_assert_eq(sim_open(x.d, "/d", 0, &f), -EISDIR);
	f = open_ok(x.d, "/d/f", SIM_O_CREATE | SIM_O_EXCL);
	cr_assert_eq(sim_open(x.d, "/d/f", SIM_O_CREATE | SIM_O_EXCL, &g), -EEXIST);
	cr_assert_eq(sim_open(x.d, "/d/f", SIM_O_DIR, &g), -ENOTDIR);
	cr_assert_eq(sim_open(x.d, "/d/f/g", 0, &g), -ENOTDIR);
	cr_assert_eq(sim_pwrite(f, "hello", 5, 1000), 5);
	cr_assert_eq(sim_size(f), 1005);
	cr_assert_eq(sim_pread(f, buf, 10, 998), 7);
	cr_assert_arr_eq(buf, "\0\0hello", 7);
	cr_assert_eq(sim_pread(f, buf, 10, 1005), 0);
	cr_assert_eq(sim_ftruncate(f, 1002), 0);
	cr_assert_eq(sim_ftruncate(f, 1004), 0);
	cr_assert_eq(sim_pread(f, buf, 10, 1000), 4);
	cr_assert_arr_eq(buf, "he\0\0", 4);
	cr_assert_eq(sim_disk_used(x.d), 1004);
	cr_assert_eq(sim_unlink(x.d, "/d"), -ENOTEMPTY);
	cr_assert_eq(sim_unlink(x.d, "/d/f"), 0);
	cr_assert_eq(sim_pread(f, buf, 1, 1000), 1, "an open file outlives its name");
	sim_close(f);
	cr_assert_eq(sim_disk_used(x.d), 1004, "until the journal has forgotten it");
	sync_dir(x.d, "/d");
	cr_assert_eq(sim_disk_used(x.d), 0);
	sim_free(x.s);
	NO_LEAKS();
}

Test(disk, names_are_listed_in_order_and_renamed, .timeout = 20)
{
	struct fix x = fix_open(2);
	char name[32], buf[32];
	put(x.d, "/b", "b", false);
	put(x.d, "/a", "a", false);
	put(x.d, "/c", "c", false);
	cr_assert_eq(sim_rename(x.d, "/c", "/a"), 0);
	cr_assert_eq(sim_rename(x.d, "/c", "/a"), -ENOENT);
	cr_assert_eq(sim_rename(x.d, "/b", "/b"), 0);
	cr_assert_str_eq(get(x.d, "/a", buf, sizeof(buf)), "c");
	cr_assert_eq(sim_readdir(x.d, "/", 0, name, sizeof(name)), 0);
	cr_assert_str_eq(name, "a");
	cr_assert_eq(sim_readdir(x.d, "/", 1, name, sizeof(name)), 0);
	cr_assert_str_eq(name, "b");
	cr_assert_eq(sim_readdir(x.d, "/", 2, name, sizeof(name)), -ENOENT);
	sim_free(x.s);
	NO_LEAKS();
}

Test(disk, a_kill_keeps_the_page_cache_and_ends_the_handles, .timeout = 20)
{
	struct fix x = fix_open(3);
	char buf[32];
	put(x.d, "/f", "not synced", false);
	struct sim_proc *p = sim_proc_start(x.n, &(struct sim_proc_opts){ .name = "p" });
	sim_disk_forget(x.d, p); /* as a kill does; the handles of others live */
	cr_assert_str_eq(get(x.d, "/f", buf, sizeof(buf)), "not synced");
	sim_proc_end(p);
	sim_free(x.s);
	NO_LEAKS();
}

Test(disk, synced_data_and_names_survive_the_power, .timeout = 20)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct fix x = fix_open(seed);
		char buf[32];
		put(x.d, "/f", "synced", true);
		sync_dir(x.d, "/");
		put(x.d, "/g", "no name yet", true);
		struct sim_file *f = open_ok(x.d, "/f", 0);
		sim_power_cut(x.n);
		cr_assert_eq(sim_pread(f, buf, 1, 0), -EBADF);
		sim_close(f);
		cr_assert_str_eq(get(x.d, "/f", buf, sizeof(buf)), "synced");
		const char *g = get(x.d, "/g", buf, sizeof(buf));
		cr_assert(strcmp(g, "") == 0 || strcmp(g, "no name yet") == 0);
		sim_free(x.s);
	}
	NO_LEAKS();
}

/* The usual dance: write a temporary file, sync it, rename, sync the folder. */
Test(disk, rename_shows_the_old_or_the_new_file_whole, .timeout = 20)
{
	size_t was_old = 0, was_new = 0;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct fix x = fix_open(seed);
		char buf[32];
		put(x.d, "/f", "old", true);
		sync_dir(x.d, "/");
		put(x.d, "/f.tmp", "new", true);
		cr_assert_eq(sim_rename(x.d, "/f.tmp", "/f"), 0);
		sim_power_cut(x.n);
		const char *f = get(x.d, "/f", buf, sizeof(buf));
		was_old += strcmp(f, "old") == 0;
		was_new += strcmp(f, "new") == 0;
		sim_free(x.s);
	}
	cr_assert_eq(was_old + was_new, 200);
	cr_assert(was_old > 20 && was_new > 20);
	NO_LEAKS();
}

Test(disk, without_the_sync_a_renamed_file_may_be_empty_or_torn, .timeout = 20)
{
	size_t whole = 0, empty = 0, other = 0;
	static char text[5000], buf[6000];
	memset(text, 'x', sizeof(text) - 1);
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct fix x = fix_open(seed);
		put(x.d, "/f.tmp", text, false);
		cr_assert_eq(sim_rename(x.d, "/f.tmp", "/f"), 0);
		sync_dir(x.d, "/");
		sim_power_cut(x.n);
		const char *f = get(x.d, "/f", buf, sizeof(buf));
		whole += strcmp(f, text) == 0;
		empty += f[0] == 0;
		other += f[0] && strcmp(f, text) != 0;
		sim_free(x.s);
	}
	cr_assert(whole > 10 && empty > 10 && other > 10, "%zu whole, %zu empty, %zu torn",
		  whole, empty, other);
	NO_LEAKS();
}

#define SECTORS 24

/* D1 against a plain model: every sector shows a value it had since its last sync. */
static void random_writes(uint64_t seed, size_t *n_old, size_t *n_new, size_t *n_mid)
{
	struct fix x = fix_open(seed);
	struct sim_rng r = sim_rng(seed, "writes");
	static uint8_t sector[SIM_SECTOR], back[SECTORS * SIM_SECTOR];
	static bool may[SECTORS][256];
	uint8_t now[SECTORS] = { 0 };
	struct sim_file *f = open_ok(x.d, "/f", SIM_O_CREATE);
	memset(back, 0, sizeof(back));
	cr_assert_eq(sim_pwrite(f, back, sizeof(back), 0), sizeof(back));
	cr_assert_eq(sim_fsync(f), 0);
	sync_dir(x.d, "/");
	memset(may, 0, sizeof(may));
	for (size_t s = 0; s < SECTORS; s++)
		may[s][0] = true;
	for (int i = 1; i < 100; i++) {
		size_t s = sim_rng_below(&r, SECTORS);
		memset(sector, i, sizeof(sector));
		cr_assert_eq(sim_pwrite(f, sector, SIM_SECTOR, s * SIM_SECTOR), SIM_SECTOR);
		now[s] = (uint8_t)i;
		may[s][i] = true;
		if (!sim_rng_chance(&r, 30000))
			continue;
		cr_assert_eq(sim_fsync(f), 0);
		memset(may, 0, sizeof(may));
		for (s = 0; s < SECTORS; s++)
			may[s][now[s]] = true;
	}
	sim_close(f);
	sim_power_cut(x.n);
	f = open_ok(x.d, "/f", 0);
	cr_assert_eq(sim_pread(f, back, sizeof(back), 0), sizeof(back));
	sim_close(f);
	for (size_t s = 0; s < SECTORS; s++) {
		const uint8_t *p = back + s * SIM_SECTOR;
		for (size_t i = 1; i < SIM_SECTOR; i++)
			cr_assert_eq(p[i], p[0], "a sector is torn inside");
		cr_assert(may[s][p[0]], "seed %lu: sector %zu shows %u", seed, s, p[0]);
		size_t older = 0;
		for (int v = 0; v < p[0]; v++)
			older += may[s][v];
		*n_new += p[0] == now[s] && older > 0;
		*n_old += p[0] != now[s] && older == 0;
		*n_mid += p[0] != now[s] && older > 0;
	}
	sim_free(x.s);
}

Test(disk, each_sector_shows_one_of_its_values_since_the_sync, .timeout = 60)
{
	size_t n_old = 0, n_new = 0, n_mid = 0;
	for (uint64_t seed = 1; seed <= 300; seed++)
		random_writes(seed, &n_old, &n_new, &n_mid);
	cr_assert(n_old > 500 && n_new > 500 && n_mid > 100, "%zu old, %zu new, %zu between",
		  n_old, n_new, n_mid);
	NO_LEAKS();
}

Test(disk, an_appended_tail_never_changes_what_was_synced, .timeout = 20)
{
	size_t grown = 0, garbage = 0;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct fix x = fix_open(seed);
		static char head[700], tail[3000], back[4000];
		memset(head, 'h', sizeof(head));
		memset(tail, 't', sizeof(tail));
		struct sim_file *f = open_ok(x.d, "/log", SIM_O_CREATE);
		cr_assert_eq(sim_pwrite(f, head, sizeof(head), 0), sizeof(head));
		cr_assert_eq(sim_fsync(f), 0);
		sync_dir(x.d, "/");
		for (size_t at = 0; at < sizeof(tail); at += 300)
			cr_assert_eq(sim_pwrite(f, tail + at, 300, sizeof(head) + at), 300);
		sim_close(f);
		sim_power_cut(x.n);
		f = open_ok(x.d, "/log", 0);
		int64_t n = sim_pread(f, back, sizeof(back), 0);
		sim_close(f);
		cr_assert(n >= (int64_t)sizeof(head));
		cr_assert_arr_eq(back, head, sizeof(head));
		grown += n > (int64_t)sizeof(head);
		for (int64_t i = sizeof(head); i < n; i++)
			if (back[i] != 't' && back[i] != 0) {
				garbage++;
				break;
			}
		sim_free(x.s);
	}
	cr_assert(grown > 100 && garbage > 5, "%zu grew, %zu with garbage", grown, garbage);
	NO_LEAKS();
}

Test(disk, a_full_disk_writes_short_then_nothing, .timeout = 20)
{
	struct fix x = fix_open(4);
	static char text[4096];
	struct sim_file *f = open_ok(x.d, "/f", SIM_O_CREATE), *g;
	sim_disk_limit(x.d, 6000);
	cr_assert_eq(sim_pwrite(f, text, 4096, 0), 4096);
	cr_assert_eq(sim_pwrite(f, text, 4096, 4096), 6000 - 4096);
	cr_assert_eq(sim_pwrite(f, text, 4096, 6000), -ENOSPC);
	cr_assert_eq(sim_pwrite(f, text, 4096, 0), 4096, "in place there is room");
	cr_assert_eq(sim_ftruncate(f, 100), 0);
	cr_assert_eq(sim_pwrite(f, text, 4096, 100), 4096);
	sim_disk_full(x.d, true);
	cr_assert_eq(sim_pwrite(f, text, 1, 5000), -ENOSPC);
	cr_assert_eq(sim_open(x.d, "/g", SIM_O_CREATE, &g), -ENOSPC);
	cr_assert_eq(sim_ftruncate(f, 10000), -ENOSPC);
	sim_disk_full(x.d, false);
	cr_assert_eq(sim_pwrite(f, text, 1, 5000), 1);
	sim_close(f);
	sim_free(x.s);
	NO_LEAKS();
}

Test(disk, the_nth_call_fails_and_no_other, .timeout = 20)
{
	struct fix x = fix_open(5);
	char c = 'x';
	struct sim_file *f = open_ok(x.d, "/f", SIM_O_CREATE);
	sim_disk_fail(x.d, true, 2, 2, EIO);
	static const int64_t want[] = { 1, 1, -EIO, -EIO, 1 };
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		cr_assert_eq(sim_pwrite(f, &c, 1, i), want[i]);
	cr_assert_eq(sim_pread(f, &c, 1, 0), 1);
	sim_disk_fail(x.d, false, 0, UINT64_MAX, EIO);
	cr_assert_eq(sim_pread(f, &c, 1, 0), -EIO);
	cr_assert_eq(sim_pwrite(f, &c, 1, 0), 1);
	cr_assert_eq(sim_disk_ops(x.d, false), 2);
	sim_close(f);
	sim_free(x.s);
	NO_LEAKS();
}

/* After a failed fsync the next one says yes and the data is still not there (fsyncgate). */
Test(disk, a_failed_fsync_forgets_what_was_dirty, .timeout = 20)
{
	size_t lost = 0;
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct fix x = fix_open(seed);
		char buf[32];
		struct sim_file *f = open_ok(x.d, "/f", SIM_O_CREATE);
		cr_assert_eq(sim_pwrite(f, "old", 3, 0), 3);
		cr_assert_eq(sim_fsync(f), 0);
		sync_dir(x.d, "/");
		cr_assert_eq(sim_pwrite(f, "new", 3, 0), 3);
		sim_disk_fail(x.d, true, 0, 1, EIO);
		cr_assert_eq(sim_fsync(f), -EIO);
		cr_assert_eq(sim_fsync(f), 0);
		sim_close(f);
		cr_assert_str_eq(get(x.d, "/f", buf, sizeof(buf)), "new");
		sim_power_cut(x.n);
		lost += strcmp(get(x.d, "/f", buf, sizeof(buf)), "old") == 0;
		sim_free(x.s);
	}
	cr_assert(lost > 20 && lost < 80, "%zu of 100", lost);
	NO_LEAKS();
}

Test(disk, rot_flips_one_bit_for_good, .timeout = 20)
{
	struct fix x = fix_open(6);
	char buf[32];
	put(x.d, "/f", "bytes", true);
	sync_dir(x.d, "/");
	cr_assert_eq(sim_disk_rot(x.d, "/f", 5), -EINVAL);
	cr_assert_eq(sim_disk_rot(x.d, "/g", 0), -ENOENT);
	cr_assert_eq(sim_disk_rot(x.d, "/f", 2), 0);
	for (int i = 0; i < 2; i++) {
		get(x.d, "/f", buf, sizeof(buf));
		cr_assert_eq(__builtin_popcount((unsigned char)(buf[2] ^ 't')), 1);
		sim_power_cut(x.n);
	}
	sim_free(x.s);
	NO_LEAKS();
}

struct worker {
	struct sim_disk *d;
	struct sim_proc *p;
	struct loop l;
	struct sim_file *f;
	struct post post;
	int64_t r;
	uint64_t done_ns;
	bool busy, dying;
};

static void worker_end(struct worker *w)
{
	if (w->f)
		sim_close(w->f);
	sim_loop_close(&w->l);
	sim_proc_end(w->p);
}

static void worker_killed(void *arg)
{
	struct worker *w = arg;
	w->dying = true;
	if (!w->busy)
		worker_end(w);
}

static void work_done(struct post *p)
{
	struct worker *w = container_of(p, struct worker, post);
	w->done_ns = loop_now_ns(&w->l);
	w->busy = false;
}

static void work_post(void *arg)
{
	struct worker *w = arg;
	loop_post(&w->l, &w->post);
}

static void work(void *arg)
{
	struct worker *w = arg;
	w->r = w->f ? sim_pwrite(w->f, "x", 1, 0) : sim_open(w->d, "/f", SIM_O_CREATE, &w->f);
	w->l.driver->later(&w->l, work_post, w);
}

static void run_job(struct worker *w)
{
	loop_expect(&w->l);
	w->busy = true;
	w->post.fn = work_done;
	w->l.driver->later(&w->l, work, w);
}

static bool idle(void *arg)
{
	return !((struct worker *)arg)->busy;
}

/* What a job does to the disk takes the job's time; what the dead do has no effect. */
Test(disk, slow_disks_slow_jobs_and_the_dead_write_nothing, .timeout = 20)
{
	struct fix x = fix_open(7);
	struct worker w = { .d = x.d };
	char buf[8];
	w.p = sim_proc_start(x.n, &(struct sim_proc_opts){
					  .name = "w", .on_kill = worker_killed, .arg = &w });
	sim_loop_open(w.p, &w.l);
	run_job(&w);
	sim_run_ms(x.s, 100);
	cr_assert_eq(w.r, 0);
	sim_disk_slow(x.d, 500 * NS_PER_MS, 0);
	uint64_t t0 = loop_now_ns(&w.l);
	run_job(&w);
	sim_run_ms(x.s, 1000);
	cr_assert_eq(w.r, 1);
	cr_assert_geq(w.done_ns - t0, 500 * NS_PER_MS);
	cr_assert_str_eq(get(x.d, "/f", buf, sizeof(buf)), "x");
	put(x.d, "/f", "y", false);
	run_job(&w);
	sim_kill(w.p);
	cr_assert(sim_run_until(x.s, idle, &w, 1000));
	cr_assert_eq(w.r, -EBADF);
	cr_assert_str_eq(get(x.d, "/f", buf, sizeof(buf)), "y");
	worker_end(&w);
	sim_free(x.s);
	NO_LEAKS();
}
