#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at each of several hundred system calls of a submit: the next command repairs.

strace delivers the signal at the Nth call of a set. After each kill: the user's repository is as it
was (but for refs/dlrun and new objects), no run is there twice, `ps` shows only states that can be,
and after `rm` and `gc` nothing is left.
"""

import os
import subprocess

from harness import *  # noqa: F403

# Calls that change something outside of the process.
CALLS = ("openat,openat2,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,fsync,fdatasync,ftruncate,"
         "link,linkat,symlinkat,clone,clone3,fork,vfork,execve,flock,fcntl,fchmod,close,pipe2,utimensat,chdir")
# How many kill points are tried: all of a short submit would take too long for every CI run.
POINTS = int(os.environ.get("DLRUN_KILL_POINTS", "300"))


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


def test_sigkill_at_each_call(w):
    needs("strace")
    prepared(w)
    total = count(w, "submit", "-d", "--", "true")
    w.ok("wait", "@")
    step = max(1, total // POINTS)
    points = range(1, total + 1, step)
    for n in points:
        kill_at(w, n)
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
    print(f"kill: {len(points)} of {total} points", flush=True)


if __name__ == "__main__":
    main()
