/* SPDX-License-Identifier: Apache-2.0 */
/* The schemas of a build of the client alone. */
#include "config.h"
#include "conf_up.h"
#include "sdk.h"

size_t config_sources(struct config_source out[CONFIG_PARTS_MAX])
{
	out[0] = (struct config_source){ "client", &client_schema, sizeof(struct client_conf) };
	out[1] = (struct config_source){ "up", &up_schema, sizeof(struct up_conf) };
	return 2;
}
