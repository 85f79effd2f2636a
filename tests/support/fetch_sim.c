/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fetch_sim.h"

#include "rpc/net_sim.h"
#include "rpc/ticket.h"
#include "services/transfer-agent/agent.h"

#include <stdio.h>
#include <string.h>

#define IDLE_NS (5 * NS_PER_MS) /* between two looks at a source that stands still */

void fetch_sim_init(struct fetch_sim *s, struct cluster *c, uint64_t seed)
{
	*s = (struct fetch_sim){ .c = c, .rng = sim_rng(seed, "fetch") };
}

struct fetch_sim_member *fetch_sim_add(struct fetch_sim *s, const char *name)
{
	SIM_CHECK(s->n < FETCH_SIM_MEMBERS, "more than %d agents", FETCH_SIM_MEMBERS);
	struct fetch_sim_member *m = &s->members[s->n++];
	m->s = s;
	(void)snprintf(m->name, sizeof(m->name), "%s", name);
	return m;
}

/* The source as it runs now; NULL: it is down. */
static struct xfa *source_of(struct fetch_sim_moving *m)
{
	struct fetch_sim *s = m->dst->s;
	for (size_t i = 0; i < s->n; i++) {
		struct svc *svc = cl_running(s->c, s->members[i].name)
					  ? cl_svc_of(s->c, s->members[i].name)
					  : NULL;
		if (svc && strcmp(svc->id, m->f->holder) == 0)
			return xfa_of(svc)->pool && !xfa_of(svc)->closing ? xfa_of(svc) : NULL;
	}
	return NULL;
}

static const char *node_of(struct loop *l)
{
	return sim_node_name(sim_proc_node(sim_loop_proc(l)));
}

/* It is there, and says nothing. */
static bool stands_still(struct fetch_sim_moving *m, struct xfa *src)
{
	struct net_sim *net = sim_net(cl_sim(m->dst->s->c));
	const char *here = node_of(m->loop), *there = node_of(src->svc.loop);
	return m->dst->s->hold || !sim_awake(sim_loop_proc(src->svc.loop)) ||
	       net_link_is_cut(net, here, there) || net_link_is_cut(net, there, here);
}

static void finish(struct fetch_sim_moving *m, enum err e, const char *text)
{
	struct fetch *f = m->f;
	if (e != ERR_NONE)
		fetch_fail(f, e, "%s", text);
	m->dst->s->good += e == ERR_NONE;
	m->dst->s->cut += e != ERR_NONE;
	timer_stop(m->loop, &m->timer);
	m->used = false;
	f->running = false;
	f->engine = NULL;
	f->done(f);
}

/* ---- the source's side ---- */

struct stored {
	struct iovec ext[OBJ_EXTENTS_MAX];
	size_t n;
};

static enum err open_source(struct fetch_sim_moving *m, struct xfa *src, struct stored *out)
{
	struct arena a = ARENA_INIT(32 << 10);
	struct ticket_key *key = NULL;
	struct msg_ticket t;
	struct why why = { 0 };
	bool unverified;
	enum err e = ticket_key_new(cl_keys(m->dst->s->c), src->svc.id, &key);
	if (e == ERR_NONE)
		e = ticket_open(key, m->f->ticket, &a, &t, &why);
	if (e == ERR_NONE && (t.op != TICKET_READ || t.size != m->f->size))
		e = ERR_BAD_TICKET;
	if (e == ERR_NONE &&
	    (memcmp(t.pool, mempool_id(src->pool), 16) != 0 ||
	     mempool_generation(src->pool, t.slot, &unverified) != t.generation))
		e = ERR_LEASE_LOST;
	out->n = 0;
	for (size_t i = 0; e == ERR_NONE && i < t.extents.n; i++) {
		struct extent x = { t.extents.p[i].segment, t.extents.p[i].offset,
				    t.extents.p[i].bytes };
		out->ext[out->n++] = (struct iovec){ mempool_at(src->pool, &x), x.bytes };
		e = out->ext[i].iov_base ? ERR_NONE : ERR_BAD_TICKET;
	}
	arena_fini(&a);
	ticket_key_free(key);
	return e;
}

/* ---- pieces ---- */

static void copy(const struct iovec *to, size_t n_to, const struct iovec *from, size_t n_from,
		 uint64_t n)
{
	for (uint64_t at = 0; at < n; at++) {
		struct iovec d[OBJ_EXTENTS_MAX], s[OBJ_EXTENTS_MAX];
		uint64_t k = n - at;
		SIM_CHECK(xf_spans(to, n_to, at, k, d) && xf_spans(from, n_from, at, k, s),
			  "spans");
		k = MIN_OF(d[0].iov_len, s[0].iov_len);
		memcpy(d[0].iov_base, s[0].iov_base, k);
		at += k - 1;
	}
}

/* The next piece of what is awaited; *whole: a frame's worth is there. */
static enum err piece(struct fetch_sim_moving *m, const struct stored *src, bool *whole)
{
	struct xf_range want[2];
	struct iovec to[XF_SPANS], part[XF_SPANS], from[OBJ_EXTENTS_MAX];
	struct fetch *f = m->f;
	if (fetch_wanted(f, want) == 0)
		return ERR_BAD_MESSAGE;
	bool payload = want[0].offset < f->size;
	uint64_t frame = payload ? MIN_OF((uint64_t)OBJ_BLOCK, want[0].bytes) : want[0].bytes;
	uint64_t n = MIN_OF((uint64_t)FETCH_SIM_PIECE, frame - m->in_block);
	size_t k = fetch_land(f, want[0].offset, frame, to);
	SIM_CHECK(k > 0, "fetch_land does not want what fetch_wanted names");
	size_t n_part = xf_spans(to, k, m->in_block, n, part);
	size_t n_from = xf_spans(src->ext, src->n, want[0].offset + m->in_block, n, from);
	if (n_part == 0 || n_from == 0)
		return ERR_BAD_TICKET;
	copy(part, n_part, from, n_from, n);
	m->dst->s->bytes += n;
	m->in_block += n;
	*whole = m->in_block == frame;
	if (!*whole)
		return ERR_NONE;
	m->in_block = 0;
	uint64_t sum = 0;
	enum err e = xf_sum(to, k, &sum);
	if (e != ERR_NONE) /* no memory */
		return e;
	if (m->dst->s->damaged > 0) {
		m->dst->s->damaged--;
		return ERR_CONN_LOST;
	}
	return fetch_landed(f, want[0].offset, frame, sum);
}

static void on_step(struct timer *t);

static void again(struct fetch_sim_moving *m, uint64_t ns)
{
	timer_start(m->loop, &m->timer, loop_now_ns(m->loop) + ns, on_step);
}

static void waits(struct fetch_sim_moving *m)
{
	if (loop_now_ns(m->loop) - m->moved_ns >= m->f->stall_ms * NS_PER_MS)
		finish(m, ERR_TIMED_OUT, "no frame came for too long");
	else
		again(m, IDLE_NS);
}

static void on_step(struct timer *t)
{
	struct fetch_sim_moving *m = container_of(t, struct fetch_sim_moving, timer);
	struct fetch_sim *s = m->dst->s;
	struct stored src;
	bool whole = false;
	struct xfa *from = source_of(m);
	if (m->f->stopped || sim_proc_state(sim_loop_proc(m->loop)) == SIM_DEAD) {
		finish(m, ERR_CANCELLED, "");
		return;
	}
	if (!from) {
		finish(m, m->in_block || m->f->at ? ERR_CONN_LOST : ERR_UNREACHABLE,
		       "the source is down");
		return;
	}
	if (stands_still(m, from)) {
		waits(m);
		return;
	}
	enum err e = open_source(m, from, &src);
	if (e == ERR_NONE)
		e = piece(m, &src, &whole);
	if (whole)
		m->moved_ns = loop_now_ns(m->loop);
	if (e != ERR_NONE || fetch_whole(m->f))
		finish(m, e,
		       e == ERR_CORRUPT ? "bytes fail their sum where they lie" : err_text(e));
	else
		again(m, sim_rng_below(&s->rng, 2000ull * (s->piece_us ? s->piece_us : 100)));
}

static void start(void *ctx, struct fetch *f)
{
	struct fetch_sim_member *dst = ctx;
	struct fetch_sim_moving *m = dst->s->moving;
	while (m < dst->s->moving + FETCH_SIM_MOVING && m->used)
		m++;
	struct svc *svc = cl_svc_of(dst->s->c, dst->name);
	SIM_CHECK(m < dst->s->moving + FETCH_SIM_MOVING && svc && !f->running,
		  "a fetch of nobody");
	fetch_begin(f);
	f->running = true;
	f->stopped = false;
	f->engine = m;
	*m = (struct fetch_sim_moving){ .used = true, .f = f, .dst = dst, .loop = svc->loop };
	m->moved_ns = loop_now_ns(m->loop);
	dst->s->started++;
	again(m, sim_rng_between(&dst->s->rng, 50000, 500000));
}

/* The next step sees it: a worker needs a moment, too. */
static void stop(void *ctx, struct fetch *f)
{
	(void)ctx;
	if (f->running)
		f->stopped = true;
}

const struct fetch_ops fetch_sim_ops = { start, stop };
