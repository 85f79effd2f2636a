/* SPDX-License-Identifier: Apache-2.0 */
#include "owner.h"

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17612") };
#undef CONF_T
#define CONF_T struct own
static const struct conf_row own_rows[] = { OWNER_CONF(CONF_ROW) };
#undef CONF_T
static const struct conf_part conf_parts[] = {
	SVC_CONF_PART(shared_rows),
	{ .rows = own_rows, .n = ARRAY_LEN(own_rows) },
};
static const struct conf_schema conf = { "owner", conf_parts, ARRAY_LEN(conf_parts),
					 svc_conf_check };

const struct svc_def own_def = {
	.name = "owner",
	.exe = "pomelo-offload-owner",
	.about = "A node's durable tier: objects on disk, NVMe or object storage.",
	.role = ROLE_HOLDER,
	.size = sizeof(struct own),
	.needs_master = true,
	.conf = &conf,
};
