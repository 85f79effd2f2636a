/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_scan against msgpack-c: what passes the scan, msgpack-c takes whole, within the memory that
 * the count of values allows. msgpack-c never sees what did not pass.
 */
#include "proto/wire.h"

#include <msgpack.h>

#define VALUES_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct why why = { 0 };
	enum err e = wire_scan(BYTES(data, size), VALUES_MAX, &why);
	assert(e == why.err);
	if (e != ERR_NONE)
		return 0;
	msgpack_zone zone;
	msgpack_object o;
	size_t off = 0;
	bool ok = msgpack_zone_init(&zone, 1024);
	assert(ok);
	assert(msgpack_unpack((const char *)data, size, &off, &zone, &o) ==
	       MSGPACK_UNPACK_SUCCESS);
	assert(off == size);
	msgpack_zone_destroy(&zone);
	return 0;
}
