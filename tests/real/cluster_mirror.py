#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Event files of runs in a real cluster kept up to date here: of pods that run, of storage that an ended run has left."""

import json
import os
import subprocess
from pathlib import Path

from harness import *  # noqa: F403
from kubesite import site
from mirror import EVENTS, FULL, IMAGES, NAME, PLUGINS, WRITE, Mirror, events_of, plugins_are_here, scalars_in

SIZE = 30_000_000 if FULL else 1_000_000


def written(s, run):
    wait_for(lambda: "written" in s.w.ok("logs", run).out, "the files", 120)


def in_pod(w, run, line):
    return w.ok("exec", run, "--", "python3", "-c", f"import os; os.chdir(os.environ['DLRUN_OUTPUT_DIR']); {line}").out


def same(w, run, size, seed):
    """The first bytes that the program wrote, as it would have them again."""
    import random
    data = (w.dir / "m" / run / NAME).read_bytes()
    r, want = random.Random(seed), b""
    while len(want) < size:
        want += r.randbytes(min(size - len(want), 1 << 20))
    while len(want) < len(data):
        want += r.randbytes(20000)
    return data == want


def follow(w, s, run, seed):
    with Mirror(w, w.dir / "m", run, look_ms=300) as m:
        m.wait(lambda said: said.get(run, {}).get("files") == 2, "both files", 120)
        assert same(w, run, SIZE, seed) and not (w.dir / "m" / run / "model.pt").exists()
        before = m.said()[run]["new"]
        in_pod(w, run, "open('step', 'w')")
        said = m.wait(lambda said: said[run]["bytes"] == SIZE + 4 + 20000, "a step", 60)
        assert said[run]["new"] == before + 20000, said
        assert same(w, run, SIZE, seed)
        in_pod(w, run, "open('tb/deep/x.tfevents', 'wb').write(b'x'); os.symlink('/etc/passwd', 'l.tfevents'); os.mkfifo('p.tfevents')")
        wait_for(lambda: (w.dir / "m" / run / "tb/deep/x.tfevents").read_bytes() == b"x", "the shorter file", 60)
        assert not (w.dir / "m" / run / "l.tfevents").exists() and not (w.dir / "m" / run / "p.tfevents").exists()


def test_files_of_plugins(w):
    """From a pod while it runs: profiles, traces, and what a configuration of the projector names."""
    with site(w, files={"w.py": PLUGINS}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "w.py")
        written(s, run)
        with Mirror(w, w.dir / "m", run, look_ms=300):
            wait_for(lambda: plugins_are_here(w.dir / "m" / run), "the files", 120)
        w.run("cancel", run)


def test_running_pods_then_storage_that_is_left(w):
    """A PVC: new bytes of the pod that runs, the rest from the pod that reads after the end; then nobody is asked any more."""
    with site(w, files={"w.py": WRITE}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--grace", "1s", "--", "python3", "w.py", str(SIZE), "1")
        written(s, run)
        follow(w, s, run, 1)
        in_pod(w, run, "open('step', 'w')")
        in_pod(w, run, "open('end', 'w')")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        with Mirror(w, w.dir / "m", run, look_ms=300) as m:
            said = m.over(180)
        assert said[run]["over"] and not said[run]["fault"] and said[run]["new"] in (0, 20000), said
        assert same(w, run, SIZE, 1)
        with Mirror(w, w.dir / "m", run, look_ms=300) as m:
            assert m.over(20)[run]["over"]
        tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
        part = subprocess.run([tool, "read", run, NAME, "1000", "5000"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True).stdout
        assert part == (w.dir / "m" / run / NAME).read_bytes()[1000:6000]


def test_without_storage_the_copy_stays(w):
    """After the end the pod's directory is gone: what is here stays, and that is said."""
    with site(w, files={"w.py": WRITE}, results={"emptyDir": True}, linger="1s") as s:
        run = s.submit("--grace", "1s", "--", "python3", "w.py", str(SIZE), "2")
        written(s, run)
        follow(w, s, run, 2)
        tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
        part = subprocess.run([tool, "read", run, NAME, "10", "70000"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True).stdout
        assert part == (w.dir / "m" / run / NAME).read_bytes()[10:70010]
        listed = w.command([tool, "list", run], cwd=w.tree).out.splitlines()
        assert sorted(listed) == sorted(["200000 model.pt", "1 tb/deep/x.tfevents", f"{SIZE + 20000} {NAME}"]), listed
        in_pod(w, run, "open('end', 'w')")
        assert s.ended(run)["state"] == "succeeded", s.why(run)
        s.without_pods()
        with Mirror(w, w.dir / "other", run, look_ms=300) as m:
            said = m.over(90)
        assert said[run]["fault"] == "kube.storage" and said[run]["files"] == 0, said
        with Mirror(w, w.dir / "m", run, look_ms=300) as m:
            said = m.over(90)
        assert said[run]["fault"] in ("", "kube.storage") and said[run]["files"] == 2, said
        assert same(w, run, SIZE, 2)


def test_busybox_is_enough(w):
    with site(w, base="busybox", results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "sh", "-c", """cd $DLRUN_OUTPUT_DIR; mkdir -p 'a b'; seq 30000 > 'a b/x.tfevents'; : > e.tfevents; echo written
while sleep 0.1; do if [ -e step ]; then rm step; echo more >> 'a b/x.tfevents'; fi; done""")
        written(s, run)
        want = "".join(f"{n}\n" for n in range(1, 30001))
        here = w.dir / "m" / run / "a b/x.tfevents"
        with Mirror(w, w.dir / "m", run, look_ms=300) as m:
            m.wait(lambda said: said.get(run, {}).get("files") == 2, "both files", 60)
            assert here.read_text() == want
            w.ok("exec", run, "--", "sh", "-c", "touch $DLRUN_OUTPUT_DIR/step")
            wait_for(lambda: here.read_text() == want + "more\n", "the new line", 60)
        w.run("cancel", run)


def test_scalars_only(w):
    """Of a pod, too, images between the scalars are passed over, and what is new is appended."""
    tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
    with site(w, files={"w.py": IMAGES, "events.py": EVENTS}, results={"emptyDir": True}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "w.py", "40", "images")
        written(s, run)
        here = w.dir / "m" / run

        def wanted():
            path = f"tb/{events_of(here).name}"
            return scalars_in(subprocess.run([tool, "read", run, path, "0", "100000000"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True).stdout)

        with Mirror(w, here.parent, run, look_ms=300, kind="scalars") as m:
            m.wait(lambda said: run in said, "the first looks", 120)
            assert events_of(here).read_bytes() == wanted()
            before = m.said()[run]["looks"]
            in_pod(w, run, "open('step', 'w')")
            m.wait(lambda said: said[run]["looks"] > before + 3, "a step", 60)
            wait_for(lambda: events_of(here).read_bytes() == wanted(), "its scalars", 60)
        assert before >= 4 and 40 * 50 < len(wanted()) < 10000, (before, len(wanted()))
        w.run("cancel", run)


if __name__ == "__main__":
    main()
