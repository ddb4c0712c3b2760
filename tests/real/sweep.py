#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Studies on this machine: many runs by one command, and what is left when it is stopped."""

import os
import shlex
import signal
import subprocess

import kill
from harness import *  # noqa: F403

# Calls that change something outside of the process.
CALLS = ("openat,openat2,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,fsync,fdatasync,ftruncate,"
         "link,linkat,clone,clone3,vfork,execve,flock,fchmod,close,pipe2")


def sweep(w, *words, **more):
    return w.ok("sweep", "-d", *words, **more).out.strip()


def members(w, study):
    found = [run for run in w.runs() if run["group"] == study]
    return sorted(found, key=lambda run: run["study"]["index"])


def ended(w, study):
    w.run("sweep", "-f", study)
    return members(w, study)


def nothing_is_left(w):
    assert w.runs() == [], w.runs()
    for name in ("studies", "runs"):
        place = w.state / name
        assert not place.exists() or not os.listdir(place), os.listdir(place)


def test_a_grid(w):
    w.repo({"train.sh": 'echo "$DLRUN_RUN_ID $DLRUN_STUDY $DLRUN_STUDY_INDEX $DLRUN_STUDY_SIZE $NAME $*"\n'})
    study = sweep(w, "--over", "lr=0.1,0.03", "--over", "seed=1..3", "-e", "NAME=n{index}", "--tag", "paper",
                  "--", "sh", "train.sh", "--lr", "{lr}", "--seed={seed}")
    assert re.fullmatch(r"train-[2-9a-hjkmnp-z]{5}", study), study
    suffix = study.rsplit("-", 1)[1]
    runs = ended(w, study)
    assert [run["id"] for run in runs] == [f"train-{i}-{suffix}" for i in range(6)]
    cases = [(lr, seed) for lr in ("0.1", "0.03") for seed in ("1", "2", "3")]
    for i, (run, (lr, seed)) in enumerate(zip(runs, cases)):
        assert run["params"] == {"lr": lr, "seed": seed} and run["study"] == {"id": study, "index": i}, run
        assert run["state"] == "succeeded" and run["parent"] is None and "paper" in run["tags"]
        assert run["command"] == ["sh", "train.sh", "--lr", lr, f"--seed={seed}"]
        assert w.ok("logs", run["id"]).out == f"{run['id']} {study} {i} 6 n{i} --lr {lr} --seed={seed}\n"
    assert len({run["image"]["ref"] for run in runs}) == 1 and len({run["snapshot"]["id"] for run in runs}) == 1


def test_values_go_where_the_program_takes_them(w):
    w.repo()
    for words, expected in ((["{args}"], "--lr=0.1 --opt=adam"), (["{overrides}"], "lr=0.1 opt=adam"),
                            (["--lr", "{lr}", "{args}"], "--lr 0.1 --opt=adam")):
        study = sweep(w, "--over", "lr=0.1", "--over", "opt=adam", "--", "echo", *words)
        run, = ended(w, study)
        assert w.ok("logs", run["id"]).out == expected + "\n"


def test_zip_sample_and_cases(w):
    w.repo({"cases.csv": "lr,name\n0.1,\"a b\"\n0.2,c\n"})
    study = sweep(w, "--over", "a=1,2", "--over", "b=3,4", "--zip", "--", "echo", "{a}{b}")
    assert [run["command"][1] for run in ended(w, study)] == ["13", "24"]
    both = [sweep(w, "--over", "a=1..100", "--over", "b=1..100", "--sample", "3", "--seed", "7", "--", "echo", "{a}-{b}")
            for _ in range(2)]
    commands = [[run["command"] for run in ended(w, study)] for study in both]
    assert commands[0] == commands[1] and len(commands[0]) == 3
    study = sweep(w, "--cases", "cases.csv", "--", "echo", "{lr}", "{name}")
    assert [run["params"] for run in ended(w, study)] == [{"lr": "0.1", "name": "a b"}, {"lr": "0.2", "name": "c"}]


def test_axes_of_the_configuration(w):
    w.repo({"dlrun.yaml": "command: [echo, none]\nsweep: {over: {lr: [0.1, 3e-2], seed: 1..2}, zip: true, parallel: 1}\n"})
    study = sweep(w, "--", "echo", "{lr}", "{seed}")
    assert [run["command"][1:] for run in ended(w, study)] == [["0.1", "1"], ["3e-2", "2"]]
    assert json.loads(w.ok("sweep", "--json", study).out)["study"]["parallel"] == 1
    # Options take the place of all of them; the command may be that of the configuration.
    study = sweep(w, "--over", "a=1", "--", "--a={a}")
    assert [run["command"] for run in ended(w, study)] == [["echo", "none", "--a=1"]]
    w.write("dlrun.yaml", "sweep: {over: {lr: [0.1]}, parallel: -1}\n")
    result = w.run("sweep", "-d", "--", "echo", "{lr}")
    assert result.rc == 2 and "sweep.parallel" in result.err and "dlrun.yaml:1" in result.err, result


def test_names_of_members(w):
    w.repo()
    study = sweep(w, "-n", "exp-lr{lr}", "--over", "lr=0.1,0.2", "--", "echo", "{lr}")
    assert study.startswith("exp-lr-")
    assert [run["name"] for run in ended(w, study)] == ["exp-lr0-1", "exp-lr0-2"]


def test_dry_run(w):
    w.repo()
    result = w.ok("sweep", "--dry-run", "--over", "lr=0.1,0.03", "--", "echo", "{lr}")
    assert result.out.endswith("INDEX  lr    COMMAND\n    0  0.1   echo 0.1\n    1  0.03  echo 0.03\n"), result
    nothing_is_left(w)


def test_table(w):
    w.repo()
    study = sweep(w, "--over", "lr=0.1,0.03", "--over", "fail=0,1", "--", "sh", "-c", "exit {fail}", "{lr}")
    result = w.run("sweep", "-f", study)
    assert result.rc == 1, result
    assert result.out == ("lr    N  SUCCEEDED  FAILED\n"
                          "0.1   2          1       1\n"
                          "0.03  2          1       1\n"), result
    assert f"{study}: 4 of 4 runs have ended" in result.err and f"2 failed: dlrun restart --failed {study}" in result.err
    table = json.loads(w.ok("sweep", "--json", study).out)
    assert table["schema"] == "dlrun/sweep/v1" and table["study"]["id"] == study
    assert table["rows"][1]["values"] == {"lr": "0.03"}
    assert table["rows"][1]["states"] == {"succeeded": 1, "failed": 1}
    assert table["all"]["n"] == 4 and len(table["runs"]) == 4
    # The newest one.
    assert w.ok("sweep").out == result.out


def on_a_terminal(w, *words):
    """What dlrun writes to a terminal of 60 columns, without control sequences."""
    done = w.command(["script", "-qec", shlex.join(["sh", "-c", 'stty cols 60 rows 20; exec "$0" "$@"', w.dlrun, *words]), "/dev/null"])
    return done.rc, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out.replace("\r\n", "\n"))


def test_a_new_study_is_followed(w):
    w.repo()
    result = w.run("sweep", "-f", "--over", "fail=0,3", "--", "sh", "-c", "exit {fail}")
    assert result.rc == 3 and "2 of 2 runs have ended" in result.err, result
    needs("script")
    code, out = on_a_terminal(w, "sweep", "--over", "fail=0,3", "--", "sh", "-c", "exit {fail}")
    assert code == 3 and "2 of 2 runs have ended" in out and "failed: the program exited with 3" in out, (code, out)


def test_two_studies_of_one_name(w):
    w.repo()
    first, second = (sweep(w, "-n", "same", "--over", "a=1,2", "--", "true", "{a}") for _ in range(2))
    assert first != second and len(ended(w, first)) == len(ended(w, second)) == 2


def test_bad_input_leaves_nothing(w):
    w.repo({"bad.csv": "a,b\n1\n", "empty.csv": "a\n"})
    for words in (["--over", "lr"], ["--over", "=1"], ["--over", "lr="], ["--over", "lr=1..x"], ["--over", "lr=log:0..1:3"],
                  ["--over", "lr=log:1..2"], ["--over", "lr=1", "--over", "lr=2"],
                  ["--over", "a=1..1000", "--over", "b=1..1000", "--over", "c=1..1000"],
                  ["--over", "a=1,2", "--over", "lr=1", "--zip"], ["--over", "lr=1,2", "--sample", "3"],
                  ["--over", "lr=1", "--sample", "0"], ["--cases", "none.csv"], ["--cases", "bad.csv"],
                  ["--cases", "empty.csv"], ["--cases", "bad.csv", "--over", "lr=1"], ["--over", "lr=1", "--parallel", "0"]):
        result = w.run("sweep", "-d", *words, "--", "echo", "{lr}")
        assert result.rc in (1, 2) and result.err.startswith("error: ") and result.out == "", (words, result)
        nothing_is_left(w)
    for command, said in ((["echo", "{lrr}"], "lrr"), (["echo"], "lr"), ([], "nothing to run"), (["nosuch", "{lr}"], "nosuch")):
        result = w.run("sweep", "-d", "--over", "lr=1", *(["--", *command] if command else []))
        assert result.rc == 2 and said in result.err, result
        nothing_is_left(w)


def test_without_a_study(w):
    result = w.run("sweep")
    assert result.rc == 5 and "there is no study yet" in result.err, result
    w.repo()
    result = w.run("sweep", "tiger")
    assert result.rc == 5 and "there is no study 'tiger'" in result.err, result


def begun(w):
    """The ids of all attempts whose program has begun, from a file that they append to."""
    place = w.dir / "begun"
    return sorted(place.read_text().split()) if place.exists() else []


def kill_at(w, n):
    before = set(os.listdir(w.state / "studies")) if (w.state / "studies").exists() else set()
    w.command(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}",
               "-e", f"inject={CALLS}:signal=SIGKILL:when={n}", w.dlrun, "sweep", "-d", "--over", "i=1..4", "--",
               "sh", "-c", f'echo "$DLRUN_RUN_ID" >>{w.dir}/begun', "{i}"])
    new = set(os.listdir(w.state / "studies")) - before if (w.state / "studies").exists() else set()
    assert len(new) <= 1, new
    for study in new:
        result = w.run("restart", "--missing", study)
        made = members(w, study)
        if result.rc != 0:
            # Killed before its code was kept: nothing of it may have begun.
            assert not [run for run in begun(w) if run in {m["id"] for m in made}], (result, begun(w))
            for run in made:
                w.ok("rm", run["id"])
            continue
        runs = ended(w, study)
        assert [run["state"] for run in runs] == ["succeeded"] * 4, (n, result, [run["text"] for run in runs])
        ids = [run["id"] for run in runs]
        assert [run for run in begun(w) if run in ids] == sorted(ids), (n, begun(w))
        return True
    return False


def test_sigkill_at_each_call(w):
    needs("strace")
    w.repo({"a": "1"})
    log = w.dir / "count"
    done = w.command(["strace", "-qq", "-e", f"trace={CALLS}", "-o", str(log), w.dlrun, "sweep", "-d", "--over", "i=1..4",
                      "--", "true", "{i}"])
    assert done.rc == 0, done
    total = len(log.read_text().splitlines())
    where = kill.points(total, 24, 240)
    resumed = sum(kill_at(w, n) for n in where)
    print(f"sweep: killed at {len(where)} of {total} calls, {resumed} went on", flush=True)
    # Before its code was kept, and behind that.
    assert 3 < resumed < len(where), resumed


# A program that writes scalars as TensorFlow does, slowly: the value of step s is 1 / s + its first argument.
WRITER = r"""
import os, struct, sys, time
def crc(data):
    c = 0xffffffff
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    c ^= 0xffffffff
    return struct.pack("<I", ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff)
def field(number, wire, data):
    return bytes([number << 3 | wire]) + (struct.pack("<B", len(data)) + data if wire == 2 else data)
def record(data):
    head = struct.pack("<Q", len(data))
    return head + crc(head) + data + crc(data)
def event(step, value):
    scalar = field(1, 2, field(1, 2, b"val_loss") + field(2, 5, struct.pack("<f", value)))
    number = b""
    while step > 127:
        number, step = number + bytes([step & 127 | 128]), step >> 7
    return record(field(1, 1, struct.pack("<d", time.time())) + field(2, 0, number + bytes([step])) + field(5, 2, scalar))
with open(os.environ["DLRUN_OUTPUT_DIR"] + "/events.out.tfevents.1.host", "wb", 0) as out:
    for step in range(1, 31):
        out.write(event(step, 1 / step + float(sys.argv[1])))
        time.sleep(0.1)
"""


def curve(w, run):
    """Points of val_loss as (wall time, step, value)."""
    lines = w.ok("plot", "--csv", run).out.splitlines()[1:]
    return [(float(f[4]), int(f[3]), float(f[5])) for f in (line.split(",") for line in lines)]


def judged_by_halving(curves, rungs, keep, seen=()):
    """A reference of --stop halving=keep: (member, rung, stops) of each member at each rung, in the order of time, or of those
    seen: what is written later may be there earlier. curves: of each member, points of (wall time, step, value)."""
    order = {(member, rung): n for n, (member, rung, _) in enumerate(seen)}
    passed = sorted((next(p for p in points if p[1] >= rung), i, k) for i, points in enumerate(curves)
                    for k, rung in enumerate(rungs) if points[-1][1] >= rung)
    passed.sort(key=lambda at: order.get(at[1:], len(order)))
    values, stopped, expected = {}, set(), []
    for (_, _, value), member, rung in passed:
        if member in stopped:
            continue
        others = values.setdefault(rung, [])
        others.append(value)
        goes_on = sorted(others).index(value) < -(-len(others) // keep)
        expected.append((member, rung, not goes_on))
        if not goes_on:
            stopped.add(member)
    return expected


def judged(w, study):
    found = json.loads((w.state / "studies" / study / "judged.json").read_text())["judged"]
    return [(j["member"], j["rung"], j["stops"]) for j in found]


def test_losers_are_stopped(w):
    w.repo({"train.py": WRITER})
    study = sweep(w, "--over", "bad=0,1,2,3,4,5", "--parallel", "3", "--stop", "metric=val_loss,halving=2,from=4", "--",
                  "python3", "train.py", "{bad}")
    result = w.run("sweep", "-f", study)
    runs = members(w, study)
    said = judged(w, study)
    # What the event files say, as they are now.
    expected = judged_by_halving([curve(w, run["id"]) for run in runs], (4, 8, 16), 2)
    assert said == expected, (said, expected)
    assert len({(member, rung) for member, rung, _ in said}) == len(said)
    stopped = {member for member, _, stops in said if stops}
    assert stopped and 0 not in stopped, stopped
    for i, run in enumerate(runs):
        if i in stopped and run["state"] == "cancelled":
            assert run["stopped"].startswith("val_loss ") and run["stopped"].endswith("is not among the best 1 of 2"), run
            assert run["stopped"] in w.ok("why", run["id"]).out
        else:
            # The last steps of those that were judged at the end may have been over before they were stopped.
            assert run["state"] == "succeeded", run
    assert runs[0]["state"] == "succeeded" and any(run["state"] == "cancelled" for run in runs), result


def while_made(w, n, *words):
    """A sweep of n runs that last, of which two are there."""
    sweeping = subprocess.Popen([w.dlrun, "sweep", "-d", "-n", "many", *words, "--over", f"i=1..{n}", "--", "sleep", "60{i}"],
                                cwd=w.tree, env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(w.runs()) > 1, "two runs of the study")
    study, = os.listdir(w.state / "studies")
    return sweeping, study


def test_cancelled_while_it_is_made(w):
    w.repo()
    sweeping, study = while_made(w, 300, "--parallel", "1")
    w.ok("cancel", "--no-wait", study)
    out, err = sweeping.communicate()
    assert sweeping.returncode != 0 and "was cancelled" in err and out == "", (out, err)
    w.run("wait", study)
    made = members(w, study)
    assert 1 < len(made) < 300 and {run["state"] for run in made} == {"cancelled"}, [run["state"] for run in made]
    # All of them may start again, and the rest be made.
    w.ok("restart", study)
    w.ok("cancel", study)


def test_removed_while_it_is_made(w):
    w.repo()
    sweeping, study = while_made(w, 300, "--parallel", "1")
    other = w.ok("submit", "-d", "--", "true").out.strip()
    w.ok("wait", other)
    # Also where it is not the first word.
    w.ok("rm", "--force", other, study)
    out, err = sweeping.communicate()
    assert sweeping.returncode != 0 and out == "", (out, err)
    nothing_is_left(w)


def test_interrupted_while_it_is_made(w):
    w.repo()
    sweeping, study = while_made(w, 300, "--parallel", "1")
    sweeping.send_signal(signal.SIGINT)
    out, err = sweeping.communicate()
    assert sweeping.returncode == 130 and f"dlrun restart --missing {study}" in err and out == "", (sweeping.returncode, out, err)
    assert w.run("sweep", "--json", study).rc == 0
    w.ok("cancel", study)


def test_made_by_two_at_once(w):
    w.repo()
    sweeping, study = while_made(w, 100, "--parallel", "1")
    sweeping.send_signal(signal.SIGSTOP)
    result = w.run("restart", "--missing", study)
    sweeping.send_signal(signal.SIGCONT)
    assert result.rc == 1 and f"another dlrun makes runs of {study} now" in result.err, result
    out, _ = sweeping.communicate()
    assert out == study + "\n" and len(members(w, study)) == 100
    w.ok("cancel", study)


def test_names_that_are_those_of_others(w):
    w.repo()
    study = sweep(w, "-n", "s-{seed}", "--over", "seed=1..3", "--", "true", "{seed}")
    assert [run["name"] for run in ended(w, study)] == ["s-0", "s-1", "s-2"]


def test_nobody_answers(w):
    """A study is kept here, as runs are, unless it must not be; what is left of it can be removed."""
    w.env.pop("DLRUN_OFFLINE", None)
    w.repo({"dlrun.yaml": "targets: {lab: {kind: ssh, hosts: ['127.0.0.1:1']}}\n"})
    words = ["sweep", "-d", "-t", "lab", "--over", "a=1,2", "--", "true", "{a}"]
    done = w.run(*words[:2], "--no-offline", *words[2:])
    assert done.rc == 3 and "[ssh.unreachable]" in done.err, done
    nothing_is_left(w)
    done = w.ok(*words)
    study = done.out.strip()
    assert "queued here: no answer from lab" in done.err and [run["state"] for run in members(w, study)] == ["queued", "queued"], done
    w.ok("rm", "--force", study)
    nothing_is_left(w)


def test_dry_run_of_a_configured_command(w):
    w.repo({"dlrun.yaml": "command: [echo, hello]\n"})
    result = w.ok("sweep", "--dry-run", "--over", "a=1,2", "--", "--a={a}")
    assert result.out.endswith("    0  1  echo hello --a=1\n    1  2  echo hello --a=2\n"), result
    assert json.loads(w.ok("sweep", "--json", "--dry-run", "--over", "a=1,2", "--", "true", "{a}").out)
    for words in (["--parallel", "2"], ["--dry-run"], ["--stop", "metric=loss,halving=2"], ["-e", "A=1"], ["-t", "local"], ["-g", "1"], ["--full"]):
        result = w.run("sweep", *words, "x")
        assert result.rc == 2 and "is for a new study" in result.err, result


def test_the_name_of_the_study_in_a_file(w):
    w.repo()
    study = sweep(w, "--name-file", "id", "--over", "a=1", "--", "true", "{a}")
    assert (w.tree / "id").read_text() == study + "\n"
    w.ok("wait", study)


if __name__ == "__main__":
    main()
