/* SPDX-License-Identifier: Apache-2.0 */
#include "quota.h"

#include <string.h>

static bool name_ok(struct bytes name)
{
	if (name.n == 0 || name.n > 64)
		return false;
	for (size_t i = 0; i < name.n; i++)
		if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-",
			    name.p[i]) ||
		    name.p[i] == 0)
			return false;
	return true;
}

static struct mind_quota *row_of(struct mst_quotas *q, struct bytes name)
{
	for (size_t i = 0; i < q->n; i++)
		if (q->v[i].tenant.n == name.n && memcmp(q->v[i].tenant.p, name.p, name.n) == 0)
			return &q->v[i];
	if (q->n == MST_QUOTAS_MAX)
		return NULL;
	q->v[q->n] = (struct mind_quota){ .tenant = name };
	return &q->v[q->n++];
}

static enum err read_one(const char *text, bool pinned, struct mst_quotas *out, struct why *why)
{
	const char *eq = strrchr(text, '=');
	const struct bytes name = BYTES(text, eq ? (size_t)(eq - text) : 0);
	uint64_t size = 0;
	if (!eq || !name_ok(name))
		return why_set(why, ERR_INVALID_PARAMS,
			       "\"%.80s\": NAME=SIZE, the name 1..64 of A-Z a-z 0-9 . _ -",
			       text);
	if (!conf_parse_size(eq + 1, &size) || size == 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "\"%.80s\": a size as 4096, 4KiB, 1GiB, above 0", text);
	struct mind_quota *q = row_of(out, name);
	uint64_t *to = q ? (pinned ? &q->pinned : &q->memory) : NULL;
	if (!to)
		return why_set(why, ERR_INVALID_PARAMS, "more than %d tenants", MST_QUOTAS_MAX);
	if (*to)
		return why_set(why, ERR_INVALID_PARAMS, "\"%.80s\": the tenant stands twice",
			       text);
	*to = size;
	return ERR_NONE;
}

enum err mst_quotas_read(const struct conf_list *memory, const struct conf_list *pinned,
			 struct mst_quotas *out, int *bad, struct why *why)
{
	const struct conf_list *lists[] = { memory, pinned };
	out->n = 0;
	for (int l = 0; l < 2; l++)
		for (size_t i = 0; i < lists[l]->n; i++) {
			enum err e = read_one(lists[l]->v[i], l == 1, out, why);
			if (e == ERR_NONE)
				continue;
			*bad = l;
			return e;
		}
	return ERR_NONE;
}
