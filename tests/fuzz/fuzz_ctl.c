/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the supervisor, the command line and the library read from others (B5). The first byte picks:
 * 'p' an answer of /readyz, 'r' run/NAME.json, 'e' run/endpoints.json, 's' the supervisor's status line.
 */
#include "sdk.h"
#include "up.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void fuzz_probe(const char *text, size_t n)
{
	struct reasons why = { 0 };
	bool ready = false;
	if (!probe_parse(text, n, &ready, &why))
		return;
	assert(why.n <= SUP_REASONS_MAX);
	for (size_t i = 0; i < why.n; i++)
		assert(strlen(why.text[i]) < SUP_REASON_BYTES);
	assert(!ready || memmem(text, n, " 200", 4));
}

static void fuzz_run(const char *text, size_t n)
{
	struct run_info info;
	if (run_parse(BYTES(text, n), "agent", &info) != ERR_NONE)
		return;
	assert(info.pid > 0 && info.n_rpc <= RUN_RPC_MAX && strlen(info.instance) == 32);
}

static void fuzz_endpoints(const char *text, size_t n)
{
	char *addrs[SDK_ADDRS_MAX] = { 0 };
	size_t got = endpoints_parse(BYTES(text, n), "agent", addrs);
	assert(got <= SDK_ADDRS_MAX);
	while (got > 0) {
		assert(addrs[got - 1][0]);
		free(addrs[--got]);
	}
}

static void fuzz_status(const char *text, size_t n)
{
	struct up_view v;
	json_t *o = json_loadb(text, n, 0, NULL);
	up_view_read(o, &v);
	json_decref(o);
	assert(v.n_ready <= SERVICE_COUNT && v.failed <= SERVICE_COUNT);
	for (size_t i = 0; i < SERVICE_COUNT; i++)
		assert(v.services[i].info.n_rpc <= RUN_RPC_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	if (n == 0)
		return 0;
	const char *text = (const char *)p + 1;
	switch (p[0]) {
	case 'p':
		fuzz_probe(text, n - 1);
		break;
	case 'r':
		fuzz_run(text, n - 1);
		break;
	case 'e':
		fuzz_endpoints(text, n - 1);
		break;
	case 's':
		fuzz_status(text, n - 1);
		break;
	}
	return 0;
}
