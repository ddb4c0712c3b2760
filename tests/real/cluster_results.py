#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
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
        for end in ENDS if ALL else ("exit", "limit"):
            run, (state, code) = submit_end(s, end)
            # A look at the run while it goes on would collect, and be told that instead.
            w.run("wait", run)
            record = w.show(run)
            assert (record["state"], record["exit"]["code"]) == (state, code), (end, s.why(run), s.output(run))
            wait_for(lambda: "both is in the results already" in s.output(run), "the last line of the log")
            w.ok("fetch", run)
            check_all(w.tree / run)


TOLD = """import os, shutil, sys
os.makedirs("lightning_logs/version_0")
open("lightning_logs/version_0/hparams.yaml", "w").write("lr: 0.25\\nmodel: {width: 8}\\n")
open("lightning_logs/version_0/events.out.tfevents.1.x", "w").write("e" * 3000)
open("model.pt", "w").write("m" * 2048)
shutil.move("pkg", "moved")
print("written", flush=True)
sys.exit(int(sys.argv[1]))
"""


CACHE = """import os, sys, time
rank, home = os.environ["NODE_RANK"], os.environ["HF_HOME"]
os.makedirs(home, exist_ok=True)
with open(f"{home}/.part-{sys.argv[1]}-{rank}", "w") as f:
    f.write("model" * 1000)
os.rename(f.name, f"{home}/model")
print(rank, home, os.environ["UV_CACHE_DIR"], os.environ["PIP_CACHE_DIR"], os.environ.get("TORCH_HOME"), len(os.listdir(home)), flush=True)
"""


def test_runs_share_caches(w):
    """Ranks and runs at the same time, with one claim; the next one finds what they have left."""
    with site(w) as s:
        s.cluster.volume(s.namespace, "caches")
        s.configure(caches={"pvc": "caches", "sub_path": "of/us"})
        w.write("cache.py", CACHE)
        runs = [s.submit("-N", "2", "-e", "TORCH_HOME=/mine", "--", "python3", "cache.py", str(n)) for n in range(3)]
        for run in runs:
            assert s.ended(run, 120)["state"] == "succeeded", s.why(run)
            lines = s.w.ok("logs", run).out
            assert lines.count("/dlrun/caches/huggingface /dlrun/caches/uv /dlrun/caches/pip /mine") == 2, lines
        last = s.submit("--", "python3", "-c", "print(open('/dlrun/caches/huggingface/model').read() == 'model' * 1000)")
        assert s.ended(last)["state"] == "succeeded" and "True" in w.ok("logs", last).out
        # An ordinary user may write there, too, where root has left nothing.
        s.configure(security="restricted", caches={"pvc": "caches", "sub_path": "of/them"})
        last = s.submit("-e", "TORCH_HOME=/mine", "--", "python3", "cache.py", "x")
        assert s.ended(last)["state"] == "succeeded", (s.why(last), w.run("logs", last))
        s.configure(caches={"host_path": "/var/caches"}, security="auto")
        refused = w.run("submit", "-d", "--", "true")
        assert refused.rc and "host_path: true" in refused.err, refused


def test_a_claim_that_can_only_be_read(w):
    with site(w) as s:
        s.cluster.apply({"kind": "PersistentVolumeClaim", "metadata": {"name": "models", "namespace": s.namespace},
                         "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Mi"}}}})
        for keys in ({"caches": {"pvc": "models"}}, {"caches": None, "results": {"pvc": "models"}}):
            s.target = {k: v for k, v in {**s.target, **keys}.items() if v}
            s.configure()
            refused = w.run("submit", "-d", "--", "true")
            assert refused.rc and f"claim models can only be read (ReadOnlyMany), and {next(k for k, v in keys.items() if v)}: is written" in refused.err, refused
        assert not s.jobs() and not w.runs()


def test_storage_tells_what_there_is(w):
    """The last line, and parameters of files, though nobody looks into the storage."""
    with site(w, files={"told.py": TOLD, "pkg/mod.py": "x = 1\n"}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})

        def check(said, run, more=""):
            line = [line for line in said.splitlines() if " results  " in line]
            assert len(line) == 1 and re.search(r"results +lightning_logs/ 2 files [\d.]+ KiB · model.pt 2.0 KiB · moved/ 1 file 6 B" + more +
                                                " +dlrun fetch " + run, line[0]), said
            record = w.show(run)
            assert record["params"]["lr"] == 0.25 and record["params"]["model.width"] == 8, record["params"]
            assert record["results"]["files"] == (4 if not more else 8), record["results"]

        for code in (0, 3):
            done = w.run("submit", "-f", "--", "python3", "told.py", str(code))
            assert done.rc == code, done
            check(done.err, w.show()["id"])
        w.ok("fetch", "@", "-o", "got")
        assert (w.tree / "got/moved/mod.py").read_text() == "x = 1\n"
        # A gang, and two that nobody follows.
        done = w.run("submit", "-f", "-N", "2", "--", "python3", "told.py", "0")
        check(done.err, w.show()["id"], " · rank-1/ 4 files [\\d.]+ KiB")
        runs = [s.submit("--", "python3", "told.py", "0") for _ in range(2)]
        wait_for(lambda: all(r["state"] == "succeeded" and r["params"].get("lr") == 0.25
                             for r in json.loads(w.ok("ps", "--json").out)["runs"] if r["id"] in runs), "what ps says", 60)
        said = w.ok("wait", runs[0]).err
        assert "model.pt 2.0 KiB" in said + w.ok("show", runs[0]).out, said


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
        for end in ("well", "exit", "signal") if ALL else ("well", "signal"):
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


def test_what_waited_in_a_pod_that_others_end_is_said_to_be_lost(w):
    with site(w, linger="10m") as s:
        for evicted in (False, True):
            run, _ = submit_end(s, "exit")
            assert s.ended(run)["exit"]["code"] == 3, s.why(run)
            name, = [p["metadata"]["name"] for p in pods(s, run)]
            assert "results wait" in s.why(run)["why"], s.why(run)
            if evicted:
                path = f"/api/v1/namespaces/{s.namespace}/pods/{name}/eviction"
                w.write("evict.json", json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}))
                s.cluster.kubectl("create", "--raw", path, "-f", str(w.tree / "evict.json"))
            else:
                s.cluster.kubectl("-n", s.namespace, "delete", "pod", name, "--wait=false")
            wait_for(lambda: "its results are lost" in s.why(run)["why"], "the loss", 30)
            assert s.why(run)["hint"] == f"dlrun restart {run}" and w.show(run)["exit"]["code"] == 3, s.why(run)
            assert "its results are lost" in w.ok("ps").err and "its results are lost" in w.ok("show", run).out
            s.without_pods()
            w.refused("fetch", run, id="kube.storage", rc=2, says=[run, "ended with its pod"])


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


# What an attempt finds, and what the first makes; the second removes one. Each fails but the third.
CARRY = """import hashlib, json, os, sys
n, out = int(os.environ["DLRUN_ATTEMPT"]), os.environ["DLRUN_OUTPUT_DIR"]
def facts(path):
    st = os.lstat(path)
    if os.path.islink(path):
        return os.fsdecode(os.readlink(path))
    return [oct(st.st_mode & 0o777), int(st.st_mtime), st.st_size, hashlib.sha256(open(path, "rb").read()).hexdigest()]
names = [b"ckpt", b"run.sh", b"key", b"deep/er/f", b"old", b"sparse", b"n\\nl", b"\\xff\\xfe", b"a.py", b"link", b"dangling", b"gone", b"both"]
found = {repr(p): facts(p) for p in names + [os.fsencode(out + "/own"), os.fsencode(out + "/both")] if os.path.lexists(p)}
print("FOUND", json.dumps(found), flush=True)
if n == 1:
    os.makedirs("deep/er")
    for p in names[:5] + names[6:9] + names[11:]:
        open(p, "wb").write(p)
    with open("sparse", "wb") as f:
        f.truncate(64 << 20)
        f.seek(1 << 20)
        f.write(b"x")
    os.symlink("ckpt", "link")
    os.symlink("/nowhere/at/all", "dangling")
    os.chmod("run.sh", 0o755)
    os.chmod("key", 0o400)
    os.utime("old", (1e9, 1e9))
    open(out + "/own", "w").write("own")
    open(out + "/both", "w").write("mine")
if n == 2:
    os.remove("gone")
    os.remove("link")
found = {repr(p): facts(p) for p in names + [os.fsencode(out + "/own"), os.fsencode(out + "/both")] if os.path.lexists(p)}
print("LEFT", json.dumps(found), flush=True)
sys.exit(n < 3)
"""


def said_json(s, run, word, attempt):
    lines = [line for line in s.w.ok("logs", run, "--attempt", str(attempt)).out.splitlines() if line.startswith(word + " ")]
    assert len(lines) == 1, s.w.ok("logs", run, "--attempt", str(attempt)).out
    return json.loads(lines[0].split(" ", 1)[1])


def as_fetched(facts):
    """Files have passed through here, where modes are held to the umask."""
    mask = os.umask(0o022)
    os.umask(mask)
    return {path: [oct(int(fact[0], 8) & ~mask), *fact[1:]] if isinstance(fact, list) else fact for path, fact in facts.items()}


def test_without_storage_a_restart_carries_them(w):
    """What an attempt has left, it finds: modes, times, links, names of any bytes, also a file of the snapshot that it has changed."""
    with site(w) as s:
        w.write("carry.py", CARRY)
        run = s.submit("--", "python3", "carry.py")
        assert s.ended(run)["state"] == "failed", s.why(run)
        for attempt in (2, 3):
            said = w.ok("restart", run).err
            assert re.search(r"restart carries \d+ files, 64 MiB, of attempt %d" % (attempt - 1), said), said
            assert s.ended(run)["state"] == ("failed" if attempt == 2 else "succeeded"), (s.why(run), s.output(run))
            left, found = said_json(s, run, "LEFT", attempt - 1), said_json(s, run, "FOUND", attempt)
            assert len(left) >= 13 and as_fetched(left) == found, (left, found)
        assert "b'gone'" not in found and "b'link'" not in found
        w.ok("fetch", run)
        assert {"ckpt", "both.tree", "own"} <= {p.name for p in (w.tree / run).iterdir()}


@left_to_all("test_cancel_takes_what_the_end_writes")
def test_cancel_takes_what_there_is(w):
    with site(w) as s:
        w.write("w.py", WRITE + "time.sleep(600)\n")
        run = s.submit("--grace", "1s", "--", "python3", "w.py")
        written(s, run)
        s.cancel(run)
        w.ok("fetch", run, "-o", str(w.dir / "there"))
        check_all(w.dir / "there")


def test_cancel_takes_what_the_end_writes(w):
    """A checkpoint written behind TERM, a file that the program removes then, and the whole once more after a restart."""
    program = """import os, signal, time
def end(*_):
    time.sleep(1)
    open("late", "w").write("behind TERM")
    open("late" + os.environ["NODE_RANK"], "w").write("x" * 100000)
    os.remove("early")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("found", sorted(p for p in os.listdir() if p in ("late", "early")), flush=True)
open("early", "w").write("e")
print("written", flush=True)
time.sleep(600)
"""
    with site(w) as s:
        w.write("late.py", program)
        for options in ([], ["--retries", "2"], ["-N", "2"]) if ALL else (["--retries", "2"], ["-N", "2"]):
            run = s.submit(*options, "--grace", "20s", "--", "python3", "late.py")
            wait_for(lambda: w.ok("logs", run).out.count("written") == 1 + ("-N" in options), "all ranks", 90)
            s.cancel(run)
            w.ok("fetch", run)
            late = [p.name for p in sorted((w.tree / run).rglob("late*"))]
            assert sorted(late) == (["late", "late", "late0", "late1"] if "-N" in options else ["late", "late0"]), late
        w.ok("restart", run)
        wait_for(lambda: "found ['late']" in w.ok("logs", run).out, "what the attempt before left", 90)
        s.cancel(run)


if __name__ == "__main__":
    main()
