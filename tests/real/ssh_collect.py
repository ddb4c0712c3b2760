#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs leave in their trees on real SSH servers: fetched, drawn, and there for the next attempt."""

from cluster_fetch import fetched
from harness import *  # noqa: F403
from sshsite import site

WRITE = """import os, pathlib, sys, time
P = pathlib.Path
P('model.pt').write_text('model'); P('train.txt').write_text('changed')
P('logs/v0').mkdir(parents=True); P('logs/v0/metrics.csv').write_text('step,loss')
P('new\\nline').write_text('odd'); os.symlink('/etc/passwd', 'out-link')
P(os.environ['DLRUN_OUTPUT_DIR'], 'own').write_text('own')
P('__pycache__').mkdir(); P('__pycache__/x.pyc').write_text('no')
P('shut').mkdir(); P('shut/x').write_text('x'); P('shut').chmod(0)
print('written', flush=True)
"""
FILES = {"model.pt": "model", "train.txt": "changed", "logs/v0/metrics.csv": "step,loss", "new\nline": "odd", "own": "own"}
TREE = {"w.py": WRITE, "hold.py": WRITE + "time.sleep(600)\n", "train.txt": "as it was", "events.py": """import struct, sys, time
def crc(data):
    c = 0xffffffff
    for b in data:
        c ^= b
        for _ in range(8): c = (c >> 1) ^ (0x82f63b78 & -(c & 1))
    c ^= 0xffffffff
    return ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff
def record(data):
    head = struct.pack('<Q', len(data))
    return head + struct.pack('<I', crc(head)) + data + struct.pack('<I', crc(data))
import os
os.makedirs('lightning_logs/version_0')
with open('lightning_logs/version_0/events.out.tfevents.1.host', 'wb') as f:
    f.write(record(b'\\x09' + struct.pack('<d', time.time()) + b'\\x1a\\x0dbrain.Event:2'))
    for step in range(1, 6):
        value = b'\\x0a\\x04loss\\x15' + struct.pack('<f', 1 / step)
        f.write(record(b'\\x09' + struct.pack('<d', time.time()) + bytes([0x10, step]) + b'\\x2a' + bytes([len(value) + 2]) + b'\\x0a' +
                       bytes([len(value)]) + value))
print('written', flush=True)
time.sleep(600)
"""}


def test_results_come_back_however_it_ends(w):
    with site(w, files=TREE, shell="dash") as s:
        end = s.follow("--", "python3", "w.py")
        assert end.rc == 0, end
        w.ok("fetch", "@", "-o", "exit")
        assert fetched(w.tree / "exit") == FILES and os.readlink(w.tree / "exit/out-link") == "/etc/passwd", fetched(w.tree / "exit")
        assert any("could not be read: shut" in text for text in w.show()["warnings"]), w.show()
        run = s.submit("--timeout", "4s", "--grace", "1s", "--", "python3", "hold.py")
        assert s.ended(run)["exit"]["reason"] == "Timeout"
        w.ok("fetch", run, "-o", "limit")
        assert fetched(w.tree / "limit") == FILES, fetched(w.tree / "limit")
        run = s.submit("--grace", "1s", "--", "python3", "hold.py")
        s.said_by(run, "written")
        w.ok("fetch", run, "-o", "runs")
        assert fetched(w.tree / "runs") == FILES, fetched(w.tree / "runs")
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"
        w.ok("fetch", run, "-o", "cancel")
        assert fetched(w.tree / "cancel") == FILES, fetched(w.tree / "cancel")


def test_metrics_are_seen_while_it_runs(w):
    with site(w, files=TREE, shell="busybox") as s:
        run = s.submit("--grace", "1s", "--", "python3", "events.py")
        s.said_by(run, "written")
        wait_for(lambda: w.run("plot", run).rc == 0, "a curve", 60)
        assert "loss" in w.ok("plot", run).out
        wait_for(lambda: "loss" in w.ok("ps", "--json").out, "the metric in ps", 60)
        w.ok("cancel", run)


def test_params_are_seen_while_it_runs(w):
    """What frameworks write into the tree or the outputs, without anybody who has looked at the run."""
    code = "import os, json, time\nos.makedirs('lightning_logs/version_0')\n" \
           "open('lightning_logs/version_0/hparams.yaml', 'w').write('width: 64\\nlr: 5\\n')\n" \
           "json.dump({'seed': 3}, open(os.environ['DLRUN_OUTPUT_DIR'] + '/params.json', 'w'))\n" \
           "print('written', flush=True)\ntime.sleep(600)\n"
    with site(w, files={"p.py": code}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "p.py", "--lr", "0.1")
        s.said_by(run, "written")
        params = lambda: next(r["params"] for r in w.runs() if r["id"] == run)
        wait_for(lambda: params() == {"lr": "0.1", "seed": 3, "width": 64}, "the parameters in ps", 60)
        wait_for(lambda: w.ok("ps", "-o", "id,params.width").out.split()[-2:] == [run, "64"], "a column of it", 60)
        w.ok("cancel", run)


def test_restart_finds_what_was_left(w):
    code = "import os\nn = int(open('step').read()) if os.path.exists('step') else 0\nopen('step', 'w').write(str(n + 1))\n" \
           "print('began at', n)\nraise SystemExit(n < 2)\n"
    with site(w, files={"t.py": code, "step.txt": ""}) as s:
        run = s.submit("--", "python3", "t.py")
        assert s.ended(run)["state"] == "failed"
        w.ok("restart", run)
        wait_for(lambda: "began at 1" in w.run("logs", run).out, "the second attempt", 60)
        s.ended(run)
        w.ok("fetch", run, "-o", "got")
        assert fetched(w.tree / "got") == {"step": "2"}, fetched(w.tree / "got")
        again = s.submit("--retries", "3", "--", "python3", "t.py")
        assert s.ended(again, 120)["state"] == "succeeded", w.show(again)
        w.ok("fetch", again, "-o", "again")
        assert fetched(w.tree / "again") == {"step": "3"}, fetched(w.tree / "again")
        clean = s.submit("--from", run)
        wait_for(lambda: "began at 0" in w.run("logs", clean).out, "a run from the same code", 60)


if __name__ == "__main__":
    main()
