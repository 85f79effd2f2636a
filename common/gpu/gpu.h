/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU, in plain C: no CUDA types leave gpu_cuda.c and kernels/. Without nvcc, gpu_none.c has the
 * same functions and says ERR_UNSUPPORTED. Streams and events travel as void *.
 *
 * Every failure becomes an enum err with the CUDA text in why, at the call that saw it.
 * Thread: any; each call sets the device it names for the calling thread.
 */
#pragma once

#include "base/err.h"

struct gpu_info {
	char name[256];
	uint8_t uuid[16];
	int cc_major, cc_minor;
	uint32_t n_sms;
	uint32_t shared_optin_bytes; /* dynamic shared memory a block may ask for */
	uint64_t mem_free, mem_total, l2_bytes;
};

struct gpu_ipc {
	uint8_t bytes[64];
};

/* NULL when kernels were built in and a GPU answers; else why not, in one line. */
const char *gpu_missing(void);
enum err gpu_count(int *out, struct why *why) MUST_CHECK;
/* device -1: the calling thread's current one */
enum err gpu_current(int *out, struct why *why) MUST_CHECK;
enum err gpu_query(int device, struct gpu_info *out, struct why *why) MUST_CHECK;

/* A dedicated, zeroed allocation of its own (CUDA IPC shares whole allocations). gpu_free(). */
enum err gpu_alloc(int device, uint64_t bytes, void **out, struct why *why) MUST_CHECK;
void gpu_free(int device, void *p);
/* Page-locked host memory the GPU can write: same address on both sides. gpu_host_free(). */
enum err gpu_host_alloc(int device, uint64_t bytes, void **out, struct why *why) MUST_CHECK;
void gpu_host_free(void *p);

enum err gpu_ipc_get(int device, void *p, struct gpu_ipc *out, struct why *why) MUST_CHECK;
/* Another process's allocation; peer access is enabled as needed. gpu_ipc_close(). */
enum err gpu_ipc_open(int device, const struct gpu_ipc *h, void **out, struct why *why)
	MUST_CHECK;
void gpu_ipc_close(int device, void *p);
/* Lets kernels of `device` read memory of `peer` (both in this process). */
enum err gpu_peer_enable(int device, int peer, struct why *why) MUST_CHECK;

enum err gpu_copy(void *dst, const void *src, uint64_t bytes, void *stream, struct why *why)
	MUST_CHECK;
enum err gpu_stream_new(int device, void **out, struct why *why) MUST_CHECK;
void gpu_stream_free(void *stream);
enum err gpu_sync(void *stream, struct why *why) MUST_CHECK;
/* Is the stream being captured into a graph? Then nothing may synchronise. */
/* Everything given to the device by this process so far is over. */
enum err gpu_device_sync(int device, struct why *why) MUST_CHECK;
bool gpu_capturing(void *stream);

enum err gpu_event_new(int device, bool timing, void **out, struct why *why) MUST_CHECK;
void gpu_event_free(void *ev);
enum err gpu_event_record(void *ev, void *stream, struct why *why) MUST_CHECK;
enum err gpu_event_wait(void *ev, struct why *why) MUST_CHECK;
/* Later work of the stream waits for ev. */
enum err gpu_stream_wait(void *stream, void *ev, struct why *why) MUST_CHECK;
/* Milliseconds between two timing events that were reached. */
enum err gpu_event_ms(void *from, void *to, float *out, struct why *why) MUST_CHECK;

/* Graphs: begin, enqueue, end; replay; free. */
enum err gpu_graph_begin(void *stream, struct why *why) MUST_CHECK;
enum err gpu_graph_end(void *stream, void **graph, struct why *why) MUST_CHECK;
enum err gpu_graph_launch(void *graph, void *stream, struct why *why) MUST_CHECK;
void gpu_graph_free(void *graph);
