#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What was seen of a log stays in the record, though its node rotates it away, its Job is deleted, its follower was killed."""

import contextlib
import json
import re

from harness import *  # noqa: F403
from kubesite import site

# More than a node keeps of it, slowly enough to be followed.
LINES = 60_000
WRITER = f"""
import os, sys, time
stop = int(os.environ.get("STOP", "0"))
for n in range({LINES}):
    sys.stdout.write(f"{{n}} {{'x' * 60}}\\n")
    if n % 500 == 499:
        sys.stdout.flush()
        time.sleep(0.02)
    if stop and n == stop:
        sys.stdout.flush()
        while not os.path.exists("/stop/go"):
            time.sleep(0.05)
print("END", flush=True)
"""
ALL = "".join(f"{n} {'x' * 60}\n" for n in range(LINES)) + "END\n"
KEPT_S = 60


@contextlib.contextmanager
def small_logs(w, **more):
    """A site whose nodes keep little of a log."""
    with site(w, files={"a.py": WRITER}, alone=True, volumes=[{"pvc": "stop", "path": "/stop"}], **more) as s:
        s.stop = s.cluster.volume(s.namespace, "stop")
        for node in s.cluster.nodes:
            s.cluster.configure_kubelet(node, containerLogMaxSize="1Mi")
        try:
            yield s
        finally:
            for node in s.cluster.nodes:
                s.cluster.configure_kubelet(node, containerLogMaxSize="10Mi")


class Follower:
    def __init__(self, w, *words):
        self.out, self.err = w.dir / f"{len(list(w.dir.iterdir()))}.out", w.dir / f"{len(list(w.dir.iterdir()))}.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([w.dlrun, *words], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def wait_line(self, n):
        """A node that rotates the log away faster than it is followed leaves gaps, but not in front of a program that waits."""
        wait_for(lambda: f"\n{n} {'x' * 60}\n" in self.out.read_text(), f"line {n}", KEPT_S)

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(KEPT_S)


def whole(text, gaps=""):
    """Each line once, in order."""
    numbers = [int(line.split()[0]) for line in text.splitlines() if line != "END"]
    assert numbers == sorted(set(numbers)), "doubled or out of order"
    assert len(numbers) == LINES or gaps, f"{len(numbers)} of {LINES} without a word"
    return len(numbers)


def place_of(w, run):
    """The bytes of a log of one rank that a follower who is killed leaves in the record."""
    words = [word for file in (w.state / "runs" / run).rglob("places") for word in file.read_text().split()]
    return int(words[1]) if words else 0


def followed_to_its_end(w, s):
    follower = Follower(w, "submit", "-f", "--name", "seen", "--", "python3", "a.py")
    assert follower.process.wait(120) == 0, follower.err.read_text()
    seen, said = follower.out.read_text(), follower.err.read_text()
    n = whole(seen, "may be missing" in said)
    run = w.runs()[0]["id"]
    s.cluster.delete("Job", run, s.namespace, propagationPolicy="Background")
    kept = w.ok("logs", run)
    assert kept.out == seen, (len(kept.out), len(seen), kept.err)
    assert w.ok("logs", "--tail", "2", run).out == f"{LINES - 1} {'x' * 60}\nEND\n"
    return f"to its end, Job deleted: {n} seen, {whole(kept.out, kept.err)} kept"


def follower_killed(w, s):
    """Another one goes on where the one was that was killed, and has all of it."""
    first = Follower(w, "submit", "-f", "--name", "killed", "-e", "STOP=50000", "--", "python3", "a.py")
    first.wait_line(50_000)
    run = w.runs()[0]["id"]
    # Its places are written once a second.
    wait_for(lambda: place_of(w, run) >= first.out.stat().st_size, "the place of what was seen", KEPT_S)
    first.end()
    (s.stop / "go").touch()
    s.ended(run)
    kept = w.ok("logs", run)
    assert kept.out == ALL or "may be missing" in kept.err, (len(kept.out), kept.err)
    n = whole(kept.out, kept.err)
    # A node may rotate away what a busy machine has not followed yet: of what was seen nothing is lost.
    seen = first.out.read_text().splitlines(keepends=True)
    lost = set(seen) - set(kept.out.splitlines(keepends=True))
    assert not lost, (len(lost), min(lost), kept.err)
    (s.stop / "go").unlink()
    return f"killed at 50000: {n} kept, {kept.err.count('missing')} gaps told"


def job_deleted_by_others(w, s):
    """What was seen until then, and that the end is missing."""
    first = Follower(w, "submit", "-f", "--name", "gone", "-e", "STOP=50000", "--", "python3", "a.py")
    first.wait_line(50_000)
    first.end(signal.SIGINT)
    run = w.runs()[0]["id"]
    s.cluster.delete("Job", run, s.namespace, propagationPolicy="Background", gracePeriodSeconds="0")
    wait_for(lambda: not [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["metadata"]["name"].startswith(run)], "no pod", 60)
    s.ended(run)
    kept = w.ok("logs", run)
    seen = first.out.read_text()
    assert kept.out.startswith(seen[:seen.rindex("\n")]), (len(kept.out), len(seen))
    assert re.search(r"lines after \S+ may be missing", kept.err), kept.err
    told = w.ok("logs", "--json", run)
    assert re.search(r"warning: .*lines after \S+ may be missing", told.err), told.err
    assert any("may be missing" in text for text in json.loads(told.out.splitlines()[-1])["warnings"]), told.out[-2000:]
    return f"deleted at 50000: {whole(kept.out, kept.err)} kept, said: {kept.err.strip()}"


def test_what_was_seen_is_kept(w):
    with small_logs(w) as s:
        rows = [case(w, s) for case in (followed_to_its_end, follower_killed, job_deleted_by_others)]
    print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
