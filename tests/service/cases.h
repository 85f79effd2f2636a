/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master and one agent or two as real processes, and objects whose bytes are known from their number,
 * for the cases from the field. Failures fail the Criterion test. Thread: the test's, but cs_client,
 * cs_fill: any.
 */
#pragma once

#include "daemons.h"
#include "pml_store.h"

enum { VALUE_MAX = 4096 };

struct world {
	struct box box, far; /* far: the second agent's folder */
	struct proc master, agent, second;
	const char *margs[16], *aargs[16];
	char listen[64], masters[64];
	struct pml *p;
};

/* The folder and arguments: leases of 0.5 s, at most 1 s; a put without progress ends after 1 s. */
void cs_prepare(struct world *w, const char *pool, const char *slots);
/* Master and agent, until both are ready. */
void cs_start_all(struct world *w);
/* Both, and a client. */
void cs_up(struct world *w, const char *pool, const char *slots);
void cs_down(struct world *w);
/* SIGKILL, and waits for its end. */
void cs_kill_it(struct proc *p);
void cs_ready(const struct proc *p);
struct pml *cs_client(const struct world *w);

double cs_metric_of(const struct proc *p, const char *name);
bool cs_metric_until(const struct proc *p, const char *name, double want, int ms);
uint64_t cs_now_ms(void);
/* In the master's index. */
uint64_t cs_objects(const struct world *w);

/* The first bytes of a file of the agent's pool, to be read and changed; munmap. */
void *cs_pool_map(const struct world *w, const char *name, size_t bytes);

/* The bytes of object i. */
void cs_fill(uint8_t *p, size_t n, unsigned i);
/* FAMILY/0 to FAMILY/n-1, of 0 to VALUE_MAX bytes. */
void cs_put_many(const struct world *w, const char *family, unsigned n);

struct found {
	unsigned good, absent, wrong, failed;
	char why[160]; /* of the last that failed */
};
/* The same, each read whole. */
struct found cs_get_many(const struct world *w, const char *family, unsigned n);

#define ALL_GOOD(w, family, n)                                                               \
	do {                                                                                 \
		struct found f_ = cs_get_many(w, family, n);                                 \
		cr_expect_eq(f_.good, (n), "%s: %u good, %u absent, %u wrong, %u failed %s", \
			     family, f_.good, f_.absent, f_.wrong, f_.failed, f_.why);       \
	} while (0)
