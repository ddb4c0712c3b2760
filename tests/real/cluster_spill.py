#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait in one namespace of a cluster without room, and go on to the next: each program runs once."""

import atexit
import contextlib
import json
import os
import random
import subprocess

from harness import *  # noqa: F403
from kubesite import ENDED, site

RUNS = int(os.environ.get("DLRUN_SPILLS", "6"))
LINE = ["sh", "-c", "echo ran-$DLRUN_RUN_ID"]


@contextlib.contextmanager
def two(w, **lab):
    """A site with two targets, lab and eu, which are namespaces of the same cluster."""
    w.env.pop("DLRUN_OFFLINE", None)
    with site(w) as s, s.cluster.namespace(s.user, role="admin") as other:
        registry = f"{s.cluster.registry}/{s.namespace}/code"
        targets = {"lab": {"kind": "kubernetes", "registry": registry, "namespace": s.namespace, **lab},
                   "eu": {"kind": "kubernetes", "registry": registry, "namespace": other}}
        w.write("dlrun.yaml", json.dumps({"image": s.base, "target": "lab", "targets": targets}))
        w.ok("config", "trust", "--yes")
        s.spaces = {"lab": s.namespace, "eu": other}
        yield s


def pods_in_lab(s, n):
    s.cluster.apply({"kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": str(n)}}}, namespace=s.spaces["lab"])
    s.cluster.wait(lambda: s.cluster.get("ResourceQuota", "small", s.spaces["lab"])["status"]["hard"]["pods"] == str(n), "the quota counts")


def submit(s, *words):
    queue = s.w.state / "queue"
    queue.mkdir(parents=True, exist_ok=True)
    (queue / "kicked").write_text("60000")
    return s.submit("-t", "lab,eu", "--wait-for", "lab=0s", *words, "--", *LINE)


def settle(w, run, seconds=120):
    def over():
        w.run("queue", "--send", timeout=90)
        return w.show(run)["state"] in ENDED
    wait_for(over, f"the end of {run}", seconds)
    return w.show(run)


def starts(s, run):
    """How often a node has begun its program, by the events of both namespaces."""
    n = 0
    for space in s.spaces.values():
        for event in s.cluster.get("Event", namespace=space):
            about = event["involvedObject"]
            n += event["reason"] == "Started" and about["name"].startswith(run) and "{program}" in about.get("fieldPath", "")
    return n


def jobs(s, place):
    return [job["metadata"]["name"] for job in s.cluster.get("Job", namespace=s.spaces[place])]


def gates(s, place):
    return [c["metadata"]["name"] for c in s.cluster.get("ConfigMap", namespace=s.spaces[place]) if c["metadata"]["name"].endswith("-begin")]


def test_goes_on_to_the_next(w):
    with two(w) as s:
        pods_in_lab(s, 0)
        run = submit(s)
        doc = w.show(run)
        assert doc["target"]["name"] == "lab" and jobs(s, "lab") == [run] and gates(s, "lab") == [f"{run}-begin"], doc
        said = w.ok("queue", "--send").err
        assert "in lab without room, goes to eu" in said, said
        doc = settle(w, run)
        assert doc["state"] == "succeeded" and doc["target"]["name"] == "eu", doc
        assert jobs(s, "lab") == [] and jobs(s, "eu") == [f"{run}-2"] and starts(s, run) == 1
        wait_for(lambda: gates(s, "lab") == [], "the gate is gone")
        assert f"ran-{run}" in w.ok("logs", run).out
        w.ok("rm", run)
        wait_for(lambda: gates(s, "eu") == [], "the gate goes with its Job")


def test_another_machine_starts_no_second_program(w):
    """Which has the run in its own record, from the first target, and does not know where it went."""
    with two(w) as s:
        pods_in_lab(s, 0)
        run = submit(s)
        other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
        w.ok("ps", "-t", "lab", env=other)
        assert json.loads(w.ok("show", "--json", run, env=other).out)["state"] == "queued"
        w.ok("queue", "--send")
        assert settle(w, run)["target"]["name"] == "eu"
        seen = json.loads(w.ok("show", "--json", run, env=other).out)
        assert seen["state"] == "unknown" and "may have sent it to another target" in seen["text"], seen
        for words in ("restart", run), ("cancel", run), ("restart", run):
            done = w.run(*words, env=other)
            assert words[0] == "cancel" or done.rc != 0, done
        assert jobs(s, "lab") == [] and starts(s, run) == 1


def test_goes_on_to_this_machine(w):
    """Its code comes from the registry; and a follower sees all of it."""
    with two(w) as s:
        pods_in_lab(s, 0)
        (w.state / "queue").mkdir(parents=True, exist_ok=True)
        (w.state / "queue/kicked").write_text("60000")
        run = s.submit("-t", "lab,local", "--wait-for", "lab=0s", "--", "sh", "-c", "echo ran-$DLRUN_RUN_ID; cat a.py")
        follower = subprocess.Popen([w.dlrun, "logs", "-f", run], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        w.ok("queue", "--send")
        doc = settle(w, run)
        assert doc["state"] == "succeeded" and doc["target"]["name"] == "local", doc
        out, err = follower.communicate(timeout=60)
        assert out.startswith(f"ran-{run}\n") and "hello" in out and follower.returncode == 0, (out, err)
        assert jobs(s, "lab") == [] and starts(s, run) == 0


def test_what_runs_stays(w):
    """A Job with a gate runs where it is, and is not taken back."""
    with two(w) as s:
        run = submit(s)
        assert settle(w, run)["state"] == "succeeded" and w.show(run)["target"]["name"] == "lab"
        assert starts(s, run) == 1 and jobs(s, "eu") == []


def kueue(s, plural, kind):
    """A kind of Kueue, which is not there."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {"kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.kueue.x-k8s.io", "annotations": {
               "api-approved.kubernetes.io": "unapproved, of the tests"}},
           "spec": {"group": "kueue.x-k8s.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                    "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}]}}
    s.cluster.apply(crd)
    atexit.register(s.cluster.delete, "CustomResourceDefinition", crd["metadata"]["name"])


def kueue_object(s, kind, name, **more):
    s.cluster.wait(lambda: s.cluster.apply({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name, **more.pop("metadata", {})},
                                            **more}, namespace=s.spaces["lab"]), f"{kind} {name}")


def test_a_queue_that_gives_it_away(w):
    """A queue whose ClusterQueue may not be read is MultiKueue's: there the gate is missing, and the run goes on."""
    with two(w, queue="gpu") as s:
        for plural, kind in (("localqueues", "LocalQueue"), ("workloads", "Workload")):
            kueue(s, plural, kind)
        rule = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": ["get", "list"]}
        s.cluster.apply({"kind": "Role", "metadata": {"name": "kueue"}, "rules": [rule]}, namespace=s.spaces["lab"])
        s.cluster.apply({"kind": "RoleBinding", "metadata": {"name": "kueue"}, "subjects": [
            {"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kueue"}}, namespace=s.spaces["lab"])
        kueue_object(s, "LocalQueue", "gpu", spec={"clusterQueue": "team"}, status={"pendingWorkloads": 0})

        run = s.submit("-t", "lab,eu", "--wait-for", "lab=1h", "--", *LINE)
        job = s.cluster.get("Job", run, s.spaces["lab"])
        assert job["spec"]["suspend"] and w.show(run)["target"]["name"] == "lab"
        w.ok("queue", "--send")
        assert jobs(s, "lab") == [run], "it waits in the queue"
        kueue_object(s, "Workload", f"job-{run}", metadata={"labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}, "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": run, "uid": job["metadata"]["uid"]}]}, spec={"queueName": "gpu", "active": True},
            status={"admissionChecks": [{"name": "far", "state": "Ready", "message": 'The workload got reservation on "worker1"'}]})
        assert "MultiKueue" in s.said_within(run, "several targets does not begin")["why"]
        doc = settle(w, run)
        assert doc["state"] == "succeeded" and doc["target"]["name"] == "eu" and starts(s, run) == 1, doc
        assert [p["state"] for p in doc["places"]] == ["refused", "chosen"] and jobs(s, "lab") == [], doc["places"]


def test_once_when_both_have_room(w):
    """Room comes at any moment of the move, and movers are killed."""
    with two(w) as s:
        rng, began = random.Random(7), {"lab": 0, "eu": 0}
        for i in range(RUNS):
            pods_in_lab(s, 0)
            run = submit(s)
            mover = subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                mover.wait(rng.random() * 0.6)
            s.cluster.delete("ResourceQuota", "small", s.spaces["lab"])
            if i % 2:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    mover.wait(rng.random() * 0.4)
                mover.kill()
            mover.wait(60)
            doc = settle(w, run)
            assert doc["state"] == "succeeded" and starts(s, run) == 1, (doc, starts(s, run))
            began[doc["target"]["name"]] += 1
        print(f"spill: {began}", flush=True)


@left_to_all("test_once_when_both_have_room")
def test_once_when_a_node_comes(w):
    """Its pod waits for a label of a node, which comes at any moment of the move."""
    label = "tests/spill"
    with two(w, overlay="lab.json") as s:
        w.write("lab.json", json.dumps({"spec": {"nodeSelector": {label: s.spaces["lab"]}}}))
        w.ok("config", "trust", "--yes")
        node = next(n["metadata"]["name"] for n in s.cluster.get("Node") if not n["spec"].get("taints"))
        rng, began = random.Random(3), {"lab": 0, "eu": 0}
        try:
            for i in range(RUNS):
                s.cluster.kubectl("label", "node", node, f"{label}-")
                run = submit(s)
                assert w.show(run)["target"]["name"] == "lab", w.show(run)
                wait_for(lambda: s.cluster.get("Pod", namespace=s.spaces["lab"]), "its pod")
                mover = subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    mover.wait(rng.random() * 0.25)
                s.cluster.kubectl("label", "node", node, f"{label}={s.spaces['lab']}")
                if i % 2:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        mover.wait(rng.random() * 0.2)
                    mover.kill()
                mover.wait(60)
                doc = settle(w, run)
                assert doc["state"] == "succeeded" and starts(s, run) == 1, (doc, starts(s, run))
                began[doc["target"]["name"]] += 1
                s.w.ok("rm", run)
        finally:
            s.cluster.kubectl("label", "node", node, f"{label}-")
        print(f"spill: {began}", flush=True)


def test_a_gang_goes_on(w):
    with two(w) as s:
        pods_in_lab(s, 1)
        run = submit(s, "--nodes", "2")
        wait_for(lambda: len(s.cluster.get("Pod", namespace=s.spaces["lab"])) == 1, "one of its pods")
        w.ok("queue", "--send")
        doc = w.show(run)
        # Its pod has a node by then, or it had not: it is taken back as a whole, or not at all.
        if doc["target"]["name"] == "eu":
            doc = settle(w, run)
            assert doc["state"] == "succeeded" and starts(s, run) == 2, (doc, starts(s, run))
        else:
            assert jobs(s, "eu") == [] and gates(s, "lab") == [f"{run}-begin"]


def test_cancel_before_the_move(w):
    with two(w) as s:
        pods_in_lab(s, 0)
        run = submit(s)
        w.ok("cancel", run)
        assert settle(w, run)["state"] == "cancelled"
        # Its Job is there until its pods are gone.
        wait_for(lambda: jobs(s, "lab") == jobs(s, "eu") == [], "the end of its Job", 60)
        assert starts(s, run) == 0


if __name__ == "__main__":
    main()
