#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs with roles in a real cluster: a learner and actors that find it by its address, ends_with, failures, and what is read of them."""

import json
from pathlib import Path

import cluster_projects as projects
from cluster_jobset import jobset_site, jobsets
from harness import *  # noqa: F403
from kubesite import site as plain_site
from roles import check_learned, rl_environment, rl_project

LEARN = """\
import json, os, socket, sys, time
print("learner", os.environ["NODE_RANK"], os.environ["NNODES"], os.environ["DLRUN_ROLE_ACTORS"], flush=True)
server, heard = socket.create_server(("", 5577)), set()
while len(heard) < int(sys.argv[1]):
    heard.add(server.accept()[0].makefile().readline().strip())
with open(os.environ["DLRUN_OUTPUT_DIR"] + "/heard.json", "w") as file:
    json.dump(sorted(heard), file)
print("heard", *sorted(heard), flush=True)
while "HELD" in os.environ and not os.path.exists(os.environ["DLRUN_OUTPUT_DIR"] + "/go"):
    time.sleep(0.1)
"""
ACT = """\
import os, signal, socket, sys, time
who = f'{os.environ["DLRUN_ROLE"]}.{os.environ["DLRUN_ROLE_RANK"]}'
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(who, "was asked to end", flush=True)))
while True:
    try:
        there = socket.create_connection((sys.argv[1], 5577), 5)
        break
    except OSError:
        time.sleep(0.2)
print(who, "of", os.environ["DLRUN_ROLE_NODES"], "plays for", sys.argv[1], os.environ["SEED"], flush=True)
there.sendall(who.encode() + b"\\n")
if sys.argv[2:] == [os.environ["DLRUN_ROLE_RANK"]]:
    sys.exit(3)
while True:
    time.sleep(0.2)
"""
FILES = {"learn.py": LEARN, "act.py": ACT}


def roles(actors=2, wait_for=2, fails=None):
    act = ["python", "act.py", "{learner.0}", *([fails] if fails is not None else [])]
    return {"roles": {"learner": {"cpus": 0.2, "command": ["python", "learn.py", str(wait_for)]},
                      "actors": {"nodes": actors, "cpus": 0.1, "memory": "32Mi", "command": act, "env": {"SEED": "7"}}},
            "ends_with": "learner", "grace": "2s"}


def site(w, **keys):
    return jobset_site(w, files=FILES, keys={**roles(), **keys})


def states(run):
    return [r["state"] for r in run["ranks"]]


def pods_of(s, run):
    return s.cluster.get("Pod", namespace=s.namespace, labelSelector=f"dlrun.io/run-id={run}")


def test_the_run_ends_with_its_learner(w):
    keys = roles()
    keys["roles"]["learner"]["env"] = {"HELD": "1"}
    with site(w, **keys) as s, concurrent.futures.ThreadPoolExecutor(1) as thread:
        following = thread.submit(w.run, "submit", "-f", timeout=180)
        # Pods of actors, and what they have printed, may go with the learner at once.
        wait_for(lambda: w.run("logs", "@").out.count(" plays for ") == 2, "what the actors print", 120)
        w.ok("exec", "@", "--rank", "0", "--", "sh", "-c", "touch $DLRUN_OUTPUT_DIR/go")
        done = following.result()
        assert done.rc == 0, done
        run = w.show()
        assert run["state"] == "succeeded" and states(run) == ["succeeded", "cancelled", "cancelled"], run
        assert [r["exit"]["reason"] for r in run["ranks"]] == ["Completed", "RoleEnded", "RoleEnded"], run
        host = f"{run['id']}-learner-0-0.{run['id']}"
        for line in (f"actors.0 of 2 plays for {host} 7", f"actors.1 of 2 plays for {host} 7", "heard actors.0 actors.1"):
            assert line in done.out, done
        actors = ",".join(f"{run['id']}-actors-0-{i}.{run['id']}" for i in (0, 1))
        assert f"learner 0 1 {actors}" in done.out, done
        made, = jobsets(s)
        assert [j["name"] for j in made["spec"]["replicatedJobs"]] == ["learner", "actors"]
        asked = [j["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] for j in made["spec"]["replicatedJobs"]]
        assert [a["requests"].get("cpu") for a in asked] == ["200m", "100m"] and asked[1]["limits"] == {"memory": "32Mi"}, asked
        s.cluster.wait(lambda: all(p["status"]["phase"] == "Succeeded" for p in pods_of(s, run["id"])), "the end of the actors", 60)
        logs = w.ok("logs", run["id"]).out
        assert "heard actors.0 actors.1" in logs and "actors.1 of 2 plays" in logs, logs


def test_a_role_that_fails(w):
    # A failure waits as long as results of the learner may wait in its pod.
    with site(w, linger="4s", **roles(wait_for=3, fails="1")) as s:
        run = s.submit()
        end = s.ended(run)
        assert end["state"] == "failed" and end["exit"]["code"] == 3, end
        assert [r["state"] for r in end["ranks"]][2] == "failed", end
        why = s.why(run)
        assert "actors.1" in json.dumps(why), why
        s.cluster.wait(lambda: not any(p["status"]["phase"] == "Running" for p in pods_of(s, run)), "the end of the others", 60)


def test_cancel(w):
    with site(w, **roles(wait_for=3)) as s:
        run = s.submit()
        wait_for(lambda: states(w.show(run)) == ["running"] * 3, "all ranks", 90)
        s.cancel(run)
        s.cluster.wait(lambda: not jobsets(s) and not pods_of(s, run), "an empty namespace", 60)


def test_the_cluster_starts_all_roles_anew(w):
    with site(w, **roles(wait_for=3)) as s:
        run = s.submit("--retries", "1")
        wait_for(lambda: states(w.show(run)) == ["running"] * 3, "all ranks", 90)
        w.run("exec", run, "--rank", "2", "--", "sh", "-c", "kill -9 -- -1 2>/dev/null; pkill -9 -f act.py; true")
        s.cluster.wait(lambda: jobsets(s)[0]["status"].get("restarts") == 1, "a restart", 90)
        wait_for(lambda: states(w.show(run)) == ["running"] * 3, "all ranks again", 90)
        assert [r["attempt"] for r in w.show(run)["ranks"]] == [2, 2, 2]
        s.cancel(run)


def test_another_machine_sees_the_run(w):
    with site(w, **roles(wait_for=3)) as s:
        run = s.submit()
        wait_for(lambda: states(w.show(run)) == ["running"] * 3, "all ranks", 90)
        away = {**w.env, "XDG_STATE_HOME": str(w.dir / "other")}
        assert states(json.loads(w.ok("show", "--json", f"k:{run}", env=away).out)) == ["running"] * 3
        s.cancel(run)


def without_jobset(w, **keys):
    """One that may not be used is as none."""
    return plain_site(w, role="edit", files=FILES, keys={**roles(), **keys})


def test_without_jobset_the_run_ends_with_its_learner(w):
    with without_jobset(w) as s:
        done = w.run("submit", "-f", timeout=180)
        assert done.rc == 0, done
        run = w.show()
        assert run["state"] == "succeeded" and states(run) == ["succeeded", "cancelled", "cancelled"], run
        for line in (f"actors.0 of 2 plays for {run['id']}-0.{run['id']} 7", f"actors.1 of 2 plays for {run['id']}-0.{run['id']} 7",
                     f"learner 0 1 {run['id']}-1.{run['id']},{run['id']}-2.{run['id']}", "heard actors.0 actors.1"):
            assert line in done.out, done
        made, = s.jobs()
        assert made["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}, made["spec"]
        s.cluster.wait(lambda: not any(p["status"]["phase"] == "Running" for p in pods_of(s, run["id"])), "the end of the actors", 60)


@left_to_all("test_a_role_that_fails; test_without_jobset_the_run_ends_with_its_learner")
def test_without_jobset_a_role_fails(w):
    with without_jobset(w, linger="4s", **roles(wait_for=3, fails="1")) as s:
        run = s.submit()
        assert "no JobSet" in s.said, s.said
        end = s.ended(run)
        assert end["state"] == "failed" and end["exit"]["code"] == 3 and "actors.1" in json.dumps(s.why(run)), end


def test_without_jobset_gpus_differ(w):
    with without_jobset(w, roles={"learner": {"gpus": 1, "command": ["true"]}, "actors": {"command": ["true"]}}) as s:
        done = w.run("submit", "-d")
        assert done.rc != 0 and "need JobSet" in done.err and not w.runs() and not s.jobs(), done


TORCH = """\
import os
import torch.distributed as dist
import torch
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
print(os.environ["DLRUN_ROLE"], "rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), flush=True)
"""


@left_to_all("test_the_run_ends_with_its_learner; cluster_projects: test_torchrun_in_two_pods; roles: test_torchrun_in_each_role")
def test_torchrun_in_each_of_two_roles(w):
    with jobset_site(w, a_site=lambda w: plain_site(w, base="machine", files={})) as s:
        roles_of_two = {name: {"nodes": 2, "command": ["torchrun", "group.py"]} for name in ("red", "blue")}
        projects.configure(w, s)
        w.write("dlrun.yaml", json.dumps({"roles": roles_of_two}))
        w.repo({"group.py": TORCH})
        done = w.run("submit", "-f", "-t", "pods", timeout=300)
        assert done.rc == 0, done
        for role in roles_of_two:
            for rank in (0, 1):
                assert f"{role} rank {rank} of 2 sum 3.0" in done.out, done
        assert states(w.show()) == ["succeeded"] * 4, w.show()


@left_to_all("test_the_run_ends_with_its_learner; roles and ssh_run_roles: test_learner_and_actors")
def test_the_example(w):
    """CartPole as somebody wrote it who knows nothing of dlrun."""
    with jobset_site(w, a_site=lambda w: plain_site(w, base="machine", files={})) as s:
        projects.configure(w, s, environment=rl_environment)
        rl_project(w)
        done = w.run("submit", "-f", "-t", "pods", timeout=500)
        assert done.rc == 0, done
        check_learned(w, w.show()["id"])


if __name__ == "__main__":
    main()
