/* SPDX-License-Identifier: Apache-2.0 */
#include "bin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef POMELO_LIBEXEC
#define POMELO_LIBEXEC "/usr/local/libexec/pomelo"
#endif

enum err bin_self(char *out, struct why *why)
{
	ssize_t n = readlink("/proc/self/exe", out, PATH_BYTES_MAX - 1);
	if (n < 0 || n >= PATH_BYTES_MAX - 1)
		return why_set(why, ERR_IO, "/proc/self/exe: %s; is /proc mounted?",
			       strerror(errno));
	out[n] = '\0';
	return ERR_NONE;
}

static bool runnable(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* dir/exe into out when it can be run. */
static bool try(const char *dir, const char *exe, char *out)
{
	char path[PATH_BYTES_MAX];
	if (path_join(path, dir, exe, NULL) != ERR_NONE || !runnable(path))
		return false;
	memcpy(out, path, sizeof(path));
	return true;
}

enum err bin_find(const struct service_row *row, const char *self, const char *bindir,
		  char *out, struct why *why)
{
	char beside[PATH_BYTES_MAX], tree[PATH_BYTES_MAX + 64];
	if (bindir && try(bindir, row->exe, out))
		return ERR_NONE;
	if (bindir)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"%s: not an executable in POMELO_BINDIR=%.160s; correct or unset it",
			row->exe, bindir);
	snprintf(beside, sizeof(beside), "%s", self);
	char *slash = strrchr(beside, '/');
	if (slash)
		*slash = '\0';
	snprintf(tree, sizeof(tree), "%s/../%s", beside, row->folder);
	if (try(beside, row->exe, out) || try(tree, row->exe, out) ||
	    try(POMELO_LIBEXEC, row->exe, out))
		return ERR_NONE;
	return why_set(why, ERR_INVALID_PARAMS,
		       "%s: not found in %.80s, %.80s nor %s; set POMELO_BINDIR to its folder",
		       row->exe, beside, tree, POMELO_LIBEXEC);
}
