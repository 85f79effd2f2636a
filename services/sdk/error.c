/* SPDX-License-Identifier: Apache-2.0 */
#include "sdk.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool sdk_opts(void *out, size_t out_size, const void *in)
{
	size_t size = out_size;
	memset(out, 0, out_size);
	if (in)
		memcpy(&size, in, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return false;
	if (in)
		memcpy(out, in, MIN_OF(size, out_size));
	memcpy(out, &out_size, sizeof(out_size));
	return true;
}

void sdk_error_copy(struct pml_error *dst, const struct pml_error *src)
{
	size_t size = dst->size;
	if (size < sizeof(size) ||
	    size > 4096) /* not set by the caller: leave its memory alone */
		return;
	memcpy(dst, src, MIN_OF(size, sizeof(*src)));
	dst->size = size;
}

int sdk_error(struct pml_error *out, enum err e, uint32_t retry_ms, const char *peer,
	      const char *step, const char *fmt, ...)
{
	struct pml_error full = PML_ERROR_INIT;
	va_list ap;
	if (!out)
		return (int)e;
	full.code = (int)e;
	full.retry_ms = retry_ms;
	snprintf(full.peer, sizeof(full.peer), "%s", peer ? peer : "");
	snprintf(full.step, sizeof(full.step), "%s", step ? step : "");
	va_start(ap, fmt);
	vsnprintf(full.text, sizeof(full.text), fmt, ap);
	va_end(ap);
	sdk_error_copy(out, &full);
	return (int)e;
}

int sdk_error_why(struct pml_error *out, const struct why *why, const char *step)
{
	return sdk_error(out, why->err, 0, NULL, step, "%s", why->text);
}

const char *pml_error_name(int code)
{
	return err_name((enum err)code);
}

const char *pml_error_text(int code)
{
	return err_text((enum err)code);
}

bool pml_error_retryable(int code)
{
	return err_retry((enum err)code) != ERR_RETRY_NEVER;
}

const char *pml_version(void)
{
	return POMELO_VERSION;
}

bool pml_has(const char *feature)
{
	/* docs/client.md says what each stands for */
	static const char *const features[] = {
		"status",      "echo",	"cq",	   "cancel",  "fork",	 "ep",	      "weights",
		"plan_remote", "store", "regions", "tensors", "buffers", "snapshots", "tasks",
	};
	for (size_t i = 0; feature && i < ARRAY_LEN(features); i++)
		if (strcmp(features[i], feature) == 0)
			return true;
	return false;
}
