/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The example of docs/weights.md, from outside: strict C99, pml_weights.h alone. Two ranks hold the
 * rows of a 4 x 4 matrix; one rank wants all of it.
 */
#include <stdio.h>
#include <string.h>

#include "pml_weights.h"

#define RANK(tp) "{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":" #tp "}"
#define FRAGMENT(row, rows, bytes, tp)                                                  \
	"{\"aliases\":[],\"global_offset\":[" #row ",0],\"local_shape\":[" #rows ",4]," \
	"\"nbytes\":" #bytes ",\"rank\":" RANK(tp) ",\"tensor_id\":\"w\"}"
#define PART(name, fragment, tp) \
	"{\"fragments\":[" fragment "],\"participant_id\":\"" name "\",\"rank\":" RANK(tp) "}"
#define MEMBER(name, tp) "{\"participant_id\":\"" name "\",\"rank\":" RANK(tp) "}"
#define DRAFT(parts, members, size)                                                            \
	"{\"parts\":[" parts "],\"placement_set_id\":\"s\",\"resource_id\":\"m\","             \
	"\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"tensors\":[{\"dtype\":"       \
	"\"bfloat16\",\"expert_id\":null,\"global_shape\":[4,4],\"itemsize\":2,\"layer_id\":"  \
	"null,\"layout_fingerprint\":\"row-major:v1\",\"parallel_axes\":[{\"dim\":0,\"kind\":" \
	"\"tp\",\"semantics\":\"split\"}],\"shard_dims\":[0],\"tensor_id\":\"w\"}],"           \
	"\"topology\":{\"dp_size\":1,\"ep_size\":1,\"participants\":[" members                 \
	"],\"pp_size\":1,\"tp_size\":" #size "},\"weight_generation\":1}"

static const char two[] =
	DRAFT(PART("a", FRAGMENT(0, 2, 16, 0), 0) "," PART("b", FRAGMENT(2, 2, 16, 1), 1),
	      MEMBER("a", 0) "," MEMBER("b", 1), 2);
static const char one[] = DRAFT(PART("x", FRAGMENT(0, 4, 32, 0), 0), MEMBER("x", 0), 1);

static int fails;

static void expect(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "FAILED: %s\n", what);
	fails++;
}

static bool count(void *arg, const void *p, size_t n)
{
	(void)p;
	*(size_t *)arg += n;
	return true;
}

static bool stop(void *arg, const void *p, size_t n)
{
	(void)arg;
	(void)p;
	(void)n;
	return false;
}

static void check_plan(const struct pml_plan *plan)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_plan_info info = PML_PLAN_INFO_INIT;
	struct pml_region r;
	uint64_t i;
	size_t n = 0;
	memset(&r, 0, sizeof(r));
	r.size = sizeof(r);
	expect(pml_plan_info(plan, &info, &err) == 0, "info");
	expect(info.n_regions == 2 && info.total_bytes == 32, "two regions, 32 bytes");
	for (i = 0; i < info.n_regions; i++) {
		expect(pml_plan_region(plan, i, &r, &err) == 0, "region");
		expect(r.inner_bytes == 16 && r.n_outer == 0 && r.segments == 1, "whole rows");
		expect(r.source_base == 0, "from the beginning");
		expect(r.target_base == (r.source_participant.p[0] == 'a' ? 0 : 16),
		       "to its rows");
		expect(r.tensor.n == 1 && r.tensor.p[0] == 'w', "tensor");
	}
	expect(pml_plan_region(plan, 2, &r, &err) == PML_ERR_INVALID_PARAMS, "past the last");
	expect(pml_plan_write(plan, count, &n, &err) == 0 && n > 100, "text");
	expect(pml_plan_write(plan, stop, NULL, &err) == PML_ERR_CANCELLED, "stopped");
}

int main(void)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_placement *from = NULL, *to = NULL, *bad = NULL;
	struct pml_plan *plan = NULL;
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	expect(pml_placement_read(two, strlen(two), PML_PLACEMENT_DRAFT, &from, &err) == 0,
	       err.text);
	expect(pml_placement_read(one, strlen(one), PML_PLACEMENT_DRAFT, &to, &err) == 0,
	       err.text);
	expect(pml_placement_read(two, strlen(two), PML_PLACEMENT_WIRE, &bad, &err) ==
		       PML_ERR_BAD_MANIFEST,
	       "a draft is no wire form");
	expect(strstr(err.text, "json.fields") != NULL, err.text);
	expect(pml_placement_read("x", 1, 7, &bad, &err) == PML_ERR_INVALID_PARAMS, "form");
	expect(pml_plan_make(&o, &plan, &err) == PML_ERR_INVALID_PARAMS, "no sides");
	if (!from || !to)
		return 1;
	expect(strlen(pml_placement_id(from)) == 71 && strlen(pml_placement_digest(to)) == 64,
	       "ids");
	o.source = from;
	o.target = to;
	expect(pml_plan_make(&o, &plan, &err) == 0, err.text);
	if (plan)
		check_plan(plan);
	pml_plan_free(plan);
	o.max_regions = 1;
	expect(pml_plan_make(&o, &plan, &err) == PML_ERR_LIMIT, "one region at most");
	pml_placement_free(from);
	pml_placement_free(to);
	return fails != 0;
}
