#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several nodes that this machine plays: ranks that find each other, share GPUs and tree, and end together; and
launchers, which start a program on each GPU of each node."""

import collections
import contextlib
import json
import os
import random
import signal
import time

from attempts import fake_gpus, kill_supervisors, submit
from harness import *  # noqa: F403
from local import pids_with
from projects import check_sum, here, launched, project
from ssh_gang import RANK

SERVE = """import os, socket
rank = int(os.environ["NODE_RANK"])
open(os.path.join(os.environ["DLRUN_OUTPUT_DIR"], f"out{rank}.txt"), "w").write(f"of {rank}")
open(f"tree{rank}.txt", "w").write(f"by {rank}")
listener = socket.create_server(("127.0.0.1", 0))
print("serving", rank, listener.getsockname()[1], open(os.environ["DLRUN_HOSTFILE"]).read().split(), flush=True)
while True:
    line, _ = listener.accept()
    line.sendall(b"rank %d\\n" % rank)
    line.close()
"""


def ranks_of(doc):
    return [(r["rank"], r["state"], (r["exit"] or {}).get("reason")) for r in doc["ranks"]]


def ended(w, run="@"):
    w.run("wait", run)
    return w.show(run)


def nothing_left(run):
    wait_for(lambda: not pids_with(f"{run}/attempts/") and not of_run(run), "the end of its processes")


def of_run(run):
    """Programs of the run, by a variable that each of them has."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if f"DLRUN_RUN_ID={run}".encode() in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def test_ranks_find_each_other(w):
    w.repo({"rank.py": RANK})
    done = w.run("submit", "-f", "-N", "3", "-g", "0", "--", "python3", "rank.py")
    assert done.rc == 0 and "this machine" in done.err and " as 3 nodes" in done.err, done
    names = " ".join([os.uname().nodename] * 2)
    assert w.ok("logs", "--rank", "0").out == f"met {names}\n"
    assert w.ok("logs", "--rank", "2").out == "greeted\n"
    assert sorted(w.ok("logs").out.splitlines()) == [f"[0] met {names}", "[1] greeted", "[2] greeted"]
    lines = [line for line in map(json.loads, w.ok("logs", "--json").out.splitlines()) if "rank" in line]
    assert sorted((line["rank"], line["text"]) for line in lines) == [(0, f"met {names}"), (1, "greeted"), (2, "greeted")], lines
    assert all(line["time"] for line in lines)
    doc = w.show()
    assert ranks_of(doc) == [(i, "succeeded", "Completed") for i in range(3)] and doc["resources"]["nodes"] == 3, doc
    w.refused("logs", "--rank", "3", id="usage", rc=2, says=["has the ranks 0 to 2"])
    w.refused("submit", "-N", "65", "--", "true", id="target.unsupported", rc=2)


def test_each_rank_is_reached(w):
    w.repo({"serve.py": SERVE})
    run = submit(w, "python3", "serve.py", options=["-N", "2", "-g", "0", "--grace", "1s"])
    wait_for(lambda: w.ok("logs", run).out.count("serving") == 2, "both serve")
    said = sorted(w.ok("logs", run).out.splitlines())
    assert [line.split()[:3] for line in said] == [["[0]", "serving", "0"], ["[1]", "serving", "1"]], said
    assert all(line.endswith("['127.0.0.1', '127.0.0.1']") for line in said), said
    assert ranks_of(w.show(run)) == [(0, "running", None), (1, "running", None)]
    line = "echo $NODE_RANK of $NNODES at $MASTER_ADDR $PET_NODE_RANK"
    assert w.ok("exec", run, "--", "sh", "-c", line).out == "0 of 2 at 127.0.0.1 0\n"
    assert w.ok("exec", "--rank", "1", run, "--", "sh", "-c", line).out == "1 of 2 at 127.0.0.1 1\n"
    w.refused("exec", "--rank", "2", run, "--", "true", id="usage", rc=2, says=["has the ranks 0 to 1"])
    w.ok("cancel", run)
    doc = ended(w, run)
    assert doc["state"] == "cancelled" and ranks_of(doc) == [(i, "cancelled", "Cancelled") for i in (0, 1)], doc
    nothing_left(run)
    w.ok("fetch", run, "-o", w.dir / "got")
    got = {str(p.relative_to(w.dir / "got")): p.read_text() for p in (w.dir / "got").rglob("*.txt")}
    assert got == {"out0.txt": "of 0", "out1.txt": "of 1", "tree0.txt": "by 0", "tree1.txt": "by 1"}, got


def test_the_first_that_fails_ends_all(w):
    w.repo()
    line = "test $NODE_RANK = 1 || exec sleep 600; sleep 0.3; exit 7"
    done = w.run("submit", "-f", "-N", "3", "-g", "0", "--", "sh", "-c", line)
    assert done.rc == 7 and "rank 1: the program exited with 7" in done.err, done
    doc = w.show()
    assert ranks_of(doc) == [(0, "cancelled", "PeerEnded"), (1, "failed", "Error"), (2, "cancelled", "PeerEnded")], doc
    nothing_left(doc["id"])
    done = w.run("submit", "-f", "-N", "2", "-g", "0", "--timeout", "500ms", "--grace", "200ms", "--",
                 "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    assert done.rc == 124, done
    assert ranks_of(w.show()) == [(0, "cancelled", "Timeout"), (1, "cancelled", "Timeout")]
    nothing_left(w.show()["id"])


def test_killed_ranks(w):
    """Whichever is killed, the run fails by it, and nothing of the others is left."""
    w.repo()
    for victim in range(3):
        run = submit(w, "sh", "-c", "sleep 600 & echo up; wait", options=["-N", "3", "-g", "0", "--grace", "1s"])
        wait_for(lambda: w.ok("logs", run).out.count("up") == 3, "all run")
        state = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())
        os.killpg(state["ranks"][victim]["program"]["pid"], signal.SIGKILL)
        doc = ended(w, run)
        assert doc["state"] == "failed" and doc["exit"]["code"] == 137, doc
        assert doc["text"] == f"rank {victim}: the program was killed by SIGKILL", doc["text"]
        assert [r["exit"]["reason"] for r in doc["ranks"]] == ["Signal" if i == victim else "PeerEnded" for i in range(3)], doc
        nothing_left(run)


def test_killed_supervisor(w):
    w.repo()
    run = submit(w, "sh", "-c", "echo up; exec sleep 600", options=["-N", "2", "-g", "0", "--grace", "1s"])
    wait_for(lambda: w.ok("logs", run).out.count("up") == 2, "both run")
    state = json.loads((w.state / "runs" / run / "attempts/1/state.json").read_text())
    kill_supervisors(run)
    doc = w.show(run)
    assert doc["state"] == "running" and ranks_of(doc) == [(0, "running", None), (1, "running", None)], doc
    os.kill(state["ranks"][0]["program"]["pid"], signal.SIGKILL)
    assert w.show(run)["state"] == "running"
    w.ok("cancel", run)
    doc = ended(w, run)
    assert doc["state"] in ("cancelled", "lost"), doc
    wait_for(lambda: not of_run(run), "the end of rank 1")


def test_supervisor_is_killed_at_any_time(w):
    """Whatever has begun is seen, and a cancel ends it; what has not never does."""
    w.repo()
    rng = random.Random(7)
    found = collections.Counter()
    for _ in range(16):
        run = submit(w, "sh", "-c", "echo up; exec sleep 600", options=["-N", "3", "-g", "0", "--grace", "1s"])
        time.sleep(rng.random() * 0.15)
        kill_supervisors(run)
        # A process that was killed has its locks for a moment.
        doc = wait_for(lambda: (now := w.show(run))["state"] in ("running", "lost") and now, f"what became of {run}")
        assert doc["state"] == "running" or not of_run(run), doc
        found[doc["state"]] += 1
        w.run("cancel", run)
        assert ended(w, run)["state"] in ("cancelled", "lost")
        wait_for(lambda: not of_run(run), "the end of its programs")
    print(f"supervisors of three ranks killed: {dict(found)}", flush=True)


def test_gpus_are_divided(w):
    w.repo()
    fake_gpus(w, 4)
    line = "echo $CUDA_VISIBLE_DEVICES $DLRUN_GPUS_PER_NODE $PET_NPROC_PER_NODE"
    done = w.ok("submit", "-f", "-N", "2", "-g", "2", "--", "sh", "-c", line)
    assert sorted(done.out.splitlines()) == ["[0] 0,1 2 2", "[1] 2,3 2 2"], done
    assert w.show()["resources"]["gpus"] == 2, w.show()
    assert sorted(w.ok("submit", "-f", "-N", "2", "--", "sh", "-c", line).out.splitlines()) == ["[0] 0 1", "[1] 1 1"]
    w.refused("submit", "-N", "3", "-g", "2", "--", "true", id="gpu.count", rc=2, says=["6 GPUs"])
    done = w.run("submit", "-f", "-N", "5", "--", "sh", "-c", line)
    assert done.rc == 0 and sorted(done.out.splitlines()) == [f"[{i}] 0" for i in range(5)], done


def test_all_ranks_are_repeated(w):
    w.repo()
    line = "echo $DLRUN_ATTEMPT; test $NODE_RANK = 0 || test $DLRUN_ATTEMPT = 3 || exit 5; test $DLRUN_ATTEMPT = 3 || sleep 600"
    done = w.run("submit", "-f", "-N", "2", "-g", "0", "--retries", "4", "--", "sh", "-c", line)
    assert done.rc == 0, done
    doc = w.show()
    assert [a["exit"]["code"] for a in doc["attempts"]] == [5, 5, 0], doc["attempts"]
    assert sorted(w.ok("logs").out.splitlines()) == ["[0] 3", "[1] 3"]


def test_members_of_a_study(w):
    """One slot for all ranks of a member."""
    w.repo()
    w.ok("sweep", "--over", "k=1..3", "--parallel", "1", "-N", "2", "-g", "0", "-d", "-n", "pair", "--",
         "sh", "-c", "echo $NODE_RANK {k}; date +%s%N; sleep 0.2; date +%s%N")
    runs = sorted(r["id"] for r in w.runs())
    spans = []
    for run in runs:
        assert ended(w, run)["state"] == "succeeded", w.show(run)
        times = [int(line) for i in "01" for line in w.ok("logs", "--rank", i, run).out.split("\n")[1:3]]
        spans.append((min(times), max(times)))
    spans.sort()
    assert len(runs) == 3 and all(a[1] <= b[0] for a, b in zip(spans, spans[1:])), spans


# --- launchers

FAKE = """import os, runpy, sys
print("launched", " ".join(sys.argv[1:]), flush=True)
"""


def test_launchers_get_the_words(w):
    """Modules of the run's own tree in place of the libraries."""
    packages = (("torch", "distributed", "run"), ("accelerate", "commands", "launch"), ("deepspeed", "launcher", "launch"))
    w.repo({path: text for a, b, c in packages for path, text in
            ((f"{a}/__init__.py", ""), (f"{a}/{b}/__init__.py", ""), (f"{a}/{b}/{c}.py", FAKE))})
    fake_gpus(w, 4)
    port = "4711"
    where = ("-e", f"MASTER_PORT={port}")
    done = w.ok("submit", "-f", "-N", "2", "-g", "2", *where, "--launcher", "torchrun", "--", "python3", "-u", "train.py", "--lr", "1")
    assert sorted(done.out.splitlines()) == [
        f"[{i}] launched --nnodes 2 --node_rank {i} --nproc_per_node 2 --master_addr 127.0.0.1 --master_port {port} train.py --lr 1"
        for i in (0, 1)], done
    assert w.show()["command"] == ["python3", "-u", "train.py", "--lr", "1"] and w.show()["launcher"]["name"] == "torchrun"
    assert "--nproc_per_node 2" in w.ok("show").out
    w.write("dlrun.yaml", "launcher: accelerate:2\n")
    done = w.ok("submit", "-f", "-g", "0", *where, "--", "python3", "-m", "pkg.train")
    assert done.out == ("launched --multi_gpu --num_machines 1 --machine_rank 0 --num_processes 2 --main_process_ip 127.0.0.1 "
                        f"--main_process_port {port} -m pkg.train\n"), done
    done = w.ok("submit", "-f", "-g", "1", *where, "--launcher", "deepspeed", "--", "python3", "train.py")
    assert done.out.endswith(f" --node_rank 0 --master_addr 127.0.0.1 --master_port {port} train.py\n"), done
    done = w.run("submit", "-f", "-g", "0", "--launcher", "torchrun", "--", "python3.77", "train.py")
    assert done.rc == 127 and "python3.77: command not found" in done.err, done
    w.ok("submit", "-f", "-g", "0", "--launcher", "none", "--", "true")
    (w.tree / "dlrun.yaml").unlink()
    first = min(w.runs(), key=lambda r: r["times"]["submitted"])["id"]
    again = w.ok("submit", "-f", "-N", "1", "-g", "1", *where, "--from", first)
    assert again.out.startswith("launched --nnodes 1 --node_rank 0 --nproc_per_node 1 "), again


def test_torchrun_of_two_nodes(w):
    here(w)
    project(w, "torchrun")
    done = w.run("submit", "-f", "-N", "2", "-g", "0", *launched(w, "torchrun:2"), "--", "python", "reduce.py", timeout=300)
    check_sum(w, done, 4)
    w.ok("fetch", "-o", w.dir / "got")
    assert {p.read_text() for p in (w.dir / "got").glob("rank*.txt")} == {"10.0"}


if __name__ == "__main__":
    main()
