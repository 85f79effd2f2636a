/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pomelo put` and `pomelo get`. A file that is got appears under its name when it is whole, never before;
 * pieces of one version are read, so that it is one object's bytes.
 */
#include "print.h"
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 64 << 20, STDIN_FIRST = 1 << 20, STARTS_MAX = 8 };

/* ---- put: the bytes ---- */

struct input {
	uint8_t *p;
	size_t n, cap;
};

static bool grow(struct input *in)
{
	size_t cap = in->cap ? 2 * in->cap : STDIN_FIRST;
	uint8_t *p = realloc(in->p, cap);
	if (!p)
		return false;
	in->p = p;
	in->cap = cap;
	return true;
}

/* To its end, whatever it is: a file may grow while it is read. */
static enum err read_all(struct cli *c, int fd, const char *name, struct input *in)
{
	for (;;) {
		if (in->n == in->cap && !grow(in))
			return why_set(&c->why, ERR_NO_MEMORY,
				       "%.200s: no memory for its bytes", name);
		ssize_t n = read(fd, in->p + in->n, in->cap - in->n);
		if (n == 0)
			return ERR_NONE;
		if (n < 0 && errno != EINTR)
			return why_set(&c->why, err_from_errno(errno), "%.200s: %s", name,
				       strerror(errno));
		in->n += n > 0 ? (size_t)n : 0;
	}
}

static enum err read_input(struct cli *c, const char *name, struct input *in)
{
	struct stat st;
	if (strcmp(name, "-") == 0)
		return read_all(c, STDIN_FILENO, "standard input", in);
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return why_set(&c->why, err_from_errno(errno), "%.200s: %s", name,
			       strerror(errno));
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		in->cap = (size_t)st.st_size + 1; /* one read more finds the end */
		in->p = malloc(in->cap);
		in->cap = in->p ? in->cap : 0;
	}
	enum err e = read_all(c, fd, name, in);
	close(fd);
	return e;
}

/* ---- put ---- */

static enum err read_number(struct cli *c, const char *flag, unsigned long max, uint64_t *v)
{
	const char *s = cli_value(c, flag);
	char *end = NULL;
	if (!s)
		return ERR_NONE;
	errno = 0;
	unsigned long n = strtoul(s, &end, 10);
	if (errno || end == s || *end || *s < '0' || *s > '9' || n < 1 || n > max)
		return why_set(&c->why, ERR_INVALID_PARAMS,
			       "%s %.40s: a whole number is expected, 1..%lu%s", flag, s, max,
			       strcmp(flag, "--soft-pin") == 0
				       ? " milliseconds (1800000: half an hour)"
				       : "");
	*v = n;
	return ERR_NONE;
}

static enum err read_put_opts(struct cli *c, struct pml_put_opts *o)
{
	const char *group = cli_value(c, "--group");
	o->durable = cli_has(c, "--durable");
	o->hard_pin = cli_has(c, "--hard-pin");
	o->format = cli_value(c, "--format");
	if (group && strlen(group) > PML_KEY_MAX)
		return why_set(&c->why, ERR_INVALID_PARAMS, "--group: at most %d bytes",
			       PML_KEY_MAX);
	o->group = group;
	o->group_bytes = group ? strlen(group) : 0;
	uint64_t replicas = 0, required = 0, size = 0;
	if (!group && cli_has(c, "--group-size"))
		return why_set(&c->why, ERR_INVALID_PARAMS, "--group-size needs --group NAME");
	enum err e = read_number(c, "--replicas", 16, &replicas);
	if (e == ERR_NONE)
		e = read_number(c, "--replicas-required", 16, &required);
	if (e == ERR_NONE && required > MAX_OF(replicas, 1u))
		e = why_set(&c->why, ERR_INVALID_PARAMS,
			    "--replicas-required %u: more than --replicas, %u",
			    (unsigned)required, (unsigned)MAX_OF(replicas, 1u));
	if (e == ERR_NONE)
		e = read_number(c, "--group-size", 1 << 20, &size);
	o->replica_num = (uint32_t)replicas;
	o->replicas_required = (uint32_t)required;
	o->group_size = (uint32_t)size;
	return e == ERR_NONE ? read_number(c, "--soft-pin", 86400000, &o->soft_pin_ms) : e;
}

static int put_once(struct store *s, const struct store_key *key, const struct input *in,
		    struct pml_put_opts *o, struct pml_result *r, struct pml_error *err)
{
	struct pml_buf buf = { in->p, in->n };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = key->p;
	it.key_bytes = key->n;
	it.bufs = &buf;
	it.n_bufs = 1;
	o->deadline_ms = store_left_ms(s);
	int e = cli_has(s->c, "--replace")
			? pml_upsert_start(s->p, &it, 1, o, s->cq, NULL, &op, err)
			: pml_put_start(s->p, &it, 1, o, s->cq, NULL, &op, err);
	if (e == PML_ERR_NONE)
		e = store_wait(s, op, "put", err);
	if (e == PML_ERR_NONE)
		pml_op_result(op, 0, r);
	pml_op_free(op);
	return e;
}

/* What the store says is there, and what it still makes. */
static void put_done(struct store *s, const struct pml_put_opts *o, const struct pml_result *r)
{
	struct buf b = BUF_INIT(4096);
	struct json j = JSON_OUT(&b);
	char bytes[32], version[17];
	snprintf(version, sizeof(version), "%016" PRIx64, r->version);
	if (s->c->json) {
		json_obj(&j);
		json_kv_str(&j, "version", version);
		json_kv_u64(&j, "bytes", r->object_bytes);
		json_kv_u64(&j, "copies", r->copies);
		json_kv_u64(&j, "copies_wanted", MAX_OF(o->replica_num, 1u));
		json_end(&j);
		print_json(s->c, &b);
	} else {
		fprintf(s->c->out, "%s, version %s",
			print_bytes(bytes, sizeof(bytes), r->object_bytes), version);
		if (o->replica_num > 1)
			fprintf(s->c->out, ", %u of %u copies%s", r->copies, o->replica_num,
				r->copies < o->replica_num ? " so far" : "");
		fputc('\n', s->c->out);
	}
	buf_fini(&b);
}

int cmd_put(struct cli *c)
{
	struct store s;
	struct store_key key;
	struct input in = { 0 };
	struct pml_put_opts o = PML_PUT_OPTS_INIT;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_error err = PML_ERROR_INIT;
	enum err e = store_key_read(c->args[0], false, &key, &c->why);
	if (e == ERR_NONE)
		e = read_put_opts(c, &o);
	if (e == ERR_NONE)
		e = read_input(c, c->args[1], &in);
	int code = e == ERR_NONE ? store_open(c, &s) : cli_exit_of(e);
	if (e != ERR_NONE || code != EXIT_OK_) {
		free(in.p);
		return code;
	}
	int p = put_once(&s, &key, &in, &o, &r, &err);
	/* another writer of the key: this command has the patience the library has not */
	while (p == PML_ERR_BUSY_WRITING && store_left_ms(&s) > 100 &&
	       ctl_wait(s.interrupt_fd, -1, 50) != ERR_CANCELLED)
		p = put_once(&s, &key, &in, &o, &r, &err);
	if (p == PML_ERR_NONE)
		put_done(&s, &o, &r);
	else if (p == PML_ERR_ALREADY_EXISTS)
		code = cli_fail(c, ERR_ALREADY_EXISTS,
				"%.200s exists already; --replace puts over it", c->args[0]);
	else
		code = store_fail(&s, &err);
	store_close(&s);
	free(in.p);
	return code;
}

/* ---- get ---- */

struct output {
	struct cli *c;
	const char *name;
	char part[4200]; /* what is written until it is whole; "": the thing itself */
	int fd;
	uint64_t written;
};

static enum err failed(struct output *o, const char *name)
{
	return why_set(&o->c->why, err_from_errno(errno), "%.200s: %s", name, strerror(errno));
}

/* Devices, pipes and the like are written as they are. */
static enum err open_output(struct output *o)
{
	struct stat st;
	o->fd = STDOUT_FILENO;
	if (strcmp(o->name, "-") == 0)
		return ERR_NONE;
	if (stat(o->name, &st) == 0 && !S_ISREG(st.st_mode)) {
		o->fd = open(o->name, O_WRONLY | O_CLOEXEC);
		return o->fd >= 0 ? ERR_NONE : failed(o, o->name);
	}
	int n = snprintf(o->part, sizeof(o->part), "%s.part-%d", o->name, (int)getpid());
	if (n < 0 || (size_t)n >= sizeof(o->part))
		return why_set(&o->c->why, ERR_INVALID_PARAMS, "%.80s...: the name is too long",
			       o->name);
	o->fd = open(o->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (o->fd >= 0)
		return ERR_NONE;
	enum err e = failed(o, o->part);
	o->part[0] = '\0';
	return e;
}

static enum err write_out(struct output *o, const uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t k = write(o->fd, p, n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return failed(o, o->name);
		p += k;
		n -= (size_t)k;
		o->written += (uint64_t)k;
	}
	return ERR_NONE;
}

/* e: how it went so far. */
static enum err close_output(struct output *o, enum err e)
{
	if (o->fd > STDERR_FILENO && close(o->fd) != 0 && e == ERR_NONE)
		e = failed(o, o->name);
	if (!o->part[0])
		return e;
	if (e == ERR_NONE && rename(o->part, o->name) != 0)
		e = failed(o, o->name);
	if (e != ERR_NONE)
		unlink(o->part);
	return e;
}

struct getting {
	struct store s;
	struct store_key key;
	struct output out;
	struct pml_get_opts o;
	uint8_t *chunk;
	uint64_t version, bytes;
};

/* What is there now, under a lease. */
static int look(struct getting *g, struct pml_error *err)
{
	struct pml_item it = PML_ITEM_INIT;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_op *op = NULL;
	it.key = g->key.p;
	it.key_bytes = g->key.n;
	g->o.deadline_ms = store_left_ms(&g->s);
	int e = pml_query_start(g->s.p, &it, 1, &g->o, g->s.cq, NULL, &op, err);
	if (e == PML_ERR_NONE)
		e = store_wait(&g->s, op, NULL, err);
	if (e == PML_ERR_NONE && pml_op_result(op, 0, &r) == PML_ERR_NONE) {
		g->version = r.version;
		g->bytes = r.object_bytes;
	}
	pml_op_free(op);
	return e;
}

static int get_chunk(struct getting *g, uint64_t at, size_t n, struct pml_error *err)
{
	struct pml_buf buf = { g->chunk, n };
	struct pml_range range = { at, n };
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	it.key = g->key.p;
	it.key_bytes = g->key.n;
	it.bufs = &buf;
	it.n_bufs = 1;
	it.ranges = &range;
	it.n_ranges = 1;
	it.version = g->version;
	g->o.deadline_ms = store_left_ms(&g->s);
	int e = pml_get_start(g->s.p, &it, 1, &g->o, g->s.cq, NULL, &op, err);
	if (e == PML_ERR_NONE)
		e = store_wait(&g->s, op, NULL, err);
	pml_op_free(op);
	return e;
}

/* All of one version; CONFLICT: it was replaced meanwhile. */
static int get_all(struct getting *g, struct pml_error *err)
{
	char a[32], b[32];
	int e = look(g, err);
	for (uint64_t at = 0; e == PML_ERR_NONE && at < g->bytes;) {
		size_t n = (size_t)MIN_OF(g->bytes - at, (uint64_t)CHUNK);
		e = get_chunk(g, at, n, err);
		if (e != PML_ERR_NONE)
			break;
		if (write_out(&g->out, g->chunk, n) != ERR_NONE)
			return PML_ERR_IO;
		at += n;
		if (g->bytes > CHUNK)
			print_progress(g->s.c, "get: %s of %s, %d %%",
				       print_bytes(a, sizeof(a), at),
				       print_bytes(b, sizeof(b), g->bytes),
				       (int)(100.0 * (double)at / (double)g->bytes));
	}
	print_progress_end(g->s.c);
	return e;
}

/* A file begins again with the new version; what has gone out of a pipe cannot. */
static bool again(struct getting *g, int e)
{
	if (e != PML_ERR_CONFLICT || (g->out.written > 0 && !g->out.part[0]))
		return false;
	if (g->out.written > 0 &&
	    (ftruncate(g->out.fd, 0) != 0 || lseek(g->out.fd, 0, SEEK_SET) != 0))
		return false;
	g->out.written = 0;
	return true;
}

static int run_get(struct getting *g)
{
	struct pml_error err = PML_ERROR_INIT;
	struct cli *c = g->s.c;
	enum err e = open_output(&g->out);
	int p = PML_ERR_NONE;
	for (int i = 0; e == ERR_NONE && i < STARTS_MAX; i++) {
		p = get_all(g, &err);
		if (!again(g, p))
			break;
	}
	if (e == ERR_NONE && close_output(&g->out, (enum err)p) != ERR_NONE &&
	    p == PML_ERR_NONE)
		return cli_exit_of(c->why.err);
	if (c->why.err != ERR_NONE)
		return cli_exit_of(c->why.err);
	return p == PML_ERR_NONE ? EXIT_OK_ : store_fail(&g->s, &err);
}

static void get_done(struct getting *g)
{
	struct buf b = BUF_INIT(4096);
	struct json j = JSON_OUT(&b);
	struct cli *c = g->s.c;
	char version[17];
	if (!c->json || strcmp(g->out.name, "-") == 0)
		return; /* standard output is the object's */
	snprintf(version, sizeof(version), "%016" PRIx64, g->version);
	json_obj(&j);
	json_kv_str(&j, "version", version);
	json_kv_u64(&j, "bytes", g->bytes);
	json_end(&j);
	print_json(c, &b);
	buf_fini(&b);
}

int cmd_get(struct cli *c)
{
	struct getting g = { .out = { .c = c, .name = c->args[1] }, .o = PML_GET_OPTS_INIT };
	enum err e = store_key_read(c->args[0], false, &g.key, &c->why);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	if (cli_has(c, "--verify"))
		g.o.verify = PML_VERIFY_ALWAYS;
	int code = store_open(c, &g.s);
	if (code != EXIT_OK_)
		return code;
	g.chunk = malloc(CHUNK);
	if (!g.chunk)
		code = cli_fail(c, ERR_NO_MEMORY, "no memory for a buffer of 64 MiB");
	else
		code = run_get(&g);
	if (code == EXIT_OK_)
		get_done(&g);
	free(g.chunk);
	store_close(&g.s);
	return code;
}
