#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several hosts: all of them at once or none, ranks that find each other, one end for all."""

import collections
import contextlib
import json
import random
import socket
import urllib.parse

from harness import *  # noqa: F403
from ssh_gpus import holding
from ssh_pool import POOL, host_of, pool
from sshsite import SshSite


RANK = """import os, socket, sys
rank, world = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", where[1])) as listener:
        names = sorted(listener.accept()[0].makefile().readline().strip() for _ in range(world - 1))
    print("met", *names, flush=True)
else:
    import time
    for _ in range(200):
        try:
            line = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.1)
    line.sendall((os.uname().nodename + "\\n").encode())
    print("greeted", flush=True)
"""


def test_ranks_find_each_other(w):
    with pool(w, 0, 0, 0, network=True) as s:
        w.write("rank.py", RANK)
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        done = s.follow("-N", "3", "--", "python3", "rank.py", to=POOL)
        assert done.rc == 0, done
        hosts = host_of(s, "@")
        assert sorted(hosts) == ["gpu1", "gpu2", "gpu3"], hosts
        assert w.ok("logs", "--rank", "0", "@").out == "met " + " ".join(sorted(hosts[1:])) + "\n"
        assert w.ok("logs", "--rank", "1", "@").out == "greeted\n"
        assert sorted(w.ok("logs", "--rank", "all", "@").out.splitlines())[1:] == ["[1] greeted", "[2] greeted"]


LAUNCHED = """import os, sys
print(os.environ["NODE_RANK"], *sys.argv[1:], flush=True)
"""


def test_a_launcher_on_each_host(w):
    """A module of the tree in place of torch's: as many processes as the host has given GPUs."""
    with pool(w, 2, 2) as s:
        w.write("torch/distributed/run.py", LAUNCHED)
        w.write("torch/distributed/__init__.py")
        w.write("torch/__init__.py")
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        words = ("-e", "MASTER_PORT=4711", "--launcher", "torchrun", "--", "python3", "a b.py", "$X")
        done = s.follow("-N", "2", "-g", "2", *words, to="gpu1,gpu2")
        assert done.rc == 0, done
        for rank in (0, 1):
            said = w.ok("logs", "--rank", str(rank), "@").out
            assert said == (f"{rank} --nnodes 2 --node_rank {rank} --nproc_per_node 2 --master_addr {s['gpu1'].address} "
                            "--master_port 4711 a b.py $X\n"), said
        assert w.show()["command"] == ["python3", "a b.py", "$X"], w.show()
        done = s.follow("-g", "0", *words)
        assert "0 --nnodes 1 --node_rank 0 --nproc_per_node 1 --master_addr 127.0.0.1 " in done.out, done
        done = s.follow(*words)
        assert "--nproc_per_node 1 " in done.out, done
        done = s.follow("-g", "0", "--launcher", "torchrun", "--", "python3.77", "a.py")
        assert done.rc == 127 and "python3.77: command not found" in done.out, done


def test_a_gang_is_whole_or_not_there(w):
    with pool(w, 1, 1) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        held = holding(s, to="gpu2")
        done = w.run("submit", "-d", "-t", "ssh:gpu1,gpu2", "-N", "2", "-g", "1", "--", "sh", "-c", "echo x >> ~/ran")
        assert done.rc and not (s["gpu1"].home / "ran").exists(), done
        w.ok("cancel", held)
        s.ended(held)
        line = "test $NODE_RANK = 0 && exec sleep 600; sleep 0.3; exit 7"
        run = s.submit("--grace", "1s", "-N", "2", "-g", "1", "--", "sh", "-c", line, to="gpu1,gpu2")
        end = s.ended(run)
        assert end["exit"]["code"] == 7 and end["state"] == "failed", end
        for name in ("gpu1", "gpu2"):
            wait_for(lambda: not s[name].processes(run), f"the end of its processes on {name}", 60)
        run = s.submit("--grace", "1s", "-N", "2", "--", "sleep", "600", to="gpu1,gpu2")
        s.running(run)
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"
        for name in ("gpu1", "gpu2"):
            wait_for(lambda: not s[name].processes(run), f"the end of its processes on {name}", 10)


def test_a_gang_loses_a_host(w):
    with pool(w, 0, 0) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        run = s.submit("--grace", "1s", "-N", "2", "--", "sleep", "600", to="gpu1,gpu2")
        s.running(run)
        s["gpu2"].reboot()
        end = s.ended(run, 30)
        assert end["state"] == "lost", end
        wait_for(lambda: not s["gpu1"].processes(run), "the end of the other rank", 30)


def nothing_there(s, run, *names):
    for name in names:
        try:
            wait_for(lambda: not s[name].processes(run), f"the end of its processes on {name}", 20)
        except AssertionError as e:
            raise AssertionError(f"{e}: {s[name].processes(run)} {s.w.show(run)['ranks']}") from e


def test_a_host_that_is_gone_or_full(w):
    with SshSite(w) as s:
        s.host("gpu1", gpus=1)
        s.host("gpu2", gpus=1)
        s.host("gpu3", gpus=1, disk="1M")
        w.repo({"big": os.urandom(1 << 20)})
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        line = ("-N", "2", "-g", "1", "--", "sh", "-c", "echo x >> ~/ran")
        done = w.run("submit", "-d", "-t", "ssh:gpu1,gpu3", *line)
        assert done.rc and "gpu3" in done.err and not done.out, done
        s["gpu2"].stop(sessions=True)
        done = w.run("submit", "-d", "-t", "ssh:gpu1,gpu2", *line)
        assert done.rc and "gpu2" in done.err and not done.out, done
        assert not s["gpu1"].processes("DLRUN_NODE_ATTEMPT") and not (s["gpu1"].home / "ran").exists()
        assert s.follow("-g", "1", "--", "true").rc == 0
        done = w.run("submit", "-d", "-t", "ssh:gpu1", *line)
        assert done.rc and "1" in done.err, done


def test_a_rank_that_cannot_be_prepared(w):
    """Others hear of it, and keep nothing."""
    with pool(w, 1, 1) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        s["gpu2"].program("uv", "#!/bin/sh\ntest $(uname -n) != gpu2\n")
        s["gpu1"].program("uv", "#!/bin/sh\n")
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "uv sync", "key": []}}))
        done = w.run("submit", "-d", "-t", "ssh:gpu1,gpu2", "-N", "2", "-g", "1", "--", "sh", "-c", "echo x >> ~/ran")
        assert done.rc and "gpu2" in done.err, done
        end = w.show()
        assert end["state"] == "failed" and end["exit"]["reason"] in ("StartFailed", "Interrupted") and "gpu2" in end["text"], end
        nothing_there(s, end["id"], "gpu1", "gpu2")
        assert not any((s[name].home / "ran").exists() for name in ("gpu1", "gpu2"))


SERVE = """import os, socket
rank = os.environ["NODE_RANK"]
open(os.environ["DLRUN_OUTPUT_DIR"] + "/out.txt", "w").write("of " + rank)
open("in-the-tree", "w").write("by " + rank)
listener = socket.create_server(("127.0.0.1", 7000 + int(rank)))
print("serving", rank, open(os.environ["DLRUN_HOSTFILE"]).read().split(), os.environ["PET_NNODES"], flush=True)
while True:
    line, _ = listener.accept()
    line.sendall(b"rank " + rank.encode() + b"\\n")
    line.close()
"""


def test_each_rank_is_reached(w):
    with pool(w, 0, 0, network=True) as s:
        w.write("serve.py", SERVE)
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        run = s.submit("--grace", "1s", "-N", "2", "--", "python3", "serve.py", to="gpu1,gpu2")
        s.said_by(run, "serving 0")
        said = s.said_by(run, "serving 1")
        addresses = [s[name].address for name in ("gpu1", "gpu2")]
        assert sorted(said.splitlines()) == [f"[{i}] serving {i} {addresses} 2" for i in (0, 1)], said
        ranks = w.show(run)["ranks"]
        assert [(r["rank"], r["host"], r["state"]) for r in ranks] == [(0, "gpu1", "running"), (1, "gpu2", "running")], ranks
        for i in (0, 1):
            assert w.ok("exec", "--rank", str(i), run, "--", "sh", "-c", "echo $NODE_RANK; uname -n").out == f"{i}\ngpu{i + 1}\n"
        assert w.run("exec", "--rank", "2", run, "--", "true").rc == 2
        with subprocess.Popen([w.dlrun, "forward", "--rank", "1", run, "7001"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            url = urllib.parse.urlsplit(process.stdout.readline().strip())
            with socket.create_connection((url.hostname, url.port)) as line:
                assert line.makefile().read() == "rank 1\n"
            process.send_signal(signal.SIGTERM)
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"
        w.ok("fetch", run, "-o", "got")
        assert [(w.tree / f"got/rank-{i}/out.txt").read_text() for i in (0, 1)] == ["of 0", "of 1"]
        assert [(w.tree / f"got/rank-{i}/in-the-tree").read_text() for i in (0, 1)] == ["by 0", "by 1"]
        w.ok("restart", run)
        wait_for(lambda: w.show(run)["state"] == "running", "its second attempt", 20)
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"
        w.ok("rm", run)
        assert not s["gpu1"].files(".dlrun/on/gpu1/runs/*") and not s["gpu2"].files(".dlrun/on/gpu2/runs/*")


def test_who_follows_ends_the_others(w):
    with pool(w, 0, 0) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        line = "echo up; test $NODE_RANK = 0 && exec sleep 600; sleep 0.3; exit 7"
        begin = running_time()
        done = s.follow("--grace", "1s", "-N", "2", "--", "sh", "-c", line, to="gpu1,gpu2")
        assert done.rc == 7 and running_time() - begin < 40, done
        end = w.show()
        assert "rank 1" in end["text"] and [r["state"] for r in end["ranks"]] == ["cancelled", "failed"], end
        assert [r["exit"]["reason"] for r in end["ranks"]] == ["PeerEnded", "Error"], end
        nothing_there(s, end["id"], "gpu1", "gpu2")


def test_all_ranks_begin_anew(w):
    with pool(w, 0, 0) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        line = "echo $DLRUN_ATTEMPT; test $DLRUN_ATTEMPT = 2 && exit 0; test $NODE_RANK = 1 && exit 3; exec sleep 600"
        done = s.follow("--grace", "1s", "--retries", "1", "-N", "2", "--", "sh", "-c", line, to="gpu1,gpu2")
        end = w.show()
        assert done.rc == 0 and end["state"] == "succeeded" and len(end["attempts"]) == 2, (done, end)
        assert sorted(w.ok("logs", "@").out.splitlines()) == ["[0] 2", "[1] 2"]


def killed_while_held(s):
    """A run of two hosts that are ready, and nobody who tells them to begin."""
    w, before = s.w, set(s["gpu1"].files(".dlrun/on/gpu1/runs/*"))
    (s["gpu2"].home / "ready").unlink(missing_ok=True)
    with subprocess.Popen([w.dlrun, "submit", "-d", "-t", "ssh:gpu1,gpu2", "-N", "2", "-g", "1", "--", "sh", "-c", "echo x >> ~/ran"],
                          cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        run = wait_for(lambda: set(s["gpu1"].files(".dlrun/on/gpu1/runs/*")) - before, "the run on gpu1", 20).pop().name
        wait_for(lambda: s["gpu1"].files(f".dlrun/on/gpu1/runs/{run}/1/held"), "it is held on gpu1", 20)
        process.kill()
    (s["gpu2"].home / "ready").touch()
    wait_for(lambda: s["gpu2"].files(f".dlrun/on/gpu2/runs/{run}/1/held"), "it is held on gpu2", 20)
    return run


def test_killed_between_ready_and_go(w):
    with pool(w, 1, 1) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        s["gpu2"].program("uv", "#!/bin/sh\nuntil test -e ~/ready; do sleep 0.1; done\n")
        s["gpu1"].program("uv", "#!/bin/sh\n")
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "uv sync", "key": []}}))
        run = killed_while_held(s)
        end = s.ended(run)
        assert end["state"] == "failed" and end["exit"]["reason"] == "Interrupted", end
        nothing_there(s, run, "gpu1", "gpu2")
        assert not any((s[name].home / "ran").exists() for name in ("gpu1", "gpu2"))
        # One has heard it.
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "uv sync ", "key": []}}))
        run = killed_while_held(s)
        held = s.there(run) / "held"
        held.rename(held.with_name("go"))
        assert s.ended(run)["state"] == "succeeded", w.show(run)
        assert [(s[name].home / "ran").read_text() for name in ("gpu1", "gpu2")] == ["x\n", "x\n"]


ROUNDS = int(os.environ.get("DLRUN_ROUNDS", "8"))


def test_killed_at_any_time(w):
    """All ranks run once, or none does."""
    rng = random.Random(7)
    with pool(w, 1, 1) as s:
        s.there_is("-t", "ssh:gpu1,gpu2", "-N", "2")
        words = ("-N", "2", "-g", "1", "--", "sh", "-c", "echo $DLRUN_RUN_ID >> ~/ran; sleep 0.2")
        s.ended(s.submit(*words, to="gpu1,gpu2"))
        w.write("a.py", "print()\n")
        begin = running_time()
        last = s.submit(*words, to="gpu1,gpu2")
        whole = running_time() - begin
        s.ended(last)
        for i in range(ROUNDS):
            w.write("a.py", f"print({i})\n")
            with subprocess.Popen([w.dlrun, "submit", "-d", "-t", "ssh:gpu1,gpu2", *words], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(whole * (i + rng.random()) / ROUNDS)
                process.kill()
            for run in w.runs():
                end = s.ended(run["id"])
                ran = [(s[name].home / "ran").read_text().count(end["id"]) for name in ("gpu1", "gpu2")]
                assert ran == ([1, 1] if end["state"] == "succeeded" else [0, 0]), (end, ran)
                assert end["state"] == "succeeded" or end["exit"]["reason"] == "Interrupted", end
        for run in w.runs():
            nothing_there(s, run["id"], "gpu1", "gpu2")
        states = collections.Counter(run["state"] for run in w.runs())
        print(f"killed {ROUNDS} submits of two hosts: {dict(states)}", flush=True)
        assert s.follow("-g", "1", "-N", "2", "--", "true", to="gpu1,gpu2").rc == 0


if __name__ == "__main__":
    main()
