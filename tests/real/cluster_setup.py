#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Setting up in a real cluster: the Roles that init prints, what works with each of them, what init finds and writes, and what
targets and doctor say of clusters that answer, refuse and hang."""

import contextlib
import json
import re
import time

import cluster as clusters
from harness import *  # noqa: F403
from init import Terminal
from kubesite import KubeSite, site

RIGHTS = 7
CLUSTER_WIDE = ("nodes", "priorityclasses", "pods")


@contextlib.contextmanager
def bare(w, user="bob", **more):
    """A site whose user may do nothing yet."""
    cluster = clusters.get()
    with cluster.namespace() as namespace:
        s = KubeSite(w, cluster, namespace, user, cluster.images["python"], None, more)
        w.repo({"a.py": "print('hello', flush=True)\n"})
        s.configure(results={"emptyDir": True})
        yield s


def printed_role(w, s, *words):
    """What init prints; who it is for the cluster has 3 s to say."""
    def known():
        text = w.ok("init", "--rbac", *words).out
        return f"name: {s.user}\n" in text and text
    return wait_for(known, "a Role for the user", 60)


def grant(w, s, tier, *words):
    """What init prints is applied as it is, and is all that the user has."""
    for role in s.cluster.get("Role", namespace=s.namespace):
        s.cluster.delete("RoleBinding", f"{role['metadata']['name']}-{s.user}", s.namespace)
    file = w.write("role.yaml", printed_role(w, s, tier, *words), base=w.dir)
    s.cluster.kubectl("apply", "-f", file, config=s.cluster.kubeconfig("admin", w.dir / "admin", "cert"))
    may = {"submit": ("create", "jobs.batch"), "logs": ("get", "pods", "--subresource=log"), "exec": ("create", "pods", "--subresource=exec"),
           "secrets": ("create", "secrets")}[tier]
    s.cluster.wait(lambda: s.cluster.kubectl("auth", "can-i", *may, "-n", s.namespace, config=w.env["KUBECONFIG"], check=False) == "yes\n",
                   f"the Role {tier}")


def asked(s, mark):
    """{(verb, group, resource/subresource): codes} of what the user asked of the API server, reviews of itself left out."""
    found = {}
    for event in s.cluster.audit_whole(s.user, mark):
        about = event.get("objectRef")
        if not about or event["stage"] != "ResponseComplete" or about["resource"].startswith("selfsubject"):
            continue
        if about.get("namespace", s.namespace) != s.namespace:
            continue  # of another test at the same time
        name = about["resource"] + (f"/{about['subresource']}" if about.get("subresource") else "")
        found.setdefault((event["verb"], about.get("apiGroup", ""), name), set()).add(event["responseStatus"]["code"])
    return found


def refused(s, mark):
    """What was asked for in vain, but for what Roles of a namespace cannot give."""
    return sorted(k for k, codes in asked(s, mark).items() if 403 in codes and k[2] not in CLUSTER_WIDE)


def has(w, command):
    return w.run(command, "--help").rc == 0


def test_submit_alone(w):
    with bare(w) as s:
        w.refused("submit", "-d", "--", "true", id="kube.denied", rc=4, says=["jobs", s.namespace, "dlrun init --rbac"])
        grant(w, s, "submit")
        mark = s.cluster.audit_begin(s.user)
        run = s.submit("--", "python3", "a.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        bad = s.submit("--", "sh", "-c", "exit 7")
        assert s.ended(bad)["exit"]["code"] == 7
        assert "7" in json.dumps(s.why(bad))
        waits = s.submit("--memory", "900Gi", "--", "true")
        s.said_within(waits, "memory")
        slow = s.submit("--grace", "1s", "--", "sleep", "600")
        wait_for(lambda: w.show(slow)["state"] == "running", "its start", 60)
        w.ok("ps")
        w.run("cancel", slow, waits)
        s.ended(slow)
        for denied in (("logs", slow), ("logs", run)):
            got = w.run(*denied)
            if got.rc:
                check_error_form(got.err, "kube.denied")
                assert "dlrun init --rbac" in got.err, got
        w.ok("restart", bad)
        s.ended(bad)
        w.ok("rm", run)
        # Logs, and results that lie in a pod, are for the tiers above.
        lacks = [k for k in refused(s, mark) if k[2] not in ("pods/log", "pods/exec")]
        assert not lacks, f"the tier submit lacks {lacks}"


def test_logs(w):
    with bare(w) as s:
        grant(w, s, "submit")
        run = s.submit("--grace", "1s", "--", "sh", "-c", "echo hello; sleep 600")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        got = w.run("logs", run)
        assert got.rc == 4, got
        check_error_form(got.err, "kube.denied")
        assert "dlrun init --rbac" in got.err, got
        grant(w, s, "logs")
        mark = s.cluster.audit_begin(s.user)
        s.cluster.wait(lambda: w.run("logs", run).out == "hello\n", "the log")
        s.cancel(run)
        followed = w.ok("submit", "-f", "--", "python3", "a.py", timeout=120)
        assert followed.out == "hello\n", followed
        lacks = [k for k in refused(s, mark) if k[2] != "pods/exec"]
        assert not lacks, lacks


def test_exec_and_secrets(w):
    with bare(w) as s:
        grant(w, s, "logs")
        run = s.submit("--grace", "1s", "--", "sh", "-c", "echo kept > $DLRUN_OUTPUT_DIR/f; sleep 600")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        w.refused("submit", "-d", "--secret", "HOME", "--", "true", id="kube.denied", rc=4, says=["secrets", "dlrun init --rbac"])
        if has(w, "exec"):
            got = w.run("exec", run, "--", "echo", "hi")
            assert got.rc != 0 and "kube.denied" in got.err and "dlrun init --rbac" in got.err, got
        grant(w, s, "exec")
        mark = s.cluster.audit_begin(s.user)
        if has(w, "exec"):
            assert w.ok("exec", run, "--", "echo", "hi").out == "hi\n"
        fetched = w.run("fetch", run, "-o", w.dir / "got")
        if "target.unsupported" not in fetched.err:
            assert fetched.rc == 0 and (w.dir / "got/f").read_text() == "kept\n", fetched
        assert not refused(s, mark), refused(s, mark)
        s.cancel(run)
        grant(w, s, "secrets")
        mark = s.cluster.audit_begin(s.user)
        run = s.submit("--secret", "CANARY", "--", "sh", "-c", "test ${#CANARY} = 5", env={"CANARY": "tweet"})
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        pair = s.submit("-N", "2", "--secret", "HOME", "--", "true")
        s.ended(pair)
        w.ok("cancel", pair)
        assert not refused(s, mark), refused(s, mark)


def test_without_events_it_says_less(w):
    """Whoever gives less than the smallest tier: runs go, and nothing fails for it."""
    with bare(w) as s:
        grant(w, s, "submit")
        role = s.cluster.get("Role", "dlrun-submit", s.namespace)
        role["rules"] = [r for r in role["rules"] if not set(r["resources"]) & {"events", "resourcequotas", "namespaces"}]
        s.cluster.api("PUT", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{s.namespace}/roles/dlrun-submit", role)
        s.cluster.wait(lambda: s.cluster.kubectl("auth", "can-i", "list", "events", "-n", s.namespace, config=w.env["KUBECONFIG"],
                                                 check=False) == "no\n", "the Role without events")
        run = s.submit("--", "python3", "a.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        waits = s.submit("--memory", "900Gi", "--", "true")
        w.ok("why", waits)
        s.cancel(waits)
        found = rows(w, "cluster-rights")[0]
        assert "may not" in found["found"] and "read events" in found["found"], found


def test_the_rules_are_no_more_than_what_is_asked(w):
    """All that the smallest Role allows is asked for by something that dlrun does, but what needs parts that are not here."""
    elsewhere = re.compile(r"jobsets|localqueues|workloads|persistentvolumeclaims|serviceaccounts|priorityclasses")
    with bare(w) as s:
        text = printed_role(w, s, "secrets", "--cluster-role")
        s.cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", w.write("all.yaml", text, base=w.dir),
                          config=s.cluster.kubeconfig("admin", w.dir / "admin", "cert"))
        grant(w, s, "secrets")
        mark = s.cluster.audit_begin(s.user)
        run = s.submit("--secret", "HOME", "-N", "2", "--", "sh", "-c", "echo x; sleep 600")
        wait_for(lambda: w.show(run)["state"] == "running", "its start", 60)
        w.ok("ps"), w.ok("why", run), w.run("logs", run)
        if has(w, "exec"):
            w.run("exec", run, "--", "true")
        w.run("fetch", run, "-o", w.dir / "got")
        s.cancel(run)
        used = asked(s, mark)
        assert not refused(s, mark), refused(s, mark)
        kinds = {k[2] for k in used}
        rules = s.cluster.get("Role", "dlrun-secrets", s.namespace)["rules"]
        allowed = {(v, r["apiGroups"][0], r["resources"][0]) for r in rules for v in r["verbs"]}
        unused = sorted(k for k in allowed if k not in used and not elsewhere.search(k[2]))
        print(f"allowed and not asked for: {' '.join(f'{v}:{r}' for v, _, r in unused)}")
        assert {"jobs", "pods", "services", "secrets", "nodes", "namespaces", "resourcequotas"} <= kinds, kinds


# --- init


TRIES = 5


def is_checked(said):
    """The cluster has answered within init's 3 s, and told all of the rights."""
    told = sum(len(rights.split(", ")) for rights in re.findall(r"\bmay (?:not )?(.*)", said))
    return "not checked" not in said and told >= RIGHTS


def init_checked(w, *words):
    """What init says when the cluster has answered in time; it is asked no more than five times."""
    for _ in range(TRIES):
        (w.tree / "dlrun.yaml").unlink(missing_ok=True)
        said = w.ok("init", *words).err
        if is_checked(said):
            break
    return said


def test_init_writes_what_runs(w):
    with site(w) as s:
        w.write("Dockerfile", f"FROM {s.base}\n")
        w.write("main.py", "print('from init')\n")
        said = init_checked(w, "--target", "kube", "--registry", f"{s.cluster.registry}/{s.namespace}/code")
        assert "may start runs, read logs, run commands in pods, forward ports, give runs secrets, read events" in said, said
        assert "may not list nodes" in said and s.namespace in said and "v1.34" in said, said
        run = s.submit("--", "python3", "main.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        assert s.output(run) == "from init\n"


def test_init_asks(w):
    with site(w) as s:
        w.write(".docker/config.json", json.dumps({"auths": {s.cluster.registry: {"auth": "bWU6c2VjcmV0"}}}), base=w.home)
        for _ in range(TRIES):
            (w.tree / "dlrun.yaml").unlink(missing_ok=True)
            terminal = Terminal(w, "init")
            terminal.answer("What runs?", b"python3 a.py\n")
            terminal.answer("Run on the cluster of context tests? [Y/n] ", b"\n")
            before = terminal.answer(f"Push images of runs to? [{s.cluster.registry}/me/tree] ", f"{s.cluster.registry}/x/y\n".encode())
            assert terminal.end() == 0, terminal.said
            if is_checked(before):
                break
        assert "may start runs" in before and "a login for" in before, before
        text = (w.tree / "dlrun.yaml").read_text()
        assert f"registry: \"{s.cluster.registry}/x/y\"" in text or f"registry: {s.cluster.registry}/x/y" in text, text
        (w.tree / "dlrun.yaml").unlink()
        terminal = Terminal(w, "init")
        terminal.answer("What runs?", b"\n")
        terminal.answer("Run on the cluster of context tests?", b"n\n")
        assert terminal.end() == 0, terminal.said
        assert "kind: kubernetes" not in (w.tree / "dlrun.yaml").read_text()


def test_init_without_rights(w):
    with bare(w) as s:
        said = init_checked(w, "--target", "kube")
        assert "may not start runs" in said and "dlrun init --rbac" in said and "missing" in said, said
        text = printed_role(w, s)
        assert f"name: {s.user}\n" in text and f"namespace: {s.namespace}\n" in text, text


def test_a_kubeconfig_in_the_tree_is_not_read(w):
    with site(w) as s:
        (w.tree / "dlrun.yaml").unlink()
        w.env["HOME"] = str(w.tree)
        w.env["XDG_STATE_HOME"] = str(w.dir / "state")
        w.write(".kube/config", Path(w.env.pop("KUBECONFIG")).read_text())
        got = w.run("init", "--target", "kube")
        assert got.rc != 0 and "kube.no_config" in got.err or "outside" in got.err or "snapshot" in got.err, got
        assert s.jobs() == []


# --- targets


def targets(w, *words):
    return {t["name"]: t for t in json.loads(w.ok("targets", "--json", *words).out)["targets"]}


def all_targets(w):
    """Once the cluster has answered all of it within the 2 s that it is given."""
    def answered():
        found = targets(w)
        k = found["k"]
        whole = k["reachable"] and None not in (k["version"], k["security"], *k["may"].values())
        free = not k["gpus"] or k["gpus_free"] is not None  # where there are none, nobody asks who has them
        return whole and (not k["may"]["nodes"] or k["nodes"] is not None and free) and found
    return wait_for(answered, "all answers of the cluster")


def test_targets(w):
    with site(w) as s:
        s.configure(image_pull_secret="none")
        found = all_targets(w)["k"]
        assert found["reachable"] and found["version"].startswith("v1.34") and found["namespace"] == s.namespace, found
        assert found["may"] == {"submit": True, "logs": True, "exec": True, "forward": True, "secrets": True, "events": True,
                                "nodes": False, "studies": True} and found["nodes"] is None and found["default"], found
        assert found["security"] == "privileged"
        line = re.compile(r"^k .*v1\.34\S*, may submit$", re.M)
        wait_for(lambda: line.search(w.ok("targets").out), "the line of the cluster")
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig("admin", w.dir / "admin", "cert", namespace=s.namespace))

        def others():
            """Nodes of tests beside this one come and go."""
            return {(n["metadata"]["uid"], n["status"].get("allocatable", {}).get("nvidia.com/gpu")) for n in s.cluster.get("Node")
                    if n["metadata"]["name"] != "setup-gpus"}

        def with_one_more():
            beside, before = others(), all_targets(w)["k"]
            try:
                s.cluster.fake_node("setup-gpus", **{"nvidia.com/gpu": 8})
                found = all_targets(w)["k"]
                wait_for(lambda: "GPUs free" in w.ok("targets").out, "the GPUs of the cluster")
            finally:
                s.cluster.delete("Node", "setup-gpus")
            return (before, found) if others() == beside else None
        before, found = wait_for(with_one_more, "no other node that comes or goes", 120)
        assert found["gpus"] == before["gpus"] + 8 and found["gpus_free"] >= 8 and found["nodes"] == before["nodes"] + 1, found


def many(w, s):
    """More contexts: where nothing listens, with a token that is none, and with a plugin that is not installed."""
    config = json.loads(Path(w.env["KUBECONFIG"]).read_text())
    server = config["clusters"][0]["cluster"]
    plugin = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never",
                       "installHint": "apt install no-such-plugin"}}
    for name, address, user in (("down", "https://127.0.0.1:1", {}), ("nobody", server["server"], {"token": "wrong"}),
                                ("plugin", server["server"], plugin)):
        config["clusters"].append({"name": name, "cluster": {**server, "server": address}})
        config["users"].append({"name": name, "user": user})
        config["contexts"].append({"name": name, "context": {"cluster": name, "user": name, "namespace": s.namespace}})
    Path(w.env["KUBECONFIG"]).write_text(json.dumps(config))


def test_one_cluster_does_not_hide_another(w):
    with site(w) as s:
        many(w, s)

        def answered():
            found = all_targets(w)
            return found["kube:nobody"]["error"]["id"] != "kube.unreachable" and found
        found = wait_for(answered, "an answer to who has a wrong token")
        assert found["k"]["reachable"] and found["kube:down"]["error"]["id"] == "kube.unreachable", found
        assert found["kube:nobody"]["error"]["id"] == "kube.auth" and not found["kube:nobody"]["reachable"], found
        assert "no-such-plugin would log in" in found["kube:plugin"]["not_asked"], found
        named = targets(w, "kube:plugin")
        assert list(named) == ["kube:plugin"] and named["kube:plugin"]["error"]["id"] == "kube.plugin", named
        names = targets(w, "--offline")
        assert set(names) == set(found) and "reachable" not in names["k"], names


def test_a_server_that_hangs(w):
    with site(w, alone=True) as s:
        s.cluster.stop("apiserver")
        found = in_time(lambda: targets(w)["k"], 4)
        assert not found["reachable"] and found["error"]["id"] == "kube.unreachable", found
        row = in_time(lambda: rows(w, "cluster")[0], 10)
        assert row["status"] == "problem" and "has not answered" in row["cause"], row

        def init():
            (w.tree / "dlrun.yaml").unlink()
            return w.ok("init", "--target", "kube").err

        said = in_time(init, 5)
        assert "not checked" in said and (w.tree / "dlrun.yaml").exists(), said
        s.cluster.cont("apiserver")


# --- doctor


def rows(w, id, about="k"):
    checks = json.loads(w.run("doctor", "--json").out)["checks"]
    return [c for c in checks if c["id"] == id and (not about or c["found"].startswith(f"{about}:"))]


def test_doctor_finds_nothing(w):
    with site(w) as s:
        found = {id: rows(w, id, None)[0] for id in ("kubeconfig", "cluster", "cluster-login", "cluster-rights", "cluster-pods")}
        assert all(row["status"] == "ok" for row in found.values()), found
        assert w.env["KUBECONFIG"] in found["kubeconfig"]["found"] and "v1.34" in found["cluster"]["found"], found
        assert "privileged" in found["cluster-pods"]["found"] and s.cluster.registry in found["cluster-pods"]["found"], found


def test_doctor_names_what_is_missing(w):
    with site(w) as s:
        s.configure(image_pull_secret="absent")
        row = rows(w, "cluster-pods")[0]
        assert row["status"] == "problem" and "absent" in row["cause"] and "docker-registry absent" in row["fix"], row
        s.cluster.apply({"kind": "Secret", "metadata": {"name": "absent"}, "type": "Opaque"}, namespace=s.namespace)
        assert rows(w, "cluster-pods")[0]["status"] == "warning"
        s.cluster.delete("Secret", "absent", s.namespace)
        s.cluster.apply({"kind": "Secret", "metadata": {"name": "absent"}, "type": "kubernetes.io/dockerconfigjson",
                         "data": {".dockerconfigjson": "e30="}}, namespace=s.namespace)
        assert rows(w, "cluster-pods")[0]["status"] == "ok"
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig("admin", w.dir / "admin", "cert", namespace="no-such-namespace"))
        row = rows(w, "cluster")[0]
        assert row["status"] == "problem" and "create namespace no-such-namespace" in row["fix"], row


def test_doctor_names_what_is_not_allowed(w):
    with bare(w) as s:
        row = rows(w, "cluster-rights")[0]
        assert row["status"] == "problem" and row["fix"] == "dlrun init --rbac submit --target k", row
        grant(w, s, "submit")
        row = rows(w, "cluster-rights")[0]
        assert row["status"] == "warning" and row["fix"] == "dlrun init --rbac logs --target k", row
        grant(w, s, "exec")
        row = rows(w, "cluster-rights")[0]
        assert row["status"] == "ok" and "may not give runs secrets" in row["found"], row


def test_doctor_and_logins(w):
    with site(w) as s:
        config = lambda **more: str(s.cluster.kubeconfig(s.user, w.dir / "new", "none", namespace=s.namespace, **more))  # noqa: E731
        w.env["KUBECONFIG"] = config(credentials={"token": "wrong"})
        assert rows(w, "cluster")[0]["status"] == "problem" and "login" in rows(w, "cluster")[0]["cause"]
        w.env["KUBECONFIG"] = config(credentials={"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin",
                                                           "interactiveMode": "Never", "installHint": "apt install no-such-plugin"}})
        row = rows(w, "cluster-login")[0]
        assert row["status"] == "problem" and row["fix"] == "apt install no-such-plugin", row
        w.env["KUBECONFIG"] = config(credentials=s.cluster.exec_plugin(s.user, w.dir))
        assert rows(w, "cluster")[0]["status"] == "ok" and "get-token" in rows(w, "cluster-login")[0]["found"]
        (w.dir / "slow").mkdir()
        w.env["KUBECONFIG"] = config(credentials=s.cluster.exec_plugin(s.user, w.dir / "slow", seconds=30))
        row = in_time(lambda: rows(w, "cluster")[0], 10)
        assert row["status"] == "problem" and "get-token" in row["cause"], row


if __name__ == "__main__":
    main()
