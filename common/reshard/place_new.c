/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/place_priv.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/huge.h"

const char *const axis_names[AX_N] = { "dp", "pp", "ep", "tp" };
const char *const sem_names[4] = { "", "split", "replicated", "ownership" };

int rank_cmp(const struct rank *a, const struct rank *b)
{
	for (int k = 0; k < AX_N; k++)
		if (a->c[k] != b->c[k])
			return a->c[k] < b->c[k] ? -1 : 1;
	return 0;
}

bool place_fail(struct place_new *b, enum rule r, const char *text, const char *path_fmt, ...)
{
	char path[sizeof(b->why->path)];
	va_list ap;
	va_start(ap, path_fmt);
	vsnprintf(path, sizeof(path), path_fmt, ap);
	va_end(ap);
	return reject_set(b->why, r, path, "%s", text);
}

bool place_fail_frag(struct place_new *b, enum rule r, const struct frag *f, const char *field,
		     const char *text)
{
	/* once there are parts in order, a fragment knows its place among them */
	return place_fail(b, r, text, "parts[%u].fragments[%u]%s%s",
			  b->in_order ? b->p->parts[f->part].pos : f->part, f->pos,
			  field[0] ? "." : "", field);
}

bool place_fail_tensor(struct place_new *b, enum rule r, const struct tensor *t,
		       const char *field, const char *text)
{
	const char *dot = field[0] ? "." : "";
	if (b->form == PLACE_PARTS)
		return place_fail(b, r, text, "parts[%u].tensors[%u]%s%s", t->part, t->pos, dot,
				  field);
	return place_fail(b, r, text, "tensors[%u]%s%s", t->pos, dot, field);
}

bool place_no_memory(struct place_new *b)
{
	return place_fail(b, RULE_LIMIT_MEMORY, "no memory within the limit", "%s", "");
}

bool place_stopped(struct place_new *b)
{
	return place_fail(b, RULE_PLAN_CANCELLED, "stopped while the placement was built", "%s",
			  "");
}

bool place_touch(struct place_new *b, void *p, size_t n)
{
	return stop_touch(p, n, b->lim.cancel) || place_stopped(b);
}

bool place_sort_fail(struct place_new *b)
{
	return stop_now(b->lim.cancel) ? place_stopped(b) : place_no_memory(b);
}

/* Bytes held now. */
static size_t held(const struct place_new *b)
{
	return b->held + b->p->mem.held + b->boxes.held + names_bytes(&b->names) +
	       names_bytes(&b->groups);
}

size_t place_room(const struct place_new *b)
{
	return b->lim.memory - MIN_OF(held(b), b->lim.memory);
}

static bool fits(const struct place_new *b, size_t n)
{
	return n <= place_room(b);
}

void *place_tmp(struct place_new *b, size_t n)
{
	void *p = fits(b, n) ? malloc(MAX_OF(n, 1)) : NULL;
	huge_hint(p, n);
	if (!p)
		place_no_memory(b);
	return p;
}

void *place_zero(struct place_new *b, size_t n, size_t each)
{
	void *p = fits(b, n * each) ? calloc(MAX_OF(n, 1), each) : NULL;
	if (!p)
		place_no_memory(b);
	return p;
}

void *place_keep(struct place_new *b, size_t n)
{
	void *p = place_tmp(b, n);
	b->held += p ? n : 0;
	return p;
}

bool place_work_fail(struct place_new *b, const struct box_work *w)
{
	if (w->cancelled)
		return place_fail(b, RULE_PLAN_CANCELLED, "stopped while coverage was proved",
				  "%s", "");
	if (w->no_memory)
		return place_no_memory(b);
	return place_fail(b, RULE_LIMIT_WORK, "the boxes need more comparisons than the budget",
			  "%s", "");
}

void *place_alloc(struct place_new *b, size_t n)
{
	void *p = arena_alloc(&b->p->mem, MAX_OF(n, 1));
	if (!p)
		place_no_memory(b);
	return p;
}

bool place_copy(struct place_new *b, struct bytes in, struct bytes *out)
{
	uint8_t *p = place_alloc(b, in.n);
	if (!p)
		return false;
	memcpy(p, in.p, in.n);
	*out = BYTES(p, in.n);
	return true;
}

static void limit_mem(struct place_new *b)
{
	b->p->mem.limit = b->lim.memory - MIN_OF(b->held + b->boxes.held, b->lim.memory);
}

/* Half as many more; or, some way into a text, as many as there would be in all of it at this rate, when
 * there is room: the list is then not copied again. What is not used of it was never touched. */
static uint32_t next_cap(const struct place_new *b, uint32_t cap, uint32_t n, size_t each)
{
	uint32_t want = cap ? cap + cap / 2 : 32;
	if (!b->in || n < 1024)
		return want;
	double all = (double)n * (double)(b->in->end - b->in->start) /
		     (double)(b->in->p - b->in->start);
	if (all > want && all < (double)(1u << 30) &&
	    place_room(b) / 4 > (size_t)(all - cap) * each)
		want = (uint32_t)all + 1;
	return want;
}

bool place_grow(struct place_new *b, void *list, uint32_t *cap, uint32_t n, size_t each)
{
	if (n < *cap)
		return true;
	if (n >= 1u << 31)
		return place_fail(b, RULE_LIMIT_COUNT, "too many", "%s", "");
	uint32_t want = next_cap(b, *cap, n, each);
	void *old, *q;
	memcpy(&old, list, sizeof(old));
	size_t more = (want - *cap) * each, bytes = want * each;
	q = bytes > 0 && fits(b, more) ? realloc(old, bytes) : NULL;
	if (!q)
		return place_no_memory(b);
	huge_hint(q, bytes);
	memcpy(list, &q, sizeof(q));
	b->held += more;
	limit_mem(b);
	*cap = want;
	return true;
}

struct place_new *place_new_open(const struct place_limits *lim, struct reject *why)
{
	struct place_new *b = calloc(1, sizeof(*b));
	struct place *p = calloc(1, sizeof(*p));
	if (!b || !p) {
		free(b);
		free(p);
		return NULL;
	}
	p->mem = ARENA_INIT(lim->memory);
	b->p = p;
	b->lim = *lim;
	b->lim.json.cancel = lim->cancel;
	b->why = why;
	b->form = PLACE_DRAFT;
	b->work = (struct box_work){ .left = lim->work,
				     .cancel = lim->cancel,
				     .look = lim->work,
				     .memory = lim->memory };
	if (!place_grow(b, &p->aliases, &b->cap_aliases, 0, sizeof(*p->aliases))) {
		place_new_free(b);
		return NULL;
	}
	p->aliases[p->n_aliases++] = (struct alias){ 0 };
	return b;
}

void place_new_free(struct place_new *b)
{
	if (!b)
		return;
	place_free(b->p);
	arena_fini(&b->boxes);
	names_fini(&b->names);
	names_fini(&b->groups);
	box_join_fini(&b->join);
	free(b->members);
	free(b->parts);
	free(b->listed);
	free(b->name_tensor);
	free(b->member_order);
	free(b);
}

void place_free(struct place *p)
{
	if (!p)
		return;
	arena_fini(&p->mem);
	free(p->parts);
	free(p->tensors);
	free(p->frags);
	free(p->aliases);
	free(p->by_id);
	free(p->id_rank);
	free(p->by_tensor);
	free(p->tensor_part);
	free(p->boxes);
	free(p->tensor_first);
	free(p->rank_order);
	free(p);
}

size_t place_bytes(const struct place *p)
{
	return sizeof(*p) + p->mem.held + p->n_parts * (sizeof(*p->parts) + sizeof(uint32_t)) +
	       p->n_tensors * (sizeof(*p->tensors) + sizeof(uint32_t)) +
	       p->n_frags * (sizeof(*p->frags) + 4 * sizeof(uint32_t)) +
	       p->box_words * sizeof(*p->boxes) + p->n_aliases * sizeof(*p->aliases);
}

bool place_new_ident(struct place_new *b, struct bytes resource_id, struct bytes revision,
		     uint64_t generation, struct bytes set_id, const uint64_t size[AX_N])
{
	struct place *p = b->p;
	p->generation = generation;
	memcpy(p->size, size, sizeof(p->size));
	return place_copy(b, resource_id, &p->resource_id) &&
	       place_copy(b, revision, &p->revision) && place_copy(b, set_id, &p->set_id);
}

bool place_new_member(struct place_new *b, struct bytes id, const struct rank *r)
{
	if (!place_grow(b, &b->members, &b->cap_members, b->n_members, sizeof(*b->members)))
		return false;
	struct member *m = &b->members[b->n_members];
	*m = (struct member){ .rank = *r, .pos = b->n_members };
	b->n_members++;
	return place_copy(b, id, &m->id);
}

static bool copy_u64s(struct place_new *b, const uint64_t *in, uint32_t n, const uint64_t **out)
{
	uint64_t *p = place_alloc(b, n * sizeof(*p));
	if (!p)
		return false;
	if (n)
		memcpy(p, in, n * sizeof(*p));
	*out = p;
	return true;
}

static bool number_late(struct place_new *b)
{
	const struct late *l = &b->late[b->n_numbered++ % LATE];
	uint32_t n = names_put_hashed(&b->names, l->name, l->hash, &b->p->mem);
	if (n == NAMES_NONE)
		return place_no_memory(b);
	if (!l->tensor) {
		b->p->frags[l->idx].tensor = n;
		return true;
	}
	b->p->tensors[l->idx].name = n;
	b->p->tensors[l->idx].id = b->names.name[n];
	return true;
}

bool place_late_names(struct place_new *b)
{
	while (b->n_numbered != b->n_late)
		if (!number_late(b))
			return false;
	return true;
}

/* Tables of names are beyond the caches: what a look-up needs is fetched while the reader goes on. Names
 * that do not lie in the text (they had escapes, or come record by record) are not kept. */
static bool name_later(struct place_new *b, struct bytes name, uint32_t idx, bool tensor)
{
	struct late l = { name, names_hash(name), idx, tensor };
	if (b->n_late - b->n_numbered == LATE && !number_late(b))
		return false;
	b->late[b->n_late++ % LATE] = l;
	names_fetch(&b->names, l.hash);
	if (b->n_late - b->n_numbered > LATE / 2)
		names_fetch_name(&b->names, b->late[(b->n_late - LATE / 2 - 1) % LATE].hash);
	return (b->in && name.p >= b->in->start && name.p < b->in->end) || place_late_names(b);
}

bool place_new_tensor(struct place_new *b, const struct tensor *t)
{
	struct place *p = b->p;
	if (!place_grow(b, &p->tensors, &b->cap_tensors, p->n_tensors, sizeof(*p->tensors)))
		return false;
	struct tensor *o = &p->tensors[p->n_tensors];
	*o = *t;
	if (!name_later(b, t->id, p->n_tensors, true))
		return false;
	o->part = b->n_parts ? b->n_parts - 1 : 0;
	o->pos = p->n_tensors;
	if (b->form == PLACE_PARTS)
		o->pos = b->parts[b->n_parts - 1].n_tensors++;
	p->n_tensors++;
	/* few dtypes and layouts: the last one again, most often */
	if (p->n_tensors > 1 && bytes_eq(o[-1].dtype, o->dtype))
		o->dtype = o[-1].dtype;
	else if (!place_copy(b, t->dtype, &o->dtype))
		return false;
	if (p->n_tensors > 1 && bytes_eq(o[-1].layout, o->layout))
		o->layout = o[-1].layout;
	else if (!place_copy(b, t->layout, &o->layout))
		return false;
	return copy_u64s(b, t->shape, t->n_dims, &o->shape) &&
	       copy_u64s(b, t->shard_dims, t->n_shard, &o->shard_dims);
}

bool place_new_part(struct place_new *b, struct bytes id, const struct rank *r)
{
	if (!place_grow(b, &b->parts, &b->cap_parts, b->n_parts, sizeof(*b->parts)))
		return false;
	struct part_in *q = &b->parts[b->n_parts++];
	*q = (struct part_in){ .rank = *r, .first = b->p->n_frags, .odd_pos = UINT32_MAX };
	q->first_tensor = b->p->n_tensors;
	b->frag_rank = *r;
	return place_copy(b, id, &q->id);
}

static int u32_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* The group's index: groups with the same members, in any order, are one. */
static bool alias_group(struct place_new *b, const struct bytes *names, uint32_t n,
			uint32_t *out)
{
	uint32_t small[16], *v = n <= 16 ? small : place_tmp(b, n * sizeof(*v));
	*out = 0;
	if (!v)
		return place_no_memory(b);
	for (uint32_t i = 0; i < n; i++)
		v[i] = names_put(&b->names, names[i], &b->p->mem);
	qsort(v, n, sizeof(*v), u32_cmp);
	uint32_t before = b->groups.n;
	uint32_t g = names_put(&b->groups, BYTES(v, n * sizeof(*v)), &b->p->mem);
	bool ok = v[n - 1] != NAMES_NONE && g != NAMES_NONE;
	if (v != small)
		free(v);
	if (!ok)
		return place_no_memory(b);
	*out = g + 1;
	if (b->groups.n == before)
		return true;
	if (!place_grow(b, &b->p->aliases, &b->cap_aliases, b->p->n_aliases,
			sizeof(*b->p->aliases)))
		return false;
	b->p->aliases[b->p->n_aliases++] = (struct alias){ .n = n };
	return true;
}

/* Boxes lie by themselves, since they move once it is known where to. A chunk more of them is held
 * against the same limit as all else. */
static bool copy_box(struct place_new *b, const uint64_t *in, uint32_t n_dims,
		     const uint64_t **out)
{
	size_t n = 2ull * MAX_OF(n_dims, 1) * sizeof(*in);
	uint64_t *p = arena_alloc(&b->boxes, n);
	if (!p) {
		b->boxes.limit = b->boxes.held + place_room(b);
		p = arena_alloc(&b->boxes, n);
		b->boxes.limit = b->boxes.held;
		limit_mem(b);
	}
	if (!p)
		return place_no_memory(b);
	if (n_dims)
		memcpy(p, in, n);
	*out = p;
	return true;
}

/* Does the fragment's rank, in the input, differ from those before it? */
static void note_rank(struct place_new *b, struct part_in *q, uint32_t pos)
{
	if (pos == 0) {
		q->frag_rank = b->frag_rank;
	} else if (q->odd_pos == UINT32_MAX && rank_cmp(&q->frag_rank, &b->frag_rank) != 0) {
		q->odd_pos = pos;
		q->odd_rank = b->frag_rank;
	}
}

bool place_new_frag(struct place_new *b, struct bytes id, struct bytes tensor,
		    const uint64_t *box, uint32_t n_dims, uint64_t nbytes,
		    const uint64_t *stage, const struct bytes *aliases, uint32_t n_aliases)
{
	struct place *p = b->p;
	if (!place_grow(b, &p->frags, &b->cap_frags, p->n_frags, sizeof(*p->frags)))
		return false;
	struct part_in *q = &b->parts[b->n_parts - 1];
	struct frag *f = &p->frags[p->n_frags];
	*f = (struct frag){ .nbytes = nbytes, .part = b->n_parts - 1, .pos = q->n };
	f->n_dims = f->n_shape = (uint8_t)n_dims;
	f->has_stage = stage != NULL;
	f->stage = stage ? *stage : 0;
	p->staged |= f->has_stage;
	if (!name_later(b, tensor, p->n_frags, false))
		return false;
	if (n_aliases && !alias_group(b, aliases, n_aliases, &f->alias))
		return false;
	note_rank(b, q, q->n);
	q->n++;
	p->n_frags++;
	return copy_box(b, box, n_dims, &f->box) && (!id.n || place_copy(b, id, &f->id));
}

static bool build(struct place_new *b)
{
	return place_check_topology(b) && place_check_tensors(b) && place_check_parts(b) &&
	       place_check_set(b) && place_check_whole(b) && place_check_cover(b) &&
	       place_derive(b);
}

enum err place_build(struct place_new *b, struct place **out)
{
	if (b->why->rule == RULE_NONE && build(b)) {
		*out = TAKE(b->p);
		return ERR_NONE;
	}
	return rule_err(b->why->rule);
}
