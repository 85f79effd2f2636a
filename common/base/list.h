/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doubly linked list, embedded. A node that is on no list points at itself (list_init) or is
 * zeroed; list_del leaves it so. Thread: its owner's.
 */
#pragma once

#include "base/def.h"

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l || l->next == NULL;
}

/* Is this node on a list? */
static inline bool list_linked(const struct list *n)
{
	return n->next != NULL && n->next != n;
}

static inline void list_insert_after(struct list *at, struct list *n)
{
	n->next = at->next;
	n->prev = at;
	at->next->prev = n;
	at->next = n;
}

static inline void list_push_front(struct list *l, struct list *n)
{
	list_insert_after(l, n);
}

static inline void list_push_back(struct list *l, struct list *n)
{
	list_insert_after(l->prev, n);
}

/* Safe on a node that is on no list. */
static inline void list_del(struct list *n)
{
	if (n->next) {
		n->next->prev = n->prev;
		n->prev->next = n->next;
	}
	list_init(n);
}

/* NULL when empty. */
static inline struct list *list_pop_front(struct list *l)
{
	if (list_empty(l))
		return NULL;
	struct list *n = l->next;
	l->next = n->next;
	n->next->prev = l;
	list_init(n);
	return n;
}

#define list_entry(node, type, member) container_of(node, type, member)
#define list_for_each(it, l)	       for (struct list *it = (l)->next; it != (l); it = it->next)
/* The body may remove `it`, nothing else. */
#define list_for_each_safe(it, l)                                        \
	for (struct list *it = (l)->next, *it##_n = it->next; it != (l); \
	     it = it##_n, it##_n = it->next)
