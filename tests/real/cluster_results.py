#!/usr/bin/env python3
"""Files that programs leave in their tree, in a real cluster: with storage and without, however the program ends."""

import json
import signal
import subprocess

import cluster as clusters
from harness import *  # noqa: F403
from kubesite import site

# Written as programs do that were made for one machine; `end` is what becomes of them then.
WRITE = """import os, sys, time
os.makedirs("logs/v0", exist_ok=True)
for name, text in {"model.pt": "weights", "logs/v0/events.out.tfevents.1.x": "e" * 3000, "logs/v0/new\\nline": "nl", "a.py": "edited"}.items():
    with open(name, "w") as f:
        f.write(text)
with open("aged", "w") as f:
    f.write("old")
os.utime("aged", (1, 1))
os.symlink("/etc/passwd", "out-link")
os.makedirs("__pycache__", exist_ok=True)
open("__pycache__/x.pyc", "w").close()
with open("sparse", "wb") as f:
    f.truncate(256 << 20)
open(os.environ["DLRUN_OUTPUT_DIR"] + "/both", "w").write("mine")
open("both", "w").write("tree's")
print("written", flush=True)
"""
FILES = {"model.pt": "weights", "logs/v0/events.out.tfevents.1.x": "e" * 3000, "logs/v0/new\nline": "nl", "a.py": "edited", "aged": "old",
         "both": "mine", "both.tree": "tree's"}
ENDS = {"exit": ("sys.exit(3)", ("failed", 3)), "signal": ("os.kill(os.getpid(), 9)", ("failed", 137)), "well": ("", ("succeeded", 0)),
        "limit": ("time.sleep(600)", ("failed", 124))}


def fetched(dir):
    return {str(p.relative_to(dir)): p.read_text() for p in sorted(dir.rglob("*"))
            if p.is_file() and not p.is_symlink() and ".dlrun-fetch" not in p.parts and p.name not in (".gitignore", "sparse")}


def check_all(dir):
    assert fetched(dir) == FILES, fetched(dir).keys()
    assert os.readlink(dir / "out-link") == "/etc/passwd" and (dir / "sparse").stat().st_size == 256 << 20


def submit_end(s, end, *options):
    """A run that ends so: (its id, the state and exit code that are expected)."""
    s.w.write("w.py", WRITE + ENDS[end][0])
    options = [*options, "--timeout", "8s", "--grace", "2s"] if end == "limit" else options
    return s.submit(*options, "--", "python3", "w.py"), ENDS[end][1]


def written(s, run):
    wait_for(lambda: "written" in s.w.ok("logs", run).out, "the files", 90)


def test_files_of_the_tree_come_into_the_storage(w):
    with site(w) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        for end in ENDS:
            run, (state, code) = submit_end(s, end)
            # A look at the run while it goes on would collect, and be told that instead.
            w.run("wait", run)
            record = w.show(run)
            assert (record["state"], record["exit"]["code"]) == (state, code), (end, s.why(run), s.output(run))
            wait_for(lambda: "both is in the results already" in s.output(run), "the last line of the log")
            w.ok("fetch", run)
            check_all(w.tree / run)


def test_a_pod_that_is_deleted_saves_its_files(w):
    with site(w) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        s.w.write("w.py", WRITE + "time.sleep(600)")
        run = s.submit("--grace", "3s", "--", "python3", "w.py")
        written(s, run)
        # What is there already is seen while it runs.
        w.ok("fetch", run, "-o", "early")
        check_all(w.tree / "early")
        s.cancel(run)
        w.ok("fetch", run)
        check_all(w.tree / run)


def test_the_next_attempt_finds_them(w):
    again = """import os
n = int(open("ckpt").read()) if os.path.exists("ckpt") else 0
open("ckpt", "w").write(str(n + 1))
print("begins at", n, flush=True)
raise SystemExit(n < %d)
"""
    with site(w, files={"again.py": again % 2, "more.py": again % 1}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--retries", "3", "--", "python3", "again.py")
        assert s.ended(run, 150)["state"] == "succeeded", (s.why(run), s.output(run))
        assert "begins at 2" in s.output(run), s.output(run)
        run = s.submit("--", "python3", "more.py")
        assert s.ended(run)["state"] == "failed"
        w.ok("restart", run)
        wait_for(lambda: w.show(run)["state"] == "succeeded", "the second attempt", 90)
        w.ok("fetch", run)
        assert fetched(w.tree / run) == {"ckpt": "2"}, fetched(w.tree / run)


def test_busybox_alone_collects(w):
    with site(w, base="busybox") as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "sh", "-c", "mkdir d; echo 1 > d/f; printf 3 > 'n\nl'; touch -d 1999-01-01 aged; echo more >> a.py")
        assert s.ended(run)["state"] == "succeeded", (s.why(run), s.output(run))
        w.ok("fetch", run)
        got = fetched(w.tree / run)
        assert got.keys() == {"d/f", "n\nl", "aged", "a.py"} and got["a.py"].endswith("more\n"), got


def test_ranks_have_places_of_their_own(w):
    with site(w) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("-N", "2", "--", "sh", "-c", "echo $NODE_RANK > rank; echo $NODE_RANK > out-$NODE_RANK")
        assert s.ended(run)["state"] == "succeeded", (s.why(run), s.output(run))
        w.ok("fetch", run)
        assert fetched(w.tree / run) == {"rank": "0\n", "out-0": "0\n", "rank-1/rank": "1\n", "rank-1/out-1": "1\n"}, fetched(w.tree / run)

def pods(s, run):
    """Those of a run that have not ended."""
    return [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["metadata"]["labels"].get("dlrun.io/run-id") == run
            and p["status"].get("phase") not in ("Succeeded", "Failed")]


def released(s, run):
    wait_for(lambda: not pods(s, run), "the end of the pod", 30)


def test_without_storage_a_follower_takes_them(w):
    with site(w) as s:
        for end in ("well", "exit", "signal"):
            w.write("w.py", WRITE + ENDS[end][0])
            state, code = ENDS[end][1]
            done = w.run("submit", "-f", "--", "python3", "w.py")
            assert done.rc == code, done
            run = w.show("@")["id"]
            released(s, run)
            assert w.show(run)["state"] == state
            s.cluster.kubectl("-n", s.namespace, "delete", "job", run)
            w.ok("fetch", run)
            check_all(w.tree / run)
            assert "model.pt" in done.err and "tfevents" in w.ok("fetch", run, "-o", "again", "logs/**").err + str(list((w.tree / "again").rglob("*")))


def test_without_storage_they_wait_for_a_fetch(w):
    with site(w) as s:
        run, _ = submit_end(s, "well")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        assert "wait" in json.dumps(s.why(run)) and len(pods(s, run)) == 1, s.why(run)
        assert "results wait" in s.w.ok("show", run).out + s.w.ok("why", run).out
        w.ok("fetch", run)
        check_all(w.tree / run)
        released(s, run)
        assert "wait" not in json.dumps(s.why(run)), s.why(run)
        w.ok("fetch", run, "-o", "later")
        check_all(w.tree / "later")


def test_waiting_ends_by_itself_or_by_a_cancel(w):
    with site(w, linger="6s") as s:
        run, _ = submit_end(s, "well")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        released(s, run)
        w.refused("fetch", run, id="kube.storage", rc=2, says=[run, "ended with its pod"])
        s.configure(linger="10m")
        run, _ = submit_end(s, "exit")
        assert s.ended(run)["exit"]["code"] == 3, s.why(run)
        assert pods(s, run)
        w.run("cancel", run)
        released(s, run)
        assert w.show(run)["state"] == "failed"


def test_nothing_to_take_ends_at_once(w):
    with site(w, linger="10m") as s:
        run = s.submit("--", "python3", "a.py")
        s.ended(run)
        released(s, run)
        assert "wait" not in json.dumps(s.why(run)), s.why(run)


def test_retries_do_not_wait_for_anybody(w):
    with site(w, linger="10m") as s:
        run = s.submit("--retries", "1", "--", "sh", "-c", "echo $DLRUN_ATTEMPT > file; [ $DLRUN_ATTEMPT = 2 ]")
        assert "without" in s.said and "results:" in s.said, s.said
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.ok("fetch", run)
        assert fetched(w.tree / run) == {"file": "2\n"}, fetched(w.tree / run)


def test_cancel_takes_what_there_is(w):
    with site(w) as s:
        w.write("w.py", WRITE + "time.sleep(600)\n")
        run = s.submit("--grace", "1s", "--", "python3", "w.py")
        written(s, run)
        s.cancel(run)
        w.ok("fetch", run, "-o", str(w.dir / "there"))
        check_all(w.dir / "there")


if __name__ == "__main__":
    main()
