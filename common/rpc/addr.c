/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/addr.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
	const char *prefix;
	enum addr_scheme scheme;
} schemes[] = {
	{ "tcp://", ADDR_TCP },
	{ "tls+tcp://", ADDR_TLS },
	{ "ipc://", ADDR_IPC },
	{ "sim://", ADDR_SIM },
};

static const char *rest_of(const char *text, enum addr_scheme *out)
{
	for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
		size_t n = strlen(schemes[i].prefix);
		if (strncmp(text, schemes[i].prefix, n) == 0) {
			*out = schemes[i].scheme;
			return text + n;
		}
	}
	return NULL;
}

bool addr_scheme(const char *text, enum addr_scheme *out)
{
	return rest_of(text, out) != NULL;
}

static enum err parse_port(const char *text, const char *s, uint16_t *out, struct why *why)
{
	uint32_t v = 0;
	size_t n = strlen(s);
	bool ok = n >= 1 && n <= 5;
	for (size_t i = 0; ok && i < n; i++) {
		ok = s[i] >= '0' && s[i] <= '9';
		v = v * 10 + (uint32_t)(s[i] - '0');
	}
	if (!ok || v > UINT16_MAX)
		return why_set(why, ERR_INVALID_PARAMS,
			       "address %.160s: the port must be a number 0..65535", text);
	*out = (uint16_t)v;
	return ERR_NONE;
}

static enum err parse_host_port(const char *text, const char *rest, struct addr *a,
				struct why *why)
{
	const char *host = rest, *end, *colon;
	if (*rest == '[') {
		host = rest + 1;
		end = strchr(host, ']');
		colon = end && end[1] == ':' ? end + 1 : NULL;
	} else {
		colon = end = strchr(rest, ':');
	}
	if (!colon || end == host || strchr(colon + 1, ':'))
		return why_set(why, ERR_INVALID_PARAMS,
			       "address %.160s: HOST:PORT is wanted after the scheme; an IPv6 "
			       "host stands in [brackets]",
			       text);
	size_t n = (size_t)(end - host);
	if (n > ADDR_HOST_MAX)
		return why_set(why, ERR_INVALID_PARAMS,
			       "address %.160s: the host is longer than %d characters", text,
			       ADDR_HOST_MAX);
	memcpy(a->host, host, n);
	return parse_port(text, colon + 1, &a->port, why);
}

static enum err parse_path(const char *text, const char *rest, struct addr *a, struct why *why)
{
	size_t n = strlen(rest);
	if (n == 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "address %.160s: a path is wanted after ipc://", text);
	if (n > ADDR_PATH_MAX)
		return why_set(why, ERR_TOO_LARGE,
			       "socket path %.200s has %zu bytes, a unix socket's limit is %d: "
			       "choose a shorter folder with --run-dir",
			       rest, n, ADDR_PATH_MAX);
	memcpy(a->path, rest, n);
	return ERR_NONE;
}

static enum err parse_sim(const char *text, const char *rest, struct addr *a, struct why *why)
{
	const char *slash = strchr(rest, '/');
	size_t n = slash ? (size_t)(slash - rest) : 0;
	size_t m = slash ? strlen(slash + 1) : 0;
	if (n == 0 || m == 0 || n > ADDR_HOST_MAX || m > ADDR_HOST_MAX)
		return why_set(why, ERR_INVALID_PARAMS,
			       "address %.160s: sim://NODE/NAME is wanted", text);
	memcpy(a->host, rest, n);
	memcpy(a->path, slash + 1, m);
	return ERR_NONE;
}

enum err addr_parse(const char *text, struct addr *out, struct why *why)
{
	struct addr a = { 0 };
	const char *rest = rest_of(text, &a.scheme);
	if (!rest)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"address %.160s: it must begin with tcp://, ipc:// or tls+tcp://",
			text);
	enum err e = ERR_NONE;
	switch (a.scheme) {
	case ADDR_TCP:
	case ADDR_TLS:
		e = parse_host_port(text, rest, &a, why);
		break;
	case ADDR_IPC:
		e = parse_path(text, rest, &a, why);
		break;
	case ADDR_SIM:
		e = parse_sim(text, rest, &a, why);
		break;
	}
	if (e == ERR_NONE)
		*out = a;
	return e;
}

void addr_format(const struct addr *a, char *out, size_t size)
{
	const char *open = strchr(a->host, ':') ? "[" : "", *close = *open ? "]" : "";
	switch (a->scheme) {
	case ADDR_TCP:
	case ADDR_TLS:
		snprintf(out, size, "%s%s%s%s:%u",
			 a->scheme == ADDR_TCP ? "tcp://" : "tls+tcp://", open, a->host, close,
			 a->port);
		return;
	case ADDR_IPC:
		snprintf(out, size, "ipc://%s", a->path);
		return;
	case ADDR_SIM:
		snprintf(out, size, "sim://%s/%s", a->host, a->path);
		return;
	}
}

const char *addr_known_host(const char *host)
{
	return strcasecmp(host, "localhost") == 0 ? "127.0.0.1" : host;
}
