/* SPDX-License-Identifier: Apache-2.0 */
/* nng as an application would use it: one context and one aio a request, callbacks on its threads. */
#include "rpc_peers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>

struct work {
	nng_ctx ctx;
	nng_aio *aio;
	bool receiving;
	struct nng_client *client;
};

static void check(int rv, const char *what)
{
	if (rv != 0)
		peer_die(what, nng_strerror(rv));
}

/* ---- server ---- */

static void on_server(void *arg)
{
	struct work *w = arg;
	if (nng_aio_result(w->aio) != 0)
		_exit(0);
	w->receiving = !w->receiving;
	if (w->receiving)
		nng_ctx_recv(w->ctx, w->aio);
	else
		nng_ctx_send(w->ctx, w->aio); /* the message received is still in the aio */
}

static void nng_serve(const char *addr, void (*ready)(const char *bound))
{
	static struct work works[PEER_OUT_MAX];
	nng_socket s;
	nng_listener l;
	char *url, bound[PEER_ADDR_MAX];
	check(nng_rep0_open(&s), "rep0");
	check(nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, 8 << 20), "recvmaxsz");
	check(nng_listen(s, addr, &l, 0), addr);
	check(nng_listener_get_string(l, NNG_OPT_URL, &url), "url");
	nng_sockaddr sa;
	snprintf(bound, sizeof(bound), "%s", addr);
	if (nng_listener_get_addr(l, NNG_OPT_LOCADDR, &sa) == 0 && sa.s_family == NNG_AF_INET) {
		const uint8_t *p = (const uint8_t *)&sa.s_in.sa_port;
		snprintf(bound, sizeof(bound), "tcp://127.0.0.1:%u", p[0] * 256u + p[1]);
	}
	for (int i = 0; i < PEER_OUT_MAX; i++) {
		check(nng_ctx_open(&works[i].ctx, s), "ctx");
		check(nng_aio_alloc(&works[i].aio, on_server, &works[i]), "aio");
		works[i].receiving = true;
		nng_ctx_recv(works[i].ctx, works[i].aio);
	}
	ready(bound);
	for (;;)
		pause();
}

/* ---- client ---- */

struct nng_client {
	nng_socket s;
	struct work works[PEER_OUT_MAX];
	atomic_bool stop;
	atomic_uint n_outstanding;
	atomic_ullong n_done;
};

static void send_one(struct work *w)
{
	nng_msg *m;
	check(nng_msg_alloc(&m, 0), "msg");
	static const uint8_t body[PEER_BODY] = "echo";
	check(nng_msg_append(m, body, sizeof(body)), "append");
	w->receiving = false;
	nng_aio_set_msg(w->aio, m);
	nng_ctx_send(w->ctx, w->aio);
}

static void on_client(void *arg)
{
	struct work *w = arg;
	struct nng_client *c = w->client;
	check(nng_aio_result(w->aio), "nng client");
	if (!w->receiving) {
		w->receiving = true;
		nng_ctx_recv(w->ctx, w->aio);
		return;
	}
	nng_msg_free(nng_aio_get_msg(w->aio));
	atomic_fetch_add(&c->n_done, 1);
	if (atomic_load(&c->stop))
		atomic_fetch_sub(&c->n_outstanding, 1);
	else
		send_one(w);
}

static void *nng_open(const char *addr)
{
	struct nng_client *c = calloc(1, sizeof(*c));
	if (!c)
		peer_die("nng", "no memory");
	check(nng_req0_open(&c->s), "req0");
	check(nng_socket_set_ms(c->s, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE), "resend");
	check(nng_dial(c->s, addr, NULL, 0), addr);
	for (int i = 0; i < PEER_OUT_MAX; i++) {
		c->works[i].client = c;
		check(nng_ctx_open(&c->works[i].ctx, c->s), "ctx");
		check(nng_aio_alloc(&c->works[i].aio, on_client, &c->works[i]), "aio");
	}
	return c;
}

static double nng_run(void *client, unsigned n, unsigned ms)
{
	struct nng_client *c = client;
	double begin = peer_now();
	atomic_store(&c->stop, false);
	atomic_store(&c->n_done, 0);
	atomic_store(&c->n_outstanding, n);
	for (unsigned i = 0; i < n; i++)
		send_one(&c->works[i]);
	usleep(ms * 1000);
	atomic_store(&c->stop, true);
	while (atomic_load(&c->n_outstanding) > 0)
		usleep(200);
	return (double)atomic_load(&c->n_done) / (peer_now() - begin);
}

static void nng_close_client(void *client)
{
	struct nng_client *c = client;
	for (int i = 0; i < PEER_OUT_MAX; i++) {
		nng_aio_stop(c->works[i].aio);
		nng_aio_free(c->works[i].aio);
		nng_ctx_close(c->works[i].ctx);
	}
	nng_close(c->s);
	free(c);
}

const struct peer_sys peer_nng = { "nng", nng_serve, nng_open, nng_run, nng_close_client };
