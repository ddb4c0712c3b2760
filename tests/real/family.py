#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that hide: whatever they do to their environment, name, group and parents, they end with their run.

The runner's half is over pipes, in each shell that a node may have; what needs a perl on the node says so.

    tests/real/family.py BIN [NAME…]
"""

import signal
import sys

from harness import *  # noqa: F403
from runner import Node, SHELLS, end_of, is_gone

# HIDE PLACE STAY FILE: writes each of its pids to FILE. STAY 1: the first process stays, too.
PROGRAM = r"""
import ctypes, os, signal, sys, time
hide, place, stay, path = sys.argv[1:5]
libc = ctypes.CDLL(None)
def up():
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
def wait():
    up()
    while True:
        time.sleep(600)
def detach():
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    os.chdir("/")
def hidden():
    if hide == "clear" and "HIDDEN" not in os.environ:
        os.execve(sys.executable, [sys.executable, sys.argv[0], hide, "here", "1", path], {"HIDDEN": "1"})
    if hide == "overwrite":
        fields = open("/proc/self/stat").read().rpartition(")")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        ctypes.memset(begin, 0, end - begin)
        libc.prctl(15, b"x) S 1 1\n9 (y", 0, 0, 0)
    if hide == "private":
        libc.prctl(4, 0, 0, 0, 0)
    if hide == "deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
def child(*steps):
    if os.fork():
        return
    for step in steps:
        step()
    hidden()
    wait()
def fork():
    if os.fork():
        os._exit(0)
def stop():
    hidden()
    up()
    os.kill(os.getpid(), signal.SIGSTOP)
PLACES = {
    "here": (),
    "child": (lambda: child(),),
    "group": (lambda: child(os.setpgrp),),
    "session": (lambda: child(os.setsid),),
    "orphan": (lambda: child(fork),),
    "daemon": (lambda: child(os.setsid, fork, detach),),
    "twice": (lambda: child(os.setsid, fork, os.setsid, fork, os.setsid, fork, detach),),
    "stopped": (lambda: child(os.setsid, stop),),
}
for step in PLACES[place]:
    step()
if place == "here":
    hidden()
if stay == "1":
    wait()
while not os.path.exists(path) or (place == "stopped" and not open(path).read()):
    time.sleep(0.01)
"""
HIDES = ("clear", "overwrite", "private", "deaf", "none")
PLACES = {"here": 1, "child": 2, "group": 2, "session": 2, "orphan": 2, "daemon": 2, "twice": 2, "stopped": 2}
KINDS = [(hide, place) for hide in HIDES for place in PLACES]
PYTHON = os.path.realpath(sys.executable)


def third(kinds, turn):
    """Each way to hide and each place, in a third of their pairs, which differs from turn to turn; with --all in all pairs."""
    return kinds if ALL else kinds[turn % 3::3]


def name_of(kind):
    return "-".join(kind)


class Programs:
    def __init__(self, w):
        self.dir = w.dir / "pids"
        self.dir.mkdir()
        self.script = w.write("hide.py", PROGRAM, base=w.dir)

    def words(self, kind, stay=1, tag=""):
        return [PYTHON, str(self.script), *kind, str(stay), str(self.dir / (name_of(kind) + tag))]

    def pids(self, kind, tag=""):
        try:
            return [int(line) for line in (self.dir / (name_of(kind) + tag)).read_text().split()]
        except OSError:
            return []

    def are_up(self, kinds, tag=""):
        for kind in kinds:
            wait_for(lambda: len(self.pids(kind, tag)) == PLACES[kind[1]], f"{kind} is up: {self.pids(kind, tag)}", 60)

    def left(self, kinds, tag=""):
        """What lives on, and is ended here."""
        left = {name_of(kind): pid for kind in kinds for pid in self.pids(kind, tag) if not is_gone(pid)}
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
        return left


def needs_perl():
    if not shutil.which("perl"):
        raise Missing("perl is not installed")


def without_perl(node):
    (node.w.dir / "bin/perl").write_text("#!/bin/sh\nexit 1\n")
    (node.w.dir / "bin/perl").chmod(0o755)


def some(kinds):
    """A few at a time: hundreds of processes at once are another test."""
    return [kinds[i:i + 8] for i in range(0, len(kinds), 8)]


def cancel_on(node, kinds):
    programs = Programs(node.w)
    for few in some(kinds):
        for kind in few:
            node.submit(name_of(kind), *programs.words(kind), grace_ms=500)
        programs.are_up(few)
        for kind in few:
            node.ask(f"cancel {name_of(kind)} 1")
        for kind in few:
            assert end_of(node.wait(name_of(kind), seconds=60))[3] == "Cancelled", (kind, node.state(name_of(kind)))
        assert programs.left(few) == {}


def limit_on(node, kinds):
    programs = Programs(node.w)
    for few in some(kinds):
        for kind in few:
            node.submit(name_of(kind), *programs.words(kind), grace_ms=500, timeout_ms=5000)
        for kind in few:
            assert end_of(node.wait(name_of(kind), seconds=90))[3] == "Timeout", (kind, node.state(name_of(kind)))
        assert programs.left(few) == {}


def left_on(node, kinds):
    programs = Programs(node.w)
    for few in some(kinds):
        for kind in few:
            node.submit(name_of(kind), *programs.words(kind, stay=0))
        for kind in few:
            end = node.wait(name_of(kind), seconds=60)
            assert end_of(end) == ("succeeded", 0, 0, "Completed"), (kind, end)
        assert programs.left(few) == {}


def on_nodes(function, kinds, prepare, name, shells=SHELLS, turn=0):
    def make(shell, some_kinds):
        def test(w):
            node = Node(w, shell)
            try:
                prepare(node)
                function(node, some_kinds)
            finally:
                node.close()
        return test
    for i, shell in enumerate(shells):
        globals()[f"test_{name}_{shell}"] = make(shell, third(kinds, turn + i))


LEAVES = [kind for kind in KINDS if kind[1] != "here"]
# Without a perl nobody is told of those who leave their session and hide their environment.
FOUND = [kind for kind in KINDS if kind[1] not in ("daemon", "twice") or kind[0] in ("deaf", "none")]
on_nodes(cancel_on, KINDS, lambda node: needs_perl(), "cancel_on_a_node")
on_nodes(limit_on, KINDS, lambda node: needs_perl(), "limit_on_a_node", ["dash"], 1)
on_nodes(left_on, LEAVES, lambda node: needs_perl(), "left_on_a_node", ["busybox"], 2)
on_nodes(cancel_on, FOUND, without_perl, "cancel_without_perl", ["dash", "busybox"])


def submit_here(w, kind, programs, *words):
    w.ok("submit", "-d", "-n", name_of(kind), "--grace", "500ms", *words, "--", *programs.words(kind))


def test_cancel_here(w):
    w.write("file")
    programs = Programs(w)
    for few in some(third(KINDS, 0)):
        for kind in few:
            submit_here(w, kind, programs)
        programs.are_up(few)
        w.ok("cancel", *map(name_of, few), timeout=300)
        assert programs.left(few) == {}


def test_limit_here(w):
    w.write("file")
    programs = Programs(w)
    for few in some(third(KINDS, 1)):
        for kind in few:
            submit_here(w, kind, programs, "--timeout", "5s")
        for kind in few:
            done = w.run("wait", name_of(kind), timeout=120)
            assert done.rc == 124, (kind, done)
        assert programs.left(few) == {}


def test_cannot_be_signalled(w):
    """A program of another user, as sudo's are, is named and not ended for ever; what can be ended is."""
    if os.getuid():
        raise Skip("only root can make a program that becomes root")
    w.as_nobody()
    root = w.dir / "as-root"
    shutil.copy(needs("setpriv"), root)
    root.chmod(0o4755)
    node = Node(w, "dash")
    node.argv = lambda: [needs("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *Node.argv(node)]
    try:
        for run, line in (("s", 'sleep 600 & echo up $!; exec "$1" --reuid=0 --regid=0 --clear-groups sleep 600'),
                          ("left", '"$1" --reuid=0 --regid=0 --clear-groups sleep 600 & echo up $!; exit 3')):
            node.submit(run, "sh", "-c", line, "sh", str(root), grace_ms=200)
        end = node.wait("left")
        assert end_of(end) == ("failed", 3, 0, "Error") and "cannot be signalled: it belongs to root" in end["text"], end
        node.running("s")
        wait_for(lambda: node.log("s").startswith(b"up "), "up")
        node.ask("cancel s 1")
        state = wait_for(lambda: node.state("s").get("text") and node.state("s"), "it is said")
        assert state["state"] == "running" and re.search(r"process \d+ \(sleep\) cannot be signalled: it belongs to root", state["text"]), state
        assert is_gone(int(node.log("s").split()[1]))
        os.kill(int(state["program"].split(":")[0]), signal.SIGKILL)
        assert end_of(node.wait("s"))[0] == "cancelled"
    finally:
        node.close()


def check_inner(w):
    """A run that another run's program has submitted goes on, looked after, when that one has ended."""
    inner = w.show("inner")
    assert inner["state"] == "running" and not inner.get("message"), inner
    w.ok("cancel", "inner")
    assert w.show("inner")["state"] == "cancelled"


def inner_words(w):
    return ["sh", "-c", 'cd "$1" && exec "$2" submit -d -n inner -- sleep 600', "sh", str(w.tree), w.dlrun]


def test_a_run_within_a_run_here(w):
    w.write("file")
    w.ok("submit", "-f", "-n", "outer", "--", *inner_words(w))
    check_inner(w)


def test_a_run_within_a_run_on_a_node(w):
    w.write("file")
    node = Node(w, "dash")
    try:
        node.submit("outer", *inner_words(w), env=w.env)
        assert end_of(node.wait("outer")) == ("succeeded", 0, 0, "Completed"), node.log("outer")
        check_inner(w)
    finally:
        node.close()


if __name__ == "__main__":
    main()
