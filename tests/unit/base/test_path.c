/* SPDX-License-Identifier: Apache-2.0 */
/* Safe files: what is refused, that old bytes stay, that every failure is clean. */
#include "base/path.h"

#include "base/fault.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/leak.h"

struct place {
	char dir[64], a[128], b[128];
	struct why w;
};

static void setup(struct place *p)
{
	*p = (struct place){ .dir = "/tmp/pomelo-path-XXXXXX" };
	cr_assert_not_null(mkdtemp(p->dir));
	snprintf(p->a, sizeof(p->a), "%s/a", p->dir);
	snprintf(p->b, sizeof(p->b), "%s/b", p->dir);
}

/* Removes the folder and all in it; returns how many entries there were. */
static int teardown(struct place *p)
{
	int n = 0;
	DIR *d = opendir(p->dir);
	cr_assert_not_null(d);
	for (struct dirent *e; (e = readdir(d));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		n++;
		if (unlinkat(dirfd(d), e->d_name, 0) != 0)
			unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
	}
	closedir(d);
	rmdir(p->dir);
	return n;
}

static void put_file(const char *path, const char *text)
{
	struct why w = { 0 };
	cr_assert_eq(path_write_atomic(path, BYTES_STR(text), 0600, &w), ERR_NONE, "%s",
		     w.text);
}

static bool holds(const char *path, const char *text)
{
	struct buf b = BUF_INIT(1000);
	enum err e = path_read(path, 900, &b, NULL);
	bool same = !e && b.n == strlen(text) && memcmp(b.p, text, b.n) == 0;
	buf_fini(&b);
	return same;
}

Test(path, join, .timeout = 5)
{
	char out[PATH_BYTES_MAX], name[PATH_BYTES_MAX];
	struct why w = { 0 };
	cr_expect_eq(path_join(out, "/a", "b", &w), ERR_NONE);
	cr_expect_str_eq(out, "/a/b");
	cr_expect_eq(path_join(out, "/a/", "b", &w), ERR_NONE);
	cr_expect_str_eq(out, "/a/b");
	cr_expect_eq(path_join(out, "/", "b", &w), ERR_NONE);
	cr_expect_str_eq(out, "/b");
	memset(name, 'x', sizeof(name));
	name[sizeof(name) - 3] = '\0';
	cr_expect_eq(path_join(out, "/", name, &w), ERR_NONE);
	cr_expect_eq(path_join(out, "/a", name, &w), ERR_TOO_LARGE);
	cr_expect(strstr(w.text, "longer than 4095"));
}

Test(path, private_folders, .timeout = 5)
{
	struct place p;
	struct stat st;
	setup(&p);
	umask(0);
	cr_expect_eq(path_mkdir_private(p.a, &p.w), ERR_NONE);
	cr_expect(stat(p.a, &st) == 0 && (st.st_mode & 07777) == 0700);
	cr_expect_eq(path_mkdir_private(p.a, &p.w), ERR_NONE, "again");
	chmod(p.a, 0750);
	cr_expect_eq(path_mkdir_private(p.a, &p.w), ERR_FORBIDDEN);
	cr_expect(strstr(p.w.text, "chmod 700"), "%s", p.w.text);
	p.w = (struct why){ 0 };
	cr_assert_eq(symlink(p.a, p.b), 0);
	chmod(p.a, 0700);
	cr_expect_eq(path_mkdir_private(p.b, &p.w), ERR_FORBIDDEN);
	cr_expect(strstr(p.w.text, "symbolic link"), "%s", p.w.text);
	unlink(p.b);
	put_file(p.b, "x");
	cr_expect_eq(path_mkdir_private(p.b, NULL), ERR_FORBIDDEN);
	cr_expect_eq(path_mkdir_private("/tmp/pomelo-no-such/x", NULL), ERR_NOT_FOUND);
	if (geteuid() == 0) {
		p.w = (struct why){ 0 };
		cr_assert_eq(chown(p.a, 12345, 0), 0);
		cr_expect_eq(path_mkdir_private(p.a, &p.w), ERR_FORBIDDEN);
		cr_expect(strstr(p.w.text, "12345"), "%s", p.w.text);
	}
	teardown(&p);
	NO_LEAKS();
}

Test(path, folders_with_parents, .timeout = 5)
{
	struct place p;
	char deep[256];
	struct stat st;
	setup(&p);
	snprintf(deep, sizeof(deep), "%s/x/y/z//", p.a);
	cr_expect_eq(path_mkdirs_private(deep, &p.w), ERR_NONE, "%s", p.w.text);
	cr_expect(stat(deep, &st) == 0 && (st.st_mode & 0777) == 0700);
	cr_expect_eq(path_mkdirs_private("", NULL), ERR_INVALID_PARAMS);
	put_file(p.b, "x");
	snprintf(deep, sizeof(deep), "%s/q", p.b);
	cr_expect_neq(path_mkdirs_private(deep, &p.w), ERR_NONE);
	for (int n = 0; n < 3; n++) {
		snprintf(deep, sizeof(deep), "%s/x%s", p.a,
			 n == 0	  ? "/y/z"
			 : n == 1 ? "/y"
				  : "");
		rmdir(deep);
	}
	cr_expect_eq(teardown(&p), 2);
	NO_LEAKS();
}

Test(path, open_refuses_links_and_fifos, .timeout = 5)
{
	struct place p;
	int fd = -1;
	setup(&p);
	put_file(p.a, "abc");
	cr_assert_eq(symlink(p.a, p.b), 0);
	cr_expect_eq(path_open(p.b, O_RDONLY, 0, &fd, &p.w), ERR_FORBIDDEN);
	cr_expect(strstr(p.w.text, "symbolic link"));
	unlink(p.b);
	cr_assert_eq(mkfifo(p.b, 0600), 0);
	p.w = (struct why){ 0 };
	cr_expect_eq(path_open(p.b, O_RDONLY, 0, &fd, &p.w), ERR_INVALID_PARAMS, "and no hang");
	cr_expect(strstr(p.w.text, "no regular file"));
	cr_expect_eq(path_open(p.dir, O_RDONLY, 0, &fd, NULL), ERR_INVALID_PARAMS);
	cr_expect_eq(path_open("/tmp/pomelo-no-such", O_RDONLY, 0, &fd, NULL), ERR_NOT_FOUND);
	cr_expect_eq(fd, -1, "untouched");
	cr_assert_eq(path_open(p.a, O_RDWR, 0, &fd, &p.w), ERR_NONE);
	cr_expect(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
	cr_expect(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
	teardown(&p);
	NO_LEAKS();
}

Test(path, read_is_bounded, .timeout = 5)
{
	struct place p;
	struct buf b = BUF_INIT(1 << 20);
	setup(&p);
	put_file(p.a, "0123456789");
	cr_expect_eq(path_read(p.a, 10, &b, &p.w), ERR_NONE);
	cr_expect_eq(b.n, 10);
	cr_expect_eq(path_read(p.a, 9, &b, &p.w), ERR_TOO_LARGE);
	cr_expect(strstr(p.w.text, "9 bytes"));
	cr_expect_eq(path_read("/tmp/pomelo-no-such", 9, &b, NULL), ERR_NOT_FOUND);
	buf_fini(&b);
	teardown(&p);
	NO_LEAKS();
}

Test(path, write_replaces_whole, .timeout = 5)
{
	struct place p;
	struct stat st;
	char target[128];
	setup(&p);
	put_file(p.a, "old");
	cr_expect_eq(path_write_atomic(p.a, BYTES_STR("newer"), 0640, &p.w), ERR_NONE);
	cr_expect(holds(p.a, "newer"));
	cr_expect(stat(p.a, &st) == 0 && (st.st_mode & 07777) == 0640);
	/* a link is replaced, not followed */
	snprintf(target, sizeof(target), "%s/t", p.dir);
	put_file(target, "safe");
	cr_assert_eq(symlink(target, p.b), 0);
	put_file(p.b, "own");
	cr_expect(holds(target, "safe"));
	cr_expect(holds(p.b, "own"));
	cr_expect_eq(path_write_atomic("/tmp/pomelo-no-such/x", BYTES_STR("x"), 0600, NULL),
		     ERR_NOT_FOUND);
	cr_expect_eq(teardown(&p), 3, "no temporary file is left");
	NO_LEAKS();
}

/* Killed at the moment before the rename, it leaves a file; the owner's next start takes it away,
 * and nothing else. */
Test(path, sweep_takes_leftovers_only, .timeout = 10)
{
	static const char *const stay[] = {
		"a", "a.backup", "a.tmp-abcdefg", "a.tmp-abc.ef", "ab.tmp-abcdef", "a.tmp-"
	};
	struct place p;
	char at[128];
	setup(&p);
	for (size_t i = 0; i < ARRAY_LEN(stay); i++) {
		snprintf(at, sizeof(at), "%s/%s", p.dir, stay[i]);
		put_file(at, "stays");
	}
	snprintf(at, sizeof(at), "%s/a.tmp-XyZ019", p.dir);
	put_file(at, "half");
	snprintf(at, sizeof(at), "%s/a.tmp-folder", p.dir);
	cr_assert_eq(mkdir(at, 0700), 0);
	path_sweep(p.a);
	path_sweep("/tmp/pomelo-no-such/x");
	cr_expect_eq(rmdir(at), 0, "a folder is none of ours");
	for (size_t i = 0; i < ARRAY_LEN(stay); i++) {
		snprintf(at, sizeof(at), "%s/%s", p.dir, stay[i]);
		cr_expect(holds(at, "stays"), "%s", stay[i]);
	}
	cr_expect_eq(teardown(&p), (int)ARRAY_LEN(stay));
	NO_LEAKS();
}

/* A real writer, killed again and again at any moment. */
Test(path, kills_leave_what_a_sweep_takes, .timeout = 20)
{
	struct place p;
	setup(&p);
	put_file(p.a, "old");
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();
		if (pid == 0)
			for (;;)
				(void)!path_write_atomic(p.a, BYTES_STR("old"), 0600, NULL);
		usleep((useconds_t)(50 * i));
		kill(pid, SIGKILL);
		cr_assert_eq(waitpid(pid, NULL, 0), pid);
	}
	path_sweep(p.a);
	cr_expect(holds(p.a, "old"));
	cr_expect_eq(teardown(&p), 1, "no leftover");
	NO_LEAKS();
}

/* Fails at each step in turn: old bytes stay, no temporary file is left, the line names the file. */
Test(path, write_fails_cleanly, .timeout = 10)
{
	static const enum fault points[] = { FAULT_path_write, FAULT_path_fsync,
					     FAULT_path_rename };
	if (!fault_built())
		cr_skip_test("needs -Dfaults=true");
	for (size_t i = 0; i < ARRAY_LEN(points); i++) {
		for (uint32_t skip = 0;; skip++) {
			struct place p;
			setup(&p);
			put_file(p.a, "old");
			fault_arm(points[i], skip, 1);
			enum err e = path_write_atomic(p.a, BYTES_STR("new"), 0600, &p.w);
			uint32_t hits = fault_hits(points[i]);
			fault_disarm_all();
			cr_expect_eq(e != ERR_NONE, hits > 0);
			if (e)
				cr_expect(strstr(p.w.text, p.dir), "%s", p.w.text);
			/* past the rename the new bytes are there, though not yet for sure */
			cr_expect(holds(p.a, "old") ||
				  (holds(p.a, "new") && (!e || skip == 1)));
			cr_expect_eq(teardown(&p), 1);
			if (hits == 0)
				break;
		}
	}
	NO_LEAKS();
}

Test(path, lock_excludes_and_ends_with_its_holder, .timeout = 10)
{
	struct place p;
	int fd = -1, again = -1;
	setup(&p);
	cr_assert_eq(path_lock(p.a, &fd, &p.w), ERR_NONE);
	cr_expect_eq(path_lock(p.a, &again, &p.w), ERR_DIRECTORY_IN_USE,
		     "also within a process");
	cr_expect(strstr(p.w.text, "another process"));
	cr_expect_eq(again, -1);
	pid_t pid = fork();
	if (pid == 0)
		_exit(path_lock(p.a, &again, NULL) == ERR_DIRECTORY_IN_USE ? 7 : 1);
	int status;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	close(fd);
	cr_assert_eq(path_lock(p.a, &fd, NULL), ERR_NONE);
	close(fd);
	cr_expect_eq(path_lock("/tmp/pomelo-no-such/lock", &fd, NULL), ERR_NOT_FOUND);
	teardown(&p);
	NO_LEAKS();
}

Test(path, strict_folders, .timeout = 5)
{
	struct place p;
	char deep[256], through[256];
	int fd = -1;
	setup(&p);
	cr_assert_eq(mkdir(p.a, 0700), 0);
	snprintf(deep, sizeof(deep), "%s/d", p.a);
	cr_assert_eq(mkdir(deep, 0700), 0);
	cr_assert_eq(symlink(p.a, p.b), 0);
	snprintf(through, sizeof(through), "%s/d", p.b);
	cr_expect_eq(path_open_dir_strict(deep, &fd, &p.w), ERR_NONE, "%s", p.w.text);
	close(fd);
	fd = -1;
	cr_expect_eq(path_open_dir_strict(through, &fd, &p.w), ERR_INVALID_PARAMS,
		     "a link on the way");
	cr_expect(strstr(p.w.text, "symbolic link"));
	cr_expect_eq(path_open_dir_strict(p.b, &fd, NULL), ERR_INVALID_PARAMS,
		     "a link at the end");
	cr_expect_eq(path_open_dir_strict("tmp", &fd, NULL), ERR_INVALID_PARAMS);
	cr_expect_eq(path_open_dir_strict("/tmp/pomelo-no-such/x", &fd, NULL), ERR_NOT_FOUND);
	cr_expect_eq(fd, -1);
	cr_expect_eq(path_open_dir_strict("/", &fd, NULL), ERR_NONE);
	close(fd);
	rmdir(deep);
	teardown(&p);
	NO_LEAKS();
}
