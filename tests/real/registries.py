# SPDX-License-Identifier: Apache-2.0
"""Real registries for the tests: each on a free loopback port, in the directory of its test, ending with it.

    with plain(w) as registry: …           Debian's docker-registry
    with with_password(w) as registry: …   the same behind TLS, with a list of users
    with with_tokens(w) as registry: …     the same behind TLS, with tokens of TokenServer
    with version3(w) as registry: …        distribution 3
    with in_memory(w) as registry: …       crane's, which takes an upload in one POST

`registry.host` is HOST:PORT. What a client needs is put into the world by `registry.login(w)`.
"""

import base64
import contextlib
import http.client
import http.server
import json
import os
import random
import re
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from gotools import go_tool
from harness import Missing, Skip, needs, wait_for
from image import base_layout

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from certs import Certs  # noqa: E402
from faultproxy import FaultProxy  # noqa: E402

START_S = 20
# Below the range from which the kernel takes ports of connections: a registry that is restarted gets its own again.
PORTS = range(12000, 32000)
USER = "researcher"
PASSWORD = "cnry-7f3b:p\u00e4ss word"
# bcrypt of PASSWORD with 4 rounds, as `htpasswd -B -C 4` makes it.
PASSWORD_HASH = "$2b$04$abcdefghijklmnopqrstuuJBerZpxshuTPHmw3S4Se4sweG6zdqd2"


def free_port():
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Service:
    """A process with a log, which ends with whoever started it."""

    def __init__(self, log):
        self.log, self.process = Path(log), None

    def spawn(self, argv):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([needs("setpriv"), "--pdeathsig", "KILL", *map(str, argv)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, cwd=self.log.parent)

    def ready(self, condition):
        wait_for(lambda: condition() or self.process.poll() is not None, f"start of {self.log.stem}", START_S)
        return self.process.poll() is None

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def text(self):
        return self.log.read_text(errors="replace")


def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def es256(text, key):
    """The two numbers of an ECDSA signature, as RFC 7518 (3.4) wants them; openssl writes DER."""
    der = subprocess.run([needs("openssl"), "dgst", "-sha256", "-sign", key], input=text.encode(), check=True, capture_output=True).stdout
    first = 4 + der[3]
    return b"".join(number.lstrip(b"\0").rjust(32, b"\0") for number in (der[4:first], der[first + 2:]))


class TokenServer:
    """Answers GET with a signed token for what is asked, as docker's token.md describes, and nothing else.

    `life_s` is what the registry grants a token, `says_s` what the answer claims; that is for dlrun only, as other
    tools fail with tokens that end while they read. `allow(name, action)`
    decides on each part of a scope. `asked` lists the queries of those who came with the right password.
    """

    TOOLS_S = 300
    LEEWAY_S = 60  # distribution/registry/auth/token: a token is good for that long after its end

    def __init__(self, certs, life_s=2, says_s=None, allow=lambda name, action: True):
        self.certs, self.life_s, self.says_s, self.allow = certs, life_s, says_s or life_s, allow
        self.asked, self.refused = [], 0
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.http.handle_error = lambda *_: None  # a client that goes away is none
        self.http.socket = certs.context().wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.realm = f"https://localhost:{self.http.server_port}/token"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def handler(self):
        tokens = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                status, answer = tokens.answer(self.path, self.headers)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler

    def answer(self, path, headers):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        if headers.get("Authorization") != "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode():
            self.refused += 1
            return 401, {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
        self.asked.append(query)
        access = []
        for scope in query.get("scope", []):
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": [a for a in actions.split(",") if self.allow(name, a)]})
        own = headers.get("User-Agent", "").startswith("dlrun")
        return 200, {"token": self.token(query["service"][0], access, self.life_s if own else self.TOOLS_S),
                     "expires_in": self.says_s if own else self.TOOLS_S}

    def token(self, service, access, life_s=TOOLS_S):
        now = int(time.time())
        certificate, key = self.certs.pair()
        chain = [base64.b64encode(ssl.PEM_cert_to_DER_cert(certificate.read_text())).decode()]
        claims = {"iss": "tests", "sub": USER, "aud": service, "jti": secrets.token_hex(8), "access": access, "iat": now,
                  "nbf": now - self.LEEWAY_S, "exp": now + life_s - self.LEEWAY_S}
        text = ".".join(b64url(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ES256", "x5c": chain}, claims))
        return f"{text}.{b64url(es256(text, key))}"


class Request:
    def __init__(self, method, path, status):
        self.method, self.path, self.status = method, path, status

    @property
    def kind(self):
        """What the request is for, in one word or two."""
        if "mount=" in self.path:
            return "mount"
        part = next((p for p in ("/blobs/uploads/", "/blobs/", "/manifests/", "/tags/") if p in self.path), "ping")
        return f"{self.method} {part.strip('/').split('/')[-1]}"

    def __repr__(self):
        return f"{self.method} {self.path[:100]} {self.status}"


class Registry:
    """A process that speaks the distribution protocol, and what a client must know to speak with it."""

    LINE = re.compile(r'"([A-Z]+) (\S+) HTTP/1\.1" (\d+) ')

    clients = False

    def __init__(self, w, name, certs=None, kind="good", user=None):
        self.dir = w.dir / name
        self.dir.mkdir()
        self.storage = self.dir / "storage"
        self.certs, self.kind, self.user = certs, kind, user
        self.service = Service(self.dir / f"{name}.log")
        self.port, self.seen, self.wire = None, 0, None

    @property
    def host(self):
        port = self.wire.port if self.wire else self.port
        return f"{'localhost' if self.certs else '127.0.0.1'}:{port}"

    # --- the process

    def argv(self):
        raise NotImplementedError

    def start(self):
        """On the port that it had, or on any that is free."""
        for _ in range(1 if self.port else 10):
            port = self.port or free_port()
            self.service.spawn(self.argv(port))
            if self.service.ready(lambda: listens(port)):
                self.port = port
                return self
        raise Missing(f"{self.dir.name} does not start: {self.service.text()[-1000:]}")

    def stop(self):
        self.service.kill()

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        self.stop()

    # --- what it has seen

    def requests(self):
        """All since the last time, in the order of their ends; those that this file sends are left out."""
        mark = f"/v2/?mark={secrets.token_hex(8)}"
        self.http("GET", mark)
        wait_for(lambda: mark in self.service.text(), "the line of a request in the log")
        found = [Request(m, p, int(s or 0)) for m, p, s in self.LINE.findall(self.service.text())]
        fresh, self.seen = found[self.seen:], len(found)
        return [r for r in fresh if "mark=" not in r.path]

    # --- being its client

    def login(self, w, password=PASSWORD):
        """What `docker login` leaves, and trust in the authority."""
        if self.certs:
            w.env["SSL_CERT_FILE"] = str(self.certs.ca)
        if self.user:
            path = w.home / ".docker/config.json"
            path.parent.mkdir(mode=0o700, exist_ok=True)
            known = json.loads(path.read_text()) if path.exists() else {}
            known.setdefault("auths", {})[self.host] = {"auth": base64.b64encode(f"{self.user}:{password}".encode()).decode()}
            path.write_text(json.dumps(known))

    def authorization(self, name):
        if not self.user:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(f"{self.user}:{PASSWORD}".encode()).decode()}

    def http(self, method, path, body=None, headers=None, name=""):
        """One request of the tests' own: (status, headers, body)."""
        if self.certs:
            context = ssl.create_default_context(cafile=self.certs.ca)
            if self.clients:
                context.load_cert_chain(*self.certs.pair("client"))
            connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=30)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sign = "&" if "?" in path else "?"
        path = path if "mark=" in path else f"{path}{sign}mark=own"
        with contextlib.closing(connection):
            connection.request(method, path, body, {**self.authorization(name), **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def blob(self, name, digest):
        return self.http("GET", f"/v2/{name}/blobs/{digest}", name=name)

    def manifest(self, name, reference):
        accept = {"Accept": ",".join(("application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json",
                                      "application/vnd.docker.distribution.manifest.v2+json"))}
        return self.http("GET", f"/v2/{name}/manifests/{reference}", headers=accept, name=name)

    def tool(self, w, *argv):
        """skopeo, crane and their like, with the credentials and the authority that the world has."""
        self.login(w)
        done = w.command(argv)
        assert done.rc == 0, f"{' '.join(map(str, argv))}: {done!r}"
        return done

    def put_layout(self, w, layout, name, tag="v1"):
        """The image of that tag in a layout becomes name:tag here; returns its reference."""
        reference = f"{self.host}/{name}:{tag}"
        self.tool(w, needs("skopeo"), "copy", "-q", "--all", "--preserve-digests", f"--dest-tls-verify={bool(self.certs)}".lower(),
                  "--authfile", self.authfile(w), f"oci:{layout}:{tag}", f"docker://{reference}")
        self.requests()
        return reference

    def authfile(self, w):
        self.login(w)
        path = w.home / ".docker/config.json"
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_text("{}")
        return path


class Distribution(Registry):
    """docker-registry of Debian (2.8) or distribution 3, on a file system."""

    def __init__(self, w, name, program, auth=None, secret="of all that start here", storage=None, cache=False, clients=False, **more):
        super().__init__(w, name, **more)
        self.clients = clients
        self.program, self.auth, self.secret, self.cache = program, auth or {}, secret, cache
        self.storage = storage or self.storage
        self.storage.mkdir(exist_ok=True)

    def config(self, port):
        settings = {"addr": f"127.0.0.1:{port}"}
        if self.secret:
            settings["secret"] = self.secret
        if self.certs:
            certificate, key = self.certs.pair(self.kind)
            settings["tls"] = {"certificate": str(certificate), "key": str(key)}
            if self.clients:
                settings["tls"]["clientcas"] = [str(self.certs.ca)]
        storage = {"filesystem": {"rootdirectory": str(self.storage)}, "delete": {"enabled": True}}
        if self.cache:
            storage["cache"] = {"blobdescriptor": "inmemory"}
        path = self.dir / "config.yml"
        # JSON is YAML.
        path.write_text(json.dumps({
            "version": "0.1", "log": {"level": "warn", "accesslog": {"disabled": False}}, "auth": self.auth, "http": settings,
            "storage": storage}))
        return path

    def argv(self, port):
        return [self.program, "serve", self.config(port)]

    def garbage_collect(self):
        subprocess.run([self.program, "garbage-collect", "--delete-untagged", str(self.dir / "config.yml")], check=True,
                       capture_output=True)

    def blob_path(self, digest):
        digest = digest.removeprefix("sha256:")
        return self.storage / f"docker/registry/v2/blobs/sha256/{digest[:2]}/{digest}/data"


class TokenDistribution(Distribution):
    """One that wants tokens of a server of its own."""

    def __init__(self, w, name, program, certs, **tokens):
        self.tokens = TokenServer(certs, **tokens)
        auth = {"token": {"realm": self.tokens.realm, "service": "registry of the tests", "issuer": "tests",
                          "rootcertbundle": str(certs.ca)}}
        super().__init__(w, name, program, auth, certs=certs, user=USER)

    def authorization(self, name):
        access = [{"type": "repository", "name": name, "actions": ["pull", "push", "delete"]}] if name else []
        return {"Authorization": "Bearer " + self.tokens.token("registry of the tests", access)}

    def close(self):
        super().close()
        self.tokens.close()


class InMemory(Registry):
    """crane's registry; its blobs lie on disk, its manifests nowhere."""

    LINE = re.compile(r"^\S+ \S+ ([A-Z]+) (/\S*)()", re.M)

    def argv(self, port):
        self.storage.mkdir(exist_ok=True)
        return [go_tool("crane"), "registry", "serve", "--address", f"127.0.0.1:{port}", "--disk", self.storage]


@contextlib.contextmanager
def running(registry):
    try:
        yield registry.start()
    finally:
        registry.close()


def plain(w, name="plain", **more):
    return running(Distribution(w, name, needs("docker-registry"), **more))


def with_client_certificates(w, name="clients"):
    return running(Distribution(w, name, needs("docker-registry"), certs=authority(w), clients=True))


def with_password(w, name="password", kind="good"):
    users = w.dir / f"{name}.users"
    users.write_text(f"{USER}:{PASSWORD_HASH}\n")
    auth = {"htpasswd": {"realm": "tests", "path": str(users)}}
    return running(Distribution(w, name, needs("docker-registry"), auth, certs=authority(w), kind=kind, user=USER))


def with_tokens(w, name="tokens", **tokens):
    return running(TokenDistribution(w, name, needs("docker-registry"), authority(w), **tokens))


def version3(w, name="version3", **more):
    return running(Distribution(w, name, go_tool("registry"), **more))


def in_memory(w, name="crane"):
    return running(InMemory(w, name))


def authority(w):
    return Certs(w.dir / "certs")


@contextlib.contextmanager
def wire(registry, **switches):
    """A FaultProxy before the registry, whose host is the proxy's from here on."""
    with FaultProxy(("127.0.0.1", registry.port), **switches) as registry.wire:
        try:
            yield registry.wire
        finally:
            registry.wire = None


@contextlib.contextmanager
def small_disk(there, size):
    """A file system of that many bytes."""
    there.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tests", str(there)], capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(there)], check=True)


def base(w, layers=30, **more):
    """A layout with a small image, v1: a shell in its first layer, a file of its own in each of the others."""
    busybox = Path(needs("busybox")).read_bytes()

    def members(i):
        return {f"base/{i}": os.urandom(2000)} if i else {"bin/busybox": busybox, "bin/sh": "busybox", "bin/cat": "busybox"}

    return base_layout(w, layers, members=members, settings={"Env": ["PATH=/bin"]}, **more)[0]


class Containerd:
    """A containerd of the test's own, without CRI."""

    def __init__(self, w):
        self.w, self.dir = w, w.dir / "containerd"
        self.dir.mkdir()
        self.socket = self.dir / "sock"
        (self.dir / "config.toml").write_text(
            f'version = 2\nroot = "{self.dir}/root"\nstate = "{self.dir}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.socket}"\n[ttrpc]\naddress = "{self.dir}/ttrpc"\n')
        self.service = Service(self.dir / "containerd.log")

    def start(self):
        if os.getuid():
            raise Skip("containerd needs root")
        needs("ctr"), needs("runc")
        self.service.spawn([needs("containerd"), "-c", self.dir / "config.toml"])
        if not self.service.ready(lambda: self.socket.exists() and self.w.command(["ctr", "-a", self.socket, "version"]).rc == 0):
            raise Missing(f"containerd does not start: {self.service.text()[-1000:]}")
        return self

    def ctr(self, *argv):
        done = self.w.command(["ctr", "-a", self.socket, *argv])
        assert done.rc == 0, f"ctr {' '.join(map(str, argv))}: {done!r}"
        return done.out

    def pull(self, registry, reference):
        how = ["--plain-http"]
        if registry.certs:
            # ctr itself would speak HTTP with whatever is called localhost.
            hosts = self.dir / "hosts" / registry.host
            hosts.mkdir(parents=True, exist_ok=True)
            (hosts / "hosts.toml").write_text(f'[host."https://{registry.host}"]\nca = "{registry.certs.ca}"\n')
            how = ["--hosts-dir", hosts.parent]
        who = ["--user", f"{USER}:{PASSWORD}"] if registry.user else []
        self.ctr("images", "pull", *how, *who, reference)

    def run(self, reference, *argv):
        """What the words print in a container of the image, run by runc."""
        # The name is also that of a cgroup, of which the machine has one tree.
        return self.ctr("run", "--rm", reference, f"run-{secrets.token_hex(8)}", *argv)

    def close(self):
        self.service.kill()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for there in reversed([m for m in mounts if m.startswith(f"{self.dir}/")]):
            subprocess.run(["umount", "-l", there], check=True)


def containerd(w):
    return running(Containerd(w))
