/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "../../support/leak.h"
#include "soak.h"

Test(soak, events, .timeout = 600)
{
	soak_seeds(1, 60, 0, 1 << 20);
	NO_LEAKS();
}

/* A budget of two tombstones: floors. */
Test(soak, floors, .timeout = 600)
{
	soak_seeds(100001, 60, 2, 1 << 20);
	NO_LEAKS();
}

/* Room for a few objects only: puts wait, objects are evicted. */
Test(soak, little_space, .timeout = 600)
{
	soak_seeds(200001, 60, 0, 40960);
	NO_LEAKS();
}

/* Copies under way when everything else happens (V13). */
Test(soak, copies, .timeout = 600)
{
	soak_copies(500001, 60, 1 << 20);
	NO_LEAKS();
}

Test(soak, copies_in_little_space, .timeout = 600)
{
	soak_copies(600001, 30, 81920);
	NO_LEAKS();
}
