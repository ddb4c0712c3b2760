#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun autoscale run --apply` against a real API server and scheduler; machines are fake nodes that tests/real/kwok_provider.py makes
and ends. It is killed at each call of the provider, runs twice, and loses the API server: nothing is bought twice, nothing that runs ends."""

import collections
import concurrent.futures
import contextlib
import fcntl
import json
import resource
import signal
import threading

from cluster_away import Relay, config_through
from harness import *  # noqa: F403
from kube_api import ApiError, fake_node
from kubesite import site
from kwok_provider import Machines, machine_node

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))

from aws import Aws, Group  # noqa: E402

SYSTEM = "dlrun-system"
GPUS, RANKS = 8, 4
FAKE = {"key": "tests/fake", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
# The other nodes of the cluster, whose machines nobody knows, cannot be machines of these groups.
KIND = {"kubernetes.io/arch": "arm64"}
# Calls of the provider at which it is killed: each before and after its effect, or those that buy and give back.
CELLS = [(v, t) for v in ("groups", "grow", "status", "shrink") for t in ("before", "after")] if ALL else [
    ("grow", "before"), ("grow", "after"), ("shrink", "after")]
AWAY_S = 60 if ALL else 15
# The whole of it: pods without a gang, and gangs of so many machines.
PODS, GANGS, WIDE = (2000, 16, 64) if ALL else (40, 3, 4)
WHOLE_S, LOOK_S = (1200, 5) if ALL else (120, 0.5)
# For what takes a few turns, on a machine that has a lot else to do.
SOON_S = 60
RULES = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "persistentvolumes", "persistentvolumeclaims"], "verbs": ["list", "get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]},
    {"apiGroups": ["jobset.x-k8s.io", "kueue.x-k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"], "resources": ["*"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "update"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
]


class Lab:
    """Groups of machines, what waits for them in a namespace, and autoscalers."""

    def __init__(self, s, sizes, **settings):
        self.s, self.c, self.w, self.tag = s, s.cluster, s.w, s.namespace
        room = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": str(GPUS)}
        self.groups = [{"id": self.id(name), "min": 0, "max": most, "desired": 0, "price": 10.0 + i,
                        "template": {"labels": {"tests/pool": self.tag, **KIND}, "taints": [FAKE, GPU], "room": {**room}}}
                       for i, (name, most) in enumerate(sizes.items())]
        # One without GPUs, whose pods select it.
        self.small = "small" in sizes and next(g["template"] for g in self.groups if g["id"] == self.id("small"))
        if self.small:
            self.small["labels"]["tests/pool"], self.small["taints"] = f"{self.tag}-small", [FAKE]
            del self.small["room"]["nvidia.com/gpu"]
        self.machines = Machines(self.w.dir / "machines", self.groups, self.c)
        self.settings(**settings)
        self.started = []

    def id(self, name):
        return f"{self.tag}-{name}"

    def settings(self, every="1s", **limits):
        self.w.write("autoscale.yaml", json.dumps({
            "cluster": "lab", "every": every, "limits": {"idle": "2s", **limits},
            "providers": [{"exec": self.machines.exec}]}), base=self.w.tree)

    def words(self, *more):
        return ("autoscale", "run", "-t", "k", "--settings", "autoscale.yaml", "--apply", *more)

    def turn(self):
        """The events of one, which ends by itself."""
        self.last = self.w.run(*self.words("--once", "--json"))
        return [json.loads(line) for line in self.last.out.splitlines()]

    def turn_ok(self):
        events = self.turn()
        assert self.last.rc == 0, self.last
        return events

    def start(self, *more):
        log = open(self.w.dir / f"log-{len(self.started)}", "wb")
        child = subprocess.Popen([self.w.dlrun, *self.words(*more)], cwd=self.w.tree, env=self.w.env, stdin=subprocess.DEVNULL,
                                 stdout=log, stderr=subprocess.STDOUT)
        child.log = Path(log.name)
        self.started.append(child)
        return child

    def said(self):
        return "\n".join(c.log.read_text() for c in self.started)

    # --- pods

    def spec(self, gpus):
        return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "nodeSelector": {"tests/pool": self.tag},
                "tolerations": [{"key": "tests/fake", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": str(gpus)}}}]}

    def add_pods(self, n, gpus=GPUS, name="p"):
        for i in range(n):
            self.c.api("POST", f"/api/v1/namespaces/{self.tag}/pods", {"kind": "Pod", "apiVersion": "v1", "metadata": {
                "name": f"{name}{i}", "annotations": {"tests/hold": "1"}}, "spec": self.spec(gpus)})
        self.judged()

    def add_gang(self, name, ranks, suspend=False, wait=True):
        """As dlrun's Jobs are."""
        labels = {"dlrun.io/run-id": name, "dlrun.io/attempt": "1"}
        self.c.apply({"kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": {
            "suspend": suspend, "completionMode": "Indexed", "completions": ranks, "parallelism": ranks, "backoffLimit": 0,
            "template": {"metadata": {"labels": labels, "annotations": {"tests/hold": "1"}}, "spec": self.spec(GPUS)}}}, namespace=self.tag)
        if not wait:
            return
        self.c.wait(lambda: len(self.pods()) == ranks, f"the pods of {name}")
        self.judged()

    def pods(self):
        return self.c.get("Pod", namespace=self.tag)

    def bound(self):
        return [p for p in self.pods() if p["spec"].get("nodeName")]

    def add_small(self, i):
        """A pod for a machine without GPUs."""
        spec = {**self.spec(0), "nodeSelector": self.small["labels"]}
        spec["containers"][0]["resources"] = {"requests": {"cpu": str((1, 2, 4, 8)[i % 4]), "memory": f"{1 + i % 7}Gi"}}
        self.c.api("POST", f"/api/v1/namespaces/{self.tag}/pods", {"kind": "Pod", "apiVersion": "v1", "metadata": {
            "name": f"s{i}", "annotations": {"tests/hold": "1"}}, "spec": spec})

    def judged(self, n=0, seconds=SOON_S):
        """The scheduler has looked at all pods, at least so many."""
        def judged():
            pods = self.pods()
            return len(pods) >= n and all(p["spec"].get("nodeName") or p.get("status", {}).get("conditions") for p in pods)
        self.c.wait(judged, "the scheduler", seconds, least=LOOK_S)

    def remove_pods(self):
        for path, query in ((f"/apis/batch/v1/namespaces/{self.tag}/jobs", {"propagationPolicy": "Background"}),
                            (f"/api/v1/namespaces/{self.tag}/pods", {"gracePeriodSeconds": "0"})):
            # The server may cut a request for so many.
            self.c.wait(lambda path=path, query=query: self.c.api("DELETE", path, **query), f"the end of {path}", WHOLE_S)
        self.c.wait(lambda: not self.pods(), "the end of the pods", WHOLE_S)

    # --- machines

    def nodes(self):
        return [n for n in self.c.get("Node") if n["metadata"]["labels"].get("tests/pool") in (self.tag, f"{self.tag}-small")]

    def sizes(self):
        """Of the groups that have machines."""
        found = {g["id"].removeprefix(f"{self.tag}-"): len(self.machines.machines(g["id"])) for g in self.groups}
        return {name: n for name, n in found.items() if n}

    def close(self):
        for child in self.started:
            child.kill()
            child.wait()
        with contextlib.suppress(AssertionError):
            self.remove_pods()
        self.machines.close()


@contextlib.contextmanager
def lab(w, *, settings=None, **sizes):
    """One at a time: a cluster has one autoscaler."""
    with site(w) as s, open(s.cluster.dir / "autoscale.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        c, name = s.cluster, f"{s.namespace}-scale"
        c.apply({"kind": "Namespace", "metadata": {"name": SYSTEM}})
        c.apply({"kind": "ClusterRole", "metadata": {"name": name}, "rules": RULES},
                {"kind": "ClusterRoleBinding", "metadata": {"name": name},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                 "subjects": [{"kind": "User", "name": s.user, "apiGroup": "rbac.authorization.k8s.io"}]})
        forget(c)
        here = Lab(s, sizes, **(settings or {}))
        try:
            yield here
        finally:
            here.close()
            forget(c)
            c.delete("ClusterRoleBinding", name)
            c.delete("ClusterRole", name)


def forget(c):
    c.delete("ConfigMap", "dlrun-autoscale-state", SYSTEM)
    c.delete("ConfigMap", "dlrun-autoscale", SYSTEM)
    c.delete("Lease", "dlrun-autoscale", SYSTEM)


def done(events, what):
    return [e for e in events if e["do"] == what and not e["problem"]]


def test_what_waits_gets_machines_and_they_go_when_it_has_ended(w):
    with lab(w, a=8, b=8) as here:
        here.add_gang("g", RANKS)
        here.add_pods(2)
        loop = here.start("--json")
        here.c.wait(lambda: len(here.bound()) == RANKS + 2, "all pods on machines", SOON_S)
        assert here.sizes() == {"a": RANKS + 2}, (here.sizes(), here.said())
        growth = json.loads(here.c.get("ConfigMap", "dlrun-autoscale", SYSTEM)["data"]["growth"])
        assert growth["applies"] and {g["id"]: g["desired"] for g in growth["groups"]}[here.id("a")] == RANKS + 2, growth
        here.remove_pods()
        here.c.wait(lambda: not here.nodes(), "the end of all machines", SOON_S)
        assert not here.sizes(), here.sizes()
        loop.terminate()
        assert loop.wait(30) == 0, here.said()
        text = here.said()
        # It was cordoned a turn before, and no machine is asked for or ended twice.
        assert text.count('"do":"cordon"') == RANKS + 2 and "problem\":true" not in text, text
        assert sum(len(c["instances"]) for c in here.machines.calls("shrink")) == RANKS + 2, here.machines.calls("shrink")
        assert len(here.machines.calls("grow")) <= 2, here.machines.calls("grow")
        # The Lease was given up: the next one does not wait.
        begin = time.monotonic()
        here.turn_ok()
        print(f"the next autoscaler had the Lease after {time.monotonic() - begin:.1f} s", flush=True)
        assert here.c.get("Lease", "dlrun-autoscale", SYSTEM)["spec"]["holderIdentity"] == ""


class Usage:
    """What a process of a turn took."""

    def __init__(self, here, *words):
        begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.done = here.w.run(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.s, self.cpu_s = time.monotonic() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def __str__(self):
        return f"{self.s:.1f} s, {self.cpu_s:.2f} s of CPU with its providers"


def peak(child):
    """(MiB, seconds of CPU) of a process that runs, without what it started."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    ticks = Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2].split()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10, sum(map(int, ticks[11:13])) / os.sysconf("SC_CLK_TCK")


class Boots:
    """Machines become nodes by themselves, not in a call of their provider."""

    def __init__(self, here):
        self.here, self.over, self.thread = here, threading.Event(), threading.Thread(target=self.run)
        here.machines.faults(boot={g["id"]: -1 for g in here.groups})

    def run(self):
        made = set()

        def make(group, name):
            with contextlib.suppress(ApiError, OSError):  # It is tried again.
                machine_node(self.here.c.api, group["template"], name)
                made.add(name)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            while not self.over.wait(0.2):
                for group in self.here.groups:
                    new = {m["id"] for m in self.here.machines.machines(group["id"])} - made
                    list(threads.map(lambda name, group=group: make(group, name), new))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def by_group(names):
    return collections.Counter(n.rpartition("-")[0] for n in names)


def test_the_whole_of_it(w):
    """Small pods and gangs that one group has not enough machines for: what a plan says is what is bought and what the scheduler then
    places. No machine is there for a part of a gang. DLRUN_TESTS=all: 2,000 pods and 16 gangs of 64 machines of 8 GPUs."""
    most = GANGS * WIDE
    with lab(w, small=PODS, a=most * 3 // 4, b=most, settings={"step": 10000, "idle": "20m", "every": "10s" if ALL else "1s"}) as here, \
            Boots(here):
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(here.add_small, range(PODS)))
        for i in range(GANGS):
            here.add_gang(f"g{i}", WIDE, wait=False)
        # Neither of the groups has enough for this one, nor have both.
        here.add_gang("big", 2 * most, suspend=True, wait=False)
        whole = PODS + most
        here.judged(whole, WHOLE_S)
        seen = Usage(here, "autoscale", "plan", "-t", "k", "--settings", "autoscale.yaml", "--json")
        plan = json.loads(seen.done.out)["plan"]
        assert (plan["helped"], plan["waiting"]) == (whole, whole + 2 * most), (plan["helped"], plan["waiting"], plan["not_helped"])
        planned = collections.Counter({p["group"]: 0 for p in plan["placements"] if p.get("group")})
        for p in plan["placements"]:
            planned[p.get("group")] += p["pods"] if p.get("group") else 0
        planned.pop(None, None)
        begin = time.monotonic()
        loop = here.start("--json")
        here.c.wait(lambda: len(here.nodes()) >= plan["bound"]["nodes"], "the machines of the plan", WHOLE_S, least=LOOK_S)
        nodes_s = time.monotonic() - begin
        here.c.wait(lambda: len(here.bound()) == whole, "all pods on machines", WHOLE_S, least=LOOK_S)
        placed_s = time.monotonic() - begin
        pods, sizes = here.bound(), {here.id(g): n for g, n in here.sizes().items()}
        assert by_group(p["spec"]["nodeName"] for p in pods) == planned, (by_group(p["spec"]["nodeName"] for p in pods), planned)
        gangs = collections.Counter(p["metadata"].get("labels", {}).get("dlrun.io/run-id") for p in pods)
        assert gangs == {None: PODS, **{f"g{i}": WIDE for i in range(GANGS)}}, gangs
        # Each machine with GPUs has a pod of a whole gang, and none was ended: no hour of one is of a part of a gang.
        assert sizes[here.id("a")] + sizes[here.id("b")] == most and not here.machines.calls("shrink"), (sizes, here.said())
        nodes, least = sum(sizes.values()), plan["bound"]["nodes_least"]
        made = sorted(n["metadata"]["creationTimestamp"] for n in here.nodes())
        rss, cpu_s = peak(loop)
        grows = here.said().count('"do":"grow"')
        print(f"{PODS} pods and {GANGS} gangs of {WIDE} x {GPUS} GPUs: {nodes} nodes, planned {plan['bound']['nodes']}, no packing has less "
              f"than {least} ({100 * (nodes - least) / least:.1f} % over); pods by group {dict(planned)}", flush=True)
        print(f"a plan: {seen}; from the start of the loop to the last node of the plan {nodes_s:.1f} s ({made[0]} to {made[-1]}), to the "
              f"last pod placed {placed_s:.1f} s; the loop: {rss} MiB, {cpu_s:.1f} s of CPU, {grows} grows", flush=True)
        assert nodes <= 1.1 * least + 2, (nodes, least)
        loop.terminate()
        assert loop.wait(60) == 0, here.said()
        idle = Usage(here, *here.words("--once", "-v"))
        notes = [line for line in idle.done.err.splitlines() if "turn:" in line]
        print(f"a turn in which nothing is to be done: {idle}; {notes}", flush=True)


def test_a_group_that_has_none_is_replaced_in_the_same_turn(w):
    with lab(w, a=8, b=8) as here:
        here.machines.faults(room={here.id("a"): {"machines": 1, "class": "capacity", "how": "now"}})
        here.add_gang("g", RANKS)
        events = here.turn_ok()
        assert here.sizes() == {"a": 1, "b": RANKS - 1}, (here.sizes(), events)
        here.c.wait(lambda: len(here.bound()) == RANKS, "the gang on both groups", SOON_S)
        state = json.loads(here.c.get("ConfigMap", "dlrun-autoscale-state", SYSTEM)["data"]["state"])["groups"][here.id("a")]
        assert (state["failure"], state["failures"]) == ("capacity", 1) and "is left" in state["text"], state
        # Another process knows of it: more pods are bought on b at once.
        here.add_pods(1)
        here.turn_ok()
        assert here.sizes() == {"a": 1, "b": RANKS}, here.sizes()
        assert len(here.machines.calls("grow", here.id("a"))) == 1, here.machines.calls("grow")


def test_no_part_of_a_gang_is_kept(w):
    """Neither group has enough: what one gave is given back in the same turn."""
    with lab(w, a=2, b=8) as here:
        slow = {here.id("a"): 2, here.id("b"): 2}  # A machine that is a node already may run pods, and stays.
        here.machines.faults(room={here.id("b"): {"machines": 1, "class": "quota", "how": "now"}}, boot=slow)
        here.add_gang("g", RANKS)
        events = here.turn_ok()
        assert not here.sizes() and not here.nodes(), (here.sizes(), events)
        assert here.turn_ok() == [], "it is tried again though the quota is what it was"
        # By error, too.
    with lab(w, a=2, b=8) as here:
        here.machines.faults(room={here.id("b"): {"machines": 0, "class": "capacity", "how": "error"}}, boot={here.id("a"): 2})
        here.add_gang("g", RANKS)
        here.turn_ok()
        assert not here.sizes(), here.sizes()


def test_machines_that_fail_later(w):
    """The provider accepts, and says a turn later that there are none."""
    with lab(w, a=8, b=8) as here:
        here.machines.faults(room={here.id("a"): {"machines": 0, "class": "price", "how": "later"}})
        here.add_pods(2)
        here.turn_ok()
        assert not here.sizes(), here.sizes()
        here.turn_ok()
        assert here.sizes() == {"b": 2}, here.sizes()
        asked = here.machines.calls("shrink", here.id("a"))
        assert [(c["instances"], c["to"]) for c in asked] == [([], 0)], asked


def test_slow_machines_are_waited_for(w):
    with lab(w, a=8, b=8) as here:
        here.machines.faults(boot={here.id("a"): 2})
        here.add_pods(3)
        for _ in range(4):
            here.turn_ok()
        assert here.sizes() == {"a": 3}, here.sizes()
        here.c.wait(lambda: len(here.bound()) == 3, "all pods on machines", SOON_S)


def test_killed_at_each_call_of_the_provider(w):
    """Before or after its effect; the next process goes on."""
    with lab(w, a=8, b=2) as here:
        for verb, when in CELLS:
            what = f"killed {when} {verb}"
            # Who asks for the status is whose machines are not there at once.
            here.machines.faults(once=[{"verb": verb, "do": "kill", "when": when}], boot={here.id("a"): 2 if verb == "status" else 0})
            seen = len(here.machines.calls())
            here.add_gang(f"g-{verb}-{when}", RANKS)
            here.add_pods(1)
            ends = []

            def placed():
                here.turn()
                ends.append(here.last.rc)
                return len(here.bound()) == RANKS + 1
            here.c.wait(placed, f"all pods on machines: {what}", SOON_S)
            assert here.sizes() == {"a": RANKS + 1}, (what, here.sizes())
            calls = here.machines.calls()[seen:]
            made = [i for c in calls if c["verb"] == "grow" for i in c.get("response", {}).get("instances", [])]
            assert len(set(made)) <= RANKS + 1, (what, made)
            here.remove_pods()

            def gone():
                here.turn()
                ends.append(here.last.rc)
                return not here.nodes()
            here.c.wait(gone, f"the end of all machines: {what}", SOON_S)
            assert not here.sizes(), (what, here.sizes())
            assert -signal.SIGKILL in ends, (what, ends)


def test_two_at_once_and_the_first_is_killed(w):
    with lab(w, a=8) as here:
        first = here.start()
        here.add_pods(2)
        here.c.wait(lambda: len(here.bound()) == 2, "pods on machines", SOON_S)
        holder = here.c.get("Lease", "dlrun-autoscale", SYSTEM)["spec"]["holderIdentity"]
        # Who wants one turn gives up while the other one works.
        done = w.run(*here.words("--once"))
        check_error_form(done.err, "autoscale.lease")
        assert holder in done.err and done.rc == 1, done
        second = here.start()
        here.c.wait(lambda: "waiting" in second.log.read_text() or second.poll() is not None, "the second one waits", SOON_S)
        calls = len(here.machines.calls())
        first.send_signal(signal.SIGSTOP)
        here.add_pods(2, name="q")
        begin = time.monotonic()
        here.c.wait(lambda: len(here.bound()) == 4, "pods on machines of the second", SOON_S)
        print(f"the second one had taken over, and its machines were there, after {time.monotonic() - begin:.1f} s", flush=True)
        # The first one wakes in the middle of its turn, and acts no more.
        first.send_signal(signal.SIGCONT)
        here.add_pods(1, name="r")
        here.c.wait(lambda: len(here.bound()) == 5, "pods on machines", SOON_S)
        lease = here.c.get("Lease", "dlrun-autoscale", SYSTEM)["spec"]
        assert lease["holderIdentity"] != holder and lease["leaseTransitions"] == 1, lease
        assert here.sizes() == {"a": 5} and len(here.machines.calls()) > calls, here.sizes()
        tokens = collections.Counter(c["token"] for c in here.machines.calls("grow"))
        assert all(n == 1 for n in tokens.values()), tokens


def test_the_api_server_is_away(w):
    """Its answers are lost while the provider is asked, and for a while after that."""
    with lab(w, a=8) as here:
        relay = Relay(here.c.address)
        w.env["KUBECONFIG"] = config_through(here.s, relay.address)
        here.start()
        here.add_pods(2)
        here.c.wait(lambda: len(here.bound()) == 2, "pods on machines", SOON_S)
        # Who hangs is given up after a minute.
        here.machines.faults(once=[{"verb": "grow", "do": "hang" if ALL else "exit", "when": "after"}])
        here.add_pods(2, name="q")
        here.c.wait(lambda: here.sizes() == {"a": 4}, "a grow", SOON_S)
        relay.freeze()
        time.sleep(AWAY_S)
        relay.thaw()
        begin = time.monotonic()
        here.add_pods(1, name="r")
        here.c.wait(lambda: len(here.bound()) == 5, "pods on machines", 2 * SOON_S)
        print(f"away for {AWAY_S} s: all pods on machines {time.monotonic() - begin:.1f} s after that", flush=True)
        assert here.sizes() == {"a": 5}, (here.sizes(), here.said())


def test_clocks_that_jump(w):
    """Times are of the API server's clock: a wrong one here ends no machine early, and shortens no wait."""
    needs("faketime")
    with lab(w, a=8, b=8, settings={"idle": "10m"}) as here:
        here.machines.faults(room={here.id("a"): {"machines": 1, "class": "quota", "how": "now"}})
        here.add_gang("g", RANKS)
        here.turn_ok()
        assert here.sizes() == {"a": 1, "b": RANKS - 1}, here.sizes()
        here.c.wait(lambda: len(here.bound()) == RANKS, "pods on machines", SOON_S)
        here.remove_pods()
        here.turn_ok()
        env = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        for offset in ("+20h", "+1d", "+3d"):
            done = w.command(["faketime", "-f", offset, w.dlrun, *here.words("--once", "--json")], env=env)
            assert done.rc == 0 and not done.out, (offset, done)
        here.add_pods(RANKS + 1)
        done = w.command(["faketime", "-f", "+1d", w.dlrun, *here.words("--once", "--json")], env=env)
        assert done.rc == 0 and here.sizes() == {"a": 1, "b": RANKS}, (done, here.sizes())


class Ec2Nodes:
    """Instances of the fake AWS become nodes, as their kubelets would make them."""

    def __init__(self, here, aws):
        self.here, self.aws, self.made, self.over = here, aws, {}, threading.Event()
        self.api = here.c.api_as("admin")
        here.c.start_fakes()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(0.2):
            for region, groups in self.aws.groups.items():
                for group in groups.values():
                    self.look(region, group)

    def look(self, region, group):
        with self.aws.lock:
            states = dict(group.instances)
        for instance, state in states.items():
            if state == "InService" and instance not in self.made:
                self.made[instance] = f"{self.here.tag}-{instance}"
                fake_node(self.api, self.made[instance], {"tests/pool": self.here.tag}, [FAKE],
                          {"cpu": 4, "memory": "15Gi", "nvidia.com/gpu": 1}, providerID=f"aws:///{region}a/{instance}")
            if state == "Terminating":
                with self.aws.lock:
                    group.instances.pop(instance, None)
                if instance in self.made:  # No controller of the cloud deletes its object: the autoscaler does.
                    self.api("PATCH", f"/api/v1/nodes/{self.made[instance]}", {"metadata": {"annotations": {"kwok.x-k8s.io/node": "gone"}}},
                             kind="application/merge-patch+json")
                    self.api("PATCH", f"/api/v1/nodes/{self.made[instance]}/status", {"status": {"conditions": [
                        {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "gone"}]}},
                             kind="application/strategic-merge-patch+json")

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for name in self.made.values():
            self.here.c.delete("Node", name)


def test_a_region_of_aws_without_capacity(w):
    """The launches fail after the size was accepted: the same pods get machines of the other region, and the size goes down again."""
    without_capacity(w)


@left_to_all("test_a_region_of_aws_without_capacity; autoscale_aws")
def test_a_zone_of_aws_without_capacity(w):
    """A group of one zone says at once that it has none."""
    without_capacity(w, "us-east-1a")


def without_capacity(w, *zones):
    tag = "k8s.io/cluster-autoscaler/node-template/"
    with lab(w) as here, Aws("us-east-1", "us-west-2") as aws, Ec2Nodes(here, aws):
        w.env.update(aws.env)
        w.write("autoscale.yaml", json.dumps({"cluster": "lab", "every": "3s", "limits": {"idle": "2s"},
                                              "prices": {"g5.xlarge": 1.0}, "providers": [{"aws": {"regions": ["us-east-1", "us-west-2"]}}]}),
                base=w.tree)
        tags = {f"{tag}label/tests/pool": here.tag, f"{tag}taint/tests/fake": ":NoSchedule"}
        east = aws.add("us-east-1", Group("gpu", tags=tags))
        west = aws.add("us-west-2", Group("gpu", tags=tags))
        east.room = 0
        for group in (east, west):
            group.zones = zones or group.zones
        east.more = {}
        begin = time.monotonic()
        here.start()
        here.add_pods(3, gpus=1)
        here.c.wait(lambda: len(here.bound()) == 3, "pods on machines", SOON_S)
        print(f"no capacity in one region: pods on machines of the other one after {time.monotonic() - begin:.1f} s", flush=True)
        here.c.wait(lambda: east.desired == 0, "the size of the group without capacity", SOON_S)
        assert (len(west.live()), west.desired, len(east.live())) == (3, 3, 0), (west.instances, east.instances, here.said())
        assert any(aws.form(r)["Action"] == "LaunchInstances" for r in aws.requests) == bool(zones)
        state = json.loads(here.c.get("ConfigMap", "dlrun-autoscale-state", SYSTEM)["data"]["state"])["groups"]
        assert [g["failure"] for i, g in state.items() if "east" in i] == ["capacity"], state
        assert "gpu@us-east-1: AWS may end new machines" in here.said(), here.said()
        here.remove_pods()
        here.c.wait(lambda: not here.nodes(), "the end of all machines", 2 * SOON_S)
        assert not west.live() and west.desired == 0, (west.instances, here.said())


def test_what_runs_is_never_ended(w):
    """Pods come to nodes that are idle, cordoned, or about to be removed."""
    with lab(w, a=4) as here:
        here.add_pods(2)
        here.turn_ok()
        here.c.wait(lambda: len(here.bound()) == 2, "pods on machines", SOON_S)
        here.turn_ok()
        here.remove_pods()
        cordoned = here.c.wait(lambda: done(here.turn_ok(), "cordon"), "idle nodes", SOON_S)
        # One that tolerates cordons comes to one of them.
        spec = here.spec(GPUS)
        spec["tolerations"].append({"operator": "Exists"})
        here.c.api("POST", f"/api/v1/namespaces/{here.tag}/pods", {"kind": "Pod", "apiVersion": "v1", "metadata": {
            "name": "late", "annotations": {"tests/hold": "1"}}, "spec": {**spec, "nodeName": cordoned[0]["node"]}})

        def one_left():
            here.turn_ok()
            return [n["metadata"]["name"] for n in here.nodes()] == [cordoned[0]["node"]]
        here.c.wait(one_left, "only the node with the pod is left", SOON_S)
        for _ in range(3):
            here.turn_ok()
        assert [p["metadata"]["name"] for p in here.bound()] == ["late"], here.pods()
        node = here.c.get("Node", cordoned[0]["node"])
        assert not node["spec"].get("unschedulable") and "dlrun/cordoned-by" not in node["metadata"]["annotations"], node["metadata"]


if __name__ == "__main__":
    main()
