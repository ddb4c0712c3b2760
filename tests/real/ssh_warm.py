#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun warm` on SSH hosts: what a run needs is there before it, on all of them at once."""

import contextlib
import json
import signal
import subprocess

from harness import *  # noqa: F403
from sshsite import SshSite

SETUP = "echo $(hostname) >>~/setups; mkdir -p made; cp lock made/x"


@contextlib.contextmanager
def lab(w, *names, setup=SETUP, **options):
    """Target lab of these hosts, with a setup and data that are sent."""
    with SshSite(w) as s:
        for name in names:
            s.host(name, **options)
        w.repo({".gitignore": "data/\n", "lock": "1\n"})
        w.write("data/set/a", "there\n")
        w.write("dlrun.yaml", json.dumps({
            "setup": {"run": setup, "key": ["lock"]}, "data": ["data/set"],
            "targets": {"lab": {"kind": "ssh", "hosts": list(names), "data": {"data/set": "sync"}}}}))
        yield s


def setups(s, name):
    path = s[name].home / "setups"
    return path.read_text().split() if path.exists() else []


def nothing_stays(s, *names):
    assert not s.w.runs() and not list(s.w.state.rglob("*env-*")), (s.w.runs(), list(s.w.state.rglob("*env-*")))
    for name in names:
        wait_for(lambda: not s[name].files(".dlrun/on/*/runs/env-*"), "the end of what warmed it", 30)
        assert not s[name].files(".dlrun/on/*/runs/*"), s[name].files(".dlrun/on/*/runs/*")


def test_all_hosts_have_it_and_the_run_begins_without_it(w):
    """A host that is down stops nobody; the run afterwards makes no setup, and sends neither data nor layers."""
    with lab(w, "gpu1", "gpu2", "gpu3") as s:
        s["gpu3"].stop(sessions=True)
        done = w.run("warm", "-t", "lab", "--json")
        doc = json.loads(done.out)
        assert done.rc == 1 and doc["schema"] == "dlrun/warm/v1" and doc["wanted"] == 3 and "ref" not in doc, done
        assert sorted(doc["warm"]) == ["gpu1", "gpu2"] and [c["name"] for c in doc["cold"]] == ["gpu3"] and doc["cold"][0]["why"], doc
        for name in ("gpu1", "gpu2"):
            assert setups(s, name) == [name] and len(s[name].files(".dlrun/data/*")) == 1, name
        nothing_stays(s, "gpu1", "gpu2")
        done = w.run("submit", "-f", "-t", "lab", "--", "cat", "made/x", "data/set/a")
        assert done.rc == 0 and done.out == "1\nthere\n", done
        assert w.show("@")["image"]["layers_pushed"] == 0, w.show("@")["image"]
        [ran] = w.show("@")["target"]["hosts"]
        assert setups(s, "gpu1") + setups(s, "gpu2") == ["gpu1", "gpu2"] and len(s[ran].files(".dlrun/data/*")) == 1
        s["gpu3"].start()
        again = w.ok("warm", "-t", "lab")
        assert "lab: 3 of 3 hosts are warm" in again.out and "warm: gpu3: it is warm" in again.err, again
        assert [setups(s, name) for name in s.hosts] == [["gpu1"], ["gpu2"], ["gpu3"]]


def test_as_many_as_wanted(w):
    """--nodes goes on to the next host where one is down; hosts that no run would take are not wanted."""
    with lab(w, "gpu1", "gpu2", "gpu3") as s:
        s["gpu1"].stop(sessions=True)
        done = w.run("warm", "-t", "lab", "--nodes", "1")
        assert done.rc == 0 and "lab: 1 of 1 hosts are warm" in done.out and "cold: gpu1: " in done.out, done
        assert setups(s, "gpu2") == ["gpu2"] and setups(s, "gpu3") == []
        s["gpu1"].start()
        more = w.run("warm", "-t", "lab", "-N", "5")
        assert more.rc == 1 and "lab: 3 of 5 hosts are warm" in more.out and "target lab has 3 hosts" in more.out, more
        s["gpu2"].gpus(2)
        config = json.loads((w.tree / "dlrun.yaml").read_text())
        w.write("dlrun.yaml", json.dumps({**config, "resources": {"gpus": 1}}))
        done = w.ok("warm", "-t", "lab")
        assert "lab: 1 of 1 hosts are warm" in done.out, done
        # Of two nodes each has GPUs of its own.
        w.write("dlrun.yaml", json.dumps({**config, "resources": {"gpus": 2, "nodes": 2}}))
        assert "lab: 1 of 1 hosts are warm" in w.ok("warm", "-t", "lab").out
        w.write("dlrun.yaml", json.dumps({**config, "resources": {"gpus": 9}}))
        done = w.run("warm", "-t", "lab")
        assert done.rc == 2 and "no host of target lab could take the run" in done.err and "target.unsupported" in done.err, done
        w.refused("warm", "-t", "local", rc=2, id="target.unsupported", says="is this machine")


def test_a_setup_that_fails_is_cold(w):
    with lab(w, "gpu1", "gpu2", setup="[ $(hostname) = gpu2 ] || exit 7") as s:
        done = w.run("warm", "-t", "lab")
        assert done.rc == 1 and "lab: 1 of 2 hosts are warm" in done.out and "setup failed with exit 7" in done.out, done
        nothing_stays(s, "gpu1", "gpu2")


def test_two_at_once_make_one_setup_and_one_that_is_ended_takes_nothing(w):
    """The other goes on and makes it, whoever had begun; a run that is submitted meanwhile waits for the same."""
    wait = "; echo >>~/begun; until [ -e ~/go ]; do sleep 0.1; done"
    with lab(w, "gpu1", setup=SETUP + wait) as s:
        def begin():
            return subprocess.Popen([w.dlrun, "warm", "-t", "lab"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)

        begun = s["gpu1"].home / "begun"
        first = begin()
        wait_for(begun.exists, "its setup", 60)
        second = begin()
        run = w.ok("submit", "-d", "-t", "lab", "--", "cat", "made/x").out.strip()
        wait_for(lambda: "the same setup" in (w.show(run).get("text") or ""), "its waiting", 60)
        wait_for(lambda: len(s["gpu1"].files(".dlrun/on/*/runs/env-*")) == 2, "both of them", 60)
        first.send_signal(signal.SIGINT)
        first.communicate()
        assert first.returncode == 130, first.returncode
        wait_for(lambda: len(begun.read_text().split("\n")) == 3, "the setup of another", 60)
        (s["gpu1"].home / "go").touch()
        out, said = second.communicate()
        assert second.returncode == 0 and "lab: 1 of 1 hosts are warm" in out, (out, said)
        assert s.ended(run)["state"] == "succeeded" and w.ok("logs", run).out == "1\n"
        # Once by the one that was ended, once for both of the others.
        assert setups(s, "gpu1") == ["gpu1"] * 2, setups(s, "gpu1")
        assert not s["gpu1"].files(".dlrun/on/*/runs/env-*") and "env-" not in w.ok("ps", "-a").out


if __name__ == "__main__":
    main()
