/* SPDX-License-Identifier: Apache-2.0 */
/* `pomelo bench`: options, room for the objects, what was measured. One benchmark: measure.h. */
#include "base/conf.h"
#include "ctl.h"
#include "measure.h"
#include "print.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_MS = 200, ROWS = 3, OBJECTS_MAX = 65536 };
#define SLOT_BYTES	 8192u /* of a pool, for each copy that it may have (agent.slots) */
#define SET_BYTES_MAX	 (256ull << 20) /* unless the calls under way take more */
#define OBJECT_BYTES_MAX (1ull << 30)

static const struct row {
	const char *name;
	enum measure_op op;
} rows[ROWS] = {
	{ "put", MEASURE_PUT },
	{ "get", MEASURE_GET },
	{ "exists", MEASURE_EXISTS },
};

struct bench {
	struct cli *c;
	struct where dir;
	struct measure_opts o;
	char prefix[MEASURE_PREFIX_MAX];
	uint64_t seconds;
	double load;
	int interrupt_fd;
	bool interrupted;
	bool wanted[ROWS], done[ROWS];
	struct measure_result res[ROWS];
};

/* ---- options ---- */

static enum err read_size(struct cli *c, uint64_t *v)
{
	const char *s = cli_value(c, "--size");
	uint64_t n = 0;
	if (!s)
		return ERR_NONE;
	if (!conf_parse_size(s, &n) || n == 0 || n > OBJECT_BYTES_MAX)
		return why_set(
			&c->why, ERR_INVALID_PARAMS,
			"--size %.40s: a size from 1 byte to 1GiB is expected; write 4KiB "
			"or bytes",
			s);
	*v = n;
	return ERR_NONE;
}

static enum err read_names(struct bench *b)
{
	struct cli *c = b->c;
	for (int i = 0; i < c->n_args; i++) {
		size_t k = 0;
		while (k < ROWS && strcmp(rows[k].name, c->args[i]) != 0)
			k++;
		if (k == ROWS)
			return why_set(
				&c->why, ERR_INVALID_PARAMS,
				"%.40s: no such benchmark; there are put, get and exists",
				c->args[i]);
		b->wanted[k] = true;
	}
	for (size_t k = 0; c->n_args == 0 && k < ROWS; k++)
		b->wanted[k] = true;
	return ERR_NONE;
}

static enum err read_options(struct bench *b)
{
	uint64_t clients = 1, batch = 32, flights = 4;
	char text[32];
	b->o.bytes = 4096;
	b->seconds = 3;
	enum err e = read_names(b);
	if (e == ERR_NONE)
		e = read_size(b->c, &b->o.bytes);
	if (e == ERR_NONE)
		e = cli_number(b->c, "--clients", 1, MEASURE_CLIENTS_MAX, &clients);
	if (e == ERR_NONE)
		e = cli_number(b->c, "--batch", 1, PML_ITEMS_MAX, &batch);
	if (e == ERR_NONE)
		e = cli_number(b->c, "--flights", 1, MEASURE_FLIGHTS_MAX, &flights);
	if (e == ERR_NONE)
		e = cli_number(b->c, "--seconds", 1, 3600, &b->seconds);
	if (e != ERR_NONE)
		return e;
	b->o.clients = (uint32_t)clients;
	b->o.batch = (uint32_t)batch;
	b->o.flights = (uint32_t)flights;
	uint64_t bytes = measure_buffer_bytes(&b->o);
	if (bytes > MEASURE_BUFFER_MAX)
		return why_set(
			&b->c->why, ERR_INVALID_PARAMS,
			"%u clients with %u calls of %u objects of this size take buffers of "
			"%s, at most 8 GiB: less of one of them",
			b->o.clients, b->o.flights, b->o.batch,
			print_bytes(text, sizeof(text), bytes));
	return ERR_NONE;
}

/* ---- room ---- */

/* What the pools have free: a put must not drive out what others have put. */
static int free_bytes(struct bench *b, struct pml *p, uint64_t *out)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_op *op = NULL;
	if (pml_holders(p, &o, &op, &err) != PML_ERR_NONE)
		return cli_fail(b->c, (enum err)err.code, "master: %s", err.text);
	*out = 0;
	for (size_t i = 0; i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		if (pml_op_holder(op, i, &h) == PML_ERR_NONE && strcmp(h.kind, "agent") == 0 &&
		    strcmp(h.state, "in") == 0)
			*out += h.bytes_total - MIN_OF(h.bytes_used, h.bytes_total);
	}
	pml_op_free(op);
	return EXIT_OK_;
}

/* Objects are replaced while they are put: twice their bytes are taken, and a part is nobody's. */
static int make_room(struct bench *b)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	uint64_t left = 0, least = measure_objects_min(&b->o);
	char want[32], have[32];
	if (ctl_open(b->c, &b->dir, &p, &err) != PML_ERR_NONE)
		return cli_fail(b->c, (enum err)err.code, "%s", err.text);
	int code = free_bytes(b, p, &left);
	pml_close(p);
	if (code != EXIT_OK_)
		return code;
	uint64_t most = MIN_OF(left / 3, SET_BYTES_MAX) / MAX_OF(b->o.bytes, SLOT_BYTES);
	b->o.objects = MAX_OF(MIN_OF(most, (uint64_t)OBJECTS_MAX), least);
	b->o.objects -= b->o.objects % b->o.clients;
	if (b->o.objects > left / 3 / b->o.bytes)
		return cli_fail(
			b->c, ERR_BUSY,
			"these calls take %s of the pool, three times over, and %s are free: "
			"less --size, --batch, --flights or --clients, or a larger --pool",
			print_bytes(want, sizeof(want), least * b->o.bytes),
			print_bytes(have, sizeof(have), left));
	return EXIT_OK_;
}

/* Nothing of it stays; what cannot be removed is said. */
static void clean_up(struct bench *b)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_remove_opts o = PML_REMOVE_OPTS_INIT;
	struct pml *p = NULL;
	char prefix[MEASURE_PREFIX_MAX + 2];
	int n = snprintf(prefix, sizeof(prefix), "%s/", b->prefix);
	int e = ctl_open(b->c, &b->dir, &p, &err);
	if (e == PML_ERR_NONE)
		e = pml_remove_prefix(p, prefix, (size_t)n, &o, NULL, &err);
	if (e != PML_ERR_NONE)
		fprintf(b->c->err,
			"pomelo: its objects are still there: %s; `pomelo rm --prefix %s`\n",
			err.text, prefix);
	pml_close(p);
}

/* ---- the run ---- */

/* One of them, to its end. An exit code: EXIT_OK_ also when some items failed. */
static int measure_one(struct bench *b, const char *name, enum measure_op op,
		       struct measure_result *out)
{
	struct pml_error err = PML_ERROR_INIT;
	struct measure *m = NULL;
	uint64_t start = ctl_now_ns();
	b->o.op = op;
	b->o.ms = b->seconds * 1000;
	if (measure_start(&b->o, &m, &err) != PML_ERR_NONE)
		return cli_fail(b->c, (enum err)err.code, "%s", err.text);
	int fd = b->interrupt_fd;
	for (bool over = false; !over;) {
		uint64_t n, items = measure_items(m);
		double s = (double)(ctl_now_ns() - start) / 1e9;
		if (ctl_wait(fd, measure_fd(m), PROGRESS_MS) == ERR_CANCELLED) {
			measure_stop(m);
			b->interrupted = true;
			fd = -1;
		}
		if (op == MEASURE_FILL)
			print_progress(b->c, "fill: %" PRIu64 " of %" PRIu64 " objects", items,
				       b->o.objects);
		else
			print_progress(b->c, "%s: %.0f of %" PRIu64 " s, %.0f a second", name,
				       s, b->seconds, (double)items / MAX_OF(s, 0.001));
		over = read(measure_fd(m), &n, sizeof(n)) == sizeof(n);
	}
	print_progress_end(b->c);
	measure_end(m, out);
	measure_free(m);
	if (out->ended)
		return cli_fail(b->c, (enum err)out->first.code, "%s: %s: %s", name,
				out->first.peer[0] ? out->first.peer : "pomelo",
				out->first.text);
	return EXIT_OK_;
}

static int run_all(struct bench *b)
{
	struct measure_result fill;
	int code = measure_one(b, "fill", MEASURE_FILL, &fill);
	for (size_t k = 0; code == EXIT_OK_ && !b->interrupted && k < ROWS; k++) {
		if (!b->wanted[k])
			continue;
		code = measure_one(b, rows[k].name, rows[k].op, &b->res[k]);
		b->done[k] = code == EXIT_OK_ && b->res[k].items > 0;
	}
	return code;
}

/* ---- what was measured ---- */

static const char *text_us(char *out, size_t size, double us)
{
	snprintf(out, size, us < 1000 ? "%.0f us" : "%.2f ms", us < 1000 ? us : us / 1000);
	return out;
}

static void put_table(const struct bench *b)
{
	static const char *const heads[] = { "benchmark", ">items/s", ">bytes/s", ">call p50",
					     ">call p99", ">items",   ">missing", ">errors" };
	struct print_table t;
	char size[32];
	fprintf(b->c->out,
		"%u client%s, %u call%s of %u object%s of %s under way each, %" PRIu64
		" objects; pomelo %s, %ld processors, load %.2f before\n",
		b->o.clients, b->o.clients == 1 ? "" : "s", b->o.flights,
		b->o.flights == 1 ? "" : "s", b->o.batch, b->o.batch == 1 ? "" : "s",
		print_bytes(size, sizeof(size), b->o.bytes), b->o.objects, POMELO_VERSION,
		sysconf(_SC_NPROCESSORS_ONLN), b->load);
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (size_t k = 0; k < ROWS; k++) {
		const struct measure_result *r = &b->res[k];
		char v[7][32] = { "" };
		if (!b->done[k])
			continue;
		snprintf(v[0], sizeof(v[0]), "%.0f", (double)r->items / r->seconds);
		if (r->bytes)
			print_bytes(v[1], sizeof(v[1]),
				    (uint64_t)((double)r->bytes / r->seconds));
		text_us(v[2], sizeof(v[2]), r->p50_us);
		text_us(v[3], sizeof(v[3]), r->p99_us);
		snprintf(v[4], sizeof(v[4]), "%" PRIu64, r->items);
		snprintf(v[5], sizeof(v[5]), "%" PRIu64, r->missing);
		snprintf(v[6], sizeof(v[6]), "%" PRIu64, r->errors + r->wrong);
		const char *cells[] = {
			rows[k].name, v[0], v[1], v[2], v[3], v[4], v[5], v[6]
		};
		print_table_row(&t, cells);
	}
	print_table_put(&t, b->c->out);
	print_table_fini(&t);
}

static void kv(struct json *j, const char *key, double v)
{
	json_key(j, key);
	json_double(j, v);
}

static void result_json(struct json *j, const char *name, const struct measure_result *r)
{
	json_obj(j);
	json_kv_str(j, "name", name);
	kv(j, "items_per_s", (double)r->items / r->seconds);
	kv(j, "bytes_per_s", r->bytes ? (double)r->bytes / r->seconds : NAN);
	kv(j, "p50_us", r->p50_us);
	kv(j, "p99_us", r->p99_us);
	kv(j, "seconds", r->seconds);
	json_kv_u64(j, "calls", r->calls);
	json_kv_u64(j, "items", r->items);
	json_kv_u64(j, "missing", r->missing);
	json_kv_u64(j, "wrong_bytes", r->wrong);
	json_kv_u64(j, "errors", r->errors);
	json_kv_str(j, "first_error", r->first.code ? r->first.text : "");
	json_end(j);
}

static void put_json(const struct bench *b)
{
	struct buf out = BUF_INIT(65536);
	struct json j = JSON_OUT(&out);
	json_obj(&j);
	json_kv_str(&j, "version", POMELO_VERSION);
	json_kv_u64(&j, "processors", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
	kv(&j, "load", b->load);
	json_kv_u64(&j, "clients", b->o.clients);
	json_kv_u64(&j, "batch", b->o.batch);
	json_kv_u64(&j, "flights", b->o.flights);
	json_kv_u64(&j, "object_bytes", b->o.bytes);
	json_kv_u64(&j, "objects", b->o.objects);
	json_key(&j, "results");
	json_arr(&j);
	for (size_t k = 0; k < ROWS; k++)
		if (b->done[k])
			result_json(&j, rows[k].name, &b->res[k]);
	json_end(&j);
	json_end(&j);
	print_json(b->c, &out);
}

static int judge(const struct bench *b)
{
	uint64_t wrong = 0, errors = 0;
	for (size_t k = 0; k < ROWS; k++) {
		wrong += b->res[k].wrong;
		errors += b->res[k].errors;
		if (b->res[k].errors)
			fprintf(b->c->err,
				"pomelo: %s: %" PRIu64 " items failed; the first: %s\n",
				rows[k].name, b->res[k].errors, b->res[k].first.text);
	}
	if (wrong)
		fprintf(b->c->err, "pomelo: %" PRIu64 " objects came with wrong bytes\n",
			wrong);
	if (b->interrupted)
		fprintf(b->c->err,
			"pomelo: interrupted: what was measured until then is shown\n");
	return wrong		? EXIT_TYPED_
	       : b->interrupted ? EXIT_INTERRUPTED_
	       : errors		? EXIT_SOME_
				: EXIT_OK_;
}

int cmd_bench(struct cli *c)
{
	struct bench b = { .c = c, .interrupt_fd = -1 };
	enum err e = read_options(&b);
	if (e == ERR_NONE)
		e = ctl_dirs(c, &b.dir);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	snprintf(b.prefix, sizeof(b.prefix), "bench/%d-%08x", (int)getpid(),
		 (unsigned)(ctl_now_ns() / 1000));
	b.o.prefix = b.prefix;
	b.o.open = ctl_open_opts(c, &b.dir);
	if (getloadavg(&b.load, 1) != 1)
		b.load = NAN;
	int code = make_room(&b);
	if (code != EXIT_OK_)
		return code;
	if (ctl_catch_interrupt(&b.interrupt_fd) != ERR_NONE)
		b.interrupt_fd = -1;
	code = run_all(&b);
	clean_up(&b);
	if (b.interrupt_fd >= 0)
		close(b.interrupt_fd);
	if (code != EXIT_OK_)
		return code;
	if (c->json)
		put_json(&b);
	else
		put_table(&b);
	return judge(&b);
}
