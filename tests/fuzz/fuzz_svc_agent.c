/* SPDX-License-Identifier: Apache-2.0 */
#define FUZZ_DEF xfa_def
#include "fuzz_service.h"
