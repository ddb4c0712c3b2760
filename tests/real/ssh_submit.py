#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs on a real SSH server: what they find there, how they end, what is done beside them, and what other accounts see.

DLRUN_FORWARD_MIB: sent each way through a forward (64); DLRUN_FULL=1: 1,024.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess

from cluster_forward import DOWN, ECHO, MIB, NAME, NEVER, SLOW, UP, Terminal, blocks, digest_of, download, forward, received, recovery_s
from cluster_forward import SERVER
from cluster_fetch import FILES, WRITE, check_all, fetched
from harness import *  # noqa: F403
from ssh_logins import refused
from sshsite import site

FULL = bool(os.environ.get("DLRUN_FULL"))
FORWARD_MIB = 1024 if FULL else MIB
# Of a download, and where its reader stands still.
SLOW_MIB, PAUSE_AT = 40, 12 << 20
SHOW = """import json, os, sys
print(json.dumps({"argv": [os.fsencode(a).hex() for a in sys.argv[1:]], "cwd": os.getcwd(), "umask": os.umask(0),
                  "env": {os.fsencode(k).hex(): os.fsencode(v).hex() for k, v in os.environ.items()}}))
"""
# Ends by SIGINT without waiting for what it has started.
LAUNCHER = """import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "p.py"])
signal.signal(signal.SIGINT, lambda *_: os._exit(1))
child.wait()
"""
# What lies below here, but for what is not of the tree.
LIST = """import hashlib, json, os, stat
found = {}
for base, dirs, files in os.walk("."):
    dirs[:] = [d for d in dirs if os.path.join(base, d) not in ("./.git", "./out")]
    for name in files + [d for d in dirs if os.path.islink(os.path.join(base, d))]:
        path = os.path.join(base, name)
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            found[os.fsencode(path).hex()] = ["link", os.fsencode(os.readlink(path)).hex()]
        else:
            with open(path, "rb") as file:
                found[os.fsencode(path).hex()] = [bool(info.st_mode & 0o100), hashlib.sha256(file.read()).hexdigest()]
print(json.dumps(found, sort_keys=True))
"""
ODD = ["", " ", "a b", "'", '"', "$HOME", "`id`", "\\", "\\n", "line\nbreak", "tab\there", "!!", "*", "?", "[a]", "~", "#x", "-n", "--", "%s",
       "\x01\x7f", "é", b"\xff\xfe\x80", "x" * 9000, "a;b|c&d>e<f(g)", "{a,b}", "\r", "trailing\n"]


def shown(text):
    """What SHOW has printed, as bytes."""
    seen = json.loads(text.splitlines()[-1])
    env = {bytes.fromhex(k).decode(): bytes.fromhex(v) for k, v in seen["env"].items()}
    return [bytes.fromhex(a) for a in seen["argv"]], env, seen


def test_a_run_ends_as_its_program_does(w):
    with site(w) as s:
        for line, code, number, state in (("exit 0", 0, None, "succeeded"), ("exit 7", 7, None, "failed"), ("kill -9 $$", 137, 9, "failed"),
                                          ("kill $$", 143, 15, "failed"), ("exit 255", 255, None, "failed")):
            done = s.follow("--", "sh", "-c", f"echo out; echo err >&2; {line}")
            assert done.rc == code and sorted(done.out.split()) == ["err", "out"], done
            end = w.show()
            assert (end["state"], end["exit"]["code"], end["exit"]["signal"], end["exit"]["origin"]) == (state, code, number, "job"), end
            assert end["target"]["kind"] == "ssh" and end["target"]["hosts"] == ["gpu1"], end["target"]
        assert s.follow("--", "no-such-program").rc == 127
        assert w.run("wait", "@").rc == 127
        assert s["gpu1"].logins() and not s["gpu1"].processes("DLRUN_RUN_ID=")


def test_limits(w):
    """Held to where the host's user can make cgroups; else the record warns, and the run goes on."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(len(bytearray(400 << 20)))']); sys.exit(5)"
    with site(w) as s:
        done = s.follow("--memory", "64Mi", "--cpus", "0.5", "--", "python3", "-c", child)
        doc = w.show()
        assert done.rc == 5 and doc["exit"]["reason"] == "Error", (done, doc["exit"])
        said = [text for text in doc["warnings"] if "not enforced" in text]
        assert len(said) <= 1, doc
        killed = "the kernel killed one of its processes for memory (limit 64 MiB), then the program exited with 5"
        assert (killed in w.ok("why").out) == (not said), (said, w.ok("why").out)
        assert not said or said[0].startswith("--memory and --cpus: not enforced"), said


def test_detached_runs_are_seen_afterwards(w):
    with site(w) as s:
        run = s.submit("--", "sh", "-c", "seq 1 1000; exit 3")
        assert w.run("wait", run).rc == 3
        whole = "".join(f"{n}\n" for n in range(1, 1001))
        assert w.ok("logs", run).out == whole and w.ok("logs", "--tail", "2", run).out == "999\n1000\n"
        assert w.run("logs", "-f", run).out == whole
        rows = w.runs()
        assert [r["state"] for r in rows] == ["failed"] and rows[0]["exit"]["code"] == 3, rows
        times = w.show(run)["times"]
        assert times["submitted"] <= times["started"] <= times["ended"], times


def listed(w, s):
    here = json.loads(w.command(["python3", "-B", "list.py"]).out)
    done = s.follow("--", "python3", "-B", "list.py")
    assert done.rc == 0, done
    there = json.loads(done.out)
    assert here == there, (set(here) ^ set(there), [p for p in here if here[p] != there.get(p)][:5])
    return len(there)


def test_the_tree_is_exact(w):
    """The whole of it, then edits of each kind over it, from a spare tree and without one."""
    with site(w, files={"list.py": LIST, "keep": "1", "gone": "2", "dir/was": "3", "link-target": "4", "same": "aaaa"}) as s:
        for name in ("with space", "new\nline", b"\xff\xfe", "-lead", "quo'te\"", "deep/" * 20 + "end", ".hidden"):
            w.write(name, "odd")
        w.write("run.sh", "#!/bin/sh\n", 0o755)
        w.write("empty")
        w.write("big.bin", os.urandom(9 << 20))
        (w.tree / "link").symlink_to("link-target")
        (w.tree / "dangling").symlink_to("../../../nowhere")
        assert listed(w, s) > 15
        w.write("same", "bbbb")
        (w.tree / "gone").unlink()
        w.write("new/file", "new")
        (w.tree / "keep").chmod(0o755)
        listed(w, s)
        (w.tree / "dir/was").unlink()
        (w.tree / "dir").rmdir()
        (w.tree / "dir").symlink_to("new")
        (w.tree / "link").unlink()
        w.write("link/now-a-directory", "x")
        listed(w, s)
        for i in range(3):
            w.write("same", f"{i}{i}{i}{i}")
            listed(w, s)
        big = w.show()["image"]
        assert big["bytes_pushed"] < 1 << 20, big


def test_words_and_environment_arrive_unchanged(w):
    with site(w, files={"exp/show.py": SHOW}) as s:
        options = [part for i, value in enumerate(ODD) for part in (b"-e", b"ODD%d=" % i + (value if isinstance(value, bytes) else value.encode()))]
        done = s.follow(*options, "--", "python3", "show.py", *ODD, cwd=w.tree / "exp")
        assert done.rc == 0, done
        argv, env, seen = shown(done.out)
        wanted = [value if isinstance(value, bytes) else value.encode() for value in ODD]
        assert argv == wanted, [(a, b) for a, b in zip(argv, wanted) if a != b]
        assert [env[f"ODD{i}"] for i in range(len(ODD))] == wanted
        record = w.show()
        said = {"DLRUN_RUN_ID": record["id"], "DLRUN_ATTEMPT": "1", "DLRUN_SNAPSHOT": record["snapshot"]["id"], "NNODES": "1",
                "NODE_RANK": "0", "PYTHONUNBUFFERED": "1", "HOME": "/home/me", "USER": "me"}
        assert {k: env.get(k, b"").decode() for k in said} == said
        assert seen["cwd"].endswith("/exp") and seen["umask"] == 0o022, seen["cwd"]
        leaked = [k for k in env if k.startswith(("d_", "j_", "dgpu")) or k in ("SSH_CONNECTION", "SSH_CLIENT")]
        assert not leaked or leaked == ["SSH_CLIENT", "SSH_CONNECTION"], leaked
        assert s.follow("-e", "PYTHONUNBUFFERED=own", "-e", "NNODES=own", "--", "sh", "-c", "echo $PYTHONUNBUFFERED $NNODES").out == "own own\n"


def test_lines_before_and_a_command_line(w):
    with site(w) as s:
        s["gpu1"].home.joinpath("activate").write_text("export VENV=on\nactivated() { :; }\n")
        w.write("dlrun.yaml", json.dumps({"command": "echo $VENV | tr a-z A-Z", "targets": {
            "lab": {"kind": "ssh", "hosts": ["gpu1"], "before": ". ~/activate"}}}))
        done = w.run("submit", "-f", "-t", "lab")
        assert (done.rc, done.out) == (0, "ON\n"), done
        w.write("dlrun.yaml", json.dumps({"targets": {"lab": {"kind": "ssh", "hosts": ["gpu1"], "before": "echo oh no; exit 9"}}}))
        done = w.run("submit", "-f", "-t", "lab", "--", "echo", "never")
        assert done.rc in (9, 125) and "oh no" in done.out and "never" not in done.out, done


def test_setup_is_run_once_per_key(w):
    with site(w, files={"lock": "1"}) as s:
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "echo set up >> ~/setups; mkdir -p made; echo $(cat lock) > made/x", "key": ["lock"]}}))
        for _ in range(2):
            assert s.follow("--", "true").rc == 0
        assert s["gpu1"].home.joinpath("setups").read_text() == "set up\n"
        w.write("lock", "2")
        assert s.follow("--", "true").rc == 0
        assert s["gpu1"].home.joinpath("setups").read_text() == "set up\n" * 2
        w.write("lock", "3")
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "echo no way; exit 4", "key": ["lock"]}}))
        done = s.follow("--", "echo", "never")
        assert done.rc == 125 and "no way" in done.out + done.err and "never\n" not in done.out, done


def test_an_environment_of_conda_is_active(w):
    """A program of the host makes it, which has the name of one of conda's."""
    with site(w, files={"environment.yml": "x: 1\n"}) as s:
        program = s["gpu1"].home / "miniconda3/bin/conda"
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\nmkdir -p .venv/conda-meta .venv/bin\necho "echo $*" >.venv/bin/tool\nchmod 755 .venv/bin/tool\n')
        program.chmod(0o755)
        w.write("dlrun.yaml", json.dumps({"environment": {"lock": "environment.yml"}}))
        done = s.follow("-e", "VIRTUAL_ENV=/outer", "--", "sh", "-c", 'tool; [ "$CONDA_PREFIX" = "$PWD/.venv" ] && [ -z "${VIRTUAL_ENV-}" ] && echo active')
        assert done.rc == 0 and done.out.startswith("env create -q -p /") and done.out.endswith("-f environment.yml\nactive\n"), done


def data_targets(w, **targets):
    w.write("dlrun.yaml", json.dumps({"data": ["data/set"], "targets": {
        name: {"kind": "ssh", "hosts": ["gpu1"], **({"data": {"data/set": where}} if where else {})} for name, where in targets.items()}}))
    w.write("data/set/a", "here")
    w.write("data/set/sub/b", "b")


def test_data_lies_where_the_program_expects_it(w):
    with site(w, files={".gitignore": "data/\n"}) as s:
        sets = s["gpu1"].home / "sets"
        sets.mkdir()
        (sets / "a").write_text("there")
        data_targets(w, path="/home/me/sets", none=None)
        assert w.run("submit", "-f", "-t", "path", "--", "cat", "data/set/a").out == "there"
        done = w.run("submit", "-d", "-t", "none", "--", "cat", "data/set/a")
        assert done.rc == 2 and "data/set" in done.err, done
        sets.rename(s["gpu1"].home / "moved")
        done = w.run("submit", "-f", "-t", "path", "--", "true")
        assert done.rc in (5, 125) and "/home/me/sets" in done.err + done.out, done


def test_data_is_sent_once(w):
    with site(w, files={".gitignore": "data/\n"}) as s:
        data_targets(w, sync="sync")
        s.there_is("-t", "sync")
        for _ in range(2):
            assert w.run("submit", "-f", "-t", "sync", "--", "cat", "data/set/a", "data/set/sub/b").out == "hereb"
        assert len(s["gpu1"].files(".dlrun/data/*")) == 1
        w.write("data/set/a", "other")
        assert w.run("submit", "-f", "-t", "sync", "--", "cat", "data/set/a").out == "other"


def test_results_come_here(w):
    with site(w, files={"w.py": WRITE, "out/from-tree": "kept"}) as s:
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", w.run("logs", run)
        done = w.ok("fetch", run)
        check_all(w.tree / run)
        assert "files fetched" in done.err, done.err
        again = json.loads(w.ok("fetch", run, "--json").out)
        assert again["files"] == 0 and again["skipped"] == len(FILES) + 2, again
        w.ok("fetch", run, "sub/*", "-o", "part")
        assert set(fetched(w.tree / "part")) == {"sub/b c", "sub/deep/-lead"}
        w.refused("fetch", run, "absent", "-o", "other", id="fetch.path", rc=5, says="absent")
        w.ok("fetch", "--tree", run, "out")
        assert fetched(w.tree / f"{run}-tree") == {"out/from-tree": "kept"}
        w.refused("fetch", "--tree", run, "../outputs", id="usage", rc=2)
        w.refused("fetch", "--tree", run, "absent", "-o", "other", id="fetch.path", rc=5, says="tree")
        w.write("dlrun.yaml", json.dumps({"outputs": ["out"]}))
        run = s.submit("--", "sh", "-c", "cat out/from-tree > out/result; test -L out")
        assert s.ended(run)["exit"]["code"] in (0, 1)
        w.ok("fetch", run, "-o", "results")
        assert (w.tree / "results/out/result").read_text() == "kept"


def test_what_results_there_are_is_said(w):
    """At the end of what is followed, and in the record: files, and the parameters in them."""
    script = """cd "$DLRUN_OUTPUT_DIR"; mkdir -p logs/v0; printf 'lr: 1\\nwidth: 8\\n' > logs/v0/hparams.yaml; printf x > model.pt"""
    with site(w) as s:
        done = s.follow("--", "sh", "-c", script, "--lr=0.5")
        record = w.show("@")
        assert f"results   logs/ 1 file 15 B · model.pt 1 B   dlrun fetch {record['id']}\n" in done.err, done.err
        assert record["results"]["files"] == 2 and record["params"] == {"lr": "0.5", "width": 8}, record
        done = s.follow("--", "true")
        assert "results" not in done.err and w.show("@")["results"]["files"] == 0, done.err


def test_attempts_share_their_outputs(w):
    """And what each has changed in its tree."""
    script = """echo $DLRUN_ATTEMPT >> "$DLRUN_OUTPUT_DIR/seen"; cat a; echo changed > a; touch "$DLRUN_ATTEMPT_DIR/x"; ls "$DLRUN_ATTEMPT_DIR"
test $DLRUN_ATTEMPT = 4"""
    with site(w, files={"a": "as submitted\n"}) as s:
        done = s.follow("--retries", "2", "--", "sh", "-c", script)
        assert done.rc == 1 and done.out == "as submitted\nx\n" + "changed\nx\n" * 2, done
        w.ok("restart", "@")
        record = s.ended("@")
        assert [a["exit"]["code"] for a in record["attempts"]] == [1, 1, 1, 0], record["attempts"]
        assert record["state"] == "succeeded" and w.ok("logs", "@").out == "changed\nx\n"
        w.ok("fetch", "@", "-o", "results")
        assert (w.tree / "results/seen").read_text() == "1\n2\n3\n4\n"


def test_restart_runs_the_same_code(w):
    with site(w, files={"a": "first\n"}) as s:
        run = s.submit("--", "sh", "-c", "cat a; test $DLRUN_ATTEMPT = 2")
        s.ended(run)
        w.write("a", "second\n")
        w.ok("restart", run)
        assert s.ended(run)["state"] == "succeeded" and w.ok("logs", run).out == "first\n"
        s["gpu1"].reboot()
        assert s.follow("--from", run, "--", "cat", "a").out == "first\n"


def test_a_run_is_cancelled(w):
    program = "trap 'echo last words; exit 0' TERM; echo first words; while :; do sleep 0.1; done"
    with site(w) as s:
        run = s.submit("--", "sh", "-c", program)
        s.said_by(run, "first words")
        w.ok("cancel", run)
        end = s.ended(run)
        assert (end["state"], end["exit"]["code"]) == ("cancelled", 143), end
        assert w.ok("logs", run).out.endswith("last words\n"), w.ok("logs", run).out
        assert w.run("cancel", run).rc == 0 and w.run("wait", run).rc == 143
        deaf = "trap '' TERM; echo deaf; (sleep 777; echo child) & while :; do sleep 1; done"
        run = s.submit("--grace", "1s", "--retries", "3", "--", "sh", "-c", deaf)
        s.said_by(run, "deaf")
        w.ok("cancel", run)
        end = s.ended(run)
        assert end["state"] == "cancelled" and len(end["attempts"]) == 1, end
        wait_for(lambda: not s["gpu1"].processes(run), "the end of all its processes", 60)


def test_stop_signal(w):
    with site(w) as s:
        w.write("p.py", INTERRUPTED)
        w.write("dlrun.yaml", "stop_signal: INT\n")
        run = s.submit("--", "python3", "p.py")
        s.said_by(run, "ready")
        w.ok("cancel", run)
        end = s.ended(run)
        assert (end["state"], end["exit"]["code"]) == ("cancelled", 143), end
        assert w.ok("logs", run).out == "ready\nsaved\n", w.ok("logs", run)


def test_a_program_saves_behind_its_launcher(w):
    """What the program has started gets the grace period and no other signal, though the program itself has ended."""
    with site(w) as s:
        w.write("p.py", INTERRUPTED.replace("sleep(0.5)", "sleep(4)"))
        w.write("launch.py", LAUNCHER)
        w.write("dlrun.yaml", "stop_signal: INT\ngrace: 60s\n")
        run = s.submit("--", "python3", "launch.py")
        s.said_by(run, "ready")
        w.ok("cancel", run)
        end = s.ended(run)
        assert (end["state"], end["exit"]["code"]) == ("cancelled", 143), end
        assert w.ok("logs", run).out == "ready\nsaved\n", w.ok("logs", run)


def test_time_limits(w):
    with site(w) as s:
        done = s.follow("--timeout", "4s", "--grace", "1s", "--", "sleep", "600")
        assert done.rc == 124 and w.show()["exit"]["origin"] == "dlrun", (done, w.show()["exit"])
        wait_for(lambda: not s["gpu1"].processes("sleep", "600"), "the end of the program", 5)
        done = s.follow("--timeout", "15s", "--signal", "USR1@10", "--", "sh", "-c", "trap 'echo in time; exit 6' USR1; while :; do sleep 0.1; done")
        assert done.rc == 6 and done.out.endswith("in time\n"), done


def test_secrets_are_nowhere_else(w):
    with site(w) as s:
        run = s.submit("--secret", "CANARY", "--", "sh", "-c", "case $CANARY in tw*-4711) echo $?;; esac; sleep 600", env={"CANARY": "tweet-4711"})
        assert s.said_by(run, "0") == "0\n"
        assert not [p for p in s["gpu1"].processes("tweet-4711") if "tweet-4711" in p[1]]
        kept = [p for p in s["gpu1"].homes.rglob("*") if p.is_file() and b"tweet-4711" in p.read_bytes()]
        assert all(p.name == "secrets" and p.stat().st_mode & 0o777 == 0o600 for p in kept), kept
        w.ok("cancel", run)
        s.ended(run)
        for base in (s["gpu1"].homes, w.home, w.tree):
            assert not [p for p in base.rglob("*") if p.is_file() and b"tweet-4711" in p.read_bytes()], base


def holding(directory, text):
    """Files with that text; some may go meanwhile."""
    found = []
    for path in (Path(top, name) for top, _, names in os.walk(directory) for name in names):
        with contextlib.suppress(OSError):
            found += [path] * (path.is_file() and text in path.read_bytes())
    return found


def test_a_record_names_nothing_here(w):
    """What a node says of a run chooses no file, no variable and no directory of the machine that starts it again."""
    with site(w) as s:
        (w.home / "hidden").write_text("tweet-4712")
        w.write("kept/x", "tweet-4712", base=w.home)
        run = s.submit("--", "sh", "-c", "env; exit 3")
        s.ended(run)
        [path] = [p for p in s["gpu1"].homes.rglob("record") if p.parent.name == run]
        record = json.loads(path.read_text())
        elsewhere = {"XDG_STATE_HOME": str(w.dir / "elsewhere"), "OWN": "tweet-4712"}
        for secrets, data in (([f"X=@{w.home}/hidden", "Y=@~/hidden", f"OWN=@{w.home}/hidden"], []), (["OWN"], []),
                              ([], [{"path": "kept", "from": "sync"}])):
            record["spec"] |= {"secrets": secrets, "data": data}
            record["origin"] = {"machine": w.show(run)["origin"]["machine"], "root": str(w.home), "cwd": "."}
            path.write_text(json.dumps(record))
            shutil.rmtree(w.dir / "elsewhere", ignore_errors=True)
            adopted = json.loads(w.ok("show", f"ssh:gpu1:{run}", "--json", env=elsewhere).out)
            assert adopted["origin"].get("root") is None and adopted["id"] == run, adopted
            w.run("exec", f"ssh:gpu1:{run}", "--", "env", env=elsewhere)
            w.run("restart", f"ssh:gpu1:{run}", env=elsewhere)
            w.run("wait", f"ssh:gpu1:{run}", env=elsewhere)
            assert not holding(s["gpu1"].homes, b"tweet-4712"), (secrets, data)


# --- beside a run


def sleeping(s, *options):
    run = s.submit("--grace", "1s", *options, "--", "sleep", "600")
    s.running(run)
    return run


def test_ways_to_name_a_host(w):
    """As ssh, scp and git take them; what is said can be pasted."""
    with site(w) as s:
        host = s["gpu1"]
        user, where = host.accounts[0], f"{host.address}:{host.port}"
        with open(s.config, "a") as config:
            config.write(f"Host 127.0.0.1\n    IdentityFile {s.key('ed25519')}\n")
        for target in ("gpu1", "//gpu1", f"//{user}@gpu1/", f"{user}@{where}", f"//{user}@{where}", f"{user}@{host.address}:{host.port},gpu1"):
            done = s.follow("--", "echo", "here", to=target)
            assert done.rc == 0 and done.out == "here\n", (target, done)
        assert w.ok("logs", "@").out == "here\n" and w.show("@")["state"] == "succeeded"
        for target, words in (("[::1]:1", "-p 1 ::1 true"), ("me@[::1]:1", "-p 1 me@::1 true"), ("me@127.0.0.1:1", "-p 1 me@127.0.0.1 true")):
            done = s.follow("--", "true", to=target)
            assert done.rc == 3 and "refuses connections to port 1" in done.err and f"-v {words}" in done.err.replace("-p 1 -v", "-v -p 1"), done
        w.refused("submit", "-t", "ssh:a/b", "--", "true", id="usage", rc=2, says='has no "/"')
        w.refused("submit", "-t", "ssh:gpu[1-", "--", "true", id="usage", rc=2, says="brackets")


def test_commands_beside_a_run(w):
    with site(w, files={"here": "1\n"}) as s:
        run = sleeping(s, "-e", "OWN=mine")
        done = w.run("exec", run, "--", "sh", "-c", "echo $OWN $DLRUN_RUN_ID; cat here; echo err >&2; exit 7")
        assert (done.rc, done.out, done.err) == (7, f"mine {run}\n1\n", "err\n"), done
        assert w.run("exec", run, "--", "sh", "-c", "kill -9 $$").rc == 137
        data = b"".join(blocks(8))
        with open(w.write("data", data, base=w.dir), "rb") as file:
            done = w.run("exec", "-i", run, "--", "cat", stdin=file)
        assert done.rc == 0 and digest_of([done.out_bytes]) == digest_of([data]), (done.rc, done.err)
        assert w.run("exec", run, "--", "printf", "%s|", *[o for o in ODD if o]).out_bytes == b"".join(
            (o if isinstance(o, bytes) else o.encode()) + b"|" for o in ODD if o)
        w.refused("exec", run, "--", "no-such-program", id="exec.not_found", rc=127, says="no-such-program")
        w.refused("exec", run, "--", "./here", id="exec.not_executable", rc=126, says="./here")
        with subprocess.Popen([w.dlrun, "exec", run, "--", "sh", "-c", "echo ready; exec sleep 555"], cwd=w.tree, env=w.env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        wait_for(lambda: not s["gpu1"].processes("sleep", "555"), "the end of the command", 10)
        w.ok("cancel", run)
        s.ended(run)
        # In what it has left, and not when that is gone.
        assert w.ok("exec", run, "--", "sh", "-c", "echo $OWN $DLRUN_RUN_ID; cat here").out == f"mine {run}\n1\n"
        tree = w.ok("exec", run, "--", "pwd").out.strip()
        s["gpu1"].command("rm", "-rf", tree)
        w.refused("exec", run, "--", "true", id="run.ended", rc=1, says=[run, f"dlrun checkout {run} {run}"])


def test_a_command_waits_for_its_run(w):
    with site(w, files={"here": "1\n"}) as s:
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "until [ -e ~/go ]; do sleep 0.1; done"}}))
        run = s.submit("--grace", "1s", "--", "sleep", "600")
        with subprocess.Popen([w.dlrun, "exec", run, "--", "cat", "here"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert "waiting for it to run" in process.stderr.readline()
            s["gpu1"].home.joinpath("go").touch()
            assert process.communicate(timeout=60)[0] == "1\n" and process.returncode == 0, process
        w.ok("cancel", run)
        s.ended(run)
        s["gpu1"].home.joinpath("go").unlink()
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "until [ -e ~/go ]; do sleep 0.2; done"}}))
        # Ctrl-C ends the waiting, not the run.
        run = s.submit("--", "true")
        with subprocess.Popen([w.dlrun, "exec", run, "--", "true"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            assert "waiting for it to run" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"


def test_a_terminal_beside_a_run(w):
    with site(w) as s:
        run = sleeping(s)
        with contextlib.closing(Terminal(w, w.dlrun, "exec", "-it", run, "--", "sh", size=(33, 111))) as terminal:
            terminal.type(b"stty size; trap 'echo caught' INT; echo rea''dy\r")
            terminal.wait_for(b"33 111")
            terminal.wait_for(b"ready")
            terminal.resize(44, 122)
            wait_for(lambda: terminal.type(b"stty size\r") or b"44 122" in terminal.seen, "its new size")
            terminal.type(b"\x03")
            terminal.wait_for(b"caught")
            terminal.type(b"exit 5\r")
            assert terminal.process.wait(30) == 5, terminal.seen


def serve(s, *options):
    s.w.write("server.py", SERVER)
    run = s.submit("--grace", "1s", *options, "--", "python3", "server.py")
    s.said_by(run, "ready")
    return run


def test_a_forward_keeps_what_a_slow_reader_leaves(w):
    """The window of the channel is full in the pauses, after new keys every MiB."""
    with site(w, network=True, settings={"RekeyLimit": "1M"}) as s, forward(w, serve(s), DOWN) as ports, ports.connect(DOWN) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        line.sendall(b"%d\n" % SLOW_MIB)

        def pieces():
            left = PAUSE_AT
            while data := line.recv(min(left, 1 << 20)):
                yield data
                left -= len(data)
                if left == 0:
                    left = PAUSE_AT
                    time.sleep(2)  # What the reader takes its time for.

        came, wanted = digest_of(pieces()), digest_of(blocks(SLOW_MIB))
        assert came == wanted, (came, wanted)


def test_bytes_of_a_forward_arrive_whole(w):
    """With new keys every MiB."""
    with site(w, network=True, settings={"RekeyLimit": "1M"}) as s:
        run = serve(s)
        with forward(w, run, DOWN, UP, SLOW, ECHO, NAME, NEVER) as ports, contextlib.ExitStack() as lines:
            wanted = digest_of(blocks(FORWARD_MIB))
            came, took = download(ports, FORWARD_MIB)
            assert came == wanted, (came, wanted)
            begin = time.monotonic()
            with ports.connect(UP) as line:
                line.sendall(b"%d\n" % FORWARD_MIB)
                for block in blocks(FORWARD_MIB):
                    line.sendall(block)
                assert line.recv(100).decode() == wanted[0]
            print(f"forward: {FORWARD_MIB} MiB down in {took:.1f} s, up in {time.monotonic() - begin:.1f} s, keys for each MiB", flush=True)
            with ports.connect(SLOW) as line:
                line.sendall(b"\n")
                line.shutdown(socket.SHUT_WR)
                assert len(b"".join(received(line))) == 16, ports.said.read_text()
            many = [lines.enter_context(ports.connect(ECHO)) for _ in range(100)]
            for i, line in enumerate(many):
                line.sendall(b"%06d" % i * 500)
            for i, line in enumerate(many):
                with line.makefile("rb") as answer:
                    assert answer.read(3000) == b"%06d" % i * 500
            with contextlib.suppress(ConnectionResetError):
                assert ports.ask(NEVER) == b""
            assert len(ports.ask(NAME)) == 16


def test_a_forward_comes_back(w):
    with site(w, network=True) as s:
        run = serve(s)
        with s.wire("gpu1") as wire, forward(w, run, NAME) as ports:
            took = []
            for turn in range(50 if FULL else 6):
                assert ports.ask(NAME), ports.said.read_text()
                wire.cut_all("rst" if turn % 2 else "fin")
                took.append(recovery_s(ports))
            print(f"forward: answers again after at most {max(took):.2f} s", flush=True)
            s["gpu1"].restart(sessions=True)
            recovery_s(ports)


# --- others on the node


def test_two_accounts_on_one_node(w):
    with site(w, accounts=("alice", "bob")) as s:
        host = s["gpu1"]
        mine = sleeping(s)
        s.change("gpu1", User="bob")
        theirs = sleeping(s)
        for account in host.accounts:
            there = host.homes / account / ".dlrun"
            assert there.stat().st_mode & 0o777 == 0o700, oct(there.stat().st_mode)
        assert host.command("ls", "/home/alice/.dlrun", user="bob").rc != 0
        w.ok("cancel", theirs)
        s.change("gpu1", User="alice")
        assert s.state(mine) == "running" and s.ended(theirs)
        w.ok("cancel", mine)


def test_planted_links_are_refused(w):
    with site(w, accounts=("alice", "bob"), gpus=1) as s:
        host = s["gpu1"]
        host.ok("sh", "-c", "mkdir ~/trap && chmod 777 ~/trap && ln -s ~/trap /tmp/dlrun-gpus", user="bob")
        done = s.follow("-g", "1", "--", "true")
        assert done.rc == 0 and "/tmp/dlrun-gpus" in done.out, done
        host.ok("rm", "/tmp/dlrun-gpus")
        host.ok("sh", "-c", "mkdir -p ~/.dlrun && : > ~/.dlrun/shared", user="alice")
        host.ok("sh", "-c", "ln -s ~/trap /var/tmp/dlrun-3001", user="bob")
        shutil.rmtree(host.homes / "alice/.dlrun/on", ignore_errors=True)
        refused(s, "node.root", 2, "/var/tmp/dlrun-3001")
        assert not list((host.homes / "bob/trap").iterdir())


if __name__ == "__main__":
    main()
