/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/holder.h"

#include "rpc/auth.h"
#include "rpc/ticket.h"
#include "svc/beat.h"

#include <stdio.h>
#include <string.h>

#define REGISTER_MS 300
#define CALL_MS	    1500

/* One run. */
struct run {
	struct cl_run *cl;
	struct holder *h;
	struct log log;
	struct log_capture quiet;
	uint8_t instance[16];
	struct rpc_server *server;
	struct rpc_client *master;
	struct beat_sender *beats;
	struct ticket_key *key;
	struct timer timer;
	struct rpc_call call; /* REGISTER */
	struct buf body;
	bool calling, stopping;
	struct list parked;
	uint32_t n_open;
};

/* A request that is answered later. */
struct item {
	struct list node;
	struct run *run;
	struct rpc_req *req;
	struct timer timer;
	struct buf reply;
	enum err err;
	/* COMMIT: its PUBLISH */
	struct rpc_call call;
	struct buf body;
	size_t n;
	uint32_t slots[64];
};

static void no_log(struct log_capture *cap, const char *line, size_t n)
{
	(void)cap, (void)line, (void)n;
}

static struct msg_under under_of(const struct holder *h)
{
	return (struct msg_under){ 0, h->term, h->adoption, h->epoch };
}

/* ---- answers, with the script ---- */

static void item_free(struct item *i)
{
	timer_stop(&i->run->cl->loop, &i->timer);
	list_del(&i->node);
	buf_fini(&i->reply);
	buf_fini(&i->body);
	free(i);
}

static void item_answer(struct item *i)
{
	rpc_reply(i->req, i->err, i->err ? 20 : 0,
		  i->err ? BYTES(NULL, 0) : buf_bytes(&i->reply));
	item_free(i);
}

static void on_time(struct timer *t)
{
	item_answer(container_of(t, struct item, timer));
}

static struct item *item_new(struct run *x, struct rpc_req *r)
{
	struct item *i = calloc(1, sizeof(*i));
	SIM_CHECK(i, "no memory");
	i->run = x;
	i->req = r;
	i->reply.limit = i->body.limit = WIRE_MESSAGE_MAX;
	list_push_back(&x->parked, &i->node);
	return i;
}

static struct holder_rule *rule_of(struct holder *h, uint32_t method)
{
	for (size_t i = 0; i < HOLDER_RULES; i++)
		if (h->rule[i].times > 0 && h->rule[i].method == method)
			return &h->rule[i];
	return NULL;
}

/* b is taken. */
static void answer(struct run *x, struct rpc_req *r, struct buf *b)
{
	struct holder_rule *rule = rule_of(x->h, r->method);
	struct item *i = item_new(x, r);
	i->reply = *b;
	if (!rule) {
		item_answer(i);
		return;
	}
	if (rule->skip > 0) {
		rule->skip--;
		item_answer(i);
		return;
	}
	rule->times -= rule->times != UINT32_MAX;
	i->err = rule->err;
	if (rule->garbage) {
		buf_clear(&i->reply);
		buf_put(&i->reply, "\xc1\xff", 2);
	}
	if (rule->mute)
		return;
	timer_start(&x->cl->loop, &i->timer,
		    clock_after_ms(loop_now_ns(&x->cl->loop), rule->delay_ms), on_time);
}

static enum err item_err(struct holder *h, uint32_t method)
{
	const struct holder_rule *r = rule_of(h, method);
	return r ? r->item_err : ERR_NONE;
}

static bool refuses(struct run *x, struct rpc_req *r, const struct msg_under *u)
{
	const struct holder *h = x->h;
	enum err e = ERR_NONE;
	if (!u || u->term != h->term || u->adoption != h->adoption)
		e = ERR_STALE_TERM;
	else if (u->pool_epoch != h->epoch)
		e = ERR_STALE_EPOCH;
	if (e)
		rpc_reply(r, e, 0, BYTES(NULL, 0));
	return e != ERR_NONE;
}

/* ---- the master's commands ---- */

static void count(struct holder *h, const struct rpc_req *r, size_t items)
{
	h->got[r->method - METHOD_ADOPT].calls++;
	h->got[r->method - METHOD_ADOPT].items += items;
}

static void on_adopt(void *ctx, struct rpc_req *r)
{
	struct run *x = ctx;
	struct holder *h = x->h;
	struct msg_under q;
	struct arena a = ARENA_INIT(1u << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	SIM_CHECK(dec_under(&d, &q) == ERR_NONE, "ADOPT cannot be read");
	count(h, r, 1);
	if (q.term < h->term || (q.term == h->term && q.adoption < h->adoption)) {
		rpc_reply(r, ERR_STALE_TERM, 0, BYTES(NULL, 0));
		return;
	}
	h->epoch += q.term != h->term || q.adoption != h->adoption; /* V10 */
	h->term = q.term;
	h->adoption = q.adoption;
	struct msg_under u = under_of(h);
	struct msg_segment s = { 0, h->unready ? 0 : h->bytes, h->bytes };
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_adopt_rep(&b, &(struct msg_adopt_rep){ &u, { &s, 1 } });
	arena_fini(&a);
	answer(x, r, &b);
}

static struct msg_entry entry_of(const struct holder *h, size_t i, struct msg_extent *e)
{
	const struct holder_slot *s = &h->slots[i];
	*e = (struct msg_extent){ s->extent.segment, s->extent.offset, s->extent.bytes };
	return (struct msg_entry){ .slot = (uint32_t)i,
				   .generation = s->generation,
				   .state = s->state,
				   .reason = s->reason,
				   .evict_id = s->evict_id,
				   .published = s->published,
				   .tenant = BYTES_STR(s->tenant),
				   .key = BYTES(s->key, s->n_key),
				   .version = s->version,
				   .size = s->size,
				   .sum = s->sum,
				   .extents = { e, s->extent.bytes > 0 } };
}

static void on_inventory(void *ctx, struct rpc_req *r)
{
	struct run *x = ctx;
	struct holder *h = x->h;
	struct msg_inventory_req q;
	struct arena a = ARENA_INIT(64u << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	SIM_CHECK(dec_inventory_req(&d, &q) == ERR_NONE, "INVENTORY cannot be read");
	count(h, r, 1);
	size_t max = q.bytes_max / 128 + 1, n = 0, i = q.cursor;
	struct msg_entry *en = arena_alloc(&a, max * sizeof(*en));
	struct msg_extent *ex = arena_alloc(&a, max * sizeof(*ex));
	struct msg_under u = under_of(h);
	SIM_CHECK(en && ex, "no memory");
	if (refuses(x, r, q.under)) {
		arena_fini(&a);
		return;
	}
	for (; i < h->n_slots && n < max; i++)
		if (h->slots[i].state) {
			en[n] = entry_of(h, i, &ex[n]);
			n++;
		}
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	enc_inventory_rep(&b, &(struct msg_inventory_rep){ .under = &u,
							   .entries = { en, n },
							   .cursor = i < h->n_slots ? i : 0 });
	arena_fini(&a);
	answer(x, r, &b);
}

static enum err change(struct holder *h, uint32_t method, const struct msg_retire_item *it)
{
	struct holder_slot *s = it->slot < h->n_slots ? &h->slots[it->slot] : NULL;
	if (!s || s->generation != it->generation)
		return ERR_NOT_FOUND;
	if (method == METHOD_FREE) {
		if (s->state != 2)
			return ERR_NOT_FOUND;
		s->generation++;
		s->state = 0;
		return ERR_NONE;
	}
	if (s->version != it->version || s->state == 0)
		return ERR_NOT_FOUND;
	if (method == METHOD_MARK) {
		s->published = true;
	} else if (s->state == 1) {
		s->state = 2;
		s->reason = it->reason;
		s->evict_id = it->evict_id;
	}
	return ERR_NONE;
}

static void on_slots(void *ctx, struct rpc_req *r)
{
	struct run *x = ctx;
	struct msg_retire_req q;
	struct arena a = ARENA_INIT(8u << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	SIM_CHECK(dec_retire_req(&d, &q) == ERR_NONE, "%s cannot be read",
		  method_name(r->method));
	count(x->h, r, q.items.n);
	struct msg_result *res = arena_alloc(&a, (q.items.n + 1) * sizeof(*res));
	SIM_CHECK(res, "no memory");
	const struct holder_rule *rule = rule_of(x->h, r->method);
	bool refused = (!rule || rule->err == ERR_NONE) && refuses(x, r, q.under);
	enum err e = item_err(x->h, r->method);
	for (size_t i = 0; !refused && i < q.items.n; i++)
		res[i] = (struct msg_result){
			.status = e ? e : change(x->h, r->method, &q.items.p[i])
		};
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	if (!refused)
		enc_results_rep(&b, &(struct msg_results_rep){ { res, q.items.n } });
	arena_fini(&a);
	if (!refused)
		answer(x, r, &b);
}

static struct msg_fence_res fence(const struct holder *h, uint64_t version)
{
	for (size_t i = 0; i < h->n_slots; i++)
		if (h->slots[i].state && h->slots[i].version == version)
			return (struct msg_fence_res){ 1, (uint32_t)i, h->slots[i].generation,
						       h->slots[i].sum };
	return (struct msg_fence_res){ .state = 2 };
}

static void on_fence(void *ctx, struct rpc_req *r)
{
	struct run *x = ctx;
	struct msg_fence_req q;
	struct arena a = ARENA_INIT(8u << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	SIM_CHECK(dec_fence_req(&d, &q) == ERR_NONE, "FENCE cannot be read");
	count(x->h, r, q.items.n);
	struct msg_fence_res *res = arena_alloc(&a, (q.items.n + 1) * sizeof(*res));
	SIM_CHECK(res, "no memory");
	bool refused = refuses(x, r, q.under);
	for (size_t i = 0; !refused && i < q.items.n; i++)
		res[i] = fence(x->h, q.items.p[i].version);
	struct buf b = BUF_INIT(WIRE_MESSAGE_MAX);
	if (!refused)
		enc_fence_rep(&b, &(struct msg_fence_rep){ { res, q.items.n } });
	arena_fini(&a);
	if (!refused)
		answer(x, r, &b);
}

/* ---- COMMIT and its PUBLISH ---- */

static struct holder_slot *slot_new(struct holder *h)
{
	for (size_t i = 0; i < h->n_slots; i++)
		if (h->slots[i].state == 0)
			return &h->slots[i];
	size_t n = MAX_OF(h->n_slots * 2, (size_t)16);
	struct holder_slot *p = realloc(h->slots, n * sizeof(*p));
	SIM_CHECK(p, "no memory");
	memset(p + h->n_slots, 0, (n - h->n_slots) * sizeof(*p));
	h->slots = p;
	p += h->n_slots;
	h->n_slots = n;
	return p;
}

static struct holder_slot *slot_of_version(struct holder *h, uint64_t version)
{
	for (size_t i = 0; i < h->n_slots; i++)
		if (h->slots[i].state && h->slots[i].version == version)
			return &h->slots[i];
	return NULL;
}

static void on_published(struct rpc_call *c)
{
	struct item *i = container_of(c, struct item, call);
	struct msg_results_rep m;
	struct arena a = ARENA_INIT(1u << 20);
	struct dec d = DEC_INIT(c->reply, &a, NULL);
	i->run->n_open--;
	i->err = c->err;
	if (c->err == ERR_NONE) {
		SIM_CHECK(dec_results_rep(&d, &m) == ERR_NONE && m.items.n == i->n,
			  "PUBLISH: the answer cannot be read");
		for (size_t k = 0; k < i->n; k++)
			if (m.items.p[k].status == ERR_NONE)
				i->run->h->slots[i->slots[k]].published = true;
		buf_put(&i->reply, c->reply.p, c->reply.n);
	}
	arena_fini(&a);
	item_answer(i);
}

static void publish(struct run *x, struct rpc_req *r, const struct msg_publish_item *items,
		    size_t n)
{
	struct item *i = item_new(x, r);
	struct msg_under u = under_of(x->h);
	i->n = n;
	for (size_t k = 0; k < n; k++)
		i->slots[k] = items[k].slot;
	enc_publish_req(&i->body,
			&(struct msg_publish_req){ BYTES_STR(x->h->id), &u, { items, n } });
	i->call = (struct rpc_call){ .method = METHOD_PUBLISH,
				     .idempotent = true,
				     .deadline_ns = r->deadline_ns,
				     .body = buf_bytes(&i->body),
				     .done = on_published };
	x->n_open++;
	rpc_send(x->master, &i->call);
}

static enum err commit_one(struct run *x, const struct msg_commit_item *it, struct arena *a,
			   struct msg_publish_item *out)
{
	struct holder *h = x->h;
	struct msg_ticket t;
	enum err e = ticket_open(x->key, it->ticket, a, &t, NULL);
	if (e)
		return e;
	struct holder_slot *s = slot_of_version(h, t.version);
	if (!s && t.pool_epoch != h->epoch)
		return ERR_STALE_EPOCH;
	if (!s) {
		s = slot_new(h);
		*s = (struct holder_slot){ .state = 1,
					   .generation = s->generation,
					   .version = t.version,
					   .size = t.size,
					   .sum = it->sum,
					   .n_key = t.key.n };
		SIM_CHECK(t.key.n <= HOLDER_KEY_MAX && t.extents.n <= 1, "beyond the script");
		memcpy(s->key, t.key.p, t.key.n);
		memcpy(s->tenant, t.tenant.p, t.tenant.n);
		if (t.extents.n)
			s->extent =
				(struct extent){ t.extents.p[0].segment, t.extents.p[0].offset,
						 t.extents.p[0].bytes };
	}
	*out = (struct msg_publish_item){ (uint32_t)(s - h->slots), s->generation, s->version,
					  s->sum, s->state == 2 };
	return ERR_NONE;
}

static void on_commit(void *ctx, struct rpc_req *r)
{
	struct run *x = ctx;
	struct msg_commit_req q;
	struct msg_publish_item items[64];
	struct arena a = ARENA_INIT(8u << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	SIM_CHECK(dec_commit_req(&d, &q) == ERR_NONE && q.items.n <= 64, "COMMIT");
	enum err e = ERR_NONE;
	for (size_t i = 0; i < q.items.n && e == ERR_NONE; i++)
		e = commit_one(x, &q.items.p[i], &a, &items[i]);
	if (e)
		rpc_reply(r, e, 0, BYTES(NULL, 0));
	else
		publish(x, r, items, q.items.n);
	arena_fini(&a);
}

/* ---- REGISTER ---- */

static void tick(struct timer *t);

static void again(struct run *x)
{
	struct loop *l = &x->cl->loop;
	if (!x->stopping)
		timer_start(l, &x->timer, clock_after_ms(loop_now_ns(l), REGISTER_MS), tick);
}

static void on_registered(struct rpc_call *c)
{
	struct run *x = container_of(c, struct run, call);
	struct msg_register_rep m = { 0 };
	struct dec d = DEC_INIT(c->reply, NULL, NULL);
	x->calling = false;
	x->n_open--;
	x->h->last_register = c->err;
	if (c->err == ERR_NONE) {
		SIM_CHECK(dec_register_rep(&d, &m) == ERR_NONE, "REGISTER's answer");
		x->h->registered++;
	}
	again(x);
}

static void tick(struct timer *t)
{
	struct run *x = container_of(t, struct run, timer);
	struct holder *h = x->h;
	struct bytes addr = BYTES_STR(x->cl->addr);
	struct msg_segment s = { 0, h->unready ? 0 : h->bytes, h->bytes };
	if (h->shy) {
		again(x);
		return;
	}
	struct msg_register_req q = { .holder = BYTES_STR(h->id),
				      .kind = 1,
				      .addrs = { &addr, 1 },
				      .host = BYTES_STR("host"),
				      .fd_path = BYTES_STR("/run/agent.fd"),
				      .pool_epoch = h->epoch,
				      .segments = { &s, 1 } };
	memcpy(q.instance, x->instance, 16);
	memcpy(q.pool, h->pool, 16);
	buf_clear(&x->body);
	enc_register_req(&x->body, &q);
	x->call = (struct rpc_call){ .method = METHOD_REGISTER,
				     .idempotent = true,
				     .deadline_ns =
					     clock_after_ms(loop_now_ns(&x->cl->loop), CALL_MS),
				     .body = buf_bytes(&x->body),
				     .done = on_registered };
	x->calling = true;
	x->n_open++;
	rpc_send(x->master, &x->call);
}

/* ---- life ---- */

static void on_news(void *ctx, uint64_t last_ack_ns, struct beat_news *out)
{
	struct run *x = ctx;
	(void)last_ack_ns;
	*out = (struct beat_news){ .loop_turns = x->cl->loop.turns,
				   .ready = true,
				   .pool_epoch = x->h->epoch };
}

static const struct rpc_method rows[] = {
	{ .number = METHOD_ADOPT, .name = "ADOPT", .roles = ROLES_SERVICE, .fn = on_adopt },
	{ .number = METHOD_INVENTORY,
	  .name = "INVENTORY",
	  .roles = ROLES_SERVICE,
	  .fn = on_inventory },
	{ .number = METHOD_RETIRE, .name = "RETIRE", .roles = ROLES_SERVICE, .fn = on_slots },
	{ .number = METHOD_FREE, .name = "FREE", .roles = ROLES_SERVICE, .fn = on_slots },
	{ .number = METHOD_MARK, .name = "MARK", .roles = ROLES_SERVICE, .fn = on_slots },
	{ .number = METHOD_FENCE, .name = "FENCE", .roles = ROLES_SERVICE, .fn = on_fence },
	{ .number = METHOD_COMMIT,
	  .name = "COMMIT",
	  .roles = ROLES_CLIENT | ROLES_ADMIN,
	  .fn = on_commit },
};

static enum err open_server(struct run *x, struct why *why)
{
	struct rpc_server_opts o = { .keys = cl_keys(x->cl->cluster),
				     .log = &x->log,
				     .instance = x->instance,
				     .role = ROLE_HOLDER,
				     .name = "agent",
				     .holder = x->h->id };
	enum err e = rpc_server_new(&x->cl->loop, &o, &x->server);
	for (size_t i = 0; e == ERR_NONE && i < ARRAY_LEN(rows); i++) {
		struct rpc_method m = rows[i];
		m.ctx = x;
		rpc_server_add(x->server, &m, 1);
	}
	return e ? e : rpc_server_listen(x->server, x->cl->addr, NULL, 0, why);
}

static enum err open_client(struct run *x, struct why *why)
{
	struct rpc_client_opts o = { .addrs = &x->h->master,
				     .n_addrs = 1,
				     .peer_name = "master",
				     .as = ROLE_HOLDER,
				     .expect = ROLE_SERVICE,
				     .holder = x->h->id,
				     .keys = cl_keys(x->cl->cluster),
				     .log = &x->log,
				     .instance = x->instance };
	return rpc_client_new(&x->cl->loop, &o, &x->master, why);
}

static enum err open_beats(struct run *x, struct why *why)
{
	char to[BEAT_ADDR_MAX], from[BEAT_ADDR_MAX];
	const char *ptr = to;
	enum err e = beat_addr_of(x->h->master, to, why);
	snprintf(from, sizeof(from), "%s.beat", x->cl->addr);
	struct beat_sender_opts o = { .name = x->h->id,
				      .role = ROLE_HOLDER,
				      .keys = cl_keys(x->cl->cluster),
				      .instance = x->instance,
				      .log = &x->log,
				      .to = &ptr,
				      .n_to = 1,
				      .from = from,
				      .beat_ms = 100,
				      .news = on_news,
				      .ctx = x };
	return e || x->h->beats_off ? e : beat_sender_open(&x->cl->loop, &o, &x->beats, why);
}

static enum err start(struct cl_run *r, struct why *why)
{
	struct run *x = r->state;
	x->cl = r;
	x->h = r->arg;
	x->quiet.fn = no_log;
	x->log = (struct log){ .svc = "holder", .clock = r->loop.clock };
	x->body.limit = WIRE_MESSAGE_MAX;
	log_set_capture(&x->log, &x->quiet);
	list_init(&x->parked);
	loop_random(&r->loop, x->instance, sizeof(x->instance));
	if (x->h->epoch == 0)
		loop_random(&r->loop, x->h->pool, sizeof(x->h->pool));
	x->h->epoch++; /* a start fences the last run's writers */
	enum err e = ticket_key_new(cl_keys(r->cluster), x->h->id, &x->key);
	if (e == ERR_NONE)
		e = open_server(x, why);
	if (e == ERR_NONE)
		e = open_client(x, why);
	if (e == ERR_NONE)
		e = open_beats(x, why);
	SIM_CHECK(e == ERR_NONE, "the holder does not start: %s", why->text);
	timer_start(&r->loop, &x->timer, loop_now_ns(&r->loop), tick);
	return ERR_NONE;
}

static void server_closed(void *arg)
{
	struct run *x = arg;
	ticket_key_free(x->key);
	buf_fini(&x->body);
	cl_run_ended(x->cl);
}

static void beats_closed(void *arg)
{
	struct run *x = arg;
	rpc_server_close(x->server, server_closed, x);
}

/* No call is out any more: what is parked is answered. */
static void client_closed(void *arg)
{
	struct run *x = arg;
	while (!list_empty(&x->parked)) {
		struct item *i = list_entry(x->parked.next, struct item, node);
		i->err = ERR_SHUTTING_DOWN;
		item_answer(i);
	}
	if (x->beats)
		beat_sender_close(x->beats, beats_closed, x);
	else
		beats_closed(x);
}

static void stop(struct cl_run *r, bool killed)
{
	struct run *x = r->state;
	(void)killed;
	x->stopping = true;
	timer_stop(&r->loop, &x->timer);
	rpc_server_drain(x->server);
	rpc_client_close(x->master, client_closed, x);
}

const struct cl_app holder_app = { sizeof(struct run), start, stop };

/* ---- for tests ---- */

void holder_fini(struct holder *h)
{
	free(TAKE(h->slots));
	h->n_slots = 0;
}

void holder_lose(struct holder *h)
{
	holder_fini(h);
	h->term = h->adoption = h->epoch = 0;
}

struct holder_slot *holder_plant(struct holder *h, const char *key, uint64_t version,
				 uint64_t size, bool published)
{
	uint64_t at = 0;
	for (size_t i = 0; i < h->n_slots; i++)
		if (h->slots[i].state)
			at = MAX_OF(at, h->slots[i].extent.offset + h->slots[i].extent.bytes);
	struct holder_slot *s = slot_new(h);
	uint64_t bytes = size < OBJ_ALIGN
				 ? (size + OBJ_ALIGN_SMALL - 1) & ~(OBJ_ALIGN_SMALL - 1ull)
				 : (size + OBJ_ALIGN - 1) & ~(OBJ_ALIGN - 1ull);
	*s = (struct holder_slot){ .state = 1,
				   .published = published,
				   .generation = s->generation,
				   .version = version,
				   .size = size,
				   .sum = 77,
				   .extent = { 0, at, bytes },
				   .n_key = strlen(key) };
	memcpy(s->key, key, s->n_key);
	strcpy(s->tenant, "default");
	return s;
}

const struct holder_slot *holder_find(const struct holder *h, const char *key)
{
	for (size_t i = 0; i < h->n_slots; i++)
		if (h->slots[i].state == 1 && h->slots[i].n_key == strlen(key) &&
		    memcmp(h->slots[i].key, key, h->slots[i].n_key) == 0)
			return &h->slots[i];
	return NULL;
}
