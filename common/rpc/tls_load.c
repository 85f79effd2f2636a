/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/tls_load.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A chain of certificates is some kilobytes; a system's bundle of CAs a few hundred. */
#define PEM_MAX (1u << 20)

static void pem_free(struct tls_pem *p)
{
	if (p->text)
		explicit_bzero(p->text, p->n);
	free(p->text);
	*p = (struct tls_pem){ 0 };
}

void tls_unload(struct tls_loaded *l)
{
	pem_free(&l->ca);
	pem_free(&l->cert);
	pem_free(&l->key);
}

static enum err read_all(int fd, struct tls_pem *p)
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
static enum err pem_read(const char *path, const char *what, struct tls_pem *out,
			 struct why *why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return why_set(why, err_from_errno(errno), "tls: cannot open the %s %.160s: %s",
			       what, path, strerror(errno));
	errno = 0;
	enum err e = read_all(fd, out);
	int sys = errno;
	close(fd);
	if (e == ERR_NONE && !strstr(out->text, "-----BEGIN "))
		e = why_set(why, ERR_INVALID_PARAMS,
			    "tls: the %s %.160s holds no PEM block (-----BEGIN ...)", what,
			    path);
	else if (e == ERR_TOO_LARGE)
		why_set(why, e, "tls: the %s %.160s is over 1 MiB", what, path);
	else if (e != ERR_NONE)
		why_set(why, e, "tls: cannot read the %s %.160s: %s", what, path,
			strerror(sys));
	if (e != ERR_NONE)
		pem_free(out);
	return e;
}

/* No terminal to ask for a pass phrase: an encrypted key is an error. */
static int no_phrase(char *buf, int size, int rw, void *arg)
{
	(void)buf, (void)size, (void)rw, (void)arg;
	return 0;
}

static X509 *first_cert(const struct tls_pem *p)
{
	BIO *b = BIO_new_mem_buf(p->text, (int)p->n);
	X509 *x = b ? PEM_read_bio_X509(b, NULL, no_phrase, NULL) : NULL;
	BIO_free(b);
	return x;
}

static EVP_PKEY *first_key(const struct tls_pem *p)
{
	BIO *b = BIO_new_mem_buf(p->text, (int)p->n);
	EVP_PKEY *k = b ? PEM_read_bio_PrivateKey(b, NULL, no_phrase, NULL) : NULL;
	BIO_free(b);
	return k;
}

static enum err check_pair(const X509 *x, const EVP_PKEY *k, const struct tls_files *f,
			   struct why *why)
{
	if (!x)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: the certificate %.160s is not a valid one", f->cert);
	if (!k)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"tls: the key %.160s is not a valid one, or it is encrypted; store it "
			"without a pass phrase, mode 0600",
			f->key);
	if (X509_check_private_key(x, k) != 1)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: the key %.120s is not the one of the certificate %.120s",
			       f->key, f->cert);
	if (X509_cmp_current_time(X509_get0_notAfter(x)) < 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: the certificate %.160s has expired; renew it", f->cert);
	if (X509_cmp_current_time(X509_get0_notBefore(x)) > 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: the certificate %.160s is not valid yet; check the clock",
			       f->cert);
	return ERR_NONE;
}

static enum err load_own(const struct tls_files *f, struct tls_loaded *l, struct why *why)
{
	if (!f->cert || !f->key)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"tls: a certificate and its key go together; the %s is not given",
			f->cert ? "key" : "certificate");
	enum err e = pem_read(f->cert, "certificate", &l->cert, why);
	if (e == ERR_NONE)
		e = pem_read(f->key, "key", &l->key, why);
	if (e != ERR_NONE)
		return e;
	X509 *x = first_cert(&l->cert);
	EVP_PKEY *k = first_key(&l->key);
	e = check_pair(x, k, f, why);
	X509_free(x);
	EVP_PKEY_free(k);
	return e;
}

static enum err load_ca(const struct tls_files *f, struct tls_loaded *l, struct why *why)
{
	enum err e = pem_read(f->ca, "CA file", &l->ca, why);
	if (e != ERR_NONE)
		return e;
	X509 *x = first_cert(&l->ca);
	if (!x)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: the CA file %.160s holds no valid certificate", f->ca);
	X509_free(x);
	return ERR_NONE;
}

enum err tls_load(const struct tls_files *f, bool server, struct tls_loaded *out,
		  struct why *why)
{
	struct tls_loaded l = { 0 };
	enum err e = ERR_NONE;
	if (server && !f->cert && !f->key)
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: a tls+tcp:// listener needs a certificate and a key");
	if (!server && !f->ca)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"tls: no CA file is given; a server's certificate is always checked");
	if (f->cert || f->key)
		e = load_own(f, &l, why);
	if (e == ERR_NONE && f->ca)
		e = load_ca(f, &l, why);
	if (e != ERR_NONE)
		tls_unload(&l);
	else
		*out = l;
	return e;
}
