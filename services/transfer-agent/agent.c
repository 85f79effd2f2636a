/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17611") };
#undef CONF_T
#define CONF_T struct xfa
static const struct conf_row own_rows[] = { AGENT_CONF(CONF_ROW) };
#undef CONF_T
static const struct conf_part conf_parts[] = {
	SVC_CONF_PART(shared_rows),
	{ .rows = own_rows, .n = ARRAY_LEN(own_rows) },
};
static const struct conf_schema conf = { "agent", conf_parts, ARRAY_LEN(conf_parts),
					 svc_conf_check };

const struct svc_def xfa_def = {
	.name = "agent",
	.exe = "pomelo-transfer-agent",
	.about = "A node's memory pool and its data plane.",
	.role = ROLE_HOLDER,
	.size = sizeof(struct xfa),
	.needs_master = true,
	.conf = &conf,
};
