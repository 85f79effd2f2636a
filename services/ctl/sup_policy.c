/* SPDX-License-Identifier: Apache-2.0 */
/* Pure policy of the supervisor. */
#include "sup.h"

uint64_t backoff_died(struct backoff *b, bool proven)
{
	if (proven || b->ms == 0)
		b->ms = SUP_BACKOFF_MIN_MS;
	else
		b->ms = MIN_OF(b->ms * 2, (uint64_t)SUP_BACKOFF_MAX_MS);
	return b->ms;
}

const char *child_state_name(enum child_state s)
{
	switch (s) {
	case CHILD_DOWN:
		return "down";
	case CHILD_STARTING:
		return "starting";
	case CHILD_RUNNING:
		return "running";
	case CHILD_STOPPING:
		return "stopping";
	case CHILD_STOPPED:
		return "stopped";
	}
	return "unknown";
}
