/* SPDX-License-Identifier: Apache-2.0 */
#include "store/keyheap.h"

enum err keyheap_init(struct keyheap *h, uint64_t bytes)
{
	assert(bytes > 0 && bytes % KEYHEAP_PAGE == 0);
	*h = (struct keyheap){ .n_pages = bytes / KEYHEAP_PAGE };
	h->class_of = calloc(h->n_pages, sizeof(*h->class_of));
	h->taken = calloc(h->n_pages, sizeof(*h->taken));
	enum err e = h->class_of && h->taken ? bits_init(&h->free, h->n_pages) : ERR_NO_MEMORY;
	for (unsigned c = 0; c < KEYHEAP_CLASSES && e == ERR_NONE; c++)
		e = bits_init(&h->room[c], h->n_pages);
	if (e)
		keyheap_fini(h);
	else
		bits_fill(&h->free);
	return e;
}

void keyheap_fini(struct keyheap *h)
{
	for (unsigned c = 0; c < KEYHEAP_CLASSES; c++)
		bits_fini(&h->room[c]);
	bits_fini(&h->free);
	free(h->class_of);
	free(h->taken);
	*h = (struct keyheap){ 0 };
}

static unsigned class_for(size_t n)
{
	assert(n > 0 && n <= KEYHEAP_PAGE);
	unsigned c = 0;
	while ((size_t)KEYHEAP_UNIT << c < n)
		c++;
	return c;
}

static uint64_t block_bytes(unsigned c)
{
	return (uint64_t)KEYHEAP_UNIT << c;
}

/* All blocks of a page of that class. */
static uint64_t full(unsigned c)
{
	uint64_t n = KEYHEAP_PAGE / block_bytes(c);
	return n == 64 ? UINT64_MAX : (1ull << n) - 1;
}

static void take_block(struct keyheap *h, uint64_t page, unsigned c, uint64_t block)
{
	if (h->class_of[page] == 0) {
		h->class_of[page] = (uint8_t)(c + 1);
		bits_del(&h->free, page);
		bits_add(&h->room[c], page);
	}
	h->taken[page] |= 1ull << block;
	h->used_bytes += block_bytes(c);
	if (h->taken[page] == full(c))
		bits_del(&h->room[c], page);
}

enum err keyheap_take(struct keyheap *h, size_t n, uint64_t *at)
{
	unsigned c = class_for(n);
	uint64_t page = bits_from(&h->room[c], 0);
	if (page == BITS_NONE)
		page = bits_from(&h->free, 0);
	if (page == BITS_NONE)
		return ERR_NO_SPACE;
	uint64_t block = (unsigned)__builtin_ctzll(~h->taken[page]);
	take_block(h, page, c, block);
	*at = page * KEYHEAP_PAGE + block * block_bytes(c);
	return ERR_NONE;
}

enum err keyheap_mark(struct keyheap *h, uint64_t at, size_t n)
{
	if (n == 0 || n > KEYHEAP_PAGE || at / KEYHEAP_PAGE >= h->n_pages)
		return ERR_CORRUPT;
	unsigned c = class_for(n);
	uint64_t page = at / KEYHEAP_PAGE, in_page = at % KEYHEAP_PAGE;
	uint64_t block = in_page / block_bytes(c);
	bool fits = h->class_of[page] == 0 || h->class_of[page] == c + 1;
	if (in_page % block_bytes(c) != 0 || !fits || (h->taken[page] >> block & 1))
		return ERR_CORRUPT;
	take_block(h, page, c, block);
	return ERR_NONE;
}

void keyheap_give(struct keyheap *h, uint64_t at, size_t n)
{
	unsigned c = class_for(n);
	uint64_t page = at / KEYHEAP_PAGE, block = at % KEYHEAP_PAGE / block_bytes(c);
	assert(h->class_of[page] == c + 1 && (h->taken[page] >> block & 1));
	h->taken[page] &= ~(1ull << block);
	h->used_bytes -= block_bytes(c);
	bits_add(&h->room[c], page);
	if (h->taken[page] != 0)
		return;
	h->class_of[page] = 0;
	bits_del(&h->room[c], page);
	bits_add(&h->free, page);
}
