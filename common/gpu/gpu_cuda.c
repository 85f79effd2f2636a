/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static enum err from_cuda(cudaError_t r)
{
	switch (r) {
	case cudaSuccess:
		return ERR_NONE;
	case cudaErrorMemoryAllocation:
		return ERR_NO_MEMORY;
	case cudaErrorInvalidValue:
	case cudaErrorInvalidDevice:
		return ERR_INVALID_PARAMS;
	case cudaErrorNoDevice:
	case cudaErrorInsufficientDriver:
	case cudaErrorNotSupported:
	case cudaErrorNoKernelImageForDevice:
		return ERR_UNSUPPORTED;
	default:
		return ERR_IO;
	}
}

static enum err fail(struct why *why, const char *what, cudaError_t r)
{
	if (r == cudaSuccess)
		return ERR_NONE;
	(void)cudaGetLastError(); /* so that the next call does not report it again */
	return why_set(why, from_cuda(r), "gpu: %s: %s", what, cudaGetErrorString(r));
}

const char *gpu_missing(void)
{
	int n = 0;
	cudaError_t r = cudaGetDeviceCount(&n);
	if (r != cudaSuccess) {
		(void)cudaGetLastError();
		return cudaGetErrorString(r);
	}
	return n > 0 ? NULL : "no CUDA device";
}

enum err gpu_count(int *out, struct why *why)
{
	return fail(why, "counting devices", cudaGetDeviceCount(out));
}

enum err gpu_current(int *out, struct why *why)
{
	return fail(why, "current device", cudaGetDevice(out));
}

enum err gpu_query(int device, struct gpu_info *out, struct why *why)
{
	struct cudaDeviceProp p;
	size_t mem_free = 0, mem_total = 0;
	cudaError_t r = cudaGetDeviceProperties(&p, device);
	if (r == cudaSuccess)
		r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaMemGetInfo(&mem_free, &mem_total);
	if (r != cudaSuccess)
		return fail(why, "device properties", r);
	*out = (struct gpu_info){
		.cc_major = p.major,
		.cc_minor = p.minor,
		.n_sms = (uint32_t)p.multiProcessorCount,
		.shared_optin_bytes = (uint32_t)p.sharedMemPerBlockOptin,
		.mem_free = mem_free,
		.mem_total = mem_total,
		.l2_bytes = (uint64_t)p.l2CacheSize,
	};
	snprintf(out->name, sizeof(out->name), "%s", p.name);
	memcpy(out->uuid, p.uuid.bytes, sizeof(out->uuid));
	return ERR_NONE;
}

enum err gpu_alloc(int device, uint64_t bytes, void **out, struct why *why)
{
	void *p = NULL;
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaMalloc(&p, bytes);
	if (r == cudaErrorMemoryAllocation) {
		size_t f = 0, t = 0;
		(void)cudaGetLastError();
		(void)cudaMemGetInfo(&f, &t);
		return why_set(why, ERR_NO_MEMORY,
			       "gpu: %llu bytes wanted, %zu of %zu are free",
			       (unsigned long long)bytes, f, t);
	}
	if (r == cudaSuccess)
		r = cudaMemset(p, 0, bytes);
	if (r == cudaSuccess)
		r = cudaDeviceSynchronize();
	if (r != cudaSuccess) {
		cudaFree(p);
		return fail(why, "allocating", r);
	}
	*out = p;
	return ERR_NONE;
}

void gpu_free(int device, void *p)
{
	if (p && cudaSetDevice(device) == cudaSuccess)
		cudaFree(p);
}

enum err gpu_host_alloc(int device, uint64_t bytes, void **out, struct why *why)
{
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaHostAlloc(out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
	if (r == cudaSuccess)
		memset(*out, 0, bytes);
	return fail(why, "page-locked memory", r);
}

void gpu_host_free(void *p)
{
	if (p)
		cudaFreeHost(p);
}

enum err gpu_ipc_get(int device, void *p, struct gpu_ipc *out, struct why *why)
{
	cudaIpcMemHandle_t h;
	_Static_assert(sizeof(h) == sizeof(out->bytes), "size of an IPC handle");
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaIpcGetMemHandle(&h, p);
	if (r == cudaSuccess)
		memcpy(out->bytes, &h, sizeof(h));
	return fail(why, "exporting memory", r);
}

enum err gpu_ipc_open(int device, const struct gpu_ipc *in, void **out, struct why *why)
{
	cudaIpcMemHandle_t h;
	memcpy(&h, in->bytes, sizeof(h));
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
	return fail(why, "importing memory of another process", r);
}

void gpu_ipc_close(int device, void *p)
{
	if (p && cudaSetDevice(device) == cudaSuccess)
		cudaIpcCloseMemHandle(p);
}

enum err gpu_peer_enable(int device, int peer, struct why *why)
{
	if (device == peer)
		return ERR_NONE;
	int can = 0;
	cudaError_t r = cudaDeviceCanAccessPeer(&can, device, peer);
	if (r == cudaSuccess && !can)
		return why_set(why, ERR_UNSUPPORTED,
			       "gpu: device %d cannot read memory of device %d", device, peer);
	if (r == cudaSuccess)
		r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaDeviceEnablePeerAccess(peer, 0);
	if (r == cudaErrorPeerAccessAlreadyEnabled) {
		(void)cudaGetLastError();
		r = cudaSuccess;
	}
	return fail(why, "peer access", r);
}

enum err gpu_copy(void *dst, const void *src, uint64_t bytes, void *stream, struct why *why)
{
	return fail(why, "copying",
		    cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
}

enum err gpu_stream_new(int device, void **out, struct why *why)
{
	cudaStream_t s;
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	if (r == cudaSuccess)
		*out = s;
	return fail(why, "stream", r);
}

void gpu_stream_free(void *stream)
{
	if (stream)
		cudaStreamDestroy(stream);
}

enum err gpu_sync(void *stream, struct why *why)
{
	return fail(why, "waiting for a stream", cudaStreamSynchronize(stream));
}

enum err gpu_device_sync(int device, struct why *why)
{
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaDeviceSynchronize();
	return fail(why, "waiting for the device", r);
}

bool gpu_capturing(void *stream)
{
	enum cudaStreamCaptureStatus st = cudaStreamCaptureStatusNone;
	if (cudaStreamIsCapturing(stream, &st) != cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	return st != cudaStreamCaptureStatusNone;
}

enum err gpu_event_new(int device, bool timing, void **out, struct why *why)
{
	cudaEvent_t ev;
	cudaError_t r = cudaSetDevice(device);
	if (r == cudaSuccess)
		r = cudaEventCreateWithFlags(&ev, timing ? cudaEventDefault
							 : cudaEventDisableTiming);
	if (r == cudaSuccess)
		*out = ev;
	return fail(why, "event", r);
}

void gpu_event_free(void *ev)
{
	if (ev)
		cudaEventDestroy(ev);
}

enum err gpu_event_record(void *ev, void *stream, struct why *why)
{
	return fail(why, "recording an event", cudaEventRecord(ev, stream));
}

enum err gpu_event_wait(void *ev, struct why *why)
{
	return fail(why, "waiting for an event", cudaEventSynchronize(ev));
}

enum err gpu_stream_wait(void *stream, void *ev, struct why *why)
{
	return fail(why, "stream waits for an event", cudaStreamWaitEvent(stream, ev, 0));
}

enum err gpu_event_ms(void *from, void *to, float *out, struct why *why)
{
	return fail(why, "time between events", cudaEventElapsedTime(out, from, to));
}

enum err gpu_graph_begin(void *stream, struct why *why)
{
	return fail(why, "graph capture",
		    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

enum err gpu_graph_end(void *stream, void **graph, struct why *why)
{
	cudaGraph_t g = NULL;
	cudaGraphExec_t x = NULL;
	cudaError_t r = cudaStreamEndCapture(stream, &g);
	if (r == cudaSuccess)
		r = cudaGraphInstantiate(&x, g, 0);
	if (g)
		cudaGraphDestroy(g);
	if (r == cudaSuccess)
		*graph = x;
	return fail(why, "graph", r);
}

enum err gpu_graph_launch(void *graph, void *stream, struct why *why)
{
	return fail(why, "graph launch", cudaGraphLaunch(graph, stream));
}

void gpu_graph_free(void *graph)
{
	if (graph)
		cudaGraphExecDestroy(graph);
}
