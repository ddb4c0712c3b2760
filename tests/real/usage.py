#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run uses and says of itself: beside /usr/bin/time, while it runs, and what looking costs."""

import os
import sys
import time

from harness import *  # noqa: F403
from screen import Screen

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/digits"))
MIB = 1 << 20

LOAD = """
import os, time
memory = os.urandom(1 << 20) * 300
end = time.process_time() + 2.5
while time.process_time() < end:
    sum(range(1000))
"""


def submit(w, *words):
    return w.ok("submit", "-d", "-g", "0", "--", *words).out.strip()


def ended(w, run):
    w.run("wait", run)
    return w.show(run)


def near(value, wanted, part=0.1):
    assert value is not None and abs(value - wanted) <= part * wanted, (value, wanted)


def outputs(w, run):
    return w.state / "runs" / run / "outputs"


def by_time(w, run):
    """Processor seconds and peak bytes as /usr/bin/time has written them down."""
    user, system, kib = (outputs(w, run) / "time").read_text().split()
    return float(user) + float(system), int(kib) * 1024


def timed(*words):
    line = "exec /usr/bin/time -o \"$DLRUN_OUTPUT_DIR/time\" -f '%U %S %M' \"$@\""
    return "sh", "-c", line, "sh", *words


def top(w, run):
    """What top says of the run, once its supervisor has looked twice."""
    [seen] = json.loads(w.ok("top", "--json", run).out)["runs"]
    return seen if seen["now"] and seen["now"]["cpu"] is not None else None


def test_one_process_as_time_says(w):
    needs("time")
    w.write("load.py", LOAD)
    run = submit(w, *timed("python3", "load.py"))
    usage = ended(w, run)["usage"]
    cpu_s, peak = by_time(w, run)
    assert cpu_s > 2 and peak > 300 * MIB
    near(usage["cpu_s"], cpu_s)
    near(usage["memory_peak_bytes"], peak)
    assert usage["gpu_busy"] is None and usage["gpu_memory_peak_bytes"] is None


def test_a_short_peak_as_time_says(w):
    """Over before anybody looks."""
    needs("time")
    w.write("peak.py", "b = b'x' * (400 << 20)\ndel b\n")
    run = submit(w, *timed("python3", "peak.py"))
    usage = ended(w, run)["usage"]
    cpu_s, peak = by_time(w, run)
    near(usage["memory_peak_bytes"], peak)
    assert abs(usage["cpu_s"] - cpu_s) < 0.1, (usage, cpu_s)


def test_processes_are_added_up(w):
    needs("time")
    w.write("load.py", LOAD)
    run = submit(w, *timed("sh", "-c", "python3 load.py & python3 load.py & wait"))
    usage = ended(w, run)["usage"]
    cpu_s, peak = by_time(w, run)
    assert cpu_s > 4
    near(usage["cpu_s"], cpu_s)
    near(usage["memory_peak_bytes"], 2 * peak, 0.15)


def test_shared_memory_counts_once(w):
    w.write("fork.py", """
import os, sys, time
memory = os.urandom(1 << 20) * 200
for i in range(3):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
open(os.environ["DLRUN_OUTPUT_DIR"] + "/ready", "w").close()
time.sleep(60)
""")
    run = submit(w, "python3", "fork.py")
    wait_for(lambda: (outputs(w, run) / "ready").exists(), "the program has forked")
    seen = wait_for(lambda: (lambda s: s and s["now"]["memory_bytes"] > 200 * MIB and s)(top(w, run)), "it was seen")
    w.ok("cancel", run)
    assert seen["now"]["memory_bytes"] < 300 * MIB, seen
    assert ended(w, run)["usage"]["memory_peak_bytes"] < 300 * MIB


def test_now(w):
    """One busy process is one processor, as long as it gets one."""
    w.write("busy.py", "while True:\n    sum(range(1000))\n")
    run = submit(w, "python3", "busy.py")
    seen = wait_for(lambda: (lambda s: s and 0.05 < s["now"]["cpu"] < 1.2 and s["now"]["memory_bytes"] > MIB and s)(top(w, run)),
                    "it is seen as one processor")
    table = w.ok("top", run).out
    w.ok("cancel", run)
    assert seen["state"] == "running" and seen["usage"]["cpu_s"] > 0
    assert re.search(rf"^{run} +running +\d+ s +\d+ % +[\d.]+ MiB +- +- ", table, re.M), table
    [here] = json.loads(w.ok("top", "--json", "local").out)["machines"]
    assert here["cpus"] >= 1 and here["load"] > 0 and 0 < here["memory_used_bytes"] < here["memory_bytes"], here
    [after] = json.loads(w.ok("top", "--json", run).out)["runs"]
    assert after["now"] is None and after["state"] == "cancelled"


def test_what_a_program_says_of_itself(w):
    w.write("events.py", (Path(__file__).parents[2] / "examples/digits/events.py").read_bytes())
    w.write("train.py", """
import json, os
from events import EventWriter
out = os.environ["DLRUN_OUTPUT_DIR"]
os.makedirs(out + "/tb/a/validation")
with EventWriter(out + "/tb/a") as a, EventWriter(out + "/tb/a/validation") as b:
    for step in range(100):
        a.scalars(step, loss=1 / (step + 1), acc=0.5)
        b.scalars(step, loss=2.0)
    a.scalars(100, loss=float("nan"))
json.dump({"lr": 0.5, "opt": {"name": "adam"}}, open(out + "/params.json", "w"))
print("\x1b[34mwandb\x1b[0m: View run at \x1b[4mhttps://wandb.ai/me/p/runs/abc?apiKey=SECRET\x1b[0m")
print("View run x at: http://127.0.0.1:5000/#/experiments/0/runs/0123abcd")
""")
    run = submit(w, "python3", "train.py", "--epochs", "3")
    doc = ended(w, run)
    assert doc["metrics"] == {
        "loss": {"value": None, "step": 100, "not_finite": "nan", "min": 0.01, "min_step": 99, "max": 1, "max_step": 0},
        "acc": {"value": 0.5, "step": 99, "min": 0.5, "min_step": 0, "max": 0.5, "max_step": 0},
        "validation/loss": {"value": 2, "step": 99, "min": 2, "min_step": 0, "max": 2, "max_step": 0}}, doc["metrics"]
    assert doc["params"] == {"epochs": "3", "lr": 0.5, "opt.name": "adam"}, doc["params"]
    assert re.search(rf"^{run} .* 100 +loss nan ", w.ok("ps").out, re.M) and "STEP  METRIC" in w.ok("ps").out, w.ok("ps").out
    shown = w.ok("show", run, env={"LC_ALL": "C.UTF-8"}).out
    assert re.search("^ +[▁-█]{32}  loss: 1 to nan, steps 0 to 100$", shown, re.M), shown
    assert "steps 0 to" not in w.ok("show", run, env={"LC_ALL": "C"}).out
    assert doc["links"] == ["https://wandb.ai/me/p/runs/abc", "http://127.0.0.1:5000/#/experiments/0/runs/0123abcd"]


def cpu_s(pid):
    """As exactly as the kernel tells: ticks may miss what is short."""
    exact = Path(f"/proc/{pid}/schedstat")
    if exact.exists():
        return int(exact.read_text().split()[0]) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_looking_costs_less_than_one_percent(w):
    w.write("events.py", (Path(__file__).parents[2] / "examples/digits/events.py").read_bytes())
    w.write("train.py", """
import os, time
from events import EventWriter
with EventWriter(os.environ["DLRUN_OUTPUT_DIR"]) as writer:
    for step in range(100000):
        writer.scalars(step, loss=1.0)
        time.sleep(0.01)
""")
    run = submit(w, "python3", "train.py")
    attempt = w.state / "runs" / run / "attempts/1"
    wait_for(lambda: top(w, run), "it was seen twice")
    pid = json.loads((attempt / "state.json").read_text())["supervisor"]["pid"]
    before, start = cpu_s(pid), time.monotonic()
    time.sleep(12)  # what is measured is a share of time
    share = (cpu_s(pid) - before) / (time.monotonic() - start)
    w.ok("cancel", run)
    print(f"    the supervisor took {100 * share:.2f} % of one processor")
    assert share < 0.01, share


def test_top_on_a_terminal(w):
    w.repo()
    run = submit(w, "sleep", "60")
    for key, status in ((b"q", 0), (b"\x03", 130)):
        screen = Screen(w, "top")
        wait_for(lambda: run.encode() in screen.look(), "the table")
        # It is not drawn more often because of keys.
        start, drawn = time.monotonic(), 0
        while time.monotonic() - start < 1:
            screen.press(b"x")
            drawn += screen.read(0.01).count(b"\x1b[H")
        assert drawn <= 11, drawn
        screen.leave(key, status)
    w.ok("cancel", run)


if __name__ == "__main__":
    main()
