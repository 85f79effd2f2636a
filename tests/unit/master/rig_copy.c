/* SPDX-License-Identifier: Apache-2.0 */
/* The fake holders' side of copies: numbers (proto/holder.def), what is under way, PUBLISH and REPORT. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

static int slot_of(const struct fake *f, uint64_t version)
{
	for (int i = 0; i < FAKE_SLOTS; i++)
		if (f->slots[i].state && f->slots[i].version == version)
			return i;
	return -1;
}

static void forget(struct fake *f, size_t i)
{
	assert(i < f->n_copying);
	memmove(f->copying + i, f->copying + i + 1,
		(--f->n_copying - i) * sizeof(f->copying[0]));
}

void rig_copy_fence(struct fake *f, uint64_t version, uint64_t number)
{
	for (size_t i = 0; i < f->n_copying; i++)
		if (f->copying[i].version == version)
			forget(f, i--);
	f->revoked[f->n_revoked++ % FAKE_RING] = version;
	f->copy_top = MAX_OF(f->copy_top, number);
}

static enum err may_copy(const struct fake *f, uint64_t version, uint64_t number)
{
	int at = slot_of(f, version);
	for (size_t i = 0; i < f->n_copying; i++)
		if (f->copying[i].version == version && f->copying[i].number == number)
			return ERR_EXISTS; /* it is under way */
	if (at >= 0 && f->slots[at].state == 1)
		return ERR_EXISTS;
	for (size_t i = 0; i < MIN_OF(f->n_revoked, (size_t)FAKE_RING); i++)
		if (f->revoked[i] == version)
			return ERR_STALE_ATTEMPT;
	if (number <= f->copy_top)
		return ERR_STALE_ATTEMPT;
	return f->copies == COPIES_REFUSED ? f->copies_err : ERR_NONE;
}

static void take(struct rig *r, struct fake *f, const struct mind_copying *c)
{
	struct fake_copy *k = &f->copying[f->n_copying++];
	assert(f->n_copying <= FAKE_COPIES);
	*k = (struct fake_copy){ .version = c->version,
				 .number = c->number,
				 .size = c->size,
				 .sum = c->sum,
				 .n_ext = c->n_extents,
				 .has_opts = c->opts,
				 .n_sources = c->n_sources,
				 .from = rig_index(r, c->sources[0].holder) };
	snprintf(k->key, sizeof(k->key), "%.*s", (int)c->key.n, (const char *)c->key.p);
	snprintf(k->tenant, sizeof(k->tenant), "%.*s", (int)c->tenant.n,
		 (const char *)c->tenant.p);
	memcpy(k->ext, c->extents, c->n_extents * sizeof(k->ext[0]));
	if (c->opts) {
		k->opts = *c->opts;
		assert(k->opts.group.n <= sizeof(k->group) && k->opts.format.n == 0);
		if (k->opts.group.n)
			memcpy(k->group, k->opts.group.p, k->opts.group.n);
	}
	/* what is named as a source has the bytes */
	for (size_t i = 0; i < c->n_sources; i++) {
		const struct fake_slot *s =
			&r->h[rig_index(r, c->sources[i].holder)].slots[c->sources[i].slot];
		assert(s->state && s->version == c->version &&
		       s->generation == c->sources[i].generation && s->sum == c->sum);
	}
}

void rig_copy(struct rig *r, int h, const struct mind_cmd *c)
{
	struct fake *f = &r->h[h];
	struct mind_copying info;
	enum err e = may_copy(f, c->version, c->generation);
	if (e == ERR_NONE) {
		if (!mind_copying(r->m, c->holder, c->version, c->generation, &info))
			return; /* out of date: links.c does not send it */
		f->copy_top = c->generation;
		take(r, f, &info);
	}
	mind_copied(r->m, c->holder, &c->under, c->version, c->generation,
		    e == ERR_EXISTS ? ERR_NONE : e, 50);
	if (e == ERR_NONE && f->copies == COPIES_DONE)
		(void)rig_copy_done(r, h, f->n_copying - 1);
}

uint32_t rig_copy_commit(struct rig *r, int h, size_t i)
{
	struct fake *f = &r->h[h];
	const struct fake_copy k = f->copying[i];
	uint32_t at = 0;
	while (f->slots[at].state)
		at++;
	assert(at < FAKE_SLOTS && slot_of(f, k.version) < 0);
	struct fake_slot *s = &f->slots[at];
	uint64_t generation = s->generation;
	*s = (struct fake_slot){ .state = 1,
				 .version = k.version,
				 .generation = generation,
				 .size = k.size,
				 .sum = k.sum,
				 .n_ext = k.n_ext,
				 .opts = k.opts,
				 .has_opts = k.has_opts };
	memcpy(s->key, k.key, sizeof(s->key));
	memcpy(s->tenant, k.tenant, sizeof(s->tenant));
	memcpy(s->ext, k.ext, sizeof(s->ext));
	memcpy(s->group, k.group, sizeof(s->group));
	s->opts.group.p = (const uint8_t *)s->group;
	/* T6: no two slots over one range */
	for (int o = 0; o < FAKE_SLOTS; o++)
		for (size_t x = 0; o != (int)at && f->slots[o].state && x < s->n_ext; x++)
			for (size_t y = 0; y < f->slots[o].n_ext; y++)
				assert(s->ext[x].offset >= f->slots[o].ext[y].offset +
								   f->slots[o].ext[y].bytes ||
				       f->slots[o].ext[y].offset >=
					       s->ext[x].offset + s->ext[x].bytes);
	forget(f, i);
	return at;
}

struct published {
	struct mind_call c;
	int done;
};

static void on_published(struct mind_call *c)
{
	container_of(c, struct published, c)->done++;
}

enum err rig_copy_done(struct rig *r, int h, size_t i)
{
	uint32_t at = rig_copy_commit(r, h, i);
	struct fake_slot *s = &r->h[h].slots[at];
	const struct mind_under u = rig_under(r, h);
	const struct msg_publish_item it = {
		.slot = at, .generation = s->generation, .version = s->version, .sum = s->sum
	};
	struct published p = { .c.done = on_published };
	mind_publish(r->m, rig_holder(r, h), &u, &it, &p.c);
	if (!p.done) {
		mind_drop(r->m, &p.c);
		return ERR_TIMED_OUT;
	}
	if (p.c.err == ERR_NONE && s->state == 1)
		s->published = true;
	return p.c.err;
}

void rig_copy_fail(struct rig *r, int h, size_t i, enum err e, int source)
{
	struct fake *f = &r->h[h];
	const struct fake_copy k = f->copying[i];
	const struct mind_under u = rig_under(r, h);
	const struct msg_copy_fail m = { .version = k.version,
					 .attempt = k.number,
					 .status = e,
					 .text = BYTES_STR("as the test wants it"),
					 .source = source < 0 ? BYTES(NULL, 0)
							      : BYTES_STR(r->h[source].id) };
	forget(f, i);
	mind_copy_failed(r->m, rig_holder(r, h), &u, &m);
}

size_t rig_replicas(struct rig *r, const char *key, int where[OBJ_EXTENTS_MAX])
{
	struct mind_object o;
	struct why why = { 0 };
	const char *t = r->tenant ? r->tenant : "t";
	if (mind_lookup(r->m, BYTES_STR(t), BYTES_STR(key), 0, BYTES(NULL, 0), &o, &why) !=
	    ERR_NONE)
		return 0;
	for (size_t i = 0; where && i < o.n_replicas; i++)
		where[i] = rig_index(r, o.replicas[i].holder);
	return o.n_replicas;
}

bool rig_has(const struct rig *r, int h, const char *key)
{
	for (int i = 0; i < FAKE_SLOTS; i++)
		if (r->h[h].slots[i].state == 1 && strcmp(r->h[h].slots[i].key, key) == 0)
			return true;
	return false;
}
