/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of services/ctl share: a scratch folder, a command line with its output caught.
 */
#pragma once

#include "ctl.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

/* A fresh folder below /tmp, removed by scratch_fini. */
struct scratch {
	char path[64];
};
void scratch_init(struct scratch *s);
void scratch_fini(struct scratch *s);
/* DIR/NAME, in one of eight static buffers. */
const char *scratch_at(const struct scratch *s, const char *name);
void scratch_write(const struct scratch *s, const char *name, const char *text, unsigned mode);
/* A where of which everything lies in the scratch folder. */
struct where scratch_where(const struct scratch *s);

/* One run of a command table, in this process. */
struct ran {
	int code;
	char *out, *err; /* free() by ran_fini */
	struct cli cli;
};
/* words: "up --pool 1GiB", split at blanks. */
void ran_do(struct ran *r, const struct cmd *cmds, const char *words);
void ran_fini(struct ran *r);
