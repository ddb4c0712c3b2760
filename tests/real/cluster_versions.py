#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Versions of data (`dlrun data`) in a claim of a real cluster."""

import json
import os
import random
import subprocess

from data import MIB, check, content, large
from harness import *  # noqa: F403
from kube_images import push_python
from kubesite import site

FILES = {".gitignore": "data/\n", "sum.sh": "sha256sum data/set/large; cat data/set/sub/a; ! echo x >data/set/sub/a\n"}


def claimed(s, **more):
    """A claim that has the data; the directory of its volume here."""
    place = s.cluster.volume(s.namespace, "sets")
    s.configure(data={"data/set": {"pvc": "sets", "sub_path": "deep/set/.dlrun/current", "read_only": True, **more}})
    config = json.loads((s.w.tree / "dlrun.yaml").read_text())
    s.w.write("dlrun.yaml", json.dumps({**config, "data": ["data/set"]}))
    return place


def pushed(w, *words):
    return json.loads(w.ok("data", "push", "data/set", "--json", *words, timeout=300).out)


def no_pod_is_left(s):
    wait_for(lambda: all(p["status"]["phase"] == "Succeeded" for p in s.cluster.get("Pod", namespace=s.namespace)), "the end of the pod", 60)


def test_a_claim_gets_versions(w):
    with site(w, files=FILES) as s:
        place = claimed(s)
        file = large(w, size=20 * MIB)
        w.write("data/set/sub/a", "one")
        os.symlink("sub/a", w.tree / "data/set/link")
        first = pushed(w)
        assert first["bytes_sent"] == first["bytes"], first
        there = place / "deep/set/.dlrun"
        assert content(there / first["version"]) == content(w.tree / "data/set")
        with open(file, "r+b") as out:
            out.seek(10 * MIB)
            out.write(b"!")
        second = pushed(w)
        assert 0 < second["bytes_sent"] <= 4 * MIB, second
        check(w, place / "deep/set")
        no_pod_is_left(s)
        run = s.submit("--", "sh", "sum.sh")
        w.run("wait", run)
        assert w.show(run)["state"] == "succeeded", (s.why(run), s.output(run))
        assert w.show(run)["data"] == {"data/set": second["version"]} and second["version"] in w.ok("show", run).out, w.show(run).get("data")
        listed = json.loads(w.ok("data", "ls", "--json", timeout=300).out)["versions"]
        assert [(v["version"], v["current"]) for v in listed] == [(second["version"], True), (first["version"], False)], listed
        w.ok("data", "rm", f"data/set@{first['version']}", timeout=300)
        assert not (there / first["version"]).exists() and (there / second["version"]).is_dir()
        no_pod_is_left(s)
        # What a pod has mounted is known while it runs.
        run = s.submit("--", "sh", "-c", "until [ -e $DLRUN_OUTPUT_DIR/go ]; do sleep 0.1; done; cat data/set/sub/a")
        wait_for(lambda: w.show(run).get("data") == {"data/set": second["version"]}, "the version that it reads", 60)
        done = w.run("data", "rm", "data/set", timeout=300)
        assert done.rc == 1 and "[data.place]" in done.err and run in done.err, done
        w.write("data/set/sub/a", "two")
        third = pushed(w)
        w.ok("exec", run, "--", "sh", "-c", "touch $DLRUN_OUTPUT_DIR/go")
        assert s.ended(run)["state"] == "succeeded" and s.output(run) == "one", s.why(run)
        assert w.show(run)["data"] == {"data/set": second["version"]} and third["version"] != second["version"], w.show(run)["data"]
        # Runs would see the directory of the versions.
        s.configure(data={"data/set": {"pvc": "sets", "sub_path": "deep/set"}})
        again = w.ok("data", "push", "data/set", timeout=300)
        assert "{..., sub_path: deep/set/.dlrun/current}" in again.err, again.err


def test_a_push_into_a_claim_goes_on(w):
    with site(w, files=FILES) as s:
        place = claimed(s)
        for number in range(60):
            w.write(f"data/set/{number}", random.Random(number).randbytes(MIB))
        child = subprocess.Popen([w.dlrun, "data", "push", "data/set"], cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: sum(p.stat().st_size for p in place.rglob("part-*/*") if p.is_file()) > 4 * MIB or child.poll() is not None, "some of it there", 120)
        child.kill()
        child.wait()
        # Its pod has the base that a submit would take.
        base = push_python(f"{s.cluster.registry}/hub/python")
        config = json.loads((w.tree / "dlrun.yaml").read_text())
        del config["image"]
        w.write("dlrun.yaml", json.dumps({**config, "bases": [base.rpartition(":")[0]]}))
        w.ok("config", "trust", "--yes")
        refused = w.run("data", "push", "data/set")
        check_error_form(refused.err, "image.none")
        w.write(".python-version", "3.11\n")
        done = w.ok("data", "push", "data/set", timeout=300)
        assert f"its pod has {base} (the Python of .python-version)" in done.err, done
        check(w, place / "deep/set")
        assert not list((place / "deep/set/.dlrun").glob("part-*"))


if __name__ == "__main__":
    main()
