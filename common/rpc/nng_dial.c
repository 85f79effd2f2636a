/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nng_dial.h"

#include <string.h>

static uint64_t counter(nng_stat *scope, const char *name)
{
	for (nng_stat *s = nng_stat_child(scope); s; s = nng_stat_next(s))
		if (strcmp(nng_stat_name(s), name) == 0)
			return nng_stat_value(s);
	return 0;
}

static nng_stat *find_dialer(nng_stat *root, nng_dialer d)
{
	for (nng_stat *s = nng_stat_child(root); s; s = nng_stat_next(s))
		if (strcmp(nng_stat_name(s), "dialer") == 0 &&
		    counter(s, "id") == (uint64_t)nng_dialer_id(d))
			return s;
	return NULL;
}

/* Kinds that a failed TLS handshake is counted under, depending on who broke it off. */
static bool tls_failed(nng_stat *s)
{
	return counter(s, "auth") > 0 || counter(s, "disconnect") > 0 ||
	       counter(s, "proto") > 0 || counter(s, "canceled") > 0;
}

static enum dial_state judge(nng_stat *s, bool tls, const char **text)
{
	static const struct {
		const char *name, *text;
	} kinds[] = {
		{ "refused", "connection refused: nobody listens there" },
		{ "timeout", "no answer to the connection" },
		{ "proto", "the peer does not speak SP" },
		{ "disconnect", "the peer closed the connection before SP's greeting" },
		{ "reject", "the peer is no SP server (REP)" },
		{ "oom", "no memory for a connection" },
		{ "other", "no such host or socket, or it cannot be reached" },
	};
	if (counter(s, "connect") > 0)
		return DIAL_PENDING; /* up is on its way */
	if (tls && tls_failed(s))
		return DIAL_TLS;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		if (counter(s, kinds[i].name) > 0) {
			*text = kinds[i].text;
			return DIAL_FAILED;
		}
	}
	return DIAL_PENDING;
}

enum dial_state nng_dial_failure(nng_dialer d, const struct addr *a, const char **text)
{
	nng_stat *root;
	if (nng_stats_get(&root) != 0)
		return DIAL_PENDING;
	nng_stat *s = find_dialer(root, d);
	enum dial_state r = s ? judge(s, a->scheme == ADDR_TLS, text) : DIAL_PENDING;
	nng_stats_free(root);
	return r;
}
