/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli, reflected, as in iSCSI and ext4): headers and footers on disk.
 * Uses the processor's instruction where there is one (found at run time), else tables.
 * Thread: any. Pure.
 */
#pragma once

#include "base/def.h"

/* Over a then b: crc32c(crc32c(0, a), b). Start with 0. */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);
/* The table version, for tests. */
uint32_t crc32c_table(uint32_t crc, const void *p, size_t n);
