#!/usr/bin/env python3
"""Runs the steps of tests/run: builds one after the other, then everything else two at a time.

A step's verdicts are its closing line "N passed, N failed, N skipped" or meson's summary; a step
without one counts as a single test by its exit status (77: skipped).

A few tests that failed are run once more at the end, alone: what passes then failed for what ran beside it, which
is said by name, and is counted as passed. Where many fail, none is run again, nor is a step whose log does not name
every failure that it counts.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AGAIN_MAX = 10
OUT = ROOT / "build-test"
RELEASE, DEV, PORTABLE, CLANG = (OUT / name for name in ("release", "dev", "portable", "clang"))
DLRUN = RELEASE / "dlrun"


def meson(where, *options):
    """Set up a build directory, or bring it up to date, and build everything in it."""
    setup = f"meson setup --reconfigure {where}" if (where / "build.ninja").exists() else \
        f"meson setup {' '.join(options)} {where}"
    return ["sh", "-c", f"{setup} && ninja -C {where} all real-tools"]


def sources(pattern="*.c"):
    return sorted(str(p.relative_to(ROOT)) for folder in ("lib", "cli") for p in (ROOT / folder).rglob(pattern))


BUILDS = [
    ("build release", meson(RELEASE), {}),
    ("build dev (gcc, ASan, UBSan, werror)", meson(DEV, "--native-file", "build-dev.ini"), {}),
    ("build portable", meson(PORTABLE, "-Dos=portable"), {}),
    ("build clang (werror)", meson(CLANG, "-Dwerror=true", "-Dwarning_level=2"), {"CC": "clang"}),
]


def python(*argv):
    return ["python3", *map(str, argv)]


def steps():
    real = ROOT / "tests/real"
    snap_tool = RELEASE / "tests/real/snap_tool"
    yield "check structure", python("tests/check/structure.py"), {}
    yield "check docs", python("tests/check/docs.py"), {}
    yield "check format", ["clang-format", "--dry-run", "--Werror", *sources(), *sources("*.h")], {}
    yield "check cppcheck", ["tests/check/cppcheck"], {}
    yield "check analyzer", ["tests/check/analyzer", str(OUT / "analyzer")], {}
    if (ROOT / "tests/check/manuals.py").exists():
        yield "check manuals", python("tests/check/manuals.py", DLRUN), {}
    for build in (DEV, PORTABLE):
        yield f"unit and fuzz corpora, {build.name}", ["meson", "test", "-C", str(build), "--print-errorlogs", "--no-rebuild"], {}
    yield "fakes", python("tests/fake/test_fakes.py"), {}
    yield "golden", python("tests/golden/run", DLRUN), {}
    yield "ignore rules beside git", python(real / "ignore_diff.py", snap_tool), {}
    yield "random trees beside git", python(real / "tree_diff.py", snap_tool), {}
    for name in ("snapshot", "image", "local", "failure", "kill", "attempts", "results", "collect", "heavy", "tensorboard", "mirror", "plot", "init", "doctor", "usage", "trust", "upkeep", "carry", "typed", "ended", "projects"):
        yield f"real {name}", python(real / f"{name}.py", DLRUN), {}
    yield "real front", python(real / "front.py", DLRUN), {}
    yield "real proxy", python(real / "proxy.py", DLRUN), {}
    for name in ("push_matrix", "push_cuts", "push_hostile", "push_names", "push_logins"):
        yield f"real {name}", python(real / f"{name}.py", DLRUN), {}
    for name in ("world", "world_bad", "canary", "push"):
        yield f"real {name}", python(real / f"{name}.py", DLRUN), {}
    for name in sorted(p.stem for pattern in ("ssh_*.py", "runner*.py", "family.py") for p in real.glob(pattern)):
        yield f"real {name}", python(real / f"{name}.py", DLRUN), {}
    yield "real cluster", python(real / "on_cluster.py", DLRUN, *sorted(real.glob("cluster_*.py"))), {}
    for name in ("snapshot", "local", "failure", "attempts", "world", "canary", "front", "proxy"):
        yield f"real {name}, portable", python(real / f"{name}.py", PORTABLE / "dlrun"), {"DLRUN_OS": "portable"}
    yield "example digits", ["tests/real/digits.sh"], {}
    yield "readme", python("tests/check/readme.py", DLRUN), {}


FAILURE = re.compile(r"^(?:failed: |FAILED |ERROR: |\[  FAILED  \]|.*\b(?:FAIL|TIMEOUT) )")
NAMED = re.compile(r"^failed: (test_\w+)(?:.* \[(cluster_\w+\.py)\])?", re.M)
UNITS = re.compile(r"^ *\d+/\d+ (?:.* / )?(\S+) +(?:FAIL|TIMEOUT) ", re.M)
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
MESON = {"passed": r"^Ok:\s+(\d+)", "failed": r"^(?:Fail|Timeout|Unexpected Pass):\s+(\d+)", "skipped": r"^Skipped:\s+(\d+)"}


def verdict(status, text):
    """(passed, failed, skipped) of one step."""
    counts = COUNTS.findall(text)
    if counts:
        passed, failed, skipped = (int(n or 0) for n in counts[-1])
    elif re.search(r"^Ok:\s+\d+", text, re.M):
        passed, failed, skipped = (sum(map(int, re.findall(p, text, re.M))) for p in MESON.values())
    else:
        return (1, 0, 0) if status == 0 else (0, 0, 1) if status == 77 else (0, 1, 0)
    return passed, failed or (1 if status else 0), skipped


def log_of(name):
    return OUT / "logs" / (re.sub(r"\W+", "-", name).strip("-") + ".log")


def run(step):
    name, argv, env = step
    log = log_of(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with open(log, "wb") as out:
        status = subprocess.run(argv, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    passed, failed, skipped = verdict(status, text)
    word = "FAILED" if failed else "ok"
    print(f"{word:6} {name}: {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - begin:.0f} s", flush=True)
    for line in text.splitlines():
        if line.startswith("skipped:"):
            print(f"       {line}", flush=True)
    if failed:
        show_failure(text.splitlines())
    return passed, failed, skipped


def failed_alone(step, number):
    """The step with only the tests that failed, and their names; None where its log does not name each of them."""
    name, argv, env = step
    text = log_of(name).read_text(errors="replace")
    if argv[:2] == ["meson", "test"]:
        found = tests = sorted(set(UNITS.findall(text)))
        argv = [*argv, "--num-processes", "1", "--logbase", "again", *tests]
    elif len(argv) > 2 and "tests/real/" in argv[1]:
        found = NAMED.findall(text)
        if "on_cluster" in argv[1]:
            found = [(test, file) for test, file in found if file]
            argv = [*argv[:3], *(a for a in argv[3:] if any(a.endswith(file) for _, file in found)), "--"]
        tests = sorted({test for test, _ in found})
        argv = [*argv, *tests]
    else:
        return None
    return ((f"{name}, again", argv, env), tests) if found and len(found) == number else None


def run_again(failed):
    """How many tests failed only once, of (step, number of failures) each."""
    if sum(number for _, number in failed) > AGAIN_MAX:
        return 0
    once = 0
    for step, number in failed:
        alone = failed_alone(step, number)
        if not alone:
            continue
        passed, lost, _ = run(alone[0])
        if passed >= number and not lost:
            once += number
            print(f"failed once, passed alone: {step[0]}: {' '.join(alone[1])}", flush=True)
    return once


def show_failure(lines):
    """The lines that name a failed test, and the end of the log, which may tell why."""
    end = max(0, len(lines) - 60)
    named = [line for line in lines[:end] if FAILURE.match(line)]
    print("\n".join("       " + line for line in named[:40] + lines[end:]), flush=True)


def main():
    wanted = sys.argv[1:]
    totals = [0, 0, 0]

    def add(counts):
        for i, n in enumerate(counts):
            totals[i] += n

    broken = False
    for build in BUILDS:
        counts = run(build)
        add(counts)
        broken |= counts[1] > 0
    chosen = [s for s in steps() if not wanted or any(w in s[0] for w in wanted)]
    if not broken:
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            results = list(pool.map(run, chosen))
        for counts in results:
            add(counts)
        once = run_again([(step, counts[1]) for step, counts in zip(chosen, results) if counts[1]])
        add((once, -once, 0))
        if once:
            print(f"{once} of them failed once and passed when run again, alone")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
