/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nng_tls.h"
#include "rpc/nng_sock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A chain of certificates is some kilobytes; the system's bundle of CAs a few hundred. */
#define PEM_MAX (1u << 20)

struct pem {
	char *text; /* NUL at its end */
	size_t n;
};

static void pem_free(struct pem *p)
{
	if (p->text)
		explicit_bzero(p->text, p->n);
	free(p->text);
	*p = (struct pem){ 0 };
}

static enum err read_all(int fd, struct pem *p)
{
	p->text = malloc(PEM_MAX + 1);
	if (!p->text)
		return ERR_NO_MEMORY;
	ssize_t r;
	while (p->n < PEM_MAX && (r = read(fd, p->text + p->n, PEM_MAX - p->n)) != 0) {
		if (r < 0 && errno != EINTR)
			return err_from_errno(errno);
		p->n += r > 0 ? (size_t)r : 0;
	}
	p->text[p->n] = 0;
	return p->n == PEM_MAX ? ERR_TOO_LARGE : ERR_NONE;
}

/* what: "CA file", for the error. */
static enum err pem_read(const char *path, const char *what, struct pem *out, struct why *why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return why_set(why, err_from_errno(errno), "tls: cannot open the %s %s: %s",
			       what, path, strerror(errno));
	errno = 0;
	enum err e = read_all(fd, out);
	int sys = errno;
	close(fd);
	if (e == ERR_NONE && !strstr(out->text, "-----BEGIN "))
		e = why_set(why, ERR_INVALID_PARAMS,
			    "tls: the %s %s holds no PEM block (-----BEGIN ...)", what, path);
	else if (e == ERR_TOO_LARGE)
		why_set(why, e, "tls: the %s %s is over 1 MiB", what, path);
	else if (e != ERR_NONE)
		why_set(why, e, "tls: cannot read the %s %s: %s", what, path, strerror(sys));
	if (e != ERR_NONE)
		pem_free(out);
	return e;
}

static enum err config_new(nng_tls_mode mode, nng_tls_config **out, struct why *why)
{
	int rv = nng_tls_config_alloc(out, mode);
	if (rv == NNG_ENOTSUP)
		return why_set(
			why, ERR_UNSUPPORTED,
			"tls: this build of the nng library has no TLS engine; install one "
			"that has (Debian's libnng1), or use tcp:// behind a tunnel");
	if (rv != 0)
		return why_set(why, nng_to_err(rv), "tls: %s", nng_strerror(rv));
	return ERR_NONE;
}

static enum err add_ca(nng_tls_config *cfg, const char *path, struct why *why)
{
	struct pem ca = { 0 };
	enum err e = pem_read(path, "CA file", &ca, why);
	if (e != ERR_NONE)
		return e;
	int rv = nng_tls_config_ca_chain(cfg, ca.text, NULL);
	if (rv != 0)
		e = why_set(why, ERR_INVALID_PARAMS,
			    "tls: the CA file %s holds no valid certificate", path);
	pem_free(&ca);
	return e;
}

static enum err add_own(nng_tls_config *cfg, const struct tls_files *f, struct why *why)
{
	struct pem cert = { 0 }, key = { 0 };
	if (!f->cert || !f->key)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"tls: a certificate and its key go together; the %s is not given",
			f->cert ? "key" : "certificate");
	enum err e = pem_read(f->cert, "certificate", &cert, why);
	if (e == ERR_NONE)
		e = pem_read(f->key, "key", &key, why);
	if (e == ERR_NONE && nng_tls_config_own_cert(cfg, cert.text, key.text, NULL) != 0)
		e = why_set(
			why, ERR_INVALID_PARAMS,
			"tls: the certificate %s or the key %s is not valid, or they do not "
			"belong together",
			f->cert, f->key);
	pem_free(&cert);
	pem_free(&key);
	return e;
}

enum err nng_tls_client(const struct tls_files *f, const char *host, nng_tls_config **out,
			struct why *why)
{
	nng_tls_config *cfg;
	if (!f->ca)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"tls: no CA file is given; the server's certificate is always checked");
	enum err e = config_new(NNG_TLS_MODE_CLIENT, &cfg, why);
	if (e != ERR_NONE)
		return e;
	e = add_ca(cfg, f->ca, why);
	if (e == ERR_NONE && (f->cert || f->key))
		e = add_own(cfg, f, why);
	int rv = 0;
	if (e == ERR_NONE)
		rv = nng_tls_config_server_name(cfg, host);
	if (e == ERR_NONE && rv == 0)
		rv = nng_tls_config_auth_mode(cfg, NNG_TLS_AUTH_MODE_REQUIRED);
	if (rv != 0)
		e = why_set(why, nng_to_err(rv), "tls: %s", nng_strerror(rv));
	if (e != ERR_NONE)
		nng_tls_config_free(cfg);
	else
		*out = cfg;
	return e;
}

enum err nng_tls_server(const struct tls_files *f, nng_tls_config **out, struct why *why)
{
	nng_tls_config *cfg;
	if (!f->cert && !f->key)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: a tls+tcp:// listener needs a certificate and a key");
	enum err e = config_new(NNG_TLS_MODE_SERVER, &cfg, why);
	if (e != ERR_NONE)
		return e;
	e = add_own(cfg, f, why);
	if (e == ERR_NONE && f->ca)
		e = add_ca(cfg, f->ca, why);
	int rv = 0;
	if (e == ERR_NONE)
		rv = nng_tls_config_auth_mode(cfg, f->ca ? NNG_TLS_AUTH_MODE_OPTIONAL
							 : NNG_TLS_AUTH_MODE_NONE);
	if (rv != 0)
		e = why_set(why, nng_to_err(rv), "tls: %s", nng_strerror(rv));
	if (e != ERR_NONE)
		nng_tls_config_free(cfg);
	else
		*out = cfg;
	return e;
}
