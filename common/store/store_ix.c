/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_ix.h"

#include <string.h>

#include "base/sum.h"

#define PAGE_BYTES (1u << 20)

/* Seeded: keys are chosen by clients. */
static uint64_t hash_of(const struct ix *x, const struct store_id *id)
{
	uint8_t text[18 + 64 + OBJ_KEY_MAX];
	uint16_t n = (uint16_t)id->tenant.n;
	memcpy(text, &x->seed, 8);
	memcpy(text + 8, &id->version, 8);
	memcpy(text + 16, &n, 2);
	memcpy(text + 18, id->tenant.p, id->tenant.n);
	memcpy(text + 18 + id->tenant.n, id->key.p, id->key.n);
	return sum64(text, 18 + id->tenant.n + id->key.n);
}

static bool same_id(const struct map_node *n, const void *key)
{
	const struct ix_entry *e = container_of(n, const struct ix_entry, node);
	struct store_id id = ix_id(e);
	return store_id_equal(&id, key);
}

void ix_init(struct ix *x, uint64_t limit, uint64_t seed)
{
	*x = (struct ix){ .seed = seed };
	map_init(&x->map, limit);
}

static void free_node(struct map_node *n, void *arg)
{
	(void)arg;
	ix_entry_free(container_of(n, struct ix_entry, node));
}

void ix_fini(struct ix *x)
{
	/* bucket by bucket: nothing looks at a node again after fn had it */
	uint64_t cursor = 0;
	while (map_scan(&x->map, &cursor, 1024, free_node, NULL))
		;
	map_fini(&x->map);
	*x = (struct ix){ 0 };
}

struct ix_entry *ix_find(const struct ix *x, const struct store_id *id)
{
	struct map_node *n = map_find(&x->map, hash_of(x, id), same_id, id);
	return n ? container_of(n, struct ix_entry, node) : NULL;
}

struct ix_entry *ix_entry_new(const struct store_id *id, uint64_t size, uint64_t sum,
			      const uint64_t *vector)
{
	size_t blocks = sum_n_blocks(size);
	struct ix_entry *e = new_zeroed(sizeof(*e) + id->tenant.n + id->key.n);
	if (!e)
		return NULL;
	e->version = id->version;
	e->size = size;
	e->sum = sum;
	e->tenant_n = (uint8_t)id->tenant.n;
	e->key_n = (uint16_t)id->key.n;
	memcpy(e->names, id->tenant.p, id->tenant.n);
	memcpy(e->names + id->tenant.n, id->key.p, id->key.n);
	if (blocks > 0) {
		e->vector = malloc(blocks * sizeof(*vector));
		if (!e->vector) {
			free(e);
			return NULL;
		}
		memcpy(e->vector, vector, blocks * sizeof(*vector));
	}
	return e;
}

void ix_entry_free(struct ix_entry *e)
{
	if (!e)
		return;
	free(e->vector);
	free(e);
}

enum err ix_add(struct ix *x, struct ix_entry *e)
{
	struct store_id id = ix_id(e);
	enum err r = map_insert(&x->map, &e->node, hash_of(x, &id));
	if (r)
		return r;
	x->bytes += e->size;
	x->n_hidden += e->hidden;
	return ERR_NONE;
}

void ix_drop(struct ix *x, struct ix_entry *e)
{
	map_remove(&x->map, &e->node);
	list_del(&e->in_where);
	x->bytes -= e->size;
	x->n_hidden -= e->hidden;
	ix_entry_free(e);
}

void ix_show(struct ix *x, struct ix_entry *e)
{
	if (!e->hidden)
		return;
	e->hidden = false;
	x->n_hidden--;
}

/* ---- pages ---- */

struct page {
	struct store_scan *s;
	struct buf names;
	uint32_t cap;
};

static bool page_room(struct page *p)
{
	struct store_scan *s = p->s;
	if (s->n < p->cap)
		return true;
	uint32_t cap = MAX_OF(p->cap * 2, 64u);
	struct store_entry *more = realloc(s->entries, cap * sizeof(*more));
	if (!more)
		return false;
	s->entries = more;
	p->cap = cap;
	return true;
}

static void add_to_page(struct map_node *n, void *arg)
{
	struct page *p = arg;
	struct store_scan *s = p->s;
	const struct ix_entry *e = container_of(n, struct ix_entry, node);
	if (!ix_visible(e) || s->err)
		return;
	buf_put(&p->names, e->names, (size_t)e->tenant_n + e->key_n);
	if (buf_err(&p->names) || !page_room(p)) {
		s->err = ERR_NO_MEMORY;
		return;
	}
	s->entries[s->n++] = (struct store_entry){
		.id = { .tenant.n = e->tenant_n, .key.n = e->key_n, .version = e->version },
		.size = e->size,
		.sum = e->sum,
	};
}

/* The names may have moved while they came: they are pointed at now. */
static void point(struct store_scan *s, const uint8_t *names)
{
	for (uint32_t i = 0; i < s->n; i++) {
		struct store_id *id = &s->entries[i].id;
		id->tenant.p = names;
		id->key.p = names + id->tenant.n;
		names += id->tenant.n + id->key.n;
	}
}

void ix_scan(struct ix *x, struct store_scan *s)
{
	struct page p = { .s = s, .names = BUF_INIT(SIZE_MAX) };
	uint32_t most = s->max_bytes ? s->max_bytes : PAGE_BYTES;
	s->err = ERR_NONE;
	s->n = 0;
	s->entries = NULL;
	s->room = NULL;
	uint64_t cursor = s->cursor;
	do { /* a bucket or so at a time: the page ends near its bounds */
		uint32_t want = MIN_OF(s->max_items - MIN_OF(s->n, s->max_items), 16u);
		s->more = map_scan(&x->map, &cursor, want, add_to_page, &p);
	} while (s->more && !s->err && s->n < s->max_items && p.names.n < most);
	s->room = p.names.p;
	if (s->err) {
		store_scan_fini(s);
		return;
	}
	point(s, p.names.p);
	s->cursor = cursor;
}

void store_scan_fini(struct store_scan *s)
{
	free(s->entries);
	free(s->room);
	s->entries = NULL;
	s->room = NULL;
	s->n = 0;
}

void ix_has(const struct ix *x, struct store_has *r)
{
	for (uint32_t i = 0; i < r->n; i++) {
		struct store_has_item *it = &r->items[i];
		const struct ix_entry *e = store_id_valid(&it->id) ? ix_find(x, &it->id) : NULL;
		it->there = ix_visible(e);
		it->size = it->there ? e->size : 0;
		it->sum = it->there ? e->sum : 0;
	}
}
