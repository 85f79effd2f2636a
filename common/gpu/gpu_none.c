/* SPDX-License-Identifier: Apache-2.0 */
/* The twin of gpu_cuda.c where nvcc was not found: every call that could fail says so. */
#include "gpu/gpu.h"

static const char text[] =
	"this build has no CUDA (no nvcc when it was configured, or -Dcuda=disabled)";

static enum err none(struct why *why)
{
	return why_set(why, ERR_UNSUPPORTED, "gpu: %s", text);
}

const char *gpu_missing(void)
{
	return text;
}

/* clang-format off */
enum err gpu_count(int *o, struct why *w) { (void)o; return none(w); }
enum err gpu_current(int *o, struct why *w) { (void)o; return none(w); }
enum err gpu_query(int d, struct gpu_info *o, struct why *w) { (void)d; (void)o; return none(w); }
enum err gpu_alloc(int d, uint64_t n, void **o, struct why *w) { (void)d; (void)n; (void)o; return none(w); }
void gpu_free(int d, void *p) { (void)d; (void)p; }
enum err gpu_host_alloc(int d, uint64_t n, void **o, struct why *w) { (void)d; (void)n; (void)o; return none(w); }
void gpu_host_free(void *p) { (void)p; }
enum err gpu_ipc_get(int d, void *p, struct gpu_ipc *o, struct why *w) { (void)d; (void)p; (void)o; return none(w); }
enum err gpu_ipc_open(int d, const struct gpu_ipc *h, void **o, struct why *w) { (void)d; (void)h; (void)o; return none(w); }
void gpu_ipc_close(int d, void *p) { (void)d; (void)p; }
enum err gpu_peer_enable(int d, int p, struct why *w) { (void)d; (void)p; return none(w); }
enum err gpu_copy(void *d, const void *s, uint64_t n, void *st, struct why *w) { (void)d; (void)s; (void)n; (void)st; return none(w); }
enum err gpu_stream_new(int d, void **o, struct why *w) { (void)d; (void)o; return none(w); }
void gpu_stream_free(void *s) { (void)s; }
enum err gpu_sync(void *s, struct why *w) { (void)s; return none(w); }
enum err gpu_device_sync(int d, struct why *w) { (void)d; return none(w); }
bool gpu_capturing(void *s) { (void)s; return false; }
enum err gpu_event_new(int d, bool t, void **o, struct why *w) { (void)d; (void)t; (void)o; return none(w); }
void gpu_event_free(void *e) { (void)e; }
enum err gpu_event_record(void *e, void *s, struct why *w) { (void)e; (void)s; return none(w); }
enum err gpu_event_wait(void *e, struct why *w) { (void)e; return none(w); }
enum err gpu_stream_wait(void *s, void *e, struct why *w) { (void)s; (void)e; return none(w); }
enum err gpu_event_ms(void *f, void *t, float *o, struct why *w) { (void)f; (void)t; (void)o; return none(w); }
enum err gpu_graph_begin(void *s, struct why *w) { (void)s; return none(w); }
enum err gpu_graph_end(void *s, void **g, struct why *w) { (void)s; (void)g; return none(w); }
enum err gpu_graph_launch(void *g, void *s, struct why *w) { (void)g; (void)s; return none(w); }
void gpu_graph_free(void *g) { (void)g; }
/* clang-format on */
