#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run of this machine, one on a node and one in a pod, in one real TensorBoard in a real Chromium."""

import contextlib
import json

from chromium import Chromium
from harness import *  # noqa: F403
from kubesite import site
from sshsite import SshSite
from tensorboard import CARDS, EVENTS, NEW_S, SHOTS, TRAIN, finished, same_packages, shown, with_tensorboard


def steps_of(slope, n):
    return [(i, float(slope) * i) for i in range(n)]


def plotted(w, run):
    """The loss as plot draws it now."""
    curve, = json.loads(w.ok("plot", "--json", "--tag", "loss", run).out)["curves"]
    return list(zip(curve["step"], curve["value"]))


def say(w, run, word):
    """What the program of a pod reads next."""
    w.ok("exec", run, "--", "sh", "-c", f"echo {word} >/tmp/control.new && mv /tmp/control.new /tmp/control")


def test_three_places_in_one_tensorboard(w):
    with_tensorboard(w)
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}, results={"emptyDir": True}) as k, SshSite(w) as s:
        node = s.host("gpu1")
        (node.home / "control").write_text("5")
        pod = k.submit("--grace", "1s", "-n", "pod", "--", "python3", "train.py", "4", "/tmp/control")
        there = s.submit("-n", "node", "--", "python3", "train.py", "3", "/home/me/control")
        here = finished(w, options=["-t", "local"])
        wait_for(lambda: w.show(pod)["state"] == "running", "the start of the pod", 90)
        say(w, pod, 6)
        with shown(w, here, there, pod) as tb, contextlib.closing(Chromium(w.dir / "browser")) as page:
            tb.open()
            wanted = {here: steps_of(2, 20), there: steps_of(3, 5), pod: steps_of(4, 6)}
            for run, steps in wanted.items():
                wait_for(lambda: tb.steps(f"{run}/tb") == steps, f"the points of {run}", NEW_S)
            page.open(tb.url + "#timeseries")
            page.wait_for(CARDS, lambda cards: len(cards) == 2 and all(
                c["curves"] >= 3 and all(run in c["names"] for run in wanted) for c in cards), "three curves in each card")
            page.screenshot(SHOTS / "tensorboard-local-ssh-pod.png")
            say(w, pod, 11)
            (node.home / "control").write_text("9")
            wait_for(lambda: tb.steps(f"{pod}/tb") == steps_of(4, 11), "new points of the pod", NEW_S)
            wait_for(lambda: tb.steps(f"{there}/tb") == steps_of(3, 9), "new points of the node", NEW_S)
            page.run("document.querySelector('app-header-reload button').click()")
            page.wait_for(CARDS, lambda cards: any("40" in c["text"].split() for c in cards), "the new last value of the pod")
            page.screenshot(SHOTS / "tensorboard-local-ssh-pod-new.png")
            tb.stop()
        say(w, pod, 13)
        wait_for(lambda: plotted(w, pod) == steps_of(4, 13), "newer points of the pod in the terminal", NEW_S)
        for run in (there, pod):
            assert w.show(run)["state"] == "running"
            w.run("cancel", run)
        k.ended(pod)
        s.ended(there)


def test_results_that_ended_with_the_pod(w):
    """Nothing was looked at before."""
    with_tensorboard(w)
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}, results={"emptyDir": True}) as k:
        pod = k.submit("--", "true")
        k.ended(pod)
        k.without_pods()
        w.refused("tensorboard", pod, id="kube.storage", rc=2, says=["ended with its pod", "results: {claim: 20Gi}"])


def running_in(w, run):
    """Whether a TensorBoard of dlrun's runs in the pod."""
    return "json.loads" in w.ok("exec", run, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | sed 's/sh -c cat.*//'").out


def give_libraries(w, packages):
    """The image has hardly any: links in lib to those of this machine that the packages need."""
    (w.dir / "lib").mkdir()
    told = subprocess.run(["ldd", *packages.rglob("*.so"), *packages.rglob("*.so.*")], capture_output=True, text=True).stdout
    for name, path in set(re.findall(r"^\t(\S+) => (/(?:usr/)?lib/\S+)", told, re.M)):
        if name != "libc.so.6":
            (w.dir / "lib" / name).symlink_to(path)


def test_one_is_started_in_a_pod(w):
    """By the Python of the pod; it ends with the command, also when that is killed."""
    with_tensorboard(w)
    packages = same_packages()
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}, results={"emptyDir": True}) as k:
        pod = k.submit("--grace", "1s", "-e", "PYTHONPATH=/tmp/site-packages", "-e", "LD_LIBRARY_PATH=/tmp/lib", "--", "python3", "train.py", "4", "/tmp/control")
        wait_for(lambda: w.show(pod)["state"] == "running", "the start of the pod", 90)
        give_libraries(w, packages)
        with subprocess.Popen(["tar", "-ch", "-C", packages.parent, packages.name, "-C", w.dir, "lib"], stdout=subprocess.PIPE) as tar:
            w.ok("exec", pod, "-i", "--", "tar", "-C", "/tmp", "-x", stdin=tar.stdout)
        done = w.run("exec", pod, "--", "python3", "-c", "import numpy, tensorboard.main")
        if done.rc:
            raise Skip(f"libraries of this machine are not for the image: {(done.err + done.out)[-300:]}")
        say(w, pod, 6)
        with shown(w, "--remote", pod) as tb:
            tb.open()
            assert "started there" in tb.said(), tb.said()
            wait_for(lambda: tb.steps("tb") == steps_of(4, 6), "its points", NEW_S)
            assert running_in(w, pod)
            tb.stop()
        wait_for(lambda: not running_in(w, pod), "the end of TensorBoard there", 20)
        with shown(w, "--remote", pod) as tb:
            tb.open().process.kill()
            tb.process.wait()
        wait_for(lambda: not running_in(w, pod), "its end after a kill", 60)
        w.run("cancel", pod)
        k.ended(pod)


def test_beside_the_program_in_a_pod(w):
    """No TensorBoard in the image: said so, with what to do."""
    with_tensorboard(w)
    with site(w, results={"emptyDir": True}) as k:
        pod = k.submit("--grace", "1s", "--", "sleep", "300")
        wait_for(lambda: w.show(pod)["state"] == "running", "the start of the pod", 90)
        w.refused("tensorboard", "--remote", pod, id="tensorboard.missing", rc=5, says=[pod, "python3 -m pip install tensorboard"])
        w.run("cancel", pod)
        k.ended(pod)


if __name__ == "__main__":
    main()
