/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster as `status`, `top` and `drain` show it. op: pml_holders that went well.
 *
 * Thread: the main one.
 */
#pragma once

#include "base/json_out.h"
#include "pml_store.h"

#include <stdio.h>

/* A table of them, and a line with the number of objects. */
void holders_put(const struct pml_op *op, FILE *to);
/* The members `holders` and `objects` (answers.md) into an object that is open; op NULL: none, 0. */
void holders_json(struct json *j, const struct pml_op *op);
