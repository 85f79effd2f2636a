/* SPDX-License-Identifier: Apache-2.0 */
/* The roster: holders' rows. */
#include "meta/meta_priv.h"

#include <string.h>

static bool id_eq(const struct map_node *n, const void *key)
{
	const struct meta_holder *h = container_of(n, struct meta_holder, node);
	const struct bytes *id = key;
	return strlen(h->id) == id->n && memcmp(h->id, id->p, id->n) == 0;
}

struct meta_holder *meta_holder_of(const struct meta_state *st, struct bytes id)
{
	if (id.n == 0)
		return NULL;
	struct map_node *n = map_find(&st->holders, meta_hash(st, id.p, id.n, 'h'), id_eq, &id);
	return n ? container_of(n, struct meta_holder, node) : NULL;
}

static size_t strings_bytes(const struct msg_meta_holder *m)
{
	size_t n = m->host.n + 1 + m->fd_path.n + 1;
	for (size_t i = 0; i < m->addrs.n; i++)
		n += m->addrs.p[i].n + 1;
	return n;
}

static char *add_string(char *at, struct bytes s, const char **out)
{
	*out = at;
	if (s.n)
		memcpy(at, s.p, s.n);
	at[s.n] = '\0';
	return at + s.n + 1;
}

static enum err set_strings(struct meta_holder *h, const struct msg_meta_holder *m)
{
	assert(m->addrs.n <= ARRAY_LEN(h->addrs)); /* the row's limit */
	char *block = malloc(strings_bytes(m));
	if (!block)
		return ERR_NO_MEMORY;
	free(h->strings);
	h->strings = block;
	char *at = add_string(block, m->host, &h->host);
	at = add_string(at, m->fd_path, &h->fd_path);
	h->n_addrs = m->addrs.n;
	for (size_t i = 0; i < m->addrs.n; i++)
		at = add_string(at, m->addrs.p[i], &h->addrs[i]);
	return ERR_NONE;
}

static enum err holder_add(struct meta_state *st, struct bytes id, struct meta_holder **out)
{
	struct meta_holder *h = calloc(1, sizeof(*h));
	if (!h)
		return ERR_NO_MEMORY;
	assert(id.n < sizeof(h->id)); /* the row's limit */
	memcpy(h->id, id.p, id.n);
	h->st = st;
	map_init(&h->tombs, SIZE_MAX);
	list_init(&h->sweep);
	enum err e = map_insert(&st->holders, &h->node, meta_hash(st, id.p, id.n, 'h'));
	if (e != ERR_NONE) {
		free(h);
		return e;
	}
	st->bytes += sizeof(*h);
	*out = h;
	return ERR_NONE;
}

enum err holder_apply(struct meta_state *st, uint64_t seq, const struct msg_meta_holder *m)
{
	if (m->id.n == 0)
		return ERR_NOT_FOUND;
	struct meta_holder *h = meta_holder_of(st, m->id);
	enum err e = h ? ERR_NONE : holder_add(st, m->id, &h);
	if (e == ERR_NONE)
		e = set_strings(h, m);
	if (e != ERR_NONE)
		return e;
	st->n_away += (uint64_t)m->away - (uint64_t)h->away;
	h->kind = m->kind;
	h->away = m->away;
	h->away_since = m->away_since;
	h->term = m->term;
	h->adoption = m->adoption;
	h->row_seq = seq;
	memcpy(h->pool, m->pool, sizeof(h->pool));
	return ERR_NONE;
}

enum err forget_apply(struct meta_state *st, const struct msg_meta_forget *m)
{
	struct meta_holder *h = meta_holder_of(st, m->holder);
	if (!h)
		return ERR_NOT_FOUND;
	map_remove(&st->holders, &h->node);
	st->n_away -= h->away;
	h->gone = true;
	sweep_later(h);
	return ERR_NONE;
}

void holder_free(struct meta_holder *h)
{
	h->st->bytes -= sizeof(*h);
	tombs_fini(h);
	free(h->strings);
	free(h);
}

struct meta_rec holder_row(const struct meta_holder *h, struct bytes addrs[8])
{
	struct meta_rec r = { .type = META_HOLDER };
	for (size_t i = 0; i < h->n_addrs; i++)
		addrs[i] = BYTES_STR(h->addrs[i]);
	r.HOLDER = (struct msg_meta_holder){ .id = BYTES_STR(h->id),
					     .kind = (uint8_t)h->kind,
					     .addrs = { addrs, h->n_addrs },
					     .host = BYTES_STR(h->host),
					     .fd_path = BYTES_STR(h->fd_path),
					     .away = h->away,
					     .away_since = h->away_since,
					     .term = h->term,
					     .adoption = h->adoption };
	memcpy(r.HOLDER.pool, h->pool, sizeof(h->pool));
	return r;
}

/* ---- reading ---- */

const struct meta_holder *meta_holder_find(const struct meta_state *st, struct bytes id)
{
	return meta_holder_of(st, id);
}

static const struct meta_holder *of_node(struct map_node *n)
{
	return n ? container_of(n, struct meta_holder, node) : NULL;
}

const struct meta_holder *meta_holder_first(const struct meta_state *st)
{
	return of_node(map_first(&st->holders));
}

const struct meta_holder *meta_holder_next(const struct meta_state *st,
					   const struct meta_holder *h)
{
	return of_node(map_next(&st->holders, &h->node));
}

void meta_holder_info(const struct meta_holder *h, struct meta_holder_info *out)
{
	*out = (struct meta_holder_info){ .id = h->id,
					  .kind = h->kind,
					  .addrs = h->addrs,
					  .n_addrs = h->n_addrs,
					  .host = h->host,
					  .fd_path = h->fd_path,
					  .away = h->away,
					  .away_since = h->away_since,
					  .term = h->term,
					  .adoption = h->adoption };
	memcpy(out->pool, h->pool, sizeof(out->pool));
	out->n_tombs = tombs_alive(h, &out->tomb_bytes);
}
