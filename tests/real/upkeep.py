#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is asked of registries beside a push: `dlrun doctor`, `dlrun gc --registry`."""

import base64
import sqlite3

from harness import *  # noqa: F403
from image import base_layout
from registries import PASSWORD, USER, plain, with_password, with_tokens

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from registry import Bearer, Registry  # noqa: E402
from scripted import Answer  # noqa: E402
from tokens import TokenServer  # noqa: E402

CANARY = "cnry-upkeep-3f9a"
DAY_S = 24 * 3600
OWN_TAG = re.compile(r"dlrun-[0-9a-f]{16}")


def row(w, id, **options):
    result = w.run("__check", id, **options)
    assert CANARY not in result.out + result.err and PASSWORD not in result.out, result
    found = json.loads(result.out)
    assert (found["cause"] is None) == (found["status"] == "ok"), found
    return found


def expect(found, status, *words):
    assert found["status"] == status, found
    for word in words:
        assert word in json.dumps(found, ensure_ascii=False), (word, found)
    return found


def configure(w, registry, repo="me/code", **more):
    w.write("dlrun.yaml", json.dumps({"registry": {"push": f"{getattr(registry, 'host', None) or registry.address}/{repo}"}, **more}))


def login(w, registry):
    path = w.home / ".docker/config.json"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(json.dumps({"auths": {registry.address: {"auth": base64.b64encode(f"me:{CANARY}".encode()).decode()}}}))


# --- doctor: registry

def test_may_push(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        expect(row(w, "registry"), "ok", f"{registry.address}/me/code: http, anonymous, may push")
        assert not registry.sessions(), "an upload was left open"
        assert not registry.repo("me/code").blobs and not registry.violations


def test_several_registries(w):
    w.repo()
    with Registry() as one, Registry() as two:
        two.rule("POST", 500)
        configure(w, one, targets={"lab": {"kind": "local", "registry": f"{two.address}/a"},
                                   "same": {"kind": "local", "registry": f"{one.address}/me/code"}})
        found = expect(row(w, "registry"), "problem", one.address, two.address, "may push")
        assert found["found"].count(";") == 1, found


def test_who_am_i(w):
    w.repo()
    with with_password(w) as registry:
        configure(w, registry)
        registry.login(w)
        expect(row(w, "registry"), "ok", "https, issuers in ", "(SSL_CERT_FILE)", USER, "config.json", "may push")
        registry.login(w, CANARY)
        expect(row(w, "registry"), "problem", "may not push")
        (w.home / ".docker/config.json").unlink()
        assert expect(row(w, "registry"), "problem", "anonymous")["fix"].startswith("docker login "), row(w, "registry")


def test_unknown_issuer(w):
    w.repo()
    with with_password(w) as registry:
        configure(w, registry)
        registry.login(w)
        del w.env["SSL_CERT_FILE"]
        expect(row(w, "registry"), "problem", "certificate", "ca:")
        (w.tree / "ca.pem").write_bytes(registry.certs.ca.read_bytes())
        w.write("dlrun.yaml", json.dumps({"registry": {"push": f"{registry.host}/me/code", "ca": "ca.pem"}}))
        w.ok("config", "trust", "--yes")
        expect(row(w, "registry", cwd=w.tree), "ok", str(w.tree / "ca.pem"), "(ca:)")
        (w.tree / "sub").mkdir()
        expect(row(w, "registry", cwd=w.tree / "sub"), "ok", str(w.tree / "ca.pem"))


def test_may_only_pull(w):
    w.repo()
    with TokenServer(anonymous={"pull"}, allow=lambda user, name, action: action == "pull") as tokens, \
            Registry(auth=Bearer(tokens)) as registry:
        configure(w, registry)
        found = expect(row(w, "registry"), "problem", "anonymous", "may not push")
        assert found["fix"], found


def test_silent_registry(w):
    """Each check has eight seconds; the cause is said before."""
    w.repo()
    with Registry() as registry:
        registry.rule(".", Answer(how="hang"))
        configure(w, registry, image=f"{registry.address}/base:1")
        began = running_time()
        result = w.run("doctor", "--json")
        assert running_time() - began < 12
        rows = {c["id"]: c for c in json.loads(result.out)["checks"]}
        expect(rows["registry"], "problem", registry.address)
        expect(rows["base"], "problem", registry.address)


def test_proxy_has_no_password(w):
    w.repo()
    w.write("dlrun.yaml", "registry: registry.invalid/me\n")
    env = {"HTTPS_PROXY": f"http://me:{CANARY}@127.0.0.1:1"}
    expect(row(w, "proxy", env=env), "ok", "http://127.0.0.1:1 (HTTPS_PROXY) for registry.invalid")
    expect(row(w, "registry", env=env), "problem", "127.0.0.1:1")


# --- doctor: base

def test_base_can_be_mounted(w):
    w.repo()
    with Registry() as registry:
        registry.add_image("base/python", "3.12", layers=4)
        configure(w, registry, image=f"{registry.address}/base/python:3.12")
        expect(row(w, "base"), "ok", "4 layers", "can be mounted")
        assert not registry.find("POST"), "a mount leaves something"
        assert not [p for p in w.dir.glob("dlrun-base-*")], "a directory was left"
        configure(w, registry, image=f"{registry.address}/base/python:nope")
        expect(row(w, "base"), "problem", "base/python:nope")


def test_base_and_the_program(w):
    """What its configuration tells of what `command:` starts; of one on this machine also its layers."""
    w.repo()
    debian = {"history": [{"created_by": "# debian.sh --arch 'amd64'"}]}
    lab = {"targets": {"lab": {"kind": "kubernetes"}}}
    with Registry() as registry:
        registry.add_image("base/python", "1", config={"config": {"Env": ["PYTHON_VERSION=3.12.7"]}})
        registry.add_image("base/own", "1", layers=4)
        registry.add_image("base/debian", "1", layers=1, config=debian)
        for name, command, status, words in (
                ("python", "python3 train.py", "ok", "has python3: its Env has PYTHON_VERSION"),
                ("python", ["train.py"], "ok", "has python3: its Env has PYTHON_VERSION"),
                ("own", ["python3", "train.py"], "ok", "whether it has python3 cannot be known from its configuration"),
                ("debian", ["python3", "train.py"], "problem", "lacks python3: it is Debian and nothing else")):
            configure(w, registry, image=f"{registry.address}/base/{name}:1", command=command, **lab)
            expect(row(w, "base"), status, "can be mounted" if status == "ok" else "python:3.12", words)
        for command in ("cd exp && python3 train.py", "x=1 python3 train.py", "./train.sh", ["bin/train"]):
            configure(w, registry, image=f"{registry.address}/base/debian:1", command=command, **lab)
            assert expect(row(w, "base"), "ok")["found"].endswith("can be mounted")
        # Nothing starts it in a container yet.
        configure(w, registry, image=f"{registry.address}/base/debian:1", command="python3 train.py")
        expect(row(w, "base"), "warning", "lacks python3")
        there = base_layout(w, 1, members={"bin/sh": b"program", "usr/bin/python3": b"program"})[0]
        for program, status, words in (("python3", "ok", "has python3: /usr/bin/python3 is there"), ("python", "problem", "lacks python")):
            configure(w, registry, image=f"oci:{there}", command=[program, "train.py"], **lab)
            expect(row(w, "base"), status, "a layout on disk", words)


def test_base_that_the_login_may_not_read(w):
    w.repo()

    def allow(user, name, action):
        return name != "base/python" or not tokens.grants

    with TokenServer(users={"me": CANARY}, allow=allow) as tokens, Registry(auth=Bearer(tokens)) as registry:
        login(w, registry)
        registry.add_image("base/python", "3.12", layers=4)
        configure(w, registry, image=f"{registry.address}/base/python:3.12")
        expect(row(w, "base"), "problem", "base/python")


def test_base_elsewhere(w):
    w.repo()
    with Registry() as registry, Registry() as other:
        other.add_image("base/python", "3.12")
        configure(w, registry, image=f"{other.address}/base/python:3.12")
        assert expect(row(w, "base"), "warning", other.address, registry.address)["fix"] == "dlrun push --copy-base"


# --- a base that is proposed

def kubeconfig(w):
    w.write(".kube/config", json.dumps({
        "contexts": [{"name": "lab", "context": {"cluster": "lab"}}], "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": "http://127.0.0.1:1"}}]}), base=w.home)


def test_base_for_the_projects_python(w):
    """Without `image:` the first repository that responds and has the tag; requested once."""
    w.repo({"exp/train.py": "", "exp/.python-version": "3.11\n"})
    kubeconfig(w)
    with Registry() as silent, Registry() as lacks, Registry() as has:
        gone = silent.address
        silent.close()
        for minor in (11, 12):
            has.add_image("python", f"3.{minor}-slim", config={"config": {"Env": [f"PYTHON_VERSION=3.{minor}.1"]}})
        configure(w, has, bases=[f"{at}/python" for at in (gone, lacks.address, has.address)],
                  targets={"lab": {"kind": "kubernetes"}}, target="lab")

        def proposed(cwd="exp", rc=0):
            return w.run("submit", "--dry-run", "--", "python3", "train.py", cwd=w.tree / cwd)

        said = proposed()
        assert said.rc == 0, said
        line = f"no image: is set, so the base is {has.address}/python:3.11-slim (the Python of .python-version)"
        assert line in said.err + said.out and gone in said.err + said.out, said
        found = expect(row(w, "base", cwd=w.tree / "exp"), "ok", "Python 3.11", ".python-version")
        assert found["found"].startswith("none is set"), found
        # Nearer the root there is no version, and no base.
        assert "no base image is set" in proposed(".").err
        w.write("requirements.txt", "numpy\n")
        said = proposed(".")
        assert "python:3.12-slim (requirements.txt names no version)" in said.err, said
        assert "the packages of requirements.txt are not in it: environment: {lock: requirements.txt}" in said.err, said
        assert "are not in it" not in proposed().err
        # What was seen a moment ago is not requested again.
        mark = len(has.find("GET"))
        proposed()
        assert not [r for r in has.find("GET")[mark:] if r.path.endswith("/3.11-slim")], has.find("GET")[mark:]
        w.write("exp/.python-version", "3.9\n")
        said = proposed()
        assert f"the base is {gone}/python:3.9-slim (the Python of .python-version); registry {gone} cannot" in said.err, said
        w.write("exp/.python-version", "pypy3.9\n")
        said = proposed()
        assert "3.12-slim" in said.err and "'pypy3.9' in .python-version is not a version of Python 3" in said.err, said


def test_base_of_what_is_made_ahead(w):
    """warm and bake are told the program: the same base as the runs'."""
    w.repo({"train.py": "", ".python-version": "3.11\n"})
    w.env["https_proxy"] = "http://127.0.0.1:1"
    kubeconfig(w)
    with Registry() as registry:
        configure(w, registry, target="lab", setup={"run": "true", "key": ["train.py"]}, targets={"lab": {"kind": "kubernetes"}})
        done = w.run("warm", "--nodes", "1", "--", "uv", "run", "train.py")
        assert done.rc == 3 and "ghcr.io" in done.err, done


# --- gc

def gc(w, *args, rc=0, **options):
    result = w.run("gc", "--registry", "--json", *args, **options)
    assert result.rc == rc, result
    report = json.loads(result.out)
    return {t["name"].rpartition(":")[2]: t for t in report["tags"]} if rc == 0 else report["error"]


def push_edits(w, n):
    """n images, oldest first: their digests."""
    digests = []
    for i in range(n):
        w.write("edited.py", f"print({time.monotonic_ns()})\n")
        digests.append(w.ok("push").out.strip().rpartition("@")[2])
    return digests


def tag_of(digest):
    return "dlrun-" + digest.removeprefix("sha256:")[:16]


def own_tags(registry, name="me/code"):
    return {t for t in registry.repo(name).tags if OWN_TAG.fullmatch(t)}


def test_young_images_stay(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        digests = push_edits(w, 2)
        assert {t["why"] for t in gc(w).values()} == {"young"}
        assert own_tags(registry) == {tag_of(d) for d in digests} and not registry.find("DELETE")
        listed = gc(w, "--keep", "0", "--dry-run")
        assert all(t["deleted"] and t["why"] == "old" for t in listed.values()) and len(listed) == 2
        assert len(own_tags(registry)) == 2 and not registry.find("DELETE")


def test_old_images_go(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        digests = push_edits(w, 3)
        other = registry.add_image("me/code", "v1")
        shared = digests[0]
        registry.repo("me/code").tags["paper"] = shared
        found = gc(w, "--keep", "0")
        assert found[tag_of(shared)]["why"] == "shared" and not found[tag_of(shared)]["deleted"]
        assert set(registry.repo("me/code").tags) == {"v1", "paper", tag_of(shared)}
        assert set(registry.repo("me/code").manifests) >= {shared} and digests[1] not in registry.repo("me/code").manifests
        assert other and gc(w, "--keep", "0").keys() == {tag_of(shared)}
        # What is gone is not believed to be there.
        again = w.ok("push").out.strip().rpartition("@")[2]
        assert again == digests[2] and again in registry.repo("me/code").manifests


def test_what_a_run_needs_stays(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        digest = w.ok("push").out.strip().rpartition("@")[2]
        w.ok("submit", "-d", "--", "sleep", "1000")
        assert w.show()["image"]["ref"].endswith(digest), "the run has the image that was pushed"
        assert gc(w, "--keep", "0")[tag_of(digest)]["why"] == "needed"
        assert tag_of(digest) in registry.repo("me/code").tags
        w.ok("cancel", "@")
        assert gc(w, "--keep", "1h")[tag_of(digest)]["why"] == "young"
        assert gc(w, "--keep", "0")[tag_of(digest)]["deleted"]
        assert not own_tags(registry)


def test_others_images(w):
    """Of images that this machine knows nothing of, only the registry can tell the age."""
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        digest, = push_edits(w, 1)
        shutil.rmtree(w.cache)
        assert gc(w, "--keep", "0")[tag_of(digest)]["why"] == "unknown"
        for age_s, why in ((DAY_S * 31, "old"), (DAY_S * 29, "young")):
            registry.drop_rules()
            date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - age_s))
            registry.rule("GET .*/manifests/", lambda request, answer: Answer(
                answer.status, [*answer.headers, ("Last-Modified", date)], answer.body), stage="after")
            assert gc(w, "--dry-run")[tag_of(digest)]["why"] == why
        # A tag of this form that stands for something else is somebody's own.
        registry.drop_rules()
        image = registry.add_image("me/code", "dlrun-0123456789abcdef")
        assert image and gc(w, "--keep", "0")["dlrun-0123456789abcdef"]["why"] == "unknown"
        assert "dlrun-0123456789abcdef" in registry.repo("me/code").tags


def test_registry_that_deletes_nothing(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        push_edits(w, 1)
        registry.rule("DELETE", 405)
        error = gc(w, "--keep", "0", rc=1)
        assert error["id"] == "registry.unsupported" and registry.address in error["message"] and error["hint"], error
        registry.drop_rules()
        push_edits(w, 1)
        registry.rule("DELETE", 403)
        error = gc(w, "--keep", "0", rc=4)
        assert error["id"] == "registry.denied", error


def test_tags_that_cannot_be_deleted_alone(w):
    """Distribution 2.8: only by digest."""
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        push_edits(w, 1)
        registry.rule("DELETE .*/manifests/dlrun-", 400)
        assert all(t["deleted"] for t in gc(w, "--keep", "0").values())
        assert not own_tags(registry)


def test_pages(w):
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        digests = push_edits(w, 1)
        tags = registry.repo("me/code").tags
        for i in range(2500):
            tags[f"t{i:05}"] = digests[0]
        found = gc(w, "--keep", "0", "--dry-run")
        assert found[tag_of(digests[0])]["why"] == "shared" and len(registry.find("tags/list")) == 3


def test_endless_and_strange_lists(w):
    w.repo()
    with Registry() as registry, Registry() as other:
        configure(w, registry)
        push_edits(w, 1)
        forms = {
            "elsewhere": Answer(200, [("Link", f"<{other.url}/v2/x>; rel=next")], b'{"tags": []}'),
            "no json": Answer(200, [], b"<html>"),
            "no list": Answer(200, [], b'{"tags": 7}'),
            "endless": Answer(200, [("Link", "</v2/me/code/tags/list?n=1>; rel=next")], b'{"tags": []}'),
        }
        for name, answer in forms.items():
            registry.drop_rules()
            registry.rule("tags/list", answer)
            error = gc(w, rc=1)
            assert error["id"] == "registry.answer" and registry.address.split(":")[0] in error["message"], (name, error)
        assert not other.requests
        registry.drop_rules()
        registry.rule("tags/list", 404)
        assert gc(w) == {}


def test_no_registry(w):
    w.repo()
    assert gc(w, rc=2)["id"] == "config"
    w.refused("gc", "--target", "lab", id="usage", rc=2)


def test_damaged_record(w):
    """Nobody knows what it needs."""
    w.repo()
    with Registry() as registry:
        configure(w, registry)
        push_edits(w, 1)
        w.ok("submit", "-f", "-q", "--", "true")
        with sqlite3.connect(w.state / "runs.db") as db:
            column = [c[1] for c in db.execute("pragma table_info(runs)") if c[1] in ("doc", "json", "record")]
            db.execute(f"update runs set {column[0]} = '{{'")
        error = gc(w, "--keep", "0", rc=1)
        assert error["id"] == "store", error
        assert len(own_tags(registry)) == 1


def test_real_registries(w):
    w.repo()
    with plain(w) as registry:
        configure(w, registry)
        digests = push_edits(w, 2)
        assert gc(w, "--keep", "0").keys() == {tag_of(d) for d in digests}
        assert gc(w, "--keep", "0") == {}
        assert registry.manifest("me/code", digests[0])[0] == 404
    with with_tokens(w) as registry:
        configure(w, registry)
        registry.login(w)
        expect(row(w, "registry"), "ok", USER, "may push")
        digests = push_edits(w, 1)
        registry.requests()
        digests += push_edits(w, 1)
        assert not [r for r in registry.requests() if r.status == 400], "http was tried where TLS is known"
        assert all(t["deleted"] for t in gc(w, "--keep", "0").values())
        assert registry.manifest("me/code", digests[1])[0] == 404
    # Who may not delete is told so.
    with with_tokens(w, name="no-delete", allow=lambda name, action: action != "delete") as registry:
        configure(w, registry)
        registry.login(w)
        push_edits(w, 1)
        assert gc(w, "--keep", "0", rc=4)["id"] == "registry.denied"


if __name__ == "__main__":
    main()
