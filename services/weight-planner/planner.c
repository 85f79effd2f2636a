/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17613") };
#undef CONF_T
static const struct conf_part conf_parts[] = { SVC_CONF_PART(shared_rows) };
static const struct conf_schema conf = { "planner", conf_parts, ARRAY_LEN(conf_parts),
					 svc_conf_check };

const struct svc_def wpl_def = {
	.name = "planner",
	.exe = "pomelo-weight-planner",
	.about = "Plans how a stored model is laid out anew.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct wpl),
	.needs_master = false,
	.conf = &conf,
};
