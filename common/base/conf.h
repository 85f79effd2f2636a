/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as rows (C2). A service lists its own rows in conf.def beside the shared ones; the rows
 * make the parser, `pomelo config`, the environment names and docs/configuration.md.
 *
 * A row: F(type, field, "name_unit", default text, min text, max text, "aliases", "what it does")
 *   types: bool u32 u64 ms size ratio str path addrs enum
 * Names: SERVICE.name_unit; environment POMELO_SERVICE_NAME_UNIT; `--set SERVICE.name=value`;
 * file `SERVICE.name = value`, # comments. Precedence: flag > environment > file > foreign > default.
 * Ours are strict: unknown or out of range stops the start with one line naming the setting, the
 * value, the range and the remedy. Foreign names (aliases) only fill what ours leave unset.
 *
 * Thread: built before the loop starts; read-only after.
 */
#pragma once

#include "base/err.h"
