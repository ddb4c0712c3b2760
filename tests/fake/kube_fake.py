# SPDX-License-Identifier: Apache-2.0
"""The API server of a cluster as far as an autoscaler uses it, with a clock that is set by hand. It has no watches."""

import email.utils
import itertools
import json
import time

from scripted import Answer, ScriptedServer

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
REASONS = {404: "NotFound", 409: "Conflict"}


def rfc3339(at):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def merged(target, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


class Cluster(ScriptedServer):
    """`objects`: by path, for nodes and pods below that of all of them. `now`: its clock, in seconds since 1970."""

    def __init__(self):
        self.objects, self.now, self.versions = {}, int(time.time()), itertools.count(1)
        super().__init__()

    def handle(self, request):
        with self.lock:
            status, body = self.answer(request, json.loads(request.body or b"{}"))
            date = email.utils.formatdate(self.now, usegmt=True)
        if status >= 400:
            body = {"kind": "Status", "code": status, "reason": REASONS[status]}
        return Answer(status, {"Content-Type": "application/json", "Date": date}, json.dumps(body))

    def answer(self, request, body):
        path, meta = request.path, body.get("metadata", {})
        if request.method == "POST":
            path += f"/{meta['name']}"
            return (409, None) if path in self.objects else (201, self.put(path, body))
        if path in (NODES, PODS):
            found = self.list(path, request.arg("fieldSelector", ""))
            return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found}
        known = self.objects.get(path)
        if known is None:
            return 404, None
        wanted = body.get("preconditions", {}) if request.method == "DELETE" else meta
        if any(wanted.get(k, known["metadata"][k]) != known["metadata"][k] for k in ("uid", "resourceVersion")):
            return 409, None
        if request.method == "DELETE":
            return 200, self.objects.pop(path)
        if request.method != "GET":
            known = self.put(path, body if request.method == "PUT" else merged(known, body))
        return 200, known

    def put(self, path, value):
        meta, known = value.setdefault("metadata", {}), self.objects.get(path)
        version = str(next(self.versions))
        uid = known["metadata"]["uid"] if known else version
        meta |= {"name": path.rpartition("/")[2], "uid": uid, "resourceVersion": version}
        self.objects[path] = value
        return value

    def list(self, path, selector=""):
        node = next((s.partition("=")[2] for s in selector.split(",") if s.startswith("spec.nodeName=")), None)
        found = [v for k, v in self.objects.items() if k.rpartition("/")[0] == path]
        return [v for v in found if not node or v["spec"]["nodeName"] == node]

    def add_pod(self, name, node=None, owner=None, **requests):
        owners = [{"kind": owner, "name": name}] if owner else []
        self.put(f"{PODS}/{name}", {"metadata": {"namespace": "n", "ownerReferences": owners}, "spec": {
            "nodeName": node, "containers": [{"resources": {"requests": requests}}]}})

    def add_node(self, name, instance):
        """A machine of AWS's type g5.xlarge, with two daemons."""
        self.put(f"{NODES}/{name}", {
            "metadata": {"creationTimestamp": rfc3339(self.now)}, "spec": {"providerID": f"aws:///us-east-1a/{instance}"},
            "status": {"allocatable": {"cpu": "3920m", "memory": "14Gi", "pods": "58", "nvidia.com/gpu": "1"}}})
        self.set_ready(name, "True")
        for daemon, cpu in (("cni", "50m"), ("proxy", "100m")):
            self.add_pod(f"{daemon}-{name}", name, "DaemonSet", cpu=cpu)

    def set_ready(self, name, ready):
        node = self.objects[f"{NODES}/{name}"]
        node["status"]["conditions"] = [{"type": "Ready", "status": ready, "lastTransitionTime": rfc3339(self.now)}]
        self.put(f"{NODES}/{name}", node)
