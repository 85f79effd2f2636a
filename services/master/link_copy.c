/* SPDX-License-Identifier: Apache-2.0 */
/* COPY: tickets for the destination and for its sources, made when the message is (the mind says what is to be
 * copied just then); and its answer. */
#include "links_priv.h"
#include "rpc/ticket.h"

#include <string.h>

/* Sources a copy is told: the nearest. Each comes with a ticket and its addresses, up to some 3 KiB. */
#define SOURCES_MAX 4

struct out {
	struct mst *m;
	struct arena *arena;
	struct buf scratch;
};

static struct bytes keep(struct arena *a, const void *p, size_t n)
{
	uint8_t *room = arena_alloc(a, n + 1);
	if (room && n)
		memcpy(room, p, n);
	return BYTES(room, room ? n : 0);
}

static bool extents_out(struct arena *a, const struct extent *e, size_t n,
			struct list_extent *out)
{
	struct msg_extent *x = arena_alloc(a, (n + 1) * sizeof(*x));
	for (size_t i = 0; x && i < n; i++)
		x[i] = (struct msg_extent){ e[i].segment, e[i].offset, e[i].bytes };
	*out = (struct list_extent){ x, n };
	return x != NULL;
}

static enum err mint(struct out *o, uint32_t holder, const struct msg_ticket *t,
		     struct bytes *out)
{
	struct ticket_key *key = NULL;
	enum err e = mst_links_ticket_key(o->m, holder, &key);
	buf_clear(&o->scratch);
	if (e == ERR_NONE)
		e = ticket_mint(key, t, &o->scratch, NULL);
	if (e)
		return e;
	*out = keep(o->arena, o->scratch.p, o->scratch.n);
	return out->p ? ERR_NONE : ERR_NO_MEMORY;
}

static enum err source_out(struct out *o, const struct mind_copying *c,
			   const struct mind_replica *r, struct msg_copy_source *s)
{
	struct mind_holder h;
	if (!mind_holder(o->m->term.mind, r->holder, &h))
		return ERR_TEMPORARILY_AWAY;
	struct msg_ticket t = { .op = TICKET_READ,
				.tenant = c->tenant,
				.term = svc_meta_term(&o->m->meta),
				.size = c->size,
				.version = c->version,
				.slot = r->slot,
				.generation = r->generation,
				.sum = c->sum };
	memcpy(t.pool, h.pool, sizeof(t.pool));
	struct bytes *addrs = arena_alloc(o->arena, (h.n_addrs + 1) * sizeof(*addrs));
	if (!addrs || !extents_out(o->arena, r->extents, r->n_extents, &t.extents))
		return ERR_NO_MEMORY;
	for (size_t i = 0; i < h.n_addrs; i++)
		addrs[i] = keep(o->arena, h.addrs[i], strlen(h.addrs[i]));
	*s = (struct msg_copy_source){ .holder = keep(o->arena, h.id, strlen(h.id)),
				       .host = keep(o->arena, h.host, strlen(h.host)),
				       .addrs = { addrs, h.n_addrs },
				       .tier = h.kind == 2 ? 2 : 1 };
	return mint(o, r->holder, &t, &s->ticket);
}

static enum err item_out(struct out *o, const struct mind_cmd *cmd,
			 const struct mind_copying *c, struct msg_copy_item *it)
{
	struct mind_holder h;
	if (!mind_holder(o->m->term.mind, cmd->holder, &h))
		return ERR_TEMPORARILY_AWAY;
	struct msg_ticket t = { .op = TICKET_PULL,
				.tenant = c->tenant,
				.term = svc_meta_term(&o->m->meta),
				.pool_epoch = cmd->under.pool_epoch,
				.size = c->size,
				.version = c->version,
				.attempt = c->number,
				.key = c->key,
				.opts = c->opts,
				.sum = c->sum };
	memcpy(t.pool, h.pool, sizeof(t.pool));
	struct msg_copy_source *s = arena_alloc(o->arena, SOURCES_MAX * sizeof(*s));
	if (!s || !extents_out(o->arena, c->extents, c->n_extents, &t.extents))
		return ERR_NO_MEMORY;
	enum err e = mint(o, cmd->holder, &t, &it->ticket);
	size_t n = 0;
	for (; e == ERR_NONE && n < c->n_sources && n < SOURCES_MAX; n++)
		e = source_out(o, c, &c->sources[n], &s[n]);
	it->sources = (struct list_copy_source){ s, n };
	return e;
}

enum err link_encode_copies(struct lane *l, const struct msg_under *u, struct arena *a)
{
	struct out o = { .m = l->link->m, .arena = a, .scratch = BUF_INIT(TICKET_MAX) };
	struct msg_copy_item *it = arena_alloc(a, (l->n_sent + 1) * sizeof(*it));
	enum err e = it ? ERR_NONE : ERR_NO_MEMORY;
	size_t n = 0;
	list_for_each_safe (x, &l->sent) {
		struct link_cmd *k = list_entry(x, struct link_cmd, node);
		struct mind_copying c;
		if (e)
			break;
		if (mind_copying(o.m->term.mind, k->c.holder, k->c.version, k->c.generation,
				 &c)) {
			e = item_out(&o, &k->c, &c, &it[n++]);
			continue;
		}
		list_del(x); /* it has ended, or is said again when somebody has the bytes */
		free(k);
		l->n_sent--;
	}
	if (e == ERR_NONE)
		enc_copy_req(&l->body,
			     &(struct msg_copy_req){ .under = u, .items = { it, n } });
	buf_fini(&o.scratch);
	return e;
}

bool link_copies_refused(struct lane *l, enum err e, uint32_t retry_ms)
{
	struct mind *mind = l->link->m->term.mind;
	if (l->op != MIND_COPY || (e != ERR_UNKNOWN_METHOD && e != ERR_UNSUPPORTED &&
				   e != ERR_INVALID_PARAMS && e != ERR_BUSY))
		return false;
	list_for_each (x, &l->sent) {
		const struct mind_cmd *c = &list_entry(x, struct link_cmd, node)->c;
		mind_copied(mind, l->link->index, &l->under, c->version, c->generation, e,
			    retry_ms);
	}
	return true;
}

enum err link_copied(struct lane *l, struct dec *d, struct mind *mind)
{
	struct msg_results_rep m;
	enum err e = dec_results_rep(d, &m);
	size_t i = 0;
	if (e == ERR_NONE && m.items.n != l->n_sent)
		return why_set(d->why, ERR_BAD_MESSAGE, "%zu results for %zu copies", m.items.n,
			       l->n_sent);
	if (e)
		return e;
	list_for_each (x, &l->sent) {
		const struct mind_cmd *c = &list_entry(x, struct link_cmd, node)->c;
		const struct msg_result *r = &m.items.p[i++];
		enum err one = (enum err)r->status;
		mind_copied(mind, l->link->index, &l->under, c->version, c->generation, one,
			    r->retry_ms);
		if (one == ERR_STALE_TERM || one == ERR_STALE_EPOCH)
			e = why_set(d->why, one, "%s", err_text(one));
	}
	return e;
}
