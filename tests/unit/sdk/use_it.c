/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stranger to our tree: sees pml.h and pml_store.h alone, as strict C99 and as C++ (use_it.cc includes this file),
 * linked with the shared library and with the static one. Ends with 0 when all is as the header says.
 */
#include "pml_store.h"

#include <stdio.h>
#include <string.h>

/* Nobody is there: every form of a store call says so by its deadline. */
static int on_store(struct pml *p)
{
	struct pml_error err = PML_ERROR_INIT;
	struct pml_put_opts po = PML_PUT_OPTS_INIT;
	struct pml_get_opts go = PML_GET_OPTS_INIT;
	struct pml_remove_opts ro = PML_REMOVE_OPTS_INIT;
	struct pml_list_opts lo = PML_LIST_OPTS_INIT;
	struct pml_result r = PML_RESULT_INIT;
	struct pml_stat_info st = PML_STAT_INFO_INIT;
	struct pml_replica re = PML_REPLICA_INIT;
	struct pml_listed li = PML_LISTED_INIT;
	struct pml_holder ho = PML_HOLDER_INIT;
	struct pml_item it = PML_ITEM_INIT;
	struct pml_op *op = NULL;
	char out[4];
	struct pml_buf buf;
	size_t n = 0;
	po.deadline_ms = go.deadline_ms = ro.deadline_ms = lo.deadline_ms = 50;
	if (pml_put(p, "k", 1, "v", 1, &po, &err) == 0 || err.code == 0)
		return 30;
	if (pml_get(p, "k", 1, out, sizeof(out), &n, &go, &err) == 0 || n != 0)
		return 31;
	if (pml_remove(p, "k", 1, &ro, &err) == 0 || pml_list(p, "", 0, &lo, &op, &err) == 0)
		return 32;
	buf.p = out;
	buf.n = sizeof(out);
	it.key = "k";
	it.key_bytes = 1;
	it.bufs = &buf;
	it.n_bufs = 1;
	if (pml_get_start(p, &it, 1, &go, NULL, NULL, &op, &err) != 0 || pml_op_wait(op) == 0)
		return 33;
	if (pml_op_n(op) != 1 || pml_op_result(op, 0, &r) != 0 || r.code == 0)
		return 34;
	if (pml_op_stat(op, 0, &st) == 0 || pml_op_replica(op, 0, 0, &re) == 0 ||
	    pml_op_listed(op, 0, &li) == 0 || pml_op_holder(op, 0, &ho) == 0)
		return 35;
	return pml_op_free(op);
}

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
	if (pml_cq_free(cq) != PML_ERR_NONE)
		return 20;
	return on_store(p);
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
