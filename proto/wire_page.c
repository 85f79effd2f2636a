/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_page.h"

#include "proto/messages.h"

#include <inttypes.h>

static const char page_head[] =
	"# Messages\n"
	"\n"
	"How the wire works is in\n"
	"[proto/README.md](../proto/README.md), the errors are in [errors.md](errors.md).\n"
	"\n"
	"Each message is a msgpack array of the fields below, in that order. Elements beyond them are\n"
	"skipped; missing trailing ones are zero, empty or nil. `since` is the wire version that "
	"brought\n"
	"a field; this release speaks %d to %d.\n";

static void print_roles(struct buf *out, uint32_t roles)
{
	static const char *const names[] = { "anyone, before the handshake", "client", "holder",
					     "service", "admin" };
	const char *sep = "";
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (!(roles & 1u << i))
			continue;
		buf_printf(out, "%s%s", sep, names[i]);
		sep = ", ";
	}
}

/* A link to a message's section; an anchor is in lower case. */
static void print_link(struct buf *out, const struct wire_msg *t)
{
	buf_printf(out, "[%s](#", t->name);
	for (const char *c = t->name; *c; c++)
		buf_printf(out, "%c", *c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
	buf_printf(out, ")");
}

static void page_methods(struct buf *out)
{
	size_t n;
	const struct wire_method *m = wire_methods(&n);
	buf_printf(
		out,
		"\n## Methods\n\n"
		"| number | name | request | reply | who | again after a lost connection | at the "
		"limit | what |\n|---|---|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < n; i++) {
		buf_printf(out, "| %u | %s | ", m[i].number, m[i].name);
		print_link(out, m[i].req());
		buf_printf(out, " | ");
		print_link(out, m[i].rep());
		buf_printf(out, " | ");
		print_roles(out, m[i].roles);
		buf_printf(out, " | %s | %s | %s |\n", m[i].idempotent ? "yes" : "no",
			   m[i].policy, m[i].doc);
	}
}

static void print_kind(struct buf *out, const struct wire_field *f)
{
	if (f->kind == WIRE_LIST)
		buf_printf(out, "list of ");
	if (f->of)
		print_link(out, f->of());
	else
		buf_printf(out, "%s", wire_kind_name(f->kind));
	if (f->kind == WIRE_OPT)
		buf_printf(out, " or nil");
}

static void print_limit(struct buf *out, const struct wire_field *f)
{
	if (f->each)
		buf_printf(out, "%" PRIu64 " items of %" PRIu64 " bytes", f->max, f->each);
	else if (f->kind == WIRE_STR || f->kind == WIRE_BIN)
		buf_printf(out, "%" PRIu64 " bytes", f->max);
	else if (f->max)
		buf_printf(out, "%" PRIu64 " items", f->max);
}

static void page_message(struct buf *out, const struct wire_msg *t)
{
	buf_printf(out, "\n### %s\n\n%s\n", t->name, t->doc);
	if (t->n_fields == 0)
		return;
	buf_printf(out,
		   "\n| | field | kind | at most | since | |\n|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < t->n_fields; i++) {
		const struct wire_field *f = &t->fields[i];
		buf_printf(out, "| %zu | %s | ", i, f->name);
		print_kind(out, f);
		buf_printf(out, " | ");
		print_limit(out, f);
		buf_printf(out, " | %u | %s |\n", f->since, f->doc);
	}
}

void wire_page(struct buf *out)
{
	const struct wire_msg *t;
	buf_printf(out, page_head, WIRE_VERSION_MIN, WIRE_VERSION);
	page_methods(out);
	buf_printf(out, "\n## Messages\n");
	for (size_t i = 0; (t = wire_message(i)); i++)
		page_message(out, t);
}
