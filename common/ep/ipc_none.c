/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/impl.h"

static const char *no_ipc(const struct ep_opts *o)
{
	(void)o;
	return "this build has no CUDA kernels (no nvcc when it was configured, or -Dcuda=disabled)";
}

const struct ep_transport_ops ep_ipc_ops = { .name = "ipc", .missing = no_ipc };
