/* SPDX-License-Identifier: Apache-2.0 */
/* The calls: each makes an operation's parts; its plain form is its start and a wait. */
#include "sdk.h"
#include "proto/messages.h"

#include <string.h>

static int bad_service(struct pml_error *err, const char *service)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
			 "%.40s: no such service; one of master, agent, owner, planner, pg",
			 service ? service : "(NULL)");
}

static int no_place(struct pml_error *err)
{
	return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
			 "a place for the result (out, n_out) is NULL");
}

static int no_memory(struct pml_error *err)
{
	return sdk_error(err, ERR_NO_MEMORY, 0, NULL, "start", "no memory for an operation");
}

/* ---- status ---- */

int pml_status_start(struct pml *p, const char *service, const struct pml_call_opts *o,
		     struct pml_cq *cq, void *user, struct pml_op **out, struct pml_error *err)
{
	struct msg_status_req m = { 0 };
	struct pml_op *op = NULL;
	int one = service ? sdk_service(service) : 0;
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!out)
		return no_place(err);
	if (one < 0)
		return bad_service(err, service);
	if (op_new(p, OP_STATUS, service ? 1 : SDK_SERVICES, &op) != ERR_NONE)
		return no_memory(err);
	for (uint32_t i = 0; i < op->n_parts; i++) {
		struct part *t = &op->parts[i];
		t->service = service ? one : (int)i;
		t->status.size = sizeof(t->status);
		t->status.name = p->ends[t->service].name;
		t->status.instance = t->status.release = t->status.http = t->status.error = "";
		enc_status_req(&t->body, &m);
	}
	e = op_submit(op, o, cq, user, err);
	if (e == PML_ERR_NONE)
		*out = op;
	return e;
}

int pml_status(struct pml *p, const char *service, const struct pml_call_opts *o,
	       struct pml_op **out, struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!out)
		return no_place(err);
	int e = pml_status_start(p, service, o, NULL, NULL, &op, err);
	if (e != PML_ERR_NONE)
		return e;
	assert(op);
	e = op_wait_for(op, err);
	if (e == PML_ERR_NONE)
		*out = op;
	else
		op_destroy(op);
	return e;
}

size_t pml_op_n_status(const struct pml_op *op)
{
	if (pml_op_code(op) != PML_ERR_NONE || op->kind != OP_STATUS)
		return 0;
	return op->n_parts;
}

int pml_op_status(const struct pml_op *op, size_t i, struct pml_service_status *out)
{
	int e = op_usable(op);
	if (e != PML_ERR_NONE)
		return e;
	if (!out || out->size < sizeof(size_t) || out->size > 4096 || i >= pml_op_n_status(op))
		return PML_ERR_INVALID_PARAMS;
	size_t size = out->size;
	memcpy(out, &op->parts[i].status, MIN_OF(size, sizeof(*out)));
	out->size = size;
	return PML_ERR_NONE;
}

/* ---- echo ---- */

int pml_echo_start(struct pml *p, const char *service, const void *data, size_t n,
		   uint32_t park_ms, const struct pml_call_opts *o, struct pml_cq *cq,
		   void *user, struct pml_op **out, struct pml_error *err)
{
	struct msg_echo m = { .data = BYTES(data, n), .park_ms = park_ms };
	struct pml_op *op = NULL;
	int e = sdk_usable(p, err);
	if (e != PML_ERR_NONE)
		return e;
	if (!out)
		return no_place(err);
	if (sdk_service(service) < 0)
		return bad_service(err, service);
	if (!data && n)
		return sdk_error(err, ERR_INVALID_PARAMS, 0, NULL, "start",
				 "data is NULL and has a length");
	if (n > PML_ECHO_MAX)
		return sdk_error(err, ERR_TOO_LARGE, 0, service, "start",
				 "%zu bytes, at most %u", n, PML_ECHO_MAX);
	if (op_new(p, OP_ECHO, 1, &op) != ERR_NONE)
		return no_memory(err);
	op->parts[0].service = sdk_service(service);
	enc_echo(&op->parts[0].body, &m);
	if (buf_err(&op->parts[0].body) != ERR_NONE) {
		op_destroy(op);
		return no_memory(err);
	}
	e = op_submit(op, o, cq, user, err);
	if (e == PML_ERR_NONE)
		*out = op;
	return e;
}

const void *pml_op_bytes(const struct pml_op *op, size_t *n)
{
	if (pml_op_code(op) != PML_ERR_NONE || op->kind != OP_ECHO || !n)
		return NULL;
	*n = op->parts[0].reply.n;
	return op->parts[0].reply.p ? (const void *)op->parts[0].reply.p : "";
}

int pml_echo(struct pml *p, const char *service, const void *data, size_t n, void *out,
	     size_t cap, size_t *n_out, const struct pml_call_opts *o, struct pml_error *err)
{
	struct pml_op *op = NULL;
	if (!n_out || (!out && cap))
		return no_place(err);
	int e = pml_echo_start(p, service, data, n, 0, o, NULL, NULL, &op, err);
	if (e != PML_ERR_NONE || !op)
		return e;
	e = op_wait_for(op, err);
	const struct buf *got = &op->parts[0].reply;
	if (e == PML_ERR_NONE && got->n > cap)
		e = sdk_error(err, ERR_TOO_LARGE, 0, service, "answer",
			      "%zu bytes came back, the buffer holds %zu", got->n, cap);
	if (e == PML_ERR_NONE) {
		if (got->n && out)
			memcpy(out, got->p, got->n);
		*n_out = got->n;
	}
	op_destroy(op);
	return e;
}
