/* SPDX-License-Identifier: Apache-2.0 */
#include "store_fake.h"

#include <stdio.h>
#include <string.h>

enum { REPLY_MAX = 8 << 20 };

/* The test's own foot. */
#define FAKE_CHECK(cond, ...)                         \
	do {                                          \
		if (!(cond)) {                        \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr);          \
			abort();                      \
		}                                     \
	} while (0)

/* ---- objects ---- */

static struct w_object *find_bytes(struct fake *w, struct bytes key)
{
	for (size_t i = 0; i < w->n_objects; i++) {
		struct w_object *o = &w->objects[i];
		if (o->n_key == key.n && memcmp(o->key, key.p, key.n) == 0)
			return o;
	}
	return NULL;
}

struct w_object *w_find(struct fake *w, const char *key)
{
	return find_bytes(w, BYTES_STR(key));
}

static struct w_object *object_of(struct fake *w, struct bytes key)
{
	struct w_object *o = find_bytes(w, key);
	if (o)
		return o;
	FAKE_CHECK(w->n_objects < W_OBJECTS && key.n <= sizeof(o->key), "too many keys");
	o = &w->objects[w->n_objects++];
	memcpy(o->key, key.p, key.n);
	o->n_key = key.n;
	return o;
}

/* ---- replies ---- */

static void reply(struct rpc_req *r, struct buf *b)
{
	FAKE_CHECK(buf_err(b) == ERR_NONE, "a reply is too long");
	rpc_reply(r, ERR_NONE, 0, buf_bytes(b));
	buf_fini(b);
}

static void reply_results(struct rpc_req *r, const struct msg_result *v, size_t n)
{
	struct buf b = BUF_INIT(REPLY_MAX);
	struct msg_results_rep m = { .items = { v, n } };
	enc_results_rep(&b, &m);
	reply(r, &b);
}

void w_reply_results(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms)
{
	struct msg_result *v = calloc(n, sizeof(*v));
	for (size_t i = 0; i < n; i++)
		v[i] = (struct msg_result){ .status = e, .retry_ms = retry_ms };
	reply_results(r, v, n);
	free(v);
}

void w_reply_grants(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms)
{
	struct buf b = BUF_INIT(REPLY_MAX);
	struct msg_put_grant *v = calloc(n, sizeof(*v));
	for (size_t i = 0; i < n; i++)
		v[i] = (struct msg_put_grant){ .status = e, .retry_ms = retry_ms };
	struct msg_put_start_rep m = { .items = { v, n } };
	enc_put_start_rep(&b, &m);
	reply(r, &b);
	free(v);
}

void w_reply_objects(struct rpc_req *r, size_t n, enum err e, uint32_t retry_ms)
{
	struct buf b = BUF_INIT(REPLY_MAX);
	struct msg_object *v = calloc(n, sizeof(*v));
	for (size_t i = 0; i < n; i++)
		v[i] = (struct msg_object){ .status = e, .retry_ms = retry_ms };
	struct msg_query_rep m = { .items = { v, n } };
	enc_query_rep(&b, &m);
	reply(r, &b);
	free(v);
}

static struct msg_place place(struct fake *w, struct bytes *addr)
{
	*addr = BYTES_STR(w->holder_addr);
	struct msg_place p = { .holder = BYTES_STR("agent-1"),
			       .host = BYTES_STR(w->host),
			       .addrs = { addr, 1 },
			       .fd_path = BYTES_STR(w->fd_path) };
	memcpy(p.pool, mempool_id(w->pool), 16);
	return p;
}

/* ---- PUT_START ---- */

static size_t allocate(struct fake *w, uint64_t size, struct extent *ext)
{
	uint64_t bytes = (obj_stored_bytes(size) + OBJ_ALIGN - 1) / OBJ_ALIGN * OBJ_ALIGN;
	size_t n = MAX_OF(w->pieces, 1u), used = 0;
	uint64_t each = (bytes / n + OBJ_ALIGN - 1) / OBJ_ALIGN * OBJ_ALIGN;
	while (bytes > 0) {
		uint64_t k = MIN_OF(each ? each : bytes, bytes);
		ext[used++] = (struct extent){ 0, w->alloc_at, k };
		w->alloc_at += k;
		bytes -= k;
	}
	FAKE_CHECK(w->alloc_at <= mempool_segment(w->pool, 0).bytes, "the test's pool is full");
	return used;
}

struct granted {
	struct msg_extent ext[OBJ_EXTENTS_MAX];
	uint8_t ticket[1500];
};

static void grant(struct fake *w, const struct msg_put_item *it, const uint8_t client[16],
		  struct msg_put_grant *g, struct granted *room)
{
	struct w_object *o = object_of(w, it->key);
	struct extent ext[OBJ_EXTENTS_MAX];
	if (o->whole && !it->upsert) {
		*g = (struct msg_put_grant){ .status = ERR_ALREADY_EXISTS };
		return;
	}
	size_t n = allocate(w, it->size, ext);
	for (size_t i = 0; i < n; i++)
		room->ext[i] =
			(struct msg_extent){ ext[i].segment, ext[i].offset, ext[i].bytes };
	struct hold_under u = hold_under(w->hold, 0);
	struct msg_ticket t = { .op = 1,
				.tenant = BYTES_STR("default"),
				.term = w->term,
				.pool_epoch = u.pool_epoch,
				.extents = { room->ext, n },
				.size = it->size,
				.version = version_make(w->term, ++w->counter),
				.attempt = it->attempt,
				.key = it->key };
	memcpy(t.pool, mempool_id(w->pool), 16);
	memcpy(t.client, client, 16);
	struct buf b = BUF_INIT(sizeof(room->ticket));
	enc_ticket(&b, &t);
	FAKE_CHECK(buf_err(&b) == ERR_NONE, "a ticket is too long");
	memcpy(room->ticket, b.p, b.n);
	*g = (struct msg_put_grant){ .version = t.version,
				     .pool_epoch = u.pool_epoch,
				     .extents = { room->ext, n },
				     .ticket = BYTES(room->ticket, b.n) };
	buf_fini(&b);
}

static void on_put_start(struct fake *w, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_put_start_req q;
	struct buf b = BUF_INIT(REPLY_MAX);
	FAKE_CHECK(dec_put_start_req(&d, &q) == ERR_NONE, "PUT_START");
	struct msg_put_grant *v = calloc(q.items.n, sizeof(*v));
	struct granted *room = calloc(q.items.n, sizeof(*room));
	struct bytes addr;
	struct msg_place p = place(w, &addr);
	for (size_t i = 0; i < q.items.n; i++) {
		if (w->n_attempts < W_ASKED) {
			w->put_term[w->n_attempts] = q.term;
			w->attempts[w->n_attempts++] = q.items.p[i].attempt;
		}
		if (q.term != w->term)
			v[i].status = ERR_STALE_TERM;
		else
			grant(w, &q.items.p[i], q.client, &v[i], &room[i]);
	}
	struct msg_put_start_rep m = { .places = { &p, 1 }, .items = { v, q.items.n } };
	enc_put_start_rep(&b, &m);
	reply(r, &b);
	free(v);
	free(room);
	arena_fini(&a);
}

/* ---- COMMIT ---- */

static enum err commit(struct fake *w, const struct msg_commit_item *it)
{
	struct arena a = ARENA_INIT(64 << 10);
	struct dec d = DEC_INIT(it->ticket, &a, NULL);
	struct msg_ticket t;
	struct hold_slot s;
	struct why why = { 0 };
	FAKE_CHECK(dec_ticket(&d, &t) == ERR_NONE, "a ticket came back changed");
	enum err e = hold_commit(w->hold, &t, it->sum, &s, &why);
	if (e == ERR_NONE) {
		struct w_object *o = object_of(w, t.key);
		*o = (struct w_object){ .n_key = o->n_key,
					.version = t.version,
					.size = t.size,
					.sum = it->sum,
					.whole = true,
					.n_copies = 1 };
		memcpy(o->key, t.key.p, t.key.n);
		o->copies[0].slot = s.slot;
		o->copies[0].generation = s.generation;
		o->copies[0].n_ext = t.extents.n;
		for (size_t i = 0; i < t.extents.n; i++)
			o->copies[0].ext[i] =
				(struct extent){ t.extents.p[i].segment, t.extents.p[i].offset,
						 t.extents.p[i].bytes };
	}
	arena_fini(&a);
	return e;
}

static void on_commit(struct fake *w, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_commit_req q;
	FAKE_CHECK(dec_commit_req(&d, &q) == ERR_NONE, "COMMIT");
	struct msg_result *v = calloc(q.items.n, sizeof(*v));
	for (size_t i = 0; i < q.items.n; i++)
		v[i].status = commit(w, &q.items.p[i]);
	reply_results(r, v, q.items.n);
	free(v);
	arena_fini(&a);
}

/* ---- keys ---- */

struct asked_keys {
	struct arena a;
	struct msg_keys_req q;
};

static void read_keys(struct rpc_req *r, struct asked_keys *k)
{
	k->a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &k->a, NULL);
	FAKE_CHECK(dec_keys_req(&d, &k->q) == ERR_NONE, "keys");
}

struct found {
	struct msg_replica rep[W_REPLICAS];
	struct msg_extent ext[W_REPLICAS][OBJ_EXTENTS_MAX];
};

static void show(const struct fake *w, const struct w_object *o, struct msg_object *m,
		 struct found *f)
{
	if (!o || !o->whole) {
		*m = (struct msg_object){ .status = ERR_NOT_FOUND };
		return;
	}
	for (size_t i = 0; i < o->n_copies; i++) {
		const struct w_copy *c = &o->copies[i];
		for (size_t k = 0; k < c->n_ext; k++)
			f->ext[i][k] = (struct msg_extent){ c->ext[k].segment, c->ext[k].offset,
							    c->ext[k].bytes };
		f->rep[i] = (struct msg_replica){ .tier = 1,
						  .slot = c->slot,
						  .generation = c->generation,
						  .extents = { f->ext[i], c->n_ext } };
	}
	*m = (struct msg_object){ .version = o->version,
				  .size = o->size,
				  .sum = o->sum,
				  .lease_ms = w->lease_ms,
				  .replicas = { f->rep, o->n_copies } };
}

static void on_query(struct fake *w, struct rpc_req *r)
{
	struct asked_keys k;
	struct buf b = BUF_INIT(REPLY_MAX);
	read_keys(r, &k);
	struct msg_object *v = calloc(k.q.keys.n, sizeof(*v));
	struct found *f = calloc(k.q.keys.n, sizeof(*f));
	struct bytes addr;
	struct msg_place p = place(w, &addr);
	for (size_t i = 0; i < k.q.keys.n; i++)
		show(w, find_bytes(w, k.q.keys.p[i]), &v[i], &f[i]);
	struct msg_query_rep m = { .places = { &p, 1 }, .items = { v, k.q.keys.n } };
	enc_query_rep(&b, &m);
	reply(r, &b);
	free(v);
	free(f);
	arena_fini(&k.a);
}

static void on_exists(struct fake *w, struct rpc_req *r)
{
	struct asked_keys k;
	read_keys(r, &k);
	struct msg_result *v = calloc(k.q.keys.n, sizeof(*v));
	for (size_t i = 0; i < k.q.keys.n; i++) {
		struct w_object *o = find_bytes(w, k.q.keys.p[i]);
		v[i].status = o && o->whole ? ERR_NONE : ERR_NOT_FOUND;
	}
	reply_results(r, v, k.q.keys.n);
	free(v);
	arena_fini(&k.a);
}

static void on_stat(struct fake *w, struct rpc_req *r)
{
	struct asked_keys k;
	struct buf b = BUF_INIT(REPLY_MAX);
	struct bytes holder = BYTES_STR("agent-1");
	struct msg_put_opts opts = { .replica_num = 2,
				     .group = BYTES_STR("g"),
				     .hard_pin = true };
	read_keys(r, &k);
	struct msg_stat *v = calloc(k.q.keys.n, sizeof(*v));
	for (size_t i = 0; i < k.q.keys.n; i++) {
		struct w_object *o = find_bytes(w, k.q.keys.p[i]);
		if (o && o->whole)
			v[i] = (struct msg_stat){ .version = o->version,
						  .size = o->size,
						  .sum = o->sum,
						  .memory = 1,
						  .holders = { &holder, 1 },
						  .opts = &opts };
		else
			v[i].status = ERR_NOT_FOUND;
	}
	struct msg_stat_rep m = { .items = { v, k.q.keys.n } };
	enc_stat_rep(&b, &m);
	reply(r, &b);
	free(v);
	arena_fini(&k.a);
}

static void on_remove(struct fake *w, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_remove_req q;
	FAKE_CHECK(dec_remove_req(&d, &q) == ERR_NONE, "REMOVE");
	struct msg_result *v = calloc(q.items.n, sizeof(*v));
	for (size_t i = 0; i < q.items.n; i++) {
		struct w_object *o = find_bytes(w, q.items.p[i].key);
		if (w->n_removed < W_ASKED) {
			w->removed_term[w->n_removed] = q.term;
			w->removed[w->n_removed] = q.items.p[i];
			w->removed[w->n_removed++].key = (struct bytes){ 0 };
		}
		if (q.term != w->term)
			v[i].status = ERR_STALE_TERM;
		else if (o)
			o->whole = false;
	}
	reply_results(r, v, q.items.n);
	free(v);
	arena_fini(&a);
}

static void on_attempts(struct fake *w, uint32_t method, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_attempts_req q;
	FAKE_CHECK(dec_attempts_req(&d, &q) == ERR_NONE, "attempts");
	if (method == METHOD_PUT_REVOKE)
		w->revoked += (uint32_t)q.items.n;
	else
		w->progressed += (uint32_t)q.items.n;
	w_reply_results(r, q.items.n, ERR_NONE, 0);
	arena_fini(&a);
}

static void on_leases(struct fake *w, uint32_t method, struct rpc_req *r)
{
	struct arena a = ARENA_INIT(16 << 20);
	struct dec d = DEC_INIT(r->body, &a, NULL);
	struct msg_leases_req q;
	FAKE_CHECK(dec_leases_req(&d, &q) == ERR_NONE, "leases");
	struct msg_result *v = calloc(q.items.n, sizeof(*v));
	for (size_t i = 0; i < q.items.n; i++) {
		struct w_object *o = find_bytes(w, q.items.p[i].key);
		v[i].status = o && o->whole && o->version == q.items.p[i].version
				      ? ERR_NONE
				      : ERR_LEASE_LOST;
	}
	w->renewed += method == METHOD_RENEW;
	reply_results(r, v, q.items.n);
	free(v);
	arena_fini(&a);
}

static void on_list(struct fake *w, struct rpc_req *r)
{
	struct buf b = BUF_INIT(REPLY_MAX);
	struct msg_list_item *v = calloc(w->n_objects + 1, sizeof(*v));
	size_t n = 0;
	for (size_t i = 0; i < w->n_objects; i++) {
		const struct w_object *o = &w->objects[i];
		if (o->whole)
			v[n++] = (struct msg_list_item){ .key = BYTES(o->key, o->n_key),
							 .version = o->version,
							 .size = o->size,
							 .memory = 1 };
	}
	struct msg_list_rep m = { .items = { v, n },
				  .cursor = BYTES_STR("more"),
				  .recovering = true };
	enc_list_rep(&b, &m);
	reply(r, &b);
	free(v);
}

static void on_echo(struct rpc_req *r)
{
	struct buf b = BUF_INIT(64);
	enc_echo(&b, &(struct msg_echo){ 0 });
	reply(r, &b);
}

static void on_range(struct fake *w, struct rpc_req *r)
{
	struct buf b = BUF_INIT(64);
	struct msg_remove_range_rep m = { .removed = 0, .pinned = 3 };
	for (size_t i = 0; i < w->n_objects; i++) {
		m.removed += w->objects[i].whole;
		w->objects[i].whole = false;
	}
	enc_remove_range_rep(&b, &m);
	reply(r, &b);
}

static void on_explain(struct rpc_req *r)
{
	struct buf b = BUF_INIT(256);
	struct msg_fact facts[] = { { BYTES_STR("hash"), BYTES_STR("12") },
				    { BYTES_STR("shard"), BYTES_STR("0") } };
	struct msg_explain_rep m = { .facts = { facts, 2 } };
	enc_explain_rep(&b, &m);
	reply(r, &b);
}

static void on_holders(struct rpc_req *r)
{
	struct buf b = BUF_INIT(256);
	struct msg_holder_state h = { .id = BYTES_STR("agent-1"),
				      .kind = BYTES_STR("agent"),
				      .state = BYTES_STR("in"),
				      .objects = 7,
				      .bytes_used = 1,
				      .bytes_total = 2 };
	struct msg_holders_rep m = { .holders = { &h, 1 }, .recovering = true, .objects = 9 };
	enc_holders_rep(&b, &m);
	reply(r, &b);
}

static void serve(struct fake *w, uint32_t method, struct rpc_req *r)
{
	w->asked[method]++;
	if (w->on && w->on(w, method, r))
		return;
	switch (method) {
	case METHOD_ECHO:
		on_echo(r);
		break;
	case METHOD_PUT_START:
		on_put_start(w, r);
		break;
	case METHOD_COMMIT:
		on_commit(w, r);
		break;
	case METHOD_QUERY:
		on_query(w, r);
		break;
	case METHOD_EXISTS:
		on_exists(w, r);
		break;
	case METHOD_OBJECT_STAT:
		on_stat(w, r);
		break;
	case METHOD_REMOVE:
		on_remove(w, r);
		break;
	case METHOD_REMOVE_RANGE:
		on_range(w, r);
		break;
	case METHOD_PUT_REVOKE:
	case METHOD_PUT_PROGRESS:
		on_attempts(w, method, r);
		break;
	case METHOD_RENEW:
	case METHOD_RELEASE:
		on_leases(w, method, r);
		break;
	case METHOD_LIST:
		on_list(w, r);
		break;
	case METHOD_EXPLAIN:
		on_explain(r);
		break;
	case METHOD_HOLDERS:
		on_holders(r);
		break;
	case METHOD_TASK_START: /* it keeps no tasks: a test's own */
	case METHOD_TASKS:
	case METHOD_TASK_CANCEL:
		rpc_reply(r, ERR_UNKNOWN_METHOD, 0, BYTES("", 0));
		break;
	default:
		FAKE_CHECK(false, "method %u", method);
	}
}

static void on_request(void *ctx, struct rpc_req *r)
{
	serve(ctx, r->method, r);
}

/* ---- the servers ---- */

static uint64_t term_of(void *ctx)
{
	return ((struct fake *)ctx)->term;
}

static struct rpc_server *server(struct fake *w, const char *name, enum role role,
				 const char *addr)
{
	static const uint8_t id[16] = { 7 };
	static const uint32_t methods[] = {
		METHOD_ECHO,	     METHOD_PUT_START,	 METHOD_PUT_REVOKE,
		METHOD_PUT_PROGRESS, METHOD_QUERY,	 METHOD_RELEASE,
		METHOD_RENEW,	     METHOD_REMOVE,	 METHOD_EXISTS,
		METHOD_LIST,	     METHOD_OBJECT_STAT, METHOD_EXPLAIN,
		METHOD_REMOVE_RANGE, METHOD_HOLDERS,	 METHOD_COMMIT,
		METHOD_TASK_START,   METHOD_TASKS,	 METHOD_TASK_CANCEL,
	};
	struct rpc_method rows[ARRAY_LEN(methods)];
	struct rpc_server *s = NULL;
	struct why why = { 0 };
	struct rpc_server_opts o = { .keys = w->keys,
				     .log = w->log,
				     .instance = id,
				     .role = role,
				     .name = name,
				     .holder = role == ROLE_HOLDER ? "agent-1" : NULL,
				     .term = term_of,
				     .ctx = w };
	FAKE_CHECK(rpc_server_new(w->loop, &o, &s) == ERR_NONE, "no server");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		rows[i] = (struct rpc_method){ .number = methods[i],
					       .name = "x",
					       .roles = ROLES_ANY,
					       .fn = on_request,
					       .ctx = w };
	rpc_server_add(s, rows, ARRAY_LEN(rows));
	enum err e = rpc_server_listen(s, addr, NULL, 0, &why);
	FAKE_CHECK(e == ERR_NONE, "%s", why.text);
	return s;
}

static void fenced(void *ctx, uint32_t shard, uint64_t version)
{
}

static void random_of(void *ctx, void *p, size_t n)
{
	struct fake *w = ctx;
	loop_random(w->loop, p, n);
}

static void open_pool(struct fake *w)
{
	struct mempool_start start;
	struct why why = { 0 };
	struct mempool_opts o = { .backing = w->backing,
				  .segment_bytes = w->pool_bytes,
				  .n_slots = W_SLOTS,
				  .random = random_of,
				  .random_ctx = w };
	enum err e = mempool_open(&o, &w->pool, &start, &why);
	for (uint32_t i = 0; e == ERR_NONE && i < mempool_slices(w->pool, 0); i++)
		e = mempool_slice(w->pool, 0, i, &why);
	FAKE_CHECK(e == ERR_NONE, "%s", why.text);
	mempool_ready(w->pool, 0, mempool_slices(w->pool, 0));
	struct hold_opts ho = { .pool = w->pool, .fenced = fenced, .ctx = w };
	e = hold_new(&ho, &w->hold);
	FAKE_CHECK(e == ERR_NONE, "no hold");
}

void w_adopt(struct fake *w)
{
	struct hold_under u;
	struct why why = { 0 };
	enum err e = hold_adopt(w->hold, 0, w->term, ++w->adoption, &u, &why);
	FAKE_CHECK(e == ERR_NONE, "%s", why.text);
}

void w_new_term(struct fake *w)
{
	w->term++;
	w_adopt(w);
}

void fake_open(struct fake *w)
{
	w->lease_ms = 10000;
	w->host = "here";
	w->objects = calloc(W_OBJECTS, sizeof(*w->objects));
	FAKE_CHECK(w->objects, "no memory");
	open_pool(w);
	w_new_term(w);
	w->master = server(w, "master", ROLE_SERVICE, w->master_addr);
	w->holder = server(w, "agent", ROLE_HOLDER, w->holder_addr);
}

static void holder_gone(void *arg)
{
	struct fake *w = arg;
	w->closed(w->closed_arg);
}

static void master_gone(void *arg)
{
	struct fake *w = arg;
	rpc_server_close(w->holder, holder_gone, w);
}

void fake_close(struct fake *w, void (*closed)(void *arg), void *arg)
{
	w->closed = closed;
	w->closed_arg = arg;
	if (w->parked)
		rpc_reply(w->parked, ERR_SHUTTING_DOWN, 0, BYTES("", 0));
	rpc_server_close(w->master, master_gone, w);
}

void fake_fini(struct fake *w)
{
	hold_close(w->hold);
	mempool_close(w->pool);
	pool_backing_free(w->backing);
	free(w->objects);
}

/* ---- behind everybody's back ---- */

void w_free_copy(struct fake *w, struct w_object *o, size_t copy)
{
	struct w_copy *c = &o->copies[copy];
	struct hold_under u = hold_under(w->hold, 0);
	enum err e =
		hold_retire(w->hold, &u, c->slot, c->generation, o->version, RETIRE_REMOVED, 0);
	if (e == ERR_NONE)
		e = hold_free(w->hold, &u, c->slot, c->generation);
	FAKE_CHECK(e == ERR_NONE, "free: %s", err_name(e));
}

void w_copy(struct fake *w, struct w_object *o)
{
	struct w_copy *from = &o->copies[0], *to = &o->copies[o->n_copies];
	struct msg_extent ext[OBJ_EXTENTS_MAX];
	struct hold_under u = hold_under(w->hold, 0);
	struct hold_slot s;
	struct why why = { 0 };
	FAKE_CHECK(o->n_copies < W_REPLICAS && from->n_ext == 1,
		   "w_copy: one extent, one copy");
	to->n_ext = allocate(w, o->size, to->ext);
	memcpy(mempool_at(w->pool, &to->ext[0]), mempool_at(w->pool, &from->ext[0]),
	       obj_stored_bytes(o->size));
	ext[0] = (struct msg_extent){ 0, to->ext[0].offset, to->ext[0].bytes };
	struct msg_ticket t = { .op = 1,
				.tenant = BYTES_STR("default"),
				.term = w->term,
				.pool_epoch = u.pool_epoch,
				.extents = { ext, 1 },
				.size = o->size,
				/* a holder has one slot a version */
				.version = version_make(w->term, ++w->counter),
				.key = BYTES(o->key, o->n_key) };
	memcpy(t.pool, mempool_id(w->pool), 16);
	enum err e = hold_commit(w->hold, &t, o->sum, &s, &why);
	FAKE_CHECK(e == ERR_NONE, "copy: %s", why.text);
	to->slot = s.slot;
	to->generation = s.generation;
	o->n_copies++;
}
