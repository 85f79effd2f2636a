/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/leak.h"

#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct folder {
	char dir[64], file[96];
};

static struct folder folder_new(void)
{
	struct folder f = { .dir = "/tmp/pomelo-auth-XXXXXX" };
	cr_assert(mkdtemp(f.dir));
	snprintf(f.file, sizeof(f.file), "%s/secret", f.dir);
	return f;
}

static size_t folder_entries(const struct folder *f)
{
	size_t n = 0;
	DIR *d = opendir(f->dir);
	cr_assert(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void folder_free(struct folder *f)
{
	char cmd[96];
	snprintf(cmd, sizeof(cmd), "rm -r %s", f->dir);
	cr_assert_eq(system(cmd), 0);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fchmod(fd, mode), 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void check_refused(const char *path, enum err want, const char *says)
{
	struct keyring *k = NULL;
	struct why why = { 0 };
	enum err e = keyring_load(path, &k, &why);
	cr_assert_eq(e, want, "%s: %s", err_name(e), why.text);
	cr_assert_eq(why.err, want);
	cr_assert(strstr(why.text, path), "names the file: %s", why.text);
	cr_assert(strstr(why.text, says), "says '%s': %s", says, why.text);
	cr_assert_null(strchr(why.text, '\n'));
	cr_assert_null(k);
}

Test(auth_file, new_then_load, .timeout = 5)
{
	struct folder f = folder_new();
	struct why why = { 0 };
	mode_t old = umask(0777);
	cr_assert_eq(secret_new(f.file, &why), ERR_NONE, "%s", why.text);
	umask(old);
	struct stat st;
	cr_assert_eq(stat(f.file, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600, "whatever the umask");
	cr_assert_eq(st.st_size, 65);
	cr_assert_eq(st.st_nlink, 1);
	cr_assert_eq(folder_entries(&f), 1, "no file of another name stays");

	struct keyring *k;
	cr_assert_eq(keyring_load(f.file, &k, &why), ERR_NONE, "%s", why.text);
	cr_assert(keyring_is_cluster(k));
	keyring_free(k);

	char before[66] = "", after[66] = "";
	FILE *in = fopen(f.file, "r");
	cr_assert(fgets(before, sizeof(before), in));
	fclose(in);
	cr_assert_eq(secret_new(f.file, &why), ERR_EXISTS);
	cr_assert(strstr(why.text, f.file) && strstr(why.text, "remove it first"), "%s",
		  why.text);
	in = fopen(f.file, "r");
	cr_assert(fgets(after, sizeof(after), in));
	fclose(in);
	cr_assert_str_eq(before, after);
	cr_assert_eq(folder_entries(&f), 1);
	folder_free(&f);
	NO_LEAKS();
}

Test(auth_file, two_secrets_differ, .timeout = 5)
{
	struct folder f = folder_new();
	char other[128], a[66], b[66];
	snprintf(other, sizeof(other), "%s/b", f.dir);
	struct why why = { 0 };
	cr_assert_eq(secret_new(f.file, &why), ERR_NONE);
	cr_assert_eq(secret_new(other, &why), ERR_NONE);
	FILE *in = fopen(f.file, "r");
	cr_assert(fgets(a, sizeof(a), in));
	fclose(in);
	in = fopen(other, "r");
	cr_assert(fgets(b, sizeof(b), in));
	fclose(in);
	cr_assert_str_neq(a, b);
	folder_free(&f);
}

Test(auth_file, new_where_it_cannot_be, .timeout = 5)
{
	struct why why = { 0 };
	cr_assert_eq(secret_new("/nonexistent/folder/secret", &why), ERR_NOT_FOUND);
	cr_assert(strstr(why.text, "/nonexistent/folder/secret"), "%s", why.text);
	why = (struct why){ 0 };
	char path[5000];
	memset(path, 'a', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	cr_assert_eq(secret_new(path, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "too long"));
}

Test(auth_file, modes_that_let_others_in, .timeout = 5)
{
	struct folder f = folder_new();
	for (mode_t m = 1; m <= 077; m++) {
		write_file(f.file, HEX64 "\n", 0600);
		cr_assert_eq(chmod(f.file, 0600 | m), 0);
		check_refused(f.file, ERR_FORBIDDEN, "chmod 600");
	}
	struct keyring *k;
	struct why why = { 0 };
	cr_assert_eq(chmod(f.file, 0400), 0);
	cr_assert_eq(keyring_load(f.file, &k, &why), ERR_NONE, "read-only is stricter still");
	keyring_free(k);
	folder_free(&f);
	NO_LEAKS();
}

Test(auth_file, another_owner, .timeout = 5)
{
	if (geteuid() != 0)
		cr_skip("only root can give a file away");
	struct folder f = folder_new();
	write_file(f.file, HEX64 "\n", 0600);
	cr_assert_eq(chown(f.file, 12345, 0), 0);
	check_refused(f.file, ERR_FORBIDDEN, "chown 0");
	folder_free(&f);
}

Test(auth_file, what_is_no_regular_file, .timeout = 5)
{
	struct folder f = folder_new();
	char path[128];
	check_refused(f.file, ERR_NOT_FOUND, "pomelo secret new");
	check_refused(f.dir, ERR_INVALID_PARAMS, "not a regular file");
	write_file(f.file, HEX64 "\n", 0600);
	snprintf(path, sizeof(path), "%s/link", f.dir);
	cr_assert_eq(symlink(f.file, path), 0);
	check_refused(path, ERR_FORBIDDEN, "symbolic link");
	snprintf(path, sizeof(path), "%s/fifo", f.dir);
	cr_assert_eq(mkfifo(path, 0600), 0);
	check_refused(path, ERR_INVALID_PARAMS, "not a regular file");
	check_refused("/dev/null", ERR_INVALID_PARAMS, "not a regular file");
	folder_free(&f);
}

Test(auth_file, contents, .timeout = 5)
{
	struct folder f = folder_new();
	write_file(f.file, "", 0600);
	check_refused(f.file, ERR_CORRUPT, "is empty");
	write_file(f.file, "hello\n", 0600);
	check_refused(f.file, ERR_CORRUPT, "line 1");
	char big[4100];
	memset(big, 'a', sizeof(big));
	big[sizeof(big) - 1] = '\0';
	write_file(f.file, big, 0600);
	check_refused(f.file, ERR_CORRUPT, "at most 4096");
	write_file(f.file, "pomelo-key v1 client x " HEX64 "\n", 0600);
	struct keyring *k;
	struct why why = { 0 };
	cr_assert_eq(keyring_load(f.file, &k, &why), ERR_NONE, "%s", why.text);
	cr_assert(keyring_holds(k, ROLE_CLIENT, "x"));
	cr_assert_not(keyring_is_cluster(k));
	keyring_free(k);
	folder_free(&f);
	NO_LEAKS();
}
