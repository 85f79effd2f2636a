/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers: what is refused, who holds them, and memory that goes in the middle of a call. */
#include "pml_memory.h"
#include "store_fix.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(buffers, .timeout = 60);

#define REFUSED(call) cr_expect_eq(call, PML_ERR_INVALID_PARAMS, "%s", #call)

static uint8_t *map(size_t n, int prot)
{
	void *p = mmap(NULL, n, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(p, MAP_FAILED);
	return p;
}

static struct pml_buffer *reg(struct fix *x, void *p, size_t n)
{
	struct pml_buffer *b = NULL;
	int e = pml_buffer_register(x->p, p, n, NULL, &b, &x->err);
	cr_assert_eq(e, 0, "%s", x->err.text);
	return b;
}

static struct pml_buffer_facts facts(const struct pml_buffer *b)
{
	struct pml_buffer_facts f = PML_BUFFER_FACTS_INIT;
	cr_assert_eq(pml_buffer_info(b, &f), 0);
	return f;
}

/* Put from it, get into it, a region of it; beside it as before; across its edge not at all. */
Test(buffers, checked_ranges)
{
	enum { N = 64 << 10 };
	struct fix x;
	uint8_t *m = map(3 * N, PROT_READ | PROT_WRITE);
	size_t n = 0;
	fix_open(&x);
	struct pml_buffer *b = reg(&x, m + N, N);
	struct pml_buffer_facts f = facts(b);
	cr_expect(f.base == m + N && f.bytes == N && f.calls == 0 && !f.read_only && !f.locked);
	memset(m, 7, 3 * N);
	cr_expect_eq(pml_put(x.p, "k", 1, m + N, N, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_get(x.p, "k", 1, m + N, N, &n, NULL, &x.err), 0, "%s", x.err.text);
	cr_expect_eq(pml_get(x.p, "k", 1, m, N, &n, NULL, &x.err), 0, "unregistered");
	cr_expect_eq(pml_get(x.p, "k", 1, m + 2 * N, N, &n, NULL, &x.err), 0, "just behind");
	REFUSED(pml_get(x.p, "k", 1, m + N + 1, N, &n, NULL, &x.err));
	cr_expect(strstr(x.err.text, "cross the edge"), "%s", x.err.text);
	REFUSED(pml_get(x.p, "k", 1, m + 1, N, &n, NULL, &x.err));
	REFUSED(pml_get(x.p, "k", 1, m, 3 * N, &n, NULL, &x.err));
	REFUSED(pml_put(x.p, "l", 1, m + 2 * N - 1, 2, NULL, &x.err));
	struct pml_nd_region r = PML_ND_REGION_INIT;
	r.memory = m, r.memory_bytes = 3 * N, r.memory_base = N;
	r.inner_bytes = 1, r.n_dims = 1;
	r.counts[0] = N / 2, r.memory_strides[0] = 2, r.object_strides[0] = 1;
	cr_expect_eq(pml_get_regions(x.p, "k", 1, &r, 1, NULL, &x.err), 0, "%s", x.err.text);
	r.memory_base = 2 * N - 4, r.inner_bytes = 8, r.counts[0] = 1;
	REFUSED(pml_get_regions(x.p, "k", 1, &r, 1, NULL, &x.err));
	cr_expect_eq(facts(b).calls, 0,
		     "calls that are over hold nothing, refused ones neither");
	cr_expect_eq(pml_buffer_unregister(b), 0);
	cr_expect_eq(pml_get(x.p, "k", 1, m + N + 1, N, &n, NULL, &x.err), 0,
		     "no edge is left");
	munmap(m, 3 * N);
	fix_close(&x);
	NO_LEAKS();
}

/* Many of them, in any order, with gaps: each is found. */
Test(buffers, table)
{
	enum { N = 200, BYTES = 100 };
	struct fix x;
	uint8_t *m = map(N * 2 * BYTES, PROT_READ | PROT_WRITE);
	struct pml_buffer *b[N], *more = NULL;
	size_t n;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, m, BYTES, NULL, &x.err), 0);
	for (size_t i = 0; i < N; i++) {
		size_t at = i * 77 % N;
		b[at] = reg(&x, m + at * 2 * BYTES, BYTES);
	}
	for (size_t i = 0; i < N; i++) {
		uint8_t *p = m + i * 2 * BYTES;
		cr_expect_eq(pml_buffer_register(x.p, p + 99, 1, NULL, &more, &x.err),
			     PML_ERR_EXISTS);
		cr_expect_eq(pml_buffer_register(x.p, p + BYTES, BYTES + 1, NULL, &more,
						 &x.err),
			     i + 1 < N ? PML_ERR_EXISTS : PML_ERR_NONE);
		cr_expect_eq(pml_get(x.p, "k", 1, p, BYTES, &n, NULL, &x.err), 0);
		REFUSED(pml_get(x.p, "k", 1, p + 1, BYTES, &n, NULL, &x.err));
	}
	cr_expect_eq(pml_buffer_unregister(more), 0);
	for (size_t i = 0; i < N; i++)
		cr_expect_eq(pml_buffer_unregister(b[i * 31 % N]), 0);
	munmap(m, N * 2 * BYTES);
	fix_close(&x);
	NO_LEAKS();
}

/* Memory that is not what it should be, named before anything moves. */
Test(buffers, refused_memory)
{
	struct fix x;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct pml_buffer *b = NULL;
	struct pml_buffer_opts o = PML_BUFFER_OPTS_INIT;
	size_t n;
	fix_open(&x);
	cr_assert_eq(pml_put(x.p, "k", 1, "v", 1, NULL, &x.err), 0);
	uint8_t *m = map(3 * page, PROT_READ | PROT_WRITE);
	munmap(m + page, page);
	for (int lazy = 0; lazy < 2; lazy++) {
		o.no_prefault = lazy;
		REFUSED(pml_buffer_register(x.p, m, 3 * page, &o, &b, &x.err));
		cr_expect(strstr(x.err.text, "not all of the memory is mapped"), "%s",
			  x.err.text);
	}
	o.no_prefault = false;
	munmap(m, page);
	munmap(m + 2 * page, page);
	m = map(page, PROT_READ);
	REFUSED(pml_buffer_register(x.p, m, page, &o, &b, &x.err));
	cr_expect(strstr(x.err.text, "may not be written"), "%s", x.err.text);
	o.read_only = true;
	cr_assert_eq(pml_buffer_register(x.p, m, page, &o, &b, &x.err), 0, "%s", x.err.text);
	cr_expect(facts(b).read_only);
	cr_expect_eq(pml_put(x.p, "l", 1, m, page, NULL, &x.err), 0);
	REFUSED(pml_get(x.p, "k", 1, m, page, &n, NULL, &x.err));
	cr_expect(strstr(x.err.text, "reading alone"), "%s", x.err.text);
	pml_buffer_unregister(b);
	munmap(m, page);
	FILE *f = tmpfile(); /* a mapping that is longer than its file */
	cr_assert(f && ftruncate(fileno(f), (off_t)page) == 0);
	m = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
	o.read_only = false;
	REFUSED(pml_buffer_register(x.p, m, 2 * page, &o, &b, &x.err));
	munmap(m, 2 * page);
	fclose(f);
	fix_close(&x);
	NO_LEAKS();
}

Test(buffers, refused_arguments)
{
	struct fix x;
	static char m[64];
	struct pml_buffer *b = NULL;
	struct pml_buffer_opts o = { .size = 2 };
	struct pml_buffer_facts tiny = { .size = 1 };
	fix_open(&x);
	REFUSED(pml_buffer_register(NULL, m, 64, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, NULL, 64, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, m, 0, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, m, SIZE_MAX, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, (void *)(UINTPTR_MAX - 5), 64, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, (void *)8, 64, NULL, &b, &x.err));
	REFUSED(pml_buffer_register(x.p, m, 64, NULL, NULL, &x.err));
	REFUSED(pml_buffer_register(x.p, m, 64, &o, &b, &x.err));
	o = (struct pml_buffer_opts)PML_BUFFER_OPTS_INIT;
	o.reserved[4] = true;
	REFUSED(pml_buffer_register(x.p, m, 64, &o, &b, &x.err));
	cr_expect_null(b);
	b = reg(&x, m, 64);
	REFUSED(pml_buffer_info(NULL, &tiny));
	REFUSED(pml_buffer_info(b, NULL));
	REFUSED(pml_buffer_info(b, &tiny));
	cr_expect_eq(pml_buffer_unregister(NULL), 0);
	pml_close(x.p);
	cr_expect_eq(facts(b).bytes, 64, "after the handle, too");
	cr_expect_eq(pml_buffer_unregister(b), 0);
	sdk_server_free(x.s);
	NO_LEAKS();
}

Test(buffers, locked)
{
	struct fix x;
	static char m[8192];
	struct pml_buffer *b = NULL;
	struct pml_buffer_opts o = PML_BUFFER_OPTS_INIT;
	fix_open(&x);
	o.lock = true;
	int e = pml_buffer_register(x.p, m, sizeof(m), &o, &b, &x.err);
	if (e == 0) {
		cr_expect(facts(b).locked);
		cr_expect_eq(pml_buffer_unregister(b), 0);
	} else {
		cr_expect_eq(e, PML_ERR_NO_MEMORY);
		cr_expect(strstr(x.err.text, "ulimit -l"), "%s", x.err.text);
	}
	fix_close(&x);
	NO_LEAKS();
}

/* ---- in the middle of a call ---- */

static bool park(struct fake *f, uint32_t method, struct rpc_req *r)
{
	if (method != METHOD_PUT_START || f->parked)
		return false;
	enum err e = rpc_park(r);
	assert(e == ERR_NONE);
	(void)e;
	f->parked = r;
	return true;
}

/* The call that has it ends, its memory may go; a call that has it not goes on. */
Test(buffers, unregister_ends_its_calls)
{
	struct fix x;
	uint8_t *m = map(4096, PROT_READ | PROT_WRITE);
	struct pml_cq *cq = NULL;
	struct pml_op *op[2] = { 0 }, *got = NULL;
	struct pml_result r = PML_RESULT_INIT;
	char other[16] = "x";
	fix_open(&x);
	x.f->on = park;
	struct pml_buffer *b = reg(&x, m, 4096);
	struct pml_buf buf = { m, 4096 }, buf2 = { other, 16 };
	struct pml_item it = PML_ITEM_INIT;
	cr_assert_eq(pml_cq_new(x.p, 4, &cq, &x.err), 0);
	it.key = "k", it.key_bytes = 1, it.bufs = &buf, it.n_bufs = 1;
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, cq, NULL, &op[0], &x.err), 0);
	while (!__atomic_load_n(&x.f->parked, __ATOMIC_ACQUIRE))
		usleep(1000);
	it.key = "o", it.bufs = &buf2;
	cr_assert_eq(pml_put_start(x.p, &it, 1, NULL, NULL, NULL, &op[1], &x.err), 0);
	cr_expect_eq(facts(b).calls, 1);
	cr_expect_eq(pml_buffer_unregister(b), 0);
	munmap(m, 4096);
	cr_assert_eq(pml_cq_wait(cq, &got, 1, 10000), 1);
	cr_expect_eq(got, op[0]);
	cr_expect_eq(pml_op_code(op[0]), PML_ERR_CANCELLED);
	cr_expect_eq(pml_op_result(op[0], 0, &r), 0);
	cr_expect_eq(r.code, PML_ERR_CANCELLED);
	cr_expect_eq(pml_op_wait(op[1]), 0);
	pml_op_free(op[0]);
	pml_op_free(op[1]);
	pml_cq_free(cq);
	fix_close(&x);
	NO_LEAKS();
}

/* case 73: unregistered and unmapped at any moment of a copy; nobody crashes, and no call hangs. */
Test(buffers, case_073_unmapped_while_it_is_filled)
{
	enum { N = 24 << 20 };
	struct fix x;
	unsigned whole = 0, ended = 0;
	fix_open(&x);
	uint8_t *v = bytes_of(N, 1);
	cr_assert_eq(pml_put(x.p, "big", 3, v, N, NULL, &x.err), 0, "%s", x.err.text);
	for (unsigned i = 0; i < 40; i++) {
		uint8_t *m = map(N, PROT_READ | PROT_WRITE);
		struct pml_buffer *b = reg(&x, m, N);
		struct pml_buf buf = { m, N };
		struct pml_item it = PML_ITEM_INIT;
		struct pml_op *op = NULL;
		it.key = i % 2 ? "big" : "new", it.key_bytes = 3;
		it.bufs = &buf, it.n_bufs = 1;
		int e = i % 2 ? pml_get_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err)
			      : pml_upsert_start(x.p, &it, 1, NULL, NULL, NULL, &op, &x.err);
		cr_assert_eq(e, 0, "%s", x.err.text);
		if (i < 36)
			usleep(i * 100);
		else
			pml_op_wait(op);
		cr_expect_eq(pml_buffer_unregister(b), 0);
		munmap(m, N);
		e = pml_op_wait(op);
		cr_expect(e == 0 || e == PML_ERR_CANCELLED, "%s", pml_error_name(e));
		whole += e == 0;
		ended += e == PML_ERR_CANCELLED;
		pml_op_free(op);
		x.f->alloc_at = N + (2 << 20); /* the next put may lie where this one did */
	}
	cr_expect_geq(whole, 4, "%u whole, %u ended", whole, ended);
	cr_expect_gt(ended, 0, "%u whole, %u ended", whole, ended);
	free(v);
	fix_close(&x);
	NO_LEAKS();
}

Test(buffers, in_a_forked_child)
{
	struct fix x;
	static char m[64];
	int st = 0;
	fix_open(&x);
	struct pml_buffer *b = reg(&x, m, 64);
	pid_t pid = fork();
	if (pid == 0) {
		struct pml_buffer_facts f = PML_BUFFER_FACTS_INIT;
		struct pml_buffer *c = NULL;
		bool ok = pml_buffer_unregister(b) == PML_ERR_FORKED &&
			  pml_buffer_info(b, &f) == PML_ERR_FORKED &&
			  pml_buffer_register(x.p, m, 1, NULL, &c, NULL) == PML_ERR_FORKED;
		_exit(ok ? 0 : 1);
	}
	cr_expect(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && WEXITSTATUS(st) == 0);
	cr_expect_eq(pml_buffer_unregister(b), 0);
	fix_close(&x);
	NO_LEAKS();
}
