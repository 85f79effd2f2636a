/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo ep check` and `pomelo ep bench`: no cluster is needed. */
#include "ctl.h"
#include "ep_try.h"
#include "print.h"

#include <errno.h>
#include <string.h>

static enum err number(struct cli *c, const char *flag, uint32_t *v)
{
	const char *s = cli_value(c, flag);
	char *end = NULL;
	if (!s)
		return ERR_NONE;
	errno = 0;
	unsigned long n = strtoul(s, &end, 10);
	if (errno || end == s || *end || *s < '0' || *s > '9' || n > 1000000000)
		return why_set(&c->why, ERR_INVALID_PARAMS, "%s %.40s: a number is needed",
			       flag, s);
	*v = (uint32_t)n;
	return ERR_NONE;
}

static enum err numbers(struct cli *c, struct ep_try *t)
{
	uint32_t device = 0;
	const struct {
		const char *flag;
		uint32_t *v;
	} rows[] = { { "--ranks", &t->ranks },	   { "--tokens", &t->tokens },
		     { "--hidden", &t->hidden },   { "--top-k", &t->top_k },
		     { "--experts", &t->experts }, { "--steps", &t->steps },
		     { "--device", &device } };
	enum err e = ERR_NONE;
	for (size_t i = 0; i < ARRAY_LEN(rows) && e == ERR_NONE; i++)
		e = number(c, rows[i].flag, rows[i].v);
	t->device = (int)device;
	t->transport = cli_value(c, "--transport");
	return e;
}

static void json_head(struct json *j, const struct ep_try *t, const struct ep_try_result *r)
{
	json_obj(j);
	json_kv_str(j, "transport", r->transport);
	json_kv_str(j, "chosen", r->said);
	json_kv_u64(j, "ranks", t->ranks);
	json_kv_u64(j, "tokens", t->tokens);
	json_kv_u64(j, "hidden", t->hidden);
	json_kv_u64(j, "top_k", t->top_k);
	json_kv_u64(j, "experts", t->experts);
	json_kv_u64(j, "steps", r->steps);
}

int cmd_ep_check(struct cli *c)
{
	struct ep_try t = {
		.ranks = 4, .tokens = 32, .hidden = 1024, .top_k = 4, .experts = 16, .steps = 8
	};
	struct ep_try_result r;
	struct buf b = BUF_INIT(8192);
	struct json j = JSON_OUT(&b);
	enum err e = numbers(c, &t);
	if (e == ERR_NONE)
		e = ep_try_check(&t, &r, &c->why);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	if (c->json) {
		json_head(&j, &t, &r);
		json_kv_u64(&j, "differences", r.differences);
		json_kv_str(&j, "first", r.first);
		json_end(&j);
		print_json(c, &b);
	} else {
		if (r.said[0])
			fprintf(c->out, "%s\n", r.said);
		fprintf(c->out,
			"%s: %u ranks, %u experts, hidden %u, top_k %u, %u tokens a rank: %llu steps, ",
			r.transport, t.ranks, t.experts, t.hidden, t.top_k, t.tokens,
			(unsigned long long)r.steps);
		if (r.differences)
			fprintf(c->out, "%llu numbers differ, first %s\n",
				(unsigned long long)r.differences, r.first);
		else
			fprintf(c->out, "all equal to the plain sum\n");
	}
	if (r.differences)
		return cli_fail(c, ERR_CORRUPT,
				"%llu numbers differ from the plain sum, first %s",
				(unsigned long long)r.differences, r.first);
	return EXIT_OK_;
}

static double gbps(const struct ep_try_phase *p)
{
	return (double)p->bytes / p->us / 1e3;
}

int cmd_ep_bench(struct cli *c)
{
	struct ep_try t = {
		.ranks = 2, .tokens = 128, .hidden = 7168, .top_k = 8, .experts = 16, .steps = 9
	};
	struct ep_try_result r;
	struct buf b = BUF_INIT(8192);
	struct json j = JSON_OUT(&b);
	enum err e = numbers(c, &t);
	if (e == ERR_NONE)
		e = ep_try_bench(&t, &r, &c->why);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	const struct {
		const char *name;
		const struct ep_try_phase *p;
	} rows[] = { { "dispatch_fp8", &r.dispatch_fp8 },
		     { "dispatch_bf16", &r.dispatch_bf16 },
		     { "combine", &r.combine },
		     { "combine_zero_copy", &r.combine_zero_copy } };
	if (c->json) {
		json_head(&j, &t, &r);
		json_key(&j, "copy_gbps");
		json_double(&j, r.copy_gbps);
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			json_key(&j, rows[i].name);
			json_obj(&j);
			json_key(&j, "us");
			json_double(&j, rows[i].p->us);
			json_kv_u64(&j, "bytes", rows[i].p->bytes);
			json_key(&j, "ratio");
			json_double(&j, gbps(rows[i].p) / r.copy_gbps);
			json_end(&j);
		}
		json_end(&j);
		print_json(c, &b);
		return EXIT_OK_;
	}
	static const char *const heads[] = { "phase", ">us", ">bytes", ">GB/s", ">of copy" };
	struct print_table tab;
	print_table_init(&tab, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char us[32], bytes[32], rate[32], ratio[32];
		snprintf(us, sizeof(us), "%.1f", rows[i].p->us);
		print_bytes(bytes, sizeof(bytes), rows[i].p->bytes);
		snprintf(rate, sizeof(rate), "%.2f", gbps(rows[i].p));
		snprintf(ratio, sizeof(ratio), "%.2f", gbps(rows[i].p) / r.copy_gbps);
		print_table_row(&tab,
				(const char *const[]){ rows[i].name, us, bytes, rate, ratio });
	}
	if (r.said[0])
		fprintf(c->out, "%s\n", r.said);
	fprintf(c->out,
		"%s: %u ranks, %u tokens a rank, hidden %u, top_k %u, %u experts; copy %.1f GB/s\n",
		r.transport, t.ranks, t.tokens, t.hidden, t.top_k, t.experts, r.copy_gbps);
	print_table_put(&tab, c->out);
	print_table_fini(&tab);
	return EXIT_OK_;
}
