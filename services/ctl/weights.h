/* SPDX-License-Identifier: Apache-2.0 */
/* What the weights commands share: manifests in files, numbers and names in print. Thread: main's. */
#pragma once

#include "ctl.h"
#include "print.h"
#include "reshard/plan.h"

#define WEIGHTS_TOP	   10 /* largest tensors or transfers listed */
#define WEIGHTS_BLOCKS_MAX 64 /* ranks a side that the table of blocks shows */

enum weights_kind { KIND_WIRE, KIND_DRAFT, KIND_PARTS, KIND_STORED, KIND_LAYOUT };

struct manifest {
	struct buf text;
	enum weights_kind kind;
	struct place *place; /* one of the two, once opened */
	struct stored *stored;
};

/* The file as text, and what it is by its keys; not read further. An exit code. */
int weights_load(struct cli *c, const char *path, struct manifest *m);
/* The same, read and checked whole. */
int weights_open(struct cli *c, const char *path, struct manifest *m);
void weights_free(struct manifest *m);
/* A layout (topology file): reads the headers of its files and makes its placement. path: of the
 * layout; names of files are relative to its folder. An exit code. weights_layout.c */
int weights_layout(struct cli *c, const char *path, struct manifest *m);
/* Its text becomes the placement's canonical one, to be sent. */
int weights_canonical(struct cli *c, struct manifest *m);
/* The refusal of a text in path, as the command's failure. */
int weights_refused(struct cli *c, const char *path, enum err e, const struct reject *why);

/* "1.2 GiB"; into out. */
const char *weights_big(char *out, size_t size, unsigned __int128 n);
/* What a terminal may see of a name; into out. */
const char *weights_name(char *out, size_t size, struct bytes b);
/* "key": "name" */
void weights_kv(struct json *j, const char *key, struct bytes b);
