/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
	enum err err;
	enum err_retry retry;
	const char *name;
	const char *text;
	const char *mooncake;
};

static const struct err_row rows[] = {
#define ERR_ROW(name, number, retry, text, mooncake) \
	{ ERR_##name, ERR_RETRY_##retry, #name, text, mooncake },
	ERR_TABLE(ERR_ROW)
#undef ERR_ROW
};

static const struct err_row *find(enum err e)
{
	static const struct err_row unknown = { ERR_INTERNAL, ERR_RETRY_NEVER, "UNKNOWN",
						"an error of a newer release",
						"INTERNAL_ERROR" };
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].err == e)
			return &rows[i];
	return &unknown;
}

const char *err_name(enum err e)
{
	return find(e)->name;
}

const char *err_text(enum err e)
{
	return find(e)->text;
}

const char *err_mooncake(enum err e)
{
	return find(e)->mooncake;
}

enum err_retry err_retry(enum err e)
{
	return find(e)->retry;
}

bool err_from_name(const char *name, enum err *out)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i].name, name) == 0) {
			*out = rows[i].err;
			return true;
		}
	return false;
}

enum err err_from_errno(int sys)
{
	switch (sys) {
	case ENOMEM:
		return ERR_NO_MEMORY;
	case ENOSPC:
	case EDQUOT:
		return ERR_NO_SPACE;
	case ENOENT:
		return ERR_NOT_FOUND;
	case EEXIST:
		return ERR_EXISTS;
	case EACCES:
	case EPERM:
		return ERR_FORBIDDEN;
	case EINVAL:
	case ENAMETOOLONG:
		return ERR_INVALID_PARAMS;
	case ETIMEDOUT:
		return ERR_TIMED_OUT;
	case ECANCELED:
		return ERR_CANCELLED;
	case ECONNREFUSED:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EADDRNOTAVAIL:
		return ERR_UNREACHABLE;
	case ECONNRESET:
	case EPIPE:
	case ECONNABORTED:
		return ERR_CONN_LOST;
	case EAGAIN:
	case EMFILE:
	case ENFILE:
	case EADDRINUSE:
		return ERR_BUSY;
	case ENOSYS:
	case EOPNOTSUPP:
		return ERR_UNSUPPORTED;
	default:
		return ERR_IO;
	}
}

void why_note(struct why *w, enum err e, const char *fmt, ...)
{
	if (!w || w->err != ERR_NONE)
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(w->text, sizeof(w->text), fmt, ap);
	va_end(ap);
	w->err = e;
}
