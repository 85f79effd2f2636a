/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: copy, move, prefetch of keys, drain of a holder. A task looks at its objects again and again until each is
 * where it is to be; it has a few copies under way at a time and keeps no record of an object but its key. It ends
 * with its term: whoever asks later is told TASK_LOST, and may start it again, which does what is left.
 *
 *	QUEUED ─► RUNNING ─► DONE, FAILED (some could not)      a drain waits for room, for as long as it takes
 *	   └─────────┴─► CANCELLED                              DONE: drained; cancelled then: in use again
 */
#include "mind_copy.h"

enum {
	RUN_MAX = 16,	   /* tasks at a time; the others are queued */
	COPIES = 64,	   /* copies of a task under way */
	SLICE = 256,	   /* keys looked at in one go (I6) */
	SLOT_SLICE = 4096, /* slots likewise */
	PASS_MS = 200,	   /* from one look at all to the next */
	STUCK_MS = 1000,   /* the same where nothing fits */
	REST_MS = 20,	   /* all holders have their most */
	GIVE_UP = 200,	   /* looks at a key without success; a copy that failed counts 40 */
	FAILURE = 40,
};

enum key_state { KEY_TODO, KEY_COPYING, KEY_DONE, KEY_FAILED };
struct task_key {
	uint32_t at;
	uint16_t n;
	uint8_t state, tries, goal; /* goal: copies there are to be; 0: not looked at */
};

struct task {
	struct list node, run;
	uint64_t id, began_ns, ended_ns, next_ns, scan;
	uint64_t done, total, failed, bytes_done, bytes_total, left, left_bytes, stuck;
	struct holder *from, *to; /* NULL: not said */
	uint32_t replica_num, n_pulls, n_keys, at;
	uint16_t tenant; /* TENANTS_MAX: an admin's */
	uint8_t kind, state;
	bool woken;
	struct why why; /* the last failure, or what it waits for */
	struct task_key *keys;
	uint8_t *bytes; /* of the keys */
	size_t n_bytes;
};

static bool ended(const struct task *t)
{
	return t->state >= MIND_TASK_DONE;
}

static void note(struct task *t, enum err e, const char *text)
{
	t->why = (struct why){ 0 };
	why_note(&t->why, e, "%s", text);
}

/* ---- life ---- */

static size_t task_bytes(const struct task *t)
{
	return sizeof(*t) + t->n_keys * sizeof(*t->keys) + t->n_bytes;
}

static void keys_free(struct mind *m, struct task *t)
{
	m->bytes -= task_bytes(t);
	free(t->keys);
	free(t->bytes);
	t->keys = NULL;
	t->bytes = NULL;
	t->n_keys = 0;
	t->n_bytes = 0;
	m->bytes += task_bytes(t);
}

static void task_free(struct mind *m, struct task *t)
{
	m->bytes -= task_bytes(t);
	m->n_tasks--;
	list_del(&t->node);
	list_del(&t->run);
	free(t->keys);
	free(t->bytes);
	free(t);
}

void tasks_free(struct mind *m)
{
	for (struct list *l; (l = list_pop_front(&m->tasks));)
		task_free(m, list_entry(l, struct task, node));
}

/* Its copies go on, for nobody. */
static void let_go(struct mind *m, struct task *t)
{
	map_for_each (it, &m->pulls) {
		struct pull *p = container_of(it, struct pull, node);
		p->task = p->task == t ? NULL : p->task;
	}
	t->n_pulls = 0;
}

static void task_end(struct mind *m, struct task *t, enum mind_task_state s)
{
	if (t->n_pulls)
		let_go(m, t);
	t->state = (uint8_t)s;
	t->ended_ns = m->now;
	list_del(&t->run);
	m->n_running--;
	keys_free(m, t);
}

static void undrain(struct mind *m, struct task *t)
{
	t->from->draining = false;
	t->from->drain = NULL;
	m->n_draining--;
	m->space_dirty = true;
}

/* A drain is remembered for as long as its holder is drained. */
static bool may_forget(const struct task *t)
{
	return ended(t) && (t->kind != MIND_TASK_DRAIN || t->from->drain != t);
}

static void expire(struct mind *m)
{
	uint64_t keep = m->l.task_keep_ms * 1000000ull;
	list_for_each_safe (it, &m->tasks) {
		struct task *t = list_entry(it, struct task, node);
		if (may_forget(t) &&
		    (m->now - t->ended_ns >= keep || m->n_tasks >= m->l.tasks_max))
			task_free(m, t);
	}
}

bool holder_drained(const struct mind *m, const struct holder *h)
{
	return m->n_draining && h->drain && h->drain->state == MIND_TASK_DONE;
}

void task_pulled(struct mind *m, struct task *t, uint32_t item, enum err e,
		 const struct why *why)
{
	t->n_pulls--;
	t->woken |= e == ERR_NONE;
	if (e != ERR_NONE) {
		note(t, e, why && why->text[0] ? why->text : err_text(e));
		t->next_ns = MAX_OF(t->next_ns, in_ms(m, STUCK_MS));
	}
	if (t->kind == MIND_TASK_DRAIN) {
		t->failed += e != ERR_NONE;
		return;
	}
	struct task_key *k = &t->keys[item];
	k->state = KEY_TODO;
	if (e != ERR_NONE)
		k->tries = (uint8_t)MIN_OF(k->tries + FAILURE, 255);
	t->at = 0;
}

/* ---- keys ---- */

static void key_end(struct task *t, struct task_key *k, uint64_t size, enum err e,
		    const char *text)
{
	k->state = e == ERR_NONE ? KEY_DONE : KEY_FAILED;
	t->done += e == ERR_NONE;
	t->failed += e != ERR_NONE;
	t->bytes_done += e == ERR_NONE ? size : 0;
	if (e != ERR_NONE)
		note(t, e, text);
}

static struct copy *copy_at(const struct obj *o, uint64_t version, const struct holder *h)
{
	for (struct copy *c = h ? o->copies : NULL; c; c = c->next)
		if (c->version == version && c->holder == h->index &&
		    c->state == COPY_COMMITTED && (c->flags & COPY_SERVED))
			return c;
	return NULL;
}

static bool in_memory(const struct mind *m, const struct obj *o, uint64_t version)
{
	for (const struct copy *c = o->copies; c; c = c->next)
		if (c->version == version && c->state == COPY_COMMITTED &&
		    m->holders[c->holder]->kind != 2)
			return true;
	return false;
}

/* Is the object where it is to be? What a move leaves behind is given up then. */
static bool key_there(struct mind *m, struct task *t, struct obj *o, struct task_key *k,
		      uint64_t version)
{
	uint32_t live = copies_live(m, o, version);
	struct copy *from = copy_at(o, version, t->from);
	if (!k->goal)
		k->goal = (uint8_t)(t->replica_num ? t->replica_num : live + 1);
	if (t->kind == MIND_TASK_PREFETCH)
		return in_memory(m, o, version);
	if (t->kind == MIND_TASK_MOVE && !from)
		return true;
	bool there = t->to ? copy_at(o, version, t->to) != NULL : live >= k->goal;
	if (there && from && live > 1 && !group_holds(from))
		copy_retire(m, from, RETIRE_MOVED);
	return there && (!from || from->state != COPY_COMMITTED);
}

/* A copy is on its way, or there is one to be waited for. */
static void key_copy(struct mind *m, struct task *t, struct obj *o, struct task_key *k,
		     const struct copy *of)
{
	struct pull *p;
	bool more =
		t->to ? !pull_of(m, of->version, t->to->index)
		      : copies_live(m, o, of->version) + pulls_live(o, of->version) < k->goal;
	if (!more && t->kind != MIND_TASK_PREFETCH)
		return;
	enum err e = copy_begin(m, o, of, t->to, COPY_FOR_TASK, &p);
	if (e == ERR_NONE) {
		p->task = t;
		p->item = (uint32_t)(k - t->keys);
		k->state = KEY_COPYING;
		t->n_pulls++;
	} else if ((e == ERR_NOT_READY && !pulls_live(o, of->version)) || e == ERR_QUOTA) {
		key_end(t, k, of->size, e,
			e == ERR_QUOTA ? "the tenant's quota is used up"
			: t->to	       ? "that holder cannot have a copy"
				       : "no other holder can have a copy");
	} else if (e != ERR_BUSY) {
		k->tries = (uint8_t)MIN_OF(k->tries + 1, 255);
		note(t, e, e == ERR_NO_SPACE ? "no room for a copy" : err_text(e));
	}
}

static void key_step(struct mind *m, struct task *t, struct task_key *k)
{
	struct obj *o = obj_find(m, t->tenant, BYTES(t->bytes + k->at, k->n));
	const struct copy *s = obj_served(m, o);
	if (!s && !m->n_unmerged && !(o && o->work)) {
		key_end(t, k, 0, ERR_NOT_FOUND, "a key has no object");
		return;
	}
	s = s ? obj_readable(m, o) : NULL;
	if (!s || k->tries >= GIVE_UP) {
		if (k->tries++ >= GIVE_UP) {
			const struct why was = t->why;
			key_end(t, k, 0, was.err ? was.err : ERR_BUSY,
				was.err ? was.text : "its object is not readable");
		}
		return;
	}
	uint64_t version = s->version, size = s->size;
	if (!k->goal)
		t->bytes_total += size;
	if (key_there(m, t, o, k, version)) {
		key_end(t, k, size, ERR_NONE, NULL);
		return;
	}
	for (s = o->copies; s; s = s->next)
		if (s->version == version && s->state == COPY_COMMITTED &&
		    (s->flags & COPY_SERVED)) {
			key_copy(m, t, o, k, s);
			return;
		}
}

/* true: there is more to do at once. */
static bool keys_step(struct mind *m, struct task *t)
{
	for (int n = 0; t->at < t->n_keys && t->n_pulls < COPIES; t->at++) {
		if (t->keys[t->at].state != KEY_TODO)
			continue;
		if (n++ == SLICE)
			return true;
		key_step(m, t, &t->keys[t->at]);
	}
	t->next_ns = in_ms(m, PASS_MS);
	if (t->done + t->failed == t->n_keys)
		task_end(m, t, t->failed ? MIND_TASK_FAILED : MIND_TASK_DONE);
	else if (t->at == t->n_keys)
		t->at = 0;
	return false;
}

/* ---- drain ---- */

static bool all_merged(const struct mind *m)
{
	return m->n_unmerged == 0 && m->n_partial == 0;
}

/* false: all that may take copies have their most. */
static bool slot_step(struct mind *m, struct task *t, struct copy *c)
{
	struct obj *o = c->obj;
	struct pull *p;
	if (c->state > COPY_RETIRING)
		return true;
	t->left++;
	t->left_bytes += c->size;
	if (c->state != COPY_COMMITTED || !(c->flags & COPY_SERVED))
		return true;
	copies_step(m, o); /* it goes, if it is readable elsewhere */
	if (c->state != COPY_COMMITTED || pulls_live(o, c->version))
		return true;
	enum err e = copy_begin(m, o, c, t->to, COPY_FOR_TASK, &p);
	if (e == ERR_NONE) {
		p->task = t;
		t->n_pulls++;
		return true;
	}
	if (e == ERR_BUSY) {
		t->left--;
		t->left_bytes -= c->size;
		return false;
	}
	t->stuck++;
	note(t, e,
	     e == ERR_NO_SPACE	  ? "no room elsewhere"
	     : e == ERR_NOT_READY ? "no other holder can have what it holds"
				  : err_text(e));
	return true;
}

static void pass_end(struct mind *m, struct task *t)
{
	const struct holder *h = t->from;
	bool all = t->left == 0 && list_empty(&h->attempts) && list_empty(&h->pulls) &&
		   list_empty(&h->early);
	t->next_ns = in_ms(m, t->stuck ? STUCK_MS : PASS_MS);
	t->done = h->moved;
	t->bytes_done = h->moved_bytes;
	t->total = t->done + t->left;
	t->bytes_total = t->bytes_done + t->left_bytes;
	t->scan = t->left = t->left_bytes = t->stuck = 0;
	if (all) {
		t->why = (struct why){ 0 };
		t->failed = 0;
		task_end(m, t, MIND_TASK_DONE); /* L5 */
	}
}

static bool drain_task(struct mind *m, struct task *t)
{
	struct holder *h = t->from;
	t->next_ns = in_ms(m, REST_MS);
	if (h->state == HOLDER_NONE) {
		note(t, ERR_NOT_FOUND, "it was dropped from the roster");
		undrain(m, t);
		task_end(m, t, MIND_TASK_FAILED);
		return false;
	}
	if (h->state != HOLDER_MERGED || !all_merged(m)) {
		t->next_ns = in_ms(m, PASS_MS);
		note(t, ERR_RECOVERING,
		     holder_in(h) ? "holders are being merged" : "it is away");
		return false;
	}
	if (t->why.err == ERR_RECOVERING)
		t->why = (struct why){ 0 };
	t->done = h->moved;
	t->bytes_done = h->moved_bytes;
	for (int n = 0; n < SLOT_SLICE && t->n_pulls < COPIES; t->scan++) {
		if (t->scan / SLOT_PAGE >= h->n_pages) {
			pass_end(m, t);
			return false;
		}
		struct copy *c = slot_at(h, (uint32_t)t->scan);
		if (!c && !h->pages[t->scan / SLOT_PAGE])
			t->scan |= SLOT_PAGE - 1;
		n++;
		if (c && !slot_step(m, t, c))
			return false;
	}
	return t->n_pulls < COPIES;
}

/* ---- all ---- */

bool tasks_work(struct mind *m)
{
	bool more = false;
	int n = 0;
	list_for_each_safe (it, &m->tasks_run) {
		struct task *t = list_entry(it, struct task, run);
		if (n++ == RUN_MAX)
			break;
		t->state = MIND_TASK_RUNNING;
		if (!t->woken && m->now < t->next_ns)
			continue;
		t->woken = false;
		bool again = t->kind == MIND_TASK_DRAIN ? drain_task(m, t) : keys_step(m, t);
		t->woken |= again && !ended(t);
		more |= t->woken;
	}
	return more;
}

uint64_t tasks_due_ns(const struct mind *m)
{
	uint64_t due = UINT64_MAX;
	int n = 0;
	list_for_each (it, &m->tasks_run) {
		const struct task *t = list_entry(it, struct task, run);
		if (n++ == RUN_MAX)
			break;
		due = MIN_OF(due, t->woken ? 0 : t->next_ns);
	}
	return due;
}

/* ---- calls ---- */

static enum err named(const struct mind *m, struct bytes id, const char *what,
		      struct holder **out, struct why *why)
{
	int64_t at = id.n ? mind_holder_index(m, id) : -1;
	*out = at < 0 ? NULL : m->holders[at];
	if (id.n && (!*out || (*out)->state == HOLDER_NONE))
		return why_set(why, ERR_NOT_FOUND, "%s: no such holder in the roster", what);
	return ERR_NONE;
}

static enum err check(const struct mind *m, struct bytes tenant,
		      const struct msg_task_start_req *q, struct task *t, struct why *why)
{
	bool drain = q->kind == MIND_TASK_DRAIN;
	if (q->kind < MIND_TASK_COPY || q->kind > MIND_TASK_PREFETCH)
		return why_set(why, ERR_INVALID_PARAMS,
			       "kind %u, 1 copy, 2 move, 3 drain, 4 prefetch", q->kind);
	if (drain ? q->keys.n : !q->keys.n || !tenant.n)
		return why_set(why, ERR_INVALID_PARAMS,
			       drain ? "keys: a drain names none" : "keys: none are named");
	for (size_t i = 0; i < q->keys.n; i++)
		if (key_check(q->keys.p[i], why) != ERR_NONE)
			return ERR_INVALID_PARAMS;
	if (q->replica_num > OBJ_EXTENTS_MAX)
		return why_set(why, ERR_INVALID_PARAMS, "replica_num %u, at most %d",
			       q->replica_num, OBJ_EXTENTS_MAX);
	if ((drain || q->kind == MIND_TASK_MOVE) != (q->from.n > 0))
		return why_set(why, ERR_INVALID_PARAMS,
			       q->from.n ? "from: only a move or a drain has one"
					 : "from: no holder is named");
	enum err e = named(m, q->from, "from", &t->from, why);
	e = e != ERR_NONE ? e : named(m, q->to, "to", &t->to, why);
	if (e == ERR_NONE && t->to && (t->to == t->from || t->to->draining))
		return why_set(why, ERR_INVALID_PARAMS, "to: %s is being emptied", t->to->id);
	return e;
}

static enum err take_keys(struct task *t, const struct msg_task_start_req *q)
{
	for (size_t i = 0; i < q->keys.n; i++)
		t->n_bytes += q->keys.p[i].n;
	t->keys = calloc(q->keys.n + 1, sizeof(*t->keys));
	t->bytes = malloc(t->n_bytes + 1);
	if (!t->keys || !t->bytes)
		return ERR_NO_MEMORY;
	t->n_keys = (uint32_t)q->keys.n;
	for (size_t i = 0, at = 0; i < q->keys.n; at += q->keys.p[i++].n) {
		t->keys[i] =
			(struct task_key){ .at = (uint32_t)at, .n = (uint16_t)q->keys.p[i].n };
		memcpy(t->bytes + at, q->keys.p[i].p, q->keys.p[i].n);
	}
	t->total = q->keys.n;
	return ERR_NONE;
}

static void drain_begin(struct mind *m, struct task *t)
{
	struct holder *h = t->from;
	h->draining = true;
	h->drain = t;
	h->moved = h->moved_bytes = 0;
	m->n_draining++;
	t->total = h->n_copies;
}

static enum err start(struct mind *m, struct bytes tenant, const struct msg_task_start_req *q,
		      struct task *t, struct why *why)
{
	enum err e = check(m, tenant, q, t, why);
	if (e != ERR_NONE)
		return e;
	if (t->from && t->from->drain && q->kind == MIND_TASK_DRAIN)
		return ERR_EXISTS; /* said again */
	expire(m);
	if (m->n_tasks >= m->l.tasks_max)
		return why_set(why, ERR_BUSY, "%u tasks are under way (master.tasks_max)",
			       m->n_tasks);
	t->tenant = q->kind == MIND_TASK_DRAIN ? TENANTS_MAX : tenant_of(m, tenant, true);
	return q->kind == MIND_TASK_DRAIN ? ERR_NONE : take_keys(t, q);
}

enum err mind_task_start(struct mind *m, struct bytes tenant,
			 const struct msg_task_start_req *q, uint64_t *id, struct why *why)
{
	struct task *t = calloc(1, sizeof(*t));
	enum err e = t ? start(m, tenant, q, t, why) : ERR_NO_MEMORY;
	if (e != ERR_NONE) {
		if (e == ERR_EXISTS)
			*id = t->from->drain->id;
		if (t) {
			free(t->keys);
			free(t->bytes);
		}
		free(t);
		return e == ERR_EXISTS ? ERR_NONE : e;
	}
	t->id = version_make(m->term, ++m->task_last);
	t->kind = q->kind;
	t->state = MIND_TASK_QUEUED;
	t->replica_num = q->kind == MIND_TASK_COPY ? q->replica_num : 0;
	t->began_ns = m->now;
	t->woken = true;
	m->n_tasks++;
	m->n_running++;
	m->bytes += task_bytes(t);
	list_push_back(&m->tasks, &t->node);
	list_push_back(&m->tasks_run, &t->run);
	if (t->kind == MIND_TASK_DRAIN)
		drain_begin(m, t);
	*id = t->id;
	return ERR_NONE;
}

static bool visible(const struct mind *m, const struct task *t, const struct bytes *tenant)
{
	if (!tenant)
		return true;
	if (t->tenant == TENANTS_MAX)
		return false;
	struct bytes of = tenant_name(m, t->tenant);
	return of.n == tenant->n && memcmp(of.p, tenant->p, of.n) == 0;
}

static void show(const struct mind *m, const struct task *t, struct msg_task *out)
{
	*out = (struct msg_task){ .id = t->id,
				  .kind = t->kind,
				  .state = t->state,
				  .done = t->done,
				  .total = MAX_OF(t->total, t->done),
				  .failed = t->failed,
				  .bytes_done = t->bytes_done,
				  .bytes_total = MAX_OF(t->bytes_total, t->bytes_done),
				  .age_ms = (m->now - t->began_ns) / 1000000,
				  .text = BYTES_STR(t->why.text) };
	if (t->from)
		out->from = BYTES_STR(t->from->id);
	if (t->to)
		out->to = BYTES_STR(t->to->id);
}

static enum err find(struct mind *m, const struct bytes *tenant, uint64_t id, struct task **out,
		     struct why *why)
{
	expire(m);
	list_for_each (it, &m->tasks) {
		struct task *t = list_entry(it, struct task, node);
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what expired is on no list */
		if (t->id == id && visible(m, t, tenant)) {
			*out = t;
			return ERR_NONE;
		}
	}
	bool given = version_term(id) != m->term || (id & VERSION_COUNTER_MAX) <= m->task_last;
	return why_set(why, given && id ? ERR_TASK_LOST : ERR_NOT_FOUND,
		       given && id
			       ? "task %llx: of another term of the master, or ended long ago"
			       : "task %llx: there was none",
		       (unsigned long long)id);
}

enum err mind_task(struct mind *m, const struct bytes *tenant, uint64_t id,
		   struct msg_task *out, struct why *why)
{
	struct task *t = NULL;
	enum err e = find(m, tenant, id, &t, why);
	if (e == ERR_NONE)
		show(m, t, out);
	return e;
}

bool mind_task_next(struct mind *m, const struct bytes *tenant, uint64_t after,
		    struct msg_task *out)
{
	list_for_each (it, &m->tasks) {
		const struct task *t = list_entry(it, struct task, node);
		if (t->id > after && visible(m, t, tenant)) {
			show(m, t, out);
			return true;
		}
	}
	return false;
}

enum err mind_task_cancel(struct mind *m, const struct bytes *tenant, uint64_t id,
			  struct why *why)
{
	struct task *t = NULL;
	enum err e = find(m, tenant, id, &t, why);
	if (e != ERR_NONE)
		return e;
	mind_enter(m);
	bool was = ended(t);
	if (!was)
		task_end(m, t, MIND_TASK_CANCELLED);
	if (t->kind == MIND_TASK_DRAIN && t->from->drain == t) {
		undrain(m, t);
		t->state = MIND_TASK_CANCELLED;
		note(t, ERR_CANCELLED,
		     was ? "undone: the holder is in use again" : "cancelled");
	}
	mind_leave(m);
	return ERR_NONE;
}
