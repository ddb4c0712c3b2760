#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registries that want logins for others, lead elsewhere, or send too much: refused, in little memory.

    tests/real/push_hostile.py DLRUN [NAME…]
"""

import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading

from harness import Result, in_time, main
from pushsite import MEMORY_MAX, PASSWORD, SECRETS, USER, Answer, Basic, Bearer, Site, TokenServer, digest_of, is_sanitized, outcome, \
    that_hold
from certs import Certs

# The kernel counts the memory of the process that starts another one, too: a small one does it.
LAUNCH = "import os,sys\np=os.posix_spawn(sys.argv[1],sys.argv[1:],os.environ)\n_,s,u=os.wait4(p,0)\n" \
         "open(os.environ['PEAK'],'w').write(str(u.ru_maxrss))\nsys.exit(os.waitstatus_to_exitcode(s)&255)"
JSON = [("Content-Type", "application/json")]


def measured(site, *args, timeout_s=10):
    """A push, and the bytes of memory that it took at most."""
    peak = site.dir / "peak"
    env = {"HOME": str(site.home), "PATH": os.environ["PATH"], "DLRUN_PUSH_TIMEOUT": f"{timeout_s}s", "PEAK": str(peak)}
    argv = [sys.executable, "-S", "-E", "-c", LAUNCH, site.dlrun, "push", "--to", f"{site.via}/me/code", *args]
    done = subprocess.run(argv, cwd=site.tree, env=env, capture_output=True, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr), int(peak.read_text()) * 1024


def bounded(site, expected, *args):
    """It fails so, within the memory, and then works."""
    done, peak = measured(site, *(args or ("--image", site.base)))
    assert outcome(done) in expected.split(), f"{expected} was expected: {done!r}{site.seen()}"
    assert is_sanitized(site.dlrun) or peak <= MEMORY_MAX, f"{peak >> 20} MiB of memory"
    site.registry.drop_rules()
    site.right("--image", site.base)
    return done


def untold(*servers):
    """None of the secrets has come there."""
    for server in servers:
        for secret in SECRETS:
            told = that_hold(server.requests, secret)
            assert not told, f"a secret was sent to {server.address}: {told}"


# --- too much

def test_large_manifest(w):
    for how in ({"how": "fill", "length": 1 << 30}, {"how": "endless"}):
        with Site(w.dlrun) as site:
            site.registry.rule("^GET /v2/base/py/manifests/", Answer(200, JSON, b" " * 65536, **how))
            bounded(site, "http.limit")


def test_large_answers_to_everything(w):
    for pattern in ("^POST ", r"^PUT \S+/blobs/", r"^PUT \S+/manifests/", "^GET /v2/base/py/blobs/"):
        for how in ({"how": "fill", "length": 1 << 30}, {"how": "endless"}, {"how": "endless-head"}):
            with Site(w.dlrun) as site:
                site.registry.rule(pattern, Answer(200, JSON, b" " * 65536, **how))
                bounded(site, "http.limit")


def test_large_errors(w):
    for how in ({"how": "fill", "length": 1 << 30}, {"how": "endless"}):
        with Site(w.dlrun) as site:
            site.registry.rule(r"^PUT \S+/blobs/", Answer(400, JSON, b"{" * 65536, **how))
            bounded(site, "registry.answer")


def test_large_tokens(w):
    for body in (b'{"token":"' + b"x" * (32 << 20) + b'"}', b'{"token":' + b"[" * (1 << 20)):
        with Site(w.dlrun, login="token") as site:
            rule = site.tokens.rule("token", Answer(200, JSON, body))
            done, peak = measured(site, "--image", site.base)
            assert rule.fired and outcome(done) in ("http.limit", "registry.answer"), done
            assert is_sanitized(w.dlrun) or peak <= MEMORY_MAX, f"{peak >> 20} MiB of memory"
            site.tokens.drop_rules()
            site.right("--image", site.base)


def test_compressed_configuration(w):
    """256 MiB of zeros in 256 KiB, as a Content-Encoding and as the blob itself."""
    bomb = gzip.compress(b"\0" * (256 << 20), 9)
    for headers in ([("Content-Encoding", "gzip")], []):
        with Site(w.dlrun) as site:
            site.registry.rule("^GET /v2/base/py/blobs/", Answer(200, headers, bomb))
            bounded(site, "registry.answer")
    with Site(w.dlrun) as site:
        digest = site.registry.add_blob("base/py", bomb)
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": len(bomb)}
        site.registry.add_manifest("base/py", "bomb", {"schemaVersion": 2, "config": config, "layers": []})
        bounded(site, "image data data.limit", "--image", f"{site.via}/base/py:bomb")


def test_deep_manifest(w):
    with Site(w.dlrun) as site:
        body = b'{"schemaVersion":2,"config":' + b"[" * (1 << 20)
        site.registry.rule("^GET /v2/base/py/manifests/", Answer(200, JSON, body))
        bounded(site, "registry.answer")


def test_manifest_with_many_layers(w):
    with Site(w.dlrun) as site:
        layer = {"mediaType": "x", "digest": digest_of(b""), "size": 1}
        body = json.dumps({"schemaVersion": 2, "config": layer, "layers": [layer] * 25000}).encode()
        site.registry.add_manifest("base/py", "many", body, "application/vnd.oci.image.manifest.v1+json")
        bounded(site, "image image.base image.kind image.depth data.limit registry.answer http.limit image.limit", "--image", f"{site.via}/base/py:many")


def test_base_with_more_layers_than_an_image_can_have(w):
    with Site(w.dlrun) as site:
        site.registry.add_image("base/many", "1", layers=200)
        done = site.push("--image", site.base.replace("base/py:3", "base/many:1"))
        assert outcome(done) == "image.depth", done
        assert site.registry.count("mount=") == 0, site.seen()


# --- elsewhere

def redirected(w, status, login="basic"):
    for pattern in ("^GET ", "^POST ", r"^PUT \S+/blobs/", r"^PUT \S+/manifests/"):
        with Site(w.dlrun, login=login) as site:
            site.registry.rule(pattern, lambda request: Answer(status, [("Location", site.evil.url + request.target)])
                               if request.authorization else None)
            site.evil.rule("", Answer(401, [("WWW-Authenticate", 'Basic realm="registry"')]))
            done = site.push("--image", site.base, timeout_s=4)
            assert outcome(done) != "ok", done
            untold(site.evil)
            if site.tokens:
                assert not any("authorization" in (n.lower() for n, _ in r.headers) for r in site.evil.requests), "a token was sent on"
            site.registry.drop_rules()
            site.right("--image", site.base)


def test_redirects_carry_no_login(w):
    for status in (301, 302, 303, 307, 308):
        redirected(w, status)


def test_redirects_carry_no_token(w):
    redirected(w, 307, "token")


def test_uploads_elsewhere_carry_no_login(w):
    """A Location of another host is used, without the login, also when that host asks for one."""
    with Site(w.dlrun, login="basic", location="other") as site:
        site.right("--image", site.base)
        untold(site.registry.other)
        assert site.registry.other.count("^PUT ") >= 2
        site.edit()
        site.registry.other.rule("", Answer(401, [("WWW-Authenticate", 'Basic realm="registry"')]))
        done = site.push("--image", site.base)
        assert outcome(done) in ("registry.auth", "registry.denied"), done
        untold(site.registry.other)


def test_storage_that_cannot_be_read_from_here(w):
    """Layers that lie where this machine cannot ask for them: no reason to refuse a push, nor to send them again."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for answer in (Answer(503), Answer(504), Answer(307, [("Location", f"{nowhere}/blob")])):
            with Site(w.dlrun) as site:
                site.right("--image", site.base)
                site.registry.rule("^GET /v2/me/code/blobs/", answer)
                for _ in range(3):
                    site.registry.clear()
                    site.right("--image", site.base)
                    assert site.registry.count("^GET /v2/me/code/blobs/") >= 2, site.seen()
                    assert site.registry.count("^POST |^PUT .*/blobs/") == 0, site.seen()


@contextlib.contextmanager
def firewalled():
    """A socket that leaves connections unanswered, as a firewall does that drops them: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server


def test_storage_that_says_nothing_is_asked_once(w):
    with socket.create_server(("127.0.0.1", 0)) as silent, firewalled() as dropped:
        for server in (silent, dropped):
            with Site(w.dlrun) as site:
                site.right("--image", site.base)
                site.registry.rule("^GET /v2/me/code/blobs/", Answer(307, [
                    ("Location", f"http://127.0.0.1:{server.getsockname()[1]}/blob")]))
                for asks in (True, False):
                    site.registry.clear()
                    site.right("--image", site.base)
                    assert bool(site.registry.count("^GET /v2/me/code/blobs/")) == asks, site.seen()
                    assert site.registry.count("^POST |^PUT .*/blobs/") == 0, site.seen()
                site.edit()
                site.right("--image", site.base)


def test_uploads_lead_to_no_metadata_service(w):
    for where in ("http://169.254.169.254", "http://[fd00:ec2::254]", "http://metadata.google.internal", "http://0xA9FEA9FE",
                  "http://[::ffff:169.254.169.254]", "http://2852039166", "file://", "gopher://127.0.0.1:70", "http://user:pw@127.0.0.1:1"):
        with Site(w.dlrun, location=where) as site:
            done = in_time(lambda: site.push("--image", site.base, timeout_s=4), 5)
            assert done.rc and outcome(done) in ("http.zone", "http.url", "registry.answer", "http.resolve", "registry.unreachable"), \
                f"{where}: {done!r}"
            site.registry.location = "absolute"
            site.right("--image", site.base)


def challenged(site, realm):
    site.registry.auth = type("Own", (), {"check": staticmethod(lambda request, needs: Answer(
        401, [("WWW-Authenticate", f'Bearer realm="{realm}",service="registry.test"')]))})


def test_realms_in_networks_of_others(w):
    for realm in ("http://169.254.169.254/token", "http://[fd00:ec2::254]/token", "file:///etc/passwd", "//elsewhere.invalid/token",
                  "http://[::ffff:169.254.169.254]/t", "http://0251.0376.0251.0376/t", ""):
        with Site(w.dlrun, login="basic") as site:
            auth = site.registry.auth
            challenged(site, realm)
            done = in_time(lambda: site.push("--image", site.base, timeout_s=4), 5)
            assert outcome(done).split(".")[0] in ("http", "registry"), f"{realm}: {done!r}"
            site.registry.auth = auth
            site.right("--image", site.base)


class Door:
    """An HTTP proxy that takes every name for this machine, so that registries have names of the world."""

    ABSOLUTE = re.compile(rb"\A([A-Z]+) http://[^/]+")

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data:
                    return
                head += data
            with socket.create_connection(("127.0.0.1", int(re.match(rb"\S+ \S*?:(\d+)[/ ]", head.replace(b"http://", b""))[1]))) as server:
                if head.startswith(b"CONNECT"):
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    server.sendall(self.ABSOLUTE.sub(rb"\1 ", head))
                back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
                back.start()
                self.copy(client, server)
                back.join()

    def copy(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(self.ABSOLUTE.sub(rb"\1 ", data))
        except OSError:
            pass
        # Also behind a reset, or the server waits for bytes, and the other copy for the server.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


LAB = "registry.lab.example.com"


@contextlib.contextmanager
def lab(w, realm, tls=True):
    """A registry of that name that wants tokens of the host realm, and the environment that leads there."""
    with tempfile.TemporaryDirectory() as directory, Door() as door:
        certs = Certs(directory, names=(LAB, realm)) if tls else None
        context = certs.context() if tls else None
        with Site(w.dlrun, tls=context, name=LAB) as site:
            site.tokens = site.server(TokenServer, users={USER: PASSWORD}, tls=context, name=realm)
            site.registry.auth = Bearer(site.tokens)
            site.log_in("token")
            site.env = {"HTTPS_PROXY": door.url, "http_proxy": door.url, "NO_PROXY": ""} | ({"SSL_CERT_FILE": str(certs.ca)} if tls else {})
            yield site


def test_logins_go_to_their_site(w):
    for realm in (LAB, "auth.lab.example.com", "example.com", "sso.example.com"):
        with lab(w, realm) as site:
            site.right("--image", "scratch", env=site.env)
            assert site.tokens.grants[0].user == USER, realm


def test_logins_go_to_no_other_site(w):
    """What is asked of a stranger is the login, and the line that is shown allows it, for the user alone."""
    for realm in ("auth.example.net", "registry.lab.example.com.evil.org", "localhost", "evilexample.com", "example.co"):
        with lab(w, realm) as site:
            for _ in range(2):
                done = site.push("--image", "scratch", env=site.env)
                assert outcome(done) == "registry.realm" and done.rc == 4 and "hint: registry_realms" in done.err, (realm, done)
            assert not site.tokens.requests, site.tokens.lines()
            hint = re.search(r"hint: (registry_realms: .*)$", done.err, re.M)[1]
            own = site.home / ".config/dlrun/config.yaml"
            own.parent.mkdir(parents=True, exist_ok=True)
            (site.tree / "dlrun.yaml").write_text(hint + "\n")
            assert outcome(site.push("--image", "scratch", env=site.env)).startswith("config"), realm
            assert not site.tokens.requests, site.tokens.lines()
            (site.tree / "dlrun.yaml").unlink()
            own.write_text(hint + "\n")
            site.right("--image", "scratch", env=site.env)
            assert site.tokens.grants[0].user == USER, realm


def test_without_a_login_anybody_is_asked(w):
    with lab(w, "auth.example.net") as site:
        site.tokens.anonymous = {"pull", "push"}
        (site.home / ".docker/config.json").unlink()
        site.right("--image", "scratch", env=site.env)
        assert site.tokens.grants[0].user is None


def test_a_project_does_not_take_the_tls_off(w):
    """`insecure: true` of a project counts once it is confirmed; until then nothing goes without TLS but the question whether."""
    with lab(w, LAB, tls=False) as site:
        site.registry.auth = Basic({USER: PASSWORD})
        (site.tree / "dlrun.yaml").write_text(f"registry: {{push: {site.via}/me/code, insecure: true}}\n")
        env = {"HOME": str(site.home), "PATH": os.environ["PATH"], "DLRUN_PUSH_TIMEOUT": "20s", **site.env}

        def run(*words):
            done = subprocess.run([site.dlrun, *words], cwd=site.tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            return Result(done.returncode, done.stdout, done.stderr)
        for words in (["doctor"], ["push", "--image", "scratch"], ["push", "--image", f"{site.via}/base/py:3"], ["gc", "--registry", "--dry-run"],
                      ["push", "--to", f"{site.via}/me/code"], ["submit", "--", "true"], ["config"], ["targets"]):
            run(*words)
            untold(site.registry)
            assert not any(r.authorization for r in site.registry.requests), (words, site.registry.lines())
        trusted = run("config", "trust", "--yes")
        assert trusted.rc == 0, trusted
        done = run("doctor")
        assert any(r.authorization for r in site.registry.requests), (done, site.registry.lines())


def test_token_server_redirects(w):
    """Where a token is asked for, the login goes, and nowhere else."""
    for status in (301, 302, 307, 308):
        with Site(w.dlrun, login="token") as site:
            site.tokens.rule("", lambda request: Answer(status, [("Location", site.evil.url + request.target)]))
            done = site.push("--image", site.base, timeout_s=4)
            assert outcome(done) != "ok"
            untold(site.evil)
            assert not site.evil.requests, site.evil.lines()
            site.tokens.drop_rules()
            site.right("--image", site.base)


def test_copies_keep_the_logins_apart(w):
    """The source of a copied base gets none of the destination's login, nor the other way round."""
    with Site(w.dlrun, login="basic", source=True) as site:
        site.right("--image", site.base, "--copy-base")
        untold(site.source)


def test_nothing_secret_is_said(w):
    for login in ("basic", "token", "oauth"):
        with Site(w.dlrun, login=login) as site:
            site.registry.rule(r"^PUT \S+/blobs/", lambda request: Answer(400, JSON, json.dumps(
                {"errors": [{"code": "X", "message": "you sent " + (request.authorization or "nothing")}]})))
            done = site.push("--image", site.base, "--trace", "-v", timeout_s=4)
            assert done.rc, done
            said = done.out + done.err
            assert PASSWORD not in said and SECRETS[2] not in said, done


if __name__ == "__main__":
    main()
