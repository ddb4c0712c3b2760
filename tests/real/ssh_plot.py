#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Curves of runs on hosts: while they go on, afterwards, and side by side with one of this machine."""

import json

from harness import *  # noqa: F403
from sshsite import site

EVENTS = Path(__file__).parents[2] / "examples/digits/events.py"
TRAIN = """
import os, sys, time
from events import EventWriter
n = int(sys.argv[1])
where = os.path.join(os.environ["DLRUN_OUTPUT_DIR"], "logs")
os.makedirs(where)
with EventWriter(where) as events:
    for i in range(1, n + 1):
        events.scalars(i, loss=n / i)
        if i > 100:
            time.sleep(0.2)
"""


def curves(w, *words):
    doc = json.loads(w.ok("plot", "--json", *words).out)
    return {c["run"]: c for c in doc["curves"]}


def test_curves_of_hosts(w):
    with site(w) as s:
        w.write("events.py", EVENTS.read_text())
        w.write("train.py", TRAIN)
        live = s.submit("-g", "0", "--", "python3", "train.py", "1000")
        s.running(live)
        wait_for(lambda: any(r["metrics"].get("loss") for r in w.runs() if r["id"] == live), "the last value in ps", 60)
        wait_for(lambda: w.run("plot", live).rc == 0, "values of the run", 60)
        said = w.ok("plot", live)
        assert "last event" in said.err and live in said.out, said
        before = len(curves(w, live)[live]["step"])
        assert before >= 1
        wait_for(lambda: len(curves(w, live)[live]["step"]) > before, "more values", 60)
        ended = s.submit("-g", "0", "--", "python3", "train.py", "50")
        s.ended(ended)
        here = w.ok("submit", "-d", "-t", "local", "-g", "0", "--", "python3", "train.py", "40").out.strip()
        w.ok("wait", here)
        seen = curves(w, live, ended, here)
        assert seen.keys() == {live, ended, here}
        for run, n in ((ended, 50), (here, 40)):
            assert seen[run]["dir"] == "logs" and seen[run]["tag"] == "loss" and not seen[run]["restarts"]
            assert seen[run]["step"] == list(range(1, n + 1))
            assert all(abs(v - n / i) < 1e-5 * n for i, v in zip(seen[run]["step"], seen[run]["value"]))
        chart = w.ok("plot", live, ended, here)
        assert all(run in chart.out for run in (live, ended, here)), chart
        w.ok("cancel", live)
        s.ended(live)
        assert "last event" not in w.ok("plot", live).err


if __name__ == "__main__":
    main()
