#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are accepted here while a cluster or its registry does not answer, and sent once it does."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import threading

import kill
from cluster_away import config_through
from harness import *  # noqa: F403
from kube_images import push_python
from kubesite import site

from faultproxy import FaultProxy

RUNS = 5
LINE = ["sh", "-c", "echo ran-$DLRUN_RUN_ID"]


@contextlib.contextmanager
def lines(w):
    """A site whose API server and registry are reached through lines that can be cut: (site, API, registry)."""
    w.env.pop("DLRUN_OFFLINE", None)
    with site(w) as s, FaultProxy(s.cluster.address) as api, FaultProxy(s.cluster.registry) as registry:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        s.base = s.base.replace(s.cluster.registry, registry.address)
        names = {"push": f"{registry.address}/{s.namespace}/code", "pull": f"{s.cluster.registry}/{s.namespace}/code"}
        s.configure(registry=names)
        yield s, api, registry


def down(line):
    line.set(refuse=True)
    line.cut_all()


def waiting(w):
    return [r["id"] for r in json.loads(w.ok("queue", "--json").out)["waiting"]]


def no_sender(w):
    wait_for(lambda: w.command(["pgrep", "-f", f"{w.dlrun} queue --send"]).rc == 1, "the senders have ended", 60)


def owners(s):
    return sorted(job["metadata"]["labels"]["dlrun.io/run-id"] for job in s.jobs())


def test_a_cluster_that_does_not_answer(w):
    """In order, once; one is taken back."""
    with lines(w) as (s, api, registry):
        down(api)
        runs = []
        for i in range(RUNS):
            w.write("n", str(i))
            runs.append(s.submit("--", *LINE))
            assert "queued here: no answer from k" in s.said, s.said
        no_sender(w)
        assert waiting(w) == runs and not s.jobs()
        w.ok("cancel", runs.pop(1))
        api.set(refuse=False)
        w.ok("queue", "--send")
        assert waiting(w) == []
        for run in runs:
            assert s.ended(run)["state"] == "succeeded", w.show(run)
        assert owners(s) == sorted(runs)
        begun = sorted(s.jobs(), key=lambda job: runs.index(job["metadata"]["labels"]["dlrun.io/run-id"]))
        stamps = [job["metadata"]["creationTimestamp"] for job in begun]
        assert stamps == sorted(stamps), stamps
        assert w.ok("logs", runs[-1]).out == f"ran-{runs[-1]}\n"


def test_a_registry_that_does_not_answer(w):
    """Same digest as at once; a base that is missing is found when it is sent, and the record says so."""
    with lines(w) as (s, api, registry):
        at_once = s.submit("--", *LINE)
        assert s.ended(at_once)["state"] == "succeeded"
        down(registry)
        run = s.submit("--", *LINE)
        missing = s.submit("--image", f"{registry.address}/no/such:v1", "--", "true")
        no_sender(w)
        assert waiting(w) == [run, missing]
        registry.set(refuse=False)
        w.ok("queue", "--send")
        assert s.ended(run)["state"] == "succeeded", w.show(run)
        digests = [w.show(r)["image"]["ref"] for r in (at_once, run)]
        assert digests[0] == digests[1], digests
        shown = w.show(missing)
        assert shown["state"] == "failed" and "no/such" in shown["text"], shown
        assert owners(s) == sorted([at_once, run])


def test_a_proposed_base_that_nobody_could_be_asked_for(w):
    """The one of the submit is that of the run, whatever the tree says when it is sent."""
    with lines(w) as (s, api, registry):
        there = push_python(f"{registry.address}/hub/python")
        known = json.loads((w.tree / "dlrun.yaml").read_text())
        del known["image"]
        w.write("dlrun.yaml", json.dumps({**known, "bases": [there.rpartition(":")[0]]}))
        w.ok("config", "trust", "--yes")
        w.write(".python-version", "3.11\n")
        down(registry)
        run = s.submit("--", "python3", "-c", "import os; print('ran-' + os.environ['DLRUN_RUN_ID'])")
        assert f"the base is {there} (the Python of .python-version); registry" in s.said, s.said
        no_sender(w)
        assert waiting(w) == [run]
        (w.tree / ".python-version").unlink()
        registry.set(refuse=False)
        w.ok("queue", "--send")
        assert s.ended(run)["state"] == "succeeded", w.show(run)
        assert w.show(run)["image"]["base"] == there and w.ok("logs", run).out == f"ran-{run}\n"


def test_a_sender_is_killed_anywhere(w):
    needs("strace")
    with lines(w) as (s, api, registry):
        def hold():
            down(api)
            run = s.submit("--", *LINE)
            no_sender(w)
            api.set(refuse=False)
            return run

        def sender(*more):
            return w.command(["strace", "-f", "-qq", "-o", w.dir / "count", "-e", f"trace={kill.CALLS}", *more, w.dlrun, "queue", "--send"])

        runs = [hold()]
        assert sender().rc == 0
        seen = (w.dir / "count").read_text().splitlines()
        first = seen[0].split()[0]
        total = sum(line.startswith(first + " ") for line in seen)
        def left_at(n):
            runs.append(hold())
            sender("-e", f"inject={kill.CALLS}:signal=SIGKILL:when={n}")
            left = left_by_sender(w, s, runs[-1], runs[-1])
            w.ok("queue", "--send")
            assert waiting(w) == []
            return left
        left = kill.closing_in(total, 40, left_at)
        for run in runs:
            assert s.ended(run)["state"] == "succeeded", w.show(run)
        assert owners(s) == sorted(runs)
        print(f"held: a sender killed at {len(runs) - 1} of {total} calls: {dict(left)}", flush=True)
        assert {"not there", "there"} <= set(left), left


def left_by_sender(w, s, run, job):
    """What one that was killed had done with it: nothing there yet, there and not known here, both."""
    if run not in waiting(w):
        return "sent"
    return "there" if job in owners(s) else "not there"


def test_after_another_run(w):
    """Nothing of it is in the cluster before; a member of a study in the cluster that fails ends what waits for it."""
    with lines(w) as (s, api, registry):
        first = s.submit("--", "sh", "-c", "sleep 8")
        second = s.submit("--after", first, "--", *LINE)
        assert f"after {first}" in s.said and "it is sent when that has ended" in s.said, s.said
        here = w.ok("submit", "-d", "-t", "local", "-g", "0", "--after", f"{second}:any", "--", "true").out.strip()
        no_sender(w)
        assert owners(s) == [first] and waiting(w) == [second]
        assert w.show(second)["after"] == [{"run": first, "when": "ok"}] and w.show(second)["held"]["for"] == "run"
        # The run here looks for both.
        wait_for(lambda: w.show(here)["state"] == "succeeded", "the last one", 120)
        assert s.ended(second)["state"] == "succeeded" and owners(s) == sorted([first, second])
        assert w.show(first)["times"]["ended"] <= w.show(second)["times"]["started"]
        assert w.ok("logs", second).out == f"ran-{second}\n"
        study = w.ok("sweep", "-d", "-t", "k", "--image", s.base, "--over", "i=0..2", "--", "sh", "-c", "sleep 5; exit {i}").out.strip()
        late = s.submit("--after", study, "--", *LINE)
        other = s.submit("--after", f"{study}:any", "--", *LINE)
        w.run("wait", study)
        wait_for(lambda: not waiting(w), "none waits", 60)
        shown = w.show(late)
        assert shown["state"] == "cancelled" and shown["exit"]["reason"] == "Dependency" and "and it was to succeed" in shown["text"], shown
        assert s.ended(other)["state"] == "succeeded" and late not in owners(s)


def study(w, s, *words, n=4):
    """A study of members that name themselves, and its runs."""
    done = w.ok("sweep", "-d", "-t", "k", "--image", s.base, "--over", f"i=1..{n}", *words, "--", *LINE, "{i}")
    s.said, name = done.err, done.out.strip()
    runs = sorted((r for r in w.runs() if r["group"] == name), key=lambda r: r["study"]["index"])
    assert len(runs) == n
    return name, [r["id"] for r in runs]


def all_end(w, runs, seconds=240):
    def states():
        w.ok("ps")
        found = {r["id"]: r["state"] for r in w.runs()}
        return all(found[run] in ("succeeded", "failed", "cancelled", "lost") for run in runs)
    wait_for(states, "the end of all runs", seconds)
    return {run: w.show(run)["state"] for run in runs}


def test_a_study_waits_and_goes_as_one(w):
    """One Job without the member that was taken back, by the digest of one that went at once; the registry may be away as well."""
    with lines(w) as (s, api, registry):
        at_once, ran = study(w, s)
        assert set(all_end(w, ran).values()) == {"succeeded"}
        down(api)
        name, runs = study(w, s, "--parallel", "2", "--fail-fast", n=5)
        assert "queued here: no answer from k" in s.said and f"take it back: dlrun cancel {name}" in s.said, s.said
        other, others = study(w, s)
        gone, gone_runs = study(w, s)
        no_sender(w)
        assert waiting(w) == [*runs, *others, *gone_runs] and owners(s) == [at_once]
        w.ok("cancel", runs[2], gone)
        down(registry)
        api.set(refuse=False)
        w.ok("queue", "--send")
        assert waiting(w) == [run for run in [*runs, *others] if run != runs[2]] and owners(s) == [at_once]
        registry.set(refuse=False)
        said = w.ok("queue", "--send").err
        assert f"{name} (4 runs) to k" in said and f"{other} (4 runs) to k" in said, said
        assert not waiting(w) and owners(s) == sorted([at_once, name, other])
        ends = all_end(w, [*runs, *others])
        assert [run for run in ends if ends[run] != "succeeded"] == [runs[2]] and ends[runs[2]] == "cancelled", ends
        assert all(w.ok("logs", run).out == f"ran-{run}\n" for run in ends if run != runs[2])
        digests = {w.show(run)["image"]["ref"] for run in [*ran, *others]}
        assert len(digests) == 1, digests


def test_a_study_chooses_once(w):
    """Of a host and a cluster that do not answer the cluster answers first: one Job has all members."""
    with lines(w) as (s, api, registry):
        config = json.loads((w.tree / "dlrun.yaml").read_text())
        config["targets"]["lab"] = {"kind": "ssh", "hosts": ["127.0.0.1:1"]}
        w.write("dlrun.yaml", json.dumps(config))
        w.ok("config", "trust", "--yes")
        down(api)
        done = w.ok("sweep", "-d", "-t", "lab,k", "--over", "i=1..3", "--", *LINE, "{i}")
        name = done.out.strip()
        assert "queued here: no answer from lab, k" in done.err and "it is sent when one of them answers" in done.err, done
        no_sender(w)
        runs = waiting(w)
        assert len(runs) == 3 and not s.jobs()
        api.set(refuse=False)
        said = w.ok("queue", "--send").err
        assert f"{name} (3 runs) to k" in said and not waiting(w) and owners(s) == [name], said
        assert set(all_end(w, runs).values()) == {"succeeded"}
        shown = [w.show(run) for run in runs]
        assert all(run["target"]["name"] == "k" and run["places"][0]["state"] == "silent" for run in shown), shown[0]
        assert [w.ok("logs", run).out for run in runs] == [f"ran-{run}\n" for run in runs]


def test_a_study_whose_push_is_cut_late(w):
    """Its first run has a row, and a name in the cluster, before the image is committed: all of it is held then."""
    with lines(w) as (s, api, registry):
        s.submit("--", *LINE)
        w.write("n", "another tree")
        registry.set(delay=1.5)
        words = [w.dlrun, "sweep", "-d", "-t", "k", "--over", "i=1..3", "--", *LINE, "{i}"]
        with subprocess.Popen(words, cwd=w.tree, env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweeping:
            wait_for(lambda: any(run.get("study") for run in w.runs()), "the row of the first", 60)
            down(registry)
            name, said = sweeping.communicate()
        name = name.strip()
        assert sweeping.returncode == 0 and "queued here: " in said, said
        no_sender(w)
        runs = [r["id"] for r in w.runs() if r["group"] == name]
        assert len(runs) == 3 and sorted(waiting(w)) == sorted(runs), (said, runs)
        assert sorted(len(w.show(run)["attempts"]) for run in runs) == [0, 0, 1]
        registry.set(refuse=False, delay=0)
        w.ok("queue", "--send")
        assert not waiting(w)
        assert set(all_end(w, runs).values()) == {"succeeded"} and name in owners(s)
        assert all(w.ok("logs", run).out == f"ran-{run}\n" for run in runs)


def test_a_study_whose_push_is_cut_is_killed(w):
    """Before any of the transactions that a push that was cut late ends with: all of its runs are held, or none is."""
    needs("strace")
    with lines(w) as (s, api, registry):
        s.submit("--", *LINE)
        journal = w.state / "runs.db-journal"
        for n in (2, 3, 4):
            w.write("n", f"tree {n}")
            before = {run["id"] for run in w.runs()}
            registry.set(refuse=False, delay=1.5)
            words = [w.dlrun, "sweep", "-d", "-t", "k", "--over", "i=1..3", "--", *LINE, "{i}"]
            trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", journal, "-e", "trace=unlink,unlinkat",
                     "-e", f"inject=unlink,unlinkat:signal=SIGKILL:when={n}"]
            with subprocess.Popen([*trace, *words], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweeping:
                wait_for(lambda before=before: any(run["id"] not in before for run in w.runs()), "the row of the first", 60)
                down(registry)
                sweeping.communicate()
            no_sender(w)
            runs = [run["id"] for run in w.runs() if run["id"] not in before]
            held = [run for run in waiting(w) if run in runs]
            assert (len(runs), len(held)) in ((1, 0), (3, 3)), (n, runs, held)
            print(f"held: killed at transaction {n}: {len(held)} of {len(runs)} are held", flush=True)


def test_a_study_without_a_registry(w):
    """The code goes through the API server."""
    with lines(w) as (s, api, registry):
        s.configure(registry="none")
        down(api)
        name, runs = study(w, s, n=3)
        no_sender(w)
        assert waiting(w) == runs
        api.set(refuse=False)
        w.ok("queue", "--send")
        assert not waiting(w) and owners(s) == [name]
        assert set(all_end(w, runs).values()) == {"succeeded"}
        assert [w.ok("logs", run).out for run in runs] == [f"ran-{run}\n" for run in runs]


@left_to_all("test_a_sender_is_killed_anywhere, test_a_study_whose_push_is_cut_is_killed; "
             "held: test_a_sender_of_a_study_is_killed_anywhere")
def test_a_sender_of_a_study_is_killed_anywhere(w):
    """One Job of it, each member once, also where one is cancelled while that is not known."""
    needs("strace")
    with lines(w) as (s, api, registry):
        def hold():
            down(api)
            name, runs = study(w, s, n=3)
            no_sender(w)
            api.set(refuse=False)
            return name, runs

        def sender(*more):
            return w.command(["strace", "-f", "-qq", "-o", w.dir / "count", "-e", f"trace={kill.CALLS}", *more, w.dlrun, "queue", "--send"])

        first, all_runs = hold()
        studies, cancelled = [first], []
        assert sender().rc == 0
        seen = (w.dir / "count").read_text().splitlines()
        process = seen[0].split()[0]
        total = sum(line.startswith(process + " ") for line in seen)
        def left_at(n):
            name, runs = hold()
            sender("-e", f"inject={kill.CALLS}:signal=SIGKILL:when={n}")
            left = left_by_sender(w, s, runs[0], name)
            if len(studies) % 2:
                w.run("cancel", runs[1])
                cancelled.append(runs[1])
            w.ok("queue", "--send")
            assert not [run for run in waiting(w) if run not in cancelled], (n, waiting(w))
            studies.append(name)
            all_runs.extend(runs)
            return left
        left = kill.closing_in(total, 40, left_at)
        ends = all_end(w, all_runs)
        assert all(ends[run] == "succeeded" for run in ends if run not in cancelled), ends
        assert owners(s) == sorted(studies)
        assert all(w.ok("logs", run).out == f"ran-{run}\n" for run in ends if run not in cancelled)
        print(f"held: a sender killed at {len(studies) - 1} of {total} calls: {dict(left)}", flush=True)
        assert {"not there", "there"} <= set(left), left


def test_a_study_after_a_run(w):
    """As a whole when that has ended; one that fails ends all of it."""
    with lines(w) as (s, api, registry):
        until = "until [ -e go ]; do sleep 0.2; done"
        first = s.submit("--", "sh", "-c", until)
        name, runs = study(w, s, "--after", first)
        assert f"after {first}" in s.said and "it is sent when that has ended" in s.said, s.said
        never, never_runs = study(w, s, "--after", first, n=2)
        w.ok("cancel", never)
        bad = s.submit("--", "sh", "-c", f"{until}; exit 3")
        late, late_runs = study(w, s, "--after", bad, n=2)
        no_sender(w)
        assert owners(s) == sorted([first, bad]) and waiting(w) == [*runs, *late_runs]
        for run in (first, bad):
            wait_for(lambda: w.run("exec", run, "--", "touch", "go").rc == 0, "it runs", 90)
        ends = all_end(w, [*runs, *late_runs])
        assert {ends[run] for run in runs} == {"succeeded"} and {ends[run] for run in late_runs} == {"cancelled"}, ends
        assert owners(s) == sorted([first, bad, name])
        assert all(w.show(first)["times"]["ended"] <= w.show(run)["times"]["started"] for run in runs)


class Portal(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><title>Log in to the network</title></html>")

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


def test_a_portal_in_place_of_the_registry_of_the_base(w):
    """Its 404 is no answer of the registry: the run stays."""
    with lines(w) as (s, api, registry):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        run = s.submit("--image", f"127.0.0.1:{port}/some/base:v1", "--", "true")
        no_sender(w)
        assert waiting(w) == [run]
        portal = http.server.ThreadingHTTPServer(("127.0.0.1", port), Portal)
        threading.Thread(target=portal.serve_forever, daemon=True).start()
        try:
            done = w.ok("queue", "--send")
        finally:
            portal.shutdown()
        assert waiting(w) == [run] and w.show(run)["state"] == "queued", (done, w.show(run))
        assert "there is no base image" in w.show(run)["text"], w.show(run)


if __name__ == "__main__":
    main()
