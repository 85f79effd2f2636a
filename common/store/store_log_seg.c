/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a segment's file: made and allocated whole, so that a write into it needs no more room; sealed with footer and
 * trailer; or bad (G4).
 */
#include "store/store_log.h"

#include <string.h>

#include "base/crc.h"
#include "base/sum.h"

#define TRAILER_BYTES LOGREC_BLOCK

static enum err build_footer(struct log_be *lg, struct log_seg *s, struct buf *b)
{
	pthread_mutex_lock(&lg->lock);
	list_for_each (it, &s->entries) {
		const struct ix_entry *e = list_entry(it, struct ix_entry, in_where);
		struct store_id id = ix_id(e);
		logrec_entry_put(b, &id, e->off, e->size, e->sum, e->vector);
	}
	for (uint32_t i = 0; i < s->n_dels; i++)
		logrec_entry_put_del(b, s->dels[i]);
	pthread_mutex_unlock(&lg->lock);
	return buf_err(b);
}

enum err log_write_footer(struct log_be *lg, struct blk_lane *lane, struct log_seg *s)
{
	struct buf b = BUF_INIT(LOGREC_FOOTER_MAX);
	uint8_t block[LOGREC_BLOCK];
	struct log_out o;
	enum err e = build_footer(lg, s, &b);
	uint64_t size = s->end + logrec_round(b.n) + TRAILER_BYTES;
	if (e == ERR_NONE)
		e = lg->fs->ops->truncate(s->file, size);
	if (e == ERR_NONE) {
		const struct logrec_trailer t = { .serial = s->serial,
						  .salt = s->salt,
						  .footer_off = s->end,
						  .footer_len = b.n,
						  .footer_crc = crc32c(0, b.p, b.n) };
		logrec_trailer_put(&t, block);
		log_out_init(&o, lane);
		o.seg = s;
		o.at = s->end;
		log_out_bytes(&o, b.p, b.n);
		log_out_bytes(&o, NULL, logrec_round(b.n) - b.n);
		log_out_bytes(&o, block, sizeof(block));
		e = log_out_wait(&o);
	}
	if (e == ERR_NONE && lg->fsync != STORE_FSYNC_NEVER)
		e = lg->fs->ops->sync(s->file);
	buf_fini(&b);
	return e;
}

enum err log_seal(struct log_be *lg)
{
	struct log_seg *s = lg->active;
	enum err e = log_commit(lg);
	if (!s || e)
		return e;
	lg->active = NULL;
	if (s->end == LOGREC_BLOCK) { /* nothing was ever written to it */
		pthread_mutex_lock(&lg->lock);
		s->state = SEG_SEALED;
		pthread_mutex_unlock(&lg->lock);
		return log_remove_seg(lg, s);
	}
	e = log_write_footer(lg, lg->out.lane, s);
	pthread_mutex_lock(&lg->lock);
	s->state = SEG_SEALED;
	if (e)
		log_make_bad(lg, s, e); /* what is in it is safe: records need no footer */
	else
		log_seg_count(lg, s);
	pthread_mutex_unlock(&lg->lock);
	return ERR_NONE;
}

static enum err write_seg_header(struct log_be *lg, struct log_seg *s)
{
	uint8_t block[LOGREC_BLOCK];
	struct logrec_seg h = { .serial = s->serial, .salt = s->salt };
	memcpy(h.owner, lg->blk.owner, sizeof(h.owner));
	logrec_seg_put(&h, block);
	log_out_init(&lg->out, lg->out.lane);
	lg->out.seg = s;
	log_out_bytes(&lg->out, block, sizeof(block));
	enum err e = log_out_wait(&lg->out);
	if (e || lg->fsync == STORE_FSYNC_NEVER)
		return e;
	e = lg->fs->ops->sync(s->file);
	return e ? e : lg->fs->ops->sync_dir(lg->fs, "");
}

static enum err make_file(struct log_be *lg, struct log_seg *s)
{
	char name[LOG_SEG_NAME_MAX];
	log_seg_name(s->serial, name);
	enum err e = lg->fs->ops->open(lg->fs, name,
				       DISK_CREATE | (lg->direct ? DISK_DIRECT : 0), &s->file);
	if (e)
		return e;
	e = lg->fs->ops->allocate(s->file, s->room);
	if (e == ERR_NONE)
		e = write_seg_header(lg, s);
	if (e) {
		(void)lg->fs->ops->unlink(lg->fs, name); /* no record of ours is in it */
		disk_close(s->file);
		s->file = NULL;
	}
	return e;
}

static enum err new_seg(struct log_be *lg, uint64_t bytes, enum log_purpose why)
{
	uint64_t most = why == FOR_PUTS ? lg->limit - lg->seg_bytes : lg->limit;
	if (lg->used + lg->foreign + bytes > most)
		return ERR_BUSY; /* I5 of store.h */
	struct log_seg *s = calloc(1, sizeof(*s));
	if (!s)
		return ERR_NO_MEMORY;
	list_init(&s->entries);
	s->serial = lg->next_serial++; /* not taken back on failure: its name may be there */
	uint64_t words[2] = { lg->salt_seed, s->serial };
	s->salt = sum64(words, sizeof(words));
	s->room = bytes;
	s->end = LOGREC_BLOCK;
	s->state = SEG_ACTIVE;
	enum err e = make_file(lg, s);
	if (e) {
		log_seg_free(s);
		return e;
	}
	pthread_mutex_lock(&lg->lock);
	lg->direct = s->file->direct;
	s->used_tick = ++lg->tick;
	list_push_back(&lg->segs, &s->node);
	log_seg_count(lg, s);
	lg->active = s;
	pthread_mutex_unlock(&lg->lock);
	return ERR_NONE;
}

uint64_t log_seg_need(uint64_t end, uint64_t length, uint64_t footer)
{
	return end + length + logrec_round(footer) + TRAILER_BYTES;
}

static bool is_lost(struct log_be *lg, const struct log_seg *s)
{
	pthread_mutex_lock(&lg->lock);
	bool lost = s->lost;
	pthread_mutex_unlock(&lg->lock);
	return lost;
}

enum err log_room(struct log_be *lg, uint64_t length, uint64_t entry_bytes,
		  enum log_purpose why)
{
	struct log_seg *s = lg->active;
	if (s && is_lost(lg, s)) { /* nothing more into a file whose name is gone */
		(void)log_commit(lg);
		pthread_mutex_lock(&lg->lock);
		if (lg->active)
			log_make_bad(lg, s, ERR_NOT_FOUND);
		pthread_mutex_unlock(&lg->lock);
		s = NULL;
	}
	if (s && log_seg_need(s->end, length, s->footer_bytes + entry_bytes) <= s->room)
		return ERR_NONE;
	(void)log_seal(
		lg); /* if it fails what was pending has; this record goes to the next one */
	uint64_t bytes = log_seg_need(LOGREC_BLOCK, length, entry_bytes);
	return new_seg(lg, MAX_OF(bytes, lg->seg_bytes), why);
}
