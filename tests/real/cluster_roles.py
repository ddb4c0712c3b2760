#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users of a real cluster whose Role lacks something: a run that goes on is followed to its end by what may be read, what may not
is said, and what the run cannot do without is asked for before anything is pushed."""

import contextlib
import json
import re
import time

import cluster as clusters
from harness import *  # noqa: F403
from kubesite import KubeSite
from registries import Certs

from apiproxy import ApiProxy

ALL = {"jobs": "create delete get list watch", "pods": "get list watch", "events": "list", "pods/log": "get",
       "pods/exec": "create get", "pods/portforward": "create get", "services": "create delete get patch",
       "secrets": "create delete get patch", "namespaces": "get", "resourcequotas": "list"}


def may(s, verb, resource):
    name, _, sub = resource.partition("/")
    name = {"jobs": "jobs.batch", "jobsets": "jobsets.jobset.x-k8s.io"}.get(name, name)
    words = ["auth", "can-i", verb, name, "-n", s.namespace, *(["--subresource", sub] if sub else [])]
    return s.cluster.kubectl(*words, config=s.w.env["KUBECONFIG"], check=False) == "yes\n"


def allow(s, **without):
    """The user may do ALL but `without`: {resource: verbs}, "*" for all of them; _ stands for /."""
    without = {k.replace("_", "/"): v.split() for k, v in without.items()}
    rights = {(v, r) for r, verbs in ALL.items() for v in verbs.split() if not {v, "*"} & set(without.get(r, []))}
    rules = [{"apiGroups": ["batch" if r == "jobs" else ""], "resources": [r], "verbs": [v for v in verbs.split() if (v, r) in rights]}
             for r, verbs in ALL.items() if any((v, r) in rights for v in verbs.split())]
    s.cluster.apply({"kind": "Role", "metadata": {"name": "some", "namespace": s.namespace}, "rules": rules})
    for verb, resource in sorted(rights ^ getattr(s, "rights", set()))[:1]:
        s.cluster.wait(lambda: may(s, verb, resource) == ((verb, resource) in rights), f"{verb} {resource}")
    s.rights = rights


@contextlib.contextmanager
def limited(w, user="bob", target=None, alone=False, **without):
    cluster = clusters.get()
    with cluster.namespace(alone=alone) as namespace:
        s = KubeSite(w, cluster, namespace, user, cluster.images["python"], None, {})
        w.repo({"a.py": "print('hello', flush=True)\n"})
        s.configure(**({"results": {"emptyDir": True}} if target is None else target))
        s.cluster.apply({"kind": "RoleBinding", "metadata": {"name": "some", "namespace": namespace},
                         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"},
                         "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]})
        allow(s, **without)
        yield s


def follow(w, *words, **options):
    return w.run("submit", "-f", *words, timeout=180, **options)


def ends_with(w, code, says, *words):
    """The run ends with the code as its follower does, and that has said so."""
    got = follow(w, *words)
    assert got.rc == code, got
    for text in says:
        assert text in got.err, (text, got)
    run = w.show()
    assert run["state"] == ("succeeded" if code == 0 else "failed") and run["exit"]["code"] == code, run
    return got


SLOW = "sleep 8; exit {}"


def test_without_logs_the_run_is_followed_to_its_end(w):
    with limited(w, pods_log="*") as s:
        for code in (7, 143):
            got = ends_with(w, code, ["pods/log", "dlrun init --rbac"], "--", "sh", "-c", SLOW.format(code))
            assert got.err.count("goes on, but its output cannot be shown") == 1, got
        ends_with(w, 0, ["goes on, but"], "-N", "2", "--", "sh", "-c", SLOW.format(0))
        run = s.submit("--", "sh", "-c", "sleep 5; exit 9")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        got = w.run("logs", run)
        assert got.rc == 4, got
        check_error_form(got.err, "kube.denied")
        got = w.run("logs", "-f", run, timeout=90)
        assert got.rc == 9 and "cannot be shown" in got.err, got
        w.refused("logs", "-f", run, id="kube.denied", rc=125, says=["pods/log"])
        assert w.run("wait", run).rc == 9


def test_without_pods_the_job_tells_what_it_can(w):
    with limited(w, pods="*") as s:
        got = ends_with(w, 0, ["goes on, but", "pods", "running"], "--", "sh", "-c", SLOW.format(0))
        assert "queued" not in w.show()["state"], got
        got = follow(w, "--", "sh", "-c", SLOW.format(7))
        assert got.rc == 125 and w.show()["state"] == "failed", got
        assert "may not be listed" in got.err and "gone" not in got.err, got
        run = s.submit("--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        other = s.submit("--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: [r["state"] for r in json.loads(w.ok("ps", "--json").out)["runs"][:2]] == ["running"] * 2, "both", 60)
        w.ok("cancel", run, other)
        assert s.ended(run)["state"] == "cancelled"


def test_without_watch_it_asks_again(w):
    with limited(w, pods="watch", jobs="watch") as s:
        got = ends_with(w, 7, [], "--", "sh", "-c", "echo one; sleep 3; echo two; exit 7")
        assert got.out == "one\ntwo\n" and "cannot be" not in got.err, got
        got = ends_with(w, 0, [], "-N", "2", "--", "sh", "-c", "sleep 2; echo rank $NODE_RANK")
        assert sorted(re.findall(r"rank \d$", got.out, re.M)) == ["rank 0", "rank 1"], got
        run = s.submit("--", "sh", "-c", SLOW.format(5))
        assert w.run("wait", run, timeout=90).rc == 5
        mark = s.cluster.audit_begin(s.user)
        ends_with(w, 0, [], "--", "sleep", "6")
        lists = [e for e in s.cluster.audit_whole(s.user, mark) if e["stage"] == "ResponseComplete" and e.get("objectRef") and
                 e["verb"] == "list" and e["objectRef"]["resource"] in ("pods", "jobs") and e["objectRef"]["namespace"] == s.namespace]
        assert len(lists) < 60, len(lists)


def test_without_events_it_says_less(w):
    with limited(w, events="*") as s:
        ends_with(w, 7, [], "--", "sh", "-c", SLOW.format(7))
        waits = s.submit("--memory", "900Gi", "--", "true")
        s.said_within(waits, "memory")
        s.cancel(waits)


def test_without_exec_the_results_stay_and_the_code_is_the_programs(w):
    with limited(w, target={}, pods_exec="*") as s:
        got = ends_with(w, 0, ["cannot be taken", "pods/exec"], "--", "sh", "-c", "echo x > $DLRUN_OUTPUT_DIR/f")
        assert "Role" in got.err, got
        run = s.submit("--", "sh", "-c", "echo x > $DLRUN_OUTPUT_DIR/f; exit 3")
        assert w.run("wait", run, timeout=90).rc == 3
        got = w.run("fetch", run)
        assert got.rc == 4, got
        check_error_form(got.err, "kube.denied")


def test_without_portforward_the_ports_are_missed_and_the_run_followed(w):
    with limited(w, pods_portforward="*"):
        got = ends_with(w, 7, ["6006"], "--port", "6006", "--", "sh", "-c", "echo here; sleep 4; exit 7")
        assert got.out == "here\n", got


def test_jobs_are_got_where_they_may_not_be_listed(w):
    with limited(w, jobs="list watch") as s:
        ends_with(w, 7, [], "--", "sh", "-c", "echo one; sleep 3; exit 7")
        runs = [s.submit("--grace", "1s", "--", "sh", "-c", f"sleep {t}") for t in (600, 601)]
        wait_for(lambda: all(w.show(r)["state"] == "running" for r in runs), "their start", 60)
        by_id = {r["id"]: r["state"] for r in json.loads(w.ok("ps", "--json").out)["runs"]}
        assert [by_id[r] for r in runs] == ["running", "running"], by_id
        assert s.why(runs[0])["state"] == "running"
        waits = s.submit("--memory", "900Gi", "--", "true")
        s.said_within(waits, "memory")
        s.cancel(*runs, waits)
        gone = s.submit("--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: w.show(gone)["state"] == "running", "its start", 60)
        s.cluster.delete("Job", gone, s.namespace)
        assert s.ended(gone)["state"] == "lost"
        w.ok("rm", runs[0])
        foreign = s.submit("--grace", "1s", "--", "sleep", "600")
        other = {"XDG_STATE_HOME": str(w.dir / "other-state")}
        wait_for(lambda: json.loads(w.ok("show", "--json", f"k:{foreign}", env=other).out)["state"] == "running", "its start", 60)
        w.refused("show", "k:tree-zzzzz", id="run.not_found", rc=5, env=other)
        s.cancel(foreign)


def reviews(s, mark):
    """How often the user asked what it may do: {resource: times}."""
    counts = {}
    for event in s.cluster.audit_whole(s.user, mark):
        about = event.get("objectRef") or {}
        if event["stage"] == "ResponseComplete" and about.get("resource", "").startswith("selfsubject"):
            counts[about["resource"]] = counts.get(about["resource"], 0) + 1
    return counts


def test_what_a_run_cannot_do_without_is_refused_by_name(w):
    cases = [({"jobs": "create"}, [], "you may not create jobs in"), ({"jobs": "delete"}, [], "you may not delete jobs in"),
             ({"jobs": "get list watch"}, [], "you may not get or list jobs in"),
             ({"jobs": "*"}, [], "you may not create jobs, get or list jobs, delete jobs in"),
             ({"services": "create"}, ["-N", "2"], "you may not create services in"),
             ({"secrets": "create"}, ["--secret", "HOME"], "you may not create secrets in"),
             ({"secrets": "*", "services": "*"}, ["-N", "2", "--secret", "HOME"], "you may not create services, create secrets in")]
    with limited(w) as s:
        for without, words, says in cases:
            allow(s, **without)
            w.refused("submit", "-d", *words, "--", "true", id="kube.denied", rc=4, says=[says, s.namespace, "dlrun init --rbac"])
            w.refused("submit", "-f", *words, "--", "true", id="kube.denied", rc=4, says=[says])
        assert not s.jobs() and not s.cluster.get("Service", namespace=s.namespace) and not s.cluster.get("Secret", namespace=s.namespace)
        allow(s, jobs="delete")
        wait_for(lambda: "may not submit" in w.run("targets").out, "targets that know it", 60)
        allow(s, services="*", secrets="*")
        wait_for(lambda: "may submit" in w.run("targets").out, "targets that know it", 60)
        assert s.ended(s.submit("--", "true"))["state"] == "succeeded", "neither is needed"


def test_what_costs_comfort_is_a_warning(w):
    cases = [({"pods_log": "*", "events": "*"}, [], ["get pods/log, list events", "its output cannot be shown"]),
             ({"pods": "*"}, [], ["list pods, watch pods", "exit code"]),
             ({"jobs": "list watch"}, [], ["watch jobs"]),
             ({"pods_portforward": "*"}, ["--port", "6006"], ["get or create pods/portforward"]),
             ({"secrets": "patch delete"}, ["--secret", "HOME"], ["patch secrets, delete secrets", "its Secret stays"]),
             ({"services": "patch"}, ["-N", "2"], ["patch services"])]
    with limited(w) as s:
        for without, words, says in cases:
            allow(s, **without)
            run = s.submit(*words, "--", "true")
            warned = [line for line in s.said.splitlines() if "you may not" in line]
            assert len(warned) == 1 and all(t in warned[0] for t in [*says, s.namespace, "dlrun init --rbac"]), s.said
            s.ended(run)
        allow(s, pods_portforward="*", secrets="*", services="*")
        s.submit("--", "true")
        assert "you may not" not in s.said, s.said


def test_one_question_for_all_rights(w):
    with limited(w, alone=True) as s:
        mark = s.cluster.audit_begin(s.user)
        s.submit("-N", "2", "--secret", "HOME", "--port", "80", "--", "true")
        assert "you may not" not in s.said, s.said
        assert reviews(s, mark) == {"selfsubjectreviews": 1, "selfsubjectrulesreviews": 1}, reviews(s, mark)
        allow(s, events="*")
        mark = s.cluster.audit_begin(s.user)
        s.submit("--", "true")
        assert reviews(s, mark) == {"selfsubjectreviews": 1, "selfsubjectrulesreviews": 1, "selfsubjectaccessreviews": 1}, reviews(s, mark)


def test_connections_to_pods_need_create_where_the_server_is_new(w):
    """From Kubernetes 1.35 on. The server here is older, and the proxy lets it seem newer."""
    certs = Certs(w.dir / "certs")
    with limited(w, pods_exec="create", pods_portforward="create") as s, ApiProxy(s.cluster.address, s.cluster.ca, *certs.pair()) as proxy:
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig(s.user, w.dir / "proxied", server=proxy.address, ca=False, namespace=s.namespace,
                                                       cluster={"certificate-authority": str(certs.ca)}))
        for version, is_enough in (("v1.34.9", True), ("v1.35.1+k3s1", False), ("v1.35.0", False), ("v1.9.0", True)):
            proxy.fault = lambda method, path, body: {"gitVersion": version} if path == "/version" else None
            may = json.loads(w.ok("targets", "k", "--json").out)["targets"][0]["may"]
            assert (may["exec"], may["forward"]) == (is_enough, is_enough) and may["logs"], (version, may)
            run = s.submit("--port", "8080", "--", "true")
            note = "you may not create pods/exec, create pods/portforward in namespace"
            assert (note in s.said) != is_enough, (version, s.said)
            s.cancel(run, ends=("cancelled", "succeeded"))
        # Who has both is not asked again.
        allow(s)
        proxy.seen.clear()
        s.submit("--", "true")
        assert not [path for _, path in proxy.seen if path == "/version"], proxy.seen


if __name__ == "__main__":
    main()
