/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "cli.h"

int main(int argc, char **argv)
{
	if (fault_built() && !fault_arm_text(getenv("POMELO_TEST_FAULTS")))
		return EXIT_USAGE_;
	struct cli c = { .cmds = cli_cmds, .out = stdout, .err = stderr };
	return cli_main(&c, argc, argv);
}
