/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned mode_of(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0 ? st.st_mode & 07777 : 0;
}

Test(data, is_made_private, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	scratch_init(&s);
	struct where w = scratch_where(&s);
	umask(0);
	cr_expect_not(data_exists(&w));
	cr_assert_eq(data_make(&w, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(data_make_rest(&w, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(data_make_rest(&w, &why), ERR_NONE, "again: %s", why.text);
	cr_expect(data_exists(&w));
	cr_expect_eq(mode_of(w.path), 0700);
	cr_expect_eq(mode_of(w.run), 0700);
	cr_expect_eq(mode_of(scratch_at(&s, "data/log")), 0700);
	scratch_fini(&s);
	NO_LEAKS();
}

Test(data, open_to_others_is_refused, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	scratch_init(&s);
	struct where w = scratch_where(&s);
	cr_assert_eq(mkdir(w.path, 0700), 0);
	cr_assert_eq(chmod(w.path, 0750), 0);
	cr_expect_eq(data_make(&w, &why), ERR_FORBIDDEN);
	cr_expect(strstr(why.text, w.path), "%s", why.text);
	cr_assert_eq(chmod(w.path, 0700), 0);
	why = (struct why){ 0 };
	cr_assert_eq(mkdir(w.run, 0700), 0);
	cr_assert_eq(chmod(w.run, 0777), 0);
	cr_expect_eq(data_make_rest(&w, &why), ERR_FORBIDDEN);
	scratch_fini(&s);
}

Test(data, a_file_in_its_place_is_refused, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	scratch_init(&s);
	struct where w = scratch_where(&s);
	scratch_write(&s, "data", "x", 0600);
	cr_expect_neq(data_make(&w, &why), ERR_NONE);
	cr_expect(strstr(why.text, w.path), "%s", why.text);
	scratch_fini(&s);
}

/* The lock is one process's; it goes with the last descriptor, through fork and exec too. */
Test(data, lock_is_exclusive_and_inherited, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	int fd = -1, other = -1, back[2];
	char byte;
	scratch_init(&s);
	struct where w = scratch_where(&s);
	cr_assert_eq(data_make(&w, &why), ERR_NONE);
	cr_assert_eq(data_lock(&w, &fd, &why), ERR_NONE);
	cr_expect_eq(data_lock(&w, &other, &why), ERR_DIRECTORY_IN_USE);
	cr_assert_eq(pipe(back), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(back[1]);
		_exit(read(back[0], &byte, 1) != 0); /* holds a copy until we close */
	}
	close(fd);
	cr_expect_eq(data_lock(&w, &other, NULL), ERR_DIRECTORY_IN_USE,
		     "the child still has it");
	close(back[1]);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	cr_expect_eq(data_lock(&w, &other, NULL), ERR_NONE);
	close(other);
	scratch_fini(&s);
}

/* ---- run folder elsewhere ---- */

static struct where with_run(const struct scratch *s, const char *run)
{
	struct where w = scratch_where(s);
	snprintf(w.run, sizeof(w.run), "%s/%s", s->path, run);
	w.run_given = true;
	return w;
}

Test(data, run_folder_elsewhere_is_found_again, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	char to[PATH_BYTES_MAX] = "";
	scratch_init(&s);
	struct where plain = scratch_where(&s), w = with_run(&s, "r");
	cr_assert_eq(data_make(&w, &why), ERR_NONE);
	/* it ran the plain way before; what is left there is of ended processes */
	cr_assert_eq(data_make_rest(&plain, &why), ERR_NONE);
	scratch_write(&s, "data/run/master.pid", "1234\n", 0600);
	cr_assert_eq(data_make_rest(&w, &why), ERR_NONE, "%s", why.text);
	cr_expect_gt(readlink(scratch_at(&s, "data/run"), to, sizeof(to) - 1), 0);
	cr_expect_str_eq(to, w.run);
	/* another one takes its place */
	struct where w2 = with_run(&s, "r2");
	cr_assert_eq(data_make_rest(&w2, &why), ERR_NONE, "%s", why.text);
	memset(to, 0, sizeof(to));
	cr_expect_gt(readlink(scratch_at(&s, "data/run"), to, sizeof(to) - 1), 0);
	cr_expect_str_eq(to, w2.run);
	scratch_fini(&s);
}

Test(data, run_folder_is_not_moved_under_services, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	int fd = -1;
	scratch_init(&s);
	struct where plain = scratch_where(&s), w = with_run(&s, "r");
	cr_assert_eq(data_make(&w, &why), ERR_NONE);
	cr_assert_eq(data_make_rest(&plain, &why), ERR_NONE);
	cr_assert_eq(path_lock(scratch_at(&s, "data/run/owner.pid"), &fd, &why), ERR_NONE);
	cr_expect_eq(data_make_rest(&w, &why), ERR_CONFLICT);
	cr_expect(strstr(why.text, "pomelo down"), "%s", why.text);
	close(fd);
	scratch_fini(&s);
}

/* I2: a run folder serves one data folder. */
Test(data, run_folder_of_another_is_refused, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	int fd = -1;
	scratch_init(&s);
	struct where a = with_run(&s, "r"), b = with_run(&s, "r");
	snprintf(b.path, sizeof(b.path), "%s/other", s.path);
	cr_assert_eq(data_make(&a, &why), ERR_NONE);
	cr_assert_eq(data_make(&b, &why), ERR_NONE);
	cr_assert_eq(data_make_rest(&a, &why), ERR_NONE);
	cr_assert_eq(path_lock(scratch_at(&s, "r/pg.pid"), &fd, &why), ERR_NONE);
	cr_expect_eq(data_make_rest(&b, &why), ERR_CONFLICT);
	cr_expect(strstr(why.text, a.path) && strstr(why.text, "--run-dir"), "%s", why.text);
	close(fd);
	why = (struct why){ 0 };
	cr_expect_eq(data_make_rest(&b, &why), ERR_NONE, "nobody runs: it may have it: %s",
		     why.text);
	scratch_fini(&s);
}

/* ---- pool ---- */

Test(data, pool_is_named_after_the_folder, .timeout = 10)
{
	struct scratch s;
	char a[PATH_BYTES_MAX], b[PATH_BYTES_MAX], want[64];
	struct why why = { 0 };
	scratch_init(&s);
	struct where w = scratch_where(&s), v = scratch_where(&s);
	snprintf(v.path, sizeof(v.path), "%s", s.path);
	cr_expect_eq(data_pool_path(&w, a, sizeof(a)), ERR_NOT_FOUND);
	cr_assert_eq(data_make(&w, &why), ERR_NONE);
	cr_assert_eq(data_pool_path(&w, a, sizeof(a)), ERR_NONE);
	cr_assert_eq(data_pool_path(&v, b, sizeof(b)), ERR_NONE);
	snprintf(want, sizeof(want), "/dev/shm/pomelo-%u-", geteuid());
	cr_expect_eq(strncmp(a, want, strlen(want)), 0, "%s", a);
	cr_expect_eq(strlen(a), strlen(want) + 16);
	cr_expect_str_neq(a, b);
	scratch_fini(&s);
}

Test(data, pool_is_removed_whole, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	uint64_t bytes = 0;
	scratch_init(&s);
	const char *pool = scratch_at(&s, "pool");
	cr_expect_eq(data_pool_remove(pool, &bytes, &why), ERR_NOT_FOUND);
	cr_assert_eq(mkdir(pool, 0700), 0);
	scratch_write(&s, "pool/super", "0123456789", 0600);
	scratch_write(&s, "pool/data.0", "", 0600);
	cr_assert_eq(truncate(scratch_at(&s, "pool/data.0"), 3ll << 30),
		     0); /* sparse, > 2 slices */
	cr_assert_eq(data_pool_remove(pool, &bytes, &why), ERR_NONE, "%s", why.text);
	cr_expect_neq(access(pool, F_OK), 0);
	cr_expect_gt(bytes, 0);
	scratch_fini(&s);
	NO_LEAKS();
}

/* A link planted at the pool's name leads nowhere; what it points to stays. */
Test(data, pool_removal_follows_no_links, .timeout = 10)
{
	struct scratch s;
	struct why why = { 0 };
	uint64_t bytes = 0;
	scratch_init(&s);
	cr_assert_eq(mkdir(scratch_at(&s, "precious"), 0700), 0);
	scratch_write(&s, "precious/file", "x", 0600);
	cr_assert_eq(symlink(scratch_at(&s, "precious"), scratch_at(&s, "pool")), 0);
	cr_expect_eq(data_pool_remove(scratch_at(&s, "pool"), &bytes, &why), ERR_FORBIDDEN);
	cr_expect_eq(access(scratch_at(&s, "precious/file"), F_OK), 0);
	/* a link inside is unlinked, not followed */
	cr_assert_eq(mkdir(scratch_at(&s, "pool2"), 0700), 0);
	cr_assert_eq(symlink(scratch_at(&s, "precious/file"), scratch_at(&s, "pool2/data.0")),
		     0);
	cr_expect_eq(data_pool_remove(scratch_at(&s, "pool2"), &bytes, &why), ERR_NONE);
	cr_expect_eq(access(scratch_at(&s, "precious/file"), F_OK), 0);
	scratch_fini(&s);
	NO_LEAKS();
}
