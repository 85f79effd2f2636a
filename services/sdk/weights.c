/* SPDX-License-Identifier: Apache-2.0 */
/* pml_weights.h on top of common/reshard: what needs no cluster. */
#include "weights_priv.h"

#include <string.h>

struct pml_placement {
	struct place *p;
	char id[DERIVED_ID_LEN + 1], digest[SHA_HEX + 1];
};

struct pml_stored {
	struct stored *s;
	char digest[SHA_HEX + 1];
};

int sdk_refused(struct pml_error *err, enum err e, const struct reject *why, const char *step)
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

/* ---- stopping ---- */

int pml_stop_new(struct pml_stop **out, struct pml_error *err)
{
	if (!out)
		return bad(err, "stop", "out may not be NULL");
	struct pml_stop *s = calloc(1, sizeof(*s));
	if (!s)
		return no_memory(err, "stop");
	*out = s;
	return 0;
}

void pml_stop_free(struct pml_stop *s)
{
	free(s);
}

void pml_stop_now(struct pml_stop *s)
{
	if (s)
		atomic_store_explicit(&s->flag, true, memory_order_relaxed);
}

static bool limits_of(const struct pml_read_opts *in, struct place_limits *lim)
{
	struct pml_read_opts o;
	*lim = (struct place_limits)PLACE_LIMITS;
	if (!sdk_opts(&o, sizeof(o), in))
		return false;
	if (o.max_memory)
		lim->memory = o.max_memory;
	if (o.max_text)
		lim->json.text_bytes = o.max_text;
	lim->cancel = o.stop ? &o.stop->flag : NULL;
	return true;
}

/* ---- placements ---- */

int pml_placement_read(const void *json, size_t n, int form, struct pml_placement **out,
		       struct pml_error *err)
{
	return pml_placement_read_with(json, n, form, NULL, out, err);
}

int pml_placement_read_with(const void *json, size_t n, int form, const struct pml_read_opts *o,
			    struct pml_placement **out, struct pml_error *err)
{
	static const char step[] = "read a placement";
	struct place_limits lim;
	struct reject why;
	if (!limits_of(o, &lim))
		return bad(err, step, "pml_read_opts: size is not set; use PML_READ_OPTS_INIT");
	if ((!json && n) || !out || form < PML_PLACEMENT_WIRE || form > PML_PLACEMENT_PARTS)
		return bad(err, step, "json and out may not be NULL; form is 0, 1 or 2");
	struct pml_placement *h = calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err, step);
	enum err e = place_read(BYTES(json, n), (enum place_form)form, &lim, &why, &h->p);
	if (e) {
		free(h);
		return sdk_refused(err, e, &why, step);
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
	return p ? p->id : NULL;
}

const char *pml_placement_digest(const struct pml_placement *p)
{
	return p ? p->digest : NULL;
}

/* Writes with one of the two; the writer's room is too large for a stack. */
static int write_out(const struct place *place, const struct plan *plan, pml_sink put,
		     void *arg, struct pml_error *err)
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

int pml_placement_write(const struct pml_placement *p, pml_sink put, void *arg,
			struct pml_error *err)
{
	return p ? write_out(p->p, NULL, put, arg, err)
		 : bad(err, "write", "the placement is NULL");
}

/* ---- stored weights ---- */

int pml_stored_read(const void *json, size_t n, struct pml_stored **out, struct pml_error *err)
{
	return pml_stored_read_with(json, n, NULL, out, err);
}

int pml_stored_read_with(const void *json, size_t n, const struct pml_read_opts *o,
			 struct pml_stored **out, struct pml_error *err)
{
	static const char step[] = "read a stored manifest";
	struct place_limits lim;
	struct reject why;
	if (!limits_of(o, &lim))
		return bad(err, step, "pml_read_opts: size is not set; use PML_READ_OPTS_INIT");
	if ((!json && n) || !out)
		return bad(err, step, "json and out may not be NULL");
	struct pml_stored *h = calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err, step);
	enum err e = stored_read(BYTES(json, n), &lim, &why, &h->s);
	if (e) {
		free(h);
		return sdk_refused(err, e, &why, step);
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
	return s ? s->digest : NULL;
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
	if (o->max_memory)
		a.lim.memory = o->max_memory;
	a.lim.cancel = o->stop ? &o->stop->flag : NULL;
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
	struct pml_plan *h = sdk_plan_new();
	if (!h)
		return no_memory(err, step);
	struct plan_ask a = ask_of(&o);
	enum err e = plan_make(&a, &why, &h->p);
	if (e) {
		pml_plan_free(h);
		return sdk_refused(err, e, &why, step);
	}
	h->n_regions = h->p->n_ops;
	h->total_segments = h->p->total_segments;
	h->n_sources = h->p->n_sources;
	h->n_targets = h->p->n_targets;
	h->n_routes = h->p->n_routes;
	h->total_bytes = (uint64_t)MIN_OF(h->p->total_bytes, (unsigned __int128)UINT64_MAX);
	*out = h;
	return 0;
}

struct pml_plan *sdk_plan_new(void)
{
	struct pml_plan *h = calloc(1, sizeof(*h));
	if (h)
		pthread_mutex_init(&h->lock, NULL);
	return h;
}

void pml_plan_free(struct pml_plan *p)
{
	if (!p)
		return;
	plan_free(p->p);
	listed_plan_free(p->list);
	buf_fini(&p->text);
	pthread_mutex_destroy(&p->lock);
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
	if (!p || !info)
		return bad(err, "plan info", "the plan, or info, is NULL");
	i.n_regions = p->n_regions;
	i.total_segments = p->total_segments;
	i.total_bytes = p->total_bytes;
	i.n_sources = p->n_sources;
	i.n_targets = p->n_targets;
	i.n_routes = p->n_routes;
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
	if (!p || !out)
		return bad(err, "plan region", "the plan, or out, is NULL");
	if (i >= p->n_regions)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "plan region",
				 "region %llu of %llu", (unsigned long long)i,
				 (unsigned long long)p->n_regions);
	if (!p->p) {
		int e = sdk_listed_region((struct pml_plan *)(uintptr_t)p, i, &full, err);
		if (e)
			return e;
		return hand_out(out, &full, sizeof(full))
			       ? 0
			       : bad(err, "plan region", "out->size is not set");
	}
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

/* A fetched text, in pieces as a writer's. */
static int write_text(const struct pml_plan *p, pml_sink put, void *arg, struct pml_error *err)
{
	if (!put)
		return bad(err, "write", "put may not be NULL");
	for (size_t at = 0, n; at < p->text.n; at += n) {
		n = MIN_OF(p->text.n - at, TEXT_ROOM);
		if (!put(arg, p->text.p + at, n))
			return sdk_error(err, ERR_CANCELLED, 0, NULL, "write",
					 "put stopped the writing");
	}
	return 0;
}

int pml_plan_write(const struct pml_plan *p, pml_sink put, void *arg, struct pml_error *err)
{
	if (!p)
		return bad(err, "write", "the plan is NULL");
	return p->p ? write_out(NULL, p->p, put, arg, err) : write_text(p, put, arg, err);
}

static bool digest_of(struct pml_plan *p)
{
	struct sha sha = { 0 };
	struct text_out *o = malloc(sizeof(*o));
	bool ok = o && sha_init(&sha) == ERR_NONE;
	if (ok) {
		text_init(o, &sha, false);
		plan_text(p->p, o);
		text_flush(o);
		sha_hex(&sha, p->digest);
	}
	sha_fini(&sha);
	free(o);
	return ok;
}

const char *pml_plan_digest(const struct pml_plan *plan)
{
	struct pml_plan *p = (struct pml_plan *)(uintptr_t)plan;
	if (!p)
		return NULL;
	pthread_mutex_lock(&p->lock);
	bool ok = p->digest[0] || digest_of(p);
	pthread_mutex_unlock(&p->lock);
	return ok ? p->digest : NULL;
}
