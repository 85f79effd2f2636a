/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state as a walk that addresses, times and counters of events do not touch (the model checker).
 * Objects in key order, an object's copies by holder and slot; waiting calls by what they wait for.
 */
#include "mind_priv.h"

enum { KEYS = 64 /* a checker has a few; more are walked in the table's order */ };

static void fold_bytes(struct fold *f, const uint8_t *p, size_t n)
{
	f->word(f, n);
	for (size_t i = 0; i < n; i++)
		f->word(f, p[i]);
}

static void fold_copy(const struct copy *c, struct fold *f)
{
	f->word(f, (uint64_t)c->holder << 32 | c->slot);
	f->word(f, (uint64_t)c->state << 16 |
			   (uint64_t)(c->flags & ~(COPY_COMING | COPY_LATER)) << 8 | c->reason);
	f->version(f, c->version);
	f->generation(f, c->generation);
	f->word(f, c->n_ranges ? c->ranges[0].offset : UINT64_MAX);
}

static int copy_cmp(const void *a, const void *b)
{
	const struct copy *x = *(struct copy *const *)a, *y = *(struct copy *const *)b;
	uint64_t p = (uint64_t)x->holder << 32 | x->slot,
		 q = (uint64_t)y->holder << 32 | y->slot;
	return p < q ? -1 : p > q;
}

static void fold_copies(const struct obj *o, struct fold *f)
{
	const struct copy *all[KEYS];
	size_t n = 0;
	for (const struct copy *c = o->copies; c && n < KEYS; c = c->next)
		all[n++] = c;
	qsort(all, n, sizeof(all[0]), copy_cmp);
	f->word(f, n);
	for (size_t i = 0; i < n; i++)
		fold_copy(all[i], f);
}

static void fold_attempt(const struct attempt *a, struct fold *f)
{
	f->word(f, a != NULL);
	if (!a)
		return;
	fold_bytes(f, a->client->id, sizeof(a->client->id));
	f->word(f, a->number);
	f->version(f, a->version);
	f->word(f, (uint64_t)a->holder << 1 | a->fencing);
	f->word(f, a->n_ranges ? a->ranges[0].offset : UINT64_MAX);
}

static void fold_work(const struct work *w, struct fold *f)
{
	f->word(f, w != NULL);
	if (!w)
		return;
	fold_attempt(w->attempt, f);
	for (const struct pull *p = w->pulls; p; p = p->next) {
		f->version(f, p->version);
		f->word(f, (uint64_t)p->holder << 8 | p->state);
		f->word(f, p->number);
		f->word(f, p->n_ranges ? p->ranges[0].offset : UINT64_MAX);
	}
	f->word(f, w->asking);
	list_for_each (it, &w->pubs) {
		const struct pub *p = list_entry(it, struct mind_call, node)->on;
		f->word(f, (uint64_t)p->holder << 32 | p->slot);
		f->version(f, p->version);
		f->generation(f, p->generation);
	}
	f->word(f, UINT64_MAX);
	list_for_each (it, &w->rems) {
		const struct rem *r = list_entry(it, struct rem, node);
		fold_bytes(f, r->client->id, sizeof(r->client->id));
		f->word(f, r->number);
		f->version(f, r->ceiling);
		f->word(f, !list_empty(&r->calls));
	}
	f->word(f, UINT64_MAX);
}

static int obj_cmp(const void *a, const void *b)
{
	const struct obj *x = *(struct obj *const *)a, *y = *(struct obj *const *)b;
	size_t n = MIN_OF(x->key_n, y->key_n);
	int c = x->tenant != y->tenant ? (int)x->tenant - (int)y->tenant
				       : memcmp(x->key, y->key, n);
	return c ? c : (int)x->key_n - (int)y->key_n;
}

static void fold_objs(const struct mind *m, struct fold *f)
{
	const struct obj *all[KEYS];
	size_t n = 0;
	map_for_each (it, &m->objs)
		if (n < KEYS)
			all[n++] = container_of(it, struct obj, node);
	qsort(all, n, sizeof(all[0]), obj_cmp);
	f->word(f, n);
	for (size_t i = 0; i < n; i++) {
		fold_bytes(f, all[i]->key, all[i]->key_n);
		f->word(f, obj_leased(m, all[i]));
		fold_copies(all[i], f);
		fold_work(all[i]->work, f);
	}
}

static void fold_holder(const struct holder *h, struct fold *f)
{
	uint64_t flags[] = { h->state,
			     h->known,
			     h->suspect,
			     h->want_in,
			     h->want_away,
			     h->want_gone,
			     h->new_row,
			     h->new_pool,
			     h->appending,
			     h->settling,
			     h->dropping,
			     h->row != NULL,
			     h->n_sent,
			     h->n_unsent,
			     h->n_later,
			     h->readopt_ns != 0,
			     h->retry_ns != 0,
			     h->row_ns != 0,
			     h->settled_seq == h->merge_seq };
	for (size_t i = 0; i < ARRAY_LEN(flags); i++)
		f->word(f, flags[i]);
	f->term(f, h->under.adoption);
	f->epoch(f, h->under.pool_epoch);
	f->word(f, h->cursor);
	list_for_each (it, &h->early) {
		const struct pub *p = list_entry(it, struct mind_call, node)->on;
		f->version(f, p->version);
	}
	f->word(f, UINT64_MAX);
	list_for_each (it, &h->quars)
		f->version(f, list_entry(it, struct quar, node)->version);
	f->word(f, UINT64_MAX);
}

static int client_cmp(const void *a, const void *b)
{
	const struct client *x = *(struct client *const *)a, *y = *(struct client *const *)b;
	return memcmp(x->id, y->id, sizeof(x->id));
}

static void fold_clients(const struct mind *m, struct fold *f)
{
	const struct client *all[KEYS];
	size_t n = 0;
	map_for_each (it, &m->clients)
		if (n < KEYS)
			all[n++] = container_of(it, struct client, node);
	qsort(all, n, sizeof(all[0]), client_cmp);
	for (size_t i = 0; i < n; i++) {
		if (all[i]->top == 0 && all[i]->closed[0] == 0)
			continue; /* as if it had never asked */
		fold_bytes(f, all[i]->id, sizeof(all[i]->id));
		f->word(f, all[i]->top);
		for (size_t w = 0; w < ARRAY_LEN(all[i]->closed); w++)
			if (all[i]->closed[w])
				f->word(f, all[i]->closed[w]);
	}
	f->word(f, UINT64_MAX);
}

static void fold_apps(const struct mind *m, struct fold *f)
{
	list_for_each (it, &m->apps) {
		const struct app *a = list_entry(it, struct app, node);
		f->word(f, (uint64_t)a->kind << 8 | a->away | a->gone << 1 | a->floored << 2);
		f->word(f, a->holder ? a->holder->index : UINT64_MAX);
		for (size_t i = 0; i < a->pub.n; i++) {
			const struct meta_rec *r = &a->recs[i];
			f->word(f, r->type);
			if (r->type == META_TOMB) {
				fold_bytes(f, r->TOMB.holder.p, r->TOMB.holder.n);
				fold_bytes(f, r->TOMB.key.p, r->TOMB.key.n);
				f->version(f, r->TOMB.ceiling);
				f->version(f, r->TOMB.now);
			}
		}
	}
	f->word(f, UINT64_MAX);
}

static void fold_waits(const struct list *l, struct fold *f)
{
	list_for_each (it, l) {
		const struct wput *w = list_entry(it, struct mind_call, node)->on;
		fold_bytes(f, w->who.client, 16);
		f->word(f, w->item.attempt);
	}
	f->word(f, UINT64_MAX);
}

void mind_fold(const struct mind *m, struct fold *f)
{
	f->term(f, m->term);
	f->version(f, m->last);
	f->word(f, m->retry_ns != 0);
	f->word(f, !list_empty(&m->todo));
	f->word(f, m->shows % 2);
	f->word(f, m->pull_last);
	fold_objs(m, f);
	for (uint32_t i = 0; i < m->n_holders; i++)
		fold_holder(m->holders[i], f);
	fold_clients(m, f);
	fold_apps(m, f);
	fold_waits(&m->space, f);
	for (uint32_t i = 0; i < m->n_tenants; i++)
		fold_waits(&m->tenant[i]->waits, f);
}
