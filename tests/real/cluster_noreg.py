#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs in a real cluster without a registry: the base is pulled as it is, and the code goes through the API server."""

import json
import os

from harness import *  # noqa: F403
from kubesite import site

TREE = """import hashlib, json, os, stat
found = {}
for at, dirs, files in os.walk("."):
    for name in dirs + files:
        path = os.path.join(at, name)
        mode = os.lstat(path).st_mode
        what = os.readlink(path) if stat.S_ISLNK(mode) else "" if stat.S_ISDIR(mode) else hashlib.sha256(open(path, "rb").read()).hexdigest()
        found[path] = [oct(mode), what]
print(json.dumps(found, sort_keys=True), flush=True)
"""


def tree_of(s, run):
    return json.loads(s.output(run).strip().splitlines()[-1])


def code_maps(s):
    return [m["metadata"]["name"] for m in s.cluster.get("ConfigMap", namespace=s.namespace) if "-code-" in m["metadata"]["name"]]


def fill(w):
    """A tree with all kinds of entries."""
    w.write("tree.py", TREE)
    w.write("deep/er/it is.txt", "x" * 1000)
    w.write("deep/run.sh", "#!/bin/sh\necho hi\n")
    os.chmod(w.tree / "deep/run.sh", 0o755)
    (w.tree / "link").symlink_to("deep/er")
    (w.tree / "dangling").symlink_to("/nowhere")
    w.write("empty", "")


def configure(s, **target):
    """Two targets of the same namespace: k has no registry, r has one."""
    s.configure(registry="none", **target)
    known = json.loads((s.w.tree / "dlrun.yaml").read_text())
    known["targets"]["r"] = {**known["targets"]["k"], "registry": f"{s.cluster.registry}/{s.namespace}/code"}
    s.w.write("dlrun.yaml", json.dumps(known, indent=1))
    s.w.ok("config", "trust", "--yes")


def succeeded(s, run, seconds=90):
    assert s.ended(run, seconds)["state"] == "succeeded", s.why(run)
    return s.w.show(run)


def test_the_tree_and_the_digest_are_those_of_a_registry(w):
    with site(w) as s:
        configure(s)
        fill(w)
        apart, there = s.submit("-t", "k", "--", "python3", "tree.py"), s.submit("-t", "r", "--", "python3", "tree.py")
        a, b = succeeded(s, apart), succeeded(s, there)
        assert tree_of(s, apart) == tree_of(s, there)
        assert a["snapshot"]["id"] == b["snapshot"]["id"]
        assert a["image"]["ref"].rpartition("@")[2] == b["image"]["ref"].rpartition("@")[2], (a["image"], b["image"])
        assert a["image"]["base_ref"].startswith(s.base.rpartition(":")[0] + "@sha256:") and "base_ref" not in b["image"], a["image"]
        owned = s.cluster.get("ConfigMap", f"{apart}-code-0", s.namespace)
        assert owned["immutable"] and [o["kind"] for o in owned["metadata"]["ownerReferences"]] == ["Job"], owned["metadata"]
        w.ok("rm", apart, there)
        s.cluster.wait(lambda: not code_maps(s), "the end of its ConfigMaps")


def test_an_edit_and_what_is_gone(w):
    """The second tree is a delta with whiteouts over the first."""
    with site(w, registry="none") as s:
        fill(w)
        for n in range(400):
            w.write(f"many/{n}.txt", os.urandom(2000).hex())
        first = s.submit("--", "python3", "tree.py")
        succeeded(s, first)
        (w.tree / "deep/er/it is.txt").unlink()
        (w.tree / "deep/er").rmdir()
        w.write("deep/er", "a file now")
        (w.tree / "link").unlink()
        w.write("link/inside", "a directory now")
        (w.tree / "many/7.txt").unlink()
        w.write("many/8.txt", "edited")
        second = s.submit("--", "python3", "tree.py")
        record = succeeded(s, second)
        assert [layer["role"] for layer in record["image"]["layers"] if layer["role"] != "base"] == ["full", "delta"], record["image"]
        here = w.ok("submit", "-f", "-t", "local", "--", "python3", "tree.py").out
        contents = {path: what for path, (_, what) in tree_of(s, second).items()}
        assert contents == {path: what for path, (_, what) in json.loads(here.strip().splitlines()[-1]).items()}
        names = w.ok("diff", first, second).out
        assert "many/7.txt" in names and "deep/er" in names, names
        again = w.ok("submit", "-d", "--from", second, "--", "python3", "tree.py").out.strip()
        succeeded(s, again)
        assert tree_of(s, again) == tree_of(s, second)


if __name__ == "__main__":
    main()
