#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The production trace through real services, at length.

    trace_long.py [exact|evict|kills]...      default: all; BUILD names the build folder (.ci/long trace_PART)

exact   64 KiB blocks, a pool of 13 GiB, one client: the hits and puts of the trace, exactly
evict   a pool of 1 GiB, one client and 64: it evicts and goes on, no error, no wrong byte
kills   13 GiB, the master killed 20 times and the agent 5 times: no error, no wrong byte, nothing evicted, every
        acknowledged block there afterwards, and a prober's get and put back within 2 s of each kill

Exit code 77, and says so, where there is no memory for it. POOL=SIZE and BLOCK=SIZE make 13 GiB and 64 KiB smaller,
LIMIT=N plays only the first requests, KILLS=M,A kills the master M and the agent A times: for a look, not for the record.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "services", "sdk", "examples"))
from put_get import Pomelo, PomeloError  # noqa: E402

BUILD = os.path.join(TOP, os.environ.get("BUILD", "build"))
EXE = f"{BUILD}/services/ctl/pomelo"
LIB = f"{BUILD}/services/sdk/libpomelo.so.0"
POOL, BLOCK = os.environ.get("POOL", "13GiB"), os.environ.get("BLOCK", "64KiB")
LIMIT = int(os.environ.get("LIMIT", "0"))
MASTER_KILLS, AGENT_KILLS = (int(n) for n in os.environ.get("KILLS", "20,5").split(","))
KILL_EVERY_S, BACK_S = 6.0, 2.0
bad = 0


def check(what, ok, note=""):
    global bad
    bad += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what} {note}", flush=True)


class Box:
    """A cluster on a data folder of its own."""

    def __init__(self, pool):
        self.top = tempfile.mkdtemp(prefix="pomelo-trace-")
        self.data = self.top + "/d"
        self.trace = self.top + "/trace.jsonl"
        with open(self.trace, "wb") as f:
            subprocess.run(["xz", "-dc", f"{TOP}/tests/data/conversation_trace.jsonl.xz"], stdout=f, check=True)
        with open(self.trace, encoding="ascii") as f:
            self.seconds = json.loads(f.readlines()[LIMIT - 1 if LIMIT else -1])["timestamp"] / 1000
        self.run("up", "--no-disk", "--pool", pool)

    def run(self, *args, want=0):
        r = subprocess.run([EXE, "--data", self.data, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if r.returncode != want and want is not None:
            sys.exit(f"pomelo {' '.join(args)}: {r.returncode}\n{r.stdout}{r.stderr}")
        return r.stdout

    def replay(self, *args):
        return subprocess.Popen([EXE, "--data", self.data, "--json", "trace-replay", self.trace, "--block", BLOCK, *args]
                                + (["--limit", str(LIMIT)] if LIMIT else []),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)

    def services(self):
        return {s["name"]: s for s in json.loads(self.run("status", "--json", want=None).splitlines()[-1])["services"]}

    def evictions(self):
        try:
            url = self.services()["master"]["http"]
            text = urllib.request.urlopen(f"http://{url}/metrics", timeout=2).read().decode()
            return int(re.search(r"^pomelo_master_evictions_total (\d+)", text, re.M).group(1))
        except (OSError, KeyError, AttributeError, ValueError):
            return None

    def close(self):
        subprocess.run([EXE, "--data", self.data, "down", "--fast"], capture_output=True)
        shutil.rmtree(self.top, ignore_errors=True)


def report(p, what):
    out, err = p.communicate()
    print(out.strip(), err.strip(), flush=True)
    r = json.loads(out.splitlines()[-1]) if out.strip() else {}
    check(f"{what}: no error, no wrong byte", p.returncode == 0 and r.get("errors") == 0 and r.get("wrong_bytes") == 0,
          f"exit code {p.returncode}")
    return r


def is_exact(r, what):
    possible, distinct = r.get("prefix_hits_possible"), r.get("distinct")
    if not LIMIT:
        check("the trace is the one known", possible == 105710 and distinct == 182790)
    check(f"{what}: every hit there is", r.get("hits_memory") == possible and r.get("blocks_put") == distinct,
          f"{r.get('hits_memory')} of {possible}, {r.get('blocks_put')} put of {distinct}")


def agrees(box):
    """status and top say what a recount finds (C3), once what was replaced or evicted has been freed."""
    rows, end = json.loads(box.run("ls", "--json").splitlines()[-1]), time.monotonic() + 60
    copies = sum(o["memory"] for o in rows["objects"])
    while True:
        s = json.loads(box.run("status", "--json").splitlines()[-1])
        t = json.loads(box.run("top", "--json", "--interval", "200ms").splitlines()[-1])
        told = [s["objects"], t["objects"], t["store"]["objects"]]
        held = [sum(h["objects"] for h in x["holders"]) for x in (s, t)] + [t["store"]["copies"]]
        if told == [rows["n"]] * 3 and held == [copies] * 3 or time.monotonic() > end:
            break
        time.sleep(0.5)
    check("status and top agree with a recount", told == [rows["n"]] * 3 and held == [copies] * 3,
          f"{rows['n']} objects: {told}, {copies} copies: {held}")


def exact():
    box = Box(POOL)
    try:
        r = report(box.replay(), "one client")
        is_exact(r, "one client")
        check("nothing lost, nothing put by others", r.get("lost") == 0 and r.get("put_by_others") == 0)
        check("nothing evicted", box.evictions() == 0)
        agrees(box)
    finally:
        box.close()


def evict():
    box = Box("1GiB")
    try:
        for clients in ("1", "64"):
            r = report(box.replay("--clients", clients, "--prefix", f"clients{clients}"), f"1 GiB, {clients} clients")
            check("it went on to the end", r.get("requests") == (LIMIT or 12031))
        check("it evicted", LIMIT or (box.evictions() or 0) > 100000, f"{box.evictions()} objects")
        agrees(box)
    finally:
        box.close()


class Prober:
    """Every 10 ms a get and a put, each on its own thread: when did they last begin and succeed?"""

    def __init__(self, box):
        self.p = Pomelo(LIB, box.data, 30000)
        self.p.upsert(b"probe/fixed", b"x" * 100)
        self.end, self.good, self.put, self.errors = False, {"get": [], "put": []}, [], []
        self.threads = [threading.Thread(target=self.loop, args=(w,)) for w in ("get", "put")]
        for t in self.threads:
            t.start()

    def loop(self, what):
        n = 0
        while not self.end:
            begin = time.monotonic()
            try:
                if what == "get":
                    if self.p.get(b"probe/fixed", 128) != b"x" * 100:
                        self.errors.append("wrong bytes")
                else:
                    key = b"probe/%d" % n
                    n += 1
                    self.p.put(key, key)
                    self.put.append(key)
                self.good[what].append((begin, time.monotonic()))
            except PomeloError as e:
                self.errors.append(f"{what}: {e}")
            time.sleep(max(0.0, 0.01 - (time.monotonic() - begin)))

    def back_s(self, what, kill):
        """From the kill to the first success of a call that began after it."""
        return min((end - kill for begin, end in list(self.good[what]) if begin >= kill), default=1e9)

    def stop(self):
        self.end = True
        for t in self.threads:
            t.join()


def kills():
    box = Box(POOL)
    try:
        victims = ["master"] * MASTER_KILLS + ["agent"] * AGENT_KILLS
        random.Random(4).shuffle(victims)
        scale = KILL_EVERY_S * (len(victims) + 8) / box.seconds
        probe, times, evicted, untold = Prober(box), [], 0, 0
        p = box.replay("--time-scale", f"{scale:.4f}")
        for v in victims:
            time.sleep(KILL_EVERY_S + random.uniform(-0.5, 0.5))
            n = box.evictions()  # of this run of the master: it counts from 0
            evicted, untold = evicted + (n or 0), untold + (n is None)
            pid = box.services()[v]["pid"]
            if p.poll() is not None or not pid:
                check("killed while it was replayed", False, f"{v}, pid {pid}")
                break
            os.kill(pid, signal.SIGKILL)
            times.append((v, time.monotonic()))
        r = report(p, f"{len(times)} kills")
        probe.stop()
        restarts = {name: s["restarts"] for name, s in box.services().items()}
        check("each kill was one restart, and of nobody else",
              restarts == {"master": MASTER_KILLS, "agent": AGENT_KILLS, "owner": 0, "planner": 0, "pg": 0}, f"{restarts}")
        for what in ("get", "put"):
            late = [(v, round(probe.back_s(what, t), 2)) for v, t in times]
            print(what, "back after (s):", " ".join(f"{v} {t:.2f}" for v, t in late))
            worst = max(late, key=lambda x: x[1], default=("nobody", 0))
            check(f"{what} back within {BACK_S:.0f} s of each kill", worst[1] <= BACK_S,
                  f"worst {worst[1]:.2f} s ({worst[0]}), median {sorted(x[1] for x in late)[len(late) // 2]:.2f} s")
        check("the prober had no error", not probe.errors, f"{len(probe.errors)}: {probe.errors[:1]}")
        check("hits as without kills", r.get("hits_memory") == r.get("prefix_hits_possible"),
              f"{r.get('hits_memory')} of {r.get('prefix_hits_possible')}")
        evicted += box.evictions() or 0
        check("evicted = 0", evicted == 0 and untold == 0, f"{evicted}, {untold} times not told")
        again = report(box.replay("--clients", "4"), "afterwards")
        check("every acknowledged block is there", again.get("hits_memory") == again.get("references") and
              again.get("blocks_put") == 0, f"{again.get('hits_memory')} of {again.get('references')}")
        gone = 0
        for i in range(0, len(probe.put), 4096):
            gone += sum(code != 0 for code in probe.p.many("exists", probe.put[i:i + 4096]))
        check("every acknowledged probe is there", gone == 0, f"{gone} of {len(probe.put)} are not")
        check("it probed all the time", min(len(g) for g in probe.good.values()) > 20 * len(times),
              f"{[len(g) for g in probe.good.values()]} calls")
        agrees(box)
        probe.p.close()
    finally:
        box.close()


def size(text):
    n = re.match(r"(\d+)(MiB|GiB)$", text)
    return int(n.group(1)) << (20 if n.group(2) == "MiB" else 30)


def room(need):
    with open("/proc/meminfo", encoding="ascii") as f:
        have = int(re.search(r"^MemAvailable: +(\d+)", f.read(), re.M).group(1)) << 10
    shm = shutil.disk_usage("/dev/shm").free
    if min(have, shm) >= need + (1 << 30):
        return True
    print(f"trace_long: SKIPPED: {have >> 30} GiB of memory and {shm >> 30} GiB in /dev/shm are free, "
          f"{(need >> 30) + 1} GiB of both are needed", flush=True)
    return False


PARTS = {"exact": (exact, size(POOL)), "evict": (evict, 1 << 30), "kills": (kills, size(POOL))}


def main(names):
    skipped = 0
    for n in names:
        if n not in PARTS:
            sys.exit(f"trace_long: {n}: parts are {' '.join(PARTS)}")
        print(f"-- {n}", flush=True)
        fn, need = PARTS[n]
        if room(need):
            fn()
        else:
            skipped += 1
    return 1 if bad else 77 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PARTS)))
