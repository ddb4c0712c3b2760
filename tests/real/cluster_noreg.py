#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs in a real cluster without a registry: the base is pulled as it is, and the code goes through the API server."""

import json
import os
import shutil
import signal
import subprocess

import cluster as clusters
from harness import *  # noqa: F403
from kube_images import push_python
from kubesite import site
from registries import FaultProxy, free_port

LARGE_MB = 400 if ALL else 60
RANKS = 16 if ALL else 6
CUT_KIB = 256 if ALL else 1024
TREE = """import hashlib, json, os, stat
found = {}
for at, dirs, files in os.walk("."):
    for name in dirs + files:
        path = os.path.join(at, name)
        mode = os.lstat(path).st_mode
        what = os.readlink(path) if stat.S_ISLNK(mode) else "" if stat.S_ISDIR(mode) else hashlib.sha256(open(path, "rb").read()).hexdigest()
        found[path] = [oct(mode), what]
print(json.dumps(found, sort_keys=True), flush=True)
"""


def tree_of(s, run):
    return json.loads(s.output(run).strip().splitlines()[-1])


def code_maps(s):
    return [m["metadata"]["name"] for m in s.cluster.get("ConfigMap", namespace=s.namespace) if "-code-" in m["metadata"]["name"]]


def fill(w):
    """A tree with all kinds of entries."""
    w.write("tree.py", TREE)
    w.write("deep/er/it is.txt", "x" * 1000)
    w.write("deep/run.sh", "#!/bin/sh\necho hi\n")
    os.chmod(w.tree / "deep/run.sh", 0o755)
    (w.tree / "link").symlink_to("deep/er")
    (w.tree / "dangling").symlink_to("/nowhere")
    w.write("empty", "")


def configure(s, **target):
    """Two targets of the same namespace: k has no registry, r has one."""
    s.configure(registry="none", **target)
    known = json.loads((s.w.tree / "dlrun.yaml").read_text())
    known["targets"]["r"] = {**known["targets"]["k"], "registry": f"{s.cluster.registry}/{s.namespace}/code"}
    s.w.write("dlrun.yaml", json.dumps(known, indent=1))
    s.w.ok("config", "trust", "--yes")


def test_a_kubeconfig_and_two_commands(w):
    """All that a new user has: the first command says what is missing, and its hint is the second."""
    cluster = clusters.get()
    with cluster.namespace("alice", role="admin") as namespace:
        cluster.kubeconfig("alice", w.dir / "kubeconfig", namespace=namespace)
        env = {**w.env, "KUBECONFIG": os.path.relpath(w.dir / "kubeconfig", w.tree)}
        w.write("train.py", "print('hello', flush=True)\n")
        assert not w.state.exists() and not (w.home / ".config").exists()
        refused = w.run("submit", "-t", "kube", "--", "python3", "train.py", env=env)
        assert refused.rc == 2 and "no base image is set" in refused.err, refused
        check_error_form(refused.err, "image.none")
        words = refused.err.rpartition("hint: dlrun ")[2].split()
        assert words[:2] == ["submit", "--image"], refused
        words[2] = cluster.images["python"]
        done = w.run(*words[:1], "-f", *words[1:], env=env, timeout=120)
        assert done.rc == 0 and done.out == "hello\n", done
        assert "goes through the API server" in done.err, done


def test_a_kubeconfig_and_a_lock_file(w):
    """The first command is enough where the project names its Python; the base has a digest, as any has."""
    cluster = clusters.get()
    there = f"{cluster.registry}/hub/python"
    push_python(there)
    with cluster.namespace("alice", role="admin") as namespace:
        cluster.kubeconfig("alice", w.dir / "kubeconfig", namespace=namespace)
        env = {**w.env, "KUBECONFIG": os.path.relpath(w.dir / "kubeconfig", w.tree)}
        w.write("train.py", "print('hello', flush=True)\n")
        w.write("uv.lock", 'version = 1\nrequires-python = "==3.11.*"\n')
        w.write(".config/dlrun/config.yaml", json.dumps({"bases": [f"127.0.0.1:{free_port()}/python", there]}), base=w.home)
        done = w.run("submit", "-f", "-t", "kube", "--", "python3", "train.py", env=env, timeout=120)
        assert done.rc == 0 and done.out == "hello\n", done
        assert f"no image: is set, so the base is {there}:3.11-slim (the Python of uv.lock); registry 127.0.0.1" in done.err, done
        run = w.show("@")
        assert run["image"]["base"] == f"{there}:3.11-slim" and run["image"]["base_ref"].startswith(f"{there}@sha256:"), run["image"]
        # What follows from the tree is no difference of its own.
        assert "3.11-slim" not in w.ok("diff", run["id"], env=env).out


def succeeded(s, run, seconds=90):
    assert s.ended(run, seconds)["state"] == "succeeded", s.why(run)
    return s.w.show(run)


def test_the_tree_and_the_digest_are_those_of_a_registry(w):
    with site(w) as s:
        configure(s)
        fill(w)
        apart, there = s.submit("-t", "k", "--", "python3", "tree.py"), s.submit("-t", "r", "--", "python3", "tree.py")
        a, b = succeeded(s, apart), succeeded(s, there)
        assert tree_of(s, apart) == tree_of(s, there)
        assert a["snapshot"]["id"] == b["snapshot"]["id"]
        assert a["image"]["ref"].rpartition("@")[2] == b["image"]["ref"].rpartition("@")[2], (a["image"], b["image"])
        assert a["image"]["base_ref"].startswith(s.base.rpartition(":")[0] + "@sha256:") and "base_ref" not in b["image"], a["image"]
        owned = s.cluster.get("ConfigMap", f"{apart}-code-0", s.namespace)
        assert owned["immutable"] and [o["kind"] for o in owned["metadata"]["ownerReferences"]] == ["Job"], owned["metadata"]
        w.ok("rm", apart, there)
        s.cluster.wait(lambda: not code_maps(s), "the end of its ConfigMaps")


def test_an_edit_and_what_is_gone(w):
    """The second tree is a delta with whiteouts over the first."""
    with site(w, registry="none") as s:
        fill(w)
        for n in range(400):
            w.write(f"many/{n}.txt", os.urandom(2000).hex())
        first = s.submit("--", "python3", "tree.py")
        succeeded(s, first)
        (w.tree / "deep/er/it is.txt").unlink()
        (w.tree / "deep/er").rmdir()
        w.write("deep/er", "a file now")
        (w.tree / "link").unlink()
        w.write("link/inside", "a directory now")
        (w.tree / "many/7.txt").unlink()
        w.write("many/8.txt", "edited")
        second = s.submit("--", "python3", "tree.py")
        record = succeeded(s, second)
        assert [layer["role"] for layer in record["image"]["layers"] if layer["role"] != "base"] == ["full", "delta"], record["image"]
        here = w.ok("submit", "-f", "-t", "local", "--", "python3", "tree.py").out
        contents = {path: what for path, (_, what) in tree_of(s, second).items()}
        assert contents == {path: what for path, (_, what) in json.loads(here.strip().splitlines()[-1]).items()}
        names = w.ok("diff", first, second).out
        assert "many/7.txt" in names and "deep/er" in names, names
        again = w.ok("submit", "-d", "--from", second, "--", "python3", "tree.py").out.strip()
        succeeded(s, again)
        assert tree_of(s, again) == tree_of(s, second)


SUM = """import hashlib, os
total = hashlib.sha256()
for at, dirs, files in sorted(os.walk(".")):
    for name in sorted(files):
        total.update(open(os.path.join(at, name), "rb").read())
print(os.environ["NODE_RANK"], total.hexdigest(), flush=True)
"""


def fill_large(w, big=3, small=10):
    w.write("sum.py", SUM)
    for n in range(big):
        (w.tree / f"big{n}.bin").write_bytes(os.urandom(15 << 20))
    for n in range(small):
        (w.tree / f"small{n}.bin").write_bytes(os.urandom(500 << 10))


def sum_here(w):
    return w.ok("submit", "-f", "-t", "local", "--", "python3", "sum.py").out.split()[-1]


def feeders(run):
    """Processes that send the code of the run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if words[1:3] == ["__deliver", run]:
            found.append(int(pid))
    return found


def test_a_large_tree_is_streamed_to_all_ranks(w):
    with site(w, registry="none") as s:
        fill_large(w)
        want = sum_here(w)
        w.env["KUBECONFIG"] = os.path.relpath(w.env["KUBECONFIG"], w.tree)
        run = s.submit("-N", "3", "--", "python3", "sum.py")
        record = succeeded(s, run, 180)
        assert record["image"]["streamed"] is True and not code_maps(s)
        lines = w.ok("logs", run).out
        assert sorted(line.split()[-2:] for line in lines.splitlines()) == [[str(n), want] for n in range(3)], lines
        wait_for(lambda: not feeders(run), "the end of the process that sends", 30)


def test_who_sends_is_killed_and_a_pod_is_replaced(w):
    """Nothing begins while nobody sends; any command that looks goes on, and a pod that is replaced gets it again."""
    with site(w, registry="none") as s:
        fill_large(w)
        want = sum_here(w)
        run = s.submit("--retries", "1", "--", "sh", "-c", "python3 sum.py; sleep 1000")
        wait_for(lambda: feeders(run), "the process that sends", 20)
        os.kill(feeders(run)[0], signal.SIGKILL)
        s.cluster.wait(lambda: [p for p in pods_of(s, run) if waits_for_code(p)], "a pod that waits")
        assert s.why(run)["why"].endswith("waits for its code"), s.why(run)
        wait_for(lambda: want in w.run("logs", run).out, "its output", 90)
        [pod] = [p["metadata"]["name"] for p in pods_of(s, run)]
        s.cluster.delete("Pod", pod, s.namespace)
        wait_for(lambda: [p for p in pods_of(s, run) if p["metadata"]["name"] != pod] and want in w.run("logs", run).out, "another pod", 90)
        s.cluster.wait(lambda: [p for p in pods_of(s, run) if p["metadata"]["name"] != pod and p["status"]["phase"] == "Running"], "it runs", 90)
        s.cancel(run)
        wait_for(lambda: not feeders(run), "the end of the process that sends", 30)


@left_to_all("test_the_connection_is_cut_again_and_again; cluster_fetch: test_a_cut_is_made_up_for")
def test_the_api_server_is_restarted_in_the_middle(w):
    """DLRUN_TESTS=all: of 400 MB. What a pod has by then does not come again."""
    with site(w, registry="none", alone=True) as s:
        fill_large(w, 1, 1)
        for n in range(LARGE_MB // 20):
            (w.tree / f"more{n}.bin").write_bytes(os.urandom(20 << 20))
        want = sum_here(w)
        begin = time.monotonic()
        run = s.submit("--", "python3", "sum.py", timeout=300)
        restarts = 0
        while restarts < 2:
            came = stored(s, run)
            wait_for(lambda: stored(s, run) > came or ended(w, run), "more of its code", 120)
            if ended(w, run):
                break
            s.cluster.restart("apiserver")
            restarts += 1
        assert restarts, "it had all of its code before anything could be restarted"
        succeeded(s, run, 600)
        assert want in w.ok("logs", run, timeout=120).out
        print(f"{LARGE_MB} MB, API server restarted {restarts} times: {time.monotonic() - begin:.1f} s from submit to the end", flush=True)


def ended(w, run):
    return w.show(run)["state"] == "succeeded"


def stored(s, run):
    """Bytes of its layers in the pod that waits for them."""
    volumes = s.cluster.dir.glob("node-*/kubelet/pods/*/volumes/kubernetes.io~empty-dir/*/.dlrun-*")
    uids = [p["metadata"]["uid"] for p in s.cluster.wait(lambda: pods_of(s, run), "its pod")]
    return sum(path.stat().st_size for path in volumes if any(uid in str(path) for uid in uids))


def test_the_connection_is_cut_again_and_again(w):
    """What has come is progress: the next try does not wait longer and longer."""
    from cluster_away import config_through
    with site(w, registry="none") as s, FaultProxy(s.cluster.address) as proxy:
        fill_large(w, 1, 1)
        want = sum_here(w)
        proxy.fault("rst", side="request", after=CUT_KIB << 10)
        begin = time.monotonic()
        w.env["KUBECONFIG"] = config_through(s, proxy.address)
        run = s.submit("--", "python3", "sum.py")
        succeeded(s, run, 300)
        assert want in s.output(run)
        [cuts] = [fault.fired for fault in proxy.faults]
        assert cuts >= (15 << 10) // CUT_KIB, cuts
        print(f"15 MiB, cut {cuts} times after {CUT_KIB} KiB: {time.monotonic() - begin:.1f} s from submit to the end", flush=True)


@left_to_all("test_a_large_tree_is_streamed_to_all_ranks")
def test_many_ranks_get_it(w):
    with site(w, registry="none") as s:
        fill_large(w, 1, 0)
        want = sum_here(w)
        begin = time.monotonic()
        run = s.submit("-N", str(RANKS), "--", "python3", "sum.py")
        succeeded(s, run, 600)
        lines = w.ok("logs", run, timeout=120).out
        assert sorted(line.split()[-2:] for line in lines.splitlines()) == sorted([str(n), want] for n in range(RANKS)), lines
        print(f"15 MiB for {RANKS} ranks: {time.monotonic() - begin:.1f} s from submit to the end", flush=True)


def test_a_pod_is_deleted_while_nobody_is_there(w):
    """Its successor waits, and gets the code from the next command that looks."""
    with site(w, registry="none") as s:
        fill_large(w, 1, 1)
        want = sum_here(w)
        run = s.submit("--retries", "1", "--", "sh", "-c", "python3 sum.py; sleep 1000")
        s.cluster.wait(lambda: pods_of(s, run)[0]["status"]["phase"] == "Running", "it runs", 90)
        for sender in feeders(run):
            os.kill(sender, signal.SIGKILL)
        [pod] = [p["metadata"]["name"] for p in pods_of(s, run)]
        s.cluster.delete("Pod", pod, s.namespace)
        s.cluster.wait(lambda: [p for p in pods_of(s, run) if p["metadata"]["name"] != pod and waits_for_code(p)], "a pod that waits", 90)
        assert not feeders(run)
        w.ok("ps")
        wait_for(lambda: want in w.run("logs", run).out, "its output", 120)
        s.cancel(run)
        wait_for(lambda: not feeders(run), "the end of the process that sends", 30)


def pods_of(s, run):
    return [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["metadata"]["labels"].get("dlrun.io/run-id") == run]


def waits_for_code(pod):
    return any(c["name"] == "code" and "running" in c.get("state", {}) for c in pod["status"].get("initContainerStatuses", []))


def test_in_a_restricted_namespace_and_after_a_pod_is_replaced(w):
    """The code is in ConfigMaps, so that nobody has to look."""
    with site(w, registry="none", labels={"pod-security.kubernetes.io/enforce": "restricted"}) as s:
        fill(w)
        run = s.submit("--retries", "1", "--", "sh", "-c", "id -u; touch new deep/new; python3 tree.py; sleep 1000")
        wait_for(lambda: "deep/run.sh" in w.run("logs", run).out, "its output", 60)
        assert w.run("logs", run).out.splitlines()[0] == "1000", w.run("logs", run)
        [pod] = [p["metadata"]["name"] for p in pods_of(s, run)]
        s.cluster.delete("Pod", pod, s.namespace)
        s.cluster.wait(lambda: [p for p in pods_of(s, run) if p["metadata"]["name"] != pod and p["status"]["phase"] == "Running"], "it runs", 90)
        s.cancel(run)


def test_a_study_has_it_once(w):
    with site(w, registry="none") as s:
        fill(w)
        w.ok("sweep", "-d", "--over", "n=1..5", "--", "sh", "-c", "test -x deep/run.sh && echo {n}")
        runs = [r["id"] for r in json.loads(w.ok("ps", "--json").out)["runs"]]
        assert len(runs) == 5 and len(code_maps(s)) == 1, (runs, code_maps(s))
        for run in runs:
            succeeded(s, run)


def test_without_a_right_it_is_said_before_anything_is_made(w):
    from cluster_roles import ALL, limited
    ALL["configmaps"] = "create delete get list patch"
    with limited(w, pods_exec="*") as s:
        s.configure(registry="none")
        before = w.ok("ps", "--json").out
        fill_large(w, 1, 1)
        done = w.run("submit", "-d", "--", "python3", "sum.py")
        assert done.rc == 4 and "pods/exec" in done.err, done
        check_error_form(done.err, "kube.denied")
        assert w.ok("ps", "--json").out == before and not s.cluster.get("Job", namespace=s.namespace)
        (w.tree / "big0.bin").unlink()
        succeeded(s, s.submit("--", "python3", "sum.py"))


def without_pods(s):
    """Until the quota is deleted."""
    s.cluster.apply({"kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}, namespace=s.namespace)
    s.cluster.wait(lambda: s.cluster.get("ResourceQuota", "none", s.namespace)["status"]["hard"]["pods"] == "0", "the quota counts")


def test_who_sends_is_told_no_and_why_says_so(w):
    """The right is lost while the run waits for its pod, and comes back."""
    from cluster_roles import ALL, allow, limited
    ALL["configmaps"] = "create delete get list patch"
    with limited(w) as s:
        s.configure(registry="none")
        fill_large(w, 2, 1)
        want = sum_here(w)
        without_pods(s)
        run = s.submit("--", "python3", "sum.py")
        allow(s, pods_exec="*")
        s.cluster.delete("ResourceQuota", "none", s.namespace)
        why = s.said_within(run, "waits for its code: ", "pods/exec", seconds=90)
        assert "dlrun init --rbac" in why["hint"], why
        assert "pods/exec" in w.show(run)["text"], w.show(run)
        allow(s)
        succeeded(s, run, 120)
        assert want in s.output(run) and not w.show(run).get("text"), w.show(run)


def test_code_that_is_lost_here_is_named(w):
    with site(w, registry="none") as s:
        fill_large(w, 2, 1)
        without_pods(s)
        run = s.submit("--", "python3", "sum.py")
        wait_for(lambda: feeders(run), "the process that sends", 20)
        shutil.rmtree(w.layout)
        s.cluster.delete("ResourceQuota", "none", s.namespace)
        why = s.said_within(run, f"waits for its code: the code of {run}: ", " has no sha256:", seconds=90)
        assert why["hint"] == "dlrun submit", why
        wait_for(lambda: not feeders(run), "the end of the process that sends", 30)
        s.cancel(run)


def test_a_setup_runs_in_the_pod(w):
    with site(w, registry="none", keys={"setup": {"run": "echo made > made.txt", "key": ["a.py"]}}) as s:
        run = s.submit("--", "cat", "made.txt")
        succeeded(s, run)
        assert s.output(run) == "made\n"


def test_a_restart_has_its_code(w):
    with site(w, registry="none") as s:
        fill(w)
        run = s.submit("--", "sh", "-c", "cat empty; python3 tree.py; exit $((DLRUN_ATTEMPT == 1))")
        assert s.ended(run)["state"] == "failed"
        w.write("empty", "edited")
        w.ok("restart", run)
        succeeded(s, run)
        assert "edited" not in s.output(run), s.output(run)


def refused_restart(w, run, *says, **options):
    """The restart is refused, and the record stays as it was."""
    before = w.ok("show", "--json", run, **options).out
    done = w.run("restart", run, **options)
    assert done.rc == 5 and all(text in done.err for text in says), done
    check_error_form(done.err, "image.base")
    assert json.loads(w.ok("show", "--json", run, **options).out)["attempts"] == json.loads(before)["attempts"]


def test_a_restart_without_its_code_is_refused(w):
    with site(w, registry="none") as s:
        run = s.submit("--", "false")
        assert s.ended(run)["state"] == "failed"
        other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
        assert json.loads(w.ok("show", "--json", f"k:{run}", env=other).out)["state"] == "failed"
        refused_restart(w, f"k:{run}", "on the machine that submitted it", f"dlrun restart {run}", env=other)
        done = w.run("submit", "-d", "--from", run, env=other)
        assert done.rc == 5 and "on the machine that submitted it" in done.err, done
        shutil.rmtree(w.layout)
        refused_restart(w, run, f"the code of {run}", "hint: dlrun submit")
        assert len(s.jobs()) == 1


@left_to_all("test_a_study_has_it_once; test_a_large_tree_is_streamed_to_all_ranks")
def test_a_study_of_gangs_is_streamed(w):
    """Each member has a Job of its own, and who sends its code."""
    with site(w, registry="none") as s:
        fill_large(w, 1, 0)
        w.ok("sweep", "-d", "-N", "2", "--over", "n=1..2", "--", "sh", "-c", "sleep 5; echo {n}", timeout=120)
        runs = [r["id"] for r in json.loads(w.ok("ps", "--json").out)["runs"]]
        wait_for(lambda: all(feeders(run) for run in runs), "a process for each", 20)
        for run in runs:
            succeeded(s, run, 120)


if __name__ == "__main__":
    main()
