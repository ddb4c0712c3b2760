#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Environments in a real cluster: what `setup:` makes is made once, and is in the images of all runs that need it."""

import contextlib
import json
import subprocess

from harness import *  # noqa: F403
from kubesite import site

# Something in the tree, something outside of it, a file that the image has is changed, and one is removed.
SETUP = """set -e
echo "makes $(cat wanted.txt)"
mkdir -p .venv/bin .venv/lib web/modules
echo "home = /usr/bin" >.venv/pyvenv.cfg
cp /bin/busybox .venv/bin/tool
ln .venv/bin/tool .venv/bin/same
ln -s tool .venv/bin/link
cp wanted.txt .venv/lib/installed.txt
echo new >web/modules/m.js
echo changed >a.py
mkdir -p /opt/made
cp wanted.txt /opt/made/outside.txt
echo "user2:x:2000:2000::/:/bin/sh" >>/etc/passwd
rm -r /etc/group
cat /proc/sys/kernel/random/uuid >/opt/made/when.txt
"""
LOOK = """import json, os, sys
print(json.dumps({"venv": os.environ.get("VIRTUAL_ENV"), "path": os.environ["PATH"],
                  "lib": open(".venv/lib/installed.txt").read(), "outside": open("/opt/made/outside.txt").read(),
                  "when": open("/opt/made/when.txt").read(), "passwd": "user2" in open("/etc/passwd").read(),
                  "group": os.path.exists("/etc/group"), "a": open("a.py").read(), "m": open("web/modules/m.js").read(),
                  "tool": os.access(".venv/bin/tool", os.X_OK), "link": os.readlink(".venv/bin/link"),
                  "same": os.path.getsize(".venv/bin/same") == os.path.getsize(".venv/bin/tool"),
                  "web": sorted(os.listdir("web")), "stat": oct(os.stat("/etc").st_mode), "src": open("web/own.txt").read()}), flush=True)
"""
FILES = {"look.py": LOOK, "wanted.txt": "numpy==1\n", "setup.sh": SETUP, "web/own.txt": "own"}
KEYS = {"setup": {"run": "sh setup.sh", "key": ["wanted.txt", "setup.sh"]}}


@contextlib.contextmanager
def place(w, **more):
    with site(w, files=FILES, keys={**KEYS, **more.pop("keys", {})}, **more) as s:
        yield s


def seen(s, run):
    assert s.ended(run)["state"] == "succeeded", s.why(run)
    return json.loads(s.output(run).strip().splitlines()[-1])


def builders(s):
    return [j["metadata"]["name"] for j in s.jobs() if j["metadata"]["name"].startswith("env-")]


def gone(s):
    wait_for(lambda: not builders(s), "the end of the Job that made the environment", 30)


def test_an_environment_is_made_once_and_found(w):
    with place(w) as s:
        run = s.submit("--", "python3", "look.py")
        assert "environment env-" in s.said, s.said
        first = seen(s, run)
        assert first["venv"] == "/dlrun/src/.venv" and first["path"].startswith("/dlrun/src/.venv/bin:"), first
        assert first["lib"] == first["outside"] == "numpy==1\n" and first["m"] == "new\n" and first["src"] == "own", first
        assert first["passwd"] and not first["group"] and first["tool"] and first["same"] and first["link"] == "tool", first
        assert "hello" in first["a"] and first["web"] == ["modules", "own.txt"] and first["stat"] == "0o40755", first
        gone(s)
        w.write("look.py", LOOK + "print(end='')\n")
        again = s.submit("--", "python3", "look.py")
        assert "environment" not in s.said and seen(s, again)["when"] == first["when"], s.said
        assert not any("env-" in r["id"] for r in w.runs())
        w.write("wanted.txt", "numpy==2\n")
        other = seen(s, s.submit("--", "python3", "look.py"))
        assert other["lib"] == "numpy==2\n" and other["when"] != first["when"], other


def test_a_setup_that_fails_leaves_nothing(w):
    with place(w, keys={"setup": {"run": "echo first; echo why-it-failed >&2; exit 3", "key": ["wanted.txt"]}}) as s:
        failed = w.run("submit", "-d", "--", "python3", "look.py")
        assert failed.rc != 0 and "the setup failed" in failed.err and "why-it-failed" in failed.err, failed
        gone(s)
        assert not w.runs() and not s.jobs(), (w.runs(), s.jobs())
        assert not [p for p in w.state.rglob("*env-*")], list(w.state.rglob("*env-*"))


def test_of_eight_at_once_one_makes_it(w):
    with place(w) as s:
        processes = [started(w) for _ in range(8)]
        ends = [p.communicate(timeout=200) for p in processes]
        assert not any(p.returncode for p in processes), ends
        assert len({seen(s, out.strip())["when"] for out, _ in ends}) == 1
        gone(s)
        assert len(s.jobs()) == 8


def test_another_machine_finds_it(w):
    with place(w) as s:
        first = seen(s, s.submit("--", "python3", "look.py"))
        other = dict(w.env)
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            (w.dir / f"other-{name}").mkdir()
            other[name] = str(w.dir / f"other-{name}")
        w.ok("config", "trust", "--yes", env=other)
        done = w.ok("submit", "-d", "--json", "--", "python3", "look.py", env=other)
        again = json.loads(done.out)
        assert "environment" not in done.err, done.err
        wait_for(lambda: json.loads(w.ok("show", "--json", again["id"], env=other).out)["state"] == "succeeded", "its end", 60)
        assert json.loads(s.output(again["id"]).strip().splitlines()[-1])["when"] == first["when"]


def builder_pod(s):
    def found():
        return [p for p in s.cluster.get("Pod", namespace=s.namespace)
                if p["metadata"]["name"].startswith("env-") and p["status"]["phase"] == "Running"]
    return wait_for(found, "the pod that makes the environment", 60)[0]["metadata"]["name"]


SLOW = {"setup": {"run": "sleep 4; sh setup.sh", "key": ["wanted.txt", "setup.sh"]}}


def started(w):
    return subprocess.Popen([w.dlrun, "submit", "-d", "--", "python3", "look.py"], cwd=w.tree, env=w.env, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_pod_that_makes_it_is_killed(w):
    with place(w, keys=SLOW) as s:
        process = started(w)
        s.cluster.delete("Pod", builder_pod(s), s.namespace, gracePeriodSeconds=0)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        seen(s, out.strip())
        gone(s)


def test_who_makes_it_is_killed_and_the_next_goes_on(w):
    with place(w, keys=SLOW) as s:
        process = started(w)
        builder_pod(s)
        process.kill()
        process.wait()
        process = started(w)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert seen(s, out.strip())["lib"] == "numpy==1\n"
        gone(s)


def test_an_interrupt_leaves_nothing(w):
    with place(w, keys=SLOW) as s:
        process = started(w)
        builder_pod(s)
        process.send_signal(2)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, (process.returncode, err)
        gone(s)
        assert not w.runs() and not s.jobs()


def test_without_the_right_to_run_commands_the_setup_is_run_in_each_pod(w):
    with place(w) as s:
        s.cluster.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "no-exec"}, "rules": [
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list", "watch", "delete", "patch"]},
            {"apiGroups": [""], "resources": ["pods", "pods/log", "events", "configmaps"], "verbs": ["get", "list", "watch", "delete"]}]},
            namespace=s.namespace)
        s.cluster.grant("carol", "no-exec", s.namespace, kind="Role")
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig("carol", w.dir / "carol", namespace=s.namespace))
        run = s.submit("--", "python3", "look.py")
        assert "the setup is run in each pod" in s.said, s.said
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig(s.user, w.dir / "kubeconfig", namespace=s.namespace))
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        gone(s)


if __name__ == "__main__":
    main()
