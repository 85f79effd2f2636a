/* SPDX-License-Identifier: Apache-2.0 */
#include "holders.h"

#include "print.h"

#include <inttypes.h>

void holders_put(const struct pml_op *op, FILE *to)
{
	static const char *const heads[] = { "holder", "state",	 "kind",	  ">objects",
					     ">used",  ">total", ">in quarantine" };
	struct print_table t;
	print_table_init(&t, heads, ARRAY_LEN(heads));
	for (size_t i = 0; i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		char objects[24], used[32], total[32], quarantine[32];
		pml_op_holder(op, i, &h);
		snprintf(objects, sizeof(objects), "%" PRIu64, h.objects);
		const char *cells[] = {
			h.id,
			h.state,
			h.kind,
			objects,
			print_bytes(used, sizeof(used), h.bytes_used),
			print_bytes(total, sizeof(total), h.bytes_total),
			print_bytes(quarantine, sizeof(quarantine), h.quarantine_bytes),
		};
		print_table_row(&t, cells);
	}
	print_table_put(&t, to);
	print_table_fini(&t);
	fprintf(to, "%" PRIu64 " objects%s\n", pml_op_objects(op),
		pml_op_recovering(op)
			? "; recovering: the master still merges what holders have"
			: "");
}

void holders_json(struct json *j, const struct pml_op *op)
{
	json_key(j, "holders");
	json_arr(j);
	for (size_t i = 0; op && i < pml_op_n_holders(op); i++) {
		struct pml_holder h = PML_HOLDER_INIT;
		pml_op_holder(op, i, &h);
		json_obj(j);
		json_kv_str(j, "id", h.id);
		json_kv_str(j, "kind", h.kind);
		json_kv_str(j, "state", h.state);
		json_kv_u64(j, "objects", h.objects);
		json_kv_u64(j, "bytes_used", h.bytes_used);
		json_kv_u64(j, "bytes_total", h.bytes_total);
		json_kv_u64(j, "quarantine_bytes", h.quarantine_bytes);
		json_end(j);
	}
	json_end(j);
	json_kv_u64(j, "objects", op ? pml_op_objects(op) : 0);
}
