/* SPDX-License-Identifier: Apache-2.0 */
/* A build without libnng: naming its engine is refused with one line, and nothing else changes. */
#include "rpc_fix.h"
#include "rpc/engine.h"
#include "support/leak.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(none, .timeout = 20);

static void set(void *flag)
{
	*(bool *)flag = true;
}

Test(none, server)
{
	struct loop l;
	struct why why = { 0 };
	struct keyring *keys;
	uint8_t secret[AUTH_KEY_BYTES] = { 1 }, instance[16] = { 2 };
	struct log log = { .svc = "t", .fd = 2 };
	struct rpc_server *s;
	bool closed = false;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	cr_assert_eq(keyring_new(secret, NULL, &keys), ERR_NONE);
	struct rpc_server_opts o = { .keys = keys,
				     .log = &log,
				     .instance = instance,
				     .name = "master",
				     .role = ROLE_SERVICE,
				     .engine = "nng" };
	cr_assert_eq(rpc_server_new(&l, &o, &s), ERR_NONE);
	cr_assert_eq(rpc_server_listen(s, "tcp://127.0.0.1:0", NULL, 0, &why), ERR_UNSUPPORTED);
	cr_assert(strstr(why.text, "no nng engine") && strstr(why.text, "tcp://127.0.0.1:0"),
		  "%s", why.text);
	rpc_server_close(s, set, &closed);
	while (!closed)
		loop_run_once(&l, true);
	loop_close(&l);
	keyring_free(keys);
	NO_LEAKS();
}

Test(none, client)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client_opts o = { .engine = "nng" };
	struct rpc_client *cl = rpc_fix_client(&f, &o);
	struct fix_call c = { .method = FIX_ECHO_M, .deadline_ms = 100 };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_UNREACHABLE, "%s: %s", err_name(c.err), c.call.why.text);
	cr_assert(strstr(c.call.why.text, "no nng engine"), "%s", c.call.why.text);
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}
