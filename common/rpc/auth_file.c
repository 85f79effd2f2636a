/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* 16 role lines of at most 157 bytes are 2,512. */
#define SECRET_FILE_MAX 4096

/* Checked on the open file, so that nothing can be swapped between check and read. */
static enum err check_file(int fd, const char *path, struct why *why)
{
	struct stat st;
	if (fstat(fd, &st))
		return why_set(why, err_from_errno(errno), "cannot stat secret file %s: %s",
			       path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return why_set(why, ERR_INVALID_PARAMS,
			       "secret file %s is not a regular file; name the file itself",
			       path);
	if (st.st_uid != geteuid())
		return why_set(why, ERR_FORBIDDEN,
			       "secret file %s belongs to uid %u, this process runs as uid %u: "
			       "chown %u %s",
			       path, st.st_uid, geteuid(), geteuid(), path);
	if (st.st_mode & 077)
		return why_set(
			why, ERR_FORBIDDEN,
			"secret file %s has mode %04o, others could read it: chmod 600 %s",
			path, st.st_mode & 07777, path);
	if (st.st_size > SECRET_FILE_MAX)
		return why_set(why, ERR_CORRUPT,
			       "secret file %s has %" PRId64 " bytes, at most %d are allowed",
			       path, (int64_t)st.st_size, SECRET_FILE_MAX);
	return ERR_NONE;
}

static enum err open_secret(const char *path, int *out, struct why *why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd >= 0) {
		*out = fd;
		return ERR_NONE;
	}
	if (errno == ELOOP)
		return why_set(why, ERR_FORBIDDEN,
			       "secret file %s is a symbolic link; name the file itself", path);
	if (errno == ENOENT)
		return why_set(
			why, ERR_NOT_FOUND,
			"secret file %s does not exist; make one with 'pomelo secret new' or "
			"name it with --secret-file",
			path);
	return why_set(why, err_from_errno(errno), "cannot open secret file %s: %s", path,
		       strerror(errno));
}

static ssize_t read_all(int fd, uint8_t *p, size_t n)
{
	size_t got = 0;
	while (got < n) {
		ssize_t r = read(fd, p + got, n - got);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -1;
		if (r == 0)
			break;
		got += (size_t)r;
	}
	return (ssize_t)got;
}

enum err keyring_load(const char *path, struct keyring **out, struct why *why)
{
	int fd = -1;
	enum err e = open_secret(path, &fd, why);
	if (e != ERR_NONE)
		return e;
	uint8_t text[SECRET_FILE_MAX + 1];
	ssize_t n = 0;
	e = check_file(fd, path, why);
	if (e == ERR_NONE && (n = read_all(fd, text, sizeof(text))) < 0)
		e = why_set(why, ERR_IO, "cannot read secret file %s: %s", path,
			    strerror(errno));
	if (e == ERR_NONE && n > SECRET_FILE_MAX)
		e = why_set(why, ERR_CORRUPT, "secret file %s grew while it was read", path);
	if (e == ERR_NONE) {
		char name[PATH_MAX + 16];
		snprintf(name, sizeof(name), "secret file %s", path);
		e = keyring_parse(name, BYTES(text, (size_t)n), out, why);
	}
	explicit_bzero(text, sizeof(text));
	close(fd);
	return e;
}

static bool write_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t w = write(fd, p, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return false;
		p += w;
		n -= (size_t)w;
	}
	return true;
}

/* 64 hex digits and a newline. */
static bool random_line(char out[2 * AUTH_KEY_BYTES + 2])
{
	uint8_t key[AUTH_KEY_BYTES];
	if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
		return false;
	for (size_t i = 0; i < sizeof(key); i++)
		snprintf(out + 2 * i, 3, "%02x", key[i]);
	memcpy(out + 2 * sizeof(key), "\n", 2);
	explicit_bzero(key, sizeof(key));
	return true;
}

static enum err write_secret(const char *tmp)
{
	int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_from_errno(errno);
	char line[2 * AUTH_KEY_BYTES + 2];
	errno = 0;
	/* fchmod: the umask may have taken the owner's own bits. */
	bool ok = !fchmod(fd, 0600) && random_line(line) && write_all(fd, line, strlen(line)) &&
		  !fsync(fd);
	enum err e = ok ? ERR_NONE : err_from_errno(errno);
	explicit_bzero(line, sizeof(line));
	if (close(fd) && e == ERR_NONE)
		e = err_from_errno(errno);
	return e;
}

/* The name is durable once its folder is. */
static enum err sync_parent(const char *path)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(path, '/');
	if (!slash)
		snprintf(dir, sizeof(dir), ".");
	else
		snprintf(dir, sizeof(dir), "%.*s", (int)MAX_OF(slash - path, 1), path);
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_from_errno(errno);
	enum err e = fsync(fd) ? err_from_errno(errno) : ERR_NONE;
	close(fd);
	return e;
}

enum err secret_new(const char *path, struct why *why)
{
	uint32_t salt;
	if (getrandom(&salt, sizeof(salt), 0) != (ssize_t)sizeof(salt))
		return why_set(why, ERR_IO, "the kernel gives no random bytes: %s",
			       strerror(errno));
	char tmp[PATH_MAX];
	int n = snprintf(tmp, sizeof(tmp), "%s.new-%08x", path, salt);
	if (n < 0 || (size_t)n >= sizeof(tmp))
		return why_set(why, ERR_INVALID_PARAMS,
			       "the path of the secret file is too long");
	enum err e = write_secret(tmp);
	/* link, not rename: it never replaces a secret that is there. */
	if (e == ERR_NONE && link(tmp, path))
		e = err_from_errno(errno);
	(void)unlink(tmp);
	if (e == ERR_NONE)
		e = sync_parent(path);
	if (e == ERR_EXISTS)
		return why_set(
			why, e,
			"secret file %s is there already; a new one would lock out everybody who "
			"has it; remove it first if you mean that",
			path);
	if (e != ERR_NONE)
		return why_set(why, e, "cannot make secret file %s: %s", path, err_text(e));
	return ERR_NONE;
}
