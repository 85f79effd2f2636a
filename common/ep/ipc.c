/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `ipc` transport: GPUs of one node, processes or streams that share one GPU. Windows are
 * dedicated device allocations; peers of other processes are mapped by CUDA IPC, those of this
 * process by pointer (CUDA refuses to import its own memory).
 *
 * Launches: dispatch one for small batches (two with EP_HOOK), four for large ones (claim, publish, meet,
 * gather); combine two with zero copy (meet, reduce), else three (copy_y). None of them synchronises.
 * Without EP_ASYNC the call waits for its stream at the end.
 *
 * Thread: the caller's.
 */
#include "ep/impl.h"
#include "gpu/ep_kernels.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINGER_US	    1000000
#define SMALL_TOKENS_PER_SM 16

struct ipc {
	struct ep_gpu g;
	int device;
	uint32_t shared_bytes;
	bool imported[EP_RANKS_MAX]; /* by CUDA IPC: closed at the end */
	bool small;		     /* batches go through one kernel a call */
	bool detached; /* all ranks met after they had unmapped: nobody reads our window */
	void *maps;    /* device: where each expert is */
};

struct blob {
	struct gpu_ipc handle;
	uint64_t pointer, bytes;
	struct ep_shape shape;
	int32_t pid, device;
	uint8_t uuid[16];
};

static const char *ipc_missing(const struct ep_opts *o)
{
	(void)o;
	return gpu_missing();
}

static const volatile struct ep_missed *ipc_missed(const struct ep_buf *b)
{
	return ((const struct ipc *)b->priv)->g.status->missed;
}

static void *ipc_window(struct ep_buf *b)
{
	return ((struct ipc *)b->priv)->g.win[b->x->rank];
}

/*
 * Peers may still read our outputs: CUDA leaves undefined what an importer sees once the exporter has
 * freed the memory. Waits for their EP_Y_DONE of our last steps, LINGER_US at most.
 */
static void linger(struct ep_buf *b, struct ipc *p)
{
	uint32_t n = MAX_OF(b->shape.n_ranks, 1u);
	uint64_t bytes = (uint64_t)EP_SLOTS * EP_N_FLAGS * n * EP_LINE;
	uint8_t *flags = malloc(bytes);
	struct ep_gpu_state *st = malloc(sizeof(*st));
	void *stream = NULL;
	bool wait =
		n > 1 && flags && st && gpu_stream_new(p->device, &stream, NULL) == ERR_NONE;
	for (int tries = 0; wait && tries < LINGER_US / 1000; tries++) {
		if (gpu_copy(flags, p->g.win[b->x->rank] + b->layout.flags, bytes, stream,
			     NULL) != ERR_NONE ||
		    gpu_copy(st, p->g.st, sizeof(*st), stream, NULL) != ERR_NONE ||
		    gpu_sync(stream, NULL) != ERR_NONE)
			break;
		wait = false;
		for (uint32_t s = 0; s < EP_SLOTS; s++)
			for (uint32_t r = 0; r < n; r++) {
				uint64_t v;
				memcpy(&v,
				       flags + (((uint64_t)s * EP_N_FLAGS + EP_Y_DONE) * n +
						r) * EP_LINE,
				       sizeof(v));
				wait |= r != b->x->rank && !st->masked[r] && st->count[s] > 0 &&
					v < layout_stamp(b->epoch, st->count[s]);
			}
		if (wait)
			usleep(1000);
	}
	gpu_stream_free(stream);
	free(flags);
	free(st);
}

static void ipc_detach(struct ep_buf *b)
{
	struct ipc *p = b->priv;
	(void)!gpu_device_sync(p->device, NULL); /* kernels of ours that read what goes now */
	p->detached = true;
	for (uint32_t r = 0; r < b->shape.n_ranks; r++)
		if (p->imported[r]) {
			gpu_ipc_close(p->device, p->g.win[r]);
			p->imported[r] = false;
		}
}

static void ipc_close(struct ep_buf *b)
{
	struct ipc *p = b->priv;
	if (!p)
		return;
	if (p->g.win[b->x->rank] && p->g.st) {
		bool met = p->detached;
		ipc_detach(b);
		if (!met)
			linger(b, p);
	}
	gpu_free(p->device, p->g.win[b->x->rank]);
	gpu_free(p->device, p->g.st);
	gpu_free(p->device, p->maps);
	gpu_host_free(p->g.status);
	free(p);
	b->priv = NULL;
}

/* Our own memory: window, state, maps, status. */
static enum err make_own(struct ep_buf *b, struct ipc *p, struct why *why)
{
	struct gpu_info info;
	uint32_t where[EP_EXPERTS_MAX];
	struct ep_window_head head = { EP_MAGIC, b->epoch,   b->layout.bytes,
				       b->shape, b->x->rank, 1 };
	enum err e = b->opts.device >= 0 ? ERR_NONE : gpu_current(&p->device, why);
	if (e == ERR_NONE)
		e = gpu_query(p->device, &info, why);
	if (e == ERR_NONE && info.mem_free < b->layout.bytes)
		e = why_set(why, ERR_NO_MEMORY,
			    "ep: the window needs %llu bytes, %llu of %llu are free on %s",
			    (unsigned long long)b->layout.bytes,
			    (unsigned long long)info.mem_free,
			    (unsigned long long)info.mem_total, info.name);
	if (e == ERR_NONE)
		e = gpu_alloc(p->device, b->layout.bytes, (void **)&p->g.win[b->x->rank], why);
	if (e == ERR_NONE)
		e = gpu_alloc(p->device, sizeof(*p->g.st), (void **)&p->g.st, why);
	if (e == ERR_NONE)
		e = gpu_alloc(p->device, sizeof(where), &p->maps, why);
	if (e == ERR_NONE)
		e = gpu_host_alloc(p->device, sizeof(*p->g.status), (void **)&p->g.status, why);
	if (e != ERR_NONE)
		return e;
	p->g.n_sms = info.n_sms;
	p->g.pdl = (b->opts.tune & EP_TUNE_PDL) && info.cc_major >= 9;
	p->shared_bytes = info.shared_optin_bytes - 1024; /* the kernels' own few words */
	e = ep_load_dispatch();
	if (e == ERR_NONE)
		e = ep_load_combine();
	if (e != ERR_NONE)
		return why_set(why, e,
			       "ep: no kernels for %s (compute capability %d.%d) in this build",
			       info.name, info.cc_major, info.cc_minor);
	if ((uint64_t)b->shape.max_local * b->shape.n_ranks * 4 > p->shared_bytes)
		return why_set(
			why, ERR_INVALID_PARAMS,
			"ep: %u experts on one rank times %u ranks, at most %u on %s: spread the experts",
			b->shape.max_local, b->shape.n_ranks, p->shared_bytes / 4, info.name);
	for (uint32_t i = 0; i < EP_EXPERTS_MAX; i++)
		where[i] = (uint32_t)b->map.owner[i] << 16 | b->map.local[i];
	p->g.where = p->maps;
	e = gpu_copy(p->maps, where, sizeof(where), NULL, why);
	if (e == ERR_NONE)
		e = gpu_copy(p->g.win[b->x->rank], &head, sizeof(head), NULL, why);
	return e == ERR_NONE ? gpu_sync(NULL, why) : e;
}

static enum err map_peer(struct ep_buf *b, struct ipc *p, uint32_t r, const struct blob *peer,
			 struct why *why)
{
	if (memcmp(&peer->shape, &b->shape, sizeof(b->shape)) != 0 ||
	    peer->bytes != b->layout.bytes)
		return why_set(
			why, ERR_CONFLICT,
			"ep: rank %u was made for %u tokens, hidden %u, %u experts; ours is %u, %u, %u",
			r, peer->shape.max_tokens, peer->shape.hidden, peer->shape.n_experts,
			b->shape.max_tokens, b->shape.hidden, b->shape.n_experts);
	if (peer->pid == (int32_t)getpid()) {
		p->g.win[r] = (uint8_t *)(uintptr_t)peer->pointer;
		return gpu_peer_enable(p->device, peer->device, why);
	}
	void *at = NULL;
	enum err e = gpu_ipc_open(p->device, &peer->handle, &at, why);
	if (e != ERR_NONE)
		return e;
	p->g.win[r] = at;
	p->imported[r] = true;
	return ERR_NONE;
}

/* Everybody's handles; then a second meeting, in which all fail if one did. */
static enum err meet(struct ep_buf *b, struct ipc *p, struct blob *all, struct why *why)
{
	struct gpu_info info;
	struct blob mine = { .pointer = (uintptr_t)ipc_window(b),
			     .bytes = b->layout.bytes,
			     .shape = b->shape,
			     .pid = (int32_t)getpid(),
			     .device = p->device };
	enum err e = gpu_query(p->device, &info, why);
	if (e == ERR_NONE)
		e = gpu_ipc_get(p->device, ipc_window(b), &mine.handle, why);
	if (e != ERR_NONE)
		return e;
	memcpy(mine.uuid, info.uuid, sizeof(mine.uuid));
	e = b->x->all_gather(b->x, b->epoch, &mine, sizeof(mine), all, b->opts.open_timeout_us,
			     why);
	if (e != ERR_NONE)
		return e;
	for (uint32_t r = 0; r < b->shape.n_ranks && e == ERR_NONE; r++) {
		p->g.n_here += memcmp(all[r].uuid, mine.uuid, sizeof(mine.uuid)) == 0;
		if (r != b->x->rank)
			e = map_peer(b, p, r, &all[r], why);
	}
	uint8_t ok = e == ERR_NONE, oks[EP_RANKS_MAX];
	enum err e2 =
		b->x->all_gather(b->x, b->epoch, &ok, 1, oks, b->opts.open_timeout_us, why);
	for (uint32_t r = 0; r < b->shape.n_ranks && e == ERR_NONE; r++)
		if (e2 != ERR_NONE || !oks[r])
			e = why_set(why, e2 != ERR_NONE ? e2 : ERR_CONFLICT,
				    "ep: rank %u failed to open", r);
	return e;
}

/*
 * Is a dispatch one kernel? Only so many blocks may wait, and all ranks of a GPU share them. Measured on 132
 * multiprocessors at 128 tokens, hidden 7168: 1, 2 and 4 ranks on the GPU gain, 8 do not.
 */
static bool is_small(const struct ep_buf *b, const struct ipc *p)
{
	uint64_t tokens = (uint64_t)b->shape.max_tokens * b->shape.n_ranks * p->g.n_here;
	uint64_t counts = (uint64_t)b->shape.max_local * b->shape.n_ranks * 4;
	if (b->opts.tune & (EP_TUNE_APART | EP_TUNE_TOGETHER))
		return b->opts.tune & EP_TUNE_TOGETHER;
	return tokens <= (uint64_t)p->g.n_sms * SMALL_TOKENS_PER_SM &&
	       counts + b->shape.n_experts * 12ull <= p->shared_bytes / 2;
}

static enum err ipc_open(struct ep_buf *b, struct why *why)
{
	struct ipc *p = calloc(1, sizeof(*p));
	struct blob *all = calloc(b->shape.n_ranks, sizeof(*all));
	enum err e = ERR_NO_MEMORY;
	b->priv = p;
	if (!p || !all)
		goto out;
	p->device = b->opts.device;
	p->g.l = b->layout;
	p->g.s = b->shape;
	p->g.epoch = b->epoch;
	p->g.me = b->x->rank;
	p->g.n_local = b->map.n_local[b->x->rank];
	e = make_own(b, p, why);
	if (e == ERR_NONE)
		e = meet(b, p, all, why);
	if (e == ERR_NONE)
		p->small = is_small(b, p);
out:
	free(all);
	if (e != ERR_NONE)
		ipc_close(b);
	return e;
}

static uint64_t timeout_ns(const struct ep_buf *b, int64_t given)
{
	uint64_t us = ep_timeout_us(b, given);
	return us > UINT64_MAX / 1000 ? UINT64_MAX : us * 1000;
}

/* After the launch of a kernel. */
static enum err launch(const struct ep_buf *b, enum err e, const char *kernel, void *stream,
		       struct why *why)
{
	if (e == ERR_NONE && b->opts.mark)
		b->opts.mark(b->opts.ctx, kernel, stream);
	return e == ERR_NONE ? e
			     : why_set(why, e, "ep: kernel %s could not be launched", kernel);
}

/* The caller's stream reached its end: what did the kernels refuse? */
static enum err refused(struct ep_buf *b, struct why *why)
{
	struct ep_gpu_status *s = ((struct ipc *)b->priv)->g.status;
	if (!s->bad)
		return ERR_NONE;
	s->bad = 0;
	return why_set(
		why, ERR_INVALID_PARAMS,
		"topk_idx[%u][%u] is %lld: out of the range -1 to %u, or the token names it twice",
		s->token, s->k, (long long)s->value, b->shape.n_experts - 1);
}

static enum err finish(struct ep_buf *b, uint32_t flags, void *stream, struct why *why)
{
	if ((flags & EP_ASYNC) || gpu_capturing(stream))
		return ERR_NONE;
	enum err e = gpu_sync(stream, why);
	return e == ERR_NONE ? refused(b, why) : e;
}

static struct ep_gpu_dispatch gpu_dispatch(const struct ep_buf *b, const struct ep_handle *h)
{
	const struct ep_dispatch_args *a = &h->args;
	return (struct ep_gpu_dispatch){ .x = a->x,
					 .topk = a->topk,
					 .n_tokens = a->n_tokens,
					 .top_k = a->top_k,
					 .fp8 = !!(a->flags & EP_FP8),
					 .shared_bytes =
						 ((const struct ipc *)b->priv)->shared_bytes,
					 .timeout_ns = timeout_ns(b, a->timeout_us),
					 .active = a->active,
					 .recv_x = a->recv_x,
					 .scales = a->recv_scales,
					 .src_info = a->src_info,
					 .recv_count = a->recv_count,
					 .range = a->range };
}

/* A small batch without a hook does all of it here, in one launch. */
static enum err ipc_publish(struct ep_buf *b, struct ep_handle *h, struct why *why)
{
	struct ipc *p = b->priv;
	struct ep_gpu_dispatch d = gpu_dispatch(b, h);
	void *st = h->args.stream;
	bool hook = h->args.flags & EP_HOOK;
	if (p->small)
		return launch(b,
			      ep_launch_dispatch(&p->g, h->slot, &d,
						 EP_PART_PUBLISH | (hook ? 0 : EP_PART_RECEIVE),
						 st),
			      "dispatch", st, why);
	enum err e = launch(b, ep_launch_claim(&p->g, h->slot, d.active, d.timeout_ns, st),
			    "claim", st, why);
	if (e == ERR_NONE)
		e = launch(b, ep_launch_publish(&p->g, h->slot, &d, st), "publish", st, why);
	if (e == ERR_NONE && hook)
		e = launch(b, ep_launch_signal(&p->g, h->slot, EP_PUBLISHED, st), "signal", st,
			   why);
	return e;
}

static enum err ipc_receive(struct ep_buf *b, struct ep_handle *h, struct why *why)
{
	struct ipc *p = b->priv;
	struct ep_gpu_dispatch d = gpu_dispatch(b, h);
	void *st = h->args.stream;
	bool hook = h->args.flags & EP_HOOK;
	enum err e = ERR_NONE;
	if (p->small && hook)
		e = launch(b, ep_launch_dispatch(&p->g, h->slot, &d, EP_PART_RECEIVE, st),
			   "receive", st, why);
	if (!p->small)
		e = launch(b, ep_launch_meet_dispatch(&p->g, h->slot, &d, !hook, st), "meet",
			   st, why);
	if (e == ERR_NONE && !p->small)
		e = launch(b, ep_launch_gather(&p->g, h->slot, &d, st), "gather", st, why);
	return e == ERR_NONE ? finish(b, h->args.flags, st, why) : e;
}

static enum err ipc_combine(struct ep_buf *b, struct ep_handle *h,
			    const struct ep_combine_args *a, struct why *why)
{
	struct ipc *p = b->priv;
	enum err e = ERR_NONE;
	void *st = a->stream;
	struct ep_gpu_combine c = { .y = a->flags & EP_ZERO_COPY ? NULL : a->y,
				    .recv_count = h->args.recv_count,
				    .weights = a->weights,
				    .out = a->out,
				    .incomplete = a->incomplete,
				    .n_tokens = h->n_tokens,
				    .top_k = h->top_k,
				    .timeout_ns = timeout_ns(b, a->timeout_us),
				    .active = a->active };
	if (c.y)
		e = launch(b, ep_launch_copy_y(&p->g, h->slot, &c, st), "copy_y", st, why);
	if (e == ERR_NONE)
		e = launch(b, ep_launch_meet_combine(&p->g, h->slot, &c, st), "meet", st, why);
	if (e == ERR_NONE)
		e = launch(b, ep_launch_reduce(&p->g, h->slot, &c, st), "reduce", st, why);
	return e == ERR_NONE ? finish(b, a->flags, st, why) : e;
}

static void ipc_drop(struct ep_buf *b, struct ep_handle *h)
{
	struct ipc *p = b->priv;
	(void)ep_launch_signal(&p->g, h->slot, EP_READ_DONE,
			       h->args.stream); /* best effort: peers time out */
	(void)ep_launch_signal(&p->g, h->slot, EP_Y_DONE, h->args.stream);
}

const struct ep_transport_ops ep_ipc_ops = {
	.name = "ipc",
	.missing = ipc_missing,
	.open = ipc_open,
	.detach = ipc_detach,
	.close = ipc_close,
	.publish = ipc_publish,
	.receive = ipc_receive,
	.combine = ipc_combine,
	.drop = ipc_drop,
	.window = ipc_window,
	.missed = ipc_missed,
};
