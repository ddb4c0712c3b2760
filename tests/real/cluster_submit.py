#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs in a real cluster: what is made there, how runs end, what they find, and what is said of those that wait."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

from harness import *  # noqa: F403
from kubesite import PROGRAM, site
from registries import Certs

from apiproxy import ApiProxy

SHOW = """import json, os, sys
print(json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getuid(), "groups": os.getgroups(),
                  "files": sorted(os.listdir(".")), "argv": sys.argv}), flush=True)
open("written", "w").write("x")
"""


def shown(s, run):
    return json.loads(s.output(run).strip().splitlines()[-1])


def test_a_run_ends_as_its_program_does(w):
    with site(w) as s:
        ok, bad, killed = s.submit("--", "python3", "a.py"), s.submit("--", "sh", "-c", "exit 7"), s.submit("--", "sh", "-c", "kill -9 $$")
        end = s.ended(ok)
        assert (end["state"], end["exit"]["code"], end["exit"]["origin"]) == ("succeeded", 0, "job"), end
        assert end["target"] == {"kind": "kubernetes", "name": "k", "context": end["target"]["context"], "namespace": s.namespace,
                                 "hosts": end["target"]["hosts"]}
        end = s.ended(bad)
        assert (end["state"], end["exit"]["code"]) == ("failed", 7), end
        end = s.ended(killed)
        assert (end["exit"]["code"], end["exit"]["signal"]) == (137, 9), end
        assert w.run("wait", ok, bad).rc == 7
        assert s.output(ok) == "hello\n"


def test_the_tree_and_the_environment_are_there(w):
    with site(w, files={"exp/show.py": SHOW, "data.txt": "x"}) as s:
        w.write("exp/untracked.txt", "y")
        run = s.submit("-e", "OWN=$(HOME) x", "--", "python3", "show.py", "--lr", "3", cwd=w.tree / "exp")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        seen, env = shown(s, run), shown(s, run)["env"]
        assert seen["cwd"] == "/dlrun/src/exp" and seen["files"] == ["show.py", "untracked.txt"], seen
        assert seen["argv"] == ["show.py", "--lr", "3"] and env["OWN"] == "$(HOME) x"
        record = w.show(run)
        wanted = {"DLRUN_RUN_ID": run, "DLRUN_ATTEMPT": "1", "DLRUN_SNAPSHOT": record["snapshot"]["id"], "NNODES": "1", "NODE_RANK": "0",
                  "DLRUN_IMAGE_REF": record["image"]["ref"], "PYTHONUNBUFFERED": "1", "MASTER_PORT": "29500"}
        assert {k: env.get(k) for k in wanted} == wanted
        assert record["params"] == {"lr": "3"}


def test_an_edit_runs_and_the_command_names_its_job(w):
    with site(w) as s:
        first = s.submit("--", "python3", "a.py")
        w.write("a.py", "print('edited')\n")
        second = s.submit("--", "python3", "a.py")
        s.ended(first), s.ended(second)
        assert (s.output(first), s.output(second)) == ("hello\n", "edited\n")
        job = s.cluster.get("Job", second, s.namespace)
        labels = job["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "dlrun" and labels["dlrun.io/run-id"] == second
        assert json.loads(job["metadata"]["annotations"]["dlrun.io/spec"])["command"] == ["python3", "a.py"]


def test_secrets_are_in_a_secret_of_the_job_only(w):
    with site(w) as s:
        run = s.submit("--secret", "CANARY", "--", "sh", "-c", 'test ${#CANARY} = 11', env={"CANARY": "tweet-tweet"})
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        secret = s.cluster.get("Secret", f"{run}-env", s.namespace)
        assert [o["kind"] for o in secret["metadata"]["ownerReferences"]] == ["Job"]
        for kind in ("Job", "Pod"):
            assert "tweet" not in json.dumps(s.cluster.get(kind, namespace=s.namespace))
        kept = b"".join(p.read_bytes() for p in w.dir.rglob("*") if p.is_file() and w.home in p.parents)
        assert b"tweet-tweet" not in kept
        w.ok("cancel", run)


def test_cancel_leaves_nothing(w):
    with site(w) as s:
        run = s.submit("--secret", "HOME", "-N", "2", "--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        s.cancel(run)
        end = s.ended(run, 60)
        assert (end["state"], end["exit"]["code"]) == ("cancelled", 143), end
        names = {k: [o["metadata"]["name"] for o in s.cluster.get(k, namespace=s.namespace)] for k in ("Job", "Pod", "Service", "Secret")}
        wait_for(lambda: not any(run in o["metadata"]["name"] for k in names for o in s.cluster.get(k, namespace=s.namespace)),
                 f"the end of all objects of {run}: {names}", 60)
        assert s.ended(run)["state"] == "cancelled"
        assert w.run("cancel", run).rc == 0


def test_last_words_of_a_cancelled_run_are_kept(w):
    program = """import signal, sys, time
def end(*_):
    print("last words", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("first words", flush=True)
time.sleep(600)
"""
    with site(w, files={"a.py": program}) as s:
        run = s.submit("--", "python3", "a.py")
        wait_for(lambda: "first" in w.run("logs", run).out, "its first words", 60)
        s.cancel(run)
        assert s.ended(run)["state"] == "cancelled"
        wait_for(lambda: not s.cluster.get("Pod", namespace=s.namespace), "the end of its pod", 60)
        assert w.ok("logs", run).out == "first words\nlast words\n"


def test_stop_signal(w):
    with site(w, files={"p.py": INTERRUPTED}, keys={"stop_signal": "INT"}) as s:
        run = s.submit("--", "python3", "p.py")
        wait_for(lambda: "ready" in w.run("logs", run).out, "its first words", 60)
        s.cancel(run)
        assert s.ended(run)["state"] == "cancelled", w.show(run)
        wait_for(lambda: not s.cluster.get("Pod", namespace=s.namespace), "the end of its pod", 60)
        assert w.ok("logs", run).out == "ready\nsaved\n", w.ok("logs", run)
        done = w.run("submit", "-d", "--image", "scratch", "--", "/p")
        assert done.rc != 0 and "stop_signal needs a shell, and the image has none" in done.err, done


def test_the_log_outlives_the_job(w):
    with site(w) as s:
        run = s.submit("-N", "2", "--", "sh", "-c", "echo rank $NODE_RANK")
        assert w.run("wait", run, timeout=90).rc == 0
        s.cluster.delete("Job", run, s.namespace, propagationPolicy="Foreground")
        wait_for(lambda: not s.cluster.get("Pod", namespace=s.namespace), "the end of its pods", 60)
        assert w.ok("logs", run).out == "[0] rank 0\n[1] rank 1\n"
        assert w.ok("logs", "--rank", "1", run).out == "rank 1\n"
        assert w.show(run)["state"] == "succeeded"


def test_following_exits_as_the_program_does(w):
    with site(w) as s:
        done = w.run("submit", "-f", "--", "sh", "-c", "echo out; echo err >&2; exit 5", timeout=90)
        assert done.rc == 5 and sorted(done.out.split()) == ["err", "out"], done
        done = w.run("submit", "-f", "--json", "--", "python3", "a.py", timeout=90)
        first, last = json.loads(done.out.splitlines()[0]), json.loads(done.out.splitlines()[-1])
        assert done.rc == 0 and first["text"] == "hello" and last["state"] == "succeeded", done


def test_an_end_that_is_told_is_what_the_job_says_later(w):
    """Followed runs end before the condition of their Job is there."""
    cases = [(["--", "true"], 0, "Complete", 1), (["--", "sh", "-c", "exit 3"], 3, "Failed", 1), (["--", "no-such-program"], 127, "Failed", 1),
             (["--retries", "1", "--", "sh", "-c", "test $DLRUN_ATTEMPT = 2"], 0, "Complete", 2),
             (["--retries", "1", "--", "sh", "-c", "exit 4"], 4, "Failed", 2), (["-N", "2", "--", "true"], 0, "Complete", 2)]
    cases = cases if ALL else [cases[1], cases[3], cases[5]]
    with site(w, results={"emptyDir": True}) as s:
        for words, code, condition, pods in cases:
            done = w.run("submit", "-f", "--json", *words, timeout=120)
            end = json.loads(done.out.splitlines()[-1])
            assert (done.rc, end["exit"]["code"]) == (code, code), (words, done)
            job = s.cluster.wait(lambda: (j := s.cluster.get("Job", end["id"], s.namespace)) and
                           any(c["type"] in ("Complete", "Failed") for c in j["status"].get("conditions", [])) and j, "its condition", 60)
            assert condition in [c["type"] for c in job["status"]["conditions"]], (words, job["status"])
            assert len(s.cluster.get("Pod", namespace=s.namespace, labelSelector=f"job-name={end['id']}")) == pods, words
            assert w.show(end["id"])["state"] == end["state"] == ("failed" if code else "succeeded")


def test_two_ranks_find_each_other(w):
    talk = """import os, socket, time
rank, where = os.environ["NODE_RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == "0":
    c, _ = socket.create_server(("", where[1])).accept()
    print("rank 0 got", c.recv(9).decode(), flush=True)
else:
    for i in range(200):
        try:
            socket.create_connection(where, 2).sendall(b"greetings")
            break
        except OSError:
            time.sleep(0.1)
"""
    with site(w, files={"talk.py": talk}) as s:
        run = s.submit("-N", "2", "--", "python3", "talk.py")
        end = s.ended(run)
        assert end["state"] == "succeeded" and [r["rank"] for r in end["ranks"]] == [0, 1], (end, s.why(run))
        assert "rank 0 got greetings" in s.output(run)


def test_a_failing_rank_ends_all_and_is_named(w):
    with site(w) as s:
        run = s.submit("-N", "2", "--grace", "1s", "--", "sh", "-c", 'test $NODE_RANK = 0 && exec sleep 600; sleep 1; exit 9')
        end = s.ended(run)
        assert (end["state"], end["exit"]["code"]) == ("failed", 9), end
        s.said_within(run, "1 of 2")
        wait_for(lambda: not [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["status"]["phase"] == "Running"],
                 "the end of the other rank", 60)


def test_retries_are_attempts(w):
    with site(w, results={"emptyDir": True}) as s:
        run = s.submit("--retries", "2", "--", "sh", "-c", 'echo attempt $DLRUN_ATTEMPT; test $DLRUN_ATTEMPT = 2')
        assert s.ended(run, 120)["state"] == "succeeded", s.why(run)


def test_outputs_are_on_storage_and_survive(w):
    with site(w, keys={"outputs": ["out"]}, files={"out/.keep": ""}) as s:
        there = s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "sh", "-c", "ls -A out; echo result > out/f; echo more > $DLRUN_OUTPUT_DIR/g")
        assert s.ended(run)["state"] == "succeeded", (s.why(run), s.output(run))
        found = {p.name: p.read_text() for p in there.rglob("*") if p.is_file() and p.name in "fg"}
        assert found == {"f": "result\n", "g": "more\n"}, found
        assert ".keep" in s.output(run)


def test_a_restricted_namespace_runs_it_too(w):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with site(w, labels=labels, files={"show.py": SHOW}, results={"emptyDir": True}) as s:
        run = s.submit("--", "python3", "show.py")
        assert s.ended(run)["state"] == "succeeded", (s.why(run), s.said)
        seen = shown(s, run)
        assert seen["uid"] != 0 and 0 in seen["groups"] + [0], seen
        assert os.path.isabs(seen["env"]["HOME"])


def test_an_open_namespace_runs_as_the_image_says(w):
    with site(w, files={"show.py": SHOW}) as s:
        run = s.submit("--", "python3", "show.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        assert shown(s, run)["uid"] == 0


def test_what_waits_says_why(w):
    with site(w, results={"emptyDir": True}) as s:
        s.said_within(s.submit("--", "no-such-program"), "no-such-program", "not found")
        s.said_within(s.submit("--memory", "32Mi", "--", "python3", "-c", "x = bytearray(300 << 20)"), "memory limit of 32Mi")
        s.said_within(s.submit("--timeout", "2s", "--", "sleep", "60"), "time limit")
        s.configure(registry={"push": f"{s.cluster.registry}/{s.namespace}/code", "pull": f"{s.cluster.registry}/{s.namespace}/other"})
        s.said_within(s.submit("--", "python3", "a.py"), "has no image")
        s.configure(registry={"push": f"{s.cluster.registry}/{s.namespace}/code", "pull": f"127.0.0.1:1/{s.namespace}/code"})
        s.said_within(s.submit("--", "python3", "a.py"), "cannot reach registry 127.0.0.1:1")


def test_what_cannot_be_is_refused_before_anything_is_sent(w):
    with site(w) as s:
        s.configure(results={"pvc": "absent"})
        w.refused("submit", "-d", "--", "true", id="kube.not_found", rc=5, says=["absent", s.namespace])
        s.configure(results={"emptyDir": True}, image_pull_secret="absent")
        w.refused("submit", "-d", "--", "true", id="kube.not_found", rc=5, says="absent")
        assert s.jobs() == []


def test_lists_of_a_large_cluster_are_not_waited_for(w):
    certs = Certs(w.dir / "certs")
    with site(w) as s, ApiProxy(s.cluster.address, s.cluster.ca, *certs.pair()) as proxy:
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig(
            s.user, w.dir / "proxied", server=proxy.address, ca=False, namespace=s.namespace,
            cluster={"certificate-authority": str(certs.ca)}))
        proxy.fault = lambda method, path, body: "stall" if path.startswith("/api/v1/nodes") else None
        # A check that waits for all takes 5 s then, every time.
        runs, took = [], []
        while len(runs) < 3 and not any(phases["total"] < 4500 for phases in took):
            proxy.seen.clear()
            runs.append(s.submit("--", "python3", "a.py"))
            assert ("GET", "/api/v1/nodes?limit=500") in proxy.seen
            took.append(w.show(runs[-1])["phases_ms"])
        assert min(phases["total"] for phases in took) < 4500, took
        s.cancel(*runs, ends=("cancelled", "succeeded"))


def test_roles_decide(w):
    with site(w, role="view") as s:
        w.refused("submit", "-d", "--", "true", id="kube.denied", rc=4, says=["jobs", s.namespace])
        assert s.jobs() == []


def test_dry_run_prints_what_would_be_made(w):
    with site(w) as s:
        done = w.ok("submit", "--dry-run", "-o", "json", "-N", "2", "--secret", "HOME", "--", "true")
        kinds = [json.loads(line)["kind"] for line in done.out.splitlines()]
        assert kinds == ["Service", "Secret", "Job"], kinds
        assert str(w.home) not in [json.loads(line).get("data", {}).get("HOME") for line in done.out.splitlines()]
        done = w.ok("submit", "--dry-run", "-o", "yaml", "--", "true")
        assert s.jobs() == [] and w.runs() == []
        file = w.write("objects.yaml", done.out, base=w.dir)
        s.cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", file, config=w.env["KUBECONFIG"])


def test_two_users_do_not_touch_each_others_runs(w):
    with site(w) as s:
        run = s.submit("--grace", "1s", "--", "sleep", "600")
        s.cluster.grant("bob", "admin", s.namespace)
        other = World(w.dlrun, "other")
        try:
            other.env["KUBECONFIG"] = str(s.cluster.kubeconfig("bob", other.dir / "config", namespace=s.namespace))
            assert json.loads(other.ok("ps", "-a", "--json").out)["runs"] == []
            assert other.run("cancel", run).rc == 5 and other.run("cancel", "@").rc == 5
        finally:
            other.close()
        assert w.show(run)["state"] in ("queued", "starting", "running")
        s.cancel(run)


def test_restart_is_another_job_with_the_same_code(w):
    with site(w) as s:
        run = s.submit("--", "sh", "-c", 'echo attempt $DLRUN_ATTEMPT; test $DLRUN_ATTEMPT = 2')
        assert s.ended(run)["state"] == "failed"
        w.write("a.py", "edited\n")
        w.ok("restart", run)
        end = s.ended(run)
        assert end["state"] == "succeeded" and len(end["attempts"]) == 2, (end, s.why(run))
        assert sorted(j["metadata"]["name"] for j in s.jobs()) == [run, f"{run}-2"]


def test_ps_asks_once(w):
    with site(w) as s:
        runs = [s.submit("--grace", "1s", "--", "sleep", "600") for _ in range(3)]
        wait_for(lambda: all(j["status"].get("ready") for j in s.jobs()), "their start", 60)

        def asked(*words):
            begin = s.cluster.audit_begin(s.user)
            w.ok("ps", *words)
            found = [(e["verb"], re.sub(r"\?.*", "", e["requestURI"])) for e in s.cluster.audit_whole(s.user, begin)
                     if e["stage"] == "ResponseComplete" and f"/{s.namespace}/" in e["requestURI"]]
            return [(verb, path.partition(f"/{s.namespace}/")[2]) for verb, path in found]

        def polled():
            return list(w.cache.glob("mirror*/*/*/looked"))

        def asked_of_each(*words):
            """ps waits for a second: what a busy cluster answers later is asked again."""
            for file in polled():
                file.unlink()
            found = asked(*words)
            assert found[0] == ("list", "jobs") and len(found) <= 1 + 2 * len(runs), found
            return len([a for a in found if a == ("list", "pods")]) == len([a for a in found if a[1].endswith("/exec")]) == len(runs)

        # One list tells the states; a list of pods and an exec for each run, the values of programs.
        assert asked("-o", "id,state") == [("list", "jobs")]
        wait_for(lambda: asked_of_each() and len(polled()) == len(runs), "the values of all", 120)
        # What was asked a moment ago is not asked again: a moment is 5 s, however long the audit log takes.
        for file in polled():
            os.utime(file)
        assert asked() == [("list", "jobs")]
        # Nor are the values, for a list of parameters.
        wait_for(lambda: asked_of_each("-o", "id,params.lr"), "the parameters of all", 120)
        s.cancel(*runs)


def test_the_code_of_a_run_is_read_from_the_registry(w):
    with site(w) as s:
        first = s.submit("--", "python3", "a.py")
        w.write("a.py", "print('edited')\n")
        second = s.submit("--", "python3", "a.py")
        shutil.rmtree(w.cache)
        assert "M a.py" in w.ok("diff", first, second).out
        w.ok("checkout", first, w.dir / "tree-then")
        assert (w.dir / "tree-then/a.py").read_text() == PROGRAM
        done = w.run("diff", first, second, env={"DLRUN_REGISTRY": "127.0.0.1:1/x"})
        assert done.rc == 0, done


def test_waiting_watches(w):
    with site(w) as s:
        run = s.submit("--", "sleep", "6")
        begin = s.cluster.audit_begin(s.user)
        assert w.run("wait", run, timeout=90).rc == 0
        asked = [e["verb"] for e in s.cluster.audit_whole(s.user, begin)
                 if f"/{s.namespace}/" in e["requestURI"] and e["stage"] in ("ResponseStarted", "ResponseComplete")]
        assert "watch" in asked and asked.count("list") < 40, asked  # asking three times a second would be a hundred


@left_to_all('cluster_projects; the step "example digits"')
def test_digits_are_learnt_in_the_cluster(w):
    example = Path(__file__).resolve().parents[2] / "examples/digits"
    files = {f"digits/{p.name}": p.read_bytes() for p in example.iterdir() if p.is_file()}
    with site(w, files=files) as s:
        s.cluster.volume(s.namespace, "results")
        there = s.cluster.volume(s.namespace, "begin")
        s.configure(results={"pvc": "results"}, volumes=[{"pvc": "begin", "path": "/begin"}])
        # It begins when its first line has come here: then all others are followed as they are written.
        script = 'echo here; until [ -e /begin/now ]; do sleep 0.1; done; exec python3 train.py --epochs 24'
        argv = [w.dlrun, "submit", "-f", "--", "sh", "-c", script]
        with subprocess.Popen(argv, cwd=w.tree / "digits", env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follow:
            first = follow.stdout.readline()
            (there / "now").touch()
            came = [(time.monotonic(), line) for line in follow.stdout]
            assert follow.wait(120) == 0 and first == "here\n", (first, follow.stderr.read())
        epochs = [(at, line) for at, line in came if line.startswith("epoch")]
        assert len(epochs) == 24 and epochs[-1][0] - epochs[0][0] > 0.3, came
        run = w.runs()[0]["id"]
        w.ok("fetch", run, "-o", w.dir / "results")
        assert json.loads((w.dir / "results/result.json").read_text()), list((w.dir / "results").rglob("*"))


if __name__ == "__main__":
    main()
