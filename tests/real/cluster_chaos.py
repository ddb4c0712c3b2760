#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of a cluster are killed (SIGKILL) under `submit -f` of a program that prints numbered lines: each line comes once, or the gap
is told, and the record has what the follower has seen. DLRUN_CHAOS: how often each part is killed (1)."""

import contextlib
import time

from cluster_logs import judge
from harness import *  # noqa: F403
from kubesite import site

TIMES = int(os.environ.get("DLRUN_CHAOS", "1"))
PARTS = ("kubelet", "containerd", "etcd", "apiserver")
BACK_S = 60
END_S = 90
WRITER = """
import os, time
n = 0
while not os.path.exists("/stop/" + os.environ["PART"]):
    print(n, time.time_ns() // 1000000, flush=True)
    n += 1
    time.sleep(0.02)
print("END", flush=True)
"""


class Follower:
    """`submit -f`, its output and what it says in files."""

    def __init__(self, w, part):
        self.out, self.err = w.dir / f"{part}.out", w.dir / f"{part}.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([w.dlrun, "submit", "-f", "--name", part, "-e", f"PART={part}", "--", "python3", "a.py"],
                                            cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def last_ms(self):
        """When the last line that has come was written; 0: none."""
        whole = self.out.read_text().rpartition("\n")[0].rpartition("\n")[2].split()
        return int(whole[1]) if len(whole) == 2 else 0

    def wait_newer(self, ms, what):
        def is_newer():
            assert self.process.poll() is None, f"it has ended: {self.err.read_text()[-2000:]}"
            return self.last_ms() > ms
        try:
            wait_for(is_newer, what, BACK_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.err.read_text()[-2000:]}") from None

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


def part_on(s, part):
    """Its name on the node that has the run's pod."""
    node = s.cluster.wait(lambda: [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["status"]["phase"] == "Running"],
                          "the pod")[-1]["spec"]["nodeName"]
    return node.replace("node", part)


def chaos(w, s, there, part):
    """One row of the table."""
    with contextlib.ExitStack() as ends:
        follower = Follower(w, part)
        ends.callback(follower.end)
        follower.wait_newer(0, f"the first line under {part}")
        name = part_on(s, part) if part in ("kubelet", "containerd") else part
        longest = 0
        for turn in range(TIMES):
            killed = time.time()
            s.cluster.restart(name)
            back_ms = time.time_ns() // 1000000
            follower.wait_newer(back_ms, f"a line after {part} was killed for the {turn + 1}. time")
            longest = max(longest, time.time() - killed)
        if part in ("etcd", "apiserver"):
            s.cluster.settle()
        (there / part).touch()
        rc = follower.process.wait(END_S)
    out, err = follower.out.read_text(), follower.err.read_text()
    assert rc == 0 and out.endswith("END\n"), (rc, out[-200:], err)
    lines = int(out.splitlines()[-2].split()[0]) + 1
    got, missing, holes = judge(out, lines)
    kept = w.ok("logs", w.runs()[0]["id"])
    assert kept.out == out, (len(kept.out), len(out), kept.err)
    return f"{part:<11} {TIMES:>5} {lines:>6} {got:>6} {missing:>7} {holes:>5} {longest:>9.1f} s"


def test_each_line_once_or_its_gap_is_told(w):
    with site(w, files={"a.py": WRITER}, alone=True, volumes=[{"pvc": "stop", "path": "/stop"}]) as s:
        there = s.cluster.volume(s.namespace, "stop")
        rows = [chaos(w, s, there, part) for part in PARTS]
    print("part        kills  lines   came missing holes   longest silence", *rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
