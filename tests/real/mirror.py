#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Event files of runs kept up to date here, from real nodes: new bytes only, whatever is cut or ends meanwhile.

CI takes smaller files; DLRUN_FULL=1: 24 runs with 30 MB each.
"""

import pty
import random
import re
import signal
import subprocess
import threading
from pathlib import Path

from harness import *  # noqa: F403
from sshsite import site

FULL = bool(os.environ.get("DLRUN_FULL"))
RUNS, SIZE = (24, 30_000_000) if FULL else (6, 1_500_000)
NAME = "tb/events.out.tfevents.1700000000.host.1"

# Bytes that compress badly and differ everywhere; then a step each time that a file says so.
WRITE = """import os, random, sys, time
size, seed = int(sys.argv[1]), int(sys.argv[2])
out = os.environ["DLRUN_OUTPUT_DIR"]
os.makedirs(out + "/tb/deep", exist_ok=True)
r = random.Random(seed)
with open(out + "/tb/events.out.tfevents.1700000000.host.1", "wb") as f:
    while size > 0:
        n = min(size, 1 << 20)
        f.write(r.randbytes(n)); f.flush()
        size -= n
open(out + "/model.pt", "wb").write(b"no" * 100000)
open(out + "/tb/deep/x.tfevents", "wb").write(b"deep")
print("written", flush=True)
end = out + "/end"
n = 0
while not os.path.exists(end):
    if os.path.exists(out + "/step"):
        os.remove(out + "/step")
        with open(out + "/tb/events.out.tfevents.1700000000.host.1", "ab") as f:
            f.write(r.randbytes(20000))
        n += 1
        print("step", n, flush=True)
    time.sleep(0.05)
"""


EVENTS = (Path(__file__).resolve().parents[2] / "examples/digits/events.py").read_text()
# Scalars, and an image of 2 MB behind each tenth step; a step and its image each time that a file says so.
IMAGES = """import os, sys, time
import events as e
n, images = int(sys.argv[1]), sys.argv[2] == "images"
out = os.environ["DLRUN_OUTPUT_DIR"]
os.makedirs(out + "/tb", exist_ok=True)
pixels = e._bytes(4, os.urandom(2_000_000))
image = e._frame(e._double(1, time.time()) + e._bytes(5, e._bytes(1, e._bytes(1, b"image") + e._bytes(4, pixels))))
with e.EventWriter(out + "/tb") as events:
    step = 0
    while not os.path.exists(out + "/end"):
        asked = os.path.exists(out + "/step")
        if step >= n and not asked:
            time.sleep(0.02)
            continue
        events.scalars(step, loss=1 / (step + 1), accuracy=step / n)
        if images and (asked or step % 10 == 0):
            events._file.write(image)
            events._file.flush()
        step += 1
        if asked:
            os.remove(out + "/step")
        if step >= n:
            print("written", step, flush=True)
"""
IMAGE = 2_000_000


class Mirror:
    """mirror_tool as a process beside the test; what it says of each run."""

    def __init__(self, w, dir, *runs, look_ms=200, kind="mirror"):
        self.dir, self.file = Path(dir), w.dir / f"{Path(dir).name}-{random.random()}.jsonl"
        tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
        if not tool.exists():
            raise Missing(f"{tool} is not built")
        with open(self.file, "w") as out:
            self.process = subprocess.Popen([tool, kind, dir, str(look_ms), *runs], cwd=w.tree, env=w.env, stdout=out,
                                            stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def said(self):
        """The newest line of each run."""
        lines = [json.loads(line) for line in self.file.read_text().split("\n")[:-1]]
        return {line["run"]: line for line in lines}

    def wait(self, holds, what, seconds=120):
        wait_for(lambda: holds(self.said()) or self.process.poll() is not None, what, seconds)
        said = self.said()
        assert holds(said), (what, said, self.process.poll())
        return said

    def over(self, seconds=120):
        assert self.process.wait(timeout=seconds) == 0
        return self.said()


def there(s, run, host="gpu1"):
    return s.there(run, host=host).parent / "outputs"


def same(s, dir, runs):
    return all((Path(dir) / run / NAME).exists() and (Path(dir) / run / NAME).read_bytes() == (there(s, run) / NAME).read_bytes()
               for run in runs)


def written(s, w, run):
    wait_for(lambda: "written" in w.run("logs", run).out, "the files", 120)


def submit_all(s, w, n, size):
    runs = [s.submit("--grace", "1s", "--", "python3", "w.py", str(size), str(seed)) for seed in range(n)]
    for run in runs:
        written(s, w, run)
    return runs


def test_bytes_on_the_wire(w):
    """Many runs at once: what passes is what is new and two percent; a second mirror of the same directory adds nothing."""
    with site(w, files={"w.py": WRITE}) as s:
        runs = submit_all(s, w, RUNS, SIZE)
        with s.wire("gpu1") as wire:
            before = wire.down
            with Mirror(w, w.dir / "m", *runs, look_ms=60000) as m:
                m.wait(lambda said: len(said) == RUNS and all(line["looks"] for line in said.values()), "the first looks", 600)
            bytes_ = wire.down - before
            assert same(s, w.dir / "m", runs)
            total = RUNS * (SIZE + 4)
            print(f"{RUNS} runs, {total} bytes of event files: {bytes_} bytes on the wire, {100 * (bytes_ / total - 1):.2f} % over")
            slack = 1.02 if FULL else 1.06
            assert bytes_ <= total * slack, (bytes_, total)
            # Again: nothing but lists.
            before = wire.down
            with Mirror(w, w.dir / "m", *runs, look_ms=60000) as m:
                said = m.wait(lambda said: len(said) == RUNS and all(line["looks"] for line in said.values()), "looks", 120)
            assert sum(line["new"] for line in said.values()) == 0, said
            assert wire.down - before < 100_000 + 20_000 * RUNS, wire.down - before
        assert not (w.dir / "m" / runs[0] / "model.pt").exists()
        assert (w.dir / "m" / runs[0] / "tb/deep/x.tfevents").read_bytes() == b"deep"
        for run in runs:
            w.run("cancel", run)


def grow(s, w, runs):
    for run in runs:
        (there(s, run) / "step").touch()
    wait_for(lambda: not any((there(s, run) / "step").exists() for run in runs), "a step", 30)


def end(s, w, runs):
    for run in runs:
        (there(s, run) / "end").touch()
    for run in runs:
        assert s.ended(run)["state"] == "succeeded"


def test_goes_on_over_cuts_kills_and_restarts(w):
    """Connections are cut, the mirror is killed, the node's sshd ends: never a byte that was not there, and all of it in the end."""
    rng = random.Random(8)
    with site(w, files={"w.py": WRITE}) as s:
        runs = submit_all(s, w, 3, 1_000_000)
        with s.wire("gpu1", rate=3_000_000) as wire:
            kills = cuts = 0
            for n in range(14):
                before = wire.down
                with Mirror(w, w.dir / "m", *runs, look_ms=100) as m:
                    if n % 3 == 0:
                        wire.fault("rst", side="response", after=rng.randrange(2_000_000), times=1)
                        cuts += 1
                    if n % 5 == 4:
                        s["gpu1"].restart(sessions=True)
                    grow(s, w, runs)
                    until = before + rng.randrange(1, 700_000)
                    wait_for(lambda: wire.down > until or len(m.said()) == len(runs), "some bytes or a look at each")
                    m.process.send_signal(signal.SIGKILL)
                    kills += 1
                for run in runs:
                    here = w.dir / "m" / run / NAME
                    if here.exists():
                        data = (there(s, run) / NAME).read_bytes()
                        assert data.startswith(here.read_bytes()), f"{run}: a torn file after kill {n}"
            wire.clear()
            end(s, w, runs)
            with Mirror(w, w.dir / "m", *runs, look_ms=100) as m:
                said = m.over(120)
            assert all(line["over"] and not line["fault"] for line in said.values()), said
            assert same(s, w.dir / "m", runs)
            # It has ended and is here: nobody is asked any more.
            before = wire.down
            with Mirror(w, w.dir / "m", *runs) as m:
                assert all(line["over"] for line in m.over(20).values())
            assert wire.down == before


def test_several_mirrors_of_one_directory(w):
    with site(w, files={"w.py": WRITE}) as s:
        runs = submit_all(s, w, 2, 500_000)
        with Mirror(w, w.dir / "m", *runs, look_ms=50) as a, Mirror(w, w.dir / "m", *runs, look_ms=50) as b:
            for _ in range(10):
                grow(s, w, runs)
            end(s, w, runs)
            brought = sum(line["new"] for m in (a, b) for line in m.over().values())
        assert same(s, w.dir / "m", runs)
        total = sum((there(s, run) / NAME).stat().st_size + 4 for run in runs)
        assert brought == total, (brought, total)


def test_shorter_replaced_and_hostile_files(w):
    with site(w, files={"w.py": "import time\ntime.sleep(600)\n"}) as s:
        run = s.submit("--grace", "1s", "--", "python3", "w.py")
        s.running(run)
        out, here = there(s, run), w.dir / "m" / run
        (out / "a.tfevents").write_bytes(b"first" * 1000)
        (out / "d").mkdir()
        (out / "d/evil\n\033[2J.tfevents").write_bytes(b"evil")
        (out / "d/link.tfevents").symlink_to("/etc/passwd")
        (out / "up").symlink_to("/etc")
        os.mkfifo(out / "d/pipe.tfevents")
        (out / ".dlrun-mirror").mkdir()
        (out / ".dlrun-mirror/seen.tfevents").write_bytes(b"x")
        with open(out / "bomb.tfevents", "wb") as f:
            f.truncate(1 << 42)
        with Mirror(w, w.dir / "m", run, look_ms=100) as m:
            m.wait(lambda said: run in said, "a look")
            assert (here / "a.tfevents").read_bytes() == b"first" * 1000
            assert (here / "d/evil\n\033[2J.tfevents").read_bytes() == b"evil"
            assert sorted(p.name for p in (here / "d").iterdir()) == ["evil\n\033[2J.tfevents"]
            assert not (here / "bomb.tfevents").exists() and not (here / "up").exists()
            assert sorted(p.name for p in (here / ".dlrun-mirror").iterdir()) == ["lock", "seen"]
            assert m.said()[run]["fault"] == "data.limit", m.said()
            (out / "bomb.tfevents").unlink()
            (out / ".dlrun-mirror/seen.tfevents").unlink()
            (out / "a.tfevents").write_bytes(b"short")
            wait_for(lambda: (here / "a.tfevents").read_bytes() == b"short", "the shorter one", 70)
            (out / "new").write_bytes(b"other" * 2000)
            (out / "new").rename(out / "a.tfevents")
            wait_for(lambda: (here / "a.tfevents").read_bytes() == b"other" * 2000, "the other one", 70)
            (out / "late.tfevents").write_bytes(b"late")
            wait_for(lambda: (here / "late.tfevents").exists() and (here / "late.tfevents").read_bytes() == b"late", "the new one", 70)
        w.run("cancel", run)


def events_of(directory):
    [file] = (directory / "tb").glob("*tfevents*")
    return file


def scalars_in(data):
    """The records that are no image."""
    at, kept = 0, b""
    while at < len(data):
        end = at + 16 + int.from_bytes(data[at:at + 8], "little")
        if end - at < 1000:
            kept += data[at:end]
        at = end
    return kept


def scalars_of(file):
    return scalars_in(file.read_bytes())


def images_run(s, w, n, kind="images"):
    run = s.submit("--grace", "1s", "--", "python3", "w.py", str(n), kind)
    written(s, w, run)
    return run


def curves_of(w, *words):
    """What plot draws, but for where it is from."""
    curves = json.loads(w.ok("plot", "--json", *words).out)["curves"]
    return [(c["dir"], c["tag"], c["step"], c["value"], c["wall_time"]) for c in curves]


def test_scalars_only(w):
    """Of a file with images of 2 MB hardly more than the curves passes, and they are the same; growth is appended, another file taken."""
    with site(w, files={"w.py": IMAGES, "events.py": EVENTS}) as s:
        run = images_run(s, w, 400)
        there_, here = events_of(there(s, run)), w.dir / "m" / run
        with s.wire("gpu1") as wire:
            before, begun = wire.down, time.monotonic()
            with Mirror(w, w.dir / "m", run, look_ms=100, kind="scalars") as m:
                m.wait(lambda said: run in said, "the first looks")
                took, bytes_ = time.monotonic() - begun, wire.down - before
                assert events_of(here).read_bytes() == scalars_of(there_)
                print(f"{there_.stat().st_size} bytes with 40 images, {len(scalars_of(there_))} without: {bytes_} bytes on the wire, {took:.1f} s")
                assert bytes_ < there_.stat().st_size / 20, bytes_
                inode, before = events_of(here).stat().st_ino, wire.down
                for _ in range(3):
                    grow(s, w, [run])
                wait_for(lambda: events_of(here).read_bytes() == scalars_of(there_), "three steps", 60)
                assert events_of(here).stat().st_ino == inode
                assert wire.down - before < IMAGE, wire.down - before
            # The same with what commands use; what the other mirror has is of no use to it.
            before = wire.down
            assert curves_of(w, run) == curves_of(w, there(s, run)) and len(curves_of(w, run)) == 2
            assert wire.down - before < there_.stat().st_size / 10, wire.down - before
            assert (w.cache / "mirror-scalars" / run).is_dir() and not (w.cache / "mirror").exists()
        end(s, w, [run])
        # A step twice, which moves all that follows.
        data = there_.read_bytes()
        first = 16 + int.from_bytes(data[:8], "little")
        second = first + 16 + int.from_bytes(data[first:first + 8], "little")
        (there_.parent / "new").write_bytes(data[:second] + data[first:])
        (there_.parent / "new").rename(there_)
        with Mirror(w, w.dir / "m", run, kind="scalars") as m:
            m.over()
        assert events_of(here).read_bytes() == scalars_of(there_)


def test_scalars_only_over_cuts_and_kills(w):
    """Never a record twice, torn or lost."""
    rng = random.Random(9)
    with site(w, files={"w.py": IMAGES, "events.py": EVENTS}) as s:
        run = images_run(s, w, 200)
        there_, here = events_of(there(s, run)), w.dir / "m" / run
        with s.wire("gpu1", rate=2_000_000) as wire:
            for n in range(10):
                with Mirror(w, w.dir / "m", run, look_ms=50, kind="scalars") as m:
                    if n % 3 == 0:
                        wire.fault("rst", side="response", after=rng.randrange(400_000), times=1)
                    grow(s, w, [run])
                    until = wire.down + rng.randrange(1, 600_000)
                    wait_for(lambda: wire.down > until or m.said(), "some bytes or a look")
                    m.process.send_signal(signal.SIGKILL)
                if (here / "tb").exists():
                    assert scalars_of(there_).startswith(events_of(here).read_bytes()), f"after kill {n}"
            wire.clear()
            end(s, w, [run])
            # Two of one directory in turns.
            with Mirror(w, w.dir / "m", run, look_ms=50, kind="scalars") as m, Mirror(w, w.dir / "m", run, look_ms=50, kind="scalars") as other:
                said = m.over()
                assert other.over()[run]["over"]
        assert said[run]["over"] and not said[run]["fault"], said
        assert events_of(here).read_bytes() == scalars_of(there_)


def test_scalars_only_of_many_runs(w):
    """More runs than look at one time: those that have much to pass over do not keep the others."""
    with site(w, files={"w.py": IMAGES, "events.py": EVENTS}) as s:
        large = [images_run(s, w, 500) for _ in range(7)]
        small = [images_run(s, w, 50, "none") for _ in range(2)]
        runs = small[:1] + large + small[1:]
        with Mirror(w, w.dir / "m", *runs, look_ms=60000, kind="scalars") as m:
            said = m.wait(lambda said: len(said) == len(runs), "the first looks")
        assert not any(line["fault"] for line in said.values()), said
        first = [json.loads(line)["run"] for line in m.file.read_text().split("\n")[:2]]
        assert sorted(first) == sorted(small), first
        for run in runs:
            assert events_of(w.dir / "m" / run).read_bytes() == scalars_of(events_of(there(s, run)))
            w.run("cancel", run)


def test_a_node_that_is_away(w):
    """What is here stays, and it is tried again."""
    with site(w, files={"w.py": WRITE}) as s:
        runs = submit_all(s, w, 1, 100_000)
        with Mirror(w, w.dir / "m", *runs, look_ms=100) as m:
            m.wait(lambda said: said.get(runs[0], {}).get("looks"), "a look")
            s["gpu1"].stop(sessions=True)
            said = m.wait(lambda said: said[runs[0]]["fault"], "that it is away", 120)
            assert not said[runs[0]]["over"] and said[runs[0]]["files"] == 2, said
            assert (w.dir / "m" / runs[0] / NAME).stat().st_size == 100_000
            s["gpu1"].start()
            grow(s, w, runs)
            m.wait(lambda said: said[runs[0]]["bytes"] == 120_004 and not said[runs[0]]["fault"], "that it is back", 120)
        assert same(s, w.dir / "m", runs)
        w.run("cancel", runs[0])


def test_a_node_that_is_started_anew(w):
    """The run is lost; what it had written comes all the same, and then it is over."""
    with site(w, files={"w.py": WRITE}) as s:
        runs = submit_all(s, w, 2, 100_000)
        with Mirror(w, w.dir / "m", *runs, look_ms=100) as m:
            m.wait(lambda said: len(said) == 2 and all(line["looks"] for line in said.values()), "looks")
            grow(s, w, runs[:1])
            s["gpu1"].stop(sessions=True)
            s["gpu1"].reboot()
            if not s["gpu1"].reachable():
                s["gpu1"].start()
            said = m.over(150)
        assert all(line["over"] and not line["fault"] for line in said.values()), said
        assert same(s, w.dir / "m", runs)


def test_each_rank_of_several_hosts(w):
    with site(w, "gpu1", "gpu2", files={"w.py": WRITE}) as s:
        run = s.submit("-N", "2", "--grace", "1s", "--", "sh", "-c", "python3 w.py 50000 $NODE_RANK", to="gpu1,gpu2")
        tool, at = Path(w.dlrun).parent / "tests/real/mirror_tool", [there(s, run, "gpu1"), there(s, run, "gpu2")]
        with Mirror(w, w.dir / "m", run, look_ms=100) as m:
            m.wait(lambda said: said.get(run, {}).get("files") == 4 and said[run]["bytes"] == 100_008, "all files")
            here = [w.dir / "m" / run / f"rank-{n}" / NAME for n in range(2)]
            assert sorted(p.read_bytes() for p in here) == sorted((out / NAME).read_bytes() for out in at)
            for rank in range(2):
                part = subprocess.run([tool, "read", run, f"rank-{rank}/{NAME}", "100", "7"], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True)
                assert part.stdout == here[rank].read_bytes()[100:107]
                listed = w.command([tool, "list", run, f"rank-{rank}/{NAME}"], cwd=w.tree).out.splitlines()
                assert listed == [f"{here[rank].stat().st_size} rank-{rank}/{NAME}"], listed
            done = w.command([tool, "read", run, "rank-2/x", "0", "10"], cwd=w.tree)
            assert done.rc == 1 and "[fetch.path]" in done.err, done
        w.run("cancel", run)


# What TensorBoard's plugins read: profiles, traces, the projector's files; the last two names are in no configuration.
# Their times are past: a file that may be changing yet is fetched once more when it rests.
PLUGINS = """import gzip, os, sys, time
def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.utime(path, (1700000000, 1700000000))
for base in (os.environ["DLRUN_OUTPUT_DIR"] + "/tb", "runs/tree"):
    put(base + "/events.out.tfevents.1700000000.host.1", b"events")
    put(base + "/plugins/profile/2026_01_01/host.xplane.pb", bytes(range(256)) * 400)
    put(base + "/plugins/profile/2026_01_01/host.trace.json.gz", gzip.compress(b"{}"))
    put(base + "/host_1.1700000000.pt.trace.json", b"{}" * 9)
    put(base + "/projector_config.pbtxt", b'embeddings { tensor_path: "00000/de fault/tensors.tsv" metadata_path: "00000/de fault/metadata.tsv"'
        b' sprite { image_path: "00000/de fault/sprite.png" } }\\n')
    for name in ("tensors.tsv", "metadata.tsv", "sprite.png"):
        put(base + "/00000/de fault/" + name, name.encode() * 1000)
    put(base + "/model.pt", b"no")
    put(base + "/plugins/profiles/other", b"no")
print("written", flush=True)
while not os.path.exists(os.environ["DLRUN_OUTPUT_DIR"] + "/end"):
    time.sleep(0.05)
"""
PLUGIN_FILES = ["00000/de fault/metadata.tsv", "00000/de fault/sprite.png", "00000/de fault/tensors.tsv", "host_1.1700000000.pt.trace.json",
                "plugins/profile/2026_01_01/host.trace.json.gz", "plugins/profile/2026_01_01/host.xplane.pb", "projector_config.pbtxt"]


def plugins_are_here(here):
    """Those of the outputs and of the tree, whole, and nothing else."""
    for base in (here / "tb", here / "runs/tree"):
        found = sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())
        if found != sorted([*PLUGIN_FILES, "events.out.tfevents.1700000000.host.1"]):
            return False
    return (here / "tb/plugins/profile/2026_01_01/host.xplane.pb").stat().st_size == 102400 and \
        (here / "runs/tree/00000/de fault/tensors.tsv").read_bytes() == b"tensors.tsv" * 1000


def test_files_of_plugins(w):
    """From a host while it runs and from here: what plugins read comes by what names it, once; then all of the ended run."""
    with site(w, files={"w.py": PLUGINS}) as s:
        away = s.submit("--grace", "1s", "--", "python3", "w.py")
        here = w.ok("submit", "-d", "--grace", "1s", "--", "python3", "w.py").out.strip()
        for run in (away, here):
            written(s, w, run)
        with Mirror(w, w.dir / "m", away, here, look_ms=200) as m:
            wait_for(lambda: all(plugins_are_here(w.dir / "m" / run) for run in (away, here)), "the files", 120)
            m.wait(lambda said: said[away]["files"] == 2, "both event files")
            whole = sum((base / name).stat().st_size for base in (w.dir / "m" / away / "tb", w.dir / "m" / away / "runs/tree")
                        for name in [*PLUGIN_FILES, "events.out.tfevents.1700000000.host.1"])
            # One that is written anew is another file, and comes as a whole; nothing else does.
            config = there(s, away) / "tb/plugins/profile/2026_01_01/host.xplane.pb"
            config.write_bytes(b"x" * 1000)
            os.utime(config, (1700000001, 1700000001))
            wait_for(lambda: (w.dir / "m" / away / "tb/plugins/profile/2026_01_01/host.xplane.pb").read_bytes() == b"x" * 1000, "the new profile", 60)
            assert m.said()[away]["new"] <= whole + 2000, (whole, m.said())
            for out in (there(s, away), w.state / "runs" / here / "outputs"):
                (out / "end").touch()
            assert all(line["over"] and not line["fault"] for line in m.over().values())
        with Mirror(w, w.dir / "c", away, kind="scalars") as m:
            m.over()
        assert [p.name for p in (w.dir / "c" / away).rglob("*") if p.is_file() and p.parent.name != ".dlrun-mirror"] == \
            ["events.out.tfevents.1700000000.host.1"] * 2


def test_runs_of_this_machine_are_linked(w):
    """Nothing is copied, and what is new is seen in the file itself."""
    w.repo({"w.py": WRITE})
    run = w.ok("submit", "-d", "--grace", "1s", "--", "python3", "w.py", "100000", "1").out.strip()
    wait_for(lambda: "written" in w.run("logs", run).out, "the files")
    out, here = w.state / "runs" / run / "outputs", w.dir / "m" / run
    with Mirror(w, w.dir / "m", run, look_ms=100) as m:
        m.wait(lambda said: said.get(run, {}).get("files") == 2, "both files")
        assert (here / NAME).is_symlink() and os.readlink(here / NAME) == str(out / NAME)
        (out / "step").touch()
        wait_for(lambda: (here / NAME).stat().st_size == 120000, "a step")
        (out / "late").mkdir()
        (out / "late/x.tfevents").write_bytes(b"1")
        m.wait(lambda said: said[run]["files"] == 3, "the new file")
        (out / "late/x.tfevents").unlink()
        m.wait(lambda said: said[run]["files"] == 2, "the end of a file")
        assert not (here / "late/x.tfevents").is_symlink()
        (out / "end").touch()
        said = m.over()
        assert said[run]["over"] and said[run]["new"] == 0, said


def test_a_fetch_goes_on_over_connections(w):
    """On a terminal it says how far it is and how fast; stopped in the middle of a file, it goes on there."""
    with site(w, files={"w.py": "import os\nopen(os.environ['DLRUN_OUTPUT_DIR'] + '/big', 'wb').write(os.urandom(24_000_000))\n"}) as s:
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded"
        with s.wire("gpu1", rate=3_000_000) as wire:
            fd, other = pty.openpty()
            process = subprocess.Popen([w.dlrun, "fetch", run], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=other, stderr=other)
            os.close(other)
            said = b""
            while not re.search(rb"fetch.*\[#.*[1-9][0-9.]* MiB of 23 MiB \xc2\xb7 [0-9.]+ MiB/s", said):
                assert process.poll() is None, said
                try:
                    said += os.read(fd, 4096)
                except OSError:
                    raise AssertionError(said)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
            os.close(fd)
            part = sum(p.stat().st_size for p in (w.tree / run / ".dlrun-fetch").glob("part-*"))
            # What is not read yet at the cut is lost: slowly until then, so that this is little.
            wire.set(rate=600_000)
            before = wire.down
            fault = wire.fault("rst", side="response", after=5_000_000, times=1)
            faster = threading.Thread(target=lambda: (wait_for(lambda: fault.fired, "the cut", 60), wire.set(rate=None)))
            faster.start()
            done = w.ok("--progress", "plain", "fetch", run)
            faster.join()
            assert fault.fired == 1 and 0 < part < 24_000_000 and wire.down - before < 24_000_000 - part + 1_500_000, (part, wire.down - before)
            assert re.search(r"fetch +[0-9.]+ MiB of [0-9.]+ MiB", done.err), done.err
        assert (w.tree / run / "big").read_bytes() == (there(s, run) / "big").read_bytes()


def test_lists_and_parts_of_files(w):
    """What a node has, without keeping it here."""
    with site(w, files={"w.py": WRITE}) as s:
        run = submit_all(s, w, 1, 200_000)[0]
        tool = Path(w.dlrun).parent / "tests/real/mirror_tool"
        data = (there(s, run) / NAME).read_bytes()
        done = w.command([tool, "list", run], cwd=w.tree)
        assert done.rc == 0 and sorted(done.out.splitlines()) == sorted([f"200000 {NAME}", "4 tb/deep/x.tfevents", "200000 model.pt"]), done
        for path, found in ((NAME, [f"200000 {NAME}"]), ("tb/deep/x.tfevents", ["4 tb/deep/x.tfevents"]), ("x.tfevents", []), ("tb", [])):
            done = w.command([tool, "list", run, path], cwd=w.tree)
            assert done.rc == 0 and done.out.splitlines() == found, (path, done)
        for offset, size in ((0, 10), (1000, 70000), (199990, 500), (200000, 5), (0, 1 << 40)):
            out = subprocess.run([tool, "read", run, NAME, str(offset), str(size)], cwd=w.tree, env=w.env, stdout=subprocess.PIPE, check=True)
            assert out.stdout == data[offset:offset + size], (offset, size, len(out.stdout))
        for path in ("absent", "tb", "../1/tree", "/etc/passwd", "tb/../model.pt", ""):
            done = w.command([tool, "read", run, path, "0", "10"], cwd=w.tree)
            assert done.rc == 1 and "[fetch.path]" in done.err, (path, done)
        w.run("cancel", run)


if __name__ == "__main__":
    main()
