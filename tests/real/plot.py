#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Curves: the numbers of real writers beside TensorBoard's own, the charts of live runs, and what a
terminal sees of them."""

import csv
import io
import math
import os
import sys
import time

import pypi
from harness import *  # noqa: F403
from screen import Screen

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/digits"))
from events import EventWriter  # noqa: E402

DATA = Path(__file__).resolve().parents[1] / "unit/data/events"

READ = """
import json, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

def number(x):
    return x if math.isfinite(x) else "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"

curves = []
for directory in sys.argv[1:]:
    acc = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    acc.Reload()
    for tag in acc.Tags()["scalars"]:
        curves.append([directory, tag, [[e.step, number(e.wall_time), number(e.value)] for e in acc.Scalars(tag)]])
    for tag in acc.Tags()["tensors"]:
        if acc.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            curves.append([directory, tag, [[e.step, number(e.wall_time),
                number(float(tensor_util.make_ndarray(e.tensor_proto).item()))] for e in acc.Tensors(tag)]])
print(json.dumps(curves))
"""


def tensorboard():
    """A Python that has TensorBoard; made once."""
    where = pypi.CACHE / "tensorboard"
    with pypi.only_one("tensorboard"):
        if not (where / "bin/tensorboard").exists():
            pypi.venv(where)
            pypi.pip_install(where, "tensorboard==2.20.0", "setuptools<81")
    return where / "bin/python"


def points_of(curve):
    return [list(point) for point in zip(curve["step"], curve["wall_time"], curve["value"])]


def plotted(w, *words):
    """{(path, dir, tag): [[step, wall time, value]…]} as --json has it."""
    doc = json.loads(w.ok("plot", "--json", *words).out)
    assert doc["schema"] == "dlrun/plot/v1"
    return {(c["path"], c["dir"], c["tag"]): points_of(c) for c in doc["curves"]}


def cases():
    found = sorted(DATA.glob("*.json"))
    assert len(found) >= 8, found
    return [(path.with_suffix(""), json.loads(path.read_text())["curves"]) for path in found]


def test_numbers_as_recorded(w):
    for directory, curves in cases():
        wanted = {(str(directory), c["dir"], c["tag"]): c["points"] for c in curves}
        assert plotted(w, directory) == wanted, directory


def test_numbers_as_tensorboard_says_now(w):
    """Where its two readers agree: see make_event_files.py."""
    python = tensorboard()
    for directory, curves in cases():
        agreed = {(c["dir"], c["tag"]) for c in curves if c["agree"]}
        dirs = sorted({directory / c["dir"] for c in curves})
        done = w.command([python, "-c", READ, *dirs])
        assert done.rc == 0, done
        ours = {(str(Path(path) / sub), tag): points for (path, sub, tag), points in plotted(w, directory).items()}
        n = 0
        for where, tag, points in json.loads(done.out):
            sub = str(Path(where).relative_to(directory))
            if ("" if sub == "." else sub, tag) in agreed:
                assert ours[str(Path(where)), tag] == points, (where, tag)
                n += 1
        assert n == len(agreed), (n, agreed)


def test_csv_is_the_same(w):
    for directory, _ in cases():
        rows = csv.DictReader(io.StringIO(w.ok("plot", "--csv", directory).out))
        seen = {}
        for row in rows:
            assert row["run"] == str(directory)
            seen.setdefault((str(directory), row["dir"], row["tag"]), []).append(
                [int(row["step"]), float(row["wall_time"]), row["value"]])
        # A curve whose values are all void has no line.
        wanted = {key: points for key, points in plotted(w, directory).items() if points}
        assert seen.keys() == wanted.keys()
        for key, points in wanted.items():
            for (a, b, c), (x, y, z) in zip(points, seen[key], strict=True):
                assert (a, b) == (x, y) and (c == z or c == float(z)), (key, a, c, z)


def writer(directory):
    directory.mkdir(parents=True, exist_ok=True)
    return EventWriter(str(directory))


def test_svg_is_xml(w):
    from xml.etree import ElementTree
    with writer(w.tree / "logs") as events:
        for i in range(50):
            events.scalars(i, **{"a<b>&\"c'": math.sin(i), "nan": math.nan if i % 7 == 0 else i})
    said = w.ok("plot", "--svg", "out.svg", "--smooth", "0.5", "logs/")
    assert not said.out and "out.svg: 2 charts" in said.err
    text = (w.tree / "out.svg").read_text()
    root = ElementTree.fromstring(text)
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a<b>&\"c'" in titles and "nan" in titles
    assert "NaN" not in text and "script" not in text and "href" not in text
    assert w.ok("plot", "--svg", "-", "--smooth", "0.5", "logs/").out == text


TRAIN = """
import os, sys, time
sys.path.insert(0, {examples!r})
from events import EventWriter
with EventWriter(os.environ["DLRUN_OUTPUT_DIR"]) as events:
    for i in range(1, 1000):
        events.scalars(i, loss=1 / i)
        if i >= {fast}:
            time.sleep(0.2)
"""


def live_run(w):
    w.write("train.py", TRAIN.format(examples=str(Path(__file__).parents[2] / "examples/digits"), fast=20))
    run = w.ok("submit", "-d", "-g", "0", "--", sys.executable, "train.py").out.strip()
    wait_for(lambda: w.run("plot", run).rc == 0, "values of the run")
    return run


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.1)


def test_a_live_run(w):
    run = live_run(w)
    said = w.ok("plot", run)
    assert "last event" in said.err and "flush every 120 s" in said.err, said
    assert "loss" in said.out and "@" in said.out
    before = plotted(w, run)
    wait_for(lambda: plotted(w, run) != before, "more values")
    w.ok("cancel", run)
    assert "last event" not in w.ok("plot", run).err


def test_watching_a_live_run(w):
    run = live_run(w)
    for key, status in ((b"q", 0), (b"\x03", 130)):
        screen = Screen(w, "plot", "--watch", run)

        def steps():
            return set(re.findall(rb"@(\d+)", screen.look()))

        wait_for(lambda: len(steps()) >= 3, "new values on the screen")
        assert "⠤".encode() in screen.shown or b"\xe2\xa1" in screen.shown
        screen.leave(key, status)
    w.ok("cancel", run)


def test_event_files_in_the_tree(w):
    """Without configuration, while the program runs and afterwards: metrics and curves of what it wrote beside its code."""
    w.repo({"work.py": f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2] / "examples/digits")!r})
from events import EventWriter
os.makedirs("exp/.logs/runs/x")
with EventWriter("exp/.logs/runs/x") as events:
    for step in range(1, 4):
        events.scalars(step, loss=1 / step)
    while not os.path.exists(os.environ["STOP"]): time.sleep(0.1)
    events.scalars(4, loss=0.125)
"""})
    stop = w.dir / "stop"
    run = w.ok("submit", "-d", "-g", "0", "-e", f"STOP={stop}", "--", "python3", "work.py").out.strip()
    wait_for(lambda: w.show(run)["metrics"], "metrics of a program at work")
    assert list(plotted(w, run).values())
    stop.touch()
    w.ok("wait", run)
    loss = w.show(run)["metrics"]["loss"]
    assert (loss["value"], loss["step"]) == (0.125, 4), loss
    assert [len(points) for points in plotted(w, run).values()] == [4]


def test_refusals(w):
    w.repo()
    w.refused("plot", "nowhere/", id="events.dir", rc=5, says="no such directory: nowhere/")
    w.refused("plot", ".", id="events.none", rc=5, says="SummaryWriter")
    w.refused("plot", "--smooth", "1", ".", id="usage", rc=2)
    w.refused("plot", "--csv", "--json", ".", id="usage", rc=2)
    w.ok("submit", "-d", "-g", "0", "--", "true")
    w.ok("wait", "@")
    w.refused("plot", id="events.none", rc=5, says=["has written no event files", "dlrun fetch --list"])
    with writer(w.tree / "logs") as events:
        events.scalars(1, train_loss=1, accuracy=2)
    w.refused("plot", "--tag", "train_los", "logs", id="events.tag", rc=5,
              says=["accuracy, train_loss", "--tag train_loss"])


if __name__ == "__main__":
    main()
