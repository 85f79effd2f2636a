/* SPDX-License-Identifier: Apache-2.0 */
#define FUZZ_DEF       wpl_def
/* PLAN_BEGIN and what follows it; bodies long enough for a small text. */
#define FUZZ_METHOD(b) ((b) >= 200 && (b) < 210 ? 100u + (b) : (b))
#define FUZZ_LENGTH(b) (8u * (b))
#include "fuzz_service.h"
