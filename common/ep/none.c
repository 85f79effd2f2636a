/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports this build does not have: chosen by name they say what they need, and nothing else.
 */
#include "ep/impl.h"

static const char *no_rdma(const struct ep_opts *o)
{
	(void)o;
	return "needs a verbs NIC and the cross-node build, which this release does not have";
}

static const char *no_ibgda(const struct ep_opts *o)
{
	(void)o;
	return "needs an mlx5 NIC and the optional ibgda build; inside one node use ipc";
}

static const char *no_nccl(const struct ep_opts *o)
{
	(void)o;
	return "needs NCCL >= 2.30.4 with the device API and the optional nccl build";
}

const struct ep_transport_ops ep_rdma_ops = { .name = "rdma", .missing = no_rdma };
const struct ep_transport_ops ep_ibgda_ops = { .name = "ibgda", .missing = no_ibgda };
const struct ep_transport_ops ep_nccl_ops = { .name = "nccl", .missing = no_nccl };
