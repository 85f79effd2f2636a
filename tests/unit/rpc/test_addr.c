/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "rpc/addr.h"
#include "rpc/engine.h"
#include "support/leak.h"

#include <string.h>

TestSuite(addr, .timeout = 10);

struct good {
	char text[128];
	enum addr_scheme scheme;
	char host[64], path[128];
	uint16_t port;
};

ParameterizedTestParameters(addr, good)
{
	static struct good rows[] = {
		{ "tcp://127.0.0.1:17600", ADDR_TCP, "127.0.0.1", "", 17600 },
		{ "tcp://node-7.example:1", ADDR_TCP, "node-7.example", "", 1 },
		{ "tcp://*:0", ADDR_TCP, "*", "", 0 },
		{ "tcp://[::1]:65535", ADDR_TCP, "::1", "", 65535 },
		{ "tls+tcp://a:443", ADDR_TLS, "a", "", 443 },
		{ "ipc:///run/x.sock", ADDR_IPC, "", "/run/x.sock", 0 },
		{ "ipc://relative", ADDR_IPC, "", "relative", 0 },
		{ "sim://n1/master", ADDR_SIM, "n1", "master", 0 },
	};
	return cr_make_param_array(struct good, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct good *g, addr, good)
{
	struct addr a;
	struct why why = { 0 };
	char text[ADDR_TEXT_MAX];
	cr_assert_eq(addr_parse(g->text, &a, &why), ERR_NONE, "%s", why.text);
	cr_assert_eq(a.scheme, g->scheme);
	cr_assert_str_eq(a.host, g->host);
	cr_assert_str_eq(a.path, g->path);
	cr_assert_eq(a.port, g->port);
	addr_format(&a, text, sizeof(text));
	cr_assert_str_eq(text, g->text);
	NO_LEAKS();
}

struct bad {
	char text[64];
	enum err err;
	char says[64];
};

ParameterizedTestParameters(addr, bad)
{
	static struct bad rows[] = {
		{ "", ERR_INVALID_PARAMS, "must begin with tcp://" },
		{ "127.0.0.1:17600", ERR_INVALID_PARAMS, "must begin with tcp://" },
		{ "TCP://a:1", ERR_INVALID_PARAMS, "must begin with tcp://" },
		{ "tcp://", ERR_INVALID_PARAMS, "HOST:PORT" },
		{ "tcp://a", ERR_INVALID_PARAMS, "HOST:PORT" },
		{ "tcp://:1", ERR_INVALID_PARAMS, "HOST:PORT" },
		{ "tcp://::1:80", ERR_INVALID_PARAMS, "[brackets]" },
		{ "tcp://[::1]", ERR_INVALID_PARAMS, "HOST:PORT" },
		{ "tcp://[::1", ERR_INVALID_PARAMS, "HOST:PORT" },
		{ "tcp://a:", ERR_INVALID_PARAMS, "0..65535" },
		{ "tcp://a:65536", ERR_INVALID_PARAMS, "0..65535" },
		{ "tcp://a:999999", ERR_INVALID_PARAMS, "0..65535" },
		{ "tcp://a:-1", ERR_INVALID_PARAMS, "0..65535" },
		{ "tcp://a:1x", ERR_INVALID_PARAMS, "0..65535" },
		{ "ipc://", ERR_INVALID_PARAMS, "a path is wanted" },
		{ "sim://node", ERR_INVALID_PARAMS, "sim://NODE/NAME" },
		{ "sim:///x", ERR_INVALID_PARAMS, "sim://NODE/NAME" },
		{ "sim://x/", ERR_INVALID_PARAMS, "sim://NODE/NAME" },
	};
	return cr_make_param_array(struct bad, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct bad *b, addr, bad)
{
	struct addr a = { .port = 4711 };
	struct why why = { 0 };
	cr_assert_eq(addr_parse(b->text, &a, &why), b->err);
	cr_assert(strstr(why.text, b->says), "\"%s\" lacks \"%s\"", why.text, b->says);
	cr_assert_eq(a.port, 4711, "written on an error");
	NO_LEAKS();
}

Test(addr, path_limit)
{
	char text[200] = "ipc:///";
	struct addr a;
	struct why why = { 0 };
	memset(text + 7, 'p', ADDR_PATH_MAX - 1);
	cr_assert_eq(addr_parse(text, &a, NULL), ERR_NONE);
	text[strlen(text)] = 'p';
	cr_assert_eq(addr_parse(text, &a, &why), ERR_TOO_LARGE);
	cr_assert(strstr(why.text, "108 bytes"), "%s", why.text);
	cr_assert(strstr(why.text, "limit is 107"), "%s", why.text);
	cr_assert(strstr(why.text, "--run-dir"), "%s", why.text);
	NO_LEAKS();
}

Test(addr, host_limit)
{
	char text[400] = "tcp://";
	struct addr a;
	struct why why = { 0 };
	memset(text + 6, 'h', ADDR_HOST_MAX);
	strcat(text, ":1");
	cr_assert_eq(addr_parse(text, &a, &why), ERR_NONE);
	memset(text + 6, 'h', ADDR_HOST_MAX + 1);
	strcpy(text + 6 + ADDR_HOST_MAX + 1, ":1");
	cr_assert_eq(addr_parse(text, &a, &why), ERR_INVALID_PARAMS);
	NO_LEAKS();
}

Test(addr, engines)
{
	struct why why = { 0 };
	cr_assert_eq(engine_pick(NULL, "tcp://a:1", &why), &engine_sp);
	cr_assert_eq(engine_pick(NULL, "ipc://a", &why), &engine_sp);
	cr_assert_eq(engine_pick(NULL, "sim://a/b", &why), &engine_sim);
	cr_assert_eq(engine_pick("sp", "tcp://a:1", &why), &engine_sp);
	cr_assert_eq(engine_pick(NULL, "tls+tcp://a:1", &why), &engine_sp);
	cr_assert_eq(engine_pick("nng", "tls+tcp://a:1", &why), &engine_nng);
	cr_assert_null(engine_pick("sp", "sim://a/b", &why));
	cr_assert(strstr(why.text, "sp engine"), "%s", why.text);
	why = (struct why){ 0 };
	cr_assert_null(engine_pick(NULL, "http://a", &why));
	cr_assert(strstr(why.text, "http://a"), "%s", why.text);
	NO_LEAKS();
}
