#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at system calls of submits to a cluster: the next command repairs, and each run is one Job or none.

strace delivers the signal at the Nth call of a kind, which it counts for each kind. The Jobs run on a fake node, all with a Secret and a Service beside them.
DLRUN_KILL_CLUSTER: how many points are tried (60); DLRUN_FULL=1: 240.
"""

import collections
import json

from cluster_faults import FULL, names, on_fake_nodes, own
from harness import *  # noqa: F403
from kubesite import ENDED, site

# Calls that change something outside of the process, and those that speak with the cluster and the registry.
CALLS = ("openat,openat2,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,fsync,fdatasync,ftruncate,"
         "clone,clone3,fork,vfork,execve,flock,fcntl,close,pipe2,utimensat,sendto,sendmsg,recvfrom,connect,socket,epoll_ctl")
POINTS = int(os.environ.get("DLRUN_KILL_CLUSTER", "240" if FULL else "60"))
ARRIVAL_S = 15
SUBMIT = ("submit", "-d", "--secret", "HOME", "-N", "2", "--", "true")


def traced(w, *options, name="n", log="/dev/null", submit=SUBMIT):
    return w.command(["strace", "-qq", "-o", str(log), "-e", f"trace={CALLS}", *options, w.dlrun, submit[0], "--name", name, *submit[1:]])


def calls_of(w, submit=SUBMIT):
    """([(name, how many of it there were until then)], from which on the run's directory is there, which one keeps its row)."""
    log = w.dir / "count"
    for _ in range(2):
        done = traced(w, log=log, submit=submit)
        assert done.rc == 0, done
    lines = [line for line in log.read_text().splitlines() if "(" in line]
    count, calls = collections.Counter(), []
    for line in lines:
        count[line.split("(")[0]] += 1
        calls.append((line.split("(")[0], count[line.split("(")[0]]))
    lock = next(i for i, line in enumerate(lines) if "submit.lock" in line)
    return calls, lock, next(i for i in range(lock, len(lines)) if lines[i].startswith("unlink") and "runs.db-journal" in lines[i])


def points(total, lock):
    """A sixth before there is anything, the others behind."""
    early, late = POINTS // 6, POINTS - POINTS // 6
    return sorted({i * lock // early for i in range(early)} | {lock + i * (total - lock) // late for i in range(late)})


def kill_all(w, calls, where):
    """All points, each with a name of its own; how many were still running then."""
    def one(i):
        return traced(w, "-e", f"inject={calls[i][0]}:signal=SIGKILL:when={calls[i][1]}", name=f"p{i}").rc != 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        return sum(pool.map(one, where))


def judge(s, rows):
    """Rows and Jobs tell the same; counts by state."""
    of_name = collections.Counter(r["id"].rsplit("-", 1)[0] for r in rows if r["id"][:2] != "n-")
    assert all(n == 1 for n in of_name.values()), of_name
    jobs = set(names(s))
    states = collections.Counter()
    for r in rows:
        end = r["exit"]["reason"] if r["state"] == "failed" else r["state"]
        states[end] += 1
        assert (r["id"] in jobs) == (end == "succeeded"), (r, r["id"] in jobs)
    assert jobs == {r["id"] for r in rows if r["id"] in jobs}
    return states


def test_sigkill_at_points_of_a_submit(w):
    needs("strace")
    with site(w, results={"emptyDir": True}) as s:
        on_fake_nodes(s, "fake-kill")
        calls, lock, _ = calls_of(w)
        where = points(len(calls), lock)
        begin = time.monotonic()
        killed = kill_all(w, calls, where)
        took = time.monotonic() - begin
        w.ok("ps")
        seen = time.monotonic()

        def settled():
            rows = w.runs()
            assert not [r for r in rows if r["state"] == "lost"], rows
            return not [r for r in rows if r["state"] == "unknown"]
        wait_for(settled, "a list that knows all states")
        wait_for(lambda: all(r["state"] in ENDED for r in w.runs()), "the end of all", ARRIVAL_S + 45)
        rows = w.runs()
        states = judge(s, rows)
        print(f"killed {killed} of {len(where)} submits at {len(where)} of {len(calls)} calls in {took:.0f} s: {dict(states)}, "
              f"settled {time.monotonic() - seen:.0f} s after the first look", flush=True)
        with_job = {r["id"] for r in rows if r["state"] == "succeeded"}
        for kind in ("Secret", "Service"):
            left = {o["metadata"]["labels"]["dlrun.io/run-id"]: o["metadata"].get("ownerReferences") for o in own(s, kind)}
            assert set(left) <= with_job and all(left.values()), (kind, set(left) - with_job, left)
        assert killed >= len(where) // 2 and with_job and len(with_job) < len(rows), (killed, states)
        interrupted = [r["id"] for r in rows if r["state"] == "failed"]
        go_on(w, s, interrupted)
        w.ok("rm", *[r["id"] for r in w.runs()], timeout=120)
        s.cluster.wait(lambda: not any(own(s, k) for k in ("Job", "Pod", "Secret", "Service")), "the end of all objects", 60)
        assert w.git("fsck", "--strict", check=False).rc == 0


def go_on(w, s, interrupted):
    """Those that never began can be begun again, cancelled and removed."""
    kept = [run for run in interrupted if w.show(run)["image"].get("digest")]
    for run in kept[:3]:
        w.ok("restart", run)
    for run in kept[:3]:
        assert s.ended(run)["state"] == "succeeded", w.show(run)
        assert f"{run}-2" in names(s)
    for run in interrupted[3:6]:
        w.ok("cancel", run)
        w.ok("rm", run)


if __name__ == "__main__":
    main()
