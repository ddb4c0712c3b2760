#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Providers of machines of `dlrun autoscale` against a real API server: that of the tests (kwok_provider.py), and
examples/autoscale/clusterapi with Cluster API's kinds of objects, whose controllers are played here."""

import contextlib
import fcntl

import cluster as clusters
from cluster import path_of
from cluster_autoscale_run import FAKE, GPU, GPUS, RANKS, SOON_S, done, lab
from harness import *  # noqa: F403
from kube_api import ApiError, fake_node
from kwok_provider import Machines

CLUSTERAPI = Path(__file__).parents[2] / "examples/autoscale/clusterapi"
API = "cluster.x-k8s.io/v1beta1"
SIZE, CAPACITY = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-{}-size", "capacity.cluster-autoscaler.kubernetes.io/{}"
DELETE = "cluster.x-k8s.io/delete-machine"
MERGE = "application/merge-patch+json"


def ask(argv, env, verb, **request):
    end = subprocess.run(list(map(str, argv)), input=json.dumps({"verb": verb, **request}) + "\n", env=env, text=True, capture_output=True,
                         timeout=DEADLINE_S)
    assert end.returncode == 0 and len(end.stdout.splitlines()) == 1, (end.returncode, end.stdout, end.stderr)
    return json.loads(end.stdout)


def test_fake_machines_are_nodes(w):
    c = clusters.get()
    with c.namespace() as tag:
        name = f"{tag}-a"
        m = Machines(w.dir / "machines", [{"id": name, "max": 4, "price": 1, "template": {
            "room": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": 2}, "labels": {"tests/pool": tag},
            "taints": [{"key": "tests/fake", "effect": "NoSchedule"}]}}], c)

        def nodes():
            return {n["metadata"]["name"]: n for n in c.get("Node", labelSelector=f"tests/pool={tag}")}
        try:
            ask(m.exec, None, "grow", group=name, to=3, token="t", **{"from": 0})
            c.wait(lambda: [x["status"] for n in nodes().values() for x in n["status"]["conditions"] if x["type"] == "Ready"] == ["True"] * 3,
                   "nodes that are ready")
            node = nodes()[f"{name}-0"]
            assert node["spec"]["providerID"] == f"kwok://{name}-0", node["spec"]
            assert node["status"]["allocatable"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2", "pods": "110"}, node["status"]
            # Who deletes the object first finds it gone.
            c.delete("Node", f"{name}-1")
            assert ask(m.exec, None, "shrink", group=name, instances=[f"{name}-1", f"{name}-2"], to=1)["instances"][1]["gone"] is True
            assert list(nodes()) == [f"{name}-0"]
        finally:
            m.close()
        assert not nodes()


# --- Cluster API


def crd(kind):
    plural = kind.lower() + "s"
    return {"kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.cluster.x-k8s.io", "annotations": {
        "api-approved.kubernetes.io": "unapproved, tests"}}, "spec": {
            "group": "cluster.x-k8s.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural}, "versions": [{
                "name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}


@contextlib.contextmanager
def kinds(c):
    """One test at a time has them."""
    names = ("MachineDeployment", "Machine")
    with open(c.dir / "clusterapi.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        c.apply(*map(crd, names))
        try:
            for name in names:
                c.wait(lambda name=name: c.api("GET", path_of(name, group=API)), f"the API of {name}")
            yield
        finally:
            for name in names:
                c.delete("CustomResourceDefinition", f"{name.lower()}s.cluster.x-k8s.io")
                c.wait(lambda name=name: f"{name.lower()}s.cluster.x-k8s.io" not in
                       [x["metadata"]["name"] for x in c.get("CustomResourceDefinition")], f"the end of the API of {name}")


class Deployment:
    """One, with what its controllers would do."""

    def __init__(self, w, c, namespace, labels, taints):
        self.c, self.namespace, self.made, self.group = c, namespace, 0, f"{namespace}/gpus"
        there = w.dir / "bin"
        there.mkdir()
        (there / "kubectl").write_text(f'#!/bin/sh\nexec {c.state["kubernetes"]} kubectl "$@"\n')
        (there / "kubectl").chmod(0o755)
        self.env = {**w.env, "PATH": f"{there}:{w.env['PATH']}"}
        self.argv = [str(CLUSTERAPI), "--kubeconfig", str(c.kubeconfig("admin", w.dir / "management", namespace=namespace))]
        notes = {"cpu": "64", "memory": "512Gi", "gpu-count": "8", "ephemeral-disk": "1Ti", "labels": labels, "taints": taints}
        c.apply({"apiVersion": API, "kind": "MachineDeployment", "metadata": {
            "name": "gpus", "labels": {"dlrun/cluster": "lab"},
            "annotations": {SIZE.format("min"): "0", SIZE.format("max"): "8", **{CAPACITY.format(k): v for k, v in notes.items()}}},
            "spec": {"replicas": 0, "template": {"spec": {"failureDomain": "z1"}}}}, namespace=namespace)

    def ask(self, verb, **request):
        return ask(self.argv, self.env, verb, cluster="lab", group=self.group, **request)

    def found(self):
        return self.ask("groups")["groups"][0]

    def path(self, kind, name=""):
        return path_of(kind, name, self.namespace, API)

    def machines(self):
        return self.c.api("GET", self.path("Machine"))["items"]

    def replicas(self):
        return self.c.api("GET", self.path("MachineDeployment", "gpus"))["spec"]["replicas"]

    def change(self, kind, name, **change):
        self.c.api("PATCH", self.path(kind, name), change, kind=MERGE)

    def make(self, owner="gpus-1", boots=True, **status):
        name = f"gpus-{self.made}"
        self.made += 1
        spec = {"providerID": f"aws:///z1/i-{name}"} if boots else {}
        self.c.apply({"apiVersion": API, "kind": "Machine", "metadata": {
            "name": name, "labels": {"cluster.x-k8s.io/deployment-name": "gpus"},
            "ownerReferences": [{"apiVersion": API, "kind": "MachineSet", "name": owner, "uid": f"uid-{owner}"}]}, "spec": spec},
            namespace=self.namespace)
        if status:
            self.c.api("PATCH", self.path("Machine", f"{name}/status"), {"status": status}, kind=MERGE)

    def control(self, **how):
        """As many machines as replicas; those that are marked go first, then any."""
        machines = self.machines()
        for _ in range(len(machines), self.replicas()):
            self.make(**how)
        gone = sorted(machines, key=lambda m: DELETE not in m["metadata"].get("annotations", {}))[:max(0, len(machines) - self.replicas())]
        for machine in gone:
            self.c.api("DELETE", self.path("Machine", machine["metadata"]["name"]))
            self.c.delete("Node", machine["metadata"]["name"])
        return [m["metadata"]["name"] for m in gone]


def judge_template(d):
    group = d.found()
    assert group == {
        "id": d.group, "provider": "clusterapi", "desired": 0, "min": 0, "max": 8, "zone": "z1", "instances": [], "template": {
            "room": {"pods": 110, "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"},
            "labels": {"pool": "a", "fast": ""}, "taints": [
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "x", "value": "", "effect": "NoExecute"}]}}, group


def judge_grow(d):
    grow = {"to": 3, "from": 0, "token": "t"}
    assert d.ask("grow", **grow) == {"accepted": 3, "failed": []} and d.replicas() == 3
    d.control()
    assert [(i["id"], i["was"], i["state"]) for i in d.found()["instances"]] == [
        (f"i-gpus-{n}", f"machine:gpus-{n}", "running") for n in range(3)], d.found()
    assert d.ask("shrink", instances=["i-gpus-1"], to=2) == {"instances": [{"id": "i-gpus-1", "gone": False}]}
    # Once more, before and after the machine has gone.
    assert d.ask("shrink", instances=["i-gpus-1"], to=2) == {"instances": [{"id": "i-gpus-1", "gone": False}]}
    assert d.replicas() == 2 and d.control() == ["gpus-1"]
    assert d.ask("shrink", instances=["i-gpus-1"], to=2) == {"instances": [{"id": "i-gpus-1", "gone": True}]} and d.replicas() == 2
    assert d.ask("grow", **grow)["accepted"] == 2 and d.replicas() == 2, "a token that was seen"


def judge_marks(d):
    """A mark that no smaller number came with is none of the next request's; a number too small ends nothing else."""
    d.change("Machine", "gpus-0", metadata={"annotations": {DELETE: "dlrun"}})
    d.ask("shrink", instances=["i-gpus-2"], to=0)
    assert d.replicas() == 1 and d.control() == ["gpus-2"], d.machines()


def judge_failures(d):
    began = "2026-01-01T00:00:00.123Z"
    d.ask("grow", to=4, token="u", **{"from": 1})
    ready = {"type": "InfrastructureReady", "status": "False"}
    d.make(boots=False, conditions=[{**ready, "severity": "Error", "reason": "InstanceProvisionFailed",
                                     "message": "InsufficientInstanceCapacity: none of p4d in z1"}])
    d.make(boots=False, failureReason="CreateError", failureMessage="You have exceeded your quota")
    d.make(boots=False, conditions=[{**ready, "severity": "Info", "reason": "WaitingForInfrastructure"}])
    assert [f["class"] for f in d.ask("status", token="u", since=began)["failed"]] == ["capacity", "quota"]
    assert d.ask("status", token="u", since="2100-01-01T00:00:00Z") == {"failed": []}
    group = d.found()
    assert group["desired"] == 4 and [(i["id"], i["state"]) for i in group["instances"]] == [
        ("i-gpus-0", "running"), ("machine:gpus-5", "pending")], group
    assert d.ask("shrink", instances=[], to=2) == {"instances": []}
    assert d.replicas() == 2 and d.control() == ["gpus-3", "gpus-4"]
    assert d.ask("shrink", instances=["machine:gpus-5"], to=1)["instances"][0]["gone"] is False
    assert d.control() == ["gpus-5"]
    # Asked for, and not made by anybody.
    d.ask("grow", to=3, token="v", **{"from": 1})
    assert d.replicas() == 3
    d.ask("shrink", instances=[], to=1)
    assert d.replicas() == 1 and d.control() == []


def judge_refusals(d):
    d.make("gpus-2")
    assert "rollout" in d.found()["refused"]
    assert "rollout" in d.ask("grow", to=5, token="w", **{"from": 1})["error"]["text"] and d.replicas() == 1
    d.control()
    d.change("MachineDeployment", "gpus", spec={"paused": True})
    assert "paused" in d.found()["refused"] and "paused" in d.ask("shrink", instances=[], to=0)["error"]["text"]
    d.change("MachineDeployment", "gpus", spec={"paused": None}, metadata={"annotations": {CAPACITY.format("taints"): "none"}})
    assert "annotation" in d.found()["refused"], d.found()
    d.change("MachineDeployment", "gpus", metadata={"labels": {"dlrun/cluster": "other"}})
    assert d.ask("groups") == {"groups": []} and d.ask("grow", to=5, token="w", **{"from": 1})["error"]["class"] == "other"
    assert d.replicas() == 1


def test_cluster_api(w):
    c = clusters.get()
    with c.namespace() as namespace, kinds(c):
        d = Deployment(w, c, namespace, "pool=a,fast=", "gpu=yes:NoSchedule,x:NoExecute")
        judge_template(d)
        judge_grow(d)
        judge_marks(d)
        judge_failures(d)
        judge_refusals(d)
        with contextlib.suppress(ApiError):
            c.api("DELETE", path_of("Machine", namespace=namespace, group=API))
        # A server that is away: not known whether anything was done.
        down = subprocess.run([*map(str, d.argv), "--server=https://127.0.0.1:1"], input='{"verb": "groups", "cluster": "lab"}\n', env=d.env,
                              text=True, capture_output=True, timeout=DEADLINE_S)
        assert down.returncode == 1 and not down.stdout and down.stderr.startswith("kubectl: "), down


def test_dlrun_buys_and_gives_back(w):
    with lab(w) as here, kinds(here.c):
        d = Deployment(w, here.c, here.tag, f"tests/pool={here.tag}", "tests/fake:NoSchedule,nvidia.com/gpu:NoSchedule")
        w.env["PATH"] = d.env["PATH"]
        w.write("autoscale.yaml", json.dumps({"cluster": "lab", "limits": {"idle": "1s"}, "providers": [{"exec": d.argv}]}), base=w.tree)
        here.add_gang("g", RANKS)
        events = here.turn_ok()
        assert d.replicas() == RANKS and done(events, "grow"), events
        # The machines are on their way: none is bought again.
        assert here.turn_ok() == [] and d.replicas() == RANKS
        d.control()
        for machine in d.machines():
            fake_node(here.c.api, machine["metadata"]["name"], {"tests/pool": here.tag}, [FAKE, GPU], {
                "cpu": 64, "memory": "512Gi", "nvidia.com/gpu": GPUS}, providerID=machine["spec"]["providerID"])
        here.c.wait(lambda: len(here.bound()) == RANKS, "the gang on its machines", SOON_S)
        assert here.turn_ok() == []
        here.remove_pods()

        def given_back():
            here.turn_ok()
            d.control()
            return not d.replicas() and not here.nodes()
        wait_for(given_back, "the end of all machines", SOON_S)
        assert not d.machines()


if __name__ == "__main__":
    main()
