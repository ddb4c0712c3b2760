#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members of a study on a node, of which only so many run at once, in each shell that a node may have.

    tests/real/runner_slots.py - [NAME…]
"""

import random
import signal

from harness import *  # noqa: F403
from runner import RUNNER, Node, each_shell, end_of, is_gone

STUDY = "tiger-4k2x9"


class Study:
    """A member says "b I" when it begins, waits for go.I, and says "e I"."""

    def __init__(self, node, parallel=1, fail_fast=False):
        self.node, self.parallel, self.fail_fast = node, parallel, fail_fast
        self.dir = node.local / "studies" / STUDY
        self.base = node.w.dir
        self.log = self.base / "study"
        self.log.write_text("")

    @staticmethod
    def run(i):
        return member_id(STUDY, i)

    def submit(self, i, end=":", n=1, more="", **job):
        line = f"echo b {i} >> {self.log}; until test -e {self.base}/go.{i}; do sleep 0.05; done; echo e {i} >> {self.log}; {end}"
        study = f"j_study='{STUDY}'\nj_index={i}\nj_parallel={self.parallel}\nj_fail_fast={int(self.fail_fast)}\n"
        self.node.submit(self.run(i), "sh", "-c", line, n=n, more=study + more, **job)

    def go(self, i):
        (self.base / f"go.{i}").write_text("")

    def lines(self):
        return self.log.read_text().split("\n")[:-1]

    def begun(self):
        return [int(line[2:]) for line in self.lines() if line[0] == "b"]

    def begins(self, i):
        wait_for(lambda: i in self.begun(), f"{i} begins")

    def state(self, i, n=1):
        return self.node.state(self.run(i), n)

    def waits(self, i, why=None):
        return wait_for(lambda: (lambda s: s["state"] == "queued" and s["text"] == (why or s["text"]))(self.state(i)), f"{i} waits")

    def ends(self, i, n=1):
        return self.node.wait(self.run(i), n, 60)

    def kill(self, i, which="supervisor"):
        pid = int(self.state(i)[which].split(":")[0])
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_gone(pid), "it is gone")

    def held(self, k=0):
        return subprocess.run([needs("flock"), "-n", self.dir / f"slot.{k}", "true"]).returncode != 0


@each_shell
def each_limit_and_order(node):
    """The highest index comes first; each end lets the lowest one begin that waits."""
    study, count, limit = Study(node, 3), 12, 3
    for i in range(limit):
        study.submit(i)
        study.begins(i)
    for i in reversed(range(limit, count)):
        study.submit(i)
        study.waits(i)
    study.waits(3, f"waits for a place in study {STUDY}: 3 run")
    assert "watcher" not in study.state(5), "nobody looks after one that waits"
    assert sorted(study.begun()) == [0, 1, 2], study.lines()
    running, chance = [0, 1, 2], random.Random(4)
    for i in range(limit, count):
        last = running.pop(chance.randrange(len(running)))
        study.go(last)
        assert end_of(study.ends(last)) == ("succeeded", 0, 0, "Completed")
        study.begins(i)
        assert study.begun() == list(range(i + 1)), study.lines()
        running.append(i)
    for i in running:
        study.go(i)
    for i in running:
        study.ends(i)
    assert not list(study.dir.glob("wait.*")) and not any(study.held(k) for k in range(limit))


@each_shell
def each_limit_of_a_crowd(node):
    """Thirty members, of which three may run; nobody looks on."""
    study = Study(node, 3)
    for i in range(30):
        study.go(i)
    for i in range(30):
        study.submit(i)
    for i in range(30):
        assert end_of(study.ends(i)) == ("succeeded", 0, 0, "Completed"), i
    most = most_running(study.lines())
    assert sorted(study.begun()) == list(range(30)) and 1 <= most <= 3, (most, study.lines())


@each_shell
def each_words(node):
    study = Study(node)
    for i in range(4):
        study.submit(i)
        study.waits(i) if i else study.begins(0)
    study.waits(1, f"waits for a place in study {STUDY}: 1 runs")
    study.waits(3, f"waits for a place in study {STUDY}: 1 runs, 2 before it")
    study.go(0)
    study.begins(1)
    study.waits(2, f"waits for a place in study {STUDY}: 1 runs")
    assert study.state(1)["text"] == "" and study.state(1)["state"] == "running"


@each_shell
def each_cancel(node):
    """Of the first of the line and of one in the middle."""
    study = Study(node)
    for i in range(5):
        study.submit(i)
        study.waits(i) if i else study.begins(0)
    for i in (1, 3):
        node.ask(f"cancel {study.run(i)} 1")
        end = study.ends(i)
        assert end_of(end) == ("cancelled", 143, 0, "Cancelled") and "started" not in end, end
        assert end["text"] == "it was cancelled before it had begun", end
    study.go(0)
    study.begins(2)
    study.go(2)
    study.begins(4)
    assert study.lines() == ["b 0", "e 0", "b 2", "e 2", "b 4"], study.lines()


@each_shell
def each_time_limit(node):
    """What waits does not use up its time."""
    study = Study(node)
    study.submit(0)
    study.begins(0)
    study.submit(1, timeout_ms=1500)
    study.waits(1)
    late = running_time() + 2
    wait_for(lambda: running_time() > late, "its limit is over")
    study.waits(1)
    study.go(1)
    study.go(0)
    assert end_of(study.ends(1)) == ("succeeded", 0, 0, "Completed")


@each_shell
def each_retry(node):
    """It keeps its slot: one before it that waits does not come in between."""
    study = Study(node)
    study.submit(1, f'test "$DLRUN_ATTEMPT" = 3 || {{ rm {node.w.dir}/go.1; exit 1; }}', retries=5)
    study.begins(1)
    study.submit(0)
    study.waits(0)
    for n in (2, 3):
        study.go(1)
        wait_for(lambda: len(study.begun()) == n, f"attempt {n}")
        assert study.ends(1, n - 1)["state"] == "failed"
        study.waits(0)
        assert study.held()
    study.go(1)
    study.begins(0)
    assert study.lines() == ["b 1", "e 1"] * 3 + ["b 0"], study.lines()


@each_shell
def each_death(node):
    """A program has its slot until it is gone, one that waits its place until its supervisor is."""
    study = Study(node)
    study.submit(0)
    study.begins(0)
    for i in range(1, 5):
        study.submit(i)
        study.waits(i)
    for i in (1, 3):
        study.kill(i)
        assert end_of(study.ends(i)) == ("failed", 125, 0, "Interrupted"), study.state(i)
    node.running(study.run(0))
    study.kill(0)
    study.submit(5)
    study.waits(5)
    assert study.held() and study.state(0)["state"] == "running" and study.begun() == [0], study.lines()
    os.kill(int(study.state(0)["program"].split(":")[0]), signal.SIGKILL)
    study.begins(2)
    assert study.ends(0)["state"] == "lost"
    study.go(2)
    study.begins(4)
    assert study.begun() == [0, 2, 4], study.lines()


@each_shell
def each_death_with_a_time_limit(node):
    """What sleeps until then holds no slot."""
    study = Study(node)
    study.submit(0, timeout_ms=600000)
    study.begins(0)
    node.running(study.run(0))
    study.submit(1)
    study.waits(1)
    program = int(study.state(0)["program"].split(":")[0])
    study.kill(0)
    os.kill(program, signal.SIGKILL)
    study.begins(1)


# A program holds one of three locks as long as it lives, and says so when there is none.
CROWD = """for k in 0 1 2 none; do exec 8>>{base}/lock.$k; flock -n 8 && break; done
echo {i} $k >>{base}/crowd; n=0; until [ $((n += 1)) -gt 30 ]; do sleep 0.02; done"""


@each_shell
def each_death_of_many(node):
    """Supervisors and programs are killed at any moment: never a fourth program, and never a slot that stays taken."""
    study, chance, left, killed = Study(node, 3), random.Random(5), set(range(14)), 0
    study_lines = f"j_study='{STUDY}'\nj_parallel=3\nj_fail_fast=0\n"
    for i in left:
        node.submit(study.run(i), "sh", "-c", CROWD.format(base=study.base, i=i), more=study_lines + f"j_index={i}\n")
    while left:
        for line in node.ask("state " + " ".join(f"{study.run(i)}/1" for i in sorted(left))):
            _, name, state, *words = line.split(" ")
            facts = dict(word.split("=", 1) for word in words)
            if "code" in facts:
                left.discard(int(name.split("-")[1]))
                continue
            pid = facts.get(chance.choice(["supervisor", "program"]), "0:0").split(":")[0]
            if int(pid) and chance.random() < (0.3 if state == "running" else 0.05):
                try:
                    os.kill(int(pid), signal.SIGKILL)
                    killed += 1
                except OSError:
                    pass
    crowd = [line.split() for line in (study.base / "crowd").read_text().splitlines()]
    assert killed and not [line for line in crowd if line[1] == "none"], (killed, crowd)
    wait_for(lambda: not any(study.held(k) for k in range(3)), "all slots are free")


@each_shell
def each_reboot(node):
    """What a machine that stopped has left: files that nobody has locked."""
    study = Study(node)
    study.dir.mkdir(parents=True)
    for name in ("slot.0", "wait.000000.001", "wait.000001.001", "wait.x", ".new-1"):
        (study.dir / name).write_text("")
    study.submit(2)
    study.begins(2)
    assert not (study.dir / "wait.000000.001").exists()


@each_shell
def each_line_that_is_removed(node):
    study = Study(node)
    study.submit(0)
    study.begins(0)
    study.submit(1)
    study.waits(1)
    (study.dir / "wait.000001.001").unlink()
    wait_for((study.dir / "wait.000001.001").exists, "it stands in line again")
    study.go(0)
    study.begins(1)


@each_shell
def each_gpu(node):
    """A slot first, then a GPU: the others wait for a slot, not for GPUs."""
    node.runner.write_bytes(RUNNER.replace(b"dgpu_dir=''", f"dgpu_dir={node.w.dir}/gpus".encode(), 1))
    node.w.write("smi/nvidia-smi", "#!/bin/sh\ncase $* in *query-gpu*) echo '0, GPU-1, 00000000:01:00.0, 1, x' ;; esac\n", 0o755, base=node.w.dir)
    study = Study(node, 2)
    path = {"PATH": f"{node.w.dir}/smi:{node.env['PATH']}"}
    for i in range(3):
        study.submit(i, more="j_gpus=1\n", env=path)
        if i == 0:
            study.begins(0)
    wait_for(lambda: "GPU 0 is in use by" in study.state(1).get("text", ""), "one waits for a GPU")
    study.waits(2, f"waits for a place in study {STUDY}: 2 run")
    for i in range(3):
        study.go(i)
    for i in range(3):
        assert end_of(study.ends(i)) == ("succeeded", 0, 0, "Completed"), i


@each_shell
def each_fail_fast(node):
    study = Study(node, 2, fail_fast=True)
    study.submit(0, "exit 3")
    study.begins(0)
    study.submit(1)
    study.begins(1)
    for i in range(2, 5):
        study.submit(i)
        study.waits(i)
    study.go(0)
    assert end_of(study.ends(0)) == ("failed", 3, 0, "Error")
    study.submit(5)
    for i in range(2, 6):
        end = study.ends(i)
        assert end_of(end) == ("cancelled", 143, 0, "Cancelled") and "started" not in end, end
        assert end["text"] == "cancelled: tiger-0-4k2x9 failed (--fail-fast)", end
    assert study.state(1)["state"] == "running"
    study.go(1)
    assert end_of(study.ends(1)) == ("succeeded", 0, 0, "Completed")
    # One that is restarted begins, and so do others when that one is.
    failed = (study.dir / "failed").stat().st_mtime
    wait_for(lambda: time.time() > int(failed) + 1, "another second, which is what some shells tell times by")
    study.go(2)
    study.submit(2, n=2)
    assert end_of(study.ends(2, 2)) == ("succeeded", 0, 0, "Completed")
    study.submit(0, n=2)
    assert end_of(study.ends(0, 2)) == ("succeeded", 0, 0, "Completed")
    study.go(6)
    study.submit(6)
    assert end_of(study.ends(6)) == ("succeeded", 0, 0, "Completed")
    assert study.begun() == [0, 1, 2, 0, 6], study.lines()


@each_shell
def each_failure_that_is_repeated(node):
    """It is none yet; a start that fails is one."""
    study = Study(node, fail_fast=True)
    study.submit(0, f"rm {node.w.dir}/go.0; exit 3", retries=1)
    study.begins(0)
    study.submit(1)
    study.waits(1)
    node.ask(f"cancel {study.run(1)} 1")
    study.submit(2)
    study.waits(2)
    study.go(0)
    wait_for(lambda: len(study.begun()) == 2, "another attempt")
    study.waits(2)
    study.go(0)
    assert study.ends(2)["state"] == "cancelled" and study.ends(0, 2)["state"] == "failed"
    other = Study(node, 0, fail_fast=True)
    other.go(3)
    node.ask(f"forget {study.run(0)} 2 all")
    other.submit(3, cwd="x/y")
    assert end_of(other.ends(3)) == ("failed", 125, 0, "StartFailed")
    other.submit(4)
    assert other.ends(4)["text"] == "cancelled: tiger-3-4k2x9 failed (--fail-fast)"


@each_shell
def each_place_that_cannot_be_used(node):
    study = Study(node)
    node.ask("list")
    (node.local / "studies").write_text("")
    study.submit(0)
    end = study.ends(0)
    assert end_of(end) == ("failed", 125, 0, "StartFailed") and end["text"].endswith("cannot be written to"), end


@each_shell
def each_gc(node):
    study = Study(node)
    study.go(0)
    study.submit(0)
    study.ends(0)
    (node.local / "studies/other-4k2x9").mkdir()
    node.ask("gc 0 0")
    assert study.dir.is_dir() and not (node.local / "studies/other-4k2x9").exists()
    node.ask(f"forget {study.run(0)} 1 all")
    node.ask("gc 0 0")
    assert not study.dir.exists()


if __name__ == "__main__":
    main()
