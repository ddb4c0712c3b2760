#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a program leaves in its tree is a result of its run on this machine, without configuration."""

import os
import signal
import subprocess

from harness import *  # noqa: F403

WRITES = """
mkdir -p logs/v0 __pycache__ .mypy_cache
echo model > model.pt
echo e > logs/v0/events.out.tfevents.1.host
echo c > __pycache__/x.pyc
echo c > .mypy_cache/x
echo changed > conf.yaml
"""
WRITTEN = ["conf.yaml", "logs/v0/events.out.tfevents.1.host", "model.pt"]


def outputs_of(w, run):
    return w.state / "runs" / run / "outputs"


def files(root):
    return sorted(os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)


def submit(w, *words, options=()):
    return w.ok("submit", "-d", *options, "--", *words).out.strip()


def ended(w, run):
    w.run("wait", run)
    return w.show(run)


def tree_of(w, run, attempt=1):
    return w.state / "runs" / run / "attempts" / str(attempt) / "tree"


def test_however_it_ends(w):
    w.repo({"work.sh": WRITES + 'case $1 in exit) exit $2;; kill) kill -9 $$;; esac\ntouch "$UP"\nwhile :; do sleep 0.05; done\n',
            "conf.yaml": "as it was\n", "code.py": "1\n"})
    ends = {"0": ("succeeded", ["exit", "0"], []), "5": ("failed", ["exit", "5"], []), "killed": ("failed", ["kill"], []),
            "limit": ("failed", ["stay"], ["--timeout", "2s", "--grace", "100ms"]), "cancelled": ("cancelled", ["stay"], [])}
    for name, (state, words, options) in ends.items():
        up = w.dir / f"up-{name}"
        run = submit(w, "sh", "work.sh", *words, options=["-e", f"UP={up}", *options])
        if name == "cancelled":
            wait_for(up.exists, "the program")
            w.ok("cancel", run)
        doc = ended(w, run)
        assert doc["state"] == state, (name, doc)
        assert files(outputs_of(w, run)) == WRITTEN, (name, files(outputs_of(w, run)))
        assert (outputs_of(w, run) / "conf.yaml").read_text() == "changed\n"
        assert os.path.samefile(outputs_of(w, run) / "model.pt", tree_of(w, run) / "model.pt"), "a copy"
        w.ok("fetch", run, "-o", f"here-{name}")
        assert [f for f in files(w.tree / f"here-{name}") if not f.startswith(".dlrun")] == WRITTEN


def test_names_and_kinds(w):
    """Whatever a program makes is taken as it is, and nothing outside of its tree is touched."""
    w.repo({"work.py": """
import os, socket
os.makedirs("a\\nb/-x/\\\\")
open("a\\nb/-x/\\\\/\\x1b[31m", "w").write("odd")
os.symlink("/etc", "etc"); os.symlink("nowhere", "dangling")
os.mkfifo("pipe"); socket.socket(socket.AF_UNIX).bind("sock"); os.mkdir("empty")
with open("sparse", "wb") as f:
    f.truncate(4 << 30)
os.makedirs("private"); open("private/x", "w").write("x"); os.chmod("private", 0)
os.makedirs("many")
for i in range(5000):
    open(f"many/{i}", "w").write(str(i))
os.makedirs(os.environ["DLRUN_OUTPUT_DIR"] + "/own")
open(os.environ["DLRUN_OUTPUT_DIR"] + "/own/model.pt", "w").write("own")
os.makedirs("own"); open("own/model.pt", "w").write("tree")
os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", "exec 3>grows; echo 1 >&3; trap '' TERM; sleep 1; echo 2 >&3")
while not os.path.exists("grows") or not os.path.getsize("grows"):
    pass
"""})
    before = sorted(os.listdir("/etc"))
    w.as_nobody()
    run = submit(w, "python3", "work.py")
    assert ended(w, run)["state"] == "succeeded", w.ok("logs", run).out
    out = outputs_of(w, run)
    assert (out / "a\nb/-x/\\/\x1b[31m").read_text() == "odd"
    assert os.readlink(out / "etc") == "/etc" and os.readlink(out / "dangling") == "nowhere"
    assert not any((out / name).exists() for name in ("pipe", "sock", "empty", "work.py"))
    assert (out / "sparse").stat().st_size == 4 << 30 and (out / "sparse").stat().st_blocks < 1000
    assert len(os.listdir(out / "many")) == 5000 and (out / "many/4999").read_text() == "4999"
    assert (out / "own/model.pt").read_text() == "own" and (out / "own/model.pt.tree").read_text() == "tree"
    assert os.path.samefile(out / "grows", tree_of(w, run) / "grows")
    w.ok("fetch", run, "sparse", "-o", "here")
    assert (w.tree / "here/sparse").stat().st_size == 4 << 30 and (w.tree / "here/sparse").stat().st_blocks < 1000
    warnings = w.show(run)["warnings"]
    assert any("own/model.pt" in text for text in warnings), warnings
    assert os.getuid() != 0 and w.user is None or any("private" in text for text in warnings), warnings
    assert sorted(os.listdir("/etc")) == before
    os.chmod(tree_of(w, run) / "private", 0o700)


def test_what_the_configuration_says(w):
    write = "mkdir -p cache out; echo 1 > a.tmp; echo 1 > cache/x; echo 1 > out/a.bin; echo 1 > out/b; head -c 9000 /dev/zero > big"
    w.repo({"dlrun.yaml": "collect: {exclude: ['*.tmp', cache/, out/*.bin]}\n"})
    run = submit(w, "sh", "-c", write)
    ended(w, run)
    assert files(outputs_of(w, run)) == ["big", "out/b"]
    w.write("dlrun.yaml", "collect: none\n")
    run = submit(w, "sh", "-c", write)
    assert ended(w, run)["state"] == "succeeded" and files(outputs_of(w, run)) == []
    w.write("dlrun.yaml", "collect: {size: 8Ki}\n")
    run = submit(w, "sh", "-c", "head -c 9000 /dev/zero > big; sleep 0.1; echo 1 > late")
    warnings = ended(w, run)["warnings"]
    assert files(outputs_of(w, run)) == ["late"]
    assert any("big" in text and "collect.size" in text for text in warnings), warnings
    w.write("dlrun.yaml", "collect: {exclude: [/abs]}\n")
    w.refused("submit", "--", "true", id="config", rc=2, says=["/abs"])


def test_data_and_outputs_are_not_duplicated(w):
    w.repo({"dlrun.yaml": "data: [data]\noutputs: [out]\n"}, commit=False)
    w.write(".gitignore", "data\n")
    w.write("data/x", "input")
    run = submit(w, "sh", "-c", "echo 1 > out/model; echo 2 > data/new; echo 3 > top; ln -s data/x link")
    assert ended(w, run)["state"] == "succeeded", w.ok("logs", run).out
    assert files(outputs_of(w, run)) == ["link", "out/model", "top"]
    assert files(w.state / "runs" / run / "collected") == ["link", "top"]


RESUMES = """
import os, sys
step = int(open("ckpt/last").read()) if os.path.exists("ckpt/last") else 0
print("from", step, open("conf").read(), flush=True)
os.makedirs("ckpt", exist_ok=True)
open("ckpt/tmp", "w").write(str(step + 1)); os.rename("ckpt/tmp", "ckpt/last")
open("conf", "w").write("changed")
if os.path.exists("old"):
    os.unlink("old")
elif step == 0:
    open("old", "w").write("x")
sys.exit(step < 2)
"""


def test_the_next_attempt_goes_on(w):
    w.repo({"train.py": RESUMES, "conf": "snapshot"})
    result = w.run("submit", "-f", "--retries", "1", "--", "python3", "train.py")
    assert result.rc == 1, result
    run = w.show()["id"]
    w.ok("restart", run)
    assert ended(w, run)["state"] == "succeeded"
    assert w.ok("logs", run).out.splitlines() == ["from 2 changed"]
    assert files(outputs_of(w, run)) == ["ckpt/last", "conf"], "what the program removed is gone"
    assert (outputs_of(w, run) / "ckpt/last").read_text() == "3"
    result = w.run("submit", "-f", "--from", run)
    assert result.rc == 1 and "from 0 snapshot" in result.out, "a new run starts clean"


def test_seen_while_it_runs(w):
    w.repo({"train.sh": "mkdir -p deep/runs\necho x > deep/runs/events.out.tfevents.1.h\necho '{\"lr\": 0.5}' > args.json\necho 1 > model\n"
                        "touch \"$UP\"\nwhile [ ! -e \"$STOP\" ]; do sleep 0.05; done\nrm model\n"})
    up, stop = w.dir / "up", w.dir / "stop"
    run = submit(w, "sh", "train.sh", options=["-e", f"UP={up}", "-e", f"STOP={stop}"])
    wait_for(up.exists, "the program")
    out = outputs_of(w, run)
    wait_for(lambda: files(out) == ["args.json", "deep/runs/events.out.tfevents.1.h"], "event files while it runs")
    w.ok("fetch", run, "-o", "here")
    assert (w.tree / "here/model").read_text() == "1\n"
    stop.touch()
    assert ended(w, run)["state"] == "succeeded"
    assert files(out) == ["args.json", "deep/runs/events.out.tfevents.1.h"]


def traced(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return "TracerPid:\t0\n" not in file.read()
    except OSError:
        return True


def test_sigkill_while_collecting(w):
    """The supervisor is killed at its Nth link; the next command has all of it."""
    needs("strace")
    w.repo({"work.sh": 'touch "$UP"\nuntil test -e "$GO"; do sleep 0.01; done\nfor i in 1 2 3 4 5 6; do echo $i > f$i; done\n'})
    for n in (1, 2, 5, 12):
        up, go = w.dir / f"up{n}", w.dir / f"go{n}"
        run = submit(w, "sh", "work.sh", options=["-e", f"UP={up}", "-e", f"GO={go}"])
        wait_for(up.exists, "the program")
        pid = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())["supervisor"]["pid"]
        tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-p", str(pid), "-e", "trace=linkat", "-e",
                                   f"inject=linkat:signal=SIGKILL:when={n}"], stderr=subprocess.PIPE)
        wait_for(lambda: traced(pid) or tracer.poll() is not None, "traced")
        if tracer.poll():
            raise Skip("strace cannot attach here")
        go.touch()
        doc = ended(w, run)
        tracer.terminate()
        tracer.wait()
        assert doc["state"] == "lost", (n, doc["state"])
        assert files(outputs_of(w, run)) == [f"f{i}" for i in range(1, 7)], (n, files(outputs_of(w, run)))
        assert files(w.state / "runs" / run / "collected") == [f"f{i}" for i in range(1, 7)]


def test_disk_full_while_collecting(w):
    """Nothing is lost, and the next command goes on. On a tmpfs each link takes one of its inodes."""
    there = w.dir / "small"
    there.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=400", "tmpfs", str(there)], capture_output=True).returncode:
        raise Skip("cannot mount a tmpfs here")
    try:
        w.env["XDG_STATE_HOME"] = str(there)
        w.repo()
        run = submit(w, "sh", "-c", "for i in $(seq 150); do echo $i > f$i; done")
        attempt = there / "dlrun/runs" / run / "attempts/1"
        wait_for((attempt / "exit.json").exists, "the end is written all the same")
        assert len(files(outputs_of(w, run))) < 150
        assert subprocess.run(["mount", "-o", "remount,nr_inodes=4000", str(there)]).returncode == 0
        assert ended(w, run)["state"] == "succeeded"
        w.ok("fetch", run, "-o", "here")
        assert len([f for f in files(w.tree / "here") if f.startswith("f")]) == 150
        assert json.loads((attempt / "collected.json").read_text())["complete"]
    finally:
        subprocess.run(["umount", "-l", str(there)])


def test_trees_go_but_no_results(w):
    """A tree whose results nobody has collected is collected from before gc removes it."""
    w.repo()
    run = submit(w, "sh", "-c", "echo 1 > model")
    ended(w, run)
    attempt = w.state / "runs" / run / "attempts/1"
    (attempt / "collected.json").unlink()
    (outputs_of(w, run) / "model").unlink()
    (w.state / "runs" / run / "collected/model").unlink()
    other = submit(w, "sh", "-c", "echo 1 > model")
    ended(w, other)
    report = w.state / "runs" / other / "attempts/1/collected.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "unread": 1}))
    w.ok("gc", "--keep", "0s")
    assert not (attempt / "tree").exists() and files(outputs_of(w, run)) == ["model"]
    assert tree_of(w, other).exists(), "a file that could not be collected is only there"


if __name__ == "__main__":
    main()
