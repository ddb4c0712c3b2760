# SPDX-License-Identifier: Apache-2.0
"""JupyterLab of PyPI for the tests: installed once, started as a program of a run, spoken to as its page does.

    lab = Lab(proxy, host)            a server that dlrun proxy leads to
    with lab.kernel() as kernel:
        kernel.run("1 + 1") == "2"
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import kube_images
from harness import wait_for
from proxysite import WebSocket
from pypi import CACHE, build, only_one, tools

TOKEN = "t0k3n"
START = ["python3", "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root", "--ServerApp.port_retries=0",
         f"--IdentityProvider.token={TOKEN}"]


def python3():
    """As kube_images takes it."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def packages():
    """A directory for PYTHONPATH."""
    version = subprocess.run([python3(), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True, capture_output=True,
                             text=True).stdout.strip()
    there = CACHE / f"jupyterlab-{version}"
    with only_one("jupyterlab"):
        if not there.exists():
            new = there.with_name(f"new-{there.name}")
            subprocess.run(["rm", "-rf", str(new)], check=True)
            tools()
            build(tools() / "python", "-m", "pip", "install", "-q", "--no-compile", "--target", new, "--python-version", version,
                  "--only-binary=:all:", "jupyterlab")
            new.rename(there)
    return there


def image_files():
    """The packages for a layer, with the libraries that theirs need."""
    root = packages()
    found, shared = {}, []
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not re.search(r"(^|/)(tests?|debugpy|__pycache__)/|\.map$|\.d\.ts$", name):
            found[f"opt/jupyter/{name}"] = path.read_bytes()
            if ".so" in path.name:
                shared.append(str(path))
    said = subprocess.run(["ldd", *shared], capture_output=True, text=True).stdout
    for path in set(re.findall(r"=> (/\S+) \(0x", said)):
        if not path.startswith(str(root)):
            found[path.lstrip("/")] = Path(path).read_bytes()
    return found


def image(cluster):
    """The python image with JupyterLab in it, in the registry of the cluster."""
    kube_images.OTHERS["jupyter"] = lambda: ([*kube_images.python()[0], image_files()],
                                             {"Env": [*kube_images.ENV, "PYTHONPATH=/opt/jupyter"], "Cmd": ["python3"]})
    base = f"{cluster.registry}/jupyter:v1"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{kube_images.layout('jupyter')}:v1", f"docker://{base}"],
                   check=True)
    return base


class Kernel:
    def __init__(self, lab, id):
        self.lab, self.id, self.session = lab, id, uuid.uuid4().hex
        self.socket = None
        self.joined = 0

    def join(self):
        path = f"/api/kernels/{self.id}/channels?session_id={self.session}&token={TOKEN}"
        self.leave()
        self.socket = WebSocket(self.lab.proxy.connect(), self.lab.authority, path, [("Origin", f"http://{self.lab.authority}")])
        if self.socket.status != 101:
            raise ConnectionError(f"status {self.socket.status}")
        self.joined += 1

    def leave(self):
        if self.socket:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None

    def run_once(self, code):
        id = uuid.uuid4().hex
        message = {"header": {"msg_id": id, "msg_type": "execute_request", "username": "", "session": self.session, "version": "5.3",
                              "date": ""},
                   "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
                   "content": {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False,
                               "stop_on_error": True}}
        self.socket.send(json.dumps(message).encode())
        result = ""
        while True:
            data = self.socket.receive()
            if data is None:
                raise ConnectionError("the WebSocket has ended")
            said = json.loads(data)
            if said["parent_header"].get("msg_id") != id:
                continue
            if said["msg_type"] == "execute_result":
                result = said["content"]["data"]["text/plain"]
            if said["msg_type"] == "error":
                raise AssertionError(said["content"]["evalue"])
            if said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
                return result

    def run(self, code, seconds=60):
        """What the code comes to; a connection that is lost is made again, as the page does it."""
        end = time.monotonic() + seconds
        while True:
            try:
                if not self.socket:
                    self.join()
                return self.run_once(code)
            except (OSError, ValueError, IndexError) as wrong:
                self.leave()
                if time.monotonic() > end:
                    raise AssertionError(f"the kernel does not answer: {wrong!r}") from wrong
                time.sleep(0.05)


class Lab:
    def __init__(self, proxy, host):
        self.proxy, self.host, self.authority = proxy, host, f"{host}:{proxy.port}"

    def ask(self, method, path, body=None):
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json", "Origin": f"http://{self.authority}"}
        return self.proxy.ask(method, self.host, path, body, headers)

    def wait(self, seconds=120):
        def answers():
            with contextlib.suppress(OSError):
                return self.ask("GET", "/api/status").status == 200
        wait_for(answers, "JupyterLab", seconds)

    @contextlib.contextmanager
    def kernel(self):
        made = self.ask("POST", "/api/kernels", json.dumps({"name": "python3"}))
        if made.status != 201:
            raise AssertionError(f"no kernel: {made!r}")
        kernel = Kernel(self, json.loads(made.text)["id"])
        try:
            yield kernel
        finally:
            kernel.leave()


