/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of nng's users, with none of our code: the other end of the interop tests.
 *
 *	plain_nng req URL SIZE COUNT [MS]	sends COUNT requests, wants each back unchanged
 *	plain_nng rep URL COUNT		prints "ready", answers COUNT requests with their own bytes
 */
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/util/platform.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int rv, const char *step)
{
	if (rv == 0)
		return;
	fprintf(stderr, "plain_nng: %s: %s\n", step, nng_strerror(rv));
	exit(1);
}

static int req(const char *url, size_t size, int count, int timeout_ms)
{
	nng_socket s;
	char *out = malloc(size + 1);
	must(nng_req0_open(&s), "open");
	must(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, timeout_ms), "timeout");
	must(nng_socket_set_ms(s, NNG_OPT_SENDTIMEO, timeout_ms), "timeout");
	must(nng_dial(s, url, NULL, 0), "dial");
	for (int i = 0; i < count; i++) {
		void *in;
		size_t n;
		memset(out, 'a' + i % 26, size);
		must(nng_send(s, out, size, 0), "send");
		must(nng_recv(s, &in, &n, NNG_FLAG_ALLOC), "recv");
		if (n != size || (n > 0 && memcmp(in, out, n) != 0)) {
			fprintf(stderr, "plain_nng: reply %d differs: %zu bytes for %zu\n", i,
				n, size);
			return 1;
		}
		nng_free(in, n);
	}
	free(out);
	nng_close(s);
	return 0;
}

static int rep(const char *url, int count)
{
	nng_socket s;
	must(nng_rep0_open(&s), "open");
	must(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, 10000), "timeout");
	must(nng_listen(s, url, NULL, 0), "listen");
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		nng_msg *m;
		must(nng_recvmsg(s, &m, 0), "recv");
		must(nng_sendmsg(s, m, 0), "send");
	}
	nng_msleep(200); /* "sent" means taken: let the last reply leave */
	nng_close(s);
	return 0;
}

int main(int argc, char **argv)
{
	if ((argc == 5 || argc == 6) && strcmp(argv[1], "req") == 0)
		return req(argv[2], strtoul(argv[3], NULL, 10), atoi(argv[4]),
			   argc == 6 ? atoi(argv[5]) : 5000);
	if (argc == 4 && strcmp(argv[1], "rep") == 0)
		return rep(argv[2], atoi(argv[3]));
	fputs("usage: plain_nng req URL SIZE COUNT [MS] | plain_nng rep URL COUNT\n", stderr);
	return 2;
}
