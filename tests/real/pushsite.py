# SPDX-License-Identifier: Apache-2.0
"""A registry, a base image in it, a tree and a HOME for one push that goes wrong and the next, which must be right.

For the tests of `dlrun push` that need thousands of pushes: only fakes on loopback, no git, no root.
"""

import base64
import hashlib
import io
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from harness import Result, check_error_form, decompress, running_time

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from faultproxy import FaultProxy  # noqa: E402, F401
from registry import Basic, Bearer, Registry, compact, digest_of  # noqa: E402, F401
from scripted import Answer, ScriptedServer, that_hold  # noqa: E402, F401
from tokens import TokenServer  # noqa: E402, F401

USER, PASSWORD, REFRESH = "canary-user", "cnry:pass-6f1d", "cnry-refresh-88ab"
SECRETS = (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(), REFRESH)
MEMORY_MAX = 64 << 20
# What a push that has no reason to wait may take where many run at once.
LIMIT_S = 60


class Site:
    """One registry with base/py:3 (and the index base/multi:3), the listener `evil`, a tree and a HOME.

    login     None, "basic", "token" (password at a token server) or "oauth" (refresh token).
    source    True: the base lies in another registry, `source`.
    More arguments: Registry.
    """

    def __init__(self, dlrun, login=None, source=False, **registry):
        self.dlrun = dlrun
        self.dir = Path(tempfile.mkdtemp(prefix="dlrun-push-"))
        self.home, self.tree = self.dir / "home", self.dir / "tree"
        self.home.mkdir()
        self.tree.mkdir()
        self.edits = 0
        self.edit()
        (self.tree / "b.py").write_text("print('b')\n")
        self.servers = []
        self.tokens = self.server(TokenServer, users={USER: PASSWORD}, refresh={REFRESH: USER}) \
            if login in ("token", "oauth") else None
        auth = Bearer(self.tokens) if self.tokens else Basic({USER: PASSWORD}) if login == "basic" else None
        self.registry = self.server(Registry, auth=auth, **registry)
        self.source = self.server(Registry) if source else self.registry
        self.evil = self.server(ScriptedServer)
        self.layers = self.add_base()
        self.via = self.registry.address
        if login:
            self.log_in(login)

    def server(self, kind, **arguments):
        server = kind(**arguments)
        self.servers.append(server)
        return server

    def add_base(self):
        digest = self.source.add_image("base/py", "3", layers=2)
        self.source.add_index("base/multi", "3", {("linux", "amd64"): self.source.add_image("base/multi", None, layers=2)})
        self.base_digest = digest
        return [entry["digest"] for entry in self.source.check_image("base/py", "3")[0]["layers"]]

    def log_in(self, login, host=None):
        entry = {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
        if login == "oauth":
            entry = {"auth": base64.b64encode(f"{USER}:".encode()).decode(), "identitytoken": REFRESH}
        (self.home / ".docker").mkdir(exist_ok=True)
        (self.home / ".docker/config.json").write_text(json.dumps({"auths": {host or self.via: entry}}))

    def close(self):
        for server in reversed(self.servers):
            server.close()
            server.clear()
            server.drop_rules()
        for registry in (self.registry, self.source):
            registry.repositories.clear()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- doing things

    def edit(self):
        self.edits += 1
        path = self.tree / "a.py"
        path.write_text(f"print({self.edits})\n")
        # Later than any push has looked at it, whatever the clock's grain
        os.utime(path, (1_700_000_000 + self.edits, 1_700_000_000 + self.edits))

    @property
    def memory(self):
        return self.home / ".cache/dlrun/registry"

    def age(self, seconds=100000):
        """What is remembered is that much older."""
        changed = 0
        for path in self.memory.glob("*.json"):
            data, n = re.subn(rb'("seen": *)(\d+)', lambda m: m[1] + b"%d" % (int(m[2]) - seconds * 1000), path.read_bytes())
            path.write_bytes(data)
            changed += n
        assert changed, "nothing is remembered"

    def forget(self):
        shutil.rmtree(self.home / ".cache/dlrun")

    @property
    def base(self):
        return f"{self.source.address if self.source is not self.registry else self.via}/base/py:3"

    def start(self, *args, timeout_s=LIMIT_S, env=None, tag=""):
        environment = {"HOME": str(self.home), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8",
                       "TERM": "dumb", "TMPDIR": str(self.dir), "DLRUN_PUSH_TIMEOUT": f"{timeout_s}s", **(env or {})}
        environment |= {k: v for k, v in os.environ.items() if k in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS")}
        argv = [self.dlrun, "push", "--to", f"{self.via}/me/code{tag}", *map(str, args)]
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        process = subprocess.Popen(argv, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        process.files, process.began = (out, err), running_time()
        return process

    def push(self, *args, **options):
        return ended(self.start(*args, **options))

    def right(self, *args, **options):
        """A push that works, and the registry holds the image of the tree as it is."""
        done = self.push(*args, **options)
        assert done.rc == 0, f"a push with nothing in its way: {done!r}{self.seen()}"
        self.holds(done)
        return done

    def holds(self, done):
        """The registry has the image that this push has printed, and it is that of the tree."""
        match = re.fullmatch(r"(\S+)/me/code@(sha256:[0-9a-f]{64})\n", done.out)
        assert match and match[1] == self.via, f"push printed {done.out!r}"
        manifest, config = self.registry.check_image("me/code", match[2])
        assert config["os"] == "linux"
        blobs = self.registry.repo("me/code").blobs
        code = {}
        for entry in manifest["layers"]:
            if "dev.dlrun.role" in entry.get("annotations", {}):
                code.update(files_of(blobs[entry["digest"]]))
        for name in ("a.py", "b.py"):
            assert code.get(f"dlrun/src/{name}") == (self.tree / name).read_bytes(), f"{name} is another: {sorted(code)}"

    def seen(self):
        servers = [s for s in self.servers if s is not self.evil]
        return "".join(f"\n--- {s.address}\n" + "\n".join(s.lines()) for s in servers)


def ended(process, longest_s=120):
    fd = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    late = not poll.poll(longest_s * 1000)
    os.close(fd)
    if late:
        process.kill()
    seconds = running_time() - process.began
    process.wait()
    texts = []
    for file in process.files:
        file.seek(0)
        texts.append(file.read())
        file.close()
    assert not late, f"no end after {longest_s} s: {texts}"
    result = Result(process.returncode, *texts)
    result.seconds = seconds
    return result


def outcome(done):
    """"ok", or the id of the error, which is in the stated form."""
    if done.rc == 0:
        return "ok"
    match = re.search(r"^error: .*?\[([a-z_.]+)\]\s*$", done.err, re.M | re.S)
    assert match and 0 < done.rc < 64, f"not an error in the stated form: {done!r}"
    check_error_form(done.err, match[1])
    lines = done.err[match.start():].splitlines()
    assert len(lines) <= 7, f"{len(lines)} lines: {done!r}"
    assert not done.out, f"something was printed: {done!r}"
    return match[1]


def files_of(blob):
    with tarfile.open(fileobj=io.BytesIO(decompress(blob)), mode="r:") as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isreg()}


def is_sanitized(dlrun):
    return b"__asan_init" in Path(dlrun).read_bytes()


def large_layout(directory, size=(64 << 20) + 4096):
    """A layout with an image of one layer of more than 64 MiB of zeros: what is sent in pieces."""
    head = tarfile.TarInfo("zeros")
    head.size = size
    layer = directory / "layer"
    digest = hashlib.sha256()
    with open(layer, "wb") as file:
        file.write(head.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + (size + 511) // 512 * 512 + 1024)
    with open(layer, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    name = "sha256:" + digest.hexdigest()
    config = compact({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [name]}})
    manifest = compact({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(config), "size": len(config)},
                        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": name, "size": layer.stat().st_size}]})
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)
    layer.rename(blobs / name[7:])
    for data in (config, manifest):
        (blobs / digest_of(data)[7:]).write_bytes(data)
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (directory / "index.json").write_bytes(compact({"schemaVersion": 2, "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest_of(manifest), "size": len(manifest),
         "annotations": {"org.opencontainers.image.ref.name": "v1"}}]}))
    return directory

