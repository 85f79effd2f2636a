/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include <criterion/criterion.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>

#include "hex.h"
#include "support/leak.h"

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static struct iovec iov_of(const void *p, size_t n)
{
	return (struct iovec){ .iov_base = (void *)p, .iov_len = n };
}

/* Two ends of one session. */
static void pair(struct auth_session *a, struct auth_session *b)
{
	uint8_t k1[16] = "key one 12345 :", k2[16] = "key two 67890 :";
	cr_assert_eq(auth_session_init(a, 7, k1, k2), ERR_NONE);
	cr_assert_eq(auth_session_init(b, 7, k2, k1), ERR_NONE);
}

/* NIST gcmEncryptExtIV128, [PTlen = 0]; the first 4 bytes of the IV are our session id. */
static void check_nist(const char *key_hex, uint32_t id, uint64_t seq, const char *aad_hex,
		       const char *tag_hex)
{
	uint8_t key[16], aad[64], want[16], got[16];
	from_hex(key_hex, key);
	size_t n = from_hex(aad_hex, aad);
	from_hex(tag_hex, want);
	struct auth_session s;
	cr_assert_eq(auth_session_init(&s, id, key, key), ERR_NONE);
	s.next_seq = UINT64_MAX;
	struct iovec iov = iov_of(aad, n);
	cr_assert_eq(auth_tag(&s, seq, &iov, 1, got), ERR_NONE);
	cr_assert_arr_eq(got, want, 16);
	auth_session_fini(&s);
}

Test(auth_session, gmac_nist, .timeout = 5)
{
	check_nist("11754cd72aec309bf52f7687212e8957", 0x3c819d9a, 0x9bed087615030b65, "",
		   "250327c674aaf477aef2675748cf6971");
	check_nist("77be63708971c4e240d1cb79e8d77feb", 0xe0e00f19, 0xfed7ba0136a797f3,
		   "7a43ec1d9c0a5a78a0b16533a6213cab", "209fcc8d3675ed938e9c7166709dd946");
	NO_LEAKS();
}

/* The library's one-shot GMAC as oracle: any length, any split into pieces. */
Test(auth_session, gmac_against_the_one_shot, .timeout = 10)
{
	uint8_t key[16] = "0123456789abcde", data[700], want[16], got[16], iv[12];
	uint64_t seed = 42;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)rnd(&seed);
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "GMAC", NULL);
	struct auth_session s;
	cr_assert_eq(auth_session_init(&s, 0x01020304, key, key), ERR_NONE);
	for (int round = 0; round < 500; round++) {
		size_t n = rnd(&seed) % sizeof(data), cut = n ? rnd(&seed) % n : 0;
		uint64_t seq;
		s.next_seq = rnd(&seed) % AUTH_SEQ_END;
		cr_assert_eq(auth_next_seq(&s, &seq), ERR_NONE);
		memcpy(iv, "\1\2\3\4", 4);
		for (int i = 0; i < 8; i++)
			iv[4 + i] = (uint8_t)(seq >> (56 - 8 * i));
		OSSL_PARAM params[] = {
			OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, "AES-128-GCM",
							 0),
			OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv, sizeof(iv)),
			OSSL_PARAM_construct_end(),
		};
		EVP_MAC_CTX *c = EVP_MAC_CTX_new(mac);
		size_t out_n;
		cr_assert(EVP_MAC_init(c, key, 16, params));
		cr_assert(EVP_MAC_update(c, data, n));
		cr_assert(EVP_MAC_final(c, want, &out_n, sizeof(want)));
		EVP_MAC_CTX_free(c);
		struct iovec iov[] = { iov_of(data, cut), iov_of(data + cut, n - cut) };
		cr_assert_eq(auth_tag(&s, seq, iov, 2, got), ERR_NONE);
		cr_assert_arr_eq(got, want, 16);
	}
	EVP_MAC_free(mac);
	auth_session_fini(&s);
	NO_LEAKS();
}

Test(auth_session, every_flipped_bit_is_seen, .timeout = 10)
{
	struct auth_session a, b;
	pair(&a, &b);
	uint8_t msg[64] = "envelope and body", tag[16];
	struct iovec iov = iov_of(msg, sizeof(msg));
	uint64_t seq;
	cr_assert_eq(auth_next_seq(&a, &seq), ERR_NONE);
	cr_assert_eq(auth_tag(&a, seq, &iov, 1, tag), ERR_NONE);
	for (size_t bit = 0; bit < sizeof(msg) * 8; bit++) {
		msg[bit / 8] ^= (uint8_t)(1 << bit % 8);
		cr_assert_eq(auth_check(&b, seq, &iov, 1, tag), ERR_UNAUTHENTICATED);
		msg[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t bit = 0; bit < 128; bit++) {
		tag[bit / 8] ^= (uint8_t)(1 << bit % 8);
		cr_assert_eq(auth_check(&b, seq, &iov, 1, tag), ERR_UNAUTHENTICATED);
		tag[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (uint64_t bit = 0; bit < 48; bit++)
		cr_assert_eq(auth_check(&b, seq ^ 1ull << bit, &iov, 1, tag),
			     ERR_UNAUTHENTICATED);
	cr_assert_eq(auth_check(&a, seq, &iov, 1, tag), ERR_UNAUTHENTICATED, "reflected");
	b.id ^= 1;
	cr_assert_eq(auth_check(&b, seq, &iov, 1, tag), ERR_UNAUTHENTICATED, "another session");
	b.id ^= 1;
	cr_assert_eq(b.seen.next, 0, "bad tags leave the window alone");
	cr_assert_eq(auth_check(&b, seq, &iov, 1, tag), ERR_NONE);
	cr_assert_eq(auth_check(&b, seq, &iov, 1, tag), ERR_REPLAYED);
	auth_session_fini(&a);
	auth_session_fini(&b);
	NO_LEAKS();
}

Test(auth_session, numbers_end, .timeout = 5)
{
	struct auth_session a, b;
	pair(&a, &b);
	uint8_t tag[16];
	uint64_t seq = 99;
	cr_assert_not(auth_session_old(&a));
	a.next_seq = AUTH_SEQ_RENEW;
	cr_assert(auth_session_old(&a));
	a.next_seq = AUTH_SEQ_END - 1;
	cr_assert_eq(auth_next_seq(&a, &seq), ERR_NONE);
	cr_assert_eq(seq, AUTH_SEQ_END - 1);
	cr_assert_eq(auth_tag(&a, seq, NULL, 0, tag), ERR_NONE);
	cr_assert_eq(auth_check(&b, seq, NULL, 0, tag), ERR_NONE);
	cr_assert(auth_session_old(&b), "the receiving end knows too");
	seq = 99;
	cr_assert_eq(auth_next_seq(&a, &seq), ERR_STALE_SESSION);
	cr_assert_eq(seq, 99);
	cr_assert_eq(auth_check(&b, AUTH_SEQ_END, NULL, 0, tag), ERR_STALE_SESSION);
	auth_session_fini(&a);
	auth_session_fini(&b);
	auth_session_fini(&b);
	auth_session_fini(NULL);
	cr_assert_eq(auth_next_seq(&a, &seq), ERR_STALE_SESSION, "zero is an ended session");
	cr_assert_eq(auth_tag(&a, 0, NULL, 0, tag), ERR_STALE_SESSION);
	cr_assert_eq(auth_check(&a, 0, NULL, 0, tag), ERR_STALE_SESSION);
	NO_LEAKS();
}

/* ---- the window against a plain set ---- */

#define SPACE 40000

struct model {
	bool seen[SPACE];
	uint64_t next;
};

static bool model_fresh(const struct model *m, uint64_t seq)
{
	return !m->seen[seq] && (seq >= m->next || m->next - seq <= AUTH_WINDOW);
}

static void step(struct auth_window *w, struct model *m, uint64_t seq)
{
	bool fresh = auth_window_fresh(w, seq);
	cr_assert_eq(fresh, model_fresh(m, seq), "seq %zu next %zu", (size_t)seq,
		     (size_t)m->next);
	if (!fresh)
		return;
	auth_window_mark(w, seq);
	m->seen[seq] = true;
	m->next = MAX_OF(m->next, seq + 1);
	cr_assert_eq(w->next, m->next);
}

Test(auth_session, window_edges, .timeout = 5)
{
	static struct auth_window w;
	static struct model m;
	uint64_t seqs[] = { 0,	  0,	1,     4096,  1,     0,	    2,	  4097,	       1,
			    2,	  3,	8192,  4096,  4097,  4098,  4098, 8193 + 4096, 8193,
			    8194, 8194, 30000, 25904, 25905, 25905, 30000 };
	for (size_t i = 0; i < ARRAY_LEN(seqs); i++)
		step(&w, &m, seqs[i]);
	cr_assert_not(auth_window_fresh(&w, 30000 - 4096));
	cr_assert(auth_window_fresh(&w, 30000 - 4094));
}

Test(auth_session, window_against_a_set, .timeout = 20)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct auth_window w = { 0 };
		static struct model m;
		memset(&m, 0, sizeof(m));
		uint64_t s = seed * 0x9e3779b97f4a7c15ull, spread = 1ull << (seed % 14);
		for (int i = 0; i < 20000; i++) {
			uint64_t back = rnd(&s) % (spread + 5), ahead = rnd(&s) % (spread + 1);
			uint64_t seq = m.next + ahead;
			seq = seq > back ? seq - back : 0;
			if (i % 7 == 0)
				seq = rnd(&s) % SPACE;
			if (seq < SPACE)
				step(&w, &m, seq);
		}
		/* every number's verdict, not only those asked for */
		for (uint64_t q = 0; q < SPACE; q++)
			cr_assert_eq(auth_window_fresh(&w, q), model_fresh(&m, q));
	}
}

/* Whole messages: in order, shuffled within the window, twice, and too late. */
Test(auth_session, reordered_messages, .timeout = 20)
{
	struct auth_session a, b;
	pair(&a, &b);
	enum { N = AUTH_WINDOW };
	static uint8_t tags[N + 1][16];
	static uint32_t order[N];
	uint64_t seed = 5, seq;
	for (uint64_t i = 0; i <= N; i++) {
		struct iovec iov = iov_of(&i, sizeof(i));
		cr_assert_eq(auth_next_seq(&a, &seq), ERR_NONE);
		cr_assert_eq(auth_tag(&a, seq, &iov, 1, tags[i]), ERR_NONE);
	}
	for (uint32_t i = 0; i < N; i++)
		order[i] = i;
	for (uint32_t i = N - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(rnd(&seed) % (i + 1)), t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < N; i++) {
			uint64_t body = order[i] + 1;
			struct iovec iov = iov_of(&body, sizeof(body));
			cr_assert_eq(auth_check(&b, body, &iov, 1, tags[body]),
				     round == 0 ? ERR_NONE : ERR_REPLAYED);
		}
	uint64_t zero = 0;
	struct iovec iov = iov_of(&zero, sizeof(zero));
	cr_assert_eq(auth_check(&b, 0, &iov, 1, tags[0]), ERR_REPLAYED, "one too late");
	auth_session_fini(&a);
	auth_session_fini(&b);
	NO_LEAKS();
}
