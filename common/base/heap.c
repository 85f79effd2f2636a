/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

static bool before(const struct heap_node *a, const struct heap_node *b)
{
	return a->key != b->key ? a->key < b->key : a->seq < b->seq;
}

/* Two roots become one; either may be NULL. */
static struct heap_node *meld(struct heap_node *a, struct heap_node *b)
{
	if (!a || !b)
		return a ? a : b;
	if (before(b, a)) {
		struct heap_node *t = a;
		a = b;
		b = t;
	}
	b->next = a->child;
	b->prev = a;
	if (a->child)
		a->child->prev = b;
	a->child = b;
	return a;
}

/* The usual two passes, iterative: pair from the left, then meld from the right. */
static struct heap_node *merge_siblings(struct heap_node *first)
{
	struct heap_node *pairs = NULL;
	while (first) {
		struct heap_node *a = first, *b = a->next;
		first = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		struct heap_node *m = meld(a, b);
		m->next = pairs;
		pairs = m;
	}
	struct heap_node *root = NULL;
	while (pairs) {
		struct heap_node *rest = pairs->next;
		pairs->next = NULL;
		root = meld(root, pairs);
		pairs = rest;
	}
	return root;
}

void heap_insert(struct heap *h, struct heap_node *n, uint64_t key)
{
	assert(!n->linked);
	*n = (struct heap_node){ .key = key, .seq = h->next_seq++, .linked = true };
	h->root = meld(h->root, n);
	h->n++;
}

void heap_remove(struct heap *h, struct heap_node *n)
{
	if (!n->linked)
		return;
	struct heap_node *rest = merge_siblings(n->child);
	if (n == h->root) {
		h->root = rest;
	} else {
		if (n->prev->child == n)
			n->prev->child = n->next;
		else
			n->prev->next = n->next;
		if (n->next)
			n->next->prev = n->prev;
		h->root = meld(h->root, rest);
	}
	h->n--;
	*n = (struct heap_node){ 0 };
}
