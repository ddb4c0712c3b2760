#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a program: its data, setup, results, GPUs and signals. Each says so in the
stated form, with the stated exit status; nothing is lost, nothing left behind."""

import os
import subprocess
import time

from attempts import fake_gpus
from failure import small_disk
from harness import *  # noqa: F403
from local import ended, pids_with, supervisor


def config(w, text):
    w.write("dlrun.yaml", text)


def ids(result):
    return re.findall(r"\[([a-z_.]+)\]$", result.err, re.M)


def refused_config(w, text, id, says):
    config(w, text)
    w.refused("submit", "-d", "--", "true", id=id, rc=2, says=says)
    answer = w.run("--json", "submit", "-d", "--", "true")
    error = json.loads(answer.out)
    assert answer.rc == 2 and error["error"]["id"] == id and error["error"]["exit"] == 2, error


def nothing_stays(w, mark):
    wait_for(lambda: not pids_with(mark), "no process of it is left")


def test_data_that_is_not_there(w):
    w.repo({"a": "1", ".gitignore": "data/\n"})
    refused_config(w, "data: [data/none]\n", "run.data", "data/none")
    result = w.run("submit", "-d", "--", "true")
    assert "  hint: " in result.err, result
    (w.tree / "data").symlink_to(w.dir / "unplugged")
    refused_config(w, "data: [data]\n", "run.data", "data")
    config(w, f"data: [data/none]\ntargets: {{local: {{kind: local, data: {{data/none: {w.dir}/gone}}}}}}\n")
    w.refused("submit", "-d", "--", "true", id="run.data", rc=2, says="gone")
    (w.dir / "gone").mkdir()
    w.write("x", "found\n", base=w.dir / "gone")
    (w.tree / "data").unlink()
    assert w.ok("submit", "-f", "--", "cat", "data/none/x").out == "found\n"


def test_data_that_goes_away_before_the_start(w):
    """Accepted, and not there any more for the second attempt: the run says so, and nothing hangs."""
    w.repo({".gitignore": "data\n"})
    w.write("data/x", "1")
    config(w, "data: [data]\n")
    run = w.ok("submit", "-d", "--", "sh", "-c", "cat data/x; exit 3").out.strip()
    assert ended(w, run)["exit"]["code"] == 3
    shutil.rmtree(w.tree / "data")
    w.run("restart", run)
    doc = ended(w, run)
    assert doc["state"] == "failed" and w.ok("why", run).out.strip(), doc


def test_paths_that_are_none(w):
    w.repo({"a": "1", "dir/tracked": "1"})
    (w.dir / "outside").mkdir()
    for key in ("data", "outputs"):
        for path in ("/etc", "../x", "dir/../../x", "~/x", ".", "./", "", "/"):
            config(w, f'{key}: ["{path}"]\n')
            result = w.run("submit", "-d", "--", "true")
            assert result.rc == 2, (key, path, result)
            check_error_form(result.err, ids(result)[0])
            assert key in result.err and not w.traces(), (key, path, result)
    for text in ("data: [5]\n", "data: {a: b}\n", "outputs: [[a]]\n", "outputs: {}\n", "data: [a, [b]]\n"):
        config(w, text)
        result = w.run("submit", "-d", "--", "true")
        assert result.rc in (0, 2), (text, result)
        if result.rc:
            assert ids(result)[0].startswith("config") or ids(result)[0] == "run.data", (text, result)


def test_outputs_that_are_files_of_the_tree(w):
    w.repo({"result.txt": "1\n", "out/x": "1\n", "link": "1\n"})
    refused_config(w, "outputs: [result.txt]\n", "run.outputs", "result.txt")
    (w.tree / "link").unlink()
    (w.tree / "link").symlink_to(w.dir)
    refused_config(w, "outputs: [link]\n", "run.outputs", "link")
    config(w, "outputs: [link/out]\n")
    result = w.run("submit", "-f", "--", "sh", "-c", "mkdir -p link/out; echo 1 > link/out/y")
    assert not (w.dir / "out").exists() or result.rc == 0 and result.err, f"written outside, and not a word: {result!r}"
    config(w, "outputs: [result.txt/deep]\n")
    result = w.run("submit", "-f", "--", "true")
    assert result.rc in (2, 125), result
    check_error_form(result.err, ids(result)[0])
    assert (w.tree / "result.txt").read_text() == "1\n" and (w.tree / "out/x").read_text() == "1\n"


def test_data_and_outputs_that_overlap(w):
    w.repo({".gitignore": "/both\n/a\n"})
    for path in ("both/deep", "a/b"):
        w.write(f"{path}/x", "1\n")
    for text in ("data: [both]\noutputs: [both]\n", "data: [both/]\noutputs: [./both]\n"):
        config(w, text)
        result = w.run("submit", "-d", "--", "true")
        assert result.rc == 2 and "both" in result.err and not w.traces(), (text, result)
        check_error_form(result.err, ids(result)[0])
    before = hash_dir(w.tree / "both")
    for text in ("data: [both]\noutputs: [both/deep]\n", "data: [both/deep]\noutputs: [both]\n",
                 "data: [both, both/deep]\n", "data: [both, both]\n", "outputs: [out, out/tb]\n",
                 "outputs: [out, out]\n"):
        config(w, text)
        result = w.run("submit", "-f", "--", "sh", "-c", "mkdir -p out/tb both/deep; cat both/deep/x; "
                       "echo 2 > out/tb/y; echo 2 > both/deep/y; echo 2 > both/z; true")
        if result.rc:
            check_error_form(result.err, ids(result)[0])
            assert result.rc in (2, 125), (text, result)
            continue
        if "outputs: [out" in text:
            kept = w.state / "runs" / w.show()["id"] / "outputs/out/tb/y"
            assert kept.read_text() == "2\n", (text, result)
        elif "outputs" not in text:
            assert "1\n" in result.out, (text, result)
            (w.tree / "both/deep/y").unlink()
            (w.tree / "both/z").unlink(missing_ok=True)
        elif "data: [both]" in text:
            (w.tree / "both/z").unlink(missing_ok=True)
            assert hash_dir(w.tree / "both") == before, f"{text}: an output was written to the data"
        else:
            assert not (w.tree / "both/z").exists(), f"{text}: an output was written to the tree"
            assert (w.state / "runs" / w.show()["id"] / "outputs/both/z").exists(), (text, result)
            (w.tree / "both/deep/y").unlink()


def test_setup_that_fails(w):
    w.repo({"lock": "1", "setup.sh": "echo working\necho no such wheel >&2\n[ -e /nowhere ] || exit 7\n"})
    config(w, "setup: {run: sh setup.sh, key: [lock]}\n")
    for _ in range(2):
        result = w.run("submit", "-f", "--", "sh", "-c", "echo program")
        assert result.rc == 125 and "program" not in result.out, result
        check_error_form(result.err, "run.setup")
        assert "7" in result.err and "no such wheel" in result.err + result.out, result
        doc = w.show()
        assert doc["state"] == "failed" and doc["exit"]["origin"] == "setup", doc
        assert "no such wheel" in w.ok("logs").out + w.ok("why").out
    ps = w.ok("ps", "-a").out
    assert "failed" in ps
    w.write("setup.sh", "mkdir env; echo ok > env/x\n")
    w.write("lock", "2")
    assert w.ok("submit", "-f", "--", "cat", "env/x").out == "ok\n"
    w.write("lock", "1")
    assert w.ok("submit", "-f", "--", "cat", "env/x").out == "ok\n", "what failed is tried again"


def test_setup_that_is_cancelled(w):
    mark = f"600.{os.getpid()}{int(time.time())}"
    w.repo({"lock": "1"})
    config(w, f"setup: {{run: \"touch {w.dir}/began; mkdir half; exec sleep {mark}\", key: [lock]}}\n")
    run = w.ok("submit", "-d", "--grace", "300ms", "--", "ls").out.strip()
    wait_for(lambda: (w.dir / "began").exists(), "setup runs")
    w.ok("cancel", run)
    doc = ended(w, run)
    assert doc["state"] == "cancelled", doc
    nothing_stays(w, mark)
    config(w, "setup: {run: \"[ ! -e half ] && mkdir whole\", key: [lock]}\n")
    assert "whole" in w.ok("submit", "-f", "--", "ls").out, "no half-made setup is used"


def test_setup_keys(w):
    w.repo({"a": "1", ".gitignore": "ignored\n"})
    w.write("ignored", "1")
    refused_config(w, "setup: {run: \"true\", key: [uv.lock]}\n", "run.setup", "uv.lock")
    refused_config(w, "setup: {run: \"true\", key: [ignored]}\n", "run.setup", "ignored")
    for text in ("setup: {key: [a]}\n", "setup: {run: \"true\", key: [../a]}\n",
                 "setup: {run: \"true\", key: [/etc/passwd]}\n", "setup: {run: \"true\", keys: [a]}\n",
                 "setup: uv sync\n", "setup: {run: [uv, sync], key: [a]}\n"):
        config(w, text)
        result = w.run("submit", "-d", "--", "true")
        assert result.rc == 2 and not w.traces(), (text, result)
        check_error_form(result.err, ids(result)[0])


def test_before_that_fails(w):
    w.repo()
    config(w, "before: |\n  echo before\n  [ -e none ] || exit 9\n")
    result = w.run("submit", "-f", "--", "echo", "program")
    assert result.rc == 9 and result.out == "before\n", result
    check_error_form(result.err, ids(result)[0])
    assert w.show()["state"] == "failed"
    for text in ("before: \"'\"\n", "before: [a, b]\n", "before: {}\n"):
        config(w, text)
        result = w.run("submit", "-f", "--", "echo", "program")
        assert result.rc != 0 and "program" not in result.out, result
        check_error_form(result.err, ids(result)[0])


def test_gpus_that_are_not_there(w):
    w.repo()
    for value in ("-1", "two", "", "1.5", "99999999999999999999", "0x1"):
        result = w.run("submit", "-d", f"--gpus={value}", "--", "true")
        assert result.rc == 2 and not w.traces(), (value, result)
        check_error_form(result.err, ids(result)[0])
    for value in ("-1", "two", "[1]", "1.5"):
        config(w, f"resources: {{gpus: {value}}}\n")
        result = w.run("submit", "-d", "--", "true")
        assert result.rc == 2 and not w.traces(), (value, result)
        check_error_form(result.err, ids(result)[0])
    config(w, "")
    result = w.run("submit", "-d", "-g", "999", "--", "true")
    assert result.rc == 2 and "999" in result.err and not w.traces(), result
    check_error_form(result.err, "gpu.count")
    assert "  hint: " in result.err
    assert w.ok("submit", "-f", "-g", "0", "--", "echo", "none").out == "none\n"
    fake_gpus(w, 2)
    w.refused("submit", "-d", "-g", "3", "--", "true", id="gpu.count", rc=2, says="2")
    result = w.run("submit", "-f", "-g", "1", "--", "true", env={"CUDA_VISIBLE_DEVICES": "7"}, timeout=60)
    assert result.rc == 125 and "1 GPU" in result.err, result
    check_error_form(result.err, "run.start")
    result = w.run("submit", "-f", "-g", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", timeout=60)
    assert result.rc == 0 and result.out == "0,1\n", result


def test_gpu_tools_that_fail(w):
    """What nvidia-smi says is data: nonsense, silence and failures end in words, not in a run that waits for ever."""
    w.repo()
    w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"
    for script in ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "printf '\\033]0;x\\007%s\\n' ,,,,,",
                   "head -c 3000000 /dev/zero", "kill -9 $$"):
        w.write("smi/nvidia-smi", f"#!/bin/sh\n{script}\n", 0o755, base=w.dir)
        result = w.run("submit", "-f", "-g", "2", "--", "true", timeout=60)
        assert result.rc in (1, 2, 125), (script, result)
        check_error_form(result.err, ids(result)[0])
        assert w.ok("submit", "-f", "-g", "0", "--", "echo", "ok").out == "ok\n"


def test_output_disk_that_is_full(w):
    """The program gets ENOSPC as anywhere; its end, its log and what fitted are kept."""
    w.repo()
    there = small_disk(w, "disk", "8m")
    env = {"XDG_STATE_HOME": str(there)}
    try:
        config(w, "outputs: [out]\n")
        program = ("echo first; echo 1 > out/small; dd if=/dev/zero of=out/big bs=64k 2>/dev/null || "
                   "{ echo full; yes | head -c 300000; exit 28; }")
        result = w.run("submit", "-f", "--", "sh", "-c", program, env=env)
        assert result.rc == 28 and result.out.startswith("first\n"), result
        doc = json.loads(w.ok("show", "@", "--json", env=env).out)
        assert doc["state"] == "failed" and doc["exit"]["code"] == 28, doc
        outputs = there / "dlrun/runs" / doc["id"] / "outputs/out"
        assert (outputs / "small").read_text() == "1\n" and (outputs / "big").stat().st_size > 1 << 20
        assert w.ok("logs", "@", env=env).out.startswith("first\n")
        refused = w.run("submit", "-d", "--", "true", env=env)
        assert refused.rc in (0, 1, 125), refused
        if refused.rc:
            check_error_form(refused.err, "io.full")
        got = w.run("fetch", doc["id"], "out/small", "-o", str(w.dir / "got"), env=env)
        assert got.rc == 0 and [p.read_text() for p in (w.dir / "got").rglob("small")] == ["1\n"], got
        (outputs / "big").unlink()
        (there / "dlrun/runs" / doc["id"] / "attempts/1/log").unlink()
        assert w.ok("submit", "-f", "--", "echo", "again", env=env).out == "again\n"
        w.ok("rm", doc["id"], env=env)
        w.ok("submit", "-f", "--", "sh", "-c", "head -c 3000000 /dev/urandom > out/x", env=env)
        full = small_disk(w, "fetched", "1m")
        try:
            short = w.run("fetch", "@", "-o", str(full / "to"), env=env)
            assert short.rc == 1, short
            check_error_form(short.err, "io.full")
        finally:
            subprocess.run(["umount", "-l", str(full)])
    finally:
        subprocess.run(["umount", "-l", str(there)])


def test_signals(w):
    w.repo()
    for text in ("NOPE@5", "USR1", "USR1@", "@5", "USR1@-5", "USR1@soon", "KILL@5", "STOP@5", "99@5",
                 "USR1@5@5", "0@5"):
        result = w.run("submit", "-d", "--timeout", "1h", f"--signal={text}", "--", "true")
        assert result.rc == 2 and not w.traces(), (text, result)
        check_error_form(result.err, ids(result)[0])
    config(w, "signal: NOPE@5\ntimeout: 1h\n")
    result = w.run("submit", "-d", "--", "true")
    assert result.rc == 2 and "NOPE@5" in result.err and not w.traces(), result
    config(w, "")
    result = w.run("submit", "-d", "--timeout", "5s", "--signal", "USR1@10", "--", "true")
    assert result.rc == 2 and not w.traces(), result
    check_error_form(result.err, "usage")


def test_signal_that_the_program_ignores(w):
    mark = f"mark-{w.dir.name}"
    w.repo({"deaf.sh": "trap '' USR1 TERM INT HUP\necho up\nwhile :; do sleep 0.1; done\n"})
    result = w.run("submit", "-f", "--timeout", "6s", "--signal", "USR1@1", "--grace", "200ms",
                   "--", "sh", "deaf.sh", mark)
    assert result.rc == 124 and result.out == "up\n", result
    check_error_form(result.err, "run.timeout")
    doc = w.show()
    assert doc["state"] == "failed" and doc["exit"]["reason"] == "Timeout" and doc["exit"]["origin"] == "dlrun", doc
    nothing_stays(w, mark)
    # A program that knows nothing of the signal ends by it: that is its own end, not the limit's.
    result = w.run("submit", "-f", "--timeout", "10s", "--signal", "USR1@9", "--", "sleep", "60")
    assert result.rc == 138, result
    assert w.show()["exit"]["signal"] == 10


def test_retries(w):
    w.repo()
    for value in ("-1", "many", "1001", "", "1.5", "99999999999999999999"):
        result = w.run("submit", "-d", f"--retries={value}", "--", "true")
        assert result.rc == 2 and not w.traces(), (value, result)
        check_error_form(result.err, ids(result)[0])
    result = w.run("submit", "-f", "--retries", "2", "--", "sh", "-c", "echo try $DLRUN_ATTEMPT; exit 4")
    assert result.rc == 4 and [f"try {n}" in result.out for n in (1, 2, 3)] == [True] * 3, result
    run = w.ok("submit", "-d", "--retries", "50", "--", "sleep", "60").out.strip()
    wait_for(lambda: w.show(run)["state"] == "running", "it runs")
    w.ok("cancel", run)
    doc = ended(w, run)
    assert doc["state"] == "cancelled" and len(doc["attempts"]) == 1, "a cancelled run is not tried again"
    result = w.run("submit", "-f", "--retries", "3", "--timeout", "300ms", "--grace", "100ms", "--", "sleep", "60")
    assert result.rc == 124 and len(w.show()["attempts"]) == 1, "nor is one at its time limit"
    wait_for(lambda: not supervisor(w, run), "no supervisor is left")


def test_restart(w):
    w.repo()
    w.refused("restart", "nobody-23456", id="run.not_found", rc=5, says="nobody-23456")
    run = w.ok("submit", "-d", "--", "sleep", "60").out.strip()
    wait_for(lambda: w.show(run)["state"] == "running", "it runs")
    result = w.run("restart", run)
    assert result.rc == 1 and len(w.show(run)["attempts"]) == 1, result
    check_error_form(result.err, "run.running")
    w.ok("cancel", run)
    ended(w, run)
    w.ok("rm", run)
    assert w.run("restart", run).rc == 5


if __name__ == "__main__":
    main()
