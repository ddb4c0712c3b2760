#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups whose machines come up otherwise than their template says, with `dlrun autoscale run --apply` and providers of Auto
Scaling groups and of exec: a machine is bought once for pods that it does not hold, again after a time that doubles, and at
once when the template has changed; `plan` says what is wrong."""

from harness import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))

from aws import Aws, Group  # noqa: E402
from kube_api import write_kubeconfig  # noqa: E402
from kube_fake import NODES, PODS, Cluster  # noqa: E402

EAST, MINUTE = "us-east-1", 60
LEASE = "/apis/coordination.k8s.io/v1/namespaces/dlrun-system/leases/dlrun-autoscale"
LABEL = "k8s.io/cluster-autoscaler/node-template/label/"
PROVIDER = """#!/usr/bin/env python3
import json, sys
path, request = sys.argv[1], json.loads(sys.stdin.readline())
group = json.load(open(path))
made = group.pop("made", 0)
if request["verb"] == "groups":
    print(json.dumps({"groups": [group]}))
    sys.exit()
group["desired"] = request.get("to", group["desired"])
if request["verb"] == "grow":
    while len(group["instances"]) < group["desired"]:
        made += 1
        group["instances"].append({"id": f"m-{made}"})
gone = request.get("instances", [])
group["instances"] = [i for i in group["instances"] if i["id"] not in gone]
json.dump({**group, "made": made}, open(path, "w"))
print(json.dumps({"grow": {"accepted": group["desired"], "instances": []}, "status": {"failed": []},
                  "shrink": {"instances": [{"id": i, "gone": True} for i in gone]}}[request["verb"]]))
"""


class OfExec:
    """One group whose machines are names in a file."""

    def __init__(self, w):
        self.path, self.id, self.env = w.dir / "machines.json", "gpu", {}
        room = {"cpu": "4", "memory": "16Gi", "pods": 58, "nvidia.com/gpu": 1}
        self.path.write_text(json.dumps({"id": "gpu", "max": 10, "desired": 0, "price": 1, "instances": [],
                                         "template": {"labels": {"pool": "gpu"}, "room": room}}))
        w.write("machines", PROVIDER)
        (w.tree / "machines").chmod(0o755)
        self.settings = {"exec": [str(w.tree / "machines"), str(self.path)]}

    def live(self):
        return [i["id"] for i in json.loads(self.path.read_text())["instances"]]

    def says(self, pool):
        group = json.loads(self.path.read_text())
        group["template"]["labels"] = {"pool": pool}
        self.path.write_text(json.dumps(group))

    def close(self):
        pass


class OfAws:
    def __init__(self, w):
        self.server = Aws(EAST)
        self.group = self.server.add(EAST, Group("gpu", tags=[(LABEL + "pool", "gpu")]))
        self.id, self.env, self.settings = f"gpu@{EAST}", self.server.env, {"aws": {"regions": [EAST]}}

    def live(self):
        return self.group.live()

    def says(self, pool):
        self.group.tags[LABEL + "pool"] = pool

    def close(self):
        self.server.close()


class Lab:
    def __init__(self, w, machines, idle="30s"):
        self.w, self.machines, self.cluster = w, machines, Cluster()
        self.bought = set()
        self.config = write_kubeconfig(w.dir / "kubeconfig", {"server": self.cluster.url}, {})
        w.write("autoscale.yaml", json.dumps({"cluster": "lab", "limits": {"idle": idle}, "providers": [machines.settings]}))

    def run(self, *words):
        return self.w.run("autoscale", *words, "-t", "kube", "--settings", "autoscale.yaml",
                          env={**self.machines.env, "KUBECONFIG": str(self.config)})

    def turn(self, after=15):
        """How many machines it bought."""
        self.cluster.now += after
        done = self.run("run", "--apply", "--once")
        assert done.rc == 0, done
        self.cluster.objects.pop(LEASE, None)
        new = set(self.machines.live()) - self.bought
        self.bought |= new
        return len(new)

    def boot(self, labels=None, taints=()):
        """All machines are nodes, and what is no machine any more is none."""
        live = self.machines.live()
        for machine in live:
            if f"{NODES}/n-{machine}" in self.cluster.objects:
                continue
            self.cluster.add_node(f"n-{machine}", machine)
            node = self.cluster.objects[f"{NODES}/n-{machine}"]
            node["metadata"]["labels"], node["spec"]["taints"] = labels or {}, list(taints)
        return [f"n-{machine}" for machine in live]

    def submit(self, name, selector=None):
        self.cluster.add_pod(name, cpu="1", **{"nvidia.com/gpu": "1"})
        self.cluster.objects[f"{PODS}/{name}"]["spec"]["nodeSelector"] = selector or {}

    def reasons(self):
        made = json.loads(self.run("plan", "--json").out)["plan"]
        return [(r["group"], r["text"]) for n in made["not_helped"] for r in n["reasons"]]

    def until_gone(self):
        """The machine is idle and given back; nothing is bought meanwhile."""
        for _ in range(10):
            assert self.turn(31) == 0
            live = self.machines.live()
            for path in [p for p in self.cluster.objects if p.startswith(NODES + "/n-") and p.partition("/n-")[2] not in live]:
                del self.cluster.objects[path]
            if not live:
                return
        raise AssertionError(self.cluster.objects)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.close()
        self.machines.close()


def without_label(w, machines):
    with Lab(w, machines) as lab:
        lab.submit("job", {"pool": "gpu"})
        assert lab.turn() == 1
        node, = lab.boot()
        # Its agents may still set the label.
        assert [lab.turn() for _ in range(3)] == [0, 0, 0]
        assert not lab.reasons()
        assert lab.turn(6 * MINUTE) == 0
        want = (machines.id, f"node {node} came without label pool=gpu, which is in the template")
        assert lab.reasons() == [want], lab.reasons()
        published = lab.cluster.objects["/api/v1/namespaces/dlrun-system/configmaps/dlrun-autoscale"]["data"]["growth"]
        assert want[1] in published, published
        lab.until_gone()
        assert lab.reasons() == [want], lab.reasons()
        # Pods that it fits have a machine.
        lab.submit("any")
        assert lab.turn() == 1
        del lab.cluster.objects[f"{PODS}/any"]
        lab.boot()
        lab.until_gone()
        # The next one after a while, which doubles.
        bought = lab.turn(21 * MINUTE)
        assert bought == 1, lab.reasons()
        lab.boot()
        assert lab.turn(6 * MINUTE) == 0
        lab.until_gone()
        assert lab.turn(21 * MINUTE) == 0
        # A template that says something else is tried at once, and one that is right is used.
        machines.says("gpus")
        lab.submit("other", {"pool": "gpus"})
        assert lab.turn() == 1
        lab.boot({"pool": "gpus"})
        assert lab.turn(6 * MINUTE) == 0
        assert [text for _, text in lab.reasons()] == ["its label pool is gpus, not gpu"], lab.reasons()
        lab.submit("third", {"pool": "gpus"})
        assert lab.turn() == 1


def test_machines_of_exec_without_a_label(w):
    without_label(w, OfExec(w))


def test_machines_of_aws_without_a_label(w):
    without_label(w, OfAws(w))


def test_machines_with_a_taint_or_another_value(w):
    """The second at once; and a label that comes late is waited for."""
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    with Lab(w, OfExec(w), idle="1h") as lab:
        lab.submit("job", {"pool": "gpu"})
        assert lab.turn() == 1
        node, = lab.boot({"pool": "cpu"})
        assert [lab.turn() for _ in range(2)] == [0, 0]
        assert [text for _, text in lab.reasons()] == [f"node {node} came with label pool=cpu, not with pool=gpu as the template says"]
        lab.cluster.objects[f"{NODES}/{node}"]["metadata"]["labels"] = {"pool": "gpu"}
        lab.cluster.objects[f"{PODS}/job"]["spec"]["nodeName"] = node
        assert lab.turn(6 * MINUTE) == 0
        lab.submit("next", {"pool": "gpu"})
        assert lab.turn() == 1
        node = lab.boot({"pool": "gpu"}, [taint])[1]
        assert [lab.turn(), lab.turn(6 * MINUTE), lab.turn()] == [0, 0, 0]
        assert [text for _, text in lab.reasons()] == [f"node {node} came with taint team=a:NoSchedule, which is not in the template"]
        # Somebody takes it away.
        lab.cluster.objects[f"{NODES}/{node}"]["spec"]["taints"] = []
        assert lab.turn() == 0 and not lab.reasons()


def test_machines_without_their_gpu(w):
    """It is waited for as long as a machine may take, and then no other one is bought."""
    with Lab(w, OfExec(w)) as lab:
        lab.submit("job", {"pool": "gpu"})
        assert lab.turn() == 1
        node, = lab.boot({"pool": "gpu"})
        del lab.cluster.objects[f"{NODES}/{node}"]["status"]["allocatable"]["nvidia.com/gpu"]
        assert [lab.turn(), lab.turn(20 * MINUTE), lab.turn(6 * MINUTE)] == [0, 0, 0]
        want = "a machine of it has no nvidia.com/gpu: its nodes leave less than its template says"
        assert [text for _, text in lab.reasons()] == [want], lab.reasons()
        lab.until_gone()
        assert [text for _, text in lab.reasons()] == [want], lab.reasons()


if __name__ == "__main__":
    main()
