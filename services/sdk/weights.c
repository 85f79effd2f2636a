/* SPDX-License-Identifier: Apache-2.0 */
/* pml_weights.h on top of common/reshard. */
#include "sdk.h"

#include "include/pml_weights.h"
#include "reshard/plan.h"

#include <string.h>

struct pml_placement {
	struct place *p;
	char id[DERIVED_ID_LEN + 1], digest[SHA_HEX + 1];
};

struct pml_stored {
	struct stored *s;
	char digest[SHA_HEX + 1];
};

struct pml_plan {
	struct plan *p;
};

static int refused(struct pml_error *err, enum err e, const struct reject *why,
		   const char *step)
{
	struct why w = { 0 };
	if (why->rule == RULE_NONE)
		return sdk_error(err, e, 0, NULL, step, "%s", err_text(e));
	reject_why(why, &w);
	return sdk_error_why(err, &w, step);
}

static int bad(struct pml_error *err, const char *step, const char *what)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, step, "%s", what);
}

static int no_memory(struct pml_error *err, const char *step)
{
	return sdk_error(err, ERR_NO_MEMORY, 0, NULL, step, "%s", err_text(ERR_NO_MEMORY));
}

/* ---- placements ---- */

int pml_placement_read(const void *json, size_t n, int form, struct pml_placement **out,
		       struct pml_error *err)
{
	static const char step[] = "read a placement";
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	if ((!json && n) || !out || form < PML_PLACEMENT_WIRE || form > PML_PLACEMENT_PARTS)
		return bad(err, step, "json and out may not be NULL; form is 0, 1 or 2");
	struct pml_placement *h = calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err, step);
	enum err e = place_read(BYTES(json, n), (enum place_form)form, &lim, &why, &h->p);
	if (e) {
		free(h);
		return refused(err, e, &why, step);
	}
	memcpy(h->id, h->p->id, DERIVED_ID_LEN);
	memcpy(h->digest, h->p->digest, SHA_HEX);
	*out = h;
	return 0;
}

void pml_placement_free(struct pml_placement *p)
{
	if (!p)
		return;
	place_free(p->p);
	free(p);
}

const char *pml_placement_id(const struct pml_placement *p)
{
	return p->id;
}

const char *pml_placement_digest(const struct pml_placement *p)
{
	return p->digest;
}

/* Writes with one of the two; the writer's room is too large for a stack. */
static int write_out(const struct place *place, const struct plan *plan, pml_put put, void *arg,
		     struct pml_error *err)
{
	static const char step[] = "write";
	if (!put)
		return bad(err, step, "put may not be NULL");
	struct text_out *o = malloc(sizeof(*o));
	if (!o)
		return no_memory(err, step);
	text_init(o, NULL, false);
	o->put = put;
	o->arg = arg;
	if (place)
		place_text(place, o);
	else
		plan_text(plan, o);
	bool whole = text_end(o);
	free(o);
	return whole ? 0
		     : sdk_error(err, ERR_CANCELLED, 0, NULL, step, "put stopped the writing");
}

int pml_placement_write(const struct pml_placement *p, pml_put put, void *arg,
			struct pml_error *err)
{
	return write_out(p->p, NULL, put, arg, err);
}

/* ---- stored weights ---- */

int pml_stored_read(const void *json, size_t n, struct pml_stored **out, struct pml_error *err)
{
	static const char step[] = "read a stored manifest";
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	if ((!json && n) || !out)
		return bad(err, step, "json and out may not be NULL");
	struct pml_stored *h = calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err, step);
	enum err e = stored_read(BYTES(json, n), &lim, &why, &h->s);
	if (e) {
		free(h);
		return refused(err, e, &why, step);
	}
	memcpy(h->digest, h->s->digest, SHA_HEX);
	*out = h;
	return 0;
}

void pml_stored_free(struct pml_stored *s)
{
	if (!s)
		return;
	stored_free(s->s);
	free(s);
}

const char *pml_stored_digest(const struct pml_stored *s)
{
	return s->digest;
}

/* ---- plans ---- */

static struct plan_ask ask_of(const struct pml_plan_opts *o)
{
	struct plan_ask a = { .lim = PLAN_LIMITS };
	a.source = o->source ? o->source->p : NULL;
	a.stored = o->stored ? o->stored->s : NULL;
	a.target = o->target->p;
	a.local = o->local;
	if (o->participant)
		a.participant = BYTES_STR(o->participant);
	if (o->max_regions)
		a.lim.max_transfer_regions = o->max_regions;
	if (o->max_segments_per_region)
		a.lim.max_segments_per_region = o->max_segments_per_region;
	if (o->max_total_segments)
		a.lim.max_total_lowered_segments = o->max_total_segments;
	return a;
}

int pml_plan_make(const struct pml_plan_opts *opts, struct pml_plan **out,
		  struct pml_error *err)
{
	static const char step[] = "plan";
	struct pml_plan_opts o;
	struct reject why;
	if (!opts || !out || !sdk_opts(&o, sizeof(o), opts))
		return bad(err, step,
			   "opts needs its size set (PML_PLAN_OPTS_INIT), out a place");
	if (!o.target || !o.source == !o.stored)
		return bad(err, step, "target is needed, and one of source and stored");
	struct pml_plan *h = calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err, step);
	struct plan_ask a = ask_of(&o);
	enum err e = plan_make(&a, &why, &h->p);
	if (e) {
		free(h);
		return refused(err, e, &why, step);
	}
	*out = h;
	return 0;
}

void pml_plan_free(struct pml_plan *p)
{
	if (!p)
		return;
	plan_free(p->p);
	free(p);
}

/* Copies as much of a struct as the caller's release knows. */
static bool hand_out(void *dst, const void *src, size_t have)
{
	size_t size;
	memcpy(&size, dst, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return false;
	memcpy((char *)dst + sizeof(size), (const char *)src + sizeof(size),
	       MIN_OF(size, have) - sizeof(size));
	return true;
}

int pml_plan_info(const struct pml_plan *p, struct pml_plan_info *info, struct pml_error *err)
{
	struct pml_plan_info i = PML_PLAN_INFO_INIT;
	i.n_regions = p->p->n_ops;
	i.total_segments = p->p->total_segments;
	i.total_bytes = (uint64_t)MIN_OF(p->p->total_bytes, UINT64_MAX);
	return hand_out(info, &i, sizeof(i)) ? 0
					     : bad(err, "plan info", "info->size is not set");
}

static struct pml_text text_of(struct bytes b)
{
	return (struct pml_text){ (const char *)b.p, b.n };
}

static void names_of(const struct plan *p, uint32_t i, struct pml_region *out)
{
	const struct frag *t = &p->target->frags[p->ops[i].target];
	out->tensor = text_of(p->target->tensors[t->tensor].id);
	out->target_fragment = text_of(t->id);
	out->target_participant = text_of(p->target->parts[t->part].id);
	out->source_fragment = text_of(plan_source_id(p, i));
	if (p->source)
		out->source_participant =
			text_of(p->source->parts[p->source->frags[p->ops[i].source].part].id);
}

int pml_plan_region(const struct pml_plan *p, uint64_t i, struct pml_region *out,
		    struct pml_error *err)
{
	struct region r;
	struct pml_region full = { .size = sizeof(full) };
	if (i >= p->p->n_ops)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "plan region",
				 "region %llu of %u", (unsigned long long)i, p->p->n_ops);
	plan_region(p->p, (uint32_t)i, &r);
	names_of(p->p, (uint32_t)i, &full);
	full.source_base = r.source_base;
	full.target_base = r.target_base;
	full.inner_bytes = r.inner_bytes;
	full.segments = r.segments;
	full.n_outer = r.n_outer;
	memcpy(full.outer_counts, r.counts, r.n_outer * sizeof(*r.counts));
	memcpy(full.source_strides, r.source_strides, r.n_outer * sizeof(*r.counts));
	memcpy(full.target_strides, r.target_strides, r.n_outer * sizeof(*r.counts));
	return hand_out(out, &full, sizeof(full))
		       ? 0
		       : bad(err, "plan region", "out->size is not set");
}

int pml_plan_write(const struct pml_plan *p, pml_put put, void *arg, struct pml_error *err)
{
	return write_out(NULL, p->p, put, arg, err);
}
