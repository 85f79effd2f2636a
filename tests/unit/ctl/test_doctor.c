/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_test.h"

#include "doctor.h"

#include <errno.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* The judgement of one call: its state, checked for a remedy exactly when there is one to give. */
static enum finding_state last(const struct doctor *d)
{
	cr_assert_gt(d->n, 0);
	const struct finding *f = &d->findings[d->n - 1];
	cr_expect(f->text[0]);
	cr_expect_eq(f->remedy[0] != '\0', f->state != DOCTOR_OK, "%s", f->text);
	return f->state;
}

Test(doctor, limits, .timeout = 10)
{
	static const struct {
		uint64_t memlock;
		enum finding_state locked;
		uint64_t nofile;
		enum finding_state files;
	} rows[] = {
		{ 0, DOCTOR_FAIL, 0, DOCTOR_FAIL },
		{ (64 << 10) - 1, DOCTOR_FAIL, 255, DOCTOR_FAIL },
		{ 64 << 10, DOCTOR_WARN, 256, DOCTOR_WARN },
		{ 64 * MIB - 1, DOCTOR_WARN, 4095, DOCTOR_WARN },
		{ 64 * MIB, DOCTOR_OK, 4096, DOCTOR_OK },
		{ DOCTOR_UNLIMITED, DOCTOR_OK, DOCTOR_UNLIMITED, DOCTOR_OK },
	};
	struct doctor *d = calloc(1, sizeof(*d));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		doctor_judge_memlock(d, rows[i].memlock);
		cr_expect_eq(last(d), rows[i].locked, "%zu", i);
		doctor_judge_nofile(d, rows[i].nofile);
		cr_expect_eq(last(d), rows[i].files, "%zu", i);
	}
	free(d);
	NO_LEAKS();
}

Test(doctor, shm_and_disk, .timeout = 10)
{
	struct doctor *d = calloc(1, sizeof(*d));
	doctor_judge_shm(d, false, 0, 0, 8 * GIB);
	cr_expect_eq(last(d), DOCTOR_FAIL);
	doctor_judge_shm(d, true, GIB, 63 * MIB, 128 * MIB);
	cr_expect_eq(last(d), DOCTOR_FAIL);
	doctor_judge_shm(d, true, 4 * GIB, 2 * GIB - 1, 8 * GIB);
	cr_expect_eq(last(d), DOCTOR_WARN);
	doctor_judge_shm(d, true, 4 * GIB, 2 * GIB, 8 * GIB);
	cr_expect_eq(last(d), DOCTOR_OK);
	doctor_judge_disk(d, "/d", 100 * GIB, 50 * GIB, true);
	cr_expect_eq(last(d), DOCTOR_FAIL);
	doctor_judge_disk(d, "/d", 100 * GIB, 64 * MIB - 1, false);
	cr_expect_eq(last(d), DOCTOR_FAIL);
	doctor_judge_disk(d, "/d", 100 * GIB, GIB - 1, false);
	cr_expect_eq(last(d), DOCTOR_WARN);
	doctor_judge_disk(d, "/d", 100 * GIB, GIB, false);
	cr_expect_eq(last(d), DOCTOR_OK);
	free(d);
}

Test(doctor, kernel_clock_ports_release, .timeout = 10)
{
	struct doctor *d = calloc(1, sizeof(*d));
	doctor_judge_io_uring(d, 0);
	cr_expect_eq(last(d), DOCTOR_OK);
	doctor_judge_io_uring(d, ENOSYS);
	cr_expect_eq(last(d), DOCTOR_WARN);
	doctor_judge_io_uring(d, EPERM);
	cr_expect_eq(last(d), DOCTOR_WARN);
	cr_expect(strstr(d->findings[d->n - 1].remedy, "io_uring_disabled"));
	doctor_judge_clock(d, true);
	cr_expect_eq(last(d), DOCTOR_OK);
	doctor_judge_clock(d, false);
	cr_expect_eq(last(d), DOCTOR_WARN);
	doctor_judge_port(d, "master", 17610, false);
	cr_expect_eq(last(d), DOCTOR_OK);
	doctor_judge_port(d, "master", 17610, true);
	cr_expect_eq(last(d), DOCTOR_WARN);
	cr_expect(strstr(d->findings[d->n - 1].remedy, "17610"));
	doctor_judge_release(d, "master", POMELO_VERSION);
	cr_expect_eq(last(d), DOCTOR_OK);
	doctor_judge_release(d, "master", "0.0.9");
	cr_expect_eq(last(d), DOCTOR_WARN);
	free(d);
}

Test(doctor, findings_are_bounded, .timeout = 10)
{
	struct doctor *d = calloc(1, sizeof(*d));
	for (int i = 0; i < DOCTOR_MAX + 10; i++)
		doctor_say(d, DOCTOR_OK, "x", NULL, "%0500d", i);
	cr_expect_eq(d->n, DOCTOR_MAX);
	cr_expect_eq(strlen(d->findings[0].text), sizeof(d->findings[0].text) - 1);
	free(d);
}

/* The whole command on an empty folder: each line is one of the three, the sum is right. */
Test(doctor, reports_on_this_machine, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	char words[160];
	int counts[3] = { 0 };
	scratch_init(&s);
	snprintf(words, sizeof(words), "--data %s/d doctor --json", s.path);
	ran_do(&r, cli_cmds, words);
	json_t *o = json_loads(r.out, 0, NULL), *v;
	size_t i;
	cr_assert_not_null(o, "%s", r.out);
	json_array_foreach(json_object_get(o, "checks"), i, v)
	{
		const char *state = json_string_value(json_object_get(v, "state"));
		for (int k = 0; k < 3; k++)
			counts[k] +=
				strcmp(state, doctor_state_name((enum finding_state)k)) == 0;
	}
	cr_expect_geq(i, 12);
	for (int k = 0; k < 3; k++)
		cr_expect_eq(json_integer_value(
				     json_object_get(o,
						     doctor_state_name((enum finding_state)k))),
			     counts[k]);
	cr_expect_eq(r.code, counts[DOCTOR_FAIL] ? EXIT_TYPED_ : EXIT_OK_);
	json_decref(o);
	ran_fini(&r);
	snprintf(words, sizeof(words), "--data %s/d doctor", s.path);
	ran_do(&r, cli_cmds, words);
	cr_expect(strstr(r.out, "not made yet") && strstr(r.out, "/dev/shm"), "%s", r.out);
	cr_expect_not(data_exists(&(struct where){ .path = "/nonexistent" }));
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}

/* A broken data folder and secret are failures with a remedy, exit code 1. */
Test(doctor, finds_what_is_broken, .timeout = 20)
{
	struct scratch s;
	struct ran r;
	char words[200];
	scratch_init(&s);
	scratch_write(&s, "secret", "0123\n", 0644);
	snprintf(words, sizeof(words), "--data %s/d --secret-file %s/secret doctor", s.path,
		 s.path);
	ran_do(&r, cli_cmds, words);
	cr_expect_eq(r.code, EXIT_TYPED_);
	cr_expect(strstr(r.out, "fail  ") && strstr(r.out, "chmod 600"), "%s", r.out);
	ran_fini(&r);
	scratch_fini(&s);
	NO_LEAKS();
}
