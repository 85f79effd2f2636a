/* SPDX-License-Identifier: Apache-2.0 */
/* A handle on a store in this process (sdk_server.h), for tests. Thread: the test's. */
#pragma once

#include "sdk_server.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <stdlib.h>

struct fix {
	struct sdk_server *s;
	struct fake *f;
	struct pml *p;
	struct pml_error err;
};

static inline void fix_open(struct fix *x)
{
	*x = (struct fix){ .s = sdk_server_start(), .err = PML_ERROR_INIT };
	x->f = sdk_server_store(x->s);
	struct pml_open_opts o = sdk_server_opts(x->s);
	o.deadline_ms = 10000;
	cr_assert_eq(pml_open(&o, &x->p, &x->err), 0, "%s", x->err.text);
}

static inline void fix_close(struct fix *x)
{
	pml_close(x->p);
	sdk_server_free(x->s);
}

static inline uint8_t *bytes_of(size_t n, uint32_t seed)
{
	uint8_t *p = malloc(n + 1);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i + seed) * 2654435761u >> 13);
	return p;
}
