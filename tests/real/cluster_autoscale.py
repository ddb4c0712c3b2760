#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun autoscale plan` against a real API server and scheduler: what it plans is bought as fake nodes, and the scheduler then places all
pods there. Figures are for people to read. DLRUN_TESTS=all: 2,000 pods and 16 gangs of 64 nodes of 8 GPUs."""

import collections
import contextlib
import concurrent.futures
import json

from harness import *  # noqa: F403
from kubesite import site

PODS, GANGS, RANKS = (2000, 16, 64) if ALL else (300, 4, 8)
CHANGES = 10  # Exit status of a plan that has actions.
GPUS, CPUS = 8, 64
ROUNDS = 4
BIG = "big"  # A gang for which there are not enough machines.


class Lab:
    """Groups of machines of which each is a fake node, and what waits for them in a namespace."""

    def __init__(self, s):
        self.s, self.c, self.tag = s, s.cluster, s.namespace
        room = {"cpu": str(CPUS), "memory": "512Gi", "pods": 500, "ephemeral-storage": "1Ti"}
        fake = {"key": "tests/fake", "effect": "NoSchedule"}
        gpu = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
        most = GANGS * RANKS
        self.groups = [
            self.group("cpu", PODS, 3.0, room, [fake]),
            # Neither of the two has enough for all of them.
            self.group("gpu-a", most * 3 // 4, 30.0, {**room, "nvidia.com/gpu": GPUS}, [fake, gpu]),
            self.group("gpu-b", most // 2, 40.0, {**room, "nvidia.com/gpu": GPUS}, [fake, gpu]),
        ]

    def group(self, name, most, price, room, taints):
        return {"id": f"{self.tag}-{name}", "provider": "kwok", "min": 0, "max": most, "desired": 0, "price": price, "instances": [],
                "template": {"labels": {"tests/pool": self.tag, "tests/group": name}, "taints": taints, "room": room}}

    def plan(self):
        """(exit status, plan)"""
        self.s.w.write("groups.json", json.dumps({"dlrun_autoscale": 1, "cluster": "lab", "now": "2026-11-27T05:00:00Z",
                                                  "limits": {"step": 10000}, "groups": self.groups}), base=self.s.w.tree)
        done = self.s.w.run("autoscale", "plan", "-t", "k", "--groups", "groups.json", "--json")
        assert done.rc in (0, CHANGES), done
        plan = json.loads(done.out)["plan"]
        assert not plan["remarks"], plan["remarks"]
        return done.rc, plan

    def grow(self, actions):
        """Machines that are nodes at once."""
        wanted = []
        for action in actions:
            assert action["do"] == "grow", action
            group = next(g for g in self.groups if g["id"] == action["group"])
            assert len(group["instances"]) == group["desired"] == action["from"] < action["to"] <= group["max"], action
            for i in range(group["desired"], action["to"]):
                group["instances"].append({"id": f"{group['id']}-{i}", "state": "running"})
                wanted.append((f"{group['id']}-{i}", group["template"]))
            group["desired"] = action["to"]
        # The first node starts kwok.
        self.node(*wanted[0])
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda one: self.node(*one), wanted[1:]))
        return len(wanted)

    def node(self, name, template):
        room = {k: v for k, v in template["room"].items() if k == "nvidia.com/gpu"}
        self.c.fake_node(name, template["labels"], taints=template["taints"], **room)
        self.c.api("PATCH", f"/api/v1/nodes/{name}", {"spec": {"providerID": f"kwok://{name}"}}, kind="application/merge-patch+json")

    def close(self):
        for group in self.groups:
            for instance in group["instances"]:
                self.c.delete("Node", instance["id"])

    def spec(self, gpus=0, **requests):
        tolerations = [{"key": "tests/fake", "operator": "Exists"}]
        if gpus:
            requests["nvidia.com/gpu"] = gpus
            tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists"})
        asked = {k: str(v) for k, v in requests.items()}
        return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "nodeSelector": {"tests/pool": self.tag},
                "tolerations": tolerations, "containers": [{"name": "main", "image": "none", "resources": {
                    "requests": asked, "limits": {k: v for k, v in asked.items() if "/" in k}}}]}

    def add_pod(self, i):
        self.c.api("POST", f"/api/v1/namespaces/{self.tag}/pods", {"kind": "Pod", "apiVersion": "v1", "metadata": {
            "name": f"p{i}", "annotations": {"tests/hold": "1"}}, "spec": self.spec(cpu=(1, 2, 4, 8)[i % 4], memory=f"{1 + i % 7}Gi")})

    def add_gang(self, name, ranks=RANKS, suspend=False):
        """As dlrun's Jobs are."""
        labels = {"dlrun.io/run-id": name, "dlrun.io/attempt": "1"}
        self.c.apply({"kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": {
            "suspend": suspend, "completionMode": "Indexed", "completions": ranks, "parallelism": ranks, "backoffLimit": 0,
            "template": {"metadata": {"labels": labels, "annotations": {"tests/hold": "1"}},
                         "spec": self.spec(GPUS, cpu=48, memory="400Gi")}}}, namespace=self.tag)

    def pods(self):
        return self.c.get("Pod", namespace=self.tag)

    def unschedulable(self):
        return [p for p in self.pods() if not p["spec"].get("nodeName") and any(
            c.get("reason") == "Unschedulable" for c in p.get("status", {}).get("conditions", []))]

    def settle(self, n, what):
        """So many pods are there, and the scheduler has judged all of them."""
        def settled():
            pods = self.pods()
            bound = sum(bool(p["spec"].get("nodeName")) for p in pods)
            return len(pods) == n and bound + len(self.unschedulable()) == n
        self.c.wait(settled, what, 900 if ALL else 120, least=4 if ALL else 0.5)


def look(s):
    """The user may read what a plan is made from."""
    name = f"{s.namespace}-look"
    s.cluster.apply(
        {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [
            {"apiGroups": [""], "resources": ["nodes", "pods", "persistentvolumes", "persistentvolumeclaims"], "verbs": ["list"]},
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]},
            {"apiGroups": ["jobset.x-k8s.io", "kueue.x-k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"], "resources": ["*"],
             "verbs": ["list"]}]},
        {"kind": "ClusterRoleBinding", "metadata": {"name": name},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
         "subjects": [{"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}]})
    return name


@contextlib.contextmanager
def lab(w):
    with site(w, alone=True) as s:
        role, here = look(s), Lab(s)
        try:
            # Runs that wait in namespaces of the tests before, which are going, would be counted.
            s.cluster.wait(lambda: [n for n in (o["metadata"]["name"] for o in s.cluster.api("GET", "/api/v1/namespaces")["items"])
                                    if n.startswith("t-")] == [s.namespace], "that no other namespace is left", 120)
            yield here
        finally:
            # Nodes last: who deletes them first has pods that nobody ends.
            for path, query in ((f"/apis/batch/v1/namespaces/{s.namespace}/jobs", {"propagationPolicy": "Background"}),
                                (f"/api/v1/namespaces/{s.namespace}/pods", {"gracePeriodSeconds": "0"})):
                # The server may cut a request for so many.
                s.cluster.wait(lambda path=path, query=query: s.cluster.api("DELETE", path, **query), f"the end of {path}", 300)
            here.close()
            s.cluster.delete("ClusterRoleBinding", role)
            s.cluster.delete("ClusterRole", role)


def test_what_is_planned_is_what_the_scheduler_places(w):
    with lab(w) as here:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(here.add_pod, range(PODS)))
        # The last waits without pods, as those do that are held.
        for i in range(GANGS):
            here.add_gang(f"g{i}", suspend=i == GANGS - 1)
        here.add_gang(BIG, 2 * GANGS * RANKS, suspend=True)
        here.settle(PODS + (GANGS - 1) * RANKS, "pods that wait")
        begin = time.monotonic()
        rc, plan = here.plan()
        first_s = time.monotonic() - begin
        whole = PODS + GANGS * RANKS
        found = (rc, plan["waiting"], plan["helped"])
        assert found == (CHANGES, whole + 2 * GANGS * RANKS, whole), (found, plan["actions"], plan["not_helped"])
        assert [n["gang"] for n in plan["not_helped"]] == [f"{here.tag}/{BIG}"], plan["not_helped"]
        planned = collections.Counter(p["group"] for p in plan["placements"] if p.get("group") for _ in range(p["pods"]))
        bought = here.grow(plan["actions"])
        nodes_s = time.monotonic() - begin
        here.add_gang(f"g{GANGS - 1}")
        bound = plan["bound"]
        assert bought == bound["nodes"], (bought, bound)
        more = []
        for _ in range(ROUNDS):
            here.settle(whole, "pods that are placed, or cannot be")
            rc, plan = here.plan()
            if rc == 0:
                break
            # The scheduler spreads pods rather than packs them: the rest of the small ones needs a little more.
            more.append(here.grow(plan["actions"]))
        seconds = time.monotonic() - begin
        assert rc == 0 and not here.unschedulable(), (rc, plan["actions"], [p["metadata"]["name"] for p in here.unschedulable()])
        judge(here, bound, bought, more, planned)
        print(f"from the last pod that cannot be scheduled: a plan after {first_s:.2f} s, the last node of it after {nodes_s:.1f} s, all "
              f"pods are placed and the plan is empty after {seconds:.1f} s", flush=True)


def judge(here, bound, bought, more, planned):
    gangs, placed = collections.Counter(), collections.Counter()
    for pod in here.pods():
        gangs[pod["metadata"].get("labels", {}).get("dlrun.io/run-id")] += 1
        placed[pod["spec"]["nodeName"].rpartition("-")[0]] += 1
    assert placed == planned, (placed, planned)
    assert gangs == {None: PODS, **{f"g{i}": RANKS for i in range(GANGS)}}, gangs
    # A pod of a gang takes a machine with GPUs: as many are there as whole gangs need, and none for a part of the large one.
    n_gpu = sum(g["desired"] for g in here.groups[1:])
    assert n_gpu == GANGS * RANKS, n_gpu
    nodes, least = bought + sum(more), bound["nodes_least"]
    print(f"{PODS} pods and {GANGS} gangs of {RANKS} x {GPUS} GPUs: {nodes} nodes ({bought} at once, later {more}), no packing needs fewer than "
          f"{least}: {100 * (nodes - least) / least:.1f} % over, the plan {100 * (bought - least) / least:.1f} %", flush=True)
    assert bought <= 1.02 * least + 1 and nodes <= 1.1 * least + 2, (bought, more, least)


def test_who_may_not_read_is_told(w):
    """Pods and nodes are needed; the rest is a remark."""
    with site(w) as s:
        s.w.write("groups.json", json.dumps({"dlrun_autoscale": 1, "cluster": "lab", "now": "2026-11-27T05:00:00Z"}), base=s.w.tree)
        done = s.w.run("autoscale", "plan", "-t", "k", "--groups", "groups.json")
        check_error_form(done.err, "kube.denied")
        name = f"{s.namespace}-few"
        s.cluster.apply(
            {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [
                {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]},
            {"kind": "ClusterRoleBinding", "metadata": {"name": name},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
             "subjects": [{"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}]})
        try:
            def planned():
                done = s.w.run("autoscale", "plan", "-t", "k", "--groups", "groups.json", "--json")
                return done.rc in (0, CHANGES) and json.loads(done.out)["plan"]["remarks"]
            remarks = s.cluster.wait(planned, "a plan with remarks")
            assert any("/apis/batch/v1/jobs is not known" in r for r in remarks), remarks
        finally:
            s.cluster.delete("ClusterRoleBinding", name)
            s.cluster.delete("ClusterRole", name)


if __name__ == "__main__":
    main()
