/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nng_tls.h"
#include "rpc/nng_sock.h"
#include "rpc/tls_load.h"

static nng_tls_auth_mode auth_mode(const struct tls_loaded *l, const char *host)
{
	if (host)
		return NNG_TLS_AUTH_MODE_REQUIRED;
	return l->ca.text ? NNG_TLS_AUTH_MODE_OPTIONAL : NNG_TLS_AUTH_MODE_NONE;
}

static int fill(nng_tls_config *cfg, const struct tls_loaded *l, const char *host)
{
	int rv = nng_tls_config_auth_mode(cfg, auth_mode(l, host));
	if (rv == 0 && l->ca.text)
		rv = nng_tls_config_ca_chain(cfg, l->ca.text, NULL);
	if (rv == 0 && l->cert.text)
		rv = nng_tls_config_own_cert(cfg, l->cert.text, l->key.text, NULL);
	if (rv == 0 && host)
		rv = nng_tls_config_server_name(cfg, host);
	return rv;
}

enum err nng_tls_config_new(const struct tls_files *f, const char *host, nng_tls_config **out,
			    struct why *why)
{
	struct tls_loaded l;
	nng_tls_config *cfg;
	enum err e = tls_load(f, !host, &l, why);
	if (e != ERR_NONE)
		return e;
	int rv = nng_tls_config_alloc(&cfg, host ? NNG_TLS_MODE_CLIENT : NNG_TLS_MODE_SERVER);
	if (rv == 0) {
		rv = fill(cfg, &l, host);
		if (rv != 0)
			nng_tls_config_free(cfg);
	}
	tls_unload(&l);
	if (rv == NNG_ENOTSUP)
		return why_set(
			why, ERR_UNSUPPORTED,
			"tls: this build of the nng library has no TLS engine; leave the "
			"engine to Pomelo (sp)");
	if (rv != 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: nng's TLS does not take the files given: %s",
			       nng_strerror(rv));
	*out = cfg;
	return ERR_NONE;
}
