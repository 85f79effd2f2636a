/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/sp_tls.h"
#include "rpc/tls_load.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

struct sp_tls_ctx {
	SSL_CTX *ssl;
	char ca[80]; /* for error texts */
};

struct sp_tls {
	SSL *ssl;
	bool up, over, eof, said_bye;
	char host[80], ca[80];
	char text[320];
};

/* ---- files ---- */

static bool add_cas(SSL_CTX *c, const struct tls_pem *p)
{
	BIO *b = BIO_new_mem_buf(p->text, (int)p->n);
	X509_STORE *store = SSL_CTX_get_cert_store(c);
	int n = 0;
	X509 *x;
	while (b && (x = PEM_read_bio_X509(b, NULL, NULL, NULL))) {
		n += X509_STORE_add_cert(store, x);
		X509_free(x);
	}
	BIO_free(b);
	ERR_clear_error(); /* the end of the file */
	return n > 0;
}

/* The first certificate is ours, what follows leads to the authority. */
static bool add_chain(SSL_CTX *c, const struct tls_pem *p)
{
	BIO *b = BIO_new_mem_buf(p->text, (int)p->n);
	X509 *x = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
	bool ok = x && SSL_CTX_use_certificate(c, x) == 1;
	X509_free(x);
	while (ok && (x = PEM_read_bio_X509(b, NULL, NULL, NULL))) {
		ok = SSL_CTX_add1_chain_cert(c, x) == 1;
		X509_free(x);
	}
	BIO_free(b);
	ERR_clear_error();
	return ok;
}

static bool add_key(SSL_CTX *c, const struct tls_pem *p)
{
	BIO *b = BIO_new_mem_buf(p->text, (int)p->n);
	EVP_PKEY *k = b ? PEM_read_bio_PrivateKey(b, NULL, NULL, NULL) : NULL;
	bool ok = k && SSL_CTX_use_PrivateKey(c, k) == 1;
	EVP_PKEY_free(k);
	BIO_free(b);
	return ok;
}

/*
 * No resumption: connections live long, and tickets would be state to guard. Buffers are given back
 * while a connection is idle (34 KiB each otherwise).
 */
static bool configure(SSL_CTX *c, const struct tls_loaded *l, bool server)
{
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(c,
			    SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_num_tickets(c, 0);
	if (!server || l->ca.text)
		SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
	return SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) == 1 &&
	       (!l->ca.text || add_cas(c, &l->ca)) &&
	       (!l->cert.text || (add_chain(c, &l->cert) && add_key(c, &l->key)));
}

enum err sp_tls_ctx_new(const struct tls_files *f, bool server, struct sp_tls_ctx **out,
			struct why *why)
{
	struct tls_loaded l;
	enum err e = tls_load(f, server, &l, why);
	if (e != ERR_NONE)
		return e;
	struct sp_tls_ctx *c = calloc(1, sizeof(*c));
	bool ok = c && (c->ssl = SSL_CTX_new(TLS_method())) && configure(c->ssl, &l, server);
	tls_unload(&l);
	if (!ok) {
		sp_tls_ctx_free(c);
		const char *reason = ERR_reason_error_string(ERR_get_error());
		ERR_clear_error();
		return why_set(why, ERR_INVALID_PARAMS,
			       "tls: OpenSSL does not take the files given: %s",
			       reason ? reason : "no memory");
	}
	snprintf(c->ca, sizeof(c->ca), "%s", f->ca ? f->ca : "");
	*out = c;
	return ERR_NONE;
}

void sp_tls_ctx_free(struct sp_tls_ctx *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ssl);
	free(c);
}

/* ---- one connection ---- */

static bool check_host(SSL *s, const char *host)
{
	uint8_t b[16];
	if (inet_pton(AF_INET, host, b) == 1 || inet_pton(AF_INET6, host, b) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(s), host) == 1;
	return SSL_set1_host(s, host) == 1 && SSL_set_tlsext_host_name(s, host) == 1;
}

struct sp_tls *sp_tls_new(struct sp_tls_ctx *c, const char *host)
{
	struct sp_tls *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	t->ssl = SSL_new(c->ssl);
	if (!t->ssl || !in || !out || (host && !check_host(t->ssl, host))) {
		BIO_free(in);
		BIO_free(out);
		sp_tls_free(t);
		return NULL;
	}
	SSL_set_bio(t->ssl, in, out);
	if (host)
		SSL_set_connect_state(t->ssl);
	else
		SSL_set_accept_state(t->ssl);
	snprintf(t->host, sizeof(t->host), "%s", host ? host : "");
	memcpy(t->ca, c->ca, sizeof(t->ca));
	return t;
}

void sp_tls_free(struct sp_tls *t)
{
	if (!t)
		return;
	SSL_free(t->ssl);
	free(t);
}

bool sp_tls_up(const struct sp_tls *t)
{
	return t->up;
}

bool sp_tls_eof(const struct sp_tls *t)
{
	return t->eof;
}

const char *sp_tls_text(const struct sp_tls *t)
{
	return t->text;
}

bool sp_tls_feed(struct sp_tls *t, const void *p, size_t n)
{
	return BIO_write(SSL_get_rbio(t->ssl), p, (int)n) == (int)n;
}

/* An alert's number, as the other side sent it, is 1000 + the alert (ssl.h). */
static void explain(struct sp_tls *t, unsigned long e)
{
	long v = SSL_get_verify_result(t->ssl);
	int reason = ERR_GET_REASON(e);
	const char *text = ERR_reason_error_string(e);
	if (v != X509_V_OK && reason == SSL_R_CERTIFICATE_VERIFY_FAILED && t->host[0])
		snprintf(t->text, sizeof(t->text),
			 "tls: the server's certificate is refused: %s (host %s, CA file %s)",
			 X509_verify_cert_error_string(v), t->host, t->ca);
	else if (v != X509_V_OK && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
		snprintf(t->text, sizeof(t->text),
			 "tls: the client's certificate is refused: %s",
			 X509_verify_cert_error_string(v));
	else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
		 reason == SSL_R_UNSUPPORTED_PROTOCOL)
		snprintf(
			t->text, sizeof(t->text),
			t->host[0]
				? "tls: the server does not speak TLS 1.2 or 1.3; is it a tcp:// "
				  "listener?"
				: "tls: the client does not speak TLS 1.2 or 1.3");
	else
		snprintf(t->text, sizeof(t->text), "tls: %s",
			 text ? text : "the connection broke in a record");
}

static ssize_t end(struct sp_tls *t, int r)
{
	int why = SSL_get_error(t->ssl, r);
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return 0;
	t->over = true;
	t->eof = why == SSL_ERROR_ZERO_RETURN;
	if (t->eof)
		snprintf(t->text, sizeof(t->text), "the peer closed the connection");
	else
		explain(t, ERR_peek_last_error());
	ERR_clear_error();
	return -1;
}

ssize_t sp_tls_read(struct sp_tls *t, void *to, size_t room)
{
	int r;
	if (t->over)
		return -1;
	ERR_clear_error();
	if (!t->up) {
		r = SSL_do_handshake(t->ssl);
		if (r != 1)
			return end(t, r);
		t->up = true;
	}
	r = SSL_read(t->ssl, to, (int)MIN_OF(room, (size_t)INT32_MAX));
	return r > 0 ? r : end(t, r);
}

bool sp_tls_write(struct sp_tls *t, const void *p, size_t n)
{
	const uint8_t *at = p;
	ERR_clear_error();
	while (n > 0) {
		int r = SSL_write(t->ssl, at, (int)MIN_OF(n, (size_t)INT32_MAX));
		if (r <= 0) {
			(void)end(t, r);
			return false;
		}
		at += r;
		n -= (size_t)r;
	}
	return true;
}

void sp_tls_bye(struct sp_tls *t)
{
	if (t->up && !t->over && !t->said_bye)
		(void)SSL_shutdown(t->ssl);
	t->said_bye = true;
	ERR_clear_error();
}

size_t sp_tls_ready(const struct sp_tls *t)
{
	return BIO_ctrl_pending(SSL_get_wbio(t->ssl));
}

void sp_tls_take(struct sp_tls *t, void *to, size_t n)
{
	int r = BIO_read(SSL_get_wbio(t->ssl), to, (int)n);
	assert(r == (int)n);
	(void)r;
}
