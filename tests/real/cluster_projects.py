#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The projects of projects.py in pods, without a dlrun.yaml and without storage for results, and torchrun there."""

import json

from harness import *  # noqa: F403
from kubesite import site
from projects import PROJECTS, QUIET, THERE, at_one_of, check_results, check_resumed, check_said, check_sum, environment, has_begun, launched, project


def pods(w):
    """A target of the user's own configuration, whose pods have this machine's programs and the environment."""
    return site(w, base="machine", files={})


def configure(w, k, environment=environment, **more):
    (w.tree / "dlrun.yaml").unlink()
    paths = {"/usr": "/usr", "/etc/alternatives": "/etc/alternatives", str(environment()): THERE}
    volumes = [{"host_path": at, "path": to, "read_only": True} for at, to in paths.items()]
    target = {"kind": "kubernetes", "host_path": True, "registry": f"{k.cluster.registry}/{k.namespace}/code", "volumes": volumes, **more}
    keys = {"image": k.base, "env": {**QUIET, "VIRTUAL_ENV": THERE, "PATH": f"{THERE}/bin:/usr/bin:/bin"}, "targets": {"pods": target}}
    config = w.home / ".config/dlrun/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(keys, indent=1))


def run_in_a_pod(name):
    def test(w):
        with pods(w) as k:
            configure(w, k)
            project(w, name)
            done = w.run("submit", "-f", "-t", "pods", "--", *PROJECTS[name].command.split(), timeout=600)
            assert done.rc == 0, done
            run = w.show()["id"]
            check_results(w, name, run, None)
            check_said(done, run, name)
    return test


for _name in at_one_of(2):
    globals()[f"test_{_name}_in_a_pod"] = run_in_a_pod(_name)


def test_lightning_goes_on_in_a_pod(w):
    with pods(w) as k:
        k.cluster.volume(k.namespace, "results")
        configure(w, k, results={"pvc": "results"})
        project(w, "resume")
        run = w.ok("submit", "-d", "-t", "pods", "--", "python", "train.py").out.strip()
        has_begun(w, run)
        w.run("cancel", run)
        wait_for(lambda: w.show(run)["state"] == "cancelled", "the end of the run", 120)
        check_resumed(w, run)


def goes_on_without_storage(w, end, *command):
    with pods(w) as k:
        configure(w, k)
        project(w, "resume")
        run = w.ok("submit", "-d", "-t", "pods", "--", "python", "train.py").out.strip()
        has_begun(w, run)
        w.run(*[run if word == "RUN" else word for word in command])
        wait_for(lambda: w.show(run)["state"] == end, "the end of the run", 120)
        check_resumed(w, run)


@left_to_all("test_lightning_goes_on_in_a_pod; cluster_results: test_without_storage_a_restart_carries_them")
def test_lightning_goes_on_without_storage(w):
    """What cancel has taken goes along with the restart."""
    goes_on_without_storage(w, "cancelled", "cancel", "RUN")


@left_to_all("test_lightning_goes_on_in_a_pod; cluster_results: test_without_storage_they_wait_for_a_fetch")
def test_lightning_that_was_killed_goes_on_without_storage(w):
    """The restart takes what the pod holds back."""
    goes_on_without_storage(w, "failed", "exec", "RUN", "--", "pkill", "-9", "-f", "^python train.py")


def test_torchrun_in_two_pods(w):
    with pods(w) as k:
        configure(w, k)
        project(w, "torchrun")
        check_sum(w, w.run("submit", "-f", "-t", "pods", "-N", "2", "--", "torchrun", "reduce.py", timeout=600), 2)


@left_to_all("test_torchrun_in_two_pods; projects: test_launcher_on_two_hosts")
def test_launcher_in_two_pods(w):
    with pods(w) as k:
        configure(w, k)
        project(w, "torchrun")
        options = launched(w, "torchrun:2")
        check_sum(w, w.run("submit", "-f", "-t", "pods", "-N", "2", *options, "--", "python", "reduce.py", timeout=600), 4)
        assert w.show()["command"] == ["python", "reduce.py"], w.show()


if __name__ == "__main__":
    main()
