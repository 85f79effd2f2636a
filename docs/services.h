/* SPDX-License-Identifier: Apache-2.0 */
/* Whose settings and metrics are on the pages: every service of services/services.def; and the
 * settings of the library and the supervisor. */
#pragma once

#include "services/services.def"
#include "svc/svc.h"

#define PAGE_DECLARE(tag, name, exe, folder) extern const struct svc_def tag##_def;
SERVICES(PAGE_DECLARE)
#undef PAGE_DECLARE

extern const struct conf_schema client_schema, up_schema;
