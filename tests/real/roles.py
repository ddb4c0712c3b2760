#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs with roles on this machine: a learner and its actors, each role a group of its own, and how one ends the run.

examples/roles is what an RL loop looks like; the tests of hosts and clusters run the same files."""

import json
import shutil
import socket
import subprocess

from attempts import fake_gpus, kill_supervisors
from harness import *  # noqa: F403
from projects import OLD_LAUNCHER, PYTHON, here, project
from pypi import CACHE, activated, build, only_one, pip_install, tools
from ranks import ended, nothing_left, of_run, ranks_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/roles"


def rl_environment():
    """A virtual environment with gymnasium over the system's torch, made once."""
    done = subprocess.run([PYTHON, "-c", "from torch.version import __version__ as v; print(v)"], capture_output=True, text=True)
    if done.returncode:
        raise Missing("python3-torch is not installed")
    there = CACHE / f"cartpole-{done.stdout.strip()}"
    with only_one("cartpole"):
        if not (there / "whole").exists():
            shutil.rmtree(there, ignore_errors=True)
            tools()
            build(PYTHON, "-m", "venv", "--system-site-packages", "--without-pip", there)
            pip_install(there, "gymnasium", timeout=600)
            (there / "whole").touch()
    return there


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def roles_file(w, roles, **more):
    w.write("dlrun.yaml", json.dumps({"roles": roles, **more}, indent=1))


def rl_project(w):
    """The example as somebody would have cloned it."""
    shutil.copytree(EXAMPLE, w.tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    w.repo({})


def check_learned(w, run, actors=4):
    """Each actor has played, and none has made the run fail."""
    doc = w.show(run)
    assert doc["state"] == "succeeded" and doc["roles"] == {"learner": 1, "actors": actors} and doc["ends_with"] == "learner", doc
    assert doc["ranks"][0]["state"] == "succeeded", doc["ranks"]
    assert all((r["state"], r["exit"]["reason"]) == ("cancelled", "RoleEnded") for r in doc["ranks"][1:]), doc["ranks"]
    w.ok("fetch", run, "-o", w.dir / "learned")
    found, = (w.dir / "learned").rglob("result.json")
    result = json.loads(found.read_text())
    names = [f"actor {i} of {actors}" for i in range(actors)]
    assert sorted(result["by_actor"]) == names and all(n > 0 for n in result["by_actor"].values()), result
    assert result["mean_return"] >= 120, result
    log = w.ok("logs", run).out
    assert "[learner.0] learner: solved after" in log and all(f"[actors.{i}] actor {i} of {actors}" in log for i in range(actors)), log
    own = w.ok("logs", "--role", "actors", "--rank", "2", run).out
    assert own and all(line.startswith(f"actor 2 of {actors}:") for line in own.splitlines()), own
    assert {line.split("]")[0] for line in w.ok("logs", "--role", "actors", run).out.splitlines()} == {f"[actors.{i}" for i in range(actors)}
    assert w.ok("logs", "--role", "learner", run).out.startswith("learner: listens on port")


def test_learner_and_actors(w):
    rl_project(w)
    w.env.update(activated(w, rl_environment(), OMP_NUM_THREADS="1"))
    done = w.run("submit", "-f", "-e", f"LEARNER_PORT={free_port()}", timeout=300)
    assert done.rc == 0 and "learner 1, actors 4" in done.err, done
    run = w.show()["id"]
    check_learned(w, run)
    nothing_left(run)
    shown = w.ok("show", run).out
    assert "actors: python3 act.py --learner '{learner.0}'" in shown and "ends with" in shown, shown


VARIABLES = "echo $DLRUN_ROLE $DLRUN_ROLE_RANK $DLRUN_ROLE_NODES $NODE_RANK $NNODES $CUDA_VISIBLE_DEVICES/$DLRUN_GPUS_PER_NODE $WHO {a-b.1} $(wc -l <$DLRUN_HOSTFILE)"


def test_variables_and_gpus(w):
    w.repo()
    fake_gpus(w, 4)
    roles_file(w, {"a-b": {"nodes": 2, "command": VARIABLES, "env": {"WHO": "own"}},
                   "c": {"gpus": 3, "command": ["sh", "-c", VARIABLES]}, "d": {"gpus": 1}}, env={"WHO": "all"}, name="many")
    preview = w.ok("submit", "--dry-run", "--", "sh", "-c", VARIABLES).out
    assert "roles     a-b 2, c 1, d 1\n" in preview, preview
    done = w.ok("submit", "-f", "--", "sh", "-c", VARIABLES)
    assert sorted(done.out.splitlines()) == [
        "[a-b.0] a-b 0 2 0 2 /0 own 127.0.0.1 2", "[a-b.1] a-b 1 2 1 2 /0 own 127.0.0.1 2",
        "[c.0] c 0 1 0 1 0,1,2/3 all 127.0.0.1 1", "[d.0] d 0 1 0 1 3/1 all 127.0.0.1 1"], done
    doc = w.show()
    assert doc["roles"] == {"a-b": 2, "c": 1, "d": 1} and doc["resources"]["nodes"] == 4 and "ends_with" not in doc, doc
    lines = [line for line in map(json.loads, w.ok("logs", "--json").out.splitlines()) if "rank" in line]
    assert sorted((line["rank"], line["role"], line["role_rank"]) for line in lines) == [
        (0, "a-b", 0), (1, "a-b", 1), (2, "c", 0), (3, "d", 0)], lines
    # What is typed counts more than a file, in each role.
    done = w.ok("submit", "-f", "-e", "WHO=typed", "--", "sh", "-c", VARIABLES)
    assert len(done.out.splitlines()) == 4 and all(" typed " in line for line in done.out.splitlines()), done
    roles_file(w, {"a": {"gpus": 3}, "b": {"nodes": 2}}, resources={"gpus": 1})
    w.refused("submit", "--", "true", id="gpu.count", rc=2, says=["5 GPUs"])


def test_gpus_of_roles_among_targets(w):
    """This machine has no room while others have the GPUs that the roles want."""
    w.repo()
    fake_gpus(w, 4)
    roles = {"learner": {"gpus": 2, "command": "exec sleep 600"}, "actors": {"nodes": 2, "gpus": 1, "command": "exec sleep 600"}}
    roles_file(w, roles, name="loop", targets={"dead": {"kind": "ssh", "hosts": ["127.0.0.1:1"]}}, grace="1s")
    first = w.ok("submit", "-d").out.strip()
    wait_for(lambda: w.show(first)["state"] == "running", "its start")
    second = w.ok("submit", "-d", "-t", "local,dead", timeout=60).out.strip()
    assert w.show(second)["places"][0]["text"] == "4 GPUs, none free", w.show(second)["places"]
    w.ok("cancel", first, second)


def test_a_role_that_fails(w):
    w.repo()
    roles_file(w, {"learner": {"command": "exec sleep 600"},
                   "actors": {"nodes": 3, "command": "test $NODE_RANK = 1 || exec sleep 600; sleep 0.3; exit 7"}}, ends_with="learner")
    done = w.run("submit", "-f", "-n", "loop")
    assert done.rc == 7 and "actors.1: the program exited with 7" in done.err, done
    doc = w.show()
    assert ranks_of(doc) == [(0, "cancelled", "PeerEnded"), (1, "cancelled", "PeerEnded"), (2, "failed", "Error"),
                             (3, "cancelled", "PeerEnded")], doc
    assert "actors.1" in w.ok("why").out and "actors.1" in w.ok("show").out
    (w.tree / "dlrun.yaml").unlink()
    done = w.run("restart", "-f", doc["id"])
    assert done.rc == 7 and "actors.1: the program exited with 7" in done.err, done
    assert [a["exit"]["code"] for a in w.show()["attempts"]] == [7, 7] and w.show()["roles"] == {"learner": 1, "actors": 3}
    nothing_left(doc["id"])


def test_reached_by_role(w):
    w.repo()
    roles_file(w, {"learner": {"command": "echo up; exec sleep 600"}, "actors": {"nodes": 2, "command": "echo up; exec sleep 600"}},
               ends_with="learner", name="loop")
    run = w.ok("submit", "-d", "--grace", "1s").out.strip()
    wait_for(lambda: w.ok("logs", run).out.count("up") == 3, "all run")
    line = "echo $DLRUN_ROLE $DLRUN_ROLE_RANK $NODE_RANK of $NNODES $DLRUN_ROLE_LEARNER $(wc -l <$DLRUN_HOSTFILE)"
    assert w.ok("exec", "--role", "actors", "--rank", "1", run, "--", "sh", "-c", line).out == "actors 1 1 of 2 127.0.0.1 2\n"
    assert w.ok("exec", run, "--", "sh", "-c", line).out == "learner 0 0 of 1 127.0.0.1 1\n"
    w.refused("exec", "--role", "actors", "--rank", "2", run, "--", "true", id="usage", rc=2, says=["role actors of", "ranks 0 to 1"])
    w.refused("logs", "--role", "actor", run, id="usage", rc=2, says=["has no role 'actor': it has learner, actors"])
    w.refused("logs", "--role", "a", "--failed", run, id="usage", rc=2, says=["--failed cannot be used together with --role"])
    w.ok("cancel", run)
    doc = ended(w, run)
    assert doc["state"] == "cancelled" and ranks_of(doc) == [(i, "cancelled", "Cancelled") for i in range(3)], doc
    nothing_left(run)


def test_torchrun_in_each_role(w):
    """Two groups of two ranks: each has a sum of its own."""
    here(w)
    project(w, "torchrun")
    w.write("sitecustomize.py", OLD_LAUNCHER)
    roles_file(w, {"a": {"nodes": 2}, "b": {"nodes": 2}}, launcher="torchrun", env={"PYTHONPATH": "."})
    done = w.run("submit", "-f", "--", "python", "reduce.py", timeout=300)
    assert done.rc == 0, done
    for role in ("a", "b"):
        assert [line.split("] ", 1)[1] for line in sorted(w.ok("logs", "--role", role).out.splitlines()) if "sum" in line] == [
            "rank 0 of 2: sum 3", "rank 1 of 2: sum 3"], w.ok("logs").out


def test_repeated(w):
    w.repo()
    roles_file(w, {"learner": {"command": "test $DLRUN_ATTEMPT = 2 || exit 5; echo {actors.0} >done"},
                   "actors": {"command": "echo attempt $DLRUN_ATTEMPT; exec sleep 600"}}, ends_with="learner", name="loop")
    done = w.run("submit", "-f", "--retries", "1")
    assert done.rc == 0, done
    assert [a["exit"]["code"] for a in w.show()["attempts"]] == [5, 0]
    first = w.show()["id"]
    (w.tree / "dlrun.yaml").unlink()
    done = w.run("submit", "-f", "--retries", "1", "--from", first)
    assert done.rc == 0 and w.show()["roles"] == {"learner": 1, "actors": 1}, done


def test_supervisor_that_was_killed(w):
    """The learner's end is told to nobody then: a cancel ends the others, which would go on for ever."""
    w.repo()
    roles_file(w, {"learner": {"command": "echo up; until test -e go; do sleep 0.05; done"}, "actors": {"command": "echo up; exec sleep 600"}},
               ends_with="learner", name="loop")
    run = w.ok("submit", "-d", "--grace", "1s").out.strip()
    wait_for(lambda: w.ok("logs", run).out.count("up") == 2, "both run")
    kill_supervisors(run)
    (w.state / "runs" / run / "attempts/1/tree/go").touch()
    wait_for(lambda: len(of_run(run)) == 1, "the end of the learner")
    assert "its supervisor was killed" in w.show(run)["text"], w.show(run)
    w.run("cancel", run)
    assert ended(w, run)["state"] in ("cancelled", "lost")
    nothing_left(run)


def test_options_behind_the_command(w):
    """Those of the command line are for the run's own command, in the roles that take it."""
    w.repo()
    roles_file(w, {"a": {}, "b": {"nodes": 2, "command": "echo $NNODES"}}, command=["echo", "hello"], name="loop")
    done = w.ok("submit", "-f", "--", "--all")
    assert sorted(done.out.splitlines()) == ["[a.0] hello --all", "[b.0] 2", "[b.1] 2"], done
    roles_file(w, {"a": {"command": "true"}}, command=["echo", "hello"])
    w.refused("submit", "--", "--all", id="usage", rc=2, says=["each role of the run has a command of its own"])


BAD = [
    ({"Learner": {}}, {}, "is not a valid name of a role"),
    ({"a": {"gpu": 1}}, {}, "unknown key 'gpu' in roles.a"),
    ({"a": {"nodes": 0}}, {}, "roles.a.nodes must be"),
    ({"a": {"command": "echo {b.0}"}}, {}, "{b.0}: there is no role 'b'"),
    ({"a": {"nodes": 2, "command": "echo {a.2}"}}, {}, "{a.2}: role a has the ranks 0 to 1"),
    ({"a": {}}, {"ends_with": "b"}, "ends_with: there is no role 'b'"),
    ({"a": {}}, {"resources": {"nodes": 2}}, "resources.nodes cannot be used for a run with roles"),
    ({"a": {"command": ["true", "&&", "true"]}}, {}, "role a: '&&' is for a shell"),
    ({"a": {"command": ["X=1", "true"]}}, {}, "role a: X=1 in front of its command"),
    ({"a": {"env": {"API_KEY": "x"}}}, {}, "API_KEY looks like a secret"),
    ({f"r{i}": {} for i in range(17)}, {}, "a run has 16 at most"),
]


def test_bad_roles(w):
    w.repo()
    for roles, more, says in BAD:
        roles_file(w, roles, **more)
        words = () if all("command" in role for role in roles.values()) else ("--", "true")
        done = w.run("submit", *words)
        assert done.rc == 2 or done.rc == 3, (roles, done)
        assert says in done.err, (says, done.err)
    roles_file(w, {"a": {}, "b": {"command": "true"}})
    w.refused("submit", id="run.command", rc=2, says=["there is nothing to run"])
    for words, says in ((("-N", "2"), "--nodes cannot be used"), (("-g", "1"), "--gpus cannot be used")):
        w.refused("submit", *words, "--", "true", id="usage", rc=2, says=[says])
    w.refused("sweep", "--over", "k=1,2", "--", "true", id="usage", rc=2, says=["the runs of a study cannot have roles"])
    roles_file(w, {"a": {"command": "true"}})
    w.refused("submit", "--", "true", id="usage", rc=2, says=["each role of the run has a command of its own"])
    assert w.runs() == []


if __name__ == "__main__":
    main()
