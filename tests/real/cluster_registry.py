#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A registry that only a real cluster can reach, pushed to through dlrun's own tunnel (registry.forward)."""

import base64
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from harness import *  # noqa: F403
from kubesite import site
from registries import PASSWORD, PASSWORD_HASH, USER, Certs, Distribution, listens, running

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from registry import Basic, needs_of  # noqa: E402
from scripted import Answer, ScriptedServer  # noqa: E402
from tokens import basic_user  # noqa: E402

PORT = 5000


def stands_behind(s, port, name="registry", labels=None, ready=True):
    """A Service without an address of its own, whose pod has the machine's network and so the registry at its loopback."""
    labels = labels or {"app": name}
    c, ns = s.cluster, s.namespace
    c.apply({"kind": "Service", "metadata": {"name": name}, "spec": {
                "clusterIP": "None", "selector": labels, "ports": [{"port": 1, "name": "other"}, {"port": PORT, "targetPort": "api", "name": "api"}]}},
            {"kind": "Pod", "metadata": {"name": f"{name}-0", "labels": labels}, "spec": {
                "hostNetwork": True, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": c.images["busybox"], "command": ["sleep", "3600"],
                                "ports": [{"name": "api", "containerPort": port}],
                                **({} if ready else {"readinessProbe": {"exec": {"command": ["false"]}}})}]}}, namespace=ns)
    c.phase(ns, f"{name}-0", "Running")
    if ready:
        c.wait(lambda: any(i["type"] == "Ready" and i["status"] == "True" for i in c.get("Pod", f"{name}-0", ns)["status"]["conditions"]))


def name_in(s, name="registry"):
    return f"{name}.{s.namespace}.svc:{PORT}"


def push_through(s, **more):
    """The configuration for the cluster's own registry; also the base is named as it is called from inside."""
    s.keys["image"] = f"{name_in(s)}/python:v1"
    s.configure(registry={"push": f"{name_in(s)}/{s.namespace}/code", "pull": f"{s.cluster.registry}/{s.namespace}/code",
                          "insecure": True, "forward": f"{s.namespace}/registry:{PORT}", **more})


def inside_port(s):
    return int(s.cluster.registry.rpartition(":")[2])


def test_a_run_of_what_was_pushed_through_it(w):
    with site(w) as s:
        stands_behind(s, inside_port(s))
        push_through(s)
        run = s.submit("--", "python3", "a.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        assert w.show(run)["image"]["ref"].startswith(f"{s.cluster.registry}/{s.namespace}/code@sha256:")
        assert s.output(run) == "hello\n"
        w.write("a.py", "print('edited')\n")
        mark = s.cluster.audit_begin(s.user)
        run = s.submit("--", "python3", "a.py")
        assert s.ended(run)["state"] == "succeeded" and s.output(run) == "edited\n"
        forwards = {e["auditID"] for e in s.cluster.audit_whole(s.user, mark)
                    if f"/{s.namespace}/" in e["requestURI"] and "portforward" in e["requestURI"]}
        assert 1 <= len(forwards) <= 4, forwards


def test_a_push_alone_and_a_big_layer(w):
    with site(w) as s:
        stands_behind(s, inside_port(s))
        push_through(s)
        (w.tree / "big").write_bytes(os.urandom(24 << 20))
        done = w.ok("push", "-t", "k")
        assert done.out.startswith(f"{s.cluster.registry}/{s.namespace}/code@sha256:"), done.out
        again = json.loads(w.ok("push", "-t", "k", "--json").out)
        assert again["sent"]["bytes"] < 1 << 20, again


def test_tls_and_a_password_by_the_name_inside(w):
    with site(w) as s:
        users = w.dir / "users"
        users.write_text(f"{USER}:{PASSWORD_HASH}\n")
        names = ("localhost", "127.0.0.1", name_in(s).partition(":")[0])
        registry = Distribution(w, "inside", needs("docker-registry"), {"htpasswd": {"realm": "tests", "path": str(users)}},
                                certs=Certs(w.dir / "certs", names), user=USER)
        with running(registry):
            stands_behind(s, registry.port)
            s.keys["image"] = "scratch"
            s.configure(registry={"push": f"{name_in(s)}/me/code", "forward": f"{s.namespace}/registry:{PORT}", "ca": str(Certs(w.dir / "certs", names).ca)})
            w.refused("push", "-t", "k", id="registry.auth", rc=4, says=name_in(s))
            login(w, name_in(s))
            assert w.ok("push", "-t", "k").out.startswith(f"{name_in(s)}/me/code@sha256:")
            s.configure(registry={"push": f"{name_in(s)}/me/code", "forward": f"{s.namespace}/registry:{PORT}"})
            w.refused("push", "-t", "k", id="http.tls", rc=3, says="issuer")


def login(w, host):
    there = w.dir / "docker"
    there.mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (there / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    w.env["DOCKER_CONFIG"] = str(there)


class Guarded(ScriptedServer):
    """The cluster's registry behind logins, which are good for the prefixes of their users: allowed[user]."""

    def __init__(self, upstream, passwords, allowed):
        self.upstream, self.passwords = upstream, passwords
        self.auth = Basic(passwords, allow=lambda user, repository, action: (repository + "/").startswith(tuple(allowed[user])))
        super().__init__()

    def handle(self, request):
        repository = re.match(r"/v2/(.+?)/(?:blobs|manifests|tags)/", request.path)
        refused = self.auth.check(request, needs_of(request, repository and repository[1]))
        if refused:
            return refused
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(request.method, request.target, request.body, {k: v for k, v in request.headers if k != "Authorization"})
            answer = upstream.getresponse()
            body = answer.read()
        return Answer(answer.status, [(k, v) for k, v in answer.getheaders() if k not in ("Content-Length", "Connection")], body)


def test_a_login_for_each_prefix(w):
    """The base and the code, of one registry, are of other users."""
    passwords = {"reader": "cnry-reads", "writer": "cnry-writes"}
    with site(w) as s, Guarded(s.cluster.registry, passwords, {"reader": ["python/"], "writer": ["python/", f"{s.namespace}/"]}) as registry:
        there = w.dir / "docker"
        there.mkdir()
        (there / "config.json").write_text(json.dumps({"auths": {
            f"{registry.address}/{prefix}": {"auth": base64.b64encode(f"{user}:{passwords[user]}".encode()).decode()}
            for prefix, user in (("python", "reader"), (s.namespace, "writer"))}}))
        w.env["DOCKER_CONFIG"] = str(there)
        s.keys["image"] = f"{registry.address}/python:v1"
        s.configure(registry={"push": f"{registry.address}/{s.namespace}/code", "pull": f"{s.cluster.registry}/{s.namespace}/code"})
        for text in ("hello", "edited"):
            w.write("a.py", f"print('{text}')\n")
            run = s.submit("--", "python3", "a.py")
            assert s.ended(run)["state"] == "succeeded" and s.output(run) == f"{text}\n", s.why(run)
        sent = {(request.path.split("/")[2], basic_user(request.authorization, passwords)) for request in registry.requests}
        assert sent - {("", None), ("python", None), (s.namespace, None)} == {("python", "reader"), (s.namespace, "writer")}, sent
        mounts = {request.status for request in registry.requests if request.arg("mount") and request.authorization}
        assert mounts == {201}, mounts
        base = next(row for row in json.loads(w.run("doctor", "--json").out)["checks"] if row["id"] == "base")
        assert base["status"] == "ok" and "if the login that pushes" in base["found"], base


def test_what_is_not_there_is_said_at_once(w):
    with site(w) as s:
        push_through(s)
        took = []

        def refused(*words, **how):
            begin = running_time()
            w.refused(*words, **how)
            took.append(running_time() - begin)
        refused("push", "-t", "k", id="kube.not_found", rc=5, says=["registry", s.namespace])
        stands_behind(s, inside_port(s), ready=False)
        refused("push", "-t", "k", id="kube.forward", rc=3, says=["none of the 1 pods", "registry"])
        s.configure(registry={**s.target["registry"], "forward": f"{s.namespace}/registry:4999"})
        refused("submit", "-d", "--", "true", id="kube.not_found", rc=5, says="no port 4999")
        assert sum(took) < 20, took
        assert s.jobs() == [] and w.runs() == []


def test_who_may_not_forward_is_told(w):
    with site(w, role="view") as s:
        stands_behind(s, inside_port(s))
        push_through(s)
        begin = running_time()
        w.refused("push", "-t", "k", id="kube.denied", rc=4, says=["portforward", "dlrun init --rbac"])
        assert running_time() - begin < 10


def test_the_tunnel_is_for_this_push_only(w):
    with site(w) as s:
        stands_behind(s, inside_port(s))
        push_through(s)
        (w.tree / "big").write_bytes(os.urandom(48 << 20))
        pushing = subprocess.Popen([w.dlrun, "push", "-t", "k"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        others = set()
        while pushing.poll() is None:
            for port in listening(pushing.pid) - others:
                others.add(port)
                # A listener that has gone meanwhile is over, too.
                with contextlib.suppress(ConnectionError):
                    with socket.create_connection(("127.0.0.1", port), 60) as line:
                        line.sendall(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
                        assert line.recv(100) == b""
            time.sleep(0.01)
        assert pushing.returncode == 0 and len(others) == 1, others
        assert not listens(others.pop())


def listening(pid):
    """Ports at which a process listens."""
    found = set()
    with contextlib.suppress(OSError):
        inodes = {os.readlink(f)[8:-1] for f in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(f).startswith("socket:")}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


if __name__ == "__main__":
    main()
