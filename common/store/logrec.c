/* SPDX-License-Identifier: Apache-2.0 */
#include "store/logrec.h"

#include <string.h>

#include "base/crc.h"
#include "base/le.h"
#include "base/sum.h"

#define MAGIC_SEG     0x31474553504c4d50ull /* "PMLPSEG1" */
#define MAGIC_TRAILER 0x314c5254504c4d50ull /* "PMLPTRL1" */
#define MAGIC_HEAD    0x524c4d50u	    /* "PMLR" */

/* clang-format off */
/* Offsets of fields. */
enum { SEG_MAGIC = 0, SEG_CRC = 8, SEG_VERSION = 12, SEG_SERIAL = 16, SEG_SALT = 24, SEG_OWNER_N = 32,
       SEG_OWNER = 33 };
enum { HEAD_MAGIC = 0, HEAD_CRC = 4, HEAD_TYPE = 8, HEAD_TENANT_N = 10, HEAD_KEY_N = 12,
       HEAD_SALT = 16, HEAD_SERIAL = 24, HEAD_OFF = 32, HEAD_LENGTH = 40,
       HEAD_VERSION = 48, HEAD_SIZE = 56, HEAD_SUM = 64, HEAD_NAMES = 80,
       HEAD_N_DELS = 48, HEAD_DELS = 80 };
enum { ENTRY_TYPE = 0, ENTRY_TENANT_N = 2, ENTRY_KEY_N = 4, ENTRY_OFF = 8, ENTRY_VERSION = 16,
       ENTRY_SIZE = 24, ENTRY_SUM = 32, ENTRY_NAMES = 40,
       ENTRY_DEL_SERIAL = 8, ENTRY_DEL_OFF = 16 };
enum { TRAILER_MAGIC = 0, TRAILER_CRC = 8, TRAILER_FOOTER_CRC = 12, TRAILER_SERIAL = 16,
       TRAILER_SALT = 24, TRAILER_OFF = 32, TRAILER_LEN = 40 };
/* clang-format on */
static_assert(HEAD_DELS + 16 * LOGREC_DELS <= LOGREC_BLOCK, "deletes fit a block");
static_assert(HEAD_NAMES + 64 + OBJ_KEY_MAX <= LOGREC_BLOCK, "names fit a head");

/* Over the block with the CRC's own field as zeros. */
static uint32_t block_crc(const uint8_t *block, size_t n, size_t at)
{
	static const uint8_t none[4];
	uint32_t c = crc32c(0, block, at);
	c = crc32c(c, none, sizeof(none));
	return crc32c(c, block + at + 4, n - at - 4);
}

/* ---- segment ---- */

void logrec_seg_put(const struct logrec_seg *s, uint8_t block[LOGREC_BLOCK])
{
	size_t n = strnlen(s->owner, sizeof(s->owner) - 1);
	memset(block, 0, LOGREC_BLOCK);
	le_put64(block + SEG_MAGIC, MAGIC_SEG);
	le_put32(block + SEG_VERSION, LOGREC_VERSION);
	le_put64(block + SEG_SERIAL, s->serial);
	le_put64(block + SEG_SALT, s->salt);
	block[SEG_OWNER_N] = (uint8_t)n;
	memcpy(block + SEG_OWNER, s->owner, n);
	le_put32(block + SEG_CRC, block_crc(block, LOGREC_BLOCK, SEG_CRC));
}

enum err logrec_seg_get(const uint8_t block[LOGREC_BLOCK], struct logrec_seg *out)
{
	if (le_get64(block + SEG_MAGIC) != MAGIC_SEG ||
	    le_get32(block + SEG_CRC) != block_crc(block, LOGREC_BLOCK, SEG_CRC))
		return ERR_CORRUPT;
	if (le_get32(block + SEG_VERSION) != LOGREC_VERSION)
		return ERR_VERSION_MISMATCH;
	size_t n = block[SEG_OWNER_N];
	if (n >= sizeof(out->owner) || le_get64(block + SEG_SERIAL) == 0)
		return ERR_CORRUPT;
	*out = (struct logrec_seg){ .serial = le_get64(block + SEG_SERIAL),
				    .salt = le_get64(block + SEG_SALT) };
	memcpy(out->owner, block + SEG_OWNER, n);
	return ERR_NONE;
}

/* ---- heads ---- */

uint64_t logrec_length(uint64_t size)
{
	return LOGREC_BLOCK + logrec_round(obj_stored_bytes(size));
}

static void head_common(uint8_t *block, enum logrec_type type, uint64_t salt,
			struct logrec_place at, uint64_t length)
{
	memset(block, 0, LOGREC_BLOCK);
	le_put32(block + HEAD_MAGIC, MAGIC_HEAD);
	block[HEAD_TYPE] = (uint8_t)type;
	le_put64(block + HEAD_SALT, salt);
	le_put64(block + HEAD_SERIAL, at.serial);
	le_put64(block + HEAD_OFF, at.off);
	le_put64(block + HEAD_LENGTH, length);
}

void logrec_head_put(const struct logrec_head *h, uint64_t salt, struct logrec_place at,
		     uint8_t block[LOGREC_BLOCK])
{
	assert(store_id_valid(&h->id) && h->size <= OBJ_SIZE_MAX);
	head_common(block, LOGREC_PUT, salt, at, logrec_length(h->size));
	le_put16(block + HEAD_TENANT_N, (uint16_t)h->id.tenant.n);
	le_put16(block + HEAD_KEY_N, (uint16_t)h->id.key.n);
	le_put64(block + HEAD_VERSION, h->id.version);
	le_put64(block + HEAD_SIZE, h->size);
	le_put64(block + HEAD_SUM, h->sum);
	memcpy(block + HEAD_NAMES, h->id.tenant.p, h->id.tenant.n);
	memcpy(block + HEAD_NAMES + h->id.tenant.n, h->id.key.p, h->id.key.n);
	le_put32(block + HEAD_CRC, block_crc(block, LOGREC_BLOCK, HEAD_CRC));
}

void logrec_dels_put(const struct logrec_place *dels, uint32_t n, uint64_t salt,
		     struct logrec_place at, uint8_t block[LOGREC_BLOCK])
{
	assert(n >= 1 && n <= LOGREC_DELS);
	head_common(block, LOGREC_DEL, salt, at, LOGREC_BLOCK);
	le_put64(block + HEAD_N_DELS, n);
	for (uint32_t i = 0; i < n; i++) {
		le_put64(block + HEAD_DELS + 16 * i, dels[i].serial);
		le_put64(block + HEAD_DELS + 16 * i + 8, dels[i].off);
	}
	le_put32(block + HEAD_CRC, block_crc(block, LOGREC_BLOCK, HEAD_CRC));
}

static enum err get_put(const uint8_t *block, struct logrec_head *h)
{
	h->id = (struct store_id){
		.tenant = BYTES(block + HEAD_NAMES, le_get16(block + HEAD_TENANT_N)),
		.version = le_get64(block + HEAD_VERSION),
	};
	h->id.key = BYTES(block + HEAD_NAMES + h->id.tenant.n, le_get16(block + HEAD_KEY_N));
	h->size = le_get64(block + HEAD_SIZE);
	h->sum = le_get64(block + HEAD_SUM);
	if (!store_id_valid(&h->id) || h->size > OBJ_SIZE_MAX)
		return ERR_CORRUPT;
	return h->length == logrec_length(h->size) ? ERR_NONE : ERR_CORRUPT;
}

enum err logrec_head_get(const uint8_t block[LOGREC_BLOCK], uint64_t salt,
			 struct logrec_place at, struct logrec_head *out)
{
	struct logrec_head h = { .type = (enum logrec_type)block[HEAD_TYPE],
				 .length = le_get64(block + HEAD_LENGTH) };
	enum err e = ERR_CORRUPT;
	if (le_get32(block + HEAD_MAGIC) != MAGIC_HEAD || le_get64(block + HEAD_SALT) != salt ||
	    le_get64(block + HEAD_SERIAL) != at.serial ||
	    le_get64(block + HEAD_OFF) != at.off ||
	    le_get32(block + HEAD_CRC) != block_crc(block, LOGREC_BLOCK, HEAD_CRC))
		return ERR_CORRUPT;
	if (h.type == LOGREC_PUT) {
		e = get_put(block, &h);
	} else if (h.type == LOGREC_DEL) {
		uint64_t n = le_get64(block + HEAD_N_DELS);
		h.n_dels = (uint32_t)n;
		e = n >= 1 && n <= LOGREC_DELS && h.length == LOGREC_BLOCK ? ERR_NONE
									   : ERR_CORRUPT;
	}
	if (e == ERR_NONE)
		*out = h;
	return e;
}

struct logrec_place logrec_del(const uint8_t block[LOGREC_BLOCK], uint32_t i)
{
	return (struct logrec_place){ le_get64(block + HEAD_DELS + 16 * i),
				      le_get64(block + HEAD_DELS + 16 * i + 8) };
}

/* ---- footer ---- */

uint64_t logrec_entry_bytes(const struct store_id *id, uint64_t size)
{
	return ENTRY_NAMES + id->tenant.n + id->key.n + 8 * sum_n_blocks(size);
}

void logrec_entry_put(struct buf *b, const struct store_id *id, uint64_t off, uint64_t size,
		      uint64_t sum, const uint64_t *vector)
{
	uint8_t e[ENTRY_NAMES] = { [ENTRY_TYPE] = LOGREC_PUT };
	le_put16(e + ENTRY_TENANT_N, (uint16_t)id->tenant.n);
	le_put16(e + ENTRY_KEY_N, (uint16_t)id->key.n);
	le_put64(e + ENTRY_OFF, off);
	le_put64(e + ENTRY_VERSION, id->version);
	le_put64(e + ENTRY_SIZE, size);
	le_put64(e + ENTRY_SUM, sum);
	buf_put(b, e, sizeof(e));
	buf_put(b, id->tenant.p, id->tenant.n);
	buf_put(b, id->key.p, id->key.n);
	for (uint64_t i = 0; i < sum_n_blocks(size); i++) {
		uint8_t w[8];
		le_put64(w, vector[i]);
		buf_put(b, w, sizeof(w));
	}
}

void logrec_entry_put_del(struct buf *b, struct logrec_place del)
{
	uint8_t e[LOGREC_DEL_BYTES] = { [ENTRY_TYPE] = LOGREC_DEL };
	le_put64(e + ENTRY_DEL_SERIAL, del.serial);
	le_put64(e + ENTRY_DEL_OFF, del.off);
	buf_put(b, e, sizeof(e));
}

/* An entry of an object; its bytes begin at p. */
static bool entry_put_get(const uint8_t *p, size_t left, uint64_t data_end,
			  struct logrec_entry *e, size_t *n)
{
	if (left < ENTRY_NAMES)
		return false;
	e->id.tenant = BYTES(p + ENTRY_NAMES, le_get16(p + ENTRY_TENANT_N));
	e->id.key = BYTES(p + ENTRY_NAMES + e->id.tenant.n, le_get16(p + ENTRY_KEY_N));
	e->id.version = le_get64(p + ENTRY_VERSION);
	e->off = le_get64(p + ENTRY_OFF);
	e->size = le_get64(p + ENTRY_SIZE);
	e->sum = le_get64(p + ENTRY_SUM);
	if (e->size > OBJ_SIZE_MAX || e->off < LOGREC_BLOCK || e->off % LOGREC_BLOCK != 0 ||
	    e->off > data_end || logrec_length(e->size) > data_end - e->off)
		return false;
	uint64_t bytes = logrec_entry_bytes(&e->id, e->size);
	if (bytes > left || !store_id_valid(&e->id))
		return false;
	e->vector = p + ENTRY_NAMES + e->id.tenant.n + e->id.key.n;
	*n = (size_t)bytes;
	return true;
}

bool logrec_entry_get(struct bytes footer, size_t *at, uint64_t data_end,
		      struct logrec_entry *out, bool *bad)
{
	size_t left = footer.n - *at, n = LOGREC_DEL_BYTES;
	const uint8_t *p = footer.p + *at;
	struct logrec_entry e = { 0 };
	*bad = false;
	if (left == 0)
		return false;
	e.type = (enum logrec_type)p[ENTRY_TYPE];
	bool good = false;
	if (e.type == LOGREC_PUT) {
		good = entry_put_get(p, left, data_end, &e, &n);
	} else if (e.type == LOGREC_DEL && left >= LOGREC_DEL_BYTES) {
		e.del = (struct logrec_place){ le_get64(p + ENTRY_DEL_SERIAL),
					       le_get64(p + ENTRY_DEL_OFF) };
		good = true;
	}
	*bad = !good;
	if (!good)
		return false;
	*at += n;
	*out = e;
	return true;
}

/* ---- trailer ---- */

void logrec_trailer_put(const struct logrec_trailer *t, uint8_t block[LOGREC_BLOCK])
{
	memset(block, 0, LOGREC_BLOCK);
	le_put64(block + TRAILER_MAGIC, MAGIC_TRAILER);
	le_put32(block + TRAILER_FOOTER_CRC, t->footer_crc);
	le_put64(block + TRAILER_SERIAL, t->serial);
	le_put64(block + TRAILER_SALT, t->salt);
	le_put64(block + TRAILER_OFF, t->footer_off);
	le_put64(block + TRAILER_LEN, t->footer_len);
	le_put32(block + TRAILER_CRC, block_crc(block, LOGREC_BLOCK, TRAILER_CRC));
}

enum err logrec_trailer_get(const uint8_t block[LOGREC_BLOCK], uint64_t file_size,
			    struct logrec_trailer *out)
{
	struct logrec_trailer t = {
		.serial = le_get64(block + TRAILER_SERIAL),
		.salt = le_get64(block + TRAILER_SALT),
		.footer_off = le_get64(block + TRAILER_OFF),
		.footer_len = le_get64(block + TRAILER_LEN),
		.footer_crc = le_get32(block + TRAILER_FOOTER_CRC),
	};
	if (le_get64(block + TRAILER_MAGIC) != MAGIC_TRAILER ||
	    le_get32(block + TRAILER_CRC) != block_crc(block, LOGREC_BLOCK, TRAILER_CRC))
		return ERR_CORRUPT;
	if (t.footer_off < LOGREC_BLOCK || t.footer_off % LOGREC_BLOCK != 0 ||
	    t.footer_off > file_size || t.footer_len > LOGREC_FOOTER_MAX ||
	    t.footer_off + logrec_round(t.footer_len) + LOGREC_BLOCK != file_size)
		return ERR_CORRUPT;
	*out = t;
	return ERR_NONE;
}
