#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images: the same bytes everywhere, small deltas, bases, and what other tools say of them."""

import os
import random
import subprocess

from gotools import go_tool
from harness import *  # noqa: F403


def clone(w, name):
    w.git("clone", "-q", str(w.tree), str(w.dir / name))
    return w.dir / name


def turkish(w):
    """An environment in which i and I are letters of two kinds, made here as few machines have it."""
    needs("localedef")
    (w.dir / "locale").mkdir()
    subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", str(w.dir / "locale/tr_TR.UTF-8")], check=True)
    env = {"LOCPATH": str(w.dir / "locale"), "LC_ALL": "tr_TR.UTF-8"}
    said = w.command(["locale", "-k", "yesexpr", "charmap"], env=env)
    assert said.rc == 0 and not said.err and "eE" in said.out and "UTF-8" in said.out, said
    return env


def test_same_tree_same_layer_everywhere(w):
    """Two clones, other umask, locale, time zone, user, directory order: one diff_id."""
    w.repo({f"pkg{i % 7}/m{i}.py": f"x = {i}\n" * 50 for i in range(100)} |
           {"caf\u00e9 \u00fc.txt": "x", "I.PNG": "I" * 70000, "\u0130i\u0131": "i"})
    (w.tree / "link").symlink_to("pkg0/m0.py")
    w.write("tool.sh", "#!/bin/sh\n", 0o755)
    w.commit()
    seen = set()
    variants = [({}, 0o022), ({"LC_ALL": "C"}, 0o077), ({"TZ": "Asia/Tokyo"} | turkish(w), 0o002),
                ({"LANG": "C", "LC_ALL": None, "TZ": "America/New_York"}, 0o000)]
    for i, (env, umask) in enumerate(variants):
        old = os.umask(umask)
        try:
            there = clone(w, f"clone{i}")
        finally:
            os.umask(old)
        image = w.push("--full", cwd=there, env=env, to=w.dir / f"out{i}")
        seen.add(tuple(image.diff_ids))
    w.as_nobody()
    seen.add(tuple(w.push("--full", to=w.dir / "home/out").diff_ids))
    assert len(seen) == 1, seen


def test_source_date_epoch(w):
    w.repo()
    image = w.push(env={"SOURCE_DATE_EPOCH": "1700000000"})
    with tarfile.open(fileobj=io.BytesIO(image.tars[0])) as archive:
        assert {m.mtime for m in archive} == {1700000000}
    shutil.rmtree(w.dir / "out")
    with tarfile.open(fileobj=io.BytesIO(w.push("--full").tars[0])) as archive:
        assert {m.mtime for m in archive} == {315619200}


def test_no_entry_for_the_parents_of_workdir(w):
    w.repo({"a/b": "x"})
    assert w.push().names(0) == ["dlrun/src", "dlrun/src/.wh..wh..opq", "dlrun/src/a", "dlrun/src/a/b"]


def test_revert_gives_the_earlier_image(w):
    w.repo({"a": "1" * 1000, "b": "2"})
    first = w.push()
    w.write("b", "3")
    assert w.push().digest != first.digest
    w.write("b", "2")
    assert w.push().digest == first.digest


def test_three_hundred_edits(w):
    """Depth stays, and every image is exactly the tree."""
    rng = random.Random(1)
    w.repo({f"d{i % 5}/f{i}": os.urandom(400).hex() for i in range(60)})
    for step in range(300):
        names = [os.fsdecode(p) for p in all_files(w.tree)]
        pick = w.tree / rng.choice(names)
        kind = rng.randrange(6)
        if kind == 0 and len(names) > 5:
            pick.unlink()
        elif kind == 1:
            w.write(f"d{rng.randrange(5)}/n{step}", os.urandom(100).hex())
        elif kind == 2:
            pick.unlink()
            pick.symlink_to("nowhere")
        elif not pick.is_symlink():
            pick.write_text(os.urandom(200).hex())
        if step % 10 == 0 or step > 290:
            image = w.push()
            assert len(image.layers) <= 2, image.roles()
            same_tree(image, w.tree, all_files(w.tree))
        else:
            w.push()


def test_big_files_have_a_layer_of_their_own(w):
    big = os.urandom(9 << 20)
    w.repo({"a": "1", "small": "s"})
    w.write("model.bin", big)
    first = w.push()
    assert sorted(first.roles()) == ["big", "full"]
    w.write("a", "2")
    second = w.push()
    assert sorted(second.roles()) == ["big", "delta", "full"]
    digests = {l["digest"] for l in first.layers}
    assert sum(l["digest"] in digests for l in second.layers) == 2
    same_tree(second, w.tree, ["a", "small", "model.bin"])
    w.write("small", big)
    w.write("model.bin", "now small")
    same_tree(w.push(), w.tree, ["a", "small", "model.bin"])
    (w.tree / "small").unlink()
    same_tree(w.push(), w.tree, ["a", "model.bin"])


def test_small_edit_writes_little(w):
    w.repo({f"d{i % 40}/f{i}": os.urandom(2000).hex() for i in range(500)})
    w.push()
    before = sum(p.stat().st_size for p in (w.dir / "out/blobs/sha256").iterdir())
    w.write("d0/f0", "edited")
    w.push()
    after = sum(p.stat().st_size for p in (w.dir / "out/blobs/sha256").iterdir())
    assert after - before < 16384, after - before


def test_new_full_layer_when_the_delta_grows(w):
    w.repo({f"f{i}": os.urandom(4000).hex() for i in range(200)})
    w.push()
    for i in range(120):
        w.write(f"f{i}", os.urandom(4000).hex())
    image = w.push()
    assert image.roles() == ["full"]
    same_tree(image, w.tree, [f"f{i}" for i in range(200)])


def test_lost_full_layer_is_written_again(w):
    w.repo({f"f{i}": os.urandom(2000).hex() for i in range(50)})
    first = w.push()
    (w.dir / "out/blobs/sha256" / first.layers[0]["digest"][7:]).unlink()
    w.write("f0", "x")
    same_tree(w.push(), w.tree, [f"f{i}" for i in range(50)])


def test_zstd_and_gzip_hold_the_same_tar(w):
    needs("zstd")
    w.repo({f"f{i}": "text " * 2000 for i in range(100)})
    gzip = w.push("--full")
    w.env["DLRUN_COMPRESSION"] = "zstd"
    zstd = w.push("--full", to=w.dir / "out2")
    assert gzip.diff_ids == zstd.diff_ids
    assert zstd.layers[0]["mediaType"].endswith("tar+zstd")


def test_incompressible_file(w):
    w.repo({"a": "1"})
    w.write("dlrun.yaml", "limits: {file: 300Mi}\n")
    (w.tree / "noise").write_bytes(os.urandom(40 << 20))
    image = w.push()
    same_tree(image, w.tree, ["a", "dlrun.yaml", "noise"])


# --- bases --------------------------------------------------------------------------------------------------

def layer_tar(members):
    """By name: bytes of a file that may be run, or a string, the target of a symbolic link."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size, info.mode = len(content), 0o755
                archive.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def base_layout(w, layers=1, docker=False, codec="gzip", members=None, name=None, settings=None, history="x"):
    """An image layout with `layers` layers made here, by hand; in one that is there `v1` moves. `members` are those
    of each layer, or a function of its number; `settings` the configuration of programs."""
    import gzip
    there = w.dir / (name or f"base{layers}{'d' if docker else ''}{codec}")
    blobs = there / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=name is not None)

    def put(data):
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    prefix = "application/vnd.docker.image.rootfs.diff.tar.gzip" if docker else \
        f"application/vnd.oci.image.layer.v1.tar+{codec}"
    descriptors, diff_ids = [], []
    for i in range(layers):
        tar = layer_tar(members(i) if callable(members) else members or {f"base/{i}": b"base"})
        data = gzip.compress(tar, mtime=0) if codec == "gzip" else \
            subprocess.run(["zstd", "-c"], input=tar, capture_output=True, check=True).stdout
        descriptors.append({"mediaType": prefix, **put(data)})
        diff_ids.append("sha256:" + hashlib.sha256(tar).hexdigest())
    settings = settings or {"User": "1000", "Env": ["A=b"], "Entrypoint": ["/e"]}
    config = {"architecture": "amd64", "os": "linux", "config": settings,
              "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": [{"created_by": history}] * layers,
              "big.number": 12345678901234567890}
    kind = "application/vnd.docker." if docker else "application/vnd.oci."
    manifest = {"schemaVersion": 2,
                "mediaType": kind + ("distribution.manifest.v2+json" if docker else "image.manifest.v1+json"),
                "config": {"mediaType": kind + ("container.image.v1+json" if docker else "image.config.v1+json"),
                           **put(json.dumps(config).encode())},
                "layers": descriptors}
    top = {"mediaType": manifest["mediaType"], **put(json.dumps(manifest).encode()),
           "annotations": {"org.opencontainers.image.ref.name": "v1"}}
    (there / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (there / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    return there, descriptors, top, put


def test_base_layers_stay_below(w):
    w.repo()
    for count in (1, 30, 120):
        there, descriptors, _, _ = base_layout(w, count)
        image = w.push("--image", f"oci:{there}:v1", to=w.dir / f"out{count}")
        assert [l["digest"] for l in image.layers[:count]] == [d["digest"] for d in descriptors]
        assert len(image.layers) == count + 1
        same_tree(image, w.tree, ["a.py"])
        assert image.config["config"]["User"] == "1000" and image.config["config"]["Entrypoint"] == ["/e"]
        assert image.config["config"]["WorkingDir"] == "/dlrun/src"
        assert b"12345678901234567890" in image.blob(image.manifest["config"]["digest"])


def test_base_with_too_many_layers(w):
    w.repo()
    there, _, _, _ = base_layout(w, 126)
    w.refused("push", "--image", f"oci:{there}", "--to", f"oci:{w.dir}/out", id="image.depth", rc=2, says="podman build --squash-all")


def base_of_run(w, run):
    return [l["diff_id"] for l in w.show(run)["image"]["layers"] if l["role"] == "base"]


def test_base_tag_that_moves_between_runs(w):
    """The next run has the new base and `diff` says so; --from the first keeps its own, also when it is gone."""
    w.repo()
    runs, bases = [], []
    for content in (b"old", b"new"):
        there, _, _, _ = base_layout(w, members={"base": content}, name="moving")
        bases.append(["sha256:" + hashlib.sha256(layer_tar({"base": content})).hexdigest()])
        runs.append(w.ok("submit", "-d", "--", "true", env={"DLRUN_IMAGE": f"oci:{there}:v1"}).out.strip())
        w.ok("wait", runs[-1])
    docs = [w.show(run) for run in runs]
    assert [base_of_run(w, run) for run in runs] == bases and bases[0] != bases[1]
    assert docs[0]["image"]["ref"] != docs[1]["image"]["ref"]
    assert docs[0]["snapshot"]["id"] == docs[1]["snapshot"]["id"]
    assert docs[1]["image"]["layers_pushed"] == 0, "the code is there already"
    said = json.loads(w.ok("diff", *runs, "--json").out)
    assert [bases[i][0][:14] in said["facts"]["base"]["ab"[i]] for i in (0, 1)] == [True, True], said
    shutil.rmtree(there)
    w.ok("submit", "-f", "--from", runs[0])
    again = w.show()
    assert again["image"]["ref"] == docs[0]["image"]["ref"] and base_of_run(w, "@") == bases[0]
    digest = docs[0]["image"]["ref"].split("@")[1]
    same_tree(Image(w.layout, digest), w.tree, ["a.py"])


def test_docker_and_zstd_bases(w):
    w.repo()
    there, _, _, _ = base_layout(w, 2, docker=True)
    image = w.push("--image", f"oci:{there}")
    assert image.manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert image.layers[-1]["mediaType"] == "application/vnd.docker.image.rootfs.diff.tar.gzip"
    needs("zstd")
    there, _, _, _ = base_layout(w, 2, codec="zstd")
    same_tree(w.push("--image", f"oci:{there}", to=w.dir / "out2"), w.tree, ["a.py"])


def test_index_base_and_its_platforms(w):
    w.repo()
    there, _, top, put = base_layout(w, 1)
    entry = {k: top[k] for k in ("mediaType", "digest", "size")}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
             "manifests": [{**entry, "platform": {"architecture": "amd64", "os": "linux"}}]}
    listed = {"mediaType": index["mediaType"], **put(json.dumps(index).encode()),
              "annotations": {"org.opencontainers.image.ref.name": "multi"}}
    (there / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    same_tree(w.push("--image", f"oci:{there}:multi"), w.tree, ["a.py"])
    w.write("dlrun.yaml", "platform: linux/s390x\n")
    w.refused("push", "--image", f"oci:{there}:multi", "--to", f"oci:{w.dir}/out2", id="image.platform", rc=5,
              says=["linux/s390x", "linux/amd64"])


def test_base_that_is_not_there(w):
    w.repo()
    w.refused("push", "--image", f"oci:{w.dir}/nowhere", id="image.base", rc=5, says="nowhere")
    there, _, _, _ = base_layout(w, 1)
    w.refused("push", "--image", f"oci:{there}:v2", id="image.base", rc=5, says=["v2", "v1"])
    w.refused("push", "--image", "Not A Reference", id="image.ref", rc=2)


def test_base_that_is_damaged(w):
    w.repo()
    there, descriptors, top, _ = base_layout(w, 1)
    path = there / "blobs/sha256" / top["digest"][7:]
    path.write_bytes(path.read_bytes().replace(b"schemaVersion", b"schemaversion"))
    w.refused("push", "--image", f"oci:{there}", "--to", f"oci:{w.dir}/out", id="image", rc=1, says="digest")


def unpacked(w, name, *args):
    """The root of the image that another tool makes of a push with these arguments."""
    needs("umoci")
    w.ok("push", "--to", f"oci:{w.dir}/out:{name}", *args)
    bundle = w.dir / f"bundle-{name}"
    done = subprocess.run(["umoci", "unpack", "--rootless", "--image", f"{w.dir}/out:{name}", str(bundle)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return bundle / "rootfs"


def holds(root, tree):
    assert sorted(all_files(root)) == sorted(all_files(tree))
    assert disk_tree(root, all_files(root)) == disk_tree(tree, all_files(tree))


def test_link_on_the_way_to_workdir_stays(w):
    """/dlrun is a link in the base: nothing replaces it, and the tree lies where it leads."""
    w.repo({"a.py": "1", "pkg/b.py": "2", "gone": "3"})
    for name, target in (("there", "/opt/dlrun"), ("made", "/var/new")):
        base, _, _, _ = base_layout(w, members={"opt/dlrun/x": b"base", "dlrun": target}, name=f"base-{name}")
        for step in ("full", "delta"):
            w.write("a.py", step)
            if step == "full":
                w.write("gone", "3")
            else:
                (w.tree / "gone").unlink()
            root = unpacked(w, f"{name}-{step}", "--image", f"oci:{base}")
            assert os.readlink(root / "dlrun") == target
            holds(root / target[1:] / "src", w.tree)
            assert (root / "opt/dlrun/x").read_bytes() == b"base"


def test_workdir_that_is_a_link_is_the_trees_own(w):
    """/dlrun/src is a link in the base: the run sees the tree alone, and nothing is written through the link."""
    w.repo({"a.py": "1", "pkg/b.py": "2", "gone": "3"})
    base, _, _, _ = base_layout(w, members={"elsewhere/a.py": b"base", "elsewhere/z": b"base",
                                            "dlrun/src": "/elsewhere"})
    for step in ("full", "delta"):
        root = unpacked(w, step, "--image", f"oci:{base}")
        assert not os.path.islink(root / "dlrun/src")
        holds(root / "dlrun/src", w.tree)
        assert {p.name: p.read_bytes() for p in (root / "elsewhere").iterdir()} == {"a.py": b"base", "z": b"base"}
        (w.tree / "gone").unlink(missing_ok=True)


def test_base_with_files_below_workdir(w):
    """They are never seen, in a full layer as little as after a delta."""
    base_with_files_below(w, "app")


def test_base_with_files_below_the_workdir_of_our_own(w):
    base_with_files_below(w, "dlrun/src")


def test_base_with_files_below_a_deeper_workdir(w):
    base_with_files_below(w, "dlrun/src/sub")


def base_with_files_below(w, workdir):
    w.repo({"a": "1", "ghost": "2", "d/own": "3", "kind/x": "4", "dlrun.yaml": f"workdir: /{workdir}\n"})
    below = {"ghost": b"base", "d/e": b"base", "kind": "d", "only": b"base", ".hidden": b"base", "link": "/etc",
             "gone/x": b"base"}
    base, _, _, _ = base_layout(w, members={f"{workdir}/{name}": what for name, what in below.items()} |
                                {"other": b"base"})
    holds(unpacked(w, "first", "--image", f"oci:{base}") / workdir, w.tree)
    (w.tree / "ghost").unlink()
    shutil.rmtree(w.tree / "kind")
    w.write("kind", "5")
    w.write("gone/y", "6")
    delta = unpacked(w, "delta", "--image", f"oci:{base}")
    full = unpacked(w, "full", "--full", "--image", f"oci:{base}")
    assert hash_dir(delta) == hash_dir(full)
    holds(full / workdir, w.tree)
    assert (full / "other").read_bytes() == b"base"
    image = w.push("--image", f"oci:{base}")
    assert image.roles() == ["base", "full"]
    assert image.diff_ids[1:] == w.push("--full", to=w.dir / "out2").diff_ids
    w.write("a", "7")
    image = w.push("--image", f"oci:{base}")
    assert image.roles() == ["base", "full", "delta"]
    same_tree(Image(image.layout, image.digest, workdir), w.tree, all_files(w.tree))
    assert w.ok("submit", "-f", "--", "ls", env={"DLRUN_IMAGE": f"oci:{base}"}).out.split() == \
        ["a", "d", "dlrun.yaml", "gone", "kind"]
    w.ok("checkout", "@", str(w.dir / "back"))
    holds(w.dir / "back", w.tree)
    assert json.loads(w.ok("diff", "@", "--json").out)["files"] == []


def test_workdir_that_is_no_place(w):
    w.repo()
    for workdir in ("src", "/", "", "/a/../b", "/a/", "//a", "/a/./b", "/.wh.a"):
        w.write("dlrun.yaml", f"name: x\nworkdir: '{workdir}'\n")
        w.refused("push", id="config", rc=2, says=["dlrun.yaml:2", "workdir"])


# --- other tools ----------------------------------------------------------------------------------------------

def awkward_tree(w):
    w.repo({f"pkg{i % 9}/m{i}.py": f"x = {i}\n" * 30 for i in range(200)} | {"caf\u00e9": "x", "empty": ""})
    (w.tree / "link").symlink_to("pkg0")
    (w.tree / "dangling").symlink_to("/nowhere")
    w.write("tool.sh", "#!/bin/sh\n", 0o755)
    w.write("n" * 200 + "/" + "m" * 200, "long")


def test_umoci_unpacks_the_tree(w):
    awkward_tree(w)
    w.push()
    w.write("pkg0/m0.py", "edited")
    (w.tree / "pkg1/m1.py").unlink()
    holds(unpacked(w, "mine") / "dlrun/src", w.tree)


def test_gnu_tar_reads_full_layers(w):
    awkward_tree(w)
    image = w.push()
    (w.dir / "x").mkdir()
    done = subprocess.run(["tar", "-x", "-C", str(w.dir / "x")], input=image.tars[0], capture_output=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    (w.dir / "x/dlrun/src/.wh..wh..opq").unlink()
    holds(w.dir / "x/dlrun/src", w.tree)


def test_crane_validates(w):
    crane = go_tool("crane")
    awkward_tree(w)
    w.push()
    w.write("pkg0/m0.py", "edited")
    image = w.push()
    one = w.dir / "one"
    shutil.copytree(w.dir / "out", one)
    index = json.loads((one / "index.json").read_text())
    index["manifests"] = [m for m in index["manifests"] if m["digest"] == image.digest][:1]
    (one / "index.json").write_text(json.dumps(index))
    registry = subprocess.Popen([crane, "registry", "serve", "--address", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
    try:
        port = next(re.search(r"127\.0\.0\.1:(\d+)|\[::\]:(\d+)|port (\d+)", line)
                    for line in registry.stdout if re.search(r":(\d+)|port", line))
        name = f"127.0.0.1:{next(g for g in port.groups() if g)}/code"
        for argv in (["push", str(one), f"{name}:1"],
                     ["validate", "--remote", f"{name}:1"]):
            done = subprocess.run([crane, *argv], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        assert "PASS" in done.stdout + done.stderr
    finally:
        registry.kill()
        registry.wait()


if __name__ == "__main__":
    main()
