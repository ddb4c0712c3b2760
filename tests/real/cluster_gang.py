#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several nodes in a real cluster whose program fails: whoever watches starts all nodes anew, as often as was asked for."""

import json
import signal
import subprocess

from harness import *  # noqa: F403
from kubesite import site

# Rank 1 fails until the wanted attempt, when somebody watches; rank 0 waits for its end.
FAILS_UNTIL = 'echo rank $NODE_RANK attempt $DLRUN_ATTEMPT; test $DLRUN_ATTEMPT -ge {} && exit 0; test $NODE_RANK = 0 && exec sleep 600; sleep 8; exit 9'


def words(until, retries=2):
    return ["-N", "2", "--retries", str(retries), "--grace", "1s", "--", "sh", "-c", FAILS_UNTIL.format(until)]


def start(w, *args):
    return subprocess.Popen([w.dlrun, *args], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def names(s):
    return sorted(j["metadata"]["name"] for j in s.jobs())


def test_who_follows_starts_all_nodes_anew(w):
    with site(w) as s:
        done = w.run("submit", "-f", *words(until=2), timeout=180)
        assert done.rc == 0, done
        run = w.show()
        assert len(run["attempts"]) == 2 and [a["exit"]["code"] for a in run["attempts"]] == [9, 0], run["attempts"]
        assert "only while dlrun follows" in done.err and "attempt 1 failed" in done.err and "retry 1 of 2" in done.err, done.err
        for rank in (0, 1):
            assert f"rank {rank} attempt 2" in done.out, done.out
        assert "rank 1 attempt 1" in done.out and names(s) == [run["id"], f"{run['id']}-2"]


def test_who_waits_starts_them_anew_until_none_are_left(w):
    with site(w) as s:
        run = s.submit(*words(until=9, retries=1))
        done = w.run("wait", run, timeout=180)
        assert done.rc == 9 and done.err.count("start again") == 1, done
        assert len(w.show(run)["attempts"]) == 2 and names(s) == [run, f"{run}-2"]
        assert w.run("wait", run).rc == 9 and len(w.show(run)["attempts"]) == 2


def test_two_who_watch_start_one_attempt(w):
    with site(w) as s:
        run = s.submit(*words(until=2, retries=5))
        watching = [start(w, "wait", run), start(w, "logs", "-f", run), start(w, "wait", run)]
        ends = [p.communicate(timeout=180) + (p.returncode,) for p in watching]
        assert [e[2] for e in ends] == [0, 0, 0], ends
        assert len(w.show(run)["attempts"]) == 2 and names(s) == [run, f"{run}-2"]
        assert sum("start again" in e[1] for e in ends) == 1, ends


def test_nobody_watches_nothing_is_started(w):
    with site(w) as s:
        run = s.submit(*words(until=2))
        assert s.ended(run)["state"] == "failed"
        assert w.run("wait", run).rc == 9 and w.run("logs", run).rc == 0
        assert len(w.show(run)["attempts"]) == 1 and names(s) == [run]
        w.ok("restart", run)
        assert w.run("wait", run, timeout=120).rc == 0 and len(w.show(run)["attempts"]) == 2


def test_a_cancelled_one_is_not_started_again(w):
    with site(w) as s:
        run = s.submit("-N", "2", "--retries", "3", "--grace", "1s", "--", "sleep", "600")
        watching = start(w, "wait", run)
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        s.cancel(run)
        watching.communicate(timeout=60)
        assert watching.returncode == 143
        end = w.show(run)
        assert end["state"] == "cancelled" and len(end["attempts"]) == 1


def test_a_time_limit_is_not_repeated(w):
    with site(w) as s:
        run = s.submit("-N", "2", "--retries", "3", "--grace", "1s", "--timeout", "3s", "--", "sleep", "600")
        assert w.run("wait", run, timeout=120).rc == 124
        assert len(w.show(run)["attempts"]) == 1


def test_a_watcher_that_is_killed_leaves_one_that_can_be_restarted(w):
    with site(w) as s:
        run = s.submit(*words(until=2))
        watching = start(w, "wait", run)
        wait_for(lambda: len(w.show(run)["attempts"]) == 2, "the next attempt", 90)
        watching.send_signal(signal.SIGKILL)
        watching.communicate()
        end = s.ended(run, 120)
        if end["state"] != "succeeded":
            w.ok("restart", run)
            end = s.ended(run, 120)
        assert end["state"] == "succeeded", end


# What takes a pod away is not the program's doing: all nodes start again, without a count.

def pod_of(s, run, rank):
    return s.cluster.wait(lambda: next((p["metadata"]["name"] for p in s.cluster.get("Pod", namespace=s.namespace)
                                        if p["metadata"]["name"].startswith(f"{run}-{rank}-") and p["status"]["phase"] == "Running"), None),
                          f"rank {rank}")


def evict(s, pod):
    s.cluster.api("POST", f"/api/v1/namespaces/{s.namespace}/pods/{pod}/eviction",
                  {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": s.namespace}})


def delete(s, pod):
    s.cluster.kubectl("-n", s.namespace, "delete", "pod", pod, "--wait=false")


def delete_now(s, pod):
    s.cluster.kubectl("-n", s.namespace, "delete", "pod", pod, "--grace-period=0", "--force")


def started(w, s, *words):
    run = s.submit("-N", "2", "--grace", "1s", *words)
    wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
    return run


FIRST_WAITS = 'test $DLRUN_ATTEMPT -ge 2 && exit {}; exec sleep 600'


def taken_away(w, take, reasons, retries, rank, follow):
    with site(w) as s:
        run = started(w, s, *(["--retries", str(retries)] if retries else []), "--", "sh", "-c", FIRST_WAITS.format(0))
        looking = start(w, *(["logs", "-f"] if follow else ["wait"]), run)
        take(s, pod_of(s, run, rank))
        out, err = looking.communicate(timeout=180)
        assert looking.returncode == 0, (out, err)
        attempts = w.show(run)["attempts"]
        assert len(attempts) == 2 and attempts[0]["exit"]["origin"] == "cluster" and attempts[0]["exit"]["reason"] in reasons, attempts
        assert "which is not counted" in err and "retry 1" not in err, err


@left_to_all("test_an_evicted_pod_with_retries_is_not_counted")
def test_an_evicted_pod_is_not_counted(w):
    taken_away(w, evict, ("Evicted",), 0, 1, True)


def test_an_evicted_pod_with_retries_is_not_counted(w):
    taken_away(w, evict, ("Evicted",), 1, 0, False)


def test_a_deleted_pod_is_not_counted(w):
    taken_away(w, delete, ("Deleted",), 0, 0, True)


@left_to_all("test_a_deleted_pod_is_not_counted")
def test_a_deleted_pod_with_retries_is_not_counted(w):
    taken_away(w, delete, ("Deleted",), 1, 1, False)


@left_to_all("test_a_deleted_pod_is_not_counted")
def test_a_pod_deleted_at_once_is_not_counted(w):
    taken_away(w, delete_now, ("Deleted",), 0, 1, False)


def test_failures_are_counted_beside(w):
    with site(w) as s:
        fails = 'test $DLRUN_ATTEMPT = 1 && exec sleep 600; test $NODE_RANK = 0 && exec sleep 600; exit 9'
        run = started(w, s, "--retries", "1", "--", "sh", "-c", fails)
        looking = start(w, "wait", run)
        delete(s, pod_of(s, run, 0))
        out, err = looking.communicate(timeout=240)
        assert looking.returncode == 9, (out, err)
        assert [a["exit"]["code"] for a in w.show(run)["attempts"]] == [125, 9, 9] and "retry 1 of 1" in err, err


def test_a_pod_is_deleted_and_nobody_looks(w):
    with site(w) as s:
        run = started(w, s, "--", "sh", "-c", FIRST_WAITS.format(0))
        delete(s, pod_of(s, run, 1))
        end = s.ended(run)
        assert end["state"] == "failed" and end["exit"] == {**end["exit"], "code": 125, "origin": "cluster", "reason": "Deleted"}, end["exit"]
        assert "deleted" in json.dumps(s.why(run)) and "deleted" in w.ok("show", run).out
        w.ok("restart", run)
        assert w.run("wait", run, timeout=120).rc == 0


if __name__ == "__main__":
    main()
