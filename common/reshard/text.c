/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/text.h"

#include <openssl/evp.h>

enum err sha_init(struct sha *s)
{
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx)
		return ERR_NO_MEMORY;
	if (EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) == 1)
		return ERR_NONE;
	sha_fini(s);
	return ERR_INTERNAL;
}

void sha_fini(struct sha *s)
{
	EVP_MD_CTX_free(s->ctx);
	s->ctx = NULL;
}

/* The digest is known to the context: none of these can fail then. */
void sha_reset(struct sha *s)
{
	int ok = EVP_DigestInit_ex(s->ctx, NULL, NULL);
	assert(ok == 1);
}

void sha_add(struct sha *s, const void *p, size_t n)
{
	int ok = EVP_DigestUpdate(s->ctx, p, n);
	assert(ok == 1);
}

void sha_copy(struct sha *dst, const struct sha *src)
{
	int ok = EVP_MD_CTX_copy_ex(dst->ctx, src->ctx);
	assert(ok == 1);
}

void sha_hex(struct sha *s, char out[SHA_HEX])
{
	static const char digits[] = "0123456789abcdef";
	uint8_t d[32];
	int ok = EVP_DigestFinal_ex(s->ctx, d, NULL);
	assert(ok == 1);
	for (int i = 0; i < 32; i++) {
		out[2 * i] = digits[d[i] >> 4];
		out[2 * i + 1] = digits[d[i] & 15];
	}
	sha_reset(s);
}

void text_flush(struct text_out *o)
{
	if (o->sha)
		sha_add(o->sha, o->room, o->n);
	if (o->put && !o->ended)
		o->ended = !o->put(o->arg, o->room, o->n);
	o->ended = o->ended || stop_now(o->cancel);
	o->n_flushed += o->n;
	o->n = 0;
}

bool text_end(struct text_out *o)
{
	text_flush(o);
	return !o->ended;
}

static const char pairs[] = "0001020304050607080910111213141516171819"
			    "2021222324252627282930313233343536373839"
			    "4041424344454647484950515253545556575859"
			    "6061626364656667686970717273747576777879"
			    "8081828384858687888990919293949596979899";

/* Writes v so that it ends before end; its first digit. */
static char *digits(char *end, uint64_t v)
{
	while (v >= 100) {
		end -= 2;
		memcpy(end, pairs + 2 * (v % 100), 2);
		v /= 100;
	}
	if (v < 10) {
		*--end = (char)('0' + v);
		return end;
	}
	end -= 2;
	memcpy(end, pairs + 2 * v, 2);
	return end;
}

static size_t n_digits(uint64_t v)
{
	uint64_t top = 10;
	size_t n = 1;
	for (; n < PEN_U64 && v >= top; n++)
		if (__builtin_mul_overflow(top, 10, &top))
			return n + 1;
	return n;
}

char *pen_u64(char *p, uint64_t v)
{
	char *end = p + n_digits(v);
	digits(end, v);
	return end;
}

void text_u64(struct text_out *o, uint64_t v)
{
	text_to(o, pen_u64(text_room(o, PEN_U64), v));
}

void text_u128(struct text_out *o, unsigned __int128 v)
{
	const uint64_t ten18 = 1000000000000000000u;
	char tmp[40], *end = tmp + sizeof(tmp), *p;
	if (v <= UINT64_MAX) {
		text_u64(o, (uint64_t)v);
		return;
	}
	while (v >= ten18) {
		p = digits(end, (uint64_t)(v % ten18));
		while (p > end - 18)
			*--p = '0';
		end = p;
		v /= ten18;
	}
	p = v ? digits(end, (uint64_t)v) : end;
	text_raw(o, p, (size_t)(tmp + sizeof(tmp) - p));
}

static void hex4(char *p, uint32_t c)
{
	static const char digit[] = "0123456789abcdef";
	p[0] = '\\';
	p[1] = 'u';
	for (int i = 5; i >= 2; i--, c >>= 4)
		p[i] = digit[c & 15];
}

/* One character that may not stand for itself in J; s holds valid UTF-8. Bytes it took. */
static size_t escaped(struct text_out *o, const uint8_t *s)
{
	static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
	char *p = text_room(o, 12);
	for (const char *f = shorts; *f; f += 2)
		if (*s == (uint8_t)*f) {
			p[0] = '\\';
			p[1] = f[1];
			o->n += 2;
			return 1;
		}
	size_t n = *s < 0x80 ? 1 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : 4;
	uint32_t c = n == 1 ? *s : *s & (0xffu >> (n + 1));
	for (size_t i = 1; i < n; i++)
		c = c << 6 | (s[i] & 0x3f);
	if (c < 0x10000) {
		hex4(p, c);
		o->n += 6;
		return n;
	}
	c -= 0x10000;
	hex4(p, 0xd800 | c >> 10);
	hex4(p + 6, 0xdc00 | (c & 0x3ff));
	o->n += 12;
	return n;
}

static inline bool plain(const struct text_out *o, uint8_t c)
{
	return c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || o->raw);
}

/* Zero when each of eight bytes stands for itself in J. */
static inline uint64_t special8(uint64_t w)
{
	const uint64_t one = 0x0101010101010101u, top = 0x8080808080808080u;
	uint64_t q = w ^ (one * '"'), b = w ^ (one * '\\');
	return ((q - one) | (b - one) | (w - one * 0x20) | w | (w + one)) & top;
}

/* Bytes at the front of s that stand for themselves in J: eight at a time. */
static size_t plain_ascii(const uint8_t *s, size_t n)
{
	size_t i = 0;
	for (; n - i >= 8; i += 8) {
		uint64_t w;
		memcpy(&w, s + i, 8);
		if (special8(w))
			break;
	}
	return i;
}

#define STR_SHORT 1024

/* A string of 8 to STR_SHORT bytes that stand for themselves, looked at while they are copied. False:
 * some may not; nothing was written. */
static inline bool str_plain(struct text_out *o, struct bytes s)
{
	char *p = text_room(o, STR_SHORT + 2);
	uint64_t w, special = 0;
	*p++ = '"';
	for (size_t i = 0; i < s.n - 8; i += 8) {
		memcpy(&w, s.p + i, 8);
		special |= special8(w);
		memcpy(p + i, &w, 8);
	}
	memcpy(&w, s.p + s.n - 8, 8);
	if (special | special8(w))
		return false;
	memcpy(p + s.n - 8, &w, 8);
	p[s.n] = '"';
	text_to(o, p + s.n + 1);
	return true;
}

void text_str(struct text_out *o, struct bytes s)
{
	size_t i = 0;
	if (s.n >= 8 && s.n <= STR_SHORT && str_plain(o, s))
		return;
	text_raw(o, "\"", 1);
	while (i < s.n) {
		size_t j = i + plain_ascii(s.p + i, s.n - i);
		while (j < s.n && plain(o, s.p[j]))
			j++;
		for (size_t n; i < j; i += n) {
			n = MIN_OF(j - i, TEXT_ROOM);
			text_raw(o, s.p + i, n);
		}
		if (i < s.n)
			i += escaped(o, s.p + i);
	}
	text_raw(o, "\"", 1);
}

void text_u64s(struct text_out *o, const uint64_t *v, size_t n)
{
	text_raw(o, "[", 1);
	for (size_t i = 0; i < n; i++) {
		char *p = pen_u64(text_room(o, PEN_U64 + 1), v[i]);
		*p = ',';
		text_to(o, p + (i + 1 < n));
	}
	text_raw(o, "]", 1);
}

void text_u64_null(struct text_out *o, bool have, uint64_t v)
{
	if (have)
		text_u64(o, v);
	else
		text_lit(o, "null");
}
