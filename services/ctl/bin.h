/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the services' executables are (answers.md): POMELO_BINDIR when set; else beside ourselves,
 * then the build tree's services/FOLDER, then libexec.
 *
 * Thread: any. Each call looks at the file system.
 */
#pragma once

#include "base/path.h"
#include "services.h"

/* The path of our own executable, PATH_BYTES_MAX. */
enum err bin_self(char *out, struct why *why) MUST_CHECK;
/*
 * self    bin_self()'s
 * bindir  POMELO_BINDIR or NULL
 * out     PATH_BYTES_MAX
 *
 * ERR_INVALID_PARAMS: not found or not executable; why says where it was looked for.
 */
enum err bin_find(const struct service_row *row, const char *self, const char *bindir,
		  char *out, struct why *why) MUST_CHECK;
