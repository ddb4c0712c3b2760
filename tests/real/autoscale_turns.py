#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns of `dlrun autoscale run --apply` with the provider of Auto Scaling groups, which are cut off: by kills at their
requests, before one arrives, and after its effect without the response, by regions without capacity, and by clocks that
step back. Whoever goes on buys nothing twice, ends nothing that runs, and leaves nothing behind. Between two requests
nothing outside changes, so that a kill just after one is that before the next. DLRUN_TESTS=all: at every request; else at
one of each kind that changes something, of several that are alike, and at the first of each kind that reads from AWS."""

import collections
import datetime

from harness import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))

from aws import Aws, Group  # noqa: E402
from kube_api import write_kubeconfig  # noqa: E402
from kube_fake import NODES, PODS, Cluster  # noqa: E402
from scripted import Answer  # noqa: E402

SYSTEM = "/api/v1/namespaces/dlrun-system/configmaps/"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/dlrun-system/leases/dlrun-autoscale"
EAST, WEST = "us-east-1", "us-west-2"
# Turns in which all has to be done, though one of them was killed.
TURNS = 10
REQUESTS = {"cpu": "3", "nvidia.com/gpu": "1"}


class Lab:
    """Two regions with a group each, `sizes` of which run pods. `room`: how many more machines the first one has."""

    def __init__(self, w, name, sizes, zones=("a", "b"), room=None):
        self.w, self.dir = w, w.dir / name
        self.dir.mkdir()
        self.cluster, self.aws = Cluster(), Aws(EAST, WEST)
        self.aws.now = lambda: datetime.datetime.fromtimestamp(self.cluster.now + self.ahead, datetime.timezone.utc)
        self.ahead = 0  # the clock of AWS, of the cluster's
        self.nodes, self.jobs, self.turns = {}, 0, 0
        for region, n in zip((EAST, WEST), sizes):
            group = self.aws.add(region, Group("gpu", size=(0, n, 10)))
            group.zones, group.slow = [region + zone for zone in zones], True
        self.east, self.west = (groups["gpu"] for groups in self.aws.groups.values())
        self.east.room = room
        self.busy = self.east.live()[0]
        self.boot()
        self.cluster.add_pod("busy", self.nodes[self.busy], **REQUESTS)
        self.submit(sum(sizes) - 1)
        self.boot()
        self.config = write_kubeconfig(self.dir / "kubeconfig", {"server": self.cluster.url}, {})
        settings = {"cluster": "lab", "limits": {"idle": "10s"}, "providers": [{"aws": {"regions": [EAST, WEST]}}]}
        w.write("autoscale.yaml", json.dumps(settings), base=self.dir)

    # --- what goes on without the autoscaler

    def boot(self):
        """Machines that have been launched become nodes, those that were ended are gone, and pods get nodes."""
        self.cluster.now += 15
        for group in (self.east, self.west):
            for instance, state in list(group.instances.items()):
                if state == "Pending":
                    group.instances[instance] = "InService"
                elif state == "InService" and instance not in self.nodes:
                    self.nodes[instance] = f"n-{instance}"
                    self.cluster.add_node(self.nodes[instance], instance)
                elif state == "Terminating":
                    del group.instances[instance]
                    self.cluster.set_ready(self.nodes[instance], "Unknown")
        for pod in self.cluster.list(PODS):
            free = [n["metadata"]["name"] for n in self.cluster.list(NODES) if self.is_free(n)]
            if free and not pod["spec"].get("nodeName"):
                pod["spec"]["nodeName"] = free[0]

    def is_free(self, node):
        on = self.cluster.list(PODS, f"spec.nodeName={node['metadata']['name']}")
        is_open = not node["spec"].get("unschedulable") and node["status"]["conditions"][0]["status"] == "True"
        return is_open and all(p["metadata"]["ownerReferences"] for p in on)

    def submit(self, n):
        for _ in range(n):
            self.jobs += 1
            self.cluster.add_pod(f"job{self.jobs}", **REQUESTS)

    def end_jobs(self):
        for i in range(self.jobs):
            del self.cluster.objects[f"{PODS}/job{i + 1}"]

    # --- the autoscaler

    def turn(self):
        """One that had the time for it on this machine."""
        while self.turn_once() != 0 and re.search(r"\[(autoscale\.lease|kube\.unreachable)\]", self.said):
            pass
        return self.child.returncode

    def turn_once(self):
        words = [self.w.dlrun, "autoscale", "run", "-t", "kube", "--settings", "autoscale.yaml", "--apply", "--once"]
        env = {**self.w.env, **self.aws.env, "KUBECONFIG": str(self.config)}
        self.child = subprocess.Popen(words, cwd=self.dir, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
        self.said = self.child.communicate(timeout=DEADLINE_S)[0]
        self.turns += 1
        # The Lease of one that was killed is over after a while.
        self.cluster.objects.pop(LEASE, None)
        return self.child.returncode

    def until(self, is_over, killed, after_turn=None):
        """Turns until it is over."""
        for n in range(TURNS):
            if self.turn() == -signal.SIGKILL:
                killed.append(self.turns)
            else:
                assert self.child.returncode == 0, self.said
            if after_turn:
                after_turn(n)
            self.boot()
            if is_over() and not self.under_way():
                return
        raise AssertionError(f"not over: {self.state()}, {self.sizes()}, {self.said}")

    def state(self):
        known = self.cluster.objects.get(SYSTEM + "dlrun-autoscale-state")
        return json.loads(known["data"]["state"])["groups"] if known else {}

    def under_way(self):
        return [g for g in self.state().values() if {"grow", "awaited"} & set(g)]

    def sizes(self):
        return [(g.desired, len(g.live())) for g in (self.east, self.west)]

    def grow(self, *about):
        self.submit(3)
        self.until(lambda: all(p["spec"].get("nodeName") for p in self.cluster.list(PODS)), *about)

    def shrink(self, *about):
        self.end_jobs()
        self.until(lambda: len(self.cluster.list(NODES)) == 1, *about)

    def judge(self, want, launches):
        """Machines of both groups, and how many there ever were."""
        is_right = self.sizes() == [(n, n) for n in want] and self.aws.count_launches == launches
        assert is_right, (self.sizes(), self.aws.count_launches, self.said)
        assert self.east.instances.get(self.busy) == "InService", self.east.instances
        for node in self.cluster.list(NODES):
            marks = node["metadata"].get("annotations", {})
            assert not node["spec"].get("unschedulable") and "dlrun/cordoned-by" not in marks, node

    # --- requests

    def name(self, request):
        """Of what it asks for."""
        if request in self.aws.requests:
            form = self.aws.form(request)
            return self.aws.region(request), form["Action"]
        return request.method, request.path

    def names(self):
        """Those so far, each with its number among those of its name."""
        found = collections.Counter()
        for request in self.cluster.requests + self.aws.requests:
            found[self.name(request)] += 1
            yield *self.name(request), found[self.name(request)]

    def kill_at(self, point, stage):
        """Of those from now on."""
        def strike(request, *_):
            self.child.kill()
            self.child.wait()
            return Answer(how="rst")
        for server in (self.cluster, self.aws):
            server.rule(lambda request: self.name(request) == point[:2], strike, nth=point[2], stage=stage)

    def clear(self):
        self.cluster.clear()
        self.aws.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.close()
        self.aws.close()


def chosen(points):
    """Cells of the points of a phase."""
    known = set()
    for method, what, nth in points:
        is_change = method in ("POST", "PUT", "PATCH", "DELETE") or what.startswith(("Set", "Launch", "Terminate"))
        # Nodes are alike; the Lease, and what is published for users, say nothing of machines.
        kind = method, re.sub("i-[0-9]+", "", what), nth
        is_of_machines = "leases" not in what and not what.endswith("/dlrun-autoscale")
        is_first = kind not in known and is_of_machines if is_change else method == EAST and nth == 1
        known.add(kind)
        for stage in ("before", "after"):
            if ALL or is_first and (is_change or stage == "after"):
                yield (method, what, nth), stage


def killed_everywhere(w, phase, want, launches, **about):
    """`want`: machines of both groups in the end, of which there were so many launches."""
    with Lab(w, "never", **about) as lab:
        getattr(lab, phase)([])
        lab.judge(want, launches)
        turns, cells = lab.turns, list(chosen(sorted(set(lab.names()))))

    def cell(at):
        point, stage = cells[at]
        killed = []
        try:
            with Lab(w, str(at), **about) as lab:
                lab.kill_at(point, stage)
                getattr(lab, phase)(killed)
                lab.judge(want, launches)
            # A Lease is renewed as often as a turn takes.
            assert len(killed) == 1 or "leases" in point[1], killed
        except AssertionError as error:
            raise AssertionError(f"killed {stage} {' '.join(map(str, point))}: {error}") from None
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        list(threads.map(cell, range(len(cells))))
    print(f"{phase}: killed at {len(cells)} points of {turns} turns in {time.monotonic() - begin:.0f} s", flush=True)


def test_the_next_region_is_asked_in_the_same_turn(w):
    """In which it is known that the first one has no capacity: that of the launch, or the one after that of a new size."""
    for zones in (("a",), ("a", "b")):
        with Lab(w, "-".join(zones), (1, 0), zones, room=0) as lab:
            lab.submit(2)
            for _ in zones:
                lab.clear()
                assert lab.turn() == 0, lab.said
            asked = [lab.name(r) for r in lab.aws.requests]
            known = asked.index((EAST, "LaunchInstances" if len(zones) == 1 else "DescribeScalingActivities"))
            bought = asked.index((WEST, "LaunchInstances" if len(zones) == 1 else "SetDesiredCapacity"))
            assert known < bought and lab.sizes() == [(1, 1), (2, 2)], (asked, lab.sizes(), lab.said)


def test_killed_while_a_region_has_no_capacity(w):
    """One machine comes from the first region, after its size was accepted, and two from the other one."""
    killed_everywhere(w, "grow", (2, 2), 4, sizes=(1, 0), room=1)


def test_killed_while_machines_are_launched_at_once(w):
    killed_everywhere(w, "grow", (2, 2), 4, sizes=(1, 0), room=1, zones=("a",))


def test_killed_while_machines_go(w):
    killed_everywhere(w, "shrink", (1, 0), 4, sizes=(2, 2))


def test_clocks_that_step_back(w):
    """After each of the first turns, that of the API server alone or AWS's too; while machines come, are idle, go, and
    are refused."""
    for back_s in (3600, 365 * 86400):
        for is_alone in (True, False):
            def step(lab, turn=0, back_s=back_s, is_alone=is_alone):
                if turn < 3:
                    lab.cluster.now -= back_s
                    lab.ahead += back_s * is_alone
            with Lab(w, f"{back_s}-{is_alone}", (1, 0), room=1) as lab:
                lab.grow([], lambda turn, lab=lab: step(lab, turn))
                lab.judge((2, 2), 4)
                lab.shrink([], lambda turn, lab=lab: step(lab, turn))
                lab.judge((1, 0), 4)
                lab.east.room, lab.west.max = 0, 0
                lab.submit(1)
                for _ in range(2):
                    assert lab.turn() == 0, lab.said
                failures = [g["failure"] for g in lab.state().values() if "failure" in g]
                assert lab.sizes()[0] == (1, 1) and failures == ["capacity"], (lab.sizes(), lab.state())
                step(lab)
                assert lab.turn() == 0, lab.said
                lab.east.room = None
                lab.cluster.now += 31 * 60
                assert lab.turn() == 0 and lab.sizes()[0] == (2, 2), (lab.sizes(), lab.state(), lab.said)


def test_a_lease_of_a_clock_that_is_ahead(w):
    """Who takes over counts by its own."""
    with Lab(w, "lease", (1, 0)) as lab:
        lab.cluster.put(LEASE, {"spec": {"holderIdentity": "gone", "leaseDurationSeconds": 15,
                                         "renewTime": "2099-01-01T00:00:00.000000Z"}})
        assert lab.turn() == 0, lab.said


if __name__ == "__main__":
    main()
