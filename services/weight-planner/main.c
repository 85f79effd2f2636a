/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include <malloc.h>

/* Texts and records of a plan are lists of megabytes: from this size on they are mapped, and go back to
 * the system when they are freed. Without it the library raises the threshold to what it once freed. */
#define MAPPED_BYTES (256 << 10)

int main(int argc, char **argv)
{
	mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
	return svc_main(argc, argv, &wpl_def);
}
