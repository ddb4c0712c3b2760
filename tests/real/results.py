#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is seen of runs from beside them: their results here, lists of them, and why one failed."""

import os
import shlex
import shutil
import signal
import subprocess

from harness import *  # noqa: F403


def submit(w, *words, options=(), **more):
    run = w.ok("submit", "-d", *options, "--", *words, **more).out.strip()
    return run


def ended(w, run="@"):
    w.run("wait", run)
    return w.show(run)


def fetch(w, *args, **more):
    return json.loads(w.ok("fetch", "--json", *args, **more).out)


def outputs_of(w, run):
    return w.state / "runs" / run / "outputs"


# --- fetch


def test_fetch_while_it_runs_and_after(w):
    """A program appends and replaces; each fetch is of a moment, and the last one is the whole."""
    w.repo({"work.py": """
import os, time
out = os.environ["DLRUN_OUTPUT_DIR"]
log = open(f"{out}/log.txt", "a")
step = 0
while not os.path.exists(os.environ["STOP"]):
    step += 1
    log.write(f"{step:09d}\\n"); log.flush()
    with open(f"{out}/tmp", "w") as f:
        f.write(f"{step:09d}" * 10000)
    os.rename(f"{out}/tmp", f"{out}/checkpoint")
"""})
    stop = w.dir / "stop"
    run = submit(w, "python3", "work.py", options=["-e", f"STOP={stop}"])
    wait_for(lambda: (outputs_of(w, run) / "checkpoint").exists(), "the first checkpoint")
    there = w.tree / run
    sizes = []
    for _ in range(15):
        done = fetch(w, run)
        assert done["schema"] == "dlrun/fetch/v1" and done["run"] == run and done["dir"] == str(there)
        text = (there / "checkpoint").read_text()
        # tmp may have been renamed between the look at the directory and at the file.
        assert len(text) == 90000 and text == text[:9] * 10000, "a checkpoint of two steps"
        log = (there / "log.txt").read_text()
        lines = log.split("\n")
        assert all(int(line) == n + 1 for n, line in enumerate(lines[:-1])), "the log is not whole"
        sizes.append(len(log))
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    stop.touch()
    ended(w, run)
    fetch(w, run)
    for name in ("log.txt", "checkpoint"):
        assert (there / name).read_bytes() == (outputs_of(w, run) / name).read_bytes()
    again = fetch(w, run)
    assert again["files"] == 0 and again["bytes"] == 0 and again["skipped"] >= 2, again
    assert w.ok("submit", "--dry-run", "--json", "--", "true").out.count(run) == 0, "part of the next snapshot"


def test_fetch_writes_into_no_repository(w):
    """Results that would be hooks, under each name of .git; and the modes are those that umask leaves."""
    w.repo({"work.sh": """
cd "$DLRUN_OUTPUT_DIR"
for dir in .git .GIT git~1 '.git ' sub/.git .gitx; do
    mkdir -p "$dir/hooks"
    printf '#!/bin/sh\\ntouch %s/ran\\n' "$1" >"$dir/hooks/post-commit"
    chmod 777 "$dir" "$dir/hooks" "$dir/hooks/post-commit"
done
ln -s .git/hooks link
echo x >wide; chmod 6777 wide
"""})
    run = submit(w, "sh", "work.sh", w.dir)
    ended(w, run)
    hooks = sorted(p.name for p in (w.tree / ".git/hooks").iterdir()) if (w.tree / ".git/hooks").exists() else []
    for mask, options in ((0o027, ()), (0o077, ("--force",))):
        old = os.umask(mask)
        try:
            done = fetch(w, run, "-o", ".", *options)
        finally:
            os.umask(old)
        assert done["in_git"] == 5, done
    assert not (w.tree / ".GIT").exists() and not (w.tree / "git~1").exists() and not (w.tree / "sub/.git").exists()
    assert (sorted(p.name for p in (w.tree / ".git/hooks").iterdir()) if hooks else []) == hooks
    assert (w.tree / "wide").stat().st_mode & 0o7777 == 0o750
    assert (w.tree / ".gitx/hooks/post-commit").stat().st_mode & 0o7777 == 0o750
    assert (w.tree / ".gitx/hooks").stat().st_mode & 0o7777 == 0o750
    w.git("add", "work.sh")
    w.git("commit", "-q", "--allow-empty", "-m", "after")
    assert not (w.dir / "ran").exists()
    for there in (".git/hooks", ".git", "sub/.git/x"):
        said = w.run("fetch", run, "-o", there)
        assert said.rc == 2 and ".git" in said.err, said
    (w.tree / "way").symlink_to(".git/hooks")
    assert w.run("fetch", run, "-o", "way").rc == 2
    assert (sorted(p.name for p in (w.tree / ".git/hooks").iterdir()) if hooks else []) == hooks


def test_fetch_follows(w):
    """What comes and changes until the end, and what was written last; a name with a newline; nothing at first."""
    w.repo({"work.py": """
import os, time
def wait(n):
    while not os.path.exists(os.environ["GO"] + str(n)): time.sleep(0.05)
wait(1)
os.chdir(os.environ["DLRUN_OUTPUT_DIR"])
log = open("log", "w"); log.write("1"); log.flush()
wait(2)
log.write("2"); log.flush(); open("a\\nb", "w").write("x")
wait(3)
log.write("3"); log.close(); open("last", "w").write("z")
"""})
    go = w.dir / "go"
    run = submit(w, "python3", "work.py", options=["-e", f"GO={go}"])
    wait_for(lambda: w.show(run)["state"] == "running", "the program")
    assert w.ok("fetch", run).err == f"{run} has no results yet\n" and not (w.tree / run).exists()
    follower = subprocess.Popen([w.dlrun, "fetch", "-q", "--follow", run, "-o", "here"], cwd=w.tree, env=w.env)
    text = lambda name: (w.tree / "here" / name).read_text() if (w.tree / "here" / name).exists() else None
    for step, (name, want) in enumerate([("log", "1"), ("a\nb", "x")], 1):
        (w.dir / f"go{step}").touch()
        wait_for(lambda: text(name) == want, f"{name!r} of step {step}")
        assert follower.poll() is None
    wait_for(lambda: text("log") == "12", "what was appended")
    (w.dir / "go3").touch()
    assert follower.wait(timeout=60) == 0
    assert text("log") == "123" and text("last") == "z"
    names = [f["path"] for f in json.loads(w.ok("fetch", "--list", "--json", run).out)["files"]]
    assert names == ["a\nb", "last", "log"], names


GROWING = """
import os, random
r = random.Random(7)
os.chdir(os.environ["DLRUN_OUTPUT_DIR"])
text = lambda n: "".join(r.choices("0123456789abcdef\\n", k=n)).encode()
times = iter(range(1700000000, 1800000000))
def put(name, data, mode="ab"):
    with open(name, mode) as f: f.write(data)
    old(name)
# Of the last moment it might still change unseen.
def old(name):
    t = next(times)
    os.utime(name, (t, t))
def step(i):
    if i == 0:
        for name in ("log.txt", "short.out"): put(name, text(2 << 20))
        put("new.log", text(200 << 10))
        put("rows.csv", b"epoch,1\\n" + text(200 << 10))
        for name, n in (("events.out.tfevents.1.a", 2048), ("data.bin", 100)): put(name, r.randbytes(n << 10) + bytes(n << 9))
    elif i == 1:
        for name in ("log.txt", "short.out"): put(name, text(100 << 10))
        put("new.log", text(300 << 10), "wb")
        put("events.out.tfevents.1.a", bytes(50 << 10) + r.randbytes(50 << 10))
        put("data.bin", r.randbytes(100 << 10))
        put("rows.csv", text(100 << 10))
        with open("rows.csv", "r+b") as f: f.write(b"epoch,2")
        old("rows.csv")
    else:
        put("log.txt", text(70 << 10))
        put("short.out", text(1 << 20), "wb")
"""


def test_what_has_grown_comes_alone(w):
    """Of logs and event files; what was written anew comes as a whole, and all of it is right."""
    w.repo({"work.py": GROWING + """
import time
for i in range(3):
    step(i)
    print("step", i, flush=True)
    while not os.path.exists(os.environ["GO"] + str(i)): time.sleep(0.05)
"""})
    run = submit(w, "python3", "work.py", options=["-e", f"GO={w.dir / 'go'}"])
    outputs = w.state / "runs" / run / "outputs"
    whole = {"new.log", "data.bin", "rows.csv"}
    for i in range(3):
        wait_for(lambda: f"step {i}\n" in w.ok("logs", run).out, f"step {i}")
        sizes = {p.name: p.stat().st_size for p in outputs.iterdir()}
        got = fetch(w, run, "-o", "here")
        for path in outputs.iterdir():
            assert (w.tree / "here" / path.name).read_bytes() == path.read_bytes(), (i, path)
        part = 64 << 10
        wanted = {0: sum(sizes.values()), 1: sum(sizes[n] for n in whole) + 3 * (part + (100 << 10)),
                  2: part + (70 << 10) + (1 << 20)}[i]
        # Files of the last moment may come once more: of these only what is whole is more than a part.
        again = 6 * part + sum(sizes[n] for n in whole)
        assert wanted <= got["bytes"] <= wanted + again and not list((w.tree / "here/.dlrun-fetch").glob("new*")), (i, got, wanted)
        (w.dir / f"go{i}").touch()
    assert ended(w)["state"] == "succeeded"
    # What the user has changed here is no beginning of it.
    put = w.tree / "here/log.txt"
    put.write_bytes(put.read_bytes()[:-10])
    assert w.run("fetch", run, "-o", "here").rc == 1
    assert fetch(w, "--force", run, "-o", "here")["files"] >= 1 and put.read_bytes() == (outputs / "log.txt").read_bytes()


def test_params_that_frameworks_write(w):
    """Wherever they lie in the results, they complete those of the command."""
    w.repo({"work.py": """
import json, os, sys
os.chdir(os.environ["DLRUN_OUTPUT_DIR"])
os.makedirs("lightning_logs/version_0"); os.makedirs("outputs/2026-01-01/12-00-00/.hydra"); os.mkdir("out")
open("lightning_logs/version_0/hparams.yaml", "w").write(
    "lr: 5\\nwidth: 64\\nopt: !!python/name:torch.optim.adam.Adam ''\\nbetas: !!python/tuple\\n- 0.9\\n- 0.99\\n")
open("outputs/2026-01-01/12-00-00/.hydra/config.yaml", "w").write("db:\\n  user: me\\nwidth: 1\\n")
json.dump({"seed": 3}, open("out/args.json", "w"))
"""})
    run = submit(w, "python3", "work.py", "--lr", "0.1")
    assert ended(w)["params"] == {"lr": "0.1", "seed": 3, "width": 64, "betas": "[0.9,0.99]", "db.user": "me"}
    results = w.show(run)["results"]
    assert results["files"] == 3 and [e["path"] for e in results["entries"]] == ["lightning_logs/", "out/", "outputs/"]


def test_killed_fetches(w):
    """A fetch that is killed leaves no half of a file under its name, and the next one goes on."""
    w.repo({"work.py": """
import os
out = os.environ["DLRUN_OUTPUT_DIR"]
for i in range(40):
    with open(f"{out}/f{i}", "wb") as f:
        f.write(bytes([i]) * 4_000_000)
"""})
    run = submit(w, "python3", "work.py")
    ended(w, run)
    there = w.tree / "here"
    kills = 0
    for n in range(1, 12):
        child = subprocess.Popen([w.dlrun, "fetch", "-q", run, "-o", "here"], cwd=w.tree, env=w.env)
        wait_for(lambda: there.is_dir() and len(list(there.glob("f*"))) >= 3 * n or child.poll() is not None, "files")
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        for path in there.glob("f*"):
            data = path.read_bytes()
            assert data == bytes([int(path.name[1:])]) * 4_000_000, f"{path.name} is not whole"
    assert kills >= 3, kills
    fetch(w, run, "-o", "here")
    assert len(list(there.glob("f*"))) == 40
    assert sorted(p.name for p in (there / ".dlrun-fetch").iterdir()) == ["lock", "seen"]


def test_interrupted_fetch(w):
    """The next fetch goes on in the middle of the file; one that was changed since begins anew."""
    w.repo({"work.py": """
import os
with open(os.environ["DLRUN_OUTPUT_DIR"] + "/big", "wb") as f:
    for i in range(100):
        f.write(bytes([i]) * 1000)
        f.seek(1 << 24, 1)
    f.write(b"end")
"""})
    run = submit(w, "python3", "work.py")
    ended(w, run)
    big, here = outputs_of(w, run) / "big", w.tree / "here"
    size = big.stat().st_size

    def interrupt(sig):
        before = sum(p.stat().st_size for p in here.glob(".dlrun-fetch/part-*"))
        child = subprocess.Popen([w.dlrun, "fetch", run, "-o", "here"], cwd=w.tree, env=w.env, stderr=subprocess.PIPE)
        wait_for(lambda: sum(p.stat().st_size for p in here.glob(".dlrun-fetch/part-*")) > before + (50 << 20) or child.poll() is not None,
                 "the copy")
        child.send_signal(sig)
        _, err = child.communicate(timeout=20)
        assert child.returncode == 0 or not (here / "big").exists()
        return child.returncode, err.decode()

    # A fetch may be over before we get a turn.
    for _ in range(3):
        (rc, err), (killed, _) = interrupt(signal.SIGINT), interrupt(signal.SIGKILL)
        if rc and killed:
            break
        shutil.rmtree(here)
    assert rc == 130, err
    check_error_form(err, "cancelled")
    assert killed == -signal.SIGKILL
    part = next(here.glob(".dlrun-fetch/part-*")).stat().st_size
    assert part >= 100 << 20, [(p.name, p.stat().st_size) for p in here.glob(".dlrun-fetch/*")]
    done = fetch(w, run, "-o", "here")
    assert done["files"] == 1 and done["bytes"] == size - part, done
    assert subprocess.run(["cmp", big, here / "big"]).returncode == 0
    assert sorted(p.name for p in (here / ".dlrun-fetch").iterdir()) == ["lock", "seen"]
    for _ in range(3):
        os.remove(here / "big")
        killed, _ = interrupt(signal.SIGKILL)
        if killed:
            break
    assert killed == -signal.SIGKILL
    os.utime(big, (1, 1))
    assert fetch(w, run, "-o", "here")["bytes"] == size
    assert sorted(p.name for p in (here / ".dlrun-fetch").iterdir()) == ["lock", "seen"]


def test_two_fetches_at_once(w):
    w.repo({"work.sh": "for i in $(seq 300); do echo $i >$DLRUN_OUTPUT_DIR/$i; done\n"})
    run = submit(w, "sh", "work.sh")
    ended(w, run)
    children = [subprocess.Popen([w.dlrun, "fetch", "--json", run], cwd=w.tree, env=w.env, stdout=subprocess.PIPE)
                for _ in range(4)]
    done = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    assert sum(d["files"] for d in done) == 300 and sum(d["skipped"] for d in done) == 900, done


def test_hostile_results(w):
    """What a program has written never leads out of DIR, now or in the next fetch."""
    w.repo({"evil.py": """
import os
out = os.environ["DLRUN_OUTPUT_DIR"]
os.chdir(out)
home = os.environ["VICTIM"]
if not os.path.exists("first"):
    os.symlink(home, "dir")
    os.symlink(f"{home}/precious", "file")
    os.symlink("../" * 30 + home, "up")
    os.symlink("loop", "loop")
    os.mkfifo("pipe")
    os.mkdir(".dlrun-fetch")
    open(".dlrun-fetch/seen", "w").write("x")
    open("a\\nb\\033[2J", "w").write("x")
    open("suid", "w").write("x"); os.chmod("suid", 0o6777)
"""})
    victim = w.dir / "victim"
    victim.mkdir()
    (victim / "precious").write_text("keep")
    run = submit(w, "python3", "evil.py", options=["-e", f"VICTIM={victim}"])
    ended(w, run)
    before = hash_dir(victim)
    there, out = w.tree / "here", outputs_of(w, run)
    first = w.run("fetch", run, "-o", "here")
    assert first.rc == 6 or first.rc == 1, first
    check_error_form(first.err, "io.read")
    assert os.readlink(there / "dir") == str(victim) and not (there / "pipe").exists()
    assert (there / "suid").stat().st_mode & 0o7777 == 0o755
    for name in ("dir", "file", "up"):
        (out / name).unlink()
    for name in ("dir", "up"):
        (out / name).mkdir()
        (out / name / "precious").write_text("evil")
    (out / "file").write_text("evil")
    w.run("fetch", run, "-o", "here")
    assert hash_dir(victim) == before
    assert (there / "dir/precious").read_text() == "evil" and not (there / "dir").is_symlink()
    assert (there / "file").read_text() == "evil"


def test_full_disk(w):
    """The error says so, and what was fetched is whole."""
    if not os.access("/dev/full", os.W_OK) or os.geteuid() != 0:
        raise Skip("needs root to mount a small file system")
    small = w.dir / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], capture_output=True).returncode:
        raise Skip("cannot mount")
    try:
        w.repo({"work.sh": "cd $DLRUN_OUTPUT_DIR; echo a >a; dd if=/dev/urandom of=b bs=1M count=5 2>/dev/null\n"})
        run = submit(w, "sh", "work.sh")
        ended(w, run)
        result = w.run("fetch", run, "-o", str(small / "here"))
        assert result.rc == 1, result
        check_error_form(result.err, "io.full")
        assert (small / "here/a").read_text() == "a\n" and not (small / "here/b").exists()
    finally:
        subprocess.run(["umount", str(small)])


# --- why: what was left out


FAILURES = {
    "data/train.csv": ["cat", "data/train.csv"],
    "data/": ["python3", "-c", "open('data/deep/x.bin')"],
    "tools/gen.py": ["python3", "tools/gen.py"],
    "tools/": ["sh", "-c", "./tools/run.sh"],
    "app/_version.py": ["python3", "-c", "import app._version"],
    "conf.yaml": ["python3", "-c", "import os; open(os.path.join(os.getcwd(), 'conf.yaml'))"],
}


def test_programs_that_miss_what_was_left_out(w):
    """Real programs fail on ignored paths; the hint names one that is on the list, or nothing."""
    w.repo({".gitignore": "data/\n/tools/*\n_version.py\nconf.yaml\n", "app/__init__.py": "", "ok.txt": "x"})
    for name in ("data/train.csv", "data/deep/x.bin", "tools/gen.py", "tools/run.sh", "app/_version.py", "conf.yaml"):
        w.write(name, "x")
    for path, words in FAILURES.items():
        result = w.run("submit", "-f", "--", *words)
        assert result.rc in (1, 2, 126, 127), result
        named = re.search(r"hint: `(.*?)` is ignored by git and was excluded; add it to `data:` .* or `include:` ",
                          result.err)
        assert named, f"no hint: {words}: {result}"
        wanted = {"data/train.csv": "data/", "tools/": "tools/run.sh"}.get(path, path)
        assert named.group(1) == wanted, f"{words}: {named.group(1)}"
        why = json.loads(w.ok("why", "--json").out)
        assert f"`{wanted}`" in why["hint"], why
        assert f"`{wanted}`" in w.ok("show").out
    for words in (["cat", "missing.txt"], ["sh", "-c", "echo data/train.csv; exit 3"],
                  ["sh", "-c", "echo data/train.csv: No such file; exit 0"]):
        result = w.run("submit", "-f", "--", *words)
        assert "excluded; add" not in result.err + w.ok("why").out, result


def test_data_that_a_run_makes_anew(w):
    """A program that was started without its data and makes it again, as downloads do: said once, with the fix."""
    w.repo({".gitignore": "data/\nruns/\n", "work.sh": "mkdir -p data/MNIST runs; echo x >data/MNIST/raw; echo y >runs/log\n"})
    w.write("data/MNIST/raw", "x\n")
    w.write("runs/log", "old\n")
    done = w.run("submit", "-f", "--", "sh", "work.sh")
    assert done.rc == 0 and done.err.count("made data/ anew") == 1 and "`data: [data]`" in done.err, done.err
    assert any("made data/ anew" in text for text in w.show("@")["warnings"]) and "runs/" not in done.err.split("warning:")[1]
    w.write("dlrun.yaml", "data: [data]\n")
    done = w.run("submit", "-f", "--", "sh", "-c", "test -e data/MNIST/raw")
    assert done.rc == 0 and "anew" not in done.err, done.err


def test_no_hint_for_what_is_data_or_output(w):
    """A path that the run has all the same is never named."""
    w.repo({".gitignore": "data/\nruns/\n", "dlrun.yaml": "data: [data]\noutputs: [runs]\n", "x": "x"})
    w.write("data/a", "x")
    w.write("runs/b", "x")
    for words in (["cat", "data/none"], ["cat", "runs/none"]):
        result = w.run("submit", "-f", "--", *words)
        assert result.rc == 1 and "was excluded" not in result.err.split("error:")[1], result


def test_hint_of_the_same_code_again(w):
    w.repo({".gitignore": "data/\n", "x": "x"})
    w.write("data/a", "x")
    w.run("submit", "-f", "--", "true")
    result = w.run("submit", "-f", "--from", "@", "--", "cat", "data/a")
    assert "`data/` is ignored by git" in result.err, result
    # The tree may be gone: the list is kept with the run.
    subprocess.run(["rm", "-rf", str(w.tree / "data")], check=True)
    assert "`data/` is ignored by git" in w.ok("why").out


# --- ps


def test_ps_of_many_runs(w):
    """Filters agree with a filter over the records; sorting is by number."""
    w.repo({"x": "x"})
    for i in range(12):
        tags = [f"--tag=seed={i % 3}"] + (["--tag=paper"] if i % 2 else [])
        group = ["--group", "sweep"] if i < 8 else []
        ended(w, submit(w, "true", "--lr", str(10.0 ** (i - 6)), options=tags + group))
    docs = w.runs()
    assert len(docs) == 12

    def listed(*options):
        return [run["id"] for run in json.loads(w.ok("ps", "--json", *options).out)["runs"]]

    def wanted(test):
        return [d["id"] for d in docs if test(d)]

    assert listed("--tag", "paper") == wanted(lambda d: "paper" in d["tags"])
    assert listed("--tag", "seed=1", "--tag", "paper") == wanted(
        lambda d: d["tags"].get("seed") == "1" and "paper" in d["tags"])
    assert listed("--group", "sweep", "--tag", "seed=2") == wanted(
        lambda d: d["group"] == "sweep" and d["tags"]["seed"] == "2")
    by_lr = [d["id"] for d in sorted(docs, key=lambda d: float(d["params"]["lr"]))]
    assert listed("-a", "--sort", "params.lr") == by_lr
    assert listed("-a", "--sort", "-params.lr") == by_lr[::-1]
    first = docs[5]["times"]["submitted"]
    assert listed("--since", first) == wanted(lambda d: d["times"]["submitted"] >= first)
    rows = w.ok("ps", "-o", "id,params.lr,exit,metrics.loss").out.splitlines()
    assert rows[0].split() == ["ID", "params.lr", "EXIT", "metrics.loss"]
    assert [row.split() for row in rows[1:]] == [[d["id"], d["params"]["lr"], "0", "-"] for d in docs]


if __name__ == "__main__":
    main()
