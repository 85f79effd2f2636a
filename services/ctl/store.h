/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands on objects share: the handle, keys as people write them, waiting that shows
 * progress and that Ctrl-C ends.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/buf.h"
#include "ctl.h"
#include "pml_store.h"

/* A key as written: its bytes. */
struct store_key {
	uint8_t p[PML_KEY_MAX];
	size_t n;
};

/* "hex:6b31" is the bytes of those digits, anything else the text itself. A prefix may be empty.
 * ERR_INVALID_PARAMS (why). Pure. */
enum err store_key_read(const char *text, bool prefix, struct store_key *out, struct why *why)
	MUST_CHECK;
enum { STORE_KEY_TEXT = 4 + 2 * PML_KEY_MAX + 1 };
/* As store_key_read takes it back: hex unless it is printable ASCII that begins with no "hex:". Pure. */
const char *store_key_text(const void *p, size_t n, char out[STORE_KEY_TEXT]);

struct store {
	struct cli *c;
	struct where dir;
	struct pml *p;
	struct pml_cq *cq;
	int interrupt_fd;
	uint64_t deadline_ns;
};

/* An exit code; EXIT_OK_: s is open, store_close(). */
int store_open(struct cli *c, struct store *s);
void store_close(struct store *s);
/* Milliseconds of the command's deadline that are left, at least 1. */
uint32_t store_left_ms(const struct store *s);
/*
 * Waits for a started op, showing `what` and how far it is; on Ctrl-C, which from the first call on is
 * seen here alone, it is cancelled. Its code; err is filled when it failed.
 */
int store_wait(struct store *s, struct pml_op *op, const char *what, struct pml_error *err);
/* The command fails with that error; the exit code. */
int store_fail(struct store *s, const struct pml_error *err);
