#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Environments in a real cluster: what `setup:` makes is made once, and is in the images of all runs that need it."""

import contextlib
import json
import shutil
import statistics
import subprocess
import time

from cluster_away import config_through
from harness import *  # noqa: F403
from kube_images import libraries, push_python
from kubesite import site
from pypi import tools, uv, wheel

from faultproxy import FaultProxy

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


MADE = """import os
print(os.path.exists(".venv/pyvenv.cfg"), open("/dlrun/caches/uv/wheel").read(), os.environ["UV_CACHE_DIR"])
"""


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


def test_an_environment_on_a_proposed_base_fills_the_caches(w):
    with site(w, files={"made.py": MADE, ".python-version": "3.11\n"}) as s:
        base = push_python(f"{s.cluster.registry}/hub/python")
        shared = s.cluster.volume(s.namespace, "caches")
        known = json.loads((w.tree / "dlrun.yaml").read_text())
        del known["image"]
        known["targets"]["k"]["caches"] = {"pvc": "caches"}
        setup = 'mkdir -p .venv "$UV_CACHE_DIR" && touch .venv/pyvenv.cfg && printf cached >"$UV_CACHE_DIR/wheel"'
        w.write("dlrun.yaml", json.dumps({**known, "bases": [base.rpartition(":")[0]], "setup": {"run": setup, "key": [".python-version"]}}))
        w.ok("config", "trust", "--yes")
        for made in (True, False):
            run = s.submit("--", "python3", "made.py")
            assert f"the base is {base}" in s.said and ("environment env-" in s.said) == made, s.said
            assert s.ended(run)["state"] == "succeeded", s.why(run)
            assert w.ok("logs", run).out == "True cached /dlrun/caches/uv\n"
        assert (shared / "uv/wheel").read_text() == "cached"
        gone(s)


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


def test_bake_makes_it_ahead_and_a_submit_finds_it(w):
    with place(w, keys={"setup": {"run": "sh setup.sh", "key": ["wanted.txt", "setup.sh", "web"]}}) as s:
        made = w.ok("bake", "--json")
        doc = json.loads(made.out)
        assert doc["schema"] == "dlrun/bake/v1" and doc["made"] and doc["target"] == "k" and doc["bytes"] > 1000, doc
        assert doc["name"].startswith("env-") and doc["ref"].startswith(f"{s.cluster.registry}/{s.namespace}/code@sha256:"), doc
        assert not w.runs(), w.runs()
        gone(s)
        assert not s.jobs()
        first = seen(s, s.submit("--", "python3", "look.py"))
        assert "environment" not in s.said and first["lib"] == "numpy==1\n", s.said
        again = json.loads(w.ok("bake", "--json").out)
        assert not again["made"] and (again["name"], again["ref"], again["bytes"]) == (doc["name"], doc["ref"], doc["bytes"]), again
        assert doc["name"] in w.ok("bake").out and ": nothing to do\n" in w.ok("bake").out
        other = {**w.env, **{name: str(w.dir / f"second-{name}") for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}}
        w.ok("config", "trust", "--yes", env=other)
        w.write(".git/info/exclude", "*.o\n")
        w.write("web/of-this-machine.o", "")
        found = json.loads(w.ok("bake", "--json", env=other).out)
        assert not found["made"] and found["bytes"] == doc["bytes"], found
        assert len(s.jobs()) == 1


def test_a_bake_that_fails_says_why(w):
    with place(w, keys={"setup": {"run": "echo why-it-failed >&2; exit 3", "key": ["wanted.txt"]}}) as s:
        failed = w.run("bake")
        assert failed.rc != 0 and "the setup failed" in failed.err and "why-it-failed" in failed.err and not failed.out, failed
        gone(s)
        for keys, words, text in (({}, (), "neither setup: nor environment: is set"), ({"setup": {"run": "true"}}, (), "setup.key names no files"),
                                  (KEYS, ("-t", "local"), "target local is not a cluster"), (KEYS, ("-t", "k,local"), "is several targets"),
                                  (KEYS, ("--image", f"{s.base}nosuch"), "there is no base image")):
            s.keys = keys
            s.configure()
            failed = w.run("bake", *words)
            assert failed.rc != 0 and text in failed.err, failed
        s.configure(registry="none")
        failed = w.run("bake")
        assert failed.rc == 2 and "target k has no registry" in failed.err, failed


def test_where_the_setup_is_run_in_each_pod_it_is_said(w):
    w.env.pop("DLRUN_OFFLINE", None)
    line = "mkdir -p made && cat /proc/sys/kernel/random/uuid >made/when"
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}) as s, FaultProxy(s.cluster.address) as api:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        look = ("--", "cat", "made/when")
        run = s.submit(*look)
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        first = s.output(run)
        same = s.submit("--from", run)
        assert "in each pod" not in s.said and s.ended(same)["state"] == "succeeded" and s.output(same) == first, s.said
        w.ok("submit", "-f", "-t", "local", *look)
        apart = s.submit("-t", "k", "--from", "@", *look)
        assert "the setup is run in each pod: the code is that of an image" in s.said, s.said
        assert s.ended(apart)["state"] == "succeeded" and s.output(apart) != first, s.why(apart)
        api.set(refuse=True)
        api.cut_all()
        held = s.submit(*look)
        assert "the setup is run in each pod: the run is kept here" in s.said, s.said
        api.set(refuse=False)
        w.ok("queue", "--send")
        assert s.ended(held)["state"] == "succeeded" and s.output(held) != first, s.why(held)
        warnings = w.show(held)["warnings"]
        assert any("the run is kept here" in text for text in warnings) and any("that of an image" in text for text in warnings), warnings
        s.configure(registry="none")
        s.submit("--", "true")
        assert "the setup is run in each pod: the target has no registry" in s.said, s.said


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


def started(w, *options, env=()):
    return subprocess.Popen([w.dlrun, "submit", "-d", *options, "--", "python3", "look.py"], cwd=w.tree, env={**w.env, **dict(env)}, text=True,
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


def test_a_cut_goes_on_where_it_was(w):
    line = "mkdir .venv && head -c 40000000 /dev/urandom >.venv/big && sha256sum .venv/big >.venv/sum"
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}) as s, FaultProxy(s.cluster.address) as api:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        api.fault("rst", "response", after=32 * 1000 * 1000, times=1)
        run = s.submit("--", "sha256sum", "-c", ".venv/sum")
        came = api.down
        assert "environment env-" in s.said and s.ended(run)["state"] == "succeeded", (s.said, s.why(run))
        assert 40e6 < came < 48e6, f"{came} bytes of 40 MB have come"
        gone(s)


def test_who_takes_it_is_killed_and_the_next_takes_it(w):
    """Nobody reads what is sent to the one that was killed."""
    line = "mkdir .venv && head -c 20000000 /dev/urandom >.venv/big && sha256sum .venv/big >.venv/sum"
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}) as s, FaultProxy(s.cluster.address) as api:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        api.fault("stall", "response", after=8 * 1000 * 1000, times=1)
        process = started(w)
        wait_for(lambda: api.faults[0].fired, "some of it", 90)
        process.kill()
        process.wait()
        api.cut_all()
        run = s.submit("--", "sha256sum", "-c", ".venv/sum", timeout=300)
        assert "environment env-" in s.said and s.ended(run)["state"] == "succeeded", (s.said, s.why(run))
        gone(s)


# It goes on when the first that waits to take what it makes has ended.
FIRST_ENDS = """takes() {
  for p in /proc/[0-9]*; do
    tr '\\0' '\\n' 2>/dev/null <$p/cmdline | grep -qx take && grep -q 'PPid:.0$' $p/status && echo $p
  done
}
until first=$(takes); [ "$first" ]; do sleep 0.2; done
echo one waits; n=0
while [ -d "$first" ]; do [ $((n += 1)) -lt 600 ] || exit 9; sleep 0.2; done
sh setup.sh"""


def test_a_cut_before_the_first_byte_leaves_nobody_who_waits(w):
    with place(w, keys={"setup": {**SLOW["setup"], "run": FIRST_ENDS}}) as s, FaultProxy(s.cluster.address) as api:
        w.env["KUBECONFIG"] = config_through(s, api.address)
        process = started(w)
        pod = builder_pod(s)
        wait_for(lambda: "one waits" in s.cluster.kubectl("-n", s.namespace, "logs", pod, check=False), "the one who takes it", 60)
        api.cut_all()
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0 and seen(s, out.strip())["lib"] == "numpy==1\n", err
        gone(s)


def test_key_files_that_change_meanwhile_are_an_error(w):
    """The run would have the new lock file and what the old one made."""
    with place(w, keys=SLOW) as s:
        process = started(w)
        builder_pod(s)
        w.write("wanted.txt", "numpy==2\n")
        _, err = process.communicate(timeout=200)
        assert process.returncode != 0 and "changed while the environment was made" in err, err
        gone(s)
        assert not w.runs() and not s.jobs()
        assert seen(s, s.submit("--", "python3", "look.py"))["lib"] == "numpy==2\n"


def test_an_interrupt_leaves_nothing(w):
    with place(w, keys=SLOW) as s:
        process = started(w)
        builder_pod(s)
        process.send_signal(2)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, (process.returncode, err)
        gone(s)
        assert not w.runs() and not s.jobs()


# It goes on when two wait to take what it makes.
TWO_TAKE = """until [ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx take) -ge 2 ]; do sleep 0.2; done
echo two wait; sleep 4; sh setup.sh"""


@left_to_all("test_an_interrupt_leaves_nothing; test_who_makes_it_is_killed_and_the_next_goes_on")
def test_an_interrupt_of_one_leaves_it_to_the_other(w):
    with place(w, keys={"setup": {**SLOW["setup"], "run": TWO_TAKE}}) as s:
        first, second = started(w), started(w)
        pod = builder_pod(s)
        wait_for(lambda: "two wait" in s.cluster.kubectl("-n", s.namespace, "logs", pod, check=False), "both of them", 60)
        first.send_signal(2)
        _, err = first.communicate(timeout=60)
        assert first.returncode == 130, (first.returncode, err)
        assert builder_pod(s) == pod
        out, err = second.communicate(timeout=200)
        assert second.returncode == 0 and "made in" in err and [r["id"] for r in w.runs()] == [out.strip()], (out, err)
        gone(s)


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


def test_a_secret_that_the_setup_writes_down_is_in_no_image(w):
    line = 'mkdir -p .venv && echo "token = $TOKEN" >.venv/pip.conf; echo x >/opt/x || mkdir -p /opt'
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}) as s:
        run = s.submit("--secret", "TOKEN", "--", "sh", "-c", "test -f .venv/pip.conf", env={"TOKEN": "canary-4711-value"})
        assert "writes the secret TOKEN" in s.said and "/dlrun/env/tree/.venv/pip.conf" in s.said, s.said
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        gone(s)
        again = s.submit("--secret", "TOKEN", "--", "true", env={"TOKEN": "canary-4711-value"})
        assert "writes the secret TOKEN" in s.said and s.ended(again)["state"] == "succeeded", s.said
        kept = b"".join(p.read_bytes() for p in w.dir.rglob("*") if p.is_file() and w.home in p.parents)
        assert b"canary-4711" not in kept


def test_a_secret_of_the_one_that_was_killed_is_in_no_image(w):
    """The next one goes on with its pod, and has another value."""
    line = 'sleep 4; mkdir -p .venv && echo "token = $TOKEN" >.venv/pip.conf'
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}) as s:
        process = started(w, "--secret", "TOKEN", env={"TOKEN": "canary-4711-first"})
        builder_pod(s)
        process.kill()
        process.wait()
        run = s.submit("--secret", "TOKEN", "--", "test", "-f", ".venv/pip.conf", env={"TOKEN": "canary-4712-other"})
        assert "writes the secret TOKEN to /dlrun/env/tree/.venv/pip.conf" in s.said, s.said
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        gone(s)


def test_without_key_files_the_setup_is_run_in_each_pod(w):
    with place(w, keys={"setup": {"run": "sh setup.sh"}}) as s:
        first, other = seen(s, s.submit("--", "python3", "look.py")), seen(s, s.submit("--", "python3", "look.py"))
        assert "setup.key names no files" in s.said and first["when"] != other["when"], s.said


def test_the_restricted_level(w):
    line = "mkdir -p .venv/bin && echo home >.venv/pyvenv.cfg && id -u >.venv/uid"
    with place(w, keys={"setup": {"run": line, "key": ["wanted.txt"]}}, labels={"pod-security.kubernetes.io/enforce": "restricted"}) as s:
        run = s.submit("--", "sh", "-c", "echo $VIRTUAL_ENV; cat .venv/uid; [ -h .venv ]")
        assert "environment env-" in s.said, s.said
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        assert s.output(run).split()[0] == "/dlrun/src/.venv" and s.output(run).split()[1] != "0", s.output(run)


TOOL = """#!/bin/sh
mkdir -p "$5/bin" "$5/conda-meta" "$CONDA_PKGS_DIRS" "$HOME/.conda" && cp "$7" "$CONDA_PKGS_DIRS/kept" || exit
printf '#!/bin/sh\\necho "$0 of $CONDA_PREFIX$VIRTUAL_ENV, %s"\\n' "$(cat "$7")" >"$5/bin/tool"
chmod 775 "$5/bin/tool" && touch "$5/conda-meta/history" && umask >"$5/umask"
mkdir -p /opt/own && echo mine >/opt/own/key && chmod 440 /opt/own/key
[ "$(cat "$7")" != unresolvable ] || { echo "nothing provides nosuch" >&2; exit 1; }
"""
USED = "tool; stat -c %a -L .venv/bin/tool /opt/own/key; cat .venv/umask; find / -xdev -name kept"


def test_an_environment_of_conda(w):
    """A stand-in for micromamba in the tree makes it: conda.py has the real thing."""
    keys = {"env": {"PATH": "/dlrun/src/tools:/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": "/outer"}}
    with place(w, keys=keys) as s:
        w.write("tools/micromamba", TOOL)
        (w.tree / "tools/micromamba").chmod(0o755)
        w.write("dlrun.yaml", json.dumps({**{k: v for k, v in json.loads((w.tree / "dlrun.yaml").read_text()).items() if k != "setup"},
                                          "environment": {"lock": "conda-lock.yml"}}))
        w.ok("config", "trust", "--yes")
        w.write("conda-lock.yml", "unresolvable")
        failed = w.run("submit", "-d", "--", "tool")
        assert failed.rc != 0 and "the setup failed: lock=conda-lock.yml" in failed.err and "nothing provides nosuch" in failed.err, failed
        gone(s)
        assert not w.runs() and not s.jobs()
        w.write("conda-lock.yml", "first")
        run = s.submit("--", "sh", "-c", USED)
        assert "environment env-" in s.said and s.ended(run)["state"] == "succeeded", (s.said, s.why(run))
        assert s.output(run).split("\n") == ["/dlrun/src/.venv/bin/tool of /dlrun/src/.venv, first", "755", "440", "0022", ""], s.output(run)
        again = s.submit("--", "tool")
        assert "environment" not in s.said and s.ended(again)["state"] == "succeeded", s.why(again)


PROJECT = """[project]
name = "own"
version = "1"
requires-python = ">=3.8"
dependencies = ["small=={}"]
[tool.uv]
package = false
no-index = true
find-links = ["wheels"]
"""
USES = "import small, sys; print(small.VERSION, sys.prefix)"


def first_line_s(w, keys):
    """From the command to the first line of the program, on a node that has the image's layers but for the code."""
    w.write("dlrun.yaml", keys)
    begin = time.monotonic()
    with subprocess.Popen([w.dlrun, "submit", "-f", "--", "python3", "a.py"], cwd=w.tree, env=w.env, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        line = process.stdout.readline()
        seconds = time.monotonic() - begin
        process.stdout.read()
    assert process.returncode == 0 and line == "hello\n", line
    return round(seconds, 2)


def lock(w, version):
    w.write("pyproject.toml", PROJECT.format(version))
    uv("lock", "-q", cwd=w.tree)


@left_to_all("test_an_environment_is_made_once_and_found; conda: test_lock_files")
def test_a_lock_file_of_uv(w):
    keys = {"environment": {"lock": "uv.lock"}, "limits": {"file": "200M", "size": "500M"},
            "env": {"PATH": "/dlrun/src/tools:/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/dlrun/src/tools"}}
    with place(w, keys=keys) as s:
        for version in ("1.0", "2.0"):
            w.write(f"wheels/small-{version}-py3-none-any.whl", wheel("small", version))
        w.write("use.py", USES)
        (w.tree / "tools").mkdir()
        for file in (tools() / "uv", *libraries([tools() / "uv"])):
            shutil.copy(file, w.tree / "tools")
        w.write("dlrun.yaml", json.dumps({k: v for k, v in json.loads((w.tree / "dlrun.yaml").read_text()).items() if k != "setup"}))
        w.ok("config", "trust", "--yes")
        lock(w, "1.0")
        run = s.submit("--", "python", "use.py")
        assert "environment env-" in s.said and s.ended(run)["state"] == "succeeded", (s.said, s.why(run))
        assert s.output(run) == "1.0 /dlrun/src/.venv\n", s.output(run)
        lock(w, "2.0")
        newer = s.submit("--", "python", "use.py")
        assert s.ended(newer)["state"] == "succeeded" and s.output(newer).startswith("2.0 "), s.output(newer)
        with_it = (w.tree / "dlrun.yaml").read_text()
        without_any = json.dumps({k: v for k, v in json.loads(with_it).items() if k != "environment"})
        pairs = [[first_line_s(w, text) for text in (with_it, without_any)] for _ in range(6 if ALL else 3)][1:]
        with_layer, without = (statistics.median(each) for each in zip(*pairs))
        print(f"# Enter to first line: {with_layer:.2f} s with the environment, {without:.2f} s without any; {pairs}")
        assert with_layer < without + 5


if __name__ == "__main__":
    main()
