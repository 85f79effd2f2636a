/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parts of the key heap are in use: pages of 4 KiB, each cut into blocks of one power of two from
 * 64 bytes up. Lives in memory alone; a start rebuilds it from the slots (keyheap_mark). Lowest page
 * first, so that the file stays dense.
 * Thread: its owner's.
 */
#pragma once

#include "store/bits.h"

enum { KEYHEAP_PAGE = 4096, KEYHEAP_UNIT = 64, KEYHEAP_CLASSES = 7 };

struct keyheap {
	uint64_t used_bytes; /* of blocks */
	/* private */
	uint64_t n_pages;
	uint8_t *class_of;		   /* of a page, + 1; 0: free */
	uint64_t *taken;		   /* blocks of a page */
	struct bits free;		   /* pages */
	struct bits room[KEYHEAP_CLASSES]; /* pages of that class that are not full */
};

/* bytes: multiple of KEYHEAP_PAGE, not 0. ERR_NO_MEMORY. */
enum err keyheap_init(struct keyheap *h, uint64_t bytes) MUST_CHECK;
void keyheap_fini(struct keyheap *h);
/* A block of at least n bytes (1..4096). ERR_NO_SPACE. */
enum err keyheap_take(struct keyheap *h, size_t n, uint64_t *at) MUST_CHECK;
/* A start found n bytes in use there. ERR_CORRUPT: no such block, or taken. */
enum err keyheap_mark(struct keyheap *h, uint64_t at, size_t n) MUST_CHECK;
/* What take gave for n bytes. */
void keyheap_give(struct keyheap *h, uint64_t at, size_t n);
