/* SPDX-License-Identifier: Apache-2.0 */
#include "pg.h"

#define CONF_T struct svc_conf
static const struct conf_row shared_rows[] = { SVC_CONF(CONF_ROW, "17614") };
#undef CONF_T
static const struct conf_part conf_parts[] = { SVC_CONF_PART(shared_rows) };
static const struct conf_schema conf = { "pg", conf_parts, ARRAY_LEN(conf_parts),
					 svc_conf_check };

const struct svc_def pgc_def = {
	.name = "pg",
	.exe = "pomelo-pg-coordinator",
	.about = "Rank states, views and epochs of process groups.",
	.role = ROLE_SERVICE,
	.size = sizeof(struct pgc),
	.needs_master = false,
	.conf = &conf,
};
