#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun push` to real registries: what they see of it, what they hold afterwards, and what other tools say."""

import base64
import json
import os
import random
import resource
import shlex
import shutil
import socket
import subprocess

from canary import forms, nowhere
from gotools import go_tool
from harness import *  # noqa: F403
from image import awkward_tree, base_layout, holds
from registries import (PASSWORD, USER, base, containerd, free_port, in_memory, plain, small_disk, version3,
                        wire, with_client_certificates, with_password, with_tokens)

from faultproxy import FaultProxy

LAYERS = 30
# Sentences about what cannot work are said before anybody thinks that something hangs.
SOON_S = 10


# --- what the tests do again and again -------------------------------------------------------------------------

def push(w, registry, *args, repo="me/code", **options):
    """A push that works: the image, read back by skopeo; `said` is what the command said."""
    result = w.ok("push", "--to", f"{registry.host}/{repo}", *args, **options)
    return pushed(w, registry, result, repo)


def pushed(w, registry, result, repo="me/code"):
    name = re.escape(f"{registry.host}/{repo.split(':')[0]}")
    match = re.fullmatch(rf"{name}@(sha256:[0-9a-f]{{64}})\n", result.out)
    assert match, f"push printed {result.out!r}"
    image = SimpleImage(w, registry, repo.split(":")[0], match.group(1))
    image.said = result
    return image


class SimpleImage:
    """A pushed image by name; `fetch` reads it."""

    def __init__(self, w, registry, repo, digest):
        self.w, self.registry, self.repo, self.digest = w, registry, repo, digest
        self.reference = f"{registry.host}/{repo}@{digest}"

    def fetch(self, workdir="dlrun/src"):
        there = self.w.dir / f"fetched-{self.digest[7:19]}"
        if not there.exists():
            skopeo(self.w, self.registry, "copy", "-q", "--preserve-digests", source(self.registry, self.reference), f"oci:{there}:v1")
        return Image(there, self.digest, workdir)

    def is_tree(self):
        image = self.fetch()
        same_tree(image, self.w.tree, all_files(self.w.tree))
        return image

    def valid(self):
        done = self.w.command([go_tool("crane"), "validate", "--remote", self.reference])
        assert done.rc == 0 and "PASS" in done.out + done.err, done


def source(registry, reference):
    return f"docker://{reference}"


def skopeo(w, registry, verb, *args):
    verify = str(bool(registry.certs)).lower()
    option = f"--src-tls-verify={verify}" if verb == "copy" else f"--tls-verify={verify}"
    done = w.command([needs("skopeo"), verb, "--authfile", registry.authfile(w), option, *args])
    assert done.rc == 0, f"skopeo {verb}: {done!r}"
    return done


def kinds(requests):
    counts = {}
    for request in requests:
        counts[request.kind] = counts.get(request.kind, 0) + 1
    return counts


def put_base(w, registry, layers=LAYERS, name="base/b", **more):
    """A base image in the registry; its reference, and its layers' digests."""
    there = base(w, layers, **more)
    reference = registry.put_layout(w, there, name)
    manifest = json.loads(registry.manifest(name, "v1")[2])
    return reference, there, [layer["digest"] for layer in manifest["layers"]]


def source_tree(w, files, total):
    """Text that compresses, as code does; nothing in it occurs twice."""
    each = total // files // 2
    w.repo({f"pkg{i % 40}/m{i}.py": os.urandom(each).hex() for i in range(files)})


def age(w, seconds=100000):
    """What is remembered of registries is that much older."""
    files = [p for p in (w.cache / "registry").rglob("*") if p.is_file()]
    changed = 0
    for path in files:
        data = path.read_bytes()
        if b'"seen"' in data:
            older, n = re.subn(rb'("seen": *)(\d+)', lambda m: m[1] + b"%d" % (int(m[2]) - seconds * 1000), data)
            path.write_bytes(older)
            changed += n
    assert changed, f"nothing is remembered: {files}"


def in_background(w, *args, **more):
    env = {k: v for k, v in {**w.env, **more.pop("env", {})}.items() if v is not None}
    return subprocess.Popen([w.dlrun, *map(str, args)], cwd=w.tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


def ended(process):
    out, err = process.communicate(timeout=DEADLINE_S)
    return Result(process.returncode, out, err)


def stated(result, id, rc, says=()):
    """A failure as the manual promises it."""
    assert result.rc == rc, f"exit {rc} was expected: {result!r}"
    check_error_form(result.err, id)
    at = result.err.index("error: ")
    lines = result.err[at:].splitlines()
    assert len(lines) <= 7, f"too many lines: {result!r}"
    assert not result.out, f"something was printed: {result!r}"
    for text in [says] if isinstance(says, str) else says:
        assert text in result.err, f"{text!r} is not said: {result!r}"


def fails_soon(w, *args, id, rc, says=(), within_s=SOON_S, **options):
    begin = running_time()
    result = w.run("push", *args, **options)
    took = running_time() - begin
    stated(result, id, rc, says)
    assert took < within_s, f"took {took:.1f} s: {result!r}"
    return result


# --- how many requests, how many bytes -------------------------------------------------------------------------

def test_requests_of_a_first_push(w):
    w.repo()
    with plain(w) as registry:
        reference, _, _ = put_base(w, registry)
        image = push(w, registry, "--image", reference)
        seen = registry.requests()
        assert len(seen) <= LAYERS + 7, kinds(seen)
        assert kinds(seen)["mount"] == LAYERS, kinds(seen)
        image.is_tree()


def test_requests_of_a_first_push_with_tokens(w):
    w.repo()
    with with_tokens(w, life_s=300) as registry:
        reference, _, _ = put_base(w, registry)
        registry.login(w)
        registry.tokens.asked.clear()
        image = push(w, registry, "--image", reference)
        seen, tokens = registry.requests(), registry.tokens.asked
        assert len(seen) + len(tokens) <= LAYERS + 9, (kinds(seen), tokens)
        image.is_tree()


def test_requests_of_an_edit_and_of_nothing(w):
    w.repo({f"f{i}": f"{i}" * 500 for i in range(30)})
    with plain(w) as registry:
        reference, _, _ = put_base(w, registry)
        push(w, registry, "--image", reference)
        for i in range(3):
            w.write("f7", f"edit {i}")
            registry.requests()
            image = push(w, registry, "--image", reference)
            seen = registry.requests()
            assert len(seen) <= 6, seen
            image.is_tree()
            registry.requests()
            again = push(w, registry, "--image", reference)
            seen = kinds(registry.requests())
            own = len(image.fetch().layers) - LAYERS + 1
            assert seen == {"HEAD manifests": 1, "GET blobs": own}, seen
            assert again.digest == image.digest


def test_tree_that_was_only_touched(w):
    w.repo()
    with plain(w) as registry:
        first = push(w, registry)
        os.utime(w.tree / "a.py", (1, 1))
        registry.requests()
        assert push(w, registry).digest == first.digest
        # Uploads are opened when a file looks edited, before it is read.
        requests = []

        def all_are_closed():
            requests.extend(registry.requests())
            seen = kinds(requests)
            return seen.get("POST uploads") == seen.get("DELETE uploads")

        wait_for(all_are_closed, "uploads that were opened are closed")
        seen = kinds(requests)
        assert set(seen) <= {"POST uploads", "DELETE uploads", "HEAD manifests", "GET blobs"} and seen.get("POST uploads") == seen.get("DELETE uploads"), seen


def test_base_bytes_stay_where_they_are(w):
    w.repo()
    with plain(w) as registry:
        with wire(registry) as relay:
            there, _, _, _ = base_layout(w, LAYERS, members=lambda i: {f"base/{i}": os.urandom(300000)})
            reference = registry.put_layout(w, there, "base/b")
            before = relay.counts()
            image = push(w, registry, "--image", reference)
            after = relay.counts()
            passed = after["up"] + after["down"] - before["up"] - before["down"]
            assert passed < 100000, f"{passed} bytes passed, of {LAYERS * 300000} in the base"
            digests = {layer["digest"] for layer in image.fetch().layers[:LAYERS]}
        seen = [r for r in registry.requests() if r.method == "GET" and any(d in r.path for d in digests)]
        assert len(seen) == LAYERS, "that was skopeo alone"


def test_bytes_of_one_edited_line(w):
    source_tree(w, 2000, 20 << 20)
    with plain(w) as registry:
        reference, _, _ = put_base(w, registry)
        with wire(registry) as relay:
            reference = reference.replace(str(registry.port), str(relay.port))
            push(w, registry, "--image", reference)
            with open(w.tree / "pkg7/m7.py", "a") as file:
                file.write("one line more\n")
            before = relay.up
            image = push(w, registry, "--image", reference)
            sent = relay.up - before
            fetched = image.is_tree()
            size = fetched.manifest["config"]["size"] + len(fetched.blob(image.digest))
            assert sent <= (16 << 10) + size, f"{sent} bytes, config and manifest are {size}"


def test_digests_are_those_of_a_layout(w):
    """But that the name of a base in a registry is said, too."""
    awkward_tree(w)
    with plain(w) as registry:
        reference, there, _ = put_base(w, registry)
        for edit in ("none", "some"):
            w.write("pkg0/m0.py", edit)
            here, remote = w.push("--image", f"oci:{there}:v1"), push(w, registry, "--image", reference).fetch()
            assert remote.manifest["annotations"].pop("org.opencontainers.image.base.name") == reference
            assert here.manifest == remote.manifest, (here.manifest["annotations"], remote.manifest["annotations"])
            assert push(w, registry, repo="me/alone").digest == w.push(to=w.dir / "alone").digest
        shutil.rmtree(w.cache)
        assert push(w, registry, "--full", repo="me/alone").digest == w.push("--full", to=w.dir / "alone").digest


# --- the word of others -----------------------------------------------------------------------------------------

def agreed(w, registry, image):
    """crane, skopeo and umoci read it, and the tree is that on disk."""
    needs("umoci")
    image.valid()
    said = json.loads(skopeo(w, registry, "inspect", source(registry, image.reference)).out)
    assert said["Digest"] == image.digest
    image.is_tree()
    bundle = w.dir / f"bundle-{image.digest[7:19]}"
    done = w.command(["umoci", "unpack", "--rootless", "--image", f"{w.dir}/fetched-{image.digest[7:19]}:v1", bundle])
    assert done.rc == 0, done
    holds(bundle / "rootfs/dlrun/src", w.tree)


def accepted(w, make, **more):
    """A first push over a base, an edit and nothing new to one kind of registry."""
    awkward_tree(w)
    with make(w, **more) as registry:
        reference, _, _ = put_base(w, registry, 5)
        registry.login(w)
        agreed(w, registry, push(w, registry, "--image", reference))
        w.write("pkg0/m0.py", "edited")
        (w.tree / "pkg1/m1.py").unlink()
        edited = push(w, registry, "--image", reference)
        agreed(w, registry, edited)
        assert push(w, registry, "--image", reference).digest == edited.digest
        tagged = push(w, registry, "--image", reference, repo="me/code:v7")
        status, headers, _ = registry.manifest("me/code", "v7")
        assert status == 200 and headers["Docker-Content-Digest"] == tagged.digest == edited.digest
        with containerd(w) as runtime:
            runtime.pull(registry, edited.reference)
            assert runtime.run(edited.reference, "/bin/cat", "pkg0/m0.py") == "edited"


@left_to_all("test_docker_registry_with_tokens")
def test_docker_registry(w):
    accepted(w, plain)


def test_docker_registry_with_tls_and_password(w):
    accepted(w, with_password)


def test_docker_registry_with_tokens(w):
    accepted(w, with_tokens)


def test_distribution_3(w):
    accepted(w, version3)


def test_crane_registry(w):
    accepted(w, in_memory)


def test_registry_and_base_from_the_configuration(w):
    with plain(w) as registry:
        reference, _, layers = put_base(w, registry, 3)
        w.repo({"a.py": "1", "dlrun.yaml": f"registry: {registry.host}/me/code\nimage: {reference}\n"})
        image = pushed(w, registry, w.ok("push")).is_tree()
        assert [layer["digest"] for layer in image.layers[:3]] == layers


def test_authority_from_the_configuration(w):
    with with_password(w) as registry:
        registry.login(w)
        w.env["SSL_CERT_FILE"] = None
        w.repo({"a.py": "1", "dlrun.yaml": f"registry: {{push: {registry.host}/me/code, ca: {registry.certs.ca}}}\n"})
        w.ok("config", "trust", "--yes")
        result = w.ok("push", "--to", f"{registry.host}/me/code")
        w.env["SSL_CERT_FILE"] = str(registry.certs.ca)
        pushed(w, registry, result).is_tree()


# In a mount namespace of its own, where /etc is a copy.
WITH_ETC = 'cp -a /etc/. "$1" 2>/dev/null; mkdir -p "$1/docker" && cp -r "$2" "$1/docker/certs.d" && mount --bind "$1" /etc && shift 2 && exec "$@"'


def test_client_certificate(w):
    with with_client_certificates(w) as registry:
        registry.login(w)
        w.repo({"a.py": "1"})
        to = f"{registry.host}/me/code"
        certificate, key = registry.certs.pair("client")
        mine = w.home / ".config/dlrun/config.yaml"
        mine.parent.mkdir(parents=True)

        def fails(says, key=key, **more):
            mine.write_text(json.dumps({"registry": {"push": to, "cert": str(certificate), "key": str(key)}}))
            w.refused("push", id="http.cert", rc=2, says=says, **more)

        def holds_manifest(result):
            return registry.manifest("me/code", result.out.strip().partition("@")[2])[0] == 200

        mine.write_text(f"registry: {to}\n")
        w.refused("push", id="http.cert", rc=2, says=["asks for a client certificate", "cert: "])
        fails(["key of the client certificate", "no-such-file"], w.dir / "no-such-file")
        fails("is not valid", registry.certs.dir / "ca.key")
        mine.write_text(json.dumps({"registry": {"push": to, "cert": str(certificate), "key": str(key)}}))
        assert holds_manifest(w.ok("push"))
        assert f"client certificate {certificate} (cert:)" in w.run("doctor").out
        # As docker has it. The host of a directory is what is written before the repository.
        mine.write_text(f"registry: {to}\n")
        there = w.dir / "certs.d" / registry.host
        there.mkdir(parents=True)
        (there / "ca.crt").write_bytes(registry.certs.ca.read_bytes())
        (there / "client.cert").write_bytes(certificate.read_bytes())
        w.env["SSL_CERT_FILE"] = None
        etc = w.dir / "etc"
        etc.mkdir()
        launcher = w.write("launcher", "#!/bin/sh\nexec " + shlex.join(map(str, (
            needs("unshare"), "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", WITH_ETC, "sh", etc,
            w.dir / "certs.d", w.dlrun))) + ' "$@"\n', base=w.dir)
        launcher.chmod(0o755)
        w.dlrun = str(launcher)
        w.refused("push", id="http.cert", rc=2, says=["key of the client certificate", "client.key"])
        shutil.rmtree(etc), etc.mkdir()
        (there / "client.key").write_bytes(key.read_bytes())
        w.write("a.py", "2")
        assert holds_manifest(w.ok("push"))


# --- things go wrong on the way ---------------------------------------------------------------------------------

def noise(w, size):
    w.repo()
    (w.tree / "noise").write_bytes(os.urandom(size))
    w.write("dlrun.yaml", "limits: {file: 300Mi}\n")


def expires(w, size=12 << 20, rate=3 << 20, **tokens):
    noise(w, size)
    with with_tokens(w, life_s=2, **tokens) as registry, wire(registry) as relay:
        registry.login(w)
        relay.set(rate=(rate, None))
        begin = time.monotonic()
        image = push(w, registry)
        took_s = time.monotonic() - begin
        assert took_s > 3, "the token had no time to end"
        relay.set(rate=None)
        # One for each life of two seconds, and a few for those who ask at the same time.
        assert len(registry.tokens.asked) <= 3 + took_s / 2, (took_s, registry.tokens.asked)
        image.is_tree()
        image.valid()


def test_token_ends_in_mid_upload(w):
    expires(w)


def test_token_that_ends_earlier_than_said(w):
    expires(w, says_s=300)


def test_token_ends_between_pieces(w):
    expires(w, 80 << 20, 16 << 20)


def cut_in_pieces(w, make, most):
    """A blob that goes in pieces survives cuts; at most that many times its bytes are sent."""
    size = 80 << 20
    noise(w, size)
    with make(w) as registry, wire(registry, rate=(80 << 20, None)) as relay:
        process = in_background(w, "push", "--to", f"{registry.host}/me/code")
        for part, how in ((40, "rst"), (60, "fin")):
            wait_for(lambda: relay.up > part << 20, "the next part of the upload")
            relay.cut_all(how)
        result = ended(process)
        assert result.rc == 0, result
        assert relay.up < most * size, f"{relay.up >> 20} MiB"
        image = pushed(w, registry, result)
        image.valid()
        image.is_tree()


def test_cut_and_resumed(w):
    cut_in_pieces(w, version3, 1.5)


def test_cut_and_begun_again(w):
    """docker-registry 2.8 has lost an upload whose connection was cut."""
    cut_in_pieces(w, plain, 3)


def test_killed_in_mid_upload(w):
    """Nothing is broken by it, wherever it is; who is asked to stop says so."""
    noise(w, 3 << 20)
    with plain(w) as registry, wire(registry, rate=(8 << 20, None)) as relay:
        for i, signum in enumerate([signal.SIGKILL, signal.SIGINT, signal.SIGTERM] * 3):
            (w.tree / "noise").write_bytes(os.urandom(3 << 20))
            start = relay.up
            process = in_background(w, "push", "--to", f"{registry.host}/me/code")
            wait_for(lambda: relay.up > start + i * 300000, "a part of the upload")
            process.send_signal(signum)
            result = ended(process)
            # What the relay still held of the last one may have been enough for the wait to end before this one began.
            if signum != signal.SIGKILL and (result.rc != -signum or result.err):
                assert result.rc == 130 and "error: interrupted" in result.err, result
            if i % 4 == 3:
                push(w, registry).is_tree()
        relay.set(rate=None)
        image = push(w, registry)
        image.valid()
        image.is_tree()


def test_two_laptops_push_the_same_blobs(w):
    noise(w, 6 << 20)
    other = w.dir / "other"
    shutil.copytree(w.home, other)
    with plain(w) as registry, wire(registry, rate=(4 << 20, None)):
        both = [in_background(w, "push", "--to", f"{registry.host}/me/code", env={"HOME": str(home)}) for home in (w.home, other)]
        images = [pushed(w, registry, ended(process)) for process in both]
        assert images[0].digest == images[1].digest
        images[0].is_tree()
        images[0].valid()


def restarts(w, secret):
    noise(w, 12 << 20)
    with plain(w, secret=secret) as registry, wire(registry, rate=(3 << 20, None)) as relay:
        process = in_background(w, "push", "--to", f"{registry.host}/me/code")
        wait_for(lambda: relay.up > 4 << 20, "the middle of the upload")
        registry.restart()
        relay.set(rate=None)
        result = ended(process)
        assert result.rc == 0, result
        image = pushed(w, registry, result)
        image.is_tree()
        image.valid()


def test_registry_restarted_in_mid_upload(w):
    restarts(w, "the same secret")


def test_registry_that_forgets_its_uploads(w):
    restarts(w, None)


def test_registry_gone_in_mid_upload(w):
    """A clear error in the time that was given, and the next push is right."""
    noise(w, 12 << 20)
    with plain(w) as registry, wire(registry, rate=(3 << 20, None)) as relay:
        process = in_background(w, "push", "--to", f"{registry.host}/me/code", env={"DLRUN_PUSH_TIMEOUT": "20s"})
        wait_for(lambda: relay.up > 4 << 20, "the middle of the upload")
        registry.stop()
        result = ended(process)
        assert result.rc == 3, result
        relay.set(rate=None)
        registry.start()
        push(w, registry).is_tree()


def collected(w, settle, edits, **more):
    """What was pushed is deleted and collected; `settle` may pass time for dlrun; each later push is whole again."""
    w.repo({f"f{i}": os.urandom(1000).hex() for i in range(50)})
    with plain(w, **more) as registry:
        reference, _, _ = put_base(w, registry, 3)
        for edit in edits:
            image = push(w, registry, "--image", reference)
            assert registry.http("DELETE", f"/v2/me/code/manifests/{image.digest}", name="me/code")[0] == 202
            registry.garbage_collect()
            settle()
            if edit:
                w.write("f0", edit)
            image = push(w, registry, "--image", reference)
            shutil.rmtree(w.dir / f"fetched-{image.digest[7:19]}", ignore_errors=True)
            image.valid()
            image.is_tree()


def test_collected_between_pushes(w):
    collected(w, lambda: age(w), ("first", "second", None))


def test_collected_a_moment_ago(w):
    collected(w, lambda: None, ("first", "second", None))


def test_collected_behind_a_cache(w):
    """docker-registry's cache of descriptors still knows what is gone: it says 200 to HEAD, and sends nothing."""
    collected(w, lambda: age(w), ("first", "second"), cache=True)


def test_image_that_the_registry_only_remembers(w):
    """docker-registry does not store a manifest of the same digest again, though its answer is 201."""
    w.repo()
    with plain(w, cache=True) as registry:
        image = push(w, registry)
        assert registry.http("DELETE", f"/v2/me/code/manifests/{image.digest}", name="me/code")[0] == 202
        registry.garbage_collect()
        stated(w.run("push", "--to", f"{registry.host}/me/code"), "registry.answer", 1, "does not have it")
        registry.restart()
        push(w, registry).is_tree()


def test_blob_lost_by_the_registry(w):
    w.repo({f"f{i}": os.urandom(1000).hex() for i in range(50)})
    with plain(w) as registry:
        lost = push(w, registry).fetch().layers[0]["digest"]
        registry.blob_path(lost).unlink()
        age(w)
        w.write("f0", "edited")
        image = push(w, registry)
        image.valid()
        image.is_tree()


def loses_blobs(w, which, **more):
    """A blob is lost a moment after a push; the next one, of whatever kind, prints what can be pulled."""
    w.repo({f"f{i}": os.urandom(1000).hex() for i in range(20)})
    noise(w, 9 << 20)
    with plain(w, **more) as registry:
        reference, _, _ = put_base(w, registry, 3)
        image = push(w, registry, "--image", reference)
        for step, (options, edit) in enumerate((((), False), (("--full",), False), ((), True), ((), False))):
            manifest = json.loads(registry.manifest("me/code", image.digest)[2])
            registry.blob_path(which(manifest)["digest"]).unlink()
            if edit:
                w.write("f0", f"edit {step}")
            image = push(w, registry, "--image", reference, *options)
            shutil.rmtree(w.dir / f"fetched-{image.digest[7:19]}", ignore_errors=True)
            image.valid()
            image.is_tree()


def own_layer(role):
    return lambda manifest: next(layer for layer in manifest["layers"]
                                 if layer.get("annotations", {}).get("dev.dlrun.role") == role)


def test_full_layer_lost_a_moment_ago(w):
    loses_blobs(w, own_layer("full"))


def test_big_files_lost_a_moment_ago(w):
    loses_blobs(w, own_layer("big"))


def test_configuration_lost_a_moment_ago(w):
    loses_blobs(w, lambda manifest: manifest["config"])


def test_full_layer_lost_behind_a_cache(w):
    loses_blobs(w, own_layer("full"), cache=True)


def test_disk_of_the_registry_is_full(w):
    noise(w, 12 << 20)
    with small_disk(w.dir / "disk", 6 << 20), plain(w, storage=w.dir / "disk") as registry:
        fails_soon(w, "--to", f"{registry.host}/me/code", id="registry.full", rc=1, says=registry.host)
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", w.dir / "disk"], check=True)
        image = push(w, registry)
        image.valid()
        image.is_tree()


# --- bases ------------------------------------------------------------------------------------------------------

def test_base_of_another_registry(w):
    """An error with the ways out; with --copy-base it goes from registry to registry and on no disk."""
    w.repo()
    limit = 1 << 20
    with plain(w, name="theirs") as theirs, plain(w, name="ours") as ours:
        there, _, _, _ = base_layout(w, 12, members=lambda i: {f"base/{i}": os.urandom(3 * limit)})
        reference = theirs.put_layout(w, there, "base/b")
        to = f"{ours.host}/me/code"
        said = w.refused("push", "--image", reference, "--to", to, id="registry.mount", rc=2, says=["--copy-base", ours.host])
        assert len(said.err.splitlines()) <= 7, said
        image = push(w, ours, "--image", reference, "--copy-base",
                     preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        image.valid()
        fetched = image.is_tree()
        assert fetched.roles() == ["base"] * 12 + ["full"]
        w.write("a.py", "2")
        theirs.requests(), ours.requests()
        push(w, ours, "--image", reference, "--copy-base").is_tree()
        assert not [r for r in theirs.requests() if "/blobs/" in r.path], "the base was read again"


def test_base_tag_that_moves(w):
    w.repo()
    with plain(w) as registry:
        images = []
        for content in (b"old", b"new"):
            there, _, _, _ = base_layout(w, members={"base": content}, name="moving")
            reference = registry.put_layout(w, there, "base/b")
            if images:
                age(w, 61)
            images.append(push(w, registry, "--image", reference).is_tree())
        assert images[0].layers[0] != images[1].layers[0]
        assert images[0].layers[1] == images[1].layers[1]


def put_index(w, platforms):
    """A layout whose v1 is an index of one image under these platforms."""
    there, _, top, put = base_layout(w, 2, name="multi")
    entry = {k: top[k] for k in ("mediaType", "digest", "size")}
    kind = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": [
        {**entry, "platform": dict(zip(("os", "architecture"), platform.split("/")))} for platform in platforms]}
    listed = {"mediaType": kind, **put(json.dumps(index).encode()), "annotations": {"org.opencontainers.image.ref.name": "v1"}}
    (there / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    return there


def test_base_that_is_an_index(w):
    w.repo()
    with plain(w) as registry:
        reference = registry.put_layout(w, put_index(w, ["linux/amd64", "linux/arm64"]), "base/b")
        image = push(w, registry, "--image", reference)
        image.valid()
        image.is_tree()
        w.write("dlrun.yaml", "platform: linux/s390x\n")
        fails_soon(w, "--image", reference, "--to", f"{registry.host}/me/code", id="image.platform", rc=5,
                   says=["linux/s390x", "linux/amd64"])


def test_base_of_docker(w):
    w.repo()
    with plain(w) as registry:
        there, _, _, _ = base_layout(w, 4, docker=True)
        reference = f"{registry.host}/base/b:v1"
        registry.tool(w, go_tool("crane"), "push", there, reference)
        image = push(w, registry, "--image", reference)
        image.valid()
        manifest = json.loads(registry.manifest("me/code", image.digest)[2])
        assert manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
        image.is_tree()


def test_base_by_digest(w):
    w.repo()
    with plain(w) as registry:
        reference, _, _ = put_base(w, registry, 3)
        digest = registry.manifest("base/b", "v1")[1]["Docker-Content-Digest"]
        first = push(w, registry, "--image", reference)
        second = push(w, registry, "--image", reference.removesuffix(":v1") + "@" + digest, repo="me/other")
        assert [l["digest"] for l in first.is_tree().layers] == [l["digest"] for l in second.is_tree().layers]


def test_base_that_is_not_there(w):
    w.repo()
    with plain(w) as registry:
        put_base(w, registry, 1)
        for name in ("base/b:v2", "base/nowhere:v1", "base/b@sha256:" + "0" * 64):
            fails_soon(w, "--image", f"{registry.host}/{name}", "--to", f"{registry.host}/me/code", id="image.base", rc=5,
                       says=name.split("@")[0])


# --- stated errors ----------------------------------------------------------------------------------------------

def test_wrong_password(w):
    w.repo()
    with with_password(w) as registry:
        to = f"{registry.host}/me/code"
        registry.login(w, password="cnry-wrong")
        said = fails_soon(w, "--to", to, id="registry.auth", rc=4, says=registry.host)
        assert "cnry" not in said.err
        (w.home / ".docker/config.json").unlink()
        fails_soon(w, "--to", to, id="registry.auth", rc=4, says=["login", registry.host])
        registry.login(w)
        push(w, registry).is_tree()


def test_wrong_password_at_the_token_server(w):
    w.repo()
    with with_tokens(w) as registry:
        registry.login(w, password="cnry-wrong")
        said = fails_soon(w, "--to", f"{registry.host}/me/code", id="registry.auth", rc=4, says=registry.host)
        assert "cnry" not in said.err and registry.tokens.refused <= 2


def test_unknown_token(w):
    w.repo()
    with with_tokens(w) as registry:
        registry.login(w)
        path = w.home / ".docker/config.json"
        for entry in ({"registrytoken": "cnry-of-yesterday"}, {"auth": "", "identitytoken": "cnry-of-yesterday"}):
            path.write_text(json.dumps({"auths": {registry.host: entry}}))
            said = fails_soon(w, "--to", f"{registry.host}/me/code", id="registry.auth", rc=4, says=registry.host)
            assert "cnry" not in said.err


def test_no_permission(w):
    w.repo()
    with with_tokens(w, allow=lambda name, action: action == "pull" or name.startswith("base/")) as registry:
        registry.login(w)
        fails_soon(w, "--to", f"{registry.host}/me/code", id="registry.denied", rc=4, says=["me/code", "push"])


def test_base_that_may_not_be_read(w):
    w.repo()
    with with_tokens(w, allow=lambda name, action: name.startswith(("me/", "base/")) and name != "base/secret") as registry:
        put_base(w, registry, 1)
        registry.login(w)
        fails_soon(w, "--image", f"{registry.host}/base/secret:v1", "--to", f"{registry.host}/me/code", id="registry.denied", rc=4,
                   says="base/secret")


def test_certificate_of_another_name(w):
    w.repo()
    with with_password(w, kind="wrong-name") as registry:
        registry.login(w)
        fails_soon(w, "--to", f"{registry.host}/me/code", id="http.tls", rc=3, says=[registry.host, "other hosts"])


def test_certificate_that_has_ended(w):
    w.repo()
    with with_password(w, kind="expired") as registry:
        registry.login(w)
        fails_soon(w, "--to", f"{registry.host}/me/code", id="http.tls", rc=3, says=[registry.host, "expired"])


def test_certificate_of_an_unknown_authority(w):
    w.repo()
    with with_password(w) as registry:
        registry.login(w)
        w.env["SSL_CERT_FILE"] = None
        fails_soon(w, "--to", f"{registry.host}/me/code", id="http.tls", rc=3, says=[registry.host, "ca"])
        w.write("dlrun.yaml", f"registry: {{push: {registry.host}/me/code, insecure: true}}\n")
        w.ok("config", "trust", "--yes")
        assert "warning" in w.ok("push", "--to", f"{registry.host}/me/code").err


def test_registry_that_is_down(w):
    w.repo()
    host = f"127.0.0.1:{free_port()}"
    fails_soon(w, "--to", f"{host}/me/code", id="registry.unreachable", rc=3, says=host)


def test_registry_without_a_name(w):
    w.repo()
    fails_soon(w, "--to", "registry.invalid/me/code", id="http.resolve", rc=3, says="registry.invalid")


def test_server_that_is_no_registry(w):
    """An SSH server's first words, to somebody who speaks HTTP."""
    w.repo()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve():
            listener.settimeout(0.2)
            while not stop.is_set():
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    continue
                peer.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            host = f"127.0.0.1:{listener.getsockname()[1]}"
            fails_soon(w, "--to", f"{host}/me/code", id="http.tls", rc=3, says=[host, "does not speak"])
        finally:
            stop.set()
            thread.join()


# --- secrets ----------------------------------------------------------------------------------------------------

def test_secrets_are_nowhere(w):
    """The password and the tokens: not in argv, not in what is said, not in what is kept."""
    needs("strace")
    w.repo()
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    with with_tokens(w) as registry:
        issued = []
        make = registry.tokens.token
        registry.tokens.token = lambda *args: issued.append(make(*args)) or issued[-1]
        reference, _, _ = put_base(w, registry, 2)
        registry.login(w)
        issued.clear()
        log = w.dir / "strace"
        said = w.command(["strace", "-f", "-s", "10000", "-o", log, "-e", "trace=execve,write,pwrite64,writev", w.dlrun, "push", "-v",
                          "--trace", "--image", reference, "--to", f"{registry.host}/me/code"],
                         env={"ASAN_OPTIONS": "detect_leaks=0"})
        assert said.rc == 0 and issued, said
        values = [PASSWORD, pair, *(token.split(".")[2] for token in issued)]
        for name, data in (("what was said", said.out_bytes + said.err_bytes), ("system calls", log.read_bytes())):
            found = [v[:12] for v in values for form in forms(v) if form in data]
            assert not found, f"{name}: {found}"
        log.unlink()
        nowhere(w, values, but={w.home / ".docker/config.json"})


def test_trace_says_what_the_server_saw(w):
    w.repo()
    with plain(w) as registry:
        reference, _, _ = put_base(w, registry, 4)
        said = push(w, registry, "--trace", "--image", reference).said.err
        lines = re.findall(r"^([A-Z]+) +(https?://\S+) (\d{3}) (\d+) ms up \d+ down \d+$", said, re.M)
        seen = registry.requests()
        assert sorted((m, int(s)) for m, _, s, _ in lines) == sorted((r.method, r.status) for r in seen), said
        assert not any("?" in url for _, url, _, _ in lines), said


def test_what_another_machine_has_sent(w):
    """It is looked for while it is sent, and does not travel again, where that takes a while."""
    w.repo()
    w.write("weights", random.Random(1).randbytes(12 << 20))
    with plain(w) as registry, FaultProxy(registry.host, rate=1 << 20) as line:
        first = push(w, registry)
        other = w.dir / "other"
        other.mkdir()
        env = {k: v for k, v in w.env.items() if not k.startswith("XDG_")} | {"HOME": str(other)}
        done = w.ok("push", "--to", f"{line.address}/me/code", env=env)
        assert done.out.rpartition("@")[2] == first.said.out.rpartition("@")[2] and line.up < 6 << 20, (done, line.up)
        assert " 1 new layer," in done.err, done.err


def test_dry_run_sends_nothing(w):
    w.repo()
    with plain(w) as registry:
        w.ok("push", "--dry-run", "--to", f"{registry.host}/me/code")
        assert not [r for r in registry.requests() if r.method not in ("GET", "HEAD")]


if __name__ == "__main__":
    main()
