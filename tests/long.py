#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The long stages of .ci/long: full crosses, soaks, kill counts. Same counting as tests/stages.py."""
import os
import platform
import subprocess
import sys
import time

from stages import ASAN_ENV, Stage, c_files, meson_tests, setup, stage_fuzz, tidy

LIMIT_MIN = 40


def clang(st):
    """Everything under clang: warnings as errors, then all suites."""
    if setup(st, "build-clang"):
        meson_tests(st, "build-clang", ["unit", "disk", "sim", "regress", "docs", "service", "service-load"], jobs="1")


def tsan(st):
    """Race programs under ThreadSanitizer, five rounds each."""
    if setup(st, "build-tsan"):
        for _ in range(5):
            meson_tests(st, "build-tsan", ["race"], mult=5, env={
                "TSAN_OPTIONS": "halt_on_error=1:suppressions=" + os.path.abspath("tests/race/tsan.supp")})


def all_tidy(st):
    """clang-tidy over every file of the product."""
    if setup(st, "build"):
        tidy(st, c_files(changed_only=False), 60 * LIMIT_MIN)


def features_off(st):
    """A build with every optional feature disabled, and its tests."""
    if setup(st, "build-off"):
        meson_tests(st, "build-off", ["unit", "disk", "sim", "docs"])


def headers(st):
    """Each header compiles alone."""
    if setup(st, "build"):
        meson_tests(st, "build", ["headers"])


def fuzz(st):
    """Every fuzz target for two minutes, or as long as the stage allows."""
    stage_fuzz(st, 120)


def program(st, what, args, env=None):
    rc, _ = st.run(args, env=env, quiet=False)
    if rc == 77:
        st.skipped += 1
    else:
        st.count(what, rc == 0, f"rc={rc}")


def sim(st):
    """20,000 seeds of the simulated cluster."""
    if setup(st, "build"):
        meson_tests(st, "build", ["sim-long"], mult=100)


def shutdown(st):
    """Shutdown under load 200 times, release and ASan."""
    if setup(st, "build") and setup(st, "build-asan"):
        meson_tests(st, "build", ["shutdown-long"], jobs="1", mult=100)
        meson_tests(st, "build-asan", ["shutdown-long"], env=ASAN_ENV, jobs="1", mult=100)


def kills(st):
    """kill -9 counts: meta log and supervised services."""
    if setup(st, "build"):
        meson_tests(st, "build", ["kills-long"], jobs="1", mult=100)


def store_stop(st):
    """Writers, readers, agents and masters stopped at every row of the put table, 100 rounds a row."""
    if setup(st, "build-faults"):
        meson_tests(st, "build-faults", ["stop-long"], jobs="1", mult=100)


def store_kill(st):
    """kill -9 of master, agents, clients, and of the supervisor, 200 rounds each under load; holders back from away."""
    if setup(st, "build"):
        meson_tests(st, "build", ["kill-long"], jobs="1", mult=100)


def million(st):
    """A master killed over 1 M objects of 256 bytes: whole in 3 s, no lie, no late beat."""
    if setup(st, "build"):
        meson_tests(st, "build", ["million-long"], jobs="1", mult=100)


def trace_part(st, part):
    if setup(st, "build"):
        program(st, f"trace {part}", ["python3", "tests/service/trace_long.py", part])


def trace_exact(st):
    """The production trace, 64 KiB blocks, one client, pool of 13 GiB: exactly 105,710 hits (14 GiB of memory)."""
    trace_part(st, "exact")


def trace_evict(st):
    """The same in a pool of 1 GiB, one client and 64: it evicts and goes on, no error, no wrong byte."""
    trace_part(st, "evict")


def trace_kills(st):
    """The same in 13 GiB, the master killed 20 times, the agent 5 times: nothing lost, back in 2 s (14 GiB)."""
    trace_part(st, "kills")


def many(st):
    """Cases 9 and 10 with 10 M keys in a master's mind: a holder joins, twenty come again (3 GiB)."""
    if setup(st, "build"):
        meson_tests(st, "build", ["many-long"], jobs="1", mult=100)


def soak(st):
    """15 minutes at capacity with faults: memory flat, gauges a recount, 0 wrong bytes, groups 8 or 0."""
    if setup(st, "build"):
        meson_tests(st, "build", ["soak-long"], jobs="1", mult=100)


def sick(st):
    """One agent stopped, its lane cut, a peer flapping: p99 of unrelated gets, and back within 3 s; five rounds."""
    if setup(st, "build"):
        meson_tests(st, "build", ["sick-long"], jobs="1", mult=100)


def storm(st):
    """Connection storms against every port, five interleaved rounds each."""
    if setup(st, "build"):
        meson_tests(st, "build", ["storm-long"], jobs="1", mult=100)


def unit_asan(st):
    """All suites, services too, under AddressSanitizer and UBSan with fault points in."""
    if setup(st, "build-asan"):
        meson_tests(st, "build-asan", ["unit", "disk", "sim", "regress", "service", "service-load"], env=ASAN_ENV, jobs="1", mult=6)


def ep(st):
    """5,000 random configurations of expert parallelism against the plain model."""
    if setup(st, "build"):
        meson_tests(st, "build", ["ep-long"], jobs="1")


def reshard(st):
    """50,000 random placements against the slow planner; the largest anchor."""
    if setup(st, "build"):
        meson_tests(st, "build", ["reshard-long"], jobs="1", mult=100)


def model(st):
    """The store's models through every order of events: sixteen configurations, then random walks."""
    if setup(st, "build") and st.run(["ninja", "-C", "build", "tests/model/model"])[0] == 0:
        exe = "build/tests/model/model"
        for name in model_names(exe, "--list"):
            walk = ["-w", "1000000000", "-f", "1"] if name.startswith("walk") else ["-m", "3072", "-f", "1024"]
            program(st, name, [exe, "-s", "130"] + walk + [name])


def model_plants(st):
    """A rule left out of the store's models, one after another: each must be found, and nothing with it back in."""
    if setup(st, "build") and st.run(["ninja", "-C", "build", "tests/model/model"])[0] == 0:
        exe = "build/tests/model/model"
        for name in model_names(exe, "--plants"):
            program(st, name, [exe, "--find", "-s", "300", "-f", "64", name])
            program(st, name + " mended", [exe, "--mended", "-s", "20", "-f", "64", name])


def model_names(exe, which):
    out = subprocess.run([exe, which], capture_output=True, text=True).stdout
    return [line.split()[0] for line in out.splitlines()]


def clean_root(st):
    """README's two commands in a fresh Debian 12 root (needs root and debootstrap)."""
    program(st, "clean root", ["bash", "tests/clean-root"])


STAGES = {f.__name__: f for f in (clang, tsan, all_tidy, features_off, headers, fuzz, sim, shutdown, kills, store_stop,
                                  store_kill, million, many, trace_exact, trace_evict, trace_kills, soak, sick, storm, unit_asan, ep, reshard,
                                  model, model_plants, clean_root)}


def main(names):
    if not names:
        for n, f in STAGES.items():
            print(f"{n:14} {f.__doc__}")
        return 0
    names = list(STAGES) if names == ["all"] else names
    unknown = [n for n in names if n not in STAGES]
    if unknown:
        print(f".ci/long: unknown stage '{unknown[0]}'; stages are: {' '.join(STAGES)}", file=sys.stderr)
        return 2
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    bad = passed = failed = 0
    for n in names:
        st = Stage(n, 90 if n == "clean_root" else LIMIT_MIN)
        print(f"== long {n}: commit {commit}, {platform.processor() or platform.machine()} x{os.cpu_count()}, "
              f"load {os.getloadavg()[0]:.2f}", flush=True)
        STAGES[n](st)
        took = time.monotonic() - st.begin
        print(f"== long {n}: commit {commit}: {st.passed} passed, {st.failed} failed, {st.skipped} skipped in {took:.0f} s",
              flush=True)
        bad += st.failed or not st.passed
        passed, failed = passed + st.passed, failed + st.failed
    print(f"{passed} passed, {failed} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
