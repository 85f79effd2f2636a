/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV cache that was written by one rank and is read by two: each layer is an object of [tokens][heads][dim] halves;
 * a reader takes its half of the heads, as a strided region, into a dense tile. What it reads is a snapshot: all
 * layers are resolved and leased at once, so that no layer is of another version than its neighbours.
 *
 *	cc kv_tiles.c -o kv_tiles $(pkg-config --cflags --libs pomelo)
 *
 * Needs a running cluster (`pomelo up`); the data folder as everywhere: POMELO_DATA.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "pml_snapshot.h"

enum { LAYERS = 4, TOKENS = 128, HEADS = 8, DIM = 64, RANKS = 2, MINE = HEADS / RANKS };

static uint16_t cache[LAYERS][TOKENS][HEADS][DIM]; /* as the writer has it */
static uint16_t tiles[LAYERS][TOKENS][MINE][DIM];  /* as a reader wants it */
static char keys[LAYERS][32];
static struct pml_error err = PML_ERROR_INIT;

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s (%s)\n", what, err.text, pml_error_name(err.code));
	return 1;
}

static struct pml_item layer(int i)
{
	struct pml_item it = PML_ITEM_INIT;
	it.key = keys[i];
	it.key_bytes = strlen(keys[i]);
	return it;
}

static int write_all(struct pml *p)
{
	struct pml_item items[LAYERS];
	struct pml_buf bufs[LAYERS];
	struct pml_op *op = NULL;
	int i, e;
	for (i = 0; i < LAYERS; i++) {
		bufs[i].p = cache[i];
		bufs[i].n = sizeof(cache[i]);
		items[i] = layer(i);
		items[i].bufs = &bufs[i];
		items[i].n_bufs = 1;
	}
	if (pml_upsert_start(p, items, LAYERS, NULL, NULL, NULL, &op, &err))
		return failed("upsert");
	e = pml_op_wait(op);
	if (e)
		pml_op_error(op, &err);
	pml_op_free(op);
	return e ? failed("upsert") : 0;
}

/* The heads of a rank: for each token, MINE * DIM halves from the middle of its row. */
static struct pml_nd_region heads_of(int rank, void *tile)
{
	struct pml_nd_region r = PML_ND_REGION_INIT;
	r.memory = tile;
	r.memory_bytes = sizeof(tiles[0]);
	r.object_base = (uint64_t)rank * sizeof(tiles[0][0]);
	r.inner_bytes = sizeof(tiles[0][0]);
	r.n_dims = 1;
	r.counts[0] = TOKENS;
	r.object_strides[0] = sizeof(cache[0][0]);
	r.memory_strides[0] = sizeof(tiles[0][0]);
	return r;
}

static int read_rank(struct pml_snapshot *s, int rank)
{
	struct pml_nd_region regions[LAYERS];
	struct pml_item items[LAYERS];
	struct pml_op *op = NULL;
	int i, e;
	for (i = 0; i < LAYERS; i++) {
		regions[i] = heads_of(rank, tiles[i]);
		items[i] = layer(i);
		items[i].regions = &regions[i];
		items[i].n_regions = 1;
	}
	if (pml_snapshot_get_start(s, items, LAYERS, NULL, NULL, NULL, &op, &err))
		return failed("get");
	e = pml_op_wait(op); /* LEASE_LOST: a layer was replaced; open another snapshot */
	if (e)
		pml_op_error(op, &err);
	pml_op_free(op);
	return e ? failed("get") : 0;
}

static int check(int rank)
{
	int l, t;
	for (l = 0; l < LAYERS; l++)
		for (t = 0; t < TOKENS; t++)
			if (memcmp(tiles[l][t], cache[l][t][rank * MINE],
				   sizeof(tiles[l][t])) != 0)
				return 1;
	printf("rank %d has its heads of %d layers\n", rank, LAYERS);
	return 0;
}

static int run(struct pml *p)
{
	struct pml_item items[LAYERS];
	struct pml_snapshot *s = NULL;
	struct pml_buffer *tile_memory = NULL;
	int rank, bad = write_all(p), i;
	for (i = 0; i < LAYERS; i++)
		items[i] = layer(i);
	/* read again and again: its pages are there, and a wrong pointer is an error */
	if (!bad && pml_buffer_register(p, tiles, sizeof(tiles), NULL, &tile_memory, &err))
		bad = failed("register");
	if (!bad && pml_snapshot_open(p, items, LAYERS, NULL, &s, &err))
		bad = failed("snapshot");
	for (rank = 0; rank < RANKS && !bad; rank++)
		bad = read_rank(s, rank) || check(rank);
	pml_snapshot_close(s);
	pml_buffer_unregister(tile_memory);
	if (!bad && pml_remove_prefix(p, "example/kv/", 11, NULL, NULL, &err))
		bad = failed("remove_prefix");
	return bad;
}

int main(void)
{
	struct pml *p = NULL;
	uint16_t *v = &cache[0][0][0][0];
	int bad, i;
	for (i = 0; i < (int)(sizeof(cache) / sizeof(*v)); i++)
		v[i] = (uint16_t)(i * 31);
	for (i = 0; i < LAYERS; i++)
		snprintf(keys[i], sizeof(keys[i]), "example/kv/layer-%d", i);
	if (pml_open(NULL, &p, &err))
		return failed("open");
	bad = run(p);
	pml_close(p);
	return bad;
}
