#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several clusters as targets: one is full, one refuses, one stops in the middle of the choice; Jobs are made in the chosen one only."""

import contextlib
import json
import time

from cluster_away import config_through
from cluster_faults import NODES, proxied
from harness import *  # noqa: F403
from kubesite import site

from faultproxy import FaultProxy

GPU = "nvidia.com/gpu"
READS = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "get"]}
PLACES = ("lab", "eu", "us")


def may_read_nodes(s):
    """Which are the cluster's, as the pods of others. The user is one whom no other test takes for one who may not."""
    name = f"reads-{s.namespace}"
    s.cluster.apply({"kind": "ClusterRole", "metadata": {"name": name}, "rules": [READS]})
    s.cluster.apply({"kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [
        {"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}})


def target(s, name, **more):
    """A context of its own, and a GPU type whose nodes are of that name only."""
    return {"kind": "kubernetes", "context": name, "registry": f"{s.cluster.registry}/{s.namespace}/code", "gpu_types": {
        "x": {"resource": GPU, "node_selector": {"place": f"{name}-{s.namespace}"}, "tolerations": [{"key": "tests/fake", "operator": "Exists"}]},
        "z": {"resource": GPU, "node_selector": {"place": "nowhere"}, "tolerations": []}}, **more}


@contextlib.contextmanager
def clusters_of(w, **gpus):
    """(site, lines): targets lab, eu, us, each through a line of its own to nodes of its own, with so many GPUs on one node."""
    with site(w, user="carol", results={"emptyDir": True}) as s, contextlib.ExitStack() as stack:
        may_read_nodes(s)
        lines = {name: stack.enter_context(FaultProxy(s.cluster.address)) for name in PLACES}
        whole = {"apiVersion": "v1", "kind": "Config", "current-context": "lab", "clusters": [], "users": [], "contexts": []}
        for name, line in lines.items():
            one = json.loads(open(config_through(s, line.address)).read())
            whole["clusters"].append({"name": name, "cluster": one["clusters"][0]["cluster"]})
            whole["users"].append({"name": name, "user": one["users"][0]["user"]})
            whole["contexts"].append({"name": name, "context": {"cluster": name, "user": name, "namespace": s.namespace}})
        path = w.dir / "several"
        path.write_text(json.dumps(whole))
        path.chmod(0o600)
        w.env["KUBECONFIG"] = str(path)
        for name, n in gpus.items():
            with NODES:
                s.cluster.fake_node(f"fake-{name}-{s.namespace}", labels={"place": f"{name}-{s.namespace}"}, **{GPU: n})
        w.write("dlrun.yaml", json.dumps({"image": s.base, "targets": {name: target(s, name) for name in PLACES}}))
        w.ok("config", "trust", "--yes")
        try:
            yield s, lines
        finally:
            for name in gpus:
                s.cluster.api("DELETE", f"/api/v1/nodes/fake-{name}-{s.namespace}")


def fill(s, name, n):
    """Somebody's pod takes n GPUs of the nodes of that name."""
    s.cluster.apply({"kind": "Pod", "metadata": {"name": f"taken-{name}", "namespace": s.namespace}, "spec": {
        "nodeName": f"fake-{name}-{s.namespace}", "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {GPU: str(n)}}}]}})


def states(w, run):
    return {place["target"]: place["state"] for place in w.show(run)["places"]}


def owners(s):
    return sorted(job["metadata"]["labels"]["dlrun.io/run-id"] for job in s.jobs())


def test_full_and_refusing_and_free(w):
    with clusters_of(w, lab=2, eu=2, us=4) as (s, lines):
        fill(s, "lab", 2)
        lines["eu"].set(refuse=True)
        run = s.submit("-t", "lab,eu,us", "-g", "2", "--gpu-type", "x", "--", "true")
        assert w.show(run)["target"]["name"] == "us", s.said
        assert states(w, run) == {"lab": "later", "eu": "silent", "us": "chosen"}, w.show(run)["places"]
        assert "lab: 1 node, none free" in s.said and "us: 4 GPUs free → us" in s.said, s.said
        assert owners(s) == [run]
        # The record travels with the Job.
        job = s.jobs()[0]
        assert "us" in job["metadata"]["annotations"]["dlrun.io/record"] and '"places"' in job["metadata"]["annotations"]["dlrun.io/record"]
        # A type that no node of any has: one error, each with its reason.
        done = w.run("submit", "-d", "-t", "lab,us", "-g", "1", "--gpu-type", "z", "--", "true")
        assert done.rc != 0 and "nodes has the labels that it wants (place=nowhere)" in done.err, done
        done = w.run("submit", "-d", "-t", "lab,us", "-g", "3", "--gpu-type", "x", "--", "true")
        assert done.rc == 0, done
        late = done.out.strip()
        assert states(w, late) == {"lab": "never", "us": "chosen"} and "lab: no node has 3 GPUs: the largest has 2" in done.err, done
        w.run("cancel", run, late)


def test_nobody_has_room_now(w):
    """The first that takes it later; it waits there as any other."""
    with clusters_of(w, lab=2, us=2) as (s, lines):
        fill(s, "lab", 2)
        fill(s, "us", 1)
        run = s.submit("-t", "lab,us", "-g", "2", "--gpu-type", "x", "--", "true")
        assert states(w, run) == {"lab": "chosen", "us": "later"} and "us: 1 node, 1 GPU free in all" in s.said, s.said
        late = s.submit("-t", "lab,us", "--wait-for", "us=20m", "-g", "1", "--gpu-type", "x", "--", "true")
        assert states(w, late) == {"lab": "later", "us": "chosen"}, s.said
        s.cluster.api("DELETE", f"/api/v1/namespaces/{s.namespace}/pods/taken-lab?gracePeriodSeconds=0")
        assert s.ended(run)["state"] == "succeeded"
        w.run("cancel", late)


def test_one_stops_in_the_middle(w):
    """After its first answers one says nothing any more: the next is taken within seconds, and makes one Job."""
    with clusters_of(w, lab=2, us=2) as (s, lines):
        lines["lab"].fault("stall", side="response", after=8000)
        begin = time.monotonic()
        run = s.submit("-t", "lab,us", "-g", "1", "--gpu-type", "x", "--", "true")
        assert time.monotonic() - begin < 30, s.said
        assert w.show(run)["target"]["name"] == "us" and owners(s) == [run], (s.said, w.show(run)["places"])
        w.run("cancel", run)


def test_one_refuses_the_create(w):
    """Its check says yes, and its admission no when the Job comes: the next one gets it, and makes one Job."""
    w.env.pop("DLRUN_OFFLINE", None)
    with proxied(w) as s, s.cluster.namespace(s.user, role="admin") as other:
        def fault(method, path, body):
            is_job = method == "POST" and f"/namespaces/{other}/jobs" in path and "dryRun" not in path
            return (422, {}, "no more jobs today") if is_job else None
        s.proxy.fault = fault
        here = {"kind": "kubernetes", "registry": f"{s.cluster.registry}/{s.namespace}/code", **s.target}
        w.write("dlrun.yaml", json.dumps({"image": s.base, "targets": {"lab": {**here, "namespace": other}, "us": here}}))
        w.ok("config", "trust", "--yes")
        run = s.submit("-t", "lab,us", "--secret", "HOME", "--", "true")
        assert "lab refused it: " in s.said and "no more jobs today" in s.said, s.said
        assert s.ended(run)["state"] == "succeeded" and states(w, run) == {"lab": "refused", "us": "chosen"}, w.show(run)
        assert owners(s) == [run]
        for kind in ("Job", "ConfigMap", "Secret"):
            left = [c["metadata"]["name"] for c in s.cluster.get(kind, namespace=other) if c["metadata"]["name"].startswith(run)]
            assert left == [], left


def test_a_study_that_waited_is_refused(w):
    """By the check of one: all of it goes to the next. By its admission, which comes later: all of it has failed, and may be tried again."""
    w.env.pop("DLRUN_OFFLINE", None)
    with proxied(w) as s, s.cluster.namespace(s.user, role="admin") as other:
        def fault(method, path, body):
            is_job = method == "POST" and f"/namespaces/{other}/jobs" in path
            return (422, {}, "no more jobs today") if is_job and verdict["is_no"] else None
        verdict = {"is_no": True}
        s.proxy.fault = fault
        here = {"kind": "kubernetes", "registry": f"{s.cluster.registry}/{s.namespace}/code", **s.target}

        def study(**lab):
            w.write("dlrun.yaml", json.dumps({"image": s.base, "targets": {"lab": {**here, "namespace": other, **lab}, "us": here}}))
            w.ok("config", "trust", "--yes")
            gate = w.ok("submit", "-d", "-t", "local", "-g", "0", "--", "sleep", "4").out.strip()
            name = w.ok("sweep", "-d", "-t", "lab,us", "--after", gate, "--over", "i=1..3", "--", "sh", "-c", "echo {i}").out.strip()
            w.ok("wait", gate)
            wait_for(lambda: w.ok("ps") and not json.loads(w.ok("queue", "--json").out)["waiting"], "it is sent", 120)
            return name, [r["id"] for r in w.runs() if r["group"] == name]

        name, runs = study(results={"pvc": "nosuch"})
        assert owners(s) == [name] and all(states(w, run) == {"lab": "never", "us": "chosen"} for run in runs), w.show(runs[0])
        assert {s.ended(run)["state"] for run in runs} == {"succeeded"}
        late, runs = study()
        assert owners(s) == [name], s.jobs()
        for run in runs:
            doc = w.show(run)
            assert doc["state"] == "failed" and "no more jobs today" in doc["text"], doc
        verdict["is_no"] = False
        w.ok("restart", "--failed", late)
        ends = [s.ended(run) for run in runs]
        assert {(run["state"], run["target"]["name"]) for run in ends} == {("succeeded", "lab")}, ends[0]


def test_all_are_away(w):
    """Accepted here, sent to one of them when they are back: one Job in all."""
    w.env.pop("DLRUN_OFFLINE", None)
    with clusters_of(w, lab=1, us=2) as (s, lines):
        fill(s, "lab", 1)
        for line in lines.values():
            line.set(refuse=True)
            line.cut_all()
        run = s.submit("-t", "lab,us", "-g", "1", "--gpu-type", "x", "--", "true")
        assert "queued here: no answer from lab, us" in s.said and not s.jobs(), s.said
        for line in lines.values():
            line.set(refuse=False)
        # Names that lead elsewhere by now are none of its places.
        path = w.dir / "several"
        there = path.read_text()
        path.write_text(there.replace(lines["lab"].address, "X").replace(lines["us"].address, lines["lab"].address).replace(
            "X", lines["us"].address))
        w.ok("queue", "--send")
        assert not s.jobs() and all("leads to another cluster" in p["text"] for p in w.show(run)["places"]), w.show(run)["places"]
        path.write_text(there)
        w.ok("queue", "--send")
        assert w.show(run)["target"]["name"] == "us" and states(w, run) == {"lab": "later", "us": "chosen"}, w.show(run)
        assert owners(s) == [run] and json.loads(w.ok("queue", "--json").out)["waiting"] == []
        assert s.ended(run)["state"] == "succeeded"


def test_gpus_as_before(w):
    """Without -g: as many as the program's newest run that named any; -g 0 is a name, too."""
    with clusters_of(w, lab=4) as (s, lines):
        def gpus(*words):
            run = s.submit("-t", "lab", "--gpu-type", "x", *words)
            w.run("cancel", run)
            return w.show(run)["resources"].get("gpus")
        assert gpus("--", "python", "a.py") == 0
        assert gpus("-g", "2", "--", "python", "a.py", "--lr", "1") == 2
        assert gpus("--", "python", "a.py", "--lr", "3") == 2 and "2 GPUs, as for a-" in s.said, s.said
        assert gpus("--", "python", "b.py") == 0 and "GPUs, as for" not in s.said
        assert gpus("-g", "0", "--", "python", "a.py") == 0
        assert gpus("--", "python", "a.py") == 0


def test_gpus_of_targets(w):
    with clusters_of(w, lab=4, us=2) as (s, lines):
        fill(s, "lab", 3)
        def free():
            told = json.loads(w.ok("targets", "lab", "--gpus", "--json").out)["targets"][0]["gpu_models"]
            return sum(k["all"] for k in told), sum(k["free"] for k in told)
        wait_for(lambda: free()[0] >= 6 and free()[0] - free()[1] >= 3, "what is free", 30)
        assert "FREE" in w.ok("targets", "lab", "--gpus").out


if __name__ == "__main__":
    main()
