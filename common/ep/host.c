/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `host` transport: the protocol of ep.h over shared memory, on the CPU. It is the reference
 * the kernels are compared with, and what runs where there is no GPU.
 *
 * Owns: this rank's window (a shared memory file, unlinked once everybody has mapped it) and the
 * mappings of the others'. Flags and stamps are C11 atomics: a publisher's rows happen before its
 * flag (release), a reader's loads after it saw the flag (acquire), and before it re-reads the
 * stamp (acquire fence), as in a seqlock.
 *
 * Thread: the caller's.
 */
#include "ep/impl.h"
#include "ep/num.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STREAM_BYTES (8u << 20) /* rows of a source: more than the second-level cache keeps */
#define SPINS	     2000 /* looks before the waiter sleeps between them; a trip takes about 0.2 us */

struct host {
	uint8_t *win[EP_RANKS_MAX]; /* [rank] mapped windows; ours is writable */
	uint64_t win_bytes;
	float *acc; /* [hidden] */
	struct ep_missed missed[EP_RANKS_MAX];
	char name[64];
};

struct blob {
	char name[64];
	uint64_t bytes;
	struct ep_shape shape;
};

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t deadline(uint64_t timeout_us)
{
	uint64_t now = now_us();
	return timeout_us > UINT64_MAX - now ? UINT64_MAX : now + timeout_us;
}

/* ---- windows ---- */

static enum err make_window(struct ep_buf *b, struct host *h, struct why *why)
{
	uint64_t r = 0;
	(void)!getentropy(&r, sizeof(r));
	snprintf(h->name, sizeof(h->name), "/pomelo-ep-%d-%016llx", (int)getpid(),
		 (unsigned long long)r);
	int fd = shm_open(h->name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0600);
	if (fd < 0)
		return why_set(why, err_from_errno(errno), "ep: shared memory %s: %s", h->name,
			       strerror(errno));
	int sys = posix_fallocate(fd, 0, (off_t)b->layout.bytes);
	void *p = MAP_FAILED;
	if (sys == 0) {
		p = mmap(NULL, b->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		sys = p == MAP_FAILED ? errno : 0;
	}
	close(fd);
	if (sys != 0) {
		shm_unlink(h->name);
		h->name[0] = 0;
		return why_set(why, err_from_errno(sys),
			       "ep: a window of %llu bytes of shared memory: %s",
			       (unsigned long long)b->layout.bytes, strerror(sys));
	}
	h->win_bytes = b->layout.bytes;
	h->win[b->x->rank] = p;
	struct ep_window_head *head = p;
	*head = (struct ep_window_head){ EP_MAGIC, b->epoch,   b->layout.bytes,
					 b->shape, b->x->rank, 1 };
	return ERR_NONE;
}

static enum err map_peer(struct ep_buf *b, struct host *h, uint32_t r, const struct blob *peer,
			 struct why *why)
{
	if (memcmp(&peer->shape, &b->shape, sizeof(b->shape)) != 0 ||
	    peer->bytes != b->layout.bytes)
		return why_set(
			why, ERR_CONFLICT,
			"ep: rank %u was made for %u tokens, hidden %u, %u experts; ours is %u, %u, %u",
			r, peer->shape.max_tokens, peer->shape.hidden, peer->shape.n_experts,
			b->shape.max_tokens, b->shape.hidden, b->shape.n_experts);
	char name[sizeof(peer->name)];
	memcpy(name, peer->name, sizeof(name));
	name[sizeof(name) - 1] = 0;
	int fd = shm_open(name, O_RDWR | O_NOFOLLOW, 0);
	struct stat st;
	if (fd < 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size < peer->bytes) {
		enum err e = why_set(
			why, ERR_UNREACHABLE,
			"ep: the window %s of rank %u cannot be opened here (another host?)",
			name, r);
		if (fd >= 0)
			close(fd);
		return e;
	}
	void *p = mmap(NULL, peer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int sys = errno;
	close(fd);
	if (p == MAP_FAILED)
		return why_set(why, err_from_errno(sys),
			       "ep: mapping the window of rank %u: %s", r, strerror(sys));
	h->win[r] = p;
	return ERR_NONE;
}

static void host_close(struct ep_buf *b)
{
	struct host *h = b->priv;
	if (!h)
		return;
	for (uint32_t r = 0; r < b->shape.n_ranks; r++)
		if (h->win[r])
			munmap(h->win[r], h->win_bytes);
	if (h->name[0])
		shm_unlink(h->name);
	free(h->acc);
	free(h);
	b->priv = NULL;
}

static enum err host_open(struct ep_buf *b, struct why *why)
{
	struct host *h = calloc(1, sizeof(*h));
	struct blob mine = { .bytes = b->layout.bytes, .shape = b->shape }, *all;
	all = calloc(b->shape.n_ranks, sizeof(*all));
	uint8_t ok = 1, oks[EP_RANKS_MAX];
	enum err e = ERR_NO_MEMORY;
	b->priv = h;
	if (!h || !all || !(h->acc = malloc(b->shape.hidden * sizeof(float))))
		goto out;
	h->win_bytes = b->layout.bytes;
	e = make_window(b, h, why);
	if (e != ERR_NONE)
		goto out;
	memcpy(mine.name, h->name, sizeof(mine.name));
	e = b->x->all_gather(b->x, b->epoch, &mine, sizeof(mine), all, b->opts.open_timeout_us,
			     why);
	for (uint32_t r = 0; r < b->shape.n_ranks && e == ERR_NONE; r++)
		if (r != b->x->rank)
			e = map_peer(b, h, r, &all[r], why);
	if (e != ERR_NONE && e != ERR_CONFLICT && e != ERR_UNREACHABLE)
		goto out;
	/* the second meeting: nobody unlinks before all have opened, all fail if one does */
	ok = e == ERR_NONE;
	enum err e2 =
		b->x->all_gather(b->x, b->epoch, &ok, 1, oks, b->opts.open_timeout_us, why);
	for (uint32_t r = 0; r < b->shape.n_ranks && e == ERR_NONE; r++)
		if (e2 != ERR_NONE || !oks[r])
			e = why_set(why, e2 != ERR_NONE ? e2 : ERR_CONFLICT,
				    "ep: rank %u failed to open", r);
	shm_unlink(h->name);
	h->name[0] = 0;
out:
	free(all);
	if (e != ERR_NONE)
		host_close(b);
	return e;
}

static const char *host_missing(const struct ep_opts *o)
{
	(void)o;
	return NULL;
}

static void *host_window(struct ep_buf *b)
{
	return ((struct host *)b->priv)->win[b->x->rank];
}

static const volatile struct ep_missed *host_missed(const struct ep_buf *b)
{
	return ((const struct host *)b->priv)->missed;
}

/* ---- flags and slots ---- */

static uint64_t *flag_of(struct ep_buf *b, uint32_t owner, uint32_t slot, enum ep_flag f,
			 uint32_t writer)
{
	struct host *h = b->priv;
	return (uint64_t *)(void *)(h->win[owner] +
				    layout_flag(&b->layout, &b->shape, slot, f, writer));
}

static uint8_t *slot_of(struct ep_buf *b, uint32_t rank, uint32_t slot)
{
	return ((struct host *)b->priv)->win[rank] + b->layout.slot[slot];
}

/* Tells every rank that takes part. Release: what we wrote or read comes before it. */
static void raise_flags(struct ep_buf *b, uint32_t slot, enum ep_flag f, uint64_t stamp)
{
	static const char *const names[EP_N_FLAGS] = { "published", "read done", "y ready",
						       "y done" };
	for (uint32_t r = 0; r < b->shape.n_ranks; r++)
		if (!b->masked[r])
			__atomic_store_n(flag_of(b, r, slot, f, b->x->rank), stamp,
					 __ATOMIC_RELEASE);
	if (b->opts.mark)
		b->opts.mark(b->opts.ctx, names[f], NULL);
}

/*
 * Waits for rank r's flag in our window; false when the deadline passed. The clock is read before the
 * flag, so a flag that came in time is seen however long we stood still. Acquire.
 */
static bool wait_flag(struct ep_buf *b, uint32_t r, uint32_t slot, enum ep_flag f,
		      uint64_t stamp, uint64_t end_us)
{
	if ((stamp & 0xffffffffff) == 0)
		return true; /* the slot's first step waits for nobody */
	const uint64_t *at = flag_of(b, b->x->rank, slot, f, r);
	for (uint32_t i = 0;; i++) {
		bool over = i >= SPINS && now_us() >= end_us;
		uint64_t v = __atomic_load_n(at, __ATOMIC_ACQUIRE);
		if (v >> 40 == stamp >> 40 && v >= stamp)
			return true;
		if (over)
			return false;
		if (i < SPINS)
			sched_yield();
		else
			usleep(50);
	}
}

static void mask(struct ep_buf *b, int32_t *active, uint32_t r, uint32_t slot, uint32_t flag,
		 uint64_t stamp)
{
	uint64_t found =
		flag < EP_N_FLAGS
			? __atomic_load_n(flag_of(b, b->x->rank, slot, (enum ep_flag)flag, r),
					  __ATOMIC_RELAXED)
			: __atomic_load_n(&((struct ep_slot_head *)(void *)slot_of(b, r, slot))
						   ->stamp_head,
					  __ATOMIC_RELAXED);
	((struct host *)b->priv)->missed[r] =
		(struct ep_missed){ 1, flag, slot, 0, stamp, found };
	b->masked[r] = true;
	active[r] = 0;
}

/* The caller's mask joins ours, which is sticky; the caller sees both. */
static void take_mask(struct ep_buf *b, int32_t *active)
{
	for (uint32_t r = 0; r < b->shape.n_ranks; r++) {
		b->masked[r] |= active[r] == 0;
		active[r] = b->masked[r] ? 0 : active[r];
	}
}

/* Masks every rank whose flag does not come. */
static void wait_all(struct ep_buf *b, uint32_t slot, enum ep_flag f, uint64_t stamp,
		     uint64_t end_us, int32_t *active)
{
	for (uint32_t r = 0; r < b->shape.n_ranks; r++)
		if (!b->masked[r] && !wait_flag(b, r, slot, f, stamp, end_us))
			mask(b, active, r, slot, f, stamp);
}

static bool stamps_are(const struct ep_slot_head *s, uint64_t stamp)
{
	return __atomic_load_n(&s->stamp_tail, __ATOMIC_ACQUIRE) == stamp &&
	       __atomic_load_n(&s->stamp_head, __ATOMIC_ACQUIRE) == stamp;
}

/* ---- dispatch ---- */

static enum err host_publish(struct ep_buf *b, struct ep_handle *h, struct why *why)
{
	const struct ep_dispatch_args *a = &h->args;
	enum err e = route_check(a->topk, a->n_tokens, a->top_k, a->n_experts, why);
	if (e != ERR_NONE)
		return e;
	take_mask(b, a->active);
	const struct ep_layout *l = &b->layout;
	uint64_t stamp = layout_stamp(b->epoch, h->count),
		 before = layout_stamp(b->epoch, h->count - 1);
	uint64_t end_us = deadline(ep_timeout_us(b, a->timeout_us));
	wait_all(b, h->slot, EP_READ_DONE, before, end_us, a->active); /* I3 */
	wait_all(b, h->slot, EP_Y_DONE, before, end_us, a->active);

	bool fp8 = a->flags & EP_FP8;
	uint8_t *s = slot_of(b, b->x->rank, h->slot);
	struct ep_slot_head *head = (void *)s;
	__atomic_store_n(&head->stamp_head, stamp, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE); /* no later store moves before the stamp */
	head->n_tokens = a->n_tokens;
	head->top_k = a->top_k;
	head->n_experts = a->n_experts;
	head->fp8 = fp8;
	route_source(a->topk, a->n_tokens, a->top_k, a->n_experts,
		     (int32_t *)(void *)(s + l->topk), (int32_t *)(void *)(s + l->pos),
		     (int32_t *)(void *)(s + l->counts));
	uint64_t stride = layout_row_stride(b->shape.hidden, fp8);
	const uint16_t *x = a->x;
	for (uint32_t t = 0; t < a->n_tokens; t++, x += b->shape.hidden) {
		uint8_t *row = s + l->rows + t * stride;
		if (fp8)
			num_row_to_fp8(x, b->shape.hidden, row,
				       (float *)(void *)(row + b->shape.hidden));
		else
			memcpy(row, x, (size_t)b->shape.hidden * 2);
	}
	__atomic_store_n(&head->stamp_tail, stamp, __ATOMIC_RELEASE);
	raise_flags(b, h->slot, EP_PUBLISHED, stamp);
	return ERR_NONE;
}

/* Does what the source published fit this step? A source that disagrees is masked. */
static bool source_fits(struct ep_buf *b, const struct ep_handle *h,
			const struct ep_slot_head *s)
{
	return stamps_are(s, layout_stamp(b->epoch, h->count)) &&
	       s->n_tokens <= b->shape.max_tokens && s->top_k >= 1 &&
	       s->top_k <= EP_TOP_K_MAX && s->n_experts == b->shape.n_experts &&
	       s->fp8 == !!(h->args.flags & EP_FP8);
}

/* Counts of all sources -> layout, in the outputs and in our slot for the sources to read. */
static void lay_out(struct ep_buf *b, struct ep_handle *h, int32_t *counts)
{
	uint32_t me = b->x->rank, n = b->shape.n_ranks, n_local = b->map.n_local[me];
	for (uint32_t r = 0; r < n; r++) {
		const int32_t *c =
			(const int32_t *)(void *)(slot_of(b, r, h->slot) + b->layout.counts);
		for (uint32_t e = 0; e < b->shape.n_experts; e++)
			if (b->map.owner[e] == me)
				counts[b->map.local[e] * n + r] = b->masked[r] ? 0 : c[e];
	}
	int32_t *begin = (int32_t *)(void *)(slot_of(b, me, h->slot) + b->layout.begin);
	route_receiver(counts, n_local, n, begin, h->args.recv_count, h->args.range);
}

/* One source's rows into ours. ids and counts were checked against the layout's bounds. */
static bool gather(struct ep_buf *b, struct ep_handle *h, uint32_t src, const int32_t *begin,
		   const int32_t *counts)
{
	const struct ep_dispatch_args *a = &h->args;
	const uint8_t *s = slot_of(b, src, h->slot);
	const struct ep_slot_head *head = (const void *)s;
	const int32_t *ids = (const int32_t *)(const void *)(s + b->layout.topk);
	const int32_t *pos = (const int32_t *)(const void *)(s + b->layout.pos);
	bool fp8 = a->flags & EP_FP8;
	uint64_t stride = layout_row_stride(b->shape.hidden, fp8), n = b->shape.n_ranks;
	uint64_t row_out = (uint64_t)b->shape.hidden * (fp8 ? 1 : 2),
		 scales = b->shape.hidden / 128;
	uint64_t cap = n * b->shape.max_tokens, total = (uint64_t)head->n_tokens * head->top_k;
	uint32_t top_k = head->top_k;
	bool stream = total * row_out >= STREAM_BYTES;
	for (uint64_t i = 0; i < total; i++) {
		int32_t id = ids[i];
		if (id < 0 || id >= (int32_t)b->shape.n_experts ||
		    b->map.owner[id] != b->x->rank)
			continue;
		uint64_t e = b->map.local[id],
			 at = (uint64_t)begin[e * n + src] + (uint32_t)pos[i];
		if ((uint32_t)pos[i] >= (uint32_t)counts[e * n + src] || at >= cap)
			return false; /* it went on while we read */
		const uint8_t *row = s + b->layout.rows + i / top_k * stride;
		uint8_t *to = (uint8_t *)a->recv_x + (e * cap + at) * row_out;
		if (stream)
			num_row_stream(to, row, row_out);
		else
			memcpy(to, row, row_out);
		if (fp8)
			memcpy(a->recv_scales + (e * cap + at) * scales, row + b->shape.hidden,
			       scales * 4);
		a->src_info[e * cap + at] = (int32_t)(i / top_k);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&head->stamp_head, __ATOMIC_RELAXED) ==
	       layout_stamp(b->epoch, h->count); /* I2 */
}

static enum err host_receive(struct ep_buf *b, struct ep_handle *h, struct why *why)
{
	uint32_t me = b->x->rank, n = b->shape.n_ranks;
	int32_t *active = h->args.active;
	uint64_t stamp = layout_stamp(b->epoch, h->count);
	int32_t *counts = calloc((size_t)b->shape.max_local * n, sizeof(*counts));
	if (!counts)
		return why_set(why, ERR_NO_MEMORY, "ep: counts of %u experts",
			       b->shape.max_local);
	wait_all(b, h->slot, EP_PUBLISHED, stamp,
		 deadline(ep_timeout_us(b, h->args.timeout_us)), active);
	for (uint32_t r = 0; r < n; r++)
		if (!b->masked[r] && !source_fits(b, h, (const void *)slot_of(b, r, h->slot)))
			mask(b, active, r, h->slot, EP_N_FLAGS, stamp);
	lay_out(b, h, counts);
	int32_t *begin = (int32_t *)(void *)(slot_of(b, me, h->slot) + b->layout.begin);
	for (uint32_t r = 0; r < n; r++)
		if (!b->masked[r] && !gather(b, h, r, begin, counts))
			mask(b, active, r, h->slot, EP_N_FLAGS, stamp);
	/* a source that is masked here must not take another's rows for its own */
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t e = 0; b->masked[r] && e < b->map.n_local[me]; e++)
			begin[e * n + r] = -1;
	free(counts);
	num_stream_end();
	raise_flags(b, h->slot, EP_READ_DONE, stamp);
	return ERR_NONE;
}

/* ---- combine ---- */

/* The rows of y that came from other ranks; our own are read where the caller left them. */
static void copy_y(struct ep_buf *b, struct ep_handle *h, const uint8_t *y)
{
	uint32_t me = b->x->rank, n = b->shape.n_ranks;
	uint64_t row = (uint64_t)b->shape.hidden * 2,
		 expert = (uint64_t)n * b->shape.max_tokens * row;
	uint8_t *slot = slot_of(b, me, h->slot), *to = slot + b->layout.y;
	const int32_t *begin = (const int32_t *)(void *)(slot + b->layout.begin);
	for (uint32_t e = 0; e < b->map.n_local[me];
	     e++, to += expert, y += expert, begin += n) {
		uint64_t rows = (uint64_t)h->args.recv_count[e], own = rows, end = rows;
		if (begin[me] >= 0)
			own = (uint64_t)begin[me];
		for (uint32_t r = me + 1; r < n && end == rows && own < rows; r++)
			if (begin[r] >= 0)
				end = (uint64_t)begin[r];
		memcpy(to, y, own * row);
		memcpy(to + end * row, y + end * row, (rows - end) * row);
	}
}

/* One token's sum, k ascending; own_y: our own outputs. True when every contribution was there. */
static bool reduce_token(struct ep_buf *b, struct ep_handle *h, const uint8_t *own_y,
			 const float *w, uint32_t t, uint16_t *out)
{
	struct host *host = b->priv;
	uint32_t me = b->x->rank, n = b->shape.n_ranks, hidden = b->shape.hidden;
	const uint8_t *mine = slot_of(b, me, h->slot);
	const int32_t *ids =
		(const int32_t *)(const void *)(mine + b->layout.topk) + (size_t)t * h->top_k;
	const int32_t *pos =
		(const int32_t *)(const void *)(mine + b->layout.pos) + (size_t)t * h->top_k;
	uint64_t cap = (uint64_t)n * b->shape.max_tokens;
	bool whole = true;
	memset(host->acc, 0, hidden * sizeof(float));
	for (uint32_t k = 0; k < h->top_k; k++) {
		if (ids[k] < 0)
			continue;
		uint32_t r = b->map.owner[ids[k]];
		uint64_t e = b->map.local[ids[k]];
		const uint8_t *s = slot_of(b, r, h->slot);
		int64_t at =
			b->masked[r]
				? -1
				: ((const int32_t *)(const void *)(s + b->layout.begin))[e * n +
											 me];
		if (at < 0 || (uint64_t)(at + pos[k]) >= cap) {
			whole = false;
			continue;
		}
		const uint8_t *y = r == me ? own_y : s + b->layout.y;
		y += (e * cap + (uint64_t)(at + pos[k])) * hidden * 2;
		num_row_fma(host->acc, (const uint16_t *)(const void *)y, w[k], hidden);
	}
	num_row_to_bf16(host->acc, out, hidden);
	return whole;
}

static enum err host_combine(struct ep_buf *b, struct ep_handle *h,
			     const struct ep_combine_args *a, struct why *why)
{
	(void)why;
	uint64_t stamp = layout_stamp(b->epoch, h->count);
	take_mask(b, a->active);
	const uint8_t *own_y = a->y; /* with zero copy, the window's */
	if (!(a->flags & EP_ZERO_COPY))
		copy_y(b, h, a->y);
	raise_flags(b, h->slot, EP_Y_READY, stamp);
	wait_all(b, h->slot, EP_Y_READY, stamp, deadline(ep_timeout_us(b, a->timeout_us)),
		 a->active);
	uint16_t *out = a->out;
	for (uint32_t t = 0; t < h->n_tokens; t++, out += b->shape.hidden) {
		bool whole =
			reduce_token(b, h, own_y, a->weights + (size_t)t * h->top_k, t, out);
		if (a->incomplete)
			a->incomplete[t] = !whole;
	}
	/* I2: an owner that went on meanwhile has masked us; what it gave us cannot be trusted */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	const int32_t *ids =
		(const int32_t *)(void *)(slot_of(b, b->x->rank, h->slot) + b->layout.topk);
	for (uint32_t r = 0; r < b->shape.n_ranks; r++) {
		const struct ep_slot_head *s = (const void *)slot_of(b, r, h->slot);
		if (b->masked[r] || __atomic_load_n(&s->stamp_head, __ATOMIC_RELAXED) == stamp)
			continue;
		mask(b, a->active, r, h->slot, EP_N_FLAGS, stamp);
		for (uint64_t i = 0; a->incomplete && i < (uint64_t)h->n_tokens * h->top_k; i++)
			if (ids[i] >= 0 && b->map.owner[ids[i]] == r)
				a->incomplete[i / h->top_k] = 1;
	}
	raise_flags(b, h->slot, EP_Y_DONE, stamp);
	return ERR_NONE;
}

static void host_drop(struct ep_buf *b, struct ep_handle *h)
{
	uint64_t stamp = layout_stamp(b->epoch, h->count);
	raise_flags(b, h->slot, EP_READ_DONE, stamp);
	raise_flags(b, h->slot, EP_Y_DONE, stamp);
}

const struct ep_transport_ops ep_host_ops = {
	.name = "host",
	.missing = host_missing,
	.open = host_open,
	.close = host_close,
	.publish = host_publish,
	.receive = host_receive,
	.combine = host_combine,
	.drop = host_drop,
	.window = host_window,
	.missed = host_missed,
};
