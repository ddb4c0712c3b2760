#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Studies: groups of runs, accepted wherever several runs are."""

import csv
import io
import itertools
import json
import math
import random
import sqlite3
import statistics
import struct
import sys

from harness import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/digits"))
from events import EventWriter  # noqa: E402

# Writes down that it ran: the run, the attempt. Then it ends as --code says, in the first attempt.
PROGRAM = """import os, sys
args = dict(word[2:].split("=") for word in sys.argv[1:])
with open(args["ran"], "a") as f:
    f.write(os.environ["DLRUN_RUN_ID"] + " " + os.environ["DLRUN_ATTEMPT"] + "\\n")
print("first line")
print("lr is", args["lr"])
open(os.environ["DLRUN_OUTPUT_DIR"] + "/out", "w").write(args["lr"])
if os.environ["DLRUN_ATTEMPT"] == "1" and args["code"] != "0":
    raise SystemExit(int(args["code"]))
"""


def study(w, group, codes, wait=True):
    """The ids of runs that end with these codes."""
    ran = w.dir / "ran"
    runs = [w.ok("submit", "-d", "-q", "-g", "0", "-n", "tiger", "--group", group, "--", "python3", "a.py", f"--lr={i / 10}",
                 f"--code={code}", f"--ran={ran}").out.strip() for i, code in enumerate(codes)]
    if wait:
        w.run("wait", "-q", group)
    return runs


def ran(w):
    return sorted((w.dir / "ran").read_text().splitlines())


def states(w, group):
    doc = json.loads(w.ok("ps", "--json", "--group", group).out)
    return {run["id"]: (run["state"], len(run["attempts"])) for run in doc["runs"]}


def test_one_word_for_all_runs(w):
    w.repo({"a.py": PROGRAM})
    runs = study(w, "mine", [0, 3, 4, 0], wait=False)
    other = w.ok("submit", "-d", "-q", "-g", "0", "-n", "mind", "--", "true").out.strip()
    # The first one that did not end with 0, as with many runs.
    assert w.run("wait", "mine").rc == 3
    assert states(w, "mine") == {run: ("failed" if code else "succeeded", 1) for run, code in zip(runs, [0, 3, 4, 0])}
    assert len(json.loads(w.ok("ps", "--json", "--group", "mi").out)["runs"]) == 4
    shown = json.loads(w.ok("show", "--json", "mine").out)
    assert [m["id"] for m in shown["members"]] == runs and shown["states"] == {"succeeded": 2, "failed": 2}, shown
    assert shown["axes"]["lr"] == ["0.0", "0.1", "0.2", "0.3"] and shown["state"] == "failed", shown
    why = json.loads(w.ok("why", "--json", "mine").out)
    assert [(c["state"], c["n"]) for c in why["causes"]] == [("succeeded", 2), ("failed", 1), ("failed", 1)], why
    assert why["causes"][1]["runs"] == [runs[1]], why
    heads = f"==> {runs[1]} <==\nlr is 0.1\n\n==> {runs[2]} <==\nlr is 0.2\n"
    assert w.ok("logs", "--failed", "--tail", "1", "mine").out == heads
    lines = [json.loads(line) for line in w.ok("logs", "--failed", "--json", "mine").out.splitlines()]
    assert [x["schema"] for x in lines] == ["dlrun/log/v1", "dlrun/log/v1", "dlrun/run/v1"] * 2, lines
    # What takes one run says so, and how to name one.
    for words in ("logs", "mine"), ("diff", "mine"), ("exec", "mine", "--", "true"), ("checkout", "mine", w.dir / "x"), \
            ("forward", "mine", "80"), ("note", "mine", "x"), ("submit", "--from", "mine"), ("top", "mine"):
        w.refused(*words, id="run.study", rc=2, says=["mine is a study of 4 runs", runs[0]])
    # Beginnings are of ids, where there is one; a group comes first by its whole name.
    assert w.show("mi")["id"] == other and json.loads(w.ok("show", "--json", "mine").out)["id"] == "mine"
    w.refused("show", "tiger", id="usage", rc=2, says=["ambiguous", runs[3]])
    w.ok("rm", "mine")
    assert list(w.state.glob("runs/*")) == [w.state / "runs" / other]
    w.refused("show", "mine", id="run.not_found", rc=5)


def test_names_of_members(w):
    """The ids that a sweep gives, by hand: the order is that of numbers, and a whole name is no prefix."""
    w.repo({"a.py": PROGRAM})
    study(w, "mine", [0, 0, 0])
    db = sqlite3.connect(w.state / "runs.db")
    for (old, doc), index in zip(db.execute("select id, doc from runs order by seq").fetchall(), (10, 1, 2)):
        new = f"tiger-{index}-4k2x9"
        doc = json.loads(doc.replace(old, new))
        doc.update(name=f"tiger-{index}", group="tiger-4k2x9")
        db.execute("update runs set id = ?, doc = ? where id = ?", (new, json.dumps(doc), old))
        (w.state / "runs" / old).rename(w.state / "runs" / new)
    db.commit()
    db.close()
    order = ["tiger-1-4k2x9", "tiger-2-4k2x9", "tiger-10-4k2x9"]
    for word in "tiger-4k2x9", "tiger-4k", "tiger", "t":
        members = json.loads(w.ok("show", "--json", word).out)["members"]
        assert [m["id"] for m in members] == order and [m["index"] for m in members] == [1, 2, 10], members
    assert w.show("tiger-1")["id"] == order[0] and w.show("tiger-10")["id"] == order[2]
    assert w.ok("logs", "tiger-1").out.startswith("first line\n")
    w.refused("logs", "tiger", id="run.study", rc=2, says="dlrun logs tiger-1-4k2x9")
    w.refused("show", "tiger-3", id="run.not_found", rc=5)
    w.ok("fetch", "tiger")
    assert sorted(p.name for p in (w.tree / "tiger-4k2x9").iterdir()) == sorted(order)


def test_only_what_failed_starts_again(w):
    w.repo({"a.py": PROGRAM})
    codes = [1 if i % 3 == 0 else 0 for i in range(24)]
    runs = study(w, "mine", codes)
    failed = [run for run, code in zip(runs, codes) if code]
    told = w.ok("restart", "--failed", "--json", "mine")
    assert [run["id"] for run in json.loads(told.out)["runs"]] == failed
    w.ok("wait", "mine")
    assert states(w, "mine") == {run: ("succeeded", 2 if run in failed else 1) for run in runs}
    assert ran(w) == sorted([f"{run} 1" for run in runs] + [f"{run} 2" for run in failed])
    again = w.ok("restart", "--failed", "mine")
    assert "none of the 24 runs of mine has failed" in again.err and len(ran(w)) == 32


def test_killed_while_many_start_again(w):
    """Each attempt of each run has run at most once, whenever dlrun is killed, and nothing is left behind in the end."""
    w.repo({"a.py": PROGRAM.replace('os.environ["DLRUN_ATTEMPT"] == "1" and', "")})
    runs = study(w, "mine", [1] * 12)
    for ms in (5, 20, 40, 60, 90, 130, 200):
        process = subprocess.Popen([w.dlrun, "restart", "--failed", "mine"], cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(ms / 1000)
        process.kill()
        process.wait()
        w.run("wait", "-q", "mine")
        done = ran(w)
        assert len(done) == len(set(done)), [line for line in done if done.count(line) > 1]
        known = states(w, "mine")
        assert set(known) == set(runs) and {state for state, _ in known.values()} <= {"failed"}, known
    before = states(w, "mine")
    w.ok("restart", "--failed", "mine")
    w.run("wait", "-q", "mine")
    assert states(w, "mine") == {run: ("failed", n + 1) for run, (_, n) in before.items()}


def test_many_are_stopped_at_once(w):
    w.repo({"a.py": "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
                    "print('up', flush=True)\ntime.sleep(600)\n"})
    n = 40
    runs = [w.ok("submit", "-d", "-q", "-g", "0", "--group", "many", "--", "python3", "a.py").out.strip() for _ in range(n)]
    wait_for(lambda: all((w.state / f"runs/{run}/attempts/1/log").read_bytes() for run in runs), "all programs")
    watch = Stopwatch()
    told = w.ok("cancel", "many")
    # One after the other would be n seconds and more.
    assert watch.between(1, n / 2), told
    assert f"many: {n} cancelled\n" in told.err, told
    assert set(states(w, "many").values()) == {("cancelled", 1)}
    assert f"many: {n} finished before\n" in w.ok("cancel", "many").err
    assert f"removed many: {n} runs" in w.ok("rm", "many").err
    assert not list(w.state.glob("runs/*"))


def test_a_directory_for_each_run(w):
    w.repo({"a.py": PROGRAM, "b.py": "import os\nfor name in 'params.json', 'only':\n"
                                     "    open(os.environ['DLRUN_OUTPUT_DIR'] + '/' + name, 'w').write('{\"own\": 1}')\n"})
    runs = study(w, "mine", [0, 1, 0])
    own = w.ok("submit", "-d", "-q", "-g", "0", "--group", "mine", "--", "python3", "b.py", "--lr=9").out.strip()
    w.run("wait", "-q", "mine")
    w.ok("fetch", "mine")
    for i, run in enumerate(runs):
        assert (w.tree / "mine" / run / "out").read_text() == str(i / 10)
        assert json.loads((w.tree / "mine" / run / "params.json").read_text())["lr"] == str(i / 10)
    # A file of that name among the results is the one that counts.
    assert (w.tree / "mine" / own / "params.json").read_text() == '{"own": 1}'
    assert w.git("status", "--porcelain").out == ""
    told = json.loads(w.ok("fetch", "--json", "mine").out)
    assert told["files"] == 0 and told["skipped"] == 5 and len(told["runs"]) == 4 and told["study"] == "mine", told
    # Paths that some have, and that none has.
    w.ok("fetch", "mine", "only", "-o", w.dir / "some")
    assert (w.dir / "some" / own / "only").exists() and not (w.dir / "some" / runs[0] / "out").exists()
    assert (w.dir / "some" / runs[0] / "params.json").exists()
    assert w.run("fetch", "mine", "nothing", "-o", w.dir / "none").rc == 5
    listed = json.loads(w.ok("fetch", "--list", "--json", "mine").out)
    assert sorted((f["run"], f["path"]) for f in listed["files"]) == sorted(
        [(run, "out") for run in runs] + [(own, "only"), (own, "params.json")]), listed
    # Changed by somebody: it stays.
    mine = w.tree / "mine" / runs[0] / "params.json"
    mine.write_text("{}")
    w.ok("fetch", "mine")
    assert mine.read_text() == "{}"


def test_a_group_that_is_no_directory(w):
    w.repo({"a.py": PROGRAM})
    for group in "a/b", "..", ".":
        study(w, group, [0])
        w.refused("fetch", group, id="usage", rc=2, says="cannot be the name of a directory")
    w.ok("fetch", "a/b", "-o", w.dir / "out")
    assert len(list((w.dir / "out").iterdir())) == 1


def test_tags_of_all_runs(w):
    w.repo({"a.py": PROGRAM})
    runs = study(w, "mine", [0, 0, 0])
    w.ok("tag", "mine", "paper=iclr", "base")
    assert w.ok("tag", "mine").out.split() == ["paper=iclr", "base"]
    w.ok("tag", "-d", "base", runs[0])
    w.ok("tag", "-d", "base", "mine")
    assert [w.show(run)["tags"] for run in runs] == [{"paper": "iclr"}] * 3
    w.refused("tag", "-d", "base", "mine", id="usage", rc=2, says="no run of mine has a tag")


def median_of(curves, step):
    """Values of curves at a step, on the straight line between two points."""
    values = []
    for curve in curves:
        for (a, x), (b, y) in itertools.pairwise(curve):
            if a <= step < b:
                values.append(x + (y - x) * (step - a) / (b - a))
        if step == curve[-1][0]:
            values.append(curve[-1][1])
    return len(values), statistics.median(values), min(values)


def test_curves_by_a_parameter(w):
    w.repo({"a.py": "import os, shutil, sys\nshutil.copytree(sys.argv[3], os.environ['DLRUN_OUTPUT_DIR'] + '/tb')\n"})
    dice, curves = random.Random(7), {}
    for lr, seed in itertools.product((0.1, 0.003, 1), range(4)):
        directory = w.dir / f"events-{lr}-{seed}"
        directory.mkdir()
        curve = []
        with EventWriter(str(directory)) as writer:
            for step in range(0, 60 + 10 * seed, 5 + seed):
                curve.append((step, struct_float(math.exp(-step * lr / 50) + dice.random())))
                writer.scalars(step, loss=curve[-1][1], gain=1.0)
        curves.setdefault(str(lr), []).append(curve)
        w.ok("submit", "-d", "-q", "-g", "0", "--group", "mine", "--", "python3", "a.py", f"--lr={lr}", f"--seed={seed}", directory)
    w.ok("wait", "-q", "mine")
    rows = list(csv.DictReader(io.StringIO(w.ok("plot", "--csv", "--by", "lr", "--tag", "loss", "mine").out)))
    assert [key for key, _ in itertools.groupby(rows, lambda row: row["lr"])] == ["0.003", "0.1", "1"]
    for value, own in curves.items():
        steps = sorted({step for curve in own for step, _ in curve})
        got = [row for row in rows if row["lr"] == value]
        assert [int(row["step"]) for row in got] == steps
        for row in got:
            n, median, best = median_of(own, int(row["step"]))
            assert int(row["runs"]) == n, row
            assert math.isclose(float(row["median"]), median) and math.isclose(float(row["best"]), best), (row, median, best)
    doc = json.loads(w.ok("plot", "--json", "--by", "lr", "mine").out)
    assert [(g["tag"], g["better"]) for g in doc["groups"]] == [("gain", None)] * 3 + [("loss", "lower")] * 3, doc["groups"]
    assert doc["groups"][0]["best"] is None and [g["runs"] for g in doc["groups"]] == [4] * 6
    drawn = w.ok("plot", "--by", "lr", "--tag", "loss", "mine").out
    assert "loss by lr" in drawn and all(f"lr={lr} (4 runs)" in drawn for lr in ("0.003", "0.1", "1")), drawn
    svg = w.ok("plot", "--by", "lr", "--svg", "-", "mine").out
    assert svg.count('class="b"') == 3, svg
    w.refused("plot", "--by", "nothing", "mine", id="usage", rc=2, says=["no run has a parameter nothing", "lr, seed"])
    # Without --by each run is a line of its own, of a study too.
    assert {row["run"] for row in csv.DictReader(io.StringIO(w.ok("plot", "--csv", "mine").out))} == set(states(w, "mine"))


def struct_float(value):
    """As an event file keeps it."""
    return struct.unpack("f", struct.pack("f", value))[0]


if __name__ == "__main__":
    main()
