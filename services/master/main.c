/* SPDX-License-Identifier: Apache-2.0 */
#include "master.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &mst_def);
}
