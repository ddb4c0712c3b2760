#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test files one after the other on one cluster, which is started for them and ends with them.

    tests/real/on_cluster.py DLRUN FILE… [-- NAME…]      NAME: only the tests whose names contain it

Closes with the names of the tests that failed and the sum of the verdicts.
"""

import os
import re
import signal
import subprocess
import sys
import time

from cluster import STATE, Cluster
from harness import Missing

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
FAILED = re.compile(r"^failed: .*$", re.M)


def run(dlrun, file, names, cluster, failures):
    """(passed, failed, skipped) of one file; a line for each failure is added."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, file, dlrun, *names], env={**os.environ, STATE: f"{cluster.dir}/state.json"}, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = COUNTS.findall(done.stdout)
    counts = [int(n) for n in (found or [(0, 0, 0)])[-1]]
    # A file without a test of these names says so by its exit status.
    if done.returncode and not counts[1] and not (names and found):
        counts[1] = 1
    print(f"{os.path.basename(file)}: {time.monotonic() - begin:.0f} s\n{done.stdout}", flush=True)
    of_file = [f"{line} [{os.path.basename(file)}]" for line in FAILED.findall(done.stdout)]
    if counts[1] > len(of_file):
        of_file.append(f"failed: {os.path.basename(file)} ends with {done.returncode}")
    broken = cluster.broken()
    if broken:
        of_file.append(f"failed: {os.path.basename(file)} leaves a cluster without {', '.join(broken)}")
        print(of_file[-1], flush=True)
        counts[1] += 1
        for part in broken:
            cluster.start(part)
    failures += of_file
    return counts


def main():
    words = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The cluster ends with this.
    at = words.index("--") if "--" in words else len(words)
    dlrun, files, names = words[0], words[1:at], words[at + 1:]
    failures = []
    try:
        with Cluster(nodes=2) as cluster:
            counts = [run(dlrun, file, names, cluster, failures) for file in files]
            print(f"{cluster.memory() >> 20} MiB of memory at the end")
    except Missing as reason:
        print(f"{'failed' if os.environ.get('CI') else 'skipped'}: {reason}")
        counts = [[0, 1, 0] if os.environ.get("CI") else [0, 0, 1]]
    passed, failed, skipped = (sum(column) for column in zip(*counts))
    for line in failures:
        print(line)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
