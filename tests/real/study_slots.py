#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members of a study on this machine, of which only so many run at a time: their order, ends, deaths and failures."""

import os
import random
import signal
import statistics
import subprocess

from harness import *  # noqa: F403


class Study:
    """A member says "b I TIME" when it begins, waits for go.I, and says "e I TIME"."""

    def __init__(self, w, count, *options, end=":", parallel=3):
        self.w, self.base = w, w.dir
        self.log = w.dir / "study"
        self.log.write_text("")
        w.repo()
        line = f"echo b {{i}} $(date +%s%N) >> {self.log}; until test -e {self.base}/go.{{i}}; do sleep 0.02; done; " \
               f"echo e {{i}} $(date +%s%N) >> {self.log}; {end}"
        self.id = w.ok("sweep", "-d", "--over", f"i=0..{count - 1}", "--parallel", str(parallel), *options, "--", "sh", "-c", line).out.strip()

    def run(self, i):
        return member_id(self.id, i)

    def go(self, *members):
        for i in members:
            (self.base / f"go.{i}").write_text("")

    def lines(self, kind):
        return [line.split()[1:] for line in self.log.read_text().splitlines() if line[0] == kind]

    def begun(self):
        return [int(i) for i, _ in self.lines("b")]

    def begins(self, *members):
        wait_for(lambda: set(members) <= set(self.begun()), f"{members} begin")

    def state(self, i):
        return self.w.show(self.run(i))["state"]

    def is_queued(self, i):
        wait_for(lambda: self.state(i) == "queued", f"{i} is queued")

    def ended(self, i):
        self.w.run("wait", self.run(i))
        return self.w.show(self.run(i))

    def attempt(self, i, n=1):
        return self.w.state / "runs" / self.run(i) / "attempts" / str(n)

    def process(self, i, which):
        return json.loads((self.attempt(i) / "state.json").read_text())[which]["pid"]

    def kill(self, i, which="supervisor"):
        pid = self.process(i, which)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists() or b") Z" in Path(f"/proc/{pid}/stat").read_bytes(), "it is gone")


def test_limit_and_order(w):
    """Nobody looks on while sixty run, of which three may at a time."""
    study = Study(w, 60)
    study.go(*range(60))
    wait_for(lambda: len(study.lines("e")) == 60, "all of them", 120)
    most = most_running(study.log.read_text().splitlines())
    begun = study.begun()
    assert sorted(begun) == list(range(60)) and 2 <= most <= 3, (most, begun)
    # Nobody overtakes: whoever begins finds all before it ended, but for the two that have the other places. Of three that
    # have a place each may be the last to say so.
    over = set()
    for kind, i in ((line.split()[0], int(line.split()[1])) for line in study.log.read_text().splitlines()):
        if kind == "e":
            over.add(i)
        else:
            assert len(set(range(i)) - over) <= 2, (i, sorted(over), begun)
    ends, begins = (sorted(int(t) for _, t in study.lines(kind)) for kind in "eb")
    print(f"end to next begin: {statistics.median((b - e) / 1e6 for e, b in zip(ends, begins[3:])):.0f} ms")
    for i in range(60):
        assert study.ended(i)["state"] == "succeeded", i


def test_words_and_variables(w):
    study = Study(w, 6, end="echo $DLRUN_STUDY $DLRUN_STUDY_INDEX $DLRUN_STUDY_SIZE")
    study.begins(0, 1, 2)
    study.is_queued(3)
    wait_for(lambda: "2 before it" in w.ok("why", study.run(5)).out, "its place in the line")
    assert f"waits for a place in study {study.id}: 3 run, 2 before it" in w.ok("why", study.run(5)).out
    assert f"waits for a place in study {study.id}: 3 run" in w.ok("why", study.run(3)).out
    doc = w.show(study.run(5))
    assert doc["attempts"][0].get("started") is None and doc["state"] == "queued", doc
    study.go(*range(6))
    assert study.ended(4)["state"] == "succeeded"
    assert w.ok("logs", study.run(4)).out == f"{study.id} 4 6\n"


def test_cancel(w):
    study = Study(w, 8, parallel=1)
    study.begins(0)
    for i in (1, 4):
        study.is_queued(i)
        w.ok("cancel", study.run(i))
        end = study.ended(i)
        assert end["state"] == "cancelled" and end["attempts"][0].get("started") is None, end
    study.go(*range(8))
    for i in (7, 6, 5, 3, 2):
        assert study.ended(i)["state"] == "succeeded"
    assert study.begun() == [0, 2, 3, 5, 6, 7], study.begun()


def test_deaths(w):
    """Of a supervisor that waits, of one beside its program, and of a program."""
    study = Study(w, 6, parallel=1)
    study.begins(0)
    study.is_queued(1)
    study.is_queued(2)
    study.kill(1)
    assert study.ended(1)["state"] == "lost"
    program = study.process(0, "program")
    study.kill(0)
    # A look at all of them while the program lives: nobody has begun.
    assert [study.state(i) for i in range(6)] == ["running", "lost", "queued", "queued", "queued", "queued"]
    assert study.begun() == [0]
    os.kill(program, signal.SIGKILL)
    study.begins(2)
    study.kill(2, "program")
    study.begins(3)
    study.go(*range(6))
    assert [study.ended(i)["state"] for i in (0, 2, 3, 4, 5)] == ["lost", "failed", "succeeded", "succeeded", "succeeded"]
    assert study.begun() == [0, 2, 3, 4, 5], study.begun()


def test_retries(w):
    study = Study(w, 3, "--retries", "2", parallel=1, end=f"test $DLRUN_ATTEMPT = 3")
    study.go(0, 1, 2)
    for i in range(3):
        doc = study.ended(i)
        assert doc["state"] == "succeeded" and len(doc["attempts"]) == 3, doc
    assert study.begun() == [0, 0, 0, 1, 1, 1, 2, 2, 2], study.begun()


# A program holds one of three locks as long as it lives, and says so when there is none.
CROWD = """for k in 0 1 2 none; do exec 8>>{base}/lock.$k; flock -n 8 && break; done
echo {{i}} $k >>{base}/crowd; n=0; until [ $((n += 1)) -gt 10 ]; do sleep 0.02; done"""


def test_deaths_of_many(w):
    """Supervisors and programs are killed at any moment: never a fourth program, and never a slot that stays taken."""
    needs("flock")
    w.repo()
    chance, count = random.Random(11), 40
    told = w.ok("sweep", "-d", "--over", f"i=0..{count - 1}", "--parallel", "3", "--", "sh", "-c", CROWD.format(base=w.dir)).out.strip()
    runs = [member_id(told, i) for i in range(count)]
    killed, left = 0, runs
    while left:
        for run in left:
            try:
                state = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())
                pid = state[chance.choice(["supervisor", "program"])]["pid"]
                if pid and chance.random() < (0.3 if state["state"] == "running" else 0.02):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            except (OSError, ValueError):
                pass
        left = [doc["id"] for doc in w.runs() if doc["state"] not in ("succeeded", "failed", "lost")]
    crowd = [line.split() for line in (w.dir / "crowd").read_text().splitlines()]
    assert killed and not [line for line in crowd if line[1] == "none"], (killed, crowd)
    slots = list((w.state / "studies" / told / "slots").glob("slot.*"))
    assert len(slots) == 3
    wait_for(lambda: all(subprocess.run(["flock", "-n", slot, "true"]).returncode == 0 for slot in slots), "all slots are free")
    print(f"{killed} killed, {len(crowd)} of {count} programs began")


def test_fail_fast(w):
    study = Study(w, 8, "--fail-fast", parallel=2, end="test {i} != 0")
    study.begins(0, 1)
    study.is_queued(7)
    study.go(0)
    for i in range(2, 8):
        doc = study.ended(i)
        assert doc["state"] == "cancelled" and f"cancelled: {study.run(0)} failed (--fail-fast)" in json.dumps(doc), doc
    assert study.state(1) == "running"
    study.go(*range(8))
    assert study.ended(1)["state"] == "succeeded" and study.begun() in ([0, 1], [1, 0])
    w.ok("restart", study.run(5))
    assert study.ended(5)["state"] == "succeeded"


if __name__ == "__main__":
    main()
