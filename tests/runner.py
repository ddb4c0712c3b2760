#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of tests/run: what they need is built first, then the longest first, so many at a time as keep the cores busy: steps
differ in how much of their time they wait. The clusters' step has a track of its own beside them.

    tests/run [--no-install] [--all] [NAME…]     NAME: only the steps whose names contain it, and only what they need is built
    tests/run --list                             the steps, what each needs, and how many seconds it is expected to take

Without --all the analyzers look at the rooms that changed (tests/rooms.py says against what; in CI since ten commits before, and at a
seventh of the others), the build for other systems is one by clang, whose unit tests are those of what asks the system, and what
others show as well is left out: shells, parts of a matrix, tests whose faults a test that is named beside them shows (left_to_all in
tests/real/harness.py); the log says which. --all runs everything everywhere: once a week. tests/quick is for the time between two edits.

A step's verdicts are its closing line "N passed, N failed, N skipped" or meson's summary; a step
without one counts as a single test by its exit status (77: skipped). The last line is the sum in that form, after a table of the
steps' times and the slowest tests.

A few tests that failed are run once more at the end, alone: what passes then failed for what ran beside it, which
is said by name, and is counted as passed. Where many fail, none is run again, nor is a step whose log does not name
every failure that it counts.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import compiler
import rooms

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/real"))
from pypi import CACHE  # noqa: E402

AGAIN_MAX = 10
SLOWEST = 20
CLOSING = 8
# How many at a time on the common track: one always, up to that many as long as what runs needs no more than the cores.
LEAST, MOST = 1, 4
CORES = os.cpu_count() or 2
LIMIT_S = 4500  # Of one step, several times what the longest needs on an idle machine: tests have limits of their own.
LEAVE_S = 60    # For one that was told to end.
OUT = ROOT / "build-test"
# Beside what the tests have built: it outlives the clone.
TIMES = CACHE / "times.json"


@dataclass
class Build:
    """A build directory below OUT."""
    title: str
    options: tuple = ()
    compiler: str = None


BUILDS = {
    "release": Build("build release"),
    # Of what debuggers want, the lines of a report are enough.
    "dev": Build("build dev (gcc, ASan, UBSan, werror)", ("--native-file", "build-dev.ini", "-Dc_args=-g1")),
    # Between two runs of --all it stands for both below; clang warns without optimizing.
    "other": Build("build portable (clang, werror)", ("-Dos=portable", "-Dwerror=true", "-Dwarning_level=2", "-Doptimization=0"), "clang"),
    "portable": Build("build portable", ("-Dos=portable",)),
    "clang": Build("build clang (werror)", ("-Dwerror=true", "-Dwarning_level=2"), "clang"),
}
EVERYTHING = ("all", "real-tools")
# Not names of ninja's: every object, and a check of the sources that this build leaves out because they are of another system.
OBJECTS, LEFT_OUT = "objects", "left-out"


@dataclass
class Step:
    name: str
    argv: list
    builds: dict = field(default_factory=dict)  # name: the targets it needs
    seconds: int = 15                           # expected, where no earlier run has told
    load: float = 0.5                           # cores that it keeps busy where it has them for itself
    tools: tuple = ()                           # of tests/real/gotools.py
    env: dict = field(default_factory=dict)
    own_track: bool = False
    makes: str = None                           # of BUILDS


def python(*argv):
    return ["python3", *map(str, argv)]


def real(name, seconds, *argv, build="release", targets=("dlrun", "real-tools"), **more):
    title = f"real {name}" if build == "release" else f"real {name}, portable"
    env = {} if build == "release" else {"DLRUN_OS": "portable"}
    return Step(title, python(ROOT / f"tests/real/{name}.py", *(argv or (OUT / build / "dlrun",))), {build: targets}, seconds,
                LOAD.get(name, Step.load), env=env, **more)


# Seconds on two cores with nothing else; the cluster's files are one step, as they share a cluster.
REAL = {
    "snapshot": 15, "image": 20, "local": 20, "failure": 15, "kill": 30, "held": 120, "after": 60, "attempts": 25, "study_slots": 20, "results": 20, "collect": 15, "heavy": 40, "data": 60,
    "tensorboard": 40, "mirror": 40, "plot": 15, "init": 15, "doctor": 15, "usage": 15, "trust": 15, "upkeep": 15, "recipe": 30, "carry": 20,
    "typed": 15, "ended": 10, "projects": 60, "httpd": 30, "proxy": 40, "push_matrix": 90, "push_cuts": 60, "push_hostile": 15,
    "push_names": 10, "push_logins": 10, "world": 25, "world_bad": 20, "conda": 40, "canary": 20, "push": 60, "runner": 60, "runner_collect": 30,
    "runner_extras": 40, "runner_slots": 60, "runner_pool": 60, "family": 30, "ranks": 60, "roles": 40, "s3": 90, "s3_data": 60, "study": 15, "sweep": 60,
    "provider": 10, "autoscale_aws": 20, "autoscale_turns": 60, "autoscale_templates": 20,
}
# Of those that wait most of the time, or compute all the time.
LOAD = {
    "after": 0.5, "attempts": 1, "conda": 0.1, "ranks": 0.2, "roles": 0.3, "runner": 0.4, "runner_pool": 0.2, "runner_slots": 0.2,
    "family": 1, "held": 0.4, "projects": 0.6, "proxy": 0.2, "push": 0.6, "push_cuts": 0.9, "push_matrix": 0.7, "recipe": 0.3, "s3_data": 0.7,
    "ssh_gang": 0.3, "ssh_gpus": 0.2, "ssh_home": 0.35, "ssh_keywords": 0.35, "ssh_logins": 0.8, "sweep": 0.5, "usage": 0.3,
}
CRANE, REGISTRY, CLUSTER = ("crane",), ("crane", "registry"), ("kubernetes", "etcd", "coredns", "kwok", "jobset")
TOOLS = {"image": CRANE, "push": REGISTRY, "push_cuts": REGISTRY, "push_matrix": REGISTRY, "push_hostile": REGISTRY}
# What a system without Linux's calls does otherwise: walks and locks, processes and their end, mounts, whose connections are.
PORTABLE = ("snapshot", "local", "failure", "attempts", "world", "canary", "httpd", "proxy")
PORTABLE_SOME = ("snapshot", "local", "httpd")
# Of the tests' cluster, not of dlrun.
CLUSTER_ALL = ("cluster_smoke",)


def ssh_steps():
    return sorted(p.stem for p in (ROOT / "tests/real").glob("ssh_*.py") if "def test_" in p.read_text())


def units(build, names=()):
    argv = ["meson", "test", "-C", str(OUT / build), "--print-errorlogs", "--no-rebuild", "--num-processes",
            str((os.cpu_count() or 2) + 1), *names]
    return argv, {build: tuple(rooms.targets(names)) or ("meson-test-prereq",)}


def checks(whole):
    # A clone in CI does not know where its branch began: its last commit may be one of many.
    some = [] if whole else ["--recent" if os.environ.get("CI") else "--changed"]
    yield Step("check structure", python("tests/check/structure.py"))
    yield Step("check symbols", python("tests/check/symbols.py", OUT / "release"), {"release": ("dlrun",)})
    yield Step("check notes", python("tests/check/notes.py", OUT / "release/dlrun"), {"release": ("dlrun",)})
    yield Step("check docs", python("tests/check/docs.py"))
    yield Step("check format", ["clang-format", "--dry-run", "--Werror", *rooms.sources()])
    yield Step("check cppcheck", ["tests/check/cppcheck", *some], seconds=30, load=1)
    yield Step("check analyzer", ["tests/check/analyzer", *some, str(OUT / "analyzer")], seconds=60, load=1.5)
    yield Step("check manuals", python("tests/check/manuals.py", OUT / "release/dlrun"), {"release": ("dlrun",)})


def steps(whole):
    tests = ROOT / "tests"
    dlrun, snap_tool = OUT / "release/dlrun", OUT / "release/tests/real/snap_tool"
    yield from checks(whole)
    argv, builds = units("dev")
    yield Step("unit and fuzz corpora, dev", argv, {"dev": (*EVERYTHING, LEFT_OUT)}, 120, load=1)
    other = "portable" if whole else "other"
    argv, builds = units(other, () if whole else [n for n in rooms.tests_of_system() if n != "os_family"])
    targets = EVERYTHING if whole else ("dlrun", OBJECTS, LEFT_OUT, *builds[other])
    yield Step("unit and fuzz corpora, portable", argv, {other: targets}, 60)
    if whole:
        yield Step("clang links all", ["true"], {"clang": EVERYTHING})
    yield Step("fakes", python(tests / "fake/test_fakes.py"), seconds=30, tools=CRANE)
    yield Step("golden", python(tests / "golden/run", dlrun), {"release": ("dlrun",)}, 30)
    for name, file in (("ignore rules", "ignore_diff"), ("random trees", "tree_diff")):
        yield Step(f"{name} beside git", python(tests / f"real/{file}.py", snap_tool), {"release": ("real-tools",)})
    for name, seconds in REAL.items():
        yield real(name, seconds, tools=TOOLS.get(name, ()))
    for name in ssh_steps():
        yield real(name, 40)
    cluster = sorted(p for p in (tests / "real").glob("cluster_*.py") if whole or p.stem not in CLUSTER_ALL)
    yield Step("real cluster", python(tests / "real/on_cluster.py", dlrun, *cluster), {"release": ("dlrun", "real-tools")}, 900,
               load=1.4, tools=CLUSTER, own_track=True)
    for name in PORTABLE if whole else PORTABLE_SOME:
        yield real(name, REAL[name], build=other)
    yield Step("example digits", ["tests/real/digits.sh"])
    yield Step("readme", python(tests / "check/readme.py", dlrun), {"release": ("dlrun",)})


FAILURE = re.compile(r"^(?:failed: |FAILED |ERROR: |\[  FAILED  \]|.*\b(?:FAIL|TIMEOUT) )")
NAMED = re.compile(r"^failed: (test_\w+)(?:.* \[(cluster_\w+\.py)\])?", re.M)
UNITS = re.compile(r"^ *\d+/\d+ (?:.* / )?(\S+) +(?:FAIL|TIMEOUT) ", re.M)
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
MESON = {"passed": r"^Ok:\s+(\d+)", "failed": r"^(?:Fail|Timeout|Unexpected Pass):\s+(\d+)", "skipped": r"^Skipped:\s+(\d+)"}
SKIPPED = re.compile(r"^(?:skipped:? .*| *\d+/\d+ .* SKIP .*)$")
NOT_RUN = re.compile(r"^(?:skipped:? .*|left to --all: .*| *\d+/\d+ .* SKIP .*)$", re.M)
TOOK = re.compile(r"^took: (\S+) ([\d.]+) s, ([\d.]+) s of CPU$", re.M)


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


@dataclass
class Outcome:
    step: Step
    counts: tuple
    seconds: float
    cpu_s: float
    tests: list  # (seconds, of CPU or None where that is not told, name)
    told: list = field(default_factory=list)  # Lines of what failed or was skipped.


def log_of(name):
    return OUT / "logs" / (re.sub(r"\W+", "-", name).strip("-") + ".log")


class Children:
    """The steps under way, each a session of its own, so that one that is to end does so with what it started."""

    def __init__(self):
        self.lock, self.pids, self.told, self.is_over = threading.RLock(), set(), set(), False

    def run(self, argv, env, log, limit_s):
        """(exit status, seconds of CPU); a step that has passed its limit says so in its log."""
        with open(log, "wb") as out:
            with self.lock:
                child = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out,
                                         stderr=subprocess.STDOUT, start_new_session=True)
                self.pids.add(child.pid)
            late = threading.Timer(limit_s, self.end, (child.pid, out, limit_s))
            late.start()
            _, status, use = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            late.cancel()
            with self.lock:
                self.pids.discard(child.pid)
                if child.pid in self.told:
                    self.kill_session(child.pid)
        return child.returncode, use.ru_utime + use.ru_stime

    def end(self, pid, out, limit_s):
        with self.lock:
            if pid in self.pids:
                listed = subprocess.run(["ps", "-o", "pid,ppid,etime,args", "-s", str(pid)], capture_output=True).stdout
                os.write(out.fileno(), b"\nERROR: no end within %d s; it was ended with\n%s" % (limit_s, listed))
                self.tell(pid)

    def tell(self, pid):
        """The step alone is told, so that it can say where its tests stood; what it leaves is killed."""
        self.told.add(pid)
        os.kill(pid, signal.SIGTERM)
        killer = threading.Timer(LEAVE_S, self.kill, (pid,))
        killer.daemon = True
        killer.start()

    def kill(self, pid):
        with self.lock:
            if pid in self.pids:
                self.kill_session(pid)

    @staticmethod
    def kill_session(pid):
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end_all(self):
        """No step begins after that."""
        with self.lock:
            self.is_over = True
            for pid in self.pids:
                self.tell(pid)


children = Children()


def run(step):
    log = log_of(step.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    status, cpu_s = children.run(step.argv, step.env, log, LIMIT_S * (4 if step.env.get("DLRUN_TESTS") == "all" else 1))
    text = log.read_text(errors="replace")
    counts = passed, failed, skipped = verdict(status, text)
    seconds = time.monotonic() - begin
    lines = [f"{'FAILED' if failed else 'ok':6} {step.name}: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.0f} s"]
    not_run = NOT_RUN.findall(text)
    if skipped and not not_run:
        not_run = [f"skipped: {line}" for line in text.splitlines()[-1:]]
    lines += [f"       {line.strip()}" for line in not_run]
    if failed:
        lines += failure_lines(text.splitlines())
    print("\n".join(lines), flush=True)
    return Outcome(step, counts, seconds, cpu_s, times_of_tests(step, text), closing_lines(text, failed, skipped))


def times_of_tests(step, text):
    if step.argv[:2] == ["meson", "test"]:
        base = "again" if "again" in step.argv else "testlog"
        log = Path(step.argv[3]) / f"meson-logs/{base}.json"
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [(row["duration"], None, f"{row['name'].split(' / ')[-1]} ({step.name})") for row in rows]
    return [(float(seconds), float(cpu_s), f"{name} ({step.name})") for name, seconds, cpu_s in TOOK.findall(text)]


def failed_alone(step, number):
    """The step with only the tests that failed, and their names; None where its log does not name each of them."""
    argv = step.argv
    text = log_of(step.name).read_text(errors="replace")
    if argv[:2] == ["meson", "test"]:
        found = tests = sorted(set(UNITS.findall(text)))
        argv = [*argv[:6], "--num-processes", "1", "--logbase", "again", *tests]
    elif len(argv) > 2 and "tests/real/" in argv[1]:
        found = NAMED.findall(text)
        if "on_cluster" in argv[1]:
            found = [(test, file) for test, file in found if file]
            argv = [*argv[:3], *(a for a in argv[3:] if any(a.endswith(file) for _, file in found)), "--"]
        tests = sorted({test for test, _ in found})
        argv = [*argv, *tests]
    else:
        return None
    return (Step(f"{step.name}, again", argv, env=step.env), tests) if found and len(found) == number else None


def run_again(failed, passed_alone):
    """How many tests failed only once, of (step, number of failures) each; they are named in the list."""
    if sum(number for _, number in failed) > AGAIN_MAX:
        return 0
    once = 0
    for step, number in failed:
        alone = failed_alone(step, number)
        if not alone:
            continue
        passed, lost, _ = run(alone[0]).counts
        if passed >= number and not lost:
            once += number
            passed_alone.append(f"{step.name}: {' '.join(alone[1])}")
            print(f"failed once, passed alone: {passed_alone[-1]}", flush=True)
    return once


def failure_lines(lines):
    """The lines that name a failed test, and the end of the log, which may tell why."""
    end = max(0, len(lines) - 60)
    named = [line for line in lines[:end] if FAILURE.match(line)]
    return ["       " + line for line in named[:40] + lines[end:]]


def closing_lines(text, failed, skipped):
    """Few lines for the end of it all, where a reader of a long log looks first: which tests, and the last words."""
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if FAILURE.match(line)][:CLOSING] + ["…", *lines[-CLOSING:]] if failed else []
    return told + [line for line in lines if skipped and SKIPPED.match(line)][:CLOSING]


def build_environment(name):
    """What users get is linked as they would."""
    return compiler.environment(BUILDS[name].compiler, own_linker=name != "release")


def build_step(name, targets):
    """The step that makes the targets of one build; the work is done by this file, in a process of its own."""
    argv = [sys.executable, str(Path(__file__)), "--build", name, *sorted(targets)]
    return Step(BUILDS[name].title, argv, seconds=90, load=1.5, env=build_environment(name), makes=name)


def make(name, targets):
    """What a build step runs."""
    where, env = OUT / name, build_environment(name)
    compiler.set_up(where, list(BUILDS[name].options), env)
    wanted = [t for t in targets if t not in (OBJECTS, LEFT_OUT)]
    if OBJECTS in targets:
        wanted += [c["output"] for c in json.loads((where / "compile_commands.json").read_text())]
    subprocess.run(["ninja", "-C", str(where), *wanted], env={**os.environ, **env}, check=True)
    if LEFT_OUT in targets:
        subprocess.run(python(ROOT / "tests/check/left_out.py", where), check=True)


class Schedule:
    """Which step is next: builds in the order of BUILDS, one at a time, as they use all cores; else the longest whose builds are
    there and whose load fits beside what runs. What depends on a build that failed is never begun."""

    def __init__(self, builds, chosen, expected):
        self.changed = threading.Condition()
        self.builds = list(builds.items())
        self.steps = sorted(chosen, key=lambda step: -expected(step))
        self.made, self.broken, self.is_building = set(), set(), False
        self.running, self.outcomes = [], []

    def take(self, own_track):
        """The next for this track, None: no more. Waits where one may become ready, or fit."""
        with self.changed:
            while not children.is_over:
                found = self._next(own_track)
                if found:
                    self.running.append(found)
                if found or not self._may_come(own_track):
                    return found
                self.changed.wait()
        return None

    def _mine(self, own_track):
        return [s for s in self.steps if s.own_track == own_track and not set(s.builds) & self.broken]

    def _next(self, own_track):
        if not own_track and self.builds and not self.is_building:
            self.is_building = True
            return build_step(*self.builds.pop(0))
        for step in self._mine(own_track):
            if set(step.builds) <= self.made and (own_track or self._fits(step)):
                self.steps.remove(step)
                return step
        return None

    def _fits(self, step):
        beside = [s for s in self.running if not s.own_track]
        return len(beside) < LEAST or len(beside) < MOST and sum(s.load for s in self.running) + step.load <= CORES

    def _may_come(self, own_track):
        return bool(self._mine(own_track)) or not own_track and bool(self.builds)

    def work(self, own_track):
        while (step := self.take(own_track)):
            outcome = run(step)
            with self.changed:
                self.running.remove(step)
                if step.makes:
                    (self.broken if outcome.counts[1] else self.made).add(step.makes)
                    self.is_building = False
                self.outcomes.append(outcome)
                self.changed.notify_all()

    def run(self):
        tracks = [False] * MOST + [True] * any(s.own_track for s in self.steps)
        with concurrent.futures.ThreadPoolExecutor(len(tracks)) as pool:
            list(pool.map(self.work, tracks))
        for step in self.steps:
            print(f"FAILED {step.name}: not begun{' for want of a build' * bool(set(step.builds) & self.broken)}", flush=True)
        return self.outcomes + [Outcome(step, (0, 1, 0), 0, 0, []) for step in self.steps]


def read_times():
    try:
        return json.loads(TIMES.read_text())
    except (OSError, ValueError):
        return {}


def keep_times(outcomes):
    """For the order of the next run. A name is of this kind of run: with --all a step does more."""
    kept = read_times() | {key_of(o.step): round(o.seconds) for o in outcomes if not o.counts[1]}
    TIMES.parent.mkdir(parents=True, exist_ok=True)
    TIMES.with_suffix(".new").write_text(json.dumps(kept, indent=0, sort_keys=True))
    TIMES.with_suffix(".new").replace(TIMES)


def key_of(step):
    return f"{step.name}, all" if step.env.get("DLRUN_TESTS") == "all" else step.name


def needed(chosen):
    """Targets by build, in the order of BUILDS."""
    found = {name: set() for name in BUILDS}
    for step in chosen:
        for name, targets in step.builds.items():
            found[name] |= set(targets)
    return {name: targets for name, targets in found.items() if targets}


def get_tools(chosen):
    """Programs that the steps need and whose first build takes minutes (Kubernetes: 10). Tests that miss one say so."""
    for name in dict.fromkeys(tool for step in chosen for tool in step.tools):
        done = subprocess.run(python(ROOT / "tests/real/gotools.py", name), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"no {name}: tests that need it say so", flush=True)
        elif name == "crane":
            os.environ["CRANE"] = done.stdout.strip()


def machine_cpu_s():
    """Seconds of CPU that the machine has computed since its start; 0 where the kernel does not tell."""
    try:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    except OSError:
        return 0
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def show_times(outcomes, machine_s):
    """Of a step: what it and its descendants have computed, without those that outlived their parents."""
    print("\nseconds  of CPU  step")
    for outcome in sorted(outcomes, key=lambda o: -o.seconds):
        print(f"{outcome.seconds:7.0f} {outcome.cpu_s:7.0f}  {outcome.step.name}")
    of_steps = sum(outcome.cpu_s for outcome in outcomes)
    print(f"        {of_steps:7.0f}  of all steps" + f"; of the machine meanwhile {machine_s:.0f}" * bool(machine_s))
    tests = [test for o in outcomes for test in o.tests]
    for at, title in ((0, "the slowest tests"), (1, "the tests with the most CPU")):
        rows = sorted((t for t in tests if t[at] is not None), key=lambda t: -t[at])[:SLOWEST]
        print(f"\n{title}" * bool(rows))
        for seconds, cpu_s, name in rows:
            print(f"{seconds:7.1f} {'' if cpu_s is None else f'{cpu_s:.1f}':>7}  {name}")


def close(outcomes, once, passed_alone):
    passed, failed, skipped = (sum(column) for column in zip(*(o.counts for o in outcomes)))
    for outcome in outcomes:
        if outcome.told:
            print("\n".join([f"\n{outcome.step.name}:", *(f"    {line[:200]}" for line in outcome.told)]))
    if once:
        print("\n".join([f"\n{once} failed once and passed when run again, alone:", *(f"    {names}" for names in passed_alone)]))
    print(f"\n{passed + once} passed, {failed - once} failed, {skipped} skipped", flush=True)
    return 1 if failed - once else 0


def show_list(chosen, expected):
    for step in chosen:
        print(f"{expected(step):5} s  {step.name:36} {' '.join(sorted(step.builds))}")


def arguments():
    parser = argparse.ArgumentParser(prog="tests/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-install", action="store_true", help="install nothing")
    parser.add_argument("--all", action="store_true", help="everything, everywhere")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("name", nargs="*", help="only the steps whose names contain it")
    return parser.parse_args()


def main():
    args = arguments()
    if args.build:
        return make(args.build, args.name)
    chosen = [s for s in steps(args.all) if not args.name or any(n in s.name for n in args.name)]
    if not chosen:
        sys.exit(f"no step is called so; tests/run --list{' --all' if args.all else ''} prints them")
    if args.all:
        for step in chosen:
            step.env = {**step.env, "DLRUN_TESTS": "all"}
    times = read_times()

    def expected(step):
        return times.get(key_of(step), step.seconds)
    if args.list:
        return show_list(chosen, expected)
    if not args.all:
        here = {step.name for step in steps(False)}
        left = [s.name for s in [*steps(True), *(Step(f"real cluster: {name}", []) for name in CLUSTER_ALL)] if s.name not in here and (not args.name or any(n in s.name for n in args.name))]
        print(f"left to --all: {', '.join(left)}" if left else "", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: children.end_all())
    begin, began_machine = time.monotonic(), machine_cpu_s()
    get_tools(chosen)
    outcomes = Schedule(needed(chosen), chosen, expected).run()
    passed_alone = []
    once = 0 if children.is_over else run_again([(o.step, o.counts[1]) for o in outcomes if o.counts[1]], passed_alone)
    keep_times(outcomes)
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    show_times(outcomes, machine_cpu_s() - began_machine)
    return close(outcomes, once, passed_alone)


if __name__ == "__main__":
    sys.exit(main())
