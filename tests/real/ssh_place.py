#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several targets: which of them gets a run, and why; hosts that are full, too small, stopped or silent.

    tests/real/ssh_place.py DLRUN [NAME…]
"""

import contextlib
import json
import os
import time

from harness import in_time, main, needs, wait_for
from sshsite import SshSite
from ssh_gpus import holding
import held
import kill



@contextlib.contextmanager
def places(w, *gpus, **options):
    """Targets lab, eu, us of one host each, with so many GPUs."""
    names = ("lab", "eu", "us")
    with SshSite(w) as s:
        for i, n in enumerate(gpus, 1):
            s.host(f"gpu{i}", gpus=n, **options)
        w.repo()
        w.write("dlrun.yaml", json.dumps({"targets": {names[i]: {"kind": "ssh", "hosts": [f"gpu{i + 1}"]} for i in range(len(gpus))}}))
        yield s


def submit(w, *words, rc=0):
    done = w.run("submit", "-d", *words)
    assert done.rc == rc, done
    return done.out.strip(), done.err


def states(w, run):
    return {place["target"]: place["state"] for place in w.show(run)["places"]}


def test_the_first_with_room(w):
    """One is full, one never fits, one has room: recorded and said; another order makes no other choice."""
    with places(w, 1, 0, 2) as s:
        full = holding(s, to="gpu1")
        run, said = submit(w, "-t", "lab,eu,us", "-g", "1", "--", "true")
        assert w.show(run)["target"]["name"] == "us", w.show(run)
        assert states(w, run) == {"lab": "later", "eu": "never", "us": "chosen"}, w.show(run)["places"]
        line = next(line for line in said.splitlines() if "→ us" in line)
        assert "lab: gpu1, no GPU free" in line and "eu: " in line and "host gpu2 has 0" in line and "us: 2 × " in line, line
        assert "lab would take it later: gpu1, no GPU free" in w.ok("why", run).out
        assert [p["state"] for p in json.loads(w.ok("why", "--json", run).out)["places"]] == ["later", "never", "chosen"]
        assert "→ us" in w.ok("show", run).out
        assert s.ended(run)["state"] == "succeeded"
        run, _ = submit(w, "-t", "us,eu,lab", "-g", "1", "--", "true")
        assert w.show(run)["target"]["name"] == "us" and states(w, run)["us"] == "chosen"
        w.ok("cancel", full)


def test_nobody_has_room_now(w):
    """The first that takes it later; --wait-for waits in one although another has room."""
    with places(w, 1, 1, 1) as s:
        runs = [holding(s, to=f"gpu{i}") for i in (1, 2)]
        run, _ = submit(w, "-t", "lab,eu", "-g", "1", "--", "echo", "mine")
        assert w.show(run)["target"]["name"] == "lab" and states(w, run) == {"lab": "chosen", "eu": "later"}
        late, said = submit(w, "-t", "lab,eu,us", "--wait-for", "eu=1h30m", "-g", "1", "--", "echo", "yours")
        assert w.show(late)["target"]["name"] == "eu", said
        assert [p.get("wait_ms") for p in w.show(late)["places"]] == [None, 5400000, None]
        wait_for(lambda: s.state(late) == "queued", "its queueing", 20)
        for full in runs:
            w.ok("cancel", full)
        for one, text in ((run, "mine\n"), (late, "yours\n")):
            assert s.ended(one)["state"] == "succeeded" and w.ok("logs", one).out == text


def test_none_ever_takes_it(w):
    with places(w, 1, 0) as s:
        _, said = submit(w, "-t", "lab,eu", "-g", "4", "--", "true", rc=2)
        assert "none of the 2 targets takes the run" in said, said
        assert "lab: requested 4 GPUs, host gpu1 has 1" in said and "eu: requested 4 GPUs, host gpu2 has 0" in said, said
        assert not w.runs()
        w.refused("submit", "-d", "-t", "lab,eu", "--gpu-type", "v100,h200", "-g", "9", "--", "true", rc=2, id="gpu.count", says="none of")
        w.refused("submit", "-d", "-t", "lab,eu", "--", "cd", "x", rc=2, id="usage", says="'cd' is a command of the shell")
        w.refused("submit", "-d", "-t", "lab,ue", "--", "true", rc=2, id="target", says="there is no target 'ue'")
        w.refused("submit", "-d", "-t", "lab,ssh:a,,b", "--", "true", rc=2, id="usage", says="a name is empty")
        w.refused("submit", "-d", "-t", "lab", "-N", "0", "--", "true", rc=2, id="usage", says="from 1 to 10000")
        w.refused("submit", "-d", "-t", "lab,", "--", "true", rc=2, id="usage", says="names no target before or after a comma")
        w.refused("submit", "-d", "-t", "lab,eu", "--wait-for", "us=5m", "--", "true", rc=2, id="usage",
                  says="--wait-for us: it is not one of the targets")
        w.refused("submit", "-d", "-t", "lab,eu", "--wait-for", "eu=5", "--", "true", rc=2, id="usage", says="needs a unit")
        w.refused("submit", "-d", "-t", "lab", "--wait-for", "lab=5m", "--", "true", rc=2, id="usage", says="requires several targets")
        assert not w.runs()


def test_stopped_and_stalled_while_it_chooses(w):
    """One refuses, one hangs: the third gets it soon; the silent ones are named."""
    with places(w, 1, 1, 1) as s:
        s["gpu1"].stop()
        s["gpu2"].freeze()
        begin = time.monotonic()
        run, said = submit(w, "-t", "lab,eu,us", "-g", "1", "--", "true")
        assert time.monotonic() - begin < 15, said
        assert w.show(run)["target"]["name"] == "us" and states(w, run) == {"lab": "silent", "eu": "silent", "us": "chosen"}, w.show(run)
        s["gpu2"].freeze(False)
        # Whoever has room first in the order needs no answer of those behind it.
        s["gpu3"].freeze()
        run, said = in_time(lambda: submit(w, "-t", "eu,us", "-g", "1", "--", "true"), 8)
        assert states(w, run) == {"eu": "chosen", "us": "untried"}, (said, w.show(run)["places"])
        s["gpu3"].freeze(False)


def test_all_are_silent(w):
    """Accepted here; the choice is made when it is sent, and the program begins once."""
    w.env.pop("DLRUN_OFFLINE", None)
    with places(w, 1, 1, 0) as s:
        for name in ("gpu1", "gpu2"):
            s[name].stop(sessions=True)
        run, said = submit(w, "-t", "lab,us,eu", "-g", "1", "--", "sh", "-c", 'echo $DLRUN_RUN_ID >>~/began')
        assert "queued here: no answer from lab, eu" in said and "when one of them answers" in said, said
        shown = w.show(run)
        assert shown["attempts"] == [] and states(w, run) == {"lab": "silent", "us": "never", "eu": "silent"}, shown
        digest = shown["image"]["ref"].split("@")[1]
        s["gpu2"].start()
        wait_for(lambda: w.ok("queue", "--send") and w.show(run)["target"]["name"] == "eu", "its sending", 60)
        assert s.ended(run)["state"] == "succeeded" and states(w, run) == {"lab": "silent", "us": "never", "eu": "chosen"}
        assert w.show(run)["image"]["ref"].split("@")[1] == digest and w.show(run)["target"]["hosts"] == ["gpu2"]
        assert (s["gpu2"].home / "began").read_text() == f"{run}\n"
        w.env["DLRUN_OFFLINE"] = "fail"
        s["gpu2"].stop(sessions=True)
        _, said = submit(w, "-t", "lab,eu", "--", "true", rc=3)
        assert "lab: " in said and "eu: " in said, said


def began(s, *hosts):
    """The runs whose programs have begun, once for each time and host."""
    found = []
    for name in hosts:
        path = s[name].home / "began"
        found += [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
    return found


def test_a_sender_is_killed_anywhere(w):
    """Each time another host is away: the run is sent by the next one, to one of both, and never twice."""
    needs("strace")
    w.env.pop("DLRUN_OFFLINE", None)
    with places(w, 0, 0) as s:
        def away(*names):
            for name in ("gpu1", "gpu2"):
                s[name].stop(sessions=True)
            run, _ = submit(w, "-t", "lab,eu", "--", *held.ONCE)
            held.no_sender(w)
            for name in ("gpu1", "gpu2"):
                if name not in names:
                    s[name].start()
            return run
        runs = [away()]
        total = kill.count(w, "queue", "--send")
        for i, n in enumerate(kill.points(total, 10, 60)):
            runs.append(away(("gpu1", "gpu2")[i % 2]))
            kill.killed(w, n, "queue", "--send")
            for name in ("gpu1", "gpu2"):
                if name == ("gpu1", "gpu2")[i % 2]:
                    s[name].start()
            w.ok("queue", "--send")
            assert held.waiting(w) == [], (n, w.show(runs[-1]))
        held.all_end(w, runs)
        ran = began(s, "gpu1", "gpu2")
        assert sorted(ran) == sorted(runs), [(run, ran.count(run), w.show(run)["places"]) for run in runs if ran.count(run) != 1]
        assert {w.show(run)["target"]["name"] for run in runs} == {"lab", "eu"}
        print(f"places: a sender killed at {len(runs) - 1} of {total} calls", flush=True)


def refuse(s, name, *, on=True):
    """What comes to that host is not taken there, although it has room."""
    s[name].ok("chmod", "500" if on else "700", f"/home/me/.dlrun/on/{name}/incoming")


@contextlib.contextmanager
def refusing(w):
    """Two targets; the first is known and refuses."""
    w.env.pop("DLRUN_OFFLINE", None)
    with places(w, 1, 1) as s:
        for name in ("lab", "eu"):
            s.ended(submit(w, "-t", name, "--", "true")[0])
        refuse(s, "gpu1")
        yield s


def test_a_target_that_refuses(w):
    """It has room, and does not take the run when it comes: the next one gets it, once; all of them: the run fails."""
    with refusing(w) as s:
        words = ("-t", "lab,eu", "-g", "1", "--", *held.ONCE)
        run, said = submit(w, *words)
        assert "lab refused it: gpu1: " in said and "goes to the next target" in said, said
        assert s.ended(run)["state"] == "succeeded" and states(w, run) == {"lab": "refused", "eu": "chosen"}, w.show(run)
        assert began(s, "gpu1") == [] and began(s, "gpu2") == [run]
        assert "lab refused it: gpu1: " in w.ok("why", run).out
        out = w.ok("submit", "-f", "-t", "lab,eu", "-g", "1", "--", "echo", "mine").out
        assert out == "mine\n", out
        # Of one that was held, in one turn.
        for name in ("gpu1", "gpu2"):
            s[name].stop(sessions=True)
        run, _ = submit(w, *words)
        held.no_sender(w)
        for name in ("gpu1", "gpu2"):
            s[name].start()
        w.ok("queue", "--send")
        assert s.ended(run)["state"] == "succeeded" and states(w, run) == {"lab": "refused", "eu": "chosen"}, w.show(run)
        assert began(s, "gpu1") == [] and began(s, "gpu2").count(run) == 1
        # The same of a study.
        for name in ("gpu1", "gpu2"):
            s[name].stop(sessions=True)
        w.ok("sweep", "-d", "-t", "lab,eu", "-g", "1", "--over", "i=1..3", "--", *held.ONCE, "{i}")
        held.no_sender(w)
        members = held.waiting(w)
        for name in ("gpu1", "gpu2"):
            s[name].start()
        w.ok("queue", "--send")
        assert len(members) == 3 and all(s.ended(run)["state"] == "succeeded" for run in members)
        assert all(states(w, run) == {"lab": "refused", "eu": "chosen"} for run in members)
        assert began(s, "gpu1") == [] and all(began(s, "gpu2").count(run) == 1 for run in members)
        # Nobody takes it.
        refuse(s, "gpu2")
        run, _ = submit(w, *words)
        doc = s.ended(run)
        assert doc["state"] == "failed" and "gpu2: " in doc["text"] and doc["places"][0]["state"] == "refused", doc
        assert began(s, "gpu1", "gpu2").count(run) == 0 and held.waiting(w) == []


def test_a_refused_submit_is_killed_anywhere(w):
    """What has a row goes on to the other target, or says that it never began; none begins twice."""
    needs("strace")
    with refusing(w) as s:
        words = ("submit", "-d", "-t", "lab,eu", "--", *held.ONCE)
        total = kill.count(w, *words)
        held.no_sender(w)
        where = kill.points(total, 14, 80)
        for n in where:
            kill.killed(w, n, *words)
            w.ok("queue", "--send")
        rows = [r["id"] for r in w.runs()]
        held.all_end(w, rows)
        ran = began(s, "gpu2")
        ends = {run: w.show(run)["state"] for run in rows}
        assert began(s, "gpu1") == [] and len(set(ran)) == len(ran), ran
        assert all((ends[run] == "succeeded") == (run in ran) for run in set(rows) - set(rows[-2:])), ends
        print(f"places: a refused submit killed at {len(where)} of {total} calls, {len(ran)} went on", flush=True)
        # Killed before it had a row, and behind that.
        assert 0 < len(ran) < len(where), ran


def test_here_and_there(w):
    """This machine is a place as any other; one that does not answer costs a few seconds at most."""
    with places(w, 0) as s:
        run, _ = submit(w, "-t", "lab,local", "--", "true")
        assert w.show(run)["target"]["name"] == "lab" and states(w, run) == {"lab": "chosen", "local": "untried"} or \
            states(w, run) == {"lab": "chosen", "local": "now"}
        s["gpu1"].stop(sessions=True)
        run, _ = submit(w, "-t", "lab,local", "--", "true")
        assert w.show(run)["target"]["name"] == "local" and states(w, run)["lab"] == "silent"
        w.ok("wait", run)


def test_a_preview(w):
    with places(w, 0, 1) as s:
        done = w.ok("submit", "--dry-run", "-t", "lab,eu", "-g", "1", "--", "true")
        assert "target    eu" in done.out and "→ eu" in done.out and not w.runs(), done
        doc = json.loads(w.ok("submit", "--dry-run", "--json", "-t", "lab,eu", "-g", "1", "--", "true").out)
        assert [p["state"] for p in doc["run"]["places"] if p] == ["never", "chosen"] if "run" in doc else doc["places"], doc


def test_a_study_goes_to_one(w):
    with places(w, 0, 1) as s:
        done = w.ok("sweep", "-d", "-t", "lab,eu", "-g", "1", "--over", "x=1..3", "--", "sh", "-c", "echo {x}")
        study = done.out.strip()
        members = [run["id"] for run in w.runs()]
        assert len(members) == 3 and {w.show(run)["target"]["name"] for run in members} == {"eu"}
        assert all(states(w, run) == {"lab": "never", "eu": "chosen"} for run in members)
        w.ok("wait", study)


def test_any_of_several_models(w):
    with SshSite(w) as s:
        s.host("gpu1", gpus=1)
        s.host("gpu2", gpus=0)
        w.repo()
        told = json.loads(w.ok("targets", "--gpus", "--json", "ssh:gpu1").out)["targets"][0]["gpu_models"]
        assert len(told) == 1 and told[0]["all"] == told[0]["free"] == 1, told
        model = told[0]["model"].split()[-1]
        run = s.submit("--gpu-type", f"v100,{model}", "--", "sh", "-c", "sleep 600", to="gpu1")
        wait_for(lambda: s.state(run) == "running", "its start", 30)
        assert [k["free"] for k in json.loads(w.ok("targets", "--gpus", "--json", "ssh:gpu1").out)["targets"][0]["gpu_models"]] == [0]
        table = w.ok("targets", "--gpus", "ssh:gpu1", "ssh:gpu2").out
        assert model in table and "none" in table and table.split("\n")[0].split() == ["NAME", "GPU", "FREE", "ALL", "STATE"], table
        w.refused("submit", "-d", "-t", "ssh:gpu1", "--gpu-type", "v100,h200", "--", "true", rc=2, id="gpu.count", says="v100,h200")
        w.ok("cancel", run)


def test_without_gpus_beside_gpus(w):
    """-g 0 leaves hosts with GPUs to those who want them."""
    with SshSite(w) as s:
        s.host("gpu1", gpus=2)
        s.host("gpu2", gpus=0)
        w.repo()
        run = s.submit("-g", "0", "--", "true", to="gpu1,gpu2")
        assert w.show(run)["target"]["hosts"] == ["gpu2"], w.show(run)["target"]


if __name__ == "__main__":
    main()
