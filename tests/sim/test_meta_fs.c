/* SPDX-License-Identifier: Apache-2.0 */
/* The meta store's file operations on a simulated disk. */
#include "tests/support/leak.h"
#include "tests/support/meta_fs_sim.h"

#include <criterion/criterion.h>
#include <string.h>

struct fix {
	struct sim *s;
	struct sim_disk *d;
	struct meta_fs *fs;
};

static struct fix fix_open(uint64_t seed)
{
	struct sim *s = sim_new(seed);
	struct sim_disk *d = sim_node_disk(sim_node(s, "a"));
	return (struct fix){ s, d, meta_fs_sim_new(d, "/data/meta") };
}

static void fix_close(struct fix *x)
{
	meta_fs_free(x->fs);
	sim_free(x->s);
}

Test(meta_fs, answers_as_its_header_says, .timeout = 20)
{
	struct fix x = fix_open(1);
	const struct meta_fs_ops *o = x.fs->ops;
	struct meta_file *f, *g;
	char buf[16];
	size_t got;
	uint64_t size;
	cr_assert_eq(o->open(x.fs, "log", false, &f), ERR_NOT_FOUND);
	cr_assert_eq(o->open(x.fs, "log", true, &f), ERR_NONE);
	cr_assert_eq(o->open(x.fs, "log", true, &g), ERR_EXISTS);
	cr_assert_eq(o->write(f, "hello", 5, 3), ERR_NONE);
	cr_assert_eq(o->size(f, &size), ERR_NONE);
	cr_assert_eq(size, 8);
	cr_assert_eq(o->read(f, buf, 16, 3, &got), ERR_NONE);
	cr_assert(got == 5 && memcmp(buf, "hello", 5) == 0);
	cr_assert_eq(o->sync(f), ERR_NONE);
	cr_assert_eq(o->rename(x.fs, "log", "old"), ERR_NONE);
	cr_assert_eq(o->rename(x.fs, "log", "old"), ERR_NOT_FOUND);
	cr_assert_eq(o->sync_dir(x.fs), ERR_NONE);
	cr_assert_eq(o->unlink(x.fs, "log"), ERR_NOT_FOUND);
	cr_assert_eq(o->unlink(x.fs, "old"), ERR_NONE);
	meta_file_close(f);
	fix_close(&x);
	NO_LEAKS();
}

Test(meta_fs, full_and_failing_disks_are_typed, .timeout = 20)
{
	struct fix x = fix_open(2);
	const struct meta_fs_ops *o = x.fs->ops;
	struct meta_file *f;
	static char big[4096];
	cr_assert_eq(o->open(x.fs, "log", true, &f), ERR_NONE);
	sim_disk_limit(x.d, sim_disk_used(x.d) + 1000);
	cr_assert_eq(o->write(f, big, sizeof(big), 0), ERR_NO_SPACE);
	cr_assert_eq(o->write(f, big, sizeof(big), 0), ERR_NO_SPACE);
	sim_disk_fail(x.d, true, 0, 1, 5);
	cr_assert_eq(o->sync(f), ERR_IO);
	meta_file_close(f);
	fix_close(&x);
	NO_LEAKS();
}

Test(meta_fs, a_lock_ends_with_its_holder, .timeout = 20)
{
	struct fix x = fix_open(3);
	const struct meta_fs_ops *o = x.fs->ops;
	struct meta_file *f, *g;
	struct why why = { 0 };
	cr_assert_eq(o->lock(x.fs, "lock", &f, &why), ERR_NONE);
	cr_assert_eq(o->lock(x.fs, "lock", &g, &why), ERR_DIRECTORY_IN_USE);
	cr_assert(strstr(why.text, "/data/meta/lock"), "%s", why.text);
	meta_file_close(f);
	cr_assert_eq(o->lock(x.fs, "lock", &g, &why), ERR_NONE);
	sim_power_cut(sim_node(x.s, "a"));
	cr_assert_eq(o->lock(x.fs, "lock", &f, &why), ERR_NONE);
	meta_file_close(f);
	meta_file_close(g);
	fix_close(&x);
	NO_LEAKS();
}

Test(meta_fs, what_was_synced_outlives_the_power, .timeout = 20)
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct fix x = fix_open(seed);
		const struct meta_fs_ops *o = x.fs->ops;
		struct meta_file *f;
		char buf[8];
		size_t got;
		cr_assert_eq(o->open(x.fs, "log", true, &f), ERR_NONE);
		cr_assert_eq(o->write(f, "synced", 6, 0), ERR_NONE);
		cr_assert_eq(o->sync(f), ERR_NONE);
		cr_assert_eq(o->sync_dir(x.fs), ERR_NONE);
		sim_power_cut(sim_node(x.s, "a"));
		cr_assert_eq(o->read(f, buf, 6, 0, &got), err_from_errno(9));
		meta_file_close(f);
		cr_assert_eq(o->open(x.fs, "log", false, &f), ERR_NONE);
		cr_assert_eq(o->read(f, buf, 6, 0, &got), ERR_NONE);
		cr_assert(got == 6 && memcmp(buf, "synced", 6) == 0);
		meta_file_close(f);
		fix_close(&x);
	}
	NO_LEAKS();
}
