/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/auth_crypto.h"

#include "rpc/gmac.h"

#include <string.h>
#include <openssl/crypto.h>

/* ---- windows ---- */

static inline uint64_t *word(struct auth_window *w, uint64_t seq)
{
	return &w->bits[seq / 64 % ARRAY_LEN(w->bits)];
}

bool auth_window_fresh(const struct auth_window *w, uint64_t seq)
{
	if (seq >= w->next)
		return true;
	if (w->next - seq > AUTH_WINDOW)
		return false;
	return !(w->bits[seq / 64 % ARRAY_LEN(w->bits)] >> (seq % 64) & 1);
}

/* Forgets the numbers that fall out of the window when seq becomes its newest. */
static void window_advance(struct auth_window *w, uint64_t seq)
{
	if (seq - w->next >= AUTH_WINDOW) {
		memset(w->bits, 0, sizeof(w->bits));
	} else {
		for (uint64_t s = w->next; s <= seq; s++) {
			if (s % 64 == 0 && seq - s >= 63) {
				*word(w, s) = 0;
				s += 63;
			} else {
				*word(w, s) &= ~(1ull << (s % 64));
			}
		}
	}
	w->next = seq + 1;
}

void auth_window_mark(struct auth_window *w, uint64_t seq)
{
	assert(auth_window_fresh(w, seq));
	if (seq >= w->next)
		window_advance(w, seq);
	*word(w, seq) |= 1ull << (seq % 64);
}

/* ---- GMAC ---- */

static void make_iv(uint8_t iv[12], uint32_t id, uint64_t seq)
{
	for (int i = 0; i < 4; i++)
		iv[i] = (uint8_t)(id >> (24 - 8 * i));
	for (int i = 0; i < 8; i++)
		iv[4 + i] = (uint8_t)(seq >> (56 - 8 * i));
}

static enum err gmac(struct gmac *g, uint32_t id, uint64_t seq, const struct iovec *iov,
		     size_t n_iov, uint8_t tag[AUTH_TAG_BYTES])
{
	uint8_t iv[GMAC_IV_BYTES];
	make_iv(iv, id, seq);
	return gmac_tag(g, iv, iov, n_iov, tag) ? ERR_NONE : ERR_INTERNAL;
}

/* ---- sessions ---- */

enum err auth_session_init(struct auth_session *s, uint32_t id, const uint8_t send_key[16],
			   const uint8_t recv_key[16])
{
	struct auth_session n = { .id = id };
	n.send = gmac_new(send_key);
	n.recv = gmac_new(recv_key);
	if (!n.send || !n.recv) {
		auth_session_fini(&n);
		return ERR_NO_MEMORY;
	}
	*s = n;
	return ERR_NONE;
}

void auth_session_fini(struct auth_session *s)
{
	if (!s)
		return;
	gmac_free(s->send); /* wipes its key */
	gmac_free(s->recv);
	*s = (struct auth_session){ 0 };
}

enum err auth_next_seq(struct auth_session *s, uint64_t *out)
{
	if (!s->send || s->next_seq >= AUTH_SEQ_END)
		return ERR_STALE_SESSION;
	*out = s->next_seq++;
	return ERR_NONE;
}

bool auth_session_old(const struct auth_session *s)
{
	return s->next_seq >= AUTH_SEQ_RENEW || s->seen.next >= AUTH_SEQ_RENEW;
}

enum err auth_tag(struct auth_session *s, uint64_t seq, const struct iovec *iov, size_t n_iov,
		  uint8_t tag[AUTH_TAG_BYTES])
{
	if (!s->send)
		return ERR_STALE_SESSION;
	assert(seq < s->next_seq); /* I4 */
	return gmac(s->send, s->id, seq, iov, n_iov, tag);
}

enum err auth_check(struct auth_session *s, uint64_t seq, const struct iovec *iov, size_t n_iov,
		    const uint8_t tag[AUTH_TAG_BYTES])
{
	if (!s->recv || seq >= AUTH_SEQ_END)
		return ERR_STALE_SESSION;
	uint8_t want[AUTH_TAG_BYTES];
	enum err e = gmac(s->recv, s->id, seq, iov, n_iov, want);
	if (e != ERR_NONE)
		return e;
	if (CRYPTO_memcmp(want, tag, AUTH_TAG_BYTES) != 0)
		return ERR_UNAUTHENTICATED;
	if (!auth_window_fresh(&s->seen, seq))
		return ERR_REPLAYED;
	auth_window_mark(&s->seen, seq);
	return ERR_NONE;
}
