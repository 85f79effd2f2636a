/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A get (spec/store.md, Reads). The nearest replica first; one that is lost, corrupt, out of reach or
 * stands still gives way to the next, and none keeps more of the deadline than leaves the others some:
 *
 *   ask ──► pick ──► map ──► turn ──► copy ──► end
 *    ▲       │ ▲      │                │
 *    │       │ └──────┴────────────────┘  lost, corrupt or out of reach: the next replica
 *    └─ pause ◄─┘                         none left: ask again, a few times
 */
#include "stc_priv.h"

#include <string.h>

enum { GET_ASK, GET_PICK, GET_MAP, GET_TURN, GET_COPY, GET_PAUSE, GET_END };

static struct stc_flow *flow_of(struct op *op)
{
	return container_of(op, struct stc_flow, op);
}

static const struct msg_object *object_of(const struct stc_flow *f)
{
	return &f->reply->query.items.p[f->msg_idx];
}

static const struct msg_replica *replica_of(const struct stc_flow *f)
{
	return &object_of(f)->replicas.p[f->order[f->replica]];
}

static const struct msg_place *place_of(const struct stc_flow *f)
{
	return &f->reply->query.places.p[replica_of(f)->place];
}

/* Memory we can map, memory behind a lane, behind a lane that failed just now, disk. */
static unsigned rank(const struct stc_flow *f, const struct msg_replica *r)
{
	const struct stc *s = f->w->s;
	const struct msg_place *at = &f->reply->query.places.p[r->place];
	if (r->tier != 1)
		return 3;
	if (at->host.n == strlen(s->host) && memcmp(at->host.p, s->host, at->host.n) == 0)
		return 0;
	return dlane_rests(s, at) ? 2 : 1;
}

/* As the master has them (nearest first), within a rank. */
static void put_in_order(struct stc_flow *f)
{
	const struct msg_object *o = object_of(f);
	size_t n = 0;
	for (unsigned want = 0; want <= 3; want++)
		for (size_t i = 0; i < o->replicas.n; i++)
			if (rank(f, &o->replicas.p[i]) == want)
				f->order[n++] = (uint8_t)i;
	f->replica = 0;
	f->kept = ERR_NONE;
}

static bool check_item(struct stc_flow *f)
{
	const struct stc_item *it = f->it;
	if (it->key.n >= 1 && it->key.n <= OBJ_KEY_MAX && it->n_ranges <= STC_RANGES_MAX)
		return true;
	flow_note(f, ERR_INVALID_PARAMS, 0, "", "start",
		  "key: %zu bytes, 1..%d; ranges: %u, at most %d", it->key.n, OBJ_KEY_MAX,
		  it->n_ranges, STC_RANGES_MAX);
	return false;
}

/* What the query says of the object, before any byte is read. */
static int found(struct stc_flow *f)
{
	const struct msg_object *o = object_of(f);
	struct stc_item *it = f->it;
	if (it->if_version && it->if_version != o->version) {
		flow_note(f, ERR_CONFLICT, 0, "master", "QUERY",
			  "the key has another version than asked for");
		flow_fail(f);
		return GET_END;
	}
	it->version = o->version;
	it->size = o->size;
	if (copy_check_get(f, o->size) != ERR_NONE) {
		flow_fail(f);
		return GET_END;
	}
	if (it->bytes == 0)
		return GET_END;
	put_in_order(f);
	flow_hold(f, MAX_OF(o->lease_ms / 3, 1u));
	FAULT_AT(get_queried);
	return GET_PICK;
}

/* The answer that the snapshot has kept. */
static int from_snap(struct stc_flow *f)
{
	if (snap_use(f))
		return found(f);
	flow_fail(f);
	return GET_END;
}

static int get_ask(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op_first(op) && op->err == ERR_NONE && !check_item(f)) {
		flow_fail(f);
		return GET_END;
	}
	if (f->w->c->snap && !f->reply && op->err == ERR_NONE)
		return from_snap(f);
	if (flow_ask(f, Q_QUERY) == OP_WAIT)
		return OP_WAIT;
	if (op->err != ERR_NONE)
		return GET_END;
	if (f->w->c->snap)
		snap_asked(f);
	if (f->err == ERR_NONE)
		return found(f);
	if (f->err == ERR_LEASE_LOST) { /* of a snapshot: for good */
		flow_fail(f);
		return GET_END;
	}
	if (flow_again(f))
		return GET_PAUSE;
	flow_fail(f);
	return GET_END;
}

/* The next replica that can be read; none: why not, and whether to ask again. */
static int get_pick(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	const struct msg_object *o = object_of(f);
	while (f->replica < o->replicas.n && replica_of(f)->tier != 1) {
		if (f->err != ERR_NONE) { /* what was wrong in memory says more */
			f->replica++;
			continue;
		}
		flow_note(f, ERR_UNSUPPORTED, 0, "", "copy",
			  "its bytes are on disk at %.*s: this release reads memory only",
			  (int)place_of(f)->holder.n, (const char *)place_of(f)->holder.p);
		f->replica++;
	}
	f->others = (uint32_t)(o->replicas.n - f->replica);
	if (op->err == ERR_NONE && f->others-- > 0)
		return GET_MAP;
	list_del(&f->held);
	if (f->kept != ERR_NONE && !flow_may_pass(f))
		flow_note(f, f->kept, 0, "", "copy",
			  "a copy that may come back cannot be read now; another one: %s",
			  f->text ? f->text : err_text(f->err));
	if (f->err == ERR_NONE)
		flow_note(f, ERR_TEMPORARILY_AWAY, 0, "master", "QUERY",
			  "no holder of it can be asked now");
	f->reads += f->err == ERR_LEASE_LOST;
	if (f->reads < STC_READS_MAX && flow_again(f))
		return GET_PAUSE;
	if (op->err == ERR_NONE)
		flow_fail(f);
	return GET_END;
}

static int next_replica(struct stc_flow *f)
{
	if (f->err != ERR_NONE && flow_may_pass(f))
		f->kept = f->err;
	list_del(&f->node);
	dlane_drop(f, ERR_NONE);
	if (f->pool)
		pool_drop(f->w->s, f->pool);
	f->pool = NULL;
	f->replica++;
	return GET_PICK;
}

static int get_map(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	enum err e = ERR_NONE;
	if (op_first(op)) {
		f->err = ERR_NONE;
		e = pool_take(f, place_of(f));
		f->op.waits_for = "a holder's pool";
		if (e == ERR_BUSY && op->err == ERR_NONE)
			return OP_WAIT;
	} else {
		e = f->err;
	}
	return e == ERR_NONE && op->err == ERR_NONE ? GET_TURN : next_replica(f);
}

static int get_turn(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op->err != ERR_NONE)
		return next_replica(f);
	if (!op_first(op))
		return GET_COPY;
	f->verify =
		f->w->c->get.verify || (f->pool && /* behind a lane its agent looks */
					shmpool_unverified(f->pool->map, replica_of(f)->slot));
	if (!flow_turn(f))
		return OP_WAIT;
	return GET_COPY;
}

/* Not this replica. */
static void lost(struct stc_flow *f, enum err e)
{
	char holder[65];
	place_name(place_of(f), holder);
	if (f->err != e)
		flow_note(f, e, 0, holder, "copy", "%s",
			  e == ERR_CORRUPT ? "its bytes fail their checksum" : err_text(e));
}

static int get_copy(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	const struct msg_object *o = object_of(f);
	enum err e = op_first(op) ? copy_begin_get(f, o, replica_of(f)) : f->copy->job.err;
	bool over = !op_first(op) && copy_over(f->copy);
	while (e == ERR_NONE && op->err == ERR_NONE && !over) {
		if (!flow_copy(f))
			return OP_WAIT;
		e = f->copy->job.err;
		over = copy_over(f->copy);
	}
	copy_end(f);
	flow_turn_over(f);
	if (e != ERR_NONE)
		lost(f, e);
	else if (over)
		f->it->tier = replica_of(f)->tier;
	return e == ERR_NONE && over ? GET_END : next_replica(f);
}

static int get_end(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	if (op->err != ERR_NONE)
		f->it->bytes = 0;
	return OP_DONE;
}

/* clang-format off */
static const struct op_step steps[] = {
	[GET_ASK]   = { "ask", get_ask, TO(GET_PICK) | TO(GET_PAUSE) | TO(GET_END),
			.waits = true, .stop = flow_ask_stop },
	[GET_PICK]  = { "pick", get_pick, TO(GET_MAP) | TO(GET_PAUSE) | TO(GET_END) },
	[GET_MAP]   = { "map", get_map, TO(GET_TURN) | TO(GET_PICK), .waits = true, .stop = flow_wait_stop },
	[GET_TURN]  = { "turn", get_turn, TO(GET_COPY) | TO(GET_PICK), .waits = true, .stop = flow_wait_stop },
	[GET_COPY]  = { "copy", get_copy, TO(GET_PICK) | TO(GET_END), .waits = true, .stop = flow_copy_stop },
	[GET_PAUSE] = { "pause", flow_pause, TO(GET_ASK), .waits = true, .stop = flow_pause_stop },
	[GET_END]   = { "end", get_end, OP_TO_DONE },
};
/* clang-format on */
OP_TABLE(get_table, "client.get", steps);
const struct op_table *const stc_get_table = &get_table;
