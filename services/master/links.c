/* SPDX-License-Identifier: Apache-2.0 */
#include "links_priv.h"
#include "rpc/addr.h"
#include "rpc/ticket.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A holder answers from memory; ADOPT writes its superblock and looks at every hazard. */
#define COMMAND_MS     2000
#define ADOPT_MS       5000
#define BACKOFF_MIN_MS 50
#define BACKOFF_MAX_MS 2000

static const uint32_t methods[LINK_OPS] = {
	[MIND_ADOPT] = METHOD_ADOPT,   [MIND_INVENTORY] = METHOD_INVENTORY,
	[MIND_RETIRE] = METHOD_RETIRE, [MIND_FREE] = METHOD_FREE,
	[MIND_MARK] = METHOD_MARK,     [MIND_FENCE] = METHOD_FENCE,
	[MIND_COPY] = METHOD_COPY,
};

static struct mst_link *link_of(const struct mst *m, uint32_t index)
{
	return index < MST_LINKS_MAX && m->links.by_index ? m->links.by_index[index] : NULL;
}

static struct mst_link *link_get(struct mst *m, uint32_t index)
{
	struct mst_link *k = link_of(m, index);
	if (k || index >= MST_LINKS_MAX)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->m = m;
	k->index = index;
	for (size_t i = 0; i < LINK_LANES; i++) {
		struct lane *l = &k->lanes[i];
		*l = (struct lane){ .link = k,
				    .op = i < LINK_OPS ? (enum mind_op)i : MIND_INVENTORY };
		list_init(&l->queue);
		list_init(&l->sent);
	}
	m->links.by_index[index] = k;
	m->links.n = MAX_OF(m->links.n, index + 1);
	return k;
}

/* Its name; commands may come before the mind can be asked for it. */
static enum err learn(struct mst_link *k, struct mind_holder *h, struct why *why)
{
	if (!mind_holder(k->m->term.mind, k->index, h))
		return why_set(why, ERR_NOT_FOUND, "holder %u is gone", k->index);
	snprintf(k->id, sizeof(k->id), "%s", h->id);
	return ERR_NONE;
}

static void mark_dirty(struct mst_link *k)
{
	if (!list_linked(&k->dirty))
		list_push_back(&k->m->links.dirty, &k->dirty);
}

/* ---- connections ---- */

static void free_all(struct mst *m);

static void on_client_closed(void *arg)
{
	struct mst *m = arg;
	if (--m->links.n_closing == 0 && m->links.closed)
		free_all(m);
}

static void hang_up(struct mst_link *k)
{
	if (!k->client)
		return;
	k->m->links.n_closing++;
	rpc_client_close(TAKE(k->client), on_client_closed, k->m);
}

static void join_addrs(const struct mind_holder *h, struct buf *out)
{
	for (size_t i = 0; i < h->n_addrs; i++)
		buf_printf(out, "%s\n", h->addrs[i]);
	buf_put(out, "", 1);
}

static enum err dial(struct mst_link *k, const struct mind_holder *h, struct why *why)
{
	struct svc *s = &k->m->svc;
	const struct svc_conf *c = &s->conf;
	const char *addrs[8];
	size_t n = 0;
	for (size_t i = 0; i < h->n_addrs && n < ARRAY_LEN(addrs); i++)
		if (!addr_is_data(h->addrs[i]))
			addrs[n++] = h->addrs[i];
	struct rpc_client_opts o = {
		.limits = { .message_bytes_max = (uint32_t)c->message_max },
		.addrs = addrs,
		.n_addrs = n,
		.peer_name = k->id,
		.as = ROLE_SERVICE,
		.expect = ROLE_HOLDER,
		.expect_holder = k->id,
		.keys = s->keys,
		.log = &s->log,
		.instance = s->instance,
		.tls = { c->tls_ca[0] ? c->tls_ca : NULL, c->tls_cert[0] ? c->tls_cert : NULL,
			 c->tls_key[0] ? c->tls_key : NULL },
		.backoff_max_ms = 500,
	};
	if (n == 0)
		return why_set(why, ERR_INVALID_PARAMS, "%s registered no address", k->id);
	return rpc_client_new(s->loop, &o, &k->client, why);
}

/* A holder that registered under other addresses is dialed there. */
static enum err link_up(struct mst_link *k, struct why *why)
{
	struct mind_holder h;
	struct buf addrs = BUF_INIT(8 * 300);
	enum err e = learn(k, &h, why);
	if (e)
		return e;
	join_addrs(&h, &addrs);
	e = buf_err(&addrs);
	if (e) {
		buf_fini(&addrs);
		return why_set(why, e, "addresses of %s: %s", k->id, err_text(e));
	}
	if (k->client && strcmp(k->addrs, (char *)addrs.p) != 0)
		hang_up(k);
	if (k->client) {
		buf_fini(&addrs);
		return ERR_NONE;
	}
	free(k->addrs);
	k->addrs = (char *)addrs.p; /* taken */
	return dial(k, &h, why);
}

/* ---- failures ---- */

static void clear_queues(struct mst_link *k)
{
	for (size_t i = 0; i < LINK_LANES; i++)
		link_drop(&k->lanes[i].queue, &k->lanes[i].n_queue);
}

static void on_retry(struct timer *t)
{
	struct mst_link *k = container_of(t, struct mst_link, retry);
	struct mind *mind = mst_mind(k->m);
	enum err e = k->refused_err;
	bool refused = k->refused;
	if (!mind)
		return;
	clear_queues(k); /* all of it is said again */
	k->lost = k->refused = false;
	if (refused)
		mind_refused(mind, k->index, &k->refused_under, e);
	mind_resend(mind, k->index);
}

/* L2: once nothing is on the wire, and after a while. */
static void back_off(struct mst_link *k)
{
	if (k->n_busy > 0 || timer_running(&k->retry) || !k->m->term.mind)
		return;
	k->backoff_ms = MIN_OF(MAX_OF(k->backoff_ms * 2, BACKOFF_MIN_MS), BACKOFF_MAX_MS);
	timer_start(k->m->svc.loop, &k->retry,
		    clock_after_ms(loop_now_ns(k->m->svc.loop), k->backoff_ms), on_retry);
}

static void failed(struct lane *l, enum err e, const struct why *why)
{
	struct mst_link *k = l->link;
	bool refused = e == ERR_STALE_TERM || e == ERR_STALE_EPOCH || e == ERR_BAD_MESSAGE;
	metric_add(k->m->svc.metrics, MST_M_COMMAND_CALLS, refused ? 2 : 1, 1);
	if (!k->lost && k->backoff_ms == 0) /* the first of a row */
		LOG_WARN(&k->m->svc.log, "link", "holder=%s method=%s err=%s msg=\"%s\"", k->id,
			 method_name(methods[l->op]), err_name(e), why->text);
	k->lost = true;
	if (e == ERR_TIMED_OUT)
		hang_up(k); /* a connection that swallows is found dead only after a long while */
	if (refused && !k->refused) {
		k->refused = true;
		k->refused_err = e;
		k->refused_under = l->under;
	}
}

/* ---- calls ---- */

static void on_done(struct rpc_call *c)
{
	struct lane *l = container_of(c, struct lane, call);
	struct mst_link *k = l->link;
	struct why why = c->why;
	enum err e = c->err;
	bool mine = !l->dropped && !l->ahead && k->m->term.mind;
	l->busy = l->ahead = false;
	k->n_busy--;
	if (mine && e == ERR_NONE) {
		why = (struct why){ 0 };
		e = link_answer(l, c->reply, &why);
	}
	if (mine && e != ERR_NONE && link_copies_refused(l, e, c->retry_ms))
		e = ERR_NONE;
	link_drop(&l->sent, &l->n_sent);
	if (mine && e == ERR_NONE) {
		metric_add(k->m->svc.metrics, MST_M_COMMAND_CALLS, 0, 1);
		k->backoff_ms = 0;
	} else if (mine) {
		failed(l, e, &why);
	}
	if (k->lost)
		back_off(k);
	mark_dirty(k);
	mst_mind(k->m); /* for its turn */
}

static void send_lane(struct lane *l)
{
	struct mst_link *k = l->link;
	struct why why = { 0 };
	enum err e = link_up(k, &why);
	if (e == ERR_NONE) {
		e = link_encode(l, (uint32_t)k->m->conf.inventory_bytes);
		why_note(&why, e, "%s", err_text(e));
		if (e == ERR_NONE && l->n_sent == 0)
			return; /* copies that have ended before they were said */
	}
	if (e) {
		l->ahead = false;
		failed(l, e, &why);
		link_drop(&l->sent, &l->n_sent);
		back_off(k);
		return;
	}
	uint64_t ms = l->op == MIND_ADOPT ? ADOPT_MS : COMMAND_MS;
	l->busy = true;
	l->dropped = false;
	k->n_busy++;
	l->call = (struct rpc_call){
		.method = methods[l->op],
		.shard = l->under.shard,
		.idempotent = true,
		.deadline_ns = clock_after_ms(loop_now_ns(k->m->svc.loop), ms),
		.body = buf_bytes(&l->body),
		.done = on_done,
	};
	rpc_send(k->client, &l->call);
}

void mst_links_flush(struct mst *m)
{
	for (struct list *x; (x = list_pop_front(&m->links.dirty));) {
		struct mst_link *k = list_entry(x, struct mst_link, dirty);
		for (size_t i = 0; i < LINK_LANES && !k->lost; i++)
			if (!k->lanes[i].busy && k->lanes[i].n_queue > 0)
				send_lane(&k->lanes[i]);
	}
}

/* ---- commands ---- */

/* L3. What is on the wire goes to an older adoption, perhaps to a process that is gone: who is adopted anew and
 * still owes an answer is dialed anew, too. It may have registered again for want of what its connection swallows,
 * and each such adoption ends the calls whose deadlines would tell. */
static void begin_anew(struct mst_link *k)
{
	bool owes = false;
	clear_queues(k);
	timer_stop(k->m->svc.loop, &k->retry);
	k->lost = k->refused = false;
	for (size_t i = 0; i < LINK_LANES; i++)
		if (k->lanes[i].busy && !k->lanes[i].dropped) {
			owes = k->lanes[i].dropped = true;
			rpc_cancel(&k->lanes[i].call);
		}
	if (k->client && (owes || !rpc_client_up(k->client)))
		hang_up(k);
}

static bool keep(struct lane *l, const struct mind_cmd *c)
{
	struct link_cmd *x = NULL;
	if (l->n_queue < MST_LINK_QUEUE_MAX)
		x = malloc(sizeof(*x) + c->n_extents * sizeof(x->extents[0]));
	if (!x)
		return false;
	*x = (struct link_cmd){ .c = *c };
	x->c.extents = x->extents;
	if (c->n_extents)
		memcpy(x->extents, c->extents, c->n_extents * sizeof(x->extents[0]));
	list_push_back(&l->queue, &x->node);
	l->n_queue++;
	return true;
}

void link_ahead(struct lane *l, uint64_t cursor)
{
	struct mst_link *k = l->link;
	bool first = l == &k->lanes[MIND_INVENTORY];
	struct lane *other = &k->lanes[first ? (size_t)LINK_OPS : (size_t)MIND_INVENTORY];
	struct mind_cmd c = {
		.op = MIND_INVENTORY, .holder = k->index, .under = l->under, .cursor = cursor
	};
	if (other->busy || other->n_queue > 0 || k->lost || !keep(other, &c))
		return;
	other->ahead = true;
	send_lane(other);
}

/* The piece asked for is on its way; otherwise what else was to be asked for is out of date. */
static bool comes_already(struct mst_link *k, const struct mind_cmd *c)
{
	struct lane *lanes[] = { &k->lanes[MIND_INVENTORY], &k->lanes[LINK_OPS] };
	for (size_t i = 0; i < ARRAY_LEN(lanes); i++) {
		struct lane *l = lanes[i];
		const struct link_cmd *x = list_entry(l->sent.next, struct link_cmd, node);
		link_drop(&l->queue, &l->n_queue);
		if (!l->busy || l->dropped || x->c.cursor != c->cursor ||
		    !link_same_under(&l->under, &c->under))
			continue;
		l->ahead = false;
		return true;
	}
	return false;
}

void mst_links_command(void *ctx, const struct mind_cmd *c)
{
	struct mst *m = ctx;
	struct mst_link *k = link_get(m, c->holder);
	metric_add(m->svc.metrics, MST_M_COMMANDS, (unsigned)c->op, 1);
	if (!k) {
		svc_fail(&m->svc, ERR_NO_MEMORY, "holder %u: no memory for its commands",
			 c->holder);
		return;
	}
	if (c->op == MIND_ADOPT)
		begin_anew(k);
	if (k->lost || (c->op == MIND_INVENTORY && comes_already(k, c)))
		return; /* the back-off ends with mind_resend */
	if (!keep(&k->lanes[c->op], c)) {
		metric_inc(m->svc.metrics, MST_M_COMMANDS_LOST);
		k->lost = true;
		back_off(k);
	}
	mark_dirty(k);
}

/* ---- life, and what others ask ---- */

enum err mst_links_open(struct mst *m)
{
	struct mst_links *s = &m->links;
	*s = (struct mst_links){ 0 };
	list_init(&s->dirty);
	s->by_index = calloc(MST_LINKS_MAX, sizeof(s->by_index[0]));
	return s->by_index ? ERR_NONE : ERR_NO_MEMORY;
}

static void link_free(struct mst_link *k)
{
	timer_stop(k->m->svc.loop, &k->retry);
	for (size_t i = 0; i < LINK_LANES; i++) {
		link_drop(&k->lanes[i].queue, &k->lanes[i].n_queue);
		link_drop(&k->lanes[i].sent, &k->lanes[i].n_sent);
		buf_fini(&k->lanes[i].body);
	}
	ticket_key_free(k->key);
	free(k->addrs);
	free(k);
}

/* Calls have ended with their clients: their memory goes. */
static void free_all(struct mst *m)
{
	struct mst_links *s = &m->links;
	void (*closed)(void *) = s->closed;
	void *closed_arg = s->arg;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->by_index[i])
			link_free(s->by_index[i]);
	free(s->by_index);
	*s = (struct mst_links){ 0 };
	closed(closed_arg);
}

void mst_links_close(struct mst *m, void (*closed)(void *arg), void *arg)
{
	struct mst_links *s = &m->links;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->by_index[i]) {
			timer_stop(m->svc.loop, &s->by_index[i]->retry);
			hang_up(s->by_index[i]);
		}
	bool wait = s->n_closing > 0;
	s->closed = closed;
	s->arg = arg;
	if (!wait)
		free_all(m);
}

enum err mst_links_ticket_key(struct mst *m, uint32_t index, struct ticket_key **out)
{
	struct mst_link *k = link_get(m, index);
	struct mind_holder h;
	enum err e = k ? ERR_NONE : ERR_NO_MEMORY;
	if (e == ERR_NONE && !k->key)
		e = learn(k, &h, NULL);
	if (e == ERR_NONE && !k->key)
		e = ticket_key_new(m->svc.keys, k->id, &k->key);
	if (e == ERR_NONE)
		*out = k->key;
	return e;
}

void mst_links_heard(struct mst *m, uint32_t index)
{
	struct mst_link *k = link_get(m, index);
	if (k)
		k->heard_ns = loop_now_ns(m->svc.loop);
}

uint64_t mst_links_heard_ns(const struct mst *m, uint32_t index)
{
	const struct mst_link *k = link_of(m, index);
	return k ? k->heard_ns : 0;
}

void mst_links_beats(struct mst *m, uint32_t index)
{
	struct mst_link *k = link_of(m, index);
	if (k)
		k->beats = true;
}

bool mst_links_beatless(const struct mst *m, uint32_t index)
{
	const struct mst_link *k = link_of(m, index);
	return k && k->heard_ns && !k->beats;
}
