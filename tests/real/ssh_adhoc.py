#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
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


def kept(w, run="@", *words):
    done = w.run("logs", *words, run)
    assert done.rc == 0, done
    return done.out


def test_output_is_kept_and_shown_after_the_end(w):
    """That of a terminal in tmux, which is gone with its end; and of several lines, colours and bytes."""
    needs("tmux")
    needs("script")
    with site(w) as s:
        lines = 'for i in 1 2 3; do echo "line $((i * 11))"; done; printf "\\033[31mred\\033[0m no newline"; exit 4'
        with terminal(w, "gpu1", "--", "sh", "-c", lines) as t:
            t.process.wait(30)
            t.wait_for(b"exited]")
            t.wait_for(b"\x1b[31mred\x1b[0m no newline")
        assert s.ended("@")["exit"]["code"] == 4
        assert kept(w) == "line 11\r\nline 22\r\nline 33\r\n\x1b[31mred\x1b[0m no newline", kept(w)
        assert kept(w, "@", "--tail", "2").startswith("line 33"), kept(w)


def test_much_output_is_kept_as_it_is(w):
    """With the shell and the language that the program has anyway, and nothing of the tool that keeps it."""
    needs("tmux")
    needs("script")
    with site(w) as s:
        with terminal(w, "gpu1", "--", "sh", "-c", "echo $LC_ALL.$SHELL.; seq 20000; exit 3") as t:
            t.process.wait(30)
        assert s.ended("@")["exit"]["code"] == 3
        out = kept(w)
        assert out.startswith(".") and out.endswith("\r\n20000\r\n") and out.count("\n") == 20001, out[-100:]
        assert "Script" not in out and "/bash." in out.split("\n")[0], out[:200]


def test_output_is_kept_in_screen(w):
    needs("screen")
    needs("script")
    with site(w, without=("tmux",)) as s:
        with terminal(w, "gpu1", "--", "sh", "-c", "echo one; sleep 1; echo two") as t:
            t.process.wait(30)
            # Shown again behind the end of screen, which leaves the terminal as it was.
            t.wait_for(b"one\r\r\ntwo")
            assert t.seen.rfind(b"\x1b[?1049l") >= t.seen.rfind(b"\x1b[?1049h"), t.seen
            assert b"Terminated" not in t.seen, t.seen
        s.ended("@")
        assert kept(w) == "one\r\ntwo\r\n", kept(w)


def test_output_without_a_terminal_is_kept(w):
    w.write("piped", "piped\n")
    with site(w) as s, open(w.tree / "piped") as piped:
        done = w.run("ssh", "gpu1", "--", "sh", "-c", "echo out; echo err >&2; cat; exit 7", stdin=piped)
        assert (done.rc, done.out) == (7, "out\npiped\n") and "err\n" in done.err, done
        assert s.ended("@")["exit"]["code"] == 7
        assert sorted(kept(w).splitlines()) == ["err", "out", "piped"], kept(w)


def test_what_cannot_be_kept_is_said(w):
    with site(w, without=("tmux", "screen")):
        with terminal(w, "gpu1", "--", "sh", "-c", "echo seen; exit 3") as t:
            assert t.process.wait(30) == 3
            t.wait_for(b"seen")
        assert "is not kept: this host has neither tmux nor screen" in kept(w), kept(w)


def test_without_script_it_is_said(w):
    needs("tmux")
    with site(w, without=("script",)) as s:
        # tmux does not draw any more what a program prints right before its end.
        with terminal(w, "gpu1", "--", "sh", "-c", "echo seen; read line") as t:
            t.wait_for(b"seen")
            t.type(b"\n")
            t.process.wait(30)
        s.ended("@")
        assert "is not kept: this host has no script(1)" in kept(w), kept(w)


def test_a_log_that_is_gone(w):
    """It is an error, whoever asks, and wherever it was."""
    with site(w) as s:
        w.ok("ssh", "gpu1", "--", "echo", "there")
        run = s.ended("@")["id"]
        assert kept(w, run) == "there\n"
        for path in s["gpu1"].files(f".dlrun/on/*/runs/{run}/1/log"):
            path.unlink()
        w.ok("submit", "-t", "local", "-f", "--", "echo", "here")
        here = w.show()["id"]
        next(w.state.glob(f"runs/{here}/attempts/1/log")).unlink()
        for gone in (run, here):
            for words in ([], ["-f"], ["--tail", "3"]):
                done = w.run("logs", *words, gone)
                assert done.rc == (125 if "-f" in words else 5) and done.out == "", done
                check_error_form(done.err, "run.log")


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
        end = s.ended(run)
        assert end["state"] in ("failed", "lost"), end


if __name__ == "__main__":
    main()
