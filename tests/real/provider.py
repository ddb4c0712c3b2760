#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The provider of machines that the tests of `dlrun autoscale` have, kwok_provider.py, keeps the contract of
lib/app/autoscale/provider.h: a test against one that does not would say little."""

from harness import *  # noqa: F403
from kwok_provider import Machines

GROUP = {"id": "a", "max": 8, "price": 1.5, "template": {"room": {"cpu": "4"}}}
# A caller in place of dlrun, which may be killed.
CALLER = 'import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)'


def lab(w):
    return Machines(w.dir / "machines", [GROUP, {**GROUP, "id": "b", "min": 1, "desired": 1}])


def run(machines, **request):
    return subprocess.run([sys.executable, "-c", CALLER, *machines.exec], input=json.dumps({"cluster": "lab", **request}) + "\n",
                          text=True, capture_output=True, timeout=DEADLINE_S)


def ask(machines, verb, **request):
    done = run(machines, verb=verb, **request)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def grow(machines, to, token="t", **more):
    return ask(machines, "grow", **{"group": "a", "from": 0, "to": to, "token": token, **more})


def group(machines, name="a"):
    return next(g for g in ask(machines, "groups")["groups"] if g["id"] == name)


def test_machines_come_and_go(w):
    m = lab(w)
    a, b = ask(m, "groups")["groups"]
    assert (a["desired"], a["instances"], a["min"], b["min"], b["desired"]) == (0, [], 0, 1, 1), (a, b)
    assert grow(m, 3) == {"accepted": 3, "instances": ["a-0", "a-1", "a-2"], "failed": []}
    a = group(m)
    assert a["desired"] == 3 and [(i["id"], i["state"]) for i in a["instances"]] == [(f"a-{n}", "running") for n in range(3)], a
    assert ask(m, "status", group="a", token="t", since="2026-01-01T00:00:00Z") == {"failed": []}
    gone = ask(m, "shrink", group="a", instances=["a-1", "nosuch"], to=2)
    assert gone == {"instances": [{"id": "a-1", "gone": True}, {"id": "nosuch", "gone": True}]}, gone
    a = group(m)
    assert a["desired"] == 2 and [i["id"] for i in a["instances"]] == ["a-0", "a-2"], a
    assert grow(m, 3, "u")["instances"] == ["a-3"]
    assert [c["verb"] for c in m.calls(group="a")] == ["grow", "status", "shrink", "grow"]


def test_a_token_counts_once(w):
    m = lab(w)
    first = grow(m, 2)
    assert grow(m, 2) == first and grow(m, 5) == first and group(m)["desired"] == 2
    ask(m, "shrink", group="a", instances=["a-0", "a-1"], to=0)
    assert grow(m, 2) == first and group(m)["instances"] == []
    assert grow(m, 1, "new")["instances"] == ["a-2"]


def test_limits_are_kept(w):
    m = lab(w)
    assert grow(m, 9)["error"]["class"] == "config" and group(m)["desired"] == 0
    assert ask(m, "shrink", group="b", instances=[], to=0)["error"]["class"] == "config" and group(m, "b")["desired"] == 1


def test_machines_that_are_refused(w):
    m = lab(w)
    m.faults(room={"a": {"machines": 2, "class": "quota", "how": "now"}})
    part = grow(m, 4)
    assert part["accepted"] == 2 and part["instances"] == ["a-0", "a-1"] and [f["class"] for f in part["failed"]] == ["quota"] * 2, part
    m.faults(room={"a": {"machines": 2, "class": "capacity", "how": "error"}})
    assert grow(m, 4, "u")["error"]["class"] == "capacity" and group(m)["desired"] == 2
    m.faults(room={"a": {"machines": 3, "class": "capacity", "how": "later"}})
    late = grow(m, 4, "v")
    assert late == {"accepted": 4, "instances": ["a-2"], "failed": []}, late
    assert len(ask(m, "status", group="a", token="v", since="2026-01-01T00:00:00Z")["failed"]) == 1
    assert (group(m)["desired"], len(group(m)["instances"])) == (4, 3)
    ask(m, "shrink", group="a", instances=[], to=3)
    assert group(m)["desired"] == 3
    # What was refused did not count.
    m.faults(room={})
    assert grow(m, 4, "u")["instances"] == ["a-3"]


def test_slow_machines(w):
    m = lab(w)
    m.faults(boot={"a": 2}, stop={"a": 1})
    assert grow(m, 1)["instances"] == ["a-0"]
    assert [group(m)["instances"][0]["state"] for _ in range(3)] == ["pending", "running", "running"]
    m.faults(boot={"a": -1})
    grow(m, 2, "u")
    assert [group(m)["instances"][1]["state"] for _ in range(3)] == ["pending"] * 3
    assert ask(m, "shrink", group="a", instances=["a-0"], to=1) == {"instances": [{"id": "a-0", "gone": False}]}
    assert [i["state"] for i in group(m)["instances"]] == ["stopping", "pending"]
    assert ask(m, "shrink", group="a", instances=["a-0"], to=1) == {"instances": [{"id": "a-0", "gone": False}]}
    assert [i["id"] for i in group(m)["instances"]] == ["a-1"]


def test_lost_responses(w):
    """Before its effect a fault leaves nothing, behind it all; who asks again with the token gets the response."""
    m = lab(w)
    for n, (do, when, rc) in enumerate([("exit", "before", 1), ("exit", "after", 1), ("garbage", "after", 0), ("kill", "before", -9),
                                        ("kill", "after", -9)], 1):
        m.faults(once=[{"verb": "grow", "do": do, "when": when}])
        done = run(m, verb="grow", group="a", token=f"t{n}", to=n, **{"from": n - 1})
        assert done.returncode == rc and done.stdout in ("", "{\n"), done
        assert m.calls()[-1]["fault"]["do"] == do
        assert len(m.machines("a")) == (n if when == "after" else n - 1), (do, when, m.machines("a"))
        assert grow(m, n, f"t{n}")["instances"] == [f"a-{n - 1}"]
        assert len(m.machines("a")) == n


def test_the_call_that_fails_is_chosen(w):
    m = lab(w)
    m.faults(once=[{"verb": "grow", "group": "a", "skip": 1, "do": "exit", "when": "before"}])
    ask(m, "groups")
    grow(m, 2, group="b")
    grow(m, 1)
    assert run(m, verb="grow", group="a", token="u", to=2).returncode == 1
    assert grow(m, 2, "u")["accepted"] == 2


def test_a_call_that_hangs(w):
    m = lab(w)
    m.faults(once=[{"verb": "groups", "do": "hang", "when": "before"}])
    caller = subprocess.Popen([sys.executable, "-c", CALLER, *m.exec], stdin=subprocess.PIPE, text=True)
    caller.stdin.write('{"verb": "groups", "cluster": "lab"}\n')
    caller.stdin.close()
    wait_for(lambda: m.calls("groups"), "a call")
    assert caller.poll() is None
    caller.kill()
    caller.wait()
    assert [g["id"] for g in ask(m, "groups")["groups"]] == ["a", "b"]


def test_one_program_for_two(w):
    """With another directory it has other groups, which is what two providers of one program need."""
    m, other = lab(w), Machines(w.dir / "machines2", [{**GROUP, "id": "c"}])
    assert other.exec[0] == m.exec[0]
    assert grow(other, 2, group="c")["instances"] == ["c-0", "c-1"] and grow(m, 1)["instances"] == ["a-0"]
    assert [g["id"] for g in ask(m, "groups")["groups"]] == ["a", "b"]
    assert [g["id"] for g in ask(other, "groups")["groups"]] == ["c"]
    assert not m.calls(group="c") and not other.calls(group="a")


def test_grows_at_once(w):
    """Of several processes none gets the machine of another."""
    m = lab(w)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: grow(m, 8, f"t{n % 2}"), range(8)))
    assert group(m)["desired"] == 8 and len({i["id"] for i in group(m)["instances"]}) == 8


if __name__ == "__main__":
    main()
