#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of several roles on hosts: each rank on a host that fits its role, groups that find each other, one end."""

import json

from harness import *  # noqa: F403
from projects import lab, project
from roles import check_learned, rl_environment, rl_project
import ssh_home
from ssh_pool import host_of, pool
from sshsite import SshSite

HOSTS = "gpu1,gpu2,gpu3"
ROLES = {"learner": {"gpus": 2}, "actors": {"nodes": 2, "gpus": 0}}


def roles(w, learner, actors, ends_with="learner", **more):
    """Lines of a shell for the two roles; more: keys of dlrun.yaml."""
    commands = {"learner": learner, "actors": actors}
    made = {name: {**role, "command": commands[name]} for name, role in ROLES.items()}
    w.write("dlrun.yaml", json.dumps({"roles": made, **({"ends_with": ends_with} if ends_with else {}), "grace": "1s", **more}))


def ends(w, run="@"):
    """State and reason of each rank."""
    return [(r["state"], (r["exit"] or {}).get("reason")) for r in w.show(run)["ranks"]]


def nothing_runs(s, run):
    for name in HOSTS.split(","):
        wait_for(lambda: not s[name].processes(run), f"the end of its processes on {name}", 20)


TOLD = ("echo $DLRUN_ROLE $DLRUN_ROLE_RANK/$DLRUN_ROLE_NODES $NODE_RANK/$NNODES $MASTER_ADDR $DLRUN_NODE_ADDRS "
        "L=$DLRUN_ROLE_LEARNER A=$DLRUN_ROLE_ACTORS $(hostname)")


def test_each_rank_knows_its_role(w):
    with pool(w, 0, 2, 0, network=True) as s:
        roles(w, TOLD + " G=$CUDA_VISIBLE_DEVICES", TOLD + " G=$CUDA_VISIBLE_DEVICES to {learner.0} $WHO", None)
        preview = w.ok("submit", "--dry-run", "-o", "json", "-t", f"ssh:{HOSTS}").out
        objects = [json.loads(line) for line in preview.splitlines()]
        assert [(o["role"], "j_gpus=" + str(g) in o["job"]) for o, g in zip(objects, (2, 0))] == [("learner", True), ("actors", True)], preview
        assert "{learner.0}" in objects[1]["job"] and "DLRUN_ROLE='actors'" in objects[1]["job"], preview
        done = w.run("submit", "-f", "-t", f"ssh:{HOSTS}")
        assert done.rc == 0, done
        assert host_of(s, "@") == ["gpu2", "gpu1", "gpu3"], w.show()
        a = {name: s[name].address for name in HOSTS.split(",")}
        tail = f"L={a['gpu2']} A={a['gpu1']},{a['gpu3']}"
        assert w.ok("logs", "--rank", "0", "@").out == f"learner 0/1 0/1 {a['gpu2']} {a['gpu2']} {tail} gpu2 G=0,1\n"
        for rank, host in ((1, "gpu1"), (2, "gpu3")):
            said = w.ok("logs", "--rank", str(rank), "@").out
            wanted = f"actors {rank - 1}/2 {rank - 1}/2 {a['gpu1']} {a['gpu1']},{a['gpu3']} {tail} {host} G="
            assert said == f"{wanted} to {a['gpu2']}\n", (said, wanted)
        assert w.show()["state"] == "succeeded" and ends(w) == [("succeeded", "Completed")] * 3, w.show()


def test_it_ends_with_its_learner(w):
    with pool(w, 2, 0, 0) as s:
        roles(w, "until test -e ~/over; do sleep 0.1; done; echo learned", "trap 'exit 3' TERM; echo acts; while sleep 0.1; do :; done")
        run = w.ok("submit", "-d", "-t", f"ssh:{HOSTS}").out.strip()
        s.running(run)
        for rank in (1, 2):
            wait_for(lambda: "acts" in w.run("logs", "--rank", str(rank), run).out, "both actors")
        (s["gpu1"].home / "over").touch()
        end = s.ended(run)
        assert end["state"] == "succeeded" and end["exit"]["code"] == 0, end
        assert ends(w, run) == [("succeeded", "Completed")] + [("cancelled", "RoleEnded")] * 2, end
        nothing_runs(s, run)


def test_what_breaks_without_the_learner(w):
    """Actors that fail since it has gone away, before anybody has looked."""
    with pool(w, 2, 0, 0) as s:
        roles(w, "until test -e ~/over; do sleep 0.1; done", "until test -e ~/over; do sleep 0.1; done; sleep 1; exit 9")
        run = w.ok("submit", "-d", "-t", f"ssh:{HOSTS}").out.strip()
        s.running(run)
        for name in HOSTS.split(","):
            (s[name].home / "over").touch()
        nothing_runs(s, run)
        end = s.ended(run)
        assert end["state"] == "succeeded" and [r["state"] for r in end["ranks"]] == ["succeeded", "failed", "failed"], end


def test_a_role_that_fails(w):
    with pool(w, 2, 0, 0) as s:
        roles(w, "exec sleep 600", "test $DLRUN_ROLE_RANK = 0 && exec sleep 600; sleep 0.3; exit 7")
        done = w.run("submit", "-f", "-t", f"ssh:{HOSTS}")
        end = w.show()
        assert done.rc == 7 and end["state"] == "failed" and "actors.1 on gpu3" in end["text"], (done, end)
        assert ends(w) == [("cancelled", "PeerEnded")] * 2 + [("failed", "Error")], end
        nothing_runs(s, end["id"])
        assert "actors.1" in w.ok("why", "@").out


def test_nobody_looks(w):
    """Hosts with one home end each other: with the learner, and with a rank that fails."""
    with ssh_home.pool(w, 3, gpus=0) as s:
        over = s["gpu1"].home / "over"
        for first, state in (("until test -e ~/over; do sleep 0.1; done", "succeeded"), ("until test -e ~/over; do sleep 0.1; done; exit 5", "failed")):
            over.unlink(missing_ok=True)
            roles(w, first, "exec sleep 600", **{"resources": {"gpus": 0}})
            made = json.loads((w.tree / "dlrun.yaml").read_text())
            made["roles"]["learner"].pop("gpus")
            w.write("dlrun.yaml", json.dumps(made))
            run = w.ok("submit", "-d", "-t", f"ssh:{HOSTS}").out.strip()
            s.running(run)
            over.touch()
            nothing_runs(s, run)
            end = s.ended(run)
            reason = "RoleEnded" if state == "succeeded" else "PeerEnded"
            assert end["state"] == state and [r[1] for r in ends(w, run)][1:] == [reason] * 2, end
            w.ok("rm", run)
        assert not s["gpu1"].files(".dlrun/gangs/*")


def test_cancel_and_again(w):
    """All are cancelled; the next attempt has the same roles, also for who comes from another machine."""
    with pool(w, 2, 0, 0) as s:
        roles(w, "test $DLRUN_ATTEMPT = 2 || exec sleep 600; echo again", "exec sleep 600")
        run = w.ok("submit", "-d", "-t", f"ssh:{HOSTS}").out.strip()
        s.running(run)
        w.ok("cancel", run)
        end = s.ended(run)
        assert end["state"] == "cancelled" and ends(w, run) == [("cancelled", "Cancelled")] * 3, end
        w.ok("restart", run)
        elsewhere = {"XDG_STATE_HOME": str(w.dir / "elsewhere")}
        shown = {}

        def over():
            shown.update(json.loads(w.ok("show", f"ssh:{HOSTS}:{run}", "--json", env=elsewhere).out))
            return shown["state"] == "succeeded"
        wait_for(over, "its end, seen from elsewhere")
        assert len(shown["attempts"]) == 2 and shown["roles"] == {"learner": 1, "actors": 2} and shown["ends_with"] == "learner", shown
        assert s.ended(run)["state"] == "succeeded"
        nothing_runs(s, run)


def test_no_hosts_for_a_role(w):
    with pool(w, 1, 0, 0) as s:
        roles(w, "echo x >> ~/ran", "echo x >> ~/ran")
        done = w.run("submit", "-d", "-t", f"ssh:{HOSTS}")
        assert done.rc and "role learner: all 3 hosts answered; none has 2 GPUs" in done.err, done
        done = w.run("submit", "-d", "-t", "ssh:gpu1,gpu2")
        assert done.rc and "3 hosts are wanted, and there are 2" in done.err, done
        assert not any((s[name].home / "ran").exists() for name in HOSTS.split(","))


def test_learner_and_actors(w):
    """examples/roles, as somebody would have cloned it, on five hosts."""
    rl_project(w)
    with SshSite(w) as s:
        lab(w, s, *(f"gpu{i}" for i in range(1, 6)), there=rl_environment(), network=True)
        done = w.run("submit", "-f", "-t", "lab", timeout=300)
        assert done.rc == 0, done
        run = w.show()["id"]
        check_learned(w, run)
        for host in s.hosts.values():
            wait_for(lambda: not host.processes(run), f"the end of its processes on {host.name}", 20)


def test_reached_by_role(w):
    with pool(w, 2, 0, 0) as s:
        roles(w, "exec sleep 600", "exec sleep 600")
        run = w.ok("submit", "-d", "-t", f"ssh:{HOSTS}").out.strip()
        s.running(run)
        said = w.ok("exec", "--role", "actors", "--rank", "1", run, "--", "sh", "-c", "echo $DLRUN_ROLE.$DLRUN_ROLE_RANK; uname -n").out
        assert said == "actors.1\ngpu3\n", said
        assert w.run("exec", "--role", "actors", "--rank", "2", run, "--", "true").rc == 2
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"


def test_torchrun_in_two_roles(w):
    """Two groups of two ranks, each with a rendezvous of its own."""
    project(w, "torchrun")
    role = {"nodes": 2, "gpus": 0, "command": ["torchrun", "reduce.py"]}
    w.write("dlrun.yaml", json.dumps({"roles": {"a": role, "b": role}}))
    with SshSite(w) as s:
        lab(w, s, "gpu1", "gpu2", "gpu3", "gpu4", network=True)
        done = w.run("submit", "-f", "-t", "lab", timeout=400)
        assert done.rc == 0, done
        for rank in range(4):
            said = w.ok("logs", "--rank", str(rank), "@").out
            assert f"rank {rank % 2} of 2: sum 3" in said, said


if __name__ == "__main__":
    main()
