#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPUs of a node: each has one run at a time, whoever asks, however the holder ends.

DLRUN_RACERS: submits for one GPU (12), DLRUN_ROUNDS: how often (1). DLRUN_FULL=1: 64, and 100.
"""

import json

from harness import *  # noqa: F403
from sshsite import site

FULL = bool(os.environ.get("DLRUN_FULL"))
RACERS = int(os.environ.get("DLRUN_RACERS", "64" if FULL else "12"))
ROUNDS = int(os.environ.get("DLRUN_ROUNDS", "100" if FULL else "1"))
# Two at once find the directory of the other.
HOLD = """mkdir ~/held-$CUDA_VISIBLE_DEVICES || { echo $DLRUN_RUN_ID >> ~/doubled; exit 9; }
echo $CUDA_VISIBLE_DEVICES >> ~/held; sleep 0.05; rmdir ~/held-$CUDA_VISIBLE_DEVICES"""


def test_a_race_for_one_gpu(w):
    with site(w, gpus=1) as s:
        home = s["gpu1"].home
        for number in range(ROUNDS):
            with concurrent.futures.ThreadPoolExecutor(RACERS if FULL else 6) as pool:
                runs = [f.result() for f in [pool.submit(s.submit, "-g", "1", "--", "sh", "-c", HOLD) for _ in range(RACERS)]]
            assert len(set(runs)) == RACERS
            assert w.run("wait", *runs, timeout=600).rc == 0, [(r["id"], r["state"], r["exit"]) for r in w.runs() if r["state"] != "succeeded"]
            assert not (home / "doubled").exists(), (home / "doubled").read_text()
            assert len((home / "held").read_text().split()) == RACERS * (number + 1)
        print(f"{ROUNDS} rounds of {RACERS} submits for one GPU", flush=True)


def holding(s, n="1", *words, to="gpu1"):
    run = s.submit("--grace", "1s", "-g", n, *words, "--", "sleep", "600", to=to)
    s.running(run)
    return run


def test_busy_gpus_are_queued_for(w):
    with site(w, gpus=2) as s:
        first = holding(s, "2")
        waits = [s.submit("--grace", "1s", "-g", "1", "--", "sh", "-c", f"echo {i} $CUDA_VISIBLE_DEVICES; exec sleep 600") for i in range(3)]
        wait_for(lambda: all(s.state(run) == "queued" for run in waits), "their queueing", 20)
        assert "GPU" in json.dumps(s.why(waits[2])), s.why(waits[2])
        assert s.follow("-g", "0", "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]").rc == 0
        w.ok("cancel", waits[1])
        assert s.ended(waits[1])["state"] == "cancelled"
        w.ok("cancel", first)
        said = sorted(s.said_by(run, " ").split()[1] for run in (waits[0], waits[2]))
        assert said == ["0", "1"], said
        w.ok("cancel", waits[0])
        w.ok("cancel", waits[2])


def test_a_model_is_asked_for(w):
    """The node takes a GPU of that model; one that has none, or too few CPUs, is refused before anything is sent."""
    with site(w, gpus=3) as s:
        s["gpu1"].gpus(3, models=["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "NVIDIA H100 PCIe"])
        for model, index in (("h100", "2"), ("A100-80GB", "0"), ("rtx4090", "1")):
            done = s.follow("--gpu-type", model, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
            assert done.rc == 0 and done.out == f"{index}\n", (model, done)
        for options, says in ((["--gpu-type", "v100"], "requested 1 v100 GPU, host "), (["--gpu-type", "h100", "-g", "2"], "requested 2 h100 GPUs, host "),
                              (["--cpus", "90000"], "--cpus 90000: host "), (["--memory", "900Ti"], "--memory 900 TiB: host ")):
            done = s.follow(*options, "--", "true")
            assert done.rc in (1, 2) and says in done.err, (options, done)


def test_one_is_taken_if_none_is_asked_for(w):
    with site(w, gpus=1) as s:
        done = s.follow("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $DLRUN_GPUS_PER_NODE")
        assert done.out == "0 1\n" and "GPU" in done.err, done
        s["gpu1"].gpus(0)
        done = s.follow("--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")
        assert done.rc == 0, done


def test_what_others_use_is_not_taken(w):
    with site(w, gpus=2) as s:
        s["gpu1"].gpus(2, busy=(0,))
        assert s.follow("-g", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").out == "1\n"


def test_too_many_are_refused(w):
    with site(w, gpus=2) as s:
        done = w.run("submit", "-d", "-t", "ssh:gpu1", "-g", "3", "--", "true")
        assert done.rc in (1, 2, 5) and "3" in done.err and "GPU" in done.err and not w.runs(), done
        s["gpu1"].gpus(0)
        w.refused("submit", "-d", "-t", "ssh:gpu1", "-g", "1", "--", "true", id="gpu.count", rc=2, says="requested 1 GPU, host gpu1 has 0")
        assert not w.runs(), w.runs()


def test_a_killed_holder_gives_it_back(w):
    with site(w, gpus=1) as s:
        for how in ("program", "all"):
            run = holding(s)
            waits = s.submit("-g", "1", "--", "echo", "mine now")
            wait_for(lambda: s.state(waits) == "queued", "its queueing", 20)
            pids = [pid for pid, words in s["gpu1"].processes(run) if how == "all" or words.startswith("sleep 600")]
            s["gpu1"].kill(*pids)
            assert s.ended(waits)["state"] == "succeeded" and w.ok("logs", waits).out == "mine now\n"
            assert s.ended(run)["state"] == ("failed" if how == "program" else "lost"), w.show(run)


def test_two_accounts_share_a_gpu(w):
    with site(w, accounts=("alice", "bob"), gpus=1) as s:
        mine = holding(s)
        s.change("gpu1", User="bob")
        theirs = s.submit("-g", "1", "--", "sh", "-c", "echo had it")
        wait_for(lambda: s.state(theirs) == "queued", "its queueing", 20)
        s.change("gpu1", User="alice")
        w.ok("cancel", mine)
        s.ended(mine)
        s.change("gpu1", User="bob")
        assert s.ended(theirs)["state"] == "succeeded"


# What carol can do to the directory that all share, before anybody else comes.
SPOILED = {
    "closed": "mkdir -m 700 /tmp/dlrun-gpus",
    "a file": ": > /tmp/dlrun-gpus",
    "a lock that is a directory": "mkdir -m 1777 /tmp/dlrun-gpus && chmod 1777 /tmp/dlrun-gpus && mkdir /tmp/dlrun-gpus/queue",
    "numbers used up": "mkdir /tmp/dlrun-gpus && chmod 1777 /tmp/dlrun-gpus && cd /tmp/dlrun-gpus && "
                       "for n in 999999999999 999999999998 900000000000; do (exec 9>ticket.$n && flock 9 && exec sleep 600) & done",
    "names of others": "mkdir /tmp/dlrun-gpus.3001 /tmp/dlrun-gpus.3002 && ln -s /tmp /tmp/dlrun-gpus.3003",
}


def carol_does(host, script):
    host.ok("sh", "-c", f"umask 0; ({script}) </dev/null >/dev/null 2>&1", user="carol")


def one_at_a_time(w, s, says=None):
    """alice has the GPU; bob, and another run of hers, wait for it; then they have it one after the other."""
    s.change("gpu1", User="alice")
    mine = holding(s)
    if says:
        assert says in w.ok("logs", mine).out
    also = s.submit("-g", "1", "--", "echo", "had it")
    s.change("gpu1", User="bob")
    theirs = s.submit("-g", "1", "--", "echo", "had it")
    wait_for(lambda: s.state(theirs) == "queued" and "in use by" in json.dumps(s.why(theirs)), "its queueing", 60)
    s.change("gpu1", User="alice")
    wait_for(lambda: s.state(also) == "queued" and "in use by" in json.dumps(s.why(also)), "its queueing", 60)
    w.ok("cancel", mine)
    s.ended(mine)
    assert s.ended(also)["state"] == "succeeded"
    s.change("gpu1", User="bob")
    assert s.ended(theirs)["state"] == "succeeded"


def spoiled(how):
    def test(w):
        with site(w, accounts=("alice", "bob", "carol"), gpus=1) as s:
            carol_does(s["gpu1"], SPOILED[how])
            one_at_a_time(w, s, None if how in ("numbers used up", "names of others") else "not queued for in order")
    return test


for each in SPOILED:
    globals()["test_a_directory_that_is_" + each.replace(" ", "_")] = spoiled(each)


def test_a_queue_that_is_held(w):
    with site(w, accounts=("alice", "bob", "carol"), gpus=1) as s:
        carol_does(s["gpu1"], "mkdir /tmp/dlrun-gpus && chmod 1777 /tmp/dlrun-gpus && exec 9>/tmp/dlrun-gpus/queue && flock 9 && sleep 600 &")
        done = s.follow("-g", "1", "--", "echo", "had it", timeout=200)
        assert done.rc == 0 and "queue for too long" in done.out, done


def taken_away(script):
    """Who made the directory, or a file in it, removes it: who has the GPU has it all the same."""
    def test(w):
        with site(w, accounts=("alice", "bob", "carol"), gpus=1) as s:
            carol_does(s["gpu1"], "mkdir /tmp/dlrun-gpus && chmod 1777 /tmp/dlrun-gpus")
            mine = holding(s)
            carol_does(s["gpu1"], script)
            for user in ("alice", "bob"):
                s.change("gpu1", User=user)
                waits = s.submit("--grace", "1s", "-g", "1", "--", "echo", "had it")
                wait_for(lambda: s.state(waits) == "queued" and "in use by" in json.dumps(s.why(waits)), f"its queueing ({script})", 60)
                w.ok("cancel", waits)
                s.ended(waits)
            s.change("gpu1", User="alice")
            w.ok("cancel", mine)
            s.ended(mine)
            assert s.follow("-g", "1", "--", "true").rc == 0
    return test


test_locks_that_are_removed = taken_away("rm -f /tmp/dlrun-gpus/gpu.*")
test_a_directory_that_is_removed = taken_away("rm -rf /tmp/dlrun-gpus")
test_a_directory_that_is_moved_away = taken_away("mv /tmp/dlrun-gpus /tmp/aside")
test_locks_that_are_made_anew = taken_away("cd /tmp/dlrun-gpus && for f in gpu.*; do rm -f $f && : > $f; done; rm -f queue ticket.*")


def test_an_nvidia_smi_that_is_broken(w):
    with site(w, gpus=1) as s:
        s["gpu1"].program("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
        done = s.follow("-g", "1", "--", "true")
        assert done.rc and "version mismatch" in done.err + done.out, done
        s["gpu1"].program("nvidia-smi", "#!/bin/sh\ntrap '' TERM; while :; do sleep 1; done\n")
        assert s.follow("-g", "0", "--", "echo", "none wanted").out == "none wanted\n"


if __name__ == "__main__":
    main()
