/* SPDX-License-Identifier: Apache-2.0 */
#include "pg.h"

int main(int argc, char **argv)
{
	return svc_main(argc, argv, &pgc_def);
}
