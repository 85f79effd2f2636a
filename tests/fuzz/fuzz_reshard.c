/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of placements, stored manifests, bindings, plans and files of safetensors: the first byte says which. What is accepted
 * must come out canonical: read again, the same digest. Memory stays under the limit given.
 */
#include "base/buf.h"
#include "reshard/bind.h"
#include "reshard/layout.h"
#include "reshard/plan.h"
#include "reshard/plan_read.h"

static const struct place_limits lim = {
	{ 1 << 20, 1 << 16, 16 }, 64 << 20, 1 << 20, NULL, NULL
};

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static struct text_out out;

static void again(const struct place *p)
{
	struct buf b = BUF_INIT((size_t)1 << 26);
	struct place *q = NULL;
	struct reject why;
	text_init(&out, NULL, false);
	out.put = to_buf;
	out.arg = &b;
	place_text(p, &out);
	text_flush(&out);
	/* an accepted text may be as long as the limit, and escapes make it longer */
	enum err e = place_read(buf_bytes(&b), PLACE_WIRE, &lim, &why, &q);
	if (e == ERR_NONE)
		assert(memcmp(p->digest, q->digest, SHA_HEX) == 0);
	else
		assert(why.rule == RULE_LIMIT_TEXT_BYTES);
	place_free(q);
	buf_fini(&b);
}

static void plan(const struct place *p)
{
	struct plan_ask a = { .source = p, .target = p, .lim = PLAN_LIMITS_WIDE };
	struct plan *q = NULL;
	struct reject why;
	a.lim.work = 1 << 20;
	a.lim.max_transfer_regions = 1 << 16;
	if (plan_make(&a, &why, &q) == ERR_NONE) {
		struct buf b = BUF_INIT((size_t)1 << 26);
		struct listed_plan *l = NULL;
		text_init(&out, NULL, false);
		out.put = to_buf;
		out.arg = &b;
		plan_text(q, &out);
		text_flush(&out);
		if (listed_plan_read(buf_bytes(&b), &lim, &why, &l) == ERR_NONE)
			assert(l->n_ops == q->n_ops);
		listed_plan_free(l);
		buf_fini(&b);
	}
	plan_free(q);
}

/* A layout over two tensors. */
static void layout(struct bytes text)
{
	static const char head[] =
		"{\"a.0\":{\"dtype\":\"F32\",\"shape\":[4,6],\"data_offsets\":[0,96]},"
		"\"b.1.2\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[96,97]}}";
	struct layout *l = NULL;
	struct st_header *h = NULL;
	struct place *p = NULL;
	struct reject why;
	enum err e = st_header_read(BYTES_STR(head), 8 + strlen(head) + 97, &lim, &why, &h);
	assert(e == ERR_NONE);
	if (layout_read(text, &lim, &why, &l) == ERR_NONE &&
	    layout_place(l, (const struct st_header *const *)&h, 1, &lim, &why, &p) == ERR_NONE)
		again(p);
	place_free(p);
	layout_free(l);
	st_header_free(h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct reject why;
	struct place *p = NULL;
	struct stored *s = NULL;
	struct bindings *b = NULL;
	if (!n)
		return 0;
	struct bytes text = BYTES(data + 1, n - 1);
	if (data[0] == 'l') {
		struct listed_plan *l = NULL;
		if (listed_plan_read(text, &lim, &why, &l) == ERR_NONE)
			listed_plan_free(l);
		return 0;
	}
	if (data[0] == 'h') {
		struct st_header *h = NULL;
		uint64_t file = 8 + text.n + (text.n ? text.p[text.n - 1] : 0);
		if (st_header_read(text, file, &lim, &why, &h) == ERR_NONE)
			st_header_free(h);
		return 0;
	}
	if (data[0] == 'y') {
		layout(text);
		return 0;
	}
	if (data[0] == 's') {
		if (stored_read(text, &lim, &why, &s) == ERR_NONE)
			stored_free(s);
		return 0;
	}
	enum place_form form = data[0] == 'w'	? PLACE_WIRE
			       : data[0] == 'p' ? PLACE_PARTS
						: PLACE_DRAFT;
	if (data[0] == 'b') {
		const char tiny[] =
			"{\"parts\":[{\"fragments\":[{\"aliases\":[],\"global_offset\":[0],"
			"\"local_shape\":[4],\"nbytes\":8,\"placement_fragment_id\":\"f\","
			"\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0},\"tensor_id\":\"w\"}],"
			"\"participant_id\":\"w0\",\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}}],"
			"\"placement_set_id\":\"s\",\"resource_id\":\"m\","
			"\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"tensors\":[{"
			"\"dtype\":\"bfloat16\",\"expert_id\":null,\"global_shape\":[4],"
			"\"itemsize\":2,\"layer_id\":null,\"layout_fingerprint\":\"row-major:v1\","
			"\"parallel_axes\":[],\"shard_dims\":[],\"tensor_id\":\"w\"}],\"topology\":{"
			"\"dp_size\":1,\"ep_size\":1,\"participants\":[{\"participant_id\":\"w0\","
			"\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}}],\"pp_size\":1,"
			"\"tp_size\":1},\"weight_generation\":1}";
		enum err e = place_read(BYTES_STR(tiny), PLACE_DRAFT, &lim, &why, &p);
		assert(e == ERR_NONE);
		if (bind_read(text, p, &lim, &why, &b) == ERR_NONE)
			bind_free(b);
	} else if (place_read(text, form, &lim, &why, &p) == ERR_NONE) {
		again(p);
		plan(p);
	} else {
		assert(why.rule != RULE_NONE);
	}
	place_free(p);
	return 0;
}
