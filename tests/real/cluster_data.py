#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`data: {PATH: sync}` in a real cluster: data of the tree in layers below the code, sent once."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

from cluster_away import config_through
from harness import *  # noqa: F403
from kubesite import site

from faultproxy import FaultProxy

SUM = """import hashlib, os, sys
total = hashlib.sha256()
for top in sys.argv[1:]:
    for at, dirs, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = os.path.join(at, name)
            total.update(os.path.relpath(path, top).encode() + b"\\0" + (os.readlink(path).encode() if os.path.islink(path) else open(path, "rb").read()))
print(total.hexdigest(), flush=True)
"""
FILES = {"sum.py": SUM, ".gitignore": "data/\n"}


@contextlib.contextmanager
def place(w, paths=("data/small",), **more):
    files = {**FILES, **more.pop("files", {})}
    with site(w, files=files, keys={"data": list(paths)}, data=dict.fromkeys(paths, "sync"), **more) as s:
        for path in paths:
            w.write(f"{path}/a.txt", "one\n")
            w.write(f"{path}/sub/b's file", "two\n")
            w.write(f"{path}/.gitignore", "*\n")
            os.symlink("../a.txt", w.tree / path / "sub/link")
        yield s


def summed(w, *paths):
    return subprocess.run(["python3", "sum.py", *paths], cwd=w.tree, check=True, capture_output=True, text=True).stdout.strip()


def seen(s, run, *paths):
    """What the program has read is what is here."""
    assert s.ended(run)["state"] == "succeeded", s.why(run)
    assert s.output(run).strip().splitlines()[-1] == summed(s.w, *paths), s.output(run)


def layers(s, run, role="base"):
    return [layer["digest"] for layer in s.w.show(run)["image"]["layers"] if layer["role"] == role]


def test_data_is_sent_once_and_lies_below_the_code(w):
    with place(w) as s:
        look = ("--", "python3", "sum.py", "data/small")
        first = s.submit(*look)
        assert "data: data/small (4 files" in s.said and " sent in 1 layer" in s.said, s.said
        seen(s, first, "data/small")
        w.write("sum.py", SUM + "\n")
        again = s.submit(*look)
        assert "data:" not in s.said, s.said
        seen(s, again, "data/small")
        assert layers(s, again) == layers(s, first) and layers(s, again, "delta"), w.show(again)["image"]
        named = w.show(first)["data"]["data/small"]
        assert named.startswith("sha256:") and w.show(again)["data"]["data/small"] == named
        assert named[:20] in w.ok("show", first).out, w.ok("show", first).out
        w.write("data/small/a.txt", "other\n")
        changed = s.submit(*look)
        assert " sent in 1 layer" in s.said, s.said
        seen(s, changed, "data/small")
        assert w.show(changed)["data"]["data/small"] != named and len(layers(s, changed)) == len(layers(s, first))
        assert layers(s, changed)[:-1] == layers(s, first)[:-1]
        facts = json.loads(w.ok("diff", "--json", first, changed).out)["facts"]
        assert facts["data"] == {"a": {"data/small": named}, "b": w.show(changed)["data"]}, facts
        assert "data" not in json.loads(w.ok("diff", "--json", first, again).out)["facts"]


def test_another_machine_and_a_restart_have_the_same(w):
    with place(w, paths=("data/small", "in/other")) as s:
        look = ("--", "python3", "sum.py", "data/small", "in/other")
        first = s.submit(*look)
        seen(s, first, "data/small", "in/other")
        other = dict(w.env)
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            (w.dir / f"other-{name}").mkdir()
            other[name] = str(w.dir / f"other-{name}")
        w.ok("config", "trust", "--yes", env=other)
        done = w.ok("submit", "-d", "--json", *look, env=other)
        assert "data:" not in done.err, done.err
        assert [x["digest"] for x in json.loads(done.out)["image"]["layers"]] == [x["digest"] for x in w.show(first)["image"]["layers"]]
        assert json.loads(done.out)["data"] == w.show(first)["data"], done.out
        expected = summed(w, "data/small", "in/other")
        failed = s.submit("--", "sh", "-c", "python3 sum.py data/small in/other; exit 3")
        assert s.ended(failed)["state"] == "failed"
        shutil.rmtree(w.tree / "data")
        w.ok("restart", failed)
        wait_for(lambda: len(w.show(failed)["attempts"]) == 2 and w.show(failed)["state"] == "failed", "the second attempt", 60)
        assert w.ok("logs", failed).out.split() == [expected], w.ok("logs", failed)
        same = s.submit("--from", first)
        assert s.ended(same)["state"] == "succeeded" and s.output(same).split()[-1] == expected, s.why(same)
        assert w.show(same)["data"] == w.show(first)["data"]


def test_the_restricted_level_and_a_sweep(w):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with place(w, labels=labels, files={"data/small/tracked.txt": "tracked"}) as s:
        w.ok("sweep", "-d", "--over", "top=data/small,./data/small,data//small", "--", "python3", "sum.py", "{top}")
        runs = [r["id"] for r in w.runs()]
        assert len(runs) == 3
        for run in runs:
            assert s.ended(run)["state"] == "succeeded", s.why(run)
            assert w.ok("logs", run).out.strip().splitlines()[-1] == summed(w, "data/small"), w.ok("logs", run)


def test_what_cannot_go_is_refused(w):
    with place(w) as s:
        run = ("submit", "-d", "--", "true")
        preview = w.ok("submit", "--dry-run", "--", "true")
        assert "data: data/small (4 files" in preview.out + preview.err, preview
        shutil.move(w.tree / "data/small", w.tree / "data/away")
        for words in (run, ("submit", "--dry-run", "--", "true")):
            failed = w.run(*words)
            assert failed.rc != 0 and "data/small is not a directory on this machine" in failed.err, failed
        shutil.move(w.tree / "data/away", w.tree / "data/small")
        s.configure(registry="none")
        failed = w.run(*run)
        assert failed.rc != 0 and "goes to the nodes by a registry (sync), and target k has none" in failed.err, failed
        assert not w.runs() and not s.jobs()


def test_data_that_changes_is_sent_as_it_was_at_one_moment_or_not_at_all(w):
    with place(w) as s:
        path, over = w.tree / "data/small/moving", threading.Event()

        def write():
            while not over.is_set():
                path.write_bytes(random.randbytes(3 << 20))
        writer = threading.Thread(target=write)
        writer.start()
        try:
            done = w.run("submit", "-d", "--", "python3", "-c", "import os; print(os.path.getsize('data/small/moving'))")
        finally:
            over.set()
            writer.join()
        assert done.rc == 0 or "data/small" in done.err and "chang" in done.err, done
        if done.rc:
            assert not w.runs() and not s.jobs()
        seen(s, s.submit("--", "python3", "sum.py", "data/small"), "data/small")


def test_killed_while_it_is_sent_it_goes_on(w):
    kills = 6 if not os.environ.get("DLRUN_TESTS") == "all" else 40
    with place(w) as s:
        random.seed(7)
        for i in range(24):
            (w.tree / f"data/small/{i:03}").write_bytes(random.randbytes(3 << 20))
        for i in range(kills):
            process = subprocess.Popen([w.dlrun, "submit", "-d", "--", "python3", "sum.py", "data/small"], cwd=w.tree, env=w.env,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.1 + 0.15 * i)
            process.send_signal(signal.SIGKILL)
            process.wait()
        seen(s, s.submit("--", "python3", "sum.py", "data/small"), "data/small")
        for run in w.runs():
            s.w.run("ps")
            assert run["state"] in ("succeeded", "failed", "lost", "preparing", "queued", "running", "starting"), run


def test_a_run_that_is_kept_here_takes_its_data_along_later(w):
    w.env.pop("DLRUN_OFFLINE", None)
    with place(w) as s, FaultProxy(s.cluster.address) as api:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        api.set(refuse=True)
        held = s.submit("--", "python3", "sum.py", "data/small")
        api.set(refuse=False)
        w.ok("queue", "--send")
        seen(s, held, "data/small")
        assert w.show(held)["data"]["data/small"].startswith("sha256:"), w.show(held)
        same = s.submit("--from", held)
        seen(s, same, "data/small")
        assert w.show(same)["data"] == w.show(held)["data"], w.show(same)
        api.set(refuse=True)
        w.ok("sweep", "-d", "--over", "top=data/small,./data/small", "--", "python3", "sum.py", "{top}")
        api.set(refuse=False)
        w.ok("queue", "--send")
        runs = [run["id"] for run in w.runs() if run["id"] not in (held, same)]
        assert len(runs) == 2, w.runs()
        for run in runs:
            assert s.ended(run)["state"] == "succeeded", s.why(run)
            assert w.ok("logs", run).out.strip().splitlines()[-1] == summed(w, "data/small"), w.ok("logs", run)
            assert w.show(run)["data"] == w.show(held)["data"], w.show(run)
        last = s.submit("--from", runs[0])
        assert s.ended(last)["state"] == "succeeded" and w.show(last)["data"] == w.show(held)["data"], w.show(last)
        last = s.submit("--from", runs[1])
        assert s.ended(last)["state"] == "succeeded" and w.show(last)["data"] == w.show(held)["data"], w.show(last)


if __name__ == "__main__":
    main()
