/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo ls`, `stat`, `rm`, `explain`, `forget`. */
#include "print.h"
#include "store.h"

#include <inttypes.h>
#include <string.h>

/* The keys of the command line. owned, free(). */
static enum err read_keys(struct cli *c, bool prefix, struct store_key **keys)
{
	struct store_key *v = calloc((size_t)MAX_OF(c->n_args, 1), sizeof(*v));
	if (!v)
		return why_set(&c->why, ERR_NO_MEMORY, "no memory for the keys");
	for (int i = 0; i < c->n_args; i++) {
		enum err e = store_key_read(c->args[i], prefix, &v[i], &c->why);
		if (e != ERR_NONE) {
			free(v);
			return e;
		}
	}
	*keys = v;
	return ERR_NONE;
}

/* owned, free(). */
static struct pml_item *make_items(const struct store_key *keys, size_t n)
{
	struct pml_item *v = calloc(n, sizeof(*v));
	for (size_t i = 0; v && i < n; i++) {
		v[i].size = sizeof(v[i]);
		v[i].key = keys[i].p;
		v[i].key_bytes = keys[i].n;
	}
	return v;
}

/* All went well, one thing failed, or some of many did. */
static int exit_of_items(struct store *s, const struct pml_op *op)
{
	struct pml_error err = PML_ERROR_INIT;
	size_t n = pml_op_n(op), failed = 0;
	for (size_t i = 0; i < n; i++) {
		struct pml_result r = PML_RESULT_INIT;
		if (pml_op_result(op, i, &r) == PML_ERR_NONE && r.code != PML_ERR_NONE &&
		    failed++ == 0)
			pml_op_item_error(op, i, &err);
	}
	if (failed == 0)
		return EXIT_OK_;
	int code = store_fail(s, &err);
	return n == 1 || err.code == PML_ERR_CANCELLED ? code : EXIT_SOME_;
}

static void text_of_version(char out[17], uint64_t version)
{
	snprintf(out, 17, "%016" PRIx64, version);
}

static void json_kv_hex(struct json *j, const char *key, uint64_t v)
{
	char text[17];
	text_of_version(text, v);
	json_kv_str(j, key, text);
}

/* ---- ls ---- */

struct listing {
	struct store s;
	struct buf out;
	struct json j;
	uint64_t n, bytes;
	bool recovering;
	uint8_t cursor[64];
	size_t n_cursor;
};

/* --json is one line whatever its length: it goes out in pieces. */
static void spill(struct listing *l)
{
	if (l->out.n)
		fwrite(l->out.p, 1, l->out.n, l->s.c->out);
	buf_clear(&l->out);
}

static void put_listed(struct listing *l, const struct pml_listed *k)
{
	char key[STORE_KEY_TEXT], version[17], bytes[32];
	store_key_text(k->key, k->key_bytes, key);
	text_of_version(version, k->version);
	l->n++;
	l->bytes += k->bytes;
	if (!l->s.c->json) {
		fprintf(l->s.c->out, "%10s  %s  %s%s  %s\n",
			print_bytes(bytes, sizeof(bytes), k->bytes), version,
			k->memory ? "m" : "-", k->disk ? "d" : "-", key);
		return;
	}
	json_obj(&l->j);
	json_kv_str(&l->j, "key", key);
	json_kv_u64(&l->j, "bytes", k->bytes);
	json_kv_str(&l->j, "version", version);
	json_kv_u64(&l->j, "memory", k->memory);
	json_kv_u64(&l->j, "disk", k->disk);
	json_end(&l->j);
	if (l->out.n > 65536)
		spill(l);
}

/* One page; false: the last one, or an error in *code. */
static bool list_page(struct listing *l, const struct store_key *prefix, uint32_t tier,
		      int *code)
{
	struct pml_list_opts o = PML_LIST_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	size_t n_cursor = 0;
	o.deadline_ms = store_left_ms(&l->s);
	o.limit = PML_ITEMS_MAX;
	o.tier = tier;
	o.cursor = l->n_cursor ? l->cursor : NULL;
	o.cursor_bytes = l->n_cursor;
	int e = pml_list_start(l->s.p, prefix->p, prefix->n, &o, l->s.cq, NULL, &op, &err);
	if (e == PML_ERR_NONE)
		e = store_wait(&l->s, op, NULL, &err);
	*code = e == PML_ERR_NONE ? EXIT_OK_ : store_fail(&l->s, &err);
	for (size_t i = 0; e == PML_ERR_NONE && i < pml_op_n_listed(op); i++) {
		struct pml_listed k = PML_LISTED_INIT;
		pml_op_listed(op, i, &k);
		put_listed(l, &k);
	}
	const void *cursor = e == PML_ERR_NONE ? pml_op_cursor(op, &n_cursor) : NULL;
	if (e == PML_ERR_NONE)
		l->recovering |= pml_op_recovering(op);
	l->n_cursor = cursor ? MIN_OF(n_cursor, sizeof(l->cursor)) : 0;
	if (l->n_cursor)
		memcpy(l->cursor, cursor, l->n_cursor);
	pml_op_free(op);
	return l->n_cursor > 0;
}

static enum err read_tier(struct cli *c, uint32_t *tier)
{
	const char *s = cli_value(c, "--tier");
	*tier = 0;
	if (!s)
		return ERR_NONE;
	if (strcmp(s, "memory") == 0)
		*tier = 1;
	else if (strcmp(s, "disk") == 0)
		*tier = 2;
	else
		return why_set(&c->why, ERR_INVALID_PARAMS, "--tier %.40s: memory or disk", s);
	return ERR_NONE;
}

static void list_all(struct listing *l, const struct store_key *prefix, uint32_t tier,
		     int *code)
{
	struct cli *c = l->s.c;
	if (c->json) {
		json_obj(&l->j);
		json_key(&l->j, "objects");
		json_arr(&l->j);
	}
	while (list_page(l, prefix, tier, code))
		continue;
	if (!c->json || *code != EXIT_OK_)
		return;
	json_end(&l->j);
	json_kv_u64(&l->j, "n", l->n);
	json_kv_u64(&l->j, "bytes", l->bytes);
	json_kv_bool(&l->j, "recovering", l->recovering);
	json_end(&l->j);
	spill(l);
	fputc('\n', c->out);
}

int cmd_ls(struct cli *c)
{
	struct listing l = { .out = BUF_INIT(1 << 20) };
	struct store_key prefix = { .n = 0 };
	uint32_t tier = 0;
	enum err e = read_tier(c, &tier);
	if (e == ERR_NONE && c->n_args > 0)
		e = store_key_read(c->args[0], true, &prefix, &c->why);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	int code = store_open(c, &l.s);
	if (code != EXIT_OK_)
		return code;
	l.j = (struct json)JSON_OUT(&l.out);
	list_all(&l, &prefix, tier, &code);
	if (l.recovering)
		fprintf(c->err, "pomelo: the master is still merging what holders have: there "
				"may be more\n");
	buf_fini(&l.out);
	store_close(&l.s);
	return code;
}

/* ---- stat ---- */

static void stat_json(struct json *j, const struct pml_stat_info *v)
{
	json_kv_u64(j, "bytes", v->bytes);
	json_kv_hex(j, "version", v->version);
	json_kv_hex(j, "sum", v->sum);
	json_kv_u64(j, "memory", v->memory);
	json_kv_u64(j, "disk", v->disk);
	json_key(j, "holders");
	json_arr(j);
	for (uint32_t i = 0; i < v->n_holders; i++)
		json_str(j, v->holders[i]);
	json_end(j);
	json_kv_u64(j, "idle_ms", v->idle_ms);
	json_kv_bool(j, "leased", v->leased);
	json_kv_u64(j, "replica_num", v->replica_num);
	json_kv_bool(j, "hard_pin", v->hard_pin);
	json_kv_bool(j, "durable", v->durable);
	json_kv_u64(j, "soft_pin_ms", v->soft_pin_ms);
	json_key(j, "group");
	json_bytes(j, (struct bytes){ v->group, v->group_bytes });
	json_kv_str(j, "format", v->format);
}

static void stats_json(struct cli *c, const struct pml_op *op, const struct store_key *keys)
{
	struct buf b = BUF_INIT(64 << 20);
	struct json j = JSON_OUT(&b);
	char key[STORE_KEY_TEXT];
	json_obj(&j);
	json_key(&j, "objects");
	json_arr(&j);
	for (size_t i = 0; i < pml_op_n(op); i++) {
		struct pml_stat_info v = PML_STAT_INFO_INIT;
		struct pml_error err = PML_ERROR_INIT;
		json_obj(&j);
		json_kv_str(&j, "key", store_key_text(keys[i].p, keys[i].n, key));
		if (pml_op_stat(op, i, &v) == PML_ERR_NONE) {
			stat_json(&j, &v);
		} else {
			pml_op_item_error(op, i, &err);
			json_kv_str(&j, "error", pml_error_name(err.code));
			json_kv_str(&j, "text", err.text);
		}
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	print_json(c, &b);
	buf_fini(&b);
}

static void stats_table(struct cli *c, const struct pml_op *op, const struct store_key *keys)
{
	static const char *const heads[] = { "key",   ">bytes", "version", ">memory",
					     ">disk", ">idle",	"holder",  "" };
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < pml_op_n(op); i++) {
		struct pml_stat_info v = PML_STAT_INFO_INIT;
		struct pml_error err = PML_ERROR_INIT;
		char key[STORE_KEY_TEXT], bytes[32] = "", version[17] = "", idle[24] = "";
		char memory[16] = "", disk[16] = "", holder[96] = "";
		int e = pml_op_stat(op, i, &v);
		store_key_text(keys[i].p, keys[i].n, key);
		if (e == PML_ERR_NONE) {
			print_bytes(bytes, sizeof(bytes), v.bytes);
			text_of_version(version, v.version);
			print_age(idle, sizeof(idle), v.idle_ms);
			snprintf(memory, sizeof(memory), "%u", v.memory);
			snprintf(disk, sizeof(disk), "%u", v.disk);
			if (v.n_holders > 1)
				snprintf(holder, sizeof(holder), "%.70s and %u more",
					 v.holders[0], v.n_holders - 1);
			else if (v.n_holders == 1)
				snprintf(holder, sizeof(holder), "%.70s", v.holders[0]);
		} else {
			pml_op_item_error(op, i, &err);
		}
		const char *note = e != PML_ERR_NONE ? pml_error_name(err.code)
				   : v.hard_pin	     ? "pinned"
				   : v.leased	     ? "leased"
						     : "";
		const char *cells[] = { key, bytes, version, memory, disk, idle, holder, note };
		print_table_row(&t, cells);
	}
	print_table_put(&t, c->out);
	print_table_fini(&t);
}

int cmd_stat(struct cli *c)
{
	struct store s;
	struct store_key *keys = NULL;
	struct pml_get_opts o = PML_GET_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	enum err e = read_keys(c, false, &keys);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	struct pml_item *items = make_items(keys, (size_t)c->n_args);
	int code = store_open(c, &s);
	if (code == EXIT_OK_) {
		o.deadline_ms = store_left_ms(&s);
		if (pml_stat_start(s.p, items, (size_t)c->n_args, &o, s.cq, NULL, &op, &err) ==
		    PML_ERR_NONE) {
			store_wait(&s, op, NULL, &err);
			if (c->json)
				stats_json(c, op, keys);
			else
				stats_table(c, op, keys);
			code = exit_of_items(&s, op);
		} else {
			code = store_fail(&s, &err);
		}
		pml_op_free(op);
		store_close(&s);
	}
	free(items);
	free(keys);
	return code;
}

/* ---- rm ---- */

struct removal {
	struct store s;
	struct pml_remove_opts o;
	uint64_t removed, pinned;
};

static int remove_prefix(struct removal *r, const struct store_key *prefix)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_result res = PML_RESULT_INIT;
	struct pml_op *op = NULL;
	r->o.deadline_ms = store_left_ms(&r->s);
	int e = pml_remove_prefix_start(r->s.p, prefix->p, prefix->n, &r->o, r->s.cq, NULL, &op,
					&err);
	if (e == PML_ERR_NONE)
		e = store_wait(&r->s, op, NULL, &err);
	int code = e == PML_ERR_NONE ? EXIT_OK_ : store_fail(&r->s, &err);
	if (e == PML_ERR_NONE && pml_op_result(op, 0, &res) == PML_ERR_NONE) {
		r->removed += res.bytes;
		r->pinned += res.pinned;
	}
	pml_op_free(op);
	return code;
}

static int remove_keys(struct removal *r, const struct store_key *keys, size_t n)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	struct pml_item *items = make_items(keys, n);
	int code = EXIT_OK_;
	r->o.deadline_ms = store_left_ms(&r->s);
	if (pml_remove_start(r->s.p, items, n, &r->o, r->s.cq, NULL, &op, &err) ==
	    PML_ERR_NONE) {
		store_wait(&r->s, op, NULL, &err);
		code = exit_of_items(&r->s, op);
	} else {
		code = store_fail(&r->s, &err);
	}
	for (size_t i = 0; i < pml_op_n(op); i++) {
		struct pml_result res = PML_RESULT_INIT;
		r->removed += pml_op_result(op, i, &res) == PML_ERR_NONE && res.code == 0;
	}
	pml_op_free(op);
	free(items);
	return code;
}

static enum err check_rm(struct cli *c, bool all)
{
	if (all && c->n_args > 0)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "rm --all takes no KEY: it removes every object of the tenant");
	if (!all && c->n_args == 0)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "rm: a KEY is missing; `pomelo rm --all` removes everything");
	if (c->n_args > PML_ITEMS_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS, "rm: %d keys, at most %d",
			       c->n_args, PML_ITEMS_MAX);
	return ERR_NONE;
}

static void rm_done(struct removal *r, bool counted, int code)
{
	struct cli *c = r->s.c;
	struct buf b = BUF_INIT(4096);
	struct json j = JSON_OUT(&b);
	if (code != EXIT_OK_)
		return;
	if (c->json) {
		json_obj(&j);
		json_kv_u64(&j, "removed", r->removed);
		json_kv_u64(&j, "pinned", r->pinned);
		json_end(&j);
		print_json(c, &b);
	} else if (counted) {
		fprintf(c->out, "%" PRIu64 " removed\n", r->removed);
	}
	if (r->pinned)
		fprintf(c->err,
			"pomelo: %" PRIu64 " hard-pinned ones stay; --force takes them "
			"too\n",
			r->pinned);
	buf_fini(&b);
}

int cmd_rm(struct cli *c)
{
	struct removal r = { .o = PML_REMOVE_OPTS_INIT };
	struct store_key *keys = NULL, none = { .n = 0 };
	bool all = cli_has(c, "--all"), prefix = cli_has(c, "--prefix");
	enum err e = check_rm(c, all);
	if (e == ERR_NONE)
		e = read_keys(c, prefix, &keys);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	r.o.force = cli_has(c, "--force");
	int code = store_open(c, &r.s);
	if (code == EXIT_OK_) {
		if (all)
			code = remove_prefix(&r, &none);
		for (int i = 0; prefix && code == EXIT_OK_ && i < c->n_args; i++)
			code = remove_prefix(&r, &keys[i]);
		if (!all && !prefix)
			code = remove_keys(&r, keys, (size_t)c->n_args);
		rm_done(&r, all || prefix, code);
		store_close(&r.s);
	}
	free(keys);
	return code;
}

/* ---- explain ---- */

static void facts_out(struct cli *c, const struct pml_op *op)
{
	struct buf b = BUF_INIT(1 << 20);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_key(&j, "facts");
	json_arr(&j);
	for (size_t i = 0; i < pml_op_n_facts(op); i++) {
		const char *name = "", *value = "";
		char a[80], v[600];
		pml_op_fact(op, i, &name, &value);
		if (!c->json) {
			fprintf(c->out, "%-12s %s\n", print_clean(a, sizeof(a), name),
				print_clean(v, sizeof(v), value));
			continue;
		}
		json_obj(&j);
		json_kv_str(&j, "name", name);
		json_kv_str(&j, "value", value);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	if (c->json)
		print_json(c, &b);
	buf_fini(&b);
}

int cmd_explain(struct cli *c)
{
	struct store s;
	struct store_key key;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op = NULL;
	enum err e = store_key_read(c->args[0], false, &key, &c->why);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	int code = store_open(c, &s);
	if (code != EXIT_OK_)
		return code;
	o.deadline_ms = store_left_ms(&s);
	if (pml_explain(s.p, key.p, key.n, &o, &op, &err) == PML_ERR_NONE)
		facts_out(c, op);
	else
		code = store_fail(&s, &err);
	pml_op_free(op);
	store_close(&s);
	return code;
}

/* ---- forget ---- */

int cmd_forget(struct cli *c)
{
	struct store s;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	int code = store_open(c, &s);
	if (code != EXIT_OK_)
		return code;
	o.deadline_ms = store_left_ms(&s);
	if (pml_forget(s.p, c->args[0], &o, &err) != PML_ERR_NONE)
		code = store_fail(&s, &err);
	else if (!c->json)
		fprintf(c->out, "%s is forgotten; should it come back, it comes back empty\n",
			c->args[0]);
	else
		fprintf(c->out, "{\"forgotten\":true}\n");
	store_close(&s);
	return code;
}
