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
                ("group", c.c_char_p), ("group_bytes", c.c_size_t), ("group_size", c.c_uint32), ("reserved", c.c_uint32)]


class Result(c.Structure):
    _fields_ = [("size", c.c_size_t), ("code", c.c_int), ("retry_ms", c.c_uint32), ("version", c.c_uint64),
                ("object_bytes", c.c_uint64), ("bytes", c.c_uint64), ("pinned", c.c_uint64), ("copies", c.c_uint32),
                ("tier", c.c_uint32)]


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
    must("remove_prefix", p.remove_prefix(b"python/") == 64)
    p.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "libpomelo.so.0")
