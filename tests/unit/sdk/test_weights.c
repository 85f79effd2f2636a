/* SPDX-License-Identifier: Apache-2.0 */
/* pml_weights.h in this process: stops, limits, digests, and arguments of the remote calls. */
#include "tests/support/layout.h"
#include "tests/support/leak.h"

#include "pml.h"
#include "pml_weights.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(sdk_weights, .timeout = 20);

struct pair {
	struct buf text[2];
	struct pml_placement *p[2];
};

static void pair_make(struct pair *w)
{
	struct pml_error err = PML_ERROR_INIT;
	for (unsigned i = 0; i < 2; i++) {
		w->text[i] = BUF_INIT(1 << 20);
		layout_text(&w->text[i], 40, 8, i ? 2 : 4);
		cr_assert_eq(pml_placement_read(w->text[i].p, w->text[i].n, PML_PLACEMENT_DRAFT,
						&w->p[i], &err),
			     0, "%s", err.text);
	}
}

static void pair_free(struct pair *w)
{
	for (int i = 0; i < 2; i++) {
		pml_placement_free(w->p[i]);
		buf_fini(&w->text[i]);
	}
}

Test(sdk_weights, a_raised_stop_ends_every_call)
{
	struct pair w;
	struct pml_stop *stop = NULL;
	struct pml_placement *p = NULL;
	struct pml_stored *s = NULL;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	pair_make(&w);
	cr_assert_eq(pml_stop_new(&stop, &err), 0);
	struct pml_read_opts r = PML_READ_OPTS_INIT;
	r.stop = stop;
	cr_assert_eq(pml_placement_read_with(w.text[0].p, w.text[0].n, PML_PLACEMENT_DRAFT, &r,
					     &p, &err),
		     0, "not raised: %s", err.text);
	pml_placement_free(p);
	pml_stop_now(stop);
	p = NULL;
	cr_expect_eq(pml_placement_read_with(w.text[0].p, w.text[0].n, PML_PLACEMENT_DRAFT, &r,
					     &p, &err),
		     PML_ERR_CANCELLED);
	cr_expect(strstr(err.text, "plan.cancelled"), "%s", err.text);
	static const char stored[] =
		"{\"created_at\":\"t\",\"fragments\":[],\"group_id\":\"g\",\"manifest_key\":"
		"\"g/manifest\",\"namespace\":\"n\",\"resource_id\":\"m\",\"resource_kind\":"
		"\"model_weight\",\"revision\":\"r\",\"tensors\":[],\"weight_generation\":1}";
	cr_expect_eq(pml_stored_read_with(stored, sizeof(stored) - 1, NULL, &s, &err), 0, "%s",
		     err.text);
	pml_stored_free(s);
	cr_expect_eq(pml_stored_read_with(stored, sizeof(stored) - 1, &r, &s, &err),
		     PML_ERR_CANCELLED);
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	o.source = w.p[0];
	o.target = w.p[1];
	o.stop = stop;
	o.max_regions = 1000;
	cr_expect_eq(pml_plan_make(&o, &plan, &err), PML_ERR_CANCELLED);
	cr_expect_null(plan);
	cr_expect_null(p);
	pml_stop_free(stop);
	pair_free(&w);
	NO_LEAKS();
}

Test(sdk_weights, memory_limits)
{
	struct pair w;
	struct pml_placement *p = NULL;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_read_opts r = PML_READ_OPTS_INIT;
	struct pml_plan_opts o = PML_PLAN_OPTS_INIT;
	pair_make(&w);
	r.max_memory = 20000;
	cr_expect_eq(pml_placement_read_with(w.text[0].p, w.text[0].n, PML_PLACEMENT_DRAFT, &r,
					     &p, &err),
		     PML_ERR_NO_MEMORY);
	cr_expect(strstr(err.text, "limit.memory"), "%s", err.text);
	r.max_memory = 0;
	r.max_text = 100;
	cr_expect_eq(pml_placement_read_with(w.text[0].p, w.text[0].n, PML_PLACEMENT_DRAFT, &r,
					     &p, &err),
		     PML_ERR_TOO_LARGE);
	o.source = w.p[0];
	o.target = w.p[1];
	o.max_memory = 5000;
	cr_expect_eq(pml_plan_make(&o, &plan, &err), PML_ERR_NO_MEMORY);
	o.max_memory = 1 << 20;
	cr_expect_eq(pml_plan_make(&o, &plan, &err), 0, "%s", err.text);
	cr_expect_eq(strlen(pml_plan_digest(plan)), 64);
	cr_expect_eq(pml_plan_digest(plan), pml_plan_digest(plan), "computed once");
	pml_plan_free(plan);
	r.size = 3;
	cr_expect_eq(pml_placement_read_with(w.text[0].p, w.text[0].n, PML_PLACEMENT_DRAFT, &r,
					     &p, &err),
		     PML_ERR_INVALID_PARAMS);
	pair_free(&w);
	NO_LEAKS();
}

/* An older program's options, without the fields that came later. */
Test(sdk_weights, older_options)
{
	struct pair w;
	struct pml_plan *plan = NULL;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_plan_opts o;
	struct pml_plan_info i;
	pair_make(&w);
	memset(&o, 0xff, sizeof(o));
	memset(&o, 0, offsetof(struct pml_plan_opts, stop));
	o.size = offsetof(struct pml_plan_opts, stop);
	o.source = w.p[0];
	o.target = w.p[1];
	cr_assert_eq(pml_plan_make(&o, &plan, &err), 0, "%s", err.text);
	memset(&i, 0xff, sizeof(i));
	i.size = offsetof(struct pml_plan_info, n_sources);
	cr_assert_eq(pml_plan_info(plan, &i, &err), 0);
	cr_expect_eq(i.n_regions, 160);
	cr_expect_eq(i.n_sources, UINT64_MAX, "beyond what it knows nothing is written");
	pml_plan_free(plan);
	pair_free(&w);
	NO_LEAKS();
}
