#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that begin after others.

    tests/real/after.py DLRUN [NAME…]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time

from harness import in_time, main, needs, wait_for
from sshsite import site
import kill

ENDED = ("succeeded", "failed", "cancelled", "lost")
WAITERS = int(os.environ.get("DLRUN_WAITERS", "40"))
GATE = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done; exit "$1"']


def submit(w, *words, **options):
    return w.ok("submit", "-d", *words, **options).out.strip()


def gated(w, name, code=0, *words):
    """A run that ends with code once the file NAME is there."""
    gate = w.dir / f"{name}.gate"
    return submit(w, "-n", name, *words, "--", *GATE, str(gate), str(code)), gate


def state(w, run):
    return w.show(run)["state"]


def ends(w, run, seconds=60):
    wait_for(lambda: state(w, run) in ENDED, f"the end of {run}", seconds)
    return w.show(run)


def supervisors(w, run):
    found = w.command(["pgrep", "-f", f"__supervise .*/{run}/attempts/"]).out.split()
    return [int(pid) for pid in found]


def waiters(w, run):
    found = w.command(["pgrep", "-f", f"__after .*/{run}/attempts/"]).out.split()
    return [int(pid) for pid in found]


def test_after_a_success(w):
    """Also: what shows it while it waits, and that it holds nothing: no tree, no time."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "-n", "second", "--timeout", "2s", "--after", first, "--", "true")
    wait_for(lambda: w.show(second)["text"] == f"after {first}", "its reason")
    shown = w.show(second)
    assert shown["state"] == "queued" and shown["after"] == [{"run": first, "when": "ok"}], shown
    assert f"queued after {first}" in w.ok("ps").out
    assert f"{second} is queued: after {first}" in w.ok("why", second).out
    assert re.search(rf"after +{first}\n", w.ok("show", second).out)
    wait_for(lambda: waiters(w, second), "the process that waits")
    assert not (w.state / "runs" / second / "attempts/1/tree").exists()
    time.sleep(2.5)
    gate.touch()
    shown = ends(w, second)
    assert shown["state"] == "succeeded" and shown["exit"]["code"] == 0, shown
    assert shown["times"]["started"] >= w.show(first)["times"]["ended"], shown
    assert not waiters(w, second)


def test_it_begins_at_once(w):
    """After the end of the other one, and where it has ended already."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--after", first, "--", "true")
    wait_for(lambda: waiters(w, second), "the process that waits")
    gate.touch()
    in_time(lambda: ends(w, second), 2)
    third = submit(w, "--after", f"{second}:ok", "--after", "first:any", "--", "true")
    assert ends(w, third)["state"] == "succeeded"
    assert w.show(third)["after"] == [{"run": second, "when": "ok"}, {"run": first, "when": "any"}]


def test_a_failure_ends_the_chain(w):
    w.write("a", "1")
    first, gate = gated(w, "first", 3)
    second = submit(w, "--after", first, "--", "true")
    third = submit(w, "--after", second, "--", "true")
    whatever = submit(w, "--after", f"{first}:any", "--", "true")
    gate.touch()
    shown = ends(w, second)
    assert shown["state"] == "cancelled" and shown["exit"]["code"] == 143, shown
    assert shown["exit"]["reason"] == "Dependency" and shown["times"]["started"] is None, shown
    assert shown["text"] == f"{first} failed with exit 3, and it was to succeed", shown
    shown = ends(w, third)
    assert shown["text"] == f"{second} was cancelled, and it was to succeed", shown
    assert ends(w, whatever)["state"] == "succeeded"
    done = w.run("wait", third)
    assert done.rc == 143 and f"{second} was cancelled, and it was to succeed" in done.err, done
    assert f"{third} was cancelled: {second} was cancelled" in w.ok("why", third).out
    assert "run.after" in w.ok("explain", "run.after").out


def test_refused_before_anything_is_written(w):
    w.write("a", "1")
    failed = submit(w, "--", "false")
    ends(w, failed)
    before = [r["id"] for r in w.runs()]
    for word, code, text in ((failed, 1, f"{failed} failed with exit 1, and it was to succeed"),
                             (f"{failed}:ok", 1, f"--after {failed}:any begins after any end"),
                             ("nosuch", 5, "there is no run 'nosuch'"),
                             (f"{failed}:some", 5, "there is no run"),
                             ("", 2, "names no run"), (":any", 2, "names no run")):
        done = w.run("submit", "-d", "--after", word, "--", "true")
        assert done.rc == code and text in done.err, (word, done)
        done = w.run("sweep", "-d", "--over", "i=1,2", "--after", word, "--", "true", "{i}")
        assert done.rc == code and text in done.err, (word, done)
    assert [r["id"] for r in w.runs()] == before
    assert sorted(p.name for p in (w.state / "runs").iterdir()) == sorted(before)
    assert submit(w, "--after", f"{failed}:any", "--", "true")


def test_no_circle_can_be_made(w):
    """A run that waits, or is waited for and lives, cannot be started again; names are those of runs that are there."""
    w.write("a", "1")
    first, gate = gated(w, "again")
    second = submit(w, "-n", "again", "--after", "again", "--after", first, "--after", "@", "--", "true")
    assert w.show(second)["after"] == [{"run": first, "when": "ok"}]
    for run in (first, second):
        done = w.run("restart", run)
        assert done.rc == 1 and "has not ended" in done.err, done
    done = w.run("rm", first)
    assert done.rc == 1, done
    w.ok("cancel", first)
    assert ends(w, second)["text"] == f"{first} was cancelled, and it was to succeed"
    done = w.run("restart", second)
    assert done.rc == 1 and f"{first} was cancelled, and it was to succeed" in done.err, done
    w.ok("restart", first)
    w.ok("restart", second)
    wait_for(lambda: state(w, second) == "queued" and waiters(w, second), "it waits again")
    gate.touch()
    assert ends(w, second)["state"] == "succeeded" and len(w.show(second)["attempts"]) == 2


def test_a_run_that_is_waited_for_stays(w):
    w.write("a", "1")
    first = submit(w, "--", "true")
    other, gate = gated(w, "other")
    ends(w, first)
    second = submit(w, "--after", first, "--after", other, "--", "true")
    done = w.run("rm", first)
    assert done.rc == 1 and f"{second} is to begin after {first}" in done.err, done
    done = w.run("rm", "--force", other)
    assert done.rc == 1 and f"{second} is to begin after {other}" in done.err, done
    assert state(w, other) == "running", "what is not removed is not stopped"
    gate.touch()
    ends(w, second)
    w.ok("rm", first)
    third, _ = gated(w, "third")
    fourth = submit(w, "--after", third, "--", "true")
    w.ok("rm", "--force", third, fourth)


def test_cancelled_while_it_waits(w):
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--after", first, "--", "true")
    wait_for(lambda: waiters(w, second), "the process that waits")
    in_time(lambda: w.ok("cancel", second), 5)
    shown = w.show(second)
    assert shown["state"] == "cancelled" and shown["exit"]["reason"] == "Cancelled", shown
    wait_for(lambda: not waiters(w, second) and not supervisors(w, second), "nothing of it is left")
    assert state(w, first) == "running"
    gate.touch()


def test_the_supervisor_is_killed(w):
    """It is lost, as any run whose supervisor is killed; what waited for the other one goes, and who waits for it is told."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--after", first, "--", "true")
    third = submit(w, "--after", second, "--", "true")
    wait_for(lambda: waiters(w, second), "the process that waits")
    for pid in supervisors(w, second):
        os.kill(pid, signal.SIGKILL)
    assert ends(w, second)["state"] == "lost"
    assert ends(w, third)["text"] == f"{second} was lost, and it was to succeed"
    wait_for(lambda: not waiters(w, second), "the process that waited has ended", 30)
    w.ok("restart", second)
    gate.touch()
    assert ends(w, second)["state"] == "succeeded"


def test_settings_that_are_edited(w):
    """And a tree that is gone: neither stops what waits."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--after", first, "--", "true")
    w.write("dlrun.yaml", "target: [\n")
    for pid in waiters(w, second):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: waiters(w, second), "it is started again")
    gate.touch()
    wait_for(lambda: w.run("ps", "--json", cwd="/").out and supervisors(w, second) == [], "its end", 60)
    (w.tree / "dlrun.yaml").unlink()
    assert ends(w, second)["state"] == "succeeded"
    third = submit(w, "-n", "third", "--after", second, "--", *GATE, str(w.dir / "third.gate"), "0")
    last = submit(w, "-n", "last", "--after", third, "--", "true")
    shutil.rmtree(w.tree)
    w.tree.mkdir()
    (w.dir / "third.gate").touch()
    assert ends(w, last)["state"] == "succeeded"


def test_the_waiter_is_killed(w):
    """Again and again: it is started anew, and nothing changes for the run."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--after", first, "--", "true")
    for _ in range(4):
        wait_for(lambda: waiters(w, second), "the process that waits")
        for pid in waiters(w, second):
            os.kill(pid, signal.SIGKILL)
    assert w.show(second)["text"] == f"after {first}", w.show(second)
    gate.touch()
    assert ends(w, second)["state"] == "succeeded" and w.show(second)["times"]["started"] >= w.show(first)["times"]["ended"]


def test_a_study(w):
    """After all of its runs; a study after a run, and after a study; the first failure is enough."""
    w.write("a", "1")
    first, gate = gated(w, "first")
    study = w.ok("sweep", "-d", "-n", "tiger", "--over", "i=1..4", "--parallel", "2", "--after", first, "--", "sh", "-c", "exit 0", "{i}").out.strip()
    other = w.ok("sweep", "-d", "--over", "i=1,2", "--after", study, "--", "true", "{i}").out.strip()
    last = submit(w, "--after", "tiger", "--", "true")
    assert w.show(last)["after"] == [{"study": study, "when": "ok"}]
    members = [r["id"] for r in w.runs() if r["group"] == study]
    assert len(members) == 4 and all(w.show(m)["after"] == [{"run": first, "when": "ok"}] for m in members)
    assert {state(w, m) for m in members} == {"queued"}
    gate.touch()
    shown = ends(w, last)
    assert shown["state"] == "succeeded", shown
    assert all(w.show(m)["times"]["ended"] <= shown["times"]["started"] for m in members)
    w.ok("wait", other)
    bad = w.ok("sweep", "-d", "--over", "i=1..3", "--parallel", "1", "--", "sh", "-c", '[ "$0" != 2 ] || exit 4; sleep "$0"', "{i}").out.strip()
    late = submit(w, "--after", bad, "--", "true")
    shown = ends(w, late)
    assert shown["state"] == "cancelled" and re.match(r".*-1-\w+ failed with exit 4, and it was to succeed", shown["text"]), shown
    done = w.run("submit", "-d", "--after", bad, "--", "true")
    assert done.rc == 1 and f"--after {bad}:any begins after any end" in done.err, done


def test_a_group_as_it_is_now(w):
    w.write("a", "1")
    first, gate = gated(w, "first", 0, "--group", "night")
    second = submit(w, "--group", "night", "--after", "night", "--", "true")
    third = submit(w, "--group", "night", "--after", "night:any", "--", "true")
    assert [a["run"] for a in w.show(third)["after"]] == [first, second]
    gate.touch()
    assert ends(w, third)["state"] == "succeeded"


def test_retries_do_not_wait_again(w):
    w.write("a", "1")
    first, gate = gated(w, "first")
    second = submit(w, "--retries", "1", "--after", first, "--", "sh", "-c", '[ -e "$DLRUN_OUTPUT_DIR/x" ] || { touch "$DLRUN_OUTPUT_DIR/x"; exit 1; }')
    gate.touch()
    shown = ends(w, second)
    assert shown["state"] == "succeeded" and len(shown["attempts"]) == 2, shown
    assert "after" not in json.loads((w.state / "runs" / second / "attempts/2/job.json").read_text())


def test_the_other_one_is_repeated(w):
    """A failure that another attempt follows is no end."""
    w.write("a", "1")
    first = submit(w, "--retries", "2", "--", "sh", "-c", 'sleep 0.3; n=$(ls "$DLRUN_OUTPUT_DIR" | wc -l); touch "$DLRUN_OUTPUT_DIR/$n"; [ $n = 2 ]')
    second = submit(w, "--after", first, "--", "true")
    assert ends(w, second)["state"] == "succeeded" and len(w.show(first)["attempts"]) == 3


def cpu_s(pids):
    ticks = os.sysconf("SC_CLK_TCK")
    used = 0.0
    for pid in pids:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        used += (int(fields[11]) + int(fields[12])) / ticks
    return used


def test_many_wait_and_cost_nothing(w):
    w.write("a", "1")
    first, gate = gated(w, "first")
    runs = [submit(w, "-g", "0", "--after", first, "--", "true") for _ in range(WAITERS)]
    wait_for(lambda: all(waiters(w, run) for run in runs), "all wait", 120)
    pids = [pid for run in runs for pid in waiters(w, run) + supervisors(w, run)]
    time.sleep(2)
    before = cpu_s(pids)
    time.sleep(20)
    used = cpu_s(pids) - before
    print(f"{len(runs)} runs that wait: {used / 20 * 100:.1f} % of a CPU", flush=True)
    assert used < 0.05 * len(runs), used
    gate.touch()
    for run in runs:
        assert ends(w, run, 120)["state"] == "succeeded"


#
# Hosts: the run is held here until then
#


def queue(w):
    return json.loads(w.ok("queue", "--json").out)["waiting"]


def began(s):
    path = s["gpu1"].home / "began"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


ONCE = ["sh", "-c", 'echo "$DLRUN_RUN_ID $(date +%s%N)" >>~/began']


def no_sender(w):
    wait_for(lambda: w.command(["pgrep", "-f", f"{w.dlrun} queue --send"]).rc == 1, "the senders have ended", 30)


def test_a_run_for_a_host_waits_here(w):
    """Nothing of it is there before; who sees the end has it sent; what is said, and listed."""
    w.write("a", "1")
    with site(w) as s:
        first, gate = gated(w, "first")
        done = w.ok("submit", "-d", "-t", "ssh:gpu1", "--after", first, "--", *ONCE)
        second = done.out.strip()
        assert f"after {first}" in done.err and "it is sent when that has ended: dlrun queue --serve, or the next dlrun" in done.err, done
        shown = w.show(second)
        assert shown["state"] == "queued" and shown["attempts"] == [] and shown["held"]["for"] == "run", shown
        assert "error" not in shown["held"] and shown["text"] == f"after {first}", shown
        listed = queue(w)
        assert [r["id"] for r in listed] == [second] and listed[0]["for"] == "run", listed
        assert f"after {first}" in w.ok("queue").out
        assert f"{second} is queued here: after {first}" in w.ok("why", second).out
        done = w.ok("queue", "--send")
        assert " sent " not in done.err and not began(s), done
        assert w.run("logs", second).out == "" and f"after {first}" in w.run("logs", second).err
        gate.touch()
        w.ok("wait", first)
        wait_for(lambda: not queue(w), "it is sent", 20)
        assert ends(w, second)["state"] == "succeeded" and began(s) == [second]
        assert w.show(second)["after"] == [{"run": first, "when": "ok"}] and "held" not in w.show(second)


def test_hosts_and_this_machine_in_a_chain(w):
    """here → host → here → host, and only the first and the last are looked at."""
    w.write("a", "1")
    with site(w) as s:
        first, gate = gated(w, "first")
        second = submit(w, "-t", "ssh:gpu1", "--after", first, "--", *ONCE)
        third = submit(w, "--after", second, "--", "true")
        last = submit(w, "-t", "ssh:gpu1", "--after", third, "--", *ONCE)
        gate.touch()
        assert ends(w, third)["state"] == "succeeded"
        assert ends(w, last)["state"] == "succeeded"
        assert began(s) == [second, last]
        assert w.show(second)["times"]["ended"] <= w.show(third)["times"]["started"]


def test_a_failure_on_a_host_ends_the_chain(w):
    w.write("a", "1")
    with site(w) as s:
        first = submit(w, "-t", "ssh:gpu1", "--", "sh", "-c", "sleep 2; exit 7")
        held = submit(w, "-t", "ssh:gpu1", "--after", first, "--", *ONCE)
        after_held = submit(w, "-t", "ssh:gpu1", "--after", held, "--", *ONCE)
        here = submit(w, "--after", first, "--", "true")
        whatever = submit(w, "-t", "ssh:gpu1", "--after", f"{first}:any", "--", *ONCE)
        w.run("wait", first)
        wait_for(lambda: not queue(w), "none waits", 60)
        shown = w.show(held)
        assert shown["state"] == "cancelled" and shown["exit"]["reason"] == "Dependency", shown
        assert shown["text"] == f"{first} failed with exit 7, and it was to succeed" and shown["exit"]["code"] == 143
        assert w.show(after_held)["text"] == f"{held} was cancelled, and it was to succeed"
        assert ends(w, here)["text"] == f"{first} failed with exit 7, and it was to succeed"
        assert ends(w, whatever)["state"] == "succeeded" and began(s) == [whatever]
        done = w.run("submit", "-d", "-t", "ssh:gpu1", "--after", held, "--", *ONCE)
        assert done.rc == 1 and "[run.after]" in done.err, done
        assert w.run("restart", held).rc != 0


def test_serve_sends_what_waited(w):
    """Without any other command; one that is taken back is not sent; an error of one run ends nothing."""
    w.write("a", "1")
    with site(w) as s:
        first, gate = gated(w, "first")
        runs = [submit(w, "-t", "ssh:gpu1", "--after", first, "--", *ONCE) for _ in range(3)]
        w.ok("cancel", runs[1])
        assert w.show(runs[1])["exit"]["reason"] == "Cancelled"
        server = subprocess.Popen([w.dlrun, "queue", "--serve"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            gate.touch()
            wait_for(lambda: sorted(began(s)) == sorted([runs[0], runs[2]]), "both begin", 60)
            assert server.poll() is None
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=30)
        for run in (runs[0], runs[2]):
            assert ends(w, run)["state"] == "succeeded"


def test_one_polls_for_all(w):
    """Many runs here wait for one on a host: logins while they wait are those of one."""
    w.write("a", "1")
    with site(w) as s:
        first = submit(w, "-t", "ssh:gpu1", "--", "sh", "-c", "until [ -e ~/go ]; do sleep 0.1; done")
        runs = [submit(w, "-g", "0", "--after", first, "--", "true") for _ in range(12)]
        wait_for(lambda: all(waiters(w, run) for run in runs), "all wait", 60)
        poll = str(w.state / "queue/poll")
        locks = [line.split() for line in w.command(["lslocks", "-n", "-r", "-o", "PID,MODE,PATH"]).out.splitlines()]
        polls = {words[0] for words in locks if words[-1] == poll and not words[1].endswith("*")}
        assert len(polls) == 1, [words for words in locks if words[-1] == poll]
        os.kill(int(polls.pop()), signal.SIGKILL)
        (s["gpu1"].home / "go").touch()
        for run in runs:
            shown = ends(w, run, 90)
            assert shown["state"] == "succeeded" and shown["times"]["started"] >= w.show(first)["times"]["ended"]


#
# Kills
#

POINTS = int(os.environ.get("DLRUN_KILL_POINTS", "30"))


def traced(pid):
    """Or killed already, at the call that it stood in."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return "TracerPid:\t0\n" not in status.read()
    except OSError:
        return True


def kill_when_it_goes_on(pid, n):
    """SIGKILL at the Nth call from now on."""
    return subprocess.Popen(["strace", "-I2", "-qq", "-o", "/dev/null", "-p", str(pid), "-e", f"trace={kill.CALLS}",
                             "-e", f"inject={kill.CALLS}:signal=SIGKILL:when={n}"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_killed_at_each_call_when_it_goes_on(w):
    """The process that waits: it is started anew, and the run begins. The supervisor: it is lost. None begins twice."""
    needs("strace")
    w.write("a", "1")
    began = w.dir / "began"
    first, gate = gated(w, "first")
    runs = [submit(w, "-g", "0", "--after", first, "--", "sh", "-c", f'echo "$DLRUN_RUN_ID" >>{began}') for _ in range(2 * POINTS)]
    wait_for(lambda: all(waiters(w, run) for run in runs), "all wait", 60)
    time.sleep(1)
    states = [json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text()) for run in runs]
    pids = [waiters(w, run)[0] if i % 2 else states[i]["supervisor"]["pid"] for i, run in enumerate(runs)]
    tracers = [kill_when_it_goes_on(pid, i // 2 + 1) for i, pid in enumerate(pids)]
    wait_for(lambda: all(traced(pid) for pid in pids), "all are traced")
    assert not began.exists()
    gate.touch()
    wait_for(lambda: all(r["state"] in ENDED for r in w.runs()), "the end of all", 120)
    for tracer in tracers:
        tracer.terminate()
        tracer.wait(30)
    found = began.read_text().split()
    states = {r["id"]: r["state"] for r in w.runs()}
    for i, run in enumerate(runs):
        assert found.count(run) <= 1 and (found.count(run) == 1 or states[run] != "succeeded"), (run, states[run])
        assert states[run] == "succeeded" if i % 2 else states[run] in ("succeeded", "lost"), (i, run, states[run])
    lost = sum(states[run] == "lost" for run in runs)
    print(f"after: {2 * POINTS} processes killed when they went on: {lost} supervisors were lost", flush=True)
    assert lost > POINTS // 3


def test_a_submit_is_killed_at_each_call(w):
    """What was accepted begins once, after the other one; the rest never."""
    needs("strace")
    w.write("a", "1")
    began = w.dir / "began"
    first, gate = gated(w, "first")
    words = [w.dlrun, "submit", "-d", "-g", "0", "--after", first, "--", "sh", "-c", f'echo "$DLRUN_RUN_ID" >>{began}']
    log = w.dir / "count"
    assert w.command(["strace", "-qq", "-e", f"trace={kill.CALLS}", "-o", str(log), *words]).rc == 0
    total = len(log.read_text().splitlines())
    for n in range(1, total + 1, max(1, total // POINTS)):
        w.command(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={kill.CALLS}",
                   "-e", f"inject={kill.CALLS}:signal=SIGKILL:when={n}", *words])
    assert not began.exists() and state(w, first) == "running"
    runs = [r["id"] for r in w.runs() if r["id"] != first]
    gate.touch()
    wait_for(lambda: all(r["state"] in ENDED for r in w.runs()), "the end of all", 120)
    found = began.read_text().split()
    states = {r["id"]: r["state"] for r in w.runs()}
    assert all(found.count(run) == (states[run] == "succeeded") for run in runs), (states, found)
    assert set(states.values()) <= {"succeeded", "failed"}, states
    print(f"after: a submit killed at {POINTS} of {total} calls: {len(runs)} runs, {len(found)} began", flush=True)


def test_a_sender_is_killed_at_each_call(w):
    """Of runs that waited for another one: each is sent once, or ends, by the next one."""
    needs("strace")
    w.write("a", "1")
    with site(w) as s:
        def two():
            return [submit(w, "-t", "ssh:gpu1", "--after", run, "--", *ONCE) for run in (fine, bad)]
        # All are made while both run, and sent by senders that are killed.
        fine, gate = gated(w, "fine")
        bad, other = gated(w, "bad", 3)
        waiting = [two() for _ in range(max(4, POINTS // 3))]
        for path in (gate, other):
            path.touch()
        def both_ended():
            return all((w.state / "runs" / run / "attempts/1/exit.json").exists() for run in (fine, bad))
        wait_for(both_ended, "their ends")
        n = 10
        while queue(w) and n < 4000:
            kill.killed(w, n, "queue", "--send")
            n = n * 5 // 4
        print(f"after: a sender was killed up to its call {n}", flush=True)
        w.ok("queue", "--send")
        assert not queue(w)
        for good, never in waiting:
            assert ends(w, good)["state"] == "succeeded", w.show(good)
            assert w.show(never)["exit"]["reason"] == "Dependency", w.show(never)
        assert sorted(began(s)) == sorted(good for good, _ in waiting), began(s)


if __name__ == "__main__":
    main()
