/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A put (spec/store.md, Terms and puts):
 *
 *   ask ──► map ──► turn ──► copy ──► commit ──► end
 *    ▲       │        │        │        │  └► doubt ──► end
 *    │       └────────┴────────┴────────┴───────┴─► undo ──► pause ─┐
 *    └──────────────────────────────────────────────────────────────┘
 *
 * undo gives the attempt up in the background; what may pass is tried again with a new one (STALE_EPOCH,
 * STALE_ATTEMPT, a lost holder). A COMMIT whose answer is lost may have taken effect: doubt asks the
 * master whether this very version is there; if it is not, the put is done again, so that it may take
 * effect twice while its call is open, never after.
 */
#include "stc_priv.h"

#include <string.h>

enum {
	PUT_ASK,
	PUT_MAP,
	PUT_TURN,
	PUT_COPY,
	PUT_COMMIT,
	PUT_DOUBT,
	PUT_UNDO,
	PUT_PAUSE,
	PUT_END
};

static struct stc_flow *flow_of(struct op *op)
{
	return container_of(op, struct stc_flow, op);
}

/* The attempt is given up, and another may follow. */
static int undo(struct stc_flow *f, int back)
{
	f->back = back;
	return PUT_UNDO;
}

static bool check_item(struct stc_flow *f)
{
	struct stc_item *it = f->it;
	uint64_t size = 0;
	for (uint32_t i = 0; i < it->n_bufs; i++)
		size += it->bufs[i].n;
	it->size = size;
	if (it->key.n < 1 || it->key.n > OBJ_KEY_MAX)
		flow_note(f, ERR_INVALID_PARAMS, 0, "", "start", "key: %zu bytes, 1..%d",
			  it->key.n, OBJ_KEY_MAX);
	else if (size > OBJ_SIZE_MAX)
		flow_note(f, ERR_TOO_LARGE, 0, "", "start", "%llu bytes, at most %llu",
			  (unsigned long long)size, (unsigned long long)OBJ_SIZE_MAX);
	else if (it->group.n > OBJ_KEY_MAX || it->require_key.n > OBJ_KEY_MAX)
		flow_note(f, ERR_INVALID_PARAMS, 0, "", "start",
			  "group and require key: at most %d bytes", OBJ_KEY_MAX);
	else
		return true;
	return false;
}

static int put_ask(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op_first(op) && op->err == ERR_NONE && !check_item(f)) {
		flow_fail(f);
		return PUT_END;
	}
	if (flow_ask(f, Q_PUT) == OP_WAIT)
		return OP_WAIT;
	if (op->err != ERR_NONE)
		return PUT_END;
	if (f->err == ERR_NONE) {
		f->grant = &f->reply->grants.items.p[f->msg_idx];
		f->it->version = f->grant->version;
		flow_hold(f, STC_PROGRESS_MS);
		FAULT_AT(put_granted);
		return f->it->size ? PUT_MAP : PUT_COMMIT;
	}
	if (f->err == ERR_EXISTS) { /* DONE: a number of the past (V4) */
		f->err = ERR_STALE_ATTEMPT;
		f->attempt = 0;
	}
	f->back = PUT_ASK;
	if (flow_again(f))
		return PUT_PAUSE;
	flow_fail(f);
	return PUT_END;
}

static const struct msg_place *place_of(const struct stc_flow *f)
{
	return &f->reply->grants.places.p[f->grant->place];
}

static int put_map(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	enum err e = ERR_NONE;
	if (op_first(op)) {
		e = pool_take(f, place_of(f));
		f->op.waits_for = "a holder's pool";
		if (e == ERR_BUSY && op->err == ERR_NONE)
			return OP_WAIT;
	} else {
		e = f->err;
	}
	return e == ERR_NONE && op->err == ERR_NONE ? PUT_TURN : undo(f, PUT_ASK);
}

static int put_turn(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op->err != ERR_NONE)
		return undo(f, PUT_ASK);
	if (op_first(op) && !flow_turn(f))
		return OP_WAIT;
	return PUT_COPY;
}

static int put_copy(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	enum err e = op_first(op) ? copy_begin_put(f, f->grant) : f->copy->job.err;
	bool over = !op_first(op) && copy_over(f->copy);
	while (e == ERR_NONE && op->err == ERR_NONE && !over && !f->closed) {
		if (!flow_copy(f))
			return OP_WAIT;
		e = f->copy->job.err;
		over = copy_over(f->copy);
	}
	if (e == ERR_NONE && f->closed)
		e = ERR_STALE_ATTEMPT;
	if (e != ERR_NONE && f->err == ERR_NONE) {
		char holder[65];
		place_name(place_of(f), holder);
		flow_note(f, e, 0, holder, "copy", "%s", err_text(e));
	}
	if (e == ERR_NONE && over)
		f->sum = f->copy->sum;
	copy_end(f);
	flow_turn_over(f);
	return e == ERR_NONE && op->err == ERR_NONE ? PUT_COMMIT : undo(f, PUT_ASK);
}

/* What COMMIT said, or did not say. */
static int committed(struct stc_flow *f)
{
	switch (f->err) {
	case ERR_NONE:
		f->it->copies = MAX_OF(f->reply->results.items.p[f->msg_idx].made, 1u);
		return PUT_END;
	case ERR_CONN_LOST:
	case ERR_UNREACHABLE:
	case ERR_STALE_SESSION:
		return PUT_DOUBT;
	case ERR_RECOVERING:
	case ERR_TEMPORARILY_AWAY:
	case ERR_NOT_READY:
	case ERR_BUSY:
	case ERR_SHUTTING_DOWN: /* the same COMMIT again: its slot is found */
		f->back = PUT_COMMIT;
		return flow_again(f) ? PUT_PAUSE : undo(f, PUT_END);
	case ERR_NO_SPACE: /* of slots: elsewhere */
		f->err = ERR_BUSY;
		return undo(f, PUT_ASK);
	case ERR_BAD_TICKET: /* the holder may have lost its pool and made another one since */
		if (f->bad_tickets++ < STC_TICKETS_MAX)
			f->err = ERR_STALE_ATTEMPT;
		return undo(f, PUT_ASK);
	default:
		return undo(f, PUT_ASK);
	}
}

static int put_commit(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op_first(op) && op->err == ERR_NONE) {
		if (f->it->size == 0)
			f->sum = obj_sum(NULL, 0, NULL);
		if (!f->holder && holder_take(f, place_of(f)) != ERR_NONE)
			return undo(f, PUT_ASK);
	}
	if (flow_ask(f, Q_COMMIT) == OP_WAIT)
		return OP_WAIT;
	if (op->err != ERR_NONE)
		return undo(f, PUT_END);
	if (f->closed && f->err != ERR_NONE)
		return PUT_DOUBT;
	return committed(f);
}

static int put_doubt(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	f->grant = NULL; /* its reply goes with the answer */
	if (flow_ask(f, Q_DOUBT) == OP_WAIT)
		return OP_WAIT;
	if (op->err != ERR_NONE)
		return undo(f, PUT_END);
	if (f->err == ERR_NONE &&
	    f->reply->stats.items.p[f->msg_idx].version == f->it->version) {
		const struct msg_stat *m = &f->reply->stats.items.p[f->msg_idx];
		f->it->copies = MAX_OF(m->memory + m->disk, 1u);
		return PUT_END;
	}
	if (f->err != ERR_NONE && f->err != ERR_NOT_FOUND) {
		f->back = PUT_DOUBT;
		return flow_again(f) ? PUT_PAUSE : undo(f, PUT_END);
	}
	flow_note(f, ERR_STALE_ATTEMPT, 0, "master", "COMMIT",
		  "the answer was lost, and the object is not there: the put starts again");
	return undo(f, PUT_ASK);
}

static int put_undo(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	msg_revoke(f->w->s, f->attempt, f->it->version);
	flow_let_go(f);
	f->grant = NULL;
	f->attempt = 0;
	f->first_term = 0;
	f->closed = false;
	f->redone = true;
	f->it->version = 0;
	if (f->back != PUT_END && flow_again(f))
		return PUT_PAUSE;
	if (op->err == ERR_NONE)
		flow_fail(f);
	return PUT_END;
}

static int put_end(struct op *op)
{
	return OP_DONE;
}

/* clang-format off */
static const struct op_step steps[] = {
	[PUT_ASK]    = { "ask", put_ask, TO(PUT_MAP) | TO(PUT_COMMIT) | TO(PUT_PAUSE) | TO(PUT_END),
			 .waits = true, .stop = flow_ask_stop },
	[PUT_MAP]    = { "map", put_map, TO(PUT_TURN) | TO(PUT_UNDO), .waits = true, .stop = flow_wait_stop },
	[PUT_TURN]   = { "turn", put_turn, TO(PUT_COPY) | TO(PUT_UNDO), .waits = true, .stop = flow_wait_stop },
	[PUT_COPY]   = { "copy", put_copy, TO(PUT_COMMIT) | TO(PUT_UNDO), .waits = true, .stop = flow_copy_stop },
	[PUT_COMMIT] = { "commit", put_commit, TO(PUT_DOUBT) | TO(PUT_PAUSE) | TO(PUT_UNDO) | TO(PUT_END),
			 .waits = true, .stop = flow_ask_stop },
	[PUT_DOUBT]  = { "doubt", put_doubt, TO(PUT_PAUSE) | TO(PUT_UNDO) | TO(PUT_END),
			 .waits = true, .stop = flow_ask_stop },
	[PUT_UNDO]   = { "undo", put_undo, TO(PUT_PAUSE) | TO(PUT_END) },
	[PUT_PAUSE]  = { "pause", flow_pause, TO(PUT_ASK) | TO(PUT_COMMIT) | TO(PUT_DOUBT),
			 .waits = true, .stop = flow_pause_stop },
	[PUT_END]    = { "end", put_end, OP_TO_DONE },
};
/* clang-format on */
OP_TABLE(put_table, "client.put", steps);
const struct op_table *const stc_put_table = &put_table;

void flow_closed(struct stc_flow *f)
{
	f->closed = true;
	if (f->copy)
		__atomic_store_n(&f->copy->stop, true, __ATOMIC_RELAXED);
	if (f->op.state != PUT_COMMIT || !f->msg)
		return;
	flow_leave(f);
	flow_note(f, ERR_STALE_ATTEMPT, 0, "master", "COMMIT", "%s",
		  err_text(ERR_STALE_ATTEMPT));
	op_resume(&f->op);
}
