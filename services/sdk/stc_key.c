/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that is one question and its answer, asked again until there is one: ask ⇄ pause, end. */
#include "stc_priv.h"

enum { KEY_ASK, KEY_PAUSE, KEY_END };

static struct stc_flow *flow_of(struct op *op)
{
	return container_of(op, struct stc_flow, op);
}

static enum stc_q question(enum stc_kind kind)
{
	switch (kind) {
	case STC_REMOVE:
		return Q_REMOVE;
	case STC_REMOVE_RANGE:
		return Q_RANGE;
	case STC_EXISTS:
		return Q_EXISTS;
	case STC_STAT:
		return Q_STAT;
	case STC_QUERY:
	case STC_SNAPSHOT:
		return Q_QUERY;
	case STC_RELEASE:
		return Q_RELEASE;
	case STC_LIST:
		return Q_LIST;
	case STC_EXPLAIN:
		return Q_EXPLAIN;
	case STC_HOLDERS:
		return Q_HOLDERS;
	case STC_TASK_START:
		return Q_TASK_START;
	case STC_TASKS:
		return Q_TASKS;
	case STC_TASK_CANCEL:
		return Q_TASK_CANCEL;
	case STC_PUT:
	case STC_GET:
		break;
	}
	assert(!"not a question");
	return Q_N;
}

/* Keys of 1..1024 bytes; a prefix may be empty. */
static bool check_item(struct stc_flow *f)
{
	enum stc_kind k = f->w->c->kind;
	bool bare = k >= STC_HOLDERS || k == STC_REMOVE_RANGE || k == STC_LIST;
	size_t least = bare ? 0 : 1;
	if (f->it->key.n >= least && f->it->key.n <= OBJ_KEY_MAX)
		return true;
	flow_note(f, ERR_INVALID_PARAMS, 0, "", "start", "key: %zu bytes, %zu..%d",
		  f->it->key.n, least, OBJ_KEY_MAX);
	return false;
}

static void take_version(struct stc_flow *f, const struct msg_object *o)
{
	struct stc_item *it = f->it;
	it->version = o->version;
	it->size = o->size;
	if (it->if_version && it->if_version != o->version) {
		flow_note(f, ERR_CONFLICT, 0, "master", "QUERY",
			  "the key has another version than asked for");
		flow_fail(f);
	}
}

/* Moves what the answer says into the item. */
static void take(struct stc_flow *f)
{
	struct stc_item *it = f->it;
	const struct stc_reply *r = f->reply;
	switch (f->w->c->kind) {
	case STC_STAT:
		it->stat = &r->stats.items.p[f->msg_idx];
		it->version = it->stat->version;
		it->size = it->stat->size;
		break;
	case STC_QUERY:
		it->object = &r->query.items.p[f->msg_idx];
		it->version = it->object->version;
		it->size = it->object->size;
		it->places = r->query.places.p;
		it->n_places = r->query.places.n;
		break;
	case STC_SNAPSHOT:
		take_version(f, &r->query.items.p[f->msg_idx]);
		break;
	case STC_REMOVE_RANGE:
		it->bytes = r->range.removed;
		it->pinned = r->range.pinned;
		break;
	case STC_LIST:
		it->list = &r->list;
		break;
	case STC_EXPLAIN:
		it->explain = &r->explain;
		break;
	case STC_HOLDERS:
		it->holders = &r->holders;
		break;
	case STC_TASK_START:
		it->task_id = r->task.id;
		break;
	case STC_TASKS:
		it->tasks = &r->tasks;
		break;
	case STC_TASK_CANCEL:
	case STC_PUT:
	case STC_GET:
	case STC_REMOVE:
	case STC_EXISTS:
	case STC_RELEASE:
		break;
	}
}

/* DONE: this remove was carried out before (V4); or its number has left the master's window, which only
 * one that many others overtook can do, and which takes a new one. */
static void done_before(struct stc_flow *f)
{
	if (f->w->s->attempt - f->attempt < 2048) {
		f->err = ERR_NONE;
		return;
	}
	f->attempt = 0;
	f->err = ERR_STALE_ATTEMPT;
}

static int key_ask(struct op *op)
{
	struct stc_flow *f = flow_of(op);
	enum stc_kind k = f->w->c->kind;
	if (op_first(op) && op->err == ERR_NONE && !check_item(f)) {
		flow_fail(f);
		return KEY_END;
	}
	if (flow_ask(f, question(k)) == OP_WAIT)
		return OP_WAIT;
	if (op->err != ERR_NONE)
		return KEY_END;
	if (f->err == ERR_NONE) {
		take(f);
		return KEY_END;
	}
	if (f->err == ERR_EXISTS && (k == STC_REMOVE || k == STC_REMOVE_RANGE))
		done_before(f);
	if (f->err == ERR_NONE)
		return KEY_END;
	/* a lost lease is what RELEASE was to find out; a task that may run is not started twice */
	bool known = (k == STC_RELEASE && f->err == ERR_LEASE_LOST) ||
		     (k == STC_TASK_START && f->err == ERR_CONN_LOST);
	if (!known && flow_again(f))
		return KEY_PAUSE;
	flow_fail(f);
	return KEY_END;
}

static int key_end(struct op *op)
{
	return OP_DONE;
}

/* clang-format off */
static const struct op_step steps[] = {
	[KEY_ASK]   = { "ask", key_ask, TO(KEY_PAUSE) | TO(KEY_END), .waits = true, .stop = flow_ask_stop },
	[KEY_PAUSE] = { "pause", flow_pause, TO(KEY_ASK), .waits = true, .stop = flow_pause_stop },
	[KEY_END]   = { "end", key_end, OP_TO_DONE },
};
/* clang-format on */
OP_TABLE(key_table, "client.key", steps);
const struct op_table *const stc_key_table = &key_table;
