#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attempts of a run: repeated, restarted, signalled, cancelled and killed in each phase; and the queue for
GPUs, which several of them share."""

import os
import signal
import subprocess

from harness import *  # noqa: F403

PORTABLE = os.environ.get("DLRUN_OS") == "portable"

TRAINER = """
import os, signal, sys
path = os.path.join(os.environ['DLRUN_OUTPUT_DIR'], 'step')
step = int(open(path).read()) if os.path.exists(path) else 0
print('from', step, flush=True)
while step < 30:
    step += 1
    with open(path + '.new', 'w') as out:
        out.write(str(step))
    os.replace(path + '.new', path)
    if step in (10, 20):
        os.kill(os.getpid(), signal.SIGKILL)
print('trained', step)
"""


def submit(w, *words, options=(), **more):
    return w.ok("submit", "-d", *options, "--", *words, **more).out.strip()


def ended(w, run="@"):
    w.run("wait", run)
    return w.show(run)


def exits(doc):
    return [(a["exit"] or {}).get("code") for a in doc["attempts"]]


def supervisors(run):
    """All processes of dlrun that care for the run."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if f"{run}/attempts/".encode() in file.read():
                        found.append(int(entry))
            except OSError:
                pass
    return found


def kill_supervisors(run):
    """Again and again: one that goes on with the next attempt does so in a new process."""
    def none_left():
        found = supervisors(run)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not found

    wait_for(none_left, "the supervisor is gone")


def fake_gpus(w, n, *, slow=0):
    """n GPUs that no other test has, of which nobody else knows."""
    tag = os.urandom(14).hex()
    rows = "".join(f"echo '{i}, GPU-{i:04x}{tag}, 00000000:{i + 1:02X}:00.0, 81559, Fake'\n" for i in range(n))
    w.write("smi/nvidia-smi", f"#!/bin/sh\ntest {slow} = 0 || sleep {slow}\ncase \"$*\" in\n*query-gpu*)\n{rows};;\nesac\n", 0o755,
            base=w.dir)
    w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"


# --- repeated


def test_a_trainer_goes_on_from_its_checkpoint(w):
    w.repo({"train.py": TRAINER})
    result = w.run("submit", "-f", "--retries", "5", "--", "python3", "train.py")
    assert result.rc == 0, result
    assert result.out == "from 0\nfrom 10\nfrom 20\ntrained 30\n", result
    doc = w.show()
    assert doc["state"] == "succeeded" and exits(doc) == [137, 137, 0], doc["attempts"]
    assert [a["number"] for a in doc["attempts"]] == [1, 2, 3]
    assert doc["attempts"][0]["exit"] == {"code": 137, "signal": 9, "origin": "job", "reason": "Signal"}
    times = [t for a in doc["attempts"] for t in (a["started"], a["ended"])]
    assert times == sorted(times) and None not in times
    assert doc["times"]["started"] == times[0] and doc["times"]["ended"] == times[-1]
    assert w.ok("logs").out == "from 20\ntrained 30\n"


def test_retries_are_used_up(w):
    w.repo()
    result = w.run("submit", "-f", "--retries", "2", "--", "sh", "-c", "echo $DLRUN_ATTEMPT; exit $((DLRUN_ATTEMPT + 4))")
    assert result.rc == 7 and result.out == "1\n2\n3\n", result
    assert exits(w.show()) == [5, 6, 7]


def test_each_attempt_has_a_new_tree_and_the_same_results(w):
    w.repo({"a": "1\n"})
    line = 'cat a; echo changed > a; echo $DLRUN_ATTEMPT >> "$DLRUN_OUTPUT_DIR/seen"; touch "$DLRUN_ATTEMPT_DIR/x"; ' \
           'ls "$DLRUN_ATTEMPT_DIR"; test $DLRUN_ATTEMPT = 3'
    result = w.ok("submit", "-f", "--retries", "2", "--", "sh", "-c", line)
    assert result.out == "1\nx\nchanged\nx\nchanged\nx\n", result
    assert (w.state / "runs" / w.show()["id"] / "outputs/seen").read_text() == "1\n2\n3\n"


def test_what_is_not_repeated(w):
    w.repo()
    for words, options, code in ((["no-such-program"], [], 127), (["sleep", "60"], ["--timeout", "100ms"], 124)):
        w.run("submit", "-d", "--retries", "3", *options, "--", *words)
        doc = ended(w)
        assert exits(doc) == [code], doc["attempts"]
        assert doc["exit"]["origin"] == "dlrun"
    run = submit(w, "sleep", "60", options=["--retries", "3"])
    wait_for(lambda: w.show(run)["state"] == "running", "running")
    w.ok("cancel", run)
    assert len(w.show(run)["attempts"]) == 1


def test_secrets_go_on_to_the_next_attempt_and_to_no_file(w):
    w.repo()
    w.ok("submit", "-d", "-e", "API_KEY=canary-5521", "--retries", "1", "--", "sh", "-c",
         'case $API_KEY in can*-5521) test $DLRUN_ATTEMPT = 2;; *) exit 9;; esac')
    doc = ended(w)
    assert doc["state"] == "succeeded" and len(doc["attempts"]) == 2, doc
    for base in (w.state, w.cache, w.layout):
        for path in base.rglob("*"):
            assert not path.is_file() or b"canary-" not in path.read_bytes(), path


def test_cancel_between_attempts(w):
    """However it falls: the run ends, and no attempt begins after the cancel was accepted."""
    w.repo()
    for _ in range(8):
        run = submit(w, "sh", "-c", "exit 1", options=["--retries", "1000"])
        wait_for(lambda: len(w.show(run)["attempts"]) > 2, "some attempts")
        w.ok("cancel", run)
        doc = w.show(run)
        assert doc["state"] == "cancelled", doc["state"]
        assert len(list((w.state / "runs" / run / "attempts").iterdir())) == len(doc["attempts"])


def test_rm_and_gc_take_all_attempts(w):
    w.repo()
    run = submit(w, "false", options=["--retries", "3"])
    assert len(ended(w, run)["attempts"]) == 4
    wait_for(lambda: not supervisors(run), "the supervisor has ended")
    w.ok("gc", "--keep", "0s")
    assert not list((w.state / "runs" / run / "attempts").glob("*/tree"))
    w.ok("rm", run)
    assert not (w.state / "runs" / run).exists()


# --- restarted


def test_restart(w):
    w.repo({"a": "then\n"})
    run = submit(w, "sh", "-c", 'cat a; echo $TOKEN_A; echo x >> "$DLRUN_OUTPUT_DIR/n"; test $(wc -l < "$DLRUN_OUTPUT_DIR/n") = 2',
                 options=["-e", "TOKEN_A", "-e", "KEPT=1"], env={"TOKEN_A": "first"})
    assert ended(w, run)["state"] == "failed"
    w.write("a", "now\n")
    result = w.ok("restart", "-f", run, env={"TOKEN_A": "second"})
    assert result.out == "then\nsecond\n", result
    doc = w.show(run)
    assert doc["state"] == "succeeded" and exits(doc) == [1, 0] and doc["exit"]["code"] == 0
    again = w.run("restart", run)
    assert again.rc == 1
    check_error_form(again.err, "run.ended")
    assert f"submit --from {run}" in again.err


def test_restart_says_which_secret_is_missing(w):
    w.repo()
    run = submit(w, "sh", "-c", 'test -n "$TOKEN_A"; echo "${TOKEN_A-none}"; false', options=["-e", "TOKEN_A=x"])
    ended(w, run)
    result = w.run("restart", "-f", run)
    assert result.out == "none\n" and "TOKEN_A" in result.err, result


def test_restart_of_cancelled_and_lost_and_of_a_running_one(w):
    w.repo()
    run = submit(w, "sh", "-c", "test $DLRUN_ATTEMPT = 3 || sleep 600")
    wait_for(lambda: w.show(run)["state"] == "running", "running")
    refused = w.run("restart", run)
    assert refused.rc == 1
    check_error_form(refused.err, "run.running")
    w.ok("cancel", run)
    w.ok("restart", run)
    wait_for(lambda: w.show(run)["state"] == "running", "running again")
    state = json.loads((w.state / "runs" / run / "attempts/2/state.json").read_text())
    kill_supervisors(run)
    os.killpg(state["program"]["pid"], signal.SIGKILL)
    wait_for(lambda: w.show(run)["state"] == "lost", "lost")
    w.ok("restart", run)
    doc = ended(w, run)
    assert doc["state"] == "succeeded" and [a["exit"]["reason"] for a in doc["attempts"]] == ["Cancelled", "Lost", "Completed"]


def test_two_restarts_at_once_are_one(w):
    w.repo()
    line = f'echo x >> "$DLRUN_OUTPUT_DIR/n"; until [ $DLRUN_ATTEMPT = 1 ] || [ -e {w.dir}/told ]; do sleep 0.05; done; false'
    run = submit(w, "sh", "-c", line)
    ended(w, run)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: w.run("restart", run), range(6)))
    (w.dir / "told").touch()
    assert sorted(r.rc for r in done) == [0, 1, 1, 1, 1, 1], done
    doc = ended(w, run)
    assert len(doc["attempts"]) == 2
    assert (w.state / "runs" / run / "outputs/n").read_text() == "x\nx\n"


def test_restart_begins_the_count_again(w):
    w.repo()
    run = submit(w, "false", options=["--retries", "1"])
    assert exits(ended(w, run)) == [1, 1]
    w.ok("restart", run)
    assert exits(ended(w, run)) == [1, 1, 1, 1]


def test_restart_that_is_killed(w):
    """At each of its calls: the attempt runs once or never, and the run can be restarted again."""
    needs("strace")
    w.repo()
    run = submit(w, "sh", "-c", 'echo $DLRUN_ATTEMPT >> "$DLRUN_OUTPUT_DIR/n"; false')
    ended(w, run)
    calls = "write,rename,renameat,mkdir,fsync,fdatasync,clone,clone3,vfork,execve,flock,fcntl,pwrite64,unlink"
    log = w.dir / "count"
    assert w.command(["strace", "-qq", "-e", f"trace={calls}", "-o", str(log), w.dlrun, "restart", run]).rc == 0
    ended(w, run)
    total = len(log.read_text().splitlines())
    for n in range(1, total + 1, max(1, total // 25)):
        before = w.show(run)
        w.command(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={n}",
                   w.dlrun, "restart", run])
        doc = ended(w, run)
        assert doc["state"] == "failed", doc["state"]
        assert len(doc["attempts"]) - len(before["attempts"]) in (0, 1)
    ran = (w.state / "runs" / run / "outputs/n").read_text().split()
    assert len(ran) == len(set(ran)), ran
    began = [str(a["number"]) for a in w.show(run)["attempts"] if a["exit"]["reason"] == "Error"]
    assert ran == began, (ran, began)


# --- signals


def test_signal_before_the_limit(w):
    w.repo({"p.py": """
import os, signal, sys, time
def save(*_):
    open(os.path.join(os.environ['DLRUN_OUTPUT_DIR'], 'saved'), 'w').close()
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print('ready', flush=True)
time.sleep(600)
"""})
    result = w.ok("submit", "-f", "--timeout", "15s", "--signal", "USR1@10", "--", "python3", "p.py")
    doc = w.show()
    assert doc["state"] == "succeeded" and result.out == "ready\n"
    assert (w.state / "runs" / doc["id"] / "outputs/saved").exists()


def test_stop_signal(w):
    """KeyboardInterrupt, once, by a cancel and at the limit; `restart` keeps it."""
    w.repo({"p.py": INTERRUPTED, "dlrun.yaml": "stop_signal: INT\n"})
    run = submit(w, "python3", "p.py")
    wait_for(lambda: "ready" in w.ok("logs", run).out, "the program")
    w.ok("cancel", run)
    assert ended(w, run)["exit"] == {"code": 143, "signal": None, "origin": "dlrun", "reason": "Cancelled"}, w.show(run)
    assert w.ok("logs", run).out == "ready\nsaved\n"
    w.write("dlrun.yaml", "")
    w.ok("restart", run)
    wait_for(lambda: w.ok("logs", run).out.endswith("ready\n"), "the next attempt")
    w.ok("cancel", run)
    assert ended(w, run)["state"] == "cancelled" and w.ok("logs", run).out.endswith("ready\nsaved\n"), w.ok("logs", run)
    w.write("dlrun.yaml", "stop_signal: INT\n")
    result = within_limit(lambda limit_s: w.run("submit", "-f", "--timeout", f"{limit_s}s", "--", "python3", "p.py"),
                          lambda: "ready" in w.ok("logs").out)
    assert result.rc == 124 and w.ok("logs").out == "ready\nsaved\n", result


def test_a_program_that_ignores_signals(w):
    w.repo({"p.py": "import signal, time\nfor s in (signal.SIGUSR1, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)\n"})
    result = w.run("submit", "-f", "--retries", "3", "--timeout", "6s", "--signal", "USR1@1", "--grace", "200ms", "--",
                   "python3", "p.py")
    assert result.rc == 124, result
    doc = w.show()
    assert doc["exit"] == {"code": 124, "signal": 9, "origin": "dlrun", "reason": "Timeout"} and len(doc["attempts"]) == 1


# --- each phase


def setup_config(w, line):
    w.repo({"key": "1\n", "dlrun.yaml": f"setup: {{run: {json.dumps(line)}, key: [key]}}\n"})


def test_cancel_in_the_setup(w):
    setup_config(w, f"echo > {w.dir}/up; sleep 600")
    run = submit(w, "echo", "ran")
    wait_for(lambda: (w.dir / "up").exists(), "the setup runs")
    assert w.show(run)["state"] == "starting" and "setup" in w.show(run)["text"]
    w.ok("cancel", run)
    assert w.show(run)["state"] == "cancelled" and w.ok("logs", run).out == ""
    wait_for(lambda: not supervisors(run), "the supervisor has ended")


def test_cancel_in_the_queue(w):
    w.repo()
    fake_gpus(w, 1)
    first = submit(w, "sleep", "600")
    wait_for(lambda: w.show(first)["state"] == "running", "running")
    second = submit(w, "echo", "ran")
    wait_for(lambda: w.show(second)["state"] == "queued" and w.show(second)["text"], "queued")
    assert "GPU" in w.ok("why", second).out
    w.ok("cancel", second)
    assert w.show(second)["state"] == "cancelled" and w.ok("logs", second).out == ""
    w.ok("cancel", first)


def test_waiting_does_not_count(w):
    w.repo()
    fake_gpus(w, 1)
    first = submit(w, "sleep", "3")
    wait_for(lambda: w.show(first)["state"] == "running", "running")
    second = submit(w, "true", options=["--timeout", "2s"])
    assert ended(w, second)["state"] == "succeeded" and ended(w, first)["state"] == "succeeded"


def test_sigkill_in_the_setup(w):
    """Nobody runs its program, and the next run has its setup."""
    setup_config(w, f"echo >> {w.dir}/up; test $(wc -l < {w.dir}/up) = 2 || sleep 600; echo made > product")
    run = submit(w, "cat", "product")
    wait_for(lambda: (w.dir / "up").exists(), "the setup runs")
    kill_supervisors(run)
    assert ended(w, run)["state"] == "lost"
    result = w.ok("submit", "-f", "--", "cat", "product", timeout=60)
    assert result.out == "made\n", result
    w.ok("restart", "-f", run)
    assert (w.dir / "up").read_text() == "\n\n"


def test_sigkill_in_the_queue(w):
    w.repo()
    fake_gpus(w, 1)
    first = submit(w, "sleep", "600")
    wait_for(lambda: w.show(first)["state"] == "running", "running")
    second, third = (submit(w, "echo", "ran") for _ in range(2))
    wait_for(lambda: w.show(third)["state"] == "queued" and w.show(second)["state"] == "queued", "queued")
    kill_supervisors(second)
    assert ended(w, second)["state"] == "lost"
    w.ok("cancel", first)
    assert ended(w, third)["state"] == "succeeded"


def test_sigkill_of_the_supervisor_does_not_free_the_gpu(w):
    w.repo()
    fake_gpus(w, 1)
    os.mkfifo(w.dir / "gate")
    first = submit(w, "sh", "-c", f"echo up; read x < {w.dir}/gate")
    wait_for(lambda: "up" in w.ok("logs", first).out, "running")
    kill_supervisors(first)
    second = submit(w, "echo", "ran")
    wait_for(lambda: w.show(second)["state"] == "queued" and w.show(second)["text"], "queued")
    assert w.show(first)["state"] == "running" and w.ok("logs", second).out == ""
    with open(w.dir / "gate", "w"):
        pass
    assert ended(w, second)["state"] == "succeeded"
    # The kernel frees the GPU's lock before the last of the program is gone.
    wait_for(lambda: w.show(first)["state"] != "running", "the end of the first")
    assert w.show(first)["state"] == "lost"


def test_sigkill_between_attempts(w):
    """At moments that chance picks: no attempt runs twice, and none is left half begun."""
    w.repo()
    for i in range(12):
        run = submit(w, "sh", "-c", 'echo $DLRUN_ATTEMPT >> "$DLRUN_OUTPUT_DIR/n"; exit 1', options=["--retries", "1000"])
        seen = w.state / "runs" / run / "outputs/n"
        wait_for(lambda: seen.exists() and len(seen.read_text().split()) > i % 5, "attempts")
        kill_supervisors(run)
        doc = ended(w, run)
        assert doc["state"] in ("failed", "lost"), doc["state"]
        assert doc["exit"]["reason"] in ("Interrupted", "Lost", "Error", "StartFailed"), doc["exit"]
        ran = [int(n) for n in seen.read_text().split()]
        assert ran == list(range(1, len(ran) + 1)), ran
        assert len(ran) <= len(doc["attempts"]) <= len(ran) + 1, (ran, len(doc["attempts"]))
        if doc["exit"]["reason"] == "Interrupted":
            assert f"attempt {len(doc['attempts'])}" in doc["text"]
        w.ok("restart", run)
        wait_for(lambda: len(seen.read_text().split()) > len(ran), "it goes on")
        assert w.run("cancel", run).rc == 0


def test_sigkill_at_each_call_of_a_handover(w):
    """strace kills the supervisor at its Nth call between the end of one attempt and the start of the next."""
    needs("strace")
    w.repo()
    calls = "rename,mkdir,flock,clone,clone3,fork,unlink,socketpair,chdir,openat"
    for n in range(1, 40, 3):
        run = submit(w, "sh", "-c", f'echo $DLRUN_ATTEMPT >> "$DLRUN_OUTPUT_DIR/n"; test $DLRUN_ATTEMPT = 3 && exit 0; '
                     f'until test -e {w.dir}/go{n}; do sleep 0.01; done; exit 1', options=["--retries", "5"])
        wait_for(lambda: w.show(run)["state"] == "running", "running")
        pid = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())["supervisor"]["pid"]
        tracer = subprocess.Popen(["strace", "-qq", "-f", "-o", "/dev/null", "-p", str(pid), "-e", f"trace={calls}", "-e",
                                   f"inject={calls}:signal=SIGKILL:when={n}"], stderr=subprocess.PIPE)
        wait_for(lambda: traced(pid) or tracer.poll() is not None, "traced")
        # One whose process was killed at once has ended, too, but well.
        if tracer.poll():
            raise Skip("strace cannot attach here")
        (w.dir / f"go{n}").touch()
        doc = ended(w, run)
        tracer.terminate()
        tracer.wait()
        ran = (w.state / "runs" / run / "outputs/n").read_text().split()
        assert ran == [str(i + 1) for i in range(len(ran))], (n, ran)
        assert doc["state"] in ("succeeded", "failed", "lost"), (n, doc["state"])
        assert len(ran) <= len(doc["attempts"]) <= len(ran) + 1, (n, ran, doc["attempts"])


def traced(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return "TracerPid:\t0\n" not in file.read()
    except OSError:
        return True


# --- the queue for GPUs

HOLDER = """
import os, sys, time
holders = sys.argv[1]
mine = [os.path.join(holders, gpu) for gpu in os.environ['CUDA_VISIBLE_DEVICES'].split(',')]
for path in mine:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
time.sleep(0.01)
for path in mine:
    os.unlink(path)
"""


def test_64_runs_race_for_two_gpus(w):
    w.repo({"hold.py": HOLDER})
    fake_gpus(w, 2)
    (w.dir / "held").mkdir()
    for _ in range(int(os.environ.get("DLRUN_GPU_ROUNDS", "4" if ALL else "1"))):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            runs = list(pool.map(lambda i: submit(w, "python3", "hold.py", str(w.dir / "held"),
                                                  options=["-n", "race", "-g", "2"] if i % 16 == 5 else ["-n", "race"]), range(64)))
        w.run("wait", *runs, timeout=300)
        states = {w.show(r)["state"] for r in runs}
        assert states == {"succeeded"}, [w.ok("logs", r).out for r in runs if w.show(r)["state"] != "succeeded"][:3]
    assert not list((w.dir / "held").iterdir())


def test_gpus_of_the_record_and_the_environment(w):
    w.repo()
    fake_gpus(w, 2)
    line = "echo $CUDA_VISIBLE_DEVICES $DLRUN_GPUS_PER_NODE"
    assert w.ok("submit", "-f", "-g", "2", "--", "sh", "-c", line).out == "0,1 2\n"
    assert w.show()["resources"]["gpus"] == 2 and w.show()["resources"]["gpu_model"] == "Fake"
    assert w.ok("submit", "-f", "-e", "CUDA_VISIBLE_DEVICES=1", "--", "sh", "-c", line).out == "1 1\n"
    assert w.ok("submit", "-f", "-g", "0", "--", "sh", "-c", line).out.split()[-1] == "0"


def test_gpu_tool_that_fails(w):
    w.repo()
    w.write("smi/nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n", 0o755, base=w.dir)
    w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"
    assert w.ok("submit", "-f", "--", "echo", "ran").out == "ran\n"
    assert "Driver" in " ".join(w.show()["warnings"]), w.show()["warnings"]


if __name__ == "__main__":
    main()
