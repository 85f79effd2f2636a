/* SPDX-License-Identifier: Apache-2.0 */
#include "owner.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &own_def);
}
