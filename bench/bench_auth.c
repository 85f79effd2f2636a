/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What authentication costs a message: the tag and its check on 256 B in two pieces (envelope
 * and body), against the bare library calls on the same bytes; a whole handshake, both ends;
 * tickets.
 */
#include "bench.h"
#include "rpc/auth_crypto.h"
#include "rpc/ticket.h"

#include <string.h>
#include <openssl/evp.h>

#define MESSAGE_BYTES 256

struct work {
	uint8_t message[MESSAGE_BYTES], tag[AUTH_TAG_BYTES];
	struct iovec iov[2];
	struct auth_session a, b;
	EVP_CIPHER_CTX *bare;
	uint64_t bare_seq;
	struct keyring *keys;
	struct hello_server *server;
	struct hello_client *client;
	struct buf bufs[4];
	uint64_t now_ns;
	struct ticket_key *ticket_key;
	struct msg_extent extent;
	struct msg_ticket ticket;
	struct buf sealed;
	struct arena arena;
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void tag_op(void *arg)
{
	struct work *w = arg;
	uint64_t seq;
	must(auth_next_seq(&w->a, &seq) == ERR_NONE &&
	     auth_tag(&w->a, seq, w->iov, 2, w->tag) == ERR_NONE);
	bench_keep(w->tag);
}

static void round_op(void *arg)
{
	struct work *w = arg;
	uint64_t seq;
	must(auth_next_seq(&w->a, &seq) == ERR_NONE &&
	     auth_tag(&w->a, seq, w->iov, 2, w->tag) == ERR_NONE &&
	     auth_check(&w->b, seq, w->iov, 2, w->tag) == ERR_NONE);
}

static void bare_op(void *arg)
{
	struct work *w = arg;
	uint8_t iv[12] = { 0 }, none[16];
	int n;
	memcpy(iv + 4, &w->bare_seq, 8);
	w->bare_seq++;
	must(EVP_EncryptInit_ex(w->bare, NULL, NULL, NULL, iv) &&
	     EVP_EncryptUpdate(w->bare, NULL, &n, w->message, MESSAGE_BYTES) &&
	     EVP_EncryptFinal_ex(w->bare, none, &n) &&
	     EVP_CIPHER_CTX_ctrl(w->bare, EVP_CTRL_AEAD_GET_TAG, 16, w->tag));
	bench_keep(w->tag);
}

static void hello_op(void *arg)
{
	struct work *w = arg;
	struct auth_session s, c;
	struct peer sp, cp;
	for (int i = 0; i < 4; i++)
		buf_clear(&w->bufs[i]);
	w->now_ns += NS_PER_MS; /* fewer than handshakes_max in a challenge's life */
	must(hello_client_start(w->client, &w->bufs[0]) == ERR_NONE &&
	     hello_server_challenge(w->server, buf_bytes(&w->bufs[0]), w->now_ns, &w->bufs[1],
				    NULL) == ERR_NONE &&
	     hello_client_challenge(w->client, buf_bytes(&w->bufs[1]), &w->bufs[2], NULL) ==
		     ERR_NONE &&
	     hello_server_prove(w->server, buf_bytes(&w->bufs[2]), w->now_ns, 1, &w->bufs[3],
				&s, &sp, NULL) == ERR_NONE &&
	     hello_client_welcome(w->client, buf_bytes(&w->bufs[3]), &c, &cp, NULL, NULL) ==
		     ERR_NONE);
	auth_session_fini(&s);
	auth_session_fini(&c);
}

static void mint_op(void *arg)
{
	struct work *w = arg;
	buf_clear(&w->sealed);
	must(ticket_mint(w->ticket_key, &w->ticket, &w->sealed, NULL) == ERR_NONE);
}

static void open_op(void *arg)
{
	struct work *w = arg;
	struct msg_ticket t;
	arena_clear(&w->arena);
	must(ticket_open(w->ticket_key, buf_bytes(&w->sealed), &w->arena, &t, NULL) ==
	     ERR_NONE);
}

static double tag_ns(void *arg)
{
	return bench_loop_ns(tag_op, arg, 50);
}
/* One round is a tag and a check. */
static double check_ns(void *arg)
{
	return bench_loop_ns(round_op, arg, 50) - tag_ns(arg);
}
static double bare_ns(void *arg)
{
	return bench_loop_ns(bare_op, arg, 50);
}
static double hello_us(void *arg)
{
	return bench_loop_ns(hello_op, arg, 50) / 1e3;
}
static double mint_ns(void *arg)
{
	return bench_loop_ns(mint_op, arg, 50);
}
static double open_ns(void *arg)
{
	return bench_loop_ns(open_op, arg, 50);
}

static void setup(struct work *w)
{
	static const uint8_t key[16] = "0123456789abcde", instance[16] = "an instance ...";
	uint8_t secret[32];
	memset(w->message, 0x5a, sizeof(w->message));
	memset(secret, 0x11, sizeof(secret));
	w->iov[0] = (struct iovec){ w->message, 40 };
	w->iov[1] = (struct iovec){ w->message + 40, MESSAGE_BYTES - 40 };
	must(auth_session_init(&w->a, 1, key, key) == ERR_NONE);
	must(auth_session_init(&w->b, 1, key, key) == ERR_NONE);
	w->bare = EVP_CIPHER_CTX_new();
	must(w->bare && EVP_EncryptInit_ex(w->bare, EVP_aes_128_gcm(), NULL, key, NULL));

	must(keyring_new(secret, NULL, &w->keys) == ERR_NONE);
	must(hello_server_new(&(struct hello_server_opts){ .keys = w->keys,
							   .role = ROLE_SERVICE,
							   .listener = "master",
							   .instance = instance,
							   .v_min = 1,
							   .v_max = 1 },
			      &w->server) == ERR_NONE);
	must(hello_client_new(&(struct hello_client_opts){ .keys = w->keys,
							   .role = ROLE_CLIENT,
							   .tenant = "default",
							   .instance = instance,
							   .v_min = 1,
							   .v_max = 1,
							   .expect = ROLE_SERVICE },
			      &w->client, NULL) == ERR_NONE);
	for (int i = 0; i < 4; i++)
		w->bufs[i] = BUF_INIT(4096);

	must(ticket_key_new(w->keys, "agent-1", &w->ticket_key) == ERR_NONE);
	w->extent = (struct msg_extent){ 1, 1 << 30, 1 << 20 };
	w->ticket = (struct msg_ticket){ .op = TICKET_WRITE,
					 .tenant = BYTES_STR("default"),
					 .extents = { &w->extent, 1 },
					 .size = 1 << 20,
					 .pool_epoch = 3,
					 .version = 1ull << 41,
					 .attempt = 123456 };
	w->sealed = BUF_INIT(4096);
	w->arena = ARENA_INIT(16 << 10);
	mint_op(w);
}

int main(int argc, char **argv)
{
	static struct work w;
	setup(&w);
	const struct bench_row rows[] = {
		{ "auth.tag_256", "ns", true, tag_ns, bare_ns, "bare GMAC", 250, "40 + 216 B" },
		{ "auth.check_256", "ns", true, check_ns, bare_ns, "bare GMAC", 250,
		  "40 + 216 B, window included" },
		{ "auth.hello", "us", true, hello_us, NULL, NULL, 0,
		  "all four messages, both ends" },
		{ "auth.ticket_mint", "ns", true, mint_ns, NULL, NULL, 0,
		  "write ticket, 1 extent" },
		{ "auth.ticket_open", "ns", true, open_ns, NULL, NULL, 0,
		  "write ticket, 1 extent" },
	};
	return bench_main(argc, argv, rows, ARRAY_LEN(rows), &w);
}
