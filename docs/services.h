/* SPDX-License-Identifier: Apache-2.0 */
/* Whose settings and metrics are on the pages: one line a service, and its header. */
#pragma once

#include "svc/svc.h"

/* clang-format off */
#define PAGE_SERVICES(F)
/* clang-format on */
