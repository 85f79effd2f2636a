/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that rots while its agent is away (spec/store.md, Pool: verified in the background and on first
 * read), over real processes.
 */
#include "cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/slot.h"
#include "../support/leak.h"

TestSuite(rot, .timeout = 120);

enum { N = 32, BYTES_EACH = 4 << 20, SLOTS = 8000, BAD_N = 4 };

static uint8_t v[BYTES_EACH], want[BYTES_EACH];

static size_t key_of(unsigned i, char out[16])
{
	return (size_t)snprintf(out, 16, "rot/%u", i);
}

static void put_all(const struct world *w)
{
	struct pml_error err = PML_ERROR_INIT;
	char key[16];
	for (unsigned i = 0; i < N; i++) {
		size_t n = key_of(i, key);
		cs_fill(v, sizeof(v), i);
		cr_assert_eq(pml_put(w->p, key, n, v, sizeof(v), NULL, &err), 0, "%s",
			     err.text);
	}
}

/* One bit of the payload of each of the last BAD_N slots, which the background comes to last. */
static void flip_bits(const struct world *w)
{
	struct slot *slots = cs_pool_map(w, "dir", SLOTS * SLOT_BYTES);
	uint8_t *data = cs_pool_map(w, "data.0", 256 << 20);
	unsigned used = 0;
	while (slot_state(slots[used].state) == SLOT_COMMITTED)
		used++;
	cr_assert_eq(used, N);
	for (unsigned i = 0; i < BAD_N; i++) {
		struct slot_body b;
		cr_assert_eq(slot_body(&slots[N - 1 - i], NULL, 0, &b), ERR_NONE);
		data[b.extents[0].offset + i * 1000003] ^= (uint8_t)(1 << i);
	}
	munmap(slots, SLOTS * SLOT_BYTES);
	munmap(data, 256 << 20);
}

/* The code of a get; what comes back is right. */
static int get_one(struct pml *p, unsigned i)
{
	struct pml_error err = PML_ERROR_INIT;
	char key[16];
	size_t n = key_of(i, key), got = 0;
	int code = pml_get(p, key, n, v, sizeof(v), &got, NULL, &err);
	cs_fill(want, sizeof(want), i);
	if (code == 0)
		cr_expect(got == sizeof(v) && memcmp(v, want, got) == 0, "%s: wrong bytes",
			  key);
	if (code == PML_ERR_CORRUPT)
		cr_expect(strstr(err.text, "checksum"), "%s", err.text);
	return code;
}

Test(rot, a_flipped_bit_is_never_returned)
{
	struct world w;
	unsigned by_readers = 0;
	cs_up(&w, "agent.pool_size=256MiB", "agent.slots=8000");
	w.aargs[6] = "--set=agent.workers=1";
	put_all(&w);
	cs_kill_it(&w.agent);
	flip_bits(&w);
	proc_run(&w.box, daemon_row("agent"), w.aargs, &w.agent);
	/* has nothing mapped: the old handle may still read what the agent has not found yet */
	struct pml *fresh = cs_client(&w);
	for (unsigned i = N; i-- > 0;) {
		int code = get_one(fresh, i);
		bool bad = i >= N - BAD_N;
		by_readers += code == PML_ERR_CORRUPT;
		cr_expect(bad ? code == PML_ERR_CORRUPT || code == PML_ERR_NOT_FOUND
			      : code == 0,
			  "%u: %s", i, pml_error_name(code));
	}
	cr_log_info("%u of %d found by their readers", by_readers, BAD_N);
	/* the background retires them, and counts */
	cr_expect(cs_metric_until(&w.agent, "pomelo_agent_unverified", 0, 10000));
	cr_expect_eq(cs_metric_of(&w.agent, "pomelo_agent_corrupt_total"), BAD_N);
	for (unsigned t = 0; t < 500 && cs_objects(&w) != N - BAD_N; t++)
		usleep(10000);
	for (unsigned i = 0; i < N; i++)
		cr_expect_eq(get_one(w.p, i), i < N - BAD_N ? 0 : PML_ERR_NOT_FOUND);
	pml_close(fresh);
	cs_down(&w);
	NO_LEAKS();
}
