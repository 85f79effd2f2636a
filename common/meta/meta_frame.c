/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta_frame.h"

#include <string.h>

#include "base/crc.h"

/*
 * A sector: its data, 4 bytes of CRC, a mark. Written front to back, so one without its mark
 * was never finished, even where the disk tears smaller pieces than sectors. A frame's first:
 * 52 bytes of head.
 */
#define DATA_BYTES  507
#define MARK_AT	    511
#define MARK	    0xa5 /* four bits: no single flip makes it zero */
#define HEAD_BYTES  52
#define FIRST_BYTES (DATA_BYTES - HEAD_BYTES)
#define FRAME_MAGIC 0x52464d50u	 /* "PMFR" */
#define WINDOW_MAX  (256u << 10) /* bytes read at a time */
#define RECORD_HEAD 16

static const uint8_t magic[8] = { 'P', 'O', 'M', 'E', 'L', 'O', 'M', 'T' };

enum sector_kind { SECTOR_BLANK, SECTOR_UNFINISHED, SECTOR_FRAME, SECTOR_MORE, SECTOR_DAMAGED };

static_assert(FIRST_BYTES == META_FIRST_BYTES && DATA_BYTES == META_MORE_BYTES,
	      "in the header");

/* ---- little endian ---- */

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
	       (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

/* ---- sectors ---- */

/* What a sector is and where it stands counts into its CRC: one that was moved is damaged. */
static uint32_t sector_crc(const uint8_t store[16], uint64_t sector, enum sector_kind kind,
			   const uint8_t *data)
{
	uint8_t place[25];
	memcpy(place, store, 16);
	put64(place + 16, sector);
	place[24] = (uint8_t)kind;
	return crc32c(crc32c(0, place, sizeof(place)), data, DATA_BYTES);
}

static bool all_zero(const uint8_t *p)
{
	static const uint8_t zero[META_SECTOR];
	return memcmp(p, zero, META_SECTOR) == 0;
}

static enum sector_kind sector_kind(const uint8_t store[16], uint64_t sector, const uint8_t *p)
{
	if (p[MARK_AT] == 0)
		return all_zero(p) ? SECTOR_BLANK : SECTOR_UNFINISHED;
	if (p[MARK_AT] != MARK)
		return SECTOR_DAMAGED;
	uint32_t crc = get32(p + DATA_BYTES);
	if (crc == sector_crc(store, sector, SECTOR_FRAME, p))
		return SECTOR_FRAME;
	if (crc == sector_crc(store, sector, SECTOR_MORE, p))
		return SECTOR_MORE;
	return SECTOR_DAMAGED;
}

static bool never_written(enum sector_kind k)
{
	return k == SECTOR_BLANK || k == SECTOR_UNFINISHED;
}

/* ---- headers ---- */

void meta_head_encode(const struct meta_head *h, uint8_t out[META_SECTOR])
{
	memset(out, 0, META_SECTOR);
	memcpy(out, magic, sizeof(magic));
	put32(out + 8, META_FORMAT);
	put32(out + 12, h->kind);
	memcpy(out + 16, h->store, 16);
	put64(out + 32, h->seq);
	put32(out + 40, h->chain);
	put64(out + 48, h->durable);
	put32(out + DATA_BYTES, crc32c(0, out, DATA_BYTES));
	out[MARK_AT] = MARK;
}

enum err meta_head_decode(const uint8_t in[META_SECTOR], const char *name,
			  struct meta_head *out, struct why *why)
{
	if (memcmp(in, magic, sizeof(magic)) != 0)
		return why_set(why, ERR_CORRUPT, "%s does not begin as a meta store's file",
			       name);
	if (in[MARK_AT] != MARK || get32(in + DATA_BYTES) != crc32c(0, in, DATA_BYTES))
		return why_set(why, ERR_CORRUPT, "the header of %s is damaged", name);
	if (get32(in + 8) != META_FORMAT)
		return why_set(
			why, ERR_VERSION_MISMATCH,
			"%s has format %u, this release reads %u; run the release that wrote it",
			name, get32(in + 8), META_FORMAT);
	*out = (struct meta_head){ .kind = (enum meta_kind)get32(in + 12),
				   .seq = get64(in + 32),
				   .chain = get32(in + 40),
				   .durable = get64(in + 48) };
	memcpy(out->store, in + 16, 16);
	return ERR_NONE;
}

/* ---- frames ---- */

static void frame_head_encode(const struct meta_frame *f, uint8_t *out)
{
	put32(out, FRAME_MAGIC);
	put32(out + 4, f->n_bytes);
	put64(out + 8, f->number);
	put64(out + 16, f->first);
	put32(out + 24, f->n_records);
	put32(out + 28, f->chain);
	put64(out + 32, f->durable);
	put32(out + 40, f->flags);
	put64(out + 44, 0);
}

static void frame_head_decode(const uint8_t *in, struct meta_frame *f)
{
	*f = (struct meta_frame){ .n_bytes = get32(in + 4),
				  .number = get64(in + 8),
				  .first = get64(in + 16),
				  .n_records = get32(in + 24),
				  .chain = get32(in + 28),
				  .durable = get64(in + 32),
				  .flags = get32(in + 40) };
}

uint32_t meta_frame_encode(const uint8_t store[16], uint64_t sector, const struct meta_frame *f,
			   struct bytes payload, uint8_t *out)
{
	assert(payload.n == f->n_bytes && payload.n <= META_PAYLOAD_MAX);
	uint32_t chain = f->chain;
	for (uint64_t i = 0, n = meta_frame_sectors(payload.n); i < n;
	     i++, out += META_SECTOR) {
		size_t head = i == 0 ? HEAD_BYTES : 0,
		       take = MIN_OF(payload.n, DATA_BYTES - head);
		memset(out, 0, META_SECTOR);
		if (i == 0)
			frame_head_encode(f, out);
		if (take)
			memcpy(out + head, payload.p, take);
		payload = BYTES(payload.p + take, payload.n - take);
		put32(out + DATA_BYTES,
		      sector_crc(store, sector + i, i == 0 ? SECTOR_FRAME : SECTOR_MORE, out));
		out[MARK_AT] = MARK;
		chain = crc32c(chain, out + DATA_BYTES, 4);
	}
	return chain;
}

void meta_payload_add(struct buf *b, uint64_t seq, uint32_t type, struct bytes body)
{
	uint8_t head[RECORD_HEAD];
	put32(head, (uint32_t)body.n);
	put32(head + 4, type);
	put64(head + 8, seq);
	buf_put(b, head, sizeof(head));
	buf_put(b, body.p, body.n);
}

bool meta_payload_next(struct bytes *payload, uint64_t *seq, uint32_t *type, struct bytes *body)
{
	if (payload->n < RECORD_HEAD)
		return false;
	uint32_t n = get32(payload->p);
	if (n > payload->n - RECORD_HEAD)
		return false;
	*type = get32(payload->p + 4);
	*seq = get64(payload->p + 8);
	*body = BYTES(payload->p + RECORD_HEAD, n);
	*payload = BYTES(body->p + n, payload->n - RECORD_HEAD - n);
	return true;
}

/* ---- the reader ---- */

/* The sector's bytes; past the end of the file, zeros. NULL on a read error. */
static const uint8_t *sector_at(struct meta_reader *r, uint64_t sector, enum err *e)
{
	uint64_t off = sector * META_SECTOR;
	if (off < r->window_at || off + META_SECTOR > r->window_at + r->window_n) {
		size_t got = 0;
		*e = r->file->fs->ops->read(r->file, r->window, r->window_size, off, &got);
		if (*e != ERR_NONE)
			return NULL;
		memset(r->window + got, 0, r->window_size - got);
		r->window_at = off;
		r->window_n = r->window_size;
	}
	*e = ERR_NONE;
	return r->window + (off - r->window_at);
}

static enum err damaged(struct meta_reader *r, uint64_t sector, const char *what,
			struct why *why)
{
	return why_set(why, ERR_CORRUPT, "%s is damaged at byte %llu: %s", r->name,
		       (unsigned long long)sector * META_SECTOR, what);
}

static enum err check_head(struct meta_reader *r, enum meta_kind kind, struct why *why)
{
	if (r->head.kind != kind)
		return why_set(why, ERR_CORRUPT, "%s is no %s", r->name,
			       kind == META_LOG ? "log" : "snapshot");
	if (r->size % META_SECTOR && kind == META_SNAP)
		return damaged(r, r->size / META_SECTOR, "it ends inside a sector", why);
	if (kind == META_LOG &&
	    (r->head.durable < 2 * META_SECTOR || r->head.durable > r->size))
		return why_set(why, ERR_CORRUPT,
			       "%s has %llu bytes, it had at least %llu: it was cut", r->name,
			       (unsigned long long)r->size,
			       (unsigned long long)r->head.durable);
	return ERR_NONE;
}

enum err meta_reader_init(struct meta_reader *r, struct meta_file *file, const char *name,
			  enum meta_kind kind, struct why *why)
{
	*r = (struct meta_reader){
		.file = file, .name = name, .sector = 1, .payload = BUF_INIT(META_PAYLOAD_MAX)
	};
	enum err e = file->fs->ops->size(file, &r->size);
	if (e != ERR_NONE)
		return why_set(why, e, "cannot look at %s: %s", name, err_text(e));
	r->window_size =
		MIN_OF((r->size / META_SECTOR + 1) * META_SECTOR, (uint64_t)WINDOW_MAX);
	r->window = calloc(1, r->window_size);
	if (!r->window)
		return ERR_NO_MEMORY;
	const uint8_t *p = sector_at(r, 0, &e);
	if (!p)
		return why_set(why, e, "cannot read %s: %s", name, err_text(e));
	e = meta_head_decode(p, name, &r->head, why);
	if (e == ERR_NONE)
		e = check_head(r, kind, why);
	r->chain = r->head.chain;
	r->durable = r->head.durable;
	return e;
}

void meta_reader_fini(struct meta_reader *r)
{
	if (!r)
		return;
	free(r->window);
	buf_fini(&r->payload);
	r->window = NULL;
}

/* Is what the head says possible here? Its CRC is good, so a "no" is no accident of a crash. */
static bool head_fits(const struct meta_reader *r, const struct meta_frame *f)
{
	uint64_t end = (r->sector + meta_frame_sectors(f->n_bytes)) * META_SECTOR;
	if (f->number != r->number || f->chain != r->chain || f->n_bytes > META_PAYLOAD_MAX ||
	    f->n_records > f->n_bytes / RECORD_HEAD)
		return false;
	if (r->head.kind == META_SNAP)
		return end <= r->size;
	/* one zero sector always follows inside the durable length */
	return f->durable >= r->durable && f->durable <= r->size &&
	       end + META_SECTOR <= f->durable;
}

/* A log ends here. No whole frame may follow: it was written after this place was durable. */
static enum err end_of_log(struct meta_reader *r, struct why *why)
{
	enum err e = ERR_NONE;
	for (uint64_t s = r->sector; s * META_SECTOR < r->size; s++) {
		const uint8_t *p = sector_at(r, s, &e);
		if (!p)
			return why_set(why, e, "cannot read %s: %s", r->name, err_text(e));
		enum sector_kind k = sector_kind(r->head.store, s, p);
		struct meta_frame f;
		if (k != SECTOR_BLANK)
			r->torn = true;
		if (k != SECTOR_FRAME)
			continue;
		frame_head_decode(p, &f);
		if (f.number > r->number)
			return damaged(r, r->sector, "acknowledged records follow a gap", why);
	}
	return ERR_NOT_FOUND;
}

static enum err end_of_snap(struct meta_reader *r, struct why *why)
{
	if (r->ended && r->sector * META_SECTOR == r->size)
		return ERR_NOT_FOUND;
	return damaged(r, r->sector, r->ended ? "more follows its end" : "it ends too early",
		       why);
}

/* Copies the payload out. *whole is false when a sector of it was never written. */
static enum err read_payload(struct meta_reader *r, const struct meta_frame *f, uint32_t *chain,
			     bool *whole, struct why *why)
{
	size_t left = f->n_bytes;
	*whole = true;
	buf_clear(&r->payload);
	for (uint64_t i = 0, n = meta_frame_sectors(f->n_bytes); i < n; i++) {
		enum err e;
		const uint8_t *p = sector_at(r, r->sector + i, &e);
		if (!p)
			return why_set(why, e, "cannot read %s: %s", r->name, err_text(e));
		enum sector_kind k = sector_kind(r->head.store, r->sector + i, p);
		size_t head = i == 0 ? HEAD_BYTES : 0, take = MIN_OF(left, DATA_BYTES - head);
		if (never_written(k) && r->head.kind == META_LOG)
			*whole = false;
		else if (k != (i == 0 ? SECTOR_FRAME : SECTOR_MORE))
			return damaged(r, r->sector + i, "its checksum is wrong", why);
		buf_put(&r->payload, p + head, take);
		*chain = crc32c(*chain, p + DATA_BYTES, 4);
		left -= take;
	}
	return buf_err(&r->payload);
}

enum err meta_reader_next(struct meta_reader *r, struct meta_frame *f, struct bytes *payload,
			  struct why *why)
{
	bool log = r->head.kind == META_LOG, whole;
	if (!log && (r->ended || r->sector * META_SECTOR >= r->size))
		return end_of_snap(r, why);
	enum err e;
	const uint8_t *p = sector_at(r, r->sector, &e);
	if (!p)
		return why_set(why, e, "cannot read %s: %s", r->name, err_text(e));
	enum sector_kind k = sector_kind(r->head.store, r->sector, p);
	if (log && never_written(k))
		return end_of_log(r, why);
	if (k != SECTOR_FRAME || get32(p) != FRAME_MAGIC)
		return damaged(r, r->sector, "no frame begins here", why);
	frame_head_decode(p, f);
	if (!head_fits(r, f))
		return damaged(r, r->sector, "the frame belongs elsewhere", why);
	uint32_t chain = r->chain;
	e = read_payload(r, f, &chain, &whole, why);
	if (e != ERR_NONE)
		return e;
	if (!whole)
		return end_of_log(r, why);
	r->last_sector = r->sector;
	r->sector += meta_frame_sectors(f->n_bytes);
	r->number++;
	r->chain = chain;
	r->durable = f->durable;
	r->ended = f->flags & META_FRAME_END;
	*payload = buf_bytes(&r->payload);
	return ERR_NONE;
}
