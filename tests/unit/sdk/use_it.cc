// SPDX-License-Identifier: Apache-2.0
// The same program as C++ (see there).
#include "use_it.c"
