#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun warm` in a real cluster: the image of a run on its nodes, and nothing that stays."""

import contextlib
import json
import signal
import subprocess

from harness import *  # noqa: F403
from kubesite import site


@contextlib.contextmanager
def seeing_nodes(s):
    """The user may list nodes meanwhile."""
    name = f"{s.namespace}-nodes"
    s.cluster.apply({"kind": "ClusterRole", "metadata": {"name": name},
                     "rules": [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}]},
                    {"kind": "ClusterRoleBinding", "metadata": {"name": name},
                     "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                     "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": s.user}]})
    try:
        yield
    finally:
        s.cluster.delete("ClusterRoleBinding", name)
        s.cluster.delete("ClusterRole", name)


def nothing_stays(s):
    def gone():
        found = [o["metadata"]["name"] for kind in ("Job", "Pod", "Service", "ConfigMap", "Secret")
                 for o in s.cluster.get(kind, namespace=s.namespace) if o["metadata"]["name"].startswith("env-")]
        return not found
    wait_for(gone, "the end of what warmed the nodes", 60)
    assert not s.w.runs() and not list(s.w.state.rglob("*env-*")), (s.w.runs(), list(s.w.state.rglob("*env-*")))


def nodes(s):
    """Fake ones, which other tests leave, take nobody who does not tolerate their taint."""
    return sorted(n["metadata"]["name"] for n in s.cluster.get("Node") if "kwok.x-k8s.io/node" not in n["metadata"].get("annotations", {}))


def test_all_nodes_get_the_image(w):
    with site(w, files={".gitignore": "data/\n"}, keys={"data": ["data/set"]}, data={"data/set": "sync"}, alone=True) as s:
        w.write("data/set/a", "there\n")
        with seeing_nodes(s):
            done = json.loads(w.ok("warm", "--json").out)
        assert done["schema"] == "dlrun/warm/v1" and done["wanted"] == len(nodes(s)), done
        assert sorted(done["warm"]) == nodes(s) and not done["pulling"] and "why" not in done, done
        nothing_stays(s)
        run = s.submit("--", "cat", "data/set/a")
        assert "data:" not in s.said, s.said
        assert s.ended(run)["state"] == "succeeded" and s.output(run) == "there\n", s.why(run)
        assert w.show(run)["image"]["ref"] == done["ref"], (w.show(run)["image"], done)
        [pod] = [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["metadata"]["name"].startswith(run)]
        said = [e["message"] for e in s.cluster.get("Event", namespace=s.namespace)
                if e["involvedObject"]["name"] == pod["metadata"]["name"] and e["reason"] == "Pulled"]
        assert said and all("already present" in text for text in said), said


def test_what_is_cold_is_said(w):
    with site(w, labels={"pod-security.kubernetes.io/enforce": "restricted"}) as s:
        failed = w.run("warm")
        assert failed.rc == 2 and "is not known" in failed.err and "dlrun warm --nodes" in failed.err, failed
        nothing_stays(s)
        n = len(nodes(s))
        some = w.ok("warm", "--nodes", "1")
        assert "k: 1 of 1 nodes have the image" in some.out, some
        more = w.run("warm", "-N", str(n + 2))
        assert more.rc == 1 and f"k: {n} of {n + 2} nodes have the image" in more.out and "2 cold: " in more.out, more
        nothing_stays(s)
        failed = w.run("warm", "-t", "local")
        assert failed.rc == 2 and "target local is this machine" in failed.err, failed
        failed = w.run("warm", "--nodes", "1", "--image", f"{s.base}nosuch")
        assert failed.rc != 0, failed
        nothing_stays(s)


def test_ended_in_the_middle_it_leaves_nothing_that_stays(w):
    with site(w) as s:
        w.ok("warm", "--nodes", "1")
        for sig in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen([w.dlrun, "warm", "--nodes", "5"], cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            wait_for(lambda: [j for j in s.jobs() if j["metadata"]["name"].startswith("env-")], "its Job", 60)
            process.send_signal(sig)
            process.communicate()
            if sig == signal.SIGINT:
                assert process.returncode == 130, process.returncode
                wait_for(lambda: not s.jobs(), "the end of its Job", 60)
            else:
                [job] = s.jobs()
                assert job["spec"]["ttlSecondsAfterFinished"] <= 600, job["spec"]
                assert job["spec"]["activeDeadlineSeconds"] <= 3600, job["spec"]
                assert not w.runs() and "env-" not in w.ok("ps", "-a").out, w.runs()


if __name__ == "__main__":
    main()
