#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cluster of the tests itself: whether it does what the other tests expect of a real one."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import cluster as clusters
from cluster import job, pod
from harness import *  # noqa: F403
from kube_api import ApiError
from kube_images import layout
from registries import FaultProxy, with_password


def test_pods_of_two_nodes_find_each_other(w):
    c = clusters.get()
    look = """
import time, urllib.request
end = time.monotonic() + 60
while True:
    try:
        print(urllib.request.urlopen("http://first.both:8080/passwd", timeout=10).read().decode())
        break
    except OSError:  # the name and the server come some time after the pod
        if time.monotonic() > end:
            raise
        time.sleep(0.1)
"""
    with c.namespace() as ns:
        c.apply({"kind": "Service", "metadata": {"name": "both"}, "spec": {"clusterIP": "None", "selector": {"of": "both"},
                                                                          "publishNotReadyAddresses": True}},
                pod("first", c.images["busybox"], "httpd", "-f", "-p", "8080", "-h", "/etc", labels={"of": "both"}, hostname="first",
                    subdomain="both", nodeName=c.nodes[0]), namespace=ns)
        c.phase(ns, "first", "Running")
        c.apply(pod("second", c.images["python"], "python3", "-c", look, labels={"of": "both"}, nodeName=c.nodes[-1]), namespace=ns)
        c.phase(ns, "second", "Succeeded", seconds=120)
        assert "root:x:0:0" in c.kubectl("-n", ns, "logs", "second")
        assert c.get("Pod", "first", ns)["spec"]["nodeName"] != c.get("Pod", "second", ns)["spec"]["nodeName"]


def test_kubectl_reaches_into_pods(w):
    c = clusters.get()
    with c.namespace("alice") as ns:
        config = c.kubeconfig("alice", w.dir / "config", "cert", ns)
        c.apply(pod("server", c.images["busybox"], "sh", "-c", "echo begins; exec httpd -f -p 8080 -h /etc"), namespace=ns)
        c.phase(ns, "server", "Running")
        c.wait(lambda: c.kubectl("logs", "server", config=config) == "begins\n", "a line of the log")
        assert c.kubectl("exec", "server", "--", "echo", "inside", config=config) == "inside\n"
        assert c.kubectl("get", "pod", "server", "-o", "json", config=config)["metadata"]["namespace"] == ns
        forward = c.kubectl_argv("port-forward", "pod/server", ":8080", config=config)
        with subprocess.Popen(forward, stdout=subprocess.PIPE, text=True) as tunnel:
            port = re.search(r"127\.0\.0\.1:(\d+)", tunnel.stdout.readline())[1]
            assert b"root" in urllib.request.urlopen(f"http://127.0.0.1:{port}/passwd", timeout=30).read()
            tunnel.terminate()


def test_memory_is_limited(w):
    """The kernel's word of it may come after the end, and is then not told any more: one of three must tell."""
    c = clusters.get()
    with c.namespace() as ns:
        limit, reasons = {"resources": {"limits": {"memory": "48Mi"}}}, []
        while "OOMKilled" not in reasons and len(reasons) < 3:
            name = f"greedy-{len(reasons)}"
            c.apply(pod(name, c.images["python"], "python3", "-c", "bytearray(1 << 30)", container=limit), namespace=ns)
            ended = c.phase(ns, name, "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
            assert ended["exitCode"] == 137, ended
            reasons.append(ended["reason"])
        assert "OOMKilled" in reasons, reasons


def test_too_much_disk_evicts(w):
    c = clusters.get()
    with c.namespace() as ns:
        c.apply(pod("full", c.images["busybox"], "sh", "-c", "dd if=/dev/zero of=/data/f bs=1M count=8; sleep 600",
                    container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                    volumes=[{"name": "data", "emptyDir": {"sizeLimit": "2Mi"}}]), namespace=ns)
        assert c.phase(ns, "full", "Failed")["status"]["reason"] == "Evicted"


def test_fake_nodes_take_many_jobs(w):
    c = clusters.get()
    with c.namespace() as ns:
        c.fake_node(ns, {"tests/pool": ns}, **{"nvidia.com/gpu": 8})
        try:
            assert c.get("Node", ns)["status"]["allocatable"]["nvidia.com/gpu"] == "8"
            where = {"nodeSelector": {"tests/pool": ns}, "tolerations": [{"key": "tests/fake", "operator": "Exists"}]}
            c.apply(*(job(f"j{i}", "none.invalid/x", "x", **where) for i in range(50)),
                    job("k1", "none.invalid/x", "x", annotations={"tests/hold": ""}, **where),
                    job("k2", "none.invalid/x", "x", annotations={"tests/exit": "3"}, **where), namespace=ns)
            c.wait(lambda: sum(j["status"].get("succeeded", 0) for j in c.get("Job", namespace=ns)) == 50, "50 Jobs that succeed")
            c.wait(lambda: c.get("Job", "k2", ns)["status"].get("failed"), "a Job that fails")
            assert c.get("Job", "k1", ns)["status"]["active"] == 1
        finally:
            c.delete("Node", ns)


def test_real_nodes_with_resources_of_tests(w):
    c = clusters.get()
    c.offer(c.nodes[0], **{"tests.invalid/gpu": 1})
    try:
        with c.namespace() as ns:
            limit = {"resources": {"limits": {"tests.invalid/gpu": "1"}}}
            c.apply(pod("fits", c.images["busybox"], "true", container=limit), namespace=ns)
            assert c.phase(ns, "fits", "Succeeded")["spec"]["nodeName"] == c.nodes[0]
    finally:
        c.offer(c.nodes[0], **{"tests.invalid/gpu": None})


def test_a_program_in_a_pod_asks_the_server(w):
    c = clusters.get()
    ask = ("import ssl, urllib.request as u; d = '/var/run/secrets/kubernetes.io/serviceaccount/'; import os;"
           "r = u.Request('https://%s/version' % os.environ['KUBERNETES_SERVICE_HOST'],"
           " headers={'Authorization': 'Bearer ' + open(d + 'token').read()});"
           "print(u.urlopen(r, context=ssl.create_default_context(cafile=d + 'ca.crt')).read().decode())")
    with c.namespace() as ns:
        c.apply(pod("asks", c.images["python"], "python3", "-c", ask), namespace=ns)
        c.phase(ns, "asks", "Succeeded")
        assert "v1.34" in c.kubectl("-n", ns, "logs", "asks")


def test_volumes(w):
    c = clusters.get()
    with c.namespace() as ns:
        there = c.volume(ns, "data")
        c.apply(pod("writes", c.images["busybox"], "sh", "-c", "echo kept >/data/file",
                    container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                    volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]), namespace=ns)
        c.phase(ns, "writes", "Succeeded")
        assert (there / "file").read_text() == "kept\n"


def test_registries_with_passwords(w):
    c = clusters.get()
    with with_password(w) as registry, c.namespace() as ns:
        c.trust(registry.host, registry.certs.ca)
        image = registry.put_layout(w, layout("busybox"), "me/busybox")
        c.apply({"kind": "Secret", "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
                 "stringData": {".dockerconfigjson": registry.authfile(w).read_text()}}, namespace=ns)
        # A node gives an image that it has to everybody.
        c.apply(pod("may-not", image, "true", container={"imagePullPolicy": "Always"}),
                pod("may", image, "true", imagePullSecrets=[{"name": "login"}]), namespace=ns)
        c.phase(ns, "may", "Succeeded")

        def refused():
            state = c.get("Pod", "may-not", ns)["status"]["containerStatuses"][0]["state"]
            assert "waiting" in state, state
            return state["waiting"]["reason"] in ("ErrImagePull", "ImagePullBackOff")
        c.wait(refused, "an image that is refused")


def test_users_and_what_they_may(w):
    c = clusters.get()
    with c.namespace("alice") as ns:
        slow = c.exec_plugin("alice", w.dir, 0.2)
        for how, more in (("token", None), ("cert", None), ("inline", None), ("none", slow)):
            config = c.kubeconfig("alice", w.dir / how, how, ns, credentials=more)
            assert c.kubectl("auth", "whoami", "-o", "json", config=config)["status"]["userInfo"]["username"] == "alice", how
            assert c.kubectl("auth", "can-i", "create", "jobs", config=config) == "yes\n"
        assert (w.dir / "calls").read_text().count("\n") >= 1
        mark = c.audit_mark()
        try:
            c.api_as("bob")("GET", f"/api/v1/namespaces/{ns}/pods")
            raise AssertionError("bob may look into what is alice's")
        except ApiError as refused:
            assert refused.status == 403
        c.wait(lambda: [e["responseStatus"]["code"] for e in c.audit("bob", mark)] == [403], "a line of the audit log")


def test_tokens_end(w):
    with clusters.get().namespace():
        ends(w, clusters.get())


def ends(w, c):
    config = c.kubeconfig("alice", w.dir / "config", "none", credentials={"token": c.short_token("alice", 20)})
    assert "alice" in c.kubectl("auth", "whoami", config=config)
    said = c.wait(lambda: (t := c.kubectl("auth", "whoami", config=config, check=False)) == "" and "nothing", "the end of a token")
    assert said == "nothing"


def test_through_a_proxy(w):
    c = clusters.get()
    host, port = c.address.split(":")
    with FaultProxy((host, int(port)), delay=0.02) as proxy, c.namespace():
        config = c.kubeconfig("alice", w.dir / "config", server=proxy.address)
        assert "alice" in c.kubectl("auth", "whoami", config=config)
        assert proxy.accepted > 0


def test_first_line_of_a_job(w):
    c = clusters.get()
    with c.namespace() as ns:
        seconds = c.first_line(ns, c.images["busybox"])
        assert 0 < seconds < 30, seconds


def test_parts_stop_and_come_back(w):
    c = clusters.get()
    with c.namespace(alone=True) as ns:
        c.stop("apiserver")
        try:
            c.api_as("alice", 1)("GET", "/version")
            raise AssertionError("an API server that is stopped has answered")
        except OSError:
            pass
        finally:
            c.cont("apiserver")
        for part in ("etcd", "apiserver", "kubelet-1", "controller-manager", "scheduler"):
            c.restart(part)
        assert not c.broken()
        c.apply(job("after", c.images["busybox"], "true"), namespace=ns)
        c.wait(lambda: c.get("Job", "after", ns)["status"].get("succeeded"), "a Job after that", clusters.SETTLE_S)


def test_ends_with_its_starter(w):
    """Killed, it has no time to clean up: no process, no network is left, and files only until the next start."""
    script = Path(clusters.__file__)
    env = {k: v for k, v in os.environ.items() if k != clusters.STATE}
    with subprocess.Popen([sys.executable, script, "--shell", "--nodes", "1"], stdout=subprocess.PIPE, text=True, env=env) as starter:
        words = " ".join(starter.stdout.readline() for _ in range(5))
        assert "DIR=" in words, words
        directory = Path(re.search(r"DIR=(\S+)", words)[1])
        c = clusters.Cluster(attach=directory / "state.json")
        c.apply(pod("sleeps", c.images["busybox"], "sleep", "3600"))
        c.phase("default", "sleeps", "Running")
        assert len(list(c.processes())) > 8
        starter.send_signal(signal.SIGKILL)
    wait_for(lambda: not list(c.processes()), "the end of all processes")
    wait_for(lambda: c.state["network"].removesuffix("0.0/16") not in
             subprocess.run(["ip", "address"], capture_output=True, text=True).stdout, "the end of the network")
    assert str(directory) not in Path("/proc/mounts").read_text()

    def swept():
        clusters.take_slot()[1].close()
        return not directory.exists() and not list(Path("/sys/fs/cgroup").glob(f"*/{c.state['cgroup']}*"))

    wait_for(swept, "the end of its files and groups")


if __name__ == "__main__":
    main()
