/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placement being built, shared by the files that read, check and finish it.
 * Errors: each step returns false with the refusal set. Thread: the builder's.
 */
#pragma once

#include "reshard/names.h"
#include "reshard/place.h"

/* A part as the input has it. */
struct part_in {
	struct bytes id;
	struct rank rank;
	uint32_t first, n; /* of frags, in input order */
	/* ranks of its fragments: that of the first, and the first that differs from it */
	struct rank frag_rank, odd_rank;
	uint32_t odd_pos; /* UINT32_MAX: none */
	/* only of parts to be assembled */
	struct bytes resource_id, revision, set_id, topology_id;
	uint64_t generation;
	uint32_t first_tensor, n_tensors;
};

/* A participant of the topology. */
struct member {
	struct bytes id;
	struct rank rank;
	uint32_t pos;
};

/* A tensor's or fragment's name that is not numbered yet. It lies in the text that is being read. */
struct late {
	struct bytes name;
	uint64_t hash;
	uint32_t idx; /* of p->tensors or p->frags */
	bool tensor;
};

#define LATE 8 /* names on their way to the caches at once */

struct place_new {
	struct place *p; /* owned until place_build */
	struct place_limits lim;
	struct reject *why;
	enum place_form form;
	struct names names;  /* of tensors, as fragments and aliases call them */
	struct names groups; /* alias groups: bytes of their members' numbers */
	struct member *members;
	uint32_t n_members, cap_members;
	struct part_in *parts;
	uint32_t n_parts, cap_parts, cap_tensors, cap_frags, cap_aliases;
	struct bytes topology_id, place_id; /* as given; p NULL: not */
	uint32_t *listed;		    /* names of the tensors in the input's order */
	uint32_t *name_tensor;	/* number of a name -> index of the tensor, or UINT32_MAX */
	uint32_t *member_order; /* by id */
	struct box_join join;
	struct box_work work;
	size_t held;		  /* bytes of lists; arenas and names come on top */
	struct arena boxes;	  /* as the input has them; its limit: what it holds */
	bool in_order;		  /* fragments' parts are final */
	struct rank frag_rank;	  /* of the fragment that is added next */
	const struct json_in *in; /* the text being read; NULL: record by record */
	struct late late[LATE];	  /* the last n_late % LATE is the newest */
	uint32_t n_late;	  /* ever; all before n_numbered have their number */
	uint32_t n_numbered;
};

/* Numbers all names that are late. False: limit.memory. */
bool place_late_names(struct place_new *b);
/* Room for one more in a growing list. False: limit.count or limit.memory. */
bool place_grow(struct place_new *b, void *list, uint32_t *cap, uint32_t n, size_t each);
/* n bytes of the placement's memory; NULL: limit.memory. */
void *place_alloc(struct place_new *b, size_t n);
bool place_copy(struct place_new *b, struct bytes in, struct bytes *out);
bool place_no_memory(struct place_new *b);
/* Bytes that may still be taken. */
size_t place_room(const struct place_new *b);
/* n bytes that do not outlive the building, free(); NULL: limit.memory. */
void *place_tmp(struct place_new *b, size_t n);
/* The same, zeroed. */
void *place_zero(struct place_new *b, size_t n, size_t each);
/* As place_tmp, part of the placement or its making from here on: counted. */
void *place_keep(struct place_new *b, size_t n);
/* plan.cancelled; false. */
bool place_stopped(struct place_new *b);
/* In turn i of a long loop. False: cancelled. */
static inline bool place_go(struct place_new *b, size_t i)
{
	return !stop_at(b->lim.cancel, i) || place_stopped(b);
}
/* stop_touch. False: cancelled. */
bool place_touch(struct place_new *b, void *p, size_t n);
/* A sort failed: stopped, or for lack of memory. */
bool place_sort_fail(struct place_new *b);
/* A refusal with a printf-like path. */
bool place_fail(struct place_new *b, enum rule r, const char *text, const char *path_fmt, ...)
	PRINTF_LIKE(4, 5);
/* The path "parts[3].fragments[0]" and a field of it. */
bool place_fail_frag(struct place_new *b, enum rule r, const struct frag *f, const char *field,
		     const char *text);
bool place_fail_tensor(struct place_new *b, enum rule r, const struct tensor *t,
		       const char *field, const char *text);
/* work stopped: says why. */
bool place_work_fail(struct place_new *b, const struct box_work *w);

/* Shared by the readers of all texts. A list of at most `most` numbers: */
bool place_read_u64s(struct json_in *r, uint64_t *v, uint32_t most, uint32_t *n);
bool place_read_rank(struct json_in *r, struct rank *out);
/* The kind (enum axis_kind) or the semantics (enum axis_sem) of an axis. */
bool place_read_axis_word(struct json_in *r, bool is_kind, int *out);
bool place_read_kind(struct json_in *r); /* resource_kind */
bool place_read_tensor(struct json_in *r, struct tensor *t, uint64_t *shape, uint64_t *shard);
bool place_read_names(struct json_in *r, struct arena *mem, struct bytes **list, uint32_t *cap,
		      uint32_t *n);
/* RULE_NONE or the rule that the tensor breaks by itself; *field: where. */
enum rule place_tensor_rule(const struct tensor *t, const char **field);
/* The same for a box and its size, against its tensor. */
enum rule place_box_rule(const struct tensor *t, const uint64_t *box, uint32_t n_offset,
			 uint32_t n_shape, uint64_t nbytes, const char **field);
/* Equal but for the name (and the axes, unless axes is set). */
bool tensor_like(const struct tensor *a, const struct tensor *b, bool axes);

/* Steps of place_build, in this order. */
bool place_check_topology(struct place_new *b);
bool place_check_tensors(struct place_new *b);
bool place_check_parts(struct place_new *b);
bool place_check_set(struct place_new *b);
bool place_check_whole(struct place_new *b);
bool place_check_cover(struct place_new *b);
bool place_derive(struct place_new *b);

/* Derived ids (place_text.c). */
bool place_derive_topology(struct place_new *b);
bool place_derive_frags(struct place_new *b);
