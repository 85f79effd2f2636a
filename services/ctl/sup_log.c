/* SPDX-License-Identifier: Apache-2.0 */
#include "sup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG_FILES = 4 };

enum err suplog_open(const char *log_dir, const char *name, int *fd, struct why *why)
{
	char path[PATH_BYTES_MAX], file[64];
	snprintf(file, sizeof(file), "%s.log", name);
	enum err e = path_join(path, log_dir, file, why);
	if (e == ERR_NONE)
		e = path_open(path, O_WRONLY | O_APPEND | O_CREAT, 0600, fd, why);
	return e;
}

bool suplog_rotate(const char *log_dir, const char *name, uint64_t max)
{
	char from[PATH_BYTES_MAX], to[PATH_BYTES_MAX];
	struct stat st;
	if (snprintf(from, sizeof(from), "%s/%s.log", log_dir, name) >= (int)sizeof(from) - 8)
		return false;
	if (lstat(from, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size <= max)
		return false;
	for (int i = LOG_FILES - 1; i > 0; i--) {
		snprintf(to, sizeof(to), "%s/%s.log.%d", log_dir, name, i);
		if (i > 1)
			snprintf(from, sizeof(from), "%s/%s.log.%d", log_dir, name, i - 1);
		else
			snprintf(from, sizeof(from), "%s/%s.log", log_dir, name);
		if (rename(from, to) != 0 && i == 1)
			return false;
	}
	return true;
}

bool suplog_catches_hup(pid_t pid)
{
	char path[64], line[256];
	unsigned long long mask = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "SigCgt:", 7) == 0)
			mask = strtoull(line + 7, NULL, 16);
	if (f)
		fclose(f);
	return mask & (1ull << (SIGHUP - 1));
}
