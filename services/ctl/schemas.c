/* SPDX-License-Identifier: Apache-2.0 */
/* The schemas of a build that has the services. */
#include "config.h"
#include "conf_up.h"
#include "sdk.h"
#include "svc/svc.h"

#define DECLARE(tag, name, exe, folder) extern const struct svc_def tag##_def;
SERVICES(DECLARE)
#undef DECLARE

size_t config_sources(struct config_source out[CONFIG_PARTS_MAX])
{
	static_assert(SERVICE_COUNT + 2 <= CONFIG_PARTS_MAX, "a place for each schema");
	size_t n = 0;
#define SOURCE(tag, name, exe, folder) \
	out[n++] = (struct config_source){ name, tag##_def.conf, tag##_def.size };
	SERVICES(SOURCE)
#undef SOURCE
	out[n++] =
		(struct config_source){ "client", &client_schema, sizeof(struct client_conf) };
	out[n++] = (struct config_source){ "up", &up_schema, sizeof(struct up_conf) };
	return n;
}
