/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &xfa_def);
}
