#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several nodes in a real cluster that has JobSet: it starts all nodes anew, whether anybody watches or not.

JobSet itself, its controller and its webhooks, runs beside the cluster, and only for these tests."""

import atexit
import base64
import signal
import subprocess
import threading

import cluster as clusters
from cluster_faults import First, all_of, own, proxied
from cluster_kill import ARRIVAL_S, ENDED, calls_of, traced
from cluster_setup import asked, bare, grant, refused
from gotools import go_tool
from harness import *  # noqa: F403
from kubesite import site
from registries import free_port, listens

CRD = "jobsets.jobset.x-k8s.io"
OURS = "dlrun-tests-jobset"
# Calls behind the row that are tried: how many come before it differs by some from run to run.
BEHIND_ROW = 12
POINTS = 12
# Rank 1 fails until the wanted attempt; rank 0 waits for its end.
FAILS_UNTIL = 'echo rank $NODE_RANK attempt $DLRUN_ATTEMPT; test $DLRUN_ATTEMPT -ge {} && exit 0; test $NODE_RANK = 0 && exec sleep 600; exit 9'
_lock = threading.Lock()
_process = []


def words(until, retries=2):
    return ["-N", "2", "--retries", str(retries), "--grace", "1s", "--", "sh", "-c", FAILS_UNTIL.format(until)]


def webhooks(port, ca):
    """What JobSet's own manifests say, for a server beside the cluster."""
    def one(name, path, *operations):
        return {"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}-jobset-x-k8s-io-v1alpha2-jobset", "caBundle": ca},
                "rules": [{"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["v1alpha2"], "operations": operations, "resources": ["jobsets"]}]}
    return [{"kind": "MutatingWebhookConfiguration", "metadata": {"name": OURS}, "webhooks": [one("mjobset.kb.io", "mutate", "CREATE")]},
            {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": OURS},
             "webhooks": [one("vjobset.kb.io", "validate", "CREATE", "UPDATE")]}]


def uninstall(cluster):
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ClusterRole"):
        cluster.delete(kind, OURS)
    cluster.delete("CustomResourceDefinition", CRD)
    _process[0].terminate()
    _process[0].wait()


def collect(cluster):
    """The garbage collector looks for new kinds of objects every half a minute; until then it removes nothing that they own."""
    with cluster.namespace() as namespace:
        cluster.apply({"kind": "JobSet", "metadata": {"name": "first"}, "spec": {"suspend": True, "replicatedJobs": []}}, namespace=namespace)
        cluster.delete("JobSet", "first", namespace, propagationPolicy="Foreground")
        cluster.wait(lambda: not cluster.get("JobSet", namespace=namespace), "a garbage collector that knows JobSets", 90)


def install(cluster):
    program = go_tool("jobset")
    there, port = cluster.dir / "jobset", free_port()
    there.mkdir(exist_ok=True)
    for mine, theirs in (("tls.crt", "server.pem"), ("tls.key", "server.key")):
        (there / mine).write_bytes((cluster.dir / "certs" / theirs).read_bytes())
    (there / "config.yaml").write_text(json.dumps({
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration", "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False}, "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(there)},
        "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}}))
    cluster.kubectl("apply", "--server-side", "-f", f"{program}.yaml")
    cluster.wait(lambda: cluster.get("JobSet") == [], "the API of JobSet")
    with open(there / "log", "wb") as log:
        _process.append(subprocess.Popen([program, f"--config={there}/config.yaml", f"--kubeconfig={cluster.dir}/parts.kubeconfig"],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    atexit.register(uninstall, cluster)
    wait_for(lambda: listens(port) or _process[0].poll() is not None, "the webhooks of JobSet")
    assert _process[0].poll() is None, (there / "log").read_text()[-2000:]
    cluster.apply(*webhooks(port, base64.b64encode((cluster.dir / "certs/ca.pem").read_bytes()).decode()))
    # As its own manifests have it: who may change a namespace's Jobs may change its JobSets.
    cluster.apply({"kind": "ClusterRole", "metadata": {"name": OURS, "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}},
                   "rules": [{"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["*"]}]})
    cluster.wait(lambda: any("jobset.x-k8s.io" in r["apiGroups"] for r in cluster.get("ClusterRole", "admin")["rules"]), "its rights")
    collect(cluster)


def jobset_site(w, a_site=site, **more):
    with _lock:
        if not _process:
            install(clusters.get())
    return a_site(w, **more)


def jobsets(s):
    return s.cluster.get("JobSet", namespace=s.namespace)


def test_it_begins_again_with_nobody_there(w):
    with jobset_site(w) as s:
        run = s.submit("--secret", "HOME", *words(until=2))
        assert "the cluster restarts all 2 nodes together" in s.said and "only while dlrun" not in s.said, s.said
        made, = jobsets(s)
        assert made["metadata"]["name"] == run
        s.cluster.wait(lambda: any(c["type"] == "Completed" and c["status"] == "True" for c in jobsets(s)[0]["status"]["conditions"]),
                       "its end", 120)
        assert jobsets(s)[0]["status"]["restarts"] == 1
        owners = s.cluster.get("Secret", f"{run}-env", s.namespace)["metadata"]["ownerReferences"]
        assert [(o["kind"], o["uid"]) for o in owners] == [("JobSet", made["metadata"]["uid"])]
        assert w.run("wait", run).rc == 0
        end, logs = w.show(run), w.ok("logs", run)
        assert end["state"] == "succeeded" and len(end["attempts"]) == 1 and [r["attempt"] for r in end["ranks"]] == [2, 2], end
        for rank in (0, 1):
            assert f"rank {rank} attempt 2" in logs.out and f"rank {rank} attempt 1" not in logs.out, logs
        assert "restarted all nodes 1 time" in logs.err, logs.err
        assert end["attempts"][0]["exit"]["code"] == 0 and f"/jobset/{run}" in end["attempts"][0]["handle"], end
        assert [r["state"] for r in w.runs()] == ["succeeded"]


# Rank 1 ends when the test has seen a line of each rank.
SEEN = 'echo rank $NODE_RANK attempt $DLRUN_ATTEMPT; test $NODE_RANK = 0 -a $DLRUN_ATTEMPT -lt 3 && exec sleep 600; ' \
    'until [ -e /seen/$DLRUN_ATTEMPT ]; do sleep 0.1; done; test $DLRUN_ATTEMPT -ge 3 || exit 9'


def test_who_follows_sees_all_attempts(w):
    with jobset_site(w) as s:
        there = s.cluster.volume(s.namespace, "seen")
        s.configure(volumes=[{"pvc": "seen", "path": "/seen"}])
        out = w.dir / "out"
        argv = [w.dlrun, "submit", "-f", "-N", "2", "--retries", "2", "--grace", "1s", "--", "sh", "-c", SEEN]
        with open(out, "wb") as file:
            process = subprocess.Popen(argv, cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True)
        try:
            for attempt in (1, 2, 3):
                lines = [f"rank {rank} attempt {attempt}\n" for rank in (0, 1)]
                wait_for(lambda: all(line in out.read_text() for line in lines), f"lines of attempt {attempt}", 120)
                (there / str(attempt)).touch()
            err = process.communicate(timeout=120)[1]
        finally:
            process.kill()
        done = Result(process.returncode, out.read_bytes(), err.encode())
        assert done.rc == 0, done
        for attempt in (1, 2, 3):
            for rank in (0, 1):
                assert done.out.count(f"rank {rank} attempt {attempt}\n") == 1, done
        kept = w.ok("logs", w.show()["id"]).out
        assert all(f"rank 1 attempt {attempt}" in kept for attempt in (1, 2, 3)), kept
        assert len(w.show()["attempts"]) == 1 and len(jobsets(s)) == 1


@left_to_all("test_it_begins_again_with_nobody_there; cluster_gang: test_who_waits_starts_them_anew_until_none_are_left")
def test_retries_are_used_up(w):
    with jobset_site(w) as s:
        run = s.submit(*words(until=9, retries=1))
        done = w.run("wait", run, timeout=180)
        assert done.rc == 9, done
        end = w.show(run)
        assert end["state"] == "failed" and end["exit"]["code"] == 9 and len(end["attempts"]) == 1, end
        assert "first rank to fail: 1 of 2" in json.dumps(s.why(run)), s.why(run)
        assert [r["attempt"] for r in end["ranks"]] == [2, 2], end["ranks"]
        assert "rank 1 attempt 2" in w.ok("logs", run).out
        w.ok("restart", run)
        assert sorted(j["metadata"]["name"] for j in jobsets(s)) == [run, f"{run}-2"]
        assert w.run("wait", run, timeout=180).rc == 9 and len(w.show(run)["attempts"]) == 2


def test_a_cancel_leaves_nothing(w):
    with jobset_site(w) as s:
        run = s.submit("--secret", "HOME", "-N", "2", "--retries", "3", "--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: [r["state"] for r in w.show(run)["ranks"]] == ["running", "running"], "its start", 90)
        assert w.ok("exec", run, "--", "sh", "-c", "echo $NODE_RANK of $NNODES").out == "0 of 2\n"
        w.ok("fetch", run, "-o", "here")
        s.cancel(run)
        assert w.run("wait", run, timeout=60).rc == 143
        assert w.show(run)["state"] == "cancelled"
        left = lambda: [o for k in ("JobSet", "Job", "Pod", "Service", "Secret") for o in s.cluster.get(k, namespace=s.namespace)]
        s.cluster.wait(lambda: not left(), "the end of all objects")


@left_to_all("cluster_gang: test_a_time_limit_is_not_repeated")
def test_a_time_limit_is_not_repeated(w):
    with jobset_site(w) as s:
        run = s.submit("-N", "2", "--retries", "3", "--grace", "1s", "--timeout", "3s", "--", "sleep", "600")
        assert w.run("wait", run, timeout=120).rc == 124
        assert jobsets(s)[0]["status"].get("restarts", 0) == 0


def test_a_disruption_is_not_counted(w):
    with jobset_site(w) as s:
        run = s.submit("-N", "2", "--retries", "1", "--grace", "1s", "--", "sh", "-c",
                       "case $DLRUN_ATTEMPT in 1) exec sleep 600;; 2) exit 9;; esac")
        pods = s.cluster.wait(lambda: [p["metadata"]["name"] for p in s.cluster.get("Pod", namespace=s.namespace)
                                       if p["status"]["phase"] == "Running"], "its start", 90)
        s.cluster.api("POST", clusters.path_of("Pod", f"{pods[0]}/eviction", s.namespace), {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pods[0], "namespace": s.namespace}})
        assert w.run("wait", run, timeout=180).rc == 0
        status = jobsets(s)[0]["status"]
        assert (status["restarts"], status["restartsCountTowardsMax"]) == (2, 1), status


def test_ranks_find_each_other_again(w):
    program = ('import os, socket, time\nrank = os.environ["NODE_RANK"]\nat = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])\n'
               'if rank == "0":\n    with socket.create_server(("", at[1])) as server:\n        server.accept()[0].close()\n'
               'else:\n    for _ in range(300):\n        try:\n            socket.create_connection(at, 2).close()\n            break\n'
               '        except OSError:\n            time.sleep(0.1)\n    else:\n        raise SystemExit("nobody at %s:%d" % at)\n'
               'print("rank", rank, "met", at[0], "in attempt", os.environ["DLRUN_ATTEMPT"], flush=True)\n'
               'raise SystemExit(0 if os.environ["DLRUN_ATTEMPT"] == "2" else 7)\n')
    with jobset_site(w, files={"meet.py": program}) as s:
        run = s.submit("-N", "2", "--retries", "1", "--", "python3", "meet.py")
        assert w.run("wait", run, timeout=180).rc == 0, w.ok("logs", run).out
        out = w.ok("logs", run).out
        for rank in (0, 1):
            assert f"rank {rank} met {run}-w-0-0.{run} in attempt 2" in out, out


def queue(s):
    """What says that Kueue is there, which is not: nothing admits it."""
    names = {"kind": "LocalQueue", "plural": "localqueues", "singular": "localqueue"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {"kind": "CustomResourceDefinition", "metadata": {"name": "localqueues.kueue.x-k8s.io", "annotations": {
               "api-approved.kubernetes.io": "unapproved, of the tests"}},
           "spec": {"group": "kueue.x-k8s.io", "scope": "Namespaced", "names": names,
                    "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}]}}
    s.cluster.apply(crd)
    atexit.register(s.cluster.delete, "CustomResourceDefinition", crd["metadata"]["name"])
    s.cluster.wait(lambda: s.cluster.apply({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "gpu"}},
                                           namespace=s.namespace), "a queue")


def test_a_queue_holds_it_back(w):
    with jobset_site(w, queue="gpu") as s:
        queue(s)
        run = s.submit(*words(until=1))
        assert s.said_within(run, "gpu")["state"] == "queued"
        assert jobsets(s)[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
        s.cluster.api("PATCH", clusters.path_of("JobSet", run, s.namespace), {"spec": {"suspend": False}}, kind="application/merge-patch+json")
        assert w.run("wait", run, timeout=120).rc == 0


def test_without_the_right_it_is_a_job(w):
    with jobset_site(w, role="edit") as s:
        run = s.submit(*words(until=1))
        assert "you may not create jobsets" in s.said and "only while dlrun follows" in s.said, s.said
        assert [j["metadata"]["name"] for j in s.jobs()] == [run] and not jobsets(s)
        assert w.run("wait", run, timeout=120).rc == 0


def test_the_role_that_dlrun_prints_is_enough(w):
    with jobset_site(w, bare) as s:
        grant(w, s, "secrets")
        mark = s.cluster.audit_begin(s.user)
        run = s.submit("--secret", "HOME", *words(until=2))
        assert w.run("wait", run, timeout=180).rc == 0 and "rank 1 attempt 2" in w.ok("logs", run).out
        w.ok("rm", run)
        s.cluster.wait(lambda: not jobsets(s), "its end")
        assert not refused(s, mark), refused(s, mark)
        verbs = {verb for verb, _, name in asked(s, mark) if name == "jobsets"}
        assert verbs | {"get"} == {"create", "delete", "get", "list", "watch"}, verbs


def test_others_stay_jobs(w):
    with jobset_site(w) as s:
        plain = s.submit("-N", "2", "--", "true")
        alone = s.submit("--retries", "2", "--", "true")
        assert sorted(j["metadata"]["name"] for j in s.jobs()) == sorted([plain, alone]) and not jobsets(s)


def test_it_is_shown_before_it_is_made(w):
    with jobset_site(w) as s:
        done = w.ok("submit", "--dry-run", "-o", "yaml", *words(until=1))
        assert "kind: JobSet" in done.out and "not checked" not in done.err, done
        assert not jobsets(s)


def test_another_machine_adopts_it(w):
    with jobset_site(w) as s:
        run = s.submit(*words(until=2))
        other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
        waited = w.run("wait", f"k:{run}", env=other, timeout=180)
        assert waited.rc == 0, waited
        seen = json.loads(w.ok("show", "--json", f"k:{run}", env=other).out)
        assert f"/jobset/{run}" in seen["attempts"][0]["handle"] and seen["command"][0] == "sh", seen


def test_one_without_a_job_is_adopted(w):
    """As before its first start and between two of them: the controller is held, and its Job removed."""
    with jobset_site(w) as s:
        run = s.submit(*words(until=1))
        w.ok("wait", run, timeout=120)
        _process[0].send_signal(signal.SIGSTOP)
        try:
            s.cluster.delete("Job", f"{run}-w-0", s.namespace)
            wait_for(lambda: not s.cluster.get("Job", namespace=s.namespace), "no Job", ARRIVAL_S)
            other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
            seen = json.loads(w.ok("show", "--json", f"k:{run}", env=other).out)
            assert f"/jobset/{run}" in seen["attempts"][0]["handle"] and seen["command"][0] == "sh", seen
        finally:
            _process[0].send_signal(signal.SIGCONT)


class FirstCreate(First):
    """The question whether JobSets may be made is none."""

    def __call__(self, method, path, body):
        return None if "dryRun" in path else super().__call__(method, path, body)


def test_answers_that_are_lost_make_no_second_one(w):
    with jobset_site(w, proxied) as s:
        cases = {"lost twice": [FirstCreate("POST", "jobsets", "swallow", "swallow")],
                 "lost, then 409 and the look is lost, too": [FirstCreate("POST", "jobsets", "swallow"), First("GET", "jobsets/", "swallow", "drop")],
                 "lost, then refused": [FirstCreate("POST", "jobsets", "swallow", (403, {}, "made to fail"))],
                 "adoption lost": [First("PATCH", "secrets/", "swallow", "drop")]}
        runs = []
        for what, faults in cases.items():
            s.proxy.fault = all_of(*faults)
            runs.append(s.submit("--secret", "HOME", "-N", "2", "--retries", "1", "--", "true"))
            assert all(f.seen for f in faults), f"{what}: it did not happen"
        s.proxy.fault = lambda *_: None
        assert sorted(j["metadata"]["name"] for j in jobsets(s)) == sorted(runs)
        w.ok("wait", *runs, timeout=120)
        w.ok("ps")
        owners = {o["metadata"]["name"]: [r["kind"] for r in o["metadata"].get("ownerReferences", [])] for o in own(s, "Secret")}
        assert owners == {f"{run}-env": ["JobSet"] for run in runs}, owners


def test_sigkill_between_the_record_and_the_jobset(w):
    needs("strace")
    submit = ("submit", "-d", "--secret", "HOME", "-N", "2", "--retries", "1", "--", "true")
    with jobset_site(w) as s:
        calls, lock, row = calls_of(w, submit)
        for i in sorted({*range(row + 1, row + 1 + BEHIND_ROW, 2), *range(lock, len(calls), (len(calls) - lock) // POINTS)}):
            traced(w, "-e", f"inject={calls[i][0]}:signal=SIGKILL:when={calls[i][1]}", name=f"p{i}", submit=submit)
        wait_for(lambda: all(r["state"] in ENDED for r in w.runs()), "the end of all", ARRIVAL_S + 150)
        states = {r["id"]: r["state"] for r in w.runs()}
        assert sorted(j["metadata"]["name"] for j in jobsets(s)) == sorted(r for r, state in states.items() if state == "succeeded"), states
        assert {state for run, state in states.items() if run[0] == "p"} == {"succeeded", "failed"}, states
        for secret in s.cluster.get("Secret", namespace=s.namespace):
            assert [o["kind"] for o in secret["metadata"].get("ownerReferences", [])] == ["JobSet"], secret["metadata"]


if __name__ == "__main__":
    main()
