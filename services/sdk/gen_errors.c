/* SPDX-License-Identifier: Apache-2.0 */
/* Prints pml_errors.h: the error table as an enum that stands alone, for C and C++. */
#include "base/err.h"

#include <stdio.h>

int main(void)
{
	puts("/* SPDX-License-Identifier: Apache-2.0 */\n"
	     "/* Made from the error table: numbers never change their meaning. */\n"
	     "#ifndef POMELO_PML_ERRORS_H\n#define POMELO_PML_ERRORS_H\n\nenum pml_err {");
#define LINE(name, number, retry, text, mooncake) \
	printf("\tPML_ERR_%s = %d, /* %s */\n", #name, number, text);
	ERR_TABLE(LINE)
#undef LINE
	puts("};\n\n#endif");
	return fflush(stdout) != 0;
}
