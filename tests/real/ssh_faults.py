#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node, or the way to it, that fails: runs are started once or never, none is lost, and the next command tells how it is.

DLRUN_KILL_SSH: points at which a submit is killed (30), DLRUN_CUTS: at which its connection is cut (24); of `logs -f` (20,
over 200,000 lines). DLRUN_FULL=1: 240, 100, and 200 over 1,000,000.
"""

import collections
import datetime
import random
import subprocess
import threading
import time

from cluster_kill import CALLS
from harness import *  # noqa: F403
from ssh_logins import refused
from sshsite import ENDED, site

FULL = bool(os.environ.get("DLRUN_FULL"))
POINTS = int(os.environ.get("DLRUN_KILL_SSH", "240" if FULL else "30"))
CUTS = int(os.environ.get("DLRUN_CUTS", "100" if FULL else "24"))
LOG_CUTS, LINES = (200, 1_000_000) if FULL else (20, 200_000)
SEED = int(os.environ.get("DLRUN_SEED", "0")) or random.randrange(1 << 30)
# Each start is one line of the node's.
PROGRAM = ("sh", "-c", "echo $DLRUN_RUN_ID >> ~/started; sleep 0.2; echo over")
PS_S = 3
UNTIL_TOLD = "until [ -e ~/told ]; do sleep 0.1; done"
WRITER = """import os, sys, time
lines, pause = int(sys.argv[1]), float(sys.argv[2])
for n in range(0, lines, 500):
    os.write(1, b"".join(b"line %d of those that must arrive\\n" % i for i in range(n, min(n + 500, lines))))
    time.sleep(pause)
"""

# Something else may be quicker.
TAKE_PID = """until grep -q 999 /proc/$1/cmdline; do
    echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; sleep 999 </dev/null >/dev/null 2>&1 & [ $! = $1 ] || kill $!; done"""


def started(s):
    path = s["gpu1"].home / "started"
    return collections.Counter(path.read_text().split() if path.exists() else [])


def judge(s):
    """Each run has been started once and has succeeded, or never and says so; counts by state."""
    wait_for(lambda: all(r["state"] in ENDED for r in s.w.runs()), "the end of all runs", 60)
    rows, starts = s.w.runs(), started(s)
    assert all(n == 1 for n in starts.values()), [run for run in starts if starts[run] > 1]
    states = collections.Counter(r["state"] for r in rows)
    succeeded = {r["id"] for r in rows if r["state"] == "succeeded"}
    assert set(starts) == succeeded, {r["id"]: r["state"] for r in rows if (r["id"] in starts) != (r["id"] in succeeded)}
    assert set(states) <= {"succeeded", "failed"}, states
    for run in sorted(succeeded)[:5]:
        assert s.w.ok("logs", run).out == "over\n"
    return states


def test_sigkill_at_points_of_a_submit(w):
    """The laptop's process dies at a system call."""
    needs("strace")
    with site(w) as s:
        words = [w.dlrun, "submit", "-d", "-t", "ssh:gpu1", "--", *PROGRAM]
        log = w.dir / "count"
        for _ in range(2):
            done = w.command(["strace", "-qq", "-o", log, "-e", f"trace={CALLS}", *words])
            assert done.rc == 0, done
        names = [line.split("(")[0] for line in log.read_text().splitlines() if "(" in line]
        count, calls = collections.Counter(), []
        for name in names:
            count[name] += 1
            calls.append((name, count[name]))

        def kill(i):
            w.write("a.py", f"print({i})\n")
            name, n = calls[i]
            return w.command(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", f"inject={name}:signal=SIGKILL:when={n}",
                              *words]).rc != 0
        killed = sum(kill(i * len(calls) // POINTS) for i in range(POINTS))
        begin = running_time()
        w.ok("ps")
        states = judge(s)
        print(f"killed {killed} of {POINTS} submits: {dict(states)}, settled after {running_time() - begin:.1f} s", flush=True)
        assert killed >= POINTS // 2 and states["succeeded"] > 2
        assert s.follow("--", "echo", "still").out == "still\n"
        w.ok("rm", *[r["id"] for r in w.runs()])
        wait_for(lambda: not s["gpu1"].files(".dlrun/on/gpu1/runs/*"), "the end of what was removed", 10)


def test_cuts_at_random_packets_of_a_submit(w):
    """The program runs to its end after any of them, or was never begun."""
    rng = random.Random(SEED)
    with site(w) as s, s.wire("gpu1") as wire:
        s.submit("--", *PROGRAM)
        w.write("a.py", "print(1)\n")
        before = wire.counts()
        s.ended(s.submit("--", *PROGRAM))
        after = wire.counts()
        sizes = {"request": after["up"] - before["up"], "response": after["down"] - before["down"]}
        for i in range(CUTS):
            side = rng.choice(("request", "response"))
            wire.clear()
            wire.fault(rng.choice(("rst", "fin")), side, rng.randrange(1, sizes[side] * 3 // 4), connection=wire.accepted + 1, times=1)
            w.write("a.py", f"print({i})\n" + "# more\n" * rng.randrange(500))
            done = w.run("submit", "-d", "-t", "ssh:gpu1", "--", *PROGRAM, timeout=90)
            assert done.rc == 0, (i, done)
        wire.clear()
        states = judge(s)
        print(f"{CUTS} cuts (seed {SEED}): {dict(states)}", flush=True)
        assert states["succeeded"] == 2 + CUTS


def test_following_goes_on_after_a_cut(w):
    with site(w) as s, s.wire("gpu1") as wire:
        s.w.write("go.py", "import time\nfor i in range(40):\n    print(i, flush=True)\n    time.sleep(0.1)\nraise SystemExit(4)\n")
        with subprocess.Popen([w.dlrun, "submit", "-f", "-t", "ssh:gpu1", "--", "python3", "go.py"], cwd=w.tree, env=w.env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out = process.stdout.readline()
            wire.cut_all()
            out += process.stdout.read()
            assert process.wait(60) == 4 and out.decode().split() == [str(i) for i in range(40)], (out, process.stderr.read())


def test_cuts_of_a_log(w):
    """Nothing is lost and nothing comes twice."""
    wanted = "".join(f"line {i} of those that must arrive\n" for i in range(LINES)).encode()
    with site(w, files={"writer.py": WRITER}) as s, s.wire("gpu1", rate=1 << 20) as wire:
        run = s.submit("--", "python3", "writer.py", str(LINES), "0.01")
        seen = wire.accepted
        got = bytearray()
        with subprocess.Popen([w.dlrun, "logs", "-f", run], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:
            def read():
                while data := os.read(process.stdout.fileno(), 1 << 16):
                    got.extend(data)
            reader = threading.Thread(target=read)
            reader.start()
            cuts = 0
            for i in range(LOG_CUTS):
                at = max(len(wanted) * i // (2 * LOG_CUTS), len(got))
                wait_for(lambda: (wire.accepted > seen and len(got) > at) or not reader.is_alive(), f"byte {at} of the log", 60)
                cuts += reader.is_alive()
                seen = wire.accepted
                wire.cut_all("rst" if i % 2 else "fin")
            wire.set(rate=None)
            reader.join(120)
            assert process.wait(60) == 0
        print(f"{cuts} cuts over {LINES} lines, {wire.accepted} connections", flush=True)
        assert bytes(got) == wanted and wire.accepted >= cuts == LOG_CUTS, (len(got), len(wanted), cuts)


def test_the_laptop_goes_away(w):
    """Killed while it follows, and its connection with it: the run goes on, and the next command knows."""
    with site(w) as s:
        with subprocess.Popen([w.dlrun, "submit", "-f", "-t", "ssh:gpu1", "--", "sh", "-c", f"echo on; {UNTIL_TOLD}; echo still; exit 3"],
                              cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout.readline() == b"on\n"
            process.kill()
        s["gpu1"].end_logins()
        assert w.show()["state"] == "running"
        (s["gpu1"].home / "told").touch()
        assert s.ended("@")["exit"]["code"] == 3 and w.ok("logs", "@").out == "on\nstill\n"


def test_the_server_and_the_login_end(w):
    with site(w) as s:
        run = s.submit("--grace", "1s", "--", "sh", "-c", "while :; do date +%s; sleep 0.2; done")
        s.running(run)
        for what in (lambda: s["gpu1"].restart(), lambda: s["gpu1"].restart(sessions=True), s["gpu1"].end_logins):
            what()
            assert s.state(run) == "running"
            assert w.run("exec", run, "--", "true").rc == 0
        s["gpu1"].stop(sessions=True)
        shown = w.show(run)
        assert shown["state"] == "unknown" or shown["state"] == "running", shown["state"]
        assert in_time(lambda: w.run("ps"), PS_S).rc == 0
        s["gpu1"].start()
        assert s.state(run) == "running"
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"


def test_a_node_that_stands_still(w):
    with site(w) as s:
        run = s.submit("--grace", "1s", "--", "sleep", "600")
        s.running(run)
        s["gpu1"].freeze()
        assert in_time(lambda: w.run("ps"), PS_S).rc == 0
        assert next(r for r in w.runs() if r["id"] == run)["state"] in ("running", "unknown")
        s["gpu1"].freeze(False)
        assert s.state(run) == "running"
        w.ok("cancel", run)


def test_a_reboot_is_a_loss(w):
    with site(w, gpus=1) as s:
        run = s.submit("-g", "1", "--", "sleep", "600")
        s.running(run)
        s["gpu1"].reboot()
        end = s.ended(run, 20)
        assert end["state"] == "lost" and w.run("wait", run).rc == 125, end
        assert "restarted" in s.why(run)["why"], s.why(run)
        assert s.follow("-g", "1", "--", "echo", "free").out == "free\n"
        w.ok("restart", run)
        s.running(run)
        w.ok("cancel", run)


def test_a_name_that_leads_to_another_machine(w):
    """What that one says of a run is no evidence: it is unknown, not lost, and runs on where it is."""
    with site(w, "gpu1", "gpu2") as s:
        runs = [s.submit("--", "sleep", "600"), s.submit("--", "sh", "-c", "echo done")]
        s.ended(runs[1])
        s.running(runs[0])
        gang = s.submit("-N", "2", "--", "sleep", "600", to="gpu1,gpu2")
        s.running(gang)
        there = s["gpu2"]
        s.change("gpu1", HostName=there.address, Port=there.port, ControlPath="none")
        for run in (runs[0], gang):
            shown = w.show(run)
            assert shown["state"] == "unknown" or run == gang and shown["state"] == "running", shown
            assert w.run("ps").rc == 0 and w.show(run)["state"] != "lost"
        assert re.search(r"gpu1 is another machine now \(gpu2\): the run is on gpu1", json.dumps(s.why(runs[0]))), s.why(runs[0])
        assert s.state(runs[1]) == "succeeded"
        s.change("gpu1", HostName=s["gpu1"].address, Port=s["gpu1"].port)
        for run in (runs[0], gang):
            assert s.running(run)
            w.ok("cancel", run)
        renamed = s.submit("--", "sleep", "600")
        s.running(renamed)
        s["gpu1"].ok("hostname", "other")
        assert s.state(renamed) == "unknown" and "(other)" in json.dumps(s.why(renamed)), s.why(renamed)
        s["gpu1"].ok("hostname", "gpu1")
        s.running(renamed)
        w.ok("cancel", renamed)


def test_a_name_that_leads_to_another_place(w):
    """Another user of the same machine knows no more of a run than another machine does."""
    with site(w, accounts=("alice", "bob")) as s:
        s.change("gpu1", User="alice")
        runs = [s.submit("--", "sleep", "600"), s.submit("--", "sleep", "600")]
        for run in runs:
            s.running(run)
        w.ok("cancel", runs[1])
        s.ended(runs[1])
        s.change("gpu1", User="bob")
        assert s.state(runs[0]) == "unknown" and s.state(runs[1]) == "cancelled"
        assert "gpu1 leads to another place now (uid" in json.dumps(s.why(runs[0])), s.why(runs[0])
        assert w.run("ps").rc == 0 and s.state(runs[0]) == "unknown"
        s.change("gpu1", User="alice")
        s.running(runs[0])
        w.ok("cancel", runs[0])


def test_a_wrong_clock(w):
    """What is told of a run is by the clock here."""
    with site(w) as s:
        for shift in (10800, -10800):
            s["gpu1"].program("date", f"#!/bin/sh\nexec {shutil.which('date')} -d \"@$(($({shutil.which('date')} +%s) + {shift}))\" \"$@\"\n")
            before = time.time()
            run = s.submit("--", "sh", "-c", "echo up; sleep 1")
            s.ended(run)
            times = w.show(run)["times"]
            started, ended = (datetime.datetime.fromisoformat(times[key].replace("Z", "+00:00")).timestamp() for key in ("started", "ended"))
            assert before - 5 < started < ended < time.time() + 5, (shift, before, times)


def test_a_pid_that_is_another_process_now(w):
    """All processes of the run are killed, and their pids belong to others."""
    with site(w, gpus=1) as s:
        host = s["gpu1"]
        run = s.submit("-g", "1", "--", "sleep", "600")
        s.running(run)
        state = dict(line.split("=", 1) for line in (s.there(run) / "state").read_text().splitlines() if "=" in line)
        pids = [int(state[key].split(":")[0]) for key in ("supervisor", "program")]
        # The program last: nobody is left to see its end.
        host.kill(*sorted((pid for pid, _ in host.processes(run)), key=lambda pid: pid == pids[1]))
        for pid in pids:
            host.ok("sh", "-c", TAKE_PID, "sh", pid)
        end = s.ended(run, 20)
        assert end["state"] == "lost", end
        w.run("cancel", run)
        assert {pid for pid, _ in host.processes("sleep", "999")} == set(pids), (pids, host.processes("sleep"))
        assert s.follow("-g", "1", "--", "echo", "free").out == "free\n"


def test_a_killed_supervisor_is_no_killed_program(w):
    with site(w) as s:
        run = s.submit("--", "sh", "-c", f"echo on; {UNTIL_TOLD}; echo over; exit 5")
        s.said_by(run, "on")
        state = dict(line.split("=", 1) for line in (s.there(run) / "state").read_text().splitlines() if "=" in line)
        s["gpu1"].kill(state["supervisor"].split(":")[0])
        assert s.state(run) == "running"
        (s["gpu1"].home / "told").touch()
        end = s.ended(run)
        assert end["state"] in ("failed", "lost") and end["exit"]["code"] in (5, 125), end
        assert w.ok("logs", run).out == "on\nover\n" and started(s) == {}


def test_a_disk_that_gets_full(w):
    """The program sees it, and its end is known all the same."""
    fill = "head -c 500000000 /dev/zero > $DLRUN_OUTPUT_DIR/fill; echo status $?; exit 3"
    with site(w, disk=160 << 20) as s:
        run = s.submit("--", "sh", "-c", fill)
        end = s.ended(run)
        assert end["exit"]["code"] == 3 and end["state"] == "failed", end
        # Also what was kept for the end.
        s["gpu1"].command("sh", "-c", "head -c 500000 /dev/zero > /home/me/more")
        refused(s, "node.disk", 1, "gpu1")
        w.ok("rm", "--force", run)
        assert s.follow("--", "echo", "room").out == "room\n"


FILL = "import os, sys, time\nf = open(os.environ['DLRUN_OUTPUT_DIR'] + '/fill', 'wb', buffering=0)\n" \
    "for size in (1 << 20, 4096, 1):\n    while True:\n        try:\n            f.write(b'x' * size)\n" \
    "        except OSError:\n            break\nif sys.argv[1] == 'stays':\n    time.sleep(600)\nf.write(b'x')\n"


def test_last_words_on_a_full_disk(w):
    """They are kept, and what a full disk's run holds comes back by rm, whether it has ended or not."""
    with site(w, files={"fill.py": FILL}, disk=160 << 20) as s:
        run = s.submit("--", "python3", "fill.py", "ends")
        end = s.ended(run)
        assert end["exit"]["code"] == 1 and end["state"] == "failed", end
        assert "No space left on device" in w.ok("logs", run).out
        assert "a disk is full" in w.ok("why", run).out
        w.ok("rm", "-f", run)
        for words in (["rm", "-f"], ["cancel"]):
            assert s.follow("--", "echo", "room").out == "room\n"
            run = s.submit("--", "python3", "fill.py", "stays")
            wait_for(lambda: int(s["gpu1"].ok("df", "--output=avail", "/home/me").split()[1]) == 0, "a full disk", 60)
            w.ok(*words, run, timeout=60)
            if words == ["cancel"]:
                assert s.ended(run)["state"] == "cancelled"
                w.ok("rm", "-f", run)
        assert s.follow("--", "echo", "room").out == "room\n"


def test_a_large_transfer_goes_on_where_it_was_cut(w):
    # What the server has not read yet at a cut is lost: slowly enough that this is little, also where it gets no turn for a while.
    with site(w) as s, s.wire("gpu1", rate=8 << 20) as wire:
        s.submit("--", "true")
        w.write("big.bin", os.urandom(24 << 20))
        before = wire.up
        for part in (6, 12, 18):
            wire.fault("rst", "request", part << 20, connection=wire.accepted + 1 + (part > 6) + (part > 12), times=1)
        done = w.run("submit", "-f", "-t", "ssh:gpu1", "--", "sh", "-c", "cksum < big.bin", timeout=120)
        assert done.rc == 0 and done.out == w.command(["sh", "-c", "cksum < big.bin"]).out, done
        sent = (wire.up - before) / (24 << 20)
        print(f"24 MiB over a connection that was cut: {sent:.2f} times the bytes", flush=True)
        assert sent < 1.6


def test_a_growing_file_is_followed_by_its_end(w):
    """A part is written when the one before is here: as many rounds, and none of them brings the whole file again."""
    parts = 6
    grows = "import os, sys, time\nwith open(os.environ['DLRUN_OUTPUT_DIR'] + '/log', 'w') as f:\n" \
            f"    for i in range({parts}):\n        f.write(''.join('%s\\n' % os.urandom(500).hex() for _ in range(2048)))\n" \
            "        f.flush()\n        print(i, f.tell(), flush=True)\n" \
            "        while not os.path.exists(os.path.expanduser(f'~/go{i}')):\n            time.sleep(0.05)\n"
    with site(w, files={"grow.py": grows}) as s, s.wire("gpu1") as wire:
        run = s.submit("--", "python3", "grow.py")
        s.said_by(run, "0")
        log, here = s.there(run) / "../outputs/log", w.tree / "here/log"
        before = wire.down
        with subprocess.Popen([w.dlrun, "fetch", "--follow", run, "-o", "here"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as follower:
            for i in range(parts):
                size = (i + 1) * 2048 * 1001
                wait_for(lambda: follower.poll() is not None or (here.exists() and here.stat().st_size == size), f"part {i}", 60)
                assert follower.poll() is None, follower.stderr.read()
                (s["gpu1"].home / f"go{i}").touch()
            err = follower.communicate(timeout=60)[1]
        came, size, rounds = wire.down - before, log.stat().st_size, err.count("1 file")
        print(f"{size} bytes in {rounds} rounds: {came / size:.2f} times the bytes", flush=True)
        assert follower.returncode == 0 and here.read_bytes() == log.read_bytes(), err
        assert rounds >= parts and came < 1.3 * size, (rounds, came, size)


if __name__ == "__main__":
    main()
