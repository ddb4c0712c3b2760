#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that wait in one of several targets without room, and go on to the next: each runs once, whatever dies.
DLRUN_SPILLS: how many are moved while answers are lost and movers killed (6; DLRUN_TESTS=all: 200).

    tests/real/ssh_spill.py DLRUN [NAME…]
"""

import collections
import contextlib
import json
import os
import random
import subprocess

from harness import ALL, in_time, main, needs, running_time, wait_for
from sshsite import site
from held import ENDED, ONCE, all_end, no_sender, offline
import kill

CUTS = int(os.environ.get("DLRUN_SPILLS", "200" if ALL else "6"))
GANGS = 12 if ALL else 6


@contextlib.contextmanager
def two(w):
    """Two hosts with a GPU each: somebody else's process computes on that of lab."""
    offline(w)
    with site(w, "gpu1", "gpu2", gpus=1) as s:
        config = w.home / ".config/dlrun/config.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("targets:\n  lab: {kind: ssh, hosts: [gpu1]}\n  eu: {kind: ssh, hosts: [gpu2]}\n")
        s["gpu1"].gpus(1, busy=(0,))
        yield s


def quiet(w):
    """No command starts a sender beside it for the next minute."""
    (w.state / "queue").mkdir(parents=True, exist_ok=True)
    (w.state / "queue/kicked").write_text("60000")


def submit(w, *words, wait="0s", program=ONCE):
    quiet(w)
    return w.ok("submit", "-d", "-t", "lab,eu", "-g", "1", "--wait-for", f"lab={wait}", *words, "--", *program).out.strip()


def began(s, *hosts):
    """The ids of what has begun, at each host."""
    found = []
    for host in hosts or ("gpu1", "gpu2"):
        path = s[host].home / "began"
        found += [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
    return found


def where(w, run):
    return w.show(run)["target"]["name"]


def queued(w, run, target="lab"):
    """It waits there for a GPU."""
    def waits():
        w.ok("ps", "-a")
        doc = w.show(run)
        return doc["target"]["name"] == target and doc["state"] == "queued" and "GPU" in (doc["text"] or "")
    wait_for(waits, f"{run} waits in {target}", 60)


def settle(w, runs, seconds=90):
    """Whoever looks goes on until all have ended."""
    def over():
        w.run("queue", "--send", timeout=60)
        states = {r["id"]: r["state"] for r in w.runs()}
        return all(states[run] in ENDED for run in runs)
    wait_for(over, "the end of all runs", seconds)


def test_goes_on_after_its_time(w):
    """Not before; the record says why; same id and code; nothing waits behind."""
    with two(w) as s:
        run = submit(w, wait="1h")
        queued(w, run)
        w.ok("queue", "--send")
        assert where(w, run) == "lab" and began(s) == []
        w.ok("cancel", run)
        assert (w.show(run)["state"], began(s)) == ("cancelled", []), (w.show(run), began(s))
        run = submit(w, wait="3s")
        queued(w, run)
        before = w.show(run)
        wait_for(lambda: "without room, goes to eu" in w.ok("queue", "--send").err, "its move", 60)
        settle(w, [run])
        doc = w.show(run)
        assert doc["state"] == "succeeded" and doc["target"]["name"] == "eu", doc
        assert began(s, "gpu2") == [run] and began(s, "gpu1") == []
        assert doc["snapshot"]["id"] == before["snapshot"]["id"] and doc["image"] == {**doc["image"], "ref": before["image"]["ref"]}
        first, second = doc["attempts"]
        assert first["exit"]["reason"] == "Withdrawn" and not first["handle"] and second["handle"].startswith("ssh:gpu2"), doc["attempts"]
        states = {p["target"]: (p["state"], p["text"]) for p in doc["places"]}
        assert states["lab"][0] == "left" and "without room" in states["lab"][1] and states["eu"][0] == "chosen", states
        assert not {"moving", "held"} & set(doc), doc
        w.ok("rm", run)

        def left():
            """What is being removed may go while it is looked for."""
            try:
                return [[p for name in ("gpu1", "gpu2") for p in s[name].home.glob(f".dlrun/**/runs/{run}/*")]]
            except FileNotFoundError:
                return None
        assert wait_for(left, "a look at both homes") == [[]]
        s["gpu1"].gpus(1)
        other = w.ok("submit", "-d", "-t", "lab", "-g", "1", "--", "true").out.strip()
        all_end(w, [other])
        assert began(s, "gpu1") == []
        assert not [p for p in (w.state / "queue").iterdir() if p.name not in ("lock", "kicked")]


def test_who_waits_sees_the_withdrawal_first(w):
    """Before the one who ends it for that, whose answer is lost: it was taken back all the same, and goes on."""
    with two(w) as s:
        run = submit(w)
        queued(w, run)
        attempt = s["gpu1"].home / f".dlrun/on/gpu1/runs/{run}/1"
        (attempt / ".begin").rename(attempt / "late")
        (attempt / "cancel").write_text("how=drop\n")
        wait_for(lambda: (attempt / "exit").exists(), "its end there", 30)
        assert "reason=Interrupted" in (attempt / "exit").read_text()
        settle(w, [run])
        assert w.show(run)["state"] == "succeeded" and began(s, "gpu2") == [run] and began(s, "gpu1") == []


def test_another_machine_starts_no_second_program(w):
    """Which has the run in its own record, from the first target, and does not know where it went."""
    with two(w) as s:
        run = submit(w)
        queued(w, run)
        other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
        w.ok("ps", "-t", "lab", env=other)
        assert json.loads(w.ok("show", "--json", run, env=other).out)["state"] == "queued"
        w.ok("queue", "--send")
        settle(w, [run])
        assert where(w, run) == "eu" and began(s) == [run]
        for words in (), ("cancel", run):
            if words:
                w.run(*words, env=other)
            seen = json.loads(w.ok("show", "--json", run, env=other).out)
            assert seen["state"] in ("unknown", "cancelled"), seen
            s["gpu1"].gpus(1)
            done = w.run("restart", run, env=other)
            assert done.rc != 0, done
            assert words or "may have sent it to another target" in seen["text"], seen
        assert json.loads(w.ok("show", "--json", f"eu:{run}", env=other).out)["target"]["name"] == "eu"
        w.run("ps", "-a", env=other)
        assert began(s) == [run]


def test_commands_that_look_move_it(w):
    """Beside them, without waiting for it."""
    with two(w) as s:
        run = submit(w, wait="2s")
        (w.state / "queue/kicked").unlink()
        assert in_time(lambda: w.ok("ps"), 2)
        wait_for(lambda: w.ok("ps") and where(w, run) == "eu", "a command moves it", 120)
        wait_for(lambda: w.ok("ps", "-a") and w.show(run)["state"] in ENDED, "its end", 60)
        assert began(s) == [run] and w.show(run)["state"] == "succeeded"


def test_no_other_place_takes_it(w):
    """It stays: the next is silent, or would never fit; and it begins where it is."""
    with two(w) as s:
        s["gpu2"].stop(sessions=True)
        run = submit(w)
        queued(w, run)
        for _ in range(2):
            w.ok("queue", "--send")
        assert where(w, run) == "lab" and "moving" not in w.show(run)
        s["gpu2"].start()
        s["gpu2"].gpus(0)
        w.ok("queue", "--send")
        assert where(w, run) == "lab"
        s["gpu1"].gpus(1)
        settle(w, [run])
        assert began(s, "gpu1") == [run] and began(s, "gpu2") == []


def test_a_silent_place_costs_its_time_once(w):
    """However many runs are due to go there."""
    with two(w) as s:
        runs = [submit(w) for _ in range(4)]
        for run in runs:
            queued(w, run)
        no_sender(w)
        s["gpu2"].freeze()
        in_time(lambda: w.ok("queue", "--send", timeout=120), 25)
        s["gpu2"].freeze(False)
        settle(w, runs)
        assert sorted(began(s)) == sorted(runs), began(s)


def test_once_when_both_get_free(w):
    """The GPU of the first gets free at any moment of the move."""
    with two(w) as s:
        runs, rng = [], random.Random(4)
        for _ in range(12):
            s["gpu1"].gpus(1, busy=(0,))
            run = submit(w)
            queued(w, run)
            runs.append(run)
            mover = subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                mover.wait(rng.random() * 1.5)
            s["gpu1"].gpus(1)
            mover.wait(60)
            settle(w, [run])
        ran = began(s)
        assert sorted(ran) == sorted(runs), (ran, runs)
        print(f"spill: {len(began(s, 'gpu1'))} began in lab, {len(began(s, 'gpu2'))} in eu", flush=True)


def test_replies_are_lost(w):
    """The connections to both hosts are cut at any moment of the move, and the mover killed as often."""
    with two(w) as s, s.wire("gpu1") as lab, s.wire("gpu2") as eu:
        runs, rng = [], random.Random(11)
        for i in range(CUTS):
            s["gpu1"].gpus(1, busy=(0,))
            run = submit(w)
            queued(w, run)
            runs.append(run)
            mover = subprocess.Popen([w.dlrun, "queue", "--send"], cwd="/", env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            for wire in rng.sample([lab, eu], 2):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    mover.wait(rng.random())
                wire.cut_all("rst" if i % 2 else "fin")
            if i % 3 == 0:
                mover.kill()
            elif i % 3 == 1:
                s["gpu1"].gpus(1)
            mover.wait(120)
        settle(w, runs, 300)
        ran = began(s)
        states = {r["id"]: r["state"] for r in w.runs()}
        assert sorted(ran) == sorted(runs), [(run, states[run], ran.count(run)) for run in runs if ran.count(run) != 1]
        print(f"spill: {len(began(s, 'gpu1'))} began in lab, {len(began(s, 'gpu2'))} in eu", flush=True)


def test_a_gang_is_taken_back_whole(w):
    """Its submit is killed at any moment, and then it is to go on: all ranks begin in one place, or none anywhere."""
    offline(w)
    with site(w, "gpu1", "gpu2", "gpu3", "gpu4", gpus=1) as s:
        config = w.home / ".config/dlrun/config.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("targets:\n  lab: {kind: ssh, hosts: [gpu1, gpu2]}\n  eu: {kind: ssh, hosts: [gpu3, gpu4]}\n")
        words = ["submit", "-d", "-t", "lab,eu", "-N", "2", "-g", "1", "--wait-for", "lab=0s", "--", *ONCE]
        begin = running_time()
        run = w.ok(*words).out.strip()
        whole, rng, runs = running_time() - begin, random.Random(5), set(os.listdir(w.state / "runs"))
        settle(w, [run])
        for i in range(GANGS):
            quiet(w)
            with subprocess.Popen([w.dlrun, *words], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(whole * (0.2 + 0.8 * (i + rng.random()) / GANGS))
                process.kill()
            # Nobody looks before the one who moves it.
            new = set(os.listdir(w.state / "runs")) - runs
            runs |= new
            for run in new:
                (w.state / "queue" / run).touch()
            w.run("queue", "--send", timeout=120)
            settle(w, [r["id"] for r in w.runs() if r["id"] in new], 120)
        ends = {}
        for run in (r["id"] for r in w.runs()):
            doc = w.show(run)
            ran = [began(s, f"gpu{i}").count(run) for i in range(1, 5)]
            end = "failed" if doc["state"] == "failed" else doc["target"]["name"]
            assert ran == {"failed": [0, 0, 0, 0], "lab": [1, 1, 0, 0], "eu": [0, 0, 1, 1]}[end], (doc, ran)
            ends[end] = ends.get(end, 0) + 1
        print(f"spill: gangs: {ends}", flush=True)


def test_a_mover_is_killed_anywhere(w):
    """The next one goes on: it runs once."""
    needs("strace")
    with two(w) as s:
        run = submit(w)
        queued(w, run)
        no_sender(w)
        total = kill.count(w, "queue", "--send")
        runs = [run]
        targets = collections.Counter()
        for n in kill.points(total, 12, 120):
            run = submit(w)
            runs.append(run)
            queued(w, run)
            no_sender(w)
            kill.killed(w, n, "queue", "--send")
            targets[where(w, run)] += 1
        settle(w, runs, 300)
        ran = began(s)
        states = {r["id"]: r["state"] for r in w.runs()}
        assert sorted(ran) == sorted(runs), [(run, states[run], ran.count(run)) for run in runs if ran.count(run) != 1]
        assert began(s, "gpu1") == []
        print(f"spill: a mover killed at {len(runs) - 1} of {total} calls: {dict(targets)}", flush=True)
        # Before it had left the first, and behind that.
        assert set(targets) == {"lab", "eu"}, targets


def test_a_cancel_during_the_move(w):
    """It ends everywhere, and begins nowhere."""
    needs("strace")
    with two(w) as s:
        run = submit(w)
        queued(w, run)
        no_sender(w)
        total = kill.count(w, "queue", "--send")
        runs = []
        for n in kill.points(total, 8, 48):
            run = submit(w)
            queued(w, run)
            no_sender(w)
            kill.killed(w, n, "queue", "--send")
            began_before = began(s).count(run) or w.show(run)["state"] in ENDED
            w.run("cancel", run)
            if not began_before:
                runs.append(run)
        settle(w, [r["id"] for r in w.runs()], 120)
        states = {r["id"]: r["state"] for r in w.runs()}
        ran = began(s)
        assert runs and all(ran.count(run) <= 1 for run in runs), ran
        assert all(states[run] == "cancelled" or ran.count(run) for run in runs), states
        assert "cancelled" in [states[run] for run in runs], states


if __name__ == "__main__":
    main()
