#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results and data of runs of a real cluster in a bucket, by a server that checks signatures."""

import contextlib
import hashlib
import json
import random
import subprocess

from harness import *  # noqa: F403
from kubesite import site
from mirror import NAME, Mirror
from mirror import WRITE as EVENTS
from s3site import S3Server, fill

WRITE = """import os, sys, time
out = os.environ["DLRUN_OUTPUT_DIR"]
os.makedirs(out + "/logs")
open(out + "/model.pt", "wb").write(bytes(range(256)) * 4000)
open(out + "/logs/events.out.tfevents.1.x", "w").write("e" * 3000)
open(out + "/rank", "w").write(os.environ.get("NODE_RANK", "0"))
open("in tree", "w").write("collected")
print("written", flush=True)
"""
WAITS = """import signal
def end(*_):
    open(out + "/at-term", "w").write("late")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""
KEYS = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]


@contextlib.contextmanager
def bucket(w, end="", **target):
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(site(w, files={"w.py": WRITE + end}))
        # The machine's address in the net of the nodes and pods.
        slot = json.loads((s.cluster.dir / "settings.json").read_text())["slot"]
        s3 = stack.enter_context(S3Server(w.dir, f"10.{100 + slot}.0.1"))
        w.env.update(s3.env)
        s.keys.update(secrets=KEYS, env={"AWS_ENDPOINT_URL_S3": s3.endpoint})
        s.configure(results={"s3": f"s3://{s3.bucket}/runs"}, **target)
        yield s, s3


def check_files(dir, *more):
    names = {str(p.relative_to(dir)) for p in dir.rglob("*") if p.is_file() and ".dlrun-fetch" not in p.parts}
    assert names - {".gitignore", "params.json"} == {"model.pt", "logs/events.out.tfevents.1.x", "rank", "in tree", *more}, names
    assert (dir / "model.pt").read_bytes() == bytes(range(256)) * 4000 and (dir / "in tree").read_text() == "collected"


def test_results_outlive_pods_and_job(w):
    with bucket(w) as (s, s3):
        done = w.run("submit", "-f", "--", "python3", "w.py")
        assert done.rc == 0, done
        run = w.show("@")["id"]
        s.without_pods()
        objects = json.dumps([s.cluster.get(kind, namespace=s.namespace) for kind in ("Job", "Pod", "ConfigMap")])
        assert s3.secret not in objects + done.err + done.out + json.dumps(w.show(run))
        w.ok("fetch", run)
        check_files(w.tree / run)
        s.cluster.kubectl("-n", s.namespace, "delete", "job", run)
        w.ok("fetch", run, "-o", "later")
        check_files(w.tree / "later")
        w.ok("fetch", run, "-o", "one", "logs/**")
        assert [p.name for p in (w.tree / "one").rglob("*") if p.is_file() and ".dlrun" not in str(p) and p.suffix == ".x"]
        assert not (w.tree / "one/model.pt").exists()
        w.refused("fetch", run, "-o", "none", env={"AWS_SECRET_ACCESS_KEY": "other"}, id="bucket.auth", rc=4, says=["SignatureDoesNotMatch"])


def test_a_pod_that_is_ended_sends_what_it_has(w):
    """TERM: what was closed before, and what the program writes then. KILL: what was closed before."""
    def closed(run):
        said = s3.log.read_text()
        return all(f"/runs/{run}/{name}" in said for name in ("model.pt", "rank", "logs/events.out.tfevents.1.x"))

    with bucket(w, WAITS) as (s, s3):
        run = s.submit("--grace", "10s", "--", "python3", "w.py")
        wait_for(lambda: closed(run), "what is closed", 120)
        s.cluster.kubectl("-n", s.namespace, "delete", "pod", "-l", f"dlrun.io/run-id={run}", "--wait=false")
        s.without_pods()
        w.run("cancel", run)
        w.ok("fetch", run)
        check_files(w.tree / run, "at-term")
        run = s.submit("--", "python3", "w.py")
        wait_for(lambda: closed(run), "what is closed", 120)
        s.cluster.kubectl("-n", s.namespace, "delete", "pod", "-l", f"dlrun.io/run-id={run}", "--force", "--grace-period=0")
        w.run("cancel", run)
        s.without_pods()
        w.ok("fetch", run)
        assert (w.tree / run / "model.pt").stat().st_size == 1024000


def test_ranks_and_members_have_places_of_their_own(w):
    with bucket(w) as (s, s3):
        done = w.run("submit", "-f", "-N", "2", "--", "python3", "w.py")
        assert done.rc == 0, done
        run = w.show("@")["id"]
        s.without_pods()
        w.ok("fetch", run)
        assert (w.tree / run / "rank").read_text() == "0" and (w.tree / run / "rank-1/rank").read_text() == "1"
        done = w.run("sweep", "--over", "x=1,2", "--", "python3", "w.py", "{x}")
        assert done.rc == 0, done
        members = [r["id"] for r in json.loads(w.ok("ps", "-a", "--json").out)["runs"] if r["id"] != run]
        assert len(members) == 2, members
        for member in members:
            assert s.ended(member)["state"] == "succeeded", s.why(member)
            w.ok("fetch", member)
            check_files(w.tree / member)


def test_event_files_are_mirrored(w):
    """The door of `tensorboard`: of the pod while it runs, of the bucket behind its end, also where nothing was mirrored before."""
    with bucket(w) as (s, s3):
        w.write("w.py", EVENTS)
        run = s.submit("--grace", "1s", "--", "python3", "w.py", "100000", "1")
        wait_for(lambda: "written" in w.ok("logs", run).out, "the files", 120)
        with Mirror(w, w.dir / "m", run, look_ms=300) as m:
            m.wait(lambda said: said.get(run, {}).get("files") == 2, "both files", 120)
        w.ok("exec", run, "--", "sh", "-c", "cd $DLRUN_OUTPUT_DIR; touch step; while [ -e step ]; do sleep 0.1; done; touch end")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        s.without_pods()
        for place in ("m", "other"):
            with Mirror(w, w.dir / place, run, look_ms=300) as m:
                said = m.over(90)
            assert said[run]["over"] and not said[run]["fault"] and said[run]["files"] == 2, said
            assert (w.dir / place / run / NAME).stat().st_size == 120000 and not (w.dir / place / run / "model.pt").exists()
        assert (w.dir / "m" / run / NAME).read_bytes() == (w.dir / "other" / run / NAME).read_bytes()
        tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
        part = subprocess.run([tool, "read", run, NAME, "1000", "5000"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True).stdout
        assert part == (w.dir / "m" / run / NAME).read_bytes()[1000:6000]


def test_what_could_not_be_sent_is_said(w):
    with bucket(w, linger="1s") as (s, s3):
        s.configure(results={"s3": "s3://no-such-bucket/runs"})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run, 180)["state"] == "succeeded", s.why(run)
        assert "NoSuchBucket" in s.why(run)["why"] and "s3://no-such-bucket/runs" in s.why(run)["why"], s.why(run)
        w.refused("fetch", run, id="bucket.not_found", rc=5, says=["no-such-bucket"])
        s.base = s.cluster.images["busybox"]
        s.configure(results={"s3": f"s3://{s3.bucket}/runs"})
        run = s.submit("--", "sh", "-c", "echo x")
        assert s.ended(run)["exit"]["code"] == 125 and "need an image with python3" in s.output(run), s.why(run)


READ = """import hashlib, os, sys, time
for at, dirs, names in sorted(os.walk("data/set")):
    for name in sorted(names):
        print(name, hashlib.sha256(open(os.path.join(at, name), "rb").read()).hexdigest(), flush=True)
try:
    open("data/set/new", "w")
except OSError as e:
    print("not written:", e.strerror, flush=True)
if sys.argv[1:]:
    while not os.path.exists("/tmp/end"):
        time.sleep(0.1)
"""


def test_data_in_a_bucket(w):
    """On the pod's own disk, and on one that pods of a node share; what stands in the way is told."""
    files = {"a": b"abc", "sub/big": random.Random(1).randbytes(40 << 20)}
    want = [f"{n.split('/')[-1]} {hashlib.sha256(data).hexdigest()}" for n, data in files.items()] + ["not written: Read-only file system"]
    with bucket(w) as (s, s3):
        w.write("r.py", READ)
        fill(w, s3, "sets/set", files)
        s.keys["data"] = ["data/set"]
        shared = {"host_path": f"{s.cluster.dir}/s3-cache-{s.namespace}"}
        os.mkdir(shared["host_path"])
        for caches in None, shared:
            more = {"caches": caches, "host_path": True} if caches else {}
            s.configure(results={"emptyDir": True}, data={"data/set": {"s3": f"s3://{s3.bucket}/sets/set", "cache": "100Mi"}}, **more)
            begun = len(s3.log.read_text())
            for again in range(2 if caches else 1):
                run = s.submit("--", "python3", "r.py")
                assert s.ended(run)["state"] == "succeeded", s.why(run)
                assert s.output(run).splitlines() == want, s.output(run)
                assert w.show(run)["data"] == {"data/set": f"s3://{s3.bucket}/sets/set"}, w.show(run)
            said = s3.log.read_text()[begun:]
            assert said.count("/sets/set/sub/big") == 2 and said.count("/sets/set/a ") == 1, said
        objects = json.dumps([s.cluster.get(kind, namespace=s.namespace) for kind in ("Job", "Pod", "ConfigMap")])
        assert s3.secret not in objects + json.dumps(w.show(run))
        assert s3.secret.encode() not in b"".join(p.read_bytes() for p in Path(shared["host_path"]).rglob("*") if p.is_file())
        # One that runs is not robbed of its files by another that needs the space.
        run = s.submit("--", "python3", "r.py", "wait")
        wait_for(lambda: "not written" in s.output(run), "what it reads", 120)
        fill(w, s3, "sets/set", {"sub/big": bytes(70 << 20)})
        failed = s.submit("--", "python3", "r.py")
        assert s.ended(failed)["state"] == "failed" and "too small for it" in json.dumps(s.why(failed)), s.why(failed)
        w.ok("exec", run, "--", "sh", "-c", "sha256sum data/set/sub/big; touch /tmp/end")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.write("data/set/f", "of a version")
        version = json.loads(w.ok("data", "push", "data/set", "--json").out)["version"]
        run = s.submit("--", "python3", "r.py", "wait")
        wait_for(lambda: "not written" in s.output(run), "what it reads", 120)
        assert s.output(run).splitlines()[0] == f"f {hashlib.sha256(b'of a version').hexdigest()}", s.output(run)
        assert w.show(run)["data"] == {"data/set": version}, w.show(run)
        refused = w.run("data", "rm", "data/set")
        assert refused.rc and f"is read by {run}" in refused.err, refused
        w.ok("exec", run, "--", "touch", "/tmp/end")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.ok("data", "rm", "data/set")
        s.configure(results={"emptyDir": True}, data={"data/set": {"s3": "s3://no-such-bucket/x"}})
        failed = s.submit("--", "python3", "r.py")
        assert s.ended(failed)["state"] == "failed" and "NoSuchBucket" in json.dumps(s.why(failed)), s.why(failed)


if __name__ == "__main__":
    main()
