/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine. */
#include "doctor.h"
#include "print.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>
#include <unistd.h>

static uint64_t limit_of(int what)
{
	struct rlimit r = { 0 };
	if (getrlimit(what, &r) != 0)
		return 0;
	return r.rlim_cur == RLIM_INFINITY ? DOCTOR_UNLIMITED : r.rlim_cur;
}

static void check_shm(struct doctor *d)
{
	struct statvfs v = { 0 };
	struct sysinfo s = { 0 };
	bool exists = statvfs("/dev/shm", &v) == 0 && access("/dev/shm", W_OK | X_OK) == 0;
	uint64_t ram = sysinfo(&s) == 0 ? (uint64_t)s.totalram * s.mem_unit : 0;
	doctor_judge_shm(d, exists, (uint64_t)v.f_blocks * v.f_frsize,
			 (uint64_t)v.f_bavail * v.f_frsize, ram);
}

/* A ring of one entry, closed at once. */
static void check_io_uring(struct doctor *d)
{
	unsigned char params[256] = { 0 }; /* struct io_uring_params and room */
	long fd = syscall(SYS_io_uring_setup, 1, params);
	int sys = fd < 0 ? errno : 0;
	if (fd >= 0)
		close((int)fd);
	doctor_judge_io_uring(d, sys);
}

static void check_kernel(struct doctor *d)
{
	long fd = syscall(SYS_pidfd_open, getpid(), 0);
	if (fd >= 0) {
		close((int)fd);
		doctor_say(d, DOCTOR_OK, "kernel", NULL, "kernel: pidfd available");
	} else {
		doctor_say(d, DOCTOR_FAIL, "kernel", "a kernel from 5.6 on",
			   "kernel: no pidfd (%s); the supervisor cannot watch services",
			   strerror(errno));
	}
}

static void check_huge_pages(struct doctor *d)
{
	char line[256];
	unsigned long total = 0;
	FILE *f = fopen("/proc/meminfo", "re");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "HugePages_Total:", 16) == 0)
			total = strtoul(line + 16, NULL, 10);
	if (f)
		fclose(f);
	doctor_say(d, DOCTOR_OK, "hugepages", NULL, "huge pages: %lu reserved; %s", total,
		   total ? "this release leaves them to others" : "none are needed");
}

/* Entries of a folder of /sys, without the dots; their names, cut. */
static size_t entries(const char *path, char *names, size_t size)
{
	size_t n = 0;
	DIR *dir = opendir(path);
	names[0] = '\0';
	for (struct dirent *de = dir ? readdir(dir) : NULL; de; de = readdir(dir)) {
		size_t at = strlen(names);
		if (de->d_name[0] == '.')
			continue;
		snprintf(names + at, size - at, "%s%.32s", n ? " " : "", de->d_name);
		n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

static void check_devices(struct doctor *d)
{
	char names[128];
	if (entries("/sys/class/infiniband", names, sizeof(names)) > 0)
		doctor_say(d, DOCTOR_OK, "rdma", NULL, "rdma: %s", names);
	else
		doctor_say(d, DOCTOR_OK, "rdma", NULL,
			   "rdma: no device; shared memory and tcp are used");
	bool module = access("/proc/driver/nvidia", F_OK) == 0;
	bool device = access("/dev/nvidiactl", R_OK | W_OK) == 0;
	if (module && !device)
		doctor_say(d, DOCTOR_WARN, "gpu",
			   "nvidia-modprobe, or pass /dev/nvidia* to the container",
			   "gpu: the module is loaded, /dev/nvidiactl cannot be opened");
	else
		doctor_say(d, DOCTOR_OK, "gpu", NULL,
			   module ? "gpu: driver loaded"
				  : "gpu: none; the processor does the work");
}

static void check_clock(struct doctor *d)
{
	struct timex t = { 0 };
	int r = adjtimex(&t);
	doctor_judge_clock(d, r >= 0 && r != TIME_ERROR && !(t.status & STA_UNSYNC));
}

void doctor_host(struct doctor *d)
{
	doctor_judge_memlock(d, limit_of(RLIMIT_MEMLOCK));
	doctor_judge_nofile(d, limit_of(RLIMIT_NOFILE));
	check_kernel(d);
	check_shm(d);
	check_huge_pages(d);
	check_io_uring(d);
	check_devices(d);
	check_clock(d);
}
