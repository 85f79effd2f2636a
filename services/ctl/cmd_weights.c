/* SPDX-License-Identifier: Apache-2.0 */
/* weights show, validate; and how all weights commands read manifests in files. */
#include "weights.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

void weights_free(struct manifest *m)
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

/* What the keys of the text say; a text that is none of the five is read as a placement, so that the
 * refusal says what is wrong. */
static enum weights_kind kind_of(struct bytes text)
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
		JSON_FIELD_OPT("files"),
		JSON_FIELD_OPT("layout_fingerprint"),
		JSON_FIELD_OPT("rules"),
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
	if (o.seen >> 16 & 1)
		return KIND_LAYOUT;
	if (o.seen >> 12 & 1)
		return KIND_STORED;
	if (o.seen >> 1 & 1)
		return KIND_WIRE;
	return o.seen >> 6 & 1 ? KIND_DRAFT : KIND_PARTS;
}

int weights_load(struct cli *c, const char *path, struct manifest *m)
{
	*m = (struct manifest){ .text = BUF_INIT((size_t)4 << 30) };
	int rc = read_file(c, path, &m->text);
	if (rc == EXIT_OK_)
		m->kind = kind_of(buf_bytes(&m->text));
	return rc;
}

int weights_refused(struct cli *c, const char *path, enum err e, const struct reject *why)
{
	struct why line = { 0 };
	if (why->rule == RULE_NONE)
		return cli_fail(c, e, "%s: %s", path, err_text(e));
	reject_why(why, &line);
	char clean[sizeof(line.text)];
	return cli_fail(c, e, "%s: %s", path, print_clean(clean, sizeof(clean), line.text));
}

int weights_open(struct cli *c, const char *path, struct manifest *m)
{
	static const struct place_limits lim = PLACE_LIMITS;
	static const enum place_form form[] = { PLACE_WIRE, PLACE_DRAFT, PLACE_PARTS };
	struct reject why = { 0 };
	int rc = weights_load(c, path, m);
	if (rc)
		return rc;
	struct bytes text = buf_bytes(&m->text);
	enum weights_kind k = m->kind;
	if (k == KIND_LAYOUT)
		return weights_layout(c, path, m);
	enum err e = k == KIND_STORED ? stored_read(text, &lim, &why, &m->stored)
				      : place_read(text, form[k], &lim, &why, &m->place);
	return e == ERR_NONE ? EXIT_OK_ : weights_refused(c, path, e, &why);
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

const char *weights_big(char *out, size_t size, unsigned __int128 n)
{
	return print_bytes(out, size, n > UINT64_MAX ? UINT64_MAX : (uint64_t)n);
}

const char *weights_name(char *out, size_t size, struct bytes b)
{
	char raw[160];
	snprintf(raw, sizeof(raw), "%.*s", (int)MIN_OF(b.n, sizeof(raw) - 1),
		 (const char *)b.p);
	return print_clean(out, size, raw);
}

void weights_kv(struct json *j, const char *key, struct bytes b)
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
	weights_kv(&j, "resource_id", p ? p->resource_id : s->resource_id);
	weights_kv(&j, "revision", p ? p->revision : s->revision);
	json_kv_u64(&j, "weight_generation", p ? p->generation : s->generation);
	if (p)
		weights_kv(&j, "placement_id", BYTES(p->id, DERIVED_ID_LEN));
	weights_kv(&j, "digest", BYTES(p ? p->digest : s->digest, SHA_HEX));
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

/* The largest tensors, by one pass. */
static void show_tensors(struct cli *c, const struct manifest *m, uint32_t n)
{
	static const char *const heads[] = { "TENSOR", "DTYPE", ">BYTES" };
	const struct tensor *all = m->place ? m->place->tensors : m->stored->tensors;
	const struct tensor *top[WEIGHTS_TOP];
	uint32_t k = 0;
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = k;
		while (at > 0 && tensor_bytes(top[at - 1]) < tensor_bytes(&all[i]))
			at--;
		if (at == WEIGHTS_TOP)
			continue;
		k = MIN_OF(k + 1, WEIGHTS_TOP);
		memmove(top + at + 1, top + at, (k - 1 - at) * sizeof(*top));
		top[at] = &all[i];
	}
	for (uint32_t i = 0; i < k; i++) {
		char name[128], dtype[32], size[32];
		const char *row[] = { weights_name(name, sizeof(name), top[i]->id),
				      weights_name(dtype, sizeof(dtype), top[i]->dtype),
				      weights_big(size, sizeof(size), tensor_bytes(top[i])) };
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
		weights_name(a, sizeof(a), p ? p->resource_id : s->resource_id),
		weights_name(b, sizeof(b), p ? p->revision : s->revision),
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
	fprintf(c->out, "\nmodel   %s; held %s\n", weights_big(model, sizeof(model), t->model),
		weights_big(held, sizeof(held), t->held));
	show_tensors(c, m, t->tensors);
}

int cmd_weights_show(struct cli *c)
{
	struct manifest m;
	int rc = weights_open(c, c->args[0], &m);
	if (rc == EXIT_OK_) {
		struct totals t = totals_of(&m);
		if (c->json)
			show_json(c, &m, &t);
		else
			show_text(c, &m, &t);
	}
	weights_free(&m);
	return rc;
}

/* ---- validate ---- */

int cmd_weights_validate(struct cli *c)
{
	struct manifest m;
	int rc = weights_open(c, c->args[0], &m);
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
	weights_free(&m);
	return rc;
}
