/* SPDX-License-Identifier: Apache-2.0 */
/* A client and an agent on one lane: gets, puts, refusals, fences, in pieces of every size. */
#include "lane_fix.h"

#include "base/sum.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/leak.h"

TestSuite(lane, .timeout = 30);

#define MiB (1u << 20)

Test(lane, hello_makes_a_peer_of_both)
{
	struct fix f;
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	cr_expect_eq(f.cli.state, CLI_READY);
	cr_expect_eq(f.srv.peer.role, ROLE_CLIENT);
	cr_expect_str_eq(f.srv.peer.tenant, "blue");
	cr_expect(!f.cli.pipe.mac_data);
	fix_fini(&f);
	NO_LEAKS();
}

static void check_get(struct fix *f)
{
	struct xf_range r = { 0, f->size };
	cr_assert_eq(fix_get(f, &r, 1, false), ERR_NONE, "%s", f->cli.pipe.why.text);
	cr_assert_eq(f->n_got, f->size);
	for (size_t i = 0; i < f->size; i++)
		cr_assert_eq(f->got[i], *fix_at(f, i), "byte %zu", i);
}

static const size_t sizes[] = { 2, 100, MiB - 1, MiB, MiB + 2, 2 * MiB + 17, 3 * MiB };

Test(lane, whole_gets_of_every_size_and_shape)
{
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (uint32_t ext = 1; ext <= 16; ext += 5) {
			struct fix f;
			fix_init(&f, sizes[i], sizes[i] < 16 ? 1 : ext, ext == 6);
			fix_connect(&f, "blue", false);
			f.piece = ext == 11 ? 70000 : 0;
			check_get(&f);
			cr_expect_str_eq(f.ticket, "read ticket");
			cr_expect_eq(f.n_end, 1);
			cr_expect_eq(f.n_whole, 1);
			check_get(&f); /* the lane goes on */
			fix_fini(&f);
		}
	NO_LEAKS();
}

Test(lane, in_single_bytes)
{
	struct fix f;
	fix_init(&f, 300, 3, true);
	f.piece = 1;
	fix_connect(&f, "blue", false);
	check_get(&f);
	fix_fini(&f);
	NO_LEAKS();
}

/* A whole block carries the sum that was stored with it: the agent hashes nothing. */
Test(lane, frames_are_blocks_with_their_stored_sums)
{
	struct fix f;
	fix_init(&f, 2 * MiB + 100, 2, false);
	fix_connect(&f, "blue", false);
	check_get(&f);
	cr_assert_eq(f.n_frames, 3);
	for (size_t i = 0; i < 3; i++)
		cr_expect_eq(f.offsets[i], i * MiB);
	*fix_at(&f, MiB + 5) ^= 1; /* memory went bad: the reader sees it */
	struct xf_range r = { 0, f.size };
	cr_expect_eq(fix_get(&f, &r, 1, false), ERR_CORRUPT);
	fix_fini(&f);
	NO_LEAKS();
}

Test(lane, ranges_in_their_order)
{
	struct fix f;
	struct xf_range r[] = { { 5, 7 }, { MiB - 3, 10 }, { 0, 2 }, { 2 * MiB, 40 } };
	size_t at = 0;
	fix_init(&f, 2 * MiB + 100, 5, false);
	fix_connect(&f, "blue", false);
	for (int check = 0; check < 2; check++) {
		cr_assert_eq(fix_get(&f, r, ARRAY_LEN(r), check), ERR_NONE);
		at = 0;
		for (size_t i = 0; i < ARRAY_LEN(r); i++)
			for (size_t k = 0; k < r[i].bytes; k++)
				cr_assert_eq(f.got[at++], *fix_at(&f, r[i].offset + k));
		cr_expect_eq(f.n_got, at);
		/* the blocks of parts, once for as many as follow each other there; charged once */
		cr_expect_eq(lane_srv_hashed(&f.srv), check ? 3 * MiB + 100 : 0);
		cr_expect_eq(lane_srv_hashed(&f.srv), 0);
	}
	struct xf_range near[] = { { 5, 7 }, { 900, 10 }, { 77, 2 }, { MiB - 40, 40 } };
	cr_assert_eq(fix_get(&f, near, ARRAY_LEN(near), true), ERR_NONE);
	cr_expect_eq(lane_srv_hashed(&f.srv), MiB);
	fix_fini(&f);
	NO_LEAKS();
}

/* With XF_CHECK a part of a block that went bad does not leave the agent. */
Test(lane, a_part_of_a_bad_block)
{
	struct fix f;
	struct xf_range r = { MiB + 10, 20 };
	for (int small = 0; small < 2; small++) {
		fix_init(&f, small ? 1000 : 2 * MiB, 2, false);
		r.offset = small ? 10 : MiB + 10;
		fix_connect(&f, "blue", false);
		*fix_at(&f, f.size - 1) ^= 1;
		cr_expect_eq(fix_get(&f, &r, 1, false), ERR_NONE, "nobody asked");
		cr_expect_eq(fix_get(&f, &r, 1, true), ERR_CORRUPT);
		cr_expect_eq(f.n_got, 0);
		cr_expect_eq(f.n_corrupt, 1);
		r.offset = 0;
		cr_expect_eq(fix_get(&f, &r, 1, !small), ERR_NONE, "another block");
		fix_fini(&f);
	}
	NO_LEAKS();
}

Test(lane, ranges_outside_are_refused_and_the_lane_goes_on)
{
	struct fix f;
	const struct xf_range bad[] = { { 0, 1001 }, { 1000, 1 }, { 0, 0 }, { UINT64_MAX, 2 } };
	fix_init(&f, 1000, 1, false);
	fix_connect(&f, "blue", false);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cr_expect_eq(fix_get(&f, &bad[i], 1, false), ERR_INVALID_PARAMS);
		cr_expect(strstr(f.cli.text, "range 0"));
	}
	cr_expect_eq(f.n_end, ARRAY_LEN(bad));
	check_get(&f);
	fix_fini(&f);
	NO_LEAKS();
}

Test(lane, a_refused_ticket_says_why_and_the_lane_goes_on)
{
	struct fix f;
	struct xf_range r = { 0, 10 };
	uint8_t p[1000] = { 0 };
	fix_init(&f, 1000, 1, false);
	fix_connect(&f, "blue", false);
	f.says = LANE_REFUSED;
	f.refuse = ERR_LEASE_LOST;
	cr_expect_eq(fix_get(&f, &r, 1, false), ERR_LEASE_LOST);
	cr_expect_str_eq(f.cli.text, "not this one");
	f.refuse = ERR_STALE_EPOCH;
	cr_expect_eq(fix_put(&f, p, sizeof(p), 100), ERR_STALE_EPOCH);
	cr_expect_eq(f.n_end, 0);
	f.says = LANE_OPENED;
	check_get(&f);
	fix_fini(&f);
	NO_LEAKS();
}

/* ---- puts ---- */

static void check_put(struct fix *f, uint64_t seed, size_t frame)
{
	uint8_t *p = malloc(f->size);
	uint64_t *vector = malloc(obj_blocks(f->size) * 8 + 8);
	for (size_t i = 0; i < f->size; i++)
		p[i] = (uint8_t)(i * seed >> 3);
	cr_assert_eq(fix_put(f, p, f->size, frame), ERR_NONE, "%s", f->srv.pipe.why.text);
	(void)sum_object(p, f->size, vector);
	for (size_t i = 0; i < f->size; i++)
		cr_assert_eq(p[i], *fix_at(f, i), "byte %zu", i);
	for (size_t i = 0; i < obj_blocks(f->size) * 8; i++)
		cr_assert_eq(((uint8_t *)vector)[i], *fix_at(f, obj_vector_at(f->size) + i),
			     "of the vector: %zu", i);
	free(vector);
	free(p);
}

Test(lane, puts_land_in_the_extents)
{
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (uint32_t ext = 1; ext <= 16; ext += 5) {
			struct fix f;
			fix_init(&f, sizes[i], sizes[i] < 16 ? 1 : ext, ext == 6);
			fix_connect(&f, "blue", false);
			f.piece = ext == 11 ? 70000 : 0;
			check_put(&f, 12345, MiB);
			cr_expect_str_eq(f.ticket, "write ticket");
			cr_expect_eq(f.n_whole, 1);
			check_put(&f, 777, 100000); /* in other pieces */
			check_get(&f);
			fix_fini(&f);
		}
	NO_LEAKS();
}

Test(lane, an_answer_that_comes_later)
{
	struct fix f;
	struct why no = { 0 };
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	f.says = LANE_LATER;
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	cr_expect_eq(f.cli.state, CLI_ASKED);
	cr_expect(lane_srv_active(&f.srv));
	struct iovec v[XF_IOV];
	cr_expect_eq(lane_srv_want(&f.srv, v), 0, "nothing is read meanwhile");
	f.open = true;
	lane_srv_opened(&f.srv, ERR_NONE, &f.obj, NULL);
	fix_run(&f);
	cr_expect_eq(f.cli.state, CLI_WRITING);
	lane_srv_cut(&f.srv); /* nothing was fenced */
	cr_expect(!lane_srv_over(&f.srv));
	fix_fini(&f);

	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	f.says = LANE_LATER;
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	why_note(&no, ERR_STALE_ATTEMPT, "closed");
	lane_srv_opened(&f.srv, ERR_STALE_ATTEMPT, NULL, &no);
	fix_run(&f);
	cr_expect_eq(f.cli.status, ERR_STALE_ATTEMPT);
	cr_expect_str_eq(f.cli.text, "closed");
	fix_fini(&f);
	NO_LEAKS();
}

/* T6: a fence cuts the stream whatever the client does; no byte lands afterwards. */
Test(lane, a_fenced_put_is_cut)
{
	struct fix f;
	uint8_t p[64];
	struct iovec v = { p, sizeof(p) };
	memset(p, 0xee, sizeof(p));
	fix_init(&f, 200, 1, false);
	fix_connect(&f, "blue", false);
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	cr_assert_eq(lane_cli_data(&f.cli, 0, &v, 1, 64, sum64(p, 64)), ERR_NONE);
	fix_run(&f);
	cr_expect_eq(*fix_at(&f, 63), 0xee);
	f.look = ERR_STALE_EPOCH;
	lane_srv_cut(&f.srv);
	cr_expect(!f.open, "its hazard is cleared at once");
	fix_run(&f);
	cr_expect_eq(f.cli.status, ERR_STALE_EPOCH);
	cr_expect(lane_srv_over(&f.srv));
	struct iovec w[XF_IOV];
	cr_expect_eq(lane_srv_want(&f.srv, w), 0);
	fix_fini(&f);
	NO_LEAKS();
}

Test(lane, a_fence_is_seen_before_bytes_land)
{
	struct fix f;
	uint8_t p[64];
	struct iovec v = { p, sizeof(p) };
	fix_init(&f, 200, 1, false);
	fix_fill(&f, 99);
	uint8_t was = *fix_at(&f, 0);
	memset(p, (uint8_t)~was, sizeof(p));
	fix_connect(&f, "blue", false);
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	f.look = ERR_STALE_ATTEMPT;
	cr_assert_eq(lane_cli_data(&f.cli, 0, &v, 1, 64, sum64(p, 64)), ERR_NONE);
	fix_run(&f);
	cr_expect_eq(*fix_at(&f, 0), was);
	cr_expect_eq(f.srv.pipe.err, ERR_STALE_ATTEMPT);
	cr_expect(!f.open);
	fix_fini(&f);
	NO_LEAKS();
}

/* I2: LAST is good only when every byte came, in order, once. */
Test(lane, a_put_with_a_hole)
{
	const struct {
		uint64_t at, n, at2, n2;
	} rows[] = { { 0, 100, 0, 0 },	 { 0, 100, 150, 50 }, { 0, 100, 50, 100 },
		     { 50, 100, 0, 50 }, { 0, 200, 200, 8 },  { 0, 100, 100, 101 } };
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct fix f;
		uint8_t p[256] = { 1 };
		struct iovec v = { p, rows[i].n }, v2 = { p, rows[i].n2 };
		fix_init(&f, 200, 1, false);
		fix_connect(&f, "blue", false);
		cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
		fix_run(&f);
		cr_assert_eq(lane_cli_data(&f.cli, rows[i].at, &v, 1, v.iov_len,
					   sum64(p, v.iov_len)),
			     ERR_NONE);
		fix_run(&f);
		if (v2.iov_len && f.cli.state == CLI_WRITING)
			cr_assert_eq(lane_cli_data(&f.cli, rows[i].at2, &v2, 1, v2.iov_len,
						   sum64(p, v2.iov_len)),
				     ERR_NONE);
		fix_run(&f);
		if (f.cli.state == CLI_WRITING && !f.cli.pipe.err)
			cr_assert_eq(lane_cli_last(&f.cli), ERR_NONE);
		fix_run(&f);
		cr_expect_eq(f.srv.pipe.err, ERR_BAD_MESSAGE, "row %zu: %s", i,
			     err_name(f.srv.pipe.err));
		cr_expect_eq(f.n_whole, 0);
		cr_expect(!f.open);
		fix_fini(&f);
	}
	NO_LEAKS();
}

Test(lane, many_spans)
{
	struct fix f;
	uint8_t p[640];
	struct iovec v[XF_SPANS];
	fix_init(&f, sizeof(p), 7, true);
	fix_connect(&f, "blue", false);
	cr_expect(f.cli.pipe.mac_data, "the agent wants it, the client does");
	for (size_t i = 0; i < sizeof(p); i++)
		p[i] = (uint8_t)(i * 7);
	for (size_t i = 0; i < XF_SPANS; i++)
		v[i] = (struct iovec){ p + i * 10, 10 };
	cr_assert_eq(lane_cli_put(&f.cli, BYTES_STR("t")), ERR_NONE);
	fix_run(&f);
	cr_assert_eq(lane_cli_data(&f.cli, 0, v, XF_SPANS, 640, sum64(p, 640)), ERR_NONE);
	fix_run(&f);
	cr_assert_eq(lane_cli_last(&f.cli), ERR_NONE);
	fix_run(&f);
	cr_expect_eq(f.cli.state, CLI_READY);
	cr_expect_eq(f.cli.status, ERR_NONE);
	for (size_t i = 0; i < sizeof(p); i++)
		cr_assert_eq(p[i], *fix_at(&f, i));
	fix_fini(&f);
	NO_LEAKS();
}

Test(lane, a_get_that_is_too_large_is_refused_here)
{
	struct fix f;
	static struct xf_range r[XF_RANGES_MAX + 1];
	fix_init(&f, 100, 1, false);
	fix_connect(&f, "blue", false);
	cr_expect_eq(fix_get(&f, r, XF_RANGES_MAX + 1, false), ERR_TOO_LARGE);
	cr_expect_eq(fix_get(&f, r, 0, false), ERR_TOO_LARGE);
	check_get(&f);
	fix_fini(&f);
	NO_LEAKS();
}
