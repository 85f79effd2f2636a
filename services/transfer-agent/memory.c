/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool at a start: where it is, how large; opened on a worker (a directory of millions of slots
 * takes seconds), then touched in slices by as many workers as there are. What is whole from a
 * segment's start on may be allocated from, and the master is told so.
 */
#include "agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SIM_BYTES  (4ull << 20)
#define BYTES_MIN  (1ull << 20)
#define AGAIN_NS   (5 * NS_PER_S) /* after a slice that found no memory */
#define UNIT_BYTES (64ull << 10)  /* a segment's length is a multiple of it */

enum { SLICE_FREE, SLICE_TAKEN, SLICE_DONE };

/* ---- settings ---- */

static uint64_t wanted_bytes(const struct xfa *x)
{
	if (x->pool_size)
		return x->pool_size;
	if (!loop_uv(x->svc.loop))
		return SIM_BYTES;
	return xfa_default_bytes(xfa_ram_bytes(), xfa_cgroup_bytes(""));
}

static enum err boot_id(const struct xfa *x, uint8_t out[16], struct why *why)
{
	static const char path[] = "/proc/sys/kernel/random/boot_id";
	char line[64] = "";
	size_t n = 0;
	memset(out, 0, 16);
	if (!loop_uv(x->svc.loop))
		return ERR_NONE;
	FILE *f = fopen(path, "re");
	if (f && fgets(line, sizeof(line), f))
		for (const char *p = line; *p && n < 32; p++) {
			const char *hex = "0123456789abcdef", *at = strchr(hex, *p);
			if (at)
				out[n / 2] |= (uint8_t)((at - hex) << (n % 2 ? 0 : 4));
			n += at != NULL;
		}
	if (f)
		fclose(f);
	return n == 32 ? ERR_NONE
		       : why_set(why, ERR_IO,
				 "%s: no boot id there; is /proc mounted? A pool of another boot "
				 "must not be taken for ours",
				 path);
}

static void some_random(void *ctx, void *p, size_t n)
{
	loop_random(ctx, p, n);
}

static enum err geometry(struct xfa *x, struct why *why)
{
	struct xfa_memory *m = &x->memory;
	uint32_t n = x->segments;
	if (n == 0)
		n = loop_uv(x->svc.loop) ? xfa_numa_nodes("") : 1;
	uint64_t each = wanted_bytes(x) / n / UNIT_BYTES * UNIT_BYTES;
	if (each * n < BYTES_MIN || each == 0)
		return why_set(why, ERR_INVALID_PARAMS,
			       "agent.pool_size = %" PRIu64
			       ": at least 1MiB, and 64KiB a segment (agent.segments = %u)",
			       x->pool_size, n);
	m->bytes = each * n;
	m->opts = (struct mempool_opts){ .backing = x->svc.backing ? x->svc.backing : m->own,
					 .segment_bytes = each,
					 .n_segments = n,
					 .n_slots = x->slots,
					 .sessions_max = x->clients_max,
					 .random = some_random,
					 .random_ctx = x->svc.loop };
	return boot_id(x, m->opts.boot_id, why);
}

/* ---- slices ---- */

struct mempool_segment xfa_memory_bytes(const struct xfa *x)
{
	struct mempool_segment sum = { 0 };
	for (uint32_t i = 0; x->pool && i < mempool_segments(x->pool); i++) {
		struct mempool_segment s = mempool_segment(x->pool, i);
		sum.bytes += s.bytes;
		sum.bytes_total += s.bytes_total;
	}
	return sum;
}

size_t xfa_memory_segments(const struct xfa *x, struct msg_segment *out)
{
	size_t n = mempool_segments(x->pool);
	for (uint32_t i = 0; i < n; i++) {
		struct mempool_segment s = mempool_segment(x->pool, i);
		out[i] = (struct msg_segment){ .segment = i,
					       .bytes = s.bytes,
					       .bytes_total = s.bytes_total,
					       .slots = mempool_slots(x->pool) };
	}
	return n;
}

/* Slices in turn, first of all segments the first: each is of use soon. */
static bool place_of(const struct xfa *x, uint32_t at, uint32_t *segment, uint32_t *slice)
{
	*segment = at % mempool_segments(x->pool);
	*slice = at / mempool_segments(x->pool);
	return *slice < mempool_slices(x->pool, *segment);
}

/* The next slice that nobody has; false: none is left. */
static bool take_slice(struct xfa *x, uint32_t *segment, uint32_t *slice)
{
	struct xfa_memory *m = &x->memory;
	for (; m->next < m->n_places; m->next++)
		if (place_of(x, m->next, segment, slice) && m->state[m->next] == SLICE_FREE) {
			m->state[m->next++] = SLICE_TAKEN;
			return true;
		}
	return false;
}

static void give_back(struct xfa *x, uint32_t segment, uint32_t slice)
{
	struct xfa_memory *m = &x->memory;
	uint32_t at = slice * mempool_segments(x->pool) + segment;
	m->state[at] = SLICE_FREE;
	m->next = MIN_OF(m->next, at);
}

static void slice_work(struct job *j)
{
	struct xfa_slice *s = container_of(j, struct xfa_slice, job);
	if (s->x->memory.opts.n_segments > 1)
		xfa_numa_prefer(s->segment);
	j->err = mempool_slice(s->x->memory.opening, s->segment, s->slice, &s->why);
	if (s->x->memory.opts.n_segments > 1)
		xfa_numa_any();
}

static void slices_go(struct xfa *x);

static void slices_again(struct timer *t)
{
	slices_go(container_of(t, struct xfa, memory.again));
}

static void slices_over(struct xfa *x)
{
	if (x->memory.n_done < x->memory.n_slices)
		return;
	LOG_INFO(&x->svc.log, "pool", "ready=%" PRIu64 " slices=%u", xfa_memory_bytes(x).bytes,
		 x->memory.n_slices);
	xfa_verify_start(x);
}

/* Memory of before needs no touch: it cannot be missing, and its pages are mapped as they are read. Touching
 * them took seconds in which puts had to share the machine with it. */
static void slices_kept(struct xfa *x)
{
	struct xfa_memory *m = &x->memory;
	uint32_t n_segments = mempool_segments(x->pool);
	for (uint32_t i = 0; i < n_segments; i++) {
		struct mempool_segment s = mempool_segment(x->pool, i);
		uint32_t n = s.bytes == s.bytes_total
				     ? mempool_slices(x->pool, i)
				     : (uint32_t)(s.bytes / MEMPOOL_SLICE_BYTES);
		for (uint32_t k = 0; k < n; k++)
			m->state[k * n_segments + i] = SLICE_DONE;
		m->n_done += n;
	}
	if (m->n_done > 0) /* no slice that becomes ready will tell */
		xfa_link_tell(x);
	if (m->n_slices > 0)
		slices_over(x);
}

/* As far as a segment is whole from its start, it is the master's to give out. */
static void slice_whole(struct xfa *x, const struct xfa_slice *s)
{
	struct xfa_memory *m = &x->memory;
	uint32_t n = 0, all = mempool_slices(x->pool, s->segment);
	uint32_t n_segments = mempool_segments(x->pool);
	uint64_t before = mempool_segment(x->pool, s->segment).bytes;
	m->state[s->slice * n_segments + s->segment] = SLICE_DONE;
	m->n_done++;
	while (n < all && m->state[n * n_segments + s->segment] == SLICE_DONE)
		n++;
	mempool_ready(x->pool, s->segment, n);
	if (mempool_segment(x->pool, s->segment).bytes > before)
		xfa_link_tell(x);
	slices_over(x);
}

/* Somebody else has filled the file system since we looked. What is ready is of use all the same. */
static void slice_failed(struct xfa *x, const struct xfa_slice *s)
{
	struct xfa_memory *m = &x->memory;
	if (!m->slice_why.err)
		LOG_ERROR(&x->svc.log, "pool", "segment=%u slice=%u err=%s msg=\"%s\"",
			  s->segment, s->slice, err_name(s->job.err), s->why.text);
	m->slice_why = (struct why){ 0 };
	why_note(&m->slice_why, s->job.err, "%s",
		 s->why.err ? s->why.text : err_text(s->job.err));
	give_back(x, s->segment, s->slice);
	timer_start(x->svc.loop, &m->again, loop_now_ns(x->svc.loop) + AGAIN_NS, slices_again);
}

static void slice_done(struct job *j)
{
	struct xfa_slice *s = container_of(j, struct xfa_slice, job);
	struct xfa *x = s->x;
	s->taken = false;
	if (x->closing || j->err == ERR_CANCELLED) {
		xfa_job_ended(x);
		return;
	}
	if (j->err == ERR_NONE) {
		x->memory.slice_why = (struct why){ 0 };
		slice_whole(x, s);
	} else {
		slice_failed(x, s);
	}
	xfa_job_ended(x);
	slices_go(x);
}

static bool slice_begin(struct xfa *x, struct xfa_slice *s)
{
	uint32_t segment, slice;
	if (!take_slice(x, &segment, &slice))
		return false;
	*s = (struct xfa_slice){ .job = { .work = slice_work, .done = slice_done },
				 .x = x,
				 .segment = segment,
				 .slice = slice };
	if (pool_submit(x->svc.pool, &s->job) != ERR_NONE) {
		give_back(x, segment, slice);
		timer_start(x->svc.loop, &x->memory.again, loop_now_ns(x->svc.loop) + AGAIN_NS,
			    slices_again);
		return false;
	}
	s->taken = true;
	x->n_jobs++;
	return true;
}

static void slices_go(struct xfa *x)
{
	struct xfa_memory *m = &x->memory;
	if (x->closing || timer_running(&m->again))
		return;
	for (uint32_t i = 0; i < m->n_jobs; i++)
		if (!m->jobs[i].taken && !slice_begin(x, &m->jobs[i]))
			return;
}

static enum err slices_start(struct xfa *x)
{
	struct xfa_memory *m = &x->memory;
	uint32_t most = 0, n = mempool_segments(x->pool);
	for (uint32_t i = 0; i < n; i++) {
		most = MAX_OF(most, mempool_slices(x->pool, i));
		m->n_slices += mempool_slices(x->pool, i);
	}
	m->n_places = most * n;
	m->n_jobs = x->svc.conf.workers;
	m->state = calloc(m->n_places + 1, 1);
	m->jobs = calloc(m->n_jobs, sizeof(*m->jobs));
	if (!m->state || !m->jobs)
		return ERR_NO_MEMORY;
	slices_kept(x);
	slices_go(x);
	return ERR_NONE;
}

/* ---- opening ---- */

/* `pomelo down` finds it there; the default place it knows. */
static enum err tell_where(const struct xfa *x, struct why *why)
{
	char path[PATH_BYTES_MAX], line[PATH_BYTES_MAX + 1];
	if (!x->memory.dir[0] || !x->pool_dir[0])
		return ERR_NONE;
	int n = snprintf(line, sizeof(line), "%s\n", x->memory.dir);
	enum err e = path_join(path, x->svc.run_dir, "agent.pool", why);
	return e ? e : path_write_atomic(path, BYTES(line, n), 0600, why);
}

static void open_work(struct job *j)
{
	struct xfa_memory *m = container_of(j, struct xfa_memory, open);
	struct xfa *x = container_of(m, struct xfa, memory);
	j->err = tell_where(x, &m->why);
	if (j->err)
		return;
	j->err = mempool_open(&m->opts, &m->opening, &m->start, &m->why);
	if (j->err)
		return;
	struct hold_opts o = { .pool = m->opening,
			       .closed = x->closed_max,
			       .fenced = xfa_report_fenced,
			       .ctx = x };
	j->err = hold_new(&o, &m->hold);
	if (j->err)
		why_note(&m->why, j->err, "%s: the superblock could not be written: %s", m->dir,
			 err_text(j->err));
}

static void log_found(const struct xfa *x)
{
	static const char *const found[] = { [MEMPOOL_NEW] = "new",
					     [MEMPOOL_KEPT] = "kept",
					     [MEMPOOL_OLD_BOOT] = "of another boot, emptied" };
	const struct xfa_memory *m = &x->memory;
	const struct mempool_start *s = &m->start;
	uint64_t bytes = xfa_memory_bytes(x).bytes_total;
	LOG_INFO(
		&x->svc.log, "pool",
		"dir=\"%s\" found=\"%s\" bytes=%" PRIu64 " committed=%" PRIu64
		" retired=%" PRIu64 " dropped=%" PRIu64 " overlaps=%" PRIu64
		" sessions=%u isolation=node trust=\"local clients of uid %u map the whole pool\"",
		m->dir, found[s->found], bytes, s->committed, s->retired, s->dropped,
		s->overlaps, s->sessions, (unsigned)geteuid());
	if (s->found == MEMPOOL_KEPT && x->pool_size && bytes != m->bytes)
		LOG_WARN(&x->svc.log, "pool",
			 "agent.pool_size=%" PRIu64
			 " notice=\"the pool that is there keeps its %" PRIu64
			 " bytes; `pomelo down` removes it\"",
			 x->pool_size, bytes);
}

static void open_done(struct job *j)
{
	struct xfa_memory *m = container_of(j, struct xfa_memory, open);
	struct xfa *x = container_of(m, struct xfa, memory);
	if (j->err == ERR_NONE && !x->closing) {
		x->pool = m->opening;
		x->hold = m->hold;
		log_found(x);
		xfa_opened(x);
		j->err = slices_start(x);
	}
	if (j->err && j->err != ERR_CANCELLED)
		svc_fail(&x->svc, j->err, "the pool does not open: %s",
			 m->why.err ? m->why.text : err_text(j->err));
	xfa_job_ended(x);
}

static enum err folder(struct xfa *x, struct why *why)
{
	struct xfa_memory *m = &x->memory;
	if (x->svc.backing)
		return ERR_NONE;
	if (!loop_uv(x->svc.loop)) /* a simulation that keeps nothing over a restart */
		return pool_memory_new(&m->own);
	enum err e = pool_folder_name(x->svc.data_dir, x->pool_dir, m->dir, why);
	if (e == ERR_NONE)
		e = pool_folder_open(m->dir, &m->own, why);
	return e;
}

enum err xfa_memory_find(struct xfa *x, struct why *why)
{
	struct xfa_memory *m = &x->memory;
	enum err e = folder(x, why);
	if (e == ERR_NONE)
		e = geometry(x, why);
	if (e == ERR_NONE && m->dir[0])
		e = pool_folder_fits(m->dir, m->bytes, why);
	if (e)
		pool_backing_free(TAKE(m->own));
	return e;
}

void xfa_memory_begin(struct xfa *x)
{
	struct xfa_memory *m = &x->memory;
	m->open = (struct job){ .work = open_work, .done = open_done };
	enum err e = pool_submit(x->svc.pool, &m->open);
	assert(e == ERR_NONE); /* nobody else has had a job yet */
	x->n_jobs++;
}

void xfa_memory_close(struct xfa *x)
{
	struct xfa_memory *m = &x->memory;
	timer_stop(x->svc.loop, &m->again);
	x->pool = NULL;
	x->hold = NULL;
	hold_close(TAKE(m->hold));
	mempool_close(TAKE(m->opening));
	pool_backing_free(TAKE(m->own));
	free(TAKE(m->state));
	free(TAKE(m->jobs));
}

void xfa_memory_reasons(const struct xfa *x, struct svc_reasons *r)
{
	const struct xfa_memory *m = &x->memory;
	struct mempool_segment b = xfa_memory_bytes(x);
	if (!x->pool)
		svc_reason(r, "pool: being opened");
	else if (b.bytes == 0)
		svc_reason(r, "pool: the first slice of %u is not ready%s%s", m->n_slices,
			   m->slice_why.err ? ": " : "",
			   m->slice_why.err ? m->slice_why.text : "");
}
