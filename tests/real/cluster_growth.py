#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users are told of a cluster that its autoscaler makes grow. The ConfigMap that the autoscaler writes is written here."""

import contextlib
import json
import time

from harness import *  # noqa: F403
from kubesite import site

SPACE, NAME = "dlrun-system", "dlrun-autoscale"
PRICE = 3600  # Of an hour: one for a second.


class Growth:
    def __init__(self, s):
        self.s, self.c = s, s.cluster
        self.nodes = [node["metadata"]["name"] for node in self.c.get("Node")]

    def write(self, ago_s=0, waiting=(), price=PRICE, applies=True):
        updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        room = {"cpu": 96, "memory": "1Ti", "ephemeral-storage": "1Ti"}
        groups = [
            {"id": "gpu-a", "max": 4, "desired": 0, "price": 32.77, "boot_s": 180,
             "template": {"labels": labels, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
                          "room": {**room, "nvidia.com/gpu": 8}}},
            # Its price is that of the real nodes, of which a run has a half.
            {"id": "cpu-a", "max": 4, "desired": 4, "price": price, "nodes": self.nodes,
             "template": {"labels": labels, "room": {**room, "cpu": 1}}},
        ]
        self.c.apply({"kind": "ConfigMap", "metadata": {"name": NAME, "namespace": SPACE}, "data": {"growth": json.dumps({
            "version": 1, "cluster": "tests", "updated": updated, "every_s": 15, "applies": applies, "groups": groups,
            "waiting": list(waiting)})}})

    def may_read(self):
        name = f"{self.s.namespace}-growth"
        self.c.apply({"kind": "Role", "metadata": {"name": name, "namespace": SPACE}, "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}]})
        self.c.apply({"kind": "RoleBinding", "metadata": {"name": name, "namespace": SPACE},
                      "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                      "subjects": [{"kind": "User", "name": self.s.user, "apiGroup": "rbac.authorization.k8s.io"}]})


@contextlib.contextmanager
def growing(w):
    """No other test sees the ConfigMap: its name is that of a cluster. The user may list nodes."""
    with site(w, base="busybox", alone=True) as s:
        c, name = s.cluster, f"{s.namespace}-nodes"
        c.apply({"kind": "Namespace", "metadata": {"name": SPACE}},
                {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [
                    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]},
                {"kind": "ClusterRoleBinding", "metadata": {"name": name},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                 "subjects": [{"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}]})
        try:
            yield Growth(s)
        finally:
            c.delete("ConfigMap", NAME, SPACE)
            c.delete("RoleBinding", f"{s.namespace}-growth", SPACE)
            c.delete("Role", f"{s.namespace}-growth", SPACE)
            c.delete("ClusterRoleBinding", name)
            c.delete("ClusterRole", name)


def test_a_run_waits_for_a_node_that_is_bought(w):
    with growing(w) as g:
        s = g.s

        def refused():
            done = s.w.run("submit", "-d", "-g", "8", "--", "true")
            return done.rc != 0 and "no node" in done.err and done

        # What may not be read is not told.
        g.write()
        done = s.cluster.wait(refused, "a refusal of the run, as its user may list nodes by now")
        check_error_form(done.err, "sched.impossible")
        assert "autoscaler" not in done.err and "bought" not in done.err, done.err
        g.may_read()

        def accepted():
            done = s.w.run("submit", "-d", "-g", "8", "--", "true")
            return done.rc == 0 and done

        done = s.cluster.wait(accepted, "a run that no present node holds")
        assert "one of group gpu-a is bought (about 3 min, 32.77 an hour)" in done.err, done.err
        run = done.out.strip()
        # Of larger nodes there are none.
        done = s.w.run("submit", "-d", "-g", "16", "--", "true")
        check_error_form(done.err, "sched.impossible")
        assert "no node is bought of gpu-a: a machine of it has 8 nvidia.com/gpu, not 16" in done.err, done.err

        pods = s.cluster.wait(lambda: s.cluster.get("Pod", namespace=s.namespace), "its pod")
        name = f"{s.namespace}/{pods[0]['metadata']['name']}"
        expected = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        g.write(waiting=[{"name": name, "group": "gpu-a", "expected": expected}])
        s.said_within(run, "a node of group gpu-a is expected in", "no node has 8 free GPUs")
        g.write(waiting=[{"name": name, "reasons": ["gpu-a: its maximum is 4"]}])
        s.said_within(run, "no node is bought of gpu-a: its maximum is 4")
        g.write(waiting=[{"name": name, "group": "gpu-a"}], applies=False)
        s.said_within(run, "would buy a node of group gpu-a, but only plans")
        g.write(ago_s=3600, waiting=[{"name": name, "group": "gpu-a", "expected": expected}])
        s.said_within(run, "the cluster's autoscaler has been silent since")
        # Among several targets it is one where the run would wait.
        g.write()
        other = s.submit("-t", "k,local", "-g", "8", "--", "true")
        texts = {place["target"]: place["text"] for place in s.w.show(other)["places"]}
        assert "one of group gpu-a is bought" in texts["k"], texts
        s.cancel(run, other)


def test_the_cost_of_a_run(w):
    with growing(w) as g:
        s = g.s
        g.write()
        unknown = s.submit("--cpus", "0.5", "--", "true")
        assert "cost" not in s.ended(unknown)
        g.may_read()

        def priced():
            run = s.submit("--cpus", "0.5", "--", "sleep", "2")
            record = s.ended(run)
            return record.get("cost") and record

        record = s.cluster.wait(priced, "a run whose user may read prices by now")
        cost = record["cost"]
        # Half of a node, and a little for what stands beside the program, for 2 s.
        assert cost["group"] == "cpu-a" and 0.5 <= cost["nodes"] < 0.6 and cost["amount"] >= 1, cost
        assert abs(cost["per_hour"] - cost["nodes"] * PRICE) < 1e-6, cost
        # It stays what it was.
        g.write(price=2 * PRICE)
        assert s.w.show(record["id"])["cost"] == cost
        line = f"about {cost['amount']:.2f} ({cost['nodes']:.3g} nodes of cpu-a for "
        assert line in s.w.ok("show", record["id"]).out
        assert f"{cost['amount']:.5g}"[:4] in s.w.ok("ps", "-o", "cost.amount", "-a").out


if __name__ == "__main__":
    main()
