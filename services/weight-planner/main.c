/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &wpl_def);
}
