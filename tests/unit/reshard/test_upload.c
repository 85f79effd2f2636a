/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: which fragments, their operations and keys, the manifest; tensors owned along dp. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "reshard/stored.h"
#include "reshard/upload_set.h"
#include "tests/support/leak.h"

TestSuite(reshard_upload, .timeout = 20);

#define TXN "0123456789abcdef0123456789abcdef"

/* Two DP ranks of two TP ranks. "w" is cut over tp, on both; "own" is whole, on rank (dp own_dp, tp 0)
 * and, when both is set, on (1 - own_dp, 0) too. */
struct setup {
	bool owned, both;
	int own_dp;
	uint64_t generation[4]; /* of participant dp * 2 + tp; 0: not bound */
};

struct made {
	struct buf draft, bindings;
	struct place *p;
	struct bindings *b;
};

static void frag(struct buf *b, const char *tensor, int dp, int tp, int offset, int n)
{
	buf_printf(
		b,
		"%s{\"tensor_id\":\"%s\",\"global_offset\":[%d],\"local_shape\":[%d],"
		"\"nbytes\":%d,\"aliases\":[],\"rank\":{\"dp\":%d,\"ep\":0,\"pp\":0,\"tp\":%d}}",
		b->p[b->n - 1] == '[' ? "" : ",", tensor, offset, n, 4 * n, dp, tp);
}

static void tensor(struct buf *b, const char *name, const char *axes, const char *shard)
{
	buf_printf(
		b,
		"%s{\"dtype\":\"f32\",\"expert_id\":null,\"global_shape\":[8],\"itemsize\":4,"
		"\"layer_id\":null,\"layout_fingerprint\":\"l\",\"parallel_axes\":[%s],"
		"\"shard_dims\":[%s],\"tensor_id\":\"%s\"}",
		b->p[b->n - 1] == '[' ? "" : ",", axes, shard, name);
}

static void write_draft(struct buf *b, const struct setup *s)
{
	buf_printf(
		b,
		"{\"placement_set_id\":\"s\",\"resource_id\":\"m/1\","
		"\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"weight_generation\":3,"
		"\"topology\":{\"dp_size\":2,\"ep_size\":1,\"pp_size\":1,\"tp_size\":2,"
		"\"participants\":[");
	for (int i = 0; i < 4; i++)
		buf_printf(
			b,
			"%s{\"participant_id\":\"p%d\",\"rank\":{\"dp\":%d,\"ep\":0,\"pp\":0,"
			"\"tp\":%d}}",
			i ? "," : "", i, i / 2, i % 2);
	buf_printf(b, "]},\"tensors\":[");
	tensor(b, "w",
	       "{\"kind\":\"dp\",\"semantics\":\"replicated\"},{\"kind\":\"tp\","
	       "\"semantics\":\"split\",\"dim\":0}",
	       "0");
	if (s->owned)
		tensor(b, "own",
		       "{\"kind\":\"dp\",\"semantics\":\"ownership\"},{\"kind\":\"tp\","
		       "\"semantics\":\"ownership\"}",
		       "");
	buf_printf(b, "],\"parts\":[");
	for (int i = 0; i < 4; i++) {
		buf_printf(
			b,
			"%s{\"participant_id\":\"p%d\",\"rank\":{\"dp\":%d,\"ep\":0,\"pp\":0,"
			"\"tp\":%d},\"fragments\":[",
			i ? "," : "", i, i / 2, i % 2);
		frag(b, "w", i / 2, i % 2, i % 2 * 4, 4);
		if (s->owned && i % 2 == 0 && (s->both || i / 2 == s->own_dp))
			frag(b, "own", i / 2, 0, 0, 8);
		buf_printf(b, "]}");
	}
	buf_printf(b, "]}");
}

static void bind_frag(struct buf *b, const struct frag *f, uint32_t i)
{
	uint64_t at = 4096 + 65536ull * f->part + 4096 * i;
	buf_printf(
		b,
		"%s{\"address\":%llu,\"device\":\"d\",\"endpoint\":\"e\",\"fragment_id\":\"f%u\","
		"\"itemsize\":4,\"local_shape\":[%llu],\"nbytes\":%llu,"
		"\"placement_fragment_id\":\"%.*s\",\"storage_address\":%llu,"
		"\"storage_nbytes\":%llu,\"storage_offset_bytes\":0,\"strides_bytes\":[4],"
		"\"worker_id\":\"w%u\"}",
		i ? "," : "", (unsigned long long)at, i, (unsigned long long)f->box[1],
		(unsigned long long)f->nbytes, (int)f->id.n, (const char *)f->id.p,
		(unsigned long long)at, (unsigned long long)f->nbytes, f->part);
}

static void write_bindings(struct buf *b, const struct place *p, const struct setup *s)
{
	buf_printf(b, "[");
	for (uint32_t i = 0; i < p->n_parts; i++) {
		buf_printf(b, "%s{\"fragments\":[", i ? "," : "");
		for (uint32_t k = 0; k < p->parts[i].n; k++)
			bind_frag(b, &p->frags[p->parts[i].first + k], k);
		buf_printf(
			b,
			"],\"generation\":%llu,\"instance_id\":\"i%u\",\"lease_id\":\"l%u\","
			"\"participant_id\":\"p%u\",\"placement_digest\":\"%.*s\","
			"\"placement_id\":\"%.*s\",\"resource_id\":\"m/1\",\"revision\":\"r\"}",
			(unsigned long long)s->generation[i], i, i, i, SHA_HEX, p->digest,
			DERIVED_ID_LEN, p->id);
	}
	buf_printf(b, "]");
}

static void make(struct made *m, const struct setup *s)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	*m = (struct made){ .draft = BUF_INIT(1 << 16), .bindings = BUF_INIT(1 << 16) };
	write_draft(&m->draft, s);
	cr_assert_eq(place_read(buf_bytes(&m->draft), PLACE_DRAFT, &lim, &why, &m->p), ERR_NONE,
		     "%s at %s: %s", rule_name(why.rule), why.path, why.text);
	write_bindings(&m->bindings, m->p, s);
	cr_assert_eq(bind_read(buf_bytes(&m->bindings), m->p, &lim, &why, &m->b), ERR_NONE,
		     "%s at %s: %s", rule_name(why.rule), why.path, why.text);
}

static void drop(struct made *m)
{
	bind_free(m->b);
	place_free(m->p);
	buf_fini(&m->draft);
	buf_fini(&m->bindings);
}

static enum rule upload(const struct made *m, bool allow, struct upload_set **out)
{
	struct upload_opts o = UPLOAD_OPTS;
	struct upload_names n = { .transaction = BYTES_STR(TXN) };
	struct reject why;
	o.allow_dp_owned = allow;
	enum err e = upload_set_make(m->p, m->b, &n, BYTES_STR("now"), &o, &why, out);
	cr_assert_eq(e != ERR_NONE, why.rule != RULE_NONE);
	return why.rule;
}

static bool put(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

/* The manifest is one: it reads back, whole, with the digest the set has. */
static void check_manifest(const struct upload_set *s, uint32_t n_frags)
{
	static struct text_out o;
	static const struct place_limits lim = PLACE_LIMITS;
	struct buf b = BUF_INIT(1 << 20);
	struct stored *d = NULL;
	struct reject why;
	text_init(&o, NULL, true);
	o.put = put;
	o.arg = &b;
	upload_set_text(s, &o);
	text_flush(&o);
	cr_assert_eq(stored_read(buf_bytes(&b), &lim, &why, &d), ERR_NONE, "%s at %s: %s",
		     rule_name(why.rule), why.path, why.text);
	cr_expect_eq(memcmp(d->digest, s->digest, SHA_HEX), 0);
	cr_expect_eq(d->n_frags, n_frags);
	cr_expect_eq(d->generation, 3);
	stored_free(d);
	buf_fini(&b);
}

Test(reshard_upload, one_operation_a_box)
{
	struct setup s = { .generation = { 7, 7, 7, 7 } };
	struct made m;
	struct upload_set *u = NULL;
	make(&m, &s);
	cr_assert_eq(upload(&m, false, &u), RULE_NONE);
	cr_expect_eq(u->n_ops, 2);
	cr_expect(u->plan->has_dp);
	cr_expect_eq(u->plan->dp, 0);
	cr_expect_str_eq(u->base, "weights/default/m%2F1/r/3");
	cr_expect_str_eq(u->manifest_key, "weights/default/m%2F1/r/3/manifest");
	cr_expect_str_eq(u->control_key,
			 "weights/default/m%2F1/r/3/transactions/" TXN "/decision");
	for (uint32_t i = 0; i < 2; i++) {
		const struct upload_op *o = &u->ops[i];
		const struct binding *b = &m.b->b[o->binding];
		char want[160];
		snprintf(want, sizeof(want), "%s/payload/%s/%.24s", u->base, TXN, o->id);
		cr_expect(bytes_eq(o->object_key, BYTES_STR(want)));
		cr_expect_eq(o->object_offset, 0);
		cr_expect_eq(o->nbytes, 16);
		cr_expect_eq(b->part, i, "participants of dp 0, in the order of boxes");
		cr_expect_eq(b->frags[o->bound].frag, o->frag);
		cr_expect_not(o->dp_owned);
	}
	check_manifest(u, 2);
	upload_set_free(u);
	drop(&m);
	NO_LEAKS();
}

Test(reshard_upload, the_operations_as_text)
{
	static struct text_out o;
	struct setup s = { .owned = true, .own_dp = 1, .generation = { 7, 7, 7, 7 } };
	struct made m;
	struct upload_set *u = NULL;
	struct buf b = BUF_INIT(1 << 16);
	make(&m, &s);
	cr_assert_eq(upload(&m, true, &u), RULE_NONE);
	text_init(&o, NULL, true);
	o.put = put;
	o.arg = &b;
	upload_set_ops_text(u, &o);
	text_flush(&o);
	buf_put(&b, "", 1);
	const char *t = (const char *)b.p;
	cr_expect(strstr(t, "\"dp_owned\":1,\"source\":{\"address\":"));
	cr_expect(
		strstr(t,
		       "\"instance_id\":\"i2\",\"lease_id\":\"l2\",\"participant_id\":\"p2\""));
	cr_expect(strstr(t, "\"source_dp\":0,"));
	cr_expect(strstr(
		t, "\"transaction_group_id\":\"weights/default/m%2F1/r/3/transactions/" TXN));
	upload_set_free(u);
	buf_fini(&b);
	drop(&m);
	NO_LEAKS();
}

static const struct {
	struct setup s;
	bool allow;
	enum rule rule;
	uint32_t n_ops, n_owned, owner;
} cases[] = {
	{ { true, false, 0, { 7, 7, 7, 7 } }, false, RULE_UPLOAD_DP_OWNED, 0, 0, 0 },
	{ { true, false, 0, { 7, 7, 7, 7 } }, true, RULE_NONE, 3, 1, 0 },
	{ { true, false, 1, { 7, 7, 7, 7 } }, true, RULE_NONE, 3, 1, 2 },
	/* two owners: which one is declared? */
	{ { true, true, 0, { 7, 7, 7, 7 } }, true, RULE_PLAN_DP_OWNER, 0, 0, 0 },
	/* dp 1 alone is consistent, and the owner is of its generation */
	{ { true, false, 1, { 7, 8, 9, 9 } }, true, RULE_NONE, 3, 1, 2 },
	/* the owner's generation is another */
	{ { true, false, 0, { 7, 8, 9, 9 } }, true, RULE_UPLOAD_GENERATIONS_DIFFER, 0, 0, 0 },
	{ { false, false, 0, { 7, 7, 9, 9 } }, true, RULE_UPLOAD_GENERATIONS_DIFFER, 0, 0, 0 },
	{ { false, false, 0, { 7, 8, 9, 6 } },
	  true,
	  RULE_UPLOAD_NO_CONSISTENT_REPLICA,
	  0,
	  0,
	  0 },
	{ { false, false, 0, { 7, 8, 9, 9 } }, false, RULE_NONE, 2, 0, 0 },
};

Test(reshard_upload, owners_and_generations)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct made m;
		struct upload_set *u = NULL;
		make(&m, &cases[i].s);
		enum rule r = upload(&m, cases[i].allow, &u);
		cr_expect_eq(r, cases[i].rule, "case %zu: %s", i, rule_name(r));
		if (u) {
			cr_expect_eq(u->n_ops, cases[i].n_ops);
			cr_expect_eq(u->plan->n_dp_owned, cases[i].n_owned, "the plan says so");
			for (uint32_t k = 0; k < u->n_ops; k++)
				if (u->ops[k].dp_owned)
					cr_expect_eq(m.b->b[u->ops[k].binding].part,
						     cases[i].owner);
			check_manifest(u, cases[i].n_ops);
		}
		upload_set_free(u);
		drop(&m);
	}
	NO_LEAKS();
}

Test(reshard_upload, names_are_checked)
{
	struct setup s = { .generation = { 7, 7, 7, 7 } };
	static const struct upload_opts o = UPLOAD_OPTS;
	struct upload_names bad[] = {
		{ .transaction = BYTES("xyz", 3) },
		{ .transaction = BYTES(TXN, 32), .prefix = BYTES("//", 2) },
		{ .transaction = BYTES(TXN, 32), .ns = BYTES("", 0) },
	};
	struct made m;
	make(&m, &s);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct upload_set *u = NULL;
		struct reject why;
		cr_expect_eq(upload_set_make(m.p, m.b, &bad[i], BYTES_STR("t"), &o, &why, &u),
			     ERR_INVALID_PARAMS);
		cr_expect_eq(why.rule, RULE_UPLOAD_NAMES, "%s", why.text);
		cr_expect_null(u);
	}
	drop(&m);
	NO_LEAKS();
}
