#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test stages with a time budget each and counts what passed and failed.

Every check is counted once: a TAP test counts its cases, any other program counts as one. The last
line printed is "N passed, N failed, N skipped"; the exit status is 1 if anything failed or nothing passed.
Used by tests/run (the stages of CI) and .ci/long (longer ones).
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

BUDGET_MIN = {"build": 8, "unit": 6, "service": 8, "fuzz": 8, "rest": 8}
JOBS = str(os.cpu_count() or 2)
ASAN_ENV = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
BUILDS = {
    "build": ["-Dtests=true"],
    "build-asan": ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dbuildtype=debugoptimized", "-Dfaults=true", "-Dcuda=disabled"],
    "build-tsan": ["-Db_sanitize=thread", "-Db_lundef=false", "-Dbuildtype=debugoptimized", "-Dcuda=disabled"],
    "build-faults": ["-Dfaults=true", "-Dcuda=disabled"],
    "build-clang": [],
    "build-fuzz": ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dbuildtype=debugoptimized", "-Dfuzz=true", "-Dtests=false", "-Dcuda=disabled"],
    "build-off": ["-Dcuda=disabled", "-Drdma=disabled", "-During=disabled", "-Ds3=disabled"],
}
CLANG_BUILDS = {"build-clang", "build-fuzz"}


class Stage:
    """One stage: a clock, a budget and the counts."""

    def __init__(self, name, minutes):
        self.name, self.end = name, time.monotonic() + 60 * minutes
        self.begin = time.monotonic()
        self.passed = self.failed = self.skipped = 0

    def left(self):
        return max(1.0, self.end - time.monotonic())

    def count(self, what, ok, note=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok:
            print(f"FAILED [{self.name}] {what} {note}", flush=True)

    def run(self, args, env=None, quiet=True, log=None, limit=None):
        """Runs a command in its own process group within the stage's budget; returns (rc, output)."""
        e = dict(os.environ, **(env or {}))
        p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             env=e, start_new_session=True)
        try:
            out, _ = p.communicate(timeout=min(self.left(), limit or 1e9))
            rc = p.returncode
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, _ = p.communicate()
            rc, out = 124, out + b"\n(over its time)\n"
        text = out.decode(errors="replace")
        if not quiet or rc != 0:
            print(what_failed(text) if rc else text, flush=True)
        return rc, text


def what_failed(text, tail=6000):
    """What a person needs of a long output: every failed case with what it said, then the end."""
    lines, head = text.splitlines(), []
    for i, line in enumerate(lines):
        if re.match(r"not ok\b|FAILED\b|== |.*\bERROR: \w+Sanitizer|.*runtime error:", line):
            head.append(line[:400])
            head += [said[:400] for said in lines[i + 1:i + 6] if line.startswith("not ok") and re.match(r"[# ]", said)]
    return "\n".join(head[:200]) + "\n...\n" + text[-tail:] if len(text) > tail else text


def setup(st, build, quiet=True):
    """Configures and compiles a build folder; counts one check."""
    env = {"CC": "clang"} if build in CLANG_BUILDS else {"CC": "gcc"}
    if not os.path.exists(f"{build}/build.ninja"):
        rc, _ = st.run(["meson", "setup", build] + BUILDS[build], env=env)
        if rc != 0:
            st.count(f"meson setup {build}", False)
            return False
    elif build == "build":  # deploy/quickstart configures it without tests
        rc, _ = st.run(["meson", "configure", build, "-Dtests=true"])
    rc, _ = st.run(["ninja", "-C", build, "-j", JOBS], env=env)
    st.count(f"compile {build}", rc == 0)
    return rc == 0


def tap_counts(text):
    ok = len(re.findall(r"^ok\b", text, re.M))
    bad = len(re.findall(r"^not ok\b", text, re.M))
    skip = len(re.findall(r"^ok\b.*# SKIP", text, re.M | re.I))
    return ok - skip, bad, skip


def meson_tests(st, build, suites, env=None, jobs=JOBS, mult=1):
    """Runs meson suites and counts cases from meson's own JSON log."""
    log = f"{build}/meson-logs/testlog.json"
    if os.path.exists(log):
        os.remove(log)
    args = ["meson", "test", "-C", build, "--no-rebuild", "--num-processes", jobs, "-t", str(mult)]
    for s in suites:
        args += ["--suite", s]
    rc, out = st.run(args, env=env)
    rows = []
    if os.path.exists(log):
        with open(log) as f:
            rows = [json.loads(line) for line in f if line.strip()]
    for r in rows:
        ok, bad, skip = tap_counts(r.get("stdout") or "")
        whole = r["result"] in ("OK", "EXPECTEDFAIL")
        if r["result"] == "SKIP":
            st.skipped += 1
        elif ok + bad + skip == 0:
            st.count(f"{build}: {r['name']}", whole, r["result"])
        else:
            st.passed, st.skipped = st.passed + ok, st.skipped + skip
            st.failed += max(bad, 0 if whole else 1)
        if not whole and r["result"] != "SKIP":
            print(f"FAILED [{st.name}] {build}: {r['name']} {r['result']}")
            print(what_failed((r.get("stdout") or "") + (r.get("stderr") or "")), flush=True)
    if rc == 124 or (rc != 0 and not rows and "No suitable tests" not in out):
        st.count(f"{build}: suites {' '.join(suites)}", False, f"rc={rc}")


def c_files(changed_only):
    """Our C files; with changed_only those of the last day's commits, newest work first."""
    tracked = subprocess.run(["git", "ls-files", "*.c"], capture_output=True, text=True).stdout.split()
    keep = [f for f in tracked if f.split("/")[0] in ("common", "services", "proto")]
    if not changed_only:
        return keep
    recent = subprocess.run(["git", "log", "--since=1 day ago", "--name-only", "--format="],
                            capture_output=True, text=True).stdout.split()
    order = {f: i for i, f in reversed(list(enumerate(recent)))}
    return sorted((f for f in keep if f in order), key=order.get)


def tidy(st, files, seconds):
    """clang-tidy within a time slice; says what it had no time for (.ci/long tidy does all)."""
    end, procs, left, bad = time.monotonic() + min(seconds, st.left()), [], list(files), 0
    db = json.load(open("build/compile_commands.json"))
    known = {os.path.relpath(os.path.join(d["directory"], d["file"])) for d in db}
    left = [f for f in left if f in known]
    total = done = 0
    total = len(left)
    while left or procs:
        while left and len(procs) < int(JOBS) and time.monotonic() < end:
            f = left.pop(0)
            procs.append((f, subprocess.Popen(["clang-tidy", "-p", "build", "--quiet",
                                               "--extra-arg=-Wno-unknown-warning-option", f],
                                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)))
        if not procs:
            break
        f, p = procs.pop(0)
        out = p.communicate()[0].decode(errors="replace")
        done += 1
        if p.returncode != 0:
            bad += 1
            print(f"clang-tidy {f}:\n{out[-3000:]}", flush=True)
    print(f"clang-tidy: {done} of {total} files checked, {bad} with findings", flush=True)
    st.count("clang-tidy", bad == 0)


def stage_build(st):
    setup(st, "build")
    setup(st, "build-asan")
    rc, out = st.run(["bash", "tests/format-check"])
    st.count("clang-format", rc == 0)
    tidy(st, c_files(changed_only=True), 150)


def stage_unit(st):
    if not os.path.exists("build/build.ninja") and not setup(st, "build"):
        return
    meson_tests(st, "build", ["unit", "sim", "docs", "regress"])
    if os.path.exists("build-asan/build.ninja") or setup(st, "build-asan"):
        meson_tests(st, "build-asan", ["unit", "sim", "regress"], env=ASAN_ENV, mult=4)


def stage_service(st):
    if os.path.exists("build/build.ninja") or setup(st, "build"):
        meson_tests(st, "build", ["service"], jobs="1")
    if os.path.exists("build-asan/build.ninja") or setup(st, "build-asan"):
        meson_tests(st, "build-asan", ["service-asan"], env=ASAN_ENV, jobs="1", mult=4)


def stage_fuzz(st, seconds_each=None):
    if not setup(st, "build-fuzz"):
        return
    targets = sorted(f for f in os.listdir("build-fuzz/tests/fuzz")
                     if f.startswith("fuzz_") and os.access(f"build-fuzz/tests/fuzz/{f}", os.X_OK)
                     and os.path.isfile(f"build-fuzz/tests/fuzz/{f}"))
    if not targets:
        st.count("fuzz targets exist", False)
        return
    each = seconds_each or min(15, max(3, int((st.left() - 30) * 0.85 * min(2, int(JOBS)) / len(targets))))
    print(f"fuzz: {len(targets)} targets, {each} s each", flush=True)
    run, todo = [], list(targets)
    while todo or run:
        while todo and len(run) < min(2, int(JOBS)):
            t = todo.pop(0)
            corpus = f"tests/fuzz/corpus/{t[5:]}"
            work = f"build-fuzz/corpus/{t}"
            os.makedirs(work, exist_ok=True)
            args = [f"build-fuzz/tests/fuzz/{t}", f"-max_total_time={each}", "-rss_limit_mb=2048", "-timeout=10",
                    "-print_final_stats=0", "-verbosity=0", "-entropic=0", f"-artifact_prefix=build-fuzz/crash-{t}-", work]
            args += [corpus] if os.path.isdir(corpus) else []
            run.append((t, subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            env=dict(os.environ, **ASAN_ENV))))
        t, p = run.pop(0)
        out = p.communicate()[0].decode(errors="replace")
        st.count(f"fuzz {t}", p.returncode == 0, out[-3000:] if p.returncode else "")


def stage_rest(st):
    if setup(st, "build-tsan"):
        meson_tests(st, "build-tsan", ["race"], env={"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:suppressions=" + os.path.abspath("tests/race/tsan.supp")}, mult=3)
    meson_tests(st, "build", ["headers"])
    meson_tests(st, "build", ["disk"])
    if os.path.exists("build-asan/build.ninja"):
        meson_tests(st, "build-asan", ["disk"], env=ASAN_ENV, mult=4)
    meson_tests(st, "build", ["service-load"], jobs="1")  # storm, sick peers, soak: in their short forms
    for script in ("tests/docs-check", "tests/quickstart-check", "tests/replay-check"):
        if os.path.exists(script):
            rc, out = st.run([script], quiet=False)
            if rc == 77:
                st.skipped += 1
                continue
            st.count(script, rc == 0, f"rc={rc}")


STAGES = {"build": stage_build, "unit": stage_unit, "service": stage_service, "fuzz": stage_fuzz, "rest": stage_rest}


def main(names):
    passed = failed = skipped = 0
    for n in names:
        st = Stage(n, BUDGET_MIN[n])
        print(f"== stage {n} (budget {BUDGET_MIN[n]} min)", flush=True)
        STAGES[n](st)
        took = time.monotonic() - st.begin
        st.count("stage budget", took <= 60 * BUDGET_MIN[n], f"{took:.0f} s")
        print(f"== stage {n}: {st.passed} passed, {st.failed} failed, {st.skipped} skipped in {took:.0f} s", flush=True)
        passed, failed, skipped = passed + st.passed, failed + st.failed, skipped + st.skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(STAGES)))
