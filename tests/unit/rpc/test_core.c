/* SPDX-License-Identifier: Apache-2.0 */
/* The rpc core over the sp engine on loopback: calls, limits, deadlines, drain. */
#include <criterion/criterion.h>

#include "rpc_fix.h"
#include "support/leak.h"

#include <string.h>

TestSuite(core, .timeout = 20);

Test(core, echo_tcp)
{
	struct rpc_fix f;
	rpc_fix_open(&f, "tcp://127.0.0.1:0", NULL);
	struct rpc_client *cl = rpc_fix_client(&f, NULL);
	struct fix_call c = { .method = FIX_ECHO_M, .body = BYTES_STR("hello") };
	rpc_fix_call(&f, cl, &c);
	cr_assert_eq(c.err, ERR_NONE, "%s", c.call.why.text);
	cr_assert_eq(c.n_reply, 5);
	cr_assert_arr_eq(c.reply, "hello", 5);
	cr_assert_eq(c.term, 7);
	cr_assert_eq(f.last_peer.role, ROLE_ADMIN);
	cr_assert(rpc_client_up(cl));
	rpc_fix_close_client(&f, cl);
	rpc_fix_close(&f);
	NO_LEAKS();
}
