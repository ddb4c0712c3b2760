# SPDX-License-Identifier: Apache-2.0
"""A client of the Kubernetes API for the tests: one request, one answer, all errors as ApiError."""

import http.client
import json
import ssl
import threading
import time
import urllib.parse

RETRY_S = 20
BUSY = (429, 503)


def write_kubeconfig(path, cluster, user, namespace="default"):
    """One context of that cluster and that user, in the words of the format."""
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}], "users": [{"name": "tests", "user": user}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}]}, indent=1))
    path.chmod(0o600)
    return path


class ApiError(Exception):
    def __init__(self, status, body):
        try:
            message = json.loads(body).get("message", "")
        except ValueError:
            message = body[:300].decode(errors="replace")
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Connections of its own for each thread, to HOST:PORT with the token of a user."""

    def __init__(self, address, ca, token, timeout_s=30):
        self.address, self.token, self.timeout_s = address, token, timeout_s
        self.context = ssl.create_default_context(cafile=ca)
        self.own = threading.local()

    def __call__(self, method, path, body=None, kind="application/json", **query):
        """The object that the server answers with, or the text where it is none."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        path += ("&" if "?" in path else "?") + urllib.parse.urlencode(query) if query else ""
        status, data = self.send(method, path, None if body is None else json.dumps(body), headers)
        if status >= 300:
            raise ApiError(status, data)
        return json.loads(data) if data[:1] == b"{" else data.decode()

    def send(self, method, path, body, headers):
        """One answer; after lost connections and busy servers again, until RETRY_S, where that changes no more than once would."""
        end = time.monotonic() + RETRY_S
        while True:
            try:
                answer = self.send_once(method, path, body, headers)
                if method == "POST" or answer[0] not in BUSY or time.monotonic() > end:
                    return answer
            except (OSError, http.client.HTTPException) as wrong:
                self.forget()
                unsent = isinstance(wrong, ConnectionRefusedError)
                if method == "POST" and not unsent or time.monotonic() > end:
                    raise wrong if isinstance(wrong, OSError) else ConnectionError(repr(wrong))
            time.sleep(0.1)

    def send_once(self, method, path, body, headers):
        if method == "POST":
            self.forget()  # the server may end one that is idle
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=self.timeout_s)
        self.own.connection.request(method, path, body, headers)
        answer = self.own.connection.getresponse()
        return answer.status, answer.read()

    def forget(self):
        if hasattr(self.own, "connection"):
            self.own.connection.close()
            del self.own.connection


def fake_node(api, name, labels, taints, room, **spec):
    """Make or complete a node that kwok manages; its capacity is the room from the beginning: of one without it kwok says how much it has,
    and the scheduler would place pods by that."""
    capacity = {k: str(v) for k, v in {"pods": 110, **room}.items()}
    status = {"capacity": capacity, "allocatable": capacity}
    node = {"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": {
                "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {"taints": taints, **spec}, "status": status}
    made = api("PATCH", f"/api/v1/nodes/{name}", node, kind="application/apply-patch+yaml", fieldManager="tests", force="true")
    if made["status"].get("allocatable") != capacity:
        api("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind="application/merge-patch+json")
