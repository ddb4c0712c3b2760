#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two clusters at once as targets of one run: it begins in one place, once, whatever is full, refuses, stops, dies or is lost.

DLRUN_SPILLS: how many runs are moved from one to the other (20; DLRUN_TESTS=all: 200)."""

import atexit
import collections
import contextlib
import json
import random
import secrets
import subprocess
import threading
import time

import cluster as clusters
from cluster_place import READS
from harness import *  # noqa: F403
from kubesite import ENDED, site
from registries import Certs, FaultProxy

from apiproxy import ApiProxy

RUNS = int(os.environ.get("DLRUN_SPILLS", "200" if ALL else "12"))
BATCH = 5
STOPS = 12 if ALL else 3
# Senders that are killed or lose answers, for each batch.
TRIES = 6
PARTS = 4
LINE = ["sh", "-c", "echo ran-$DLRUN_RUN_ID"]
CHANGES = ("POST", "PATCH", "DELETE", "PUT")
_other, _other_lock = [], threading.Lock()


def second():
    """The cluster beside that of all tests, for those of this file."""
    with _other_lock:
        if not _other:
            _other.append(clusters.Cluster(nodes=1))
            atexit.register(_other[0].close)
    return _other[0]


@contextlib.contextmanager
def reader(cluster, user):
    """The user may see the nodes and what is taken on them."""
    name = f"reads-{secrets.token_hex(4)}"
    cluster.apply({"kind": "ClusterRole", "metadata": {"name": name}, "rules": [READS]})
    cluster.apply({"kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
    try:
        yield
    finally:
        cluster.delete("ClusterRoleBinding", name)
        cluster.delete("ClusterRole", name)


@contextlib.contextmanager
def offered(cluster, node, resource):
    """One of it, on a node where programs really run."""
    cluster.offer(node, **{resource: 1})
    try:
        yield
    finally:
        cluster.offer(node, **{resource: None})


def write_contexts(w, files):
    """One kubeconfig with a context for each of these, called by its name."""
    whole = {"apiVersion": "v1", "kind": "Config", "current-context": next(iter(files)), "clusters": [], "users": [], "contexts": []}
    for name, file in files.items():
        one = json.loads(open(file).read())
        whole["clusters"].append({"name": name, "cluster": one["clusters"][0]["cluster"]})
        whole["users"].append({"name": name, "user": one["users"][0]["user"]})
        whole["contexts"].append({"name": name, "context": {**one["contexts"][0]["context"], "cluster": name, "user": name}})
    path = w.dir / "several"
    path.write_text(json.dumps(whole))
    path.chmod(0o600)
    w.env["KUBECONFIG"] = str(path)


def through(cluster, user, path, address, namespace, ca=None):
    there = {"certificate-authority": ca} if ca else {"tls-server-name": cluster.address.split(":")[0]}
    return cluster.kubeconfig(user, path, server=address, ca=not ca, namespace=namespace, cluster=there)


def starts(spaces, run):
    """How often nodes have begun its program, by the events of all its places: (cluster, namespace)."""
    n = 0
    for cluster, space in spaces:
        for event in cluster.get("Event", namespace=space):
            about = event["involvedObject"]
            n += event["reason"] == "Started" and about["name"].startswith(run) and "{program}" in about.get("fieldPath", "")
    return n


def jobs(spaces):
    return [job["metadata"]["name"] for cluster, space in spaces for job in cluster.get("Job", namespace=space)]


def without_pods(spaces, *but):
    """None takes anything there any more."""
    wait_for(lambda: all(pod["metadata"]["name"] in but or pod["status"]["phase"] in ("Succeeded", "Failed")
                         for cluster, space in spaces for pod in cluster.get("Pod", namespace=space)), "the end of all pods", 90)


def stop_in(proxy, cluster, exchanges):
    """SIGSTOP for the API server behind the proxy after so many of its answers."""
    def work():
        end = time.monotonic() + 60
        while proxy.exchanges < exchanges and time.monotonic() < end:
            time.sleep(0.01)
        cluster.stop("apiserver")
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@left_to_all("cluster_place: test_full_and_refusing_and_free, test_one_stops_in_the_middle; "
             "cluster_spill: test_once_when_both_have_room")
def test_one_is_full_one_refuses_one_stops(w):
    """The fourth gets it, though the third had answered; and one that stops too late has it alone."""
    other = second()
    with site(w, user="carol", results={"emptyDir": True}) as s, contextlib.ExitStack() as stack:
        here = s.cluster
        refuses = stack.enter_context(here.namespace(s.user, role="view"))
        stops = stack.enter_context(other.namespace(s.user, alone=True))
        proxy = stack.enter_context(FaultProxy(other.address, delay=0.02))
        names = {name: f"tests/{name}-{s.namespace}" for name in ("full", "refuses", "stops", "free")}
        for cluster, node, name in ((here, "node-2", "full"), (here, "node-1", "refuses"), (other, "node-1", "stops"), (here, "node-1", "free")):
            stack.enter_context(offered(cluster, node, names[name]))
        for cluster in (here, other):
            stack.enter_context(reader(cluster, s.user))
        here.apply({"kind": "Pod", "metadata": {"name": "taken"}, "spec": {"nodeName": "node-2", "containers": [
            {"name": "main", "image": here.images["pause"], "resources": {"limits": {names["full"]: "1"}}}]}}, namespace=s.namespace)
        write_contexts(w, {
            "full": here.kubeconfig(s.user, w.dir / "full", namespace=s.namespace),
            "refuses": here.kubeconfig(s.user, w.dir / "refuses", namespace=refuses),
            "stops": through(other, s.user, w.dir / "stops", proxy.address, stops),
            "free": here.kubeconfig(s.user, w.dir / "free", namespace=s.namespace)})
        registry = f"{here.registry}/{s.namespace}/code"
        w.write("dlrun.yaml", json.dumps({"image": s.base, "targets": {name: {
            "kind": "kubernetes", "context": name, "registry": registry, "results": {"emptyDir": True},
            "gpu_types": {"x": {"resource": resource}}} for name, resource in names.items()}}))
        w.ok("config", "trust", "--yes")
        spaces = [(here, s.namespace), (here, refuses), (other, stops)]
        words = ("-t", "full,refuses,stops,free", "-g", "1", "--gpu-type", "x", "--", *LINE)

        run = s.submit(*words)
        found = {p["target"]: p["state"] for p in w.show(run)["places"]}
        assert w.show(run)["target"]["name"] == "stops" and found["full"] == "later", (found, s.said)
        assert s.ended(run)["state"] == "succeeded" and starts(spaces, run) == 1, w.show(run)
        without_pods(spaces, "taken")
        seen, rng = collections.Counter(), random.Random(11)
        for i in range(STOPS):
            thread = stop_in(proxy, other, proxy.exchanges + rng.randint(2, 6))
            try:
                run = s.submit(*words, timeout=120)
            finally:
                thread.join()
                other.cont("apiserver")
            other.wait_ready()
            doc = w.show(run)
            found = {p["target"]: p["state"] for p in doc["places"]}
            assert found["full"] == "later" and found["refuses"] not in ("chosen", "later"), (found, s.said)
            assert (doc["target"]["name"], found["stops"]) in (("free", "silent"), ("stops", "chosen")), (found, s.said)
            assert s.ended(run, 120)["state"] == "succeeded" and starts(spaces, run) == 1, w.show(run)
            assert len([name for name in jobs(spaces) if name.startswith(run)]) == 1, jobs(spaces)
            without_pods(spaces, "taken")
            seen[doc["target"]["name"]] += 1
        assert seen["free"], seen
        print(f"stopped in the middle: {dict(seen)}", flush=True)


def without_kick(w):
    """No sender is started beside the next commands."""
    queue = w.state / "queue"
    queue.mkdir(parents=True, exist_ok=True)
    (queue / "kicked").write_text("60000")


class Trouble:
    """For the changes that a sender asks of both clusters: some are made and nobody hears it, others never come there; with one of
    them it is killed, and with one the first place gets room."""

    def __init__(self, rng, kill_at, room_at, give_room):
        self.rng, self.kill_at, self.room_at, self.give_room = rng, kill_at, room_at, give_room
        self.process, self.n, self.fates = None, 0, collections.Counter()

    def __call__(self, method, path, body):
        if method not in CHANGES or "reviews" in path or "dryRun" in path:
            return None
        self.n += 1
        if self.n == self.kill_at:
            self.process.kill()
            self.fates["killed"] += 1
        if self.n == self.room_at:
            threading.Thread(target=self.give_room).start()
        verdict = self.rng.choice(("swallow", "swallow", "drop", None, None))
        self.fates["answers lost"] += verdict is not None
        return verdict


def pods_in(cluster, space, n):
    """So many may be there at most; None: any number."""
    if n is None:
        cluster.delete("ResourceQuota", "small", space)
        return
    cluster.apply({"kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": str(n)}}}, namespace=space)
    cluster.wait(lambda: cluster.get("ResourceQuota", "small", space)["status"]["hard"]["pods"] == str(n), "the quota counts")


def send_badly(w, trouble, proxies):
    for proxy in proxies:
        proxy.fault = lambda *_: None
    trouble.process = subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for proxy in proxies:
        proxy.fault = trouble
    trouble.process.wait(300)
    return trouble.fates


def settle(w, runs, seconds=300):
    def over():
        w.run("queue", "--send", timeout=120)
        return all(w.show(run)["state"] in ENDED for run in runs)
    wait_for(over, f"the end of {runs}", seconds)


def move_all(w, number, count):
    """Senders are killed and lose answers of both while runs go from one without room to the other, and room comes at any moment."""
    w.env.pop("DLRUN_OFFLINE", None)
    other, certs = second(), Certs(w.dir / "certs")
    with site(w) as s, other.namespace(s.user) as far, contextlib.ExitStack() as stack:
        near, here = s.namespace, s.cluster
        proxies = [stack.enter_context(ApiProxy(c.address, c.ca, *certs.pair())) for c in (here, other)]
        write_contexts(w, {name: through(c, s.user, w.dir / name, proxy.address, space, str(certs.ca))
                           for name, c, proxy, space in (("lab", here, proxies[0], near), ("eu", other, proxies[1], far))})
        registry = f"{here.registry}/{near}/code"
        w.write("dlrun.yaml", json.dumps({"image": s.base, "targets": {
            name: {"kind": "kubernetes", "context": name, "registry": registry, "results": {"emptyDir": True}} for name in ("lab", "eu")}}))
        w.ok("config", "trust", "--yes")
        spaces, rng = [(here, near), (other, far)], random.Random(number)
        ended, fates = collections.Counter(), collections.Counter()
        for first in range(0, count, BATCH):
            pods_in(here, near, 0)
            runs = []
            while len(runs) < min(BATCH, count - first):
                without_kick(w)
                runs.append(s.submit("-t", "lab,eu", "--wait-for", "lab=0s", "--", *LINE))
            assert all(w.show(run)["target"]["name"] == "lab" for run in runs), s.said
            for i in range(TRIES):
                kill_at = rng.randint(1, len(runs)) if i == 0 else rng.choice((0, rng.randint(1, 8)))
                room_at = rng.choice((0, rng.randint(1, 8)))
                fates += send_badly(w, Trouble(rng, kill_at, room_at, lambda: pods_in(here, near, None)), proxies)
            for proxy in proxies:
                proxy.fault = lambda *_: None
            pods_in(here, near, None)
            settle(w, runs)
            for run in runs:
                doc = w.show(run)
                assert doc["state"] == "succeeded" and starts(spaces, run) == 1, (doc, starts(spaces, run))
                assert w.ok("logs", run).out.count(f"ran-{run}") == 1
                ended[doc["target"]["name"]] += 1
            w.ok("rm", *runs)
        assert json.loads(w.ok("queue", "--json").out)["waiting"] == []
        assert fates["killed"] and fates["answers lost"], (fates, ended)
        print(f"moved: {dict(ended)}; senders: {dict(fates)}", flush=True)


def moving(number):
    return lambda w: move_all(w, number, RUNS // PARTS)


for part in range(PARTS):
    globals()[f"test_moved_once_{part}"] = moving(part)


if __name__ == "__main__":
    main()
