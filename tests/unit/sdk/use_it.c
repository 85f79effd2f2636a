/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stranger to our tree: sees pml.h alone, as strict C99 and as C++ (use_it.cc includes this file),
 * linked with the shared library and with the static one. Ends with 0 when all is as the header says.
 */
#include "pml.h"

#include <stdio.h>
#include <string.h>

static int on_handle(struct pml *p)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_call_opts o = PML_CALL_OPTS_INIT;
	struct pml_service_status st = PML_SERVICE_STATUS_INIT;
	struct pml_cq *cq = NULL;
	struct pml_op *op = NULL;
	char out[4];
	size_t n = 0;
	o.deadline_ms = 50;
	if (pml_cq_new(p, 4, &cq, &err) != PML_ERR_NONE || pml_cq_fd(cq) < 0)
		return 10;
	if (pml_echo_start(p, "master", "x", 1, 0, &o, cq, &n, &op, &err) != PML_ERR_NONE)
		return 11;
	if (pml_cq_wait(cq, &op, 1, 10000) != 1 || pml_op_user(op) != &n ||
	    pml_op_code(op) == 0)
		return 12; /* nobody is there */
	if (pml_op_error(op, &err) != PML_ERR_NONE || err.text[0] == 0)
		return 13;
	if (pml_op_bytes(op, &n) || pml_op_n_status(op) != 0 ||
	    pml_op_cancel(op) != PML_ERR_NONE)
		return 14;
	if (pml_op_status(op, 0, &st) != PML_ERR_INVALID_PARAMS)
		return 15;
	if (pml_op_free(op) != PML_ERR_NONE || pml_cq_poll(cq, &op, 1) != 0)
		return 16;
	if (pml_status(p, "agent", &o, &op, &err) == PML_ERR_NONE)
		return 17;
	if (pml_status_start(p, "agent", &o, NULL, NULL, &op, &err) != PML_ERR_NONE)
		return 18;
	if (pml_echo(p, "pg", "x", 1, out, sizeof(out), &n, &o, &err) == PML_ERR_NONE)
		return 19;
	pml_op_free(op);
	return pml_cq_free(cq) == PML_ERR_NONE ? 0 : 20;
}

int main(int argc, char **argv)
{
	struct pml_open_opts o = PML_OPEN_OPTS_INIT;
	struct pml_error err = PML_ERROR_INIT;
	struct pml *p = NULL;
	int e;
	if (argc != 3)
		return 2;
	o.data = argv[1];
	o.secret_file = argv[2];
	if (strcmp(pml_error_name(PML_ERR_BUSY), "BUSY") != 0 ||
	    !pml_error_retryable(PML_ERR_BUSY))
		return 3;
	if (!pml_version()[0] || !pml_has("cq") || !pml_error_text(PML_ERR_BUSY)[0])
		return 4;
	if (pml_open(&o, &p, &err) != PML_ERR_NONE) {
		fprintf(stderr, "%s\n", err.text);
		return 5;
	}
	e = on_handle(p);
	return pml_close(p) == PML_ERR_NONE ? e : 6;
}
