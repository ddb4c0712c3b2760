#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large runs on fake nodes of a real cluster: a gang of many nodes, a study of many members. Requests and memory have limits that do
not grow, or grow with what runs; seconds are for people to read. DLRUN_TESTS=all: 200 nodes of 8 GPUs and 5,000 members."""

import collections
import contextlib
import json
import re
import tempfile
from pathlib import Path

from harness import *  # noqa: F403
from kubesite import site

GANGS = (50, 100, 200) if ALL else (10, 40)
MEMBERS, AT_ONCE = (5000, 50) if ALL else (200, 20)
GPUS = 8
LINES = "first line\nlast line\n"
MEMORY = 48 << 20
# Names of pods, and what is behind a URL.
DETAILS = r"(?<=/pods/)[^/?]+|[?].*"


def on_pool(s, pool):
    """Pods go to these nodes, and run until they are removed."""
    s.w.write("pod.json", json.dumps({
        "metadata": {"annotations": {"tests/hold": "1"}},
        "spec": {"nodeSelector": {"tests/pool": pool}, "tolerations": [{"key": "tests/fake", "operator": "Exists"}]}}), base=s.w.tree)
    s.configure(overlay="pod.json")


def store(s):
    """Nothing has to be taken from pods."""
    s.cluster.volume(s.namespace, "results")
    s.configure(results={"pvc": "results"})


def fake_nodes(s, pool, n, **resources):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: s.cluster.fake_node(f"{pool}-{i}", {"tests/pool": pool}, **resources), range(n)))


def remove_nodes(s, pool, n):
    for i in range(n):
        s.cluster.delete("Node", f"{pool}-{i}")


def peak(process):
    """Bytes of memory at its peak, once it has ended; what wait4 knows may be ours, from before it became the program."""
    most = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            most = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0]) << 10
        time.sleep(0.005)
    return most


class Done:
    """A command: what it printed, requests in the namespace, bytes of memory at its peak, seconds."""

    def __init__(self, s, *words, may_be_late=False):
        mark, begin = s.cluster.audit_begin(s.user), time.monotonic()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen([s.w.dlrun, *words], cwd=s.w.tree, env=s.w.env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT)
            self.memory = peak(process)
            self.seconds = time.monotonic() - begin
            out.seek(0)
            self.out = out.read()
        self.requests = [f"{e['verb']} {re.sub(DETAILS, '', e['requestURI'])}" for e in s.cluster.audit_whole(s.user, mark) if s.namespace in e["requestURI"]]
        # A cancel waits for 5 s longer than the program may take; nodes may take more.
        assert process.returncode == 0 or may_be_late and "has not ended after" in self.out, (words, self.out)

    def within(self, requests, memory):
        assert len(self.requests) <= requests, (len(self.requests), requests, collections.Counter(self.requests))
        assert self.memory <= memory, (self.memory, memory)

    def __str__(self):
        return f"{self.seconds:.1f} s {len(self.requests)} requests {self.memory >> 20} MiB"


def running(s, n, **labels):
    """So many pods run."""
    def found():
        pods = s.cluster.get("Pod", namespace=s.namespace, labelSelector=",".join(f"{k}={v}" for k, v in labels.items()))
        return sum(p["status"]["phase"] == "Running" for p in pods) == n
    s.cluster.wait(found, f"{n} pods that run", 300, least=0.5)


def gang(s, n):
    """The commands on a gang of n nodes, by name."""
    done = {"submit": Done(s, "submit", "-d", "-N", str(n), "-g", str(GPUS), "--grace", "1s", "--", "sleep", "600")}
    run = s.w.show("@")["id"]
    running(s, n, **{"dlrun.io/run-id": run})
    wait_for(lambda: s.w.show(run)["state"] == "running", f"{run} to run", 60)
    done["ps"] = Done(s, "ps", "-o", "id,state")
    assert run in done["ps"].out and "running" in done["ps"].out, done["ps"].out
    done["why"] = Done(s, "why", run)
    done["logs"] = Done(s, "logs", "--rank", str(n - 1), run)
    assert done["logs"].out.endswith(LINES), done["logs"].out
    done["cancel"] = Done(s, "cancel", run, may_be_late=True)
    assert s.ended(run)["state"] == "cancelled", s.w.show(run)
    done["logs, kept"] = Done(s, "logs", "--rank", str(n - 1), run)
    assert LINES in done["logs, kept"].out, done["logs, kept"].out
    done["rm"] = Done(s, "rm", run)
    print(f"{n} nodes of {GPUS} GPUs: " + ", ".join(f"{name} {d}" for name, d in done.items()), flush=True)
    return done


def test_gangs_of_many_nodes(w):
    """Only the end asks for more where there are more: each rank has a log that is saved."""
    with site(w, alone=True) as s, s.cluster.fake_logs(LINES):
        store(s)
        pool, n = f"gang-{s.namespace}", max(GANGS)
        fake_nodes(s, pool, n, **{"nvidia.com/gpu": GPUS})
        try:
            on_pool(s, pool)
            found = {n: gang(s, n) for n in GANGS}
        finally:
            remove_nodes(s, pool, n)
        few = found[GANGS[0]]
        for n, done in found.items():
            for name, d in done.items():
                # A cancel asks for each log anew as long as it waits.
                d.within(len(few[name].requests) + 6 if name != "cancel" else int(6 + d.seconds / 3) * n + 60, MEMORY + n * (300 << 10))


def test_ranks_of_one_zone(w):
    """The scheduler takes the emptier node, which is that of the other zone, for the second rank that may go there."""
    with site(w) as s:
        store(s)
        pool = f"zones-{s.namespace}"
        zones = {f"{pool}-{zone}": zone for zone in "ab"}
        for name, zone in zones.items():
            s.cluster.fake_node(name, {"tests/pool": pool, "topology.kubernetes.io/zone": zone}, cpu=4)
        try:
            on_pool(s, pool)
            for n, words in ((2, ()), (1, ("--same", "zone"))):
                run = s.submit("-N", "2", "--cpus", "2", *words, "--grace", "1s", "--", "sleep", "600")
                running(s, 2, **{"dlrun.io/run-id": run})
                pods = s.cluster.get("Pod", namespace=s.namespace, labelSelector=f"dlrun.io/run-id={run}")
                assert len({zones[p["spec"]["nodeName"]] for p in pods}) == n, pods
                s.cancel(run)
                s.without_pods()
        finally:
            for name in zones:
                s.cluster.delete("Node", name)


def test_a_study_of_many_members(w):
    """What has not begun costs nothing: requests grow with what runs at once."""
    with site(w, files={"m.py": ""}, alone=True) as s, s.cluster.fake_logs(LINES):
        store(s)
        pool = f"study-{s.namespace}"
        fake_nodes(s, pool, 1)
        try:
            on_pool(s, pool)
            study_of(s)
        finally:
            remove_nodes(s, pool, 1)


def study_of(s):
    done = {"sweep": Done(s, "sweep", "-d", "--over", f"i=0..{MEMBERS - 1}", "--parallel", str(AT_ONCE), "--grace", "1s", "--", "python3",
                          "m.py", "{i}")}
    study = s.w.show("@")["study"]["id"]
    running(s, AT_ONCE, **{"dlrun.io/study": study})
    states = ["ps", "-a", "--group", study, "-o", "id,state"]
    done["ps"] = Done(s, *states)
    rows = done["ps"].out.splitlines()[1:]
    assert len(rows) == MEMBERS and sum("running" in row for row in rows) == AT_ONCE, rows[-2 * AT_ONCE:]
    done["table"] = Done(s, "sweep", study)
    done["why"] = Done(s, "why", study)
    done["logs"] = Done(s, "logs", member_id(study, 0))
    assert done["logs"].out.endswith(LINES), done["logs"].out
    done["cancel"] = Done(s, "cancel", study)
    done["ps after"] = Done(s, *states)
    rows = done["ps after"].out.splitlines()[1:]
    assert len(rows) == MEMBERS and all("cancelled" in row for row in rows), rows[-5:]
    done["logs, kept"] = Done(s, "logs", member_id(study, AT_ONCE - 1))
    # What it may have written since is gone with its pod, which is said behind it.
    assert done["logs, kept"].out.startswith(LINES), done["logs, kept"].out
    done["rm"] = Done(s, "rm", study)
    print(f"{MEMBERS} members, {AT_ONCE} at once: " + ", ".join(f"{name} {d}" for name, d in done.items()), flush=True)
    most = {"sweep": 15, "ps": 4, "table": 4 * AT_ONCE, "cancel": 9 * AT_ONCE + 120, "ps after": 0, "logs, kept": 0}
    for name, d in done.items():
        d.within(most.get(name, 10), MEMORY + MEMBERS * (30 << 10))


if __name__ == "__main__":
    main()
