/* SPDX-License-Identifier: Apache-2.0 */
/* The judgements of `pomelo doctor`, and its report. */
#include "doctor.h"
#include "print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

const char *doctor_state_name(enum finding_state s)
{
	static const char *const names[] = { "ok", "warn", "fail" };
	return names[s];
}

void doctor_say(struct doctor *d, enum finding_state s, const char *check, const char *remedy,
		const char *fmt, ...)
{
	if (d->n == DOCTOR_MAX)
		return;
	struct finding *f = &d->findings[d->n++];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	snprintf(f->remedy, sizeof(f->remedy), "%s", remedy ? remedy : "");
	f->state = s;
	f->check = check;
}

/* ---- judging ---- */

void doctor_judge_memlock(struct doctor *d, uint64_t bytes)
{
	static const char remedy[] =
		"`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit";
	char size[32];
	print_bytes(size, sizeof(size), bytes);
	if (bytes == DOCTOR_UNLIMITED)
		doctor_say(d, DOCTOR_OK, "memlock", NULL, "locked memory: unlimited");
	else if (bytes < 64 << 10)
		doctor_say(
			d, DOCTOR_FAIL, "memlock", remedy,
			"locked memory: %s; secrets are kept in locked memory and need 64 KiB",
			size);
	else if (bytes < 64 * MIB)
		doctor_say(
			d, DOCTOR_WARN, "memlock", remedy,
			"locked memory: %s; enough for secrets, too little to register buffers",
			size);
	else
		doctor_say(d, DOCTOR_OK, "memlock", NULL, "locked memory: %s", size);
}

void doctor_judge_nofile(struct doctor *d, uint64_t n)
{
	static const char remedy[] = "`ulimit -n 65536`, or LimitNOFILE=65536 in the unit";
	if (n < 256)
		doctor_say(d, DOCTOR_FAIL, "nofile", remedy,
			   "open files: %" PRIu64 "; a service needs 256 to run at all", n);
	else if (n < 4096)
		doctor_say(d, DOCTOR_WARN, "nofile", remedy,
			   "open files: %" PRIu64
			   "; connections of a service are limited by it",
			   n);
	else
		doctor_say(d, DOCTOR_OK, "nofile", NULL, "open files: %" PRIu64, n);
}

void doctor_judge_shm(struct doctor *d, bool exists, uint64_t total, uint64_t left,
		      uint64_t ram)
{
	char a[32], b[32], c[32];
	print_bytes(a, sizeof(a), left);
	print_bytes(b, sizeof(b), total);
	print_bytes(c, sizeof(c), ram / 4);
	if (!exists)
		doctor_say(d, DOCTOR_FAIL, "shm", "mount -t tmpfs tmpfs /dev/shm",
			   "/dev/shm: not there or not writable; the memory pool lies in it");
	else if (left < 64 * MIB)
		doctor_say(d, DOCTOR_FAIL, "shm",
			   "remove files from /dev/shm, or remount it larger",
			   "/dev/shm: %s of %s free; a pool needs 64 MiB", a, b);
	else if (left < ram / 4)
		doctor_say(
			d, DOCTOR_WARN, "shm",
			"`mount -o remount,size=50% /dev/shm`, or a smaller `up --pool SIZE`",
			"/dev/shm: %s of %s free, less than the default pool (%s)", a, b, c);
	else
		doctor_say(d, DOCTOR_OK, "shm", NULL, "/dev/shm: %s of %s free", a, b);
}

void doctor_judge_io_uring(struct doctor *d, int sys)
{
	if (sys == 0)
		doctor_say(d, DOCTOR_OK, "io_uring", NULL, "io_uring: available");
	else
		doctor_say(d, DOCTOR_WARN, "io_uring",
			   sys == EPERM
				   ? "`sysctl kernel.io_uring_disabled=0`; allow it in the "
				     "container's seccomp profile"
				   : "a kernel from 5.6 on with CONFIG_IO_URING",
			   "io_uring: %s; files are written by worker threads instead",
			   strerror(sys));
}

void doctor_judge_disk(struct doctor *d, const char *path, uint64_t total, uint64_t left,
		       bool read_only)
{
	static const char remedy[] = "free space, or another --data DIR";
	char a[32], b[32];
	print_bytes(a, sizeof(a), left);
	print_bytes(b, sizeof(b), total);
	if (read_only)
		doctor_say(d, DOCTOR_FAIL, "disk",
			   "remount it read-write, or another --data DIR",
			   "%.120s: on a read-only file system", path);
	else if (left < 64 * MIB)
		doctor_say(d, DOCTOR_FAIL, "disk", remedy,
			   "%.120s: %s of %s free; 64 MiB are needed", path, a, b);
	else if (left < GIB)
		doctor_say(d, DOCTOR_WARN, "disk", remedy, "%.120s: only %s of %s free", path,
			   a, b);
	else
		doctor_say(d, DOCTOR_OK, "disk", NULL, "%.120s: %s of %s free", path, a, b);
}

void doctor_judge_clock(struct doctor *d, bool synchronised)
{
	if (synchronised)
		doctor_say(d, DOCTOR_OK, "clock", NULL, "clock: synchronised");
	else
		doctor_say(
			d, DOCTOR_WARN, "clock", "run chrony or systemd-timesyncd",
			"clock: not synchronised; leases do not care, logs of several boxes will "
			"not line up");
}

void doctor_judge_port(struct doctor *d, const char *what, unsigned port, bool taken)
{
	char remedy[96];
	snprintf(remedy, sizeof(remedy), "stop what listens there (`ss -ltnp sport = :%u`)",
		 port);
	if (taken)
		doctor_say(
			d, DOCTOR_WARN, "ports", remedy,
			"127.0.0.1:%u of %s: taken; another free one is used, see `pomelo status`",
			port, what);
	else
		doctor_say(d, DOCTOR_OK, "ports", NULL, "127.0.0.1:%u of %s: free", port, what);
}

void doctor_judge_release(struct doctor *d, const char *service, const char *release)
{
	if (strcmp(release, POMELO_VERSION) == 0)
		doctor_say(d, DOCTOR_OK, "release", NULL, "%s: release %s", service, release);
	else
		doctor_say(d, DOCTOR_WARN, "release",
			   "`pomelo down` and `pomelo up` after an upgrade",
			   "%s: release %.40s, this command is %s", service, release,
			   POMELO_VERSION);
}

/* ---- the report ---- */

static void report_json(const struct doctor *d, const size_t *counts)
{
	struct buf b = BUF_INIT(256 << 10);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_key(&j, "checks");
	json_arr(&j);
	for (size_t i = 0; i < d->n; i++) {
		const struct finding *f = &d->findings[i];
		json_obj(&j);
		json_kv_str(&j, "check", f->check);
		json_kv_str(&j, "state", doctor_state_name(f->state));
		json_kv_str(&j, "text", f->text);
		json_kv_str(&j, "remedy", f->remedy);
		json_end(&j);
	}
	json_end(&j);
	for (size_t i = 0; i < 3; i++)
		json_kv_u64(&j, doctor_state_name((enum finding_state)i), counts[i]);
	json_end(&j);
	print_json(d->c, &b);
}

static void report(const struct doctor *d, const size_t *counts)
{
	char text[sizeof(d->findings[0].text)];
	FILE *to = d->c->out;
	for (size_t i = 0; i < d->n; i++) {
		const struct finding *f = &d->findings[i];
		fprintf(to, "%-4s  %s\n", doctor_state_name(f->state),
			print_clean(text, sizeof(text), f->text));
		if (f->remedy[0])
			fprintf(to, "      remedy: %s\n", f->remedy);
	}
	fprintf(to, "%zu ok, %zu warn, %zu fail\n", counts[DOCTOR_OK], counts[DOCTOR_WARN],
		counts[DOCTOR_FAIL]);
}

int cmd_doctor(struct cli *c)
{
	struct doctor *d = calloc(1, sizeof(*d));
	size_t counts[3] = { 0 };
	if (!d)
		return cli_fail(c, ERR_NO_MEMORY, "no memory");
	d->c = c;
	enum err e = ctl_dirs(c, &d->dir);
	if (e == ERR_NONE) {
		doctor_host(d);
		doctor_cluster(d);
		for (size_t i = 0; i < d->n; i++)
			counts[d->findings[i].state]++;
		if (c->json)
			report_json(d, counts);
		else
			report(d, counts);
	}
	free(d);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	return counts[DOCTOR_FAIL] > 0 ? EXIT_TYPED_ : EXIT_OK_;
}
