/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a straightforward user of nng writes, one mistake a mode: the controls of
 * test_nng_hazards.c. Each shows that the hazard is real in the library at hand, so that the test
 * of our engine would have seen it.
 *
 *	naive_nng receive-first	receives before the send completed, and times out (issue 1702)
 *	naive_nng resend URL	asks with a resend time of 50 ms, waits 600 ms
 *	naive_nng poison URL N	sends N bytes to whoever takes fewer, for 600 ms, default resend
 *	naive_nng redial URL	dials with default reconnect times for 1500 ms
 */
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/util/platform.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rv, const char *step)
{
	if (rv == 0)
		return;
	fprintf(stderr, "naive_nng: %s: %s\n", step, nng_strerror(rv));
	exit(1);
}

static void nothing(void *arg)
{
	(void)arg;
}

static int receive_first(void)
{
	nng_socket s;
	must(nng_req0_open(&s), "open");
	for (int i = 0; i < 20; i++) {
		nng_ctx c;
		nng_aio *out, *in;
		nng_msg *m;
		must(nng_ctx_open(&c, s), "ctx");
		must(nng_aio_alloc(&out, nothing, NULL), "aio");
		must(nng_aio_alloc(&in, nothing, NULL), "aio");
		must(nng_msg_alloc(&m, 8), "msg");
		nng_aio_set_msg(out, m);
		nng_aio_set_timeout(in, 5);
		nng_aio_set_timeout(out, 20);
		nng_ctx_send(c, out);
		nng_ctx_recv(c, in);
		nng_aio_wait(in);
		nng_aio_wait(out);
	}
	return 0;
}

static int ask(const char *url, size_t size, int resend_ms, int wait_ms)
{
	nng_socket s;
	void *in;
	size_t n;
	char *out = calloc(1, size);
	must(nng_req0_open(&s), "open");
	if (resend_ms > 0)
		must(nng_socket_set_ms(s, NNG_OPT_REQ_RESENDTIME, resend_ms), "resend");
	must(nng_socket_set_ms(s, NNG_OPT_RECONNMINT, 10), "reconnect");
	must(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, wait_ms), "timeout");
	must(nng_dial(s, url, NULL, 0), "dial");
	must(nng_send(s, out, size, 0), "send");
	int rv = nng_recv(s, &in, &n, NNG_FLAG_ALLOC);
	free(out);
	return rv == 0 ? 0 : 3;
}

static int redial(const char *url)
{
	nng_socket s;
	must(nng_req0_open(&s), "open");
	must(nng_dial(s, url, NULL, NNG_FLAG_NONBLOCK), "dial");
	nng_msleep(1500);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "receive-first") == 0)
		return receive_first();
	if (argc == 3 && strcmp(argv[1], "resend") == 0)
		return ask(argv[2], 8, 50, 600);
	if (argc == 4 && strcmp(argv[1], "poison") == 0)
		return ask(argv[2], strtoul(argv[3], NULL, 10), 0, 600);
	if (argc == 3 && strcmp(argv[1], "redial") == 0)
		return redial(argv[2]);
	return 2;
}
