#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are accepted here while their target does not answer, and sent once it does.

    tests/real/held.py DLRUN [NAME…]
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import uuid

from harness import in_time, main, needs, wait_for
from sshsite import site
import kill

ENDED = ("succeeded", "failed", "cancelled", "lost")
RUNS = 20
# Each start of a program leaves a line with its id and the moment, in the home of the host.
ONCE = ["sh", "-c", 'echo "$DLRUN_RUN_ID $(date +%s%N)" >>~/began']


def offline(w):
    w.env.pop("DLRUN_OFFLINE", None)


def submit(w, *words, **options):
    """The id of a run, and what was said."""
    done = w.ok("submit", "-d", "-t", "ssh:gpu1", *words, **options)
    return done.out.strip(), done.err


def waiting(w):
    return [r["id"] for r in json.loads(w.ok("queue", "--json").out)["waiting"]]


def began(s):
    path = s["gpu1"].home / "began"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def all_end(w, runs, seconds=120):
    def states():
        found = {r["id"]: r["state"] for r in w.runs()}
        return all(found[run] in ENDED for run in runs)
    wait_for(states, "the end of all runs", seconds)


def is_of(w, pid):
    """Whether a process of that binary is this test's: others run beside it."""
    try:
        return str(w.dir).encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def no_sender(w):
    """Processes that a command has started beside it have ended."""
    def none_is_left():
        return not any(is_of(w, pid) for pid in w.command(["pgrep", "-f", f"{w.dlrun} queue --send"]).out.split())
    wait_for(none_is_left, "the senders have ended", 30)


def test_twenty_wait_and_go_in_order(w):
    """Also: one is taken back, one removed, `ps` shows them, nothing of them is at the host before."""
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        runs = []
        for i in range(RUNS):
            w.write("n", str(i))
            run, said = submit(w, "--tag", f"n={i}", "--", *ONCE)
            assert "queued here: no answer from ssh:gpu1" in said, said
            runs.append(run)
        no_sender(w)
        assert waiting(w) == runs and len(set(runs)) == RUNS
        assert {r["state"] for r in w.runs()} == {"queued"}
        shown = w.show(runs[3])
        assert shown["attempts"] == [] and shown["held"]["error"]["id"] == "ssh.unreachable", shown
        assert "queued here: no answer from ssh:gpu1" in w.ok("why", runs[3]).out
        w.ok("cancel", runs[5])
        assert w.show(runs[5])["state"] == "cancelled" and w.show(runs[5])["exit"]["code"] == 143
        assert w.run("restart", runs[5]).rc != 0
        w.ok("rm", "--force", runs[7])
        back = [run for i, run in enumerate(runs) if i not in (5, 7)]
        assert waiting(w) == back and not began(s)
        no_sender(w)
        said = w.ok("queue", "--send").err
        assert f"{back[0]} and {len(back) - 1} more wait for ssh:gpu1: " in said and len(said.splitlines()) == 1, said
        s["gpu1"].start()
        said = w.ok("queue", "--send").err
        assert [line.split()[-3] for line in said.splitlines() if " sent " in line] == back, said
        assert waiting(w) == []
        all_end(w, back)
        assert {w.show(run)["state"] for run in back} == {"succeeded"}
        assert sorted(began(s)) == sorted(back), (began(s), back)
        digests = {w.show(run)["snapshot"]["id"] for run in back}
        assert len(digests) == len(back), "each with the tree as it was"


def test_the_network_is_cut(w):
    """No route instead of a port that refuses; the commands that look send, and no other."""
    offline(w)
    with site(w, network=True) as s:
        s.switch.inside("link set uplink down")
        runs = [submit(w, "--", *ONCE)[0] for _ in range(RUNS)]
        assert in_time(lambda: w.ok("ps"), 1).out.count("queued") == RUNS
        assert waiting(w) == runs
        s.switch.inside("link set uplink up")
        wait_for(lambda: w.ok("ps") and not waiting(w), "commands that look to send all", 120)
        all_end(w, runs)
        assert sorted(began(s)) == sorted(runs), (began(s), runs)


def own_processes(w):
    """Those of this home: dlrun, and what it has started here."""
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            exe, env = os.readlink(proc / "exe"), (proc / "environ").read_bytes()
            if f"HOME={w.home}".encode() in env.split(b"\0") and ("dlrun" in os.path.basename(exe) or b"DLRUN_RUN_ID=" in env):
                yield int(proc.name)


def reboot(w):
    """As far as a test can: all processes of it are killed, /run is empty, and from now on the boot has another id."""
    for pid in own_processes(w):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in pathlib.Path(w.env["XDG_RUNTIME_DIR"]).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    boot = w.dir / "boot_id"
    boot.write_text(f"{uuid.uuid4()}\n")
    after = w.dir / "after-the-reboot"
    after.write_text(f"#!/bin/sh\nexec unshare -m sh -c 'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec {w.dlrun} \"$@\"' - \"$@\"\n")
    after.chmod(0o755)
    w.dlrun = str(after)


def test_the_laptop_reboots(w):
    """Twenty wait, and it goes down while they are sent, or one more is submitted: each begins once; what ran here is lost."""
    needs("unshare")
    offline(w)
    runtime = w.dir / "run"
    runtime.mkdir(mode=0o700)
    w.env["XDG_RUNTIME_DIR"] = str(runtime)
    with site(w) as s:
        here = w.ok("submit", "-d", "-t", "local", "--", "sleep", "600").out.strip()
        wait_for(lambda: w.show(here)["state"] == "running", "its start", 30)
        s["gpu1"].stop(sessions=True)
        runs = [submit(w, "--", *ONCE)[0] for _ in range(RUNS)]
        no_sender(w)
        known = set(os.listdir(w.state / "runs"))
        words = [w.dlrun, "submit", "-d", "-t", "ssh:gpu1", "--", *ONCE]
        with subprocess.Popen(words, cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            wait_for(lambda: set(os.listdir(w.state / "runs")) > known, "one that is submitted", 30)
            s["gpu1"].start()
            with subprocess.Popen([w.dlrun, "queue", "--send"], env=w.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                wait_for(lambda: len(began(s)) > 3, "some of them have begun", 60)
                reboot(w)
        assert len(began(s)) < RUNS
        wait_for(lambda: w.ok("queue", "--send", timeout=120) and not waiting(w), "the sending of the others", 120)
        ids = [r["id"] for r in w.runs() if r["id"] != here]
        all_end(w, ids)
        ran, ends = began(s), {r["id"]: r["state"] for r in w.runs()}
        assert set(runs) <= set(ids) and len(set(ran)) == len(ran) and set(runs) <= set(ran), (ran, ends)
        assert all((ends[run] == "succeeded") == (run in ran) for run in ids), ends
        assert ends[here] == "lost", w.show(here)


def test_the_next_command_sends(w):
    """Beside it, without waiting; a follower comes to its end; same digest as at once."""
    offline(w)
    with site(w) as s:
        at_once, _ = submit(w, "--", *ONCE)
        all_end(w, [at_once])
        s["gpu1"].stop(sessions=True)
        run, _ = submit(w, "--", *ONCE)
        follower = subprocess.Popen([w.dlrun, "logs", "-f", run], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert w.show(run)["state"] == "queued"
        s["gpu1"].start()
        def sent():
            w.ok("ps")
            return w.show(run)["state"] in ENDED
        wait_for(sent, "a command to send it", 60)
        _, err = follower.communicate(timeout=60)
        assert follower.returncode == 0, err
        assert began(s) == [at_once, run]
        assert w.show(run)["snapshot"]["id"] == w.show(at_once)["snapshot"]["id"]
        image = [w.show(r)["image"]["ref"] for r in (at_once, run)]
        assert image[0].split("@")[1] == image[1].split("@")[1], image
        assert w.show(run)["snapshot"]["ref"] == f"refs/dlrun/{run}"


def test_a_refusal_and_no_offline(w):
    """What the host refuses has failed and says why; who does not want to wait gets the error."""
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        for words, env in ((["--no-offline"], {}), ([], {"DLRUN_OFFLINE": "fail"})):
            done = w.run("submit", "-d", *words, "-t", "ssh:gpu1", "--", "true", env=env)
            assert done.rc == 3 and "[ssh.unreachable]" in done.err, done
        done = w.run("ssh", "gpu1", "--", "true")
        assert done.rc == 3 and "[ssh.unreachable]" in done.err, done
        assert not w.runs()
        run, _ = submit(w, "--nodes", "1", "-g", "3", "--", *ONCE)
        other, _ = submit(w, "--", *ONCE)
        s["gpu1"].start()
        done = w.ok("queue", "--send")
        all_end(w, [run, other])
        assert w.show(run)["state"] == "failed" and w.show(run)["text"], (w.show(run), done)
        assert began(s) == [other]


def test_secrets_are_written_nowhere(w):
    """Who has the value sends the run; the others say what is missing, and go on with what comes after."""
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        value = "cnry-4711-value"
        run, _ = submit(w, "--secret", "HF_TOKEN", "--", "sh", "-c", 'test "${HF_TOKEN%value}" = "cnry-4711-" && echo "$DLRUN_RUN_ID" >>~/began',
                        env={"HF_TOKEN": value})
        other, _ = submit(w, "--", *ONCE)
        no_sender(w)
        assert not [p for p in w.dir.rglob("*") if p.is_file() and value.encode() in p.read_bytes()]
        s["gpu1"].start()
        said = w.ok("queue", "--send").err
        assert "HF_TOKEN is written nowhere" in said and waiting(w) == [run], said
        all_end(w, [other])
        w.ok("queue", "--send", env={"HF_TOKEN": value})
        all_end(w, [run])
        assert began(s) == [other, run]


def test_two_serve_one_sends(w):
    """Two servers, commands beside them, a host that comes and goes: each run once."""
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        server = subprocess.Popen([w.dlrun, "queue", "--serve"], cwd="/", env=w.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            runs = [submit(w, "--", *ONCE)[0] for _ in range(6)]
            wait_for(lambda: w.run("queue", "--serve", timeout=10).rc != 0, "a second server is refused")
            s["gpu1"].start()
            senders = [subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(4)]
            for sender in senders:
                sender.wait(60)
            wait_for(lambda: not waiting(w), "all are sent", 90)
            all_end(w, runs)
            assert sorted(began(s)) == sorted(runs), (began(s), runs)
        finally:
            server.terminate()
            assert server.wait(30) in (0, 130, -15), server.stderr.read()


def test_a_submit_is_killed_anywhere(w):
    """What was accepted is sent once, what was not never runs; nothing is in between."""
    needs("strace")
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        words = ["submit", "-d", "-t", "ssh:gpu1", "--", *ONCE]
        total = kill.count(w, *words)
        where = kill.points(total, 24, 120)
        for n in where:
            kill.killed(w, n, *words)
        no_sender(w)
        held = waiting(w)
        s["gpu1"].start()
        w.ok("queue", "--send")
        assert waiting(w) == []
        all_end(w, [r["id"] for r in w.runs()])
        states = {r["id"]: r["state"] for r in w.runs()}
        assert all(states[run] == "succeeded" for run in held), states
        assert sorted(began(s)) == sorted(held), (began(s), held)
        # Killed before it was accepted, and behind that.
        assert 0 < len(held) < len(where) and not [p for p in (w.state / "queue").iterdir() if p.name not in ("lock", "kicked")]
        print(f"held: {len(held)} of {len(where)} submits were accepted, {total} calls", flush=True)


def test_a_sender_is_killed_anywhere(w):
    """Sent by the next one, and never twice."""
    needs("strace")
    offline(w)
    with site(w) as s:
        words = ["submit", "-d", "-t", "ssh:gpu1", "--", *ONCE]
        s["gpu1"].stop(sessions=True)
        w.ok(*words)
        s["gpu1"].start()
        total = kill.count(w, "queue", "--send")
        runs = []

        def left_at(n):
            s["gpu1"].stop(sessions=True)
            runs.append(w.ok(*words).out.strip())
            no_sender(w)
            s["gpu1"].start()
            kill.killed(w, n, "queue", "--send")
            left = left_by_sender(w, s, runs[-1])
            w.ok("queue", "--send")
            assert waiting(w) == []
            return left
        left = kill.closing_in(total, 120, left_at)
        all_end(w, runs)
        states = {r["id"]: r["state"] for r in w.runs()}
        ran = began(s)
        assert all(ran.count(run) == 1 for run in runs), [(run, states[run], ran.count(run)) for run in runs if ran.count(run) != 1]
        print(f"held: a sender killed at {len(runs)} of {total} calls: {dict(left)}", flush=True)
        assert {"not there", "there"} <= set(left), left


def left_by_sender(w, s, run):
    """What one that was killed had done with it: nothing there yet, there and not known here, both."""
    if run not in waiting(w):
        return "sent"
    return "there" if any(s["gpu1"].homes.glob(f"*/.dlrun/on/gpu1/runs/{run}")) else "not there"


def test_a_cancel_while_it_is_sent(w):
    """A sender that is at work, and one that died anywhere: it ends, and begins at most once."""
    needs("strace")
    offline(w)
    with site(w) as s:
        words = ["submit", "-d", "-t", "ssh:gpu1", "--", *ONCE]
        s["gpu1"].stop(sessions=True)
        run = w.ok(*words).out.strip()
        with open(w.state / "runs" / run / "submit.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = w.run("cancel", run)
            assert f"{run} is being sent now" in done.err and "[" not in done.err, done
            assert waiting(w) == [run]
        w.ok("queue", "--send")
        assert w.show(run)["state"] == "cancelled" and waiting(w) == []
        w.ok(*words)
        s["gpu1"].start()
        total = kill.count(w, "queue", "--send")
        runs = []
        for n in kill.points(total, 8, 48):
            s["gpu1"].stop(sessions=True)
            runs.append(w.ok(*words).out.strip())
            no_sender(w)
            s["gpu1"].start()
            kill.killed(w, n, "queue", "--send")
            w.run("cancel", runs[-1])
            w.ok("queue", "--send")
            assert waiting(w) == []
        all_end(w, runs)
        states = [w.show(run)["state"] for run in runs]
        ran = began(s)
        assert "cancelled" in states and all(state in ("cancelled", "succeeded") for state in states), states
        assert all(ran.count(run) <= 1 for run in runs) and run not in ran, ran


def study_words(*more, n=4):
    return ["sweep", "-d", *more, "--over", f"i=1..{n}", "-t", "ssh:gpu1", "--", *ONCE, "{i}"]


def members(w, study):
    return sorted((r for r in w.runs() if r["group"] == study), key=lambda r: r["study"]["index"])


def test_a_study_waits_and_goes(w):
    """Whole, with the code of one that went at once; each command knows it; a member, and a study, are taken back."""
    offline(w)
    with site(w) as s:
        at_once = w.ok(*study_words()).out.strip()
        all_end(w, [r["id"] for r in members(w, at_once)])
        s["gpu1"].stop(sessions=True)
        done = w.ok(*study_words("--parallel", "2", n=6))
        study = done.out.strip()
        assert "queued here: no answer from ssh:gpu1" in done.err and f"take it back: dlrun cancel {study}" in done.err, done
        other = w.ok(*study_words(n=2)).out.strip()
        no_sender(w)
        runs = members(w, study)
        assert [r["id"] for r in runs] == waiting(w)[:6] and {r["state"] for r in runs} == {"queued"}, runs
        assert [r["params"] for r in runs] == [{"i": str(i)} for i in range(1, 7)]
        assert all(w.show(r["id"])["held"]["error"]["id"] == "ssh.unreachable" for r in runs)
        assert len(list((w.state / "queue").glob("*-*"))) == 2, "one mark for each study"
        assert f"{study} (6 runs)" in w.ok("queue").out and "queued here: no answer" in w.ok("why", study).out
        assert f"{study}: 0 of 6 runs have ended" in w.ok("sweep", study).err
        w.ok("cancel", runs[3]["id"], other)
        assert {r["state"] for r in members(w, other)} == {"cancelled"}
        s["gpu1"].start()
        w.ok("queue", "--send")
        assert waiting(w) == [] and not list((w.state / "queue").glob("*-*"))
        go = [r["id"] for i, r in enumerate(runs) if i != 3]
        all_end(w, go)
        assert {w.show(run)["state"] for run in go} == {"succeeded"} and w.show(runs[3]["id"])["state"] == "cancelled"
        assert sorted(began(s)) == sorted(go + [r["id"] for r in members(w, at_once)]), began(s)
        images = {w.show(r["id"])["image"]["ref"].split("@")[1] for r in (*members(w, study), *members(w, at_once))}
        assert len(images) == 1, images
        assert w.run("restart", "--missing", study).rc == 0 and len(members(w, study)) == 6


def test_a_study_is_followed(w):
    """Who looks at it sends it, and comes to its end."""
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        study = w.ok(*study_words(n=3)).out.strip()
        followers = [subprocess.Popen([w.dlrun, *words, study], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for words in (["sweep", "-f"], ["wait"])]
        s["gpu1"].start()
        said = [follower.communicate(timeout=120) for follower in followers]
        assert [follower.returncode for follower in followers] == [0, 0] and "3 of 3 runs have ended" in said[0][1], said
        assert sorted(began(s)) == sorted(r["id"] for r in members(w, study)) and not waiting(w)


def test_a_study_chooses_once(w):
    """Of several targets none answers; then one does, and all members are there."""
    offline(w)
    with site(w) as s:
        s.host("gpu2")
        s.write()
        w.write("dlrun.yaml", json.dumps({"targets": {"lab": {"kind": "ssh", "hosts": ["gpu1"]}, "eu": {"kind": "ssh", "hosts": ["gpu2"]}}}))
        for name in ("gpu1", "gpu2"):
            s[name].stop(sessions=True)
        done = w.ok("sweep", "-d", "-t", "lab,eu", "--over", "i=1..4", "--", *ONCE, "{i}")
        study = done.out.strip()
        assert "queued here: no answer from lab, eu" in done.err and "it is sent when one of them answers" in done.err, done
        no_sender(w)
        s["gpu2"].start()
        w.ok("queue", "--send")
        runs = [r["id"] for r in members(w, study)]
        all_end(w, runs)
        assert len(runs) == 4 and not waiting(w) and not began(s)
        ran = [line.split()[0] for line in (s["gpu2"].home / "began").read_text().splitlines()]
        assert sorted(ran) == sorted(runs) and {w.show(run)["target"]["name"] for run in runs} == {"eu"}, ran


def test_a_study_after_a_run(w):
    """Here until that has ended, on the host each member once; a failure ends all of them."""
    offline(w)
    with site(w) as s:
        until = "until [ -e ~/go ]; do sleep 0.2; done"
        first = submit(w, "--", "sh", "-c", until)[0]
        bad = submit(w, "--", "sh", "-c", f"{until}; exit 7")[0]
        done = w.ok(*study_words("--after", first))
        study, never = done.out.strip(), w.ok(*study_words("--after", bad)).out.strip()
        assert f"after {first}" in done.err and "it is sent when that has ended" in done.err, done
        then = w.ok(*study_words("--after", study, n=2)).out.strip()
        assert not began(s) and len(waiting(w)) == 10
        w.ok("rm", "--force", members(w, then)[1]["id"])
        w.ok("restart", "--missing", then)
        assert len(waiting(w)) == 10 and (w.state / "queue" / then).read_text().split() == [study]
        (s["gpu1"].home / "go").touch()
        w.run("wait", first, bad)
        wait_for(lambda: not waiting(w) or not w.ok("ps"), "none waits", 120)
        runs = [r["id"] for r in members(w, study)]
        all_end(w, runs)
        all_end(w, [r["id"] for r in members(w, then)])
        assert {r["state"] for name in (study, then) for r in members(w, name)} == {"succeeded"}
        assert sorted(began(s)) == sorted(runs + [r["id"] for r in members(w, then)]), began(s)
        assert all(w.show(first)["times"]["ended"] <= w.show(run)["times"]["started"] for run in runs)
        ends = [w.show(r["id"]) for r in members(w, never)]
        assert len(ends) == 4 and {r["exit"]["reason"] for r in ends} == {"Dependency"}, ends
        assert {r["text"] for r in ends} == {f"{bad} failed with exit 7, and it was to succeed"}, ends


def test_a_sweep_is_killed_anywhere(w):
    """All of its members wait, or none does."""
    needs("strace")
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        total = kill.count(w, *study_words(n=3))
        kills = kill.points(total, 12, 60)
        for n in kills:
            kill.killed(w, n, *study_words(n=3))
        no_sender(w)
        held = waiting(w)
        studies = {w.show(run)["study"]["id"] for run in held}
        assert len(held) == 3 * len(studies) and {r["id"] for r in w.runs()} == set(held), (held, w.runs())
        s["gpu1"].start()
        w.ok("queue", "--send")
        assert waiting(w) == []
        all_end(w, held)
        assert held and sorted(began(s)) == sorted(held), (began(s), held)
        assert not [p for p in (w.state / "queue").iterdir() if p.name not in ("lock", "kicked")]
        print(f"held: sweeps killed at {len(kills)} of {total} calls, {len(studies) - 1} were accepted", flush=True)


def test_a_sender_of_a_study_is_killed_anywhere(w):
    """Also where a member is cancelled meanwhile: none twice, none missing."""
    needs("strace")
    offline(w)
    with site(w) as s:
        s["gpu1"].stop(sessions=True)
        w.ok(*study_words(n=3))
        no_sender(w)
        s["gpu1"].start()
        total = kill.count(w, "queue", "--send")
        runs, cancelled = [], []
        for i, n in enumerate(kill.points(total, 8, 40)):
            s["gpu1"].stop(sessions=True)
            made = [r["id"] for r in members(w, w.ok(*study_words(n=3)).out.strip())]
            no_sender(w)
            s["gpu1"].start()
            kill.killed(w, n, "queue", "--send")
            if i % 3 == 0:
                w.run("cancel", made[1])
                cancelled.append(made.pop(1))
            w.ok("queue", "--send")
            assert waiting(w) == [], (n, waiting(w))
            runs += made
        all_end(w, runs + cancelled)
        ran = began(s)
        assert all(ran.count(run) == 1 for run in runs), [(run, ran.count(run)) for run in runs if ran.count(run) != 1]
        assert all(ran.count(run) <= 1 for run in cancelled)
        assert {w.show(run)["state"] for run in runs} == {"succeeded"}
        print(f"held: a sender of {len(runs)} members killed at {total} calls", flush=True)


if __name__ == "__main__":
    main()
