# SPDX-License-Identifier: Apache-2.0
"""Puts and gets of 4 KiB through a Mooncake store on this host, batches of 32: one JSON object on stdout.

Runs inside the environment that `run` made. A master, a process that holds the memory, and this one, the client: as ours has
a master, an agent and a client. --own: the client holds the memory itself, and copies instead of sending.

    mooncake_4k.py --threads 16 --samples 5 [--own]
"""
import argparse
import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

BYTES, BATCH = 4096, 32
MIB = 1 << 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_master():
    """Its process and address."""
    import mooncake

    exe = Path(mooncake.__file__).parent / "mooncake_master"
    port = free_port()
    p = subprocess.Popen(
        [exe, f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={free_port()}", "--metrics_host=127.0.0.1",
         "--enable_metric_reporting=false", "--logtostderr=true"],
        stdout=sys.stderr, stderr=sys.stderr)
    for _ in range(100):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return p, f"127.0.0.1:{port}"
        time.sleep(0.1)
    p.kill()
    sys.exit("mooncake_master does not come up")


def client(master, segment_mib):
    from mooncake.store import MooncakeDistributedStore

    s = MooncakeDistributedStore()
    rc = s.setup("127.0.0.1", "P2PHANDSHAKE", segment_mib * MIB, 256 * MIB, "tcp", "", master)
    if rc != 0:
        sys.exit(f"setup of a client: {rc}")
    return s


def hold(master, mib):
    """The process that holds memory for others, until its stdin ends."""
    s = client(master, mib)
    print("ready", flush=True)
    sys.stdin.read()
    s.close()


def spread_over(threads, batches, work):
    """work(i) for each batch, by so many threads; seconds."""
    todo, lock, failed = iter(range(batches)), threading.Lock(), []

    def run():
        try:
            while True:
                with lock:
                    i = next(todo, None)
                if i is None:
                    return
                work(i)
        except Exception as e:  # told to the caller's thread
            failed.append(e)

    ts = [threading.Thread(target=run) for _ in range(threads)]
    begin = time.perf_counter()
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    took = time.perf_counter() - begin
    if failed:
        raise failed[0]
    return took


def measure(s, n, threads, samples):
    src, dst = ctypes.create_string_buffer(random.randbytes(n * BYTES), n * BYTES), ctypes.create_string_buffer(n * BYTES)
    for b in (src, dst):
        if s.register_buffer(ctypes.addressof(b), n * BYTES) != 0:
            sys.exit("register_buffer")
    sizes, out = [BYTES] * BATCH, {"put": [], "get": []}
    batches = n // BATCH
    at = [[i * BYTES for i in range(b * BATCH, b * BATCH + BATCH)] for b in range(batches)]
    to = [[ctypes.addressof(dst) + x for x in v] for v in at]
    frm = [[ctypes.addressof(src) + x for x in v] for v in at]
    for k in range(samples + 1):
        keys = [[f"{k}/{x // BYTES:08}" for x in v] for v in at]

        def put(i):
            if any(rc != 0 for rc in s.batch_put_from(keys[i], frm[i], sizes)):
                raise RuntimeError("a put failed")

        def get(i):
            if any(rc != BYTES for rc in s.batch_get_into(keys[i], to[i], sizes)):
                raise RuntimeError("a get failed")

        ctypes.memset(dst, 0, n * BYTES)
        put_s, get_s = spread_over(threads, batches, put), spread_over(threads, batches, get)
        if ctypes.string_at(src, n * BYTES) != ctypes.string_at(dst, n * BYTES):
            sys.exit("other bytes came back")
        if k > 0:  # the first one touches the memory
            out["put"].append(n / put_s)
            out["get"].append(n / get_s)
        s.remove_all(True)
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--threads", type=int, default=16)
    a.add_argument("--samples", type=int, default=5)
    a.add_argument("--objects", type=int, default=8192)
    a.add_argument("--own", action="store_true")
    a.add_argument("--hold", nargs=2)
    o = a.parse_args()
    if o.hold:
        hold(o.hold[0], int(o.hold[1]))
        return
    os.environ["MC_STORE_MEMCPY"] = "1" if o.own else "0"
    os.environ.setdefault("MC_LOG_LEVEL", "WARNING")
    master, addr = start_master()
    holder = None
    # the client library speaks on stdout, too: only our own line may reach it
    line = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        mib = 2 * o.objects * BYTES // MIB + 256
        if not o.own:
            holder = subprocess.Popen([sys.executable, __file__, "--hold", addr, str(mib)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            while (said := holder.stdout.readline()) not in ("ready\n", ""):
                pass
            if not said:
                sys.exit("the process that holds memory ended")
        s = client(addr, mib if o.own else 0)
        print(json.dumps(measure(s, o.objects, o.threads, o.samples)), file=line, flush=True)
        s.close()
    finally:
        for p in (holder, master):
            if p:
                p.kill()
                p.wait()


if __name__ == "__main__":
    main()
