/* SPDX-License-Identifier: Apache-2.0 */
/* How large a pool is when nobody said: read from a made-up /proc and /sys. */
#include "services/transfer-agent/agent.h"
#include "tests/support/leak.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)

static char root[64];

static void make_root(void)
{
	strcpy(root, "/tmp/pml_sizeXXXXXX");
	cr_assert(mkdtemp(root));
}

/* A file below root, its folders made. */
static void put_file(const char *path, const char *text)
{
	char full[512];
	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(full, 0700);
		*p = '/';
	}
	FILE *f = fopen(full, "w");
	cr_assert(f, "%s", full);
	fputs(text, f);
	fclose(f);
}

static void drop_root(void)
{
	char cmd[128];
	snprintf(cmd, sizeof(cmd), "rm -rf %s", root);
	cr_assert_eq(system(cmd), 0);
}

Test(size, a_quarter_of_the_lesser, .timeout = 10)
{
	cr_assert_eq(xfa_default_bytes(8192 * MIB, 0), 2048 * MIB);
	cr_assert_eq(xfa_default_bytes(8192 * MIB, 1024 * MIB), 256 * MIB);
	cr_assert_eq(xfa_default_bytes(1024 * MIB, 8192 * MIB), 256 * MIB);
	cr_assert_eq(xfa_default_bytes(0, 2048 * MIB), 512 * MIB);
	cr_assert_eq(xfa_default_bytes(1000 * MIB + 4095, 0), 250 * MIB, "whole MiB");
	cr_assert_eq(xfa_default_bytes(0, 0), 64 * MIB);
	cr_assert_eq(xfa_default_bytes(100 * MIB, 0), 64 * MIB);
	cr_assert_gt(xfa_ram_bytes(), 64 * MIB);
	NO_LEAKS();
}

Test(size, version_2_counts_every_level, .timeout = 10)
{
	make_root();
	put_file("/proc/self/cgroup", "0::/a.slice/b.service\n");
	put_file("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
	put_file("/sys/fs/cgroup/a.slice/memory.max", "1073741824\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 1024 * MIB, "the limit is above us");
	put_file("/sys/fs/cgroup/a.slice/b.service/memory.max", "536870912\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 512 * MIB);
	put_file("/proc/self/cgroup", "0::/\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 0, "the top has none");
	put_file("/sys/fs/cgroup/memory.max", "268435456\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 256 * MIB, "as a container sees its own");
	put_file("/proc/self/cgroup", "0::/not/mounted/here\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 256 * MIB);
	drop_root();
	NO_LEAKS();
}

Test(size, version_1_and_none, .timeout = 10)
{
	make_root();
	cr_assert_eq(xfa_cgroup_bytes(root), 0);
	put_file("/proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/y\n");
	put_file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 0, "what version 1 says for no limit");
	put_file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "134217728\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 128 * MIB);
	put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "rubbish\n");
	cr_assert_eq(xfa_cgroup_bytes(root), 128 * MIB);
	drop_root();
	NO_LEAKS();
}

Test(size, numa_nodes_are_counted, .timeout = 10)
{
	make_root();
	cr_assert_eq(xfa_numa_nodes(root), 1, "none to be seen: one");
	put_file("/sys/devices/system/node/node0/x", "");
	put_file("/sys/devices/system/node/node1/x", "");
	put_file("/sys/devices/system/node/nodes_are_more/x", "");
	put_file("/sys/devices/system/node/power/x", "");
	cr_assert_eq(xfa_numa_nodes(root), 2);
	drop_root();
	xfa_numa_prefer(0);
	void *p = malloc(1 << 20);
	memset(p, 1, 1 << 20);
	free(p);
	xfa_numa_any();
	NO_LEAKS();
}
