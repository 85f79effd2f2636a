/* SPDX-License-Identifier: Apache-2.0 */
#define FUZZ_DEF pgc_def
#include "fuzz_service.h"
