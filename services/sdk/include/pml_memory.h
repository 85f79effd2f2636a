/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpomelo, the memory side of puts and gets: strided (N-D) regions, tensors as DLPack describes them, registered
 * buffers.
 *
 * A region is a loop of copies between an object and memory of yours: for each index of counts, outermost
 * first, inner_bytes are moved between
 *
 *	object_base + index . object_strides	bytes from the start of the object, and
 *	memory_base + index . memory_strides	bytes from `memory`.
 *
 * Columns 16..31 of a stored matrix of 4096 x 64 floats into a tile of 4096 x 16:
 *
 *	struct pml_nd_region r = PML_ND_REGION_INIT;
 *	r.memory = tile, r.memory_bytes = sizeof(tile);
 *	r.object_base = 16 * 4, r.inner_bytes = 16 * 4;
 *	r.n_dims = 1, r.counts[0] = 4096, r.object_strides[0] = 64 * 4, r.memory_strides[0] = 16 * 4;
 *	pml_get_regions(p, "w", 1, &r, 1, NULL, &err);
 *
 * Only the bytes of the runs are read or written, on both sides. Many objects at once, a snapshot, no waiting:
 * pml_item has regions in the place of bufs (pml_store.h).
 */
#ifndef POMELO_PML_MEMORY_H
#define POMELO_PML_MEMORY_H

#include "pml_store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs of one item: what is left as pieces when dimensions that are contiguous on both sides are merged. */
#define PML_RUNS_MAX 1048576

struct pml_nd_region {
	size_t size;
	void *memory; /* puts only read it */
	uint64_t
		memory_bytes; /* yours from there on; a region that reaches further is refused */
	uint64_t memory_base, object_base; /* of index 0 */
	uint64_t inner_bytes; /* of one run; 0: an empty region, as with a count of 0 */
	uint32_t n_dims;      /* 0: one run; at most PML_DIMS_MAX */
	uint32_t reserved;    /* 0 */
	/* [n_dims], outermost first; strides in bytes */
	uint64_t counts[PML_DIMS_MAX], memory_strides[PML_DIMS_MAX],
		object_strides[PML_DIMS_MAX];
};
#define PML_ND_REGION_INIT                                                       \
	{                                                                        \
		sizeof(struct pml_nd_region), 0, 0, 0, 0, 0, 0, 0, { 0 }, { 0 }, \
		{                                                                \
			0                                                        \
		}                                                                \
	}

/*
 * Parts of one object and version into strided memory.
 *
 * INVALID_PARAMS  a region outside of its memory or of the object, over 64 bits, or two that meet in memory
 * TOO_LARGE       more than PML_RUNS_MAX runs; others as pml_get
 */
PML_API int pml_get_regions(struct pml *p, const void *key, size_t key_bytes,
			    const struct pml_nd_region *regions, size_t n_regions,
			    const struct pml_get_opts *o, struct pml_error *err);
/*
 * A new object from strided memory. In the regions' order its bytes have to come from the first to the last,
 * without a gap: object_base of the first is 0, that of the next is where that one ended, and object_strides are
 * dense. Memory may be read twice (strides of 0 repeat).
 *
 * INVALID_PARAMS, TOO_LARGE as above; others as pml_put
 */
PML_API int pml_put_regions(struct pml *p, const void *key, size_t key_bytes,
			    const struct pml_nd_region *regions, size_t n_regions,
			    const struct pml_put_opts *o, struct pml_error *err);

/* ---- tensors ---- */

/* As DLPack's DLTensor, field by field: a pointer to one may be passed. It has no size and will not grow. */
struct pml_tensor {
	void *data;
	int32_t device_type; /* 1 memory of the host, 3 the same, pinned for a GPU */
	int32_t device_id;
	int32_t ndim;
	uint8_t type_code; /* not looked at */
	uint8_t type_bits;
	uint16_t type_lanes;
	int64_t *shape;
	int64_t *strides; /* in elements; NULL: dense, last dimension innermost */
	uint64_t byte_offset;
};

/*
 * The region that is this tensor, stored densely (last dimension innermost) from object_offset on. For a part
 * of a larger stored tensor change object_base and object_strides afterwards.
 *
 * out  out->size is set by the caller (PML_ND_REGION_INIT); it borrows the tensor's memory
 *
 * INVALID_PARAMS  a dimension below 0, more than PML_DIMS_MAX, over 64 bits
 * UNSUPPORTED     memory of a GPU, elements of less than a byte, negative strides
 */
PML_API int pml_nd_region_of_tensor(const struct pml_tensor *t, uint64_t object_offset,
				    struct pml_nd_region *out, struct pml_error *err);

/* ---- registered buffers ---- */

/*
 * Memory that is used again and again may be registered: it is looked at once, its pages are brought in, and
 * from then on calls whose memory touches it have to lie in it. Puts and gets find it by its address; memory
 * that is in no registered buffer is as good, and the first copy to fresh memory only slower.
 *
 * What registering buys: a pointer that is wrong is a typed error before anything moves, and memory can be given
 * up at any moment: pml_buffer_unregister ends the calls that use it and waits for them.
 */
struct pml_buffer;

struct pml_buffer_opts {
	size_t size;
	bool read_only;	  /* for puts alone: memory that may not be written */
	bool lock;	  /* mlock: never swapped out */
	bool no_prefault; /* pages come in as they are used */
	bool reserved[5]; /* false */
};
#define PML_BUFFER_OPTS_INIT                                         \
	{                                                            \
		sizeof(struct pml_buffer_opts), false, false, false, \
		{                                                    \
			false                                        \
		}                                                    \
	}

/*
 * Takes as long as the kernel needs for its pages (about 0.3 s a GiB of fresh memory), in slices.
 *
 * base  bytes of yours, mapped until the buffer is unregistered
 * out   yours, pml_buffer_unregister()
 *
 * INVALID_PARAMS  it is not all mapped, or may not be written
 * EXISTS          a part of it is in another registered buffer of this handle
 * NO_MEMORY       mlock: RLIMIT_MEMLOCK     BUSY  65,536 buffers
 */
PML_API int pml_buffer_register(struct pml *p, void *base, size_t bytes,
				const struct pml_buffer_opts *o, struct pml_buffer **out,
				struct pml_error *err);
/* Calls under way that use it end, with CANCELLED unless they were over anyway; when this returns, nothing of the
 * library touches its memory. May come after pml_close. NULL is fine. */
PML_API int pml_buffer_unregister(struct pml_buffer *b);

struct pml_buffer_facts {
	size_t size;
	void *base;
	size_t bytes;
	uint32_t calls; /* that use it now */
	bool read_only, locked;
	bool prefaulted; /* false: not wanted, or the kernel cannot */
	bool reserved;
};
#define PML_BUFFER_FACTS_INIT                                                        \
	{                                                                            \
		sizeof(struct pml_buffer_facts), 0, 0, 0, false, false, false, false \
	}
/* out->size is set by the caller. */
PML_API int pml_buffer_info(const struct pml_buffer *b, struct pml_buffer_facts *out);

#ifdef __cplusplus
}
#endif
#endif
