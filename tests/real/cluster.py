#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes for the tests: API server, controllers, scheduler, kubelets, containerd, pods, CoreDNS, a registry.

    with Cluster(nodes=2) as cluster: …          one of the test's own
    cluster = get()                              the one that on_cluster.py shares among the tests of a run, or
                                                 else one for this process

    tests/real/cluster.py --shell [--nodes N]    one to try things with; prints the variables to set, then waits
    tests/real/cluster.py --do DIR VERB PART     stop, cont, kill, start or restart a part of it

Needs root. All of it lives in namespaces (kube_host.py) and ends with the process that started it, however
that ends; what then lies about on disk is removed by the next start. Several may run at once.
"""

import argparse
import atexit
import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from gotools import go_tool
from harness import Missing, busy_s, needs, pause_s, wait_for
from kube_api import Api, ApiError, fake_node, write_kubeconfig
from kube_host import CNI
from registries import free_port, listens

SLOTS = 16
SLOTS_AT = Path("/tmp/dlrun-clusters")
CGROUPS = Path("/sys/fs/cgroup")
STATE = "DLRUN_TEST_CLUSTER"
START_S = 200
STEP_S = 60
SETTLE_S = 180
POLL_S = 0.05
PARTS = ("containerd", "runc", "docker-registry", "skopeo", "busybox", "ip", "iptables", "unshare", "nsenter", "openssl",
         "cc")
# Where each kind of object lives; what is not here is in the core group.
GROUPS = {"Job": "batch/v1", "CronJob": "batch/v1", "Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
          "ClusterRole": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
          "PriorityClass": "scheduling.k8s.io/v1", "Lease": "coordination.k8s.io/v1", "PodDisruptionBudget": "policy/v1",
          "Deployment": "apps/v1", "StatefulSet": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1", "StorageClass": "storage.k8s.io/v1",
          "CustomResourceDefinition": "apiextensions.k8s.io/v1", "JobSet": "jobset.x-k8s.io/v1alpha2",
          "MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
          "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1"}
EVERYWHERE = ("Node", "Namespace", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "StorageClass",
              "CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def path_of(kind, name="", namespace="default", group=None):
    """The path of an object in the API, or of all of its kind."""
    group = group or GROUPS.get(kind, "v1")
    plural = kind.lower() + ("es" if kind.endswith("ss") else "s")
    plural = plural[:-2] + "ies" if kind.endswith("cy") else plural
    within = "" if kind in EVERYWHERE else f"/namespaces/{namespace}"
    return f"/{'apis' if '/' in group else 'api'}/{group}{within}/{plural}" + (f"/{name}" if name else "")


def pod(name, image, *words, labels=None, container=None, **spec):
    """One of one container, `main`; more of the container's and the pod's specification by keyword."""
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels or {}},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec,
                     "containers": [{"name": "main", "image": image, "command": list(words), **(container or {})}]}}


def job(name, image, *words, annotations=None, **spec):
    """One of one such pod, without second tries; more of the pod's specification by keyword."""
    return {"kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {
        "metadata": {"annotations": annotations or {}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": image, "command": list(words)}], **spec}}}}


# --- what is left of those that were killed


def remove_cgroups(name):
    for top in [CGROUPS, *CGROUPS.iterdir()]:
        for base in top.glob(f"{name}-*"):
            for there, _, _ in os.walk(base, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(there)


def remove_traces(directory, cgroup):
    remove_cgroups(cgroup)
    shutil.rmtree(directory, ignore_errors=True)


def claim(slot):
    """The open file of a slot with its lock, after removing what a cluster has left there; None: one runs."""
    file = open(SLOTS_AT / f"{slot}", "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.seek(0)
    left = file.read().split()
    if left:
        remove_traces(*left)
    file.truncate(0)
    return file


def take_slot():
    """(number, open file with its lock): the lock is passed on to the cluster, and ends with its last process."""
    SLOTS_AT.mkdir(mode=0o700, exist_ok=True)
    routes = subprocess.run([needs("ip"), "route"], capture_output=True, text=True).stdout
    with open(SLOTS_AT / "all", "w") as turn, contextlib.ExitStack() as free:
        fcntl.flock(turn, fcntl.LOCK_EX)
        claimed = {slot: free.enter_context(file) for slot in range(SLOTS) if (file := claim(slot))}
        for slot, file in claimed.items():
            if f"10.{100 + slot}." not in routes:
                return slot, open(os.dup(file.fileno()), "a+")
    raise Missing(f"{SLOTS} clusters run already, or their addresses are taken")


class Cluster:
    """One that is started here (nodes, kubelet: settings that differ), or with `attach` one that runs."""

    def __init__(self, nodes=1, kubelet=None, attach=None):
        self.process = None
        self.is_disturbed = False  # A part was told to stop or to start anew; the fakes of kwok are nothing that others use.
        self.users_lock = threading.Lock()
        if attach:
            self.load(Path(attach).parent)
        else:
            self.launch(nodes, kubelet or {})

    def launch(self, nodes, kubelet):
        if os.getuid():
            raise Missing("a cluster needs root")
        for program in PARTS:
            needs(program)
        if not CNI:
            raise Missing("the plugins of CNI are not installed")
        programs = {name: go_tool(name) for name in ("kubernetes", "etcd", "coredns", "kwok")}
        self.slot, lock = take_slot()
        directory = Path(tempfile.mkdtemp(prefix="dlrun-cluster-"))
        directory.chmod(0o755)
        self.cgroup = f"dlruntests-{secrets.token_hex(4)}"
        with lock:
            lock.write(f"{directory} {self.cgroup}")
            lock.flush()
            (directory / "settings.json").write_text(json.dumps({
                "dir": str(directory), "slot": self.slot, "nodes": nodes, "kubelet": kubelet, "cgroup": self.cgroup, **programs}))
            self.dir = directory
            with open(directory / "host.log", "wb") as log:
                self.process = subprocess.Popen(
                    [needs("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", sys.executable,
                     Path(__file__).with_name("kube_host.py"), directory],
                    stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[lock.fileno()], start_new_session=True)
        try:
            wait_for(lambda: (directory / "state.json").exists() or self.process.poll() is not None, "start of a cluster", START_S)
            self.load(directory)
        except BaseException:
            self.close()
            raise

    def load(self, directory):
        path = directory / "state.json"
        state = json.loads(path.read_text()) if path.exists() else {"error": (directory / "host.log").read_text()}
        if "error" in state:
            raise RuntimeError(f"the cluster does not start: {state['error']}")
        self.dir, self.state = directory, state
        self.server, self.ca, self.tokens = state["server"], state["ca"], state["tokens"]
        self.images, self.registry, self.nodes = state["images"], state["registry"], state["nodes"]
        self.address = self.server.removeprefix("https://")
        self.api = self.api_as("admin")

    def close(self):
        """All at once: the kernel ends what is in the namespaces."""
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None
            remove_traces(self.dir, self.cgroup)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- its parts: etcd, apiserver, controller-manager, scheduler, containerd-N, kubelet-N, coredns, registry, kwok, router

    def tell(self, **command):
        self.is_disturbed |= command.get("part") not in (None, "kwok")
        with socket.socket(socket.AF_UNIX) as line, line.makefile("rw") as lines:
            line.settimeout(STEP_S)
            line.connect(f"{self.dir}/control")
            lines.write(json.dumps(command) + "\n")
            lines.flush()
            answer = json.loads(lines.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def start(self, part, *args):
        """`args` are added to those that the part always has."""
        self.tell(do="start", part=part, args=args)

    def kill(self, part, number=signal.SIGKILL):
        self.tell(do="signal", part=part, signal=int(number))

    def stop(self, part):
        """SIGSTOP: it is there and does not answer."""
        self.kill(part, signal.SIGSTOP)

    def cont(self, part):
        self.kill(part, signal.SIGCONT)

    def restart(self, part, *args):
        if self.parts().get(part, {"status": 0})["status"] is None:
            self.kill(part)
        self.start(part, *args)
        if part in ("apiserver", "etcd"):
            self.wait_ready()

    def wait_ready(self, seconds=STEP_S):
        wait_for(lambda: self.try_api("GET", "/readyz") == "ok", "an API server that is ready", seconds)

    def try_api(self, *request, **query):
        try:
            return self.api(*request, **query)
        except (OSError, ApiError):
            return None

    def settle(self):
        """After the API server or etcd was away: its clients wait up to a minute before they ask again, unless they start anew."""
        for part in ("etcd", "apiserver"):
            (self.cont if self.parts()[part]["status"] is None else self.start)(part)
        self.wait_ready()
        for part, state in self.parts().items():
            if part.startswith(("kubelet-", "controller-manager", "scheduler", "coredns", "kwok")):
                (self.start if state["status"] is not None else self.restart)(part)
        self.wait(self.healthy, "a cluster as at its start", SETTLE_S)
        self.is_disturbed = False

    def healthy(self):
        """Nodes are ready and names are resolved."""
        nodes = [n for n in self.get("Node") if n["metadata"]["name"] in self.nodes]
        return not any(n["spec"].get("taints") for n in nodes) and listens(self.state["dns_ready"])

    def parts(self):
        """By name: {"pid" (in the namespace of the cluster), "status" (None: it runs)}."""
        return self.tell(do="parts")

    def broken(self):
        """Names of the parts that have ended."""
        return sorted(name for name, part in self.parts().items() if part["status"] is not None)

    def log(self, part):
        return self.dir / f"logs/{part}.log"

    def configure_kubelet(self, node, **settings):
        """Restarts it with these settings of its configuration."""
        path = self.dir / node / "kubelet.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        self.restart(node.replace("node", "kubelet"))

    def processes(self):
        """PIDs of all that runs in the cluster, its pods without PID namespaces of their own included."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/pid") == self.state["pid_namespace"]:
                    yield int(entry.name)

    def pid(self, part):
        """That of a part's process as the machine sees it."""
        inner = self.parts()[part]["pid"]
        return next(p for p in self.processes() if f"NSpid:\t{p}\t{inner}\n" in Path(f"/proc/{p}/status").read_text())

    def cpu_s(self):
        """Seconds of CPU of all that runs in the cluster, and of what ended in it and was waited for."""
        ticks = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Bytes, shared pages counted once."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
        return total

    # --- users

    def api_as(self, user, timeout_s=STEP_S):
        return Api(self.address, self.ca, self.tokens[user], timeout_s)

    def kubeconfig(self, user, path=None, how="token", namespace="default", server=None, ca=True, cluster=None, credentials=None):
        """A new file that makes KUBECONFIG=file the user's. `how`: "token", "cert" (files), "inline" (certificates in the
        file), "none"; `server`: another address, for example a proxy's HOST:PORT; `cluster`, `credentials`: added there."""
        about = {"server": f"https://{server}" if server and "://" not in server else server or self.server, **(cluster or {})}
        if ca:
            about |= {"certificate-authority-data": inline(self.ca)} if how == "inline" else {"certificate-authority": self.ca}
        pair = {"client-certificate": f"{self.dir}/certs/{user}.pem", "client-key": f"{self.dir}/certs/{user}.key"}
        who = {"token": {"token": self.tokens[user]}, "cert": pair, "inline": {f"{k}-data": inline(v) for k, v in pair.items()},
               "none": {}}[how] | (credentials or {})
        return write_kubeconfig(Path(path or self.dir / f"{user}-{secrets.token_hex(4)}.config"), about, who, namespace)

    def short_token(self, user, seconds):
        """A token that the server takes until then, and then perhaps for those 10 s for which it remembers tokens."""
        text = f"{user}.{int((time.time() + seconds) * 1000)}"
        return f"{text}.{hmac.new(self.state['secret'].encode(), text.encode(), hashlib.sha256).hexdigest()}"

    def exec_plugin(self, user, directory, seconds=0.0, version="v1", life_s=3600, token=None):
        """Credentials for `kubeconfig(how="none", credentials=…)`: a plugin that takes that long. Each of its runs adds a
        line to directory/calls."""
        script = Path(directory) / "get-token"
        script.write_text(
            "#!/bin/sh\n"
            f'echo "$KUBERNETES_EXEC_INFO" >>"{directory}/calls"\nsleep {seconds}\n'
            f'end=$(date -u -d "+{life_s} seconds" +%Y-%m-%dT%H:%M:%SZ)\n'
            f'printf \'{{"apiVersion":"client.authentication.k8s.io/{version}","kind":"ExecCredential","status":'
            f'{{"token":"{token or self.tokens[user]}","expirationTimestamp":"%s"}}}}\\n\' "$end"\n')
        script.chmod(0o755)
        return {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": str(script), "interactiveMode": "Never",
                         "provideClusterInfo": False, "installHint": "get-token comes with the tests"}}

    def audit(self, user=None, since=0):
        """What the API server was asked, in order: events of audit.k8s.io with verb, requestURI, user, responseStatus."""
        with open(self.log("audit"), errors="replace") as file:
            file.seek(since)
            events = [json.loads(line) for line in file if line.endswith("\n")]
        return [e for e in events if not user or e["user"].get("username") == user]

    def audit_mark(self):
        """For `since`."""
        return self.log("audit").stat().st_size

    def audit_begin(self, user):
        """For `audit_whole`: behind all that the user has asked for until now."""
        self.audit_caught_up(user, self.audit_mark())
        return self.audit_mark(), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def audit_whole(self, user, begin):
        """What came in since then. The line of a request is written some time after its answer has been sent, so that neither
        the place in the file nor a first line tells what belongs to it."""
        mark, since = begin
        self.audit_caught_up(user, mark)
        return [e for e in self.audit(user, mark) if e["requestReceivedTimestamp"] >= since]

    def audit_caught_up(self, user, mark):
        word = secrets.token_hex(8)
        self.api_as(user)("GET", "/version", mark=word)
        self.wait(lambda: any(word in e["requestURI"] for e in self.audit(user, mark)), "a line of the audit log")

    # --- objects

    def get(self, kind, name="", namespace="default", **query):
        answer = self.api("GET", path_of(kind, name, namespace), **query)
        return answer if name else answer["items"]

    def apply(self, *objects, namespace="default"):
        """Creates them, or brings those that are there to this state; returns the last."""
        for wanted in objects:
            about = wanted.setdefault("metadata", {})
            group = wanted.setdefault("apiVersion", GROUPS.get(wanted["kind"], "v1"))
            path = path_of(wanted["kind"], about["name"], about.get("namespace", namespace), group)
            answer = self.api("PATCH", path, wanted, kind="application/apply-patch+yaml", fieldManager="tests", force="true")
        return answer

    def delete(self, kind, name, namespace="default", **query):
        with contextlib.suppress(ApiError):
            self.api("DELETE", path_of(kind, name, namespace), **query)

    def wait(self, predicate, what="a state of the cluster", seconds=STEP_S, least=POLL_S):
        """Polls until the predicate's value is true, and returns it; errors of the API are none."""
        seconds = busy_s(seconds)
        end, value = time.monotonic() + seconds, None
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                value = predicate()
                if value:
                    return value
            except (OSError, ApiError, LookupError) as wrong:
                value = wrong
            time.sleep(pause_s(began, least))
        raise AssertionError(f"did not happen within {seconds} s: {what}; last: {value!r}"[:2000])

    def phase(self, namespace, name, *wanted, seconds=STEP_S):
        """The pod, when it has come to that phase."""
        return self.wait(lambda: (p := self.get("Pod", name, namespace))["status"]["phase"] in wanted and p,
                         f"{name} {' or '.join(wanted)}", seconds)

    def first_line(self, namespace, image, **spec):
        """Seconds from the creation of a Job to the first line of its log, as nobody can have it earlier here: the image
        is on the node, and the log is asked for without a pause."""
        took = 0.0
        for turn in ("pulls", "counts"):
            begin = time.monotonic()
            self.apply(job(f"floor-{turn}", image, "echo", "line", **spec), namespace=namespace)
            while not (name := self.started(namespace, f"floor-{turn}")):
                time.sleep(0.01)
            self.wait(lambda: self.api("GET", path_of("Pod", f"{name}/log", namespace)), "a line of a log", least=0.01)
            took = time.monotonic() - begin
            spec["nodeName"] = self.get("Pod", name, namespace)["spec"]["nodeName"]
        return took

    def started(self, namespace, of):
        """The name of the pod of a Job, once its container has begun."""
        for found in self.get("Pod", namespace=namespace, labelSelector=f"job-name={of}"):
            if any("waiting" not in s["state"] for s in found["status"].get("containerStatuses", [])):
                return found["metadata"]["name"]
        return None

    def kubectl(self, *args, config=None, check=True, **more):
        """Its standard output; of `-o json` what that says."""
        done = subprocess.run(self.kubectl_argv(*args, config=config), stdin=more.pop("stdin", subprocess.DEVNULL), capture_output=True,
                              text=True, timeout=more.pop("timeout", busy_s(STEP_S)), **more)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if "json" in args and "-o" in args else done.stdout

    def kubectl_argv(self, *args, config=None):
        return [self.state["kubernetes"], "kubectl", f"--kubeconfig={config or self.dir / 'parts.kubeconfig'}", *map(str, args)]

    @contextlib.contextmanager
    def namespace(self, *users, role="admin", labels=None, alone=False):
        """A new one in which the users have the ClusterRole; `alone`: no other test has one meanwhile, as this one stops
        parts of the cluster, which all start anew at the end if any was, or counts what it is asked. Tests use a cluster that they share only from within one."""
        name = f"t-{secrets.token_hex(4)}"
        with open(self.dir / "alone.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            self.apply({"kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
            for user in users:
                self.grant(user, role, name)
            self.wait(lambda: self.get("ServiceAccount", "default", name), "the account of a new namespace")
            try:
                yield name
            finally:
                if alone and self.is_disturbed:
                    self.settle()
                self.delete("Namespace", name)

    def grant(self, user, role, namespace, kind="ClusterRole"):
        self.apply({"kind": "RoleBinding", "metadata": {"name": f"{user}-{role}", "namespace": namespace},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                    "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
        review = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {
            "user": user, "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "pods"}}}
        self.wait(lambda: self.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"],
                  f"the rights of {user}")

    def offer(self, node, **resources):
        """A real node has these resources, too: offer("node-1", **{"nvidia.com/gpu": 2}). They stay; None takes one away."""
        amounts = {k: None if v is None else str(v) for k, v in resources.items()}
        self.api("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"capacity": amounts, "allocatable": amounts}},
                 kind="application/merge-patch+json")

    def volume(self, namespace, name, size="1Gi"):
        """A claim that is bound to a directory of the machine, which is returned."""
        there = self.spare_volume(f"{namespace}-{name}", size, storage_class="", claimRef={"namespace": namespace, "name": name})
        self.apply({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
                    "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": there.name,
                             "resources": {"requests": {"storage": size}}}})
        self.wait(lambda: self.get("PersistentVolumeClaim", name, namespace)["status"]["phase"] == "Bound", f"volume {name}")
        return there

    def spare_volume(self, name, size="1Gi", storage_class=None, **spec):
        """A directory of the machine for the first claim of its storage class, which is named like it."""
        there = self.dir / "volumes" / name
        there.mkdir(parents=True)
        there.chmod(0o777)
        self.apply({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "storageClassName": name if storage_class is None else storage_class,
            "capacity": {"storage": size}, "hostPath": {"path": str(there)}, "persistentVolumeReclaimPolicy": "Retain", **spec}})
        return there

    def start_fakes(self):
        """kwok, which keeps fake nodes."""
        if "kwok" not in self.parts() or self.parts()["kwok"]["status"] is not None:
            self.start("kwok")

    def fake_node(self, name, labels=None, taints=(), **resources):
        """One of kwok's: its pods seem to run and those of Jobs to end, as kubernetes/kwok.yaml says.
        It is tainted `tests/fake`, so that only who tolerates that comes there, unless `taints` says otherwise."""
        taints = [{"key": "tests/fake", "effect": "NoSchedule"}] if taints == () else taints
        self.start_fakes()
        fake_node(self.api, name, labels, taints, {"cpu": 64, "memory": "512Gi", "pods": 500, "ephemeral-storage": "1Ti", **resources})
        # Its taint is removed a moment after its condition is set.
        def usable():
            node = self.get("Node", name)
            return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"]) and \
                not any(t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", ()))
        self.wait(usable, f"node {name}")

    @contextlib.contextmanager
    def fake_logs(self, text):
        """Pods on fake nodes that are made meanwhile have this log, all the same, and it goes on as long as the pod."""
        port, log, config = free_port(), self.dir / "fake.log", self.dir / "kwok-logs.json"
        log.write_text("".join(f"2026-01-01T00:00:00.{n:09d}Z stdout F {line}\n" for n, line in enumerate(text.splitlines())))
        config.write_text(json.dumps({"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterLogs", "metadata": {"name": "all"},
                                      "spec": {"logs": [{"logsFile": str(log), "follow": True}]}}))
        self.restart("kwok", f"--config={config}", f"--server-address=127.0.0.1:{port}", f"--node-port={port}",
                     f"--tls-cert-file={self.dir}/certs/server.pem", f"--tls-private-key-file={self.dir}/certs/server.key")
        try:
            yield
        finally:
            self.restart("kwok")

    def trust(self, host, ca):
        """The nodes pull from the registry HOST:PORT over TLS with that authority."""
        there = self.dir / "certs.d" / host
        there.mkdir(exist_ok=True)
        (there / "hosts.toml").write_text(f'server = "https://{host}"\n[host."https://{host}"]\nca = "{ca}"\n')


def inline(path):
    return base64.b64encode(Path(path).read_bytes()).decode()


_own_lock = threading.Lock()
_own = []


def get(nodes=2):
    """The cluster of the tests of this process."""
    with _own_lock:
        if not _own:
            shared = os.environ.get(STATE)
            _own.append(Cluster(attach=shared) if shared else Cluster(nodes=nodes))
            atexit.register(_own[0].close)
    return _own[0]


# --- by hand


def shell(nodes):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    begin = time.monotonic()
    with Cluster(nodes=nodes) as cluster, contextlib.suppress(KeyboardInterrupt):
        print(f"# ready after {time.monotonic() - begin:.1f} s, {cluster.memory() >> 20} MiB, DIR={cluster.dir}")
        for user in ("admin", "alice", "bob"):
            print(f"{'export' if user == 'admin' else '#'} KUBECONFIG={cluster.kubeconfig(user, cluster.dir / f'{user}.config', 'cert')}")
        print(f"export {STATE}={cluster.dir}/state.json")
        print(f"alias kubectl='{cluster.state['kubernetes']} kubectl'")
        print(f"# registry {cluster.registry}, images {' '.join(cluster.images.values())}", flush=True)
        signal.pause()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shell", action="store_true")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--do", nargs=3, metavar=("DIR", "VERB", "PART"))
    options = parser.parse_args()
    try:
        if options.do:
            directory, verb, part = options.do
            getattr(Cluster(attach=f"{directory}/state.json"), verb)(part)
        elif options.shell:
            shell(options.nodes)
        else:
            parser.print_help()
    except Missing as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
