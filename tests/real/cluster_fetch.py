#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results of runs in a real cluster: from pods that run, from storage of those that have ended, and what goes wrong."""

import json
import re
import signal
import subprocess

import cluster as clusters
from harness import *  # noqa: F403
from kube_images import layout
from kubesite import site
from registries import FaultProxy

WRITE = """import os, time
out = os.environ["DLRUN_OUTPUT_DIR"]
os.makedirs(out + "/sub/deep")
for name, text in {"a": "first", "sub/b c": "x" * 100000, "sub/deep/-lead": "dash", "new\\nline": "nl", "quo'te\\"": "q"}.items():
    with open(os.path.join(out, name), "w") as f:
        f.write(text)
os.symlink("../a", out + "/sub/link")
os.symlink("/etc/passwd", out + "/out-link")
os.link(out + "/a", out + "/hard")
os.chmod(out + "/a", 0o755)
print("written", flush=True)
"""
FILES = {"a": "first", "hard": "first", "sub/b c": "x" * 100000, "sub/deep/-lead": "dash", "new\nline": "nl", "quo'te\"": "q"}
HOLD = "\nimport sys; sys.stdout.flush()\ntime.sleep(600)\n"


def fetched(dir):
    return {str(p.relative_to(dir)): p.read_text() for p in sorted(dir.rglob("*"))
            if p.is_file() and not p.is_symlink() and ".dlrun-fetch" not in p.parts and p.name != ".gitignore"}


def check_all(dir):
    assert fetched(dir) == FILES, fetched(dir).keys()
    assert os.readlink(dir / "sub/link") == "../a" and os.readlink(dir / "out-link") == "/etc/passwd"
    assert (dir / "a").stat().st_mode & 0o777 == 0o755


def readers(s):
    return [p["metadata"]["name"] for p in s.cluster.get("Pod", namespace=s.namespace)
            if p["metadata"]["labels"].get("app.kubernetes.io/name") == "dlrun-fetch" and "deletionTimestamp" not in p["metadata"]]


def written(s, run):
    wait_for(lambda: "written" in s.w.ok("logs", run).out, "the files", 90)


def test_a_running_pod_is_read(w):
    with site(w, files={"w.py": WRITE + HOLD}, results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "w.py")
        written(s, run)
        done = w.ok("fetch", run)
        check_all(w.tree / run)
        assert "8 files fetched" in done.err, done.err
        done = w.ok("fetch", run, "--json")
        assert json.loads(done.out)["files"] <= 6 and readers(s) == [], done.out
        w.ok("fetch", run, "sub/*", "-o", "part")
        assert set(fetched(w.tree / "part")) == {"sub/b c", "sub/deep/-lead"}
        w.refused("fetch", run, "absent", "-o", "other", id="fetch.path", rc=5, says="absent")
        w.ok("fetch", "--tree", run, "w.py")
        assert fetched(w.tree / f"{run}-tree") == {"w.py": WRITE + HOLD}
        w.run("cancel", run)


def test_a_growing_file_comes_by_its_end(w):
    grow = "import os, time; p = os.environ['DLRUN_OUTPUT_DIR'] + '/log'\n" \
           "def put(n): open(p, 'a').write(''.join('%s\\n' % os.urandom(500).hex() for _ in range(n))); print('put', n, flush=True)\n" \
           "put(2048)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.1)\nput(100)\ntime.sleep(600)\n"
    with site(w, files={"grow.py": grow}, results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "grow.py")
        wait_for(lambda: "put 2048" in w.ok("logs", run).out, "the file", 90)
        assert json.loads(w.ok("fetch", run, "-o", "here", "--json").out)["bytes"] >= 2048 * 1001
        w.ok("exec", run, "--", "touch", "/tmp/go")
        wait_for(lambda: "put 100" in w.ok("logs", run).out, "its end", 90)
        done = json.loads(w.ok("fetch", run, "-o", "here", "--json").out)
        assert done["bytes"] == 100 * 1001 + (64 << 10), done
        assert w.ok("exec", run, "--", "sh", "-c", "md5sum < $DLRUN_OUTPUT_DIR/log").out.split()[0] == \
            hashlib.md5((w.tree / "here/log").read_bytes()).hexdigest()
        w.run("cancel", run)


def test_busybox_is_enough(w):
    with site(w, base="busybox", results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "sh", "-c", """cd $DLRUN_OUTPUT_DIR; mkdir -p d/e; echo 1 > d/e/f; echo 2 > ./-x; printf 3 > 'n
l'; ln -s f d/e/l; ln d/e/f hard; : > empty; echo written; sleep 600""")
        written(s, run)
        w.ok("fetch", run)
        assert fetched(w.tree / run) == {"d/e/f": "1\n", "-x": "2\n", "n\nl": "3", "hard": "1\n", "empty": ""}
        assert os.readlink(w.tree / run / "d/e/l") == "f"
        w.run("cancel", run)


def test_without_a_shell_nothing_is_read(w):
    """While the run goes on and after its end; the run itself needs none."""
    cluster = clusters.get()
    base = f"{cluster.registry}/bare:v1"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout('bare')}:v1", f"docker://{base}"], check=True)
    with site(w, base=base, files={"w.py": WRITE, "hold.py": WRITE + HOLD}, results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "hold.py")
        written(s, run)
        w.refused("fetch", run, id="kube.shell", rc=2, says="sh, find, stat and tar")
        w.run("cancel", run)
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.refused("fetch", run, id="kube.shell", rc=2, says="no shell")


def test_a_claim_of_the_run_is_read_after_its_end(w):
    with site(w, files={"w.py": WRITE}) as s:
        s.cluster.spare_volume(s.namespace)
        s.configure(results={"claim": "1Gi", "storage_class": s.namespace})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.ok("fetch", run)
        check_all(w.tree / run)
        assert readers(s) == [] and len(s.cluster.get("PersistentVolumeClaim", namespace=s.namespace)) == 1
        w.ok("rm", run)
        wait_for(lambda: not s.cluster.get("PersistentVolumeClaim", namespace=s.namespace), "the end of the claim", 60)


def test_storage_of_an_ended_run_is_read_by_a_pod(w):
    with site(w, files={"w.py": WRITE}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        w.ok("fetch", run)
        check_all(w.tree / run)
        assert readers(s) == []
        again = json.loads(w.ok("fetch", run, "--json").out)
        assert again["files"] == 0 and again["skipped"] == 8, again
        # The Job is gone: its record tells where the results are.
        s.cluster.kubectl("-n", s.namespace, "delete", "job", run)
        w.ok("fetch", run, "-o", "later")
        check_all(w.tree / "later")
        assert readers(s) == []


def test_a_restricted_namespace_is_read_too(w):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with site(w, files={"w.py": WRITE}, labels=labels) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", (s.why(run), s.output(run))
        w.ok("fetch", run)
        check_all(w.tree / run)


def test_results_that_ended_with_the_pod_are_an_error(w):
    with site(w, results={"emptyDir": True}) as s:
        run = s.submit("--", "python3", "a.py")
        s.ended(run)
        s.without_pods()
        w.refused("fetch", run, id="kube.storage", rc=2, says=[run, "ended with its pod"])
        assert not (w.tree / run).exists()


@left_to_all("cluster_results: test_ranks_have_places_of_their_own, test_cancel_takes_what_the_end_writes")
def test_ranks_have_directories(w):
    with site(w, results={"emptyDir": True}) as s:
        run = s.submit("-N", "2", "--grace", "1s", "--", "sh", "-c", "echo $NODE_RANK > $DLRUN_OUTPUT_DIR/f; echo written; sleep 600")
        wait_for(lambda: w.ok("logs", run).out.count("written") == 2, "both ranks", 90)
        w.ok("fetch", run)
        assert fetched(w.tree / run) == {"rank-0/f": "0\n", "rank-1/f": "1\n"}
        w.run("cancel", run)


def test_a_killed_fetch_leaves_nothing_for_long(w):
    with site(w, files={"w.py": WRITE}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        s.ended(run)
        process = subprocess.Popen([w.dlrun, "fetch", run], cwd=w.tree, env=w.env)
        wait_for(lambda: readers(s), "the pod that reads", 60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = readers(s)
        w.ok("fetch", run)
        check_all(w.tree / run)
        wait_for(lambda: not readers(s), f"the end of {left}", 30)
        process = subprocess.Popen([w.dlrun, "fetch", run, "-o", "other"], cwd=w.tree, env=w.env)
        wait_for(lambda: readers(s), "the pod that reads", 60)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        wait_for(lambda: not readers(s), "its end", 30)


def test_rm_removes_what_is_in_the_cluster(w):
    with site(w) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "a.py")
        s.ended(run)
        config = Path(w.env["KUBECONFIG"]).read_text()
        away = {"KUBECONFIG": str(w.write("away", re.sub(r"(\"?server\"?: )", r'"proxy-url": "http://127.0.0.1:1", \1', config, count=1), base=w.dir))}
        done = w.run("rm", run, env=away)
        assert done.rc == 3 and "[http.proxy]" in done.err, done
        assert w.show(run)["id"] == run and len(s.jobs()) == 1
        w.ok("rm", run)
        wait_for(lambda: not s.jobs(), "the end of the Job", 30)
        assert w.run("show", run).rc == 5


def test_another_laptop_finds_runs(w):
    with site(w, files={"w.py": WRITE}, results={"emptyDir": True}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        s.ended(run)
        other = World(w.dlrun, "other")
        try:
            other.env["KUBECONFIG"] = w.env["KUBECONFIG"]
            other.repo({"x": ""})
            config = json.loads((w.tree / "dlrun.yaml").read_text())
            other.write("dlrun.yaml", json.dumps(config))
            other.refused("show", run, id="run.not_found", rc=5)
            seen = json.loads(other.ok("show", "--json", f"k:{run}").out)
            assert seen["id"] == run and seen["state"] == "succeeded" and seen["command"] == ["python3", "w.py"], seen
            assert "written" in other.ok("logs", f"k:{run}").out
            other.ok("why", f"k:{run}")
            other.ok("fetch", f"k:{run}")
            check_all(other.tree / run)
            other.refused("show", "k:absent-22222", id="run.not_found", rc=5)
            assert json.loads(other.ok("ps", "-a", "--json").out)["runs"] == []
            assert [r["id"] for r in json.loads(other.ok("ps", "-a", "-t", "k", "--json").out)["runs"]] == [run]
            other.ok("show", run)
            other.ok("rm", run)
            wait_for(lambda: not s.jobs(), "the end of the Job", 30)
        finally:
            other.close()


def test_a_colleagues_run_is_only_read(w):
    with site(w, results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "sh", "-c", "echo written; sleep 600")
        written(s, run)
        s.cluster.grant("bob", "admin", s.namespace)
        other = World(w.dlrun, "other")
        try:
            other.env["KUBECONFIG"] = str(s.cluster.kubeconfig("bob", other.dir / "config", namespace=s.namespace))
            other.env["USER"] = other.env["LOGNAME"] = "bob"
            target = "kube"
            assert "written" in other.ok("logs", f"{target}:{run}").out
            other.refused("cancel", f"{target}:{run}", id="run.other", rc=4, says=run)
            assert [r for r in json.loads(other.ok("ps", "-a", "-t", target, "--json").out)["runs"]] == []
        finally:
            other.close()
        assert w.show(run)["state"] == "running"
        w.run("cancel", run)


def test_a_cut_is_made_up_for(w):
    """The API server is away for a moment while a large file comes."""
    with site(w, alone=True, results={"emptyDir": True}) as s, FaultProxy(s.cluster.address) as proxy:
        s.cluster.kubeconfig(s.user, w.env["KUBECONFIG"], namespace=s.namespace, server=proxy.address)
        run = s.submit("--grace", "1s", "--", "sh", "-c", "cd $DLRUN_OUTPUT_DIR; for i in $(seq 60); do echo $i > $i; done; "
                       "head -c 300000000 /dev/urandom > big; sha256sum big; echo written; sleep 600")
        written(s, run)

        def part():
            return sum(p.stat().st_size for p in (w.tree / run).glob(".dlrun-fetch/part-*"))

        # So slow that it cannot be over before it is cut.
        proxy.set(rate=(None, 20e6))
        process = subprocess.Popen([w.dlrun, "fetch", run], cwd=w.tree, env=w.env, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: part() > 20 << 20 or process.poll() is not None, "a part of it", 60)
        process.kill()
        process.communicate()
        begun = part()
        assert begun > 20 << 20
        process = subprocess.Popen([w.dlrun, "-v", "fetch", run], cwd=w.tree, env=w.env, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: part() > begun + (20 << 20) or process.poll() is not None, "more of it", 60)
        s.cluster.restart("apiserver")
        proxy.set(rate=None)
        err = process.communicate(timeout=120)[1]
        assert process.returncode == 0 and "again in a second" in err, err
        digest = subprocess.run(["sha256sum", w.tree / run / "big"], capture_output=True, text=True).stdout.split()[0]
        assert digest in w.ok("logs", run).out and len(fetched_names(w.tree / run)) == 61
        w.run("cancel", run)


def fetched_names(dir):
    return [p.name for p in dir.iterdir() if p.name not in (".dlrun-fetch", ".gitignore")]


if __name__ == "__main__":
    main()
