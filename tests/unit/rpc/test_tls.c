/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls+tcp:// refuses what it must, and says why: each case for every pairing of engines that it
 * concerns. The good case over all pairings is in test_interop.c.
 */
#include "rpc/tls_load.h"
#include "support/eng_fix.h"
#include "support/leak.h"
#include "support/tls_fix.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(tls, .timeout = 30);

static struct fix_server sv;
static struct fix_client cl;
static struct tls_fix certs;
static const struct engine *const both[] = { &engine_sp, &engine_nng };

/* Dials, and wants the dial to fail with all of words in its text. */
static void refused(struct loop *l, const struct engine *client, const char *addr,
		    const struct tls_files *files, const char *const *words)
{
	struct why why = { 0 };
	cr_assert_eq(fix_dial(&cl, l, client, addr, NULL, files, &why), ERR_NONE, "%s",
		     why.text);
	cr_assert(RUN_UNTIL(l, cl.n_down || cl.n_up, 5000));
	cr_assert_eq(cl.n_up, 0, "%s: the connection stands", client->name);
	cr_assert_eq(cl.down_err, ERR_UNREACHABLE, "%s: %s", client->name,
		     err_name(cl.down_err));
	for (; *words; words++)
		cr_assert(strstr(cl.down_text, *words), "%s: \"%s\" is not in: %s",
			  client->name, *words, cl.down_text);
	fix_client_end(&cl);
}

#define WORDS(...)                \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

static void bad_server(const char *cert, const char *key, const char *ca,
		       const char *const *words)
{
	struct loop l;
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files server = { .cert = cert, .key = key }, client = { .ca = ca };
	for (size_t s = 0; s < 2; s++) {
		fix_serve(&sv, &l, both[s], "tls+tcp://127.0.0.1:0", NULL, &server);
		for (size_t c = 0; c < 2; c++)
			refused(&l, both[c], sv.addr, &client, words);
		cr_assert_eq(sv.n_requests, 0);
		fix_server_end(&sv);
	}
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

Test(tls, wrong_authority)
{
	tls_fix_make(&certs);
	/* a file of the other authority: the text names it and what it could not do */
	bad_server(certs.server, certs.server_key, certs.other_ca,
		   WORDS("certificate", "issuer", "127.0.0.1", certs.other_ca));
}

Test(tls, wrong_name)
{
	tls_fix_make(&certs);
	bad_server(certs.wrong_name, certs.wrong_name_key, certs.ca,
		   WORDS("certificate", "mismatch", "127.0.0.1"));
}

/* Our own expired certificate is refused at the start, so the server here is OpenSSL's. */
Test(tls, expired)
{
	struct loop l;
	struct why why = { 0 };
	char port[8], addr[64], accept[32];
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);

	struct tls_files own = { .cert = certs.expired, .key = certs.expired_key };
	struct tls_loaded loaded;
	cr_assert_eq(tls_load(&own, true, &loaded, &why), ERR_INVALID_PARAMS);
	cr_assert(strstr(why.text, "expired") && strstr(why.text, certs.expired), "%s",
		  why.text);

	fix_addr(addr, sizeof(addr), "tls+tcp");
	snprintf(port, sizeof(port), "%s", strrchr(addr, ':') + 1);
	snprintf(accept, sizeof(accept), "127.0.0.1:%s", port);
	pid_t pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, STDERR_FILENO);
		execlp("openssl", "openssl", "s_server", "-quiet", "-accept", accept, "-cert",
		       certs.expired, "-key", certs.expired_key, (char *)NULL);
		_exit(127);
	}
	struct tls_files client = { .ca = certs.ca };
	/* until it listens */
	for (int i = 0; i < 100; i++) {
		cr_assert_eq(fix_dial(&cl, &l, &engine_sp, addr, NULL, &client, &why),
			     ERR_NONE);
		cr_assert(RUN_UNTIL(&l, cl.n_down, 5000));
		bool listens = !strstr(cl.down_text, "refused") || strstr(cl.down_text, "tls:");
		fix_client_end(&cl);
		if (listens)
			break;
		fix_run(&l, 20);
	}
	for (size_t c = 0; c < 2; c++)
		refused(&l, both[c], addr, &client, WORDS("certificate", "expired"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

/* mbed TLS compares no IP names: the sp engine takes such a server, nng says what to do. */
Test(tls, address_named_as_ip_only)
{
	struct loop l;
	struct why why = { 0 };
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files server = { .cert = certs.ip_only, .key = certs.ip_only_key };
	struct tls_files client = { .ca = certs.ca };
	fix_serve(&sv, &l, &engine_sp, "tls+tcp://127.0.0.1:0", NULL, &server);
	cr_assert_eq(fix_dial(&cl, &l, &engine_sp, sv.addr, NULL, &client, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_up == 1, 5000));
	fix_client_end(&cl);
	refused(&l, &engine_nng, sv.addr, &client,
		WORDS("valid", "DNS names", "not with IP names"));
	fix_server_end(&sv);
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

/* By name: localhost is looked up and is the name that is checked. */
Test(tls, by_name)
{
	struct loop l;
	struct why why = { 0 };
	char addr[64];
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files server = { .cert = certs.server, .key = certs.server_key };
	struct tls_files client = { .ca = certs.ca };
	fix_serve(&sv, &l, &engine_sp, "tls+tcp://127.0.0.1:0", NULL, &server);
	snprintf(addr, sizeof(addr), "tls+tcp://localhost%s", strrchr(sv.addr, ':'));
	for (size_t c = 0; c < 2; c++) {
		cr_assert_eq(fix_dial(&cl, &l, both[c], addr, NULL, &client, &why), ERR_NONE);
		cr_assert(RUN_UNTIL(&l, cl.n_up || cl.n_down, 5000));
		cr_assert(cl.n_up, "%s: %s", both[c]->name, cl.down_text);
		fix_client_end(&cl);
	}
	fix_server_end(&sv);
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

Test(tls, plain_client_at_a_tls_port)
{
	struct loop l;
	struct why why = { 0 };
	char addr[64];
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files server = { .cert = certs.server, .key = certs.server_key };
	for (size_t s = 0; s < 2; s++) {
		fix_serve(&sv, &l, both[s], "tls+tcp://127.0.0.1:0", NULL, &server);
		snprintf(addr, sizeof(addr), "tcp%s", strchr(sv.addr, ':'));
		for (size_t c = 0; c < 2; c++) {
			cr_assert_eq(fix_dial(&cl, &l, both[c], addr, NULL, NULL, &why),
				     ERR_NONE);
			cr_assert(RUN_UNTIL(&l, cl.n_down || cl.n_up, 5000));
			cr_assert_eq(cl.n_up, 0, "%s client, %s server", both[c]->name,
				     both[s]->name);
			cr_assert(cl.down_text[0]);
			fix_client_end(&cl);
		}
		cr_assert_eq(sv.n_requests, 0);
		if (both[s] == &engine_sp)
			cr_assert_geq(sv.counters.bad_frames, 1);
		fix_server_end(&sv);
	}
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

Test(tls, tls_client_at_a_plain_port)
{
	struct loop l;
	char addr[64];
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files client = { .ca = certs.ca };
	for (size_t s = 0; s < 2; s++) {
		fix_serve(&sv, &l, both[s], "tcp://127.0.0.1:0", NULL, NULL);
		snprintf(addr, sizeof(addr), "tls+tcp%s", strchr(sv.addr, ':'));
		for (size_t c = 0; c < 2; c++)
			refused(&l, both[c], addr, &client, WORDS("tls", "tcp://"));
		fix_server_end(&sv);
	}
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

/* A client's certificate is asked for when the server has a CA file, not demanded; a bad one is not
 * taken (sp; nng's OPTIONAL mode looks away, which is why nothing rests on it). */
Test(tls, client_certificates)
{
	struct loop l;
	struct why why = { 0 };
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	struct tls_files server = { .ca = certs.ca,
				    .cert = certs.server,
				    .key = certs.server_key };
	struct tls_files none = { .ca = certs.ca };
	struct tls_files good = { .ca = certs.ca,
				  .cert = certs.client,
				  .key = certs.client_key };
	for (size_t s = 0; s < 2; s++) {
		fix_serve(&sv, &l, both[s], "tls+tcp://127.0.0.1:0", NULL, &server);
		for (size_t c = 0; c < 4; c++) {
			cr_assert_eq(fix_dial(&cl, &l, both[c & 1], sv.addr, NULL,
					      c < 2 ? &none : &good, &why),
				     ERR_NONE);
			cr_assert(RUN_UNTIL(&l, cl.n_up || cl.n_down, 5000));
			cr_assert(cl.n_up, "%s", cl.down_text);
			fix_client_end(&cl);
		}
		fix_server_end(&sv);
	}
	/* the server trusts another authority than the one that signed the client */
	server.ca = certs.other_ca;
	fix_serve(&sv, &l, &engine_sp, "tls+tcp://127.0.0.1:0", NULL, &server);
	cr_assert_eq(fix_dial(&cl, &l, &engine_sp, sv.addr, NULL, &good, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_down == 1, 5000), "a stranger's certificate was taken");
	cr_assert(strstr(cl.down_text, "unknown ca"), "%s", cl.down_text);
	cr_assert_eq(sv.counters.bad_frames, 1);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

/* Bytes that are no handshake, half a one, and one that never ends: refused or timed out. */
Test(tls, hostile_handshakes)
{
	struct loop l;
	struct eng_limits lim = fix_limits();
	struct why why = { 0 };
	char addr[64];
	tls_fix_make(&certs);
	cr_assert_eq(loop_open(&l), ERR_NONE);
	lim.handshake_ms = 200;
	lim.conns_anon_max = 8;
	struct tls_files server = { .cert = certs.server, .key = certs.server_key };
	struct tls_files client = { .ca = certs.ca };
	fix_serve(&sv, &l, &engine_sp, "tls+tcp://127.0.0.1:0", &lim, &server);
	snprintf(addr, sizeof(addr), "%s", strrchr(sv.addr, ':') + 1);
	static const struct {
		const char *bytes;
		size_t n;
	} bad[] = {
		{ "GET / HTTP/1.1\r\n\r\n", 18 },
		{ "\x16\x03\x01\xff\xff\x01\x00\xff\xff", 9 },
		{ "\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff", 10 },
		{ "\x15\x03\x03\x00\x02\x02\x28", 7 },
		{ "\x80\x2e\x01\x00\x02", 5 },
		{ "", 0 },
	};
	int fds[ARRAY_LEN(bad)];
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		fds[i] = fix_tcp((uint16_t)atoi(addr));
		cr_assert_eq(write(fds[i], bad[i].bytes, bad[i].n), (ssize_t)bad[i].n);
	}
	/* an honest one is served meanwhile */
	sv.know = true;
	cr_assert_eq(fix_dial(&cl, &l, &engine_sp, sv.addr, NULL, &client, &why), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_up == 1, 5000), "%s", cl.down_text);
	cr_assert_eq(fix_send(&cl, 0, 10), ERR_NONE);
	cr_assert(RUN_UNTIL(&l, cl.n_ok == 1, 5000));
	cr_assert(RUN_UNTIL(&l, sv.counters.conns_open == 1, 2000), "%d still open",
		  (int)sv.counters.conns_open);
	cr_assert_eq(sv.n_requests, 1);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		close(fds[i]);
	fix_client_end(&cl);
	fix_server_end(&sv);
	loop_close(&l);
	tls_fix_remove(&certs);
	NO_LEAKS();
}

static enum err load(const char *ca, const char *cert, const char *key, bool server,
		     struct why *why)
{
	struct tls_files f = { .ca = ca, .cert = cert, .key = key };
	struct tls_loaded l;
	*why = (struct why){ 0 };
	enum err e = tls_load(&f, server, &l, why);
	if (e == ERR_NONE)
		tls_unload(&l);
	return e;
}

Test(tls, files_that_cannot_be_used_are_named)
{
	struct why w;
	char path[128];
	tls_fix_make(&certs);
	cr_assert_eq(load(certs.ca, certs.server, certs.server_key, true, &w), ERR_NONE);
	cr_assert_eq(load(NULL, NULL, NULL, true, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "needs a certificate and a key"), "%s", w.text);
	cr_assert_eq(load(NULL, NULL, NULL, false, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "no CA file"), "%s", w.text);
	cr_assert_eq(load(NULL, certs.server, NULL, true, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "key is not given"), "%s", w.text);
	cr_assert_eq(load(NULL, NULL, certs.server_key, true, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "certificate is not given"), "%s", w.text);
	snprintf(path, sizeof(path), "%s/none.pem", certs.dir);
	cr_assert_eq(load(path, NULL, NULL, false, &w), ERR_NOT_FOUND);
	cr_assert(strstr(w.text, "CA file") && strstr(w.text, path), "%s", w.text);
	snprintf(path, sizeof(path), "%s/ca.conf", certs.dir);
	cr_assert_eq(load(path, NULL, NULL, false, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "no PEM block"), "%s", w.text);
	cr_assert_eq(load(certs.server_key, NULL, NULL, false, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "no valid certificate"), "%s", w.text);
	cr_assert_eq(load(NULL, certs.server_key, certs.server_key, true, &w),
		     ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "certificate") && strstr(w.text, certs.server_key), "%s",
		  w.text);
	cr_assert_eq(load(NULL, certs.server, certs.server, true, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "key") && strstr(w.text, certs.server), "%s", w.text);
	cr_assert_eq(load(NULL, certs.server, certs.client_key, true, &w), ERR_INVALID_PARAMS);
	cr_assert(strstr(w.text, "not the one of the certificate"), "%s", w.text);
	cr_assert_eq(load(certs.dir, NULL, NULL, false, &w), ERR_IO, "%s", err_name(w.err));
	cr_assert(strstr(w.text, "directory"), "%s", w.text);
	tls_fix_remove(&certs);
	NO_LEAKS();
}
