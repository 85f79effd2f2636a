/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cluster_priv.h"
const struct cl_ops cl_ops_real = { 0 };
