#!/usr/bin/env python3
"""Work by hand on a node: `dlrun ssh HOST` puts the tree there and gives a terminal in it, which outlives its connection."""

import contextlib
import json

from cluster_forward import Terminal
from harness import *  # noqa: F403
from sshsite import site

# As later ones do it, which take some words for variables.
SYSTEMD_RUN = """#!/bin/sh
[ "$XDG_RUNTIME_DIR" = /run/user/3001 ] || { echo 'Failed to connect to bus' >&2; exit 1; }
while [ "$1" != -- ]; do
    case $1 in --user | --scope | --quiet | --collect) shift ;; *) echo "unrecognized option '$1'" >&2; exit 1 ;; esac
done
shift
case $* in *'$'*) echo "expanded: $*" >&2; exit 1 ;; esac
echo "$*" >> ~/scopes
exec "$@"
"""
LINGERS = """mkdir -p /run/user/3001/systemd /var/lib/systemd && mount -t tmpfs tests /var/lib/systemd && mkdir /var/lib/systemd/linger &&
: > /var/lib/systemd/linger/me && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/run/user/3001/systemd/private")'"""


def terminal(w, *words, **more):
    return contextlib.closing(Terminal(w, w.dlrun, "ssh", *words, **more))


def test_one_command(w):
    with site(w, files={"exp/a": "as it is here\n"}) as s:
        w.write("exp/a", "edited\n")
        done = w.run("ssh", "gpu1", "--", "sh", "-c", "cat a; echo err >&2; exit 5", cwd=w.tree / "exp")
        assert (done.rc, done.out) == (5, "edited\n") and "err\n" in done.err, done
        rows = w.runs()
        assert [(r["state"], r["exit"]["code"], r["target"]["hosts"]) for r in rows] == [("failed", 5, ["gpu1"])], rows
        assert s["gpu1"].logins()


def test_a_shell_in_the_tree(w):
    with site(w, files={"a": "in the tree\n"}) as s:
        with terminal(w, "gpu1", size=(33, 111)) as t:
            t.type(b"cat a; stty size; echo $DLRUN_RUN_ID.\r")
            t.wait_for(b"in the tree")
            t.wait_for(b" 111")
            run = w.show()["id"]
            t.wait_for(run.encode() + b".")
            assert w.show()["state"] == "running"
            t.type(b"exit 6\r")
            t.process.wait(30)
        assert s.ended(run)["state"] in ("failed", "succeeded")


def test_a_scope_of_its_own(w):
    """Whatever the words and the variables are."""
    needs("tmux")
    with site(w) as s:
        host = s["gpu1"]
        host.program("systemd-run", SYSTEMD_RUN)
        host.ok("sh", "-c", LINGERS)
        own = {"dir": "/nowhere", "value": "v", "XDG_RUNTIME_DIR": "/own run"}
        w.write("dlrun.yaml", json.dumps({"env": own}))
        with terminal(w, "gpu1", "--", "sh", "-c", 'echo "<$dir|$value|$XDG_RUNTIME_DIR|$1>"; read -r line', "sh", "${HOME} $x 'y'") as t:
            t.wait_for(b"</nowhere|v|/own run|${HOME} $x 'y'>")
            t.type(b"\r")
            t.process.wait(30)
        assert s.ended("@")["exit"]["code"] == 0, w.show()
        assert "/.shell-" in (host.home / "scopes").read_text()
        assert not host.files(".dlrun/on/*/runs/*/1/.shell-*")


def test_one_host_of_several(w):
    with site(w) as s:
        w.write("dlrun.yaml", json.dumps({"resources": {"nodes": 2}}))
        done = w.run("ssh", "gpu1", "--", "echo", "here")
        assert (done.rc, done.out) == (0, "here\n") and "one host" in done.err, done
        assert s.state("@") == "succeeded"


def comes_back(w, s):
    """The connection breaks; the same command goes on in the same shell."""
    with s.wire("gpu1") as wire:
        with terminal(w, "gpu1") as t:
            t.type(b"MINE=4711; echo rea''dy\r")
            t.wait_for(b"ready")
            run = w.show()["id"]
            wire.cut_all()
            t.process.wait(60)
        assert s.state(run) == "running"
        for words in (["gpu1"], [run]):
            with terminal(w, *words) as t:
                t.type(b"echo it is $MINE$((1 + 1))\r")
                t.wait_for(b"it is 47112")
                t.process.kill()
        assert len(w.runs()) == 1, w.runs()
        with terminal(w, run) as t:
            t.type(b"exit\r")
            t.process.wait(30)
        s.ended(run)


def test_it_outlives_its_connection_in_tmux(w):
    with site(w) as s:
        needs("tmux")
        comes_back(w, s)


def test_it_outlives_its_connection_in_screen(w):
    with site(w, without=("tmux",)) as s:
        needs("screen")
        comes_back(w, s)


def test_without_either_it_ends_with_its_connection(w):
    with site(w, without=("tmux", "screen")) as s, s.wire("gpu1") as wire:
        with terminal(w, "gpu1") as t:
            t.type(b"echo rea''dy\r")
            t.wait_for(b"ready")
            run = w.show()["id"]
            wire.cut_all()
            t.process.wait(60)
        assert s.ended(run)["state"] in ("failed", "lost")


if __name__ == "__main__":
    main()
