#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Providers that fail, are silent or lose machines, and people who change nodes meanwhile: `dlrun autoscale run --apply` ends nothing that
runs, buys nothing twice, and goes on with other groups."""

import json
import time

from cluster_autoscale_run import RANKS, RULES, SOON_S, done, lab
from harness import *  # noqa: F403
from kwok_provider import Machines


def placed(here, n):
    here.c.wait(lambda: len(here.bound()) == n, f"{n} pods on machines", SOON_S)


def problems(events):
    return [e for e in events if e.get("problem")]


def change(here, name, **patch):
    here.c.api("PATCH", f"/api/v1/nodes/{name}", patch, kind="application/merge-patch+json")


def gone_silent(here, name, since):
    """A node of which no kubelet tells any more."""
    change(here, name, metadata={"annotations": {"kwok.x-k8s.io/node": None}})
    here.c.api("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "tests", "message": "tests", "lastTransitionTime": since}]}},
               kind="application/strategic-merge-patch+json")


def test_a_program_that_always_fails(w):
    """Twice it is asked with one token, then the other group is."""
    with lab(w, a=8, b=8) as here:
        here.machines.faults(once=[{"verb": "grow", "group": here.id("a"), "do": "exit", "when": "before"}] * 9)
        here.add_pods(1)
        for _ in range(2):
            assert problems(here.turn_ok())
        assert here.sizes() == {"b": 1}, here.sizes()
        assert len({c["token"] for c in here.machines.calls("grow", here.id("a"))}) == 1, here.machines.calls("grow")


def test_a_machine_that_takes_its_time_to_end(w):
    """It is asked for once, and the size never falls below what runs."""
    with lab(w, a=8) as here:
        here.machines.faults(stop={here.id("a"): 3})
        here.add_pods(2)
        here.turn_ok()
        placed(here, 2)
        here.c.api("DELETE", f"/api/v1/namespaces/{here.tag}/pods/p0", gracePeriodSeconds="0")

        def ended():
            here.turn_ok()
            return len(here.nodes()) == 1
        here.c.wait(ended, "the end of the idle machine", SOON_S)
        asked = here.machines.calls("shrink")
        assert [c["to"] for c in asked] == [1] and len(here.bound()) == 1, asked


def test_who_was_killed_before_a_grow_asks_for_what_is_needed_now(w):
    with lab(w, a=8) as here:
        here.machines.faults(once=[{"verb": "grow", "do": "kill", "when": "before"}])
        here.add_pods(5)
        here.turn()
        here.remove_pods()
        here.settings(nodes=1)
        here.turn_ok()
        assert not here.sizes(), here.sizes()
        here.add_pods(5)
        here.turn_ok()
        assert here.sizes() == {"a": 1}, here.sizes()


def test_a_machine_that_its_provider_does_not_list(w):
    """A person took it out of the group, or a page was lost: its node stays as long as pods run there and it is not silent for long."""
    with lab(w, a=8) as here:
        here.add_pods(2)
        here.turn_ok()
        placed(here, 2)
        here.turn_ok()
        name = here.bound()[0]["spec"]["nodeName"]
        path = here.machines.dir / f"state-{here.id('a')}.json"
        state = json.loads(path.read_text())
        state["machines"] = [m for m in state["machines"] if m["id"] != name]
        state["desired"] = 1
        path.write_text(json.dumps(state))
        gone_silent(here, name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        for _ in range(2):
            here.turn_ok()
        assert name in [n["metadata"]["name"] for n in here.nodes()] and len(here.bound()) == 2, here.nodes()
        gone_silent(here, name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 4000)))
        assert done(here.turn_ok(), "forget"), here.last


def test_machines_that_do_not_become_nodes(w):
    """They are ended, and the other group is asked; a node with the same labels and another id keeps its machine."""
    with lab(w, a=8, b=8) as here:
        here.settings(boot="1s")
        here.machines.faults(boot={here.id("a"): -1})
        here.add_pods(1)
        here.turn_ok()

        def replaced():
            here.turn_ok()
            return here.sizes() == {"b": 1}
        here.c.wait(replaced, "a machine of the other group", SOON_S)
        assert len(here.machines.calls("grow", here.id("a"))) == 1, here.machines.calls("grow")
    with lab(w, a=8) as here:
        here.settings(boot="1s")
        here.machines.faults(boot={here.id("a"): -1})
        here.add_pods(1)
        here.turn_ok()
        name = f"{here.machines.machines(here.id('a'))[0]['id']}-x"
        template = here.groups[0]["template"]
        here.c.fake_node(name, template["labels"], taints=template["taints"], **template["room"])
        change(here, name, spec={"providerID": f"kwok://zone-1/{name}"})
        placed(here, 1)
        for _ in range(3):
            here.turn_ok()
            time.sleep(1)  # Late is who has not come in a second.
        assert len(here.bound()) == 1 and here.sizes() == {"a": 1}, (here.nodes(), here.machines.calls())
        assert f"may be node {name} by another id: both count" in here.last.err, here.last
        here.remove_pods()
        here.c.delete("Node", name)


def test_the_object_of_a_node_is_deleted(w):
    """By a person: its machine is not one that never became a node, and is left to them."""
    with lab(w, a=8) as here:
        here.settings(boot="1s")
        here.add_pods(1)
        here.turn_ok()
        placed(here, 1)
        here.turn_ok()
        name = here.bound()[0]["spec"]["nodeName"]
        here.c.api("DELETE", f"/api/v1/nodes/{name}")
        here.remove_pods()
        for _ in range(3):
            here.turn_ok()
            time.sleep(1)
        assert here.sizes() == {"a": 1} and not here.machines.calls("shrink"), here.machines.calls("shrink")
        assert f"its machine {name} is late, and is not ended because it may have been a node" in here.last.err, here.last


def test_half_a_gang_that_has_come(w):
    """What has become nodes is not undone: it goes when nothing runs there any more, as all nodes do."""
    with lab(w, a=2, b=8) as here:
        here.machines.faults(room={here.id("b"): {"machines": 0, "class": "quota", "how": "error"}})
        here.add_gang("g", RANKS)
        here.turn_ok()
        placed(here, 2)
        for _ in range(3):
            here.turn_ok()
        assert here.sizes() == {"a": 2} and not here.machines.calls("shrink"), here.machines.calls("shrink")
        here.remove_pods()
        events = []

        def gone():
            events.extend(here.turn_ok())
            return not here.nodes()
        here.c.wait(gone, "the end of the idle machines", SOON_S)
        names = [e["node"] for e in done(events, "cordon")]
        asked = [i for c in here.machines.calls("shrink") for i in c["instances"]]
        assert sorted(asked) == sorted(names) and len(names) == 2, (asked, events)


def test_a_provider_that_is_silent_when_it_counts(w):
    """Its machines are on their way, and a new process does not hear of them: nothing is bought elsewhere."""
    with lab(w, a=8) as here:
        other = Machines(here.w.dir / "machines2", [dict(here.groups[0], id=here.id("b"), price=50.0)], here.c)

        def provided(program):
            here.w.write("autoscale.yaml", json.dumps({"cluster": "lab", "every": "1s", "providers": [
                {"exec": here.machines.exec}, {"exec": program}]}), base=here.w.tree)

        def silent():
            here.machines.faults(once=[{"verb": "groups", "do": "exit", "when": "before"}])
            said = problems(here.turn_ok())
            assert here.sizes() == {"a": 2} and not other.machines(here.id("b")), (here.sizes(), said)
            return said
        provided(["env", *other.exec])
        here.machines.faults(boot={here.id("a"): 3})
        here.add_pods(2)
        here.turn_ok()
        assert [e["group"] for e in silent()] == [here.id("a")]
        # The same program may have the same groups.
        provided(other.exec)
        assert not silent() and "not used before the groups of" in here.last.err, here.last


def test_people_who_cordon_and_uncordon(w):
    with lab(w, a=8) as here:
        here.add_pods(2)
        here.turn_ok()
        placed(here, 2)
        mine, theirs = (p["spec"]["nodeName"] for p in here.bound())
        here.remove_pods()
        here.turn_ok()
        change(here, theirs, spec={"unschedulable": True})
        here.c.wait(lambda: done(here.turn_ok(), "cordon"), "an idle node", SOON_S)
        # Who uncordons it wants it: it is idle from now on.
        change(here, mine, spec={"unschedulable": None})
        assert not done(here.turn_ok(), "remove")
        marks = here.c.get("Node", mine)["metadata"]["annotations"]
        assert "dlrun/cordoned-by" not in marks, marks

        def removed():
            here.turn_ok()
            return [n["metadata"]["name"] for n in here.nodes()] == [theirs]
        here.c.wait(removed, "only the node that a person cordoned is left", SOON_S)
        for _ in range(2):
            here.turn_ok()
        assert [n["metadata"]["name"] for n in here.nodes()] == [theirs], here.nodes()


def test_rights_that_are_missing(w):
    """Machines come all the same; who may not write on nodes is told once a turn, and gives none back."""
    with lab(w, a=8) as here:
        few = [r if "patch" not in r["verbs"] else {**r, "verbs": ["delete"]} for r in RULES if r["resources"] != ["configmaps"]] + [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["dlrun-autoscale-state"], "verbs": ["get", "update"]}]
        here.c.apply({"kind": "ClusterRole", "metadata": {"name": f"{here.tag}-scale"}, "rules": few})

        def denied():
            return [e["do"] for e in problems(here.turn_ok())] == ["publish"]
        here.c.wait(denied, "a role without rights", SOON_S)
        here.add_gang("g", RANKS)
        here.turn_ok()
        placed(here, RANKS)
        events = here.turn_ok()
        assert sorted(e["do"] for e in events) == ["mark", "publish"] and all("forbidden" in e["text"] for e in events), events
        assert here.sizes() == {"a": RANKS}, here.sizes()


if __name__ == "__main__":
    main()
