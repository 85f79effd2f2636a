/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo trace-replay`: options, progress, report. The run itself: replay.h. */
#include "base/conf.h"
#include "ctl.h"
#include "print.h"
#include "replay.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { PROGRESS_MS = 200, BAR = 24 };

struct cmd_replay {
	struct cli *c;
	struct where dir;
	struct trace trace;
	struct trace_facts facts;
	struct replay_opts o;
	struct replay *run;
	struct replay_result res;
	int interrupt_fd;
};

/* ---- options ---- */

static enum err read_block(struct cli *c, uint64_t *v)
{
	const char *s = cli_value(c, "--block");
	uint64_t n = 0;
	if (!s)
		return ERR_NONE;
	if (!conf_parse_size(s, &n) || n == 0 || n > REPLAY_BLOCK_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "--block %.40s: a size from 1 byte to 256MiB is expected; write "
			       "64KiB or bytes",
			       s);
	*v = n;
	return ERR_NONE;
}

static enum err read_scale(struct cli *c, double *v)
{
	const char *s = cli_value(c, "--time-scale");
	char *end = NULL;
	if (!s)
		return ERR_NONE;
	double d = strtod(s, &end);
	if (end == s || *end || strspn(s, "0123456789.") != strlen(s) || !(d <= 1000))
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"--time-scale %.40s: a number from 0 to 1000 is expected; 0: flat "
			"out, 1: as the trace was recorded, 0.1: ten times as fast",
			s);
	*v = d;
	return ERR_NONE;
}

static enum err read_prefix(struct cli *c, const char **v)
{
	const char *s = cli_value(c, "--prefix");
	if (!s)
		return ERR_NONE;
	if (!*s || strlen(s) > REPLAY_PREFIX_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "--prefix %.40s: 1 to %d bytes; keys are PREFIX/BLOCK/ID", s,
			       REPLAY_PREFIX_MAX);
	*v = s;
	return ERR_NONE;
}

static enum err read_options(struct cmd_replay *k, uint64_t *limit)
{
	struct cli *c = k->c;
	uint64_t clients = 1, bytes;
	char text[32];
	k->o = (struct replay_opts){ .block_bytes = 64 << 10, .prefix = "trace" };
	enum err e = read_block(c, &k->o.block_bytes);
	if (e == ERR_NONE)
		e = cli_number(c, "--clients", 1, REPLAY_CLIENTS_MAX, &clients);
	if (e == ERR_NONE)
		e = cli_number(c, "--limit", 1, TRACE_REQUESTS_MAX, limit);
	if (e == ERR_NONE)
		e = read_scale(c, &k->o.time_scale);
	if (e == ERR_NONE)
		e = read_prefix(c, &k->o.prefix);
	if (e != ERR_NONE)
		return e;
	k->o.clients = (uint32_t)clients;
	bytes = replay_buffer_bytes(k->o.block_bytes, k->o.clients);
	if (bytes > REPLAY_BUFFER_MAX)
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"%u clients with blocks of this size take buffers of %s, at most "
			"8 GiB: fewer --clients or a smaller --block",
			k->o.clients, print_bytes(text, sizeof(text), bytes));
	return ERR_NONE;
}

/* ---- the report ---- */

static double share(uint64_t part, uint64_t whole)
{
	return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* "182,790"; out: 27 bytes are enough for any. */
static const char *text_count(char *out, size_t size, uint64_t n)
{
	char digits[24];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n), at = 0;
	for (size_t i = 0; i < len && at + 2 < size; i++) {
		if (i && (len - i) % 3 == 0)
			out[at++] = ',';
		out[at++] = digits[i];
	}
	out[at] = '\0';
	return out;
}

static void row(struct print_table *t, const char *name, uint64_t n, uint64_t block,
		uint64_t whole, const char *note)
{
	char count[32], bytes[32], part[16];
	snprintf(part, sizeof(part), "%.2f %%", share(n, whole));
	const char *cells[] = { name, text_count(count, sizeof(count), n),
				print_bytes(bytes, sizeof(bytes), n * block), part, note };
	print_table_row(t, cells);
}

static void put_table(const struct cmd_replay *k)
{
	static const char *const heads[] = { "blocks", ">number", ">bytes", ">share", "" };
	const struct replay_counts *n = &k->res.n;
	uint64_t size = k->o.block_bytes, all = n->references;
	char best[32], note[96];
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	snprintf(note, sizeof(note), "at most %s with room for all",
		 text_count(best, sizeof(best), k->facts.prefix_hits));
	row(&t, "asked for", all, size, all, "prefix blocks of all requests");
	row(&t, "hits in memory", n->hits_memory, size, all, note);
	row(&t, "hits on disk", n->hits_disk, size, all, "");
	row(&t, "misses", n->misses, size, all, "");
	row(&t, "got", n->got, size, all, "each compared, byte by byte");
	row(&t, "put", n->put, size, all, "");
	row(&t, "put by others", n->existing, size, all, "meanwhile");
	row(&t, "lost", n->lost, size, all, "evicted between exists and get");
	row(&t, "wrong bytes", n->wrong, size, all, "");
	row(&t, "errors", n->errors, size, all, "");
	print_table_put(&t, k->c->out);
	print_table_fini(&t);
}

static void put_report(const struct cmd_replay *k)
{
	const struct replay_result *r = &k->res;
	double s = r->seconds > 0 ? r->seconds : 1e-9;
	char reqs[32], gets[32], puts[32], block[32];
	put_table(k);
	fprintf(k->c->out,
		"\n%s requests in %.1f s: %.0f a second, p50 %.2f ms, p99 %.2f ms\n"
		"got %s/s, put %s/s; %u client%s, blocks of %s\n",
		text_count(reqs, sizeof(reqs), r->n.requests), r->seconds,
		(double)r->n.requests / s, (double)r->p50_us / 1e3, (double)r->p99_us / 1e3,
		print_bytes(gets, sizeof(gets), (uint64_t)((double)r->n.bytes_got / s)),
		print_bytes(puts, sizeof(puts), (uint64_t)((double)r->n.bytes_put / s)),
		k->o.clients, k->o.clients == 1 ? "" : "s",
		print_bytes(block, sizeof(block), k->o.block_bytes));
}

static void put_json(const struct cmd_replay *k)
{
	const struct replay_result *r = &k->res;
	struct buf b = BUF_INIT(65536);
	struct json j = JSON_OUT(&b);
	json_obj(&j);
	json_kv_u64(&j, "requests", r->n.requests);
	json_kv_u64(&j, "references", r->n.references);
	json_kv_u64(&j, "blocks_put", r->n.put);
	json_kv_u64(&j, "blocks_got", r->n.got);
	json_kv_u64(&j, "hits_memory", r->n.hits_memory);
	json_kv_u64(&j, "hits_disk", r->n.hits_disk);
	json_kv_u64(&j, "misses", r->n.misses);
	json_kv_u64(&j, "put_by_others", r->n.existing);
	json_kv_u64(&j, "lost", r->n.lost);
	json_kv_u64(&j, "errors", r->n.errors);
	json_kv_u64(&j, "wrong_bytes", r->n.wrong);
	json_key(&j, "seconds");
	json_double(&j, r->seconds);
	json_kv_u64(&j, "bytes_put", r->n.bytes_put);
	json_kv_u64(&j, "bytes_got", r->n.bytes_got);
	json_kv_u64(&j, "p50_us", r->p50_us);
	json_kv_u64(&j, "p99_us", r->p99_us);
	json_kv_u64(&j, "prefix_hits_possible", k->facts.prefix_hits);
	json_kv_u64(&j, "distinct", k->facts.distinct);
	json_kv_u64(&j, "block", k->o.block_bytes);
	json_kv_u64(&j, "clients", k->o.clients);
	json_kv_str(&j, "first_error", r->first.code ? r->first.text : "");
	json_end(&j);
	print_json(k->c, &b);
}

/* What it comes to. With --json the report stays the last line, unless the run could not go on. */
static int judge(const struct cmd_replay *k)
{
	const struct replay_result *r = &k->res;
	struct cli *c = k->c;
	char text[320];
	const char *peer = r->first.peer[0] ? r->first.peer : "pomelo";
	if (r->ended)
		return cli_fail(c, (enum err)r->first.code,
				"stopped after %" PRIu64 " of %zu requests: %s: %s",
				r->n.requests, k->trace.n, peer, r->first.text);
	if (r->n.wrong)
		fprintf(c->err, "pomelo: %" PRIu64 " blocks arrived with wrong bytes\n",
			r->n.wrong);
	if (r->n.errors)
		fprintf(c->err, "pomelo: %" PRIu64 " blocks failed; the first: %s: %s\n",
			r->n.errors, peer, print_clean(text, sizeof(text), r->first.text));
	if (r->stopped)
		fprintf(c->err, "pomelo: interrupted after %" PRIu64 " of %zu requests\n",
			r->n.requests, k->trace.n);
	return r->n.wrong    ? EXIT_TYPED_
	       : r->stopped  ? EXIT_INTERRUPTED_
	       : r->n.errors ? EXIT_SOME_
			     : EXIT_OK_;
}

/* ---- the run ---- */

static void show(const struct cmd_replay *k, uint64_t start_ns)
{
	char bar[BAR + 1], rate[32];
	uint64_t n, bytes, of = k->trace.n;
	double s = (double)(ctl_now_ns() - start_ns) / 1e9;
	replay_progress(k->run, &n, &bytes);
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)(n * BAR / of));
	bar[BAR] = '\0';
	print_progress(k->c, "[%s] %3d %%  %" PRIu64 " of %" PRIu64 " requests, %s/s", bar,
		       (int)(n * 100 / of), n, of,
		       print_bytes(rate, sizeof(rate),
				   (uint64_t)((double)bytes / MAX_OF(s, 0.001))));
}

static int run(struct cmd_replay *k)
{
	struct pml_error err = PML_ERROR_INIT;
	uint64_t start_ns = ctl_now_ns();
	if (replay_start(&k->o, &k->run, &err) != PML_ERR_NONE)
		return cli_fail(k->c, (enum err)err.code, "%s", err.text);
	int fd = k->interrupt_fd;
	/* an eventfd that is readable ends the wait; Ctrl-C asks the clients to end first */
	for (bool over = false; !over;) {
		uint64_t n;
		if (ctl_wait(fd, replay_fd(k->run), PROGRESS_MS) == ERR_CANCELLED) {
			replay_stop(k->run);
			fd = -1;
		}
		show(k, start_ns);
		over = read(replay_fd(k->run), &n, sizeof(n)) == sizeof(n);
	}
	print_progress_end(k->c);
	replay_end(k->run, &k->res);
	if (!k->c->json && (k->res.n.requests > 0 || !k->res.ended))
		put_report(k);
	else if (k->c->json && !k->res.ended)
		put_json(k);
	return judge(k);
}

int cmd_trace_replay(struct cli *c)
{
	struct cmd_replay k = { .c = c, .interrupt_fd = -1 };
	uint64_t limit = 0;
	enum err e = read_options(&k, &limit);
	if (e == ERR_NONE)
		e = ctl_dirs(c, &k.dir);
	if (e == ERR_NONE)
		e = trace_read(c->args[0], limit, &k.trace, &c->why);
	if (e == ERR_NONE && trace_facts(&k.trace, &k.facts) != ERR_NONE)
		e = why_set(&c->why, ERR_NO_MEMORY, "no memory for the trace's blocks");
	if (e != ERR_NONE) {
		trace_free(&k.trace);
		return cli_exit_of(e);
	}
	k.o.trace = &k.trace;
	k.o.open = ctl_open_opts(c, &k.dir);
	if (ctl_catch_interrupt(&k.interrupt_fd) != ERR_NONE)
		k.interrupt_fd = -1;
	int code = run(&k);
	if (k.interrupt_fd >= 0)
		close(k.interrupt_fd);
	replay_free(k.run);
	trace_free(&k.trace);
	return code;
}
