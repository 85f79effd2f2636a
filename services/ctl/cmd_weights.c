/* SPDX-License-Identifier: Apache-2.0 */
/* weights show, validate, plan: manifests in files, read and planned in this process. */
#include "ctl.h"
#include "print.h"
#include "reshard/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define TOP	   10 /* largest tensors or transfers listed */
#define BLOCKS_MAX 64 /* ranks a side that the table of blocks shows */

struct manifest {
	struct buf text;
	struct place *place; /* one of the two */
	struct stored *stored;
};

static void manifest_free(struct manifest *m)
{
	buf_fini(&m->text);
	place_free(m->place);
	stored_free(m->stored);
}

static int read_file(struct cli *c, const char *path, struct buf *b)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return cli_fail(c, err_from_errno(errno), "%s: %s", path, strerror(errno));
	for (size_t n = 1; n && !buf_err(b);) {
		uint8_t *p = buf_room(b, 1 << 16);
		n = p ? fread(p, 1, 1 << 16, f) : 0;
		buf_advance(b, n);
	}
	bool bad = ferror(f);
	fclose(f);
	if (bad)
		return cli_fail(c, ERR_IO, "%s: cannot be read", path);
	if (buf_err(b))
		return cli_fail(c, buf_err(b), "%s: longer than %zu bytes", path, b->limit);
	return EXIT_OK_;
}

enum kind { KIND_WIRE, KIND_DRAFT, KIND_PARTS, KIND_STORED };

/* What the keys of the text say; a text that is none of the four is read as a placement, so that the
 * refusal says what is wrong. */
static enum kind kind_of(struct bytes text)
{
	static const struct json_field fields[] = {
		JSON_FIELD_OPT("parts"),
		JSON_FIELD_OPT("placement_id"),
		JSON_FIELD_OPT("placement_set_id"),
		JSON_FIELD_OPT("resource_id"),
		JSON_FIELD_OPT("resource_kind"),
		JSON_FIELD_OPT("revision"),
		JSON_FIELD_OPT("tensors"),
		JSON_FIELD_OPT("topology"),
		JSON_FIELD_OPT("weight_generation"),
		JSON_FIELD_OPT("created_at"),
		JSON_FIELD_OPT("fragments"),
		JSON_FIELD_OPT("group_id"),
		JSON_FIELD_OPT("manifest_key"),
		JSON_FIELD_OPT("namespace"),
	};
	static const struct json_limits lim = JSON_LIMITS;
	struct arena mem = ARENA_INIT((size_t)1 << 30);
	struct reject why = { 0 };
	struct json_in r;
	struct json_obj o = { 0 };
	bool ok = json_in_open(&r, text, &lim, &mem, &why) &&
		  json_in_obj(&r, &o, fields, ARRAY_LEN(fields));
	while (ok && json_in_key(&r, &o) >= 0)
		ok = json_in_skip(&r);
	arena_fini(&mem);
	if (!o.whole)
		return KIND_WIRE;
	if (o.seen >> 12 & 1)
		return KIND_STORED;
	if (o.seen >> 1 & 1)
		return KIND_WIRE;
	return o.seen >> 6 & 1 ? KIND_DRAFT : KIND_PARTS;
}

static int manifest_open(struct cli *c, const char *path, struct manifest *m)
{
	static const struct place_limits lim = PLACE_LIMITS;
	static const enum place_form form[] = { PLACE_WIRE, PLACE_DRAFT, PLACE_PARTS };
	struct reject why = { 0 };
	struct why line = { 0 };
	*m = (struct manifest){ .text = BUF_INIT((size_t)4 << 30) };
	int rc = read_file(c, path, &m->text);
	if (rc)
		return rc;
	struct bytes text = buf_bytes(&m->text);
	enum kind k = kind_of(text);
	enum err e = k == KIND_STORED ? stored_read(text, &lim, &why, &m->stored)
				      : place_read(text, form[k], &lim, &why, &m->place);
	if (e == ERR_NONE)
		return EXIT_OK_;
	if (why.rule == RULE_NONE)
		return cli_fail(c, e, "%s: %s", path, err_text(e));
	reject_why(&why, &line);
	char clean[sizeof(line.text)];
	return cli_fail(c, e, "%s: %s", path, print_clean(clean, sizeof(clean), line.text));
}

/* ---- show ---- */

struct totals {
	uint32_t tensors, fragments, participants;
	unsigned __int128 model, held; /* bytes of the tensors, and of all fragments */
};

static unsigned __int128 tensor_bytes(const struct tensor *t)
{
	return box_shape_volume(t->shape, t->n_dims) * t->itemsize;
}

static struct totals totals_of(const struct manifest *m)
{
	const struct place *p = m->place;
	const struct stored *s = m->stored;
	struct totals t = { p ? p->n_tensors : s->n_tensors, p ? p->n_frags : s->n_frags,
			    p ? p->n_parts : 0, 0, 0 };
	for (uint32_t i = 0; i < t.tensors; i++)
		t.model += tensor_bytes(p ? &p->tensors[i] : &s->tensors[i]);
	for (uint32_t i = 0; i < t.fragments; i++)
		t.held += p ? p->frags[i].nbytes : s->frags[i].nbytes;
	return t;
}

static const char *big(char *out, size_t size, unsigned __int128 n)
{
	return print_bytes(out, size, n > UINT64_MAX ? UINT64_MAX : (uint64_t)n);
}

static const char *text_of(char *out, size_t size, struct bytes b)
{
	char raw[160];
	snprintf(raw, sizeof(raw), "%.*s", (int)MIN_OF(b.n, sizeof(raw) - 1),
		 (const char *)b.p);
	return print_clean(out, size, raw);
}

static void kv_bytes(struct json *j, const char *key, struct bytes b)
{
	json_key(j, key);
	json_bytes(j, b);
}

static void show_json(struct cli *c, const struct manifest *m, const struct totals *t)
{
	struct buf b = BUF_INIT(1 << 20);
	struct json j = JSON_OUT(&b);
	const struct place *p = m->place;
	const struct stored *s = m->stored;
	json_obj(&j);
	json_kv_str(&j, "kind", p ? "placement" : "stored");
	kv_bytes(&j, "resource_id", p ? p->resource_id : s->resource_id);
	kv_bytes(&j, "revision", p ? p->revision : s->revision);
	json_kv_u64(&j, "weight_generation", p ? p->generation : s->generation);
	if (p)
		kv_bytes(&j, "placement_id", BYTES(p->id, DERIVED_ID_LEN));
	kv_bytes(&j, "digest", BYTES(p ? p->digest : s->digest, SHA_HEX));
	json_kv_u64(&j, "tensors", t->tensors);
	json_kv_u64(&j, "fragments", t->fragments);
	json_kv_u64(&j, "participants", t->participants);
	json_kv_u64(&j, "model_bytes", (uint64_t)MIN_OF(t->model, UINT64_MAX));
	json_kv_u64(&j, "held_bytes", (uint64_t)MIN_OF(t->held, UINT64_MAX));
	json_kv_u64(&j, "text_bytes", p ? p->text_bytes : s->text_bytes);
	json_end(&j);
	print_json(c, &b);
	buf_fini(&b);
}

/* The TOP largest tensors, by one pass. */
static void show_tensors(struct cli *c, const struct manifest *m, uint32_t n)
{
	static const char *const heads[] = { "TENSOR", "DTYPE", ">BYTES" };
	const struct tensor *all = m->place ? m->place->tensors : m->stored->tensors;
	const struct tensor *top[TOP];
	uint32_t k = 0;
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = k;
		while (at > 0 && tensor_bytes(top[at - 1]) < tensor_bytes(&all[i]))
			at--;
		if (at == TOP)
			continue;
		k = MIN_OF(k + 1, TOP);
		memmove(top + at + 1, top + at, (k - 1 - at) * sizeof(*top));
		top[at] = &all[i];
	}
	for (uint32_t i = 0; i < k; i++) {
		char name[128], dtype[32], size[32];
		const char *row[] = { text_of(name, sizeof(name), top[i]->id),
				      text_of(dtype, sizeof(dtype), top[i]->dtype),
				      big(size, sizeof(size), tensor_bytes(top[i])) };
		print_table_row(&t, row);
	}
	fprintf(c->out, "\nlargest tensors\n");
	print_table_put(&t, c->out);
	print_table_fini(&t);
}

static void show_text(struct cli *c, const struct manifest *m, const struct totals *t)
{
	char a[128], b[128], model[32], held[32];
	const struct place *p = m->place;
	const struct stored *s = m->stored;
	fprintf(c->out, "%s %s, revision %s, generation %" PRIu64 "\n",
		p ? "placement of" : "stored weights of",
		text_of(a, sizeof(a), p ? p->resource_id : s->resource_id),
		text_of(b, sizeof(b), p ? p->revision : s->revision),
		p ? p->generation : s->generation);
	if (p)
		fprintf(c->out, "id      %.*s\n", DERIVED_ID_LEN, p->id);
	fprintf(c->out, "digest  %.*s\n", SHA_HEX, p ? p->digest : s->digest);
	fprintf(c->out, "%u tensors, %u fragments", t->tensors, t->fragments);
	if (p)
		fprintf(c->out,
			" on %u ranks (dp %" PRIu64 ", pp %" PRIu64 ", ep %" PRIu64
			", tp %" PRIu64 ")",
			p->n_parts, p->size[AX_DP], p->size[AX_PP], p->size[AX_EP],
			p->size[AX_TP]);
	fprintf(c->out, "\nmodel   %s; held %s\n", big(model, sizeof(model), t->model),
		big(held, sizeof(held), t->held));
	show_tensors(c, m, t->tensors);
}

int cmd_weights_show(struct cli *c)
{
	struct manifest m;
	int rc = manifest_open(c, c->args[0], &m);
	if (rc == EXIT_OK_) {
		struct totals t = totals_of(&m);
		if (c->json)
			show_json(c, &m, &t);
		else
			show_text(c, &m, &t);
	}
	manifest_free(&m);
	return rc;
}

/* ---- validate ---- */

int cmd_weights_validate(struct cli *c)
{
	struct manifest m;
	int rc = manifest_open(c, c->args[0], &m);
	if (rc == EXIT_OK_) {
		struct totals t = totals_of(&m);
		if (c->json)
			show_json(c, &m, &t);
		else
			fprintf(c->out,
				"valid: %u tensors whole in %u fragments; digest %.*s\n",
				t.tensors, t.fragments, SHA_HEX,
				m.place ? m.place->digest : m.stored->digest);
	}
	manifest_free(&m);
	return rc;
}

/* ---- plan ---- */

/* Bytes from source part (or column 0: the store) to target part. */
struct traffic {
	uint64_t *bytes; /* n_rows * n_cols, row: source */
	uint32_t n_rows, n_cols;
};

static bool traffic_of(const struct plan *p, struct traffic *t)
{
	t->n_rows = p->source ? p->source->n_parts : 1;
	t->n_cols = p->target->n_parts;
	t->bytes = calloc((size_t)t->n_rows * t->n_cols, sizeof(*t->bytes));
	if (!t->bytes)
		return false;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		struct region r;
		uint32_t row = p->source ? p->source->frags[p->ops[i].source].part : 0;
		plan_region(p, i, &r);
		t->bytes[(size_t)row * t->n_cols + p->target->frags[p->ops[i].target].part] +=
			r.inner_bytes * r.segments;
	}
	return true;
}

static struct bytes row_name(const struct plan *p, uint32_t row)
{
	return p->source ? p->source->parts[row].id : BYTES_STR("store");
}

/* One character a pair: how much of the largest pair's bytes it carries. */
static void put_blocks(struct cli *c, const struct plan *p, const struct traffic *t)
{
	static const char *const blocks[] = { " ", "\u2591", "\u2592", "\u2593", "\u2588" };
	uint64_t most = 1;
	if (t->n_rows > BLOCKS_MAX || t->n_cols > BLOCKS_MAX) {
		fprintf(c->out, "\n(more than %u ranks a side: no table of blocks)\n",
			BLOCKS_MAX);
		return;
	}
	for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++)
		most = MAX_OF(most, t->bytes[i]);
	fprintf(c->out, "\nbytes from (rows) to (columns, %u targets), darkest is the most\n",
		t->n_cols);
	for (uint32_t r = 0; r < t->n_rows; r++) {
		char name[64];
		fprintf(c->out, "%16.16s |", text_of(name, sizeof(name), row_name(p, r)));
		for (uint32_t k = 0; k < t->n_cols; k++) {
			uint64_t b = t->bytes[(size_t)r * t->n_cols + k];
			fputs(blocks[b ? 1 + (unsigned)((double)b / (double)most * 3.0) : 0],
			      c->out);
		}
		fputs("|\n", c->out);
	}
}

static void put_pairs(struct cli *c, const struct plan *p, struct traffic *t)
{
	static const char *const heads[] = { "FROM", "TO", ">BYTES" };
	size_t n = (size_t)t->n_rows * t->n_cols, top[TOP];
	uint32_t k = 0;
	struct print_table out;
	print_table_init(&out, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < n; i++) {
		uint32_t at = k;
		while (at > 0 && t->bytes[top[at - 1]] < t->bytes[i])
			at--;
		if (at == TOP || !t->bytes[i])
			continue;
		k = MIN_OF(k + 1, TOP);
		memmove(top + at + 1, top + at, (k - 1 - at) * sizeof(*top));
		top[at] = i;
	}
	for (uint32_t i = 0; i < k; i++) {
		char from[64], to[64], size[32];
		const char *row[] = { text_of(from, sizeof(from),
					      row_name(p, (uint32_t)(top[i] / t->n_cols))),
				      text_of(to, sizeof(to),
					      p->target->parts[top[i] % t->n_cols].id),
				      print_bytes(size, sizeof(size), t->bytes[top[i]]) };
		print_table_row(&out, row);
	}
	fprintf(c->out, "\nlargest transfers\n");
	print_table_put(&out, c->out);
	print_table_fini(&out);
}

static size_t count_pairs(const struct traffic *t)
{
	size_t n = 0;
	for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++)
		n += t->bytes[i] != 0;
	return n;
}

static void plan_json(struct cli *c, const struct plan *p, const struct traffic *t)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_u64(&j, "regions", p->n_ops);
	json_kv_u64(&j, "total_segments", p->total_segments);
	json_kv_u64(&j, "total_bytes", (uint64_t)MIN_OF(p->total_bytes, UINT64_MAX));
	json_kv_u64(&j, "source_executors", p->n_sources);
	json_kv_u64(&j, "target_executors", p->n_targets);
	json_kv_u64(&j, "pipeline_routes", p->n_routes);
	json_key(&j, "pairs");
	json_arr(&j);
	for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++) {
		if (!t->bytes[i])
			continue;
		json_obj(&j);
		kv_bytes(&j, "from", row_name(p, (uint32_t)(i / t->n_cols)));
		kv_bytes(&j, "to", p->target->parts[i % t->n_cols].id);
		json_kv_u64(&j, "bytes", t->bytes[i]);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	print_json(c, &b);
	buf_fini(&b);
}

static int plan_show(struct cli *c, const struct plan *p)
{
	struct traffic t;
	char size[32];
	if (!traffic_of(p, &t))
		return cli_fail(c, ERR_NO_MEMORY, "a table of %u sources and %u targets",
				t.n_rows, t.n_cols);
	if (c->json) {
		plan_json(c, p, &t);
	} else {
		fprintf(c->out,
			"%u regions, %s in %" PRIu64
			" segments, %zu pairs of ranks, %u routes\n",
			p->n_ops, big(size, sizeof(size), p->total_bytes), p->total_segments,
			count_pairs(&t), p->n_routes);
		put_blocks(c, p, &t);
		put_pairs(c, p, &t);
	}
	free(t.bytes);
	return EXIT_OK_;
}

static int plan_them(struct cli *c, const struct manifest *s, const struct manifest *t)
{
	const char *who = cli_value(c, "--participant");
	struct plan_ask a = { .source = s->place,
			      .stored = s->stored,
			      .target = t->place,
			      .lim = PLAN_LIMITS_WIDE,
			      .local = who || cli_has(c, "--local") };
	struct reject why;
	struct why line = { 0 };
	struct plan *p = NULL;
	if (!t->place)
		return cli_fail(c, ERR_INVALID_PARAMS,
				"%s: stored weights; the target is a placement", c->args[1]);
	if (who)
		a.participant = BYTES_STR(who);
	enum err e = plan_make(&a, &why, &p);
	if (e) {
		reject_why(&why, &line);
		char clean[sizeof(line.text)];
		return cli_fail(c, e, "%s",
				why.rule ? print_clean(clean, sizeof(clean), line.text)
					 : err_text(e));
	}
	int rc = plan_show(c, p);
	plan_free(p);
	return rc;
}

int cmd_weights_plan(struct cli *c)
{
	struct manifest s, t = { 0 };
	int rc = manifest_open(c, c->args[0], &s);
	if (rc == EXIT_OK_)
		rc = manifest_open(c, c->args[1], &t);
	if (rc == EXIT_OK_)
		rc = plan_them(c, &s, &t);
	manifest_free(&s);
	manifest_free(&t);
	return rc;
}
