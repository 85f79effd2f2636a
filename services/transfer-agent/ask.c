/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the master about versions: PUBLISH (a slot is COMMITTED; T2 follows) and CONFIRM (is
 * this attempt open?). What comes up in one turn of the loop goes out in one message.
 *
 *            ask                flush                   answer: an end
 *   (none) ------> QUEUED --------------> SENT ------------------------> waits end, gone
 *                    ^                      |
 *                    +---- retry, timer ----+   answer: again; or no answer while somebody waits
 *
 * I1: one question a version and kind: later ones join it.
 * I2: a question that nobody waits for is not asked again. (A slot stays COMMITTED: a master that
 *     adopts us, or FENCEs the attempt, finds it.)
 * I3: at most commits_max questions a kind, CALLS_MAX messages on their way.
 */
#include "agent.h"

#include <inttypes.h>
#include <string.h>

#include "base/fault.h"
#include "base/sum.h"

#define CALLS_MAX   64
/* An answer is for a whole message: after so long the master says what it has, and what still waits
 * (for a holder that is dying, say) is asked again by itself (L4). */
#define CALL_NS	    NS_PER_S
#define AGAIN_MS    50
#define ARENA_BYTES (2u << 20)

struct question {
	struct map_node node;
	struct list queued; /* in xfa_asks.queue or .later; on no list: sent */
	struct list waits;
	struct hold_slot slot;
	uint32_t shard, made;
	struct why why; /* why it was asked again */
};

struct batch {
	struct rpc_call call;
	struct xfa_asks *asks;
	struct hold_under under;
	struct buf body;
	size_t n;
	struct question *of[];
};

static const uint32_t method_of[] = {
	[XFA_PUBLISH] = METHOD_PUBLISH, [XFA_CONFIRM] = METHOD_CONFIRM
};

struct version_key {
	uint64_t version, generation;
	uint32_t shard, slot;
};

/* A CONFIRM has no slot: zeros. */
static struct version_key key_of(uint32_t shard, const struct hold_slot *s)
{
	return (struct version_key){ s->version, s->generation, shard, s->slot };
}

static bool same_version(const struct map_node *n, const void *key)
{
	const struct question *q = container_of(n, const struct question, node);
	struct version_key own = key_of(q->shard, &q->slot);
	return memcmp(&own, key, sizeof(own)) == 0;
}

/* ---- ends ---- */

static void question_free(struct xfa_asks *a, struct question *q)
{
	list_del(&q->queued);
	map_remove(&a->by_version, &q->node);
	free(q);
}

static void end(struct xfa_asks *a, struct question *q, enum err e, const char *text)
{
	struct list waits;
	list_init(&waits);
	while (!list_empty(
		&q->waits)) /* an end may begin another question of the same version */
		list_push_back(&waits, list_pop_front(&q->waits));
	uint32_t made = q->made;
	question_free(a, q);
	while (!list_empty(&waits)) {
		struct xfa_wait *w = list_entry(list_pop_front(&waits), struct xfa_wait, node);
		w->err = e;
		w->made = e ? 0 : made;
		w->on = NULL;
		if (e)
			why_note(&w->why, e, "%s", text);
		w->done(w);
	}
}

/* Will the same question be answered differently later? The rest ends those who wait: nobody waits
 * for what has already failed (T7). */
static bool again(enum err e)
{
	switch (e) {
	case ERR_STALE_TERM:
	case ERR_STALE_EPOCH: /* an adoption follows, then we know better */
	case ERR_CANCELLED:
	case ERR_CLOSED:
	case ERR_NOT_IN_ROSTER:
		return true;
	default:
		return err_retry(e) == ERR_RETRY_AFTER || err_retry(e) == ERR_RETRY_OTHER;
	}
}

static void flush_soon(struct xfa_asks *a);

/* Those that were to wait have waited. */
static void hurry(struct xfa_asks *a)
{
	timer_stop(a->x->svc.loop, &a->again);
	while (!list_empty(&a->later))
		list_push_back(&a->queue, list_pop_front(&a->later));
	if (!list_empty(&a->queue))
		flush_soon(a);
}

static void on_again(struct timer *t)
{
	hurry(container_of(t, struct xfa_asks, again));
}

static void ask_again(struct xfa_asks *a, struct question *q, enum err e, const char *text,
		      uint32_t retry_ms)
{
	struct loop *l = a->x->svc.loop;
	uint64_t due = clock_after_ms(loop_now_ns(l), retry_ms ? retry_ms : AGAIN_MS);
	metric_add(a->x->svc.metrics, XFA_M_ASKS, 1, 1);
	if (list_empty(&q->waits)) {
		question_free(a, q); /* I2 */
		return;
	}
	q->why = (struct why){ 0 };
	why_note(&q->why, e, "%s", text);
	list_push_back(&a->later, &q->queued);
	if (!timer_running(&a->again) || due < a->again.node.key)
		timer_start(l, &a->again, due, on_again);
}

static void answer(struct xfa_asks *a, struct question *q, enum err e, const char *text,
		   uint32_t retry_ms)
{
	struct xfa *x = a->x;
	if (a->stopped) {
		end(a, q, ERR_SHUTTING_DOWN, "the agent is stopping");
		return;
	}
	if (e && again(e)) {
		if (e == ERR_STALE_TERM || e == ERR_STALE_EPOCH || e == ERR_NOT_IN_ROSTER)
			xfa_link_doubt(x);
		ask_again(a, q, e, text, retry_ms);
		return;
	}
	metric_add(x->svc.metrics, XFA_M_ASKS, e ? 2 : 0, 1);
	if (e == ERR_NONE && a->kind == XFA_PUBLISH && !q->slot.retired)
		/* V6. NOT_FOUND: it was retired or freed since, which is no failure of the put. */
		(void)hold_published(x->hold, q->slot.slot, q->slot.generation,
				     q->slot.version);
	else if (e == ERR_NONE && a->kind == XFA_CONFIRM)
		hold_confirm(x->hold, q->shard, q->slot.version);
	end(a, q, e, text);
}

/* ---- a message ---- */

static enum err decode(struct batch *b, struct arena *arena, struct msg_results_rep *m,
		       struct why *why)
{
	struct dec d = DEC_INIT(b->call.reply, arena, why);
	enum err e = dec_results_rep(&d, m);
	if (e == ERR_NONE && m->items.n != b->n)
		e = why_set(why, ERR_BAD_MESSAGE, "%s: %zu answers to %zu questions",
			    method_name(b->call.method), m->items.n, b->n);
	return e;
}

static void one_answer(struct xfa_asks *a, struct question *q, const struct msg_result *r)
{
	char text[321];
	enum err e = (enum err)r->status;
	size_t n = MIN_OF(r->text.n, sizeof(text) - 1);
	if (n)
		memcpy(text, r->text.p, n);
	text[n] = '\0';
	q->made = r->made;
	answer(a, q, e, n || !e ? text : err_text(e), r->retry_ms);
}

static void on_answer(struct rpc_call *c)
{
	struct batch *b = container_of(c, struct batch, call);
	struct xfa_asks *a = b->asks;
	struct arena arena = ARENA_INIT(ARENA_BYTES);
	struct msg_results_rep m;
	struct why why = c->why;
	enum err e = c->err ? c->err : decode(b, &arena, &m, &why);
	a->n_calls--;
	for (size_t i = 0; i < b->n; i++)
		if (e)
			answer(a, b->of[i], e, why.err ? why.text : err_text(e), c->retry_ms);
		else
			one_answer(a, b->of[i], &m.items.p[i]);
	arena_fini(&arena);
	buf_fini(&b->body);
	free(b);
	if (!list_empty(&a->queue))
		flush_soon(a);
}

static void encode_publish(struct batch *b, const struct msg_under *u,
			   struct msg_publish_item *items)
{
	struct msg_publish_req m = { .holder = BYTES_STR(b->asks->x->svc.id),
				     .under = u,
				     .items = { items, b->n } };
	for (size_t i = 0; i < b->n; i++) {
		const struct hold_slot *s = &b->of[i]->slot;
		items[i] = (struct msg_publish_item){ .slot = s->slot,
						      .generation = s->generation,
						      .version = s->version,
						      .sum = s->sum,
						      .retired = s->retired };
	}
	enc_publish_req(&b->body, &m);
}

static void encode_confirm(struct batch *b, const struct msg_under *u, uint64_t *versions)
{
	struct msg_confirm_req m = { .holder = BYTES_STR(b->asks->x->svc.id),
				     .under = u,
				     .versions = { versions, b->n } };
	for (size_t i = 0; i < b->n; i++)
		versions[i] = b->of[i]->slot.version;
	enc_confirm_req(&b->body, &m);
}

static enum err encode(struct batch *b)
{
	struct msg_under u = { b->under.shard, b->under.term, b->under.adoption,
			       b->under.pool_epoch };
	void *room = calloc(b->n + 1, sizeof(struct msg_publish_item));
	if (!room)
		return ERR_NO_MEMORY;
	b->body = BUF_INIT(WIRE_MESSAGE_MAX / 2);
	if (b->asks->kind == XFA_PUBLISH)
		encode_publish(b, &u, room);
	else
		encode_confirm(b, &u, room);
	free(room);
	return buf_err(&b->body);
}

/* The first of the queue and all others of its shard, up to a message's worth. */
static struct batch *take_batch(struct xfa_asks *a)
{
	size_t most = MIN_OF(a->by_version.n, (size_t)XFA_ITEMS_MAX);
	struct batch *b = calloc(1, sizeof(*b) + most * sizeof(b->of[0]));
	if (!b)
		return NULL;
	uint32_t shard = list_entry(a->queue.next, struct question, queued)->shard;
	list_for_each_safe (it, &a->queue) {
		struct question *q = list_entry(it, struct question, queued);
		if (q->shard != shard || b->n == most)
			continue;
		list_del(&q->queued);
		b->of[b->n++] = q;
	}
	b->asks = a;
	b->under = hold_under(a->x->hold, shard);
	return b;
}

static void send_batch(struct xfa_asks *a, struct batch *b)
{
	struct xfa *x = a->x;
	enum err e = encode(b);
	if (e) {
		for (size_t i = 0; i < b->n; i++)
			answer(a, b->of[i], e, err_text(e), 0);
		buf_fini(&b->body);
		free(b);
		return;
	}
	b->call = (struct rpc_call){ .method = method_of[a->kind],
				     .shard = b->under.shard,
				     .idempotent = true,
				     .deadline_ns = loop_now_ns(x->svc.loop) + CALL_NS,
				     .body = buf_bytes(&b->body),
				     .done = on_answer };
	a->n_calls++;
	metric_add(x->svc.metrics, XFA_M_BATCHES, a->kind, 1);
	rpc_send(x->link.client, &b->call);
	if (a->kind == XFA_PUBLISH)
		FAULT_AT(commit_published);
}

/* Those that nobody waits for any more are forgotten here, not sent (I2). */
static void drop_idle(struct xfa_asks *a)
{
	list_for_each_safe (it, &a->queue) {
		struct question *q = list_entry(it, struct question, queued);
		if (list_empty(&q->waits))
			question_free(a, q);
	}
}

static void on_flush(struct post *p)
{
	struct xfa_asks *a = container_of(p, struct xfa_asks, post);
	a->posted = false;
	if (a->stopped)
		return;
	drop_idle(a);
	while (!list_empty(&a->queue) && a->n_calls < CALLS_MAX) {
		struct batch *b = take_batch(a);
		if (b) {
			send_batch(a, b);
			continue;
		}
		struct question *q = list_entry(a->queue.next, struct question, queued);
		list_del(&q->queued);
		ask_again(a, q, ERR_NO_MEMORY, err_text(ERR_NO_MEMORY), 0);
	}
}

static void flush_soon(struct xfa_asks *a)
{
	if (a->posted || a->stopped)
		return;
	a->posted = true;
	a->post.fn = on_flush;
	loop_defer(a->x->svc.loop, &a->post);
}

/* ---- calls ---- */

enum err xfa_ask(struct xfa *x, enum xfa_ask_kind k, uint32_t shard, const struct hold_slot *s,
		 struct xfa_wait *w)
{
	struct xfa_asks *a = &x->asks[k];
	struct version_key key = key_of(shard, s);
	uint64_t hash = sum64(&key, sizeof(key));
	if (a->stopped)
		return ERR_SHUTTING_DOWN;
	struct map_node *n = map_find(&a->by_version, hash, same_version, &key);
	struct question *q = n ? container_of(n, struct question, node) : NULL;
	if (q) {
		metric_inc(x->svc.metrics, XFA_M_COALESCED); /* I1 */
		list_push_back(&q->waits, &w->node);
		w->on = q;
		return ERR_NONE;
	}
	q = malloc(sizeof(*q));
	if (!q)
		return ERR_NO_MEMORY;
	memset(q, 0, offsetof(struct question, why.text));
	q->slot = *s;
	q->shard = shard;
	enum err e = map_insert(&a->by_version, &q->node, hash);
	if (e) {
		free(q);
		return e;
	}
	list_init(&q->waits);
	list_push_back(&q->waits, &w->node);
	w->on = q;
	list_push_back(&a->queue, &q->queued);
	flush_soon(a);
	return ERR_NONE;
}

void xfa_ask_drop(struct xfa_wait *w)
{
	const struct question *q = w->on;
	list_del(&w->node);
	if (q && q->why.err)
		w->why = q->why;
	w->on = NULL;
}

void xfa_asks_kick(struct xfa *x)
{
	for (int k = 0; k < XFA_ASK_KINDS; k++)
		hurry(&x->asks[k]);
}

void xfa_asks_init(struct xfa *x)
{
	for (int k = 0; k < XFA_ASK_KINDS; k++) {
		struct xfa_asks *a = &x->asks[k];
		*a = (struct xfa_asks){ .x = x, .kind = (enum xfa_ask_kind)k };
		map_init(&a->by_version, x->commits_max);
		list_init(&a->queue);
		list_init(&a->later);
	}
}

void xfa_asks_stop(struct xfa *x)
{
	for (int k = 0; k < XFA_ASK_KINDS; k++) {
		struct xfa_asks *a = &x->asks[k];
		hurry(a);
		a->stopped = true;
		while (!list_empty(&a->queue))
			end(a, list_entry(a->queue.next, struct question, queued),
			    ERR_SHUTTING_DOWN, "the agent is stopping");
	}
}

void xfa_asks_fini(struct xfa *x)
{
	for (int k = 0; k < XFA_ASK_KINDS; k++) {
		assert(x->asks[k].by_version.n == 0 && !x->asks[k].posted);
		map_fini(&x->asks[k].by_version);
	}
}
