#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results that the runner takes from the tree, in each shell that a node may have; busybox with its own tools.

    tests/real/runner_collect.py - [NAME…]
"""

import signal
import stat

from harness import *  # noqa: F403
from runner import RUNNER, Node, each_shell, end_of, layer, quoted, sys_python

BASE = {"train.py": "code", "conf.yaml": "a: 1\n", "d/in.txt": "in", "names/of.txt": "old"}


def each_with_tools(function):
    """Not busybox, whose shell takes no tool but its own."""
    return each_shell(function, ("dash", "bash"))


def tool(node, name, before):
    """Lines in front of a tool that the runner takes."""
    (node.w.dir / "bin" / name).write_text(f"#!/bin/sh\n{before}\nexec {needs(name)} \"$@\"\n")
    (node.w.dir / "bin" / name).chmod(0o755)


def python(node, run, code, more="", files=None, wait=True, **job):
    node.submit(run, sys_python(), "-c", "import os, shutil, sys, time, pathlib\nP = pathlib.Path\nO = P(os.environ['DLRUN_OUTPUT_DIR'])\n" + code,
                layers=[layer({**BASE, **(files or {})})], more=more, **job)
    return node.wait(run, seconds=300) if wait else None


def outputs(node, run, of="outputs"):
    """{path: content, or link's target behind "->"} as the runner lists it, checked against the disk."""
    top = node.local / "runs" / run / of
    found = {}
    for path in sorted(top.rglob("*")):
        name = os.fsencode(path.relative_to(top)).decode("utf-8", "surrogateescape")
        if path.is_symlink():
            found[name] = "->" + os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes() if path.stat().st_size < 1 << 20 else path.stat().st_size
    return found


@each_shell
def each_kind_of_file(node):
    outside = node.w.write("outside", "not ours", base=node.w.dir)
    end = python(node, "a", f"""
P('model.pt').write_bytes(b'model')
P('train.py').write_text('changed')
P('lightning_logs/version_0').mkdir(parents=True)
P('lightning_logs/version_0/events.out.tfevents.1').write_text('ev')
P('d/deep/er').mkdir(parents=True)
P('d/deep/er/x y').write_text('blank')
P('new\\nline\\n').mkdir()
P("new\\nline\\n/it's\\n").write_text('odd')
P(os.fsdecode(b'\\xff\\x81\\x88 \\\\ $x `y` "z"')).write_text('bytes')
P('-rf').write_text('dash')
P('out-link').symlink_to({str(outside)!r})
P('dir-link').symlink_to('/etc')
P('dangling').symlink_to('no\\nwhere')
with open('sparse', 'wb') as f: f.truncate(4 << 30)
P('__pycache__').mkdir(); P('__pycache__/a.cpython.pyc').write_text('no')
P('d/b.pyc').write_text('no'); P('.git').mkdir(); P('.git/x').write_text('no')
P('.ipynb_checkpoints').mkdir(); P('.ipynb_checkpoints/x').write_text('no')
P('empty/dir').mkdir(parents=True)
os.mkfifo('fifo')
shutil.copy2('conf.yaml', 'copy.yaml')
P('d/in.txt').rename('d/moved.txt')
import socket
socket.socket(socket.AF_UNIX).bind('sock')
still = open('open.log', 'w'); still.write('so far'); still.flush()
P(O, 'own').write_text('own')
os._exit(3)
""")
    assert end_of(end) == ("failed", 3, 0, "Error") and "collect" not in end, end
    wanted = {"model.pt": b"model", "train.py": b"changed", "lightning_logs/version_0/events.out.tfevents.1": b"ev", "d/deep/er/x y": b"blank",
              "new\nline\n/it's\n": b"odd", b"\xff\x81\x88 \\ $x `y` \"z\"".decode("utf-8", "surrogateescape"): b"bytes", "-rf": b"dash",
              "out-link": f"->{outside}", "dir-link": "->/etc", "dangling": "->no\nwhere", "sparse": 4 << 30, "copy.yaml": b"a: 1\n",
              "d/moved.txt": b"in", "open.log": b"so far"}
    assert outputs(node, "a", "collected") == wanted, outputs(node, "a", "collected")
    assert outputs(node, "a") == {**wanted, "own": b"own"}, outputs(node, "a")
    run = node.local / "runs/a"
    assert (run / "outputs/sparse").stat().st_blocks == 0 and (run / "outputs/sparse").samefile(run / "1/tree/sparse")
    assert outside.read_text() == "not ours" and outside.stat().st_nlink == 1
    listed = node.ask("files a")
    assert sum(line.startswith("f ") for line in listed) == 12 and sum(line.startswith("l ") for line in listed) == 3, listed


@each_shell
def each_end_of_an_attempt(node):
    code = "P('left.txt').write_text('x')\nP('logs').mkdir()\nP('logs/a').write_text('y')\nprint('ready', flush=True)\n"
    python(node, "exit", code)
    python(node, "signal", code + "os.kill(os.getpid(), 9)")
    python(node, "limit", code + "time.sleep(600)", timeout_ms=3000, grace_ms=200)
    python(node, "cancel", code + "time.sleep(600)", wait=False, grace_ms=200)
    wait_for(lambda: node.log("cancel"), "the program of cancel")
    node.ask("cancel cancel 1")
    assert node.wait("cancel")["state"] == "cancelled"
    python(node, "lost", code + "time.sleep(600)", wait=False)
    wait_for(lambda: node.log("lost"), "the program of lost")
    state = node.state("lost")
    for who in ("watcher", "supervisor", "program"):
        os.kill(int(state[who].split(":")[0]), signal.SIGKILL)
    assert node.wait("lost")["state"] == "lost"
    for run in ("exit", "signal", "limit", "cancel", "lost"):
        assert outputs(node, run) == {"left.txt": b"x", "logs/a": b"y"}, (run, outputs(node, run), node.state(run))


@each_shell
def each_moved_directory(node):
    """The files below a directory that is renamed as a whole have the times they had."""
    files = {"conf/a.yaml": "a", "conf/sub/deep/b.yaml": "b", "one/x": "one", "two/x": "two", "two/sub/y": "y", "back/z": "z",
             "still/s": "s", "old/o": "o", "wild [*]/w": "w", "-n/m": "m", "it's\nkept/k": "k", "to be\nmoved/sub/l": "l"}
    python(node, "mv-22222", """
P('conf/a.yaml').write_text('edited')
P('conf/sub/new').write_text('new')
for a, b in (('conf', 'renamed'), ('one', 'temp'), ('two', 'one'), ('temp', 'two'), ('back', 'elsewhere'), ('elsewhere', 'back'),
             ('wild [*]', 'wild ?'), ('-n', '-e'), ("to be\\nmoved", "mo'ved\\n")):
    os.rename(a, b)
os.mkdir('made')
os.rename('old', 'made/old')
P('made/first').write_text('1')
P('still/new').write_text('n')
P("it's\\nkept/new").write_text('n')
""", files=files)
    want = {"renamed/a.yaml": b"edited", "renamed/sub/deep/b.yaml": b"b", "renamed/sub/new": b"new", "one/x": b"two",
            "one/sub/y": b"y", "two/x": b"one", "made/old/o": b"o", "made/first": b"1", "still/new": b"n", "wild ?/w": b"w",
            "-e/m": b"m", "it's\nkept/new": b"n", "mo'ved\n/sub/l": b"l"}
    assert outputs(node, "mv-22222") == want, outputs(node, "mv-22222")


IN_PARTS = {f"{top}/p{i}/q{j}/f{k}": f"{top}{i}{j}{k}" for top in ("it's a", "b [*]", "-c") for i in range(4) for j in range(3) for k in range(2)}


def in_parts(node, least=1):
    """Trees of so many directories are searched by four finds; a program waits until that is decided."""
    old = b'\t\thello_cpus\n\t\t[ "$cpus" -le'
    assert old in RUNNER and b"COLLECT_SPLIT=512\n" in RUNNER
    node.runner.write_bytes(RUNNER.replace(old, old.replace(b"hello_cpus", b"cpus=4")).replace(b"COLLECT_SPLIT=512\n", b"COLLECT_SPLIT=%d\n" % least))
    return "while not P('../split').exists(): time.sleep(0.01)\n"


def parts(node, run):
    return [line.split(" ", 2)[1:] for line in (node.dir(run) / "split").read_text().splitlines()]


@each_shell
def each_search_in_parts(node):
    """What is found is the same, whatever became of the places where the parts begin."""
    outside = node.w.dir / "outside"
    code = f"""
import random
random.seed(7)
for path in sorted(P('.').glob('*/p*/q*/f0')):
    random.random() < 0.5 and path.write_text('changed')
os.rename('b [*]/p0', 'b [*]/new')
os.rename('b [*]/p1', 'swap'); os.rename('-c/p1', 'b [*]/p1'); os.rename('swap', '-c/p1')
os.rename('-c/p2', "it's a/under")
shutil.rmtree("it's a/p0")
P('{outside}/q0').mkdir(parents=True, exist_ok=True); P('{outside}/q0/secret').write_text('not ours')
shutil.rmtree("it's a/p1"); os.symlink('{outside}', "it's a/p1")
shutil.rmtree('-c/p3/q0'); P('-c/p3/q0').write_text('a file')
P('-c/p3/q1/li\\nne').mkdir(); P('-c/p3/q1/li\\nne/x').write_text('x'); P('-c/p3/q1/__pycache__').mkdir(); P('-c/p3/q1/__pycache__/no').write_text('no')
P('b [*]/p3/q2/deep/er').mkdir(parents=True); P('b [*]/p3/q2/deep/er/y').write_text('y' * 1000)
os.rename('b [*]', 'c [*]'); os.mkdir('b [*]'); os.rename('c [*]/p2', 'b [*]/p2')
"""
    found = []
    for run, least in (("whole", 10000), ("parts", 1)):
        waits = in_parts(node, least)
        assert python(node, run, waits + code, files=IN_PARTS)["code"] == "0", node.log(run)
        found.append((outputs(node, run), node.state(run).get("collect")))
    assert not parts(node, "whole") and {n for n, _ in parts(node, "parts")} == {"1", "2", "3"}, parts(node, "parts")
    assert found[0] == found[1], found
    assert found[0][0]["it's a/p1"] == f"->{outside}" and found[0][0]["-c/p3/q0"] == b"a file" and len(found[0][0]) > 40, found[0]


@each_with_tools
def each_part_that_vanishes(node):
    """As it does where something works there still: the rest is found."""
    waits = in_parts(node)
    tool(node, "find", f"for word; do [ -e {node.w.dir}/over ] && [ \"$word\" = ./-c/p0/q0 ] && rm -rf ./-c/p0; done")
    end = python(node, "v", waits + f"P('{node.w.dir}/over').touch()\nfor path in P('.').glob('*/p*/q*/f0'): path.write_text('changed')\n", files=IN_PARTS)
    assert not (node.dir("v") / "tree/-c/p0").exists(), parts(node, "v")
    found = outputs(node, "v")
    assert {name for name in found if "/p0/" not in name} == {name for name in IN_PARTS if name.endswith("f0") and "/p0/" not in name}, found
    assert end["code"] == "0" and "collect" not in end, end


@each_shell
def each_tree_of_lines(node):
    """A name of several lines could be taken for that of another directory: such a tree has no parts."""
    waits = in_parts(node)
    files = {**IN_PARTS, "x\n5 ./.git/y/z": "", "u\nv/w": "w"}
    python(node, "n", waits + "P('u\\nv/w').write_text('changed')\n", files=files)
    assert outputs(node, "n") == {"u\nv/w": b"changed"} and not parts(node, "n"), parts(node, "n")


@each_shell
def each_choice(node):
    code = "".join(f"P({n!r}).parent.mkdir(parents=True, exist_ok=True); P({n!r}).write_text('x')\n" for n in
                   ("a.tmp", "keep", "d/b.tmp", "wandb/x/y", "e/wandb/z", "exp/1/ckpt/a", "exp/2/ckpt/deep/b", "exp/2/log", "[x]", "*y"))
    exclude = "".join(f"collect_exclude {quoted(p).decode()}\n" for p in ("*.tmp", "wandb", "exp/*/ckpt", "./[[]x]"))
    python(node, "exclude", code, more=f"j_exclude() {{\n:\n{exclude}}}\n")
    assert set(outputs(node, "exclude")) == {"keep", "exp/2/log", "*y"}, outputs(node, "exclude")
    python(node, "all", code, more="j_exclude() { collect_exclude '*'; }\n")
    assert not outputs(node, "all")
    python(node, "none", code, more="j_collect=none\n")
    assert not outputs(node, "none")
    # Of what an output has been replaced by the program keeps nothing to itself.
    for mode in ("none", "auto"):
        run = f"out-{mode}"
        python(node, run, "P('results').unlink(); P('results/sub').mkdir(parents=True); P('results/a').write_text('new'); "
               "P('results/sub/b').write_text('b'); P(O, 'results/kept').write_text('old'); P(O, 'results/a').write_text('old'); "
               "P('top').write_text('t')", more=f"j_collect={mode}\nj_outputs() {{ link_output results; }}\n")
        wanted = {"results/a": b"new", "results/sub/b": b"b", "results/kept": b"old", **({"top": b"t"} if mode == "auto" else {})}
        assert outputs(node, run) == wanted, (run, outputs(node, run))
    python(node, "out", "P('results/a').write_text('1')", more="j_outputs() { link_output results; }\n")
    assert outputs(node, "out") == {"results/a": b"1"} and not outputs(node, "out", "collected"), outputs(node, "out")
    data = node.w.dir / "data set"
    node.w.write("one", "1", base=data)
    python(node, "data", "P('names/new').write_text('x'); P('data').is_symlink() or sys.exit(9); P('data/two').write_text('2')",
           more=f"j_data() {{ link_data data {quoted(str(data)).decode()}; link_data names {quoted(str(data)).decode()}; }}\n")
    assert node.state("data")["state"] == "succeeded" and not outputs(node, "data"), outputs(node, "data")


@each_shell
def each_size(node):
    code = "for i in range(8):\n P(f'f{i}').write_bytes(bytes(1000))\n os.utime(f'f{i}', (1e9 + i, 1e9 + i))\n"
    end = python(node, "size", code, more="j_collect_bytes=3500\n")
    assert set(outputs(node, "size")) == {"f5", "f6", "f7"}, outputs(node, "size")
    assert "over the size" in end["collect"] and "f0" in end["collect"] and "1 more" in end["collect"], end
    # What was changed comes before what was only moved.
    end = python(node, "moved", "os.rename('old', 'new'); P('changed').write_bytes(bytes(1000))", more="j_collect_bytes=2500\n",
                 files={"old/a": "a" * 1000, "old/b": "b" * 1000})
    assert len(outputs(node, "moved")) == 2 and "changed" in outputs(node, "moved") and "new/" in end["collect"], end


@each_shell
def each_conflict(node):
    end = python(node, "c", "P('model.pt').write_text('tree'); P(O, 'model.pt').write_text('own'); P('logs').mkdir(); P('logs/a').write_text('a'); "
                 "P(O, 'logs').write_text('file'); P('dir').write_text('file'); P(O, 'dir').mkdir(); P(O, 'dir/x').write_text('x'); "
                 "P('esc').mkdir(); P('esc/passwd').write_text('mine'); os.symlink(os.path.dirname(O), P(O, 'esc'))\n")
    assert outputs(node, "c") == {"model.pt": b"own", "model.pt.tree": b"tree", "logs": b"file", "logs.tree/a": b"a", "dir/x": b"x",
                                  "dir.tree": b"file", "esc": "->" + str(node.local / "runs/c"), "esc.tree/passwd": b"mine"}, outputs(node, "c")
    assert not (node.local / "runs/c/passwd").exists()
    assert "model.pt" in end["collect"] and "dir" in end["collect"], end


@each_shell
def each_look_while_it_runs(node):
    """Event files by themselves, everything when files are asked for; replaced and removed files follow."""
    python(node, "r", """
P('runs/x').mkdir(parents=True)
P('runs/x/events.out.tfevents.1').write_text('1'); P('.hydra').mkdir(); P('.hydra/config.yaml').write_text('lr: 1'); P('other').write_text('o')
P('tb/plugins/profile/1').mkdir(parents=True); P('tb/plugins/profile/1/h.xplane.pb').write_text('p')
print('made', flush=True)
def until(n):
    while not P(O.parent, n).exists(): time.sleep(0.05)
until('step1')
P('other.new').write_text('o2'); P('other.new').rename('other'); P('ckpt-1').unlink(); P('ckpt-2').write_text('2'); shutil.rmtree('gone')
print('changed', flush=True)
until('step2')
""".replace("print('made'", "P('ckpt-1').write_text('1'); P('gone/deep').mkdir(parents=True); P('gone/deep/f').write_text('f')\nprint('made'"),
           wait=False)
    live = {"runs/x/events.out.tfevents.1": b"1", ".hydra/config.yaml": b"lr: 1", "tb/plugins/profile/1/h.xplane.pb": b"p"}
    wait_for(lambda: outputs(node, "r") == live, "event files in the outputs", 60)
    assert any("tfevents" in line for line in node.ask("files r . *tfevents*"))
    assert len([line for line in node.ask("files r") if line.startswith("f ")]) == 6
    assert outputs(node, "r") == {**live, "other": b"o", "ckpt-1": b"1", "gone/deep/f": b"f"}
    node.w.write("step1", "", base=node.local / "runs/r")
    wait_for(lambda: b"changed" in node.log("r"), "the second step")
    node.ask("files r")
    assert outputs(node, "r") == {**live, "other": b"o2", "ckpt-2": b"2"}, outputs(node, "r")
    assert not (node.local / "runs/r/outputs/gone").exists() and not (node.local / "runs/r/collected/gone").exists()
    node.w.write("step2", "", base=node.local / "runs/r")
    assert node.wait("r")["state"] == "succeeded"
    assert outputs(node, "r") == {**live, "other": b"o2", "ckpt-2": b"2"} == outputs(node, "r", "collected")


RESUME = """
n = int(P('ckpt/step').read_text()) if P('ckpt/step').exists() else 0
print(os.environ['DLRUN_ATTEMPT'], n, sorted(os.listdir('ckpt')) if n else '', P('conf.yaml').read_text().strip(), flush=True)
P('ckpt').mkdir(exist_ok=True); P('ckpt/step.new').write_text(str(n + 1)); P('ckpt/step.new').rename('ckpt/step')
P('conf.yaml').write_text(f'a: {n + 2}')
n or os.symlink('step', 'ckpt/last')
n == 1 and P('ckpt/last').unlink()
sys.exit(n < 2)
"""


@each_shell
def each_next_attempt(node):
    python(node, "again", RESUME, retries=3)
    wait_for(lambda: (node.dir("again", 3) / "exit").exists(), "the third attempt", 120)
    node.wait("again", 3, seconds=300)
    logs = [node.log("again", n).decode().split(" ", 1)[1] for n in (1, 2, 3)]
    assert logs == ["0  a: 1\n", "1 ['last', 'step'] a: 2\n", "2 ['step'] a: 3\n"], logs
    assert outputs(node, "again") == {"ckpt/step": b"3", "conf.yaml": b"a: 4"}, outputs(node, "again")
    # A further one, as restart has it.
    node.submit("again", sys_python(), "-c", "import os, sys\nprint(open('ckpt/step').read(), open('conf.yaml').read())", layers=[layer(BASE)], n=4)
    assert node.wait("again", 4)["state"] == "succeeded" and node.log("again", 4) == b"3 a: 4\n", node.log("again", 4)
    assert outputs(node, "again") == {"ckpt/step": b"3", "conf.yaml": b"a: 4"}


@each_shell
def each_kill_while_it_collects(node):
    """SIGKILL for all that works for the attempt, in the middle of it: whoever asks next finishes it."""
    count = 3000
    python(node, "k", f"for i in range({count}):\n P(f'd{{i % 30}}').mkdir(exist_ok=True); P(f'd{{i % 30}}/{{i}}').write_text(str(i))\n",
           wait=False)
    top = node.local / "runs/k"
    wait_for(lambda: (top / "collected").exists() and any((top / "collected").iterdir()), "the first links", 60)
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"{node.w.dir}/root".encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                os.kill(int(entry), signal.SIGKILL)
        except OSError:
            pass
    node.wait("k", seconds=300)
    node.ask("files k")
    assert len(outputs(node, "k")) == len(outputs(node, "k", "collected")) == count


@each_with_tools
def each_time_in_seconds(node):
    """Where neither find nor stat know more: what is written in the first second counts, what was unpacked in it does not."""
    tool(node, "stat", f"exec {needs('stat')} \"$@\" | sed 's/\\(:[0-9][0-9]\\)[.][0-9]* /\\1 /'; exit")
    tool(node, "find", "case \" $* \" in *' -cnewer '*) exit 1 ;; esac")
    for n in range(3):
        python(node, f"s{n}", "P('new').write_text('x'); P('conf.yaml').write_text('changed')")
        assert outputs(node, f"s{n}") == {"new": b"x", "conf.yaml": b"changed"}, outputs(node, f"s{n}")


@each_with_tools
def each_disk_that_is_full(node):
    """Some cannot be linked: the tree stays, and the next look takes them."""
    full = node.w.dir / "full"
    for name in ("ln", "cp"):
        tool(node, name, f"[ ! -e {full} ] || exit 1")
    tool(node, "df", f"[ ! -e {full} ] || {{ printf 'F B U A C M\\n/d 1 1 0 100%% /\\n'; exit; }}")
    end = python(node, "f", f"P('a').write_text('a'); P('d/b').write_text('b'); P({str(full)!r}).touch()")
    assert "could not be linked" in end.get("collect", "") and not outputs(node, "f"), (end, outputs(node, "f"))
    node.ask("gc 0 0")
    assert (node.dir("f") / "tree/a").exists()
    full.unlink()
    node.ask("files f")
    assert outputs(node, "f") == {"a": b"a", "d/b": b"b"} and "collect" not in node.state("f"), node.state("f")


@each_shell
def each_many_files(node):
    python(node, "many", "for i in range(5000):\n i % 500 or P(f'm{i // 500}').mkdir(); P(f'm{i // 500}/{i}').touch()\n")
    assert len(outputs(node, "many")) == 5000


@each_shell
def each_cleaning_up(node):
    """A tree of which something is missing in the outputs stays until that is mended."""
    python(node, "g", "P('a').write_text('a')")
    top = node.local / "runs/g"
    (top / "1/.uncollected").touch()
    (top / "outputs/a").unlink()
    node.ask("gc 0 0")
    assert outputs(node, "g") == {"a": b"a"} and not (top / "1/tree").exists()
    assert not stat.S_ISLNK((top / "outputs/a").lstat().st_mode)


if __name__ == "__main__":
    main()
