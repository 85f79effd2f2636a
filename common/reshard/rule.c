/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/rule.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
	const char *name, *text;
	enum err err;
} rules[RULE_N] = { [RULE_NONE] = { "none", "nothing was refused", ERR_NONE },
#define RULE_ROW(id, str, e, what) [RULE_##id] = { str, what, ERR_##e },
		    RULE_TABLE(RULE_ROW)
#undef RULE_ROW
};

const char *rule_name(enum rule r)
{
	return rules[r < RULE_N ? r : RULE_NONE].name;
}

const char *rule_text(enum rule r)
{
	return rules[r < RULE_N ? r : RULE_NONE].text;
}

enum err rule_err(enum rule r)
{
	return rules[r < RULE_N ? r : RULE_NONE].err;
}

bool reject_set(struct reject *w, enum rule r, const char *path, const char *fmt, ...)
{
	if (w->rule != RULE_NONE)
		return false;
	w->rule = r;
	snprintf(w->path, sizeof(w->path), "%s", path);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(w->text, sizeof(w->text), fmt, ap);
	va_end(ap);
	return false;
}

enum err reject_why(const struct reject *w, struct why *why)
{
	if (w->rule == RULE_NONE)
		return ERR_NONE;
	return why_set(why, rule_err(w->rule), "%s%s%s: %s (%s)", rule_name(w->rule),
		       w->path[0] ? " at " : "", w->path, w->text, rule_text(w->rule));
}
