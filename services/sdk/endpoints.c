/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a service is. With client.masters the masters are there, wherever they are; everything else
 * is found on this box: run/endpoints.json as the supervisor merged it, then the socket that each
 * service always has (answers.md), for there may be no supervisor.
 */
#include "sdk.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { FILE_BYTES_MAX = 65536 };

static const json_t *find(const json_t *root, const char *service)
{
	size_t i;
	const json_t *v;
	json_array_foreach(json_object_get(root, "services"), i, v)
	{
		const char *name = json_string_value(json_object_get(v, "name"));
		if (name && strcmp(name, service) == 0)
			return v;
	}
	return NULL;
}

size_t endpoints_parse(struct bytes text, const char *service, char *addrs[SDK_ADDRS_MAX])
{
	json_t *root = json_loadb((const char *)text.p, text.n, 0, NULL), *v;
	size_t i, n = 0;
	json_array_foreach(json_object_get(find(root, service), "rpc"), i, v)
	{
		const char *s = json_string_value(v);
		char *copy = s && *s && n < SDK_ADDRS_MAX ? strdup(s) : NULL;
		if (copy)
			addrs[n++] = copy;
	}
	json_decref(root);
	return n;
}

static size_t from_masters(const struct pml *p, char *addrs[SDK_ADDRS_MAX])
{
	size_t n = 0;
	for (size_t i = 0; i < p->masters.n && n < SDK_ADDRS_MAX; i++) {
		addrs[n] = strdup(p->masters.v[i]);
		n += addrs[n] != NULL;
	}
	return n;
}

size_t endpoints_of(const struct pml *p, const char *service, char *addrs[SDK_ADDRS_MAX])
{
	char path[PATH_BYTES_MAX], sock[PATH_BYTES_MAX];
	struct buf text = BUF_INIT(FILE_BYTES_MAX + 1);
	size_t n = 0;
	if (strcmp(service, "master") == 0 && p->masters.n > 0)
		return from_masters(p, addrs);
	if (path_join(path, p->where.run, "endpoints.json", NULL) == ERR_NONE &&
	    path_read(path, FILE_BYTES_MAX, &text, NULL) == ERR_NONE)
		n = endpoints_parse(buf_bytes(&text), service, addrs);
	buf_fini(&text);
	int len = snprintf(sock, sizeof(sock), "ipc://%s/%s.sock", p->where.run, service);
	for (size_t i = 0; i < n; i++)
		if (strcmp(addrs[i], sock) == 0)
			return n;
	if (n < SDK_ADDRS_MAX && len < (int)sizeof(sock)) {
		addrs[n] = strdup(sock);
		n += addrs[n] != NULL;
	}
	return n;
}
