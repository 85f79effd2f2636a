/* SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/backing.h"

#include "../support/tcp_client.h"

enum { CHUNK = 1000 };

/* ---- the cluster ---- */

void cs_ready(const struct proc *p)
{
	static char text[1 << 16];
	cr_assert(proc_http_until(p, "/readyz", 200, 10000, text, sizeof(text)), "%s: %s",
		  p->row->name, text);
}

double cs_metric_of(const struct proc *p, const char *name)
{
	static char text[1 << 20];
	const char *body;
	if (http_get(p->http, "GET", "/metrics", text, sizeof(text), &body) != 200)
		return -1;
	return metric_value(body, name);
}

bool cs_metric_until(const struct proc *p, const char *name, double want, int ms)
{
	for (int t = 0; t < ms; t += 10) {
		if (cs_metric_of(p, name) == want)
			return true;
		usleep(10000);
	}
	return cs_metric_of(p, name) == want;
}

uint64_t cs_now_ms(void)
{
	return clock_real.now_ns(&clock_real) / NS_PER_MS;
}

struct pml *cs_client(const struct world *w)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	o.data = w->box.dir;
	o.secret_file = w->box.secret;
	cr_assert_eq(pml_open(&o, &p, &err), 0, "%s", err.text);
	return p;
}

void cs_start_all(struct world *w)
{
	proc_run(&w->box, daemon_row("master"), w->margs, &w->master);
	proc_run(&w->box, daemon_row("agent"), w->aargs, &w->agent);
	cs_ready(&w->agent);
	cs_ready(&w->master);
}

void cs_prepare(struct world *w, const char *pool, const char *slots)
{
	*w = (struct world){
		.margs = { "--set", "master.http_port=0", "--set", "master.lease_ms=500",
			   "--set", "master.lease_max_ms=1000", "--set",
			   "master.put_start_discard_ms=1000" },
		.aargs = { "--set", "agent.http_port=0", "--set", pool, "--set", slots },
	};
	box_make(&w->box);
}

void cs_up(struct world *w, const char *pool, const char *slots)
{
	cs_prepare(w, pool, slots);
	cs_start_all(w);
	w->p = cs_client(w);
}

/* A crash would end the test's last call; a report of a sanitizer is in the log. */
void cs_down(struct world *w)
{
	static char text[1 << 16];
	pml_close(w->p);
	struct proc *procs[] = { &w->second, &w->agent, &w->master };
	for (size_t i = 0; i < ARRAY_LEN(procs); i++) {
		if (!procs[i]->row)
			continue;
		cr_expect_eq(proc_stop(procs[i]), 0, "%s",
			     proc_log(procs[i], text, sizeof(text)));
	}
	if (w->second.row)
		box_remove(&w->far);
	box_remove(&w->box);
}

void cs_kill_it(struct proc *p)
{
	proc_signal(p, SIGKILL);
	cr_assert(proc_wait(p, 5000));
}

void *cs_pool_map(const struct world *w, const char *name, size_t bytes)
{
	char folder[PATH_BYTES_MAX], file[PATH_BYTES_MAX];
	struct why why = { 0 };
	struct stat st;
	cr_assert_eq(pool_folder_name(w->box.dir, w->box.dir, folder, &why), ERR_NONE, "%s",
		     why.text);
	cr_assert_eq(path_join(file, folder, name, &why), ERR_NONE);
	int fd = open(file, O_RDWR);
	cr_assert(fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size >= bytes, "%s", file);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	cr_assert_neq(p, MAP_FAILED);
	return p;
}

/* ---- objects: what key i of a family has is known ---- */

static size_t size_of(unsigned i)
{
	return i % 19 == 0 ? 0 : (i * 97u) % VALUE_MAX + 1;
}

void cs_fill(uint8_t *p, size_t n, unsigned i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
	for (size_t k = 0; k < n; k++) {
		if (k % 8 == 0)
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		p[k] = (uint8_t)(x >> k % 8 * 8);
	}
}

struct chunk {
	struct pml_item items[CHUNK];
	struct pml_buf bufs[CHUNK];
	char keys[CHUNK][32];
	uint8_t v[CHUNK][VALUE_MAX];
};

static void chunk_make(struct chunk *c, const char *family, unsigned first, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		snprintf(c->keys[i], sizeof(c->keys[i]), "%s/%u", family, first + i);
		c->bufs[i] = (struct pml_buf){ c->v[i], VALUE_MAX };
		c->items[i] = (struct pml_item)PML_ITEM_INIT;
		c->items[i].key = c->keys[i];
		c->items[i].key_bytes = strlen(c->keys[i]);
		c->items[i].bufs = &c->bufs[i];
		c->items[i].n_bufs = 1;
	}
}

void cs_put_many(const struct world *w, const char *family, unsigned n)
{
	static struct chunk c;
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	for (unsigned at = 0; at < n; at += CHUNK) {
		unsigned m = MIN_OF(n - at, CHUNK);
		chunk_make(&c, family, at, m);
		for (unsigned i = 0; i < m; i++) {
			c.bufs[i].n = size_of(at + i);
			cs_fill(c.v[i], c.bufs[i].n, at + i);
		}
		cr_assert_eq(pml_put_start(w->p, c.items, m, NULL, NULL, NULL, &op, &err), 0,
			     "%s", err.text);
		int code = pml_op_wait(op);
		pml_op_error(op, &err);
		cr_assert_eq(code, 0, "%s/%u: %s", family, at, err.text);
		pml_op_free(op);
	}
}

static void failed(struct found *f, const struct pml_op *op, unsigned i)
{
	struct pml_error err = PML_ERROR_INIT;
	pml_op_item_error(op, i, &err);
	f->failed++;
	snprintf(f->why, sizeof(f->why), "%s: %.120s", pml_error_name(err.code), err.text);
}

struct found cs_get_many(const struct world *w, const char *family, unsigned n)
{
	static struct chunk c;
	static uint8_t want[VALUE_MAX];
	struct found f = { 0 };
	struct pml_error err = PML_ERROR_INIT;
	struct pml_op *op;
	for (unsigned at = 0; at < n; at += CHUNK) {
		unsigned m = MIN_OF(n - at, CHUNK);
		chunk_make(&c, family, at, m);
		cr_assert_eq(pml_get_start(w->p, c.items, m, NULL, NULL, NULL, &op, &err), 0,
			     "%s", err.text);
		pml_op_wait(op);
		for (unsigned i = 0; i < m; i++) {
			struct pml_result r = PML_RESULT_INIT;
			size_t size = size_of(at + i);
			pml_op_result(op, i, &r);
			cs_fill(want, size, at + i);
			if (r.code == PML_ERR_NOT_FOUND)
				f.absent++;
			else if (r.code != 0)
				failed(&f, op, i);
			else if (r.bytes == size && memcmp(c.v[i], want, size) == 0)
				f.good++;
			else
				f.wrong++;
		}
		pml_op_free(op);
	}
	return f;
}

uint64_t cs_objects(const struct world *w)
{
	struct pml_op *op;
	struct pml_error err = PML_ERROR_INIT;
	cr_assert_eq(pml_holders(w->p, NULL, &op, &err), 0, "%s", err.text);
	uint64_t n = pml_op_objects(op);
	pml_op_free(op);
	return n;
}
