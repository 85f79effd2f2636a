/* SPDX-License-Identifier: Apache-2.0 */
/* weights plan: in this process, or by the cluster's planner (--remote); printed alike. */
#include "pml_weights.h"
#include "reshard/names.h"
#include "weights.h"

#include <inttypes.h>
#include <string.h>

/* What is printed of a plan: bytes from source participant (or the store) to target participant. */
struct traffic {
	struct bytes *rows,
		*cols; /* names, sorted; what they point to lives as long as the plan */
	uint32_t n_rows, n_cols;
	uint64_t *bytes; /* n_rows * n_cols, row: source */
	uint64_t n_regions, segments, total_bytes, n_sources, n_targets, n_routes;
};

static void traffic_free(struct traffic *t)
{
	free(t->rows);
	free(t->cols);
	free(t->bytes);
}

static bool traffic_alloc(struct traffic *t)
{
	t->rows = calloc(MAX_OF(t->n_rows, 1), sizeof(*t->rows));
	t->cols = calloc(MAX_OF(t->n_cols, 1), sizeof(*t->cols));
	t->bytes =
		calloc((size_t)MAX_OF(t->n_rows, 1) * MAX_OF(t->n_cols, 1), sizeof(*t->bytes));
	return t->rows && t->cols && t->bytes;
}

/* ---- printing ---- */

/* One character a pair: how much of the largest pair's bytes it carries. */
static void put_blocks(struct cli *c, const struct traffic *t)
{
	static const char *const blocks[] = { " ", "\u2591", "\u2592", "\u2593", "\u2588" };
	uint64_t most = 1;
	if (t->n_rows > WEIGHTS_BLOCKS_MAX || t->n_cols > WEIGHTS_BLOCKS_MAX) {
		fprintf(c->out, "\n(more than %u ranks a side: no table of blocks)\n",
			WEIGHTS_BLOCKS_MAX);
		return;
	}
	for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++)
		most = MAX_OF(most, t->bytes[i]);
	fprintf(c->out, "\nbytes from (rows) to (columns, %u targets), darkest is the most\n",
		t->n_cols);
	for (uint32_t r = 0; r < t->n_rows; r++) {
		char name[64];
		fprintf(c->out, "%16.16s |", weights_name(name, sizeof(name), t->rows[r]));
		for (uint32_t k = 0; k < t->n_cols; k++) {
			uint64_t b = t->bytes[(size_t)r * t->n_cols + k];
			fputs(blocks[b ? 1 + (unsigned)((double)b / (double)most * 3.0) : 0],
			      c->out);
		}
		fputs("|\n", c->out);
	}
}

static void put_pairs(struct cli *c, const struct traffic *t)
{
	static const char *const heads[] = { "FROM", "TO", ">BYTES" };
	size_t n = (size_t)t->n_rows * t->n_cols, top[WEIGHTS_TOP];
	uint32_t k = 0;
	struct print_table out;
	print_table_init(&out, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < n; i++) {
		uint32_t at = k;
		while (at > 0 && t->bytes[top[at - 1]] < t->bytes[i])
			at--;
		if (at == WEIGHTS_TOP || !t->bytes[i])
			continue;
		k = MIN_OF(k + 1, WEIGHTS_TOP);
		memmove(top + at + 1, top + at, (k - 1 - at) * sizeof(*top));
		top[at] = i;
	}
	for (uint32_t i = 0; i < k; i++) {
		char from[64], to[64], size[32];
		const char *row[] = { weights_name(from, sizeof(from),
						   t->rows[top[i] / t->n_cols]),
				      weights_name(to, sizeof(to), t->cols[top[i] % t->n_cols]),
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

static void put_json(struct cli *c, const struct traffic *t, struct bytes digest)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_u64(&j, "regions", t->n_regions);
	json_kv_u64(&j, "total_segments", t->segments);
	json_kv_u64(&j, "total_bytes", t->total_bytes);
	json_kv_u64(&j, "source_executors", t->n_sources);
	json_kv_u64(&j, "target_executors", t->n_targets);
	json_kv_u64(&j, "pipeline_routes", t->n_routes);
	weights_kv(&j, "plan_digest", digest);
	json_key(&j, "pairs");
	json_arr(&j);
	for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++) {
		if (!t->bytes[i])
			continue;
		json_obj(&j);
		weights_kv(&j, "from", t->rows[i / t->n_cols]);
		weights_kv(&j, "to", t->cols[i % t->n_cols]);
		json_kv_u64(&j, "bytes", t->bytes[i]);
		json_end(&j);
	}
	json_end(&j);
	json_end(&j);
	print_json(c, &b);
	buf_fini(&b);
}

static void put(struct cli *c, const struct traffic *t, struct bytes digest)
{
	char size[32];
	if (c->json) {
		put_json(c, t, digest);
		return;
	}
	fprintf(c->out,
		"%" PRIu64 " regions, %s in %" PRIu64 " segments, %zu pairs of ranks, %" PRIu64
		" routes\n",
		t->n_regions, weights_big(size, sizeof(size), t->total_bytes), t->segments,
		count_pairs(t), t->n_routes);
	fprintf(c->out, "plan    %.*s\n", (int)digest.n, (const char *)digest.p);
	put_blocks(c, t);
	put_pairs(c, t);
}

static int no_memory(struct cli *c, const struct traffic *t)
{
	return cli_fail(c, ERR_NO_MEMORY, "a table of %u sources and %u targets", t->n_rows,
			t->n_cols);
}

/* ---- in this process ---- */

static bool digest_of(const struct plan *p, char out[SHA_HEX])
{
	struct sha sha = { 0 };
	struct text_out *o = malloc(sizeof(*o));
	bool ok = o && sha_init(&sha) == ERR_NONE;
	if (ok) {
		text_init(o, &sha, false);
		plan_text(p, o);
		text_flush(o);
		sha_hex(&sha, out);
	}
	sha_fini(&sha);
	free(o);
	return ok;
}

static bool traffic_of(const struct plan *p, struct traffic *t)
{
	*t = (struct traffic){ .n_rows = p->source ? p->source->n_parts : 1,
			       .n_cols = p->target->n_parts };
	if (!traffic_alloc(t))
		return false;
	for (uint32_t i = 0; i < t->n_rows; i++)
		t->rows[i] = p->source ? p->source->parts[i].id : BYTES_STR("store");
	for (uint32_t i = 0; i < t->n_cols; i++)
		t->cols[i] = p->target->parts[i].id;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		struct region r;
		uint32_t row = p->source ? p->source->frags[p->ops[i].source].part : 0;
		plan_region(p, i, &r);
		t->bytes[(size_t)row * t->n_cols + p->target->frags[p->ops[i].target].part] +=
			r.inner_bytes * r.segments;
	}
	t->n_regions = p->n_ops;
	t->segments = p->total_segments;
	t->n_sources = p->n_sources;
	t->n_targets = p->n_targets;
	t->n_routes = p->n_routes;
	t->total_bytes = (uint64_t)MIN_OF(p->total_bytes, (unsigned __int128)UINT64_MAX);
	return true;
}

static int show_local(struct cli *c, const struct plan *p)
{
	char digest[SHA_HEX];
	struct traffic t;
	if (!traffic_of(p, &t) || !digest_of(p, digest)) {
		traffic_free(&t);
		return no_memory(c, &t);
	}
	put(c, &t, BYTES(digest, SHA_HEX));
	traffic_free(&t);
	return EXIT_OK_;
}

static int plan_local(struct cli *c, const struct manifest *s, const struct manifest *t)
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
	int rc = show_local(c, p);
	plan_free(p);
	return rc;
}

/* ---- by the planner ---- */

struct collect {
	struct names rows, cols;
	struct arena mem;
	uint32_t *row_at, *col_at; /* number of a name -> place among the sorted */
};

static struct bytes name_of(const void *ctx, uint32_t i)
{
	return ((const struct bytes *)ctx)[i];
}

static struct bytes from_of(const struct pml_region *r)
{
	return r->source_participant.n ? BYTES(r->source_participant.p, r->source_participant.n)
				       : BYTES_STR("store");
}

/* The names in order, and where each number went. */
static uint32_t *in_order(const struct names *n, struct bytes *out)
{
	uint32_t *order = calloc(MAX_OF(n->n, 1), sizeof(*order)),
		 *at = calloc(MAX_OF(n->n, 1), sizeof(*at));
	bool ok = order && at && names_sort(name_of, n->name, n->n, order, NULL);
	for (uint32_t i = 0; ok && i < n->n; i++) {
		at[order[i]] = i;
		out[i] = n->name[order[i]];
	}
	free(order);
	if (ok)
		return at;
	free(at);
	return NULL;
}

static int each_region(const struct pml_plan *p, uint64_t n, struct collect *k,
		       struct traffic *t, struct pml_error *err)
{
	for (uint64_t i = 0; i < n; i++) {
		struct pml_region r = { .size = sizeof(r) };
		int e = pml_plan_region(p, i, &r, err);
		if (e)
			return e;
		uint32_t row = names_put(&k->rows, from_of(&r), &k->mem);
		uint32_t col = names_put(&k->cols,
					 BYTES(r.target_participant.p, r.target_participant.n),
					 &k->mem);
		if (row == NAMES_NONE || col == NAMES_NONE)
			return PML_ERR_NO_MEMORY;
		if (t->bytes)
			t->bytes[(size_t)k->row_at[row] * t->n_cols + k->col_at[col]] +=
				r.inner_bytes * r.segments;
	}
	return PML_ERR_NONE;
}

/* Once for the names, once for the bytes. */
static int traffic_of_remote(const struct pml_plan *p, struct collect *k, struct traffic *t,
			     struct pml_error *err)
{
	struct pml_plan_info info = PML_PLAN_INFO_INIT;
	int e = pml_plan_info(p, &info, err);
	t->n_regions = info.n_regions;
	t->segments = info.total_segments;
	t->total_bytes = info.total_bytes;
	t->n_sources = info.n_sources;
	t->n_targets = info.n_targets;
	t->n_routes = info.n_routes;
	if (!e)
		e = each_region(p, info.n_regions, k, t, err);
	if (e)
		return e;
	t->n_rows = k->rows.n;
	t->n_cols = k->cols.n;
	if (!traffic_alloc(t))
		return PML_ERR_NO_MEMORY;
	k->row_at = in_order(&k->rows, t->rows);
	k->col_at = in_order(&k->cols, t->cols);
	if (!k->row_at || !k->col_at)
		return PML_ERR_NO_MEMORY;
	return each_region(p, info.n_regions, k, t, err);
}

static int fail(struct cli *c, const struct pml_error *err)
{
	char clean[sizeof(err->text)];
	return cli_fail(c, (enum err)err->code, "%s",
			print_clean(clean, sizeof(clean), err->text));
}

static int show_remote(struct cli *c, const struct pml_plan *p)
{
	struct collect k = { .mem = ARENA_INIT((size_t)1 << 30) };
	struct traffic t = { 0 };
	struct pml_error err = PML_ERROR_INIT;
	int e = traffic_of_remote(p, &k, &t, &err);
	const char *digest = pml_plan_digest(p);
	if (!e && digest)
		put(c, &t, BYTES_STR(digest));
	int rc = !e && digest ? EXIT_OK_ : err.code ? fail(c, &err) : no_memory(c, &t);
	traffic_free(&t);
	names_fini(&k.rows);
	names_fini(&k.cols);
	arena_fini(&k.mem);
	free(k.row_at);
	free(k.col_at);
	return rc;
}

static struct pml_remote_side side_of(const struct manifest *m)
{
	static const int form[] = { PML_PLACEMENT_WIRE, PML_PLACEMENT_DRAFT,
				    PML_PLACEMENT_PARTS, PML_STORED };
	return (struct pml_remote_side){ m->text.p, m->text.n, form[m->kind], NULL };
}

static int plan_remote(struct cli *c, const struct manifest *s, const struct manifest *t)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_remote_opts o = PML_REMOTE_OPTS_INIT;
	struct pml_call_opts call = PML_CALL_OPTS_INIT;
	struct where d;
	struct pml *p = NULL;
	struct pml_plan *plan = NULL;
	if (t->kind == KIND_STORED)
		return cli_fail(c, ERR_INVALID_PARAMS,
				"%s: stored weights; the target is a placement", c->args[1]);
	enum err w = ctl_dirs(c, &d);
	if (w)
		return cli_fail(c, w, "%s", c->why.text);
	if (ctl_open(c, &d, &p, &err) != PML_ERR_NONE)
		return fail(c, &err);
	o.source = side_of(s);
	o.target = side_of(t);
	o.participant = cli_value(c, "--participant");
	o.local = cli_has(c, "--local");
	call.deadline_ms = (uint32_t)MIN_OF(c->deadline_ms, (uint64_t)UINT32_MAX);
	int rc = pml_plan_remote(p, &o, &call, &plan, &err) == PML_ERR_NONE
			 ? show_remote(c, plan)
			 : fail(c, &err);
	pml_plan_free(plan);
	pml_close(p);
	return rc;
}

/* The planner reads no files: a layout is made a placement here. */
static int make_sendable(struct cli *c, const char *path, struct manifest *m)
{
	if (m->kind != KIND_LAYOUT)
		return EXIT_OK_;
	int rc = weights_layout(c, path, m);
	return rc == EXIT_OK_ ? weights_canonical(c, m) : rc;
}

int cmd_weights_plan(struct cli *c)
{
	struct manifest s, t = { 0 };
	bool remote = cli_has(c, "--remote");
	int (*load)(struct cli *, const char *, struct manifest *) =
		remote ? weights_load : weights_open;
	int rc = load(c, c->args[0], &s);
	if (rc == EXIT_OK_)
		rc = load(c, c->args[1], &t);
	if (rc == EXIT_OK_ && remote)
		rc = make_sendable(c, c->args[0], &s);
	if (rc == EXIT_OK_ && remote)
		rc = make_sendable(c, c->args[1], &t);
	if (rc == EXIT_OK_)
		rc = remote ? plan_remote(c, &s, &t) : plan_local(c, &s, &t);
	weights_free(&s);
	weights_free(&t);
	return rc;
}
