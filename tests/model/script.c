/* SPDX-License-Identifier: Apache-2.0 */
/* The way to the state in which a search begins. */
#include <stdio.h>
#include <string.h>

#include "tests/model/world.h"

struct script {
	struct world *w;
	uint16_t *out;
	size_t n, max;
};

static void cannot(const struct script *s, uint16_t e)
{
	fprintf(stderr, "model: %s: event %u %u of its beginning cannot be, after %zu\n",
		s->w->cfg->name, EVENT_KIND(e), EVENT_ARG(e), s->n);
	exit(2);
}

static void apply(struct script *s, uint16_t e)
{
	if (s->n == s->max)
		cannot(s, e);
	s->out[s->n++] = e;
	world_apply(s->w, e);
	memset(&s->w->left, 0, sizeof(s->w->left)); /* it has no budget */
	world_check(s->w);
	if (s->w->broken || s->w->overflow)
		cannot(s, e);
}

static bool quiet_one(struct script *s)
{
	uint16_t ev[W_EVENTS_MAX];
	size_t n = world_events(s->w, ev);
	for (size_t i = 0; i < n; i++)
		if (!event_is_choice(ev[i])) {
			apply(s, ev[i]);
			return true;
		}
	return false;
}

static void message(struct script *s, uint16_t e, enum w_event as)
{
	for (uint32_t i = 0; i < s->w->n_msgs; i++)
		if (s->w->msgs[i].kind == (enum w_msg_kind)EVENT_ARG(e)) {
			apply(s, EVENT(as, i));
			return;
		}
	cannot(s, e);
}

static void steps(struct script *s, uint16_t e)
{
	unsigned c = EVENT_ARG(e);
	if (s->w->clients[c].state != C_GRANTED)
		cannot(s, e);
	while (s->w->clients[c].state != C_COMMIT_SENT)
		apply(s, EVENT(E_STEP, c));
}

static void one(struct script *s, uint16_t e)
{
	switch (EVENT_KIND(e)) {
	case S_QUIET:
		while (quiet_one(s))
			;
		break;
	case S_SEND:
		message(s, e, E_DELIVER);
		break;
	case S_DUP:
		message(s, e, E_DUP);
		break;
	case S_STEPS:
		steps(s, e);
		break;
	case S_AWAY_OF:
		apply(s, EVENT(E_AWAY, s->w->versions[EVENT_ARG(e)].holder));
		break;
	default:
		apply(s, e);
	}
}

size_t world_script(struct world *w, uint16_t *out, size_t max)
{
	struct script s = { .w = w, .out = out, .max = max };
	memset(&w->left, 0, sizeof(w->left));
	for (const uint16_t *e = w->cfg->begin; e && *e; e++)
		one(&s, *e);
	w->left = w->cfg->budget;
	return s.n;
}
