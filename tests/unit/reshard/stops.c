/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends planning before its end: a cancel at any moment, memory that runs out at any allocation,
 * and the memory limits. Plain main(): it wraps the allocator (link arguments in meson.build).
 *
 *	stops cancel MODEL SOURCE TARGET N   N cancels spread over a whole plan of that pair
 *	stops memory                         allocations that fail one after the other; limits
 */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "reshard/layout.h"
#include "reshard/upload.h"
#include "reshard/plan.h"
#include "reshard/plan_read.h"
#include "tests/support/model.h"

/* ---- the allocator ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);

static struct {
	bool on;
	int64_t until; /* allocations that still work; negative: all */
	int64_t live;
	size_t bytes, peak;
} heap;

static bool heap_refuses(void)
{
	return heap.on && heap.until >= 0 && heap.until-- == 0 && (heap.until = 0, true);
}

static void *heap_note(void *p)
{
	if (!p || !heap.on)
		return p;
	heap.live++;
	heap.bytes += malloc_usable_size(p);
	heap.peak = MAX_OF(heap.peak, heap.bytes);
	return p;
}

static void heap_drop(void *p)
{
	if (!p || !heap.on)
		return;
	heap.live--;
	heap.bytes -= malloc_usable_size(p);
}

void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
	return heap_refuses() ? NULL : heap_note(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each)
{
	return heap_refuses() ? NULL : heap_note(__real_calloc(n, each));
}

void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	if (heap_refuses())
		return NULL;
	heap_drop(p);
	void *q = __real_realloc(p, n);
	return heap_note(q ? q : p) == q ? q : NULL;
}

void __wrap_free(void *p);
void __wrap_free(void *p)
{
	heap_drop(p);
	__real_free(p);
}

static void heap_begin(int64_t until)
{
	heap.until = until;
	heap.live = 0;
	heap.bytes = heap.peak = 0;
	heap.on = true;
}

static int failures;

static bool expect(bool ok, const char *what, long long n)
{
	if (!ok) {
		fprintf(stderr, "FAILED %s (%lld)\n", what, n);
		failures++;
	}
	return ok;
}

static bool to_buf(void *arg, const void *p, size_t n)
{
	buf_put(arg, p, n);
	return true;
}

static void write_place(const struct place *p, struct buf *out)
{
	static struct text_out o;
	text_init(&o, NULL, false);
	o.put = to_buf;
	o.arg = out;
	place_text(p, &o);
	text_flush(&o);
}

/* ---- cancel ---- */

struct pair {
	struct buf source, target;
	atomic_bool cancel, stays;
	_Atomic int step;	   /* where it is, for the report; 5: at its end */
	uint64_t end_ns, freed_ns; /* it had stopped; what it left was free */
	struct left left;
	struct reject why;
	enum err err;
};

static uint64_t cpu_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool plan_whole(struct pair *w, struct place **s, struct place **t, struct plan **p)
{
	static struct text_out o;
	struct place_limits lim = PLACE_LIMITS;
	lim.cancel = &w->cancel;
	lim.left = &w->left;
	w->step = 1;
	w->err = place_read(buf_bytes(&w->source), PLACE_WIRE, &lim, &w->why, s);
	w->step = 2;
	if (!w->err)
		w->err = place_read(buf_bytes(&w->target), PLACE_WIRE, &lim, &w->why, t);
	struct plan_ask ask = { .source = *s, .target = *t, .lim = PLAN_LIMITS_WIDE };
	ask.lim.cancel = &w->cancel;
	ask.lim.left = &w->left;
	w->step = 3;
	if (!w->err)
		w->err = plan_make(&ask, &w->why, p);
	if (w->err)
		return false;
	w->step = 4;
	struct sha sha;
	if (sha_init(&sha) != ERR_NONE)
		return false;
	text_init(&o, &sha, false);
	o.cancel = &w->cancel;
	plan_text(*p, &o);
	bool whole = text_end(&o);
	sha_fini(&sha);
	return whole;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
	nanosleep(&t, NULL);
}

static void *run(void *arg)
{
	struct pair *w = arg;
	struct place *s = NULL, *t = NULL;
	struct plan *p = NULL;
	bool whole = plan_whole(w, &s, &t, &p);
	w->end_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
	left_free(&w->left);
	w->freed_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
	plan_free(p);
	place_free(s);
	place_free(t);
	w->step = 5;
	if (!whole && !w->err)
		w->err = ERR_CANCELLED;
	while (w->stays)
		sleep_ns(100000);
	return NULL;
}

/* Cancels when the planner has used cpu_at of its processor's time; how much more it used after. */
static uint64_t cancel_at(struct pair *w, uint64_t cpu_at, int *step)
{
	pthread_t th;
	clockid_t clock;
	w->cancel = false;
	w->why = (struct reject){ 0 };
	w->err = ERR_NONE;
	w->step = 0;
	w->stays = true;
	pthread_create(&th, NULL, run, w);
	pthread_getcpuclockid(th, &clock);
	uint64_t now = cpu_ns(clock);
	/* it waits after its end: the clock of a thread that is gone says nothing */
	for (; now < cpu_at && w->step != 5; now = cpu_ns(clock))
		sleep_ns(MIN_OF(cpu_at - now, 2000000));
	atomic_store(&w->cancel, true);
	*step = w->step; /* not before: this thread may lose its processor in between */
	w->stays = false;
	pthread_join(th, NULL);
	return w->end_ns > now ? w->end_ns - now : 0;
}

static void cancels(const char *const *argv)
{
	static struct pair w;
	static const struct place_limits lim = PLACE_LIMITS;
	struct vec_file models = vec_open("reshard/models.json");
	int n = atoi(argv[3]), step = 0, stopped = 0;
	for (int i = 0; i < 2; i++) {
		struct model_layout l;
		struct place *p = NULL;
		struct buf *b = i ? &w.target : &w.source;
		*b = BUF_INIT((size_t)4 << 30);
		if (!model_layout(argv[1 + i], &l) ||
		    model_place(model_find(models.root, argv[0]), &l, &lim, &w.why, &p))
			exit(2);
		write_place(p, b);
		place_free(p);
	}
	vec_free(&models);
	run(&w);
	uint64_t whole = w.end_ns, t0 = cpu_ns(CLOCK_THREAD_CPUTIME_ID), worst = 0;
	expect(w.err == ERR_NONE, "the pair is planned", w.err);
	run(&w);
	whole = w.end_ns - t0;
	for (int i = 0; i < n; i++) {
		uint64_t late =
			cancel_at(&w, whole * (2 * (unsigned)i + 1) / (2 * (unsigned)n), &step);
		if (late > worst)
			printf("  %.0f%% (step %d): stopped after %.1f ms of processor time, all free "
			       "%.1f ms later\n",
			       100.0 * (2 * i + 1) / (2 * n), step, (double)late / 1e6,
			       (double)(w.freed_ns - w.end_ns) / 1e6);
		worst = MAX_OF(worst, late);
		/* one that comes at the end, or while this thread waited for a processor, may find
		 * all done */
		expect(w.err == ERR_CANCELLED || (w.err == ERR_NONE && step >= 4),
		       "it says that it was cancelled", i);
		stopped += w.err == ERR_CANCELLED;
	}
	expect(stopped > 0, "some cancel was in time", stopped);
	printf("%s: %zu and %zu bytes, whole in %.0f ms, %d cancels, worst %.1f ms\n", argv[0],
	       w.source.n, w.target.n, (double)whole / 1e6, n, (double)worst / 1e6);
	expect(worst <= 50000000, "50 ms", (long long)worst);
	buf_fini(&w.source);
	buf_fini(&w.target);
}

/* ---- memory ---- */

static const char small[] =
	"{\"placement_set_id\":\"s\",\"resource_id\":\"m\",\"resource_kind\":\"model_weight\","
	"\"revision\":\"r\",\"weight_generation\":1,"
	"\"topology\":{\"dp_size\":2,\"ep_size\":1,\"pp_size\":1,\"tp_size\":1,\"participants\":["
	"{\"participant_id\":\"p1\",\"rank\":{\"dp\":1,\"ep\":0,\"pp\":0,\"tp\":0}},"
	"{\"participant_id\":\"p0\",\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,\"tp\":0}}]},"
	"\"tensors\":[%s],\"parts\":[%s]}";
static const char tensor[] =
	"{\"dtype\":\"b\\u0066\",\"expert_id\":null,\"global_shape\":[40],\"itemsize\":2,"
	"\"layer_id\":null,\"layout_fingerprint\":\"l\",\"parallel_axes\":[{\"kind\":\"dp\","
	"\"semantics\":\"replicated\"}],\"shard_dims\":[],\"tensor_id\":\"%s\"}";

/* Two tied tensors in 20 boxes each, on two ranks. */
static void small_place(struct buf *out)
{
	static char tensors[2048], parts[65536], text[131072];
	size_t at = 0;
	int n = snprintf(tensors, sizeof(tensors), tensor, "b");
	tensors[n++] = ',';
	snprintf(tensors + n, sizeof(tensors) - (size_t)n, tensor, "a");
#define ADD(...) at += (size_t)snprintf(parts + at, sizeof(parts) - at, __VA_ARGS__)
	for (int r = 0; r < 2; r++) {
		ADD("%s{\"participant_id\":\"p%d\",\"rank\":{\"dp\":%d,\"ep\":0,\"pp\":0,\"tp\":0},"
		    "\"fragments\":[",
		    r ? "," : "", r, r);
		for (int i = 0; i < 40; i++)
			ADD("%s{\"tensor_id\":\"%s\",\"global_offset\":[%d],\"local_shape\":[2],"
			    "\"nbytes\":4,\"rank\":{\"dp\":%d,\"ep\":0,\"pp\":0,\"tp\":0},"
			    "\"aliases\":[\"b\",\"a\"]}",
			    i ? "," : "", i % 2 ? "a" : "b", i / 2 * 2, r);
		ADD("]}");
	}
#undef ADD
	n = snprintf(text, sizeof(text), small, tensors, parts);
	buf_put(out, text, (size_t)n);
}

static const char stored_one[] =
	"{\"created_at\":\"t\",\"fragments\":[{\"aliases\":[],\"fragment_id\":\"f\",\"global_offset\":[0],"
	"\"local_shape\":[40],\"nbytes\":80,\"object_key\":\"g/payload/x\",\"object_offset\":0,"
	"\"tensor_id\":\"b\"}],\"group_id\":\"g\",\"manifest_key\":\"g/manifest\",\"namespace\":\"n\","
	"\"resource_id\":\"m\",\"resource_kind\":\"model_weight\",\"revision\":\"r\",\"tensors\":[%s],"
	"\"weight_generation\":1}";

static const char layout[] =
	"{\"files\":[\"f\"],\"layout_fingerprint\":\"l\",\"placement_set_id\":\"s\",\"resource_id\":"
	"\"m\",\"revision\":\"r\",\"rules\":[{\"match\":\"*\",\"axes\":[]}],\"topology\":{\"dp_size\":1,"
	"\"ep_size\":1,\"participants\":[{\"participant_id\":\"p\",\"rank\":{\"dp\":0,\"ep\":0,\"pp\":0,"
	"\"tp\":0}}],\"pp_size\":1,\"tp_size\":1},\"weight_generation\":1}";
static const char header[] =
	"{\"__metadata__\":{\"\\u0061\":\"b\"},\"\\u0062\":{\"dtype\":\"F32\",\"shape\":[2,3],"
	"\"data_offsets\":[0,24]}}";

/* Headers, layouts, plans read back. */
static enum err other_steps(struct bytes plan)
{
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why = { 0 };
	struct st_header *h = NULL;
	struct layout *l = NULL;
	struct place *p = NULL;
	struct listed_plan *q = NULL;
	enum err e = st_header_read(BYTES(header, sizeof(header) - 1), sizeof(header) + 31,
				    &lim, &why, &h);
	if (!e)
		e = layout_read(BYTES(layout, sizeof(layout) - 1), &lim, &why, &l);
	if (!e)
		e = layout_place(l, (const struct st_header *const *)&h, 1, &lim, &why, &p);
	if (!e)
		e = listed_plan_read(plan, &lim, &why, &q);
	listed_plan_free(q);
	place_free(p);
	layout_free(l);
	st_header_free(h);
	return e;
}

/* Everything once. ERR_NONE: nothing was refused. leaves: what a step leaves is freed here. */
static enum err all_steps(struct bytes draft, struct bytes manifest, struct bytes text,
			  bool leaves)
{
	struct place_limits lim = PLACE_LIMITS;
	struct left left = { 0 };
	struct reject why = { 0 };
	struct place *p = NULL;
	struct stored *d = NULL;
	struct plan *plan = NULL;
	struct upload *u = NULL;
	static const struct upload_opts opts = UPLOAD_OPTS;
	struct upload_bound bound[] = { { 0, 7 }, { 1, 7 } };
	lim.left = leaves ? &left : NULL;
	enum err e = place_read(draft, PLACE_DRAFT, &lim, &why, &p);
	struct plan_ask a = { .source = p, .target = p, .lim = PLAN_LIMITS };
	a.lim.left = lim.left;
	if (!e)
		e = plan_make(&a, &why, &plan);
	if (!e)
		e = stored_read(manifest, &lim, &why, &d);
	if (!e)
		e = upload_plan(p, bound, 2, &opts, &why, &u);
	expect(e || !left.p, "a step that did its work leaves nothing", e);
	left_free(&left);
	upload_free(u);
	plan_free(plan);
	stored_free(d);
	place_free(p);
	return e ? e : other_steps(text);
}

/* The text of the small placement's plan to itself. */
static void plan_of(struct bytes draft, struct buf *out)
{
	static struct text_out o;
	static const struct place_limits lim = PLACE_LIMITS;
	struct reject why;
	struct place *p = NULL;
	struct plan *plan = NULL;
	if (place_read(draft, PLACE_DRAFT, &lim, &why, &p))
		exit(2);
	struct plan_ask a = { .source = p, .target = p, .lim = PLAN_LIMITS };
	if (plan_make(&a, &why, &plan))
		exit(2);
	text_init(&o, NULL, false);
	o.put = to_buf;
	o.arg = out;
	plan_text(plan, &o);
	text_flush(&o);
	plan_free(plan);
	place_free(p);
}

static void allocations_fail(struct bytes draft, struct bytes manifest, struct bytes text,
			     bool leaves)
{
	enum err e = ERR_NO_MEMORY;
	long long i = 0;
	for (; e != ERR_NONE && i < 10000; i++) {
		heap_begin(i);
		e = all_steps(draft, manifest, text, leaves);
		heap.on = false;
		expect(e == ERR_NONE || e == ERR_NO_MEMORY, "no other error", e);
		expect(heap.live == 0 && heap.bytes == 0, "nothing is left behind", i);
	}
	expect(e == ERR_NONE && i > 40, "at last it works", i);
	printf("allocations that failed one after the other: %lld\n", i - 1);
}

/* Limits from far too small to enough: refused or done, and never above. */
static void limits_hold(struct bytes text, enum place_form form)
{
	struct reject why;
	size_t slack =
		96u << 10; /* what does not grow with the input: rooms of writers, contexts */
	bool done = false;
	for (size_t limit = 1 << 12; !done && limit < (size_t)1 << 32; limit += limit / 3) {
		struct place_limits lim = PLACE_LIMITS;
		struct place *p = NULL;
		lim.memory = limit;
		heap_begin(-1);
		enum err e = place_read(text, form, &lim, &why, &p);
		size_t peak = heap.peak;
		struct plan *plan = NULL;
		struct plan_ask a = { .source = p, .target = p, .lim = PLAN_LIMITS_WIDE };
		heap_begin(-1);
		a.lim.memory = limit;
		enum err pe = e ? e : plan_make(&a, &why, &plan);
		size_t plan_peak = heap.peak;
		heap.on = false;
		done = !pe;
		expect((e == ERR_NONE || e == ERR_NO_MEMORY) &&
			       (pe == ERR_NONE || pe == ERR_NO_MEMORY),
		       "done, or refused for memory", pe);
		expect(peak <= limit + limit / 8 + slack, "within the limit",
		       (long long)(peak - limit));
		expect(plan_peak <= limit + limit / 8 + slack, "the plan within the limit",
		       (long long)(plan_peak - limit));
		plan_free(plan);
		if (done)
			printf("%zu bytes of text: enough with a limit of %zu; held %zu, plan %zu\n",
			       text.n, limit, peak, plan_peak);
		place_free(p);
	}
	expect(done, "at last it works", 0);
}

static void memory(void)
{
	static char manifest[4096], one[1024];
	static const struct place_limits lim = PLACE_LIMITS;
	struct buf draft = BUF_INIT(1 << 20), text = BUF_INIT((size_t)1 << 30);
	struct vec_file models = vec_open("reshard/models.json");
	struct model_layout l;
	struct reject why;
	struct place *p = NULL;
	small_place(&draft);
	snprintf(one, sizeof(one), tensor, "b");
	int n = snprintf(manifest, sizeof(manifest), stored_one, one);
	struct buf listed = BUF_INIT(1 << 20);
	plan_of(buf_bytes(&draft), &listed);
	if (!expect(all_steps(buf_bytes(&draft), BYTES(manifest, n), buf_bytes(&listed),
			      false) == ERR_NONE,
		    "the small ones", 0))
		return;
	allocations_fail(buf_bytes(&draft), BYTES(manifest, n), buf_bytes(&listed), false);
	allocations_fail(buf_bytes(&draft), BYTES(manifest, n), buf_bytes(&listed), true);
	buf_fini(&listed);
	limits_hold(buf_bytes(&draft), PLACE_DRAFT);
	model_layout("grid 8 2 1", &l);
	if (model_place(model_find(models.root, "llama-3.1-405b"), &l, &lim, &why, &p))
		exit(2);
	write_place(p, &text);
	place_free(p);
	vec_free(&models);
	limits_hold(buf_bytes(&text), PLACE_WIRE);
	buf_fini(&draft);
	buf_fini(&text);
}

int main(int argc, char **argv)
{
	if (argc == 6 && strcmp(argv[1], "cancel") == 0)
		cancels((const char *const *)argv + 2);
	else if (argc == 2 && strcmp(argv[1], "memory") == 0)
		memory();
	else
		return 2;
	return failures != 0;
}
