#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test files on two clusters, which are started for them and end with them: each takes the next file that is left, of which
those that took longest the last time are first.

    tests/real/on_cluster.py DLRUN FILE… [-- NAME…]      NAME: only the tests whose names contain it

Closes with the names of the tests that failed and the sum of the verdicts.
"""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback

from cluster import STATE, Cluster
from harness import Missing, cpu_s
from pypi import CACHE

CLUSTERS = 2
# Seconds that a file took, beside what the tests have built; a new one comes first.
TIMES = CACHE / "cluster-times.json"
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
FAILED = re.compile(r"^failed: .*$", re.M)


class Turns:
    """The files that are left, and what came of those that were run; more than one cluster takes from it."""

    def __init__(self, dlrun, files, names):
        self.dlrun, self.files, self.names = dlrun, list(files), names
        self.lock, self.children = threading.Lock(), set()
        self.counts, self.failures, self.missing = [], [], set()
        self.seconds = read_times()
        self.files.sort(key=lambda file: -self.seconds.get(os.path.basename(file), 1000))

    def next(self):
        with self.lock:
            return self.files.pop(0) if self.files else None

    def end(self, *_):
        """No file begins after that, and those under way say where they stand."""
        self.files.clear()
        for child in list(self.children):
            child.terminate()

    def work(self, _):
        try:
            with Cluster(nodes=2) as cluster:
                while file := self.next():
                    self.run(file, cluster)
                print(f"a cluster: {cluster.cpu_s():.0f} s of CPU, its pods included; {cluster.memory() >> 20} MiB of memory at the end", flush=True)
        except Missing as reason:
            self.missing.add(str(reason))
        except Exception:  # The other one goes on with what is left.
            with self.lock:
                print(traceback.format_exc(), flush=True)
                self.counts.append([0, 1, 0])
                self.failures.append("failed: a cluster")

    def run(self, file, cluster):
        begin, began_cpu, name = time.monotonic(), cpu_s(), os.path.basename(file)
        child = subprocess.Popen([sys.executable, file, self.dlrun, *self.names], env={**os.environ, STATE: f"{cluster.dir}/state.json"},
                                 text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.children.add(child)
        said = child.communicate()[0]
        self.children.discard(child)
        found = COUNTS.findall(said)
        counts = [int(n) for n in (found or [(0, 0, 0)])[-1]]
        # A file without a test of these names says so by its exit status.
        if child.returncode and not counts[1] and not (self.names and found):
            counts[1] = 1
        failures = [f"{line} [{name}]" for line in FAILED.findall(said)]
        if counts[1] > len(failures):
            failures.append(f"failed: {name} ends with {child.returncode}")
        broken = cluster.broken()
        if broken:
            failures.append(f"failed: {name} leaves a cluster without {', '.join(broken)}")
            said += failures[-1] + "\n"
            counts[1] += 1
            for part in broken:
                cluster.start(part)
        with self.lock:
            seconds, computed = time.monotonic() - begin, cpu_s() - began_cpu
            print(f"{name}: {seconds:.0f} s, {computed:.0f} s of CPU\n{said}", flush=True)
            if not self.names:
                self.seconds[name] = round(seconds)
            self.counts.append(counts)
            self.failures += failures


def read_times():
    try:
        return json.loads(TIMES.read_text())
    except (OSError, ValueError):
        return {}


def main():
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    turns = Turns(words[0], words[1:at], words[at + 1:])
    signal.signal(signal.SIGTERM, turns.end)
    with concurrent.futures.ThreadPoolExecutor(CLUSTERS) as pool:
        list(pool.map(turns.work, range(min(CLUSTERS, len(turns.files)))))
    if not turns.names:
        TIMES.with_suffix(".new").write_text(json.dumps(turns.seconds, indent=0, sort_keys=True))
        TIMES.with_suffix(".new").replace(TIMES)
    for reason in turns.missing:
        print(f"{'failed' if os.environ.get('CI') else 'skipped'}: {reason}")
        turns.counts.append([0, 1, 0] if os.environ.get("CI") else [0, 0, 1])
    passed, failed, skipped = (sum(column) for column in zip(*turns.counts))
    for line in turns.failures:
        print(line)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
