/* SPDX-License-Identifier: Apache-2.0 */
/*
 * docs/wire.md from the rows: every method and message. Called by docs/gen_pages.c. Thread: any.
 */
#pragma once

#include "base/buf.h"

/* Appends the page; buf_err(out) tells of its limit. */
void wire_page(struct buf *out);
