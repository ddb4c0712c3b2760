#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups of runs in a real cluster: many are stopped, started again and removed together."""

import json

from harness import *  # noqa: F403
from kubesite import site

# Takes a while to end; in the first attempt it fails if it is told to.
PROGRAM = """import os, signal, sys, time
def end(*_):
    time.sleep(2)
    print("last words", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("attempt", os.environ["DLRUN_ATTEMPT"], sys.argv[1], flush=True)
open("made", "w").write(sys.argv[1])
if sys.argv[2] == "wait":
    time.sleep(600)
if sys.argv[2] == "fail" and os.environ["DLRUN_ATTEMPT"] == "1":
    raise SystemExit(3)
"""


def states(w):
    runs = json.loads(w.ok("ps", "-a", "--json").out)["runs"]
    return {run["id"]: (run["state"], len(run["attempts"])) for run in runs}


def test_many_are_stopped_and_removed_together(w):
    n = 8
    with site(w, files={"a.py": PROGRAM}) as s:
        runs = [s.submit("--group", "mine", "--grace", "20s", "--", "python3", "a.py", f"--lr={i}", "wait") for i in range(n)]
        wait_for(lambda: all("attempt" in w.run("logs", run).out for run in runs), "all programs", 180)
        begin = s.cluster.audit_begin(s.user)
        told = w.ok("cancel", "mine")
        assert f"mine: {n} cancelled\n" in told.err, told
        # All are asked before the first has ended, and what each has said and made is here.
        asked = [e["stageTimestamp"] for e in s.cluster.audit_whole(s.user, begin)
                 if e["verb"] == "delete" and "/jobs/" in e["requestURI"] and e["stage"] == "ResponseComplete"]
        ended = [w.show(run)["times"]["ended"] for run in runs]
        assert len(asked) >= n and sorted(asked)[n - 1] < min(ended), (sorted(asked), sorted(ended))
        for i, run in enumerate(runs):
            assert w.ok("logs", run).out == f"attempt 1 --lr={i}\nlast words\n", w.run("logs", run)
        w.ok("fetch", "mine")
        assert sorted((w.tree / "mine" / run / "made").read_text() for run in runs) == sorted(f"--lr={i}" for i in range(n))
        w.ok("rm", "mine")
        assert not states(w) and not s.jobs()


def test_only_what_failed_starts_again(w):
    with site(w, files={"a.py": PROGRAM}) as s:
        runs = [s.submit("--group", "mine", "--", "python3", "a.py", f"--lr={i}", "fail" if i % 2 else "well") for i in range(6)]
        assert w.run("wait", "mine").rc == 3
        why = json.loads(w.ok("why", "--json", "mine").out)
        assert [(c["state"], c["n"]) for c in why["causes"]] == [("succeeded", 3), ("failed", 3)], why
        assert w.ok("logs", "--failed", "mine").out == "\n".join(f"==> {run} <==\nattempt 1 --lr={i}\n" for i, run in enumerate(runs) if i % 2)
        w.ok("restart", "--failed", "mine")
        assert w.run("wait", "mine").rc == 0
        assert states(w) == {run: ("succeeded", 2 if i % 2 else 1) for i, run in enumerate(runs)}


if __name__ == "__main__":
    main()
