/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo doctor`: what this machine lacks for Pomelo, each with its remedy. A check reads a fact
 * (doctor_host.c, doctor_cluster.c) and judges it (the doctor_judge_* functions, pure).
 *
 *   ok    nothing to do
 *   warn  it works, with the loss that the text names
 *   fail  it does not work; exit code 1
 *
 * Thread: the main one.
 */
#pragma once

#include "ctl.h"

enum { DOCTOR_MAX = 64 };

enum finding_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct finding {
	enum finding_state state;
	const char *check; /* "memlock" */
	char text[224];
	char remedy[160]; /* "" with ok */
};

struct doctor {
	struct cli *c;
	struct where dir;
	bool runs; /* a service of this data folder does */
	size_t n;
	struct finding findings[DOCTOR_MAX]; /* more are dropped */
};

const char *doctor_state_name(enum finding_state s);
/* Adds one; remedy NULL with ok. */
void doctor_say(struct doctor *d, enum finding_state s, const char *check, const char *remedy,
		const char *fmt, ...) PRINTF_LIKE(5, 6);

/* ---- judging: pure ---- */

#define DOCTOR_UNLIMITED UINT64_MAX

void doctor_judge_memlock(struct doctor *d, uint64_t bytes);
void doctor_judge_nofile(struct doctor *d, uint64_t n);
/* shm: total and free bytes of /dev/shm; ram: of the machine; exists: it is there and ours to use. */
void doctor_judge_shm(struct doctor *d, bool exists, uint64_t total, uint64_t left,
		      uint64_t ram);
/* sys: 0, or the errno of io_uring_setup */
void doctor_judge_io_uring(struct doctor *d, int sys);
void doctor_judge_disk(struct doctor *d, const char *path, uint64_t total, uint64_t left,
		       bool read_only);
void doctor_judge_clock(struct doctor *d, bool synchronised);
/* taken: by somebody who is not of this cluster */
void doctor_judge_port(struct doctor *d, const char *what, unsigned port, bool taken);
void doctor_judge_release(struct doctor *d, const char *service, const char *release);

/* ---- checks ---- */

void doctor_host(struct doctor *d); /* limits, memory, kernel, devices, clock */
void doctor_cluster(
	struct doctor *d); /* data folder, secret, disk, ports, services, releases */
