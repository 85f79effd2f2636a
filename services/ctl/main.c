/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

int main(int argc, char **argv)
{
	struct cli c = { .cmds = cli_cmds, .out = stdout, .err = stderr };
	return cli_main(&c, argc, argv);
}
