/* SPDX-License-Identifier: Apache-2.0 */
/* Holders that copies' bytes come from. */
#include "agent.h"

#include <string.h>

enum { REST_MS = 50, REST_DOUBLINGS = 6 }; /* to 3.2 s, as clients do (0035) */

static void source_free(struct xfa_pulls *p, struct xfa_source *s)
{
	list_del(&s->node);
	p->n_sources--;
	free(s);
}

/* Nobody uses it, and nothing is to be remembered of it; when there are too many, the oldest go. */
static void trim(struct xfa_pulls *p)
{
	list_for_each_safe (n, &p->sources) {
		struct xfa_source *s = list_entry(n, struct xfa_source, node);
		if (s->users == 0 &&
		    (p->n_sources > XFA_SOURCES_KEPT || !xfa_source_rests(p, s)))
			source_free(p, s);
	}
}

static bool same(const char *text, struct bytes b)
{
	return strlen(text) == b.n && (b.n == 0 || memcmp(text, b.p, b.n) == 0);
}

static void keep(char *to, size_t room, struct bytes from)
{
	size_t n = MIN_OF(from.n, room - 1);
	if (n)
		memcpy(to, from.p, n);
	to[n] = '\0';
}

struct xfa_source *xfa_source_get(struct xfa_pulls *p, struct bytes holder, struct bytes addr)
{
	list_for_each (n, &p->sources) {
		struct xfa_source *s = list_entry(n, struct xfa_source, node);
		if (same(s->holder, holder) && same(s->addr, addr)) {
			s->users++;
			return s;
		}
	}
	struct xfa_source *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	keep(s->holder, sizeof(s->holder), holder);
	keep(s->addr, sizeof(s->addr), addr);
	s->users = 1;
	list_push_back(&p->sources, &s->node);
	p->n_sources++;
	return s;
}

void xfa_source_put(struct xfa_pulls *p, struct xfa_source *s)
{
	assert(s->users > 0);
	if (--s->users == 0)
		trim(p);
}

bool xfa_source_rests(const struct xfa_pulls *p, const struct xfa_source *s)
{
	return loop_now_ns(p->x->svc.loop) < s->not_before_ns;
}

void xfa_source_went(struct xfa_pulls *p, struct xfa_source *s, enum err e, bool moved)
{
	bool lost = e == ERR_UNREACHABLE || e == ERR_CONN_LOST || e == ERR_TIMED_OUT;
	if (e == ERR_CANCELLED)
		return;
	if (!lost || moved) {
		s->fails = 0;
		s->not_before_ns = 0;
		return;
	}
	s->last = e;
	s->not_before_ns =
		clock_after_ms(loop_now_ns(p->x->svc.loop),
			       (uint64_t)REST_MS << MIN_OF(s->fails, (uint32_t)REST_DOUBLINGS));
	s->fails++;
}
