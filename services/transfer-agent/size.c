/* SPDX-License-Identifier: Apache-2.0 */
/* How large a pool is when nobody said, and on which NUMA nodes. */
#include "agent.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1ull << 20)

uint64_t xfa_default_bytes(uint64_t ram, uint64_t cgroup)
{
	uint64_t least = ram && (!cgroup || ram < cgroup) ? ram : cgroup;
	uint64_t quarter = least / 4 / MIB * MIB;
	return MAX_OF(quarter, 64 * MIB);
}

uint64_t xfa_ram_bytes(void)
{
	struct sysinfo s = { 0 };
	return sysinfo(&s) == 0 ? (uint64_t)s.totalram * s.mem_unit : 0;
}

/* One number of a small file; 0: none there, "max", or what version 1 says for no limit. */
static uint64_t number_in(const char *path)
{
	char line[64] = "";
	FILE *f = fopen(path, "re");
	if (f && !fgets(line, sizeof(line), f))
		line[0] = '\0';
	if (f)
		fclose(f);
	uint64_t v = strtoull(line, NULL, 10);
	return v >= INT64_MAX / 2 ? 0 : v;
}

static uint64_t lesser_limit(uint64_t a, uint64_t b)
{
	return a && (!b || a < b) ? a : b;
}

/* The line of /proc/self/cgroup with these controllers; the path in it. */
static bool own_group(const char *root, const char *which, char *out, size_t size)
{
	char path[PATH_BYTES_MAX], line[PATH_BYTES_MAX];
	bool found = false;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');
		colon = colon ? strchr(colon + 1, ':') : NULL;
		line[strcspn(line, "\n")] = '\0';
		found = colon && strstr(line, which) && strlen(colon + 1) < size;
		if (found)
			memcpy(out, colon + 1, strlen(colon + 1) + 1);
	}
	if (f)
		fclose(f);
	return found;
}

/* From our group up to the top: a limit above counts for us, too. In a container the path may lead
 * outside of what is mounted: then only the top is seen. */
static uint64_t limits_up(const char *root, const char *mount, const char *file, char *group)
{
	char path[PATH_BYTES_MAX * 2];
	uint64_t least = 0;
	for (;;) {
		size_t n = strlen(group);
		snprintf(path, sizeof(path), "%s%s%s%s%s", root, mount, group,
			 n && group[n - 1] == '/' ? "" : "/", file);
		least = lesser_limit(least, number_in(path));
		char *slash = strrchr(group, '/');
		if (!slash || n <= 1)
			return least;
		slash[slash == group] = '\0';
	}
}

uint64_t xfa_cgroup_bytes(const char *root)
{
	char group[2048];
	uint64_t least = 0;
	if (own_group(root, "0::", group, sizeof(group)))
		least = limits_up(root, "/sys/fs/cgroup", "memory.max", group);
	if (own_group(root, ":memory:", group, sizeof(group)))
		least = lesser_limit(least, limits_up(root, "/sys/fs/cgroup/memory",
						      "memory.limit_in_bytes", group));
	return least;
}

uint32_t xfa_numa_nodes(const char *root)
{
	char path[PATH_BYTES_MAX];
	uint32_t n = 0;
	snprintf(path, sizeof(path), "%s/sys/devices/system/node", root);
	DIR *dir = opendir(path);
	for (struct dirent *de = dir ? readdir(dir) : NULL; de; de = readdir(dir))
		n += strncmp(de->d_name, "node", 4) == 0 && de->d_name[4] >= '0' &&
		     de->d_name[4] <= '9';
	if (dir)
		closedir(dir);
	return MIN_OF(MAX_OF(n, 1u), (uint32_t)MEMPOOL_SEGMENTS_MAX);
}

void xfa_numa_prefer(uint32_t node)
{
	unsigned long mask = 1ul << node;
	static_assert(MEMPOOL_SEGMENTS_MAX <= 64, "one word of nodes");
	/* Refused (one node, a container's filter): memory comes from where the kernel likes. */
	(void)syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, sizeof(mask) * 8);
}

void xfa_numa_any(void)
{
	(void)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}
