#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at each of several hundred system calls of a submit: the next command repairs.

strace delivers the signal at the Nth call of a set. After each kill: the user's repository is as it
was (but for refs/dlrun and new objects), no run is there twice, `ps` shows only states that can be,
and after `rm` and `gc` nothing is left.
"""

import collections
import os
import subprocess

from harness import *  # noqa: F403

# Calls that change something outside of the process.
CALLS = ("openat,openat2,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,fsync,fdatasync,ftruncate,"
         "link,linkat,symlinkat,clone,clone3,fork,vfork,execve,flock,fcntl,fchmod,close,pipe2,utimensat,chdir")


def points(total, few, many):
    """At which of so many calls: at as many, from the first to the last at equal distances. few: in CI, where the test says which
    ends it has to see; many: with --all. DLRUN_KILL_POINTS: another number."""
    n = max(2, min(total, int(os.environ.get("DLRUN_KILL_POINTS", many if ALL else few))))
    return [1 + i * (total - 1) // (n - 1) for i in range(n)]


def closing_in(total, many, left_at):
    """Kills at calls that close in on the one before which the other side has it and nobody here knows: left_at(n) kills at the
    n-th and says what was left, "not there" before. With --all at many points instead. How often which was left."""
    left = collections.Counter()
    if ALL or "DLRUN_KILL_POINTS" in os.environ:
        left.update(left_at(n) for n in points(total, 0, many))
    first, last = 1, total
    while first < last:
        n = (first + last) // 2
        found = left_at(n)
        left[found] += 1
        first, last = (n + 1, last) if found == "not there" else (first, n)
    return left


def prepared(w):
    w.repo({f"d{i % 4}/f{i}": str(i) * 50 for i in range(30)})
    w.ok("submit", "-d", "--", "true")
    w.ok("wait", "@")
    w.write("d0/f0", "edited")


def count(w, *words):
    """How many of these calls the first process of the command makes."""
    log = w.dir / "count"
    done = w.command(["strace", "-f", "-qq", "-e", f"trace={CALLS}", "-o", str(log), w.dlrun, *words])
    assert done.rc == 0, done
    lines = log.read_text().splitlines()
    first = lines[0].split()[0]
    return sum(line.startswith(first + " ") for line in lines)


def killed(w, n, *words):
    """Kill each process of the command at its n-th of these calls."""
    w.command(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}",
               "-e", f"inject={CALLS}:signal=SIGKILL:when={n}", w.dlrun, *words])


def git_is_untouched(before, after):
    allowed = re.compile(r"refs/dlrun(/.*)?|logs/refs.*|objects/.*|refs")
    changed = {p for p in before if before[p] != after.get(p) and not allowed.fullmatch(p)}
    added = {p for p in set(after) - set(before) if not allowed.fullmatch(p)}
    assert not changed and not added, (changed, added)


def kill_at(w, n):
    """What came of the run."""
    before = hash_dir(w.tree / ".git")
    runs_before = {r["id"] for r in w.runs()}
    w.command(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}",
               "-e", f"inject={CALLS}:signal=SIGKILL:when={n}", w.dlrun, "submit", "-d", "--", "true"])
    git_is_untouched(before, hash_dir(w.tree / ".git"))
    new = [r for r in w.runs() if r["id"] not in runs_before]
    assert len(new) <= 1, new
    for run in new:
        w.run("wait", run["id"], timeout=60)
        doc = w.show(run["id"])
        assert doc["state"] in ("succeeded", "failed", "cancelled", "lost"), doc["state"]
        w.ok("rm", run["id"])
    assert w.git("fsck", "--strict", check=False).rc == 0
    return doc["state"] if new else "no run"


def test_sigkill_at_each_call(w):
    needs("strace")
    prepared(w)
    total = count(w, "submit", "-d", "--", "true")
    w.ok("wait", "@")
    ends = collections.Counter(kill_at(w, n) for n in points(total, 80, total))
    # Killed before there was a row, with a row and no program, and when the program had begun.
    assert {"no run", "failed", "succeeded"} <= set(ends), ends
    for run in w.runs():
        w.ok("rm", run["id"])
    w.ok("submit", "-f", "--", "true")
    wait_for(lambda: w.command(["pgrep", "-f", f"__supervise {w.state}/"]).rc == 1, "no worker of any run is left")
    w.ok("rm", "@")
    w.ok("gc", "--keep", "0s")
    left = [p for p in list(w.state.rglob("*")) + list(w.layout.rglob("*")) if p.is_file()]
    left = [p for p in left if p.name not in ("runs.db", "index.json", "oci-layout") and not p.name.endswith(".lock")]
    assert not left, left
    temporary = [p for p in (w.tree / ".git").rglob("*") if "tmp" in p.name]
    assert not temporary, temporary
    print(f"kill: {sum(ends.values())} of {total} points: {dict(ends)}", flush=True)


if __name__ == "__main__":
    main()
