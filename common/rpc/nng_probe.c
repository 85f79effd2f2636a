/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/nng_probe.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

/* ---- the library's counters ---- */

static uint64_t counter(const nng_stat *scope, const char *name)
{
	for (const nng_stat *s = nng_stat_child((nng_stat *)scope); s;
	     s = nng_stat_next((nng_stat *)s))
		if (strcmp(nng_stat_name((nng_stat *)s), name) == 0)
			return nng_stat_value((nng_stat *)s);
	return 0;
}

static const nng_stat *find_dialer(nng_stat *root, nng_dialer d)
{
	for (nng_stat *s = nng_stat_child(root); s; s = nng_stat_next(s))
		if (strcmp(nng_stat_name(s), "dialer") == 0 &&
		    counter(s, "id") == (uint64_t)nng_dialer_id(d))
			return s;
	return NULL;
}

enum dial_state nng_dial_failure(nng_dialer d, const struct addr *a, const char **text)
{
	static const struct {
		const char *name, *text;
	} kinds[] = {
		{ "refused", "connection refused: nobody listens there" },
		{ "timeout", "no answer to the connection" },
		{ "proto", "the peer does not speak SP" },
		{ "disconnect", "the peer closed the connection before SP's greeting" },
		{ "reject", "the peer is no SP server (REP)" },
		{ "oom", "no memory for a connection" },
		{ "other", "no such host or socket, or it cannot be reached" },
	};
	nng_stat *root;
	enum dial_state r = DIAL_PENDING;
	if (nng_stats_get(&root) != 0)
		return r;
	const nng_stat *s = find_dialer(root, d);
	bool tls = a->scheme == ADDR_TLS;
	if (s && counter(s, "connect") == 0) {
		for (size_t i = 0; i < ARRAY_LEN(kinds) && r == DIAL_PENDING; i++) {
			if (counter(s, kinds[i].name) == 0)
				continue;
			*text = kinds[i].text;
			r = DIAL_FAILED;
		}
		if (tls && (counter(s, "auth") > 0 || counter(s, "disconnect") > 0 ||
			    counter(s, "proto") > 0 || counter(s, "canceled") > 0))
			r = DIAL_TLS;
	}
	nng_stats_free(root);
	return r;
}

/* ---- the probe ---- */

struct nng_probe {
	struct loop *loop;
	struct addr addr;
	char *ca;
	uv_getaddrinfo_t lookup;
	uv_tcp_t tcp;
	uv_connect_t connect;
	uv_write_t write;
	uint8_t *out; /* what write carries */
	char in[16384];
	SSL_CTX *ctx;
	SSL *ssl;
	struct timer timer;
	bool looking, closing, ended;
	char text[256];
	void (*done)(void *arg, const char *text);
	void *arg;
};

static void probe_free(struct nng_probe *p)
{
	SSL_free(p->ssl);
	SSL_CTX_free(p->ctx);
	free(p->out);
	free(p->ca);
	free(p);
}

static void on_closed(uv_handle_t *h)
{
	struct nng_probe *p = h->data;
	p->done(p->arg, p->text);
	probe_free(p);
}

/* The first verdict stays. A lookup cannot be recalled: the end waits for it. */
static void probe_end(struct nng_probe *p)
{
	p->ended = true;
	timer_stop(p->loop, &p->timer);
	if (p->looking) {
		uv_cancel((uv_req_t *)&p->lookup);
		return;
	}
	if (!p->closing)
		uv_close((uv_handle_t *)&p->tcp, on_closed);
	p->closing = true;
}

static void verdict(struct nng_probe *p, const char *text)
{
	if (!p->ended)
		snprintf(p->text, sizeof(p->text), "%s", text);
	probe_end(p);
}

static bool is_address(const char *host)
{
	uint8_t b[16];
	return inet_pton(AF_INET, host, b) == 1 || inet_pton(AF_INET6, host, b) == 1;
}

static void judge_certificate(struct nng_probe *p)
{
	long r = SSL_get_verify_result(p->ssl);
	char text[sizeof(p->text)];
	if (r != X509_V_OK)
		snprintf(
			text, sizeof(text),
			"TLS: the server's certificate is refused: %s (host %.64s, CA file %.80s)",
			X509_verify_cert_error_string(r), p->addr.host, p->ca);
	else if (is_address(p->addr.host))
		snprintf(
			text, sizeof(text),
			"TLS: the server's certificate does not name %.64s as DNS name; nng's TLS "
			"compares no IP names: add DNS:%.64s to its subjectAltName",
			p->addr.host, p->addr.host);
	else
		snprintf(
			text, sizeof(text),
			"TLS: the handshake failed though the certificate is valid; nng speaks "
			"TLS 1.2 only");
	verdict(p, text);
}

static void judge_error(struct nng_probe *p)
{
	unsigned long e = ERR_peek_last_error();
	char text[sizeof(p->text)];
	if (SSL_get_verify_result(p->ssl) != X509_V_OK) {
		judge_certificate(p);
	} else if (ERR_GET_REASON(e) == SSL_R_WRONG_VERSION_NUMBER) {
		verdict(p, "TLS: the server does not speak TLS; is it a tcp:// listener?");
	} else {
		const char *reason = ERR_reason_error_string(e);
		snprintf(text, sizeof(text), "TLS: the handshake failed: %s",
			 reason ? reason : "unknown error");
		verdict(p, text);
	}
}

static void on_written(uv_write_t *w, int status)
{
	struct nng_probe *p = w->data;
	free(p->out);
	p->out = NULL;
	if (status < 0)
		verdict(p, "TLS: the server closed the connection in the handshake");
}

/* A client sends one flight at a time: the last one is written before the next is due. */
static void flush(struct nng_probe *p)
{
	BIO *b = SSL_get_wbio(p->ssl);
	size_t n = BIO_ctrl_pending(b);
	if (n == 0 || p->out || p->ended)
		return;
	p->out = malloc(n);
	if (!p->out || BIO_read(b, p->out, (int)n) != (int)n) {
		verdict(p, "TLS: no memory to look at the handshake");
		return;
	}
	uv_buf_t buf = uv_buf_init((char *)p->out, (unsigned)n);
	p->write.data = p;
	if (uv_write(&p->write, (uv_stream_t *)&p->tcp, &buf, 1, on_written) != 0)
		verdict(p, "TLS: the server closed the connection in the handshake");
}

static void shake(struct nng_probe *p)
{
	ERR_clear_error();
	int r = SSL_do_handshake(p->ssl);
	if (r == 1)
		judge_certificate(p);
	else if (SSL_get_error(p->ssl, r) == SSL_ERROR_WANT_READ)
		flush(p);
	else
		judge_error(p);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *b)
{
	struct nng_probe *p = h->data;
	(void)want;
	*b = uv_buf_init(p->in, sizeof(p->in));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
	struct nng_probe *p = s->data;
	if (n == 0 || p->ended)
		return;
	if (n < 0) {
		verdict(p, "TLS: the server closed the connection in the handshake");
		return;
	}
	if (BIO_write(SSL_get_rbio(p->ssl), b->base, (int)n) != (int)n) {
		verdict(p, "TLS: no memory to look at the handshake");
		return;
	}
	shake(p);
}

static void on_connect(uv_connect_t *c, int status)
{
	struct nng_probe *p = c->data;
	if (p->ended)
		return;
	if (status < 0 || uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read) != 0) {
		verdict(p,
			"TLS: the server could not be reached again to look at its certificate");
		return;
	}
	shake(p);
}

static void on_lookup(uv_getaddrinfo_t *req, int status, struct addrinfo *res)
{
	struct nng_probe *p = req->data;
	p->looking = false;
	if (p->ended) {
		probe_end(p);
	} else if (status < 0) {
		verdict(p, "no such host");
	} else {
		p->connect.data = p;
		if (uv_tcp_connect(&p->connect, &p->tcp, res->ai_addr, on_connect) != 0)
			verdict(p, "the host cannot be reached");
	}
	uv_freeaddrinfo(res);
}

static void on_late(struct timer *t)
{
	struct nng_probe *p = container_of(t, struct nng_probe, timer);
	verdict(p, "TLS: no answer in the handshake");
}

static bool ssl_new(struct nng_probe *p)
{
	p->ctx = SSL_CTX_new(TLS_client_method());
	if (!p->ctx || (p->ca && SSL_CTX_load_verify_file(p->ctx, p->ca) != 1))
		return false;
	p->ssl = SSL_new(p->ctx);
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	if (!p->ssl || !in || !out) {
		BIO_free(in);
		BIO_free(out);
		return false;
	}
	SSL_set_bio(p->ssl, in, out);
	SSL_set_connect_state(p->ssl);
	SSL_set_verify(p->ssl, SSL_VERIFY_PEER, NULL);
	if (is_address(p->addr.host))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(p->ssl), p->addr.host) == 1;
	return SSL_set1_host(p->ssl, p->addr.host) == 1 &&
	       SSL_set_tlsext_host_name(p->ssl, p->addr.host) == 1;
}

static bool lookup_start(struct nng_probe *p)
{
	char port[8];
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	snprintf(port, sizeof(port), "%u", p->addr.port);
	p->lookup.data = p;
	p->looking = uv_getaddrinfo(loop_uv(p->loop), &p->lookup, on_lookup, p->addr.host, port,
				    &hints) == 0;
	return p->looking;
}

struct nng_probe *nng_probe_tls(struct loop *l, const struct addr *a, const char *ca,
				uint64_t deadline_ns, void (*done)(void *arg, const char *text),
				void *arg)
{
	struct nng_probe *p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->loop = l;
	p->addr = *a;
	p->done = done;
	p->arg = arg;
	p->ca = ca ? strdup(ca) : NULL;
	if (!p->ca || !ssl_new(p) || uv_tcp_init(loop_uv(l), &p->tcp) != 0) {
		probe_free(p);
		return NULL;
	}
	p->tcp.data = p;
	timer_start(l, &p->timer, deadline_ns, on_late);
	if (!lookup_start(p))
		verdict(p, "the host cannot be looked up");
	return p;
}

void nng_probe_cancel(struct nng_probe *p)
{
	verdict(p, "cancelled");
}
