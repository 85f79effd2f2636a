/* SPDX-License-Identifier: Apache-2.0 */
/* Tables as data: all of them in this program, what is wrong with one, its drawing. */
#include "loop/op.h"

#include <string.h>

/* The linker's names for the ends of the section; absent when no table is linked. */
extern const struct op_table *const __start_op_table_ptrs[]
	__attribute__((weak, visibility("hidden")));
extern const struct op_table *const __stop_op_table_ptrs[]
	__attribute__((weak, visibility("hidden")));

size_t op_tables(const struct op_table *const **out)
{
	*out = __start_op_table_ptrs;
	return __start_op_table_ptrs ? (size_t)(__stop_op_table_ptrs - __start_op_table_ptrs)
				     : 0;
}

static enum err check_step(const struct op_table *t, int i, struct why *w)
{
	const struct op_step *s = &t->steps[i];
	uint64_t known = OP_TO_DONE | ((1ull << t->n) - 1);
	if (!s->name || !s->fn)
		return why_set(w, ERR_INTERNAL, "%s: step %d has no name or no function",
			       t->name, i);
	if (s->to & ~known)
		return why_set(w, ERR_INTERNAL, "%s: %s moves to a state of no row", t->name,
			       s->name);
	if (s->stop && !s->waits)
		return why_set(w, ERR_INTERNAL, "%s: %s has a stop and never waits", t->name,
			       s->name);
	for (int k = 0; k < i; k++)
		if (strcmp(t->steps[k].name, s->name) == 0)
			return why_set(w, ERR_INTERNAL, "%s: two steps are called %s", t->name,
				       s->name);
	return ERR_NONE;
}

/* States that can be reached from state 0, a bit each. */
static uint64_t reached(const struct op_table *t)
{
	uint64_t seen = 1, before = 0;
	while (seen != before) {
		before = seen;
		for (int i = 0; i < t->n; i++)
			if (seen & 1ull << i)
				seen |= t->steps[i].to;
	}
	return seen;
}

/* States from which OP_DONE can be reached. */
static uint64_t ending(const struct op_table *t)
{
	uint64_t good = OP_TO_DONE, before = 0;
	while (good != before) {
		before = good;
		for (int i = 0; i < t->n; i++)
			if (t->steps[i].to & good)
				good |= 1ull << i;
	}
	return good;
}

enum err op_table_check(const struct op_table *t, struct why *w)
{
	if (t->n < 1 || t->n > OP_STATES_MAX)
		return why_set(w, ERR_INTERNAL, "%s: %d states; 1..%d are possible", t->name,
			       t->n, OP_STATES_MAX);
	for (int i = 0; i < t->n; i++) {
		enum err e = check_step(t, i, w);
		if (e)
			return e;
	}
	uint64_t in = reached(t), out = ending(t);
	for (int i = 0; i < t->n; i++) {
		if (!(in & 1ull << i))
			return why_set(w, ERR_INTERNAL, "%s: nothing moves to %s", t->name,
				       t->steps[i].name);
		if (!(out & 1ull << i))
			return why_set(w, ERR_INTERNAL, "%s: no way from %s to the end",
				       t->name, t->steps[i].name);
	}
	return ERR_NONE;
}

static void draw(const struct op_table *t, struct buf *out)
{
	buf_printf(out, "```mermaid\nstateDiagram-v2\n\tclassDef waits stroke-width:4px\n");
	for (int i = 0; i < t->n; i++)
		buf_printf(out, "\tstate \"%s\" as s%d%s\n", t->steps[i].name, i,
			   t->steps[i].waits ? ":::waits" : "");
	buf_printf(out, "\t[*] --> s0\n");
	for (int i = 0; i < t->n; i++) {
		for (int k = 0; k < t->n; k++)
			if (t->steps[i].to & 1ull << k)
				buf_printf(out, "\ts%d --> s%d\n", i, k);
		if (t->steps[i].to & OP_TO_DONE)
			buf_printf(out, "\ts%d --> [*]\n", i);
	}
	buf_printf(out, "```\n");
}

static void list_steps(const struct op_table *t, struct buf *out)
{
	buf_printf(out, "\n| step | may wait | moves to |\n|---|---|---|\n");
	for (int i = 0; i < t->n; i++) {
		const char *comma = "";
		buf_printf(out, "| %s | %s | ", t->steps[i].name,
			   !t->steps[i].waits		      ? ""
			   : t->steps[i].stop == op_stop_none ? "yes, to its end"
							      : "yes");
		for (int k = 0; k < t->n; k++)
			if (t->steps[i].to & 1ull << k) {
				buf_printf(out, "%s%s", comma, t->steps[k].name);
				comma = ", ";
			}
		buf_printf(out, "%s |\n",
			   t->steps[i].to & OP_TO_DONE ? *comma ? ", end" : "end" : "");
	}
}

void op_table_page(const struct op_table *t, struct buf *out)
{
	buf_printf(out,
		   "<!-- Written by `meson compile -C build states` from the step table. -->\n"
		   "# %s\n\nA thick border marks a step that may wait.\n\n",
		   t->name);
	draw(t, out);
	list_steps(t, out);
}
