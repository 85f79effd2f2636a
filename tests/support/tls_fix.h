/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Certificates for a test, made by tls_certs.sh in a folder of their own under /tmp (0.2 s).
 * Thread: any.
 */
#pragma once

#include "base/def.h"

struct tls_fix {
	char dir[64];
	char ca[96], other_ca[96];
	char server[96], server_key[96]; /* localhost, 127.0.0.1: DNS and IP names */
	char ip_only[96], ip_only_key[96];
	char wrong_name[96], wrong_name_key[96];
	char expired[96], expired_key[96];
	char client[96], client_key[96];
};

/* Asserts that it worked. */
void tls_fix_make(struct tls_fix *f);
void tls_fix_remove(struct tls_fix *f);
