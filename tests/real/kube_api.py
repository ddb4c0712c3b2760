"""A client of the Kubernetes API for the tests: one request, one answer, all errors as ApiError."""

import http.client
import json
import ssl
import threading
import urllib.parse


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
        fresh = not hasattr(self.own, "connection")
        if fresh:
            self.own.connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=self.timeout_s)
        try:
            self.own.connection.request(method, path, body, headers)
            answer = self.own.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.own.connection.close()
            del self.own.connection
            # The server may have ended a connection that was idle, and only what changes nothing is sent twice.
            if fresh or method != "GET":
                raise
            return self.send(method, path, body, headers)
