/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "print.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { CQ_DEPTH = 16, PROGRESS_MS = 200 };

/* ---- keys ---- */

static int digit(char ch)
{
	if (ch >= '0' && ch <= '9')
		return ch - '0';
	ch |= 0x20;
	return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static enum err read_hex(const char *s, struct store_key *out, struct why *why)
{
	size_t n = strlen(s);
	if (n % 2 || n / 2 > sizeof(out->p))
		return why_set(why, ERR_INVALID_PARAMS,
			       "hex:%.40s: two digits a byte are needed, at most %d bytes", s,
			       PML_KEY_MAX);
	for (size_t i = 0; i < n; i += 2) {
		int hi = digit(s[i]), lo = digit(s[i + 1]);
		if (hi < 0 || lo < 0)
			return why_set(why, ERR_INVALID_PARAMS,
				       "hex:%.40s: %.2s is no byte in hexadecimal", s, s + i);
		out->p[i / 2] = (uint8_t)(hi << 4 | lo);
	}
	out->n = n / 2;
	return ERR_NONE;
}

enum err store_key_read(const char *text, bool prefix, struct store_key *out, struct why *why)
{
	size_t n = strlen(text);
	out->n = 0;
	if (strncmp(text, "hex:", 4) == 0) {
		enum err e = read_hex(text + 4, out, why);
		if (e != ERR_NONE)
			return e;
	} else if (n > sizeof(out->p)) {
		return why_set(why, ERR_INVALID_PARAMS, "key %.40s...: %zu bytes, at most %d",
			       text, n, PML_KEY_MAX);
	} else {
		memcpy(out->p, text, n);
		out->n = n;
	}
	if (out->n == 0 && !prefix)
		return why_set(why, ERR_INVALID_PARAMS, "a key has 1 to %d bytes", PML_KEY_MAX);
	return ERR_NONE;
}

const char *store_key_text(const void *p, size_t n, char out[STORE_KEY_TEXT])
{
	const uint8_t *b = p;
	bool plain = n > 0 && !(n >= 4 && memcmp(b, "hex:", 4) == 0);
	n = MIN_OF(n, (size_t)PML_KEY_MAX);
	for (size_t i = 0; i < n; i++)
		plain &= b[i] > 0x20 && b[i] < 0x7f;
	if (plain) {
		memcpy(out, b, n);
		out[n] = '\0';
		return out;
	}
	memcpy(out, "hex:", 5);
	for (size_t i = 0; i < n; i++)
		snprintf(out + 4 + 2 * i, 3, "%02x", b[i]);
	return out;
}

/* ---- the handle ---- */

int store_fail(struct store *s, const struct pml_error *err)
{
	print_progress_end(s->c);
	/* who has no more to say than that: the general text names no remedy */
	if (err->code == PML_ERR_NOT_FOUND && strcmp(err->text, pml_error_text(err->code)) == 0)
		return cli_fail(s->c, ERR_NOT_FOUND,
				"no such key; `pomelo ls` shows the keys there are");
	if (!err->peer[0])
		return cli_fail(s->c, (enum err)err->code, "%s", err->text);
	return cli_fail(s->c, (enum err)err->code, "%s: %s", err->peer, err->text);
}

int store_open(struct cli *c, struct store *s)
{
	struct pml_error err = PML_ERROR_INIT;
	*s = (struct store){ .c = c, .interrupt_fd = -1, .deadline_ns = ctl_deadline(c) };
	enum err e = ctl_dirs(c, &s->dir);
	if (e != ERR_NONE)
		return cli_exit_of(e);
	int code = ctl_open(c, &s->dir, &s->p, &err);
	if (code == PML_ERR_NONE)
		code = pml_cq_new(s->p, CQ_DEPTH, &s->cq, &err);
	if (code == PML_ERR_NONE)
		return EXIT_OK_;
	code = store_fail(s, &err);
	store_close(s);
	return code;
}

void store_close(struct store *s)
{
	pml_close(s->p);
	pml_cq_free(s->cq);
	if (s->interrupt_fd >= 0)
		close(s->interrupt_fd);
	*s = (struct store){ .interrupt_fd = -1 };
}

uint32_t store_left_ms(const struct store *s)
{
	uint64_t left = clock_left_ms(s->deadline_ns, ctl_now_ns());
	return (uint32_t)MIN_OF(MAX_OF(left, 1u), (uint64_t)UINT32_MAX);
}

static void show(struct store *s, const struct pml_op *op, const char *what)
{
	uint64_t done = 0, total = 0;
	char a[32], b[32];
	if (!what || pml_op_progress(op, &done, &total) != PML_ERR_NONE || done == 0)
		return;
	print_bytes(a, sizeof(a), done);
	if (total)
		print_progress(s->c, "%s: %s of %s, %d %%", what, a,
			       print_bytes(b, sizeof(b), total),
			       (int)(100.0 * (double)done / (double)total));
	else
		print_progress(s->c, "%s: %s", what, a);
}

int store_wait(struct store *s, struct pml_op *op, const char *what, struct pml_error *err)
{
	struct pml_op *done = NULL;
	if (s->interrupt_fd < 0 && ctl_catch_interrupt(&s->interrupt_fd) != ERR_NONE)
		s->interrupt_fd = -1; /* Ctrl-C ends us the hard way then */
	int fd = s->interrupt_fd;     /* once is enough */
	while (pml_cq_poll(s->cq, &done, 1) == 0) {
		if (ctl_wait(fd, pml_cq_fd(s->cq), PROGRESS_MS) == ERR_CANCELLED) {
			pml_op_cancel(op);
			fd = -1;
		}
		show(s, op, what);
	}
	print_progress_end(s->c);
	int code = pml_op_code(op);
	if (code != PML_ERR_NONE)
		pml_op_error(op, err);
	return code;
}
