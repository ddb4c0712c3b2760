#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Studies in a real cluster: one Indexed Job, of which each member is a run of its own."""

import json
import re
import time

from cluster_faults import on_fake_nodes
from harness import *  # noqa: F403
from kubesite import site

# Prints when it ran, to be laid beside the others; FAIL: indexes that fail; WAIT: seconds, or "0.5,3:600" for single ones.
MEMBER = """
import os, sys, time
index = os.environ["DLRUN_STUDY_INDEX"]
waits = dict(w.split(":") for w in os.environ.get("WAIT", "").split(",") if ":" in w)
begin = time.time()
print(*sys.argv[1:], os.environ["DLRUN_RUN_ID"], os.environ["DLRUN_STUDY"], index, os.environ["DLRUN_STUDY_SIZE"], flush=True)
with open(os.environ["DLRUN_OUTPUT_DIR"] + "/index", "w") as f:
    f.write(index)
time.sleep(float(waits.get(index, os.environ.get("WAIT", "1").split(",")[0])))
print("ran", begin, time.time(), flush=True)
sys.exit(3 if index in os.environ.get("FAIL", "").split(",") and os.environ["DLRUN_ATTEMPT"] == "1" else 0)
"""


def sweep(s, n, *words):
    """The id of a study of n members; the command is behind "--"."""
    return s.w.ok("sweep", "-d", "--over", f"i=0..{n - 1}", "--env", "I={i}", *words).out.strip()


def member(study, index):
    name, suffix = study.rsplit("-", 1)
    return f"{name}-{index}-{suffix}"


def member_index(run):
    return int(run.rsplit("-", 2)[1])


def states(s, study):
    """{index: state} by one request for all."""
    rows = json.loads(s.w.ok("ps", "-a", "--group", study, "--json").out)
    rows = rows["runs"] if isinstance(rows, dict) else rows
    return {member_index(r["id"]): r["state"] for r in rows}


def all_end(s, study, n, seconds=180):
    def ended():
        found = states(s, study)
        return len(found) == n and all(state in ("succeeded", "failed", "cancelled", "lost") for state in found.values())
    wait_for(ended, f"the end of {study}", seconds)
    return states(s, study)


def pods(s, study):
    return [p for p in s.cluster.get("Pod", namespace=s.namespace) if p["metadata"]["labels"].get("dlrun.io/study") == study]


def pod_of(s, study, index):
    return [p for p in pods(s, study) if p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)]


def is_running(s, study, index):
    return any(p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"] for p in pod_of(s, study, index))


def with_storage(w, **more):
    return site(w, files={"m.py": MEMBER}, **more)


def store(s):
    s.cluster.volume(s.namespace, "results")
    s.configure(results={"pvc": "results"})


def most_at_once(spans):
    """Of (begin, end)."""
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def test_many_members_of_which_six_run(w):
    """Failing and killed ones do not keep the others; each is restarted by itself."""
    n, killed, failing = (60, (5, 17, 29, 38, 51), (7, 23, 41)) if ALL else (24, (5, 17), (7, 23))
    with with_storage(w) as s:
        store(s)
        wait = "1," + ",".join(f"{i}:600" for i in killed)
        mark = s.cluster.audit_begin(s.user)
        study = sweep(s, n, "--parallel", "6", "--env", f"WAIT={wait}", "--env", "FAIL=" + ",".join(map(str, failing)), "--",
                      "python3", "m.py", "it's {i}\nand more")
        made = [e["objectRef"]["name"] for e in s.cluster.audit_whole(s.user, mark) if e["verb"] == "create" and "dryRun" not in e["requestURI"]
                and e.get("objectRef", {}).get("resource") == "jobs" and e["objectRef"]["namespace"] == s.namespace]
        assert made == [study], made
        job = s.cluster.get("Job", study, s.namespace)
        assert job["spec"]["completions"] == n and job["spec"]["parallelism"] == 6, job["spec"]
        most = 0
        for index in killed:
            def runs(index=index):
                nonlocal most
                most = max(most, sum(p["status"]["phase"] in ("Pending", "Running") for p in pods(s, study)))
                return is_running(s, study, index)
            wait_for(runs, f"the start of member {index}", 120)
            s.cluster.delete("Pod", pod_of(s, study, index)[0]["metadata"]["name"], s.namespace)
        found = all_end(s, study, n)
        assert {i for i, state in found.items() if state == "failed"} == {*killed, *failing}, found
        assert {state for i, state in found.items() if i not in (*killed, *failing)} == {"succeeded"}, found
        spans = []
        for index in sorted(set(range(n)) - set(killed)):
            said = w.ok("logs", member(study, index)).out
            assert said.startswith(f"it's {index}\nand more {member(study, index)} {study} {index} {n}\n"), said
            spans.append([float(t) for t in said.splitlines()[-1].split()[1:]])
        # Pods that are being removed may still count for a moment.
        assert most_at_once(spans) <= 6 and 6 <= most <= 6 + len(killed), (most_at_once(spans), most)
        assert "exited with 3" in w.ok("why", member(study, 7)).out
        again = member(study, 23)
        w.ok("restart", again)
        assert s.ended(again)["state"] == "succeeded"
        assert [j["metadata"]["name"] for j in s.jobs() if j["metadata"]["name"].startswith(f"{again}-")] == [f"{again}-2"]
        w.ok("fetch", member(study, 11), "-o", w.dir / "got")
        assert (w.dir / "got" / "index").read_text() == "11"


def test_a_member_is_cancelled(w):
    """Before it begins, while it runs, and after others have failed fast for nothing."""
    with with_storage(w) as s:
        store(s)
        for fast in (False, True):
            study = sweep(s, 6, "--parallel", "2", *(["--fail-fast"] if fast else []), "--env", "WAIT=1,0:600", "--", "python3", "m.py")
            s.cancel(member(study, 5))
            assert not pod_of(s, study, 5)
            wait_for(lambda: is_running(s, study, 0), "the start of the first", 60)
            said = w.ok("exec", member(study, 0), "--", "sh", "-c", "echo $DLRUN_RUN_ID").out
            assert said == member(study, 0) + "\n", said
            s.cancel(member(study, 0))
            found = all_end(s, study, 6)
            assert found == {0: "cancelled", 1: "succeeded", 2: "succeeded", 3: "succeeded", 4: "succeeded", 5: "cancelled"}, found
            assert w.ok("logs", member(study, 5)).out == ""
            # No pod of it has begun its program, though its turn has come.
            wait_for(lambda: s.cluster.get("Job", study, s.namespace)["status"].get("conditions"), "the end of the Job", 60)
            said = [c["state"]["terminated"] for p in pod_of(s, study, 5) for c in p["status"]["containerStatuses"]]
            assert all(e["exitCode"] == (0 if fast else 125) and e["message"] == "dlrun: cancelled" for e in said), said


def test_a_study_is_cancelled(w):
    """The Job ends, and what has ended before keeps its log."""
    with with_storage(w) as s:
        store(s)
        study = sweep(s, 5, "--parallel", "2", "--env", "WAIT=600,0:0", "--", "python3", "m.py")
        wait_for(lambda: is_running(s, study, 1) and is_running(s, study, 2), "the third member", 90)
        for index in range(1, 5):
            s.cancel(member(study, index))
        wanted = {0: "succeeded", 1: "cancelled", 2: "cancelled", 3: "cancelled", 4: "cancelled"}
        wait_for(lambda: states(s, study) == wanted, "the end of all members", 60)
        wait_for(lambda: all(p["status"]["phase"] == "Succeeded" for p in pods(s, study)), "the end of its pods", 60)
        assert "ran" in w.ok("logs", member(study, 0)).out
        for index in (3, 0, 4, 1):
            w.ok("rm", member(study, index))
            assert [j["metadata"]["name"] for j in s.jobs() if j["metadata"]["name"] == study], index
        w.ok("rm", member(study, 2))
        wait_for(lambda: not [c for c in s.cluster.get("ConfigMap", namespace=s.namespace) if c["metadata"]["name"] == study],
                 "the removal of the ConfigMap", 60)
        assert not [j for j in s.jobs() if j["metadata"]["name"] == study]


@left_to_all("test_the_first_failure_ends_all_behind_cancelled_ones")
def test_the_first_failure_ends_all(w):
    with with_storage(w) as s:
        store(s)
        study = sweep(s, 6, "--parallel", "2", "--fail-fast", "--env", "WAIT=600,0:3", "--env", "FAIL=0", "--", "python3", "m.py")
        found = all_end(s, study, 6)
        assert found == {0: "failed", **dict.fromkeys(range(1, 6), "cancelled")}, found


def test_the_first_failure_ends_all_behind_cancelled_ones(w):
    """Members that were cancelled before they began, or while they ran, do not make others fail unnoticed."""
    with with_storage(w) as s:
        store(s)
        line = 'while [ {i} != 1 ] || [ ! -e "$DLRUN_OUTPUT_DIR/go" ]; do sleep 0.2; done; exit 3'
        study = sweep(s, 9, "--parallel", "2", "--fail-fast", "--", "sh", "-c", line)
        wait_for(lambda: is_running(s, study, 0) and is_running(s, study, 1), "the start of the first two", 60)
        w.ok("cancel", *(member(study, index) for index in (0, 5, 6, 7, 8)))
        w.ok("exec", member(study, 1), "--", "sh", "-c", 'touch "$DLRUN_OUTPUT_DIR/go"')
        found = all_end(s, study, 9)
        assert found == {1: "failed", **dict.fromkeys((0, *range(2, 9)), "cancelled")}, found


def requests(s, mark):
    """Those for the namespace of the test: others run beside it."""
    return [e["requestURI"] for e in s.cluster.audit_whole(s.user, mark) if s.namespace in e["requestURI"]]


def test_many_members_take_few_requests(w):
    """On fake nodes; the times are for people to read."""
    n = 5000 if ALL else 200
    with with_storage(w) as s:
        store(s)
        on_fake_nodes(s, "fake-study")
        mark, begin = s.cluster.audit_begin(s.user), time.monotonic()
        study = sweep(s, n, "--parallel", "50", "--", "python3", "m.py")
        took = time.monotonic() - begin
        asked = requests(s, mark)
        print(f"submit of {n} members: {took:.1f} s, {len(asked)} requests")
        assert len(asked) <= 15, asked
        mark, begin = s.cluster.audit_begin(s.user), time.monotonic()
        rows = w.ok("ps", "-a", "--group", study, "-o", "id,state").out.splitlines()[1:]
        took = time.monotonic() - begin
        asked = requests(s, mark)
        print(f"ps of them: {took:.1f} s, {len(asked)} requests")
        assert len(rows) == n and len(asked) <= 10, (len(rows), asked)
        mark, begin = s.cluster.audit_begin(s.user), time.monotonic()
        w.ok("cancel", study)
        asked = requests(s, mark)
        print(f"cancel of them: {time.monotonic() - begin:.1f} s, {len(asked)} requests")
        runs = json.loads(w.ok("ps", "-a", "--group", study, "--json").out)["runs"]
        assert len(runs) == n and {run["state"] for run in runs} <= {"cancelled", "succeeded"}, runs[:5]
        # Those that never began are not asked about one by one, but for what was about to begin.
        begun = {member_index(run["id"]) for run in runs if run["times"]["started"]}
        single = {int(index) for uri in asked for index in re.findall("completion-index%3D([0-9]+)", uri)}
        print(f"{len(begun)} of them had begun, {len(single)} were asked about alone")
        assert len(single - begun) <= 100, (len(single - begun), len(begun))


def test_another_machine_takes_a_member_over(w):
    """It shows, reads, cancels and repeats it; the others go on."""
    with with_storage(w) as s:
        store(s)
        study = sweep(s, 4, "--parallel", "2", "--env", "WAIT=1,1:600", "--", "python3", "m.py", "it's {i}")
        other = dict(w.env, XDG_STATE_HOME=str(w.dir / "other"))
        seen = json.loads(w.ok("show", "--json", f"k:{member(study, 3)}", env=other).out)
        assert seen["command"] == ["python3", "m.py", "it's 3"] and seen["study"] == {"id": study, "index": 3}, seen
        assert seen["attempts"][0]["handle"].endswith(f"/{study}/3"), seen["attempts"]
        wait_for(lambda: is_running(s, study, 1), "the start of the second", 60)
        w.ok("cancel", f"k:{member(study, 1)}", env=other)
        found = all_end(s, study, 4)
        assert (found[0], found[2], found[3]) == ("succeeded",) * 3, found
        # Here it has ended by a signal, as nobody has asked for that here.
        assert found[1] in ("failed", "cancelled"), found
        assert w.ok("logs", f"k:{member(study, 3)}", env=other).out.startswith("it's 3 ")
        wait_for(lambda: json.loads(w.ok("show", "--json", member(study, 1), env=other).out)["state"] == "cancelled", "its end there", 60)
        w.ok("restart", member(study, 1), env=other)
        wait_for(lambda: [j for j in s.jobs() if j["metadata"]["name"] == member(study, 1) + "-2"], "its second attempt", 60)
        w.run("cancel", member(study, 1), env=other)


if __name__ == "__main__":
    main()
