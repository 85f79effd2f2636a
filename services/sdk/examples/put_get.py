#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The store from Python, without anything to compile: ctypes over libpomelo.

    pomelo up
    python3 put_get.py [libpomelo.so]      the data folder as everywhere: POMELO_DATA

Structs begin with their size, handles are opaque, so what is declared here is all that is used here.
"""
import ctypes as c
import sys

NONE, ITEMS_MAX = 0, 4096


class Error(c.Structure):
    _fields_ = [("size", c.c_size_t), ("code", c.c_int), ("retry_ms", c.c_uint32), ("peer", c.c_char * 64),
                ("step", c.c_char * 64), ("text", c.c_char * 320)]


class Buf(c.Structure):
    _fields_ = [("p", c.c_void_p), ("n", c.c_size_t)]


class Item(c.Structure):
    _fields_ = [("size", c.c_size_t), ("key", c.c_char_p), ("key_bytes", c.c_size_t), ("bufs", c.POINTER(Buf)),
                ("n_bufs", c.c_size_t), ("ranges", c.c_void_p), ("n_ranges", c.c_size_t), ("version", c.c_uint64),
                ("require_key", c.c_char_p), ("require_key_bytes", c.c_size_t), ("require_version", c.c_uint64),
                ("group", c.c_char_p), ("group_bytes", c.c_size_t), ("group_size", c.c_uint32), ("reserved", c.c_uint32),
                ("regions", c.c_void_p), ("n_regions", c.c_size_t)]


class Result(c.Structure):
    _fields_ = [("size", c.c_size_t), ("code", c.c_int), ("retry_ms", c.c_uint32), ("version", c.c_uint64),
                ("object_bytes", c.c_uint64), ("bytes", c.c_uint64), ("pinned", c.c_uint64), ("copies", c.c_uint32),
                ("tier", c.c_uint32)]


class NdRegion(c.Structure):
    """memory is borrowed: keep what it points into alive until the call is over."""
    _fields_ = [("size", c.c_size_t), ("memory", c.c_void_p), ("memory_bytes", c.c_uint64), ("memory_base", c.c_uint64),
                ("object_base", c.c_uint64), ("inner_bytes", c.c_uint64), ("n_dims", c.c_uint32), ("reserved", c.c_uint32),
                ("counts", c.c_uint64 * 32), ("memory_strides", c.c_uint64 * 32), ("object_strides", c.c_uint64 * 32)]


class Tensor(c.Structure):
    """As DLPack's DLTensor: the one inside a `__dlpack__` capsule is as good."""
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("type_code", c.c_uint8), ("type_bits", c.c_uint8), ("type_lanes", c.c_uint16),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class OpenOpts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("data", c.c_char_p), ("run_dir", c.c_char_p), ("masters", c.c_char_p),
                ("secret_file", c.c_char_p), ("tenant", c.c_char_p), ("deadline_ms", c.c_uint32), ("calls_max", c.c_uint32),
                ("reserved", c.c_uint32)]


class PomeloError(Exception):
    def __init__(self, code, name, text):
        super().__init__(f"{name}: {text}")
        self.code, self.name = code, name


class Pomelo:
    """A handle on the cluster of a data folder. Safe from many threads: a call leaves the GIL."""

    def __init__(self, lib="libpomelo.so.0", data=None, deadline_ms=0):
        self.lib = c.CDLL(lib)
        self.lib.pml_error_name.restype = c.c_char_p
        self.lib.pml_version.restype = c.c_char_p
        self.lib.pml_op_n.restype = c.c_size_t
        self.lib.pml_has.restype = c.c_bool
        self.lib.pml_snapshot_n.restype = c.c_size_t
        self.p = c.c_void_p()
        opts = OpenOpts(size=c.sizeof(OpenOpts), data=data.encode() if data else None, deadline_ms=deadline_ms)
        self.call("pml_open", c.byref(opts), c.byref(self.p))

    def close(self):
        if self.p:
            self.lib.pml_close(self.p)
            self.p = None

    def call(self, name, *args):
        err = Error(size=c.sizeof(Error))
        code = getattr(self.lib, name)(*args, c.byref(err))
        if code != NONE:
            raise PomeloError(code, self.lib.pml_error_name(code).decode(), err.text.decode(errors="replace"))

    def put(self, key, value):
        self.call("pml_put", self.p, key, c.c_size_t(len(key)), value, c.c_size_t(len(value)), None)

    def upsert(self, key, value):
        self.call("pml_upsert", self.p, key, c.c_size_t(len(key)), value, c.c_size_t(len(value)), None)

    def get(self, key, cap=1 << 20):
        buf, n = c.create_string_buffer(cap), c.c_size_t()
        self.call("pml_get", self.p, key, c.c_size_t(len(key)), buf, c.c_size_t(cap), c.byref(n), None)
        return buf.raw[:n.value]

    def remove(self, key):
        self.call("pml_remove", self.p, key, c.c_size_t(len(key)), None)

    def remove_prefix(self, prefix):
        n = c.c_uint64()
        self.call("pml_remove_prefix", self.p, prefix, c.c_size_t(len(prefix)), None, c.byref(n))
        return n.value

    def get_regions(self, key, regions):
        v = (NdRegion * len(regions))(*regions)
        self.call("pml_get_regions", self.p, key, c.c_size_t(len(key)), v, c.c_size_t(len(v)), None)

    def region_of(self, tensor, object_offset=0):
        r = NdRegion(size=c.sizeof(NdRegion))
        self.call("pml_nd_region_of_tensor", c.byref(tensor), c.c_uint64(object_offset), c.byref(r))
        return r

    def snapshot(self, keys):
        return Snapshot(self, keys)

    def many(self, call, keys, bufs=None):
        """One call of many items ("put", "get", "exists", "remove"): the code of each."""
        items, views = (Item * len(keys))(), (Buf * len(keys))()
        for i, key in enumerate(keys):
            items[i] = Item(size=c.sizeof(Item), key=key, key_bytes=len(key))
            if bufs:
                views[i] = Buf(c.addressof(bufs[i]), c.sizeof(bufs[i]))
                items[i].bufs, items[i].n_bufs = c.pointer(views[i]), 1
        op, r = c.c_void_p(), Result(size=c.sizeof(Result))
        self.call(f"pml_{call}_start", self.p, items, c.c_size_t(len(keys)), None, None, None, c.byref(op))
        self.lib.pml_op_wait(op)
        codes = []
        for i in range(self.lib.pml_op_n(op)):
            self.lib.pml_op_result(op, c.c_size_t(i), c.byref(r))
            codes.append(r.code)
        self.lib.pml_op_free(op)
        return codes


class Snapshot:
    """Keys resolved and leased at once: `with p.snapshot(keys) as s: s.get(key)`."""

    def __init__(self, pomelo, keys):
        self.pomelo, self.s = pomelo, c.c_void_p()
        items = (Item * len(keys))(*(Item(size=c.sizeof(Item), key=k, key_bytes=len(k)) for k in keys))
        pomelo.call("pml_snapshot_open", pomelo.p, items, c.c_size_t(len(keys)), None, c.byref(self.s))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pomelo.lib.pml_snapshot_close(self.s)
        self.s = None

    def __len__(self):
        return self.pomelo.lib.pml_snapshot_n(self.s)

    def get(self, key, cap=1 << 20):
        buf, n = c.create_string_buffer(cap), c.c_size_t()
        self.pomelo.call("pml_snapshot_get", self.s, key, c.c_size_t(len(key)), buf, c.c_size_t(cap), c.byref(n), None)
        return buf.raw[:n.value]


def strided(p):
    """A column of a stored 4 x 6 matrix of shorts, and a tensor that is every other row of it."""
    matrix = (c.c_int16 * 24)(*range(24))
    p.upsert(b"python/matrix", bytes(matrix))
    column = (c.c_int16 * 4)()
    r = NdRegion(size=c.sizeof(NdRegion), memory=c.addressof(column), memory_bytes=c.sizeof(column), object_base=2 * 2,
                 inner_bytes=2, n_dims=1)
    r.counts[0], r.object_strides[0], r.memory_strides[0] = 4, 12, 2
    p.get_regions(b"python/matrix", [r])
    must("a column", list(column) == [2, 8, 14, 20])
    rows = (c.c_int16 * 24)()
    t = Tensor(data=c.addressof(rows), device_type=1, ndim=2, type_bits=16, type_lanes=1,
               shape=(c.c_int64 * 2)(4, 3), strides=(c.c_int64 * 2)(6, 2))
    p.get_regions(b"python/matrix", [p.region_of(t, object_offset=12 * 2)])
    must("a tensor with gaps", [rows[i * 6 + j * 2] for i in range(4) for j in range(3)] == list(range(12, 24)))
    r.memory_bytes = 7
    try:
        p.get_regions(b"python/matrix", [r])
        must("a region that is too long", False)
    except PomeloError as e:
        must("a region that is too long", e.name == "INVALID_PARAMS")


def frozen(p):
    """Replaced under an open snapshot: the old bytes or LEASE_LOST, never the new ones."""
    p.upsert(b"python/a", b"old")
    p.upsert(b"python/b", b"stays")
    with p.snapshot([b"python/a", b"python/b"]) as s:
        must("a snapshot of two", len(s) == 2 and s.get(b"python/a") == b"old")
        p.upsert(b"python/a", b"newer")
        try:
            must("the version that was opened", s.get(b"python/a") == b"old")
        except PomeloError as e:
            must("the version that was opened", e.name == "LEASE_LOST")
        must("the other one", s.get(b"python/b") == b"stays")
    must("a get", p.get(b"python/a") == b"newer")


def must(what, ok):
    if not ok:
        sys.exit(f"put_get.py: {what}: not as expected")
    print(f"{what}: ok")


def main(lib):
    p = Pomelo(lib)
    must("the library has a store", p.lib.pml_has(b"store"))
    p.upsert(b"python/one", b"the first value")
    must("get", p.get(b"python/one") == b"the first value")
    try:
        p.put(b"python/one", b"another")
        must("put over an object", False)
    except PomeloError as e:
        must("put over an object", e.name == "ALREADY_EXISTS")
    try:
        p.get(b"python/none")
        must("get of nothing", False)
    except PomeloError as e:
        must("get of nothing", e.name == "NOT_FOUND")
    p.remove(b"python/one")

    keys = [b"python/many/%d" % i for i in range(64)]
    put = [c.create_string_buffer(b"value %d" % i, 4096) for i in range(64)]
    got = [c.create_string_buffer(4096) for _ in keys]
    must("put of 64", p.many("put", keys, put) == [NONE] * 64)
    must("exists of 64", p.many("exists", keys) == [NONE] * 64)
    must("get of 64", p.many("get", keys, got) == [NONE] * 64)
    must("their bytes", all(a.raw == b.raw for a, b in zip(put, got)))
    must("snapshots and regions are there", p.lib.pml_has(b"snapshots") and p.lib.pml_has(b"regions"))
    strided(p)
    frozen(p)
    must("remove_prefix", p.remove_prefix(b"python/") == 67)
    p.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "libpomelo.so.0")
