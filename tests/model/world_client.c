/* SPDX-License-Identifier: Apache-2.0 */
/* Clients: what the library does, a step at a time, over the real lanes. */
#include "tests/model/world.h"

#include <stdio.h>
#include <string.h>

static struct w_msg *client_send(struct world *w, unsigned c, enum w_msg_kind kind)
{
	struct w_client *cl = &w->clients[c];
	struct w_msg *m = world_send(w, kind);
	m->client = (uint8_t)c;
	m->key = cl->key;
	m->call = cl->call;
	m->term = cl->term;
	m->attempt = cl->attempt;
	return m;
}

static void call_ends(struct world *w, struct w_client *cl)
{
	if (cl->state == C_REMOVE_SENT)
		w->removes_open[cl->key]--;
	cl->state = C_IDLE;
	cl->call++;
}

size_t client_events(const struct world *w, uint16_t *out)
{
	size_t n = 0;
	for (unsigned c = 0; c < W_CLIENTS; c++) {
		const struct w_client *cl = &w->clients[c];
		bool steps = cl->state == C_GRANTED || cl->state == C_HAZARD ||
			     cl->state == C_HALF || cl->state == C_WRITTEN ||
			     cl->state == C_READ || cl->state == C_READ_HALF;
		if (cl->dead)
			continue;
		if (w->left.kills)
			out[n++] = EVENT(E_KILL, c);
		if (cl->stopped) {
			out[n++] = EVENT(E_CONT, c);
			continue;
		}
		if (steps)
			out[n++] = EVENT(E_STEP, c);
		if (w->left.stops && cl->state != C_IDLE)
			out[n++] = EVENT(E_STOP, c);
		if (w->left.giveups && cl->state != C_IDLE)
			out[n++] = EVENT(E_GIVE_UP, c);
		if (w->left.dups && cl->state == C_COMMIT_SENT)
			out[n++] = EVENT(E_AGAIN, c);
		for (unsigned k = 0; k < w->cfg->keys && cl->state == C_IDLE; k++) {
			if (w->left.puts[c])
				out[n++] = EVENT(E_PUT, c * 2 + k);
			if (w->left.gets[c])
				out[n++] = EVENT(E_GET, c * 2 + k);
			if (w->left.removes[c])
				out[n++] = EVENT(E_REMOVE, c * 2 + k);
		}
	}
	return n;
}

/* ---- calls begin ---- */

static void begin(struct world *w, unsigned arg, enum w_client_state state,
		  enum w_msg_kind kind)
{
	unsigned c = arg / 2;
	struct w_client *cl = &w->clients[c];
	cl->key = arg % 2;
	cl->state = state;
	cl->attempt = ++cl->attempts;
	cl->old_upto = w->old_upto[cl->key];
	cl->must = 0;
	for (uint32_t i = 0; i < w->n_versions; i++) {
		const struct w_version *v = &w->versions[i];
		if (v->key == cl->key && v->acked && !v->began_end)
			cl->must = MAX_OF(cl->must, v->version);
	}
	client_send(w, c, kind);
}

static void begin_remove(struct world *w, unsigned arg)
{
	struct w_client *cl = &w->clients[arg / 2];
	begin(w, arg, C_REMOVE_SENT, M_REMOVE);
	w->removes_open[cl->key]++;
	cl->seen = w->old_upto[cl->key];
	for (uint32_t i = 0; i < w->n_versions; i++) {
		struct w_version *v = &w->versions[i];
		if (v->key != cl->key)
			continue;
		v->began_end = true;
		if (v->acked)
			cl->seen = MAX_OF(cl->seen, v->version);
	}
}

/* ---- steps of a put ---- */

static const struct pool_ctl *ctl_of(const struct world *w, const struct w_client *cl)
{
	return shmpool_ctl(w->holders[cl->holder].maps[cl - w->clients]);
}

static struct extent extent_of(const struct w_client *cl)
{
	return (struct extent){ 0, (uint64_t)(cl->extent - 1) * W_BLOCK, W_BLOCK };
}

static void put_begin(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	struct pool_lane *l = w->holders[cl->holder].lanes[c];
	struct extent x = extent_of(cl);
	enum err e = lane_begin(l, ctl_of(w, cl), 0, cl->epoch, cl->version, &x, 1);
	if (e && !(w->cfg->plant_here & W_NO_FIRST_LOOK))
		call_ends(w, cl);
	else
		cl->state = C_HAZARD;
}

static void put_half(struct world *w, unsigned c, unsigned half)
{
	struct w_client *cl = &w->clients[c];
	struct w_holder *h = &w->holders[cl->holder];
	check_store(w, cl->holder, cl->extent - 1u, cl->version);
	h->data[cl->extent - 1][half] = cl->version;
	cl->state = half ? C_WRITTEN : C_HALF;
}

static void put_commit(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	struct w_msg *m = client_send(w, c, M_COMMIT);
	m->holder = cl->holder;
	m->version = cl->version;
	m->epoch = cl->epoch;
	m->extent = cl->extent;
	cl->state = C_COMMIT_SENT;
}

/* ---- steps of a get ---- */

static void get_end(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	struct w_holder *h = &w->holders[cl->holder];
	bool same = shmpool_same(h->maps[c], cl->slot, cl->generation) ||
		    (w->cfg->plant_here & W_NO_GENERATION_CHECK);
	if (same) /* else LEASE_LOST: the call ends in an error */
		check_returned(w, cl, cl->version, cl->half, h->data[cl->extent - 1][1]);
	call_ends(w, cl);
}

static void step(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	switch (cl->state) {
	case C_GRANTED:
		put_begin(w, c);
		break;
	case C_HAZARD:
		put_half(w, c, 0);
		break;
	case C_HALF:
		put_half(w, c, 1);
		break;
	case C_WRITTEN:
		lane_end(w->holders[cl->holder].lanes[c]);
		put_commit(w, c);
		break;
	case C_READ:
		cl->half = w->holders[cl->holder].data[cl->extent - 1][0];
		cl->state = C_READ_HALF;
		break;
	default:
		get_end(w, c);
	}
}

/* ---- what befalls them ---- */

static void client_dies(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	cl->dead = true; /* a remove of it stays open for ever */
	for (unsigned i = 0; i < W_HOLDERS; i++) {
		struct w_holder *h = &w->holders[i];
		h->gone_session[c] = true;
		pool_memory_session_killed(h->backing, h->sessions[c]);
	}
}

static void give_up(struct world *w, unsigned c)
{
	struct w_client *cl = &w->clients[c];
	bool remove = cl->state == C_REMOVE_SENT;
	if (cl->state == C_HAZARD || cl->state == C_HALF || cl->state == C_WRITTEN)
		lane_end(w->holders[cl->holder].lanes[c]);
	call_ends(w, cl);
	w->removes_open[cl->key] += remove; /* in doubt: it may still be carried out */
}

void client_apply(struct world *w, unsigned kind, unsigned arg)
{
	switch (kind) {
	case E_PUT:
		w->left.puts[arg / 2]--;
		begin(w, arg, C_PUT_SENT, M_PUT_START);
		break;
	case E_GET:
		w->left.gets[arg / 2]--;
		begin(w, arg, C_QUERY_SENT, M_QUERY);
		break;
	case E_REMOVE:
		w->left.removes[arg / 2]--;
		begin_remove(w, arg);
		break;
	case E_STEP:
		step(w, arg);
		break;
	case E_KILL:
		w->left.kills--;
		client_dies(w, arg);
		break;
	case E_STOP:
		w->left.stops--;
		w->clients[arg].stopped = true;
		break;
	case E_CONT:
		w->clients[arg].stopped = false;
		break;
	case E_GIVE_UP:
		w->left.giveups--;
		give_up(w, arg);
		break;
	case E_AGAIN:
		w->left.dups--;
		put_commit(w, arg);
		break;
	default:
		abort();
	}
}

/* ---- answers ---- */

/* The library sends a call again under the new term while it is open (V4). */
static bool sent_again(struct world *w, struct w_client *cl, const struct w_msg *m)
{
	unsigned c = m->client;
	if (m->err != ERR_STALE_TERM)
		return false;
	cl->term = m->term;
	client_send(w, c, cl->state == C_PUT_SENT ? M_PUT_START : M_REMOVE);
	return true;
}

static void granted(struct w_client *cl, const struct w_msg *m)
{
	cl->version = m->version;
	cl->epoch = m->epoch;
	cl->holder = m->holder;
	cl->extent = m->extent;
	cl->state = C_GRANTED;
}

static void put_acked(struct world *w, struct w_client *cl)
{
	struct w_version *v = world_version(w, cl->version);
	if (!v)
		return;
	v->acked = true;
	v->began_end |= w->removes_open[cl->key] > 0;
	w->old_upto[cl->key] = MAX_OF(w->old_upto[cl->key], cl->version - 1);
}

static void query_answered(struct world *w, struct w_client *cl, const struct w_msg *m)
{
	if (m->err == ERR_NOT_FOUND)
		check_not_found(w, cl);
	if (m->err) {
		call_ends(w, cl);
		return;
	}
	cl->version = m->version;
	cl->holder = m->holder;
	cl->slot = m->slot;
	cl->generation = m->generation;
	cl->extent = m->extent;
	cl->state = C_READ;
}

void client_deliver(struct world *w, struct w_msg *m)
{
	struct w_client *cl = &w->clients[m->client];
	if (cl->dead || m->call != cl->call)
		return;
	if (m->term)
		cl->term = MAX_OF(cl->term, m->term);
	if (m->kind == M_PUT_GRANT && cl->state == C_PUT_SENT) {
		if (!m->err)
			granted(cl, m);
		else if (!sent_again(w, cl, m))
			call_ends(w, cl);
	} else if (m->kind == M_REMOVE_REP && cl->state == C_REMOVE_SENT) {
		if (sent_again(w, cl, m))
			return;
		if (!m->err)
			w->old_upto[cl->key] = MAX_OF(w->old_upto[cl->key], cl->seen);
		else
			w->removes_open[cl->key]++; /* in doubt */
		call_ends(w, cl);
	} else if (m->kind == M_COMMIT_REP && cl->state == C_COMMIT_SENT) {
		if (!m->err)
			put_acked(w, cl);
		call_ends(w, cl);
	} else if (m->kind == M_QUERY_REP && cl->state == C_QUERY_SENT) {
		query_answered(w, cl, m);
	}
}
