#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs on this machine: from submit to the last line, and everything that may happen meanwhile."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time

from harness import *  # noqa: F403

DIGITS = Path(__file__).parents[2] / "examples/digits"


def submit(w, *words, options=(), **more):
    return w.ok("submit", "-d", *options, "--", *words, **more).out.strip()


def ended(w, run="@"):
    w.run("wait", run)
    return w.show(run)


def pids_with(text):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if text.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                pass
    return found


def test_first_run_without_any_configuration(w):
    w.write("train.py", "import os\nprint('hello', os.getcwd())\n")
    result = w.ok("submit", "-f", "--", "python3", "train.py")
    assert result.out.startswith("hello "), result
    doc = w.show()
    assert doc["schema"] == "dlrun/run/v1" and doc["state"] == "succeeded"
    assert doc["exit"] == {"code": 0, "signal": None, "origin": "job", "reason": doc["exit"]["reason"]}
    assert re.fullmatch(r"train-[2-9a-hjkmnp-z]{5}", doc["id"]), doc["id"]
    for member in ("command params tags group parent user note target ranks origin snapshot image resources "
                   "attempts usage metrics links times phases_ms warnings").split():
        assert member in doc, member
    assert doc["command"] == ["python3", "train.py"] and doc["origin"]["cwd"] == "."


def test_detached_prints_the_id_alone(w):
    w.repo()
    result = w.ok("submit", "--", "true")
    assert re.fullmatch(r"[a-z][a-z0-9-]*-[2-9a-hjkmnp-z]{5}\n", result.out), result


def test_the_run_is_the_snapshot_not_the_tree(w):
    w.repo({"go.sh": "read line < gate; cat text; ls\n", "text": "then\n"})
    os.mkfifo(w.dir / "gate")
    run = submit(w, "sh", "-c", f"cat {w.dir}/gate; cat text; cat added 2>&1")
    w.write("text", "now\n")
    w.write("added", "x")
    with open(w.dir / "gate", "w"):
        pass
    ended(w, run)
    out = w.ok("logs", run).out
    assert out.startswith("then\n") and "added" in out and "now" not in out


def test_exit_codes_and_signals(w):
    w.repo()
    for words, code, sig in ((["sh", "-c", "exit 7"], 7, None), (["sh", "-c", "kill -9 $$"], 137, 9),
                             (["sh", "-c", "kill -TERM $$"], 143, 15), (["true"], 0, None)):
        result = w.run("submit", "-f", "--", *words)
        assert result.rc == code, result
        doc = w.show()
        assert doc["exit"]["code"] == code and doc["exit"]["origin"] == "job"
        assert doc["exit"]["signal"] == sig
        assert doc["state"] == ("succeeded" if code == 0 else "failed")
        if code:
            check_error_form(result.err, "run.failed")


def test_program_that_does_not_exist(w):
    w.repo()
    result = w.run("submit", "-d", "--", "no-such-program-here", "x")
    assert result.rc == 127 and "no-such-program-here" in result.err, result
    check_error_form(result.err, "run.exec")
    doc = ended(w)
    assert doc["exit"]["code"] == 127 and doc["state"] == "failed"
    w.write("noexec", "x")
    assert w.run("submit", "-f", "--", "./noexec").rc == 126


def test_environment(w):
    seen_file = w.dir / "seen"
    w.repo({"sub/p.py": f"import os, json\njson.dump(dict(os.environ), open('{seen_file}', 'w'))\n"})
    env = {"MINE": "1", "HF_TOKEN": "canary-8462", "PYTHONUNBUFFERED": "yes", "VIRTUAL_ENV": "/v"}
    out = w.ok("submit", "-f", "-e", "SET=a b", "-e", "MINE", "-e", "API_KEY=canary-1193", "--", "python3", "p.py",
               cwd=w.tree / "sub", env=env)
    seen = json.loads(seen_file.read_text())
    doc = w.show()
    assert seen["MINE"] == "1" and seen["SET"] == "a b" and seen["VIRTUAL_ENV"] == "/v"
    assert seen["HF_TOKEN"] == "canary-8462" and seen["API_KEY"] == "canary-1193"
    assert seen["PYTHONUNBUFFERED"] == "yes"
    assert seen["DLRUN_RUN_ID"] == doc["id"] and seen["DLRUN_ATTEMPT"] == "1"
    assert seen["DLRUN_SNAPSHOT"] == doc["snapshot"]["id"] and seen["DLRUN_GIT_DIRTY"] in ("0", "false")
    assert os.path.isdir(seen["DLRUN_OUTPUT_DIR"]) and os.path.isdir(seen["DLRUN_ATTEMPT_DIR"])
    assert seen["PWD"].endswith("/sub") and os.path.basename(os.path.dirname(seen["PWD"])) == "tree"
    for name in ("DLRUN_GIT_COMMIT DLRUN_IMAGE_REF DLRUN_NODE_ADDRS DLRUN_HOSTFILE DLRUN_GPUS_PER_NODE MASTER_ADDR "
                 "MASTER_PORT NNODES NODE_RANK WANDB_GIT_COMMIT").split():
        assert name in seen, name
    assert "API_KEY" in out.err, "a name that looks like a secret is said"
    for base in (w.state, w.cache, w.layout):
        for path in base.rglob("*"):
            if path.is_file():
                assert b"canary-" not in path.read_bytes(), path
    missing = w.run("submit", "-d", "-e", "NOT_SET_HERE", "--", "true")
    assert missing.rc == 2 and "NOT_SET_HERE" in missing.err


def test_outputs_survive_and_are_the_runs_own(w):
    w.repo()
    run = submit(w, "sh", "-c", 'echo hi > "$DLRUN_OUTPUT_DIR/x"')
    ended(w, run)
    assert (w.state / "runs" / run / "outputs/x").read_text() == "hi\n"


def test_survives_the_terminal(w):
    """The terminal hangs up, the session ends: the run goes on."""
    w.repo()
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(w.tree)
        os.execve(w.dlrun, [w.dlrun, "submit", "--", "sh", "-c",
                            f"echo started; while ! test -e {w.dir}/go; do sleep 0.05; done; echo done"], w.env)
    out = b""
    end = time.monotonic() + 60
    while b"started" not in out and time.monotonic() < end:
        if select.select([fd], [], [], 1)[0]:
            out += os.read(fd, 65536)
    assert b"started" in out, out
    os.close(fd)
    os.waitpid(pid, 0)
    assert w.show()["state"] == "running"
    (w.dir / "go").touch()
    assert ended(w)["state"] == "succeeded"
    assert w.ok("logs").out == "started\ndone\n"


def test_ctrl_c_detaches(w):
    w.repo()
    os.mkfifo(w.dir / "gate")
    follow = subprocess.Popen([w.dlrun, "submit", "-f", "--", "sh", "-c", f"echo up; read x < {w.dir}/gate; echo end"],
                              cwd=w.tree, env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follow.stdout.readline() == b"up\n"
    wait_for(lambda: w.runs() and w.runs()[0]["state"] == "running", "running")
    follow.send_signal(signal.SIGINT)
    _, err = follow.communicate(timeout=30)
    assert follow.returncode == 130 and b"dlrun logs" in err, err
    with open(w.dir / "gate", "w") as gate:
        gate.write("x\n")
    assert ended(w)["state"] in ("succeeded", "failed")


def test_cancel_takes_the_whole_family(w):
    """A program that ignores TERM, its child, and a grandchild that made itself a daemon."""
    if os.environ.get("DLRUN_OS") == "portable":
        raise Skip("without /proc and cgroups a daemon cannot be found")
    w.repo({"family.py": """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 3)
        time.sleep(600)
    time.sleep(600)
print('ready', flush=True)
time.sleep(600)
"""})
    mark = f"mark-{w.dir.name}"
    run = submit(w, "python3", "family.py", mark, options=["--grace", "200ms"])
    wait_for(lambda: "ready" in w.ok("logs", run).out and len(pids_with(mark)) >= 3, "the family is there")
    w.ok("cancel", run)
    wait_for(lambda: not [p for p in pids_with(mark) if p != os.getpid()], "all of it is gone")
    doc = ended(w, run)
    assert doc["state"] == "cancelled" and w.run("wait", run).rc == 143
    again = w.run("cancel", run)
    assert again.rc == 0


def test_what_a_program_leaves_behind_is_ended(w):
    w.repo()
    mark = f"left-{w.dir.name}"
    # A session of its own hides a process from a portable build, which knows the program's group only.
    leave = "" if os.environ.get("DLRUN_OS") == "portable" else "setsid "
    run = submit(w, "sh", "-c",
                 f"{leave}python3 -c 'import time; time.sleep(600)' {mark} & exit 3")
    doc = ended(w, run)
    assert doc["exit"]["code"] == 3
    wait_for(lambda: not pids_with(mark), "the left-over child is gone")


HOG = """
import subprocess, sys
end = subprocess.run([sys.executable, '-c', 'print(len(bytearray(400 << 20)))']).returncode
print('child', end, flush=True)
sys.exit(int(sys.argv[1]))
"""

# What a program reads of its own groups, of version 1 and 2.
GROUPS = """
import pathlib
for line in open('/proc/self/cgroup').read().split():
    _, names, path = line.split(':', 2)
    for top in ['/sys/fs/cgroup', '/sys/fs/cgroup/unified', *('/sys/fs/cgroup/' + n for n in (names, *names.split(',')) if n)]:
        for name in 'memory.max', 'memory.limit_in_bytes', 'cpu.max', 'cpu.cfs_quota_us':
            file = pathlib.Path(top + path, name)
            if file.is_file():
                print(name, file.read_text().strip())
"""


def limited(w):
    """Where no cgroup can be written to that is said once, and the run goes on."""
    doc = ended(w, submit(w, "true", options=["--memory", "64Mi", "--cpus", "0.5"]))
    assert doc["state"] == "succeeded"
    said = [line for line in doc["warnings"] if "not enforced" in line]
    assert len(said) <= 1, doc
    if said:
        raise Skip(said[0])


def groups_of(run):
    return [path for path in Path("/sys/fs/cgroup").glob("**/dlrun-*") if run in path.name]


def test_limits_are_enforced(w):
    w.repo({"hog.py": HOG, "groups.py": GROUPS})
    limited(w)
    out = w.ok("submit", "-f", "--memory", "64Mi", "--cpus", "0.5", "--", "python3", "groups.py").out
    assert re.search(r"^memory\.(max|limit_in_bytes) 67108864$", out, re.M), out
    assert "cpu.max 50000 100000" in out or "cpu.cfs_quota_us 50000" in out, out
    wait_for(lambda: not groups_of(w.show()["id"]), "its groups are gone")
    result = w.run("submit", "-f", "--memory", "64Mi", "--", "python3", "-c", "print(len(bytearray(400 << 20)))")
    doc = w.show()
    assert result.rc == 137 and doc["exit"]["reason"] == "OutOfMemory" and doc["exit"]["signal"] == 9, doc
    why = w.ok("why").out
    assert "the kernel killed it for memory (limit 64 MiB)" in why, why
    assert f"hint: dlrun submit --from {doc['id']} --memory 128Mi" in why, why
    # A limit that suffices disturbs nobody.
    assert w.run("submit", "-f", "--memory", "900Mi", "--", "python3", "hog.py", "4").rc == 4
    assert "memory" not in w.ok("why").out


def test_a_child_that_is_killed_for_memory_is_not_the_end(w):
    w.repo({"hog.py": HOG})
    limited(w)
    said = "the kernel killed one of its processes for memory (limit 64 MiB), then "
    for words, rc, reason, text in ((("python3", "hog.py", "5"), 5, "Error", "the program exited with 5"),
                                    (("python3", "hog.py", "0"), 0, "Completed", "the program exited with 0"),
                                    (("sh", "-c", "python3 hog.py 0; kill -TERM $$"), 143, "Signal",
                                     "the program was killed by SIGTERM"),
                                    (("sh", "-c", "python3 hog.py 0; sleep 600"), 124, "Timeout",
                                     "it reached its time limit of ")):
        def submitted(limit_s, words=words, rc=rc):
            return limit_s, w.run("submit", "-f", "--memory", "64Mi", "--timeout", f"{limit_s}s" if rc == 124 else "10m", "--", *words)
        limit_s, result = within_limit(submitted, lambda: "child" in w.ok("logs").out)
        doc = w.show()
        assert result.rc == rc and doc["exit"]["reason"] == reason, (result, doc["exit"])
        text += f"{limit_s} s" if rc == 124 else ""
        assert said + text in w.ok("why").out, (words, w.ok("why").out)


def test_groups_of_a_killed_supervisor_are_removed(w):
    w.repo({"wait.py": "import time\nprint('up', flush=True)\ntime.sleep(600)\n"})
    limited(w)
    run = submit(w, "python3", "wait.py", options=["--memory", "64Mi"])
    wait_for(lambda: "up" in w.ok("logs", run).out, "it runs")
    assert groups_of(run)
    state = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    os.killpg(state["program"]["pid"], signal.SIGKILL)
    wait_for(lambda: w.show(run)["state"] == "lost", "it is seen as lost")
    # A group is empty when its last process has been waited for; the next run finds it then.
    wait_for(lambda: ended(w, submit(w, "true", options=["--memory", "64Mi"])) and not groups_of(run), "its groups are gone")


def test_time_limit(w):
    w.repo()
    result = w.run("submit", "-f", "--timeout", "300ms", "--grace", "200ms", "--", "sleep", "60")
    assert result.rc == 124, result
    check_error_form(result.err, "run.timeout")
    doc = w.show()
    assert doc["state"] == "failed" and doc["exit"]["reason"] == "Timeout" and doc["exit"]["origin"] == "dlrun"


def supervisor(w, run):
    return pids_with(f"{run}/attempts/1")


def test_supervisor_dies_and_the_program_lives(w):
    w.repo()
    os.mkfifo(w.dir / "gate")
    run = submit(w, "sh", "-c", f"echo one; read x < {w.dir}/gate; echo two")
    wait_for(lambda: w.show(run)["state"] == "running" and "one" in w.ok("logs", run).out or None, "running")
    for pid in supervisor(w, run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not supervisor(w, run), "the supervisor is gone")
    state = w.show(run)["state"]
    assert state in ("running", "lost"), state
    try:
        fd = os.open(w.dir / "gate", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"x\n")
        os.close(fd)
        assert state == "running"
    except OSError:
        pass
    wait_for(lambda: w.show(run)["state"] == "lost", "lost at its end")
    assert w.run("wait", run).rc == 125
    assert "lost" in w.ok("why", run).out


def test_logs_resume_and_carriage_returns(w):
    w.repo({"p.py": "import sys\nfor i in range(2000): print('line', i)\nprint('50%\\r100%')\n"})
    run = submit(w, "python3", "p.py")
    ended(w, run)
    raw = w.ok("logs", run).out_bytes
    assert raw == b"".join(b"line %d\n" % i for i in range(2000)) + b"50%\r100%\n"
    assert w.ok("logs", "--tail", "2", run).out_bytes == b"line 1999\n50%\r100%\n"
    assert w.ok("logs", "--tail", "0", run).out_bytes == b""
    lines = [json.loads(l) for l in w.ok("logs", "--json", run).out.splitlines()]
    assert lines[0]["text"] == "line 0" and lines[0]["schema"] == "dlrun/log/v1"
    assert lines[-1]["schema"] == "dlrun/run/v1" and len(lines) == 2002


def test_follow_from_a_second_terminal_sees_everything(w):
    w.repo()
    run = submit(w, "sh", "-c", "i=0; while test $i -lt 300; do echo $i; i=$((i+1)); done; sleep 0.3; echo end; exit 4")
    follow = w.run("logs", "-f", run)
    assert follow.rc == 4
    assert follow.out == "".join(f"{i}\n" for i in range(300)) + "end\n"


def test_following_a_silent_run_costs_nothing(w):
    w.repo()
    follow = subprocess.Popen([w.dlrun, "submit", "-f", "--", "sleep", "2"], cwd=w.tree, env=w.env,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(follow.pid, 0)
    follow.returncode = os.waitstatus_to_exitcode(status)
    assert follow.returncode == 0
    assert usage.ru_utime + usage.ru_stime < 0.5, usage


def test_head_closes_the_pipe_quietly(w):
    w.repo()
    run = submit(w, "sh", "-c", "yes | head -100000")
    ended(w, run)
    done = w.command(["sh", "-c", f"{w.dlrun} logs {run} | head -1"])
    assert done.out == "y\n" and done.err == "", done


def test_terminal_gets_no_control_sequences(w):
    w.repo({"evil.py": r"print('\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;eA==\x07 ok')"})
    run = submit(w, "python3", "evil.py")
    ended(w, run)
    raw = w.ok("logs", run).out_bytes
    assert b"\x1b]0;title\x07" in raw, "a pipe gets the exact bytes"
    done = w.command(["script", "-qec", f"{w.dlrun} logs {run}", "/dev/null"], env={"TERM": "xterm"})
    assert b"\x1b]" not in done.out_bytes and b"\x1b[2J" not in done.out_bytes and b"\x07" not in done.out_bytes
    assert b"ok" in done.out_bytes


def test_names_of_runs(w):
    w.repo()
    runs = [submit(w, "true", options=["-n", name]) for name in ("one", "Two_Words!", "x" * 60)]
    assert runs[1].startswith("two-words-") and len(runs[2]) == 46, runs
    for run in runs:
        ended(w, run)
    assert w.show("@")["id"] == runs[2] and w.show("@-1")["id"] == runs[1] and w.show("one")["id"] == runs[0]
    for text in ("@-9", "nope", "@@", "-"):
        result = w.run("show", "--", text)
        assert result.rc in (2, 5), result
    near = w.run("show", runs[0][:-1] + ("2" if runs[0][-1] != "2" else "3"))
    assert near.rc == 5 and runs[0] in near.err


def test_from_runs_the_same_code_again(w):
    w.repo({"a": "old\n"})
    first = submit(w, "cat", "a")
    ended(w, first)
    w.write("a", "new\n")
    result = w.ok("submit", "-f", "--from", first)
    assert result.out == "old\n"
    assert w.show()["parent"] == first
    result = w.ok("submit", "-f", "--from", first, "--", "wc", "-c", "a")
    assert result.out.split()[0] == "4"


def test_diff_and_checkout(w):
    w.repo({"a": "1\n", "b": "2\n", "gone": "3\n", "sh": "x"})
    first = submit(w, "python3", "-c", "0", "--lr", "0.1")
    w.write("a", "changed\n")
    w.write("new", "4\n")
    (w.tree / "gone").unlink()
    (w.tree / "sh").chmod(0o755)
    second = submit(w, "python3", "-c", "0", "--lr", "0.2")
    for run in (first, second):
        ended(w, run)
    doc = json.loads(w.ok("diff", first, second, "--json").out)
    text = w.ok("diff", first, second).out
    for name in ("a", "new", "gone", "sh", "0.1", "0.2"):
        assert name in text, text
    assert doc["schema"] == "dlrun/diff/v1"
    tree = w.ok("diff", second, "--json").out
    assert json.loads(tree)["files"] == []
    w.ok("checkout", first, str(w.dir / "back"))
    assert (w.dir / "back/a").read_text() == "1\n" and (w.dir / "back/gone").read_text() == "3\n"
    assert not (w.dir / "back/new").exists()
    again = w.run("checkout", first, str(w.dir / "back"))
    assert again.rc == 1, again


def test_one_hundred_submits_at_once(w):
    w.repo({f"f{i}": str(i) for i in range(50)})
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        done = list(pool.map(lambda i: w.run("submit", "-d", "-n", "crowd", "--", "sh", "-c", f"echo {i}"), range(100)))
    assert all(r.rc == 0 for r in done), [r for r in done if r.rc][:2]
    ids = {r.out.strip() for r in done}
    assert len(ids) == 100
    w.ok("wait", *ids)
    runs = w.runs()
    assert len(runs) == 100 and {r["state"] for r in runs} == {"succeeded"}
    assert sorted(w.ok("logs", r["id"]).out for r in runs) == sorted(f"{i}\n" for i in range(100))


def test_damaged_layer_is_named_and_written_anew(w):
    """Of unchanged size, so that only reading it tells: the next submit does not build on it again."""
    w.repo({f"f{i}": "x" * 3000 for i in range(20)})
    first = submit(w, "cat", "f0")
    ended(w, first)
    layer = w.show(first)["image"]["layers"][0]
    blob = w.layout / "blobs/sha256" / layer["digest"][7:]
    wait_for(lambda: [p for p in (w.state / "spares").glob("*") if len(p.name) == 64], "a spare tree is made")
    for tree in (w.state / "spares").glob("*"):
        shutil.rmtree(tree, ignore_errors=True)
    good = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(good[:-6] + bytes([good[-6] ^ 1]) + good[-5:])
    refused = w.run("checkout", first, str(w.dir / "back"))
    assert refused.rc == 1 and layer["digest"] in refused.err and f"hint: rm {blob}" in refused.err, refused
    check_error_form(refused.err, "image")
    w.write("f1", "edited")
    failed = w.run("submit", "-f", "--", "cat", "f1")
    assert failed.rc == 125 and layer["digest"] in failed.err and "the next submit" in failed.err, failed
    assert w.ok("submit", "-f", "--", "cat", "f1").out == "edited"
    w.write("f1", "x" * 3000)
    assert w.ok("submit", "-f", "--full", "--", "cat", "f1").out == "x" * 3000
    assert blob.read_bytes() == good
    w.ok("checkout", first, str(w.dir / "back"))
    assert w.ok("submit", "-f", "--from", first).out == "x" * 3000


def test_spare_tree_is_used(w):
    w.repo({f"d{i % 20}/f{i}": "x" * 200 for i in range(400)})
    ended(w, submit(w, "true"))
    wait_for(lambda: list((w.state / "spares").glob("*")), "a spare tree is made ahead")
    w.write("d0/f0", "edited")
    doc = ended(w, submit(w, "sh", "-c", "cat d0/f0; ls -R . | wc -l"))
    assert doc["state"] == "succeeded"
    assert w.ok("logs").out.startswith("edited")
    tree = w.state / "runs" / doc["id"] / "attempts/1/tree"
    assert disk_tree(tree, all_files(tree)) == disk_tree(w.tree, all_files(w.tree))


def test_gc_and_rm(w):
    w.repo({"a": "x" * 100})
    run = submit(w, "true")
    ended(w, run)
    wait_for(lambda: not supervisor(w, run), "the supervisor has ended")
    busy = submit(w, "sleep", "60")
    refused = w.run("rm", busy)
    assert refused.rc == 1
    check_error_form(refused.err, "run.running")
    w.ok("rm", run)
    assert not (w.state / "runs" / run).exists() and w.run("show", run).rc == 5
    w.ok("cancel", busy)
    wait_for(lambda: not supervisor(w, busy), "the supervisor has ended")
    w.ok("gc", "--keep", "0s")
    assert not (w.state / "runs" / busy / "attempts/1/tree").exists()
    assert w.show(busy)["state"] == "cancelled" and (w.state / "runs" / busy / "attempts/1/log").exists()
    w.ok("rm", busy)
    w.ok("gc", "--keep", "0s")
    assert not list((w.layout / "blobs/sha256").iterdir()) and not list((w.state / "runs").iterdir())


def test_directories_are_private(w):
    w.repo()
    submit(w, "true", preexec=lambda: os.umask(0))
    ended(w)
    for path in (w.state, w.cache, w.layout.parent):
        assert path.stat().st_mode & 0o777 == 0o700, (path, oct(path.stat().st_mode))
    assert (w.state / "runs.db").stat().st_mode & 0o777 == 0o600


def test_digits_learns(w):
    shutil.copytree(DIGITS, w.tree / "digits", ignore=shutil.ignore_patterns("out", "__pycache__"))
    w.git("init", "-q")
    result = w.ok("submit", "-f", "-n", "digits", "--", "python3", "train.py", "--epochs", "8", cwd=w.tree / "digits")
    doc = w.show()
    outputs = w.state / "runs" / doc["id"] / "outputs"
    assert json.loads((outputs / "result.json").read_text())["accuracy"] > 0.9, result.out
    assert any("tfevents" in p.name for p in outputs.rglob("*"))
    assert doc["params"]["epochs"] == "8"


def half_written(w, damage):
    """Another program has left half of an index.json: what is said can be pasted, and nothing is lost by it."""
    w.repo({"a": "1"})
    first = w.ok("submit", "-f", "--", "true") and w.show("@")["id"]
    index = w.layout / "index.json"
    index.write_bytes(damage(index.read_bytes()))
    w.write("a", "2")
    for words in (("submit", "-d", "--", "true"), ("gc",)):
        said = w.run(*words)
        assert said.rc != 0 and "index.json" in said.err, said
        hint = re.search(r"^\s*hint: (mv .*)$", said.err, re.M)
        assert hint, said
    subprocess.run(hint.group(1), shell=True, check=True, cwd=w.tree)
    w.ok("submit", "-f", "--", "grep", "2", "a")
    w.ok("gc")
    w.ok("checkout", first, str(w.dir / "back"))
    assert (w.dir / "back/a").read_text() == "1"


def test_index_cut_in_half(w):
    half_written(w, lambda data: data[:len(data) // 2])


def test_index_of_one_byte(w):
    half_written(w, lambda data: data[:1])


def test_index_without_its_end(w):
    half_written(w, lambda data: data.rstrip()[:-1])


def test_index_of_another_kind(w):
    half_written(w, lambda data: b'{"schemaVersion": 2}')


if __name__ == "__main__":
    main()
